# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet's problem as arrays in canonical order: groups of hosts, and the options of each class (a group and a shape there).

Nothing below this file knows a name. Hosts are ordered by what they are and only then by name; so are classes by key.
"""

from __future__ import annotations

import typing as t
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import GIB, Group, alike, group_of, usable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetProblem, FleetQuota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_taking import Asked, taken_of_hosts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_AT_ONCE, AT_ONCE_TO_SPARE = 128, 2.0
# More slices than a GPU has places for.
MOST_ON_GPU = 64
# More of anything than a host has, of replicas too.
UNLIMITED = 2**40


@dataclass(frozen=True, eq=False)
class Options:
    """Arrays by class: ``replicas``, ``priority``, ``cpus``, ``ram`` (GiB), ``count`` (GPUs), ``team`` (number of its quota, -1: none).

    Arrays by option: its ``klass``, ``group`` and ``shape``, the ``most`` replicas there, and what a quota counts for one replica:
    ``memory`` (GiB, whole ones) and ``worth`` (GPUs). ``taken``: CPU and RAM (GiB) that nobody else has of the group then, shape
    (options, 2). ``quota_memory`` and ``quota_worth`` by quota; infinite where there is none.
    ``per_host``: by class, replicas on one host. Options are in order of class, group and shape.
    """

    boards: tuple[Board, ...]
    groups: tuple[Group, ...]
    classes: tuple[FleetClass, ...]
    quotas: tuple[FleetQuota, ...]
    replicas: Ints
    priority: Ints
    cpus: Floats
    ram: Floats
    count: Ints
    team: Ints
    per_host: Ints
    klass: Ints
    group: Ints
    shape: Ints
    most: Ints
    memory: Floats
    worth: Floats
    taken: Floats
    quota_memory: Floats
    quota_worth: Floats

    @cached_property
    def needs(self) -> Floats:
        """CPU and RAM (GiB) of one replica of each class, shape (classes, 2)."""
        return numpy.stack((self.cpus, self.ram), axis=1)

    @property
    def levels(self) -> list[int]:
        """The priorities, greatest first."""
        return sorted(set(self.priority.tolist()), reverse=True)


def options_of(problem: FleetProblem, *, up: bool = True, alone: bool = False, mixed: bool = False) -> Options:
    """The arrays of a problem. ``up``: sizes on shared GPUs that must be rounded are rounded up, so that what is planned fits; else down,
    for a bound. ``alone``: every host is a group of its own, so that nothing is lost by adding hosts up. ``mixed``: hosts that differ in
    CPU and RAM may be one group where there would be more groups than a program can have.
    """
    classes = tuple(sorted(problem.classes, key=lambda one: one.key))
    models = {model.name: model for model in problem.models}
    boards: dict[tuple[t.Any, ...], Board] = {}
    groups: list[Group] = []
    for hosts in alike(usable(problem.hosts, classes), mixed=mixed):
        one = hosts[0]
        key = (one.model, tuple(sorted(one.modes)), one.clients, one.reserve_mib)
        if key not in boards:
            boards[key] = Board(models[one.model], *key[1:])
            boards[key].divide(classes, up=up)
        number = list(boards).index(key)
        groups += [group_of(number, each) for each in ([[host] for host in hosts] if alone else [hosts])]
    found = _arrays(problem.quotas, classes, tuple(boards.values()), tuple(groups))
    for board in boards.values():
        board.at_once = _at_once(board, classes)
    return found


def with_groups(options: Options, groups: Sequence[Group]) -> Options:
    """The same classes, boards and quotas, and these groups of hosts."""
    return _arrays(options.quotas, options.classes, options.boards, tuple(groups))


def _most(classes: tuple[FleetClass, ...], group: Group, clients: int) -> list[int]:
    """By class, the most replicas in a group that GPUs, CPU, RAM and spread allow, whatever else is there."""
    on_gpu = max(MOST_ON_GPU, clients)
    rooms, hosts = numpy.unique(group.rooms, axis=0, return_counts=True)
    needs = numpy.asarray([(one.cpus, one.ram_mib / GIB) for one in classes], dtype=float).reshape(-1, 2)
    limits = [
        (group.gpus * on_gpu if one.isolation != "exclusive" else group.gpus // one.count, _unlimited(one.max_per_host)) for one in classes
    ]
    most = numpy.asarray(limits, dtype=numpy.int64).reshape(-1, 2).min(axis=1)
    found = numpy.zeros(len(classes), dtype=numpy.int64)
    for room, number in zip(rooms, hosts.tolist(), strict=True):
        with numpy.errstate(divide="ignore", invalid="ignore"):
            here = numpy.where(needs > 0, numpy.floor(room / needs + 1e-9), numpy.inf).min(axis=1)
        found += numpy.minimum(most, here).astype(numpy.int64) * number
    return [min(one.replicas, number) for one, number in zip(classes, found.tolist(), strict=True)]


def _arrays(given: Sequence[FleetQuota], classes: tuple[FleetClass, ...], boards: tuple[Board, ...], groups: tuple[Group, ...]) -> Options:
    quotas = tuple(sorted(given, key=lambda quota: quota.team))
    team = {quota.team: number for number, quota in enumerate(quotas)}
    rows: list[tuple[int, int, int, int, float, float]] = []
    able = [_most(classes, group, boards[group.board].clients) for group in groups]
    for number, one in enumerate(classes):
        shapes = [board.shapes_for(one) for board in boards]
        for place, group in enumerate(groups):
            most = able[place][number] if shapes[group.board] else 0
            for shape in shapes[group.board] if most else ():
                taken = boards[group.board].shapes[shape]
                rows.append((number, place, shape, most, float(-(-taken.mib // GIB) * one.count), taken.worth * one.count))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    infinite = float("inf")
    klasses, places, kinds = (numpy.asarray(column, dtype=numpy.int64) for column in columns[:3])
    count = numpy.asarray([one.count for one in classes], dtype=numpy.int64)
    needs = numpy.asarray([(one.cpus, one.ram_mib / GIB) for one in classes], dtype=float).reshape(-1, 2)
    return Options(
        boards=boards,
        groups=groups,
        classes=classes,
        quotas=quotas,
        replicas=numpy.asarray([one.replicas for one in classes], dtype=numpy.int64),
        priority=numpy.asarray([one.priority for one in classes], dtype=numpy.int64),
        cpus=needs[:, 0].copy(),
        ram=needs[:, 1].copy(),
        count=count,
        team=numpy.asarray([team.get(one.team, -1) for one in classes], dtype=numpy.int64),
        per_host=numpy.asarray([_unlimited(one.max_per_host) for one in classes], dtype=numpy.int64),
        klass=klasses,
        group=places,
        shape=kinds,
        most=numpy.asarray(columns[3], dtype=numpy.int64),
        memory=numpy.asarray(columns[4], dtype=float),
        worth=numpy.asarray(columns[5], dtype=float),
        taken=taken_of_hosts(boards, groups, Asked(places, kinds, count[klasses], needs[klasses])),
        quota_memory=numpy.asarray([infinite if quota.memory_mib is None else quota.memory_mib / GIB for quota in quotas], dtype=float),
        quota_worth=numpy.asarray([infinite if quota.gpus is None else quota.gpus for quota in quotas], dtype=float),
    )


def _at_once(board: Board, classes: tuple[FleetClass, ...]) -> list[int]:
    """By shape: as many on one GPU as let every class have its part of them without breaking its limit for a host, with some to spare."""
    members: list[list[FleetClass]] = [[] for _shape in board.shapes]
    for one in classes:
        for shape in board.shapes_for(one):
            members[shape].append(one)
    found = []
    for mine in members:
        total = sum(one.replicas for one in mine)
        limits = [one.max_per_host * total / one.replicas for one in mine if one.max_per_host is not None and one.replicas]
        found.append(max(1, int(min(limits, default=float(MOST_AT_ONCE)) / AT_ONCE_TO_SPARE)))
    return found


def _unlimited(most: int | None) -> int:
    return UNLIMITED if most is None else most
