# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readings and settings of the simulated GPUs: driver, bus, heat, power, ECC, clocks, processes, events, vGPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
import typing as t

import pynvml
import pytest
from simulator_world import compute, create, enable_mig, gpu, nvml_open, refusal, slice_of

Hosts = t.Callable[..., t.Any]


# ---- driver and bus ----


def test_no_state_or_no_driver_is_a_driver_that_is_not_loaded(fleet_host: Hosts, monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any) -> None:
    host = fleet_host("a100-80gb")
    host.simctl("set", "driver", "absent")
    assert refusal(pynvml.nvmlInit) == "DRIVER_NOT_LOADED"
    host.simctl("set", "driver", "present")
    with nvml_open():
        assert pynvml.nvmlDeviceGetCount() == 1
    host.simctl("create", "--force", "--no-driver", "--board", "a100-80gb")
    assert refusal(pynvml.nvmlInit) == "DRIVER_NOT_LOADED"
    monkeypatch.setenv("NVML_SIM_STATE", str(tmp_path / "nowhere"))
    assert refusal(pynvml.nvmlInit) == "DRIVER_NOT_LOADED"
    monkeypatch.delenv("NVML_SIM_STATE")
    assert refusal(pynvml.nvmlInit) == "DRIVER_NOT_LOADED"


def test_state_of_another_layout_is_refused_not_misread(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb")
    path = host.state / "state.bin"
    data = bytearray(path.read_bytes())
    data[8] += 1
    path.write_bytes(bytes(data))
    assert refusal(pynvml.nvmlInit) == "LIB_RM_VERSION_MISMATCH"
    path.write_bytes(bytes(data[:100]))
    assert refusal(pynvml.nvmlInit) == "LIB_RM_VERSION_MISMATCH"


def test_host_without_gpus_has_a_driver_and_counts_none(fleet_host: Hosts) -> None:
    fleet_host()
    with nvml_open():
        assert pynvml.nvmlDeviceGetCount() == 0
        assert refusal(gpu, 0) == "INVALID_ARGUMENT"
        assert pynvml.nvmlSystemGetDriverVersion() == "580.105.08"
        assert pynvml.nvmlSystemGetNVMLVersion() == "13.580.105.08"
        assert pynvml.nvmlSystemGetCudaDriverVersion() == 13000


def test_calls_without_init_are_refused_and_inits_are_counted(fleet_host: Hosts) -> None:
    fleet_host("t4-16gb")
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    assert refusal(pynvml.nvmlDeviceGetCount) == "UNINITIALIZED"
    assert refusal(pynvml.nvmlShutdown) == "UNINITIALIZED"


def test_one_process_sees_one_host_after_another(fleet_host: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fleet_host("t4-16gb"), fleet_host("l40s-48gb:2")
    for host, names in ((first, ["Tesla T4"]), (second, ["NVIDIA L40S"] * 2)):
        monkeypatch.setenv("NVML_SIM_STATE", str(host.state))
        with nvml_open():
            assert [pynvml.nvmlDeviceGetName(gpu(index)) for index in range(pynvml.nvmlDeviceGetCount())] == names


def test_gpu_is_found_by_uuid_serial_and_every_spelling_of_its_address(fleet_host: Hosts) -> None:
    fleet_host("a100-80gb:2")
    with nvml_open():
        uuid = pynvml.nvmlDeviceGetUUID(gpu(1))
        pci = pynvml.nvmlDeviceGetPciInfo(gpu(1))
        assert (pci.busId, pci.busIdLegacy) == ("00000000:0F:00.0", "0000:0F:00.0")
        for text in ("00000000:0F:00.0", "0000:0f:00.0", "0f:00.0"):
            assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(text)) == uuid
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
        by_struct = pynvml.nvmlDeviceGetHandleByUUIDV(uuid.encode(), pynvml.NVML_UUID_TYPE_ASCII)
        assert pynvml.nvmlDeviceGetUUID(by_struct) == uuid
        serial = pynvml.nvmlDeviceGetSerial(gpu(1))
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleBySerial(serial)) == uuid
        assert [pynvml.nvmlDeviceGetIndex(gpu(1)), pynvml.nvmlDeviceGetMinorNumber(gpu(1))] == [1, 1]
        assert refusal(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:99:00.0") == "NOT_FOUND"
        assert refusal(pynvml.nvmlDeviceGetHandleByPciBusId, "gpu") == "INVALID_ARGUMENT"
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000") == "NOT_FOUND"
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, "nonsense") == "INVALID_ARGUMENT"
        assert refusal(gpu, 2) == "INVALID_ARGUMENT"


