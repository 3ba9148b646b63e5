# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of MIG on the simulator: mode, GPU instances, compute instances, MIG devices, UUIDs, refusals."""

from __future__ import annotations

import ctypes
import typing as t

import pynvml
import pytest
from simulator_world import (
    compute,
    compute_instances,
    compute_placements,
    create,
    enable_mig,
    gpu,
    instances,
    nvml_open,
    placements,
    profiles,
    refusal,
    slice_of,
    uuid_of,
    where,
)

Hosts = t.Callable[..., t.Any]


# ---- mode ----


def test_ampere_notes_a_new_mode_and_waits_for_a_reset(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb")
    with nvml_open():
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_RESET_REQUIRED
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
        assert refusal(create, gpu(), 19) == "NOT_SUPPORTED"
    host.simctl("reset", "--gpu", "0")
    with nvml_open():
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
        compute(create(gpu(), 19))


def test_ampere_takes_a_pending_mode_back_without_a_reset(fleet_host: Hosts) -> None:
    fleet_host("a100-80gb")
    with nvml_open():
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]


def test_hopper_changes_mode_at_once(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]


@pytest.mark.parametrize("board", ["a100-80gb", "h100-80gb"])
def test_mode_change_with_a_client_succeeds_but_says_in_use(fleet_host: Hosts, board: str) -> None:
    host = fleet_host(board)
    host.simctl("hold", "--gpu", "0", "--pid", "77")
    with nvml_open():
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]


def test_mode_is_not_switched_off_under_instances(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 19)
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_ERROR_IN_USE
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 0]
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_SUCCESS
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]


def test_mode_other_than_off_and_on_is_an_invalid_argument(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        assert refusal(pynvml.nvmlDeviceSetMigMode, gpu(), 2) == "INVALID_ARGUMENT"


def test_reboot_keeps_the_mode_on_ampere_only_and_instances_nowhere(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb", "h100-80gb")
    host.simctl("set", "mig", "on")
    with nvml_open():
        for index in (0, 1):
            compute(create(gpu(index), 19))
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetMigMode(gpu(0)) == [1, 1]
        assert pynvml.nvmlDeviceGetMigMode(gpu(1)) == [0, 0]
        assert instances(gpu(0), 19) == []


def test_reboot_brings_a_pending_mode_into_effect_on_ampere(fleet_host: Hosts) -> None:
    host = fleet_host("a30-24gb")
    with nvml_open():
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    host.simctl("reboot")
    with nvml_open():
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


# ---- profiles ----


def test_profile_info_comes_in_three_versions(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        first = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0, version=1)
        second = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, 0)
        assert (first.id, first.memorySizeMB, first.copyEngineCount, first.jpegCount) == (19, 9984, 1, 1)
        assert (second.id, second.memorySizeMB, second.name) == (19, 9984, "MIG 1g.10gb")
        by_id = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        by_id.version = pynvml.nvmlGpuInstanceProfileInfo_v2
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoByIdV")
        assert function(handle, 9, ctypes.byref(by_id)) == pynvml.NVML_SUCCESS
        assert by_id.name == "MIG 3g.40gb"

        class Third(ctypes.Structure):
            _fields_: t.ClassVar = [
                ("version", ctypes.c_uint),
                ("numbers", ctypes.c_uint * 9),
                ("memory", ctypes.c_ulonglong),
                ("name", ctypes.c_char * 96),
                ("capabilities", ctypes.c_uint),
            ]

        third = Third(ctypes.sizeof(Third) | 3 << 24)
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetGpuInstanceProfileInfoV")
        assert function(handle, 9, ctypes.byref(third)) == pynvml.NVML_SUCCESS
        assert (third.numbers[0], third.numbers[1], third.memory, third.name) == (15, 1, 20096, b"MIG 1g.20gb")
        third.version = 4 << 24 | ctypes.sizeof(Third)
        assert function(handle, 9, ctypes.byref(third)) == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_enum_that_a_board_lacks_is_not_supported_and_one_that_nvml_lacks_is_invalid(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        assert refusal(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, 10) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, 18) == "INVALID_ARGUMENT"
        assert refusal(create, handle, 47) == "INVALID_ARGUMENT"
        assert refusal(placements, handle, 47) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(("driver", "answers"), [("535.261.03", False), ("550.163.01", True)])
def test_old_drivers_tell_profiles_only_while_mig_is_on(fleet_host: Hosts, driver: str, answers: bool) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "driver-version", driver)
    with nvml_open():
        assert bool(profiles(gpu())) == answers
        assert refusal(placements, gpu(), 19) == (None if answers else "NOT_SUPPORTED")
        assert len(profiles(enable_mig())) == 7


