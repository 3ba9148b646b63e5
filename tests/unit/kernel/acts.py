# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a write below sysfs makes the kernel do; ``bin/tee`` calls :func:`main`. Standard library only: it runs without the venv's paths."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kernel import tree, vgpu_acts
from kernel.refusal import BUSY, INVALID, NO_DEVICE, Refusal

Act = Callable[[Path, Path, str], None]  # (root, the file, the text)


def probe(root: Path, _file: Path, text: str) -> None:
    """``drivers_probe``: an address that is not there is EINVAL, one that no driver takes is a success."""
    if not (root / "sys/bus/pci/devices" / text).exists():
        raise Refusal(INVALID)
    tree.probe(root, text)


def bind(root: Path, file: Path, text: str) -> None:
    """A driver's ``bind``."""
    driver = file.parent.name
    if not (root / "sys/bus/pci/devices" / text).exists() or not tree.matches(root, text, driver):
        raise Refusal(NO_DEVICE)
    if (root / "sys/bus/pci/devices" / text / "driver").exists():
        raise Refusal(BUSY)
    if not tree.can_bind(root, text, driver):
        raise Refusal(INVALID)
    tree.attach(root, text, driver)


def unbind(root: Path, file: Path, text: str) -> None:
    """A driver's ``unbind``: waits for everybody who has the device open, with the device locked."""
    driver = file.resolve().parent
    if not (driver / text).exists():
        raise Refusal(NO_DEVICE)
    override = (driver / text).resolve() / "driver_override"
    if holders(root, text):
        kept = override.read_text()
        override.unlink()
        os.mkfifo(override)
        while holders(root, text):
            time.sleep(0.01)
        unlock(override, kept)
    if (driver / text / "sriov_numvfs").exists():
        make_vfs(root, (driver / text).resolve(), 0)
    tree.detach(root, text)


def unlock(override: Path, kept: str) -> None:
    """Whoever waits to read the override reads it now, as behind the kernel's lock: nobody is left waiting."""
    waiting = override.with_name("driver_override.waiting")
    override.rename(waiting)
    override.write_text(kept)
    stream = os.open(waiting, os.O_RDWR | os.O_NONBLOCK)  # wakes those who wait in open(2)
    waiting.unlink()
    os.write(stream, kept.encode())
    time.sleep(0.1)
    os.close(stream)


def holders(root: Path, address: str) -> list[str]:
    """Processes with a device node open that keeps this driver from letting go."""
    device = (root / "sys/bus/pci/devices" / address).resolve()
    minor = tree.hidden_of(root)["devices"].get(address, {}).get("minor")
    group = device / "iommu_group"
    nodes = {f"/dev/nvidia{minor}"} | ({f"/dev/vfio/{os.path.basename(os.readlink(group))}"} if group.exists() else set())
    unseen = [address] if address in tree.hidden_of(root).get("held", ()) else []
    return [*unseen, *(str(one) for one in (root / "proc").glob("[0-9]*/fd/*") if os.readlink(one) in nodes)]


def override(_root: Path, file: Path, text: str) -> None:
    """``driver_override``: an empty line clears it, and nothing is unbound or loaded."""
    file.write_text(f"{text or tree.NULL}\n")


def autoprobe(_root: Path, file: Path, text: str) -> None:
    """``sriov_drivers_autoprobe``: 0 or 1."""
    if text not in ("0", "1"):
        raise Refusal(INVALID)
    file.write_text(f"{text}\n")


def set_vfs(root: Path, file: Path, text: str) -> None:
    """``sriov_numvfs``: from n to m only through 0."""
    here, wanted = int(file.read_text()), int(text)
    device = file.parent
    if wanted == here:
        return
    if wanted > int((device / "sriov_totalvfs").read_text()):
        raise Refusal("Numerical result out of range")
    if wanted and here:
        raise Refusal(BUSY)
    if (device / "driver").is_symlink() and os.path.basename(os.readlink(device / "driver")) == "nvidia":
        raise Refusal("Function not implemented")  # NVIDIA's driver leaves it to sriov-manage
    make_vfs(root, device, wanted)


def make_vfs(root: Path, device: Path, wanted: int) -> None:
    """As many virtual functions as wanted."""
    for link in device.glob("virtfn*"):
        tree.drop(root, link.resolve().name)
    mine = tree.hidden_of(root)["devices"][device.name]
    base = tree.Tree.at(root)
    ids = [(device / name).read_text().strip()[2:] for name in ("vendor", "subsystem_vendor", "subsystem_device")]
    for number in range(wanted):
        address = routing(device.name, mine["stride"][0] + number * mine["stride"][1])
        kind = (device / "class").read_text().strip()[2:]
        base.add(address, (ids[0], mine["vf_device"], ids[1], ids[2]), kind, group=mine.get("vf_group", 100) + number, reset="flr")
        place = base.device(address).resolve()
        tree.join(place / "physfn", device)
        tree.join(device / f"virtfn{number}", place)
        vgpu_acts.new_vf(root, device, place)
        if (device / "sriov_drivers_autoprobe").read_text().strip() == "1":
            tree.probe(root, address)
    (device / "sriov_numvfs").write_text(f"{wanted}\n")


