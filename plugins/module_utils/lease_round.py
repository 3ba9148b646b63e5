# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The round of the host agent's timer: who is idle, who gets a notice, whose lease ends now. Every few minutes, and it can die anywhere.

The host's own lease is taken only to stop or start something, and not waited for: a play that holds the host goes first, and the next round
does what is left. So a host where nothing is due is held by nobody, and no play meets this one.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils import commands, lease_end, service_leases, services, utilisation
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as host_lease
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Book, Clock, Load, Record

Say = Callable[[str], None]
Measure = Callable[[t.Mapping[str, t.Any]], "dict[str, Load]"]


def look(config: Config, clock: Clock | None = None, say: Say = commands.say, measure: Measure = utilisation.measure) -> list[str]:
    """One round; what went wrong, a line each. LeaseError when another holds the host and something is due.

    FleetError when the file is damaged: nothing is stopped then. ``measure``: how busy the devices of replicas are.
    """
    book = service_leases.read(config.state_dir)
    if not book["leases"]:
        return []
    host_lease.refuse_other_agent(config.state_dir)
    clock = Clock.read(config.proc_root) if clock is None else clock
    runs = {name: lease_end.lives(lease_end.containers(config.docker_socket, name)) for name in book["leases"]}
    loads = _loads(config, book, runs, measure)
    with service_leases.changed(config.state_dir) as book:
        doubt = clock.doubt(book["seen"])
        problems = [] if doubt is None else [f"{doubt}: no lease ends by it before the next look"]
        book["seen"] = clock.plain()
        due = {} if doubt is not None else _judge(config, book, runs, loads, clock, say, problems)
        over = [name for name, record in book["leases"].items() if record["ended"] is not None and runs.get(name)]
        again = [name for name, record in book["leases"].items() if record["restart"] and config.docker_socket.exists()]
    if due or over or again:
        problems += _act(config, clock, list(due), over, again, say)
    return problems


def _loads(config: Config, book: Book, runs: Mapping[str, bool], measure: Measure) -> dict[str, Load]:
    """How busy the devices of running replicas with an idle rule are. A host that is held is left alone: nothing is known or forgotten."""
    wanted = [name for name, record in book["leases"].items() if record["idle"] is not None and record["ended"] is None and runs[name]]
    if not wanted:
        return {}
    found = {replica.name: replica.devices for replica in services.find(config).replicas if replica.name in wanted}
    try:
        host_lease.check(config.state_dir, None)
    except host_lease.LeaseError:
        return {}
    unknown = {name: Load(None, "nothing says which device it has") for name in wanted if name not in found}
    return {**unknown, **(measure(found) if found else {})}


def _judge(
    config: Config, book: Book, runs: Mapping[str, bool], loads: Mapping[str, Load], clock: Clock, say: Say, problems: list[str]
) -> dict[str, str]:
    """Bring every record up to date; whose lease is to end now, and why."""
    due: dict[str, str] = {}
    for name, record in sorted(book["leases"].items()):
        if name in loads or runs.get(name) is False:
            for line in service_leases.watch_idleness(record, loads.get(name), clock.now):
                say(line)
        for line in service_leases.give_notice(record, clock.now):
            say(line)
        why = service_leases.due(record, clock.now)
        if why is not None:
            due[name] = why
        problems += lease_end.tidy_notice(config, name, record)
    return due


def _act(config: Config, clock: Clock, names: list[str], over: list[str], again: list[str], say: Say) -> list[str]:
    """End what is due, stop what runs although its lease is over, complete the starts of extensions that died."""
    with host_lease.held(config.state_dir, services.HOLDER, "end leases of services", config.lease_seconds, 0) as token:
        host_lease.refuse_other_agent(config.state_dir)
        book = service_leases.read(config.state_dir)  # somebody may have extended one, until the host was ours
        still = ((name, service_leases.due(book["leases"][name], clock.now)) for name in names if name in book["leases"])
        due = {name: why for name, why in still if why is not None}
        problems = lease_end.end(config, token, due, clock, say) if due else []
        for name in over:
            if _ended(book, name):
                say(f"{name}: it runs although {service_leases.ended_words(book['leases'][name])}")
                problems += lease_end.stop(config, token, name, say)
        for name in again:
            if name in book["leases"] and book["leases"][name]["restart"]:
                problems += start(config, token, name, say)
    return problems


def _ended(book: Book, name: str) -> bool:
    return name in book["leases"] and book["leases"][name]["ended"] is not None


def start(config: Config, token: str, name: str, say: Say) -> list[str]:
    """Start a replica whose lease was extended after its end, on its own slice, and note that it is done; what went wrong, a line each."""
    try:
        problems = services.start(config, token, name, say)
    except host_lease.LeaseError:
        raise
    except FleetError as error:
        return [f"{name}: {error}"]
    if not problems:
        with service_leases.changed(config.state_dir) as book:
            record: Record | None = book["leases"].get(name)
            if record is not None:
                record["restart"] = False
    return problems
