# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel as a tree of files: it lays devices out below a root, and stand-ins in ``bin`` do what a write makes the kernel do.

A test puts ``bin`` first in PATH and names the root in KERNEL_TREE (``Tree.environment``). What is there besides sysfs and procfs (which
drivers exist, what a card is) lies in ``kernel.json``, and every write that reached the kernel is a line of ``writes``. The traps are
those of real kernels that this project met:

- ``drivers_probe`` answers success though nothing binds; ``bind`` says EINVAL. Without an IOMMU nothing binds to vfio-pci.
- an override that is not set reads ``(null)``, an empty line clears it, and it neither unbinds nor loads a module
- an unbind waits for whoever has the device open, and reading the override waits with it (a FIFO stands for the lock)
- who holds a device without a process (``held`` in ``kernel.json``) keeps an unbind waiting all the same
- the number of virtual functions changes only through 0 (EBUSY), and with autoprobe on a driver takes them at once

KERNEL_FAIL (``3``, ``3,4`` or ``3=No such device``), KERNEL_HANG (``3``) and KERNEL_KILL (``before 3``, ``after 3``) concern the
third write from the beginning of ``writes``: it is refused, it waits until the file ``go`` is made in the root, or the writer's parent
is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import sys
import traceback
import typing as t
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel import vgpu_acts

BIN = Path(__file__).resolve().parent / "bin"
NULL = "(null)"
GIB = 1 << 30
# (vendor, device, subsystem vendor, subsystem device), class
A100_80 = ("10de", "20b5", "10de", "1533")
H100_80 = ("10de", "2331", "10de", "1626")
DISPLAY, THREE_D, AUDIO, BRIDGE, NVME, ETHERNET, SATA = "030000", "030200", "040300", "060400", "010802", "020000", "010601"
# Which ids a driver takes by itself when it is loaded; a star stands for any device of that vendor.
DRIVERS: dict[str, list[str]] = {
    "nvidia": ["10de:*:03"],
    "nouveau": [],
    "snd_hda_intel": ["*:*:0403"],
    "nvme": ["*:*:0108"],
    "ahci": ["*:*:0106"],
    "igb": ["8086:10c9"],
    "igbvf": ["8086:10ca"],
    "pcieport": ["*:*:0604"],
    "vfio-pci": [],
}


