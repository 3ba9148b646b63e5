# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with devices that virtual machines could have, its kernel a tree of files, and module ``passthrough`` on it."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import passthrough_boot
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_look import Options
from kernel.tree import AUDIO, ETHERNET, NVME, SATA, Tree

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule

DISK, SOUND, CONTROLLER, BUS, CARD = "0000:02:00.0", "0000:00:1f.0", "0000:00:1f.2", "0000:00:1f.3", "0000:04:00.0"
PATIENCE = 90  # seconds: a stand-in takes as long as a machine with much to do lets it


class World:
    """A host with two A100 (when there is a simulator), a disk, a network card with virtual functions, and a group of three devices."""

    def __init__(self, where: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, host: FleetHost | None = None) -> None:
        self.where, self._run, self.host = where, run_module, host
        self.state_dir, self.rules = where / "state", where / "rules.d" / "70-passthrough.rules"
        self.tree = Tree(where / "host")
        self.tree.bridge("0000:00:1c.0", group=5)
        self.tree.add(DISK, ("1b36", "0010", "1af4", "1100"), NVME, group=14, driver="nvme", serial="00000000000000d1")
        self.tree.add(CARD, ("8086", "10c9", "8086", "a03c"), ETHERNET, group=15, driver="igb", vfs=7, vf_device="10ca")
        self.tree.add(CONTROLLER, ("8086", "2922", "1af4", "1100"), SATA, group=8, driver="ahci", reset="")
        self.tree.add(SOUND, ("8086", "2918", "1af4", "1100"), "060100", group=8, reset="")
        self.tree.add(BUS, ("8086", "2930", "1af4", "1100"), AUDIO, group=8, reset="")
        self.gpus: list[str] = []
        self.uuids: list[str] = []
        for gpu in [] if host is None else host.simctl("show", "--json")["gpus"]:
            self.tree.gpu(gpu["pci"], minor=gpu["minor"] if "minor" in gpu else len(self.gpus), uuid=gpu["uuid"])
            self.gpus.append(gpu["pci"])
            self.uuids.append(gpu["uuid"])
        self.tree.hold(1, name="systemd")
        for name, value in self.tree.environment(os.environ["PATH"]).items():
            monkeypatch.setenv(name, value)
        self.monkeypatch = monkeypatch

    def args(self, *devices: tuple[str, str], **more: t.Any) -> dict[str, t.Any]:
        """The module's arguments."""
        return {
            "devices": [{"device": device, "state": state} for device, state in devices],
            "state_dir": str(self.state_dir),
            "sys_root": str(self.tree.sys),
            "proc_root": str(self.tree.proc),
            "udev_rules": str(self.rules),
            "docker_socket": "",
            "deadline": PATIENCE,
            **more,
        }

    def run(self, *devices: tuple[str, str], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Run the module once; its result."""
        return self._run("passthrough", self.args(*devices, **more), check=check, diff=True)

    def done(self, *devices: tuple[str, str], **more: t.Any) -> list[str]:
        """Run it for real, prove that check mode said the same before and that a second run changes nothing; the steps."""
        predicted = self.run(*devices, check=True, **more)
        assert not predicted["failed"], predicted
        before = self.everything()
        once_more = self.run(*devices, check=True, **more)
        assert _told(once_more) == _told(predicted), (once_more, predicted)
        assert self.everything() == before
        result = self.run(*devices, **more)
        assert not result["failed"], result
        if "(known after apply)" not in json.dumps(predicted):
            assert _told(predicted) == _told(result)
        assert result["changed"] is bool(result["steps"])
        before = self.everything()
        again = self.run(*devices, **more)
        assert (again["failed"], again["changed"], again["steps"]) == (False, False, [])
        assert again["diff"]["before"] == again["diff"]["after"] == result["diff"]["after"]
        assert self.everything() == before
        return list(result["steps"])

    def refused(self, *devices: tuple[str, str], **more: t.Any) -> str:
        """The message, the same in check mode; nothing is changed."""
        before = self.everything()
        predicted, result = self.run(*devices, check=True, **more), self.run(*devices, **more)
        assert predicted["failed"], predicted
        assert result["failed"], result
        assert predicted["msg"] == result["msg"]
        assert "\n" not in result["msg"]
        assert self.everything() == before
        return str(result["msg"])

    def everything(self) -> tuple[t.Any, ...]:
        """Devices, every write so far, what the host remembers, the rule, and changes through NVML."""
        papers = {path.name: path.read_text() for path in self.state_dir.glob("*.json")} if self.state_dir.exists() else {}
        mutations = self.host.calls(mutations=True) if self.host is not None else []
        return self.tree.state(), self.tree.writes(), papers, self.rule(), mutations

    def rule(self) -> str | None:
        """The udev rule's text."""
        return self.rules.read_text() if self.rules.exists() else None

    def record(self) -> dict[str, t.Any]:
        """What the host remembers, by address."""
        path = self.state_dir / "passthrough.json"
        return dict(json.loads(path.read_text())["devices"]) if path.exists() else {}

    def journal(self) -> str:
        """Open, closed or none."""
        path = self.state_dir / "passthrough-journal.json"
        return str(json.loads(path.read_text())["state"]) if path.exists() else "none"

    def persistence(self, number: int) -> bool:
        """Persistence mode of a GPU."""
        if self.host is None:
            raise LookupError("no simulator")
        return bool(self.host.simctl("show", "--json")["gpus"][number]["persistence"])

    def restore(self) -> passthrough_boot.Restored:
        """What the host agent does at a boot."""
        options = Options(self.state_dir, self.tree.sys, self.tree.proc, self.rules, docker_socket="", deadline=PATIENCE)
        return passthrough_boot.restore(options)

    def boot(self) -> None:
        """The host boots, with what udev does by our rule."""
        self.tree.reboot()
        if self.host is not None:
            self.host.simctl("reboot")


def _told(result: dict[str, t.Any]) -> dict[str, t.Any]:
    return {key: result[key] for key in ("changed", "steps", "diff", "devices", "notes")}


@pytest.fixture
def world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> World:
    """A host without GPUs."""
    return World(tmp_path, run_module, monkeypatch)


@pytest.fixture
def gpu_world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, fleet_host: MakeHost) -> World:
    """A host with two A100."""
    return World(tmp_path, run_module, monkeypatch, fleet_host("a100-80gb:2"))


@pytest.fixture
def flat_world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch, fleet_host: MakeHost) -> World:
    """A host with an L40S, which has no MIG."""
    return World(tmp_path, run_module, monkeypatch, fleet_host("l40s-48gb:1"))
