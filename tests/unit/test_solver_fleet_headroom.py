# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of plans that are as good, one that leaves each group of hosts some CPU and RAM."""

from __future__ import annotations

import typing as t
from functools import partial

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_program
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_headroom import PLENTY, STEPS, with_headroom
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import FleetProgram, Relaxed
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import reachable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Program, Session, SolverError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import violations
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models

GIB = 1024
HOSTS = 30
POOR, RICH = 60.0, 200.0
MODES = ("mig", "whole")


def fleet(*cpus: float, whole: int = 0) -> dict[str, t.Any]:
    """Hosts of four A100 with so many cores, and services that need 45 of their GPUs (``whole``: so many more whole ones)."""
    one = {"team": "lin", "priority": 1, "models": (), "not_models": (), "max_per_host": None}
    slices = {**one, "isolation": "slice", "memory_mib": 18 * GIB, "compute": 1 / 7, "ram_mib": 8 * GIB}
    return {
        "models": [model for model in models() if model["name"] == "a100-80"],
        "hosts": [
            {"name": f"h{number}-{index:03}", "model": "a100-80", "gpus": 4, "cpus": each, "ram_mib": 500 * GIB, "modes": MODES}
            for number, each in enumerate(cpus)
            for index in range(HOSTS)
        ],
        "quotas": [],
        "classes": [
            {**slices, "key": "large", "cpus": 14.0, "replicas": 90},
            {**slices, "key": "small", "cpus": 5.0, "replicas": 90},
            {**one, "key": "whole", "isolation": "exclusive", "memory_mib": 60 * GIB, "cpus": 1.0, "ram_mib": GIB, "replicas": whole},
        ],
    }


def solved(options: Options) -> Relaxed:
    return FleetProgram(options).solve(partial(reachable, options))


def used(options: Options, relaxed: Relaxed) -> list[float]:
    """By group, the part of its CPU that the solution uses."""
    cores = np.bincount(options.group, weights=relaxed.amount * options.cpus[options.klass], minlength=len(options.groups))
    return [float(each) / (group.size * group.cpus) for group, each in zip(options.groups, cores, strict=True)]


def gpus(relaxed: Relaxed) -> float:
    return float(sum(boards.sum() for boards in relaxed.boards))


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_program, "with_headroom", lambda *_given: None)


def test_a_group_is_not_used_to_the_last_core_where_another_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(read_problem(fleet(POOR, RICH)))
    relaxed = solved(options)
    assert max(used(options, relaxed)) <= PLENTY + 1e-9
    without(monkeypatch)
    before = solved(options)
    assert gpus(before) == pytest.approx(gpus(relaxed))
    assert relaxed.held == before.held


def test_headroom_is_not_worth_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group only, which has hardly the CPU for all."""
    data = fleet(57.1)
    options = options_of(read_problem(data))
    relaxed = solved(options)
    assert max(used(options, relaxed)) > 0.99
    without(monkeypatch)
    assert relaxed.held == solved(options).held
    assert gpus(relaxed) == pytest.approx(gpus(solved(options)))


def test_headroom_costs_no_more_than_a_small_part_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """To leave the poor hosts more CPU, whole GPUs would have to be opened."""
    options = options_of(read_problem(fleet(POOR, RICH, whole=195)))
    relaxed = solved(options)
    without(monkeypatch)
    assert gpus(relaxed) - gpus(solved(options)) <= 2 * 2 * 2.8e-4 * 4 * HOSTS


def test_what_it_begins_from_stays_as_it_is() -> None:
    options = options_of(read_problem(fleet(POOR, RICH)))
    program = FleetProgram(options)
    relaxed = program.solve(partial(reachable, options))
    columns, cost = program.session.columns, program._opening_cost()
    before = program.session.solve().objective
    found = with_headroom(program.session, program.rows, cost)
    assert found is not None
    assert cost @ found.values[:columns] == pytest.approx(gpus(relaxed), abs=0.2)
    assert (program.session.columns, program.session.solve().objective) == (columns, pytest.approx(before))


def test_hosts_that_are_planned_one_by_one_need_none() -> None:
    options = options_of(read_problem(fleet(POOR, RICH)), alone=True)
    program = FleetProgram(options)
    assert with_headroom(program.session, program.rows, program._opening_cost()) is None


def test_a_program_for_bounds_alone_looks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(read_problem(fleet(POOR, RICH)))
    asked = []
    monkeypatch.setattr(fleet_program, "with_headroom", lambda *given: asked.append(given))
    program = FleetProgram(options)
    program.only_bounds()
    program.solve(partial(reachable, options))
    assert not asked
    solved(options)
    assert len(asked) == 1


def test_the_plan_serves_all_on_as_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    data = fleet(POOR, RICH)
    answer = plan_whole_fleet(read_problem(data))
    assert violations(data, answer.rows) == []
    without(monkeypatch)
    other = plan_whole_fleet(read_problem(data))
    assert (answer.served, answer.opened) == (other.served, other.opened)


def wasteful(rows: int = 40) -> tuple[Session, np.ndarray]:
    """A solved program to which columns are added that cost something each; in each row two of three are too many. These columns."""
    program = Program()
    program.add_entries(program.add_rows(rows, lower=0.0), program.add_columns(1, upper=0.0), 1.0)
    session = Session(program)
    session.solve()
    columns = 3 * rows
    entries = np.repeat(np.arange(rows), 3), np.arange(columns), np.tile([1.0, 1.5, 2.0], rows)
    added = session.add_columns(np.tile([4.0, 5.0, 3.0], rows), np.ones(columns), entries)
    for row in range(rows):
        session.set_row(row, 2.5, np.inf)
    return session, added


def test_some_steps_lead_to_a_better_solution_and_enough_to_the_best() -> None:
    found = []
    for steps in (0, 5, STEPS):
        session, columns = wasteful()
        session.begin_at_most(columns)
        outcome = session.improve(steps)
        assert (outcome.values[1:].reshape(-1, 3) @ [1.0, 1.5, 2.0] >= 2.5 - 1e-9).all()
        found.append((outcome.objective, outcome.proven, outcome.bound))
    assert found[0][0] > found[1][0] > found[2][0] == pytest.approx(40 * (3 + 5 / 3))
    assert [proven for _objective, proven, _bound in found] == [False, False, True]
    assert [bound > 0 for _objective, _proven, bound in found] == [False, False, True]


def test_there_is_nothing_to_improve_where_there_is_no_solution() -> None:
    session, columns = wasteful()
    session.set_columns(columns, np.zeros(len(columns)), np.full(len(columns), 0.25))
    with pytest.raises(SolverError, match="Infeasible"):
        session.improve(STEPS)
