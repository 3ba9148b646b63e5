# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying GPUs by a few moves: as many as can be, never more moves than are allowed, and nobody pays for it."""

from __future__ import annotations

import random
import sys
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils import consolidating
from ansible_collections.gpuops.fleet.plugins.plugin_utils.consolidating import Consolidated, consolidated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Drain,
    Instance,
    Limit,
    Pin,
    Placement,
    Problem,
    Quota,
    Resources,
    Rules,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import program
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import order, same_place
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem, where
from ansible_collections.gpuops.fleet.tests.unit.test_planner_properties import QUICK, problems
from hypothesis import given
from hypothesis import strategies as st

WITHIN = "1 of these moves is within a host: the replica stops before it starts in its new place"


def tidied(asked: Problem, moves: int) -> dict[str, str]:
    """Where everybody is in the end, in a plan that an independent checker finds nothing wrong with."""
    found = consolidated(asked, moves)
    assert planner_checker.complaints(asked, found.solution) == []
    assert list(found.lines[:1]) != []
    return {each.name: where(each) for each in found.solution.placements}


def two_halves() -> Problem:
    """Two A100, and on each of them one slice of half of it."""
    needs = [need("aa", memory_mib=30000), need("bb", memory_mib=30000)]
    return problem([host(gpu(0), gpu(1))], needs, [place("aa", "0:3g.40gb@0"), place("bb", "1:3g.40gb@0")])


def test_two_half_full_gpus_become_one() -> None:
    assert tidied(two_halves(), 1) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/0:3g.40gb@4"}
    assert consolidated(two_halves(), 1).lines == [
        "h1 GPU-h1-1 (a100-sxm4-80gb) becomes empty",
        "bb-1 moves from h1 GPU-h1-1 3g.40gb@0 to h1 GPU-h1-0 3g.40gb@4",
        WITHIN,
        "1 of 2 GPUs in use becomes empty by 1 move, which counts as 1 of at most 1",
        "a100-sxm4-80gb in production: 2 open GPUs hold slices; 1 move of these among them leaves no fewer than 1"
        " while each slice stays as large"
        f" (proven by {program.version()})",
    ]


def test_nobody_moves_unasked() -> None:
    assert consolidated(two_halves(), 0) == Consolidated(make_plan(two_halves()), [])


def test_whoever_costs_more_stays() -> None:
    cheap = replace(two_halves(), needs=(two_halves().needs[0], replace(two_halves().needs[1], move_cost=2)))
    assert tidied(cheap, 1) == {"aa-1": "h1/1:3g.40gb@4", "bb-1": "h1/1:3g.40gb@0"}
    dear = replace(two_halves(), needs=tuple(replace(each, move_cost=2) for each in two_halves().needs))
    assert tidied(dear, 1) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/1:3g.40gb@0"}
    assert consolidated(dear, 1).lines[0] == "no GPU becomes empty by at most 1 move"
    assert consolidated(dear, 2).lines[-2].endswith("by 1 move, which counts as 2 of at most 2")


def test_sharers_move_together() -> None:
    needs = [need(name, "shared", 10000) for name in ("aa", "bb", "cc")]
    before = [place("aa", "0", mode="shared"), place("bb", "0", mode="shared"), place("cc", "1", mode="shared")]
    asked = problem([host(l40s(0), l40s(1), modes=("shared",))], needs, before)
    assert tidied(asked, 1) == {"aa-1": "h1/0", "bb-1": "h1/0", "cc-1": "h1/0"}


def chained() -> Problem:
    """What is on GPU 1 fits on GPU 0 only after a slice there has gone to the one hole of GPU 2."""
    needs = [
        need("aa"),
        need("bb", memory_mib=30000),
        need("cc", memory_mib=30000),
        need("dd", memory_mib=30000),
        need("ee", memory_mib=15000),
    ]
    before = [
        place("aa", "0:1g.10gb@0"),
        place("bb", "0:3g.40gb@4"),
        place("cc", "1:3g.40gb@0"),
        place("dd", "2:3g.40gb@4"),
        place("ee", "2:2g.20gb@0"),
    ]
    return problem([host(gpu(0), gpu(1), gpu(2))], needs, before)


