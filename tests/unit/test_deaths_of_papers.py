# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service's ``.env`` and the engine's CDI specification, when whoever writes them dies at any file or the disk is full there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost

MODULE = """
import ctypes, importlib, sys
deaths = ctypes.CDLL(sys.argv[1])
deaths.deathsWatch.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
module = importlib.import_module(f"ansible_collections.gpuops.fleet.plugins.modules.{sys.argv[2]}")
deaths.deathsWatch(sys.argv[3].encode(), int(sys.argv[4]), int(sys.argv[5]))
deaths.deathsSeen.restype = ctypes.c_char_p
sys.argv[1:] = []
try:
    module.main()
finally:
    sys.stderr.write(deaths.deathsSeen().decode())
"""
BEFORE, TORN, FULL = 0, 2, 3
NEVER = 0


class Papers:
    """One module and the folder that it writes into."""

    def __init__(self, host: FleetHost, simulator: Path, module: str, folder: Path, args: dict[str, t.Any]) -> None:
        self.host, self.library, self.module, self.folder, self.args = host, str(simulator / "libdeaths.so"), module, folder, args

    def run(self, number: int = NEVER, manner: int = BEFORE) -> tuple[int, list[str]]:
        """The module in a process of its own, which dies (or finds the disk full) at its NUMBER-th file event: exit status, file events."""
        env = {key: value for key, value in self.host.env.items() if not key.startswith("COVERAGE")}
        env |= {"PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": self.library}
        command = [sys.executable, "-c", MODULE, self.library, self.module, str(self.folder), str(number), str(manner)]
        text = json.dumps({"ANSIBLE_MODULE_ARGS": self.args})
        done = subprocess.run(command, input=text, env=env, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done.returncode, done.stderr.splitlines()

    def files(self) -> dict[str, str]:
        """What readers see: temporary files have names that no reader looks for."""
        return {path.name: path.read_text() for path in self.folder.glob("*") if path.name in (".env", "devices.json", "nvidia.yaml")}


@pytest.mark.parametrize("manner", [BEFORE, TORN, FULL])
@pytest.mark.parametrize("module", ["slice_env", "cdi"])
def test_whoever_reads_finds_the_old_paper_or_the_new_and_the_next_run_completes(
    fleet_host: MakeHost, simulator: Path, run_module: t.Any, tmp_path: Path, module: str, manner: int
) -> None:
    host = fleet_host("h100-80gb")
    if module == "cdi":
        (tmp_path / "dev").mkdir()
        host.simctl("set", "device-nodes", str(tmp_path / "dev"))
    gpu = host.simctl("show", "--json")["gpus"][0]["uuid"]
    state = {"state_dir": str(tmp_path / "state")}
    folder = tmp_path / "papers"

    def cut(start: int) -> None:
        assert not run_module("mig", {"layout": [{"gpu": gpu, "instances": [{"profile": "1g.10gb", "start": start}]}], **state})["failed"]

    def papers(start: int) -> Papers:
        entry = {"name": "GPU_0", "gpu": gpu, "profile": "1g.10gb", "start": start}
        args = {"path": str(folder / ".env"), "entries": [entry]} if module == "slice_env" else {"path": str(folder / "nvidia.yaml")}
        return Papers(host, simulator, module, folder, {**args, **state})

    cut(4)
    assert papers(4).run()[0] == 0
    old = papers(4).files()
    cut(5)
    _status, events = papers(5).run()
    new = papers(5).files()
    assert set(old) == set(new) != set()
    assert old != new
    met = 0
    for number in range(1, len(events) + 1):
        for name, text in old.items():
            (folder / name).write_text(text)
        met += papers(5).run(number, manner)[0] != 0
        for name, text in papers(5).files().items():
            assert text in (old[name], new[name]), events[number - 1]
        assert papers(5).run()[0] == 0
        assert papers(5).files() == new
    assert met >= (len(events) if manner == BEFORE else 1), events
