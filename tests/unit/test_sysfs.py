# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""sysfs: reads, writes with the kernel's own word, and a kernel that does not answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Stuck, Sysfs, waiting
from kernel.tree import NVME, Tree

DISK = "0000:02:00.0"
DEVICE = ("bus", "pci", "devices", DISK)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path / "host", loaded=("pcieport", "vfio-pci"))
    made.add(DISK, ("1b36", "0010", "1af4", "1100"), NVME, group=14, driver="nvme")
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def at(tree: Tree, deadline: float = 90) -> Sysfs:
    return Sysfs(str(tree.sys), deadline)


def test_an_override_that_is_not_set_is_an_empty_text(tree: Tree) -> None:
    assert (tree.device(DISK) / "driver_override").read_text() == "(null)\n"
    assert at(tree).text(*DEVICE, "driver_override") == ""


def test_what_is_not_there_is_none(tree: Tree) -> None:
    sysfs = at(tree)
    assert sysfs.text(*DEVICE, "driver_overrule") is None
    assert sysfs.text("bus/pci/devices/0000:99:00.0", "driver_override") is None
    assert sysfs.link(*DEVICE, "physfn") is None
    assert sysfs.names(*DEVICE, "nvidia") == []
    assert sysfs.number(*DEVICE, "sriov_totalvfs") is None


def test_numbers_links_and_names_are_read(tree: Tree) -> None:
    sysfs = at(tree)
    assert sysfs.number(*DEVICE, "class") == 0x010802
    assert sysfs.number(*DEVICE, "numa_node") == -1
    assert (sysfs.link(*DEVICE, "driver"), sysfs.link(*DEVICE, "iommu_group")) == ("nvme", "14")
    assert sysfs.names("kernel/iommu_groups/14/devices") == [DISK]


def test_a_write_is_one_line(tree: Tree) -> None:
    at(tree).write(*DEVICE, "driver_override", text="vfio-pci")
    at(tree).write(*DEVICE, "driver/unbind", text=DISK)
    assert (tree.override(DISK), tree.driver(DISK)) == ("vfio-pci", None)
    at(tree).write(*DEVICE, "driver_override", text="")
    assert tree.override(DISK) is None


def test_a_refusal_has_the_kernels_own_word(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_FAIL", "1=Device or resource busy")
    with pytest.raises(FleetError) as refused:
        at(tree).write(*DEVICE, "driver", "unbind", text=DISK)
    path = tree.sys / "bus/pci/devices" / DISK / "driver/unbind"
    assert str(refused.value) == f"{path}: the kernel refused {DISK}: Device or resource busy"


def test_a_file_that_is_not_there_is_not_made(tree: Tree) -> None:
    with pytest.raises(FleetError, match="the kernel has no such file"):
        at(tree).write(*DEVICE, "remoove", text="1")
    assert tree.writes() == []


def test_a_kernel_that_does_not_answer_is_left_and_named(tree: Tree) -> None:
    tree.load("vfio-pci")
    tree.hold(4242, "/dev/vfio/14", name="qemu-system-x86")
    began = time.monotonic()
    closed = "process 4242 (qemu-system-x86) closes /dev/vfio/14"
    with pytest.raises(Stuck) as stuck:
        at(tree, 0.5).write(*DEVICE, "driver/unbind", text=DISK, until=lambda: closed)
    assert time.monotonic() - began < 5
    said = f"driver/unbind has not answered in 0.5 s; process {stuck.value.pid} waits there until {closed}"
    assert str(stuck.value).endswith(said)
    os.kill(stuck.value.pid, 0)  # it lives, and any later run finds it
    pid, path = waiting("/proc", DISK) or (0, "")
    assert (pid, path.rpartition("/")[2]) == (stuck.value.pid, "unbind")
    end = time.monotonic() + 90
    while not (tree.device(DISK) / "driver_override").is_fifo() and time.monotonic() < end:
        time.sleep(0.02)  # on a busy machine it has not yet come so far
    with pytest.raises(Stuck, match="driver_override has not answered"):
        at(tree, 0.5).text(*DEVICE, "driver_override")  # its device is locked
    tree.let_go(4242)
    os.waitpid(stuck.value.pid, 0)
    assert waiting("/proc", DISK) is None
    assert tree.driver(DISK) is None
    assert at(tree).text(*DEVICE, "driver_override") == ""
