# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a PCI device, whatever it is: open device nodes, mounts, swap, stacked block devices, network interfaces, virtual machines.

Taking a device from its driver waits for its users in the kernel, for ever if need be, or takes a mounted disk away. So whoever does it
looks here first. What sysfs shows below the device says which nodes are its own; NVIDIA's driver shows none there.
"""

from __future__ import annotations

import os
import re
import typing as t
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.holders import describe
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import DEVICES, Device
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs

_DELETED = " (deleted)"
_IFF_UP = 0x1  # include/uapi/linux/if.h
_GUEST = re.compile(r"(?:^|\0)-name\0(?:guest=)?([^,\0]+)")
_DEVNAME = re.compile(r"^DEVNAME=(.+)$", re.MULTILINE)
_NVME_PATH = re.compile(r"nvme(\d+)c\d+n(\d+)")
# Directories of another device, or links back up: nothing of the device's own is below them.
_FOREIGN = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|power|msi_irqs|link")


@dataclass
class _Own:
    """What is the device's own: nodes by path with their numbers, names of block devices, network interfaces."""

    nodes: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, Path] = field(default_factory=dict)
    interfaces: list[Path] = field(default_factory=list)


def users(sysfs: Sysfs, proc_root: str, device: Device) -> list[str]:
    """Who uses this device, in words, as in ``process 4711 (qemu-system-x86, virtual machine web) has /dev/vfio/14 open``."""
    own = _own(sysfs, device)
    nodes = set(own.nodes)
    if device.minor is not None:
        nodes.add(f"/dev/nvidia{device.minor}")
    if device.with_vfio and device.group is not None:
        nodes.add(f"/dev/vfio/{device.group}")
    found = [f"{words} has {path} open" for words, path in _openers(proc_root, nodes)]
    if own.blocks:
        found += _mounts(proc_root, own)
        found += _stacked(own)
    found += [f"network interface {path.name} is up" for path in own.interfaces if _flags(path) & _IFF_UP]
    return found


def _own(sysfs: Sysfs, device: Device) -> _Own:
    own = _Own()
    tops = [os.path.realpath(sysfs.path(DEVICES, device.address))]
    while tops:
        for directory, names, files in os.walk(tops.pop()):
            names[:] = sorted(name for name in names if not _FOREIGN.fullmatch(name) and not os.path.islink(os.path.join(directory, name)))
            tops += [os.path.realpath(sysfs.path("class/block", head)) for head in map(_head, names) if head is not None]
            _note(own, Path(directory), files)
    return own


def _note(own: _Own, here: Path, files: Iterable[str]) -> None:
    if here.parent.name == "net":
        own.interfaces.append(here)
    if "dev" in files:
        name = _DEVNAME.search(_text(here / "uevent"))
        path = f"/dev/{name.group(1) if name else here.name}"
        own.nodes[path] = _text(here / "dev").strip()
        if os.path.basename(os.path.realpath(here / "subsystem")) == "block":
            own.blocks[path] = here


def _head(name: str) -> str | None:
    """The block device of an NVMe path: with multipathing on, the disk itself hangs elsewhere in sysfs."""
    found = _NVME_PATH.fullmatch(name)
    return f"nvme{found.group(1)}n{found.group(2)}" if found else None


def _openers(proc_root: str, nodes: Iterable[str]) -> list[tuple[str, str]]:
    """(process in words, node), by process id; this process is left out."""
    wanted = set(nodes)
    found = []
    for pid in sorted(int(name) for name in os.listdir(proc_root) if name.isdigit() and int(name) != os.getpid()):
        held = {target for target in _targets(Path(proc_root) / str(pid) / "fd") if target in wanted}
        found += [(process_words(proc_root, pid), path) for path in sorted(held)]
    return found


def _targets(directory: Path) -> t.Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(directory / name)
        except OSError:
            continue
        yield target[: -len(_DELETED)] if target.endswith(_DELETED) else target


def process_words(proc_root: str, pid: int) -> str:
    """``process 4711 (qemu-system-x86, virtual machine web)``: the machine's name is what QEMU was told."""
    shown = describe(proc_root, pid)
    guest = _GUEST.search(_text(Path(proc_root) / str(pid) / "cmdline"))
    more = [shown["process"] or "unknown program"]
    if guest:
        more.append(f"virtual machine {guest.group(1)}")
    if shown["container"]:
        more.append(f"in container {shown['container']}")
    return f"process {pid} ({', '.join(more)})"


def _mounts(proc_root: str, own: _Own) -> list[str]:
    """Mounts of every mount namespace, and swap."""
    numbers = {own.nodes[path]: path for path in own.blocks}
    found: dict[str, None] = {}
    spaces = set()
    for pid in sorted((name for name in os.listdir(proc_root) if name.isdigit()), key=int):
        try:
            space = os.readlink(Path(proc_root) / pid / "ns" / "mnt")
        except OSError:
            space = pid
        if space in spaces:
            continue
        spaces.add(space)
        for line in _text(Path(proc_root) / pid / "mountinfo").splitlines():
            fields, _dash, source = line.partition(" - ")
            parts, sources = fields.split(), source.split()
            path = numbers.get(parts[2]) if len(parts) > 4 else None
            if path is None and len(sources) > 1 and sources[1] in own.blocks:  # btrfs: the number is another
                path = sources[1]
            if path is not None:
                found[f"{path} is mounted on {parts[4]}"] = None
    for line in _text(Path(proc_root) / "swaps").splitlines()[1:]:
        if line.split()[:1] and line.split()[0] in own.blocks:
            found[f"{line.split()[0]} is swap"] = None
    return list(found)


def _stacked(own: _Own) -> list[str]:
    """RAID, LVM and encryption have the disk open in the kernel, without a process."""
    found = []
    for path, directory in sorted(own.blocks.items()):
        try:
            found += [f"{path} is a part of {name}" for name in sorted(os.listdir(directory / "holders"))]
        except OSError:
            continue
    return found


def _flags(interface: Path) -> int:
    try:
        return int(_text(interface / "flags") or "0", 0)
    except ValueError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
