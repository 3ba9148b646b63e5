# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The licence of a virtual machine's vGPU: gridd.conf and token written, and what nvidia-smi and nvidia-gridd say of it."""

from __future__ import annotations

import os
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gridd import HEAD, TOKEN, text_of
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_licence import parse

if t.TYPE_CHECKING:
    from conftest import RunModule

SECRET = "eyJhbGciOiJSUzI1NiJ9abc.eyJqdGkiOiI1NmQ0NDI4Yi0.c2lnbmF0dXJlIG9mIGl0"
# As NVIDIA's guide shows it: the section is inside each GPU's, with a field of the GPU after it.
SMI = """
==============NVSMI LOG==============

Timestamp                                 : Tue Jun 17 16:49:09 2025
Driver Version                            : 595.58.03
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:02:01.0
    Product Name                          : NVIDIA H100-80C
    Product Brand                         : NVIDIA Virtual Compute Server
    vGPU Software Licensed Product
        Product Name                      : NVIDIA Virtual Compute Server
        License Status                    : {first}
    GPU Virtualization Mode
        Virtualization Mode               : VGPU
        Host VGPU Mode                    : N/A
GPU 00000000:0A:01.0
    Product Name                          : NVIDIA H100-80C
    GRID Licensed Product
        Product Name                      : NVIDIA Virtual Compute Server
        License Status                    : {second}
    Fan Speed                             : N/A
"""
LICENSED = "Licensed (Expiry: 2025-6-18 8:44:9 GMT)"
WHOLE = """
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA A100-SXM4-80GB
    vGPU Software Licensed Product
        Product Name                      : N/A
        License Status                    : N/A
"""


def test_what_nvidia_smi_says_becomes_data() -> None:
    first, second = parse(SMI.format(first=LICENSED, second="Unlicensed (Restricted)"))
    assert first == {
        "gpu": "0000:02:01.0",
        "name": "NVIDIA H100-80C",
        "product": "NVIDIA Virtual Compute Server",
        "status": LICENSED,
        "licensed": True,
        "restricted": False,
        "expiry": "2025-06-18T08:44:09Z",
    }
    assert (second["gpu"], second["licensed"], second["restricted"], second["expiry"]) == ("0000:0a:01.0", False, True, None)


@pytest.mark.parametrize(
    ("status", "licensed", "restricted"),
    [
        ("Licensed", True, False),
        ("Licensed (Expiry: Permanent)", True, False),
        ("Licensed (Expiry: 2025-13-45 8:44:9 GMT)", True, False),
        ("Unlicensed", False, False),
        ("Unlicensed (Unrestricted)", False, False),
        ("Unlicensed (Restricted)", False, True),
    ],
)
def test_each_word_of_the_driver_is_understood(status: str, licensed: bool, restricted: bool) -> None:
    gpu = parse(SMI.format(first=status, second="N/A"))
    assert [(one["licensed"], one["restricted"], one["expiry"]) for one in gpu] == [(licensed, restricted, None)]


@pytest.mark.parametrize("text", ["", WHOLE, "GPU 00000000:3B:00.0\n    vGPU Software Licensed Product : N/A\n", "no GPU here\n"])
def test_a_gpu_that_wants_no_licence_is_left_out(text: str) -> None:
    assert parse(text) == []


