# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts are upgraded one after the other, under constant load on a service behind a gateway: no request may fail.

What is new on each host are settings of its engine, among them some that need a restart. That a host is drained and left by its replicas
before that, and gets them back after it, is the same whatever is upgraded.
"""

from __future__ import annotations

import json
import re
import typing as t
from collections.abc import Iterator
from pathlib import Path

from lab import asking
from lab.acts import told
from lab.load import Account, Load
from lab.places import LOGS
from lab.plays import Play
from lab.site import Site

GATEWAY_PORT, PATH = 8080, "/receipts/version"
KEY = {"X-Api-Key": "key-of-claims-1b7d"}
# What an answer of the gateway may wait for a check to see that a server is back.
UP_SECONDS = 120.0
ALL = ("-e", "upgrade_hosts=gpu_hosts")
# What role docker_host makes of an engine, and what the guests' image has not.
ENGINE = "docker info --format '{{.LiveRestoreEnabled}} {{.LoggingDriver}}'; cat /etc/docker/daemon.json"
LEAST = 500


def _load(site: Site) -> Load:
    (gateway,) = [name for name, wish in site.lab["guests"].items() if wish.get("gateway")]
    return Load("127.0.0.1", site.guest(gateway).ports[GATEWAY_PORT], PATH, KEY, threads=4, pace=1.6)


def _unanswered(what: str, account: Account, least: int) -> Iterator[str]:
    if account.failed:
        reasons = sorted({answer.problem for answer in account.failed})
        yield f"{what}: {len(account.failed)} of {len(account.answers)} requests failed: {'; '.join(reasons[:3])}"
    if len(account.answers) < least:
        yield f"{what}: only {len(account.answers)} requests were made meanwhile, which shows nothing"


def engines(site: Site) -> dict[str, tuple[bool, dict[str, t.Any]]]:
    """By host: whether its engine keeps containers through its own end, and its settings."""
    found = {}
    for guest in site.guests():
        first, _newline, settings = guest.ssh(ENGINE, "asking the engine").partition("\n")
        found[guest.name] = first.startswith("true"), json.loads(settings)
    return found


def _changes(play: Play) -> int:
    """How many tasks changed something, on any host."""
    return sum(int(number) for number in re.findall(r"^gpu-lab-\d +: ok=\d+ +changed=(\d+)", play.text, re.MULTILINE))


# --- acts -------------------------------------------------------------------------------------------------------------


def begin(site: Site) -> Iterator[str]:
    """A replica on each host, both through the gateway; the engines are as the image has them."""
    yield from asking.problems(site)
    if {replica.host for replica in asking.replicas(site)} != {guest.name for guest in site.guests()}:
        yield f"the replicas are {', '.join(map(str, asking.replicas(site)))}, and not one on each host"
    for host, (live, settings) in engines(site).items():
        if live or "log-opts" in settings:
            yield f"{host}: its engine is upgraded already: {settings}"
    yield from _served(site)


def _served(site: Site) -> Iterator[str]:
    """Every replica answers through the gateway."""
    wanted = set()
    for replica in asking.replicas(site):
        place = asking.look(site.guest(replica.host)).slices.get((replica.gpu, replica.profile, replica.start))
        wanted |= {place.uuid} if place else set()
    with _load(site) as load:
        load.wait_for(lambda account: account.devices >= wanted, UP_SECONDS)
    if load.account.devices != wanted:
        yield f"the gateway's answers came from the slices {sorted(load.account.devices)}, and the service's are {sorted(wanted)}"
    yield from _unanswered("through the gateway", load.account, 1)


def roll(site: Site) -> Iterator[str]:
    """Every request is answered while both hosts are upgraded, and each engine is as the roles make it."""
    with _load(site) as load:
        load.wait_for(lambda account: len(account.answers) >= 30, UP_SECONDS)
        status = (play := Play(site, "upgrade", *ALL)).end()
        load.wait_for(lambda account: len(account.answers) >= LEAST, UP_SECONDS * 3)
    took = play.lines[-1][0] - play.began
    print(f"upgrade: ended with {status} after {took:.0f} s, changed={_changes(play)}; {load.account}", flush=True)
    _keep(LOGS / "upgrade-times.json", play, load.account)
    if status != 0:
        yield f"upgrade ended with {status}: {' | '.join(play.reasons())[:600]}"
    yield from _unanswered("upgrade", load.account, LEAST)
    if len(load.account.devices) < len(site.guests()):
        yield f"answers came from {sorted(load.account.devices)} only: that nobody was ever asked elsewhere shows nothing"
    yield from _new(site)


def _new(site: Site) -> Iterator[str]:
    for host, (live, settings) in engines(site).items():
        print(f"  {host}: live-restore {live}, {json.dumps(settings)}", flush=True)
        if not live or settings.get("log-opts", {}).get("max-size") != "50m" or not settings.get("features", {}).get("cdi"):
            yield f"{host}: its engine is not upgraded: {settings}"
    yield from asking.problems(site)
    yield from _served(site)


def _keep(path: Path, play: Play, account: Account) -> None:
    tasks = [{"task": task.name, "at_s": round(task.began - play.began, 1), "seconds": round(task.seconds, 1)} for task in play.tasks()]
    path.write_text(json.dumps({"load": account.summary(), "tasks": tasks}, indent=2) + "\n", encoding="utf-8")


def again(site: Site) -> Iterator[str]:
    """The same once more touches nothing: the same containers run, and no task changed anything."""
    before = {guest.name: guest.ssh("docker ps --no-trunc --quiet | sort", "listing containers") for guest in site.guests()}
    with _load(site) as load:
        status = (play := Play(site, "upgrade", *ALL)).end()
    print(f"upgrade once more: ended with {status}, changed={_changes(play)}; {load.account}", flush=True)
    if status != 0:
        yield f"upgrade ended with {status} the second time: {' | '.join(play.reasons())[:600]}"
    if number := _changes(play):
        yield f"a second upgrade changed {number} tasks"
    after = {guest.name: guest.ssh("docker ps --no-trunc --quiet | sort", "listing containers") for guest in site.guests()}
    if after != before:
        yield f"a second upgrade left other containers: {before} before, {after} now"
    yield from _unanswered("upgrade once more", load.account, 10)


Act = t.Callable[[Site], Iterator[str]]
ACTS: dict[str, Act] = {act.__name__: act for act in (begin, roll, again)}


def tell_acts(site: Site, names: t.Iterable[str]) -> Iterator[str]:
    """Acts, one after the other; each goes on where the one before it ended."""
    for name in names:
        yield from told(name, ACTS[name](site))


def upgrade(site: Site) -> Iterator[str]:
    """Two hosts get their engine's settings one after the other; the service is reachable throughout, and a second run does nothing."""
    yield from tell_acts(site, ACTS)
