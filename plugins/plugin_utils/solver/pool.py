# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nodes have free while requests come one at a time, and the places where a request would fit.

Nodes go by number, in an order of their own that depends on hardware only: how a site names or sorts its hosts changes nothing.
"""

from __future__ import annotations

import copy
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import NO_FIT, WHOLE, Demand, Request, Rows, Shape
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy as np

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import Flags, Ints

UNFORESEEN = 0.02
"""Requests of several whole GPUs that are expected beside those that were learnt, as a part of these."""


@dataclass(frozen=True)
class Node:
    """One node: its name and what it is when empty."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Place:
    """Where a request stands: the node's name, and the numbers of its GPUs there, from 0."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """Places that fit one request: number of the node, first GPU (-1 for none), and the state of the node afterwards, one a row."""

    node: Ints
    gpu: Ints
    after: Rows


def interleaved(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with their shapes spread evenly over the order: whatever takes the first that fits then meets all hardware alike.

    Order and names of the input decide only between equal nodes.
    """
    by: dict[Shape, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        by.setdefault(node.shape, []).append(node)
    keyed = [
        ((number + 0.5) / len(group), (shape.cpu, shape.memory, shape.gpus, shape.model), node)
        for shape, group in by.items()
        for number, node in enumerate(group)
    ]
    return [node for *_key, node in sorted(keyed, key=lambda item: item[:2])]


class Pool:
    """What the nodes have free; nodes go by number here, in the order of ``interleaved``."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """:raises SolverError: there is no numpy here."""
        if np is None:
            raise SolverError("numpy is not installed, and online admission needs it")
        self.nodes = interleaved(nodes)
        self.shapes = tuple(sorted({node.shape for node in nodes}, key=lambda shape: (shape.cpu, shape.memory, shape.gpus, shape.model)))
        number = {shape: place for place, shape in enumerate(self.shapes)}
        self.shape: Ints = np.array([number[node.shape] for node in self.nodes], dtype=np.int64)
        self.cpu: Ints = np.array([node.shape.cpu for node in self.nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.shape.memory for node in self.nodes], dtype=np.int64)
        gpus = np.array([node.shape.gpus for node in self.nodes], dtype=np.int64)
        self.free: Ints = np.where(np.arange(int(gpus.max(initial=1))) < gpus[:, None], WHOLE, 0)
        self.version: Ints = np.zeros(len(self.nodes), dtype=np.int64)
        """How often each node has changed: what is remembered of a node is right while this is the same."""
        self.held: Ints = np.zeros((len(self.nodes), 0), dtype=np.int64)
        """How many requests of each size of GPU stand on each node; a column for each size that has ever been placed."""
        self._sizes: dict[tuple[int, int], int] = {}
        self.most_cpu = max([1, *(shape.cpu for shape in self.shapes)])
        self.most_memory = max([1, *(shape.memory for shape in self.shapes)])
        self._could: dict[Request, Flags] = {}

    def demand(self, counts: Mapping[Request, float], unforeseen: float = UNFORESEEN) -> Demand:
        """What these nodes may expect when requests come as often as ``counts`` says, and now and then one of several whole GPUs.

        That one keeps the largest room whole wherever this costs nothing, in case that what is expected is wrong.
        """
        nodes = np.bincount(self.shape, minlength=len(self.shapes))
        gpus = [int(count) * shape.gpus for count, shape in zip(nodes, self.shapes, strict=True)]
        known = sum(counts.values()) or 1.0
        expected = dict(counts)
        for request, share in self._unforeseen():
            expected[request] = expected.get(request, 0.0) + unforeseen * share * known
        return Demand(expected, self.shapes, gpus)

    def _unforeseen(self) -> list[tuple[Request, float]]:
        """1, 2, 4, ... whole GPUs with what belongs to them on the leanest node, the more GPUs the rarer; shares of all of them."""
        able = [shape for shape in self.shapes if shape.gpus]
        most = max((shape.gpus for shape in able), default=0)
        cpu, memory = (min((getattr(shape, name) // shape.gpus for shape in able), default=0) for name in ("cpu", "memory"))
        sizes = [2**power for power in range(most.bit_length())]
        total = sum(1 / size for size in sizes)
        return [(Request(size * cpu, size * memory, size, WHOLE), 1 / size / total) for size in sizes]

    @property
    def gpus(self) -> int:
        """In all nodes together."""
        return sum(node.shape.gpus for node in self.nodes)

    def copy(self) -> Pool:
        """The same state; what happens to one does not happen to the other."""
        twin = copy.copy(self)
        twin.cpu, twin.memory, twin.free, twin.version = self.cpu.copy(), self.memory.copy(), self.free.copy(), self.version.copy()
        twin.held, twin._sizes = self.held.copy(), dict(self._sizes)
        return twin

    def sample(self, most: int) -> Pool:
        """At most ``most`` of the nodes as they are now, evenly over the order, so in about the shares of their shapes."""
        count = len(self.nodes)
        which = np.arange(count) if count <= most else np.arange(most) * count // most
        part = self.copy()
        part.nodes = [self.nodes[number] for number in which]
        part.shape, part.cpu, part.memory = self.shape[which], self.cpu[which], self.memory[which]
        part.free, part.version, part.held = self.free[which], self.version[which], self.held[which]
        return part

    def rows(self, which: Ints) -> Rows:
        """The states of some nodes."""
        return Rows(self.shape[which], self.cpu[which], self.memory[which], self.free[which])

    def fits(self, request: Request, which: Ints) -> Flags:
        """Which of the nodes ``which`` have room for it."""
        if request not in self._could:
            self._could[request] = np.array([shape.holds(request) for shape in self.shapes], dtype=bool)
        room: Flags = self._could[request][self.shape[which]] & (self.cpu[which] >= request.cpu) & (self.memory[which] >= request.memory)
        if request.gpus:
            room &= (self.free[which] >= request.milli).sum(1) >= request.gpus
        return room

    def options(self, request: Request, which: Ints) -> Options:
        """All places on nodes that have room: one GPU of each amount that is free, the fullest first; whole GPUs in their order."""
        if request.gpus == 1 and request.milli < WHOLE:
            fitting = np.where(self.free[which] >= request.milli, self.free[which], NO_FIT)
            order = np.argsort(fitting, axis=1, kind="stable")
            value = np.take_along_axis(fitting, order, axis=1)
            new = value < NO_FIT
            new[:, 1:] &= value[:, 1:] != value[:, :-1]
            row, place = np.nonzero(new)
            gpu = order[row, place]
            free = self.free[which[row]]
            free[np.arange(len(row)), gpu] -= request.milli
        else:
            row, gpu = np.arange(len(which)), np.full(len(which), -1, dtype=np.int64)
            idle = self.free[which] == WHOLE
            free = np.where(idle & (idle.cumsum(1) <= request.gpus), 0, self.free[which])
        node = which[row]
        return Options(node, gpu, Rows(self.shape[node], self.cpu[node] - request.cpu, self.memory[node] - request.memory, free))

    def take(self, request: Request, node: int, gpu: int) -> tuple[int, ...]:
        """Take the room; the numbers of the GPUs."""
        if request.gpus == 1 and request.milli < WHOLE:
            gpus: tuple[int, ...] = (gpu,)
        else:
            gpus = tuple(int(each) for each in np.flatnonzero(self.free[node] == WHOLE)[: request.gpus])
        self._change(node, request, gpus, 1)
        return gpus

    def give_back(self, request: Request, node: int, gpus: tuple[int, ...]) -> None:
        """Room of a request that has left."""
        self._change(node, request, gpus, -1)

    def _change(self, node: int, request: Request, gpus: tuple[int, ...], sign: int) -> None:
        self.cpu[node] -= sign * request.cpu
        self.memory[node] -= sign * request.memory
        self.free[node, list(gpus)] -= sign * request.milli
        if request.gpus:
            column = self._column(request)
            self.held[node, column] += sign
        self.version[node] += 1

    def alike(self, request: Request, which: Ints) -> tuple[Ints, Ints]:
        """On each of some nodes: how many requests for the same size of GPU stand there, and how many for any."""
        column = self._sizes.get((request.gpus, request.milli))
        every = self.held[which]
        same: Ints = np.zeros(len(which), dtype=np.int64) if column is None else every[:, column]
        return same, every.sum(1)

    def _column(self, request: Request) -> int:
        size = (request.gpus, request.milli)
        if size not in self._sizes:
            self._sizes[size] = len(self._sizes)
            if len(self._sizes) > self.held.shape[1]:
                self.held = np.pad(self.held, ((0, 0), (0, len(self._sizes))))
        return self._sizes[size]
