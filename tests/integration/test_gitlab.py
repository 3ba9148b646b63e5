# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GitLab pipeline, executed: two sample projects, merge requests, plans, child pipelines, down to compose files on the hosts."""

from __future__ import annotations

import re
import subprocess
import sys
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from gitlab_site import HOSTS, SECRET, GitLab, Pipeline, widget

ROOT = Path(__file__).resolve().parents[2]
NEXT = "registry.example.com/claims/receipt-ocr@sha256:" + "7" * 64
pytestmark = pytest.mark.slow


@dataclass
class Story:
    """What happened, step by step; each step is run once, and the tests below look at it."""

    gitlab: GitLab
    runs: dict[str, Pipeline] = field(default_factory=dict)
    children: dict[str, dict[str, t.Any]] = field(default_factory=dict)
    hosts: dict[str, dict[str, dict[str, t.Any]]] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    widgets: dict[str, dict[str, int]] = field(default_factory=dict)
    pending: dict[str, t.Any] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)

    def protected(self, name: str, *options: str, **more: str) -> None:
        """A pipeline of the platform's protected branch, and what is there after it."""
        self.runs[name] = self.gitlab.protected(*options, **more)
        self.children[name] = self.gitlab.child()
        self.pending[name] = yaml.safe_load(self.gitlab.state("pending.yml"))["hosts"]
        for host in HOSTS:
            self.hosts.setdefault(name, {}).update(self.gitlab.services(host))

    def jobs(self, name: str) -> list[str]:
        """Jobs of a child pipeline that would run or wait, without those that only a person starts."""
        known = [job for job in self.children[name] if not job.startswith(".") and job not in ("stages", "variables")]
        return [job for job in known if not job.startswith(("stop ", "rollback ", "frozen"))]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    gitlab = GitLab(tmp_path_factory.mktemp("gitlab"))
    story = Story(gitlab)
    manifests = gitlab.claims / "manifests"
    story.protected("first", "--manual", "approve receipt-ocr")
    story.protected("again")

    gitlab.git(gitlab.claims, "switch", "--quiet", "--create", "bad")
    receipt = (manifests / "receipt-ocr.yml").read_text(encoding="utf-8")
    (manifests / "receipt-ocr.yml").write_text(receipt.replace("replicas: 2", "replicsa: 2"), encoding="utf-8")
    form = (manifests / "form-ocr.yml").read_text(encoding="utf-8")
    (manifests / "form-ocr.yml").write_text(form.replace("team: claims", "team: underwriting"), encoding="utf-8")
    (manifests / "llm-chat.yml").write_text(form.replace("service: form-ocr", "service: llm-chat"), encoding="utf-8")
    gitlab.commit(gitlab.claims, "Two mistakes and two reaches too far", push=False)
    story.runs["bad"] = gitlab.merge_request(gitlab.claims)

    gitlab.git(gitlab.claims, "switch", "--quiet", "--create", "good", "main")
    (manifests / "receipt-ocr.yml").write_text(re.sub(r"image: .*", f"image: {NEXT}", receipt), encoding="utf-8")
    new = form.replace("service: form-ocr", "service: claims-letters").replace("memory: 18 GiB", "memory: 8 GiB")
    (manifests / "claims-letters.yml").write_text(new, encoding="utf-8")
    (manifests / "form-ocr.yml").unlink()
    gitlab.commit(gitlab.claims, "One changed, one new, one removed", push=False)
    with tripwires(gitlab, story.touched):
        story.runs["good"] = gitlab.merge_request(gitlab.claims)
    story.widgets["good"] = widget(gitlab.claims)
    story.pages["good"] = (gitlab.claims / "out" / "preview.html").read_text(encoding="utf-8")

    gitlab.git(gitlab.claims, "push", "--quiet", "origin", "good:main")
    story.protected("frozen", CI_DEPLOY_FREEZE="true")
    story.protected("waiting")
    story.protected("approved", "--manual", "approve receipt-ocr")
    story.protected("done")
    return story


