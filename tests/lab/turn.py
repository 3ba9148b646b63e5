# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of the lab at a time in a checkout: two would build the same image and end each other's guests. Other checkouts do not matter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import typing as t

from lab import process
from lab.errors import LabError
from lab.places import BUILD

LOCK = BUILD / "lock"


@contextlib.contextmanager
def turn(kind: str, what: str, say: t.Callable[[str], None]) -> t.Iterator[None]:
    """Inside, this checkout's lab is ours. After a ``process.TEST``, or after a failure, nothing that was started inside runs any more.

    ``what`` is told to whoever comes meanwhile: that one gets a LabError. Within another turn of ours (molecule calls us) it does nothing.
    """
    own, nested = process.mark(kind)
    if nested:
        yield
        return
    try:
        with _locked(what):
            keep = False
            try:
                if left := process.end_tests():
                    say(f"ended {left} processes that a killed run had left")
                yield
                keep = kind != process.TEST
            finally:
                if not keep:
                    with process.undisturbed():
                        process.end(lambda found: found == own)
    finally:
        os.environ.pop(process.MARK, None)


@contextlib.contextmanager
def _locked(what: str) -> t.Iterator[None]:
    """The kernel takes the lock back when its process ends, however that was."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise LabError(f"{holder} uses this checkout's lab: wait until it ends, or end it") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} ({what})\n")
        file.flush()
        yield
