# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of devices, by module ``vgpu``: the kernel's sample of mediated devices, and the lab's module that has a vendor's files.

``mtty`` is the kernel's own code; its two types share 24 ports. ``labvgpu`` shows on virtual functions of an emulated network card what
public sources say of NVIDIA's vendor framework; ``sriov-manage`` is a stand-in that makes these functions.
"""

from __future__ import annotations

import json
import textwrap
import time
import typing as t
from collections.abc import Iterator

from lab.acts_passthrough import cards, drivers, opener, passed, refused, seen, wish
from lab.guest import Guest
from lab.modules_by_hand import call
from lab.site import Site

MDEVS = textwrap.dedent("""\
    import json, os
    base = "/sys/bus/mdev/devices/"
    print(json.dumps({uuid: os.path.basename(os.readlink(base + uuid + "/mdev_type")) for uuid in os.listdir(base)}))
""")


def mdevs(guest: Guest) -> dict[str, str]:
    """Type of each mediated device, by its name."""
    found: dict[str, str] = json.loads(guest.ssh("python3 -", "looking at its mediated devices", input=MDEVS))
    return found


def mtty(**counts: int) -> dict[str, t.Any]:
    """Options of module ``vgpu``: so many of each type."""
    return {"gpus": [{"parent": "mtty", "vgpus": [{"type": name.replace("_", "-"), "count": count} for name, count in counts.items()]}]}


def mdev(site: Site, guest: Guest) -> Iterator[str]:
    """Three are made, a second run changes nothing, one goes and the others stay; what is more than the parent has is refused."""
    if mdevs(guest):
        yield from passed("clear", call(site, "vgpu", mtty(mtty_2=0)), changed=True)
    yield from passed("make three", call(site, "vgpu", mtty(mtty_2=3)), changed=True)
    three = mdevs(guest)
    if sorted(three.values()) != ["mtty-2"] * 3:
        yield f"made were {three}"
    left = guest.ssh("cat /sys/class/mdev_bus/mtty/mdev_supported_types/*/available_instances", "reading what is left").split()
    print(f"    {sorted(three)}; the kernel has left of mtty-1 and mtty-2: {' and '.join(left)}", flush=True)
    if left != ["18", "9"]:
        yield f"the kernel has left of mtty-1 and mtty-2 {left}"
    yield from passed("the same once more", call(site, "vgpu", mtty(mtty_2=3)), changed=False)
    fewer = call(site, "vgpu", mtty(mtty_2=2))
    yield from passed("one less", fewer, changed=True)
    two = mdevs(guest)
    if len(two) != 2 or not set(two) < set(three) or len(fewer.steps) != 1:
        yield f"of {three} is left {two}, by {fewer.steps}"
    yield from passed("three again", call(site, "vgpu", mtty(mtty_2=3)), changed=True)
    if mdevs(guest) != three:
        yield f"the third has another name than before: {three} before, {mdevs(guest)} now"
    answer = call(site, "vgpu", mtty(mtty_2=13))
    yield from refused("more than the parent has", answer, "mtty")
    if mdevs(guest) != three:
        yield f"a refusal left {mdevs(guest)} of {three}"
    # That two types share ports, only the kernel knows: what it refuses in the middle is put back.
    answer = call(site, "vgpu", mtty(mtty_2=3, mtty_1=19))
    yield from refused("more than the types share", answer, "mtty")
    if mdevs(guest) != three:
        yield f"a refusal left {mdevs(guest)} of {three}"


NAME = "lab-vm"
DOMAIN = f"""<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>256</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><cpu mode='custom'><model>qemu64</model></cpu>
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>
"""


def machine(site: Site, guest: Guest) -> Iterator[str]:
    """A virtual machine of libvirt gets a disk and a mediated device, starts with both, and gives them back; twice is once."""
    here = cards(guest)
    made = call(site, "vgpu", mtty(mtty_2=1))
    if made.failed:
        yield f"one mediated device: {made.message}"
        return
    (uuid,) = mdevs(guest)
    virsh = "virsh --connect qemu:///system"
    guest.ssh(
        f"{virsh} destroy {NAME} 2>/dev/null; {virsh} undefine {NAME} 2>/dev/null; cat > /root/vm.xml && {virsh} define /root/vm.xml",
        "defining",
        input=DOMAIN,
    )
    given = {"domain": NAME, "devices": [here.nvme, uuid]}
    yield from passed("give it the disk and the mediated device", call(site, "guest_devices", given), changed=True)
    yield from passed("the same once more", call(site, "guest_devices", given), changed=False)
    began = time.monotonic()
    said = guest.ssh(
        f"{virsh} start {NAME}; {virsh} dominfo {NAME}; {virsh} dumpxml {NAME} | grep -A8 '<hostdev'", "starting it", deadline=300
    )
    print(f"  started after {time.monotonic() - began:.0f} s", flush=True)
    state = next((line.split(":")[1].strip() for line in said.splitlines() if line.startswith("State:")), None)
    print(f"    State: {state}; the disk is with {drivers(guest, here.nvme)}", flush=True)
    if state != "running" or drivers(guest, here.nvme) != ["vfio-pci"]:
        yield f"it is {state}, and the disk is with {drivers(guest, here.nvme)}: {said}"
    groups = {one.group for one in seen(guest) if one.address == here.nvme}
    held = guest.ssh("ls -l /proc/$(pgrep -f '[g]uest=lab-vm')/fd | grep -o '/dev/vfio/[0-9]*$' | sort", "what QEMU has open").split()
    print(f"    QEMU has open {' '.join(held)}; the disk's group is {groups}", flush=True)
    if len(held) != 2:
        yield f"QEMU has not two devices open, but {held}"
    answer = call(site, "passthrough", wish("host", here.nvme))
    yield from refused("take the disk back", answer, f"virtual machine {NAME}")
    answer = call(site, "vgpu", mtty(mtty_2=0))
    yield from refused("remove the mediated device", answer, f"virtual machine {NAME}")
    guest.ssh(f"{virsh} destroy {NAME}", "ending it")
    if drivers(guest, here.nvme) != ["nvme"]:
        yield f"after its end the disk is with {drivers(guest, here.nvme)}"
    answer = call(site, "vgpu", mtty(mtty_2=0))
    yield from refused("remove that of a machine that is defined", answer, rf"virtual machine {NAME} \(defined, not running\)")
    gone = {"domain": NAME}
    yield from passed("take both from it", call(site, "guest_devices", gone), changed=True)
    yield from passed("the same once more", call(site, "guest_devices", gone), changed=False)
    if "<hostdev" in guest.ssh(f"{virsh} dumpxml --inactive {NAME}", "reading its definition"):
        yield "something is left in its definition"
    yield from passed("remove the mediated device then", call(site, "vgpu", mtty(mtty_2=0)), changed=True)
    if mdevs(guest):
        yield f"left are {mdevs(guest)}"
    guest.ssh(f"{virsh} undefine {NAME}", "forgetting it")


# In the place of NVIDIA's program: it makes functions of the card, and gives them to the lab's module.
SRIOV_MANAGE = textwrap.dedent("""\
    #!/bin/sh
    # The lab's: NVIDIA's comes with the licensed driver.
    card=/sys/bus/pci/devices/$2
    case "$1" in
    -e)
      [ "$(cat $card/sriov_numvfs)" = 0 ] || exit 0
      modprobe labvgpu && echo 0 > $card/sriov_drivers_autoprobe && cat $card/sriov_totalvfs > $card/sriov_numvfs || exit 1
      for function in $card/virtfn*; do
        echo labvgpu > $function/driver_override && basename $(readlink $function) > /sys/bus/pci/drivers_probe || exit 1
      done
      echo 1 > $card/sriov_drivers_autoprobe ;;
    -d) echo 0 > $card/sriov_numvfs ;;
    *) echo "the lab's stand-in for sriov-manage knows -e and -d" >&2; exit 2 ;;
    esac