class tripwires:  # noqa: N801  # used like a function
    """While it lasts, a host whose Python is started says so and does nothing."""

    def __init__(self, gitlab: GitLab, touched: list[str]) -> None:
        self.pythons = {host: gitlab.work / host / "bin" / "python" for host in HOSTS}
        self.texts = {host: path.read_text(encoding="utf-8") for host, path in self.pythons.items()}
        self.touched = touched

    def __enter__(self) -> None:
        for host, path in self.pythons.items():
            path.write_text(f"#!/bin/sh\ntouch '{path.parent}/{host}.touched'\nexit 1\n", encoding="utf-8")

    def __exit__(self, *_error: object) -> None:
        for host, path in self.pythons.items():
            path.write_text(self.texts[host], encoding="utf-8")
            if (path.parent / f"{host}.touched").exists():
                self.touched.append(host)


def images(story: Story, step: str) -> dict[str, str]:
    """Replica -> image of its compose file after a step."""
    return {name: next(iter(data["services"].values()))["image"] for name, data in story.hosts[step].items()}


def assert_in_order(run: Pipeline, *jobs: str) -> None:
    """Was each of these jobs started after the one before it?"""
    assert [job for job in run.started if job in jobs] == list(jobs)


def test_the_first_pipeline_brings_every_service_to_its_host(story: Story) -> None:
    run = story.runs["first"]
    assert (run.status, run.failed) == (0, []), run.output
    assert sorted(run.started) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy form-ocr on gpu-stage-01",
        "deploy preview-claims-receipts on gpu-stage-01",
        "deploy receipt-ocr on gpu-prod-01",
        "deploy receipt-ocr on gpu-prod-02",
        "plan",
    ]
    assert_in_order(run, "plan", "approve receipt-ocr", "deploy receipt-ocr on gpu-prod-01", "deploy receipt-ocr on gpu-prod-02")
    assert_in_order(run, "carry out gpu-stage-01", "deploy form-ocr on gpu-stage-01")
    assert sorted(story.hosts["first"]) == ["form-ocr-1", "preview-claims-receipts-1", "receipt-ocr-1", "receipt-ocr-2"]


def test_a_preview_ends_and_says_so_and_services_have_addresses(story: Story) -> None:
    child = story.children["first"]
    preview = child["deploy preview-claims-receipts on gpu-stage-01"]["environment"]
    assert preview["auto_stop_in"] == "72 hours"
    assert preview["deployment_tier"] == "staging"
    receipt = child["deploy receipt-ocr on gpu-prod-01"]["environment"]
    assert receipt["url"] == "https://receipt-ocr.models.example.com/"
    assert "auto_stop_in" not in receipt
    assert child[receipt["on_stop"]]["environment"] == {"name": receipt["name"], "action": "stop"}


def test_when_nothing_changed_one_job_says_so(story: Story) -> None:
    run = story.runs["again"]
    assert (run.status, run.started, run.failed) == (0, ["plan", "nothing to deploy"], [])
    assert story.pending["again"] == {}


def test_a_bad_manifest_stops_the_merge_request_with_all_problems_at_once(story: Story) -> None:
    run = story.runs["bad"]
    assert run.status != 0
    assert run.started == run.failed == ["validate"]
    words = " ".join(run.words("validate").split())
    assert "unknown field 'replicsa'; did you mean 'replicas'?" in words
    assert "'claims/claims-services' belongs to team 'claims'" in words.replace("''", "'")
    assert "'claims/claims-services' does not own 'llm-chat'" in words.replace("''", "'")


def test_a_merge_request_shows_what_it_would_change_and_reaches_no_host(story: Story) -> None:
    run = story.runs["good"]
    assert (run.status, run.failed) == (0, []), run.output
    assert run.started == ["validate", "compat", "preview"]
    assert story.widgets["good"] == {"create": 1, "update": 2, "delete": 1}
    assert story.touched == []
    page = story.pages["good"]
    assert all(name in page for name in ("claims-letters-1", "form-ocr-1", "receipt-ocr-1", "receipt-ocr-2", "claims/claims-services !7"))
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=", page)


