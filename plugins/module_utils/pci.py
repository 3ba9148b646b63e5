# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices as sysfs shows them: who has them, what goes along with them, and which piece of hardware they are."""

from __future__ import annotations

import os
import re
import struct
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.host import kernel_gpus
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import pci_address
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Stuck, Sysfs, waiting

NVIDIA = "0x10de"
DEVICES = "bus/pci/devices"
DRIVERS = "bus/pci/drivers"
GROUPS = "kernel/iommu_groups"

_BRIDGES, _PCI_BRIDGE, _DISPLAY, _OTHER_BRIDGE = 0x06, 0x0604, 0x03, 0x0680
# include/uapi/linux/pci_regs.h: where extended capabilities begin, and the number of the one that has the serial number
_EXTENDED, _SERIAL_NUMBER = 0x100, 0x0003
_VFIO = re.compile(r"vfio-pci|.+[-_]vfio[-_]pci")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)
_TELLING = {"vendor": "vendor", "device": "device id", "subsystem": "subsystem", "serial": "serial number", "uuid": "UUID"}

Identity = Mapping[str, t.Any]


@dataclass(frozen=True)
class Device:
    """One function. Ids as the kernel writes them (``0x10de``), ``kind`` its class, ``override`` empty when there is none.

    ``group``: its IOMMU group; ``mates``: the other addresses in it. ``bars``: sizes in bytes. ``vfs``: virtual functions by their numbers,
    ``physical``: whose virtual function it is. ``vendor_vf``: it has the vendor's own directory for vGPUs. ``uuid`` and ``minor``: of a
    GPU that NVIDIA's driver has.
    """

    address: str
    vendor: str
    device: str
    subsystem: str
    kind: int
    driver: str | None = None
    override: str = ""
    group: str | None = None
    mates: tuple[str, ...] = ()
    numa: int | None = None
    resets: tuple[str, ...] = ()
    bars: tuple[int, ...] = ()
    physical: str | None = None
    vfs: tuple[str, ...] = ()
    most_vfs: int = 0
    vendor_vf: bool = False
    serial: str | None = None
    uuid: str | None = None
    minor: int | None = None

    @property
    def identity(self) -> dict[str, t.Any]:
        """Which piece of hardware this is, as far as it tells."""
        return {"vendor": self.vendor, "device": self.device, "subsystem": self.subsystem, "serial": self.serial, "uuid": self.uuid}

    @property
    def with_vfio(self) -> bool:
        """Whether a driver has it that hands it to virtual machines."""
        return is_vfio(self.driver)

    @property
    def bridge(self) -> bool:
        """A bridge between PCI buses: never handed over, and in nobody's way in a group."""
        return self.kind >> 8 == _PCI_BRIDGE

    @property
    def board(self) -> bool:
        """A part of the mainboard, such as a bridge to ISA: in nobody's way without a driver."""
        return self.kind >> 16 == _BRIDGES and not self.switch

    @property
    def switch(self) -> bool:
        """An NVSwitch, which shows itself as another kind of bridge."""
        return self.vendor == NVIDIA and self.kind >> 8 == _OTHER_BRIDGE

    @property
    def gpu(self) -> bool:
        """A GPU of NVIDIA's."""
        return self.vendor == NVIDIA and self.kind >> 16 == _DISPLAY


def is_vfio(driver: str | None) -> bool:
    """Whether this driver hands devices to virtual machines: vfio-pci, or a variant of it for one kind of device."""
    return driver is not None and _VFIO.fullmatch(driver) is not None


def addresses(sysfs: Sysfs) -> list[str]:
    """Every PCI function of the host."""
    return sysfs.names(DEVICES)


def look(sysfs: Sysfs, address: str, proc_root: str = "/proc") -> Device:
    """The device at this address. FleetError when there is none; Stuck when a write to it waits in the kernel."""
    left = waiting(proc_root, address)
    if left is not None:
        pid, path = left
        raise Stuck(
            f"{address} is between two drivers: process {pid} of an earlier run waits in the kernel still, writing to {path}",
            pid,
            hint="when it has ended, the next run completes what was begun",
        )
    return _look(sysfs, address, proc_root, sysfs.text(DEVICES, address, "driver_override") or "")


def glance(sysfs: Sysfs, address: str, proc_root: str = "/proc", *, config: bool = True) -> Device:
    """As :func:`look`, but for the override, whose reading may wait: enough for a neighbour, and for the facts.

    ``config`` False: its configuration space, and so its serial number, is left alone: reading it wakes a device that sleeps.
    """
    return _look(sysfs, address, proc_root, "", config)


