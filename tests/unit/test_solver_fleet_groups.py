# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are not equal: what nobody can use of them does not tell them apart, and very many kinds of them are few groups."""

from __future__ import annotations

import random
import typing as t
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_dealing, fleet_groups, fleet_rounding, whole_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import Dealt, joined
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import alike, usable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetHost, read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import fleet_program
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import reachable, rounded
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, NotFound, Outcome, Program
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import violations
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import world

GIB = 1024
Problem = dict[str, t.Any]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned anew a few hosts at a time: that is of other fleets, and takes most of the time."""
    monkeypatch.setattr(whole_fleet, "MANY_HOSTS", 0)


def host(number: int, cpus: float, ram_mib: int = 512 * GIB, model: str = "a100-80") -> FleetHost:
    return FleetHost(f"h{number:03}", model, 8, cpus, ram_mib)


def needing(cpus: float, ram_mib: int) -> FleetClass:
    return FleetClass(f"{cpus}-{ram_mib}", "lin", 1, 1, "slice", 9 * GIB, cpus=cpus, ram_mib=ram_mib)


def test_what_nobody_can_use_does_not_tell_hosts_apart() -> None:
    """Of 515,623 MiB, replicas that need whole GiB can have 503, and of 63.8 cores in halves 63.5."""
    asked = [needing(0.5, 2 * GIB), needing(1.5, 3 * GIB)]
    one, other = usable([host(1, 63.8, 515_623), host(2, 63.5, 515_999)], asked)
    assert (one.cpus, one.ram_mib) == (other.cpus, other.ram_mib) == (63.5, 503 * GIB)
    assert [one.name, other.name] == ["h001", "h002"]


def test_a_tenth_of_a_core_is_one_in_floating_point_too() -> None:
    found = usable([host(1, 0.3), host(2, 0.1 + 0.2)], [needing(0.1, 1)])
    assert [one.cpus for one in found] == [0.3, 0.3]


def test_what_nobody_asks_for_does_not_tell_hosts_apart() -> None:
    one, other = usable([host(1, 64, 512 * GIB), host(2, 32, 256 * GIB)], [needing(0, 0)])
    assert (one.cpus, one.ram_mib) == (other.cpus, other.ram_mib)
    assert usable([host(1, 64)], []) == [host(1, 0.0, 0)]


def test_few_kinds_are_groups_of_equal_hosts_whatever_their_order() -> None:
    hosts = [host(number, 64 + number % 3) for number in range(30)]
    found = alike(hosts, mixed=True)
    assert [[one.cpus for one in each] for each in found] == [[64 + kind] * 10 for kind in range(3)]
    assert alike(random.Random(0).sample(hosts, len(hosts)), mixed=True) == found == alike(hosts, mixed=False)


def test_of_many_kinds_those_are_together_that_are_near() -> None:
    """Three far apart, each with thirty near to it: they are three groups, and boards are never mixed."""
    hosts = [host(100 * far + near, 10 * 4**far + near / 100) for far in range(3) for near in range(30)]
    hosts += [host(900 + near, 64 + near, model="h100-80") for near in range(5)]
    found = alike(hosts, mixed=True)
    assert sorted((len(each), len({one.model for one in each})) for each in found) == [(5, 1), (30, 1), (30, 1), (30, 1)]
    for each in found:
        assert max(one.cpus for one in each) < 2 * min(one.cpus for one in each)
    assert alike(random.Random(0).sample(hosts, len(hosts)), mixed=True) == found
    assert len(alike(hosts, mixed=False)) == len(hosts)


def test_there_are_no_more_groups_than_a_program_may_have() -> None:
    hosts = [host(number, 2.0**number) for number in range(2 * fleet_groups.MOST_GROUPS)]
    found = alike(hosts, mixed=True)
    assert len(found) == fleet_groups.MOST_GROUPS
    assert sorted(one.name for each in found for one in each) == [one.name for one in hosts]


def test_more_kinds_of_gpus_than_groups_are_groups_all_the_same() -> None:
    hosts = [host(number, 64 + number % 2, model=f"model-{number // 2}") for number in range(2 * fleet_groups.MOST_GROUPS + 2)]
    assert len(alike(hosts, mixed=True)) == fleet_groups.MOST_GROUPS + 1


def test_a_group_knows_what_each_of_its_hosts_may_give() -> None:
    one = fleet_groups.group_of(0, [host(1, 64), host(2, 32), host(3, 32)])
    assert one.mixed
    assert (one.cpus, one.ram) == (pytest.approx(128 / 3), 512)
    assert one.rooms.tolist() == [[64, 512], [32, 512], [32, 512]]
    assert [[each.name for each in part.hosts] for part in one.parts()] == [["h002", "h003"], ["h001"]]
    near = fleet_groups.group_of(0, [host(1, 64), host(2, 65)])
    assert near.mixed
    assert len(near.parts()) == 1
    assert not fleet_groups.group_of(0, [host(1, 64), host(2, 64)]).mixed


def test_what_a_group_may_have_is_what_its_hosts_may_have() -> None:
    """Of 20 cores each, hosts of 64, 32 and 16 have three, one and none."""
    kind = {"model": "a100-80", "gpus": 8, "ram_mib": 512 * GIB, "modes": ("mig", "whole")}
    hosts = [{"name": f"h{cpus}", "cpus": cpus, **kind} for cpus in (64, 32, 16)]
    asked = world(8, 2, 1)
    one = {**asked["classes"][0], "key": "one", "isolation": "slice", "memory_mib": GIB, "compute": 0.0, "cpus": 20.0, "ram_mib": GIB}
    one |= {"models": (), "not_models": (), "max_per_host": None, "replicas": 50}
    given: Problem = {"models": asked["models"], "hosts": hosts, "classes": [one], "quotas": []}
    assert options_of(read_problem(given)).most.tolist() == [1, 3]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fleet_groups, "MOST_GROUPS", 1)
        assert options_of(read_problem(given), mixed=True).most.tolist() == [4]
    # Three on the largest host and one on the next: nobody else has room.
    assert plan_whole_fleet(read_problem(given)).served == {one["priority"]: 4}


def test_parts_of_a_group_are_put_back_where_their_hosts_are() -> None:
    def dealt(klass: list[int], at: list[int], left: list[float], several: list[tuple[int, int]]) -> Dealt:
        each = len(left)
        slots = np.asarray(left, dtype=np.int64).reshape(each, 1, 1)
        both = np.stack((np.asarray(left), np.asarray(left)), axis=1)
        return Dealt(np.asarray(klass), np.zeros(len(klass), dtype=int), np.asarray(at), slots, both, slots[:, 0, 0], several)

    parts = [dealt([0, 1], [0, 1], [10.0, 30.0], [(1, 1)]), dealt([1], [0], [20.0], [(0, 0)])]
    found = joined(parts, [np.asarray([0, 2]), np.asarray([1])], np.asarray([7, 9]))
    assert found.klass.tolist() == [7, 9, 9]
    assert found.host.tolist() == [0, 2, 1]
    assert found.left[:, 0].tolist() == found.slots[:, 0, 0].tolist() == found.multi.tolist() == [10, 20, 30]
    assert found.several == [(9, 2), (7, 1)]
    assert found.placed == 5


@pytest.mark.parametrize(("unlike", "seed"), [(0.02, 3), (0.25, 1), (0.6, 2)])
def test_a_fleet_of_hosts_that_all_differ_is_planned_in_few_groups(unlike: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they differ by, no host has too much; and the first priorities lose next to nothing."""
    asked = world(600, 50, seed, unlike=unlike)
    options = options_of(read_problem(asked), mixed=True)
    assert len(options.groups) <= fleet_groups.MOST_GROUPS
    assert len(options_of(read_problem(asked)).groups) > 2 * fleet_groups.MOST_GROUPS
    parts, of = list[bool](), fleet_dealing._in_parts

    def counted(*given: t.Any) -> t.Any:
        found = of(*given)
        parts.append(found is not None)
        return found

    monkeypatch.setattr(fleet_dealing, "_in_parts", counted)
    monkeypatch.setattr(fleet_dealing, "MANY", 10**9)
    answer = plan_whole_fleet(read_problem(asked))
    assert violations(asked, answer.rows) == []
    assert answer.gaps["3"] < 0.003
    assert answer.gaps["2"] < 0.02
    # Only those that differ much are dealt to part by part.
    if unlike != 0.25:
        assert any(parts) == (unlike > 0.25)


