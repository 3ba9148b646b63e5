# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying GPUs: replicas that have a place move closer together, as far as a person says that they may (``fleet_consolidate``). Pure.

Days of coming and going leave a fleet with GPUs on which little is left. Plans never turn round for that what serves; this does, once,
within a number of moves. Every rule that a place has to keep holds, nobody loses a place or the room that is kept for its rollout, no
service gets less spread than it is, and nobody has to stop for want of room. Later plans keep what came of it because the places are right.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Key, key_of, needed_there
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin, by_replica
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import robbed, rooms
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import Offer, PartsInUse, nearness, offers_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import TIME_SLICE, Gpu, Hint, Need, Placement, Problem, Solution, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import at, leave_early, order, same_place

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

    Whoever has no place, or another than the last plan says, costs nothing wherever it goes. Two ways are tried, the program for slices and
    one GPU after the other: the one that empties more GPUs counts, then the one by which fewer stop first, then the cheaper one.
    """
    base = make_plan(problem)
    if moves < 1:
        return Consolidated(base, [])
    tried = [_tidied(problem, base, moves, first) for first in (True, False)]
    best = sorted(tried, key=lambda each: (len(_used(each.draft.placed.values())), each.interrupted, each.spent))
    after, spent = next(((plan, each.spent) for each in best if (plan := each.solution()) is not None), (base, 0))
    gone = {(place.service, place.replica): place for place in _moved(base, after)}
    return Consolidated(after, [*_lines(problem, base, after, gone, spent, moves), *tried[0].proofs], frozenset(gone))


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
        self._settled = planned(problem, base)
        self.draft = begin(self._settled)
        self._parts = PartsInUse(self.draft.fleet)
        self._before = by_replica(problem.previous, self.draft.fleet)
        self._start = dict(self.draft.placed)
        self._rooms = self._room()
        self._outages = _stopped(problem, base)
        self.proofs: list[str] = []

    @property
    def spent(self) -> int:
        """Of all who are not where the base has them."""
        return sum(self._cost(key) for key, place in self._start.items() if not same_place(place, self.draft.placed[key]))

    @property
    def interrupted(self) -> int:
        """How many stop before they start elsewhere, though there is room for both."""
        now = self.draft.placed
        running = {key: place for key, place in self._start.items() if self._cost(key)}
        return len(_within(running, now).union(key for key in leave_early(self._before, now, self.draft.needs) if key in running))

    def solution(self) -> Solution | None:
        """The plan that comes of it, in which whoever had no place may have one that became free; None where that would move somebody else,
        stop somebody, or take room that is kept: nobody said that it may."""
        there = self.draft.placed
        after = replace(self._settled, previous=(*(there[key] for key in sorted(there)), *self._base.waiting))
        found = make_plan(after)
        now = {(place.service, place.replica): place for place in found.placements}
        if not all((each.service, each.replica) in now for each in self._base.placements):
            return None
        if not all(key in now and same_place(place, now[key]) for key, place in there.items()):
            return None
        if _stopped(self._problem, found) - self._outages:
            return None
        if self.draft.fleet.keepers and robbed(begin(planned(after, found)).fleet, _ANYBODY, self._rooms):
            return None
        return found

    def _room(self) -> dict[str, frozenset[str]]:
        """The services that have room kept on each host, of whatever priority."""
        return rooms(self.draft.fleet, _ANYBODY) if self.draft.fleet.keepers else {}

    def _cost(self, key: Key) -> int:
        """What it costs that this replica does not stay where the base has it."""
        last = self._before.get(key)
        return self.draft.need_of(key).move_cost if last is not None and same_place(last, self._start[key]) else 0

    def _extra(self, keys: Iterable[Key]) -> int:
        """What is added to ``spent`` when these move."""
        return sum(self._cost(key) for key in keys if same_place(self._start[key], self.draft.placed[key]))

    def _may_go(self, name: str, needed: bool = False) -> bool:
        key = self.draft.movable(name, needed)
        return key is not None and key in self._start and key[0] not in self._problem.changed

    # One GPU after the other

    def one_by_one(self) -> None:
        """As many GPUs as become empty that way. To ask after each whether somebody is stopped by it takes longer than all else: mostly
        nobody is, so it is asked once at the end, and only where somebody was all is done again step by step."""
        mark = self.draft.mark()
        self._pass(careful=False)
        if self._stops():
            self.draft.back(mark)
            self._pass(careful=True)
        else:
            self.draft.keep()

    def _pass(self, careful: bool) -> None:
        """The cheapest GPU first; of equals on the host with the fewest in use, for a host that is empty can be put to other use."""
        failed: set[str] = set()
        going = True
        while going:
            left = self._moves - self.spent
            ways = sorted((way for way in self._ways() if way[0] <= left), key=lambda way: way[:-1])
            # What each costs is another question after one has become empty.
            going = False
            for state in (way[-1] for way in ways if way[-1].gpu.uuid not in failed):
                going = self._emptied(state, careful)
                if going:
                    break
                failed.add(state.gpu.uuid)

    def _ways(self) -> Iterator[tuple[t.Any, ...]]:
        """(cost, GPUs in use on the host, memory that moves, host, PCI address, UUID, the GPU) of each that could be emptied."""
        for name, host in self.draft.fleet.hosts.items():
            used = sum(state.in_use for state in host.gpus)
            for state in host.gpus:
                names = state.names()
                if names and _is_open(state) and not _strangers(state.gpu) and all(self._may_go(each) for each in names):
                    keys = [key_of(each) for each in names]
                    memory = sum(self.draft.need_of(key).memory_mib for key in keys)
                    yield self._extra(keys), used, memory, name, state.gpu.pci, state.gpu.uuid, state

    def _emptied(self, state: GpuState, careful: bool) -> bool:
        """Another place for everybody on the GPU, on GPUs that are in use. ``careful``: as long as nobody is stopped by it."""
        keys = sorted((key_of(name) for name in state.names()), key=lambda key: (-self.draft.need_of(key).memory_mib, key))
        # Mostly there is no room, and that is soonest known while all are where they are.
        if not all(any(other is not state for gpus in self._parts.of(self.draft.need_of(key)) for other in gpus) for key in keys):
            return False

        def settle(keys: Iterable[Key]) -> bool:
            return all(self._place(self.draft.need_of(key), key[1], state) is not None for key in keys)

        return self._changed(keys, settle, careful) is None

    def _place(self, need: Need, replica: int, old: GpuState) -> Placement | None:
        """The best place on other GPUs in use: one that is no less spread than on the GPU before, and of these one on another host than
        before, for only there it starts before it stops."""
        hosts = self.draft.fleet.hosts
        was = self._nearness(need, hosts[old.host.name], old)
        able = [[state for state in gpus if state is not old] for gpus in self._parts.of(need)]
        found = [offer for gpus in able if gpus for offer in offers_of(hosts[gpus[0].host.name], need, gpus)]

        def order(offer: Offer) -> tuple[t.Any, ...]:
            near = self._nearness(need, offer.host, offer.gpus[0])
            return near > was, offer.host.host.name == old.host.name, offer.rank

        return self.draft.place_on(need, replica, sorted(found, key=order))

    # By the program for slices

    def by_program(self) -> None:
        """As many GPUs as the program empties; whoever cannot go where it says stays, and it is asked again."""
        # numpy and HiGHS take a quarter of a second to load, and few plans are made for this.
        from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import consolidation, program

        fleet = self.draft.fleet
        # What others need beside them may go as soon as those are gone: a bound has to know that.
        costs = {replica_name(*key): self._cost(key) for key in self._start if self._may_go(replica_name(*key), needed=True)}
        asked = [(kind, consolidation.fewer(fleet, kind, self._moves, costs)) for kind in consolidation.kinds(fleet)]
        for kind, found in asked:
            if found is not None:
                leave = "leaves" if self._moves == 1 else "leave"
                words = f"{_moves(self._moves)} of these among them {leave} no fewer than {found.least} while each slice stays as large"
                hold = "1 open GPU holds" if found.gpus == 1 else f"{found.gpus} open GPUs hold"
                self.proofs.append(f"{kind[1]} in {kind[0]}: {hold} slices; {words} (proven by {program.version()})")
        worth = [(len(each.moves) / (each.gpus - each.after), kind) for kind, each in asked if each is not None and each.after < each.gpus]
        for _each, kind in sorted(worth, key=lambda each: (each[0], each[1][:2], each[1][2].digest())):
            stay: set[str] = set()
            for _try in range(TRIES):
                able = {
                    replica_name(*key): self._extra([key])
                    for key in self._start
                    if replica_name(*key) not in stay and self._may_go(replica_name(*key))
                }
                found = consolidation.fewer(fleet, kind, self._moves - self.spent, able)
                if found is None or found.after >= found.gpus:
                    break
                wrong = self._tried(found.moves)
                if wrong is None:
                    break
                stay |= wrong

    def _tried(self, moves: Mapping[str, Hint]) -> set[str] | None:
        """None when all these moves are made, else names of some that cannot be."""
        hints = {key_of(name): hint for name, hint in moves.items()}
        if self._extra(hints) > self._moves - self.spent:
            return set(moves)
        stuck: list[Key] = []

        def settle(keys: Iterable[Key]) -> bool:
            stuck.extend(key for key in sorted(keys) if self.draft.place_at(self.draft.need_of(key), key[1], hints[key]) is None)
            return not stuck

        wrong = self._changed(list(hints), settle)
        return {replica_name(*key) for key in stuck} or wrong

    # Both

    def _changed(self, keys: list[Key], settle: t.Callable[[Iterable[Key]], bool], careful: bool = True) -> set[str] | None:
        """None when these replicas have the places that ``settle`` gives them; else all is as it was, and these are to blame."""
        draft = self.draft
        everybody = {replica_name(*key) for key in keys}
        kept, mark = self._room(), draft.mark()
        near = {key: self._near(key) for key in keys}
        old = {key: draft.lift(key) for key in keys}
        wrong = None if settle(keys) else everybody
        if wrong is None:
            wrong = {replica_name(*key) for key in keys if self._near(key) > near[key]} or None
        if wrong is None:
            wrong = {replica_name(*key) for key in keys if self._needed(key, old[key])} or None
        if wrong is None and self._lost_room(kept, old):
            wrong = everybody
        if wrong is None and careful and (stopped := self._stops()):
            wrong = stopped & everybody or everybody
        if wrong is not None:
            draft.back(mark)
            return wrong
        draft.keep()
        return None

    def _stops(self) -> set[str]:
        """Who would have to stop for it, and serves on in the plan as it is."""
        made = Solution(tuple(self.draft.placed.values()), waiting=self._base.waiting)
        return {replica_name(*key) for key in _stopped(self._problem, made) - self._outages}

    def _needed(self, key: Key, old: Placement) -> bool:
        """Is somebody left where it was who has to have its service there? Of two replicas either may go, and not both."""
        fleet = self.draft.fleet
        return not fleet.hosts[old.host].replicas.get(key[0], 0) and bool(needed_there(fleet, self.draft.needs, old))

    def _lost_room(self, kept: Mapping[str, frozenset[str]], old: Mapping[Key, Placement]) -> bool:
        """Has a service less room than it had, where it still is or where it goes now?"""
        fleet = self.draft.fleet
        if not fleet.keepers:
            return False
        now = self._room()
        gone = ((key[0], place.host, self.draft.placed[key].host) for key, place in old.items())
        return robbed(fleet, _ANYBODY, kept) or any(
            name in kept.get(was, ()) and name not in now.get(there, ()) for name, was, there in gone
        )

    def _near(self, key: Key) -> tuple[int, int]:
        """Replicas of its service that are where it is, itself among them, as far as that is against its wish to be spread."""
        need, place = self.draft.need_of(key), self.draft.placed[key]
        host = self.draft.fleet.hosts[place.host]
        return self._nearness(need, host, host.by_uuid[place.gpus[0]])

    @staticmethod
    def _nearness(need: Need, host: HostState, state: GpuState) -> tuple[int, int]:
        return (0, 0) if need.rules.spread == "pack" else nearness(host, need, state)


# Whose room may not go, whatever priority it has.
_ANYBODY = Need("", "", "slice", priority=-1)


def _stopped(problem: Problem, solution: Solution) -> set[Key]:
    """Who does not serve for a while when the plan is carried out."""
    return {(each.service, each.replica) for each in order(problem, solution).outages}


def _is_open(state: GpuState) -> bool:
    """May something new still come to it, in the mode that it has? Of whole GPUs none becomes empty without another being filled."""
    return state.mode in ("mig", "shared") and state.refusal(state.mode, state.sharing or TIME_SLICE) is None


def _strangers(gpu: Gpu) -> bool:
    """Is somebody on it whom no plan knows, and who would stay?"""
    return bool(gpu.outsiders) or any(each.outsiders for each in gpu.instances)


def _used(places: Iterable[Placement]) -> set[tuple[str, str]]:
    return {(place.host, uuid) for place in places for uuid in place.gpus}


def _moved(base: Solution, after: Solution) -> list[Placement]:
    """The places that are left for others, by name."""
    now = {(place.service, place.replica): place for place in after.placements}
    return [place for place in base.placements if not same_place(place, now[(place.service, place.replica)])]


def _within(was: Mapping[Key, Placement], now: Mapping[Key, Placement]) -> set[Key]:
    """Who goes to another place of the host where it is."""
    return {key for key, place in was.items() if place.host == now[key].host and not same_place(place, now[key])}


def _lines(problem: Problem, base: Solution, after: Solution, gone: Mapping[Key, Placement], spent: int, moves: int) -> Iterator[str]:
    """Which GPUs become empty, who moves for it (``gone``: from where), and who gets a place by it."""
    was, now = ({(place.service, place.replica): place for place in plan.placements} for plan in (base, after))
    last = by_replica(problem.previous, Fleet(problem))
    moved = {key for key, place in gone.items() if key in last and same_place(last[key], place)}
    used, still = _used((*base.placements, *base.waiting)), _used((*after.placements, *after.waiting))
    gpus = {(host.name, gpu.uuid): gpu for host in problem.hosts for gpu in host.gpus}
    empty = [each for each in sorted(used - still) if each in gpus and not _strangers(gpus[each])]
    for host, uuid in empty:
        yield f"{host} {uuid[:12]} ({gpus[host, uuid].board}) becomes empty"
    for key, place in gone.items():
        if key in moved:
            yield f"{place.name} moves from {at(place)} to {at(now[key])}"
        else:  # it was not there yet
            yield f"{place.name} goes to {at(now[key])} and not to {at(place)}"
    # A host stops what leaves its place there before it cuts new slices: only on another host the new place comes first.
    within = len(moved & _within(was, now))
    if within:
        who = "1 of these moves is" if within == 1 else f"{within} of these moves are"
        yield f"{who} within a host: the replica stops before it starts in its new place"
    early = len(moved.intersection(leave_early(last, now, {need.service: need for need in problem.needs})))
    if early:
        who = "1 of these moves closes" if early == 1 else f"{early} of these moves close"
        yield f"{who} a circle of hosts: the replica stops before it serves in its new place"
    waited = {(place.service, place.replica): place for place in base.waiting}
    for key in sorted(set(now) - set(was)):
        where = "had no place" if key not in waited else f"waited on {at(waited[key])}"
        yield f"{replica_name(*key)}, which {where}, gets {at(now[key])}"
    if not gone:
        yield f"no GPU becomes empty by at most {_moves(moves)}"
    else:
        become, count = "becomes" if len(empty) == 1 else "become", "counts" if len(moved) == 1 else "count"
        yield f"{len(empty)} of {len(used)} GPUs in use {become} empty by {_moves(len(moved))}, which {count} as {spent} of at most {moves}"


def _moves(number: int) -> str:
    return "1 move" if number == 1 else f"{number} moves"
