# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module plan_record on a host with simulated GPUs: what it records, what it refuses, what check mode leaves alone."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record as records

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule


class World:
    """A host with two GPUs without MIG, and the module on it."""

    def __init__(self, host: FleetHost, run_module: RunModule, where: Path) -> None:
        self.host, self._run = host, run_module
        self.state_dir = where / "state"
        self.gpus = [gpu["uuid"] for gpu in host.simctl("show", "--json")["gpus"]]

    def plan(self, serial: int = 3, base: str = "off") -> dict[str, t.Any]:
        gpu = self.gpus[0]
        layout = [{"gpu": gpu, "pci": "x", "model": "h100", "mode": "mig"}, {"gpu": gpu, "profile": "1g.10gb", "start": 4}]
        services = [{"service": "ocr", "replica": 1, "gpu": gpu, "profile": "1g.10gb", "start": 4, "ports": {}, "manifest": "sha256:1"}]
        lines = [{"gpu": gpu, "mig": base == "on", "instances": ["1g.10gb@4"] if base == "on" else []}]
        return {
            "plan": 1,
            "host": "gpu-1",
            "serial": serial,
            "digest": records.digest_of_plan(layout, services),
            "base": {"digest": records.digest_of_base(lines), "gpus": lines},
            "layout": layout,
            "services": services,
        }

    def run(self, state: str, plan: t.Any = None, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        args = {"state": state, "state_dir": str(self.state_dir), **({} if plan is None else {"plan": plan}), **more}
        return self._run("plan_record", args, check=check, diff=True)

    def mig(self, layout: list[dict[str, t.Any]]) -> None:
        assert not self._run("mig", {"layout": layout, "state_dir": str(self.state_dir)})["failed"]

    def record(self) -> dict[str, t.Any]:
        return dict(json.loads((self.state_dir / "plan.json").read_text()))


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> World:
    return World(fleet_host("h100-80gb:2"), run_module, tmp_path)


def test_a_host_that_carries_nothing_says_so(world: World) -> None:
    result = world.run("read")
    assert (result["failed"], result["changed"], result["record"]) == (False, False, None)
    assert result["diff"] == {"before": "", "after": ""}
    assert not world.state_dir.exists()


def test_a_plan_is_begun_carried_out_and_done_and_then_nothing_is_needed(world: World) -> None:
    plan = world.plan()
    begun = world.run("begun", plan)
    assert (begun["failed"], begun["changed"], begun["needed"], begun["stop"], begun["gone"]) == (False, True, True, [], [])
    assert begun["record"] == {"serial": 3, "digest": plan["digest"], "state": "started"}
    assert begun["diff"] == {"before": "", "after": f"plan serial 3 {plan['digest']} started\n"}
    assert begun["layout"] == [{"gpu": world.gpus[0], "mig": True, "instances": [{"profile": "1g.10gb", "start": 4}]}]
    world.mig(begun["layout"])
    repaired = world.run("begun", plan)
    assert (repaired["changed"], repaired["needed"]) == (False, True)
    done = world.run("done", plan)
    assert (done["changed"], done["needed"], done["record"]["state"]) == (True, True, "done")
    assert done["diff"] == {"before": f"plan serial 3 {plan['digest']} started\n", "after": f"plan serial 3 {plan['digest']} done\n"}
    for state in ("begun", "done"):
        again = world.run(state, plan)
        assert (again["changed"], again["needed"]) == (False, False)
    assert world.run("read")["record"] == {"serial": 3, "digest": plan["digest"], "state": "done"}
    assert world.record()["services"] == plan["services"]


def test_check_mode_decides_the_same_and_writes_nothing(world: World) -> None:
    plan = world.plan()
    predicted = world.run("begun", plan, check=True)
    assert (predicted["changed"], predicted["needed"], predicted["record"]["state"]) == (True, True, "started")
    assert not world.state_dir.exists()
    world.run("begun", plan)
    world.run("done", plan, check=True)
    assert world.record()["state"] == "started"


def test_an_older_plan_is_refused_and_the_record_stays(world: World) -> None:
    plan = world.plan(5)
    world.run("begun", plan)
    result = world.run("begun", world.plan(4))
    assert result["msg"].startswith("serial: this host carries plan serial 5, and the given plan is older: serial 4")
    assert world.record()["serial"] == 5


def test_a_host_that_drifted_refuses_and_says_what_differs(world: World) -> None:
    world.mig([{"gpu": world.gpus[0], "instances": [{"profile": "3g.40gb", "start": 0}]}])
    result = world.run("begun", world.plan())
    assert result["msg"] == (
        "base: this host is not as it was when the plan was made: "
        f"{world.gpus[0]} has MIG on with 3g.40gb@0, and the plan was made from MIG off; plan again"
    )
    assert not (world.state_dir / "plan.json").exists()


def test_a_plan_for_a_gpu_that_left_is_refused(world: World) -> None:
    plan = world.plan()
    text = json.dumps(plan).replace(world.gpus[0], "GPU-00000000-0000-0000-0000-000000000000")
    gone = json.loads(text)
    gone["digest"] = records.digest_of_plan(gone["layout"], gone["services"])
    gone["base"]["digest"] = records.digest_of_base(gone["base"]["gpus"])
    assert "GPU-00000000-0000-0000-0000-000000000000 is not on this host" in world.run("begun", gone)["msg"]


def test_a_plan_edited_by_hand_is_refused_before_the_driver_is_asked(world: World) -> None:
    plan = {**world.plan(), "services": []}
    world.host.simctl("log", "--clear")
    assert world.run("begun", plan)["msg"].startswith("digest: the plan's layout or services are not those")
    assert world.host.calls() == []


def test_finishing_what_was_not_begun_is_refused(world: World) -> None:
    assert world.run("done", world.plan())["msg"].startswith("serial: plan serial 3 was not begun on this host")


def test_a_plan_is_needed(world: World) -> None:
    result = world.run("begun")
    assert result["failed"]
    assert "plan" in result["msg"]


def test_a_host_that_another_holds_begins_nothing(world: World) -> None:
    mine, _over = lease.acquire(world.state_dir, "alice", "drain", 600)
    assert world.run("begun", world.plan())["msg"].startswith("this host is held by alice (drain), for ")
    assert not world.run("begun", world.plan(), check=True)["failed"]
    assert not world.run("read")["failed"]
    assert not world.run("begun", world.plan(), lease=mine.token)["failed"]
