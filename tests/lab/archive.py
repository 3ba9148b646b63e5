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
import subprocess
import sys
import tempfile
import time
import typing as t
import urllib.request
from pathlib import Path

from lab import process
from lab.commands import full_disk, last_line, need, run
from lab.errors import LabError
from lab.guest import free_ports
from lab.image import SUITE
from lab.packages import APT_SECONDS, Mirror, own_sources
from lab.places import BUILD

COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
# What the roles install from Debian, and what Ansible's modules need; apt adds what these need. Of R550, Debian's newest.
DRIVER = ("nvidia-kernel-dkms", "nvidia-persistenced", "nvidia-smi", "libcuda1", "libnvidia-cfg1")
WANTED = ("python3-apt", "dkms", "gcc", "linux-headers-amd64", *DRIVER, "python3-pynvml", "docker.io", "docker-cli", "docker-compose")
# What a guest calls it, where that is in QEMU's own network, and the key in the guest.
NAME, ADDRESS, KEY = "debian.example", ("10.0.2.101", 80), "/etc/apt/keyrings/lab.asc"
GIB = 2.0
SECONDS = 30.0
TRIES = 4

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


class Server:
    """Serves an archive by HTTP on 127.0.0.1; its process number is in ``home``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._pidfile = home / "archive.pid"
        self._log = home / "archive.log"
        # What tells its process from others with its number.
        self._link = home / "archive"

    def start(self, archive: Archive) -> int:
        """Starts it and waits until it answers; returns its port. LabError with its last words when it does not."""
        self.stop()
        self.home.mkdir(parents=True, exist_ok=True)
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(archive.home)
        said = ""
        for _try in range(TRIES):
            (port,) = free_ports(1)
            if self._serve(port):
                return port
            said = self._log.read_text(encoding="utf-8", errors="replace")
            if "Address already in use" not in said:
                break
        raise LabError(f"the archive did not answer: {full_disk(said) or last_line(said)} (log: {self._log})")

    def _serve(self, port: int) -> bool:
        argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(self._link), str(port)]
        with self._log.open("w", encoding="utf-8") as file:
            started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        answers = False
        try:
            self._pidfile.write_text(f"{started.pid}\n", encoding="utf-8")
            answers = _answers(port, started)
        finally:
            if not answers:
                with contextlib.suppress(ProcessLookupError):
                    started.kill()
                started.wait()
        started.returncode = 0  # it outlives this process, and nobody waits for it
        return answers

    def stop(self) -> None:
        """Ends it; nothing happens when it does not run."""
        process.kill(self._pidfile, self._link)


def _answers(port: int, started: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/key.asc", timeout=2):
                return started.poll() is None
        except OSError:
            time.sleep(0.2)
    return False
