# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One slice at a time on MIG GPUs that are in use: where it does the least harm, and, where no place is open, a repair by a few moves.

Moves that repairs are unlikely to need save room where a place is open. Choices are made by the harm that they do to states of GPUs under
the recent mix of requests, so that 100 GPUs or 10,000 cost the same.
"""

from __future__ import annotations

import math
import typing as t
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import find_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.harm import LOST, Harm
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray["numpy.float64"]

# At most so many slices move for one that comes, and so many on average over all that came.
MOST_MOVES = 3
BUDGET = 0.15
# Of the ways to make room on another GPU, so many are remembered: the best may need the GPU that is already part of the plan.
FEW = 8
# Where places are open, moves take harm away, too: only when a request found no open place a short while ago (so many requests), and with
# moves that repairs are unlikely to need (so many are kept). The more moves are left, the less one has to take away, from a tenth of a GPU
# that was lost down to a fortieth: a budget that is left over admits nobody.
SHORT = 25
RESERVE = 20
PRICE = 2.0 * LOST
DEAR, CHEAP = 0.1 * LOST, 0.025 * LOST
# How far back the recent mix of requests reaches, in requests, and how often what depends on it is worked out again.
MEMORY = 500
RENEW = 50


@dataclass(frozen=True)
class Move:
    """A slice of ``profile`` from one place to another: numbers of GPUs, starts."""

    profile: str
    old_gpu: int
    old_start: int
    gpu: int
    start: int


@dataclass(frozen=True)
class Admitted:
    """Where the slice that came stands; ``moves`` make that place free and come before it, ``later`` ones after it, each in this order."""

    gpu: int
    start: int
    moves: tuple[Move, ...]
    later: tuple[Move, ...]


class Admission:
    """GPUs of one kind that slices come to and go from; those that take nothing more are left out.

    ``states`` of the GPUs and ``pinned`` parts of them that never move; ``shares``: what the mix of requests is thought to be before any
    has come (name of a profile -> weight; None: all alike); ``budget``: moves for each admission, on average over all that were admitted.

    :raises FleetError: a state that the board does not know, no weight in ``shares``.
    """

    def __init__(
        self,
        patterns: Patterns,
        states: Sequence[int],
        pinned: Sequence[int] | None = None,
        shares: Mapping[str, float] | None = None,
        budget: float = BUDGET,
    ) -> None:
        self.patterns = patterns
        self.states, self.pinned = list(states), list(pinned or [0] * len(states))
        self.budget, self.admitted, self.moved = budget, 0, 0
        self._index = patterns.index
        unknown = [gpu for gpu, state in enumerate(self.states) if state not in self._index]
        if unknown:
            raise FleetError(f"GPU {unknown[0]} is in no legal state")
        self.groups: dict[tuple[int, int], list[int]] = {}
        for gpu in range(len(self.states)):
            self.groups.setdefault((self.states[gpu], self.pinned[gpu]), []).append(gpu)
        self.harm = Harm(patterns)
        known = numpy.asarray([1.0 if shares is None else float(shares.get(profile.name, 0.0)) for profile in patterns.profiles])
        if not (known >= 0).all() or not known.any():
            raise FleetError("no request has a weight")
        self._recent: Floats = known / known.sum() * RENEW
        self._ways: dict[tuple[int, int], list[tuple[tuple[int, ...], int, int]]] = {}
        # Requests that were seen, and how many since the last one that found no open place.
        self._seen, self._short = 0, SHORT
        # A state to which nothing can be added.
        self.full = int(numpy.delete(patterns.states, patterns.steps[0])[0])
        self.harm.renew(self._recent)

    def place(self, name: str) -> Admitted | None:
        """A place for one slice, now taken; None where there is none within the budget of moves.

        :raises FleetError: a profile that the board does not have, or that is not among those of the patterns.
        """
        asked = find_profile(self.patterns.geometry, name).name
        if asked not in self.patterns.number:
            raise FleetError(f"no slice {asked} is expected here", hint=f"name it with the others: {', '.join(self.patterns.number)}")
        profile = self.patterns.number[asked]
        self._learn(profile)
        look = _Look(self)
        found = look.open(profile, {}, None)
        steps: tuple[_Step, ...] = ()
        if found is None:
            self._short = 0
            repaired = look.repaired(profile, min(MOST_MOVES, self._credit(1)))
            if repaired is None:
                return None
            gpu, slot, steps = repaired.gpu, repaired.slot, repaired.steps
        else:
            harm, gpu, slot = found
            better = look.better(profile, harm, self._spare(1), self._price(1))
            if better is not None:
                gpu, slot, steps = better.gpu, better.slot, better.steps
        moves = tuple(self._carry_out(step) for step in steps)
        self._change(gpu, self.states[gpu] | 1 << slot)
        self.admitted, self.moved = self.admitted + 1, self.moved + len(moves)
        return Admitted(gpu, self.patterns.slots[slot][1], moves, self._tidied(MOST_MOVES - len(moves)))

    def _credit(self, coming: int) -> int:
        """Moves that the budget still has after ``coming`` more admissions."""
        return math.floor(self.budget * (self.admitted + coming) - self.moved + 1e-9)

    def _spare(self, coming: int) -> int:
        """Moves for less harm where a place is open: none unless places are short, nor those that repairs are likely to need."""
        return min(MOST_MOVES, self._credit(coming) - RESERVE) if self._short <= SHORT else 0

    def _price(self, coming: int) -> float:
        """Harm that a move where a place is open has to take away."""
        return max(CHEAP, min(DEAR, PRICE / max(1, self._credit(coming))))

    def _tidied(self, most: int) -> tuple[Move, ...]:
        """Moves after an admission that bring lost room back."""
        moves: list[Move] = []
        while len(moves) < most and self._spare(0) > 0:
            step = _Look(self).tidying(self._price(0))
            if step is None:
                break
            moves.append(self._carry_out(step))
            self.moved += 1
        return tuple(moves)

    def remove(self, gpu: int, name: str, start: int) -> None:
        """A slice is gone.

        :raises FleetError: there is none.
        """
        number = self.patterns.number[find_profile(self.patterns.geometry, name).name]
        bit = 1 << self.patterns.slots.index((number, start)) if (number, start) in self.patterns.slots else 0
        if not self.states[gpu] & bit:
            raise FleetError(f"there is no {name}@{start} on GPU {gpu}")
        self._change(gpu, self.states[gpu] & ~bit)

    def leaving(self, state: int, profile: int) -> list[tuple[tuple[int, ...], int, int]]:
        """(slots that leave, slot that is taken, state after): the ways to put a slice on a GPU by taking others off it.

        No more leave than must, and none of the same profile: where it could go the newcomer could go itself.
        """
        key = (state, profile)
        if key not in self._ways:
            slots = self.patterns.slots
            here = [slot for slot, (number, _start) in enumerate(slots) if state >> slot & 1 and number != profile]
            found: list[tuple[tuple[int, ...], int, int]] = []
            for slot in (slot for slot, (number, _start) in enumerate(slots) if number == profile and not state >> slot & 1):
                enough: list[set[int]] = []
                for count in range(1, MOST_MOVES + 1):
                    for leave in combinations(here, count):
                        after = (state & ~sum(1 << one for one in leave)) | 1 << slot
                        if after in self._index and not any(less <= set(leave) for less in enough):
                            enough.append(set(leave))
                            found.append((leave, slot, after))
            self._ways[key] = found
        return self._ways[key]

    def _change(self, gpu: int, state: int) -> None:
        group = self.groups[self.states[gpu], self.pinned[gpu]]
        group.remove(gpu)
        if not group:
            del self.groups[self.states[gpu], self.pinned[gpu]]
        self.pinned[gpu] &= state
        self.states[gpu] = state
        insort(self.groups.setdefault((state, self.pinned[gpu]), []), gpu)

    def _learn(self, profile: int) -> None:
        self._recent *= 1 - 1 / MEMORY
        self._recent[profile] += 1
        self._seen, self._short = self._seen + 1, self._short + 1
        if self._seen % RENEW == 0:
            self.harm.renew(self._recent)

    def _carry_out(self, step: _Step) -> Move:
        profile, old_start = self.patterns.slots[step.old_slot]
        self._change(step.old_gpu, self.states[step.old_gpu] & ~(1 << step.old_slot))
        self._change(step.gpu, self.states[step.gpu] | 1 << step.slot)
        return Move(self.patterns.profiles[profile].name, step.old_gpu, old_start, step.gpu, self.patterns.slots[step.slot][1])


class _Step(t.NamedTuple):
    """A move, by slots."""

    old_gpu: int
    old_slot: int
    gpu: int
    slot: int


class _Found(t.NamedTuple):
    """A place that ``steps`` in this order make free; ``touched``: GPUs that they and the newcomer change."""

    harm: float
    gpu: int
    slot: int
    steps: tuple[_Step, ...]
    touched: frozenset[int]


class _Place(t.NamedTuple):
    """A GPU, what stands on it, and what of it is pinned."""

    state: int
    pinned: int
    gpu: int


class _Way(t.NamedTuple):
    """Slots whose slices leave a GPU, the slot that is taken instead, and the state after it."""

    leave: tuple[int, ...]
    slot: int
    after: int


class _Look:
    """The fleet as it is at one arrival, and what was found out about it so far."""

    def __init__(self, fleet: Admission) -> None:
        self.fleet, self.patterns, self.harm, self.index = fleet, fleet.patterns, fleet.harm, fleet.patterns.index
        self.groups = fleet.groups
        self._ranked: dict[int, list[tuple[float, int, int, list[int]]]] = {}
        self._cleared: dict[tuple[int, int, frozenset[int]], list[_Found]] = {}

    def open(self, profile: int, changed: Mapping[int, int], own: tuple[int, int] | None) -> tuple[float, int, int] | None:
        """(harm, GPU, slot) of the best open place; None when there is none.

        ``changed``: GPUs that are in another state by then. ``own``: the GPU that the slice leaves and its state before: there both the old
        and the new one must be able to stand for a moment.
        """
        best = None
        if profile not in self._ranked:
            self._ranked[profile] = self._rank(profile)
        for harm, _first, slot, group in self._ranked[profile]:
            gpu = next((one for one in group if one not in changed), None)
            if gpu is not None:
                best = (harm, gpu, slot)
                break
        for gpu, state in changed.items():
            option = self.harm.best[profile][self.index[state]]
            if own is not None and gpu == own[0]:
                option = self._sliding(profile, state, own[1])
            if option is not None and (best is None or (option[0], gpu, option[1]) < best):
                best = (option[0], gpu, option[1])
        return best

    def _rank(self, profile: int) -> list[tuple[float, int, int, list[int]]]:
        """(harm, first GPU, slot, GPUs) of the groups in which the profile fits, best first."""
        table, found = self.harm.best[profile], []
        for (state, _pinned), group in self.groups.items():
            option = table[self.index[state]]
            if option is not None:
                found.append((option[0], group[0], option[1], group))
        return sorted(found, key=lambda one: one[:2])

    def _sliding(self, profile: int, state: int, before: int) -> tuple[float, int] | None:
        """(harm, slot) of a place on the slice's own GPU."""
        best, here = None, self.harm.of_state[self.index[state]]
        for slot, (number, _start) in enumerate(self.patterns.slots):
            bit = 1 << slot
            if number == profile and state | bit in self.index and before | bit in self.index and not (state | before) & bit:
                option = (self.harm.of_state[self.index[state | bit]] - here, slot)
                best = option if best is None else min(best, option)
        return best

    def better(self, profile: int, harm: float, most: int, price: float) -> _Found | None:
        """A place that moves, ``most`` at most, make free, if that is less harm by ``price`` a move than the open place with ``harm``.

        Looked for only while a place with the least harm that the slice can do anywhere would be worth the moves.
        """
        best = None
        for moves in range(1, most + 1):
            if self.harm.least[profile] + moves * price >= harm:
                break
            found = self.cleared(profile, moves)
            if found and found[0].harm + moves * price < harm:
                best, harm = found[0], found[0].harm + moves * price
        return best

    def tidying(self, price: float) -> _Step | None:
        """The move that takes away the most harm, if that is more than ``price``."""
        best = (-price, -1, -1, -1, -1)
        for (state, pinned), group in self.groups.items():
            before = self.harm.of_state[self.index[state]]
            for slot in range(len(self.patterns.slots)):
                if not state >> slot & 1 or pinned >> slot & 1:
                    continue
                after = state & ~(1 << slot)
                gain = self.harm.of_state[self.index[after]] - before
                target = self.open(self.patterns.slots[slot][0], {group[0]: after}, (group[0], state))
                if target is not None:
                    best = min(best, (gain + target[0], group[0], slot, target[1], target[2]))
        return None if best[1] < 0 else _Step(*best[1:])

    def repaired(self, profile: int, most: int) -> _Found | None:
        """A place that the fewest moves, ``most`` at most, make free; of such the one with the least harm."""
        if not self._room_for(profile):
            return None
        for moves in range(1, most + 1):
            found = self.cleared(profile, moves)
            if found:
                return found[0]
        return None

    def _room_for(self, profile: int) -> bool:
        """Is there as much free memory in all as the slice takes?"""
        free = sum(int(self.harm.free[self.index[state]]) * len(group) for (state, _pinned), group in self.groups.items())
        return free >= self.patterns.profiles[profile].size

    def cleared(self, profile: int, moves: int, avoid: frozenset[int] = frozenset()) -> list[_Found]:
        """The best few ways to make a place with exactly so many moves, on different GPUs and without those to ``avoid``."""
        key = (profile, moves, avoid)
        if key not in self._cleared:
            found = []
            for (state, pinned), group in self.groups.items():
                gpu = next((one for one in group if one not in avoid), None)
                if gpu is not None:
                    found += self._ways(profile, moves, _Place(state, pinned, gpu), avoid)
            self._cleared[key] = sorted(found, key=lambda one: one[:3])[:FEW]
        return self._cleared[key]

    def _ways(self, profile: int, moves: int, place: _Place, avoid: frozenset[int]) -> list[_Found]:
        """The best way on one GPU, if there is any."""
        found = []
        for leave, slot, after in self.fleet.leaving(place.state, profile):
            if len(leave) <= moves and not any(place.pinned >> one & 1 for one in leave):
                found.append(self._resettled(place, _Way(leave, slot, after), moves - len(leave), avoid))
        return sorted((one for one in found if one is not None), key=lambda one: one[:3])[:1]

    def _resettled(self, place: _Place, way: _Way, spare: int, avoid: frozenset[int]) -> _Found | None:
        """New places for the slices that leave a GPU; exactly ``spare`` more moves make room for one of them."""
        # To GPUs that are to be avoided nothing can be added.
        changed = {**dict.fromkeys(avoid, self.fleet.full), place.gpu: way.after}
        harm = self.harm.of_state[self.index[way.after]] - self.harm.of_state[self.index[place.state]]
        steps: list[_Step] = []
        touched = frozenset((place.gpu,))
        for one in way.leave:
            profile = self.patterns.slots[one][0]
            target = self.open(profile, changed, (place.gpu, place.state))
            if target is None:
                chain = self._chain(profile, spare, touched | avoid) if spare else None
                if chain is None:
                    return None
                target, spare = chain[:3], 0
                steps += chain.steps
                touched |= chain.touched
                # Nothing else goes where the chain has been: its GPUs are known to be good for this slice only.
                changed.update(dict.fromkeys(chain.touched, self.fleet.full))
            else:
                changed[target[1]] = changed.get(target[1], self.fleet.states[target[1]]) | 1 << target[2]
                touched |= {target[1]}
            harm += target[0]
            steps.append(_Step(place.gpu, one, target[1], target[2]))
        return None if spare else _Found(harm, place.gpu, way.slot, tuple(steps), touched)

    def _chain(self, profile: int, moves: int, touched: frozenset[int]) -> _Found | None:
        """The best way to make a place without the GPUs that are part of the plan already.

        If all that are known need one of those, it is looked for anew, but only where that is quick.
        """
        known = next((each for each in self.cleared(profile, moves) if not each.touched & touched), None)
        return next(iter(self.cleared(profile, moves, touched)), None) if known is None and moves == 1 else known
