# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes in as few places, of as few others and by as few moves as will do; and none that is of no use."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Limit, Placement, Problem, Quota, Resources, Rules
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s, need, place, problem


def proposals(asked: Problem, leases: t.Mapping[str, str] | None = None) -> list[Proposal]:
    """Each change serves whom it is told to, and nobody loses a place who is not named."""
    solution = make_plan(asked)
    found = propose(asked, solution, leases)
    placed = {(each.service, each.replica) for each in solution.placements}
    for each in found:
        for change in each.changes:
            after = {(one.service, one.replica) for one in make_plan(change.apply(asked)).placements}
            assert (each.service, each.replica) in after
            assert {f"{service}-{number}" for service, number in placed - after} <= set(change.lost)
    return found


def sentences(asked: Problem, leases: t.Mapping[str, str] | None = None) -> list[str]:
    return [each.changes[0].sentence for each in proposals(asked, leases)]


def machines(count: int, gpus: int = 1, **of_gpus: t.Any) -> list[Host]:
    names = [f"h{number}" for number in range(1, count + 1)]
    return [host(*(l40s(number, name, **of_gpus) for number in range(gpus)), name=name, modes=("whole",)) for name in names]


def on(service: str, number: int, host: str = "h1", replica: int = 1) -> Placement:
    return place(service, str(number), on=host, replica=replica, mode="whole")


def test_of_gpus_that_are_closed_no_more_are_opened_than_it_takes() -> None:
    asked = problem(machines(4, 2, cordoned=True), [need("pair", "exclusive", count=2)])
    assert sentences(asked) == ["h1 GPU-h1-0 is cordoned: take it out of fleet_cordoned_gpus; and the same for h1 GPU-h1-1"]
    several = problem(machines(6, cordoned=True), [need("ocr", "exclusive", replicas=4)])
    first, *rest = sentences(several)
    assert first == "h1 GPU-h1-0 is cordoned: take it out of fleet_cordoned_gpus"
    assert rest == [
        f"{first}; and the same for h2 GPU-h2-0",
        f"{first}; and the same for h2 GPU-h2-0 and h3 GPU-h3-0",
        f"{first}; and the same for h2 GPU-h2-0, h3 GPU-h3-0 and h4 GPU-h4-0",
    ]


def test_a_setting_of_hosts_is_changed_on_no_more_of_them_than_it_takes() -> None:
    hosts = [replace(each, modes=("mig",)) for each in machines(6, 4)]
    asked = problem(hosts, [need("wide", "exclusive", count=4, replicas=2)])
    allow = "allow 'whole' in fleet_gpu_modes of h1"
    assert sentences(asked) == [allow, f"{allow}; and the same for h2"]


def test_of_several_hosts_each_that_is_of_no_use_is_left_out() -> None:
    hosts = [replace(each, modes=("mig",)) for each in machines(3, 2)]
    hosts[0] = replace(hosts[0], capacity=Resources(1, None, None, None))
    asked = problem(hosts, [need("wide", "exclusive", replicas=4, resources=Resources(2))])
    assert sentences(asked)[-1] == "allow 'whole' in fleet_gpu_modes of h2; and the same for h3"


def test_preemption_is_told_to_all_replicas_that_it_serves() -> None:
    low = [need(f"low{number}", "exclusive", priority=20) for number in (1, 2, 3)]
    before = [on(f"low{number}", 0, f"h{number}") for number in (1, 2, 3)]
    asked = problem(machines(3), [*low, need("ocr", "exclusive", replicas=2)], before)
    assert sentences(asked) == ["allow fleet_preemption: low1-1 and low2-1 would give way"] * 2


def test_of_replicas_of_one_service_the_fewest_stop() -> None:
    before = [on("notebook", number, replica=number + 1) for number in range(3)]
    asked = problem(machines(1, 3), [need("notebook", "exclusive", replicas=3), need("ocr", "exclusive")], before)
    _priority, stop = proposals(asked)[0].changes
    assert (stop.kind, stop.lost) == ("stop", ("notebook-3",))
    (line,) = sentences(asked, {f"notebook-{number}": "2026-12-01" for number in (1, 2, 3)})
    assert line == "wait for h1 GPU-h1-2 until the lease of notebook-3 ends on 2026-12-01, and write 'replicas: 2' for notebook then"


def test_a_full_shared_gpu_without_memory_is_in_use_and_not_a_matter_of_its_sharers() -> None:
    sharers = [need(f"s{number}", "shared", 20000) for number in (1, 2)]
    hosts = [host(l40s(), modes=("shared",), shared_max=2), host(l40s(0, "h2"), name="h2", modes=("whole",))]
    before = [place("s1", "0", mode="shared"), place("s2", "0", mode="shared"), on("low", 0, "h2")]
    needs = [*sharers, need("low", "exclusive", priority=10), need("ocr", "shared", 30000, priority=30)]
    hosts[1] = replace(hosts[1], modes=("shared", "whole"))
    (found,) = proposals(problem(hosts, needs, before))
    assert (found.cause, found.changes[0].sentence) == ("in use", "allow fleet_preemption: low-1 would give way")


