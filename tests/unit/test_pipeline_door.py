# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The doors of the pipeline: what they write, what check mode promises, and that nothing is written while anything is wrong."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.action import pipeline, sources
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import to_text
from decide_world import DIGEST

LIST = "sources: 1\nprojects:\n  - {project: claims/services, team: claims, services: [claims-*]}\n"


def manifest(service: str = "claims-a", version: str = DIGEST) -> str:
    return (
        f"schema: 1\nservice: {service}\nteam: claims\nenvironment: staging\nimage: r/x@sha256:{version}\n"
        "gpu: {memory: 8 GiB}\nports: [{name: http, container: 8080}]\n"
    )


@pytest.fixture
def project(tmp_path: Path) -> dict[str, t.Any]:
    """Arguments of the door ``sources``, with one project checked out."""
    (tmp_path / "sources.yml").write_text(LIST, encoding="utf-8")
    manifests = tmp_path / "checkouts" / "claims.services@main" / "manifests"
    manifests.mkdir(parents=True)
    (manifests / "a.yml").write_text(manifest(), encoding="utf-8")
    return {
        "path": str(tmp_path / "sources.yml"),
        "checkouts": str(tmp_path / "checkouts"),
        "manifests": str(tmp_path / "gathered"),
        "own": None,
        "templates": [],
        "candidate": None,
    }


def test_gathering_writes_what_check_mode_promised_once_and_takes_away_what_is_gone(project: dict[str, t.Any]) -> None:
    gathered = Path(project["manifests"])
    promised = sources.run(project, True, True)
    assert promised["changed"]
    assert not gathered.exists()
    done = sources.run(project, False, True)
    assert (done["services"], done["diff"]) == (["claims-a"], promised["diff"])
    assert (gathered / "claims-a.yml").read_text(encoding="utf-8") == manifest()
    assert not sources.run(project, False, True)["changed"]
    there = Path(project["checkouts"]) / "claims.services@main" / "manifests"
    (there / "a.yml").write_text(manifest("claims-b"), encoding="utf-8")
    assert sources.run(project, False, False)["changed"]
    assert [path.name for path in gathered.iterdir()] == ["claims-b.yml"]


def test_a_working_tree_stands_for_its_project_and_is_not_fetched(project: dict[str, t.Any], tmp_path: Path) -> None:
    (tmp_path / "mine" / "manifests").mkdir(parents=True)
    (tmp_path / "mine" / "manifests" / "x.yml").write_text(manifest("claims-mine"), encoding="utf-8")
    candidate = {"project": "claims/services", "ref": "main", "path": str(tmp_path / "mine")}
    told = sources.run({**project, "candidate": candidate}, False, False)
    assert (told["sources"], told["services"]) == ([], ["claims-mine"])


