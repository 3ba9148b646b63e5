# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watcher against an engine on a real socket and simulated GPUs: what it writes into the ledger, whom it restarts, and whom never."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import typing as t
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import jobs, restarts, service_leases, watch
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import ledger as books
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Holder, Ledger, Place
from ansible_collections.gpuops.fleet.plugins.module_utils.watch import Watch
from event_world import LiveEngine, wait_for

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost, RunModule

BOOT = "11111111-1111-1111-1111-111111111111"


class World:
    """A host with one service, ocr-1, on slice 1g.10gb@4 of its first GPU, an engine, and a watcher that is not started yet."""

    def __init__(self, home: Path, host: FleetHost, run_module: RunModule, engine: LiveEngine) -> None:
        self.home, self.host, self.run_module, self.engine = home, host, run_module, engine
        self.state, self.services, self.proc = home / "state", home / "services", home / "proc"
        self.lines: list[str] = []
        self.gpus = [gpu["uuid"] for gpu in host.simctl("show", "--json")["gpus"]]
        self.cut({"profile": "1g.10gb", "start": 4}, {"profile": "3g.40gb", "start": 0})
        self.boot(BOOT, time.time() - 1000)
        self.place("ocr-1", {"profile": "1g.10gb", "start": 4})
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    @property
    def settings(self) -> dict[str, t.Any]:
        paths = {"state_dir": self.state, "services_dir": self.services, "proc_root": self.proc, "docker_socket": self.engine.path}
        return {**{name: str(path) for name, path in paths.items()}, "docker": str(self.home / "bin" / "docker")}

    def cut(self, *instances: dict[str, t.Any]) -> None:
        asked = {"layout": [{"gpu": self.gpus[0], "mig": True, "instances": list(instances)}], "state_dir": str(self.home / "mig")}
        done = self.run_module("mig", asked)
        assert not done["failed"], done

    def boot(self, boot_id: str, at: float) -> None:
        (self.proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
        (self.proc / "stat").write_text(f"cpu  1 2 3\nbtime {int(at)}\n")

    def place(self, name: str, place: dict[str, t.Any]) -> None:
        entry = {"name": "GPU_0", "gpu": self.gpus[0], **place}
        write_json(self.services / name / "devices.json", {"format": 1, "project": name, "style": "uuid", "entries": [entry]})
        (self.services / name / "compose.yml").write_text("services: {}\n")

    def uuid(self, start: int = 4) -> str:
        instances = self.host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]
        return str(next(one["ci"][0]["uuid"] for one in instances if one["start"] == start))

    def serve(self, **more: t.Any) -> str:
        """The service's container, running."""
        return self.engine.service("a1", "ocr-1", self.uuid(), **more)

    def begin(self) -> None:
        """Start the watcher, and wait until it follows the engine."""
        time.sleep(0.005)  # what the engine told of is over
        self._watch = Watch(self.settings, self.lines.append)
        before = len(self.lines)
        self._thread = threading.Thread(target=self._watch.work)
        self._thread.start()
        wait_for(lambda: any(line.startswith("following") for line in self.lines[before:]))

    def end(self) -> None:
        if self._watch is not None and self._thread is not None:
            self._watch.end()
            self._thread.join(10)
            assert not self._thread.is_alive()
        self._watch = self._thread = None

    def holds(self) -> list[dict[str, t.Any]]:
        path = books.path_in(self.state)
        if not path.exists():
            return []
        with Ledger(path, read_only=True) as ledger:
            return ledger.holds(0, time.time() + 10**6)

    def spans(self) -> list[tuple[t.Any, ...]]:
        """(name, start of slice, why) by begin; why is None while it lasts."""
        return [(hold["name"], hold["start"], hold["why"]) for hold in self.holds()]

    def said(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.lines)

    def runs(self, identifier: str) -> bool:
        return bool(self.engine.containers[identifier]["State"]["Running"])


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, seconds in (("FIRST_S", 0.05), ("HELD_S", 0.1), ("DRAINED_S", 0.1)):
        monkeypatch.setattr(restarts, name, seconds)
    monkeypatch.setattr(watch, "FIRST_RETRY_S", 0.05)
    monkeypatch.setattr(watch, "BEAT_S", 0.5)
    with LiveEngine(tmp_path) as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        made = World(tmp_path, fleet_host("h100-80gb:1", "l40s-48gb"), run_module, engine)
        yield made
        made.end()
        engine.hang_up()
        engine.shutdown()
        thread.join()


