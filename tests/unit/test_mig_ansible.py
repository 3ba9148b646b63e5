# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible itself runs the module as people do, as a process of its own with nothing of this one in it."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from conftest import MakeHost

COLLECTIONS = Path(__file__).resolve().parents[2] / "collections"


@pytest.mark.slow
def test_ansible_itself_runs_the_module(fleet_host: MakeHost, tmp_path: Path) -> None:
    host = fleet_host("h100-80gb")
    gpu = host.simctl("show", "--json")["gpus"][0]["uuid"]
    args = {"layout": [{"gpu": gpu, "instances": [{"profile": "1g.10gb", "count": 2}]}], "state_dir": str(tmp_path / "state")}

    def ansible(*more: str) -> dict[str, t.Any]:
        command = [str(Path(sys.executable).parent / "ansible"), "localhost", "-m", "gpuops.fleet.mig", "-a", json.dumps(args), *more]
        places = {"HOME": str(tmp_path), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"), "ANSIBLE_REMOTE_TEMP": str(tmp_path / "tmp")}
        output = {"ANSIBLE_LOAD_CALLBACK_PLUGINS": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.oneline", "ANSIBLE_NOCOLOR": "1"}
        world = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
        done = subprocess.run(command, env={**host.env, **places, **output, **world}, capture_output=True, text=True, check=False)
        assert " => " in done.stdout, done.stdout + done.stderr
        return dict(json.loads(done.stdout.partition(" => ")[2]))

    steps = [f"{gpu}: {what}" for what in ("switch MIG on", *(f"create 1g.10gb at memory slice {start}" for start in (4, 5)))]
    predicted = ansible("--check", "--diff")
    assert (predicted["changed"], predicted["steps"]) == (True, steps)
    assert host.calls(mutations=True) == []
    done = ansible()
    assert (done["changed"], done["steps"]) == (True, steps)
    again = ansible()
    assert (again["changed"], again["steps"]) == (False, [])
    shown = host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]
    assert [(one["profile"], one["start"]) for one in shown] == [("1g.10gb", 4), ("1g.10gb", 5)]
