# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The typed wrapper over the real pynvml, over simulated boards."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import (
    Memory,
    Mode,
    NvmlDriverMissing,
    NvmlError,
    NvmlLibraryMissing,
    Process,
    PynvmlMissing,
)

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost

A100 = "a100-80gb"
H100 = "h100-80gb"
L40S = "l40s-48gb"
RTX = "rtx-pro-6000-96gb"
WITH_MIG = ["a30-24gb", "a100-40gb", A100, H100, "h100-94gb", "h200-141gb", RTX]


@contextmanager
def refused(name: str, call: str | None = None) -> Iterator[None]:
    """NVML refuses with this name, and the message says so."""
    with pytest.raises(NvmlError) as caught:
        yield
    assert caught.value.name == name
    assert name in str(caught.value)
    if call is not None:
        assert caught.value.call == call
        assert str(caught.value).startswith(f"{call}: ")


def fail(host: FleetHost, call: str, error: str) -> None:
    host.simctl("fail", "--call", call, "--error", error, "--always")


def count(host: FleetHost) -> Counter[str]:
    return Counter(entry["call"] for entry in host.calls())


def with_mig(nvml: Nvml, name: str = "0") -> t.Any:
    """The GPU with MIG on; on Hopper and newer that needs nothing else."""
    handle = nvml.find(name)
    assert nvml.set_mig_mode(handle, True) == "NVML_SUCCESS"
    return handle


# Sessions and errors


def test_versions_are_those_of_the_host(fleet_host: MakeHost) -> None:
    fleet_host(L40S)
    with Nvml() as nvml:
        versions = nvml.versions()
        assert versions.driver == pynvml.nvmlSystemGetDriverVersion()
        assert versions.nvml == pynvml.nvmlSystemGetNVMLVersion()
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    assert versions.cuda == f"{number // 1000}.{number % 100 // 10}"


def test_a_driver_that_knows_no_cuda_has_none(fleet_host: MakeHost) -> None:
    fail(fleet_host(L40S), "nvmlSystemGetCudaDriverVersion_v2", "FUNCTION_NOT_FOUND")
    with Nvml() as nvml:
        assert nvml.versions().cuda is None


def test_a_session_that_has_closed_answers_no_more(fleet_host: MakeHost) -> None:
    fleet_host(L40S)
    with Nvml() as nvml:
        handle = nvml.find(0)
    with refused("NVML_ERROR_UNINITIALIZED", "nvmlDeviceGetUUID"):
        nvml.uuid(handle)


def test_a_fault_at_the_end_of_a_session_does_not_hide_what_went_wrong_in_it(fleet_host: MakeHost) -> None:
    host = fleet_host(L40S)
    fail(host, "nvmlShutdown", "UNKNOWN")
    with pytest.raises(RuntimeError, match="in the session"), Nvml():
        raise RuntimeError("in the session")
    host.simctl("fail", "--clear")
    pynvml.nvmlShutdown()


