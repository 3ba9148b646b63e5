# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small fleets planned GPU by GPU: no search finds a better plan, what may only help never hurts, what is too much is left to others."""

from __future__ import annotations

import itertools
import random
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import planner
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Hint,
    Limit,
    Need,
    Problem,
    Proof,
    Quota,
    Resources,
    Rules,
    Workspace,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import exact, program, together
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.together import Together
from ansible_collections.gpuops.fleet.tests.bench.planner import metamorphic_world
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem, where, wired
from planner import metamorphic

BIG = 30000  # a 3g.40gb: 40192 MiB


def found(given: Problem) -> Together | None:
    """What it says of a fleet on which nobody has a place."""
    start = begin(given)
    waiting = [(each, replica) for each in given.needs for replica in range(1, each.replicas + 1)]
    return exact.plan_exactly(start.fleet, waiting, start.before, {}, False, True)


def placed(given: Problem) -> dict[str, str]:
    """Where everybody is; the checker finds nothing wrong, and that nobody else could be served is proven."""
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    assert solution.proof is not None
    assert solution.proof.more == ()
    return {each.name: where(each) for each in solution.placements}


@pytest.mark.parametrize("seed", range(24))
def test_what_must_not_matter_does_not_and_what_may_only_help_never_hurts(seed: int) -> None:
    assert set(metamorphic.judged(seed, 4)) <= {"unplaced"}


@pytest.mark.parametrize("seed", range(5))
def test_no_choice_of_hosts_serves_more(seed: int) -> None:
    """Whole GPUs, CPU, a port and services apart, against every way to give each service a host or none."""
    chance = random.Random(seed)
    hosts = [host(l40s(0, name), l40s(1, name), name=name, capacity=Resources(8, 8, None, None)) for name in ("a", "b", "c")]
    names = [f"s{number}" for number in range(6)]
    needs = [
        need(
            name,
            "exclusive",
            priority=chance.choice([50, 90]),
            resources=Resources(chance.choice([3, 5, 6]), chance.choice([2, 4, 5])),
            ports=(("http", 18001),) if chance.random() < 0.3 else (),
            rules=Rules(apart=(chance.choice(names),) if chance.random() < 0.4 else ()),
        )
        for name in names
    ]
    apart = {frozenset((one.service, other)) for one in needs for other in one.rules.apart if other != one.service}

    def fits(those: list[Need]) -> bool:
        cpus, memory = (sum(getattr(each.resources, what) for each in those) for what in ("cpus", "memory"))
        both = any(frozenset((one.service, other.service)) in apart for one, other in itertools.combinations(those, 2))
        return len(those) <= 2 and cpus <= 8 and memory <= 8 and sum(bool(each.ports) for each in those) <= 1 and not both

    def counted(those: t.Iterable[Need]) -> tuple[int, int]:
        priorities = [each.priority for each in those]
        return priorities.count(90), priorities.count(50)

    best = max(
        counted(each for each, there in zip(needs, choice, strict=True) if there < 3)
        for choice in itertools.product(range(4), repeat=len(needs))
        if all(fits([each for each, there in zip(needs, choice, strict=True) if there == one]) for one in range(3))
    )
    given = problem(hosts, [replace(each, rules=Rules(apart=tuple(o for o in each.rules.apart if o != each.service))) for each in needs])
    there = placed(given)
    assert counted(each for each in needs if f"{each.service}-1" in there) == best


def test_what_single_hosts_lack_is_known() -> None:
    """Together the hosts have CPU for four; each has it for one, whoever comes first."""
    hosts = [host(l40s(0, name), l40s(1, name), name=name, capacity=Resources(7, None, None, None)) for name in ("a", "b")]
    needs = [need("aa", "exclusive", replicas=2, resources=Resources(4)), need("bb", "exclusive", replicas=2, resources=Resources(3))]
    assert sorted(placed(problem(hosts, needs)).values()) == ["a/0", "a/1", "b/0", "b/1"]


def test_all_or_nothing_is_all_where_that_serves_more_and_nothing_where_it_does_not() -> None:
    group = need("group", "exclusive", replicas=3, rules=Rules(all_or_nothing=True))
    others = need("others", "exclusive", replicas=2, memory_mib=9000)
    assert set(placed(problem([host(l40s(0), l40s(1), l40s(2))], [group, others]))) == {"group-1", "group-2", "group-3"}
    assert set(placed(problem([host(l40s(0), l40s(1))], [group, others]))) == {"others-1", "others-2"}


def test_who_goes_together_with_a_service_is_served_beside_it() -> None:
    """The host with room for both is the one that the other would not have taken by itself."""
    hosts = [host(l40s(0, "a"), name="a"), host(l40s(0, "b"), l40s(1, "b"), name="b")]
    needs = [need("main", "exclusive"), need("side", "exclusive", rules=Rules(together=("main",)))]
    assert {place[0] for place in placed(problem(hosts, needs)).values()} == {"b"}