# ---- GPU instances ----


def test_place_that_is_taken_and_a_count_that_is_exhausted_are_insufficient_resources(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        create(handle, 20, 1, 1)
        assert refusal(create, handle, 20) == "INSUFFICIENT_RESOURCES"  # one media slice a board
        assert refusal(create, handle, 19, 1, 1) == "INSUFFICIENT_RESOURCES"  # the place is taken, by another profile
        assert refusal(create, handle, 9, 0, 4) == "INSUFFICIENT_RESOURCES"
        assert refusal(create, handle, 0) == "INSUFFICIENT_RESOURCES"
        assert refusal(create, handle, 19, 7, 1) == "INVALID_ARGUMENT"  # no placement of this profile
        assert refusal(create, handle, 9, 4, 3) == "INVALID_ARGUMENT"  # a wrong size
        assert where(create(handle, 9)) == (2, 4, 4)


def test_compute_slices_run_out_beside_free_memory(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        create(handle, 5, 0, 4)
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 19) == 3
        for start in (4, 5, 6):
            create(handle, 19, start, 1)
        assert refusal(create, handle, 19) == "INSUFFICIENT_RESOURCES"


def test_two_three_slice_instances_leave_a_compute_slice_but_no_memory(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        create(handle, 9)
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 9) == 1
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 14) == 1
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, 15) == 2
        create(handle, 9)
        assert [pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id) for info in profiles(handle).values()] == [0] * 7


def test_instances_are_found_by_profile_and_by_id(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        create(handle, 19, 2, 1)
        create(handle, 9, 4, 4)
        assert [where(one) for one in instances(handle, 19)] == [(9, 2, 1)]
        assert where(pynvml.nvmlDeviceGetGpuInstanceById(handle, 2)) == (2, 4, 4)
        assert refusal(pynvml.nvmlDeviceGetGpuInstanceById, handle, 7) == "NOT_FOUND"
        info = pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(handle, 2))
        assert info.profileId == 9
        assert pynvml.nvmlDeviceGetUUID(info.device) == pynvml.nvmlDeviceGetUUID(handle)


