# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module mig and those whom no NVML list has: containers, running or not, and virtual machines."""

from __future__ import annotations

import os
import threading
import typing as t
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_world import Engine
from mig_world import A100, H100, World, process

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

ID = "0123456789ab" + "c" * 52
OCR = {"gpuops.service": "receipt-ocr", "com.docker.compose.project": "receipt-ocr-1", "com.docker.compose.service": "app"}


class Host(World):
    """A host with an engine."""

    engine: Engine

    def mig(self, *layout: t.Any, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Run the module once, with the engine's socket."""
        return super().mig(*layout, check=check, **{"docker_socket": self.engine.path, "proc_root": str(self.where / "proc"), **more})

    def uuid(self, start: int, gpu: int = 0) -> str:
        """MIG UUID of the slice that starts there."""
        return next(str(one["ci"][0]["uuid"]) for one in self.show()[gpu]["mig"]["instances"] if one["start"] == start)

    def container(self, state: str = "running", name: str = "receipt-ocr-1-app-1", identifier: str = ID, **detail: t.Any) -> None:
        """A container that is there, by default one of a service of this collection."""
        labels = detail.pop("labels", OCR)
        host = detail.pop("host", {})
        config = {"Image": "x", "Labels": labels, **detail}
        self.engine.containers[identifier] = {
            "Id": identifier,
            "Name": f"/{name}",
            "Config": config,
            "HostConfig": host,
            "State": {"Status": state},
        }


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def host(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, engine: Engine) -> Callable[..., Host]:
    def make(*boards: str) -> Host:
        made = Host(fleet_host(*boards), run_module, tmp_path)
        made.engine = engine
        (tmp_path / "proc").mkdir()
        return made

    return make


def cdi(*names: str) -> dict[str, t.Any]:
    return {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}" for name in names]}]}


def nvidia(*names: str) -> dict[str, t.Any]:
    return {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": list(names), "Capabilities": [["gpu"]]}]}


# Who holds what


@pytest.mark.parametrize("state", ["running", "exited", "created", "paused"])
def test_a_container_that_is_not_removed_holds_the_slice_that_it_asked_for(host: Callable[..., Host], state: str) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@4"))
    fleet.container(state, host=cdi(fleet.uuid(4)))
    how = "" if state == "running" else f", {state}"
    assert fleet.refused((gpu, "1g.10gb@0")).startswith(
        f"GPU {gpu} is in use: service receipt-ocr (container receipt-ocr-1-app-1{how}) on 1g.10gb@4; nothing was changed"
    )
    assert fleet.done((gpu, "1g.10gb@4", "2g.20gb@0")) == [
        f"{gpu}: destroy 1g.10gb at memory slice 0",
        f"{gpu}: create 2g.20gb at memory slice 0",
    ], "a slice that stays is in nobody's way"
    assert fleet.done((gpu, "1g.10gb", "2g.20gb")) == []


@pytest.mark.parametrize("way", ["cdi uuid", "cdi index", "ids uuid", "ids index", "environment", "all", "prefix"])
def test_a_slice_is_found_however_a_container_names_it(host: Callable[..., Host], way: str) -> None:
    fleet = host(f"{H100}:2")
    gpu = fleet.uuids[1]
    fleet.mig((fleet.uuids[0], "1g.10gb@0"), (gpu, "1g.10gb@0"))
    uuid = fleet.uuid(0, 1)
    runtime = {"Runtime": "nvidia"}
    asked: dict[str, dict[str, t.Any]] = {
        "cdi uuid": {"host": cdi(uuid)},
        "cdi index": {"host": cdi("1:0")},
        "ids uuid": {"host": nvidia(uuid)},
        "ids index": {"host": nvidia("1:0")},
        "environment": {"host": runtime, "Env": [f"NVIDIA_VISIBLE_DEVICES={uuid}"]},
        "all": {"host": {"DeviceRequests": [{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}]}},
        "prefix": {"host": nvidia(uuid[:14])},
    }
    fleet.container(**asked[way])
    assert f"GPU {gpu} is in use: service receipt-ocr (container receipt-ocr-1-app-1) on 1g.10gb@0;" in fleet.refused((gpu,))
    if way != "all":
        assert fleet.done((fleet.uuids[0],)) == [f"{fleet.uuids[0]}: destroy 1g.10gb at memory slice 0"]


@pytest.mark.parametrize("name", ["uuid", "0"])
def test_a_container_that_names_the_gpu_keeps_its_mode_and_its_slices_and_no_free_place(host: Callable[..., Host], name: str) -> None:
    fleet = host(f"{H100}:2")
    gpu = fleet.uuids[0]
    fleet.container(host=nvidia(gpu if name == "uuid" else name))
    assert "service receipt-ocr (container receipt-ocr-1-app-1) on the GPU itself" in fleet.refused((gpu, "1g.10gb"))
    fleet.engine.containers.clear()
    fleet.mig((gpu, "1g.10gb@0"))
    fleet.container(host=nvidia(gpu if name == "uuid" else name))
    assert "service receipt-ocr (container receipt-ocr-1-app-1) on 1g.10gb@0" in fleet.refused((gpu,))
    assert fleet.done((gpu, "1g.10gb", "1g.10gb")) == [f"{gpu}: create 1g.10gb at memory slice 1"]


def test_a_container_that_may_open_everything_asked_for_nothing(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    fleet.container(name="cadvisor", labels={}, host={"Privileged": True})
    assert fleet.done((gpu,)) == [f"{gpu}: destroy 1g.10gb at memory slice 0"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (OCR, "service receipt-ocr (container c1, processes 77, 78)"),
        ({"com.docker.compose.project": "shop"}, "compose project shop (container c1, processes 77, 78)"),
        ({}, "container c1 (processes 77, 78)"),
    ],
)
def test_processes_of_a_container_are_named_with_it(host: Callable[..., Host], labels: dict[str, str], words: str) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    for pid in (77, 78):
        process(fleet.where / "proc", pid, "python3", cgroup=f"0::/system.slice/docker-{ID}.scope")
        fleet.hold(0, "--gi", "7", "--ci", "0", pid=pid)
    fleet.container(name="c1", labels=labels, host=cdi(fleet.uuid(0)))
    assert fleet.refused((gpu,)).startswith(f"GPU {gpu} is in use: {words} on 1g.10gb@0; the layout has no 1g.10gb; nothing was changed")
    fleet.engine.containers.clear()
    lone = f"process 77 (python3) in container {ID[:12]}, process 78 (python3) in container {ID[:12]}"
    assert fleet.refused((gpu,)).startswith(f"GPU {gpu} is in use: {lone} on 1g.10gb@0;")


def test_the_reason_names_who_holds_the_only_place_and_what_would_work(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    fleet.container("exited", host=cdi(fleet.uuid(0)))
    words = fleet.refused((gpu, "4g.40gb", "1g.10gb"))
    assert "; 4g.40gb can only start at memory slice 0, which 1g.10gb of receipt-ocr holds; nothing was changed" in words
    assert words.endswith(
        "stop what uses it, or keep the slice in the layout; nearest layouts that leave it there: "
        "1g.10gb, or 1g.10gb + 3g.40gb, or 1g.10gb + 1g.20gb"
    )
    assert "; 3g.40gb is wished at memory slices 0 to 3, which 1g.10gb of receipt-ocr holds; nothing" in fleet.refused((gpu, "3g.40gb@0"))


def test_an_engine_that_does_not_answer_counts_as_one_that_holds_everything(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    dead = fleet.where / "dead.sock"
    dead.write_text("")
    words = fleet.refused((gpu,), docker_socket=str(dead))
    assert words.startswith(f"docker_socket: cannot see which containers hold a slice (Docker engine at {dead}: Connection refused);")
    assert words.endswith("; start the engine; where it is down for good and no container is left, write docker_socket: ''")
    assert fleet.done((gpu, "1g.10gb"), docker_socket=str(dead)) == [], "where nothing is to be done, nobody is asked"
    assert fleet.done((gpu,), docker_socket="") == [f"{gpu}: destroy 1g.10gb at memory slice 0"]


# Draining


def test_a_service_in_the_way_is_handed_back_and_nothing_is_changed(host: Callable[..., Host]) -> None:
    fleet = host(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0", "1g.10gb@1"), (two, "1g.10gb@0"))
    fleet.container(host=cdi(fleet.uuid(0), fleet.uuid(1)))
    fleet.hold(0, "--gi", "7", "--ci", "0", pid=77)
    process(fleet.where / "proc", 77, "python3", cgroup=f"0::/system.slice/docker-{ID}.scope")
    before, shown = fleet.mutations(), fleet.show()
    for check in (True, False):
        result = fleet.mig((one, "3g.40gb@0"), (two,), drain=True, check=check)
        assert (result["failed"], result["changed"], result["steps"], result["drain_needed"]) == (False, False, [], True)
        assert result["diff"]["before"] == result["diff"]["after"]
        assert result["drain"] == [
            {
                "service": "receipt-ocr",
                "name": "receipt-ocr-1",
                "container": "receipt-ocr-1-app-1",
                "pids": [77],
                "slices": [{"gpu": one, "profile": "1g.10gb", "start": 0}, {"gpu": one, "profile": "1g.10gb", "start": 1}],
            }
        ]
    assert (fleet.mutations(), fleet.show()) == (before, shown)
    assert not (fleet.state_dir / "mig-journal.json").exists() or fleet.journal()["state"] == "closed"
    predicted = fleet.mig((one, "3g.40gb@0"), (two,), drain=True, drained=["receipt-ocr-1"], check=True)
    assert fleet.mig((one, "3g.40gb@0"), (two,), drain=True, drained=["receipt-ocr-1"])["drain_needed"], "it still runs"
    fleet.engine.containers.clear()
    fleet.host.simctl("release", "--gpu", "0", "--pid", "77")
    result = fleet.mig((one, "3g.40gb@0"), (two,), drain=True)
    assert (predicted["steps"], predicted["diff"]) == (result["steps"], result["diff"])
    assert (result["drain_needed"], result["drain"], result["changed"]) == (False, [], True)


def test_what_is_not_ours_is_refused_and_not_drained(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@1"))
    fleet.container(host=cdi(fleet.uuid(0)))
    fleet.container(name="notebook", identifier="f" * 64, labels={}, host=cdi(fleet.uuid(1)))
    both = "service receipt-ocr (container receipt-ocr-1-app-1) on 1g.10gb@0; container notebook on 1g.10gb@1"
    assert f"{both}; the layout has no 1g.10gb; nothing was changed" in fleet.refused((gpu,), drain=True)
    assert f"{both}; the layout has only 1 1g.10gb; nothing was changed" in fleet.refused((gpu, "1g.10gb@4"), drain=True)
    assert fleet.mig((gpu, "1g.10gb@1"), drain=True)["drain_needed"]


def test_a_busy_slice_is_kept_where_an_idle_one_of_its_kind_will_do(host: Callable[..., Host]) -> None:
    fleet = host(A100)
    fleet.host.simctl("set", "mig", "on")
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@1", "1g.10gb@2"))
    fleet.container("created", host=cdi(fleet.uuid(1)))
    assert fleet.done((gpu, "1g.10gb"), drain=True) == [
        f"{gpu}: destroy 1g.10gb at memory slice 0",
        f"{gpu}: destroy 1g.10gb at memory slice 2",
    ]


# Virtual machines


def test_a_vgpu_keeps_everything_as_it_is(host: Callable[..., Host]) -> None:
    fleet = host(A100)
    (gpu,) = fleet.uuids
    fleet.host.simctl("set", "virtualization", "host-vgpu")
    fleet.host.simctl("set", "vgpus", "A100D-40C")
    words = fleet.refused((gpu, "1g.10gb"))
    assert "vGPU " in words
    assert " of a virtual machine on the GPU itself; nothing was changed" in words


@pytest.mark.parametrize("kind", ["vfio", "vgpu type", "mdev"])
def test_what_sysfs_shows_as_handed_to_a_virtual_machine_is_busy(host: Callable[..., Host], kind: str) -> None:
    fleet = host(H100)
    (gpu,), (pci,) = fleet.uuids, fleet.pcis
    fleet.mig((gpu,))
    sysfs = fleet.where / "sys"
    function = sysfs / "devices" / "pci0000:00" / "0000:07:00.4"
    card = sysfs / "bus" / "pci" / "devices" / pci
    for directory in (function / "nvidia", card, sysfs / "bus" / "pci" / "drivers" / "vfio-pci", sysfs / "bus" / "mdev" / "devices"):
        directory.mkdir(parents=True)
    (card / "virtfn0").symlink_to(function)
    (function / "nvidia" / "current_vgpu_type").write_text("0\n")
    assert fleet.done((gpu, "1g.10gb@0"), sys_root=str(sysfs)) == [f"{gpu}: create 1g.10gb at memory slice 0"]
    if kind == "vfio":
        (function / "driver").symlink_to(sysfs / "bus" / "pci" / "drivers" / "vfio-pci")
        words = "virtual function 0000:07:00.4 (bound to vfio-pci)"
    elif kind == "vgpu type":
        (function / "nvidia" / "current_vgpu_type").write_text("1059\n")
        words = "virtual function 0000:07:00.4 (vGPU type 1059)"
    else:
        (function / "83b8f4f2").mkdir()
        (sysfs / "bus" / "mdev" / "devices" / "83b8f4f2").symlink_to(function / "83b8f4f2")
        words = "mdev 83b8f4f2"
    assert f"GPU {gpu} is in use: {words} on the GPU itself; nothing was changed" in fleet.refused((gpu,), sys_root=str(sysfs))


def test_the_run_itself_is_no_holder(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    (gpu,) = fleet.uuids
    process(fleet.where / "proc", os.getpid(), "python3", "/dev/nvidia0")
    assert fleet.done((gpu, "1g.10gb@0"))[0] == f"{gpu}: switch MIG on"
