# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine: what it is, and which containers name a GPU. Its API over its unix socket, with the standard library only.

Source of the fields: Docker Engine API reference (https://docs.docker.com/reference/api/engine/), ``/info``, ``/containers/json`` and
``/containers/{id}/json``. Requests carry no version, so that the engine answers with its own newest.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import typing as t
from collections.abc import Callable, Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

if t.TYPE_CHECKING:
    from http.client import HTTPConnection

DEADLINE_S = 10.0
HTTP_OK = 200
HTTP_NO_CONTENT = 204
HTTP_NOT_MODIFIED = 304
HTTP_NOT_FOUND = 404
SHORT_ID = 12
# On a container with which this collection only asked the engine something (engine_probe.py): it runs nothing and holds no device.
PROBE_LABEL = "gpuops.probe"

# Labels may hold secrets of others (a proxy's passwords, say): only Compose's own and this collection's are facts.
_LABELS = ("com.docker.compose.", "gpuops.")
_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_CDI_NAME = re.compile(r"nvidia\.com/[^=]+=(.+)")
_CDI_INDEX = re.compile(r"(?:gpu|mig)?(\d+(?::\d+)?)")
_NODE = re.compile(r"/dev/nvidia\d+")
_MIB = 2**20

_Json = Mapping[str, t.Any]


class EngineError(FleetError):
    """The engine did not answer, or answered with an error; ``status`` is the HTTP status, None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@t.final
class Engine:
    """A conversation with the engine behind ``socket_path``; every answer is waited for at most ``deadline`` seconds."""

    def __init__(self, socket_path: str, deadline: float = DEADLINE_S) -> None:
        self._path = socket_path
        self._deadline = deadline
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()

    def get(self, path: str) -> t.Any:
        """The JSON that the engine answers to GET. EngineError with what went wrong."""
        status, data = self.call("GET", path)
        if status != HTTP_OK:
            raise EngineError(f"Docker engine at {self._path}: GET {path} answered {status}: {own_words(data)}", status)
        return data

    def call(self, method: str, path: str, body: _Json | None = None) -> tuple[int, t.Any]:
        """HTTP status and JSON of an answer; None for one that has no body. EngineError when no answer comes, or one that is no JSON."""
        status, text = self._ask(method, path, body)
        if status in (HTTP_NO_CONTENT, HTTP_NOT_MODIFIED):
            return status, None
        try:
            return status, json.loads(text)
        except ValueError as error:
            raise EngineError(f"Docker engine at {self._path}: {method} {path} answered {status} without JSON", status) from error

    def raw(self, method: str, path: str, body: _Json | None = None) -> tuple[int, bytes]:
        """HTTP status and body as it came: of logs, and of what a command inside a container wrote. EngineError when no answer comes."""
        return self._ask(method, path, body)

    def _ask(self, method: str, path: str, body: _Json | None) -> tuple[int, bytes]:
        # http.client brings ssl and the mail parser along: only a host with an engine pays for them.
        from http.client import HTTPException

        try:
            connection = self._connect()
            if body is None:
                connection.request(method, path)
            else:
                connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            self._hang_up()
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EngineError(f"Docker engine at {self._path}: {words}") from error

    def _connect(self) -> HTTPConnection:
        """The open connection, or a new one: the engine may close it after an answer."""
        from http.client import HTTPConnection

        if self._connection is None or self._connection.sock is None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.settimeout(self._deadline)
            self._connection = HTTPConnection("localhost")
            self._connection.sock = link
            link.connect(self._path)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def info(self) -> tuple[dict[str, t.Any], bool]:
        """The part ``engine.docker`` of the facts, and whether live-restore is in force."""
        answer = self.get("/info")
        return parse_info(answer), bool(answer.get("LiveRestoreEnabled"))

    def containers(self) -> list[dict[str, t.Any]]:
        """Every container that is not removed and names a GPU, running or not, by name; ``devices`` as they are written there.

        A container that goes away between the list and the question about it is left out, and so is one that only asked a question.
        """
        found = [parse_container(detail) for detail in self.details()]
        return sorted((container for container in found if container["devices"]), key=lambda container: str(container["name"]))

    def details(self) -> list[dict[str, t.Any]]:
        """What ``/containers/{id}/json`` says of every container that is not removed, but for those that only asked a question."""
        entries = [entry for entry in self.get("/containers/json?all=1") if PROBE_LABEL not in (entry.get("Labels") or {})]
        return [detail for entry in entries if (detail := self.detail(entry["Id"])) is not None]

    def detail(self, identifier: str) -> dict[str, t.Any] | None:
        """What the engine says of one container; None when it is removed."""
        try:
            return dict(self.get(f"/containers/{identifier}/json"))
        except EngineError as error:
            if error.status == HTTP_NOT_FOUND:
                return None
            raise

    def start(self, identifier: str) -> None:
        """Start a container that exists. One that runs is left as it is. EngineError with the engine's own words when it cannot."""
        status, answer = self.call("POST", f"/containers/{identifier}/start")
        if status not in (HTTP_NO_CONTENT, HTTP_NOT_MODIFIED):
            raise EngineError(own_words(answer), status)


def own_words(answer: t.Any) -> str:
    """The engine's own words in the body of an answer that is an error."""
    words = answer.get("message") if isinstance(answer, dict) else None
    return str(words or "no reason given")


def absent(reason: str) -> dict[str, t.Any]:
    """The part ``engine.docker`` of the facts when no engine answers."""
    return {"present": False, "version": None, "cdi": False, "runtimes": [], "error": reason}


def parse_info(info: _Json) -> dict[str, t.Any]:
    """Version, runtimes and CDI of an engine. The engine lists the directories that it reads CDI from only while CDI is on."""
    return {
        "present": True,
        "version": info.get("ServerVersion"),
        "cdi": bool(info.get("CDISpecDirs")),
        "runtimes": sorted(info.get("Runtimes") or {}),
        "error": None,
    }


def parse_container(detail: _Json) -> dict[str, t.Any]:
    """A container of the facts out of what ``/containers/{id}/json`` says. Amounts that are not limited are None."""
    config = detail.get("Config") or {}
    host = detail.get("HostConfig") or {}
    labels = config.get("Labels") or {}
    cpus = host.get("NanoCpus") or 0
    return {
        "id": str(detail["Id"])[:SHORT_ID],
        "name": str(detail.get("Name", "")).lstrip("/"),
        "image": config.get("Image"),
        "state": (detail.get("State") or {}).get("Status"),
        "project": labels.get(_PROJECT),
        "service": labels.get(_SERVICE),
        "devices": wanted_devices(config, host),
        "ports": published_ports(detail),
        "cpus": cpus / 1e9 if cpus else None,
        "memory_mib": (host.get("Memory") or 0) // _MIB or None,
        "shm_mib": (host.get("ShmSize") or 0) // _MIB or None,
        "labels": {key: labels[key] for key in sorted(labels) if key.startswith(_LABELS)},
    }


def wanted_devices(config: _Json, host: _Json) -> list[str]:
    """How a container names NVIDIA devices, in its own words and order: ``all``, ``0``, ``0:1``, a UUID or ``/dev/nvidia0``.

    A device request rules over NVIDIA_VISIBLE_DEVICES, which most CUDA images set to ``all`` and only NVIDIA's runtime obeys.
    A privileged container may open every device.
    """
    found: list[str] = []
    for request in host.get("DeviceRequests") or []:
        found += _requested(request)
    if not found and "nvidia" in str(host.get("Runtime") or ""):
        found += _environment(config.get("Env") or [])
    for device in host.get("Devices") or []:
        node = str(device.get("PathOnHost", ""))
        if _NODE.fullmatch(node):
            found.append(node)
    if host.get("Privileged"):
        found.append("all")
    return list(dict.fromkeys(found))


def _requested(request: _Json) -> list[str]:
    driver = request.get("Driver") or ""
    names = [str(name) for name in request.get("DeviceIDs") or []]
    if driver == "cdi":
        return [name for name in map(_cdi_device, names) if name]
    wants_gpu = any("gpu" in group or "nvidia" in group for group in request.get("Capabilities") or [])
    if driver not in ("", "nvidia") or not (wants_gpu or driver):
        return []
    if names:
        return [_cdi_device(name) or name for name in names]
    # Without ids, Docker takes the first `Count` GPUs by index; -1 is all of them.
    count = int(request.get("Count") or 0)
    return ["all"] if count < 0 else [str(index) for index in range(count)]


def _cdi_device(name: str) -> str | None:
    """The device in a CDI name (``nvidia.com/gpu=0:1``, ``nvidia.com/gpu=mig0:1``); None for another vendor's."""
    match = _CDI_NAME.fullmatch(name)
    if match is None:
        return None
    index = _CDI_INDEX.fullmatch(match.group(1))
    return index.group(1) if index else match.group(1)


def _environment(variables: Iterable[str]) -> list[str]:
    """Devices that NVIDIA_VISIBLE_DEVICES names; the last assignment counts, ``void`` and ``none`` name nothing."""
    values = [text.partition("=")[2] for text in variables if text.startswith("NVIDIA_VISIBLE_DEVICES=")]
    names = [name.strip() for name in values[-1].split(",")] if values else []
    return [_cdi_device(name) or name for name in names if name not in ("", "void", "none")]


def published_ports(detail: _Json) -> list[dict[str, t.Any]]:
    """``{host, container, protocol}`` of published ports, by host port. Of a container that does not run, as it is configured;
    ``host`` is then None where the engine will choose (nothing or a range is written).
    """
    actual = (detail.get("NetworkSettings") or {}).get("Ports") or {}
    wanted = (detail.get("HostConfig") or {}).get("PortBindings") or {}
    found = set()
    for spec, bindings in (actual if any(actual.values()) else wanted).items():
        number, _separator, protocol = spec.partition("/")
        for binding in bindings or []:
            host = str(binding.get("HostPort") or "")
            found.add((int(host) if host.isdigit() else None, int(number), protocol or "tcp"))
    ordered = sorted(found, key=lambda port: (port[0] or 0, port[1], port[2]))
    return [{"host": host, "container": number, "protocol": protocol} for host, number, protocol in ordered]


def resolve_devices(names: Iterable[str], gpus: Iterable[_Json], mig_device: Callable[[int, int], str | None]) -> list[str]:
    """UUIDs of what a container names. ``gpus`` are GPUs of the facts, ``mig_device(gpu index, mig index)`` finds a MIG UUID.

    ``all`` means every GPU and every slice of GPUs with MIG, since that is what NVIDIA's runtime injects. A UUID prefix is taken as the
    runtime takes it. What cannot be found here stays as it is written: an unknown name is still a claim.
    """
    known = list(gpus)
    slices = {
        gpu["uuid"]: [ci["uuid"] for gi in (gpu["mig"] or {}).get("instances") or [] for ci in gi["ci"]]
        for gpu in known
        if gpu["uuid"] is not None
    }
    uuids = [uuid for gpu, inside in slices.items() for uuid in (gpu, *inside)]
    found: list[str] = []
    for name in names:
        if name == "all":
            found += [uuid for gpu, inside in slices.items() for uuid in (inside or [gpu])] or ["all"]
        else:
            found.append(_resolve(name, known, uuids, mig_device))
    return list(dict.fromkeys(found))


def _resolve(name: str, gpus: list[_Json], uuids: list[str], mig_device: Callable[[int, int], str | None]) -> str:
    number, _separator, mig_index = name.partition(":")
    if number.isdigit() and mig_index.isdigit():
        return mig_device(int(number), int(mig_index)) or name
    if name.startswith("/dev/nvidia"):
        matches = [gpu["uuid"] for gpu in gpus if gpu["minor"] is not None and name == f"/dev/nvidia{gpu['minor']}"]
    elif name.isdigit():
        matches = [gpu["uuid"] for gpu in gpus if gpu["index"] == int(name)]
    else:
        matches = [uuid for uuid in uuids if uuid.startswith(name)]
    return str(matches[0]) if len(matches) == 1 and matches[0] else name


@t.final
class VersionProbe:
    """Asks a program for a version while other facts are read: ``words`` are its name or path and what it is asked with."""

    def __init__(self, *words: str, deadline: float = DEADLINE_S) -> None:
        self._deadline = deadline
        self._words = words
        command = shutil.which(words[0])
        self._process = None
        if command is not None:
            arguments = [command, *words[1:]]
            self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def version(self) -> str | None:
        """The version, or None where there is no such program or it knows none. FleetError when it is stuck; it is ended then."""
        if self._process is None:
            return None
        try:
            output, _errors = self._process.communicate(timeout=self._deadline)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise FleetError(f"`{' '.join(self._words)}` gave no answer in {self._deadline:g} s") from error
        match = re.search(r"\d+(?:\.\d+)+\S*", output.decode(errors="replace"))
        return match.group(0) if match and self._process.returncode == 0 else None
