# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a problem to a solution: who stays, who gets which GPU, slice or share, and who gets none.

``make_plan`` is all that others use. Inside: whoever has a place that is still right keeps it; then the others
come one by one, by priority, then the largest first, and each takes the best place of the moment. Who finds none may ask others to
move, and a higher priority may take the place of a lower one, as far as the problem allows either. No random number, and no clock
but that by which a second process is not waited for without end (sharing_out.py), which changes no answer; the order of the input does not
matter.
"""

from __future__ import annotations

import heapq
import typing as t
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key, needed_there
from ansible_collections.gpuops.fleet.plugins.plugin_utils.explain import explain
from ansible_collections.gpuops.fleet.plugins.plugin_utils.giving_way import Room
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import Settled, begin, begin_again, drains, part
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import kept, robbed, rooms
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.nearest_moves import bare_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import named_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    GpuLayout,
    Hint,
    Need,
    Placement,
    Problem,
    Proof,
    Solution,
    Unplaced,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.reseating import reseat
from ansible_collections.gpuops.fleet.plugins.plugin_utils.restoring import restore
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import answered
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import take
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sweeps import without_sweeps

__all__ = ["make_plan"]

# How often everybody without a place is asked again, and how many turns one round has for each of them. Mostly two rounds and a turn for
# each will do; where rules and priorities chase each other in a circle, it ends here.
ROUNDS = 8
TURNS = 8
Rank = tuple[t.Any, ...]
# One turn: a replica; or all of a service that are to be placed together, or not at all.
Turn = tuple[Need, tuple[int, ...]]
# Its rank, the first of its replicas, its service, all of them, and whether others are to make room.
_Entry = tuple[Rank, int, str, tuple[int, ...], bool]
_Missing = list[tuple[Need, int]]
# What was decided, and who is left over.
_Plan = tuple[Draft, _Missing]
Made = t.TypeVar("Made")


@without_sweeps
def make_plan(problem: Problem, trial: bool = False, settled: Settled | None = None, *, words: bool = True) -> Solution:
    """Decide. Equal problems, in whatever order their parts come, give equal solutions.

    ``trial``: only who has which place one by one, without a reason for those who have none. On a fleet that serves, all of them have one
    in the plan that is made in earnest too. ``settled``: of a trial, as for :func:`begin`. ``words``: are reasons asked for?
    """
    if trial:
        return _solution(*_one_by_one(begin(problem, settled), settled), words=False)
    draft, missing, proof = _decided(problem)
    return _solution(draft, missing, words=words, proof=proof)


def _decided(problem: Problem) -> tuple[Draft, _Missing, Proof | None]:
    """One by one, then all who wait together; of both the plan that is worth more."""
    draft = begin(problem)
    if draft.kept or draft.leaving or problem.is_small:
        best, proof = _together(problem, *_one_by_one(draft))
        return (*best, proof)
    # On a large fleet where nobody serves yet the plan for all together is nearly always the one that stands: nobody makes room before.
    best, proof = _together(problem, draft, None)
    if draft.placed and best[1]:
        # All might be served, and one by one nobody was asked to make room yet.
        stood = best[0] is draft
        other, proven = _together(problem, draft, _Queue(draft, {}).run())
        if stood or _worth(*other) > _worth(*best):
            best, proof = other, proven
    return (*best, proof)


def _one_by_one(draft: Draft, settled: Settled | None = None) -> _Plan:
    """Everybody in turn. On a small fleet on which others may move, in both orders, and the plan that is worth more counts: what is opened
    for a large one, others may share."""
    problem, missing = draft.problem, _Queue(draft, {}).run()
    if not missing or not problem.moves or not problem.is_small:
        return draft, missing
    other = begin(problem, settled)
    left = _Queue(other, {}, patient=False).run()
    return (other, left) if _worth(other, left) > _worth(draft, missing) else (draft, missing)


def _worth(draft: Draft, missing: _Missing) -> tuple[float, ...]:
    """By the objective: more is better."""
    return objective(draft.problem, _solution(draft, missing, words=False))


def _solution(draft: Draft, missing: _Missing, words: bool, proof: Proof | None = None) -> Solution:
    if words:
        unplaced = answered(lambda each: _unplaced(draft, *each), missing, lambda each: bare_of(each[0]))
    else:
        unplaced = [Unplaced(need.service, replica, "", "") for need, replica in missing]
    return Solution(
        placements=tuple(draft.placed[key] for key in sorted(draft.placed)),
        unplaced=tuple(unplaced),
        layouts=_layouts(draft.fleet),
        waiting=tuple(_waits(draft, missing)),
        displaced=draft.result(),
        proof=proof,
    )


def _together(problem: Problem, draft: Draft, missing: _Missing | None) -> tuple[_Plan, Proof | None]:
    """(The plan that is worth more: ``draft``, or one that serves more than it does; what is proven of it).

    One by one is how people would do it, and it may leave somebody over who could have been served if all had been looked at together. On a
    fleet where nobody has a place yet it may also open more GPUs than it must; where somebody has, nothing is turned round for that.

    ``missing``: who has no place in ``draft``; None where nobody was given one yet. That is done only if all may have a place, or if there
    is no other plan.
    """
    if missing == [] and (draft.kept or draft.leaving):
        return (draft, missing), Proof()
    if draft.drained:  # what they hold they may give back, and how much that is depends on where they go
        words = "who leaves a drained GPU or host gives back what others may take, and the solver does not know of it"
        return (draft, missing or []), Proof(unproven=words)
    # numpy and HiGHS take a quarter of a second to load: only where they are asked.
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import together

    waiting = [
        (need, replica)
        for need in sorted(draft.needs.values(), key=lambda each: each.service)
        for replica in range(1, need.replicas + 1)
        if (need.service, replica) not in draft.kept and not need.adopted
    ]
    if not waiting:  # adopted services alone: nothing is to be decided, but who is nowhere is without a place
        return (draft, _Queue(draft, {}).run() if missing is None else missing), Proof()
    # Where somebody serves already on a large fleet, who has a place one by one has one in any case: what a change brings can then be told
    # without a plan for all together.
    must = {key for key in draft.placed if key not in draft.kept} if draft.kept and not problem.is_small else set()
    if missing and must and draft.displaced:
        return _beside_those_who_gave_way(draft, missing, waiting, must)
    one_by_one = None if missing is None else (draft, missing)

    def others() -> tuple[Counter[int], int | None]:
        """How many of each priority one by one serves, and with how many GPUs where it serves all and nobody did before."""
        nonlocal one_by_one
        one_by_one = one_by_one or (draft, _Queue(draft, {}).run(asking=False))
        return _reached(waiting, draft), None if one_by_one[1] or draft.kept or draft.leaving else _opened(draft)

    reached, opened = others() if one_by_one else (None, None)
    # Where it is not known yet who has a place one by one, ``others`` changes the draft while the solver looks.
    before = begin_again(draft) if missing is None else _beginning(draft)
    found = together.plan_together(before.fleet, waiting, reached, opened, must, None, others)
    if found is None or not found.better:
        others()
    best = one_by_one or (draft, waiting)
    if found is not None and found.better:
        best = _better(best, _hinted(draft, found.hints, must), must)
        again = _without_what_failed(waiting, best[0], found.most) if found.small and not draft.kept else None
        best = best if again is None else _better(best, again, must)
    most = None if found is None else found.most
    best, most = _exactly(waiting, best, most, must)
    if most is None and best[0].displaced:
        return best, _proof_of_others(*best)
    return best, _proof(_reached(waiting, best[0]), most, None if found is None else found.gpus)


def _beside_those_who_gave_way(draft: Draft, missing: _Missing, waiting: _Missing, must: Collection[Key]) -> tuple[_Plan, Proof | None]:
    """As :func:`_together`, where somebody gave way for others: the program finds places for those, too, and begins without them."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import together

    # Besides those, whoever cannot be where it was without them.
    gone = [key for key, place in sorted(draft.kept.items()) if draft.placed.get(key) != place]
    everybody = [*waiting, *((draft.needs[service], replica) for service, replica in gone)]
    served = {*must, *(key for key in gone if key in draft.placed)}
    best = draft, missing
    found = together.plan_together(_without(draft, gone).fleet, everybody, _reached(everybody, draft), None, served)
    if found is not None and found.better:
        # Nor does anybody else leave whom these had left where they were.
        best = _better(best, _hinted(draft, found.hints, served, gone), list(draft.placed))
    return best, _proof_of_others(*best)


