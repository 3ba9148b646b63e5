# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site must mirror: every image, model file, package and download of an inventory, once, with who needs it."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.action.bundle import ARGUMENTS, run
from ansible_collections.gpuops.fleet.plugins.filter.host_packages import install_plan
from ansible_collections.gpuops.fleet.plugins.modules.bundle import DOCUMENTATION
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text

DEBIAN = {
    "os_family": "Debian",
    "distribution": "Debian",
    "distribution_major_version": "13",
    "distribution_release": "trixie",
    "architecture": "x86_64",
}
OCR, CHAT = (f"registry.example.com/{name}@sha256:{digit * 64}" for name, digit in (("ocr", "a"), ("chat", "b")))
DRIVER = {
    "names": ["dkms", "nvidia-kernel-dkms"],
    "install": {"nvidia-kernel-dkms": "550.163.01-2"},
    "repository": {"text": "Types: deb\nURIs: http://deb.example.com/debian\nSuites: trixie\n", "key": None},
    "runfile": None,
}


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    where = tmp_path / "manifests"
    where.mkdir()
    weights = f"[{{path: ocr/v3.onnx, sha256: '{'c' * 64}'}}]"
    (where / "a.yml").write_text(manifest_text("receipt-ocr", image=OCR, weights=weights), encoding="utf-8")
    (where / "b.yml").write_text(manifest_text("form-ocr", image=OCR, weights=weights), encoding="utf-8")
    volumes = "[{source: chat/weights, target: /models}, {source: /scratch, target: /scratch}]"
    (where / "c.yml").write_text(manifest_text("chat", image=CHAT, volumes=volumes), encoding="utf-8")
    return where


def listed(manifests: Path, hosts: dict[str, t.Any] | None = None, **how: bool) -> dict[str, t.Any]:
    arguments = {
        "manifests": str(manifests),
        "templates": [],
        "hosts": hosts or {},
        "path": str(manifests.parent / "reports" / "bundle.json"),
    }
    return run(arguments, check_mode=how.get("check", False), diff=how.get("diff", False))


def host(driver: dict[str, t.Any] | None = None, **toolkit: str) -> dict[str, t.Any]:
    return {
        "system": "debian 13",
        "driver": driver or {},
        "engine": install_plan(DEBIAN, "engine", source="distribution"),
        "toolkit": install_plan(DEBIAN, "toolkit", **{"source": "repository", **toolkit}),
    }


def test_an_image_and_a_model_file_are_listed_once_with_their_services(manifests: Path) -> None:
    found = listed(manifests)["bundle"]
    assert found["images"] == [{"image": CHAT, "services": ["chat"]}, {"image": OCR, "services": ["form-ocr", "receipt-ocr"]}]
    assert found["models"] == [
        {"path": "chat/weights", "sha256": None, "services": ["chat"]},
        {"path": "ocr/v3.onnx", "sha256": "c" * 64, "services": ["form-ocr", "receipt-ocr"]},
    ]
    assert (found["packages"], found["downloads"], found["unread"]) == ([], [], {})


def test_hosts_that_need_the_same_from_the_same_place_share_a_line(manifests: Path) -> None:
    hosts = {"gpu-01": host(DRIVER), "gpu-02": host(DRIVER, version="1.17.8"), "gpu-03": host()}
    found = listed(manifests, hosts)["bundle"]
    parts = {(each["what"], tuple(each["hosts"])): each for each in found["packages"]}
    assert sorted(parts) == [
        ("driver", ("gpu-01", "gpu-02")),
        ("engine", ("gpu-01", "gpu-02", "gpu-03")),
        ("toolkit", ("gpu-01", "gpu-03")),
        ("toolkit", ("gpu-02",)),
    ]
    driver = parts["driver", ("gpu-01", "gpu-02")]
    assert driver["packages"] == {"dkms": "", "nvidia-kernel-dkms": "550.163.01-2"}
    assert (driver["from"], driver["setting"]) == ("http://deb.example.com/debian", "nvidia_driver_mirror")
    assert parts["engine", ("gpu-01", "gpu-02", "gpu-03")]["from"] == "the host's own sources"
    assert set(parts["toolkit", ("gpu-01", "gpu-03")]["packages"].values()) == {""}
    assert parts["toolkit", ("gpu-02",)]["packages"]["nvidia-container-toolkit"] == "1.17.8-*"
    assert parts["toolkit", ("gpu-02",)]["packages"]["nvidia-container-toolkit-base"] == "1.17.8-*"


