# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the Docker engine can start a Compose project with its devices, asked before anything of the project is changed.

``docker compose up`` replaces a container by stopping the old one before it starts the new one, and the engine looks for devices only
when it starts a container: a device that cannot be given would cost a container that ran well. So the engine first starts a container
that can run nothing: same image, same devices, a program that does not exist, no network and no volumes. What it answers tells the rest.

* The engine itself refuses the device: ``CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=...``
  (https://github.com/moby/moby/issues/47633), ``could not select device driver "cdi" with capabilities: ...`` where CDI is off
  (https://github.com/NVIDIA/nvidia-container-toolkit/issues/434), or ``"nvidia"`` where NVIDIA's toolkit is missing.
* A hook of the runtime refuses it: ``... error running hook: ... nvidia-container-cli: device error: ...: unknown device``
  (https://github.com/NVIDIA/nvidia-container-toolkit/issues/29).
* Everything was given, and the program alone is missing: ``exec: "/...": stat /...: no such file or directory`` of runc, which looks for
  it after the hooks (libcontainer/standard_init_linux.go). A device's node may be missing in the same words
  (``failed to stat "/dev/nvidia-modeset": no such file or directory``), so only words about the program mean yes.

The root file system is read-only where the service's is: ``nvidia-cdi-hook`` can fail in one (https://github.com/kserve/kserve/pull/5711).
Requests and labels: Docker Engine API reference and Compose's own (pkg/api/labels.go).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from ansible_collections.gpuops.fleet.plugins.module_utils import jobs
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import (
    HTTP_NO_CONTENT,
    HTTP_NOT_FOUND,
    HTTP_NOT_MODIFIED,
    PROBE_LABEL,
    Engine,
    EngineError,
    own_words,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

ALWAYS, MISSING, NEVER, POLICY = "always", "missing", "never", "policy"
PROGRAM = "/.gpuops-device-probe"
ALIVE_S = 0.5  # between two looks at the lease while a command runs

_CREATED = 201
_CONFLICT = 409  # somebody else removes it already
_PROJECT, _SERVICE, _HASH = "com.docker.compose.project", "com.docker.compose.service", "com.docker.compose.config-hash"
_IMAGE, _ONE_OFF = "com.docker.compose.image", "com.docker.compose.oneoff"
_NO_PROGRAM = re.compile(r"no such file or directory|not found", re.IGNORECASE)
_READ_BY_NVIDIA = "NVIDIA_"
_HINTS = (
    ("unresolvable CDI devices", "no CDI specification of this host lists it: write them anew (nvidia-ctk cdi generate), then apply again"),
    ('device driver "cdi"', "CDI is off in the engine: switch features.cdi on in its daemon.json, or name devices in the other way"),
    ("ead-only file system", "NVIDIA's toolkit here cannot start it: upgrade the toolkit, or set model_service_read_only: false"),
    ("could not select device driver", "the engine knows no NVIDIA runtime: install NVIDIA's container toolkit and restart the engine"),
)

_Json = Mapping[str, t.Any]


@dataclass(frozen=True)
class Wish:
    """A project that shall run: a compose file that need not be written yet, and what its variables will be.

    ``devices``: for people, by what the file is given for each (``nvidia.com/gpu=MIG-...`` -> ``slice 1g.10gb@4 of GPU-...``).
    ``deadline``: seconds for each answer of engine and Compose. ``pull_deadline``: seconds for one image. ``asks``: whether the engine is
    asked for the devices; it cannot be before they are made.
    """

    project: str
    compose: str
    directory: str
    variables: Mapping[str, str]
    devices: Mapping[str, str] = field(default_factory=dict)
    pull: str = MISSING
    deadline: float = 120.0
    pull_deadline: float = 3600.0
    asks: bool = True


@dataclass(frozen=True)
class Answer:
    """What was done, or would be: services whose devices the engine gave, and images that were pulled; and what was found.

    ``runs``: a container of the project runs. ``settled``: Compose would leave every container of it as it is. ``done``: it is a job that
    has come to its end, which Compose would start again.
    """

    probed: list[str] = field(default_factory=list)
    pulled: list[str] = field(default_factory=list)
    runs: bool = False
    settled: bool = False
    done: bool = False


def compose_hashes(wish: Wish) -> dict[str, str]:
    """What Compose on this host compares with a container's label, by service. FleetError with its words when it refuses the file."""
    lines = [line.partition(" ") for line in _compose(wish, "--hash", "*").splitlines()]
    return {name: digest.strip() for name, _space, digest in lines if digest}


def compose_services(wish: Wish) -> dict[str, dict[str, t.Any]]:
    """The services of the file as Compose on this host understands them, with every variable resolved."""
    text = _compose(wish, "--format", "json")
    try:
        return dict(json.loads(text)["services"])
    except (ValueError, KeyError, TypeError) as error:
        raise FleetError("`docker compose config --format json` printed no services") from error


def _compose(wish: Wish, *how: str) -> str:
    argv = ["docker", "compose", "--project-name", wish.project, "--project-directory", wish.directory, "--file", "-", "config", *how]
    status, output, complaint = _run(argv, wish.deadline, wish.compose, wish.variables)
    if status:
        raise FleetError(f"Compose on this host refuses the compose file: {complaint or output}")
    return output


def _run(
    argv: Sequence[str],
    deadline: float,
    text: str = "",
    variables: Mapping[str, str] | None = None,
    alive: Callable[[], None] = lambda: None,
) -> tuple[int, str, str]:
    """Exit status, output and complaints of a command that gets ``text`` on its input. It is ended when ``alive`` raises."""
    environment = {**os.environ, **(variables or {})}
    pipes: dict[str, t.Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    end = time.monotonic() + deadline
    given: bytes | None = text.encode()
    try:
        with subprocess.Popen(argv, env=environment, **pipes) as process:
            try:
                while True:
                    try:
                        output, complaint = process.communicate(given, max(0.0, min(ALIVE_S, end - time.monotonic())))
                        break
                    except subprocess.TimeoutExpired as error:
                        if time.monotonic() >= end:
                            raise FleetError(f"`{' '.join(argv)}` did not end in {deadline:g} s") from error
                    given = None  # it was given
                    alive()
            except BaseException:
                process.kill()
                raise
    except OSError as error:
        raise FleetError(f"cannot run {argv[0]}: {error.strerror}") from error
    return process.returncode, output.decode(errors="replace"), complaint.decode(errors="replace").strip()


def device_requests(service: _Json) -> list[dict[str, t.Any]]:
    """What Compose will ask the engine for, in the engine's words: reservations, ``gpus``, and CDI names among ``devices``."""
    reservations = ((service.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
    requests = []
    for entry in [*(reservations.get("devices") or []), *(service.get("gpus") or [])]:
        names = entry.get("device_ids") or []
        count = entry.get("count")
        requests.append(
            {
                "Driver": entry.get("driver") or "",
                "Count": 0 if names else int(-1 if count in (None, "all") else count),
                "DeviceIDs": names or None,
                "Capabilities": [entry.get("capabilities") or ["gpu"]],
                "Options": entry.get("options") or {},
            }
        )
    mapped = [entry if isinstance(entry, str) else str(entry.get("source") or "") for entry in service.get("devices") or []]
    names = [name for name in mapped if "=" in name and not name.startswith("/")]
    return [*requests, {"Driver": "cdi", "DeviceIDs": names}] if names else requests


def probe_container(project: str, service: _Json) -> dict[str, t.Any]:
    """The container that is asked with: the service's image and devices, and of its environment what NVIDIA's runtime reads."""
    environment = {name: value for name, value in (service.get("environment") or {}).items() if name.startswith(_READ_BY_NVIDIA)}
    return {
        "Image": service["image"],
        "Entrypoint": [PROGRAM],
        "Cmd": [],
        # A user or a directory that the image lacks is not what is asked about.
        "User": "0:0",
        "WorkingDir": "/",
        # Compose prints '$' as '$$', so that its output may be its input.
        "Env": [f"{name}={str(value).replace('$$', '$')}" for name, value in sorted(environment.items()) if value is not None],
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {PROBE_LABEL: project},
        "HostConfig": {
            "DeviceRequests": device_requests(service),
            "Runtime": service.get("runtime") or "",
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": bool(service.get("read_only")),
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
        },
    }


def gives_devices(words: str) -> bool:
    """Whether the engine's words about the probe's start complain of the missing program alone."""
    return PROGRAM in words and _NO_PROGRAM.search(words) is not None


@t.final
class Probe:
    """Asks the engine behind ``socket_path`` about one wish. Nothing that it makes is left behind.

    ``alive`` is called again and again during a pull, which may last longer than a lease: to renew it, or to raise when it is lost.
    """

    def __init__(self, wish: Wish, socket_path: str, alive: Callable[[], None] = lambda: None) -> None:
        self._wish = wish
        self._socket = socket_path
        self._alive = alive

    def ask(self, check: bool = False) -> Answer:
        """Pull what is missing and prove that the engine can start every service that is not running as wished. FleetError when not.

        With ``check`` nothing is pulled or started; ``pulled`` then names what would be.
        """
        hashes = compose_hashes(self._wish)
        running: list[_Json] = []
        try:
            with self._engine() as engine:
                if not check:
                    self._clean(engine)
                running = self._running(engine)
            answer = self._ask(hashes, running, check)
            settled = bool(hashes) and self._settled(hashes, running) >= set(hashes)
            return replace(answer, runs=bool(running), settled=settled)
        except FleetError as error:
            raise _told(error, bool(running)) from error

    def _ask(self, hashes: Mapping[str, str], running: Sequence[_Json], check: bool) -> Answer:
        answer = Answer()
        pulls_always = self._wish.pull in (ALWAYS, POLICY)
        if not pulls_always and self._settled(hashes, running) >= set(hashes):
            return answer
        services = {name: service for name, service in compose_services(self._wish).items() if _wants_device(service)}
        if services and all(self._is_done(service, check) for service in services.values()):
            return replace(answer, done=True)
        for service in services.values():
            self._bring(str(service["image"]), self._policy(service), answer.pulled, check)
        settled = self._settled(hashes, running)
        for name in sorted(set(services) - settled):
            if self._wish.asks and not check:
                self._start(services[name])
                answer.probed.append(name)
        return answer

    def _engine(self) -> Engine:
        return Engine(self._socket, self._wish.deadline)

    # --- what runs already

    def _running(self, engine: Engine) -> list[_Json]:
        """The project's running containers in the engine's short form."""
        found = engine.get(f"/containers/json?filters={_filters(label=f'{_PROJECT}={self._wish.project}', status='running')}")
        return [entry for entry in found if (entry.get("Labels") or {}).get(_ONE_OFF) != "True"]

    def _settled(self, hashes: Mapping[str, str], running: Sequence[_Json]) -> set[str]:
        """Services that Compose will leave as they are: the same configuration and the image that its name means now."""
        found = set()
        with self._engine() as engine:
            for entry in running:
                labels = entry["Labels"]
                service = labels.get(_SERVICE)
                if service not in hashes or labels.get(_HASH) != hashes[service]:
                    continue
                image = engine.get(f"/containers/{entry['Id']}/json")["Config"]["Image"]
                identity = _image_id(engine, image)
                if identity is not None and identity == labels.get(_IMAGE):
                    found.add(service)
        return found

    # --- images

    def _is_done(self, service: _Json, check: bool) -> bool:
        """Whether it is a job that has ended well, by its paper or by a container that is still there; the paper is then written."""
        value, directory = _label(service, jobs.LABEL), Path(self._wish.directory)
        if not value or jobs.is_done(directory, value):
            return bool(value)
        with self._engine() as engine:
            found = engine.get(f"/containers/json?all=1&filters={_filters(label=f'{_PROJECT}={self._wish.project}')}")
            details = [engine.detail(entry["Id"]) or {} for entry in found if (entry.get("Labels") or {}).get(jobs.LABEL) == value]
        states = [detail.get("State") or {} for detail in details]
        done = any(jobs.did_well(str(state.get("Status")), int(state.get("ExitCode") or 0)) for state in states)
        if not check:
            jobs.note(directory, value) if done else jobs.forget(directory)
        return done

    def _policy(self, service: _Json) -> str:
        if self._wish.pull != POLICY:
            return self._wish.pull
        own = service.get("pull_policy")
        return own if own in (ALWAYS, NEVER) else MISSING

    def _bring(self, image: str, policy: str, pulled: list[str], check: bool) -> None:
        """See that the image is here; the command pulls, since it knows the logins of registries."""
        with self._engine() as engine:
            before = _image_id(engine, image)
        if image in pulled or (before is not None and policy != ALWAYS):
            return
        if check:
            if before is None and policy != NEVER:
                pulled.append(image)
            return
        if policy == NEVER:
            hint = "load it (docker load), or allow a pull"
            raise FleetError(f"image {image} is not on this host and may not be pulled (pull: {policy})", hint=hint)
        argv = ["docker", "--host", f"unix://{self._socket}", "pull", "--quiet", "--", image]
        status, output, complaint = _run(argv, self._wish.pull_deadline, alive=self._alive)
        if status:
            raise FleetError(f"cannot pull image {image}: {complaint or output}")
        with self._engine() as engine:
            if _image_id(engine, image) != before:
                pulled.append(image)

    # --- the question itself

    def _start(self, service: _Json) -> None:
        """FleetError with the engine's words unless it gives the devices."""
        try:
            with self._engine() as engine:
                try:
                    words = self._start_once(engine, probe_container(self._wish.project, service))
                except BaseException:
                    self._clean_quietly(engine)
                    raise
                if words is None or gives_devices(words):
                    self._clean(engine)
                    return
                self._clean_quietly(engine)
        except EngineError as error:
            raise FleetError(f"could not ask whether a container can have {self._asked(service)}: {error.message}") from error
        hint = next((hint for sign, hint in _HINTS if sign in words), None)
        raise FleetError(f"the Docker engine cannot start a container with {self._asked(service)}: {words}", hint=hint)

    def _start_once(self, engine: Engine, container: _Json) -> str | None:
        """The engine's complaint about making and starting a container, None when it has none."""
        status, made = engine.call("POST", "/containers/create", container)
        if status != _CREATED:
            return own_words(made)
        status, answer = engine.call("POST", f"/containers/{made['Id']}/start")
        return None if status in (HTTP_NO_CONTENT, HTTP_NOT_MODIFIED) else own_words(answer)

    def _asked(self, service: _Json) -> str:
        """For people: the variables and devices that the service is given."""
        names = [name for request in device_requests(service) for name in request["DeviceIDs"] or []]
        given = {value: variable for variable, value in self._wish.variables.items()}
        words = []
        for name in names:
            variable, where = given.get(name), self._wish.devices.get(name)
            words.append(f"{variable + ' = ' if variable else ''}{name}{f' ({where})' if where else ''}")
        return ", ".join(words) or "its devices"

    def _clean(self, engine: Engine) -> None:
        """Remove every container that asked for this project, also those that a killed run left behind, with their volumes."""
        for entry in engine.get(f"/containers/json?all=1&filters={_filters(label=f'{PROBE_LABEL}={self._wish.project}')}"):
            path = f"/containers/{entry['Id']}?force=1&v=1"
            status, answer = engine.call("DELETE", path)
            if status not in (HTTP_NO_CONTENT, HTTP_NOT_FOUND, _CONFLICT):
                raise EngineError(f"Docker engine at {self._socket}: DELETE {path} answered {status}: {own_words(answer)}", status)

    def _clean_quietly(self, engine: Engine) -> None:
        """As ``_clean`` when there is worse to tell; the next run removes what this one could not."""
        try:
            self._clean(engine)
        except EngineError:
            pass


def _told(error: FleetError, runs: bool) -> FleetError:
    """The error, with what became of what runs."""
    left = "nothing was written, and the running container was left alone" if runs else "nothing was written or started"
    return FleetError(error.message, hint=f"{error.hint}; {left}" if error.hint else left)


def _label(service: _Json, name: str) -> str:
    """A label in Compose's own output, which writes '$' as '$$'."""
    labels = service.get("labels") or {}
    return str(labels.get(name) or "").replace("$$", "$")


def _wants_device(service: _Json) -> bool:
    return bool(device_requests(service) or service.get("runtime"))


def _image_id(engine: Engine, image: str) -> str | None:
    status, detail = engine.call("GET", f"/images/{quote(image, safe='/:@')}/json")
    if status == HTTP_NOT_FOUND:
        return None
    identity = detail.get("Id") if isinstance(detail, dict) else None
    if identity is None:
        raise EngineError(f"image {image}: {own_words(detail)}", status)
    return str(identity)


def _filters(**wanted: str) -> str:
    return quote(json.dumps({name: [value] for name, value in wanted.items()}))
