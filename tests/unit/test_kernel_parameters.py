# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's command line, with real trees of GRUB, systemd-boot and grubby; only the programs that write menus are stood in for."""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.boot_loader import Place, SystemdBoot
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.kernel_parameters import for_iommu, is_given, missing, tokens, units

if t.TYPE_CHECKING:
    from conftest import RunModule

MACHINE = "0123456789abcdef0123456789abcdef"
DROPIN = "etc/default/grub.d/99-gpuops-fleet-passthrough.cfg"
PLUGIN = "etc/kernel/install.d/95-gpuops-fleet-passthrough.install"
# As grub-mkconfig does it: the settings are shell, the drop-ins come after the file, and 10_linux writes a line for each kernel.
UPDATE_GRUB = """#!/bin/sh
set -e
[ ! -e "$ROOT/grub-fails" ] || { echo "grub-probe: error: cannot find a device for / (is /dev mounted?)." >&2; exit 1; }
. "$ROOT/etc/default/grub"
for each in "$ROOT"/etc/default/grub.d/*.cfg; do if [ -e "$each" ]; then . "$each"; fi; done
{ echo '### BEGIN /etc/grub.d/10_linux ###'
echo "menuentry 'Debian' {"
echo "	linux	/boot/vmlinuz-6.12 root=UUID=aa ro ${GRUB_CMDLINE_LINUX} ${GRUB_CMDLINE_LINUX_DEFAULT}"
echo "}"
echo "	linux	/boot/vmlinuz-6.12 root=UUID=aa ro single ${GRUB_CMDLINE_LINUX}"
echo '### END /etc/grub.d/10_linux ###'
echo '### BEGIN /etc/grub.d/40_custom ###'
echo "	linux	/rescue root=UUID=bb"
} > "$ROOT/boot/grub/grub.cfg"
"""
GRUBBY = """#!/usr/bin/env python3
import json, os, sys
place = os.environ["ROOT"] + "/kernels"
kernels = json.load(open(place))
for argument in sys.argv[1:]:
    name, _, value = argument.partition("=")
    if name == "--info":
        for line in kernels: print(f'kernel="/boot/vmlinuz"\\nargs="{" ".join(line)}"')
    elif name == "--args":
        kernels = [line + [each for each in value.split() if each not in line] for line in kernels]
    elif name == "--remove-args":
        kernels = [[each for each in line if each not in value.split()] for line in kernels]
json.dump(kernels, open(place, "w"))
"""