def test_keys_and_installers_are_downloads_with_checksum_and_setting(manifests: Path) -> None:
    runfile = {"url": "https://mirror.example.com/driver.run", "checksum": "sha256:" + "d" * 64, "version": "580.95.05"}
    found = listed(manifests, {"gpu-01": host({"names": [], "install": {}, "repository": None, "runfile": runfile})})["bundle"]
    by_setting = {each["setting"]: each for each in found["downloads"]}
    assert by_setting["nvidia_driver_runfile"]["checksum"] == "sha256:" + "d" * 64
    assert by_setting["container_toolkit_key"]["url"].startswith("https://nvidia.github.io/")
    assert by_setting["container_toolkit_key"]["checksum"].startswith("sha256:")
    assert sorted(by_setting) == ["container_toolkit_key", "nvidia_driver_runfile"]


def test_licensed_drivers_of_vgpus_are_downloads_where_a_host_names_one(manifests: Path) -> None:
    package = {"url": "https://mirror.example.com/vgpu-kvm.run", "checksum": "sha256:" + "e" * 64}
    named = {"vgpu_host_package": package, "vgpu_guest_package": {"url": "", "checksum": ""}}
    found = listed(manifests, {"kvm-01": {**host(), "named": named}, "kvm-02": {**host(), "named": named}})["bundle"]["downloads"]
    assert [each for each in found if each["setting"] not in ("container_toolkit_key", "nvidia_driver_key")] == [
        {**package, "setting": "vgpu_host_package", "hosts": ["kvm-01", "kvm-02"]}
    ]


def test_a_mirror_that_is_set_is_where_the_packages_come_from(manifests: Path) -> None:
    own = host(source="mirror", mirror="https://mirror.example.com/toolkit")
    (part,) = [each for each in listed(manifests, {"gpu-01": own})["bundle"]["packages"] if each["what"] == "toolkit"]
    assert part["from"].startswith("https://mirror.example.com/toolkit/")


def test_a_host_whose_needs_are_not_known_is_a_line(manifests: Path) -> None:
    result = listed(manifests, {"gpu-01": {**host(), "problem": "gpu-01: no headers for kernel 6.12"}, "gpu-02": {}})
    assert result["bundle"]["unread"] == {"gpu-01": "gpu-01: no headers for kernel 6.12", "gpu-02": "the host was not asked"}
    assert "gpu-01: not all packages are known: gpu-01: no headers for kernel 6.12" in result["lines"]
    assert {each["what"] for each in result["bundle"]["packages"]} == {"engine", "toolkit"}


def test_people_see_each_image_file_package_and_download(manifests: Path) -> None:
    text = "\n".join(listed(manifests, {"gpu-01": host(DRIVER)})["lines"])
    assert re.search(rf"^{re.escape(OCR)} +form-ocr, receipt-ocr$", text, re.MULTILINE)
    assert "(no checksum in the manifest)" in text
    assert "driver of debian 13, from http://deb.example.com/debian; a mirror is named by nvidia_driver_mirror: gpu-01" in text
    assert "  nvidia-kernel-dkms 550.163.01-2" in text
    assert "engine of debian 13, from the host's own sources: gpu-01" in text
    assert "container_toolkit_key" in text


def test_the_file_is_written_again_only_when_something_changes(manifests: Path) -> None:
    path = manifests.parent / "reports" / "bundle.json"
    assert listed(manifests, check=True)["changed"]
    assert not path.exists()
    first = listed(manifests, diff=True)
    assert (first["changed"], json.loads(path.read_text(encoding="utf-8"))) == (True, {**first["bundle"]})
    again = listed(manifests, diff=True)
    assert (again["changed"], again["diff"]) == (False, [])


def test_the_documentation_names_every_argument_as_the_door_takes_it() -> None:
    options = yaml.safe_load(DOCUMENTATION)["options"]
    kept = ("type", "required", "default", "elements")
    assert {name: {key: each[key] for key in kept if key in each} for name, each in options.items()} == ARGUMENTS
