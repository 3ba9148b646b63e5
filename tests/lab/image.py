# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk that every guest starts from: Debian 13 out of packages, started once so that its own boot loader is on it.

It is kept below build/lab/images under the hash of its recipe: packages, files, and this module.
A guest writes to a copy-on-write layer of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import typing as t
from importlib import metadata
from pathlib import Path

from lab.commands import full_disk, need, run
from lab.errors import LabError
from lab.guest import Guest, Hardware
from lab.packages import PATHS, Mirror
from lab.places import IMAGES, LAB, LOGS

SUITE = "trixie"
# What boots, lets the lab in, and runs Ansible's modules.
BASE = (
    "linux-image-amd64", "grub-pc", "systemd", "systemd-sysv", "systemd-resolved", "dbus", "udev", "kmod", "initramfs-tools",
    "openssh-server", "iproute2", "ca-certificates", "python3",
)  # fmt: skip
PACKAGES = (
    *BASE, "curl", "docker.io", "docker-cli", "docker-compose",
    "mdevctl", "driverctl", "pciutils", "python3-apt", "python3-venv", "python3-yaml", "haproxy",
)  # fmt: skip
# Installing a package enables its service, and it is the role of a gateway that decides whether it runs.
DISABLED = ("haproxy.service",)
UNITS = ("systemd-networkd.service", "systemd-resolved.service", "ssh.service")
# Nothing in a guest needs these at a time that anybody chose.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer", "man-db.timer")
SIZE_GIB = 12
FREE_GIB = 6.0
# For one step of the build; a slow mirror is one thing, one that hangs another.
BUILD_SECONDS = 1800.0
# A BIOS boot partition for GRUB, then the root file system; in sectors of 512 bytes.
ROOT_SECTOR = 4096
PARTITIONS = f"""label: gpt
start=2048, size=2048, type=21686148-6449-6E6F-744E-656564454649
start={ROOT_SECTOR}, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4
"""
# The first boot: the boot loader gets on the disk by the guest's own means.
SEAL = "grub-install /dev/vda && update-grub"
SEALED = "systemctl is-system-running --wait"

Say = t.Callable[[str], None]


class Recipe(t.NamedTuple):
    """What an image is made of. ``ready``: it has an engine with its settings, and the Python package of a GPU host."""

    packages: tuple[str, ...]
    ready: bool

    @property
    def seal(self) -> str:
        """What its first boot does; an engine makes its directories once for all."""
        return " && ".join([SEAL, *(["docker info > /dev/null"] if self.ready else []), SEALED])


# A host that has everything but a driver and GPUs, and one that has nothing yet.
READY, BARE = Recipe(PACKAGES, ready=True), Recipe(BASE, ready=False)


def recipe_hash(recipe: Recipe = READY) -> str:
    """What the image is kept under: changes with packages, files, the pinned nvidia-ml-py and this module."""
    digest = hashlib.sha256(repr(recipe).encode())
    for path in sorted([Path(__file__), *(path for path in (LAB / "files").rglob("*") if path.is_file())]):
        digest.update(f"{path.relative_to(LAB)}\0".encode() + path.read_bytes())
    digest.update(metadata.version("nvidia-ml-py").encode())
    return digest.hexdigest()[:16]


def ensure(mirror: Mirror, say: Say, recipe: Recipe = READY) -> Path:
    """The image's directory (``disk.raw``, ``key``, ``vmlinuz``, ``initrd``, dpkg's ``status``), built when this recipe never was before.

    LabError in one line when it cannot be built; then nothing half done is left.
    """
    home = IMAGES / recipe_hash(recipe)
    if (home / "disk.raw").exists():
        return home
    if os.geteuid() != 0:
        raise LabError("building the guests' disk needs root: sudo make lab (or bring build/lab/images from a machine where it was built)")
    IMAGES.mkdir(parents=True, exist_ok=True)
    _remove_half_built()
    need(FREE_GIB, "the image")
    part = IMAGES / f".{home.name}.{os.getpid()}"
    root = part / "root"
    try:
        part.mkdir()
        say("building the guests' disk: packages (2 min)")
        _packages(root, mirror, recipe)
        _settle(root, part, recipe)
        say("building the guests' disk: first boot (1 to 2 min)")
        _disk(root, part / "disk.raw")
        shutil.rmtree(root)
        _seal(part, recipe)
        part.rename(home)
    except OSError as error:
        raise LabError(f"building the guests' disk: {full_disk(str(error)) or error}") from error
    finally:
        _remove(part)
    return home


