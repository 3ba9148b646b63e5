# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host gives PCI devices to virtual machines and takes them back: a real kernel, its IOMMU emulated, devices that are no GPUs.

Real: Linux, its drivers and VFIO, udev, systemd, libvirt and QEMU, a boot. Emulated by QEMU: the devices and the IOMMU. The lab's own: a
driver that does not let go (``tests/lab/kernel``).
"""

from __future__ import annotations

import json
import re
import textwrap
import typing as t
from collections.abc import Iterator

from lab.errors import LabError
from lab.guest import Guest
from lab.modules_by_hand import Answer, call
from lab.site import Site

EDU, NVME, IGB, E1000, VF = "1234:11e8", "1b36:0010", "8086:10c9", "8086:100e", "8086:10ca"
STATE = textwrap.dedent("""\
    import glob, json, os
    def link(path):
        try:
            return os.path.basename(os.readlink(path))
        except OSError:
            return None
    def text(path):
        with open(path) as file:
            return file.read().strip()
    print(json.dumps({
        link(where) or os.path.basename(where): {
            "ids": text(where + "/vendor")[2:] + ":" + text(where + "/device")[2:],
            "driver": link(where + "/driver"),
            "group": link(where + "/iommu_group"),
            "resets": text(where + "/reset_method").split() if os.path.exists(where + "/reset_method") else [],
        }
        for where in glob.glob("/sys/bus/pci/devices/*")
    }))
""")


class Device(t.NamedTuple):
    """A PCI device as the kernel shows it, without a word of the collection's."""

    address: str
    ids: str
    driver: str | None
    group: str | None
    resets: tuple[str, ...]


def seen(guest: Guest) -> list[Device]:
    """Every PCI device of a guest, by address."""
    found: dict[str, dict[str, t.Any]] = json.loads(guest.ssh("python3 -", "looking at its devices", input=STATE))
    return [Device(address, one["ids"], one["driver"], one["group"], tuple(one["resets"])) for address, one in sorted(found.items())]


class Cards(t.NamedTuple):
    """Addresses of the devices that ``lab.devices`` gives a guest. ``old``: of the two behind the bridge for conventional PCI."""

    edu: str
    nvme: str
    igb: str
    old_edu: str
    old_network: str


def cards(guest: Guest) -> Cards:
    """Where they are. LabError when one is missing."""
    found = seen(guest)
    with_mates = {one.group for one in found if one.ids == E1000}

    def only(ids: str, old: bool = False) -> str:
        fitting = [one.address for one in found if one.ids == ids and (one.group in with_mates) is old]
        if len(fitting) != 1:
            raise LabError(f"{guest.name} has {fitting} of {ids}: {[(one.address, one.ids, one.group) for one in found]}")
        return fitting[0]

    return Cards(only(EDU), only(NVME), only(IGB), only(EDU, True), only(E1000, True))


def drivers(guest: Guest, *addresses: str) -> list[str | None]:
    """Who has these."""
    found = {one.address: one.driver for one in seen(guest)}
    return [found.get(address) for address in addresses]


def wish(state: str, *addresses: str, **more: t.Any) -> dict[str, t.Any]:
    """Options of module ``passthrough``."""
    return {"devices": [{"device": address, "state": state} for address in addresses], **more}


def tell(what: str, answer: Answer) -> Answer:
    """The same, told."""
    words = f"refused: {answer.message}" if answer.failed else f"{len(answer.steps)} steps, changed={answer.changed}"
    print(f"  {what}: {words} ({answer.seconds:.0f} s)", flush=True)
    return answer


def passed(what: str, answer: Answer, changed: bool) -> Iterator[str]:
    """It did not fail, and says whether it changed something."""
    tell(what, answer)
    if answer.failed:
        yield f"{what}: {answer.message}"
    elif answer.changed is not changed:
        yield f"{what}: it says changed={answer.changed}: {answer.steps}"


def refused(what: str, answer: Answer, *words: str) -> Iterator[str]:
    """It failed in one line that has these words (regular expressions), and changed nothing."""
    tell(what, answer)
    if not answer.failed:
        yield f"{what}: it was not refused: {answer.steps}"
        return
    if "\n" in answer.message or "Traceback" in answer.message:
        yield f"{what}: not one line: {answer.message}"
    yield from (f"{what}: it says nothing of '{word}': {answer.message}" for word in words if not re.search(word, answer.message))


