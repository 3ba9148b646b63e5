# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU: a /proc with the links and files that the kernel shows, and what NVML lists."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import holders
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import OpenFile
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Process

CONTAINER = "0f3c9b1d2e4a5c1f8b0a7a0e4c1e9a55d3a1f7f0c9a14f1c3a5298a14e0fa6a5"
MIG_MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\ngpu1/gi9/access 140\ngpu1/gi9/ci0/access 141\n"


class Proc:
    """A /proc of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.text("driver/nvidia-caps/mig-minors", MIG_MINORS)

    def text(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def process(self, pid: int, *files: str, name: str = "python3", uid: int = 0, cgroup: str = "0::/user.slice\n") -> None:
        fds = self.root / str(pid) / "fd"
        fds.mkdir(parents=True)
        for number, target in enumerate(files):
            (fds / str(number)).symlink_to(target)
        self.text(f"{pid}/status", f"Name:\t{name}\nState:\tS (sleeping)\nUid:\t{uid}\t7\t7\t7\n")
        self.text(f"{pid}/cgroup", cgroup)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def found(proc: Proc) -> list[OpenFile]:
    return holders.open_files(str(proc.root))


def test_capability_files_are_known_by_gpu_and_instance(proc: Proc) -> None:
    assert holders.mig_minors(str(proc.root)) == {3: (0, 1, None), 4: (0, 1, 0), 140: (1, 9, None), 141: (1, 9, 0)}


def test_without_the_driver_there_are_no_capability_files(tmp_path: Path) -> None:
    assert holders.mig_minors(str(tmp_path)) == {}


def test_device_and_capability_files_are_found_once_for_each_process(proc: Proc) -> None:
    proc.process(20, "/dev/nvidia1", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap141", "/dev/nvidiactl", "/dev/nvidia-uvm", "/etc/passwd")
    proc.process(3, "/dev/nvidia0 (deleted)", "socket:[1]", "/dev/nvidia0")
    assert found(proc) == [
        OpenFile(3, "/dev/nvidia0", 0),
        OpenFile(20, "/dev/nvidia-caps/nvidia-cap141", 1, 9, 0),
        OpenFile(20, "/dev/nvidia1", 1),
    ]


def test_files_of_other_names_hold_nothing(proc: Proc) -> None:
    proc.process(20, "/dev/nvidia0x", "/tmp/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap999", "/dev/null")
    assert found(proc) == []


def test_the_caller_does_not_hold_what_it_looks_at(proc: Proc) -> None:
    proc.process(os.getpid(), "/dev/nvidia0")
    proc.process(os.getpid() + 1, "/dev/nvidia0")
    assert [held.pid for held in found(proc)] == [os.getpid() + 1]


def test_a_process_that_ends_meanwhile_hides_no_other(proc: Proc) -> None:
    proc.process(20, "/dev/nvidia0")
    (proc.root / "19").mkdir()
    (proc.root / "20" / "fd" / "99").write_text("not a link any more")
    assert found(proc) == [OpenFile(20, "/dev/nvidia0", 0)]


def test_a_proc_that_cannot_be_read_is_an_error_not_an_empty_answer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        holders.open_files(str(tmp_path / "missing"))


def test_a_process_is_described_by_name_user_and_container(proc: Proc) -> None:
    proc.process(20, name="vllm: worker", uid=0, cgroup=f"0::/system.slice/docker-{CONTAINER}.scope\n")
    assert holders.describe(str(proc.root), 20) == {
        "pid": 20,
        "process": "vllm: worker",
        "user": pwd.getpwuid(0).pw_name,
        "container": CONTAINER[:12],
    }


def test_a_user_without_a_name_is_a_number_and_no_container_is_none(proc: Proc) -> None:
    proc.process(20, uid=3999999999)
    described = holders.describe(str(proc.root), 20)
    assert (described["user"], described["container"]) == ("3999999999", None)


def test_a_process_that_is_gone_keeps_its_number(proc: Proc) -> None:
    assert holders.describe(str(proc.root), 77) == {"pid": 77, "process": None, "user": None, "container": None}


def brief(entries: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [(entry["pid"], entry["kind"], entry["slice"], entry.get("path")) for entry in entries]


def test_nvml_processes_and_open_files_make_one_list_by_pid(proc: Proc) -> None:
    merged = holders.merge(
        str(proc.root),
        [Process(30, "compute", 9, 0, 512), Process(10, "graphics", None, None, None)],
        [OpenFile(20, "/dev/nvidia1", 1)],
    )
    assert brief(merged) == [
        (10, "graphics", None, None),
        (20, "open_file", None, "/dev/nvidia1"),
        (30, "compute", {"gi": 9, "ci": 0}, None),
    ]


def test_a_file_that_nvml_has_said_already_is_left_out(proc: Proc) -> None:
    merged = holders.merge(
        str(proc.root),
        [Process(10, "compute", None, None, 1), Process(20, "mps", 9, 0, 1)],
        [
            OpenFile(10, "/dev/nvidia1", 1),
            OpenFile(20, "/dev/nvidia1", 1),
            OpenFile(20, "/dev/nvidia-caps/nvidia-cap140", 1, 9),
            OpenFile(20, "/dev/nvidia-caps/nvidia-cap141", 1, 9, 0),
        ],
    )
    assert brief(merged) == [(10, "compute", None, None), (20, "mps", {"gi": 9, "ci": 0}, None)]


def test_a_file_of_another_slice_is_kept_beside_what_nvml_says(proc: Proc) -> None:
    merged = holders.merge(
        str(proc.root),
        [Process(20, "compute", 9, 0, 1)],
        [OpenFile(20, "/dev/nvidia-caps/nvidia-cap150", 1, 10), OpenFile(21, "/dev/nvidia-caps/nvidia-cap140", 1, 9)],
    )
    assert brief(merged) == [
        (20, "compute", {"gi": 9, "ci": 0}, None),
        (20, "open_file", {"gi": 10, "ci": None}, "/dev/nvidia-caps/nvidia-cap150"),
        (21, "open_file", {"gi": 9, "ci": None}, "/dev/nvidia-caps/nvidia-cap140"),
    ]


def test_open_files_of_a_slice_are_told_by_the_innermost(proc: Proc) -> None:
    merged = holders.merge(
        str(proc.root),
        [],
        [
            OpenFile(20, "/dev/nvidia1", 1),
            OpenFile(20, "/dev/nvidia-caps/nvidia-cap140", 1, 9),
            OpenFile(20, "/dev/nvidia-caps/nvidia-cap141", 1, 9, 0),
        ],
    )
    assert brief(merged) == [(20, "open_file", {"gi": 9, "ci": 0}, "/dev/nvidia-caps/nvidia-cap141")]


def test_another_process_in_a_slice_says_nothing_about_a_file_of_the_gpu(proc: Proc) -> None:
    merged = holders.merge(str(proc.root), [Process(30, "compute", 9, 0, 1)], [OpenFile(20, "/dev/nvidia1", 1)])
    assert brief(merged) == [(20, "open_file", None, "/dev/nvidia1"), (30, "compute", {"gi": 9, "ci": 0}, None)]
