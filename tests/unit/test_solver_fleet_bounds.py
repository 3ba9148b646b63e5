# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bounds of the whole-fleet solver against the best whole numbers, found by integer programs that know neither cuts nor branches."""

from __future__ import annotations

import itertools
import random
import typing as t
from functools import partial

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_bounds, fleet_program, whole_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_cuts import team_cuts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import (
    FleetClass,
    FleetHost,
    FleetModel,
    FleetProblem,
    read_problem,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import Fewest, FleetProgram, Relaxed, once_more
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import reachable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rows import Rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Program, Session, SolverError
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import doubled, models, world

GIB = 1024


def tight(seed: int, classes: int = 8) -> Options:
    """Slices on two kinds of GPU, three teams with quotas far below what they ask for."""
    rng = random.Random(seed)
    hosts = [
        {"name": f"{model}-{number}", "model": model, "gpus": 4, "cpus": 60, "ram_mib": 900 * GIB}
        for model in ("a100-80", "a100-40")
        for number in range(3)
    ]
    asked = [
        {
            "key": f"c{number}",
            "team": f"t{number % 3}",
            "priority": rng.choice((2, 1)),
            "replicas": rng.randint(1, 9),
            "isolation": "slice",
            "memory_mib": rng.choice((4, 8, 14, 18, 32)) * GIB,
            "cpus": rng.choice((1.0, 2.5, 4.0)),
        }
        for number in range(classes)
    ]
    quotas = [{"team": f"t{number}", "memory_mib": rng.randint(25, 160) * GIB} for number in range(3)]
    return options_of(read_problem({"models": models(), "hosts": hosts, "classes": asked, "quotas": quotas}))


def best(options: Options, held: dict[int, int], level: int | None) -> int:
    """The most replicas of a priority in whole numbers of replicas and patterns, or the fewest GPUs where none is named."""
    rows, program = Rows(options), Program()
    lower = np.full(rows.count, -np.inf)
    for above, number in held.items():
        lower[rows.level[above]] = number
    program.add_rows(rows.count, lower, rows.upper)
    priority = options.priority[options.klass]
    columns = program.add_columns(len(priority), -(priority == level).astype(float), 0.0, options.most, whole=True)
    row, column, value = rows.entries(np.arange(len(priority)))
    program.add_entries(row, columns[column], value)
    for number, group in enumerate(options.groups):
        patterns = options.boards[group.board].first_patterns
        boards = program.add_columns(len(patterns), float(level is None), whole=True)
        row, column, value = rows.of_patterns(number, patterns)
        program.add_entries(row, boards[column], value)
    return abs(round(program.solve(Limits(nodes=100_000)).objective))


def most_served(options: Options) -> dict[int, int]:
    """By priority, the highest first."""
    served: dict[int, int] = {}
    for level in options.levels:
        served[level] = best(options, served, level)
    return served


@pytest.mark.parametrize("seed", range(12))
def test_no_bound_is_below_the_best_whole_numbers(seed: int) -> None:
    options = tight(seed)
    served = most_served(options)
    program = FleetProgram(options)
    relaxed = program.solve(lambda _relaxed, level, _held: served[level])
    for level in options.levels:
        assert served[level] <= relaxed.levels[level].given(served) <= relaxed.levels[level].bound + 1e-6
    assert program.fewest_gpus(served).given(served) <= best(options, served, None)


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_gpus_of_one_plan_say_how_many_others_need(seed: int) -> None:
    options = tight(seed)
    served = most_served(options)
    program = FleetProgram(options)
    program.solve(lambda _relaxed, level, _held: served[level])
    fewest = program.fewest_gpus(served)
    last = min(served)
    for less in range(served[last] + 1):
        fewer = {**served, last: served[last] - less}
        assert fewest.knows(fewer) == (fewer[last] >= fewest.least)
        if fewest.knows(fewer):
            assert fewest.given(fewer) <= best(options, fewer, None)
    for above in options.levels[:-1]:
        assert not fewest.knows({**served, above: served[above] - 1})


@pytest.mark.parametrize(("price", "less", "enough"), [(34.0, 3, False), (34.0, 0, True), (0.6, 3, True), (0.6, 9, False), (0.0, 90, True)])
def test_a_bound_is_found_anew_where_its_slope_says_little(price: float, less: int, enough: bool) -> None:
    """Of the last replicas each may take dozens of GPUs, and those before them next to none."""
    fewest = Fewest({2: 50, 1: 100}, 0, ((1000.0, price),))
    assert whole_fleet._tells(fewest, {2: 50, 1: 100 - less}) is enough
    assert not whole_fleet._tells(fewest, {2: 49, 1: 100})


def test_what_is_planned_promises_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fractional numbers let the program promise more of the last priority than whole ones can have, it is not planned from these."""

    def most_beyond() -> float:
        """By how much the solution that the last priority is planned from is beyond its bound, at most."""
        return max(beyond(tight(seed, 12)) for seed in range(12))

    def beyond(options: Options) -> float:
        promised = 0.0

        def exact(relaxed: t.Any, level: int, held: dict[int, int]) -> int:
            nonlocal promised
            promised = float(relaxed.amount[options.priority[options.klass] == level].sum())
            return best(options, held, level)

        bound = FleetProgram(options).solve(exact).levels[options.levels[-1]].bound
        return promised - bound

    assert most_beyond() < 1
    monkeypatch.setattr(FleetProgram, "_inside", lambda *_: None)
    assert most_beyond() > 1


def test_branches_and_cuts_bring_bounds_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    def total() -> int:
        found = 0.0
        for seed in range(12):
            options = tight(seed, 12)
            program = FleetProgram(options)
            served: dict[int, int] = {}

            def exact(_relaxed: t.Any, level: int, held: dict[int, int], options: Options = options) -> int:
                return best(options, held, level)

            relaxed = program.solve(exact)
            served = relaxed.held
            found += sum(one.bound for one in relaxed.levels.values()) - program.fewest_gpus(served).given(served)
        return round(found)

    close = total()
    monkeypatch.setattr(fleet_bounds, "BRANCHES", 0)
    without_branches = total()
    monkeypatch.setattr(fleet_bounds, "team_cuts", lambda *_given: [])
    assert close <= without_branches < total()


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_leaves_every_whole_number_of_a_team(seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = tight(seed, 6)
    mine = np.arange(len(options.klass))
    worth = rng.uniform(-0.2, 1.0, len(mine)).round(2)
    # Far beyond what anybody has room for: each team is cut.
    cuts = team_cuts(options, mine, worth, options.most.astype(float) * 5, 1e-3)
    assert cuts
    for one in cuts:
        kinds = options.klass[one.options]
        team = int(options.team[kinds[0]])
        assert set(options.team[kinds]) == {team}
        for few in itertools.islice(itertools.product(range(3), repeat=len(one.options)), 20_000):
            amount = np.asarray(few)
            if amount @ options.memory[one.options] > options.quota_memory[team] or (amount > options.most[one.options]).any():
                continue
            if (np.bincount(kinds, weights=amount, minlength=len(options.classes)) > options.replicas).any():
                continue
            assert amount @ one.worth <= one.most + 1e-6


def test_who_cannot_be_solved_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tight(3)

    def refuse(_self: Session, _limits: Limits | None = None) -> Session:
        raise SolverError("no copy")

    monkeypatch.setattr(Session, "copy", refuse)
    program = FleetProgram(options)
    relaxed = program.solve(lambda relaxed, level, _held: int(relaxed.levels[level].bound) - 1)
    assert program.fewest_gpus(relaxed.held).given(relaxed.held) >= 1


def test_a_part_whose_halves_cannot_be_solved_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan sought in one half might find none there."""
    options = tight(1)

    def parts() -> list[dict[tuple[int, int], tuple[float, float]]]:
        program = FleetProgram(options)
        program.solve(lambda _relaxed, level, held: best(options, held, level))
        return [dict(part.counts) for part in program.parts]

    # The first team's count of the first priority is fractional.
    monkeypatch.setattr(fleet_bounds.Bounds, "_broken", lambda _bounds, _amount, levels: (levels[0], 0, 0.5) if levels else None)
    assert len(parts()) > 1
    solve = fleet_bounds._Side.solve

    def impatient(side: fleet_bounds._Side, counts: fleet_bounds.Counts) -> t.Any:
        if counts:
            raise SolverError("too many steps")
        return solve(side, counts)

    monkeypatch.setattr(fleet_bounds._Side, "solve", impatient)
    assert parts() == [{}]


def test_a_copy_of_an_open_program_is_one_of_its_own() -> None:
    program = Program()
    program.add_rows(1, upper=4.0)
    program.add_entries(0, program.add_columns(2, [-1.0, -2.0], upper=3.0))
    session = Session(program)
    assert session.solve().objective == -7
    other = session.copy()
    assert other.add_row(1.0, np.asarray([1]), np.asarray([1.0])) == 1
    assert other.solve().objective == -5
    assert session.solve().objective == -7


def test_prices_that_the_last_rounds_turned_round_are_gone_through_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look at all patterns changes what others are worth: solutions from then miss patterns that would save many GPUs."""
    monkeypatch.setattr(fleet_program, "MOST_ROUNDS", 1)
    monkeypatch.setattr(fleet_program, "LAST_ROUNDS", 1)
    program = FleetProgram(options_of(read_problem(world(400, 60, 1))))
    found: list[tuple[float, float]] = []
    priced = program._priced

    def noted(*given: t.Any, **named: t.Any) -> t.Any:
        outcome, slack = priced(*given, **named)
        found.append((slack, outcome.objective))
        return outcome, slack

    monkeypatch.setattr(program, "_priced", noted)
    program.solve(partial(reachable, program.options))
    assert len(found) == 5
    assert all(slack <= 1e-3 * abs(objective) for slack, objective in found)


def test_no_more_is_held_than_there_can_be() -> None:
    """Whole numbers do not know of the rows for classes that must be spread: with more than these allow, the next stage had no solution."""
    options = options_of(read_problem(doubled(world(300, 60, 2))))
    hoped: dict[int, int] = {}

    def hope(relaxed: Relaxed, level: int, held: dict[int, int]) -> int:
        hoped[level] = reachable(options, relaxed, level, held)
        return hoped[level]

    relaxed = FleetProgram(options).solve(hope)
    assert any(hoped[level] > number for level, number in relaxed.held.items())
    assert all(number <= relaxed.levels[level].bound for level, number in relaxed.held.items())


def test_a_stage_without_a_solution_is_solved_with_what_can_be_held() -> None:
    """Rows that come later may leave room for less of the priorities before than was held of them."""
    program = FleetProgram(tight(3))
    first = program.options.levels[0]
    program._begin(first, {})
    cost = partial(program._served_cost, {first: 1.0})
    most = int(1e-6 - program._priced(cost)[0].objective)
    held = {first: most + 3}
    program._hold(program.session, held)
    outcome, _slack = program._holding(held, cost)
    assert held == {first: most} == {first: int(1e-6 - outcome.objective)}


@pytest.mark.parametrize("sizes", [(3001, 5007, 70_003), (2048, 4096, 6144)])
def test_a_program_anew_has_the_patterns_that_were_known_with_all_sizes_as_they_are(sizes: tuple[int, ...]) -> None:
    """Rounded up and down sizes have other numbers, and the largest one has no place where it is rounded up."""
    classes = tuple(FleetClass(f"c{size}", "t", 1, 5, "shared", size, 0.1) for size in sizes)
    host = FleetHost("h", "m", 2, 100.0, 10_000_000, ("shared",), clients=16)
    asked = FleetProblem((FleetModel("m", 70_100),), (host,), classes)
    program = fleet_program.fleet_program(options_of(asked))
    before, after = program.options, options_of(asked, up=False)
    again = once_more(program, after)

    def known(one: FleetProgram, options: Options) -> list[list[tuple[int, int]]]:
        shapes = options.boards[0].shapes
        return sorted(sorted((shapes[shape].mib, many) for shape, many in enumerate(each) if many) for each in one.patterns_of(0).tolist())

    assert known(again, after) == known(program, before) != []
    assert known(once_more(program, before), before) == known(program, before)
