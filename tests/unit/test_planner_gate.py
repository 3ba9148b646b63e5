# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner and the compatibility gate: no new place where it says no, and nobody who serves is put away for it."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Deed, Problem, bars_after
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

NO = Bar("CUDA 13.0.2 needs driver 580.65.06 or newer, here is 550.54.15; rule cuda-driver", "h1: upgrade to R580: 580.65.06 or newer")
A100 = gpu().board
IMAGE = "registry.example.com/claims/receipt-ocr@sha256:" + "a" * 64


def plan(given: Problem) -> dict[str, str]:
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    return {placement.name: where(placement) for placement in solution.placements}


def test_a_service_goes_where_the_gate_lets_it() -> None:
    fleet = [host(gpu(0, "h1")), host(gpu(0, "h2"), name="h2")]
    assert plan(problem(fleet, [need()])) == {"ocr-1": "h1/0:1g.10gb@6"}
    assert plan(problem(fleet, [need(bars={("h1", A100): NO})])) == {"ocr-1": "h2/0:1g.10gb@6"}


def test_the_bar_is_for_a_board_of_a_host_and_not_for_the_host() -> None:
    fleet = [host(l40s(0), gpu(1), modes=("mig", "whole", "shared"))]
    for isolation in ("exclusive", "shared"):
        found = plan(problem(fleet, [need(isolation=isolation, bars={("h1", "l40s"): NO})]))
        assert found == {"ocr-1": "h1/1"}


def test_what_serves_stays_and_only_a_new_version_of_it_is_held_against_the_gate() -> None:
    given = problem([host(gpu(slices="1g.10gb@0"))], [need(bars={("h1", A100): NO})], [place("ocr", "0:1g.10gb@0")])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@0"}
    assert plan(replace(given, changed=frozenset({"ocr"}))) == {}


def test_the_reason_is_the_gates_own_and_the_help_its_remedy() -> None:
    (missing,) = make_plan(problem([host(gpu(0), gpu(1))], [need(bars={("h1", A100): NO})])).unplaced
    assert missing.reason == f"h1: 2 GPUs that the compatibility gate refuses ({NO.reason})"
    assert missing.help == NO.remedy


def test_a_bar_without_a_remedy_still_says_what_stands_in_the_way() -> None:
    (missing,) = make_plan(problem([host(gpu())], [need(bars={("h1", A100): Bar("no driver has both", "")})])).unplaced
    assert missing.help == "h1: no driver has both"


def test_nobody_is_asked_to_move_from_a_gpu_that_stays_barred() -> None:
    other = need("other", memory_mib=60000)
    (missing,) = make_plan(problem([host(gpu())], [other, need(priority=1, bars={("h1", A100): NO})])).unplaced
    assert "moves" not in missing.help
    assert missing.help == NO.remedy


def test_a_move_to_a_barred_gpu_is_refused() -> None:
    fleet = [host(gpu(0, "h1", slices="1g.10gb@0")), host(gpu(0, "h2"), name="h2")]
    given = problem(fleet, [need(bars={("h2", A100): NO})], [place("ocr", "0:1g.10gb@0")])
    with pytest.raises(FleetError, match="compatibility gate refuses"):
        moved(given, Move("ocr", 1, "h2"))


# The whole way: facts and manifests to plans, with the collection's own facts.


def planned(driver: str, variables: list[str], last: Planned | None = None, **manifest: str) -> Planned:
    machine = facts([gpu_facts(compute_capability="8.0")], driver={"present": True, "version": driver, "cuda": None, "flavour": None})
    return plan_fleet(
        [("manifests/receipt-ocr.yml", manifest_text(image=IMAGE, **manifest))],
        {} if last is None else {name: (f"{name}.yml", each.text) for name, each in last.plans.items()},
        {"h1": {"facts": machine, "policy": {"fleet_environment": "production"}}},
        Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data),
        ("http",),
        judge=door.judge({IMAGE: variables}),
    )


def test_an_image_that_needs_a_newer_driver_is_placed_nowhere_and_the_plan_says_why() -> None:
    old = planned("550.54.15", ["CUDA_VERSION=13.0.2"])
    assert old.plans["h1"].data["services"] == []
    (missing, *_rest) = old.unplaced
    assert "that the compatibility gate refuses (CUDA 13.0.2 needs driver 580.65.06 or newer, here is 550.54.15" in missing["reason"]
    assert "upgrade to R580" in missing["reason"]
    assert planned("580.95.05", ["CUDA_VERSION=13.0.2"]).unplaced == []
    assert planned("550.54.15", []).unplaced == []


def test_beside_the_gates_remedy_other_changes_are_told() -> None:
    fleet = [host(gpu(0, "h1")), host(replace(gpu(0, "h2"), cordoned=True), name="h2")]
    given = problem(fleet, [need(isolation="exclusive", bars={("h1", A100): NO})])
    (proposal,) = propose(given, make_plan(given))
    assert [change.kind for change in proposal.changes] == ["uncordon", "gate"]
    assert all(not make_plan(change.apply(given)).unplaced for change in proposal.changes)


def test_what_is_done_to_a_host_opens_it_for_every_service() -> None:
    wait = [need(name, isolation="exclusive", priority=rank, bars={("h1", A100): NO}) for name, rank in (("first", 70), ("second", 50))]
    given = problem([host(gpu())], wait)
    first, second = propose(given, make_plan(given))
    assert [change.kind for change in first.changes] == ["gate"]
    # The first would take the only GPU.
    assert "gate" not in [change.kind for change in second.changes]


