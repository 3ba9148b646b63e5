# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas: what teams get, what they lend and get back, and what is said about papers that contradict each other."""

from __future__ import annotations

import itertools
import re
import time
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import Settled, begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Placement, Problem, Quota, Solution, Workspace
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu, gpu_facts, host, l40s, manifest_text, need, place, problem
from ansible_collections.gpuops.fleet.tests.unit.test_plan_down_hosts import CATALOGUE

BIG = 30000  # a 3g.40gb: 40192 MiB and 4 memory slices


def solved(given_: Problem) -> tuple[list[str], Solution]:
    """Names of those who have a place; the checker finds nothing wrong."""
    solution = make_plan(given_)
    assert planner_checker.complaints(given_, solution) == []
    return [each.name for each in solution.placements], solution


def asked(*quotas: Quota, previous: tuple[Placement, ...] = (), boards: int = 2, **more: t.Any) -> Problem:
    """Teams aa and bb each want two halves of boards; there is room for all."""
    needs = [need("one", memory_mib=BIG, replicas=2, team="aa"), need("two", memory_mib=BIG, replicas=2, team="bb")]
    given_ = problem([host(*(gpu(number, mig=True) for number in range(boards)))], needs, previous)
    return replace(given_, quotas=quotas, **more)


@pytest.mark.parametrize(
    ("limit", "placed"),
    [
        (Limit("memory", 40192), ["one-1"]),
        (Limit("memory", 40191), []),
        (Limit("slices", 7), ["one-1"]),
        (Limit("slices", 8), ["one-1", "one-2"]),
        (Limit("slices", 0, "a100"), []),
        (Limit("slices", 0, "h100"), ["one-1", "one-2"]),
        (Limit("gpus", 0), ["one-1", "one-2"]),
    ],
)
def test_a_team_gets_what_its_quota_says_and_others_all_they_want(limit: Limit, placed: list[str]) -> None:
    names, solution = solved(asked(Quota("aa", (limit,))))
    assert names == [*placed, "two-1", "two-2"]
    assert all("fleet_quotas" in each.reason for each in solution.unplaced)


def test_whole_gpus_and_shares_count_in_their_way() -> None:
    hosts = [host(l40s(0), l40s(1), modes=("whole", "shared"))]
    whole = need("train", "exclusive", 20000, replicas=2, team="aa")
    assert solved(replace(problem(hosts, [whole]), quotas=(Quota("aa", (Limit("gpus", 1),)),)))[0] == ["train-1"]
    assert solved(replace(problem(hosts, [whole]), quotas=(Quota("aa", (Limit("memory", 46067),)),)))[0] == []
    share = need("chat", "shared", 9000, replicas=3, team="aa")
    assert solved(replace(problem(hosts, [share]), quotas=(Quota("aa", (Limit("memory", 20000),)),)))[0] == ["chat-1", "chat-2"]


def test_a_quota_of_one_model_sends_the_rest_to_another() -> None:
    hosts = [host(gpu(0, mig=True), name="h1"), host(l40s(0, "h2"), name="h2", modes=("whole",))]
    needs = [need("train", "exclusive", 20000, replicas=1, team="aa")]
    given_ = replace(problem(hosts, needs), quotas=(Quota("aa", (Limit("gpus", 0, "l40s"),)),))
    assert [each.host for each in make_plan(given_).placements] == ["h1"]


def test_who_borrows_has_what_others_lend_and_no_more() -> None:
    lender, stingy = (Quota("bb", (Limit("slices", 4),), "insurance", lend=lend) for lend in (True, False))
    borrower = Quota("aa", (Limit("slices", 4),), "insurance", borrow=True)
    only_aa = asked(boards=2).needs[:1]
    assert solved(asked(borrower, lender, needs=only_aa))[0] == ["one-1", "one-2"]
    assert solved(asked(borrower, stingy, needs=only_aa))[0] == ["one-1"]
    assert solved(asked(replace(borrower, borrow=False), lender, needs=only_aa))[0] == ["one-1"]
    elsewhere = replace(lender, workspace="other")
    assert solved(asked(borrower, elsewhere, needs=only_aa))[0] == ["one-1"]


