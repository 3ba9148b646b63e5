# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a service is changed the engine is asked whether it can start it: what is asked, what counts as yes, and that nothing stays."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import typing as t
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine as Client
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_probe import Answer, Probe, Wish, device_requests, gives_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from engine_world import MISSING_PROGRAM, PREFIX, Command, Engine

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

DEVICE = "nvidia.com/gpu=MIG-1"
IMAGE = "registry.example.com/ocr@sha256:" + "a" * 64
HOOK = PREFIX + "unable to start container process: error during container init: error running hook #0: "
UNRESOLVABLE = f"CDI device injection failed: unresolvable CDI devices {DEVICE}"
LEFT_ALONE = "nothing was written, and the running container was left alone"
NOTHING = "nothing was written or started"


def reserved(*names: str, driver: str = "cdi") -> dict[str, t.Any]:
    devices = [{"driver": driver, "device_ids": list(names), "capabilities": ["gpu"]}]
    return {"deploy": {"resources": {"reservations": {"devices": devices}}}}


SERVICE = {"image": IMAGE, "environment": {"NVIDIA_REQUIRE_CUDA": "a$$$$b", "TOKEN": "secret"}, **reserved("${GPU_0}")}
RESOLVED = {"image": IMAGE, "environment": {"NVIDIA_REQUIRE_CUDA": "a$$b", "TOKEN": "secret"}, **reserved(DEVICE)}


class World:
    """A host with an engine, a ``docker`` command and one project, ocr-1."""

    def __init__(self, home: Path, engine: Engine) -> None:
        self.engine, self.command = engine, Command(home)
        engine.images[IMAGE] = "sha256:1"
        where = {DEVICE: "slice 1g.10gb@4 of GPU-1"}
        self.wish = Wish("ocr-1", "", str(home / "ocr-1"), {"GPU_0": DEVICE}, where, deadline=20)
        self.describe(model=SERVICE)

    def describe(self, **services: dict[str, t.Any]) -> None:
        self.wish = replace(self.wish, compose=json.dumps({"services": services}))

    def ask(self, check: bool = False, **wish: t.Any) -> Answer:
        return Probe(replace(self.wish, **wish), self.engine.path).ask(check)

    def refusal(self, **wish: t.Any) -> str:
        with pytest.raises(FleetError) as caught:
            self.ask(**wish)
        return str(caught.value)

    def run(self, state: str = "running", **other: str) -> None:
        """The project runs as the compose file says, but for ``other`` labels."""
        digest = hashlib.sha256(json.dumps(RESOLVED).encode()).hexdigest()
        labels = {"project": "ocr-1", "service": "model", "config-hash": digest, "image": "sha256:1", "oneoff": "False"}
        self.engine.run("cafe", IMAGE, state, **{f"com.docker.compose.{name}": value for name, value in {**labels, **other}.items()})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with Engine(tmp_path) as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        made = World(tmp_path, engine)
        monkeypatch.setenv("PATH", made.command.in_path())
        yield made
        engine.shutdown()
        thread.join()


ASKED = ["POST /containers/create", "POST /containers/ID/start", "DELETE /containers/ID?force=1&v=1"]


def test_the_engine_is_asked_with_the_services_image_and_devices_and_nothing_else_of_it(world: World) -> None:
    assert world.ask() == Answer(probed=["model"])
    assert world.engine.changes() == ASKED
    assert world.engine.containers == {}
    assert world.engine.created == [
        {
            "Image": IMAGE,
            "Entrypoint": ["/.gpuops-device-probe"],
            "Cmd": [],
            "User": "0:0",
            "WorkingDir": "/",
            "Env": ["NVIDIA_REQUIRE_CUDA=a$b"],
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {"gpuops.probe": "ocr-1"},
            "HostConfig": {
                "DeviceRequests": [{"Driver": "cdi", "Count": 0, "DeviceIDs": [DEVICE], "Capabilities": [["gpu"]], "Options": {}}],
                "Runtime": "",
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "ReadonlyRootfs": False,
                "RestartPolicy": {"Name": "no"},
                "LogConfig": {"Type": "none"},
            },
        }
    ]


