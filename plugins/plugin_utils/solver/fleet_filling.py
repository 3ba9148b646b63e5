# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last few replicas: whoever was left out takes what room there is, and a higher priority takes a place from lower ones.

After it, no replica waits that would fit, alone or in place of replicas of lower priority on one host, within its quota.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import NEARLY
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_gathering import gather, lacking
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Room, Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_swap import Swap
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_trading import trade
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# How often those who gave way look for another place.
ROUNDS = 4
# GPUs that are looked at in search of one that may change places, in all.
MOST_SWAPS = 4000
# Of the GPUs that nobody uses, those that are looked at for one replica.
OPENED = 2
# Replicas that it is tried to move for others, in all.
MOST_MOVES = 2000
# Hosts on which it is tried to gather CPU and RAM for a replica, in all.
MOST_GATHERED = 1000
# GPUs that it is tried to close, in all.
MOST_CLOSED = 200
# GPUs, or hosts, that are compared for one replica.
TRIED = 24
# How often CPU and RAM are gathered in vain in a group, or somebody is asked in vain to go from there, before it is given up; what one
# success is worth in these.
PATIENCE, REFRESHED = 12, 8


class Filling:
    """All groups' seats, the replicas that wait, and what the quotas leave."""

    def __init__(self, options: Options, seats: list[Seats]) -> None:
        self.options, self.seats = options, seats
        self.waiting = options.replicas.copy()
        self.free_memory, self.free_worth = options.quota_memory.copy(), options.quota_worth.copy()
        # The options in the order of group, class and shape, and where each is.
        self._shapes = int(options.shape.max(initial=0)) + 1
        place = self._place_of(options.group, options.klass, options.shape)
        self._by_place = numpy.argsort(place, kind="stable")
        self._places = place[self._by_place]
        order = numpy.searchsorted(options.klass, numpy.arange(len(options.classes) + 1))
        self.options_of = [range(int(order[klass]), int(order[klass + 1])) for klass in range(len(options.classes))]
        self.swaps, self._swaps, self.moves, self.gatherings = MOST_SWAPS, dict[int, Swap](), MOST_MOVES, MOST_GATHERED
        # How often a step may still fail in a group.
        self._patience = dict[tuple[str, int], int]()
        # Classes of which nobody can move, as things are.
        self._stuck: set[int] = set()
        # By priority: memory and worth that each team holds.
        self._by_level = {level: numpy.zeros((2, len(options.quotas))) for level in options.levels}
        for one in seats:
            present = one.present()
            self._count(one, present, 1)
        size = numpy.full(len(options.classes), numpy.inf)
        numpy.minimum.at(size, options.klass, options.worth)
        self.order = numpy.lexsort((numpy.arange(len(size)), size, -options.priority)).tolist()

    def fill(self, planned: Ints | None = None) -> None:
        """Everything that this file is for. ``planned``: by class, how many were to have a place: whoever of them lost it comes before
        others, who would take what their team has left then. Without it nobody goes for others: whoever asks
        may have another place for these."""
        if planned is not None:
            lost = numpy.maximum(0, planned - self.options.replicas + self.waiting)
            others = self.waiting - lost
            self.waiting -= others
            self._fill()
            trade(self)
            self.waiting += others
        self._fill()
        if planned is not None:
            trade(self)
        self._close()

    def _fill(self) -> None:
        for number in range(ROUNDS):
            for klass in self.order:
                if self.waiting[klass] and self.options_of[klass]:
                    self._top_up(klass)
            if number == ROUNDS - 1 or not self._give_way():
                return

    def _count(self, seats: Seats, replicas: Ints, sign: int) -> None:
        """Note that these have a place (1), or have lost it (-1)."""
        klass = seats.klass[replicas]
        self.waiting -= sign * numpy.bincount(klass, minlength=len(self.waiting))
        options = self._options_of(seats, replicas)
        team = self.options.team[klass]
        mine = team >= 0
        team, options, level = team[mine], options[mine], self.options.priority[klass[mine]]
        for number, (free, cost) in enumerate(((self.free_memory, self.options.memory), (self.free_worth, self.options.worth))):
            for each, held in self._by_level.items():
                here = level == each
                taken = sign * numpy.bincount(team[here], weights=cost[options[here]], minlength=len(free))
                free -= taken
                held[number] += taken

    def _place_of(self, group: t.Any, klass: Ints, shape: Ints) -> Ints:
        """A number for each group, class and shape."""
        place: Ints = (group * len(self.options.classes) + klass) * self._shapes + shape
        return place

    def _options_of(self, seats: Seats, replicas: Ints) -> Ints:
        """The options at which replicas have their places."""
        place = self._place_of(seats.number, seats.klass[replicas], seats.shape[replicas])
        found: Ints = self._by_place[numpy.searchsorted(self._places, place)]
        return found

    def allowed(self, option: int, more: tuple[float, float] = (0.0, 0.0)) -> int:
        """How many more replicas at this option the quota allows, with ``more`` memory and worth than is free now."""
        team = int(self.options.team[self.options.klass[option]])
        if team < 0:
            return 2**40
        found = float(2**40)
        for free, cost in (
            (self.free_memory[team] + more[0], self.options.memory[option]),
            (self.free_worth[team] + more[1], self.options.worth[option]),
        ):
            if cost > 0 and free < numpy.inf:
                found = min(found, (float(free) + NEARLY) // cost)
        return max(0, int(found))

    def _top_up(self, klass: int) -> None:
        """As many waiting replicas of a class as find room as things are: on GPUs in use first."""
        steps = (
            self._place_in_use,
            self._place_by_swap,
            self._place_by_gathering,
            self._place_opened,
            self._place_whole_by_swap,
            self._place_by_move,
        )
        for step in steps:
            for option in self.options_of[klass]:
                while True:
                    number = min(int(self.waiting[klass]), self.allowed(option))
                    if not number or not step(klass, option, number):
                        break

    def _place_in_use(self, klass: int, option: int, number: int) -> int:
        return self.place(self.seats[self.options.group[option]], klass, option, number, opened=False)

    def _place_opened(self, klass: int, option: int, number: int) -> int:
        seats = self.seats[self.options.group[option]]
        # No more GPUs than so many replicas need: one for each at once would leave all of them almost empty.
        on_one = min(seats.board.most_of(int(self.options.shape[option])), int(self.options.per_host[klass]))
        placed = more = self.place(seats, klass, option, -(-number // max(1, on_one)), opened=True)
        while more:
            # What is open now has room for others of the class.
            more = self._place_in_use(klass, option, min(number - placed, self.allowed(option)))
            placed += more
        return placed

    def _place_by_swap(self, klass: int, option: int, _number: int) -> int:
        """Seat one replica on a GPU with room whose host has none for it, after that GPU has changed places with one of another host."""
        group = int(self.options.group[option])
        if self.options.count[klass] > 1 or self.swaps <= 0:
            return 0
        seats = self.seats[group]
        fits = seats.room.gpus_for(int(self.options.shape[option]), 1) & ~seats.room.empty
        if not fits.any():
            return 0
        return self._swapped(seats, klass, option, numpy.stack(numpy.nonzero(fits), axis=1)[:TRIED])

    def _place_whole_by_swap(self, klass: int, option: int, _number: int) -> int:
        """Seat one replica on a whole GPU that nobody uses, whose host lacks CPU or RAM for it, in the same way: a move would open one more
        GPU for whoever makes way."""
        seats, shape = self.seats[self.options.group[option]], int(self.options.shape[option])
        if self.options.count[klass] > 1 or self.swaps <= 0 or seats.board.shapes[shape].mode != "whole":
            return 0
        fits = seats.room.gpus_for(shape, 1)
        hosts = numpy.flatnonzero(fits.any(axis=1))
        # GPUs that nobody uses are all alike: those of the hosts that have most left have the best chances.
        hosts = hosts[numpy.argsort(-seats.room.left[hosts, 0], kind="stable")][:OPENED]
        return self._swapped(seats, klass, option, numpy.stack((hosts, fits[hosts].argmax(axis=1)), axis=1))

    def _swapped(self, seats: Seats, klass: int, option: int, places: Ints) -> int:
        """Seat one replica on one of these GPUs, (host, GPU) in each row, after it has changed places. How many: one or none."""
        swap = self._swaps.setdefault(seats.number, Swap(seats))
        for host, gpu in places.tolist():
            self.swaps -= 1
            found = swap.make_room(klass, host, gpu)
            if found is not None:
                self.seat(seats, klass, int(self.options.shape[option]), found[0], 1 << found[1])
                return 1
        return 0

    def _place_by_gathering(self, klass: int, option: int, _number: int) -> int:
        """Seat one replica on a GPU with room whose host has none for it, after exchanges have gathered there what others have left."""
        if self.options.count[klass] > 1:
            return 0
        seats, shape = self.seats[self.options.group[option]], int(self.options.shape[option])
        if not self._patient("gather", seats):
            return 0
        for host in lacking(seats, klass, shape).tolist():
            if self.gatherings <= 0 or not self._patient("gather", seats):
                return 0
            self.gatherings -= 1
            gpu = int((seats.room.gpus_for(shape, 1) & ~seats.room.empty)[host].argmax())
            if self._refreshed("gather", seats, gather(seats, klass, host, gpu)):
                self.seat(seats, klass, shape, host, 1 << gpu)
                return 1
        return 0

    def _patient(self, step: str, seats: Seats) -> bool:
        """Is it worth while to go on with this in a group?"""
        return self._patience.get((step, seats.number), PATIENCE) > 0

    def _refreshed(self, step: str, seats: Seats, success: bool) -> bool:
        """Note how it went; returns that."""
        key = step, seats.number
        self._patience[key] = self._patience.get(key, PATIENCE) + (REFRESHED if success else -1)
        return success

    def _place_by_move(self, klass: int, option: int, _number: int) -> int:
        """Seat one replica on a host that lacks CPU or RAM for it, after somebody has gone from there to wherever there is room."""
        seats = self.seats[self.options.group[option]]
        if self.options.count[klass] > 1 or self.moves <= 0 or not self._patient("move", seats):
            return 0
        return int(self._refreshed("move", seats, self._moved_for(seats, klass, option)))

    def _moved_for(self, seats: Seats, klass: int, option: int) -> bool:
        options, shape = self.options, int(self.options.shape[option])
        fits = seats.room.gpus_for(shape, 1)
        used = fits & ~seats.room.empty
        hosts = numpy.flatnonzero(fits.any(axis=1) & (seats.held(klass) < options.per_host[klass]))
        need = seats.needs(klass)
        short = numpy.maximum(need - seats.room.left[hosts], 0.0)
        nearest = numpy.argsort((short / numpy.maximum(need, NEARLY)).sum(axis=1), kind="stable")[:TRIED]
        for host, lacks in zip(hosts[nearest].tolist(), short[nearest], strict=True):
            there = seats.on(host)
            asked = seats.needs(seats.klass[there])
            able = (
                (asked >= lacks - NEARLY).all(axis=1) & (seats.gpus[there] & (seats.gpus[there] - 1) == 0) & (seats.klass[there] != klass)
            )
            gpu = int((used if used[host].any() else fits)[host].argmax())
            for one in there[able][numpy.argsort(asked[able].sum(axis=1), kind="stable")].tolist():
                goes = int(seats.klass[one])
                if goes in self._stuck:
                    continue
                if self.moves <= 0:
                    return False
                self.moves -= 1
                if self._moved_out(seats, one, (klass, shape, host, 1 << gpu)):
                    return True
                self._stuck.add(goes)
        return False

    def _moved_out(self, seats: Seats, one: int, comes: tuple[int, int, int, int]) -> bool:
        """A replica goes elsewhere, and another comes to where it was: (class, shape, host, GPUs). Nothing changes if there is no room."""
        goes = int(seats.klass[one])
        old = goes, int(seats.shape[one]), int(seats.host[one]), int(seats.gpus[one])
        new = self._changed(seats, one, comes)
        for opened in (False, True):
            for option in self.options_of[goes]:
                if self.allowed(option) and self.place(self.seats[self.options.group[option]], goes, option, 1, opened=opened):
                    self._stuck.clear()
                    return True
        self._changed(seats, new, old)
        return False

    def served(self) -> dict[int, int]:
        """By priority, greatest first, how many replicas have a place."""
        placed, priority = self.options.replicas - self.waiting, self.options.priority
        return {level: int(placed[priority == level].sum()) for level in self.options.levels}

    def opened(self) -> int:
        """GPUs that somebody uses."""
        return sum(int((~one.room.empty).sum()) for one in self.seats)

    def held_by(self, those: list[tuple[Seats, Ints]]) -> Floats:
        """(memory, worth) by quota that these replicas hold, shape (2, quotas)."""
        found = numpy.zeros((2, len(self.options.quotas)))
        for seats, ones in those:
            options, team = self._options_of(seats, ones), self.options.team[seats.klass[ones]]
            for row, cost in zip(found, (self.options.memory, self.options.worth), strict=True):
                row += numpy.bincount(team[team >= 0], weights=cost[options[team >= 0]], minlength=len(row))
        return found

    def let_go(self, seats: Seats, replicas: Ints) -> None:
        """These have no place any more, and wait."""
        self._count(seats, replicas, -1)
        seats.drop(replicas)

    def _changed(self, seats: Seats, one: int, comes: tuple[int, int, int, int]) -> int:
        """Let one go and seat another; the number of that."""
        self.let_go(seats, numpy.asarray([one]))
        return self.seat(seats, *comes)

    def seat(self, seats: Seats, klass: int, shape: int, host: int, gpus: int) -> int:
        """Seat one more; its number."""
        first = seats.size
        seats.add(*(numpy.asarray([each]) for each in (klass, shape, host, gpus)))
        self._count(seats, numpy.asarray([first]), 1)
        return first

    def _close(self) -> None:
        """Close GPUs whose only replica could not join others for its class's limit for a host: somebody makes way for it. All replicas
        keep a place, and nobody is left who could lose one by it."""
        tries = MOST_CLOSED
        for group, seats in enumerate(self.seats):
            present = seats.present()
            present = present[seats.gpus[present] & (seats.gpus[present] - 1) == 0]
            place = seats.host[present] << seats.group.gpus | seats.gpus[present]
            _places, first, many = numpy.unique(place, return_index=True, return_counts=True)
            for one in present[first[many == 1]].tolist():
                klass, shape = int(seats.klass[one]), int(seats.shape[one])
                # Who has made way by now may be no longer alone.
                if not seats.here[one]:
                    continue
                if self.options.per_host[klass] >= seats.group.gpus or seats.board.most_of(shape) == 1 or not tries:
                    continue
                tries -= 1
                where = int(seats.host[one]), int(seats.gpus[one]).bit_length() - 1
                seats.drop(numpy.asarray([one]))
                host, gpu = self._swaps.setdefault(group, Swap(seats)).make_way(klass, shape) or where
                seats.add(*(numpy.asarray([each]) for each in (klass, shape, host, 1 << gpu)))

    def place(self, seats: Seats, klass: int, option: int, number: int, *, opened: bool) -> int:
        """Seat up to ``number`` replicas, at most one on each host. ``opened``: on GPUs that nobody uses yet."""
        count, shape = int(self.options.count[klass]), int(self.options.shape[option])
        if number <= 0:
            return 0
        room = seats.room
        fits = room.gpus_for(shape, count) & (room.empty if opened else ~room.empty)
        hosts = numpy.flatnonzero(fits.any(axis=1) & room.hosts_for(seats.needs(klass)))
        if len(hosts):
            hosts = hosts[seats.held(klass)[hosts] < self.options.per_host[klass]][:number]
        if not len(hosts):
            return 0
        chosen = numpy.cumsum(fits[hosts], axis=1) * fits[hosts]
        masks = (((chosen > 0) & (chosen <= count)) << numpy.arange(seats.group.gpus)).sum(axis=1)
        first = seats.size
        seats.add(numpy.full(len(hosts), klass), numpy.full(len(hosts), shape), hosts, masks)
        self._count(seats, numpy.arange(first, seats.size), 1)
        return len(hosts)

    def _give_way(self) -> bool:
        """Did any replica take the place of lower ones?"""
        found = False
        for level in self.options.levels[:-1]:
            high: dict[int, Room] = {}
            for klass in self.order:
                if self.options.priority[klass] != level:
                    continue
                for option in self.options_of[klass]:
                    while self.waiting[klass] and self._take_place(klass, option, high):
                        found = True
        return found

    def _high(self, seats: Seats, level: int, known: dict[int, Room]) -> Room:
        """The room in a group if nobody below this priority were there."""
        if seats.number not in known:
            room = Room(seats.group, seats.board, seats.room.codes)
            present = seats.present()
            present = present[self.options.priority[seats.klass[present]] >= level]
            room.take(seats.needs(seats.klass[present]), seats.shape[present], seats.host[present], seats.gpus[present])
            known[seats.number] = room
        return known[seats.number]

    def _take_place(self, klass: int, option: int, known: dict[int, Room]) -> bool:
        """Seat one replica where lower ones let it; the host where fewest must go."""
        options = self.options
        level, count, shape = int(options.priority[klass]), int(options.count[klass]), int(options.shape[option])
        seats = self.seats[options.group[option]]
        need = seats.needs(klass)
        paid = self._quota_from_below(klass, option, level)
        if paid is None:
            return False
        high = self._high(seats, level, known)
        fits = high.gpus_for(shape, count)
        hosts = numpy.flatnonzero(fits.any(axis=1) & high.hosts_for(need))
        hosts = hosts[seats.held(klass)[hosts] < options.per_host[klass]] if len(hosts) else hosts
        if not len(hosts):
            return False
        host, gone, mask = min(
            (self._leavers(seats, option, int(host), fits[host], need) for host in hosts[:TRIED].tolist()),
            key=lambda each: (len(each[1]), each[0]),
        )
        for other, replicas in paid:
            kept = [one for one in replicas if other is not seats or one not in gone]
            self.let_go(other, numpy.asarray(kept, dtype=numpy.int64))
        self.let_go(seats, numpy.asarray(gone, dtype=numpy.int64))
        self.seat(seats, klass, shape, host, mask)
        high.take(need[None, :], numpy.asarray([shape]), numpy.asarray([host]), numpy.asarray([mask]))
        return True

    def _leavers(self, seats: Seats, option: int, host: int, fits: Bools, need: Floats) -> tuple[int, list[int], int]:
        """(host, replicas that must go, GPUs that the new one gets) with as few as can be seen at once."""
        options, room = self.options, seats.room
        klass, shape = int(options.klass[option]), int(options.shape[option])
        level, count = int(options.priority[klass]), int(options.count[klass])
        lower = [one for one in seats.on(host).tolist() if options.priority[seats.klass[one]] < level]
        lower.sort(key=lambda one: (int(options.priority[seats.klass[one]]), -float(need @ seats.needs(int(seats.klass[one]))), one))
        best: tuple[int, list[int], int] | None = None
        gpus = numpy.flatnonzero(fits).tolist()
        plans = [gpus[:count]] if count > 1 else [[gpu] for gpu in gpus]
        for plan in plans:
            mask = sum(1 << gpu for gpu in plan)
            gone: list[int] = []
            after = Room(seats.group, seats.board, room.codes)
            for name in ("whole", "code", "memory", "compute", "clients", "left"):
                setattr(after, name, getattr(room, name)[host : host + 1].copy())
            on_gpu = [one for one in lower if seats.gpus[one] & mask]
            rest = [one for one in lower if not seats.gpus[one] & mask]
            for one in (*on_gpu, *rest):
                free = after.gpus_for(shape, count)[0]
                fine = all(free[gpu] for gpu in plan)
                if fine and after.hosts_for(need)[0]:
                    break
                if fine and seats.gpus[one] & mask == 0 and not (seats.needs(int(seats.klass[one])) > 0).any():
                    continue
                gone.append(one)
                pick = numpy.asarray([one])
                after.take(seats.needs(seats.klass[pick]), seats.shape[pick], numpy.zeros(1, dtype=numpy.int64), seats.gpus[pick], -1)
            if best is None or len(gone) < len(best[1]):
                best = (host, gone, mask)
        return best if best is not None else (host, lower, 0)

    def _quota_from_below(self, klass: int, option: int, level: int) -> list[tuple[Seats, list[int]]] | None:
        """Lower replicas of the same team that must go so that the quota holds; None when that is not enough."""
        if self.allowed(option):
            return []
        team = int(self.options.team[klass])
        if not self.allowed(option, self._held_below(team, level)):
            return None
        freed, gone = [0.0, 0.0], []
        for seats, one in self._below(team, level):
            if self.allowed(option, (freed[0], freed[1])):
                break
            cost = int(self._options_of(seats, numpy.asarray([one]))[0])
            freed[0] += float(self.options.memory[cost])
            freed[1] += float(self.options.worth[cost])
            gone.append((seats, [one]))
        return gone if self.allowed(option, (freed[0], freed[1])) else None

    def _held_below(self, team: int, level: int) -> tuple[float, float]:
        """(memory, worth) that replicas of a team below a priority have."""
        under = [each for each in self.options.levels if each < level]
        return tuple(sum(self._by_level[each][number][team] for each in under) for number in (0, 1))

    def _below(self, team: int, level: int) -> Iterator[tuple[Seats, int]]:
        """Replicas of a team below a priority, the lowest first, of these the ones that the quota counts most for."""
        options = self.options
        for under in [each for each in reversed(options.levels) if each < level]:
            found: list[tuple[float, float, int, int]] = []
            for number, seats in enumerate(self.seats):
                klass = seats.klass[: seats.size]
                mine = seats.here[: seats.size] & (options.team[klass] == team) & (options.priority[klass] == under)
                ones = numpy.flatnonzero(mine)
                for one, cost in zip(ones.tolist(), self._options_of(seats, ones).tolist(), strict=True):
                    found.append((-float(options.memory[cost]), -float(options.worth[cost]), number, one))
            for _memory, _worth, number, one in sorted(found):
                yield self.seats[number], one
