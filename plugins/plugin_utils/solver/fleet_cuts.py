# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What whole replicas of one team within its quota can be, and can be worth: rows that the whole fleet's linear program lacks.

In the linear program a team uses its quota up to the last GiB with fractional replicas, and what that promises is far from what whole ones
can keep. At given prices of all that teams share (places, CPU, RAM, the priorities held) each team alone is a knapsack, solved in whole
numbers: no plan has more worth in this team, so that a row which says so cuts the fractional solution off and no plan.
"""

from __future__ import annotations

import typing as t
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Program, SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

NEARLY = 1e-9
NODES = 200
# So much left of a quota, GiB or GPUs, is not used up.
SPARE = 1e-3
# Teams that are looked at at once.
TOGETHER = 2


class TeamCut(t.NamedTuple):
    """No plan has more than ``most`` when each replica of these ``options`` (their numbers) counts its ``worth``."""

    options: Ints
    worth: Floats
    most: float


def team_cuts(options: Options, mine: Ints, worth: Floats, amount: Floats, enough: float) -> list[TeamCut]:
    """A cut for each team that has more worth in ``amount`` than whole replicas could have, by more than ``enough``.

    :param mine: the numbers of the options that the program has so far. :param worth: (options,), of a replica of each, in the unit of the
        program's objective; below zero where it costs more than it brings. :param amount: (options,), the solution to be cut off.
    """
    team = options.team[options.klass[mine]]
    asked: list[tuple[int, Ints, float]] = []
    for number in range(len(options.quotas)):
        own = mine[team == number]
        left = (
            options.quota_memory[number] - options.memory[own] @ amount[own],
            options.quota_worth[number] - options.worth[own] @ amount[own],
        )
        # Else not the quota is in this team's way.
        if min(left) <= SPARE and (now := float(worth[own] @ amount[own])) > enough:
            asked.append((number, own, now))
    with ThreadPoolExecutor(TOGETHER) as pool:
        # HiGHS works without Python's lock.
        most = list(pool.map(lambda one: _most_worth(options, one[0], one[1][worth[one[1]] > NEARLY], worth, enough / 4), asked))
    cuts = []
    for (_number, own, now), greatest in zip(asked, most, strict=True):
        if greatest < now - enough:
            kept = own[numpy.abs(worth[own]) > NEARLY]
            cuts.append(TeamCut(kept, worth[kept], greatest))
    return cuts


def _most_worth(options: Options, team: int, own: Ints, worth: Floats, nearly: float) -> float:
    """A bound, nearly exact, of the worth of whole replicas of a team: within its quota and of no class more than are asked for."""
    kinds, which = numpy.unique(options.klass[own], return_inverse=True)
    program = Program()
    columns = program.add_columns(len(own), -worth[own], 0.0, options.most[own], whole=True)
    program.add_entries(program.add_rows(len(kinds), upper=options.replicas[kinds])[which], columns)
    for cost, most in ((options.memory, options.quota_memory), (options.worth, options.quota_worth)):
        if most[team] < numpy.inf:
            program.add_entries(program.add_rows(1, upper=most[team]), columns, cost[own])
    relaxed = program.solve(relaxed=True)
    least = float(worth[own] @ numpy.floor(relaxed.values + 1e-6))
    if -relaxed.objective - least <= nearly:
        return -relaxed.objective
    # Whoever costs more than whole numbers can lose at all is in no solution that is better than the one rounded down.
    hopeless = (relaxed.values < 1e-6) & (relaxed.reduced > -relaxed.objective - least + 1e-6)
    try:
        return max(least, -program.solve(Limits(absolute=nearly, nodes=NODES), within=(numpy.flatnonzero(hopeless), 0.0, 0.0)).bound)
    except SolverError:
        return -relaxed.objective


def most_of_teams(options: Options, level: int, held: dict[int, int]) -> dict[int, int]:
    """Team -> the most replicas of a priority that its quota has room for, in whole numbers, where that is less than is asked for.

    With the priorities before served as ``held`` says. Without it, a quota that is used up leaves a fractional replica in the linear
    program, and the bounds of the next priorities would promise what it is worth: one large replica may be worth many small ones.
    """
    placeable = numpy.zeros(len(options.classes), dtype=bool)
    placeable[options.klass] = True
    short = {above: int(options.replicas[placeable & (options.priority == above)].sum()) - held[above] for above in held}
    found = {}
    for team in range(len(options.quotas)):
        mine = numpy.flatnonzero((options.team[options.klass] == team) & (options.priority[options.klass] >= level))
        # Options that cost the same are one here.
        costs = numpy.stack((options.klass[mine], options.memory[mine], options.worth[mine]))
        mine = mine[numpy.unique(costs, axis=1, return_index=True)[1]]
        kinds, which = numpy.unique(options.klass[mine], return_inverse=True)
        priority = options.priority[kinds]
        program = Program()
        columns = program.add_columns(len(mine), -(priority[which] == level).astype(float))
        demand = program.add_rows(len(kinds), upper=options.replicas[kinds].astype(float))
        program.add_entries(demand[which], columns)
        for cost, most in ((options.memory, options.quota_memory), (options.worth, options.quota_worth)):
            program.add_entries(program.add_rows(1, upper=most[team]), columns, cost[mine])
        for above, lack in short.items():
            least = max(0, int(options.replicas[kinds][priority == above].sum()) - lack)
            program.add_entries(program.add_rows(1, lower=least), columns[priority[which] == above])
        asked = int(options.replicas[kinds][priority == level].sum())
        served = int(1e-6 - program.solve().objective) if asked else 0
        if served < asked:
            found[team] = served
    return found
