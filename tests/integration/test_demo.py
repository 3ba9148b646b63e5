# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo as a person runs it: the whole job, then nothing; and the inventories that come with the collection."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("gpu-prod-01", "gpu-stage-01", "gpu-train-01")
SERVICES = {
    "receipt-ocr",
    "medical-certificate-ocr",
    "speech-to-text",
    "face-match",
    "llm-chat",
    "embeddings",
    "medical-imaging",
    "notebook",
}


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "demo" / "run.py"), *arguments], capture_output=True, text=True, check=False
    )


@dataclass
class Demo:
    work: Path
    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    work = tmp_path_factory.mktemp("demo")
    first = run_demo("--work", str(work))
    assert first.returncode == 0, first.stdout + first.stderr
    second = run_demo("--work", str(work))
    assert second.returncode == 0, second.stdout + second.stderr
    return Demo(work, first, second)


def recap(text: str) -> list[tuple[str, int]]:
    """(host, changed) of every recap line."""
    return [(host, int(changed)) for host, changed in re.findall(r"^\s*(\S+)\s+: ok=\d+\s+changed=(\d+) ", text, re.MULTILINE)]


def plans(work: Path) -> dict[str, dict[str, t.Any]]:
    return {host: yaml.safe_load((work / "plans" / f"{host}.yml").read_text(encoding="utf-8")) for host in HOSTS}


def test_the_first_run_changes_every_host_and_the_second_none(demo: Demo) -> None:
    first, second = recap(demo.first.stdout), recap(demo.second.stdout)
    assert {host for host, changed in first if changed} == set(HOSTS)
    assert len(second) == len(first) == 9
    assert {changed for _host, changed in second} == {0}
    assert "changed: nothing, every host is as planned" in demo.second.stdout
    assert "Traceback" not in demo.first.stdout + demo.second.stdout


def test_eight_services_of_three_teams_all_have_a_place(demo: Demo) -> None:
    manifests = read_manifests(door.read_texts(ROOT / "inventories" / "demo" / "manifests"))
    assert {manifest.service for manifest in manifests} == SERVICES
    assert len({manifest.model.team for manifest in manifests}) == 3
    placed = sorted((line["service"], line["replica"]) for plan in plans(demo.work).values() for line in plan["services"])
    assert placed == sorted((manifest.service, replica) for manifest in manifests for replica in range(1, manifest.model.replicas + 1))
    assert yaml.safe_load((demo.work / "plans" / "fleet.yml").read_text(encoding="utf-8"))["unplaced"] == []


def test_slices_whole_gpus_and_sharers_are_all_shown(demo: Demo) -> None:
    made = plans(demo.work)
    assert {line["mode"] for plan in made.values() for line in plan["layout"] if "mode" in line} == {"mig", "whole", "shared"}
    (llm,) = [line for line in made["gpu-stage-01"]["services"] if line["service"] == "llm-chat"]
    assert (llm["mode"], len(llm["gpus"])) == ("whole", 1)
    shared = {line["gpu"] for line in made["gpu-train-01"]["services"]}
    assert len(shared) == 1


def test_one_gpu_strands_a_memory_slice_and_the_other_has_room(demo: Demo) -> None:
    facts = json.loads((demo.work / "facts" / "gpu-prod-01.json").read_text(encoding="utf-8"))
    cut = [[f"{each['profile']}@{each['start']}" for each in gpu["mig"]["instances"]] for gpu in facts["gpus"]]
    assert cut[0] == [f"1g.10gb@{start}" for start in range(7)]
    assert len(cut[1]) >= 2
    used = sum(
        profile["size"]
        for name in cut[1]
        for profile in facts["geometries"][facts["gpus"][1]["mig"]["geometry"]]["profiles"]
        if profile["name"] == name.split("@")[0]
    )
    assert used < 8


def test_every_path_of_a_host_lies_below_the_demos_directory(demo: Demo) -> None:
    for host in HOSTS:
        for path in ("state/plan.json", "services"):
            assert (demo.work / host / path).exists()
        facts = json.loads((demo.work / "facts" / f"{host}.json").read_text(encoding="utf-8"))
        assert facts["errors"] == []
        assert facts["host"]["hostname"] == host
        assert facts["host"]["disk"]["path"].startswith(str(demo.work / host))


def test_it_ends_with_a_table_and_the_reports_path(demo: Demo) -> None:
    lines = demo.first.stdout.rstrip().splitlines()
    assert lines[-1] == f"report:  {demo.work / 'reports' / 'report.html'}"
    assert Path(lines[-1].removeprefix("report:  ")).stat().st_size > 10_000
    for host in HOSTS:
        assert any(line.startswith(host + "  ") for line in lines)


def test_a_failing_playbook_ends_it_with_the_tasks_own_words(demo: Demo) -> None:
    broken = demo.work / "plans" / "gpu-prod-01.yml"
    good = broken.read_bytes()
    broken.write_bytes(good + b"more: true\n")
    try:
        done = run_demo("--work", str(demo.work))
    finally:
        broken.write_bytes(good)
    assert done.returncode == 1
    assert f"{broken}:" in done.stderr
    assert "unknown field 'more'" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_collection_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run_demo("--work", str(tmp_path / "work"), "--collections", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"demo: the collection gpuops.fleet is not installed in {tmp_path}; run: make setup\n"


def inventory(name: str) -> dict[str, t.Any]:
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(ROOT / "inventories" / name / "hosts.yml"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    listing: dict[str, t.Any] = json.loads(done.stdout)
    return listing


@pytest.mark.parametrize(("name", "count"), [("demo", 3), ("example", 12)])
def test_an_inventory_lists_its_hosts_and_its_policy_is_right(name: str, count: int) -> None:
    listing = inventory(name)
    others = listing.get("gateways", {"hosts": []})["hosts"]
    hosts = {host: variables for host, variables in listing["_meta"]["hostvars"].items() if host not in others}
    assert len(hosts) == count
    environments = {
        read_policy(host, {key: value for key, value in variables.items() if key.startswith("fleet_")}).fleet_environment
        for host, variables in hosts.items()
    }
    assert environments == {"production", "staging", "training"}


@pytest.mark.parametrize("name", ["demo", "example"])
def test_an_inventorys_manifests_are_right_and_of_its_environments(name: str) -> None:
    manifests = read_manifests(door.read_texts(ROOT / "inventories" / name / "manifests"), ["http", "vllm"])
    assert len(manifests) >= 8
    assert {manifest.model.environment for manifest in manifests} <= {"production", "staging", "training"}