def routing(address: str, offset: int) -> str:
    """The address that is so many functions further on."""
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    number = (int(bus, 16) << 8 | int(device, 16) << 3 | int(function)) + offset
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def remove(root: Path, file: Path, text: str) -> None:
    """A PCI device's ``remove``: kept for a rescan."""
    if text != "1":
        raise Refusal(INVALID)
    kept = root / "removed" / file.parent.name
    tree.detach(root, file.parent.name)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(str(file.parent.resolve()))
    link = root / "sys/bus/pci/devices" / file.parent.name
    target = link.resolve()
    link.unlink()
    target.rename(root / "removed" / f"{target.name}.d")


def rescan(root: Path, _file: Path, _text: str) -> None:
    """What was removed is there again, without an override, and is probed."""
    for kept in sorted((root / "removed").glob("*[0-9]")):
        place = Path(kept.read_text())
        kept.with_name(f"{kept.name}.d").rename(place)
        tree.put(place / "driver_override", f"{tree.NULL}\n")
        tree.join(root / "sys/bus/pci/devices" / kept.name, place)
        kept.unlink()
        tree.probe(root, place.name)


def nothing(_root: Path, _file: Path, _text: str) -> None:
    """``reset`` and the like."""


def new_id(root: Path, file: Path, text: str) -> None:
    """A driver's ``new_id``: takes every device of that kind."""
    hidden = tree.hidden_of(root)
    hidden["drivers"].setdefault(file.parent.name, []).append(":".join(text.split()[:2]))
    tree.keep_hidden(root, hidden)
    for device in sorted((root / "sys/bus/pci/devices").iterdir()):
        tree.probe(root, device.name)


ACTS: list[tuple[str, Act]] = [
    (r"bus/pci/drivers_probe", probe),
    (r"bus/pci/rescan", rescan),
    (r"bus/pci/drivers/[^/]+/bind", bind),
    (r"bus/pci/drivers/[^/]+/new_id", new_id),
    (r"bus/pci/(drivers/[^/]+|devices/[^/]+/driver)/unbind", unbind),
    (r"bus/pci/devices/[^/]+/driver_override", override),
    (r"bus/pci/devices/[^/]+/sriov_drivers_autoprobe", autoprobe),
    (r"bus/pci/devices/[^/]+/sriov_numvfs", set_vfs),
    (r"bus/pci/devices/[^/]+/remove", remove),
    (r"bus/pci/devices/[^/]+/(reset|reset_method|rescan)", nothing),
    *vgpu_acts.ACTS,
]


def main(file: str, text: str) -> int:
    """One write, with what the environment says about it; the exit status of tee."""
    root = Path(os.environ["KERNEL_TREE"])
    try:
        where = Path(file).relative_to(root / "sys")
    except ValueError:
        return plain(Path(file), text)
    line = text[:-1] if text.endswith("\n") else text
    number = count(root, f"{where} {line}".rstrip())
    word = fault(root, number)
    if word is not None:
        return complain(file, word)
    if os.environ.get("KERNEL_KILL") == f"before {number}":
        os.kill(os.getppid(), signal.SIGKILL)
        return 0
    try:
        act_of(str(where))(root, Path(file), line)
    except Refusal as refusal:
        return complain(file, str(refusal))
    if os.environ.get("KERNEL_KILL") == f"after {number}":
        os.kill(os.getppid(), signal.SIGKILL)
    return 0


def act_of(where: str) -> Act:
    """Who does it."""
    for pattern, act in ACTS:
        if re.fullmatch(pattern, where):
            return act
    raise Refusal("Permission denied")


def count(root: Path, line: str) -> int:
    """Which write this is, from one."""
    with (root / "writes").open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(f"{line}\n")
        stream.flush()
        stream.seek(0)
        return len(stream.readlines())


def fault(root: Path, number: int) -> str | None:
    """The kernel's word when this write is to fail; one that is to hang waits here."""
    which, _equals, word = os.environ.get("KERNEL_FAIL", "").partition("=")
    if str(number) in which.split(","):
        return word or BUSY
    if os.environ.get("KERNEL_HANG") == str(number):
        while not (root / "go").exists():
            time.sleep(0.01)
    return None


def complain(file: str, word: str) -> int:
    """As GNU tee does."""
    sys.stderr.write(f"tee: '{file}': {word}\n")
    return 1


def plain(file: Path, text: str) -> int:
    """Not sysfs: a file like any other."""
    file.write_text(text)
    return 0
