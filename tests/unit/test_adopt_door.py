# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of an adoption on the controller: files in, files out, and the planner agrees with every one of them."""

from __future__ import annotations

import copy
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action import adopt as adopt_door
from ansible_collections.gpuops.fleet.plugins.action import plan as plan_door
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import begin, layout_is_true, state_of, wish_of
from decide_world import facts, gpu_facts, manifest_text

Made = dict[str, t.Any]
POLICY = {"fleet_environment": "production"}


def box(name: str, *devices: str, **more: t.Any) -> Made:
    made: Made = {"id": name, "name": name, "image": f"reg/{name}:1", "state": "running", "project": None, "service": None}
    return {**made, "devices": list(devices), "ports": [], "cpus": None, "memory_mib": None, "shm_mib": None, "labels": {}, **more}


def gpu(number: int = 0, slices: str = "", **more: t.Any) -> Made:
    return gpu_facts(number, slices=slices, **{"holders": [], **more})


class World:
    """A fleet of one or more hosts and its papers."""

    def __init__(self, root: Path, **hosts: Made) -> None:
        self.root = root
        self.hosts = {name: {"facts": made, "policy": dict(POLICY)} for name, made in hosts.items()}

    def adopt(self, check: bool = False, diff: bool = False, **more: t.Any) -> Made:
        arguments = {"hosts": self.hosts, "manifests": str(self.root / "m"), "plans": str(self.root / "p"), "layouts": None}
        return adopt_door.run({**arguments, "team": "unassigned", "ignore_images": [], **more}, check, diff)

    def replan(self) -> Made:
        """As playbook plan does: with facts that say nothing of users."""
        hosts = copy.deepcopy(self.hosts)
        for host in hosts.values():
            host["facts"].pop("containers")
            for each in host["facts"]["gpus"]:
                each.pop("holders")
        arguments = {
            "hosts": hosts,
            "manifests": str(self.root / "m"),
            "plans": str(self.root / "p"),
            "templates": [],
            "fail_unplaced": True,
        }
        return plan_door.run(arguments, False, False)

    def write(self, name: str, text: str) -> None:
        (self.root / "m").mkdir(exist_ok=True)
        (self.root / "m" / name).write_text(text, encoding="utf-8")

    def files(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text(encoding="utf-8") for path in sorted(self.root.rglob("*.yml"))}

    def plan(self, host: str = "h1") -> Made:
        data: Made = yaml.safe_load((self.root / "p" / f"{host}.yml").read_text(encoding="utf-8"))
        return data

    def layout(self, host: str = "h1") -> list[Made]:
        return [{key: value for key, value in line.items() if key not in ("pci", "model")} for line in self.plan(host)["layout"]]


def test_adopt_then_plan_changes_no_file_and_the_host_has_nothing_to_do(tmp_path: Path) -> None:
    gpus = [gpu(0, "1g.10gb@0 1g.10gb@4 2g.20gb@2"), gpu(1), gpu(2, "3g.40gb@0"), gpu(3)]
    made = facts(gpus, containers=[box("ocr", "MIG-h1-0-4"), box("llm", "GPU-h1-1")])
    world = World(tmp_path, h1=made)
    first = world.adopt()
    assert (first["changed"], first["services"], first["left_out"]) == (True, ["llm", "ocr"], [])
    assert first["table"] == [
        "HOST  PLACE                          SERVICE  FOUND AS",
        "h1    1g.10gb@4 of GPU 0000:01:00.0  ocr-1    container ocr",
        "h1    GPU 0000:02:00.0               llm-1    container llm",
    ]
    files = world.files()
    assert sorted(files) == ["m/llm.yml", "m/ocr.yml", "p/fleet.yml", "p/h1.yml"]
    assert world.layout() == [
        {"gpu": "GPU-h1-0", "mode": "mig"},
        {"gpu": "GPU-h1-0", "profile": "1g.10gb", "start": 0},
        {"gpu": "GPU-h1-0", "profile": "2g.20gb", "start": 2},
        {"gpu": "GPU-h1-0", "profile": "1g.10gb", "start": 4},
        {"gpu": "GPU-h1-1", "mode": "whole"},
        {"gpu": "GPU-h1-2", "mode": "mig", "found": True},
        {"gpu": "GPU-h1-2", "profile": "3g.40gb", "start": 0},
    ]
    again = world.adopt()
    assert (again["changed"], again["services"], again["table"]) == (False, [], first["table"])
    assert (world.replan()["changed"], world.files()) == (False, files)
    observed = {each["uuid"]: state_of(each) for each in gpus}
    assert layout_is_true(world.plan(), observed)
    assert begin(world.plan(), None, observed).needed is False


def test_check_mode_writes_nothing_and_shows_every_file(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0)], containers=[box("ocr", "GPU-h1-0")]))
    predicted = world.adopt(check=True, diff=True)
    assert (predicted["changed"], world.files()) == (True, {})
    shown = {entry["after_header"]: entry["after"] for entry in predicted["diff"]}
    assert "diff" not in world.adopt()
    assert {str(tmp_path / name): text for name, text in world.files().items()} == shown
    assert world.adopt(diff=True)["diff"] == []


