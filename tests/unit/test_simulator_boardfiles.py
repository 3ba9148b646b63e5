# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Boards that nobody has seen: given only as a file, they work; a bad file gets one clear line."""

from __future__ import annotations

import pathlib
import subprocess
import typing as t

import pynvml
import pytest
from simulator_world import compute, compute_placements, create, enable_mig, gpu, nvml_open, placements, profiles, refusal, slice_of, where

Hosts = t.Callable[..., t.Any]

INVENTED = """\
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
    - {name: 1g.24gb, size: 2, max: 4, starts: [1, 4, 6, 8], order: [6]}
    - {name: 2g.36gb, size: 3, max: 2, starts: [0, 7]}
    - {name: 2g.36gb+me, size: 3, max: 1, starts: [0, 7], sm: 40, memory_mib: 36000, id: 777}
    - {name: 5g.120gb, size: 10, max: 1}
"""


@pytest.fixture
def board_file(tmp_path: pathlib.Path) -> t.Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "zephyr.yml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_invented_geometry_works_from_its_file_alone(fleet_host: Hosts, board_file: t.Callable[[str], str]) -> None:
    fleet_host(f"{board_file(INVENTED)}:2")
    with nvml_open():
        handle = enable_mig(1)
        assert pynvml.nvmlDeviceGetName(handle) == "ACME Zephyr 120GB"
        seen = profiles(handle)
        assert {name: (info.sliceCount, info.instanceCount) for name, info in seen.items()} == {
            "1g.12gb": (1, 5),
            "1g.24gb": (1, 4),
            "2g.36gb": (2, 2),
            "2g.36gb+me": (2, 1),
            "5g.120gb": (5, 1),
        }
        assert (seen["2g.36gb+me"].id, seen["2g.36gb+me"].multiprocessorCount, seen["2g.36gb+me"].memorySizeMB) == (777, 40, 36000)
        assert seen["5g.120gb"].multiprocessorCount == 105
        assert len({info.id for info in seen.values()}) == 5
        assert placements(handle, seen["1g.24gb"].id) == [(1, 2), (4, 2), (6, 2), (8, 2)]
        assert placements(handle, seen["1g.12gb"].id) == [(start, 1) for start in range(5)]
        assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 5


def test_invented_board_places_counts_and_numbers_its_instances(fleet_host: Hosts, board_file: t.Callable[[str], str]) -> None:
    fleet_host(board_file(INVENTED))
    with nvml_open():
        handle = enable_mig()
        seen = profiles(handle)
        two = create(handle, seen["2g.36gb"].id)
        double = create(handle, seen["1g.24gb"].id)
        assert (where(two)[1:], where(double)[1:]) == ((0, 3), (6, 2))
        assert refusal(create, handle, seen["2g.36gb"].id) == "INSUFFICIENT_RESOURCES"  # 7 to 9 overlaps 6 and 7
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, seen["1g.24gb"].id) == 2
        small = create(handle, seen["1g.12gb"].id)
        assert where(small)[1:] == (3, 1)
        create(handle, seen["1g.24gb"].id)
        assert refusal(create, handle, seen["1g.12gb"].id) == "INSUFFICIENT_RESOURCES"  # all five compute slices are used
        assert len({where(one)[0] for one in (two, double, small)}) == 3


def test_slices_without_an_nvml_enum_still_get_a_whole_compute_instance(fleet_host: Hosts, board_file: t.Callable[[str], str]) -> None:
    fleet_host(board_file(INVENTED))
    with nvml_open():
        handle = enable_mig()
        instance = create(handle, profiles(handle)["5g.120gb"].id)
        offered = {}
        for query in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            if refusal(pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, query, 0) is None:
                info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, query, 0)
                offered[info.sliceCount] = (info.id, info.instanceCount)
        assert {slices: most for slices, (_id, most) in offered.items()} == {1: 5, 2: 2, 4: 1, 5: 1}
        assert compute_placements(instance, offered[2][0]) == [(0, 2), (2, 2)]
        device = slice_of(compute(instance, offered[5][0]))
        assert pynvml.nvmlDeviceGetName(device) == "ACME Zephyr 120GB MIG 5g.120gb"
        assert pynvml.nvmlDeviceGetAttributes_v2(device).multiprocessorCount == 105


def test_ids_and_compute_tables_of_a_file_go_before_the_rules(fleet_host: Hosts, board_file: t.Callable[[str], str]) -> None:
    text = INVENTED.replace("max: 2, starts: [0, 7]}", "max: 2, starts: [0, 7], instance_ids: {0: 41, 7: 40}}")
    text += "  compute_instances:\n    by_profile:\n      2g.36gb: [{profile: 1, slices: 2, max: 1, sm: 30}]\n"
    fleet_host(board_file(text))
    with nvml_open():
        handle = enable_mig()
        instance = create(handle, profiles(handle)["2g.36gb"].id, 7, 3)
        assert where(instance)[0] == 40
        assert refusal(compute, instance, 0) == "INVALID_ARGUMENT"
        assert pynvml.nvmlDeviceGetAttributes_v2(slice_of(compute(instance, 1))).multiprocessorCount == 30


