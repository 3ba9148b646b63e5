# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changing what runs on the MIG GPUs of one kind as little as possible: a program over the states of GPUs, with its bounds.

For each group of GPUs in one state it says which part of its slices stays on how many of them, and what joins the parts that stay. What
leaves a GPU and what is new must join somewhere. Goals come one after the other: as many slices as possible served; then the fewest GPUs
under a cap on moves and, with that many, the fewest moves; or the other way round. GPUs that are lost give all their slices up: that is
forced, counts on no cap, and is told apart.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import find_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, Program, SolverError, numpy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.transitions import Additions, Columns, columns_of

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Ints
    from numpy.typing import NDArray

    Floats = NDArray["numpy.float64"]

# What may become of a GPU: all of it open; nothing may join (cordoned); everything must leave (lost, or to be drained).
OPEN, CLOSED, LOST = 0, 1, 2
# Bounds are computed in floating point.
BLUR = 1e-6
# A goal in whole numbers that no solution is found for is given up by so much, then twice that, and so on.
STEPS = 6
# So far from the relaxed answer a whole one is looked for at first; a fleet of so many GPUs is worked through entirely if need be.
NEAR = 3
SMALL = 2_000


@dataclass(frozen=True, eq=False)
class Gpus:
    """GPUs of one kind, numbered from 0 in an order that the caller holds fixed (by name, say); three arrays of the same length.

    ``states``: what stands on each, a state of ``patterns``. ``pinned``: the part of it that must stay. ``roles``: OPEN, CLOSED or LOST.
    ``costs``: shape (GPUs, slots), as how many moves the slice in that slot counts; None where each counts as one.
    """

    patterns: Patterns
    states: Ints
    pinned: Ints
    roles: Ints
    costs: Ints | None = None

    @classmethod
    def of(cls, patterns: Patterns, states: t.Any, pinned: t.Any = 0, roles: t.Any = OPEN, costs: t.Any = None) -> Gpus:
        """From lists or arrays; ``pinned`` and ``roles`` may be one number for all.

        :raises FleetError: a state that this board does not know.
        """
        given = numpy.asarray(states, dtype=numpy.int64)
        known = numpy.isin(given, patterns.states)
        if not known.all():
            raise FleetError(f"GPU {int(known.argmin())} is in no legal state")
        shaped = [numpy.broadcast_to(numpy.asarray(each, dtype=numpy.int64), given.shape) for each in (pinned, roles)]
        dear = None if costs is None else numpy.asarray(costs, dtype=numpy.int64).reshape(len(given), len(patterns.slots))
        return cls(patterns, given, shaped[0] & given, shaped[1], dear)


@dataclass(frozen=True, eq=False)
class Shifts:
    """Slices that get a place, as arrays of one length, a row for each slice.

    ``profile`` (a column of ``patterns.profiles``), ``gpu`` and ``start`` of the new place, and the old place: -1 for what is new.
    """

    profile: Ints
    gpu: Ints
    start: Ints
    old_gpu: Ints
    old_start: Ints


@dataclass(frozen=True, eq=False)
class Replan:
    """What becomes of the GPUs, and how far from the best that can be at most.

    ``kept`` and ``after``: for each GPU the state that stays and the state in the end; ``shifts``: what moves and what is new.
    ``gpus`` are open in the end; no plan within the cap that serves as many slices has fewer than ``gpus_bound``. ``moves``: how many
    slices move that were not forced to; ``cost``: as how many moves these count, which is as many where no costs were given; no plan with
    so many GPUs has less than ``cost_bound``. With the goal ``moves`` it is the other way round. ``forced``: moves off lost GPUs.
    ``unserved``: slices without a place, by profile; no plan has fewer than ``unserved_bound``.
    """

    kept: Ints
    after: Ints
    shifts: Shifts
    gpus: int
    gpus_bound: float
    moves: int
    cost: int
    cost_bound: float
    forced: int
    unserved: Mapping[str, int]
    unserved_bound: float


