# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sharers are worth most together on one GPU: a knapsack of memory and compute, for many prices at once.

One table for all prices costs little more than one for a single price: most of the work is numpy's for each step, not for each number.
Where many items are worth anything, most of them are ruled out first, price by price.
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
    Bools = NDArray[np.bool_]

# Prices in one table: more would not stay in a processor's cache.
AT_ONCE = 64
NOTHING, CLOSE = 1e-12, 1e-9
# From so many items on those are ruled out first that cannot be among the best; so many that are worth most say how good these are.
MANY, CORE = 100, 16
# What a unit of memory and one of compute cost is sought at these parts of a distance around the best so far; it is halved so often.
AROUND, HALVED = (-1.0, -0.5, 0.0, 0.5, 1.0), 9


class Item(t.NamedTuple):
    """What one sharer takes, in units of the GPU, and how many of it there may be."""

    memory: int
    compute: int
    most: int


class Knapsack:
    """A GPU with ``room`` for (memory, compute), and the items to choose from."""

    def __init__(self, room: tuple[int, int], items: Sequence[Item]) -> None:
        self.room = room
        # No more of an item than fit on a GPU that has nothing else.
        most = [min((item.most, *(whole // one for whole, one in zip(room, item[:2], strict=True) if one))) for item in items]
        self.items = [item._replace(most=each) for item, each in zip(items, most, strict=True)]
        self._size = numpy.asarray([item[:2] for item in items], dtype=float).reshape(-1, 2)
        self._most = numpy.asarray(most, dtype=float)
        self._around = numpy.stack(numpy.meshgrid(AROUND, AROUND), axis=-1).reshape(-1, 2)

    def fullest(self, prices: Floats) -> tuple[Floats, Ints]:
        """(the most that the GPU can be worth, how many of each item that is).

        :param prices: shape (n, items), what one of each is worth; items that are worth nothing are left out. Returns shapes (n,) and
            (n, items).
        """
        worth, counts = numpy.zeros(len(prices)), numpy.zeros(prices.shape, dtype=numpy.int64)
        many = self._able(prices).sum(axis=1) >= MANY
        few = numpy.flatnonzero(~many)
        for rows in (few[first : first + AT_ONCE] for first in range(0, len(few), AT_ONCE)):
            worth[rows], counts[rows] = _fullest(self.room, self.items, prices[rows])
        for row in numpy.flatnonzero(many).tolist():
            worth[row], counts[row] = self._of_many(prices[row])
        return worth, counts

    def _able(self, prices: Floats) -> Bools:
        """Items that fit, and are worth anything."""
        return (prices > NOTHING) & (self._most > 0)

    def _of_many(self, prices: Floats) -> tuple[float, Ints]:
        """As :meth:`fullest`, at one price of each item.

        Whatever a unit of memory and one of compute cost: what the room costs, and what items are worth above their cost, bound the worth
        of all. An item that costs more than it is worth takes the difference off the bound; so there are only few of it where the bound
        is near.
        """
        able = numpy.flatnonzero(self._able(prices))
        bound, gain = self._bound(able, prices[able])
        core = numpy.sort(able[numpy.argsort(-gain, kind="stable")[:CORE]])
        worth, counts = self._best_of(core, self._most, prices)
        most = self._most.copy()
        most[able] = numpy.minimum(most[able], numpy.floor((bound - worth + CLOSE) / numpy.maximum(NOTHING, -gain)))
        left = able[most[able] > 0]
        return (worth, counts) if numpy.isin(left, core).all() else self._best_of(left, most, prices)

    def _best_of(self, mine: Ints, most: Floats, prices: Floats) -> tuple[float, Ints]:
        """As :meth:`_of_many`, of ``mine`` alone, with no more of each item than ``most``."""
        counts = numpy.zeros(len(prices), dtype=numpy.int64)
        items = [self.items[one]._replace(most=int(most[one])) for one in mine.tolist()]
        (worth,), (counts[mine],) = _fullest(self.room, items, prices[None, mine])
        return float(worth), counts

    def _bound(self, able: Ints, prices: Floats) -> tuple[float, Floats]:
        """(a bound of the worth of all, by item what one is worth above its cost): near the least bound that there is."""
        size, most, room = self._size[able], self._most[able], numpy.maximum(1.0, self.room)
        # To begin with: the worth of a GPU's part, where the dearest parts fill it, half of it for memory and half for compute.
        part = (size / room).max(axis=1)
        dear = prices / numpy.maximum(part, NOTHING)
        order = numpy.argsort(-dear, kind="stable")
        filled = int(numpy.searchsorted(numpy.cumsum((part * most)[order]), 1.0))
        cost = distance = dear[order[min(filled, len(order) - 1)]] / room / 2
        bound = numpy.inf
        for _time in range(HALVED):
            costs = numpy.maximum(0.0, cost + self._around * distance)
            bounds = costs @ self.room + most @ numpy.maximum(0.0, prices[:, None] - size @ costs.T)
            best = int(bounds.argmin())
            if bounds[best] < bound:
                bound, cost = float(bounds[best]), costs[best]
            distance = distance / 2
        return bound, prices - size @ cost


def _fullest(room: tuple[int, int], items: Sequence[Item], prices: Floats) -> tuple[Floats, Ints]:
    """As :meth:`Knapsack.fullest`, in one table; each item fits as often as it may be there."""
    most, share = room
    # Prices come first: mostly there are few of them, and numpy's steps are quick along the last axis if that is a long one.
    value = numpy.zeros((len(prices), most + 1, share + 1))
    taken: list[tuple[int, int, t.Any]] = []
    for number in numpy.flatnonzero((prices > NOTHING).any(axis=0)).tolist():
        item, price = items[number], numpy.where(prices[:, number] > NOTHING, prices[:, number], -1.0)
        part, left = 1, item.most
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
