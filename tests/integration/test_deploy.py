# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks deploy, rollback, stop and move by real ansible-playbook processes, against an engine that tells what happened on it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from compose_world import Behaviour, World, compose_world, in_path
from fleet_site import REPOSITORY, demo

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Played, Site

HOST = "host-d"
ONE, TWO, BAD = (f"registry.example.com/ocr@sha256:{letter * 64}" for letter in "abc")
ROLLOUT = {"settle": 0, "timeout": 5, "drain": 0}


class Fleet:
    """A host with an engine, and a service on it whose version changes."""

    def __init__(self, site: Site, world: World) -> None:
        self.site, self.world = site, world

    def want(self, image: str, **more: t.Any) -> None:
        self.site.manifest("ocr", **{"image": image, "rollout": ROLLOUT, **more})

    def slices(self) -> list[str]:
        (gpu,) = json.loads(self.site.simctl(HOST, "show", "--json"))["gpus"]
        return sorted(f"{one['profile']}@{one['start']}" for one in gpu["mig"]["instances"])

    def lease(self) -> Path:
        return self.site.work / HOST / "state" / "lease.json"

    def since(self, mark: int) -> list[str]:
        """What happened to containers since the log was so long."""
        return self.world.log[mark:]

    def held(self) -> bool:
        return self.lease().exists()


