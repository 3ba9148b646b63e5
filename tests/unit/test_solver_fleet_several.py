# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole fleets with replicas that have several whole GPUs: what they leave of a host, and who may have their place."""

from __future__ import annotations

import random
import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import whole_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_exchange import ease, exchange
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import Dealt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetAnswer, read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Codes, Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_trading import trade
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Program
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import violations
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models

Asked = dict[str, t.Any]


def hosts(number: int, *, gpus: int = 8, cpus: float = 64.0) -> list[Asked]:
    same = {"model": "a100-80", "gpus": gpus, "cpus": cpus, "ram_mib": 1 << 21, "modes": ("mig", "whole")}
    return [{"name": f"h{one:02}", **same} for one in range(number)]


def service(key: str, replicas: int, cpus: float, count: int = 0, **other: t.Any) -> Asked:
    """Slices with a seventh of a GPU, or ``count`` whole ones."""
    kind = {"isolation": "exclusive", "count": count} if count else {"isolation": "slice"}
    same = {
        "team": "t",
        "priority": 1,
        "memory_mib": 1000,
        "compute": 0.0,
        "models": (),
        "not_models": (),
        "ram_mib": 0,
        "max_per_host": None,
    }
    return {"key": key, "replicas": replicas, "cpus": cpus, **same, **kind, **other}


def problem(machines: list[Asked], *classes: Asked) -> Asked:
    return {"models": models(), "hosts": machines, "classes": list(classes), "quotas": []}


def options(asked: Asked) -> Options:
    return options_of(read_problem(asked))


