# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and apply on simulated hosts, by real ansible-playbook processes: what is promised is done, once, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import typing as t
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.filter.compose import compose_problems
from fleet_site import container, engine

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played, Site

pytestmark = pytest.mark.measured

HOST = "host-a"


@dataclass
class Story:
    """What an engineer does on a new host, once for all tests of this file; nobody changes ``site`` afterwards."""

    site: Site
    planned: Played
    predicted: Played
    mutations_predicted: dict[str, list[t.Any]]
    files_predicted: bool
    applied: Played
    mutations: dict[str, list[t.Any]]
    again: list[Played]
    mutations_again: dict[str, list[t.Any]]
    files_again: bool


@pytest.fixture(scope="module")
def story(make_site: MakeSite) -> Story:
    site = make_site(host_a="a100-80gb:2")
    site.variables(HOST, fleet_gpu_modes=["mig"])
    site.manifest("ocr", replicas=2, env={"PRICE": "$5 ${HOME}"}, health={"port": "http"})
    site.manifest("imaging", "30 GiB", volumes=[{"source": "imaging", "target": "/models"}])
    planned = site.done("plan")
    files = site.files()
    predicted = site.done("apply", "--check", "--diff")
    mutations_predicted, unchanged = site.mutations(), site.files() == files
    applied = site.done("apply", "--diff")
    mutations, files = site.mutations(), site.files()
    again = [site.done("plan"), site.done("apply")]
    return Story(
        site, planned, predicted, mutations_predicted, unchanged, applied, mutations, again, site.mutations(), site.files() == files
    )


@pytest.fixture
def site(story: Story, tmp_path: Path) -> Site:
    """A copy of the story's site, for a test that goes on from there."""
    return story.site.copy(tmp_path / "site")


def service_dir(site: Site, name: str) -> Path:
    return site.work / HOST / "services" / name


def slices(site: Site) -> set[str]:
    """The MIG UUIDs on the host, as the simulator itself tells."""
    return set(re.findall(r"MIG-[0-9a-f-]+", site.simctl(HOST, "show", "--json")))


def test_a_plan_touches_no_gpu_and_places_every_replica(story: Story) -> None:
    assert story.planned.recap[HOST]["failed"] == 0
    placed = {f"{line['service']}-{line['replica']}" for line in story.site.plan(HOST)["services"]}
    assert placed == {"ocr-1", "ocr-2", "imaging-1"}


def test_check_mode_changes_nothing_and_promises_what_is_done_then(story: Story) -> None:
    assert story.mutations_predicted == {HOST: []}
    assert story.files_predicted
    # The facts that are published at the end are known only then; that they change is promised, under a name of its own.
    promised = [("Write what changed" if task == "Promise other facts" else task, host) for task, host in story.predicted.changed()]
    assert sorted(promised) == story.applied.changed()
    assert story.predicted.recap[HOST]["changed"] == story.applied.recap[HOST]["changed"] > 0


def test_the_diff_of_check_mode_names_slices_that_have_no_uuid_yet(story: Story) -> None:
    assert "+GPU_0=(known after apply)" in story.predicted.output
    assert not re.search(r"^\+GPU_0=MIG-", story.predicted.output, re.MULTILINE)
    assert len(re.findall(r"^\+GPU_0=MIG-", story.applied.output, re.MULTILINE)) == 3
    layouts = [re.findall(r"^\+(GPU-\S+ \S+@\d)$", run.output, re.MULTILINE) for run in (story.predicted, story.applied)]
    assert layouts[0] == layouts[1] != []


def test_each_replica_has_a_valid_compose_file_and_a_slice_of_its_own(story: Story) -> None:
    found = []
    for name in ("ocr-1", "ocr-2", "imaging-1"):
        folder = service_dir(story.site, name)
        text = (folder / "compose.yml").read_text(encoding="utf-8")
        assert compose_problems(text) == []
        model = yaml.safe_load(text)["services"]["model"]
        assert model["deploy"]["resources"]["reservations"]["devices"] == [
            {"driver": "nvidia", "device_ids": ["${GPU_0}"], "capabilities": ["gpu"]}
        ]
        assert "CUDA_VISIBLE_DEVICES" not in text
        (line,) = [line for line in (folder / ".env").read_text(encoding="utf-8").splitlines() if line.startswith("GPU_0=")]
        found.append(line.removeprefix("GPU_0="))
        assert ((folder / ".env").stat().st_mode & 0o777, (folder / "compose.yml").stat().st_mode & 0o777) == (0o640, 0o640)
    assert len(set(found)) == 3
    assert set(found) <= slices(story.site)