def test_slices_that_nobody_can_use_yet_are_left_as_they_are_until_somebody_needs_them(tmp_path: Path) -> None:
    busy, idle = gpu(0, "1g.10gb@0 1g.10gb@1"), gpu(1, "1g.10gb@6")
    busy["mig"]["instances"][1]["ci"] = []
    idle["mig"]["instances"][0]["ci"] = []
    world = World(tmp_path, h1=facts([busy, idle], containers=[box("ocr", "MIG-h1-0-0")]))
    world.adopt()
    assert [line for line in world.layout() if "compute" in line] == [
        {"gpu": "GPU-h1-0", "profile": "1g.10gb", "start": 1, "compute": "keep"},
        {"gpu": "GPU-h1-1", "profile": "1g.10gb", "start": 6, "compute": "keep"},
    ]
    assert wish_of(world.plan())[1]["instances"] == [{"profile": "1g.10gb", "start": 6, "compute": "keep"}]
    assert world.replan()["changed"] is False
    world.write("face.yml", manifest_text("face", replicas="2"))
    assert world.replan()["unplaced"] == []
    assert [line for line in world.layout() if "compute" in line or "found" in line] == []


def test_a_slice_that_a_plan_asked_for_and_a_crash_left_without_compute_instance_is_made_whole(tmp_path: Path) -> None:
    board = gpu(0, "1g.10gb@0 1g.10gb@1")
    world = World(tmp_path, h1=facts([board], containers=[box("ocr", "MIG-h1-0-0")]))
    world.adopt()
    board["mig"]["instances"][1]["ci"] = []
    assert world.replan()["changed"] is False
    assert [line for line in world.layout() if "compute" in line] == []


def test_a_found_gpu_follows_what_is_on_the_board_and_leaves_the_plan_with_its_mig_mode(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0, "1g.10gb@0")], containers=[]))
    world.adopt()
    world.hosts["h1"]["facts"]["gpus"] = [gpu(0, "3g.40gb@4")]
    assert world.replan()["changed"] is True
    assert world.layout() == [{"gpu": "GPU-h1-0", "mode": "mig", "found": True}, {"gpu": "GPU-h1-0", "profile": "3g.40gb", "start": 4}]
    assert world.plan()["serial"] == 2
    world.hosts["h1"]["facts"]["gpus"] = [gpu(0)]
    world.replan()
    assert world.layout() == []


@pytest.mark.parametrize("state", [{"state": "lost", "mig": None}, {"mig": {**gpu(0, "1g.10gb@0")["mig"], "pending": False}}])
def test_a_gpu_that_does_not_answer_or_waits_for_a_reset_is_not_listed(tmp_path: Path, state: Made) -> None:
    world = World(tmp_path, h1=facts([{**gpu(0, "1g.10gb@0"), **state}, gpu(1, "1g.10gb@0")], containers=[]))
    world.adopt()
    assert {line["gpu"] for line in world.layout()} == {"GPU-h1-1"}


def test_many_sharers_and_ports_outside_the_range_are_kept_as_they_are(tmp_path: Path) -> None:
    """Policy says what may be planned; what runs, runs."""
    boxes = [box(f"b{number}", "GPU-h1-0", ports=[{"host": 80 + number, "container": 80, "protocol": "tcp"}]) for number in range(6)]
    world = World(tmp_path, h1=facts([gpu(0)], containers=boxes))
    world.adopt()
    lines = world.plan()["services"]
    assert [(line["service"], line["mode"], line["ports"]) for line in lines] == [
        (f"b{n}", "shared", {"port-80": 80 + n}) for n in range(6)
    ]
    assert world.replan()["changed"] is False


def test_the_reserve_of_a_shared_gpu_is_the_policys(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0)], containers=[box("aa", "GPU-h1-0"), box("bb", "GPU-h1-0")]))
    world.hosts["h1"]["policy"]["fleet_shared_reserve"] = "20 GiB"
    world.adopt()
    assert "gpu: {isolation: shared, memory: 30 GiB}" in world.files()["m/aa.yml"]


def test_services_that_wait_for_a_place_get_none_from_an_adoption(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0, "1g.10gb@0 1g.10gb@1")], containers=[box("ocr", "MIG-h1-0-0")]))
    world.write("face.yml", manifest_text("face"))
    world.adopt()
    assert [line["service"] for line in world.plan()["services"]] == ["ocr"]
    assert "p/fleet.yml" not in world.files()
    assert world.replan()["changed"] is True
    assert [line["service"] for line in world.plan()["services"]] == ["face", "ocr"]
    assert world.adopt()["changed"] is False


def test_a_container_that_only_watches_keeps_no_new_service_away(tmp_path: Path) -> None:
    exporter = box("exporter", "GPU-h1-0", image="nvcr.io/nvidia/k8s/dcgm-exporter:4.8.2")
    world = World(tmp_path, h1=facts([gpu(0)], containers=[exporter]))
    world.write("face.yml", manifest_text("face"))
    arguments = {"manifests": str(tmp_path / "m"), "plans": str(tmp_path / "p"), "templates": [], "fail_unplaced": False}
    assert plan_door.run({**arguments, "hosts": world.hosts}, False, False)["unplaced"] == []
    exporter["image"] = "reg/llm:1"
    assert (
        "busy with exporter, which is in no plan"
        in plan_door.run({**arguments, "plans": str(tmp_path / "q"), "hosts": world.hosts}, True, False)["unplaced"][0]["reason"]
    )


