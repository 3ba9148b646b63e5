# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI specification of this host, from which a container engine knows what ``nvidia.com/gpu=<UUID>`` is.

NVIDIA's own refresh follows the driver and the toolkit, not MIG: after slices were made or destroyed the specification is stale.
``nvidia-ctk cdi generate`` makes the new one in a private directory, because an engine reads every file of a CDI directory at any
moment; the file that the engine reads is then replaced all at once, and only when the new text is another one.

Written by hand: finding ``kind`` and the device names in YAML. A host needs nothing but Python and nvidia-ml-py, hence no PyYAML.
The block style of the toolkit's releases is understood, with sorted keys or ``name`` first; anything else is refused, not guessed.

Sources: CDI specification (https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md); the toolkit's
``cmd/nvidia-ctk/cdi/generate`` and its CHANGELOG (names by UUID since 1.15.0, mounts in a steady order since 1.17.8).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import typing as t
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import CDI_KIND

# It takes a few seconds on a host of eight GPUs. What hangs longer waits for a driver that does not answer.
GENERATE_SECONDS = 120.0
# A process that waits in the driver may outlive its SIGKILL; nobody waits for it longer than this.
_KILL_SECONDS = 5.0
_ENDINGS = (".yaml", ".json")
_MODE, _DIRECTORY_MODE = 0o644, 0o755

# How the toolkit logs where nobody watches: time="..." level=error msg="..."
_LOGGED = re.compile(r'level=\w+ msg=("(?:[^"\\]|\\.)*"|\S+)')
# What CDI says of a specification whose only device is the sum of none: every GPU is in MIG mode and nothing is cut, or no GPU is left.
_NO_DEVICE = re.compile(r'"all".*empty device edits')
# A scalar of one line: in double quotes, in single quotes, or plain. No name that CDI allows needs an escape.
_SCALAR = re.compile(r"""\s*(?:"([^"\\]*)"|'([^']*)'|([^\s"'#&*!|>%@`\[\]{},-]\S*))\s*(?:\s#.*)?""")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Options:
    """``path``: what the engine reads. ``nvidia_ctk``: name or path. ``token``: of the lease that the caller holds, if any."""

    path: Path
    state_dir: Path
    nvidia_ctk: str = "nvidia-ctk"
    token: str | None = None
    check: bool = False


@dataclass(frozen=True)
class Result:
    """What was done, or with ``check`` would be done. Texts are empty where there is no file; ``devices`` are those of ``after``."""

    changed: bool
    before: str
    after: str
    devices: list[str]


class _NotASpecification(ValueError):
    """Says why."""


def refresh(options: Options) -> Result:
    """Make the file agree with the GPUs and slices that there are now. A host without any device gets no file: CDI knows no empty one.

    FleetError when the file is not ours to replace, when ``nvidia-ctk`` is missing, fails or writes nothing of use, or when the file
    cannot be written; the file is then as it was.
    """
    path = options.path
    if path.suffix not in _ENDINGS:
        raise FleetError(f"an engine does not read {path}", field="path", hint="its name must end in .yaml or .json")
    present = read_text(path)
    if present is not None and present.strip():
        _refuse_foreign(path, present)
    after, devices = _generate(options)
    changed = present != after
    if not options.check:
        if options.token:
            leases.check(options.state_dir, options.token)
        if changed:
            _replace(path, after)
    return Result(changed, present or "", after or "", devices)


def _refuse_foreign(path: Path, text: str) -> None:
    """FleetError when the file belongs to another device, or is no specification at all: somebody gave the wrong path."""
    try:
        kind = _kind(text)
    except _NotASpecification as error:
        hint = "look at it and remove it, or give another path"
        raise FleetError(f"{path} is no CDI specification ({error})", hint=hint) from error
    if kind != CDI_KIND:
        raise FleetError(f"{path} is the specification of {kind}, not of {CDI_KIND}", hint="give another path")


def _replace(path: Path, text: str | None) -> None:
    try:
        if text is None:
            path.unlink()
            return
        if not path.parent.is_dir():
            # not write_text's 0750: engines without root read it, too
            path.parent.mkdir(parents=True)
            path.parent.chmod(_DIRECTORY_MODE)
        mode = path.stat().st_mode & 0o777 if path.exists() else _MODE
    except OSError as error:
        raise FleetError(f"cannot write {path}: {error.strerror}") from error
    write_text(path, text, mode)


# ---- nvidia-ctk ----


