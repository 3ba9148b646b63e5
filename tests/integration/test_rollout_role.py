# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role ``model_service`` puts a new version in the place of the old one: good and bad ones, both ways, and killed at every step."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import typing as t
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils import haproxy
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases as leases
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from compose_world import Behaviour, World, answers, compose_world, in_path
from fleet_site import REPOSITORY, demo

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

HOST = "host-r"
GOOD, NEW, BAD = (f"registry.example.com/ocr@sha256:{letter * 64}" for letter in "abc")
SURGE = "ocr-surge"
BY = "alice"


class Run:
    """How a play ended: its status, all that it printed, and the reason of the last failure."""

    def __init__(self, status: int, output: str) -> None:
        self.status, self.output = status, output
        assert "Traceback" not in output, output
        found = demo.Run("own", status, 0.0)
        for line in output.splitlines():
            demo.read_line(found, line)
        self.problems: list[str] = found.problems
        self.changed = found.changed()

    @property
    def reason(self) -> str:
        """The line with which it ended; it must have failed."""
        assert self.status != 0, self.output
        text = self.problems[-1].split(": ", 1)[1]
        assert "\n" not in text
        return text


class Place:
    """A host with two slices on its GPU and one replica, ocr-1, on the first of them."""

    def __init__(self, site: Site, world: World, folder: Path) -> None:
        self.site, self.world, self._folder, self._runs = site, world, folder, 0
        self.home = site.work / HOST
        self.gpu = json.loads(site.simctl(HOST, "show", "--json"))["gpus"][0]["uuid"]
        self.process: subprocess.Popen[str] | None = None

    def slice_uuid(self, start: int) -> str:
        instances = json.loads(self.site.simctl(HOST, "show", "--json"))["gpus"][0]["mig"]["instances"]
        return next(str(one["ci"][0]["uuid"]) for one in instances if one["start"] == start)

    def devices(self, start: int) -> list[dict[str, t.Any]]:
        return [{"name": "GPU_0", "gpu": self.gpu, "profile": "1g.10gb", "start": start}]

    def task(self, image: str, surge: bool, **more: t.Any) -> dict[str, t.Any]:
        """The role for a version of ocr-1. ``manifest``: more of the manifest."""
        path = self.site.manifest("ocr", image=image, **{"rollout": {"settle": 0, "timeout": 4}, **more.pop("manifest", {})})
        manifest = read_manifest(str(path), path.read_text(encoding="utf-8"))
        place = {"service": "ocr", "gpu": self.gpu, "profile": "1g.10gb"}
        own = {
            "model_service_name": "ocr-1",
            "model_service_manifest": manifest.data(),
            "model_service_manifest_file": "ocr.yml",
            "model_service_manifest_text": path.read_text(encoding="utf-8"),
            "model_service_placement": {**place, "replica": 1, "start": 0, "ports": {"http": 18000}, "manifest": manifest.digest()},
            "model_service_devices": self.devices(0),
            "model_service_services_dir": "{{ fleet_services_dir }}",
            "model_service_state_dir": "{{ fleet_state_dir }}",
            "model_service_secrets_dir": "{{ fleet_secrets_dir }}",
            "model_service_docker_socket": "{{ fleet_docker_socket }}",
            "model_service_engine": True,
            "model_service_compose": True,
            "model_service_by": BY,
            **more,
        }
        if surge:
            own["model_service_surge"] = {
                "placement": {**place, "replica": 0, "start": 1, "ports": {"http": 18001}},
                "devices": self.devices(1),
            }
        return {"name": "Bring it there", "ansible.builtin.include_role": {"name": "gpuops.fleet.model_service"}, "vars": own}

    def bring(self, image: str, surge: bool = False, check: bool = False, **more: t.Any) -> Run:
        return self.play(self.task(image, surge, **more), *(["--check", "--diff"] if check else []))

    def state(self, word: str, name: str = "ocr-1", options: tuple[str, ...] = (), **more: t.Any) -> Run:
        """The role with a state that needs no manifest."""
        task = self.task(GOOD, False)
        own = {key: value for key, value in task["vars"].items() if "manifest" not in key and key != "model_service_placement"}
        return self.play({**task, "vars": {**own, "model_service_name": name, "model_service_state": word, **more}}, *options)

    def play(self, task: dict[str, t.Any], *options: str) -> Run:
        self._runs += 1
        book = self._folder / f"book-{self._runs}.yml"
        book.write_text(yaml.safe_dump([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [task]}]), encoding="utf-8")
        program = str(Path(sys.executable).parent / "ansible-playbook")
        argv = [program, "-i", str(self.site.inventory / "hosts.yml"), str(book), *options]
        env = {**demo.environment(self.site.work, REPOSITORY / "collections"), "PATH": in_path(self._folder)}
        with subprocess.Popen(
            argv, env=env, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            self.process = process
            output, _none = process.communicate()
        self.process = None
        return Run(process.returncode, output)

    def kill(self) -> None:
        """The controller dies, with all that it started, as if the power had gone."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)

    def killed_after(self, line: str, image: str, surge: bool) -> None:
        """A rollout whose controller dies when something has happened to a container."""
        self.world.hooks[line] = self.kill
        assert self.bring(image, surge).status == -signal.SIGKILL
        assert self.world.log[-1] == line

    def versions(self) -> list[tuple[int, str, str]]:
        """(number, image's letter, outcome) of what is kept."""
        found = []
        for path in sorted((self.home / "state" / "versions" / "ocr-1").glob("*/version.json")):
            data = json.loads(path.read_text())
            found.append((data["number"], data["image"][-1], data["outcome"]))
        return found

    def rollouts(self) -> list[tuple[t.Any, ...]]:
        """(way, outcome, reason) of each row of the ledger."""
        path = self.home / "state" / "ledger.sqlite"
        if not path.exists():
            return []
        with sqlite3.connect(path) as base:
            rows = base.execute("SELECT way, outcome, reason FROM rollouts ORDER BY id").fetchall()
        base.close()
        return rows

    def leaves_nothing(self) -> None:
        """Neither a surge nor a rollout that is not over."""
        assert not (self.home / "services" / SURGE).exists()
        assert not (self.home / "secrets" / SURGE).exists()
        assert not list((self.home / "state" / "rollouts").glob("*"))
        assert all(not name.endswith("surge") for name in self.world.running())


@pytest.fixture(scope="module")
def sites(make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Site, dict[str, t.Any]]:
    """A host with nothing; the same when the good version serves there, and the containers that it has then. Made once, to be copied."""
    empty = make_site(host_r="h100-80gb")
    empty.by_hand(HOST, [{"gpu": "0", "instances": [{"profile": "1g.10gb", "start": start} for start in (0, 1)]}])
    serving = empty.copy(tmp_path_factory.mktemp("serving"))
    folder = tmp_path_factory.mktemp("first")
    with compose_world(folder, serving.work / HOST / "docker.sock") as world:
        done = Place(serving, world, folder).bring(GOOD)
        assert done.status == 0, done.output
        assert world.running() == {"ocr-1": GOOD}
        return empty, serving, world.containers


@pytest.fixture
def place(sites: tuple[Site, Site, dict[str, t.Any]], tmp_path: Path) -> Iterator[Place]:
    """Nothing serves yet."""
    site = sites[0].copy(tmp_path / "site")
    with compose_world(tmp_path, site.work / HOST / "docker.sock") as world:
        yield Place(site, world, tmp_path)


@pytest.fixture
def served(sites: tuple[Site, Site, dict[str, t.Any]], tmp_path: Path) -> Iterator[Place]:
    """The good version serves."""
    site = sites[1].copy(tmp_path / "site")
    with compose_world(tmp_path, site.work / HOST / "docker.sock") as world:
        world.containers, world.made = copy.deepcopy(sites[2]), 1000
        yield Place(site, world, tmp_path)


@pytest.fixture
def gateway() -> Iterator[Callable[[Place], haproxy.Runtime]]:
    """A gateway in the place's inventory, with the real HAProxy, which knows ocr-1 and its surge."""
    # The unit tests keep one there where none is installed.
    kept = REPOSITORY / "build" / "cache" / "debian" / "haproxy" / "run"
    program = shutil.which("haproxy", path=f"/usr/sbin:/usr/local/sbin:/usr/bin:{kept}")
    if program is None:
        pytest.skip("no haproxy on this machine (Debian: apt install haproxy)")
    # The path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuops-role-", dir="/tmp") as name, contextlib.ExitStack() as stack:

        def start(place: Place) -> haproxy.Runtime:
            sockets, config = Path(name), place.home / "gw.cfg"
            servers = f"server ocr-1 127.0.0.1:18000\n server ocr-surge-{HOST} 127.0.0.1:18001 disabled\n"
            config.write_text(f"global\n stats socket {sockets}/admin.sock level admin\nbackend svc_ocr\n timeout server 9s\n {servers}")
            process = stack.enter_context(subprocess.Popen([program, "-W", "-f", config, "-S", sockets / "master.sock"]))
            stack.callback(process.terminate)
            hosts = {HOST: {"ansible_host": "127.0.0.1"}}
            # What a gateway is told of is the address of the GPU host, and not the gateway's own.
            own = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_host": "gate-1.invalid"}
            own |= {"gateway_run_dir": str(sockets), "gateway_state_dir": str(sockets)}
            listing = {"all": {"children": {"gpu_hosts": {"hosts": hosts}, "gateways": {"hosts": {"gate-1": own}}}}}
            (place.site.inventory / "hosts.yml").write_text(yaml.safe_dump(listing), encoding="utf-8")
            while not (sockets / "admin.sock").exists() and process.poll() is None:
                time.sleep(0.05)
            return haproxy.Runtime(str(sockets / "admin.sock"))

        yield start


def test_a_first_start_is_gated_and_a_second_run_changes_nothing(place: Place) -> None:
    first, second = place.bring(GOOD), place.bring(GOOD)
    assert (first.status, second.status, second.changed) == (0, 0, 0), second.output
    assert place.versions() == [(1, "a", "serving")]
    assert place.rollouts() == []
    place.leaves_nothing()


def test_of_a_version_whose_priority_alone_changes_the_newest_manifest_is_kept(served: Place) -> None:
    closed = {"manifest": {"priority": 7}}
    promised, first, second = served.bring(GOOD, check=True, **closed), served.bring(GOOD, **closed), served.bring(GOOD, **closed)
    assert (promised.changed, first.changed, second.changed) == (1, 1, 0), promised.output + first.output
    (kept,) = (served.home / "state" / "versions" / "ocr-1").glob("*/version.json")
    assert "priority: 7" in json.loads(kept.read_text())["manifest"]["text"]
    assert served.rollouts() == []


def test_a_first_start_that_fails_its_gate_is_told_with_its_last_words(place: Place) -> None:
    words = "hello\nRuntimeError: CUDA driver version is insufficient\n"
    place.world.images[BAD] = Behaviour(healthy_after=None, exits_after=0.7, says=words)
    reason = place.bring(BAD, manifest={"rollout": {"settle": 3, "timeout": 20}}).reason
    assert reason.startswith("ocr-1: container ended with status 3 after ")
    assert reason.endswith("; its last words: RuntimeError: CUDA driver version is insufficient")
    assert place.versions() == [(1, "c", "failed")]


def test_a_good_version_proves_itself_beside_the_old_one_and_somebody_serves_at_any_moment(served: Place) -> None:
    promised = served.bring(NEW, surge=True, check=True)
    assert promised.status == 0, promised.output
    assert "ocr-1: its new version would prove itself beside the old one" in promised.output
    assert (served.world.log, served.versions()) == ([], [(1, "a", "serving")])
    done = served.bring(NEW, surge=True)
    assert done.status == 0, done.output
    assert served.world.log == [
        *("started ocr-surge", "stopped ocr-1", "removed ocr-1", "started ocr-1"),
        *("stopped ocr-surge", "removed ocr-surge"),
    ]
    assert served.world.alone == []
    assert served.world.running() == {"ocr-1": NEW}
    assert served.versions() == [(1, "a", "replaced"), (2, "b", "serving")]
    assert served.rollouts() == [("side-by-side", "serving", "")]
    served.leaves_nothing()
    assert served.bring(NEW, surge=True).changed == 0


def test_a_good_version_takes_the_place_of_the_old_one_where_there_is_no_room_for_both(served: Place) -> None:
    done = served.bring(NEW)
    assert done.status == 0, done.output
    assert served.world.log == ["stopped ocr-1", "removed ocr-1", "started ocr-1"]
    assert served.versions() == [(1, "a", "replaced"), (2, "b", "serving")]
    assert served.rollouts() == [("stop-first", "serving", "")]
    kept = served.home / "state" / "versions" / "ocr-1" / "000001"
    assert GOOD in (kept / "compose.yml").read_text()
    assert json.loads((kept / "version.json").read_text())["manifest"]["file"] == "ocr.yml"
    back = served.bring(GOOD)
    assert back.status == 0, back.output
    assert served.versions() == [(1, "a", "replaced"), (2, "b", "rolled-back"), (3, "a", "serving")]


BROKEN: dict[str, tuple[Behaviour, str]] = {
    "never healthy": (Behaviour(healthy_after=None), "it is not healthy after 4 s"),
    "healthy, then ends": (Behaviour(exits_after=1.5, says="Segmentation fault"), "its last words: Segmentation fault"),
    "ill": (Behaviour(unhealthy_after=0.2), "container is unhealthy after 0 s; its last check said: curl: (7) Failed to connect"),
    "cannot start": (
        Behaviour(start_error='exec: "serve": executable file not found in $PATH'),
        'exec: "serve": executable file not found',
    ),
    "no GPU inside": (Behaviour(sees=[]), "the GPU is not visible inside the container: nvidia-smi lists no MIG-"),
    "another's slice inside": (Behaviour(sees=["MIG-00000000-1111-2222-3333-444444444444"]), "which is not its own"),
}


@pytest.mark.parametrize(
    ("kind", "surge"),
    [pytest.param(kind, True, id=f"{kind}, side by side") for kind in BROKEN if kind not in ("ill", "cannot start")]
    + [pytest.param(kind, False, id=f"{kind}, stop first") for kind in ("ill", "healthy, then ends", "cannot start")],
)
def test_a_bad_version_leaves_the_old_one_serving(served: Place, kind: str, surge: bool) -> None:
    behaviour, words = BROKEN[kind]
    served.world.images[BAD] = behaviour
    reason = served.bring(BAD, surge, manifest={"rollout": {"settle": 3, "timeout": 4}}).reason
    assert words in reason
    assert reason.startswith("ocr-1: ")
    assert reason.endswith("; the version before serves on" if surge else "; version 1 serves again")
    assert served.world.running() == {"ocr-1": GOOD}
    if surge:
        assert served.world.alone == []
        assert [line for line in served.world.log if line.endswith("ocr-1")] == []
    assert served.versions() == [(1, "a", "serving"), (2, "c", "failed")]
    ((way, outcome, why),) = served.rollouts()
    assert (way, outcome) == (("side-by-side", "kept") if surge else ("stop-first", "restored"))
    assert words in why
    served.leaves_nothing()


@pytest.mark.parametrize("surge", [True, False], ids=["side by side", "stop first"])
def test_an_image_that_is_missing_or_a_slice_that_the_engine_refuses_costs_nothing(served: Place, surge: bool) -> None:
    served.world.images[BAD] = Behaviour(known=False)
    reason = served.bring(BAD, surge).reason
    assert reason.startswith(f"ocr-1: cannot pull image {BAD}: Error response from daemon: manifest for {BAD} not found")
    assert reason.endswith("; nothing was written, and the running container was left alone")
    served.world.refused = {served.slice_uuid(1 if surge else 0)}
    reason = served.bring(NEW, surge).reason
    assert "unresolvable CDI devices MIG-" in reason
    assert served.world.log == []
    assert served.world.running() == {"ocr-1": GOOD}
    served.leaves_nothing()


@pytest.mark.parametrize("line", ["started ocr-surge", "stopped ocr-1", "started ocr-1", "removed ocr-surge"])
def test_a_rollout_beside_the_old_version_that_was_killed_is_finished_by_the_next_run(served: Place, line: str) -> None:
    served.killed_after(line, NEW, surge=True)
    done = served.bring(NEW, surge=True)
    assert done.status == 0, done.output
    assert served.world.alone == []
    assert served.world.running() == {"ocr-1": NEW}
    assert served.versions() == [(1, "a", "replaced"), (2, "b", "serving")]
    served.leaves_nothing()


@pytest.mark.parametrize("line", ["stopped ocr-1", "started ocr-1"])
def test_a_rollout_in_place_that_was_killed_is_finished_by_the_next_run(served: Place, line: str) -> None:
    served.killed_after(line, NEW, surge=False)
    done = served.bring(NEW)
    assert done.status == 0, done.output
    assert served.world.running() == {"ocr-1": NEW}
    assert served.versions() == [(1, "a", "replaced"), (2, "b", "serving")]
    assert [outcome for _way, outcome, _reason in served.rollouts()] == ["interrupted", "serving"]
    served.leaves_nothing()


@pytest.mark.parametrize("wish", [BAD, GOOD], ids=["the same again", "the old one again"])
def test_a_bad_version_whose_rollout_was_killed_before_it_was_undone_does_not_stay(served: Place, wish: str) -> None:
    served.world.images[BAD] = Behaviour(healthy_after=None)
    served.killed_after("started ocr-1", BAD, surge=False)
    again = served.bring(wish)
    assert (again.status == 0) is (wish == GOOD), again.output
    assert served.world.running() == {"ocr-1": GOOD}
    served.leaves_nothing()


def test_a_surge_that_is_left_over_is_removed_when_the_replica_is_well(served: Place) -> None:
    served.killed_after("started ocr-surge", NEW, surge=True)
    assert served.bring(GOOD).status == 0
    assert served.world.running() == {"ocr-1": GOOD}
    assert not (served.home / "services" / SURGE).exists()


def test_a_bad_version_of_a_place_that_was_stopped_meanwhile_brings_the_old_one_back(served: Place) -> None:
    served.state("stopped")
    served.world.images[BAD] = Behaviour(healthy_after=None)
    assert served.bring(BAD).reason.endswith("; version 1 serves again")
    assert served.world.running() == {"ocr-1": GOOD}


def test_check_mode_promises_a_first_start(place: Place) -> None:
    promised = place.bring(GOOD, check=True)
    assert promised.status == 0, promised.output
    assert (place.world.running(), place.world.log) == ({}, [])
    assert place.bring(GOOD).status == 0


def test_a_health_check_and_a_warm_up_are_asked_at_the_published_port(place: Place) -> None:
    manifest = {
        "health": {"port": "http", "path": "/ready"},
        "rollout": {"settle": 0, "timeout": 10, "warm_up": {"method": "POST", "path": "/ocr", "body": '{"image": ""}', "status": 200}},
    }
    with answers(18000) as asked:
        done = place.bring(GOOD, manifest=manifest)
    assert done.status == 0, done.output
    assert asked == [("GET", "/ready", b""), ("POST", "/ocr", b'{"image": ""}')]


def test_a_service_that_somebody_stopped_stays_so_until_that_is_taken_back(served: Place) -> None:
    stopped = served.state("paused", model_service_reason="its customer left")
    assert stopped.status == 0, stopped.output
    assert served.world.running() == {}
    left = served.bring(NEW)
    assert left.status == 0, left.output
    assert "ocr-1: stopped by alice (its customer left) since 2" in left.output
    assert served.world.running() == {}
    served.play({"gpuops.fleet.service_stopped": {"service": "ocr", "state": "absent", "state_dir": "{{ fleet_state_dir }}"}})
    again = served.bring(NEW)
    assert again.status == 0, again.output
    assert served.world.running() == {"ocr-1": NEW}


def test_what_was_in_the_way_is_not_started_again_when_its_lease_has_ended(served: Place) -> None:
    terms = leases.Terms(1, 0, None, 0.05)

    def ended(_found: dict[str, leases.Record]) -> dict[str, leases.Record]:
        now = datetime.now(UTC)
        return {"ocr-1": leases.end(leases.grant(None, "ocr", 1, "claims", terms, now), "lease over", now)}

    assert served.state("stopped").status == 0
    leases.change(served.home / "state", ended, None, False)
    left = served.state("resumed")
    assert (left.status, left.changed, served.world.running()) == (0, 0, {})
    assert "ocr-1: its lease is over since " in left.output
    assert "playbook extend starts it again" in left.output
    leases.change(served.home / "state", lambda _found: {}, None, False)
    assert served.state("resumed").status == 0
    assert served.world.running() == {"ocr-1": GOOD}


@pytest.mark.parametrize("surge", [True, False], ids=["side by side", "stop first"])
def test_a_gateway_that_cannot_be_reached_ends_a_rollout_before_anything_stops(served: Place, surge: bool) -> None:
    gateway = {"ansible_connection": "local", "gateway_run_dir": str(served.home / "none"), "ansible_python_interpreter": sys.executable}
    # Playbook gateway was there once, so one is expected to answer.
    (served.home / "gateway").mkdir()
    (served.home / "gateway" / "servers").touch()
    gateway["gateway_state_dir"] = str(served.home / "gateway")
    listing = {"all": {"children": {"gpu_hosts": {"hosts": {HOST: None}}, "gateways": {"hosts": {"gate-1": gateway}}}}}
    (served.site.inventory / "hosts.yml").write_text(yaml.safe_dump(listing), encoding="utf-8")
    reason = served.bring(NEW, surge, manifest={"route": {}, "rollout": {"settle": 0, "timeout": 4, "drain": 0}}).reason
    assert str(served.home / "none") in reason
    assert reason.endswith("; the version before serves on" if surge else "; nothing of it was stopped")
    assert served.world.running() == {"ocr-1": GOOD}
    assert [line for line in served.world.log if line.endswith("ocr-1")] == []


def test_a_replica_that_was_left_drained_gets_requests_again_and_a_service_that_is_stopped_leaves_no_surge(
    served: Place, gateway: Callable[[Place], haproxy.Runtime]
) -> None:
    told = gateway(served)

    def admin(server: str) -> str:
        return (told.servers("svc_ocr") or {})[server].admin

    told.ask("set server svc_ocr/ocr-1 state drain")
    done = served.bring(GOOD, manifest={"route": {}})
    assert done.status == 0, done.output
    assert admin("ocr-1") == "ready"
    assert served.world.log == []
    # A surge that a killed rollout left, and a version whose requests may take long.
    (services := served.home / "services").joinpath(SURGE).mkdir()
    (services / SURGE / "compose.yml").write_bytes((services / "ocr-1" / "compose.yml").read_bytes())
    (services / SURGE / ".env").write_bytes((services / "ocr-1" / ".env").read_bytes())
    told.ask(f"set server svc_ocr/ocr-surge-{HOST} state ready")
    path = served.home / "state" / "versions" / "ocr-1" / "000001" / "version.json"
    version = json.loads(path.read_text())
    kept = yaml.safe_load(version["manifest"]["text"])
    version["manifest"]["text"] = yaml.safe_dump({**kept, "rollout": {"drain": 77}})
    path.write_text(json.dumps(version))
    stopped = served.state("paused", options=("-vvv",))
    assert stopped.status == 0, stopped.output
    assert not (services / SURGE).exists()
    assert (admin("ocr-1"), admin(f"ocr-surge-{HOST}")) == ("drain", "maint")
    assert '"wait": 77.0' in stopped.output
    assert served.world.running() == {}


def test_a_secret_that_a_bad_version_has_no_more_is_there_for_the_old_one(served: Place) -> None:
    assert served.bring(NEW, model_service_secrets={"hub_token": "one"}).status == 0
    served.world.images[BAD] = Behaviour(exits_after=0.1)
    assert served.bring(BAD).reason.endswith("serves again")
    assert (served.home / "secrets" / "ocr-1" / "hub_token").exists()
    assert served.bring(GOOD).status == 0
    assert not (served.home / "secrets" / "ocr-1").exists()


def test_what_leaves_the_plan_leaves_nothing_but_the_ledger(served: Place) -> None:
    served.bring(NEW)
    assert served.state("absent").status == 0
    assert not list((served.home / "state" / "versions").glob("*"))
    assert not (served.home / "services" / "ocr-1").exists()
    assert served.rollouts() == [("stop-first", "serving", "")]


def test_a_secret_that_a_bad_version_writes_into_its_log_shows_nowhere(served: Place) -> None:
    canary = "canary-8d31-of-the-hub"
    served.world.images[BAD] = Behaviour(exits_after=0.1, says=f"cannot log in with {canary}")
    done = served.bring(BAD, surge=True, model_service_secrets={"hub_token": canary})
    assert "its last words: cannot log in with ***" in done.reason
    assert canary not in done.output
    for path in (served.home / "state").rglob("*"):
        assert not path.is_file() or "secrets" in path.parts or canary.encode() not in path.read_bytes(), path
    served.leaves_nothing()
