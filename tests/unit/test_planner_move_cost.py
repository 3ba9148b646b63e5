# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a move costs its service counts: those move whom it costs least, and nobody whom it costs more than may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import edited, propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Problem, Quota, planned
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, manifest_text, need, place, problem, where


def plan(asked: Problem) -> dict[str, str]:
    solution = make_plan(asked)
    assert planner_checker.complaints(asked, solution) == []
    return {each.name: where(each) for each in solution.placements}


def moves(asked: Problem) -> set[str]:
    """Who has another place than before."""
    before = {each.name: where(each) for each in asked.previous}
    return {name for name, there in plan(asked).items() if name in before and before[name] != there}


def two_movers(cheap: int, dear: int, allowed: int = 3) -> Problem:
    """Either of two services can make room for the third, on GPUs of which only the third one wants a kind; a third GPU is free."""
    hosts = [host(gpu(0), gpu(1), l40s(2), modes=("whole",))]
    needs = [
        need("aa", "exclusive", 10000, move_cost=dear),
        need("bb", "exclusive", 20000, move_cost=cheap),
        need("llm", "exclusive", 60000, models=("a100",)),
    ]
    return replace(problem(hosts, needs, [place("aa", "0", mode="whole"), place("bb", "1", mode="whole")]), moves=allowed)


def test_whom_it_costs_least_moves() -> None:
    assert moves(two_movers(1, 1)) == {"aa-1"}
    assert moves(two_movers(1, 2)) == {"bb-1"}
    assert moves(two_movers(3, 2)) == {"aa-1"}


def test_nobody_moves_whom_it_costs_more_than_may_be() -> None:
    assert moves(two_movers(4, 4)) == set()
    assert moves(two_movers(4, 5, allowed=4)) == {"bb-1"}
    assert moves(two_movers(100, 100, allowed=8)) == set()


@pytest.mark.parametrize(("dear", "moved"), [(1, {"big-1"}), (2, {"big-1"}), (3, {"aa-1", "bb-1"}), (9, {"aa-1", "bb-1"})])
def test_several_cheap_ones_move_in_place_of_a_dear_one(dear: int, moved: set[str]) -> None:
    needs = [
        need("big", "exclusive", 10000, move_cost=dear),
        need("aa", "shared", 10000),
        need("bb", "shared", 10000),
        need("llm", "exclusive", 60000, models=("a100",)),
    ]
    before = [place("big", "0", mode="whole"), place("aa", "1", mode="shared"), place("bb", "1", mode="shared")]
    world = host(gpu(0), gpu(1), l40s(2), modes=("whole", "shared"))
    assert moves(replace(problem([world], needs, before), moves=3)) == moved


def test_the_objective_counts_a_move_as_often_as_its_manifest_says() -> None:
    for cost in (1, 3):
        asked = two_movers(cost, 5)
        solution = make_plan(asked)
        assert objective(asked, solution)[1] == -cost


def test_among_equals_whom_it_costs_least_gives_way() -> None:
    hosts = [host(l40s(0), l40s(1), modes=("whole",))]

    def gone(first: int, second: int) -> set[str]:
        needs = [
            need("aa", "exclusive", 20000, priority=10, move_cost=first),
            need("bb", "exclusive", 20000, priority=10, move_cost=second),
            need("llm", "exclusive", 20000, priority=90),
        ]
        asked = problem(hosts, needs, [place("aa", "0", mode="whole"), place("bb", "1", mode="whole")])
        return {"aa-1", "bb-1"} - set(plan(replace(asked, preemption=True)))

    assert gone(1, 1) == {"aa-1"}
    assert gone(2, 1) == {"bb-1"}
    assert gone(1, 9) == {"aa-1"}


def test_a_lower_priority_gives_way_whatever_that_costs_it() -> None:
    needs = [
        need("aa", "exclusive", 20000, priority=10, move_cost=100),
        need("bb", "exclusive", 20000, priority=20),
        need("llm", "exclusive", 20000, priority=90),
    ]
    before = [place("aa", "0", mode="whole"), place("bb", "1", mode="whole")]
    asked = replace(problem([host(l40s(0), l40s(1), modes=("whole",))], needs, before), preemption=True)
    assert set(plan(asked)) == {"bb-1", "llm-1"}


def test_of_a_team_that_has_too_much_the_cheaper_one_goes() -> None:
    needs = [
        need("aa", "exclusive", 20000, priority=10, team="claims", move_cost=2),
        need("bb", "exclusive", 20000, priority=10, team="claims"),
        need("llm", "exclusive", 20000, priority=90, team="claims"),
    ]
    before = [place("aa", "0", mode="whole"), place("bb", "1", mode="whole")]
    asked = problem([host(l40s(0), l40s(1), l40s(2), modes=("whole",))], needs, before)
    asked = replace(asked, preemption=True, quotas=(Quota("claims", (Limit("gpus", 2),)),))
    assert set(plan(asked)) == {"aa-1", "llm-1"}


def test_the_number_of_moves_that_is_proposed_is_what_they_cost() -> None:
    asked = two_movers(3, 4, allowed=1)
    solution = make_plan(asked)
    (found,) = propose(asked, solution)
    assert found.changes[0].sentence == "allow fleet_moves: 3, and bb-1 would move"
    assert len(make_plan(edited(planned(asked, solution), found.changes[0].edits)).placements) == 3


def test_it_is_written_in_the_placement_block_and_is_not_part_of_a_version() -> None:
    read = read_manifest("m/a.yml", manifest_text(placement="{move_cost: 3}"))
    assert need_of(read).move_cost == 3
    assert need_of(read_manifest("m/a.yml", manifest_text())).move_cost == 1
    assert read.digest() == read_manifest("m/a.yml", manifest_text()).digest()
    for wrong in ("0", "101", "1.5", "often"):
        with pytest.raises(FleetError, match=r"m/a.yml:9: placement.move_cost: "):
            read_manifest("m/a.yml", manifest_text(placement=f"{{move_cost: {wrong}}}"))
