# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook mode on one host with two A100: whole, mig, passthrough, vgpu, whole, with two services on it.

The kernel is a tree of files (tests/unit/kernel), NVML the simulator, the engine a stand-in; a GPU that the kernel takes from NVIDIA's
driver is gone from NVML. What changes is read from the log of NVML calls and from that of writes to the kernel.
"""

from __future__ import annotations

import json
import shutil
import sys
import typing as t
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from compose_world import World, compose_world
from fleet_site import REPOSITORY

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played, Site

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")]
HOST = "host-a"
KERNEL = REPOSITORY / "tests" / "unit" / "kernel"
TYPES = {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}
VGPUS = '{"vgpus": [{"type": "A100D-10C", "count": 2}]}'
ROLLOUT = {"settle": 0, "timeout": 5, "drain": 0}


class Fleet:
    """The host; ``first`` is the GPU whose mode changes."""

    def __init__(self, site: Site, world: World, tree: t.Any, gpus: list[dict[str, t.Any]], own: tuple[str, ...]) -> None:
        self.site, self.world, self.tree, self.own = site, world, tree, own
        self.first, self.second = gpus

    def mode(self, mode: str, *options: str) -> Played:
        return self.site.play("mode", "-e", f"gpu={self.first['uuid']}", "-e", f"mode={mode}", *options)

    def done(self, mode: str, *options: str) -> list[str]:
        """Do it; every change of NVML's state and every write to the kernel that this took, each log in its order."""
        calls, writes = len(self.calls()), len(self.tree.writes())
        done = self.mode(mode, "-e", "mode_inventory=true", *options)
        assert done.status == 0, done.output
        return [*self.calls()[calls:], *(line.rstrip() for line in self.tree.writes()[writes:])]

    def everything(self) -> tuple[t.Any, ...]:
        return self.site.files(), self.calls(), self.tree.writes(), sorted(self.world.running()), self.inventory()

    def inventory(self) -> str:
        return (self.site.inventory / "host_vars" / f"{HOST}.yml").read_text(encoding="utf-8")

    def calls(self) -> list[str]:
        """Every NVML call so far that changed something; what the kernel does to the driver is in its own log."""
        known = {self.first["uuid"]: "first", self.second["uuid"]: "second"}
        found = []
        for one in self.site.mutations()[HOST]:
            if one["call"] not in self.own:
                gpu = known.get(one["args"].get("gpu"), "")
                more = [str(one["args"][key]) for key in ("mode", "start") if key in one["args"]]
                found.append(" ".join([one["call"].removeprefix("nvml"), gpu, *more]).strip())
        return found

    def where(self) -> dict[str, str]:
        """Replica -> GPU or slice, by the plan; what runs is the same."""
        names = {self.first["uuid"]: "first", self.second["uuid"]: "second"}
        lines = self.site.plan(HOST)["services"]
        on = {f"{line['service']}-{line['replica']}": [*line.get("gpus", ()), line.get("gpu")][0] for line in lines}
        parts = {f"{line['service']}-{line['replica']}": line.get("profile", "whole") for line in lines}
        places = {name: f"{names[gpu]} {parts[name]}" for name, gpu in on.items()}
        assert sorted(self.world.running()) == sorted(places)
        return places