def test_the_program_sees_that_one_move_makes_room_for_another() -> None:
    there = tidied(chained(), 2)
    assert {each.partition(":")[0] for each in there.values()} == {"h1/0", "h1/2"}
    assert there["cc-1"] == "h1/0:3g.40gb@0"


def on_two_hosts(*adopted: str) -> Problem:
    """As above, with GPUs 1 and 2 on another host."""
    there = {"1": ("h2", "0"), "2": ("h2", "1"), "0": ("h1", "0")}
    before = [
        replace(each, host=name, gpus=(f"GPU-{name}-{number}",))
        for each in chained().previous
        for name, number in [there[each.gpus[0].rpartition("-")[2]]]
    ]
    needs = [replace(each, adopted=each.service in adopted) for each in chained().needs]
    return problem([host(gpu(0)), host(gpu(0, "h2"), gpu(1, "h2"), name="h2")], needs, before)


def test_of_ways_that_empty_as_much_the_one_is_taken_by_which_nobody_stops() -> None:
    assert {each.partition("/")[0] for each in tidied(on_two_hosts(), 2).values()} == {"h2"}
    assert not any("stop" in line for line in consolidated(on_two_hosts(), 2).lines)


def test_hosts_that_wait_for_each_other_are_told() -> None:
    """``bb`` and ``ee`` stay, so that ``aa`` has to go to the other host and ``cc`` to come from there."""
    asked = on_two_hosts("bb", "ee")
    assert tidied(asked, 2)["cc-1"] == "h1/0:3g.40gb@0"
    told = "1 of these moves closes a circle of hosts: the replica stops before it serves in its new place"
    assert told in consolidated(asked, 2).lines


def test_without_a_solver_it_is_done_one_by_one_and_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "highspy", None)
    assert consolidated(two_halves(), 3).lines[-1] == "1 of 2 GPUs in use becomes empty by 1 move, which counts as 1 of at most 3"


@pytest.mark.parametrize(
    "rule",
    [
        {"rules": Rules(apart=("bb",))},
        {"adopted": True},
        {"models": ("h100",)},
        {"resources": Resources(5, 0, 0, 0)},
    ],
)
def test_every_rule_holds(rule: dict[str, t.Any]) -> None:
    """On two hosts; ``aa`` may not go to ``bb``, nor may ``bb`` come to it."""
    needs = [need("aa", memory_mib=30000, **rule), need("bb", memory_mib=30000, resources=Resources(5, 0, 0, 0), adopted=True)]
    hosts = [host(gpu(0, name), name=name, capacity=Resources(8, None, None, None)) for name in ("h1", "h2")]
    before = [place("aa", "0:3g.40gb@0"), place("bb", "0:3g.40gb@0", on="h2")]
    asked = problem(hosts, needs, before)
    if rule.get("models"):  # what it asks for by now is not what it has
        asked = replace(asked, needs=(replace(needs[0], models=("a100",), bars={}), replace(needs[1], environment="production")))
        asked = replace(asked, needs=(replace(asked.needs[0], resources=Resources(4, 0, 0, 0)), asked.needs[1]))
    assert tidied(asked, 5)["aa-1"] == "h1/0:3g.40gb@0"


def test_what_gets_a_new_version_stays() -> None:
    changed = replace(two_halves(), changed=frozenset({"aa", "bb"}))
    assert tidied(changed, 5) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/1:3g.40gb@0"}


def test_what_is_cordoned_is_neither_emptied_nor_filled() -> None:
    asked = two_halves()
    closed = replace(asked, hosts=(host(gpu(0), gpu(1, cordoned=True)),))
    assert tidied(closed, 5) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/1:3g.40gb@0"}


def test_a_service_does_not_become_less_spread() -> None:
    def asked(spread: t.Any) -> Problem:
        needs = [need("aa", memory_mib=30000, replicas=2, rules=Rules(spread=spread))]
        before = [place("aa", "0:3g.40gb@0"), place("aa", "1:3g.40gb@0", replica=2)]
        return problem([host(gpu(0), gpu(1))], needs, before)

    assert len({each.partition(":")[0] for each in tidied(asked("gpu"), 5).values()}) == 2
    assert len({each.partition(":")[0] for each in tidied(asked("host"), 5).values()}) == 2
    assert len({each.partition(":")[0] for each in tidied(asked("pack"), 5).values()}) == 1


