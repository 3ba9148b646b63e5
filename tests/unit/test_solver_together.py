# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All who wait looked at at once: never fewer served than one by one, a bound that no search exceeds; without a solver."""

from __future__ import annotations

import itertools
import random
import typing as t
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import problem as problem_room
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Drain,
    Limit,
    Need,
    Problem,
    Proof,
    Quota,
    Resources,
    Rules,
    Workspace,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proofs import NO_SOLVER, proof_lines
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import exact, program, together
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.alike import classes_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import stand
from ansible_collections.gpuops.fleet.tests.bench.planner import small_fleet
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100, gpu, host, l40s, mixed_hosts, need, place, problem

GIB = 1024


@pytest.fixture(autouse=True)
def many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these small fleets were too large to be planned GPU by GPU, which comes first (test_solver_exact.py)."""
    monkeypatch.setattr(exact, "MOST_COLUMNS", 0)


def crowd(seed: int, hosts: int = 2, services: int = 24, **more: t.Any) -> Problem:
    """More services than a few mixed hosts can serve."""
    chance = random.Random(seed)
    there = mixed_hosts(hosts, 4, 32)
    needs = []
    for number in range(services):
        isolation = chance.choice(["slice", "slice", "slice", "shared", "exclusive"])
        memory = {"slice": [5, 9, 15, 30, 38, 60], "shared": [8, 15, 30], "exclusive": [40]}[isolation]
        needs.append(
            Need(
                f"s{number:02}",
                "production",
                isolation,
                chance.choice(memory) * GIB,
                priority=chance.choice([10, 50, 90]),
                compute=chance.choice([None, 0.2, 0.3]) if isolation != "exclusive" else None,
                resources=Resources(chance.choice([1, 2, 6]), chance.choice([8, 32]) * GIB, 0, 0),
                team=chance.choice(["claims", "cards"]),
            )
        )
    return Problem(tuple(there), tuple(needs), **more)


def served(given: Problem) -> list[int]:
    """Replicas with a place, the highest priority first."""
    priority = {need.service: need.priority for need in given.needs}
    found = Counter(priority[place.service] for place in make_plan(given).placements)
    return [found[each] for each in (90, 50, 10)]


@pytest.mark.parametrize("seed", range(8))
def test_together_serves_at_least_what_one_by_one_does_and_every_rule_holds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = (Quota("claims", (Limit("memory", 150 * GIB),)), Quota("cards", (Limit("slices", 12), Limit("gpus", 1))))
    given = crowd(seed, quotas=quotas if seed % 2 else ())
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    both = served(given)
    with monkeypatch.context() as patched:
        patched.setattr(together, "plan_together", lambda *_arguments: None)
        alone = served(given)
    assert both >= alone
    assert solution.proof is not None
    assert all(more > 0 for _priority, more in solution.proof.more)


def test_somewhere_it_serves_more_than_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together_ = [served(crowd(seed)) for seed in range(4)]
    monkeypatch.setattr(together, "plan_together", lambda *_arguments: None)
    alone = [served(crowd(seed)) for seed in range(4)]
    assert any(one > other for one, other in zip(together_, alone, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_proven_is_what_a_search_through_all_choices_finds(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([9, 15, 30, 38]) for _each in range(7)]
    needs = tuple(Need(f"s{number}", "production", "slice", size * GIB) for number, size in enumerate(sizes))
    given = Problem((host(gpu(0), gpu(1)),), needs)
    # Every subset, largest first, is tried on its own: one that is served whole shows how many can be.
    cutter = Cutter(A100)
    profiles = {
        size: min(
            (each for each in A100.profiles if each.memory_mib >= size * GIB and "+" not in each.name), key=lambda p: (p.size, p.slices)
        )
        for size in set(sizes)
    }
    boards = {
        counts
        for number in range(8)
        for counts in itertools.combinations_with_replacement(sorted(each.name for each in profiles.values()), number)
        if stand(cutter, (), (), tuple(Counter(counts).items())) is not None
    }
    wanted = Counter(profiles[size].name for size in sizes)
    best = max(
        sum(min(wanted[name], (Counter(one) + Counter(other))[name]) for name in wanted)
        for one, other in itertools.product(boards, repeat=2)
    )
    solution = make_plan(given)
    assert len(solution.placements) == best
    assert solution.proof is not None
    assert solution.proof.more == ()


def test_who_has_a_place_stays_although_others_wait() -> None:
    given = crowd(1)
    first = make_plan(given)
    again = make_plan(Problem(given.hosts, given.needs, first.placements))
    assert again.placements == first.placements
    assert again.displaced == ()


@pytest.mark.parametrize("seed", range(4))
def test_on_a_large_fleet_that_serves_it_only_adds_to_what_one_by_one_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_room, "SMALL", 0)
    many = crowd(seed, services=30)
    first = make_plan(Problem(many.hosts, many.needs[:8]))
    later = Problem(many.hosts, many.needs, first.placements)
    both = {place.name for place in make_plan(later).placements}
    monkeypatch.setattr(together, "plan_together", lambda *_arguments: None)
    assert {place.name for place in make_plan(later).placements} <= both


def test_on_a_small_fleet_that_serves_two_are_served_in_place_of_a_larger_one() -> None:
    """Three slices: the largest first would take two of them."""
    needs = (need("a", memory_mib=4 * GIB, replicas=3, team="team"), need("b", memory_mib=15 * GIB, team="team"))
    given = problem([host(gpu(0, mig=True), modes=("mig",))], needs, [place("a", "0:1g.10gb@0")])
    solution = make_plan(replace(given, quotas=(Quota("team", (Limit("slices", 3),)),)))
    assert [place.name for place in solution.placements] == ["a-1", "a-2", "a-3"]


def test_a_spread_wish_is_worth_more_than_a_gpu_that_stays_closed() -> None:
    given = Problem((host(gpu(0, "a"), name="a"), host(gpu(0, "b"), name="b")), (Need("ocr", "production", "slice", 9 * GIB, replicas=2),))
    assert [place.host for place in make_plan(given).placements] == ["a", "b"]
    packed = Problem(given.hosts, (Need("ocr", "production", "slice", 9 * GIB, replicas=2, rules=Rules(spread="pack")),))
    solution = make_plan(packed)
    assert len({place.gpus for place in solution.placements}) == 1
    assert solution.proof == Proof((), 1, program.version())


def test_without_a_solver_a_plan_is_made_and_says_that_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "highspy", None)
    given = crowd(2)
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    assert solution.proof is None
    assert list(proof_lines(solution)) == [NO_SOLVER]
    assert program.version() is None
    with pytest.raises(program.SolverError, match="highspy is not installed"):
        program.Program().solve()


def test_what_is_proven_is_said_in_one_line() -> None:
    solution = make_plan(crowd(0))
    (line,) = proof_lines(solution)
    assert line.startswith(f"proven by {program.version()}: ")
    assert line.endswith("could be served" if solution.proof and solution.proof.more else "unless somebody else stops or moves")
    few = make_plan(Problem((host(gpu()),), (Need("ocr", "production", "slice", 9 * GIB),)))
    (line,) = proof_lines(few)
    assert line.endswith(": the plan uses 1 GPU; no plan uses fewer than 1, also if nobody wished to be spread")


def test_a_fleet_too_large_for_one_program_is_planned_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST_COLUMNS", 10)
    solution = make_plan(crowd(0))
    (line,) = proof_lines(solution)
    assert line.startswith("no gap is proven, and places were found one by one: the fleet is too large for the solver, or ")


def test_while_a_gpu_is_drained_it_is_said_why_no_gap_is_proven() -> None:
    before = (place("aa", "0", mode="whole"),)
    drained = replace(l40s(0), drain=Drain("until noon"))
    solution = make_plan(problem([host(drained, l40s(1))], [need("aa", "exclusive"), need("bb", "exclusive")], before))
    (line,) = proof_lines(solution)
    assert line.startswith("no gap is proven, and places were found one by one: who leaves a drained GPU")


@pytest.mark.parametrize("geometry", [A100, A30])
def test_what_can_be_added_to_a_board_can_stand_there(geometry: t.Any) -> None:
    cutter = Cutter(geometry)
    names = tuple(sorted(each.name for each in geometry.profiles if "+" not in each.name))
    found = together.additions(cutter, (), names)
    assert len(found) == (28 if geometry is A100 else 4)
    for counts in found:
        slices = stand(cutter, (), (), counts)
        assert slices is not None
        assert Counter(one.profile for one in slices) == dict(counts)
        assert together.additions(cutter, tuple(sorted(slices)), names) == ()


def test_mixes_of_sharers_fill_a_gpu_and_no_other_fits_beside() -> None:
    shapes = ((30, 0.5), (20, 0.2), (10, 0.0))
    mixes = together.shares(60, 1.0, 4, shapes)
    assert mixes is not None
    for counts in mixes:
        memory, compute, most = (
            60 - sum(shape[0] * n for shape, n in counts),
            1 - sum(shape[1] * n for shape, n in counts),
            4 - sum(n for _shape, n in counts),
        )
        assert memory >= 0
        assert compute >= -1e-9
        assert most >= 0
        assert not any(most and shape[0] <= memory and shape[1] <= compute + 1e-9 for shape in shapes)
    assert together.shares(10**6, 1e6, 64, tuple((size, 0.0) for size in range(1, 12))) is None


@pytest.mark.parametrize("seed", [100, 118])
def test_room_that_was_kept_in_vain_goes_to_others(seed: int) -> None:
    """With one more GPU the program hopes to serve one more of a priority, which a rule of its service keeps out in the end: those below
    are not to pay for that hope."""
    one = small_fleet.world(60, 8, seed)
    extra = host(gpu(0, "extra", mig=True), name="extra", modes=("mig", "shared", "whole"), sharing=("mps", "time-slice"))
    more = replace(one, hosts=(*one.hosts, extra))
    levels = len({each.priority for each in one.needs})
    assert objective(more, make_plan(more))[:levels] >= objective(one, make_plan(one))[:levels]


def test_gpus_that_have_no_room_do_not_make_the_program_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fleet that serves, nearly every GPU is full in a way of its own."""
    full = small_fleet.world(300, 40, 1)
    serving = make_plan(full)
    asked = tuple(
        need(f"new-{number:02}", isolation="slice", memory_mib=(8 + number % 4) * GIB, compute=0.1 + number / 1000) for number in range(60)
    )
    room = host(gpu(0, "room", mig=True), name="room", modes=("mig",))
    wished = replace(full, hosts=(*full.hosts, room), needs=(*full.needs, *asked), previous=serving.placements)
    monkeypatch.setattr(together, "MOST_COLUMNS", 3_000)
    proof = make_plan(wished).proof
    assert proof is not None
    assert (proof.unproven, proof.solver) == ("", program.version())