def plan(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> FleetAnswer:
    """As a large fleet is planned: equal hosts as one group."""
    monkeypatch.setattr(whole_fleet, "FEW_HOSTS", 0)
    monkeypatch.setattr(whole_fleet, "MANY_HOSTS", 0)
    answer = whole_fleet.plan_whole_fleet(read_problem(asked))
    assert violations(asked, answer.rows) == []
    return answer


@pytest.mark.parametrize(
    ("count", "gpus", "cpus", "taken"),
    [
        (8, 8, 40.0, 40.0),  # all of the host
        (8, 8, 64.0, 56.0),  # seven slices with a core each on eight GPUs: nobody could use more
        (4, 8, 40.0, 12.0),  # the other four GPUs can need 28
        (2, 8, 64.0, 14.0),
        (4, 8, 30.0, 4.0),  # what it needs: others can use all the rest
        (1, 1, 5.0, 5.0),  # the only GPU of a host
        (1, 8, 8.0, 1.0),
    ],
)
def test_what_nobody_else_can_use_any_more_is_taken(count: int, gpus: int, cpus: float, taken: float) -> None:
    found = options(problem(hosts(2, gpus=gpus, cpus=cpus), service("large", 1, count, count), service("small", 9, 1.0)))
    large = found.klass == 0
    assert found.taken[~large, 0].tolist() == [1.0]
    assert found.taken[large, 0].tolist() == [taken]


def test_cpu_of_hosts_that_others_have_whole_is_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    # Five of ten hosts have 56 cores left that nobody can use: 16 small ones with 4 cores find room on each of the others.
    eights = service("eights", 5, 8.0, 8, priority=2)
    answer = plan(problem(hosts(10), eights, service("small", 150, 4.0)), monkeypatch)
    assert answer.served == answer.bound == {2: 5, 1: 80}


def test_hosts_that_others_have_whole_are_none_to_spread_over(monkeypatch: pytest.MonkeyPatch) -> None:
    eights = service("eights", 5, 8.0, 8, priority=2)
    answer = plan(problem(hosts(10), eights, service("spread", 10, 1.0, max_per_host=1)), monkeypatch)
    assert answer.served == answer.bound == {2: 5, 1: 5}


def best(asked: Asked) -> dict[int, int]:
    """The most of each priority, greatest first, host by host in one integer program: whole GPUs, and GPUs with up to seven slices."""
    found: dict[int, int] = {}
    for level in sorted({one["priority"] for one in asked["classes"]}, reverse=True):
        program = Program()
        columns: dict[tuple[int, str], int] = {}
        for number, host in enumerate(asked["hosts"]):
            cut = program.add_column(0.0, whole=True)
            gpus: list[tuple[int, float]] = [(cut, 1.0)]
            slices: list[tuple[int, float]] = [(cut, -7.0)]
            cores: list[tuple[int, float]] = []
            for one in asked["classes"]:
                column = program.add_column(float(one.get("max_per_host") or 99), -float(one["priority"] == level), whole=True)
                columns[number, one["key"]] = column
                cores.append((column, one["cpus"]))
                if one["isolation"] == "slice":
                    slices.append((column, 1.0))
                else:
                    gpus.append((column, float(one["count"])))
            program.at_most(float(host["gpus"]), gpus)
            program.at_most(0.0, slices)
            program.at_most(host["cpus"], cores)
        for one in asked["classes"]:
            program.at_most(float(one["replicas"]), [(columns[number, one["key"]], 1.0) for number in range(len(asked["hosts"]))])
        for above, many in found.items():
            keys = [one["key"] for one in asked["classes"] if one["priority"] == above]
            program.at_most(-float(many), [(column, -1.0) for (_number, key), column in columns.items() if key in keys])
        found[level] = round(-program.solve().objective)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_bound_is_below_what_a_plan_of_each_host_serves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    classes = [
        service(
            f"c{number}",
            chance.randint(1, 30),
            chance.randint(1, 10) / 2 * max(1, count),
            count,
            priority=chance.randint(1, 2),
            max_per_host=chance.choice((None, None, 1, 2)),
        )
        for number, count in enumerate(chance.choices((0, 1, 2, 4), k=5))
    ]
    asked = problem(hosts(6, gpus=4, cpus=float(chance.choice((12, 20, 30)))), *classes)
    answer, wanted = plan(asked, monkeypatch), best(asked)
    first = next(iter(wanted))
    assert answer.bound[first] >= wanted[first]
    if answer.served[first] == wanted[first]:
        assert all(answer.bound[level] >= number for level, number in wanted.items())


def seated(asked: Asked, *places: tuple[int, int, int]) -> Filling:
    """Replicas of (class, host, GPUs) on the first group of hosts."""
    given = options(asked)
    seats = Seats(given, 0, None, Codes(given.boards[0]))
    for klass, host, gpus in places:
        shape = int(given.shape[given.klass == klass][0])
        seats.add(*(np.asarray([each]) for each in (klass, shape, host, gpus)))
    return Filling(given, [seats])


@pytest.mark.parametrize(
    ("replicas", "cpus", "served", "opened"),
    [
        (20, 8.0, 8, 2),  # eight of eight cores come for one that goes
        (1, 8.0, 1, 1),  # as many on fewer GPUs
        (20, 65.0, 1, 8),  # nobody could come: it stays
    ],
)
def test_a_large_replica_makes_way_for_more_or_on_fewer_gpus(replicas: int, cpus: float, served: int, opened: int) -> None:
    filling = seated(problem(hosts(1), service("eight", 1, 8.0, 8), service("small", replicas, cpus)), (0, 0, 255))
    trade(filling)
    assert (filling.served()[1], filling.opened()) == (served, opened)


def test_nobody_makes_way_for_a_lower_priority() -> None:
    filling = seated(problem(hosts(1), service("eight", 1, 8.0, 8, priority=2), service("small", 20, 8.0)), (0, 0, 255))
    trade(filling)
    assert filling.served() == {2: 1, 1: 0}


@pytest.mark.parametrize("large", [False, True])
def test_one_goes_where_many_hosts_have_a_little_too_much(large: bool) -> None:
    # Each of twenty hosts lacks a quarter of a core. Five cores that are left on one of them help all.
    pairs = [service("pair", 1, 5.0, 2)] if large else []
    sizes = (("heavy", 20, 4.75 if large else 5.0), ("light", 400, 0.25), ("middle", 20, 0.5))
    given = options(problem(hosts(20, cpus=20.0), *(service(key, many, cpus) for key, many, cpus in sizes), *pairs))
    klass = np.repeat([0, 1, 2], [20, 400, 20])
    shape = np.full(440, int(given.shape[given.klass == 0][0]))
    left, multi = np.full((20, 2), (-0.25, 9.0)), np.zeros(20, dtype=np.int64)
    multi[0] = 2 * large
    slots = np.zeros((20, 8, len(given.boards[0].shapes)), dtype=np.int64)
    dealt = Dealt(klass, shape, np.tile(np.arange(20), 22), slots, left, multi, [(3, 0)] if large else [])
    exchange(given, dealt)
    assert (dealt.left[:, 0] < 0).sum() > 10  # all that there is is not enough
    ease(given, dealt)
    assert dealt.left.min() >= 0
    assert dealt.placed == 440 - (not large)
    assert dealt.several == []
    assert not dealt.multi.any()


def test_nobody_of_a_higher_priority_goes_for_many_hosts() -> None:
    given = options(problem(hosts(20, cpus=8.0), service("high", 40, 4.25, priority=2), service("low", 1, 1.0)))
    klass, shape = np.zeros(40, dtype=np.int64), np.zeros(40, dtype=np.int64)
    slots = np.zeros((20, 8, len(given.boards[0].shapes)), dtype=np.int64)
    dealt = Dealt(klass, shape, np.tile(np.arange(20), 2), slots, np.full((20, 2), (-0.5, 9.0)), np.zeros(20, dtype=np.int64), [])
    ease(given, dealt)
    assert dealt.placed == 40
