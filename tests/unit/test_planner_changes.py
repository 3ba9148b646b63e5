# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes that would give a replica its place: each told one does, the cause is the one that is there, and the search is bounded."""

from __future__ import annotations

import os
import random
import typing as t
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import edited, propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Bar,
    Limit,
    Pin,
    Problem,
    Quota,
    Resources,
    Rules,
    Workspace,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal, told
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import CAUSES, COSTS
from ansible_collections.gpuops.fleet.tests.bench.planner import explanations, planted, small_fleet
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem

CASES = {case.name: case for case in planted.cases(quick=True)}


def proposals(asked: Problem, **more: object) -> list[Proposal]:
    return propose(asked, make_plan(asked), **more)  # type: ignore[arg-type]


def places(asked: Problem, proposal: Proposal, number: int = 0) -> bool:
    """Does the change give the replica a place when the fleet is planned again with it?"""
    after = make_plan(edited(planned(asked, make_plan(asked)), proposal.changes[number].edits))
    return (proposal.service, proposal.replica) in {(each.service, each.replica) for each in after.placements}


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_is_named_and_each_change_that_is_told_gives_the_service_its_place(name: str) -> None:
    found = explanations.judged(CASES[name])
    assert found["planted"]
    assert found["wrong"] == []
    assert found["named"] == found["cause"]
    assert found["changes"]


def test_causes_and_kinds_are_words_of_the_fixed_lists() -> None:
    for case in list(CASES.values())[::7]:
        for each in propose(case.problem, make_plan(case.problem), case.leases):
            assert each.cause in CAUSES
            assert all(change.kind in COSTS and change.cost >= COSTS[change.kind] for change in each.changes)


def test_the_first_change_is_the_cheapest() -> None:
    for case in list(CASES.values())[::5]:
        for each in propose(case.problem, make_plan(case.problem), case.leases):
            assert [change.cost for change in each.changes] == sorted(change.cost for change in each.changes)


def test_nothing_is_proposed_where_everybody_has_a_place() -> None:
    assert proposals(problem([host(gpu())], [need()])) == []


def crowd(seed: int) -> Problem:
    made = planted.chance(seed)
    full = [replace(each, replicas=each.replicas + 5) for each in made.needs]
    return Problem(tuple(made.hosts), (*full, made.target))


@pytest.mark.parametrize("seed", [3, 4])
def test_every_change_that_is_told_in_a_crowd_of_many_does_what_it_says(seed: int) -> None:
    asked = crowd(seed)
    solution = make_plan(asked)
    had = {(each.service, each.replica) for each in solution.placements}
    found = propose(asked, solution)
    assert len(found) == len(solution.unplaced) > 4
    assert sum(bool(each.changes) for each in found) >= len(found) / 2
    for each in found:
        for change in each.changes:
            after = make_plan(change.apply(planned(asked, solution)))
            now = {(place.service, place.replica) for place in after.placements}
            assert (each.service, each.replica) in now, change
            assert {f"{service}-{number}" for service, number in had - now} <= set(change.lost), change


def test_the_order_of_the_input_changes_nothing() -> None:
    asked = crowd(3)
    mixed = list(asked.needs), list(asked.hosts)
    for part in mixed:
        random.Random(1).shuffle(part)
    assert proposals(replace(asked, needs=tuple(mixed[0]), hosts=tuple(mixed[1]))) == proposals(asked)


def test_planning_again_from_the_plan_tells_the_same() -> None:
    asked = crowd(4)
    solution = make_plan(asked)
    again = planned(asked, solution)
    assert propose(again, make_plan(again)) == propose(asked, solution)


def test_without_work_left_the_cause_is_named_and_no_change_is_told_and_what_helps_stays_as_it_was() -> None:
    asked = problem([host(gpu(cordoned=True))], [need()])
    found = proposals(asked, budget=0)
    assert [(each.cause, each.changes) for each in found] == [("cordon", ())]
    solution = make_plan(asked)
    assert told(solution, found) == solution