def test_who_borrows_is_left_where_it_is_when_it_is_asked_what_more_would_bring() -> None:
    """Without a limit of its own the other team would have nothing to lend: nobody asks that while its quota is only left out."""
    quotas = (Quota("aa", (Limit("slices", 4),), "insurance", borrow=True), Quota("bb", (Limit("slices", 4),), "insurance", lend=True))
    lent = make_plan(asked(*quotas, needs=asked().needs[:1]))
    without = asked(quotas[0], Quota("bb", (), "insurance", lend=True), previous=lent.placements)
    settled = Settled({("one", 1), ("one", 2)}, Scene(asked(*quotas, previous=lent.placements), lent, {}).fleet)
    assert begin(without).placed.keys() < settled.keys == begin(without, settled).placed.keys()


def test_a_team_that_has_a_quota_only_now_has_used_what_it_has() -> None:
    """Books that did not know of it cannot say how much that is."""
    solution = make_plan(asked())
    before = asked(previous=solution.placements)
    settled = Settled({(place.service, place.replica) for place in solution.placements}, Scene(before, solution, {}).fleet)
    draft = begin(replace(before, quotas=(Quota("aa", (Limit("slices", 8),)),)), settled)
    assert draft.fleet.books.used("aa", ("slices", "")) == 8
    assert draft.placed.keys() == settled.keys


def test_what_is_lent_goes_back_when_its_team_asks_for_it() -> None:
    quotas = (Quota("aa", (Limit("slices", 4),), "insurance", borrow=True), Quota("bb", (Limit("slices", 4),), "insurance", lend=True))
    lent = make_plan(asked(*quotas, needs=asked().needs[:1]))
    names, solution = solved(asked(*quotas, previous=lent.placements))
    assert names == ["one-1", "two-1"] or names == ["one-2", "two-1"]
    assert [(each.service, each.by, each.way) for each in solution.displaced] == [("one", "two-1", "reclaimed")]
    assert any("borrowed" in each.reason for each in solution.unplaced)
    again = make_plan(asked(*quotas, previous=solution.placements))
    assert again.placements == solution.placements


def test_what_is_lent_goes_back_where_the_workspace_itself_is_full() -> None:
    quotas = (Quota("aa", (Limit("slices", 4),), "insurance", borrow=True), Quota("bb", (Limit("slices", 4),), "insurance", lend=True))
    full = (Workspace("insurance", (Limit("slices", 8),)),)
    lent = make_plan(asked(*quotas, needs=asked().needs[:1], workspaces=full))
    names, solution = solved(asked(*quotas, previous=lent.placements, workspaces=full))
    assert names == ["one-1", "two-1"] or names == ["one-2", "two-1"]
    assert [(each.service, each.by, each.way) for each in solution.displaced] == [("one", "two-1", "reclaimed")]
    # Who asks for more than its own gets nothing back by that.
    assert not any(each.by == "two-2" for each in solution.displaced)


def test_a_higher_priority_keeps_what_it_has_borrowed() -> None:
    quotas = (Quota("aa", (Limit("slices", 4),), "insurance", borrow=True), Quota("bb", (Limit("slices", 4),), "insurance", lend=True))
    needs = tuple(replace(each, priority=90 if each.team == "aa" else 50) for each in asked().needs)
    lent = make_plan(asked(*quotas, needs=needs[:1]))
    assert solved(asked(*quotas, previous=lent.placements, needs=needs))[0] == ["one-1", "one-2"]


def test_a_workspace_has_no_more_than_it_has() -> None:
    quotas = (Quota("aa", (), "insurance"), Quota("bb", (), "insurance"))
    given_ = asked(*quotas, workspaces=(Workspace("insurance", (Limit("slices", 12),)),))
    assert len(solved(given_)[0]) == 3


def test_a_quota_that_is_lowered_holds_for_what_runs() -> None:
    before = make_plan(asked())
    names, solution = solved(asked(Quota("aa", (Limit("slices", 4),)), previous=before.placements))
    assert names == ["one-1", "two-1", "two-2"]
    assert [each.service for each in solution.unplaced] == ["one"]


