# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No higher priority waits for a lower one: whoever frees something in the middle of a plan, and whoever would go with whom."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Drain,
    Host,
    Limit,
    Need,
    Pin,
    Placement,
    Problem,
    Quota,
    Resources,
    Rules,
    Solution,
    Workspace,
)
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem, where

IN_W = {"workspaces": (Workspace("w", ()),)}


def whole(service: str, priority: int, memory_mib: int = 9000, **more: t.Any) -> Need:
    return need(service, "exclusive", memory_mib, priority=priority, **more)


def on(service: str, gpus: str, on: str = "h1", replica: int = 1) -> Placement:
    return place(service, gpus, on=on, replica=replica, mode="whole")


def planned(given: Problem) -> dict[str, str]:
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    return places(solution)


def places(solution: Solution) -> dict[str, str]:
    return {each.name: where(each) for each in solution.placements}


def machine(*gpus: t.Any, name: str = "h1", **more: t.Any) -> Host:
    return host(*gpus, name=name, modes=("whole",), **more)


def a10(number: int = 0, host: str = "h2") -> t.Any:
    return l40s(number, host, board="a10", memory_mib=24000)


@pytest.mark.parametrize("preemption", [False, True])
@pytest.mark.parametrize("moves", [0, 3])
def test_the_room_of_a_group_that_goes_is_offered_to_higher_priorities_first(moves: int, preemption: bool) -> None:
    needs = [whole("big", 50, 20000), whole("group", 50, replicas=2, rules=Rules(all_or_nothing=True)), whole("low", 10, 4000)]
    before = [on("group", "0"), on("group", "1", replica=2)]
    given = problem([machine(l40s(0), l40s(1, blocked="lost"))], needs, before)
    assert planned(replace(given, moves=moves, preemption=preemption)) == {"big-1": "h1/0"}


@pytest.mark.parametrize("preemption", [False, True])
def test_what_a_drained_gpu_gives_back_is_offered_to_higher_priorities_first(preemption: bool) -> None:
    four = Resources(4, 0, 0, 0)
    needs = [whole("high", 90, 30000, resources=four), whole("leaves", 50, resources=four), whole("low", 10, 30000, resources=four)]
    hosts = [
        machine(l40s(0, drain=Drain("drained")), l40s(1), capacity=Resources(4, None, None, None)),
        machine(a10(), name="h2"),
    ]
    given = replace(problem(hosts, needs, [on("leaves", "0")]), moves=3, preemption=preemption)
    assert planned(given) == {"high-1": "h1/1", "leaves-1": "h2/0"}


def test_what_goes_back_to_its_team_is_offered_to_higher_priorities_first() -> None:
    needs = [
        whole("high", 90, 30000, team="c"),
        whole("borrower", 50, 30000, team="a"),
        whole("lender", 50, team="b", models=("a10",)),
        whole("low", 10, 30000, team="c"),
    ]
    quotas = (
        Quota("a", (Limit("gpus", 0),), "w", borrow=True),
        Quota("b", (Limit("gpus", 1),), "w", lend=True),
        Quota("c", ()),
    )
    given = problem([machine(l40s()), machine(a10(), name="h2")], needs, [on("borrower", "0")])
    assert planned(replace(given, quotas=quotas, **IN_W)) == {"high-1": "h1/0", "lender-1": "h2/0"}


@pytest.mark.parametrize("lent", [False, True])
def test_a_group_does_not_go_for_a_lower_priority_than_one_that_goes_with_another_of_its_replicas(lent: bool) -> None:
    group = whole("group", 10, team="a", replicas=2, rules=Rules(all_or_nothing=True))
    top, middle = whole("top", 90, team="c", rules=Rules(together=("group",))), whole("middle", 50, team="b")
    before = [on("group", "0"), on("group", "0", "h2", 2), on("top", "1", "h2")]
    given = problem([machine(l40s()), machine(l40s(0, "h2"), l40s(1, "h2"), name="h2")], [group, top, middle], before)
    quotas = (
        Quota("a", (Limit("gpus", 0),), "w", borrow=True),
        Quota("b", (Limit("gpus", 2),), "w", lend=True),
        Quota("c", ()),
    )
    given = replace(given, quotas=quotas, **IN_W) if lent else replace(given, preemption=True)
    assert sorted(planned(given)) == ["group-1", "group-2", "top-1"]
    # One that is higher than all of them is served.
    highest = replace(given, needs=(group, top, replace(middle, priority=95)))
    assert "middle-1" in planned(highest)


