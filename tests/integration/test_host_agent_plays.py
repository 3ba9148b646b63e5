# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host agent by real playbooks: apply brings it once, a host without systemd is left without one, and playbook agent takes it away."""

from __future__ import annotations

import os
import shutil
import subprocess
import typing as t
import zipfile

import pynvml
import pytest
from fleet_site import REPOSITORY, _load

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

_load("engine_world", REPOSITORY / "tests" / "unit" / "engine_world.py")
agent_world = _load("agent_world", REPOSITORY / "tests" / "unit" / "agent_world.py")

WITH, WITHOUT = "host-a", "host-b"
UNITS = [f"gpuops-fleet-{name}.service" for name in ("restore", "vgpus", "services", "watch")]
LEASES = ["gpuops-fleet-leases.service", "gpuops-fleet-leases.timer"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> t.Any:
    """``systemctl`` and its like as stand-ins that remember, and the directory of units that they look after."""
    made = agent_world.Programs(tmp_path_factory.mktemp("world"))
    made.unit_dir.mkdir()
    return made


@pytest.fixture(scope="module")
def site(make_site: MakeSite, programs: t.Any) -> t.Iterator[Site]:
    """Two hosts with a plan; the first shows systemd as its process 1."""
    made = make_site(host_a="a100-80gb:1", host_b="a100-80gb:1")
    wheel = made.work / "nvidia_ml_py-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(pynvml.__file__, "pynvml.py")
    home = made.work / WITH
    made.variables(
        WITH,
        host_agent_root=str(home / "opt"),
        host_agent_config=str(home / "etc" / "agent.json"),
        host_agent_unit_dir=str(programs.unit_dir),
        host_agent_wheel=str(wheel),
    )
    (home / "proc" / "1").mkdir()
    (home / "proc" / "1" / "comm").write_text("systemd\n")
    made.manifest("ocr", replicas=2)
    path = os.environ["PATH"]
    os.environ["PATH"] = programs.path
    made.done("plan")
    yield made
    os.environ["PATH"] = path


@pytest.mark.slow
def test_apply_brings_the_agent_once_and_check_mode_said_so(site: Site, programs: t.Any) -> None:
    home = site.work / WITH
    predicted = site.done("apply", "--check", "--diff")
    assert not (home / "opt").exists()
    applied = site.done("apply", "--diff")
    change = ("Install the host agent, or take it away", WITH)
    assert change in predicted.changed()
    assert change in applied.changed()
    assert (change[0], WITHOUT) not in applied.changed()
    assert f"{WITHOUT} gets no host agent: it is not run by systemd." in applied.output
    assert f"{WITH} gets no host agent" not in applied.output
    assert sorted(path.name for path in programs.unit_dir.iterdir()) == sorted([*UNITS, *LEASES])
    enabled = [f"--root=/ reenable {unit}" for unit in [*UNITS, LEASES[1]]]
    told = [*enabled, f"restart {UNITS[-1]}", f"restart {LEASES[1]}"]
    assert programs.told() == told
    for path in programs.unit_dir.glob("*.service"):
        assert f"ExecStart={home}/opt/current/bin/gpuops-fleet-agent " in path.read_text()
    again = site.done("apply")
    assert again.changed() == []
    assert programs.told() == told


@pytest.mark.slow
def test_what_apply_installed_runs(site: Site) -> None:
    home = site.work / WITH
    program = home / "opt" / "current" / "bin" / "gpuops-fleet-agent"
    for verb, status in (("version", 0), ("status", 1)):
        config = [] if verb == "version" else ["--config", str(home / "etc" / "agent.json")]
        ran = subprocess.run([str(program), verb, *config], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr.count("\n")) == (status, 0 if status == 0 else 1), ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("site")
def test_units_are_as_systemd_wants_them(programs: t.Any) -> None:
    restore, vgpus, services, watch = ((programs.unit_dir / unit).read_text() for unit in UNITS)
    assert "Before=docker.service" in restore
    assert "Requires=" not in restore + services + watch
    assert "After=docker.service gpuops-fleet-restore.service" in services
    assert "PartOf=docker.service" in services
    assert "PartOf" not in watch.replace("# No PartOf", "")
    assert "WantedBy=multi-user.target docker.service" in services
    assert "After=gpuops-fleet-restore.service" in vgpus, "GPU instances come first"
    assert "Before=libvirtd.service" in vgpus
    assert "/vgpus.json\n" in vgpus.partition("ConditionPathExists=")[2]
    assert "0.1.0" not in restore + vgpus + services + watch


@pytest.mark.slow
@pytest.mark.usefixtures("site")
def test_systemd_accepts_the_timer_that_looks_at_leases(programs: t.Any) -> None:
    service, timer = ((programs.unit_dir / unit).read_text() for unit in LEASES)
    assert "SuccessExitStatus=3" in service
    assert "[Install]" not in service
    assert "OnUnitInactiveSec=5min" in timer
    assert "WantedBy=timers.target" in timer
    assert "OnCalendar" not in timer
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    asked = ["systemd-analyze", "verify", *(str(programs.unit_dir / unit) for unit in LEASES)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_playbook_agent_takes_it_away_and_refuses_a_host_without_systemd(site: Site) -> None:
    assert WITHOUT in site.play("agent").message()
    removed = site.done("agent", "--limit", WITH, "-e", "host_agent_state=absent")
    assert removed.changed() == [("Install the host agent, or take it away", WITH)]
    assert not (site.work / WITH / "opt").exists()
    assert not list((site.work / WITH / "state").glob("lease.json"))
    assert site.done("agent", "--limit", WITH).changed() == [("Install the host agent, or take it away", WITH)]
    again = site.done("agent", "--limit", WITH, "--diff")
    assert again.changed() == [], again.output
