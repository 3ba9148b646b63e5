# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a vGPU: a process that has its VFIO file open, and a guest of libvirt that is defined with it, whether it runs or not.

A vGPU is reached through ``/dev/vfio/GROUP`` (its IOMMU group) or ``/dev/vfio/devices/vfioN``; nothing else in a process tells that it has
one. libvirt keeps the guests that are defined as files, which it changes itself only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from ansible_collections.gpuops.fleet.plugins.module_utils import holders
from ansible_collections.gpuops.fleet.plugins.module_utils.device_users import process_words
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs

_GROUP = re.compile(r"/dev/vfio/(\d+)")
_DEVICE = re.compile(r"/dev/vfio/devices/(vfio\d+)")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
# NVIDIA's own services for vGPUs let go of a GPU when sriov-manage asks.
_OURS = ("nvidia-vgpu",)


class Users:
    """What processes and guests had when this was made."""

    def __init__(self, sysfs: Sysfs, proc_root: Path, libvirt_dir: Path) -> None:
        self._sysfs, self._proc = sysfs, proc_root
        self._open: dict[str, list[int]] = {}
        for pid, target in _open_vfio(proc_root):
            self._open.setdefault(target, []).append(pid)
        self._guests = _guests(libvirt_dir)
        self._nodes = holders.open_files(str(proc_root))

    def of_vgpu(self, directory: Iterable[str], name: str) -> tuple[str, ...]:
        """Who has the device in this directory of sysfs, which is a mediated device's UUID or a function's address, in words."""
        place = list(directory)
        group = self._sysfs.link(*place, "iommu_group")
        files = [group] if group else []
        files += self._sysfs.names(*place, "vfio-dev")
        pids = sorted({pid for file in files for pid in self._open.get(file, ())})
        words = [process_words(str(self._proc), pid) for pid in pids]
        machines = [f"virtual machine {guest}" for guest in sorted(self._guests.get(name.lower(), ()))]
        return (*words, *(f"{machine} (defined, not running)" for machine in machines if not any(machine in word for word in words)))

    def of_gpu(self, address: str) -> tuple[str, ...]:
        """Who has the GPU's own device file open, in words; NVIDIA's services for vGPUs are not among them."""
        try:
            text = (self._proc / "driver" / "nvidia" / "gpus" / address / "information").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ()
        found = _MINOR.search(text)
        if found is None:
            return ()
        pids = sorted({held.pid for held in self._nodes if held.minor == int(found.group(1))})
        names = {pid: str(holders.describe(str(self._proc), pid)["process"]) for pid in pids}
        return tuple(process_words(str(self._proc), pid) for pid in pids if not names[pid].startswith(_OURS))


def _open_vfio(proc_root: Path) -> list[tuple[int, str]]:
    """(process, group number or device name) of every VFIO file that is open."""
    found = []
    for name in os.listdir(proc_root):
        if not name.isdigit():
            continue
        directory = proc_root / name / "fd"
        try:
            files = os.listdir(directory)
        except OSError:
            continue
        for file in files:
            try:
                target = os.readlink(directory / file)
            except OSError:
                continue
            match = _GROUP.fullmatch(target) or _DEVICE.fullmatch(target)
            if match:
                found.append((int(name), match.group(1)))
    return found


def _guests(directory: Path) -> dict[str, set[str]]:
    """Guests that are defined with a mediated device or a PCI function of the host, by its UUID or address."""
    found: dict[str, set[str]] = {}
    for path in sorted(directory.glob("*.xml")):
        try:
            root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ElementTree.ParseError):
            continue
        guest = root.findtext("name") or path.stem
        for address in root.iterfind("./devices/hostdev/source/address"):
            name = address.get("uuid") or _address(address)
            if name:
                found.setdefault(name.lower(), set()).add(guest)
    return found


def _address(element: ElementTree.Element) -> str | None:
    try:
        domain, bus, slot, function = (int(str(element.get(key, "")), 0) for key in ("domain", "bus", "slot", "function"))
    except ValueError:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