def test_where_another_host_would_be_less_spread_a_move_within_the_host_will_do() -> None:
    # 'aa-1' has a slice larger than it needs; 'aa-2' is on the other host, which has room.
    hosts = [host(gpu(0), gpu(1)), host(gpu(0, "h2"), name="h2")]
    needs = [need("aa", replicas=2), need("bb", "slice", rules=Rules(apart=("cc",))), need("cc", "slice", adopted=True)]
    before = [
        place("aa", "1:7g.80gb@0"),
        place("aa", "0:1g.10gb@0", replica=2, on="h2"),
        place("bb", "0:1g.10gb@0"),
        place("cc", "0:1g.10gb@1", on="h2"),
    ]
    assert tidied(problem(hosts, needs, before), 1)["aa-1"] == "h1/0:1g.10gb@1"


def test_room_that_is_kept_for_a_rollout_stays() -> None:
    def asked(keep: bool) -> Problem:
        needs = [need("aa", memory_mib=30000), need("bb", memory_mib=30000, keep_room=keep)]
        hosts = [host(gpu(0), name="h1"), host(gpu(0, "h2"), name="h2")]
        return problem(hosts, needs, [place("aa", "0:3g.40gb@0"), place("bb", "0:3g.40gb@0", on="h2")])

    assert len({each.partition(":")[0] for each in tidied(asked(False), 5).values()}) == 1
    assert tidied(asked(True), 5) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h2/0:3g.40gb@0"}


def test_a_quota_is_kept() -> None:
    """The slice of 6 GB on the small board would be one of 10 GB on the large one."""
    from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30

    needs = [need("aa", memory_mib=5000, team="claims"), need("bb", memory_mib=30000, team="claims")]
    small = gpu(1, geometry=A30, board="a30", memory_mib=24576)
    asked = problem([host(gpu(0), small)], needs, [place("aa", "1:1g.6gb@0"), place("bb", "0:3g.40gb@0")])

    def with_limit(mib: int) -> Problem:
        return replace(asked, quotas=(Quota("claims", (Limit("memory", mib),)),))

    assert tidied(with_limit(100000), 5)["aa-1"].startswith("h1/0")
    assert tidied(with_limit(5952 + 40320), 5)["aa-1"] == "h1/1:1g.6gb@0"


def test_whoever_waited_gets_what_became_free() -> None:
    whole = need("llm", "exclusive", 60000)
    asked = replace(two_halves(), needs=(*two_halves().needs, whole), hosts=(host(gpu(0), gpu(1)),), moves=0)
    assert [each.service for each in make_plan(asked).unplaced] == ["llm"]
    assert tidied(asked, 1)["llm-1"] == "h1/1"
    assert consolidated(asked, 1).lines[:4] == [
        "bb-1 moves from h1 GPU-h1-1 3g.40gb@0 to h1 GPU-h1-0 3g.40gb@4",
        WITHIN,
        "llm-1, which had no place, gets h1 GPU-h1-1 whole",
        "0 of 2 GPUs in use become empty by 1 move, which counts as 1 of at most 1",
    ]


def test_whoever_is_on_a_drained_gpu_is_not_said_to_have_no_place() -> None:
    needs = [*two_halves().needs, need("llm", "exclusive", 60000)]
    hosts = [host(gpu(0), gpu(1)), host(gpu(0, "h2", drain=Drain("drained by lin")), name="h2")]
    asked = problem(hosts, needs, [*two_halves().previous, place("llm", "0", on="h2", mode="whole")])
    assert [each.service for each in make_plan(asked).waiting] == ["llm"]
    assert consolidated(asked, 1).lines[:4] == [
        "h2 GPU-h2-0 (a100-sxm4-80gb) becomes empty",
        "bb-1 moves from h1 GPU-h1-1 3g.40gb@0 to h1 GPU-h1-0 3g.40gb@4",
        WITHIN,
        "llm-1, which waited on h2 GPU-h2-0 whole, gets h1 GPU-h1-1 whole",
    ]


