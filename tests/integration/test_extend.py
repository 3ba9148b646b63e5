# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of services by real playbooks: apply grants them and leaves an ended one stopped, one command extends it and starts it again."""

from __future__ import annotations

import json
import os
import shutil
import threading
import typing as t
from datetime import UTC, datetime, timedelta

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases
from fleet_site import REPOSITORY, _load

if t.TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fleet_site import MakeSite, Site

_load("engine_world", REPOSITORY / "tests" / "unit" / "engine_world.py")
agent_world = _load("agent_world", REPOSITORY / "tests" / "unit" / "agent_world.py")

HOST = "lab-1"
LIN = ("-e", "fleet_holder=lin")
NOW = datetime.now(UTC)

pytestmark = pytest.mark.slow


def state(site: Site) -> Path:
    return site.work / HOST / "state"


def lease_of(site: Site, name: str = "nb-1") -> dict[str, t.Any]:
    return dict(service_leases.read(state(site))["leases"][name])


def end(site: Site, name: str, why: str = "lease over") -> None:
    """As the host agent's timer ends it."""
    with service_leases.changed(state(site)) as book:
        book["leases"][name] = service_leases.end(book["leases"][name], why, NOW)


@pytest.fixture(scope="module")
def site(make_site: MakeSite) -> Site:
    """Two hosts, a notebook and a service with two replicas on the first; nothing of them runs, since there is no engine."""
    made = make_site(lab_1="a100-80gb:1", lab_2="a100-80gb:1")
    made.variables(HOST, fleet_gpu_modes=["mig"])
    made.variables("lab-2", fleet_environment="research")
    made.manifest("nb", lease={"days": 7, "idle_minutes": 60})
    made.manifest("ocr")
    made.done("plan")
    return made


def test_apply_grants_a_lease_once_and_check_mode_said_so(site: Site) -> None:
    predicted = site.done("apply", "--check", "--diff")
    assert not service_leases.path_in(state(site)).exists()
    assert ("Grant its lease", HOST) in predicted.changed()
    applied = site.done("apply", "--diff")
    assert applied.changed().count(("Grant its lease", HOST)) == 1
    granted = lease_of(site)
    assert (granted["team"], granted["days"], granted["idle"]["minutes"]) == ("claims", 7, 60)
    assert list(service_leases.read(state(site))["leases"]) == ["nb-1"]
    kept = service_leases.path_in(state(site)).read_bytes()
    again = site.done("apply")
    assert (again.changed(), service_leases.path_in(state(site)).read_bytes()) == ([], kept)


def test_a_changed_number_of_days_counts_from_the_beginning(site: Site) -> None:
    before = lease_of(site)
    site.manifest("nb", lease={"days": 8, "idle_minutes": 60})
    promised, done = (site.done("apply", *options).changed() for options in (["--check"], []))
    assert promised == [("Grant its lease", HOST), ("Promise other facts", HOST)]
    assert done == [("Grant its lease", HOST), ("Write what changed", HOST)]
    after = lease_of(site)
    gained = service_leases.moment(after["ends"]) - service_leases.moment(before["ends"])
    assert (after["began"], gained) == (before["began"], timedelta(days=1))
    assert site.done("apply").changed() == []


def test_terms_of_a_lease_that_no_fact_tells_promise_no_other_facts(site: Site) -> None:
    site.manifest("nb", lease={"days": 8, "idle_minutes": 90})
    for options in (["--check"], []):
        assert site.done("apply", *options).changed() == [("Grant its lease", HOST)]


def test_status_and_check_say_when_it_ends(site: Site) -> None:
    words = f"{HOST} nb-1: its lease ends {lease_of(site)['ends']}"
    assert words in site.done("status").output
    assert words in site.done("check").output


def test_an_extension_that_is_refused_is_one_line_and_changes_nothing(site: Site) -> None:
    kept = service_leases.path_in(state(site)).read_bytes()
    assert (
        site.play("extend", "-e", "service=nb", "-e", "days=31")
        .message()
        .startswith("days: 31 days are too many; at most 30 days from now")
    )
    assert site.play("extend", "-e", "service=nb").message().startswith("say which and for how long: ")
    assert site.play("extend", "-e", "service=ocr", "-e", "days=3").message() == "no host has a lease of ocr"
    assert (service_leases.path_in(state(site)).read_bytes(), (state(site) / "lease.json").exists()) == (kept, False)


def test_apply_leaves_an_ended_one_stopped_and_says_so(site: Site) -> None:
    end(site, "nb-1")
    applied = site.done("apply")
    over = f"nb-1: its lease is over since {lease_of(site)['ended']}: extend it, or remove the manifest. It stays stopped"
    assert over in applied.output
    assert applied.output.count("the files in") == 1  # of the other service: there is no engine here
    assert f"{HOST} nb-1: its lease is over since {lease_of(site)['ended']} (lease over); playbook extend" in site.done("status").output


@pytest.fixture
def engine(site: Site, tmp_path: Path) -> Iterator[t.Any]:
    """The host gets an engine, and a ``docker`` that makes containers in it. The notebook's container has ended."""
    programs = agent_world.Programs(tmp_path / "world")
    (tmp_path / "engine").mkdir()
    running = agent_world.AgentEngine(tmp_path / "engine")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    socket = site.work / HOST / "docker.sock"
    socket.symlink_to(running.path)
    running.put("nb-1", ["nvidia.com/gpu=MIG-of-the-last-boot"], "exited")
    path = os.environ["PATH"]
    os.environ["PATH"] = programs.path
    yield running
    os.environ["PATH"] = path
    socket.unlink()
    running.shutdown()
    running.server_close()
    thread.join()
    shutil.rmtree(tmp_path / "engine")


def test_one_command_extends_it_and_starts_it_again_on_its_slice(site: Site, engine: t.Any) -> None:
    asked = ("extend", "-e", "service=nb", "-e", "days=10", *LIN)
    predicted = site.done(*asked, "--check", "--diff")
    assert ("Extend it, and start it again where it had ended", HOST) in predicted.changed()
    assert (engine.devices(), lease_of(site)["ended"] is None) == ({}, False)
    done = site.done(*asked, "--diff")
    assert ("Extend it, and start it again where it had ended", HOST) in done.changed()
    gpu = json.loads(site.simctl(HOST, "show", "--json"))["gpus"][0]
    mine = next(line for line in site.plan(HOST)["services"] if line["service"] == "nb")
    (uuid,) = [one["ci"][0]["uuid"] for one in gpu["mig"]["instances"] if one["start"] == mine["start"]]
    assert [name.removeprefix("nvidia.com/gpu=") for name in engine.devices()["nb-1"]] == [uuid]
    record = lease_of(site)
    assert (record["ended"], record["restart"], record["extended"][0]["by"]) == (None, False, "lin")
    assert f"nb-1: its lease ends {record['ends']}" in done.output
    again = site.done(*asked)
    assert [change for change in again.changed() if change[0].startswith("Extend")] in (
        [],
        [("Extend it, and start it again where it had ended", HOST)],
    )
    assert not (state(site) / "lease.json").exists()


def test_a_lease_that_leaves_the_manifest_is_forgotten(site: Site) -> None:
    site.manifest("nb")
    applied = site.done("apply")
    assert ("Forget a lease that it has no more", HOST) in applied.changed()
    assert service_leases.read(state(site))["leases"] == {}
    assert site.done("apply").changed() == []
