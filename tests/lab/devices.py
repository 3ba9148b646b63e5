# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices that virtual machines can have, in a guest: emulated ones behind its IOMMU, and kernel modules that Debian does not build.

The disk has libvirt and QEMU beside what boots. The modules are built at this machine's speed, in a root of the guest's own Debian that
mmdebstrap makes and throws away: ``mtty``, the kernel's sample of mediated devices, out of Debian's package of the kernel's source, and
those of ``tests/lab/kernel``, which are the lab's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import textwrap
import typing as t
from importlib import metadata
from pathlib import Path

from lab.commands import need, run
from lab.errors import LabError
from lab.guest import Guest
from lab.image import BASE, BUILD_SECONDS, SUITE, Recipe
from lab.packages import PATHS, Mirror
from lab.places import BUILD, LAB, LOGS

# A host of virtual machines: libvirt with QEMU.
HYPERVISOR = ("libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "qemu-utils", "mdevctl", "pciutils", "e2fsprogs")
RECIPE = Recipe((*BASE, *HYPERVISOR), ready=False)

Say = t.Callable[[str], None]
SOURCES = LAB / "kernel"
OWN = ("labvgpu", "labstuck")
# Of the kernel's samples; Debian builds none.
SAMPLE = "samples/vfio-mdev/mtty.c"
NAMES = ("mtty", *OWN)
GIB = 3.0
NVME_MIB = 256
# Where the guest's modprobe looks first.
PLACE = "updates/lab"
# In mmdebstrap's root; $1 is that root, RELEASE the kernel's.
MAKE = textwrap.dedent("""\
    set -e
    tar -xJf "$1"/usr/src/linux-source-*.tar.xz -C "$1/build" --strip-components=3 --wildcards "*/SAMPLE"
    echo 'obj-m := OBJECTS' > "$1/build/Kbuild"
    chroot "$1" make -C /lib/modules/RELEASE/build M=/build modules
    tar -C "$1/build" -cf "$1/build/modules.tar" FILES
""").replace("SAMPLE", SAMPLE)
# QEMU's cards of a kind are told apart by the port that they are on. Behind the bridge for conventional PCI is one group.
DEVICES = (
    ("edu",),
    ("nvme,drive=disk,serial=lab",),
    ("igb,mac=52:54:00:00:00:01",),
    ("pcie-pci-bridge,id=old", "edu,bus=old,addr=1", "e1000,bus=old,addr=2,mac=52:54:00:00:00:02,romfile="),
)
# systemd-networkd would set the cards up, and a card that is up is in use.
LEFT = "[Match]\nDriver=igb igbvf e1000\n\n[Link]\nUnmanaged=yes\n"


def arguments(home: Path) -> tuple[str, ...]:
    """QEMU's arguments for the devices of a guest whose files are in ``home``; makes the disk."""
    home.mkdir(parents=True, exist_ok=True)
    disk = home / "nvme.raw"
    with disk.open("wb") as file:
        file.truncate(NVME_MIB * 2**20)
    # A comma ends a value unless doubled.
    found = ["-drive", f"file={str(disk).replace(',', ',,')},if=none,format=raw,id=disk"]
    for number, (first, *more) in enumerate(DEVICES, 1):
        port = f"port{number}"
        found += ["-device", f"pcie-root-port,id={port},chassis={number},slot={number}", "-device", f"{first},bus={port}"]
        found += [word for device in more for word in ("-device", device)]
    return tuple(found)


def ensure(image: Path, mirror: Mirror, say: Say) -> Path:
    """A tar of the modules for the image's kernel, built when they never were before. LabError in one line; nothing half done is left."""
    release = kernel(image)
    digest = hashlib.sha256(MAKE.encode() + b"".join((SOURCES / f"{name}.c").read_bytes() for name in OWN)).hexdigest()[:16]
    kept = BUILD / "modules" / f"devices-{release}-{digest}.tar"
    if kept.exists():
        return kept
    if os.geteuid() != 0:
        raise LabError(
            "building the lab's kernel modules needs root: sudo make lab (or bring build/lab/modules from where they were built)"
        )
    need(GIB, "building the lab's kernel modules")
    say("building the lab's kernel modules, at this machine's speed (3 min)")
    part = kept.with_suffix(f".{os.getpid()}")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        _build(release, mirror, part)
        part.rename(kept)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return kept


def kernel(image: Path) -> str:
    """The release of an image's kernel."""
    found = re.search(r"^Package: linux-image-(\d\S*)$", (image / "status").read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise LabError(f"{image}/status names no kernel: remove {image}, and it is built anew")
    return found[1]


def _build(release: str, mirror: Mirror, target: Path) -> None:
    """In a root of the guest's Debian, which mmdebstrap throws away: compilers and kernel headers of this machine are others."""
    source = f"linux-source-{'.'.join(release.split('.')[:2])}"
    script = MAKE.replace("RELEASE", release).replace("OBJECTS", " ".join(f"{name}.o" for name in NAMES))
    script = script.replace("FILES", " ".join(f"{name}.ko" for name in NAMES))
    brought = " ".join(f"'{SOURCES / name}.c'" for name in OWN)
    argv = [
        "mmdebstrap", "--variant=apt", "--quiet", "--mode=root", "--format=null", "--aptopt=APT::Install-Recommends \"false\"",
        f"--include=gcc,make,xz-utils,linux-headers-{release},{source}",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
        f"--customize-hook=mkdir \"$1/build\" && cp {brought} \"$1/build\"", f"--customize-hook={script}",
        f"--customize-hook=download /build/modules.tar '{target}'",
        SUITE, "/dev/null", f"deb [signed-by={mirror.keyring}] {mirror.uri} {SUITE} main",
    ]  # fmt: skip
    run(argv, "building the lab's kernel modules", deadline=BUILD_SECONDS, log=LOGS / "kernel.log", env={**os.environ, "PATH": PATHS})


def bring(guest: Guest, modules: Path) -> None:
    """Lays the modules where the guest's modprobe looks, has the sample loaded at each boot, and leaves the cards to nobody."""
    steps = [
        f"place=/lib/modules/$(uname -r)/{PLACE} && mkdir -p $place && tar -C $place -xf - && depmod",
        f"printf '{LEFT.encode('unicode_escape').decode()}' > /etc/systemd/network/05-devices.network",
        "echo mtty > /etc/modules-load.d/lab.conf && modprobe mtty",
        # Nobody loads the driver of a device that a person shall choose: loaded by hand only.
        "echo 'blacklist labstuck' > /etc/modprobe.d/lab.conf",
        "networkctl reload && for card in /sys/class/net/*; do case $(readlink -f $card/device/driver) in */igb|*/e1000)"
        " ip link set ${card##*/} down ;; esac; done",
        f"hostname {guest.name} && echo {guest.name} > /etc/hostname",
    ]
    with modules.open("rb") as pack:
        guest.ssh(" && ".join(steps), "bringing the lab's kernel modules", stdin=pack)
    bring_nvml_package(guest)


def bring_nvml_package(guest: Guest) -> None:
    """The Python package that the host agent asks for, also where it finds no GPU: plain Python, as pip put it here."""
    package = metadata.distribution("nvidia-ml-py")
    names = [str(file) for file in package.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
    tar = subprocess.Popen(["tar", "-C", str(package.locate_file("")), "-cf", "-", *names], stdout=subprocess.PIPE)
    with tar:
        place = "$(echo /usr/local/lib/python3.*)/dist-packages"
        guest.ssh(f"mkdir -p {place} && tar -C {place} -xf - --no-same-owner", "bringing a Python package", stdin=tar.stdout)
