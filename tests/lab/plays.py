# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection's playbooks as an engineer runs them: to their end, or watched, timed, and killed at a step."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import typing as t
import uuid
from pathlib import Path

from lab import process
from lab.errors import LabError
from lab.places import LOGS
from lab.site import Site

# In the environment of a play, so that its workers are found although they lead sessions of their own.
PLAY_MARK = "GPUOPS_LAB_PLAY"
TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(.*?)\] \*+$")
REASON = re.compile(r"^(?:fatal|failed|ERROR|\[ERROR\]).*", re.MULTILINE)
PLAY_SECONDS = 3600.0


class Task(t.NamedTuple):
    """A task of a play: when it began, in seconds of ``time.time()``, and how many seconds went by until the next began."""

    name: str
    began: float
    seconds: float


class Play:
    """A playbook that runs. ``lines``: what it says, each with its moment in seconds of ``time.time()``."""

    def __init__(self, site: Site, playbook: str, *arguments: str) -> None:
        self.site, self.playbook, self.arguments = site, playbook, arguments
        self.lines: list[tuple[float, str]] = []
        self.began = time.time()
        self._mark = uuid.uuid4().hex
        program = Path(sys.executable).parent / "ansible-playbook"
        self._started = subprocess.Popen(
            [str(program), "-i", str(site.inventory), f"gpuops.fleet.{playbook}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={
                **os.environ,
                "ANSIBLE_PIPELINING": "true",
                "ANSIBLE_NOCOLOR": "true",
                "ANSIBLE_INJECT_FACT_VARS": "false",
                # Else a task's name is told with its first result: steps would be timed, and met, one too late.
                "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "true",
                "PYTHONUNBUFFERED": "1",
                PLAY_MARK: self._mark,
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Keeps what it says, and shows whoever looks how far it is."""
        LOGS.mkdir(parents=True, exist_ok=True)
        if self._started.stdout:
            with self._started.stdout as said, self._now.open("w", encoding="utf-8") as now:
                for line in said:
                    self.lines.append((time.time(), line.rstrip("\n")))
                    print(f"{time.time() - self.began:6.1f} {line}", end="", file=now, flush=True)

    @property
    def _now(self) -> Path:
        """What it has said so far, each line with its second; it goes when the whole is in the log."""
        return LOGS / f"{self.site.scenario}-{self.playbook}-{self._started.pid}.now"

    @property
    def text(self) -> str:
        """All that it said."""
        return "\n".join(line for _moment, line in list(self.lines))

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._started.poll() is not None

    def end(self, seconds: float = PLAY_SECONDS) -> int:
        """Waits for its end; its exit status. LabError when that takes too long; then it does not run any more."""
        try:
            status = self._started.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise LabError(f"{self.playbook} did not end within {seconds:.0f} s; its last task: {self.task()}") from error
        # A kept connection of ssh may hold the other end of the pipe.
        self._reader.join(5)
        self._log(f"ended with {status}")
        return status

    def wait_for(self, pattern: str, seconds: float = PLAY_SECONDS) -> bool:
        """Waits until a line of it matches; False when it ends without one."""
        wanted, seen, deadline = re.compile(pattern), 0, time.monotonic() + seconds
        while time.monotonic() < deadline:
            over = self.ended
            lines = list(self.lines)
            if any(wanted.search(line) for _moment, line in lines[seen:]):
                return True
            seen = len(lines)
            if over:
                return False
            time.sleep(0.05)
        raise LabError(f"{self.playbook} said nothing like '{pattern}' within {seconds:.0f} s")

    def rest(self, seconds: float) -> None:
        """Lets some time go by, less when it ends before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(seconds)

    def kill(self) -> None:
        """Ends it and everything that it started at once, as the death of the controller does; kept connections live on."""
        deadline = time.monotonic() + process.SECONDS
        while found := self._processes():
            if time.monotonic() > deadline:
                raise LabError(f"{self.playbook}: these processes do not end: {found}")
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        self._started.wait(process.SECONDS)
        self._reader.join(5)
        self._log("killed")

    def _processes(self) -> list[int]:
        """What runs of it. ssh's kept connections ([mux]) serve others as well."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"{PLAY_MARK}={self._mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                if (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z":
                    continue
                if b"[mux]" not in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:  # it ended while it was looked at
                continue
        return found

    def task(self) -> str:
        """The task that it is in, or was in last."""
        return next((found[1] for _moment, line in reversed(self.lines) if (found := TASK.match(line))), "none")

    def tasks(self) -> list[Task]:
        """Its tasks in their order."""
        begun = [(moment, found[1]) for moment, line in self.lines if (found := TASK.match(line))]
        ends = [*(moment for moment, _name in begun[1:]), self.lines[-1][0] if self.lines else self.began]
        return [Task(name, moment, end - moment) for (moment, name), end in zip(begun, ends, strict=True)]

    def reasons(self) -> list[str]:
        """Lines with which tasks failed."""
        return REASON.findall(self.text)

    def _log(self, how: str) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        passed = time.time() - self.began
        with (LOGS / f"{self.site.scenario}-plays.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {self.playbook} {' '.join(self.arguments)}\n{self.text}\n{how} after {passed:.0f} s\n\n")
        self._now.unlink(missing_ok=True)


def play(site: Site, playbook: str, *arguments: str) -> tuple[int, str]:
    """Exit status and output of one of the collection's playbooks; kept in a log as well."""
    started = Play(site, playbook, *arguments)
    return started.end(), started.text


def must_play(site: Site, playbook: str, *arguments: str) -> str:
    """As ``play``; LabError when it fails."""
    status, text = play(site, playbook, *arguments)
    if status != 0:
        reason = REASON.search(text)
        raise LabError(f"{playbook} failed: {(reason.group(0) if reason else text)[:600]}")
    return text