def aged(seed: int) -> Problem:
    """Three hosts after half of the services that were there have gone."""
    chance = random.Random(seed)
    hosts = [
        host(*(chance.choice([gpu, gpu, l40s])(number, name) for number in range(4)), name=name, modes=("mig", "shared", "whole"))
        for name in ("h1", "h2", "h3")
    ]
    needs = [
        need(
            f"service-{number}",
            chance.choice(["slice", "slice", "shared"]),
            chance.choice([5000, 9000, 15000, 30000]),
            replicas=chance.choice([1, 1, 2]),
            priority=chance.choice([10, 50]),
            move_cost=chance.choice([1, 1, 3]),
            keep_room=chance.random() < 0.1,
            rules=Rules(spread=chance.choice(["host", "gpu", "pack"]), max_per_gpu=chance.choice([None, None, 1])),
        )
        for number in range(40)
    ]
    asked = problem(hosts, needs)
    first = make_plan(asked)
    stay = {each.service for each in chance.sample(needs, 20)}
    return replace(
        asked,
        needs=tuple(each for each in needs if each.service in stay),
        previous=tuple(each for each in first.placements if each.service in stay),
        preemption=chance.random() < 0.3,
    )


def costs(asked: Problem, base: t.Iterable[Placement], after: t.Iterable[Placement]) -> int:
    """What the moves of those cost who serve, and would stay where they are."""
    last, there = {each.name: each for each in asked.previous}, {each.name: each for each in after}
    dear = {each.service: each.move_cost for each in asked.needs}
    stayed = [each for each in base if each.name in last and same_place(last[each.name], each)]
    return sum(dear[each.service] for each in stayed if not same_place(each, there[each.name]))


@pytest.mark.parametrize("seed", range(40))
def test_nobody_pays_for_it(seed: int) -> None:
    asked = aged(seed)
    base, moves = make_plan(asked), seed % 7 + 1
    found = consolidated(asked, moves)
    assert planner_checker.complaints(asked, found.solution) == []
    assert costs(asked, base.placements, found.solution.placements) <= moves
    was, now = objective(asked, base), objective(asked, found.solution)
    assert [*now[:-6], now[-2]] >= [*was[:-6], was[-2]]
    # Not less spread, neither over hosts nor over GPUs beyond what hosts gain.
    assert now[-5:-3] >= was[-5:-3]
    assert order(asked, found.solution).outages == ()
    again = make_plan(replace(asked, previous=(*found.solution.placements, *found.solution.waiting)))
    assert (again.placements, again.layouts) == (found.solution.placements, found.solution.layouts)
    assert consolidated(asked, moves) == found


def test_gpus_do_become_empty() -> None:
    """The worlds above are such that the tests say something."""
    emptied = [
        objective(aged(seed), consolidated(aged(seed), 6).solution)[-2] - objective(aged(seed), make_plan(aged(seed)))[-2]
        for seed in range(20)
    ]
    assert sum(emptied) > 20


def test_whoever_two_plans_name_counts_by_the_one_that_stands() -> None:
    """As after a merge of two plans: ``aa`` serves on GPU 0, and to move it costs more than is allowed."""
    needs = [need(name, memory_mib=30000, move_cost=2) for name in ("aa", "bb")]
    before = [place("aa", "0:3g.40gb@0"), place("aa", "2:3g.40gb@0"), place("bb", "1:3g.40gb@0")]
    for previous in (before, before[::-1]):
        asked = problem([host(gpu(0), gpu(1), gpu(2))], needs, previous)
        assert tidied(asked, 1) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/1:3g.40gb@0"}


