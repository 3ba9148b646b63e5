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
if len(sys.argv) > 3:
    sys.path.insert(0, sys.argv[3])
else:
    sys.modules[sys.argv[1]] = None
root = pathlib.Path(sys.argv[2])
name = "ansible_collections.gpuops.fleet.plugins.plugin_utils."
for path in sorted((root / "plugins" / "plugin_utils" / "solver").glob("*.py")):
    importlib.import_module(f"{name}solver.{path.stem}")
door, fleet = importlib.import_module(f"{name}door"), importlib.import_module(f"{name}fleet")
decide = importlib.import_module("ansible_collections.gpuops.fleet.tests.unit.decide_world")
policy = {"fleet_gpu_modes": ["mig", "whole", "shared"], "fleet_shared_max": 8}
hosts = {
    each: {"facts": decide.facts([decide.gpu_facts(number, each) for number in range(8)]), "policy": {**policy, "fleet_environment": each}}
    for each in ("production", "staging", "training")
}
texts = door.read_texts(root / "inventories" / "example" / "manifests")
planned = fleet.plan_fleet(texts, {}, hosts, door.catalogue())
print(sum(len(plan.data["services"]) for plan in planned.plans.values()))
print(planned.bounds[-1])
"""


def said(*arguments: str) -> str:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    placed, line = done.stdout.splitlines()
    assert int(placed) > 0
    return line


@pytest.mark.parametrize("missing", ["numpy", "highspy"])
def test_without_a_wheel_plans_are_made_and_say_that_no_gap_is_proven(missing: str) -> None:
    assert (
        said(missing, str(ROOT))
        == "no gap is proven: this controller has no solver (pip install highspy numpy), and places were found one by one"
    )


@pytest.mark.parametrize(
    ("package", "text", "why"),
    [
        ("numpy", "raise RuntimeError('built for another processor\\nsee there')", "RuntimeError: built for another processor"),
        ("highspy", "raise OSError('libhighs.so: cannot open shared object file')", "OSError: libhighs.so: cannot open shared object file"),
        ("highspy", "", "AttributeError: module 'highspy' has no attribute 'Highs'"),
    ],
)
def test_a_wheel_that_cannot_be_loaded_is_as_good_as_none_and_the_plan_says_why(package: str, text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(text)
    line = f"no gap is proven: the solver of this controller cannot be loaded ({why}), and places were found one by one"
    assert said(package, str(ROOT), str(tmp_path)) == line