def replan(
    gpus: Gpus,
    new: Mapping[str, int],
    cap: int | None = None,
    goal: t.Literal["gpus", "moves"] = "gpus",
    limits: Limits | None = None,
) -> Replan:
    """Places for the ``new`` slices (name of a profile -> how many), and moves of those that run.

    ``cap``: at most so many slices move that are not forced to, each counted by its cost; None: no cap.

    :raises FleetError: a profile that the board does not have, a negative number.
    """
    patterns = gpus.patterns
    need = numpy.zeros(len(patterns.profiles), dtype=numpy.int64)
    for name, count in new.items():
        if count < 0:
            raise FleetError(f"{count} slices of {name} cannot be asked for")
        need[patterns.number[find_profile(patterns.geometry, name).name]] += count
    model = _Model(gpus, need, cap, limits or Limits(gap=0.0, nodes=500))
    kept_counts, more_counts, bounds = model.solve(goal)
    return _expand(gpus, model, kept_counts, more_counts, bounds)


@dataclass(frozen=True)
class _Bounds:
    unserved: float
    gpus: float
    cost: float


class _Model:
    """The program of one re-plan. Its columns: kept parts, patterns that join, slices without a place by profile."""

    def __init__(self, gpus: Gpus, need: Ints, cap: int | None, limits: Limits) -> None:
        self.gpus, self.new, self.cap, self.limits = gpus, need, cap, limits
        patterns = gpus.patterns
        self.additions = Additions(patterns)
        is_open = gpus.roles == OPEN
        pairs = numpy.stack([gpus.states[is_open], gpus.pinned[is_open]], axis=1)
        if gpus.costs is not None:
            pairs = numpy.concatenate([pairs, gpus.costs[is_open]], axis=1)
        groups, member, self.sizes = numpy.unique(pairs, axis=0, return_inverse=True, return_counts=True)
        self.groups: list[tuple[int, int]] = [(int(state), int(pinned)) for state, pinned, *_costs in groups]
        self.members = numpy.flatnonzero(is_open), member.ravel()
        self.columns: Columns = columns_of(self.additions, self.groups, moving=cap != 0)
        self._left = self.columns.left if gpus.costs is None else self._cost_of(groups[:, 2:])
        rows = [patterns.index[state] for state in gpus.states[gpus.roles == LOST].tolist()]
        self.forced: Ints = patterns.counts[rows].sum(axis=0) if rows else numpy.zeros_like(need)
        # What stands on a closed GPU stays, and the GPU stays in use.
        self.always = int(((gpus.roles == CLOSED) & (gpus.states != 0)).sum())

    def _cost_of(self, costs: Ints) -> Ints:
        """As how many moves the slices count that go, of each column."""
        group = self.columns.group
        gone = numpy.asarray([state for state, _pinned in self.groups], dtype=numpy.int64)[group] & ~self.columns.part
        result: Ints = ((gone[:, None] >> numpy.arange(costs.shape[1]) & 1) * costs[group]).sum(axis=1)
        return result

    @property
    def _widths(self) -> tuple[int, int, int]:
        return len(self.columns.part), len(self.columns.room), len(self.new)

    @property
    def opened(self) -> Floats:
        """What each column adds to the GPUs in use."""
        empty = self.additions.kind(0)
        return numpy.concatenate([self.columns.part != 0, self.columns.room == empty, numpy.zeros(len(self.new))]).astype(float)

    @property
    def moved(self) -> Floats:
        """What each column adds to the moves."""
        _kept, joined, profiles = self._widths
        return numpy.concatenate([self._left, numpy.zeros(joined + profiles)]).astype(float)

    @property
    def missing(self) -> Floats:
        """What each column adds to the slices without a place."""
        kept, joined, profiles = self._widths
        return numpy.concatenate([numpy.zeros(kept + joined), numpy.ones(profiles)])

    def _program(self, goal: Floats, ceilings: list[tuple[Floats, float]], box: tuple[Floats, Floats] | None = None) -> Program:
        """Minimise ``goal`` under (weights, most) of each ceiling; ``box``: narrower bounds of the columns."""
        columns, program = self.columns, Program()
        total = self.new + self.forced
        # A slice that runs and could stay never loses its place for a new one; one that is forced to go may.
        upper = numpy.concatenate([numpy.full(sum(self._widths[:2]), math.inf), total.astype(float)])
        lower = numpy.zeros(len(upper))
        if box is not None:
            lower, upper = box[0], numpy.minimum(upper, box[1])
        every = program.add_columns(sum(self._widths), cost=goal, lower=lower, upper=upper, whole=True)
        kept, joined, missing = numpy.split(every, numpy.cumsum(self._widths)[:2])
        rows = program.add_rows(len(self.groups), lower=self.sizes, upper=self.sizes)
        program.add_entries(rows[columns.group], kept)
        kinds = program.add_rows(len(self.additions.choices), upper=0.0)
        program.add_entries(kinds[columns.kind], kept, -1.0)
        program.add_entries(kinds[columns.room], joined)
        placed = program.add_rows(len(total), lower=total)
        program.add_entries(placed[None, :], joined[:, None], columns.more)
        program.add_entries(placed[None, :], kept[:, None], -columns.gone)
        program.add_entries(placed, missing)
        for weights, ceiling in ceilings:
            row = program.add_rows(1, upper=ceiling)
            program.add_entries(row, every, weights)
        return program

    def solve(self, goal: str) -> tuple[Ints, Ints, _Bounds]:
        """(how often each kept part, how often each pattern joins, bounds)."""
        ceilings: list[tuple[Floats, float]] = []
        if self.cap is not None and self.cap:
            ceilings.append((self.moved, float(self.cap)))
        unserved, unserved_bound = 0.0, 0.0
        if not self._roomy():
            found = self._best(self.missing, ceilings)
            unserved, unserved_bound = round(found.objective), found.bound
        first, second = (self.opened, self.moved) if goal == "gpus" else (self.moved, self.opened)
        ceilings.append((self.missing, float(unserved)))
        relaxed = self._program(first, ceilings).solve(self.limits, relaxed=True)
        outcome = self._second(first, second, ceilings, math.ceil(relaxed.objective - BLUR))
        counts = numpy.rint(outcome.values).astype(numpy.int64)
        kept, joined, _missing = numpy.split(counts, numpy.cumsum(self._widths)[:2])
        bounds = (relaxed.objective, outcome.bound) if goal == "gpus" else (outcome.bound, relaxed.objective)
        return kept, joined, _Bounds(unserved_bound, bounds[0] + self.always, bounds[1])

    def _roomy(self) -> bool:
        """Are there enough empty GPUs for everything without a look at the others?"""
        empty = sum(int(size) for (state, _pinned), size in zip(self.groups, self.sizes, strict=True) if not state)
        return int((self.new + self.forced).sum()) <= empty

    def _second(self, first: Floats, second: Floats, ceilings: list[tuple[Floats, float]], least: int) -> Outcome:
        """The best for the second goal when the first is held at its bound; where nothing is found there, a little above."""
        slack, error = 0, SolverError("no plan within the limits")
        for step in range(STEPS):
            try:
                return self._best(second, [*ceilings, (first, float(least + slack))])
            except SolverError as failed:
                error = failed
            slack = 2**step
        raise error

    def _best(self, goal: Floats, ceilings: list[tuple[Floats, float]]) -> Outcome:
        """The fewest, in whole numbers, with the bound that the relaxed program proves.

        First near the relaxed answer, which is nearly whole: with thousands of GPUs in a state the whole program can take minutes, and its
        neighbourhood does not. Only where that is not as good as the bound, and the fleet is small, everywhere.
        """
        relaxed = self._program(goal, ceilings).solve(self.limits, relaxed=True)
        least = math.ceil(relaxed.objective - BLUR)
        box = (numpy.maximum(0, numpy.floor(relaxed.values) - NEAR), numpy.where(relaxed.reduced > 1, 0, numpy.ceil(relaxed.values) + NEAR))
        near: Outcome | None = None
        try:
            near = self._program(goal, ceilings, box).solve(self.limits)
        except SolverError:
            if int(self.sizes.sum()) > SMALL:
                raise
        if near is None or (near.objective > least + BLUR and int(self.sizes.sum()) <= SMALL):
            return self._program(goal, ceilings).solve(self.limits)
        return replace(near, bound=float(least))