def test_a_service_that_runs_already_is_noted_with_its_slice_and_its_owner(world: World) -> None:
    identifier = world.serve()
    world.begin()
    (hold,) = wait_for(world.holds)
    wanted = {"gpu": world.gpus[0], "profile": "1g.10gb", "start": 4, "service": "ocr", "replica": 1, "team": "claims", "name": "ocr-1"}
    assert {key: hold[key] for key in wanted} == wanted
    assert (hold["environment"], hold["container"], hold["ended"]) == ("prod", identifier[:12], None)
    assert hold["pci"] == world.host.simctl("show", "--json")["gpus"][0]["pci"]
    assert abs(hold["began"] - time.time()) < 5


def test_containers_of_others_are_noted_as_they_are_and_never_restarted(world: World) -> None:
    whole = world.engine.create("b1", "by-hand", world.gpus[1])
    world.engine.begin(whole)
    world.engine.begin(world.engine.create("c1", "web"))
    world.begin()
    lost = world.engine.create("d1", "stranger", "GPU-of-nobody")
    world.engine.begin(lost)
    wait_for(lambda: len(world.holds()) == 2)
    first, second = world.holds()
    assert (first["gpu"], first["profile"], first["service"], first["name"]) == (world.gpus[1], None, None, "by-hand")
    assert second["gpu"] == "GPU-of-nobody"
    world.engine.die(whole)
    wait_for(lambda: world.spans()[0][2])
    time.sleep(0.3)
    assert world.spans() == [("by-hand", None, "failed"), ("stranger", None, None)]
    assert world.engine.starts() == 0


@pytest.mark.parametrize(("code", "why"), [(1, "failed"), (0, "exited"), (137, "failed")])
def test_a_service_that_dies_by_itself_is_started_again(world: World, code: int, why: str) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier, code)
    wait_for(lambda: len(world.holds()) == 2)
    assert world.spans() == [("ocr-1", 4, why), ("ocr-1", 4, None)]
    first, second = world.holds()
    assert (first["exit_code"], world.runs(identifier), world.engine.starts()) == (code, True, 1)
    assert first["ended"] <= second["began"]
    assert world.said("ocr-1: started on slice 1g.10gb@4")


def test_the_kernel_takes_its_memory_and_the_ledger_says_so(world: World) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.tell("oom", identifier)
    world.engine.die(identifier, 137)
    wait_for(lambda: world.runs(identifier) and len(world.holds()) == 2)
    assert world.spans()[0] == ("ocr-1", 4, "out of memory")


@pytest.mark.parametrize("signal_number", [15, 9, 2])
def test_what_somebody_stopped_stays_stopped(world: World, signal_number: int) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.stop(identifier, signal_number)
    wait_for(lambda: world.spans() == [("ocr-1", 4, "stopped")])
    time.sleep(0.3)
    assert world.engine.starts() == 0
    world.engine.hang_up()  # nor does it start when the watcher looks at everything again, or starts itself
    wait_for(lambda: sum(line.startswith("following") for line in world.lines) == 2)
    world.end()
    world.begin()
    time.sleep(0.3)
    assert world.engine.starts() == 0
    world.engine.begin(identifier)
    wait_for(lambda: len(world.holds()) == 2)
    world.engine.die(identifier)
    wait_for(lambda: world.engine.starts() == 1)


def end_lease(world: World, why: str) -> None:
    """As the host agent's timer notes it before it stops the replica."""
    now = datetime.now(UTC)
    with service_leases.changed(world.state) as book:
        record = service_leases.grant(None, "ocr", 1, "claims", service_leases.Terms(1), now)
        book["leases"]["ocr-1"] = service_leases.end(record, why, now)