class Host:
    """A root with one boot loader. ``run(...)`` is the module."""

    def __init__(self, root: Path, module: RunModule, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._module = root, module
        monkeypatch.setenv("ROOT", str(root))
        monkeypatch.setenv("PATH", f"{root}/usr/sbin:{os.environ['PATH']}")
        self.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
        self.boots("root=UUID=aa ro quiet")
        self.write("boot/config-6.12", "CONFIG_INTEL_IOMMU=y\n# CONFIG_INTEL_IOMMU_DEFAULT_ON is not set\n")
        (root / "sys/kernel/iommu_groups/0").mkdir(parents=True)
        (root / "sys/class/iommu/dmar0").mkdir(parents=True)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)
        return place

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def boots(self, line: str) -> None:
        self.write("proc/cmdline", f"BOOT_IMAGE=/vmlinuz {line}\n")

    def grub(self, settings: str = 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n') -> None:
        self.write("etc/default/grub", settings)
        self.write("usr/sbin/update-grub", UPDATE_GRUB, 0o755)
        self.write("boot/grub/grub.cfg", "")
        subprocess.run([self.root / "usr/sbin/update-grub"], check=True)

    def systemd_boot(self) -> None:
        self.write("etc/machine-id", f"{MACHINE}\n")
        for version in ("6.1", "6.12"):
            self.entry(version, "root=UUID=aa ro quiet")
        self.write("efi/loader/entries/ffff-6.1.conf", "options root=another-system\n")

    def entry(self, version: str, options: str) -> Path:
        text = f"title      Debian\nversion    {version}\noptions    {options}\nlinux      /{MACHINE}/{version}/linux\n"
        return self.write(f"efi/loader/entries/{MACHINE}-{version}.conf", text)

    def options(self, version: str) -> list[str]:
        lines = self.read(f"efi/loader/entries/{MACHINE}-{version}.conf").splitlines()
        return next(line for line in lines if line.startswith("options")).split()[1:]

    def grubby(self, *lines: str) -> None:
        (self.root / "boot/loader/entries").mkdir(parents=True)
        self.write("usr/sbin/grubby", GRUBBY, 0o755)
        self.write("kernels", json.dumps([line.split() for line in lines]))

    def menu(self) -> list[str]:
        return [line for line in self.read("boot/grub/grub.cfg").splitlines() if line.startswith("\tlinux")]

    def run(self, *parameters: str, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        places = {"root": str(self.root), "proc_root": f"{self.root}/proc", "sys_root": f"{self.root}/sys"}
        arguments = {"name": "passthrough", "parameters": list(parameters), "state_dir": f"{self.root}/state", **places, **more}
        return self._module("kernel_parameters", arguments, check=check)


@pytest.fixture
def host(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, run_module, monkeypatch)


def test_grub_gets_only_what_is_missing_once_and_loses_it_again(host: Host) -> None:
    host.grub('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="iommu=pt"\n')
    first, untouched = host.menu(), host.read("etc/default/grub")
    promised = host.run("hugepagesz=1G hugepages=64", iommu=True, identity=True, check=True)
    assert host.menu() == first
    assert not (host.root / DROPIN).exists()
    done = host.run("hugepagesz=1G hugepages=64", iommu=True, identity=True)
    assert {**promised, "invocation": None} == {**done, "invocation": None}
    assert done["changed"]
    assert done["parameters"] == ["intel_iommu=on", "hugepagesz=1G hugepages=64"]
    assert done["given"] == ["iommu=pt"]
    assert done["pending"] == "the running kernel was not given intel_iommu=on iommu=pt hugepagesz=1G hugepages=64"
    assert all("iommu=pt intel_iommu=on hugepagesz=1G hugepages=64" in line for line in host.menu()[:2])
    assert host.menu()[2] == first[2]
    assert host.read("etc/default/grub") == untouched
    host.boots("root=UUID=aa ro iommu=pt intel_iommu=on hugepagesz=1G hugepages=64 quiet")
    again = host.run("hugepagesz=1G hugepages=64", iommu=True, identity=True)
    assert not again["changed"]
    assert again["pending"] is None
    undone = host.run()
    assert undone["changed"]
    assert undone["leftover"] == "the running kernel still has intel_iommu=on hugepagesz=1G hugepages=64"
    assert host.menu() == first
    assert not (host.root / DROPIN).exists()
    assert not host.run()["changed"]


def test_a_later_file_of_a_site_is_read_as_a_shell_reads_it(host: Host) -> None:
    host.grub()
    host.write("etc/default/grub.d/50-site.cfg", 'if true; then GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=on,sm_on"; fi\n')
    done = host.run(iommu=True)
    assert done["parameters"] == []
    assert done["given"] == ["intel_iommu=on"]
    assert not done["changed"]


@pytest.mark.parametrize("against", ["intel_iommu=off", "iommu=off"])
def test_what_switches_the_iommu_off_is_named_and_nothing_is_written(host: Host, against: str) -> None:
    host.grub(f'GRUB_CMDLINE_LINUX="{against}"\n')
    failed = host.run(iommu=True)
    assert failed["failed"]
    assert against in failed["msg"]
    assert not (host.root / DROPIN).exists()


def test_a_failed_update_leaves_the_drop_in_as_it_was(host: Host) -> None:
    host.grub()
    host.run("isolcpus=2-3")
    before, menu = host.read(DROPIN), host.menu()
    host.write("grub-fails", "")
    for wish in ([], ["isolcpus=2-3", "nohz_full=2-3"]):
        failed = host.run(*wish)
        assert failed["msg"].startswith("update-grub failed: grub-probe: error: cannot find a device")
        assert host.read(DROPIN) == before
        assert host.menu() == menu


def test_a_run_that_died_before_the_menu_was_written_is_finished_by_the_next(host: Host) -> None:
    host.grub()
    host.run("isolcpus=2-3")
    full, menu = host.read(DROPIN), host.menu()
    host.grub()  # the menu without
    (host.root / DROPIN).unlink()
    subprocess.run([host.root / "usr/sbin/update-grub"], check=True)
    host.write(DROPIN, full)
    assert host.run("isolcpus=2-3", check=True)["changed"]
    assert host.run("isolcpus=2-3")["changed"]
    assert host.menu() == menu
    # and one that died while it took it away: the drop-in still names it
    host.write(DROPIN, "".join(line for line in full.splitlines(keepends=True) if not line.startswith("GRUB_")))
    assert host.run()["changed"]
    assert not (host.root / DROPIN).exists()
    assert "isolcpus" not in host.read("boot/grub/grub.cfg")


def test_a_file_that_overrules_ours_is_found_by_reading_the_menu_back(host: Host) -> None:
    host.grub()
    host.write("etc/default/grub.d/zz-last.cfg", 'GRUB_CMDLINE_LINUX="panic=10"\n')
    failed = host.run("isolcpus=2-3")
    assert "update-grub ran, and the menu does not follow: isolcpus=2-3" in failed["msg"]


def test_systemd_boot_gets_it_in_every_entry_of_this_system_and_in_those_to_come(host: Host) -> None:
    host.systemd_boot()
    before = {path.name: path.read_text() for path in (host.root / "efi/loader/entries").iterdir()}
    promised = host.run("hugepagesz=1G hugepages=64", iommu=True, check=True)
    assert promised["changed"]
    assert not (host.root / PLUGIN).exists()
    done = host.run("hugepagesz=1G hugepages=64", iommu=True)
    assert done["loader"] == "systemd-boot"
    assert done["parameters"] == ["intel_iommu=on", "hugepagesz=1G hugepages=64"]
    wanted = ["root=UUID=aa", "ro", "quiet", "intel_iommu=on", "hugepagesz=1G", "hugepages=64"]
    assert host.options("6.1") == host.options("6.12") == wanted
    assert host.read("efi/loader/entries/ffff-6.1.conf") == before["ffff-6.1.conf"]
    assert not host.run("hugepagesz=1G hugepages=64", iommu=True)["changed"]
    host.run()
    assert {path.name: path.read_text() for path in (host.root / "efi/loader/entries").iterdir()} == before
    assert not (host.root / PLUGIN).exists()


def kernel_install(host: Host, version: str) -> None:
    """What kernel-install does with our program once the entry is written."""
    place = host.root / "efi"
    environment = {**os.environ, "KERNEL_INSTALL_BOOT_ROOT": str(place), "KERNEL_INSTALL_ENTRY_TOKEN": MACHINE}
    subprocess.run([host.root / PLUGIN, "add", version, str(place / MACHINE / version), "/boot/vmlinuz"], env=environment, check=True)


def test_a_new_kernel_gets_it_by_our_program_whatever_tries_its_name_counts(host: Host) -> None:
    host.systemd_boot()
    host.run("hugepagesz=1G hugepages=64", iommu=True)
    host.entry("6.13", "root=UUID=aa ro")
    counted = host.entry("6.14", "root=UUID=aa intel_iommu=on")
    counted = counted.rename(counted.with_name(f"{MACHINE}-6.14+3.conf"))
    for version in ("6.13", "6.14", "6.13"):
        kernel_install(host, version)
    assert host.options("6.13") == ["root=UUID=aa", "ro", "intel_iommu=on", "hugepagesz=1G", "hugepages=64"]
    assert "options    root=UUID=aa intel_iommu=on hugepagesz=1G hugepages=64\n" in counted.read_text()
    assert not host.run("hugepagesz=1G hugepages=64", iommu=True)["changed"]


def test_what_the_sites_own_file_gives_is_never_taken_from_an_entry(host: Host) -> None:
    host.systemd_boot()
    host.run("iommu=pt")
    host.write("etc/kernel/cmdline", "root=UUID=aa ro quiet iommu=pt\n")
    host.run()
    assert "iommu=pt" in host.options("6.1")
    assert not (host.root / PLUGIN).exists()


def test_a_new_number_of_pages_replaces_the_old_one(host: Host) -> None:
    host.systemd_boot()
    host.run(hugepages={"1G": 64})
    done = host.run(hugepages={"1G": 32})
    assert done["removed"] == ["hugepagesz=1G hugepages=64"]
    assert host.options("6.1") == ["root=UUID=aa", "ro", "quiet", "hugepagesz=1G", "hugepages=32"]
    assert not host.run(hugepages={"1G": "32"})["changed"]
    assert "0 pages of '1G' cannot be" in host.run(hugepages={"1G": 0})["msg"]


def test_an_undoing_that_died_between_entries_is_finished(host: Host) -> None:
    host.systemd_boot()
    host.run("iommu=pt")
    loader = SystemdBoot(Place(host.root, "passthrough", host.root / "state", host.root / "sys"))
    host.write(PLUGIN, loader.text([], [("iommu=pt",)]) or "", 0o755)
    host.entry("6.1", "root=UUID=aa ro quiet")
    done = host.run()
    assert done["changed"]
    assert "iommu=pt" not in host.options("6.12")
    assert not (host.root / PLUGIN).exists()


def test_grubby_is_told_and_the_host_remembers_what_is_ours(host: Host) -> None:
    host.grubby("ro iommu=pt", "ro iommu=pt rescue")
    done = host.run(iommu=True, identity=True)
    assert done["loader"] == "grubby"
    assert done["parameters"] == ["intel_iommu=on"]
    assert done["given"] == ["iommu=pt"]
    assert json.loads(host.read("kernels")) == [["ro", "iommu=pt", "intel_iommu=on"], ["ro", "iommu=pt", "rescue", "intel_iommu=on"]]
    assert not host.run(iommu=True, identity=True)["changed"]
    assert host.run()["removed"] == ["intel_iommu=on"]
    assert json.loads(host.read("kernels")) == [["ro", "iommu=pt"], ["ro", "iommu=pt", "rescue"]]
    assert not host.run()["changed"]


def test_the_loader_that_booted_rules_where_both_are_installed(host: Host) -> None:
    host.grub()
    host.systemd_boot()
    assert host.run("iommu=pt", check=True)["loader"] == "grub"
    name = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
    host.write(name, "").write_bytes(b"\x06\0\0\0" + "systemd-boot 257.9\0".encode("utf-16-le"))
    assert host.run("iommu=pt", check=True)["loader"] == "systemd-boot"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "neither GRUB nor systemd-boot"),
        (("efi/loader/entries/ffff-6.1.conf", "efi/EFI/Linux/6.12.efi"), "unified images"),
        (("efi/loader/entries/ffff-6.1.conf",), "no entry of this system"),
        (("efi/loader/entries/ffff-6.1.conf", "etc/kernel/proxmox-boot-uuids"), "proxmox-boot-tool refresh"),
    ],
)
def test_a_loader_that_nobody_can_tell_is_said_in_one_line(host: Host, files: tuple[str, ...], words: str) -> None:
    host.write("etc/machine-id", MACHINE)
    for path in files:
        host.write(path, "")
    assert words in host.run("iommu=pt")["msg"]


