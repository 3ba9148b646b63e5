# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module gpu_drain on a host with simulated GPUs, and what gpu_info then says: who, why, until when, and whose it is to end."""

from __future__ import annotations

import json
import typing as t
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import drains, lease
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class World:
    """A host with two GPUs, and both modules on it."""

    def __init__(self, host: FleetHost, run_module: RunModule, where: Path) -> None:
        self.host, self._run = host, run_module
        self.state_dir, self.proc = where / "state", where / "proc"
        self.gpus = [(gpu["uuid"], gpu["pci"]) for gpu in host.simctl("show", "--json")["gpus"]]

    def run(self, check: bool = False, **args: t.Any) -> dict[str, t.Any]:
        usual = {"by": "lin", "state_dir": str(self.state_dir), "proc_root": str(self.proc)}
        if args.get("state") != "absent":
            usual["reason"] = "fan"
        return self._run("gpu_drain", {**usual, **args}, check=check, diff=True)

    def done(self, **args: t.Any) -> dict[str, t.Any]:
        """Run it, prove that check mode said the same before and that a second run finds nothing to do."""
        file = self.state_dir / "drains.json"
        before = file.read_bytes() if file.exists() else None
        predicted = self.run(check=True, **args)
        assert (file.read_bytes() if file.exists() else None) == before
        result = self.run(**args)
        assert not result["failed"], result
        assert {**predicted, "drain": None, "diff": None} == {**result, "drain": None, "diff": None}
        assert self.run(**args)["changed"] is False
        return result

    def facts(self) -> dict[str, t.Any]:
        where = self.state_dir.parent
        args = {"state_dir": str(self.state_dir), "services_dir": str(where), "docker_socket": str(where / "none.sock")}
        found: dict[str, t.Any] = self._run("gpu_info", args)["facts"]
        return found

    def write(self, *entries: dict[str, t.Any]) -> None:
        self.state_dir.mkdir(exist_ok=True)
        (self.state_dir / "drains.json").write_text(json.dumps({"format": 1, "drains": list(entries)}), encoding="utf-8")


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> World:
    return World(fleet_host("a100-80gb:2"), run_module, tmp_path)


def entry(gpu: str | None = None, **more: t.Any) -> dict[str, t.Any]:
    """A drain on disk."""
    return {"gpu": gpu, "by": "lin", "reason": "fan", "since": "2026-11-01T00:00:00Z", "until": None, "force": False, **more}


def test_a_drained_gpu_is_a_fact_of_that_gpu_and_released_it_is_none(world: World) -> None:
    uuid, pci = world.gpus[1]
    result = world.done(gpu="1", until="2126-12-01")
    assert (result["changed"], result["gpu"]) == (True, uuid)
    assert result["diff"] == {"before": "", "after": f"{uuid}: drained by lin (fan) until 2126-12-01\n"}
    drained = {gpu["uuid"]: gpu["drain"] for gpu in world.facts()["gpus"]}
    assert drained[world.gpus[0][0]] is None
    assert {**drained[uuid], "since": ""} == {"by": "lin", "reason": "fan", "since": "", "until": "2126-12-01T23:59:59Z", "force": False}
    assert world.done(state="absent", gpu=pci)["changed"] is True
    facts = world.facts()
    assert ([gpu["drain"] for gpu in facts["gpus"]], facts["host"]["drain"], facts["drains_idle"]) == ([None, None], None, [])


def test_without_a_gpu_the_whole_host_is_meant(world: World) -> None:
    assert world.done(force=True)["gpu"] is None
    facts = world.facts()
    assert (facts["host"]["drain"]["force"], [gpu["drain"] for gpu in facts["gpus"]]) == (True, [None, None])


def test_releasing_what_is_not_drained_is_no_change(world: World) -> None:
    assert world.run(state="absent", gpu="0")["changed"] is False
    assert not (world.state_dir / "drains.json").exists()


def test_draining_again_updates_the_drain_and_keeps_since_when(world: World) -> None:
    world.write(entry(world.gpus[0][0]))
    result = world.done(gpu="0", reason="fan and board", until="2126-12-01T10:00:00+02:00")
    assert (result["drain"]["since"], result["drain"]["until"]) == ("2026-11-01T00:00:00Z", "2126-12-01T08:00:00Z")
    assert len(json.loads((world.state_dir / "drains.json").read_text())["drains"]) == 1


@pytest.mark.parametrize("state", ["present", "absent"])
def test_another_persons_drain_is_changed_and_released_only_by_naming_that_person(world: World, state: str) -> None:
    uuid = world.gpus[0][0]
    world.write(entry(uuid))
    refused = world.run(state=state, gpu="0", by="bob")
    assert refused["failed"]
    assert refused["msg"].startswith(f"over: {uuid} is drained by lin (fan); ask lin, or name whose drain it is: over=lin")
    assert world.run(state=state, gpu="0", by="bob", over="ann")["failed"]
    result = world.done(state=state, gpu="0", by="bob", over="lin")
    assert result["drain"] is None if state == "absent" else result["drain"]["by"] == "bob"


