# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The .env of a service: the UUIDs that its slices have at this moment, on simulated GPUs below the real pynvml."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import slices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import Device

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule

HEADER = "# Written by gpuops.fleet.slice_env. The devices are looked up again at every run: do not edit, do not copy.\n"


class World:
    """A host whose first GPU is cut into 1g.10gb@4 and 3g.40gb@0, and the module on it."""

    def __init__(self, host: FleetHost, run_module: RunModule, where: Path) -> None:
        self.host, self.run = host, run_module
        self.path = where / "services" / "ocr-1" / ".env"
        self.state = {"state_dir": str(where / "state")}
        self.gpus = [gpu["uuid"] for gpu in host.simctl("show", "--json")["gpus"]]
        self.cut({"profile": "1g.10gb", "start": 4}, {"profile": "3g.40gb", "start": 0})

    def cut(self, *instances: dict[str, t.Any]) -> None:
        done = self.run("mig", {"layout": [{"gpu": self.gpus[0], "instances": list(instances)}], **self.state})
        assert not done["failed"], done

    def uuid(self, start: int) -> str:
        instances = self.host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]
        return str(next(one["ci"][0]["uuid"] for one in instances if one["start"] == start))

    def write(self, *entries: dict[str, t.Any], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        return self.run("slice_env", {"path": str(self.path), "entries": list(entries), **more}, check=check, diff=True)

    def slice(self, start: int = 4, profile: str = "1g.10gb", name: str = "GPU_0") -> dict[str, t.Any]:
        return {"name": name, "gpu": self.gpus[0], "profile": profile, "start": start}


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> World:
    return World(fleet_host("h100-80gb:2", "l40s-48gb"), run_module, tmp_path)


def test_a_slice_is_written_with_the_uuid_that_it_has_now(world: World) -> None:
    result = world.write(world.slice())
    text = HEADER + f"GPU_0={world.uuid(4)}\n"
    assert (result["failed"], result["changed"]) == (False, True)
    assert result["devices"] == {"GPU_0": world.uuid(4)}
    assert world.path.read_text() == text
    assert world.path.stat().st_mode & 0o777 == 0o640
    assert {key: result["diff"][0][key] for key in ("before", "after", "before_header", "after_header")} == {
        "before": "",
        "after": text,
        "before_header": str(world.path),
        "after_header": str(world.path),
    }
    again = world.write(world.slice())
    assert (again["changed"], again["diff"][0]["before"], again["diff"][0]["after"]) == (False, text, text)


def test_variables_keep_the_order_that_is_given(world: World) -> None:
    result = world.write(
        {"name": "GPU_1", "gpu": world.gpus[1]}, world.slice(), world.slice(0, "3g.39gb", "BIG"), {"name": "OLD", "gpu": world.gpus[2]}
    )
    assert not result["failed"], result
    assert world.path.read_text() == (HEADER + f"GPU_1={world.gpus[1]}\nGPU_0={world.uuid(4)}\nBIG={world.uuid(0)}\nOLD={world.gpus[2]}\n")


def test_the_cdi_style_names_the_kind(world: World) -> None:
    world.write(world.slice(), style="cdi")
    assert world.path.read_text() == HEADER + f"GPU_0=nvidia.com/gpu={world.uuid(4)}\n"


def test_a_slice_that_was_made_again_is_looked_up_again(world: World) -> None:
    world.write(world.slice())
    world.host.simctl("set", "mig-uuid", "new")
    world.cut()
    world.cut({"profile": "1g.10gb", "start": 4})
    predicted, result = world.write(world.slice(), check=True), world.write(world.slice())
    assert predicted["changed"]
    assert result["changed"]
    assert predicted["diff"][0]["after"] == result["diff"][0]["after"] == HEADER + f"GPU_0={world.uuid(4)}\n"
    assert world.path.read_text() == result["diff"][0]["after"]


def test_in_check_mode_a_slice_to_come_is_known_after_apply_and_nothing_is_written(world: World) -> None:
    for style in ("uuid", "cdi"):
        result = world.write(world.slice(5), check=True, style=style)
        assert (result["failed"], result["changed"]) == (False, True)
        assert result["devices"] == {"GPU_0": "(known after apply)"}
        assert result["diff"][0]["after"] == HEADER + "GPU_0=(known after apply)\n"
    later = world.write({"name": "GPU_0", "gpu": world.gpus[1], "profile": "1g.10gb", "start": 0}, check=True)
    assert later["devices"] == {"GPU_0": "(known after apply)"}
    assert not world.path.exists()


def test_in_check_mode_a_gpu_that_is_about_to_leave_mig_is_given_as_a_whole(world: World) -> None:
    whole = {"name": "GPU_0", "gpu": world.gpus[0]}
    predicted = world.write(whole, check=True)
    world.run("mig", {"layout": [{"gpu": world.gpus[0], "mig": False}], **world.state})
    assert predicted["devices"] == world.write(whole)["devices"] == {"GPU_0": world.gpus[0]}


@pytest.mark.parametrize("check", [True, False])
def test_a_slice_that_can_never_be_is_refused_before_it_is_waited_for(world: World, check: bool) -> None:
    refused = [
        ({"gpu": world.gpus[2]}, f"GPU_0: {world.gpus[2]} has no MIG, so it has no slices; leave out profile and start for the whole GPU"),
        (
            {"gpu": world.gpus[1], "start": 7},
            f"GPU_0: 1g.10gb cannot start at memory slice 7 of {world.gpus[1]}; it starts at one of 0, 1, 2, 3, 4, 5, 6",
        ),
        ({"start": True}, "entries[0].start: expected a whole number, found true; write start: 1"),
    ]
    for changes, message in refused:
        result = world.write({**world.slice(), **changes}, check=check)
        assert (result["failed"], result["msg"]) == (True, message)
    assert not world.path.exists()


def test_a_slice_that_is_not_there_is_refused(world: World) -> None:
    result = world.write(world.slice(5))
    assert result["msg"] == (f"GPU_0: there is no slice 1g.10gb@5 of {world.gpus[0]}; bring the GPU to its layout first (gpuops.fleet.mig)")
    assert not world.path.exists()
    assert world.write(world.slice(4, "1g.10gb+me"))["failed"], "another profile at the same place"


def test_a_gpu_instance_that_nobody_can_use_is_not_there_yet(world: World) -> None:
    with Nvml() as nvml:
        nvml.create_gpu_instance(nvml.find(world.gpus[0]), 19, 5, 1)
    assert "there is no slice 1g.10gb@5" in world.write(world.slice(5))["msg"]


def test_a_gpu_with_mig_on_is_not_given_as_a_whole(world: World) -> None:
    result = world.write({"name": "GPU_0", "gpu": world.gpus[0]})
    assert result["msg"] == f"GPU_0: {world.gpus[0]} has MIG on: no container can have it whole; name one of its slices"


def test_a_gpu_that_is_not_there_or_lost_is_named(world: World) -> None:
    missing = "GPU-00000000-0000-0000-0000-000000000000"
    assert world.write({"name": "GPU_0", "gpu": missing})["msg"] == f"GPU_0: there is no GPU {missing} on this host"
    assert "there is no GPU 9" in world.write({"name": "GPU_0", "gpu": "9"})["msg"]
    pci = world.host.simctl("show", "--json")["gpus"][1]["pci"]
    world.host.simctl("lose", "--gpu", "1")
    assert world.write({"name": "GPU_0", "gpu": pci})["msg"] == f"GPU_0: GPU {pci} is lost; look for its XID in the kernel's log"


def test_any_other_word_of_nvml_is_passed_on(world: World) -> None:
    world.host.simctl("fail", "--call", "nvmlDeviceGetMigMode", "--error", "UNKNOWN", "--always")
    assert "NVML_ERROR_UNKNOWN" in world.write(world.slice())["msg"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"name": "1GPU", "gpu": "0"}], "entries[0].name: '1GPU' cannot be the name of a variable; write one like GPU_0"),
        ([{"name": "A=B", "gpu": "0"}], "entries[0].name: 'A=B' cannot be the name of a variable; write one like GPU_0"),
        (
            [{"name": "A", "gpu": "0"}, {"name": "B", "gpu": "0"}, {"name": "A", "gpu": "1"}],
            "entries[2].name: A is there twice; give each device its own name",
        ),
        ([{"name": "A", "gpu": "0", "start": 0}], "entries[0]: a slice needs both profile and start; leave out both for the whole GPU"),
        (
            [{"name": "A", "gpu": "0", "profile": "1g.10gb"}],
            "entries[0]: a slice needs both profile and start; leave out both for the whole GPU",
        ),
    ],
)
def test_a_bad_entry_is_refused_by_field(run_module: RunModule, tmp_path: Path, entries: list[dict[str, t.Any]], message: str) -> None:
    assert run_module("slice_env", {"path": str(tmp_path / ".env"), "entries": entries})["msg"] == message


