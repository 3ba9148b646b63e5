# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a group of hosts that are alike to each of its hosts: which patterns its GPUs have, and which replicas take their places.

CPU and RAM of a group are often needed to the last core, so that every host must get its fair part of both. Patterns first and
replicas then are dealt in order of how far they are from the mean of their kind: what is heavy goes where most is left over, what is light
where least is, and the last ones, near the mean, hardly matter. Then whole GPUs change hosts where a host has too much (``fleet_balance``).
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import add_at, ranks, true_at
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_balance import Limits, balance
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

NEARLY = 1e-6
# A class that needs less than this part of the hosts finds them.
TINY = 0.02
# Classes that need more than this share of the hosts with a place of their shape are dealt first.
CROWDED = 0.1
# The same for the patterns with places of shapes that only so many hosts may have.
SPARSE = 0.15
# Places are spread over so many times the hosts that are needed, where that can be.
SPREAD = 1.15
# Hosts with a free place that are looked at for one replica.
TRIED = 12
# What is left of CPU or RAM counts the less the more of it there is; a host's whole, with this part of it left, counts half.
SLACK = 0.01
# What all hosts together may lack, in a host's whole CPU or RAM: exchanges of replicas will do for that.
LITTLE = 1.0
# Hosts with too few and with too many places of a shape that are looked at together, how often, and how often in vain.
PAIRED, EVENED, IDLE = 16, 600, 6


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

    @property
    def placed(self) -> int:
        """Number of replicas."""
        return len(self.klass) + len(self.several)


def joined(parts: Sequence[Dealt], hosts: Sequence[Ints], kinds: Ints) -> Dealt:
    """The parts of a group as one. ``hosts``: by part, the numbers of its hosts in the group; ``kinds``: by number of a class there, its
    number here."""
    order = numpy.argsort(numpy.concatenate(hosts))
    several = [(int(kinds[klass]), int(mine[host])) for part, mine in zip(parts, hosts, strict=True) for klass, host in part.several]
    return Dealt(
        klass=kinds[numpy.concatenate([part.klass for part in parts])],
        shape=numpy.concatenate([part.shape for part in parts]),
        host=numpy.concatenate([mine[part.host] for part, mine in zip(parts, hosts, strict=True)]),
        slots=numpy.concatenate([part.slots for part in parts])[order],
        left=numpy.concatenate([part.left for part in parts])[order],
        multi=numpy.concatenate([part.multi for part in parts])[order],
        several=several,
    )


def mean_needs(shapes: int, shape: Ints, many: Ints, need: Floats) -> tuple[Floats, Floats]:
    """(How many replicas have each shape, what one of them needs on the mean, CPU and RAM: shape (shapes, 2)).

    :param shape: of each class. :param many: its replicas. :param need: what one of them needs.
    """
    total, mean = numpy.zeros(shapes), numpy.zeros((shapes, 2))
    numpy.add.at(total, shape, many.astype(float))
    numpy.add.at(mean, shape, need * many[:, None])
    mean /= numpy.maximum(1.0, total)[:, None]
    return total, mean


class _Tight(t.NamedTuple):
    """A class that needs nearly all that it may have of all hosts, or several that share a shape: the ``place`` (a shape) of a replica, the
    ``most`` of them on one host, and how many there are."""

    place: int
    most: int
    wanted: int

    def found(self, total: Ints) -> int:
        """How many find a place. ``total``: places of each host, shape (hosts, shapes)."""
        return int(numpy.minimum(total[:, self.place], self.most).sum())


