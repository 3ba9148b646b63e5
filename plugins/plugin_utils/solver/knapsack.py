# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sharers are worth most together on one GPU: a knapsack of memory and compute, for many prices at once.

One table for all prices costs little more than one for a single price: most of the work is numpy's for each step, not for each number.
"""

from __future__ import annotations

import typing as t
from collections.abc import Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Prices in one table: more would not stay in a processor's cache.
AT_ONCE = 64
NOTHING = 1e-12


class Item(t.NamedTuple):
    """What one sharer takes, in units of the GPU, and how many of it there may be."""

    memory: int
    compute: int
    most: int


def fullest(room: tuple[int, int], items: Sequence[Item], prices: Floats) -> tuple[Floats, Ints]:
    """(the most that a GPU with ``room`` for (memory, compute) can be worth, how many of each item that is).

    :param prices: shape (n, items), what one of each is worth; items that are worth nothing are left out. Returns shapes (n,), (n, items).
    """
    parts = [_fullest(room, items, prices[first : first + AT_ONCE]) for first in range(0, len(prices), AT_ONCE)]
    worth, counts = zip(*parts, strict=True)
    return numpy.concatenate(worth), numpy.concatenate(counts)


def _fullest(room: tuple[int, int], items: Sequence[Item], prices: Floats) -> tuple[Floats, Ints]:
    most, share = room
    # Prices come first: mostly there are few of them, and numpy's steps are quick along the last axis if that is a long one.
    value = numpy.zeros((len(prices), most + 1, share + 1))
    taken: list[tuple[int, int, t.Any]] = []
    for number in numpy.flatnonzero((prices > NOTHING).any(axis=0)).tolist():
        item, price = items[number], numpy.where(prices[:, number] > NOTHING, prices[:, number], -1.0)
        part, left = 1, min((item.most, *(whole // one for whole, one in zip(room, item[:2], strict=True) if one)))
        while left > 0:
            # Any number up to the limit is a sum of these parts, each taken or not.
            part = min(part, left)
            memory, compute = part * item.memory, part * item.compute
            offered = value[:, : most + 1 - memory, : share + 1 - compute] + (part * price)[:, None, None]
            before = value[:, memory:, compute:]
            better = offered > before + NOTHING
            numpy.copyto(before, offered, where=better)
            taken.append((number, part, better))
            left, part = left - part, part * 2
    return value[:, -1, -1], numpy.asarray([_counts(room, items, taken, column) for column in range(len(prices))])


def _counts(room: tuple[int, int], items: Sequence[Item], taken: list[tuple[int, int, t.Any]], column: int) -> list[int]:
    """How many of each item are behind the best value at one of the prices."""
    counts = [0] * len(items)
    at, left = room
    for number, part, better in reversed(taken):
        memory, compute = part * items[number].memory, part * items[number].compute
        if at >= memory and left >= compute and better[column, at - memory, left - compute]:
            counts[number] += part
            at, left = at - memory, left - compute
    return counts
