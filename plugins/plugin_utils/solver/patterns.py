# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every way to cut one kind of board with MIG, as arrays: what the integer programs over layouts are made of.

A *slot* is a profile at a start. A *state* is a legal set of slots, written as a whole number with one bit for each. A *pattern* is how
often each profile is there, wherever it stands; of two patterns, one with no fewer slices of any profile *dominates* the other.
An A100 with its six plain profiles has 723 states, 78 patterns and 28 that none dominates: packing a fleet is a program over those.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, find_profile, name_parts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

# A state is one bit a slot in a signed number of 64 bits. The largest board has 34 slots, all variants of its profiles included.
MOST_SLOTS = 62


@dataclass(frozen=True, eq=False)
class Patterns:
    """The states of one geometry with some of its profiles. Arrays are by state, in the order of ``states``, or by profile.

    ``slots``: (number of the profile, start), in order of start. ``states``: shape (states,), ascending, so that the empty one comes first.
    ``counts``: shape (states, profiles), how many slices of each profile a state holds.
    """

    geometry: Geometry
    profiles: tuple[Profile, ...]
    slots: tuple[tuple[int, int], ...]
    states: Ints
    counts: Ints

    @cached_property
    def index(self) -> dict[int, int]:
        """State -> its row."""
        return {state: row for row, state in enumerate(self.states.tolist())}

    @cached_property
    def number(self) -> dict[str, int]:
        """Name of a profile -> its column."""
        return {profile.name: column for column, profile in enumerate(self.profiles)}

    @cached_property
    def sizes(self) -> Ints:
        """Memory slices of each profile."""
        return numpy.asarray([profile.size for profile in self.profiles], dtype=numpy.int64)

    @cached_property
    def compute(self) -> Ints:
        """Compute slices of each profile."""
        return numpy.asarray([profile.slices for profile in self.profiles], dtype=numpy.int64)

    @cached_property
    def within(self) -> Bools:
        """Shape (states, states): is the row's state a part of the column's?"""
        result: Bools = (self.states[:, None] & self.states[None, :]) == self.states[:, None]
        return result

    @cached_property
    def useful(self) -> Ints:
        """What the room beside each state is still good for: the most that slices which could join it are worth.

        A slice is worth its memory slices squared and its compute slices squared: one large slice is so preferred to two of half its size,
        and 4g to 3g, which takes as much memory.
        """
        worth = self.counts @ (self.sizes * self.sizes + self.compute * self.compute)
        result: Ints = numpy.where(self.within, worth[None, :], -1).max(axis=1) - worth
        return result

    @cached_property
    def multisets(self) -> tuple[Ints, Ints]:
        """(patterns, states): the distinct rows of ``counts``, and for each the row of the state that leaves the most useful room.

        Of states that are equal in this, the one with the lowest starts.
        """
        order = numpy.lexsort((self.states, -self.useful))
        different, first = numpy.unique(self.counts[order], axis=0, return_index=True)
        return different, order[first]

    @cached_property
    def maximal(self) -> Ints:
        """Rows of ``multisets`` that no other dominates."""
        return undominated(self.multisets[0])

    @cached_property
    def steps(self) -> tuple[Ints, Ints, Ints]:
        """(row, slot, row after): every way to put one more slice on a GPU."""
        slots = numpy.arange(len(self.slots))
        more = self.states[:, None] | (1 << slots)[None, :]
        there = numpy.minimum(numpy.searchsorted(self.states, more), len(self.states) - 1)
        row, slot = numpy.nonzero((self.states[there] == more) & (more != self.states[:, None]))
        return row, slot, there[row, slot]

    def state_of(self, slices: Iterable[Slice]) -> int:
        """The state of a set of slices.

        :raises FleetError: a slice of another board, or a set that is not legal.
        """
        state = 0
        for one in slices:
            slot = self._slot.get((find_profile(self.geometry, one.profile).name, one.start))
            if slot is None or state >> slot & 1:
                raise FleetError(f"{one} cannot stand here")
            state |= 1 << slot
        if state not in self.index:
            raise FleetError("these slices cannot stand together")
        return state

    @cached_property
    def _slot(self) -> dict[tuple[str, int], int]:
        return {(self.profiles[profile].name, start): slot for slot, (profile, start) in enumerate(self.slots)}

    def states_of(self, gpus: int, profiles: t.Any, on: t.Any, starts: t.Any) -> Ints:
        """The state of each of ``gpus`` GPUs, from one row for each slice: the column of its profile, the number of its GPU, its start.

        :raises FleetError: a start where the profile may not begin, slices that cannot stand together; the first GPU with such is named.
        """
        table = numpy.full((len(self.profiles), self.geometry.memory_slices), -1, dtype=numpy.int64)
        for slot, (profile, start) in enumerate(self.slots):
            table[profile, start] = slot
        place, column = numpy.asarray(on, dtype=numpy.int64), numpy.asarray(profiles, dtype=numpy.int64)
        slots = table[column, numpy.asarray(starts, dtype=numpy.int64)]
        bits = numpy.where(slots < 0, 0, numpy.left_shift(1, numpy.maximum(slots, 0)))
        states = numpy.zeros(gpus, dtype=numpy.int64)
        numpy.bitwise_or.at(states, place, bits)
        rows = numpy.minimum(numpy.searchsorted(self.states, states), len(self.states) - 1)
        there = numpy.where(self.states[rows] == states, self.counts[rows].sum(axis=1), -1)
        wrong = there != numpy.bincount(place, minlength=gpus)
        if wrong.any():
            raise FleetError(f"the slices of GPU {int(wrong.argmax())} cannot stand together")
        return states

    def beside(self, state: int) -> Ints:
        """Shape (states that contain ``state``, profiles): how many slices of each profile each of them has more."""
        result: Ints = self.counts[(self.states & state) == state] - self.counts[self.index[state]]
        return result

    def slices_of(self, state: int) -> tuple[Slice, ...]:
        """The slices of a state, in order of start."""
        taken = (place for slot, place in enumerate(self.slots) if state >> slot & 1)
        return tuple(Slice(start, self.profiles[profile].name) for profile, start in taken)


