# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Places for all who wait at once: one integer program over the GPUs of a fleet, and the proof of how many can be served at most.

The planner places replicas one by one, which is quick and nearly always as good. Where somebody is left over, this says whether anybody
could have been served in addition, and if so, who goes where. Whatever it proposes the planner takes step by step through its own rules, so
that a rule which the program does not know (a wish to be spread, a group that stands or falls together) is never broken by it.
"""

from __future__ import annotations

import typing as t
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter, Slices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, MPS, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, Program, SolverError, available
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import Fleet, GpuState, HostState

Key = tuple[str, int]
Waiting = Sequence[tuple[Need, int]]

# A program with more columns than this takes longer than a merge request waits; the plan then says that nothing was proven.
MOST_COLUMNS = 40_000
_WORK = Limits(gap=0.0, nodes=200, iterations=400_000)


class Hint(t.NamedTuple):
    """Where a replica would go: on one GPU (a slice of it, or a share), or on several whole ones."""

    host: str
    gpus: tuple[str, ...]
    slice: Slice | None = None


@dataclass(frozen=True)
class Together:
    """``hints``: a place for each replica that the program serves. ``most``: priority -> how many of those who wait can be served at most,
    given what was reached for higher priorities. ``better``: more are served than ``reached`` said, at the first priority where it differs.
    """

    hints: Mapping[Key, Hint]
    most: Mapping[int, int]
    better: bool


@dataclass
class _Group:
    """GPUs of one host that are alike, for the program as well as for whoever is placed."""

    host: HostState
    states: list[GpuState]
    # Columns: how many of the GPUs are cut so, and how many are whole or shared in one way.
    cuts: list[tuple[int, tuple[tuple[str, int], ...]]] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


@dataclass
class _Kind:
    """Replicas that differ in nothing that the program knows."""

    need: Need
    members: list[tuple[Need, int]]
    # (column, group, profile or None)
    columns: list[tuple[int, _Group, str | None]] = field(default_factory=list)


def plan_together(fleet: Fleet, waiting: Waiting, reached: Mapping[int, int]) -> Together | None:
    """The program for those who wait, on a fleet on which nobody of them has a place yet.

    ``reached``: priority -> how many of them have been served already by other means; only more than that is of interest. None where the
    solver is not there, the fleet is too large for it, or HiGHS has no answer within its limits.
    """
    if not available() or not waiting:
        return None
    model = _Model(fleet, waiting)
    if model.program.columns > MOST_COLUMNS:
        return None
    try:
        return model.solved(reached)
    except SolverError:
        return None


class _Model:
    """The program: kinds of replicas on groups of equal GPUs."""

    def __init__(self, fleet: Fleet, waiting: Waiting) -> None:
        self.program = Program()
        self.kinds = _kinds(waiting)
        self.opened: list[int] = []
        environments = {kind.need.environment for kind in self.kinds}
        self.groups = [
            group
            for _name, host in sorted(fleet.hosts.items())
            if not host.host.down and host.host.environment in environments
            for group in _groups(host)
        ]
        # (host, board, MiB) -> the row of its whole GPUs; the first group that is so has the columns of all.
        self._whole: dict[tuple[str, str, int], int] = {}
        self._rows_of_gpus()
        self._kinds_on_groups()
        self._rows_of_hosts()
        self.levels = self._rows_of_levels()

    def _rows_of_gpus(self) -> None:
        """Each GPU is cut in one way, or whole, or shared; ``rows``: of each group, what its columns offer."""
        program = self.program
        for group in self.groups:
            state = group.states[0]
            if program.columns > MOST_COLUMNS:
                return
            once = int(program.add_rows(1, upper=len(group.states))[0])
            group.rows["gpus"] = once
            if state.refusal("mig") is None and state.cutter is not None:
                self._cuts(group, once)
            for way in ("whole", *(f"shared {sharing}" for sharing in ("time-slice", "mps"))):
                mode, _space, sharing = way.partition(" ")
                if state.refusal(mode, sharing or "time-slice") is not None:  # type: ignore[arg-type] # of these words
                    continue
                (column,) = program.add_columns(1, whole=True, upper=len(group.states)).tolist()
                program.add_entries(once, column)
                self._open(state, column)
                group.uses[way] = column
                if mode == "whole":
                    self._offer_whole(group, column)
                else:
                    clients = min(state.host.shared_max, state.gpu.mps_clients if sharing == MPS else state.host.shared_max)
                    for what, each in (
                        ("memory", state.memory_free),
                        ("compute", state.compute_free),
                        ("clients", clients - len(state.tenants)),
                    ):
                        group.rows[f"{way} {what}"] = self._offer(column, each)

    def _offer_whole(self, group: _Group, column: int) -> None:
        """A replica on several GPUs may have them of any groups of its host, as long as they are of one board."""
        place = _place(group.states[0])
        if place in self._whole:
            self.program.add_entries(self._whole[place], column, -1.0)
        else:
            self._whole[place] = group.rows["whole"] = self._offer(column, 1)

    def _offer(self, column: int, each: float) -> int:
        """A row: what is taken of it (positive) is at most ``each`` for every GPU of the column."""
        (row,) = self.program.add_rows(1, upper=0).tolist()
        self.program.add_entries(row, column, -each)
        return int(row)

    def _open(self, state: GpuState, column: int) -> None:
        if state.mode is None:
            self.opened.append(column)

    def _cuts(self, group: _Group, once: int) -> None:
        state = group.states[0]
        names = self._profiles(state)
        if state.cutter is None or not names:
            return
        rows = {name: int(self.program.add_rows(1, upper=0)[0]) for name in names}
        group.rows.update(rows)
        stock = state.spare if state.gpu.fixed else None
        for counts in additions(state.cutter, state.fixed, names, stock, state.reusable if state.gpu.fixed else None):
            (column,) = self.program.add_columns(1, whole=True, upper=len(group.states)).tolist()
            self.program.add_entries(once, column)
            self._open(state, column)
            group.cuts.append((column, counts))
            for name, count in counts:
                self.program.add_entries(rows[name], column, -count)

    def _profiles(self, state: GpuState) -> tuple[str, ...]:
        """Profiles that somebody who waits may have on this board."""
        found: set[str] = set()
        for kind in self.kinds:
            if kind.need.isolation == "slice" and state.cutter is not None and state.serves(kind.need):
                found.update(state.cutter.acceptable(kind.need.memory_mib, kind.need.compute, kind.need.profile))
        return tuple(sorted(found))

    def _kinds_on_groups(self) -> None:
        for kind in self.kinds:
            for group in self.groups:
                if self.program.columns > MOST_COLUMNS:
                    return
                self._kind_on(kind, group)

    def _kind_on(self, kind: _Kind, group: _Group) -> None:
        need, state = kind.need, group.states[0]
        if need.environment != group.host.host.environment or not state.serves(need) or group.host.free.shortage(need.resources):
            return
        if need.isolation == "slice":
            if state.cutter is None:
                return
            for name in state.cutter.acceptable(need.memory_mib, need.compute, need.profile):
                if name in group.rows:
                    self._column(kind, group, name, {group.rows[name]: 1})
        elif need.isolation == "exclusive":
            if "whole" in group.rows and state.gpu.memory_mib >= need.memory_mib:
                self._column(kind, group, None, {group.rows["whole"]: need.count})
        else:
            way = f"shared {need.sharing}"
            if f"{way} memory" in group.rows and need.memory_mib <= state.memory_free and (need.compute or 0) <= state.compute_free:
                taken = {"memory": need.memory_mib, "compute": need.compute or 0, "clients": 1}
                self._column(kind, group, None, {group.rows[f"{way} {what}"]: much for what, much in taken.items()})

    def _column(self, kind: _Kind, group: _Group, profile: str | None, takes: Mapping[int, float]) -> None:
        (column,) = self.program.add_columns(1, whole=True, upper=len(kind.members)).tolist()
        kind.columns.append((column, group, profile))
        for row, much in takes.items():
            if much:
                self.program.add_entries(row, column, much)

    def _rows_of_hosts(self) -> None:
        """CPU, memory, disk and ports of hosts, and how many replicas of one service a host or a GPU may have."""
        by_host: dict[str, list[tuple[int, _Kind, _Group]]] = defaultdict(list)
        for kind in self.kinds:
            for column, group, _profile in kind.columns:
                by_host[group.host.host.name].append((column, kind, group))
        for _name, entries in sorted(by_host.items()):
            host = entries[0][2].host
            for what in ("cpus", "memory", "shm", "disk"):
                free = getattr(host.free, what)
                takes = [(column, getattr(kind.need.resources, what) or 0) for column, kind, _group in entries]
                if free is not None and any(much for _column, much in takes):
                    self._at_most(free, takes)
            ports: dict[int, list[tuple[int, float]]] = defaultdict(list)
            for column, kind, _group in entries:
                for _port, number in kind.need.ports:
                    if number is not None:
                        ports[number].append((column, 1))
            for number, takes in sorted(ports.items()):
                self._at_most(0 if host.port_refusal(number, "") is not None else 1, takes)
            self._rules_of_host(host, entries)

    def _rules_of_host(self, host: HostState, entries: Iterable[tuple[int, _Kind, _Group]]) -> None:
        limited: dict[str, list[tuple[int, float]]] = defaultdict(list)
        most: dict[str, int] = {}
        for column, kind, _group in entries:
            limit = kind.need.rules.max_per_host
            if limit is not None:
                most[kind.need.service] = limit - host.replicas.get(kind.need.service, 0)
                limited[kind.need.service].append((column, 1))
        for service, takes in sorted(limited.items()):
            self._at_most(max(0, most[service]), takes)

    def _at_most(self, upper: float, takes: Iterable[tuple[int, float]]) -> None:
        (row,) = self.program.add_rows(1, upper=upper).tolist()
        for column, much in takes:
            if much:
                self.program.add_entries(row, column, much)

    def _rows_of_levels(self) -> dict[int, list[int]]:
        """Nobody has two places; and of each priority its columns, the highest first."""
        levels: dict[int, list[int]] = {priority: [] for priority in sorted({-kind.need.priority for kind in self.kinds})}
        for kind in self.kinds:
            if kind.columns:
                self._at_most(len(kind.members), [(column, 1) for column, _group, _profile in kind.columns])
                levels[-kind.need.priority] += [column for column, _group, _profile in kind.columns]
        return {-key: columns for key, columns in levels.items()}

    def solved(self, reached: Mapping[int, int]) -> Together:
        """Level by level: what can be served at most, and whether that is more than was ``reached``."""
        most: dict[int, int] = {}
        served: dict[int, int] = {}
        better = False
        for priority, columns in self.levels.items():
            if not columns:
                most[priority] = served[priority] = 0
                continue
            have = reached.get(priority, 0)
            self._aim(dict.fromkeys(columns, -1.0))
            most[priority] = _whole(-self.program.solve(_WORK, relaxed=True).bound)
            if most[priority] > have or better:
                found = self.program.solve(_WORK)
                most[priority] = min(most[priority], _whole(-found.bound))
                served[priority] = round(-found.objective)
                better = better or served[priority] > have
            else:
                served[priority] = have
            self._keep(columns, max(served[priority], 0 if better else min(have, most[priority])))
        if not better:
            return Together({}, most, False)
        self._aim({**dict.fromkeys(self.opened, 1.0)})
        return Together(self._hints(self.program.solve(_WORK)), most, True)

    def _aim(self, cost: Mapping[int, float]) -> None:
        self.program.set_cost(cost)

    def _keep(self, columns: Sequence[int], least: int) -> None:
        (row,) = self.program.add_rows(1, lower=least).tolist()
        self.program.add_entries(row, columns, 1.0)

    def _hints(self, found: Outcome) -> dict[Key, Hint]:
        """The program's counts as places of single replicas."""
        values = [round(value) for value in found.values.tolist()]
        stock = _Stock(self.groups, values)
        hints: dict[Key, Hint] = {}
        for kind in self.kinds:
            left = list(kind.members)
            for column, group, profile in kind.columns:
                for _turn in range(values[column]):
                    hint = stock.take(kind.need, group, profile)
                    if hint is None or not left:
                        break
                    need, replica = left.pop(0)
                    hints[(need.service, replica)] = hint
        return hints