def test_drained_gpu_leaves_the_bus_and_is_found_again(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb:2")
    host.simctl("hold", "--gpu", "0", "--pid", "5")
    with nvml_open():
        uuid = pynvml.nvmlDeviceGetUUID(gpu(1))
        pci = pynvml.nvmlDeviceGetPciInfo(gpu(0))
        assert refusal(pynvml.nvmlDeviceModifyDrainState, pci, 1) == "IN_USE"
    host.simctl("release", "--pid", "5")
    with nvml_open():
        assert refusal(pynvml.nvmlDeviceRemoveGpu, pci) == "IN_USE"
        pynvml.nvmlDeviceModifyDrainState(pci, 1)
        assert pynvml.nvmlDeviceQueryDrainState(pci) == 1
        pynvml.nvmlDeviceRemoveGpu(pci)
        assert pynvml.nvmlDeviceGetCount() == 1
        assert pynvml.nvmlDeviceGetUUID(gpu(0)) == uuid
        assert refusal(pynvml.nvmlDeviceQueryDrainState, pci) == "INVALID_ARGUMENT"
        pynvml.nvmlDeviceDiscoverGpus(pci)
        assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetUUID(gpu(1)) == uuid


# ---- readings ----


def test_what_a_test_sets_is_what_nvml_reads(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb", "t4-16gb")
    for field, value in (
        ("temperature", "81"),
        ("memory-temperature", "90"),
        ("power-usage", "287.5"),
        ("utilization", "97"),
        ("memory-utilization", "44"),
        ("encoder-utilization", "3"),
        ("clock-sm", "1290"),
        ("clock-reasons", "0x40"),
        ("ecc-corrected", "12"),
        ("ecc-uncorrected", "2"),
        ("remap-pending", "on"),
        ("minor", "9"),
        ("energy", "1234.5"),
    ):
        host.simctl("set", field, value, "--gpu", "0")
    with nvml_open():
        handle = gpu(0)
        assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) == 81
        assert pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU) == 81
        assert pynvml.nvmlDeviceGetMarginTemperature(handle) == 87 - 81
        assert pynvml.nvmlDeviceGetPowerUsage(handle) == 287500
        load = pynvml.nvmlDeviceGetUtilizationRates(handle)
        assert (load.gpu, load.memory) == (97, 44)
        assert pynvml.nvmlDeviceGetEncoderUtilization(handle)[0] == 3
        assert pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1290
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) == 1410
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == 0x40
        assert pynvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0) == 12
        assert pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 1, 1, pynvml.NVML_MEMORY_LOCATION_DRAM) == 2
        assert pynvml.nvmlDeviceGetRemappedRows(handle) == (0, 0, 1, 0)
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == 9
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 1234500
        assert pynvml.nvmlDeviceGetPerformanceState(handle) == 0
        assert pynvml.nvmlDeviceGetTemperature(gpu(1), 0) == 32
        assert refusal(pynvml.nvmlDeviceGetRemappedRows, gpu(1)) == "NOT_SUPPORTED"
        assert list(pynvml.nvmlDeviceGetRetiredPages(gpu(1), 0)) == []
        thresholds = [pynvml.nvmlDeviceGetTemperatureThreshold(handle, kind) for kind in range(4)]
        assert thresholds == [92, 87, 95, 85]