def undominated(rows: Ints) -> Ints:
    """Numbers of the rows that no other row is at least equal to in every column; the rows must be distinct."""
    order = numpy.argsort(-rows.sum(axis=1), kind="stable")
    kept: list[int] = []
    for one in order.tolist():
        if not kept or not (rows[kept] >= rows[one]).all(axis=1).any():
            kept.append(one)
    return numpy.sort(numpy.asarray(kept, dtype=numpy.int64))


def patterns_of(geometry: Geometry, names: Iterable[str] | None = None) -> Patterns:
    """The states of a board with its plain profiles and those of ``names``; None: with every profile that it has.

    A plain profile's name has no ``+me`` or the like. Without the others, as long as nobody asks for them, there are far fewer states
    (723 instead of 2,319 for an A100).

    :raises FleetError: a name that the board does not have.
    """
    if names is None:
        return _patterns(geometry, tuple(sorted(geometry.profiles, key=_by_size)))
    asked = {find_profile(geometry, name).name for name in set(names)}
    return _patterns(
        geometry,
        tuple(sorted((each for each in geometry.profiles if each.name in asked or not name_parts(each.name)[2]), key=_by_size)),
    )


def _by_size(profile: Profile) -> tuple[int, int, str]:
    return (profile.slices, profile.size, profile.name)


@lru_cache(maxsize=64)
def _patterns(geometry: Geometry, profiles: tuple[Profile, ...]) -> Patterns:
    slots = sorted(
        (start, number)
        for number, profile in enumerate(profiles)
        for start in set(profile.starts)
        if 0 <= start <= geometry.memory_slices - profile.size
    )
    if len(slots) > MOST_SLOTS:
        raise FleetError(f"a board with {len(slots)} places for slices is more than the {MOST_SLOTS} that can be planned")
    # (state, memory that is taken, compute slices, how often each profile is there)
    found: list[tuple[int, int, int, tuple[int, ...]]] = [(0, 0, 0, (0,) * len(profiles))]
    for slot, (start, number) in enumerate(slots):
        profile = profiles[number]
        own = ((1 << profile.size) - 1) << start
        found += [
            (state | 1 << slot, taken | own, compute + profile.slices, _one_more(counts, number))
            for state, taken, compute, counts in found
            if not taken & own and compute + profile.slices <= geometry.compute_slices and counts[number] < profile.max
        ]
    found.sort()
    return Patterns(
        geometry,
        profiles,
        tuple((number, start) for start, number in slots),
        numpy.asarray([entry[0] for entry in found], dtype=numpy.int64),
        numpy.asarray([entry[3] for entry in found], dtype=numpy.int64).reshape(len(found), len(profiles)),
    )


def _one_more(counts: Sequence[int], number: int) -> tuple[int, ...]:
    return (*counts[:number], counts[number] + 1, *counts[number + 1 :])
