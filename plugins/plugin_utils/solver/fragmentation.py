# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What free room on nodes is worth for the requests that are expected: three measures, from the quickest to the most telling.

All speak of thousandths of a GPU that can still be allocated on one node in a given state. ``usable`` is the complement of expected
fragmentation (FGD, USENIX ATC'23), with memory besides CPU: how much of the free GPU the next request could stand on. ``fillable`` lets
one kind of request come until nothing of it fits. ``Futures`` lets sampled sequences of mixed requests come, which also sees that CPU
and memory are spent by all of them together; it is the one that decides, the others say what is worth a look. A fleet sends a request where
it goes well, so what counts is not what any sequence makes of a node but what those make of it that suit it best.
"""

from __future__ import annotations

import math
import random
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy as np

if t.TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

WHOLE = 1000
"""Thousandths in one GPU."""
NO_FIT = 32_000
"""More than any GPU has free, and within 16 bits."""
ROWS_AT_ONCE = 256
"""States whose futures are played together: more would leave the processor's cache."""


@dataclass(frozen=True, order=True)
class Request:
    """CPU in thousandths of a core, memory in MiB, GPUs, thousandths of each (1000 if more than one), GPU models accepted (none: any)."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """:raises ValueError: less than nothing, or parts of several GPUs."""
        part = 1 <= self.milli <= WHOLE if self.gpus == 1 else self.milli == (WHOLE if self.gpus else 0)
        if min(self.cpu, self.memory, self.gpus) < 0 or not part:
            raise ValueError(
                f"{self.gpus} GPUs of {self.milli} thousandths each, CPU {self.cpu} and memory {self.memory} can't be asked for"
            )

    @property
    def size(self) -> int:
        """Thousandths of a GPU, all together."""
        return self.gpus * self.milli


@dataclass(frozen=True)
class Shape:
    """What a node is when empty: CPU in thousandths, memory in MiB, GPUs, their model."""

    cpu: int
    memory: int
    gpus: int
    model: str

    def holds(self, request: Request) -> bool:
        """Could an empty node of this shape take it?"""
        right = not request.models or self.model in request.models
        return right and self.cpu >= request.cpu and self.memory >= request.memory and self.gpus >= request.gpus


@dataclass(frozen=True)
class Rows:
    """States of nodes, one a row: number of the shape, CPU and memory left, thousandths free on each GPU (0 where there is none)."""

    shape: Ints
    cpu: Ints
    memory: Ints
    free: Ints


def together(one: Rows, other: Rows) -> Rows:
    """The rows of both."""
    pairs = ((one.shape, other.shape), (one.cpu, other.cpu), (one.memory, other.memory), (one.free, other.free))
    return Rows(*(np.concatenate(pair) for pair in pairs))


def merged(counts: Mapping[Request, float], limit: int) -> dict[Request, float]:
    """At most ``limit`` kinds for many: CPU and memory rounded up on a grid that is as fine as it can be; then the rarest are left out."""
    step, found = 1.0, dict(counts)
    while len(found) > limit and step < 2.0:
        step *= 1.06
        found = {}
        for request, count in sorted(counts.items()):
            near = Request(_up(request.cpu, step), _up(request.memory, step), request.gpus, request.milli, request.models)
            found[near] = found.get(near, 0.0) + count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:limit])


def _up(value: int, step: float) -> int:
    return math.ceil(step ** math.ceil(math.log(value, step) - 1e-9)) if value > 1 else value


class Demand:
    """The requests that are expected, as arrays over kinds; ``holds[kind, shape]``: an empty node of the shape could take it.

    ``rate[kind, shape]``: how often a GPU of that shape sees the kind, when each kind is spread evenly over the GPUs that could hold it:
    hardware that some requests can't do without sees more of them.
    """

    def __init__(self, counts: Mapping[Request, float], shapes: Sequence[Shape], gpus: Sequence[int], limit: int = 256) -> None:
        """``gpus``: of all nodes of each shape together; ``limit``: kinds that are told apart."""
        kinds = merged(counts, limit)
        self.kinds = tuple(sorted(kinds))
        self.shapes = tuple(shapes)
        total = sum(kinds.values()) or 1.0
        self.share: Floats = np.array([kinds[kind] / total for kind in self.kinds], dtype=float)
        self.cpu, self.memory, self.gpus, self.milli = (
            np.array([getattr(kind, name) for kind in self.kinds], dtype=np.int64) for name in ("cpu", "memory", "gpus", "milli")
        )
        self.size: Ints = self.gpus * self.milli
        self.holds: Flags = np.array([[shape.holds(kind) for shape in shapes] for kind in self.kinds], dtype=bool).reshape(
            len(self.kinds), len(self.shapes)
        )
        reach = (self.holds * np.array(gpus, dtype=float)).sum(1)
        self.rate: Floats = self.holds * (self.share * sum(gpus) / np.maximum(reach, 1.0))[:, None]
        self.mean = float(self.share @ self.size) / WHOLE
        """GPUs that the mean request asks for."""
        self._on_gpu = np.flatnonzero(self.gpus > 0)
        self._sizes, self._of_size = np.unique(self.milli[self._on_gpu], return_inverse=True)

    def usable(self, rows: Rows) -> Floats:
        """Thousandths of the free GPU that the next request can stand on, in expectation; requests of CPU alone use none."""
        kinds = self._on_gpu
        fits = rows.free[:, :, None] >= self._sizes
        count = fits.sum(1)[:, self._of_size]
        amount = (rows.free[:, :, None] * fits).sum(1)[:, self._of_size]
        can = (count >= self.gpus[kinds]) & (rows.cpu[:, None] >= self.cpu[kinds]) & (rows.memory[:, None] >= self.memory[kinds])
        worth: Floats = (amount * (can & self.holds[kinds][:, rows.shape].T)) @ self.share[kinds]
        return worth

    def fillable(self, rows: Rows) -> Floats:
        """Thousandths of GPU that requests of one kind alone could fill, in expectation over the kinds."""
        kinds = self._on_gpu
        units = (rows.free[:, :, None] // np.maximum(self._sizes, 1)).sum(1)[:, self._of_size] // self.gpus[kinds]
        units = np.minimum(units, rows.cpu[:, None] // np.maximum(self.cpu[kinds], 1))
        units = np.minimum(units, rows.memory[:, None] // np.maximum(self.memory[kinds], 1))
        worth: Floats = (units * self.holds[kinds][:, rows.shape].T) @ (self.share[kinds] * self.size[kinds])
        return worth


class Futures:
    """Sampled sequences of requests that a node of each shape might see; the same ones for every state, so that states compare."""

    def __init__(
        self, demand: Demand, sequences: int = 40, length: int = 14, seed: int = 0, offered: float = math.inf, counted: float = 1.0
    ) -> None:
        """``sequences`` for each shape, each of ``length`` requests: a node is worth what it makes of many of them, not of the next few.

        ``counted``: the part of the sequences, those that fill a node best, whose mean is what it is worth.
        ``offered``: GPU that is still to be asked for, as a multiple of the GPUs there are. A node then sees its share of that and no more,
        so that hardware which few requests can use is worth less than what many compete for.
        """
        # What stands for no request at all asks for more memory than there is.
        which = np.full((len(demand.shapes), sequences, length), len(demand.kinds), dtype=np.int64)
        for number, shape in enumerate(demand.shapes):
            drawn = self._draw(demand.rate[:, number], which[number], seed)
            comes = min(length, offered * shape.gpus * float(demand.rate[:, number].sum()) / demand.mean) if demand.mean else length
            ends = np.floor(comes + (np.arange(sequences) + 0.5) / sequences)
            which[number] = np.where(np.arange(length) < ends[:, None], drawn, len(demand.kinds))
        order = which.transpose(2, 0, 1)
        self._cpu = np.append(demand.cpu, 0)[order]
        self._memory = np.append(demand.memory, np.iinfo(np.int64).max)[order]
        self._count = np.append(demand.gpus, 0)[order].astype(np.int16)
        self._milli = np.append(demand.milli, 0)[order].astype(np.int16)
        self.sequences, self.length = sequences, length
        self._left_out = sequences - max(1, round(counted * sequences))

    @staticmethod
    def _draw(rate: Floats, none: Ints, seed: int) -> Ints:
        """Kinds for one shape: in the shares in which they come to it, spread evenly over the sequences."""
        weight = np.cumsum(rate)
        if not len(weight) or weight[-1] <= 0:
            return none
        points = (np.arange(none.size) + 0.5) / none.size
        kinds = np.searchsorted(weight / weight[-1], points)
        order = list(range(none.size))
        random.Random(seed).shuffle(order)
        drawn: Ints = kinds[np.array(order)].reshape(none.shape)
        return drawn

    def fill(self, rows: Rows) -> Floats:
        """Thousandths of GPU that the sequences fill, each request on the fullest GPU that fits; the mean of those that count."""
        parts = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(rows.cpu), ROWS_AT_ONCE)]
        found = [self._fill(Rows(rows.shape[part], rows.cpu[part], rows.memory[part], rows.free[part])) for part in parts]
        return np.concatenate(found) if found else np.zeros(0)

    def _fill(self, rows: Rows) -> Floats:
        many = len(rows.cpu) * self.sequences
        cpu, memory = np.repeat(rows.cpu, self.sequences), np.repeat(rows.memory, self.sequences)
        free = np.repeat(rows.free.astype(np.int16), self.sequences, axis=0)
        every = np.arange(many)
        filled = np.zeros(many, dtype=np.int64)
        for step in range(self.length):
            asked_cpu, asked_memory = self._cpu[step][rows.shape].ravel(), self._memory[step][rows.shape].ravel()
            count, milli = self._count[step][rows.shape].ravel(), self._milli[step][rows.shape].ravel()
            left = np.where(free >= milli[:, None], free, NO_FIT)
            gpu = left.argmin(1)
            can = (cpu >= asked_cpu) & (memory >= asked_memory) & ((left[every, gpu] < NO_FIT) | (count == 0))
            several = np.flatnonzero(can & (count > 1))
            if len(several):
                can[several] = self._take_several(free, several, count)
            free[every, gpu] -= np.where(can & (count == 1), milli, 0).astype(np.int16)
            cpu -= np.where(can, asked_cpu, 0)
            memory -= np.where(can, asked_memory, 0)
            filled += np.where(can, count.astype(np.int64) * milli, 0)
        by_state = filled.reshape(-1, self.sequences)
        if self._left_out:
            by_state = np.partition(by_state, self._left_out, axis=1)[:, self._left_out :]
        mean: Floats = by_state.mean(1)
        return mean

    @staticmethod
    def _take_several(free: NDArray[np.int16], which: Ints, count: NDArray[np.int16]) -> Flags:
        """Take whole GPUs for the requests ``which``; says which of them found enough."""
        idle = free[which] == WHOLE
        rank = idle.cumsum(1)
        enough: Flags = rank[:, -1] >= count[which]
        free[which] = np.where(idle & (rank <= count[which][:, None]) & enough[:, None], 0, free[which])
        return enough
