# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A few hosts at a time, planned anew in one integer program: nothing there is rounded, each GPU and host is its own.

What a whole fleet's plan loses to whole numbers is next to nothing on 100,000 GPUs, and several percent on 100. There, and on all GPUs at
once where they are few, this finds what is left to find: replicas that wait, and GPUs that need not be open.
"""

from __future__ import annotations

import itertools
import random
import typing as t
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import INFINITE, Limits, Program, SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# GPUs that are planned anew at once; a host that has more is left as it is.
WIDE = 24
# Windows that are looked at in all, and in vain one after the other.
MOST, VAIN = 100, 16
# All that is aimed at are whole numbers.
ONE_BETTER = Limits(absolute=0.9, nodes=40, iterations=3_000, once=True)

# (group, host)
Where = tuple[int, int]
# (column, how much of something it has)
Takes = list[tuple[int, float]]
# (by priority, the most replicas, the fewest GPUs) of a plan that serves so many of each priority
Bounds = Callable[[dict[int, int]], tuple[Mapping[int, float], float]]


def improve(filling: Filling, bounds: Bounds) -> None:
    """Better places, by the objective, as long as windows of the fleet have any and ``bounds`` leave any."""
    hosts = [(one.number, host) for one in filling.seats for host in range(one.group.size)]
    # Where all are in one window there is only one.
    single = sum(filling.seats[group].group.gpus for group, _host in hosts) <= WIDE
    vain, changed = 0, False
    for number, window in enumerate(itertools.repeat(hosts) if single else _windows(filling.seats, hosts)):
        served = filling.served()
        most, fewest = bounds(served)
        # Priorities of which more may be served; None: GPUs that may be closed.
        aims: list[int | None] = [level for level in served if served[level] < most[level]]
        aims += [None] if filling.opened() > fewest else []
        if not aims or vain >= (1 if single else VAIN) or number >= MOST:
            break
        better = any(_Window(filling, window).reach(aim) for aim in aims)
        vain, changed = 0 if better else vain + 1, changed or better
    if changed:
        # Who lost a place in one window may have another outside of it.
        filling.fill()


def _windows(seats: list[Seats], hosts: list[Where]) -> Iterator[list[Where]]:
    """Hosts of one kind, MIG or not, in other company each time."""
    chance = random.Random(0)  # the same on every machine
    while True:
        kinds: dict[bool, list[Where]] = {}
        for where in chance.sample(hosts, len(hosts)):
            kinds.setdefault(bool(len(seats[where[0]].room.codes.legal)), []).append(where)
        parts: list[list[Where]] = []
        for kind in sorted(kinds):
            window: list[Where] = []
            room = WIDE
            for where in kinds[kind]:
                gpus = seats[where[0]].group.gpus
                if gpus > room and window:
                    parts.append(window)
                    window, room = [], WIDE
                if gpus <= room:
                    window.append(where)
                    room -= gpus
            parts += [window] if window else []
        if not parts:
            return
        yield from chance.sample(parts, len(parts))


@dataclass
class _Host:
    """A host in the program: columns of ``replicas`` by option, of GPUs cut in one ``pattern`` each, and of places on each shared GPU by
    (GPU, shape)."""

    where: Where
    replicas: dict[int, int] = field(default_factory=dict)
    patterns: list[tuple[int, Ints]] = field(default_factory=list)
    places: dict[tuple[int, int], int] = field(default_factory=dict)


class _Window:
    """The program of some hosts."""

    def __init__(self, filling: Filling, hosts: list[Where]) -> None:
        self.filling, self.options, self.seats = filling, filling.options, filling.seats
        self.program = Program()
        self.leaving = [(self.seats[group], self.seats[group].on(host)) for group, host in hosts]
        klasses = numpy.concatenate([seats.klass[ones] for seats, ones in self.leaving])
        self.here = numpy.bincount(klasses, minlength=len(self.options.classes))
        self.wanted = self.here + filling.waiting
        self.opened: Takes = []
        self.served: dict[int, Takes] = {level: [] for level in self.options.levels}
        self.hosts = [self._host(where) for where in hosts]
        self._demand()

    def reach(self, aim: int | None) -> bool:
        """Plan them anew, with one replica more of a priority or, if None, one GPU less, and no fewer of the priorities above: all of them
        for a GPU. Is there such a plan?"""
        for level, columns in self.served.items():
            here = int(self.here[self.options.priority == level].sum())
            if aim is None or level > aim:
                self._at_least(here, columns)
            elif level == aim:
                if not columns:
                    return False
                self._at_least(here + 1, columns)
        if aim is None:
            now = sum(int((~self.seats[group].room.empty[host]).sum()) for group, host in (one.where for one in self.hosts))
            if not now:
                return False
            self.program.at_most(now - 1.0, self.opened)
        # Of the others as many as there can be; what they lose here they may win back elsewhere.
        self.program.set_cost(self._cost(aim))
        try:
            found = self.program.solve(ONE_BETTER)
        except SolverError:
            return False
        amount = numpy.round(found.values).astype(numpy.int64)
        for seats, ones in self.leaving:
            self.filling.let_go(seats, ones)
        for one in self.hosts:
            self._seat(one, amount)
        return True

    def _cost(self, aim: int | None) -> dict[int, float]:
        if aim is None:
            return dict(self.opened)
        below = [column for level, columns in self.served.items() if level < aim for column, _one in columns]
        many = 1.0 + sum(int(self.wanted[self.options.priority == level].sum()) for level in self.served if level < aim)
        return dict.fromkeys(below, -1.0) | {column: -many for column, _one in self.served[aim]}

    def _at_least(self, number: int, columns: Takes) -> None:
        if number:
            self.program.at_most(-float(number), [(column, -much) for column, much in columns])

    def _host(self, where: Where) -> _Host:
        options, program, one = self.options, self.program, _Host(where)
        seats = self.seats[where[0]]
        board, group = seats.board, seats.group
        supply: dict[int, Takes] = {}
        needs: tuple[Takes, Takes] = ([], [])
        by_class: dict[int, Takes] = {}
        for option in numpy.flatnonzero(options.group == where[0]).tolist():
            klass, shape = int(options.klass[option]), int(options.shape[option])
            count = int(options.count[klass])
            most = min(int(self.wanted[klass]), int(options.per_host[klass]), board.most_of(shape) * (group.gpus // count))
            if most <= 0:
                continue
            column = program.add_column(float(most), whole=True)
            self.served[int(options.priority[klass])].append((column, 1.0))
            one.replicas[option] = column
            supply.setdefault(shape, []).append((column, float(count)))
            by_class.setdefault(klass, []).append((column, 1.0))
            for store, need in zip(needs, options.needs[klass].tolist(), strict=True):
                store.append((column, need))
        for klass, columns in by_class.items():
            if len(columns) > 1:
                program.at_most(float(options.per_host[klass]), columns)
        for store, room in zip(needs, group.rooms[where[1]].tolist(), strict=True):
            program.at_most(room, store)
        self._gpus(one, supply)
        return one

    def _gpus(self, one: _Host, supply: dict[int, Takes]) -> None:
        seats, program = self.seats[one.where[0]], self.program
        board, gpus = seats.board, seats.group.gpus
        shared = numpy.asarray([shape.mode == "shared" for shape in board.shapes], dtype=bool)
        opened: Takes = []
        asked = sorted(supply)
        patterns = board.first_patterns[(board.first_patterns[:, shared] == 0).all(axis=1)][:, asked]
        for pattern in numpy.unique(patterns[patterns.any(axis=1)], axis=0):
            column = program.add_column(float(gpus), whole=True)
            whole = numpy.zeros(len(board.shapes), dtype=numpy.int64)
            whole[asked] = pattern
            one.patterns.append((column, whole))
            opened.append((column, 1.0))
            for shape in numpy.flatnonzero(whole).tolist():
                supply[shape].append((column, -float(whole[shape])))
        before = -1
        for gpu in range(gpus if shared[asked].any() else 0):
            column = program.add_column(1.0, whole=True)
            opened.append((column, 1.0))
            memory, compute, clients = (
                [(column, -float(board.room[0]))],
                [(column, -float(board.room[1]))],
                [(column, -float(board.clients))],
            )
            for shape in asked:
                if not shared[shape]:
                    continue
                kind = board.shapes[shape]
                place = program.add_column(float(board.most_of(shape)), whole=True)
                one.places[gpu, shape] = place
                supply[shape].append((place, -1.0))
                memory.append((place, float(kind.memory)))
                compute.append((place, float(kind.compute)))
                clients.append((place, 1.0))
            for takes in (memory, compute, clients):
                program.at_most(0.0, takes)
            if before >= 0:
                program.at_most(0.0, [(column, 1.0), (before, -1.0)])
            before = column
        for columns in supply.values():
            program.at_most(0.0, columns)
        program.at_most(float(gpus), opened)
        self.opened += opened

    def _demand(self) -> None:
        """Classes and quotas, over all hosts."""
        options, filling = self.options, self.filling
        by_class: dict[int, Takes] = {}
        by_team: dict[int, list[tuple[int, int]]] = {}
        for one in self.hosts:
            for option, column in one.replicas.items():
                klass = int(options.klass[option])
                by_class.setdefault(klass, []).append((column, 1.0))
                by_team.setdefault(int(options.team[klass]), []).append((column, option))
        for klass, columns in by_class.items():
            self.program.at_most(float(self.wanted[klass]), columns)
        by_team.pop(-1, None)  # these have no quota
        frees, costs = (filling.free_memory, filling.free_worth), (options.memory, options.worth)
        for free, cost, held in zip(frees, costs, filling.held_by(self.leaving), strict=True):
            for team, replicas in by_team.items():
                most = float(free[team] + held[team])
                if most < INFINITE:
                    self.program.at_most(most, [(column, float(cost[option])) for column, option in replicas])

    def _seat(self, one: _Host, amount: Ints) -> None:
        """Seat the replicas of a host on its GPUs, which are empty now."""
        options, seats = self.options, self.seats[one.where[0]]
        slots: dict[int, list[int]] = {}
        gpu = 0
        for (number, shape), column in sorted(one.places.items()):
            slots.setdefault(shape, []).extend([number] * int(amount[column]))
            gpu = max(gpu, number + 1) if amount[column] else gpu
        for column, pattern in one.patterns:
            for _time in range(int(amount[column])):
                for shape in numpy.flatnonzero(pattern).tolist():
                    slots.setdefault(shape, []).extend([gpu] * int(pattern[shape]))
                gpu += 1
        for option, column in one.replicas.items():
            klass, shape = int(options.klass[option]), int(options.shape[option])
            for _time in range(int(amount[column])):
                mask = 0
                for _gpu in range(int(options.count[klass])):
                    mask |= 1 << slots[shape].pop(0)
                self.filling.seat(seats, klass, shape, one.where[1], mask)
