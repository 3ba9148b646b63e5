# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services after a boot: on their own slices or not at all, from simulated GPUs, a real socket and a ``docker`` that remembers."""

from __future__ import annotations

import json
import threading
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import AgentEngine, Programs
from ansible_collections.gpuops.fleet.plugins.module_utils import jobs, lease, plan_record, services, stopped
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from mig_world import H100, World

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

PLACES = {"ocr-1": ("1g.10gb", 4), "ocr-2": ("1g.10gb", 5), "chat-1": ("3g.40gb", 0)}


class Site:
    """A host whose first GPU has three slices, and three replicas with files; what the agent said, and what it returned."""

    def __init__(self, fleet: World, where: Path, engine: AgentEngine, programs: Programs) -> None:
        self.fleet, self.engine, self.programs = fleet, engine, programs
        self.config = Config(
            state_dir=fleet.state_dir,
            services_dir=where / "services",
            docker_socket=Path(engine.path),
            health_wait=3,
            command_wait=20,
            lease_wait=1,
            secrets_dir=where / "secrets",
        )
        self.said: list[str] = []
        self.gpu = fleet.uuids[0]
        self.cut()
        for name, (profile, start) in PLACES.items():
            self.files(name, profile, start)

    def cut(self, *slices: str) -> None:
        wanted = slices or [f"{profile}@{start}" for profile, start in PLACES.values()]
        done = self.fleet.mig((0, *wanted))
        assert not done["failed"], done

    def files(self, name: str, profile: str, start: int, style: str = "cdi") -> None:
        """As role model_service leaves them, with what the slice was once called."""
        folder = self.config.services_dir / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "compose.yml").write_text("services: {}\n")
        (folder / ".env").write_text("GPU_0=nvidia.com/gpu=MIG-of-the-last-boot\n")
        entries = [{"name": "GPU_0", "gpu": self.gpu, "profile": profile, "start": start}]
        text = json.dumps({"format": 1, "project": name, "style": style, "entries": entries})
        (folder / "devices.json").write_text(text)

    def plan(self, state: str = "done", standing: t.Sequence[dict[str, t.Any]] = (), **places: tuple[str, int]) -> None:
        lines = []
        for name, (profile, start) in (places or PLACES).items():
            service, _dash, replica = name.replace("_", "-").rpartition("-")
            lines.append({"service": service, "replica": int(replica), "gpu": self.gpu, "profile": profile, "start": start})
        record = {"serial": 3, "digest": "sha256:x", "state": state, "services": lines, "standing": list(standing)}
        plan_record.write(self.config.state_dir, record)

    def up(self, **more: t.Any) -> list[str]:
        self.said.clear()
        return services.bring_up(self.config, say=self.said.append, **more)

    def uuid(self, start: int) -> str:
        return str(next(one["ci"][0]["uuid"] for one in self.fleet.show()[0]["mig"]["instances"] if one["start"] == start))

    def own(self, *names: str) -> dict[str, list[str]]:
        """Each replica's own device, as its container has to have it."""
        return {name: [f"nvidia.com/gpu={self.uuid(PLACES[name][1])}"] for name in names or PLACES}

    def env(self, name: str) -> str:
        return (self.config.services_dir / name / ".env").read_text().splitlines()[-1]

    def ups(self) -> list[str]:
        """Projects that Compose was asked to start."""
        return [words[words.index("--project-name") + 1] for words in self.programs.composed() if "up" in words]


