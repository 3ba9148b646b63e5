# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of the whole fleet's program for classes that must be spread over hosts. No plan breaks them, and its solution may."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import UNLIMITED, Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Outcome, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import FleetProgram
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Rows are added from so many replicas without a place of their own on; how many of the smallest slices a GPU has.
SPREAD_FROM, MOST_SLICES = 0.5, 7


@dataclass
class Spread:
    """Options with a row of their own. ``spread``: each GPU has a place for no more than a host may have of the class, as one with seven
    small slices has one place for it. ``beside``: on a host all of whose GPUs one replica has, there is no place."""

    spread: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)

    def add_rows(self, program: FleetProgram, outcome: Outcome) -> bool:
        """Rows that this solution breaks. Were there any?"""
        amount = program.amount(outcome)
        # Not all with the same operator: both kinds of rows are wanted.
        return any([self._add_spread(program, outcome, amount), self._add_beside(program, amount)])

    def _add_spread(self, program: FleetProgram, outcome: Outcome, amount: Floats) -> bool:
        """Only where all patterns are known: on GPUs without shared ones."""
        options = program.options
        found = False
        for number, group in enumerate(options.groups):
            board = options.boards[group.board]
            limit = options.per_host[options.klass]
            mine = numpy.flatnonzero((options.group == number) & (amount > 1.0) & (limit < group.gpus * MOST_SLICES))
            if board.shared or not len(mine):
                continue
            here = [(column, pattern) for column, where, pattern in program.pattern_columns if where == number]
            columns, patterns = numpy.asarray([column for column, _pattern in here]), numpy.asarray([pattern for _column, pattern in here])
            places = numpy.minimum(patterns[:, options.shape[mine]], limit[mine])
            for one in numpy.flatnonzero(amount[mine] > outcome.values[columns] @ places + SPREAD_FROM).tolist():
                able = places[:, one] > 0
                row = numpy.concatenate((columns[able], program.column_of[mine[one : one + 1]]))
                program.session.add_row(0.0, row, numpy.concatenate((-places[able, one].astype(float), [1.0])))
                self.spread.append(int(mine[one]))
                found = True
        return found

    def _add_beside(self, program: FleetProgram, amount: Floats) -> bool:
        options, full = program.options, full_hosts(program.options)
        hosts = numpy.asarray([group.size for group in options.groups], dtype=float)
        hosts -= numpy.bincount(options.group[full], weights=amount[full], minlength=len(hosts))
        limit = options.per_host[options.klass]
        over = (limit < UNLIMITED) & (amount > limit * hosts[options.group] + SPREAD_FROM)
        over[full] = False
        for one in numpy.flatnonzero(over).tolist():
            most, those, worth = beside(options, one, full[program.column_of[full] >= 0])
            program.session.add_row(most, program.column_of[those], worth)
            self.beside += [one] if one not in self.beside else []
        return bool(over.any())


def full_hosts(options: Options) -> Ints:
    """Options of which a replica has all GPUs of a host."""
    gpus = numpy.asarray([group.gpus for group in options.groups], dtype=numpy.int64)
    exclusive = numpy.asarray([one.isolation == "exclusive" for one in options.classes], dtype=bool)
    return numpy.flatnonzero(exclusive[options.klass] & (options.count[options.klass] == gpus[options.group]))


def beside(options: Options, option: int, full: Ints) -> tuple[float, Ints, Floats]:
    """(the most, the options, what a replica of each counts) of the row that spreads an option over the hosts that none of ``full`` has."""
    limit, group = float(options.per_host[options.klass[option]]), int(options.group[option])
    others = full[options.group[full] == group]
    return limit * options.groups[group].size, numpy.append(others, option), numpy.append(numpy.full(len(others), limit), 1.0)
