# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drained GPUs and hosts in a plan: nothing new comes, what is there leaves for a place elsewhere, and what finds none stays."""

from __future__ import annotations

import random
import sys
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, explain_plans, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    RELEASE_HOST,
    Drain,
    Gpu,
    Limit,
    Problem,
    Quota,
    Resources,
    Rules,
    as_one,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import edited
from ansible_collections.gpuops.fleet.tests.bench.planner import metamorphic_world
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import (
    facts,
    gpu,
    gpu_facts,
    host,
    l40s,
    manifest_text,
    need,
    place,
    problem,
    where,
)

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
WORDS = "drained by lin (fan) until 2026-12-01"
DRAIN = {"by": "lin", "reason": "fan", "since": "2026-11-21T12:00:00Z", "until": "2026-12-01T23:59:59Z", "force": False}
SOFT, HARD = Drain(WORDS), Drain(WORDS, force=True)


def test_a_drained_gpu_gets_nothing_new() -> None:
    found = make_plan(problem([host(gpu(0, drain=SOFT), gpu(1))], [need(replicas=2)]))
    assert [where(each)[:4] for each in found.placements] == ["h1/1", "h1/1"]
    alone = make_plan(problem([host(gpu(0, drain=SOFT))], [need()]))
    assert [(each.reason, each.help) for each in alone.unplaced] == [
        (f"h1: 1 GPU {WORDS}", f"h1 GPU-h1-0 is {WORDS}: run playbook release")
    ]


