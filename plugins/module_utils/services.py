# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts a host's services on their own slices with no controller near: the host agent's second unit, and what its watch leans on.

Docker never starts a GPU service by itself (``restart: "no"``): it would give a container the UUID of its last start, and after a boot
that UUID may be a neighbour's slice, or nobody's. So each replica's ``.env`` is written anew from (GPU, profile, start), and Compose starts
it. What runs well on its own slice is left alone; what runs on something else is stopped, whether or not its own slice is there.

Which replicas: those of the plan that the host carries (``plan.json``), where its lines say; one that was begun counts as well, so that a
host which died in the middle of a move goes on to the target. A host that carries no plan starts what has a container: a service that was
taken down has none. Nobody starts what somebody stopped (``stopped.json``) until it is deployed again.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import time
import typing as t
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ansible_collections.gpuops.fleet.plugins.module_utils import (
    commands,
    jobs,
    lease_end,
    plan_record,
    secrets,
    service_leases,
    stopped,
)
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config, parse_known
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import SHORT_ID, Engine, wanted_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlError
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import (
    DEVICES_FILE,
    Device,
    env_text,
    parse_entries,
    read_devices,
    read_env,
    resolve_all,
)

HOLDER = "host agent"
COMPOSE_FILE = "compose.yml"
_POLL_SECONDS = 1.0
_STOP_SECONDS = 30  # for a container to end before it is killed
_ENV_MODE = 0o640
_PROJECT, _ONE_OFF = "com.docker.compose.project", "com.docker.compose.oneoff"
_LIVE = ("running", "restarting", "paused")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Replica:
    """A replica of a service that this host has to run, and what it is given. ``style``: ``cdi`` or ``uuid``."""

    name: str
    directory: Path
    devices: tuple[Device, ...]
    style: str

    @property
    def where(self) -> str:
        """For people: ``slice 1g.10gb@4 of GPU-...``, several with ``and``."""
        return " and ".join(device.where for device in self.devices)


@dataclass(frozen=True)
class Found:
    """What this host has to run. By name: ``problems`` of replicas whose papers are missing, ``left`` why others are not started."""

    replicas: list[Replica]
    problems: dict[str, str]
    left: dict[str, str]


@dataclass(frozen=True)
class Container:
    """A container of a replica that has a device. ``state`` and ``health`` in the engine's words; ``health`` empty without a check.

    ``job``: its label as a job, empty for a service.
    """

    id: str
    name: str
    state: str
    health: str
    exit_code: int
    devices: tuple[str, ...]
    job: str = ""

    @property
    def done(self) -> bool:
        """Whether it is that of a job which has come to its end."""
        return bool(self.job) and jobs.did_well(self.state, self.exit_code)

    @property
    def lives(self) -> bool:
        """Whether it may have its device open."""
        return self.state in _LIVE


@dataclass(frozen=True)
class Standing:
    """A replica at one moment. ``uuids``: what each variable names now; None when that is not there, and ``reason`` says why."""

    replica: Replica
    uuids: Mapping[str, str] | None
    reason: str
    containers: tuple[Container, ...]

    def own(self, container: Container) -> bool:
        """Whether a container has nothing but what its replica shall have."""
        return self.uuids is not None and set(container.devices) <= set(self.uuids.values())

    @property
    def strangers(self) -> list[Container]:
        """Containers of this replica that run on something else than its own devices."""
        return [container for container in self.containers if container.lives and not self.own(container)]

    @property
    def runs(self) -> bool:
        """Whether every container of it runs, on its own devices, and none is ill."""
        fit = [one.state == "running" and one.health != "unhealthy" and self.own(one) for one in self.containers]
        return bool(fit) and all(fit)


# ---- which replicas


def find(config: Config) -> Found:
    """Every replica that this host has to run. FleetError when the host's record of its plan is damaged."""
    found = _all(config)
    try:
        stops = stopped.read(config.state_dir)
    except FleetError as error:
        # What somebody stopped runs then; that nothing ran would be worse.
        return Found(found.replicas, {**found.problems, stopped.FILE: str(error)}, found.left)
    left = {name: why for name in [*(one.name for one in found.replicas), *found.problems] if (why := stopped.why_stopped(stops, name))}
    return Found(
        [replica for replica in found.replicas if replica.name not in left],
        {name: problem for name, problem in found.problems.items() if name not in left},
        {**found.left, **{name: f"it was {why}" for name, why in left.items()}},
    )


def _all(config: Config) -> Found:
    record = plan_record.read(config.state_dir)
    names = sorted(path.parent.name for path in config.services_dir.glob(f"*/{COMPOSE_FILE}"))
    if record is None:
        return _without_ended(_without_plan(config, names), config)
    lines = {plan_record.name_of(line): line for line in record["services"]}
    found = Found([], {}, {name: f"it is not in plan {record['serial']}" for name in names if name not in lines})
    for name, line in lines.items():
        _add(found, config, name, plan_record.devices_of(line))
    return _without_ended(found, config)


