# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the places that fit is best: the policies of online admission, each a worth for every place.

Worths are remembered per request and node until the node changes, so a decision costs what has changed since the same request last came.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import WHOLE, Demand, Futures, Request, Rows, together
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.pool import Options, Pool
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy as np

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import Floats, Ints

MOST_REMEMBERED = 1_024
"""Different requests whose worths are kept; a stream with more kinds than that forgets them all now and then."""

Worth = Callable[[Pool, Request, Options], "Floats"]


@dataclass
class _Known:
    """Of one request: the worth of the best place on each node, its GPU, and the version of the node that this was found for."""

    worth: Floats
    gpu: Ints
    version: Ints


class Ranking:
    """The best place on each node by one worth."""

    def __init__(self, pool: Pool, worth: Worth) -> None:
        self._pool, self._worth = pool, worth
        self._known: dict[Request, _Known] = {}

    def best(self, request: Request, which: Ints) -> tuple[Floats, Ints]:
        """(worth, GPU) of the best place on each of the nodes ``which``, which have room; the fullest GPU of equals."""
        known = self._known.get(request)
        if known is None:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            count = len(self._pool.nodes)
            known = _Known(np.zeros(count), np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64))
            self._known[request] = known
        changed = which[known.version[which] != self._pool.version[which]]
        if len(changed):
            options = self._pool.options(request, changed)
            worth = self._worth(self._pool, request, options)
            start = np.flatnonzero(np.diff(options.node, prepend=-1))
            highest = np.maximum.reduceat(worth, start)
            group = np.cumsum(np.diff(options.node, prepend=-1) != 0) - 1
            equal = np.flatnonzero(worth == highest[group])
            _group, first = np.unique(group[equal], return_index=True)
            known.worth[changed], known.gpu[changed] = highest, options.gpu[equal[first]]
            known.version[changed] = self._pool.version[changed]
        return known.worth[which], known.gpu[which]


class Kept:
    """Worth of a place: what its node keeps of a measure of free room, so less than nothing. ``coarse``: as FGD cuts it to whole points."""

    def __init__(self, pool: Pool, measure: Callable[[Rows], Floats], coarse: bool = False) -> None:
        self._measure, self._coarse = measure, coarse
        self._now = np.zeros(len(pool.nodes))
        self._version = np.full(len(pool.nodes), -1, dtype=np.int64)

    def __call__(self, pool: Pool, request: Request, options: Options) -> Floats:
        """The worths, in thousandths of a GPU."""
        nodes = np.unique(options.node)
        changed = nodes[self._version[nodes] != pool.version[nodes]]
        # Measured together: what a measure costs is mostly the call.
        measured = self._measure(together(pool.rows(changed), options.after))
        self._now[changed] = measured[: len(changed)]
        self._version[changed] = pool.version[changed]
        kept: Floats = measured[len(changed) :] - self._now[options.node]
        if self._coarse:
            points: Floats = np.floor(100 / (1 + np.exp(-(kept + request.size) / WHOLE)))
            return points
        return kept


def nothing(_pool: Pool, _request: Request, options: Options) -> Floats:
    """First fit: all places are equal, so the first node is taken."""
    return np.zeros(len(options.node))


def least_left(pool: Pool, _request: Request, options: Options) -> Floats:
    """Best fit: the less is left of all resources together, as parts of the largest node, the better."""
    after = options.after
    left: Floats = after.cpu / pool.most_cpu + after.memory / pool.most_memory + after.free.sum(1) / (WHOLE * max(1, after.free.shape[1]))
    return -left


def most_used(pool: Pool, _request: Request, options: Options) -> Floats:
    """Packing of nodes: the greater a part of the node is used, the better; mean over resources."""
    after = options.after
    cpu, memory, gpu = np.maximum(1, [[shape.cpu, shape.memory, WHOLE * shape.gpus] for shape in pool.shapes]).T
    left: Floats = after.cpu / cpu[after.shape] + after.memory / memory[after.shape] + after.free.sum(1) / gpu[after.shape]
    return -left


def gpus_in_use(pool: Pool, request: Request, options: Options) -> Floats:
    """Packing of GPUs: one that is shared already, the fullest first; else nodes that are in use, the fullest first; else an idle one."""
    before = pool.free[options.node]
    gpus = np.array([shape.gpus for shape in pool.shapes])[options.after.shape]
    used = gpus - (before == WHOLE).sum(1)
    worth: Floats = np.where(used > 0, 1.0, 0.0) + used / (10.0 * max(1, before.shape[1]))
    if request.gpus == 1 and request.milli < WHOLE:
        free = before[np.arange(len(options.node)), options.gpu]
        worth = np.where(free < WHOLE, 3.0 - free / WHOLE, worth)
    return worth


