# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a boot brings back, by udev's rule and the host agent: devices given away, mediated devices, vGPUs with functions."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator

from lab.acts_passthrough import cards, drivers, functions, passed, refused, seen, wish
from lab.acts_vgpu import files, loaded, mdevs, mtty, nothing, vgpus
from lab.guest import Guest
from lab.modules_by_hand import call
from lab.plays import must_play
from lab.site import Site

# The guest has neither NVIDIA's driver nor an engine.
AGENT = ("-e", '{"fleet_gpu_access": "nvidia"}')
RUNNING = "systemctl is-system-running --wait || true"
SAID = (
    "journalctl -b -u 'gpuops-fleet-*' -o cat --no-pager; dmesg | grep -iE 'nvme|vfio|igbvf|mtty' | head -20; journalctl -b | grep mdevctl"
)


def agent(site: Site, guest: Guest) -> Iterator[str]:
    """The host agent is installed, on a host without a driver and without an engine."""
    began = time.monotonic()
    must_play(site, "agent", *AGENT)
    said = guest.ssh("systemctl list-unit-files 'gpuops-fleet*' --no-legend", "its units")
    print(f"  {'; '.join(' '.join(line.split()) for line in said.splitlines())} ({time.monotonic() - began:.0f} s)", flush=True)
    if "gpuops-fleet-restore.service" not in said or "gpuops-fleet-vgpus.service" not in said:
        yield f"the agent's units are {said}"


def reboot(guest: Guest) -> None:
    """Until its units are done; what they and the kernel said is told."""
    began = time.monotonic()
    guest.reboot()
    guest.ssh(RUNNING, "waiting for its units", deadline=600)
    print(f"  booted in {time.monotonic() - began:.0f} s", flush=True)
    print(textwrap.indent(guest.ssh(f"{SAID} || true", "reading what was said"), "    "), flush=True)


def boot(site: Site, guest: Guest) -> Iterator[str]:
    """Three devices that were given away and three mediated devices are there after a boot, before anybody asks."""
    yield from agent(site, guest)
    here = cards(guest)
    them = (here.edu, here.nvme, functions(guest, here.igb, 2)[1])
    yield from passed("give three away", call(site, "passthrough", wish("vfio", *them)), changed=True)
    lacking = len(mdevs(guest)) != 3  # asked before the call
    yield from passed("three mediated devices", call(site, "vgpu", mtty(mtty_2=3)), changed=lacking)
    three = mdevs(guest)
    reboot(guest)
    if (now := drivers(guest, *them)) != ["vfio-pci"] * 3:
        yield f"after a boot they are with {now}"
    if not three or mdevs(guest) != three:
        yield f"after a boot the mediated devices are {mdevs(guest)}, not {three}"
    yield from passed("the same once more", call(site, "passthrough", wish("vfio", *them)), changed=False)
    yield from passed("the same once more", call(site, "vgpu", mtty(mtty_2=3)), changed=False)
    yield from passed("release them", call(site, "passthrough", wish("host", *them)), changed=True)
    if (now := drivers(guest, *them)) != [None, "nvme", "igbvf"]:
        yield f"after the release they are with {now}"
    functions(guest, here.igb, 0)


def replay(site: Site, guest: Guest) -> Iterator[str]:
    """After a boot the agent has a card's functions made, and gives them their types again, on the same functions."""
    yield from agent(site, guest)
    card = cards(guest).igb
    loaded(guest, card, 700)
    yield from passed("make two", call(site, "vgpu", vgpus(card, "A100D-40C", 2)), changed=True)
    before = {address: current for address, (current, _listed) in files(guest, card).items()}
    reboot(guest)
    after = {address: current for address, (current, _listed) in files(guest, card).items()}
    if after != before:
        yield f"after a boot functions have {after}, and had {before}"
    yield from passed("take them away, functions too", call(site, "vgpu", nothing(card)), changed=True)
    if left := [one for one in seen(guest) if one.ids == "8086:10ca"]:
        yield f"there are functions still: {left}"


OFF = "/etc/default/grub.d/lab.cfg"


def without(site: Site, guest: Guest) -> Iterator[str]:
    """On a kernel whose IOMMU is off nothing is begun, although a bind would be answered with success."""
    here = cards(guest)
    line = 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=off"'
    guest.ssh(f"mkdir -p /etc/default/grub.d && cat > {OFF} && update-grub 2>&1", "turning the IOMMU off", input=f"{line}\n")
    try:
        reboot(guest)
        answer = call(site, "passthrough", wish("vfio", here.nvme))
        yield from refused("without an IOMMU", answer, f"the IOMMU of this host does not work, so {here.nvme} cannot be given")
        if drivers(guest, here.nvme) != ["nvme"]:
            yield f"the disk is with {drivers(guest, here.nvme)}"
    finally:
        guest.ssh(f"rm {OFF} && update-grub 2>&1", "turning the IOMMU on")
        reboot(guest)


ACTS = (boot, replay, without)