def _whole(value: float) -> int:
    """A bound on a count, which is a whole number."""
    return int(value + 1e-6)


def _kinds(waiting: Waiting) -> list[_Kind]:
    """Equal needs together. Where a rule or a port by number names services, each service is a kind of its own."""
    found: dict[t.Any, _Kind] = {}
    for need, replica in sorted(waiting, key=lambda each: (-each[0].priority, each[0].service, each[1])):
        rules, asked = need.rules, any(port is not None for _name, port in need.ports)
        own = need.service if asked or rules.max_per_host is not None or rules.max_per_gpu is not None else ""
        bars = tuple(sorted((place, bar.reason) for place, bar in need.bars.items()))
        key = (
            need.environment, need.isolation, need.memory_mib, need.priority, need.count, need.profile, need.compute, need.sharing,
            need.models, need.not_models, need.resources, bars, own,
        )  # fmt: skip
        found.setdefault(key, _Kind(need, [])).members.append((need, replica))
    return list(found.values())


def _groups(host: HostState) -> list[_Group]:
    """GPUs of a host that are alike together, in order of their PCI addresses."""
    found: dict[t.Any, _Group] = {}
    for state in host.gpus:
        gpu = state.gpu
        key = (
            gpu.board, gpu.memory_mib, gpu.geometry, gpu.mig, gpu.blocked, gpu.closed, gpu.pin, gpu.outsiders, gpu.instances,
            gpu.mps_clients, state.mode, state.sharing, state.fixed, state.spare, state.memory_free, state.compute_free, len(state.tenants),
        )  # fmt: skip
        found.setdefault(key, _Group(host, [])).states.append(state)
    return list(found.values())


