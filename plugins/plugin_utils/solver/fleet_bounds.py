# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bounds closer than the whole fleet's linear program gives them: cuts of each team (``fleet_cuts``), then branches.

Half a replica of a high priority here and half a one there, in two teams whose quotas have no room for a whole one, look like one replica
that is held, and the program promises a hundred lower ones for it. So the counts of a priority in a team are made whole numbers by branch
and bound. All of it happens in a copy of the program: the plan itself is made from the program without it, whose solutions have fewer
fractional numbers.
"""

from __future__ import annotations

import heapq
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_cuts import TeamCut, team_cuts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import FleetProgram
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# A count that is so near a whole number is one.
WHOLE = 1e-4
# Cuts that take less than this share off the objective are not worth their row.
CUT_FROM = 1e-6
# Branches solved in one stage at most, and one more; how often each of them looks for patterns.
BRANCHES, ROUNDS = 8, 3
# A branch mostly takes a few dozen steps; one in which one replica more of a team turns everything round may take tens of thousands, and is
# left as it is then. In a program with so many columns a third as many steps take as long.
PATIENCE, LARGE, LESS_PATIENCE = Limits(iterations=1_500), 10_000, Limits(iterations=500)
# What a missing replica of a held priority costs in a branch, more than one is ever worth: so every branch has a solution, and prices at
# which patterns are sought. One of the first may be worth more than 10,000 of the last.
LACK = 1e6

# (priority, team) -> the least and the most replicas that the team may have of it.
Counts = Mapping[tuple[int, int], tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Part:
    """All plans within ``counts``: none has an objective below ``value``. ``duals`` of the program's rows, from the solution among them.

    ``split``: (priority, team, count) that is fractional in that solution; None when none is, or when the part is left as it is.
    """

    value: float
    duals: Floats
    counts: Counts = field(default_factory=dict)
    split: tuple[int, int, float] | None = None


class Bounds:
    """The bounds of one program. ``most``: by priority and team, the replicas that its quota has room for; ``cuts``: rows that hold for all
    plans."""

    def __init__(self, program: FleetProgram) -> None:
        self.program = program
        self.most: dict[tuple[int, int], float] = {}
        self.cuts: list[TeamCut] = []

    def parts(self, outcome: Outcome, slack: float, cost: Floats, levels: list[int], roots: list[Part]) -> list[Part]:
        """Parts that together hold every plan within ``roots`` (all plans, if empty), the one with the lowest value first.

        :param outcome: the program's solution, with ``cost`` by column. :param slack: what patterns not known yet could bring at most.
        :param levels: the priorities that are held, greatest first; only teams' counts of these are made whole.
        """
        whole = Part(outcome.objective - slack, outcome.duals)
        options, amount = self.program.options, self.program.amount(outcome)
        found = team_cuts(options, *self._worth(outcome, cost), amount, CUT_FROM * max(1.0, abs(outcome.objective)))
        self.cuts += found
        if not found and not roots and self._broken(amount, levels) is None:
            return [whole]
        try:
            side = _Side(self.program, cost, self.cuts, self.most)
            counts = [one.counts for one in roots or [whole]]
            tried = self._parts(side, counts, levels, whole)
            tried += [replace(whole, counts=each) for each in counts[len(tried) :]]
        except SolverError:
            return [whole]
        heap = [(one.value, number, one) for number, one in enumerate(tried)]
        heapq.heapify(heap)
        number = len(heap)
        while number < len(tried) + BRANCHES and (best := heap[0][2]).split is not None:
            heapq.heappop(heap)
            level, team, count = best.split
            least, greatest = best.counts.get((level, team), (-numpy.inf, numpy.inf))
            halves = (least, float(numpy.floor(count))), (float(numpy.ceil(count)), greatest)
            solved = self._parts(side, [{**best.counts, (level, team): limits} for limits in halves], levels, best)
            # If not both are, it is bounded no closer, and a plan is sought in all of it: one half may hold none.
            for part in solved if len(solved) == len(halves) else [replace(best, split=None)]:
                heapq.heappush(heap, (part.value, number, part))
                number += 1
        return [one for _value, _number, one in sorted(heap, key=lambda each: each[:2])]

    def _parts(self, side: _Side, counts: list[Counts], levels: list[int], within: Part) -> list[Part]:
        """The plans within each of these counts, up to the first that cannot be solved. What is known of the larger part ``within`` holds
        for them."""
        found: list[Part] = []
        for each in counts:
            try:
                outcome, slack = side.solve(each)
            except SolverError:
                # As long as this one is left as it is, the others say nothing.
                break
            value, split = outcome.objective - slack, self._broken(self.program.amount(outcome), levels)
            # The better bound, with the prices that belong to it.
            found.append(Part(value, outcome.duals, each, split) if value >= within.value else replace(within, counts=each, split=split))
        return found

    def _worth(self, outcome: Outcome, cost: Floats) -> tuple[Ints, Floats]:
        """(options that the program has, worth of a replica of each option at the prices of what teams share)."""
        program = self.program
        options, rows = program.options, program.rows
        prices = outcome.duals[: rows.count].copy()
        # What one team's quota and demand say is known to its cuts.
        prices[rows.of_one_team()] = 0.0
        mine = numpy.flatnonzero(program.column_of >= 0)
        row, option, value = rows.entries(mine)
        worth = numpy.zeros(len(options.klass))
        worth[mine] = numpy.bincount(option, weights=prices[row] * value, minlength=len(mine)) - cost[program.column_of[mine]]
        return mine, worth

    def _broken(self, amount: Floats, levels: list[int]) -> tuple[int, int, float] | None:
        """The fractional count of the highest priority that has any; of these the one that is farthest from whole."""
        options = self.program.options
        team = options.team[options.klass]
        for level in levels:
            mine = (team >= 0) & (options.priority[options.klass] == level)
            counts = numpy.bincount(team[mine], weights=amount[mine], minlength=len(options.quotas))
            off = numpy.abs(counts - numpy.round(counts))
            if len(off) and off.max() > WHOLE:
                worst = int(off.argmax())
                return level, worst, float(counts[worst])
        return None


class _Side:
    """A copy of the program with cuts, in which replicas of the held priorities may be missing at a price."""

    def __init__(self, program: FleetProgram, cost: Floats, cuts: list[TeamCut], most: dict[tuple[int, int], float]) -> None:
        self.program, self.most = program, most
        self.session = program.session.copy(PATIENCE if program.session.columns < LARGE else LESS_PATIENCE)
        self.opening = float(cost[program.pattern_columns[0][0]]) if program.pattern_columns else 0.0
        for one in cuts:
            self.session.add_row(one.most, program.column_of[one.options], one.worth)
        rows = numpy.asarray(list(program.rows.level.values()), dtype=numpy.int64)
        lack = numpy.full(len(rows), LACK)
        self.session.add_columns(lack, numpy.full(len(rows), numpy.inf), (rows, numpy.arange(len(rows)), numpy.ones(len(rows))))
        self.known: set[tuple[int, bytes]] = set()
        self._chosen: set[tuple[int, int]] = set()

    def solve(self, counts: Counts) -> tuple[Outcome, float]:
        """(the solution within these counts, how much better one with patterns not known yet could be).

        :raises SolverError: it was not found.
        """
        for level, team in sorted(self._chosen | set(counts)):
            least, greatest = counts.get((level, team), (-numpy.inf, numpy.inf))
            greatest = min(greatest, self.most.get((level, team), numpy.inf))
            self.session.set_row(self.program.rows.team_level[level] + team, least, greatest)
        self._chosen = set(counts)
        for number in range(ROUNDS + 1):
            outcome = self.session.solve()
            slack, fresh = self.program.missing(outcome, self.opening, outcome.duals, spread=False)
            if number == ROUNDS or slack <= CUT_FROM * abs(outcome.objective) or not self._add(fresh):
                break
        return outcome, slack

    def _add(self, fresh: dict[int, list[Ints]]) -> bool:
        """Columns for these patterns in all groups of their boards. Are any of them new here?"""
        found = False
        for number, group in enumerate(self.program.options.groups):
            patterns = [each for each in fresh.get(group.board, []) if (number, each.tobytes()) not in self.known]
            if patterns:
                found = True
                self.known |= {(number, each.tobytes()) for each in patterns}
                many = len(patterns)
                entries = self.program.rows.of_patterns(number, numpy.asarray(patterns))
                self.session.add_columns(numpy.full(many, self.opening), numpy.full(many, numpy.inf), entries)
        return found
