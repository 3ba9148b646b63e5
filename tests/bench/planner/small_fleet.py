# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The product's own planner on a fleet of a company: 1,000 services on 200 GPUs, planned and explained, in a cold process; and on one of
2,000 GPUs, of 200 teams that lend each other.

Fresh (nothing runs yet), again (the plan that was just made: nothing may move), and after a day (hosts are drained and lost, services come
and go), each with moves, preemption, rules and quotas, at 85, 100 and 120 percent of what the fleet holds. And a crowd: as many services of
many replicas and rules, some with kept room, of whom most have no place.
"""

from __future__ import annotations

import random
import typing as t
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Drain,
    Gpu,
    Host,
    Limit,
    Need,
    Placement,
    Problem,
    Quota,
    Resources,
    Rules,
    Solution,
    Workspace,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import told
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import why_here
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s
from planner.cold import cold

BOARDS = ("a100",) * 8 + ("l40s", "l40s", "a30")
GIB = 1024
NEW = 50_000


def fleet(gpus: int, chance: random.Random) -> tuple[Host, ...]:
    """Hosts of four or eight GPUs of one board."""
    hosts: list[Host] = []
    while gpus > 0:
        name, count, board = f"gpu-{len(hosts):03d}", min(gpus, chance.choice([4, 8])), chance.choice(BOARDS)
        gpus -= count
        boards: dict[str, t.Callable[[int, str], Gpu]] = {
            "a100": lambda number, name: gpu(number, name, mig=True),
            "l40s": l40s,
            "a30": lambda number, name: gpu(number, name, geometry=A30, board="a30", memory_mib=24576),
        }
        made = [boards[board](number, name) for number in range(count)]
        capacity = Resources(16 * count, 64 * GIB * count, None, 2000 * GIB)
        hosts.append(host(*made, name=name, modes=("mig", "shared", "whole"), shared_max=8, capacity=capacity))
    return tuple(hosts)


def service(number: int, chance: random.Random, teams: int) -> Need:
    """One service of one of so many teams."""
    isolation = chance.choices(["slice", "shared", "exclusive"], [75, 24, 1])[0]
    slices, shares = chance.choice([4, 4, 5, 5, 8, 8, 9, 9, 9, 15, 18, 30]), chance.choice([3, 6, 10])
    rules = Rules(
        spread=chance.choice(["host", "host", "gpu", "pack"]),
        max_per_host=chance.choice([None, None, None, 2]),
        apart=(f"service-{chance.randrange(1000):04d}",) if chance.random() < 0.03 else (),
        all_or_nothing=chance.random() < 0.03,
    )
    return Need(
        f"service-{number:04d}",
        "production",
        isolation,
        {"slice": slices, "shared": shares, "exclusive": 20}[isolation] * GIB,
        replicas=chance.choices([1, 2, 3], [90, 8, 2])[0],
        priority=chance.choice([30, 50, 50, 50, 80]),
        count=chance.choice([1, 1, 2]) if isolation == "exclusive" else 1,
        resources=Resources(chance.choice([1, 2, 2, 4]), chance.choice([2, 4, 8, 16]) * GIB, 64, 5 * GIB),
        ports=(("http", None),),
        team=f"team-{number % teams:02d}",
        rules=rules,
    )


def world(services: int, gpus: int, seed: int) -> Problem:
    """A problem of which nothing runs yet."""
    chance, teams = random.Random(seed), max(20, gpus // 10)
    hosts = fleet(gpus, chance)
    needs = tuple(service(number, chance, teams) for number in range(services))
    quotas = tuple(
        Quota(f"team-{number:02d}", (Limit("memory", chance.choice([400, 700, 1200]) * GIB),), "company", number % 2 == 0, number % 3 == 0)
        for number in range(teams)
    )
    return Problem(hosts, needs, quotas=quotas, workspaces=(Workspace("company"),), moves=3, preemption=True)


def after_a_day(problem: Problem, places: tuple[Placement, ...], seed: int) -> Problem:
    """A host is drained, a GPU is lost, a tenth of the services is new and a tenth is gone."""
    chance = random.Random(seed + 1)
    first, second = chance.sample(range(len(problem.hosts)), 2)
    hosts = list(problem.hosts)
    hosts[first] = replace(hosts[first], gpus=tuple(replace(each, drain=Drain("drained by lin")) for each in hosts[first].gpus))
    hosts[second] = replace(hosts[second], gpus=(replace(hosts[second].gpus[0], blocked="lost"), *hosts[second].gpus[1:]))
    gone = set(chance.sample([need.service for need in problem.needs], len(problem.needs) // 10))
    needs = [need for need in problem.needs if need.service not in gone]
    needs += [service(number + NEW, chance, len(problem.quotas)) for number in range(len(gone))]
    return replace(problem, hosts=tuple(hosts), needs=tuple(needs), previous=tuple(each for each in places if each.service not in gone))


def crowd(services: int, gpus: int, seed: int) -> Problem:
    """A problem of which most has no place: three times as many replicas, of 20 priorities, with more rules and with room for rollouts."""
    chance, few = random.Random(seed), world(services, gpus, seed)
    needs = tuple(
        replace(
            need,
            replicas=chance.choices([1, 2, 3, 5, 8], [40, 25, 15, 10, 10])[0],
            priority=chance.randrange(0, 100, 5),
            keep_room=chance.random() < 0.02,
            rules=replace(need.rules, max_per_host=chance.choice([None, 1, 2]), all_or_nothing=chance.random() < 0.2),
        )
        for need in few.needs
    )
    return replace(few, needs=needs)


def planned_and_explained(problem: Problem) -> Solution:
    """What the cold process does: a plan, why each replica is where it is, and what would give those without a place one."""
    solution = make_plan(problem)
    why_here(problem, solution)
    return told(solution, propose(problem, solution))


def measure(quick: bool) -> dict[str, t.Any]:
    """Seconds and memory of each case, and what the checker says."""
    found: dict[str, t.Any] = {"cases": [], "crowds": [], "large": [], "violations": []}
    for seed in (1,) if quick else (1, 2, 3):
        for services in (1000,) if quick else (700, 1000, 1300):
            _days(world(services, 200, seed), seed, f"{services} services on 200 GPUs", found["cases"], found["violations"])
        _days(crowd(1000, 200, seed), seed, "a crowd of 1000 services on 200 GPUs", found["crowds"], found["violations"])
    found["slowest_cpu_seconds"] = max(case["cpu_seconds"] for case in found["cases"])
    found["target_seconds"] = 2
    if not quick:
        _days(world(9000, 2000, 1), 1, "9000 services on 2000 GPUs", found["large"], found["violations"])
    return found


def _days(fresh: Problem, seed: int, size: str, cases: list[dict[str, t.Any]], violations: list[str]) -> None:
    """A fleet on which nothing runs, the same planned again, and after a day: added to the cases."""
    places: tuple[Placement, ...] = ()
    for name in ("fresh", "again", "after a day"):
        problem = fresh if name == "fresh" else replace(fresh, previous=places)
        problem = after_a_day(problem, places, seed) if name == "after a day" else problem
        run = cold("planner.small_fleet", "planned_and_explained", problem)
        answer = run.answer
        case = f"{name}, {size}, seed {seed}"
        violations += [f"{case}: {line[:200]}" for line in planner_checker.complaints(problem, answer)]
        violations += [f"{case}: planned again, it differs"] if name == "again" and answer.placements != places else []
        places = (*answer.placements, *answer.waiting) if name == "fresh" else places
        ways = {way: sum(each.way == way for each in answer.displaced) for way in ("moved", "preempted", "reclaimed")}
        told = {"placed": len(answer.placements), "unplaced": len(answer.unplaced), **ways}
        cases.append({"case": case, **told, **run.figures})
