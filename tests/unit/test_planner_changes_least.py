# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of the changes that would do, the least is told: no larger raise, nothing that the rest does without, the same in any order of hosts."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Problem, Quota, Resources, Rules, Workspace, carried_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s, need, place


def proposals(asked: Problem) -> list[Proposal]:
    return propose(asked, make_plan(asked))


def sentences(asked: Problem) -> list[list[str]]:
    return [[change.sentence for change in each.changes] for each in proposals(asked)]


# As text, "15000 MiB" comes before "5000 MiB" and "12 GiB" before "4 GiB".
@pytest.mark.parametrize(("size", "words"), [(5000, ("5000 MiB", "10000 MiB", "15000 MiB")), (4096, ("4 GiB", "8 GiB", "12 GiB"))])
def test_a_quota_is_raised_by_what_each_replica_and_those_before_it_lack(size: int, words: tuple[str, ...]) -> None:
    fleet = host(l40s(0), l40s(1), modes=("shared",), shared_max=8, shared_compute=10)
    quota = Quota("claims", (Limit("memory", size),))
    asked = Problem((fleet,), (need("ocr", "shared", size, replicas=4, team="claims", rules=Rules(spread="pack")),), quotas=(quota,))
    assert sentences(asked) == [[f"raise the quota of claims by {word} (fleet_quotas)"] for word in words]


def test_a_quota_is_raised_by_what_each_service_and_those_of_its_team_before_it_lack() -> None:
    fleet = host(l40s(0), l40s(1), modes=("shared",), shared_max=8, shared_compute=10)
    names, quota = [f"nb-{number}" for number in range(1, 7)], Quota("claims", (Limit("memory", 4096),))
    asked = Problem(
        (fleet,), tuple(need(name, "shared", 2048, team="claims", rules=Rules(spread="pack")) for name in names), quotas=(quota,)
    )
    assert sentences(asked) == [[f"raise the quota of claims by {more} GiB (fleet_quotas)"] for more in (2, 4, 6, 8)]


def test_a_team_that_has_borrowed_is_told_what_it_lacks_and_not_what_it_has_on_loan() -> None:
    fleet = host(l40s(0), l40s(1), modes=("shared",), shared_max=8, shared_compute=10)
    teams = (Quota("lin", (Limit("memory", 2048),), "ins", borrow=True), Quota("ocr", (Limit("memory", 8192),), "ins", lend=True))
    space = Workspace("ins", (Limit("memory", 10240),))
    wanted = tuple(need(f"nb-{number}", "shared", 2048, team="lin", rules=Rules(spread="pack")) for number in range(1, 8))
    asked = Problem((fleet,), wanted, quotas=teams, workspaces=(space,))
    found = sentences(asked)
    assert [each[0].split(" and ")[0] for each in found] == [f"raise the quota of lin by {more} GiB" for more in (2, 4)]


def test_of_many_replicas_the_further_ones_are_told_what_all_lack() -> None:
    fleet = host(*(l40s(number) for number in range(4)), modes=("shared",), shared_max=8, shared_compute=10)
    quota = Quota("claims", (Limit("memory", 5000),))
    asked = Problem((fleet,), (need("ocr", "shared", 5000, replicas=8, team="claims"),), quotas=(quota,))
    assert [each[0].split(" by ")[1].split(" (")[0] for each in sentences(asked)] == [
        "5000 MiB",
        "10000 MiB",
        "15000 MiB",
        *["35000 MiB"] * 4,
    ]


def test_what_others_lend_is_not_asked_for_too_and_what_is_told_is_enough_at_once_and_afterwards() -> None:
    hosts = [host(gpu(0, name, mig=True), gpu(1, name, mig=True), name=name) for name in ("h1", "h2")]
    needs = [need(name, "slice", 9216, team="aa", replicas=many) for name, many in (("x", 4), ("y", 2), ("z", 2), ("v", 1))]
    quotas = (Quota("aa", (Limit("memory", 20480),), "ww", borrow=True), Quota("bb", (Limit("memory", 40960),), "ww", lend=True))
    asked = Problem(tuple(hosts), tuple(needs), quotas=quotas, workspaces=(Workspace("ww", (Limit("memory", 409600),)),))
    # Three slices of 9856 MiB lack, of which bb still lends 2304 MiB.
    lacking = {("x", 3): 2 * 9856 - 2304, ("x", 4): 3 * 9856 - 2304, ("z", 2): 3 * 9856 - 2304}
    words = {17408: "17 GiB", 27264: "27264 MiB"}
    solution = make_plan(asked)
    assert {(each.service, each.replica): [change.sentence for change in each.changes] for each in propose(asked, solution)} == {
        key: [f"raise the quota of aa by {words[much]} (fleet_quotas)"] for key, much in lacking.items()
    }
    for key, much in lacking.items():
        for more, enough in ((much, True), (much - 1, False)):
            raised = (replace(quotas[0], limits=(Limit("memory", 20480 + more),)), quotas[1])
            plans = [make_plan(replace(each, quotas=raised)) for each in (asked, carried_out(asked, solution))]
            assert all(key not in {(each.service, each.replica) for each in plan.unplaced} for plan in plans) is enough


