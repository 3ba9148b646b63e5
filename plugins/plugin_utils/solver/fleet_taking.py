# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a replica with several GPUs takes of its host: the CPU and RAM that it needs, and what nobody else can use any more.

The linear program adds up what the hosts of a group have. A replica with eight GPUs of a host of eight needs half of its CPU, and the other
half is lost. With four of them it leaves what the other four GPUs can need at most. A program that does not know this counts on CPU and RAM
that no plan can use, and no dealing finds hosts for what it says.
"""

from __future__ import annotations

import typing as t
from collections.abc import Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import Group
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Asked(t.NamedTuple):
    """Arrays by option: ``group``, ``shape``, ``gpus`` of a replica, and what a replica ``needs`` of its host, CPU and RAM (GiB), shape
    (options, 2)."""

    group: Ints
    shape: Ints
    gpus: Ints
    needs: Floats


def taken_of_hosts(boards: Sequence[Board], groups: Sequence[Group], asked: Asked) -> Floats:
    """By option, CPU and RAM (GiB) that a replica takes of what the group's hosts have together, shape (options, 2). Only once all shapes
    of the boards are known.

    No plan takes more of a host in this way than it has. Of c of g GPUs all but ``(g - c) * most`` is taken, where no GPU can need more
    than ``most`` and the host has no more than ``g * most`` that anybody can use: two such replicas leave ``(g - c - c') * most`` at least.
    """
    found = asked.needs.copy()
    for number, group in enumerate(groups):
        mine = numpy.flatnonzero(asked.group == number)
        shapes = boards[group.board].shapes
        whole = mine[numpy.asarray([shapes[shape].mode == "whole" for shape in asked.shape[mine].tolist()], dtype=bool)]
        several = whole[(asked.gpus[whole] > 1) | (group.gpus == 1)]
        if len(several):
            most = _most_of_gpu(boards[group.board], asked.shape[mine], asked.needs[mine] / asked.gpus[mine, None])
            usable = numpy.minimum(group.rooms.min(axis=0), group.gpus * most)
            others = (group.gpus - asked.gpus[several])[:, None] * most
            found[several] = numpy.maximum(found[several], usable - others)
    return found


def _most_of_gpu(board: Board, shape: Ints, needs: Floats) -> Floats:
    """What all that is on one GPU can need of its host at most, CPU and RAM (GiB).

    :param shape: of each option of a group. :param needs: of a replica; of one with several GPUs, the part of each.
    """
    dearest = numpy.zeros((len(board.shapes), 2))
    numpy.maximum.at(dearest, shape, needs)
    whole = numpy.asarray([each.mode == "whole" for each in board.shapes], dtype=bool)
    found: Floats = dearest[whole].max(axis=0, initial=0.0)
    if board.shared:
        found = numpy.maximum(found, board.best_shared(dearest.T, None)[0])
    mig = board.mig()
    if mig is not None:
        patterns, numbers = mig
        needs = numpy.asarray([dearest[number] if number >= 0 else (0.0, 0.0) for number in numbers])
        found = numpy.maximum(found, (patterns.counts @ needs).max(axis=0))
    return found
