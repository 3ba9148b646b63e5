# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a plan and the manifests to what is started on a host, and everything that stops it before anything is touched."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action.host_plan import ActionModule, host_plan
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import digest_of_base, digest_of_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_work import devices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest

OCR = """schema: 1
service: ocr
team: claims
environment: production
image: registry.example.com/ocr@sha256:0123456789012345678901234567890123456789012345678901234567890123
gpu: {memory: 8 GiB}
"""
LAYOUT = [
    {"gpu": "GPU-1", "pci": "0000:07:00.0", "model": "a100-sxm4-80gb", "mode": "mig"},
    {"gpu": "GPU-1", "profile": "1g.10gb", "start": 4},
    {"gpu": "GPU-2", "pci": "0000:0b:00.0", "model": "a100-sxm4-80gb", "mode": "whole"},
]


class Site:
    """A controller's directories with one manifest and one plan."""

    def __init__(self, root: Path) -> None:
        self.plans, self.manifests = root / "plans", root / "manifests"
        self.plans.mkdir()
        self.manifests.mkdir()
        self.manifest(OCR)

    def manifest(self, text: str, name: str = "ocr") -> None:
        (self.manifests / f"{name}.yml").write_text(text, encoding="utf-8")

    def line(self, **more: t.Any) -> dict[str, t.Any]:
        digest = read_manifest("ocr.yml", (self.manifests / "ocr.yml").read_text(encoding="utf-8")).digest()
        line = {"service": "ocr", "replica": 1, "gpu": "GPU-1", "profile": "1g.10gb", "start": 4, "ports": {}, "manifest": digest}
        return {**line, **more}

    def plan(self, *services: dict[str, t.Any], **more: t.Any) -> Path:
        base = {"digest": digest_of_base([]), "gpus": []}
        plan = {"plan": 1, "host": "a", "serial": 3, "digest": digest_of_plan(LAYOUT, services), "base": base}
        path = self.plans / "a.yml"
        path.write_text(yaml.safe_dump({**plan, "layout": LAYOUT, "services": list(services), **more}, sort_keys=False), encoding="utf-8")
        return path

    def read(self) -> dict[str, t.Any]:
        return host_plan("a", str(self.plans), str(self.manifests))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_host_without_a_plan_has_nothing_to_do(site: Site) -> None:
    assert site.read() == {"changed": False, "exists": False, "plan": None, "layout": [], "mps": [], "services": []}


def test_the_hands_are_told_layout_manifest_place_and_devices(site: Site) -> None:
    line = site.line()
    site.plan(line)
    work = site.read()
    assert (work["changed"], work["exists"], work["plan"]["serial"]) == (False, True, 3)
    assert work["layout"] == [
        {"gpu": "GPU-1", "mig": True, "instances": [{"profile": "1g.10gb", "start": 4}]},
        {"gpu": "GPU-2", "mig": False, "instances": []},
    ]
    (service,) = work["services"]
    assert (service["name"], service["placement"]) == ("ocr-1", line)
    assert service["devices"] == [{"name": "GPU_0", "gpu": "GPU-1", "profile": "1g.10gb", "start": 4}]
    assert (service["manifest"]["need_mib"], service["manifest"]["runtime"]) == (8192, "http")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"gpu": "GPU-1"}, [{"name": "GPU_0", "gpu": "GPU-1"}]),
        ({"gpus": ["GPU-1", "GPU-2"]}, [{"name": "GPU_0", "gpu": "GPU-1"}, {"name": "GPU_1", "gpu": "GPU-2"}]),
        ({"gpu": "GPU-1", "profile": "7g.80gb", "start": 0}, [{"name": "GPU_0", "gpu": "GPU-1", "profile": "7g.80gb", "start": 0}]),
    ],
)
def test_each_device_has_its_variable(place: dict[str, t.Any], expected: list[dict[str, t.Any]]) -> None:
    assert devices(place) == expected


def test_an_adopted_service_is_left_alone_even_when_its_manifest_changed(site: Site) -> None:
    site.plan(site.line(lifecycle="adopted", manifest="sha256:" + "0" * 64), site.line(service="gone", lifecycle="adopted"))
    assert site.read()["services"] == []


def test_a_manifest_that_changed_after_the_plan_was_made_is_not_carried_out(site: Site) -> None:
    path = site.plan(site.line())
    site.manifest(OCR.replace("8 GiB", "9 GiB"))
    manifest = re.escape(str(site.manifests / "ocr.yml"))
    with pytest.raises(FleetError, match=rf"^{path}: ocr: {manifest} has changed since plan 3 was made; run playbook plan again$"):
        site.read()


def test_more_replicas_alone_do_not_make_a_plan_stale(site: Site) -> None:
    site.plan(site.line())
    site.manifest(OCR + "replicas: 4\n")
    assert len(site.read()["services"]) == 1


def test_a_service_without_a_manifest_is_named(site: Site) -> None:
    path = site.plan(site.line(service="llm"))
    with pytest.raises(
        FleetError, match=rf"^{path}: the plan places service 'llm', and no manifest describes it; run playbook plan again$"
    ):
        site.read()


def test_a_plan_of_another_host_is_refused(site: Site) -> None:
    path = site.plan(host="b")
    with pytest.raises(FleetError, match=rf"^{path}:2: host: this plan was made for host 'b', not for 'a'; run playbook plan again$"):
        site.read()


def test_a_plan_that_was_edited_by_hand_is_refused_with_its_file(site: Site) -> None:
    path = site.plan(site.line(), digest="sha256:" + "0" * 64)
    with pytest.raises(FleetError, match=rf"^{path}:4: digest: "):
        site.read()


def test_a_plan_that_is_no_yaml_is_named_with_its_line(site: Site) -> None:
    path = site.plan()
    path.write_text("plan: 1\nhost: [\n", encoding="utf-8")
    with pytest.raises(FleetError, match=rf"^{path}:\d+: "):
        site.read()


def test_a_bad_manifest_is_told_before_anything_is_carried_out(site: Site) -> None:
    site.plan()
    site.manifest(OCR + "replica: 2\n")
    with pytest.raises(FleetError, match=rf"^{site.manifests}/ocr.yml:7: replica: unknown field 'replica'; did you mean 'replicas'\?$"):
        site.read()


def test_the_module_of_the_same_name_documents_every_argument_of_the_door() -> None:
    from ansible_collections.gpuops.fleet.plugins.modules import host_plan as documented

    options = yaml.safe_load(documented.DOCUMENTATION)["options"]
    assert set(options) == ActionModule._VALID_ARGS
    returned = yaml.safe_load(documented.RETURN)
    assert {*returned, "changed"} == {"changed", "exists", "plan", "layout", "mps", "services"}