class Dealer:
    """One group while its patterns and replicas are dealt."""

    def __init__(self, options: Options, group: int) -> None:
        self.options, self.number = options, group
        self.group = options.groups[group]
        self.shapes = len(options.boards[self.group.board].shapes)
        size = self.group.size
        self.left = self.group.rooms.copy()
        # Both resources in shares of a host, so that they can be added up; in :meth:`deal` the one of which much is left counts less.
        self.scale = 1.0 / numpy.maximum(numpy.asarray([self.group.cpus, self.group.ram]), NEARLY)
        self.open = numpy.full(size, self.group.gpus, dtype=numpy.int64)
        self.slots = numpy.zeros((size, self.group.gpus, self.shapes), dtype=numpy.int64)
        # The places of each host, shape (hosts, shapes): to add them up anew each time takes a fifth of the whole work.
        self.total = numpy.zeros((size, self.shapes), dtype=numpy.int64)

    def deal(self, amount: Ints, patterns: Ints, boards: Ints, *, many_first: bool = False) -> Dealt:
        """``amount``: replicas by option of the whole fleet; ``boards``: how many GPUs get each of ``patterns``.

        ``many_first``: of the patterns that can be spread only in few ways, those with most such places come first.
        """
        options = self.options
        mine = numpy.flatnonzero((options.group == self.number) & (amount > 0))
        klass, shape, many = options.klass[mine], options.shape[mine], amount[mine]
        single = options.count[klass] == 1
        average = many @ options.needs[klass] / max(1, self.group.size * self.group.gpus)
        several = self._several(klass[~single], many[~single], average)
        multi = self.group.gpus - self.open
        boards = self._others(patterns, boards, dict(zip(klass.tolist(), shape.tolist(), strict=True)), several)
        klass, shape, many = klass[single], shape[single], many[single]
        need = options.needs[klass]
        total, mean = mean_needs(self.shapes, shape, many, need)
        # Places that stay free weigh nothing: the mean is over all of them.
        places = boards @ patterns
        mean *= (total / numpy.maximum(1.0, numpy.maximum(places, total)))[:, None]
        self._patterns(patterns, boards, mean, self._crowd(klass, shape, many), many_first=many_first)
        usable = numpy.arange(self.group.gpus)[None, :] < (self.group.gpus - multi)[:, None]
        self._even_out(klass, shape, many, usable)
        spare = (self.left.sum(axis=0) - many @ need) / self.group.size * self.scale
        self.scale *= SLACK / (SLACK + numpy.maximum(0.0, spare))
        hosts, of = self._settled(*self._replicas(klass, shape, many, need, mean), shape, need, self.options.per_host[klass], usable)
        return Dealt(klass[of], shape[of], hosts, self.slots, self.left, multi, several)

    def _several(self, klass: Ints, many: Ints, average: Floats) -> list[tuple[int, int]]:
        """Replicas with several GPUs: largest first; of equally large ones those first that must be spread over most hosts, then what is
        far from the mean: what is heavy goes where what is light has left most, so that no host is full with CPU or RAM to spare.

        :param average: CPU and RAM (GiB) that one GPU of the group has of its host, on the mean.
        """
        options, found = self.options, list[tuple[int, int]]()
        count, need = options.count[klass], options.needs[klass]
        off = (need - count[:, None] * average) * self.scale
        over = (self.left - self.open[:, None] * average) * self.scale
        crowd = self._part(klass, many)
        crowd = numpy.where(crowd > CROWDED, crowd, 0.0)
        for which in numpy.lexsort((klass, -numpy.abs(off).sum(axis=1), -crowd, -count)).tolist():
            one, number = int(klass[which]), int(many[which])
            held = numpy.zeros(self.group.size, dtype=numpy.int64)
            while number:
                fits = (self.open >= count[which]) & (self.left >= need[which] - NEARLY).all(axis=1) & (held < options.per_host[one])
                hosts = numpy.flatnonzero(fits)
                hosts = hosts[numpy.lexsort((-(over[hosts] @ off[which]), -self.open[hosts]))][: self._share(number)]
                if not len(hosts):
                    break
                self.open[hosts] -= count[which]
                self.left[hosts] -= need[which]
                over[hosts] -= off[which]
                held[hosts] += 1
                found += [(one, host) for host in hosts.tolist()]
                number -= len(hosts)
        return found

    def _others(self, patterns: Ints, boards: Ints, shape: Mapping[int, int], several: Iterable[tuple[int, int]]) -> Ints:
        """``boards`` without the GPUs of ``several``, which are given away already. ``shape``: of each class."""
        taken: Counter[int] = Counter()
        for one, _host in several:
            taken[shape[one]] += int(self.options.count[one])
        left = boards.copy()
        for place, gpus in sorted(taken.items()):
            # A replica that has a GPU to itself has all of its pattern.
            for row in numpy.flatnonzero(patterns[:, place]).tolist():
                less = min(gpus, int(left[row]))
                left[row] -= less
                gpus -= less
        return left

    def _crowd(self, klass: Ints, shape: Ints, many: Ints) -> tuple[Floats, Floats]:
        """By shape: how many places of it a host may have so that each class finds hosts enough within its limit for a host; which part
        of all hosts the class needs that needs most of them."""
        total = numpy.bincount(shape, weights=many, minlength=self.shapes)
        found = numpy.full(self.shapes, numpy.inf)
        numpy.minimum.at(found, shape, self.options.per_host[klass] * total[shape] / numpy.maximum(1, many))
        part = numpy.zeros(self.shapes)
        numpy.maximum.at(part, shape, numpy.minimum(1.0, self._part(klass, many)))
        return numpy.maximum(1.0, numpy.floor(found / SPREAD)), part

    def _part(self, klass: Ints, many: Ints) -> Floats:
        """Which part of all that it may have of all hosts each class needs."""
        return many / (self.options.per_host[klass] * float(self.group.size))

    def _patterns(self, patterns: Ints, boards: Ints, mean: Floats, crowd: tuple[Floats, Floats], *, many_first: bool) -> None:
        """Give every open GPU a pattern, or none."""
        load = numpy.concatenate((patterns @ mean, numpy.zeros((1, 2))))
        counts = numpy.concatenate((boards, [max(0, int(self.open.sum()) - int(boards.sum()))]))
        average = counts @ load / max(1, counts.sum())
        off = (load - average) * self.scale
        over = self.left * self.scale - self.open[:, None] * (average * self.scale)
        used = numpy.zeros(self.group.size, dtype=numpy.int64)
        # What can be spread only in few ways comes first.
        enough, part = crowd
        tight = numpy.append(numpy.where(patterns > 0, part, 0.0).max(axis=1, initial=0.0), 0.0)
        tight = numpy.where(tight > SPARSE, tight, 0.0)
        # Several such places on one GPU need a host that has none yet; single ones then make up the number on the others.
        many = numpy.append((patterns * numpy.where(part > SPARSE, part, 0.0)).max(axis=1, initial=0.0), 0.0) * many_first
        for which in numpy.lexsort((-numpy.abs(off).sum(axis=1), -many, -tight)).tolist():
            number, turn = int(counts[which]), 1
            limited = numpy.flatnonzero((part > TINY) & (patterns[which] > 0)) if which < len(patterns) else numpy.zeros(0, dtype=int)
            held = numpy.zeros(self.group.size, dtype=numpy.int64)
            while number:
                # Equal GPUs are spread over the hosts: the second one of a host waits until every host has its first. Not so where
                # another pattern has given some hosts all of a shape that they need.
                hosts = numpy.flatnonzero((self.open > 0) & ((held < turn) | (many_first and len(limited) > 0)))
                if not len(hosts):
                    turn += 1
                    if turn > self.group.gpus:
                        break
                    continue
                if len(limited):
                    # Hosts that have enough of a shape get no more of it while there are others, above all where most hosts are needed.
                    excess = numpy.maximum(0.0, self.total[hosts[:, None], limited] + patterns[which][limited] - enough[limited])
                    excess = excess @ (1.0 / (1.05 - part[limited]))
                    hosts = hosts[excess <= excess.min() + NEARLY]
                    hosts = hosts[held[hosts] == held[hosts].min()] if many_first else hosts
                # No host is filled sooner than the others, so that the last pattern can be spread as well.
                hosts = hosts[self.open[hosts] == self.open[hosts].max()]
                score = over[hosts] @ off[which]
                hosts = hosts[numpy.argsort(-score, kind="stable")[: self._share(number)]]
                if which < len(patterns):
                    self.slots[hosts, used[hosts]] = patterns[which]
                    self.total[hosts] += patterns[which]
                    used[hosts] += 1
                self.open[hosts] -= 1
                held[hosts] += 1
                over[hosts] -= off[which]
                number -= len(hosts)

    def _even_out(self, klass: Ints, shape: Ints, many: Ints, usable: NDArray[np.bool_]) -> None:
        """Hosts change what two of their GPUs have until each class that needs nearly all that it may have of all hosts finds places: of a
        class with at most four on a host, a fifth place there is of no use to it."""
        limit, part = self.options.per_host[klass], self._part(klass, many)
        crowded = numpy.argsort(-part, kind="stable")[: int((part > SPARSE).sum())]
        tight: list[_Tight] = []
        for one in crowded.tolist():
            before = [each for each in tight if each.place == shape[one]]
            tight.append(_Tight(int(shape[one]), int(limit[one]), int(many[one])))
            # Several of one shape need so many more on each host.
            tight += [_Tight(each.place, each.most + int(limit[one]), each.wanted + int(many[one])) for each in before[-1:]]
        for each in tight:
            turn = idle = 0
            while turn < EVENED and idle < IDLE and each.found(self.total) < each.wanted:
                idle = 0 if self._moved_place(each, tight, usable, turn) else idle + 1
                turn += 1

    def _moved_place(self, one: _Tight, tight: list[_Tight], usable: NDArray[np.bool_], turn: int) -> bool:
        """Did a host that has too few places of a shape get one from a host that has too many? Never at the cost of another tight class."""
        total = self.total
        poor, rich = numpy.flatnonzero(total[:, one.place] < one.most), numpy.flatnonzero(total[:, one.place] > one.most)
        # Others with each turn.
        poor, rich = numpy.roll(poor, -turn * PAIRED)[:PAIRED], numpy.roll(rich, -turn * PAIRED // 2)[:PAIRED]
        # Poor host, rich host and a GPU of each: those whose change brings something, and what it brings; then who else is tight.
        few, many = (self.slots[hosts, :, one.place] for hosts in (poor, rich))
        able = usable[poor][:, None, :, None] & usable[rich][None, :, None, :] & (few[:, None, :, None] < many[None, :, None, :])
        there, gain = numpy.stack(true_at(able)), numpy.zeros(0, dtype=numpy.int64)
        for each in (one, *(other for other in tight if other is not one)):
            to, of, to_gpu, of_gpu = there
            more = self.slots[rich[of], of_gpu, each.place] - self.slots[poor[to], to_gpu, each.place]
            has, had = total[poor[to], each.place], total[rich[of], each.place]
            after = numpy.minimum(has + more, each.most) + numpy.minimum(had - more, each.most)
            brings = after - numpy.minimum(has, each.most) - numpy.minimum(had, each.most)
            kept = brings > 0 if each is one else brings >= -max(0, each.found(total) - each.wanted)
            there, gain = there[:, kept], (brings if each is one else gain)[kept]
        if not len(gain):
            return False
        best = there[:, gain.argmax()].tolist()
        mine, theirs = (poor[best[0]], best[2]), (rich[best[1]], best[3])
        self.slots[mine], self.slots[theirs] = self.slots[theirs].copy(), self.slots[mine].copy()
        gained = self.slots[mine] - self.slots[theirs]
        total[mine[0]] += gained
        total[theirs[0]] -= gained
        return True

    def _share(self, number: int) -> int:
        """How many hosts get one in a turn: few enough that what the first ones got counts for the rest."""
        return min(number, max(1, self.group.size // 4))

    def _replicas(self, klass: Ints, shape: Ints, many: Ints, need: Floats, mean: Floats) -> tuple[Ints, Ints]:
        """(host of each replica, its number among the given classes)."""
        free = self.total.copy()
        off = (need - mean[shape]) * self.scale
        over = self.left * self.scale - free @ (mean * self.scale)
        # A class that may have few replicas on a host must find many hosts with a free place: the tightest ones choose first.
        hosts_with = (free > 0).sum(axis=0)
        crowd = many / numpy.maximum(1.0, self.options.per_host[klass] * hosts_with[shape].astype(float))
        crowd = numpy.where(crowd > CROWDED, crowd, 0.0)
        everyone = numpy.zeros((len(klass), self.group.size), dtype=numpy.int16)
        missing: list[int] = []
        # By shape, how many on one host the classes still to come may have at most: more free places than that must be taken now.
        later = numpy.zeros(self.shapes, dtype=numpy.int64)
        numpy.add.at(later, shape, self.options.per_host[klass])
        for which in numpy.lexsort((klass, -numpy.abs(off).sum(axis=1), -crowd)).tolist():
            number, place = int(many[which]), int(shape[which])
            limit = int(self.options.per_host[klass[which]])
            later[place] -= limit
            held = everyone[which]
            while number:
                hosts = numpy.flatnonzero((free[:, place] > 0) & (held < limit))
                if not len(hosts):
                    break
                urgent = numpy.maximum(0, free[hosts, place] - later[place])
                hosts = hosts[numpy.lexsort((-(over[hosts] @ off[which]), -urgent))[: self._share(number)]]
                free[hosts, place] -= 1
                held[hosts] += 1
                over[hosts] -= off[which]
                self.left[hosts] -= need[which]
                number -= len(hosts)
            missing += [which] * number
        for which in missing:
            self._make_place(which, klass, shape, need, everyone, free)
        which_of, hosts_of = numpy.nonzero(everyone)
        many_of = everyone[which_of, hosts_of]
        return numpy.repeat(hosts_of, many_of), numpy.repeat(which_of, many_of)

    def _settled(self, hosts: Ints, of: Ints, shape: Ints, need: Floats, limit: Ints, usable: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """GPUs change hosts with the replicas that they have by now, where a host has too much; as of :meth:`_replicas`.

        ``shape``, ``need``, ``limit``: of each class that a replica is ``of``.
        """
        if numpy.minimum(0.0, self.left * self.scale).sum() > -LITTLE:
            return hosts, of
        # The first replica of a shape on a host is on the first place of that shape, and so on.
        places = self.slots.transpose(0, 2, 1)
        gpu = numpy.repeat(numpy.tile(numpy.arange(self.group.gpus), self.group.size * self.shapes), places.ravel())
        many = places.sum(axis=2).ravel()
        first = numpy.cumsum(many) - many
        key = hosts * self.shapes + shape[of]
        order = numpy.argsort(key, kind="stable")
        rank = ranks(key[order])
        replicas = numpy.zeros((self.group.size, self.group.gpus, len(need)), dtype=numpy.int64)
        add_at(replicas, (hosts[order], gpu[first[key[order]] + rank], of[order]), 1)
        load = replicas @ need
        both = numpy.concatenate((replicas, self.slots), axis=2)
        limited = numpy.flatnonzero(limit < replicas.max(axis=(0, 1)) * self.group.gpus)
        left = self.left - self.left.mean(axis=0)
        balance(both, load * self.scale, left * self.scale, usable, Limits(limited, limit[limited]))
        replicas, self.slots = both[:, :, : len(need)].sum(axis=1), both[:, :, len(need) :]
        self.left += load.sum(axis=1) - replicas @ need
        hosts, of = numpy.nonzero(replicas)
        many = replicas[hosts, of]
        return numpy.repeat(hosts, many), numpy.repeat(of, many)

    def _make_place(self, which: int, klass: Ints, shape: Ints, need: Floats, everyone: NDArray[np.int16], free: Ints) -> None:
        """One more of a class that has as many as it may on every host with a free place: another of its shape goes there from a host that
        may have one more of the class. Of all such pairs the one that leaves least too much."""
        place = int(shape[which])
        limit = self.options.per_host[klass]
        to = numpy.flatnonzero(free[:, place] > 0)
        at = numpy.flatnonzero(everyone[which] < limit[which])
        others = numpy.flatnonzero((shape == place) & everyone.any(axis=1))
        others = others[others != which]
        if not (len(to) and len(at) and len(others)):
            return
        to = to[numpy.argsort(-(self.left[to] * self.scale).min(axis=1), kind="stable")][:TRIED]
        delta = (need[others] - need[which])[:, None, :]
        lack = -(numpy.minimum(0.0, self.left[at] + delta) * self.scale).sum(axis=2)
        lack[everyone[numpy.ix_(others, at)] == 0] = numpy.inf
        best = (numpy.inf, 0, 0, 0)
        for host in to.tolist():
            room = everyone[others, host] < limit[others]
            after = -(numpy.minimum(0.0, self.left[host] - need[others]) * self.scale).sum(axis=1)
            total = numpy.where(room[:, None], lack + after[:, None], numpy.inf)
            one = int(total.argmin())
            best = min(best, (float(total.flat[one]), host, *divmod(one, len(at))))
        if best[0] == numpy.inf:
            return
        to_host, other, at_host = best[1], int(others[best[2]]), int(at[best[3]])
        everyone[other, at_host] -= 1
        everyone[other, to_host] += 1
        everyone[which, at_host] += 1
        self.left[at_host] += need[other] - need[which]
        self.left[to_host] -= need[other]
        free[to_host, place] -= 1
