# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A driver's kernel modules: built for the kernels that count, and loaded; what the kernel says when it refuses, in one line."""

from __future__ import annotations

import os
import re
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.commands import Done, run
from ansible_collections.gpuops.fleet.plugins.module_utils.driver_look import dkms_status, has_headers, kernels, library, loaded
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# In the order in which they can go: each is used by those before it.
MODULES = ("nvidia_vgpu_vfio", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia")
# What modprobe says of a refusal (strerror of what init_module gave) -> what it means, and what would be right.
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        "No such device",
        "no NVIDIA GPU on this host that this driver drives",
        "look for it with `lspci -d 10de:`, and for a driver that has it in docs/compat.md",
    ),
    ("Key was rejected", "Secure Boot rejects the module's key", "enrol it: `mokutil --import /var/lib/dkms/mok.pub`, boot and confirm"),
    (
        "Required key not available",
        "Secure Boot wants a signed module",
        "enrol DKMS's key: `mokutil --import /var/lib/dkms/mok.pub`, boot and confirm",
    ),
    ("Exec format error", "the module was built for another kernel", "build it anew: `dkms autoinstall`"),
    ("not found in directory", "there is no module for this kernel", "look at `dkms status`, and into DKMS's make.log"),
    ("Device or resource busy", "something else holds the GPU", "see who: nouveau, vfio-pci or a virtual machine"),
    ("Unknown symbol", "the module does not fit this kernel", "build it anew: `dkms autoinstall`"),
    ("Operation not permitted", "this host may not load modules", "run as root on the host itself, not in a container"),
)


@dataclass(frozen=True)
class Options:
    """Where things are: see the options of modules ``driver_built`` and ``driver_loaded``."""

    root: str = "/"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    kernel: str | None = None
    dkms: str = "dkms"
    kind: str = "ordinary"
    modprobe: str = "modprobe"
    dmesg: str = "dmesg"
    timeout: int = 3600


def _driver(options: Options) -> str:
    found = library(Path(options.root))
    if found is None:
        raise FleetError("no driver is installed: there is no libnvidia-ml.so", hint="install one: role nvidia_driver")
    return found


def build(options: Options, check: bool) -> dict[str, t.Any]:
    """The modules for the kernel that runs and the one that boots next. What DKMS has not built yet it builds now.

    :raises FleetError: no driver, no headers, or the build failed: with the compiler's own word.
    """
    root, driver = Path(options.root), _driver(options)
    there = kernels(root, options.kernel or _running(options))
    wanted = [each for each in dict.fromkeys((there["running"], there["next"])) if each]
    missing = [release for release in wanted if not built(options, driver, release)]
    for release in missing:
        if not has_headers(root, release):
            raise FleetError(
                f"the headers of kernel {release} are not there, so nothing is built for it", hint="install them, or boot another kernel"
            )
    if not check:
        for release in missing:
            _build(options, driver, release)
    return {"changed": bool(missing), "driver": driver, "kernels": wanted, "built": missing}


def built(options: Options, driver: str, release: str) -> bool:
    """Is there a module of this driver for this kernel? By DKMS where it knows the driver, else by a file of a package."""
    rows = [each for each in dkms_status(options.dkms, options.timeout) if each["version"] == driver]
    if rows:
        return any(each["kernel"] == release and each["state"] in ("installed", "built") for each in rows)
    return any(True for _path in (Path(options.root) / "lib/modules" / release).rglob("nvidia*.ko*"))


def _build(options: Options, driver: str, release: str) -> None:
    done = run([options.dkms, "autoinstall", "-k", release], options.timeout, variables={"LC_ALL": "C"})
    if not built(options, driver, release):
        words = _compiler(Path(options.root)) or done.words
        raise FleetError(
            f"driver {driver} was not built for kernel {release}: {words}", hint="the whole story is in /var/lib/dkms/*/*/build/make.log"
        )


def _compiler(root: Path) -> str | None:
    """The first error in the newest log of a build."""
    logs = sorted(root.glob("var/lib/dkms/nvidia*/*/build/make.log"), key=lambda path: path.stat().st_mtime)
    text = logs[-1].read_text(encoding="utf-8", errors="replace") if logs else ""
    found = re.search(r"^.*(?:\berror:|\*\*\*).*$", text, re.MULTILINE)
    return found.group(0).strip() if found else None


