# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MIG-backed vGPUs: NVML tells the GPU instances and the types, the kernel has the functions. Module ``mig`` cuts, ``vgpu`` makes."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from vgpu_world import World, world

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost

__all__ = ["world"]

TYPES = {
    "801": {"name": "NVIDIA A100D-1-10C", "cost": 1},
    "802": {"name": "NVIDIA A100D-3-40C", "cost": 3},
}
TWO = ["3g.40gb@0", "3g.40gb@4"]


@pytest.fixture
def host(world: World, fleet_host: MakeHost) -> FleetHost:
    """A host for vGPUs whose NVML and kernel show the same A100."""
    made = fleet_host("a100-80gb")
    made.simctl("set", "virtualization", "host-vgpu")
    shown = made.simctl("show", "--json")["gpus"][0]
    world.gpu(address=shown["pci"], types=TYPES, room=7)
    return made


def card(host: FleetHost, count: int, **more: t.Any) -> dict[str, t.Any]:
    return {"gpu": host.simctl("show", "--json")["gpus"][0]["pci"], "vgpus": [{"type": "A100D-3-40C", "count": count}], **more}


def cut(world: World, host: FleetHost, simulator: Path) -> None:
    places = [name.partition("@") for name in TWO]
    wanted = [{"profile": profile, "start": int(start), "compute": "keep"} for profile, _at, start in places]
    layout = [{"gpu": host.simctl("show", "--json")["gpus"][0]["pci"], "instances": wanted}]
    reset = str(simulator / "bin" / "nvidia-smi")
    result = world.module(
        "mig", {"layout": layout, "state_dir": str(world.state_dir), "reset": True, "docker_socket": "", "nvidia_smi": reset}
    )
    assert (result["failed"], result.get("pending")) == (False, []), result


def test_gpu_instances_come_first_and_each_backs_one(world: World, host: FleetHost, simulator: Path) -> None:
    address = card(host, 1)["gpu"]
    assert f"{address}: MIG is off; module mig has to make GPU instances first (3g.40gb)" in world.refused(card(host, 2))
    predicted = world.run(card(host, 2, instances=TWO), check=True)
    assert [step.partition(": ")[2][:22] for step in predicted["steps"]] == [
        "virtual functions on (",
        "create A100D-3-40C on ",
        "create A100D-3-40C on ",
    ]
    refused = world.run(card(host, 2, instances=TWO))
    assert "MIG is off" in refused["msg"], "what module mig makes counts in check mode only"
    cut(world, host, simulator)
    assert world.done(card(host, 2, instances=TWO)) == predicted["steps"]
    words = world.refused(card(host, 3))
    assert "3 A100D-3-40C need 3 GPU instances 3g.40gb, and there are 2" in words


def test_types_are_known_by_nvml_before_the_functions_are_on(world: World, host: FleetHost) -> None:
    address = card(host, 1)["gpu"]
    words = world.refused({"gpu": address, "vgpus": [{"type": "A100D-3-41C"}]})
    assert "there is no vGPU type A100D-3-41C; did you mean A100D-3-40C? it has " in words
    assert "one GPU has 8 at most (the driver)" in world.refused(
        {"gpu": card(host, 1)["gpu"], "vgpus": [{"type": "A100D-10C", "count": 9}]}
    )
