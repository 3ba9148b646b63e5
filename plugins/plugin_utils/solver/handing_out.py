# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a program's counts to single replicas: which GPU is cut how, and who goes where, so that the hosts of a class fill evenly.

The program counts the CPU and memory of equal hosts together. Here each replica goes to the host that keeps the most of both.
"""

from __future__ import annotations

import typing as t
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import choose, first_joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter, Slices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Hint, Need, Resources, Sharing
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

Key = tuple[str, int]
# A sharer of a GPU: (MiB, part of the compute).
Shape = tuple[int, float]
_What = t.TypeVar("_What")
# How often each of something, those that are there.
Counts = tuple[tuple[_What, int], ...]


@dataclass
class HostClass:
    """Hosts whose GPUs are alike. What they have of CPU, memory and disk counts together, so that the bound may be a little too high."""

    hosts: list[HostState]
    groups: list[Group]


@dataclass
class Group:
    """GPUs of the hosts of a class that are alike, for the program as well as for whoever is placed."""

    states: list[GpuState]
    # Columns: how many of the GPUs are cut so, are shared by such a mix, and are whole or shared in one way.
    cuts: list[tuple[int, Counts[str]]] = field(default_factory=list)
    mixes: list[tuple[int, str, Counts[Shape]]] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def columns(self) -> list[int]:
        """All of them."""
        return [*(column for column, _counts in self.cuts), *(column for column, _way, _mix in self.mixes), *self.uses.values()]


@dataclass
class Kind:
    """Replicas that differ in nothing that the program knows."""

    need: Need
    members: list[tuple[Need, int]]
    # (column, group, profile or None)
    columns: list[tuple[int, Group, str | None]] = field(default_factory=list)


def hand_out(hosts: HostClass, kinds: Sequence[Kind], values: Sequence[int], given: Counter[int]) -> list[tuple[Kind, Hint]]:
    """A place for each replica that the program counted on the hosts of a class, as far as single hosts have the room for it.

    ``values``: of the program's columns, by their numbers. ``given``: by kind, how many of its members have a place; counted on.
    """
    counted = counts_of(hosts, kinds, values)
    stock = _Stock(hosts, values)
    found: list[tuple[Kind, Hint]] = []
    # What single hosts have no room for after all is lost, so the highest priority comes first, then what is hardest to seat.
    counted.sort(key=lambda each: _turn_of(each[0].need, stock.weight(each[0].need), each[2]))
    for kind, group, profile, count in counted:
        for _turn in range(count):
            hint = stock.take(kind.members[given[id(kind)]][0], group, profile)
            if hint is None:
                break
            given[id(kind)] += 1
            found.append((kind, hint))
    return found


def counts_of(hosts: HostClass, kinds: Sequence[Kind], values: Sequence[int]) -> list[tuple[Kind, Group, str | None, int]]:
    """How many of each kind have what: as the program counted, but with a smaller slice where one would be left that serves too."""
    left: Counter[tuple[int, str]] = Counter()
    for group in hosts.groups:
        for column, counts in group.cuts:
            left.update({(id(group), name): count * values[column] for name, count in counts})
    groups = {id(group) for group in hosts.groups}
    found: list[tuple[Kind, Group, str | None, int]] = []
    for kind in kinds:
        left.subtract({(id(group), name or ""): values[column] for column, group, name in kind.columns if id(group) in groups})
    for kind in kinds:
        mine = {(id(group), name): values[column] for column, group, name in kind.columns if id(group) in groups}
        slices = sorted((_size(group, name), id(group), name) for _column, group, name in kind.columns if name and id(group) in groups)
        for size, group_id, name in reversed(slices):
            for smaller, other_id, other in slices:
                if other_id == group_id and smaller < size:
                    by = min(mine[(group_id, name)], left[(group_id, other)])
                    for key, change in (((group_id, name), -by), ((group_id, other), by)):
                        mine[key] += change
                        left[key] -= change
        found += [(kind, group, name, count) for _column, group, name in kind.columns if (count := mine.get((id(group), name), 0)) > 0]
    return found


def _size(group: Group, name: str) -> tuple[int, int]:
    cutter = group.states[0].cutter
    profile = None if cutter is None else cutter.profiles[name]
    return (0, 0) if profile is None else (profile.memory_mib, profile.slices)


def _turn_of(need: Need, weight: float, profile: str | None) -> tuple[t.Any, ...]:
    return (-need.priority, -need.count, not must_join(need), -weight, need.service, profile or "")


@dataclass
class _Share:
    """A GPU that is to be shared: by a mix that the program chose, or else by whoever fits in what it has left."""

    uuid: str
    memory_mib: int = 0
    compute: float = 0
    clients: int = 0
    mix: Counter[Shape] | None = None

    def has(self, shape: Shape) -> bool:
        """Is there room for this sharer?"""
        if self.mix is not None:
            return self.mix[shape] > 0
        return shape[0] <= self.memory_mib and shape[1] <= self.compute and self.clients > 0

    def take(self, shape: Shape) -> None:
        """Less of it is left."""
        if self.mix is not None:
            self.mix[shape] -= 1
            return
        self.memory_mib -= shape[0]
        self.compute = round(self.compute - shape[1], 6)
        self.clients -= 1


class _Line:
    """The hosts that have a place for one kind of replica, those that keep the most first; asked anew only where something was taken."""

    def __init__(self, group: Group, profile: str | None) -> None:
        self._group, self._profile = group, profile
        self._read = 0
        self._kept: dict[str, float] = {}
        self._hosts: list[tuple[float, int, str]] = []

    def renewed(self, stock: _Stock, need: Need) -> list[tuple[float, int, str]]:
        """(what :meth:`_Stock.kept` says, its place among all hosts, name) of each, as things are."""
        changed = set(stock.taken[self._read :])
        self._read = len(stock.taken)
        for name in changed:
            if name in self._kept:
                del self._hosts[bisect_left(self._hosts, (self._kept.pop(name), stock.turns[name], name))]
            kept = stock.kept(name, need, self._group, self._profile)
            if kept is not None:
                self._kept[name] = kept
                insort(self._hosts, (kept, stock.turns[name], name))
        return self._hosts


class _Stock:
    """What the cuts and uses that the program chose give, host by host, until it is taken."""

    def __init__(self, hosts: HostClass, values: Sequence[int]) -> None:
        self._hosts = {host.host.name: host for host in hosts.hosts}
        self.turns = {name: host.turn for name, host in self._hosts.items()}
        # All of them, then one after the other those of which something was taken.
        self.taken = list(self._hosts)
        self._lines: dict[object, _Line] = {}
        self._free: dict[str, Resources] = {name: host.free for name, host in self._hosts.items()}
        self._total = [sum(getattr(host.free, what) or 0 for host in hosts.hosts) / len(hosts.hosts) or 1 for what in _AMOUNTS]
        self._count: dict[str, Counter[str]] = {name: Counter(host.replicas) for name, host in self._hosts.items()}
        # By host: slices by (group, profile); shares by (group, way); whole GPUs by board, those with the least memory first.
        self._slices: dict[str, dict[tuple[int, str], list[tuple[str, Slice]]]] = defaultdict(lambda: defaultdict(list))
        self._shares: dict[str, dict[tuple[int, str], list[_Share]]] = defaultdict(lambda: defaultdict(list))
        self._whole: dict[str, dict[str, list[GpuState]]] = defaultdict(lambda: defaultdict(list))
        for group in sorted(hosts.groups, key=lambda group: group.states[0].gpu.memory_mib):
            self._deal(group, values)

    def _deal(self, group: Group, values: Sequence[int]) -> None:
        """Whole GPUs host by host, so that several are together; then cuts and shares in turn over the hosts, so that these are mixed."""
        states = sorted(group.states, key=lambda state: (self.turns[state.host.name], self._first(state), state.gpu.pci))
        for _turn in range(values[group.uses["whole"]] if "whole" in group.uses else 0):
            state = states.pop(0)
            self._whole[state.host.name][state.gpu.board].append(state)
        rest = list(_in_turn(states))
        for way, column in group.uses.items():
            for _turn in range(values[column] if way != "whole" else 0):
                state = rest.pop(0)
                entry = _Share(
                    state.gpu.uuid,
                    state.memory_free,
                    state.compute_free,
                    state.host.most_sharers(state.gpu, t.cast(Sharing, way)) - len(state.tenants),
                )
                self._shares[state.host.name][(id(group), way)].append(entry)
        for column, way, mix in group.mixes:
            for _turn in range(values[column]):
                state = rest.pop(0)
                self._shares[state.host.name][(id(group), way)].append(_Share(state.gpu.uuid, mix=Counter(dict(mix))))
        for column, counts in group.cuts:
            for _turn in range(values[column]):
                state = rest.pop(0)
                if state.cutter is not None:
                    pool = state.reusable if state.gpu.fixed else stand(state.cutter, state.fixed, state.spare, counts)
                    for one in pool or ():
                        self._slices[state.host.name][(id(group), one.profile)].append((state.gpu.uuid, one))

    def _first(self, state: GpuState) -> str:
        """So that GPUs which NVLink joins come one after the other."""
        return first_joined(state, self._hosts[state.host.name].gpus) if state.peers else state.gpu.pci

    def weight(self, need: Need) -> float:
        """The part of a host that a replica takes, by what it takes most of."""
        return max((getattr(need.resources, what) or 0) / total for what, total in zip(_AMOUNTS, self._total, strict=True))

    def take(self, need: Need, group: Group, profile: str | None) -> Hint | None:
        """The place on the host that keeps the most, away from other replicas of the service; None when no host has one."""
        best: tuple[int, float, str] | None = None
        limit = need.rules.max_per_host
        for kept, _host, name in self._line(need, group, profile).renewed(self, need):
            here = self._count[name][need.service]
            if (best is not None and here >= best[0]) or (limit is not None and here >= limit):
                continue
            if any(port is not None and self._hosts[name].port_refusal(port, "") is not None for _port, port in need.ports):
                continue
            best = (here, kept, name)
            if not here:
                break
        if best is None:
            return None
        name = best[-1]
        self._free[name] = self._free[name].less(need.resources)
        self._count[name][need.service] += 1
        self.taken.append(name)
        return self._given(name, need, group, profile)

    def kept(self, name: str, need: Need, group: Group, profile: str | None) -> float | None:
        """The less, the more a host keeps beside a replica; None where it has no place for one."""
        able = self._has(name, need, group, profile) and self._free[name].holds(need.resources)
        return -self._left(name, need) if able else None

    def _line(self, need: Need, group: Group, profile: str | None) -> _Line:
        asked = (id(group), profile, need.isolation, need.sharing, shape_of(need), need.count, must_join(need), need.resources)
        if asked not in self._lines:
            self._lines[asked] = _Line(group, profile)
        return self._lines[asked]

    def _left(self, name: str, need: Need) -> float:
        """The part of a host that is left after a replica, of what is then scarcest there."""
        free, wanted = self._free[name], need.resources
        cpus, memory, shm, disk = self._total
        # Asked for often, so each is written out.
        left = [] if free.cpus is None else [(free.cpus - (wanted.cpus or 0)) / cpus]
        if free.memory is not None:
            left.append((free.memory - (wanted.memory or 0)) / memory)
        if free.shm is not None:
            left.append((free.shm - (wanted.shm or 0)) / shm)
        if free.disk is not None:
            left.append((free.disk - (wanted.disk or 0)) / disk)
        return min(left, default=0.0)

    def _has(self, name: str, need: Need, group: Group, profile: str | None) -> bool:
        if profile is not None:
            return bool(self._slices[name][(id(group), profile)])
        if need.isolation == "exclusive":
            return self._chosen(name, need, group) is not None
        return self._share(name, need, group) is not None

    def _share(self, name: str, need: Need, group: Group) -> _Share | None:
        shape = shape_of(need)
        return next((share for share in self._shares[name][(id(group), need.sharing)] if share.has(shape)), None)

    def _given(self, name: str, need: Need, group: Group, profile: str | None) -> Hint | None:
        if profile is not None:
            uuid, one = self._slices[name][(id(group), profile)].pop(0)
            return Hint(name, (uuid,), one)
        if need.isolation == "exclusive":
            taken = self._chosen(name, need, group)
            whole = self._whole[name][group.states[0].gpu.board]
            whole[:] = [state for state in whole if state not in (taken or ())]
            return None if taken is None else Hint(name, tuple(state.gpu.uuid for state in taken))
        share = self._share(name, need, group)
        if share is None:
            return None
        share.take(shape_of(need))
        return Hint(name, (share.uuid,))

    def _chosen(self, name: str, need: Need, group: Group) -> tuple[GpuState, ...] | None:
        """Of the whole GPUs of the board that are left on a host."""
        states = [state for state in self._whole[name][group.states[0].gpu.board] if state.gpu.memory_mib >= need.memory_mib]
        if len(states) < need.count:
            return None
        if not any(state.peers for state in states):
            return None if must_join(need) else tuple(states[: need.count])
        taken = choose(states, need)
        return None if taken is None else tuple(taken)


_AMOUNTS = ("cpus", "memory", "shm", "disk")


def shape_of(need: Need) -> Shape:
    """What a sharer takes of its GPU."""
    return (need.memory_mib, need.compute or 0)


def _in_turn(states: Iterable[GpuState]) -> Iterator[GpuState]:
    """The first of each host, then the second of each, and so on; the hosts in their order, as they come."""
    turn: Counter[str] = Counter()
    ranked = []
    for state in states:
        turn[state.host.name] += 1
        ranked.append((turn[state.host.name], state))
    return (state for _turn, state in sorted(ranked, key=lambda each: each[0]))


@lru_cache(maxsize=4096)
def stand(cutter: Cutter, fixed: Slices, spare: Slices, counts: Counts[str]) -> Slices | None:
    """Where slices in these numbers go beside ``fixed``: on as many of ``spare`` as can be, then at the lowest starts. None: nowhere."""
    board = patterns_of(cutter.geometry, {name for name, _count in counts} | {one.profile for one in (*fixed, *spare)})
    here, there = board.state_of(fixed), board.state_of(spare)
    wanted = numpy.zeros(len(board.profiles), dtype=numpy.int64)
    for name, count in counts:
        wanted[board.number[name]] = count
    fits = board.states[(board.states & here) == here][(board.beside(here) == wanted).all(axis=1)]
    if not len(fits):
        return None
    best = min(fits.tolist(), key=lambda state: (-(state & there).bit_count(), state))
    return tuple(one for one in board.slices_of(best) if one not in fixed)
