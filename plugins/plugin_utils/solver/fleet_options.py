# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet's problem as arrays in canonical order: groups of equal hosts, and the options of each class (a group and a shape there).

Nothing below this file knows a name. Hosts are ordered by what they are and only then by name; so are classes by key.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board, thousandths
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetHost, FleetProblem, FleetQuota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

GIB = 1024
MOST_AT_ONCE, AT_ONCE_TO_SPARE = 128, 2.0
# More replicas than any host has places for.
UNLIMITED = 2**40


@dataclass(frozen=True, eq=False)
class Group:
    """Equal hosts: ``board`` is the number of their kind of GPU; each has ``gpus`` of them and may give ``cpus`` and ``ram`` (GiB)."""

    board: int
    gpus: int
    cpus: float
    ram: float
    hosts: tuple[FleetHost, ...]

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.hosts)


@dataclass(frozen=True, eq=False)
class Options:
    """Arrays by class: ``replicas``, ``priority``, ``cpus``, ``ram`` (GiB), ``count`` (GPUs), ``team`` (number of its quota, -1: none).

    Arrays by option: its ``klass``, ``group`` and ``shape``, the ``most`` replicas there, and what a quota counts for one replica:
    ``memory`` (GiB, whole ones) and ``worth`` (GPUs). ``quota_memory`` and ``quota_worth`` by quota; infinite where there is none.
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


Kind = tuple[t.Any, ...]


def options_of(problem: FleetProblem, *, up: bool = True, alone: bool = False) -> Options:
    """The arrays of a problem. ``up``: sizes on shared GPUs that must be rounded are rounded up, so that what is planned fits; else down,
    for a bound. ``alone``: every host is a group of its own, so that nothing is lost by adding hosts up.
    """
    classes = tuple(sorted(problem.classes, key=lambda one: one.key))
    models = {model.name: model for model in problem.models}
    sizes = [(max(1, one.memory_mib), thousandths(one.compute)) for one in classes if one.isolation == "shared"]
    boards: dict[Kind, Board] = {}
    kinds: dict[Kind, list[FleetHost]] = {}
    for host in problem.hosts:
        if host.gpus:
            kinds.setdefault(_kind(host), []).append(host)
    groups: list[Group] = []
    for kind in sorted(kinds):
        key = (kind[0], *kind[4:])
        if key not in boards:
            boards[key] = Board(models[kind[0]], kind[4], kind[5], kind[6])
            boards[key].divide(sizes, up=up)
        number = list(boards).index(key)
        hosts = tuple(sorted(kinds[kind], key=lambda host: host.name))
        for part in [(host,) for host in hosts] if alone else [hosts]:
            groups.append(Group(number, kind[1], kind[2], kind[3] / GIB, part))
    return _arrays(problem, classes, tuple(boards.values()), tuple(groups))


def _kind(host: FleetHost) -> Kind:
    """What makes hosts equal."""
    return (host.model, host.gpus, host.cpus, host.ram_mib, tuple(sorted(host.modes)), host.clients, host.reserve_mib)


def _most(one: FleetClass, group: Group) -> tuple[int, int]:
    """The most replicas of a class (on one host, in a whole group) that GPUs, CPU, RAM and spread allow, whatever else is there."""
    here = group.gpus * 64 if one.isolation != "exclusive" else group.gpus // one.count
    if one.cpus > 0:
        here = min(here, int(group.cpus / one.cpus + 1e-9))
    if one.ram_mib > 0:
        here = min(here, int(group.ram * GIB / one.ram_mib + 1e-9))
    if one.max_per_host is not None:
        here = min(here, one.max_per_host)
    return here, min(one.replicas, here * group.size)


def _arrays(problem: FleetProblem, classes: tuple[FleetClass, ...], boards: tuple[Board, ...], groups: tuple[Group, ...]) -> Options:
    quotas = tuple(sorted(problem.quotas, key=lambda quota: quota.team))
    team = {quota.team: number for number, quota in enumerate(quotas)}
    rows: list[tuple[int, int, int, int, float, float]] = []
    for number, one in enumerate(classes):
        shapes = [board.shapes_for(one) for board in boards]
        for place, group in enumerate(groups):
            most = _most(one, group)[1] if shapes[group.board] else 0
            for shape in shapes[group.board] if most else ():
                taken = boards[group.board].shapes[shape]
                rows.append((number, place, shape, most, float(-(-taken.mib // GIB) * one.count), taken.worth * one.count))
    for board in boards:
        board.at_once = _at_once(board, classes)
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    infinite = float("inf")
    return Options(
        boards=boards,
        groups=groups,
        classes=classes,
        quotas=quotas,
        replicas=numpy.asarray([one.replicas for one in classes], dtype=numpy.int64),
        priority=numpy.asarray([one.priority for one in classes], dtype=numpy.int64),
        cpus=numpy.asarray([one.cpus for one in classes], dtype=float),
        ram=numpy.asarray([one.ram_mib / GIB for one in classes], dtype=float),
        count=numpy.asarray([one.count for one in classes], dtype=numpy.int64),
        team=numpy.asarray([team.get(one.team, -1) for one in classes], dtype=numpy.int64),
        per_host=numpy.asarray([_unlimited(one.max_per_host) for one in classes], dtype=numpy.int64),
        klass=numpy.asarray(columns[0], dtype=numpy.int64),
        group=numpy.asarray(columns[1], dtype=numpy.int64),
        shape=numpy.asarray(columns[2], dtype=numpy.int64),
        most=numpy.asarray(columns[3], dtype=numpy.int64),
        memory=numpy.asarray(columns[4], dtype=float),
        worth=numpy.asarray(columns[5], dtype=float),
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