@pytest.mark.parametrize(
    ("words", "gives"),
    [
        pytest.param(MISSING_PROGRAM, True, id="runc"),
        pytest.param("crun: executable file `/.gpuops-device-probe` not found in $PATH: No such file or directory", True, id="crun"),
        pytest.param('error finding executable "/.gpuops-device-probe" in PATH []: no such file or directory', True, id="gvisor"),
        pytest.param(UNRESOLVABLE, False, id="cdi"),
        pytest.param('CDI device injection failed: failed to stat CDI host device "/dev/x": no such file or directory', False, id="node"),
        pytest.param('could not select device driver "nvidia" with capabilities: [[gpu]]', False, id="no toolkit"),
        pytest.param(HOOK + "exit status 1, stderr: nvidia-container-cli: device error: MIG-1: unknown device", False, id="hook says no"),
        pytest.param(HOOK + "fork/exec /usr/bin/nvidia-cdi-hook: no such file or directory: unknown", False, id="no hook"),
        pytest.param('exec: "/.gpuops-device-probe": permission denied', False, id="another complaint about the program"),
        pytest.param("no reason given", False, id="nothing"),
    ],
)
def test_only_the_missing_program_means_yes(world: World, words: str, gives: bool) -> None:
    assert gives_devices(words) is gives
    world.engine.start = lambda _container: (400, words)
    if gives:
        assert world.ask().probed == ["model"]
    else:
        assert f"(slice 1g.10gb@4 of GPU-1): {words}; " in world.refusal()
    assert world.engine.changes() == ASKED
    assert world.engine.containers == {}


def test_a_container_that_starts_all_the_same_means_yes_and_is_ended(world: World) -> None:
    world.engine.start = lambda _container: (204, "")
    assert world.ask().probed == ["model"]
    assert world.engine.containers == {}


@pytest.mark.parametrize(("runs", "left"), [(True, LEFT_ALONE), (False, NOTHING)])
def test_a_refusal_names_variable_slice_and_reason_and_says_what_became_of_the_service(world: World, runs: bool, left: str) -> None:
    if runs:
        world.run(**{"config-hash": "of the file before"})
    world.engine.start = lambda _container: (500, UNRESOLVABLE)
    assert world.refusal() == (
        f"the Docker engine cannot start a container with GPU_0 = {DEVICE} (slice 1g.10gb@4 of GPU-1): {UNRESOLVABLE}; "
        f"no CDI specification of this host lists it: write them anew (nvidia-ctk cdi generate), then apply again; {left}"
    )
    assert list(world.engine.containers) == (["cafe"] if runs else [])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ('could not select device driver "cdi" with capabilities: [[gpu]]', "CDI is off in the engine"),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "the engine knows no NVIDIA runtime"),
    ],
)
def test_an_engine_that_lacks_a_way_to_give_devices_is_told_what_is_missing(world: World, words: str, hint: str) -> None:
    world.engine.start = lambda _container: (500, words)
    assert f": {words}; {hint}" in world.refusal()


def test_an_engine_that_refuses_to_make_the_container_is_heard(world: World) -> None:
    world.engine.creation = (400, "cannot set both Count and DeviceIDs on device request")
    assert "cannot set both Count and DeviceIDs on device request; nothing was written or started" in world.refusal()
    assert world.engine.changes() == ASKED[:1]


def test_a_service_that_runs_as_wished_is_not_asked_about(world: World) -> None:
    world.run()
    assert world.ask() == Answer(runs=True, settled=True)
    assert world.engine.changes() == []
    assert [words[-2:] for words in world.command.asked()] == [["--hash", "*"]]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"config-hash": "other"}, id="another configuration"),
        pytest.param({"image": "sha256:0"}, id="the image's name means another image now"),
        pytest.param({"state": "exited"}, id="it does not run"),
        pytest.param({"oneoff": "True"}, id="a one-off command"),
        pytest.param({"service": "side"}, id="another service"),
        pytest.param({"project": "ocr-2"}, id="another project"),
    ],
)
def test_whatever_compose_would_start_is_asked_about(world: World, other: dict[str, str]) -> None:
    world.run(**other)
    assert world.ask().probed == ["model"]
    assert list(world.engine.containers) == ["cafe"]


JOB = {**SERVICE, "labels": {"gpuops.job": "sha256:1"}}