def test_handle_to_a_destroyed_instance_does_not_reach_its_successor(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        old = create(handle, 19, 3, 1)
        part = compute(old)
        device = slice_of(part)
        pynvml.nvmlComputeInstanceDestroy(part)
        pynvml.nvmlGpuInstanceDestroy(old)
        compute(create(handle, 19, 3, 1))
        assert refusal(pynvml.nvmlGpuInstanceDestroy, old) == "INVALID_ARGUMENT"
        assert refusal(pynvml.nvmlComputeInstanceDestroy, part) == "INVALID_ARGUMENT"
        assert refusal(pynvml.nvmlDeviceGetUUID, device) == "INVALID_ARGUMENT"
        assert refusal(pynvml.nvmlDeviceGetUUID, pynvml.c_nvmlDevice_t()) == "INVALID_ARGUMENT"


def test_instance_with_a_compute_instance_is_in_use(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 19)
        part = compute(instance)
        assert refusal(pynvml.nvmlGpuInstanceDestroy, instance) == "IN_USE"
        pynvml.nvmlComputeInstanceDestroy(part)
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert instances(gpu(), 19) == []


# ---- who holds what ----


def test_client_on_the_gpu_blocks_create_and_destroy_but_a_sibling_does_not(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        first = create(enable_mig(), 19, 0, 1)
        compute(first)
        spare = create(gpu(), 19, 1, 1)
    host.simctl("hold", "--gpu", "0", "--gi", "7", "--ci", "0", "--pid", "10")
    with nvml_open():
        compute(create(gpu(), 9, 4, 4), 2)
        pynvml.nvmlGpuInstanceDestroy(spare)
    host.simctl("hold", "--gpu", "0", "--pid", "11")
    with nvml_open():
        assert refusal(create, gpu(), 19) == "IN_USE"
        empty = pynvml.nvmlDeviceGetGpuInstanceById(gpu(), 2)
        pynvml.nvmlComputeInstanceDestroy(compute_instances(empty, 2)[0])
        assert refusal(pynvml.nvmlGpuInstanceDestroy, empty) == "IN_USE"
    host.simctl("release", "--pid", "11")
    with nvml_open():
        pynvml.nvmlGpuInstanceDestroy(empty)


@pytest.mark.parametrize("how", [["--pid", "10"], ["--leak"]])
def test_compute_instance_with_a_process_or_a_leaked_handle_is_in_use(fleet_host: Hosts, how: list[str]) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        part = compute(create(enable_mig(), 19, 0, 1))
    host.simctl("hold", "--gpu", "0", "--gi", "7", "--ci", "0", *how)
    with nvml_open():
        assert refusal(pynvml.nvmlComputeInstanceDestroy, part) == "IN_USE"
        seen = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())
        assert len(seen) == (0 if how == ["--leak"] else 1)
    host.simctl("release", "--gpu", "0", "--gi", "7")
    with nvml_open():
        pynvml.nvmlComputeInstanceDestroy(part)


def test_processes_are_seen_on_the_parent_with_their_slice_and_on_the_slice_itself(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        device = slice_of(compute(create(handle, 19, 2, 1)))
        other = slice_of(compute(create(handle, 19, 3, 1)))
    host.simctl("hold", "--gpu", "0", "--gi", "9", "--ci", "0", "--pid", "10", "--memory", "1500", "--name", "vllm")
    with nvml_open():
        for where_from in (handle, device):
            (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(where_from)
            assert (process.pid, process.usedGpuMemory) == (10, 1500 * 2**20)
            assert (process.gpuInstanceId, process.computeInstanceId) == (9, 0)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(other) == []
        assert pynvml.nvmlSystemGetProcessName(10) == "vllm"
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        assert (memory.total, memory.used) == (9984 * 2**20, 1500 * 2**20)
        whole = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert (whole.total, whole.reserved, whole.used) == (81559 * 2**20, 480 * 2**20, 1500 * 2**20)


# ---- compute instances ----


def test_compute_instances_fill_their_gpu_instance_by_slices(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 9, 0, 4)
        assert compute_placements(instance, 0) == [(0, 1), (1, 1), (2, 1)]
        one = pynvml.nvmlComputeInstanceGetInfo_v2(compute(instance, 1))
        assert (one.id, one.profileId, one.placement.start, one.placement.size) == (0, 1, 0, 2)
        assert pynvml.nvmlDeviceGetName(one.device) == "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb"
        assert refusal(compute, instance, 2) == "INSUFFICIENT_RESOURCES"
        assert refusal(compute, instance, 4) == "INVALID_ARGUMENT"
        two = pynvml.nvmlComputeInstanceGetInfo_v2(compute(instance, 0))
        assert (two.id, two.placement.start) == (1, 2)
        assert refusal(compute, instance, 0) == "INSUFFICIENT_RESOURCES"
        assert len(compute_instances(instance, 0)) == 1


def test_compute_instance_goes_where_it_is_asked_to(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 9, 0, 4)

        def at(start: int, size: int) -> t.Any:
            place = pynvml.c_nvmlComputeInstancePlacement_t(start, size)
            return pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, ctypes.byref(place))

        assert pynvml.nvmlComputeInstanceGetInfo_v2(at(2, 1)).placement.start == 2
        assert refusal(at, 2, 1) == "INSUFFICIENT_RESOURCES"
        assert refusal(at, 3, 1) == "INVALID_ARGUMENT"
        assert refusal(at, 1, 2) == "INVALID_ARGUMENT"
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 2


def test_wide_single_slice_shares_no_sm_with_another(fleet_host: Hosts) -> None:
    """The REV1 profile of a 2g instance has 26 of its 32 SMs: a second one-slice instance finds too few."""
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 14)
        compute(instance, 7)
        assert refusal(compute, instance, 0) == "INSUFFICIENT_RESOURCES"
        assert pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0) == 0