def test_where_the_first_would_take_one_host_the_next_is_told_both() -> None:
    upgrade = Bar(NO.reason, NO.remedy, (Deed("upgrade to R580"),))
    bars = {("h1", A100): upgrade, ("h2", A100): upgrade}
    wait = [need(name, isolation="exclusive", priority=rank, bars=bars) for name, rank in (("first", 70), ("second", 50))]
    given = problem([host(gpu(0, "h1")), host(gpu(0, "h2"), name="h2")], wait)
    (_first, second) = propose(given, make_plan(given))
    assert second.sentence == "h1: upgrade to R580; and the same for h2"
    assert not make_plan(second.changes[0].apply(given)).unplaced


def test_a_neighbour_that_an_upgrade_opens_too_keeps_its_room() -> None:
    keeper = need("keeper", isolation="exclusive", keep_room=True, priority=60, bars={("h1", A100): NO})
    given = problem(
        [host(gpu(0), gpu(1))], [keeper, need("new", isolation="exclusive", bars={("h1", A100): NO})], [place("keeper", "0", mode="whole")]
    )
    (proposal,) = propose(given, make_plan(given))
    assert "gate" not in [change.kind for change in proposal.changes]


def test_another_image_is_taken_for_one_service_alone() -> None:
    take = Bar("it needs 9.0", "h1: take an image built for 8.0", (Deed("take an image built for 8.0", of_host=False),))
    wait = [need(name, isolation="exclusive", bars={("h1", A100): take}) for name in ("first", "second")]
    given = problem([host(gpu())], wait)
    assert [[change.sentence for change in each.changes] for each in propose(given, make_plan(given))] == [
        ["h1: take an image built for 8.0"]
    ] * 2


def test_where_nothing_can_be_done_on_a_host_a_host_is_told_and_not_what_opens_nothing() -> None:
    never = Deed("R580 is the last branch for the v100 in h1: place the service on another host", here=False)
    bars = {("h1", A100): Bar("CUDA 13.0.2 needs driver 590.44 or newer", f"h1: {never.words}", (never,))}
    given = problem([host(gpu(), gpu(1))], [need(isolation="exclusive", bars=bars)])
    (proposal,) = propose(given, make_plan(given))
    assert (proposal.cause, [change.kind for change in proposal.changes]) == ("compatibility", ["hosts"])
    assert not make_plan(proposal.changes[0].apply(given)).unplaced
    beside = problem([host(gpu()), host(gpu(0, "h2", cordoned=True), name="h2")], given.needs)
    (proposal,) = propose(beside, make_plan(beside))
    assert [change.kind for change in proposal.changes] == ["uncordon"]


def test_all_that_keeps_a_service_from_a_host_has_to_be_done_and_a_newer_driver_does_for_an_older() -> None:
    machine = facts([gpu_facts(compute_capability="8.0")], driver={"present": True, "version": "450.80.02", "cuda": None, "flavour": None})
    machine["engine"] = {"docker": {"present": True, "version": "20.10.0", "cdi": False, "runtimes": ["runc"]}}
    manifests = [
        {"service": name, "image": IMAGE, "runtime": "http", "gpu": {"isolation": "exclusive"}, "needs": {"cuda": cuda}}
        for name, cuda in (("new", "13.0.2"), ("old", "12.4.1"))
    ]
    catalogue = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
    found = door.judge({}).bars(catalogue, {"h1": machine}, manifests)
    ((place_, newest),), ((_place, older),) = found["new"].items(), found["old"].items()
    assert older.remedy == "h1: add NVIDIA's runtime, or upgrade to Docker 28.3 or newer; and h1: upgrade to R580: 580.65.06 or newer"
    runtime, driver = newest.deeds
    assert set(bars_after(found["old"], driver, "h1")[place_].missing) == {runtime}
    assert bars_after(bars_after(found["old"], driver, "h1"), runtime, "h1") == {}
    newer = Deed("upgrade to R590", driver=(590,))
    assert (newer.does(driver), driver.does(newer)) == (True, False)
    assert bars_after(found["old"], driver, "h2") == found["old"]


def test_who_serves_where_the_gate_says_no_by_now_stays_with_a_note() -> None:
    first = planned("550.54.15", [])
    again = planned("550.54.15", ["CUDA_VERSION=13.0.2"], first)
    assert again.plans["h1"].text == first.plans["h1"].text
    assert any("where the compatibility gate would not place it: CUDA 13.0.2 needs driver" in note for note in again.notes)
    changed = planned("550.54.15", ["CUDA_VERSION=13.0.2"], first, env="{LEVEL: debug}")
    assert changed.plans["h1"].data["services"] == []


def test_an_engine_that_does_not_answer_sends_nobody_away() -> None:
    machine: dict[str, t.Any] = facts([gpu_facts(compute_capability="8.0")], engine={"docker": {"present": False}})
    catalogue = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
    manifest = {"service": "ocr", "image": IMAGE, "runtime": "http", "gpu": {"isolation": "slice"}}
    assert door.judge({}).bars(catalogue, {"h1": machine}, [manifest]) == {}
    machine["engine"] = {"docker": {"present": True, "version": "24.0.0", "cdi": False, "runtimes": ["runc"]}}
    (refusal,) = door.judge({}).bars(catalogue, {"h1": machine}, [manifest])["ocr"].values()
    assert "gives containers no GPU" in refusal.reason
