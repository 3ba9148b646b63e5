# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How large a guest's window for 64-bit BARs must be, and where its memory and processors belong. Pure, but for files below ``/sys``.

A BAR lies at a multiple of its own size, so a device with a BAR of 128 GiB and one of 32 MiB needs little more than 128 GiB, and a second
one begins 256 GiB after the first. OVMF keeps 32 GiB free unless it is told otherwise, and places the window at a multiple of its size.

Sources: the PCI Local Bus Specification (BARs are powers of two, naturally aligned); OvmfPkg/PlatformPei of edk2 (``X-PciMmio64Mb``, 32 GiB
by default); the 40 bits of QEMU's default for physical addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.host import count_cpus
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import Device
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs

MIB = 2**20
DEFAULT_WINDOW_MIB = 32 * 1024
# For what else is on the guest's bus: network, disks, the windows of root ports.
_OTHERS_MIB = 1024
_USUAL_BITS = 40
_PAGES = {"2M": 2048, "1G": 1048576}


def window_mib(devices: Iterable[Sequence[int]]) -> int | None:
    """The window for devices with these BARs (sizes in bytes, of each device), in MiB; None where OVMF's own is enough."""
    end = 0
    for bars in sorted((sorted(each, reverse=True) for each in devices if each), reverse=True):
        end = -(-end // bars[0]) * bars[0] + sum(bars)
    need = -(-end // MIB) + _OTHERS_MIB
    window = 1 << (need - 1).bit_length()
    return window if window > DEFAULT_WINDOW_MIB else None


def too_wide(window: int | None) -> bool:
    """Whether a window in MiB ends beyond what a guest can address unless it is told more bits. It begins at a multiple of its size."""
    return window is not None and 2 * window * MIB > 1 << _USUAL_BITS


def parse_window(text: str) -> int | None:
    """What a person wrote: MiB, or None for ``off``. FleetError for anything else but a power of two."""
    if text == "off":
        return None
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1024 or int(text) & (int(text) - 1):
        raise FleetError(f"'{text}' is no size of a window", field="mmio", hint="write auto, off, or a power of two in MiB, such as 262144")
    return int(text)


def page_kib(size: str, memory_kib: int, nodes: Sequence[int], sysfs: Sysfs) -> int | None:
    """KiB of a page, None without huge pages. FleetError where the host (``nodes``: these nodes alone) has too few to back the memory."""
    if not size:
        return None
    if size not in _PAGES:
        raise FleetError(f"'{size}' is no size of a page", field="hugepages", hint=f"write {' or '.join(_PAGES)}, or leave it out")
    kib = _PAGES[size]
    if memory_kib % kib:
        raise FleetError(f"its memory of {memory_kib // 1024} MiB is no multiple of {size}", field="hugepages", hint="give it whole pages")
    name = f"hugepages/hugepages-{kib}kB/nr_hugepages"
    if nodes:
        counts = [sysfs.number(f"devices/system/node/node{node}", name) or 0 for node in nodes]
    else:
        counts = [sysfs.number("kernel/mm", name) or 0]
    if sum(counts) * kib < memory_kib:
        where = f"node {', '.join(map(str, nodes))}" if nodes else "this host"
        wrong = f"{where} has {sum(counts)} pages of {size}, and its memory needs {memory_kib // kib}"
        raise FleetError(
            wrong, field="hugepages", hint=f"role passthrough_host: passthrough_host_hugepages, such as {{'{size}': {memory_kib // kib}}}"
        )
    return kib


def node_of(devices: Iterable[Device]) -> int | None:
    """The node that all of them are at; None where they are at several, or nobody knows."""
    found = {device.numa for device in devices}
    return found.pop() if len(found) == 1 else None


def cpus_of(sysfs: Sysfs, node: int) -> str | None:
    """The processors of a node as a list of the kernel's (``0-15,32``); None where it has none, or there is but one node."""
    nodes = [name for name in sysfs.names("devices/system/node") if re.fullmatch(r"node\d+", name)]
    text = sysfs.text("devices/system/node", f"node{node}", "cpulist")
    return text if text and len(nodes) > 1 else None


def number_of(cpus: str) -> int:
    """How many processors such a list has."""
    return count_cpus(cpus)