def test_where_somebody_leaves_a_drained_gpu_the_solver_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say nothing, and takes longer to load than the plan."""
    needs, first, second = [need("s1"), need("large", memory_mib=200_000)], gpu(0, "h1"), gpu(1, "h1")
    before = make_plan(problem([host(first, second)], needs)).placements
    monkeypatch.setitem(sys.modules, "ansible_collections.gpuops.fleet.plugins.plugin_utils.solver", None)
    solution = make_plan(problem([host(replace(first, drain=Drain("drained by lin")), second)], needs, before))
    assert solution.proof is not None
    assert solution.proof.unproven.startswith("who leaves a drained GPU")


def test_what_is_on_a_drained_gpu_goes_to_another_of_the_same_host_with_its_port_and_pushes_nobody_out() -> None:
    world = problem(
        [host(gpu(0, slices="1g.10gb@0", drain=SOFT), gpu(1, slices="3g.40gb@4"))],
        [need("big", memory_mib=30000), need(ports=(("http", None),))],
        [place("big", "1:3g.40gb@4"), place("ocr", "0:1g.10gb@0", http=18007)],
    )
    found = make_plan(world)
    assert [(where(each), each.ports) for each in found.placements] == [("h1/1:3g.40gb@4", ()), ("h1/1:1g.10gb@0", (("http", 18007),))]
    assert (found.unplaced, found.waiting, set(found.layouts)) == ((), (), {("h1", "GPU-h1-1")})


@pytest.mark.parametrize("drain", [SOFT, HARD])
def test_a_replica_without_a_place_elsewhere_stays_and_is_told_and_by_force_it_goes(drain: Drain) -> None:
    old = place("ocr", "0:7g.80gb@0", http=18000)
    world = problem([host(gpu(0, slices="7g.80gb@0", drain=drain))], [need(memory_mib=70000, ports=(("http", None),))], [old])
    found = make_plan(world)
    stays = not drain.force
    assert (found.placements, found.waiting) == ((), (old,) if stays else ())
    assert bool(found.layouts) is stays
    assert found.unplaced[0].reason == f"its place, 7g.80gb@0 on h1 GPU-h1-0, is {WORDS}, and there is none elsewhere: h1: 1 GPU {WORDS}"
    assert planner_checker.complaints(world, found) == []


def test_who_stays_keeps_cpu_port_and_every_gpu_that_it_has() -> None:
    """A whole-GPU replica on two GPUs of which one is drained: nobody gets the other one, nor its cores."""
    old = place("train", "0,1", mode="whole", http=18000)
    world = problem(
        [host(l40s(0, drain=SOFT), l40s(1), name="h1", capacity=Resources(8, None, None, None))],
        [
            need("train", "exclusive", count=2, resources=Resources(6), ports=(("http", None),)),
            need("aa", "exclusive", priority=99, resources=Resources(1)),
            need("bb", "exclusive", priority=99, resources=Resources(4)),
        ],
        [old],
    )
    found = make_plan(world)
    assert (found.placements, found.waiting) == ((), (old,))
    assert [each.service for each in found.unplaced] == ["aa", "bb", "train"]
    assert planner_checker.complaints(world, found) == []


def crowded(**more: object) -> Problem:
    """A host whose last cores, port and quota somebody has on a drained GPU, and somebody else who would need one of these."""
    old = need("batch", priority=10, resources=Resources(6, 0, 0, 0), ports=(("http", 18000),), team="claims")
    return problem(
        [host(gpu(0, slices="1g.10gb@0", drain=SOFT), l40s(1), capacity=Resources(8, 0, 0, 0))],
        [old, need("notary", "exclusive", memory_mib=40000, priority=90, **more)],
        [place("batch", "0:1g.10gb@0", http=18000)],
    )


@pytest.mark.parametrize(
    "more",
    [
        {"resources": Resources(4, 0, 0, 0)},
        {"ports": (("http", 18000),)},
        {"rules": Rules(apart=("batch",))},
        {"team": "claims"},
    ],
)
def test_who_stays_on_a_drained_gpu_is_in_nobody_s_way_who_comes_before_it_where_preemption_is_allowed(more: dict[str, object]) -> None:
    world = replace(crowded(**more), quotas=(Quota("claims", (Limit("memory", 50000),)),))
    found = make_plan(world)
    assert ([each.service for each in found.waiting], [each.service for each in found.unplaced]) == (["batch"], ["batch", "notary"])
    forced = replace(world, preemption=True)
    found = make_plan(forced)
    assert ([each.service for each in found.placements], found.waiting) == (["notary"], ())
    assert found.unplaced[0].reason.startswith("it gave way to notary-1: its place, 1g.10gb@0 on h1 GPU-h1-0, is drained by lin (fan)")
    assert planner_checker.complaints(forced, found) == []
    again = replace(forced, previous=found.placements)
    assert make_plan(again).placements == found.placements


def test_who_waits_on_a_drained_gpu_for_a_group_that_cannot_be_whole_goes_as_the_others_do_and_who_goes_together_with_it() -> None:
    asked = problem(
        [host(gpu(0, slices="1g.10gb@0 1g.10gb@1", drain=SOFT))],
        [need("pair", replicas=2, rules=Rules(all_or_nothing=True)), need("beside", rules=Rules(together=("pair",)))],
        [place("pair", "0:1g.10gb@0"), place("beside", "0:1g.10gb@1")],
    )
    alone = replace(asked, needs=tuple(replace(each, replicas=1) for each in asked.needs))
    assert [each.service for each in make_plan(alone).waiting] == ["beside", "pair"]
    found = make_plan(asked)
    assert (found.placements, found.waiting) == ((), ())
    assert planner_checker.complaints(asked, found) == []


@pytest.mark.parametrize("second", [gpu(2), l40s(2)])
def test_who_is_needed_beside_others_leaves_a_drained_gpu_for_another_of_its_host_and_for_no_other_host(second: Gpu) -> None:
    asked = problem(
        [host(gpu(0, slices="1g.10gb@0", drain=SOFT), l40s(1), second), host(gpu(0, host="h2"), name="h2")],
        [need("cache"), need("ocr", "exclusive", memory_mib=40000, rules=Rules(together=("cache",)))],
        [place("cache", "0:1g.10gb@0"), place("ocr", "1", mode="whole")],
    )
    found = make_plan(asked)
    assert planner_checker.complaints(asked, found) == []
    if second.geometry is not None:
        assert [where(each) for each in found.placements] == ["h1/2:1g.10gb@6", "h1/1"]
    else:
        assert [each.service for each in found.waiting] == ["cache"]
        reason = f"its place, 1g.10gb@0 on h1 GPU-h1-0, is {WORDS}, and h1 has no other for it, where ocr needs it"
        assert found.unplaced[0].reason == reason


def test_after_drains_any_fleet_keeps_every_rule_no_priority_waits_for_a_lower_one_and_a_second_plan_is_the_same() -> None:
    for seed in range(60):
        given = metamorphic_world.world(seed, 3)
        asked = metamorphic_world.after_drains(planned(given, make_plan(given)), random.Random(seed))
        found = make_plan(asked)
        assert (seed, planner_checker.complaints(asked, found)) == (seed, [])
        again = make_plan(replace(asked, previous=(*found.placements, *found.waiting)))
        assert (seed, again.placements, again.waiting) == (seed, found.placements, found.waiting)


def test_who_is_in_nobody_s_way_stays_on_a_drained_gpu_though_preemption_is_allowed() -> None:
    found = make_plan(replace(crowded(resources=Resources(2, 0, 0, 0)), preemption=True))
    assert ([each.service for each in found.placements], [each.service for each in found.waiting]) == (["notary"], ["batch"])


def test_what_one_gives_back_by_leaving_helps_those_who_were_asked_before() -> None:
    """First 'aa' finds no cores on h2; then 'bb' leaves h2 for h3 and 'aa' takes its cores: a second plan would change nothing."""
    world = problem(
        [
            host(gpu(0, "h1", slices="1g.10gb@0", drain=SOFT), name="h1"),
            host(gpu(0, "h2", slices="1g.10gb@0", drain=SOFT), gpu(1, "h2", slices="1g.10gb@0"), name="h2", capacity=Resources(4)),
            host(l40s(0, "h3"), name="h3", modes=("whole",)),
        ],
        [need("aa", priority=90, models=("a100",), resources=Resources(4)), need("bb", "exclusive", priority=10, resources=Resources(4))],
        [place("aa", "0:1g.10gb@0", on="h1"), place("bb", "0", on="h2", mode="whole")],
    )
    found = make_plan(world)
    assert [where(each) for each in found.placements] == ["h2/1:1g.10gb@0", "h3/0"]
    again = make_plan(problem(world.hosts, world.needs, found.placements))
    assert (again.placements, again.unplaced) == (found.placements, ())


def test_a_share_and_a_place_whose_manifest_asks_for_more_by_now_leave_too() -> None:
    hosts = [host(l40s(0, drain=SOFT), l40s(1), modes=("shared",))]
    found = make_plan(
        problem(hosts, [need("aa", "shared"), need("bb", "shared")], [place("aa", "0", mode="shared"), place("bb", "0", mode="shared")])
    )
    assert [where(each) for each in found.placements] == ["h1/1", "h1/1"]
    grown = make_plan(problem([host(gpu(0, slices="1g.10gb@0", drain=SOFT))], [need(memory_mib=70000)], [place("ocr", "0:1g.10gb@0")]))
    assert (grown.placements, grown.waiting, len(grown.unplaced)) == ((), (), 1)


@pytest.mark.parametrize("drain", [SOFT, HARD])
def test_an_adopted_service_stays_on_a_drained_gpu(drain: Drain) -> None:
    old = place("old", "0:1g.10gb@0", http=9000)
    found = make_plan(problem([host(gpu(0, slices="1g.10gb@0", drain=drain), gpu(1))], [need("old", adopted=True)], [old]))
    assert (found.placements, found.unplaced) == ((old,), ())


def test_a_pinned_gpu_that_is_drained_keeps_its_layout_and_loses_its_replicas() -> None:
    from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Pin

    pin = Pin("mig", (Slice(0, "3g.40gb"), Slice(4, "3g.40gb")))
    world = problem(
        [host(gpu(0, slices="3g.40gb@0 3g.40gb@4", pin=pin, drain=SOFT), gpu(1))], [need(memory_mib=30000)], [place("ocr", "0:3g.40gb@0")]
    )
    found = make_plan(world)
    assert [where(each)[:4] for each in found.placements] == ["h1/1"]
    assert found.layouts[("h1", "GPU-h1-0")].slices == pin.slices


# A fleet, from facts


def fleet(host_drain: t.Any = None, **gpu_drains: t.Any) -> dict[str, dict[str, t.Any]]:
    """Hosts h1 and h2 with one A100 each; a drain by the host's name is that of its GPU."""
    result = {}
    for name in ("h1", "h2"):
        known = facts([{**gpu_facts(0, name, slices="1g.10gb@0"), "drain": gpu_drains.get(name)}], drains_idle=[])
        known["host"]["drain"] = host_drain if name == "h2" else None
        result[name] = {"facts": known, "policy": {"fleet_environment": "production", "fleet_gpu_modes": ["mig"]}}
    return result