def test_the_gpus_of_one_replica_are_of_one_host_in_the_program_too() -> None:
    """A replica of four GPUs that no host has promises nothing and is in nobody's way, and one more GPU serves no fewer."""
    needs = [
        need("big", "exclusive", priority=80, count=4),
        need("part", memory_mib=15000),
        need("small", memory_mib=9000, replicas=2),
        need("whole", "exclusive", memory_mib=40000, replicas=4),
    ]
    others = [host(gpu(0, "h2"), name="h2"), host(gpu(0, "h3"), name="h3")]
    served = []
    for first in ((gpu(0),), (gpu(0), gpu(1))):
        solution = make_plan(problem([host(*first), *others], needs))
        served.append(len(solution.placements))
        assert solution.proof is not None
        assert 80 not in dict(solution.proof.more)
    assert served == [5, 6]


def test_the_order_in_which_a_host_names_its_modes_changes_nothing() -> None:
    found = []
    for turn in (1, -1):
        modes, sharing = ("mig", "shared", "whole")[::turn], ("mps", "time-slice")[::turn]
        hosts = [host(l40s(0, name), name=name, modes=modes, sharing=sharing) for name in ("h1", "h2")]
        hosts[1] = replace(hosts[1], modes=("mig", "shared", "whole"))
        found.append(classes_of(list(Fleet(problem(hosts, ())).hosts.values()), []))
    assert [len(each) for each in found] == [1, 1]