def _without_ended(found: Found, config: Config) -> Found:
    """The same, where nobody starts a replica whose lease is over. Leases that cannot be read end nothing; ``bring_up`` names the file."""
    try:
        ended = service_leases.ended_records(config.state_dir)
    except FleetError:
        return found
    for name, record in ended.items():
        mine = [replica for replica in found.replicas if replica.name == name]
        if mine or found.problems.pop(name, None) is not None:
            found.left[name] = service_leases.ended_words(record)
        for replica in mine:
            found.replicas.remove(replica)
    return found


def _without_plan(config: Config, names: Sequence[str]) -> Found:
    found = Found([], {}, {})
    for name in names:
        if (config.services_dir / name / DEVICES_FILE).exists():  # without one it is not of this collection
            _add(found, config, name, None)
    if not found.replicas:
        return found
    with Engine(str(config.docker_socket)) as engine:
        for replica in list(found.replicas):
            if not listed(engine, replica.name):
                found.replicas.remove(replica)
                found.left[replica.name] = "this host carries no plan, and it has no container: it was taken down"
    return found


def _add(found: Found, config: Config, name: str, entries: Sequence[Mapping[str, t.Any]] | None) -> None:
    """Put a replica among ``found``; ``entries``: what the plan gives it, None for what ``devices.json`` says."""
    directory = config.services_dir / name
    if jobs.is_done(directory, jobs.wanted(directory / COMPOSE_FILE)):
        found.left[name] = "its job is done"
        return
    try:
        kept = read_devices(directory / DEVICES_FILE)
        if kept is None or not (directory / COMPOSE_FILE).exists():
            missing = DEVICES_FILE if kept is None else COMPOSE_FILE
            raise FleetError(f"there is no {directory / missing}", hint="apply the host's plan: that writes it")
        devices = kept[2] if entries is None else parse_entries(entries)
        found.replicas.append(Replica(name, directory, tuple(devices), kept[1]))
    except FleetError as error:
        found.problems[name] = str(error)


# ---- how they are


@t.final
class Looker:
    """Sees replicas and their containers as they are now; with NVML where it answers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._stack = contextlib.ExitStack()
        self._nvml: Nvml | None = None
        self._silence = ""

    def __enter__(self) -> Looker:
        try:
            self._nvml = self._stack.enter_context(Nvml())
        except NvmlError as error:
            self._silence = f"the driver does not answer ({error})"
        self._engine = self._stack.enter_context(Engine(str(self._config.docker_socket)))
        return self

    def __exit__(self, *ended: t.Any) -> None:
        self._stack.close()

    def look(self, replica: Replica) -> Standing:
        """One replica with its containers. EngineError when the engine does not answer."""
        containers = _containers(self._engine, replica.name)
        try:
            uuids = self._resolve(replica)
        except FleetError as error:
            return Standing(replica, None, error.message, containers)
        return Standing(replica, uuids, "", containers)

    def _resolve(self, replica: Replica) -> dict[str, str]:
        if self._nvml is None:
            raise FleetError(self._silence)
        return resolve_all(self._nvml, replica.devices, check=False)


def listed(engine: Engine, project: str) -> list[dict[str, t.Any]]:
    """The project's containers in the engine's short form, without those that a person runs beside it (``docker compose run``)."""
    filters = quote(json.dumps({"label": [f"{_PROJECT}={project}"]}))
    found = engine.get(f"/containers/json?all=1&filters={filters}")
    return [entry for entry in found if (entry.get("Labels") or {}).get(_ONE_OFF) != "True"]


def _containers(engine: Engine, project: str) -> tuple[Container, ...]:
    """The project's containers that have a device, by name; one that goes away meanwhile is left out."""
    found = []
    for entry in listed(engine, project):
        detail = engine.detail(entry["Id"])
        if detail is None:
            continue
        devices = wanted_devices(detail.get("Config") or {}, detail.get("HostConfig") or {})
        if devices:
            found.append(_container(detail, devices))
    return tuple(sorted(found, key=lambda container: container.name))


def _container(detail: Mapping[str, t.Any], devices: Sequence[str]) -> Container:
    state = detail.get("State") or {}
    health = str((state.get("Health") or {}).get("Status") or "")
    name = str(detail.get("Name") or detail["Id"]).lstrip("/")
    return Container(
        str(detail["Id"]),
        name,
        str(state.get("Status") or ""),
        "" if health == "none" else health,
        int(state.get("ExitCode") or 0),
        tuple(devices),
        jobs.value_of(detail),
    )


# ---- what is done