def test_gridd_conf_has_nvidias_keys() -> None:
    options = {
        "feature": "compute",
        "server_address": "licence.example.com",
        "server_port": 7070,
        "backup_server_address": "192.0.2.7",
        "enable_ui": False,
        "interval_minutes": 1440,
        "linger_minutes": 0,
    }
    assert text_of(options).splitlines()[1:] == [
        "ServerAddress=licence.example.com",
        "ServerPort=7070",
        "BackupServerAddress=192.0.2.7",
        "FeatureType=4",
        "EnableUI=FALSE",
        "LicenseInterval=1440",
        "LingerInterval=0",
    ]
    assert text_of({}) == ""
    assert text_of({"feature": "vgpu"}, "/srv/tokens") == HEAD + "FeatureType=1\nClientConfigTokenPath=/srv/tokens\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interval_minutes": 9}, "interval_minutes: it is 9; it is from 10 to 10080"),
        ({"linger_minutes": 10081}, "linger_minutes: it is 10081"),
        ({"server_address": "a\nFeatureType=2"}, "server_address: 'a FeatureType=2' is no name or address of a host"),
        ({"server_port": 7070}, "server_port: a port without an address"),
        ({"backup_server_address": "b"}, "backup_server_address: a second server without a first"),
    ],
    ids=lambda each: each.partition(":")[0] if isinstance(each, str) else "",
)
def test_what_cannot_be_is_refused(options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(FleetError) as caught:
        text_of(options)
    assert str(caught.value).startswith(words)


class Guest:
    """A virtual machine below ``root``, with NVIDIA's daemon installed."""

    def __init__(self, root: Path, run_module: RunModule) -> None:
        self.root, self._run = root, run_module
        self.conf, self.tokens = root / "etc/nvidia/gridd.conf", root / "etc/nvidia/ClientConfigToken"
        self.token, self.gridd = self.tokens / TOKEN, root / "nvidia-gridd"
        self.gridd.write_text("")
        (root / "proc").mkdir()

    def write(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        where = {
            "conf": self.conf,
            "token_dir": self.tokens,
            "gridd": self.gridd,
            "proc_root": self.root / "proc",
            "state_dir": self.root / "s",
        }
        result = self._run("vgpu_licence", {**{name: str(path) for name, path in where.items()}, **options}, check=check, diff=True)
        assert SECRET not in str({**result, "invocation": None})
        return result

    def runs_since(self, moment: float) -> None:
        """The daemon runs; the machine was booted an hour before it was started."""
        place = self.root / "proc" / "812"
        place.mkdir(exist_ok=True)
        (place / "comm").write_text("nvidia-gridd\n")
        ticks = int((moment - int(moment) + 3600) * os.sysconf("SC_CLK_TCK"))
        (place / "stat").write_text(f"812 (nvidia-gridd) S {' '.join(['0'] * 18)} {ticks} 0\n")
        (self.root / "proc" / "stat").write_text(f"cpu 1\nbtime {int(moment) - 3600}\n")


@pytest.fixture
def guest(tmp_path: Path, run_module: RunModule) -> Guest:
    return Guest(tmp_path, run_module)


def test_conf_and_token_come_once_and_check_mode_said_so(guest: Guest) -> None:
    wish = {"options": {"feature": "vgpu"}, "token": f"{SECRET}\n"}
    predicted = guest.write(check=True, **wish)
    assert not guest.conf.exists()
    made = guest.write(**wish)
    assert (predicted["changed"], predicted["restart"], predicted["diff"]) == (made["changed"], made["restart"], made["diff"])
    assert (made["changed"], made["restart"], made["token"]) == (True, True, "present")
    assert guest.conf.read_text() == f"{HEAD}FeatureType=1\nClientConfigTokenPath={guest.tokens}\n"
    assert (guest.token.read_text(), guest.token.stat().st_mode & 0o777) == (SECRET, 0o600)
    again = guest.write(**wish)
    assert (again["changed"], again["restart"]) == (False, False)
    assert again["diff"]["before"] == again["diff"]["after"]


def test_another_token_is_told_of_and_not_shown(guest: Guest) -> None:
    guest.write(token="old")
    result = guest.write(token=SECRET)
    assert result["changed"]
    assert result["diff"]["before"] == f"# token: {guest.token}\n"
    assert result["diff"]["after"] == f"# token, another one or another mode: {guest.token}\n"
    assert guest.write(token=SECRET, token_mode="0744")["changed"]
    assert guest.token.stat().st_mode & 0o777 == 0o744


def test_all_of_it_goes_with_the_wish_and_what_was_there_before_comes_back(guest: Guest) -> None:
    guest.conf.parent.mkdir(parents=True)
    guest.conf.write_text("FeatureType=0\n")
    guest.tokens.mkdir()
    (guest.tokens / "of-the-site.tok").write_text("theirs")
    result = guest.write(options={"feature": "vgpu"}, token=SECRET)
    assert "of-the-site.tok" in result["notes"][0]
    gone = guest.write()
    assert (gone["changed"], gone["restart"], gone["token"]) == (True, True, "absent")
    assert guest.conf.read_text() == "FeatureType=0\n"
    assert sorted(path.name for path in guest.tokens.iterdir()) == ["of-the-site.tok"]
    assert sorted(path.name for path in guest.conf.parent.iterdir()) == ["ClientConfigToken", "gridd.conf"]
    assert guest.write()["changed"] is False


def test_a_daemon_that_was_started_before_its_files_is_to_be_restarted(guest: Guest) -> None:
    wish = {"options": {"feature": "vgpu"}, "token": SECRET}
    guest.write(**wish)
    guest.runs_since(time.time() - 60)
    result = guest.write(**wish)
    assert (result["changed"], result["restart"]) == (False, True), "an earlier run was ended between the two"
    guest.runs_since(time.time())
    assert guest.write(**wish)["restart"] is False


def test_without_the_daemon_nothing_is_written(guest: Guest) -> None:
    guest.gridd.unlink()
    result = guest.write(token=SECRET)
    assert result["msg"].startswith(f"there is no {guest.gridd} on this host; install NVIDIA's driver for guests of vGPUs first")
    assert not guest.tokens.exists()
    assert guest.write()["changed"] is False, "nothing is wished"


def test_what_is_no_token_is_refused_unseen(guest: Guest) -> None:
    result = guest.write(token=f"{SECRET} and more")
    assert result["msg"] == "token: it has blanks or several lines, so it is no token; give the text of one .tok file"
    assert guest.write(token=SECRET, token_mode="rw")["msg"].startswith("token_mode: 'rw' is no mode")


class Said:
    """What the two programs answer; ``smi`` gets the next text at every question, the last one for good."""

    def __init__(self, root: Path, run_module: RunModule) -> None:
        self.root, self._run = root, run_module
        self.program("journalctl", "exit 1")

    def program(self, name: str, script: str) -> None:
        path = self.root / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def smi(self, *texts: str) -> None:
        for number, text in enumerate(texts):
            (self.root / f"answer{number}").write_text(text)
        last = self.root / f"answer{len(texts) - 1}"
        count = f"n=$(cat {self.root}/n 2>/dev/null || echo 0); echo $((n + 1)) > {self.root}/n"
        step = f"{count}; cat {self.root}/answer$n 2>/dev/null || cat {last}"
        self.program("nvidia-smi", f'[ "$*" = -q ] || exit 9\n{step}')

    def look(self, **options: t.Any) -> dict[str, t.Any]:
        programs = {name.replace("-", "_"): str(self.root / name) for name in ("nvidia-smi", "journalctl")}
        return self._run("vgpu_licence_info", {**programs, **options})


@pytest.fixture
def said(tmp_path: Path, run_module: RunModule) -> Said:
    return Said(tmp_path, run_module)


def test_a_licence_that_comes_is_waited_for(said: Said) -> None:
    said.smi("", SMI.format(first="Unlicensed", second=LICENSED), SMI.format(first=LICENSED, second=LICENSED))
    result = said.look(wait=60, require=True)
    assert (result["failed"], result["state"], result["problem"], result["words"]) == (False, "licensed", None, None), result


def test_one_that_does_not_come_is_one_line_with_the_daemons_words(said: Said) -> None:
    said.smi(SMI.format(first=LICENSED, second="Unlicensed (Unrestricted)"))
    lines = [
        "Started nvidia-gridd.service - NVIDIA Grid Daemon.",
        f"Failed to acquire license with {SECRET}: server not reachable",
        "Goodbye",
    ]
    said.program("journalctl", "\n".join(f"echo '{line}'" for line in lines))
    result = said.look(wait=0.01)
    words = "Failed to acquire license with ...: server not reachable"
    assert (result["failed"], result["state"], result["words"]) == (False, "unlicensed", words), result
    line = f"no licence after 0.01 s for 0000:0a:01.0 (NVIDIA H100-80C): Unlicensed (Unrestricted); nvidia-gridd: {words}"
    assert result["problem"] == line
    failed = said.look(require=True)
    assert failed["msg"].startswith(line.replace(" after 0.01 s", "") + "; look at its clock")


def test_a_journal_that_cannot_be_read_keeps_nothing_from_being_said(said: Said) -> None:
    said.smi(SMI.format(first="Unlicensed", second="N/A"))
    assert said.look()["problem"].endswith("Unlicensed; nvidia-gridd says nothing of it")


def test_a_host_where_nothing_wants_a_licence_says_that(said: Said) -> None:
    said.smi(WHOLE)
    result = said.look()
    assert (result["state"], result["gpus"], result["problem"]) == ("none", [], "no GPU here wants a licence of NVIDIA's vGPU software")
    assert said.look(require=True)["msg"] == f"{result['problem']}; is this a guest with a vGPU?"


def test_a_driver_that_does_not_answer_is_named(said: Said) -> None:
    said.program("nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    assert "could not communicate with the NVIDIA driver" in said.look(require=True)["msg"]
    told = said.look(wait=60)
    assert (told["state"], told["gpus"]) == ("unknown", [])
    assert "could not communicate with the NVIDIA driver" in told["problem"]
