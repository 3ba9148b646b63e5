# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One measured run: a cold Python process that gets plain data and answers with plain data; its time is taken from outside."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import typing as t
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Cold:
    """``answer`` of the process; ``seconds`` on the clock, ``cpu_seconds`` of user and system, ``peak_mib`` of memory: all of it."""

    answer: t.Any
    seconds: float
    cpu_seconds: float
    peak_mib: float

    @property
    def figures(self) -> dict[str, float]:
        """For the report."""
        return {"seconds": round(self.seconds, 3), "cpu_seconds": round(self.cpu_seconds, 3), "peak_mib": round(self.peak_mib, 1)}


def cold(module: str, function: str, *arguments: t.Any, hash_seed: int = 0) -> Cold:
    """``function`` of ``module`` (a dotted name; ``planner.x`` for one of this folder) on ``arguments``, in a process of its own.

    The clock runs from before the process starts until it has ended, reading and writing of the data included.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, told = Path(folder, "given"), Path(folder, "told")
        given.write_bytes(pickle.dumps((module, function, arguments)))
        paths = os.pathsep.join((str(ROOT / "collections"), str(ROOT / "tests" / "bench")))
        environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": str(hash_seed)}
        before = time.monotonic()
        process = subprocess.Popen([sys.executable, __file__, str(given), str(told)], env=environment)
        _pid, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - before
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{module}.{function} ended with {process.returncode}")
        # Not usage.ru_maxrss: that begins with what this process had when it started the other.
        peak = int(told.with_suffix(".peak").read_text(encoding="ascii"))
        return Cold(pickle.loads(told.read_bytes()), seconds, usage.ru_utime + usage.ru_stime, peak / 1024)


def _work(given: str, told: str) -> None:
    import importlib

    module, function, arguments = pickle.loads(Path(given).read_bytes())
    answer = getattr(importlib.import_module(module), function)(*arguments)
    Path(told).write_bytes(pickle.dumps(answer))
    # The kernel's own count of the most that was there at once, in KiB; what a second process shares with this one is counted twice.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0]) + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    Path(told).with_suffix(".peak").write_text(str(peak), encoding="ascii")


if __name__ == "__main__":
    _work(*sys.argv[1:])