def test_what_the_owner_wrote_reaches_the_container_and_compose_expands_nothing(story: Story) -> None:
    ocr = yaml.safe_load((service_dir(story.site, "ocr-2") / "compose.yml").read_text(encoding="utf-8"))
    (line,) = [line for line in story.site.plan(HOST)["services"] if line["service"] == "ocr" and line["replica"] == 2]
    model = ocr["services"]["model"]
    assert ocr["name"] == model["container_name"] == "ocr-2"
    assert model["environment"]["PRICE"] == "$$5 $${HOME}"
    assert model["ports"] == [f"0.0.0.0:{line['ports']['http']}:8080"]
    assert model["labels"] == {"gpuops.service": "ocr", "gpuops.team": "claims", "gpuops.environment": "production", "gpuops.replica": "2"}
    assert (model["security_opt"], model["cap_drop"], model["restart"]) == (["no-new-privileges:true"], ["ALL"], "no")
    assert model["healthcheck"]["test"][0] == "CMD-SHELL"
    imaging = yaml.safe_load((service_dir(story.site, "imaging-1") / "compose.yml").read_text(encoding="utf-8"))["services"]["model"]
    source = str(story.site.work / HOST / "models" / "imaging")
    assert imaging["volumes"] == [{"type": "bind", "source": source, "target": "/models", "read_only": True}]
    assert "healthcheck" not in imaging


def test_a_host_without_an_engine_is_told_plainly(story: Story) -> None:
    assert "ocr-1: this host has no Docker engine; the files in" in story.applied.output
    assert "are ready, nothing was started" in story.applied.output


def test_the_lease_is_gone_after_the_play(story: Story) -> None:
    assert not list((story.site.work / HOST / "state").glob("lease.json"))


def test_a_second_plan_and_apply_change_nothing_and_call_nothing_that_would(story: Story) -> None:
    assert [run.changed() for run in story.again] == [[], []]
    assert [run.recap[HOST]["changed"] for run in story.again] == [0, 0]
    assert story.files_again
    assert story.mutations_again == story.mutations


def test_status_and_check_name_the_replicas_and_change_nothing(site: Site, story: Story) -> None:
    files = site.files()
    status = site.done("status")
    for name in ("ocr-1", "ocr-2", "imaging-1", "1 done", "no engine"):
        assert name in status.output
    check = site.done("check")
    assert "NVIDIA A100-SXM4-80GB" in check.output
    assert status.changed() == check.changed() == []
    assert site.files() == files
    assert site.mutations() == story.mutations


def test_a_service_that_leaves_is_removed_and_one_that_moves_keeps_its_name(site: Site) -> None:
    (site.manifests / "ocr.yml").unlink()
    site.done("plan")
    run = site.done("apply")
    assert ("Remove the service's files", HOST) in run.changed()
    assert [path.name for path in (site.work / HOST / "services").iterdir()] == ["imaging-1"]


def test_an_older_plan_is_refused_and_nothing_is_touched(site: Site) -> None:
    old = (site.plans / f"{HOST}.yml").read_bytes()
    manifests = site.work / "manifests-before"
    shutil.copytree(site.manifests, manifests)
    site.manifest("ocr", replicas=3)
    site.done("plan")
    site.done("apply")
    (site.plans / f"{HOST}.yml").write_bytes(old)
    shutil.rmtree(site.manifests)
    shutil.copytree(manifests, site.manifests)
    calls = site.mutations()
    run = site.play("apply")
    assert (
        run.message()
        == "serial: this host carries plan serial 2, and the given plan is older: serial 1; plan again, or take the latest plan file"
    )
    assert site.mutations() == calls
    assert not list((site.work / HOST / "state").glob("lease.json"))


def test_a_host_that_differs_from_the_plans_base_is_refused_with_the_difference(make_site: MakeSite) -> None:
    site = make_site(host_a="h100-80gb:1")
    site.variables(HOST, fleet_gpu_modes=["mig"])
    site.manifest("ocr")
    site.done("plan")
    gpu = site.plan(HOST)["base"]["gpus"][0]["gpu"]
    site.simctl(HOST, "set", "mig", "on", "--gpu", "0")
    calls = site.mutations()
    message = site.play("apply").message()
    difference = f"{gpu} has MIG on with no slice, and the plan was made from MIG off"
    assert message == f"base: this host is not as it was when the plan was made: {difference}; plan again"
    assert site.mutations() == calls
    assert not (site.work / HOST / "services").exists()


