# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A controller without numpy, or without highspy: everything imports, the inventory ``example`` is planned, and nothing is proven."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import importlib, pathlib, sys
sys.modules[sys.argv[1]] = None
root = pathlib.Path(sys.argv[2])
name = "ansible_collections.gpuops.fleet.plugins.plugin_utils."
for path in sorted((root / "plugins" / "plugin_utils" / "solver").glob("*.py")):
    importlib.import_module(f"{name}solver.{path.stem}")
door, fleet = importlib.import_module(f"{name}door"), importlib.import_module(f"{name}fleet")
decide = importlib.import_module("ansible_collections.gpuops.fleet.tests.unit.decide_world")
gpus = [decide.gpu_facts(number) for number in range(8)]
policy = {"fleet_gpu_modes": ["mig", "whole", "shared"], "fleet_shared_max": 8}
hosts = {
    each: {"facts": decide.facts(gpus), "policy": {**policy, "fleet_environment": each}}
    for each in ("production", "staging", "training")
}
texts = door.read_texts(root / "inventories" / "example" / "manifests")
planned = fleet.plan_fleet(texts, {}, hosts, door.catalogue())
print(sum(len(plan.data["services"]) for plan in planned.plans.values()))
print(planned.bounds[-1])
"""


@pytest.mark.parametrize("missing", ["numpy", "highspy"])
def test_without_a_wheel_plans_are_made_and_say_that_no_gap_is_proven(missing: str) -> None:
    command = [sys.executable, "-c", SCRIPT, missing, str(ROOT)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    placed, said = done.stdout.splitlines()
    assert int(placed) > 0
    assert said == "no gap is proven: this controller has no solver (pip install highspy numpy), and places were found one by one"
