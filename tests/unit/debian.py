# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that no one here wrote, as judges: of this machine, or out of a Debian package that is never installed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from lab import packages
from lab.errors import LabError

KEPT = Path(__file__).resolve().parents[2] / "build" / "cache" / "debian"


def release() -> str:
    """The Debian release of this machine, such as bookworm. The test is skipped where this is no Debian."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line).get("VERSION_CODENAME", "")
    if not found:
        pytest.skip("this machine's system has no codename: it is no Debian")
    return found


def program(name: str, package: str, suite: str, temporary: pytest.TempPathFactory) -> str:
    """A program on PATH, else out of a package of a suite (``trixie main``). The test is skipped where neither is to be had."""
    found = shutil.which(name, path=packages.PATHS)
    if found is not None:
        return found
    home = KEPT / package
    if not any(home.rglob(name)):
        fresh = temporary.mktemp(package)
        try:
            packages.unpack(package, suite, fresh / "files", fresh)
        except LabError as error:
            pytest.skip(f"{name}: {error}")
        shutil.rmtree(home, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        whole = Path(tempfile.mkdtemp(dir=KEPT))
        shutil.copytree(fresh / "files", whole, symlinks=True, dirs_exist_ok=True)
        try:
            whole.rename(home)  # tests run beside each other: nobody may find half of it
        except OSError:
            shutil.rmtree(whole)  # another test was first
    return str(next(iter(sorted(home.rglob(name)))))
