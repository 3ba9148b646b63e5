# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installing the host agent: real packages and virtual environments, a ``systemctl`` that remembers, an engine behind a real socket."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import typing as t
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import AgentEngine, Programs
from ansible_collections.gpuops.fleet.plugins.module_utils import agent_package, lease
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door

if t.TYPE_CHECKING:
    from conftest import RunModule

RESTORE, SERVICES, WATCH = (f"gpuops-fleet-{name}.service" for name in ("restore", "services", "watch"))
SOURCES = Path(agent_package.__file__).parent


def wheel(**files: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in (files or {"pynvml.py": "", "nvidia_ml_py-1.dist-info/METADATA": "Name: nvidia-ml-py"}).items():
            archive.writestr(name, text)
    return stream.getvalue()


class Place:
    """A host without an agent, and the module on it; ``install`` does what the action plugin does."""

    def __init__(self, where: Path, run_module: RunModule) -> None:
        self.where, self._run = where, run_module
        self.root, self.state_dir, self.config = where / "opt", where / "state", where / "etc" / "agent.json"
        self.programs = Programs(where / "world")
        self.programs.unit_dir.mkdir()
        self.files = {**agent_package.with_packages(door.read_sources(SOURCES)), **agent_package.of_wheel(wheel(), "a.whl")}
        self.version = VERSION
        self.texts = dict.fromkeys((RESTORE, SERVICES, WATCH), "[Unit]\n")
        self.more: dict[str, t.Any] = {"wheel": "a.whl", "docker_socket": str(where / "docker.sock")}

    @property
    def name(self) -> str:
        return agent_package.name_of(self.version, agent_package.digest_of(self.files))

    def call(self, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        args: dict[str, t.Any] = {
            "root": str(self.root),
            "state_dir": str(self.state_dir),
            "config_path": str(self.config),
            "config": {"state_dir": str(self.state_dir), "parallel": 2},
            "unit_dir": str(self.programs.unit_dir),
            "units": [{"name": name, "text": text, "running": name == WATCH} for name, text in self.texts.items()],
        }
        return self._run("host_agent", {**args, **self.more, **more}, check=check, diff=True)

    def install(self, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        named = {"version": self.version, "digest": agent_package.digest_of(self.files), **more}
        result = self.call(check, **named)
        if result.get("package_needed"):
            assert (result["changed"], result["steps"]) == (False, [])
            package = self.where / "package.zip"
            package.write_bytes(agent_package.pack(self.files))
            result = self.call(check, package=str(package), **named)
        return result

    def done(self) -> list[str]:
        """Install for real; check mode said the same before, and a second run finds nothing to do."""
        predicted, tree = self.install(check=True), self.tree()
        assert self.tree() == tree
        result = self.install()
        assert not result["failed"], result
        assert (predicted["steps"], predicted["diff"]) == (result["steps"], result["diff"])
        told = self.programs.told()
        again = self.install()
        assert (again["changed"], again["steps"], again["diff"], self.programs.told()) == (False, [], [], told)
        return list(result["steps"])

    def tree(self) -> list[str]:
        return sorted(str(path) for path in self.where.rglob("*") if self.programs.home not in path.parents)

    def agent(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = self.root / "current" / "bin" / agent_package.PROGRAM
        return subprocess.run([str(program), *words], capture_output=True, text=True, check=False, cwd=self.where)


@pytest.fixture
def place(tmp_path: Path, run_module: RunModule, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path, run_module)
    monkeypatch.setenv("PATH", made.programs.path)
    return made


@pytest.fixture
def engine(place: Place) -> Iterator[AgentEngine]:
    made = AgentEngine(place.where)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_host_gets_the_agent_with_its_units_and_no_reload(place: Place) -> None:
    steps = place.done()
    assert steps == [
        f"install agent {place.name} below {place.root}",
        f"write {place.config}",
        f"use agent {place.name}",
        f"record the agent in {place.state_dir}/agent.json",
        *(step for unit in (RESTORE, SERVICES, WATCH) for step in (f"write unit {unit}", f"enable {unit}")),
        f"start {WATCH}",
    ]
    assert place.programs.told() == [*(f"--root=/ reenable {unit}" for unit in (RESTORE, SERVICES, WATCH)), f"restart {WATCH}"]
    record = json.loads((place.state_dir / "agent.json").read_text())
    assert record == {"format": 1, "version": VERSION, "path": str(place.root / place.name)}
    assert json.loads(place.config.read_text()) == {"format": 1, "state_dir": str(place.state_dir), "parallel": 2}
    assert place.config.stat().st_mode & 0o777 == 0o640


def test_what_was_installed_runs_by_itself_whatever_surrounds_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.done()
    for name in ("ansible_collections", "argparse"):
        (place.where / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.setenv("PYTHONPATH", str(place.where))
    ran = place.agent("version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{VERSION}\n", "")
    ran = place.agent("restore", "--config", str(place.config))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "nothing is kept for the GPUs of this host, so nothing is restored\n"


def test_an_upgrade_flips_the_link_restarts_the_watch_and_keeps_the_one_before(place: Place) -> None:
    place.done()
    names = [place.name]
    for round_ in (b"# 2\n", b"# 3\n"):
        place.files["ansible_collections/gpuops/fleet/plugins/module_utils/version.py"] += round_
        names.append(place.name)
        steps = place.done()
        assert steps[0].startswith(f"install agent {place.name}")
        assert f"restart {WATCH}" in steps
        assert not [step for step in steps if step.startswith(("write unit", "enable", "have systemd"))]
    assert f"remove agent {names[0]}" in steps
    assert sorted(path.name for path in place.root.iterdir()) == sorted([*names[1:], "current"])
    assert os.readlink(place.root / "current") == names[2]
    assert "daemon-reload" not in place.programs.told()


def test_an_agent_that_no_longer_runs_is_installed_again(place: Place) -> None:
    place.done()
    (place.root / place.name / "venv" / "bin" / "python").unlink()
    steps = place.done()
    assert steps == [f"install agent {place.name} below {place.root}", f"restart {WATCH}"]
    assert place.agent("version").returncode == 0


def test_a_package_that_does_not_run_is_not_taken_into_use(place: Place) -> None:
    place.done()
    before = place.name
    place.files["ansible_collections/gpuops/fleet/plugins/module_utils/agent.py"] = b"raise SystemExit('broken')\n"
    result = place.install()
    assert result["msg"] == "the agent that was installed does not run: broken; the one before is still in use"
    assert os.readlink(place.root / "current") == before
    assert [path.name for path in place.root.iterdir() if path.name not in (before, "current")] == []


def test_a_package_that_was_changed_on_its_way_is_refused(place: Place) -> None:
    package = place.where / "package.zip"
    package.write_bytes(agent_package.pack({**place.files, "pynvml.py": b"# other"}))
    named = {"version": VERSION, "digest": agent_package.digest_of(place.files), "package": str(package)}
    assert place.call(**named)["msg"] == "the agent's package did not arrive as it was sent; run again"
    package.write_bytes(b"PK")
    assert place.call(**named)["msg"].startswith("the agent's package did not arrive whole: ")
    assert not place.root.exists()


def test_a_changed_unit_in_memory_is_read_again_when_it_hurts_nobody(place: Place, engine: AgentEngine) -> None:
    place.done()
    engine.put("ocr-1", ["nvidia.com/gpu=MIG-1"])
    engine.put("old", ["GPU-1"], "exited")
    place.texts[WATCH] = "[Unit]\nDescription=new\n"
    assert place.done() == [f"write unit {WATCH}", f"enable {WATCH}", f"have systemd read {WATCH} again", f"restart {WATCH}"]
    # one that systemd does not have in memory needs no reload
    place.texts[RESTORE] = "[Unit]\nDescription=new\n"
    assert place.done() == [f"write unit {RESTORE}", f"enable {RESTORE}"]
    assert place.programs.told().count("daemon-reload") == 1


def test_no_reload_takes_a_gpu_away_and_the_warning_stays_until_it_is_safe(place: Place, engine: AgentEngine) -> None:
    place.done()
    engine.put("chat-1", ["GPU-1"])
    place.texts[WATCH] = "[Unit]\nDescription=new\n"
    warning = (
        f"{WATCH} changed, and takes effect at the next boot: systemctl daemon-reload would take the GPU from chat-1, "
        "which did not get it by CDI"
    )
    result = place.install()
    assert (result["steps"], result["notes"]) == ([f"write unit {WATCH}", f"enable {WATCH}", f"restart {WATCH}"], [warning])
    again = place.install()
    assert (again["changed"], again["notes"]) == (False, [warning])
    assert "daemon-reload" not in place.programs.told()
    engine.containers.clear()
    assert place.install()["steps"] == [f"have systemd read {WATCH} again"]


def test_an_engine_that_does_not_answer_counts_as_one_that_would_be_hurt(place: Place) -> None:
    place.done()
    (place.where / "docker.sock").touch()
    place.texts[WATCH] = "[Unit]\nDescription=new\n"
    (note,) = place.install()["notes"]
    assert "might take GPUs from containers, and which ones is not known: Docker engine at" in note
    assert "daemon-reload" not in place.programs.told()


def test_an_older_collection_does_not_replace_a_newer_agent_unless_told_so(place: Place) -> None:
    place.state_dir.mkdir()
    (place.state_dir / "agent.json").write_text(json.dumps({"format": 1, "version": "9.10.0", "path": "/x"}))
    result = place.install()
    assert result["msg"] == (
        f"this host's agent is gpuops.fleet 9.10.0, newer than this collection ({VERSION}); nothing was changed; "
        "bring the collection on the controller up to date, or set host_agent_downgrade: true"
    )
    assert place.install(downgrade=True)["changed"]
    with pytest.raises(lease.LeaseError):
        lease.acquire(place.state_dir, "alice", "apply", 60) and lease.check(place.state_dir, None)


def test_whoever_holds_the_host_keeps_others_from_installing(place: Place) -> None:
    mine, _over = lease.acquire(place.state_dir, "alice", "apply", 60)
    assert place.install()["msg"].startswith("this host is held by alice (apply), for ")
    assert place.install(lease=mine.token)["changed"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 3 8; exit 1", "python: {python} is Python 3.8; give the path of a Python 3.9 or newer"),
        ("echo no such thing >&2; exit 127", "python: {python} does not run: no such thing; give the path of a Python 3.9 or newer"),
        (
            'echo 3 9; echo "ModuleNotFoundError: No module named pynvml" >&2; exit 1',
            "python: {python} has no pynvml (ModuleNotFoundError: No module named pynvml); install it there, or set host_agent_wheel to a "
            "wheel of nvidia-ml-py, or host_agent_pip: true",
        ),
    ],
)
def test_a_python_that_is_of_no_use_is_refused_before_anything_is_written(place: Place, script: str, words: str) -> None:
    python = place.where / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    for check in (True, False):
        result = place.install(check, python=str(python), wheel=None)
        assert result["msg"] == words.format(python=python)
    assert not place.root.exists()
    assert place.programs.told() == []


def test_systemds_refusal_is_told_in_its_words(place: Place) -> None:
    place.programs.systemd(fail={"reenable": "Access denied"})
    assert place.install()["msg"] == f"systemctl --root=/ reenable {RESTORE} failed: Failed to reenable: Access denied"
    place.programs.systemd(fail={})
    assert place.install()["steps"] == [
        f"enable {RESTORE}",
        *(step for unit in (SERVICES, WATCH) for step in (f"write unit {unit}", f"enable {unit}")),
        f"start {WATCH}",
    ]


def test_a_host_without_systemd_is_told_so(place: Place) -> None:
    result = place.install(systemctl="no-systemctl")
    assert result["msg"] == "there is no no-systemctl on this host; the host agent needs systemd; set fleet_host_agent: false"
    assert not place.root.exists()


def test_a_setting_of_no_use_is_refused_before_anything_is_written(place: Place) -> None:
    result = place.install(config={"parallel": 0})
    assert result["msg"].startswith("parallel: expected a whole number of at least 1, found 0; ")
    assert place.install(root=str(place.where / "with space"))["msg"].startswith("root: '")
    assert not place.root.exists()


def test_taking_it_away_leaves_what_the_host_remembers(place: Place) -> None:
    place.done()
    (place.state_dir / "plan.json").write_text("{}")
    predicted = place.call(check=True, state="absent")
    result = place.call(state="absent")
    assert (
        predicted["steps"]
        == result["steps"]
        == [
            *(f"stop, disable and remove {unit}" for unit in (WATCH, SERVICES, RESTORE)),
            f"remove {place.state_dir}/agent.json",
            f"remove {place.config}",
            f"remove {place.root}/current",
            f"remove agent {place.name}",
        ]
    )
    assert result["notes"] == ["nobody restores this host's layout or starts its services after a boot now"]
    assert (place.root.exists(), place.config.parent.exists(), list(place.programs.unit_dir.iterdir())) == (False, False, [])
    assert [path.name for path in place.state_dir.iterdir()] == ["plan.json"]
    ends = [words for unit in (WATCH, SERVICES, RESTORE) for words in (f"stop {unit}", f"--root=/ disable {unit}")]
    assert place.programs.told()[-6:] == ends
    again = place.call(state="absent")
    assert (again["changed"], again["notes"]) == (False, [])


def test_without_the_action_plugin_there_is_no_package(place: Place) -> None:
    assert place.call()["msg"] == "digest: the package is made by this module's action plugin; call the module by its full name"


def test_the_same_files_make_the_same_package_wherever_they_are_packed(place: Place) -> None:
    shuffled = dict(reversed(list(place.files.items())))
    assert agent_package.pack(shuffled) == agent_package.pack(place.files)
    assert agent_package.digest_of(shuffled) == agent_package.digest_of(place.files)
    moved = {**place.files, "ab": b"c"}, {**place.files, "a": b"bc"}
    assert len({agent_package.digest_of(files) for files in moved}) == 2


@pytest.mark.parametrize("content", [b"no wheel", wheel(other="")])
def test_what_is_no_wheel_of_nvidia_ml_py_is_refused(content: bytes) -> None:
    with pytest.raises(FleetError, match=r"a\.whl: wheel: this (is not a wheel|wheel does not bring pynvml\.py); give nvidia_ml_py"):
        agent_package.of_wheel(content, "a.whl")


def test_the_agents_python_is_the_one_below_a_virtual_environment() -> None:
    assert Path(agent_package.base_python()).resolve() == Path(sys.executable).resolve()
    assert "venv" not in agent_package.base_python()
