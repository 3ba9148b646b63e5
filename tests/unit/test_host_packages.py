# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages from where are an engine and the container toolkit, what the engine is told, and links to device nodes."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter import host_packages
from ansible_collections.gpuops.fleet.plugins.module_utils import dev_char
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door

if t.TYPE_CHECKING:
    from conftest import RunModule

TOOLKIT = ["nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1"]


def facts(system: str, major: str, codename: str = "", machine: str = "x86_64") -> dict[str, str]:
    """As Ansible tells them."""
    family = "Debian" if system in ("Debian", "Ubuntu") else "RedHat" if system != "SLES" else "Suse"
    told = {"os_family": family, "distribution": system, "distribution_major_version": major, "distribution_release": codename}
    return {**told, "architecture": machine}


TRIXIE, NOBLE, ROCKY = facts("Debian", "13", "trixie"), facts("Ubuntu", "24", "noble"), facts("Rocky", "9", "Blue Onyx")


def test_debians_own_engine_needs_no_repository_and_is_proven() -> None:
    assert host_packages.install_plan(TRIXIE, "engine", source="distribution") == {
        "family": "debian",
        "names": ["docker.io", "docker-cli", "docker-compose"],
        "specs": ["docker.io", "docker-cli", "docker-compose"],
        "repository": None,
        "warning": "",
    }


@pytest.mark.parametrize(
    ("version", "specs"),
    [
        ("26.1.5", ["docker.io=26.1.5-*", "docker-cli=26.1.5-*", "docker-compose"]),
        ("26.1.5+dfsg1-9", ["docker.io=26.1.5+dfsg1-9", "docker-cli=26.1.5+dfsg1-9", "docker-compose"]),
        ("26.1.*", ["docker.io=26.1.*", "docker-cli=26.1.*", "docker-compose"]),
    ],
)
def test_a_version_is_asked_of_the_packages_that_bear_it(version: str, specs: list[str]) -> None:
    assert host_packages.install_plan(TRIXIE, "engine", source="distribution", version=version)["specs"] == specs


def test_the_vendors_repository_on_debian_is_signed_by_a_key_of_known_hash() -> None:
    found = host_packages.install_plan(TRIXIE, "engine", source="repository")
    assert found["repository"] == {
        "path": "/etc/apt/sources.list.d/gpuops-fleet-docker.sources",
        "text": "Types: deb\nURIs: https://download.docker.com/linux/debian\nSuites: trixie\nComponents: stable\n"
        "Signed-By: /etc/apt/keyrings/gpuops-fleet-docker.asc\n",
        "key": {
            "url": "https://download.docker.com/linux/debian/gpg",
            "checksum": "sha256:1500c1f56fa9e26b9b8f42452a553675796ade0807cdce11975eb98170b3a570",
            "path": "/etc/apt/keyrings/gpuops-fleet-docker.asc",
        },
    }
    assert found["names"] == ["docker-ce", "docker-ce-cli", "containerd.io", "docker-compose-plugin"]
    assert found["warning"] == "repository packages of engine have not run for real on debian 13: look at the result"


def test_a_mirror_stands_for_the_vendors_address_and_keeps_its_layout() -> None:
    wish = {"source": "mirror", "mirror": "https://mirror.example.com/nvidia/", "version": "1.17.8"}
    found = host_packages.install_plan(facts("Ubuntu", "24", "noble", "aarch64"), "toolkit", **wish)
    assert "URIs: https://mirror.example.com/nvidia/stable/deb/arm64\nSuites: /\nSigned-By" in found["repository"]["text"]
    assert found["repository"]["key"]["url"] == "https://mirror.example.com/nvidia/gpgkey"
    assert found["specs"] == [f"{name}=1.17.8-*" for name in TOOLKIT]
    own = host_packages.install_plan(TRIXIE, "toolkit", **wish, key="https://mirror.example.com/own.asc")["repository"]["key"]
    assert (own["url"], own["checksum"]) == ("https://mirror.example.com/own.asc", "")


def test_red_hats_family_gets_a_repo_file() -> None:
    found = host_packages.install_plan(ROCKY, "toolkit", source="repository", version="1.17.8")
    assert found["repository"]["path"] == "/etc/yum.repos.d/gpuops-fleet-nvidia-container-toolkit.repo"
    assert "baseurl=https://nvidia.github.io/libnvidia-container/stable/rpm/x86_64\n" in found["repository"]["text"]
    assert "gpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/gpuops-fleet-nvidia-container-toolkit.asc\n" in found["repository"]["text"]
    assert found["specs"] == [f"{name}-1.17.8-*" for name in TOOLKIT]
    assert (
        "baseurl=https://download.docker.com/linux/rhel/9/x86_64/stable\n"
        in (host_packages.install_plan(ROCKY, "engine", source="repository")["repository"]["text"])
    )