def _without(draft: Draft, gone: Iterable[Key]) -> Draft:
    """The beginning of a draft, from which these have gone, as they did in the end."""
    start = begin_again(draft)
    start.displaced = {key: draft.displaced[key] for key in gone if key in draft.displaced}
    for key in gone:
        start.lift(key)
    return start


def _hinted(draft: Draft, hints: Mapping[Key, Hint], must: Collection[Key], gone: Collection[Key] = ()) -> _Plan:
    """The plan with these hints. Whoever ``must`` have a place and gets none by them has that of ``draft``, where that can be. Who is
    served by then goes back or away from others of its service, where it can.

    ``gone``: who gave way in the draft, and looks for a place as well. Then nobody else makes room before all of these have one.
    """
    start = _without(draft, gone)
    missing = _Queue(start, hints).run(asking=not gone)
    if not all(key in start.placed for key in must):
        restore(start, {key: draft.placed[key] for key in must})
        missing = _Queue(start, hints).run(asking=not gone)
    if all(key in start.placed for key in must):
        missing = _Queue(start, hints).run() if gone else missing
        # Last, so that everybody who is served stays served.
        missing = _Queue(start, hints).run() if reseat(start) else missing
    return start, missing


def _beginning(draft: Draft) -> Draft:
    """The plan before anybody who waits has a place: to look at, for it may be the draft itself, if that gave nobody one."""
    return draft if draft.placed == draft.kept and not draft.displaced else begin_again(draft)


