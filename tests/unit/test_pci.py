# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices out of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import pci
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs
from kernel.acts import make_vfs
from kernel.tree import A100_80, ETHERNET, GIB, Tree, put

GPU, CARD = "0000:3b:00.0", "0000:04:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "host")
    made.gpu(GPU, bars=(16 << 20, 0, 128 * GIB, 0, 32 << 20), serial="48b02d0a1b2c3d4e", numa=1)
    made.add(CARD, ("8086", "10c9", "8086", "a03c"), ETHERNET, group=15, driver="igb", vfs=32, vf_device="10ca")
    return made


def look(tree: Tree, address: str) -> pci.Device:
    return pci.look(Sysfs(str(tree.sys)), address, str(tree.proc))


def test_a_gpu_is_read_in_full(tree: Tree) -> None:
    found = look(tree, GPU)
    assert (found.driver, found.override, found.group, found.mates, found.numa) == ("nvidia", "", "20", (), 1)
    assert (found.bars, found.resets) == ((16 << 20, 128 * GIB, 32 << 20), ("flr", "bus"))
    assert (found.gpu, found.bridge, found.switch, found.with_vfio) == (True, False, False, False)
    uuid = "GPU-00000000-0000-4000-8000-000000000000"
    vendor, device, subvendor, subdevice = A100_80
    ids = {"vendor": f"0x{vendor}", "device": f"0x{device}", "subsystem": f"{subvendor}:{subdevice}"}
    assert found.identity == {**ids, "serial": "48b02d0a1b2c3d4e", "uuid": uuid}
    assert found.minor == 0


def test_a_reader_who_is_not_root_sees_no_serial_number(tree: Tree) -> None:
    config = tree.device(GPU) / "config"
    config.write_bytes(config.read_bytes()[:64])
    assert look(tree, GPU).serial is None


def test_a_device_that_answers_nothing_has_no_serial_number(tree: Tree) -> None:
    (tree.device(GPU) / "config").write_bytes(b"\xff" * 4096)  # it fell off the bus
    assert look(tree, GPU).serial is None


def test_virtual_functions_come_by_their_numbers(tree: Tree) -> None:
    make_vfs(tree.root, tree.device(CARD).resolve(), 12)
    found = look(tree, CARD)
    assert found.vfs[:3] == ("0000:04:10.0", "0000:04:10.2", "0000:04:10.4")
    assert found.vfs[10:] == ("0000:04:12.4", "0000:04:12.6")  # virtfn10 comes before virtfn2 in a listing
    assert found.most_vfs == 32
    assert look(tree, found.vfs[10]).physical == CARD


@pytest.mark.parametrize("name", ["0000:3b:00.0", "00000000:3B:00.0", "3b:00.0", "gpu-00000000-0000-4000-8000-000000000000"])
def test_a_gpu_is_found_by_any_spelling(tree: Tree, name: str) -> None:
    assert pci.where(Sysfs(str(tree.sys)), name, {}, str(tree.proc)) == GPU


@pytest.mark.parametrize(
    ("driver", "known"), [("vfio-pci", True), ("mlx5_vfio_pci", True), ("nvgrace-gpu-vfio-pci", True), ("nvidia", False)]
)
def test_variants_of_vfio_pci_are_known(driver: str, known: bool) -> None:
    assert pci.is_vfio(driver) is known


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"serial": "00000000000000ff"}, "serial number 48b02d0a1b2c3d4e, and 00000000000000ff was recorded"),
        ({"device": "0x2331"}, "device id 0x20b5, and 0x2331 was recorded"),
        ({"uuid": "GPU-1"}, "UUID GPU-00000000-0000-4000-8000-000000000000, and GPU-1 was recorded"),
        ({"serial": None, "uuid": None}, None),
    ],
)
def test_another_card_is_told_by_what_both_tell(tree: Tree, change: dict[str, str | None], words: str | None) -> None:
    found = look(tree, GPU)
    assert pci.differs({**found.identity, **change}, found) == words


def test_an_nvswitch_is_no_bridge(tree: Tree) -> None:
    tree.add("0000:c0:00.0", ("10de", "22a3", "10de", "1796"), "068000", group=50)
    tree.bridge("0000:00:1c.0", group=50)
    found = look(tree, "0000:c0:00.0")
    assert (found.switch, found.bridge, found.gpu, found.mates) == (True, False, False, ("0000:00:1c.0",))
    assert look(tree, "0000:00:1c.0").bridge
    put(tree.device(GPU) / "numa_node", "-1\n")
    assert look(tree, GPU).numa is None
