# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report's door: files in, one file out, as a play sees it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action.report import ARGUMENTS, run
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.modules.report import DOCUMENTATION
from ansible_collections.gpuops.fleet.plugins.plugin_utils import plans
from ansible_collections.gpuops.fleet.tests.tools import report_fleet as world

REPOSITORY = Path(__file__).resolve().parents[2]
SLICES = ("1g.10gb@0", "1g.10gb@1")
MANIFEST = """\
schema: 1
service: {name}
team: {team}
environment: production
image: registry.example.com/{name}@sha256:{digest}
gpu: {{memory: 8 GiB}}
"""


def plan_text(host: str, gpus: t.Sequence[dict[str, t.Any]], layout: list[dict[str, t.Any]], services: list[dict[str, t.Any]]) -> str:
    services = [{**line, "manifest": f"sha256:{'0' * 64}"} for line in services]
    return plans.to_text(
        {
            "plan": 1,
            "host": host,
            "serial": 3,
            "digest": plan_record.digest_of_plan(layout, services),
            "base": {"digest": plan_record.digest_of_state(gpus), "gpus": [plan_record.state_of(gpu) for gpu in gpus]},
            "layout": layout,
            "services": services,
        }
    )


@pytest.fixture
def site(tmp_path: Path) -> dict[str, t.Any]:
    """Arguments of the module for one host with two slices, one of them held, and one service without a place."""
    gpu = world.gpu(0, "a100", SLICES)
    for directory in ("manifests", "plans"):
        (tmp_path / directory).mkdir()
    for name, team in (("ocr", "claims"), ("chat", "assistant")):
        (tmp_path / "manifests" / f"{name}.yml").write_text(MANIFEST.format(name=name, team=team, digest="a" * 64))
    services = [world.on_slice("ocr", 1, gpu, SLICES[0], http=18000)]
    (tmp_path / "plans" / "gpu-01.yml").write_text(plan_text("gpu-01", [gpu], world.cut(gpu, *SLICES), services))
    (tmp_path / "plans" / "fleet.yml").write_text(plans.fleet_text([{"service": "chat", "replica": 1, "reason": "too large"}]))
    return {
        "hosts": {
            "gpu-01": {"facts": world.host(gpu, serial=3), "policy": {"fleet_environment": "production", "fleet_shared_reserve": "2 GiB"}}
        },
        "manifests": str(tmp_path / "manifests"),
        "plans": str(tmp_path / "plans"),
        "path": str(tmp_path / "reports" / "report.html"),
        "title": "GPU fleet",
        "generated": "",
        "live": False,
    }


def test_the_report_is_written_once_and_then_stands(site: dict[str, t.Any]) -> None:
    first = run(site, check_mode=False, diff=False)
    text = Path(site["path"]).read_text()
    assert first["changed"] is True
    assert first["path"] == site["path"]
    assert first["summary"]["memory_mib"]["held"] == 9856
    assert first["summary"]["services"] == {"known": 2, "placed": 1, "unplaced": ["chat"]}
    assert "too large" in text
    assert "claims" in text
    assert os.stat(site["path"]).st_mode & 0o777 == 0o644
    stamp = os.stat(site["path"]).st_mtime_ns
    second = run(site, check_mode=False, diff=True)
    assert (second["changed"], second["diff"]) == (False, [])
    assert os.stat(site["path"]).st_mtime_ns == stamp
    assert os.listdir(Path(site["path"]).parent) == ["report.html"]


def test_check_mode_says_what_would_change_and_writes_nothing(site: dict[str, t.Any]) -> None:
    predicted = run(site, check_mode=True, diff=True)
    assert predicted["changed"] is True
    assert not Path(site["path"]).parent.exists()
    done = run(site, check_mode=False, diff=True)
    assert done == predicted
    assert done["diff"][0]["before"] == ""
    assert done["diff"][0]["after"] == Path(site["path"]).read_text()
    assert "diff" not in run(site, check_mode=True, diff=False)


def test_a_policy_counts(site: dict[str, t.Any]) -> None:
    site["hosts"]["gpu-01"]["policy"]["fleet_cordoned_gpus"] = [0]
    memory = run(site, check_mode=True, diff=False)["summary"]["memory_mib"]
    assert (memory["held"], memory["free"], memory["unused"]) == (9856, 0, 0)
    assert memory["aside"] > 0


def test_a_host_that_is_called_down_gives_nothing_away(site: dict[str, t.Any]) -> None:
    site["hosts"]["gpu-01"]["down"] = True
    summary = run(site, check_mode=True, diff=False)["summary"]
    assert (summary["memory_mib"]["free"], summary["modes"]) == (0, {"out": 1})
    assert any(line.startswith("gpu-01: This host is down") for line in summary["alerts"])


def test_the_reserve_of_shared_gpus_comes_from_the_policy(site: dict[str, t.Any], tmp_path: Path) -> None:
    gpu = world.gpu(0, "l40s")
    (tmp_path / "plans" / "gpu-01.yml").write_text(plan_text("gpu-01", [gpu], [world.mode(gpu, "shared")], []))
    site["hosts"]["gpu-01"]["facts"] = world.host(gpu, serial=3)
    assert run(site, check_mode=True, diff=False)["summary"]["memory_mib"]["aside"] == 2048


