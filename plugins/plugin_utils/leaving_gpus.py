# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who would have to leave which GPUs of a host for one more replica, as far as these GPUs go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

# So many sets of GPUs are looked at where a replica has several, and so many of them are told.
MOST_SETS, FEW_SETS = 70, 12
# May a replica of this name be asked to go?
May = Callable[[str], bool]
# A GPU by its address, and which of the places there.
Where = tuple[str, int]
Found = tuple[Where, Sequence[str]]


def could_be(state: GpuState, need: Need, paid: bool = True) -> bool:
    """Would the GPU serve if those who are on it were not, as far as its owner, policy and quotas go? ``paid``: do quotas count?"""
    gpu, mode = state.gpu, MODE_OF[need.isolation]
    if gpu.blocked is not None or gpu.closed is not None or not state.serves(need) or state.crowded(need):
        return False
    if (paid and state.debit(need) is not None) or (mode == "shared" and (need.compute or 0) > state.host.shared_compute):
        return False
    if gpu.pin is None and (mode not in state.host.modes or (mode == "shared" and need.sharing not in state.host.sharing)):
        return False
    if gpu.pin is not None and (gpu.pin.mode != mode or (mode == "shared" and gpu.pin.sharing != need.sharing)):
        return False
    strangers = gpu.outsiders or (mode != "mig" and any(one.outsiders for one in gpu.instances))
    if strangers and state.mode != mode:
        return False
    if mode == "mig":
        return bool(state.profiles(need))
    return need.memory_mib <= gpu.memory_mib - (state.host.shared_reserve_mib if mode == "shared" else 0)


def of_one_gpu(host: HostState, need: Need, may: May, need_of: Callable[[str], Need]) -> Iterator[Found]:
    """For a slice or a share: who would have to leave which GPU. ``need_of``: that of a replica of this name who may leave."""
    mode = MODE_OF[need.isolation]
    for state in host.gpus:
        if not could_be(state, need):
            continue
        names = state.names()
        if state.refusal(mode, need.sharing, told=False) is not None:
            if names and all(map(may, names)):
                yield (state.gpu.pci, 0), names
        elif mode == "mig":
            yield from _slices(state, need, may)
        else:
            yield from _shares(state, need, may, need_of)


def _slices(state: GpuState, need: Need, may: May) -> Iterator[Found]:
    cutter = state.cutter
    profiles = state.profiles(need)
    if cutter is None:
        return
    if state.best_cut(profiles) is not None:
        yield (state.gpu.pci, -1), ()
    owners = state.owners
    stay = {one for one in state.fixed if one not in owners or not may(owners[one])}
    for way in cutter.ways(state.fixed, profiles):
        # Where the platform decides the slices, one is only given to somebody else.
        if stay.isdisjoint(way.gone) and (not state.gpu.fixed or way.gone == (Slice(way.start, way.profile),)):
            yield (state.gpu.pci, way.start), [owners[one] for one in way.gone]


def _shares(state: GpuState, need: Need, may: May, need_of: Callable[[str], Need]) -> Iterator[Found]:
    """Nobody, where there is room; else each who has enough to give back, and all of them together."""
    if state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None:
        yield (state.gpu.pci, -1), ()
        return
    most = state.host.most_sharers(state.gpu, need.sharing)

    def enough(names: Sequence[str]) -> bool:
        gone = list(map(need_of, names))
        memory = state.memory_free + sum(each.memory_mib for each in gone)
        compute = round(state.compute_free + sum(each.compute or 0 for each in gone), 6)
        return len(state.tenants) - len(names) < most and need.memory_mib <= memory and (need.compute or 0) <= compute

    able = [(number, name) for number, name in enumerate(sorted(state.tenants)) if may(name)]
    yield from (((state.gpu.pci, number), (name,)) for number, name in able if enough((name,)))
    several = [name for _number, name in able]
    if len(several) > 1 and enough(several):
        yield (state.gpu.pci, 98), several


def of_whole_gpus(host: HostState, need: Need, may: May, cost: Callable[[Collection[str]], int]) -> Iterator[Found]:
    """For whole GPUs: those of one board that it costs the least to leave."""
    boards: dict[str, list[tuple[int, str, list[str]]]] = {}
    able: dict[str, list[GpuState]] = {}
    for state in host.gpus:
        names = state.names()
        strangers = len(state.fixed) > len(state.owners)
        if could_be(state, need) and not strangers and all(map(may, names)) and (names or state.refusal("whole") is None):
            boards.setdefault(state.gpu.board, []).append((cost(names), state.gpu.pci, names))
            able.setdefault(state.gpu.board, []).append(state)
    for board in sorted(boards):
        if must_join(need):
            if (found := best_joined(able[board], need.count, lambda state: (len(state.names()),))) is not None:
                yield (found[0].gpu.pci, 0), sorted({name for state in found for name in state.names()})
            continue
        free = sorted(boards[board])
        # Of several GPUs the sets that cost least, and no others where there are very many.
        many = math.comb(len(free), need.count) <= MOST_SETS
        sets = itertools.combinations(free, need.count) if many else iter([tuple(free[: need.count])] if len(free) >= need.count else [])
        cheapest = sorted(sets, key=lambda chosen: sum(each for each, _pci, _names in chosen))
        for number, chosen in enumerate(cheapest if need.count == 1 else cheapest[:FEW_SETS]):
            yield (chosen[0][1], number), sorted({name for _cost, _pci, names in chosen for name in names})