class Tree:
    """A host below ``root``: ``sys``, ``proc``, ``dev``."""

    def __init__(self, root: Path, *, iommu: bool = True, loaded: Sequence[str] = ("pcieport",)) -> None:
        self._name(root)
        for directory in ("bus/pci/devices", "bus/mdev/devices", "class/mdev_bus", "class/iommu", "kernel/iommu_groups", "module"):
            (self.sys / directory).mkdir(parents=True)
        for directory in (self.proc, self.dev / "vfio"):
            directory.mkdir(parents=True)
        self.save({"iommu": iommu, "modules": list(DRIVERS), "drivers": DRIVERS, "devices": {}})
        put(self.sys / "bus/pci/drivers_probe", "")
        put(self.sys / "bus/pci/rescan", "")
        if iommu:
            put(self.sys / "devices/virtual/iommu/dmar0/intel-iommu/version", "1:0")
            (self.sys / "class/iommu/dmar0").symlink_to("../../devices/virtual/iommu/dmar0")
        for driver in loaded:
            load(self.root, driver)

    @classmethod
    def at(cls, root: Path) -> Tree:
        """The host that lies there already."""
        found = cls.__new__(cls)
        found._name(root)
        return found

    def _name(self, root: Path) -> None:
        self.root = root
        self.sys, self.proc, self.dev = root / "sys", root / "proc", root / "dev"

    # What the files say

    @property
    def hidden(self) -> dict[str, t.Any]:
        """What no file of sysfs shows."""
        return t.cast("dict[str, t.Any]", json.loads((self.root / "kernel.json").read_text()))

    def save(self, hidden: dict[str, t.Any]) -> None:
        """Change that."""
        keep_hidden(self.root, hidden)

    def environment(self, path: str = os.environ["PATH"]) -> dict[str, str]:
        """Variables with which a process meets this kernel."""
        return {"KERNEL_TREE": str(self.root), "PATH": f"{BIN}{os.pathsep}{path}"}

    def device(self, address: str) -> Path:
        """Its directory, by way of the bus."""
        return self.sys / "bus/pci/devices" / address

    def driver(self, address: str) -> str | None:
        """Who has it."""
        link = self.device(address) / "driver"
        return os.path.basename(os.readlink(link)) if link.is_symlink() else None

    def override(self, address: str) -> str | None:
        """Its override; None when it has none."""
        text = (self.device(address) / "driver_override").read_text().strip()
        return None if text == NULL else text

    def writes(self) -> list[str]:
        """Every write so far, ``path text``, the path from the root of sysfs."""
        path = self.root / "writes"
        return path.read_text().splitlines() if path.exists() else []

    def forget(self) -> None:
        """Count writes from one again."""
        (self.root / "writes").unlink(missing_ok=True)

    def state(self) -> dict[str, t.Any]:
        """Driver and override of every device."""
        names = sorted(path.name for path in (self.sys / "bus/pci/devices").iterdir())
        return {name: (self.driver(name), self.override(name)) for name in names}

    def viable(self, group: int) -> bool:
        """What VFIO's group flag would say: every endpoint is with vfio-pci or with nobody."""
        members = (self.sys / f"kernel/iommu_groups/{group}/devices").iterdir()
        ends = [one.name for one in members if not (self.device(one.name) / "class").read_text().startswith("0x0604")]
        return all(self.driver(one) in ("vfio-pci", None) for one in ends)

    # What is there

    def load(self, *drivers: str) -> None:
        """As modprobe."""
        for driver in drivers:
            load(self.root, driver)

    def add(
        self,
        address: str,
        ids: tuple[str, str, str, str],
        kind: str = THREE_D,
        *,
        group: int | None = None,
        driver: str | None = None,
        under: str | None = None,
        bars: Sequence[int] = (),
        serial: str | None = None,
        numa: int = -1,
        reset: str = "flr bus",
        vfs: int = 0,
        vf_device: str = "",
        stride: tuple[int, int] = (128, 2),
        uuid: str | None = None,
        minor: int | None = None,
        **more: t.Any,
    ) -> Path:
        """One device. ``serial``: sixteen hexadecimal digits; ``bars``: sizes in bytes; ``vfs``: how many it can have; a GPU has a UUID."""
        hidden = self.hidden
        hidden["devices"][address] = {"uuid": uuid, "minor": minor, "vf_device": vf_device, "stride": stride, **more}
        self.save(hidden)
        parent = self.sys / "devices/pci0000:00" if under is None else self.device(under).resolve()
        place = parent / address
        vendor, device, subvendor, subdevice = ids
        texts = {"vendor": vendor, "device": device, "subsystem_vendor": subvendor, "subsystem_device": subdevice, "class": kind}
        for name, text in texts.items():
            put(place / name, f"0x{text}\n")
        put(place / "driver_override", NULL + "\n")
        put(place / "numa_node", f"{numa}\n")
        put(place / "resource", resource(bars))
        put(place / "remove", "")
        put(place / "rescan", "")
        if reset:
            put(place / "reset_method", reset + "\n")
            put(place / "reset", "")
        (place / "config").write_bytes(config(ids, serial))
        if vfs:
            for name, number in (("totalvfs", vfs), ("numvfs", 0), ("drivers_autoprobe", 1), ("offset", stride[0]), ("stride", stride[1])):
                put(place / f"sriov_{name}", f"{number}\n")
        join(self.sys / "bus/pci/devices" / address, place)
        if group is not None and hidden["iommu"]:
            self.join_group(address, group)
        if driver is not None:
            if not (self.sys / "bus/pci/drivers" / driver).exists():
                self.load(driver)
            if self.driver(address) is None:  # it may have been loaded just now
                attach(self.root, address, driver)
        return place

    def join_group(self, address: str, group: int) -> None:
        """Into an IOMMU group."""
        put(self.sys / f"kernel/iommu_groups/{group}/type", "DMA\n")
        join(self.sys / f"kernel/iommu_groups/{group}/devices/{address}", self.device(address).resolve())
        join(self.device(address).resolve() / "iommu_group", self.sys / f"kernel/iommu_groups/{group}")

    def bridge(self, address: str, group: int | None = None) -> None:
        """A root port."""
        self.add(address, ("8086", "0d57", "8086", "0000"), BRIDGE, group=group, driver="pcieport", reset="")

    def gpu(self, address: str = "0000:3b:00.0", *, minor: int = 0, uuid: str | None = None, **more: t.Any) -> str:
        """An A100 with 80 GiB in a group of its own, with its driver; its UUID."""
        uuid = uuid or f"GPU-{minor:08x}-0000-4000-8000-000000000000"
        settings: dict[str, t.Any] = {
            "group": 20 + minor,
            "driver": "nvidia",
            "bars": (16 << 20, 128 * GIB, 32 << 20),
            "serial": f"{minor + 1:016x}",
        }
        ids = more.pop("ids", A100_80)
        self.add(address, ids, uuid=uuid, minor=minor, **{**settings, **more})
        return uuid

    def hold(self, pid: int, *files: str, name: str = "python3", uid: int = 0) -> None:
        """A process has these files open."""
        put(self.proc / f"{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        put(self.proc / f"{pid}/cgroup", "0::/user.slice\n")
        for number, target in enumerate(files, start=3):
            (self.proc / f"{pid}/fd").mkdir(exist_ok=True)
            (self.proc / f"{pid}/fd/{number}").symlink_to(target)

    def grip(self, *addresses: str) -> None:
        """Something inside the kernel holds exactly these devices; no process shows it."""
        self.save({**self.hidden, "held": list(addresses)})

    def let_go(self, pid: int) -> None:
        """That process ends."""
        shutil.rmtree(self.proc / str(pid))

    def reboot(self) -> None:
        """Nothing of bindings, overrides and virtual functions survives; drivers that were loaded take their devices again."""
        for address in list(self.state()):
            if (self.device(address) / "physfn").exists():
                drop(self.root, address)
        for address in self.state():
            detach(self.root, address)
            put(self.device(address) / "driver_override", NULL + "\n")
            if (self.device(address) / "sriov_numvfs").exists():
                put(self.device(address) / "sriov_numvfs", "0\n")
        vgpu_acts.reboot(self.root)
        for address in self.state():
            probe(self.root, address)

    def dies(self, act: Callable[[], object]) -> bool:
        """Run something in a child; whether it was killed. What the child left running in the kernel has ended when this returns."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 0
            try:
                act()
            except BaseException:
                traceback.print_exc()
                code = 4
            os._exit(code)
        _pid, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def put(path: Path, text: str) -> None:
    """Write a file and what is above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def join(link: Path, target: Path) -> None:
    """A link as sysfs has them: relative."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))


def resource(bars: Sequence[int]) -> str:
    """The file ``resource``: thirteen lines of start, end and flags."""
    lines, start = [], 1 << 32
    for size in bars:
        if not size:  # the upper half of a 64-bit one
            lines.append("0x" + "0" * 16 + (" 0x" + "0" * 16) * 2)
            continue
        lines.append(f"0x{start:016x} 0x{start + size - 1:016x} 0x000000000014220c")
        start += 2 * size
    return "".join(f"{line}\n" for line in [*lines, *["0x" + "0" * 16 + (" 0x" + "0" * 16) * 2] * (13 - len(lines))])


def config(ids: tuple[str, str, str, str], serial: str | None) -> bytes:
    """Configuration space: 64 bytes for one without extended capabilities, else 4096 with a Device Serial Number at 0x100."""
    head = struct.pack("<HH", int(ids[0], 16), int(ids[1], 16)).ljust(64, b"\0")
    if serial is None:
        return head
    first = struct.pack("<I", 0x0001 | 1 << 16 | 0x148 << 20)  # Advanced Error Reporting comes first, as on most boards
    upper, lower = int(serial[:8], 16), int(serial[8:], 16)
    second = struct.pack("<III", 0x0003 | 1 << 16, lower, upper)
    return (head.ljust(0x100, b"\0") + first).ljust(0x148, b"\0").ljust(0x148, b"\0") + second.ljust(4096 - 0x148, b"\0")


# What the kernel does; the stand-ins in bin call these.


def hidden_of(root: Path) -> dict[str, t.Any]:
    """``kernel.json``."""
    return t.cast("dict[str, t.Any]", json.loads((root / "kernel.json").read_text()))


def keep_hidden(root: Path, hidden: dict[str, t.Any]) -> None:
    """All at once: a write that waits reads it again and again."""
    put(root / "kernel.json.new", json.dumps(hidden))
    (root / "kernel.json.new").replace(root / "kernel.json")


def load(root: Path, driver: str) -> None:
    """Register a driver; it takes what is its own, as far as nobody has it and no override says otherwise."""
    place = root / "sys/bus/pci/drivers" / driver
    if place.exists():
        return
    for name in ("bind", "unbind", "new_id", "remove_id"):
        put(place / name, "")
    put(root / "sys/module" / driver.replace("-", "_") / "refcnt", "0\n")
    for device in sorted((root / "sys/bus/pci/devices").iterdir()):
        probe(root, device.name)


def matches(root: Path, address: str, driver: str) -> bool:
    """Whether the driver takes this device: by its override when it has one, else by its ids."""
    device = root / "sys/bus/pci/devices" / address
    override = (device / "driver_override").read_text().strip() if not (device / "driver_override").is_fifo() else NULL
    if override != NULL:
        return override == driver
    vendor, ident, kind = ((device / name).read_text().strip()[2:] for name in ("vendor", "device", "class"))
    for entry in hidden_of(root)["drivers"].get(driver, ()):
        parts = entry.split(":")
        if parts[0] in ("*", vendor) and parts[1] in ("*", ident) and kind.startswith(parts[2] if len(parts) > 2 else ""):
            return True
    return False


def probe(root: Path, address: str) -> None:
    """As ``drivers_probe``: the first driver that takes it, if any, and no word when none does."""
    device = root / "sys/bus/pci/devices" / address
    if (device / "driver").is_symlink():
        return
    for driver in sorted((root / "sys/bus/pci/drivers").glob("*")):
        if matches(root, address, driver.name) and can_bind(root, address, driver.name):
            attach(root, address, driver.name)
            return


def can_bind(root: Path, address: str, driver: str) -> bool:
    """Whether the driver's own probe succeeds."""
    device = root / "sys/bus/pci/devices" / address
    hidden = hidden_of(root)
    if driver in hidden["devices"].get(address, {}).get("refused_by", ()):
        return False
    if driver == "vfio-pci":
        return bool(hidden["iommu"]) and (device / "iommu_group").exists() and not (device / "nvidia").exists()
    return True


def attach(root: Path, address: str, driver: str) -> None:
    """The driver has it."""
    device = (root / "sys/bus/pci/devices" / address).resolve()
    place = root / "sys/bus/pci/drivers" / driver
    join(device / "driver", place)
    join(place / address, device)
    mine = hidden_of(root)["devices"].get(address, {})
    if driver == "nvidia" and mine.get("uuid"):
        lines = {
            "Model": "NVIDIA A100-PCIE-80GB",
            "IRQ": 64,
            "GPU UUID": mine["uuid"],
            "Bus Location": address,
            "Device Minor": mine["minor"],
        }
        text = "".join(f"{key}: \t {value}\n" for key, value in lines.items())
        put(root / f"proc/driver/nvidia/gpus/{address}/information", text)
        put(root / f"dev/nvidia{mine['minor']}", "")
    if driver == "vfio-pci":
        put(root / "dev/vfio" / os.path.basename(os.readlink(device / "iommu_group")), "")


def detach(root: Path, address: str) -> None:
    """Its driver lets go of it."""
    device = (root / "sys/bus/pci/devices" / address).resolve()
    if not (device / "driver").is_symlink():
        return
    (device / "driver" / address).unlink()
    (device / "driver").unlink()
    mine = hidden_of(root)["devices"].get(address, {})
    shutil.rmtree(root / f"proc/driver/nvidia/gpus/{address}", ignore_errors=True)
    if mine.get("minor") is not None:
        (root / f"dev/nvidia{mine['minor']}").unlink(missing_ok=True)
    if (device / "iommu_group").exists():
        (root / "dev/vfio" / os.path.basename(os.readlink(device / "iommu_group"))).unlink(missing_ok=True)


def drop(root: Path, address: str) -> None:
    """The device is gone from the bus."""
    link = root / "sys/bus/pci/devices" / address
    device = link.resolve()
    detach(root, address)
    if (device / "iommu_group").exists():
        (device / "iommu_group/devices" / address).unlink()
        if not any((device / "iommu_group/devices").iterdir()):
            shutil.rmtree((device / "iommu_group").resolve())
    vgpu_acts.gone_vf(root, device)
    physical = device / "physfn"
    if physical.exists():
        for one in physical.glob("virtfn*"):
            if one.resolve() == device:
                one.unlink()
    link.unlink()
    shutil.rmtree(device)