def test_the_order_of_hosts_that_differ_changes_nothing() -> None:
    asked = world(400, 30, 4, unlike=0.4)
    plain = plan_whole_fleet(read_problem(asked)).rows
    shuffled = {**asked, "hosts": random.Random(0).sample(asked["hosts"], len(asked["hosts"]))}
    assert plan_whole_fleet(read_problem(shuffled)).rows == plain


def test_numbers_that_are_worse_than_rounding_down_are_sought_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way ends with the first that it has; where that serves less than what is certain, the other way is asked."""
    options = options_of(read_problem(world(400, 40, 7)))
    relaxed = fleet_program(options).solve(partial(reachable, options))
    last = options.priority[options.klass] == options.levels[-1]
    solve, ways = Program.solve, list[bool]()

    def poor(self: Program, limits: Limits | None = None, **other: t.Any) -> Outcome:
        found, plain = solve(self, limits, **other), limits is not None and limits.plain
        ways.append(plain)
        return replace(found, values=self.bounds()[0]) if plain else found

    monkeypatch.setattr(fleet_rounding, "MANY", 1)
    monkeypatch.setattr(fleet_rounding, "FEW", 10**9)
    monkeypatch.setattr(Program, "solve", poor)
    amount = rounded(options, relaxed)
    assert ways == [True, False]
    assert amount[last].sum() >= np.floor(relaxed.amount[last] + 1e-6).sum()


def test_what_is_not_found_within_the_limits_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = world(60, 25, 2)
    solve = Program.solve

    def nothing(self: Program, limits: Limits | None = None, **other: t.Any) -> Outcome:
        if limits is not None and limits.nodes == fleet_rounding.NODES:
            raise NotFound("HiGHS ended with 'Solution limit reached'")
        return solve(self, limits, **other)

    monkeypatch.setattr(Program, "solve", nothing)
    assert violations(asked, plan_whole_fleet(read_problem(asked)).rows) == []