def _proof_of_others(draft: Draft, missing: _Missing) -> Proof | None:
    """What the solver proves of those who are left over, where somebody gave way for others."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import together

    left = [each for each in missing if not each[0].adopted]
    return _proof({}, together.most_served(draft.fleet, left) if left else {})


def _proof(reached: Mapping[int, int], most: Mapping[int, int] | None, gpus: int | None = None) -> Proof | None:
    """What the solver proves of a plan, ``gpus`` the fewest that it may open; None without a solver."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import program

    if not program.available():
        return None
    if most is None:
        return Proof(unproven="the fleet is too large for the solver, or it had no answer within its limits")
    return Proof(_open(reached, most), gpus, program.version())


def _exactly(
    waiting: _Missing, best: _Plan, most: Mapping[int, int] | None, must: Collection[Key]
) -> tuple[_Plan, Mapping[int, int] | None]:
    """Where a fleet is small enough, the best plan that there is, and how many of each priority can be served at most."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import exact

    draft = best[0]
    reached = _reached(waiting, draft)
    proven = most is not None and not _open(reached, most)
    if proven and draft.kept:
        return best, most
    before = _beginning(draft)
    found = exact.plan_exactly(before.fleet, waiting, draft.before, draft.placed, proven, not draft.kept, must)
    if found is None:
        return best, most
    if found.better and _seated(start := begin_again(draft), found.hints):
        best = _better(best, (start, _Queue(start, found.hints).run()), must)
    return best, found.most


def _better(one: _Plan, other: _Plan, must: Collection[Key]) -> _Plan:
    """The one that is worth more; the other one only if all of those are served who have to be."""
    return other if _worth(*other) > _worth(*one) and all(key in other[0].placed for key in must) else one


def _open(reached: Mapping[int, int], most: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """(Priority, how many more of it could be served at most), of the highest of which any could.

    Of lower priorities nothing is known as long as more of a higher one might be served.
    """
    more = ((priority, each - reached.get(priority, 0)) for priority, each in sorted(most.items(), reverse=True))
    return tuple(each for each in more if each[1] > 0)[:1]


def _without_what_failed(waiting: _Missing, best: Draft, most: Mapping[int, int]) -> _Plan | None:
    """Room may have been kept for one whom the rules of its service kept out in the end: all once more, without the hope for it."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import together

    reached = _reached(waiting, best)
    failed = next((priority for priority in sorted(most, reverse=True) if reached[priority] < most[priority]), None)
    if failed is None or failed == min(most):
        return None
    start = begin_again(best)
    ceiling = {priority: reached[priority] for priority in most if priority >= failed}
    found = together.plan_together(start.fleet, waiting, reached, None, (), ceiling)
    return None if found is None or not found.better else (start, _Queue(start, found.hints).run())