def test_joined_gpus_are_found_for_everybody_who_has_to_have_them() -> None:
    boards = wired([gpu(number) for number in range(4)], (0, 3), (1, 2))
    pairs = need("pairs", "exclusive", count=2, replicas=2, nvlink="required")
    assert sorted(placed(problem([host(*boards)], [pairs])).values()) == ["h1/0,3", "h1/1,2"]


def test_a_team_gets_what_others_lend_and_no_more() -> None:
    """Each has 1 GPU of its own. The third lends, the others borrow: together they have three."""
    hosts = [host(*(l40s(number) for number in range(5)), modes=("whole",))]
    needs = [need("one", "exclusive", replicas=2, team="aa"), need("two", "exclusive", replicas=2, team="bb")]
    quotas = tuple(Quota(team, (Limit("gpus", 1),), "life", team != "cc", team == "cc") for team in ("aa", "bb", "cc"))
    given = replace(problem(hosts, needs), quotas=quotas, workspaces=(Workspace("life"),))
    assert len(placed(given)) == 3
    answer = found(given)
    assert answer is not None
    assert dict(answer.most) == {50: 3}


def test_slices_are_no_larger_than_they_have_to_be() -> None:
    needs = [need(f"s{number}", memory_mib=9000, compute=0.1) for number in range(3)]
    assert {one.partition(":")[2].partition("@")[0] for one in placed(problem([host(gpu())], needs)).values()} == {"1g.10gb"}


def test_who_serves_already_stays_where_it_is() -> None:
    given = metamorphic_world.world(3, 4)
    first = make_plan(given)
    again = make_plan(planned(given, first))
    assert again.placements == first.placements
    assert again.displaced == ()


def test_a_place_that_a_rule_forbids_after_all_costs_nobody_else_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the program did not know a rule: what it proposes is left, and the fleet is planned as if it had said nothing."""
    given = problem([host(l40s(0, "a"), name="a"), host(l40s(0, "b"), name="b")], [need("one", "exclusive"), need("two", "exclusive")])
    same = {("one", 1): Hint("a", ("GPU-a-0",)), ("two", 1): Hint("a", ("GPU-a-0",))}
    monkeypatch.setattr(exact, "plan_exactly", lambda *_arguments: Together(same, {50: 2}, None, better=True, small=False))
    assert len(make_plan(given).placements) == 2


def test_a_fleet_that_is_too_large_or_keeps_room_is_left_to_the_program_for_equal_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem([host(gpu(0), gpu(1))], [need(f"s{number}", memory_mib=BIG) for number in range(6)])
    assert found(given) is not None
    assert found(replace(given, needs=(replace(given.needs[0], keep_room=True), *given.needs[1:]))) is None
    monkeypatch.setattr(exact, "MOST_SETS", 0)
    assert found(replace(given, needs=(need("whole", "exclusive"),))) is None
    monkeypatch.setattr(exact, "MOST_COLUMNS", 3)
    assert found(given) is None
    asked: list[int] = []
    plain = together.plan_together
    monkeypatch.setattr(together, "plan_together", lambda *arguments: (asked.append(1), plain(*arguments))[1])
    assert make_plan(given).proof == Proof((), None, program.version())
    assert asked


def test_a_large_program_is_solved_for_who_is_served_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem([host(gpu(0), gpu(1))], [need(f"s{number}", memory_mib=BIG) for number in range(6)])
    monkeypatch.setattr(exact, "MANY_COLUMNS", 3)
    answer = found(given)
    assert answer is not None
    assert (len(answer.hints), dict(answer.most)) == (4, {50: 4})
    few = problem([host(gpu(0), gpu(1))], [need(f"s{number}", memory_mib=BIG) for number in range(3)])
    start = begin(few)
    assert exact.plan_exactly(start.fleet, [(each, 1) for each in few.needs], {}, {}, True, True) is None


def test_somewhere_it_serves_more_than_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [metamorphic_world.world(seed, 4) for seed in range(40)]
    ours = [metamorphic.worth(each, make_plan(each)) for each in worlds]
    monkeypatch.setattr(exact, "MOST_COLUMNS", 0)
    others = [metamorphic.worth(each, make_plan(each)) for each in worlds]
    assert all(one >= other for one, other in zip(ours, others, strict=True))
    assert any(one[:3] > other[:3] for one, other in zip(ours, others, strict=True))


def test_without_the_solver_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "highspy", None)
    assert found(problem([host(gpu())], [need()])) is None
    assert len(planner.make_plan(problem([host(gpu())], [need()])).placements) == 1


@pytest.mark.parametrize("linked", [False, True])
def test_a_ninth_gpu_of_a_host_does_not_make_it_too_large_and_serves_no_fewer(linked: bool) -> None:
    """Of eight GPUs four can be chosen in 70 ways, of nine in 126, of sixteen in 1,820."""
    needs = [need("train", "exclusive", count=4, memory_mib=70000, team="t"), need("half", memory_mib=36000, replicas=2, team="t")]
    limit = Quota("t", (Limit("memory", 4 * 81920 + 9618),), "ws", borrow=True, lend=True)
    served = []
    for many in (8, 9, 16):
        uuids = frozenset(f"GPU-h1-{number}" for number in range(many))
        gpus = [gpu(number, mig=True) for number in range(many)]
        gpus = [replace(each, links=tuple(sorted(uuids - {each.uuid}))) for each in gpus] if linked else gpus
        given = replace(problem([host(*gpus)], needs), quotas=(limit,), workspaces=(Workspace("ws"),))
        assert found(given) is not None
        served.append(len(make_plan(given).placements))
    assert served[0] <= served[1] <= served[2]


def test_gpus_that_are_alike_are_chosen_in_a_row_and_others_in_every_way() -> None:
    states = begin(problem([host(*(gpu(number, mig=number < 12) for number in range(14)))], [])).fleet.hosts["h1"].gpus
    sets = exact._sets(states, 3)
    numbers = [tuple(int(state.gpu.uuid.rpartition("-")[2]) for state in each) for each in sets]
    assert len(set(numbers)) == len(numbers) < len(list(itertools.combinations(range(14), 3)))
    # As many of either kind as there can be, and those that follow each other.
    assert {(0, 1, 2), (3, 12, 13)} <= set(numbers)
    assert (0, 2, 3) not in numbers


def test_however_many_wait_it_is_found_how_many_of_them_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 991 on HiGHS refused how near to the best it was to come, and the answer was none."""
    monkeypatch.setattr(exact, "MANY_COLUMNS", 1)
    answer = found(problem([host(*(gpu(number) for number in range(4)))], [need(f"s{number}", replicas=500) for number in range(2)]))
    assert answer is not None
    assert answer.most == {50: 28}