def test_who_lacks_a_quota_may_wait_for_the_leases_of_its_team() -> None:
    hosts = (host(l40s(0), l40s(1), modes=("shared",), shared_max=8, shared_compute=4),)

    def told(leases: dict[str, str], memory_mib: int = 2048) -> list[str]:
        needs = [need(name, "shared", size, team="claims") for name, size in (("kay", 2048), ("lin", 2048), ("new", memory_mib))]
        there = [place(name, "0", mode="shared") for name in ("kay", "lin")]
        asked = Problem(hosts, tuple(needs), tuple(there), quotas=(Quota("claims", (Limit("memory", 4096),)),))
        ((service, sentences),) = [
            (each.service, [one.sentence for one in each.changes]) for each in propose(asked, make_plan(asked), leases)
        ]
        assert service == "new"
        return sentences

    more = "raise the quota of claims by {} GiB (fleet_quotas)"
    both = {"kay-1": "2026-12-05", "lin-1": "2026-12-04"}
    assert told({}) == [more.format(2)]
    assert told(both) == ["wait until the lease of lin-1 ends on 2026-12-04, and remove the manifest of lin then", more.format(2)]
    waits = "wait until the leases of lin-1 and kay-1 end on 2026-12-05, and remove the manifests of kay and lin then"
    assert told(both, 4096) == [waits, more.format(4)]
    assert told({"kay-1": ""}) == ["the lease of kay-1 is over, and quotas still count it: remove the manifest of kay", more.format(2)]


def test_a_port_that_only_a_rollout_lacks_is_room_that_is_not_kept() -> None:
    ocr = need("ocr", "slice", 5000, replicas=2, ports=(("http", None),), keep_room=True)
    asked = Problem((host(gpu(0, mig=True), ports=(18000, 18001)),), (ocr,))
    assert [each.reason for each in make_plan(asked).unplaced] == ["h1: has no room for its rollout beside it (keep_room)"]
    assert [(each.cause, [change.kind for change in each.changes]) for each in proposals(asked)] == [("kept room", ["keep_room"])]
    wider = Problem((host(gpu(0, mig=True), ports=(18000, 18001, 18002)),), (ocr,))
    assert make_plan(wider).unplaced == ()


def test_nobody_is_stopped_who_has_another_place_on_another_host() -> None:
    a30 = [gpu(number, board="a30", memory_mib=24576, geometry=A30) for number in range(2)]
    hosts = host(*a30, modes=("shared", "whole"), data_classes=("personal",)), host(gpu(0, "h3"), name="h3")
    old = need("old", "exclusive", 9800, replicas=2, priority=40)
    new = need("new", "slice", 3000, priority=60, data_class="personal")
    previous = tuple(place("old", str(number), replica=number + 1, mode="whole") for number in range(2))
    asked = Problem(hosts, (old, new), previous, preemption=True)
    assert sentences(asked) == [["allow 'mig' in fleet_gpu_modes of h1"]]


def test_no_second_change_is_the_first_one_and_more() -> None:
    shm = Resources(None, None, 4000, None)
    fleet = (
        host(gpu(0), capacity=Resources(None, None, 2612, None)),
        host(gpu(0, "h2"), name="h2", capacity=Resources(None, None, 9000, None)),
    )
    asked = Problem(fleet, (need("ocr", "slice", 5000, models=("a30",), resources=shm),))
    changes = [set(change.edits) for change in proposals(asked)[0].changes]
    assert changes
    assert not any(one < other for one in changes for other in changes)


