# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole replicas team by team, against the best whole numbers of all teams at once."""

from __future__ import annotations

import random
import typing as t
from dataclasses import replace

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_teams import Fractional, Haste, Short, by_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, NotFound, Outcome, Program, SolverError
from numpy.typing import NDArray

TEAMS, CLASSES = 6, 5
HELD, CPUS = TEAMS, TEAMS + 1
EXACT = Limits(absolute=1e-6, nodes=20_000)


def quotas(seed: int, held: float) -> Fractional:
    """Teams with a quota each, who share CPUs, and a priority of which there must be this share of what could be had; replicas are worth
    money, CPUs beyond the first cost some."""
    rng = random.Random(seed)
    program = Program()
    sizes = [[rng.randint(3, 17) for _class in range(CLASSES)] for _team in range(TEAMS)]
    quota = [rng.randint(40, 90) + 0.5 for _team in range(TEAMS)]
    # The first class of each team is what is held; it brings nothing.
    columns = [
        [program.add_column(upper=9.0, cost=-size - rng.random() if number else 0.0, whole=True) for number, size in enumerate(team)]
        for team in sizes
    ]
    for most in quota:
        program.add_row(upper=most)
    program.add_row(lower=float(int(held * sum(most / team[0] for most, team in zip(quota, sizes, strict=True)))))
    program.add_row(upper=0.0)
    for number, (team, own) in enumerate(zip(sizes, columns, strict=True)):
        for size, column in zip(team, own, strict=True):
            program.add_entry(number, column, float(size))
            program.add_entry(CPUS, column, float(rng.randint(1, 4)))
        program.add_entry(HELD, own[0], 1.0)
    for price in (0.0, 1.5, 4.0):
        program.add_entry(CPUS, program.add_column(upper=25.0, cost=price), -1.0)
    private = np.asarray([True] * TEAMS + [False, False])
    team = np.repeat(np.arange(TEAMS), CLASSES)
    return Fractional(program, np.asarray(columns).ravel(), team, private, np.asarray([HELD]), np.asarray([CPUS]))


def cost(fractional: Fractional, amount: NDArray[np.float64] | None) -> float:
    """Of the program with these whole numbers; raises where they break a row."""
    assert amount is not None
    return fractional.program.solve(relaxed=True, within=(fractional.columns, amount, amount)).objective


@pytest.mark.parametrize("held", [0.15, 0.3])
def test_all_rows_hold_and_little_is_lost(held: float) -> None:
    lost = total = 0.0
    for seed in range(15):
        fractional = quotas(seed, held)
        best = fractional.program.solve(EXACT).objective
        found = by_teams(fractional, EXACT)
        assert found is not None
        assert (found == np.round(found)).all()
        assert cost(fractional, found) >= best - 1e-6
        lost, total = lost + cost(fractional, found) - best, total - best
    assert lost < 0.01 * total


def test_lines_below_the_cost_are_worth_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the prices of the first solution alone, teams choose what others then pay for."""
    worlds = [quotas(seed, 0.3) for seed in range(15)]
    monkeypatch.setattr(fleet_teams, "FLEXIBLE", 0)
    with_lines = sum(cost(one, by_teams(one, EXACT)) for one in worlds)
    monkeypatch.setattr(fleet_teams, "TRIES", 1)
    monkeypatch.setattr(fleet_teams, "DEAR", 1e9)
    assert with_lines < sum(cost(one, by_teams(one, EXACT)) for one in worlds)


def test_teams_that_cannot_make_up_for_others_take_more_of_them_along() -> None:
    """Each team alone may have half a replica less; together, one team has to have one more than it wants."""
    program = Program()
    columns = np.asarray([program.add_column(upper=3.0, cost=1.0 + number / 10, whole=True) for number in range(8)])
    for column in columns.tolist():
        row = program.add_row(lower=-1e9, upper=4.5)
        program.add_entry(row, column, 3.0)
    held = program.add_row(lower=7.0)
    program.add_entries(held, columns, 1.0)
    private = np.asarray([True] * 8 + [False])
    found = by_teams(Fractional(program, columns, np.arange(8), private, np.asarray([held]), np.asarray([], dtype=np.int64)), EXACT)
    assert found is not None
    assert found.sum() == 7
    assert found.max() == 1


def test_teams_that_come_last_and_are_dear_take_more_of_them_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: it costs no more then, and on the whole less."""
    worlds = [quotas(seed, 0.3) for seed in range(15)]
    monkeypatch.setattr(fleet_teams, "FAR", 1e9)
    alone = [cost(one, by_teams(one, EXACT)) for one in worlds]
    monkeypatch.setattr(fleet_teams, "FAR", 0)
    more = [cost(one, by_teams(one, EXACT)) for one in worlds]
    assert all(one <= other + 1e-6 for one, other in zip(more, alone, strict=True))
    assert sum(more) < sum(alone) - 1e-6