@pytest.mark.parametrize(("label", "code", "done"), [("sha256:1", 0, True), ("sha256:1", 3, False), ("sha256:0", 0, False), ("", 0, False)])
def test_a_job_is_done_when_a_container_of_this_version_ended_well(world: World, label: str, code: int, done: bool) -> None:
    world.describe(model=JOB)
    (directory := Path(world.wish.directory)).mkdir()
    world.run("exited", **({"gpuops.job": label} if label else {}))
    world.engine.containers["cafe"]["State"]["ExitCode"] = code
    world.engine.containers["cafe"]["Config"]["Labels"].update({"gpuops.job": label} if label else {})
    answer = world.ask()
    assert (answer.done, answer.probed) == (done, [] if done else ["model"])
    del world.engine.containers["cafe"]  # its paper knows it when the container is gone
    assert (world.ask().done, (directory / "job.json").exists()) == (done, done)
    world.describe(model={**JOB, "labels": {"gpuops.job": "sha256:2"}})
    assert world.ask(check=True).done is False
    assert (directory / "job.json").exists() is done
    assert world.ask().done is False
    assert not (directory / "job.json").exists()


def test_the_engine_is_asked_with_a_root_file_system_as_the_service_has_it(world: World) -> None:
    world.describe(model={**SERVICE, "read_only": True})
    words = HOOK + "exit status 1, stderr: error updating ldcache: open /etc/ld.so.cache: read-only file system"
    world.engine.start = lambda _container: (500, words)
    assert "NVIDIA's toolkit here cannot start it: upgrade the toolkit, or set model_service_read_only: false" in world.refusal()
    assert world.engine.created[0]["HostConfig"]["ReadonlyRootfs"] is True


def test_services_without_devices_are_not_asked_about(world: World) -> None:
    world.describe(model=SERVICE, side={"image": "registry.example.com/side:1"}, runs={**SERVICE, "deploy": None, "runtime": "nvidia"})
    assert world.ask().probed == ["model", "runs"]
    assert world.engine.created[1]["HostConfig"]["Runtime"] == "nvidia"


def test_what_a_killed_run_left_behind_is_removed_first(world: World) -> None:
    world.engine.run("dead", IMAGE, "created", **{"gpuops.probe": "ocr-1"})
    world.engine.run("beef", IMAGE, "created", **{"gpuops.probe": "ocr-2"})
    world.run()
    world.ask()
    assert [path for method, path in world.engine.calls if method == "DELETE"] == ["/containers/dead?force=1&v=1"]
    assert sorted(world.engine.containers) == ["beef", "cafe"]


@pytest.mark.parametrize("status", [404, 409])
def test_a_container_that_somebody_else_removes_is_no_error(world: World, status: int) -> None:
    world.engine.removal = status
    assert world.ask().probed == ["model"]


def test_a_container_that_cannot_be_removed_is_told(world: World) -> None:
    world.engine.removal = 500
    assert f"could not ask whether a container can have GPU_0 = {DEVICE}" in (words := world.refusal())
    assert "?force=1&v=1 answered 500: driver failed to remove root filesystem; nothing was written or started" in words


def test_a_refusal_is_told_even_when_the_container_cannot_be_removed(world: World) -> None:
    world.engine.start = lambda _container: (500, UNRESOLVABLE)
    world.engine.removal = 500
    assert UNRESOLVABLE in world.refusal()


def test_an_engine_that_dies_in_the_middle_is_told_and_cleaned_up_if_it_comes_back(world: World) -> None:
    def die(_container: dict[str, t.Any]) -> tuple[int, str]:
        raise ConnectionAbortedError

    world.run(**{"config-hash": "other"})
    world.engine.start = die
    words = world.refusal()
    assert words.startswith(f"could not ask whether a container can have GPU_0 = {DEVICE} (slice 1g.10gb@4 of GPU-1): Docker engine at ")
    assert words.endswith(LEFT_ALONE)
    assert list(world.engine.containers) == ["cafe"]


def test_an_engine_that_is_stuck_is_left_at_the_deadline(world: World) -> None:
    released = threading.Event()

    def wait(_container: dict[str, t.Any]) -> tuple[int, str]:
        released.wait(30)
        return 204, ""

    world.engine.start = wait
    begun = time.monotonic()
    words = world.refusal(deadline=0.5)
    released.set()
    assert "timed out; nothing was written or started" in words
    assert time.monotonic() - begun < 15
    assert world.engine.containers == {}