def test_an_iommu_that_the_firmware_hides_is_said(host: Host) -> None:
    host.grub()
    host.write("boot/config-6.12", "CONFIG_INTEL_IOMMU_DEFAULT_ON_INTGPU_OFF=y\n")
    done = host.run(iommu=True)
    assert done["parameters"] == []
    assert done["iommu"] == {"vendor": "GenuineIntel", "active": True, "problem": None}
    (host.root / "sys/class/iommu/dmar0").rmdir()
    assert host.run(iommu=True)["iommu"]["problem"] == "the IOMMU does not work: the firmware has no DMAR table; switch on VT-d there"
    host.write("sys/firmware/acpi/tables/DMAR", "")
    assert "dmesg" in host.run(iommu=True)["iommu"]["problem"]


def test_intel_needs_a_parameter_where_one_of_its_kernels_has_it_off_and_amd_never() -> None:
    on, off = "CONFIG_INTEL_IOMMU_DEFAULT_ON=y\n", "# CONFIG_INTEL_IOMMU_DEFAULT_ON is not set\n"
    assert for_iommu("GenuineIntel", [on, on], False)[0] == []
    assert for_iommu("GenuineIntel", [on, off], False)[0] == for_iommu("GenuineIntel", [], False)[0] == [("intel_iommu=on",)]
    assert for_iommu("AuthenticAMD", [off], True)[0] == [("iommu=pt",)]
    assert for_iommu(None, [off], False) == ([], [])


