# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module mig when a step fails, the run is killed, or another holds the host: it goes back, or the next run repairs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_run import base_lines
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from mig_world import A100, H100, L40S, World, entry, smi

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> t.Callable[..., World]:
    return lambda *boards: World(fleet_host(*boards), run_module, tmp_path)


# Failing and going back


def test_a_step_that_fails_brings_the_old_layout_back(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0", "2g.20gb@2"), (two, "7g.80gb"))
    before = fleet.show()
    fleet.host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--error", "INSUFFICIENT_RESOURCES")
    result = fleet.mig((one, "3g.40gb@0"), (two, "3g.40gb@4"))
    assert result["failed"]
    assert result["msg"] == (
        f"step 5 failed: {two}: create 3g.40gb at memory slice 4: NVML_ERROR_INSUFFICIENT_RESOURCES (Insufficient Resources) "
        "from nvmlDeviceCreateGpuInstanceWithPlacement; the layout from before was put back"
    )
    assert [(fleet.slices(0), fleet.slices(1))] == [(["1g.10gb@0", "2g.20gb@2"], ["7g.80gb@0"])]
    assert [gpu["mig"]["current"] for gpu in fleet.show()] == [gpu["mig"]["current"] for gpu in before]
    closed = fleet.journal()
    assert closed["state"] == "closed"
    assert closed["outcome"].endswith("; the layout from before was put back")
    assert closed["before"] == {
        one: {
            "mig": True,
            "pending": True,
            "slices": [{"profile": "1g.10gb", "start": 0, "compute": [0]}, {"profile": "2g.20gb", "start": 2, "compute": [1]}],
        },
        two: {"mig": True, "pending": True, "slices": [{"profile": "7g.80gb", "start": 0, "compute": [4]}]},
    }


@pytest.mark.parametrize(
    "call",
    [
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
    ],
)
@pytest.mark.parametrize("nth", [1, 2])
def test_whatever_call_fails_the_slices_are_there_again_and_usable(world: t.Callable[..., World], call: str, nth: int) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@1", "2g.20gb@2"))
    fleet.host.simctl("fail", "--call", call, "--nth", str(nth), "--error", "UNKNOWN")
    result = fleet.mig((gpu, "1g.10gb@6", "3g.40gb@0"))
    assert result["failed"]
    assert "NVML_ERROR_UNKNOWN" in result["msg"]
    assert result["msg"].endswith("; the layout from before was put back")
    assert fleet.slices(0) == ["1g.10gb@0", "1g.10gb@1", "2g.20gb@2"]
    assert all(one["ci"] for one in fleet.show()[0]["mig"]["instances"])
    assert fleet.done((gpu, "1g.10gb@0", "1g.10gb@1", "2g.20gb@2")) == []


def test_going_back_leaves_a_useless_instance_useless_and_a_smaller_one_small(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu,))
    with Nvml() as nvml:
        nvml.create_gpu_instance(nvml.find(gpu), 19, 6, 1)
        cut = nvml.create_gpu_instance(nvml.find(gpu), 14, 0, 2)
        for _ignored in range(2):
            nvml.create_compute_instance(cut, nvml.compute_profiles(cut)[0])
    before = fleet.show()[0]["mig"]["instances"]
    assert sorted(len(one["ci"]) for one in before) == [0, 2]
    fleet.host.simctl("fail", "--call", "nvmlGpuInstanceCreateComputeInstance", "--nth", "2", "--error", "UNKNOWN")
    assert fleet.mig((gpu, "1g.10gb@6", "3g.40gb@0"))["failed"]
    assert fleet.show()[0]["mig"]["instances"] == before


def test_the_mode_goes_back_too(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "2", "--error", "UNKNOWN")
    result = fleet.mig((fleet.uuids[0], "1g.10gb", "1g.10gb"))
    assert result["msg"].endswith("; the layout from before was put back")
    assert (fleet.show()[0]["mig"]["current"], fleet.slices(0)) == (False, [])


