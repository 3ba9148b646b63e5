# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One A100 goes through the modes: what playbook mode tells the modules, and every change of state that comes of it, to the letter.

The kernel is a tree of files, NVML the simulator; a GPU that the kernel takes from NVIDIA's driver is gone from NVML.
"""

from __future__ import annotations

import os
import sys
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action.mode_wish import run as wish
from ansible_collections.gpuops.fleet.plugins.plugin_utils import mode
from kernel import follow
from kernel.tree import Tree

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")
VGPUS = {"mode": "vgpu", "vgpus": [{"type": "A100D-10C", "count": 2}]}
VGPU_BIN = Path(follow.__file__).resolve().parent / "vgpu_bin"


class Card:
    """A host with one A100."""

    def __init__(self, where: Path, simulator: Path, made: MakeHost, run_module: RunModule, patch: pytest.MonkeyPatch) -> None:
        self.where, self.run, self.simulator = where, run_module, simulator
        self.host = made("a100-80gb")
        (shown,) = self.host.simctl("show", "--json")["gpus"]
        self.pci, self.uuid = shown["pci"], shown["uuid"]
        self.tree = Tree(where / "host", loaded=("pcieport", "nvidia", "vfio-pci"))
        vgpu = {"framework": "vendor", "types": {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}, "room": 80}
        self.tree.gpu(self.pci, uuid=self.uuid, vgpu=vgpu, vfs=12, vf_device="20b5", stride=(4, 1), vf_group=100)
        (where / "bin").mkdir()
        follow.script(where / "bin", self.pci)
        for name, value in self.tree.environment().items():
            patch.setenv(name, value)
        patch.setenv("PATH", os.pathsep.join([str(where / "bin"), str(VGPU_BIN), os.environ["PATH"]]))
        patch.setenv("LD_LIBRARY_PATH", str(simulator))
        self.paths = {"state_dir": str(where / "state"), "sys_root": str(self.tree.sys), "proc_root": str(self.tree.proc)}

    def facts(self) -> dict[str, t.Any]:
        arguments = {**self.paths, "docker_socket": "", "services_dir": str(self.where), "cdi_dirs": []}
        return t.cast("dict[str, t.Any]", self.run("gpu_info", arguments)["facts"])

    def wished(self, layout: dict[str, t.Any]) -> dict[str, t.Any]:
        policy = {"fleet_environment": "production", "fleet_gpu_layouts": [{"gpu": self.uuid, **layout}]}
        hosts = {"h1": {"facts": self.facts(), "policy": policy, "plan": None}}
        arguments = {"hosts": hosts, "gpu": self.pci, "mode": None, "with": {}, "inventory": str(self.where), "write_inventory": False}
        return t.cast("dict[str, t.Any]", wish(arguments, check_mode=True, diff=False)["wishes"]["h1"])

    def switch(self, wished: dict[str, t.Any], check: bool = False) -> list[str]:
        """What tasks/mode/switch.yml does; the steps."""
        work = wished["work"]
        vfio = {"docker_socket": "", "udev_rules": str(self.where / "rules.d" / "70-p.rules"), "deadline": 120}
        vgpu = {"sriov_manage": "sriov-manage", "machine_id": str(self.where / "machine-id"), "libvirt_dir": str(self.where / "no")}
        cut = {"reset": True, "docker_socket": "", "nvidia_smi": str(self.simulator / "bin" / "nvidia-smi")}
        calls: list[tuple[str, dict[str, t.Any]]] = [
            ("vgpu", {**vgpu, "gpus": work["vgpus_off"]}),
            ("passthrough", {**vfio, "devices": work["back"], "companions": True}),
            ("mig", {**cut, "layout": work["mig_known" if check else "mig"]}),
            ("passthrough", {**vfio, "devices": work["away"], "cleared": True}),
            ("vgpu", {**vgpu, "gpus": work["vgpus"], "cleared": True}),
        ]
        steps: list[str] = []
        for name, arguments in calls:
            if arguments.get("gpus") or arguments.get("devices") or arguments.get("layout"):
                result = self.run(name, {**self.paths, **arguments}, check=check)
                assert not result["failed"], result
                steps += result["steps"]
        return steps

    def log(self) -> list[str]:
        """Every change so far: of NVML's state, then every write to the kernel."""
        calls = [one for one in self.host.calls(mutations=True) if one["call"] not in follow.CALLS]
        named = [" ".join([one["call"], *(str(one["args"][key]) for key in ("mode",) if key in one["args"])]) for one in calls]
        return [*named, *(line.rstrip() for line in self.tree.writes())]

    def become(self, layout: dict[str, t.Any]) -> list[str]:
        """What check mode promises is what is done; facts say that it is so; once more changes nothing. The changes."""
        wished = self.wished(layout)
        known = {line["gpu"] for line in wished["work"]["mig_known"]}
        before = self.log()
        promised = self.switch(wished, check=True)
        assert self.log() == before
        calls, writes = len(before) - len(self.tree.writes()), len(self.tree.writes())
        done = self.switch(wished)
        if known == {line["gpu"] for line in wished["work"]["mig"]}:
            assert done == promised
        assert mode.problems(self.facts(), [mode.target(one) for one in wished["targets"]]) == []
        changes = self.log()
        assert self.switch(self.wished(layout)) == []
        assert self.log() == changes
        named = len(changes) - len(self.tree.writes())
        return [*changes[calls:named], *changes[named:][writes:]]