def test_without_plans_policy_or_facts_the_report_says_what_is_missing(site: dict[str, t.Any], tmp_path: Path) -> None:
    site["plans"] = str(tmp_path / "none")
    site["hosts"] = {"gpu-01": {"facts": site["hosts"]["gpu-01"]["facts"], "policy": {}}, "gpu-02": {"facts": None}}
    result = run(site, check_mode=False, diff=False)
    assert result["summary"]["hosts"] == 2
    assert result["summary"]["alerts"] == [
        "gpu-02: There are no facts of this host: it was not reached, and its GPUs are not in the figures."
    ]
    assert result["summary"]["memory_mib"]["unused"] == 2 * 9856
    assert "In no plan yet:" in Path(site["path"]).read_text()


def test_readings_title_and_date_appear_when_asked_for(site: dict[str, t.Any]) -> None:
    run({**site, "live": True, "title": "Our GPUs", "generated": "On Monday."}, check_mode=False, diff=False)
    text = Path(site["path"]).read_text()
    assert "39 °C" in text
    assert "<title>Our GPUs</title>" in text
    assert "On Monday." in text


def test_a_template_of_the_site_is_used(site: dict[str, t.Any], tmp_path: Path) -> None:
    (tmp_path / "own.j2").write_text("{{ report.gpus|length }} GPUs, {{ title }}\n")
    run({**site, "template": str(tmp_path / "own.j2"), "title": "<b>"}, check_mode=False, diff=False)
    assert Path(site["path"]).read_text() == "1 GPUs, &lt;b&gt;\n"


def test_damage_is_one_line_and_the_old_report_stays(site: dict[str, t.Any], tmp_path: Path) -> None:
    run(site, check_mode=False, diff=False)
    before = Path(site["path"]).read_text()

    def refused(**changes: t.Any) -> str:
        with pytest.raises(FleetError) as caught:
            run({**copy.deepcopy(site), **changes}, check_mode=False, diff=False)
        assert Path(site["path"]).read_text() == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert refused(manifests=str(tmp_path / "none")).endswith("none: no such directory; create it, or name the right one")
    assert refused(hosts={"gpu-01": 5}) == "host gpu-01: not the facts and policy of a host; write {facts: ..., policy: ...}"
    assert refused(hosts={"gpu-01": {"facts": [1]}}).startswith("host gpu-01: not the facts and policy of a host")
    assert "host gpu-01" in refused(hosts={"gpu-01": {"facts": None, "policy": {"fleet_environment": 5}}})
    fleet = tmp_path / "plans" / "fleet.yml"
    for wrong in ("unplaced: 5\n", "unplaced: [5]\n", "unplaced: [{reason: x}]\n"):
        fleet.write_text(wrong)
        assert refused() == f"{fleet}:1: unplaced: not a list of services; make the plan again with the plan playbook"
    fleet.unlink()
    plan = tmp_path / "plans" / "gpu-01.yml"
    plan.write_text(plan.read_text().replace("1g.10gb, start: 1", "1g.10gb, start: 2"))
    assert str(plan) in refused()


def test_the_documentation_names_every_argument_as_the_door_takes_it() -> None:
    documented = {
        name: {key: option[key] for key in ("type", "required", "default") if key in option}
        for name, option in yaml.safe_load(DOCUMENTATION)["options"].items()
    }
    assert documented == ARGUMENTS


def play(site: dict[str, t.Any], tmp_path: Path, *options: str) -> tuple[int, dict[str, t.Any], str]:
    """Exit status, the task's result and all output of a real ansible-playbook run."""
    arguments = {key: value for key, value in site.items() if key not in ("title", "generated", "live")}
    task = {"name": "Draw", "gpuops.fleet.report": arguments}
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    (tmp_path / "ansible.cfg").touch()
    environment = {
        **os.environ,
        # neither the user's settings nor this repository's: the result is read as JSON
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / "collections"),
        "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "true",
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", "-v", *options, "play.yml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert "=> " in done.stdout, output
    result = json.JSONDecoder().raw_decode(done.stdout.partition("=> ")[2])[0]
    return done.returncode, result, output


def test_a_play_writes_the_report_and_a_second_run_changes_nothing(site: dict[str, t.Any], tmp_path: Path) -> None:
    status, result, output = play(site, tmp_path, "--check")
    assert (status, result["changed"]) == (0, True), output
    assert not Path(site["path"]).exists()
    status, result, output = play(site, tmp_path)
    assert (status, result["changed"]) == (0, True), output
    assert result["path"] == site["path"]
    assert result["summary"]["gpus"] == 1
    status, result, output = play(site, tmp_path)
    assert (status, result["changed"]) == (0, False), output


def test_a_play_with_a_broken_manifest_fails_with_one_line_and_no_traceback(site: dict[str, t.Any], tmp_path: Path) -> None:
    path = tmp_path / "manifests" / "ocr.yml"
    path.write_text(path.read_text() + "colour: red\n")
    status, result, output = play(site, tmp_path)
    assert status != 0
    assert f"{path}:7: colour" in result["msg"]
    assert "Traceback" not in output
    assert not Path(site["path"]).exists()
