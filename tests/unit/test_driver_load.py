# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel modules built and loaded, with programs in the place of dkms, modprobe and dmesg, and trees in the place of /proc and /sys."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_load import Options, build, load
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from conftest import RunModule

DRIVER = "550.163.01"
KERNEL = "6.12.107+deb13-amd64"


class Host:
    """A host with an installed driver and one kernel. What its programs were asked is in ``calls``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so." + DRIVER, "")
        self.write("proc/sys/kernel/osrelease", KERNEL)
        (root / "lib/modules" / KERNEL / "kernel").mkdir(parents=True)
        self.program("modprobe", "exit 0")
        self.program("dmesg", "exit 0")
        self.program("dkms", "cat " + str(root / "dkms-state") + " 2>/dev/null; true")

    def write(self, path: str, text: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def program(self, name: str, script: str) -> None:
        self.write(f"bin/{name}", f'#!/bin/sh\necho "{name} $*" >> {self.root}/calls\n{script}\n').chmod(0o755)

    def module(self, name: str, count: int, *holders: str) -> None:
        self.write(f"sys/module/{name}/refcnt", f"{count}\n")
        for each in holders:
            (self.root / f"sys/module/{name}/holders/{each}").mkdir(parents=True)

    def proc_line(self, version: str) -> str:
        return f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Apr  8\n"

    def loads(self, version: str = DRIVER) -> None:
        """From now on modprobe loads a module of this version."""
        place = self.root / "proc/driver/nvidia"
        place.mkdir(parents=True, exist_ok=True)
        self.program(
            "modprobe",
            f'case "$1" in --remove) rm -f {place}/version;; *) echo "{self.proc_line(version).strip()}" > {place}/version;; esac',
        )

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def arguments(self) -> dict[str, str]:
        programs = {name: str(self.root / "bin" / name) for name in ("dkms", "modprobe", "dmesg")}
        return {"root": str(self.root), "proc_root": str(self.root / "proc"), "sys_root": str(self.root / "sys"), **programs}

    def options(self) -> Options:
        return Options(**self.arguments, timeout=20)

    def refusal(self, check: bool = False) -> str:
        with pytest.raises(FleetError) as caught:
            load(self.options(), check)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_driver_is_loaded_once(host: Host) -> None:
    host.loads()
    assert load(host.options(), False) == {"changed": True, "driver": DRIVER, "before": None, "pending": None}
    assert host.calls == ["modprobe nvidia", "modprobe nvidia-uvm"]
    assert load(host.options(), False)["changed"] is False
    assert len(host.calls) == 2


def test_a_vgpu_host_has_another_second_module(host: Host) -> None:
    host.loads()
    assert load(Options(**host.arguments, timeout=20, kind="vgpu-host"), False)["changed"] is True
    assert host.calls == ["modprobe nvidia", "modprobe nvidia-vgpu-vfio"]


def test_check_mode_promises_and_touches_nothing(host: Host) -> None:
    host.loads()
    assert load(host.options(), True)["changed"] is True
    assert host.calls == []


def test_without_a_driver_it_says_that(host: Host) -> None:
    (host.root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}").unlink()
    assert "no driver is installed" in host.refusal()


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("modprobe: ERROR: could not insert 'nvidia_current': No such device", "no NVIDIA GPU on this host that this driver drives"),
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot rejects the module's key"),
        ("modprobe: ERROR: could not insert 'nvidia': Required key not available", "Secure Boot wants a signed module"),
        ("modprobe: ERROR: could not insert 'nvidia': Exec format error", "built for another kernel"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1", "no module for this kernel"),
        ("modprobe: ERROR: could not insert 'nvidia': Device or resource busy", "something else holds the GPU"),
        ("modprobe: ERROR: could not insert 'nvidia': Unknown symbol in module", "does not fit this kernel"),
        ("modprobe: ERROR: could not insert 'nvidia': Operation not permitted", "may not load modules"),
        ("modprobe: ERROR: could not insert 'nvidia': Out of luck", "does not load: modprobe: could not insert 'nvidia': Out of luck"),
    ],
)
def test_a_refusal_is_one_line_with_the_kernels_word_and_what_it_means(host: Host, words: str, meaning: str) -> None:
    host.program("modprobe", f'echo "{words}" >&2; exit 1')
    host.program("dmesg", "echo '[   11.5] other'; echo '[ 1234.567890] NVRM: No NVIDIA GPU found.'")
    line = host.refusal()
    assert meaning in line
    assert words.split(": ", 2)[2] in line
    assert "kernel: NVRM: No NVIDIA GPU found." in line


def test_the_kernels_word_counts_and_not_what_modprobe_makes_of_it(host: Host) -> None:
    # As Debian 13's modprobe said it, on a machine without a GPU.
    host.program(
        "modprobe",
        "echo \"modprobe: ERROR: could not insert 'nvidia_current': No such device\" >&2\n"
        "echo \"modprobe: ERROR: Error running install command 'modprobe -i nvidia-current ' for module nvidia: retcode 1\" >&2\n"
        "echo \"modprobe: ERROR: could not insert 'nvidia': Invalid argument\" >&2; exit 1",
    )
    line = host.refusal()
    assert "(modprobe: could not insert 'nvidia_current': No such device" in line
    assert "Invalid argument" not in line


def test_a_kernel_whose_messages_cannot_be_read_costs_only_them(host: Host) -> None:
    host.program("modprobe", "echo \"modprobe: ERROR: could not insert 'nvidia': No such device\" >&2; exit 1")
    (host.root / "bin/dmesg").unlink()
    assert "kernel:" not in host.refusal()


def test_another_driver_that_nobody_uses_makes_way(host: Host) -> None:
    host.loads()
    host.write("proc/driver/nvidia/version", host.proc_line("535.274.02"))
    host.module("nvidia", 1, "nvidia_uvm")
    host.module("nvidia_uvm", 0)
    found = load(host.options(), False)
    assert (found["changed"], found["before"], found["pending"]) == (True, "535.274.02", None)
    assert host.calls[0] == "modprobe --remove nvidia_uvm nvidia"


@pytest.mark.parametrize("check", [True, False])
def test_a_driver_in_use_is_left_alone_and_the_new_one_is_pending(host: Host, check: bool) -> None:
    host.write("proc/driver/nvidia/version", host.proc_line("535.274.02"))
    host.module("nvidia", 3, "nvidia_uvm")
    host.module("nvidia_uvm", 4)
    found = load(host.options(), check)
    assert found["changed"] is False
    assert found["pending"] == f"driver 535.274.02 is loaded and in use: nvidia_uvm (4), nvidia (2); {DRIVER} takes over after a reboot"
    assert host.calls == []


def test_a_driver_that_does_not_go_is_pending(host: Host) -> None:
    host.write("proc/driver/nvidia/version", host.proc_line("535.274.02"))
    host.module("nvidia", 0)
    assert "cannot be unloaded" in load(host.options(), False)["pending"]
    assert host.calls == ["modprobe --remove nvidia"]


def test_nouveau_is_never_torn_from_the_console(host: Host) -> None:
    (host.root / "sys/module/nouveau").mkdir(parents=True)
    assert "nouveau drives the GPU" in load(host.options(), False)["pending"]
    assert host.calls == []


def test_a_module_of_another_version_than_the_library_is_said_to_be_that(host: Host) -> None:
    host.loads("535.274.02")
    assert "the kernel module is 535.274.02 and the library 550.163.01" in host.refusal()


def test_a_module_that_loads_and_does_not_answer_is_an_error(host: Host) -> None:
    assert "does not answer although its module is loaded" in host.refusal()


def headers(host: Host, release: str) -> None:
    host.write(f"lib/modules/{release}/build/Makefile", "")


def builds(host: Host, works: bool) -> None:
    """``dkms autoinstall -k KERNEL`` adds its line to what ``dkms status`` shows, or fails with a log."""
    state = host.root / "dkms-state"
    good = f'echo "nvidia-current/{DRIVER}, $3, x86_64: installed" >> {state}'
    log = host.root / f"var/lib/dkms/nvidia-current/{DRIVER}/build/make.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    bad = f"echo 'x.c:7:2: error: too few arguments' > {log}; echo 'Error! Bad return status' >&2; exit 10"
    host.program("dkms", f'case "$1" in status) cat {state} 2>/dev/null; true;; autoinstall) {good if works else bad};; esac')


def test_what_dkms_has_not_built_is_built_for_the_running_and_the_next_kernel(host: Host) -> None:
    newer = "6.12.200+deb13-amd64"
    (host.root / "lib/modules" / newer / "kernel").mkdir(parents=True)
    for release in (KERNEL, newer):
        headers(host, release)
    host.write("dkms-state", f"nvidia-current/{DRIVER}: added\n")
    builds(host, True)
    assert build(host.options(), True)["built"] == [KERNEL, newer]
    assert not [call for call in host.calls if "autoinstall" in call], "check mode builds nothing"
    found = build(host.options(), False)
    assert (found["changed"], found["built"]) == (True, [KERNEL, newer])
    assert [call for call in host.calls if "autoinstall" in call] == [f"dkms autoinstall -k {KERNEL}", f"dkms autoinstall -k {newer}"]
    assert build(host.options(), False) == {"changed": False, "driver": DRIVER, "kernels": [KERNEL, newer], "built": []}


def test_a_build_that_fails_is_one_line_with_the_compilers_word(host: Host) -> None:
    headers(host, KERNEL)
    host.write("dkms-state", f"nvidia-current/{DRIVER}: added\n")
    builds(host, False)
    with pytest.raises(FleetError, match=r"was not built for kernel .*: x\.c:7:2: error: too few arguments; the whole story"):
        build(host.options(), False)


def test_a_kernel_without_headers_is_not_tried(host: Host) -> None:
    host.write("dkms-state", f"nvidia-current/{DRIVER}: added\n")
    with pytest.raises(FleetError, match=f"the headers of kernel {KERNEL.replace('+', '.')} are not there"):
        build(host.options(), False)


def test_modules_that_came_ready_made_need_no_dkms(host: Host) -> None:
    host.write(f"lib/modules/{KERNEL}/kernel/nvidia-580/nvidia.ko.zst", "")
    (host.root / "bin/dkms").unlink()
    assert build(host.options(), False)["changed"] is False


def test_the_modules_of_ansible_say_the_same(host: Host, run_module: RunModule) -> None:
    places = host.arguments
    built = run_module("driver_built", {name: places[name] for name in ("root", "proc_root", "dkms")})
    assert "the headers of kernel" in built["msg"]
    host.program("modprobe", "echo \"modprobe: ERROR: could not insert 'nvidia': No such device\" >&2; exit 1")
    loaded = run_module("driver_loaded", {name: places[name] for name in ("root", "proc_root", "sys_root", "modprobe", "dmesg")})
    assert loaded["msg"].startswith(f"driver {DRIVER} does not load: no NVIDIA GPU on this host")