def _seated(draft: Draft, hints: Mapping[Key, Hint]) -> bool:
    """Give everybody the place that was found; False where somebody could not have it, for a rule that the solver does not know.

    Who goes together with another comes after it, whatever the order in which they are named.
    """
    waiting = sorted(hints)
    while waiting:
        left = [key for key in waiting if draft.place_at(draft.need_of(key), key[1], hints[key]) is None]
        if len(left) == len(waiting):
            return False
        waiting = left
    return True


def _reached(waiting: _Missing, draft: Draft) -> Counter[int]:
    return Counter(need.priority for need, replica in waiting if (need.service, replica) in draft.placed)


def _opened(draft: Draft) -> int:
    return sum(state.in_use for host in draft.fleet.hosts.values() for state in host.gpus)


class _Queue:
    """Those without a place, each in its turn.

    Who leaves a drained GPU holds its old place until it has another. What it gives back may help those before it, so they are asked
    again, until nobody gives anything back any more: planning again from this plan then changes nothing. The same holds for who moves.
    Higher priorities are asked again before a lower one has its turn, which might take what they have waited for.
    """

    def __init__(self, draft: Draft, hints: Mapping[Key, Hint], patient: bool = True) -> None:
        """``patient``: others make room only after all of a priority who need nobody to; else at once, for the largest first."""
        self._draft = draft
        self._hints = hints
        self._patient = patient
        self._room = Room(draft)
        self._asking = True
        self._heap: list[_Entry] = []
        # Who was told in this round that there is no place, after how many were given back.
        self._refused: list[tuple[int, _Entry]] = []
        # As of when they were asked again, and before which priority.
        self._asked_again = (0, 0)

    def run(self, asking: bool = True) -> list[tuple[Need, int]]:
        """Place everybody for whom there is a place; who has none, by service and replica. ``asking``: others may be asked to make room."""
        draft, self._asking = self._draft, asking
        for _round in range(ROUNDS):
            draft.freed = False
            before, self._room = dict(draft.placed), Room(draft)
            self._heap = [self._entry(need, replicas) for need, replicas in _turns(self._missing())]
            heapq.heapify(self._heap)
            turns = TURNS * len(self._heap)
            self._refused = []
            while self._heap and turns > 0:
                self._higher_again()
                turns -= 1
                _rank, _first, service, replicas, last = heapq.heappop(self._heap)
                self._turn(draft.needs[service], replicas, last or not self._patient)
            missing = self._missing()
            # A plan made anew from this one has all of the tries again: it may find nothing that this one did not come to.
            settled = not self._room.spent or draft.placed == before
            if not missing or (not draft.freed and not self._heap and settled):
                return missing
        self._end()
        return self._missing()

    def _higher_again(self) -> None:
        """Before the next one takes a place: whoever asked in vain and is of a higher priority takes what was given back since, if that
        will do. Whether others can make room now is asked in the next round."""
        draft, priority, refused = self._draft, self._heap[0][0][0], self._refused
        asked, self._asked_again = self._asked_again, (draft.given_back, priority)
        if asked == self._asked_again or not self._may_have_one(self._heap[0]):
            return
        self._refused = []
        for then, entry in refused:
            if then == draft.given_back or entry[0][0] >= priority:
                self._refused.append((then, entry))
            elif not self._may_have_one(entry) or not self._takes(draft.needs[entry[2]], entry[3], last=False):
                self._refused.append((draft.given_back, entry))

    def _takes(self, need: Need, replicas: Sequence[int], last: bool) -> bool:
        """Have these a place by now, or is there one? ``last``: others make room."""
        if need.rules.all_or_nothing:
            return self._group(need, last)
        return all((need.service, each) in self._draft.placed or self._one(need, each, last) for each in replicas)

    def _may_have_one(self, entry: _Entry) -> bool:
        """Is there a place for one of these, as things are? What it holds on a drained GPU it gives back itself."""
        need = self._draft.needs[entry[2]]
        return any((need.service, replica) in self._draft.leaving for replica in entry[3]) or not self._draft.hopeless(need)

    def _end(self) -> None:
        """Whoever gave way last is not asked any more: of what is to have all of its replicas, nothing is left then."""
        draft, going = self._draft, True
        while going:
            keys = [(need.service, replica) for need, replica in self._missing() if need.rules.all_or_nothing and not need.adopted]
            broken = {service for service, replica in keys if (service, replica) not in draft.leaving}
            gone = [key for key, place in draft.everybody() if key[0] in broken and place.host in draft.fleet.hosts]
            for key in gone:
                draft.lift(key)
            going = bool(part(draft)) or bool(gone)

    def _missing(self) -> list[tuple[Need, int]]:
        placed = self._draft.placed
        needs = sorted(self._draft.needs.values(), key=lambda need: need.service)
        return [(need, replica) for need in needs for replica in range(1, need.replicas + 1) if (need.service, replica) not in placed]

    def _entry(self, need: Need, replicas: Sequence[int], last: bool = False) -> _Entry:
        # Whose place was found for all together comes before those who take what is left, but never before a higher priority.
        hinted = any((need.service, replica) in self._hints for replica in replicas)
        return (_size_rank(self._draft.fleet, need, hinted, last), replicas[0], need.service, tuple(replicas), last)

    def _turn(self, need: Need, replicas: Sequence[int], last: bool) -> None:
        """``last``: others make room, after all of the same priority who need nobody to."""
        if need.adopted or self._takes(need, replicas, last):
            return
        # Nobody makes room for one that leaves a drained GPU.
        stays = not need.rules.all_or_nothing and (need.service, replicas[0]) in self._draft.leaving
        if self._asking and not last and not stays:
            heapq.heappush(self._heap, self._entry(need, replicas, True))
        else:
            self._refused.append((self._draft.given_back, self._entry(need, replicas, last or stays)))

    def _group(self, need: Need, last: bool) -> bool:
        """All replicas, or none: with those that have a place where they are, else all anew."""
        draft = self._draft
        keys = [(need.service, replica) for replica in range(1, need.replicas + 1)]
        for anew in (False, True) if last else (False,):
            there = [key for key in keys if key in draft.placed]
            if anew and not there:
                break
            mark, entries = draft.mark(), list(self._heap)
            for key in there if anew else ():
                if draft.placed[key].host in draft.fleet.hosts:
                    draft.lift(key)
            if all(key in draft.placed or self._one(need, key[1], last) or key in draft.leaving for key in keys):
                draft.keep()
                self._ask_again(part(draft))
                return True
            draft.back(mark)
            self._heap = entries
        for key in keys if last else ():
            if key in draft.leaving or (key in draft.placed and draft.placed[key].host in draft.fleet.hosts):
                draft.lift(key)
        self._ask_again(part(draft))
        return False

    def _ask_again(self, keys: Iterable[Key]) -> None:
        for service, replica in keys:
            heapq.heappush(self._heap, self._entry(self._draft.needs[service], (replica,)))

    def _one(self, need: Need, replica: int, last: bool) -> bool:
        """Give one replica the best place that there is, or with ``last`` that others make for it."""
        draft, key = self._draft, (need.service, replica)
        held = draft.leaving.get(key)
        if held is not None:
            return self._leave(need, replica, held)
        if key in self._hints and draft.place_at(need, replica, self._hints[key]) is not None:
            return True
        if draft.place(need, replica) is not None:
            return True
        if not last:
            return False
        if self._honest(need, partial(self._room.moved, need, replica)) is not None:
            return True
        found = self._honest(need, partial(self._room.taken, need, replica))
        if found is None:
            return False
        self._ask_again(found[1])
        return True

    def _honest(self, need: Need, make_room: Callable[[], Made | None]) -> Made | None:
        """What comes of it, undone where it costs somebody the room that is kept for a rollout."""
        draft = self._draft
        if not draft.fleet.keepers:
            return make_room()
        before, mark = rooms(draft.fleet, need), draft.mark()
        found = make_room()
        if found is not None and robbed(draft.fleet, need, before):
            draft.back(mark)
            return None
        draft.keep()
        return found

    def _leave(self, need: Need, replica: int, held: Placement) -> bool:
        """As :meth:`_one`, for a replica that has a place on a drained GPU and keeps it when there is no other; nobody moves for it. Beside
        those that need it, it only goes to another GPU of the host."""
        draft = self._draft
        hosts = {held.host} if needed_there(draft.fleet, draft.needs, held) else None
        mark = draft.mark()
        draft.lift((need.service, replica))
        draft.forget(need)  # what it gives back itself may be all that its team lacked
        if draft.place(need, replica, hosts) is None:
            draft.back(mark)
            return False
        draft.keep()
        return True


