# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine on a real socket whose containers behave as their image is told to, and a ``docker`` command with Compose beside it.

The shapes are those of Docker 26.1.5 and Compose 2.26.1 of Debian 13. ``log`` has everything that happened to containers, in order; a test
may hang a function on any of it, which is called when it is done and before the command hears of it.
"""

from __future__ import annotations

import json
import os
import re
import socketserver
import sys
import threading
import time
import typing as t
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PROJECT, SERVICE, HASH = "com.docker.compose.project", "com.docker.compose.service", "com.docker.compose.config-hash"
IMAGE, ONE_OFF = "com.docker.compose.image", "com.docker.compose.oneoff"
MISSING_PROGRAM = (
    "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    'container process: exec: "/.gpuops-device-probe": stat /.gpuops-device-probe: no such file or directory: unknown'
)

DOCKER = """\
import hashlib, json, os, socket, string, sys
from http.client import HTTPConnection
import yaml
words = sys.argv[1:]
path = {socket!r}
def ask(wish):
    connection = HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(path)
    connection.request("PUT", "/world", json.dumps(wish))
    return json.loads(connection.getresponse().read())
def after(option):
    return words[words.index(option) + 1] if option in words else None
def project():
    directory = after("--project-directory")
    if "-" == after("--file"):
        text, variables = sys.stdin.read(), dict(os.environ)
    else:
        text = open(os.path.join(directory, "compose.yml")).read()
        with open(os.path.join(directory, ".env")) as env:
            variables = dict(line.strip().split("=", 1) for line in env if "=" in line and not line.startswith("#"))
    return yaml.safe_load(string.Template(text).substitute(variables))["services"]
def digest(service):
    return hashlib.sha256(json.dumps(service, sort_keys=True).encode()).hexdigest()
if "version" in words and "compose" not in words:
    print(json.dumps({{"Client": {{"Version": "26.1.5"}}, "Server": None}}))
elif "version" in words:
    print("2.26.1" if "--short" in words else json.dumps({{"version": "2.26.1"}}))
elif "pull" in words:
    answer = ask({{"verb": "pull", "image": words[-1]}})
    sys.exit(answer.get("error"))
elif "config" in words:
    services = project()
    if "--hash" in words:
        for name, service in services.items():
            print(name, digest(service))
    else:
        print(json.dumps({{"services": services}}))
elif "ps" in words:
    for container in ask({{"verb": "ps", "project": after("--project-name")}})["containers"]:
        print(json.dumps(container))
elif "images" in words:
    print("[]")
else:
    verb = next(word for word in ("up", "stop", "down") if word in words)
    wish = {{"verb": verb, "project": after("--project-name"), "start": "--no-start" not in words, "wait": "--wait" in words}}
    wish["dry"] = "--dry-run" in words
    if verb == "up":
        wish["services"] = {{name: {{**service, "hash": digest(service)}} for name, service in project().items()}}
    answer = ask(wish)
    for line in answer["events"]:
        print(f" DRY-RUN MODE - {{line}}" if wish["dry"] else line, file=sys.stderr)
    if answer.get("error"):
        print(answer["error"], file=sys.stderr)
        sys.exit(1)
