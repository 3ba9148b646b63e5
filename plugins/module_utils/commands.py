# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Other programs, run with a deadline; and what the host agent says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# A process that waits in the kernel may outlive its SIGKILL; nobody waits for it longer than this.
_KILL_SECONDS = 5.0


def say(line: str) -> None:
    """One whole line on stdout at once: several threads speak, and the host's journal, which adds the time, shall not mix them."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Done:
    """How a command ended: exit status, and what it wrote to its output and to stderr."""

    status: int
    output: str
    complaint: str

    @property
    def words(self) -> str:
        """Its last line, for a message: of stderr, or of its output when it complained of nothing."""
        lines = [line.strip() for line in (self.complaint.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.status}, without a word"


def run(argv: Sequence[str], deadline: float, text: str = "", variables: Mapping[str, str] | None = None) -> Done:
    """Run a command that gets ``text`` on its input; ``deadline`` in seconds. FleetError when it cannot be started or does not end.

    At the deadline everything that it started is killed with it: a plugin of ``docker`` would keep its pipes open.
    """
    environment = {**os.environ, **(variables or {})}
    pipes: dict[str, t.Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(list(argv), env=environment, start_new_session=True, **pipes)
    except OSError as error:
        raise FleetError(f"cannot run {argv[0]}: {error.strerror}") from error
    try:
        output, complaint = process.communicate(text.encode(), timeout=deadline)
    except subprocess.TimeoutExpired as error:
        _kill(process)
        raise FleetError(f"`{' '.join(argv)}` did not end in {deadline:g} s") from error
    except BaseException:
        _kill(process)
        raise
    return Done(process.returncode, output.decode(errors="replace"), complaint.decode(errors="replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.communicate(timeout=_KILL_SECONDS)
    except subprocess.TimeoutExpired:
        pass
