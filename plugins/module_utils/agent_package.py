# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent as files: how it is packed on the controller, named, unpacked on the host and proven before it is taken into use.

It is the collection's own ``module_utils`` under its real import path. A release and the digest of its files make its name
(``0.2.0-3f0c9b1d2e4a``), so that a host which has it needs nothing, and two states of one release are told apart.

Each package has a virtual environment of its own, made by ``venv --system-site-packages --without-pip`` (which works on a Debian without
python3-venv): the host's Python and, where the distribution or the site installed it, its ``pynvml``. A wheel of nvidia-ml-py can travel in
the package instead. The code lies beside that environment in ``lib``, where a newer Python of the distribution still finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import sync_directory

PACKAGE = "ansible_collections/gpuops/fleet/plugins/module_utils"
PROGRAM = "gpuops-fleet-agent"
CURRENT = "current"
_SHORT = 12
_NAME = re.compile(r"\d+\.\d+\.\d+\S*-[0-9a-f]{12}")
_SECONDS = 120.0  # for one command; a venv takes a few seconds on a slow disk
_PIP_SECONDS = 600.0
_LEAST_PYTHON = (3, 9)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: the same files make the same archive
# `-I`: neither the environment nor the directory in which root stands decides what is imported.
_LAUNCHER = """\
#!{python} -I
\"\"\"gpuops.fleet {name}: the agent of this host.\"\"\"
import sys

sys.path.insert(0, {lib!r})
from ansible_collections.gpuops.fleet.plugins.module_utils.agent import main

sys.exit(main())
"""
_ASK = "import sys; print(*sys.version_info[:2]); import pynvml; print(pynvml.__name__)"

Files = Mapping[str, bytes]


def digest_of(files: Files) -> str:
    """64 hex digits of the files' names and contents, in whatever order they come."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return total.hexdigest()


def name_of(version: str, digest: str) -> str:
    """What the package's directory is called."""
    return f"{version}-{digest[:_SHORT]}"


def with_packages(files: Files) -> dict[str, bytes]:
    """``module_utils`` by file name -> the same by import path, with the ``__init__.py`` of each package above.

    Without them a host that has Ansible's own ``ansible_collections`` package would import that one.
    """
    packed = {f"{PACKAGE}/{name}": content for name, content in files.items()}
    path = PurePosixPath(PACKAGE)
    for directory in (path, *path.parents[:-1]):
        packed.setdefault(f"{directory}/__init__.py", b"")
    return packed


def of_wheel(wheel: bytes, file: str) -> dict[str, bytes]:
    """The importable files of a wheel of nvidia-ml-py. FleetError when it is no such wheel."""
    hint = "give nvidia_ml_py-*-py3-none-any.whl, as `pip download --no-deps nvidia-ml-py` fetches it"
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            files = {name: archive.read(name) for name in archive.namelist() if name.endswith(".py") and ".dist-info/" not in name}
    except zipfile.BadZipFile as error:
        raise FleetError("this is not a wheel", file=file, field="wheel", hint=hint) from error
    if "pynvml.py" not in files or not all(_safe(name) for name in files):
        raise FleetError("this wheel does not bring pynvml.py", file=file, field="wheel", hint=hint)
    return files


def pack(files: Files) -> bytes:
    """The archive that travels: the same bytes for the same files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return stream.getvalue()


def unpack(path: Path, digest: str) -> dict[str, bytes]:
    """The files of an archive. FleetError when they are not those that ``digest`` was made from."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise FleetError(f"the agent's package did not arrive whole: {error}", hint="run again") from error
    if digest_of(files) != digest or not all(_safe(name) for name in files):
        raise FleetError("the agent's package did not arrive as it was sent", hint="run again")
    return files


