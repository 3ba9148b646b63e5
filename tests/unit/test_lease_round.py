# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a service's lease on a host: simulated GPUs, a real socket and a ``docker`` that remembers; time is handed over."""

from __future__ import annotations

import functools
import json
import os
import threading
import typing as t
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from agent_world import AgentEngine, Programs
from ansible_collections.gpuops.fleet.plugins.module_utils import agent, lease, lease_end, lease_round, plan_record, services, utilisation
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Clock, Load, Terms
from mig_world import H100, World

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
PLACES = {"nb-1": ("1g.10gb", 4), "ocr-1": ("1g.10gb", 5)}


class Desk:
    """A host with a notebook that has a lease and a service that has none, both running."""

    def __init__(self, fleet: World, where: Path, engine: AgentEngine, programs: Programs) -> None:
        self.fleet, self.engine, self.programs, self.where = fleet, engine, programs, where
        self.config = Config(
            state_dir=fleet.state_dir,
            services_dir=where / "services",
            docker_socket=Path(engine.path),
            proc_root=where / "no-proc",
            health_wait=3,
            command_wait=20,
            lease_wait=1,
            secrets_dir=where / "secrets",
        )
        self.said: list[str] = []
        self.load: Load | None = Load(0.5)
        self.measured = 0
        assert not fleet.mig((0, "1g.10gb@4", "1g.10gb@5"))["failed"]
        lines = []
        for name, (profile, start) in PLACES.items():
            place = {"gpu": fleet.uuids[0], "profile": profile, "start": start}
            folder = self.config.services_dir / name
            folder.mkdir(parents=True)
            (folder / "compose.yml").write_text("services: {}\n")
            entries = [{"name": "GPU_0", **place}]
            (folder / "devices.json").write_text(json.dumps({"format": 1, "project": name, "style": "cdi", "entries": entries}))
            lines.append({"service": name[:-2], "replica": 1, **place})
        record = {"serial": 3, "digest": "sha256:x", "state": "done", "services": lines, "standing": []}
        plan_record.write(self.config.state_dir, record)
        assert services.bring_up(self.config, say=self.said.append) == []

    def grant(self, days: float = 7, name: str = "nb", **more: t.Any) -> None:
        with leases.changed(self.config.state_dir) as book:
            known = book["leases"].get(f"{name}-1")
            book["leases"][f"{name}-1"] = leases.grant(known, name, 1, "claims", Terms(days, **more), NOON)

    def record(self, name: str = "nb-1") -> leases.Record:
        return dict(leases.read(self.config.state_dir)["leases"][name])

    def look(self, now: datetime, **clock: t.Any) -> list[str]:
        self.said.clear()
        return lease_round.look(self.config, Clock(now, **clock), self.said.append, self.measure)

    def measure(self, devices: Mapping[str, t.Any]) -> dict[str, Load]:
        self.measured += 1
        return {} if self.load is None else dict.fromkeys(devices, self.load)

    def running(self) -> list[str]:
        return sorted(self.engine.devices())

    def uuid(self, start: int) -> str:
        return str(next(one["ci"][0]["uuid"] for one in self.fleet.show()[0]["mig"]["instances"] if one["start"] == start))

    def stops(self) -> list[list[str]]:
        return [words for words in self.programs.composed() if "stop" in words]

    def home(self, name: str = "nb-1") -> Path:
        """The replica's container gets a home on the host."""
        home = self.where / "homes" / name
        home.mkdir(parents=True)
        (known,) = [one for one in self.engine.containers.values() if one["Name"] == f"/{name}"]
        known["Mounts"] = [
            {"Type": "bind", "Source": str(self.where), "Destination": "/models", "RW": False},
            {"Type": "bind", "Source": str(home), "Destination": "/home/jovyan/work", "RW": True},
            {"Type": "bind", "Source": str(self.where), "Destination": "/srv", "RW": True},
        ]
        return home


