# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library that lets a process die at a file, and the fast stand-in for a reset, which the crash matrix needs."""

from __future__ import annotations

import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from conftest import MakeHost

PROGRAM = """
import ctypes, os, sys
from pathlib import Path
deaths = ctypes.CDLL(sys.argv[1])
deaths.deathsWatch.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
deaths.deathsSeen.restype = ctypes.c_char_p
here, number, manner = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
deaths.deathsWatch(str(here / "watched").encode(), number, manner)
try:
    (here / "elsewhere").write_text("not watched")
    (here / "watched").mkdir()
    with open(here / "watched" / "new", "w") as stream:
        stream.write("0123456789")
        stream.flush()
        os.fchmod(stream.fileno(), 0o600)
        os.fsync(stream.fileno())
    os.replace(here / "watched" / "new", here / "watched" / "name")
    (here / "watched" / "name").unlink()
except OSError as error:
    print(error.strerror)
print(deaths.deathsSeen().decode(), end="")
"""
EVENTS = ["mkdir watched", "open new", "write new", "fchmod new", "fsync new", "rename name", "unlink name"]
BEFORE, AFTER, TORN, FULL = range(4)


def _run(simulator: Path, where: Path, number: int, manner: int) -> subprocess.CompletedProcess[str]:
    library = str(simulator / "libdeaths.so")
    env = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    command = [sys.executable, "-c", PROGRAM, library, str(where), str(number), str(manner)]
    return subprocess.run(command, env={**env, "LD_PRELOAD": library}, capture_output=True, text=True, check=False)


def _left(where: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (where / "watched").glob("*")}


def test_what_a_process_does_to_the_files_is_seen(simulator: Path, tmp_path: Path) -> None:
    done = _run(simulator, tmp_path, 0, BEFORE)
    assert (done.returncode, done.stdout.splitlines()) == (0, EVENTS)


@pytest.mark.parametrize(
    ("number", "manner", "left"),
    [
        (2, BEFORE, {}),
        (2, AFTER, {"new": ""}),
        (3, BEFORE, {"new": ""}),
        (3, TORN, {"new": "01234"}),
        (3, AFTER, {"new": "0123456789"}),
        (6, BEFORE, {"new": "0123456789"}),
        (6, AFTER, {"name": "0123456789"}),
        (7, AFTER, {}),
    ],
)
def test_a_process_dies_where_it_is_told_to(simulator: Path, tmp_path: Path, number: int, manner: int, left: dict[str, str]) -> None:
    assert _run(simulator, tmp_path, number, manner).returncode == -9
    assert _left(tmp_path) == left


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6])
def test_a_disk_can_be_full_at_one_event(simulator: Path, tmp_path: Path, number: int) -> None:
    words, *events = _run(simulator, tmp_path, number, FULL).stdout.splitlines()
    assert (words, events[:number]) == ("No space left on device", EVENTS[:number])


def test_the_fast_reset_does_what_the_other_does(simulator: Path, fleet_host: MakeHost) -> None:
    host = fleet_host("a100-80gb:2")
    pci = host.simctl("show", "--json")["gpus"][1]["pci"]
    command = [str(simulator / "nvidia-smi-reset"), "-r", "-i", pci]
    host.simctl("hold", "--gpu", "1")
    held = subprocess.run(command, env=host.env, capture_output=True, text=True, check=False)
    assert (held.returncode, "In use" in held.stderr) == (255, True)
    host.simctl("release", "--gpu", "1")
    assert subprocess.run(command, env=host.env, check=False).returncode == 0
    (reset,) = [one for one in host.calls(mutations=True) if one["call"] == "nvidia-smi.reset"]
    assert reset["args"] == {"1": "1"}
    assert subprocess.run(command[:2], env=host.env, check=False).returncode == 2
