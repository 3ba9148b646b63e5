# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room for a rollout side by side is kept where a manifest asks for it: nobody who comes takes it, and the rollout finds it."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import edited, propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MPS, TIME_SLICE, Limit, Pin, Problem, Quota, Resources, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Surge, Surges
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
from ansible_collections.gpuops.fleet.tests.unit.test_planner_rules import QUICK, crowded, shuffled
from ansible_collections.gpuops.fleet.tests.unit.test_surge import CATALOGUE, LAYOUTS, NEEDS, PORTS, site_of
from hypothesis import given, settings
from hypothesis import strategies as st

SHARED: dict[str, t.Any] = {"modes": ("shared",), "sharing": (TIME_SLICE, MPS)}


def plan(asked: Problem) -> dict[str, str]:
    solution = make_plan(asked)
    assert planner_checker.complaints(asked, solution) == []
    return {each.name: where(each) for each in solution.placements}


def keeping(service: str = "ocr", isolation: str = "slice", memory_mib: int = 8192, **more: t.Any) -> t.Any:
    return need(service, isolation, memory_mib, keep_room=True, **more)


def test_whoever_comes_leaves_room_for_one_more() -> None:
    wanted = [keeping(memory_mib=30000, priority=90), need("batch", memory_mib=30000)]
    assert set(plan(problem([host(gpu(mig=True))], wanted))) == {"ocr-1"}
    assert set(plan(problem([host(gpu(mig=True)), host(gpu(0, "h2"), name="h2")], wanted))) == {"ocr-1", "batch-1"}
    assert set(plan(problem([host(gpu(mig=True))], [replace(wanted[0], keep_room=False), wanted[1]]))) == {"ocr-1", "batch-1"}


def test_a_replica_without_room_beside_it_has_no_place() -> None:
    assert plan(problem([host(gpu(mig=True))], [keeping(memory_mib=60000)])) == {}
    assert plan(problem([host(gpu(mig=True), gpu(1, mig=True))], [keeping(memory_mib=60000)])) == {"ocr-1": "h1/0:7g.80gb@0"}


def test_it_is_kept_once_for_all_replicas_of_a_service_on_a_host_and_for_each_service() -> None:
    world = host(*(l40s(number) for number in range(3)))
    assert len(plan(problem([world], [keeping(isolation="exclusive", replicas=3)]))) == 2
    two = [keeping("aa", "exclusive"), keeping("bb", "exclusive")]
    assert len(plan(problem([world], two))) == 1
    assert len(plan(problem([host(*(l40s(number) for number in range(4)))], two))) == 2


@pytest.mark.parametrize("kind", ["cpus", "memory", "shm", "disk"])
def test_cpu_memory_and_disk_are_kept_too(kind: str) -> None:
    has = replace(Resources(None, None, None, None), **{kind: 12})
    wanted = [keeping(resources=Resources(**{kind: 5}), priority=90), need("batch", resources=Resources(**{kind: 5}))]
    assert set(plan(problem([host(gpu(mig=True), capacity=has)], wanted))) == {"ocr-1"}


def test_a_port_is_kept_too() -> None:
    world = host(gpu(mig=True), ports=(18000, 18001))
    wanted = [keeping(ports=(("http", None),), priority=90), need("batch", ports=(("http", None),))]
    assert set(plan(problem([world], wanted))) == {"ocr-1"}


def test_shares_are_kept_on_a_gpu_like_the_one_that_it_has_with_mps_on_that_one() -> None:
    wanted = [keeping("ocr", "shared", 20000, priority=90), need("batch", "shared", 20000, models=("l40s",))]
    assert len(plan(problem([host(l40s(0), **SHARED)], wanted))) == 1
    assert len(plan(problem([host(l40s(0), l40s(1), **SHARED)], wanted))) == 2
    assert len(plan(problem([host(l40s(0), l40s(1, memory_mib=46000), **SHARED)], [replace(wanted[0], memory_mib=30000)]))) == 0
    by_mps = [replace(each, sharing=MPS) for each in wanted]
    assert len(plan(problem([host(l40s(0), l40s(1), **SHARED)], by_mps))) == 2
    assert len(plan(problem([host(l40s(0), l40s(1), **SHARED)], [replace(by_mps[0], memory_mib=30000)]))) == 0


def test_room_on_a_gpu_that_would_have_to_change_its_mode_is_none() -> None:
    assert plan(problem([host(gpu(0), gpu(1))], [keeping(memory_mib=60000)])) == {}
    assert set(plan(problem([host(gpu(0), gpu(1, mig=True))], [keeping(memory_mib=60000)]))) == {"ocr-1"}
    assert plan(problem([host(gpu(0, mig=True), gpu(1, mig=True), modes=("whole",))], [keeping(isolation="exclusive")])) == {}


