# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent's command line and what it restores, on simulated GPUs; ``nvidia-ctk`` is an executable that lists them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import agent, agent_config, commands, lease, restore
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION
from mig_world import H100, World

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule

CTK = """\
#!/bin/sh
for word in "$@"; do case $word in --output=*) out=${word#--output=};; esac; done
{ echo "cdiVersion: 0.5.0"; echo "kind: nvidia.com/gpu"; echo "devices:"
  simctl show | grep -o 'MIG-[0-9a-f-]*' | sort -u | sed 's/^/- name: /'; } > "$out"
"""


class Desk:
    """A host that remembers a layout, as it is after a boot, and the agent's command line on it."""

    def __init__(self, fleet: World, where: Path) -> None:
        self.fleet, self.where = fleet, where
        ctk = where / "nvidia-ctk"
        ctk.write_text(CTK)
        ctk.chmod(0o755)
        self.spec = where / "cdi" / "nvidia.yaml"
        self.settings: dict[str, t.Any] = {
            "state_dir": str(fleet.state_dir),
            "cdi_spec": str(self.spec),
            "nvidia_ctk": str(ctk),
            "gpu_access": "cdi",
            "driver_wait": 2,
            "lease_wait": 1,
        }
        self.file = where / "agent.json"
        self.write()

    def write(self, **more: t.Any) -> None:
        self.settings.update(more)
        self.file.write_text(json.dumps({"format": 1, **self.settings}))

    def boot(self) -> None:
        self.fleet.host.simctl("reboot")

    def run(self, *words: str) -> int:
        return agent.main([*words, "--config", str(self.file)])


