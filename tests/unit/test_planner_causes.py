# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Causes and changes that people who had not written the search expected otherwise than it told them."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Drain, Limit, Problem, Quota, Resources, Rules, Workspace, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s, need, place, problem


def proposals(asked: Problem, leases: dict[str, str] | None = None) -> list[Proposal]:
    """Each with changes that place it when they are made, and take no place but those that they name."""
    solution = make_plan(asked)
    again, had = planned(asked, solution), {each.name for each in solution.placements}
    found = propose(asked, solution, leases)
    for each in found:
        assert each.changes
        for change in each.changes:
            now = {placed.name for placed in make_plan(change.apply(again)).placements}
            assert f"{each.service}-{each.replica}" in now, change.sentence
            assert had - now <= set(change.lost), change.sentence
    return found


def limited(asked: Problem, most: int, **workspace: int) -> Problem:
    space = "ins" if workspace else None
    spaces = tuple(Workspace(name, (Limit("gpus", count),)) for name, count in workspace.items())
    return replace(asked, quotas=(Quota("claims", (Limit("gpus", most),), space),), workspaces=spaces)


def test_the_quota_is_in_the_way_and_not_the_teams_own_service_on_another_host() -> None:
    """It could be pushed out, which frees quota, too: and a GPU is idle beside it."""
    old = need("old", "exclusive", priority=10, team="claims")
    hosts = [host(l40s(0)), host(l40s(0, "h2"), name="h2")]
    asked = problem(hosts, [old, need("wanted", "exclusive", team="claims")], [place("old", "0", mode="whole")])
    (found,) = proposals(limited(asked, 1))
    assert (found.cause, found.changes[0].sentence) == ("quota", "raise the quota of claims by 1 GPU (fleet_quotas)")


def test_the_quota_is_in_the_way_where_somebody_lower_would_give_way_if_it_were_higher() -> None:
    mine, low = need("mine", "exclusive", priority=90, team="claims"), need("low", "exclusive", priority=10, team="vision")
    before = [place("mine", "0", mode="whole"), place("low", "1", mode="whole")]
    asked = problem([host(l40s(0), l40s(1))], [mine, low, need("wanted", "exclusive", priority=80, team="claims")], before)
    asked = limited(replace(asked, preemption=True), 1)
    (found,) = proposals(replace(asked, quotas=(*asked.quotas, Quota("vision", ()))))
    assert (found.cause, found.changes[0].lost) == ("quota", ("low-1",))
    assert found.changes[0].sentence == "raise the quota of claims by 1 GPU (fleet_quotas): low-1 would give way"


def test_what_a_team_is_raised_to_its_workspace_is_raised_to() -> None:
    """The other team has all that is left of it, and uses none: what both may have must not be more than the workspace has."""
    asked = problem([host(l40s(0), l40s(1))], [need("wanted", "exclusive", team="claims", replicas=2)])
    asked = limited(asked, 1, ins=2)
    asked = replace(asked, quotas=(*asked.quotas, Quota("vision", (Limit("gpus", 1),), "ins")))
    (found,) = proposals(asked)
    assert found.changes[0].sentence == "raise the quota of claims by 1 GPU and that of workspace ins by 1 GPU (fleet_quotas)"


def bank(*quotas: Quota) -> dict[str, t.Any]:
    return {"quotas": quotas, "workspaces": (Workspace("bank", (Limit("memory", sum(each.limits[0].most for each in quotas)),)),)}


def test_a_team_that_does_not_borrow_is_told_that_others_lend() -> None:
    quotas = Quota("claims", (Limit("memory", 50000),), "bank"), Quota("fraud", (Limit("memory", 50000),), "bank", lend=True)
    needs = [need("other", memory_mib=40000, team="claims"), need(memory_mib=30000, team="claims")]
    asked = replace(problem([host(gpu(), gpu(1))], needs, [place("other", "0:3g.40gb@0")]), **bank(*quotas))
    (found,) = proposals(asked)
    assert [(each.kind, each.sentence) for each in found.changes] == [
        ("borrow", "let claims borrow what other teams of workspace bank lend ('borrow: true' in fleet_quotas)"),
        ("quota", "raise the quota of claims by 30384 MiB and that of workspace bank by 30384 MiB (fleet_quotas)"),
    ]
    closed = replace(asked, quotas=(quotas[0], replace(quotas[1], lend=False)))
    assert [each.kind for each in proposals(closed)[0].changes] == ["quota"]