@pytest.fixture(scope="module")
def fleet(make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Version 1 is deployed. Tests go on from what the one before left, in the order of this file."""
    site = make_site(host_d="a100-80gb:1")
    site.variables(HOST, fleet_gpu_modes=["mig"], fleet_gpu_access="nvidia")
    folder = tmp_path_factory.mktemp("engine")
    before = os.environ["PATH"]
    with compose_world(folder, site.work / HOST / "docker.sock") as world:
        os.environ["PATH"] = in_path(folder)
        try:
            made = Fleet(site, world)
            made.want(ONE)
            site.done("deploy")
            yield made
        finally:
            os.environ["PATH"] = before


def test_a_new_version_proves_itself_beside_the_old_one_and_a_second_run_changes_nothing(fleet: Fleet) -> None:
    slices, mark = fleet.slices(), len(fleet.world.log)
    fleet.want(TWO)
    fleet.world.alone.clear()
    promised = fleet.site.done("deploy", "--check")
    assert re.search(r"ocr-1: new version; beside the old one on host-d 1g\.10gb@\d", promised.output)
    assert (fleet.since(mark), fleet.slices()) == ([], slices)
    done = fleet.site.done("deploy")
    assert fleet.since(mark) == [
        "started ocr-surge",
        "stopped ocr-1",
        "removed ocr-1",
        "started ocr-1",
        "stopped ocr-surge",
        "removed ocr-surge",
    ]
    assert fleet.world.alone == []
    assert (fleet.world.running(), fleet.slices(), fleet.held()) == ({"ocr-1": TWO}, slices, False)
    assert re.search(r"ocr-1 on host-d: side-by-side, serving after \d+ s \(.*\); first answer", done.output)
    assert fleet.site.done("deploy").changed() == []


def test_a_version_that_is_never_healthy_leaves_the_old_one_and_the_play_says_so_in_one_line(fleet: Fleet) -> None:
    slices, mark = fleet.slices(), len(fleet.world.log)
    fleet.world.images[BAD] = Behaviour(unhealthy_after=0.0, healthy_after=None)
    fleet.want(BAD)
    refused = fleet.site.play("deploy")
    assert refused.status != 0
    assert refused.problems[-1].startswith("host-d: host-d: ocr-1: ")
    assert refused.problems[-1].endswith("the version before serves on")
    assert "stopped ocr-1" not in fleet.since(mark)
    assert (fleet.world.running(), fleet.slices(), fleet.held()) == ({"ocr-1": TWO}, slices, False)


def test_apply_does_not_try_again_what_failed_and_says_so(fleet: Fleet) -> None:
    """Deploy did, and the plan asks for it still."""
    mark, serving = len(fleet.world.log), fleet.world.running()
    for options in (("--check",), ()):
        refused = fleet.site.play("apply", *options)
        assert refused.status != 0
        assert re.fullmatch(
            r"ocr-1: version \d+ failed here at \S+Z \(.*\) and is not tried again; version \d+ serves on\. "
            r"Change the manifest, or try it again by playbook deploy",
            refused.message(),
        )
    assert (fleet.since(mark), fleet.world.running(), fleet.held()) == ([], serving, False)
    assert list(serving) == ["ocr-1"]


def test_one_command_goes_back_to_what_served(fleet: Fleet) -> None:
    """The manifest still asks for the version that failed."""
    back = fleet.site.done("rollback", "-e", "service=ocr", "--diff")
    assert f"+image: {TWO}" in back.output
    assert "revert the change there" in back.output
    assert yaml.safe_load((fleet.site.manifests / "ocr.yml").read_text(encoding="utf-8"))["image"] == TWO
    assert fleet.world.running() == {"ocr-1": TWO}
    fleet.site.done("rollback", "-e", "service=ocr")
    assert fleet.world.running() == {"ocr-1": ONE}
    assert "there is no earlier version of ocr" in fleet.site.play("rollback", "-e", "service=ocr").message()


def test_a_deploy_whose_controller_died_is_finished_by_the_next(fleet: Fleet) -> None:
    slices = fleet.slices()
    fleet.want(TWO)
    program = str(Path(sys.executable).parent / "ansible-playbook")
    argv = [program, "-i", str(fleet.site.inventory / "hosts.yml"), "gpuops.fleet.deploy"]
    env = demo.environment(fleet.site.work, REPOSITORY / "collections")
    with subprocess.Popen(
        argv, env=env, cwd=fleet.site.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        fleet.world.hooks["stopped ocr-1"] = lambda: os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert fleet.world.running() == {"ocr-surge": TWO}
    assert set(fleet.slices()) > set(slices)
    fleet.lease().unlink()  # as an engineer gives it back by force
    fleet.world.alone.clear()
    fleet.site.done("deploy")
    assert fleet.world.alone == []
    assert (fleet.world.running(), fleet.slices()) == ({"ocr-1": TWO}, slices)
    assert not (fleet.site.work / HOST / "services" / "ocr-surge").exists()


def test_the_second_of_two_deploys_waits_and_names_the_first(fleet: Fleet) -> None:
    fleet.want(ONE)
    runs: dict[str, Played] = {}

    def deploy() -> None:
        runs["anna"] = fleet.site.play("deploy", "-e", "fleet_holder=anna")

    first = threading.Thread(target=deploy)
    first.start()
    while not fleet.held() and first.is_alive():
        first.join(0.05)
    runs["ben"] = fleet.site.play("deploy", "-e", "fleet_holder=ben")
    first.join()
    assert [run.status for run in runs.values()] == [0, 0]
    assert re.search(r"host-d: waiting for anna \(deploy all services\), since \S+Z, until \S+Z", runs["ben"].output)
    assert fleet.world.running() == {"ocr-1": ONE}


def test_a_stopped_service_stays_so_until_it_is_deployed_by_name(fleet: Fleet) -> None:
    fleet.site.done("stop", "-e", "service=ocr", "-e", "reason=mask")
    assert fleet.world.running() == {}
    left = fleet.site.done("deploy")
    assert "ocr on host-d is stopped by" in left.output
    assert fleet.world.running() == {}
    promised = fleet.site.done("deploy", "-e", "service=ocr", "--check")
    assert "left alone" not in promised.output
    assert fleet.world.running() == {}
    fleet.site.done("deploy", "-e", "service=ocr")
    assert fleet.world.running() == {"ocr-1": ONE}


def test_a_version_that_needs_another_slice_stops_nothing_before_all_is_there_and_what_was_stopped_serves_again(fleet: Fleet) -> None:
    slices, mark, before = fleet.slices(), len(fleet.world.log), fleet.world.running()
    fleet.world.images[BAD] = Behaviour(known=False)
    fleet.want(BAD, gpu={"isolation": "slice", "memory": "60 GiB"})
    refused = fleet.site.play("deploy")
    assert f"ocr-1: cannot pull image {BAD}: Error response from daemon: manifest for {BAD} not found" in refused.problems[-1]
    assert refused.problems[-1].endswith("; nothing was stopped or partitioned")
    assert (fleet.since(mark), fleet.slices()) == ([], slices)
    fleet.want(TWO, gpu={"isolation": "slice", "memory": "60 GiB"})
    fleet.site.simctl(HOST, "fail", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--error", "UNKNOWN")
    assert fleet.site.play("deploy").status != 0
    assert fleet.since(mark) == ["stopped ocr-1", "removed ocr-1", "started ocr-1"]
    assert (fleet.world.running(), fleet.slices(), fleet.held()) == (before, slices, False)


def test_without_room_the_old_version_is_stopped_first(fleet: Fleet) -> None:
    fleet.want(ONE, gpu={"isolation": "slice", "memory": "60 GiB"})
    fleet.site.done("deploy")
    mark = len(fleet.world.log)
    fleet.want(TWO, gpu={"isolation": "slice", "memory": "60 GiB"})
    done = fleet.site.done("deploy")
    assert "ocr-1: new version; stop first on host-d: 1 GPU without room for" in done.output
    assert [line for line in fleet.since(mark) if "surge" in line] == []
    assert fleet.world.running() == {"ocr-1": TWO}


def test_a_deploy_of_one_service_is_refused_when_another_would_change_and_nothing_is_held_or_written(fleet: Fleet) -> None:
    # By its profile: a service that needs less than it has stays where it is, and the test before left it the whole board.
    fleet.want(ONE, gpu={"isolation": "slice", "profile": "3g.40gb"})
    fleet.site.manifest("face", "6 GiB")
    plan = (fleet.site.plans / f"{HOST}.yml").read_bytes()
    refused = fleet.site.play("deploy", "-e", "service=face")
    assert refused.status != 0
    assert "the plan would change more than face: ocr on host-d; deploy that first, or leave out -e service" in refused.output
    assert ((fleet.site.plans / f"{HOST}.yml").read_bytes(), fleet.held()) == (plan, False)


def test_who_exchange_their_ports_never_publish_one_twice_and_the_lower_priority_is_stopped_first(fleet: Fleet) -> None:
    # Of other sizes, so that they cannot exchange their slices.
    def want(ocr: int, face: int) -> None:
        fleet.want(TWO, priority=20, ports=[{"name": "http", "container": 8080, "host": ocr}])
        fleet.site.manifest("face", "18 GiB", priority=80, rollout=ROLLOUT, ports=[{"name": "http", "container": 8080, "host": face}])

    want(18000, 18001)
    fleet.site.done("deploy")
    mark = len(fleet.world.log)
    want(18001, 18000)
    done = fleet.site.done("deploy")
    assert "face-1: new version; beside the old one on host-d" in done.output
    assert "ocr-1: new version; stop first on host-d: others wait for a port or room that it gives up, and it for theirs" in done.output
    happened = [line for line in fleet.since(mark) if not line.startswith("removed")]
    assert happened == ["stopped ocr-1", "started face-surge", "stopped face-1", "started face-1", "stopped face-surge", "started ocr-1"]
    assert "stop ocr-1 on host-d" in (fleet.site.plans / "fleet.yml").read_text(encoding="utf-8").replace("from", "on")
    assert fleet.site.done("deploy").changed() == []
    (fleet.site.manifests / "face.yml").unlink()
    fleet.want(TWO)
    fleet.site.done("deploy")
    assert fleet.world.running() == {"ocr-1": TWO}


@contextlib.contextmanager
def once(come: t.Callable[[], bool], act: t.Callable[[], object]) -> Iterator[None]:
    """While the block runs: calls ``act`` when something has come about. It must, before the block ends."""
    over, acted = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if come():
                act()
                acted.set()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert acted.is_set()


def test_a_replica_moves_to_a_named_host_and_stays_there(make_site: MakeSite) -> None:
    site = make_site(host_a="a100-80gb:1", host_b="a100-80gb:1")
    for host in site.hosts:
        site.variables(host, fleet_gpu_modes=["mig"])
    site.manifest("ocr")
    states = {host: site.work / host / "state" for host in site.hosts}

    def begun() -> list[str]:
        return [host for host, state in states.items() if (state / "plan.json").exists()]

    def lose() -> None:
        """Ansible calls a host unreachable on which it can make no directory."""
        (folder := site.work / begun()[0] / "tmp").rename(folder.with_name("tmp-before"))
        folder.touch()

    # A host that is lost in its turn: the other has not had its turn, and is given back.
    with once(lambda: bool(begun()), lose):
        lost = site.play("deploy")
    (home,) = begun()
    (other,) = set(site.hosts) - {home}
    words = "it could not be reached any more in its turn; the next deploy finishes what was begun there"
    assert lost.problems[-1].endswith(f"{home}: {words}")
    assert [host for host, state in states.items() if (state / "lease.json").exists()] == [home]
    (site.work / home / "tmp").unlink()
    (site.work / home / "tmp-before").rename(site.work / home / "tmp")
    (states[home] / "lease.json").unlink()  # as an engineer gives it back by force

    def run_out() -> None:
        path = states[other] / "lease.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "expires": 1}), encoding="utf-8")

    # The next run finishes what was begun, although the other waits for its turn for longer than its lease lasts.
    with once(lambda: json.loads((states[home] / "plan.json").read_text(encoding="utf-8"))["state"] == "done", run_out):
        site.done("deploy")
    assert [host for host in site.hosts if (site.work / host / "services" / "ocr-1").exists()] == [home]
    site.done("move", "-e", "service=ocr", "-e", "replica=1", "-e", f"to={other}")
    assert [host for host in site.hosts if (site.work / host / "services" / "ocr-1").exists()] == [other]
    assert [task for task, _host in site.done("plan").changed() if task == "Make the plan"] == []
    refused = site.play("move", "-e", "service=ocr", "-e", "replica=2", "-e", f"to={home}")
    assert "there is no replica 2 of ocr: it has 1" in refused.message()


def test_whoever_makes_room_for_others_serves_in_its_new_place_before_they_come(make_site: MakeSite) -> None:
    site = make_site(host_a="a100-80gb:1", host_b="a100-80gb:1")
    for host in site.hosts:
        site.variables(host, fleet_gpu_modes=["mig"])
    site.manifest("ocr", priority=60)
    site.manifest("speech", gpu={"memory": "30 GiB"}, placement={"apart": ["ocr"]})
    site.done("deploy")
    services = {host: site.work / host / "services" for host in site.hosts}
    assert [sorted(path.name for path in folder.iterdir()) for folder in services.values()] == [["ocr-1"], ["speech-1"]]
    # All of host-a, which ocr leaves for host-b.
    site.manifest("ocr")
    site.manifest("speech", gpu={"memory": "30 GiB"}, priority=60)
    site.manifest("llm", gpu={"memory": "70 GiB"})
    played = site.done("deploy")
    assert re.findall(r"^TASK \[Begin the plan\] \*+\nchanged: \[(.+)\]$", played.output, re.MULTILINE) == ["host-b", "host-a"]
    assert [sorted(path.name for path in folder.iterdir()) for folder in services.values()] == [["llm-1"], ["ocr-1", "speech-1"]]
