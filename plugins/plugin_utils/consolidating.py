# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying GPUs: replicas that have a place move closer together, as far as a person says that they may (``fleet_consolidate``). Pure.

Days of coming and going leave a fleet with GPUs on which little is left. Plans never turn round for that what serves; this does, once,
within a number of moves. Every rule that a place has to keep holds, nobody loses a place or the room that is kept for its rollout, no
service gets less spread than it is, nobody stops serving meanwhile. Later plans keep what came of it because the places are right.
"""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Key, key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import robbed, rooms
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import nearness, offers_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import TIME_SLICE, Hint, Need, Placement, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import at, order, same_place

# How often the program is asked again without those whose places some rule does not allow.
TRIES = 8


@dataclass(frozen=True)
class Consolidated:
    """``solution``: the plan. ``lines``: for people, which GPUs become empty by whose moves, and what is proven. ``moved``: who moves."""

    solution: Solution
    lines: list[str]
    moved: frozenset[Key] = frozenset()


def consolidated(problem: Problem, moves: int) -> Consolidated:
    """The plan, with as many GPUs empty in the end as ``moves`` more moves make, each counted by its ``move_cost``.

    Whoever has no place, or another than the last plan says, costs nothing wherever it goes. Two ways are tried, and the one that empties
    more GPUs counts, then the cheaper one: what the program for slices says, and one GPU after the other.
    """
    base = make_plan(problem)
    if moves < 1:
        return Consolidated(base, [])
    programmed, plain = (_tidied(problem, base, moves, first) for first in (True, False))
    best = min(programmed, plain, key=lambda each: (len(_used(each.draft.placed.values())), each.spent))
    after = best.solution() or base
    gone = _moved(base, after)
    lines = [*_lines(problem, base, after, best.spent, moves), *programmed.proofs]
    return Consolidated(after, lines, frozenset((place.service, place.replica) for place in gone))


def _tidied(problem: Problem, base: Solution, moves: int, first: bool) -> _Tidying:
    """``first``: the program for slices is asked before GPUs are emptied one by one."""
    tidying = _Tidying(problem, base, moves)
    if first:
        tidying.by_program()
    tidying.one_by_one()
    return tidying


class _Tidying:
    """One try. ``spent``: what the moves so far cost; ``proofs``: lines about what is proven."""

    def __init__(self, problem: Problem, base: Solution, moves: int) -> None:
        self._problem, self._base, self._moves = problem, base, moves
        self._settled = replace(problem, previous=(*base.placements, *base.waiting), changed=frozenset())
        self.draft = begin(self._settled)
        self._before = {(place.service, place.replica): place for place in problem.previous}
        self._start = dict(self.draft.placed)
        self._outages = len(order(problem, base).outages)
        self.proofs: list[str] = []

    @property
    def spent(self) -> int:
        """Of all who are not where the base has them."""
        return sum(self._cost(key) for key, place in self._start.items() if not same_place(place, self.draft.placed[key]))

    def solution(self) -> Solution | None:
        """The plan that comes of it, in which whoever had no place may have one that became free; None where somebody loses one."""
        places = tuple(self.draft.placed[key] for key in sorted(self.draft.placed))
        found = make_plan(replace(self._settled, previous=(*places, *self._base.waiting)))
        return found if set(self.draft.placed) <= {(place.service, place.replica) for place in found.placements} else None

    def _cost(self, key: Key) -> int:
        """What it costs that this replica does not stay where the base has it."""
        last = self._before.get(key)
        return self.draft.need_of(key).move_cost if last is not None and same_place(last, self._start[key]) else 0

    def _extra(self, keys: Iterable[Key]) -> int:
        """What is added to ``spent`` when these move."""
        return sum(self._cost(key) for key in keys if same_place(self._start[key], self.draft.placed[key]))

    def _may_go(self, name: str) -> bool:
        key = self.draft.movable(name)
        return key is not None and key in self._start and key[0] not in self._problem.changed

    # One GPU after the other

    def one_by_one(self) -> None:
        """The cheapest GPU first; of equals on the host with the fewest in use, for a host that is empty can be put to other use."""
        failed: set[str] = set()
        while True:
            ways = [way for way in self._ways() if way[-1].gpu.uuid not in failed and way[0] <= self._moves - self.spent]
            if not ways:
                return
            state = min(ways, key=lambda way: way[:-1])[-1]
            if not self._emptied(state):
                failed.add(state.gpu.uuid)

    def _ways(self) -> Iterator[tuple[t.Any, ...]]:
        """(cost, GPUs in use on the host, memory that moves, host, PCI address, UUID, the GPU) of each that could be emptied."""
        for name, host in self.draft.fleet.hosts.items():
            used = sum(_in_use(state) for state in host.gpus)
            for state in host.gpus:
                names = state.names()
                if names and _is_open(state) and all(self._may_go(each) for each in names):
                    keys = [key_of(each) for each in names]
                    memory = sum(self.draft.need_of(key).memory_mib for key in keys)
                    yield self._extra(keys), used, memory, name, state.gpu.pci, state.gpu.uuid, state

    def _emptied(self, state: GpuState) -> bool:
        """Another place for everybody on the GPU, on GPUs that are in use."""
        open_ = {other.gpu.uuid for host in self.draft.fleet.hosts.values() for other in host.gpus if _in_use(other)} - {state.gpu.uuid}

        def settle(keys: Iterable[Key]) -> bool:
            largest = sorted(keys, key=lambda key: (-self.draft.need_of(key).memory_mib, key))
            return all(self._place(self.draft.need_of(key), key[1], open_) is not None for key in largest)

        return self._changed([key_of(name) for name in state.names()], settle) is None

    def _place(self, need: Need, replica: int, open_: Collection[str]) -> Placement | None:
        found = (
            offer
            for host in self.draft.fleet.hosts.values()
            for offer in offers_of(host, need, [state for state in host.gpus if state.gpu.uuid in open_])
        )
        return self.draft.place_on(need, replica, sorted(found, key=lambda offer: offer.rank))

    # By the program for slices

    def by_program(self) -> None:
        """As many GPUs as the program empties; whoever cannot go where it says stays, and it is asked again."""
        # numpy and HiGHS take a quarter of a second to load, and few plans are made for this.
        from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import consolidation, program

        fleet = self.draft.fleet
        stay = {name for host in fleet.hosts.values() for state in host.gpus for name in state.names() if not self._may_go(name)}
        # What costs nothing to move counts as a move there.
        free = sum(self._cost(key) == 0 for key in self._start)
        asked = [(kind, consolidation.fewer(fleet, kind, self._moves + free, stay)) for kind in consolidation.kinds(fleet)]
        for kind, found in asked:
            if found is not None:
                leave = "leaves" if self._moves == 1 else "leave"
                words = f"{_moves(self._moves)} of these among them {leave} no fewer than {found.least}"
                self.proofs.append(f"{kind[1]} in {kind[0]}: {found.gpus} GPUs hold slices; {words} (proven by {program.version()})")
        worth = [(len(each.moves) / (each.gpus - each.after), kind) for kind, each in asked if each is not None and each.after < each.gpus]
        for _each, kind in sorted(worth, key=lambda each: (each[0], each[1][:2], each[1][2].digest())):
            kept = set(stay)
            for _try in range(TRIES):
                left = self._moves - self.spent
                kept |= {name for name in map(_name, self._start) if self._cost(key_of(name)) > left}
                found = consolidation.fewer(fleet, kind, left + free, kept)
                if found is None or found.after >= found.gpus:
                    break
                wrong = self._tried(found.moves)
                if wrong is None:
                    break
                kept |= wrong

    def _tried(self, moves: Mapping[str, Hint]) -> set[str] | None:
        """None when all these moves are made, else names of some that cannot be."""
        hints = {key_of(name): hint for name, hint in moves.items()}
        stuck: list[Key] = []

        def settle(keys: Iterable[Key]) -> bool:
            stuck.extend(key for key in sorted(keys) if self.draft.place_at(self.draft.need_of(key), key[1], hints[key]) is None)
            return not stuck

        wrong = self._changed(list(hints), settle)
        return {_name(key) for key in stuck} or wrong

    # Both

    def _changed(self, keys: list[Key], settle: t.Callable[[Iterable[Key]], bool]) -> set[str] | None:
        """None when these replicas have the places that ``settle`` gives them; else all is as it was, and these are to blame."""
        draft, fleet = self.draft, self.draft.fleet
        everybody = {_name(key) for key in keys}
        if self._extra(keys) > self._moves - self.spent:
            return everybody
        # Nobody's room may go, of whatever priority.
        lowest = replace(draft.need_of(keys[0]), priority=-1)
        kept, mark = rooms(fleet, lowest), draft.mark()
        near = {key: self._near(key) for key in keys}
        for key in keys:
            draft.lift(key)
        wrong = None if settle(keys) else everybody
        if wrong is None:
            wrong = {_name(key) for key in keys if self._near(key) > near[key]} or None
        if wrong is None and (robbed(fleet, lowest, kept) or self._stops_somebody()):
            wrong = everybody
        if wrong is not None:
            draft.back(mark)
            return wrong
        draft.keep()
        return None

    def _near(self, key: Key) -> tuple[int, int]:
        """Replicas of its service that are where it is, itself among them, as far as that is against its wish to be spread."""
        need, place = self.draft.need_of(key), self.draft.placed[key]
        host = self.draft.fleet.hosts[place.host]
        return (0, 0) if need.rules.spread == "pack" else nearness(host, need, host.by_uuid[place.gpus[0]])

    def _stops_somebody(self) -> bool:
        """Would the order of moves have to stop more than the plan does as it is?"""
        made = Solution(tuple(self.draft.placed.values()), waiting=self._base.waiting)
        return len(order(self._problem, made).outages) > self._outages


def _in_use(state: GpuState) -> bool:
    return bool(state.owners or state.tenants)


def _is_open(state: GpuState) -> bool:
    """May something new still come to it, in the mode that it has? Of whole GPUs none becomes empty without another being filled."""
    return state.mode in ("mig", "shared") and state.refusal(state.mode, state.sharing or TIME_SLICE) is None


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def _used(places: Iterable[Placement]) -> set[tuple[str, str]]:
    return {(place.host, uuid) for place in places for uuid in place.gpus}


def _moved(base: Solution, after: Solution) -> list[Placement]:
    """The places that are left for others, by name."""
    now = {(place.service, place.replica): place for place in after.placements}
    return [place for place in base.placements if not same_place(place, now[(place.service, place.replica)])]


def _lines(problem: Problem, base: Solution, after: Solution, spent: int, moves: int) -> Iterator[str]:
    """Which GPUs become empty, who moves for it, and who gets a place by it."""
    was, now = ({(place.service, place.replica): place for place in plan.placements} for plan in (base, after))
    gone = _moved(base, after)
    used, still = _used((*base.placements, *base.waiting)), _used((*after.placements, *after.waiting))
    boards = {(host.name, gpu.uuid): gpu.board for host in problem.hosts for gpu in host.gpus}
    empty = sorted(used - still)
    for host, uuid in empty:
        yield f"{host} {uuid[:12]} ({boards.get((host, uuid), 'unknown')}) becomes empty"
    for place in gone:
        yield f"{place.name} moves from {at(place)} to {at(now[(place.service, place.replica)])}"
    for key in sorted(set(now) - set(was)):
        yield f"{_name(key)}, which had no place, gets {at(now[key])}"
    if not gone:
        yield f"no GPU becomes empty by at most {_moves(moves)}"
    else:
        become, count = "becomes" if len(empty) == 1 else "become", "counts" if len(gone) == 1 else "count"
        yield f"{len(empty)} of {len(used)} GPUs in use {become} empty by {_moves(len(gone))}, which {count} as {spent} of at most {moves}"


def _moves(number: int) -> str:
    return "1 move" if number == 1 else f"{number} moves"
