# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small likeness of a large fleet's shared GPUs, on which their patterns are sought before the large program is solved.

Shared GPUs have too many patterns to list. Those that pay are found by prices, and each time that some are, the program is solved anew:
thousands of steps where it has a thousand rows, a few where classes that take the same of a GPU count as one, each board has one host
for each of its GPUs with the mean part of CPU and RAM, and quotas are taken off beforehand. The prices are nearly the same.
"""

from __future__ import annotations

import typing as t
from collections import defaultdict
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import Group
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import UNLIMITED, Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# (places: each a board and a shape there; priority) of classes that count as one.
_Kind = tuple[tuple[tuple[int, int], ...], int]


def likeness(options: Options) -> tuple[Options, list[int]] | None:
    """(The likeness, by its boards their numbers in the fleet); None where nobody shares GPUs."""
    boards = [number for number, board in enumerate(options.boards) if board.shared]
    asked = _served_by_quotas(options)
    kinds = _kinds(options, asked)
    if not kinds:
        return None
    names = sorted(kinds)
    weight = [asked[kinds[name]] for name in names]
    replicas = numpy.ceil([each.sum() for each in weight]).astype(numpy.int64)

    def mean(amount: Floats) -> Floats:
        return numpy.asarray([float(amount[kinds[name]] @ each / each.sum()) for name, each in zip(names, weight, strict=True)])

    klass, group, shape = (
        numpy.asarray(column, dtype=numpy.int64)
        for column in zip(*((number, *place) for number, (places, _level) in enumerate(names) for place in places), strict=True)
    )
    nothing = numpy.zeros(0)
    cpus, ram = mean(options.cpus), mean(options.ram)
    small = replace(
        options,
        boards=tuple(options.boards[number] for number in boards),
        groups=tuple(_alike(options, board, number) for number, board in enumerate(boards)),
        classes=tuple(options.classes[kinds[name][0]] for name in names),
        quotas=(),
        replicas=replicas,
        priority=numpy.asarray([level for _places, level in names], dtype=numpy.int64),
        cpus=cpus,
        ram=ram,
        count=numpy.ones(len(names), dtype=numpy.int64),
        team=numpy.full(len(names), -1, dtype=numpy.int64),
        per_host=numpy.full(len(names), UNLIMITED, dtype=numpy.int64),
        klass=klass,
        group=numpy.searchsorted(boards, group),
        shape=shape,
        most=replicas[klass],
        memory=numpy.zeros(len(klass)),
        worth=numpy.zeros(len(klass)),
        taken=numpy.stack((cpus, ram), axis=1)[klass],
        quota_memory=nothing,
        quota_worth=nothing,
    )
    return small, boards


def _served_by_quotas(options: Options) -> Floats:
    """By class, the replicas that its team's quota holds, the higher priorities first and where they take least; fractional ones."""
    asked = options.replicas.astype(float)
    for cost, most in ((options.memory, options.quota_memory), (options.worth, options.quota_worth)):
        least = numpy.full(len(asked), numpy.inf)
        numpy.minimum.at(least, options.klass, cost)
        least[numpy.isinf(least)] = 0.0
        left = most.copy()
        for level in options.levels:
            mine = numpy.flatnonzero((options.priority == level) & (options.team >= 0))
            team = options.team[mine]
            taken = numpy.bincount(team, weights=(asked * least)[mine], minlength=len(left))
            part = numpy.minimum(1.0, left / numpy.maximum(taken, 1e-9))
            asked[mine] *= part[team]
            left -= taken * part
    return asked


def _kinds(options: Options, asked: Floats) -> dict[_Kind, list[int]]:
    """The classes that share GPUs, by what they take of them."""
    board = numpy.asarray([group.board for group in options.groups], dtype=numpy.int64)[options.group]
    sharing = numpy.asarray([one.isolation == "shared" for one in options.classes], dtype=bool) & (asked > 0)
    rows = numpy.stack((options.klass, board, options.shape), axis=1)[sharing[options.klass]]
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    # Once for each board, whatever groups of hosts have it, in order.
    for klass, number, shape in numpy.unique(rows, axis=0).tolist():
        places[klass].append((number, shape))
    found: dict[_Kind, list[int]] = defaultdict(list)
    for klass, each in places.items():
        found[tuple(each), int(options.priority[klass])].append(klass)
    return found


def _alike(options: Options, board: int, number: int) -> Group:
    """All hosts of a board as hosts of one GPU each; ``number``: of the board in the likeness."""
    mine = [group for group in options.groups if group.board == board]
    gpus = sum(group.size * group.gpus for group in mine)
    cpus = sum(group.size * group.cpus for group in mine) / gpus
    ram = sum(group.size * group.ram for group in mine) / gpus
    return Group(number, 1, cpus, ram, mine[0].hosts[:1] * gpus)
