# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbook upgrade on two hosts with engines: emptied, restarted, judged, one after the other.

Settings of the engine that need its restart are the work, for packages and kernel modules need a root of their own (``make chroot``). With
the engine a new driver comes, so that the summary has something to tell.
"""

from __future__ import annotations

import sys
import typing as t
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from compose_world import World, compose_world
from fleet_site import SIMULATOR

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

ONE, TWO = "host-a", "host-b"
HOSTS = (ONE, TWO)
OLD, NEW = "580.105.08", "580.126.09"
ROLLOUT = {"settle": 0, "timeout": 5, "drain": 0}

# A restart is another process of the engine; what runs at that moment is written down, and what a test wants to go wrong happens.
SYSTEMCTL = """\
import json, os, socket, subprocess, sys
from http.client import HTTPConnection
home, engine, words = {home!r}, {engine!r}, sys.argv[1:]
if words[0] != "restart":
    sys.exit(0)
connection = HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.sock.connect(engine)
connection.request("GET", "/containers/json")
running = sorted(one["Labels"]["com.docker.compose.project"] for one in json.loads(connection.getresponse().read()))
with open(os.path.join(home, "acts"), "a") as log:
    log.write(" ".join([words[0], *running]) + "\\n")
stat = os.path.join(home, "proc", "77", "stat")
start = int(open(stat).read().split()[-2]) + 1
open(stat, "w").write("77 (dockerd) S " + "0 " * 18 + str(start) + " 0\\n")
if os.path.exists(os.path.join(home, "at-restart")):
    sys.exit(subprocess.run(["sh", os.path.join(home, "at-restart")]).returncode)
"""


class Fleet:
    """Two hosts; one replica of a service on each, and room for both on either."""

    def __init__(self, site: Site, worlds: dict[str, World]) -> None:
        self.site, self.worlds = site, worlds

    def home(self, host: str) -> Path:
        return self.site.work / host

    def acts(self) -> dict[str, list[str]]:
        """What systemctl was told on each host, and what ran then."""
        paths = {host: self.home(host) / "acts" for host in HOSTS}
        return {host: path.read_text(encoding="utf-8").splitlines() if path.exists() else [] for host, path in paths.items()}

    def running(self) -> dict[str, list[str]]:
        return {host: sorted(world.running()) for host, world in self.worlds.items()}

    def at_restart(self, host: str, *verbs: str) -> None:
        """What happens to the GPUs of a host when its engine is restarted."""
        python = self.home(host) / "bin" / "python"
        lines = [f"{python} {SIMULATOR / 'bin' / 'simctl'} {verb}\n" for verb in verbs]
        (self.home(host) / "at-restart").write_text("".join(lines), encoding="utf-8")


def programs(home: Path, docker: Path) -> None:
    """``docker``, ``systemctl`` and a package manager of the host's own, before all others in the path of its modules."""
    folder = home / "programs"
    folder.mkdir()
    (home / "systemctl.py").write_text(SYSTEMCTL.format(home=str(home), engine=str(home / "docker.sock")), encoding="utf-8")
    (home / "proc" / "77").mkdir()
    (home / "proc" / "77" / "stat").write_text("77 (dockerd) S " + "0 " * 18 + "100 0\n", encoding="utf-8")
    (home / "proc" / "77" / "cmdline").write_bytes(b"/usr/sbin/dockerd\0")
    (home / "docker.pid").write_text("77", encoding="utf-8")
    scripts = {
        "docker": f'exec {docker} "$@"',
        "systemctl": f'exec {sys.executable} -S -E {home / "systemctl.py"} "$@"',
        "apk": "echo docker-engine-26.1.5-r0",
    }
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    wrapper = home / "bin" / "python"
    wrapper.write_text(wrapper.read_text(encoding="utf-8").replace(" PATH='", f" PATH='{folder}':'"), encoding="utf-8")


