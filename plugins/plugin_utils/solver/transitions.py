# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may become of a GPU that is in use: which part of its slices stays, and what may join that part.

A fleet of 100,000 GPUs is in a few hundred states, and parts of different states that leave the same room are alike: what can join them is
worked out once. So a re-plan is a program over some thousand columns, however many GPUs there are.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, undominated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Ints


class Additions:
    """For the states of a board: the largest patterns that may join each, and where their slices would stand."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        self._memory = [((1 << patterns.profiles[profile].size) - 1) << start for profile, start in patterns.slots]
        # Of most profiles a board never holds too many: their starts, or its compute slices, end before that.
        compute = patterns.geometry.compute_slices
        most = [min(len(profile.starts), compute // profile.slices) for profile in patterns.profiles]
        self._limited = [column for column, profile in enumerate(patterns.profiles) if profile.max < most[column]]
        self._rooms: dict[tuple[int, ...], int] = {}
        self._kinds: dict[bytes, int] = {}
        self.choices: list[Ints] = []

    def memory(self, state: int) -> int:
        """The memory slices that a state takes, one bit for each."""
        taken = 0
        for slot, own in enumerate(self._memory):
            if state >> slot & 1:
                taken |= own
        return taken

    def kind(self, state: int) -> int:
        """The number of a state's kind: states of one kind have the same room.

        ``choices[kind]`` are the patterns that may join, shape (choices, profiles), none of them within another.
        """
        row = self.patterns.index[state]
        counts = self.patterns.counts[row]
        room = (self.memory(state), int(counts @ self.patterns.compute), *(int(counts[column]) for column in self._limited))
        if room not in self._rooms:
            more = numpy.unique(self.patterns.counts[self._above(state)] - counts, axis=0)
            more = more[undominated(more)]
            more = more[more.any(axis=1)]
            key = more.tobytes()
            if key not in self._kinds:
                self._kinds[key] = len(self.choices)
                self.choices.append(more)
            self._rooms[room] = self._kinds[key]
        return self._rooms[room]

    def _above(self, state: int) -> Ints:
        """Rows of the states that have all slices of this one."""
        return numpy.flatnonzero((self.patterns.states & state) == state)

    def joined(self, state: int, more: Ints) -> int:
        """The state after slices of the pattern ``more`` have joined: what leaves the most useful room, then the lowest starts."""
        rows = self._above(state)
        same = rows[(self.patterns.counts[rows] == self.patterns.counts[self.patterns.index[state]] + more).all(axis=1)]
        return int(self.patterns.states[same[int(self.patterns.useful[same].argmax())]])


def parts(state: int, fixed: int = 0) -> list[int]:
    """All parts of a state that have at least ``fixed``, the whole state first."""
    loose, found, part = state & ~fixed, [], state & ~fixed
    while True:
        found.append(part | fixed)
        if not part:
            return found
        part = (part - 1) & loose


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a re-plan's program, as arrays.

    Kept: ``group`` (which group of equal GPUs), ``part`` (the state that stays), ``kind`` (of that state), ``left`` (how many slices go),
    ``gone`` (shape (columns, profiles), which). Joined: ``room`` (the kind of state that they join), ``more`` (shape (columns, profiles)).
    """

    group: Ints
    part: Ints
    kind: Ints
    left: Ints
    gone: Ints
    room: Ints
    more: Ints


def columns_of(additions: Additions, groups: t.Sequence[tuple[int, int]], *, moving: bool) -> Columns:
    """The columns for groups of (state, what of it is pinned); ``moving`` False: everything stays."""
    patterns = additions.patterns
    group, part = [], []
    for number, (state, pinned) in enumerate(groups):
        here = parts(state, pinned) if moving else [state]
        group += [number] * len(here)
        part += here
    kinds = {state: additions.kind(state) for state in sorted(set(part))}
    row = numpy.asarray([patterns.index[state] for state in part], dtype=numpy.int64)
    before = numpy.asarray([patterns.index[groups[number][0]] for number in group], dtype=numpy.int64)
    gone = patterns.counts[before] - patterns.counts[row]
    used = sorted(set(kinds.values()))
    more = [additions.choices[kind] for kind in used]
    none = numpy.zeros((0, len(patterns.profiles)), dtype=numpy.int64)
    return Columns(
        group=numpy.asarray(group, dtype=numpy.int64),
        part=numpy.asarray(part, dtype=numpy.int64),
        kind=numpy.asarray([kinds[state] for state in part], dtype=numpy.int64),
        left=gone.sum(axis=1),
        gone=gone,
        room=numpy.repeat(numpy.asarray(used, dtype=numpy.int64), [len(each) for each in more]),
        more=numpy.concatenate([none, *more]),
    )