def test_permissions_are_kept_to(world: World) -> None:
    world.write(world.slice(), mode="0600")
    assert world.path.stat().st_mode & 0o777 == 0o600
    assert world.write(world.slice(), mode="0600")["changed"] is False
    assert world.write(world.slice(), check=True)["changed"] is True
    assert world.path.stat().st_mode & 0o777 == 0o600
    assert world.write(world.slice())["changed"] is True
    assert world.path.stat().st_mode & 0o777 == 0o640


def test_an_empty_list_is_an_empty_file(world: World) -> None:
    assert world.write()["changed"] is True
    assert world.path.read_text() == HEADER
    assert world.write()["changed"] is False


def test_a_file_that_cannot_be_read_or_written_is_named(world: World) -> None:
    world.path.mkdir(parents=True)
    assert world.write(world.slice())["msg"] == f"cannot read {world.path}: Is a directory"
    world.path.rmdir()
    world.path.write_bytes(b"\xff\x00")
    assert world.write(world.slice())["msg"] == f"cannot read {world.path}: it is not text"
    world.path.unlink()
    world.path.parent.rmdir()
    world.path.parent.write_text("")
    assert world.write(world.slice())["msg"].startswith(f"cannot read {world.path}: Not a directory")


def test_a_device_says_where_it_is() -> None:
    assert Device("A", "GPU-x").where == "GPU-x"
    assert Device("A", "GPU-x", "1g.10gb", 4).where == "slice 1g.10gb@4 of GPU-x"


