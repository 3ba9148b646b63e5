# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU and RAM that are left in crumbs on many hosts are gathered on one, until one replica more fits there.

A group may have enough of both for a replica, and a GPU in use a place for it, while no single host has enough: half a core here, one
there. Replicas of one shape then change places, or all that is on two GPUs: the host gets what is lighter for what is heavier, and its
partner gives up what it has left.
"""

from __future__ import annotations

import typing as t
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import ranks, thinned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import NEARLY
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_swap import Swap
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

Undo = t.Callable[[], object]

# Hosts with a place that are tried for one replica; exchanges for each of them; hosts with something left that are looked at for one.
TRIED, STEPS, PARTNERS = 12, 12, 200
# Pairs of GPUs whose classes' limits are looked at; partners with whom two exchanges at once are tried.
CHANGES, PAIRED = 20, 24
# Exchanges with one of these partners of which each two are looked at together.
MANY = 160
# An exchange that leaves less than this share of a host less to be gathered is of no use.
TINY = 1e-6


def lacking(seats: Seats, klass: int, shape: int) -> Ints:
    """Hosts with a place for one more of a class on a GPU in use, but with too little CPU or RAM for it, at most :data:`TRIED`; the one
    that lacks least first; no host where the whole group has not enough left.
    """
    room, need = seats.room, seats.needs(klass)
    if (numpy.maximum(room.left, 0.0).sum(axis=0) < need - NEARLY).any():
        return numpy.zeros(0, dtype=numpy.int64)
    fits = (room.gpus_for(shape, 1) & ~room.empty).any(axis=1)
    hosts = numpy.flatnonzero(fits & (seats.held(klass) < seats.options.per_host[klass]))
    lacks = numpy.maximum(need - room.left[hosts], 0.0)
    # So many partners give no more than they have left.
    most = numpy.sort(numpy.maximum(room.left, 0.0), axis=0)[-STEPS:].sum(axis=0)
    able = (lacks <= most + NEARLY).all(axis=1)
    lack = (lacks[able] * _scale(seats)).sum(axis=1)
    found: Ints = hosts[able][numpy.argsort(lack, kind="stable")][:TRIED]
    return found


def _scale(seats: Seats) -> Floats:
    """Makes shares of a host of CPU and RAM (GiB)."""
    return t.cast("Floats", 1.0 / numpy.maximum(numpy.asarray([seats.group.cpus, seats.group.ram]), NEARLY))


def gather(seats: Seats, klass: int, host: int, gpu: int) -> bool:
    """Is there CPU and RAM for one more of a class on this host now, after exchanges that took nobody's place? If not, nothing has changed.

    :param gpu: what is on this one of its GPUs stays together: it is the one with the place.
    """
    need = seats.needs(klass)
    done: list[Undo] = []
    while (seats.room.left[host] < need - NEARLY).any():
        undo = None
        if len(done) < STEPS:
            offers = _offers(seats, klass, host)
            undo = _trade(seats, klass, host, offers) or _change(seats, klass, host, gpu) or _trade_two(seats, klass, host, offers)
        if undo is None:
            for each in reversed(done):
                each()
            return False
        done.append(undo)
    return True


def _partners(seats: Seats, host: int, need: Floats) -> Ints:
    """The other hosts that have most left of what this one lacks most."""
    lack = numpy.maximum(need - seats.room.left[host], 0.0) * _scale(seats)
    spare = seats.room.left[:, int(lack.argmax())].copy()
    spare[host] = 0.0
    partners = numpy.argsort(-spare, kind="stable")[:PARTNERS]
    return partners[spare[partners] > NEARLY]


def _worth(seats: Seats, klass: int, host: int, partners: Ints, delta: Floats) -> Floats:
    """What exchanges with these partners are worth that leave this host ``delta`` more: how much less it lacks, and of equal ones the one
    that moves least; 0 for those that do not help or leave the partner too little."""
    left = seats.room.left
    before, after, moved, able = 0.0, numpy.zeros(delta.shape[:-1]), numpy.zeros(delta.shape[:-1]), numpy.ones(delta.shape[:-1], dtype=bool)
    # One of the two after the other: sums along an axis of two take four times as long.
    for which, (scale, need) in enumerate(zip(_scale(seats).tolist(), seats.needs(klass).tolist(), strict=True)):
        more, lack = delta[..., which], need - float(left[host, which])
        before += scale * max(lack, 0.0)
        after += scale * numpy.maximum(lack - more, 0.0)
        moved += scale * numpy.abs(more)
        able &= left[partners, which] - more >= -NEARLY
    able &= before - after > TINY
    return t.cast("Floats", numpy.where(able, before - after - TINY * moved, 0.0))


class _Offers(t.NamedTuple):
    """Exchanges of a host: its replicas (``mine``), those of one shape elsewhere, how much CPU and RAM each exchange leaves it more."""

    mine: Ints
    theirs: Ints
    delta: Floats


def _offers(seats: Seats, klass: int, host: int) -> _Offers:
    """One for each two classes and each partner, as their limits for a host allow. None of the class itself comes: it has one to come."""
    need = seats.needs(klass)
    mine, theirs = _kinds(seats, numpy.asarray([host])), _kinds(seats, _partners(seats, host, need))
    pair = numpy.nonzero(seats.shape[mine][:, None] == seats.shape[theirs][None, :])
    mine, theirs = mine[pair[0]], theirs[pair[1]]
    goes, comes, most = seats.klass[mine], seats.klass[theirs], seats.options.per_host
    able = (
        (goes != comes)
        & (comes != klass)
        & (seats.held_at(goes, seats.host[theirs]) < most[goes])
        & (seats.held_at(comes, host) < most[comes])
    )
    mine, theirs = mine[able], theirs[able]
    return _Offers(mine, theirs, seats.needs(seats.klass[mine]) - seats.needs(seats.klass[theirs]))


def _trade(seats: Seats, klass: int, host: int, offers: _Offers) -> Undo | None:
    """Exchange the two replicas of one shape after which this host lacks least; what takes it back, or None: no exchange helps."""
    worth = _worth(seats, klass, host, seats.host[offers.theirs], offers.delta)
    return _traded(seats, offers, [int(worth.argmax())]) if worth.any() else None


def _trade_two(seats: Seats, klass: int, host: int, offers: _Offers) -> Undo | None:
    """The same with two replicas of one partner at once: what is too much of one exchange the other makes good."""
    order = numpy.argsort(seats.host[offers.theirs], kind="stable")
    partners, row = numpy.unique(seats.host[offers.theirs[order]], return_inverse=True)
    partners, row = partners[:PAIRED], row[row < PAIRED]
    if not len(row):
        return None
    kept = thinned(row, MANY, 0)
    order, row = order[kept], row[kept]
    # One row of exchanges for each partner. Shorter rows end in exchanges that nobody can make: they leave infinitely much.
    rank = ranks(row)
    size = len(partners), int(rank.max()) + 1
    delta, goes, comes = numpy.full((*size, 2), numpy.inf), numpy.zeros(size, dtype=int), numpy.zeros(size, dtype=int)
    delta[row, rank] = offers.delta[order]
    goes[row, rank], comes[row, rank] = seats.klass[offers.mine[order]], seats.klass[offers.theirs[order]]
    worth = _worth(seats, klass, host, partners[:, None, None], delta[:, :, None] + delta[:, None, :])
    worth[(goes[:, :, None] == goes[:, None, :]) | (comes[:, :, None] == comes[:, None, :])] = 0.0
    best, one, other = (int(each) for each in numpy.unravel_index(worth.argmax(), worth.shape))
    if worth[best, one, other] <= 0:
        return None
    first = int(numpy.searchsorted(row, best))
    return _traded(seats, offers, order[[first + one, first + other]].tolist())


def _traded(seats: Seats, offers: _Offers, chosen: list[int]) -> Undo:
    """Make these exchanges; returns what takes them back."""
    for one in chosen:
        seats.trade(int(offers.mine[one]), int(offers.theirs[one]))
    return partial(_traded, seats, offers, chosen)


def _change(seats: Seats, klass: int, host: int, gpu: int) -> Undo | None:
    """Exchange all that is on two GPUs, as :func:`_trade` does two replicas; what is on ``gpu`` stays."""
    swap, need = Swap(seats), seats.needs(klass)
    load, fixed = seats.loads
    partners = _partners(seats, host, need)
    delta = load[host][:, None, None, :] - load[partners][None, :, :, :]
    worth = _worth(seats, klass, host, partners[None, :, None], delta)
    worth[fixed[host]] = worth[gpu] = 0.0
    worth[:, fixed[partners]] = 0.0
    order = numpy.argsort(-worth, axis=None, kind="stable")[:CHANGES]
    for mine, which, theirs in zip(*(part.tolist() for part in numpy.unravel_index(order, worth.shape)), strict=True):
        if worth[mine, which, theirs] > 0 and swap.change((host, mine), (int(partners[which]), theirs), klass):
            return partial(swap.change, (host, mine), (int(partners[which]), theirs))
    return None


def _kinds(seats: Seats, hosts: Ints) -> Ints:
    """Replicas on these hosts, one of each class and shape of a host; only those with one GPU."""
    there = numpy.zeros(seats.group.size, dtype=bool)
    there[hosts] = True
    present = seats.present()
    present = present[there[seats.host[present]]]
    present = present[seats.gpus[present] & (seats.gpus[present] - 1) == 0]
    keys = (seats.host[present] * len(seats.options.classes) + seats.klass[present]) * len(seats.board.shapes) + seats.shape[present]
    return t.cast("Ints", present[numpy.unique(keys, return_index=True)[1]])
