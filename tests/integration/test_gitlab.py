# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GitLab pipeline, executed: two sample projects, merge requests, plans, child pipelines, down to the hosts and an engine on one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml
from compose_world import World
from gitlab_site import ENGINE, GATEWAY, HOSTS, IDLE, KEY, PASSWORD, SECRET, SERVING, GitLab, Pipeline, gitlab, widget

ROOT = Path(__file__).resolve().parents[2]
NEXT, LATER = (f"registry.example.com/claims/receipt-ocr@sha256:{digit * 64}" for digit in "78")
PREVIEW = "preview-claims-receipts"
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
    engine: dict[str, dict[str, str]] = field(default_factory=dict)
    leases: dict[str, t.Any] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    compat: dict[str, str] = field(default_factory=dict)

    def protected(self, name: str, *options: str, **more: str) -> None:
        """A pipeline of the platform's protected branch, and what is there after it."""
        self.runs[name] = self.gitlab.protected(*options, **more)
        self.children[name] = self.gitlab.child()
        self.pending[name] = yaml.safe_load(self.gitlab.state("pending.yml"))["hosts"]
        self.records[name] = self.gitlab.state("images.yml")
        for host in HOSTS:
            self.hosts.setdefault(name, {}).update(self.gitlab.services(host))

    def jobs(self, name: str) -> list[str]:
        """Jobs of a child pipeline that would run or wait, without those that only a person starts."""
        known = [job for job in self.children[name] if not job.startswith(".") and job not in ("stages", "variables")]
        return [job for job in known if not job.startswith(("stop ", "rollback ", "frozen", "gateways"))]

    def ran(self, name: str) -> list[str]:
        """Jobs that were started, but for the one of the gateways, which is there only where HAProxy is."""
        return [job for job in self.runs[name].started if job != "gateways"]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    world = gitlab(tmp_path_factory.mktemp("gitlab"))
    with world.engine() as engine:
        told = Story(world)
        tell(told, engine)
        print("seconds:", ", ".join(f"{name} {run.seconds:.0f}" for name, run in told.runs.items()))
        yield told


def tell(story: Story, engine: World) -> None:
    """Everything that happens, in its order."""
    gitlab = story.gitlab
    manifests = gitlab.claims / "manifests"
    gitlab.shows_images_to_all(False)
    story.protected("first", "--manual", "approve receipt-ocr")
    gitlab.start_gateway()
    story.engine["first"] = engine.running()
    story.leases = json.loads((gitlab.work / ENGINE / "state" / "service-leases.json").read_text(encoding="utf-8"))["leases"]

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
    (manifests / "claims-letters.yml").write_text(new.replace(gitlab.form, gitlab.letters), encoding="utf-8")
    (manifests / "form-ocr.yml").unlink()
    gitlab.commit(gitlab.claims, "One changed, one new, one removed", push=False)
    gitlab.shows_images_to_all(True)
    with tripwires(gitlab, story.touched):
        story.runs["good"] = gitlab.merge_request(gitlab.claims)
    gitlab.shows_images_to_all(False)
    story.records["good"] = gitlab.state("images.yml")
    kept = gitlab.claims / ".gitlab-ci-local" / "artifacts" / "compat" / "out"
    story.compat = {path.name: path.read_text(encoding="utf-8") for path in kept.glob("compat.*")}
    story.widgets["good"] = widget(gitlab.claims)
    story.pages["good"] = (gitlab.claims / "out" / "preview.html").read_text(encoding="utf-8")

    gitlab.git(gitlab.claims, "push", "--quiet", "origin", "good:main")
    gitlab.git(gitlab.claims, "switch", "--quiet", "--create", "preview", "origin/preview")
    preview = gitlab.claims / "previews" / "receipts.yml"
    preview.write_text(re.sub(r"image: .*", f"image: {LATER}", preview.read_text(encoding="utf-8")), encoding="utf-8")
    gitlab.git(gitlab.claims, "commit", "--quiet", "--all", "--message", "Another try")
    gitlab.git(gitlab.claims, "push", "--quiet", "origin", "preview")
    story.protected("frozen", CI_DEPLOY_FREEZE="true")
    story.runs["waiting"] = gitlab.press()
    story.protected("approved", "--manual", "approve receipt-ocr")
    story.engine["approved"] = engine.running()
    buttons = gitlab.child()
    story.protected("done")
    # Somebody presses buttons of the pipeline before.
    (gitlab.platform / "out" / "child.yml").write_text(yaml.safe_dump(buttons, sort_keys=False), encoding="utf-8")
    for name, job in (("rolled back", f"rollback {PREVIEW}"), ("stopped", f"stop {PREVIEW} on {ENGINE}")):
        story.runs[name] = gitlab.press(job)
        story.engine[name] = engine.running()


