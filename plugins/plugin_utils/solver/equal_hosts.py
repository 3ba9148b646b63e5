# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a program's counts to single replicas, on hosts that are alike and on which nobody is yet.

There CPU and memory are often needed to the last core, and where one host after the other is filled, much of what was counted finds no
place. So these hosts are dealt as those of a whole fleet are (``fleet_dealing``): each gets its fair part of what is heavy and light.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, MPS, Hint, Sharing
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import UNLIMITED
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetHost, FleetModel, FleetProblem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import Group, HostClass, Key, Kind, counts_of, hand_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

# Hosts count as equal where what they have of CPU and memory differs by less than this part.
ALIKE = 0.03
# Among how many places of a kind one of its replicas chooses.
CHOICES = 64

_Places = list[tuple[Kind, Hint]]
_Counted = list[tuple[Kind, Group, str | None, int]]


def capacity(host: HostState) -> tuple[int, int]:
    """Which hosts are equal in what they can give: their CPU and memory, but for little."""
    return _step(host.free.cpus), _step(host.free.memory)


def _step(amount: float | None) -> int:
    return -1 if amount is None else round(math.log1p(max(0.0, amount)) / ALIKE)


def places_of(classes: Sequence[HostClass], kinds: Sequence[Kind], values: Sequence[int], *, evenly: bool) -> dict[Key, Hint]:
    """A place for each replica that a program counted on the hosts of these classes, as far as single hosts have the room for it.

    ``values``: of the program's columns, by their numbers. ``evenly``: equal hosts are dealt at once, and not only where somebody was left
    over.
    """
    given: Counter[int] = Counter()
    found: list[_Places] = []
    equal: dict[int, _Equal] = {}
    for number, hosts in enumerate(classes):
        counted = counts_of(hosts, kinds, values)
        one = _equal(hosts, counted)
        found.append([] if one and evenly else hand_out(hosts, kinds, values, given))
        if one is not None and len(found[-1]) < sum(count for *_place, count in counted):
            equal[number] = one
    for number, other in _dealt(equal).items():
        found[number] = max(found[number], other, key=lambda each: served(Counter(kind.need.priority for kind, _hint in each)))
        # Where HiGHS has no answer, one host after the other will do.
        found[number] = found[number] or hand_out(classes[number], kinds, values, given)
    here = {host.host.name: host.replicas for each in classes for host in each.hosts}
    of_kind: dict[int, list[Hint]] = defaultdict(list)
    for each in found:
        for kind, hint in each:
            of_kind[id(kind)].append(hint)
    return {key: hint for kind in kinds for key, hint in _shared_out(kind, of_kind[id(kind)], here)}


def _shared_out(kind: Kind, hints: Sequence[Hint], here: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[Key, Hint]]:
    """Who of a kind has which of its places: away from other replicas of the service, but for who wishes to be near them.

    ``here``: by host, how many of each service are there.
    """
    members = kind.members[: len(hints)]
    if len({need.service for need, _replica in members if need.rules.spread != "pack"}) < 2:  # there is nothing to choose
        yield from (((need.service, replica), hint) for (need, replica), hint in zip(members, hints, strict=True))
        return
    # The first of each host, then the second of each, and so on.
    turn, turns = Counter[str](), list[int]()
    for hint in hints:
        turns.append(turn[hint.host])
        turn[hint.host] += 1
    left = [hints[number] for number in sorted(range(len(hints)), key=turns.__getitem__)]
    given = Counter[tuple[str, str]]()
    for need, replica in members:
        wish, name = need.rules.spread, need.service

        def near(number: int, wish: str = wish, name: str = name) -> tuple[int, int]:
            """As ``offers.nearness``."""
            hint = left[number]
            there = here[hint.host].get(name, 0) + given[name, hint.host]
            beside = given[name, hint.gpus[0]]
            return (-there, -beside) if wish == "pack" else (0 if wish == "gpu" else there, beside)

        hint = left.pop(min(range(min(CHOICES, len(left))), key=near))
        given.update([(name, hint.host), (name, hint.gpus[0])])
        yield (name, replica), hint


def served(priorities: Counter[int]) -> list[tuple[int, int]]:
    """How many of each priority, the highest first; to be compared."""
    return sorted(priorities.items(), reverse=True)


