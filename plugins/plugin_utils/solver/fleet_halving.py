# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same places on more GPUs, so that every host gets as many of them.

Where CPU or RAM is scarce and GPUs are not, few full GPUs are hard to deal: hosts with two of them have too much, hosts with one cannot use
what they have. With some GPUs in two halves all hosts have two, and each gets what it can bear.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import mean_needs
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import WholePatterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# More GPUs than this part of the hosts are not worth it.
DEAR = 0.5


def halved(options: Options, amount: Ints, number: int, cut: WholePatterns) -> WholePatterns | None:
    """The cut of a group with its heaviest GPUs in two halves, so many that every host gets as many GPUs; None where that cannot be, is so
    already, or takes too many.

    :param amount: replicas by option of the whole fleet. :param number: of the group.
    """
    group = options.groups[number]
    mine = numpy.flatnonzero((options.group == number) & (amount > 0))
    many, count, needs = amount[mine], options.count[options.klass[mine]], options.needs[options.klass[mine]]
    single = count == 1
    used = int(cut.boards.sum() + many[~single] @ count[~single])
    missing = -used % group.size
    if not 0 < missing <= DEAR * group.size or used + missing > group.size * group.gpus:
        return None
    # By shape, what a replica there takes on the mean of that of which the group has least left, CPU or RAM.
    scarce = int(((many[single] @ needs[single]) / numpy.maximum(group.rooms.sum(axis=0), 1.0)).argmax())
    load = mean_needs(cut.patterns.shape[1], options.shape[mine][single], many[single], needs[single])[1][:, scarce]
    patterns, boards = list(cut.patterns), cut.boards.tolist()
    for one in numpy.argsort(-(cut.patterns @ load), kind="stable").tolist():
        times = min(missing, boards[one])
        if times and cut.patterns[one].sum() > 1:
            boards[one] -= times
            patterns += _halves(cut.patterns[one], load)
            boards += [times, times]
            missing -= times
    if missing:
        return None
    unique, of = numpy.unique(numpy.asarray(patterns), axis=0, return_inverse=True)
    return WholePatterns(unique, numpy.bincount(of.ravel(), weights=boards, minlength=len(unique)).astype(numpy.int64))


def _halves(pattern: Ints, load: Floats) -> list[Ints]:
    """The places of a GPU on two GPUs: the heavy ones first, each where less is by then."""
    halves, loads = [numpy.zeros_like(pattern), numpy.zeros_like(pattern)], [0.0, 0.0]
    for shape in sorted(numpy.flatnonzero(pattern).tolist(), key=lambda each: -load[each]):
        for _place in range(int(pattern[shape])):
            lighter = int(loads[1] < loads[0])
            halves[lighter][shape] += 1
            loads[lighter] += float(load[shape])
    return halves
