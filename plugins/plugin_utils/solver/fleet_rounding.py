# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the whole fleet's linear program to whole numbers: replicas by option, and GPUs by pattern that have room for them.

A vertex of the program has few broken numbers: only they, and the room that is left beside the others, are decided by small integer programs.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import Relaxed, Rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Program, SolverError

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

try:
    import numpy
except ImportError:  # pragma: no cover # each of the two cases is a whole test of its own (tests/unit/test_solver_absent.py)
    numpy = None  # type: ignore[assignment] # what is not there is None

NEARLY = 1e-6
# How far from its broken value a number may be rounded.
REACH = 2
ROUNDING = Limits(gap=0.0, nodes=300)
PATTERNS = Limits(gap=0.0, nodes=200)


def rounded(options: Options, relaxed: Relaxed) -> Ints:
    """Whole replicas by option, within every row of the linear program: as many of the first priority as possible, then of the next."""
    best = numpy.floor(relaxed.amount + NEARLY).astype(numpy.int64)
    broken = numpy.flatnonzero(relaxed.amount - best > NEARLY)
    priority = options.priority[options.klass]
    held: dict[int, int] = {}
    for level in options.levels:
        if (priority[broken] == level).any():
            try:
                best = _round_level(options, relaxed, best, broken, (level, held))
            except SolverError:
                # Not found within the limits: what is there already is within every row.
                pass
        held[level] = int(best[priority == level].sum())
    return best


def _round_level(options: Options, relaxed: Relaxed, known: Ints, broken: Ints, stage: tuple[int, dict[int, int]]) -> Ints:
    """The broken numbers anew, so that most of this level are served while the levels before keep what they have."""
    level, held = stage
    rows = Rows(options)
    priority = options.priority[options.klass]
    lower = numpy.maximum(0.0, numpy.floor(relaxed.amount[broken]) - REACH)
    upper = numpy.minimum(options.most[broken], numpy.ceil(relaxed.amount[broken]) + REACH)
    program = Program()
    columns = program.add_columns(len(broken), -(priority[broken] == level).astype(float), lower, upper, whole=True)
    rest = known.astype(float)
    rest[broken] = 0.0
    fixed = numpy.flatnonzero(rest)
    row, column, value = rows.entries(fixed)
    room = rows.upper - numpy.bincount(row, weights=value * rest[fixed][column], minlength=rows.count)
    least = numpy.full(rows.count, -numpy.inf)
    for above, number in held.items():
        least[rows.level[above]] = number - rest[priority == above].sum()
    program.add_rows(rows.count, least, room)
    row, column, value = rows.entries(broken)
    program.add_entries(row, columns[column], value)
    for group, (patterns, boards) in enumerate(zip(relaxed.patterns, relaxed.boards, strict=True)):
        used = numpy.flatnonzero(boards > NEARLY)
        if len(used):
            more = program.add_columns(len(used))
            which, shape = numpy.nonzero(patterns[used])
            program.add_entries(rows.supply[group] + shape, more[which], -patterns[used][which, shape])
            program.add_entries(rows.gpus + group, more)
    found = program.solve(ROUNDING)
    best = known.copy()
    best[broken] = numpy.round(found.values[columns]).astype(numpy.int64)
    return best


def cut(options: Options, relaxed: Relaxed, amount: Ints, group: int) -> tuple[Ints, Ints]:
    """(number of GPUs of each of the group's patterns, shapes that are missing then) for these replicas; as few GPUs as possible.

    ``missing``: by shape, places that the group's GPUs do not have; seldom more than one or two.
    """
    patterns = relaxed.patterns[group]
    mine = options.group == group
    wanted = numpy.zeros(patterns.shape[1])
    numpy.add.at(wanted, options.shape[mine], (amount[mine] * options.count[options.klass[mine]]).astype(float))
    used = numpy.flatnonzero(relaxed.boards[group] > NEARLY)
    if not len(used) or not wanted.any():
        return numpy.zeros(len(patterns), dtype=numpy.int64), wanted.astype(numpy.int64)
    program = Program()
    columns = program.add_columns(len(used), 1.0, whole=True)
    # A missing place costs as much as the GPU of its own that it would need, and a little more for the large ones.
    short = program.add_columns(patterns.shape[1], 1.0 + 1.0 / numpy.maximum(1, patterns.max(axis=0)), upper=wanted)
    supply = program.add_rows(patterns.shape[1], wanted)
    which, shape = numpy.nonzero(patterns[used])
    program.add_entries(supply[shape], columns[which], patterns[used][which, shape])
    program.add_entries(supply, short)
    gpus = program.add_rows(1, upper=options.groups[group].size * options.groups[group].gpus)
    program.add_entries(gpus, columns)
    found = program.solve(PATTERNS)
    counts = numpy.zeros(len(patterns), dtype=numpy.int64)
    counts[used] = numpy.round(found.values[columns]).astype(numpy.int64)
    missing = numpy.maximum(0, wanted.astype(numpy.int64) - counts @ patterns)
    return counts, missing
