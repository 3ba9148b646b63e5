# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one GPU of a kind can hold: the shapes that replicas have on it, and the patterns of shapes that fill it.

A shape is ``whole``, a MIG profile, or (memory, compute) of a shared GPU in small units. MIG has a few dozen patterns that no other
dominates, all known from the start; a shared GPU has too many, so that the best one for given prices is sought when it is wanted.
"""

from __future__ import annotations

import math
import random
import typing as t
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetModel
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.knapsack import Item, Knapsack
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, patterns_of, undominated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# A shared GPU has no more units of memory times units of compute than UNITS. Where sizes have no common measure that large, they are
# rounded to one of so many units of memory and of compute: more would take longer, and hardly save anything.
UNITS_OF_MEMORY, UNITS_OF_COMPUTE = 192, 120
UNITS = UNITS_OF_MEMORY * UNITS_OF_COMPUTE
# How far prices at which patterns are varied are from what a shape takes.
VARIED = 0.4
# So many limits of what one GPU should hold are remembered with what may be chosen from.
KNAPSACKS = 8
# What compute shares are counted in: thirds to tenths and thousandths of a GPU are whole numbers of it.
WHOLE_COMPUTE = 1000 * 2520


class Shape(t.NamedTuple):
    """What a replica takes of a GPU. ``profile`` in mode mig, ``memory`` and ``compute`` (units of the board) in mode shared.

    ``mib`` and ``worth`` (share of a GPU) are what a quota counts.
    """

    mode: str
    profile: str
    memory: int
    compute: int
    mib: int
    worth: float


@dataclass
class Board:
    """A kind of GPU: model, modes, and how it is shared. Shapes are added while classes are read; patterns are made when all are known.

    ``unit``: (MiB, parts of compute) of a unit; ``room``: the units of a shared GPU; ``exact``: no size had to be rounded.
    ``at_once``: by shape, how many of it one GPU should hold at most so that classes with few replicas on a host find hosts enough.
    """

    model: FleetModel
    modes: tuple[str, ...]
    clients: int
    reserve_mib: int
    shapes: list[Shape] = field(default_factory=list)
    number: dict[Shape, int] = field(default_factory=dict)
    unit: tuple[int, int] = (1, 1)
    room: tuple[int, int] = (0, 0)
    exact: bool = True
    at_once: list[int] = field(default_factory=list)
    _slices: dict[tuple[str | None, int, float], list[Shape]] = field(default_factory=dict)

    def divide(self, classes: Iterable[FleetClass], *, up: bool = True) -> None:
        """Choose the units of a shared GPU for the classes that may be there; ``up``: round sizes up where that must be, else down."""
        room = max(0, self.model.memory_mib - self.reserve_mib)
        sizes = [(max(1, one.memory_mib), parts_of(one.compute)) for one in classes if self._may_share(one)]
        memory = math.gcd(*(each for each, _compute in sizes)) or max(1, room)
        compute = math.gcd(*(each for _memory, each in sizes)) or WHOLE_COMPUTE
        self.exact = (room // memory) * (WHOLE_COMPUTE // compute) <= UNITS
        if not self.exact:
            memory, compute = max(memory, -(-room // UNITS_OF_MEMORY)), max(compute, WHOLE_COMPUTE // UNITS_OF_COMPUTE)
        self.unit, self.room, self._up = (memory, compute), (room // memory, WHOLE_COMPUTE // compute), up

    def _may_share(self, one: FleetClass) -> bool:
        """Might a class that shares GPUs be on one of these?"""
        if one.isolation != "shared" or "shared" not in self.modes or not self.clients or not self._allowed(one):
            return False
        return one.memory_mib <= self.model.memory_mib - self.reserve_mib and parts_of(one.compute) <= WHOLE_COMPUTE

    def _allowed(self, one: FleetClass) -> bool:
        """May a class be on this model?"""
        return self.model.name not in one.not_models and (not one.models or self.model.name in one.models)

    def shapes_for(self, one: FleetClass) -> list[int]:
        """Numbers of the shapes that serve a class here; empty when none does."""
        if not self._allowed(one):
            return []
        return [self._add(shape) for shape in self._shapes(one)]

    def _add(self, shape: Shape) -> int:
        if shape not in self.number:
            self.number[shape] = len(self.shapes)
            self.shapes.append(shape)
        return self.number[shape]

    def _shapes(self, one: FleetClass) -> list[Shape]:
        if one.isolation == "exclusive" and "whole" in self.modes and one.memory_mib <= self.model.memory_mib:
            return [Shape("whole", "", 0, 0, self.model.memory_mib, 1.0)]
        if one.isolation == "slice" and "mig" in self.modes and self.model.geometry is not None:
            asked = (one.profile, one.memory_mib, one.compute)
            if asked not in self._slices:
                self._slices[asked] = [_slice_shape(self.model.geometry, each) for each in smallest_profiles(self.model.geometry, one)]
            return self._slices[asked]
        return self._shared(one) if self._may_share(one) else []

    def _shared(self, one: FleetClass) -> list[Shape]:
        room, share = self.model.memory_mib - self.reserve_mib, parts_of(one.compute)
        extra = (self.unit[0] - 1, self.unit[1] - 1) if self._up else (0, 0)
        memory, compute = (max(1, one.memory_mib) + extra[0]) // self.unit[0], (share + extra[1]) // self.unit[1]
        if memory > self.room[0] or compute > self.room[1]:
            return []
        worth = max(one.memory_mib / max(1, room), share / WHOLE_COMPUTE)
        return [Shape("shared", "", max(memory, 1 if self._up else 0), compute, one.memory_mib, worth)]

    _up: bool = True

    def mig(self) -> tuple[Patterns, list[int]] | None:
        """All states of this board with MIG and, for each of its profiles, the number of its shape (-1: none asks for it)."""
        names = {shape.profile: number for number, shape in enumerate(self.shapes) if shape.mode == "mig"}
        if not names or self.model.geometry is None:
            return None
        patterns = patterns_of(self.model.geometry, names)
        return patterns, [names.get(profile.name, -1) for profile in patterns.profiles]

    @cached_property
    def _sharers(self) -> list[int]:
        """The numbers of the shapes that are places on shared GPUs. Only once all shapes are known."""
        return [number for number, shape in enumerate(self.shapes) if shape.mode == "shared"]

    @cached_property
    def _knapsacks(self) -> dict[tuple[int, ...] | None, Knapsack]:
        return {}

    @cached_property
    def first_patterns(self) -> Ints:
        """Shape (patterns, shapes): whole; the MIG patterns that none dominates; a shared GPU full of each shape. Only once all shapes are
        known; nobody writes to it."""
        found = []
        for number, shape in enumerate(self.shapes):
            if shape.mode == "whole":
                found.append(self._only(number, 1))
            elif shape.mode == "shared":
                most = self._most(shape)
                found.append(self._only(number, max(1, min(most, self.at_once[number]))))
        mig = self.mig()
        if mig is not None:
            patterns, numbers = mig
            asked = [column for column, number in enumerate(numbers) if number >= 0]
            counts = numpy.unique(patterns.counts[:, asked], axis=0)
            counts = counts[undominated(counts)]
            wide = numpy.zeros((len(counts), len(self.shapes)), dtype=numpy.int64)
            wide[:, [numbers[column] for column in asked]] = counts
            found.append(wide)
        return numpy.concatenate(found) if found else numpy.zeros((0, len(self.shapes)), dtype=numpy.int64)

    @property
    def shared(self) -> int:
        """How many of the shapes are places on shared GPUs."""
        return sum(shape.mode == "shared" for shape in self.shapes)

    def most_of(self, number: int) -> int:
        """How many of a shape, by its number, one GPU holds that has nothing else."""
        shape = self.shapes[number]
        if shape.mode == "shared":
            return self._most(shape)
        if shape.mode == "mig" and self.model.geometry is not None:
            return next(each.max for each in self.model.geometry.profiles if each.name == shape.profile)
        return 1

    def _most(self, shape: Shape) -> int:
        """How many of a shape one shared GPU holds."""
        sizes = zip((shape.memory, shape.compute), self.room, strict=True)
        return min(self.clients, *(room // size if size else self.clients for size, room in sizes))

    def _only(self, number: int, count: int) -> Ints:
        row = numpy.zeros((1, len(self.shapes)), dtype=numpy.int64)
        row[0, number] = count
        return row

    def best_shared(self, prices: Floats, at_once: Sequence[int] | None) -> tuple[Floats, Ints]:
        """(an upper bound of the value, a pattern) of the shared GPU that is worth most, for each of many ``prices`` of the shapes.

        With no more of each shape than ``at_once`` says; None: as many as fit. Exact as long as the limit of clients does not bind; where
        it does, the pattern loses its cheapest shapes, and the bound is that of the dearest ones that so many clients can be.

        :param prices: shape (n, shapes). Returns shapes (n,) and (n, shapes).
        """
        mine = self._sharers
        counts = numpy.zeros(prices.shape, dtype=numpy.int64)
        knapsack = self._knapsack(None if at_once is None else tuple(at_once))
        worth, counts[:, mine] = knapsack.fullest(prices[:, mine])
        for row in numpy.flatnonzero(counts.sum(axis=1) > self.clients).tolist():
            worth[row] = min(worth[row], self._dearest(knapsack.items, prices[row, mine]))
            over = int(counts[row].sum()) - self.clients
            for number in numpy.argsort(prices[row], kind="stable").tolist():
                gone = max(0, min(over, int(counts[row, number])))
                counts[row, number] -= gone
                over -= gone
        return worth, counts

    def _knapsack(self, at_once: tuple[int, ...] | None) -> Knapsack:
        """What :meth:`best_shared` is asked again and again. Only once all shapes are known."""
        if at_once not in self._knapsacks:
            items = [
                Item(*self.shapes[number][2:4], self.clients if at_once is None else min(self.clients, at_once[number]))
                for number in self._sharers
            ]
            if len(self._knapsacks) >= KNAPSACKS:
                self._knapsacks.clear()
            self._knapsacks[at_once] = Knapsack(self.room, items)
        return self._knapsacks[at_once]

    def _dearest(self, items: Sequence[Item], prices: Floats) -> float:
        """What as many clients as there may be are worth at most, if they had room."""
        order = numpy.argsort(-prices, kind="stable")
        upto = numpy.minimum(numpy.cumsum([items[one].most for one in order.tolist()]), self.clients)
        return float(numpy.diff(upto, prepend=0) @ numpy.maximum(prices[order], 0.0))

    def varied(self, many: int) -> Ints:
        """Patterns of shared GPUs that are full at many different prices, ``many`` at most; shape (patterns, shapes)."""
        mine = sorted((shape.memory, shape.compute, number) for number, shape in enumerate(self.shapes) if shape.mode == "shared")
        if not mine or not many:
            return numpy.zeros((0, len(self.shapes)), dtype=numpy.int64)
        chance = random.Random(0)  # the same numbers on every machine
        parts = numpy.asarray([(memory / self.room[0], compute / self.room[1]) for memory, compute, _number in mine])
        prices = numpy.zeros((many, len(self.shapes)))
        for row in prices:
            leaning = 0.2 + 0.6 * chance.random()
            noise = numpy.asarray([1.0 + VARIED * (2 * chance.random() - 1) for _shape in mine])
            row[[number for _memory, _compute, number in mine]] = parts @ (leaning, 1 - leaning) * noise
        return numpy.unique(self.best_shared(prices, self.at_once)[1], axis=0)


def parts_of(compute: float) -> int:
    """A compute share in parts of :data:`WHOLE_COMPUTE`, rounded up, but for the noise of floating point."""
    return math.ceil(compute * WHOLE_COMPUTE - 1e-6)


def _slice_shape(geometry: Geometry, profile: Profile) -> Shape:
    worth = max(profile.slices / geometry.compute_slices, profile.size / geometry.memory_slices)
    return Shape("mig", profile.name, 0, 0, profile.memory_mib, worth)


def smallest_profiles(geometry: Geometry, one: FleetClass) -> list[Profile]:
    """The profiles that serve a class and that no other one replaces: taking less of the board, wherever this one may begin.

    Without a name only plain profiles are meant; the engines of the others are left to who asks for them.
    """
    cutter = Cutter(geometry)
    return [cutter.profiles[name] for name in cutter.smallest(cutter.acceptable(one.memory_mib, one.compute, one.profile))]