def _expand(gpus: Gpus, model: _Model, kept_counts: Ints, more_counts: Ints, bounds: _Bounds) -> Replan:
    """From how many of each to which: GPUs in their order, parts that keep the most first."""
    columns = model.columns
    kept = numpy.where(gpus.roles == LOST, 0, gpus.states)
    kind = numpy.full(len(kept), -1, dtype=numpy.int64)
    places, member = model.members
    order = numpy.lexsort((columns.part, columns.left, columns.group))
    # Members of a group lie together in their order; the columns of a group are worked through beside them.
    mine = places[numpy.argsort(member, kind="stable")]
    chosen = numpy.repeat(order, kept_counts[order])
    kept[mine], kind[mine] = columns.part[chosen], columns.kind[chosen]
    target = kept.copy()
    dropped = kept != gpus.states
    for number in numpy.unique(columns.room).tolist():
        here = numpy.flatnonzero(kind == number)
        # Where nothing has to leave first comes first: those places are free at once. Then by what is there, not by the GPU's number:
        # how GPUs are numbered changes nothing but the numbers.
        here = here[numpy.lexsort((kept[here], gpus.states[here], dropped[here]))]
        joins = numpy.flatnonzero(columns.room == number)
        which = numpy.repeat(joins, more_counts[joins])
        _join(model, target, here[: len(which)], which)
    return _assigned(gpus, model, kept, target, int(model.moved[: len(kept_counts)] @ kept_counts), bounds)


