# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A gateway with the real HAProxy on this machine, and services behind it that tell what reached them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import subprocess
import threading
import time
import typing as t
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import haproxy
from ansible_collections.gpuops.fleet.plugins.plugin_utils import gateway, gateway_config, service_page
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifests
from conftest import REPOSITORY, RunModule
from debian import KEPT, release

from lab import packages
from lab.errors import LabError

CLAIMS, FRAUD, OTHER = ("key-of-claims-" + "c" * 20, "key-of-fraud-" + "f" * 20, "key-of-nobody-" + "n" * 20)
TEMPLATE = (REPOSITORY / "plugins/plugin_utils/data/service_page.html.j2").read_text(encoding="utf-8")

# Libraries that HAProxy of Debian 12 or 13 needs and a machine may not have; a release has some of them under their other name.
_LIBRARIES = ("liblua5.3-0", "liblua5.4-0", "libopentracing-c-wrapper0", "libopentracing-c-wrapper0t64", "libopentracing1", "libjemalloc2")


def haproxy_here(temporary: pytest.TempPathFactory) -> str:
    """HAProxy of this machine, or out of Debian's packages, kept below build/. The test is skipped where neither runs."""
    found = shutil.which("haproxy", path=packages.PATHS)
    if found is not None:
        return found
    home = KEPT / "haproxy"
    script = home / "run" / "haproxy"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        for package in ("haproxy", *_LIBRARIES):
            with contextlib.suppress(LabError):
                packages.unpack(package, f"{release()} main", home, temporary.mktemp(package))
        folders = ":".join(str(folder) for folder in sorted((home / "usr" / "lib").glob("*-linux-gnu*")))
        script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={folders} exec {home}/usr/sbin/haproxy "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    if not _runs(str(script)):
        pytest.skip("haproxy does not run here (Debian: apt install haproxy)")
    return str(script)


def _runs(path: str) -> bool:
    return subprocess.run([path, "-v"], capture_output=True, check=False).returncode == 0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass
class Seen:
    """A request as it reached a service."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        """All values of a header."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