def _generate(options: Options) -> tuple[str | None, list[str]]:
    """The specification of this moment and its devices; None and none when the host has no device to name."""
    name = options.nvidia_ctk
    command = shutil.which(name)
    if command is None:
        raise FleetError(f"there is no {name} on this host", hint="install nvidia-container-toolkit, or set fleet_gpu_access: nvidia")
    with tempfile.TemporaryDirectory(prefix="gpuops-cdi-") as directory:
        output = Path(directory) / ("nvidia" + options.path.suffix)
        code, words = _run([command, "cdi", "generate", f"--output={output}"], Path(directory) / "log")
        if code != 0 and _NO_DEVICE.search(words):
            return None, []
        if code != 0:
            raise FleetError(f"{name} cdi generate failed: {words or f'exit status {code}, without a word'}")
        text = read_text(output)
    if text is None or not text.strip():
        raise FleetError(f"{name} cdi generate ended well and wrote nothing")
    try:
        devices = read_devices(text)
    except ValueError as error:
        raise FleetError(f"{name} cdi generate wrote no CDI specification of {CDI_KIND}: {error}") from error
    if any(device != "all" for device in devices) and not any(device.startswith(("GPU-", "MIG-")) for device in devices):
        hint = "compose files name them by UUID: install nvidia-container-toolkit 1.15.0 or newer, or set fleet_gpu_access: nvidia"
        raise FleetError(f"{name} names devices by index only", hint=hint)
    return text, devices


def _run(command: t.Sequence[str], log: Path) -> tuple[int, str]:
    """Exit status and last words on stderr. They go through a file: a pipe would stay open with whatever the program started."""
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        except OSError as error:
            raise FleetError(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            code = process.wait(GENERATE_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
            hint = "see whether nvidia-smi answers"
            raise FleetError(f"{' '.join(command[:3])} gave no answer in {GENERATE_SECONDS:g} s", hint=hint) from error
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return code, next((_message(line) for line in reversed(lines) if line.strip()), "")


def _message(line: str) -> str:
    """What a line of the toolkit's log says, without time and level."""
    logged = _LOGGED.search(line)
    if logged is None:
        return line.strip()
    try:
        return str(json.loads(logged.group(1)))
    except ValueError:
        return logged.group(1)


# ---- the specification ----


def read_devices(text: str) -> list[str]:
    """The device names of an NVIDIA specification, YAML or JSON, in its order. ValueError says what is not as it should be."""
    kind, names = _from_json(text) if _is_json(text) else _from_yaml(text)
    if kind != CDI_KIND:
        raise _NotASpecification(f"its kind is {kind}" if kind else "it names no kind")
    if not names:
        raise _NotASpecification("it has no device")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _NotASpecification("a device has no name" if name is None else f"{name!r} is no name of a device")
    return [str(name) for name in names]


def _kind(text: str) -> str:
    """Whose specification it is; of the rest nothing is asked."""
    if _is_json(text):
        kind = _from_json(text)[0]
    else:
        lines = [line for line in text.splitlines() if line.startswith("kind:")]
        kind = _scalar(lines[0][len("kind:") :]) if lines else None
    if not kind:
        raise _NotASpecification("it names no kind")
    return kind


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _from_json(text: str) -> tuple[str | None, list[t.Any]]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _NotASpecification(f"it begins as JSON and is none: {error}") from error
    kind, devices = data.get("kind"), data.get("devices")
    names = [device.get("name") if isinstance(device, dict) else None for device in devices] if isinstance(devices, list) else []
    return kind if isinstance(kind, str) else None, names


def _from_yaml(text: str) -> tuple[str | None, list[str | None]]:
    """``kind`` and, for each item below ``devices``, the value of its own ``name`` (None without one)."""
    sections: dict[str, tuple[str, list[str]]] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.startswith(("---", "...")):
            continue
        if line[0] in " -":
            if not section:
                raise _NotASpecification(f"line {number} is not understood")
            sections[section][1].append(line)
            continue
        section, colon, value = line.partition(":")
        if not colon:
            raise _NotASpecification(f"line {number} is not understood")
        sections[section] = (value, [])
    kind, _below = sections.get("kind", ("", []))
    beside, block = sections.get("devices", ("", []))
    if beside.strip() not in ("", "[]"):
        raise _NotASpecification("its devices are not written as a block")
    return _scalar(kind), _item_names(block)


def _item_names(block: t.Sequence[str]) -> list[str | None]:
    """The value of ``name`` of each item of a YAML list of mappings. Deeper lines may hold names of other things."""
    names: list[str | None] = []
    dash = _column(block[0]) if block else 0
    field = -1  # column of the fields of the item at hand; -1 before its first
    for line in block:
        if _column(line) == dash and f"{line[dash:]} ".startswith("- "):
            names.append(None)
            field = -1
            line = f"{line[:dash]} {line[dash + 1 :]}"
        elif not names or _column(line) <= dash:
            raise _NotASpecification(f"'{line.strip()}' is not an item of its devices")
        if field < 0 and line.strip():
            field = _column(line)
        if _column(line) == field and line[field:].startswith("name:"):
            names[-1] = _scalar(line[field + len("name:") :])
    return names


def _column(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _scalar(text: str) -> str | None:
    """The value that stands behind a key on its line; None for anything but a plain or quoted word."""
    found = _SCALAR.fullmatch(text)
    return next((group for group in found.groups() if group is not None), None) if found else None