@pytest.mark.parametrize("watched", [True, False])
def test_the_ledger_says_that_a_lease_was_over_and_nobody_starts_the_service_again(world: World, watched: bool) -> None:
    identifier = world.serve()
    world.begin()
    wait_for(world.holds)
    if not watched:
        world.end()
    end_lease(world, "idle")
    if watched:
        world.engine.stop(identifier)
    else:
        world.engine.silently_die(identifier, 143, time.time())
        world.begin()
    wait_for(lambda: world.spans() == [("ocr-1", 4, "idle")])
    time.sleep(0.3)
    assert world.engine.starts() == 0
    assert not watched or world.said("ocr-1: idle as its lease says (exit 143)")


def test_a_service_whose_lease_is_over_is_not_started_when_it_dies_by_itself(world: World) -> None:
    identifier = world.serve()
    world.begin()
    end_lease(world, "lease over")
    world.engine.die(identifier, 1)
    wait_for(lambda: world.said("ocr-1: is not started again: its lease is over since "))
    assert world.engine.starts() == 0


def test_a_signal_that_asks_for_something_else_is_no_stop(world: World) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.tell("kill", identifier, signal=1)
    world.engine.die(identifier)
    wait_for(lambda: world.engine.starts() == 1)
    assert world.spans()[0] == ("ocr-1", 4, "failed")


def test_a_container_may_have_another_signal_for_its_stop(world: World) -> None:
    identifier = world.serve()
    world.engine.containers[identifier]["Config"]["StopSignal"] = "SIGWINCH"
    world.begin()
    world.engine.stop(identifier, 28)
    wait_for(lambda: world.spans() == [("ocr-1", 4, "stopped")])


def test_each_restart_waits_twice_as_long_until_it_does_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "LAST_S", 0.2)
    identifier = world.serve()
    world.begin()
    for count in range(1, 5):
        world.engine.die(identifier)
        wait_for(lambda: world.engine.starts() == count and world.runs(identifier))  # noqa: B023
    waits = [line.rpartition(" in ")[2] for line in world.lines if "started again in" in line]
    assert waits == ["0.05 s", "0.1 s", "0.2 s", "0.2 s"]
    wait_for(lambda: len(world.holds()) == 5)
    world.engine.die(identifier, at=time.time() + 601)
    wait_for(lambda: world.engine.starts() == 5)
    assert world.said("again in 0.05 s")
    assert [line.rpartition(" in ")[2] for line in world.lines if "started again in" in line][-1] == "0.05 s"


def test_a_service_that_was_ill_all_the_time_did_not_do_well(world: World) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.runs(identifier))
    world.engine.tell("health_status: unhealthy", identifier)
    wait_for(lambda: world.said("ocr-1: unhealthy"))
    world.engine.die(identifier, at=time.time() + 3600)
    wait_for(lambda: world.engine.starts() == 2)
    assert world.said("started again in 0.1 s")


def test_docker_restarts_what_it_is_told_to_restart(world: World) -> None:
    identifier = world.serve(policy="unless-stopped")
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.spans() == [("ocr-1", 4, "failed")])
    time.sleep(0.3)
    assert world.engine.starts() == 0


def test_nothing_is_started_while_a_play_holds_the_host(world: World) -> None:
    identifier = world.serve()
    world.begin()
    lease, _over = leases.acquire(world.state, "alice", "apply plan 3", 600)
    world.engine.die(identifier)
    wait_for(lambda: world.said("is not started again yet", "alice (apply plan 3)"))
    time.sleep(0.4)
    assert world.engine.starts() == 0
    leases.release(world.state, lease.token)
    wait_for(lambda: world.runs(identifier))
    assert len([line for line in world.lines if "alice" in line]) == 1


def test_nothing_is_started_on_a_gpu_that_is_drained(world: World) -> None:
    identifier = world.serve()
    drain = {"gpu": world.gpus[0], "by": "lin", "reason": "fan", "since": "2026-01-01T00:00:00Z", "until": None, "force": False}
    write_json(world.state / "drains.json", {"format": 1, "drains": [{**drain, "gpu": world.gpus[1]}]})
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.runs(identifier))
    write_json(world.state / "drains.json", {"format": 1, "drains": [drain]})
    world.engine.die(identifier)
    wait_for(lambda: world.said("is not started again yet", "drained by lin (fan)"))
    time.sleep(0.3)
    assert not world.runs(identifier)