def test_nobody_moves_for_whom_it_helps_beyond_what_is_allowed() -> None:
    """When one GPU is empty, one more move would give ``train`` two; that is not what was allowed."""
    spread = need("aa", replicas=2, rules=Rules(spread="gpu"))
    needs = [spread, need("cc", adopted=True), need("train", "exclusive", 60000, count=2)]
    before = [place("aa", "0:1g.10gb@0"), place("aa", "1:1g.10gb@0", replica=2), place("cc", "2:1g.10gb@0")]
    asked = replace(problem([host(gpu(0), gpu(1), gpu(2))], needs, before), moves=1)
    assert [each.service for each in make_plan(asked).unplaced] == ["train"]
    found = consolidated(asked, 1).solution
    assert costs(asked, make_plan(asked).placements, found.placements) <= 1
    assert found == make_plan(asked)


def test_of_two_that_somebody_needs_beside_him_not_both_go() -> None:
    needs = [
        need("aa", replicas=2, rules=Rules(spread="pack")),
        need("dd", memory_mib=30000, rules=Rules(together=("aa",))),
        need("ee", memory_mib=30000, adopted=True),
        need("ff", memory_mib=30000, adopted=True),
    ]
    before = [
        place("aa", "0:1g.10gb@0"),
        place("aa", "0:1g.10gb@1", replica=2),
        place("dd", "1:3g.40gb@0"),
        place("ee", "1:3g.40gb@4"),
        place("ff", "0:3g.40gb@4", on="h2"),
    ]
    asked = problem([host(gpu(0), gpu(1)), host(gpu(0, "h2"), gpu(1, "h2"), name="h2")], needs, before)
    base, found = make_plan(asked), consolidated(asked, 2)
    assert costs(asked, base.placements, found.solution.placements) <= 2
    assert tidied(asked, 2)["dd-1"] == "h1/1:3g.40gb@0"


def test_whoever_moves_keeps_the_room_for_its_rollout() -> None:
    """With preemption ``tt`` might take the room of ``ss``; where both came from it had not."""
    needs = [need("qq", memory_mib=30000, adopted=True), need("ss", memory_mib=15000, priority=10, keep_room=True)]
    needs += [need("tt", memory_mib=15000, priority=90)]
    before = [place("qq", "0:3g.40gb@4", on="h2"), place("ss", "0:1g.20gb@0"), place("tt", "0:1g.20gb@2")]
    asked = replace(problem([host(gpu(0)), host(gpu(0, "h2"), name="h2")], needs, before), preemption=True)
    assert tidied(asked, 2)["ss-1"] == "h1/0:1g.20gb@0"


def test_where_a_stranger_computes_no_gpu_becomes_empty() -> None:
    stranger = (Instance(Slice(0, "3g.40gb"), outsiders=("stranger",)),)
    asked = problem(
        [host(gpu(0), gpu(1, mig=True, instances=stranger))],
        [need("aa", memory_mib=30000, adopted=True), need("bb", memory_mib=30000)],
        [place("aa", "0:3g.40gb@0"), place("bb", "1:3g.40gb@4")],
    )
    assert tidied(asked, 3) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/1:3g.40gb@4"}


def test_a_layout_that_policy_fixes_is_no_part_of_the_proof() -> None:
    asked = two_halves()
    pinned = Pin("mig", (Slice(0, "3g.40gb"),))
    asked = replace(asked, hosts=(host(gpu(0), gpu(1, pin=pinned)),))
    assert tidied(asked, 1) == {"aa-1": "h1/0:3g.40gb@0", "bb-1": "h1/0:3g.40gb@4"}
    assert "1 open GPU holds slices; 1 move of these among them leaves no fewer than 1" in consolidated(asked, 1).lines[-1]


def test_the_proof_knows_that_whoever_is_needed_may_go_after_those_that_need_it() -> None:
    """``dd`` has to be where ``aa`` or ``bb`` is; when it has gone to ``bb``, ``aa`` may go too."""
    needs = [need("aa", memory_mib=19000), need("bb", memory_mib=30000, adopted=True), need("dd", rules=Rules(together=("aa", "bb")))]
    hosts = [host(gpu(0, name), name=name) for name in ("h1", "h2")]
    before = [place("aa", "0:2g.20gb@0", on="h2"), place("dd", "0:1g.10gb@4", on="h2"), place("bb", "0:3g.40gb@0")]
    assert "no fewer than 1 while each slice stays as large (proven" in consolidated(problem(hosts, needs, before), 2).lines[-1]


