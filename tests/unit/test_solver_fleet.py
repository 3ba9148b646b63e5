# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole-fleet solver: allowed plans, bounds that hold, an objective that is lexicographic, and names that are only names."""

from __future__ import annotations

import copy
import random
import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_program, whole_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_likeness import likeness
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetAnswer, read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_baseline import first_fit
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import opened, served, violations, waits
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models, world
from hypothesis import given, settings
from hypothesis import strategies as st

GIB = 1024
Problem = dict[str, t.Any]


def plan(problem: Problem) -> FleetAnswer:
    return plan_whole_fleet(read_problem(problem))


def host(name: str, model: str = "a100-80", gpus: int = 1, **other: t.Any) -> Problem:
    modes = ("mig", "whole") if model not in ("l40s-48", "t4-16") else ("shared", "whole")
    return {"name": name, "model": model, "gpus": gpus, "cpus": 64, "ram_mib": 512 * GIB, "modes": modes, "clients": 48, **other}


def service(key: str, replicas: int = 1, **other: t.Any) -> Problem:
    base = {"team": "lin", "priority": 1, "isolation": "slice", "memory_mib": 9 * GIB, "compute": 0.0, "max_per_host": None}
    return {"key": key, "replicas": replicas, "models": (), "not_models": (), "cpus": 1.0, "ram_mib": GIB, **base, **other}


def problem(hosts: list[Problem], classes: list[Problem], quotas: list[Problem] | None = None) -> Problem:
    return {"models": models(), "hosts": hosts, "classes": classes, "quotas": quotas or []}


def objective(asked: Problem, rows: list[t.Any]) -> tuple[int, ...]:
    """Replicas by priority, greatest first, then GPUs that stay closed."""
    return (*(number for _level, number in sorted(served(asked, rows).items(), reverse=True)), -opened(rows))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), gpus=st.integers(1, 30), classes=st.integers(1, 10), harsh=st.booleans())
def test_a_plan_is_allowed_within_its_bounds_and_no_worse_than_first_fit(seed: int, gpus: int, classes: int, harsh: bool) -> None:
    asked = world(gpus, classes, seed, harsh=harsh)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert answer.served == served(asked, answer.rows)
    assert answer.opened == opened(answer.rows)
    assert waits(asked, answer.rows) == []
    bound = tuple(number for _level, number in sorted(answer.bound.items(), reverse=True))
    assert objective(asked, answer.rows)[:-1] <= bound
    assert objective(asked, first_fit(asked))[:-1] <= bound


@pytest.mark.parametrize("seed", range(1, 9))
def test_what_whole_numbers_leave_out_of_a_small_fleet_is_found_a_few_hosts_at_a_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = world(24, 14, seed)
    answer = plan(asked)
    monkeypatch.setattr(whole_fleet, "improve", lambda *_arguments: None)
    rounded = plan(asked)
    assert violations(asked, answer.rows) == []
    assert waits(asked, answer.rows) == []
    assert answer.opened - answer.opened_bound <= 1
    # Of the others nothing is left out.
    assert answer.served == rounded.served
    assert (answer.opened < rounded.opened) is (seed not in (6, 7))


@pytest.mark.parametrize("seed", range(1, 9))
def test_one_more_gpu_makes_no_small_fleet_worse(seed: int) -> None:
    asked = world(10, 12, seed)
    more = copy.deepcopy(asked)
    random.Random(seed).choice(more["hosts"])["gpus"] += 1
    assert objective(more, plan(more).rows) >= objective(asked, plan(asked).rows)