def test_a_container_whose_uuid_is_a_neighbours_now_is_brought_up_anew_instead(world: World, tmp_path: Path) -> None:
    """The slice was made again while the container was down; ``docker compose`` is what gives it the new UUID."""
    compose = tmp_path / "bin" / "docker"
    compose.parent.mkdir()
    compose.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\ncp {world.services}/ocr-1/.env {tmp_path}/env-at-start\n')
    compose.chmod(0o755)
    identifier = world.serve()
    old = world.uuid()
    world.begin()
    world.host.simctl("set", "mig-uuid", "new")
    world.cut()
    world.cut({"profile": "1g.10gb", "start": 4})
    assert world.uuid() != old
    world.engine.die(identifier)
    wait_for((tmp_path / "asked").exists)
    wait_for(lambda: world.said("ocr-1: brought up"))
    assert world.engine.starts() == 0
    assert f"GPU_0={world.uuid()}\n" in (tmp_path / "env-at-start").read_text()
    assert "--project-name ocr-1" in (tmp_path / "asked").read_text()
    assert "up --detach" in (tmp_path / "asked").read_text()


def test_a_start_that_the_engine_refuses_is_told_and_tried_in_the_other_way(world: World) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.refusal = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=MIG-1"
    world.engine.die(identifier)
    wait_for(lambda: world.said("ocr-1: it could not be started: CDI device injection failed", "started again in 0.1 s"))
    wait_for(lambda: world.said("ocr-1: is brought up anew on slice 1g.10gb@4"))
    # there is no docker command here
    wait_for(lambda: world.said("ocr-1: it could not be brought up", "started again in 0.2 s"))


def test_a_service_without_papers_is_not_started_on_whatever_its_uuid_means_now(world: World) -> None:
    (world.services / "ocr-1" / "devices.json").unlink()
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.said("ocr-1: is not started again"))
    assert world.engine.starts() == 0


def test_a_service_that_left_the_plan_is_not_started(world: World) -> None:
    record = {"serial": 3, "digest": "sha256:0", "state": "done", "services": [], "standing": []}
    write_json(world.state / "plan.json", record)
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.said("ocr-1: is not started again: it is not in plan 3"))
    assert world.engine.starts() == 0


def test_a_service_that_somebody_stopped_until_it_is_deployed_again_is_not_started(world: World) -> None:
    stop = {"by": "alice", "reason": "", "since": "2026-11-21T12:00:00Z"}
    write_json(world.state / "stopped.json", {"format": 1, "services": {"ocr": stop}})
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.said("ocr-1: is not started again: it was stopped by alice since 2026-11-21T12:00:00Z"))
    assert world.engine.starts() == 0


def test_a_removed_container_is_forgotten(world: World) -> None:
    identifier = world.serve()
    world.begin()
    leases.acquire(world.state, "alice", "apply", 600)
    world.engine.die(identifier)
    wait_for(lambda: world.said("is not started again yet"))
    world.engine.remove(identifier)
    leases.release(world.state, None, force=True)
    time.sleep(0.4)
    assert world.engine.starts() == 0
    assert world.spans() == [("ocr-1", 4, "failed")]


@pytest.mark.parametrize(("code", "asked", "starts"), [(0, False, 0), (3, False, 0), (0, True, 0), (143, True, 1)])
def test_a_job_is_done_with_status_0_and_started_again_only_when_the_engine_took_it_with_it(
    world: World, code: int, asked: bool, starts: int
) -> None:
    identifier = world.serve()
    world.engine.containers[identifier]["Config"]["Labels"][jobs.LABEL] = "sha256:1"
    world.begin()
    if asked:
        world.engine.tell("kill", identifier, signal=15)
    world.engine.die(identifier, code)
    wait_for(lambda: world.said("ocr-1: ", f"(exit {code})"))
    world.engine.hang_up()
    wait_for(lambda: sum(line.startswith("following") for line in world.lines) == 2)
    time.sleep(0.3)
    assert (world.engine.starts(), jobs.is_done(world.services / "ocr-1", "sha256:1")) == (starts, code == 0)