def lent(lend: bool) -> Problem:
    """Two GPUs with room for fourteen of the smallest slices, of which claims has four as its own; cards has as many and asks for one."""
    quotas = (
        Quota("claims", (Limit("memory", 40 * GIB),), "company", borrow=True),
        Quota("cards", (Limit("memory", 40 * GIB),), "company", lend=lend),
    )
    needs = (
        need("ocr", memory_mib=9 * GIB, replicas=12, team="claims", priority=50),
        need("speech", memory_mib=9 * GIB, team="cards", priority=90),
    )
    return replace(problem([host(gpu(0), gpu(1))], needs), quotas=quotas, workspaces=(Workspace("company"),))


def everybody(given: Problem) -> list[tuple[Need, int]]:
    return [(need, replica) for need in given.needs for replica in range(1, need.replicas + 1)]


@pytest.mark.parametrize("lend", [False, True])
def test_the_program_knows_what_teams_borrow_and_lend(lend: bool) -> None:
    """A slice of 9 GiB counts 9.5 or 9.75 GiB: four are within a team's own 40, and three more are what cards lends beside its one."""
    found = together.plan_together(begin(lent(lend)).fleet, everybody(lent(lend)), {})
    assert found is not None
    assert found.most == {90: 1, 50: 7 if lend else 4}
    assert Counter(service for service, _replica in found.hints) == {"speech": 1, "ocr": 7 if lend else 4}
    assert make_plan(lent(lend)).proof == Proof((), None, program.version())