def test_another_gpu_of_the_host_is_taken_where_the_best_one_is_kept() -> None:
    world = host(gpu(0, slices="3g.40gb@0 3g.40gb@4"), gpu(1))
    before = [place("ocr", "0:3g.40gb@0")]
    found = plan(problem([world], [keeping(memory_mib=30000, priority=90), need("batch", memory_mib=30000)], before))
    assert (found["ocr-1"], found["batch-1"][:4]) == ("h1/0:3g.40gb@0", "h1/1")
    found = plan(problem([world], [need("ocr", memory_mib=30000), need("batch", memory_mib=30000)], before))
    assert found["batch-1"] == "h1/0:3g.40gb@4"


def test_on_a_fresh_host_both_share_a_gpu_and_the_room_is_kept_on_the_other() -> None:
    world = host(gpu(0, slices="3g.40gb@0 3g.40gb@4"), gpu(1))
    found = plan(problem([world], [keeping(memory_mib=30000, priority=90), need("batch", memory_mib=30000)]))
    assert {found["ocr-1"][:4], found["batch-1"][:4]} == {"h1/1"}


def test_what_runs_stays_whatever_room_that_leaves_and_the_plan_says_so() -> None:
    before = [place("ocr", "0:3g.40gb@0"), place("batch", "0:3g.40gb@4")]
    wanted = [keeping(memory_mib=30000), need("batch", memory_mib=30000)]
    assert plan(problem([host(gpu(slices="3g.40gb@0 3g.40gb@4"))], wanted, before)) == {
        "ocr-1": "h1/0:3g.40gb@0",
        "batch-1": "h1/0:3g.40gb@4",
    }


def test_the_plan_says_where_there_is_no_room_for_whom_it_is_to_be_kept() -> None:
    texts = [(f"{name}.yml", manifest_text(name, gpu="{memory: 30 GiB}")) for name in ("batch", "ocr")]
    site = {"h1": {"facts": facts([gpu_facts()]), "policy": {"fleet_environment": "production"}}}
    first = plan_fleet(texts, {}, site, CATALOGUE)
    assert not [note for note in first.notes if "rollout" in note]
    asked = [texts[0], ("ocr.yml", manifest_text("ocr", gpu="{memory: 30 GiB}", rollout="{keep_room: true}"))]
    again = plan_fleet(asked, {"h1": ("h1.yml", first.plans["h1"].text)}, site, CATALOGUE)
    assert again.plans["h1"].text == first.plans["h1"].text
    note = "h1: there is no room for a rollout of ocr beside it (rollout.keep_room), and nobody goes for it"
    assert [each for each in again.notes if "rollout" in each] == [note]


def test_what_becomes_free_is_kept_before_somebody_else_has_it() -> None:
    before = [place("ocr", "0:3g.40gb@0")]
    wanted = [keeping(memory_mib=30000), need("batch", memory_mib=30000)]
    assert plan(problem([host(gpu(slices="3g.40gb@0 3g.40gb@4"))], wanted, before)) == {"ocr-1": "h1/0:3g.40gb@0"}


def test_a_higher_priority_takes_the_room_of_a_lower_one_before_its_place_where_preemption_is_allowed() -> None:
    wanted = [keeping(memory_mib=30000, priority=10), need("llm", memory_mib=30000, priority=90)]
    asked = problem([host(gpu(slices="3g.40gb@0 3g.40gb@4"))], wanted, [place("ocr", "0:3g.40gb@0")])
    assert set(plan(asked)) == {"ocr-1"}
    assert set(plan(replace(asked, preemption=True))) == {"ocr-1", "llm-1"}
    same = replace(asked, needs=(wanted[0], replace(wanted[1], priority=10)), preemption=True)
    assert set(plan(same)) == {"ocr-1"}


def test_others_move_to_where_they_take_no_room_of_anybody() -> None:
    hosts = [host(gpu(0, "h1", mig=True), name="h1"), host(gpu(0, "h2", mig=True), name="h2")]
    wanted = [keeping(memory_mib=30000), need("batch", memory_mib=30000), need("llm", memory_mib=60000)]
    before = [place("ocr", "0:3g.40gb@0", on="h1"), place("batch", "0:3g.40gb@0", on="h2")]
    assert set(plan(replace(problem(hosts, wanted, before), moves=3))) == {"ocr-1", "batch-1"}
    freely = [replace(wanted[0], keep_room=False), *wanted[1:]]
    assert set(plan(replace(problem(hosts, freely, before), moves=3))) == {"ocr-1", "batch-1", "llm-1"}


