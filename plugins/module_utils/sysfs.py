# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and writes below ``/sys`` that never hang the caller.

A write can wait in the kernel for ever: an unbind for whoever has the device open, a removal of a mediated device for its virtual machine.
Nothing ends such a write, SIGKILL included. So each is made by a child (``tee``), which is left to itself at the deadline. While it waits
it holds the device's lock, and the few files whose reading takes that lock (``driver_override_show``, ``sriov_numvfs_show`` in
drivers/pci of the kernel) would hang as well: they are read by a child, too. Newer kernels (6.12.107) let the override be read meanwhile,
and answer a probe with success, although nothing comes of it. So a child has in its environment what it writes: :func:`waiting` finds it.
"""

from __future__ import annotations

import os
import subprocess
import typing as t
from collections.abc import Callable
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

DEADLINE = 30.0
NO_OVERRIDE = "(null)"  # what the kernel prints for a text that is not set

_MARK = "GPUOPS_FLEET_WRITES"
_LOCKED = ("driver_override", "sriov_numvfs")
_CLOSED = "whoever uses it closes it"


class Stuck(FleetError):
    """The kernel has not answered by the deadline. ``pid``: the child that waits there still."""

    def __init__(self, message: str, pid: int, *, hint: str | None = None) -> None:
        self.pid = pid
        super().__init__(message, hint=hint)


class Sysfs:
    """A sysfs below ``root``; ``deadline`` in seconds for each access that may wait. Parts of a path are given one by one or joined."""

    def __init__(self, root: str = "/sys", deadline: float = DEADLINE, *, tee: str = "tee", cat: str = "cat") -> None:
        self.root = Path(root)
        self.deadline = deadline
        self._tee, self._cat = tee, cat

    def path(self, *parts: str) -> Path:
        """Where this is in the file system."""
        return self.root.joinpath(*parts)

    def has(self, *parts: str) -> bool:
        """Whether there is a file, a directory or a link's target."""
        return self.path(*parts).exists()

    def text(self, *parts: str) -> str | None:
        """The file's text without white space around it; ``""`` for one that is not set. None when it is not there or cannot be read.

        Stuck for a file whose device is locked by a write that waits.
        """
        path = self.path(*parts)
        if path.name in _LOCKED:
            if not os.path.lexists(path):
                return None
            status, output, _complaint = self._child([self._cat, str(path)], path, "", _CLOSED)
            text = output if status == 0 else None
        else:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # an attribute may answer with an error (EIO, ENODEV), or go away
                return None
        return None if text is None else ("" if text.strip() == NO_OVERRIDE else text.strip())

    def number(self, *parts: str) -> int | None:
        """The number that a file holds (decimal, or with 0x); None when it holds none."""
        try:
            return int(self.text(*parts) or "", 0)
        except ValueError:
            return None

    def link(self, *parts: str) -> str | None:
        """The last name of what a link leads to, as in ``vfio-pci`` for a device's ``driver``; None when it is not there."""
        try:
            return os.path.basename(os.readlink(self.path(*parts)))
        except OSError:
            return None

    def names(self, *parts: str) -> list[str]:
        """Sorted names in a directory; none when it is not there."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError:
            return []

    def write(self, *parts: str, text: str, until: Callable[[], str] | None = None) -> None:
        """Write one line; a line break is added. ``""`` is the empty line that clears an override.

        ``until``: asked only when the kernel does not answer: what has to happen first, as in ``process 12 (qemu) closes /dev/vfio/14``.
        FleetError with the kernel's own word when it refuses, Stuck when it does not answer.
        """
        path = self.path(*parts)
        if not path.exists():
            raise FleetError("the kernel has no such file", file=str(path))
        status, _output, complaint = self._child([self._tee, str(path)], path, f"{text}\n", until)
        if status != 0:
            raise FleetError(f"the kernel refused {text or 'an empty line'}: {_word(complaint, status)}", file=str(path))

    def _child(self, argv: t.Sequence[str], path: Path, text: str, until: Callable[[], str] | str | None) -> tuple[int, str, str]:
        """Exit status, output and complaint of a child. It is not ended at the deadline, because it cannot be."""
        pipes: dict[str, t.Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "LC_ALL": "C", **({_MARK: text.strip()} if text else {})}
        try:
            process = subprocess.Popen(list(argv), env=environment, cwd="/", start_new_session=True, **pipes)
        except OSError as error:
            raise FleetError(f"cannot run {argv[0]}: {error.strerror}") from error
        try:
            output, complaint = process.communicate(text.encode(), timeout=self.deadline)
        except subprocess.TimeoutExpired as error:
            _let_go(process)
            what = until() if callable(until) else until or _CLOSED
            raise Stuck(
                f"{path} has not answered in {self.deadline:g} s; process {process.pid} waits there until {what}", process.pid
            ) from error
        return process.returncode, output.decode(errors="replace"), complaint.decode(errors="replace")


def waiting(proc_root: str, text: str) -> tuple[int, str] | None:
    """Process and file of a write of this text that an earlier run left in the kernel; None when there is none."""
    wanted = f"{_MARK}={text}".encode()
    for name in _processes(proc_root):
        directory = Path(proc_root) / name
        try:
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                argv = (directory / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                return int(name), os.fsdecode(argv[-1])
        except OSError:  # it ended, or is another user's
            continue
    return None


def _processes(proc_root: str) -> list[str]:
    try:
        return [name for name in os.listdir(proc_root) if name.isdigit()]
    except OSError:
        return []


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Leave the child alone: our ends of its pipes are closed, and nobody waits for it."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    # A Popen that is dropped while its child lives complains of it; this one is meant to outlive us.
    process.returncode = 0


def _word(complaint: str, status: int) -> str:
    """The kernel's word out of ``tee: PATH: Device or resource busy``."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    return lines[-1].rpartition(": ")[2].strip() if lines else f"exit status {status}, without a word"
