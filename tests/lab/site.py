# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scenario's site: its guests, its registry, and the inventory that a platform engineer would have written for them.

``extensions/molecule/SCENARIO/lab.yml`` says what the guests are made of and where the site is: group variables and manifests,
in which ``${OCR_IMAGE}`` stands for the image by digest; a scenario without a site is its guests alone. ``images`` are further releases
of the OCR service that the registry gets, a guest with ``gateway: true`` is in the group ``gateways`` as well. Guests are in no common
network: ``calls: {GUEST: ADDRESS}`` lets one call another's ports at an address of its own. ``gitlab: true`` fetches the program that runs
pipelines before a guest is booted. ``bare: true``: guests have nothing but what lets the lab in, and reach a signed archive of Debian's
packages. ``devices: true``: guests are hosts of virtual machines, with PCI devices to give away and the lab's kernel modules.
Everything made of it lies below ``build/lab/sites/SCENARIO``.
"""

from __future__ import annotations

import concurrent.futures
import json
import re
import shlex
import shutil
import string
import subprocess
import typing as t
from functools import partial
from pathlib import Path

import yaml

from lab import archive, devices, gitlab, image, modules, packages
from lab.commands import last_line, plain, run
from lab.errors import LabError
from lab.guest import SSH_PORT, Guest, Hardware
from lab.ocr import build as ocr
from lab.places import BUILD, LOGS, REPOSITORY, SCENARIOS, SITES
from lab.registry import Registry

OCR_NAME = "claims/receipt-ocr"
SIMULATOR = BUILD / "simulator"
# What a guest's first boards are made by; the state's directory is the library's own default.
GPUS = "/var/lib/nvmlsim"

Say = t.Callable[[str], None]
# What a guest can call: address and port in QEMU's network, and the port of this machine that answers.
Call = tuple[str, int, int]


class Site:
    """The site of one scenario. LabError when there is no such scenario."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.source = SCENARIOS / scenario
        self.home = SITES / scenario
        if not (self.source / "lab.yml").exists():
            raise LabError(f"there is no scenario '{scenario}'; there are: {', '.join(scenarios())}")
        self.lab: dict[str, t.Any] = yaml.safe_load((self.source / "lab.yml").read_text(encoding="utf-8"))

    @property
    def recipe(self) -> image.Recipe:
        """What its guests' disk is made of."""
        if self.lab.get("devices"):
            return devices.RECIPE
        return image.BARE if self.lab.get("bare") else image.READY

    @property
    def inventory(self) -> Path:
        """The inventory's file."""
        return self.home / "hosts.yml"

    def guest(self, name: str) -> Guest:
        """The guest of this name, as it was booted. LabError when it was not."""
        return Guest.load(self.home / "guests" / name)

    def guests(self) -> list[Guest]:
        """Every guest that was booted and is not put away."""
        return [Guest.load(path.parent) for path in sorted((self.home / "guests").glob("*/guest.json"))]

    def up(self, say: Say) -> None:
        """Builds what is missing, boots the guests, gives them GPUs, writes the inventory. LabError in one line; then nothing runs."""
        self.down()
        if self.lab.get("gitlab"):
            gitlab.runner()
        prepared = prepare(say, self.recipe)
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        try:
            port = self._services_up(prepared.ocr) if "site" in self.lab and prepared.ocr else None
            calls: tuple[Call, ...] = ()
            if prepared.bare:
                calls = ((*archive.ADDRESS, archive.Served(self.home, prepared.bare.archive).start()),)
            self._guests_up(prepared.image, port, calls, say)
            for guest in self.guests():
                if prepared.bare:
                    prepared.bare.bring(guest)
                if prepared.devices:
                    devices.bring(guest, prepared.devices)
            self._write_inventory()
        except BaseException:
            self.down()
            raise

    def _services_up(self, packed: Path) -> int:
        """Starts the registry with the OCR service's image, and writes the manifests that name it; returns the registry's port."""
        port = Registry(self.home).start()
        images = {}
        for tag in ("lab", *self.lab.get("images", ())):
            digest = ocr.push(packed, f"127.0.0.1:{port}", OCR_NAME, tag)
            images[tag] = f"registry.example:5000/{OCR_NAME}@{digest}"
        shutil.copytree(SCENARIOS / self.lab["site"] / "site", self.home, dirs_exist_ok=True)
        self._images.write_text(json.dumps(images), encoding="utf-8")
        self._fill_in(images["lab"])
        return port

    @property
    def _images(self) -> Path:
        return self.home / "images.json"

    def image(self, tag: str) -> str:
        """An image of the registry by digest: ``lab`` is what the manifests begin with, the others are the scenario's ``images``."""
        images: dict[str, str] = json.loads(self._images.read_text(encoding="utf-8"))
        if tag not in images:
            raise LabError(f"the registry has no image '{tag}': name it under images in {self.source / 'lab.yml'}")
        return images[tag]

    def _fill_in(self, ocr_image: str) -> None:
        for manifest in (self.home / "manifests").glob("*.yml"):
            text = manifest.read_text(encoding="utf-8")
            manifest.write_text(string.Template(text).safe_substitute(OCR_IMAGE=ocr_image), encoding="utf-8")

    def _guests_up(self, base: Path, registry: int | None, calls: tuple[Call, ...], say: Say) -> None:
        """Boots them side by side; who calls others is booted after them, for their ports are known only then."""
        late = [name for name, wish in self.lab["guests"].items() if wish.get("calls")]
        for names in filter(None, ([name for name in self.lab["guests"] if name not in late], late)):
            self._round(names, base, registry, calls, say)

    def _peers(self, name: str) -> tuple[Call, ...]:
        """What a guest can call of others."""
        wished: dict[str, str] = self.lab["guests"][name].get("calls", {})
        return tuple(
            (address, inner, outer)
            for peer, address in wished.items()
            for inner, outer in self.guest(peer).ports.items()
            if inner != SSH_PORT
        )

    def _round(self, names: t.Sequence[str], base: Path, registry: int | None, calls: tuple[Call, ...], say: Say) -> None:
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            starts = [pool.submit(self._guest_up, name, base, registry, calls, say) for name in names]
            try:
                concurrent.futures.wait(starts, return_when=concurrent.futures.FIRST_EXCEPTION)
                for start in starts:
                    if start.done():
                        start.result()
            except BaseException:
                # The others would boot on for minutes: without its machine a boot fails at once.
                while concurrent.futures.wait(starts, timeout=1).not_done:
                    self.down()
                raise

    def _guest_up(self, name: str, base: Path, registry: int | None, calls: tuple[Call, ...], say: Say) -> None:
        wish = self.lab["guests"][name]
        home = self.home / "guests" / name
        hardware = Hardware(
            cpus=wish.get("cpus", 2),
            memory_mib=wish.get("memory_mib", 2048),
            ports=tuple(wish.get("ports", ())),
            registry=registry,
            calls=(*calls, *self._peers(name)),
            devices=devices.arguments(home) if self.lab.get("devices") else (),
        )
        guest = Guest(name, home, base)
        seconds = guest.start(hardware, backing=base / "disk.raw")
        say(f"{name}: answers after {seconds:.0f} s")
        if "boards" in wish:
            self._give_gpus(guest, wish["boards"])

    @staticmethod
    def _give_gpus(guest: Guest, boards: t.Sequence[str]) -> None:
        """Lays the simulated driver where a driver lies, and makes the GPUs. Tar over one connection, because each costs seconds."""
        pack = subprocess.Popen(["tar", "-C", str(SIMULATOR / "root"), "-cf", "-", "."], stdout=subprocess.PIPE)
        wishes = " ".join(f"--board {board}" for board in boards)
        steps = [
            "tar -C / -xf - --no-same-owner --keep-directory-symlink",
            "ldconfig",
            f"hostname {guest.name}",
            f"echo {guest.name} > /etc/hostname",
            f"simctl create {wishes} --seed {guest.name} --device-nodes on",
            # What it does at every boot, for this one, which had no GPUs yet.
            "systemctl daemon-reload && systemctl start nvmlsim-boot.service",
            "mkdir -p /run/cdi",
        ]
        with pack:
            guest.ssh(" && ".join(steps), "giving it GPUs", stdin=pack.stdout)

    def _write_inventory(self) -> None:
        hosts = {}
        for guest in self.guests():
            hosts[guest.name] = {
                "ansible_host": "127.0.0.1",
                "ansible_port": guest.ports[22],
                "ansible_user": "root",
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_ssh_common_args": shlex.join(guest.ssh_options()),
                "ansible_timeout": 120,
            }
        children: dict[str, t.Any] = {"gpu_hosts": {"hosts": hosts}}
        if gateways := [name for name in hosts if self.lab["guests"][name].get("gateway")]:
            children["gateways"] = {"hosts": {name: {} for name in gateways}}
        groups = {"all": {"children": children}}
        self.inventory.write_text(yaml.safe_dump(groups, sort_keys=False), encoding="utf-8")

    def down(self) -> None:
        """Ends every guest and the registry; what they wrote stays for a look."""
        failures = []
        ends: list[t.Callable[[], None]] = [partial(Guest.end, home) for home in sorted((self.home / "guests").glob("*/"))]
        for end in (*ends, Registry(self.home).stop, archive.Served(self.home).stop):
            try:
                end()
            except LabError as error:  # the others are to end all the same
                failures.append(str(error))
        if failures:
            raise LabError("; ".join(failures))


