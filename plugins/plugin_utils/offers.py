# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host can do for one more replica, and which of it is best."""

from __future__ import annotations

import heapq
import typing as t
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import choose, effort, joined, left_behind, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cut
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

# Compared from left to right, lower is better. All ranks of one kind of need have the same shape.
Rank = tuple[t.Any, ...]
# What is asked of GPUs, and what quotas let of it.
Question = tuple[int, tuple[object, ...]]


class Offer(t.NamedTuple):
    """The best that one host can do for a need."""

    rank: Rank
    host: HostState
    gpus: tuple[GpuState, ...]
    cut: Cut | None = None


def offers(fleet: Fleet, need: Need, hosts: Iterable[HostState] | None = None) -> Iterator[Offer]:
    """What each host that may have the service, and has the CPU, memory and disk for it, can do. ``hosts``: only these."""
    question = question_of(fleet, need)
    for host in fleet.hosts.values() if hosts is None else hosts:
        offer = offer_of(host, need, question)
        if offer is not None:
            yield offer


def is_offered(fleet: Fleet, need: Need, hosts: Iterable[HostState]) -> bool:
    """Can any of these hosts do anything? Mostly there is no room, and that is known soonest of what is asked for again and again."""
    number = _number_of(fleet, need)
    able = (host for host in hosts if _has_room(host, need, number) and _may_have(host, need))
    return any(offer_of(host, need, (number, fleet.stamp(need))) is not None for host in able)


def offer_of(host: HostState, need: Need, question: Question) -> Offer | None:
    """The best that one host can do for a need. It is remembered for this ``question`` until something changes there."""
    return _answer(host, need, question) if _may_have(host, need) else None


def _may_have(host: HostState, need: Need) -> bool:
    """Is it right for the need as far as the host goes, whatever its GPUs can do?"""
    if not host.host.admits(need) or not host.free.holds(need.resources):
        return False
    return not host.rulebook.alone(need) or host.rule_refusal(need) is None


def _answer(host: HostState, need: Need, question: Question) -> Offer | None:
    # Where it has replicas, it is told something that is for it alone.
    asked = (question, need.service, need.rules.max_per_gpu) if host.replicas.get(need.service) else question
    if asked not in host.answers:
        # Where it is known already that there is no room, it does not matter what a quota lets it have.
        found = _best(host, need) if host.answers.get(("space", question[0]), True) else None
        # Without the host: one that knew itself would stay in memory until a sweep.
        host.answers[asked] = found and (found.rank, found.gpus, found.cut)
        return found
    answer = host.answers[asked]
    return answer and Offer(answer[0], host, answer[1], answer[2])


def _has_room(host: HostState, need: Need, number: int) -> bool:
    """Could any of its GPUs serve as things are, whatever quotas say? ``number``: of what is asked of GPUs."""
    return host.once(("space", number), partial(_is_room, host, need))


def _is_room(host: HostState, need: Need) -> bool:
    able = host.open_gpus(MODE_OF[need.isolation], need.sharing)
    return bool(able) if need.isolation == "exclusive" else any(_has_part(state, need) for state in able)


def _has_part(state: GpuState, need: Need) -> bool:
    """Is there a share or a slice for it on a GPU on which something new may be, whatever quotas say?"""
    if not state.serves(need):
        return False
    if need.isolation == "shared":
        return state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None
    return state.cutter is not None and state.best_cut(state.cutter.acceptable(need.memory_mib, need.compute, need.profile)) is not None


class _Rooms:
    """Whether any GPU of the fleet has room for what one number asks, whatever quotas and hosts say."""

    def __init__(self, fleet: Fleet) -> None:
        self._hosts = fleet.by_turn
        self._changed, self._read = fleet.diary.changed, 0
        # A host that had room when it was asked, and those that were not asked since something changed there.
        self._witness: int | None = None
        self._unasked = set(range(len(self._hosts)))

    def any(self, need: Need, number: int) -> bool:
        """Hosts are asked until one says yes."""
        if self._read < len(self._changed):
            self._unasked.update(self._changed[self._read :])
            self._read = len(self._changed)
        if self._witness is not None and self._witness not in self._unasked:
            return True
        self._witness = None
        while self._unasked and self._witness is None:
            turn = self._unasked.pop()
            if _has_room(self._hosts[turn], need, number):
                self._witness = turn
        return self._witness is not None