def alike_together(pool: Pool, request: Request, options: Options) -> Floats:
    """Clustering: nodes that hold only requests for the same size of GPU, nodes that hold some, idle ones, others; the fullest of each."""
    same, every = pool.alike(request, options.node)
    worth: Floats = np.where((same > 0) & (same == every), 3.0, np.where(same > 0, 2.0, np.where(every == 0, 1.0, 0.0)))
    gpus = np.array([shape.gpus for shape in pool.shapes])[options.after.shape]
    fuller: Floats = worth + 0.5 * (1 - options.after.free.sum(1) / (WHOLE * np.maximum(1, gpus)))
    return fuller


def least_product(pool: Pool, request: Request, options: Options) -> Floats:
    """Dot product: the smaller the product of what is asked and what is left, the better."""
    after = options.after
    pairs = (
        (after.cpu, request.cpu, pool.most_cpu),
        (after.memory, request.memory, pool.most_memory),
        (after.free.sum(1), request.size, WHOLE * max(1, after.free.shape[1])),
    )
    product: Floats = np.sum([(left + asked) / most * (asked / most) for left, asked, most in pairs], axis=0)
    return -product


@dataclass(frozen=True)
class Policy:
    """``first``: a worth for all places; ``second``: the one that decides among the ``look`` nodes which are best by the first."""

    name: str
    first: Callable[[Pool, Demand], Worth]
    second: Callable[[Pool, Demand], Worth] | None = None
    look: int = 0


class Chooser:
    """One policy at work on one pool."""

    def __init__(self, policy: Policy, pool: Pool, demand: Demand) -> None:
        self.policy = policy
        self._pool = pool
        self._first = Ranking(pool, policy.first(pool, demand))
        self._second = Ranking(pool, policy.second(pool, demand)) if policy.second else None
        self._all = np.arange(len(pool.nodes))

    def place(self, request: Request) -> tuple[int, tuple[int, ...]] | None:
        """(number of the node, its GPUs), taken from the pool; None when no node has room."""
        which = self._all[self._pool.fits(request, self._all)]
        if not len(which):
            return None
        worth, gpu = self._first.best(request, which)
        if self._second is not None:
            if len(which) > self.policy.look:
                # Stable, so that equals are looked at in the order of the pool.
                which = np.sort(which[np.argsort(-worth, kind="stable")[: self.policy.look]])
            worth, gpu = self._second.best(request, which)
        chosen = int(np.argmax(worth))
        node = int(which[chosen])
        return node, self._pool.take(request, node, int(gpu[chosen]))


LENGTH, COUNTED = 28, 0.25
"""Of the default measure: requests in each future, so many that small ones fill a node of eight GPUs; and the part of the futures that
counts. Measured on seven mixes and fifteen made-up fleets: with all of them a node is judged by requests that go elsewhere."""
FUTURES_WEIGH = 0.7
"""Of the mean of all futures, beside what one kind alone could fill: better where few and large requests leave a fleet no choice."""
OFFERED = 1.3
"""GPU still to be asked for, as a multiple of the GPUs, for the policy that counts on no more than that."""


def _fillable(pool: Pool, demand: Demand) -> Worth:
    return Kept(pool, demand.fillable)


def _best_futures(pool: Pool, demand: Demand) -> Worth:
    return Kept(pool, Futures(demand, length=LENGTH, counted=COUNTED).fill)


def _mean_futures(pool: Pool, demand: Demand, offered: float = math.inf) -> Worth:
    futures = Futures(demand, offered=offered)

    def measure(rows: Rows) -> Floats:
        return FUTURES_WEIGH * futures.fill(rows) + (1 - FUTURES_WEIGH) * demand.fillable(rows)

    return Kept(pool, measure)


FUTURES = Policy("futures", _fillable, _best_futures, look=48)
POLICIES = (
    FUTURES,
    Policy("futures-mean", _fillable, _mean_futures, look=48),
    Policy("futures-offered", _fillable, lambda pool, demand: _mean_futures(pool, demand, OFFERED), look=48),
    Policy("fillable", _fillable),
    Policy("fragmentation", lambda pool, demand: Kept(pool, demand.usable)),
    Policy("fragmentation-coarse", lambda pool, demand: Kept(pool, demand.usable, coarse=True)),
    Policy("first-fit", lambda _pool, _demand: nothing),
    Policy("best-fit", lambda _pool, _demand: least_left),
    Policy("node-packing", lambda _pool, _demand: most_used),
    Policy("gpu-packing", lambda _pool, _demand: gpus_in_use),
    Policy("gpu-clustering", lambda _pool, _demand: alike_together),
    Policy("dot-product", lambda _pool, _demand: least_product),
)
