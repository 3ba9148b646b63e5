# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that answers HTTP on 127.0.0.1 for a site's guests: started on a free port, asked until it answers, ended by its number."""

from __future__ import annotations

import abc
import contextlib
import os
import subprocess
import time
import typing as t
import urllib.request
from pathlib import Path

from lab import process
from lab.commands import full_disk, last_line
from lab.errors import LabError
from lab.guest import free_ports
from lab.packages import PATHS

SECONDS = 30.0
# Between the moment that a port is found free and the moment that the program takes it, somebody else may.
TRIES = 4


class Server(abc.ABC):
    """A program whose log and process number are in ``home``; it outlives the process that starts it."""

    # What it is to people, and the beginning of its files' names; the path that it answers when it serves.
    KIND: t.ClassVar[str]
    ASKED: t.ClassVar[str]
    # A file of its own, in its command line: it tells its process from others with its number.
    OWN: t.ClassVar[str]

    def __init__(self, home: Path) -> None:
        self.home = home
        self.own = home / self.OWN
        self._pidfile = home / f"{self.KIND}.pid"
        self._log = home / f"{self.KIND}.log"

    @abc.abstractmethod
    def _argv(self, port: int) -> list[str]:
        """What starts it on ``port``, with ``own`` in it; lays what it reads."""

    def start(self) -> int:
        """Starts it and waits until it answers; returns its port on 127.0.0.1. LabError with its last words when it does not."""
        self.stop()
        self.home.mkdir(parents=True, exist_ok=True)
        said = ""
        for _try in range(TRIES):
            (port,) = free_ports(1)
            if self._serve(port):
                return port
            said = self._log.read_text(encoding="utf-8", errors="replace")
            if "address already in use" not in said.lower():
                break
        raise LabError(f"the {self.KIND} did not answer: {full_disk(said) or last_line(said)} (log: {self._log})")

    def _serve(self, port: int) -> bool:
        """Whether it answers on ``port``; when it does not, it does not run either."""
        argv = self._argv(port)
        try:
            with self._log.open("w", encoding="utf-8") as file:
                started = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "PATH": PATHS},
                )
        except FileNotFoundError as error:
            raise LabError(f"the {self.KIND} cannot be started: there is no {argv[0]} here") from error
        answers = False
        try:
            self._pidfile.write_text(f"{started.pid}\n", encoding="utf-8")
            answers = self._answers(port, started)
        finally:
            if not answers:
                with contextlib.suppress(ProcessLookupError):
                    started.kill()
                started.wait()
        started.returncode = 0  # it outlives this process, and nobody waits for it
        return answers

    def _answers(self, port: int, started: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and started.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{self.ASKED}", timeout=2):
                    return started.poll() is None
            except OSError:
                time.sleep(0.2)
        return False

    def stop(self) -> None:
        """Ends it; nothing happens when it does not run."""
        process.kill(self._pidfile, self.own)