""")
PROGRAM = "/usr/lib/nvidia/sriov-manage"
FILES = textwrap.dedent("""\
    import glob, json, os, sys
    def text(path):
        with open(path) as file:
            return file.read().strip()
    print(json.dumps({
        os.path.basename(os.readlink(where)): [text(where + "/nvidia/current_vgpu_type"), text(where + "/nvidia/creatable_vgpu_types")]
        for where in glob.glob("/sys/bus/pci/devices/" + sys.argv[1] + "/virtfn*")
    }))
""")


def files(guest: Guest, card: str) -> dict[str, tuple[str, list[str]]]:
    """Of each function: the number of its type, and what it lists."""
    found = json.loads(guest.ssh(f"python3 - {card}", "looking at its functions", input=FILES))
    return {address: (current, listed.splitlines()) for address, (current, listed) in sorted(found.items())}


def kinds(guest: Guest, card: str) -> list[str]:
    """Numbers of the types that functions have."""
    return sorted(current for current, _listed in files(guest, card).values() if current != "0")


def given(guest: Guest, card: str) -> str:
    """The first function that has a type."""
    return next(address for address, (current, _listed) in files(guest, card).items() if current != "0")


def loaded(guest: Guest, card: str, first: int) -> None:
    """The lab's module with numbers of types from ``first``, functions on."""
    guest.ssh(
        f"mkdir -p {PROGRAM.rpartition('/')[0]} && cat > {PROGRAM} && chmod 755 {PROGRAM} && {PROGRAM} -d {card};"
        f" rmmod labvgpu 2>/dev/null; echo 'options labvgpu first_id={first}' > /etc/modprobe.d/labvgpu.conf && {PROGRAM} -e {card}",
        "standing in for a vGPU driver",
        input=SRIOV_MANAGE,
    )


