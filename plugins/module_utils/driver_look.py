# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is before it has a driver: boards on the PCI bus, kernels and their headers, what is installed, held and free.

Reads and changes nothing. What cannot be read is None, with a line in ``errors``.
"""

from __future__ import annotations

import json
import os
import re
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import host
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_packages import (
    dnf_versions,
    dpkg_packages,
    dpkg_unfinished,
    madison,
    rpm_packages,
    sources,
    versionlocks,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

_NVIDIA = "0x10de"
# PCI classes (include/linux/pci_ids.h): VGA and 3D controllers are GPUs, "other bridges" of this vendor are NVSwitches.
_GPU = ("0x0300", "0x0302")
_SWITCH = "0x0680"
# Where Red Hat, Ubuntu, Debian and NVIDIA's installer put libraries.
_LIBRARIES = ("usr/lib64", "usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/nvidia/*", "usr/lib")
# efivarfs: four bytes of attributes, then the value.
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# What a driver, its kernel modules and whatever builds them are called in Debian's, Ubuntu's, Red Hat's and NVIDIA's packages.
_OURS = re.compile(
    r"^(?:lib)?nvidia|^lib(?:cuda1|cuda-)|^cuda-drivers|^kmod-nvidia|^firmware-nvidia|^(?:dkms|gcc|mokutil)$|"
    r"^linux-(?:image|headers)-|^kernel(?:-devel|-core)?$|^NVIDIA-vGPU"
)
_MODULES = re.compile(
    r"^(?:nvidia(?:-[a-z0-9]+)*-kernel(?:-open)?-dkms|nvidia-dkms-.+|nvidia-headless-[0-9].*|kmod-nvidia-.*dkms|nvidia-open|cuda-drivers)$"
)


_FINISHED: t.Mapping[str, t.Any] = {"interrupted": False, "packages": []}


@dataclass(frozen=True)
class Options:
    """Where to look: see the options of module ``driver_info``. ``packages``: names whose versions the host's sources are asked for."""

    packages: tuple[str, ...] = ()
    kernel: str | None = None
    root: str = "/"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    state_dir: str = "/var/lib/gpuops-fleet"
    apt_cache: str = "apt-cache"
    rpm: str = "rpm"
    dnf: str = "dnf"
    dkms: str = "dkms"
    mokutil: str = "mokutil"
    timeout: int = 120


def look(options: Options) -> dict[str, t.Any]:
    """The facts, as module ``driver_info`` returns them."""
    notes = host.Notes()
    root, sys_root, proc = Path(options.root), Path(options.sys_root), Path(options.proc_root)
    system = notes.attempt("os", lambda: read_os(root)) or {"id": None, "version": None, "codename": None}
    devices = notes.attempt("boards", lambda: pci(sys_root)) or []
    running = options.kernel or notes.attempt("kernel", lambda: _text(proc / "sys/kernel/osrelease").strip())
    by_rpm = (root / "var/lib/rpm").exists() and not (root / "var/lib/dpkg/status").exists()
    packages, held = notes.attempt("packages", lambda: _packages(options, root, by_rpm)) or ({}, [])
    return {
        "schema": 1,
        "os": system,
        "architecture": os.uname().machine,
        "kernel": kernels(root, running),
        "boards": [each for each in devices if each["class"].startswith(_GPU)],
        "switches": sum(each["class"].startswith(_SWITCH) for each in devices),
        "loaded": loaded(proc, sys_root),
        "installed": {
            "driver": library(root),
            "flavour": flavour(packages),
            "kind": kind(root),
            "runfile": (root / "usr/bin/nvidia-uninstall").exists(),
            "packages": {name: packages[name] for name in sorted(packages) if _OURS.match(name) or name in options.packages},
        },
        "held": sorted(name for name in held if _OURS.match(name) or name in options.packages),
        "unfinished": (None if by_rpm else notes.attempt("unfinished", lambda: dpkg_unfinished(root))) or _FINISHED,
        "recorded": notes.attempt("record", lambda: recorded(Path(options.state_dir))) or {},
        "candidates": notes.attempt("candidates", lambda: _candidates(options, root, by_rpm)) if options.packages else None,
        "sources": notes.attempt("sources", lambda: sources(root)) or [],
        "repository": notes.attempt("repository", lambda: _repository(root)),
        "dkms": notes.attempt("dkms", lambda: dkms_status(options.dkms, options.timeout)),
        "secure_boot": notes.attempt("secure_boot", lambda: secure_boot(sys_root)),
        "key_enrolled": notes.attempt("key_enrolled", lambda: _key_enrolled(options, root)),
        "space": notes.attempt("space", lambda: [space(root, path) for path in ("/usr", "/var", "/boot")]) or [],
        "errors": notes.lines,
    }


