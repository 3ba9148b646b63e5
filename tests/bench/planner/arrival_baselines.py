# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The policies that online arrival is measured against; nothing here is shared with plugins/.

From the evaluation of fragmentation gradient descent (FGD, USENIX ATC'23): random, dot product, clustering, packing, best fit, and FGD
with its score cut to a whole number from 0 to 100 and the first name among equals. Besides, first fit and packing of nodes (the most
allocated one), which that paper leaves out. Written from the paper's descriptions, not from its code.
"""

from __future__ import annotations

import random
import typing as t
from collections import Counter

import numpy as np
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_world import Node, Request
from numpy.typing import NDArray

Numbers = NDArray[t.Any]
Place = tuple[int, tuple[int, ...]]


class Baseline:
    """A fleet and what is taken of it; a policy says which of the nodes that fit. Nodes are tried in the order given."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.most = max(node.gpus for node in nodes)
        self.cpu_all = np.array([node.cpu for node in nodes], dtype=np.int64)
        self.memory_all = np.array([node.memory for node in nodes], dtype=np.int64)
        self.gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
        self.cpu, self.memory = self.cpu_all.copy(), self.memory_all.copy()
        self.free = np.where(np.arange(self.most) < self.gpus[:, None], 1000, 0)
        self.models = np.array([node.model for node in nodes])
        self.version = np.zeros(len(nodes), dtype=np.int64)
        self._allowed: dict[tuple[str, ...], Numbers] = {}

    def allowed(self, models: tuple[str, ...]) -> Numbers:
        """Which nodes have one of the models."""
        if models not in self._allowed:
            self._allowed[models] = np.isin(self.models, models) if models else np.ones(len(self.nodes), dtype=bool)
        return self._allowed[models]

    def fits(self, request: Request) -> Numbers:
        """Which nodes have room."""
        room: Numbers = (self.cpu >= request.cpu) & (self.memory >= request.memory) & self.allowed(request.models)
        if request.gpus:
            room &= (self.free >= request.milli).sum(1) >= request.gpus
        return room

    def gpu_choice(self, node: int, request: Request) -> tuple[int, ...]:
        """The fullest GPU that has room, the first of equals; whole ones in their order."""
        if not request.gpus:
            return ()
        left = self.free[node]
        order = [int(each) for each in np.lexsort((np.arange(self.most), left)) if left[each] >= request.milli]
        return tuple(order[: request.gpus])

    def place(self, request: Request) -> Place | None:
        """A place for the request, taken; None when no node has room."""
        which = np.flatnonzero(self.fits(request))
        if not len(which):
            return None
        node = self.choose(request, which)
        gpus = self.gpu_choice(node, request)
        self.cpu[node] -= request.cpu
        self.memory[node] -= request.memory
        self.free[node, list(gpus)] -= request.milli
        self.version[node] += 1
        return node, gpus

    def choose(self, request: Request, which: Numbers) -> int:
        """The node among those that fit."""
        raise NotImplementedError


class FirstFit(Baseline):
    """The first node."""

    def choose(self, _request: Request, which: Numbers) -> int:
        """The first."""
        return int(which[0])


class Random(Baseline):
    """Any node, and any of its GPUs that fits."""

    def __init__(self, nodes: list[Node], seed: str = "0") -> None:
        super().__init__(nodes)
        self.rng = random.Random(f"random policy {seed}")

    def choose(self, _request: Request, which: Numbers) -> int:
        """Any."""
        return int(which[self.rng.randrange(len(which))])

    def gpu_choice(self, node: int, request: Request) -> tuple[int, ...]:
        """Any."""
        fitting = [int(each) for each in np.flatnonzero(self.free[node] >= request.milli)]
        return tuple(sorted(self.rng.sample(fitting, request.gpus))) if request.gpus else ()


class Scored(Baseline):
    """The highest score; the first of equals."""

    def choose(self, request: Request, which: Numbers) -> int:
        """The first of the best."""
        return int(which[np.argmax(self.score(request, which))])

    def score(self, request: Request, which: Numbers) -> Numbers:
        """One number for each node."""
        raise NotImplementedError

    def parts(self, which: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """(CPU, memory, GPU) left, as shares of the largest node of the fleet."""
        left = self.free[which].sum(1)
        return self.cpu[which] / self.cpu_all.max(), self.memory[which] / self.memory_all.max(), left / (1000 * self.most)


class DotProduct(Scored):
    """The smallest product of what is asked and what is left."""

    def score(self, request: Request, which: Numbers) -> Numbers:
        """Negative product."""
        cpu, memory, gpu = self.parts(which)
        asked = (request.cpu / self.cpu_all.max(), request.memory / self.memory_all.max(), request.size / (1000 * self.most))
        product: Numbers = cpu * asked[0] + memory * asked[1] + gpu * asked[2]
        return -product


class BestFit(Scored):
    """The least that is left, all resources added up with equal weight."""

    def score(self, _request: Request, which: Numbers) -> Numbers:
        """Negative sum; the request takes the same from each node."""
        cpu, memory, gpu = self.parts(which)
        left: Numbers = cpu + memory + gpu
        return -left


class BinPack(Scored):
    """The node with the greatest part of itself allocated after placing, the mean over CPU, memory and GPU."""

    def score(self, request: Request, which: Numbers) -> Numbers:
        """Mean part allocated."""
        cpu = 1 - (self.cpu[which] - request.cpu) / self.cpu_all[which]
        memory = 1 - (self.memory[which] - request.memory) / self.memory_all[which]
        gpu = 1 - (self.free[which].sum(1) - request.size) / (1000 * self.gpus[which])
        used: Numbers = cpu + memory + gpu
        return used


class GpuPacking(Scored):
    """First GPUs that are shared already, then idle GPUs of nodes in use, then idle nodes; the fullest of each."""

    def score(self, request: Request, which: Numbers) -> Numbers:
        """Tier, then how full."""
        free = self.free[which]
        whole = np.where(np.arange(self.most) < self.gpus[which][:, None], free == 1000, False)
        used = self.gpus[which] - whole.sum(1)
        score: Numbers = np.where(used > 0, 1.0, 0.0) + used / (10.0 * self.most)
        if request.gpus == 1 and request.milli < 1000:
            fitting = np.where((free >= request.milli) & (free < 1000), free, 2000).min(1)
            score = np.where(fitting < 2000, 3.0 - fitting / 1000, score)
        return score


class GpuClustering(Scored):
    """Requests of one sort together, all parts of a GPU being one: nodes that hold only such, then some, then idle ones, then others."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(nodes)
        self.held: list[Counter[tuple[int, bool]]] = [Counter() for _node in nodes]

    def score(self, request: Request, which: Numbers) -> Numbers:
        """Tier, then how full."""
        sort = _sort(request)
        held = [self.held[each] for each in which]
        tier = np.array([3.0 if set(one) == {sort} else 2.0 if sort in one else 1.0 if not one else 0.0 for one in held])
        worth: Numbers = tier + 0.5 * (1 - self.free[which].sum(1) / (1000 * self.gpus[which]))
        return worth

    def place(self, request: Request) -> Place | None:
        """As ever, and it is noted what the node holds."""
        found = super().place(request)
        if found and request.gpus:
            self.held[found[0]][_sort(request)] += 1
        return found


def _sort(request: Request) -> tuple[int, bool]:
    return request.gpus, request.milli < 1000


class Fgd(Baseline):
    """Fragmentation gradient descent over the most common requests (95 % of all); memory is no part of its measure."""

    def __init__(self, nodes: list[Node], sample: list[Request]) -> None:
        super().__init__(nodes)
        counts = Counter((each.cpu, each.gpus, each.milli, each.models) for each in sample)
        typical, seen = [], 0
        for shape, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if seen >= 0.95 * len(sample):
                break
            typical.append((shape, count))
            seen += count
        shapes = [shape for shape, _count in typical]
        self.share = np.array([count / seen for _shape, count in typical])
        self.t_cpu = np.array([shape[0] for shape in shapes])
        self.t_gpus = np.array([shape[1] for shape in shapes])
        self.sizes, self.t_size = np.unique([shape[2] for shape in shapes], return_inverse=True)
        self.t_allowed = np.array([self.allowed(shape[3]) for shape in shapes])
        everywhere = np.arange(len(nodes))
        self.now = self.fragments(everywhere, self.cpu, self.free)
        self.now_of = np.zeros(len(nodes), dtype=np.int64)
        self.known: dict[Request, tuple[Numbers, Numbers, Numbers]] = {}

    def fragments(self, which: Numbers, cpu: Numbers, free: Numbers) -> Numbers:
        """Expected thousandths of GPU on each node that a typical request can't use."""
        count = np.stack([(free >= size).sum(1) for size in self.sizes], axis=1)
        usable = np.stack([np.where(free >= size, free, 0).sum(1) for size in self.sizes], axis=1)
        can = (count[:, self.t_size] >= self.t_gpus) & (cpu[:, None] >= self.t_cpu) & self.t_allowed[:, which].T & (self.t_gpus > 0)
        lost: Numbers = free.sum(1) - np.where(can, usable[:, self.t_size], 0) @ self.share
        return lost

    def place(self, request: Request) -> Place | None:
        """The node (and the GPU) with the best score; scores are remembered until a node changes."""
        count = len(self.nodes)
        if request not in self.known:
            self.known[request] = (np.full(count, -1.0), np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64))
        score, gpu, stamp = self.known[request]
        self.refresh(request, np.flatnonzero(stamp != self.version), score, gpu)
        stamp[:] = self.version
        node = int(np.argmax(score))
        if score[node] < 0:
            return None
        part = request.gpus == 1 and request.milli < 1000
        gpus = (int(gpu[node]),) if part else tuple(int(each) for each in np.flatnonzero(self.free[node] == 1000)[: request.gpus])
        self.cpu[node] -= request.cpu
        self.memory[node] -= request.memory
        self.free[node, list(gpus)] -= request.milli
        self.version[node] += 1
        return node, gpus

    def refresh(self, request: Request, old: Numbers, score: Numbers, gpu: Numbers) -> None:
        """Scores of the nodes ``old`` anew."""
        score[old] = -1.0
        stale = np.flatnonzero(self.now_of != self.version)
        if len(stale):
            self.now[stale] = self.fragments(stale, self.cpu[stale], self.free[stale])
            self.now_of[stale] = self.version[stale]
        room = (self.cpu[old] >= request.cpu) & (self.memory[old] >= request.memory) & self.allowed(request.models)[old]
        room &= (self.free[old] >= request.milli).sum(1) >= request.gpus if request.gpus else True
        old = old[room]
        if not len(old):
            return
        if request.gpus == 1 and request.milli < 1000:
            row, which = np.nonzero(self.free[old] >= request.milli)
            free = self.free[old[row]]
            free[np.arange(len(row)), which] -= request.milli
        else:
            row, which = np.arange(len(old)), np.zeros(len(old), dtype=np.int64)
            free = self.free[old].copy()
            rank = np.cumsum(free == 1000, axis=1)
            free[(free == 1000) & (rank <= request.gpus) & (request.gpus > 0)] = 0
        after = self.fragments(old[row], self.cpu[old[row]] - request.cpu, free)
        value = np.floor(100 / (1 + np.exp(-(self.now[old[row]] - after) / 1000)))
        for each in range(len(row) - 1, -1, -1):  # backwards: the first GPU of equals stays
            node = old[row[each]]
            if value[each] >= score[node]:
                score[node], gpu[node] = value[each], which[each]


def interleaved(nodes: list[Node]) -> list[Node]:
    """The nodes with the shapes of hardware spread evenly over the order."""
    by: dict[tuple[t.Any, ...], list[Node]] = {}
    for node in nodes:
        by.setdefault(tuple(node[1:]), []).append(node)
    keyed = [((number + 0.5) / len(group), shape, node) for shape, group in by.items() for number, node in enumerate(group)]
    return [node for _key, _shape, node in sorted(keyed, key=lambda item: item[:2])]


def baselines(nodes: list[Node], sample: list[Request], seed: str) -> dict[str, t.Callable[[], Baseline]]:
    """Every baseline, by name, to be made for one run; ``sample`` is what FGD knows of the mix."""
    by_name = sorted(nodes, key=lambda node: node.name)
    return {
        "random": lambda: Random(by_name, seed),
        "dot-product": lambda: DotProduct(by_name),
        "gpu-clustering": lambda: GpuClustering(by_name),
        "gpu-packing": lambda: GpuPacking(by_name),
        "best-fit": lambda: BestFit(by_name),
        "first-fit": lambda: FirstFit(by_name),
        "binpack": lambda: BinPack(by_name),
        "fgd": lambda: Fgd(by_name, sample),
        "fgd-interleaved": lambda: Fgd(interleaved(by_name), sample),
    }
