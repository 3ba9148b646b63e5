# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts change what is on one GPU of each, so that a GPU with room comes to a host that has room as well.

A host may lack CPU or RAM for one more replica, or hold as many of its class as it may, while one of its GPUs has a place left.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import NEARLY
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Pairs of GPUs whose classes' limits are looked at.
TRIED = 40


class Swap:
    """The GPUs of one group that may change places."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.options = seats.options

    def make_room(self, klass: int, host: int, gpu: int) -> tuple[int, int] | None:
        """(host, GPU) where one more of the class fits now, after a swap: what is on this GPU is there then. None: no swap was found."""
        seats, room = self.seats, self.seats.room
        need = seats.needs(klass)
        # Nobody gains CPU or RAM by a swap: what both hosts have left together must do.
        if not (room.left[host] + room.left >= need - NEARLY).all(axis=1).any():
            return None
        load, fixed = seats.loads
        if fixed[host, gpu]:
            return None
        mine = load[host, gpu]
        # Their host takes what is on this GPU and the new replica; this host takes what was on theirs.
        there = (room.left[:, None, :] + load - mine - need >= -NEARLY).all(axis=2)
        here = (room.left[host] + mine - load >= -NEARLY).all(axis=2)
        able = there & here & ~fixed & (seats.held(klass) < self.options.per_host[klass])[:, None]
        able[host] = False
        others, their = numpy.nonzero(able)
        if not len(others):
            return None
        moving = seats.on(host, gpu)
        for other, theirs in zip(
            others[:: max(1, len(others) // TRIED)].tolist(), their[:: max(1, len(others) // TRIED)].tolist(), strict=True
        ):
            coming = seats.on(other, theirs)
            if self._within(moving, coming, other, klass) and self._within(coming, moving, host, None):
                self._swap(moving, coming, (host, gpu), (other, theirs))
                return other, theirs
        return None

    def change(self, here: tuple[int, int], there: tuple[int, int], more: int | None = None) -> bool:
        """Do these two (host, GPU) change what is on them? Not where a class would be above its limit for a host, one of class ``more``
        counted who is still to come here; CPU and RAM are the caller's."""
        moving, coming = self.seats.on(*here), self.seats.on(*there)
        able = self._within(moving, coming, there[0], None) and self._within(coming, moving, here[0], more)
        if able:
            self._swap(moving, coming, here, there)
        return able

    def make_way(self, klass: int, shape: int) -> tuple[int, int] | None:
        """(host, GPU) where one more of the class fits now, after a replica there has gone to a GPU in use on a host that has room but may
        have no more of the class. None: there is no such pair.
        """
        seats, room, options = self.seats, self.seats.room, self.options
        full = seats.held(klass) >= options.per_host[klass]
        hosts = numpy.flatnonzero((room.gpus_for(shape, 1) & ~room.empty).any(axis=1) & full) if full.any() else full[:0]
        if not len(hosts):
            return None
        # Who goes leaves a place that is as large on its GPU, and enough of its host.
        able = (room.sizes >= room.sizes[shape]).all(axis=1) & bool(room.sizes[shape, 2])
        able[shape] = True
        present = seats.present()
        present = present[able[seats.shape[present]] & ~full[seats.host[present]]]
        need = seats.needs(seats.klass[present])
        enough = (room.left[seats.host[present]] + need - seats.needs(klass) >= -NEARLY).all(axis=1)
        present, need = present[enough], need[enough]
        if not len(present):
            return None
        shapes, which = numpy.unique(seats.shape[present], return_inverse=True)
        fits = numpy.asarray([(room.gpus_for(int(each), 1) & ~room.empty)[hosts].any(axis=1) for each in shapes]).reshape(-1, len(hosts))
        for number, host in enumerate(hosts[:TRIED].tolist()):
            goes = fits[which, number] & (room.left[host] - need >= -NEARLY).all(axis=1)
            goes &= seats.held_at(seats.klass[present], host) < options.per_host[seats.klass[present]]
            if goes.any():
                return self._move(int(present[goes.argmax()]), host)
        return None

    def _move(self, replica: int, host: int) -> tuple[int, int]:
        """Seat a replica on the first GPU in use of this host that has room; (host, GPU) that it leaves."""
        seats, room = self.seats, self.seats.room
        klass, shape = int(seats.klass[replica]), int(seats.shape[replica])
        left = int(seats.host[replica]), int(seats.gpus[replica]).bit_length() - 1
        gpu = int((room.gpus_for(shape, 1) & ~room.empty)[host].argmax())
        seats.drop(numpy.asarray([replica]))
        seats.add(*(numpy.asarray([each]) for each in (klass, shape, host, 1 << gpu)))
        return left

    def _within(self, coming: Ints, going: Ints, host: int, more: int | None) -> bool:
        """Do all classes keep their limit on a host when these come, and one of class ``more``, and those go?"""
        seats = self.seats
        kinds, count = numpy.unique(
            numpy.concatenate((seats.klass[coming], [] if more is None else [more])).astype(numpy.int64), return_counts=True
        )
        left = seats.klass[going]
        for klass, number in zip(kinds.tolist(), count.tolist(), strict=True):
            if int(seats.held(klass)[host]) + number - int((left == klass).sum()) > self.options.per_host[klass]:
                return False
        return True

    def _swap(self, moving: Ints, coming: Ints, here: tuple[int, int], there: tuple[int, int]) -> None:
        both = numpy.concatenate((moving, coming))
        host, gpu = (numpy.repeat((there[part], here[part]), (len(moving), len(coming))) for part in (0, 1))
        self.seats.move(both, host, numpy.left_shift(1, gpu))