def test_many_without_a_place_are_told_the_same_by_one_process_and_by_two(make_site: MakeSite) -> None:
    """Ansible's workers may have no children of multiprocessing's; the plan asks the kernel for one where there are two processors."""
    site = make_site(host_a="a100-80gb:1")
    site.variables(HOST, fleet_gpu_modes=["mig"], fleet_quotas={"teams": {"claims": {"memory": "60 GiB"}}})
    for number in range(40):
        site.manifest(f"ocr-{number:02d}", f"{(5, 10, 20, 38, 60)[number % 5]} GiB", priority=(30, 50, 80)[number % 3])
    processors, files = os.sched_getaffinity(0), []
    for able in (processors, {min(processors)}):
        os.sched_setaffinity(0, able)
        try:
            site.done("plan", "--extra-vars", '{"fleet_fail_unplaced": false}')
        finally:
            os.sched_setaffinity(0, processors)
        files.append((site.plans / "fleet.yml").read_bytes())
        shutil.rmtree(site.plans)
    assert files[0] == files[1]
    unplaced = yaml.safe_load(files[0])["unplaced"]
    assert len(unplaced) > 24
    assert all("; what would help: " in each["reason"] for each in unplaced)


def test_a_slice_that_comes_back_with_another_uuid_is_found_again(site: Site) -> None:
    """A reboot takes the slices of every generation; the next apply makes them again and the .env follows."""
    site.simctl(HOST, "set", "mig-uuid", "new")
    before = (service_dir(site, "imaging-1") / ".env").read_text(encoding="utf-8")
    site.simctl(HOST, "reboot")
    assert slices(site) == set()
    site.done("apply")
    after = (service_dir(site, "imaging-1") / ".env").read_text(encoding="utf-8")
    assert after != before
    assert re.findall(r"MIG-[0-9a-f-]+", after)[0] in slices(site)


def test_a_site_s_own_template_comes_before_the_collections(site: Site) -> None:
    templates = site.work / "templates"
    templates.mkdir()
    own = "{% import 'parts.j2' as parts with context %}\nservices:\n  model:\n{{ parts.identity() }}\n    user: '1000'\n"
    (templates / "http.yml.j2").write_text(own, encoding="utf-8")
    site.variables(HOST, fleet_gpu_modes=["mig"], fleet_templates=[str(templates)])
    site.done("apply")
    model = yaml.safe_load((service_dir(site, "ocr-1") / "compose.yml").read_text(encoding="utf-8"))["services"]["model"]
    assert (model["user"], model["labels"]["gpuops.service"]) == ("1000", "ocr")


def test_a_template_that_renders_no_valid_file_stops_before_anything_is_written(site: Site) -> None:
    templates = site.work / "templates"
    templates.mkdir()
    (templates / "http.yml.j2").write_text("services:\n  model:\n    imagee: a\n", encoding="utf-8")
    site.variables(HOST, fleet_gpu_modes=["mig"], fleet_templates=[str(templates)])
    files = {name: text for name, text in site.files().items() if "/services/" in name}
    refused = site.play("apply")
    assert refused.status != 0
    for name in ("imaging-1", "ocr-1"):  # one line for each service that cannot be served
        assert f"{name}: {templates / 'http.yml.j2'} renders no valid compose file: services.model: " in refused.output
    assert "'imagee' was unexpected" in refused.output
    assert {name: text for name, text in site.files().items() if "/services/" in name} == files


def test_a_host_that_somebody_holds_is_left_alone_and_the_holder_named(site: Site) -> None:
    lease = {"holder": "bob", "purpose": "replace a fan", "expires": 4102444800, "token": "x", "seconds": 60}
    (site.work / HOST / "state" / "lease.json").write_text(json.dumps(lease), encoding="utf-8")
    (site.manifests / "ocr.yml").unlink()
    site.done("plan")
    calls = site.mutations()
    assert "this host is held by bob (replace a fan)" in site.play("apply").message()
    assert site.mutations() == calls
    assert json.loads((site.work / HOST / "state" / "lease.json").read_text(encoding="utf-8")) == lease


def test_published_facts_alone_make_the_same_plan(site: Site) -> None:
    """A merge request has no credentials: the preview is made from what was published last."""
    site.manifest("face", "6 GiB")
    shutil.rmtree(site.work / HOST)
    preview = site.done("plan", "--check", "--extra-vars", '{"fleet_published_only": true}')
    assert "face" in preview.output
    assert preview.recap[HOST]["unreachable"] == 0