@pytest.mark.parametrize("where", ["manifests", "manifests/b.yml"])
def test_a_link_out_of_a_project_is_refused(project: dict[str, t.Any], tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.yml").write_text(manifest(), encoding="utf-8")
    link = Path(project["checkouts"]) / "claims.services@main" / where
    if where == "manifests":
        (link / "a.yml").unlink()
        link.rmdir()
        link.symlink_to(outside)
    else:
        link.symlink_to(outside / "secret.yml")
    with pytest.raises(FleetError, match="a project of manifests has no links"):
        sources.run(project, False, False)
    assert not Path(project["manifests"]).exists()


def test_nothing_is_gathered_while_anything_is_wrong(project: dict[str, t.Any]) -> None:
    there = Path(project["checkouts"]) / "claims.services@main" / "manifests"
    (there / "b.yml").write_text(manifest("other-team"), encoding="utf-8")
    with pytest.raises(FleetError, match="does not own 'other-team'"):
        sources.run(project, False, False)
    assert not Path(project["manifests"]).exists()
    (there / "a.yml").unlink()
    (there / "b.yml").unlink()
    there.rmdir()
    with pytest.raises(FleetError, match=r"sources.yml:3: .*has no directory 'manifests'"):
        sources.run(project, False, False)


def plan_file(path: Path, text: str, serial: int = 1) -> dict[str, t.Any]:
    """Write the plan of host h1 with one replica of a manifest; returns its data."""
    layout = [
        {"gpu": "GPU-a", "pci": "0000:07:00.0", "model": "a100-sxm4-80gb", "mode": "mig"},
        {"gpu": "GPU-a", "profile": "1g.10gb", "start": 0},
    ]
    found = read_manifest("a.yml", text)
    services = [
        {
            "service": found.service,
            "replica": 1,
            "gpu": "GPU-a",
            "profile": "1g.10gb",
            "start": 0,
            "ports": {"http": 18000},
            "manifest": found.digest(),
        }
    ]
    base: list[dict[str, t.Any]] = [{"gpu": "GPU-a", "mig": False, "instances": []}]
    data = {
        "plan": 1,
        "host": "h1",
        "serial": serial,
        "digest": plan_record.digest_of_plan(layout, services),
        "base": {"digest": plan_record.digest_of_base(base), "gpus": base},
        "layout": layout,
        "services": services,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(data), encoding="utf-8")
    (path.parent / "fleet.yml").write_text("plan: 1\nunplaced: []\n", encoding="utf-8")
    return data


@pytest.fixture
def papers(tmp_path: Path) -> dict[str, t.Any]:
    """Arguments of the door ``pipeline``: one service at two versions."""
    for when, version in (("before", DIGEST), ("now", "b" * 64)):
        plan_file(tmp_path / when / "plans" / "h1.yml", manifest(version=version), 1 if when == "before" else 2)
        (tmp_path / when / "manifests").mkdir()
        (tmp_path / when / "manifests" / "a.yml").write_text(manifest(version=version), encoding="utf-8")
    defaults = {name: option.get("default") for name, option in pipeline.ARGUMENTS.items()}
    paths = {name: str(tmp_path / f"out/{name}") for name in ("child", "widget", "page", "pending")}
    return {
        **defaults,
        **paths,
        "before": str(tmp_path / "before" / "plans"),
        "manifests_before": str(tmp_path / "before" / "manifests"),
        "plans": str(tmp_path / "now" / "plans"),
        "manifests": str(tmp_path / "now" / "manifests"),
    }


def test_the_pipeline_is_written_as_check_mode_promised_and_the_second_time_not(papers: dict[str, t.Any]) -> None:
    assert pipeline.run(papers, True, True)["changed"]
    assert not Path(papers["child"]).exists()
    done = pipeline.run(papers, False, True)
    assert [work["job"] for work in done["work"]] == ["deploy claims-a on h1"]
    assert json.loads(Path(papers["widget"]).read_text(encoding="utf-8")) == {"create": 0, "update": 1, "delete": 0}
    assert "deploy claims-a on h1:" in Path(papers["child"]).read_text(encoding="utf-8")
    assert "new version" in Path(papers["page"]).read_text(encoding="utf-8")
    assert "claims-a: {team: claims, environment: staging}" in Path(papers["pending"]).read_text(encoding="utf-8")
    again = {**papers, "pending": None}
    assert not pipeline.run(again, False, False)["changed"]


def test_plans_that_are_not_there_take_nobody_away(papers: dict[str, t.Any]) -> None:
    with pytest.raises(FleetError, match=r"there is no such directory, and .* has plans: all of their services would be removed") as told:
        pipeline.run({**papers, "plans": f"{papers['plans']}-elsewhere"}, False, False)
    assert str(told.value).startswith(f"{papers['plans']}-elsewhere: ")


def test_a_host_that_is_done_clears_what_waited(papers: dict[str, t.Any]) -> None:
    pipeline.run(papers, False, False)
    now = plan_file(Path(papers["plans"]) / "h1.yml", manifest(version="b" * 64), 2)
    carried = {"serial": 2, "digest": now["digest"], "state": "done"}
    settled = {**papers, "before": papers["plans"], "manifests_before": papers["manifests"]}
    waiting = pipeline.run({**settled, "hosts": {"h1": {"facts": {"plan": {**carried, "state": "started"}}}}}, False, False)
    assert [work["kind"] for work in waiting["work"]] == ["deploy"]
    done = pipeline.run({**settled, "hosts": {"h1": {"facts": {"plan": carried}}}}, False, False)
    assert done["work"] == []
    assert "nothing to deploy" in Path(papers["child"]).read_text(encoding="utf-8")
    assert Path(papers["pending"]).read_text(encoding="utf-8") == "pending: 1\nhosts: {}\n"


def test_a_host_that_is_down_keeps_its_work_and_the_page_says_so(papers: dict[str, t.Any]) -> None:
    done = pipeline.run({**papers, "hosts": {"h1": {"facts": None, "down": True}}}, False, False)
    assert done["work"] == []
    assert "h1 is down: what is to be done there waits" in Path(papers["page"]).read_text(encoding="utf-8")
    assert "claims-a: {team: claims, environment: staging}" in Path(papers["pending"]).read_text(encoding="utf-8")
    back = {"plan": {"serial": 1, "digest": "sha256:older", "state": "done"}}
    settled = {**papers, "before": papers["plans"], "manifests_before": papers["manifests"], "hosts": {"h1": {"facts": back}}}
    assert [work["job"] for work in pipeline.run(settled, False, False)["work"]] == ["deploy claims-a on h1"]