class _Handler(BaseHTTPRequestHandler):
    """How a service answers; ``service`` is set by each."""

    service: Service
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *_words: object) -> None:
        """Tests read ``seen``."""

    def handle_one_request(self) -> None:
        """A caller that breaks off is no failure of the test."""
        with contextlib.suppress(OSError):
            super().handle_one_request()
            return
        self.close_connection = True

    def parse_request(self) -> bool:
        """Keeps what reached the service."""
        right = super().parse_request()
        if right and self.headers.get("X-Request-Id"):
            self.service.reached.append((self.raw_requestline, self.headers.get_all("X-Gpuops-Team") or []))
        return right

    def _any(self) -> None:
        if self.path == "/health" and not self.headers.get("X-Request-Id"):
            self._answer(200 if self.service.well else 503, b"well")
            return
        body = self._body()
        self.service.seen.append(Seen(self.command, self.path, list(self.headers.items()), body))
        if self.headers.get("Upgrade") == "websocket":
            self._web_socket()
        elif self.path == "/events":
            self._events()
        else:
            if self.path.startswith("/slow"):
                time.sleep(self.service.slow)
            self._answer(200, self.service.name.encode())

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            piece = f"data: {number} {time.monotonic()}\n\n".encode()
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            time.sleep(0.3)
        self.wfile.write(b"0\r\n\r\n")

    def _web_socket(self) -> None:
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        # RFC 6455, section 1.3: the answer to the sample key.
        self.send_header("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        self.end_headers()
        self.wfile.write(b"echo " + self.rfile.readline())
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = _any  # noqa: N815 -- the names that http.server calls


class _Server(ThreadingHTTPServer):
    """Threads end with the test, and many may call at once."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_words: object) -> None:
        """A caller that went away is no failure of the test."""


class Service:
    """A replica: answers with its name; ``/slow`` after a while, ``/events`` piece by piece; keeps what reached it."""

    def __init__(self, name: str, address: str = "127.0.0.1", port: int = 0) -> None:
        self.name = name
        self.seen: list[Seen] = []
        # (request line, teams that the gateway told) of all that came through it, whether it could be answered or not.
        self.reached: list[tuple[bytes, list[str]]] = []
        self.well = True
        self.slow = 1.0
        self._server = _Server((address, port), type("Handler", (_Handler,), {"service": self}))
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """It answers no more."""
        self._server.shutdown()
        self._server.server_close()


def manifest_text(service: str, team: str = "claims", route: str = "{}", more: str = "", replicas: int = 1) -> str:
    """A manifest with a route."""
    return (
        f"schema: 1\nservice: {service}\nteam: {team}\nenvironment: production\nruntime: http\n"
        f"image: r.example/{service}@sha256:{'a' * 64}\n"
        f"replicas: {replicas}\ngpu: {{memory: 4 GiB}}\nports: [{{name: http, container: 8080}}]\nhealth: {{port: http, path: /health}}\n"
        f"route: {route}\n{more}"
    )


def manifests_of(*texts: str) -> list[Manifest]:
    """Checked manifests."""
    return read_manifests([(f"{number}.yml", text) for number, text in enumerate(texts)])


def plan_of(*entries: tuple[str, int, int], manifest: str = "sha256:" + "0" * 64) -> dict[str, t.Any]:
    """A host's plan with (service, replica, port)."""
    gpu = "GPU-5c1f07aa-0000-0000-0000-000000000000"
    lines = [
        {
            "service": service,
            "replica": replica,
            "gpu": gpu,
            "profile": "1g.10gb",
            "start": number,
            "ports": {"http": port},
            "manifest": manifest,
        }
        for number, (service, replica, port) in enumerate(entries)
    ]
    layout = [{"gpu": gpu, "pci": "0000:07:00.0", "model": "a100-sxm4-80gb", "mode": "mig"}]
    return {"services": lines, "layout": layout}


@dataclass
class Answer:
    """What a caller got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The type of the gateway's own error."""
        return str(json.loads(self.body)["error"]["type"])


@dataclass
class Gateway:
    """A gateway of a test: its files below ``where``, written by the module as on a host."""

    where: Path
    run_module: RunModule
    program: str
    keys: dict[str, list[str]] = field(
        default_factory=lambda: {"claims": [CLAIMS], "fraud": [f"sha256:{hashlib.sha256(FRAUD.encode()).hexdigest()}"]}
    )
    more: dict[str, t.Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)  # of hosts that are not at 127.0.0.1

    def __post_init__(self) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.where / "haproxy.log"
        # The path of a socket may have 107 bytes, and a test's directory may be longer than that.
        self.sockets = Path("/tmp") / f"gpuops-gw-{self.port}"
        self.sockets.mkdir()

    @property
    def settings(self) -> gateway.Settings:
        """As the role gives them."""
        values = {"address": "127.0.0.1", "http_port": self.port, "metrics": f"127.0.0.1:{self.metrics_port}", "user": "", "group": ""}
        paths = {"directory": str(self.where / "etc"), "socket": str(self.sockets / "a"), "state_file": str(self.where / "servers")}
        return gateway.read_settings({**values, **paths, "maxconn": 2000, **self.more})

    def texts(self, texts: t.Sequence[str], plans: t.Mapping[str, t.Any]) -> tuple[str, dict[str, str]]:
        """Configuration and files as the door makes them."""
        manifests = manifests_of(*texts)
        settings, hashes = self.settings, gateway.hash_keys(self.keys)
        routes, _notes = gateway.make_routes(manifests, plans, {**dict.fromkeys(plans, "127.0.0.1"), **self.addresses}, settings)
        known = {manifest.service: manifest for manifest in manifests}
        pages = [service_page.make_page(known[route.service], route, plans, settings, "gw") for route in routes]
        live = service_page.draw_all(service_page.Pages(TEMPLATE), pages, live=True)
        return gateway_config.config(routes, hashes, live, settings), gateway_config.files(routes, hashes, live, settings)

    def bring(self, texts: t.Sequence[str], plans: t.Mapping[str, t.Any], check: bool = False) -> dict[str, t.Any]:
        """Install by the module, and start HAProxy where it does not run."""
        config, files = self.texts(texts, plans)
        result = self.install(config, files, check)
        if not result["failed"] and not check and self.process is None:
            self.start()
        return result

    def install(self, config: str, files: t.Mapping[str, str], check: bool = False) -> dict[str, t.Any]:
        """Module gateway_config."""
        paths = {"path": str(self.where / "gw.cfg"), "directory": str(self.where / "etc"), "state_file": str(self.where / "servers")}
        sockets = {"socket": str(self.sockets / "a"), "master_socket": str(self.sockets / "m"), "program": self.program}
        return self.run_module(
            "gateway_config", {"config": config, "files": dict(files), **paths, **sockets, "reload_timeout": 15}, check=check
        )

    def start(self) -> None:
        """Start HAProxy and wait until it listens."""
        argv = [self.program, "-W", "-f", str(self.where / "gw.cfg"), "-S", str(self.sockets / "m")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        """End HAProxy."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def close(self) -> None:
        """End it and remove its sockets."""
        self.stop()
        shutil.rmtree(self.sockets, ignore_errors=True)

    @property
    def runtime(self) -> haproxy.Runtime:
        """What its sockets tell."""
        return haproxy.Runtime(str(self.sockets / "a"), str(self.sockets / "m"))

    def server(self, service: str, server: str, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Module gateway_server."""
        sockets = {"socket": str(self.sockets / "a"), "master_socket": str(self.sockets / "m"), "state_file": str(self.where / "servers")}
        return self.run_module("gateway_server", {"service": service, "server": server, **sockets, **more}, check=check)

    def ask(
        self, path: str, key: str | None = CLAIMS, method: str = "GET", body: bytes | None = None, host: str = "gw", **headers: str
    ) -> Answer:
        """One request; ``headers`` with '_' for '-'."""
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as channel:
            extra = {name.replace("_", "-"): value for name, value in headers.items()}
            channel.request(method, path, body, {"Host": host, **({"Authorization": f"Bearer {key}"} if key else {}), **extra})
            answer: HTTPResponse = channel.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def until_answers(self, path: str, host: str = "gw") -> None:
        """Wait for the first right answer."""
        deadline = time.monotonic() + 10
        while (answer := self.ask(path, host=host)).status != 200:
            assert time.monotonic() < deadline, (answer, self.log.read_text()[-2000:])
            time.sleep(0.1)


MakeGateway = t.Callable[..., Gateway]
MakeService = t.Callable[..., Service]


class Load:
    """Requests from several threads until it is ended; what was no right answer is kept."""

    def __init__(self, here: Gateway, path: str, threads: int = 4) -> None:
        self.right, self.wrong = 0, list[str]()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(here, path), daemon=True) for _number in range(threads)]

    def _run(self, here: Gateway, path: str) -> None:
        while not self._ended.is_set():
            try:
                answer = here.ask(path)
            except OSError as error:
                self.wrong.append(repr(error))
                continue
            if answer.status == 200:
                self.right += 1
            else:
                self.wrong.append(f"{answer.status} {answer.body!r}")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
