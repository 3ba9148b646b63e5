# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replicas with whole GPUs make way for smaller ones of their priority that wait.

Of one priority any replica counts as much as another. One with eight GPUs that goes leaves room for many that wait; where it leaves room
for one alone, as many are served on fewer GPUs.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# Replicas that are asked to make way, in all.
MOST_ASKED = 300


def trade(filling: Filling) -> None:
    """Let replicas with whole GPUs go as long as more are served for it, or as many on fewer GPUs.

    In order of priority; of a group's those with most GPUs first.
    """
    options, asked = filling.options, MOST_ASKED
    # What shares a GPU, or has a slice of it, is smaller than a whole one.
    size = options.count - numpy.asarray([each.isolation != "exclusive" for each in options.classes], dtype=numpy.int64)
    for level in options.levels:
        waits = numpy.flatnonzero((options.priority == level) & (filling.waiting > 0))
        for seats in filling.seats if len(waits) else ():
            present = seats.present()
            klass = seats.klass[present]
            whole = numpy.asarray([one.mode == "whole" for one in seats.board.shapes], dtype=bool)[seats.shape[present]]
            several = present[whole & (options.priority[klass] == level)]
            klass, left = seats.klass[several], seats.room.left[seats.host[several]]
            # Of one class the one whose host has most left first: where it goes in vain, the others would, too.
            order = numpy.lexsort((several, -left[:, 1], -left[:, 0], klass, -options.count[klass]))
            vain: set[int] = set()
            for one in several[order].tolist():
                if asked and int(seats.klass[one]) not in vain:
                    asked -= 1
                    if not _made_way(filling, seats, one, size):
                        vain.add(int(seats.klass[one]))


def _made_way(filling: Filling, seats: Seats, one: int, size: Ints) -> bool:
    """Has this replica gone, for better? Nothing changes otherwise. ``size``: of each class."""
    options, klass = filling.options, int(seats.klass[one])
    old = klass, int(seats.shape[one]), int(seats.host[one]), int(seats.gpus[one])
    first, empty = seats.size, int(seats.room.empty.sum())
    smaller = (options.priority == options.priority[klass]) & (size < options.count[klass])
    filling.let_go(seats, numpy.asarray([one]))
    for other in filling.order:
        if not smaller[other] or not filling.waiting[other]:
            continue
        for option in filling.options_of[other]:
            if options.group[option] == seats.number:
                while _come(filling, seats, option):
                    pass
    came = seats.size - first
    if came > 1 or (came == 1 and int(seats.room.empty.sum()) > empty):
        return True
    filling.let_go(seats, numpy.arange(first, seats.size))
    filling.seat(seats, *old)
    return False


def _come(filling: Filling, seats: Seats, option: int) -> int:
    """How many more of a class find a place now: on GPUs in use, else one of them on another."""
    klass = int(filling.options.klass[option])
    many = min(int(filling.waiting[klass]), filling.allowed(option))
    return filling.place(seats, klass, option, many, opened=False) or filling.place(seats, klass, option, min(1, many), opened=True)