def _running(options: Options) -> str:
    return (Path(options.proc_root) / "sys/kernel/osrelease").read_text(encoding="utf-8").strip()


def load(options: Options, check: bool) -> dict[str, t.Any]:
    """The driver that is installed, loaded. ``pending``: why that waits for a reboot, or None.

    :raises FleetError: no driver, or the kernel refused the module: with its own word.
    """
    driver, now = _driver(options), loaded(Path(options.proc_root), Path(options.sys_root))
    result = {"changed": False, "driver": driver, "before": now["version"], "pending": None}
    if now["version"] == driver:
        return result
    if now["nouveau"]:
        return {**result, "pending": f"nouveau drives the GPU; driver {driver} takes over after a reboot"}
    if now["version"] is not None:
        users = _users(Path(options.sys_root))
        if users:
            return {**result, "pending": f"driver {now['version']} is loaded and in use: {users}; {driver} takes over after a reboot"}
    if check:
        return {**result, "changed": True}
    if now["version"] is not None:
        _unload(options)
        if loaded(Path(options.proc_root), Path(options.sys_root))["version"] is not None:
            return {**result, "pending": f"driver {now['version']} cannot be unloaded; {driver} takes over after a reboot"}
    _modprobe(options, driver)
    return {**result, "changed": True}


def _users(sys_root: Path) -> str:
    """Who uses the loaded modules, in words; '' when nobody does. That one of them uses another does not count."""
    used = []
    for name in MODULES:
        holders = sys_root / "module" / name / "holders"
        others = len(os.listdir(holders)) if holders.is_dir() else 0
        count = (_count(sys_root, name) or 0) - others
        if count > 0:
            used.append(f"{name} ({count})")
    return ", ".join(used)


def _count(sys_root: Path, name: str) -> int | None:
    """Its reference count; None: not loaded."""
    path = sys_root / "module" / name / "refcnt"
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _unload(options: Options) -> None:
    there = [name for name in MODULES if _count(Path(options.sys_root), name) is not None]
    run([options.modprobe, "--remove", *there], options.timeout, variables={"LC_ALL": "C"})


def _modprobe(options: Options, driver: str) -> None:
    done = run([options.modprobe, "nvidia"], options.timeout, variables={"LC_ALL": "C"})
    if done.status != 0:
        raise _refusal(options, driver, done)
    now = loaded(Path(options.proc_root), Path(options.sys_root))["version"]
    if now is None:
        raise FleetError(f"driver {driver} does not answer although its module is loaded{_kernel(options)}", hint="look at `dmesg`")
    if now != driver:
        message = f"the kernel module is {now} and the library {driver}: programs would be refused"
        raise FleetError(message, hint="an older module lies in the initramfs or beside the new one: rebuild it and boot")
    # The module that CUDA needs: without it the first program loads it, which inside a container it cannot. A vGPU host has another one.
    second = "nvidia-vgpu-vfio" if options.kind == "vgpu-host" else "nvidia-uvm"
    done = run([options.modprobe, second], options.timeout, variables={"LC_ALL": "C"})
    if done.status != 0:
        raise _refusal(options, driver, done)


def _refusal(options: Options, driver: str, done: Done) -> FleetError:
    lines = [line.strip() for line in f"{done.complaint}\n{done.output}".splitlines()]
    for sign, meaning, hint in _REFUSALS:
        # Debian loads nvidia by an `install` line: what the kernel said comes first, and modprobe's own words on the line's failure last.
        if said := next((line for line in lines if sign in line), None):
            return FleetError(f"driver {driver} does not load: {meaning} (modprobe: {_words(said)}{_kernel(options)})", hint=hint)
    return FleetError(f"driver {driver} does not load: modprobe: {_words(done.words)}{_kernel(options)}", hint="look at `dmesg`")


def _words(line: str) -> str:
    return re.sub(r"^modprobe: (?:ERROR|FATAL): ", "", line).rstrip(".")


def _kernel(options: Options) -> str:
    """The kernel's last word on the driver, if it can be read."""
    try:
        done = run([options.dmesg], min(options.timeout, 30))
    except FleetError:
        return ""
    lines = [line for line in done.output.splitlines() if re.search(r"NVRM|nvidia.*(?:taint|signature|key)|PKCS#7", line)]
    return f"; kernel: {re.sub(r'^.[ 0-9.]+. ', '', lines[-1]).strip()}" if lines else ""