@pytest.fixture(scope="module")
def fleet(make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Both services are deployed: one has the first GPU whole, one a slice of the second. Tests go on from what the one before left."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.syspath_prepend(str(REPOSITORY / "tests" / "unit"))
        from kernel import follow
        from kernel.tree import Tree

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
        programs(home, folder, tree.root)
        follow.script(home / "programs", *(gpu["pci"] for gpu in gpus))
        site.variables(
            HOST,
            fleet_gpu_layouts=[{"gpu": gpus[0]["uuid"], "mode": "whole"}],
            fleet_gpu_access="nvidia",
            fleet_moves=0,  # what is asked here is what becomes of those who are on the GPU
            fleet_host_agent=False,
            fleet_driver_services=[],
            fleet_sys_root=str(tree.sys),
            fleet_proc_root=str(tree.proc),
            fleet_sriov_manage="sriov-manage",
            fleet_passthrough_rules=str(home / "rules.d" / "70-passthrough.rules"),
        )
        site.manifest("llm", gpu={"isolation": "exclusive", "memory": "60 GiB"}, rollout=ROLLOUT)
        site.manifest("ocr", rollout=ROLLOUT)
        made = Fleet(site, world, tree, gpus, follow.CALLS)
        site.done("deploy")
        yield made


def programs(home: Path, folder: Path, root: Path) -> None:
    """What the modules of the host call, before all others in their path."""
    place = home / "programs"
    place.mkdir()
    kernel = f"{sys.executable} -E -S {KERNEL / 'programs.py'}"
    scripts = {
        "docker": f'exec {folder / "docker-bin" / "docker"} "$@"',
        "modprobe": f'exec {kernel} modprobe "$@"',
        "sriov-manage": f'exec {kernel} sriov-manage "$@"',
    }
    for name, line in scripts.items():
        (place / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (place / name).chmod(0o755)
    wrapper = home / "bin" / "python"
    text = wrapper.read_text(encoding="utf-8").replace(" PATH='", f" KERNEL_TREE='{root}' PATH='{place}':'")
    wrapper.write_text(text, encoding="utf-8")


def test_whoever_would_lose_its_place_is_named_and_nothing_is_touched(fleet: Fleet) -> None:
    assert fleet.where() == {"llm-1": "first whole", "ocr-1": "second 1g.10gb"}
    before = fleet.everything()
    asked = fleet.mode("mig")
    assert asked.message().startswith(
        f"host {HOST}: fleet_gpu_layouts gives GPU {fleet.first['pci']} mode whole, and mode mig is asked for; "
    )
    stuck = fleet.mode("mig", "-e", "mode_inventory=true")
    assert stuck.message().startswith("llm-1 has no place any more: its place, whole on host-a")
    assert fleet.everything() == before


def test_check_mode_shows_all_of_it_and_changes_nothing(fleet: Fleet) -> None:
    before = fleet.everything()
    promised = fleet.mode("mig", "--check", "-e", "mode_inventory=true", "-e", "mode_outage=true")
    gpu, pci = fleet.first["uuid"], fleet.first["pci"]
    assert promised.status == 0, promised.output
    assert "whole  llm-1" in promised.output, "who is on it"
    assert [line for line in promised.said() if line.startswith(HOST)] == [
        f"{HOST}: {pci} from whole to mig",
        f"{HOST}: drain {gpu}",
        f"{HOST}: llm-1 is stopped",
        f"{HOST}: {gpu}: switch MIG on",
        f"{HOST}: {gpu}: reset the GPU at {pci} (nvidia-smi -r)",
        f"{HOST}: see that it is so, deploy",
        f"{HOST}: llm-1 has no place any more",
    ]
    assert promised.changed() == [("Promise it", HOST), ("Write the inventory", HOST)]
    assert fleet.everything() == before


def test_from_whole_to_mig_to_passthrough_to_vgpu_to_whole_with_the_fewest_changes(fleet: Fleet) -> None:
    pci = fleet.first["pci"]
    assert fleet.done("mig", "-e", "mode_outage=true") == ["DeviceSetMigMode first 1", "nvidia-smi.reset"]
    assert fleet.where() == {"ocr-1": "second 1g.10gb"}, "whoever needs a whole GPU finds none"

    assert fleet.done("passthrough") == [
        "DeviceSetMigMode first 0",
        "nvidia-smi.reset",
        f"bus/pci/devices/{pci}/driver_override vfio-pci",
        f"bus/pci/drivers/nvidia/unbind {pci}",
        f"bus/pci/drivers_probe {pci}",
    ]
    assert fleet.tree.driver(pci) == "vfio-pci"
    assert fleet.where() == {"ocr-1": "second 1g.10gb"}

    vfs = [f"{pci[:-1]}{number}" for number in (4, 5)]
    assert fleet.done("vgpu", "-e", f'{{"mode_with": {VGPUS}}}') == [
        f"bus/pci/devices/{pci}/driver_override",
        f"bus/pci/drivers/vfio-pci/unbind {pci}",
        f"bus/pci/drivers_probe {pci}",
        f"sriov-manage -e {pci}",
        *(f"bus/pci/devices/{name}/nvidia/current_vgpu_type 700" for name in vfs),
    ]
    assert fleet.where() == {"ocr-1": "second 1g.10gb"}

    assert fleet.done("whole") == [
        *(f"bus/pci/devices/{name}/nvidia/current_vgpu_type 0" for name in reversed(vfs)),
        f"sriov-manage -d {pci}",
    ]
    assert fleet.where() == {"llm-1": "first whole", "ocr-1": "second 1g.10gb"}, "both are where they began"


def test_a_second_run_has_nothing_to_do(fleet: Fleet) -> None:
    before = fleet.everything()
    again = fleet.mode("whole")
    assert (again.status, again.changed()) == (0, []), again.output
    assert again.said() == [f"{HOST}: its GPUs are in these modes already: passed over"]
    assert fleet.everything() == before
