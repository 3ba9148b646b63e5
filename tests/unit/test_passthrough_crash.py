# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failures and deaths at every sysfs write of module ``passthrough``: nothing is left half bound, and the next run repairs."""

from __future__ import annotations

import itertools
import shutil
import time
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_run import Options, apply
from kernel.tree import put
from passthrough_world import DISK, PATIENCE, World, gpu_world, world

__all__ = ["gpu_world", "world"]
WRITES = 3  # override, unbind and probe, there and back
STUCK = 10  # seconds: what is not stuck answers sooner, also on a machine with much to do
BOTH = ("vfio", "host")


def options(world: World) -> Options:
    return Options(world.state_dir, world.tree.sys, world.tree.proc, world.rules, docker_socket="", deadline=PATIENCE)


def ready(world: World, device: str, wish: str) -> None:
    """The device is where the wish takes it from, and writes are counted from here."""
    if wish == "host":
        assert not world.run((device, "vfio"))["failed"]
    world.tree.load("vfio-pci")
    world.tree.forget()


def is_as(world: World, device: str, state: str) -> None:
    """Whole, and nothing is unfinished."""
    host = "nvme" if device == DISK else "nvidia"
    expected = ("vfio-pci", "vfio-pci") if state == "vfio" else (host, None)
    assert (world.tree.driver(device), world.tree.override(device)) == expected
    assert world.journal() == "closed"
    assert (device in world.record()) is (state == "vfio")
    assert (world.rule() is not None) is (state == "vfio")
    if state == "vfio":
        assert world.record()[device]["host_driver"] == host
    if device != DISK:
        assert world.persistence(0) is (state == "host")
        if state == "vfio":
            assert world.record()[device]["persistence"] is True


@pytest.mark.parametrize("wish", BOTH)
def test_a_write_that_fails_puts_everything_back(gpu_world: World, wish: str) -> None:
    world, device = gpu_world, gpu_world.gpus[0]
    assert world.host is not None
    world.host.simctl("set", "persistence", "on", "--gpu", "0")
    ready(world, device, wish)
    before = "host" if wish == "vfio" else "vfio"
    for number in range(1, WRITES + 1):
        world.tree.forget()
        world.monkeypatch.setenv("KERNEL_FAIL", f"{number}=No such device")
        result = world.run((device, wish))
        assert result["failed"]
        assert "the kernel refused" in result["msg"]
        assert "No such device" in result["msg"]
        assert "\n" not in result["msg"]
        is_as(world, device, before) if wish == "host" else unchanged(world, device)
    world.monkeypatch.delenv("KERNEL_FAIL")
    assert not world.run((device, wish))["failed"]
    is_as(world, device, wish)


def unchanged(world: World, device: str) -> None:
    """As before a first run that failed: with its driver, and remembered by nothing."""
    assert (world.tree.driver(device), world.tree.override(device), world.record()) == ("nvidia", None, {})
    assert (world.journal(), world.rule(), world.persistence(0)) == ("closed", None, True)


@pytest.mark.parametrize("wish", BOTH)
def test_a_way_back_that_fails_is_said_and_the_next_run_repairs(world: World, wish: str) -> None:
    other = "host" if wish == "vfio" else "vfio"
    for first in range(1, WRITES + 1):
        for then in (wish, other):
            second = first + 1
            ready(world, DISK, wish)
            world.monkeypatch.setenv("KERNEL_FAIL", f"{first},{second}")
            result = world.run((DISK, wish))
            world.monkeypatch.delenv("KERNEL_FAIL")
            if result["failed"] and "could not be put back" in result["msg"]:
                assert world.journal() == "open"
                assert "the next run with this wish" in result["msg"]
            repaired = world.run((DISK, then))
            assert not repaired["failed"], (first, second, then, repaired["msg"])
            assert (world.tree.driver(DISK), world.tree.override(DISK)) == (("vfio-pci", "vfio-pci") if then == "vfio" else ("nvme", None))
            assert not world.run((DISK, "host"))["failed"]