@pytest.mark.parametrize(
    ("wish", "line", "there"),
    [
        ("intel_iommu=on", "intel_iommu=igfx_off intel_iommu=on,sm_on", True),
        ("intel_iommu=on", "intel_iommu=igfx_off", False),
        ("quiet", "quietly", False),
        ("hugepagesz=1G hugepages=4", "hugepages=4 hugepagesz=1G", False),
        ("hugepagesz=1G hugepages=4", "a hugepagesz=1G hugepages=4 b", True),
    ],
)
def test_what_counts_as_given(wish: str, line: str, there: bool) -> None:
    (unit,) = units([wish])
    assert is_given(unit, tokens(line)) is there


@pytest.mark.parametrize("bad", ["", "a$(reboot)", "a=b;c", "x='y'", "a|b", "a=\\n", '"a"'])
def test_what_a_loader_would_read_as_something_else_is_refused(bad: str) -> None:
    with pytest.raises(FleetError, match="no parameter of the kernel"):
        units([bad])


def test_two_wishes_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(FleetError, match="contradict"):
        units(["iommu=pt", "iommu=nopt"])
    with pytest.raises(FleetError, match="isolcpus=1 is given there, and isolcpus=2 is wished"):
        missing(units(["isolcpus=2"]), ["isolcpus=1"], "grub")