def plan(hosts: dict[str, dict[str, t.Any]], last: Planned | None = None) -> Planned:
    texts = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    return plan_fleet([("m/ocr.yml", manifest_text("ocr", replicas="2"))], texts, hosts, CATALOGUE, ["http"])


def names(planned: Planned, host_name: str) -> list[str]:
    return [plan_record.name_of(line) for line in planned.plans[host_name].data["services"]]


@pytest.mark.parametrize("whole", [True, False])
def test_a_plan_says_who_moved_and_why_and_a_second_plan_is_the_same_bytes(whole: bool) -> None:
    first = plan(fleet())
    assert (names(first, "h1"), names(first, "h2")) == (["ocr-1"], ["ocr-2"])
    drained = fleet(DRAIN) if whole else fleet(h2=DRAIN)
    second = plan(drained, first)
    assert (names(second, "h1"), names(second, "h2")) == (["ocr-1", "ocr-2"], [])
    assert any(line.endswith("moved from h2 GPU-h2-0 1g.10gb@0: it is drained") for line in second.table)
    assert second.notes == [f"h2 GPU-h2-0 is {WORDS}: nothing stays on it"]
    manifests = [("m/ocr.yml", manifest_text("ocr", replicas="2"))]
    before, now = ({name: (f"plans/{name}.yml", each.text) for name, each in planned.plans.items()} for planned in (first, second))
    assert explain_plans(manifests, before, now, drained, CATALOGUE, ["http"]) == {"ocr-2": "it is drained; the only GPU with room for it"}
    again = plan(drained, second)
    assert {name: each.text for name, each in again.plans.items()} == {name: each.text for name, each in second.plans.items()}


