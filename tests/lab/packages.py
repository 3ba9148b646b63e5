# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Debian packages that the lab needs on this machine, and the mirror that its guests are built from: the one that apt uses here."""

from __future__ import annotations

import os
import shutil
import typing as t
from dataclasses import dataclass
from pathlib import Path

from lab.commands import run
from lab.errors import LabError
from lab.places import BUILD, LOGS

# What the lab starts, and the package that has it.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "sfdisk": "fdisk",
    "mke2fs": "e2fsprogs",
    "socat": "socat",
    "ssh": "openssh-client",
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "gpg": "gpg",
    "gpg-agent": "gpg-agent",
    "gpgconf": "gpgconf",
}
FILES = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc": "fonts-wqy-zenhei",
}
# The administrator's programs are not on every user's PATH.
PATHS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
# QEMU before this major release emulates cmpxchg16b wrongly; Debian 12 has the newer one in its backports.
GOOD_QEMU = 10
# A mirror that answers slowly is one thing, one that never does another.
APT_SECONDS = 1200.0


@dataclass(frozen=True)
class Mirror:
    """A Debian mirror: its address, and the file with the keys that sign it."""

    uri: str
    keyring: str = "/usr/share/keyrings/debian-archive-keyring.gpg"


def missing() -> list[str]:
    """Packages whose program or file is not here, by name."""
    programs = [package for program, package in PROGRAMS.items() if not shutil.which(program, path=PATHS)]
    files = [package for path, package in FILES.items() if not Path(path).exists()]
    return sorted({*programs, *files})


def install(say: t.Callable[[str], None]) -> None:
    """Installs what is missing when this is root; otherwise LabError with the one command that does it."""
    wanted = missing()
    if not wanted:
        return
    if not shutil.which("apt-get"):
        raise LabError(f"the lab needs these Debian packages, and this machine has no apt-get: {' '.join(wanted)}")
    if os.geteuid() != 0:
        raise LabError(f"packages are missing: sudo apt-get install --no-install-recommends {' '.join(wanted)}")
    say(f"installing {' '.join(wanted)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    lock = ["-o", "DPkg::Lock::Timeout=300"]
    run(["apt-get", "-qq", "update"], "reading the package lists", env=environment, deadline=APT_SECONDS)
    newer = _backports() if "qemu-system-x86" in wanted else []
    if newer:
        run(["apt-get", "-qq", *newer, "update"], "reading the package lists of backports", env=environment, deadline=APT_SECONDS)
    argv = ["apt-get", "-qq", "--yes", "--no-install-recommends", *lock, *newer, "install", *wanted]
    run(argv, "installing packages", log=LOGS / "apt.log", env=environment, deadline=APT_SECONDS)
    if still := missing():
        raise LabError(f"apt-get installed everything, and yet these are missing: {' '.join(still)}")


def _backports() -> list[str]:
    """Options that let apt-get take QEMU from this release's backports, the machine's own lists unchanged; [] when there is no need."""
    system = _os_release()
    release = system.get("VERSION_CODENAME", "")
    candidate = run(["apt-cache", "policy", "qemu-system-x86"], "asking apt for QEMU's version", deadline=60)
    version = next((line.split(":", 1)[1].strip() for line in candidate.splitlines() if line.strip().startswith("Candidate:")), "")
    if major(version.split(":")[-1]) >= GOOD_QEMU or not release or system.get("ID") != "debian":
        return []
    found = mirror()
    sources = own_sources(BUILD / "apt", found, [f"{suite} main" for suite in (release, f"{release}-backports")])
    return [*sources, "-o", f"APT::Default-Release={release}-backports"]


def own_sources(home: Path, found: Mirror, suites: t.Sequence[str]) -> list[str]:
    """Options with which apt-get reads these suites (``bookworm main``) of a mirror and nothing else, and keeps them below ``home``."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    listing = home / "sources.list"
    listing.write_text("".join(f"deb [signed-by={found.keyring}] {found.uri} {suite}\n" for suite in suites), encoding="utf-8")
    options = {"Dir::Etc::SourceList": listing, "Dir::Etc::SourceParts": "/dev/null", "Dir::State::Lists": home / "lists"}
    return [word for name, value in {**options, "Dir::Cache": home / "cache"}.items() for word in ("-o", f"{name}={value}")]


def unpack(package: str, suite: str, target: Path, home: Path) -> None:
    """Fetches a package of a suite (``trixie main``) and unpacks its files below ``target``; nothing is installed, no root is needed.

    LabError when there is no such package, no mirror, or this is no Debian.
    """
    if not shutil.which("apt-get") or not Path(Mirror.keyring).exists():
        raise LabError(f"the package {package} is not here, and this is no Debian to fetch it")
    sources = own_sources(home, mirror(), [suite])
    run(["apt-get", "-qq", *sources, "update"], f"reading the package lists of {suite}", deadline=APT_SECONDS)
    run(["apt-get", "-qq", *sources, "download", package], f"fetching {package}", cwd=home, deadline=APT_SECONDS)
    for found in sorted(home.glob(f"{package}_*.deb")):
        run(["dpkg-deb", "-x", str(found), str(target)], f"unpacking {package}", deadline=60)


def major(version: str) -> int:
    """First number of a version; 0 when there is none."""
    digits = version.strip().split(".", 1)[0]
    return int(digits) if digits.isdigit() else 0


def _os_release() -> dict[str, str]:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    return {key: value.strip('"') for key, value in (line.split("=", 1) for line in text.splitlines() if "=" in line)}


def mirror() -> Mirror:
    """The Debian mirror that apt of this machine reads its packages from. The variable LAB_MIRROR names another one."""
    if own := os.environ.get("LAB_MIRROR"):
        return Mirror(own)
    fields = ("REPO_URI", "COMPONENT", "LABEL", "RELEASE")
    answer = run(
        ["apt-get", "indextargets", "--format", "|".join(f"$({name})" for name in fields), "Created-By: Packages"],
        "asking apt for its mirror",
        deadline=60,
    )
    for line in answer.splitlines():
        uri, component, label, release = (*line.split("|"), "", "", "")[:4]
        # Without lists the label is unknown; then the address of the plain release has to do. A disc has one release only.
        if component == "main" and label in ("Debian", "$(LABEL)", "") and "-" not in release and not uri.startswith("cdrom:"):
            return Mirror(uri)
    raise LabError("apt of this machine names no Debian mirror: set LAB_MIRROR to the address of one")