def test_double_memory_instance_takes_only_the_rev1_compute_profile(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 15)
        assert refusal(compute, instance, 0) == "INVALID_ARGUMENT"
        device = slice_of(compute(instance, 7))
        assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 1g.20gb"
        attributes = pynvml.nvmlDeviceGetAttributes_v2(device)
        assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (26, 20096)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (1, 1)


def test_compute_profile_queries_refuse_what_nvml_refuses(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 9)
        ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        assert refusal(ask, instance, 4, 0) == "NOT_SUPPORTED"
        assert refusal(ask, instance, 9, 0) == "INVALID_ARGUMENT"
        assert refusal(ask, instance, 0, 1) == "INVALID_ARGUMENT"
        assert ask(instance, 0, 0).name == "MIG 1c.3g.40gb"
        assert ask(instance, 2, 0, version=1).multiprocessorCount == 60
        assert refusal(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, 0) == "NOT_FOUND"


# ---- MIG devices ----


def test_instance_without_a_compute_instance_is_no_mig_device(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        create(handle, 19)
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
        assert refusal(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == "NOT_FOUND"


def test_destroyed_mig_device_leaves_a_gap_that_the_next_one_fills(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        parts = [compute(create(handle, 19, start, 1)) for start in (0, 1, 2)]
        pynvml.nvmlComputeInstanceDestroy(parts[1])
        by_index = [refusal(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(8)]
        assert by_index == [None, "NOT_FOUND", None, *["NOT_FOUND"] * 4, "INVALID_ARGUMENT"]
        new = compute(create(handle, 19, 5, 1))
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)) == uuid_of(new)


def test_mig_device_is_found_by_both_forms_of_its_uuid(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        uuid = uuid_of(compute(create(handle, 19, 2, 1)))
        old_form = f"MIG-{pynvml.nvmlDeviceGetUUID(handle)}/9/0"
        for text in (uuid, old_form):
            device = pynvml.nvmlDeviceGetHandleByUUID(text)
            assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
            assert pynvml.nvmlDeviceGetGpuInstanceId(device) == 9
            assert pynvml.nvmlDeviceGetComputeInstanceId(device) == 0
            parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
            assert pynvml.nvmlDeviceGetUUID(parent) == pynvml.nvmlDeviceGetUUID(handle)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(handle).value == 0
        assert refusal(pynvml.nvmlDeviceGetGpuInstanceId, handle) == "INVALID_ARGUMENT"
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, old_form.replace("/9/", "/8/")) == "NOT_FOUND"


def test_mig_device_refuses_what_only_the_gpu_has(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb")
    with nvml_open():
        device = slice_of(compute(create(enable_mig(), 19)))
        assert refusal(pynvml.nvmlDeviceGetPowerUsage, device) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceSetMigMode, device, 0) == "INVALID_ARGUMENT"
        assert refusal(create, device, 19) == "INVALID_ARGUMENT"


# ---- UUIDs of slices that are made again ----


def remake(starts: list[int]) -> dict[int, str]:
    handle = gpu()
    for instance in instances(handle, 19):
        for part in compute_instances(instance, 0):
            pynvml.nvmlComputeInstanceDestroy(part)
        pynvml.nvmlGpuInstanceDestroy(instance)
    return {start: uuid_of(compute(create(handle, 19, start, 1))) for start in starts}


def test_uuid_of_a_remade_slice_is_the_same_new_or_a_neighbours_as_a_test_wants(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        enable_mig()
        first = remake([0, 1, 2])
        assert len(set(first.values())) == 3
        assert remake([2, 0, 1]) == first
    host.simctl("set", "mig-uuid", "new")
    with nvml_open():
        second = remake([0, 1, 2])
        assert not set(second.values()) & set(first.values())
    host.simctl("set", "mig-uuid", "swap")
    with nvml_open():
        third = remake([0, 1, 2])
        assert all(third[start] != second[start] for start in (0, 1, 2))
        known = set(first.values()) | set(second.values())
        assert set(third.values()) <= known
        assert len(set(third.values())) == 3
    host.simctl("set", "mig-uuid", "same")
    with nvml_open():
        assert len(set(remake([0, 1, 2]).values())) == 3


def test_swap_exchanges_the_uuids_of_two_slices(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "mig-uuid", "swap")
    with nvml_open():
        enable_mig()
        first = remake([0, 1])
        assert remake([0, 1]) == {0: first[1], 1: first[0]}


@pytest.mark.parametrize("starts", [[0, 1], [0, 1, 2], [2, 0, 1], [2, 1, 0]])
def test_swap_never_gives_a_slice_what_it_just_bore_whatever_was_there_before(fleet_host: Hosts, starts: list[int]) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        enable_mig()
        for _ignored in range(3):
            last = remake(starts)
        host.simctl("set", "mig-uuid", "swap")
        for _ignored in range(3):
            now = remake(starts)
            assert set(now.values()) == set(last.values())
            assert all(now[start] != last[start] for start in starts)
            last = now


def test_placement_order_can_be_chosen(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "mig", "on")
    for order, starts in (("ascending", [0, 1, 2]), ("descending", [6, 5, 4])):
        host.simctl("set", "placement-order", order)
        with nvml_open():
            made = [create(gpu(), 19) for _ignored in range(3)]
            assert [where(one)[1] for one in made] == starts
            for one in made:
                pynvml.nvmlGpuInstanceDestroy(one)


# ---- permission, loss ----


def test_nobody_writes_without_permission_and_everybody_reads(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        instance = create(enable_mig(), 19)
        part = compute(instance)
    host.simctl("set", "permission", "denied")
    with nvml_open():
        assert refusal(pynvml.nvmlDeviceSetMigMode, gpu(), 0) == "NO_PERMISSION"
        assert refusal(create, gpu(), 19) == "NO_PERMISSION"
        assert refusal(compute, instance) == "NO_PERMISSION"
        assert refusal(pynvml.nvmlComputeInstanceDestroy, part) == "NO_PERMISSION"
        assert refusal(pynvml.nvmlGpuInstanceDestroy, instance) == "NO_PERMISSION"
        assert refusal(pynvml.nvmlDeviceSetPersistenceMode, gpu(), 1) == "NO_PERMISSION"
        assert where(instance) == (13, 6, 1)


def test_lost_gpu_answers_so_to_the_question_for_its_handle_and_to_old_handles(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb:2")
    with nvml_open():
        handle = enable_mig()
        uuid, bus = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetPciInfo(handle).busId
        instance = create(handle, 19)
        slice_uuid = uuid_of(compute(instance))
    host.simctl("lose", "--gpu", "0")
    with nvml_open():
        assert pynvml.nvmlDeviceGetCount() == 2
        assert refusal(gpu, 0) == "GPU_IS_LOST"
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, uuid) == "GPU_IS_LOST"
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, slice_uuid) == "GPU_IS_LOST"
        assert refusal(pynvml.nvmlDeviceGetHandleByPciBusId, bus) == "GPU_IS_LOST"
        assert refusal(pynvml.nvmlDeviceGetName, handle) == "GPU_IS_LOST"
        assert refusal(pynvml.nvmlGpuInstanceGetInfo, instance) == "GPU_IS_LOST"
        assert pynvml.nvmlDeviceGetName(gpu(1)) == "NVIDIA H100 80GB HBM3"
    host.simctl("lose", "--gpu", uuid, "--recover")
    with nvml_open():
        assert pynvml.nvmlDeviceGetUUID(gpu(0)) == uuid
