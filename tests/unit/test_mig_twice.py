# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs at once on one host (``mig_twice``): one waits or leaves with the holder's name, as if they ran in turn."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pynvml
import pytest
from mig_world import H100, World
from proof_host import prove

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

TIMES = 1000 if os.environ.get("MIG_PROOF") == "complete" else 100


@pytest.mark.slow
@pytest.mark.usefixtures("simulator")
@pytest.mark.parametrize("board", ["h100-80gb", "rtx-pro-6000-96gb"])
def test_two_runs_at_once_end_as_if_one_came_after_the_other(
    tmp_path: Path, record_property: t.Callable[[str, object], None], board: str
) -> None:
    found = prove("mig_twice.py", board, TIMES, 1, where=tmp_path)
    record_property("twice", found)
    assert found["wrong"] == []
    assert sum(found["counts"].values()) == TIMES


def test_an_instance_that_vanishes_while_a_run_looks_leaves_no_trace_in_it(
    fleet_host: MakeHost, run_module: RunModule, tmp_path: Path
) -> None:
    fleet = World(fleet_host(H100), run_module, tmp_path)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    questions = max(9, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    call = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
    fleet.host.simctl("fail", "--call", call, "--times", str(questions), "--error", "INVALID_ARGUMENT")
    result = fleet.mig((gpu, "1g.10gb@0", "1g.10gb@3"))
    assert not result["failed"], result["msg"]
    assert fleet.slices(0) == ["1g.10gb@0", "1g.10gb@3"]