@pytest.fixture
def site(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    programs = Programs(tmp_path / "world")
    monkeypatch.setenv("PATH", programs.path)
    engine = AgentEngine(tmp_path)
    thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield Site(World(fleet_host(H100), run_module, tmp_path), tmp_path, engine, programs)
    engine.shutdown()
    engine.server_close()
    thread.join()


def test_after_a_boot_each_service_of_the_plan_starts_on_its_own_slice(site: Site) -> None:
    site.plan()
    assert site.up() == []
    assert site.engine.devices() == site.own()
    for name in PLACES:
        assert site.env(name) == f"GPU_0={site.own(name)[name][0]}"
    assert f"ocr-1: started on slice 1g.10gb@4 of {site.gpu} ({site.uuid(4)})" in site.said
    socket, folder = site.config.docker_socket, site.config.services_dir / "ocr-1"
    assert [
        "--host",
        f"unix://{socket}",
        "compose",
        "--project-name",
        "ocr-1",
        "--project-directory",
        str(folder),
        "--file",
        str(folder / "compose.yml"),
        "up",
        "--detach",
        "--no-build",
        "--pull",
        "never",
        "--remove-orphans",
    ] in site.programs.composed()
    assert not (site.config.state_dir / "lease.json").exists()


def test_what_runs_well_on_its_own_slice_is_left_alone(site: Site) -> None:
    site.plan()
    site.up()
    before = dict(site.engine.containers)
    assert site.up() == []
    assert site.engine.containers == before
    assert sorted(site.said) == sorted(
        f"{name}: runs as before on slice {p}@{s} of {site.gpu} ({site.uuid(s)})" for name, (p, s) in PLACES.items()
    )
    assert not [words for words in site.programs.composed() if "stop" in words]


def test_a_replica_without_its_slice_is_named_and_its_container_elsewhere_is_stopped_while_the_others_start(site: Site) -> None:
    site.plan()
    site.cut("1g.10gb@5", "3g.40gb@0")
    stray = site.engine.put("ocr-1", [f"nvidia.com/gpu={site.uuid(5)}"])
    problems = site.up()
    assert problems == [f"ocr-1: not started on slice 1g.10gb@4 of {site.gpu}: there is no slice 1g.10gb@4 of {site.gpu}"]
    assert site.engine.devices() == site.own("ocr-2", "chat-1")
    assert site.engine.containers[stray]["State"]["Status"] == "exited"
    assert f"ocr-1: container ocr-1 ({stray[:12]}) stopped: it ran on {site.uuid(5)}, which is not its own" in site.said
    assert sorted(site.ups()) == ["chat-1", "ocr-2"]


def test_containers_that_came_up_on_each_others_slices_are_all_stopped_before_any_is_started(site: Site) -> None:
    site.plan()
    first = site.engine.put("ocr-1", [f"nvidia.com/gpu={site.uuid(5)}"])
    second = site.engine.put("ocr-2", [f"nvidia.com/gpu={site.uuid(4)}"])
    assert site.up() == []
    assert site.engine.devices() == site.own()
    order = [words[-1] if "stop" in words else "up" for words in site.programs.composed()]
    assert (set(order[:2]), set(order[2:])) == ({first, second}, {"up"})


def test_after_a_crash_in_a_move_the_plans_target_counts_and_not_what_the_files_say(site: Site) -> None:
    site.plan("started", ocr_1=("1g.10gb", 5))
    assert site.up() == []
    assert site.engine.devices() == {"ocr-1": [f"nvidia.com/gpu={site.uuid(5)}"]}


def test_a_directory_of_a_replica_that_left_the_plan_starts_nothing(site: Site) -> None:
    site.plan(ocr_1=PLACES["ocr-1"])
    assert site.up() == []
    assert list(site.engine.devices()) == ["ocr-1"]
    assert {"ocr-2: not started, it is not in plan 3", "chat-1: not started, it is not in plan 3"} <= set(site.said)


def test_a_host_without_a_plan_starts_what_has_a_container_and_not_what_was_taken_down(site: Site) -> None:
    site.engine.put("ocr-1", ["nvidia.com/gpu=MIG-of-the-last-boot"], "exited")
    assert site.up() == []
    assert site.engine.devices() == site.own("ocr-1")
    assert "ocr-2: not started, this host carries no plan, and it has no container: it was taken down" in site.said


def test_a_service_stopped_by_hand_runs_again_when_the_plan_has_it(site: Site) -> None:
    site.plan()
    site.up()
    for known in site.engine.containers.values():
        known["State"]["Status"] = "exited"
    assert site.up() == []
    assert site.engine.devices() == site.own()


def test_a_service_that_somebody_stopped_until_it_is_deployed_again_stays_so_over_a_boot(site: Site) -> None:
    site.plan()
    name = next(iter(PLACES))
    service = name.rpartition("-")[0]
    stop = {"by": "alice", "reason": "its customer left", "since": "2026-11-21T12:00:00Z"}
    stopped.change(site.config.state_dir, service, stop, None, check=False)
    assert site.up() == []
    mine = [one for one in PLACES if one.rpartition("-")[0] == service]
    assert set(site.ups()) == set(PLACES) - set(mine)
    words = f"{name}: not started, it was stopped by alice (its customer left) since 2026-11-21T12:00:00Z"
    assert words in site.said
    assert words in services.describe(site.config)[0]
    stopped.change(site.config.state_dir, service, None, None, check=False)
    assert site.up() == []
    assert set(site.ups()) == set(PLACES)


def test_a_damaged_paper_of_what_is_stopped_is_named_and_all_start(site: Site) -> None:
    site.plan()
    (site.config.state_dir / "stopped.json").write_text("{")
    (problem,) = site.up()
    assert problem.startswith("stopped.json: ")
    assert set(site.ups()) == set(PLACES)


def test_a_container_that_a_person_runs_beside_the_service_is_not_touched(site: Site) -> None:
    site.plan()
    extra = site.engine.put("ocr-1", [f"nvidia.com/gpu={site.uuid(5)}"], **{"com.docker.compose.oneoff": "True"})
    look = services.Looker(site.config)
    with look:
        standing = look.look(services.find(site.config).replicas[0])
    assert (standing.replica.name, standing.containers, standing.strangers) == ("ocr-1", (), [])
    assert site.engine.containers[extra]["State"]["Status"] == "running"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda folder: (folder / "devices.json").unlink(),
            "ocr-1: there is no {folder}/devices.json; apply the host's plan: that writes it",
        ),
        (
            lambda folder: (folder / "compose.yml").unlink(),
            "ocr-1: there is no {folder}/compose.yml; apply the host's plan: that writes it",
        ),
        (
            lambda folder: (folder / "devices.json").write_text('{"format": 2}'),
            "ocr-1: {folder}/devices.json: this file does not say which devices a service has, in format 1; "
            "apply the host's plan again: that writes it anew",
        ),
    ],
)
def test_a_replica_whose_papers_are_spoilt_is_named_and_the_others_start(site: Site, spoil: t.Callable[[Path], t.Any], words: str) -> None:
    site.plan()
    folder = site.config.services_dir / "ocr-1"
    spoil(folder)
    assert site.up() == [words.format(folder=folder)]
    assert site.engine.devices() == site.own("ocr-2", "chat-1")