# ---- the engine and the watcher come and go


def test_services_that_went_down_with_the_engine_are_started_when_it_is_back(world: World) -> None:
    """An engine that is stopped stops its containers as if somebody had asked for it, and then hangs up."""
    first = world.serve()
    world.place("llm-1", {"profile": "3g.40gb", "start": 0})
    second = world.engine.service("b2", "llm-1", world.uuid(0))
    world.begin()
    wait_for(lambda: len(world.holds()) == 2)
    world.engine.stop(first)
    wait_for(lambda: world.said("ocr-1: stopped as somebody asked for"))
    world.engine.silently_die(second, 143, time.time())  # of this one it told nothing any more
    world.engine.hang_up()
    wait_for(lambda: world.runs(first) and world.runs(second))
    wait_for(lambda: len(world.holds()) == 4)
    assert sorted(world.spans(), key=str) == sorted(
        [("ocr-1", 4, "stopped"), ("llm-1", 0, "unknown"), ("ocr-1", 4, None), ("llm-1", 0, None)], key=str
    )


def test_with_an_engine_that_leaves_containers_alone_a_stop_stays_a_stop(world: World) -> None:
    first = world.serve()
    world.place("llm-1", {"profile": "3g.40gb", "start": 0})
    second = world.engine.service("b2", "llm-1", world.uuid(0))
    world.begin()
    wait_for(lambda: len(world.holds()) == 2)
    world.engine.stop(first)
    wait_for(lambda: world.said("ocr-1: stopped as somebody asked for"))
    world.engine.hang_up()
    wait_for(lambda: sum(line.startswith("following") for line in world.lines) == 2)
    time.sleep(0.3)
    assert (world.runs(first), world.runs(second), world.engine.starts()) == (False, True, 0)
    assert len(world.holds()) == 2


def test_what_happened_while_it_was_away_is_noted_when_it_is_back(world: World) -> None:
    identifier = world.serve()
    world.begin()
    wait_for(world.holds)
    world.end()
    died = time.time()
    world.engine.die(identifier, 3)
    world.begin()
    wait_for(lambda: world.runs(identifier) and len(world.holds()) == 2)
    first = world.holds()[0]
    assert (first["why"], first["exit_code"]) == ("failed", 3)
    assert abs(first["ended"] - died) < 0.1


def test_a_stop_while_it_was_away_is_respected_as_long_as_the_engine_remembers(world: World) -> None:
    identifier = world.serve()
    world.begin()
    wait_for(world.holds)
    world.end()
    world.engine.stop(identifier)
    world.begin()
    wait_for(lambda: world.spans() == [("ocr-1", 4, "stopped")])
    time.sleep(0.3)
    assert world.engine.starts() == 0


def test_a_restart_that_was_due_when_it_was_killed_is_made_up_for(world: World) -> None:
    identifier = world.serve()
    world.begin()
    leases.acquire(world.state, "alice", "apply", 600)
    world.engine.die(identifier)
    wait_for(lambda: world.said("is not started again yet"))
    world.end()
    world.engine.told.clear()
    leases.release(world.state, None, force=True)
    world.begin()
    wait_for(lambda: world.runs(identifier))


def test_events_that_are_told_twice_are_noted_once(world: World) -> None:
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: len(world.holds()) == 2)
    world.end()
    old = time.time() - 50
    os.utime(books.pulse_in(world.state), (old, old))  # as if it had been killed before its next sign of life
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: len(world.holds()) == 3)
    assert [span[2] for span in world.spans()] == ["failed", "failed", None]


