# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slices for any number of services on the fewest empty GPUs of one kind: a cutting-stock problem over the patterns of a board.

Its size does not depend on the number of services, and its linear relaxation is nearly whole, so that the fewest GPUs are known and proven
in milliseconds for ten services as for a million. Of all plans with the fewest GPUs, one that leaves the most useful room is taken.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, find_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, patterns_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, Program, SolverError, numpy

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Ints
    from numpy.typing import NDArray

    Floats = NDArray["numpy.float64"]

# Bounds are computed in floating point; a bound of 3.0000000004 GPUs is one of 3.
BLUR = 1e-6
# Of a pattern that stands on very many GPUs, so many are left open for the choice of useful room; the others are settled.
OPEN = 40


@dataclass(frozen=True, eq=False)
class Packed:
    """GPUs in ``runs`` of equal layouts: (slices, number of GPUs). The first run has the GPUs numbered from 0, and so on.

    ``bound``: no plan has fewer GPUs than this, rounded up. ``prices`` prove it: no legal layout's slices are worth more than 1 together,
    and all that is asked for is worth ``bound``. ``free``: what the room that is left is good for (``Patterns.useful``, summed up).
    """

    patterns: Patterns
    runs: tuple[tuple[tuple[Slice, ...], int], ...]
    bound: float
    prices: Mapping[str, float]
    free: int

    @property
    def gpus(self) -> int:
        """How many GPUs are taken."""
        return sum(count for _slices, count in self.runs)

    @property
    def least(self) -> int:
        """The least number of GPUs that the bound allows."""
        return math.ceil(self.bound - BLUR)

    def places(self, wanted: Sequence[str] | Ints) -> tuple[Ints, Ints]:
        """(number of the GPU, start) of each service: two arrays as long as ``wanted``.

        ``wanted``: one name of a profile for each service, or one column of ``patterns.profiles``. The services of one profile take its
        slices in order of GPU and start.

        :raises FleetError: more slices of a profile than were packed.
        """
        columns = columns_of(self.patterns, wanted)
        gpus, starts = numpy.empty(len(columns), dtype=numpy.int64), numpy.empty(len(columns), dtype=numpy.int64)
        slots = self._slots()
        order = numpy.argsort(columns, kind="stable")
        begins = numpy.searchsorted(columns[order], numpy.arange(len(slots) + 1))
        for column, (gpu, start) in enumerate(slots):
            services = order[begins[column] : begins[column + 1]]
            if len(services) > len(gpu):
                raise FleetError(f"{len(services)} services want {self.patterns.profiles[column].name} and {len(gpu)} were packed")
            gpus[services], starts[services] = gpu[: len(services)], start[: len(services)]
        return gpus, starts

    def _slots(self) -> list[tuple[Ints, Ints]]:
        """For each profile the GPU and the start of all its slices, in this order."""
        number = self.patterns.number
        parts: list[list[tuple[Ints, Ints]]] = [[] for _profile in self.patterns.profiles]
        before = 0
        for slices, count in self.runs:
            gpus = numpy.arange(before, before + count)
            before += count
            starts: list[list[int]] = [[] for _profile in parts]
            for one in slices:
                starts[number[one.profile]].append(one.start)
            for part, mine in zip(parts, starts, strict=True):
                part.append((numpy.repeat(gpus, len(mine)), numpy.tile(numpy.asarray(mine, dtype=numpy.int64), count)))
        none = numpy.zeros(0, dtype=numpy.int64)
        return [(numpy.concatenate([none, *(g for g, _s in part)]), numpy.concatenate([none, *(s for _g, s in part)])) for part in parts]


def columns_of(patterns: Patterns, wanted: Sequence[str] | Ints) -> Ints:
    """The column of each wanted profile. FleetError for a name that the board does not have."""
    if isinstance(wanted, numpy.ndarray):
        return wanted.astype(numpy.int64)
    number = {name: patterns.number[find_profile(patterns.geometry, name).name] for name in sorted(set(wanted))}
    return numpy.fromiter(map(number.__getitem__, wanted), dtype=numpy.int64, count=len(wanted))


