# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The boards that come with the simulator answer with the numbers of the sources (geometry tables, captures)."""

from __future__ import annotations

import typing as t

import pynvml
import pytest
from simulator_world import compute, create, enable_mig, gpu, instances, nvml_open, placements, profiles, refusal, where

Hosts = t.Callable[..., t.Any]

SEVEN = {
    "1g": (19, 1, 7, [0, 1, 2, 3, 4, 5, 6], 1),
    "1g+me": (20, 1, 1, [0, 1, 2, 3, 4, 5, 6], 1),
    "1g*": (15, 1, 4, [0, 2, 4, 6], 2),
    "2g": (14, 2, 3, [0, 2, 4], 2),
    "3g": (9, 3, 2, [0, 4], 4),
    "4g": (5, 4, 1, [0], 4),
    "7g": (0, 7, 1, [0], 8),
}


def seven(names: list[str], sms: list[int], mibs: list[int]) -> dict[str, tuple[int, int, int, list[int], int, int, int]]:
    return {name: (*SEVEN[kind], sm, mib) for kind, name, sm, mib in zip(SEVEN, names, sms, mibs, strict=True)}


# name: (profile id, compute slices, maximum, starts, memory slices, SMs, MiB)
GEOMETRY = {
    "a30-24gb": {
        "1g.6gb": (14, 1, 4, [0, 1, 2, 3], 1, 14, 5952),
        "1g.6gb+me": (21, 1, 1, [0, 1, 2, 3], 1, 14, 5952),
        "2g.12gb": (5, 2, 2, [0, 2], 2, 28, 11968),
        "2g.12gb+me": (6, 2, 1, [0, 2], 2, 28, 11968),
        "4g.24gb": (0, 4, 1, [0], 4, 56, 24000),
    },
    "a100-40gb": seven(
        ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"],
        [14, 14, 14, 28, 42, 56, 98],
        [4864, 4864, 9856, 9856, 19968, 19968, 40192],
    ),
    "a100-80gb": seven(
        ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
        [14, 14, 14, 28, 42, 56, 98],
        [9856, 9856, 19968, 19968, 40192, 40192, 80384],
    ),
    "h100-80gb": seven(
        ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"],
        [16, 16, 26, 32, 60, 64, 132],
        [9984, 9984, 20096, 20096, 40448, 40448, 81152],
    ),
    "h100-94gb": seven(
        ["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"],
        [16, 16, 26, 32, 60, 64, 132],
        [11008, 11008, 22144, 22144, 47488, 47488, 95360],
    ),
    "h200-141gb": seven(
        ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
        [16, 16, 26, 32, 60, 64, 132],
        [16384, 16384, 33024, 33024, 71168, 71168, 143360],
    ),
    "b200-180gb": seven(
        ["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"],
        [18, 18, 30, 36, 63, 84, 148],  # the last three are estimates
        [22528, 22528, 45312, 45312, 89728, 89728, 179584],
    ),
    "rtx-pro-6000-96gb": {
        "1g.24gb": (14, 1, 4, [0, 3, 6, 9], 3, 46, 24192),
        "1g.24gb+me": (21, 1, 1, [0, 3, 6, 9], 3, 46, 24192),
        "1g.24gb+gfx": (47, 1, 4, [0, 3, 6, 9], 3, 46, 24192),
        "1g.24gb+me.all": (65, 1, 1, [0, 3, 6, 9], 3, 46, 24192),
        "1g.24gb-me": (67, 1, 4, [0, 3, 6, 9], 3, 46, 24192),
        "2g.48gb": (5, 2, 2, [0, 6], 6, 94, 48512),
        "2g.48gb+gfx": (35, 2, 2, [0, 6], 6, 94, 48512),
        "2g.48gb+me.all": (64, 2, 1, [0, 6], 6, 94, 48512),
        "2g.48gb-me": (66, 2, 2, [0, 6], 6, 94, 48512),
        "4g.96gb": (0, 4, 1, [0], 12, 188, 97280),
        "4g.96gb+gfx": (32, 4, 1, [0], 12, 188, 97280),
    },
}


