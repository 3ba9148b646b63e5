# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sharing by turns and through MPS, each GPU of a host in its own way: asked for, decided, written down, and what a service is told."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import compose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_work import mps_daemons
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import make_host_plan, read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Pin
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, host, l40s, manifest_text, need, problem

BOTH = ("mps", "time-slice")
SHARED = {"modes": ("shared",), "sharing": BOTH}
NO_BOARDS = Catalogue({"boards": []}, {"geometries": {}})
MPS_ENTRY = {"id": "GPU-1", "uid": 70700, "pipe": "/run/gpuops-fleet/mps/GPU-1/pipe", "shm": "/run/gpuops-fleet/mps/GPU-1/shm"}


def shared(name: str, sharing: str = "mps", **more: t.Any) -> t.Any:
    """A service that asks for a share."""
    return need(name, "shared", **{"memory_mib": 4000, "sharing": sharing, **more})


def where(solution: t.Any) -> dict[str, tuple[str, str]]:
    """Replica -> (GPU, how it is shared)."""
    return {place.name: (place.gpus[0], place.sharing) for place in solution.placements}


# What an owner writes


def test_a_manifest_asks_for_mps() -> None:
    found = read_manifest("a.yml", manifest_text(gpu="{isolation: shared, memory: 8 GiB, sharing: mps, compute: 0.25}"))
    assert need_of(found).sharing == "mps"
    plain = read_manifest("a.yml", manifest_text(gpu="{isolation: shared, memory: 8 GiB}"))
    assert need_of(plain).sharing == "time-slice"


@pytest.mark.parametrize("isolation", ["slice", "exclusive"])
def test_what_is_not_shared_is_shared_in_no_way(isolation: str) -> None:
    with pytest.raises(FleetError, match=f"gpu.sharing: a way of sharing cannot be had with isolation '{isolation}'"):
        read_manifest("a.yml", manifest_text(gpu=f"{{isolation: {isolation}, memory: 8 GiB, sharing: mps}}"))


def test_manifests_that_do_not_use_the_field_keep_the_digest_that_plans_of_before_have() -> None:
    # As the release before computed it.
    text = manifest_text()
    digest = "sha256:42ac354dbbe4046c5b200ef834e6139cc629c4610da1906154ab468ca195271c"
    found = read_manifest("a.yml", text)
    assert "sharing" not in str({k: v for k, v in found.data()["gpu"].items() if v is not None})
    assert found.digest() == digest
    with_it = read_manifest("a.yml", manifest_text(gpu="{isolation: shared, memory: 8 GiB, sharing: mps}"))
    without = read_manifest("a.yml", manifest_text(gpu="{isolation: shared, memory: 8 GiB}"))
    assert with_it.digest() != without.digest()


