# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook images: engines are asked before registries, what was learnt is recorded once, and what was not is one line."""

from __future__ import annotations

import json
import typing as t

import pytest
import yaml
from fleet_site import DIGEST, REPOSITORY, MakeSite, Played, Site, _load, engine

world = _load("registry_world", REPOSITORY / "tests" / "unit" / "registry_world.py")
OCR = f"registry.example.com/ocr@sha256:{DIGEST}"
RECORD = "images.yml"


@pytest.fixture
def registry() -> t.Iterator[t.Any]:
    made = world.Registry()
    yield made
    made.end()


def learn(site: Site, registry: t.Any, *options: str) -> Played:
    own = {"fleet_registry_mirrors": {registry.host: registry.url}, "fleet_registry_timeout": 5}
    login = {"registry": registry.host, "username": "claims", "password": "correct horse battery"}
    return site.play("images", "-e", json.dumps({**own, "fleet_registry_logins": [login]}), *options)


def test_engines_then_registries_are_asked_once_and_what_nobody_knows_is_one_line(make_site: MakeSite, registry: t.Any) -> None:
    registry.rules.login = ("claims", "correct horse battery")
    chat = f"{registry.host}/chat@{registry.index(amd64=registry.image({'Env': world.OCR}))}"
    site = make_site(gpu_a="a100-sxm4-80gb:1", gpu_b="a100-sxm4-80gb:1")
    site.manifest("ocr", replicas=2)
    site.manifest("chat", image=chat)
    site.done("plan")
    record = site.inventory / RECORD
    has = world.engine_image(["CUDA_VERSION=12.6.3", "DB_PASSWORD=hunter2"])
    with engine(site.work / "gpu-a" / "docker.sock", [], {f"/images/{OCR}/json": has}):
        predicted = learn(site, registry, "--check")
        assert (predicted.status, record.exists()) == (0, False)
        first = learn(site, registry)
    assert first.status == 0, first.output
    assert first.changed() == predicted.changed() == [("Record what was learnt", "gpu-a")]
    assert first.said() == predicted.said()
    assert any("registry.example.com/ocr@sha256:0123" in line and "CUDA 12.6.3 (told by gpu-a)" in line for line in first.said())
    assert any(f"{registry.host}/chat@" in line and "(told by its registry)" in line for line in first.said())
    written = yaml.safe_load(record.read_text())
    assert sorted(image["variables"][0] for image in written["images"].values()) == ["CUDA_VERSION=12.4.1", "CUDA_VERSION=12.6.3"]
    assert "hunter2" not in first.output + record.read_text()
    assert "battery" not in first.output
    # What is known is not asked again; one that nobody has changes nothing, and fails only because that was asked for.
    asked, text = len(registry.asked), record.read_text()
    site.manifest("form", image=f"{registry.host}/form@sha256:{'f' * 64}")
    second = learn(site, registry, "-e", "fleet_images_strict=true")
    assert second.message() == (
        f"{registry.host}/form@sha256:{'f' * 12} (form): its registry: {registry.host}: "
        "it has no such image, or shows it to others only (404): manifest unknown"
    )
    assert {each.path.partition("/manifests/")[0] for each in registry.asked[asked:]} == {"/v2/form"}
    assert (second.changed(), record.read_text()) == ([], text)