def test_what_compose_complains_of_is_told_and_the_others_are_healthy(site: Site) -> None:
    site.plan()
    site.programs.docker_rules(fail={"ocr-1": "No such image: registry/ocr:1"})
    assert site.up() == ["ocr-1: Docker Compose could not start it: No such image: registry/ocr:1"]
    assert site.engine.devices() == site.own("ocr-2", "chat-1")


def test_a_command_that_hangs_ends_at_its_deadline(site: Site) -> None:
    site.plan(ocr_1=PLACES["ocr-1"])
    site.programs.docker_rules(sleep=30)
    site.config = Config(**{**vars(site.config), "command_wait": 1})
    begun = time.monotonic()
    (problem,) = site.up()
    assert problem.startswith("ocr-1: `docker --host unix://")
    assert problem.endswith("--remove-orphans` did not end in 1 s")
    assert time.monotonic() - begun < 10


def test_health_is_waited_for_and_illness_is_named(site: Site) -> None:
    site.plan()
    site.engine.health = {"ocr-1": ["starting", "starting", "healthy"], "ocr-2": ["starting", "unhealthy"], "chat-1": ["starting"]}
    assert sorted(site.up()) == [
        "chat-1: not healthy after 3 s",
        "ocr-2: container ocr-2 is unhealthy; see docker logs ocr-2",
    ]
    assert f"ocr-1: started on slice 1g.10gb@4 of {site.gpu} ({site.uuid(4)})" in site.said


def test_a_play_that_holds_the_host_is_named_and_nothing_is_done(site: Site) -> None:
    site.plan()
    lease.acquire(site.config.state_dir, "alice", "apply plan 4", 600)
    with pytest.raises(lease.LeaseError) as error:
        site.up()
    assert str(error.value).startswith("this host is held by alice (apply plan 4), for ")
    assert str(error.value).endswith(" s more; waited 1 s for it; run again when it is released")
    assert site.programs.composed() == []


def test_the_lease_of_a_play_that_died_with_the_host_is_not_waited_for(site: Site) -> None:
    site.plan()
    mine, _over = lease.acquire(site.config.state_dir, "alice", "apply plan 4", 600)
    path = site.config.state_dir / "lease.json"
    path.write_text(json.dumps({**vars(mine), "boot": "another-boot"}))
    assert site.up() == []
    assert site.engine.devices() == site.own()