def test_whoever_is_new_does_not_move() -> None:
    """The small board would suit it best, and would be in use for it alone."""
    from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30

    small = gpu(1, geometry=A30, board="a30", memory_mib=24576)
    asked = problem([host(gpu(0), small)], [need("aa"), need("bb", memory_mib=11000)], [place("aa", "0:1g.10gb@6")])
    assert where(make_plan(asked).placements[1]) == "h1/1:2g.12gb@0"
    assert consolidated(asked, 1).lines[:3] == [
        "h1 GPU-h1-1 (a30) becomes empty",
        "bb-1 goes to h1 GPU-h1-0 1g.20gb@4 and not to h1 GPU-h1-1 2g.12gb@0",
        "1 of 2 GPUs in use becomes empty by 0 moves, which count as 0 of at most 1",
    ]


def loose(seed: int) -> Problem:
    """Slices without rules on a dozen GPUs; some cost more than others, some are new."""
    chance = random.Random(seed)
    sizes = {"1g.10gb": 9000, "2g.20gb": 19000, "3g.40gb": 30000}
    spots = [("1g.10gb", 0), ("1g.10gb", 1), ("2g.20gb", 2), ("3g.40gb", 4)]
    found = [(number, *chance.choice(spots)) for number in range(12)]
    found += [(number, name, start) for number in range(12) for name, start in spots if chance.random() < 0.3]
    taken = sorted(set(found))
    needs = [
        need(f"service-{index:02d}", memory_mib=sizes[name], profile=name, move_cost=chance.choice([1, 1, 2, 3]))
        for index, (_number, name, _start) in enumerate(taken)
    ]
    before = [place(f"service-{index:02d}", f"{number}:{name}@{start}") for index, (number, name, start) in enumerate(taken)]
    return problem([host(*(gpu(number) for number in range(12)))], needs, [each for each in before if chance.random() < 0.9])


@pytest.mark.parametrize("seed", range(12))
def test_without_rules_nothing_is_left_of_what_is_proven(seed: int) -> None:
    asked, moves = loose(seed), seed + 1
    found = consolidated(asked, moves)
    assert costs(asked, make_plan(asked).placements, found.solution.placements) <= moves
    least = int(found.lines[-1].partition("no fewer than ")[2].split()[0])
    assert len({each.gpus for each in found.solution.placements}) == least


@QUICK
@given(problems(), st.integers(1, 6))
def test_on_any_fleet_the_plan_stays_right(asked: Problem, moves: int) -> None:
    base, found = make_plan(asked), consolidated(asked, moves).solution
    assert planner_checker.complaints(asked, found) == []
    assert {each.name for each in base.placements} <= {each.name for each in found.placements}
    gpus = [len({(each.host, uuid) for each in (*plan.placements, *plan.waiting) for uuid in each.gpus}) for plan in (base, found)]
    assert gpus[1] <= gpus[0] or len(found.placements) > len(base.placements)
    assert len(order(asked, found).outages) <= len(order(asked, base).outages)


def test_planning_needs_no_numpy_where_nobody_asks_for_it() -> None:
    assert consolidated(problem([], []), 0).lines == []
    assert "numpy" in sys.modules or not program.available()


def test_where_no_gpu_has_a_part_left_none_is_asked_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 16 GPUs was tried against all others, host by host."""
    asked: list[object] = []
    ask = consolidating.offers_of
    monkeypatch.setattr(consolidating, "offers_of", lambda *given: (asked.append(given), ask(*given))[1])
    names = [f"h{number}" for number in range(4)]
    there = [
        place(f"s-{name}-{number}-{start}", f"{number}:3g.40gb@{start}", on=name)
        for name in names
        for number in range(4)
        for start in (0, 4)
    ]
    hosts = [host(*(gpu(number, name, mig=True) for number in range(4)), name=name) for name in names]
    full = problem(hosts, [need(each.service, memory_mib=30000) for each in there], there)
    assert len(consolidated(full, 3).solution.placements) == 32
    assert not asked