def test_whoever_moves_takes_no_room_of_others_with_him() -> None:
    # The second GPU is of use to a rollout only while somebody is on it: its old slice stays otherwise.
    world = host(gpu(0, slices="1g.10gb@0"), gpu(1, slices="7g.80gb@0"), ports=tuple(range(18000, 18004)))
    http = (("http", None),)
    wanted = [need("aa", ports=http), keeping(memory_mib=30000, ports=http), need("zz", ports=http, replicas=2)]
    assert set(plan(replace(problem([world], wanted), moves=3))) == {"aa-1", "ocr-1", "zz-1"}


def test_slices_that_nobody_needs_go_where_the_new_version_has_to_fit() -> None:
    small = " ".join(f"1g.10gb@{start}" for start in range(4, 7))
    asked = problem([host(gpu(slices=f"3g.40gb@0 {small}"))], [keeping(memory_mib=30000)], [place("ocr", "0:3g.40gb@0")])
    solution = make_plan(asked)
    assert planner_checker.complaints(replace(asked, previous=()), replace(solution, layouts={})) != []
    assert [str(one) for one in solution.layouts[("h1", "GPU-h1-0")].slices] == ["3g.40gb@0"]


def test_the_room_is_as_large_as_what_the_service_has_there() -> None:
    pin = Pin("mig", (Slice(0, "3g.40gb"), Slice(4, "1g.10gb"), Slice(5, "1g.10gb")))
    asked = problem([host(gpu(pin=pin, slices="3g.40gb@0 1g.10gb@4 1g.10gb@5"))], [keeping(replicas=2)])
    assert set(plan(asked)) == {"ocr-1", "ocr-2"}
    assert set(plan(replace(asked, previous=(place("ocr", "0:3g.40gb@0"),)))) == {"ocr-1"}
    small = replace(asked, needs=(keeping(replicas=2), need("batch", memory_mib=30000, priority=90)))
    assert set(plan(small)) == {"ocr-1", "batch-1"}
    assert set(plan(replace(small, needs=(keeping(replicas=1), need("batch"), need("more")), previous=(place("ocr", "0:3g.40gb@0"),)))) == {
        "ocr-1",
        "batch-1",
        "more-1",
    }


def test_no_quota_counts_it() -> None:
    quota = (Quota("claims", (Limit("memory", 41000),)),)
    asked = problem([host(gpu(mig=True))], [keeping(memory_mib=30000, team="claims")])
    assert set(plan(replace(asked, quotas=quota))) == {"ocr-1"}


def test_the_reason_names_whose_room_it_is_and_the_change_to_leave_it_out_helps() -> None:
    wanted = [keeping("ocr", "exclusive", 30000, priority=90), need("batch", "exclusive", 30000)]
    asked = problem([host(l40s(0), l40s(1))], wanted)
    solution = make_plan(asked)
    (missing,) = solution.unplaced
    assert missing.reason == "h1: keeps its room for a rollout of ocr (keep_room)"
    assert missing.help == "h1 has room on its GPUs: leave 'keep_room' of ocr out"
    (found,) = propose(asked, solution)
    assert (found.cause, found.changes[0].kind) == ("kept room", "others_room")
    assert len(make_plan(edited(planned(asked, solution), found.changes[0].edits)).placements) == 2


def test_who_lacks_room_for_itself_is_told_to_leave_it_out_or_how_many_hosts_it_takes() -> None:
    asked = problem([host(l40s(0))], [keeping("ocr", "exclusive", 30000)])
    solution = make_plan(asked)
    (missing,) = solution.unplaced
    assert missing.reason == "h1: has no room for its rollout beside it (keep_room)"
    (found,) = propose(asked, solution)
    assert (found.cause, found.changes[0].kind) == ("kept room", "keep_room")
    assert len(make_plan(edited(planned(asked, solution), found.changes[0].edits)).placements) == 1
    full = problem([host(l40s(0))], [need("old", "exclusive", adopted=True), asked.needs[0]], [place("old", "0", mode="whole")])
    (more,) = propose(full, make_plan(full))
    assert more.changes[0].sentence == "add a host of environment 'production' with 2 free GPUs (l40s)"
    assert len(make_plan(edited(planned(full, make_plan(full)), more.changes[0].edits)).placements) == 2


def test_all_whom_leaving_it_out_serves_are_told_so_and_not_to_buy_hosts() -> None:
    asked = problem([host(l40s(0), l40s(1)), host(l40s(2), l40s(3), name="h2")], [keeping("ocr", "exclusive", 30000, replicas=4)])
    solution = make_plan(asked)
    assert len(solution.unplaced) == 2
    found = propose(asked, solution)
    assert [[change.kind for change in each.changes] for each in found] == [["keep_room"], ["keep_room"]]
    assert len(make_plan(edited(planned(asked, solution), found[1].changes[0].edits)).placements) == 4