def test_a_drained_host_is_one_line_whatever_the_number_of_its_gpus() -> None:
    hosts = fleet()
    whole = facts([gpu_facts(number, "h2") for number in range(4)], drains_idle=[])
    whole["host"]["drain"] = DRAIN
    hosts["h2"]["facts"] = whole
    assert plan(hosts).notes == [f"h2 4 GPUs are {WORDS}: nothing stays on them"]


def test_who_stays_is_in_the_plan_of_the_host_and_in_the_list_of_those_without_a_place() -> None:
    first = plan(fleet())
    both = fleet(h1=DRAIN, h2={**DRAIN, "by": "ann", "reason": "dust", "until": None})
    second = plan(both, first)
    assert (names(second, "h1"), names(second, "h2")) == (["ocr-1"], ["ocr-2"])
    assert {name: each.text for name, each in second.plans.items()} == {name: each.text for name, each in first.plans.items()}
    assert second.unplaced[0]["reason"].startswith(f"its place, 1g.10gb@0 on h1 GPU-h1-0, is {WORDS}, and there is none elsewhere: ")
    assert any(line.endswith("no place elsewhere, stays on h1 GPU-h1-0 1g.10gb@0") for line in second.table)
    assert second.notes == [f"h1 GPU-h1-0 is {WORDS}: ocr-1 stays on it", "h2 GPU-h2-0 is drained by ann (dust): ocr-2 stays on it"]
    forced = plan(fleet(h1=DRAIN, h2={**DRAIN, "force": True}), first)
    assert (names(forced, "h1"), names(forced, "h2"), [each["replica"] for each in forced.unplaced]) == (["ocr-1"], [], [1, 2])


def test_without_knowing_what_is_drained_nothing_is_planned() -> None:
    hosts = fleet()
    hosts["h2"]["facts"]["drains_idle"] = None
    with pytest.raises(FleetError, match=r"^host h2: facts\.drains_idle: what is drained on this host could not be read"):
        plan(hosts)


def test_facts_that_were_published_before_there_were_drains_are_planned_as_ever() -> None:
    hosts = fleet()
    for each in hosts.values():
        del each["facts"]["drains_idle"], each["facts"]["host"]["drain"], each["facts"]["gpus"][0]["drain"]
    assert plan(hosts).unplaced == []


