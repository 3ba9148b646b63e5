# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine behind a real unix socket that keeps images and containers, and a ``docker`` command beside it.

The shapes are those of Docker 26.1.5 and Compose 2.26.1 of Debian 13, as they answered to the same questions.
"""

from __future__ import annotations

import json
import os
import re
import socketserver
import sys
import typing as t
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PREFIX = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: "
MISSING_PROGRAM = PREFIX + (
    'unable to start container process: exec: "/.gpuops-device-probe": stat /.gpuops-device-probe: no such file or directory: unknown'
)
# Compose hashes what it understood of a service: here, the file's text and the value of GPU_0.
DOCKER = """\
import hashlib, json, os, string, sys, time
here, words = {here!r}, sys.argv[1:]
with open(os.path.join(here, "commands"), "a") as log:
    log.write(json.dumps(words) + "\\n")
rules = json.load(open(os.path.join(here, "rules.json")))
if "pull" in words:
    time.sleep(rules.get("pull_s", 0))
    if rules.get("pull"):
        sys.exit(rules["pull"])
    with open(os.path.join(here, "pulled"), "a") as pulled:
        pulled.write(words[-1] + "\\n")
    sys.exit(0)
text = string.Template(sys.stdin.read()).substitute(os.environ)
if "services" not in text:
    sys.exit("validating -: Additional property imag is not allowed")
services = json.loads(text)["services"]
if "--hash" in words:
    for name in services:
        print(name, hashlib.sha256(json.dumps(services[name]).encode()).hexdigest())
else:
    print(json.dumps(rules.get("printed", {{"services": services}})))
"""
Start = Callable[[dict[str, t.Any]], "tuple[int, str]"]


def no_program(_container: dict[str, t.Any]) -> tuple[int, str]:
    """An engine that gives every device."""
    return 400, MISSING_PROGRAM


class Engine(socketserver.ThreadingUnixStreamServer):
    """What it holds is plain to see, and ``start`` says how it answers to a start."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, home: Path) -> None:
        self.images: dict[str, str] = {}
        self.containers: dict[str, dict[str, t.Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.created: list[dict[str, t.Any]] = []
        self.start: Start = no_program
        self.removal = 204
        self.creation: tuple[int, str] | None = None
        self.pulled = home / "pulled"
        super().__init__(str(home / "docker.sock"), _Handler)

    @property
    def path(self) -> str:
        """Its socket."""
        return str(self.server_address)

    def changes(self) -> list[str]:
        """Every request that is no question, in order, without names."""
        short = [f"{method} {re.sub('/[0-9a-f]{12}', '/ID', path)}" for method, path in self.calls]
        return [line for line in short if not line.startswith("GET")]

    def run(self, identifier: str, image: str, state: str = "running", **labels: str) -> None:
        """A container that is there already; labels are written with ``_`` for ``.`` and ``-``."""
        self.containers[identifier] = {"Id": identifier, "Config": {"Image": image, "Labels": labels}, "State": {"Status": state}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def _answer(self, status: int, body: t.Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        try:
            self.end_headers()
            self.wfile.write(data)
        except BrokenPipeError:  # whoever asked waits no longer
            self.close_connection = True

    def do_GET(self) -> None:
        self.server.calls.append(("GET", self.path))
        url = urlsplit(self.path)
        if url.path == "/containers/json":
            return self._answer(200, self._list(parse_qs(url.query)))
        if found := re.fullmatch("/images/(.+)/json", unquote(url.path)):
            return self._image(found.group(1))
        container = self.server.containers.get(url.path.split("/")[2])
        return self._answer(404, {"message": "No such container"}) if container is None else self._answer(200, container)

    def _list(self, query: dict[str, list[str]]) -> list[dict[str, t.Any]]:
        filters = json.loads(query.get("filters", ["{}"])[0])
        found = []
        for container in self.server.containers.values():
            labels = container["Config"]["Labels"]
            wanted = [label.partition("=") for label in filters.get("label", [])]
            state = container["State"]["Status"]
            listed = state == "running" or query.get("all") == ["1"]
            if listed and state in filters.get("status", [state]) and all(labels.get(name) == value for name, _sign, value in wanted):
                found.append({"Id": container["Id"], "Image": container["Config"]["Image"], "Labels": labels, "State": state})
        return found

    def _image(self, name: str) -> None:
        if self.server.pulled.exists() and name in self.server.pulled.read_text().split():
            self.server.images[name] = "sha256:pulled"
        identity = self.server.images.get(name)
        self._answer(*((404, {"message": f"No such image: {name}"}) if identity is None else (200, {"Id": identity})))

    def do_POST(self) -> None:
        self.server.calls.append(("POST", self.path))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/containers/create":
            if self.server.creation is not None:
                status, words = self.server.creation
                return self._answer(status, {"message": words})
            container = json.loads(body)
            self.server.created.append(container)
            identifier = f"{len(self.server.created):012x}"
            self.server.containers[identifier] = {
                "Id": identifier,
                "Config": {"Image": container["Image"], "Labels": container["Labels"]},
                "HostConfig": container["HostConfig"],
                "State": {"Status": "created"},
            }
            return self._answer(201, {"Id": identifier, "Warnings": []})
        try:
            status, words = self.server.start(self.server.created[-1])
        except ConnectionAbortedError:  # the engine dies
            self.close_connection = True
            return None
        return self._answer(status) if status == 204 else self._answer(status, {"message": words})

    def do_DELETE(self) -> None:
        self.server.calls.append(("DELETE", self.path))
        if self.server.removal == 204:
            del self.server.containers[urlsplit(self.path).path.split("/")[2]]
            return self._answer(204)
        return self._answer(self.server.removal, {"message": "driver failed to remove root filesystem"})

    def address_string(self) -> str:
        """Nobody is named on a unix socket."""
        return "client"

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""


class Command:
    """The ``docker`` command: what it was asked, and how it is to answer."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.folder = home / "bin"
        self.folder.mkdir()
        script, program = home / "docker.py", self.folder / "docker"
        script.write_text(DOCKER.format(here=str(home)), encoding="utf-8")
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {script} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        self.answer()

    def answer(self, **rules: t.Any) -> None:
        """``pull``: what a pull complains of, ``pull_s``: the seconds that it takes; ``printed``: what ``config --format json`` prints."""
        (self._home / "rules.json").write_text(json.dumps(rules), encoding="utf-8")

    def asked(self) -> list[list[str]]:
        """Arguments of each call, in order."""
        log = self._home / "commands"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def in_path(self) -> str:
        """A PATH that finds it first."""
        return os.pathsep.join([str(self.folder), os.environ["PATH"]])