def test_a_changed_a_new_and_a_removed_service_each_have_their_jobs(story: Story) -> None:
    assert sorted(story.jobs("frozen")) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy claims-letters on gpu-stage-01",
        "deploy receipt-ocr on gpu-prod-01",
        "deploy receipt-ocr on gpu-prod-02",
        "remove form-ocr from gpu-stage-01",
    ]
    second = story.children["frozen"]["deploy receipt-ocr on gpu-prod-02"]["needs"]
    assert {"job": "deploy receipt-ocr on gpu-prod-01"} in second
    assert {"job": "approve receipt-ocr"} in second


def test_in_a_freeze_nothing_is_deployed_and_everything_waits(story: Story) -> None:
    run = story.runs["frozen"]
    assert (run.status, run.started) == (0, ["plan", "frozen"])
    assert story.hosts["frozen"] == story.hosts["again"]
    assert sorted(story.pending["frozen"]) == sorted(HOSTS)


def test_without_a_persons_yes_production_does_not_begin(story: Story) -> None:
    run = story.runs["waiting"]
    assert "deploy receipt-ocr on gpu-prod-01" not in run.started
    # This runner starts nothing at all while a gate is closed, and says why; GitLab would go on with the rest.
    assert re.search(r"approve receipt-ocr.* is when:manual, its needed by", run.output)
    assert story.hosts["waiting"] == story.hosts["again"]


def test_what_was_not_let_through_is_given_again_and_then_done(story: Story) -> None:
    run = story.runs["approved"]
    assert (run.status, run.failed) == (0, []), run.output
    assert sorted(run.started) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy claims-letters on gpu-stage-01",
        "deploy receipt-ocr on gpu-prod-01",
        "deploy receipt-ocr on gpu-prod-02",
        "plan",
        "remove form-ocr from gpu-stage-01",
    ]
    assert_in_order(run, "approve receipt-ocr", "deploy receipt-ocr on gpu-prod-01", "deploy receipt-ocr on gpu-prod-02")
    assert_in_order(run, "carry out gpu-stage-01", "remove form-ocr from gpu-stage-01")
    after = images(story, "approved")
    assert sorted(after) == ["claims-letters-1", "preview-claims-receipts-1", "receipt-ocr-1", "receipt-ocr-2"]
    assert after["receipt-ocr-1"] == after["receipt-ocr-2"] == NEXT
    assert story.runs["done"].started == ["plan", "nothing to deploy"]


def test_no_secret_is_in_a_log_an_artifact_a_repository_or_a_page(story: Story) -> None:
    needle = SECRET.encode()
    found = {str(path.relative_to(story.gitlab.work)) for path, content in story.gitlab.everywhere() if needle in content}
    sealed = {name for name in found if re.fullmatch(r"gpu-prod-0\d/(?:secrets|state)/.*", name)}
    assert found - sealed == {"home/secrets.yml"}
    assert all(SECRET not in run.output for run in story.runs.values())
    assert needle not in story.gitlab.git(story.gitlab.platform, "log", "--patch", "--all", "origin/fleet-state").encode()


def schema_problems(*paths: Path) -> str:
    """What GitLab's own schema says of pipeline files; empty when nothing."""
    command = [
        str(Path(sys.executable).parent / "check-jsonschema"),
        "--builtin-schema",
        "vendor.gitlab-ci",
        "--data-transform",
        "gitlab-ci",
    ]
    done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_child_pipelines_are_what_gitlab_takes(story: Story, tmp_path: Path) -> None:
    for name, child in story.children.items():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(child, sort_keys=False), encoding="utf-8")
    assert schema_problems(*tmp_path.glob("*.yml")) == ""


def test_the_includable_files_and_the_samples_are_what_gitlab_takes(tmp_path: Path) -> None:
    files = [*(ROOT / "ci").glob("*.yml"), *(ROOT / "inventories" / "example" / "gitlab").glob("*/.gitlab-ci.yml")]
    assert len(files) == 6
    assert schema_problems(*files) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("job: {script: [x], when: sometimes}\n", encoding="utf-8")
    assert "sometimes" in schema_problems(wrong)
