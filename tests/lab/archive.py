# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive of Debian's packages for a guest that reaches no mirror: what turns its bare image into a host with driver and engine.

The packages are Debian's own, fetched once by apt of this machine, which holds them against Debian's keys. They lie as in Debian, by
component, and are signed by a key of the lab's own, made for this archive and then thrown away. Guests reach it at ``ADDRESS``.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import os
import re
import shutil
import sys
import tempfile
import typing as t
from pathlib import Path

from lab.commands import need, run
from lab.errors import LabError
from lab.image import SUITE
from lab.packages import APT_SECONDS, Mirror, own_sources
from lab.places import BUILD
from lab.server import Server

COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
# What the roles install from Debian, and what Ansible's modules need; apt adds what these need. Of R550, Debian's newest.
DRIVER = ("nvidia-kernel-dkms", "nvidia-persistenced", "nvidia-smi", "libcuda1", "libnvidia-cfg1")
WANTED = ("python3-apt", "dkms", "gcc", "linux-headers-amd64", *DRIVER, "python3-pynvml", "docker.io", "docker-cli", "docker-compose")
# What a guest calls it, where that is in QEMU's own network, and the key in the guest.
NAME, ADDRESS, KEY = "debian.example", ("10.0.2.101", 80), "/etc/apt/keyrings/lab.asc"
GIB = 2.0

Say = t.Callable[[str], None]


class Archive(t.NamedTuple):
    """An archive on this machine. ``kernel``: the release of the image's kernel; ``driver``: version of the driver's package."""

    home: Path
    kernel: str
    driver: str

    @property
    def key(self) -> Path:
        """The key that signs it."""
        return self.home / "key.asc"


def ensure(image: Path, mirror: Mirror, say: Say) -> Archive:
    """The archive for an image, fetched and signed when it never was before. LabError in one line; then nothing half done is left."""
    status = (image / "status").read_bytes()
    found = re.search(r"^Package: linux-image-(\d\S*)$", status.decode(), re.MULTILINE)
    if not found:
        raise LabError(f"{image}/status names no kernel: remove {image}, and it is built anew")
    kernel = found[1]
    digest = hashlib.sha256(repr((WANTED, COMPONENTS, mirror)).encode() + status + Path(__file__).read_bytes())
    home = BUILD / "archive" / digest.hexdigest()[:16]
    if not (home / "key.asc").exists():
        need(GIB, "the archive of packages")
        say("fetching Debian's driver and engine for the guests (2 min)")
        part = home.with_name(f".{home.name}.{os.getpid()}")
        try:
            records = _fetch(part, image / "status", mirror, (*WANTED, f"linux-headers-{kernel}"))
            _index(part, records)
            _sign(part)
            part.rename(home)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return Archive(home, kernel, _driver(home))


def _driver(home: Path) -> str:
    index = (home / "dists" / SUITE / "non-free/binary-amd64/Packages").read_text(encoding="utf-8")
    found = re.search(rf"^Package: {DRIVER[0]}\n(?:.+\n)*?Version: (\S+)$", index, re.MULTILINE)
    if not found:
        raise LabError(f"{home} has no {DRIVER[0]}: remove it, and it is made anew")
    return found[1]


