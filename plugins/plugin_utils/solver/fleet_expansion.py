# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a group of equal hosts to each of its hosts: which patterns its GPUs have, and which replicas take their places.

CPU and RAM of a group are often needed to the last core, so that every host must get its fair part of both. Patterns first and
replicas then are dealt in order of how far they are from the mean of their kind: what is heavy goes where most is left over, what is light
where least is, and the last ones, near the mean, hardly matter. What is too much on a host is exchanged for a lighter replica elsewhere.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

NEARLY = 1e-6
# Classes that need more than this share of the hosts with a place of their shape are dealt first.
CROWDED = 0.1


@dataclass(eq=False)
class Dealt:
    """Replicas of one group by host: arrays by replica ``klass``, ``shape``, ``host``; ``slots``: shape (hosts, GPUs, shapes), the places.

    ``left``: shape (hosts, 2), CPU and RAM (GiB) that is left; below zero where too much was dealt. ``multi``: GPUs of each host that
    replicas with several GPUs have, the last ones of the host; these replicas are not in the arrays but in ``several`` as (class, host).
    """

    klass: Ints
    shape: Ints
    host: Ints
    slots: Ints
    left: Floats
    multi: Ints
    several: list[tuple[int, int]]


class Dealer:
    """One group while its patterns and replicas are dealt."""

    def __init__(self, options: Options, group: int) -> None:
        self.options, self.number = options, group
        self.group = options.groups[group]
        self.shapes = len(options.boards[self.group.board].shapes)
        size = self.group.size
        self.left = numpy.tile(numpy.asarray([self.group.cpus, self.group.ram]), (size, 1))
        # Both resources in shares of a host, so that they can be added up.
        self.scale = 1.0 / numpy.maximum(numpy.asarray([self.group.cpus, self.group.ram]), NEARLY)
        self.open = numpy.full(size, self.group.gpus, dtype=numpy.int64)
        self.slots = numpy.zeros((size, self.group.gpus, self.shapes), dtype=numpy.int64)

    def deal(self, amount: Ints, patterns: Ints, boards: Ints) -> Dealt:
        """``amount``: replicas by option of the whole fleet; ``boards``: how many GPUs get each of ``patterns``."""
        options = self.options
        mine = numpy.flatnonzero((options.group == self.number) & (amount > 0))
        klass, shape, many = options.klass[mine], options.shape[mine], amount[mine]
        single = options.count[klass] == 1
        several = self._several(klass[~single], many[~single])
        multi = self.group.gpus - self.open
        klass, shape, many = klass[single], shape[single], many[single]
        need = numpy.stack((options.cpus[klass], options.ram[klass]), axis=1)
        total = numpy.zeros(self.shapes)
        numpy.add.at(total, shape, many.astype(float))
        mean = numpy.zeros((self.shapes, 2))
        numpy.add.at(mean, shape, need * many[:, None])
        mean /= numpy.maximum(1.0, total)[:, None]
        # Places that stay free weigh nothing: the mean is over all of them.
        places = boards @ patterns
        mean *= (total / numpy.maximum(1.0, numpy.maximum(places, total)))[:, None]
        self._patterns(patterns, boards, mean, self._crowd(klass, shape, many))
        hosts, of = self._replicas(klass, shape, many, need, mean)
        return Dealt(klass[of], shape[of], hosts, self.slots, self.left, multi, several)

    def _several(self, klass: Ints, many: Ints) -> list[tuple[int, int]]:
        """Replicas with several GPUs: largest first, each on the host with the fewest open GPUs that are enough."""
        found: list[tuple[int, int]] = []
        options = self.options
        for one, number in sorted(
            zip(klass.tolist(), many.tolist(), strict=True), key=lambda each: (-int(options.count[each[0]]), each[0])
        ):
            need = numpy.asarray([options.cpus[one], options.ram[one]])
            held = numpy.zeros(self.group.size, dtype=numpy.int64)
            while number:
                fits = (self.open >= options.count[one]) & (self.left >= need - NEARLY).all(axis=1) & (held < options.per_host[one])
                hosts = numpy.flatnonzero(fits)
                order = numpy.lexsort((-(self.left[hosts] * self.scale).sum(axis=1), self.open[hosts]))
                hosts = hosts[order[:number]]
                if not len(hosts):
                    break
                self.open[hosts] -= options.count[one]
                self.left[hosts] -= need
                held[hosts] += 1
                found += [(one, host) for host in hosts.tolist()]
                number -= len(hosts)
        return found

    def _crowd(self, klass: Ints, shape: Ints, many: Ints) -> Floats:
        """By shape, which part of the hosts the class that needs most hosts needs; 0 where it is a small one."""
        found = numpy.zeros(self.shapes)
        numpy.maximum.at(found, shape, many / numpy.maximum(1.0, self.options.per_host[klass] * float(self.group.size)))
        return numpy.where(found > CROWDED, found, 0.0)

    def _patterns(self, patterns: Ints, boards: Ints, mean: Floats, crowd: Floats) -> None:
        """Give every open GPU a pattern, or none."""
        fair = boards @ patterns / self.group.size
        load = numpy.concatenate((patterns @ mean, numpy.zeros((1, 2))))
        counts = numpy.concatenate((boards, [max(0, int(self.open.sum()) - int(boards.sum()))]))
        average = counts @ load / max(1, counts.sum())
        off = (load - average) * self.scale
        over = self.left * self.scale - self.open[:, None] * (average * self.scale)
        used = numpy.zeros(self.group.size, dtype=numpy.int64)
        for which in numpy.argsort(-numpy.abs(off).sum(axis=1), kind="stable").tolist():
            number, turn = int(counts[which]), 1
            held = numpy.zeros(self.group.size, dtype=numpy.int64)
            while number:
                # Equal GPUs are spread over the hosts: the second one of a host waits until every host has its first.
                hosts = numpy.flatnonzero((self.open > 0) & (held < turn))
                if not len(hosts):
                    turn += 1
                    if turn > self.group.gpus:
                        break
                    continue
                # No host is filled sooner than the others, so that the last pattern can be spread as well.
                hosts = hosts[self.open[hosts] == self.open[hosts].max()]
                score = over[hosts] @ off[which]
                if which < len(patterns):
                    score += (fair - self.slots[hosts].sum(axis=1)) @ (patterns[which] * crowd)
                hosts = hosts[numpy.argsort(-score, kind="stable")[: self._share(number)]]
                if which < len(patterns):
                    self.slots[hosts, used[hosts]] = patterns[which]
                    used[hosts] += 1
                self.open[hosts] -= 1
                held[hosts] += 1
                over[hosts] -= off[which]
                number -= len(hosts)

    def _share(self, number: int) -> int:
        """How many hosts get one in a turn: few enough that what the first ones got counts for the rest."""
        return min(number, max(1, self.group.size // 4))

    def _replicas(self, klass: Ints, shape: Ints, many: Ints, need: Floats, mean: Floats) -> tuple[Ints, Ints]:
        """(host of each replica, its number among the given classes)."""
        free = self.slots.sum(axis=1)
        off = (need - mean[shape]) * self.scale
        over = self.left * self.scale - free @ (mean * self.scale)
        hosts_of, which_of = [], []
        # A class that may have few replicas on a host must find many hosts with a free place: the tightest ones choose first.
        hosts_with = (free > 0).sum(axis=0)
        crowd = many / numpy.maximum(1.0, self.options.per_host[klass] * hosts_with[shape].astype(float))
        crowd = numpy.where(crowd > CROWDED, crowd, 0.0)
        for which in numpy.lexsort((klass, -numpy.abs(off).sum(axis=1), -crowd)).tolist():
            number, place = int(many[which]), int(shape[which])
            limit = int(self.options.per_host[klass[which]])
            held = numpy.zeros(self.group.size, dtype=numpy.int64)
            while number:
                hosts = numpy.flatnonzero((free[:, place] > 0) & (held < limit))
                if not len(hosts):
                    break
                hosts = hosts[numpy.argsort(-(over[hosts] @ off[which]), kind="stable")[: self._share(number)]]
                free[hosts, place] -= 1
                held[hosts] += 1
                over[hosts] -= off[which]
                self.left[hosts] -= need[which]
                hosts_of.append(hosts)
                which_of.append(numpy.full(len(hosts), which))
                number -= len(hosts)
        if not hosts_of:
            return numpy.zeros(0, dtype=numpy.int64), numpy.zeros(0, dtype=numpy.int64)
        return numpy.concatenate(hosts_of), numpy.concatenate(which_of)