def _remove_half_built() -> None:
    """What builds that were killed left: gigabytes."""
    for part in IMAGES.glob(".*"):
        if not Path(f"/proc/{part.name.rpartition('.')[2]}").exists():
            _remove(part)


def _remove(part: Path) -> None:
    # The kernel's files of a chroot may still be mounted there after a kill: never remove across a mount.
    if part.exists() and not _mounts_below(part):
        shutil.rmtree(part, ignore_errors=True)


def _packages(root: Path, mirror: Mirror, recipe: Recipe) -> None:
    argv = [
        "mmdebstrap", "--variant=minbase", "--quiet", "--skip=cleanup/reproducible", f"--include={','.join(recipe.packages)}",
        "--aptopt=APT::Install-Recommends \"false\"", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", "--mode=root", SUITE, str(root),
        f"deb [signed-by={mirror.keyring}] {mirror.uri} {SUITE} main",
    ]  # fmt: skip
    run(argv, "building the guests' disk", deadline=BUILD_SECONDS, log=LOGS / "mmdebstrap.log", env={**os.environ, "PATH": PATHS})


def _settle(root: Path, part: Path, recipe: Recipe) -> None:
    """Files, units, key, and for a ready host the Python package that it needs."""
    left_out = None if recipe.ready else shutil.ignore_patterns("docker")
    shutil.copytree(LAB / "files", root, dirs_exist_ok=True, ignore=left_out)
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    (root / "etc/machine-id").write_text("", encoding="utf-8")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    for unit in UNITS:
        link = wants / unit
        if not link.is_symlink():
            link.symlink_to(f"/usr/lib/systemd/system/{unit}")
    for unit in DISABLED:
        (wants / unit).unlink(missing_ok=True)
    for unit in MASKED:
        with contextlib.suppress(FileExistsError):
            (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", part / "key"], "making a key", deadline=60)
    home = root / "root/.ssh"
    home.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(part / "key.pub", home / "authorized_keys")
    if recipe.ready:
        _copy_nvml_package(next((root / "usr/local/lib").glob("python3*/dist-packages")))
    shutil.copy(root / "var/lib/dpkg/status", part / "status")
    for kind in ("vmlinuz", "initrd.img"):
        shutil.copy(next((root / "boot").glob(f"{kind}-*")), part / kind.removesuffix(".img"))


def _copy_nvml_package(target: Path) -> None:
    """nvidia-ml-py is plain Python: the files that pip put here serve the guest's interpreter as well."""
    for file in metadata.distribution("nvidia-ml-py").files or ():
        source = Path(str(file.locate()))
        if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / file)


def _disk(root: Path, disk: Path) -> None:
    with disk.open("wb") as file:
        file.truncate(SIZE_GIB * 2**30)
    environment = {**os.environ, "PATH": PATHS}
    run(["sfdisk", "--quiet", disk], "partitioning the guests' disk", input=PARTITIONS, deadline=60, env=environment)
    sectors = SIZE_GIB * 2**21 - ROOT_SECTOR - 2048
    options: list[str | Path] = ["-q", "-F", "-t", "ext4", "-L", "root", "-d", root, "-E", f"offset={ROOT_SECTOR * 512}"]
    run(["mke2fs", *options, disk, f"{sectors // 2}k"], "filling the guests' disk", deadline=BUILD_SECONDS, env=environment)


def _seal(part: Path, recipe: Recipe) -> None:
    guest = Guest("seal", part / "seal", part)
    try:
        guest.start(Hardware(), backing=None, kernel=True)
        guest.ssh(recipe.seal, "the image's first boot", log=LOGS / "seal.log")
        guest.power_off()
    finally:
        guest.kill()
    shutil.rmtree(part / "seal")


def _mounts_below(path: Path) -> bool:
    # The kernel writes a space as \040.
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return any(line.split()[1].replace("\\040", " ").startswith(f"{path}/") for line in mounts)
