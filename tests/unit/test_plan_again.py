# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planned again while a plan waits to be carried out: whoever it sends away still runs, and that changes nothing."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

SMALL = ("m/aa.yml", manifest_text("aa", replicas="7"))
HALF = ("m/bb.yml", manifest_text("bb", gpu="{memory: 35 GiB}", replicas="2"))
NOBODY = "no plan is here: nobody knows what it put there; take its file from Git, or run playbook adopt"


def plan(host: dict[str, t.Any], last: Planned | None, *manifests: tuple[str, str], **policy: t.Any) -> Planned:
    """A plan of host h1, which is as ``host`` says."""
    texts = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    hosts = {"h1": {"facts": host, "policy": {"fleet_environment": "production", "fleet_gpu_modes": ["mig", "shared"], **policy}}}
    fleet = ("plans/fleet.yml", last.fleet) if last else None
    return plan_fleet(manifests, texts, hosts, door.catalogue(), ["http"], last_fleet=fleet)


def carried_out(planned: Planned, *, leases: bool = False) -> dict[str, t.Any]:
    """Facts of the host that has done what its plan says: slices, containers with their labels, ports, the plan's serial."""
    data = planned.plans["h1"].data
    slices = " ".join(f"{line['profile']}@{line['start']}" for line in data["layout"] if "profile" in line)
    names = [plan_record.name_of(line) for line in data["services"]]
    containers = [
        {
            "id": f"c-{name}",
            "name": f"{name}-http-1",
            "project": name,
            "devices": [f"MIG-h1-0-{line['start']}"],
            "labels": {"gpuops.service": line["service"], "gpuops.replica": str(line["replica"])},
        }
        for name, line in zip(names, data["services"], strict=True)
    ]
    ports = [port for line in data["services"] for port in line["ports"].values()]
    found = facts(
        [gpu_facts(slices=slices)],
        plan={"serial": data["serial"], "digest": data["digest"], "state": "done"},
        containers=containers,
        leases=[{"name": name, "ends": "2026-12-01T00:00:00Z", "ended": None} for name in names if leases],
    )
    found["host"]["ports_listening"] = sorted(ports)
    return found


def written(planned: Planned) -> tuple[str, str]:
    return planned.plans["h1"].text, planned.fleet


def without_leases(host: dict[str, t.Any]) -> dict[str, t.Any]:
    return {**host, "leases": []}


@pytest.mark.parametrize(
    "wanted", [(HALF,), (HALF, ("m/cc.yml", manifest_text("cc", gpu="{memory: 60 GiB}")))], ids=["all placed", "one waits"]
)
def test_whoever_left_the_plan_and_still_runs_is_in_nobodys_way(wanted: tuple[tuple[str, str], ...]) -> None:
    host = carried_out(plan(facts([gpu_facts()]), None, SMALL), leases=True)
    first = plan(host, plan(facts([gpu_facts()]), None, SMALL), *wanted)
    assert [plan_record.name_of(line) for line in first.plans["h1"].data["services"]] == ["bb-1", "bb-2"]
    assert written(plan(host, first, *wanted)) == written(first)
    # Leases of replicas that left end with them.
    assert written(plan(without_leases(host), first, *wanted)) == written(first)
    # Nor does it change anything that all of it is done.
    assert written(plan(carried_out(first), first, *wanted)) == written(first)


def test_who_runs_where_no_plan_is_known_stays_and_is_told() -> None:
    host = carried_out(plan(facts([gpu_facts()]), None, SMALL))
    found = plan(host, None, HALF)
    assert [each["service"] for each in found.unplaced] == ["bb", "bb"]
    assert found.notes[0] == f"h1 carries plan serial 1, and {NOBODY}"
    old = plan(facts([gpu_facts()]), None, SMALL)
    newer = {**host, "plan": {**host["plan"], "serial": 4}}
    found = plan(newer, old, HALF)
    assert found.notes[0].startswith("h1 carries plan serial 4, and the one here is older, of serial 1; take its file from Git")
    # What a newer plan may have put elsewhere than this one says is nobody's, too.
    first = plan(host, old, HALF)
    newer["plan"]["serial"] = first.plans["h1"].serial + 1
    assert [each["service"] for each in plan(newer, first, HALF).unplaced] == ["bb", "bb"]
    assert not [note for note in plan(host, old, SMALL).notes if "carries" in note]


def test_a_container_with_our_labels_that_is_of_no_replica_is_a_stranger() -> None:
    old = plan(facts([gpu_facts()]), None, SMALL)
    host = carried_out(old)
    first = plan(host, old, HALF)
    host["containers"][0]["project"] = "debug"
    assert [each["service"] for each in plan(host, first, HALF).unplaced] == ["bb"]


def test_another_way_of_sharing_is_told_as_a_move() -> None:
    def shared(way: str) -> tuple[str, str]:
        return ("m/aa.yml", manifest_text("aa", gpu=f"{{isolation: shared, memory: 8 GiB, sharing: {way}}}"))

    host, ways = facts([gpu_facts(compute_capability="8.0")]), {"fleet_sharing": ["time-slice", "mps"]}
    first = plan(host, None, shared("time-slice"), **ways)
    second = plan(host, first, shared("mps"), **ways)
    assert [line["sharing"] for line in second.plans["h1"].data["services"]] == ["mps"]
    assert [step for step in second.steps if "move aa-1" in step]
    assert [step for step in second.steps if step.startswith("aa-1 does not serve for a while")]