def test_an_unknown_profile_names_those_that_the_board_has(world: World) -> None:
    with Nvml() as nvml, pytest.raises(FleetError, match=r"^this board has no MIG profile 5g\.50gb; it has 1g\.10gb, "):
        slices.resolve(nvml, Device("A", world.gpus[0], "5g.50gb", 0))


def test_beside_it_stands_what_the_variables_name_so_that_the_host_can_write_it_again(world: World) -> None:
    predicted = world.write(world.slice(), {"name": "GPU_1", "gpu": "1"}, check=True, style="cdi")
    kept = world.path.with_name("devices.json")
    assert not kept.exists()
    result = world.write(world.slice(), {"name": "GPU_1", "gpu": "1"}, style="cdi")
    entries = [{"name": "GPU_0", "gpu": world.gpus[0], "profile": "1g.10gb", "start": 4}, {"name": "GPU_1", "gpu": world.gpus[1]}]
    assert json.loads(kept.read_text()) == {"format": 1, "project": "ocr-1", "style": "cdi", "entries": entries}
    assert predicted["diff"][1]["after"] == result["diff"][1]["after"] == kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o640
    assert slices.read_devices(kept) == ("ocr-1", "cdi", [Device("GPU_0", world.gpus[0], "1g.10gb", 4), Device("GPU_1", world.gpus[1])])
    kept.unlink()
    again = world.write(world.slice(), {"name": "GPU_1", "gpu": "1"}, style="cdi")
    assert (again["changed"], kept.exists()) == (True, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "this file holds no mapping"),
        ('{"format": 1, "style": "index", "project": "a", "entries": []}', "this file does not say which devices a service has"),
        ('{"format": 1, "style": "cdi", "project": "a", "entries": [{}]}', "entries: its entries are damaged"),
        (
            '{"format": 1, "style": "cdi", "project": "a", "entries": [{"name": "1", "gpu": "x"}]}',
            "entries[0].name: '1' cannot be the name",
        ),
    ],
)
def test_a_damaged_record_of_devices_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "devices.json"
    assert slices.read_devices(path) is None
    path.write_text(text)
    with pytest.raises(FleetError) as caught:
        slices.read_devices(path)
    assert str(caught.value).startswith(f"{path}: {words}")