def pack(geometry: Geometry, demand: Mapping[str, int], limits: Limits | None = None) -> Packed:
    """The fewest GPUs for ``demand``: name of a profile -> how many slices of it.

    :raises FleetError: a name that the board does not have, a profile that it can never hold, a negative number.
    """
    patterns = patterns_of(geometry, demand)
    need = numpy.zeros(len(patterns.profiles), dtype=numpy.int64)
    for name, count in demand.items():
        if count < 0:
            raise FleetError(f"{count} slices of {name} cannot be asked for")
        need[patterns.number[find_profile(geometry, name).name]] += count
    useless = (need > 0) & (patterns.counts.max(axis=0) == 0)
    if useless.any():
        raise FleetError(f"no layout of this board holds {patterns.profiles[int(useless.argmax())].name}")
    if not need.any():
        return Packed(patterns, (), 0.0, dict.fromkeys(patterns.number, 0.0), 0)
    choices = patterns.multisets[0][patterns.maximal]
    relaxed = _cover(choices, need, None, relaxed=True)
    least = math.ceil(relaxed.objective - BLUR)
    covered = _covered(choices, need, limits, relaxed)
    kinds, counts = _roomiest(patterns, need, covered, limits)
    order = numpy.lexsort((*(-patterns.multisets[0][kinds]).T, patterns.useful[patterns.multisets[1][kinds]]))
    runs = tuple(
        (patterns.slices_of(int(patterns.states[patterns.multisets[1][kinds[one]]])), int(counts[one])) for one in order if counts[one]
    )
    free = int(patterns.useful[patterns.multisets[1][kinds]] @ counts)
    prices = {name: float(relaxed.duals[column]) for name, column in patterns.number.items()}
    return Packed(patterns, runs, min(relaxed.objective, float(least)), prices, free)


def prices_of(patterns: Patterns, need: Ints) -> Floats:
    """What share of a GPU a slice of each profile is worth when so many of each are packed: no layout is worth more than 1 together."""
    return _cover(patterns.multisets[0][patterns.maximal], need, None, relaxed=True).duals


def _cover(choices: Ints, need: Ints, limits: Limits | None, *, relaxed: bool) -> Outcome:
    """How often each pattern is cut so that no profile has less than is needed: fewest GPUs."""
    program = Program()
    columns = program.add_columns(len(choices), cost=1.0, whole=True)
    rows = program.add_rows(len(need), lower=need)
    program.add_entries(rows[None, :], columns[:, None], choices)
    return program.solve(limits, relaxed=relaxed)


def _covered(choices: Ints, need: Ints, limits: Limits | None, relaxed: Outcome) -> Ints:
    """The same in whole numbers; where no end is found within the limits, the relaxed answer rounded up: a few GPUs too many at most."""
    try:
        return _whole(_cover(choices, need, limits, relaxed=False))
    except SolverError:
        return numpy.ceil(relaxed.values - BLUR).astype(numpy.int64)


def _whole(outcome: Outcome) -> Ints:
    counts: Ints = numpy.rint(outcome.values).astype(numpy.int64)
    return counts


def _roomiest(patterns: Patterns, need: Ints, covered: Ints, limits: Limits | None) -> tuple[Ints, Ints]:
    """(kinds, counts): rows of ``multisets`` and how often each, exactly as many slices as are needed on as many GPUs as ``covered`` has.

    Of all such, the most useful room. Far from the end there is no choice: all but ``OPEN`` GPUs of each pattern of ``covered`` stay as
    they are, as far as they hold nothing that is too much.
    """
    multisets, states = patterns.multisets
    settled: Ints = numpy.maximum(0, covered - OPEN)
    while (settled @ multisets[patterns.maximal] > need).any():
        settled //= 2
    rest: Ints = need - settled @ multisets[patterns.maximal]
    program = Program()
    columns = program.add_columns(len(multisets), cost=-patterns.useful[states].astype(float), whole=True)
    rows = program.add_rows(len(need), lower=rest, upper=rest)
    program.add_entries(rows[None, :], columns[:, None], multisets)
    total = int((covered - settled).sum())
    row = program.add_rows(1, lower=total, upper=total)
    program.add_entries(row, columns)
    counts: Ints
    try:
        counts = _whole(program.solve(limits))
    except SolverError:
        counts = _trimmed(patterns, covered - settled, rest)
    counts[patterns.maximal] += settled
    return numpy.arange(len(multisets)), counts


def _trimmed(patterns: Patterns, covered: Ints, need: Ints) -> Ints:
    """``covered`` without what is too much, taken from as few GPUs as it goes: the way when the choice of room finds no end."""
    multisets = patterns.multisets[0]
    row = {tuple(counts): number for number, counts in enumerate(multisets.tolist())}
    counts = numpy.zeros(len(multisets), dtype=numpy.int64)
    counts[patterns.maximal] = covered
    excess = covered @ multisets[patterns.maximal] - need
    while excess.any():
        gains = numpy.where(counts > 0, numpy.minimum(multisets, excess).sum(axis=1), 0)
        best = int(gains.argmax())
        less = multisets[best] - numpy.minimum(multisets[best], excess)
        counts[best] -= 1
        counts[row[tuple(less.tolist())]] += 1
        excess -= multisets[best] - less
    return counts
