# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layout changes that are cut short at every point, by a death or an error: the next run repairs (``mig_crash``)."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from proof_host import prove

COMPLETE = os.environ.get("MIG_PROOF") == "complete"
CHANGES = {"a100-80gb": 14, "h100-80gb": 13, "rtx-pro-6000-96gb": 13}


@pytest.mark.slow
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("board", CHANGES)
def test_a_change_that_is_cut_short_anywhere_is_repaired(
    tmp_path: Path, record_property: t.Callable[[str, object], None], board: str
) -> None:
    changes = CHANGES[board]
    found = prove("mig_crash.py", board, changes, 1, "all" if COMPLETE else "some", where=tmp_path)
    record_property("points", found)
    assert found["wrong"] == []
    # Each change makes two changes of NVML or more, opens and closes a journal, and is remembered.
    assert found["points"]["deaths at an NVML change"] >= 4 * changes
    assert found["points"]["deaths at a file or a child"] >= 30 * changes
    assert found["recoveries"]["the same wish again"] >= 10 * changes
    assert found["recoveries"]["boot"] >= 5 * changes
    assert min(found["points"]["errors once"], found["points"]["errors for good"]) >= 2 * changes