def _fetch(part: Path, status: Path, mirror: Mirror, wanted: t.Sequence[str]) -> list[str]:
    """Fetches what dpkg's ``status`` lacks of ``wanted`` into ``part/pool``, as apt decides; the records of Debian's own index."""
    home = BUILD / "apt-bare"
    sources = own_sources(home, mirror, [f"{SUITE} {' '.join(COMPONENTS)}"])
    options = [
        *sources, "-o", f"Dir::State::status={status}", "-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
        "-o", "APT::Install-Recommends=false", "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    run(["apt-get", "-qq", *options, "update"], f"reading the package lists of {SUITE}", deadline=APT_SECONDS)
    install = ["apt-get", "-qq", "--yes", *options, "--download-only", "install", *wanted]
    run(install, "fetching packages for the guests", deadline=APT_SECONDS)
    chosen = run(["apt-get", *options, "--simulate", "install", *wanted], "asking apt what it chose", deadline=APT_SECONDS)
    # Inst NAME [OLD] (VERSION ORIGIN [ARCHITECTURE]) [...]
    names = [f"{name}={version}" for name, version in re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", chosen, re.MULTILINE)]
    shown = run(["apt-cache", *options, "--no-all-versions", "show", *names], "asking apt for its records", deadline=APT_SECONDS)
    records = [record.strip("\n") for record in re.split(r"\n\n+", shown) if "\nFilename: " in record]
    for record in records:
        place = part / _field(record, "Filename")
        place.parent.mkdir(parents=True, exist_ok=True)
        version = _field(record, "Version").replace(":", "%3a")
        shutil.copy(home / "cache/archives" / f"{_field(record, 'Package')}_{version}_{_field(record, 'Architecture')}.deb", place)
    return records


def _field(record: str, name: str) -> str:
    found = re.search(rf"^{name}: (.+)$", record, re.MULTILINE)
    if not found:
        raise LabError(f"apt's record of {record.splitlines()[0]} has no {name}")
    return found[1]


def _index(part: Path, records: t.Sequence[str]) -> None:
    """Writes ``Packages`` of each component and the ``Release`` that has their hashes."""
    suite = part / "dists" / SUITE
    lines = [
        "Origin: Debian", "Label: Debian", "Suite: stable", f"Codename: {SUITE}", f"Date: {email.utils.formatdate(usegmt=True)}",
        "Architectures: amd64", f"Components: {' '.join(COMPONENTS)}", "Description: what the lab's guests need of Debian", "SHA256:",
    ]  # fmt: skip
    for component in COMPONENTS:
        listed = [record for record in records if _field(record, "Filename").split("/")[1] == component]
        path = suite / component / "binary-amd64/Packages"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{record}\n\n" for record in listed), encoding="utf-8")
        data = path.read_bytes()
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {path.relative_to(suite)}")
    (suite / "Release").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sign(part: Path) -> None:
    """Signs ``Release`` by a key of its own, whose public half stays; the private one goes with its directory."""
    suite = part / "dists" / SUITE
    # Not below build/: the path of gpg's socket may have 107 bytes only.
    with tempfile.TemporaryDirectory(prefix="gpuops-lab-") as ring:
        gpg = ["gpg", "--homedir", ring, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
        try:
            run([*gpg, "--quick-generate-key", "gpuops.fleet lab", "ed25519", "sign", "never"], "making the archive's key", deadline=120)
            run([*gpg, "--clearsign", "--output", suite / "InRelease", suite / "Release"], "signing the archive", deadline=120)
            run([*gpg, "--armor", "--output", part / "key.asc", "--export"], "keeping the archive's key", deadline=120)
        finally:
            with contextlib.suppress(LabError):
                run(["gpgconf", "--homedir", ring, "--kill", "all"], "ending gpg's agent", deadline=60)


def told(name: str) -> str:
    """Commands that put the archive in the place of a guest's other sources, and give it its name; they read the key."""
    lines = "Types: deb", f"URIs: http://{NAME}/", f"Suites: {SUITE}", "Components: main", f"Signed-By: {KEY}"
    quoted = " ".join(f"'{line}'" for line in lines)
    return " && ".join(
        [
            f"mkdir -p {Path(KEY).parent} && cat > {KEY}",
            "rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*",
            f"printf '%s\\n' {quoted} > /etc/apt/sources.list.d/debian.sources",
            f"echo '{ADDRESS[0]} {NAME}' >> /etc/hosts",
            f"hostname {name} && echo {name} > /etc/hostname",
        ]
    )


class Served(Server):
    """An archive that guests fetch from."""

    KIND, ASKED, OWN = "archive", "/key.asc", "archive"

    def __init__(self, home: Path, archive: Archive | None = None) -> None:
        super().__init__(home)
        self._archive = archive

    def _argv(self, port: int) -> list[str]:
        self.own.unlink(missing_ok=True)
        if self._archive:
            self.own.symlink_to(self._archive.home)
        return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(self.own), str(port)]