def test_an_engine_that_is_gone_is_told(world: World, tmp_path: Path) -> None:
    with pytest.raises(FleetError) as caught:
        Probe(world.wish, str(tmp_path / "gone.sock")).ask()
    assert str(caught.value) == f"Docker engine at {tmp_path / 'gone.sock'}: No such file or directory; {NOTHING}"


PULL = ["pull", "--quiet", "--", IMAGE]


def test_a_missing_image_is_pulled_first(world: World) -> None:
    world.engine.images.clear()
    assert world.ask() == Answer(probed=["model"], pulled=[IMAGE])
    assert [words for words in world.command.asked() if "pull" in words] == [["--host", f"unix://{world.engine.path}", *PULL]]


def test_an_image_that_is_there_is_not_pulled(world: World) -> None:
    world.ask()
    assert all("pull" not in words for words in world.command.asked())


@pytest.mark.parametrize(("before", "pulled"), [("sha256:1", [IMAGE]), ("sha256:pulled", [])])
def test_with_always_a_pull_changes_something_only_if_another_image_came(world: World, before: str, pulled: list[str]) -> None:
    world.engine.images[IMAGE] = before
    world.run(image="sha256:pulled")
    assert world.ask(pull="always") == Answer(pulled=pulled, runs=True, settled=True)


def test_with_always_a_new_image_is_asked_about(world: World) -> None:
    world.run()
    assert world.ask(pull="always") == Answer(probed=["model"], pulled=[IMAGE], runs=True)


@pytest.mark.parametrize(("own", "pulls"), [("always", True), ("missing", False), ("never", False), ("build", False), (None, False)])
def test_with_policy_the_compose_file_says_whether_an_image_is_pulled(world: World, own: str | None, pulls: bool) -> None:
    world.describe(model={**SERVICE, "pull_policy": own})
    assert bool(world.ask(pull="policy").pulled) is pulls


def test_an_image_that_cannot_be_pulled_is_told_and_nothing_is_started(world: World) -> None:
    world.engine.images.clear()
    world.command.answer(pull="Error response from daemon: manifest unknown")
    assert world.refusal() == f"cannot pull image {IMAGE}: Error response from daemon: manifest unknown; {NOTHING}"
    assert world.engine.changes() == []


def test_an_image_that_may_not_be_pulled_has_to_be_there(world: World) -> None:
    world.engine.images.clear()
    words = f"image {IMAGE} is not on this host and may not be pulled (pull: never); load it (docker load), or allow a pull; {NOTHING}"
    assert world.refusal(pull="never") == words
    assert all("pull" not in asked for asked in world.command.asked())


@pytest.mark.parametrize(("pull", "pulled"), [("missing", [IMAGE]), ("always", [IMAGE]), ("policy", [IMAGE]), ("never", [])])
def test_in_check_mode_nothing_is_pulled_started_or_removed(world: World, pull: str, pulled: list[str]) -> None:
    world.engine.images.clear()
    world.engine.run("dead", IMAGE, "created", **{"gpuops.probe": "ocr-1"})
    assert world.ask(check=True, pull=pull) == Answer(pulled=pulled)
    assert world.engine.changes() == []
    assert all("pull" not in asked for asked in world.command.asked())


def test_a_file_that_compose_refuses_is_told_in_its_words(world: World) -> None:
    words = "Compose on this host refuses the compose file: validating -: Additional property imag is not allowed"
    assert world.refusal(compose="{}") == words
    assert world.engine.calls == []


@pytest.mark.parametrize("printed", [{}, [], {"services": None}])
def test_a_compose_that_prints_no_services_is_told(world: World, printed: t.Any) -> None:
    world.command.answer(printed=printed)
    assert world.refusal() == f"`docker compose config --format json` printed no services; {NOTHING}"


def test_compose_judges_the_file_as_it_will_lie_in_its_directory(world: World, tmp_path: Path) -> None:
    world.ask()
    ours = ["compose", "--project-name", "ocr-1", "--project-directory", str(tmp_path / "ocr-1"), "--file", "-", "config"]
    assert world.command.asked() == [[*ours, "--hash", "*"], [*ours, "--format", "json"]]


