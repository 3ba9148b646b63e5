# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From whole numbers of replicas for each group of hosts that are alike to places on single GPUs, group by group."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import shared_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import in_order, ranks
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_exchange import ease, exchange, take_off
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import LITTLE, NEARLY, Dealer, Dealt, joined
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import Group
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_halving import halved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_parting import parted
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetProblem, Row
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import Patterned, WholePatterns, cuts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Codes, Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Up to so many without a place the first order will do: filling finds places for the few. The other order is taken where it leaves less
# than this part: what is nearly as good may be worse when all is done. Up to this part of a group the first patterns will do as well:
# others seldom leave fewer. So will the first order, where so few of it had to be taken off again.
FINE, BETTER, FAIR, FEW = 15, 0.6, 2e-3, 1e-2
# A group whose hosts lack this part of what they may give, on the mean, is dealt to part by part.
UNLIKE = 0.01
# Where hosts lack no more than this part of what they may give, on the mean, a few large replicas that go may help all.
BEARABLE = 0.01
# From so many replicas on they are dealt by two processes.
MANY = 5_000
# So many times what the first GPUs lack before any exchange, or LITTLE, is too much for fewer GPUs.
HARDER = 1.5
# Halves are tried where after a first cycle of exchanges this part of all hosts still has too much.
HOPELESS = 0.25


def places(problem: FleetProblem) -> list[Row]:
    """Where replicas go that are known to be few enough: without quotas, and each class at one size on one kind of hosts.

    What finds no place on its hosts after all is left out, the lower priorities first.
    """
    options = options_of(problem)
    patterns = [options.boards[group.board].first_patterns for group in options.groups]
    amount = numpy.minimum(options.replicas[options.klass], options.most)
    seats = seated(options, _Unknown(patterns, [numpy.zeros(len(each)) for each in patterns]), amount)
    Filling(options, seats).fill()
    return rows_of(options, seats)


class _Unknown(t.NamedTuple):
    """As :class:`Patterned`, where nothing is known of the best patterns."""

    patterns: list[Ints]
    boards: list[Floats]


def seated(options: Options, relaxed: Patterned, amount: Ints) -> list[Seats]:
    """Replicas on GPUs of hosts. ``amount``: of each option, near what the linear program says."""
    codes = [Codes(board) for board in options.boards]
    used = numpy.bincount(options.group[amount > 0], minlength=len(options.groups)).tolist()
    # Most work is where many options meet many patterns.
    large = sorted(range(len(used)), key=lambda number: (-used[number] * int((relaxed.boards[number] > 0).sum()), number))
    deal = partial(_dealt, options, relaxed, amount)
    all_dealt = shared_out(deal, large) if amount.sum() >= MANY else {number: deal(number) for number in large}
    return [Seats(options, number, all_dealt[number], codes[group.board]) for number, group in enumerate(options.groups)]


class _Way(t.NamedTuple):
    """A group's replicas as they are ``dealt`` to GPUs of a ``cut``: how many were taken ``off`` again, how many besides are ``short`` of a
    place, and the GPUs that are ``opened`` when each of these has one of its own, ``over`` of them more than there are."""

    cut: WholePatterns
    dealt: Dealt
    off: int
    short: int
    opened: int
    over: int

    @property
    def cost(self) -> tuple[int, int]:
        """What is less for the better way: who was taken off, or finds no GPU of its own, will hardly be served."""
        return self.off + self.over, self.opened


def _dealt(options: Options, relaxed: Patterned, amount: t.Any, number: int) -> Dealt:
    """The replicas of a group on its hosts; of several ways the one after which fewest GPUs are open when all have a place.

    :param amount: replicas by option.
    """
    group = options.groups[number]
    wanted = int(amount[options.group == number].sum())
    found: list[_Way] = []
    bearable = numpy.inf
    for cut, enough in cuts(options, relaxed, amount, number):
        first = Dealer(options, number).deal(amount, *cut)
        lack = _lack(group, first)
        if not found and group.mixed and lack > UNLIKE * group.size:
            parts = _in_parts(options, relaxed, amount, number)
            if parts is not None:
                return parts
        # Fewer GPUs that are harder to deal leave more replicas out.
        if lack > bearable and not found[-1].over:
            break
        bearable = HARDER * max(lack, LITTLE) if not found else bearable
        found.append(_in_whole_or_halves(options, number, amount, cut, first))
        # What had to be put in halves would be no easier to deal on fewer GPUs.
        if found[-1].cut is not cut or (enough and found[-1].short <= max(FINE, FAIR * wanted)):
            break
    return min(found, key=lambda way: way.cost).dealt


def _lack(group: Group, dealt: Dealt) -> float:
    """What hosts of a group lack for what is dealt to them, while others have too much: in what a host may give, CPU and RAM together."""
    return float(-(numpy.minimum(dealt.left, 0.0) / numpy.maximum((group.cpus, group.ram), NEARLY)).sum())


def _in_parts(options: Options, relaxed: Patterned, amount: Ints, number: int) -> Dealt | None:
    """As :func:`_dealt`, part by part of a group whose hosts differ; None where that cannot be."""
    one = parted(options, relaxed, amount, number)
    if one is None:
        return None
    return joined([_dealt(one.options, one, one.amount, part) for part in range(len(one.hosts))], one.hosts, one.kinds)