class tripwires:  # noqa: N801  # used like a function
    """While it lasts, a host whose Python is started says so and does nothing."""

    def __init__(self, gitlab: GitLab, touched: list[str]) -> None:
        # What a host runs. The gateway's is one of these.
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
    assert sorted(story.ran("first")) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy form-ocr on gpu-stage-01",
        "deploy preview-claims-receipts on gpu-stage-01",
        "deploy receipt-ocr on gpu-prod-01",
        "deploy receipt-ocr on gpu-prod-02",
        "partition gpu-train-01",
        "plan",
    ]
    assert_in_order(run, "plan", "approve receipt-ocr", "deploy receipt-ocr on gpu-prod-01", "deploy receipt-ocr on gpu-prod-02")
    assert_in_order(run, "carry out gpu-stage-01", "deploy form-ocr on gpu-stage-01")
    assert sorted(story.hosts["first"]) == ["form-ocr-1", "preview-claims-receipts-1", "receipt-ocr-1", "receipt-ocr-2"]


def test_a_host_whose_slices_change_and_no_service_is_partitioned_by_a_job(story: Story) -> None:
    assert story.gitlab.slices(IDLE) == ["3g.40gb@0"]
    assert not (story.gitlab.work / IDLE / "services").exists()


def test_the_gateways_are_led_to_where_the_services_are_when_these_serve(story: Story) -> None:
    if not story.gitlab.haproxy:
        pytest.skip("no haproxy on this machine (Debian: apt install haproxy)")
    for name in ("first", "approved"):
        run = story.runs[name]
        assert_in_order(run, "deploy receipt-ocr on gpu-prod-02", "gateways")
        assert_in_order(run, "carry out gpu-stage-01", "gateways")
        assert re.search(rf"{GATEWAY} +: ok=\d+ .*failed=0", run.words("gateways"))
    routes = (story.gitlab.work / GATEWAY / "gateway.cfg").read_text(encoding="utf-8")
    for host in ("gpu-prod-01", "gpu-prod-02"):
        plan = yaml.safe_load(story.gitlab.state(f"plans/{host}.yml"))
        (line,) = plan["services"]
        assert re.search(rf"server receipt-ocr-{line['replica']} \S+:{line['ports']['http']}\s", routes)


def test_what_the_jobs_deploy_runs_in_the_engine_with_the_image_of_its_manifest(story: Story) -> None:
    for name, after in (("first", {"form-ocr-1", f"{PREVIEW}-1"}), ("approved", {"claims-letters-1", f"{PREVIEW}-1"})):
        composed = images(story, name)
        assert story.engine[name] == {replica: composed[replica] for replica in after}
    assert story.engine["approved"][f"{PREVIEW}-1"] == LATER


def test_a_preview_has_its_lease_on_the_host_which_ends_it(story: Story) -> None:
    (lease,) = story.leases.values()
    assert (lease["service"], lease["team"], lease["ended"]) == (PREVIEW, "claims", None)
    began, ends, notice = (datetime.fromisoformat(lease[key].replace("Z", "+00:00")) for key in ("began", "ends", "notice_at"))
    assert (ends - began, ends - notice) == (timedelta(days=3), timedelta(hours=12))


def test_the_rollback_job_brings_the_version_before_back_and_the_stop_job_stops_it(story: Story) -> None:
    back, stopped = story.runs["rolled back"], story.runs["stopped"]
    assert (back.status, back.started, back.failed) == (0, [f"rollback {PREVIEW}"], []), back.output
    assert "revert the change there" in back.words(f"rollback {PREVIEW}")
    assert story.engine["rolled back"] == story.engine["approved"] | {f"{PREVIEW}-1": story.engine["first"][f"{PREVIEW}-1"]}
    assert (stopped.status, stopped.started, stopped.failed) == (0, [f"stop {PREVIEW} on {ENGINE}"], []), stopped.output
    assert story.engine["stopped"] == {"claims-letters-1": story.engine["approved"]["claims-letters-1"]}


def test_a_preview_ends_and_says_so_and_services_have_addresses(story: Story) -> None:
    child = story.children["first"]
    preview = child["deploy preview-claims-receipts on gpu-stage-01"]["environment"]
    assert preview["auto_stop_in"] == "72 hours"
    assert preview["deployment_tier"] == "staging"
    receipt = child["deploy receipt-ocr on gpu-prod-01"]["environment"]
    # The test's gateway has no certificate, and a port of its own.
    port = f":{story.gitlab.http}" if story.gitlab.haproxy else ""
    assert receipt["url"] == f"http://receipt-ocr.models.example.com{port}/"
    assert "auto_stop_in" not in receipt
    assert child[receipt["on_stop"]]["environment"] == {"name": receipt["name"], "action": "stop"}


def test_when_nothing_changed_one_job_says_so(story: Story) -> None:
    run = story.runs["done"]
    assert (run.status, run.started, run.failed) == (0, ["plan", "nothing to deploy"], [])
    assert story.pending["done"] == {}


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