def test_what_is_lent_to_a_higher_priority_is_no_loan_where_the_borrower_may_have_it_itself() -> None:
    quotas = Quota("claims", (Limit("memory", 41000),), "bank", borrow=True), Quota("fraud", (Limit("memory", 41000),), "bank", lend=True)
    loans = [need(f"loan-{number}", memory_mib=40000, team="claims", priority=90) for number in range(2)]
    needs = [*loans, need(memory_mib=40000, team="fraud", priority=50)]
    before = [place("loan-0", "0:3g.40gb@0"), place("loan-1", "0:3g.40gb@4")]
    asked = replace(problem([host(gpu(), gpu(1))], needs, before), **bank(*quotas))
    (found,) = proposals(asked)
    assert (found.cause, found.sentence) == (
        "quota",
        "raise the quota of claims by 39384 MiB and that of workspace bank by 39384 MiB (fleet_quotas)",
    )


def test_a_quota_and_a_setting_in_the_way_are_one_change() -> None:
    asked = problem([host(gpu(0), modes=("mig",))], [need("wanted", "exclusive", team="claims")])
    (found,) = proposals(limited(asked, 0))
    line = "raise the quota of claims by 1 GPU (fleet_quotas); and allow 'whole' in fleet_gpu_modes of h1"
    assert found.changes[0].sentence == line


def test_who_is_not_served_by_one_gpu_is_told_of_all_of_them() -> None:
    asked = problem([host(l40s(0, cordoned=True), l40s(1, cordoned=True))], [need("wanted", "exclusive", replicas=2)])
    one, two = proposals(asked)
    assert [each.changes[0].kind for each in (one, two)] == ["uncordon", "uncordon"]
    assert two.changes[0].sentence == f"{one.changes[0].sentence}; and the same for h1 GPU-h1-1"


@pytest.mark.parametrize("isolation", ["exclusive", "slice"])
def test_of_several_leases_the_one_that_ends_first_is_waited_for(isolation: str) -> None:
    """As whole GPUs of two hosts, and as slices of one GPU."""
    if isolation == "exclusive":
        hosts = [host(gpu(0)), host(gpu(0, "h2"), name="h2")]
        before = [place("nb-1", "0", mode="whole"), place("nb-2", "0", on="h2", mode="whole")]
    else:
        hosts = [host(gpu(0, slices="3g.40gb@0 3g.40gb@4"))]
        before = [place("nb-1", "0:3g.40gb@0"), place("nb-2", "0:3g.40gb@4")]
    needs = [need(name, isolation, 30000) for name in ("nb-1", "nb-2", "wanted")]
    asked = replace(problem(hosts, needs, before), moves=0)
    (found,) = proposals(asked, {"nb-1-1": "2026-12-09", "nb-2-1": "2026-12-02"})
    assert found.cause == "lease"
    assert found.changes[0].sentence.endswith("until the lease of nb-2-1 ends on 2026-12-02, and remove the manifest of nb-2 then")


def test_a_gpu_that_is_lost_is_named_beside_a_smaller_board_of_its_host() -> None:
    (found,) = proposals(problem([host(gpu(0, blocked="lost"), l40s(1))], [need("wanted", "exclusive", 60000)]))
    assert (found.cause, [each.kind for each in found.changes]) == ("lost", ["memory", "repair"])


