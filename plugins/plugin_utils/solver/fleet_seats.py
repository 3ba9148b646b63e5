# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sits where in one group of hosts, down to the GPU, and where there is room for one more.

GPUs are numbered on their host. What a replica has is a mask of GPUs: one bit, or several where it has several whole GPUs.
"""

from __future__ import annotations

import typing as t
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import add_at, in_order, ranks
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import NEARLY, Dealt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import Group
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# The number of slices of each profile on a GPU is one digit of its code.
DIGIT = 16


class Codes:
    """The legal layouts of a board with MIG as numbers: how many of each profile, one digit each. Without MIG none is legal."""

    def __init__(self, board: Board) -> None:
        self.unit = numpy.zeros(len(board.shapes), dtype=numpy.int64)
        self.legal = numpy.zeros(0, dtype=numpy.int64)
        self.board = board
        mig = board.mig()
        if mig is None:
            return
        patterns, numbers = mig
        for digit, number in enumerate(numbers):
            if number >= 0:
                self.unit[number] = DIGIT**digit
        asked = [digit for digit, number in enumerate(numbers) if number >= 0]
        counts, states = patterns.multisets
        others = [digit for digit in range(len(numbers)) if digit not in asked]
        mine = (counts[:, others] == 0).all(axis=1)
        codes = counts[mine] @ numpy.asarray([DIGIT**digit for digit in range(len(numbers))], dtype=numpy.int64)
        order = numpy.argsort(codes)
        self.legal, self._states = codes[order], patterns.states[states[mine][order]]
        self._patterns = patterns

    def holds(self, codes: Ints) -> Bools:
        """Which of these are legal."""
        if not len(self.legal):
            return numpy.zeros(codes.shape, dtype=bool)
        at = numpy.minimum(numpy.searchsorted(self.legal, codes), len(self.legal) - 1)
        return t.cast("Bools", self.legal[at] == codes)

    @cached_property
    def starts(self) -> Ints:
        """Shape (legal codes, shapes, digit): where the first, second ... slice of each profile starts; -1 where there is none."""
        found = numpy.full((len(self.legal), len(self.board.shapes), DIGIT), -1, dtype=numpy.int64)
        for row, state in enumerate(self._states.tolist() if len(self.legal) else ()):
            for shape, kind in enumerate(self.board.shapes):
                begin = [one.start for one in self._patterns.slices_of(state) if one.profile == kind.profile]
                found[row, shape, : len(begin)] = begin
        return found


class Room:
    """What is free on each GPU and host of a group. Arrays of shape (hosts, GPUs), but ``left``: (hosts, 2), CPU and RAM (GiB)."""

    def __init__(self, group: Group, board: Board, codes: Codes) -> None:
        self.group, self.board, self.codes = group, board, codes
        shape = (group.size, group.gpus)
        self.whole = numpy.zeros(shape, dtype=bool)
        self.code = numpy.zeros(shape, dtype=numpy.int64)
        self.memory = numpy.zeros(shape, dtype=numpy.int64)
        self.compute = numpy.zeros(shape, dtype=numpy.int64)
        self.clients = numpy.zeros(shape, dtype=numpy.int64)
        self.left = group.rooms.copy()
        self.sizes = numpy.asarray(
            [(kind.memory, kind.compute, kind.mode == "shared") for kind in board.shapes], dtype=numpy.int64
        ).reshape(-1, 3)
        # What was found out since the last change: whoever finds no room asks for the same as the one before.
        self._empty: Bools | None = None
        self._fits: dict[tuple[int, int], Bools] = {}

    @property
    def empty(self) -> Bools:
        """GPUs that nobody uses; not to be written to."""
        if self._empty is None:
            self._empty = ~self.whole & (self.code == 0) & (self.clients == 0)
        return self._empty

    def take(self, need: Floats, shape: Ints, host: Ints, gpus: Ints, sign: int = 1) -> None:
        """Seat replicas (arrays of equal length; ``need``: CPU and RAM of each), or with ``sign`` -1 let them go."""
        self._empty, self._fits = None, {}
        for resource in range(self.left.shape[1]):
            add_at(self.left[:, resource], (host,), -sign * need[:, resource])
        which, gpu = numpy.nonzero(gpus[:, None] >> numpy.arange(self.group.gpus) & 1)
        shape, host = shape[which], host[which]
        whole = numpy.asarray([kind.mode == "whole" for kind in self.board.shapes], dtype=bool)[shape]
        self.whole[host[whole], gpu[whole]] = sign > 0
        for store, amount in (
            (self.code, self.codes.unit[shape]),
            (self.memory, self.sizes[shape, 0]),
            (self.compute, self.sizes[shape, 1]),
            (self.clients, self.sizes[shape, 2]),
        ):
            add_at(store, (host, gpu), sign * amount)

    def gpus_for(self, shape: int, count: int) -> Bools:
        """GPUs that can take one more of this shape; with ``count`` > 1 those of hosts that have so many of them. Not to be written to."""
        if (shape, count) not in self._fits:
            self._fits[shape, count] = self._able(shape, count)
        return self._fits[shape, count]

    def _able(self, shape: int, count: int) -> Bools:
        kind = self.board.shapes[shape]
        if kind.mode == "mig":
            return t.cast("Bools", ~self.whole & (self.clients == 0) & self.codes.holds(self.code + self.codes.unit[shape]))
        if kind.mode == "whole":
            empty = self.empty
            return t.cast("Bools", empty & (empty.sum(axis=1) >= count)[:, None])
        fits = (self.memory + kind.memory <= self.board.room[0]) & (self.compute + kind.compute <= self.board.room[1])
        return t.cast("Bools", fits & ~self.whole & (self.code == 0) & (self.clients < self.board.clients))

    def hosts_for(self, need: Floats) -> Bools:
        """Hosts with CPU and RAM for one more."""
        return t.cast("Bools", (self.left >= need - NEARLY).all(axis=1))


class Seats:
    """The replicas of one group: arrays ``klass``, ``shape``, ``host``, ``gpus`` (a mask) and ``here`` (False: let go), and their room."""

    def __init__(self, options: Options, number: int, dealt: Dealt | None, codes: Codes) -> None:
        self.options, self.number = options, number
        self.group = options.groups[number]
        self.board = options.boards[self.group.board]
        self.room = Room(self.group, self.board, codes)
        self.size = 0
        # By class that may come here and host, how many replicas.
        kinds = numpy.unique(options.klass[options.group == number])
        self._row = numpy.full(len(options.classes), -1, dtype=numpy.int64)
        self._row[kinds] = numpy.arange(len(kinds))
        self._held = numpy.zeros((len(kinds), self.group.size), dtype=numpy.int16)
        self.klass, self.shape, self.host, self.gpus = (numpy.zeros(64, dtype=numpy.int64) for _array in range(4))
        self.here = numpy.zeros(64, dtype=bool)
        self._loads: tuple[Floats, Bools] | None = None
        if dealt is not None:
            self._seat(dealt)

    def needs(self, klass: Ints | int) -> Floats:
        """CPU and RAM (GiB) of a replica of a class, shape (2,), or of each of these, shape (classes, 2)."""
        return t.cast("Floats", self.options.needs[klass])

    def add(self, klass: Ints, shape: Ints, host: Ints, gpus: Ints) -> None:
        """More replicas; the caller has seen that there is room."""
        first, self.size = self.size, self.size + len(klass)
        if self.size > len(self.here):
            for name in ("klass", "shape", "host", "gpus", "here"):
                old = getattr(self, name)
                setattr(self, name, numpy.concatenate((old, numpy.zeros(2 * self.size - len(old), dtype=old.dtype))))
        for store, given in ((self.klass, klass), (self.shape, shape), (self.host, host), (self.gpus, gpus)):
            store[first : self.size] = given
        self.here[first : self.size] = True
        self._loads = None
        add_at(self._held, (self._row[klass], host), 1)
        self.room.take(self.needs(klass), shape, host, gpus)

    def drop(self, replicas: Ints) -> None:
        """Let these go, by number."""
        self.here[replicas] = False
        self._loads = None
        klass = self.klass[replicas]
        add_at(self._held, (self._row[klass], self.host[replicas]), -1)
        self.room.take(self.needs(klass), self.shape[replicas], self.host[replicas], self.gpus[replicas], -1)

    def present(self) -> Ints:
        """Numbers of the replicas that are here."""
        return numpy.flatnonzero(self.here[: self.size])

    def held(self, klass: int) -> NDArray[np.int16]:
        """By host, replicas of a class."""
        return t.cast("NDArray[np.int16]", self._held[self._row[klass]])

    def move(self, replicas: Ints, host: Ints, gpus: Ints) -> None:
        """These go to other places of the group and keep their numbers; the caller has seen that there is room when all have gone."""
        self.drop(replicas)
        self.host[replicas], self.gpus[replicas], self.here[replicas] = host, gpus, True
        klass = self.klass[replicas]
        add_at(self._held, (self._row[klass], host), 1)
        self.room.take(self.needs(klass), self.shape[replicas], host, gpus)

    def trade(self, one: int, other: int) -> None:
        """Two replicas of one shape, each on one GPU, change places; the caller has seen that there is room."""
        klass, host = self.klass[[one, other]], self.host[[one, other]]
        self.klass[[one, other]] = klass[::-1]
        self._loads = None
        more = self.needs(klass[:1]) - self.needs(klass[1:])
        numpy.add.at(self.room.left, host, numpy.concatenate((more, -more)))
        add_at(self._held, (self._row[klass], host), -1)
        add_at(self._held, (self._row[klass], host[::-1]), 1)

    @property
    def loads(self) -> tuple[Floats, Bools]:
        """(CPU and RAM of what is on each GPU, shape (hosts, GPUs, 2); GPUs that are part of a replica with several). Not to be
        written to."""
        if self._loads is None:
            self._loads = self._added_up()
        return self._loads

    def _added_up(self) -> tuple[Floats, Bools]:
        present = self.present()
        gpus = self.gpus[present]
        single = gpus & (gpus - 1) == 0
        size = self.group.size, self.group.gpus
        where = self.host[present][single] * size[1] + numpy.log2(gpus[single]).astype(numpy.int64)
        need = self.needs(self.klass[present][single])
        load = numpy.zeros((*size, 2))
        for number, each in enumerate(need.T):
            load[:, :, number] = numpy.bincount(where, weights=each, minlength=size[0] * size[1]).reshape(size)
        fixed = numpy.zeros(size, dtype=bool)
        which, gpu = numpy.nonzero(gpus[~single][:, None] >> numpy.arange(self.group.gpus) & 1)
        fixed[self.host[present][~single][which], gpu] = True
        return load, fixed

    def held_at(self, klass: Ints, host: Ints | int) -> NDArray[np.int16]:
        """Of each of these classes, replicas on a host, or on the host of the same number in the array."""
        return t.cast("NDArray[np.int16]", self._held[self._row[klass], host])

    def on(self, host: int, gpu: int | None = None) -> Ints:
        """Numbers of the replicas that are on a host, or on one GPU of it."""
        found = numpy.flatnonzero(self.here[: self.size] & (self.host[: self.size] == host))
        return found if gpu is None else found[self.gpus[found] >> gpu & 1 > 0]

    def _seat(self, dealt: Dealt) -> None:
        """Give each dealt replica one of the places of its shape on its host, those of the first GPUs first."""
        shapes = max(1, len(self.board.shapes))
        by_shape = dealt.slots.transpose(0, 2, 1)
        host, shape, gpu = numpy.nonzero(by_shape)
        many = by_shape[host, shape, gpu]
        place = numpy.repeat(host * shapes + shape, many)
        gpu = numpy.repeat(gpu, many)
        key = dealt.host * shapes + dealt.shape
        order = in_order(key, dealt.klass)
        key = key[order]
        rank = ranks(key)
        at = numpy.searchsorted(place, key) + rank
        self.add(dealt.klass[order], dealt.shape[order], dealt.host[order], numpy.left_shift(1, gpu[at]) if len(at) else gpu[:0])
        used = numpy.full(self.group.size, self.group.gpus, dtype=numpy.int64)
        whole = [number for number, kind in enumerate(self.board.shapes) if kind.mode == "whole"]
        for klass, one in dealt.several:
            count = int(self.options.count[klass])
            used[one] -= count
            mask = ((1 << count) - 1) << int(used[one])
            self.add(*(numpy.asarray([each]) for each in (klass, whole[0], one, mask)))
