# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of its layout, and how it brings it back after a boot, without a controller."""

from __future__ import annotations

import json
import os
import typing as t
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease, mig_run, mig_state
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from mig_world import A100, H100, L40S, World, process, smi

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> Callable[..., World]:
    return lambda *boards: World(fleet_host(*boards), run_module, tmp_path)


def restore(fleet: World, **more: t.Any) -> mig_run.Result:
    return mig_run.restore(mig_run.Options(fleet.state_dir, nvidia_smi=smi(fleet), **more))


def layout(fleet: World) -> dict[str, t.Any]:
    return dict(json.loads((fleet.state_dir / "layout.json").read_text()))


def inside(fleet: World) -> list[list[tuple[str, int, list[str]]]]:
    """Every GPU's slices with the profiles of their compute instances."""
    return [
        sorted((one["profile"], one["start"], [ci["profile"] for ci in one["ci"]]) for one in gpu["mig"]["instances"])
        for gpu in fleet.show()
        if gpu["mig"]
    ]


# Remembering


def test_a_layout_is_remembered_to_the_compute_instance(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:2", L40S)
    one, two, plain = fleet.uuids
    fleet.mig((one, "3g.40gb@4", "1g.10gb@0"), (two, None), (plain, None))
    slices = [{"profile": "1g.10gb", "start": 0, "compute": [0]}, {"profile": "3g.40gb", "start": 4, "compute": [2]}]
    known = {one: {"mig": True, "slices": slices}, two: {"mig": False, "slices": []}}
    assert layout(fleet) == {"format": 1, "gpus": known}
    assert oct((fleet.state_dir / "layout.json").stat().st_mode & 0o777) == "0o640"
    fleet.mig((two, "7g.80gb"))
    whole = {"mig": True, "slices": [{"profile": "7g.80gb", "start": 0, "compute": [4]}]}
    assert layout(fleet)["gpus"] == {**known, two: whole}


def test_a_wish_that_is_true_already_is_remembered_without_a_change(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"), remember=False)
    assert not (fleet.state_dir / "layout.json").exists()
    assert not fleet.mig((gpu, "1g.10gb@0"), check=True)["changed"]
    assert not (fleet.state_dir / "layout.json").exists()
    assert fleet.mig((gpu, "1g.10gb@0"))["changed"] is False
    written = (fleet.state_dir / "layout.json").stat().st_ino
    assert layout(fleet)["gpus"][gpu]["slices"] == [{"profile": "1g.10gb", "start": 0, "compute": [0]}]
    fleet.mig((gpu, "1g.10gb@0"))
    assert (fleet.state_dir / "layout.json").stat().st_ino == written


def test_a_slice_for_a_while_is_told_by_the_facts_until_it_goes_or_stays(world: Callable[..., World], run_module: RunModule) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    stays, goes = {"profile": "1g.10gb", "start": 3}, {"profile": "1g.10gb", "start": 0, "temporary": True}

    def told() -> dict[int, bool]:
        facts = run_module("gpu_info", {"state_dir": str(fleet.state_dir)})["facts"]
        return {one["start"]: one.get("temporary", False) for one in facts["gpus"][0]["mig"]["instances"]}

    fleet.mig((gpu, "1g.10gb@3"))
    fleet.mig({"gpu": gpu, "instances": [stays, goes]})
    assert told() == {0: True, 3: False}
    assert fleet.mig({"gpu": gpu, "instances": [stays, goes]})["changed"] is False
    fleet.host.simctl("reboot")
    restore(fleet)
    assert told() == {0: True, 3: False}
    fleet.mig((gpu, "1g.10gb@3"))
    assert told() == {3: False}
    fleet.mig({"gpu": gpu, "instances": [stays, goes]})
    assert fleet.mig((gpu, "1g.10gb@3", "1g.10gb@0"))["changed"] is False
    assert told() == {0: False, 3: False}


def test_a_slice_for_a_while_is_known_although_the_run_that_makes_it_never_ended(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    fleet.host.simctl("fail", "--call", CREATE, "--error", "UNKNOWN", "--always")
    assert fleet.mig({"gpu": gpu, "instances": [{"profile": "1g.10gb", "start": 3, "temporary": True}]})["failed"]
    assert fleet.journal()["state"] == "open"
    assert mig_state.temporary(fleet.state_dir) == {(gpu, 3, "1g.10gb")}


def test_a_slice_for_a_while_needs_a_start(world: Callable[..., World]) -> None:
    fleet = world(H100)
    message = fleet.refused({"gpu": fleet.uuids[0], "instances": [{"profile": "1g.10gb", "temporary": True}]})
    assert message == "layout[0].instances[0].temporary: what goes again has to be said by its start; write start, or leave out temporary"


def test_a_change_that_fails_is_not_remembered(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    before = layout(fleet)
    fleet.host.simctl("fail", "--call", CREATE, "--nth", "1", "--error", "UNKNOWN")
    assert fleet.mig((gpu, "1g.10gb@3"))["failed"]
    assert layout(fleet) == before


def test_a_remembered_layout_that_is_torn_is_put_aside_by_the_next_one(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.state_dir.mkdir()
    (fleet.state_dir / "layout.json").write_text('{"format": 1, "gp')
    (note,) = fleet.mig((gpu, "1g.10gb@0"))["notes"]
    path = fleet.state_dir / "layout.json"
    assert note.startswith(f"the remembered layout is of no use ({path}: this file is not JSON;")
    assert note.endswith(f"; it lies at {path}.unreadable now")
    assert list(layout(fleet)["gpus"]) == [gpu]


# Coming back


@pytest.mark.parametrize("board", [A100, H100])
@pytest.mark.parametrize("uuids", ["same", "new", "swap"])
def test_after_a_reboot_every_slice_is_back_where_it_was(world: Callable[..., World], board: str, uuids: str) -> None:
    fleet = world(f"{board}:2")
    fleet.host.simctl("set", "mig-uuid", uuids)
    one, two = fleet.uuids
    fleet.mig((one, "3g.40gb@4", "1g.10gb@0", "1g.20gb@2"), (two, "7g.80gb"), reset=True, nvidia_smi=smi(fleet))
    with Nvml() as nvml:  # what people do by hand and then declare: a slice that is cut further
        (cut,) = nvml.gpu_instances(nvml.find(two))
        nvml.destroy_compute_instance(cut.compute_instances[0])
        for number in (1, 0):
            nvml.create_compute_instance(cut, nvml.compute_profiles(cut)[number])
    fleet.mig({"gpu": two})
    before = inside(fleet)
    assert before[1] == [("7g.80gb", 0, ["1c.7g.80gb", "2c.7g.80gb"])] or before[1] == [("7g.80gb", 0, ["2c.7g.80gb", "1c.7g.80gb"])]
    fleet.host.simctl("reboot")
    assert inside(fleet) == [[], []]
    assert [gpu["mig"]["current"] for gpu in fleet.show()] == [board == A100] * 2
    result = restore(fleet)
    assert (result.changed, result.pending, result.notes) == (True, [], [])
    assert inside(fleet) == before
    assert fleet.journal()["state"] == "closed"
    known = layout(fleet)
    again = restore(fleet)
    assert (again.changed, again.steps, layout(fleet)) == (False, [], known)


def test_a_mode_that_waited_for_the_boot_gets_its_slices_then(world: Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    assert fleet.mig((gpu, "1g.10gb@0", "1c.3g.40gb", "1c.3g.40gb"))["reboot_required"]
    fleet.host.simctl("reboot")
    assert restore(fleet).changed
    assert inside(fleet) == [[("1g.10gb", 0, ["1g.10gb"]), ("3g.40gb", 4, ["1c.3g.40gb", "1c.3g.40gb"])]]


def test_a_change_that_was_cut_short_is_completed_after_the_boot(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0"), (two, "2g.20gb@0"))
    fleet.host.simctl("fail", "--call", CREATE, "--error", "UNKNOWN", "--always")
    assert fleet.mig((one, "1g.10gb@3"))["failed"]
    assert (fleet.slices(0), fleet.journal()["state"]) == ([], "open")
    with pytest.raises(
        FleetError, match=rf"GPU {one} could not be brought back: it lacks 1g\.10gb@3; create 1g\.10gb at memory slice 3: NVML_"
    ):
        restore(fleet)
    fleet.host.simctl("fail", "--clear")
    fleet.host.simctl("reboot")
    result = restore(fleet)
    assert result.notes[0].startswith("an earlier change did not come to its end;")
    assert (fleet.slices(0), fleet.slices(1)) == (["1g.10gb@3"], ["2g.20gb@0"])
    assert fleet.journal()["state"] == "closed"
    assert [one["start"] for one in layout(fleet)["gpus"][one]["slices"]] == [3]


def test_one_gpu_that_fails_keeps_no_other_from_coming_back(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:3")
    three = fleet.uuids[2]
    one, two = sorted(fleet.uuids[:2])  # GPUs are brought back in this order, and UUIDs differ from run to run
    fleet.mig((one, "1g.10gb@0", "1g.10gb@1"), (two, "1g.10gb@0"), (three, "1g.10gb@0"))

    def slices(uuid: str) -> list[str]:
        return fleet.slices(fleet.uuids.index(uuid))

    fleet.host.simctl("reboot")
    fleet.host.simctl("lose", "--gpu", "2")
    fleet.host.simctl("fail", "--call", CREATE, "--nth", "2", "--times", "2", "--error", "UNKNOWN")
    with pytest.raises(FleetError, match=rf"^GPU {one} could not be brought back: it lacks 1g\.10gb@1; create "):
        restore(fleet)
    assert (slices(one), slices(two)) == (["1g.10gb@0"], ["1g.10gb@0"])
    assert (fleet.journal()["state"], list(fleet.journal()["wish"])) == ("open", [one])
    fleet.host.simctl("fail", "--call", CREATE, "--nth", "1", "--error", "UNKNOWN")
    result = restore(fleet)
    assert (slices(one), slices(two)) == (["1g.10gb@0", "1g.10gb@1"], ["1g.10gb@0"]), "what failed once is tried once more"
    assert result.notes[1:] == [f"GPU {three} is lost (GPU is lost); its layout is kept for when it is back"]
    fleet.host.simctl("lose", "--gpu", "2", "--recover")
    assert restore(fleet).changed
    assert slices(three) == ["1g.10gb@0"]


def test_a_board_that_was_taken_out_is_a_note(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    known = layout(fleet)
    gone = "GPU-00000000-0000-0000-0000-000000000000"
    known["gpus"][gone] = known["gpus"][gpu]
    (fleet.state_dir / "layout.json").write_text(json.dumps(known))
    fleet.host.simctl("reboot")
    result = restore(fleet)
    assert result.notes == [f"GPU {gone} is not there (Not Found); its layout is kept for when it is back"]
    assert fleet.slices(0) == ["1g.10gb@0"]
    assert gone in layout(fleet)["gpus"]


def test_what_is_in_use_is_not_touched_and_the_rest_comes_back(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "2g.20gb@0", "1g.10gb@6"))
    known = layout(fleet)
    fleet.mig((gpu, "1g.10gb@0", "1g.10gb@5"))
    (fleet.state_dir / "layout.json").write_text(json.dumps(known))
    fleet.hold(0, "--gi", "7", "--ci", "0", pid=4194304)
    with pytest.raises(FleetError) as caught:
        restore(fleet)
    assert "it lacks 2g.20gb@0; it still has 1g.10gb@0; " in str(caught.value)
    assert "destroy 1g.10gb at memory slice 0: it is in use by process 4194304 (unknown program)" in str(caught.value)
    assert fleet.slices(0) == ["1g.10gb@0", "1g.10gb@6"]


def test_restoring_in_check_mode_predicts_it(world: Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.mig((fleet.uuids[0], "1g.10gb@0", "3g.40gb@4"))
    fleet.host.simctl("reboot")
    before = fleet.mutations()
    predicted = restore(fleet, check=True)
    assert fleet.mutations() == before
    result = restore(fleet)
    assert (predicted.steps, predicted.before, predicted.after) == (result.steps, result.before, result.after)


def test_a_host_that_remembers_nothing_asks_no_driver(tmp_path: Path) -> None:
    assert mig_run.restore(mig_run.Options(tmp_path / "state")) == mig_run.Result(False, [], "", "")


def test_a_remembered_layout_that_is_of_no_use_is_said_and_put_aside(world: Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.state_dir.mkdir()
    (fleet.state_dir / "layout.json").write_text('{"format": 7, "gpus": {}}')
    notes = restore(fleet).notes
    assert notes[0].startswith("the remembered layout is of no use (")
    assert "it has format 7 and this release knows format 1" in notes[0]
    assert notes[1] == f"it lies at {fleet.state_dir}/layout.json.unreadable now"
    assert restore(fleet).notes == []


def test_a_line_that_cannot_be_read_is_a_note(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0"), (two, "1g.10gb@0"))
    known = layout(fleet)
    known["gpus"][one] = {"mig": True}
    (fleet.state_dir / "layout.json").write_text(json.dumps(known))
    fleet.host.simctl("reboot")
    assert restore(fleet).notes == [f"what is remembered of GPU {one} cannot be read: KeyError 'slices'"]
    assert fleet.slices(1) == ["1g.10gb@0"]


def test_a_host_that_another_holds_is_not_restored(world: Callable[..., World]) -> None:
    fleet = world(H100)
    fleet.mig((fleet.uuids[0], "1g.10gb@0"))
    fleet.host.simctl("reboot")
    mine, _over = lease.acquire(fleet.state_dir, "alice", "apply", 600)
    with pytest.raises(lease.LeaseError, match=r"^this host is held by alice \(apply\)"):
        restore(fleet)
    assert restore(fleet, token=mine.token).changed


def test_a_reset_that_the_layout_needs_is_done_only_when_it_is_allowed(world: Callable[..., World]) -> None:
    fleet = world(A100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"), reset=True, nvidia_smi=smi(fleet))
    fleet.host.simctl("set", "mig", "off")
    waiting = restore(fleet)
    assert waiting.pending == [{"gpu": gpu, "reason": "it waits for a reset of the GPU"}]
    proc = fleet.where / "proc"
    process(proc, os.getpid(), "python3")
    process(proc, 77, "dcgm", "/dev/nvidia0")
    with pytest.raises(FleetError, match=r"reset the GPU at .*: it is in use by process 77 \(dcgm\)"):
        restore(fleet, reset=True, proc_root=proc)
    assert restore(fleet, reset=True).changed
    assert fleet.slices(0) == ["1g.10gb@0"]


def test_an_unfinished_change_of_another_gpu_stays_written_down(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    one, two = fleet.uuids
    fleet.mig((one, "1g.10gb@0"), (two, "1g.10gb@0"))
    fleet.host.simctl("fail", "--call", CREATE, "--error", "UNKNOWN", "--always")
    assert fleet.mig((one, "1g.10gb@3"))["failed"]
    fleet.host.simctl("fail", "--clear")
    for wish in ((two, "2g.20gb@0"), (two, "2g.20gb@0")):
        result = fleet.mig(wish)
        assert result["notes"][0].startswith("an earlier change did not come to its end;")
        assert (fleet.journal()["state"], list(fleet.journal()["wish"])) == ("open", [one])
    restore(fleet)
    assert (fleet.slices(0), fleet.journal()["state"]) == (["1g.10gb@3"], "closed")