class Prepared(t.NamedTuple):
    """What every site is made of: the guests' image and the OCR service's archive; for bare guests what makes hosts of them as well.

    ``devices``: kernel modules for hosts of virtual machines, which run no service, so that there is no archive for these.
    """

    image: Path
    ocr: Path | None
    bare: Bare | None
    devices: Path | None = None


class Bare(t.NamedTuple):
    """What a bare guest gets: Debian's packages, and the driver's kernel modules as this machine built them."""

    archive: archive.Archive
    modules: Path

    def bring(self, guest: Guest) -> None:
        """Tells it of the archive, in the place of Debian's own address, and lays the modules where its DKMS looks for a build."""
        guest.ssh(archive.told(guest.name), "telling it of the archive", input=self.archive.key.read_text(encoding="utf-8"))
        with self.modules.open("rb") as pack:
            guest.ssh(modules.UNPACK, "bringing the driver's modules", stdin=pack)
        guest.ssh("cat > /usr/sbin/dkms && chmod 755 /usr/sbin/dkms", "standing in for builds", input=modules.STAND_IN)


def prepare(say: Say, recipe: image.Recipe = image.READY) -> Prepared:
    """Installs and builds what is missing here. LabError in one line."""
    if " " in str(REPOSITORY):
        raise LabError(f"the path of this checkout has a space, and make cannot build below one: {REPOSITORY}")
    packages.install(say)
    found = packages.mirror()
    disk = image.ensure(found, say, recipe)
    bare = None
    if recipe == image.BARE:
        packed = archive.ensure(disk, found, say)
        bare = Bare(packed, modules.ensure(disk, packed, say))
    if recipe == devices.RECIPE:
        return Prepared(disk, None, None, devices.ensure(disk, found, say))
    ocr_image = ocr.build(BUILD / "ocr", found, say)
    make: list[str | Path] = ["make", "--no-print-directory", "--silent", "-C", REPOSITORY / "tests" / "simulator"]
    run(
        [*make, "install", f"OUT={SIMULATOR / 'out'}", f"DESTDIR={SIMULATOR / 'root'}", "PYTHON=/usr/bin/python3"],
        "building the simulated driver",
        deadline=600,
    )
    return Prepared(disk, ocr_image, bare)


def scenarios() -> list[str]:
    """Names of all scenarios."""
    return sorted(path.parent.name for path in SCENARIOS.glob("*/lab.yml"))


def last_failure(log: Path) -> str:
    """The line of an Ansible log that says what failed; the last line when none does."""
    text = plain(log.read_text(encoding="utf-8", errors="replace"))
    # What run.py said when molecule called it; Ansible itself says only that it ended with 1.
    if said := re.search(r"\blab: (.+?)'?$", text, re.MULTILINE):
        return said[1].replace("''", "'")[:600]
    # Molecule draws a line beside what Ansible says, and wraps it.
    lines = "\n".join(line.strip(" │") for line in text.splitlines())
    errors = re.findall(r"^\[ERROR\]: (.+?)\n(?:Origin:|\n)", lines, re.MULTILINE | re.DOTALL)
    errors = errors or re.findall(r"^fatal: .+", lines, re.MULTILINE)
    return " ".join((errors or [last_line(lines)])[-1].split())[:600]


def log_of(scenario: str) -> Path:
    """Where a scenario's run is kept."""
    return LOGS / f"{scenario}.log"