@pytest.mark.parametrize(("wish", "moment"), list(itertools.product(BOTH, ("before", "after"))))
def test_a_run_that_dies_at_a_write_is_completed_or_taken_back_by_the_next(gpu_world: World, wish: str, moment: str) -> None:
    world, device = gpu_world, gpu_world.gpus[0]
    assert world.host is not None
    world.host.simctl("set", "persistence", "on", "--gpu", "0")
    for number in range(1, WRITES + 1):
        for then in BOTH:
            ready(world, device, wish)
            die(world, device, wish, f"{moment} {number}")
            predicted, result = world.run((device, then), check=True), world.run((device, then))
            assert not result["failed"], (number, then, result["msg"])
            assert predicted["steps"] == result["steps"]
            assert any("did not come to its end" in note for note in result["notes"])
            is_as(world, device, then)
            assert not world.run((device, "host"))["failed"]
            is_as(world, device, "host")


def die(world: World, device: str, wish: str, moment: str) -> None:
    world.monkeypatch.setenv("KERNEL_KILL", moment)
    assert world.tree.dies(lambda: apply([{"device": device, "state": wish}], options(world)))
    world.monkeypatch.delenv("KERNEL_KILL")
    if moment.startswith("after"):
        wait_for(lambda: len(world.tree.writes()) >= int(moment.split()[1]))
    assert world.journal() == "open"