def functions(guest: Guest, card: str, count: int) -> list[str]:
    """Makes virtual functions of a card, as a person would; their addresses, in order."""
    where = f"/sys/bus/pci/devices/{card}"
    steps = (
        "modprobe igbvf",
        f"[ $(cat {where}/sriov_numvfs) = {count} ] || {{ echo 0 > {where}/sriov_numvfs; echo {count} > {where}/sriov_numvfs; }}",
        "udevadm settle",
        # A network that is up is in use.
        "for card in /sys/bus/pci/drivers/igbvf/*:*/net/*; do [ ! -e $card ] || ip link set ${card##*/} down; done",
    )
    guest.ssh("; ".join(steps), "making virtual functions")
    return guest.ssh(f"for n in $(seq 0 {count - 1}); do basename $(readlink {where}/virtfn$n); done", "reading them").split()


# --- acts -------------------------------------------------------------------------------------------------------------


def ground(_site: Site, guest: Guest) -> Iterator[str]:
    """The IOMMU works, and the devices are as QEMU was told."""
    found, here = seen(guest), cards(guest)
    if None in {one.group for one in found}:
        yield f"there are devices without an IOMMU group: {found}"
    groups: dict[str | None, list[str]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one.address)
        if one.address in here:
            print(
                f"  {one.address} {one.ids}: {one.driver or 'no driver'}, group {one.group}, reset by {' '.join(one.resets) or 'nothing'}",
                flush=True,
            )
    shared = [one for members in groups.values() if here.old_network in members for one in members]
    if here.old_edu not in shared:
        yield f"the devices behind the bridge are in groups of their own: {groups}"
    for alone in (here.edu, here.nvme, here.igb):
        if [alone] not in groups.values():
            yield f"{alone} is not alone in its group: {groups}"
    said = guest.ssh("uname -r; virsh --version; ls /sys/class/iommu; modinfo -F filename mtty labvgpu labstuck", "asking for versions")
    print(f"  {' '.join(said.split())}", flush=True)


def bind(site: Site, guest: Guest) -> Iterator[str]:
    """A device without a driver, a disk and a virtual function go to vfio-pci and come back; a second run changes nothing."""
    here = cards(guest)
    function = functions(guest, here.igb, 2)[0]
    them = (here.edu, here.nvme, function)
    before = drivers(guest, *them)
    if before != [None, "nvme", "igbvf"]:
        yield f"before, the devices are with {before}"
    predicted = call(site, "passthrough", wish("vfio", *them), check=True)
    yield from passed("check mode", predicted, changed=True)
    if drivers(guest, *them) != before:
        yield "check mode changed something"
    answer = call(site, "passthrough", wish("vfio", *them))
    yield from passed("bind edu, nvme and a virtual function", answer, changed=True)
    if answer.steps != predicted.steps:
        yield f"check mode told other steps: {predicted.steps}, and not {answer.steps}"
    for step in answer.steps:
        print(f"    {step}", flush=True)
    if (now := drivers(guest, *them)) != ["vfio-pci"] * 3:
        yield f"after the bind they are with {now}"
    nodes = guest.ssh("ls /dev/vfio", "looking for VFIO's nodes").split()
    if len(nodes) != 4:  # a group each, and vfio
        yield f"VFIO's nodes are {nodes}"
    yield from passed("the same once more", call(site, "passthrough", wish("vfio", *them)), changed=False)
    answer = call(site, "passthrough", wish("host", *them))
    yield from passed("release them", answer, changed=True)
    if (now := drivers(guest, *them)) != before:
        yield f"after the release they are with {now}, and were with {before}"
    yield from passed("the same once more", call(site, "passthrough", wish("host", *them)), changed=False)
    left = guest.ssh(
        "udevadm settle; test -b /dev/nvme0n1; ls /etc/udev/rules.d; cat /var/lib/gpuops-fleet/passthrough.json", "looking what is left"
    )
    if "gpuops" in left.split("{")[0] or json.loads(left[left.index("{") :])["devices"]:
        yield f"something is left of it: {left}"


