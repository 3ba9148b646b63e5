# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of plans for a whole fleet that are as good, one that leaves each group of hosts some CPU and RAM.

The linear program counts what the hosts of a group have together, and a group that it uses to the last core can hardly be dealt to hosts:
large replicas do not fill each of them. Mostly it need not be used so far, for others have some left, and the program does not care which.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rows import Rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Outcome, Session, SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Parts of a group's CPU, and of its RAM, that are left if they cost no more than this part of its GPUs: the last one is worth most.
PIECES = ((0.01, 1.2e-4), (0.01, 8e-5), (0.02, 8e-5))
# The part that may be used for nothing.
PLENTY = 1.0 - sum(part for part, _worth in PIECES)
# Steps of the simplex method: 50 to 600 are the rule, and each goes from one plan to a better one.
STEPS = 1_000


def with_headroom(session: Session, rows: Rows, cost: Floats) -> Outcome | None:
    """From the present solution to one with more headroom, worth what it costs; None where it is not found.

    :param session: stays as it is. :param cost: by column, in GPUs; of which the present solution is the best.
    """
    groups = rows.options.groups
    if all(group.size == 1 for group in groups):
        return None
    both = numpy.arange(rows.cpus, rows.memory)
    most = rows.upper[both]
    gpus = numpy.tile([float(group.size * group.gpus) for group in groups], 2)
    entries = both, numpy.arange(len(both)), numpy.full(len(both), -1.0)
    prices = [worth * gpus / numpy.maximum(1.0, part * most) for part, worth in PIECES]
    try:
        session = session.copy()
        for row, upper in zip(both.tolist(), most.tolist(), strict=True):
            session.set_row(row, -numpy.inf, PLENTY * upper)
        used = [session.add_columns(numpy.zeros(len(both)), part * most, entries) for part, _worth in PIECES]
        session.set_costs(numpy.concatenate((cost, *prices)))
        # All of it is used, as before: so the present solution is one here, and the first to be made better.
        session.begin_at_most(numpy.concatenate(used))
        return session.improve(STEPS)
    except SolverError:
        return None