@pytest.fixture
def desk(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    programs = Programs(tmp_path / "world")
    monkeypatch.setenv("PATH", programs.path)
    engine = AgentEngine(tmp_path)
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield Desk(World(fleet_host(H100), run_module, tmp_path), tmp_path, engine, programs)
    engine.shutdown()
    engine.server_close()
    thread.join()


def test_a_lease_that_is_over_stops_its_replica_alone_and_removes_nothing(desk: Desk) -> None:
    desk.grant()
    assert desk.look(NOON + 6 * DAY - MINUTE) == []
    assert (desk.said, desk.running()) == ([], ["nb-1", "ocr-1"])
    assert desk.look(NOON + 7 * DAY) == []
    assert desk.running() == ["ocr-1"]
    assert desk.stops() == [["--host", f"unix://{desk.config.docker_socket}", "compose", "--project-name", "nb-1", "stop"]]
    assert {known["Name"] for known in desk.engine.containers.values()} == {"/nb-1", "/ocr-1"}
    assert (desk.config.services_dir / "nb-1" / "compose.yml").exists()
    assert desk.said[-2:] == [
        "nb-1: its lease is over since 2026-11-28T12:00:00Z: extend it, or remove the manifest",
        "nb-1: stopped; its files are kept",
    ]
    assert (desk.record()["ended"], desk.record()["why"]) == ("2026-11-28T12:00:00Z", leases.OVER)
    assert not (desk.config.state_dir / "lease.json").exists()
    again = len(desk.programs.composed())
    assert desk.look(NOON + 7 * DAY + 5 * MINUTE) == []
    assert (desk.said, len(desk.programs.composed())) == ([], again)


def test_nobody_starts_it_again_and_everybody_says_why(desk: Desk) -> None:
    desk.grant()
    desk.look(NOON + 7 * DAY)
    words = "its lease is over since 2026-11-28T12:00:00Z: extend it, or remove the manifest"
    assert services.bring_up(desk.config, say=desk.said.append) == []
    assert f"nb-1: not started, {words}" in desk.said
    with pytest.raises(FleetError, match=words):
        services.heal(desk.config.plain(), "nb-1")
    assert f"nb-1: not started, {words}" in services.describe(desk.config)[0]
    assert desk.running() == ["ocr-1"]


def test_the_notice_is_given_once_in_the_journal_and_in_the_home(desk: Desk) -> None:
    desk.grant()
    home = desk.home()
    assert desk.look(NOON + 6 * DAY) == []
    assert desk.said == ["nb-1: notice: its lease ends 2026-11-28T12:00:00Z; playbook extend makes it last longer"]
    text = (home / "LEASE-ENDS.txt").read_text()
    assert text.startswith("nb-1 of team claims ends at 2026-11-28T12:00:00Z (UTC): its lease is over then.\n")
    assert (home / "LEASE-ENDS.txt").stat().st_mode & 0o777 == 0o644
    assert desk.look(NOON + 6 * DAY + 5 * MINUTE) == []
    assert desk.said == []
    place = f"slice 1g.10gb@4 of {desk.fleet.uuids[0]}"
    assert services.describe(desk.config)[0][0] == f"nb-1: runs, on {place}; its lease ends 2026-11-28T12:00:00Z, notice is given"
    desk.grant(14)
    desk.look(NOON + 6 * DAY + 10 * MINUTE)
    assert list(home.iterdir()) == []


def test_a_link_in_the_home_is_replaced_and_never_followed(desk: Desk) -> None:
    desk.grant()
    home, mine = desk.home(), desk.where / "mine"
    mine.write_text("not theirs")
    (home / "LEASE-ENDS.txt").symlink_to(mine)
    assert desk.look(NOON + 6 * DAY) == []
    assert (mine.read_text(), (home / "LEASE-ENDS.txt").is_symlink()) == ("not theirs", False)
    (home / "LEASE-ENDS.txt").unlink()
    home.rmdir()
    (desk.where / "elsewhere").mkdir()
    home.symlink_to(desk.where / "elsewhere")
    problems = desk.look(NOON + 6 * DAY + MINUTE)
    assert problems == [f"nb-1: the notice could not be put into {home}: Not a directory"]
    assert list((desk.where / "elsewhere").iterdir()) == []


def test_an_idle_notebook_ends_after_its_notice_and_the_home_says_so_before(desk: Desk) -> None:
    desk.grant(idle_minutes=60)
    home = desk.home()
    for minutes in range(0, 65, 5):
        desk.load = Load(0.0)
        assert desk.look(NOON + minutes * MINUTE) == []
        assert desk.running() == (["nb-1", "ocr-1"] if minutes < 60 else ["ocr-1"])
        assert (home / "LEASE-ENDS.txt").exists() == (minutes >= 30)
    assert (desk.record()["ended"], desk.record()["why"]) == ("2026-11-21T13:00:00Z", leases.IDLE)
    assert "It ends at 2026-11-21T13:00:00Z (UTC) unless the GPU is used before." in (home / "LEASE-ENDS.txt").read_text()


def test_what_cannot_be_seen_ends_no_notebook(desk: Desk) -> None:
    desk.grant(idle_minutes=5)
    desk.load = Load(None, "no dcgmi")
    for minutes in range(0, 120, 5):
        assert desk.look(NOON + minutes * MINUTE) == []
        assert len(desk.said) == (1 if minutes == 0 else 0)
    assert desk.running() == ["nb-1", "ocr-1"]


def test_what_nvml_itself_counts_of_a_slice_decides(desk: Desk) -> None:
    desk.grant(idle_minutes=5)
    measure = functools.partial(utilisation.measure, seconds=1, sleep=lambda _seconds: None)
    desk.fleet.host.simctl("set", "--gpu", "0", "utilization", "40")
    for minutes in (0, 5, 10):
        assert lease_round.look(desk.config, Clock(NOON + minutes * MINUTE), desk.said.append, measure) == []
    assert (desk.running(), desk.record()["idle"]["share"]) == (["nb-1", "ocr-1"], 0.4)
    desk.fleet.host.simctl("set", "--gpu", "0", "utilization", "3")
    for minutes in (15, 18, 20, 25):
        assert lease_round.look(desk.config, Clock(NOON + minutes * MINUTE), desk.said.append, measure) == []
    assert (desk.running(), desk.record()["why"]) == (["ocr-1"], leases.IDLE)


def test_a_play_that_holds_the_host_goes_first_and_the_next_look_does_what_is_left(desk: Desk) -> None:
    desk.grant(idle_minutes=5)
    mine, _over = lease.acquire(desk.config.state_dir, "alice", "apply plan 4", 600)
    with pytest.raises(lease.LeaseError, match="this host is held by alice"):
        desk.look(NOON + 7 * DAY)
    assert (desk.running(), desk.record()["ended"], desk.measured) == (["nb-1", "ocr-1"], None, 0)
    lease.release(desk.config.state_dir, mine.token)
    assert desk.look(NOON + 7 * DAY + 5 * MINUTE) == []
    assert desk.running() == ["ocr-1"]


def test_a_host_where_nothing_is_due_is_held_by_nobody(desk: Desk) -> None:
    desk.grant()
    lease.acquire(desk.config.state_dir, "alice", "apply plan 4", 600)
    assert desk.look(NOON) == []


def test_a_run_that_died_after_it_noted_the_end_is_completed_by_the_next(desk: Desk) -> None:
    desk.grant()
    with leases.changed(desk.config.state_dir) as book:
        book["leases"]["nb-1"] = leases.end(book["leases"]["nb-1"], leases.OVER, NOON + 7 * DAY)
    assert desk.running() == ["nb-1", "ocr-1"]
    assert desk.look(NOON + 7 * DAY + MINUTE) == []
    assert desk.running() == ["ocr-1"]
    assert desk.said[0].startswith("nb-1: it runs although its lease is over since 2026-11-28T12:00:00Z")


def test_what_compose_cannot_stop_is_named_and_tried_again(desk: Desk) -> None:
    desk.grant()
    desk.programs.docker_rules(fail={"nb-1": "permission denied"})
    assert desk.look(NOON + 7 * DAY) == ["nb-1: its lease is over, and Docker Compose could not stop it: permission denied"]
    desk.programs.docker_rules()
    assert desk.look(NOON + 7 * DAY + 5 * MINUTE) == []
    assert desk.running() == ["ocr-1"]


def test_a_clock_that_jumps_ahead_ends_nothing_before_the_next_look(desk: Desk) -> None:
    desk.grant()
    desk.look(NOON, uptime=100.0, boot="b")
    assert desk.look(NOON + 30 * DAY, uptime=400.0, boot="b") == [
        "this host's clock jumped ahead by 2591700 s: no lease ends by it before the next look"
    ]
    assert desk.running() == ["nb-1", "ocr-1"]
    assert desk.look(NOON + 10 * MINUTE, uptime=700.0, boot="b")[0].startswith("this host's clock went back by ")
    assert desk.look(NOON + 15 * MINUTE, uptime=1000.0, boot="b") == []
    assert desk.running() == ["nb-1", "ocr-1"]
    desk.look(NOON + 30 * DAY, uptime=1300.0, boot="b")
    desk.look(NOON + 30 * DAY + 5 * MINUTE, uptime=1600.0, boot="b")
    assert desk.running() == ["ocr-1"]


def test_a_lease_that_ran_out_while_the_host_was_off_ends_before_anything_is_started(desk: Desk) -> None:
    desk.grant()
    with leases.changed(desk.config.state_dir) as book:
        book["leases"]["nb-1"].update(began="2020-01-01T00:00:00Z", ends="2020-01-02T00:00:00Z", notice_at="2020-01-01T00:00:00Z")
    for known in desk.engine.containers.values():
        known["State"]["Status"] = "exited"
    before = len(desk.programs.composed())
    assert services.bring_up(desk.config, say=desk.said.append) == []
    assert desk.running() == ["ocr-1"]
    assert [words[words.index("--project-name") + 1] for words in desk.programs.composed()[before:]] == ["ocr-1"]
    assert desk.record()["why"] == leases.OVER


def test_a_damaged_file_is_named_and_nothing_is_stopped_or_kept_from_starting(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.grant()
    path = leases.path_in(desk.config.state_dir)
    path.write_text("{")
    config = desk.where / "agent.json"
    config.write_text(json.dumps({"format": 1, **desk.config.plain()}))
    assert agent.main(["leases", "--config", str(config)]) == agent.FAILED
    said = capsys.readouterr().err
    assert (said.startswith(f"{path}: this file is not JSON; "), said.count("\n")) == (True, 1)
    assert desk.running() == ["nb-1", "ocr-1"]
    for known in desk.engine.containers.values():
        known["State"]["Status"] = "exited"
    (problem,) = services.bring_up(desk.config, say=desk.said.append)
    assert problem.startswith(f"leases of services: {path}: ")
    assert desk.running() == ["nb-1", "ocr-1"]
    lines, well = services.describe(desk.config)
    assert (lines[0].startswith("leases of services: "), well) == (True, False)


def test_the_verb_gives_way_to_a_play_with_an_exit_status_of_its_own(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    config = desk.where / "agent.json"
    config.write_text(json.dumps({"format": 1, **desk.config.plain()}))
    assert agent.main(["leases", "--config", str(config)]) == agent.WELL
    desk.grant()
    with leases.changed(desk.config.state_dir) as book:
        book["leases"]["nb-1"].update(began="2020-01-01T00:00:00Z", ends="2020-01-02T00:00:00Z", notice_at="2020-01-01T00:00:00Z")
    mine, _over = lease.acquire(desk.config.state_dir, "alice", "apply plan 4", 600)
    assert agent.main(["leases", "--config", str(config)]) == agent.HELD
    assert capsys.readouterr().err.startswith("this host is held by alice (apply plan 4), for ")
    lease.release(desk.config.state_dir, mine.token)
    assert agent.main(["leases", "--config", str(config)]) == agent.WELL
    assert desk.running() == ["ocr-1"]


def test_a_host_without_leases_asks_nobody(desk: Desk) -> None:
    asked = len(desk.engine.calls)
    assert desk.look(NOON) == []
    assert (len(desk.engine.calls), leases.path_in(desk.config.state_dir).exists()) == (asked, False)


def test_a_home_is_what_can_be_written_at_home_in_the_container() -> None:
    def mount(inside: str, source: str, writable: bool = True) -> dict[str, t.Any]:
        return {"Destination": inside, "Source": source, "RW": writable}

    assert lease_end.home_of([{"Mounts": [mount("/homework", "/a"), mount("/data", "/b"), mount("/home/x", "/c", False)]}]) is None
    assert lease_end.home_of([{"Mounts": [mount("/home/x/deep", "/d"), mount("/home/x", "/e")]}, {}]) == Path("/e")
    assert lease_end.home_of([{"Mounts": [mount("/root", "/f")]}]) == Path("/f")
    assert lease_end.home_of([]) is None


def test_a_notice_that_cannot_be_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "LEASE-ENDS.txt").mkdir()
    with pytest.raises(OSError, match="directory"):
        lease_end.write_notice(tmp_path, "text")
    assert os.listdir(tmp_path) == ["LEASE-ENDS.txt"]
    lease_end.remove_notice(tmp_path / "gone")


# ---- module service_lease


class Module:
    """Module ``service_lease`` on the desk's host; time is the real one."""

    def __init__(self, desk: Desk, run_module: RunModule) -> None:
        self.desk, self._run = desk, run_module

    def __call__(self, state: str, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        paths = {name: str(getattr(self.desk.config, name)) for name in ("state_dir", "services_dir", "docker_socket", "secrets_dir")}
        given = {"state": state, "service": "nb", "replica": 1, "timeout": 3, **paths, **more}
        return self._run("service_lease", given, check=check)


@pytest.fixture
def module(desk: Desk, run_module: RunModule) -> Module:
    return Module(desk, run_module)


def test_a_second_grant_changes_nothing_and_check_mode_writes_nothing(desk: Desk, module: Module) -> None:
    path = leases.path_in(desk.config.state_dir)
    terms = {"team": "claims", "days": 7, "idle_minutes": 60}
    predicted = module("granted", check=True, **terms)
    assert (predicted["changed"], path.exists()) == (True, False)
    first = module("granted", **terms)
    assert (first["changed"], first["ended"], first["diff"]["before"]) == (True, False, "")
    assert first["diff"]["after"] == f"nb-1: its lease ends {first['ends']}\n"
    kept = path.read_text()
    again = module("granted", **terms)
    assert (again["changed"], path.read_text(), again["ends"]) == (False, kept, first["ends"])
    assert (predicted["other_facts"], first["other_facts"], again["other_facts"]) == (True, True, False)
    longer, idler = module("granted", **{**terms, "days": 8}), module("granted", **{**terms, "days": 8, "idle_minutes": 90})
    assert [(one["changed"], one["other_facts"]) for one in (longer, idler)] == [(True, True), (True, False)]


def test_one_command_extends_what_had_ended_and_starts_it_on_its_own_slice(desk: Desk, module: Module) -> None:
    desk.grant()
    home = desk.home()
    desk.look(NOON + 6 * DAY)
    desk.look(NOON + 7 * DAY)
    assert (desk.running(), (home / "LEASE-ENDS.txt").exists()) == (["ocr-1"], True)
    assert module("granted", team="claims", days=7)["ended"]
    far = "2120-01-01"
    refused = module("extended", until=far, by="lin")
    assert refused["msg"].startswith("until: 2120-01-01T23:59:59Z is too far away; at most 30 days from now (fleet_lease_max_days)")
    asked = {"until": far, "by": "lin", "max_days": 100000}
    predicted = module("extended", check=True, **asked)
    assert (predicted["changed"], predicted["steps"], desk.running()) == (True, ["start nb-1 again"], ["ocr-1"])
    done = module("extended", **asked)
    assert (done["failed"], done["changed"], done["steps"], done["ended"]) == (False, True, ["start nb-1 again"], False), done
    assert done["diff"]["after"] == "nb-1: its lease ends 2120-01-01T23:59:59Z, extended by lin\n"
    assert desk.engine.devices()["nb-1"] == [f"nvidia.com/gpu={desk.uuid(4)}"]
    assert (desk.record()["restart"], (home / "LEASE-ENDS.txt").exists()) == (False, False)
    again = module("extended", **asked)
    assert (again["changed"], again["steps"]) == (False, [])


def test_an_extension_that_died_before_the_start_is_completed_by_the_timer_or_the_next_one(desk: Desk, module: Module) -> None:
    desk.grant()
    desk.look(NOON + 7 * DAY)
    desk.programs.docker_rules(fail={"nb-1": "No such image"})
    asked = {"until": "2120-01-01", "by": "lin", "max_days": 100000}
    assert module("extended", **asked)["msg"] == "nb-1: Docker Compose could not start it: No such image"
    assert desk.record()["restart"]
    assert desk.look(NOON + 8 * DAY) == ["nb-1: Docker Compose could not start it: No such image"]
    desk.programs.docker_rules()
    assert desk.look(NOON + 8 * DAY + 5 * MINUTE) == []
    assert (desk.running(), desk.record()["restart"]) == (["nb-1", "ocr-1"], False)


def test_a_lease_is_ended_by_hand_and_forgotten(desk: Desk, module: Module) -> None:
    desk.grant()
    predicted = module("ended", check=True, by="lin")
    assert (predicted["changed"], predicted["steps"], desk.running()) == (True, ["stop nb-1"], ["nb-1", "ocr-1"])
    done = module("ended", by="lin")
    assert (done["changed"], done["ended"], desk.running()) == (True, True, ["ocr-1"])
    assert desk.record()["why"] == "ended by lin"
    assert not module("ended", by="ann")["changed"]
    assert module("removed")["changed"]
    assert leases.read(desk.config.state_dir)["leases"] == {}
    assert not module("removed")["changed"]


def test_what_has_no_lease_is_not_extended_and_a_held_host_is_not_changed(desk: Desk, module: Module) -> None:
    assert module("extended", days=3, by="lin")["msg"].startswith("service: nb-1 has no lease on this host; a lease begins when apply ")
    desk.grant()
    mine, _over = lease.acquire(desk.config.state_dir, "alice", "apply plan 4", 600)
    assert module("extended", days=3, by="lin")["msg"].startswith("this host is held by alice (apply plan 4), for ")
    assert not module("extended", days=3, by="lin", lease=mine.token)["failed"]
