# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that got more than their CPU or RAM exchange a replica with a host that has some left; what is too much even then is taken off.

Two replicas of one shape change places, so that the GPUs stay as they are. Many pairs of hosts are tried at once, then for each host that
still has too much two exchanges together: CPU and RAM come in few sizes, and one exchange seldom leaves exactly what is lacked. Both in
turn, for what one finds the other can go on with.
"""

from __future__ import annotations

import typing as t
from math import inf

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import add_at, ranks, thinned, true_at
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import NEARLY, Dealt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Rounds of exchanges in a cycle; rounds without any that are borne; pairs of hosts tried at once; how far partners move on each round.
ROUNDS, IDLE, PAIRS, STEP = 30, 6, 300, 37
# Partners that are tried for one host with two exchanges at once, others in each cycle.
PARTNERS = 12
# Exchanges with one partner of which each two are looked at together.
MANY = 160
# Cycles; each should take this part off what is lacked, but for the last few hosts.
CYCLES, WORTH_WHILE, FEW = 16, 0.05, 12
TINY = 1e-9
# How often a few replicas go so that exchanges can go on.
EASINGS = 3


def exchange(options: Options, dealt: Dealt, bearable: float = inf) -> int:
    """Exchange replicas until no host has too much, or no exchange that was tried helps. ``dealt`` is changed in place.

    ``bearable``: given up if after the first cycle more hosts than that have too much; then returns how many, otherwise 0.
    """
    if not len(dealt.klass) or not (dealt.left < -NEARLY).any():
        return 0
    table = _Table(options, dealt)
    number, lack = 0, inf
    for cycle in range(CYCLES):
        idle = 0
        for _round in range(ROUNDS):
            over = _worst(dealt.left)
            if not len(over):
                return 0
            # When no partner has what they need, what is too much passes to others, who may have.
            idle = 0 if table.try_pairs(over, number, sideways=idle > 0) else idle + 1
            number += 1
            if idle > IDLE:
                break
        for host in _worst(dealt.left).tolist():
            table.try_two(host, cycle)
        before, lack = lack, -float((numpy.minimum(dealt.left, 0.0) * table.scale).sum())
        hosts = int((dealt.left < -NEARLY).any(axis=1).sum())
        if cycle == 0 and hosts > bearable:
            return hosts
        if lack > (1 - WORTH_WHILE) * before and hosts > FEW:
            break
    return 0


def _worst(left: Floats) -> Ints:
    """Hosts with too much, the worst first."""
    lack = numpy.minimum(left, 0.0).sum(axis=1)
    hosts = numpy.flatnonzero((left < -NEARLY).any(axis=1))
    return hosts[numpy.argsort(lack[hosts], kind="stable")][:PAIRS]


class _Table:
    """The replicas of each host as rows of equal length."""

    def __init__(self, options: Options, dealt: Dealt) -> None:
        self.dealt = dealt
        size = len(dealt.left)
        order = numpy.argsort(dealt.host, kind="stable")
        many = numpy.bincount(dealt.host, minlength=size)
        first = numpy.cumsum(many) - many
        self.row = numpy.full((size, int(many.max())), -1, dtype=numpy.int64)
        self.row[dealt.host[order], numpy.arange(len(order)) - first[dealt.host[order]]] = order
        self.need = options.needs[dealt.klass]
        self.scale = 1.0 / numpy.maximum(dealt.left.max(axis=0), 1.0)
        kinds, self.kind = numpy.unique(dealt.klass, return_inverse=True)
        self.limit = options.per_host[kinds]
        self.shapes = int(dealt.shape.max()) + 1
        self.held = numpy.zeros((len(kinds), size), dtype=numpy.int32)
        add_at(self.held, (self.kind, dealt.host), 1)

    def try_pairs(self, over: Ints, number: int, *, sideways: bool) -> bool:
        """One exchange for each of these hosts with a partner that has something left; the partners change with ``number``.

        ``sideways``: partners may also be hosts with nothing left, and what is too much may pass to them, who have other replicas to offer.
        Did anything get better?
        """
        left = self.dealt.left
        # Hosts that lack the same resource are helped in one turn; who lacks another one may well be a partner.
        short = (left[over] < -NEARLY).sum(axis=0)
        which = int(short.argmax()) if number % 4 or not short.all() else int(short.argmin())
        over = over[left[over, which] < -NEARLY]
        spare = left[:, which]
        partners = numpy.argsort(-spare, kind="stable")[: int((spare > (-NEARLY if sideways else NEARLY)).sum())]
        if not len(partners) or not len(over):
            return False
        partners = numpy.roll(partners, -number * STEP)[: len(over)]
        over = over[: len(partners)]
        gain, at, to = self._gains(over, partners, sideways=sideways)
        for pair in numpy.flatnonzero(gain > (-TINY if sideways else TINY)).tolist():
            self._swap(int(over[pair]), int(partners[pair]), int(at[pair]), int(to[pair]))
        return bool((gain > TINY).any())

    def try_two(self, host: int, number: int) -> None:
        """Two exchanges at once with one of some partners, others with each ``number``: what one alone makes worse the other makes good."""
        left = self.dealt.left
        which = int((left[host] * self.scale).argmin())
        if left[host, which] >= -NEARLY:
            return
        partners = numpy.argsort(-left[:, which], kind="stable")[: int((left[:, which] > NEARLY).sum())]
        partners = numpy.roll(partners, -number * PARTNERS - host)[:PARTNERS]
        at, to, delta = self._pairs(host, partners, number)
        if not at.size:
            return
        lack = numpy.zeros((len(partners), at.shape[1], at.shape[1]))
        before = numpy.zeros(len(partners))
        for more, mine, theirs, scale in zip(delta, left[host].tolist(), left[partners].T, self.scale.tolist(), strict=True):
            both = more[:, :, None] + more[:, None, :]
            lack += scale * (numpy.maximum(0.0, -mine - both) + numpy.maximum(0.0, both - theirs[:, None, None]))
            before += scale * (max(0.0, -mine) + numpy.maximum(0.0, -theirs))
        lack[(at[:, :, None] == at[:, None, :]) | (to[:, :, None] == to[:, None, :])] = inf
        best = lack.reshape(len(partners), -1).argmin(axis=1)
        for one in numpy.flatnonzero(before - lack.min(axis=(1, 2)) > TINY).tolist():
            two = list(divmod(int(best[one]), at.shape[1]))
            partner = int(partners[one])
            if self._within(host, partner, at[one, two], to[one, two]):
                for pair in two:
                    self._swap(host, partner, int(at[one, pair]), int(to[one, pair]))
                return

    def _pairs(self, host: int, partners: Ints, number: int) -> tuple[Ints, Ints, Floats]:
        """(Place in the host's row, place in the partner's row, how much CPU and RAM the exchange leaves the host more) of exchanges of one
        replica with each of the partners that the limits of their classes allow, one of each two classes: shapes (partners, exchanges)
        twice, (2, partners, exchanges). Rows that are shorter end in exchanges that nobody makes: they leave infinitely much.

        Of very many some are looked at, others with each ``number``.
        """
        mine, theirs = self.row[host], self.row[partners]
        kind, other = self.kind[mine], self.kind[theirs]
        goes = (mine >= 0) & self._first(mine[None])[0] & (self.held[kind[None, :], partners[:, None]] < self.limit[kind])
        comes = (theirs >= 0) & self._first(theirs) & (self.held[other, host] < self.limit[other])
        alike = self.dealt.shape[mine][:, None] == self.dealt.shape[theirs][:, None, :]
        which, at, to = true_at(alike & (kind[:, None] != other[:, None, :]) & goes[:, :, None] & comes[:, None, :])
        kept = thinned(which, MANY, number)
        which, at, to = which[kept], at[kept], to[kept]
        rank = ranks(which)
        width = int(rank.max(initial=-1)) + 1
        all_at, all_to = numpy.zeros((2, len(partners), width), dtype=numpy.int64)
        delta = numpy.full((2, len(partners), width), inf)
        all_at[which, rank], all_to[which, rank] = at, to
        delta[:, which, rank] = (self.need[mine[at]] - self.need[theirs[which, to]]).T
        return all_at, all_to, delta

    def _first(self, rows: Ints) -> NDArray[np.bool_]:
        """Is a replica the first one of its class and shape in its row?"""
        key = self.kind[rows] * self.shapes + self.dealt.shape[rows]
        order = numpy.argsort(key, axis=1, kind="stable")
        key = numpy.take_along_axis(key, order, axis=1)
        found = numpy.ones(rows.shape, dtype=bool)
        numpy.put_along_axis(found, order[:, 1:], key[:, 1:] != key[:, :-1], axis=1)
        return found

    def _within(self, host: int, partner: int, at: Ints, to: Ints) -> bool:
        """Do all classes keep their limits when both exchanges are made?"""
        mine, theirs = self.kind[self.row[host][at]], self.kind[self.row[partner][to]]
        return all(
            bool((self.held[come, where] + 2 - (come[0] != come[1]) - numpy.isin(come, go) <= self.limit[come]).all())
            for come, go, where in ((mine, theirs, partner), (theirs, mine, host))
        )

    def _gains(self, over: Ints, partners: Ints, *, sideways: bool) -> tuple[Floats, Ints, Ints]:
        """(By how much less is lacked after the best exchange of each pair of hosts, where in their rows its two replicas are)."""
        left = self.dealt.left
        mine, theirs = self.row[over], self.row[partners]
        # Only what is alike changes places, and few are: these alone are looked at further.
        goes = numpy.where((mine >= 0) & self._first(mine) & self._room(mine, partners), self.dealt.shape[mine], -1)
        comes = numpy.where((theirs >= 0) & self._first(theirs) & self._room(theirs, over), self.dealt.shape[theirs], -2)
        pair, at, to = true_at(goes[:, :, None] == comes[:, None, :])
        delta = self.need[mine[pair, at]] - self.need[theirs[pair, to]]
        if sideways and len(pair):
            moved = (delta != 0).any(axis=1)
            pair, at, to, delta = pair[moved], at[moved], to[moved], delta[moved]
        lack = numpy.zeros(len(pair))
        for which, scale in enumerate(self.scale.tolist()):
            after = numpy.minimum(0.0, left[over, which][pair] + delta[:, which])
            lack -= scale * (after + numpy.minimum(0.0, left[partners, which][pair] - delta[:, which]))
        before = -((numpy.minimum(0.0, left[over]) + numpy.minimum(0.0, left[partners])) * self.scale).sum(axis=1)
        gain, (best_at, best_to) = numpy.full(len(over), -inf), numpy.zeros((2, len(over)), dtype=numpy.int64)
        order = numpy.lexsort((lack, pair))
        some, first = numpy.unique(pair[order], return_index=True)
        first = order[first]
        gain[some], best_at[some], best_to[some] = before[some] - lack[first], at[first], to[first]
        return gain, best_at, best_to

    def _room(self, replicas: Ints, hosts: Ints) -> NDArray[np.bool_]:
        """May each of a row's replicas join the row's host, as far as its class's limit goes?"""
        kind = self.kind[replicas]
        return self.held[kind, hosts[:, None]] < self.limit[kind]

    def _swap(self, host: int, partner: int, at: int, to: int) -> None:
        one, other = int(self.row[host, at]), int(self.row[partner, to])
        delta = self.need[one] - self.need[other]
        self.dealt.left[host] += delta
        self.dealt.left[partner] -= delta
        self.dealt.host[one], self.dealt.host[other] = partner, host
        self.row[host, at], self.row[partner, to] = other, one
        for replica, old, new in ((one, host, partner), (other, partner, host)):
            self.held[self.kind[replica], old] -= 1
            self.held[self.kind[replica], new] += 1


