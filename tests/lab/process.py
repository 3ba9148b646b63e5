# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever the lab starts, it ends: by the group, by a file with the number, or by a mark that every child inherits.

QEMU, the registry and ssh's kept connections leave their parents on purpose, and Ansible's workers lead sessions of their own. So every
process of a run has that run's mark in its environment, where the kernel shows it for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
import typing as t
import uuid
from pathlib import Path

from lab.errors import LabError
from lab.places import BUILD

MARK = "GPUOPS_LAB"
# `test`: must not outlive `run.py test`. `hand`: a person booted it and may want to keep it.
TEST, HAND = "test", "hand"
# Seconds between asking a process to end and ending it, and to wait for the kernel after that.
GRACE = 15.0
SECONDS = 20.0


class Stopped(BaseException):
    """A signal asked the lab to end. No Exception: nothing may take it for a failure that can be lived with."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def stop_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise Stopped, once: whoever cleans up after the first is not disturbed by a second."""
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _frame: object) -> None:
        _deafen(numbers)
        raise Stopped(number)

    for number in numbers:
        signal.signal(number, stop)


@contextlib.contextmanager
def undisturbed() -> t.Iterator[None]:
    """Signals that ask to end do nothing meanwhile: for cleaning up, which ends by itself."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _deafen(number for number, handler in kept.items() if handler is not signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _deafen(numbers: t.Iterable[int]) -> None:
    for number in numbers:
        # A function, not SIG_IGN: children would inherit that one.
        signal.signal(number, lambda _number, _frame: None)


def attend(
    argv: t.Sequence[str], *, seconds: float | None = None, given: str | None = None, **options: t.Any
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a session of its own and waits for it; when that is interrupted or takes too long, all of its group ends.

    OSError when it does not start, TimeoutExpired after ``seconds``.
    """
    if given is None:
        options.setdefault("stdin", subprocess.DEVNULL)
    else:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(argv, text=True, errors="replace", start_new_session=True, **options) as started:
        try:
            out, err = started.communicate(given, timeout=seconds)
        except BaseException:
            _end_group(started)
            raise
    return subprocess.CompletedProcess(argv, started.returncode, out or "", err or "")


def _end_group(started: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        # The group's number is the leader's, and stays taken while a member lives.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(GRACE)


# --- by number --------------------------------------------------------------------------------------------------------


def running(pidfile: Path, marks: Path) -> int | None:
    """The number in ``pidfile`` while its process has the path ``marks`` in its command line; never another process with that number."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(pidfile.read_text(encoding="utf-8"))
        if os.fsencode(marks) in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def kill(pidfile: Path, marks: Path) -> None:
    """Ends it at once; nothing happens when it does not run. LabError when it cannot be ended."""
    pid = running(pidfile, marks)
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if running(pidfile, marks) != pid:
                return  # it ended before the handle was taken, which may be somebody else's
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            # The handle tells when its files and sockets are closed; its command line is empty before that.
            if not select.select([handle], [], [], SECONDS)[0]:
                raise LabError(f"process {pid} ({pidfile}) does not end")
        except PermissionError as error:
            raise LabError(f"process {pid} ({pidfile}) belongs to another user: end it as that user or as root") from error
        finally:
            os.close(handle)


# --- by mark ----------------------------------------------------------------------------------------------------------


def mark(kind: str) -> tuple[str, bool]:
    """The mark that children of this process have from now on, and whether this run is part of another one of this checkout."""
    kept = os.environ.get(MARK, "")
    if kept.endswith(f":{BUILD}"):
        return kept, True
    os.environ[MARK] = own = f"{kind}:{uuid.uuid4().hex}:{BUILD}"
    return own, False


def end_tests() -> int:
    """Ends what a ``run.py test`` of this checkout left behind when it was killed; how many processes that were."""
    return end(lambda found: found.startswith(f"{TEST}:") and found.endswith(f":{BUILD}"))


def end_all() -> int:
    """Ends every process of this checkout's lab, also what somebody booted by hand."""
    return end(lambda found: found.endswith(f":{BUILD}"))


def end(wanted: t.Callable[[str], bool]) -> int:
    """Ends processes whose mark is ``wanted``, with their children, never this one and those that it comes from; how many they were.

    First they are asked, so that they can clean up; after GRACE seconds they are not. LabError when one stays.
    """
    ended: set[int] = set()
    asked: set[int] = set()
    start = time.monotonic()
    while found := marked(wanted):
        ended |= found
        passed = time.monotonic() - start
        if passed > GRACE + SECONDS:
            raise LabError(f"these processes do not end: {' '.join(str(pid) for pid in sorted(found))}")
        for pid in found - asked if passed < GRACE else found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM if passed < GRACE else signal.SIGKILL)
        asked |= found
        time.sleep(0.05)
    return len(ended)


def marked(wanted: t.Callable[[str], bool]) -> set[int]:
    """Numbers of living processes whose mark is ``wanted``, and of all that come from them."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # It may end while it is looked at, or be another user's.
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            if state == "Z":
                continue  # it ended, and only its parent can put it away
            parents[int(entry.name)] = int(parent)
            if (value := _mark_of(entry)) is not None and wanted(value):
                found.add(int(entry.name))
    roots = frozenset(found)
    found |= {pid for pid in parents if roots & _above(pid, parents)}
    return found - {os.getpid()} - _above(os.getpid(), parents)


def _above(pid: int, parents: t.Mapping[int, int]) -> set[int]:
    """Where a process comes from, up to the first."""
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found


def _mark_of(process: Path) -> str | None:
    for entry in (process / "environ").read_bytes().split(b"\0"):
        name, _equals, value = entry.partition(b"=")
        if name == MARK.encode():
            return os.fsdecode(value)
    return None