def _in_whole_or_halves(options: Options, number: int, amount: t.Any, cut: WholePatterns, first: Dealt) -> _Way:
    """The replicas of a group on its hosts; where exchanges hardly help, on GPUs that are put in halves, if that is better.

    :param first: as they are dealt in the first order; nobody has been taken off.
    """
    halves = halved(options, amount, number, cut)
    over = exchange(options, first, HOPELESS * len(first.left) if halves is not None else numpy.inf)
    other: _Way | None = None
    if over and halves is not None:
        one = Dealer(options, number).deal(amount, *halves)
        # Of each host that has too much somebody goes at least: more must not be left here.
        if not exchange(options, one, BETTER * over):
            other = _in_an_order(options, number, amount, halves, one)
            if other.off < BETTER * over:
                return other
    if over:
        exchange(options, first)
    whole = _in_an_order(options, number, amount, cut, first)
    return whole if other is None else min(whole, other, key=lambda way: way.cost)


def _in_an_order(options: Options, number: int, amount: t.Any, cut: WholePatterns, first: Dealt) -> _Way:
    """The replicas of a group on its hosts, in the order that leaves fewer without a place.

    :param first: as they are dealt in the first order, after exchanges; nobody has been taken off.
    """
    group = options.groups[number]
    wanted = int(amount[options.group == number].sum())
    best: tuple[int, Dealt, int] | None = None
    for many_first in (False, True):
        one = first
        if many_first:
            one = Dealer(options, number).deal(amount, *cut, many_first=True)
            exchange(options, one)
        placed = one.placed
        one = _within_hosts(options, group, one)
        lack, off = wanted - one.placed, placed - one.placed
        if best is None or lack < BETTER * best[0]:
            best = lack, one, off
        # The few who were taken off, for lack of CPU or RAM, hardly fare better in the other order.
        if lack <= FINE or (lack - off <= FINE and off <= FEW * wanted):
            break
    lack, dealt, off = t.cast("tuple[int, Dealt, int]", best)
    opened = int(cut.boards.sum()) + lack - off
    return _Way(cut, dealt, off, lack - off, opened, max(0, opened - group.size * group.gpus))


def _within_hosts(options: Options, group: Group, dealt: Dealt) -> Dealt:
    """The replicas of a group without those of which hosts have too much: each host's own, or first a few large ones that help many hosts;
    whichever leaves more of the highest priority that differs."""
    found = [dealt]
    if (dealt.left < -NEARLY).any() and _lack(group, dealt) <= BEARABLE * group.size:
        found.append(replace(dealt, host=dealt.host.copy(), left=dealt.left.copy(), multi=dealt.multi.copy()))
        ease(options, found[1])
    for one in found:
        take_off(options, one)
    return max(found, key=lambda one: _by_priority(options, one))


def _by_priority(options: Options, dealt: Dealt) -> list[int]:
    """How many replicas there are of each priority, greatest first."""
    klass = numpy.concatenate((dealt.klass, numpy.asarray([one for one, _host in dealt.several], dtype=numpy.int64)))
    priority = options.priority[klass]
    return [int((priority == level).sum()) for level in options.levels]


def rows_of(options: Options, seats: list[Seats]) -> list[Row]:
    """The rows of the answer, in its order."""
    if not seats:
        return []
    parts = [_group_rows(one) for one in seats]
    klass, group, host, gpu, shape, start, replica = (numpy.concatenate(column) for column in zip(*parts, strict=True))
    order = in_order(klass, group, host, replica, gpu)
    klass, group, host, gpu, shape, start, replica = (column[order] for column in (klass, group, host, gpu, shape, start, replica))
    # A new replica begins where any of class, group, host and number differs from the row before.
    fresh = numpy.ones(len(klass), dtype=bool)
    fresh[1:] = (klass[1:] != klass[:-1]) | (group[1:] != group[:-1]) | (replica[1:] != replica[:-1])
    number = numpy.cumsum(fresh) - 1
    number -= number[numpy.searchsorted(klass, klass)]
    first = numpy.cumsum([0, *(one.group.size for one in seats)])
    keys = numpy.asarray([one.key for one in options.classes], dtype=object)
    names = numpy.asarray([host.name for one in seats for host in one.group.hosts], dtype=object)
    base = numpy.cumsum([0, *(len(one.board.shapes) for one in seats)])
    modes = numpy.asarray([kind.mode for one in seats for kind in one.board.shapes], dtype=object)
    profiles = numpy.asarray([kind.profile for one in seats for kind in one.board.shapes], dtype=object)
    columns: list[t.Any] = [
        keys[klass],
        number,
        names[first[group] + host],
        gpu,
        modes[base[group] + shape],
        profiles[base[group] + shape],
        start,
    ]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _group_rows(seats: Seats) -> tuple[t.Any, ...]:
    """(class, group, host, GPU, shape, start, number of the replica in the group): arrays with one entry for each GPU of each replica."""
    present = seats.present()
    which, gpu = numpy.nonzero(seats.gpus[present][:, None] >> numpy.arange(seats.group.gpus) & 1)
    replica = present[which]
    klass, shape, host = seats.klass[replica], seats.shape[replica], seats.host[replica]
    start = numpy.full(len(replica), -1, dtype=numpy.int64)
    codes = seats.room.codes
    mine = numpy.flatnonzero(codes.unit[shape] > 0) if len(replica) else numpy.zeros(0, dtype=numpy.int64)
    if len(mine):
        # The first of equal slices on a GPU gets the first start, and so on.
        place = (host[mine] * seats.group.gpus + gpu[mine]) * len(seats.board.shapes) + shape[mine]
        order = in_order(place, klass[mine], replica[mine])
        mine, place = mine[order], place[order]
        rank = ranks(place)
        row = numpy.searchsorted(codes.legal, seats.room.code[host[mine], gpu[mine]])
        start[mine] = codes.starts[row, shape[mine], rank]
    return klass, numpy.full(len(klass), seats.number), host, gpu, shape, start, replica
