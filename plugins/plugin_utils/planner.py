# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a problem to a solution: who stays, who gets which GPU, slice or share, and who gets none.

``make_plan`` is the only thing that others use. Inside: whoever has a place that is still right keeps it; then the others
come one by one, by priority, then the largest first, and each takes the best place of the moment. No clock, no random number;
the order of the input does not matter.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.explain import explain
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cut
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MODE_OF,
    TIME_SLICE,
    Drain,
    GpuLayout,
    Need,
    Placement,
    Problem,
    Solution,
    Unplaced,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import Fleet, GpuState, HostState

Key = tuple[str, int]
# Compared from left to right, lower is better. All ranks of one kind of need have the same shape.
Rank = tuple[t.Any, ...]


class Offer(t.NamedTuple):
    """The best that one host can do for a need."""

    rank: Rank
    host: HostState
    gpus: tuple[GpuState, ...]
    cut: Cut | None = None


def make_plan(problem: Problem) -> Solution:
    """Decide. Equal problems, in whatever order their parts come, give equal solutions."""
    fleet = Fleet(problem)
    needs = {need.service: need for need in problem.needs}
    before = _by_replica(problem.previous, fleet)
    placed = _keep_all(fleet, needs, before, problem.changed)
    leaving = {key: place for key, place in placed.items() if _must_leave(fleet, needs[place.service], place)}
    for key in leaving:
        del placed[key]
    missing = _place_all(fleet, list(_waiting(problem.needs, placed)), before, placed, leaving)
    missing.sort(key=lambda each: (each[0].service, each[1]))
    return Solution(
        placements=tuple(placed[key] for key in sorted(placed)),
        unplaced=tuple(_unplaced(fleet, need, replica, before.get((need.service, replica)), leaving) for need, replica in missing),
        layouts=_layouts(fleet),
        waiting=tuple(_waits(fleet, problem.changed, missing, before, leaving)),
    )


def _place_all(
    fleet: Fleet,
    queue: list[tuple[Need, int]],
    before: Mapping[Key, Placement],
    placed: dict[Key, Placement],
    leaving: dict[Key, Placement],
) -> list[tuple[Need, int]]:
    """Give each of ``queue`` the best place of its turn; those that got none.

    Who leaves a drained GPU holds its old place (``leaving``) until it has another. What it gives back may help those before it, so they
    are asked again, until nobody leaves any more: planning again from this plan then changes nothing.
    """
    while True:
        missing: list[tuple[Need, int]] = []
        left = False
        for need, replica in queue:
            key = (need.service, replica)
            found = None if need.adopted else _move(fleet, need, replica, before.get(key), leaving.get(key))
            if found is None:
                missing.append((need, replica))
                continue
            placed[key] = found
            left = leaving.pop(key, None) is not None or left
        if not left or not missing:
            return missing
        queue = missing


def _move(fleet: Fleet, need: Need, replica: int, before: Placement | None, held: Placement | None) -> Placement | None:
    """As :func:`_place`, for a replica that holds ``held`` until then and keeps it when there is no other place."""
    if held is None:
        return _place(fleet, need, replica, before)
    host = fleet.hosts[held.host]
    host.unseat(need, held)
    found = _place(fleet, need, replica, before)
    if found is None:
        _stay(fleet, need, held)
    return found


def _stay(fleet: Fleet, need: Need, held: Placement) -> None:
    """Back to the place that was just left, which nobody else can have taken."""
    host = fleet.hosts[held.host]
    _take(need, held.name, held, host.usable(held.gpus))
    host.seat(need, held)


def _drains(fleet: Fleet, place: Placement) -> list[Drain]:
    """The drains of the GPUs of a place on a host of this run."""
    host = fleet.hosts.get(place.host)
    return [] if host is None else [state.gpu.drain for state in host.usable(place.gpus) if state.gpu.drain is not None]


def _must_leave(fleet: Fleet, need: Need, place: Placement) -> bool:
    """Is a place that is right in itself on a GPU that somebody wants empty?"""
    return not need.adopted and bool(_drains(fleet, place))


def _waits(
    fleet: Fleet, changed: Set[str], missing: Iterable[tuple[Need, int]], before: Mapping[Key, Placement], leaving: Mapping[Key, Placement]
) -> Iterator[Placement]:
    """Places on drained GPUs that nobody could leave, and last places on hosts that are down. Of the latter, a service whose manifest has
    changed may need more than it had, and is decided anew."""
    for need, replica in missing:
        place = before.get((need.service, replica))
        host = None if place is None else fleet.hosts.get(place.host)
        if (need.service, replica) in leaving:
            yield leaving[(need.service, replica)]
        elif place is not None and host is not None and host.host.down and place.service not in changed:
            yield place


