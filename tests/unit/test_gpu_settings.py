# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of GPUs: only what is named is touched, everything is read back, a reboot undoes nothing for long."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import gpu_settings
from conftest import FleetHost, MakeHost, RunModule

A100, H100, T4, L40S = "a100-80gb", "h100-80gb", "t4-16gb", "l40s-48gb"


class World:
    """A host, and module gpu_settings on it."""

    def __init__(self, host: FleetHost, run_module: RunModule, where: Path) -> None:
        self.host, self._run, self.where = host, run_module, where
        self.state_dir = where / "state"
        self.boot("first")
        self.uuids = [gpu["uuid"] for gpu in self.show()]
        folders = host.env["PATH"].split(os.pathsep)
        self.smi = next(str(Path(folder) / "nvidia-smi") for folder in folders if (Path(folder) / "nvidia-smi").exists())

    def boot(self, name: str) -> None:
        """The kernel's id of this boot."""
        path = self.where / "proc" / "sys" / "kernel" / "random" / "boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n", encoding="utf-8")

    def reboot(self, name: str = "second") -> None:
        """The machine and its GPUs go through a boot."""
        self.host.simctl("reboot")
        self.boot(name)

    def show(self) -> list[dict[str, t.Any]]:
        return list(self.host.simctl("show", "--json")["gpus"])

    def writes(self) -> int:
        """Changes so far, those of nvidia-smi included."""
        return len(self.host.calls(mutations=True))

    def set(self, *gpus: dict[str, t.Any], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        args = {"gpus": list(gpus), "state_dir": str(self.state_dir), "proc_root": str(self.where / "proc"), "nvidia_smi": self.smi, **more}
        return self._run("gpu_settings", args, check=check, diff=True)

    def done(self, *gpus: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
        """Run it; check mode said the same before and changed nothing, and a second run finds nothing to do."""
        before = self.writes(), self.memory()
        predicted = self.set(*gpus, check=True, **more)
        assert not predicted["failed"], predicted
        assert (self.writes(), self.memory()) == before
        result = self.set(*gpus, **more)
        assert not result["failed"], result
        assert {**predicted, "warnings": []} == {**result, "warnings": []}
        assert result["changed"] is bool(result["steps"])
        writes, memory = self.writes(), self.memory()
        again = self.set(*gpus, **more)
        assert (again["failed"], again["changed"], again["steps"]) == (False, False, []), again
        assert again["pending"] == result["pending"]
        assert (self.writes(), self.memory()) == (writes, memory)
        return result

    def refused(self, *gpus: dict[str, t.Any], **more: t.Any) -> str:
        """The message, the same in check mode; nothing is changed."""
        before = self.writes(), self.memory()
        predicted, result = self.set(*gpus, check=True, **more), self.set(*gpus, **more)
        assert predicted["failed"]
        assert (predicted["msg"], (self.writes(), self.memory())) == (result["msg"], before)
        assert "\n" not in result["msg"]
        return str(result["msg"])

    def memory(self) -> dict[str, t.Any] | None:
        path = self.state_dir / "gpu-settings.json"
        return dict(json.loads(path.read_text())) if path.exists() else None

    def replay(self) -> list[str]:
        return gpu_settings.replay(self.state_dir, self.smi, self.where / "proc")


MakeWorld = t.Callable[..., World]


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> MakeWorld:
    return lambda *boards: World(fleet_host(*boards), run_module, tmp_path)


def test_only_what_is_named_is_touched(world: MakeWorld) -> None:
    here = world(f"{A100}:2")
    result = here.done({"gpu": 0, "persistence": True, "power_limit_w": 300})
    uuid, other = here.uuids
    assert result["steps"] == [f"{uuid}: set persistence from false to true", f"{uuid}: set power_limit_w from 400 to 300"]
    assert result["diff"] == {
        "before": f"{uuid} persistence false\n{uuid} power_limit_w 400\n",
        "after": f"{uuid} persistence true\n{uuid} power_limit_w 300\n",
    }
    first, second = here.show()
    assert (first["persistence"], first["power_limit_w"], second["persistence"], second["power_limit_w"]) == (True, 300, False, 400)
    assert {call["args"]["gpu"] for call in here.host.calls(mutations=True)} == {uuid}
    assert result["settings"] == {uuid: {"persistence": True, "power_limit_w": 300}}
    assert (here.memory() or {})["gpus"] == result["settings"]
    assert result["notes"] == []
    assert other not in json.dumps(result)


@pytest.mark.parametrize("name", ["0", "uuid", "pci"])
def test_a_gpu_is_found_by_any_of_its_names(world: MakeWorld, name: str) -> None:
    here = world(A100)
    wanted = {"uuid": here.uuids[0], "pci": here.show()[0]["pci"]}.get(name, name)
    assert here.done({"gpu": wanted, "persistence": True})["settings"] == {here.uuids[0]: {"persistence": True}}


@pytest.mark.parametrize(("watts", "gpu"), [(99, A100), (401, A100)])
def test_a_power_limit_out_of_range_is_refused_with_the_boards_limits(world: MakeWorld, watts: int, gpu: str) -> None:
    here = world(gpu)
    assert here.refused({"gpu": 0, "persistence": True, "power_limit_w": watts}) == (
        f"gpus[0].power_limit_w: GPU {here.uuids[0]}: a power limit of {watts} W is out of range; nothing was changed; "
        "the board takes 100 to 400 W, and has 400 W when nothing is set"
    )


def test_nothing_is_written_on_any_gpu_when_one_wish_is_impossible(world: MakeWorld) -> None:
    here = world(A100, T4)
    assert "out of range" in here.refused({"gpu": 0, "power_limit_w": 300}, {"gpu": 1, "power_limit_w": 300})


def test_ecc_is_pending_until_the_reboot_and_never_success(world: MakeWorld) -> None:
    here = world(A100)
    result = here.done({"gpu": 0, "ecc": False})
    (uuid,) = here.uuids
    assert result["pending"] == [{"gpu": uuid, "setting": "ecc", "reason": "ECC is on until the GPU is reset or the host reboots"}]
    assert result["reboot_required"]
    here.reboot()
    result = here.done({"gpu": 0, "ecc": False})
    assert (result["changed"], result["pending"], result["reboot_required"]) == (False, [], False)


def test_a_board_without_a_setting_says_so_and_an_entry_for_all_passes_over_it(world: MakeWorld) -> None:
    here = world(A100, "v100-32gb")
    message = here.refused({"gpu": 1, "memory_clock_mhz": [800, 800]})
    assert message.endswith(f"GPU {here.uuids[1]}: this board has no memory_clock_mhz; nothing was changed; leave it out")
    result = here.done({"gpu": "all", "memory_clock_mhz": [800, 800], "persistence": True})
    assert set(result["settings"]) == set(here.uuids)
    assert [len(values) for values in result["settings"].values()] == [2, 1]
    result = here.done({"gpu": "all", "power_limit_w": 320})
    assert set(result["settings"]) == set(here.uuids[:1])


def test_an_entry_that_names_a_gpu_rules_over_the_one_for_all(world: MakeWorld) -> None:
    here = world(f"{A100}:2")
    result = here.done({"gpu": "all", "power_limit_w": 300, "persistence": True}, {"gpu": 1, "power_limit_w": 200})
    assert [gpu["power_limit_w"] for gpu in here.show()] == [300, 200]
    assert len(result["steps"]) == 4


def test_two_entries_that_contradict_each_other_are_refused(world: MakeWorld) -> None:
    here = world(A100)
    message = here.refused({"gpu": 0, "power_limit_w": 300}, {"gpu": here.uuids[0], "power_limit_w": 200})
    assert message == f"gpus[1]: GPU {here.uuids[0]} is given another power_limit_w in gpus[0]; name it once"


def test_a_time_slice_is_set_by_nvidia_smi_and_read_back(world: MakeWorld) -> None:
    here = world(L40S)
    assert here.done({"gpu": 0, "time_slice": "long"})["steps"] == [f"{here.uuids[0]}: set time_slice from default to long"]
    assert here.show()[0]["timeslice"] == 3


@pytest.mark.parametrize("setting", [{"time_slice": "short"}, {"compute_mode": "exclusive_process"}])
def test_a_gpu_in_mig_mode_has_neither_time_slice_nor_exclusive_mode(world: MakeWorld, setting: dict[str, str]) -> None:
    here = world(H100)
    _mig_on(here)
    message = here.refused({"gpu": 0, **setting})
    assert "a GPU with MIG on has no" in message
    assert message.endswith("or switch MIG off")


def _mig_on(here: World) -> None:
    import pynvml

    pynvml.nvmlInit()
    try:
        assert pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1) == pynvml.NVML_SUCCESS
    finally:
        pynvml.nvmlShutdown()
    assert here.show()[0]["mig"]["current"]


def test_a_time_slice_needs_the_default_compute_mode_which_the_same_run_may_bring(world: MakeWorld) -> None:
    here = world(L40S)
    here.done({"gpu": 0, "compute_mode": "exclusive_process"})
    message = here.refused({"gpu": 0, "time_slice": "short"})
    assert "time slices need compute mode default, and it is exclusive_process; nothing was changed; add compute_mode: default" in message
    steps = here.done({"gpu": 0, "time_slice": "short", "compute_mode": "default"})["steps"]
    assert [step.split(" set ")[1].split()[0] for step in steps] == ["compute_mode", "time_slice"]


def test_a_missing_nvidia_smi_is_named_before_anything_is_changed(world: MakeWorld) -> None:
    here = world(L40S)
    assert "there is no program /no/nvidia-smi" in here.refused(
        {"gpu": 0, "persistence": True, "time_slice": "short"}, nvidia_smi="/no/nvidia-smi"
    )


def test_clocks_are_locked_once_in_a_boot_and_again_after_it(world: MakeWorld) -> None:
    here = world(A100)
    wish = {"gpu": 0, "persistence": True, "graphics_clock_mhz": [900, 1200], "memory_clock_mhz": [1000, 1500]}
    result = here.done(wish)
    assert f"{here.uuids[0]}: set graphics_clock_mhz from (not known) to 900-1200" in result["steps"]
    assert here.show()[0]["locked_clocks"] == {"graphics": [900, 1200], "memory": [1000, 1500]}
    here.reboot()
    assert len(here.done(wish)["steps"]) == 3
    result = here.done({"gpu": 0, "graphics_clock_mhz": "reset", "memory_clock_mhz": "reset"})
    assert here.show()[0]["locked_clocks"] == {"graphics": [0, 0], "memory": [0, 0]}
    assert result["steps"][0] == f"{here.uuids[0]}: set graphics_clock_mhz from 900-1200 to reset"


def test_a_clock_above_its_lock_shows_that_the_driver_was_loaded_anew(world: MakeWorld) -> None:
    here = world(A100)
    wish = {"gpu": 0, "persistence": True, "graphics_clock_mhz": [900, 1200]}
    here.done(wish)
    here.host.simctl("set", "clock-sm", "1400", "--gpu", "0")
    (step,) = here.set(wish, check=True)["steps"]
    assert step == f"{here.uuids[0]}: set graphics_clock_mhz from (not known) to 900-1200"


def test_a_lock_that_does_not_take_is_refused_with_both_values_and_the_rest_is_put_back(
    world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_settings, "_SETTLE_SECONDS", 0.1)
    here = world(A100)
    here.host.simctl("set", "clock-sm", "1400", "--gpu", "0")
    result = here.set({"gpu": 0, "persistence": True, "power_limit_w": 300, "graphics_clock_mhz": [900, 1200]})
    assert result["failed"]
    assert "graphics_clock_mhz did not take: 900-1200 was written, and 1400 MHz is in force" in result["msg"]
    assert result["msg"].endswith("what was changed before was put back")
    gpu = here.show()[0]
    assert (gpu["persistence"], gpu["power_limit_w"], gpu["locked_clocks"]["graphics"]) == (False, 400, [0, 0])
    assert (here.memory() or {"gpus": {}})["gpus"] == {}


@pytest.mark.parametrize("value", [[1200, 900], [0, 900], "fast", [900], [900, "x"], True])
def test_what_is_no_range_of_a_clock_is_refused_with_its_form(world: MakeWorld, value: t.Any) -> None:
    here = world(A100)
    assert here.refused({"gpu": 0, "graphics_clock_mhz": value}).endswith("write [LEAST, MOST] in MHz, such as [1200, 1500], or reset")


def test_a_clock_that_the_board_cannot_reach_is_refused_with_its_highest(world: MakeWorld) -> None:
    assert world(A100).refused({"gpu": 0, "graphics_clock_mhz": [900, 9000]}).endswith("it runs at 1410 MHz at most")


def test_nvmls_refusal_of_one_write_puts_back_what_was_written_before(world: MakeWorld) -> None:
    here = world(f"{A100}:2")
    here.host.simctl("fail", "--call", "nvmlDeviceSetPowerManagementLimit", "--nth", "2", "--error", "NO_PERMISSION")
    result = here.set({"gpu": "all", "power_limit_w": 300})
    assert result["failed"]
    assert "NVML_ERROR_NO_PERMISSION" in result["msg"]
    assert [gpu["power_limit_w"] for gpu in here.show()] == [400, 400]
    assert here.memory() is None


def test_a_limit_that_goes_away_without_persistence_is_said(world: MakeWorld) -> None:
    here = world(A100)
    words = f"GPU {here.uuids[0]}: without persistence, power_limit_w is lost as soon as nobody uses the GPU"
    assert here.done({"gpu": 0, "power_limit_w": 300})["notes"] == [words]


def test_absent_forgets_and_restores_what_the_driver_comes_with(world: MakeWorld) -> None:
    here = world(L40S)
    everything = {"persistence": True, "power_limit_w": 300, "time_slice": "long", "graphics_clock_mhz": [900, 900], "ecc": False}
    here.done({"gpu": 0, **everything})
    result = here.done({"gpu": 0, "state": "absent"})
    assert len(result["steps"]) == 5
    gpu = here.show()[0]
    assert (gpu["persistence"], gpu["power_limit_w"], gpu["timeslice"], gpu["locked_clocks"]["graphics"]) == (False, 350, 0, [0, 0])
    assert gpu["ecc"] == {"current": True, "pending": True}
    assert here.memory() == {"format": 1, "gpus": {}, "locks": {"boot": "", "gpus": {}}}


def test_absent_touches_nothing_that_was_not_set_here(world: MakeWorld) -> None:
    here = world(A100)
    here.host.simctl("set", "persistence", "on", "--gpu", "0")
    assert here.done({"gpu": 0, "state": "absent"})["steps"] == []


def test_purge_restores_what_is_wished_no_more_and_only_looks_at_its_part(world: MakeWorld) -> None:
    here = world(f"{A100}:2")
    here.done({"gpu": "all", "persistence": True, "power_limit_w": 300})
    wish = {"gpu": 0, "persistence": True}
    assert here.done(wish, purge=True, only=["persistence", "ecc"])["steps"] == [f"{here.uuids[1]}: set persistence from true to false"]
    steps = here.done(wish, purge=True)["steps"]
    assert steps == [f"{uuid}: set power_limit_w from 300 to 400" for uuid in here.uuids]
    assert here.done(purge=True)["steps"] == [f"{here.uuids[0]}: set persistence from true to false"]


def test_a_replay_brings_back_what_a_reboot_took_away_and_nothing_else(world: MakeWorld) -> None:
    here = world(f"{L40S}:2")
    here.done({"gpu": 0, "persistence": True, "power_limit_w": 300, "time_slice": "long", "graphics_clock_mhz": [900, 900], "ecc": False})
    here.reboot()
    lines = here.replay()
    assert [line.split(" set ")[1].split()[0] for line in lines] == ["persistence", "time_slice", "power_limit_w", "graphics_clock_mhz"]
    gpu, other = here.show()
    assert (gpu["persistence"], gpu["power_limit_w"], gpu["timeslice"], gpu["locked_clocks"]["graphics"]) == (True, 300, 3, [900, 900])
    assert (other["persistence"], other["power_limit_w"]) == (False, 350)
    writes = here.writes()
    assert here.replay() == []
    assert here.writes() == writes


def test_an_ill_gpu_is_a_line_of_the_replay_and_keeps_no_other_from_its_settings(world: MakeWorld) -> None:
    here = world(f"{A100}:3")
    here.done({"gpu": "all", "power_limit_w": 300})
    here.reboot()
    here.host.simctl("lose", "--gpu", "1")
    here.host.simctl("fail", "--call", "nvmlDeviceSetPowerManagementLimit", "--nth", "1", "--error", "UNKNOWN")
    lines = here.replay()
    limits = [gpu["power_limit_w"] for gpu in here.show()]
    assert sorted((limits[0], limits[2])) == [300, 400]
    failed = here.uuids[0 if limits[0] == 400 else 2]
    assert any("NVML_ERROR_UNKNOWN" in line and line.startswith(f"{failed}: power_limit_w could not be set to 300") for line in lines)
    assert f"GPU {here.uuids[1]}: not here or lost; its settings wait" in lines


def test_a_host_without_a_driver_or_without_memory_replays_nothing_and_raises_nothing(world: MakeWorld) -> None:
    here = world(A100)
    assert here.replay() == []
    here.done({"gpu": 0, "power_limit_w": 300})
    here.host.simctl("set", "driver", "absent")
    (line,) = here.replay()
    assert line.startswith("settings of GPUs: nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED")
    (here.state_dir / "gpu-settings.json").write_text("{", encoding="utf-8")
    (line,) = here.replay()
    assert "is not JSON" in line


def test_the_compute_mode_of_a_gpu_that_mps_shares_is_the_daemons(world: MakeWorld) -> None:
    here = world(L40S)
    here.state_dir.mkdir()
    (here.state_dir / "mps.json").write_text(json.dumps({"format": 1, "daemons": {"x": {"gpu": here.uuids[0]}}}), encoding="utf-8")
    assert "is shared through MPS, and its compute mode is the daemon's" in here.refused({"gpu": 0, "compute_mode": "default"})


def test_a_host_that_another_holds_is_not_changed(world: MakeWorld, run_module: RunModule) -> None:
    here = world(A100)
    run_module("host_lease", {"holder": "alice", "state_dir": str(here.state_dir)})
    result = here.set({"gpu": 0, "persistence": True})
    assert result["failed"]
    assert "alice" in result["msg"]
    assert here.show()[0]["persistence"] is False