def test_a_quota_is_raised_by_what_is_missing_and_not_by_less() -> None:
    quotas = (Quota("claims", (Limit("memory", 45000), Limit("slices", 20))),)
    asked = replace(problem([host(gpu(), gpu(1))], [need(memory_mib=40000, team="claims", replicas=2)]), quotas=quotas)
    (found,) = proposals(asked)
    assert (found.cause, found.changes[0].kind) == ("quota", "quota")
    assert found.changes[0].sentence == "raise the quota of claims by 35384 MiB (fleet_quotas)"
    assert places(asked, found)
    for most in (80384, 80383):
        raised = replace(asked, quotas=(Quota("claims", (Limit("memory", most), Limit("slices", 20))),))
        assert len(make_plan(raised).unplaced) == (0 if most == 80384 else 1)


def test_no_more_hosts_are_told_than_it_takes() -> None:
    asked = problem(
        [host(gpu())], [need("found", "exclusive", adopted=True), need("zz", "exclusive", replicas=5)], (place("found", "0", mode="whole"),)
    )
    found = proposals(asked)
    assert {each.changes[0].sentence for each in found} == {
        "add 5 hosts of environment 'production', each with a free GPU (a100-sxm4-80gb)"
    }
    (edit,) = found[0].changes[0].edits
    fewer = edited(planned(asked, make_plan(asked)), [edit._replace(value=edit.value[1:])])
    assert len(make_plan(fewer).unplaced) == 1


def test_no_more_hosts_are_told_than_it_takes_though_replicas_would_rather_be_spread() -> None:
    asked = problem([host(gpu(0, mig=True), gpu(1, mig=True))], [need("ocr", memory_mib=9000, replicas=200)])
    assert len(make_plan(asked).unplaced) == 186
    # Seven slices are on a GPU.
    assert {each.changes[0].sentence for each in proposals(asked)} == {
        "add 27 hosts of environment 'production', each with a free GPU (a100-sxm4-80gb)"
    }


def test_two_things_in_the_way_of_one_host_are_one_change() -> None:
    asked = problem(
        [host(gpu(cordoned=True), capacity=Resources(4, 1000, None, None))],
        [need(resources=Resources(8, 2000), rules=Rules(apart=("other",)))],
    )
    (found,) = proposals(asked)
    assert found.changes[0].sentence == (
        "h1 GPU-h1-0 is cordoned: take it out of fleet_cordoned_gpus; and ask for 4 cpus in place of 8 cpus: h1 has no more left; "
        "and ask for 1000 MiB memory in place of 2000 MiB memory: h1 has no more left"
    )
    assert places(asked, found)


