# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How busy devices are: rates of whole GPUs by simulated NVML, slices by a ``dcgmi`` that prints what NVIDIA's papers show."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import utilisation
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Load
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import Device
from mig_world import H100, World, program, smi

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

A100 = "a100-80gb"
# As in NVIDIA's user guide of DCGM, "Multi-Instance GPU" and "Profiling metrics".
HIERARCHY = """\
+-------------------+--------------------------------------------------------------------+
| Instance Hierarchy                                                                     |
+===================+====================================================================+
| GPU 0             | GPU {uuid} (EntityID: 0)                                           |
| -> I 0/{gi}       | GPU Instance (EntityID: 7)                                         |
|    -> CI 0/{gi}/0 | Compute Instance (EntityID: 3)                                     |
| -> I 0/99         | GPU Instance (EntityID: 8)                                         |
+-------------------+--------------------------------------------------------------------+
"""
ROWS = """\
#Entity   GRACT
ID
GPU-I 7     N/A
GPU-I 7     0.200
GPU-I 8     0.900
GPU-I 7     0.400
"""


def whole(fleet: World, number: int = 0) -> list[Device]:
    return [Device("GPU_0", fleet.uuids[number])]


def slice_of(fleet: World) -> list[Device]:
    return [Device("GPU_0", fleet.uuids[0], "1g.10gb", 4)]


def measured(*devices: list[Device], **more: t.Any) -> list[Load]:
    slept: list[float] = []
    found = utilisation.measure({str(number): several for number, several in enumerate(devices)}, 2, sleep=slept.append, **more)
    assert sum(slept) <= 2
    return [found[str(number)] for number in range(len(devices))]


@pytest.fixture
def fleet(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> World:
    return World(fleet_host(f"{A100}:2"), run_module, tmp_path)


@pytest.fixture
def sliced(fleet: World) -> World:
    assert not fleet.mig((0, "1g.10gb@4"), reset=True, nvidia_smi=smi(fleet))["failed"]
    return fleet


def dcgmi(sliced: World, where: Path, rows: str = ROWS, status: int = 0) -> str:
    (instance,) = sliced.show()[0]["mig"]["instances"]
    (where / "hierarchy").write_text(HIERARCHY.format(uuid=sliced.uuids[0], gi=instance["gi"]))
    (where / "rows").write_text(rows)
    text = f'echo "$@" >> {where}/asked\ncase $1 in discovery) cat {where}/hierarchy;; *) cat {where}/rows; exit {status};; esac\n'
    return program(where / "dcgmi", text)


def test_a_whole_gpu_tells_its_rates_and_of_several_the_busiest_counts(fleet: World) -> None:
    fleet.host.simctl("set", "--gpu", "1", "utilization", "40")
    assert measured(whole(fleet), whole(fleet, 1), whole(fleet) + whole(fleet, 1)) == [Load(0.0), Load(0.4), Load(0.4)]


def test_newer_boards_count_for_a_slice_and_for_a_whole_gpu(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet = World(fleet_host(f"{H100}:2"), run_module, tmp_path)
    assert not fleet.mig((0, "1g.10gb@4"))["failed"]
    for number, share in (("0", "40"), ("1", "70")):
        fleet.host.simctl("set", "--gpu", number, "utilization", share)
    assert measured(slice_of(fleet), whole(fleet, 1), dcgmi="no-such-dcgmi") == [Load(0.4), Load(0.7)]
    calls = [call["call"] for call in fleet.host.calls() if "Gpm" in call["call"]]
    assert calls.count("nvmlGpmSampleAlloc") == calls.count("nvmlGpmSampleFree") == 4
    assert [call for call in calls if call.endswith("SampleGet")].count("nvmlGpmMigSampleGet") == 2


@pytest.mark.parametrize("call", ["nvmlGpmMigSampleGet", "nvmlGpmMetricsGet", "nvmlGpmQueryDeviceSupport"])
def test_a_count_that_fails_is_never_idle_and_no_sample_is_left(
    fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, call: str
) -> None:
    fleet = World(fleet_host(H100), run_module, tmp_path)
    assert not fleet.mig((0, "1g.10gb@4"))["failed"]
    fleet.host.simctl("fail", "--call", call, "--error", "UNKNOWN", "--always")
    (found,) = measured(slice_of(fleet))
    assert found.share is None
    assert found.blind.startswith(f"{call}: NVML_ERROR_UNKNOWN")
    calls = [one["call"] for one in fleet.host.calls()]
    assert calls.count("nvmlGpmSampleAlloc") == calls.count("nvmlGpmSampleFree")


def test_a_slice_of_a_board_that_counts_nothing_is_asked_of_dcgm(sliced: World, tmp_path: Path) -> None:
    (found,) = measured(slice_of(sliced), dcgmi=dcgmi(sliced, tmp_path))
    assert found.share == pytest.approx(0.3)
    assert (tmp_path / "asked").read_text() == "discovery --compute-hierarchy\ndmon -e 1001 -i i:7 -d 1000 -c 3\n"


@pytest.mark.parametrize(
    ("rows", "status", "words"),
    [
        ("GPU-I 7     N/A\n", 0, "dcgmi tells nothing of the slice"),
        ("Error: unable to connect to the host engine\n", 1, "dcgmi dmon: Error: unable to connect to the host engine"),
        ("GPU-I 7     nan\nGPU-I 7     -1\nGPU-I 7     12345.0\n", 0, "dcgmi tells nothing of the slice"),
    ],
)
def test_what_dcgm_does_not_tell_is_never_idle(sliced: World, tmp_path: Path, rows: str, status: int, words: str) -> None:
    (found,) = measured(slice_of(sliced), dcgmi=dcgmi(sliced, tmp_path, rows, status))
    assert found.share is None
    assert found.blind.endswith(words)


def test_without_dcgm_a_slice_cannot_be_seen_and_its_gpu_neither(sliced: World) -> None:
    found = measured(slice_of(sliced), whole(sliced), slice_of(sliced) + whole(sliced, 1), dcgmi="no-such-dcgmi")
    assert found[0] == Load(None, "NVML does not tell how busy a slice of this board is, and there is no no-such-dcgmi")
    assert found[1] == Load(None, "NVML does not tell how busy it is")
    assert found[2].share is None


def test_what_is_not_there_cannot_be_seen(sliced: World) -> None:
    gone = [Device("GPU_0", sliced.uuids[0], "1g.10gb", 6)]
    assert measured(gone) == [Load(None, f"there is no slice 1g.10gb@6 of {sliced.uuids[0]}")]
    assert measured([]) == [Load(None, "it has no GPU")]
    sliced.host.simctl("set", "driver", "absent")
    (found,) = measured(whole(sliced))
    assert found.blind.startswith("the driver does not answer (")


def test_only_instances_of_the_right_gpu_are_known() -> None:
    two = HIERARCHY.format(uuid="GPU-aa", gi=1) + HIERARCHY.format(uuid="GPU-bb", gi=1).replace("EntityID: 7", "EntityID: 21")
    found = utilisation.instances_of(two)
    assert (found["GPU-aa", 1], found["GPU-bb", 1]) == (7, 21)
    assert os.linesep not in str(found)
