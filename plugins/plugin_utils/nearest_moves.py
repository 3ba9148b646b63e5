# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who would have to move for a replica without a place: the fewest, from a place on one GPU, from one GPU, or from several of one host.

Most GPUs of a large fleet are like others, and of those that are alike the same has to move. So each kind is asked once, and the GPUs of a
kind are looked at one by one only where it is among the nearest.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Need, Resources, Rules
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import Case, acceptable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import few_names, several

# (services that would have to move, host, board), and what makes the sentence: only the nearest is put into words.
_WholeMove = tuple[tuple[int, str, str], Callable[[], str]]

# Of so many kinds of needs it is remembered who would have to leave what.
MOST_KNOWN = 2


class _Leaving(t.NamedTuple):
    """What GPUs of a kind would be free for if some went: a slice ``profile`` at ``start`` without ``blockers``, or all of it without
    anybody (profile '')."""

    gpus: Sequence[tuple[HostState, GpuState]]
    start: int
    profile: str
    blockers: tuple[Slice, ...]


class _Nearest:
    """Places on one GPU for whoever asks the same of it, those first from which the fewest would have to move."""

    def __init__(self, kinds: Collection[Sequence[tuple[HostState, GpuState]]], need: Need) -> None:
        self._need = need
        # By how many would move, and the MiB that they have: places of all kinds. These in their order once they are asked for.
        self._leaving: dict[tuple[int, int], list[_Leaving]] = {}
        self._ordered: dict[tuple[int, int], list[tuple[HostState, GpuState, _Leaving]]] = {}
        for gpus in kinds:
            state = gpus[0][1]
            many = len(state.names())
            if many and state.mode != MODE_OF[need.isolation] and len(state.fixed) == len(state.owners) and would_serve(state, need):
                self._leaving.setdefault((many, state.gpu.memory_mib), []).append(_Leaving(gpus, 0, "", ()))
            for start, profile, blockers, memory in _ways(state, need) if need.isolation == "slice" else ():
                if all(one in state.owners for one in blockers):
                    self._leaving.setdefault((len(blockers), memory), []).append(_Leaving(gpus, start, profile, blockers))

    def __iter__(self) -> Iterator[tuple[HostState, GpuState, _Leaving]]:
        for rank in sorted(self._leaving):
            if rank not in self._ordered:
                found = (
                    ((host.turn, state.gpu.pci, leaving.start, leaving.profile), host, state, leaving)
                    for leaving in self._leaving[rank]
                    for host, state in leaving.gpus
                    if state.barred(self._need) is None
                )
                self._ordered[rank] = [each[1:] for each in sorted(found, key=lambda each: each[0])]
            yield from self._ordered[rank]


_KINDS: WeakKeyDictionary[Fleet, dict[tuple[str, str], Collection[Sequence[tuple[HostState, GpuState]]]]] = WeakKeyDictionary()
_NEAREST: WeakKeyDictionary[Fleet, dict[Need, _Nearest]] = WeakKeyDictionary()


def nearest_move(case: Case) -> str | None:
    """In words, who would have to move where the fewest have to; None where nobody's move would help."""
    hosts = [host for host in case.hosts if host.free.holds(case.need.resources)]
    if case.need.isolation == "exclusive":
        moves = (move for host in hosts for move in _whole_moves(case, host))
        found = min(moves, key=lambda move: move[0], default=None)
        return None if found is None else found[1]()
    able = {host.turn for host in hosts}
    for host, state, leaving in _nearest(case):
        owners = [state.owners[one] for one in leaving.blockers] or state.names()
        if host.turn in able and all(map(case.movable, owners)):
            return _words(state, leaving, owners)
    return None


def bare_of(need: Need) -> Need:
    """What it asks of GPUs, and nothing else. Those of whom that is equal are best asked about one after the other."""
    return replace(need, service="", replicas=1, priority=0, resources=Resources(), ports=(), team="", rules=Rules())