def ease(options: Options, dealt: Dealt) -> None:
    """A few large replicas of the last priority go where exchanges leave many hosts with a little too much, and what they leave is
    exchanged: else each of these hosts would lose one. In place."""
    for _time in range(EASINGS):
        over = numpy.flatnonzero((dealt.left < -NEARLY).any(axis=1))
        if len(over) <= FEW:
            return
        lack = -numpy.minimum(dealt.left, 0.0).sum(axis=0)
        # Those with one GPU, then those with several.
        klass, host = (
            numpy.concatenate((ones, numpy.asarray([each[which] for each in dealt.several], dtype=numpy.int64)))
            for which, ones in enumerate((dealt.klass, dealt.host))
        )
        need = options.needs[klass]
        which = int((lack / numpy.maximum(need.mean(axis=0), NEARLY)).argmax())
        there = numpy.isin(host, over) & (need[:, which] > 0) & (need[:, which] <= lack[which])
        # Of the others it matters who finds another place, and small ones do.
        there &= options.priority[klass] == options.levels[-1]
        able = numpy.flatnonzero(there)
        # The largest of each host; of these as many as leave what is lacked.
        able = able[numpy.lexsort((able, host[able], -need[able, which]))]
        able = able[numpy.sort(numpy.unique(host[able], return_index=True)[1])]
        gone = able[: 1 + int(numpy.searchsorted(numpy.cumsum(need[able, which]), lack[which]))]
        if len(gone) >= len(over):
            return
        _leave(options, dealt, gone)
        exchange(options, dealt)