def bring_up(config: Config, names: Collection[str] | None = None, say: Say = commands.say) -> list[str]:
    """Start every replica on its own devices, stop what runs on others; ``names`` limits it to these. Returns what is missing, a line each.

    It can be run at any time: what runs well is not touched. The host's lease is held meanwhile, and waited for if a play has it.
    FleetError when nothing could be tried: the lease is not to be had, or the host's papers are damaged.
    """
    with leases.held(config.state_dir, HOLDER, "start the services", config.lease_seconds, config.lease_wait) as token:
        leases.refuse_other_agent(config.state_dir)
        if shutil.which(config.docker) is None and not config.docker_socket.exists():
            say("this host has no Docker engine: nothing is started")
            return []
        ended = lease_end.end_what_is_over(config, token, service_leases.Clock.read(config.proc_root), say)
        found = find(config)
        for name, reason in sorted(found.left.items()):
            say(f"{name}: not started, {reason}")
        problems = ended + [f"{name}: {problem}" for name, problem in found.problems.items() if names is None or name in names]
        replicas = [replica for replica in found.replicas if names is None or replica.name in names]
        return problems + (_Work(config, token, say).carry_out(replicas) if replicas else [])


def start(config: Config, token: str, name: str, say: Say = commands.say) -> list[str]:
    """Start one replica on its own devices and wait for it; whoever calls holds the host. What is wrong, a line each.

    FleetError when this host is not to run it.
    """
    return _Work(config, token, say).carry_out([_wanted(find(config), name)])


def _wanted(found: Found, name: str) -> Replica:
    replica = next((one for one in found.replicas if one.name == name), None)
    if replica is None:
        raise FleetError(found.problems.get(name) or found.left.get(name) or f"{name} is no service of this host")
    return replica


def heal(settings: Mapping[str, t.Any], name: str, say: Say = commands.say) -> None:
    """Start one replica again on its own devices; not waited for until it is healthy. ``settings``: of the agent, as plain data.

    FleetError when it cannot be started, is not to be, or another holds the host.
    """
    config = parse_known(settings)
    with leases.held(config.state_dir, HOLDER, f"start {name}", config.lease_seconds, 0) as token:
        leases.refuse_other_agent(config.state_dir)
        problems, started = _Work(config, token, say).begin([_wanted(find(config), name)])
        if not started:
            raise FleetError("; ".join(problems) or f"{name} was not started")


