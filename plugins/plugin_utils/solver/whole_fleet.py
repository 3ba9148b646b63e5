# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a whole fleet at once: 100,000 GPUs and more, with bounds that say how far from the best the plan can be.

The objective is lexicographic: as many replicas of the highest priority as possible, then of the next, and so on; then as few GPUs
opened as possible. Stages: a linear program over groups of equal hosts (``fleet_program``), whole numbers (``fleet_rounding``), hosts
(``fleet_expansion``, ``fleet_exchange``), GPUs and what was left over (``fleet_seats``, ``fleet_filling``), on small fleets then a few
hosts at a time (``fleet_windows``).
"""

from __future__ import annotations

import typing as t
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import shared_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import in_order
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_exchange import exchange, take_off
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import Dealer, Dealt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetAnswer, FleetProblem, Row, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import Fewest, FleetProgram, Relaxed, fleet_program
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import Cut, cuts, reachable, rounded
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Codes, Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_windows import improve
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError, available, numpy, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sweeps import without_sweeps

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# The bound of a plan with replicas more that open so many GPUs, or this part of all, is as good as one of its own.
NEAR, NEARLY = 2, 5e-4
# Up to so many without a place the first order will do: filling finds places for the few. The other order is taken where it leaves less
# than this part: what is nearly as good may be worse when all is done. Up to this part of a group the first patterns will do as well:
# others seldom leave fewer.
FINE, BETTER, FAIR = 15, 0.6, 2e-3
# From so many replicas on they are dealt by two processes.
MANY = 5_000
# Up to so many hosts are planned in both ways; up to so many a few hosts at a time are planned anew in the end.
FEW_HOSTS, MANY_HOSTS = 40, 400


@without_sweeps
def plan_whole_fleet(problem: FleetProblem) -> FleetAnswer:
    """Where every replica goes, and proven bounds.

    Equal problems have equal answers, in whatever order hosts and classes are given. Names decide only between equal hosts.

    :raises FleetError: the problem is not sound. :raises SolverError: there is no solver here.
    """
    if not available():
        raise SolverError("highspy is not installed")
    check(problem)
    answer = _planned(problem, alone=False)
    if len(problem.hosts) <= FEW_HOSTS:
        # Few hosts can each be looked at alone: nothing is lost then by adding them up, and the bounds are closer.
        other = _planned(problem, alone=True)
        best = max(other, answer, key=_objective)
        answer = replace(best, bound=other.bound, opened_bound=other.opened_bound) if best.served == other.served else best
    return answer


def _objective(answer: FleetAnswer) -> tuple[int, ...]:
    """Replicas by priority, greatest first, then GPUs that stay closed."""
    return (*answer.served.values(), -answer.opened)


def _planned(problem: FleetProblem, *, alone: bool) -> FleetAnswer:
    """The plan from one look at the fleet: equal hosts as groups, or each host ``alone``."""
    options = options_of(problem, alone=alone)
    program = fleet_program(options)
    relaxed = program.solve(partial(reachable, options))
    exact = all(board.exact for board in options.boards)
    with ThreadPoolExecutor(1) as beside:
        # HiGHS works without Python's lock: how few GPUs are enough is found while replicas are put into whole numbers.
        sought = beside.submit(_fewest, program, relaxed.held) if exact else None
        amount = rounded(options, relaxed)
        by_class = numpy.bincount(options.klass, weights=amount, minlength=len(options.classes)).astype(numpy.int64)
        seats = _seated(options, relaxed, amount)
        filling = Filling(options, seats)
        filling.fill(by_class)
        fewest = sought.result() if sought else None
        if alone or FEW_HOSTS < len(problem.hosts) <= MANY_HOSTS:
            improve(filling, partial(_bounds, relaxed, fewest))
        served = filling.served()
        if not exact or not _holds(relaxed, served):
            # Sizes had to be rounded up, or fewer are served than the later stages held. Bounds that are true come from a program with
            # sizes rounded down that holds what is served.
            program = fleet_program(options_of(problem, up=False, alone=alone))
            relaxed, fewest = program.solve(lambda _relaxed, level, _held: served[level]), None
        if fewest is None or not _tells(fewest, served):
            again = beside.submit(program.fewest_gpus, served)
            rows = _rows(options, seats)
            fewest = again.result()
        else:
            rows = _rows(options, seats)
    return FleetAnswer(
        rows=rows,
        served=served,
        bound={level: relaxed.levels[level].given(served) for level in options.levels},
        opened=filling.opened(),
        opened_bound=float(fewest.given(served)),
        solver=version(),
    )


def _fewest(program: FleetProgram, served: dict[int, int]) -> Fewest | None:
    """How few GPUs are enough; None where so many replicas cannot be served, for lack of hosts to spread them over."""
    try:
        return program.fewest_gpus(served)
    except SolverError:
        return None


def _bounds(relaxed: Relaxed, fewest: Fewest | None, served: dict[int, int]) -> tuple[dict[int, float], float]:
    """(by priority the most replicas, the fewest GPUs) of a plan that serves this much, as far as known by now."""
    gpus = fewest.given(served) if fewest and fewest.knows(served) else 0
    return {level: one.given(served) for level, one in relaxed.levels.items()}, gpus


def _tells(fewest: Fewest, served: dict[int, int]) -> bool:
    """Is the bound as good for what is served as one of its own?"""
    if not fewest.knows(served):
        return False
    gpus = fewest.given(fewest.served)
    return gpus - fewest.given(served) <= max(NEAR, NEARLY * gpus)


def _holds(relaxed: Relaxed, served: dict[int, int]) -> bool:
    """Are as many served of each priority but the last as the linear program holds?"""
    return all(served[level] >= number for level, number in relaxed.held.items() if level != min(served))


def _seated(options: Options, relaxed: Relaxed, amount: Ints) -> list[Seats]:
    """Replicas on GPUs of hosts. ``amount``: of each option, near what the linear program says."""
    codes = [Codes(board) for board in options.boards]
    used = numpy.bincount(options.group[amount > 0], minlength=len(options.groups)).tolist()
    # Most work is where many options meet many patterns.
    large = sorted(range(len(used)), key=lambda number: (-used[number] * int((relaxed.boards[number] > 0).sum()), number))
    deal = partial(_dealt, options, relaxed, amount)
    all_dealt = shared_out(deal, large) if amount.sum() >= MANY else {number: deal(number) for number in large}
    return [Seats(options, number, all_dealt[number], codes[group.board]) for number, group in enumerate(options.groups)]


def _dealt(options: Options, relaxed: Relaxed, amount: t.Any, number: int) -> Dealt | None:
    """The replicas of a group on its hosts; of several ways the one after which fewest GPUs are open when all have a place.

    :param amount: replicas by option.
    """
    best: tuple[int, int] | None = None
    found: Dealt | None = None
    group = options.groups[number]
    wanted = int(amount[options.group == number].sum())
    for cut, enough in cuts(options, relaxed, amount, number):
        one, off = _in_an_order(options, number, amount, cut)
        # Whoever found no place takes a GPU that is not open yet; who was taken off, or finds no such GPU, will hardly be served.
        short = wanted - off - len(one.klass) - len(one.several)
        opened = int(cut.boards.sum()) + short
        cost = off + max(0, opened - group.size * group.gpus), opened
        if best is None or cost < best:
            best, found = cost, one
        if enough and short <= max(FINE, FAIR * wanted):
            break
    return found


def _in_an_order(options: Options, number: int, amount: t.Any, cut: Cut) -> tuple[Dealt, int]:
    """(the replicas of a group on its hosts, how many were taken off again); in the order that leaves fewer without a place."""
    wanted = int(amount[options.group == number].sum())
    best: tuple[int, Dealt, int] | None = None
    for many_first in (False, True):
        one = Dealer(options, number).deal(amount, *cut, many_first=many_first)
        placed = len(one.klass)
        exchange(options, one)
        take_off(options, one)
        lack = wanted - len(one.klass) - len(one.several)
        if best is None or lack < BETTER * best[0]:
            best = lack, one, placed - len(one.klass)
        if lack <= FINE:
            break
    return t.cast("tuple[int, Dealt, int]", best)[1:]


def _rows(options: Options, seats: list[Seats]) -> list[Row]:
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
        rank = numpy.arange(len(mine)) - numpy.searchsorted(place, place)
        row = numpy.searchsorted(codes.legal, seats.room.code[host[mine], gpu[mine]])
        start[mine] = codes.starts[row, shape[mine], rank]
    return klass, numpy.full(len(klass), seats.number), host, gpu, shape, start, replica