def test_a_missing_package_a_missing_library_and_a_missing_driver_are_told_apart(
    fleet_host: MakeHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet_host(L40S)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pynvml", None)
        with pytest.raises(PynvmlMissing, match=r"nvidia-ml-py .* cannot be imported by .*python"), Nvml():
            pass
    monkeypatch.setenv("NVML_SIM_STATE", str(tmp_path / "nothing"))
    with pytest.raises(NvmlDriverMissing, match=r"^nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED \(Driver Not Loaded\)$"), Nvml():
        pass


def test_a_host_without_the_library_is_told_by_its_own_error() -> None:
    script = (
        "from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml\n"
        "from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlLibraryMissing\n"
        "try:\n    Nvml().__enter__()\nexcept NvmlLibraryMissing as error:\n    print(error.name)\n"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "NVML_ERROR_LIBRARY_NOT_FOUND\n", done.stderr
    assert issubclass(NvmlLibraryMissing, NvmlError)


def test_an_error_that_pynvml_has_no_name_for_keeps_its_number(fleet_host: MakeHost) -> None:
    fleet_host(L40S)
    with Nvml() as nvml:
        error = nvml._error("nvmlDeviceGetName", 4242)
    assert (error.name, error.code) == ("NVML_ERROR_4242", 4242)


def test_a_pynvml_older_than_a_call_is_like_a_driver_older_than_it(fleet_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet_host(L40S)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetVirtualizationMode")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMinorNumber")
    with Nvml() as nvml:
        assert nvml.virtualization(nvml.find(0)) is None
        with refused("NVML_ERROR_FUNCTION_NOT_FOUND", "nvmlDeviceGetMinorNumber"):
            nvml.minor(nvml.find(0))


# Finding a GPU


def test_a_gpu_is_found_by_uuid_by_any_spelling_of_its_address_and_by_index(fleet_host: MakeHost) -> None:
    fleet_host(f"{L40S}:2")
    with Nvml() as nvml:
        handle = nvml.devices()[1].handle
        uuid, address = nvml.uuid(handle), nvml.pci(handle).address
        assert nvml.index(handle) == 1
        for name in (uuid, address, f"0000{address}".upper(), address[5:], f" {uuid} ", 1, "1"):
            assert nvml.uuid(nvml.find(name)) == uuid


@pytest.mark.parametrize("name", ["GPU-00000000-0000-0000-0000-000000000000", "0000:fe:1f.0", 9])
def test_a_gpu_that_is_not_there_is_refused(fleet_host: MakeHost, name: str | int) -> None:
    fleet_host(L40S)
    with Nvml() as nvml, pytest.raises(NvmlError) as caught:
        nvml.find(name)
    assert caught.value.name in ("NVML_ERROR_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT")


def test_a_lost_gpu_hides_no_other(fleet_host: MakeHost) -> None:
    host = fleet_host(f"{L40S}:3")
    host.simctl("lose", "--gpu", "1")
    with Nvml() as nvml:
        found = nvml.devices()
        assert [entry.index for entry in found] == [0, 1, 2]
        assert [entry.error.name if entry.error else None for entry in found] == [None, "NVML_ERROR_GPU_IS_LOST", None]
        assert nvml.uuid(found[2].handle).startswith("GPU-")


def test_a_host_without_gpus_has_none(fleet_host: MakeHost) -> None:
    fleet_host()
    with Nvml() as nvml:
        assert nvml.devices() == []


# Identity and state


def test_a_gpu_says_what_it_is(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    shown = host.simctl("show", "--json")["gpus"][0]
    with Nvml() as nvml:
        handle = nvml.find(0)
        pci = nvml.pci(handle)
        assert nvml.uuid(handle) == shown["uuid"]
        assert nvml.name(handle) == "NVIDIA A100-SXM4-80GB"
        assert (nvml.architecture(handle), nvml.compute_capability(handle)) == ("ampere", "8.0")
        assert nvml.minor(handle) == 0
        assert pci.device_id == "0x20B210DE"
        assert pci.subsystem_id == f"0x{pynvml.nvmlDeviceGetPciInfo_v3(handle).pciSubSystemId:08X}"
        raw = pynvml.nvmlDeviceGetPciInfo_v3(handle)
        assert pci.address == f"{raw.domain:04x}:{raw.bus:02x}:{raw.device:02x}.0"
        assert nvml.virtualization(handle) == "none"


@pytest.mark.parametrize(
    ("field", "value", "read", "expected"),
    [
        ("temperature", "77", "temperature_c", 77),
        ("persistence", "on", "persistence", True),
        ("persistence", "off", "persistence", False),
        ("compute-mode", "default", "compute_mode", "default"),
        ("compute-mode", "prohibited", "compute_mode", "prohibited"),
        ("compute-mode", "exclusive_process", "compute_mode", "exclusive_process"),
        ("power-usage", "83.4", "power_w", 83),
        ("power-usage", "83.6", "power_w", 84),
        ("power-limit", "350", "power_limit_w", 350),
    ],
)
def test_a_reading_is_what_the_board_shows(fleet_host: MakeHost, field: str, value: str, read: str, expected: object) -> None:
    fleet_host(A100).simctl("set", "--gpu", "0", field, value)
    with Nvml() as nvml:
        assert getattr(nvml, read)(nvml.find(0)) == expected


@pytest.mark.parametrize(
    ("call", "read"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetPowerManagementLimit", "power_limit_w"),
        ("nvmlDeviceGetPersistenceMode", "persistence"),
        ("nvmlDeviceGetComputeMode", "compute_mode"),
        ("nvmlDeviceGetVirtualizationMode", "virtualization"),
        ("nvmlDeviceGetEccMode", "ecc"),
        ("nvmlDeviceGetMigMode", "mig_mode"),
    ],
)
def test_what_a_board_does_not_have_is_none_and_other_refusals_are_errors(fleet_host: MakeHost, call: str, read: str) -> None:
    host = fleet_host(A100)
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert getattr(nvml, read)(handle) is not None
        fail(host, call, "NOT_SUPPORTED")
        assert getattr(nvml, read)(handle) is None
        host.simctl("fail", "--clear")
        fail(host, call, "UNKNOWN")
        with refused("NVML_ERROR_UNKNOWN", call):
            getattr(nvml, read)(handle)


def test_memory_in_use_leaves_out_what_the_driver_reserves(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    with Nvml() as nvml:
        handle = nvml.find(0)
        modern = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert modern.reserved > 0
        assert nvml.memory(handle) == Memory(81920, modern.used // 2**20)
        fail(host, "nvmlDeviceGetMemoryInfo_v2", "FUNCTION_NOT_FOUND")
        assert nvml.memory(handle) == Memory(81920, pynvml.nvmlDeviceGetMemoryInfo(handle).used // 2**20)


def test_memory_is_read_with_a_pynvml_that_knows_no_second_version(fleet_host: MakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet_host(A100)
    monkeypatch.delattr(pynvml, "nvmlMemory_v2")
    with Nvml() as nvml:
        assert nvml.memory(nvml.find(0)).total_mib == 81920


def test_temperature_is_read_by_the_newer_call_where_the_older_is_gone(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    host.simctl("set", "--gpu", "0", "temperature", "61")
    fail(host, "nvmlDeviceGetTemperature", "FUNCTION_NOT_FOUND")
    with Nvml() as nvml:
        assert nvml.temperature_c(nvml.find(0)) == 61


def test_ecc_tells_what_is_in_force_and_what_will_be(fleet_host: MakeHost) -> None:
    fleet_host(A100)
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert nvml.ecc(handle) == Mode(True, True)
        pynvml.nvmlDeviceSetEccMode(handle, 0)
        assert nvml.ecc(handle) == Mode(True, False)


# Processes


def test_processes_are_listed_with_kind_memory_and_slice(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        instance = nvml.create_gpu_instance(handle, profile.id, 0, profile.size)
        compute = nvml.create_compute_instance(instance)
        host.simctl("hold", "--gpu", "0", "--pid", "300", "--memory", "512", "--gi", str(instance.id), "--ci", str(compute.id))
        host.simctl("hold", "--gpu", "0", "--pid", "200", "--kind", "graphics", "--memory", "64")
        assert nvml.processes(handle) == [
            Process(200, "graphics", None, None, 64),
            Process(300, "compute", instance.id, compute.id, 512),
        ]


def test_an_mps_client_is_listed_once(fleet_host: MakeHost) -> None:
    fleet_host(A100).simctl("hold", "--gpu", "0", "--pid", "200", "--kind", "mps")
    with Nvml() as nvml:
        assert [(process.pid, process.kind) for process in nvml.processes(nvml.find(0))] == [(200, "mps")]


def test_a_board_that_lists_no_graphics_still_lists_the_others(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    host.simctl("hold", "--gpu", "0", "--pid", "200")
    fail(host, "nvmlDeviceGetGraphicsRunningProcesses_v3", "NOT_SUPPORTED")
    with Nvml() as nvml:
        assert [process.pid for process in nvml.processes(nvml.find(0))] == [200]


def test_processes_that_may_not_be_seen_are_an_error_not_an_empty_list(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    fail(host, "nvmlDeviceGetComputeRunningProcesses_v3", "NO_PERMISSION")
    with Nvml() as nvml, refused("NVML_ERROR_NO_PERMISSION"):
        nvml.processes(nvml.find(0))


# MIG mode


def test_a_board_without_mig_has_no_mode_no_profiles_and_no_geometry(fleet_host: MakeHost) -> None:
    fleet_host(L40S)
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert nvml.mig_mode(handle) is None
        assert nvml.profiles(handle) == ()
        assert nvml.geometry(handle) is None
        with refused("NVML_ERROR_NOT_SUPPORTED", "nvmlDeviceSetMigMode"):
            nvml.set_mig_mode(handle, True)


def test_hopper_changes_its_mode_at_once(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert nvml.resetless(handle) is True
        assert nvml.mig_mode(handle) == Mode(False, False)
        assert nvml.set_mig_mode(handle, True) == "NVML_SUCCESS"
        assert nvml.mig_mode(handle) == Mode(True, True)
        assert nvml.set_mig_mode(handle, False) == "NVML_SUCCESS"
        assert nvml.mig_mode(handle) == Mode(False, False)


def test_a_mode_that_waits_is_not_taken_for_done(fleet_host: MakeHost) -> None:
    host = fleet_host(A100)
    host.simctl("hold", "--gpu", "0", "--pid", "200")
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert nvml.resetless(handle) is False
        assert nvml.set_mig_mode(handle, True) in ("NVML_ERROR_IN_USE", "NVML_ERROR_RESET_REQUIRED")
        assert nvml.mig_mode(handle) == Mode(False, True)


@pytest.mark.parametrize(("board", "resetless"), [(A100, False), (H100, True), (RTX, True)])
def test_without_field_184_the_architecture_tells_whether_a_reset_is_needed(fleet_host: MakeHost, board: str, resetless: bool) -> None:
    host = fleet_host(board)
    fail(host, "nvmlDeviceGetFieldValues", "FUNCTION_NOT_FOUND")
    with Nvml() as nvml:
        assert nvml.resetless(nvml.find(0)) is resetless


# Geometry


def test_a_geometry_is_what_the_board_reports(fleet_host: MakeHost) -> None:
    fleet_host(A100)
    with Nvml() as nvml:
        geometry = nvml.geometry(nvml.find(0))
    assert geometry is not None
    assert (geometry.compute_slices, geometry.memory_slices) == (7, 8)
    rows = {profile.name: profile for profile in geometry.profiles}
    assert {name: (row.id, row.slices, row.size, row.max, row.sm, row.starts) for name, row in rows.items()} == {
        "1g.10gb": (19, 1, 1, 7, 14, (0, 1, 2, 3, 4, 5, 6)),
        "1g.10gb+me": (20, 1, 1, 1, 14, (0, 1, 2, 3, 4, 5, 6)),
        "1g.20gb": (15, 1, 2, 4, 14, (0, 2, 4, 6)),
        "2g.20gb": (14, 2, 2, 3, 28, (0, 2, 4)),
        "3g.40gb": (9, 3, 4, 2, 42, (0, 4)),
        "4g.40gb": (5, 4, 4, 1, 56, (0,)),
        "7g.80gb": (0, 7, 8, 1, 98, (0,)),
    }
    assert rows["1g.10gb"].memory_mib == 9856


def test_a_board_of_twelve_memory_units_is_read_as_such(fleet_host: MakeHost) -> None:
    fleet_host(RTX)
    with Nvml() as nvml:
        geometry = nvml.geometry(nvml.find(0))
    assert geometry is not None
    assert (geometry.compute_slices, geometry.memory_slices) == (4, 12)
    assert {profile.name: profile.starts for profile in geometry.profiles}["1g.24gb-me"] == (0, 3, 6, 9)


@pytest.mark.parametrize("board", WITH_MIG)
def test_names_that_are_computed_for_an_old_driver_are_those_that_a_new_one_reports(fleet_host: MakeHost, board: str) -> None:
    host = fleet_host(board)
    with Nvml() as nvml:
        modern = nvml.profiles(nvml.find(0))
    fail(host, "nvmlDeviceGetGpuInstanceProfileInfoV", "ARGUMENT_VERSION_MISMATCH")
    with Nvml() as nvml:
        assert nvml.profiles(nvml.find(0)) == modern
    assert len(modern) >= 5
    assert count(host)["nvmlDeviceGetGpuInstanceProfileInfo"] > 0


def test_a_driver_that_tells_nothing_while_mig_is_off_is_asked_again_when_it_is_on(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    fail(host, "nvmlDeviceGetGpuInstanceProfileInfoV", "NOT_SUPPORTED")
    with Nvml() as nvml:
        handle = nvml.find(0)
        assert nvml.geometry(handle) is None
        host.simctl("fail", "--clear")
        assert nvml.set_mig_mode(handle, True) == "NVML_SUCCESS"
        assert nvml.geometry(handle) is not None


def test_a_profile_without_a_place_is_none_that_can_be_cut(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    # Two calls for each profile: how many places, and which. The first profile has none.
    host.simctl("fail", "--call", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "--nth", "1", "--error", "NOT_SUPPORTED")
    with Nvml() as nvml:
        geometry = nvml.geometry(nvml.find(0))
    assert geometry is not None
    assert [profile.name for profile in geometry.profiles] == ["2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me", "1g.20gb"]


def test_an_instance_of_a_profile_that_the_driver_does_not_name_is_said(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    host.simctl("fail", "--call", "nvmlDeviceGetGpuInstanceProfileInfoV", "--nth", "1", "--error", "NOT_SUPPORTED")
    with Nvml() as nvml:
        handle = with_mig(nvml)
        with pytest.raises(NvmlError, match=r"NVML_ERROR_NOT_FOUND .the driver names no profile with id 19."):
            nvml.create_gpu_instance(handle, 19, 0, 1)


def test_profiles_are_read_once_in_a_session(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    with Nvml() as nvml:
        handle = nvml.find(0)
        first = nvml.profiles(handle)
        asked = count(host)
        assert nvml.profiles(nvml.find(0)) is first
        assert count(host)["nvmlDeviceGetGpuInstanceProfileInfoV"] == asked["nvmlDeviceGetGpuInstanceProfileInfoV"]


def test_a_board_of_the_same_kind_takes_over_profiles_for_one_question(fleet_host: MakeHost) -> None:
    host = fleet_host(f"{H100}:2")
    with Nvml() as nvml:
        one, two = nvml.find(0), nvml.find(1)
        nvml.profiles(one)
        before = sum(count(host).values())
        assert nvml.share_profiles(two, like=one) is True
        assert nvml.profiles(two) == nvml.profiles(one)
        assert sum(count(host).values()) - before == 1


def test_a_board_that_differs_does_not_take_over_profiles(fleet_host: MakeHost) -> None:
    fleet_host(H100, A100, L40S)
    with Nvml() as nvml:
        h100, a100, l40s = (found.handle for found in nvml.devices())
        assert nvml.share_profiles(a100, like=h100) is False
        assert nvml.share_profiles(l40s, like=h100) is False
        assert nvml.share_profiles(h100, like=l40s) is False
        assert nvml.profiles(a100) != nvml.profiles(h100)


# Instances


def test_gpu_instances_are_listed_by_place_also_those_that_nobody_can_use_yet(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        ids = {profile.name: profile for profile in nvml.profiles(handle)}
        assert nvml.gpu_instances(handle) == []
        small = nvml.create_gpu_instance(handle, ids["1g.10gb"].id, 5, 1)
        large = nvml.create_gpu_instance(handle, ids["3g.40gb"].id, 0, 4)
        compute = nvml.create_compute_instance(large)
        assert (small.profile, small.profile_id, small.start, small.size) == ("1g.10gb", ids["1g.10gb"].id, 5, 1)
        assert small.compute_instances == ()
        listed = nvml.gpu_instances(handle)
        assert [(one.profile, one.start, one.size, one.id) for one in listed] == [
            ("3g.40gb", 0, 4, large.id),
            ("1g.10gb", 5, 1, small.id),
        ]
        assert listed[0].compute_instances == (compute,)
        assert listed[1].compute_instances == ()
        assert (compute.id, compute.profile, compute.slices) == (0, "3g.40gb", 3)
        assert compute.uuid == nvml.mig_devices(handle)[0]
        assert compute.uuid.startswith("MIG-")


def test_a_gpu_with_mig_whose_profiles_are_untold_is_not_taken_for_empty(fleet_host: MakeHost) -> None:
    host = fleet_host(H100, L40S)
    with Nvml() as nvml:
        with_mig(nvml)
    fail(host, "nvmlDeviceGetGpuInstanceProfileInfoV", "NOT_SUPPORTED")
    with Nvml() as nvml:
        with pytest.raises(NvmlError, match="MIG is on, but the driver names no profile"):
            nvml.gpu_instances(nvml.find(0))
        assert nvml.gpu_instances(nvml.find(1)) == []


def test_instances_are_removed_from_the_inside_out(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        made = nvml.create_gpu_instance(handle, profile.id, 2, profile.size)
        compute = nvml.create_compute_instance(made)
        with refused("NVML_ERROR_IN_USE", "nvmlGpuInstanceDestroy"):
            nvml.destroy_gpu_instance(made)
        nvml.destroy_compute_instance(compute)
        assert [len(one.compute_instances) for one in nvml.gpu_instances(handle)] == [0]
        nvml.destroy_gpu_instance(made)
        assert nvml.gpu_instances(handle) == []


def test_a_place_that_is_taken_is_refused_by_name(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        assert nvml.remaining_capacity(handle, profile.id) == 7
        nvml.create_gpu_instance(handle, profile.id, 2, profile.size)
        assert nvml.remaining_capacity(handle, profile.id) == 6
        with refused("NVML_ERROR_INSUFFICIENT_RESOURCES", "nvmlDeviceCreateGpuInstanceWithPlacement"):
            nvml.create_gpu_instance(handle, profile.id, 2, profile.size)


def test_a_gpu_instance_of_double_memory_is_filled_by_the_compute_profile_made_for_it(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        rev2 = next(profile for profile in nvml.profiles(handle) if profile.enum == 9)
        made = nvml.create_gpu_instance(handle, rev2.id, 0, rev2.size)
        assert nvml.full_compute_profile(made).enum == 7
        assert nvml.create_compute_instance(made).profile == rev2.name


def test_a_compute_instance_smaller_than_its_gpu_instance_is_named_so(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = next(profile for profile in nvml.profiles(handle) if profile.slices == 3)
        made = nvml.create_gpu_instance(handle, profile.id, 4, profile.size)
        full = nvml.full_compute_profile(made)
        assert full.slices == 3
        parts = {found.slices: found for found in nvml.compute_profiles(made)}
        two = nvml.create_compute_instance(made, parts[2])
        one = nvml.create_compute_instance(made, parts[1])
        assert (two.profile, one.profile) == ("2c.3g.40gb", "1c.3g.40gb")
        found = nvml.gpu_instances(handle)[0].compute_instances
        assert found == tuple(sorted((one, two), key=lambda compute: compute.id))
        assert sorted(nvml.mig_devices(handle).values()) == sorted([one.uuid, two.uuid])


def test_compute_profiles_are_read_with_the_first_version_of_the_call_too(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    fail(host, "nvmlGpuInstanceGetComputeInstanceProfileInfoV", "FUNCTION_NOT_FOUND")
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        made = nvml.create_gpu_instance(handle, profile.id, 0, profile.size)
        assert nvml.create_compute_instance(made).profile == profile.name


def test_a_gpu_instance_without_compute_profiles_is_said(fleet_host: MakeHost) -> None:
    host = fleet_host(H100)
    fail(host, "nvmlGpuInstanceGetComputeInstanceProfileInfoV", "NOT_SUPPORTED")
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        made = nvml.create_gpu_instance(handle, profile.id, 0, profile.size)
        with pytest.raises(NvmlError, match=r"NVML_ERROR_NOT_SUPPORTED .*no compute instance profile for 1g\.10gb"):
            nvml.create_compute_instance(made)


def test_mig_devices_have_gaps_where_a_slice_is_gone(fleet_host: MakeHost) -> None:
    fleet_host(H100)
    with Nvml() as nvml:
        handle = with_mig(nvml)
        profile = nvml.profiles(handle)[0]
        made = [nvml.create_gpu_instance(handle, profile.id, start, profile.size) for start in (0, 1, 2)]
        computes = [nvml.create_compute_instance(instance) for instance in made]
        before = nvml.mig_devices(handle)
        nvml.destroy_compute_instance(computes[1])
        after = nvml.mig_devices(handle)
    assert sorted(before.values()) == sorted(compute.uuid for compute in computes)
    assert after == {index: uuid for index, uuid in before.items() if uuid != computes[1].uuid}