def test_who_comes_last_is_looked_at_harder_where_that_takes_little_and_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same teams, with all ways to guess whole numbers; what is proven to be their best is not asked for again."""
    monkeypatch.setattr(fleet_teams, "FAR", 0)
    fractional, asked = quotas(1, 0.3), list[tuple[bool, int]]()
    solve = Program.solve

    def poorly(self: Program, limits: Limits | None = None, **more: t.Any) -> Outcome:
        found = solve(self, limits, **more)
        if self is not fractional.program or limits is None:
            return found
        _columns, least, most = more["within"]
        asked.append((limits.plain, int((least < most).sum())))
        return replace(found, objective=found.objective + 100.0, proven=proven) if len(asked) == 1 else found

    monkeypatch.setattr(Program, "solve", poorly)
    for proven in (False, True):
        asked.clear()
        assert by_teams(fractional, replace(EXACT, plain=True)) is not None
        (first, free), (second, others) = asked
        assert first
        assert second == proven
        assert (others == free) != proven


def test_what_took_much_work_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [quotas(seed, 0.3) for seed in range(15)]
    monkeypatch.setattr(fleet_teams, "FAR", 1e9)
    alone = [cost(one, by_teams(one, EXACT)) for one in worlds]
    monkeypatch.setattr(fleet_teams, "FAR", 0)
    monkeypatch.setattr(fleet_teams, "MUCH", -1)
    assert [cost(one, by_teams(one, EXACT)) for one in worlds] == alone


@pytest.mark.parametrize("unknown", [False, True])
def test_those_who_come_last_are_sought_farther_away_then_with_more_teams(unknown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not known whether there are any such numbers, all are sought at once and anywhere after that."""
    fractional, asked = quotas(1, 0.3), list[tuple[int, float] | None]()

    def none_at_first(
        _self: fleet_teams._Teams, limits: Limits, within: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]] | None = None
    ) -> tuple[Outcome | None, bool]:
        if within is not None:
            width = (within[2] - within[1])[: len(fractional.columns)]
            asked.append((len({int(fractional.team[one]) for one in np.flatnonzero(width)}), float(width.max())))
        else:
            asked.append(None)
        return (None, unknown) if len(asked) <= 2 else (fractional.program.solve(limits), False)

    monkeypatch.setattr(fleet_teams._Teams, "_together", none_at_first)
    assert by_teams(fractional, EXACT) is not None
    near, far, more = asked[:3]
    assert near is not None
    assert far is not None
    assert near[0] == far[0]
    assert near[1] < far[1]
    assert more is None if unknown else more is not None and more[0] > far[0]