@pytest.mark.parametrize("board", GEOMETRY)
def test_board_offers_the_profiles_and_placements_of_the_geometry_tables(fleet_host: Hosts, board: str) -> None:
    fleet_host(board)
    with nvml_open():
        handle = gpu()
        seen = {
            name: (
                info.id,
                info.sliceCount,
                info.instanceCount,
                [start for start, _size in placements(handle, info.id)],
                placements(handle, info.id)[0][1],
                info.multiprocessorCount,
                info.memorySizeMB,
            )
            for name, info in profiles(handle).items()
        }
    assert seen == GEOMETRY[board]


# NVML name, MiB, device id, resetless, (minimum, maximum, default) W, architecture, compute capability
IDENTITY = {
    "a30-24gb": ("NVIDIA A30", 24576, 0x20B710DE, 0, (100, 165), 7, (8, 0)),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 40960, 0x20B010DE, 0, (100, 400), 7, (8, 0)),
    "a100-80gb": ("NVIDIA A100-SXM4-80GB", 81920, 0x20B210DE, 0, (100, 400), 7, (8, 0)),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", 81559, 0x233010DE, 1, (200, 700), 9, (9, 0)),
    "h100-94gb": ("NVIDIA H100 NVL", 95830, 0x232110DE, 1, (200, 400), 9, (9, 0)),
    "h200-141gb": ("NVIDIA H200", 143771, 0x233510DE, 1, (200, 700), 9, (9, 0)),
    "b200-180gb": ("NVIDIA B200", 183359, 0x290110DE, 1, (200, 1000), 10, (10, 0)),
    "rtx-pro-6000-96gb": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 0x2BB510DE, 1, (300, 600), 10, (12, 0)),
    "l40s-48gb": ("NVIDIA L40S", 46068, 0x26B910DE, None, (100, 350), 8, (8, 9)),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 32768, 0x1DB510DE, None, (150, 300), 5, (7, 0)),
    "t4-16gb": ("Tesla T4", 15360, 0x1EB810DE, None, (60, 70), 6, (7, 5)),
}


@pytest.mark.parametrize("board", IDENTITY)
def test_board_says_who_it_is_as_in_the_captures(fleet_host: Hosts, board: str) -> None:
    name, mib, device_id, resetless, watts, architecture, capability = IDENTITY[board]
    fleet_host(board)
    with nvml_open():
        handle = gpu()
        assert pynvml.nvmlDeviceGetName(handle) == name
        assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == mib * 2**20
        assert pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId == device_id
        assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [watts[0] * 1000, watts[1] * 1000]
        assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) == watts[1] * 1000
        assert pynvml.nvmlDeviceGetArchitecture(handle) == architecture
        assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == capability
        field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED])[0]
        assert (field.nvmlReturn, field.value.uiVal) == (pynvml.NVML_SUCCESS, resetless or 0)
        assert refusal(pynvml.nvmlDeviceGetMigMode, handle) == ("NOT_SUPPORTED" if resetless is None else None)


@pytest.mark.parametrize("board", ["l40s-48gb", "v100-32gb", "t4-16gb"])
def test_board_without_mig_refuses_every_mig_question(fleet_host: Hosts, board: str) -> None:
    fleet_host(board)
    with nvml_open():
        handle = gpu()
        assert profiles(handle) == {}
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
        assert refusal(pynvml.nvmlDeviceSetMigMode, handle, 1) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceCreateGpuInstance, handle, 19) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, 0) == "NOT_SUPPORTED"


def fill(board_profile: int, index: int = 0) -> list[tuple[int, int]]:
    handle = enable_mig(index)
    count = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, board_profile)
    return [where(create(handle, board_profile))[:2] for _ignored in range(count)]


@pytest.mark.parametrize(
    ("board", "profile", "starts"),
    [
        ("h100-80gb", 19, [6, 4, 5, 0, 1, 2, 3]),
        ("rtx-pro-6000-96gb", 14, [0, 3, 6, 9]),
    ],
)
def test_create_without_placement_follows_the_default_order_seen_on_the_board(
    fleet_host: Hosts, board: str, profile: int, starts: list[int]
) -> None:
    fleet_host(board)
    with nvml_open():
        assert [start for _number, start in fill(profile)] == starts