@pytest.fixture
def desk(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    host: FleetHost = fleet_host(f"{H100}:2")
    monkeypatch.setenv("PATH", host.env["PATH"])
    monkeypatch.setenv("LD_LIBRARY_PATH", host.env["LD_LIBRARY_PATH"])
    fleet = World(host, run_module, tmp_path)
    assert not fleet.mig((0, "1g.10gb@4", "3g.40gb@0"))["failed"]
    return Desk(fleet, tmp_path)


def test_after_a_boot_the_layout_is_back_and_the_engine_is_told(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.boot()
    assert desk.fleet.slices(0) == []
    assert desk.run("restore") == 0
    assert desk.fleet.slices(0) == ["1g.10gb@4", "3g.40gb@0"]
    said = capsys.readouterr()
    assert said.err == ""
    assert f"CDI: {desk.spec} is written anew, 2 devices\n" in said.out
    assert [line for line in said.out.splitlines() if line.startswith("layout: ") and "1g.10gb" in line]
    assert not (desk.fleet.state_dir / "lease.json").exists()
    before = desk.fleet.mutations()
    capsys.readouterr()
    assert desk.run("restore") == 0
    assert desk.fleet.mutations() == before
    assert capsys.readouterr().out == f"layout: as it was kept, nothing to do\nCDI: {desk.spec} is as it should be, 2 devices\n"


def test_a_part_that_fails_is_named_and_the_others_are_tried(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.boot()
    desk.write(nvidia_ctk="no-such-ctk")
    assert desk.run("restore") == 1
    said = capsys.readouterr()
    assert said.err.startswith("CDI: there is no no-such-ctk on this host; ")
    assert said.err.count("\n") == 1
    assert desk.fleet.slices(0) == ["1g.10gb@4", "3g.40gb@0"]
    desk.boot()
    desk.write(nvidia_ctk=str(desk.where / "nvidia-ctk"))
    desk.fleet.host.simctl("fail", "--call", "nvmlDeviceSetMigMode", "--error", "UNKNOWN", "--always")
    assert desk.run("restore") == 1
    said = capsys.readouterr()
    assert said.err.startswith("layout: ")
    assert "NVML_ERROR_UNKNOWN" in said.err


def test_a_driver_that_comes_late_is_waited_for(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.boot()
    desk.fleet.host.simctl("set", "driver", "absent")
    desk.write(driver_wait=30)
    later = subprocess.Popen(["sh", "-c", "sleep 1.5; simctl set driver present"], env=desk.fleet.host.env)
    assert desk.run("restore") == 0
    assert later.wait() == 0
    assert capsys.readouterr().out.startswith("driver: answers after ")
    assert desk.fleet.slices(0) == ["1g.10gb@4", "3g.40gb@0"]


def test_a_driver_that_never_comes_ends_the_wait_with_nvmls_word(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.fleet.host.simctl("set", "driver", "absent")
    begun = time.monotonic()
    assert desk.run("restore") == 1
    assert 2 <= time.monotonic() - begun < 8
    said = capsys.readouterr()
    assert said.err.startswith("the driver did not answer within 2 s: nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED")
    assert said.err.endswith("; see whether nvidia-smi answers\n")


def test_a_host_that_keeps_nothing_and_tells_no_engine_waits_for_no_driver(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.fleet.host.simctl("set", "driver", "absent")
    desk.write(gpu_access="nvidia", state_dir=str(desk.where / "empty"))
    assert desk.run("restore") == 0
    assert capsys.readouterr().out == "nothing is kept for the GPUs of this host, so nothing is restored\n"


def test_another_who_holds_the_host_is_named_with_an_exit_status_of_its_own(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    lease.acquire(desk.fleet.state_dir, "alice", "apply plan 4", 600)
    assert desk.run("restore") == agent.HELD == 3
    assert capsys.readouterr().err.startswith("this host is held by alice (apply plan 4), for ")


def test_another_releases_agent_restores_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.boot()
    (desk.fleet.state_dir / "agent.json").write_text(json.dumps({"format": 1, "version": "9.9.9", "path": "/x"}))
    assert desk.run("restore") == 1
    assert capsys.readouterr().err == (
        f"this host's agent is gpuops.fleet 9.9.9 and this module is {VERSION}; nothing more is changed; "
        "run playbook apply or agent: each installs its own release's agent first\n"
    )
    assert desk.fleet.slices(0) == []


def test_an_agent_that_is_told_to_end_gives_the_host_back(desk: Desk) -> None:
    slow = desk.where / "slow-ctk"
    slow.write_text("#!/bin/sh\nexec sleep 5\n")
    slow.chmod(0o755)
    desk.write(nvidia_ctk=str(slow))
    argv = [sys.executable, "-m", "ansible_collections.gpuops.fleet.plugins.module_utils.agent", "restore", "--config", str(desk.file)]
    collections = Path(__file__).resolve().parents[2] / "collections"
    held = desk.fleet.state_dir / "lease.json"
    with subprocess.Popen(argv, env={**desk.fleet.host.env, "PYTHONPATH": str(collections)}, stdout=subprocess.PIPE, text=True) as agent_:
        assert agent_.stdout is not None
        assert agent_.stdout.readline().startswith("layout: ")
        assert held.exists()
        agent_.terminate()
        assert agent_.wait(10) == 128 + 15
    assert not held.exists()


def test_the_command_line_runs_as_a_module_and_says_its_release() -> None:
    argv = [sys.executable, "-m", "ansible_collections.gpuops.fleet.plugins.module_utils.agent", "version"]
    collections = Path(__file__).resolve().parents[2] / "collections"
    ran = subprocess.run(argv, env={"PYTHONPATH": str(collections), "PATH": ""}, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{VERSION}\n", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "{file}: no such file; "),
        ("{", "{file}: this file is not JSON; "),
        ('{"format": 2}', "{file}: it has format 2 and this release knows format 1; "),
        ('{"format": 1, "state": "/x"}', "{file}: state: there is no such setting; "),
        ('{"format": 1, "state_dir": "x"}', "{file}: state_dir: expected an absolute path, found 'x'; "),
        ('{"format": 1, "parallel": true}', "{file}: parallel: expected a whole number of at least 1, found True; "),
        ('{"format": 1, "allow_reset": 1}', "{file}: allow_reset: expected true or false, found 1; "),
        ('{"format": 1, "driver_services": "dcgm"}', "{file}: driver_services: expected a list of names, found 'dcgm'; "),
        ('{"format": 1, "docker": ""}', "{file}: docker: expected a text, found ''; "),
    ],
)
def test_a_configuration_of_no_use_is_one_line_and_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    file = tmp_path / "agent.json"
    if text is not None:
        file.write_text(text)
    assert agent.main(["services", "--config", str(file)]) == agent.USELESS == 2
    said = capsys.readouterr().err
    assert said.startswith(words.format(file=file))
    assert said.count("\n") == 1


def test_an_unknown_verb_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        agent.main(["dance"])
    assert ended.value.code == 2


def test_a_configuration_is_read_as_it_was_written() -> None:
    config = Config(state_dir=Path("/s"), driver_services=("dcgm.service",), parallel=7)
    assert agent_config.parse(json.loads(json.dumps(config.plain()))) == config
    assert agent_config.parse_known({**config.plain(), "more": 1}) == config


def test_restore_can_be_told_where_to_speak(desk: Desk) -> None:
    said: list[str] = []
    assert restore.restore(agent_config.read(desk.file), said.append) == []
    assert said[-1].startswith("CDI: ")


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(FleetError, match=r"`sh -c .* did not end in 0\.5 s"):
        commands.run(["sh", "-c", f"(sleep 60; touch {tmp_path}/late) & wait"], 0.5)
    assert time.monotonic() - begun < 10
    with pytest.raises(FleetError, match=r"cannot run /no/such: No such file or directory"):
        commands.run(["/no/such"], 1)


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo a; echo b >&2; exit 3", "b"), ("echo a; echo b; exit 3", "b"), ("exit 3", "exit status 3, without a word")],
)
def test_a_commands_last_word_is_what_people_are_told(script: str, words: str) -> None:
    done = commands.run(["sh", "-c", script], 5)
    assert (done.status, done.words) == (3, words)
    assert commands.run(["cat"], 5, "text").output == "text"
    assert commands.run(["sh", "-c", "echo $WORD"], 5, variables={"WORD": "said"}).output == "said\n"
