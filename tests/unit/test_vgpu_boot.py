# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host agent does with vGPUs after a boot."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import agent, vgpu_boot
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from vgpu_world import GPU, VFS, World, world

__all__ = ["world"]


def config(world: World) -> Config:
    return Config(state_dir=world.state_dir, sys_root=world.tree.sys, proc_root=world.tree.proc, sriov_manage="sriov-manage", driver_wait=1)


def boot(world: World) -> tuple[list[str], list[str]]:
    """What is said, and what is wrong."""
    said: list[str] = []
    return said, vgpu_boot.restore(config(world), said.append)


def test_vgpus_come_back_as_they_were(world: World) -> None:
    world.gpu()
    world.mtty()
    two = [{"type": "A100D-40C", "params": {"enable_uvm": 1}}, {"type": "A100D-20C"}]
    world.made({"gpu": GPU, "vgpus": two, "mixed": True}, {"parent": "mtty", "vgpus": [{"type": "mtty-1"}]})
    before, text = world.all_vgpus(), (world.state_dir / "vgpus.json").read_text()
    world.tree.reboot()
    assert world.all_vgpus() == []
    said, wrong = boot(world)
    assert wrong == []
    assert world.all_vgpus() == before
    assert (world.tree.device(VFS[0]) / "nvidia/vgpu_params").read_text() == "enable_uvm=1\n"
    assert said[0] == f"vGPUs: {GPU}: virtual functions on (sriov-manage -e)"
    assert boot(world) == (["vGPUs: as they were kept, nothing to do"], [])
    assert (world.state_dir / "vgpus.json").read_text() == text


def test_what_was_begun_when_the_host_died_is_completed(world: World) -> None:
    world.gpu()
    world.switch_on("701")
    world.environment(KERNEL_KILL="after 1")
    assert world.tree.dies(lambda: world.run({"gpu": GPU, "vgpus": [{"type": "A100D-40C"}]}))
    world.environment()
    world.tree.reboot()
    assert boot(world)[1] == []
    assert (world.vendor(), world.journal()) == ({VFS[0]: "A100D-40C"}, "closed")


def test_another_card_at_that_address_gets_nothing_and_others_get_theirs(world: World) -> None:
    world.gpu()
    world.mtty()
    world.made({"gpu": GPU, "vgpus": [{"type": "A100D-40C"}]}, {"parent": "mtty", "vgpus": [{"type": "mtty-1"}]})
    world.tree.reboot()
    (world.tree.device(GPU) / "device").write_text("0x2331\n")
    _said, wrong = boot(world)
    assert len(wrong) == 1
    assert f"{GPU} could not be brought back: another card is at this address now: device 0x20b5 was, device 0x2331 is" in wrong[0]
    assert (world.vendor(), list(world.mdevs().values())) == ({}, ["mtty-1"])


def test_a_card_of_another_maker_gets_its_functions_and_vgpus_again(world: World) -> None:
    """While its functions are off, nothing tells that it is one: no boot leaves them on."""
    world.gpu()
    for name, text in {"vendor": "0x8086", "device": "0x10c9", "class": "0x020000"}.items():
        (world.tree.device(GPU) / name).write_text(f"{text}\n")
    world.switch_on()
    world.made({"gpu": GPU, "vgpus": [{"type": "A100D-40C", "count": 2}]})
    before = world.vendor()
    world.tree.reboot()
    assert boot(world)[1] == []
    assert world.vendor() == before != {}


def test_vgpus_that_somebody_made_are_left_alone(world: World) -> None:
    world.mtty()
    world.made({"parent": "mtty", "vgpus": [{"type": "mtty-1"}]})
    world.tree.reboot()
    world.give("mtty-2")
    _said, wrong = boot(world)
    assert "it has other vGPUs than those remembered (remove mtty-2 on mtty would be needed), so it is left alone" in wrong[0]
    assert list(world.mdevs().values()) == ["mtty-2"]


def test_a_parent_that_is_not_there_is_named(world: World) -> None:
    world.mtty()
    world.made({"parent": "mtty", "vgpus": [{"type": "mtty-1"}]})
    (world.tree.sys / "class/mdev_bus/mtty").unlink()
    assert "mtty could not be brought back: gpus: there is no GPU and no parent of mediated devices mtty" in boot(world)[1][0]


def test_the_agents_verb_says_what_is_wrong_and_fails(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.where / "agent.json"
    path.write_text(json.dumps({"format": 1, **config(world).plain()}))
    assert agent.main(["vgpus", "--config", str(path)]) == 0
    world.state_dir.mkdir(exist_ok=True)
    (world.state_dir / "vgpus.json").write_text('{"format": 2, "gpus": {}}')
    assert agent.main(["vgpus", "--config", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == "no vGPUs are kept for this host, so none are made\n"
    assert said.err.startswith("vGPUs: what was remembered of the vGPUs is of no use (")
    assert "it has format 2 and this release knows format 1" in said.err
