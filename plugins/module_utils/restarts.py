# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which services are restarted, when, and how: those that died by themselves, later and later, each on its own slice.

A service is a container with the label ``gpuops.service`` that Docker itself does not restart. What somebody stopped stays stopped until
the next boot or apply. Nothing is restarted while a play holds the host, or on a GPU that is drained.
"""

from __future__ import annotations

import threading
import time
import typing as t
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from ansible_collections.gpuops.fleet.plugins.module_utils import drains, jobs, services
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import parse_known
from ansible_collections.gpuops.fleet.plugins.module_utils.bookkeeping import REPLICA, SERVICE, is_running, labels_of, short_id
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import SHORT_ID, Engine
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_events import Event, parse_time
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name

# Seconds before the first restart, twice as many before each further one, and at most; a service that did well for so long begins anew.
FIRST_S, LAST_S, WELL_S = 1.0, 60.0, 600.0
# Seconds until another look whether a play or a drain is over.
HELD_S, DRAINED_S = 5.0, 60.0
_NEVER = float("inf")
_HEALTHY = "healthy"

_Json = Mapping[str, t.Any]
Inbox = Callable[[Callable[[], None]], None]


@dataclass
class _Service:
    """What is known of one replica: its container, how often it was restarted, since when it does well (UTC), what is due (monotonic)."""

    container: str
    attempts: int = 0
    well_since: float | None = None
    due: float | None = None
    ours: bool = True
    refused: bool = False
    waits: bool = False
    healing: bool = False


@t.final
class Restarts:
    """The services of a host, and those of them that wait for their restart. ``inbox`` takes what the watcher's own thread is to do."""

    def __init__(self, settings: _Json, say: Callable[[str], None], inbox: Inbox) -> None:
        self._settings = settings
        self._config = parse_known(settings)
        self._say = say
        self._inbox = inbox
        self._services: dict[str, _Service] = {}

    def next_due(self) -> float:
        """When the next restart is due, by the monotonic clock; infinite for never."""
        waiting = (service.due for service in self._services.values() if service.due is not None and not service.healing)
        return min(waiting, default=_NEVER)

    def runs(self, detail: _Json, told: float | None = None) -> None:
        """A container runs. ``told``: when the engine told of its start; else it ran already."""
        name = replica_of(labels_of(detail))
        if name is None:
            return
        state = detail.get("State") or {}
        since = told if told is not None else parse_time(state.get("StartedAt"))
        service = self._known(name, short_id(detail))
        service.due, service.ours = None, _is_ours(detail)
        service.well_since = None if (state.get("Health") or {}).get("Status") == "unhealthy" else since

    def ran_before(self, detail: _Json, moment: float) -> bool:
        """Whether a service runs in the container, and did already at that moment (UTC seconds)."""
        began = parse_time((detail.get("State") or {}).get("StartedAt"))
        return replica_of(labels_of(detail)) is not None and began is not None and began < moment

    def health(self, event: Event) -> None:
        """A service tells how it does."""
        name = replica_of(event.about)
        if name is None:
            return
        self._say(f"{name}: {event.detail}")
        self._known(name, event.container).well_since = event.at if event.detail == _HEALTHY else None

    def died(self, event: Event, words: str) -> bool:
        """A container died by itself: plan its restart. False when it is no service, a job, or one that Docker restarts."""
        name = replica_of(event.about)
        if name is None or event.about.get(jobs.LABEL):
            return False  # a job that failed once may do harm twice: the next apply runs it again
        service = self._known(name, event.container)
        if not service.ours:
            return False
        if service.well_since is not None and event.at - service.well_since >= WELL_S:
            service.attempts = 0
        self._plan(name, service, words)
        return True

    def plan_for(self, detail: _Json, words: str) -> None:
        """Plan the restart of a service that was found ended, unless it is planned."""
        name = replica_of(labels_of(detail))
        if name is None or not _is_ours(detail):
            return
        service = self._known(name, short_id(detail))
        if service.due is None and not service.healing:
            self._plan(name, service, words)

    def cancel(self, container: str) -> None:
        """Somebody else started, stopped or removed it."""
        for service in self._services.values():
            if service.container == container:
                service.due, service.waits = None, False

    def _known(self, name: str, container: str) -> _Service:
        service = self._services.setdefault(name, _Service(container))
        service.container = container
        return service

    def _plan(self, name: str, service: _Service, words: str) -> None:
        delay = min(FIRST_S * 2**service.attempts, LAST_S)
        service.attempts = min(service.attempts + 1, 16)
        service.due, service.well_since, service.waits = time.monotonic() + delay, None, False
        self._say(f"{name}: {words}; it is started again in {delay:g} s")

    def do_due(self) -> None:
        """Restart whatever is due."""
        now = time.monotonic()
        for name, service in self._services.items():
            if service.due is not None and service.due <= now and not service.healing:
                service.due = None
                try:
                    self._restart(name, service)
                except FleetError as error:
                    service.refused = True
                    self._plan(name, service, f"it could not be started: {error}")

    def _restart(self, name: str, service: _Service) -> None:
        with Engine(str(self._config.docker_socket)) as engine:
            detail = engine.detail(service.container)
            if detail is None or is_running(detail) or not _is_ours(detail):
                return  # it was removed, somebody was faster, or Docker does it
            replica = self._replica(name)
            if replica is None or self._must_wait(name, service, replica):
                return
            if not service.refused and self._is_on_its_own(replica, service.container):
                engine.start(service.container)
                self._say(f"{name}: started again")
                return
        self._say(f"{name}: is brought up anew on {replica.where}")
        service.refused, service.healing = False, True
        threading.Thread(target=self._heal, args=(name,), daemon=True).start()

    def _replica(self, name: str) -> services.Replica | None:
        """What this host shall run under that name; None, and a line, when it shall not."""
        found = services.find(self._config)
        if name in found.problems:
            raise FleetError(found.problems[name])
        replica = next((one for one in found.replicas if one.name == name), None)
        if replica is None:
            self._say(f"{name}: is not started again: {found.left.get(name, 'this host is not to run it')}")
        return replica

    def _must_wait(self, name: str, service: _Service, replica: services.Replica) -> bool:
        """Whether a play or a drain keeps it from being started; then there is another look later, and a line the first time."""
        held = self._held()
        reason = held or self._drained(replica)
        if reason and not service.waits:
            self._say(f"{name}: is not started again yet: {reason}")
        service.waits = bool(reason)
        if reason:
            service.due = time.monotonic() + (HELD_S if held else DRAINED_S)
        return bool(reason)

    def _held(self) -> str | None:
        """Who holds the host; None when nobody does."""
        try:
            leases.check(self._config.state_dir, None, any_agent=True)
        except leases.LeaseError as error:
            return error.message
        return None

    def _drained(self, replica: services.Replica) -> str | None:
        """The drain that covers one of the replica's GPUs, in words; None when there is none."""
        gpus = {device.gpu for device in replica.devices}
        for drain in drains.read(self._config.state_dir, datetime.now(timezone.utc)):
            if drain["gpu"] is None or drain["gpu"] in gpus:
                return f"{drain['gpu'] or drains.HOST} is {drains.words(drain)}"
        return None

    def _is_on_its_own(self, replica: services.Replica, container: str) -> bool:
        """Whether the container names exactly slices that are the replica's own at this moment. A MIG UUID may be a neighbour's by now."""
        with services.Looker(self._config) as looker:
            standing = looker.look(replica)
        return any(one.id[:SHORT_ID] == container and standing.own(one) for one in standing.containers)

    def _heal(self, name: str) -> None:
        """In a thread of its own: Compose may take its time, and events do not wait."""
        problem = ""
        try:
            services.heal(self._settings, name, self._say)
        except FleetError as error:
            problem = str(error)
        self._inbox(lambda: self._healed(name, problem))

    def _healed(self, name: str, problem: str) -> None:
        service = self._services[name]
        service.healing = False
        if problem:
            service.refused = True
            self._plan(name, service, f"it could not be brought up: {problem}")
        else:
            self._say(f"{name}: brought up")


def replica_of(labels: Mapping[str, str]) -> str | None:
    """The replica that a container's labels name; None when it is no service of this collection."""
    service, replica = labels.get(SERVICE), labels.get(REPLICA)
    return replica_name(service, replica) if service and replica else None


def _is_ours(detail: _Json) -> bool:
    """Whether restarting it is ours: a service that Docker does not restart itself."""
    policy = ((detail.get("HostConfig") or {}).get("RestartPolicy") or {}).get("Name")
    return replica_of(labels_of(detail)) is not None and policy in (None, "", "no")