def test_who_was_on_a_host_that_is_down_is_not_told_to_be_content_with_less() -> None:
    before = [place("wanted", "0", mode="whole")]
    asked = problem([replace(host(), down=True), host(l40s(0, "h2"), name="h2")], [need("wanted", "exclusive", 60000)], before)
    solution = make_plan(asked)
    (found,) = propose(asked, solution, boards=[gpu(0)])
    assert found.cause == "host down"
    assert found.sentence.startswith("bring h1 back, or add a host")


def test_who_serves_on_a_drained_gpu_and_has_no_other_is_told_of_the_drain() -> None:
    drained = gpu(0, drain=Drain("drained by lin"))
    (found,) = proposals(problem([host(drained)], [need("wanted", "exclusive")], [place("wanted", "0", mode="whole")]))
    assert (found.cause, found.changes[0].kind) == ("drain", "release")


def test_who_names_only_a_profile_is_told_of_another_one() -> None:
    """Without it nobody would know how much memory it needs."""
    a30 = gpu(0, board="a30", memory_mib=24576, geometry=A30)
    (found,) = proposals(problem([host(a30)], [need("wanted", memory_mib=0, profile="3g.40gb")]))
    assert (found.cause, found.changes[0].sentence) == ("profile", "ask for 4g.24gb: a30 has no 3g.40gb that serves")


def test_no_more_ports_are_asked_for_than_are_missing() -> None:
    five = need("wanted", "exclusive", ports=tuple((f"p{number}", None) for number in range(5)))
    taken = frozenset(range(18000, 18005))
    (found,) = proposals(problem([host(l40s(0), ports=tuple(range(18000, 18008)), listening=taken)], [five]))
    assert found.changes[0].sentence == "widen fleet_ports of h1 by 2"


NOTEBOOKS = [place("nb", str(number), mode="whole", replica=number + 1) for number in range(3)]


def told_of_notebooks(count: int, **leases: str) -> Proposal:
    """Three replicas of one service have all GPUs."""
    hosts = [host(*(gpu(number) for number in range(3)))]
    asked = problem(hosts, [need("nb", "exclusive", replicas=3), need("ocr", "exclusive", count=count)], NOTEBOOKS)
    (found,) = proposals(asked, {f"nb-{name[1:]}": day for name, day in leases.items()})
    return found


@pytest.mark.parametrize(
    ("days", "sentence", "gone"),
    [
        (
            {"_2": "2026-12-02", "_3": "2026-12-01"},
            "wait for h1 GPU-h1-2 until the lease of nb-3 ends on 2026-12-01, and write 'replicas: 2' for nb then",
            ("nb-3",),
        ),
        (
            {"_2": "2026-12-01"},
            "wait for h1 GPU-h1-1 until the lease of nb-2 ends on 2026-12-01, and write 'replicas: 1' for nb then, which stops nb-3 too",
            ("nb-2", "nb-3"),
        ),
        (
            # Over for long: its agent has stopped it, and its GPU is kept for it.
            {"_2": "2026-12-01", "_3": ""},
            "the lease of nb-3 is over, and h1 GPU-h1-2 is still kept for it: write 'replicas: 2' for nb",
            ("nb-3",),
        ),
        (
            {"_1": "2026-12-01"},
            "wait for h1 GPU-h1-0 until the lease of nb-1 ends on 2026-12-01, and remove the manifest of nb then, "
            "which stops nb-2 and nb-3 too",
            ("nb-1", "nb-2", "nb-3"),
        ),
    ],
)
def test_of_a_service_with_several_leases_no_more_stop_than_have_to_and_all_are_named(
    days: dict[str, str], sentence: str, gone: tuple[str, ...]
) -> None:
    first = told_of_notebooks(1, **days).changes[0]
    assert (first.sentence, first.lost) == (sentence, gone)


def test_where_two_of_one_service_have_to_go_as_many_are_left_as_the_lower_one_leaves() -> None:
    first = told_of_notebooks(2, _1="2027-01-01", _2="2026-12-01", _3="2026-12-02").changes[0]
    assert first.edits == (("service", "nb", "replicas", 1),)
    assert first.lost == ("nb-2", "nb-3")
    assert "until the lease of nb-2 ends on 2026-12-01" in first.sentence