def vgpus(card: str, kind: str, count: int, **more: t.Any) -> dict[str, t.Any]:
    """Options of module ``vgpu``."""
    return {"gpus": [{"gpu": card, "vgpus": [{"type": kind, "count": count, **more}] if count else []}]}


def vendor(site: Site, guest: Guest) -> Iterator[str]:
    """The vendor's framework: lists shrink, numbers are the driver's, and whoever has a function open keeps it as it is."""
    card = cards(guest).igb
    loaded(guest, card, 500)
    before = files(guest, card)
    by_hand, (_current, offered) = sorted(before.items())[0]
    print(f"  {len(before)} functions, each lists {'; '.join(offered)}", flush=True)
    # By hand, as the kernel has it: one size at a time.
    guest.ssh(f"echo 502 > /sys/bus/pci/devices/{by_hand}/nvidia/current_vgpu_type", "making one by hand")
    shown = {tuple(listed) for current, listed in files(guest, card).values() if current == "0"}
    print(f"    with one made by hand, a free function lists {shown}", flush=True)
    if shown != {("502 : NVIDIA A100D-20C",)}:
        yield f"the lists did not shrink: {shown}"
    made = call(site, "vgpu", vgpus(card, "A100D-20C", 4))
    yield from passed("three more, which fill the card", made, changed=True)
    if kinds(guest, card) != ["502"] * 4 or len(made.steps) != 3:
        yield f"functions have types {kinds(guest, card)}, by {made.steps}"
    if any(listed for _current, listed in files(guest, card).values()):
        yield f"a full card lists something: {files(guest, card)}"
    yield from passed("the same once more, with nothing listed", call(site, "vgpu", vgpus(card, "A100D-20C", 4)), changed=False)
    yield from refused("a fifth", call(site, "vgpu", vgpus(card, "A100D-20C", 5)), "A100D-20C")
    if kinds(guest, card) != ["502"] * 4:
        yield f"a refusal left {kinds(guest, card)}"
    yield from _in_use(site, guest, card)
    loaded(guest, card, 900)
    yield from passed("by another driver, which numbers otherwise", call(site, "vgpu", vgpus(card, "A100D-40C", 2)), changed=True)
    if kinds(guest, card) != ["903"] * 2:
        yield f"functions have types {kinds(guest, card)}"
    there = given(guest, card)
    answer = call(site, "passthrough", wish("vfio", there))
    yield from refused("its function to vfio-pci", answer, "a virtual function of NVIDIA's own framework")
    yield from passed("take all away, functions too", call(site, "vgpu", nothing(card)), changed=True)


def nothing(card: str) -> dict[str, t.Any]:
    """Options of module ``vgpu``: no vGPUs, no functions, and nothing for a boot to bring back."""
    return {"gpus": [{"gpu": card, "vgpus": [], "vfs": "off"}]}


def _in_use(site: Site, guest: Guest, card: str) -> Iterator[str]:
    """A process has a function open: the kernel refuses every write, and the module before it."""
    there = given(guest, card)
    pid = opener(guest, there)
    word = guest.ssh(f"echo 0 | tee /sys/bus/pci/devices/{there}/nvidia/current_vgpu_type 2>&1 || true", "writing by hand")
    print(f"    the kernel's own word for a write: {' '.join(word.split())}", flush=True)
    if "Device or resource busy" not in word:
        yield f"the kernel took a write to a function in use: {word}"
    answer = call(site, "vgpu", vgpus(card, "A100D-20C", 0))
    yield from refused("remove one in use", answer, rf"process {pid} \(python3\)")
    if kinds(guest, card) != ["502"] * 4:
        yield f"a refusal left {kinds(guest, card)}"
    guest.ssh(f"kill {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.2; done", "closing it")
    with_params = vgpus(card, "A100D-20C", 4, params={"enable_uvm": 1})
    yield from passed("parameters, when it is free", call(site, "vgpu", with_params), changed=True)
    stored = guest.ssh(f"cat /sys/bus/pci/devices/{there}/nvidia/vgpu_params", "reading parameters").strip()
    if stored != "enable_uvm=1":
        yield f"the parameters are '{stored}'"


ACTS = (mdev, machine, vendor)