def test_a_move_is_proposed_where_moves_are_not_allowed_and_who_moves_is_named() -> None:
    """Two slices stand so that no 3g fits on either GPU; one of them can go beside the other."""
    before = (place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@4"), place("cc", "1", mode="whole"))
    needs = [need("aa"), need("bb"), need("cc", "exclusive", adopted=True), need("zz", memory_mib=30000)]
    asked = problem([host(gpu(0, slices="1g.10gb@0 1g.10gb@4"), gpu(1))], needs, before)
    (found,) = proposals(asked)
    assert found.cause == "in use"
    assert found.changes[0].kind == "moves"
    assert found.changes[0].sentence.startswith("allow fleet_moves: 1, and ")
    assert places(asked, found)


def test_replicas_that_one_change_serves_are_told_it_together_and_the_rest_something_else() -> None:
    asked = problem([host(gpu(0, cordoned=True)), host(l40s(0, "h2"), name="h2")], [need(memory_mib=35000, replicas=3)])
    found = proposals(asked)
    assert [each.changes[0].kind for each in found] == ["uncordon", "uncordon", "hosts"]


@pytest.mark.parametrize(("services", "gpus", "seed"), [(160, 16, 2), (300, 48, 2)])
def test_what_is_told_in_a_crowded_fleet_is_true_of_the_whole_fleet(services: int, gpus: int, seed: int) -> None:
    """Others who wait take new hosts, too, and what teams lend each other may change hands: neither may make a sentence untrue."""
    given_ = small_fleet.world(services, gpus, seed)
    solution = make_plan(given_)
    again = planned(given_, solution)
    had = {each.name for each in solution.placements}
    told_ = propose(given_, solution)
    assert len(told_) == len(solution.unplaced)
    assert any(each.changes[0].kind == "hosts" for each in told_)
    after: dict[t.Any, set[str]] = {}
    for each in told_:
        change = each.changes[0]
        if change.edits not in after:
            after[change.edits] = {place.name for place in make_plan(change.apply(again)).placements}
        assert f"{each.service}-{each.replica}" in after[change.edits], change.sentence
        assert had - after[change.edits] <= set(change.lost), change.sentence


@pytest.mark.parametrize("crowd", [False, True])
def test_one_process_says_what_two_say(crowd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []
    fork = os.fork

    def counted() -> int:
        forked.append(fork())
        return forked[-1]

    monkeypatch.setattr(os, "fork", counted)
    given_ = small_fleet.crowd(60, 12, 3) if crowd else small_fleet.world(160, 24, 3)
    found = []
    for processors in ({0}, {0, 1}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, able=processors: able)
        solution = make_plan(given_)
        found.append((solution, propose(given_, solution), len(forked)))
    assert found[0] == (*found[1][:2], 0)
    assert found[1][2] > 1


def test_whoever_loses_a_place_by_preemption_is_named_also_where_others_who_wait_use_it() -> None:
    """A switch for the whole site: the first takes a GPU by it, and who comes after it takes another."""
    before = (place("low", "0", mode="whole"), place("low", "1", replica=2, mode="whole"))
    low = need("low", "exclusive", replicas=2, priority=10)
    top, mid = need("top", "exclusive", priority=30), need("mid", "exclusive", priority=20)
    (alone,) = proposals(problem([host(l40s(0), l40s(1))], [low, top], before))
    assert (alone.changes[0].kind, alone.changes[0].lost) == ("preemption", ("low-1",))
    both = proposals(problem([host(l40s(0), l40s(1))], [low, mid, top], before))
    assert {(each.changes[0].kind, each.changes[0].lost) for each in both} == {("preemption", ("low-1", "low-2"))}
    assert {each.changes[0].sentence for each in both} == {"allow fleet_preemption: low-1 and low-2 would give way"}


def test_preemption_is_no_change_where_somebody_else_would_lose_a_place_by_it() -> None:
    small = need("small", "exclusive", priority=10, models=("l40s",))
    wide = need("wide", "exclusive", priority=10, models=("a100",))
    before = (place("small", "0", on="h2", mode="whole"), place("wide", "0", mode="whole"))
    hosts = [host(gpu(0)), host(l40s(0, "h2"), name="h2")]
    top = need("top", "exclusive", priority=30, models=("a100",))
    mid = need("mid", "exclusive", priority=20, models=("l40s",))
    found = {each.service: each.changes[0] for each in proposals(problem(hosts, [small, wide, mid, top], before))}
    assert (found["top"].kind, found["top"].lost) == ("stop", ("wide-1",))
    assert (found["mid"].kind, found["mid"].lost) == ("stop", ("small-1",))


def test_each_who_waits_is_told_of_hosts_of_its_own_environment() -> None:
    """Nobody may move what is there, and so many wait that all are asked together. What each environment lacks is its own."""
    words = ("production", "test")
    names = [(f"{word}-{number}", word) for word in words for number in range(5)]
    held = [need(f"{name}-held", "exclusive", adopted=True, environment=word) for name, word in names]
    wide = [need(f"{word}-{number:02}", "exclusive", environment=word) for word in words for number in range(30)]
    hosts = [host(gpu(0, name), name=name, environment=word) for name, word in names]
    before = [place(f"{name}-held", "0", on=name, mode="whole") for name, _word in names]
    found = proposals(problem(hosts, [*held, *wide], before))
    assert len(found) == 60
    for each in found:
        word = each.service.partition("-")[0]
        assert each.changes[0].sentence == f"add 30 hosts of environment '{word}', each with a free GPU (a100-sxm4-80gb)"


def test_a_board_that_the_gate_refuses_is_not_told_where_another_would_do() -> None:
    barred = need("new", "exclusive", 20000, bars={("h2", "l40s"): Bar("compute capability 8.9 is below 9.0", "")})
    held = [need(name, "exclusive", adopted=True) for name in ("aa", "bb")]
    before = (place("aa", "0", mode="whole"), place("bb", "0", on="h2", mode="whole"))
    hosts = [host(gpu(0)), host(l40s(0, "h2"), name="h2")]
    for new, board in ((barred, "a100-sxm4-80gb"), (replace(barred, bars={}), "l40s")):
        (found,) = proposals(problem(hosts, [*held, new], before))
        assert found.sentence == f"add a host of environment 'production' with a free GPU ({board})"


def test_fewer_gpus_than_a_host_has_are_asked_for_where_that_is_all_it_takes() -> None:
    """Sixteen are more than any host has; of its four GPUs two are free."""
    busy = need("low", "exclusive", priority=10, count=2)
    asked = problem([host(*(gpu(number) for number in range(4)))], [busy, need("wide", "exclusive", priority=50, count=16)])
    asked = replace(asked, previous=(place("low", "0,1", mode="whole"),))
    (found,) = proposals(asked)
    line = "ask for 2 GPUs in place of 16 ('count'): h1 has no more of one board that are free"
    assert (found.cause, found.changes[0].sentence) == ("count", line)
    assert places(asked, found)


def both_missing(most: int) -> Problem:
    """A GPU that is full, and thirty services of two teams that would need both another one and a higher quota."""
    needs = [need(f"ocr-{number:02}", memory_mib=35000, team=("claims", "fraud")[number % 2]) for number in range(30)]
    quotas = (
        Quota("claims", (Limit("memory", most), Limit("slices", 8)), "company"),
        Quota("fraud", (Limit("memory", 3 * most),), "company"),
    )
    spaces = (Workspace("company", (Limit("memory", 4 * most),)),)
    hosts = [host(gpu()), *(host(name=f"staging-{number}", environment="staging") for number in range(15))]
    asked = problem(hosts, [need("found", "exclusive", adopted=True), *needs], (place("found", "0", mode="whole"),))
    return replace(asked, quotas=quotas, workspaces=spaces)


def test_where_quotas_and_hosts_are_missing_both_are_told_and_nobody_is_left_without_a_word() -> None:
    asked = both_missing(81920)
    found = proposals(asked)
    assert len(found) == 30
    first, second = (next(each for each in found if each.service == name) for name in ("ocr-28", "ocr-29"))
    assert first.sentence == (
        "raise the quota of claims by 509 GiB and the quota of claims by 52 memory slices and that of workspace company by 858 GiB"
        " and the quota of 1 other team that waits (fleet_quotas);"
        " and add 15 hosts of environment 'production', each with a free GPU (a100-sxm4-80gb)"
    )
    assert second.sentence.startswith(
        "raise the quota of fraud by 349 GiB and that of workspace company by 858 GiB and the quota of 1 other"
    )
    assert make_plan(first.changes[0].apply(planned(asked, make_plan(asked)))).unplaced == ()


def test_whom_no_quota_keeps_out_is_told_of_hosts_alone() -> None:
    found = proposals(both_missing(4 * 40960))
    alone = Counter(each.sentence for each in found if "quota" not in each.sentence)
    # Two for claims, which is allowed 8 memory slices, and twelve for fraud.
    assert alone == {"add 7 hosts of environment 'production', each with a free GPU (a100-sxm4-80gb)": 14}


def test_of_many_teams_that_only_their_quotas_keep_out_each_is_told_of_its_own() -> None:
    teams = [f"team-{number:03}" for number in range(100)]
    hosts = [host(*(gpu(number, f"h{at}") for number in range(8)), name=f"h{at}") for at in range(13)]
    asked = problem(hosts, [need(f"of-{team}", "exclusive", team=team) for team in teams])
    asked = replace(asked, quotas=tuple(Quota(team, (Limit("gpus", 0),)) for team in teams))
    found = proposals(asked)
    assert [each.sentence for each in found] == [f"raise the quota of {team} by 1 GPU (fleet_quotas)" for team in teams]
    assert all(places(asked, each) for each in (found[0], found[50], found[-1]))


def test_where_no_kind_of_gpu_would_serve_a_host_is_told_with_what_the_service_could_ask_instead() -> None:
    busy = place("found", "0", mode="whole")
    for more, words in (
        ({"profile": "1g.10gb"}, "leave 'profile' out"),
        ({"models": ("l40s",)}, "leave 'models' out"),
        ({"profile": "1g.10gb", "models": ("l40s",)}, "leave 'profile' out; and leave 'models' out"),
    ):
        asked = problem([host(gpu())], [need("found", "exclusive", adopted=True), need(memory_mib=60000, replicas=2, **more)], (busy,))
        found = proposals(asked)
        hosts = "add 2 hosts of environment 'production', each with a free GPU (a100-sxm4-80gb)"
        assert [each.sentence for each in found] == [f"{words}; and {hosts}"] * 2
        assert all(places(asked, each) for each in found)


SHARED_ONLY, WHOLE_ONLY, MIG_ONLY = ({"modes": (mode,)} for mode in ("shared", "whole", "mig"))
#: (the fleet, its leases, the cause, what is told first)
FIRST: dict[str, tuple[Problem, dict[str, str], str, str]] = {
    "a slice where GPUs are shared": (
        problem([host(l40s(), **SHARED_ONLY)], [need()]),
        {},
        "profile",
        "write 'isolation: shared': h1 has shared GPUs",
    ),
    "a slice where GPUs are shared in another way": (
        problem([host(l40s(), sharing=("mps",), **SHARED_ONLY)], [need()]),
        {},
        "profile",
        "write 'isolation: shared' and 'sharing: mps': h1 has shared GPUs",
    ),
    "a slice where GPUs are whole": (
        problem([host(l40s(), **WHOLE_ONLY)], [need(compute=0.5)]),
        {},
        "profile",
        "write 'isolation: exclusive', without 'compute': h1 has whole GPUs",
    ),
    "a slice where only MIG is allowed and no board has it": (
        problem([host(l40s(), **MIG_ONLY)], [need()]),
        {},
        "profile",
        "allow 'whole' in fleet_gpu_modes of h1; and write 'isolation: exclusive': h1 has whole GPUs",
    ),
    "a profile and more memory than any slice has": (
        problem([host(gpu())], [need(memory_mib=85000, profile="1g.10gb")]),
        {},
        "profile",
        "leave 'profile' out and ask for no more than 80384 MiB, the largest slice there",
    ),
    "less memory and less compute": (
        problem(
            [host(gpu(mig=True))],
            [need("large", memory_mib=39000), need("small", memory_mib=19000), need("ocr", memory_mib=30720, compute=0.4)],
            [place("large", "0:4g.40gb@0"), place("small", "0:2g.20gb@4")],
        ),
        {},
        "in use",
        "ask for 1g.20gb (19968 MiB and 0.14 of the compute) or less: h1 GPU-h1-0 has room for it",
    ),
    "another way of sharing": (
        problem(
            [host(l40s(), sharing=("mps", "time-slice"), **SHARED_ONLY)],
            [need("other", "shared", 4000), need("ocr", "shared", 4000, sharing="mps")],
            [place("other", "0", mode="shared")],
        ),
        {},
        "in use",
        "write 'sharing: time-slice', as GPUs of h1 are shared",
    ),
    "a profile and nothing else, where no board has it": (
        problem([host(l40s(), **WHOLE_ONLY)], [need(profile="2g.20gb", memory_mib=0)]),
        {},
        "profile",
        "write 'isolation: exclusive' and how much 'memory' it needs, up to 46068 MiB, without 'profile': h1 has whole GPUs",
    ),
    "a pinned GPU that is shared in another way": (
        problem([host(l40s(pin=Pin("shared", sharing="time-slice")))], [need(isolation="shared", memory_mib=4000, sharing="mps")]),
        {},
        "pinned layout",
        "write 'sharing: time-slice', as GPUs of h1 are shared",
    ),
    "a pinned slice that is a little too small": (
        problem([host(gpu(slices="1g.10gb@0", pin=Pin("mig", slices=(Slice(0, "1g.10gb"),))), modes=("whole",))], [need(memory_mib=10240)]),
        {},
        "pinned layout",
        "take h1 GPU-h1-0 out of fleet_gpu_layouts and allow 'mig' in fleet_gpu_modes",
    ),
    "the lease that ends first": (
        problem(
            [host(l40s(), shared_max=2, **SHARED_ONLY)],
            [need(name, "shared", 4000) for name in ("nb", "nc", "ocr")],
            [place(name, "0", mode="shared") for name in ("nb", "nc")],
        ),
        {"nb-1": "2026-12-09", "nc-1": "2026-12-03"},
        "policy mode",
        "wait for h1 GPU-h1-0 until the lease of nc-1 ends on 2026-12-03, and remove the manifest of nc then",
    ),
    "fewer GPUs": (
        problem(
            [host(*(gpu(number) for number in range(4)))],
            [need("other", "exclusive"), need("ocr", "exclusive", count=4)],
            [place("other", "1", mode="whole")],
        ),
        {},
        "in use",
        "ask for 3 GPUs in place of 4 ('count'): h1 has no more that are free",
    ),
    "less memory of the host, of all of its replicas": (
        problem(
            [host(gpu(mig=True), capacity=Resources(64, 100_000))],
            [need(replicas=3, resources=Resources(1, 40_000))],
        ),
        {},
        "host memory",
        "ask for 33333 MiB memory in place of 40000 MiB memory: h1 has no more left",
    ),
    "others move before a lease is waited for": (
        replace(
            problem(
                [host(gpu(0, mig=True), gpu(1, mig=True))],
                [need("nb"), need("other"), need("ocr", memory_mib=85000)],
                [place("nb", "0:1g.10gb@0"), place("other", "1:1g.10gb@0")],
            ),
            moves=3,
        ),
        {"nb-1": "2026-12-01"},
        "profile",
        "the largest slice of a100-sxm4-80gb has 80384 MiB: ask for no more",
    ),
    "another environment, and another isolation there": (
        problem([host(l40s(), environment="staging")], [need(models=("l40s",))]),
        {},
        "environment",
        "write environment 'staging'; and write 'isolation: exclusive': h1 has whole GPUs",
    ),
    "another environment, and another board there": (
        problem([host(gpu(), environment="staging")], [need(models=("h100",))]),
        {},
        "environment",
        "write environment 'staging'; and let it run on a100-sxm4-80gb too: change 'models' or 'not_models'",
    ),
    "what a shared GPU has left": (
        problem(
            [host(l40s(), **SHARED_ONLY)],
            [
                need("ocr", "shared", 20000, priority=50),
                need("high", "shared", 20000, priority=90),
                need("low", "shared", 21000, priority=10),
            ],
            [place("high", "0", mode="shared"), place("low", "0", mode="shared")],
        ),
        {},
        "in use",
        "ask for 4044 MiB or less: h1 GPU-h1-0 has no more left to share",
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_what_the_owner_can_write_is_told_first_and_word_for_word(name: str) -> None:
    asked, leases, cause, sentence = FIRST[name]
    found = proposals(asked, leases=leases)[0]
    assert (found.cause, found.changes[0].sentence) == (cause, sentence)
    assert places(asked, found)


@pytest.mark.parametrize(
    "asked",
    [
        problem(
            [host(gpu(mig=True))],
            [
                need("base", replicas=2, priority=20),
                need("cee", memory_mib=39000, priority=90),
                need("want", memory_mib=39000, priority=80),
            ],
            [place("base", "0:1g.10gb@0"), place("base", "0:1g.10gb@1", replica=2), place("cee", "0:3g.40gb@4")],
        ),
        problem(
            [host(l40s(), **SHARED_ONLY)],
            [
                need("base", "shared", 10240, replicas=2, priority=20),
                need("cee", "shared", 20480, priority=90),
                need("want", "shared", 20480, priority=80),
            ],
            [place("base", "0", mode="shared"), place("base", "0", replica=2, mode="shared"), place("cee", "0", mode="shared")],
        ),
    ],
    ids=["slices", "shares"],
)
def test_two_lower_ones_give_way_where_one_would_be_enough_that_is_higher(asked: Problem) -> None:
    (found,) = proposals(asked)
    sentences = [change.sentence for change in found.changes]
    assert sentences[1:] == ["allow fleet_preemption: base-1 and base-2 would give way"]
    assert all(places(asked, found, number) for number in range(2))


def test_what_only_one_slice_of_a_gpu_has_is_left_out_before_the_size_changes() -> None:
    asked = problem(
        [host(gpu(mig=True))],
        [need("base", profile="1g.10gb+me", memory_mib=0), need("want", profile="1g.10gb+me", memory_mib=0)],
        [place("base", "0:1g.10gb+me@0")],
    )
    assert proposals(asked)[0].changes[0].sentence == "ask for 1g.10gb (9856 MiB): h1 GPU-h1-0 has room for it"


@pytest.mark.parametrize("isolation", ["slice", "exclusive", "shared"])
def test_a_gpu_that_a_guest_has_is_lost_and_not_too_small(isolation: str) -> None:
    away = gpu(geometry=None, memory_mib=0, blocked="held by vfio for guest vm1")
    asked = problem([host(away, modes=("mig", "whole", "shared"))], [need(isolation=isolation)])
    assert [each.cause for each in proposals(asked)] == ["lost"]


def test_of_many_replicas_without_a_host_the_last_are_told_how_many_all_need() -> None:
    asked = problem([host(gpu(0), gpu(1)), host(gpu(0, "h2"), name="h2")], [need(replicas=8, rules=Rules(max_per_host=1))])
    found = proposals(asked)
    assert [each.changes[0].sentence for each in found] == ["raise its 'max_per_host' to 2"] * 2 + ["raise its 'max_per_host' to 4"] * 4
    assert all(places(asked, each) for each in found)


def test_of_sharers_no_more_are_asked_to_go_than_it_takes() -> None:
    found = proposals(FIRST["what a shared GPU has left"][0])[0]
    assert found.changes[1].sentence == "allow fleet_preemption: low-1 would give way"


def test_of_several_things_in_the_way_none_is_told_that_goes_with_another() -> None:
    asked = problem([host(gpu(), **WHOLE_ONLY)], [need("store"), need(rules=Rules(together=("store",)))])
    found = proposals(asked)
    assert {(each.service, each.cause, each.sentence) for each in found} == {
        (service, "policy mode", "allow 'mig' in fleet_gpu_modes of h1") for service in ("store", "ocr")
    }
    assert all(places(asked, each) for each in found)


def test_whoever_gives_way_is_named_though_it_is_not_for_the_service_that_they_do() -> None:
    """With MIG the higher one takes the GPU, and the service has a slice beside it: it needs no higher priority of its own."""
    needs = [need("low", "exclusive", priority=20), need("high", priority=50), need("ocr", priority=20)]
    asked = replace(problem([host(gpu(), **WHOLE_ONLY)], needs, [place("low", "0", mode="whole")]), preemption=True)
    found = next(each for each in proposals(asked) if each.service == "ocr")
    assert (found.cause, found.changes[0].sentence) == ("policy mode", "allow 'mig' in fleet_gpu_modes of h1: low-1 would give way")
    assert found.changes[0].lost == ("low-1",)
    assert places(asked, found)


def test_a_part_stays_where_more_would_have_to_go_without_it() -> None:
    """One of two that keep away from it has to go for its GPU; the other need not, if they may be on one host."""
    rules = Rules(max_per_gpu=1)
    needs = [need("old", "exclusive", replicas=2, priority=20, rules=rules), need(rules=Rules(apart=("old",)), priority=20)]
    before = [place("old", "0", mode="whole"), place("old", "1", mode="whole", replica=2)]
    (found,) = proposals(problem([host(gpu(0), gpu(1))], needs, before))
    assert found.changes[0].sentence.endswith("; and let it be on one host with old ('apart')")
    assert len(found.changes[0].lost) == 1