def test_an_existing_file_is_never_overwritten_whatever_is_in_it(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0)], containers=[box("ocr", "GPU-h1-0")]))
    world.write("ocr.yml", manifest_text("something-else"))
    assert world.adopt()["services"] == ["ocr-2"]
    assert world.files()["m/ocr.yml"] == manifest_text("something-else")


def test_a_second_host_is_added_beside_the_first(tmp_path: Path) -> None:
    first = World(tmp_path, h1=facts([gpu(0)], containers=[box("ocr", "GPU-h1-0")]))
    first.adopt()
    before = first.files()
    second = World(tmp_path, h2=facts([gpu_facts(0, "h2", holders=[])], containers=[box("ocr", "GPU-h2-0")]))
    assert second.adopt()["services"] == ["ocr-2"]
    after = second.files()
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == ["m/ocr-2.yml", "p/h2.yml"]


def test_layouts_are_exported_where_it_is_asked_and_kept_up_to_date(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0, "1g.10gb@0 1g.10gb@1")], containers=[]))
    text = 'version: v1\nmig-configs:\n  current:\n    - devices: all\n      mig-enabled: true\n      mig-devices:\n        "1g.10gb": 2\n'
    assert world.adopt()["layouts"] == {"h1": text}
    assert world.adopt(layouts=str(tmp_path / "l"))["changed"] is True
    assert world.files()["l/h1.yml"] == text
    assert world.adopt(layouts=str(tmp_path / "l"))["changed"] is False
    world.hosts["h1"]["facts"]["gpus"] = [gpu(0, "3g.40gb@0")]
    world.adopt(layouts=str(tmp_path / "l"))
    assert '"3g.40gb": 1' in world.files()["l/h1.yml"]


def test_what_is_left_out_is_told_by_host(tmp_path: Path) -> None:
    names = ["b", "a"]
    hosts = {name: facts([gpu_facts(0, name, holders=[])], containers=[box("x", "GPU-0"), box("c", "GPU-1")]) for name in names}
    result = World(tmp_path, **hosts).adopt()
    assert result["left_out"] == [
        {"host": host, "what": f"container {name}", "reason": f"it names {device}, which is not on this host"}
        for host in ("a", "b")
        for name, device in (("c", "GPU-1"), ("x", "GPU-0"))
    ]
    assert result["table"][-1] == "b: container x is left out: it names GPU-0, which is not on this host"


def refusal(world: World) -> str:
    files = world.files()
    with pytest.raises(FleetError) as caught:
        world.adopt()
    assert world.files() == files
    return str(caught.value)


def test_facts_that_do_not_say_who_uses_what_are_refused(tmp_path: Path) -> None:
    hint = "read them with gather: [containers, holders], as root, with the engine running"
    world = World(tmp_path, h1=facts([gpu(0)], containers=None))
    assert refusal(world) == f"host h1: facts.containers: which containers there are is not known; {hint}"
    world = World(tmp_path, h1=facts([gpu(0, holders=None)], containers=[]))
    assert refusal(world) == f"host h1: facts.gpus.holders: who uses GPU 0000:01:00.0 is not known; {hint}"
    lost = World(tmp_path, h1=facts([{**gpu(0, holders=None), "state": "lost", "mig": None}], containers=[]))
    assert lost.adopt()["changed"] is True


def test_a_policy_that_contradicts_what_runs_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0, "1g.10gb@0"), gpu(1)], containers=[box("ocr", "MIG-h1-0-0"), box("llm", "GPU-h1-1")]))
    pins = [{"gpu": 0, "mode": "mig", "slices": ["3g.40gb@0"]}, {"gpu": 1, "mode": "shared"}]
    world.hosts["h1"]["policy"]["fleet_gpu_layouts"] = pins
    hint = "and no plan can keep it there; let the policy allow what runs (fleet_gpu_layouts), or stop it first"
    assert refusal(world).splitlines() == [
        f"host h1: llm-1 runs on whole of GPU-h1-1, {hint}",
        f"host h1: ocr-1 runs on 1g.10gb@0 of GPU-h1-0, {hint}",
    ]


def test_bad_papers_are_refused_with_their_place(tmp_path: Path) -> None:
    world = World(tmp_path, h1=facts([gpu(0)], containers=[]))
    world.write("bad.yml", manifest_text("x", replicas="many"))
    assert refusal(world).startswith(f"{tmp_path}/m/bad.yml:")
    (tmp_path / "m" / "bad.yml").unlink()
    world.hosts["h1"]["policy"] = {}
    assert "fleet_environment" in refusal(world)
    world.hosts["h1"] = {"facts": {}, "policy": POLICY}
    assert refusal(world).startswith("host h1: facts: these are not host facts")