def _turns(missing: Iterable[tuple[Need, int]]) -> Iterator[Turn]:
    groups: dict[str, tuple[Need, list[int]]] = {}
    for need, replica in missing:
        if need.rules.all_or_nothing:
            groups.setdefault(need.service, (need, []))[1].append(replica)
        else:
            yield need, (replica,)
    yield from ((need, tuple(replicas)) for need, replicas in groups.values())


def _size_rank(fleet: Fleet, need: Need, hinted: bool, last: bool) -> Rank:
    """By priority, then who needs nobody to make room, then who has a hint, then the largest first, then by name."""
    memory = max(need.memory_mib, 1024 * named_size(need.profile or "")[1])
    priority, level = fleet.rulebook.turn(need)
    size = (need.isolation != "exclusive", -need.count, not must_join(need), -memory, -(need.compute or 0))
    return (-priority, level, last, not hinted, *size, need.service)


def _waits(draft: Draft, missing: Iterable[tuple[Need, int]]) -> Iterator[Placement]:
    """Places on drained GPUs that nobody could leave, and last places on hosts that are down. Of the latter, a service whose manifest has
    changed may need more than it had, and is decided anew."""
    for need, replica in missing:
        place = draft.before.get((need.service, replica))
        host = None if place is None else draft.fleet.hosts.get(place.host)
        if (need.service, replica) in draft.leaving:
            yield draft.leaving[(need.service, replica)]
        elif place is not None and host is not None and host.host.down and place.service not in draft.problem.changed:
            yield place