def test_a_higher_priority_of_the_same_team_takes_what_the_quota_leaves() -> None:
    needs = [need("low", memory_mib=BIG, team="aa", priority=10), need("high", memory_mib=BIG, team="aa", priority=90)]
    given_ = replace(problem([host(gpu(0, mig=True), gpu(1, mig=True))], needs[:1]), quotas=(Quota("aa", (Limit("slices", 4),)),))
    before = make_plan(given_).placements
    more = replace(given_, needs=tuple(needs), previous=before, preemption=True)
    assert solved(more)[0] == ["high-1"]
    assert solved(replace(more, preemption=False))[0] == ["low-1"]


@pytest.mark.parametrize("large", [1, 2])
def test_what_a_board_counts_is_known_of_each_size_that_it_reports(large: int) -> None:
    """Of the sizes the last one counted: that of the GPU which is too small for it, and so nobody was asked to go."""
    small = host(l40s(), modes=("whole",))
    other = host(*(l40s(number, "h2", memory_mib=49_140) for number in range(large)), name="h2", modes=("whole",))
    needs = [need("low", "exclusive", 40_000, priority=10, team="t"), need("new", "exclusive", 47_000, priority=90, team="t")]
    for hosts in itertools.permutations((small, other)):
        given_ = problem(hosts, needs, [place("low", "0", mode="whole")])
        given_ = replace(given_, quotas=(Quota("t", (Limit("memory", 92_200),)),), preemption=True)
        assert Fleet(given_).charges(needs[1]) == [(("l40s", "memory", 49_140), ("l40s", "gpus", 1))]
        assert Fleet(given_).charges(needs[0]) == [(("l40s", "memory", size), ("l40s", "gpus", 1)) for size in (46_068, 49_140)]
        assert solved(given_)[0] == ["new-1"]


def test_where_no_borrower_may_be_asked_the_lowest_of_a_full_workspace_gives_way_to_preemption() -> None:
    """What aa borrows serves a higher priority; of what bb has itself something is lower than what it asks for."""
    quotas = (Quota("aa", (Limit("slices", 4),), "ins", borrow=True), Quota("bb", (Limit("slices", 4),), "ins", lend=True))
    high, low = need("high", replicas=5, priority=90, team="aa"), need("low", replicas=3, priority=10, team="bb")
    given_ = problem([host(gpu(0, mig=True), gpu(1, mig=True))], [high, low])
    given_ = replace(given_, quotas=quotas, workspaces=(Workspace("ins", (Limit("slices", 8),)),), preemption=True)
    more = replace(given_, needs=(high, low, need("mid", priority=50, team="bb")), previous=make_plan(given_).placements)
    assert [(each.service, each.replica) for each in make_plan(more).unplaced] == [("low", 1)]


# Papers


def planned(manifests: dict[str, dict[str, str]], serving: Planned | None = None, **policy: t.Any) -> Planned:
    """A run with one host of two boards. ``serving``: the plan of before."""
    before = {} if serving is None else {"h1": ("plans/h1.yml", serving.plans["h1"].text)}
    texts = [(f"manifests/{name}.yml", manifest_text(name, **more)) for name, more in manifests.items()]
    hosts = {"h1": {"facts": facts([gpu_facts(0), gpu_facts(1)]), "policy": {"fleet_environment": "production", **policy}}}
    return plan_fleet(texts, before, hosts, CATALOGUE, ["http"])


def refused(manifests: dict[str, dict[str, str]], **policy: t.Any) -> str:
    began = time.process_time()
    with pytest.raises(FleetError) as caught:
        planned(manifests, **policy)
    assert time.process_time() - began < 1
    return str(caught.value)


