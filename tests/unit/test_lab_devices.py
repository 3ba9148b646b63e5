# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices and kernel modules of a guest, and how a module's answer is judged. mmdebstrap is a stand-in."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from lab_world import program

from lab import acts_passthrough, devices, modules_by_hand, packages, stories_devices
from lab.errors import LabError
from lab.modules_by_hand import Answer
from lab.packages import Mirror
from lab.site import Site

KERNEL = "6.12.1+deb13-amd64"
MMDEBSTRAP = r"""
echo "$*" >> "$CALLS"
[ -e "$BROKEN" ] && { echo "E: no such package" >&2; exit 1; }
for word; do case "$word" in *"download "*) target=${word#*\'}; echo modules > "${target%\'}" ;; esac; done
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image whose kernel is known."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image/status").write_text(f"Package: dpkg\n\nPackage: linux-image-{KERNEL}\nStatus: x\n", encoding="utf-8")
    return tmp_path / "image"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab below ``tmp_path``, whose mmdebstrap notes its calls here, and fails while there is a file ``broken``."""
    program(tmp_path / "bin", "mmdebstrap", MMDEBSTRAP)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("BROKEN", str(tmp_path / "broken"))
    monkeypatch.setattr(devices, "PATHS", f"{tmp_path / 'bin'}:{packages.PATHS}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "BUILD", tmp_path / "lab")
    monkeypatch.setattr(devices, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path / "calls"


def test_modules_are_built_once_against_the_headers_of_the_guests_own_kernel(image: Path, calls: Path) -> None:
    """The sample out of Debian's source package, the lab's own out of this checkout."""
    said: list[str] = []
    kept = devices.ensure(image, Mirror("http://mirror.example/debian"), said.append)
    assert kept.read_text(encoding="utf-8") == "modules\n"
    assert devices.ensure(image, Mirror("http://mirror.example/debian"), said.append) == kept
    asked = calls.read_text(encoding="utf-8")
    assert asked.count("--variant=apt") == 1
    assert f"linux-headers-{KERNEL},linux-source-6.12" in asked
    assert "samples/vfio-mdev/mtty.c" in asked
    assert all(f"kernel/{name}.c'" in asked for name in devices.OWN)
    assert len(said) == 1


def test_a_build_that_fails_is_one_line_and_leaves_nothing(image: Path, calls: Path, tmp_path: Path) -> None:
    """The next run tries again."""
    (tmp_path / "broken").touch()
    with pytest.raises(LabError, match=r"building the lab's kernel modules: mmdebstrap ended with 1: E: no such package \(log: .*\)$"):
        devices.ensure(image, Mirror("http://mirror.example/debian"), lambda _line: None)
    assert not list((tmp_path / "lab/modules").iterdir())
    (tmp_path / "broken").unlink()
    assert devices.ensure(image, Mirror("http://mirror.example/debian"), lambda _line: None).exists()
    assert calls.read_text(encoding="utf-8").count("--variant=apt") == 2


def test_an_image_without_a_kernel_is_told(image: Path) -> None:
    """There is nothing to build for."""
    (image / "status").write_text("Package: dpkg\n", encoding="utf-8")
    with pytest.raises(LabError, match="names no kernel"):
        devices.kernel(image)


def test_each_device_has_a_port_of_its_own_but_for_those_behind_the_old_bridge(tmp_path: Path) -> None:
    """Two devices behind a bridge for conventional PCI are one group."""
    words = devices.arguments(tmp_path / "a,b")
    assert f"file={tmp_path / 'a,,b'}/nvme.raw,if=none,format=raw,id=disk" in words
    given = [words[at + 1] for at, word in enumerate(words) if word == "-device"]
    assert [one for one in given if one.endswith(("bus=port1", "bus=port2", "bus=port3"))] == [
        "edu,bus=port1",
        "nvme,drive=disk,serial=lab,bus=port2",
        "igb,mac=52:54:00:00:00:01,bus=port3",
    ]
    assert len([one for one in given if "bus=old" in one]) == 2
    assert (tmp_path / "a,b/nvme.raw").stat().st_size == devices.NVME_MIB * 2**20


def test_a_scenario_of_devices_has_a_disk_with_a_hypervisor() -> None:
    """And no archive of services."""
    recipe = Site("devices").recipe
    assert recipe == devices.RECIPE
    assert {"libvirt-daemon-system", "qemu-system-x86"} <= set(recipe.packages)
    assert not recipe.ready


@pytest.mark.parametrize(
    ("said", "status", "result"),
    [
        (
            '[WARNING]: hm\nkvm-1 | CHANGED => {\n    "changed": true,\n    "steps": ["a }"]\n}\n',
            "CHANGED",
            {"changed": True, "steps": ["a }"]},
        ),
        ('kvm-1 | FAILED! => {\n    "msg": "no"\n}\n', "FAILED!", {"msg": "no"}),
    ],
)
def test_a_result_is_found_among_what_ansible_says(said: str, status: str, result: dict[str, t.Any]) -> None:
    """Warnings come before it."""
    assert modules_by_hand.parse(said) == (status, result)


def test_no_result_is_told_with_ansibles_last_words() -> None:
    """A module that was never called is no answer."""
    with pytest.raises(LabError, match=r"ansible gave no result: \[ERROR\]: no such module"):
        modules_by_hand.parse("[ERROR]: no such module\n")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer({"msg": "kept by mate (e1000)"}, True, 1), []),
        (Answer({"msg": "kept by somebody"}, True, 1), ["says nothing of"]),
        (Answer({"msg": "kept by mate (e1000)\nTraceback"}, True, 1), ["not one line"]),
        (Answer({"steps": ["unbind"], "changed": True}, False, 1), ["was not refused"]),
    ],
)
def test_a_refusal_has_to_be_one_and_to_name_who_is_in_the_way(answer: Answer, told: list[str]) -> None:
    """The story can fail."""
    found = list(acts_passthrough.refused("x", answer, r"mate \(e1000\)"))
    assert len(found) == len(told)
    assert all(words in one for words, one in zip(told, found, strict=True))


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (Answer({"changed": False, "steps": []}, False, 1), 0),
        (Answer({"changed": True, "steps": ["unbind"]}, False, 1), 1),
        (Answer({"msg": "no"}, True, 1), 1),
    ],
)
def test_a_second_run_that_changes_something_is_told(answer: Answer, problems: int) -> None:
    """And so is one that fails."""
    assert len(list(acts_passthrough.passed("x", answer, changed=False))) == problems


def test_acts_are_told_by_name() -> None:
    """What `verify devices ACT` takes."""
    assert {"bind", "group", "busy", "stuck", "mdev", "machine", "vendor", "boot", "replay"} <= set(stories_devices.ACTS)