"""


@dataclass
class Behaviour:
    """What containers of an image do. Seconds count from their start; None: never.

    ``sees``: what ``nvidia-smi -L`` lists inside, None for the devices that the container was given.
    """

    healthy_after: float | None = 0.0
    unhealthy_after: float | None = None
    exits_after: float | None = None
    exit_code: int = 3
    says: str = "loading the model"
    sees: list[str] | None = None
    known: bool = True
    start_error: str = ""


class World(socketserver.ThreadingUnixStreamServer):
    """The engine. ``refused``: devices that it gives to nobody. ``hooks``: what is called after a line of ``log`` came about."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, socket_path: Path) -> None:
        self.images: dict[str, Behaviour] = {}
        self.containers: dict[str, dict[str, t.Any]] = {}
        self.log: list[str] = []
        self.hooks: dict[str, Callable[[], None]] = {}
        self.refused: set[str] = set()
        self.execs: dict[str, str] = {}
        self.made = 0
        self.alone: list[str] = []  # lines of the log after which nothing of the service was fit for requests
        self._lock = threading.RLock()
        super().__init__(str(socket_path), _Handler)

    # --- what tests ask

    def running(self) -> dict[str, str]:
        """Image of each project that runs and is healthy."""
        found = {}
        for known in self.containers.values():
            state = self.state(known)
            if state["Status"] == "running" and (state.get("Health") or {}).get("Status", "healthy") == "healthy":
                found[known["Config"]["Labels"][PROJECT]] = known["Config"]["Image"]
        return found

    def note(self, line: str) -> None:
        """Something happened."""
        self.log.append(line)
        if not self.running():
            self.alone.append(line)
        hook = self.hooks.pop(line, None)
        if hook is not None:
            hook()

    # --- containers

    def behaviour(self, image: str) -> Behaviour:
        """What an image was told to do; the good one if nothing."""
        return self.images.setdefault(image, Behaviour())

    def state(self, known: dict[str, t.Any]) -> dict[str, t.Any]:
        """``State`` of a container at this moment."""
        does, begun, ended = self.behaviour(known["Config"]["Image"]), known["begun"], known["ended"]
        if begun is None:
            return {"Status": "created", "Running": False, "ExitCode": 0, "Pid": 0}
        age = time.monotonic() - begun
        if ended is not None:
            return {"Status": "exited", "Running": False, "ExitCode": ended, "Pid": 0, "StartedAt": known["at"]}
        if does.exits_after is not None and age >= does.exits_after:
            return {"Status": "exited", "Running": False, "ExitCode": does.exit_code, "Pid": 0, "StartedAt": known["at"]}
        health = "starting"
        if does.unhealthy_after is not None and age >= does.unhealthy_after:
            health = "unhealthy"
        elif does.healthy_after is not None and age >= does.healthy_after:
            health = "healthy"
        said = [{"Output": "curl: (7) Failed to connect"}] if health == "unhealthy" else []
        return {
            "Status": "running",
            "Running": True,
            "ExitCode": 0,
            "Pid": 4711,
            "StartedAt": known["at"],
            "Health": {"Status": health, "Log": said},
        }

    def detail(self, known: dict[str, t.Any]) -> dict[str, t.Any]:
        """What ``/containers/{id}/json`` says."""
        plain = {key: value for key, value in known.items() if key not in ("begun", "ended", "at")}
        return {**plain, "State": self.state(known)}

    def obey(self, wish: dict[str, t.Any]) -> dict[str, t.Any]:
        """Do what the ``docker`` command asks for."""
        with self._lock:
            if wish["verb"] == "pull":
                return self._pull(wish["image"])
            mine = [known for known in self.containers.values() if known["Config"]["Labels"].get(PROJECT) == wish["project"]]
            if wish["verb"] == "ps":
                return {"containers": [{"Name": known["Name"][1:], "State": self.state(known)["Status"]} for known in mine]}
            if wish["dry"]:
                return {"events": self._would(wish, mine)}
            if wish["verb"] in ("stop", "down"):
                return {"events": self._end(wish["project"], mine, wish["verb"] == "down")}
            return self._up(wish, mine)

    def _would(self, wish: dict[str, t.Any], mine: list[dict[str, t.Any]]) -> list[str]:
        """The events of a dry run, which changes nothing."""
        running = {known["Name"][1:] for known in mine if self.state(known)["Status"] == "running"}
        if wish["verb"] in ("stop", "down"):
            words = [("Stopping", "Stopped", running), ("Removing", "Removed", {one["Name"][1:] for one in mine if wish["verb"] == "down"})]
        else:
            (service,) = wish["services"].values()
            asked = {wish["project"]: service["hash"]}
            there = {known["Name"][1:]: known["Config"]["Labels"][HASH] for known in mine}
            new = {name for name, wanted in asked.items() if there.get(name) != wanted}
            words = [("Creating", "Created", new), ("Starting", "Started", new | (set(asked) - running))]
        return [f" Container {name}  {word}" for begin, end, names in words for name in sorted(names) for word in (begin, end)]

    def _pull(self, image: str) -> dict[str, t.Any]:
        if not self.behaviour(image).known:
            return {"error": f"Error response from daemon: manifest for {image} not found: manifest unknown"}
        return {}

    def _end(self, project: str, mine: list[dict[str, t.Any]], remove: bool) -> list[str]:
        events = []
        for known in mine:
            name = known["Name"][1:]
            if self.state(known)["Status"] == "running":
                known["ended"] = 143
                events += [f" Container {name}  Stopping", f" Container {name}  Stopped"]
                self.note(f"stopped {project}")
            if remove:
                del self.containers[known["Id"]]
                events += [f" Container {name}  Removing", f" Container {name}  Removed"]
                self.note(f"removed {project}")
        return events

    def _up(self, wish: dict[str, t.Any], mine: list[dict[str, t.Any]]) -> dict[str, t.Any]:
        events: list[str] = []
        for name, service in wish["services"].items():
            known = next((one for one in mine if one["Config"]["Labels"][SERVICE] == name), None)
            if known is not None and known["Config"]["Labels"][HASH] != service["hash"]:
                events += self._end(wish["project"], [known], True)
                known = None
            if known is None:
                known = self.make(wish["project"], name, service)
                events += [f" Container {known['Name'][1:]}  Creating", f" Container {known['Name'][1:]}  Created"]
            if not wish["start"]:
                continue
            error = self._start(wish["project"], known, events)
            if error or (wish["wait"] and (error := self._wait(known))):
                return {"events": events, "error": error}
        return {"events": events}

    def make(self, project: str, name: str, service: dict[str, t.Any]) -> dict[str, t.Any]:
        """A container of a project, as Compose makes it."""
        self.made += 1
        devices = service["deploy"]["resources"]["reservations"]["devices"]
        requests = [{"Driver": one["driver"], "DeviceIDs": one["device_ids"], "Capabilities": [one["capabilities"]]} for one in devices]
        labels = {PROJECT: project, SERVICE: name, HASH: service["hash"], IMAGE: f"sha256:{service['image']}", ONE_OFF: "False"}
        known = {
            "Id": f"{self.made:012x}{0:052x}",  # its first twelve digits are a name by themselves
            "Name": f"/{project}",
            "Config": {"Image": service["image"], "Env": [], "Labels": {**service.get("labels", {}), **labels}},
            "HostConfig": {"DeviceRequests": requests, "RestartPolicy": {"Name": "no"}, "PortBindings": _bindings(service)},
            "begun": None,
            "ended": None,
            "at": None,
        }
        self.containers[known["Id"]] = known
        return known

    def _start(self, project: str, known: dict[str, t.Any], events: list[str]) -> str | None:
        if self.state(known)["Status"] == "running":
            events.append(f" Container {known['Name'][1:]}  Running")
            return None
        events.append(f" Container {known['Name'][1:]}  Starting")
        if words := self.behaviour(known["Config"]["Image"]).start_error:
            return f"Error response from daemon: {words}"
        if taken := _host_ports(known) & {port for one in self.containers.values() if one is not known for port in self._publishes(one)}:
            return f"Error response from daemon: Bind for 0.0.0.0:{min(taken)} failed: port is already allocated"
        known["begun"], known["ended"], known["at"] = time.monotonic(), None, f"2026-11-21T12:00:{time.monotonic():.6f}Z"
        events.append(f" Container {known['Name'][1:]}  Started")
        self.note(f"started {project}")
        return None

    def _publishes(self, known: dict[str, t.Any]) -> set[str]:
        return _host_ports(known) if self.state(known)["Status"] == "running" else set()

    def _wait(self, known: dict[str, t.Any]) -> str | None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            state = self.state(known)
            if state["Status"] == "exited":
                return f"container {known['Name'][1:]} exited ({state['ExitCode']})"
            if state["Health"]["Status"] == "unhealthy":
                return f"container {known['Name'][1:]} is unhealthy"
            if state["Health"]["Status"] == "healthy":
                return None
            time.sleep(0.05)
        return "timeout waiting for containers"


