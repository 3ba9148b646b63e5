# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that the lab starts: every failure is one line with the program's own last words, or the full disk behind it."""

from __future__ import annotations

import re
import shutil
import subprocess
import typing as t
from pathlib import Path

from lab import process
from lab.errors import LabError
from lab.places import BUILD

# With less than this nothing here works, whatever the program says.
FULL_MIB = 64
# strerror of ENOSPC and EDQUOT, which programs print as they are.
FULL = re.compile(r"No space left on device|Disk quota exceeded")
# A terminal's commands (ECMA-48) and other bytes that do not print: firmware and systemd write them to a serial line.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


def plain(text: str) -> str:
    """Text without colours and other things that do not print."""
    return _CONTROL.sub("", text.replace("\r", "\n"))


def last_line(text: str) -> str:
    """The last line that says something; a program's reason is usually there."""
    lines = [line.strip() for line in plain(text).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def free_mib(path: Path = BUILD) -> int:
    """Free MiB of the disk that has ``path``, or will have it."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free // 2**20


def need(gib: float, what: str) -> None:
    """LabError when less disk is free below the lab's directory."""
    free = free_mib()
    if free < gib * 1024:
        raise LabError(f"{what} needs {gib:g} GiB of free disk below {BUILD}, and {free / 1024:.1f} GiB are free")


def full_disk(said: str = "", path: Path = BUILD) -> str | None:
    """What to say of a full disk, when the one with ``path`` is, or when a program complained of one; else None."""
    free = free_mib(path)
    if free < FULL_MIB:
        return f"the disk is full: {free} MiB are free below {path}"
    line = next((line for line in said.splitlines() if FULL.search(line)), None)
    return f"a disk is full: {last_line(line)[:300]}" if line else None


def run(argv: t.Sequence[str | Path], what: str, *, log: Path | None = None, deadline: float | None = None, **options: t.Any) -> str:
    """Standard output of ``argv``. LabError with ``what`` and the program's last line when it fails, with ``log`` named if it has one.

    ``log``: a file that gets everything the program writes, instead of memory. ``deadline`` in seconds. ``input``: text for it to read.
    """
    words = [str(word) for word in argv]
    given = options.pop("input", None)
    try:
        if log is None:
            done = process.attend(words, seconds=deadline, given=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
            said, out = done.stderr if done.stderr.strip() else done.stdout, done.stdout
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as file:
                done = process.attend(words, seconds=deadline, given=given, stdout=file, stderr=subprocess.STDOUT, **options)
            said = out = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise LabError(f"{what}: there is no {error.filename or words[0]} here") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{what}: {words[0]} did not end within {deadline:.0f} s{_named(log)}") from error
    except OSError as error:
        raise LabError(f"{what}: {full_disk(error.strerror or '') or error.strerror or error}") from error
    if done.returncode != 0:
        how = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
        raise LabError(f"{what}: {words[0]} {how}: {full_disk(said) or last_line(said)}{_named(log)}")
    return out


def _named(log: Path | None) -> str:
    return f" (log: {log})" if log else ""