def test_who_is_to_be_stopped_or_moved_is_told_by_name() -> None:
    """Only the GPU of the last one serves."""
    needs = [need("nb", "exclusive", replicas=3), need("ocr", "exclusive", models=("l40s",))]
    (found,) = proposals(problem([host(gpu(0), gpu(1), l40s(2))], needs, NOTEBOOKS))
    assert found.changes[-1].sentence == "h1 GPU-h1-2 has room for it without nb-3 ('replicas: 2'): stop or move what is there"
    assert found.changes[-1].lost == ("nb-3",)


def test_max_per_gpu_is_raised_as_far_as_all_need() -> None:
    found = proposals(problem([host(gpu(0), gpu(1))], [need(replicas=6, rules=Rules(max_per_gpu=1))]))
    assert [each.sentence for each in found] == ["raise its 'max_per_gpu' to 2"] * 2 + ["raise its 'max_per_gpu' to 3"] * 2


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        (
            {"bb": "2026-12-01", "cc": "2026-12-01"},
            "wait for h1 GPU-h1-0 until the leases of bb-1 and cc-1 end on 2026-12-01, and remove the manifests of bb and cc then",
        ),
        (
            {"bb": "", "cc": "2026-12-02"},
            "wait for h1 GPU-h1-0 until the lease of cc-1 ends on 2026-12-02, and remove the manifests of bb and cc then",
        ),
        (
            {"bb": "", "cc": ""},
            "the leases of bb-1 and cc-1 are over, and h1 GPU-h1-0 is still kept for them: remove the manifests of bb and cc",
        ),
    ],
)
def test_of_sharers_who_are_not_enough_alone_none_goes_too_many(ends: dict[str, str], sentence: str) -> None:
    sizes = {"aa": 5000, "bb": 15000, "cc": 15000}
    asked = problem(
        [host(l40s(), modes=("shared",))],
        [*(need(name, "shared", size, priority=10) for name, size in sizes.items()), need("ocr", "shared", 37000)],
        [place(name, "0", mode="shared") for name in sizes],
    )
    (found,) = proposals(asked, {"aa-1": "2026-12-01", **{f"{name}-1": day for name, day in ends.items()}})
    assert found.changes[0].sentence == sentence


@pytest.mark.parametrize("together", [False, True])
def test_a_port_that_one_of_its_own_has_is_told_without_who_has_it(together: bool) -> None:
    """Of a group without a place nobody has it yet."""
    hosts = [host(gpu(0), gpu(1)), host(gpu(0, "h2"), name="h2")]
    found = proposals(problem(hosts, [need(replicas=3, ports=(("http", 17000),), rules=Rules(all_or_nothing=together))]))
    assert len(found) == (3 if together else 1)
    assert {each.sentence for each in found} == {
        "leave the host port out (only one replica on a host can have that of 'http'), and a free one is chosen"
    }


@pytest.mark.parametrize("preemption", [False, True])
@pytest.mark.parametrize("isolation", ["exclusive", "slice", "shared"])
def test_of_all_who_are_higher_the_lowest_is_asked_wherever_it_is(isolation: str, preemption: bool) -> None:
    hosts = [host(gpu(0, f"h{number}"), name=f"h{number}", modes=("mig", "shared", "whole")) for number in range(6)]
    size = 80896 if isolation == "shared" else 60000  # nothing is left of a GPU
    holders = [need(f"u{priority}", isolation, size, priority=priority) for priority in (95, 94, 93, 92, 91, 60)]
    asked = replace(problem(hosts, [*holders, need("wanted", isolation, size, priority=50)]), preemption=preemption)
    (found,) = proposals(asked)
    allow = "" if preemption else " and allow fleet_preemption"
    assert (found.cause, found.sentence) == ("priority", f"raise its priority to 61{allow}: u60-1 would give way")