def test_quotas_of_the_policy_reach_the_planner() -> None:
    said = {"teams": {"claims": {"memory": "12 GiB"}}}
    assert [each["replica"] for each in planned({"receipt-ocr": {"replicas": "2"}}, fleet_quotas=said).unplaced] == [2]
    assert planned({"receipt-ocr": {"replicas": "2"}}).unplaced == []


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"teams": {"claims": {"memroy": "1 GiB"}}}, "unknown field 'memroy'; did you mean 'memory'?"),
        ({"teams": {"claims": {"memory": "-4 GiB"}}}, "'-4 GiB' is not a size"),
        ({"teams": {"claims": {"gpus": -1}}}, "it must be at least 0"),
        ({"teams": {"claims": {"workspace": "insurence"}}, "workspaces": {"insurance": {}}}, "did you mean 'insurance'?"),
        ({"teams": {"claims": {"borrow": True}}}, "only teams of one workspace lend to each other; name a workspace"),
        (
            {
                "teams": {"claims": {"workspace": "ins", "gpus": 3}, "fraud": {"workspace": "ins", "gpus": 2}},
                "workspaces": {"ins": {"gpus": 4}},
            },
            "the quotas of workspace 'ins' are 5 whole GPUs by here, and it has 4; raise that of the workspace, or lower one of its teams",
        ),
        (
            {
                "teams": {"claims": {"workspace": "ins", "models": {"h100": {"memory": "6 GiB"}}}},
                "workspaces": {"ins": {"models": {"H100": {"memory": "5.5 GiB"}}}},
            },
            "fleet_quotas.teams.claims: the quotas of workspace 'ins' are 6 GiB of GPU memory on h100 by here, and it has 5632 MiB; ",
        ),
        (
            {"teams": {"claims": {"models": {"A100": {"memory": "1 GiB"}, "a100": {"memory": "9 GiB"}}}}},
            "fleet_quotas.teams.claims.models.a100: 'a100' and 'A100' are the same boards; keep one of them",
        ),
        (
            {"workspaces": {"ins": {"models": {"h100": {"gpus": 1}, "H100": {"gpus": 2}}}}},
            "fleet_quotas.workspaces.ins.models.H100: 'H100' and 'h100' are the same boards; keep one of them",
        ),
        (
            {"teams": {"claims": {"gpus": 10**400}}},
            "fleet_quotas.teams.claims.gpus: a number of more than 60 digits is not right; it must be at most 1000000000",
        ),
        (
            {"workspaces": {"ins": {"slices": 10**9 + 1}}},
            "fleet_quotas.workspaces.ins.slices: 1000000001 is not right; it must be at most 1000000000",
        ),
        ({"teams": {"claims": {"memory": 10**5000}}}, "claims.memory: a number of more than 60 digits has no unit; write '8 GiB'"),
        ({"teams": {"claim": {}}}, "no quota names the team 'claims'; did you mean 'claim'?"),
    ],
)
def test_a_wrong_quota_is_one_clear_line(said: dict[str, t.Any], line: str) -> None:
    text = refused({"receipt-ocr": {}}, fleet_quotas=said)
    assert line in text
    assert text.count("\n") == 0


@pytest.mark.parametrize(
    ("placement", "line"),
    [
        ("{apart: [chat], together: [chat]}", "placement.together[0]: 'chat' is to be apart and together; take it out of one of the two"),
        ("{apart: [receipt-ocr]}", "placement.apart[0]: 'receipt-ocr' is this service itself; write 'max_per_host: 1'"),
        ("{apart: [chatt]}", "placement.apart[0]: there is no service 'chatt'; did you mean 'chat'?"),
        ("{together: [elsewhere]}", "'elsewhere' is in the environment 'staging', and this service never is"),
        ("{together: [loop]}", "each waits for the next"),
        ("{together: [chat, shy]}", "placement.together[1]: 'shy' stays apart from this service, as its own manifest says; take it out"),
        ("{max_per_host: 0}", "placement.max_per_host: 0 is not right; it must be at least 1"),
        ("{spread: hosts}", "placement.spread: unknown value 'hosts'"),
    ],
)
def test_rules_that_cannot_be_kept_are_one_clear_line(placement: str, line: str) -> None:
    loop = {"placement": "{together: [receipt-ocr]}"} if "loop" in placement else {}
    others = {"chat": {}, "elsewhere": {"environment": "staging"}, "loop": loop, "shy": {"placement": "{apart: [receipt-ocr]}"}}
    text = refused({"receipt-ocr": {"placement": placement}, **others})
    assert line in text
    assert text.count("\n") == 0


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ("{profile: 9g.900gb}", "gpu.profile: no board has a MIG profile '9g.900gb'; "),
        ("{profile: 2g.200gb}", "gpu.profile: no board has a MIG profile '2g.200gb'; did you mean '2g.20gb'?"),
        ("{memory: 8 GiB, models: [b300]}", "gpu.models[0]: no board has 'b300' in its name; "),
        ("{memory: 8 GiB, models: [h1000]}", "gpu.models[0]: no board has 'h1000' in its name; did you mean 'h100'?"),
        ("{memory: 8000 GiB}", "gpu.memory: no GPU has 8,000 GiB; the largest has "),
        ("{memory: 8 GiB, isolation: exclusive, count: 16}", "gpu.count: no host has 16 GPUs; the largest has 2; "),
        ("{memory: 8 GiB, not_models: [a, l, v, t, h, b, r]}", "gpu.not_models: it takes away every board; "),
    ],
)
def test_a_board_that_is_still_to_come_is_waited_for_and_does_not_take_the_places_of_what_serves(gpu: str, line: str) -> None:
    waits = planned({"receipt-ocr": {"gpu": gpu}})
    assert [each["service"] for each in waits.unplaced] == ["receipt-ocr"]
    text = refused({"receipt-ocr": {"gpu": gpu}}, serving=planned({"receipt-ocr": {}}))
    assert line in text
    assert text.count("\n") == 0
    # Nobody changed the manifest: the board is gone, and that is no mistake of it.
    assert planned({"receipt-ocr": {"gpu": gpu}}, serving=waits).unplaced == waits.unplaced


