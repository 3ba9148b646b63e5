# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver's kernel modules for a guest, built once by DKMS at this machine's own speed: an emulated compiler takes hours.

They are built in a chroot of the guest's own disk, with the archive's packages, for the guest's kernel, and kept by the driver package's
version and the kernel's. In the guest a program in the place of ``dkms`` puts them where a build puts them; DKMS itself does all else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import textwrap
import typing as t
from pathlib import Path

from lab.archive import COMPONENTS, DRIVER, Archive
from lab.commands import need, run
from lab.errors import LabError
from lab.image import ROOT_SECTOR, SUITE
from lab.packages import PATHS
from lab.places import BUILD, LOGS

GIB = 5.0
BUILD_SECONDS = 3600.0
# Where a guest has what was built here.
CACHE = "/var/cache/lab-dkms"
# Runs in a mount and process namespace of its own; $1 is the root, $2 the archive.
CHROOT = textwrap.dedent("""\
    set -e
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    mkdir -p "$1/srv/archive" "$1/etc/apt/keyrings"
    mount --bind "$2" "$1/srv/archive"
    cp "$2/key.asc" "$1/etc/apt/keyrings/lab.asc"
    printf '#!/bin/sh\\nexit 101\\n' > "$1/usr/sbin/policy-rc.d"
    chmod 755 "$1/usr/sbin/policy-rc.d"
    # What builds an initramfs would build it for nothing.
    ln -sf /bin/true "$1/usr/sbin/update-initramfs"
    rm -f "$1/etc/apt/sources.list"
    echo "deb [signed-by=/etc/apt/keyrings/lab.asc] file:/srv/archive SUITE COMPONENTS" > "$1/etc/apt/sources.list.d/lab.list"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    chroot "$1" apt-get -qq update
    chroot "$1" apt-get -qq --yes --no-install-recommends install dkms gcc linux-headers-amd64 "linux-headers-$3"
    chroot "$1" apt-get -qq --yes --no-install-recommends install NAMES
    chroot "$1" dkms status
""")
# In a guest that has no DKMS yet: its package's program will get the other name.
DIVERT = "dpkg-divert --quiet --local --rename --divert /usr/sbin/dkms.distrib --add /usr/sbin/dkms"
# With every module that Debian has, an emulated processor packs an initramfs for minutes, and the driver has it packed three times.
SMALL = "echo MODULES=dep > /etc/initramfs-tools/conf.d/lab"
UNPACK = f"mkdir -p {CACHE} && tar -C {CACHE} -xf - && {DIVERT} && {SMALL}"
# In the place of /usr/sbin/dkms of a guest. What was built elsewhere is laid into DKMS's tree as a build leaves it, when DKMS is about to
# build it and has its source; then DKMS goes on, and finds it built.
STAND_IN = textwrap.dedent("""\
    #!/bin/sh
    # The lab's: compiling under emulation takes hours. All but the build is DKMS's own.
    module= version= release= laid=
    previous=
    for word; do
      case "$previous" in -m) module=$word ;; -v) version=$word ;; -k) release=$word ;; esac
      previous=$word
    done
    case "$1" in build|autoinstall|kernel_postinst)
      for tree in CACHE/*/*/*; do
        name=${tree#CACHE/}; own=/var/lib/dkms/$name
        if [ -e "${own%/*}/source" ] && [ ! -e "$own" ]; then
          cp -a "$tree" "$own"
          echo "the lab's stand-in for a build: $name was built on the machine of the lab"
          [ "$name" = "$module/$version/$release" ] && laid=yes
        fi
      done
      [ "$1" = build ] && [ -n "$laid" ] && exit 0 ;;
    esac
    exec /usr/sbin/dkms.distrib "$@"
""").replace("CACHE", CACHE)

Say = t.Callable[[str], None]


def ensure(image: Path, archive: Archive, say: Say) -> Path:
    """A tar of what DKMS's tree has when the modules are built (``nvidia-current/VERSION/KERNEL``). LabError in one line."""
    digest = hashlib.sha256(repr((archive.driver, archive.kernel)).encode()).hexdigest()[:16]
    kept = BUILD / "modules" / f"{DRIVER[0]}-{archive.driver}-{archive.kernel}-{digest}.tar"
    if kept.exists():
        return kept
    if os.geteuid() != 0:
        raise LabError("building the driver's modules needs root: sudo make lab (or bring build/lab/modules from where they were built)")
    need(GIB, "building the driver's modules")
    say("building the driver's kernel modules, at this machine's speed (5 min)")
    part = BUILD / "modules" / f".root.{os.getpid()}"
    try:
        part.mkdir(parents=True)
        unpack(image, part)
        _build(part, archive)
        _keep(part, archive, kept)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return kept


def unpack(image: Path, root: Path) -> None:
    """The files of an image's disk, without mounting it. Device nodes are left out."""
    disk = f"{image / 'disk.raw'}?offset={ROOT_SECTOR * 512}"
    log, environment = LOGS / "rdump.log", {**os.environ, "PATH": PATHS}
    argv = ["debugfs", "-R", f"rdump / {root}", disk]
    run(argv, "unpacking the guests' disk", deadline=BUILD_SECONDS, log=log, env=environment)
    if not (root / "usr/bin/dpkg").exists():
        raise LabError(f"unpacking the guests' disk: debugfs left no system in {root} (log: {log})")


def _build(root: Path, archive: Archive) -> None:
    script = CHROOT.replace("SUITE", SUITE).replace("COMPONENTS", " ".join(COMPONENTS)).replace("NAMES", " ".join(DRIVER))
    alone = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    argv = [*alone, "sh", "-c", script, "sh", str(root), str(archive.home), archive.kernel]
    run(argv, "building the driver's modules", deadline=BUILD_SECONDS, log=LOGS / "modules.log", env={**os.environ, "PATH": PATHS})


def _keep(root: Path, archive: Archive, kept: Path) -> None:
    tree = root / "var/lib/dkms"
    built = [path.parents[1] for path in tree.glob(f"nvidia*/*/{archive.kernel}/*/module")]
    if not built:
        raise LabError(f"DKMS built nothing for kernel {archive.kernel} (log: {LOGS / 'modules.log'})")
    part = kept.with_suffix(f".{os.getpid()}")
    try:
        run(["tar", "-C", tree, "-cf", part, *(path.relative_to(tree) for path in built)], "keeping the driver's modules", deadline=600)
        part.rename(kept)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