def test_a_drained_place_is_left_for_another_where_it_is_itself_all_that_the_quota_lacks() -> None:
    """Others who wait look for room first, and find that nobody of its kind may have more: it gives back what it takes."""
    drained = host(gpu(0, "a", slices="3g.40gb@4", drain=SOFT), name="a")
    free = host(gpu(0, "b", slices="3g.40gb@4"), gpu(1, "b"), gpu(2, "b", slices="3g.40gb@0 3g.40gb@4"), name="b")
    needs = [
        need("asr", profile="3g.40gb", team="t"),
        need("fraud", profile="3g.40gb", team="t"),
        need("train", "shared", 10000, priority=90, sharing="mps"),
        need("embed", memory_mib=11000),
        need("rank", memory_mib=36000, replicas=2, team="t"),
    ]
    before = [
        place("asr", "0:3g.40gb@4", on="a"),
        place("fraud", "2:3g.40gb@4", on="b"),
        place("rank", "0:3g.40gb@4", on="b"),
        place("rank", "2:3g.40gb@0", replica=2, on="b"),
    ]
    asked = Problem((drained, free), tuple(needs), tuple(before), quotas=(Quota("t", (Limit("memory", 4 * 40448),)),), moves=3)
    found = make_plan(asked)
    assert {each.host for each in found.placements} == {"b"}
    assert not found.waiting
    assert make_plan(planned(asked, found)).placements == found.placements


def test_whoever_depends_in_turn_on_somebody_who_may_not_go_ends_the_search_for_who_could() -> None:
    # It went on for ever: those who stay were held by a service that was itself only pushed out with others.
    seed = 54126
    given = metamorphic_world.world(seed, random.Random(seed).choice([1, 2, 3, 4]))
    made = planned(given, make_plan(given))
    chance = [random.Random(seed + number).choice([0, 0, 1]) for number in range(len(given.needs))]
    ranks = [random.Random(seed * 7 + number).choice([30, 50, 80]) for number in range(len(given.needs))]
    needs = [
        replace(each, replicas=each.replicas + more, priority=rank) for each, more, rank in zip(given.needs, chance, ranks, strict=True)
    ]
    for asked in (
        metamorphic_world.after_drains(made, random.Random(seed)),
        replace(made, needs=tuple(needs), preemption=True, moves=random.Random(seed).choice([0, 1, 3])),
    ):
        assert planner_checker.complaints(asked, make_plan(asked)) == []


def test_of_a_gpu_that_is_drained_twice_both_are_told_and_what_ends_both() -> None:
    hosts = fleet({**DRAIN, "by": "kim", "force": True}, h2=DRAIN)
    hosts["h2"]["policy"]["fleet_gpu_layouts"] = [{"gpu": "0000:01:00.0", "mode": "passthrough"}]
    del hosts["h1"]
    pinned = "kept for virtual machines (fleet_gpu_layouts: passthrough)"
    (told, _other) = plan(hosts).unplaced
    assert (
        f"h2 GPU-h2-0 is {WORDS} and {pinned}: run playbook release and give it another mode there, and run playbook mode; "
        "and h2 is drained by kim (fan) until 2026-12-01: run playbook release for the whole host" in told["reason"]
    )


def test_of_a_host_that_is_drained_as_a_whole_the_host_is_released() -> None:
    hosts = fleet({**DRAIN, "by": "kim"})
    del hosts["h1"]
    (told, _other) = plan(hosts).explained
    assert told.sentence == "h2 is drained by kim (fan) until 2026-12-01: run playbook release for the whole host"


def test_a_host_that_is_released_leaves_what_is_drained_of_it_for_itself() -> None:
    own, whole = Drain("drained by lin"), Drain("drained by kim", remedy=RELEASE_HOST, of_host=True)
    first, second = (replace(gpu(number), drain=drain) for number, drain in enumerate((as_one([own, whole]), whole)))
    asked = problem([host(first, second)], [need("wide", isolation="exclusive", count=2)])
    (found,) = propose(asked, make_plan(asked))
    assert found.sentence == (
        "h1 is drained by kim: run playbook release for the whole host; and h1 GPU-h1-0 is drained by lin: run playbook release"
    )
    (change,) = found.changes
    for edits in (change.edits, change.edits[::-1]):
        assert not make_plan(edited(asked, edits)).unplaced


def test_who_leaves_a_gpu_that_is_kept_for_virtual_machines_is_not_told_that_it_is_drained() -> None:
    first = plan(fleet())
    hosts = fleet()
    hosts["h2"]["policy"]["fleet_gpu_layouts"] = [{"gpu": "0000:01:00.0", "mode": "passthrough"}]
    (moved,) = [line for line in plan(hosts, first).table if "moved" in line]
    assert moved.endswith(": it is kept for virtual machines (fleet_gpu_layouts: passthrough)")