def test_a_drain_whose_time_is_over_drains_nothing_is_listed_as_ended_and_is_anybodys(world: World) -> None:
    uuid = world.gpus[0][0]
    over = entry(uuid, until="2026-01-01T23:59:59Z")
    world.write(over)
    facts = world.facts()
    assert facts["gpus"][0]["drain"] is None
    assert facts["drains_idle"] == [{**over, "why": "ended"}]
    assert drains.read(world.state_dir, NOW) == []
    assert world.done(gpu="0", by="bob")["drain"]["by"] == "bob"
    assert world.facts()["drains_idle"] == []


def test_the_drain_of_a_gpu_that_is_gone_is_listed_and_released_by_its_uuid(world: World) -> None:
    gone = "GPU-0000aaaa-0000-4000-8000-00000000beef"
    world.write(entry(gone))
    assert [(one["gpu"], one["why"]) for one in world.facts()["drains_idle"]] == [(gone, "gone")]
    assert world.done(state="absent", gpu=gone.upper())["changed"] is True
    # To pass over a name that nothing has in silence would leave a drain there.
    assert "there is no GPU 'GPU-0000aaaa'" in world.run(state="absent", gpu="GPU-0000aaaa")["msg"]


def test_what_tables_show_of_a_uuid_names_its_gpu_and_no_other(world: World) -> None:
    gone, other = (f"GPU-0000{word}-0000-4000-8000-00000000beef" for word in ("aaaa", "bbbb"))
    world.write(entry(gone), entry(other))
    assert world.run(state="absent", gpu="gpu-0000AAAA")["gpu"] == gone
    assert [each["gpu"] for each in drains.read(world.state_dir, NOW)] == [other]
    uuid = world.gpus[1][0]
    assert world.done(gpu=uuid[:12])["gpu"] == uuid
    both = "GPU-0000bbbb-1111-4000-8000-00000000beef"
    world.write(entry(other), entry(both))
    assert "there is no GPU 'GPU-0000bbbb'" in world.run(state="absent", gpu="GPU-0000bbbb")["msg"]


def test_a_lost_gpu_is_drained_by_what_the_kernel_knows_it_as(world: World) -> None:
    uuid, pci = world.gpus[1]
    information = world.proc / "driver" / "nvidia" / "gpus" / pci / "information"
    information.parent.mkdir(parents=True)
    information.write_text(f"Model: NVIDIA A100\nGPU UUID:       {uuid}\n", encoding="utf-8")
    world.host.simctl("lose", "--gpu", "1")
    for name in (uuid.upper(), pci, pci[5:]):
        assert world.run(gpu=name)["gpu"] == uuid


def test_no_such_gpu_is_refused_in_one_line(world: World) -> None:
    for name in ("7", "GPU-nobody", ""):
        refused = world.run(gpu=name)
        assert refused["msg"].startswith(f"gpu: there is no GPU '{name}' on this host (nvmlDeviceGetHandleBy")


@pytest.mark.parametrize("arguments", [{"by": " "}, {"reason": ""}, {"reason": "  "}])
def test_a_drain_that_tells_the_others_nothing_is_refused(world: World, arguments: dict[str, str]) -> None:
    assert world.run(**arguments)["msg"].endswith("expected a few words, found none; the others want to know")


def test_a_host_that_another_play_holds_is_not_drained_and_its_own_token_does(world: World) -> None:
    held, _over = lease.acquire(world.state_dir, "bob", "apply", 600)
    assert "this host is held by bob (apply)" in world.run(gpu="0")["msg"]
    assert world.run(check=True, gpu="0")["changed"] is True
    assert world.run(gpu="0", lease=held.token)["changed"] is True


def test_a_damaged_file_is_told_and_drains_are_then_not_known(world: World) -> None:
    world.state_dir.mkdir()
    (world.state_dir / "drains.json").write_text('{"format": 1, "drains": [{"gpu": null}]}', encoding="utf-8")
    assert "this file has no drains that this version can read" in world.run()["msg"]
    facts = world.facts()
    assert facts["drains_idle"] is None
    assert any(line.startswith("drains: ") for line in facts["errors"])


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (None, None),
        (" ", None),
        ("2026-12-01", "2026-12-01T23:59:59Z"),
        ("2026-11-21", "2026-11-21T23:59:59Z"),
        ("2026-12-01T18:00:00", "2026-12-01T18:00:00Z"),
        ("2026-12-01 18:00", "2026-12-01T18:00:00Z"),
        ("2026-12-01T18:00:00Z", "2026-12-01T18:00:00Z"),
        ("2026-12-01T18:00:00+01:00", "2026-12-01T17:00:00Z"),
    ],
)
def test_until_is_a_day_to_its_end_or_a_moment_in_utc(text: str | None, stored: str | None) -> None:
    assert drains.parse_until(text, NOW) == stored


@pytest.mark.parametrize(
    "text", ["2026-11-20", "2026-11-21T11:59:00", "2026-11-21T12:00:00Z", "tomorrow", "2026-13-01", "01.12.2026", "2026"]
)
def test_until_must_be_a_date_in_the_future(text: str) -> None:
    with pytest.raises(
        FleetError, match=r"^until: .*(is no date|is over: this host's clock says 2026-11-21T12:00:00Z); write a date such as"
    ):
        drains.parse_until(text, NOW)


def test_a_drain_is_over_at_the_moment_that_it_names() -> None:
    drain = entry(until="2026-11-21T12:00:00Z")
    assert [drains.is_over(drain, NOW + timedelta(seconds=more)) for more in (-1, 0, 1)] == [False, True, True]