def test_when_the_way_back_is_closed_too_both_are_said(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0"), (two, "1g.10gb@0"))
    fleet.host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--error", "UNKNOWN", "--always")
    result = fleet.mig((one, "1g.10gb@1"), (two, "1g.10gb@1"))
    reason = "NVML_ERROR_UNKNOWN (Unknown Error) from nvmlDeviceCreateGpuInstanceWithPlacement"
    assert result["msg"] == (
        f"step 2 failed: {one}: create 1g.10gb at memory slice 1: {reason}; "
        f"GPU {one} could not be put back: it lacks 1g.10gb@0; create 1g.10gb at memory slice 0: {reason}; "
        "when the cause is gone, the next run with this layout, or the host's agent, completes the change"
    )
    left = fleet.journal()
    assert left["state"] == "open"
    assert left["before"] == {one: {"mig": True, "pending": True, "slices": [{"profile": "1g.10gb", "start": 0, "compute": [0]}]}}
    assert left["wish"] == {one: {"mig": True, "slices": [{"profile": "1g.10gb", "start": 1, "compute": None}]}}
    assert fleet.slices(1) == ["1g.10gb@0"]
    fleet.host.simctl("fail", "--clear")
    assert fleet.done((one, "1g.10gb@1"), (two, "1g.10gb@1"))[0] == f"{one}: create 1g.10gb at memory slice 1"
    assert fleet.journal()["state"] == "closed"


def test_nobody_but_root_changes_anything(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.host.simctl("set", "permission", "denied")
    result = fleet.mig((fleet.uuids[0], "1g.10gb"))
    assert result["failed"]
    assert "NVML_ERROR_NO_PERMISSION" in result["msg"]
    assert fleet.mutations() == []


# Dying


def _kill_and_repair(fleet: World, wish: list[t.Any], number: int, *before: str) -> dict[str, t.Any]:
    fleet.host.simctl("kill", "--mutation", str(number), *before)
    args = {"layout": [entry(one) for one in wish], "state_dir": str(fleet.state_dir)}
    code = "from ansible_collections.gpuops.fleet.plugins.modules import mig; mig.main()"
    dead = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": args}),
        env={**fleet.host.env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert dead.returncode == -9, dead.stdout + dead.stderr
    assert fleet.journal()["state"] == "open"
    fleet.host.simctl("kill", "--clear")
    return fleet.mig(*wish)


@pytest.mark.parametrize("before", [(), ("--before",)])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_the_next_run_repairs_what_a_dead_one_left(world: t.Callable[..., World], number: int, before: tuple[str, ...]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@5", "2g.20gb@2"))
    wish = [(gpu, "1g.10gb@5", "1g.10gb@0", "1g.10gb@1")]
    first = len(fleet.mutations())
    result = _kill_and_repair(fleet, wish, number, *before)
    assert not result["failed"], result
    assert fleet.slices(0) == ["1g.10gb@0", "1g.10gb@1", "1g.10gb@5"]
    assert all(one["ci"] for one in fleet.show()[0]["mig"]["instances"])
    destroyed = [call for call, _gpu in fleet.mutations()[first:] if call == "nvmlGpuInstanceDestroy"]
    assert len(destroyed) == 1, "a slice that was wished went"
    assert result["notes"] == [
        "an earlier change did not come to its end; it had 3 steps: "
        f"{gpu}: destroy 2g.20gb at memory slice 2; {gpu}: create 1g.10gb at memory slice 0; {gpu}: create 1g.10gb at memory slice 1"
    ]
    assert result["notes"][0] in str(result["warnings"])
    assert fleet.journal()["state"] == "closed"
    assert fleet.mig(*wish)["notes"] == []


# Selectors, lease, lock, plan


def test_entries_of_a_layout_file_find_their_gpus_on_the_host(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2", L40S)
    entry = {"devices": "all", "device_filter": [], "mig": True, "instances": [{"profile": "1g.10gb", "count": 2}], "source": "mig.yaml:3"}
    steps = fleet.done(selectors=[entry])
    create = [f"create 1g.10gb at memory slice {start}" for start in (4, 5)]
    assert steps == [f"{uuid}: {what}" for uuid in fleet.uuids[:2] for what in ("switch MIG on", *create)]
    other = {**entry, "devices": [2], "source": "mig.yaml:9"}
    assert fleet.refused(selectors=[other]).startswith(f"mig.yaml:9: devices: GPU 2 ({fleet.uuids[2]}) has no MIG")


def test_a_lost_gpu_is_passed_over_by_all(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    fleet.host.simctl("lose", "--gpu", "0")
    entry = {"devices": "all", "device_filter": [], "mig": True, "instances": [], "source": "mig.yaml:3"}
    assert fleet.done(selectors=[entry]) == [f"{fleet.uuids[1]}: switch MIG on"]
    assert fleet.mig(selectors=[entry])["notes"] == ["GPU 0 does not answer (GPU is lost); devices: all passes over it"]
    assert fleet.mig(selectors=[{**entry, "devices": [1]}])["notes"] == []


@pytest.mark.parametrize("devices", [[0], [1, "0"]])
def test_a_lost_gpu_that_a_layout_file_names_is_said_to_be_lost(world: t.Callable[..., World], devices: list[int | str]) -> None:
    fleet = world(f"{H100}:2")
    fleet.host.simctl("lose", "--gpu", "0")
    entry = {"devices": devices, "device_filter": [], "mig": True, "instances": [], "source": "mig.yaml:3"}
    lost = "mig.yaml:3: devices: GPU 0 is lost (GPU is lost); nothing was changed; look for its XID in the kernel's log"
    assert fleet.refused(selectors=[entry]) == lost
    assert fleet.refused(selectors=[{**entry, "devices": [7]}]).startswith("mig.yaml:3: devices: there is no GPU 7; ")


def test_a_host_that_another_holds_is_not_changed(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    mine, _over = lease.acquire(fleet.state_dir, "alice", "drain", 600)
    result = fleet.mig((fleet.uuids[0], "1g.10gb"))
    assert result["failed"]
    assert result["msg"].startswith("this host is held by alice (drain), for ")
    wrong = fleet.mig((fleet.uuids[0], "1g.10gb"), lease="f" * 32)
    assert wrong["msg"].startswith("the lease on this host was lost to alice (drain), for ")
    assert fleet.mutations() == []
    assert not fleet.mig((fleet.uuids[0], "1g.10gb"), check=True)["failed"]
    assert not fleet.mig((fleet.uuids[0], "1g.10gb"), lease=mine.token)["failed"]


def test_a_lease_that_is_lost_in_the_middle_stops_the_run_and_nothing_more_is_changed(world: t.Callable[..., World]) -> None:
    fleet = world(A100)
    mine, _over = lease.acquire(fleet.state_dir, "alice", "apply", 600)
    # the reset gives the moment between two steps in which somebody takes the lease away
    wrapper = fleet.where / "nvidia-smi"
    wrapper.write_text(f'#!/bin/sh\nrm {fleet.state_dir}/lease.json\nexec {smi(fleet)} "$@"\n')
    wrapper.chmod(0o755)
    result = fleet.mig((fleet.uuids[0], "1g.10gb"), reset=True, nvidia_smi=str(wrapper), lease=mine.token)
    assert result["msg"] == "the lease on this host ran out or was released; nothing more is changed"
    assert (fleet.show()[0]["mig"]["current"], fleet.slices(0)) == (True, [])
    assert (fleet.journal()["state"], fleet.journal()["outcome"]) == ("open", f"stopped: {result['msg']}")


def test_two_runs_do_not_change_one_host_at_once(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    with lease.exclusive(fleet.state_dir, "mig"):
        result = fleet.mig((fleet.uuids[0], "1g.10gb"))
        holder = rf"process {os.getpid()} \(\S+\), since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"
        lock = re.escape(str(fleet.state_dir / "mig.lock"))
        assert re.fullmatch(f"another process holds {lock} at this moment: {holder}; run again when it has ended", result["msg"])
        assert fleet.mutations() == []
        assert not fleet.mig((fleet.uuids[0], "1g.10gb"), check=True)["failed"]
        assert not fleet.mig((fleet.uuids[0], None), remember=False)["failed"], "nothing is to be done and nothing to be written"


def test_nothing_is_written_in_check_mode_or_when_nothing_changes(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.mig((fleet.uuids[0], "1g.10gb"), check=True)
    fleet.mig((fleet.uuids[0], None), check=True)
    fleet.mig((fleet.uuids[0], None), remember=False)
    assert not fleet.state_dir.exists()


def test_a_plan_sees_the_gpus_as_they_are(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2", L40S)
    fleet.mig((fleet.uuids[0], "1g.10gb@2", "3g.40gb@4"))
    missing = "GPU-00000000-0000-0000-0000-000000000000"
    assert base_lines([*fleet.uuids, missing]) == {
        fleet.uuids[0]: {"gpu": fleet.uuids[0], "mig": True, "instances": ["1g.10gb@2", "3g.40gb@4"]},
        fleet.uuids[1]: {"gpu": fleet.uuids[1], "mig": False, "instances": []},
        fleet.uuids[2]: {"gpu": fleet.uuids[2], "mig": False, "instances": []},
    }
    fleet.host.simctl("fail", "--call", "nvmlDeviceGetHandleByUUID", "--error", "UNKNOWN", "--always")
    with pytest.raises(FleetError, match=rf"^GPU {fleet.uuids[0]} does not answer: NVML_ERROR_UNKNOWN "):
        base_lines(fleet.uuids)


def test_no_gpu_in_a_plan_asks_no_driver() -> None:
    assert base_lines([]) == {}