def would_serve(state: GpuState, need: Need) -> bool:
    """Would the empty GPU serve, as far as its board and policy go, and not the compatibility gate?"""
    gpu, mode = state.gpu, MODE_OF[need.isolation]
    if gpu.blocked is not None or gpu.closed is not None or gpu.pin is not None or mode not in state.host.modes:
        return False
    if not need.wants(gpu.board):
        return False
    if mode == "mig":
        return bool(acceptable(state, need))
    return need.memory_mib <= gpu.memory_mib - (state.host.shared_reserve_mib if mode == "shared" else 0)


def _nearest(case: Case) -> _Nearest:
    """Found once for all that ask the same of a GPU."""
    bare = bare_of(case.need)
    if not case.lasting:
        return _Nearest(_kinds(case), bare)
    known = _NEAREST.setdefault(case.fleet, {})
    if bare not in known:
        # Of a large fleet each is a hundred thousand lines.
        while len(known) >= MOST_KNOWN:
            del known[next(iter(known))]
        kinds, asked = _KINDS.setdefault(case.fleet, {}), (case.need.environment, case.need.data_class)
        if asked not in kinds:
            kinds[asked] = _kinds(case)
        known[bare] = _Nearest(kinds[asked], bare)
    return known[bare]


def _kinds(case: Case) -> Collection[Sequence[tuple[HostState, GpuState]]]:
    """GPUs together that are alike in all that decides whether somebody's leaving would help, but for the compatibility gate."""
    found: dict[tuple[t.Any, ...], list[tuple[HostState, GpuState]]] = {}
    for host in case.hosts:
        for state in host.gpus:
            gpu, policy = state.gpu, (state.host.modes, state.host.shared_reserve_mib)
            open_ = gpu.blocked is None and gpu.closed is None, gpu.pin is None, not state.busy("mig")
            given = state.mode, state.fixed, tuple(sorted(state.owners)), len(state.names())
            found.setdefault((gpu.board, gpu.memory_mib, id(state.cutter), policy, open_, given), []).append((host, state))
    return found.values()


def _ways(state: GpuState, need: Need) -> Iterator[tuple[int, str, tuple[Slice, ...], int]]:
    """Where a slice could be if others were not, on a GPU that may be cut: (start, profile, those others, their MiB)."""
    if state.cutter is not None and state.gpu.pin is None and need.wants(state.gpu.board) and state.refusal("mig", told=False) is None:
        yield from state.cutter.ways(state.fixed, acceptable(state, need))


def _words(state: GpuState, leaving: _Leaving, owners: Sequence[str]) -> str:
    where = f"{state.host.name} {state.gpu.short}"
    if not leaving.blockers:
        return f"{where} has room for it only if {few_names(owners)} {_verb(owners)}"
    names = " and ".join(f"{owner} ({one})" for owner, one in zip(owners, leaving.blockers, strict=True))
    return f"{where} has room for {leaving.profile} at {leaving.start} only if {names} {_verb(owners)}"


def _verb(several: Sequence[object]) -> str:
    return "moves" if len(several) == 1 else "move"


def _held(case: Case, state: GpuState) -> list[str]:
    """Who would have to move for the GPU to be empty; nobody where that cannot be asked."""
    held = state.names()
    return held if len(state.fixed) == len(state.owners) and all(map(case.movable, held)) else []


def _whole_moves(case: Case, host: HostState) -> Iterator[_WholeMove]:
    need = case.need
    boards: dict[str, list[tuple[int, list[str]]]] = {}
    able: dict[str, list[GpuState]] = {}
    for state in host.gpus:
        if not would_serve(state, need) or state.barred(need) is not None:
            continue
        held = _held(case, state)
        if held or state.refusal("whole", told=False) is None:
            boards.setdefault(state.gpu.board, []).append((len(held), held))
            able.setdefault(state.gpu.board, []).append(state)
    for board in sorted(boards):
        cheapest = sorted(boards[board])[: need.count]
        if must_join(need):
            found = best_joined(able[board], need.count, lambda state: (len(_held(case, state)),)) or ()
            cheapest = [(len(held), held) for held in (_held(case, state) for state in found)]
        names = sorted({name for _count, held in cheapest for name in held})
        if len(cheapest) == need.count and names:
            text = f"{host.host.name} has {several(need.count, 'GPU')} ({board}) for it only if {few_names(names)} {_verb(names)}"
            yield (len(names), host.host.order, board), partial(str, text)