def group(site: Site, guest: Guest) -> Iterator[str]:
    """One of two devices of a group is refused, and its companion named; with it, it goes and comes back."""
    here = cards(guest)
    before = drivers(guest, here.old_edu, here.old_network)
    answer = call(site, "passthrough", wish("vfio", here.old_edu))
    yield from refused("one of a group", answer, rf"shares IOMMU group \d+ with {here.old_network} \(e1000\)", "nothing was changed")
    if (now := drivers(guest, here.old_edu, here.old_network)) != before:
        yield f"a refusal moved devices: {before} before, {now} now"
    both = wish("vfio", here.old_edu, companions=True)
    yield from passed("with its companion", call(site, "passthrough", both), changed=True)
    if (now := drivers(guest, here.old_edu, here.old_network)) != ["vfio-pci"] * 2:
        yield f"with companions they are with {now}"
    if viable(guest, here.old_edu) is not True:
        yield "VFIO does not take the group"
    back = wish("host", here.old_edu, companions=True)
    yield from passed("release both", call(site, "passthrough", back), changed=True)
    if (now := drivers(guest, here.old_edu, here.old_network)) != before:
        yield f"after the release they are with {now}, and were with {before}"
    yield from passed("the same once more", call(site, "passthrough", back), changed=False)


# Opens a device as QEMU does (linux/vfio.h: ioctls of type ';', from 100), says so, and keeps it until its input ends.
OPEN = textwrap.dedent("""\
    import fcntl, os, struct, sys
    group, address = sys.argv[1:3]
    number = lambda n: (ord(";") << 8) + 100 + n
    box, door = os.open("/dev/vfio/vfio", os.O_RDWR), os.open("/dev/vfio/" + group, os.O_RDWR)
    status = bytearray(struct.pack("II", 8, 0))
    fcntl.ioctl(door, number(3), status)
    if not struct.unpack("II", status)[1] & 1:
        sys.exit("not viable")
    fcntl.ioctl(door, number(4), struct.pack("i", box))
    fcntl.ioctl(box, number(2), 1)
    device = fcntl.ioctl(door, number(6), address.encode() + b"\\0")
    print("open", flush=True)
    sys.stdin.read()
""")


def opener(guest: Guest, address: str, seconds: int = 600) -> int:
    """Has a process in the guest open a device through VFIO for a while; its number. LabError when VFIO does not let it."""
    group = next(one.group for one in seen(guest) if one.address == address)
    guest.ssh("cat > /root/opener.py", "writing a program", input=OPEN)
    out = f"/tmp/opener-{address}"
    said = guest.ssh(
        # Whatever keeps ssh's own pipes open, ssh waits for.
        f"rm -f {out}; (sleep {seconds} 2> /dev/null | python3 /root/opener.py {group} {address} > {out} 2>&1 &) < /dev/null;"
        f" for n in $(seq 60); do [ -s {out} ] && break; sleep 0.5; done; cat {out}; pgrep -f '[o]pener.py {group} {address}'",
        "opening a device",
    ).split()
    if said[:1] != ["open"]:
        raise LabError(f"VFIO did not open {address}: {' '.join(said)}")
    return int(said[-1])


def viable(guest: Guest, address: str) -> bool:
    """Whether VFIO lets a process have the device."""
    try:
        pid = opener(guest, address)
    except LabError as error:
        print(f"  {error}", flush=True)
        return False
    guest.ssh(f"kill {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.2; done", "closing it")
    return True