def test_a_driver_that_does_not_answer_stops_nobody_from_being_named(site: Site) -> None:
    site.plan()
    site.fleet.host.simctl("set", "driver", "absent")
    problems = site.up()
    assert len(problems) == 3
    assert all("the driver does not answer" in problem for problem in problems)
    assert site.engine.devices() == {}


def test_a_host_without_an_engine_has_nothing_to_start(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site.plan()
    monkeypatch.setenv("PATH", str(tmp_path))
    site.config = Config(**{**vars(site.config), "docker_socket": tmp_path / "none.sock"})
    assert site.up() == []
    assert site.said == ["this host has no Docker engine: nothing is started"]
    assert services.describe(site.config) == (["this host has no Docker engine"], True)


def test_one_service_is_healed_alone_and_without_waiting(site: Site) -> None:
    site.plan()
    site.engine.health = {"ocr-2": ["starting"]}
    services.heal(site.config.plain(), "ocr-2", say=site.said.append)
    assert site.engine.devices() == site.own("ocr-2")
    with pytest.raises(FleetError, match="nobody-1 is no service of this host"):
        services.heal(site.config.plain(), "nobody-1")
    site.cut("1g.10gb@5", "3g.40gb@0")
    with pytest.raises(FleetError, match=r"ocr-1: not started on slice 1g.10gb@4"):
        services.heal(site.config.plain(), "ocr-1")


def test_a_job_that_is_done_is_not_started_at_a_boot_and_another_version_of_it_is(site: Site) -> None:
    site.plan(ocr_1=PLACES["ocr-1"], ocr_2=PLACES["ocr-2"])
    for name in ("ocr-1", "ocr-2"):
        (site.config.services_dir / name / "compose.yml").write_text('    labels:\n      gpuops.job: "sha256:2"\n')
    jobs.note(site.config.services_dir / "ocr-1", "sha256:2")
    jobs.note(site.config.services_dir / "ocr-2", "sha256:1")
    assert site.up() == []
    assert site.ups() == ["ocr-2"]
    assert "ocr-1: not started, its job is done" in site.said


@pytest.mark.parametrize(("code", "started"), [(0, []), (255, ["ocr-1"])])
def test_a_job_that_ended_while_nobody_watched_is_judged_by_its_status(site: Site, code: int, started: list[str]) -> None:
    site.plan(ocr_1=PLACES["ocr-1"])
    assert site.up() == []
    before = len(site.ups())
    (site.config.services_dir / "ocr-1" / "compose.yml").write_text('    labels:\n      gpuops.job: "sha256:2"\n')
    (container,) = site.engine.containers.values()
    container["Config"].setdefault("Labels", {})[jobs.LABEL] = "sha256:2"
    container["State"] = {"Status": "exited", "Running": False, "ExitCode": code}
    site.up()
    assert site.ups()[before:] == started
    assert jobs.is_done(site.config.services_dir / "ocr-1", "sha256:2") is (code == 0)


def test_status_says_who_runs_where_and_changes_nothing(site: Site) -> None:
    site.plan()
    site.up()
    site.engine.health = {"ocr-2": ["starting"], "chat-1": ["unhealthy"]}
    calls, asked = len(site.programs.composed()), len(site.fleet.mutations())
    lines, well = services.describe(site.config)
    assert not well
    assert lines == [
        f"ocr-1: runs, on slice 1g.10gb@4 of {site.gpu}",
        f"ocr-2: starting, on slice 1g.10gb@5 of {site.gpu}",
        f"chat-1: does not run as it shall: container chat-1 is unhealthy; see docker logs chat-1, on slice 3g.40gb@0 of {site.gpu}",
    ]
    assert (len(site.programs.composed()), len(site.fleet.mutations())) == (calls, asked)


def test_another_releases_agent_does_nothing(site: Site) -> None:
    site.plan()
    (site.config.state_dir / "agent.json").write_text(json.dumps({"format": 1, "version": "9.9.9", "path": "/x"}))
    with pytest.raises(FleetError, match=r"this host's agent is gpuops.fleet 9.9.9 and this module is "):
        site.up()
    assert site.programs.composed() == []
