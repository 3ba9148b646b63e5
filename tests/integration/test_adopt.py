# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that were set up by hand are taken over by real ansible-playbook processes, and nothing on them changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from dataclasses import dataclass, field

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils import layouts
from fleet_site import SIMULATOR, container, engine
from own_play import run_task

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played, Site

# What an engineer does with NVIDIA's own library: no plan, no record, whatever order came to mind.
CUT = """
import ctypes, json, sys
import pynvml as n
n.nvmlInit()
for gpu, slices in json.loads(sys.argv[1]).items():
    handle = n.nvmlDeviceGetHandleByIndex(int(gpu))
    for profile, start, size, usable in slices:
        place = n.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = start, size
        gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, ctypes.byref(place))
        if usable:
            n.nvmlGpuInstanceCreateComputeInstance(gi, 0 if profile == 19 else 2)
"""
ONE_G, THREE_G = 19, 9


class Hand:
    """The hands of the engineer who set a host up."""

    def __init__(self, site: Site, host: str) -> None:
        self.site = site
        self.host = host
        self.containers: list[dict[str, t.Any]] = []

    def boards(self, *boards: str) -> None:
        self.site.simctl(self.host, "create", "--force", *(part for board in boards for part in ("--board", board)))

    def cut(self, **gpus: list[tuple[int, int, int, bool]]) -> None:
        """``gpu0=[(profile id, start, size, with a compute instance)]``."""
        wanted = {name.removeprefix("gpu"): slices for name, slices in gpus.items()}
        for gpu in wanted:
            self.site.simctl(self.host, "set", "--gpu", gpu, "mig", "on")
        env = {**os.environ, "LD_LIBRARY_PATH": str(SIMULATOR), "NVML_SIM_STATE": str(self.site.work / self.host / "gpus")}
        done = subprocess.run([sys.executable, "-c", CUT, json.dumps(wanted)], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def gpus(self) -> list[dict[str, t.Any]]:
        found: list[dict[str, t.Any]] = json.loads(self.site.simctl(self.host, "show", "--json"))["gpus"]
        return found

    def uuid(self, gpu: int, start: int | None = None) -> str:
        """Of a GPU, or of the slice that starts there."""
        found = self.gpus()[gpu]
        if start is None:
            return str(found["uuid"])
        return next(str(one["ci"][0]["uuid"]) for one in found["mig"]["instances"] if one["start"] == start)

    def run(self, name: str, *devices: str, port: int, image: str | None = None, **labels: str) -> None:
        made = container(0, name, "", port)
        made["Id"] = f"{len(self.containers) + 10:02x}" * 32
        made["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] = list(devices)
        made["Config"]["Labels"] = {key.replace("_", "."): value for key, value in labels.items()}
        made["Config"]["Image"] = image or made["Config"]["Image"]
        self.containers.append(made)

    def program(self, name: str, pid: int, gpu: int, start: int | None = None) -> None:
        """A process outside containers that computes on a slice or a GPU."""
        home = self.site.work / self.host / "proc" / str(pid)
        home.mkdir()
        (home / "status").write_text(f"Name:\t{name}\nUid:\t0\t0\t0\t0\n", encoding="utf-8")
        place = (
            [] if start is None else ["--gi", str(next(one["gi"] for one in self.gpus()[gpu]["mig"]["instances"] if one["start"] == start))]
        )
        self.site.simctl(self.host, "hold", "--gpu", str(gpu), *place, "--pid", str(pid), "--name", name)


@dataclass
class Story:
    """Two hosts set up by hand, adopted, adopted again, planned and carried out. Nobody changes the site afterwards."""

    site: Site
    hand: Hand
    before: dict[str, list[t.Any]]
    on_hosts: dict[str, bytes]
    predicted: Played
    papers_predicted: list[str]
    runs: dict[str, Played] = field(default_factory=dict)
    papers: dict[str, dict[str, bytes]] = field(default_factory=dict)


def papers_of(site: Site) -> dict[str, bytes]:
    places = [site.manifests, site.plans]
    return {path.name: path.read_bytes() for place in places if place.is_dir() for path in place.iterdir()}


def on_hosts(site: Site) -> dict[str, bytes]:
    """Every file on the hosts but the empty locks, which hold nothing, and the layout that a host remembers for its next boot."""
    aside = (".lock", "/layout.json")
    return {name: text for name, text in site.files().items() if name.partition("/")[0] in site.hosts and not name.endswith(aside)}


@pytest.fixture(scope="module")
def story(make_site: MakeSite) -> t.Iterator[Story]:
    site = make_site(host_a="a100-80gb:1", host_b="h100-80gb:2")
    hand, other = Hand(site, "host-a"), Hand(site, "host-b")
    hand.boards("a100-80gb:3", "l40s-48gb:2")
    seven = [(ONE_G, start, 1, True) for start in range(7)]
    hand.cut(gpu0=seven, gpu1=[(ONE_G, 2, 1, False), (THREE_G, 4, 4, True), (ONE_G, 0, 1, True)])
    compose = {"com_docker_compose_project": "receipts", "com_docker_compose_service": "ocr", "gpuops_team": "claims"}
    hand.run("receipts-ocr-1", hand.uuid(0, 0), port=9001, image="registry.example.com/ocr:7", **compose)
    hand.run("receipts-ocr-2", hand.uuid(0, 5), port=9002, image="registry.example.com/ocr:7", **compose)
    hand.run("Speech_to.Text", hand.uuid(0, 3), port=9003)
    hand.run("exporter", "0", "1", "2", "3", "4", port=9400, image="nvcr.io/nvidia/k8s/dcgm-exporter:4.8.2")
    hand.run("notebook", hand.uuid(3), port=8888)
    hand.program("train.py", 4242, 3)
    hand.program("rank", 4343, 0, 6)
    other.run("llm", other.uuid(0), other.uuid(1), port=8000, image="registry.example.com/vllm@sha256:" + "c" * 64)
    with (
        engine(site.work / "host-a" / "docker.sock", hand.containers),
        engine(site.work / "host-b" / "docker.sock", other.containers),
    ):
        before, files = site.mutations(), on_hosts(site)
        predicted = site.done("adopt", "--check", "--diff")
        told = Story(site, hand, before, files, predicted, sorted(papers_of(site)))
        for name, playbook in (("adopt", "adopt"), ("again", "adopt"), ("plan", "plan"), ("apply", "apply"), ("last", "plan")):
            told.runs[name] = site.done(playbook)
            told.papers[name] = papers_of(site)
        yield told


def manifest(story: Story, service: str) -> dict[str, t.Any]:
    data: dict[str, t.Any] = yaml.safe_load(story.papers["adopt"][f"{service}.yml"])
    return data


def lines(story: Story, host: str, part: str, gpu: int) -> list[dict[str, t.Any]]:
    """Lines of the plan that name this GPU, without its name."""
    uuid = story.hand.uuid(gpu)
    found = yaml.safe_load(story.papers["adopt"][f"{host}.yml"])[part]
    return [
        {key: value for key, value in line.items() if key not in ("gpu", "gpus", "manifest")}
        for line in found
        if uuid in (line.get("gpu"), *line.get("gpus", []))
    ]


def test_check_mode_writes_nothing_and_predicts_every_file(story: Story) -> None:
    assert story.papers_predicted == []
    for name in story.papers["adopt"]:
        assert f"{name}\n" in story.predicted.output


def test_every_user_of_a_gpu_has_a_manifest(story: Story) -> None:
    services = {name.removesuffix(".yml") for name in story.papers["adopt"]} - {"fleet", "host-a", "host-b"}
    assert services == {"receipts-ocr", "speech-to-text", "notebook", "process-train-py", "process-rank", "llm"}
    assert {manifest(story, service)["lifecycle"] for service in services} == {"adopted"}


def test_containers_of_one_compose_service_are_replicas(story: Story) -> None:
    found = manifest(story, "receipts-ocr")
    assert (found["team"], found["environment"], found["replicas"]) == ("claims", "production", 2)
    assert found["image"] == "registry.example.com/ocr:7"
    assert found["gpu"] == {"isolation": "slice", "memory": "9856 MiB"}
    assert found["host"] == {"cpus": 2, "memory": "8 GiB", "shm": "64 MiB"}
    assert found["ports"] == [{"name": "port-8080", "container": 8080}]
    assert [
        (line["service"], line["replica"], line["profile"], line["start"], line["ports"], line["lifecycle"])
        for line in lines(story, "host-a", "services", 0)
        if line["service"] == "receipts-ocr"
    ] == [
        ("receipts-ocr", 1, "1g.10gb", 0, {"port-8080": 9001}, "adopted"),
        ("receipts-ocr", 2, "1g.10gb", 5, {"port-8080": 9002}, "adopted"),
    ]


def test_a_program_outside_containers_keeps_its_slice(story: Story) -> None:
    assert "image" not in manifest(story, "process-rank")
    assert manifest(story, "process-rank")["description"] == "Found running as program rank of root on host-a"
    assert {(line["service"], line.get("start")) for line in lines(story, "host-a", "services", 0)} >= {("process-rank", 6)}


def test_a_container_and_a_program_on_one_gpu_share_it(story: Story) -> None:
    half = (46068 - 1024) // 2
    for service in ("notebook", "process-train-py"):
        assert manifest(story, service)["gpu"] == {"isolation": "shared", "memory": f"{half} MiB"}
    assert {line["mode"] for line in lines(story, "host-a", "services", 3)} == {"shared"}
    assert [line["mode"] for line in lines(story, "host-a", "layout", 3)] == ["shared"]


def test_one_container_on_two_gpus_has_both_for_itself(story: Story) -> None:
    found = manifest(story, "llm")
    assert found["gpu"] == {"isolation": "exclusive", "count": 2, "memory": "81559 MiB"}
    assert found["image"].endswith("@sha256:" + "c" * 64)
    assert found["ports"] == [{"name": "port-8080", "container": 8080, "host": 8000}]


def test_slices_without_a_user_are_in_the_plan(story: Story) -> None:
    assert [line.get("start") for line in lines(story, "host-a", "layout", 0)] == [None, 0, 1, 2, 3, 4, 5, 6]
    gpu, *slices = lines(story, "host-a", "layout", 1)
    assert (gpu["mode"], gpu["found"]) == ("mig", True)
    assert slices == [
        {"profile": "1g.10gb", "start": 0},
        {"profile": "1g.10gb", "start": 2, "compute": "keep"},
        {"profile": "3g.40gb", "start": 4},
    ]


def test_a_gpu_that_nobody_cut_or_uses_is_not_in_the_plan(story: Story) -> None:
    for gpu in (2, 4):
        assert lines(story, "host-a", "layout", gpu) == []


def test_what_only_watches_is_told_and_has_no_place(story: Story) -> None:
    assert "host-a: container exporter is left out: it only watches" in story.runs["adopt"].output


def test_adopting_again_writes_the_same_bytes_and_reports_no_change(story: Story) -> None:
    assert story.papers["again"] == story.papers["adopt"]
    assert story.runs["again"].changed() == []


def test_plan_and_apply_after_it_change_nothing(story: Story) -> None:
    for name in ("plan", "apply", "last"):
        assert story.runs[name].changed() == [], name
        assert story.papers[name] == story.papers["adopt"], name
    assert story.site.mutations() == story.before
    assert on_hosts(story.site) == story.on_hosts


def test_a_new_service_takes_nobodys_place(story: Story, tmp_path: t.Any) -> None:
    site = story.site.copy(tmp_path / "site")
    site.manifest("face", "6 GiB", replicas=3)
    site.done("plan")
    services = site.plan("host-a")["services"]
    places = [(line.get("gpu"), line.get("start")) for line in services if line.get("start") is not None]
    assert len(set(places)) == len(places)
    assert len([line for line in services if line["service"] == "face"]) == 3
    assert [line for line in services if line["service"] != "face"] == yaml.safe_load(story.papers["adopt"]["host-a.yml"])["services"]


def test_a_manifest_that_somebody_has_edited_is_never_overwritten(story: Story, tmp_path: t.Any) -> None:
    site = story.site.copy(tmp_path / "site")
    path = site.manifests / "notebook.yml"
    path.write_text(path.read_text(encoding="utf-8").replace("team: unassigned", "team: research"), encoding="utf-8")
    edited = papers_of(site)
    with engine(site.work / "host-a" / "docker.sock", story.hand.containers):
        site.done("adopt", "--limit", "host-a")
    now = papers_of(site)
    assert {name for name in edited if now[name] != edited[name]} == {"host-a.yml"}
    assert sorted(now) == sorted(edited)


def test_an_exported_layout_reads_as_mig_parted_wants_it(story: Story, tmp_path: t.Any) -> None:
    site = story.site.copy(tmp_path / "site")
    task = {
        "gpuops.fleet.adopt": {
            "hosts": "{{ ansible_play_hosts | gpuops.fleet.fleet_hosts(hostvars, fleet_facts) }}",
            "manifests": "{{ fleet_manifests }}",
            "plans": "{{ fleet_plans }}",
            "layouts": str(tmp_path / "layouts"),
        },
        "run_once": True,
    }
    facts = {"role": "gpuops.fleet.fleet", "vars": {"fleet_gather": ["containers", "holders"]}}
    answer = run_task(site, tmp_path / "book", task, roles=[facts])
    assert answer.status == 0, answer.output
    entries = layouts.parse((tmp_path / "layouts" / "host-a.yml").read_text(encoding="utf-8"), "f").select("current")
    assert [(entry.devices, entry.mig, dict(entry.instances)) for entry in entries] == [
        ((0,), True, {"1g.10gb": 7}),
        ((1,), True, {"1g.10gb": 2, "3g.40gb": 1}),
        ((2,), False, {}),
    ]