def test_a_service_that_fits_nowhere_is_told_with_its_reason_after_the_plan_is_written(site: Site) -> None:
    site.manifest("huge", "200 GiB")
    run = site.play("plan")
    assert run.message().startswith("huge replica 1: ")
    assert "huge" in (site.plans / "fleet.yml").read_text(encoding="utf-8")
    assert site.done("plan", "--extra-vars", '{"fleet_fail_unplaced": false}').status == 0


@dataclass
class Adoption:
    """A host that knew nothing of this collection, adopted, and then given one service more."""

    site: Site
    before: tuple[dict[str, bytes], dict[str, list[t.Any]]]
    papers: dict[Path, bytes]
    runs: list[Played]
    after: tuple[dict[str, bytes], dict[str, list[t.Any]]]
    papers_after: dict[Path, bytes]
    joined: Played


def uncut_gpu(site: Site) -> str:
    """UUID of the GPU that is not in MIG mode."""
    (gpu,) = [gpu["uuid"] for gpu in json.loads(site.simctl(HOST, "show", "--json"))["gpus"] if not gpu["mig"]["current"]]
    return str(gpu)


@pytest.fixture(scope="module")
def adoption(make_site: MakeSite) -> Adoption:
    site = make_site(host_a="h100-80gb:2")
    site.by_hand(HOST, [{"gpu": "0", "mig": True, "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "1g.10gb", "start": 5}]}])

    def host() -> tuple[dict[str, bytes], dict[str, list[t.Any]]]:
        # The locks stay where a play was; they hold nothing. And the host remembers the layout that it has, for its next boot.
        papers = ("/lease.lock", "/mig.lock", "/layout.json")
        files = {name: text for name, text in site.files().items() if name.startswith(HOST) and not name.endswith(papers)}
        return files, site.mutations()

    def papers() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in [*site.manifests.iterdir(), *site.plans.iterdir()]}

    running = [container(1, "old-ocr", min(slices(site)), 9001), container(2, "old-llm", uncut_gpu(site), 9002)]
    with engine(site.work / HOST / "docker.sock", running):
        before = host()
        adopted = site.done("adopt")
        written = papers()
        runs = [adopted, site.done("plan"), site.done("apply")]
        after, papers_after = host(), papers()
        site.manifest("face", "6 GiB")
        site.done("plan")
        return Adoption(site, before, written, runs, after, papers_after, site.done("apply"))


def test_adopting_a_host_set_up_by_hand_then_plan_and_apply_changes_nothing(adoption: Adoption) -> None:
    assert sorted(path.stem for path in adoption.papers) == ["fleet", HOST, "old-llm", "old-ocr"]
    assert adoption.runs[2].changed() == []
    assert {task for task, _host in adoption.runs[1].changed()} <= {"Make the directory of facts", "Write what changed"}
    assert adoption.papers_after == adoption.papers
    assert adoption.after == adoption.before


def test_a_new_service_comes_beside_adopted_ones_and_never_on_their_place(adoption: Adoption) -> None:
    services = adoption.site.plan(HOST)["services"]
    assert {line["service"] for line in services} == {"old-ocr", "old-llm", "face"}
    assert len({(line.get("gpu") or line["gpus"][0], line.get("start")) for line in services}) == 3
    assert [path.name for path in (adoption.site.work / HOST / "services").iterdir()] == ["face-1"]
    calls = adoption.site.mutations()[HOST][len(adoption.after[1][HOST]) :]
    assert not [call for call in calls if "Destroy" in call["call"] or "SetMigMode" in call["call"]]


def test_an_engine_without_the_compose_plugin_is_told_plainly_and_cdi_is_used_where_it_is_known(adoption: Adoption) -> None:
    assert "face-1: the Docker engine of this host has no compose plugin; the files in" in adoption.joined.output
    folder = service_dir(adoption.site, "face-1")
    model = yaml.safe_load((folder / "compose.yml").read_text(encoding="utf-8"))["services"]["model"]
    (device,) = model["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "cdi", "device_ids": ["${GPU_0}"], "capabilities": ["gpu"]}
    assert "NVIDIA_DRIVER_CAPABILITIES" not in model.get("environment", {})
    assert re.search(r"^GPU_0=nvidia\.com/gpu=MIG-", (folder / ".env").read_text(encoding="utf-8"), re.MULTILINE)