@pytest.mark.parametrize(
    ("system", "what", "wish", "complaint"),
    [
        (facts("Debian", "12", "bookworm"), "engine", {"source": "distribution"}, "Debian 12 has Docker 20.10 and Compose 1.29"),
        (ROCKY, "engine", {"source": "distribution"}, "this distribution has no Docker of its own"),
        (TRIXIE, "toolkit", {"source": "distribution"}, "debian 13 has no such packages"),
        (TRIXIE, "engine", {"source": "mirror"}, "a mirror is wished, and none is named"),
        (facts("SLES", "15"), "engine", {"source": "repository"}, "SLES 15 is not prepared"),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(system: dict[str, str], what: str, wish: dict[str, str], complaint: str) -> None:
    with pytest.raises(AnsibleFilterError, match=complaint):
        host_packages.install_plan(system, what, **wish)


def test_packages_of_a_sites_own_rule_over_what_is_known() -> None:
    found = host_packages.install_plan(ROCKY, "engine", source="distribution", packages=["moby-engine"], version="27.5.1")
    assert (found["specs"], found["repository"]) == (["moby-engine-27.5.1-*"], None)


def test_what_is_present_installs_nothing() -> None:
    assert host_packages.install_plan(NOBLE, "engine", source="present")["names"] == []


def test_every_source_of_the_data_is_listed() -> None:
    data = door.read_data("engine_packages.yml").data
    rows = [row for what in ("engine", "toolkit") for row in data[what]["rows"]]
    assert {row["from"] for row in rows} <= set(data["sources"])
    assert {row["conf"] for row in rows} <= {"A", "B", "U"}


# ---- what the engine is told


@pytest.mark.parametrize(
    ("package", "installed", "version"),
    [
        ("docker.io", "26.1.5+dfsg1-9+deb13u1", "26.1.5"),
        ("docker-ce", "5:28.3.0-1~debian.13~trixie", "28.3.0"),
        ("docker-ce", "3:27.5.1-1.el9", "27.5.1"),
        ("podman-docker", "5.4.2", ""),
    ],
)
def test_the_engines_version_is_read_from_its_package(package: str, installed: str, version: str) -> None:
    assert host_packages.engine_version({package: [{"version": installed}]}) == version


@pytest.mark.parametrize(
    ("installed", "told"), [("24.0.9", None), ("25.0.0", True), ("26.1.5", True), ("28.3.0", False), ("29.7.1", False)]
)
def test_cdi_is_switched_on_where_the_engine_knows_it_and_does_not_have_it_on(installed: str, told: bool | None) -> None:
    packages = {"docker-ce": [{"version": f"5:{installed}-1"}]}
    if told is None:
        with pytest.raises(AnsibleFilterError, match=f"Docker {installed} knows no CDI; upgrade to Docker 25 or newer"):
            host_packages.engine_settings({}, packages)
    else:
        found = host_packages.engine_settings({"features": {"buildkit": True}}, packages)
        assert found == {"features": {"buildkit": True, **({"cdi": True} if told else {})}}
    assert host_packages.engine_settings({}, packages, cdi=False) == {}


def test_an_engine_that_is_not_there_is_told_nothing_of_cdi() -> None:
    assert host_packages.engine_settings({"debug": True}, {}) == {"debug": True}


@pytest.mark.parametrize(
    ("toolkit", "mode", "serves"),
    [("1.11.0", "cdi", False), ("1.11.*", "cdi", False), ("1.12.0", "cdi", True), ("1.17.8-1", "cdi", True), ("1.11.0", "runtime", True),
     ("", "cdi", True)],
)  # fmt: skip
def test_a_toolkit_that_makes_no_cdi_specification_does_not_serve(toolkit: str, mode: str, serves: bool) -> None:
    said = host_packages.toolkit_refusal(toolkit, mode)
    assert (said == "") is serves
    assert serves or said.startswith(f"container toolkit {toolkit} makes no CDI specification: install 1.12.0 or newer")


# ---- links to device nodes


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Nodes that are always there, under NVIDIA's names."""
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia-caps/nvidia-cap1").symlink_to("/dev/zero")
    (tmp_path / "nvidia-notes").write_text("no node", encoding="utf-8")
    return tmp_path


def test_nodes_are_linked_by_their_numbers_once(dev: Path, run_module: RunModule) -> None:
    wish = {"dev_root": str(dev)}
    promised = run_module("dev_char", wish, check=True)
    assert not (dev / "char").exists()
    result = run_module("dev_char", wish)
    assert result["links"] == promised["links"] == [f"{dev}/char/1:5", f"{dev}/char/1:3"]
    assert {os.readlink(path) for path in (dev / "char").iterdir()} == {"../nvidia0", "../nvidia-caps/nvidia-cap1"}
    assert run_module("dev_char", wish)["changed"] is False


def test_a_link_that_leads_elsewhere_is_mended_and_others_stay(dev: Path) -> None:
    (dev / "char").mkdir()
    (dev / "char/1:3").symlink_to("../gone")
    (dev / "char/10:200").symlink_to("../net/tun")
    dev_char.make(dev_char.missing(dev))
    assert {path.name: os.readlink(path) for path in (dev / "char").iterdir()} == {
        "1:3": "../nvidia0",
        "1:5": "../nvidia-caps/nvidia-cap1",
        "10:200": "../net/tun",
    }


def test_a_host_without_the_driver_has_nothing_to_link(tmp_path: Path, run_module: RunModule) -> None:
    assert run_module("dev_char", {"dev_root": str(tmp_path)})["links"] == []


def test_a_link_that_cannot_be_made_is_told(dev: Path, run_module: RunModule) -> None:
    (dev / "char").write_text("", encoding="utf-8")
    result = run_module("dev_char", {"dev_root": str(dev)})
    assert (result["failed"], result["msg"]) == (True, f"cannot make {dev}/char/1:5: File exists")


# ---- why packages were not installed: dpkg's words as 1.21.22 printed them on a full disk and below a script that failed

APT = "'/usr/bin/apt-get -y -o \"Dpkg::Options::=--force-confdef\" install 'nvidia-kernel-dkms=550.163.01-2'' failed: "
FULL_DPKG = """dpkg: error processing archive /var/cache/apt/archives/libcuda1_550.163.01-2_amd64.deb (--unpack):
 cannot copy extracted data for './usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.550.163.01' to \
'/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.550.163.01.dpkg-new': failed to write (No space left on device)
dpkg-deb: error: paste subprocess was killed by signal (Broken pipe)
Errors were encountered while processing:
 /var/cache/apt/archives/libcuda1_550.163.01-2_amd64.deb
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
POSTINST = """dpkg: error processing package nvidia-kernel-dkms (--configure):
 installed nvidia-kernel-dkms package post-installation script subprocess returned error exit status 10
Errors were encountered while processing:
 nvidia-kernel-dkms
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
DKMS = """Building module(s)...(bad exit status: 2)
Error! Bad return status for module build on kernel: 6.12.107+deb13-amd64 (x86_64)
Consult /var/lib/dkms/nvidia-current/550.163.01/build/make.log for more information.
"""


@pytest.mark.parametrize(
    ("result", "words", "helps"),
    [
        ({"msg": APT + FULL_DPKG, "stderr": FULL_DPKG}, "failed to write (No space left on device)", "free some"),
        (
            {"msg": APT + "E: You don't have enough free space in /var/cache/apt/archives/.\n"},
            "E: You don't have enough free space in /var/cache/apt/archives/.",
            "free some, for instance with `apt-get clean`",
        ),
        ({"msg": APT + POSTINST, "stderr": POSTINST, "stdout": DKMS}, "Bad return status for module build on kernel: 6.12.107", "make.log"),
        (
            {"msg": APT + POSTINST, "stderr": POSTINST},
            "nvidia-kernel-dkms (--configure): installed nvidia-kernel-dkms package post-inst",
            "",
        ),
        (
            {"msg": APT + "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem. \n"},
            "dpkg was interrupted",
            "run `dpkg --configure -a` there",
        ),
        (
            {
                "msg": APT
                + "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)\nE: Unable to acquire"
            },
            "held by process 812",
            "wait for what installs there now",
        ),
        (
            {"msg": APT + "E: Failed to fetch http://mirror.example.com/a.deb  Connection failed\nE: Unable to fetch some archives"},
            "E: Failed to fetch http://mirror.example.com/a.deb Connection failed",
            "look at the source of packages",
        ),
        (
            {
                "msg": "Failed to install some of the specified packages",
                "failures": ["Problem: nothing provides dkms needed by kmod-nvidia"],
            },
            "nothing provides dkms needed by kmod-nvidia",
            "look at what holds them",
        ),
        (
            {"msg": "Failed to validate GPG", "failures": ["At least 512MB more space needed on the / filesystem."]},
            "At least 512MB more space needed",
            "free some",
        ),
        (
            {"msg": APT + "E: Held packages were changed and -y was used without --allow-change-held-packages.\n"},
            "Held packages were changed",
            "`apt-mark unhold`",
        ),
        ({"msg": APT + "E: Something else\n"}, "E: Something else", ""),
        ({"msg": "no package matching 'x' is available"}, "no package matching 'x' is available", ""),
        ({}, "no reason given", ""),
        ({"msg": "x" * 5000}, "x" * 120 + " ... " + "x" * 240, ""),
    ],
)
def test_why_packages_were_not_installed_is_one_line_with_what_helps(result: dict[str, t.Any], words: str, helps: str) -> None:
    line = host_packages.install_problem(result, "gpu-07")
    assert line.startswith("gpu-07: packages were not installed: ")
    assert words in line
    assert helps in line
    assert "apt-get -y" not in line
    assert line.endswith("run this again: it finishes what is half done")
    assert len(line.splitlines()) == 1
    assert len(line) < 500