def test_field_values_carry_a_result_of_their_own(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "memory-temperature", "55")
    asked = {
        pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: 1,
        pynvml.NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE: 1,
        pynvml.NVML_FI_DEV_ECC_CURRENT: 1,
        pynvml.NVML_FI_DEV_MEMORY_TEMP: 55,
        pynvml.NVML_FI_DEV_POWER_MIN_LIMIT: 200000,
        pynvml.NVML_FI_DEV_POWER_MAX_LIMIT: 700000,
        pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT: 700000,
        pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: 700000,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: 0,
    }
    with nvml_open():
        values = pynvml.nvmlDeviceGetFieldValues(gpu(), list(asked))
        assert {value.fieldId: value.value.uiVal for value in values} == asked
        assert [value.nvmlReturn for value in values] == [0] * len(asked)
        refused, unknown = pynvml.nvmlDeviceGetFieldValues(gpu(), [pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, 5000])
        assert (refused.nvmlReturn, unknown.nvmlReturn) == (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def test_partitioned_gpu_has_no_utilisation_of_its_own(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        assert refusal(pynvml.nvmlDeviceGetUtilizationRates, handle) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetDecoderUtilization, handle) == "NOT_SUPPORTED"
        device = slice_of(compute(create(handle, 19)))
        assert refusal(pynvml.nvmlDeviceGetUtilizationRates, device) == "NOT_SUPPORTED"


def test_structs_of_another_version_are_refused(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        memory = pynvml.c_nvmlMemory_v2_t()
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryInfo_v2")
        assert function(gpu(), ctypes.byref(memory)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.version = 0
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
        assert function(gpu(), 0, ctypes.byref(info)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_text_that_does_not_fit_is_an_insufficient_size(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetName")
        assert function(gpu(), ctypes.create_string_buffer(4), 4) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


# ---- settings ----


def test_power_limit_stays_within_the_board_and_falls_back_when_the_driver_goes(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 350000)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 350000
        assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu()) == 350000
        for watts in (199999, 700001):
            assert refusal(pynvml.nvmlDeviceSetPowerManagementLimit, gpu(), watts) == "INVALID_ARGUMENT"
        pynvml.nvmlDeviceSetPowerManagementLimit_v2(gpu(), pynvml.NVML_POWER_SCOPE_GPU, 400000)
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 400000
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetPowerManagementLimit(gpu()) == 700000


def test_ecc_mode_waits_for_a_reset_or_a_reboot(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        assert pynvml.nvmlDeviceGetEccMode(gpu()) == [1, 1]
        pynvml.nvmlDeviceSetEccMode(gpu(), 0)
        assert pynvml.nvmlDeviceGetEccMode(gpu()) == [1, 0]
    host.simctl("reset", "--gpu", "0")
    with nvml_open():
        assert pynvml.nvmlDeviceGetEccMode(gpu()) == [0, 0]
        assert refusal(pynvml.nvmlDeviceGetTotalEccErrors, gpu(), 0, 0) == "NOT_SUPPORTED"
        pynvml.nvmlDeviceSetEccMode(gpu(), 1)
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetEccMode(gpu()) == [1, 1]


def test_error_counts_can_be_cleared(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "ecc-corrected", "7")
    with nvml_open():
        pynvml.nvmlDeviceClearEccErrorCounts(gpu(), 0)
        assert [pynvml.nvmlDeviceGetTotalEccErrors(gpu(), 0, counter) for counter in (0, 1)] == [0, 7]


def test_compute_mode_and_persistence_are_lost_at_reboot(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb")
    with nvml_open():
        pynvml.nvmlDeviceSetComputeMode(gpu(), pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        pynvml.nvmlDeviceSetPersistenceMode(gpu(), 1)
        assert [pynvml.nvmlDeviceGetComputeMode(gpu()), pynvml.nvmlDeviceGetPersistenceMode(gpu())] == [3, 1]
        assert refusal(pynvml.nvmlDeviceSetComputeMode, gpu(), 1) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceSetComputeMode, gpu(), 4) == "INVALID_ARGUMENT"
    host.simctl("reboot")
    with nvml_open():
        assert [pynvml.nvmlDeviceGetComputeMode(gpu()), pynvml.nvmlDeviceGetPersistenceMode(gpu())] == [0, 0]


def test_partitioned_gpu_takes_neither_exclusive_mode_nor_accounting(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        pynvml.nvmlDeviceSetAccountingMode(gpu(), 1)
        assert pynvml.nvmlDeviceGetAccountingMode(gpu()) == 1
        handle = enable_mig()
        assert pynvml.nvmlDeviceGetAccountingMode(handle) == 0
        assert refusal(pynvml.nvmlDeviceSetAccountingMode, handle, 1) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceSetComputeMode, handle, 3) == "NOT_SUPPORTED"


def test_accounting_tells_what_a_process_used(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("hold", "--gpu", "0", "--pid", "31", "--memory", "2048")
    with nvml_open():
        pynvml.nvmlDeviceSetAccountingMode(gpu(), 1)
        assert pynvml.nvmlDeviceGetAccountingPids(gpu()) == [31]
        assert pynvml.nvmlDeviceGetAccountingStats(gpu(), 31).maxMemoryUsage == 2048 * 2**20
        assert refusal(pynvml.nvmlDeviceGetAccountingStats, gpu(), 32) == "NOT_FOUND"


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
        ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ],
)
def test_each_kind_of_process_is_in_its_own_list(fleet_host: Hosts, kind: str, function: str) -> None:
    host = fleet_host("l40s-48gb")
    for pid in (1, 2, 3):
        host.simctl("hold", "--gpu", "0", "--pid", str(pid), "--kind", kind)
    lists = ("Compute", "Graphics", "MPSCompute")
    with nvml_open():
        assert sorted(process.pid for process in getattr(pynvml, function)(gpu())) == [1, 2, 3]
        others = [name for name in lists if f"Get{name}Running" not in function]
        assert [getattr(pynvml, f"nvmlDeviceGet{name}RunningProcesses")(gpu()) for name in others] == [[], []]
        count = ctypes.c_uint(1)
        room = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
        raw = pynvml._nvmlGetFunctionPointer(f"{function}_v3")
        assert raw(gpu(), ctypes.byref(count), room) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert count.value == 3
        assert getattr(pynvml, function)(gpu())[0].gpuInstanceId == 0xFFFFFFFF  # on no slice


# ---- events ----

WAITER = """
import ctypes, pynvml
pynvml.nvmlInit()
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(1), pynvml.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
data = pynvml.nvmlEventSetWait_v2(events, 20000)
print(pynvml.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData, data.gpuInstanceId, flush=True)
"""


def test_xid_wakes_a_waiter_in_another_process(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb:2")
    with subprocess.Popen([sys.executable, "-c", WAITER], env=host.env, stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "ready\n"
        host.simctl("xid", "--gpu", "0", "--xid", "13")
        host.simctl("xid", "--gpu", "1", "--xid", "79")
        assert waiter.stdout.readline() == "1 8 79 4294967295\n"


def test_wait_for_an_event_ends_with_a_timeout_and_blocks_nobody(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        events = pynvml.nvmlEventSetCreate()
        assert pynvml.nvmlDeviceGetSupportedEventTypes(gpu()) & pynvml.nvmlEventTypeXidCriticalError
        pynvml.nvmlDeviceRegisterEvents(gpu(), pynvml.nvmlEventTypeXidCriticalError, events)
        started = time.monotonic()
        results: list[str | None] = []
        thread = threading.Thread(target=lambda: results.append(refusal(pynvml.nvmlEventSetWait_v2, events, 300)))
        thread.start()
        for _ignored in range(50):
            pynvml.nvmlDeviceGetName(gpu())
        assert time.monotonic() - started < 0.3
        thread.join()
        assert results == ["TIMEOUT"]
        assert 0.3 <= time.monotonic() - started < 5
        assert refusal(pynvml.nvmlDeviceRegisterEvents, gpu(), pynvml.nvmlEventTypeClock, events) == "NOT_SUPPORTED"
        pynvml.nvmlEventSetFree(events)
        assert refusal(pynvml.nvmlEventSetWait_v2, events, 1) == "INVALID_ARGUMENT"


def test_event_of_a_slice_names_its_instances(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        compute(create(enable_mig(), 19, 2, 1))
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(gpu(), pynvml.nvmlEventTypeXidCriticalError, events)
        host.simctl("xid", "--gpu", "0", "--xid", "43", "--gi", "9", "--ci", "0")
        data = pynvml.nvmlEventSetWait_v2(events, 1000)
        assert (data.eventData, data.gpuInstanceId, data.computeInstanceId) == (43, 9, 0)


# ---- vGPU ----


def names(types: list[int]) -> set[str]:
    return {str(pynvml.nvmlVgpuTypeGetName(number)).removeprefix("NVIDIA ") for number in types}


def test_host_without_vgpu_mode_has_no_vgpu_answers(fleet_host: Hosts) -> None:
    fleet_host("a100-80gb")
    with nvml_open():
        assert pynvml.nvmlDeviceGetVirtualizationMode(gpu()) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_NONE
        assert refusal(pynvml.nvmlDeviceGetHostVgpuMode, gpu()) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetSupportedVgpus, gpu()) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetVgpuHeterogeneousMode, gpu()) == "NOT_SUPPORTED"


def test_vgpu_types_carry_the_numbers_of_the_vendors_list(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb")
    host.simctl("set", "virtualization", "host-vgpu")
    with nvml_open():
        assert pynvml.nvmlDeviceGetHostVgpuMode(gpu()) == pynvml.NVML_HOST_VGPU_MODE_SRIOV
        types = {str(pynvml.nvmlVgpuTypeGetName(number)): number for number in pynvml.nvmlDeviceGetSupportedVgpus(gpu())}
        four = types["NVIDIA A100D-4C"]
        assert pynvml.nvmlVgpuTypeGetFramebufferSize(four) == 4 * 2**30
        assert pynvml.nvmlVgpuTypeGetMaxInstances(gpu(), four) == 20
        assert pynvml.nvmlVgpuTypeGetClass(four) == "Compute"
        assert pynvml.nvmlVgpuTypeGetGpuInstanceProfileId(four) == 0xFFFFFFFF
        assert pynvml.nvmlVgpuTypeGetGpuInstanceProfileId(types["NVIDIA A100D-1-10C"]) == 19
        assert refusal(pynvml.nvmlVgpuTypeGetName, 5) == "INVALID_ARGUMENT"


def test_mig_and_time_sliced_vgpus_exclude_each_other(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "virtualization", "host-vgpu")
    with nvml_open():
        assert "H100XM-80C" in names(pynvml.nvmlDeviceGetCreatableVgpus(gpu()))
        assert not {name for name in names(pynvml.nvmlDeviceGetCreatableVgpus(gpu())) if "-1-" in name}
        handle = enable_mig()
        assert pynvml.nvmlDeviceGetCreatableVgpus(handle) == []
        create(handle, 19)
        assert names(pynvml.nvmlDeviceGetCreatableVgpus(handle)) == {"H100XM-1-10C"}
        assert refusal(pynvml.nvmlDeviceGetVgpuHeterogeneousMode, handle) == "NOT_SUPPORTED"


def test_sizes_mix_only_in_heterogeneous_mode_which_wants_an_idle_gpu(fleet_host: Hosts) -> None:
    host = fleet_host("l40s-48gb")
    host.simctl("set", "virtualization", "host-vgpu")
    host.simctl("set", "vgpus", "L40S-8Q")
    with nvml_open():
        assert len(pynvml.nvmlDeviceGetActiveVgpus(gpu())) == 1
        assert {name.rstrip("QC") for name in names(pynvml.nvmlDeviceGetCreatableVgpus(gpu()))} == {"L40S-8"}
        assert refusal(pynvml.nvmlDeviceSetVgpuHeterogeneousMode, gpu(), 1) == "IN_USE"
    host.simctl("set", "vgpus", "")
    with nvml_open():
        pynvml.nvmlDeviceSetVgpuHeterogeneousMode(gpu(), 1)
        assert pynvml.nvmlDeviceGetVgpuHeterogeneousMode(gpu()) == 1
    host.simctl("set", "vgpus", "L40S-8Q")
    with nvml_open():
        assert "L40S-4Q" in names(pynvml.nvmlDeviceGetCreatableVgpus(gpu()))
    host.simctl("set", "vgpus", "")
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetVgpuHeterogeneousMode(gpu()) == 0


def test_scheduler_is_set_while_no_vgpu_exists_and_forgotten_at_reboot(fleet_host: Hosts) -> None:
    host = fleet_host("l40s-48gb")
    host.simctl("set", "virtualization", "host-vgpu")
    state = pynvml.c_nvmlVgpuSchedulerSetState_t()
    state.schedulerPolicy = pynvml.NVML_VGPU_SCHEDULER_POLICY_FIXED_SHARE
    state.schedulerParams.vgpuSchedData.timeslice = 2000000
    with nvml_open():
        assert pynvml.nvmlDeviceGetVgpuSchedulerState(gpu()).schedulerPolicy == pynvml.NVML_VGPU_SCHEDULER_POLICY_BEST_EFFORT
        pynvml.nvmlDeviceSetVgpuSchedulerState(gpu(), state)
        seen = pynvml.nvmlDeviceGetVgpuSchedulerState(gpu())
        assert (seen.schedulerPolicy, seen.schedulerParams.vgpuSchedData.timeslice) == (3, 2000000)
        second = pynvml.nvmlDeviceGetVgpuSchedulerState_v2(gpu(), pynvml.c_nvmlVgpuSchedulerStateInfo_v2_t())
        assert (second.schedulerPolicy, second.timeslice) == (3, 2000000)
        state.schedulerPolicy = 4
        assert refusal(pynvml.nvmlDeviceSetVgpuSchedulerState, gpu(), state) == "INVALID_ARGUMENT"
    host.simctl("set", "vgpus", "L40S-8Q,L40S-8Q")
    state.schedulerPolicy = 2
    with nvml_open():
        assert refusal(pynvml.nvmlDeviceSetVgpuSchedulerState, gpu(), state) == "IN_USE"
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetVgpuSchedulerState(gpu()).schedulerPolicy == 1


def test_scheduler_of_a_gpu_instance_is_its_own(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "virtualization", "host-vgpu")
    with nvml_open():
        handle = enable_mig()
        first, second = create(handle, 9), create(handle, 9)
        state = pynvml.c_nvmlVgpuSchedulerState_v1_t()
        state.version = pynvml.nvmlVgpuSchedulerState_v1
        state.schedulerPolicy = 2
        pynvml.nvmlGpuInstanceSetVgpuSchedulerState(first, state)
        seen = []
        for one in (first, second):
            info = pynvml.c_nvmlVgpuSchedulerStateInfo_v1_t()
            info.version = pynvml.nvmlVgpuSchedulerState_v1
            seen.append(pynvml.nvmlGpuInstanceGetVgpuSchedulerState(one, info).schedulerPolicy)
        assert seen == [2, 1]
        assert refusal(pynvml.nvmlDeviceGetVgpuSchedulerState, handle) == "NOT_SUPPORTED"