class PartsInUse:
    """The GPUs in use that still have a share or a slice for what is asked, whatever quotas and hosts say. A host is asked anew only after
    something changed there."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._read = fleet, 0
        # By what is asked: the turns of the hosts that were not asked since a change, and the GPUs of those that were, where there are any.
        self._asked: dict[int, tuple[set[int], dict[int, list[GpuState]]]] = {}

    def of(self, need: Need) -> Iterable[list[GpuState]]:
        """Host by host. A whole GPU is none: what is in use can't be given away as one."""
        if need.isolation == "exclusive":
            return ()
        hosts, changed = self._fleet.by_turn, self._fleet.diary.changed
        news, self._read = changed[self._read :], len(changed)
        for unasked, _able in self._asked.values():
            unasked.update(news)
        unasked, able = self._asked.setdefault(_number_of(self._fleet, need), (set(range(len(hosts))), {}))
        for turn in sorted(unasked):
            found = [
                state
                for state in hosts[turn].open_gpus(MODE_OF[need.isolation], need.sharing)
                if not state.empty and _has_part(state, need)
            ]
            able.pop(turn, None)
            if found:
                able[turn] = found
        unasked.clear()
        return able.values()


def is_room(fleet: Fleet, need: Need) -> bool:
    """Could any GPU of the fleet serve as things are, whatever quotas and hosts say?"""
    number = _number_of(fleet, need)
    if number not in fleet.rooms:
        fleet.rooms[number] = _Rooms(fleet)
    rooms: _Rooms = fleet.rooms[number]
    return rooms.any(need, number)


class _Ranking:
    """What all hosts can do for needs of one question, best first. Only hosts on which something changed are asked again.

    Of hosts that look alike and on which nothing has ever changed, only the first is asked: it comes before the others.
    """

    def __init__(self, fleet: Fleet, question: Question, barred: bool) -> None:
        """``barred``: the compatibility gate speaks of hosts by name, so that none is like another."""
        self.question = question
        self._diary, self._read = fleet.diary, 0
        self._hosts = fleet.by_turn
        # Of each host that looks like others all of these; by the first of them, how many were asked, or had a change.
        self._twins = {} if barred else fleet.twin_of
        self._past: dict[int, int] = {}
        # Whom to ask besides those on which something changed.
        self._unasked = set(range(len(self._hosts))) if barred else {alike[0] for alike in fleet.twins}
        # Those that had a replica of whatever was asked for last, and so have no offer here.
        self._left_out: set[int] = set()
        # Of each host its answers when it was asked, which are others after a change, and its offer then.
        self._asked: list[object] = [None] * len(self._hosts)
        self._offers: list[Offer | None] = [None] * len(self._hosts)
        self._ranked: list[tuple[Rank, int]] = []

    def best_first(self, need: Need) -> Iterator[Offer]:
        """As :func:`offers`, in the order of their ranks."""
        own = self._renew(need)
        if not own:
            yield from self._able(need)
            return
        if need.rules.spread == "host":
            # Whoever has none of it comes before all who have: these are very many at times, and seldom asked.
            yield from self._able(need)
            yield from self._having(need, own)
        else:
            yield from heapq.merge(self._able(need), self._having(need, own), key=_rank)

    def _having(self, need: Need, own: Iterable[HostState]) -> Iterator[Offer]:
        there = (_answer(host, need, self.question) for host in own if _may_have(host, need))
        yield from sorted(filter(None, there), key=_rank)

    def _able(self, need: Need) -> Iterator[Offer]:
        for offer in (self._offers[number] for _rank, number in self._ranked):
            if offer is not None and _may_have(offer.host, need):
                yield offer

    def _renew(self, need: Need) -> list[HostState]:
        """The hosts that have a replica of the service, and so another answer; all others are asked where something changed."""
        own = set(self._diary.having(need.service))
        changed = set(self._diary.changed[self._read :])
        self._read = len(self._diary.changed)
        self._unasked.update(changed)
        for number in changed & self._twins.keys():
            self._unasked.update(self._next(self._twins[number]))
        for number in sorted(self._unasked.difference(own)):
            host = self._hosts[number]
            if self._asked[number] is not host.answers:
                self._set(number, host.answers, _answer(host, need, self.question))
        for number in own - self._left_out:
            self._set(number, None, None)
        self._left_out, self._unasked = own, set(own)
        return [self._hosts[number] for number in sorted(own)]

    def _next(self, twins: Sequence[int]) -> Sequence[int]:
        """The first of hosts that look alike on which nothing has changed, unless it was asked."""
        before = past = self._past.get(twins[0], 0)
        while past < len(twins) and self._hosts[twins[past]].touched:
            past += 1
        self._past[twins[0]] = past
        return twins[past : past + 1] if past > before else ()

    def _set(self, number: int, asked: object, offer: Offer | None) -> None:
        before = self._offers[number]
        if before is not None:
            del self._ranked[bisect_left(self._ranked, (before.rank, number))]
        if offer is not None:
            insort(self._ranked, (offer.rank, number))
        self._asked[number], self._offers[number] = asked, offer


