# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry on this machine, Debian's docker-registry, so that images have real digests. Guests reach it as registry.example:5000."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

from lab import process
from lab.commands import full_disk, last_line
from lab.errors import LabError
from lab.guest import free_ports
from lab.packages import PATHS
from lab.places import BUILD

DATA = BUILD / "registry"
SECONDS = 30.0
# Between the moment that a port is found free and the moment that the registry takes it, somebody else may.
TRIES = 4
CONFIGURATION = """version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: true}}
http:
  addr: 127.0.0.1:{port}
"""


class Registry:
    """A registry whose configuration and process number are in ``home``; all of them keep their images in one place."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._configuration = home / "registry.yml"
        self._pidfile = home / "registry.pid"
        self._log = home / "registry.log"

    def start(self) -> int:
        """Starts it and waits until it answers; returns its port on 127.0.0.1. LabError with its last words when it does not."""
        self.stop()
        self.home.mkdir(parents=True, exist_ok=True)
        DATA.mkdir(parents=True, exist_ok=True)
        said = ""
        for _try in range(TRIES):
            (port,) = free_ports(1)
            answers, said = self._serve(port)
            if answers:
                return port
            if "address already in use" not in said:
                break
        raise LabError(f"the registry did not answer: {full_disk(said) or last_line(said)} (log: {self._log})")

    def _serve(self, port: int) -> tuple[bool, str]:
        """Whether it answers on ``port``, and what it said; when it does not answer, it does not run either."""
        # JSON is YAML, and quotes what a path may have.
        self._configuration.write_text(CONFIGURATION.format(data=json.dumps(str(DATA)), port=port), encoding="utf-8")
        try:
            with self._log.open("w", encoding="utf-8") as file:
                started = subprocess.Popen(
                    ["docker-registry", "serve", str(self._configuration)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "PATH": PATHS},
                )
        except FileNotFoundError as error:
            raise LabError("the registry cannot be started: there is no docker-registry here") from error
        answers = False
        try:
            self._pidfile.write_text(f"{started.pid}\n", encoding="utf-8")
            answers = _answers(port, started)
        finally:
            if not answers:
                with contextlib.suppress(ProcessLookupError):
                    started.kill()
                started.wait()
        started.returncode = 0  # it outlives this process, and nobody waits for it
        return answers, self._log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """Ends it; nothing happens when it does not run."""
        process.kill(self._pidfile, self._configuration)


def _answers(port: int, started: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2):
                return started.poll() is None
        except OSError:
            time.sleep(0.2)
    return False