def test_a_host_without_the_docker_command_is_told(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert world.refusal() == "cannot run docker: No such file or directory"


def test_a_docker_command_that_is_stuck_is_ended_at_the_deadline(world: World) -> None:
    (world.command.folder / "docker").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    begun = time.monotonic()
    assert "config --hash *` did not end in 0.5 s" in world.refusal(deadline=0.5)
    assert time.monotonic() - begun < 15


GPU = {"Driver": "nvidia", "Count": 0, "DeviceIDs": ["GPU-1"], "Capabilities": [["gpu"]], "Options": {}}


@pytest.mark.parametrize(
    ("service", "requests"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"deploy": None, "gpus": None, "devices": None}, [], id="nothing, written out"),
        pytest.param({"deploy": {"resources": {"reservations": {"memory": "1"}}}}, [], id="other reservations"),
        pytest.param(reserved("GPU-1", driver="nvidia"), [GPU], id="reservation"),
        pytest.param({"gpus": [{"driver": "nvidia", "device_ids": ["GPU-1"]}]}, [GPU], id="gpus"),
        pytest.param({"gpus": [{"driver": "nvidia", "count": -1}]}, [{**GPU, "Count": -1, "DeviceIDs": None}], id="count"),
        pytest.param({"gpus": [{"driver": "nvidia", "count": "all"}]}, [{**GPU, "Count": -1, "DeviceIDs": None}], id="all"),
        pytest.param({"gpus": [{"driver": "nvidia"}]}, [{**GPU, "Count": -1, "DeviceIDs": None}], id="neither count nor ids"),
        pytest.param(
            {"devices": [{"source": DEVICE, "target": DEVICE, "permissions": "rwm"}, {"source": "/dev/a=b", "target": "/dev/a=b"}]},
            [{"Driver": "cdi", "DeviceIDs": [DEVICE]}],
            id="CDI name among devices",
        ),
        pytest.param({"devices": [DEVICE, "/dev/fuse:/dev/fuse"]}, [{"Driver": "cdi", "DeviceIDs": [DEVICE]}], id="as text"),
    ],
)
def test_what_compose_will_ask_for_is_found_wherever_it_is_written(service: dict[str, t.Any], requests: list[t.Any]) -> None:
    assert device_requests(service) == requests


def test_a_probe_is_nobodys_claim_on_a_gpu(world: World) -> None:
    world.engine.run("dead", IMAGE, "created", **{"gpuops.probe": "ocr-1"})
    world.engine.containers["dead"]["HostConfig"] = {"DeviceRequests": [GPU]}
    world.run()
    world.engine.containers["cafe"]["HostConfig"] = {"DeviceRequests": [GPU]}
    with Client(world.engine.path) as client:
        assert [container["id"] for container in client.containers()] == ["cafe"]


# --- the module