def _unplaced(fleet: Fleet, need: Need, replica: int, before: Placement | None, leaving: Mapping[Key, Placement]) -> Unplaced:
    held = leaving.get((need.service, replica))
    if held is not None:  # what it holds itself is in nobody's way
        fleet.hosts[held.host].unseat(need, held)
    reason, help_ = explain(fleet, need, replica, before)
    if held is not None:
        _stay(fleet, need, held)
    drains = [] if before is None or need.adopted else _drains(fleet, before)
    if before is not None and drains:
        where = f"its place, {before.slice or before.mode} on {before.host} {','.join(uuid[:12] for uuid in before.gpus)}"
        reason = f"{where}, is {drains[0].words}, and there is none elsewhere: {reason}"
    return Unplaced(need.service, replica, reason, help_)


def _by_replica(previous: Iterable[Placement], fleet: Fleet) -> dict[Key, Placement]:
    """One last place for each replica. Where two plans name one replica, a host that is here and up counts, then the first by name."""
    down = {name for name, host in fleet.hosts.items() if host.host.down}
    result: dict[Key, Placement] = {}
    for placement in sorted(previous, key=lambda each: (each.host not in fleet.hosts, each.host in down, each.rank)):
        result.setdefault((placement.service, placement.replica), placement)
    return result


def _keep_all(fleet: Fleet, needs: Mapping[str, Need], before: Mapping[Key, Placement], changed: Set[str]) -> dict[Key, Placement]:
    """Who stays: adopted services first, for nothing moves them; then those that ask for what they had, so that nobody who grows
    pushes them out; then by priority and name."""
    wanted = [(needs[service], replica) for service, replica in before if service in needs and replica <= needs[service].replicas]
    wanted.sort(key=lambda each: (not each[0].adopted, each[0].service in changed, -each[0].priority, each[0].service, each[1]))
    placed: dict[Key, Placement] = {}
    for need, replica in wanted:
        kept = _keep(fleet, need, before[(need.service, replica)], need.service in changed)
        if kept is not None:
            placed[(need.service, replica)] = kept
    for host in fleet.hosts.values():
        host.claimed.clear()
    return placed


def _keep(fleet: Fleet, need: Need, place: Placement, changed: bool) -> Placement | None:
    """The same place again, with the ports that the service has by now; None when it is not right any more.

    What serves is not put away because the compatibility gate says no by now: only a version that is new (``changed``) is held against it.
    """
    host = fleet.hosts.get(place.host)
    if host is None:
        # A host that is not part of this run (unreachable, or left out by --limit): what runs there runs on.
        return place
    if host.host.down:
        return place if need.adopted else None
    states = host.usable(place.gpus)
    if not states:
        return None
    ports: Mapping[str, int] | str = dict(place.ports)
    if not need.adopted:
        if not _still_right(need, place, host, states, changed) or any(drain.force for drain in _drains(fleet, place)):
            return None
        ports = host.choose_ports(need, place.name, dict(place.ports), fleet.asked)
    if isinstance(ports, str) or not _take(need, place.name, place, states):
        return None
    return _seat(host, need, replace(place, ports=tuple(sorted(ports.items()))))


def _still_right(need: Need, place: Placement, host: HostState, states: tuple[GpuState, ...], changed: bool) -> bool:
    if need.environment != host.host.environment or place.mode != MODE_OF[need.isolation] or len(states) != need.count:
        return False
    if host.free.shortage(need.resources) or not all(_allowed(need, place, state) for state in states):
        return False
    if changed and any(state.barred(need) for state in states):
        return False
    if place.mode == "shared":
        return place.sharing == need.sharing and states[0].shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None
    return place.mode == "mig" or all(state.gpu.memory_mib >= need.memory_mib for state in states)


def _allowed(need: Need, place: Placement, state: GpuState) -> bool:
    if not need.wants(state.gpu.board) or (state.gpu.pin is None and place.mode not in state.host.modes):
        return False
    if place.mode == "shared" and state.gpu.pin is None and place.sharing not in state.host.sharing:
        return False
    if place.slice is None:
        return True
    return state.cutter is not None and place.slice.profile in state.cutter.acceptable(need.memory_mib, need.compute, need.profile)


def _take(need: Need, name: str, place: Placement, states: tuple[GpuState, ...]) -> bool:
    if place.slice is not None:
        return states[0].take_slice(name, need.service, place.slice)
    if place.mode == "shared":
        return states[0].take_share(name, need.service, need.memory_mib, need.compute or 0, place.sharing)
    if not all(state.open_for("whole") for state in states):
        return False
    for state in states:
        state.take_whole(name, need.service)
    return True


def _seat(host: HostState, need: Need, placement: Placement) -> Placement:
    host.seat(need, placement)
    return placement


def _waiting(needs: Iterable[Need], placed: Mapping[Key, Placement]) -> Iterator[tuple[Need, int]]:
    """Replicas without a place: by priority, then the largest first, then by name."""
    waiting = [(need, replica) for need in needs for replica in range(1, need.replicas + 1) if (need.service, replica) not in placed]
    return iter(sorted(waiting, key=lambda each: (*_size_rank(each[0]), each[1])))