def _look(sysfs: Sysfs, address: str, proc_root: str, override: str, config: bool = True) -> Device:
    where = f"{DEVICES}/{address}"
    vendor, device, kind = (sysfs.text(where, name) for name in ("vendor", "device", "class"))
    if vendor is None or device is None or kind is None:
        raise FleetError(f"there is no PCI device {address} on this host")
    group = sysfs.link(where, "iommu_group")
    driver = sysfs.link(where, "driver")
    uuid, minor = _nvidia(proc_root, address) if driver == "nvidia" else (None, None)
    return Device(
        address,
        vendor,
        device,
        ":".join((sysfs.text(where, f"subsystem_{name}") or "")[2:] for name in ("vendor", "device")),
        int(kind, 16),
        driver,
        override,
        group,
        tuple(one for one in sysfs.names(GROUPS, group, "devices") if one != address) if group is not None else (),
        _numa(sysfs, where),
        tuple((sysfs.text(where, "reset_method") or "").split()),
        _bars(sysfs.text(where, "resource") or ""),
        sysfs.link(where, "physfn"),
        _functions(sysfs, where),
        sysfs.number(where, "sriov_totalvfs") or 0,
        sysfs.has(where, "nvidia"),
        _serial(sysfs.path(where, "config")) if config else None,
        uuid,
        minor,
    )


def _numa(sysfs: Sysfs, where: str) -> int | None:
    node = sysfs.number(where, "numa_node")
    return None if node is None or node < 0 else node  # -1: nobody knows


def _bars(text: str) -> tuple[int, ...]:
    """Sizes of the first six lines of ``resource``; a part of a 64-bit BAR and one that is not used are left out."""
    sizes = []
    for line in text.splitlines()[:6]:
        start, end = (int(part, 16) for part in line.split()[:2])
        if end:
            sizes.append(end - start + 1)
    return tuple(sizes)


def _functions(sysfs: Sysfs, where: str) -> tuple[str, ...]:
    """Virtual functions by their numbers: a listing has virtfn10 before virtfn2."""
    found = [name for name in sysfs.names(where) if re.fullmatch(r"virtfn\d+", name)]
    links = [sysfs.link(where, name) for name in sorted(found, key=lambda name: int(name[len("virtfn") :]))]
    return tuple(link for link in links if link is not None)


def _serial(config: Path) -> str | None:
    """The Device Serial Number as sixteen digits; None when it has none, or when the reader is not root (who gets 64 bytes)."""
    try:
        descriptor = os.open(config, os.O_RDONLY)
    except OSError:
        return None
    try:
        offset, seen = _EXTENDED, set[int]()
        while offset >= _EXTENDED and offset not in seen:
            seen.add(offset)
            # Only what is needed is read, a few bytes of each capability.
            header, lower, upper = struct.unpack("<III", os.pread(descriptor, 12, offset))
            if header & 0xFFFF == _SERIAL_NUMBER:
                return f"{upper:08x}{lower:08x}" if upper or lower else None
            offset = header >> 20
    except (OSError, struct.error):  # it ends before
        pass
    finally:
        os.close(descriptor)
    return None


def _nvidia(proc_root: str, address: str) -> tuple[str | None, int | None]:
    """UUID and number of the device node of a GPU that NVIDIA's driver has."""
    path = Path(proc_root) / "driver" / "nvidia" / "gpus" / address / "information"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, None
    minor = _MINOR.search(text)
    return kernel_gpus(proc_root).get(address), int(minor.group(1)) if minor else None


def differs(recorded: Identity, now: Device) -> str | None:
    """How the device at an address is not the one that was recorded there; None when nothing speaks against it.

    What either of the two does not tell is not held against it: a UUID shows only with NVIDIA's driver, a serial number only to root.
    """
    here = now.identity
    for name, words in _TELLING.items():
        was = recorded.get(name)
        if was and here[name] and was != here[name]:
            return f"{words} {here[name]}, and {was} was recorded"
    return None


def where(sysfs: Sysfs, name: str, known: Mapping[str, Identity], proc_root: str = "/proc") -> str:
    """The address that ``name`` means: an address in any spelling, or a GPU's UUID.

    The UUID is that of a GPU that NVIDIA's driver has, or that was recorded (``known``: identities by address) when it was given away.
    """
    address = pci_address(name.strip())
    if address is not None:
        if not os.path.lexists(sysfs.path(DEVICES, address)):
            raise FleetError(f"there is no PCI device {address} on this host; nothing was changed", hint=_gpus(sysfs, proc_root))
        return address
    wanted = name.strip().lower()
    for found, uuid in kernel_gpus(proc_root).items():
        if uuid is not None and uuid.lower() == wanted:
            return found
    for found, identity in sorted(known.items()):
        if str(identity.get("uuid") or "").lower() == wanted and os.path.lexists(sysfs.path(DEVICES, found)):
            return found
    raise FleetError(f"there is no GPU {name} on this host; nothing was changed", hint=_gpus(sysfs, proc_root))


def _gpus(sysfs: Sysfs, proc_root: str) -> str:
    uuids = kernel_gpus(proc_root)
    found = [glance(sysfs, address, proc_root, config=False) for address in addresses(sysfs)]
    named = [f"{one.address} ({uuids.get(one.address) or 'no UUID to be seen'})" for one in found if one.gpu]
    return f"GPUs of this host: {', '.join(named) or 'none'}"