def _join(model: _Model, target: Ints, here: Ints, which: Ints) -> None:
    """Put patterns on the GPUs ``here``: their state in ``target`` changes."""
    pairs, member = numpy.unique(numpy.stack([target[here], which], axis=1), axis=0, return_inverse=True)
    after = [model.additions.joined(int(state), model.columns.more[int(column)]) for state, column in pairs]
    target[here] = numpy.asarray(after, dtype=numpy.int64)[member.ravel()]


def _assigned(gpus: Gpus, model: _Model, kept: Ints, target: Ints, cost: int, bounds: _Bounds) -> Replan:
    """Who takes which of the places that are there: what runs takes those that are free at once, what is new may wait for the others."""
    patterns = gpus.patterns
    memory: dict[int, int] = {state: model.additions.memory(state) for state in numpy.unique(gpus.states).tolist()}
    states, member = numpy.unique(gpus.states, return_inverse=True)
    taken = numpy.asarray([memory[state] for state in states.tolist()], dtype=numpy.int64)[member.ravel()]
    left_from, places = _slots(patterns, gpus.states & ~kept), _slots(patterns, target & ~kept)
    # GPUs in which the same happens are equal, whatever their numbers.
    _different, alike = numpy.unique(numpy.stack([gpus.states, kept, target], axis=1), axis=0, return_inverse=True)
    alike = alike.ravel()
    after, unserved, rows = kept.copy(), {}, []
    for column, profile in enumerate(patterns.profiles):
        (old_gpu, old_start, _old_slot), (gpu, start, slot) = left_from[column], places[column]
        # Should places be short, it is the forced ones and then the new ones that wait.
        first = numpy.argsort(gpus.roles[old_gpu] == LOST, kind="stable")
        old_gpu, old_start = old_gpu[first], old_start[first]
        wanted = len(old_gpu) + int(model.new[column])
        own = ((1 << profile.size) - 1) << start
        order = numpy.lexsort((start, gpu, alike[gpu], taken[gpu] & own != 0))[:wanted]
        gpu, start, slot = gpu[order], start[order], slot[order]
        numpy.bitwise_or.at(after, gpu, numpy.left_shift(1, slot))
        if len(gpu) < wanted:
            unserved[profile.name] = wanted - len(gpu)
        new = numpy.full(max(0, len(gpu) - len(old_gpu)), -1, dtype=numpy.int64)
        old = [numpy.concatenate([each[: len(gpu)], new]) for each in (old_gpu, old_start)]
        rows.append((numpy.full(len(gpu), column, dtype=numpy.int64), gpu, start, *old))
    shifts = Shifts(*(numpy.concatenate(each) for each in zip(*rows, strict=True)))
    forced = int(model.forced.sum())
    moves = int(sum(len(left_from[column][0]) for column in range(len(patterns.profiles)))) - forced
    return Replan(kept, after, shifts, int((after != 0).sum()), bounds.gpus, moves, cost, bounds.cost, forced, unserved, bounds.unserved)


def _slots(patterns: Patterns, states: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """For each profile (GPU, start, slot) of all its slices in these states, in order of GPU and start."""
    found = []
    for column in range(len(patterns.profiles)):
        slots = [(slot, start) for slot, (profile, start) in enumerate(patterns.slots) if profile == column]
        gpus = [numpy.flatnonzero(states >> slot & 1) for slot, _start in slots]
        gpu = numpy.concatenate(gpus)
        start = numpy.repeat([start for _slot, start in slots], [len(each) for each in gpus])
        slot = numpy.repeat([slot for slot, _start in slots], [len(each) for each in gpus])
        order = numpy.lexsort((start, gpu))
        found.append((gpu[order], start[order], slot[order]))
    return found