def ranked(fleet: Fleet, need: Need) -> Iterator[Offer]:
    """As :func:`offers`, best first. It is worked out while it is read: whoever changes something reads no further."""
    question = question_of(fleet, need)
    if question not in fleet.rankings:
        fleet.rankings[question] = _Ranking(fleet, question, bool(need.bars))
    ranking: _Ranking = fleet.rankings[question]
    return ranking.best_first(need)


def question_of(fleet: Fleet, need: Need) -> Question:
    """Equal for needs that any host that has no replica of theirs would answer in the same way, as far as its GPUs go."""
    return (_number_of(fleet, need), fleet.stamp(need))


def _number_of(fleet: Fleet, need: Need) -> int:
    """A number for what is asked of GPUs."""
    known = fleet.questions.get(need.service)
    if known is None or known[0] is not need:
        bars = tuple(sorted(need.bars.items())) if need.bars else ()
        size = (need.isolation, need.memory_mib, need.count, need.profile, need.compute, need.sharing, need.rules.spread, need.nvlink)
        known = fleet.questions[need.service] = (need, fleet.kind((need.models, need.not_models, bars, *size)))
    return known[1]


def kind_of(need: Need) -> tuple[t.Any, ...]:
    """Equal for needs that any host would answer in the same way, as long as it has no replica of theirs."""
    bars = tuple(sorted(need.bars.items())) if need.bars else ()
    size = (need.isolation, need.memory_mib, need.count, need.profile, need.compute, need.sharing, need.resources, need.nvlink)
    return (need.environment, need.data_class, need.team, need.models, need.not_models, need.rules, bars, *size)


def nearness(host: HostState, need: Need, state: GpuState | None = None) -> tuple[int, int]:
    """Replicas of the same service that are there already: fewer are better, unless they are to be near to each other."""
    here = host.replicas.get(need.service, 0)
    beside = 0 if state is None else state.replicas.get(need.service, 0)
    if need.rules.spread == "pack":
        return -here, -beside
    return (0 if need.rules.spread == "gpu" else here), beside


def _slices(host: HostState, need: Need, states: Iterable[GpuState]) -> Iterator[Offer]:
    """Away from replicas of the same service, then the smallest profile, then the least change, then the least harm."""
    known: dict[tuple[str, int], tuple[str, ...]] = {}
    for state in states:
        if state.cutter is None or state.refusal("mig", told=False) is not None or state.crowded(need):
            continue
        # GPUs of one kind have one answer.
        kind = (state.gpu.board, id(state.cutter))
        if kind not in known:
            known[kind] = state.profiles(need) if state.serves(need) else ()
        cut = state.best_cut(known[kind]) if known[kind] else None
        if cut is None:
            continue
        effort = 0 if cut.reuse else 1 if state.mode == "mig" else 2 if not state.changes_mode("mig") else 3
        size = (cut.memory_mib, cut.slices, cut.dropped, effort, cut.loss)
        rank = (*nearness(host, need, state), *size, host.parts(state), host.turn, state.gpu.pci, cut.slice)
        yield Offer(rank, host, (state,), cut)