def test_a_lender_of_a_lower_priority_is_told_at_which_what_it_has_lent_comes_back() -> None:
    teams = {"claims": {"slices": 4, "lend": True}, "pricing": {"slices": 10, "borrow": True}}
    said = {"workspaces": {"ins": {"slices": 14}}, "teams": {name: {"workspace": "ins", **more} for name, more in teams.items()}}
    price = {"team": "pricing", "priority": "50", "replicas": "14"}
    first = planned({"price": price}, fleet_quotas=said)
    second = planned({"price": price, "ocr": {"priority": "40", "replicas": "2"}}, first, fleet_quotas=said)
    told = "raise its priority to 50, and what claims has lent comes back: price-1 and price-2 would give way"
    assert [(each.cause, [change.sentence for change in each.changes]) for each in second.explained] == [("quota", [told])] * 2
    followed = planned({"price": price, "ocr": {"priority": "50", "replicas": "2"}}, first, fleet_quotas=said)
    assert [(each["service"], each["replica"]) for each in followed.unplaced] == [("price", 1), ("price", 2)]


def test_a_profile_that_another_driver_rounded_otherwise_keeps_its_places() -> None:
    serving = planned({"receipt-ocr": {"gpu": "{profile: 3g.40gb}"}})
    found = planned({"receipt-ocr": {"gpu": "{profile: 3g.39gb}"}}, serving=serving)
    assert (found.unplaced, found.table[-1].split()[-1]) == ([], "kept")


def test_two_services_of_one_environment_with_one_address_are_refused() -> None:
    route = {"route": "{path: /ocr}", "ports": "[{name: http, container: 80}]"}
    text = refused({"receipt-ocr": route, "ocr-again": route, "elsewhere": {"environment": "staging", **route}})
    wrong = "service 'ocr-again' has the same address /ocr; give each service its own host or path"
    assert re.fullmatch(rf"manifests/receipt-ocr.yml:[0-9]+: route: {wrong}", text)


def test_a_route_for_a_team_that_no_quota_names_is_refused() -> None:
    route = {"route": "{path: /ocr, teams: [frauds]}", "ports": "[{name: http, container: 80}]"}
    text = refused({"receipt-ocr": route}, fleet_quotas={"teams": {"claims": {}, "fraud": {}}})
    assert text.endswith(": route.teams[0]: no quota names the team 'frauds'; did you mean 'fraud'?")


@pytest.mark.parametrize(
    ("host", "line"),
    [
        (
            "{memory: 16000 GiB}",
            "host.memory: no host has 16000 GiB memory; the largest gives 499 GiB memory; write what one replica needs",
        ),
        ("{cpus: 4000}", "host.cpus: no host has 4000 cpus; the largest gives 63 cpus; write what one replica needs"),
    ],
)
def test_what_no_host_has_does_not_take_the_places_of_what_serves(host: str, line: str) -> None:
    assert [each["service"] for each in planned({"receipt-ocr": {"host": host}}).unplaced] == ["receipt-ocr"]
    assert refused({"receipt-ocr": {"host": host}}, serving=planned({"receipt-ocr": {}})) == f"manifests/receipt-ocr.yml:9: {line}"