@pytest.mark.parametrize(("rows", "there_may_be"), [(3, True), (0, False)])
def test_whole_numbers_that_are_not_found_may_be_there(rows: int, there_may_be: bool) -> None:
    """To split numbers in halves in several ways at once takes far more looks than a few; half of an odd number is nowhere."""
    rng, program = random.Random(1), Program()
    columns = np.asarray([program.add_column(upper=1.0, whole=True) for _number in range(30)])
    for _row in range(rows):
        numbers = [rng.randint(1, 99) for _column in columns]
        program.add_entries(program.add_row(sum(numbers) // 2, sum(numbers) // 2), columns, np.asarray(numbers, dtype=float))
    if not rows:
        program.add_entries(program.add_row(14.5, 14.5), columns)
    with pytest.raises(SolverError) as told:
        program.solve(Limits(nodes=2))
    assert isinstance(told.value, NotFound) == there_may_be


def test_what_cannot_be_whole_is_told() -> None:
    program = Program()
    columns = np.asarray([program.add_column(upper=1.0, whole=True) for _number in range(4)])
    odd = program.add_row(1.5, 1.5)
    program.add_entries(odd, columns, 1.0)
    fractional = Fractional(program, columns, np.arange(4), np.asarray([False]), np.asarray([], dtype=np.int64), np.asarray([odd]))
    assert by_teams(fractional, EXACT) is None
    with pytest.raises(SolverError):
        program.solve(EXACT)


def test_whole_numbers_far_from_the_broken_ones_are_found_where_there_are_none_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 a + 7 b = 29 with a at most 9: the fractional numbers are a = 9 and b = 2/7, the only whole ones a = 5 and b = 2."""
    monkeypatch.setattr(fleet_teams, "CLOSE", 0)
    program = Program()
    columns = np.asarray([program.add_column(upper=9.0, whole=True), program.add_column(upper=9.0, cost=1.0, whole=True)])
    program.add_entries(program.add_row(29.0, 29.0), columns, np.asarray([3.0, 7.0]))
    nobody = np.asarray([], dtype=np.int64)
    found = by_teams(Fractional(program, columns, np.asarray([0, 1]), np.asarray([False]), nobody, nobody), EXACT)
    assert found is not None
    assert found.tolist() == [5.0, 2.0]


def test_what_the_broken_numbers_leave_idle_is_used_where_whole_ones_need_it() -> None:
    """1.2 replicas have room on three cheap halves; two need half of a dear piece, too."""
    program = Program()
    replicas = program.add_column(upper=9.0, cost=1.0, whole=True)
    half, piece = program.add_column(cost=0.1), program.add_column(cost=5.0)
    room, asked, halves = program.add_row(upper=0.0), program.add_row(lower=1.2), program.add_row(upper=3.0)
    for row, column, much in ((room, replicas, 1.0), (room, half, -0.5), (room, piece, -1.0), (asked, replicas, 1.0), (halves, half, 1.0)):
        program.add_entry(row, column, much)
    nobody = np.asarray([], dtype=np.int64)
    found = by_teams(Fractional(program, np.asarray([replicas]), np.asarray([0]), np.asarray([False] * 3), nobody, nobody), EXACT)
    assert found is not None
    assert found.tolist() == [2.0]


def test_in_haste_the_first_whole_numbers_that_cost_little_will_do() -> None:
    """They cost no more than is said, and the best where nothing costs so little."""
    worlds = [quotas(seed, 0.3) for seed in range(15)]
    best = [cost(one, by_teams(one, EXACT, Haste(1e9))) for one in worlds]
    hurried = [cost(one, by_teams(one, EXACT, Haste(1e9, first=40.0))) for one in worlds]
    assert sum(hurried) > sum(best) + 1.0
    assert all(one <= other + 40.0 for one, other in zip(hurried, best, strict=True))
    assert [cost(one, by_teams(one, EXACT, Haste(1e9, first=1e-9))) for one in worlds] == pytest.approx(best)


@pytest.mark.parametrize(
    ("price", "most", "found"),
    [
        pytest.param(1.0, 3.0, [3.0], id="as many as there can be"),
        pytest.param(1e6, 3.0, [3.0], id="however dear they are"),
        pytest.param(1.0, 2.0, None, id="fewer"),
        pytest.param(1e6, 2.5, None, id="fewer in fractional numbers, too"),
    ],
)
def test_what_is_held_is_served_at_any_price_or_it_is_said_that_it_cannot_be(price: float, most: float, found: list[float] | None) -> None:
    program = Program()
    column = program.add_column(upper=9.0, cost=price, whole=True)
    held = program.add_row(lower=3.0)
    for row in (held, program.add_row(upper=most)):
        program.add_entry(row, column, 1.0)
    nobody = np.asarray([], dtype=np.int64)
    fractional = Fractional(program, np.asarray([column]), np.asarray([0]), np.asarray([False] * 2), np.asarray([held]), nobody)
    if found is None:
        with pytest.raises(Short):
            by_teams(fractional, EXACT)
    else:
        assert t.cast("NDArray[np.float64]", by_teams(fractional, EXACT)).tolist() == found
