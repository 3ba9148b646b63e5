# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module ``passthrough``: what it does, on devices of a kernel that is a tree of files."""

from __future__ import annotations

from passthrough_world import DISK, World, flat_world, gpu_world, world

__all__ = ["flat_world", "gpu_world", "world"]


def test_a_device_goes_to_vfio_and_comes_back(world: World) -> None:
    steps = world.done((DISK, "vfio"))
    assert steps == [
        "load module vfio-pci",
        f"{DISK}: set driver_override to vfio-pci",
        f"{DISK}: unbind from nvme",
        f"{DISK}: probe, so that vfio-pci takes it",
        f"{DISK}: remember it",
        f"write {world.rules}",
    ]
    assert (world.tree.driver(DISK), world.tree.override(DISK)) == ("vfio-pci", "vfio-pci")
    assert world.record()[DISK]["host_driver"] == "nvme"
    assert world.done((DISK, "host")) == [
        f"{DISK}: clear driver_override",
        f"{DISK}: unbind from vfio-pci",
        f"{DISK}: probe, so that nvme takes it",
        f"{DISK}: forget it",
        f"remove {world.rules}",
    ]
    assert (world.tree.driver(DISK), world.tree.override(DISK)) == ("nvme", None)
    assert (world.record(), world.rule(), world.journal()) == ({}, None, "closed")


def test_a_gpu_is_let_go_of_before_it_is_unbound(gpu_world: World) -> None:
    assert gpu_world.host is not None
    gpu_world.host.simctl("set", "persistence", "on", "--gpu", "1")
    gpu, uuid = gpu_world.gpus[1], gpu_world.uuids[1]
    steps = gpu_world.done((uuid, "vfio"))
    assert steps[:4] == [
        "load module vfio-pci",
        f"{gpu}: turn persistence mode off",
        f"{gpu}: set driver_override to vfio-pci",
        f"{gpu}: unbind from nvidia",
    ]
    assert (gpu_world.tree.driver(gpu), gpu_world.persistence(1)) == ("vfio-pci", False)
    assert gpu_world.tree.driver(gpu_world.gpus[0]) == "nvidia"
    assert gpu_world.record()[gpu]["identity"]["uuid"] == uuid
    # Its UUID means it still, though no driver shows it.
    back = gpu_world.done((uuid, "host"))
    assert back[-3:] == [f"{gpu}: turn persistence mode on", f"{gpu}: forget it", f"remove {gpu_world.rules}"]
    assert (gpu_world.tree.driver(gpu), gpu_world.persistence(1)) == ("nvidia", True)


def test_a_board_without_mig_goes_as_well(flat_world: World) -> None:
    flat_world.done((flat_world.gpus[0], "vfio"))
    assert flat_world.tree.driver(flat_world.gpus[0]) == "vfio-pci"
    flat_world.done((flat_world.gpus[0], "host"))
    assert flat_world.tree.driver(flat_world.gpus[0]) == "nvidia"