@pytest.mark.parametrize("seed", range(8))
def test_a_stage_that_is_solved_ahead_changes_no_bound_of_the_first(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage, and that of few GPUs (``taken``: how many began near where the one ahead ended)."""
    asked = world(60, 25, seed, harsh=seed % 2 == 0)
    plain = plan(asked)
    taken: list[bool] = []
    take_up = fleet_program.FleetProgram._take_up

    def looked(self: t.Any, ahead: t.Any) -> bool:
        taken.append(take_up(self, ahead))
        return taken[-1]

    monkeypatch.setattr(fleet_program.FleetProgram, "_take_up", looked)
    monkeypatch.setattr(fleet_program, "MANY_NEW", 1)
    answer = plan(asked)
    assert sum(taken) >= 2
    assert violations(asked, answer.rows) == []
    top = max(answer.bound)
    assert answer.bound[top] == plain.bound[top]
    assert all(answer.served[level] <= answer.bound[level] for level in answer.bound)
    assert answer.opened >= answer.opened_bound


def test_what_began_where_another_ended_has_its_columns_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where patterns were found since (``late``: how many), which come between the columns of two stages."""
    late: list[int] = []
    begin = fleet_program.Session.begin
    program: list[fleet_program.FleetProgram] = []
    take_up = fleet_program.FleetProgram._take_up

    def remembered(self: fleet_program.FleetProgram, ahead: t.Any) -> bool:
        program[:] = [self]
        return take_up(self, ahead)

    def looked(self: fleet_program.Session, other: fleet_program.Session, columns: t.Any) -> t.Callable[[], None]:
        mine = columns.tolist()
        assert sorted(column for column in mine if column >= 0) == list(range(other.columns))
        patterns = [number for number, _group, _pattern in program[0].pattern_columns]
        late.append(sum(mine[number] < 0 for number in patterns))
        return begin(self, other, columns)

    monkeypatch.setattr(fleet_program.FleetProgram, "_take_up", remembered)
    monkeypatch.setattr(fleet_program.Session, "begin", looked)
    monkeypatch.setattr(fleet_program, "MANY_NEW", 1)
    for seed in (1, 3):
        asked = world(60, 25, seed)
        assert violations(asked, plan(asked).rows) == []
    assert any(late)


def test_a_stage_goes_on_from_its_own_place_where_the_one_ahead_is_far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, taken = world(60, 25, 2), list[bool]()
    plain, take_up = plan(asked), fleet_program.FleetProgram._take_up

    def looked(self: fleet_program.FleetProgram, ahead: t.Any) -> bool:
        taken.append(take_up(self, ahead))
        return taken[-1]

    monkeypatch.setattr(fleet_program.FleetProgram, "_take_up", looked)
    monkeypatch.setattr(fleet_program, "MANY_NEW", 1)
    monkeypatch.setattr(fleet_program, "FEW_STEPS", 1)
    answer = plan(asked)
    assert False in taken
    assert violations(asked, answer.rows) == []
    assert answer.bound[max(answer.bound)] == plain.bound[max(plain.bound)]


def test_patterns_of_a_large_fleet_are_sought_on_a_likeness_of_it() -> None:
    """Its program is smaller, and with what it asks for the large one begins nearer to its best; all of it can be dealt to hosts."""
    options = options_of(read_problem(world(5_000, 300, 1)))
    found = likeness(options)
    assert found is not None
    small, boards = found
    assert len(small.klass) < 0.2 * len(options.klass)
    assert [small.boards[number] is options.boards[board] for number, board in enumerate(boards)] == [True, True]
    for number, board in enumerate(boards):
        mine = [group for group in options.groups if group.board == board]
        assert small.groups[number].size == sum(group.size * group.gpus for group in mine)
        assert small.groups[number].size * small.groups[number].cpus == pytest.approx(sum(group.size * group.cpus for group in mine))
    sought = fleet_program.FleetProgram(small, fleet_program.first_patterns(small, 5)).sought()
    begin = fleet_program.first_patterns(options, 5)
    more = {board: np.concatenate((begin[board], each)) for board, each in zip(boards, sought, strict=True)}
    with_them = fleet_program.FleetProgram(options, {**begin, **more})
    assert all((patterns <= board.at_once).all() for patterns, board in zip(sought, small.boards, strict=True))

    def first(program: fleet_program.FleetProgram) -> float:
        for level in options.levels:
            program._begin(level, {})
        program.session.set_costs(program._served_cost(dict.fromkeys(options.levels, 1.0)))
        return -program.session.solve(interior=True).objective

    assert first(with_them) > 1.01 * first(fleet_program.FleetProgram(options, begin))


def test_a_likeness_only_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = world(60, 25, 1)
    options = options_of(read_problem(asked))
    monkeypatch.setattr(fleet_program, "MANY_NEW", 1)

    def no_answer(_self: fleet_program.FleetProgram) -> t.NoReturn:
        raise SolverError("HiGHS ended with 'Unknown'")

    monkeypatch.setattr(fleet_program.FleetProgram, "sought", no_answer)
    alone = fleet_program.FleetProgram(options)
    assert fleet_program.fleet_program(options).known == alone.known
    assert violations(asked, plan(asked).rows) == []


def test_a_likeness_asks_for_what_quotas_hold() -> None:
    """6 and 12 GiB of 8 of one team: the first priority is within its quota, of the second 2 GiB are."""
    kind = {"isolation": "shared", "compute": 0.1, "cpus": 1.0, "team": "blue"}
    classes = [
        service("first", 1, memory_mib=6 * GIB, priority=2, **kind),
        service("second", 3, memory_mib=4 * GIB, priority=1, **kind),
        service("free", 5, memory_mib=4 * GIB, priority=1, **{**kind, "team": "red"}),
        service("whole", 1, memory_mib=4 * GIB, priority=1, isolation="exclusive"),
    ]
    asked = problem([host("h", "l40s-48", 4, modes=("shared", "whole"))], classes, [{"team": "blue", "memory_mib": 8 * GIB}])
    found = likeness(options_of(read_problem(asked)))
    assert found is not None
    # Half a replica of the second fits; it counts as one with what the other team asks for of the same size.
    assert sorted(zip(found[0].priority.tolist(), found[0].replicas.tolist(), strict=True)) == [(1, 6), (2, 1)]
    assert likeness(options_of(read_problem(problem([host("h")], [service("one")])))) is None


@pytest.fixture(scope="module")
def middle() -> tuple[Problem, FleetAnswer]:
    asked = world(1_200, 120, 7)
    return asked, plan(asked)


def test_a_middle_fleet_is_close_to_its_bounds(middle: tuple[Problem, FleetAnswer]) -> None:
    asked, answer = middle
    assert violations(asked, answer.rows) == []
    assert answer.gaps["3"] < 0.005
    assert answer.gaps["2"] < 0.01
    assert objective(asked, answer.rows) > objective(asked, first_fit(asked))


def test_order_and_hash_seed_of_the_input_change_nothing(middle: tuple[Problem, FleetAnswer]) -> None:
    asked, answer = middle
    shuffled = {name: random.Random(1).sample(asked[name], len(asked[name])) for name in asked}
    assert plan(shuffled).rows == answer.rows


def test_names_of_hosts_are_only_names() -> None:
    asked = world(60, 20, 3)
    names = {each["name"]: f"n{number:04}" for number, each in enumerate(sorted(asked["hosts"], key=lambda each: each["name"]))}
    renamed = {**asked, "hosts": [{**each, "name": names[each["name"]]} for each in asked["hosts"]]}
    assert plan(renamed).rows == [(*row[:2], names[row[2]], *row[3:]) for row in plan(asked).rows]


def test_a_fleet_and_a_demand_twice_as_large_serve_twice_as_much(middle: tuple[Problem, FleetAnswer]) -> None:
    asked, answer = middle
    twice = {
        **asked,
        "hosts": [{**each, "name": each["name"] + half} for each in asked["hosts"] for half in "ab"],
        "classes": [{**one, "replicas": 2 * one["replicas"]} for one in asked["classes"]],
        "quotas": [{**quota, "memory_mib": 2 * quota["memory_mib"]} for quota in asked["quotas"]],
    }
    double = plan(twice)
    assert violations(twice, double.rows) == []
    assert sum(double.served.values()) == pytest.approx(2 * sum(answer.served.values()), rel=0.02)


def test_a_higher_priority_takes_the_only_place() -> None:
    asked = problem([host("a")], [service("low", isolation="exclusive"), service("high", isolation="exclusive", priority=2)])
    answer = plan(asked)
    assert [row[0] for row in answer.rows] == ["high"]
    assert answer.bound == {2: 1, 1: 0}


def test_the_fewest_gpus_are_opened() -> None:
    asked = problem([host("a", gpus=4), host("b", gpus=4)], [service("one", 14)])
    answer = plan(asked)
    assert (answer.served, answer.opened, answer.opened_bound) == ({1: 14}, 2, 2)


@pytest.mark.parametrize("small", [120, 118, 90])
def test_small_sharers_of_which_a_host_may_have_few_sit_beside_large_ones(small: int) -> None:
    """Two of them on each GPU that a large one opens: with one on each, they would need GPUs of their own."""
    hosts = [host(f"h{number:02}", "t4-16", gpus=4, clients=16) for number in range(60)]
    shared = {"isolation": "shared", "compute": 0.05}
    classes = [
        service("large", 60, **{**shared, "memory_mib": 13 * GIB}),
        service("small", small, **{**shared, "memory_mib": GIB}, max_per_host=2),
    ]
    asked = problem(hosts, classes)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert (answer.served, answer.opened) == ({1: 60 + small}, 60)


def test_single_places_make_up_the_number_where_several_are_on_no_gpu() -> None:
    """Every host needs two small ones: those with two on one GPU come first, single ones fill up the other hosts."""
    hosts = [host(f"h{number:02}", "t4-16", gpus=4, clients=16) for number in range(60)]
    shared = {"isolation": "shared", "compute": 0.05}
    classes = [
        service("two", 20, **{**shared, "memory_mib": 13 * GIB}),
        service("one", 80, **{**shared, "memory_mib": 14 * GIB}),
        service("small", 120, **{**shared, "memory_mib": GIB}, max_per_host=2),
    ]
    asked = problem(hosts, classes)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert (answer.served, answer.opened) == ({1: 220}, 100)


def test_replicas_that_may_not_share_a_host_find_one_each() -> None:
    """Places of one shape for a class that needs every host, among others that would fill some hosts with them."""
    hosts = [host(f"h{number}", gpus=2) for number in range(6)]
    asked = problem(hosts, [service("spread", 6, max_per_host=1), service("many", 60), service("large", 3, memory_mib=39 * GIB)])
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert len({row[2] for row in answer.rows if row[0] == "spread"}) == 6
    assert answer.served == {1: 69}


def test_the_bound_knows_that_small_slices_must_be_spread() -> None:
    """All small ones would fit on seven GPUs, and the others would be left for large ones."""
    asked = problem(
        [host(f"h{number:02}") for number in range(45)],
        [service("small", 45, priority=2, max_per_host=1), service("large", 45, memory_mib=60 * GIB)],
    )
    answer = plan(asked)
    assert answer.served == answer.bound == {2: 45, 1: 0}
    assert answer.opened == answer.opened_bound == 45


def test_a_quota_that_is_used_up_promises_the_next_priority_nothing_broken() -> None:
    asked = problem(
        [host("a", gpus=8)],
        [service("large", 9, priority=2, memory_mib=39 * GIB), service("small", 20)],
        [{"team": "lin", "memory_mib": (4 * 40 + 39) * GIB}],
    )
    answer = plan(asked)
    assert answer.served == {2: 4, 1: 3}
    assert answer.bound == {2: 4, 1: 3}


@pytest.mark.parametrize(("gpus", "classes", "seed"), [(300, 60, 2), (5_000, 300, 8)])
def test_fewer_are_planned_where_those_that_must_be_spread_lack_hosts(gpus: int, classes: int, seed: int) -> None:
    """Rows for them are added where a solution crowds them: so late that more is held, or meant to be placed, than they leave room for."""
    asked = world(gpus, classes, seed)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert all(number <= answer.bound[level] for level, number in answer.served.items())
    assert answer.opened_bound <= answer.opened


def test_gpus_of_replicas_with_several_are_dealt_once() -> None:
    """Fifty hosts of four pairs, and on all other GPUs one slice of 3g and four of 1g: everybody has a place, and no GPU is left."""
    pairs = service("pairs", 200, isolation="exclusive", memory_mib=40 * GIB, count=2)
    slices = [service("small", 14_400), service("large", 3_600, memory_mib=38 * GIB)]
    asked = problem([host(f"h{number:03}", gpus=8, cpus=1_000, ram_mib=10**7) for number in range(500)], [pairs, *slices])
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert served(asked, answer.rows) == {1: 18_200}


def test_a_replica_with_several_gpus_has_them_on_one_host() -> None:
    asked = problem(
        [host("a", gpus=4), host("b", gpus=4)],
        [service("pair", 3, isolation="exclusive", count=2, priority=3), service("four", 1, isolation="exclusive", count=4, priority=2)],
    )
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert answer.served[3] == 3


@pytest.mark.parametrize(
    ("hosts", "classes", "quotas", "expected"),
    [
        pytest.param([host("a", cpus=5)], [service("one", 7, cpus=2.0)], [], 2, id="cpu"),
        pytest.param([host("a", ram_mib=3 * GIB)], [service("one", 7)], [], 3, id="ram"),
        pytest.param([host("a"), host("b")], [service("one", 7, max_per_host=2)], [], 4, id="spread"),
        pytest.param([host("a")], [service("one", 7)], [{"team": "lin", "memory_mib": 35 * GIB}], 3, id="memory quota"),
        pytest.param([host("a")], [service("one", 7)], [{"team": "lin", "gpus": 0.5}], 3, id="gpu quota"),
        pytest.param([host("a")], [service("one", 7, not_models=("a100-80",))], [], 0, id="model"),
        pytest.param([host("a", modes=("whole",))], [service("one", 7)], [], 0, id="mode"),
        pytest.param([host("a")], [service("one", 7, profile="2g.20gb")], [], 3, id="profile"),
        pytest.param([host("a", "t4-16")], [service("one", 9, isolation="shared", memory_mib=4 * GIB)], [], 3, id="memory of a shared GPU"),
        pytest.param([host("a", "l40s-48")], [service("one", 9, isolation="shared", compute=0.3)], [], 3, id="compute of a shared GPU"),
        pytest.param([host("a", "l40s-48", clients=2)], [service("one", 9, isolation="shared", memory_mib=GIB)], [], 2, id="clients"),
        pytest.param(
            [host("a", "t4-16", reserve_mib=8 * GIB)], [service("one", 9, isolation="shared", memory_mib=4 * GIB)], [], 1, id="reserve"
        ),
        pytest.param([], [service("one")], [], 0, id="no hosts"),
        pytest.param([host("a")], [], [], 0, id="no classes"),
    ],
)
def test_each_rule_binds(hosts: list[Problem], classes: list[Problem], quotas: list[Problem], expected: int) -> None:
    asked = problem(hosts, classes, quotas)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert len(answer.rows) == expected


def test_sizes_without_a_common_measure_are_rounded_up_and_the_bound_down() -> None:
    classes = [service(f"s{number}", 3, isolation="shared", memory_mib=3001 + 7 * number, compute=0.101) for number in range(4)]
    asked = problem([host("a", "t4-16", gpus=3)], classes)
    answer = plan(asked)
    assert violations(asked, answer.rows) == []
    assert answer.served[1] <= answer.bound[1]
    assert answer.served[1] == 12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hosts": [host("a"), host("a")]}, "host a is there twice"),
        ({"hosts": [host("a", "b200")]}, "there is no model b200"),
        ({"hosts": [host("a", modes=("fast",))]}, "its modes fast"),
        ({"hosts": [host("a", cpus=-1)]}, "cpus is -1"),
        ({"classes": [service("one", isolation="alone")]}, "isolation alone"),
        ({"classes": [service("one", memory_mib=-5)]}, "memory_mib is -5"),
        ({"classes": [service("one", 3_000_000)]}, "3,000,000 replicas"),
        ({"classes": [service("one", count=2)]}, "2 GPUs a replica"),
        ({"classes": [service("one", colour="red")]}, "FleetClass one"),
        ({"quotas": [{"team": "lin", "memory_mib": -1}]}, "memory_mib is -1"),
        ({"quotas": [{"team": "lin", "memory_mib": "80GB"}]}, "FleetQuota lin: memory_mib: .*found '80GB'"),
        ({"classes": [service("one", isolation="exclusive", count=2.5)]}, "FleetClass one: count: .*found 2.5"),
        ({"classes": [service("one", 2.5)]}, "FleetClass one: replicas: .*found 2.5"),
        ({"classes": [service("one", memory_mib=None)]}, "FleetClass one: memory_mib: .*found None"),
        ({"classes": [service("one", priority="high")]}, "FleetClass one: priority: .*found 'high'"),
        ({"classes": [service("one", models="a100-80")]}, "FleetClass one: models: .*found 'a100-80'"),
        ({"classes": [service("one", isolation=["slice"])]}, "FleetClass one: isolation: "),
        ({"classes": [{"key": "one", "team": "lin"}]}, "FleetClass one: priority: field required"),
        ({"classes": ["one"]}, "classes is not a list of mappings"),
        ({"models": None}, "models is not a list of mappings"),
        ({"hosts": [host("a", gpus=1.5)]}, "FleetHost a: gpus: .*found 1.5"),
        ({"classes": [service("one", compute=3)]}, "compute is 3.0"),
        ({"classes": [service("one", profile="9g.90gb")]}, "no model has the profile 9g.90gb"),
        ({"classes": [service("one", models=("a100-80",), not_models=("a100-80",))]}, "is in models and in not_models"),
        ({"models": [{"name": "x", "memory_mib": 1, "geometry": {"profiles": None}}]}, "model x: "),
    ],
)
def test_bad_input_is_told(change: Problem, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        read_problem({**problem([host("a")], [service("one")]), **change})