def _unplaced(draft: Draft, need: Need, replica: int) -> Unplaced:
    fleet, key = draft.fleet, (need.service, replica)
    before, held = draft.before.get(key), draft.leaving.get(key)
    beside = [] if held is None else needed_there(fleet, draft.needs, held)
    if held is not None:  # what it holds itself is in nobody's way
        fleet.hosts[held.host].unseat(need, held)
    reason, help_ = explain(fleet, need, replica, before, lasting=held is None)
    if held is not None:
        _sit_down(fleet, need, held)
    found = [] if before is None or need.adopted else drains(fleet, before)
    if before is not None and found:
        where = f"its place, {before.slice or before.mode} on {before.host} {','.join(uuid[:12] for uuid in before.gpus)}"
        needed = f"{before.host} has no other for it, where {' and '.join(beside)} needs it"
        reason = f"{where}, is {found[0].words}, and {needed if beside else f'there is none elsewhere: {reason}'}"
    if key in draft.displaced and (key in draft.kept or key in draft.drained):
        by, way = draft.displaced[key]
        words = "what its team had borrowed went back to" if way == "reclaimed" else "it gave way to"
        reason = f"{words} {by}: {reason}"
    return Unplaced(need.service, replica, reason, help_)


def _sit_down(fleet: Fleet, need: Need, held: Placement) -> None:
    """Back to the place that was just left, which nobody else can have taken."""
    host = fleet.hosts[held.host]
    take(need, held, host.usable(held.gpus))
    host.seat(need, held)


def _layouts(fleet: Fleet) -> dict[tuple[str, str], GpuLayout]:
    layouts: dict[tuple[str, str], GpuLayout] = {}
    for name, host in fleet.hosts.items():
        spares = kept(fleet, host).spares if fleet.keepers else None
        for state in host.gpus:
            layout = state.layout()
            if layout is not None and spares is not None and layout.mode == "mig":
                # Slices that nobody needs go where a rollout's has to fit.
                stay = {*state.fixed, *spares[state.gpu.uuid]}
                layout = replace(layout, slices=tuple(one for one in layout.slices if one in stay))
            if layout is not None:
                layouts[(name, state.gpu.uuid)] = layout
    return layouts