def busy(site: Site, guest: Guest) -> Iterator[str]:
    """Whoever uses a disk is named, and nothing hangs: a mount, an open node, an open VFIO file."""
    here = cards(guest)
    guest.ssh("mke2fs -q -F /dev/nvme0n1 && mkdir -p /mnt/disk && mount /dev/nvme0n1 /mnt/disk", "mounting the disk")
    answer = call(site, "passthrough", wish("vfio", here.nvme))
    yield from refused("a mounted disk", answer, "/dev/nvme0n1 is mounted on /mnt/disk")
    guest.ssh("umount /mnt/disk; (sleep 600 < /dev/nvme0n1 > /dev/null 2>&1 & echo $! > /tmp/holder)", "holding the disk open")
    pid = guest.ssh("cat /tmp/holder", "whose number").strip()
    answer = call(site, "passthrough", wish("vfio", here.nvme))
    yield from refused("a node that is open", answer, rf"process {pid} \(sleep\) has /dev/nvme0n1 open")
    guest.ssh(f"kill {pid}", "letting it go")
    yield from passed("give the disk away", call(site, "passthrough", wish("vfio", here.nvme)), changed=True)
    holder = opener(guest, here.nvme)
    answer = call(site, "passthrough", wish("host", here.nvme))
    yield from refused("a device that a process has through VFIO", answer, rf"process {holder} \(python3\) has /dev/vfio/\d+ open")
    if drivers(guest, here.nvme) != ["vfio-pci"]:
        yield "a refusal moved the disk"
    guest.ssh(f"kill {holder}", "closing it")
    yield from passed("release it then", call(site, "passthrough", wish("host", here.nvme)), changed=True)
    if drivers(guest, here.nvme) != ["nvme"]:
        yield f"the disk is with {drivers(guest, here.nvme)}"


def network(site: Site, guest: Guest) -> Iterator[str]:
    """A card whose functions would go with it, and one whose network is up, stay with their driver."""
    here = cards(guest)
    functions(guest, here.igb, 1)
    yield from refused("a card with functions", call(site, "passthrough", wish("vfio", here.igb)), "1 virtual functions")
    name = guest.ssh(
        f"echo 0 > /sys/bus/pci/devices/{here.igb}/sriov_numvfs; ls /sys/bus/pci/devices/{here.igb}/net", "taking functions away"
    ).strip()
    guest.ssh(f"ip link set {name} up", "setting a network up")
    yield from refused("a network that is up", call(site, "passthrough", wish("vfio", here.igb)), f"network interface {name} is up")
    guest.ssh(f"ip link set {name} down", "setting it down")
    if drivers(guest, here.igb) != ["igb"]:
        yield f"a refusal moved the card to {drivers(guest, here.igb)}"


STUCK_SECONDS = 5


def stuck(site: Site, guest: Guest) -> Iterator[str]:
    """A driver that does not let go: the deadline holds, the process that waits is named, and when it lets go the next run completes."""
    here = cards(guest)
    guest.ssh("modprobe labstuck", "loading a driver that does not let go")
    if drivers(guest, here.edu) != ["labstuck"]:
        yield f"edu is with {drivers(guest, here.edu)}"
    wished = wish("vfio", here.edu, deadline=STUCK_SECONDS)
    answer = call(site, "passthrough", wished)
    waits = rf"drivers/labstuck/unbind has not answered in {STUCK_SECONDS} s; process (\d+) waits there until {here.edu} is free"
    yield from refused("a release that is stuck", answer, waits)
    if found := re.search(waits, answer.message):
        where = guest.ssh(f"cat /proc/{found[1]}/comm; cut -d' ' -f3 /proc/{found[1]}/stat; cat /proc/{found[1]}/stack", "looking at it")
        print(f"    process {found[1]}: {' '.join(where.split())[:200]}", flush=True)
        if "stuck_remove" not in where:
            yield f"process {found[1]} does not wait in the driver: {where}"
        guest.ssh(f"kill -9 {found[1]}; sleep 1; test -e /proc/{found[1]}/comm", "killing it, in vain")
    again = call(site, "passthrough", wished)
    yield from refused("once more, while it is stuck", again, rf"{here.edu} is between two drivers: process \d+ of an earlier run waits")
    if again.seconds > 120 or answer.seconds > 120:
        yield f"it took {answer.seconds:.0f} and {again.seconds:.0f} s"
    guest.ssh("echo Y > /sys/module/labstuck/parameters/release; sleep 2", "letting go")
    print(f"  let go: {drivers(guest, here.edu)}", flush=True)
    yield from passed("once more, free", call(site, "passthrough", wished), changed=True)
    if drivers(guest, here.edu) != ["vfio-pci"]:
        yield f"edu is with {drivers(guest, here.edu)}"
    yield from passed("once more", call(site, "passthrough", wished), changed=False)
    yield from passed("release it", call(site, "passthrough", wish("host", here.edu)), changed=True)
    guest.ssh("rmmod labstuck", "taking the driver away")


ACTS = (ground, bind, group, busy, network, stuck)