def test_a100_and_a30_follow_their_own_default_order(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb", "a30-24gb")
    host.simctl("set", "mig", "on")
    with nvml_open():
        assert [start for _number, start in fill(19)][:4] == [2, 0, 1, 4]
        assert [start for _number, start in fill(14, 1)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("board", "ids"),
    [
        ("h100-80gb", {0: {0: 0}, 9: {0: 1, 4: 2}, 5: {0: 1}, 14: {0: 3, 2: 4, 4: 5}, 15: {6: 6}, 19: {0: 7, 6: 13}}),
        ("rtx-pro-6000-96gb", {0: {0: 0}, 5: {0: 1, 6: 2}, 14: {0: 3, 3: 4, 6: 5, 9: 6}}),
        ("a30-24gb", {0: {0: 0}, 5: {0: 1, 2: 2}, 14: {0: 3, 1: 4, 2: 5, 3: 6}}),
    ],
)
def test_instance_ids_follow_the_placement_like_a_binary_tree(fleet_host: Hosts, board: str, ids: dict[int, dict[int, int]]) -> None:
    host = fleet_host(board)
    host.simctl("set", "mig", "on")
    with nvml_open():
        for profile, starts in ids.items():
            size = placements(gpu(), profile)[0][1]
            for start, number in starts.items():
                instance = create(gpu(), profile, start, size)
                assert where(instance) == (number, start, size)
                pynvml.nvmlGpuInstanceDestroy(instance)


def compute_table(instance: t.Any) -> dict[int, tuple[int, int, int]]:
    table = {}
    for query in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        if refusal(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, query, 0) is None:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, query, 0)
            table[query] = (info.sliceCount, info.instanceCount, info.multiprocessorCount)
    return table


@pytest.mark.parametrize(
    ("board", "profile", "table"),
    [
        ("a100-40gb", 0, {0: (1, 7, 14), 1: (2, 3, 28), 2: (3, 2, 42), 3: (4, 1, 56), 4: (7, 1, 98)}),
        ("a100-40gb", 5, {0: (1, 4, 14), 1: (2, 2, 28), 3: (4, 1, 56)}),
        ("a100-80gb", 9, {0: (1, 3, 14), 1: (2, 1, 28), 2: (3, 1, 42)}),
        ("a30-24gb", 5, {0: (1, 2, 14), 1: (2, 1, 28)}),
        ("h100-80gb", 14, {0: (1, 2, 16), 7: (1, 1, 26), 1: (2, 1, 32)}),
        ("h100-80gb", 15, {7: (1, 1, 26)}),
    ],
)
def test_compute_instance_profiles_are_those_of_the_tables(
    fleet_host: Hosts, board: str, profile: int, table: dict[int, tuple[int, int, int]]
) -> None:
    host = fleet_host(board)
    host.simctl("set", "mig", "on")
    with nvml_open():
        assert compute_table(create(gpu(), profile)) == table


def test_seven_small_slices_leave_memory_that_only_a_double_memory_slice_reaches(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb")
    host.simctl("set", "mig", "on")
    with nvml_open():
        handle = gpu()
        for start in range(6):
            create(handle, 19, start, 1)
        last = create(handle, 19, 6, 1)
        left = [pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id) for info in profiles(handle).values()]
        assert left == [0] * 7
        pynvml.nvmlGpuInstanceDestroy(last)
        compute(create(handle, 15, 6, 2), 7)
        assert len(instances(handle, 19)) == 6


def test_files_say_how_each_behaviour_is_known_and_what_was_estimated(fleet_host: Hosts) -> None:
    boards = fleet_host("b200-180gb", "h100-80gb").simctl("show", "--json")["boards"]
    assert boards["h100-80gb"]["evidence"]["default_order"]["how"] == "hardware"
    assert boards["b200-180gb"]["evidence"]["placements"]["how"] == "assumed"
    estimated = " ".join(boards["b200-180gb"]["estimated"])
    assert "3g.90gb.memory_mib = 89728" in estimated
    assert "7g.180gb.sm = 148" in estimated
    assert not [item for item in boards["h100-80gb"]["estimated"] if item.startswith(("1g", "2g", "3g", "4g", "7g"))]