def test_a_merge_request_learns_what_a_new_image_needs_and_an_image_that_nobody_tells_of_is_one_line(story: Story) -> None:
    told = " ".join(story.runs["good"].words("compat").split())
    short = {
        name: f"images.example.com/claims/{name}@{image.partition('@')[2][:19]}"
        for name, image in (("letters", story.gitlab.letters), ("form-ocr", story.gitlab.form))
    }
    assert f"{short['letters']} (claims-letters): CUDA 12.4.1, 1 more variable (told by its registry)" in told
    # The binding plan had recorded that one.
    assert short["form-ocr"] not in told
    refused = f"its registry: 127.0.0.1:{story.gitlab.nobody}: Connection refused"
    assert f"registry.example.com/claims/receipt-ocr@sha256:{'7' * 12} (receipt-ocr): declared: CUDA 12.4; {refused}" in told
    assert re.search(rf"registry.example.com/claims/receipt-ocr@sha256:[0-9a-f]{{12}} \({PREVIEW}\): {refused}", told)
    verdicts = json.loads(story.compat["compat.json"])["verdicts"]
    assert {each["service"] for each in verdicts} == {"claims-letters", "receipt-ocr", PREVIEW}
    known = {
        each["service"] for each in verdicts if not any("CUDA of the image is not known" in one["message"] for one in each["findings"])
    }
    assert known == {"claims-letters", "receipt-ocr"}
    assert story.compat["compat.txt"].splitlines()[0].split()[:3] == ["HOST", "GPU", "claims-letters"]


def test_the_record_of_images_is_pushed_by_the_binding_plan_alone(story: Story) -> None:
    recorded = {name: set(yaml.safe_load(text)["images"]) for name, text in story.records.items()}
    form, letters = (image.partition("@")[2] for image in (story.gitlab.form, story.gitlab.letters))
    assert recorded["first"] == recorded["good"] == {form}
    # By then the engine of a host has images as well, and tells of them.
    assert {form, letters} < recorded["frozen"] <= recorded["done"]


def test_a_changed_a_new_and_a_removed_service_each_have_their_jobs(story: Story) -> None:
    assert sorted(story.jobs("frozen")) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy claims-letters on gpu-stage-01",
        "deploy preview-claims-receipts on gpu-stage-01",
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
    assert story.hosts["frozen"] == story.hosts["first"]
    assert sorted(story.pending["frozen"]) == sorted(SERVING)


def test_without_a_persons_yes_production_does_not_begin(story: Story) -> None:
    run = story.runs["waiting"]
    assert run.started == []
    # This runner starts nothing at all while a gate is closed, and says why; GitLab would go on with the rest.
    assert re.search(r"approve receipt-ocr.* is when:manual, its needed by", run.output)


def test_what_was_not_let_through_is_given_again_and_then_done(story: Story) -> None:
    run = story.runs["approved"]
    assert (run.status, run.failed) == (0, []), run.output
    assert sorted(story.ran("approved")) == [
        "approve receipt-ocr",
        "carry out gpu-stage-01",
        "deploy claims-letters on gpu-stage-01",
        "deploy preview-claims-receipts on gpu-stage-01",
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


def test_whatever_a_job_names_is_there_and_jobs_of_one_host_take_turns(story: Story) -> None:
    """What this runner has no eye for: it knows no environment and no resource_group (docs/gitlab.md)."""
    for child in story.children.values():
        jobs = {name: job for name, job in child.items() if "extends" in job and not name.startswith(".")}
        for name, job in jobs.items():
            assert {need["job"] for need in job.get("needs", []) if "pipeline" not in need} <= {*jobs}, name
            host = job.get("variables", {}).get("FLEET_HOST")
            assert job.get("resource_group") == (f"fleet/{host}" if host else job.get("resource_group")), name
            environment = job.get("environment", {})
            if "on_stop" in environment:
                stop = jobs[environment["on_stop"]]
                assert (stop["environment"], stop["resource_group"]) == (
                    {"name": environment["name"], "action": "stop"},
                    job["resource_group"],
                )
                # GitLab calls it only when a person could: without needs that may be red, and by hand.
                assert all("pipeline" in need for need in stop["needs"]), name
                assert child[stop["extends"]]["rules"] == [{"when": "manual", "allow_failure": True}]


def test_no_secret_is_in_a_log_an_artifact_a_repository_or_a_page(story: Story) -> None:
    needles = (SECRET.encode(), KEY.encode(), PASSWORD.encode())
    everywhere = story.gitlab.everywhere()
    found = {str(path.relative_to(story.gitlab.work)) for path, content in everywhere if any(one in content for one in needles)}
    sealed = {name for name in found if re.fullmatch(r"gpu-prod-0\d/(?:secrets|state)/.*", name)}
    assert found - sealed == {"home/secrets.yml"}
    told = [run.output for run in story.runs.values()]
    told.append(story.gitlab.git(story.gitlab.platform, "log", "--patch", "--all", "origin/fleet-state"))
    assert not [text for text in told if SECRET in text or KEY in text or PASSWORD in text]


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
