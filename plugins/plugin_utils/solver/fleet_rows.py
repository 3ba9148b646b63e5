# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of the whole fleet's program, and what its columns take of them."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Rows:
    """Where each row of the program is, and its upper bound. Those of groups, quotas and priorities follow each other."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.demand, count = 0, len(options.classes)
        self.supply: list[int] = []
        for group in options.groups:
            self.supply.append(count)
            count += len(options.boards[group.board].shapes)
        groups, quotas = len(options.groups), len(options.quotas)
        self.gpus, self.cpus, self.ram = count, count + groups, count + 2 * groups
        self.memory = count + 3 * groups
        self.worth = self.memory + quotas
        first = self.worth + quotas
        self.level = {level: first + number for number, level in enumerate(options.levels)}
        count = first + len(self.level)
        self.team_level = {level: count + number * quotas for number, level in enumerate(options.levels)}
        self.count = count + quotas * len(self.level)
        self.upper = numpy.full(self.count, numpy.inf)
        self.upper[: len(options.classes)] = options.replicas
        self.upper[len(options.classes) : self.gpus] = 0.0
        for number, group in enumerate(options.groups):
            self.upper[self.gpus + number] = group.size * group.gpus
            self.upper[self.cpus + number] = group.size * group.cpus
            self.upper[self.ram + number] = group.size * group.ram
        self.upper[self.memory : self.worth] = options.quota_memory
        self.upper[self.worth : first] = options.quota_worth

    def of_one_team(self) -> NDArray[np.bool_]:
        """By row: does it speak of a single team, as demand, quotas and counts do?"""
        found = numpy.zeros(self.count, dtype=bool)
        found[: len(self.options.classes)] = True
        for first in (self.memory, self.worth, *self.team_level.values()):
            found[first : first + len(self.options.quotas)] = True
        return found

    def of_patterns(self, group: int, patterns: Ints) -> tuple[Ints, Ints, Floats]:
        """(row, number of the pattern, value) of the columns of these patterns in a group."""
        which, shape = numpy.nonzero(patterns)
        rows = numpy.concatenate((self.supply[group] + shape, numpy.full(len(patterns), self.gpus + group)))
        values = numpy.concatenate((-patterns[which, shape].astype(float), numpy.ones(len(patterns))))
        return rows, numpy.concatenate((which, numpy.arange(len(patterns)))), values

    def entries(self, mine: Ints) -> tuple[Ints, Ints, Floats]:
        """(row, number in ``mine``, value) of the columns of these options."""
        options = self.options
        klass, group = options.klass[mine], options.group[mine]
        number = numpy.arange(len(mine))
        team = options.team[klass]
        first = numpy.asarray(self.supply, dtype=numpy.int64)[group]
        level_row = numpy.asarray([self.level[level] for level in options.priority[klass].tolist()], dtype=numpy.int64)
        team_row = numpy.asarray([self.team_level[level] for level in options.priority[klass].tolist()], dtype=numpy.int64)
        parts = [
            (klass, numpy.ones(len(mine))),
            (first + options.shape[mine], options.count[klass].astype(float)),
            (self.cpus + group, options.taken[mine, 0]),
            (self.ram + group, options.taken[mine, 1]),
            (numpy.where(team >= 0, self.memory + team, -1), options.memory[mine]),
            (numpy.where(team >= 0, self.worth + team, -1), options.worth[mine]),
            (level_row, numpy.ones(len(mine))),
            (numpy.where(team >= 0, team_row + team, -1), numpy.ones(len(mine))),
        ]
        rows = numpy.concatenate([row for row, _value in parts])
        values = numpy.concatenate([value for _row, value in parts])
        columns = numpy.tile(number, len(parts))
        kept = (rows >= 0) & (values != 0)
        return rows[kept], columns[kept], values[kept]