@pytest.mark.parametrize("names", list(itertools.permutations("abc")))
def test_services_that_ask_for_other_ports_are_of_no_one_kind(names: tuple[str, ...]) -> None:
    """The first of a kind spoke for all: where it wanted two ports and the host has two, nobody else had any, and that was "proven"."""
    ports = [(("x", None), ("y", None)), (), ()]
    needs = [need(name, "exclusive", ports=each) for name, each in zip(names, ports, strict=True)]
    given = problem([host(*(l40s(number) for number in range(3)), ports=(18_000, 18_001))], needs)
    answer = found(given)
    assert answer is not None
    assert answer.most == {50: 3}
    assert len(placed(given)) == 3


@pytest.mark.parametrize("seed", [14, 16, 23, 27])
def test_names_do_not_decide_how_many_are_served_where_ports_are_few(seed: int) -> None:
    chance = random.Random(seed)
    hosts = tuple(
        host(
            *(l40s(number, name) for number in range(chance.choice([2, 3]))),
            name=name,
            ports=tuple(range(18_000, 18_000 + chance.choice([1, 2, 3]))),
            capacity=Resources(chance.choice([6, 8, 9, 10])),
        )
        for name in ("h1", "h2")
    )
    asked = [
        {"resources": Resources(chance.choice([2, 3, 4, 5])), "ports": chance.choice([0, 0, 1, 2]), "priority": chance.choice([50, 50, 90])}
        for _service in range(chance.choice([5, 6, 7]))
    ]
    served = set()
    for turn in (1, -1):
        needs = [
            need(f"s{number}", "exclusive", **{**each, "ports": tuple((f"p{port}", None) for port in range(each["ports"]))})
            for number, each in enumerate(asked[::turn])
        ]
        priorities = {each.service: each.priority for each in needs}
        served.add(tuple(sorted(priorities[name.rpartition("-")[0]] for name in placed(Problem(hosts, tuple(needs))))))
    assert len(served) == 1


def test_services_of_one_replica_are_no_crowd_that_wants_to_be_apart() -> None:
    """They are counted together, and whoever is alone has nobody to be apart from: fewer GPUs are opened."""
    answer = found(problem([host(gpu(0, name), name=name) for name in ("h1", "h2", "h3")], [need(f"s{number}") for number in range(5)]))
    assert answer is not None
    assert len({hint.gpus for hint in answer.hints.values()}) == 1
    together_ = found(problem([host(gpu(0, name), name=name) for name in ("h1", "h2", "h3")], [need("s", replicas=5)]))
    assert together_ is not None
    assert len({hint.gpus for hint in together_.hints.values()}) == 3


def two_sizes(*small: bool) -> Problem:
    """One that wants a GPU and one that wants two, on a host that has two, of which some report less (they have ECC), and on another."""
    several = [l40s(number, memory_mib=46_068 if each else 49_140) for number, each in enumerate(small)]
    hosts = [host(*several, modes=("whole",)), *(host(l40s(0, f"h{turn}"), name=f"h{turn}", modes=("whole",)) for turn in (2, 3))]
    needs = [need("one", "exclusive", priority=90), need("two", "exclusive", priority=50, count=2), need("old", "exclusive")]
    return problem(hosts, needs, [place("old", "0", on="h3", mode="whole")])


@pytest.mark.parametrize("columns", [0, exact.MOST_COLUMNS])
@pytest.mark.parametrize("small", list(itertools.product([False, True], repeat=2)))
def test_gpus_of_one_board_that_report_several_sizes_are_given_together(
    small: tuple[bool, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "MOST_COLUMNS", columns)
    assert set(placed(two_sizes(*small))) == {"one-1", "two-1", "old-1"}