@pytest.fixture(scope="module")
def fleet(make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The service is deployed. Tests go on from what the one before left, in the order of this file."""
    site = make_site(host_a="a100-80gb:1", host_b="a100-80gb:1")
    with ExitStack() as stack:
        worlds = {}
        for host in HOSTS:
            home, folder = site.work / host, tmp_path_factory.mktemp(host)
            worlds[host] = stack.enter_context(compose_world(folder, home / "docker.sock"))
            programs(home, folder / "docker-bin" / "docker")
            site.variables(
                host,
                fleet_gpu_modes=["mig"],
                fleet_gpu_access="nvidia",
                fleet_host_agent=False,
                gpu_host_driver=False,
                gpu_host_container_toolkit=False,
                docker_host_source="present",
                docker_host_live_restore=False,
                docker_host_start=False,
                docker_host_path=str(home / "daemon.json"),
                docker_host_pid_file=str(home / "docker.pid"),
            )
        site.manifest("ocr", replicas=2, rollout=ROLLOUT)
        made = Fleet(site, worlds)
        site.done("deploy")
        assert made.running() == {ONE: ["ocr-1"], TWO: ["ocr-2"]}
        yield made


def test_it_shows_every_host_in_order_and_changes_nothing(fleet: Fleet) -> None:
    before = fleet.site.files()
    promised = fleet.site.done("upgrade", "--check", "--diff", "-e", f"upgrade_hosts={TWO},{ONE}")
    work = ("engine: settings by a restart: log-driver, log-opts", "engine: settings by a reload: live-restore")
    assert [line for line in promised.said() if line.startswith("host-")] == [
        f"{TWO}: drain it; ocr-2 from {TWO} to {ONE}",
        *(f"{TWO}: {line}" for line in work),
        f"{TWO}: gate, release",
        f"{ONE}: drain it; ocr-1 from {ONE} to {TWO}, ocr-2 from {ONE} to {TWO}",
        *(f"{ONE}: {line}" for line in work),
        f"{ONE}: gate, release",
    ]
    assert promised.changed() == [("Promise it", ONE), ("Promise it", TWO)]
    assert (fleet.site.files(), fleet.acts()) == (before, {ONE: [], TWO: []})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", ONE], f"--limit hides {TWO}, and an upgrade needs all of them to take replicas: leave --limit out"),
        (["-e", "upgrade_hosts=host-9"], "upgrade_hosts: 'host-9' is no host of group gpu_hosts; name hosts or groups of host-a, host-b"),
        (["-e", '{"fleet_cordoned_gpus": ["0"]}'], f"ocr-1 cannot leave {ONE}: its place, 1g.10gb@"),
    ],
)
def test_it_is_refused_in_one_line_before_anything_is_touched(fleet: Fleet, options: list[str], words: str) -> None:
    before = fleet.site.files()
    refused = fleet.site.play("upgrade", *options)
    assert words in refused.message()
    assert "\n" not in refused.message()
    assert (fleet.site.files(), fleet.acts()) == (before, {ONE: [], TWO: []})


def test_a_host_that_does_not_come_back_stays_empty_and_drained_and_ends_the_run(fleet: Fleet) -> None:
    fleet.at_restart(ONE, "lose --gpu 0")
    failed = fleet.site.play("upgrade", "-e", "fleet_holder=anna")
    assert failed.status != 0
    assert f"{ONE}: GPU 0000:" in failed.problems[-1]
    assert failed.problems[-1].endswith("; it stays drained, and no other host is touched")
    assert fleet.acts() == {ONE: ["restart"], TWO: []}, "nothing ran when the engine was restarted"
    assert fleet.running() == {ONE: [], TWO: ["ocr-1", "ocr-2"]}
    assert not [host for host in HOSTS if (fleet.home(host) / "state" / "lease.json").exists()]
    drains = (fleet.home(ONE) / "state" / "drains.json").read_text(encoding="utf-8")
    assert "playbook upgrade: host-a: GPU 0000:" in drains


def test_the_next_run_takes_the_drain_over_and_goes_on_and_services_stay_where_they_are_well(fleet: Fleet) -> None:
    fleet.site.simctl(ONE, "reboot")
    fleet.at_restart(TWO, f"set driver-version {NEW}")
    done = fleet.site.done("upgrade", "-e", "fleet_holder=ben")
    assert fleet.acts() == {ONE: ["restart"], TWO: ["restart"]}, "the first was done but for its gate; nothing ran on the second"
    assert fleet.running() == {ONE: ["ocr-1", "ocr-2"], TWO: []}
    first, second = (line.split() for line in done.said()[1:])
    assert (first[:3], first[4:]) == ([ONE, OLD, OLD], ["nothing"])
    assert (second[:3], " ".join(second[4:])) == ([TWO, OLD, NEW], f"ocr-1 from {TWO} to {ONE}, ocr-2 from {TWO} to {ONE}")
    for host in HOSTS:
        assert '"drains": []' in (fleet.home(host) / "state" / "drains.json").read_text(encoding="utf-8")
    for log in (world.alone for world in fleet.worlds.values()):
        assert all(line.startswith(("stopped", "removed")) for line in log), "each was left empty only by what had moved"


def test_a_second_run_passes_all_of_them_over(fleet: Fleet) -> None:
    again = fleet.site.done("upgrade")
    assert again.changed() == []
    words = "driver, engine and container toolkit are as wished: passed over"
    assert again.said() == [f"{ONE}: {words}", f"{TWO}: {words}"]
    assert fleet.acts() == {ONE: ["restart"], TWO: ["restart"]}