@pytest.mark.parametrize(("replicas", "asked"), [(14, 1), (15, 0)])
def test_what_one_by_one_gives_is_asked_for_only_if_all_can_be_served(replicas: int, asked: int) -> None:
    given = problem([host(gpu(0), gpu(1))], [need("ocr", memory_mib=9 * GIB, replicas=replicas)])
    times: list[int] = []

    def others() -> tuple[dict[int, int], int]:
        times.append(1)
        return {50: replicas}, 2

    found = together.plan_together(begin(given).fleet, everybody(given), None, None, (), None, others)
    assert found is not None
    assert len(times) == asked
    assert (found.most, found.gpus, found.better) == (({50: 14}, 2, False) if asked else ({50: 14}, None, True))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("services", [8, 24])
def test_on_a_large_fresh_fleet_every_rule_holds_and_nobody_is_left_over_for_whom_there_is_a_place(
    seed: int, services: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = (
        Quota("claims", (Limit("memory", 90 * GIB),), "company", borrow=True),
        Quota("cards", (Limit("memory", 150 * GIB),), "company"),
    )
    given = crowd(seed, services=services, quotas=quotas, workspaces=(Workspace("company"),))
    monkeypatch.setattr(problem_room, "SMALL", 0)
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    assert make_plan(replace(given, previous=solution.placements)).placements == solution.placements
    with monkeypatch.context() as patched:
        patched.setattr(together, "plan_together", lambda *_arguments: None)
        alone = make_plan(given)
    assert planner_checker.complaints(given, alone) == []
    assert len(solution.placements) >= len(alone.placements)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("free", "more"), [(False, ()), (True, ((10, 1),))])
def test_where_somebody_gave_way_it_is_proven_of_who_is_left_over(
    free: bool, more: tuple[tuple[int, int], ...], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may be on one host with who came, which the program does not know: it sees a GPU that is free, if there is one."""
    monkeypatch.setattr(problem_room, "SMALL", 0 if large else 6_000)
    small = gpu(1, geometry=A30, board="a30", memory_mib=24 * GIB)
    needs = [
        need("aa", "exclusive", 40 * GIB, priority=10),
        need("bb", "exclusive", 40 * GIB, priority=90),
        need("cc", "exclusive", 20 * GIB, priority=10, rules=Rules(apart=("bb",))),
    ]
    before = (place("aa", "0", mode="whole"),)
    solution = make_plan(replace(problem([host(gpu(0), *([small] if free else []))], needs, before), preemption=True))
    assert [each.name for each in solution.placements] == ["bb-1"]
    assert [each.way for each in solution.displaced] == ["preempted"]
    assert solution.proof == Proof(more, None, program.version())


@pytest.mark.parametrize("sizes", sorted(set(itertools.permutations((46_068, 49_140, 49_140)))))
def test_each_gpu_of_a_replica_has_at_least_what_it_needs_and_no_more_than_others_need(sizes: tuple[int, ...]) -> None:
    """Boards of one host that report two sizes: who needs a large one has one, and the two others are a pair."""
    given = problem(
        [host(*(l40s(number, memory_mib=size) for number, size in enumerate(sizes)), modes=("whole",))],
        [need("big", "exclusive", 47_000), need("any", "exclusive", 40_000, count=2)],
    )
    fleet = begin(given).fleet
    found = together.plan_together(fleet, everybody(given), {})
    assert found is not None
    assert found.most == {50: 2}
    large = {state.gpu.uuid for state in fleet.hosts["h1"].gpus if state.gpu.memory_mib > 47_000}
    assert set(found.hints["big", 1].gpus) < large
    assert len({*found.hints["big", 1].gpus, *found.hints["any", 1].gpus}) == 3
    more = replace(given, needs=(replace(given.needs[0], replicas=3), given.needs[1]))
    found = together.plan_together(fleet, everybody(more), {})
    assert found is not None
    assert found.most == {50: 2}