@pytest.mark.parametrize("name", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
def test_an_owner_cannot_leave_the_limits_by_a_variable(name: str) -> None:
    with pytest.raises(FleetError, match=name):
        read_manifest("a.yml", manifest_text(env=f"{{{name}: x}}"))


# What the planner makes of it


def test_sharers_of_one_gpu_all_share_it_in_the_same_way() -> None:
    services = [shared("a"), shared("b", "time-slice"), shared("c"), shared("d", "time-slice")]
    solution = make_plan(problem([host(l40s(0), l40s(1), **SHARED)], services))
    found = where(solution)
    assert found["a-1"][0] == found["c-1"][0] != found["b-1"][0] == found["d-1"][0]
    assert [found[f"{name}-1"][1] for name in "abcd"] == ["mps", "time-slice", "mps", "time-slice"]
    assert {solution.layouts["h1", uuid].sharing for uuid in (found["a-1"][0], found["b-1"][0])} == set(BOTH)


def test_mps_is_had_only_where_the_platform_allows_it() -> None:
    solution = make_plan(problem([host(l40s(0), modes=("shared",))], [shared("a")]))
    (missing,) = solution.unplaced
    assert missing.reason == "h1: 1 GPU may not be shared by mps (fleet_sharing)"
    assert missing.help == "allow 'mps' in fleet_sharing of h1"


def test_a_gpu_that_is_shared_otherwise_says_so() -> None:
    solution = make_plan(problem([host(l40s(0), **SHARED)], [shared("a", priority=90), shared("b", "time-slice")]))
    (missing,) = solution.unplaced
    assert missing.reason == "h1: 1 GPU already shared by mps for a-1"


def test_no_more_clients_than_the_daemon_serves() -> None:
    here = host(l40s(0, mps_clients=2), **{**SHARED, "shared_max": 64})
    solution = make_plan(problem([here], [shared("a", replicas=3)]))
    assert len(solution.placements) == 2
    assert solution.unplaced[0].reason == "h1: 1 GPU full with 2 clients, all that MPS serves"


def test_memory_is_guarded_as_for_any_share() -> None:
    solution = make_plan(problem([host(l40s(0), **SHARED)], [shared("a", memory_mib=40000), shared("b", memory_mib=40000)]))
    assert len(solution.placements) == 1


def test_a_pinned_gpu_is_shared_as_the_platform_says_whatever_else_is_allowed() -> None:
    here = host(l40s(0, pin=Pin("shared", sharing="mps")), l40s(1), modes=("shared",))
    solution = make_plan(problem([here], [shared("a"), shared("b", "time-slice")]))
    assert where(solution) == {"a-1": ("GPU-h1-0", "mps"), "b-1": ("GPU-h1-1", "time-slice")}


def test_a_service_that_changes_its_way_moves_and_one_that_does_not_stays() -> None:
    here = host(l40s(0), l40s(1), **SHARED)
    first = make_plan(problem([here], [shared("a", "time-slice"), shared("b", "time-slice")]))
    assert where(first)["a-1"] == where(first)["b-1"]
    again = make_plan(problem([here], [shared("a"), shared("b", "time-slice")], first.placements))
    assert where(again)["b-1"] == where(first)["b-1"]
    assert where(again)["a-1"] == ("GPU-h1-1", "mps")
    assert make_plan(problem([here], [shared("a"), shared("b", "time-slice")], again.placements)).placements == again.placements


# From policy and facts


def test_clients_come_from_the_boards_age_and_a_pin_from_the_policy() -> None:
    sensed = facts([gpu_facts(0, compute_capability="6.1"), gpu_facts(1, compute_capability="8.9")])
    variables = {
        "fleet_environment": "production",
        "fleet_sharing": ["mps"],
        "fleet_gpu_layouts": [{"gpu": 1, "mode": "shared", "sharing": "mps"}],
    }
    found = host_of("h1", sensed, read_policy("h1", variables), NO_BOARDS, [])
    assert [each.mps_clients for each in found.gpus] == [16, 48]
    assert found.sharing == ("mps",)
    assert [each.pin for each in found.gpus] == [None, Pin("shared", sharing="mps")]


def test_a_pin_of_another_mode_has_no_way_of_sharing() -> None:
    variables = {"fleet_environment": "production", "fleet_gpu_layouts": [{"gpu": 0, "mode": "whole", "sharing": "mps"}]}
    with pytest.raises(FleetError, match=r"fleet_gpu_layouts\[0\].sharing: a way of sharing is given for mode 'whole'"):
        host_of("h1", facts([gpu_facts(0)]), read_policy("h1", variables), NO_BOARDS, [])


# The plan's lines, and what the hands are told


def test_the_plan_says_which_gpu_is_shared_through_mps_and_reads_back_the_same() -> None:
    here = host(l40s(0), l40s(1), **SHARED)
    solution = make_plan(problem([here], [shared("a"), shared("b", "time-slice")]))
    sensed = facts([{**gpu_facts(number), "mig": None} for number in (0, 1)])
    written = make_host_plan(here, solution, sensed, dict.fromkeys("ab", "sha256:" + "0" * 64), [], None)
    shares = [line for line in written.data["layout"] if line["mode"] == "shared"]
    assert [line.get("sharing") for line in shares] == ["mps", None]
    assert "mode: shared, sharing: mps, ports" in written.text
    read = read_plan("h1.yml", written.text)
    assert {place.name: place.sharing for place in read.placements} == {"a-1": "mps", "b-1": "time-slice"}
    assert mps_daemons(read.data) == [{"gpu": shares[0]["gpu"]}]
    assert plan_record.wish_of(read.data) == [{"gpu": f"GPU-h1-{number}", "mig": False, "instances": []} for number in (0, 1)]


def test_a_service_is_stopped_before_its_gpu_is_shared_in_another_way() -> None:
    line = {"service": "a", "replica": 1, "gpu": "GPU-1", "mode": "shared"}
    assert plan_record.device_of(line) != plan_record.device_of({**line, "sharing": "mps"})


# What a service is told


def manifest_data(**more: t.Any) -> dict[str, t.Any]:
    return {"need_mib": 8192, "gpu": {"compute": None, **more}}


def test_a_client_is_led_to_its_daemon_and_limited_to_what_it_asked_for() -> None:
    assert compose.mps_environment(manifest_data(compute=0.25), MPS_ENTRY) == {
        "CUDA_MPS_PIPE_DIRECTORY": MPS_ENTRY["pipe"],
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in compose.mps_environment(manifest_data(), MPS_ENTRY)
    assert compose.mps_environment(manifest_data(compute=0.125), MPS_ENTRY)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "12.5"


def test_a_client_has_the_daemons_pipes_at_the_same_path_and_its_shared_memory() -> None:
    assert compose.mps_volumes(MPS_ENTRY) == [
        {"source": MPS_ENTRY["pipe"], "target": MPS_ENTRY["pipe"], "read_only": False},
        {"source": MPS_ENTRY["shm"], "target": "/dev/shm", "read_only": False},
    ]


def test_who_shares_by_turns_is_told_nothing_of_mps() -> None:
    assert (compose.mps_environment(manifest_data(), {}), compose.mps_volumes({})) == ({}, [])


def test_a_plan_of_one_way_is_the_same_whatever_order_the_ways_are_allowed_in() -> None:
    here = host(l40s(0), l40s(1), **SHARED)
    services = [shared("a"), shared("b", "time-slice")]
    assert make_plan(problem([here], services)) == make_plan(problem([replace(here, sharing=BOTH[::-1])], services[::-1]))