@pytest.mark.parametrize("preemption", [False, True])
def test_what_was_lent_goes_back_where_boards_that_no_quota_counts_are_full(preemption: bool) -> None:
    needs = [whole("borrower", 10, team="a"), whole("lender", 50, team="b"), whole("full", 90, team="c")]
    quotas = (
        Quota("a", (Limit("gpus", 0, "l40s"),), "w", borrow=True),
        Quota("b", (Limit("gpus", 1, "l40s"),), "w", lend=True),
        Quota("c", ()),
    )
    before = [on("borrower", "0"), on("full", "0", "h2")]
    given = replace(problem([machine(l40s()), machine(a10(), name="h2")], needs, before), quotas=quotas, moves=3, **IN_W)
    assert planned(replace(given, preemption=preemption)) == {"full-1": "h2/0", "lender-1": "h1/0"}


@pytest.mark.parametrize("priority", [50, 90])
@pytest.mark.parametrize("on_l40s", [1, 2])
def test_of_what_was_lent_that_goes_back_which_the_lender_can_use(priority: int, on_l40s: int) -> None:
    borrower, lender = whole("borrower", 50, team="a", replicas=2), whole("lender", priority, 30000, team="b")
    quotas = (Quota("a", (Limit("gpus", 0),), "w", borrow=True), Quota("b", (Limit("gpus", 2),), "w", lend=True))
    before = [on("borrower", "0", "h1", on_l40s), on("borrower", "0", "h2", 3 - on_l40s)]
    given = replace(problem([machine(l40s()), machine(a10(), name="h2")], [borrower, lender], before), quotas=quotas, **IN_W)
    assert planned(given) == {f"borrower-{3 - on_l40s}": "h2/0", "lender-1": "h1/0"}


def test_lower_priorities_of_a_team_give_way_within_its_quota_where_a_board_beside_cannot_be_had() -> None:
    low, high = need("low", memory_mib=9000, priority=10, team="b"), need("high", memory_mib=9000, priority=50, team="b")
    hosts = [host(gpu(slices="1g.10gb@6")), host(gpu(0, "h2", board="a30", pin=Pin("shared")), name="h2")]
    given = problem(hosts, [low, high], [place("low", "0:1g.10gb@6")])
    given = replace(given, quotas=(Quota("b", (Limit("slices", 1, "a100"),)),), preemption=True)
    assert planned(given) == {"high-1": "h1/0:1g.10gb@6"}


def test_where_less_is_lent_the_lowest_of_the_team_that_borrows_goes() -> None:
    high, low, least = whole("high", 90, team="a", count=2), whole("low", 10, team="a"), whole("least", 5, team="a")
    before = [on("high", "0,1"), on("low", "2"), on("least", "3")]

    def lent(most: int) -> dict[str, str]:
        quotas = (Quota("a", (Limit("gpus", 1),), "w", borrow=True), Quota("b", (Limit("gpus", most),), "w", lend=True))
        return planned(replace(problem([machine(*map(l40s, range(4)))], [high, low, least], before), quotas=quotas, **IN_W))

    assert lent(3) == {"high-1": "h1/0,1", "least-1": "h1/3", "low-1": "h1/2"}
    assert lent(2) == {"high-1": "h1/0,1", "low-1": "h1/2"}
    assert lent(1) == {"high-1": "h1/0,1"}
    assert sorted(lent(0)) == ["low-1"]


@pytest.mark.parametrize("most", [None, 1])
def test_a_replica_that_may_be_once_on_a_gpu_can_move_on_its_own(most: int | None) -> None:
    small, big = need("small", memory_mib=9000, rules=Rules(max_per_gpu=most)), need("big", memory_mib=30000, profile="4g.40gb")
    given = replace(problem([host(gpu(slices="1g.10gb@0"))], [small, big], [place("small", "0:1g.10gb@0")]), moves=3)
    assert planned(given) == {"big-1": "h1/0:4g.40gb@0", "small-1": "h1/0:1g.10gb@6"}


def test_whoever_is_asked_to_go_and_comes_back_has_its_ports_again() -> None:
    http = (("http", None),)
    needs = [
        need("first", "shared", 4000, priority=10, resources=Resources(1), ports=http),
        need("second", memory_mib=18000, priority=10, resources=Resources(1), ports=http),
        need("third", memory_mib=30000, priority=50, resources=Resources(2), ports=http),
    ]
    hosts = [host(gpu(0, mig=True), gpu(1), capacity=Resources(6, None, None, None), modes=("mig", "shared"))]
    begun = problem(hosts, needs)
    serving = make_plan(begun).placements
    assert len(serving) == 3
    newcomer = need("newcomer", memory_mib=8000, priority=90, resources=Resources(4), ports=http)
    given = replace(begun, needs=(*needs, newcomer), previous=serving, preemption=True, moves=1)
    kept = {each.name: each for each in make_plan(given).placements}
    assert "newcomer-1" in kept
    was = {each.name: each for each in serving}
    assert all(kept[name].ports == was[name].ports for name in kept if name in was and where(kept[name]) == where(was[name]))
