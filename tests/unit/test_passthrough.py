# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module ``passthrough``: what it does, on devices of a kernel that is a tree of files."""

from __future__ import annotations

import threading
import time

import pytest
from kernel.tree import AUDIO, put
from passthrough_world import DISK, World, flat_world, gpu_world, world
from test_mig_reset import SYSTEMCTL, program

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


def test_a_card_with_its_sound_function_goes_and_comes_as_one(world: World) -> None:
    card, sound = "0000:65:00.0", "0000:65:00.1"
    world.tree.add(card, ("10de", "2230", "10de", "1459"), "030000", group=40)
    world.tree.add(sound, ("10de", "1aef", "10de", "1459"), AUDIO, group=40, driver="snd_hda_intel")
    steps = world.done((card, "vfio"), companions=True)
    assert f"{sound}: unbind from snd_hda_intel" in steps
    assert world.tree.viable(40)
    assert world.record()[sound]["because"] == card
    result = world.run((card, "host"))
    assert f"{card}: {sound} of its IOMMU group stay with VFIO, and no virtual machine can be given them now" in result["notes"]
    assert not world.run((card, "vfio"))["failed"]
    assert not world.run((card, "host"), companions=True)["failed"]
    assert (world.tree.driver(card), world.tree.driver(sound), world.record()) == (None, "snd_hda_intel", {})


def test_all_gpus_of_a_host_go_in_one_run(gpu_world: World) -> None:
    steps = gpu_world.done(*((uuid, "vfio") for uuid in gpu_world.uuids))
    assert [gpu_world.tree.driver(one) for one in gpu_world.gpus] == ["vfio-pci", "vfio-pci"]
    assert sum(step.startswith("load") for step in steps) == 1
    assert sum(step.startswith("write") for step in steps) == 1
    gpu_world.done(*((uuid, "host") for uuid in gpu_world.uuids))


def test_a_host_driver_that_is_not_loaded_is_loaded_on_the_way_back(world: World) -> None:
    world.done((DISK, "vfio"))
    (world.tree.sys / "bus/pci/drivers/nvme").rename(world.where / "gone")
    record = (world.state_dir / "passthrough.json").read_text()
    put(world.state_dir / "passthrough.json", record.replace('"host_module": null', '"host_module": "nvme"'))
    assert world.done((DISK, "host"))[0] == "load module nvme"
    assert world.tree.driver(DISK) == "nvme"


def test_services_that_hold_the_driver_are_stopped_meanwhile(gpu_world: World) -> None:
    world, unit = gpu_world, "nvidia-dcgm.service"
    units = world.where / "units"
    put(units / unit, "")
    program(world.where / "systemctl", SYSTEMCTL.format(here=units))
    world.tree.hold(77, "/dev/nvidia0", name="dcgm")
    put(world.tree.proc / "77/cgroup", f"0::/system.slice/{unit}\n")
    services = {"driver_services": [unit], "systemctl": str(world.where / "systemctl")}
    assert "is in use: process 77 (dcgm)" in world.refused((world.gpus[0], "vfio"))
    ender = threading.Thread(target=lambda: wait_and(lambda: not (units / unit).exists(), lambda: world.tree.let_go(77)))
    ender.start()
    result = world.run((world.gpus[0], "vfio"), **services)
    ender.join()
    assert result["steps"][1] == f"stop {unit}, which holds the driver"
    assert f"start {unit} again" in result["steps"]
    assert (units / unit).exists()
    # Nothing of it holds a GPU that is to come back.
    assert not any(unit in step for step in world.done((world.gpus[0], "host"), **services))


def wait_and(what: object, then: object) -> None:
    end = time.monotonic() + 30
    while not what() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.01)
    then()  # type: ignore[operator]


def test_a_persistence_daemon_that_does_not_let_go_is_named_and_has_its_mode_back(
    gpu_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = gpu_world
    assert world.host is not None
    world.host.simctl("set", "persistence", "on", "--gpu", "0")
    world.tree.hold(55, "/dev/nvidia0", name="nvidia-persistenced")
    monkeypatch.setattr("ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_act._LEAVE_SECONDS", 0.3)
    result = world.run((world.gpus[0], "vfio"))
    assert result["msg"].startswith(f"{world.gpus[0]} is still in use: process 55 (nvidia-persistenced) has /dev/nvidia0 open; ")
    assert (world.tree.driver(world.gpus[0]), world.tree.override(world.gpus[0])) == ("nvidia", None)
    assert (world.persistence(0), world.journal()) == (True, "closed")


def test_a_persistence_mode_that_does_not_change_stops_the_run(gpu_world: World) -> None:
    world = gpu_world
    assert world.host is not None
    world.host.simctl("set", "persistence", "on", "--gpu", "0")
    world.host.simctl("fail", "--call", "nvmlDeviceSetPersistenceMode", "--nth", "1", "--error", "NO_PERMISSION")
    result = world.run((world.gpus[0], "vfio"))
    assert "NVML_ERROR_NO_PERMISSION" in result["msg"]
    assert (world.tree.driver(world.gpus[0]), world.persistence(0), world.tree.writes()) == ("nvidia", True, [])


def test_what_is_worth_knowing_is_a_note(gpu_world: World) -> None:
    gpu_world.tree.add("0000:c0:00.0", ("10de", "22a3", "10de", "1796"), "068000", group=50)
    put(gpu_world.tree.device(gpu_world.gpus[0]) / "reset_method", "\n")
    notes = gpu_world.run((gpu_world.gpus[0], "vfio"), check=True)["notes"]
    assert any(note.startswith("this host has NVSwitches (0000:c0:00.0): ") for note in notes)
    assert any("the kernel knows no way to reset it" in note for note in notes)


def test_udev_that_looks_into_a_new_device_is_waited_for(world: World) -> None:
    place = world.tree.device(DISK).resolve()
    put(place / "nvme/nvme0/dev", "240:0\n")
    put(place / "nvme/nvme0/uevent", "DEVNAME=nvme0\n")
    world.tree.hold(61, "/dev/nvme0", name="(udev-worker)")
    ender = threading.Timer(1, lambda: world.tree.let_go(61))
    ender.start()
    assert not world.run((DISK, "vfio"), check=True)["failed"]
    ender.join()


def test_one_device_is_named_by_itself(world: World) -> None:
    args = {name: value for name, value in world.args().items() if name != "devices"}
    result = world._run("passthrough", {**args, "device": DISK, "state": "vfio"}, check=True)
    assert result["steps"][-2] == f"{DISK}: remember it"
    assert world._run("passthrough", {**args, "device": DISK})["failed"]
    assert world._run("passthrough", {**world.args((DISK, "vfio")), "device": DISK, "state": "vfio"})["failed"]