class Door:
    """The module on a host whose first GPU has slice 1g.10gb@4."""

    def __init__(self, world: World, run_module: RunModule, make_host: MakeHost, home: Path) -> None:
        self.world, self._run, self._home = world, run_module, home
        self.host = make_host("h100-80gb")
        self.gpu = self.host.simctl("show", "--json")["gpus"][0]["uuid"]
        self.cut({"profile": "1g.10gb", "start": 4})

    def cut(self, *instances: dict[str, t.Any]) -> None:
        layout = [{"gpu": self.gpu, "instances": list(instances)}]
        done = self._run("mig", {"layout": layout, "state_dir": str(self._home / "state")})
        assert not done["failed"], done

    def uuid(self) -> str:
        return str(self.host.simctl("show", "--json")["gpus"][0]["mig"]["instances"][0]["ci"][0]["uuid"])

    def ask(self, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        args = {
            "project": "ocr-1",
            "compose": self.world.wish.compose,
            "directory": str(self._home / "ocr-1"),
            "entries": [{"name": "GPU_0", "gpu": self.gpu, "profile": "1g.10gb", "start": 4}],
            "state_dir": str(self._home / "state"),
            "docker_socket": self.world.engine.path,
        }
        return self._run("service_probe", {key: value for key, value in {**args, **more}.items() if value is not None}, check=check)


@pytest.fixture
def door(fleet_host: MakeHost, world: World, run_module: RunModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    made = Door(world, run_module, fleet_host, tmp_path)
    monkeypatch.setenv("PATH", world.command.in_path())
    return made


@pytest.mark.parametrize(("style", "kind"), [("cdi", "nvidia.com/gpu="), ("uuid", "")])
def test_the_engine_is_asked_for_the_uuid_that_the_slice_has_now(door: Door, style: str, kind: str) -> None:
    result = door.ask(style=style)
    assert {key: result[key] for key in ("failed", "changed", "devices", "probed", "pulled")} == {
        "failed": False,
        "changed": False,
        "devices": {"GPU_0": door.uuid()},
        "probed": ["model"],
        "pulled": [],
    }
    assert door.world.engine.created[0]["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == [kind + door.uuid()]


def test_the_play_reads_service_variable_slice_and_reason(door: Door) -> None:
    name = f"nvidia.com/gpu={door.uuid()}"
    door.world.engine.start = lambda _container: (500, f"CDI device injection failed: unresolvable CDI devices {name}")
    result = door.ask(style="cdi")
    start = f"ocr-1: the Docker engine cannot start a container with GPU_0 = {name} (slice 1g.10gb@4 of {door.gpu}): CDI device injection"
    assert result["failed"]
    assert result["msg"].startswith(start)


def test_a_slice_that_is_not_there_is_told_with_the_service(door: Door) -> None:
    door.cut()
    result = door.ask()
    assert result["msg"].startswith(f"ocr-1: GPU_0: there is no slice 1g.10gb@4 of {door.gpu}; ")
    assert door.world.engine.calls == []


def test_a_slice_that_comes_later_is_no_error_in_check_mode(door: Door) -> None:
    door.cut()
    result = door.ask(check=True, style="cdi")
    assert (result["failed"], result["changed"], result["devices"]) == (False, False, {"GPU_0": "(known after apply)"})
    assert door.world.engine.changes() == []


def test_before_its_slice_is_made_the_image_is_pulled_and_the_engine_is_not_asked(door: Door) -> None:
    door.cut()
    door.world.engine.images.clear()
    result = door.ask(ask=False, style="cdi")
    assert (result["failed"], result["pulled"], result["probed"]) == (False, [IMAGE], [])
    assert result["devices"] == {"GPU_0": "(known after apply)"}
    assert door.world.engine.changes() == []


def test_a_pulled_image_is_a_change_and_is_promised(door: Door) -> None:
    door.world.engine.images.clear()
    promised, done, again = door.ask(check=True), door.ask(), door.ask()
    assert [(result["changed"], result["pulled"]) for result in (promised, done, again)] == [(True, [IMAGE]), (True, [IMAGE]), (False, [])]


def test_without_an_engine_compose_alone_judges(door: Door) -> None:
    assert (door.ask(docker_socket=None)["probed"], door.world.engine.calls) == ([], [])
    refused = door.ask(docker_socket=None, compose="{}")
    assert refused["msg"].startswith("ocr-1: Compose on this host refuses the compose file: ")


def test_with_a_lost_lease_nothing_is_started(door: Door) -> None:
    result = door.ask(lease="lost")
    assert result["failed"]
    assert result["msg"].startswith("ocr-1: ")
    assert door.world.engine.calls == []


def test_a_pull_that_lasts_longer_than_the_lease_does_not_lose_the_host(door: Door, tmp_path: Path) -> None:
    lease, _over = leases.acquire(tmp_path / "state", "alice", "deploy", 2)
    door.world.engine.images.clear()
    door.world.command.answer(pull_s=3.5)
    result = door.ask(lease=lease.token)
    assert (result["failed"], result["pulled"]) == (False, [IMAGE])
    found = leases.holder_now(tmp_path / "state")
    assert found is not None
    assert (found.holder, found.token) == ("alice", lease.token)


def test_a_pull_ends_when_the_host_is_lost_meanwhile(door: Door, tmp_path: Path) -> None:
    lease, _over = leases.acquire(tmp_path / "state", "alice", "deploy", 60)
    door.world.engine.images.clear()
    door.world.command.answer(pull_s=60)
    thief = threading.Timer(1, leases.release, (tmp_path / "state", None, True))
    thief.start()
    begun = time.monotonic()
    result = door.ask(lease=lease.token)
    thief.join()
    assert result["msg"].startswith("ocr-1: the lease on this host ran out or was released; nothing more is changed")
    assert time.monotonic() - begun < 30
    assert (door.world.engine.pulled.exists(), door.world.engine.changes()) == (False, [])
