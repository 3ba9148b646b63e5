# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is before it has a driver, read from trees as the kernel and the package managers lay them out."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import driver_look, driver_packages
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_look import Options, look

if t.TYPE_CHECKING:
    from conftest import RunModule

KERNEL = "6.12.107+deb13-amd64"
MADISON = """\
nvidia-smi | 550.163.01-2 | http://mirror.example.com/debian trixie/non-free amd64 Packages
nvidia-smi | 535.261.03-1 | http://mirror.example.com/debian bookworm/non-free amd64 Packages
nvidia-smi | 550.163.01-2 | http://other.example.com/debian trixie/non-free amd64 Packages
nvidia-graphics-drivers | 550.163.01-2 | http://mirror.example.com/debian trixie/non-free Sources
"""
STATUS = """\
Package: nvidia-smi
Status: hold ok installed
Version: 550.163.01-2
Description: a tool
 Status: of no concern

Package: bash
Status: install ok installed
Version: 5.2.37-2

Package: nvidia-kernel-dkms
Status: install ok half-configured
Version: 550.163.01-2

Package: dkms
Status: deinstall ok config-files
Version: 3.2.2-1
"""


class Tree:
    """A host below a directory, with the programs that are asked there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("etc/os-release", 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\n')
        self.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.write("var/lib/dpkg/status", STATUS)
        self.write("var/lib/apt/lists/mirror.example.com_debian_dists_trixie_main_binary-amd64_Packages.lz4", "")
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def write(self, path: str, text: str | bytes) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    def program(self, name: str, script: str) -> str:
        place = self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)
        return str(place)

    def device(self, address: str, device: str, kind: str = "0x030200", vendor: str = "0x10de", driver: str | None = None) -> Path:
        place = self.root / "sys/bus/pci/devices" / address
        for name, text in (("vendor", vendor), ("device", f"0x{device}"), ("class", kind)):
            self.write(f"sys/bus/pci/devices/{address}/{name}", f"{text}\n")
        if driver:
            (place / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        return place

    def kernel(self, release: str, headers: bool) -> None:
        (self.root / "lib/modules" / release / "kernel").mkdir(parents=True)
        if headers:
            self.write(f"usr/src/linux-headers-{release}/Makefile", "")
            (self.root / "lib/modules" / release / "build").symlink_to(f"/usr/src/linux-headers-{release}")

    def look(self, **more: t.Any) -> dict[str, t.Any]:
        programs = {name: str(self.root / "bin" / name) for name in ("apt_cache", "rpm", "dnf", "dkms", "mokutil")}
        places = {"root": self.root, "proc_root": self.root / "proc", "sys_root": self.root / "sys", "state_dir": self.root / "state"}
        return look(Options(**{**programs, **{name: str(path) for name, path in places.items()}, **more}))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_boards_are_found_on_the_pci_bus_without_a_driver(tree: Tree) -> None:
    tree.device("0000:07:00.0", "20b2", driver="nouveau")
    tree.device("0000:08:00.0", "2901")
    tree.device("0000:00:02.0", "1111", vendor="0x1234", kind="0x030000")
    tree.device("0000:07:00.1", "10f7", kind="0x040300")
    tree.device("0000:05:00.0", "22a3", kind="0x068000")
    part = tree.device("0000:07:00.4", "20b2")
    (part / "physfn").symlink_to("../0000:07:00.0")
    found = tree.look()
    assert [(each["pci"], each["device"], each["driver"]) for each in found["boards"]] == [
        ("0000:07:00.0", "20b2", "nouveau"),
        ("0000:08:00.0", "2901", None),
    ], "neither sound, nor another vendor's, nor a virtual function"
    assert found["switches"] == 1


def test_the_next_kernel_is_the_newest_by_number_and_headers_are_followed_below_the_root(tree: Tree) -> None:
    tree.kernel("6.12.9+deb13-amd64", headers=False)
    tree.kernel(KERNEL, headers=True)
    tree.write("boot/vmlinuz-6.12.99+deb13-amd64", "")
    tree.write("boot/vmlinuz-old", "")
    found = tree.look(kernel="6.12.9+deb13-amd64")["kernel"]
    assert (found["running"], found["next"]) == ("6.12.9+deb13-amd64", KERNEL)
    assert found["headers"] == {"6.12.9+deb13-amd64": False, "6.12.99+deb13-amd64": False, KERNEL: True}
    assert tree.look()["kernel"]["running"] == KERNEL


def test_a_link_to_headers_that_are_gone_is_no_headers(tree: Tree) -> None:
    tree.kernel(KERNEL, headers=True)
    (tree.root / f"usr/src/linux-headers-{KERNEL}/Makefile").unlink()
    assert tree.look()["kernel"]["headers"] == {KERNEL: False}


def test_packages_and_holds_come_from_dpkgs_own_file(tree: Tree) -> None:
    found = tree.look()
    assert found["installed"]["packages"] == {"nvidia-smi": "550.163.01-2"}, "half-configured and removed ones are not installed"
    assert found["held"] == ["nvidia-smi"]


def test_versions_are_those_that_apt_has_newest_first(tree: Tree) -> None:
    tree.program("apt_cache", f"cat <<'END'\n{MADISON}END")
    assert tree.look()["candidates"] is None, "nobody asked"
    assert tree.look(packages=("nvidia-smi", "nvidia-nonsense"))["candidates"] == {"nvidia-smi": ["550.163.01-2", "535.261.03-1"]}
    tree.program("apt_cache", "echo 'E: broken' >&2; exit 1")
    found = tree.look(packages=("nvidia-smi",))
    assert found["candidates"] is None
    assert any("broken" in line for line in found["errors"])


def test_a_host_whose_apt_never_updated_has_no_answer_rather_than_no_packages(tree: Tree) -> None:
    tree.program("apt_cache", "true")
    for path in (tree.root / "var/lib/apt/lists").iterdir():
        path.unlink()
    found = tree.look(packages=("nvidia-smi",))
    assert found["candidates"] is None
    assert found["errors"] == ["candidates: apt has no index yet: run `apt-get update`"]


def test_red_hats_packages_locks_and_versions(tree: Tree) -> None:
    (tree.root / "var/lib/dpkg/status").unlink()
    (tree.root / "var/lib/rpm").mkdir()
    tree.program("rpm", "printf 'kmod-nvidia-open-dkms 3:580.95.05-1.el9\\nbash 0:5.1-1\\n'")
    lines = [
        "nvidia-driver-cuda 3:580.82.07-1.el9 x86_64",
        "nvidia-driver-cuda 3:580.95.05-1.el9 x86_64",
        "kernel-devel 0:5.14.0-570.12.1.el9_6 x86_64",
        "kernel-devel 0:5.14.0-503.el9 x86_64",
    ]
    tree.program("dnf", "\n".join(["cat <<'END'", *lines, "END"]))
    lock = "# a comment\nkmod-nvidia-open-dkms-3:580.95.05-1.el9.*\n!not-this-3:1-1.*\nbash-0:5.1-1.*\n"
    tree.write("etc/dnf/plugins/versionlock.list", lock)
    headers = "kernel-devel-5.14.0-570.12.1.el9_6.x86_64"
    found = tree.look(packages=("nvidia-driver-cuda", headers))
    assert found["installed"]["packages"] == {"kmod-nvidia-open-dkms": "3:580.95.05-1.el9"}
    assert found["installed"]["flavour"] == "open"
    assert found["held"] == ["kmod-nvidia-open-dkms"]
    assert found["candidates"] == {
        "nvidia-driver-cuda": ["3:580.95.05-1.el9", "3:580.82.07-1.el9"],
        headers: ["0:5.14.0-570.12.1.el9_6"],
    }


@pytest.mark.parametrize(
    ("names", "flavour"),
    [
        (["nvidia-kernel-dkms", "nvidia-fs-dkms"], "proprietary"),
        (["nvidia-open-kernel-dkms"], "open"),
        (["nvidia-tesla-535-kernel-dkms"], "proprietary"),
        (["nvidia-kernel-open-dkms"], "open"),
        (["nvidia-headless-580-server-open"], "open"),
        (["nvidia-dkms-580"], "proprietary"),
        (["cuda-drivers"], "proprietary"),
        (["nvidia-open"], "open"),
        (["nvidia-kernel-dkms", "nvidia-open-kernel-dkms"], None),
        (["dkms", "nvidia-smi"], None),
    ],
)
def test_the_kind_of_kernel_modules_is_known_by_their_package(names: list[str], flavour: str | None) -> None:
    assert driver_look.flavour(dict.fromkeys(names, "1")) == flavour


@pytest.mark.parametrize(
    "path",
    ["usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"],
)
def test_the_installed_driver_is_known_by_its_library(tree: Tree, path: str) -> None:
    assert tree.look()["installed"]["driver"] is None
    tree.write(f"{path}/libnvidia-ml.so.550.163.01", "")
    tree.write(f"{path}/libnvidia-ml.so.1", "")
    assert tree.look()["installed"]["driver"] == "550.163.01"


def test_what_is_loaded_is_told_by_the_kernel(tree: Tree) -> None:
    assert tree.look()["loaded"] == {"version": None, "flavour": None, "nouveau": False}
    line = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\nGCC version:  gcc version 14.2.0\n"
    )
    tree.write("proc/driver/nvidia/version", line)
    (tree.root / "sys/module/nouveau").mkdir(parents=True)
    assert tree.look()["loaded"] == {"version": "580.95.05", "flavour": "open", "nouveau": True}
    tree.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025\n")
    assert tree.look()["loaded"]["version"] == "550.163.01"
    assert tree.look()["loaded"]["flavour"] == "proprietary"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nvidia-current/550.163.01, 6.12.107+deb13-amd64, x86_64: installed", ("nvidia-current", "550.163.01", KERNEL, "installed")),
        ("nvidia, 470.256.02, 5.10.0-30-amd64, x86_64: installed", ("nvidia", "470.256.02", "5.10.0-30-amd64", "installed")),
        ("nvidia/580.95.05: added", ("nvidia", "580.95.05", None, "added")),
        ("nvidia/1.2, k, x86_64: built (WARNING! Diff between built and installed module!)", ("nvidia", "1.2", "k", "built")),
        ("Deprecated feature: REMAKE_INITRD", None),
    ],
)
def test_the_lines_of_dkms(line: str, expected: tuple[str | None, ...] | None) -> None:
    found = driver_look.parse_dkms(line)
    assert (tuple(found.values()) if found else None) == expected


def test_dkms_counts_for_nvidias_modules_alone_and_may_be_missing(tree: Tree) -> None:
    assert tree.look()["dkms"] == []
    tree.program("dkms", "echo 'zfs/2.2, k, x86_64: installed'; echo 'nvidia/1.2: added'")
    assert [each["module"] for each in tree.look()["dkms"]] == ["nvidia"]


@pytest.mark.parametrize(("value", "expected"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (None, None)])
def test_secure_boot_is_the_firmwares_word(tree: Tree, value: bytes | None, expected: bool | None) -> None:
    if value is not None:
        tree.write("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", value)
    assert tree.look()["secure_boot"] is expected


def test_the_key_of_dkms_is_enrolled_not_or_nobody_knows(tree: Tree) -> None:
    assert tree.look()["key_enrolled"] is None
    tree.write("var/lib/dkms/mok.pub", "key")
    assert tree.look()["key_enrolled"] is None, "there is no mokutil"
    tree.program("mokutil", 'echo "$2 is already enrolled"; exit 1')
    assert tree.look()["key_enrolled"] is True
    tree.program("mokutil", 'echo "$2 is not enrolled"')
    assert tree.look()["key_enrolled"] is False


def test_directories_of_one_file_system_say_so(tree: Tree) -> None:
    found = tree.look()["space"]
    assert [each["path"] for each in found] == ["/usr", "/var", "/boot"]
    assert len({each["device"] for each in found}) == 1
    free = os.statvfs(tree.root)
    assert abs(found[0]["free_mib"] - free.f_bavail * free.f_frsize // 2**20) < 1000


def test_apts_sources_in_both_forms_without_our_own(tree: Tree) -> None:
    tree.write(
        "etc/apt/sources.list",
        "# deb http://no x y\ndeb [arch=amd64 signed-by=/k.gpg] http://a/debian trixie main contrib # end\ndeb-src http://a/ t main\n",
    )
    tree.write(
        "etc/apt/sources.list.d/debian.sources",
        "# a comment\nTypes: deb deb-src\nURIs: http://b/debian\nSuites: trixie trixie-updates\nComponents: main\nSigned-By:\n"
        " -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n -----END PGP PUBLIC KEY BLOCK-----\n\n"
        "Types: deb\nEnabled: no\nURIs: http://c\nSuites: s\n",
    )
    tree.write("etc/apt/sources.list.d/gpuops-fleet-nvidia.sources", "Types: deb\nURIs: http://d\nSuites: s\nComponents: non-free\n")
    one, two = driver_packages.sources(tree.root)
    assert one == {"uris": ["http://a/debian"], "suites": ["trixie"], "components": ["main", "contrib"], "signed_by": "/k.gpg"}
    assert (two["uris"], two["suites"]) == (["http://b/debian"], ["trixie", "trixie-updates"])
    assert two["signed_by"].splitlines()[1] == " -----BEGIN PGP PUBLIC KEY BLOCK-----"
    assert "non-free" in tree.look()["repository"]


def test_what_the_role_wrote_down_is_read_back_and_nonsense_is_an_error(tree: Tree) -> None:
    assert tree.look()["recorded"] == {}
    tree.write("state/driver.json", '{"held": ["nvidia-smi"]}')
    assert tree.look()["recorded"] == {"held": ["nvidia-smi"]}
    tree.write("state/driver.json", "{")
    found = tree.look()
    assert found["recorded"] == {}
    assert any(line.startswith("record:") for line in found["errors"])


def test_a_host_of_which_nothing_can_be_read_says_so_and_does_not_fail(tmp_path: Path) -> None:
    found = look(Options(root=str(tmp_path), proc_root=str(tmp_path / "p"), sys_root=str(tmp_path / "s"), state_dir=str(tmp_path / "d")))
    assert found["os"]["id"] is None
    assert found["boards"] == []
    assert found["installed"]["driver"] is None
    assert [line.split(":")[0] for line in found["errors"]] == ["os", "kernel", "packages"]


def test_the_module_changes_nothing(tree: Tree, run_module: RunModule) -> None:
    before = sorted(str(path) for path in tree.root.rglob("*"))
    places = {"root": tree.root, "proc_root": tree.root / "proc", "sys_root": tree.root / "sys", "state_dir": tree.root / "state"}
    result = run_module("driver_info", {name: str(path) for name, path in places.items()})
    assert result["changed"] is False
    assert result["facts"]["os"] == {"id": "debian", "version": "13", "codename": "trixie"}
    assert sorted(str(path) for path in tree.root.rglob("*")) == before


# ---- an installation that was ended


def test_a_package_that_is_half_done_is_named_and_is_not_installed(tree: Tree) -> None:
    found = tree.look()
    assert found["unfinished"] == {"interrupted": False, "packages": ["nvidia-kernel-dkms"]}
    assert "nvidia-kernel-dkms" not in found["installed"]["packages"]


def test_dpkgs_journal_rules_over_its_status_in_the_order_of_its_numbers(tree: Tree) -> None:
    updates = ("unpacked", "half-configured", "installed", "half-configured")
    for number, state in zip((2, 9, 10, 11), updates, strict=True):
        package = "nvidia-smi" if number < 11 else "libcuda1"
        tree.write(f"var/lib/dpkg/updates/{number:04}", f"Package: {package}\nStatus: install ok {state}\nVersion: 1\n")
    tree.write("var/lib/dpkg/updates/tmp.i", "#padding\n" * 20)
    assert tree.look()["unfinished"] == {"interrupted": True, "packages": ["libcuda1", "nvidia-kernel-dkms"]}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg on this machine")
def test_the_journal_of_a_real_dpkg_that_was_killed_is_seen_and_its_own_repair_ends_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("updates", "info", "triggers"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    script = tmp_path / "package/DEBIAN/postinst"
    script.parent.mkdir(parents=True)
    described = "Package: nvidia-kernel-dkms\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: x\n"
    (script.parent / "control").write_text(described, encoding="utf-8")
    # What happens when a host is reset while DKMS builds; the second time nobody resets it.
    script.write_text(f"#!/bin/sh\ntest -e {tmp_path}/again || {{ touch {tmp_path}/again; kill -9 $PPID; sleep 5; }}\n", encoding="utf-8")
    script.chmod(0o755)
    subprocess.run(["dpkg-deb", "-Zgzip", "--build", str(tmp_path / "package"), str(tmp_path / "a.deb")], check=True, capture_output=True)
    command = ["dpkg", f"--root={root}", "--force-not-root", "--force-script-chrootless", f"--log={tmp_path}/log"]
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    killed = subprocess.run([*command, "--install", str(tmp_path / "a.deb")], env=environment, capture_output=True, check=False)
    assert killed.returncode == -9
    assert driver_packages.dpkg_packages(root) == ({}, [])
    assert driver_packages.dpkg_unfinished(root) == {"interrupted": True, "packages": ["nvidia-kernel-dkms"]}
    subprocess.run([*command, "--configure", "--pending"], env=environment, capture_output=True, check=True)
    assert driver_packages.dpkg_unfinished(root) == {"interrupted": False, "packages": []}
    assert driver_packages.dpkg_packages(root) == ({"nvidia-kernel-dkms": "1.0"}, [])
