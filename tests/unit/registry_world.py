# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container registry on a real port, as the OCI distribution specification has it: manifests, blobs, tokens; and all that goes wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import socketserver
import threading
import time
import typing as t
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

if t.TYPE_CHECKING:
    import ssl

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
TOKEN = "letmein-0123456789"
OCR = ["PATH=/usr/bin", "CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "API_KEY=not-for-you", "NVIDIA_VISIBLE_DEVICES=all"]
Handle = t.Callable[["Handler"], t.Any]


def digest_of(data: bytes) -> str:
    """As a registry names it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def written(document: t.Any) -> bytes:
    """As a registry keeps it."""
    return json.dumps(document, indent=1).encode()


@dataclass
class Asked:
    """A request as it came."""

    path: str
    authorization: str | None
    accept: str | None


@dataclass
class Rules:
    """How it is to answer. ``ways``: what answers in place of the registry, for a path that ends so."""

    realm: str | None = None
    login: tuple[str, str] | None = None
    token: str = TOKEN
    scheme: str = "Bearer"
    ways: dict[str, Handle] = field(default_factory=dict)


class Registry(socketserver.ThreadingTCPServer):
    """What it holds is plain to see: ``blobs`` by digest, ``asked`` in order."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.blobs: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.rules = Rules()
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "http" if context is None else "https"
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """Whoever asked has gone: that is theirs to tell."""

    def end(self) -> None:
        """No port and no thread is left."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def host(self) -> str:
        """Name and port."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"{self.scheme}://{self.host}"

    def put(self, document: t.Any) -> str:
        """Keep a document; its digest."""
        data = document if isinstance(document, bytes) else written(document)
        self.blobs[digest_of(data)] = data
        return digest_of(data)

    def image(self, config: t.Any, architecture: str = "amd64", kind: str = CONFIG) -> str:
        """Keep an image whose configuration has ``config``; the digest of its manifest."""
        blob = self.put(config if isinstance(config, bytes) else {"architecture": architecture, "os": "linux", "config": config})
        described = {"mediaType": kind, "digest": blob, "size": len(self.blobs[blob])}
        return self.put({"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": []})

    def index(self, **images: str) -> str:
        """Keep an index, as build tools write it: architecture -> digest, and what was attested of the build."""
        entries = [
            {"mediaType": MANIFEST, "digest": "sha256:" + "e" * 64, "platform": {"os": "unknown", "architecture": "unknown"}},
            *({"mediaType": MANIFEST, "digest": each, "platform": {"os": "linux", "architecture": name}} for name, each in images.items()),
        ]
        return self.put({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, *_: t.Any) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """All of an answer; ``_`` in the name of a header stands for ``-``."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def error(self, status: int, message: str, **headers: str) -> None:
        """An error as the specification has it."""
        self.answer(status, written({"errors": [{"code": "DENIED", "message": message}]}), **headers)

    def do_GET(self) -> None:
        """A document, a token, or whatever a rule says."""
        rules = self.server.rules
        authorization = self.headers.get("Authorization")
        self.server.asked.append(Asked(self.path, authorization, self.headers.get("Accept")))
        path = urlsplit(self.path).path
        for end, handle in rules.ways.items():
            if path.endswith(end):
                handle(self)
                return
        if path == "/token":
            self._token(authorization)
        elif rules.realm is not None and authorization != f"Bearer {rules.token}":
            self.error(401, "authentication required", WWW_Authenticate=f'Bearer realm="{rules.realm}",service="the, registry"')
        elif rules.realm is None and rules.login is not None and authorization != basic(rules.login):
            self.error(401, "authentication required", WWW_Authenticate='Basic realm="Registry Realm"')
        else:
            self._document(path.rpartition("/")[2])

    def _document(self, digest: str) -> None:
        if digest in self.server.blobs:
            self.answer(200, self.server.blobs[digest], Docker_Content_Digest=digest)
        else:
            self.error(404, "manifest unknown")

    def _token(self, authorization: str | None) -> None:
        rules = self.server.rules
        asked = parse_qs(urlsplit(self.path).query)
        if asked.get("service") != ["the, registry"] or not asked.get("scope", [""])[0].endswith(":pull"):
            self.error(400, "bad scope")
        elif rules.login is not None and authorization != basic(rules.login):
            self.error(401, "incorrect username or password")
        else:
            self.answer(200, written({"token": rules.token, "expires_in": 60}))


def basic(login: tuple[str, str]) -> str:
    """``Authorization`` of a login."""
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


def hang(handler: Handler) -> None:
    """Take the question and say nothing."""
    time.sleep(5)
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """An answer that comes byte by byte, and would for hours."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _number in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def cut_off(handler: Handler) -> None:
    """Half of what was promised."""
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b"{" * 100)
    handler.close_connection = True


def cut_off_chunks(handler: Handler) -> None:
    """The same without a length."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"64\r\n" + b"{" * 50)
    handler.close_connection = True


def endless(handler: Handler) -> None:
    """More than anybody would read, without a length."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    for _number in range(400):
        handler.wfile.write(b" " * 65536)


def huge(handler: Handler) -> None:
    """More than anybody would read, as it says itself."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(10**12))
    handler.end_headers()
    handler.close_connection = True


def no_http(handler: Handler) -> None:
    """Something else is behind the port."""
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    handler.close_connection = True


def to(address: str) -> Handle:
    """A redirect."""
    return lambda handler: handler.answer(307, Location=address)


def refuse(status: int, message: str, **headers: str) -> Handle:
    """An error."""
    return lambda handler: handler.error(status, message, **headers)


def engine_image(environment: t.Any, architecture: str = "amd64") -> dict[str, t.Any]:
    """What ``/images/NAME/json`` says, as Docker 26.1.5 does."""
    return {"Id": "sha256:" + "1" * 64, "Architecture": architecture, "Os": "linux", "Config": {"Env": environment}}


def certificate(folder: Path) -> Path:
    """A certificate of its own for 127.0.0.1, with its key, as PEM."""
    import subprocess

    path = folder / "registry.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", str(path) + ".crt"]
    subprocess.run([*command, *words], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(str(path) + ".crt").read_text())
    return path
