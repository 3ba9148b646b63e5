# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of devices that virtual machines have, and what the host agent makes of it after a boot."""

from __future__ import annotations

import json
import re
import shutil
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import agent, passthrough_facts
from ansible_collections.gpuops.fleet.plugins.module_utils.host import Notes
from kernel.tree import NVME, config, put
from passthrough_world import CARD, DISK, World, gpu_world, world
from test_passthrough_refusals import with_functions

__all__ = ["gpu_world", "world"]


def test_after_a_boot_the_device_is_given_away_again(world: World) -> None:
    world.done((DISK, "vfio"))
    record = world.record()
    world.boot()
    assert world.tree.driver(DISK) == "nvme"  # a driver that was faster than the rule
    restored = world.restore()
    assert restored.problems == []
    assert restored.done[-1] == f"{DISK}: probe, so that vfio-pci takes it"
    assert (world.tree.driver(DISK), world.record(), world.journal()) == ("vfio-pci", record, "closed")
    assert (world.restore().done, world.restore().problems) == ([], [])


def test_what_shall_not_outlive_a_boot_does_not(world: World) -> None:
    world.done((DISK, "vfio"), persist=False)
    assert world.rule() is None
    assert world.record()[DISK]["persist"] is False
    assert world.run((DISK, "vfio"))["steps"] == [f"{DISK}: remember it", f"write {world.rules}"]
    assert world.run((DISK, "vfio"), persist=False)["steps"] == [f"{DISK}: remember it", f"remove {world.rules}"]
    world.boot()
    assert (world.restore().done, world.tree.driver(DISK)) == ([], "nvme")


def test_another_card_in_its_place_keeps_its_host_driver_and_is_named(world: World) -> None:
    world.done((DISK, "vfio"))
    world.boot()
    (world.tree.device(DISK) / "config").write_bytes(config(("1b36", "0010", "1af4", "1100"), "00000000000000ff"))
    # The rule knows only the kind of card.
    put(world.tree.device(DISK) / "driver_override", "vfio-pci\n")
    take_to_vfio(world, DISK)
    restored = world.restore()
    (problem,) = restored.problems
    other = "serial number 00000000000000ff, and 00000000000000d1 was recorded"
    assert problem.startswith(f"{DISK} is another card than recorded ({other}): it stays with its host driver")
    assert (world.tree.driver(DISK), world.tree.override(DISK)) == ("nvme", None)
    assert DISK in world.record()  # until somebody decides
    assert world.restore().problems == [problem]


def take_to_vfio(world: World, address: str) -> None:
    from kernel.tree import attach, detach

    detach(world.tree.root, address)
    attach(world.tree.root, address, "vfio-pci")


def test_a_card_that_moved_is_found_by_its_serial_number(world: World) -> None:
    world.done((DISK, "vfio"))
    world.boot()
    from kernel.tree import drop

    drop(world.tree.root, DISK)
    world.tree.add("0000:07:00.0", ("1b36", "0010", "1af4", "1100"), NVME, group=17, driver="nvme", serial="00000000000000d1")
    (problem,) = world.restore().problems
    assert problem == f"{DISK} is not there; it seems to be at 0000:07:00.0 now; name it there by module passthrough"
    assert world.tree.driver("0000:07:00.0") == "nvme"


def test_one_that_cannot_be_given_away_keeps_no_other_from_it(gpu_world: World) -> None:
    world = gpu_world
    world.done((DISK, "vfio"), (world.gpus[1], "vfio"))
    world.boot()
    world.tree.hold(300, "/dev/nvidia1", name="dcgm")
    restored = world.restore()
    (problem,) = restored.problems
    assert "is in use: process 300 (dcgm)" in problem
    assert (world.tree.driver(DISK), world.tree.driver(world.gpus[1])) == ("vfio-pci", "nvidia")


def test_a_virtual_function_is_made_again_and_given_away_before_its_driver_has_it(world: World) -> None:
    first, second = with_functions(world, 2)
    assert (world.tree.driver(first), world.tree.driver(second)) == (None, None)
    world.tree.load("igbvf")
    assert world.tree.driver(first) == "igbvf"
    world.done((first, "vfio"))
    assert world.record()[first]["parent"] == {"address": CARD, "vfs": 2}
    world.boot()
    assert not world.tree.device(first).exists()
    restored = world.restore()
    assert restored.problems == []
    assert restored.done[0] == f"{CARD}: make 2 virtual functions"
    assert (world.tree.driver(first), world.tree.driver(second)) == ("vfio-pci", "igbvf")
    assert f"{first}: unbind from igbvf" not in restored.done
    assert (world.tree.device(CARD) / "sriov_drivers_autoprobe").read_text() == "1\n"
    assert world.restore().done == []