def read_os(root: Path) -> dict[str, str | None]:
    """``id``, ``version`` and ``codename`` of the os-release file below ``root``."""
    text = _text(root / "etc/os-release")
    found = re.search(r"^VERSION_CODENAME=\"?([a-z]+)\"?$", text, re.MULTILINE)
    return {**host.parse_os_release(text), "codename": found.group(1) if found else None}


def pci(sys_root: Path) -> list[dict[str, t.Any]]:
    """NVIDIA's devices on the PCI bus by address: ``device`` is its id (``20b2``), ``driver`` what holds it."""
    devices = sys_root / "bus/pci/devices"
    found = []
    for address in sorted(os.listdir(devices)) if devices.is_dir() else []:
        place = devices / address
        # A virtual function is a part of a card that is in the list itself.
        if _text(place / "vendor").strip() != _NVIDIA or (place / "physfn").exists():
            continue
        driver = place / "driver"
        found.append(
            {
                "pci": address,
                "device": _text(place / "device").strip()[2:].lower(),
                "class": _text(place / "class").strip(),
                "driver": os.path.basename(os.readlink(driver)) if driver.is_symlink() else None,
            }
        )
    return found


def kernels(root: Path, running: str | None) -> dict[str, t.Any]:
    """The kernel that runs, the one that would boot next (the newest that is installed), and whether each has its headers."""
    modules = root / "lib/modules"
    boot = root / "boot"
    there = {name for name in (os.listdir(modules) if modules.is_dir() else []) if (modules / name / "kernel").is_dir()}
    there |= {name[len("vmlinuz-") :] for name in (os.listdir(boot) if boot.is_dir() else []) if re.match(r"vmlinuz-[0-9]", name)}
    newest = max(there, key=_order, default=running)
    every = sorted(there | {each for each in (running, newest) if each}, key=_order)
    return {"running": running, "next": newest, "headers": {name: has_headers(root, name) for name in every}}


def has_headers(root: Path, release: str) -> bool:
    """Can modules be built for this kernel? Its ``build`` link leads to the headers, absolute as seen on the host itself."""
    link = root / "lib/modules" / release / "build"
    target = root / os.readlink(link).lstrip("/") if link.is_symlink() and os.readlink(link).startswith("/") else link
    return (target / "Makefile").is_file()


def _order(release: str) -> list[tuple[int, t.Any]]:
    """Kernels as GRUB orders them: number by number."""
    return [(1, int(part)) if part.isdigit() else (0, part) for part in re.split(r"[^0-9a-zA-Z]+|(?<=[0-9])(?=[a-z])", release) if part]


def loaded(proc: Path, sys_root: Path) -> dict[str, t.Any]:
    """The kernel modules that are loaded: NVIDIA's with its version, and nouveau."""
    version = proc / "driver/nvidia/version"
    found = re.search(r"NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", _text(version)) if version.exists() else None
    return {
        "version": found.group(1) if found else None,
        "flavour": host.driver_flavour(str(proc)),
        "nouveau": (sys_root / "module/nouveau").exists(),
    }


def library(root: Path) -> str | None:
    """Version of the driver that is installed, by its NVML library, whoever put it there. The newest of several."""
    found = set()
    for pattern in _LIBRARIES:
        for path in root.glob(f"{pattern}/libnvidia-ml.so.*.*"):
            found.add(path.name[len("libnvidia-ml.so.") :])
    return max(found, key=_order, default=None)