def test_a_person_moves_a_replica_only_where_its_room_is_too() -> None:
    hosts = [host(l40s(0, "h1"), l40s(1, "h1"), name="h1"), host(l40s(0, "h2"), name="h2")]
    asked = problem(hosts, [keeping("ocr", "exclusive", 30000)])
    with pytest.raises(FleetError, match=r"ocr-1 cannot move to h2: .*has no room for its rollout beside it"):
        moved(asked, Move("ocr", 1, "h2"))
    larger = [hosts[0], host(l40s(0, "h2"), l40s(1, "h2"), name="h2")]
    assert moved(problem(larger, asked.needs), Move("ocr", 1, "h2")).placements[0].host == "h2"


def test_it_is_written_in_the_rollout_block_and_refused_where_nobody_would_use_it() -> None:
    read = read_manifest("m/a.yml", manifest_text(rollout="{keep_room: true}"))
    assert need_of(read).keep_room
    assert not need_of(read_manifest("m/a.yml", manifest_text())).keep_room
    assert read.digest() == read_manifest("m/a.yml", manifest_text()).digest()
    with pytest.raises(FleetError, match=r"m/a.yml:9: rollout.keep_room: room would be kept that nobody uses: its rollouts stop first"):
        read_manifest("m/a.yml", manifest_text(rollout="{keep_room: true, way: stop-first}"))
    with pytest.raises(FleetError, match="two of runtime 'batch' never run side by side"):
        read_manifest("m/a.yml", manifest_text(rollout="{keep_room: true}", runtime="batch", ports=""))


@st.composite
def keepers(draw: st.DrawFn) -> Problem:
    """A crowd of which some want room kept, planned for fewer of them before."""
    made = draw(crowded(tight=draw(st.booleans())))
    needs = tuple(replace(each, keep_room=draw(st.booleans())) for each in made.needs)
    asked = replace(made, needs=needs)
    if draw(st.booleans()):
        return asked
    first = make_plan(replace(asked, needs=tuple(replace(each, replicas=max(1, each.replicas - 1)) for each in needs[::2]), previous=()))
    return replace(asked, previous=(*first.placements, *first.waiting))


@QUICK
@given(keepers())
def test_an_independent_checker_finds_room_for_every_rollout_that_wants_it(asked: Problem) -> None:
    assert planner_checker.complaints(asked, make_plan(asked)) == []


@QUICK
@given(keepers())
def test_planning_again_changes_nothing(asked: Problem) -> None:
    first = make_plan(asked)
    again = make_plan(replace(asked, previous=(*first.placements, *first.waiting)))
    assert (again.placements, again.layouts, again.waiting, again.displaced) == (first.placements, first.layouts, first.waiting, ())


@QUICK
@given(keepers(), st.integers(0, 1000))
def test_the_order_of_the_input_does_not_matter(asked: Problem, seed: int) -> None:
    assert make_plan(shuffled(asked, seed)) == make_plan(asked)


@st.composite
def kept_sites(draw: st.DrawFn) -> tuple[t.Any, list[str]]:
    """A host whose plan was made with room for rollouts, and carried out; and the services that wanted it."""
    wants = [draw(st.booleans()) for _number in range(draw(st.integers(1, 4)))]
    texts = [
        manifest_text(
            f"service-{number}",
            gpu=draw(st.sampled_from([*NEEDS, "{isolation: shared, sharing: mps, memory: 4 GiB}"])),
            replicas=str(draw(st.integers(1, 2))),
            ports=PORTS,
            rollout="{keep_room: true}" if wanted else "",
        )
        for number, wanted in enumerate(wants)
    ]
    gpus = []
    for number in range(draw(st.integers(1, 3))):
        layout = draw(st.sampled_from(LAYOUTS))
        found = gpu_facts(number, slices=layout)
        on = bool(layout) or draw(st.booleans())
        gpus.append({**found, "mig": {**found["mig"], "current": on, "pending": on}})
    policy = {"fleet_gpu_modes": ["mig", "whole", "shared"], "fleet_sharing": ["time-slice", "mps"]}
    site = site_of(texts, gpus, fleet_ports=f"18000-{18000 + draw(st.integers(2, 9))}", **policy)
    return site, [f"service-{number}" for number, wanted in enumerate(wants) if wanted]


@settings(QUICK, max_examples=300)
@given(kept_sites())
def test_a_rollout_finds_the_room_that_was_kept_for_it(made: tuple[t.Any, list[str]]) -> None:
    site, wanted = made
    for service in wanted:
        if service in site.services():
            found = Surges(site).place(service)
            assert isinstance(found, Surge), f"{service}: {found}"