def test_services_that_only_a_quota_keeps_out_leave_the_others_work() -> None:
    quota = Quota("t", (Limit("memory", 10000),))
    hopeless = [need(f"a{number}", "shared", 19000 + 100 * number, replicas=3, team="t") for number in range(6)]
    hosts = (
        host(gpu(0), modes=("mig",), listening=frozenset({18001})),
        host(gpu(0, "h2", board="a30", memory_mib=24576, geometry=A30), name="h2", modes=("mig",), listening=frozenset({18001})),
    )
    asked = Problem(hosts, (*hopeless, need("ocr", "slice", 3000, ports=(("http", 18001),))), quotas=(quota,), moves=2)
    assert [change.kind for each in proposals(asked) if each.service == "ocr" for change in each.changes] == ["port"]


def test_a_new_host_is_like_the_one_that_more_may_share_whatever_the_order_of_hosts() -> None:
    hosts = (
        host(l40s(0), modes=("shared",), shared_max=2),
        host(l40s(0, "h2"), name="h2", modes=("shared",), shared_max=8, shared_compute=10),
    )
    told = [sentences(Problem(each, (need("a", "shared", 5500, replicas=30),))) for each in (hosts, hosts[::-1])]
    assert told[0] == told[1]
    assert told[0][-1] == ["add 3 hosts of environment 'production', each with a free GPU that may be shared (l40s)"]


PORTS: t.Any = (("http", None),)
TIGHT: t.Any = {
    "ports": (host(gpu(0), ports=(18000,)), "slice", {"ports": PORTS}),
    "shared_max": (host(l40s(0), modes=("shared",), shared_max=1), "shared", {}),
    "capacity": (host(l40s(0), modes=("shared",), capacity=Resources(2, None, None, None)), "shared", {"resources": Resources(2)}),
}
FOR_TWO = {
    "ports": ["widen fleet_ports of h1 by 1", "widen fleet_ports of h1 by 2"],
    "shared_max": ["raise fleet_shared_max of h1 to 2", "raise fleet_shared_max of h1 to 3"],
    "capacity": ["free 2 cpus on h1, or give it so much more", "free 4 cpus on h1, or give it so much more"],
}


@pytest.mark.parametrize("what", TIGHT)
def test_who_comes_second_is_told_what_a_host_lacks_for_both_and_not_to_buy_another_host(what: str) -> None:
    there, isolation, asks = TIGHT[what]
    several = Problem((there,), tuple(need(name, isolation, 5000, **asks) for name in "abc"))
    assert [each[0] for each in sentences(several)] == FOR_TWO[what]


@pytest.mark.parametrize("what", ["ports", "shared_max"])
def test_each_replica_of_one_service_is_told_what_it_lacks_with_those_before_it(what: str) -> None:
    there, isolation, asks = TIGHT[what]
    alone = Problem((there,), (need("a", isolation, 5000, replicas=3, **asks),))
    assert [each[0] for each in sentences(alone)] == FOR_TWO[what]


def test_what_a_host_lacks_is_told_without_those_who_come_later() -> None:
    several = Problem((host(gpu(0), ports=(18000,)),), tuple(need(name, "slice", 9000, ports=PORTS) for name in "abcd"))
    assert [each[0] for each in sentences(several)] == [f"widen fleet_ports of h1 by {number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(("asked", "told"), [(0.3333333, None), (0.4, "ask for 0.2 of the compute: h1 GPU-h1-0 has no more left to share")])
def test_nobody_is_told_to_do_with_next_to_no_compute(asked: float, told: str | None) -> None:
    needs = [need("aa", "shared", 5_000, compute=asked, replicas=2 if told else 3, priority=60), need("bb", "shared", 5_000, compute=asked)]
    found = proposals(Problem((host(l40s(), modes=("shared",)),), tuple(needs)))[-1]
    assert [each.sentence for each in found.changes if each.sentence.startswith("ask for")] == ([told] if told else [])


def test_compute_of_shared_gpus_is_raised_by_what_each_replica_and_those_before_it_lack() -> None:
    fleet = host(l40s(), modes=("shared",), shared_max=8)
    found = sentences(Problem((fleet,), (need("ocr", "shared", 2_000, compute=0.5, replicas=4),)))
    assert [each[0] for each in found] == [f"raise fleet_shared_compute of h1 to {most}" for most in ("1.5", "2")]