@pytest.mark.parametrize(
    ("gpu", "boards"),
    [
        ("{memory: 8 GiB, models: [l40s]}", "l40s has no MIG"),
        ("{memory: 8 GiB, models: [L4]}", "l4, l40s have no MIG"),
        ("{memory: 8 GiB, models: [v100, t4]}", "t4, v100-pcie-16gb, v100-pcie-32gb, v100-sxm2-16gb, v100-sxm2-32gb have no MIG"),
        ("{profile: 1g.10gb, models: [a100, l40s], not_models: [a100]}", "l40s has no MIG"),
    ],
)
def test_a_slice_of_boards_that_never_have_mig_is_refused(gpu: str, boards: str) -> None:
    text = refused({"receipt-ocr": {"gpu": gpu}})
    hint = "write 'isolation: exclusive' or 'isolation: shared', or name a board with MIG"
    assert text == f"manifests/receipt-ocr.yml:7: gpu.models: a slice cannot be had: {boards}; {hint}"


@pytest.mark.parametrize(
    "gpu",
    [
        "{memory: 8 GiB, models: [l40s, a100]}",
        "{memory: 8 GiB, models: [l40s, next-year]}",
        "{memory: 8 GiB, models: [l40s], isolation: shared}",
        "{memory: 8 GiB, models: [l40s], isolation: exclusive}",
        "{memory: 8 GiB, not_models: [a100]}",
    ],
)
def test_a_slice_is_waited_for_where_a_board_may_have_mig_some_day(gpu: str) -> None:
    planned({"receipt-ocr": {"gpu": gpu}})


def test_a_word_that_keeps_nobody_from_a_board_is_told() -> None:
    said = {"teams": {"claims": {"models": {"h1000": {"slices": 4}, "h100": {"gpus": 1}}}}}
    found = planned({"receipt-ocr": {"gpu": "{memory: 8 GiB, models: [a100, b300], not_models: [h1000, h100]}"}}, fleet_quotas=said)
    assert found.unplaced == []
    assert [each for each in found.notes if "no board" in each] == [
        "manifests/receipt-ocr.yml:7: gpu.not_models[0]: no board has 'h1000' in its name; did you mean 'h100'?",
        "fleet_quotas.teams.claims.models.h1000: no board has 'h1000' in its name; did you mean 'h100'?",
    ]


def test_a_quota_that_limits_or_gives_nobody_anything_is_told() -> None:
    said = {"workspaces": {"health": {"gpus": 0}, "life": {"gpus": 4}}, "teams": {"claims": {"workspace": "life", "borrow": True}}}
    assert [each for each in planned({"receipt-ocr": {}}, fleet_quotas=said).notes if each.startswith("fleet_quotas")] == [
        "fleet_quotas.teams.claims.borrow: no other team of workspace 'life' lends; nothing is borrowed by it",
        "fleet_quotas.workspaces.health: no team has it as its workspace; nothing is limited by it",
    ]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("production", ["preproduction", "production-eu", "non-production", "nonproduction", "prod"]),
        ("prod-eu", ["prod-us", "prod-de", "preprod-eu"]),
        ("team-a-prod", ["team-b-prod", "team-ab-prod"]),
        ("staging", ["staging-a", "training", "staging-2"]),
        ("rack-2-east", ["rack-3-east", "rack-2-west"]),
        ("restricted", ["unrestricted"]),
        ("zone1", ["zone1b"]),
    ],
)
def test_names_that_people_make_of_each_other_are_no_slips(known: str, words: list[str]) -> None:
    for word in words:
        other = planned({"receipt-ocr": {"environment": word}}, fleet_environment=known)
        assert [each["service"] for each in other.unplaced] == ["receipt-ocr"]


