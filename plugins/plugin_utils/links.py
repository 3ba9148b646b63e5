# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs that NVLink joins: whether those of a replica are, and which of the free ones it gets so that the most stay joined.

A joined set is one in which each GPU is joined with each other, by bridges or through switches. Of a pair that nobody knows of, nothing is
taken for granted: it counts as not joined where somebody is placed, and moves nobody.
"""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import add

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState

Cost = tuple[float, ...]
States = tuple[GpuState, ...]


def must_join(need: Need) -> bool:
    """Are GPUs that are not joined of no use to it?"""
    return need.count > 1 and need.nvlink == "required"


def joined(states: Sequence[GpuState]) -> bool | None:
    """Is each joined with each other? None: of some pair that is not known, and no pair is known to be apart."""
    known: bool | None = True
    for one, other in itertools.combinations(states, 2):
        if other.gpu.uuid not in one.peers:
            if one.gpu.links is not None and other.gpu.links is not None:
                return False
            known = None
    return known


def choose(free: Sequence[GpuState], need: Need) -> States | None:
    """Of the free GPUs of one board those that a replica gets; None where there are not enough, or none that it may have.

    Several: a joined set, if there is one. Then those with the least change of mode, those without MIG, the smallest; then those that take
    the fewest free ones from beside a joined one; then the first by address.
    """
    if len(free) < need.count:
        return None
    if not any(state.peers for state in free):
        return None if must_join(need) else tuple(sorted(free, key=lambda state: (*effort(state), state.gpu.pci))[: need.count])
    found = best_joined(free, need.count, effort) if need.count > 1 else None
    return found if found is not None or must_join(need) else _one_by_one(free, need.count)


def effort(state: GpuState) -> Cost:
    """What it takes to give the GPU away as a whole: change of mode, MIG that nobody can have then, memory."""
    return (int(state.changes_mode("whole")), int(state.cutter is not None), state.gpu.memory_mib)


def _one_by_one(free: Sequence[GpuState], count: int) -> States:
    taken: list[GpuState] = []
    rest = {state.gpu.uuid: state for state in free}

    def rank(state: GpuState) -> tuple[t.Any, ...]:
        return (*effort(state), sum(uuid in rest for uuid in state.peers), state.gpu.pci)

    while len(taken) < count:
        best = min(rest.values(), key=rank)
        taken.append(rest.pop(best.gpu.uuid))
    return tuple(sorted(taken, key=lambda state: (*effort(state), state.gpu.pci)))


def best_joined(states: Sequence[GpuState], count: int, cost: Callable[[GpuState], Cost]) -> States | None:
    """The joined set of so many whose costs are least when they are added up, then that leaves the fewest others behind that it was joined
    with; None when there is none.

    GPUs that cost the same and are joined with the same ones are as good as each other: only the first of them is tried.
    """
    here = {state.gpu.uuid for state in states}
    near = {state.gpu.uuid: state.peers & here for state in states}
    costs = {state.gpu.uuid: (*cost(state), len(near[state.gpu.uuid])) for state in states}
    order = sorted(
        (state for state in states if len(near[state.gpu.uuid]) >= count - 1), key=lambda state: (costs[state.gpu.uuid], state.gpu.pci)
    )
    best: tuple[Cost, tuple[str, ...], States] | None = None
    for chosen in _sets(order, count, near, costs):
        total: Cost = tuple(itertools.accumulate((costs[one.gpu.uuid] for one in chosen), lambda a, b: tuple(map(add, a, b))))[-1]
        ranked = (total, tuple(sorted(one.gpu.pci for one in chosen)), chosen)
        if best is None or ranked[:2] < best[:2]:
            best = ranked
    return None if best is None else tuple(sorted(best[2], key=lambda state: state.gpu.pci))


def _sets(order: Sequence[GpuState], count: int, near: Mapping[str, frozenset[str]], costs: Mapping[str, Cost]) -> Iterator[States]:
    if count == 0:
        yield ()
        return
    seen = set()
    for index, one in enumerate(order[: len(order) - count + 1]):
        uuid = one.gpu.uuid
        twin = (costs[uuid], near[uuid] | {uuid})
        if twin not in seen:
            seen.add(twin)
            rest = [other for other in order[index + 1 :] if other.gpu.uuid in near[uuid]]
            yield from ((one, *others) for others in _sets(rest, count - 1, near, costs))


def most_sets(states: Sequence[GpuState], count: int) -> int:
    """How many joined sets of so many there are at most, side by side: never too few."""
    parts: dict[str, int] = {}
    for state in states:
        first = first_joined(state, states)
        parts[first] = parts.get(first, 0) + 1
    return sum(size // count for size in parts.values())


def first_joined(state: GpuState, states: Sequence[GpuState]) -> str:
    """The lowest address of the GPUs among ``states`` that one comes to from link to link: the same for all of them."""
    by_uuid = {each.gpu.uuid: each for each in states}
    found, trail = {state.gpu.uuid}, [state]
    while trail:
        more = [uuid for uuid in trail.pop().peers if uuid in by_uuid and uuid not in found]
        found.update(more)
        trail += [by_uuid[uuid] for uuid in more]
    return min(by_uuid[uuid].gpu.pci if uuid in by_uuid else state.gpu.pci for uuid in found)


def left_behind(taken: Sequence[GpuState], free: Sequence[GpuState]) -> int:
    """How many links there are between those that are taken and those that stay free."""
    if not any(state.peers for state in taken):
        return 0
    uuids = {state.gpu.uuid for state in taken}
    return sum(state.gpu.uuid not in uuids and uuid in state.peers for state in free for uuid in uuids)


def apart(gpus: Sequence[Gpu]) -> bool:
    """Are there two of these that nobody knows to be joined?"""
    return any(
        other.uuid not in (one.links or ()) and one.uuid not in (other.links or ()) for one, other in itertools.combinations(gpus, 2)
    )


def width(gpu: Gpu) -> int:
    """With how many others it is joined, and itself."""
    return len(gpu.links or ()) + 1


def new_gpus(like: Gpu, uuids: Sequence[str], most: int | None) -> tuple[Gpu, ...]:
    """Empty GPUs of a kind that are not there yet. NVLink joins ``most`` of them at once, the first so many, and so on; None: nobody
    knows."""
    several = [uuids[first : first + most] for first in range(0, len(uuids), most)] if most else []
    peers = {uuid: tuple(other for other in each if other != uuid) for each in several for uuid in each}
    plain = Gpu("", "", like.board, like.memory_mib, like.geometry, mps_clients=like.mps_clients, sold_mib=like.sold_mib)
    return tuple(replace(plain, uuid=uuid, pci=f"0000:{number + 1:02x}:00.0", links=peers.get(uuid)) for number, uuid in enumerate(uuids))