def _leave(options: Options, dealt: Dealt, gone: Ints) -> None:
    """These replicas have no place any more. ``gone``: their numbers; those with several GPUs come after the others."""
    kept = numpy.ones(dealt.placed, dtype=bool)
    kept[gone] = False
    ones = len(dealt.klass)
    mine = ~kept[:ones]
    numpy.add.at(dealt.left, dealt.host[mine], options.needs[dealt.klass[mine]])
    dealt.klass, dealt.shape, dealt.host = dealt.klass[kept[:ones]], dealt.shape[kept[:ones]], dealt.host[kept[:ones]]
    for klass, host in (dealt.several[one - ones] for one in gone[gone >= ones].tolist()):
        dealt.left[host] += options.needs[klass]
        dealt.multi[host] -= options.count[klass]
    dealt.several = [each for each, stays in zip(dealt.several, kept[ones:].tolist(), strict=True) if stays]


def take_off(options: Options, dealt: Dealt) -> None:
    """Take replicas off hosts that have too much: of the lowest priority first, then the one that leaves least over. In place."""
    gone: list[int] = []
    for host in numpy.flatnonzero((dealt.left < -NEARLY).any(axis=1)).tolist():
        here = numpy.flatnonzero(dealt.host == host).tolist()
        while (dealt.left[host] < -NEARLY).any():
            best = min(here, key=lambda replica: _cost(options, dealt, host, replica))
            here.remove(best)
            gone.append(best)
            klass = dealt.klass[best]
            dealt.left[host] += options.needs[klass]
    kept = numpy.ones(len(dealt.klass), dtype=bool)
    kept[gone] = False
    dealt.klass, dealt.shape, dealt.host = dealt.klass[kept], dealt.shape[kept], dealt.host[kept]


def _cost(options: Options, dealt: Dealt, host: int, replica: int) -> tuple[int, float, float, int]:
    klass = int(dealt.klass[replica])
    after = dealt.left[host] + options.needs[klass]
    lack = -float(numpy.minimum(after, 0.0).sum())
    return (int(options.priority[klass]), lack, float(after.sum()), klass)