def test_a_quota_and_moves_are_told_with_how_many_and_of_whom() -> None:
    hosts = [
        host(gpu(0), gpu(1), modes=("whole",), capacity=Resources(64, 200_000, 2048, 10**6)),
        host(l40s(0, "h2"), name="h2", modes=("whole",)),
    ]
    neighbour = need("neighbour", "exclusive", 9000, resources=Resources(1, 1000, 1024))
    ocr = need("ocr", "exclusive", 36000, team="claims", resources=Resources(1, 1000, 2048), models=("a100",))
    asked = replace(problem(hosts, [neighbour, ocr], [on("neighbour", 0)]), quotas=(Quota("claims", (Limit("memory", 10000),)),))
    change = proposals(asked)[0].changes[0]
    assert change.sentence == (
        "raise the quota of claims by 71920 MiB (fleet_quotas); and allow fleet_moves: 1, and neighbour-1 would move"
    )
    assert [edit.value for edit in change.edits if edit.field == "moves"] == [1]


def test_no_more_moves_are_allowed_than_each_of_the_replicas_takes() -> None:
    small = [need(f"small{number}", memory_mib=9000) for number in range(1, 5)]
    hosts = [host(gpu(0, f"h{number}", slices="1g.10gb@0"), name=f"h{number}") for number in (1, 2, 3)]
    hosts.append(host(gpu(0, "h4", slices="1g.10gb@0"), name="h4", modes=("mig",)))
    before = [place(f"small{number}", "0:1g.10gb@0", on=f"h{number}") for number in range(1, 5)]
    first, second = sentences(problem(hosts, [*small, need("ocr", "exclusive", 16000, replicas=2)], before))
    assert first.startswith("allow fleet_moves: 1, and small1-1")
    assert second.startswith("allow fleet_moves: 1, and small1-1")


@pytest.mark.parametrize("kept", [True, False])
def test_others_move_for_kept_room_and_from_gpus_that_are_full(kept: bool) -> None:
    if kept:
        hosts = [host(gpu(0), gpu(1, slices="1g.10gb@0")), host(gpu(0, "h2", mig=True), name="h2", modes=("mig",))]
        needs = [need("small", memory_mib=9000), need("ocr", "exclusive", 36000, keep_room=True)]
        before = [place("small", "0:1g.10gb@0".replace("0:", "1:"))]
    else:
        hosts = [host(l40s(), modes=("shared",), shared_max=2), host(l40s(0, "h2", memory_mib=24000), name="h2", modes=("shared",))]
        needs = [need("s1", "shared", 5000), need("s2", "shared", 5000), need("ocr", "shared", 30000)]
        before = [place("s1", "0", mode="shared"), place("s2", "0", mode="shared")]
    (line,) = sentences(problem(hosts, needs, before))
    assert line == f"allow fleet_moves: 1, and {'small-1' if kept else 's1-1'} would move"


def test_as_high_a_priority_as_theirs_will_do_where_others_may_move() -> None:
    a30 = gpu(0, "h2", board="a30", memory_mib=24576, geometry=A30, mig=True)
    hosts = [host(gpu(slices="1g.10gb@0")), host(a30, name="h2", modes=("mig",))]
    needs = [need("small", memory_mib=9000, priority=50), need("ocr", "exclusive", 36000, priority=20)]
    asked = replace(problem(hosts, needs, [place("small", "0:1g.10gb@0")]), moves=3)
    assert sentences(asked) == ["raise its priority to 50, and what is there may move for it"]


def test_nobody_is_told_to_do_with_next_to_nothing() -> None:
    hosts = [host(l40s(), modes=("shared",))]
    needs = [need("first", "shared", 44_900, priority=80), need("ocr", "shared", 36000)]
    (found,) = proposals(problem(hosts, needs, [place("first", "0", mode="shared")]))
    assert [change.kind for change in found.changes] == ["priority"]


def test_nothing_is_told_beside_a_change_that_does_alone() -> None:
    shared = host(l40s(0), modes=("shared",), capacity=Resources(3, None, None, None))
    whole = host(l40s(0, "h2"), name="h2", modes=("whole",))
    asked = problem([shared, whole], [need("ocr", "slice", 9000, resources=Resources(4))])
    assert proposals(asked)[0].changes[0].sentence == "write 'isolation: exclusive': h2 has whole GPUs"


def test_who_alone_wants_to_be_apart_is_named() -> None:
    hosts = [host(gpu(0, f"h{number}", slices="1g.10gb@0"), name=f"h{number}") for number in (1, 2)]
    needs = [
        need("aa", memory_mib=9000, rules=Rules(apart=("ocr",))),
        need("bb", memory_mib=9000),
        need("ocr", memory_mib=9000, rules=Rules(apart=("bb",))),
    ]
    before = [place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@0", on="h2")]
    (found,) = proposals(problem(hosts, needs, before))
    assert found.changes[1].sentence == "let it be on one host with aa ('apart', which only aa says)"