def test_reset_board_waits_as_its_file_says(fleet_host: Hosts, board_file: t.Callable[[str], str]) -> None:
    fleet_host(board_file(INVENTED.replace("mode_change: immediate", "mode_change: reset")))
    with nvml_open():
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_RESET_REQUIRED


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "words"),
    [
        ("board: zephyr", "bord: zephyr", 1, "board", "is missing"),
        ("architecture: rubin", "architecture: newton", 3, "architecture", "give one of volta"),
        ("'14.2'", "fast", 4, "compute_capability", "such as '9.0'"),
        ("'14.2'", "14.2", 4, "compute_capability", "put it in quotes: '14.2'"),
        ("{total_mib: 122880}", "{total_mib: 0}", 5, "memory.total_mib", "from 1 to"),
        ("{total_mib: 122880}", "{total_mib: 9, swap: 1}", 5, "memory.swap", "is not a field that is known"),
        ("sm: 105", "sm: many", 6, "sm", "'many' is not possible"),
        ("{max_w: 900}", "{max_w: 900, min_w: 901}", 7, "power.min_w", "from 1 to 900"),
        ("mode_change: immediate", "mode_change: soon", 9, "mig.mode_change", "give one of reset, immediate"),
        ("compute_slices: 5", "compute_slices: 0", 10, "mig.compute_slices", "from 1 to 32"),
        ("1g.12gb, size: 1", "one, size: 1", 13, "mig.profiles[0].name", "give a name such as"),
        ("1g.12gb, size: 1", "1g.12gb, slices: 2, size: 1", 13, "mig.profiles[0].slices", "give 1"),
        ("1g.12gb, size: 1", "1g.12gb, size: 11", 13, "mig.profiles[0].size", "from 1 to 10"),
        ("[1, 4, 6, 8]", "[1, 9]", 14, "mig.profiles[1].starts", "from 0 to 8"),
        ("[1, 4, 6, 8]", "[1, 4, 4, 6]", 14, "mig.profiles[1].starts", "twice"),
        ("order: [6]", "order: [5]", 14, "mig.profiles[1].order", "no placement"),
        ("2g.36gb, size: 3", "1g.12gb, size: 3", 15, "mig.profiles[2].name", "belongs to another"),
        ("id: 777", "id: 777, query: 1", 16, "mig.profiles[3].query", "belongs to another"),
        ("id: 777", "id: 777, engines: {ce: x}", 16, "mig.profiles[3].engines.ce", "from 0 to 64"),
        (
            "starts: [0, 7]}\n    - {name: 2g.36gb+me",
            "starts: [0, 7], instance_ids: {7: 1, 0: 1}}\n    - {name: 2g.36gb+me",
            15,
            "",
            "live together",
        ),
        ("max_w: 900}", "max_w: 900}\nmig: {}", 9, "mig", "given twice"),
    ],
)
def test_bad_board_file_gets_one_line_with_place_and_remedy(
    simulator: pathlib.Path,
    tmp_path: pathlib.Path,
    board_file: t.Callable[[str], str],
    old: str,
    new: str,
    line: int,
    field: str,
    words: str,
) -> None:
    assert old in INVENTED
    file = board_file(INVENTED.replace(old, new, 1))
    done = subprocess.run(
        [str(simulator / "bin" / "simctl"), "--state", str(tmp_path / "x"), "create", "--board", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"simctl: {file}:{line}: {field}")
    assert words in done.stderr
    assert not (tmp_path / "x" / "state.bin").exists()


@pytest.mark.parametrize(("text", "words"), [("- a\n", "holds no mapping"), ("a: [\n", "is not YAML"), ("", "holds no mapping")])
def test_file_that_is_no_board_is_named(
    simulator: pathlib.Path, tmp_path: pathlib.Path, board_file: t.Callable[[str], str], text: str, words: str
) -> None:
    done = subprocess.run(
        [str(simulator / "bin" / "simctl"), "--state", str(tmp_path / "x"), "create", "--board", board_file(text)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr


@pytest.mark.parametrize(
    ("data", "place"), [(b"board: a\nname: \xff\n", ":2: file: is not UTF-8; give a YAML mapping"), (None, ": cannot be read: ")]
)
def test_board_file_that_is_no_text_gets_one_line_with_its_place(
    simulator: pathlib.Path, tmp_path: pathlib.Path, data: bytes | None, place: str
) -> None:
    file = tmp_path / "x.yml"
    if data is not None:
        file.write_bytes(data)
    command = [str(simulator / "bin" / "simctl"), "--state", str(tmp_path / "host"), "create", "--board", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"simctl: {file}{place}")