@lru_cache(maxsize=4096)
def additions(
    cutter: Cutter, fixed: Slices, names: tuple[str, ...], stock: Slices | None = None, free: Slices | None = None
) -> tuple[tuple[tuple[str, int], ...], ...]:
    """What can be added to a board on which ``fixed`` stays: (profile, how many) of ``names``, without what another answer exceeds.

    ``stock``: on a GPU whose slices the platform decided, those that are there; of them only ``free`` are given away.
    """
    if stock is not None:
        counted = Counter(one.profile for one in free or () if one.profile in names)
        return (tuple(sorted(counted.items())),) if counted else ()
    found: set[tuple[int, ...]] = set()
    seen: set[Slices] = set()
    trail = [fixed]
    while trail:
        placed = trail.pop()
        new = Counter(one.profile for one in placed if one not in fixed)
        found.add(tuple(new[name] for name in names))
        for name in names:
            for start in cutter.profiles[name].starts:
                one = Slice(start, name)
                if cutter.fits(placed, one):
                    more = tuple(sorted((*placed, one)))
                    if more not in seen:
                        seen.add(more)
                        trail.append(more)
    ordered = sorted(found, key=lambda each: (-sum(each), each))
    kept: list[tuple[int, ...]] = []
    for each in ordered:
        if any(each) and not any(all(a >= b for a, b in zip(other, each, strict=True)) for other in kept):
            kept.append(each)
    return tuple(tuple((name, count) for name, count in zip(names, each, strict=True) if count) for each in kept)


