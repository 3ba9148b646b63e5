# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One slice at a time on MIG GPUs that are in use: where it does the least harm, and, where no place is open, a repair by a few moves.

Harm is expected fragmentation: room that is free and that the next request cannot use, expected over the recent mix of requests (the idea of
fragmentation gradient descent, USENIX ATC'23). Every choice is made over states of GPUs, not over GPUs: 100 or 10,000 cost the same.
"""

from __future__ import annotations

import typing as t
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import find_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, numpy

if t.TYPE_CHECKING:
    from numpy.typing import NDArray

    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Ints

    Floats = NDArray["numpy.float64"]

# At most so many slices move for one that comes, and so many on average over all that came.
MOST_MOVES = 3
FEW = 8
BUDGET = 0.15
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
    """Where the slice that came stands, and what has to move before, in the order in which it can be done."""

    gpu: int
    start: int
    moves: tuple[Move, ...]


class Harm:
    """What a free place is worth under a mix of requests, for every state of a board."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        counts, geometry = patterns.counts, patterns.geometry
        # How many more slices of each profile fit beside a state, if nothing else comes.
        more = numpy.where(patterns.within[:, :, None], counts[None, :, :], -1).max(axis=1)
        self.fits: Ints = more - counts
        self.free: Ints = geometry.memory_slices - counts @ patterns.sizes
        steps = [
            (row, slot)
            for row, state in enumerate(patterns.states.tolist())
            for slot in range(len(patterns.slots))
            if not state >> slot & 1
        ]
        after = {state: row for row, state in enumerate(patterns.states.tolist())}
        legal = [
            (row, slot, after[int(patterns.states[row]) | 1 << slot])
            for row, slot in steps
            if int(patterns.states[row]) | 1 << slot in after
        ]
        self._row, self._slot, self._after = (numpy.asarray(part, dtype=numpy.int64) for part in zip(*legal, strict=True))
        self._profile = numpy.asarray([profile for profile, _start in patterns.slots], dtype=numpy.int64)[self._slot]
        self.of_state: list[float] = []
        self.best: list[list[tuple[float, int] | None]] = []

    def renew(self, shares: Floats) -> None:
        """For the mix ``shares`` (one for each profile, together 1): ``of_state``, and in ``best`` for each profile and state (harm, slot)."""
        patterns = self.patterns
        unusable = self.free[:, None] - self.fits * patterns.sizes[None, :]
        harm = unusable @ shares
        self.of_state = harm.tolist()
        delta = harm[self._after] - harm[self._row]
        order = numpy.lexsort((self._slot, delta, self._row, self._profile))
        self.best = [[None] * len(patterns.states) for _profile in patterns.profiles]
        columns = (self._profile, self._row, self._slot)
        for profile, row, slot, more in zip(*(column[order].tolist() for column in columns), delta[order].tolist(), strict=True):
            if self.best[profile][row] is None:
                self.best[profile][row] = (more, slot)


class Admission:
    """GPUs of one kind that slices come to and go from.

    ``states`` of the GPUs and ``pinned`` parts of them that never move; ``shares``: what the mix of requests is thought to be before any has come
    (name of a profile -> weight; None: all alike).
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
        self.groups: dict[tuple[int, int], list[int]] = {}
        for gpu in range(len(self.states)):
            self.groups.setdefault((self.states[gpu], self.pinned[gpu]), []).append(gpu)
        self.harm = Harm(patterns)
        known = numpy.asarray([1.0 if shares is None else float(shares.get(profile.name, 0.0)) for profile in patterns.profiles])
        self._recent: Floats = known / known.sum() * RENEW
        self._ways: dict[tuple[int, int], list[tuple[tuple[int, ...], int, int]]] = {}
        self._seen = 0
        self.full = int(patterns.states[numpy.flatnonzero(~self.harm.fits.any(axis=1))[0]])
        self.harm.renew(self._recent / self._recent.sum())

    def place(self, name: str) -> Admitted | None:
        """A place for one slice, now taken; None where there is none within the budget of moves.

        :raises FleetError: a profile that the board does not have.
        """
        profile = self.patterns.number[find_profile(self.patterns.geometry, name).name]
        self._learn(profile)
        look = _Look(self)
        found = look.open(profile, {}, None)
        steps: tuple[_Step, ...] = ()
        if found is None:
            credit = int(self.budget * (self.admitted + 1) - self.moved + 1e-9)
            repaired = look.repaired(profile, min(MOST_MOVES, credit))
            if repaired is None:
                return None
            gpu, slot, steps = repaired.gpu, repaired.slot, repaired.steps
        else:
            _harm, gpu, slot = found
        moves = tuple(self._carry_out(step) for step in steps)
        self._change(gpu, self.states[gpu] | 1 << slot)
        self.admitted, self.moved = self.admitted + 1, self.moved + len(moves)
        return Admitted(gpu, self.patterns.slots[slot][1], moves)

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
        """(slots that leave, slot that is taken, state after): the ways to put a slice on a GPU by taking others off it, no more than is needed."""
        key = (state, profile)
        if key not in self._ways:
            here = [slot for slot in range(len(self.patterns.slots)) if state >> slot & 1 and self.patterns.slots[slot][0] != profile]
            found: list[tuple[tuple[int, ...], int, int]] = []
            for slot in (slot for slot, (number, _start) in enumerate(self.patterns.slots) if number == profile and not state >> slot & 1):
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
        self._seen += 1
        if self._seen % RENEW == 0:
            self.harm.renew(self._recent / self._recent.sum())

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


class _Look:
    """The fleet as it is at one arrival, and what was found out about it so far."""

    def __init__(self, fleet: Admission) -> None:
        self.fleet, self.patterns, self.harm, self.index = fleet, fleet.patterns, fleet.harm, fleet.patterns.index
        self.groups = fleet.groups
        self._ranked: dict[int, list[tuple[float, int, int, list[int]]]] = {}
        self._cleared: dict[tuple[int, int], list[_Found]] = {}

    def open(self, profile: int, changed: Mapping[int, int], own: tuple[int, int] | None) -> tuple[float, int, int] | None:
        """(harm, GPU, slot) of the best open place; None when there is none.

        ``changed``: GPUs that are in another state by then. ``own``: the GPU that the slice leaves and its state before: there both the old and
        the new one must be able to stand for a moment.
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
        free = self.harm.free
        return (
            sum(int(free[self.index[state]]) * len(group) for (state, _pinned), group in self.groups.items())
            >= self.patterns.profiles[profile].size
        )

    def cleared(self, profile: int, moves: int) -> list[_Found]:
        """The best few ways to make a place with exactly so many moves, on different GPUs."""
        key = (profile, moves)
        if key not in self._cleared:
            found = []
            for (state, pinned), group in self.groups.items():
                here = [one for one in self._ways(profile, moves, state, pinned, group[0]) if one is not None]
                if here:
                    found.append(min(here, key=lambda one: one[:3]))
            self._cleared[key] = sorted(found, key=lambda one: one[:3])[:FEW]
        return self._cleared[key]

    def _ways(self, profile: int, moves: int, state: int, pinned: int, gpu: int) -> t.Iterator[_Found | None]:
        before = self.harm.of_state[self.index[state]]
        for leave, slot, after in self.fleet.leaving(state, profile):
            if len(leave) <= moves and not any(pinned >> one & 1 for one in leave):
                harm = self.harm.of_state[self.index[after]] - before
                yield self._resettled(_Found(harm, gpu, slot, (), frozenset((gpu,))), state, after, leave, moves - len(leave))

    def _resettled(self, place: _Found, state: int, after: int, leave: tuple[int, ...], spare: int) -> _Found | None:
        """``place`` with new places for the slices that leave it; exactly ``spare`` more moves make room for one of them."""
        changed, harm, steps, touched = {place.gpu: after}, place.harm, list(place.steps), place.touched
        for one in leave:
            profile = self.patterns.slots[one][0]
            target = self.open(profile, changed, (place.gpu, state))
            if target is None:
                chain = next((each for each in self.cleared(profile, spare) if not each.touched & touched), None) if spare else None
                if chain is None:
                    return None
                target, spare = chain[:3], 0
                steps += chain.steps
                touched |= chain.touched
                # Nothing else goes where the chain has been: its GPUs are known to be good for this slice only.
                changed.update(dict.fromkeys(chain.touched, self._full))
            else:
                changed[target[1]] = changed.get(target[1], self.fleet.states[target[1]]) | 1 << target[2]
                touched |= {target[1]}
            harm += target[0]
            steps.append(_Step(place.gpu, one, target[1], target[2]))
        return None if spare else _Found(harm, place.gpu, place.slot, tuple(steps), touched)

    @property
    def _full(self) -> int:
        """A state to which nothing can be added."""
        return self.fleet.full