def _wholes(host: HostState, need: Need, states: Iterable[GpuState]) -> Iterator[Offer]:
    """GPUs of one board: such as NVLink joins, the smallest that serves, those without MIG first, and the host that is left with the fewest
    free; and those that were not joined with others that stay free."""
    for free in _free(need, states):
        taken = choose(free, need)
        if taken is not None:
            yield _several(host, need, free, taken)


def _free(need: Need, states: Iterable[GpuState]) -> Iterable[list[GpuState]]:
    """The free GPUs of each board."""
    boards: dict[str, list[GpuState]] = {}
    for state in states:
        fits = state.refusal("whole", told=False) is None and state.serves(need) and state.gpu.memory_mib >= need.memory_mib
        if fits and state.debit(need) is None:
            boards.setdefault(state.gpu.board, []).append(state)
    return boards.values()


def _several(host: HostState, need: Need, free: Sequence[GpuState], taken: Sequence[GpuState]) -> Offer:
    """Some of the free GPUs of a board, as many as a replica needs."""
    alone = need.count > 1 and joined(taken) is not True
    change = sum(state.changes_mode("whole") for state in taken)
    cuttable = sum(state.cutter is not None for state in taken)
    memory = sum(state.gpu.memory_mib for state in taken)
    size = (alone, memory, change, cuttable, len(free), left_behind(taken, free))
    return Offer((nearness(host, need)[0], *size, host.turn, taken[0].gpu.pci), host, tuple(taken))


def _shares(host: HostState, need: Need, states: Iterable[GpuState]) -> Iterator[Offer]:
    """Away from replicas of the same service, then a GPU that is shared already, then the fullest that serves."""
    for state in states:
        if state.refusal("shared", need.sharing, told=False) is not None or not state.serves(need):
            continue
        if state.crowded(need) or state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is not None:
            continue
        if state.debit(need) is not None:
            continue
        change = (state.mode != "shared", state.changes_mode("shared"), state.cutter is not None)
        rank = (*nearness(host, need, state), *change, state.memory_free, host.parts(state), host.turn, state.gpu.pci)
        yield Offer(rank, host, (state,))


_FINDERS: dict[str, t.Callable[[HostState, Need, Iterable[GpuState]], Iterator[Offer]]] = {
    "slice": _slices,
    "exclusive": _wholes,
    "shared": _shares,
}


def every(host: HostState, need: Need, states: Iterable[GpuState] | None = None) -> Iterator[Offer]:
    """What each GPU of a host can do, whatever else the host lacks; of several whole ones the best and those that follow each other.
    ``states``: only these."""
    able = host.gpus if states is None else list(states)
    if need.isolation != "exclusive":
        yield from _FINDERS[need.isolation](host, need, able)
        return
    for free in _free(need, able):
        ordered = sorted(free, key=lambda state: (*effort(state), state.gpu.pci))
        sets = [choose(free, need), *(tuple(ordered[first : first + need.count]) for first in range(len(free) - need.count + 1))]
        for taken in dict.fromkeys(sets):
            if taken is not None and (not must_join(need) or joined(taken)):
                yield _several(host, need, free, taken)


def offers_of(host: HostState, need: Need, states: Iterable[GpuState]) -> Iterator[Offer]:
    """What each of these GPUs of a host can do, if the host may have the service and has the CPU, memory and disk for it."""
    if host.host.admits(need) and host.free.holds(need.resources) and host.rule_refusal(need) is None:
        yield from every(host, need, states)


def _best(host: HostState, need: Need) -> Offer | None:
    able = host.open_gpus(MODE_OF[need.isolation], need.sharing)
    return min(_FINDERS[need.isolation](host, need, able), key=_rank, default=None)


def _rank(offer: Offer) -> Rank:
    return offer.rank