def stand(cutter: Cutter, fixed: Slices, spare: Slices, counts: Iterable[tuple[str, int]]) -> Slices | None:
    """Where slices in these numbers go beside ``fixed``: on those of ``spare`` where they can, then at the lowest starts. None: nowhere."""
    wanted = [name for name, count in sorted(counts, key=lambda each: -cutter.profiles[each[0]].size) for _each in range(count)]

    def search(have: Slices, left: Sequence[str]) -> Slices | None:
        if not left:
            return have
        starts = sorted(cutter.profiles[left[0]].starts, key=lambda start: (Slice(start, left[0]) not in spare, start))
        for start in starts:
            one = Slice(start, left[0])
            if one not in have and cutter.fits(have, one):
                found = search((*have, one), left[1:])
                if found is not None:
                    return found
        return None

    found = search(fixed, wanted)
    return None if found is None else tuple(one for one in found if one not in fixed)


class _Stock:
    """What the program's cuts and uses of GPUs give, until it is taken."""

    def __init__(self, groups: Sequence[_Group], values: Sequence[int]) -> None:
        # (host, board, MiB) -> whole GPUs; host of a group and way -> GPUs that are shared; (group, profile) -> slices.
        self._whole: dict[tuple[str, str, int], list[str]] = defaultdict(list)
        self._shared: dict[tuple[int, str], list[list[t.Any]]] = defaultdict(list)
        self._slices: dict[tuple[int, str], list[tuple[str, Slice]]] = defaultdict(list)
        for group in groups:
            states = list(group.states)
            for column, counts in group.cuts:
                for _turn in range(values[column]):
                    self._cut(group, states.pop(0), counts)
            for way, column in group.uses.items():
                for _turn in range(values[column]):
                    state = states.pop()
                    if way == "whole":
                        self._whole[_place(state)].append(state.gpu.uuid)
                    else:
                        self._shared[(id(group), way)].append([state.memory_free, state.compute_free, state.gpu.uuid])

    def _cut(self, group: _Group, state: GpuState, counts: Iterable[tuple[str, int]]) -> None:
        if state.cutter is None:
            return
        pool = state.reusable if state.gpu.fixed else stand(state.cutter, state.fixed, state.spare, counts)
        for one in pool or ():
            self._slices[(id(group), one.profile)].append((state.gpu.uuid, one))

    def take(self, need: Need, group: _Group, profile: str | None) -> Hint | None:
        """A place for one more replica of this kind, as far as the program's own counts go."""
        host = group.host.host.name
        if profile is not None:
            slices = self._slices[(id(group), profile)]
            if not slices:
                return None
            uuid, one = slices.pop(0)
            return Hint(host, (uuid,), one)
        if MODE_OF[need.isolation] == "whole":
            whole = self._whole[_place(group.states[0])]
            if len(whole) < need.count:
                return None
            return Hint(host, tuple(sorted(whole.pop() for _each in range(need.count))))
        for entry in self._shared[(id(group), f"shared {need.sharing}")]:
            if need.memory_mib <= entry[0] and (need.compute or 0) <= entry[1]:
                entry[0] -= need.memory_mib
                entry[1] = round(entry[1] - (need.compute or 0), 6)
                return Hint(host, (entry[2],))
        return None


def _place(state: GpuState) -> tuple[str, str, int]:
    return (state.host.name, state.gpu.board, state.gpu.memory_mib)
