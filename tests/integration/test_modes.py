# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook mode on one host with two A100: whole, mig, passthrough, vgpu, whole, with two services on it.

The kernel is a tree of files (tests/unit/kernel), NVML the simulator, the engine a stand-in; a GPU that the kernel takes from NVIDIA's
driver is gone from NVML. What changes is read from the log of NVML calls and from that of writes to the kernel.
"""

from __future__ import annotations

import os
import shutil
import sys
import typing as t
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from compose_world import World, compose_world
from fleet_site import REPOSITORY, SIMULATOR

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played, Site

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")]
HOST = "host-a"
KERNEL = REPOSITORY / "tests" / "unit" / "kernel"
TYPES = {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}
VGPUS = '{"vgpus": [{"type": "A100D-10C", "count": 2}]}'
ROLLOUT = {"settle": 0, "timeout": 5, "drain": 0}
# What the driver does when the kernel takes a GPU from it, or gives it back.
FOLLOW = """\
import os, sys
import pynvml
root = os.environ["KERNEL_TREE"]
pynvml.nvmlInit()
for address in sys.argv[1:]:
    domain, bus, rest = address.split(":")
    pci = pynvml.nvmlPciInfo_t()
    pci.domain, pci.bus, pci.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    link = os.path.join(root, "sys/bus/pci/devices", address, "driver")
    if os.path.islink(link) and os.readlink(link).endswith("/nvidia"):
        pynvml.nvmlDeviceDiscoverGpus(pci)
    else:
        try:
            pynvml.nvmlDeviceModifyDrainState(pci, 1)
            pynvml.nvmlDeviceRemoveGpu(pci)
        except pynvml.NVMLError_InvalidArgument:
            pass  # it is gone already
"""
BINDINGS = ("nvmlDeviceModifyDrainState", "nvmlDeviceRemoveGpu", "nvmlDeviceDiscoverGpus")


class Fleet:
    """The host; ``first`` is the GPU whose mode changes."""

    def __init__(self, site: Site, world: World, tree: t.Any, gpus: list[dict[str, t.Any]]) -> None:
        self.site, self.world, self.tree = site, world, tree
        self.first, self.second = gpus

    def mode(self, mode: str, *options: str) -> Played:
        return self.site.play("mode", "-e", f"gpu={self.first['uuid']}", "-e", f"mode={mode}", *options)

    def done(self, mode: str, *options: str) -> Played:
        """Check mode says so before and changes nothing; then it is done; a second run has nothing to do."""
        before = self.everything()
        promised = self.mode(mode, "--check", *options)
        assert promised.status == 0, promised.output
        assert self.everything() == before
        done = self.mode(mode, *options)
        assert done.status == 0, done.output
        return done

    def everything(self) -> tuple[t.Any, ...]:
        return self.site.files(), self.changes(), sorted(self.world.running()), self.inventory()

    def inventory(self) -> str:
        return (self.site.inventory / "host_vars" / f"{HOST}.yml").read_text(encoding="utf-8")

    def changes(self) -> list[str]:
        """Every change of NVML's state and every write to the kernel so far, each log in its order."""
        calls = [each for each in self.site.mutations()[HOST] if each["call"] not in BINDINGS]
        return [f"{each['call']} {each}" for each in calls] + self.tree.writes()


@pytest.fixture(scope="module")
def fleet(make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both services are deployed: one has the first GPU whole, one a slice of the second. Tests go on from what the one before left."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.syspath_prepend(str(REPOSITORY / "tests" / "unit"))
        from kernel.tree import Tree

        import json

        site = make_site(host_a="a100-80gb:2")
        home, folder = site.work / HOST, tmp_path_factory.mktemp(HOST)
        tree = Tree(folder / "kernel", loaded=("pcieport", "nvidia", "vfio-pci"))
        for part in ("proc", "sys"):
            shutil.copytree(home / part, tree.root / part, dirs_exist_ok=True, symlinks=True)
        gpus = json.loads(site.simctl(HOST, "show", "--json"))["gpus"]
        for number, gpu in enumerate(gpus):
            vgpu = {"framework": "vendor", "types": TYPES, "room": 80}
            vfs = {"vfs": 12, "vf_device": "20b5", "stride": (4, 1), "vf_group": 100 + 20 * number}
            tree.gpu(gpu["pci"], minor=number, uuid=gpu["uuid"], vgpu=vgpu, **vfs)
        world = stack.enter_context(compose_world(folder, home / "docker.sock"))
        programs(home, folder, tree.root, [gpu["pci"] for gpu in gpus])
        site.variables(
            HOST,
            fleet_gpu_layouts=[{"gpu": gpus[0]["uuid"], "mode": "whole"}],
            fleet_gpu_access="nvidia",
            fleet_host_agent=False,
            fleet_driver_services=[],
            fleet_sys_root=str(tree.sys),
            fleet_proc_root=str(tree.proc),
            fleet_sriov_manage="sriov-manage",
            fleet_passthrough_rules=str(home / "rules.d" / "70-passthrough.rules"),
        )
        site.manifest("llm", gpu={"isolation": "exclusive", "memory": "60 GiB"}, rollout=ROLLOUT)
        site.manifest("ocr", rollout=ROLLOUT)
        made = Fleet(site, world, tree, gpus)
        site.done("deploy")
        yield made


def programs(home: Path, folder: Path, root: Path, gpus: list[str]) -> None:
    """What the modules of the host call, before all others in their path."""
    place = home / "programs"
    place.mkdir()
    (place / "follow.py").write_text(FOLLOW, encoding="utf-8")
    follow = f"{sys.executable} {place / 'follow.py'} {' '.join(gpus)}"
    kernel = f"{sys.executable} -E -S {KERNEL / 'programs.py'}"
    scripts = {
        "docker": f'exec {folder / "docker-bin" / "docker"} "$@"',
        "modprobe": f'exec {kernel} modprobe "$@"',
        "sriov-manage": f'exec {kernel} sriov-manage "$@"',
        "tee": f'{kernel} tee "$@" || exit $?\ncase "$1" in */unbind | */drivers_probe) {follow} ;; esac',
    }
    for name, line in scripts.items():
        (place / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (place / name).chmod(0o755)
    wrapper = home / "bin" / "python"
    text = wrapper.read_text(encoding="utf-8").replace(" PATH='", f" KERNEL_TREE='{root}' PATH='{place}':'")
    wrapper.write_text(text, encoding="utf-8")