def _size_rank(need: Need) -> Rank:
    memory = max(need.memory_mib, 1024 * _gigabytes(need.profile or ""))
    return (-need.priority, need.isolation != "exclusive", -need.count, -memory, -(need.compute or 0), need.service)


def _gigabytes(profile: str) -> int:
    """The GB in a profile's name: all that is known of its size before a board is."""
    digits = profile.partition(".")[2].partition("gb")[0]
    return int(digits) if digits.isdigit() else 0


def _place(fleet: Fleet, need: Need, replica: int, before: Placement | None) -> Placement | None:
    """The best place for one more replica, taken; None when there is none."""
    name = f"{need.service}-{replica}"
    for offer in sorted(offers(fleet, need), key=lambda each: each.rank):
        old = dict(before.ports) if before is not None and before.host == offer.host.host.name else {}
        ports = offer.host.choose_ports(need, name, old, fleet.asked)
        if isinstance(ports, str):
            continue
        place = Placement(
            need.service,
            replica,
            offer.host.host.name,
            MODE_OF[need.isolation],
            tuple(state.gpu.uuid for state in offer.gpus),
            None if offer.cut is None else offer.cut.slice,
            tuple(sorted(ports.items())),
            need.sharing if need.isolation == "shared" else TIME_SLICE,
        )
        if _take(need, name, place, offer.gpus):
            return _seat(offer.host, need, place)
    return None


def offers(fleet: Fleet, need: Need) -> Iterator[Offer]:
    """What each host of the service's environment that has the CPU, memory and disk for it can do."""
    for host in fleet.hosts.values():
        if host.host.environment == need.environment and not host.free.shortage(need.resources):
            offer = _FINDERS[need.isolation](host, need)
            if offer is not None:
                yield offer


def _best_slice(host: HostState, need: Need) -> Offer | None:
    """Away from replicas of the same service, then the smallest profile, then the least change, then the least harm."""
    best: Offer | None = None
    for state in host.gpus:
        if state.cutter is None or state.refusal("mig") is not None or not state.serves(need):
            continue
        cut = state.best_cut(state.cutter.acceptable(need.memory_mib, need.compute, need.profile))
        if cut is None:
            continue
        effort = 0 if cut.reuse else 1 if state.mode == "mig" else 2 if not state.changes_mode("mig") else 3
        spread = (host.replicas.get(need.service, 0), state.replicas.get(need.service, 0))
        rank = (*spread, cut.memory_mib, cut.slices, cut.dropped, effort, cut.loss, host.host.name, state.gpu.pci, cut.slice)
        if best is None or rank < best.rank:
            best = Offer(rank, host, (state,), cut)
    return best


def _best_whole(host: HostState, need: Need) -> Offer | None:
    """GPUs of one board: the smallest that serves, those without MIG first, and the host that is left with the fewest free."""
    boards: dict[str, list[GpuState]] = {}
    for state in host.gpus:
        if state.refusal("whole") is None and state.serves(need) and state.gpu.memory_mib >= need.memory_mib:
            boards.setdefault(state.gpu.board, []).append(state)
    found: list[Offer] = []
    for free in boards.values():
        if len(free) < need.count:
            continue
        free.sort(key=lambda state: (state.changes_mode("whole"), state.cutter is not None, state.gpu.memory_mib, state.gpu.pci))
        taken = tuple(free[: need.count])
        change = sum(state.changes_mode("whole") for state in taken)
        cuttable = sum(state.cutter is not None for state in taken)
        memory = sum(state.gpu.memory_mib for state in taken)
        rank = (host.replicas.get(need.service, 0), memory, change, cuttable, len(free), host.host.name, taken[0].gpu.pci)
        found.append(Offer(rank, host, taken))
    return min(found, key=lambda offer: offer.rank, default=None)


def _best_share(host: HostState, need: Need) -> Offer | None:
    """Away from replicas of the same service, then a GPU that is shared already, then the fullest that serves."""
    best: Offer | None = None
    for state in host.gpus:
        if state.refusal("shared", need.sharing) is not None or not state.serves(need):
            continue
        if state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is not None:
            continue
        spread = (host.replicas.get(need.service, 0), state.replicas.get(need.service, 0))
        change = (state.mode != "shared", state.changes_mode("shared"), state.cutter is not None)
        rank = (*spread, *change, state.memory_free, host.host.name, state.gpu.pci)
        if best is None or rank < best.rank:
            best = Offer(rank, host, (state,))
    return best


_FINDERS: dict[str, t.Callable[[HostState, Need], Offer | None]] = {"slice": _best_slice, "exclusive": _best_whole, "shared": _best_share}


def _layouts(fleet: Fleet) -> dict[tuple[str, str], GpuLayout]:
    layouts: dict[tuple[str, str], GpuLayout] = {}
    for name, host in fleet.hosts.items():
        for state in host.gpus:
            layout = state.layout()
            if layout is not None:
                layouts[(name, state.gpu.uuid)] = layout
    return layouts
