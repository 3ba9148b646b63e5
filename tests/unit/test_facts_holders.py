# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds GPUs and slices, as facts: on request, complete or not at all."""

from __future__ import annotations

import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import Options, collect
from test_facts import H100, L40S, fail, slices, small_host
from test_host import write

if t.TYPE_CHECKING:
    from conftest import MakeHost


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A host below the test's directory."""
    return small_host(tmp_path / "host")


def test_holders_come_on_request(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    assert "holders" not in collect(options)["gpus"][0]
    result = collect(replace(options, gather=frozenset({"holders"})))
    assert result["gpus"][0]["holders"] == []
    assert "containers" not in result


def process(options: Options, pid: int, *targets: str) -> None:
    directory = Path(options.proc_root) / str(pid)
    write(directory / "status", "Name:\tpython3\nUid:\t3999999999\t0\t0\t0\n")
    write(directory / "cgroup", "0::/\n")
    (directory / "fd").mkdir()
    for number, target in enumerate(targets):
        (directory / "fd" / str(number)).symlink_to(target)


def test_each_gpu_has_its_own_holders(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:2")
    slices(3, gpu=1)
    gi = host.simctl("show", "--json")["gpus"][1]["mig"]["instances"][0]["gi"]
    minors = f"gpu0/gi{gi}/access 20\ngpu0/gi{gi}/ci0/access 21\ngpu1/gi{gi}/access 30\ngpu1/gi{gi}/ci0/access 31\n"
    write(Path(options.proc_root) / "driver/nvidia-caps/mig-minors", minors)
    process(options, 200, "/dev/nvidia0")
    process(options, 300, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    process(options, 400, "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap31")
    host.simctl("hold", "--gpu", "1", "--pid", "300", "--gi", str(gi), "--ci", "0")
    result = collect(replace(options, gather=frozenset({"holders"})))
    who = {"process": "python3", "user": "3999999999", "container": None}
    place = {"gi": gi, "ci": 0}
    assert [gpu["holders"] for gpu in result["gpus"]] == [
        [{"pid": 200, **who, "slice": None, "kind": "open_file", "path": "/dev/nvidia0"}],
        [
            {"pid": 300, **who, "slice": place, "kind": "compute"},
            {"pid": 400, **who, "slice": place, "kind": "open_file", "path": "/dev/nvidia-caps/nvidia-cap31"},
        ],
    ]


@pytest.mark.parametrize("call", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMinorNumber"])
def test_holders_that_cannot_be_known_in_full_are_none(fleet_host: MakeHost, options: Options, call: str) -> None:
    fail(fleet_host(L40S), call, "NO_PERMISSION")
    result = collect(replace(options, gather=frozenset({"holders"})))
    assert result["gpus"][0]["holders"] is None
    assert any("NVML_ERROR_NO_PERMISSION" in line for line in result["errors"])


def test_holders_in_a_slice_that_cannot_be_known_are_none(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100)
    slices(0)
    host.simctl("fail", "--call", "nvmlDeviceGetComputeRunningProcesses_v3", "--nth", "2", "--error", "NO_PERMISSION")
    assert collect(replace(options, gather=frozenset({"holders"})))["gpus"][0]["holders"] is None


def test_a_proc_that_cannot_be_walked_makes_all_holders_unknown(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    result = collect(replace(options, gather=frozenset({"holders"}), proc_root=options.proc_root + "-missing"))
    assert result["gpus"][0]["holders"] is None
    assert any(line.startswith("holders: ") for line in result["errors"])


def test_a_lost_gpu_has_unknown_holders(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S).simctl("lose", "--gpu", "0")
    assert collect(replace(options, gather=frozenset({"holders"})))["gpus"][0]["holders"] is None