@dataclass
class _Work:
    config: Config
    token: str
    say: Say

    def carry_out(self, replicas: Sequence[Replica]) -> list[str]:
        """Start what has to be started and wait for it; what is wrong, a line each."""
        problems, started = self.begin(replicas)
        return problems + self._wait(started)

    def begin(self, replicas: Sequence[Replica]) -> tuple[list[str], list[Standing]]:
        """Stop what runs on something else and start all; what is wrong, and those that Compose started or found running."""
        with Looker(self.config) as looker:
            standings = [looker.look(replica) for replica in replicas]
        # First of all: while a container is on a neighbour's slice, the neighbour's own start would make two of them there.
        problems = [line for standing in standings for line in self._stop_strangers(standing)]
        problems += [f"{one.replica.name}: not started on {one.replica.where}: {one.reason}" for one in standings if one.uuids is None]
        ready = [standing for standing in standings if standing.uuids is not None and not self._is_done(standing)]
        with concurrent.futures.ThreadPoolExecutor(max(1, self.config.parallel)) as pool:
            failures = list(pool.map(self._start, ready))
        problems += [failure for failure in failures if failure is not None]
        return problems, [standing for standing, failure in zip(ready, failures) if failure is None]

    def _is_done(self, standing: Standing) -> bool:
        """Whether it is a job that ended well while nobody watched; its paper is then written, and nobody starts it."""
        replica = standing.replica
        wanted = jobs.wanted(replica.directory / COMPOSE_FILE)
        done = bool(wanted) and any(one.done and one.job == wanted for one in standing.containers)
        if done:
            jobs.note(replica.directory, wanted)
            self.say(f"{replica.name}: not started, its job is done")
        return done

    def _stop_strangers(self, standing: Standing) -> list[str]:
        lines = []
        for container in standing.strangers:
            argv = [*self._docker(), "stop", "--time", str(_STOP_SECONDS), container.id]
            label = f"{standing.replica.name}: container {container.name} ({container.id[:SHORT_ID]})"
            has = ", ".join(container.devices)
            try:
                leases.check(self.config.state_dir, self.token)
                done = commands.run(argv, self.config.command_wait)
            except leases.LeaseError:
                raise
            except FleetError as error:
                lines.append(f"{label} runs on {has}, which is not its own, and could not be stopped: {error}")
                continue
            if done.status:
                lines.append(f"{label} runs on {has}, which is not its own, and could not be stopped: {done.words}")
            else:
                self.say(f"{label} stopped: it ran on {has}, which is not its own")
        return lines

    def _start(self, standing: Standing) -> str | None:
        """None, or why the replica could not be started."""
        replica = standing.replica
        try:
            leases.check(self.config.state_dir, self.token)
            self._write_env(replica, t.cast("Mapping[str, str]", standing.uuids))
            secrets.materialise(self.config.plain(), replica.name)
            done = commands.run(self._up(replica), self.config.command_wait)
        except FleetError as error:
            return f"{replica.name}: {error}"
        return f"{replica.name}: Docker Compose could not start it: {done.words}" if done.status else None

    def _write_env(self, replica: Replica, uuids: Mapping[str, str]) -> None:
        path = replica.directory / ".env"
        text = env_text(uuids, replica.style)
        if read_env(path) != text:
            mode = path.stat().st_mode & 0o777 if path.exists() else _ENV_MODE
            write_text(path, text, mode)
            self.say(f"{replica.name}: .env written anew, {', '.join(f'{name} is {uuid}' for name, uuid in uuids.items())}")

    def _docker(self) -> list[str]:
        return [self.config.docker, "--host", f"unix://{self.config.docker_socket}"]

    def _up(self, replica: Replica) -> list[str]:
        """Nothing is pulled or built at a boot: what a play brought is what runs."""
        project = ["--project-name", replica.name, "--project-directory", str(replica.directory)]
        file = ["--file", str(replica.directory / COMPOSE_FILE)]
        how = ["--detach", "--no-build", "--pull", "never", "--remove-orphans"]
        return [*self._docker(), "compose", *project, *file, "up", *how]

    def _wait(self, started: Sequence[Standing]) -> list[str]:
        """Until each replica is healthy or has failed; a line for each that is not healthy when the time is over."""
        deadline = time.monotonic() + self.config.health_wait
        before = {standing.replica.name: {container.id for container in standing.containers} for standing in started}
        waiting = [standing.replica for standing in started]
        problems = []
        with Looker(self.config) as looker:
            while waiting:
                leases.check(self.config.state_dir, self.token)
                late = time.monotonic() >= deadline
                still = []
                for replica in waiting:
                    standing = looker.look(replica)
                    verdict = _verdict(standing)
                    if verdict == "":
                        self._say_running(standing, before[replica.name])
                    elif verdict is None and not late:
                        still.append(replica)
                    else:
                        problems.append(f"{replica.name}: {verdict or f'not healthy after {self.config.health_wait} s'}")
                waiting = still
                if waiting:
                    time.sleep(_POLL_SECONDS)
        return problems

    def _say_running(self, standing: Standing, before: Collection[str]) -> None:
        what = "runs as before" if {one.id for one in standing.containers} <= set(before) else "started"
        uuids = ", ".join((standing.uuids or {}).values())
        self.say(f"{standing.replica.name}: {what} on {standing.replica.where} ({uuids})")


def _verdict(standing: Standing) -> str | None:
    """Empty when all is well, None while it is not known yet, else what is wrong."""
    if standing.uuids is None:
        return standing.reason
    if not standing.containers:
        return "Compose made no container with a device"
    for one in standing.containers:
        if one.done:
            continue
        if one.state in ("exited", "dead"):
            return f"container {one.name} ended with status {one.exit_code}; see docker logs {one.name}"
        if one.health == "unhealthy":
            return f"container {one.name} is unhealthy; see docker logs {one.name}"
        if one.lives and not standing.own(one):
            return f"container {one.name} runs on {', '.join(one.devices)}, which is not its own"
    settled = all(one.done or (one.state == "running" and one.health in ("", "healthy")) for one in standing.containers)
    return "" if settled else None


# ---- for people


def describe(config: Config) -> tuple[list[str], bool]:
    """A line for each replica as it is now, and whether all run on their own devices. Nothing is changed or held."""
    if shutil.which(config.docker) is None and not os.path.exists(config.docker_socket):
        return ["this host has no Docker engine"], True
    found = find(config)
    lines, well = [f"{name}: does not run as it shall: {problem}" for name, problem in found.problems.items()], not found.problems
    try:
        leased = service_leases.read(config.state_dir)["leases"]
    except FleetError as error:
        lines, well, leased = [f"leases of services: {error}", *lines], False, {}
    with Looker(config) as looker:
        for replica in found.replicas:
            standing = looker.look(replica)
            verdict = _verdict(standing)
            well = well and verdict == ""
            word = "runs" if verdict == "" else "starting" if verdict is None else f"does not run as it shall: {verdict}"
            lease = f"; {service_leases.words(leased[replica.name])}" if replica.name in leased else ""
            lines.append(f"{replica.name}: {word}, on {replica.where}{lease}")
    return [*lines, *(f"{name}: not started, {reason}" for name, reason in sorted(found.left.items()))], well