def _bindings(service: dict[str, t.Any]) -> dict[str, t.Any]:
    """Ports of a compose file, ``127.0.0.1:18000:8080``, as the engine has them."""
    parts = [str(port).split(":") for port in service.get("ports") or ()]
    return {f"{container}/tcp": [{"HostIp": address, "HostPort": host}] for address, host, container in parts}


def _host_ports(known: dict[str, t.Any]) -> set[str]:
    bindings = known["HostConfig"].get("PortBindings") or {}
    return {one["HostPort"] for several in bindings.values() for one in several}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: World

    def _answer(self, status: int, body: t.Any = None, raw: bytes | None = None) -> None:
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        try:
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # whoever asked was killed
            self.close_connection = True

    def _body(self) -> dict[str, t.Any]:
        found: dict[str, t.Any] = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        return found

    def do_PUT(self) -> None:
        self._answer(200, self.server.obey(self._body()))

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/info":
            return self._answer(200, {"ServerVersion": "26.1.5", "Runtimes": {"nvidia": {}, "runc": {}}, "CDISpecDirs": ["/etc/cdi"]})
        if url.path == "/containers/json":
            return self._answer(200, self._list(parse_qs(url.query)))
        if found := re.fullmatch("/images/(.+)/json", unquote(url.path)):
            known = self.server.behaviour(found.group(1)).known
            return self._answer(*((200, {"Id": f"sha256:{found.group(1)}"}) if known else (404, {"message": "No such image"})))
        if url.path.startswith("/exec/"):
            return self._answer(200, {"ExitCode": 0, "Running": False})
        container = self.server.containers.get(url.path.split("/")[2])
        if container is None:
            return self._answer(404, {"message": "No such container"})
        if url.path.endswith("/logs"):
            return self._answer(200, raw=framed(self.server.behaviour(container["Config"]["Image"]).says))
        return self._answer(200, self.server.detail(container))

    def _list(self, query: dict[str, list[str]]) -> list[dict[str, t.Any]]:
        filters = json.loads(query.get("filters", ["{}"])[0])
        found = []
        for container in list(self.server.containers.values()):
            labels, state = container["Config"]["Labels"], self.server.state(container)["Status"]
            wanted = [label.partition("=") for label in filters.get("label", [])]
            listed = state == "running" or query.get("all") == ["1"]
            if listed and state in filters.get("status", [state]) and all(labels.get(name) == value for name, _sign, value in wanted):
                found.append({"Id": container["Id"], "Image": container["Config"]["Image"], "Labels": labels, "State": state})
        return found

    def do_POST(self) -> None:
        body, parts = self._body(), self.path.split("/")
        if self.path == "/containers/create":
            self.server.made += 1
            return self._answer(201, {"Id": f"probe{self.server.made}", "Warnings": []}) if self._asks(body) else None
        if parts[1] == "containers" and parts[3] == "start":
            return self._answer(400, {"message": MISSING_PROGRAM})
        if parts[1] == "containers" and parts[3] == "exec":
            self.server.execs[f"e{parts[2]}"] = parts[2]
            return self._answer(201, {"Id": f"e{parts[2]}"})
        container = self.server.containers[self.server.execs[parts[2]]]
        sees = self.server.behaviour(container["Config"]["Image"]).sees
        devices = container["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] if sees is None else sees
        return self._answer(200, raw=framed("".join(f"  MIG 1g.10gb Device 0: (UUID: {name.split('=')[-1]})\n" for name in devices)))

    def _asks(self, body: dict[str, t.Any]) -> bool:
        """Whether the engine gives the devices of a container that only asks."""
        names = [name for request in body["HostConfig"]["DeviceRequests"] for name in request["DeviceIDs"]]
        others = sorted(set(names) & self.server.refused)
        if others:
            self._answer(500, {"message": f"CDI device injection failed: unresolvable CDI devices {', '.join(others)}"})
        return not others

    def do_DELETE(self) -> None:
        self._answer(204)

    def address_string(self) -> str:
        """Nobody is named on a unix socket."""
        return "client"

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""


def framed(text: str) -> bytes:
    """As the engine sends what a container wrote to stdout."""
    data = text.encode()
    return b"\x01\0\0\0" + len(data).to_bytes(4, "big") + data


@contextmanager
def compose_world(home: Path, socket_path: Path) -> Iterator[World]:
    """The engine, and a folder ``docker-bin`` in ``home`` with the command, for as long as the block runs."""
    folder = home / "docker-bin"
    folder.mkdir()
    (home / "docker.py").write_text(DOCKER.format(socket=str(socket_path)), encoding="utf-8")
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {home / "docker.py"} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with World(socket_path) as world:
        thread = threading.Thread(target=world.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield world
        finally:
            world.shutdown()
            thread.join()


@contextmanager
def answers(port: int, status: int = 200) -> Iterator[list[tuple[str, str, bytes]]]:
    """A server at a port of this machine; what it was asked, as (method, path, body)."""
    asked: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.command, self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0))))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: t.Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def in_path(home: Path) -> str:
    """A PATH that finds the command first."""
    return os.pathsep.join([str(home / "docker-bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