def kind(root: Path) -> str | None:
    """``vgpu-host`` by NVIDIA's vGPU manager, which no other driver has; ``ordinary``; None: no driver is installed."""
    if (root / "usr/bin/nvidia-vgpu-mgr").exists():
        return "vgpu-host"
    return None if library(root) is None else "ordinary"


def flavour(packages: t.Mapping[str, str]) -> str | None:
    """Which kernel modules are installed by packages; None: none, or both."""
    modules = [name for name in packages if _MODULES.match(name)]
    kinds = {"open" if "open" in name else "proprietary" for name in modules}
    return kinds.pop() if len(kinds) == 1 else None


def dkms_status(program: str, timeout: int) -> list[dict[str, str | None]]:
    """What DKMS has of NVIDIA's: ``module``, ``version``, ``kernel`` (None: for none yet) and ``state``. None of it without DKMS."""
    try:
        done = run([program, "status"], timeout, variables={"LC_ALL": "C"})
    except FleetError:
        return []
    return [each for each in map(parse_dkms, done.output.splitlines()) if each is not None and (each["module"] or "").startswith("nvidia")]


def parse_dkms(line: str) -> dict[str, str | None] | None:
    """``nvidia-current/550.163.01, 6.12.107+deb13-amd64, x86_64: installed`` of DKMS 3, ``nvidia, 470.1, 5.10, x86_64: installed`` of 2."""
    head, separator, state = line.partition(": ")
    parts = [part.strip() for part in head.split(",")]
    if "/" in parts[0]:
        parts[:1] = parts[0].split("/", 1)
    if not separator or len(parts) < 2:
        return None
    return {"module": parts[0], "version": parts[1], "kernel": parts[2] if len(parts) > 2 else None, "state": state.split()[0].strip("():")}


def secure_boot(sys_root: Path) -> bool | None:
    """Whether the firmware enforces signatures. None: the machine was not booted by UEFI, or the kernel shows no variables."""
    path = sys_root / "firmware/efi/efivars" / _SECURE_BOOT
    return path.read_bytes()[4:5] == b"\x01" if path.exists() else None


def space(root: Path, path: str) -> dict[str, t.Any]:
    """Free space where ``path`` is, or would be; ``device`` tells which file system that is."""
    place = root / path.lstrip("/")
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    return {"path": path, "device": os.stat(place).st_dev, "free_mib": status.f_bavail * status.f_frsize // 2**20}


def recorded(state_dir: Path) -> dict[str, t.Any]:
    """What role nvidia_driver wrote down; empty where it never ran."""
    path = state_dir / "driver.json"
    found = json.loads(_text(path)) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _packages(options: Options, root: Path, by_rpm: bool) -> tuple[dict[str, str], list[str]]:
    if by_rpm:
        return rpm_packages(options.rpm, options.timeout), versionlocks(root)
    return dpkg_packages(root)


def _candidates(options: Options, root: Path, by_rpm: bool) -> dict[str, list[str]]:
    # A host whose apt was never asked to update knows of no package: that is no answer, and none of them must be said to be missing.
    if not by_rpm and not any(True for _path in (root / "var/lib/apt/lists").glob("*Packages*")):
        raise FleetError("apt has no index yet: run `apt-get update`")
    ask = dnf_versions if by_rpm else madison
    return ask(options.dnf if by_rpm else options.apt_cache, options.packages, options.timeout)


def _repository(root: Path) -> str | None:
    """The text of the file that role nvidia_driver writes; None: it is not there."""
    for path in ("etc/apt/sources.list.d/gpuops-fleet-nvidia.sources", "etc/yum.repos.d/gpuops-fleet-nvidia.repo"):
        if (root / path).exists():
            return _text(root / path)
    return None


def _key_enrolled(options: Options, root: Path) -> bool | None:
    """Whether the firmware knows the key that DKMS signs with. None: there is no such key yet, or nobody to ask."""
    key = root / "var/lib/dkms/mok.pub"
    if not key.exists():
        return None
    try:
        done = run([options.mokutil, "--test-key", str(key)], options.timeout, variables={"LC_ALL": "C"})
    except FleetError:
        return None
    return "is already enrolled" in done.output + done.complaint


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
