# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a whole fleet at once: 100,000 GPUs and more, with bounds that say how far from the best the plan can be.

The objective is lexicographic: as many replicas of the highest priority as possible, then of the next, and so on; then as few GPUs
opened as possible. Stages: a linear program over groups of hosts that are alike (``fleet_program``), whole numbers (``fleet_rounding``),
hosts (``fleet_expansion``, ``fleet_exchange``), GPUs and what was left over (``fleet_seats``, ``fleet_filling``), on small fleets
then a few hosts at a time (``fleet_windows``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_dealing import rows_of, seated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetAnswer, FleetProblem, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import (
    Fewest,
    FleetProgram,
    Relaxed,
    fleet_program,
    once_more,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import reachable, rounded
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_windows import improve
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError, available, numpy, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sweeps import without_sweeps

# The bound of a plan with replicas more that open so many GPUs, or this part of all, is as good as one of its own.
NEAR, NEARLY = 2, 5e-4
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
    options = options_of(problem, alone=alone, mixed=True)
    program = fleet_program(options)
    relaxed = program.solve(partial(reachable, options))
    exact = all(board.exact for board in options.boards)
    with ThreadPoolExecutor(1) as beside:
        # HiGHS works without Python's lock: how few GPUs are enough is found while replicas are put into whole numbers.
        sought = beside.submit(_fewest, program, relaxed.held) if exact else None
        amount = rounded(options, relaxed)
        by_class = numpy.bincount(options.klass, weights=amount, minlength=len(options.classes)).astype(numpy.int64)
        seats = seated(options, relaxed, amount)
        filling = Filling(options, seats)
        filling.fill(by_class)
        fewest = sought.result() if sought else None
        if alone or FEW_HOSTS < len(problem.hosts) <= MANY_HOSTS:
            improve(filling, partial(_bounds, relaxed, fewest))
        served = filling.served()
        if not exact or not _holds(relaxed, served):
            # Sizes had to be rounded up, or fewer are served than the later stages held. Bounds that are true come from a program with
            # sizes rounded down that holds what is served.
            program = once_more(program, options if exact else options_of(problem, up=False, alone=alone, mixed=True))
            program.only_bounds()
            relaxed, fewest = program.solve(lambda _relaxed, level, _held: served[level]), None
        if fewest is None or not _tells(fewest, served):
            again = beside.submit(_fewest, program, served)
            rows = rows_of(options, seats)
            fewest = again.result()
        else:
            rows = rows_of(options, seats)
    return FleetAnswer(
        rows=rows,
        served=served,
        bound={level: relaxed.levels[level].given(served) for level in options.levels},
        opened=filling.opened(),
        opened_bound=max(0.0, float(fewest.given(served))) if fewest else 0.0,
        solver=version(),
    )


def _fewest(program: FleetProgram, served: dict[int, int]) -> Fewest | None:
    """How few GPUs are enough; None where the program cannot serve so many: for lack of hosts to spread them over, or because it does not
    know the patterns that a limit of clients leaves."""
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