def _safe(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts


# ---- on the host


def base_python() -> str:
    """The Python that a virtual environment is made of: the one below this process, itself in an environment or not."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def check_python(python: str, brings_pynvml: bool) -> None:
    """FleetError unless ``python`` is new enough and has ``pynvml``, or the package brings it. Asked before anything is written."""
    done = commands.run([python, "-I", "-c", _ASK], _SECONDS)
    words = done.output.split()
    if len(words) < 2 or not all(word.isdigit() for word in words[:2]):
        raise FleetError(f"{python} does not run: {done.words}", field="python", hint="give the path of a Python 3.9 or newer")
    if (int(words[0]), int(words[1])) < _LEAST_PYTHON:
        least = ".".join(map(str, _LEAST_PYTHON))
        raise FleetError(f"{python} is Python {words[0]}.{words[1]}", field="python", hint=f"give the path of a Python {least} or newer")
    if done.status and not brings_pynvml:
        hint = "install it there, or set host_agent_wheel to a wheel of nvidia-ml-py, or host_agent_pip: true"
        raise FleetError(f"{python} has no pynvml ({done.words})", field="python", hint=hint)


def works(directory: Path) -> str | None:
    """None when the package in ``directory`` runs, else what it says."""
    program = directory / "bin" / PROGRAM
    if not program.exists():
        return f"there is no {program}"
    try:
        done = commands.run([str(program), "version"], _SECONDS)
    except FleetError as error:
        return str(error)
    return done.words if done.status else None


def install(root: Path, name: str, files: Files, python: str, pip: bool) -> None:
    """Put a package into ``root/name``, whole or not at all, in place of what was there. FleetError when it does not run."""
    final, fresh = root / name, root / f".new-{name}"
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o755)
        for path, content in files.items():
            _write(fresh / "lib" / path, content, 0o644)
        _make_environment(fresh / "venv", python, pip)
        launcher = _LAUNCHER.format(python=final / "venv" / "bin" / "python", lib=str(final / "lib"), name=name)
        _write(fresh / "bin" / PROGRAM, launcher.encode(), 0o755)
        shutil.rmtree(final, ignore_errors=True)  # a package that does not run
        os.rename(fresh, final)
        sync_directory(root)
    except OSError as error:
        raise FleetError(f"cannot install the agent below {root}: {error.strerror}: {error.filename}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    _label(final)
    problem = works(final)
    if problem is not None:
        shutil.rmtree(final, ignore_errors=True)
        raise FleetError(f"the agent that was installed does not run: {problem}", hint="the one before is still in use")


def _make_environment(path: Path, python: str, pip: bool) -> None:
    without = [] if pip else ["--without-pip"]
    done = commands.run([python, "-I", "-m", "venv", "--system-site-packages", *without, str(path)], _PIP_SECONDS)
    if done.status:
        hint = "install the package that brings its module venv, with ensurepip (Debian: python3-venv), or set host_agent_pip: false"
        raise FleetError(f"{python} could not make a virtual environment: {done.words}", hint=hint if pip else None)
    if pip:
        argv = [
            str(path / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            "nvidia-ml-py",
        ]
        done = commands.run(argv, _PIP_SECONDS)
        if done.status:
            raise FleetError(f"pip could not install nvidia-ml-py: {done.words}", hint="set host_agent_wheel to a wheel of it instead")


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        os.fchmod(descriptor, mode)
        stream.write(content)
        stream.flush()
        os.fsync(descriptor)


def _label(directory: Path) -> None:
    """Where SELinux rules, files get the labels of their place: what was made elsewhere and renamed has those of that place."""
    restorecon = shutil.which("restorecon")
    if restorecon is not None:
        with contextlib.suppress(FleetError):  # whether the agent runs is asked next
            commands.run([restorecon, "-R", str(directory)], _SECONDS)


def current(root: Path) -> str | None:
    """The name of the package in use; None when there is none."""
    try:
        return os.path.basename(os.readlink(root / CURRENT))
    except OSError:
        return None


def use(root: Path, name: str) -> None:
    """Let ``current`` name this package, from one moment to the next."""
    fresh = root / f".{CURRENT}-new"
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        fresh.symlink_to(name)
        os.replace(fresh, root / CURRENT)
        sync_directory(root)
    except OSError as error:
        raise FleetError(f"cannot set {root / CURRENT}: {error.strerror}") from error


def packages(root: Path) -> list[str]:
    """Names of the packages in ``root``, also of one that was being made when its process died."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if _NAME.fullmatch(name.removeprefix(".new-") if name.startswith(".new-") else name))


def superfluous(root: Path, wanted: str) -> list[str]:
    """Packages that are neither ``wanted`` nor the one before it: the one in use now, else the youngest."""
    others = [name for name in packages(root) if name != wanted]
    whole = [name for name in others if not name.startswith(".")]
    in_use = current(root)
    before = in_use if in_use in whole else max(whole, key=lambda name: (root / name).stat().st_mtime, default=None)
    return [name for name in others if name != before]


def remove(root: Path, name: str) -> None:
    """Take a package away. FleetError when it cannot be removed."""
    try:
        shutil.rmtree(root / name)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FleetError(f"cannot remove {root / name}: {error.strerror}") from error


def release_of(name: str) -> tuple[int, ...]:
    """The release in a version or in a package's name, for comparison: ``0.2.0-3f0c9b1d2e4a`` -> (0, 2, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[-+]", name)[0])[:3])
