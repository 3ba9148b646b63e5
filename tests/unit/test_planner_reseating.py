# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom the solver placed: no needless move, and away from other replicas of the service where there is room, whatever else came of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import planner
from ansible_collections.gpuops.fleet.plugins.plugin_utils import problem as problem_room
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Problem, Quota, Resources, Rules, Workspace
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import exact
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, mixed_hosts, need, place, problem

GIB = 1024


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these fleets had more than 6,000 services times hosts, and too many GPUs to be planned one by one."""
    monkeypatch.setattr(problem_room, "SMALL", 0)
    monkeypatch.setattr(exact, "MOST_COLUMNS", 0)


def a30(name: str) -> problem_room.Gpu:
    """A small board, cut into slices."""
    return gpu(0, name, board="a30", memory_mib=24 * GIB, geometry=A30, mig=True)


def full_quota(number: int = 4) -> Problem:
    """``web`` grows while the quota of its team is full: on small boards it costs one replica of ``old``, and one by one both of them."""
    small = [f"a{each}" for each in range(1, number)]
    hosts = [
        *(host(a30(name), name=name, modes=("mig",)) for name in small),
        *(host(gpu(0, name, mig=True), name=name, modes=("mig",)) for name in ("b1", "b2", "b3")),
    ]
    needs = [
        need("web", memory_mib=5 * GIB, replicas=number + 1, priority=60, team="team", ports=(("http", None),)),
        need("old", memory_mib=9 * GIB, replicas=2, priority=20, team="team", ports=(("http", None),)),
    ]
    before = [place("web", "0:1g.6gb@0", on="a1", http=18001)]
    before += [place("old", f"0:1g.10gb@{each}", replica=each, on="b3", http=18100 + each) for each in (1, 2)]
    quota = Quota("team", (Limit("memory", 2 * 9856 + (number - 1) * 5952 + 5000),), "company")
    given = replace(problem(hosts, needs, before), preemption=True, moves=3, quotas=(quota,), workspaces=(Workspace("company"),))
    assert not given.is_small
    return given


@pytest.mark.parametrize("number", [4, 5])
def test_who_gave_way_for_others_is_back_where_it_was_and_those_are_spread(number: int) -> None:
    given = full_quota(number)
    solution = make_plan(given)
    old = [each for each in solution.placements if each.service == "old"]
    assert len(old) == 1
    assert set(old) < set(given.previous)
    assert [each.way for each in solution.displaced] == ["preempted"]
    web = Counter(each.host for each in solution.placements if each.service == "web")
    assert sorted(web.values()) == [1] * (number - 3) + [2, 2]
    assert planner_checker.complaints(given, solution) == []
    assert make_plan(replace(given, previous=solution.placements)).placements == solution.placements


def without(monkeypatch: pytest.MonkeyPatch, given: Problem) -> tuple[int, ...]:
    """What the plan is worth that lets everybody be where the solver has it."""
    with monkeypatch.context() as patched:
        patched.setattr(planner, "reseat", lambda _draft: False)
        return objective(given, make_plan(given, words=False))


def crowd(seed: int, more: int) -> Problem:
    """Services of several replicas, a few more than hosts with few CPUs can serve."""
    chance = random.Random(seed)
    there = mixed_hosts(6, 3, 24)
    needs = []
    for number in range(12 + more):
        isolation = chance.choice(["slice", "slice", "slice", "shared", "exclusive"])
        rules = Rules(
            spread=chance.choice(("host", "gpu", "pack")),
            all_or_nothing=chance.random() < 0.2,
            together=("s00",) if number and chance.random() < 0.1 else (),
        )
        needs.append(
            need(
                f"s{number:02}",
                isolation,
                {"slice": chance.choice([5, 9, 19]), "shared": chance.choice([8, 15]), "exclusive": 40}[isolation] * GIB,
                replicas=chance.randint(2, 6),
                priority=chance.choice([10, 50, 90]),
                resources=Resources(chance.choice([1, 2, 3]), 8 * GIB, 0, 0),
                ports=(("http", None),),
                rules=rules,
            )
        )
    return problem(there, needs)


@pytest.mark.parametrize("seed", range(6))
def test_on_a_fresh_fleet_fewer_are_together_and_as_many_are_served(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = crowd(seed, 8)
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    assert objective(given, solution) >= without(monkeypatch, given)
    assert make_plan(replace(given, previous=solution.placements)).placements == solution.placements


def equal_hosts(seed: int) -> Problem:
    """Services that wish to be spread, on eight hosts that are alike and have too few CPUs for all."""
    chance = random.Random(seed)
    capacity = Resources(32, 256 * GIB, None, None)
    hosts = [
        host(*(gpu(number, f"h{each}") for number in range(4)), name=f"h{each}", modes=("mig",), capacity=capacity) for each in range(8)
    ]
    needs = [
        need(f"s{number:02}", memory_mib=memory * GIB, replicas=chance.randint(2, 8), resources=Resources(cpus, 8 * GIB, None, None))
        for number, (memory, cpus) in enumerate(chance.choices([(4, 2), (9, 3), (19, 4), (4, 4)], k=17))
    ]
    return problem(hosts, needs)


def test_on_equal_hosts_with_few_cpus_few_are_on_one_host_and_hardly_any_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [equal_hosts(seed) for seed in range(4)]
    apart = [objective(each, make_plan(each, words=False)) for each in worlds]
    before = [without(monkeypatch, each) for each in worlds]
    assert [worth[:2] for worth in apart] == [worth[:2] for worth in before]
    assert all(worth >= other for worth, other in zip(apart, before, strict=True))
    assert sum(worth[3] for worth in apart) > sum(worth[3] for worth in before) / 4
    # One after the other, as the places of a kind were found, it would be 262 pairs on a host.
    assert sum(worth[2] for worth in apart) > -100


@pytest.mark.parametrize("seed", range(6))
def test_where_others_give_way_it_is_worth_no_less_and_every_rule_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = crowd(seed, 8)
    first = make_plan(replace(given, needs=given.needs[:10]))
    grown = tuple(replace(each, replicas=each.replicas + 2) if each.priority > 10 else each for each in given.needs)
    later = replace(given, needs=grown, previous=first.placements, preemption=True, moves=2)
    solution = make_plan(later)
    assert planner_checker.complaints(later, solution) == []
    assert objective(later, solution) >= without(monkeypatch, later)
    assert make_plan(replace(later, previous=solution.placements)).placements == solution.placements