@pytest.fixture
def card(tmp_path: Path, simulator: Path, fleet_host: MakeHost, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(tmp_path, simulator, fleet_host, run_module, monkeypatch)


def test_whole_mig_passthrough_vgpu_whole_with_no_change_too_many(card: Card) -> None:
    pci, vfs = card.pci, [f"{card.pci[:-1]}{number}" for number in (4, 5)]
    assert card.become({"mode": "mig"}) == ["nvmlDeviceSetMigMode 1", "nvidia-smi.reset"]
    assert card.become({"mode": "passthrough"}) == [
        "nvmlDeviceSetMigMode 0",
        "nvidia-smi.reset",
        f"bus/pci/devices/{pci}/driver_override vfio-pci",
        f"bus/pci/drivers/nvidia/unbind {pci}",
        f"bus/pci/drivers_probe {pci}",
    ]
    assert card.become(VGPUS) == [
        f"bus/pci/devices/{pci}/driver_override",
        f"bus/pci/drivers/vfio-pci/unbind {pci}",
        f"bus/pci/drivers_probe {pci}",
        f"sriov-manage -e {pci}",
        *(f"bus/pci/devices/{name}/nvidia/current_vgpu_type 700" for name in vfs),
    ]
    assert card.become({"mode": "whole"}) == [
        *(f"bus/pci/devices/{name}/nvidia/current_vgpu_type 0" for name in reversed(vfs)),
        f"sriov-manage -d {pci}",
    ]


def test_straight_from_slices_to_vgpus_and_from_vgpus_to_a_guest(card: Card) -> None:
    card.become({"mode": "mig"})
    cut = {"layout": [{"gpu": card.uuid, "instances": [{"profile": "1g.10gb", "start": 0}]}], "docker_socket": ""}
    assert not card.run("mig", {**card.paths, **cut})["failed"]
    assert [change for change in card.become(VGPUS) if change.startswith("nv")][-2:] == ["nvmlDeviceSetMigMode 0", "nvidia-smi.reset"]
    changes = card.become({"mode": "passthrough"})
    assert changes[-3:] == [
        f"bus/pci/devices/{card.pci}/driver_override vfio-pci",
        f"bus/pci/drivers/nvidia/unbind {card.pci}",
        f"bus/pci/drivers_probe {card.pci}",
    ]
    assert f"sriov-manage -d {card.pci}" in changes


def test_a_card_whose_guest_left_mig_on_comes_back_whole(card: Card) -> None:
    card.become({"mode": "passthrough"})
    wished = card.wished({"mode": "whole"})
    assert [wished["work"]["mig"], wished["work"]["mig_known"]] == [[{"gpu": card.pci, "mig": False}], []]
    card.host.simctl("set", "--gpu", card.uuid, "mig", "on")
    assert "nvmlDeviceSetMigMode 0" in card.become({"mode": "whole"})


def test_what_stands_in_the_way_of_the_last_step_is_said_before_the_first(card: Card) -> None:
    """A companion of the card's IOMMU group that stays with its driver; the card is in MIG mode still."""
    card.become({"mode": "mig"})
    card.tree.add("0000:00:1f.3", ("8086", "2930", "1af4", "1100"), "040300", group=20, driver="snd_hda_intel")
    before = card.log()
    work = card.wished({"mode": "passthrough"})["work"]
    arguments = {**card.paths, "docker_socket": "", "devices": work["away"], "cleared": True}
    refused = card.run("passthrough", arguments, check=True)
    assert "shares IOMMU group 20 with 0000:00:1f.3 (snd_hda_intel)" in refused["msg"]
    assert card.log() == before