@pytest.mark.parametrize(
    ("field", "word", "line"),
    [
        ("environment", "prodution", "environment: no host has 'prodution' (fleet_environment); did you mean 'production'?"),
        ("environment", "prodcution", "environment: no host has 'prodcution' (fleet_environment); did you mean 'production'?"),
        ("environment", "prodduction", "environment: no host has 'prodduction' (fleet_environment); did you mean 'production'?"),
        ("environment", "produktion", "environment: no host has 'produktion' (fleet_environment); did you mean 'production'?"),
        ("environment", "productions", "environment: no host has 'productions' (fleet_environment); did you mean 'production'?"),
        ("environment", "roduction", "environment: no host has 'roduction' (fleet_environment); did you mean 'production'?"),
        ("data_class", "persona", "data_class: no host has 'persona' (fleet_data_classes); did you mean 'personal'?"),
        ("data_class", "persnal", "data_class: no host has 'persnal' (fleet_data_classes); did you mean 'personal'?"),
    ],
)
def test_a_slip_in_a_name_of_the_site_is_refused_and_a_name_of_its_own_only_waits(field: str, word: str, line: str) -> None:
    classes = ["personal", "public"]
    assert line in refused({"receipt-ocr": {field: word}}, fleet_data_classes=classes)
    for other in ("drill", f"{word[:-3]}-3"):
        assert [each["service"] for each in planned({"receipt-ocr": {field: other}}, fleet_data_classes=classes).unplaced] == [
            "receipt-ocr"
        ]


def test_a_million_replicas_and_negative_memory_are_refused_at_once() -> None:
    assert "replicas: 1000000 is not right; it must be at most 1000" in refused({"receipt-ocr": {"replicas": "1000000"}})
    assert "'-8 GiB' is not a size" in refused({"receipt-ocr": {"gpu": "{memory: -8 GiB}"}})


def test_what_is_one_for_the_site_is_the_same_on_all_hosts() -> None:
    texts = [("m.yml", manifest_text())]
    policy = {"fleet_environment": "production"}
    hosts = {
        "h1": {"facts": facts([gpu_facts(0)]), "policy": policy},
        "h2": {"facts": facts([gpu_facts(0, "h2")]), "policy": {**policy, "fleet_moves": 1}},
    }
    with pytest.raises(FleetError, match="host h2: fleet_moves: it is not as on h1, and it is one for the whole site"):
        plan_fleet(texts, {}, hosts, CATALOGUE, ["http"])


@pytest.mark.parametrize(("said", "number"), [(3, 3), ("3", 3), ("0", 0)])
def test_a_number_may_be_given_as_text_with_e(said: object, number: int) -> None:
    assert read_policy("h1", {"fleet_environment": "production", "fleet_moves": said}).fleet_moves == number


@pytest.mark.parametrize("said", ["three", "", True, 3.5, -1, "9999999999"])
def test_what_is_no_number_is_refused(said: object) -> None:
    with pytest.raises(FleetError, match="fleet_moves"):
        read_policy("h1", {"fleet_environment": "production", "fleet_moves": said})


def test_steps_stay_in_the_fleet_file_until_somebody_else_moves() -> None:
    manifests = {"aa": {"replicas": "2"}}
    policy = {"fleet_environment": "production"}
    wide = {"large": {"gpu": "{memory: 60 GiB}", "priority": "50"}}

    def run(names: dict[str, dict[str, str]], last: Planned | None, slices: list[str]) -> Planned:
        texts = [(f"m/{name}.yml", manifest_text(name, **more)) for name, more in names.items()]
        plans = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
        there = facts([gpu_facts(number, slices=text) for number, text in enumerate(slices)])
        hosts = {"h1": {"facts": there, "policy": policy}}
        return plan_fleet(texts, plans, hosts, CATALOGUE, ["http"], last_fleet=("fleet.yml", last.fleet) if last else None)

    first = run(manifests, None, ["", ""])
    assert "steps" not in first.fleet
    second = run({**manifests, **wide}, first, ["", ""])
    assert [line.split()[1] for line in second.steps] == ["move", "start", "does"]
    assert "it moves within h1, where it stops before it starts anew" in second.fleet
    assert "steps:\n  - 'move" in second.fleet
    third = run({**manifests, **wide}, second, ["", ""])
    assert (third.fleet, third.steps) == (second.fleet, [])


def test_a_new_service_of_a_board_that_nobody_knows_is_told_so() -> None:
    found = planned({"receipt-ocr": {"gpu": "{memory: 8 GiB, models: [h1000]}"}})
    assert [each["service"] for each in found.unplaced] == ["receipt-ocr"]
    line = "manifests/receipt-ocr.yml:7: gpu.models[0]: no board has 'h1000' in its name; did you mean 'h100'?"
    assert [each for each in found.notes if "no board" in each] == [line]
