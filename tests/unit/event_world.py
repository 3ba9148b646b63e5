# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine whose containers start, die and are stopped, and that tells so: ``/events`` on top of ``engine_world``.

Order and attributes of the events are those of Docker 26.1.5: ``docker stop`` is kill, die, stop; an end by itself is die alone.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
import typing as t
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import engine_world

BUFFER = 256


def stamp(at: float) -> str:
    """A time as the engine writes it, to the nanosecond."""
    whole = datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{int(at % 1 * 1e9):09d}Z"


class LiveEngine(engine_world.Engine):
    """Containers with a life. ``refusal``: what it answers to the next starts, if anything."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.RequestHandlerClass = _Handler
        self.refusal: str | None = None
        self.told: list[dict[str, t.Any]] = []
        self._listeners: list[queue.SimpleQueue[bytes | None]] = []
        self._guard = threading.Lock()
        self._connections: set[socket.socket] = set()

    def process_request_thread(self, request: t.Any, client_address: t.Any) -> None:
        """Keep count of who is connected: an engine that goes away hangs up."""
        self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.discard(request)

    def hang_up(self) -> None:
        """Break every conversation off and forget all events, as an engine that ends."""
        with self._guard:
            self.told.clear()
            for listener in self._listeners:
                listener.put(None)
            self._listeners.clear()
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def tell(self, action: str, identifier: str, at: float | None = None, **more: t.Any) -> None:
        """An event of a container."""
        container, moment = self.containers[identifier], time.time() if at is None else at
        attributes = {**container["Config"]["Labels"], "image": "ocr", "name": container["Name"].lstrip("/")}
        attributes.update({key: str(value) for key, value in more.items()})
        event = {"Type": "container", "Action": action, "Actor": {"ID": identifier, "Attributes": attributes}}
        event.update(scope="local", time=int(moment), timeNano=int(moment * 1e9))
        with self._guard:
            self.told = [*self.told, event][-BUFFER:]
            for listener in self._listeners:
                listener.put(json.dumps(event).encode() + b"\n")

    def listen(self, since: float | None) -> tuple[list[bytes], queue.SimpleQueue[bytes | None]]:
        """What it still remembers from ``since`` on, and a queue of what comes."""
        with self._guard:
            old = [json.dumps(event).encode() + b"\n" for event in self.told if since is not None and event["timeNano"] >= since * 1e9]
            listener: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            self._listeners.append(listener)
            return old, listener

    def remembered(self, since: float, until: float) -> list[bytes]:
        """What it remembers between the two."""
        with self._guard:
            return [json.dumps(event).encode() + b"\n" for event in self.told if since * 1e9 <= event["timeNano"] <= until * 1e9]

    def create(self, identifier: str, name: str, *devices: str, policy: str = "no", **labels: str) -> str:
        """A container that has not run; labels are written with ``__`` for a dot."""
        full = identifier * (64 // len(identifier))
        self.containers[full] = {
            "Id": full,
            "Name": f"/{name}",
            "Config": {"Image": "ocr", "Labels": {key.replace("__", "."): value for key, value in labels.items()}},
            "HostConfig": {
                "DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": list(devices), "Capabilities": [["gpu"]]}] if devices else [],
                "RestartPolicy": {"Name": policy},
            },
            "State": {"Status": "created", "Running": False, "StartedAt": stamp(0), "FinishedAt": "0001-01-01T00:00:00Z"},
        }
        return full

    def service(self, identifier: str, name: str, *devices: str, policy: str = "no") -> str:
        """A replica as compose templates make it, running."""
        service, _dash, replica = name.rpartition("-")
        labels = {"gpuops__service": service, "gpuops__replica": replica, "gpuops__team": "claims", "gpuops__environment": "prod"}
        full = self.create(identifier, name, *devices, policy=policy, **labels, com__docker__compose__project=name)
        self.begin(full)
        return full

    def begin(self, identifier: str, at: float | None = None) -> None:
        """It starts."""
        moment = time.time() if at is None else at
        self.containers[identifier]["State"].update(Status="running", Running=True, StartedAt=stamp(moment), OOMKilled=False)
        self.tell("start", identifier, moment + 0.001)

    def die(self, identifier: str, code: int = 1, at: float | None = None) -> None:
        """It ends, for whatever reason."""
        moment = time.time() if at is None else at
        self.silently_die(identifier, code, moment)
        self.tell("die", identifier, moment + 0.001, exitCode=code)

    def silently_die(self, identifier: str, code: int, at: float) -> None:
        """It ends, and nobody is told."""
        self.containers[identifier]["State"].update(Status="exited", Running=False, FinishedAt=stamp(at), ExitCode=code)

    def stop(self, identifier: str, signal: int = 15) -> None:
        """Somebody asks for its end."""
        self.tell("kill", identifier, signal=signal)
        self.die(identifier, 128 + signal)
        self.tell("stop", identifier)

    def remove(self, identifier: str) -> None:
        """Somebody removes it."""
        self.tell("destroy", identifier)
        del self.containers[identifier]

    def starts(self) -> int:
        """How often it was asked to start one."""
        return len([path for method, path in self.calls if method == "POST" and path.endswith("/start")])


class _Handler(engine_world._Handler, BaseHTTPRequestHandler):
    server: LiveEngine

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        parts = url.path.split("/")
        if len(parts) == 4 and parts[3] == "json" and parts[2] not in self.server.containers:
            # the engine takes the beginning of an id as well
            full = next((one for one in self.server.containers if one.startswith(parts[2])), parts[2])
            self.path = f"/containers/{full}/json"
        if url.path == "/events":
            self.server.calls.append(("GET", self.path))
            self._events({key: values[0] for key, values in parse_qs(url.query).items()})
        else:
            super().do_GET()

    def _events(self, query: dict[str, str]) -> None:
        since = float(query["since"]) if "since" in query else None
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if "until" in query:
            for line in [*self.server.remembered(since or 0.0, float(query["until"])), b""]:
                self._chunk(line)
        else:
            self._stream(since)

    def _stream(self, since: float | None) -> None:
        old, listener = self.server.listen(since)
        try:
            for line in old:
                self._chunk(line)
            for line in iter(listener.get, None):
                self._chunk(line)
        except OSError:  # whoever listened has gone
            pass
        self.close_connection = True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def do_POST(self) -> None:
        parts = urlsplit(self.path).path.split("/")
        if parts[-1] != "start":
            return super().do_POST()
        self.server.calls.append(("POST", self.path))
        full = next((one for one in self.server.containers if one.startswith(parts[2])), None)
        if full is None:
            return self._answer(404, {"message": "No such container"})
        if self.server.refusal is not None:
            return self._answer(500, {"message": self.server.refusal})
        self.server.begin(full)
        return self._answer(204)


def wait_for(what: Callable[[], t.Any], seconds: float = 5.0) -> t.Any:
    """What it gives as soon as that is true; AssertionError when it never is."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
