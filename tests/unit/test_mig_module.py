# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module mig on simulated GPUs below the real pynvml: what it changes, what it leaves alone, what it refuses."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import mig_reset
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from mig_world import A100, H100, KNOWN_AFTER_APPLY, L40S, WAITS, World, process, smi

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

# No profile takes all five compute slices, nor all ten memory slices.
ZEPHYR = """\
board: zephyr-120gb
name: ACME Zephyr 120GB
architecture: rubin
compute_capability: '14.2'
memory: {total_mib: 122880}
sm: 105
power: {max_w: 900}
mig:
  mode_change: immediate
  compute_slices: 5
  memory_slices: 10
  profiles:
    - {name: 1g.12gb, size: 1, max: 5}
    - {name: 2g.36gb, size: 3, max: 2, starts: [0, 7]}
"""


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> t.Callable[..., World]:
    return lambda *boards: World(fleet_host(*boards), run_module, tmp_path)


# Doing


def test_a_gpu_is_cut_in_one_run(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    assert fleet.done((gpu, *["1g.10gb"] * 6, "1g.20gb")) == [
        f"{gpu}: switch MIG on",
        *(f"{gpu}: create 1g.10gb at memory slice {start}" for start in range(6)),
        f"{gpu}: create 1g.20gb at memory slice 6",
    ]
    assert fleet.slices(0) == [*(f"1g.10gb@{start}" for start in range(6)), "1g.20gb@6"]
    names = [call for call, _gpu in fleet.mutations()]
    assert names[0] == "nvmlDeviceSetMigMode"
    assert names[1:] == ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"] * 7


def test_the_result_shows_the_slices_with_their_uuids(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    predicted = fleet.mig((gpu, "1g.10gb", "3g.40gb"), check=True)
    assert predicted["layout"] == [
        {
            "gpu": gpu,
            "pci": fleet.pcis[0],
            "mig": True,
            "pending": True,
            "instances": [
                {"profile": "1g.10gb", "start": 0, "uuid": KNOWN_AFTER_APPLY},
                {"profile": "3g.40gb", "start": 4, "uuid": KNOWN_AFTER_APPLY},
            ],
        }
    ]
    result = fleet.mig((gpu, "1g.10gb", "3g.40gb"))
    uuids = [one["uuid"] for one in result["layout"][0]["instances"]]
    shown = {one["start"]: one["ci"][0]["uuid"] for one in fleet.show()[0]["mig"]["instances"]}
    assert uuids == [shown[0], shown[4]]
    assert result["diff"] == {"before": f"{gpu} MIG off\n", "after": f"{gpu} MIG on\n{gpu} 1g.10gb@0\n{gpu} 3g.40gb@4\n"}
    assert (result["notes"], result["reset_required"], result["reboot_required"]) == ([], False, False)
    known = fleet.mig((gpu, "3g.40gb", "1g.10gb", "1g.10gb"), check=True)
    assert [one["uuid"] for one in known["layout"][0]["instances"]] == [uuids[0], KNOWN_AFTER_APPLY, uuids[1]]


def test_dropping_a_slice_is_one_destroy_and_touches_nothing_else(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    three = [f"1g.10gb@{start}" for start in range(3)]
    fleet.mig((one, *three), (two, *three))
    before = len(fleet.mutations())
    assert fleet.done((one, *["1g.10gb"] * 2), (two, *["1g.10gb"] * 2)) == [
        f"{one}: destroy 1g.10gb at memory slice 2",
        f"{two}: destroy 1g.10gb at memory slice 2",
    ]
    assert [call for call, _gpu in fleet.mutations()[before:]] == ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"] * 2


def test_a_gpu_that_is_not_named_is_not_even_looked_at(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:3")
    fleet.host.simctl("log", "--clear")
    fleet.mig((fleet.uuids[1], "1g.10gb"))
    touched = {entry["args"].get("gpu") for entry in fleet.host.calls()}
    assert fleet.uuids[1] in touched
    assert not touched & {fleet.uuids[0], fleet.uuids[2]}


def test_busy_slices_that_stay_are_in_nobodys_way(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@1", "1g.10gb@2"))
    fleet.hold(0, "--gi", "9", "--ci", "0")
    assert fleet.done((gpu, "1g.10gb", "3g.40gb")) == [
        f"{gpu}: destroy 1g.10gb at memory slice 0",
        f"{gpu}: destroy 1g.10gb at memory slice 1",
        f"{gpu}: create 3g.40gb at memory slice 4",
    ]
    assert fleet.slices(0) == ["1g.10gb@2", "3g.40gb@4"]


def test_a_gpu_instance_without_compute_instance_gets_one(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu,))
    with Nvml() as nvml:
        nvml.create_gpu_instance(nvml.find(gpu), 19, 3, 1)
    result = fleet.mig((gpu, "1g.10gb"), check=True)
    assert result["diff"]["before"] == f"{gpu} MIG on\n{gpu} 1g.10gb@3 (no compute instance)\n"
    assert fleet.done((gpu, "1g.10gb")) == [f"{gpu}: create the compute instance of 1g.10gb at memory slice 3"]


def test_mig_is_switched_off(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "3g.40gb"))
    assert fleet.done((gpu, None)) == [f"{gpu}: destroy 3g.40gb at memory slice 4", f"{gpu}: switch MIG off"]
    assert fleet.show()[0]["mig"]["current"] is False


def test_instances_left_out_stay(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "3g.40gb"))
    assert fleet.done({"gpu": gpu}) == []
    assert fleet.slices(0) == ["3g.40gb@4"]


def test_boards_without_mig_may_be_wished_without_it(world: t.Callable[..., World]) -> None:
    fleet = world(L40S)
    assert fleet.done((fleet.uuids[0], None)) == []
    result = fleet.mig((fleet.uuids[0], None))
    assert result["layout"] == [{"gpu": fleet.uuids[0], "pci": fleet.pcis[0], "mig": None, "pending": None, "instances": []}]
    assert fleet.refused((fleet.uuids[0], "1g.10gb")) == (
        f"GPU {fleet.uuids[0]} (NVIDIA L40S) has no MIG; leave it out of the layout, or write mig: false"
    )


def test_an_empty_layout_asks_no_driver(run_module: RunModule, tmp_path: Path) -> None:
    result = run_module("mig", {"layout": [], "state_dir": str(tmp_path)})
    assert (result["failed"], result["changed"], result["steps"], result["layout"]) == (False, False, [], [])


@pytest.mark.parametrize("order", [1, -1])
def test_steps_come_by_pci_address(world: t.Callable[..., World], order: int) -> None:
    fleet = world(f"{H100}:2")
    steps = fleet.done(*[(uuid, "7g.80gb") for uuid in fleet.uuids][::order])
    assert steps == [f"{uuid}: {what}" for uuid in fleet.uuids for what in ("switch MIG on", "create 7g.80gb at memory slice 0")]


@pytest.mark.parametrize("board", ["a30-24gb", "rtx-pro-6000-96gb", "h200-141gb"])
def test_other_boards_are_cut_as_their_driver_says(world: t.Callable[..., World], board: str) -> None:
    fleet = world(board)
    (gpu,) = fleet.uuids
    with Nvml() as nvml:
        geometry = nvml.geometry(nvml.find(gpu))
    assert geometry is not None
    small = min((one for one in geometry.profiles if "+" not in one.name and "-" not in one.name), key=lambda one: (one.slices, one.size))
    fleet.done((gpu, *[small.name] * small.max), reset=True, nvidia_smi=smi(fleet))
    assert fleet.slices(0) == sorted(f"{small.name}@{start}" for start in small.starts)


# A mode that waits


def test_a_board_without_a_profile_of_its_whole_is_cut_to_its_last_slice(world: t.Callable[..., World], tmp_path: Path) -> None:
    board = tmp_path / "zephyr.yml"
    board.write_text(ZEPHYR)
    fleet = world(str(board))
    (gpu,) = fleet.uuids
    fleet.done((gpu, "2g.36gb", "2g.36gb", "1g.12gb"))
    assert fleet.slices(0) == ["1g.12gb@3", "2g.36gb@0", "2g.36gb@7"]
    assert "together they need 6 compute slices and the board has 5" in fleet.refused((gpu, *["2g.36gb"] * 2, *["1g.12gb"] * 2))


def test_a_mode_that_waits_is_pending_and_no_slice_is_made(world: t.Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    assert fleet.done((gpu, "1g.10gb")) == [f"{gpu}: switch MIG on"]
    result = fleet.mig((gpu, "1g.10gb"))
    assert result["pending"] == [{"gpu": gpu, "reason": WAITS}]
    assert (result["changed"], result["reset_required"], result["reboot_required"]) == (False, True, True)
    assert result["layout"][0]["mig"] is False
    assert result["layout"][0]["pending"] is True
    assert result["diff"]["after"] == f"{gpu} MIG off (on after a reset)\n"
    assert f"GPU {gpu}: {WAITS}" in str(result["warnings"])
    assert fleet.slices(0) == []


def test_after_the_reset_the_same_wish_goes_on(world: t.Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb"))
    fleet.host.simctl("reset", "--gpu", "0")
    assert fleet.done((gpu, "1g.10gb")) == [f"{gpu}: create 1g.10gb at memory slice 6"]


def test_a_switch_on_that_waits_is_withdrawn(world: t.Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb"))
    assert fleet.done((gpu, None)) == [f"{gpu}: withdraw the switch-on of MIG that waits for a reset"]
    assert fleet.show()[0]["mig"]["pending"] is False


def test_with_reset_exactly_the_pending_gpu_is_reset_and_the_run_goes_on(world: t.Callable[..., World]) -> None:
    fleet = world(f"{A100}:2")
    one, two = fleet.uuids
    steps = fleet.done((two, "1g.10gb"), reset=True, nvidia_smi=smi(fleet))
    assert steps == [
        f"{two}: switch MIG on",
        f"{two}: reset the GPU at {fleet.pcis[1]} (nvidia-smi -r)",
        f"{two}: create 1g.10gb at memory slice 6",
    ]
    assert fleet.slices(1) == ["1g.10gb@6"]
    assert one not in {gpu for _call, gpu in fleet.mutations()}
    assert fleet.done((two, None), reset=True, nvidia_smi=smi(fleet)) == [
        f"{two}: destroy 1g.10gb at memory slice 6",
        f"{two}: switch MIG off",
        f"{two}: reset the GPU at {fleet.pcis[1]} (nvidia-smi -r)",
    ]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "#!/bin/sh\necho 'Unable to reset GPU:' >&2; echo 'In use by another client' >&2; exit 3\n",
            "Unable to reset GPU: In use by another client",
        ),
        ("#!/bin/sh\necho 'treating as warning'\nexit 0\n", "treating as warning"),
        ("#!/bin/sh\nexit 7\n", "no word"),
        ("#!/no/such/interpreter\n", "cannot run PROGRAM: No such file or directory"),
    ],
)
def test_a_reset_that_fails_is_told_in_its_own_words_and_the_switch_is_withdrawn(
    world: t.Callable[..., World], program: str, words: str
) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    wrapper = fleet.where / "nvidia-smi"
    wrapper.write_text(program)
    wrapper.chmod(0o755)
    result = fleet.mig((gpu, "1g.10gb"), reset=True, nvidia_smi=str(wrapper))
    assert result["failed"]
    words = words.replace("PROGRAM", str(wrapper))
    assert result["msg"] == (
        f"step 2 failed: {gpu}: reset the GPU at {fleet.pcis[0]} (nvidia-smi -r): "
        f"{wrapper} -r -i {fleet.pcis[0]} did not bring the mode into force: {words}; the layout from before was put back"
    )
    assert fleet.show()[0]["mig"]["pending"] is False


def test_without_the_program_that_resets_no_slice_is_destroyed(world: t.Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "2g.20gb@2"), reset=True, nvidia_smi=smi(fleet))
    missing = str(fleet.where / "nvidia-smi")
    assert fleet.refused((gpu, None), reset=True, nvidia_smi=missing) == (
        f"nvidia_smi: GPU {gpu} needs a reset, and there is no program {missing} on this host; nothing was changed; "
        "give its path, or write reset: false and reset the GPU or reboot the host"
    )
    assert fleet.done((gpu, "1g.10gb@0"), reset=True, nvidia_smi=missing) == [f"{gpu}: destroy 2g.20gb at memory slice 2"]


def test_a_switch_that_waits_against_expectation_is_pending_with_the_drivers_reason(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.host.simctl("hold", "--gpu", "0", "--leak")
    result = fleet.mig((gpu, "1g.10gb"))
    assert not result["failed"], result
    assert result["steps"] == [f"{gpu}: switch MIG on"]
    assert result["pending"] == [{"gpu": gpu, "reason": f"{WAITS}, and something uses it (NVML_ERROR_IN_USE)"}]
    assert (result["reset_required"], fleet.slices(0)) == (True, [])


def test_a_reset_that_hangs_is_given_up(world: t.Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = world(A100)
    wrapper = fleet.where / "nvidia-smi"
    wrapper.write_text("#!/bin/sh\nexec sleep 30\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(mig_reset, "RESET_SECONDS", 0.3)
    result = fleet.mig((fleet.uuids[0], "1g.10gb"), reset=True, nvidia_smi=str(wrapper))
    asked = f"{wrapper} -r -i {fleet.pcis[0]}"
    ending = f"did not bring the mode into force: `{asked}` did not end in 0.3 s; the layout from before was put back"
    assert result["msg"].endswith(ending)


def test_a_driver_that_shows_the_geometry_only_with_mig_on_is_asked_again(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.host.simctl("set", "driver-version", "535.183.01")
    predicted = fleet.mig((gpu, "3g.40gb@4", "1g.10gb"), check=True)
    assert predicted["steps"] == [
        f"{gpu}: switch MIG on",
        f"{gpu}: create 3g.40gb at memory slice 4",
        f"{gpu}: create 1g.10gb at a memory slice that is known after apply",
    ]
    result = fleet.mig((gpu, "3g.40gb@4", "1g.10gb"))
    assert sorted(result["steps"]) == sorted(
        [f"{gpu}: switch MIG on", f"{gpu}: create 1g.10gb at memory slice 0", f"{gpu}: create 3g.40gb at memory slice 4"]
    )
    assert fleet.slices(0) == ["1g.10gb@0", "3g.40gb@4"]
    assert fleet.done((gpu, "3g.40gb@4", "1g.10gb")) == []


def test_a_wish_that_proves_impossible_only_then_takes_the_mode_back(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.host.simctl("set", "driver-version", "535.183.01")
    result = fleet.mig((fleet.uuids[0], *["1g.10gb"] * 8))
    assert "8x1g.10gb is more than the 7 that the board allows" in result["msg"]
    assert result["msg"].endswith("; the layout from before was put back")
    assert fleet.show()[0]["mig"]["current"] is False


# Refusing


@pytest.mark.parametrize("spelling", ["uuid", "UUID", "pci", "PCI", "pci8", "short", "index"])
def test_a_gpu_is_found_by_uuid_pci_address_or_index(world: t.Callable[..., World], spelling: str) -> None:
    fleet = world(f"{H100}:2")
    uuid, pci = fleet.uuids[1], fleet.pcis[1]
    names = {
        "uuid": uuid,
        "UUID": uuid.upper(),
        "pci": pci,
        "PCI": pci.upper(),
        "pci8": f"0000{pci}",
        "short": pci.partition(":")[2],
        "index": "1",
    }
    assert fleet.mig((names[spelling], "1g.10gb"), check=True)["steps"][0] == f"{uuid}: switch MIG on"


@pytest.mark.parametrize("name", ["7", "GPU-00000000-0000-0000-0000-000000000000", "0000:ff:00.0", "eth0", "4294967296", "²"])
def test_an_unknown_gpu_is_refused_with_those_that_there_are(world: t.Callable[..., World], name: str) -> None:
    fleet = world(H100, L40S)
    listed = ", ".join(f"{number} ({pci}, {uuid})" for number, (pci, uuid) in enumerate(zip(fleet.pcis, fleet.uuids, strict=True)))
    assert fleet.refused((fleet.uuids[0], "1g.10gb"), (name, "1g.10gb")) == (
        f"there is no GPU {name} on this host; nothing was changed; GPUs of this host: {listed}"
    )


def test_a_host_without_gpus_says_so(world: t.Callable[..., World]) -> None:
    fleet = world()
    assert fleet.refused(("0", "1g.10gb")) == "there is no GPU 0 on this host; nothing was changed; GPUs of this host: none"


def test_a_gpu_named_twice_is_refused(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    assert fleet.refused(("0", "1g.10gb"), (gpu, "3g.40gb")) == f"layout: 0 and {gpu}: GPU {gpu} is named twice; name each GPU in one entry"


def test_a_slice_is_no_gpu(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    uuid = fleet.mig((fleet.uuids[0], "1g.10gb"))["layout"][0]["instances"][0]["uuid"]
    assert fleet.refused((uuid, "1g.10gb")) == f"{uuid} is a slice; nothing was changed; name the GPU that it is a part of"


def test_a_lost_gpu_is_named_and_hides_no_other(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    fleet.host.simctl("lose", "--gpu", "0")
    for name in ("0", fleet.pcis[0]):
        words = fleet.refused((name, "1g.10gb"), (fleet.uuids[1], "1g.10gb"))
        assert words.startswith(f"GPU {name} is lost (")
        assert words.endswith("; nothing was changed; look for its XID in the kernel's log")
    assert "0 (GPU is lost)" in fleet.refused(("9", "1g.10gb"))
    assert not fleet.mig((fleet.uuids[1], "1g.10gb"))["failed"]


def test_a_gpu_that_does_not_answer_is_named(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.host.simctl("fail", "--call", "nvmlDeviceGetMigMode", "--error", "UNKNOWN", "--always")
    words = fleet.refused((fleet.uuids[0], "1g.10gb"))
    assert words.startswith(f"GPU {fleet.uuids[0]} does not answer: NVML_ERROR_UNKNOWN (")
    assert words.endswith(") from nvmlDeviceGetMigMode")


def test_a_driver_that_cannot_say_whether_there_is_such_a_gpu_is_quoted(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.host.simctl("fail", "--call", "nvmlDeviceGetHandleByUUID", "--error", "UNKNOWN", "--always")
    assert "NVML_ERROR_UNKNOWN" in fleet.refused((fleet.uuids[0], "1g.10gb"))


def test_one_impossible_wish_keeps_every_gpu_as_it_is(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    assert fleet.refused((one, "1g.10gb"), (two, "3g.40gb", "3g.40gb", "2g.20gb")) == (
        f"GPU {two} (NVIDIA H100 80GB HBM3) cannot hold 2g.20gb + 2x3g.40gb: together they need 8 compute slices and the board has 7; "
        "nearest: 2x3g.40gb, or 2g.20gb + 3g.40gb, or 1g.20gb + 2g.20gb + 3g.40gb"
    )


def test_a_busy_slice_that_would_go_is_refused_with_its_process(world: t.Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((two, "1g.10gb@0", "1g.10gb@1"))
    fleet.hold(1, "--gi", "8", "--ci", "0", pid=os.getpid())
    name = (Path("/proc") / str(os.getpid()) / "comm").read_text().strip()
    words = fleet.refused((one, "1g.10gb"), (two, "7g.80gb"))
    assert words.startswith(
        f"GPU {two} is in use: process {os.getpid()} ({name}) on 1g.10gb@1; 7g.80gb can only start at memory slice 0, "
        f"which 1g.10gb of process {os.getpid()} holds; nothing was changed (first step would be: "
    )


def test_a_process_that_is_gone_from_proc_is_busy_all_the_same(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.hold(0, pid=4194304)
    words = fleet.refused((fleet.uuids[0], "1g.10gb"))
    assert words.startswith(f"GPU {fleet.uuids[0]} is in use: process 4194304 (unknown program) on the GPU itself; nothing was changed")


def test_whoever_has_the_device_file_open_keeps_the_mode_and_not_the_slices(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    proc = fleet.where / "proc"
    process(proc, 77, "dcgm-exporter", "/dev/nvidia0")
    process(proc, 78, "nvidia-persistenced", "/dev/nvidia0")
    process(proc, 79, "other", "/dev/nvidia1")
    assert fleet.refused((gpu, "1g.10gb"), proc_root=str(proc)).startswith(
        f"GPU {gpu} is in use: process 77 (dcgm-exporter) on the GPU itself; nothing was changed"
    )
    fleet.mig((gpu,))
    assert fleet.done((gpu, "1g.10gb"), proc_root=str(proc)) == [f"{gpu}: create 1g.10gb at memory slice 6"]


def test_an_open_capability_file_makes_its_slice_busy(world: t.Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    proc = fleet.where / "proc"
    process(proc, 77, "model-server", "/dev/nvidia-caps/nvidia-cap12")
    (proc / "driver" / "nvidia-caps").mkdir(parents=True)
    (proc / "driver" / "nvidia-caps" / "mig-minors").write_text("gpu0/gi7/access 12\n")
    assert fleet.refused((gpu,), proc_root=str(proc)).startswith(f"GPU {gpu} is in use: process 77 (model-server) on 1g.10gb@0;")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"layout": [{"gpu": "0", "instances": [{"profile": "1g.10gb", "start": 1, "count": 2}]}]},
            "layout[0].instances[0].count: 2 instances",
        ),
        (
            {"layout": [{"gpu": "0", "instances": [{"profile": "1g.10gb", "count": True}]}]},
            "layout[0].instances[0].count: expected a whole number, found true; write count: 1",
        ),
        (
            {"layout": [{"gpu": "0", "instances": [{"profile": "1g.10gb", "start": False}]}]},
            "layout[0].instances[0].start: expected a whole number, found false; write start: 1",
        ),
        (
            {"layout": [{"gpu": "0", "instances": []}], "proc_root": "/no/such/place"},
            "proc_root: cannot see who has a GPU open, for /no/such/place cannot be read (No such file or directory); nothing was changed",
        ),
        ({"layout": [{"gpu": "0", "instances": [{"start": 1}]}]}, "profile"),
        ({"layout": [{"gpu": "0", "slices": []}]}, "layout.slices"),
        (
            {"config": "mig.yaml", "label": "x"},
            "config: a layout file is read on the controller; call it as gpuops.fleet.mig in a playbook",
        ),
    ],
)
def test_a_bad_wish_is_refused_by_field(world: t.Callable[..., World], run_module: RunModule, args: dict[str, t.Any], words: str) -> None:
    fleet = world(H100)
    result = run_module("mig", {**args, "state_dir": str(fleet.state_dir)})
    assert result["failed"]
    assert words in result["msg"]
    assert fleet.mutations() == []
