# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container registry, asked for what an image says of itself. Reads only; whatever it answers is held against its digest.

Source: OCI distribution specification (https://github.com/opencontainers/distribution-spec/blob/main/spec.md) and, for the tokens,
https://distribution.github.io/distribution/spec/auth/token/. Proxies are those of the environment (``https_proxy``, ``no_proxy``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
import time
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, IncompleteRead
from urllib.error import URLError
from urllib.parse import SplitResult, parse_qsl, urlencode, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.image_variables import DOCKER_HUB, Reference, parse_reference, read_config

# The specification wants registries to take manifests of 4 MiB; a config is far smaller.
MOST_BYTES = 4 * 1024 * 1024
_MOST_OF_A_TOKEN = 256 * 1024
_MOST_OF_AN_ERROR = 16 * 1024
_MOST_REDIRECTS = 5
# The first of these that an index has is read: what an image needs of a driver is the same on all of them.
ARCHITECTURES = ("amd64", "arm64")

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_PARAMETER = re.compile(r'([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN = re.compile(r"[!-~]+")
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_MANY = 200, 401, 403, 404, 429
# Not of this image, but of the whole registry.
_BUSY = (502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_BLOCK = 64 * 1024


class RegistryError(FleetError):
    """What a registry did not answer, or not well. ``lasting``: the next question would fare no better."""

    def __init__(self, message: str, hint: str | None = None, lasting: bool = False) -> None:
        self.lasting = lasting
        super().__init__(message, hint=hint)


@dataclass(frozen=True)
class Login:
    """Who asks."""

    username: str
    password: str

    def header(self) -> str:
        """``Authorization`` of it."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True)
class _Site:
    """Where a registry is asked: ``base`` is scheme and host, ``prefix`` what stands before each repository there."""

    name: str
    base: str
    prefix: str
    login: Login | None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: t.Any
    body: bytes
    url: str


def _address(url: str) -> SplitResult | None:
    """A URL that can be asked, taken apart; None for any other. One with a login in it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
    except ValueError:  # brackets without an end, a port that is none
        return None
    return parts if usable else None


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _host(url: str) -> str:
    return urlsplit(url).netloc


def parse_mirrors(mirrors: Mapping[str, t.Any]) -> dict[str, tuple[str, str, str]]:
    """registry -> (name, base, prefix) of what is asked in its place. FleetError when an address is none."""
    found = {}
    for registry, address in mirrors.items():
        parts = _address(str(address))
        if parts is None or parts.query or parts.fragment:
            shown = re.sub(r"//.*@", "//...@", str(address))
            hint = "write https://HOST[:PORT][/PREFIX], or http:// where there is no TLS; its login is an entry of its own"
            raise FleetError(f"'{shown}' is not the address of a registry", field=f"mirrors.{registry}", hint=hint)
        prefix = parts.path.strip("/")
        key = DOCKER_HUB if registry in ("index.docker.io", "registry-1.docker.io") else registry
        found[key] = (parts.netloc, f"{parts.scheme}://{parts.netloc}", f"{prefix}/" if prefix else "")
    return found


class Registries:
    """Registries, asked one image after the other; one that did not answer is not asked again.

    ``timeout``: seconds for each answer. ``mirrors``: see :func:`parse_mirrors`. ``logins``: by the name of the registry that is asked, a
    mirror's its host. ``ca_file``: certificates that are trusted beside the system's. FleetError when a mirror or the file is none.
    """

    def __init__(
        self,
        timeout: float,
        mirrors: Mapping[str, t.Any] | None = None,
        logins: Mapping[str, Login] | None = None,
        ca_file: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._mirrors = parse_mirrors(mirrors or {})
        self._logins = logins or {}
        self._tokens: dict[tuple[str, str], str] = {}
        self._lost: dict[str, RegistryError] = {}
        self._opener = OpenerDirector()
        for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler(context=_trust(ca_file))):
            self._opener.add_handler(handler)

    def read(self, image: str) -> dict[str, t.Any]:
        """``{variables, architecture}`` of an image. FleetError with the reason why they cannot be had, in one line."""
        reference = parse_reference(image)
        site = self._site(reference)
        if site.base in self._lost:
            raise self._lost[site.base]
        try:
            return self._read(site, reference)
        except RegistryError as error:
            if error.lasting:
                self._lost[site.base] = error
            raise

    def _site(self, reference: Reference) -> _Site:
        if reference.registry in self._mirrors:
            name, base, prefix = self._mirrors[reference.registry]
        else:
            name, prefix = reference.registry, ""
            base = "https://registry-1.docker.io" if name == DOCKER_HUB else f"https://{name}"
        return _Site(name, base, prefix, self._logins.get(name))

    def _read(self, site: _Site, reference: Reference) -> dict[str, t.Any]:
        repository = site.prefix + reference.repository
        document = self._document(site, repository, "manifests", reference.digest)
        if isinstance(document.get("manifests"), list):
            document = self._document(site, repository, "manifests", _chosen(document["manifests"]))
        if document.get("schemaVersion") == 1:
            raise RegistryError("its manifest is of schema 1, which names no configuration", hint="push it again with a Docker of today")
        config = document.get("config")
        if not isinstance(config, dict):
            raise RegistryError("its manifest names no configuration")
        kind = config.get("mediaType")
        if kind not in _CONFIGS:
            raise RegistryError(f"it is no container image: its configuration is '{str(kind)[:80]}'")
        found = self._document(site, repository, "blobs", _digest(config))
        return read_config(found.get("config"), found.get("architecture"))

    def _document(self, site: _Site, repository: str, kind: str, digest: str) -> dict[str, t.Any]:
        """A JSON document of the registry, held against its digest."""
        accepted = ", ".join((*_INDEXES, *_MANIFESTS)) if kind == "manifests" else "*/*"
        answer = self._ask(site, repository, f"{site.base}/v2/{repository}/{kind}/{digest}", accepted)
        algorithm, _colon, wanted = digest.partition(":")
        if hashlib.new(algorithm, answer.body).hexdigest() != wanted:
            raise RegistryError(f"{site.name}: what it gave for {digest[:19]} is something else: its digest is another one")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise RegistryError(f"{site.name}: {digest[:19]} is not JSON") from error
        if not isinstance(document, dict):
            raise RegistryError(f"{site.name}: {digest[:19]} is not a JSON object")
        return document

    def _ask(self, site: _Site, repository: str, url: str, accepted: str) -> _Answer:
        """The answer with status 200 to a question that may need a login."""
        headers = {"Accept": accepted}
        token = self._tokens.get((site.base, repository))
        answer = self._get(site, url, {**headers, "Authorization": token} if token else headers, MOST_BYTES)
        if answer.status == _UNAUTHORIZED and _origin(answer.url) == _origin(url):
            token = self._tokens[site.base, repository] = self._authorize(site, repository, answer)
            answer = self._get(site, url, {**headers, "Authorization": token}, MOST_BYTES)
        if answer.status != _OK and _origin(answer.url) != _origin(url):
            raise RegistryError(f"{site.name}: it redirects to {_host(answer.url)}, which answered {answer.status}")
        if answer.status == _UNAUTHORIZED:
            raise _no_login(site, answer, wrong=bool(token) and str(token).startswith("Basic"))
        if answer.status != _OK:
            raise _refusal(site, answer)
        return answer

    def _authorize(self, site: _Site, repository: str, answer: _Answer) -> str:
        """What to put into ``Authorization``, by what the registry asks for."""
        challenges = [text.partition(" ") for text in answer.headers.get_all("WWW-Authenticate") or []]
        for scheme, _space, rest in challenges:
            if scheme.lower() == "bearer":
                parameters = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(rest)}
                return self._bearer(site, repository, parameters)
        if site.login is not None and any(scheme.lower() == "basic" for scheme, _space, _rest in challenges):
            return site.login.header()
        raise _no_login(site, answer)

    def _bearer(self, site: _Site, repository: str, parameters: Mapping[str, str]) -> str:
        realm = _address(parameters.get("realm", ""))
        if realm is None:
            raise RegistryError(f"{site.name}: it names no address that gives tokens", lasting=True)
        if realm.scheme == "http" and site.base.startswith("https:"):
            raise RegistryError(f"{site.name}: its tokens are from {realm.netloc}, which has no TLS", lasting=True)
        query = dict(parse_qsl(realm.query))
        query.update({key: parameters[key] for key in ("service",) if key in parameters})
        query["scope"] = parameters.get("scope") or f"repository:{repository}:pull"
        headers = {} if site.login is None else {"Authorization": site.login.header()}
        answer = self._get(site, realm._replace(query=urlencode(query), fragment="").geturl(), headers, _MOST_OF_A_TOKEN)
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            raise _no_login(site, answer, wrong=answer.status == _UNAUTHORIZED)
        if answer.status != _OK:
            raise _refusal(site, answer)
        try:
            given = json.loads(answer.body)
            token = given.get("token") or given.get("access_token")
        except (ValueError, RecursionError, AttributeError):
            token = None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RegistryError(f"{site.name}: {_host(answer.url)} gave no token", lasting=True)
        return f"Bearer {token}"

    def _get(self, site: _Site, url: str, headers: Mapping[str, str], limit: int) -> _Answer:
        """The answer where a question ends after redirects. Another host gets no login and no token."""
        end = time.monotonic() + self._timeout
        for _hop in range(_MOST_REDIRECTS + 1):
            answer = self._open(site, url, headers, limit, end)
            if answer.status not in _REDIRECTS:
                return answer
            target = self._target(site, url, answer)
            if _origin(target) != _origin(url):
                headers = {name: value for name, value in headers.items() if name != "Authorization"}
            url = target
        raise RegistryError(f"{site.name}: it redirects more than {_MOST_REDIRECTS} times")

    def _target(self, site: _Site, url: str, answer: _Answer) -> str:
        try:
            target = urljoin(url, str(answer.headers.get("Location") or ""))
        except ValueError:
            target = ""
        parts = _address(target)
        if parts is None:
            raise RegistryError(f"{site.name}: it redirects to what is no address")
        if parts.scheme == "http" and url.startswith("https:"):
            raise RegistryError(f"{site.name}: it redirects to {parts.netloc}, which has no TLS")
        return target

    def _open(self, site: _Site, url: str, headers: Mapping[str, str], limit: int, end: float) -> _Answer:
        where = site.name if _host(url) in (site.name, _host(site.base)) else f"{site.name}: {_host(url)}"
        try:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            request = Request(url, headers={"User-Agent": "gpuops-fleet", **headers})
            with self._opener.open(request, timeout=left) as response:
                if response.status == _OK:
                    body = _body(where, response, limit, end)
                else:
                    body = b"" if response.status in _REDIRECTS else response.read1(_MOST_OF_AN_ERROR)
                return _Answer(response.status, response.headers, body, url)
        except (OSError, HTTPException, ValueError) as error:
            lasting = not isinstance(error, (IncompleteRead, ValueError))
            raise RegistryError(f"{where}: {self._words(error)}", lasting=lasting) from error

    def _words(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError) or "timed out" in str(reason):
            return f"no whole answer in {self._timeout:g} s"
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {reason.verify_message}"
        if isinstance(reason, ssl.SSLError):
            return f"no TLS with it ({reason.reason or reason}); one that has none is named with http:// among the mirrors"
        if isinstance(reason, IncompleteRead):
            return "its answer was cut off"
        if isinstance(reason, (ValueError, HTTPException)):
            return f"its answer is no HTTP that can be read ({type(reason).__name__})"
        return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)


def _trust(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError is one
            words = "it has no certificates" if isinstance(error, ssl.SSLError) else error.strerror
            raise FleetError(f"cannot be read: {words}", file=ca_file, hint="name a file of certificates in PEM form") from error
    return context


def _body(where: str, response: HTTPResponse, limit: int, end: float) -> bytes:
    """All of an answer. RegistryError when it is too large, TimeoutError when it comes too slowly, IncompleteRead when it is cut off."""
    announced = response.headers.get("Content-Length") or ""
    expected = int(announced) if announced.isdigit() and len(announced) < 20 else None
    pieces: list[bytes] = []
    size = 0
    while expected is None or size < expected:
        if max(size, expected or 0) > limit:
            raise RegistryError(f"{where}: its answer is larger than {limit // 1024} KiB")
        if time.monotonic() > end:
            raise TimeoutError
        piece = response.read1(_BLOCK)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
    if expected is not None and size < expected:
        raise IncompleteRead(b"", expected - size)
    return b"".join(pieces)


def _chosen(entries: Iterable[t.Any]) -> str:
    """The digest in an index of the image for Linux that is read."""
    found: dict[str, Mapping[str, t.Any]] = {}
    for entry in entries:
        platform = entry.get("platform") if isinstance(entry, dict) else None
        if isinstance(platform, dict):
            name = f"{platform.get('os')}/{platform.get('architecture')}"
            if name != "unknown/unknown":  # what was attested of the build
                found.setdefault(name, entry)
    for architecture in ARCHITECTURES:
        if f"linux/{architecture}" in found:
            return _digest(found[f"linux/{architecture}"])
    names = ", ".join(sorted(found))[:120] or "none at all"
    raise RegistryError(f"it has no image for {' or '.join(f'linux/{each}' for each in ARCHITECTURES)}, only {names}")


def _digest(entry: Mapping[str, t.Any]) -> str:
    digest = entry.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise RegistryError("a digest in its manifest is none")
    return digest


def _own_words(body: bytes) -> str:
    """The first message in the JSON of an error, in a form that fits into a line."""
    try:
        errors = json.loads(body)["errors"]
        text = errors[0].get("message")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    return f": {' '.join(text.split())[:160]}" if isinstance(text, str) and text.strip() else ""


def _no_login(site: _Site, answer: _Answer, wrong: bool = False) -> RegistryError:
    """``wrong``: the login itself is not taken. It is not shown again: some servers lock an account after a few such tries."""
    if site.login is None:
        return RegistryError(f"{site.name}: it asks for a login", hint="give one for it, or name an image that everybody may read")
    if wrong:
        return RegistryError(f"{site.name}: it does not take the login of {site.login.username} ({answer.status})", lasting=True)
    return RegistryError(f"{site.name}: it does not show this image to {site.login.username} ({answer.status})")


def _refusal(site: _Site, answer: _Answer) -> RegistryError:
    words = _own_words(answer.body)
    if answer.status == _FORBIDDEN:
        return RegistryError(f"{site.name}: it does not let this image be read (403){words}", hint="give a login that may read it")
    if answer.status == _NOT_FOUND:
        return RegistryError(f"{site.name}: it has no such image, or shows it to others only (404){words}")
    if answer.status == _TOO_MANY:
        after = answer.headers.get("Retry-After") or ""
        hint = f"run it again in {after} s" if after.isdigit() else "run it again later, or give a login"
        return RegistryError(f"{site.name}: too many questions (429){words}", hint=hint, lasting=True)
    return RegistryError(f"{site.name}: it answered {answer.status}{words}", lasting=answer.status in _BUSY)