def test_who_takes_two_gpus_is_raised_above_the_higher_of_the_two() -> None:
    holders = [need(f"u{priority}", "exclusive", priority=priority) for priority in (70, 60)]
    asked = problem([host(gpu(0), gpu(1))], [*holders, need("wanted", "exclusive", count=2, priority=50)])
    (found,) = proposals(replace(asked, preemption=True))
    assert found.sentence == "raise its priority to 71: u60-1 and u70-1 would give way"


def test_somebody_of_the_same_priority_is_in_the_way_before_somebody_higher() -> None:
    holders = [need("u90", "exclusive", priority=90), need("peer", "exclusive", priority=50)]
    (found,) = proposals(problem([host(gpu(0), gpu(1))], [*holders, need("wanted", "exclusive", priority=50)]))
    assert (found.cause, found.changes[0].sentence) == (
        "in use",
        "raise its priority to 51 and allow fleet_preemption: peer-1 would give way",
    )


def test_moves_are_tried_where_somebody_is_in_the_way_of_any_place() -> None:
    """Nearest is the host that could have its data, and has neighbours that it stays apart from; on the other one a peer could move."""
    needs = [
        need("near", "exclusive", resources=Resources(4)),
        need("peer", "exclusive"),
        need("wanted", "exclusive", resources=Resources(8)),
    ]
    hosts = [host(gpu(0), gpu(1), capacity=Resources(8, None, None, None)), host(gpu(0, "h2"), name="h2")]
    asked = problem(hosts, needs, [place("near", "0", mode="whole"), place("peer", "0", on="h2", mode="whole")])
    (found,) = proposals(asked)
    assert found.changes[0].sentence == "allow fleet_moves: 1, and peer-1 would move"


def test_a_host_that_may_not_have_its_data_and_has_no_gpu_for_it_either_names_no_cause() -> None:
    home = host(l40s(0), data_classes=("pii",))
    other = host(gpu(0, "h2", cordoned=True), name="h2")
    (found,) = proposals(problem([home, other], [need("wanted", "exclusive", models=("a100",), data_class="pii")]))
    assert (found.cause, found.changes[0].kind) == ("model", "models")


def test_a_quota_is_raised_by_what_one_replica_lacks_and_for_the_next_by_what_both_do() -> None:
    before = [place("mine", "0:1g.10gb@0")]
    needs = [need("mine", team="claims"), need("wanted", memory_mib=15000, team="claims", replicas=2), need("later", team="claims")]
    asked = replace(problem([host(gpu(), gpu(1))], needs, before), quotas=(Quota("claims", (Limit("memory", 12000),)),))
    told = {f"{each.service}-{each.replica}": each.sentence for each in proposals(asked)}
    slice_mib, large_mib = 9856, 19968
    assert told["later-1"] == f"raise the quota of claims by {2 * slice_mib - 12000} MiB (fleet_quotas)"
    assert told["wanted-1"] == f"raise the quota of claims by {slice_mib + large_mib - 12000} MiB (fleet_quotas)"
    assert told["wanted-2"] == f"raise the quota of claims by {slice_mib + 2 * large_mib - 12000} MiB (fleet_quotas)"


def test_what_a_team_has_borrowed_stays_borrowed_when_its_quota_is_raised() -> None:
    quotas = Quota("claims", (Limit("gpus", 1),), "bank", borrow=True), Quota("fraud", (Limit("gpus", 2),), "bank", lend=True)
    needs = [*(need(f"s{number}", "exclusive", team="claims") for number in range(3)), need("wanted", "exclusive", team="claims")]
    before = [place(f"s{number}", str(number), mode="whole") for number in range(3)]
    asked = replace(problem([host(*(gpu(number) for number in range(4)))], needs, before), quotas=quotas)
    asked = replace(asked, workspaces=(Workspace("bank", (Limit("gpus", 3),)),))
    (found,) = proposals(asked)
    assert found.changes[0].sentence == "raise the quota of claims by 1 GPU and that of workspace bank by 1 GPU (fleet_quotas)"


