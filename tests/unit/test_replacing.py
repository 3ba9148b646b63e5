# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchanged boards: old to new by slot and kind, the plan made anew so that its host takes it, and everything else told and left alone."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action.replace import run
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A100, facts, gpu_facts, manifest_text

CATALOGUE = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
OLD, NEW = "GPU-h1-0", "GPU-new-0"
MANIFESTS = [("m/ocr.yml", manifest_text("ocr")), ("m/train.yml", manifest_text("train", gpu="{isolation: exclusive, memory: 30 GiB}"))]


class World:
    """A host with two GPUs whose plan was carried out, and a controller's papers about it."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.plans, self.facts, self.inventory = where / "plans", where / "facts", where / "inventory"
        for directory in (self.plans, self.facts, self.inventory):
            directory.mkdir()
        before = {"h1": {"facts": facts([gpu_facts(0), gpu_facts(1)]), "policy": {"fleet_environment": "production"}}}
        planned = plan_fleet(MANIFESTS, {}, before, CATALOGUE, ["http"]).plans["h1"]
        self.old_text = planned.text
        (self.plans / "h1.yml").write_text(planned.text, encoding="utf-8")
        self.record = plan_record.begin(planned.data, None, self.observed(before["h1"]["facts"])).record
        carried = {"serial": 1, "digest": planned.data["digest"], "state": "done"}
        (entry,) = [line for line in planned.data["services"] if line["service"] == "ocr"]
        self.number = int(entry["gpu"][-1])
        self.there = [gpu_facts(number, slices=str(entry["profile"]) + "@0" if number == self.number else "") for number in (0, 1)]
        self.carried = carried
        self.publish(self.there)

    @staticmethod
    def observed(known: dict[str, t.Any]) -> dict[str, t.Any]:
        return {gpu["uuid"]: plan_record.state_of(gpu) for gpu in known["gpus"]}

    def publish(self, gpus: list[dict[str, t.Any]]) -> None:
        (self.facts / "h1.json").write_text(json.dumps(facts(gpus, plan=self.carried)), encoding="utf-8")

    def run(self, gpus: list[dict[str, t.Any]], check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        hosts = {"h1": {"facts": facts(gpus, plan=self.carried, **more.pop("facts", {}))}}
        papers = {"plans": str(self.plans), "facts": str(self.facts), "inventory": str(self.inventory), "write_inventory": False}
        return run({"hosts": hosts, **papers, **more}, check, True)

    def exchanged(self, **more: t.Any) -> list[dict[str, t.Any]]:
        """The GPUs after both boards were taken out and new ones put in."""
        return [{**gpu_facts(number), "uuid": f"GPU-new-{number}", **more} for number in (0, 1)]

    def plan(self) -> dict[str, t.Any]:
        return dict(read_plan("h1.yml", (self.plans / "h1.yml").read_text(encoding="utf-8")).data)

    def untouched(self) -> bool:
        return (self.plans / "h1.yml").read_text(encoding="utf-8") == self.old_text


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_new_board_in_the_old_slot_takes_its_place_in_the_plan_and_the_host_takes_the_plan(world: World) -> None:
    before = world.plan()
    predicted = world.run(world.exchanged(), check=True)
    assert world.untouched()
    result = world.run(world.exchanged())
    assert {**predicted} == {**result}
    assert (result["changed"], result["refusals"]) == (True, [])
    assert [(one["old"], one["new"], one["pci"]) for one in result["exchanges"]] == [
        (OLD, NEW, "0000:01:00.0"),
        ("GPU-h1-1", "GPU-new-1", "0000:02:00.0"),
    ]
    after = world.plan()
    assert after["serial"] == before["serial"] + 1
    for part in ("layout", "services"):
        assert json.dumps(after[part]) == json.dumps(before[part]).replace("GPU-h1-", "GPU-new-")
    assert {line["gpu"]: (line["mig"], line["instances"]) for line in after["base"]["gpus"]} == {NEW: (False, []), "GPU-new-1": (False, [])}
    (difference,) = result["diff"]
    assert (difference["before"], difference["after"]) == (world.old_text, (world.plans / "h1.yml").read_text(encoding="utf-8"))
    outcome = plan_record.begin(after, {**(world.record or {}), "state": "done", "standing": []}, world.observed(facts(world.exchanged())))
    assert (outcome.needed, outcome.stop, outcome.gone) == (True, ["ocr-1", "train-1"], [])
    assert world.run(world.exchanged())["changed"] is False


def test_a_plan_alone_tells_the_old_board_when_the_new_one_is_published_already(world: World) -> None:
    world.publish(world.exchanged())
    assert world.run(world.exchanged())["changed"] is True
    (world.plans / "h1.yml").write_text(world.old_text, encoding="utf-8")
    (world.facts / "h1.json").unlink()
    assert world.run(world.exchanged())["changed"] is True


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"name": "NVIDIA H100 PCIe", "device_id": "0x233110DE"},
            "in its slot is another model, NVIDIA H100 PCIe; plan again decides anew",
        ),
        ({"memory_mib": 40960}, "the new board has 40960 MiB and the old one had 81920; plan again decides anew"),
        ({"state": "error"}, "the new board in its slot, GPU-new-0, is error"),
        ({"mig": {"current": False, "pending": False, "geometry": "abc", "instances": []}}, "is cut in another way"),
    ],
)
def test_another_board_is_told_and_nothing_is_done(world: World, more: dict[str, t.Any], reason: str) -> None:
    one, other = world.exchanged()
    told = {"geometries": {A100.digest(): A100.to_dict(), "abc": A100.to_dict()}}
    result = world.run([{**one, **more}, {**world.there[1]}], facts=dict(told))
    assert (result["changed"], result["exchanges"]) == (False, [])
    assert len(result["refusals"]) == 1
    assert result["refusals"][0].startswith("h1 GPU-h1-0 (0000:01:00.0, a100-sxm4-80gb) is gone: ")
    assert reason in result["refusals"][0]
    both = world.run([{**one, **more}, other], facts=dict(told))
    assert (both["changed"], both["exchanges"], len(both["refusals"])) == (False, [], 1)
    assert "h1: nothing is changed for it while another of its GPUs is missing" in both["table"]
    assert world.untouched()


def test_another_slot_and_an_empty_one_are_told(world: World) -> None:
    one, kept = world.exchanged()[0], world.there[1]
    moved = world.run([kept, {**one, "pci": "0000:05:00.0"}])
    assert "its slot is empty, and a new board of its kind is in another slot, 0000:05:00.0; plan again" in moved["refusals"][0]
    assert world.run([kept])["refusals"][0].endswith("is gone: its slot is empty")
    nameless = {**one, "uuid": None, "pci": None, "state": "lost"}
    assert world.run([kept, nameless])["refusals"][0].endswith("its slot is empty, and 1 lost GPU of this host cannot be named")
    swapped = world.run([{**kept, "pci": "0000:01:00.0"}])
    assert "in its slot is GPU-h1-1, which is no new board: it was in slot 0000:02:00.0" in swapped["refusals"][0]
    assert world.untouched()


def test_boards_that_only_changed_their_slots_are_the_same_boards(world: World) -> None:
    one, other = world.there
    result = world.run([{**one, "pci": other["pci"]}, {**other, "pci": one["pci"]}])
    assert (result["changed"], result["table"]) == (False, ["every GPU that the plans and the facts published last name is there"])


def test_lines_of_the_inventory_are_shown_and_changed_to_the_letter_only_when_asked(world: World) -> None:
    path = world.inventory / "host_vars" / "h1.yml"
    path.parent.mkdir()
    text = f"# two boards\r\nfleet_cordoned_gpus: [{OLD}]\nother: {OLD}-x x{OLD} '{OLD.lower()}'\n"
    path.write_bytes(text.encode())
    path.chmod(0o600)
    (world.inventory / "link.yml").symlink_to(path)
    (world.inventory / ".hidden").write_text(OLD, encoding="utf-8")
    (world.inventory / "key").write_bytes(b"\xff\xfe" + OLD.encode())
    result = world.run(world.exchanged())
    assert [(one["line"], one["after"]) for one in result["mentions"]] == [
        (2, f"fleet_cordoned_gpus: [{NEW}]"),
        (3, f"other: {OLD}-x x{OLD} '{NEW}'"),
    ]
    assert f"{path}:2: fleet_cordoned_gpus: [{OLD}] -> fleet_cordoned_gpus: [{NEW}]" in result["table"]
    assert path.read_bytes() == text.encode()
    (world.plans / "h1.yml").write_text(world.old_text, encoding="utf-8")
    result = world.run(world.exchanged(), write_inventory=True)
    assert [each["after_header"] for each in result["diff"]] == [str(path), str(world.plans / "h1.yml")]
    assert path.read_bytes() == f"# two boards\r\nfleet_cordoned_gpus: [{NEW}]\nother: {OLD}-x x{OLD} '{NEW}'\n".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (world.inventory / ".hidden").read_text(encoding="utf-8") == OLD


def test_what_a_person_still_has_to_do_is_told(world: World) -> None:
    drain = {"gpu": OLD, "by": "lin", "reason": "board", "since": "x", "until": None, "force": False, "why": "gone"}
    result = world.run(world.exchanged(), facts={"drains_idle": [drain]})
    assert f"h1: {OLD} is still on record as drained by lin: playbook release with drain_gpu={OLD}" in result["table"]


def test_a_slice_that_was_found_without_compute_instance_is_made_whole_on_the_new_board(world: World) -> None:
    plan = world.plan()
    layout = [{**line, "compute": "keep"} if "profile" in line else line for line in plan["layout"]]
    plan.update(layout=layout, digest=plan_record.digest_of_plan(layout, plan["services"]))
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import to_text

    (world.plans / "h1.yml").write_text(to_text(plan), encoding="utf-8")
    world.run(world.exchanged())
    assert "keep" not in (world.plans / "h1.yml").read_text(encoding="utf-8")