@dataclass(frozen=True, eq=False)
class _Equal:
    """Hosts that are alike and that nobody uses, and whom the program counted on their ``group`` of GPUs."""

    hosts: Sequence[HostState]
    group: Group
    counted: _Counted

    @cached_property
    def gpus(self) -> dict[int, list[str]]:
        """By turn of a host, those of its GPUs that are of the group, by UUID."""
        mine = set(map(id, self.group.states))
        return {host.turn: [state.gpu.uuid for state in host.gpus if id(state) in mine] for host in self.hosts}

    def sharing(self) -> set[Sharing]:
        """How its GPUs are to be shared."""
        return {kind.need.sharing for kind, *_where in self.counted if kind.need.isolation == "shared"}


def _equal(hosts: HostClass, counted: _Counted) -> _Equal | None:
    """None where the hosts of a class are not alike, or for what a deal of equal hosts does not know."""
    groups = {id(group): group for _kind, group, _profile, _count in counted}
    if len(groups) != 1 or any(host.replicas for host in hosts.hosts):
        return None
    (group,) = groups.values()
    found, state = _Equal(hosts.hosts, group, counted), group.states[0]
    needs = [kind.need for kind, *_where in counted]
    untouched = state.mode is None and not state.gpu.instances
    joined = any(must_join(need) or (need.count > 1 and state.peers) for need in needs)
    alike = len({(capacity(host), len(found.gpus[host.turn])) for host in hosts.hosts}) == 1
    return found if untouched and alike and not joined and len(found.sharing()) < 2 else None


def _dealt(equal: Mapping[int, _Equal]) -> dict[int, _Places]:
    """The places in each class, by its number: as those of a fleet in which each class is a kind of GPU of its own. None of them where
    HiGHS has no answer."""
    if not equal:
        return {}
    # A dozen files that most plans do not need.
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_dealing

    models = [
        FleetModel(_name(number), one.group.states[0].gpu.memory_mib, one.group.states[0].gpu.geometry) for number, one in equal.items()
    ]
    hosts = [host for number, one in equal.items() for host in _hosts(_name(number), one)]
    kinds = [(number, kind) for number, one in equal.items() for kind, *_where in one.counted]
    asked = [each for number, one in equal.items() for each in _asked(_name(number), one)]
    asked = [replace(each, key=_name(turn)) for turn, each in enumerate(asked)]
    states = {_name(host.turn): host for one in equal.values() for host in one.hosts}
    found: dict[int, _Places] = {number: [] for number in equal}
    try:
        rows_of_all = fleet_dealing.places(FleetProblem(tuple(models), tuple(hosts), tuple(asked)))
    except SolverError:
        return found
    for (key, _replica), rows in groupby(rows_of_all, key=lambda row: row[:2]):
        number, kind = kinds[int(key)]
        _key, _number, name, _gpu, _mode, profile, start = first = next(rows)
        uuids = equal[number].gpus[states[name].turn]
        several = tuple(uuids[row[3]] for row in (first, *rows))
        found[number].append((kind, Hint(states[name].host.name, several, Slice(start, profile) if profile else None)))
    return found


def _name(number: int) -> str:
    """So that the order of names is that of numbers."""
    return f"{number:09}"


def _hosts(model: str, one: _Equal) -> Iterator[FleetHost]:
    """They are called by their turn, so that names decide only where nothing else does."""
    state = one.group.states[0]
    cpus = min(UNLIMITED if host.free.cpus is None else host.free.cpus for host in one.hosts)
    memory = min(UNLIMITED if host.free.memory is None else host.free.memory for host in one.hosts)
    modes = tuple(sorted({MODE_OF[kind.need.isolation] for kind, *_where in one.counted}))
    clients = state.host.most_sharers(state.gpu, next(iter(one.sharing()), MPS))
    gpus, reserve = len(one.gpus[one.hosts[0].turn]), state.gpu.memory_mib - state.memory_free
    return (FleetHost(_name(host.turn), model, gpus, cpus, memory, modes, clients, reserve) for host in one.hosts)


def _asked(model: str, one: _Equal) -> Iterator[FleetClass]:
    """Whom the program counted there, as classes of services."""
    room = one.group.states[0].compute_free
    for kind, _group, profile, count in one.counted:
        need, shared = kind.need, kind.need.isolation == "shared"
        by_number = any(port is not None for _port, port in need.ports)
        yield FleetClass(
            key="",
            team="",
            priority=need.priority,
            replicas=count,
            isolation=need.isolation,
            memory_mib=need.memory_mib if shared else 0,
            # Of what one of the GPUs may give in all.
            compute=(need.compute or 0.0) / room if shared else 0.0,
            count=need.count,
            profile=profile,
            models=(model,),
            cpus=need.resources.cpus or 0.0,
            ram_mib=need.resources.memory or 0,
            max_per_host=1 if by_number else need.rules.max_per_host,
        )