def test_services_of_other_environments_take_a_quota_first() -> None:
    hosts = [host(gpu()), host(gpu(0, "h2"), name="h2", environment="training")]
    needs = [need("first", "exclusive", team="claims", priority=80), need("wanted", "exclusive", team="claims", environment="training")]
    told = {each.service: each.sentence for each in proposals(limited(problem(hosts, needs), 0))}
    assert told == {
        "first": "raise the quota of claims by 1 GPU (fleet_quotas)",
        "wanted": "raise the quota of claims by 2 GPUs (fleet_quotas)",
    }


def test_without_work_left_a_quota_is_still_what_helps_where_nothing_else_could() -> None:
    needs = [need("mine", "exclusive", team="claims"), need("wanted", "exclusive", team="claims")]
    asked = limited(problem([host(gpu(0)), host(gpu(0, "h2"), name="h2")], needs, [place("mine", "0", mode="whole")]), 1)
    solution = make_plan(asked)
    assert [each.changes for each in propose(asked, solution, budget=0)] == [()]
    assert [each.help for each in solution.unplaced] == ["raise what fleet_quotas gives to claims"]


def test_of_very_many_without_a_place_each_is_told_what_it_could_ask_for_itself() -> None:
    """Sixty who wait, each for a reason of its own, on eight hosts with much room."""
    hosts = [host(gpu(0, f"h{number}"), gpu(1, f"h{number}"), name=f"h{number}", listening=frozenset({9000})) for number in range(8)]
    kinds: dict[str, dict[str, t.Any]] = {
        "models": {"models": ("h900",)},
        "memory": {"isolation": "exclusive", "memory_mib": 90000},
        "port": {"ports": (("http", 9000),)},
        "profile": {"profile": "1g.12gb"},
        "count": {"isolation": "exclusive", "count": 3},
        "environment": {"environment": "training"},
    }
    needs = [need(f"{kind}-{number}", priority=50 + number, **more) for kind, more in kinds.items() for number in range(10)]
    told = {each.service: each.changes[0].kind for each in proposals(problem(hosts, needs))}
    assert told == {each.service: each.service.partition("-")[0] for each in needs}


def test_a_profile_that_no_board_has_is_told_the_nearest_and_not_the_largest() -> None:
    (found,) = proposals(problem([host(gpu())], [need(memory_mib=0, profile="1g.5gb")]))
    assert found.changes[0].sentence == "ask for 1g.10gb: a100-sxm4-80gb has no 1g.5gb that serves"


@pytest.mark.parametrize("profile", ["weird", "1c.3g.20gb"])
def test_a_profile_that_is_none_is_told_the_largest_and_ends_no_plan(profile: str) -> None:
    (found,) = proposals(problem([host(gpu())], [need(memory_mib=0, profile=profile)]))
    assert (found.cause, found.changes[0].sentence) == ("profile", f"ask for 7g.80gb: a100-sxm4-80gb has no {profile} that serves")


def test_compute_that_is_shared_out_may_be_shared_out_more() -> None:
    needs = [need("mine", "shared", compute=0.7), need("wanted", "shared", compute=0.35)]
    before = [place("mine", "0", mode="shared")]
    (found,) = proposals(problem([host(l40s(0), modes=("shared",))], needs, before))
    assert [change.sentence for change in found.changes] == ["raise fleet_shared_compute of h1 to 1.05", *found.sentence.split(", or ")[1:]]


def test_where_another_environment_is_full_too_a_host_of_its_own_is_told() -> None:
    needs = [need("found", "exclusive", adopted=True), need("wanted", "exclusive", environment="training")]
    (found,) = proposals(problem([host(l40s(0))], needs, [place("found", "0", mode="whole")]))
    assert (found.cause, found.sentence) == ("environment", "add a host of environment 'training' with a free GPU (l40s)")