def test_a_group_is_given_away_as_a_whole_after_a_boot(world: World) -> None:
    from passthrough_world import BUS, CONTROLLER

    steps = world.done((BUS, "vfio"), companions=True)
    assert f"{CONTROLLER}: unbind from ahci" in steps
    assert world.tree.viable(8)
    world.boot()
    assert not world.tree.viable(8)
    assert world.restore().problems == []
    assert world.tree.viable(8)
    # Both come back, for both were given away.
    back = world.run((BUS, "host"), companions=True)
    assert f"{CONTROLLER}: probe, so that ahci takes it" in back["steps"]
    assert (world.tree.driver(CONTROLLER), world.tree.driver(BUS), world.record()) == ("ahci", None, {})
    assert not world.run((BUS, "host"), companions=True)["changed"]


# The udev rule


def test_the_rule_sets_overrides_at_any_device_and_binds_at_its_own(world: World) -> None:
    world.done((DISK, "vfio"))
    lines = (world.rule() or "").splitlines()
    ids = {"vendor": "0x1b36", "device": "0x0010", "subsystem_vendor": "0x1af4", "subsystem_device": "0x1100"}
    early, own = lines[1:]
    event = ['ACTION=="add"', 'SUBSYSTEM=="pci"']
    assert early.split(", ") == [
        *event,
        *(f'ATTR{{[pci/{DISK}]{name}}}=="{value}"' for name, value in ids.items()),
        f'ATTR{{[pci/{DISK}]driver_override}}="vfio-pci"',
    ]
    assert own.split(", ") == [
        *event,
        f'KERNEL=="{DISK}"',
        *(f'ATTR{{{name}}}=="{value}"' for name, value in ids.items()),
        'ATTR{subsystem/drivers_probe}="$kernel"',
        'RUN{builtin}+="kmod load vfio-pci"',
    ]
    assert (world.rules.stat().st_mode & 0o777) == 0o644
    assert int(re.match(r"\d+", "70-gpuops-fleet-passthrough.rules").group()) < 80  # type: ignore[union-attr]


# The agent's verb


def test_the_agent_gives_devices_away_before_it_waits_for_a_driver(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.done((DISK, "vfio"))
    world.boot()
    plain = {"state_dir": world.state_dir, "sys_root": world.tree.sys, "proc_root": world.tree.proc, "docker_socket": world.where / "none"}
    file = world.where / "agent.json"
    file.write_text(json.dumps({"format": 1, **{name: str(path) for name, path in plain.items()}, "driver_wait": 1}))
    assert agent.main(["passthrough", "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert f"passthrough: {DISK}: probe, so that vfio-pci takes it\n" in said.out
    assert agent.main(["restore", "--config", str(file)]) == 0  # nothing else is kept: no driver is waited for
    assert capsys.readouterr().out == "passthrough: as it was kept, nothing to do\n"
    shutil.rmtree(world.tree.sys / "class/iommu")
    world.boot()
    assert agent.main(["restore", "--config", str(file)]) == 1
    assert capsys.readouterr().err.startswith("passthrough: the IOMMU of this host does not work")


# Facts


def test_the_facts_show_what_virtual_machines_have(gpu_world: World) -> None:
    world, notes = gpu_world, Notes()

    def read() -> list[dict[str, t.Any]]:
        return passthrough_facts.read(str(world.state_dir), str(world.tree.sys), str(world.tree.proc), notes)

    assert read() == []
    world.done((world.uuids[0], "vfio"))
    world.tree.hold(4711, "/dev/vfio/20", name="qemu-system-x86")
    (found,) = read()
    assert (found["uuid"], found["parent"], found["pci"]) == (world.uuids[0], world.gpus[0], world.gpus[0])
    assert (found["driver"], found["group"], found["recorded"], found["persist"]) == ("vfio-pci", 20, True, True)
    assert found["bars_mib"] == [16, 131072, 32]
    assert found["users"] == ["process 4711 (qemu-system-x86) has /dev/vfio/20 open"]
    put(world.state_dir / "passthrough.json", "{torn")
    (found,) = read()
    assert (found["uuid"], found["recorded"]) == (None, False)
    assert len(notes.lines) == 1
