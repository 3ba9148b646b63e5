# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose kernel is a tree of files (package kernel), and module ``vgpu`` on it, for the tests of both."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from kernel import acts, vgpu_acts
from kernel.tree import Tree

if t.TYPE_CHECKING:
    from conftest import RunModule

GPU = "0000:3b:00.0"
UUID = "GPU-00000000-0000-4000-8000-000000000000"
VFS = [f"0000:3b:00.{number}" for number in range(4, 8)] + [f"0000:3b:01.{number}" for number in range(8)]
TYPES = {
    "699": {"name": "NVIDIA A100D-8C", "cost": 10},
    "700": {"name": "NVIDIA A100D-10C", "cost": 10},
    "701": {"name": "NVIDIA A100D-20C", "cost": 20},
    "702": {"name": "NVIDIA A100D-40C", "cost": 40},
    "703": {"name": "NVIDIA A100D-80C", "cost": 80},
}
PROGRAMS = Path(__file__).resolve().parent / "kernel" / "vgpu_bin"


class World:
    """One host and the module on it."""

    def __init__(self, where: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
        self.where, self._run, self._patch = where, run_module, monkeypatch
        self.tree = Tree(where / "host", loaded=("pcieport", "nvidia"))
        for name, value in self.tree.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
        (where / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        self.state_dir = where / "state"

    def gpu(self, framework: str = "vendor", address: str = GPU, minor: int = 0, **more: t.Any) -> str:
        """An A100 with 80 GB whose virtual functions are off."""
        vgpu = {"framework": framework, "types": more.pop("types", TYPES), "room": more.pop("room", 80)}
        settings = {"minor": minor, "vfs": 12, "vf_device": "20b5", "stride": (4, 1), "vf_group": 100 + 20 * minor}
        return self.tree.gpu(address, vgpu=vgpu, **settings, **more)

    def switch_on(self, *types: str) -> None:
        """Virtual functions on, without a program, and the first of them with these types by number."""
        acts.make_vfs(self.tree.root, self.tree.device(GPU).resolve(), 12)
        for name, ident in zip(VFS, types):  # noqa: B905 # the others have none
            vgpu_acts.set_type(self.tree.root, self.tree.device(name) / "nvidia/current_vgpu_type", ident)

    def give(self, *types: str) -> None:
        """Mediated devices of the sample driver, by the directory of their type."""
        for number, ident in enumerate(types):
            file = self.tree.sys / "class/mdev_bus/mtty/mdev_supported_types" / ident / "create"
            vgpu_acts.create(self.tree.root, file, f"00000000-0000-4000-8000-{number:012}")

    def journal(self) -> str:
        """Whether the journal is open or closed."""
        return str(json.loads((self.state_dir / "vgpu-journal.json").read_text())["state"])

    def mtty(self) -> None:
        """The kernel's sample driver."""
        vgpu_acts.mtty(self.tree.root)

    def environment(self, **variables: str) -> None:
        """What concerns the next writes."""
        for name in ("KERNEL_FAIL", "KERNEL_HANG", "KERNEL_KILL"):
            self._patch.delenv(name, raising=False)
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def arguments(self, *gpus: t.Any, **more: t.Any) -> dict[str, t.Any]:
        """The module's arguments."""
        return {
            "gpus": list(gpus),
            "sys_root": str(self.tree.sys),
            "proc_root": str(self.tree.proc),
            "state_dir": str(self.state_dir),
            "machine_id": str(self.where / "machine-id"),
            "libvirt_dir": str(self.where / "libvirt"),
            "sriov_manage": "sriov-manage",
            "deadline": 120,
            **more,
        }

    def run(self, *gpus: t.Any, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """The module once; its result."""
        return self._run("vgpu", self.arguments(*gpus, **more), check=check, diff=True)

    def made(self, *gpus: t.Any, **more: t.Any) -> None:
        """The module once, as what a test begins with."""
        result = self.run(*gpus, **more)
        assert not result["failed"], result

    def info(self, *gpus: str) -> list[dict[str, t.Any]]:
        """What module vgpu_info tells."""
        arguments = self.arguments()
        for name in ("sriov_manage", "deadline"):
            del arguments[name]
        result = self._run("vgpu_info", {**arguments, "gpus": list(gpus)})
        assert not result["failed"], result
        return list(result["gpus"])

    def module(self, name: str, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """Another module once; its result."""
        return self._run(name, arguments)

    def done(self, *gpus: t.Any, **more: t.Any) -> list[str]:
        """Run for real, prove that check mode said the same before and that a second run writes nothing; the steps."""
        predicted = self.run(*gpus, check=True, **more)
        assert not predicted["failed"], predicted
        before = self.tree.writes()
        result = self.run(*gpus, **more)
        assert not result["failed"], result
        for key in ("changed", "steps", "diff"):
            assert predicted[key] == result[key], key
        assert result["changed"] is bool(result["steps"])
        assert (len(self.tree.writes()) > len(before)) is result["changed"]
        after = self.tree.writes()
        again = self.run(*gpus, **more)
        assert (again["failed"], again["changed"], again["steps"]) == (False, False, [])
        assert self.tree.writes() == after
        return list(result["steps"])

    def refused(self, *gpus: t.Any, **more: t.Any) -> str:
        """The message, the same in check mode; nothing was written."""
        before = self.tree.writes()
        predicted = self.run(*gpus, check=True, **more)
        result = self.run(*gpus, **more)
        assert (predicted["failed"], result["failed"]) == (True, True), (predicted, result)
        assert predicted["msg"] == result["msg"]
        assert self.tree.writes() == before
        return str(result["msg"])

    # What the kernel has

    def mdevs(self, parent: str = "mtty") -> dict[str, str]:
        """Mediated devices of a parent: UUID -> directory of the type."""
        links = sorted((self.tree.sys / "bus/mdev/devices").iterdir())
        here = [link.resolve() for link in links if link.resolve().parent.name == parent]
        return {one.name: (one / "mdev_type").resolve().name for one in here}

    def vendor(self) -> dict[str, str]:
        """Virtual functions that have a type: address -> name."""
        found = {}
        for link in sorted((self.tree.sys / "bus/pci/devices").iterdir()):
            file = link / "nvidia/current_vgpu_type"
            if file.exists() and file.read_text().strip() != "0":
                types = self.tree.hidden["devices"][(link / "physfn").resolve().name]["vgpu"]["types"]
                found[link.name] = types[file.read_text().strip()]["name"].removeprefix("NVIDIA ")
        return found

    def all_vgpus(self) -> list[tuple[str, str]]:
        """Everything that is there, in whatever framework."""
        links = (self.tree.sys / "bus/mdev/devices").iterdir()
        mediated = [(f"{one.resolve().parent.name}/{one.name}", (one / "mdev_type").resolve().name) for one in links]
        return sorted([*mediated, *self.vendor().items()])

    def hold(self, pid: int, group: str, guest: str | None = None) -> None:
        """A process of QEMU has a VFIO group open."""
        self.tree.hold(pid, f"/dev/vfio/{group}", name="qemu-system-x86")
        if guest:
            (self.tree.proc / str(pid) / "cmdline").write_bytes(f"qemu-system-x86_64\0-name\0guest={guest},debug-threads=on\0".encode())

    def group(self, name: str) -> str:
        """The IOMMU group of a mediated device or a function."""
        for directory in ("bus/mdev/devices", "bus/pci/devices"):
            link = self.tree.sys / directory / name / "iommu_group"
            if link.exists():
                return os.path.basename(os.readlink(link))
        raise AssertionError(name)


@pytest.fixture
def world(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> World:
    """An empty host."""
    return World(tmp_path, run_module, monkeypatch)
