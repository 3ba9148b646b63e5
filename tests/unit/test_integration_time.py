# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pipeline that has only so much time begins no integration test after it, and says how many it left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FILE = "tests/integration/test_images_play.py"


def test_what_is_not_begun_in_time_is_skipped_and_counted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cov", FILE]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "PYTEST"))}
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**env, "GPUOPS_INTEGRATION_UNTIL": "0"}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"SKIPPED \[\d+\] \S+: not begun: GPUOPS_INTEGRATION_UNTIL was over; run it by hand: make test", done.stdout)
    assert re.search(r"^\d+ skipped in", done.stdout, re.MULTILINE)


def test_the_pipeline_sets_it_for_the_tests_alone() -> None:
    """Whoever runs ``make test`` by hand gets all of them."""
    run = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^GPUOPS_INTEGRATION_UNTIL=.+ make test \| tee build/test.log$", run, re.MULTILINE)
    assert "GPUOPS_INTEGRATION_UNTIL" not in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