def test_after_a_crash_of_the_host_holds_end_at_its_last_sign_of_life(world: World) -> None:
    crash = time.time() - 500
    gone, back, clean = (Holder("ocr", number, None, None, f"{letter}" * 12, "x") for number, letter in enumerate("ebc"))
    slice_at = Place(world.gpus[0], None, "1g.10gb", 4)
    with Ledger(books.path_in(world.state)) as ledger:
        for holder in (gone, back, clean):
            ledger.begin(slice_at, holder, crash - 100, "the boot before")
    books.pulse_in(world.state).write_text("the boot before 0.000\n")
    os.utime(books.pulse_in(world.state), (crash, crash))
    world.boot(BOOT, crash + 300)
    # The engine says of what died with the host that it ended when the engine came back, and of what it stopped itself the truth.
    for letter, ended in (("b", crash + 310), ("c", crash - 30)):
        full = world.engine.create(letter, f"x-{letter}", world.uuid())
        world.engine.silently_die(full, 255, ended)
    world.begin()
    ends = {hold["container"][0]: (round(hold["ended"] - crash), hold["why"]) for hold in world.holds()}
    assert ends == {"e": (0, "host went down"), "b": (0, "host went down"), "c": (-30, "host went down")}
    assert world.engine.starts() == 0, "after a boot that is the services unit's work"


def test_a_clock_that_was_wrong_at_boot_does_not_make_a_hold_of_decades(world: World) -> None:
    alive = time.time() - 300
    books.pulse_in(world.state).parent.mkdir(parents=True, exist_ok=True)
    books.pulse_in(world.state).write_text("the boot before 0.000\n")
    os.utime(books.pulse_in(world.state), (alive, alive))
    identifier = world.serve()
    world.engine.begin(identifier, 86400.0)
    world.engine.told.clear()
    world.begin()
    (hold,) = wait_for(world.holds)
    assert hold["began"] == pytest.approx(alive, abs=0.01)
    world.end()
    world.begin()  # and it knows that one again
    time.sleep(0.2)
    assert len(world.holds()) == 1


def test_a_ledger_that_is_of_no_use_keeps_nobody_from_being_restarted_and_is_filled_in_later(world: World) -> None:
    path = books.path_in(world.state)
    path.mkdir(parents=True)
    identifier = world.serve()
    world.begin()
    world.engine.die(identifier)
    wait_for(lambda: world.engine.starts() == 1)
    assert world.said("ledger.sqlite: the ledger is of no use")
    path.rmdir()
    wait_for(lambda: world.spans() == [("ocr-1", 4, None)])


def test_it_waits_for_an_engine_that_is_not_there(world: World) -> None:
    hidden = Path(world.engine.path).rename(world.home / "hidden.sock")
    world._watch = Watch(world.settings, world.lines.append)
    world._thread = threading.Thread(target=world._watch.work)
    world._thread.start()
    wait_for(lambda: world.said("Docker engine at", "No such file or directory"))
    hidden.rename(world.engine.path)
    world.serve()
    wait_for(world.holds)


def test_signs_of_life_are_given_and_cost_no_question_to_engine_or_gpu(world: World) -> None:
    world.serve()
    world.begin()
    wait_for(world.holds)
    asked, called = len(world.engine.calls), len(world.host.calls())
    old = time.time() - 50
    os.utime(books.pulse_in(world.state), (old, old))
    wait_for(lambda: (books.last_alive(world.state) or 0) > old + 40)
    assert (len(world.engine.calls), len(world.host.calls())) == (asked, called)
    assert not [name for name in os.listdir("/proc/self/fd") if "nvidia" in os.path.realpath(f"/proc/self/fd/{name}")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_cleanly(world: World, number: signal.Signals) -> None:
    world.serve()
    script = "import json, sys\nfrom ansible_collections.gpuops.fleet.plugins.module_utils import watch\n"
    script += "sys.exit(watch.run(json.loads(sys.argv[1])))"
    env = {**world.host.env, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script, json.dumps(world.settings)], env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(world.holds)
        wait_for(lambda: books.last_alive(world.state))
        before = time.monotonic()
        process.send_signal(number)
        printed, _none = process.communicate(timeout=10)
        assert (process.returncode, time.monotonic() - before < 2) == (0, True)
    finally:
        process.kill()
        process.wait()
    assert f"following the engine at {world.engine.path}\n" in printed
    assert world.spans() == [("ocr-1", 4, None)]