def wait_for(what: t.Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("wish", BOTH)
def test_a_host_that_dies_at_a_write_comes_up_as_wished(world: World, wish: str) -> None:
    for moment, number in itertools.product(("before", "after"), range(1, WRITES + 1)):
        ready(world, DISK, wish)
        die(world, DISK, wish, f"{moment} {number}")
        world.boot()
        restored = world.restore()
        assert restored.problems == []
        is_as(world, DISK, wish)
        assert world.restore().done == []
        assert not world.run((DISK, "host"))["failed"]


def test_a_probe_that_nothing_comes_of_gives_the_device_back(world: World) -> None:
    """As without an IOMMU, or with a device that vfio-pci refuses: the kernel answers success."""
    hidden = world.tree.hidden
    hidden["devices"][DISK]["refused_by"] = ["vfio-pci"]
    world.tree.save(hidden)
    result = world.run((DISK, "vfio"))
    assert result["msg"] == (
        f"{DISK}: the kernel answered the probe with success, and no driver has it, not vfio-pci; {DISK} is with nvme again;"
        " the kernel's log says why: an error -22 there is an IOMMU that does not work"
    )
    assert (world.tree.driver(DISK), world.tree.override(DISK), world.journal()) == ("nvme", None, "closed")


def test_the_second_of_two_devices_fails_and_the_first_comes_back(gpu_world: World) -> None:
    world = gpu_world
    world.tree.load("vfio-pci")
    world.monkeypatch.setenv("KERNEL_FAIL", "5")  # the second unbind
    result = world.run((world.gpus[0], "vfio"), (world.gpus[1], "vfio"))
    assert "Device or resource busy" in result["msg"]
    assert [world.tree.driver(one) for one in world.gpus] == ["nvidia", "nvidia"]
    assert [world.tree.override(one) for one in world.gpus] == [None, None]
    assert (world.record(), world.journal()) == ({}, "closed")


@pytest.mark.parametrize("wish", BOTH)
def test_a_release_that_is_stuck_is_left_at_the_deadline_and_completed_later(world: World, wish: str) -> None:
    ready(world, DISK, wish)
    # The unbind is then the first write: on a busy machine others may take as long as a deadline that a test can wait for.
    put(world.tree.device(DISK) / "driver_override", "vfio-pci\n" if wish == "vfio" else "(null)\n")
    world.tree.grip(DISK)
    began = time.monotonic()
    result = world.run((DISK, wish), deadline=STUCK)
    assert time.monotonic() - began < 120
    driver = "nvme" if wish == "vfio" else "vfio-pci"
    assert f"/bus/pci/drivers/{driver}/unbind has not answered in {STUCK} s; process " in result["msg"]
    assert f"{DISK} is between two drivers as long as it waits" in result["msg"]
    assert "\n" not in result["msg"]
    assert world.journal() == "open"
    wait_for((world.tree.device(DISK) / "driver_override").is_fifo)
    # Whoever looks meanwhile is not stuck as well: its override can not be read.
    again = world.run((DISK, wish), deadline=STUCK)
    assert f"driver_override has not answered in {STUCK} s" in again["msg"]
    world.tree.grip()
    wait_for(lambda: world.tree.driver(DISK) is None)
    wait_for(lambda: not (world.tree.device(DISK) / "driver_override").is_fifo())
    assert not world.run((DISK, wish))["failed"]
    assert world.tree.driver(DISK) == ("vfio-pci" if wish == "vfio" else "nvme")
    assert world.journal() == "closed"


def test_a_release_that_is_still_stuck_is_told_at_once_whatever_the_kernel_answers(world: World) -> None:
    """As a 6.12.107 does: the driver's link is gone, the override can be read, and a probe is answered with success."""
    ready(world, DISK, "vfio")
    path = "/sys/bus/pci/drivers/nvme/unbind"
    child = world.tree.proc / "697"
    child.mkdir(parents=True)
    (child / "cmdline").write_bytes(f"tee\0{path}\0".encode())
    (child / "environ").write_bytes(f"LC_ALL=C\0GPUOPS_FLEET_WRITES={DISK}\0".encode())
    before = world.tree.driver(DISK)
    result = world.run((DISK, "vfio"))
    told = f"{DISK} is between two drivers: process 697 of an earlier run waits in the kernel still, writing to {path}"
    assert told in result["msg"]
    assert "\n" not in result["msg"]
    assert world.tree.driver(DISK) == before
    shutil.rmtree(child)
    assert not world.run((DISK, "vfio"))["failed"]


def test_who_comes_between_the_look_and_the_unbind_is_not_waited_for_in_the_kernel(world: World) -> None:
    """A guest that starts at this very moment: the override is written already, and taken back."""
    ready(world, DISK, "host")
    world.monkeypatch.setattr("ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_act._LEAVE_SECONDS", 0.2)
    from ansible_collections.gpuops.fleet.plugins.module_utils import passthrough_run

    run = passthrough_run._Run(options(world), papers=True, repair=True)
    work = run.plan([{"device": DISK, "state": "host"}])
    world.tree.hold(4711, "/dev/vfio/14", name="qemu-system-x86")
    with pytest.raises(Exception, match="is still in use: process 4711") as refused:
        run.carry_out(work)
    assert f"{DISK} is with vfio-pci again" in str(refused.value)
    assert (world.tree.driver(DISK), world.tree.override(DISK), world.journal()) == ("vfio-pci", "vfio-pci", "closed")


def test_papers_that_cannot_be_written_are_completed_by_the_next_run(world: World) -> None:
    in_the_way = world.rules.with_name(world.rules.name + ".gpuops-new")
    in_the_way.mkdir(parents=True)
    result = world.run((DISK, "vfio"))
    assert result["msg"].startswith("the devices are as wished now, and a boot will not find them so: cannot write")
    assert world.journal() == "open"
    in_the_way.rmdir()
    assert world.run((DISK, "vfio"))["steps"] == [f"write {world.rules}"]
    is_as(world, DISK, "vfio")


def test_a_journal_that_is_torn_stops_nobody(world: World) -> None:
    put(world.state_dir / "passthrough-journal.json", "{torn")
    result = world.run((DISK, "vfio"))
    assert not result["failed"]
    assert any("the journal of earlier changes is of no use" in note for note in result["notes"])
    is_as(world, DISK, "vfio")
