# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One page for each service: where it runs, its version, calls to copy. Needs nothing else, has no secret in it. Pure.

A page is drawn twice: for the controller as it is planned, and for the gateway, where HAProxy fills in what answers at that moment.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway import OWN_PATH, Route, Settings, base_url
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway_config import BUFFER
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.service_calls import KEY, Call, call_of, examples
from jinja2 import Environment, StrictUndefined, TemplateError

#: Name of the template below plugin_utils/data.
TEMPLATE: t.Final = "service_page.html.j2"
KEY_HELP: t.Final = "Ask the people who run this platform for a key of your team."
Data = Mapping[str, t.Any]
# HAProxy's expressions stand between two characters that no text of people has (they are taken out of it).
_OPEN, _CLOSE = "\ue000", "\ue001"
_LIVE = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")
# Besides, HAProxy reads a file only up to its first NUL, and a terminal does what other control characters say.
_NOT_SHOWN = re.compile(f"[{_OPEN}{_CLOSE}\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Room that HAProxy needs beside a page: headers, and numbers longer than their expressions.
_MARGIN = 4096
# Characters of a description where the page would be too large with all of it.
_SHORT = 400


@dataclass(frozen=True)
class Replica:
    """A replica as the page shows it. ``server``: its name at the gateway, or None where the plan has no port for it."""

    name: str
    host: str
    gpu: str
    part: str
    port: str
    server: str | None


@dataclass(frozen=True)
class Page:
    """What the template sees of one service."""

    service: str
    team: str
    owner: str
    description: str
    environment: str
    data_class: str
    runtime: str
    url: str
    image: str
    digest: str
    changing: bool
    wanted: int
    replicas: tuple[Replica, ...]
    keys: bool
    teams: tuple[str, ...]
    rate: int
    timeout: int
    call: Call | None
    examples: tuple[tuple[str, str], ...]
    backend: str


def make_page(manifest: Manifest, route: Route, plans: Mapping[str, Data], settings: Settings, own_name: str) -> Page:
    """What the page of a service says. ``plans``: host -> plan; ``own_name``: a gateway, for services that have a path only."""
    data = manifest.data()
    known = {server.name: server for server in route.servers}
    replicas: list[Replica] = []
    digests: set[str] = set()
    for host in sorted(plans):
        boards = {line["gpu"]: line for line in plans[host]["layout"] if "mode" in line}
        for line in plans[host]["services"]:
            if line["service"] == manifest.service:
                digests.add(line["manifest"])
                name = name_of(line)
                port = str(line["ports"].get(data["route"]["port"], ""))
                replicas.append(Replica(name, host, _gpus(line, boards), _part(line), port, name if name in known else None))
    url = base_url(route, settings, own_name)
    call = call_of(data, url)
    return Page(
        service=manifest.service,
        team=route.team,
        owner=data["owner"],
        description=data["description"],
        environment=data["environment"],
        data_class=data["data_class"],
        runtime=data["runtime"],
        url=url,
        image=data["image"] or "",
        digest=manifest.digest(),
        changing=bool(digests - {manifest.digest()}),
        wanted=data["replicas"],
        replicas=tuple(sorted(replicas, key=lambda replica: replica.name)),
        keys=route.keys,
        teams=route.teams,
        rate=route.rate,
        timeout=route.timeout,
        call=call,
        examples=tuple(examples(call)) if call is not None else (),
        backend=route.backend,
    )


def _gpus(line: Data, boards: Mapping[str, Data]) -> str:
    words = []
    for uuid in line.get("gpus") or [line["gpu"]]:
        board = boards.get(uuid, {})
        words.append(" at ".join(word for word in (board.get("model") or uuid, board.get("pci")) if word))
    return ", ".join(words)


def _part(line: Data) -> str:
    if "profile" in line:
        return f"slice {line['profile']}@{line['start']}"
    return "shared" if line.get("mode") == "shared" else "whole"


class Pages:
    """Draws pages from a template (its text). :raises FleetError: where a template is not one."""

    def __init__(self, template: str, key_help: str = "") -> None:
        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise FleetError(f"the template of the pages cannot be read: {error}", line=getattr(error, "lineno", None)) from error
        self._key_help = _NOT_SHOWN.sub("", key_help or KEY_HELP)

    def draw(self, page: Page | None, pages: Sequence[Page], live: bool, number: int = 1, numbers: int = 1) -> str:
        """One service's page, or with None the list of services; with ``live`` in the form that HAProxy fills in."""
        context = {
            "page": page,
            "pages": pages,
            "live": live,
            "base": OWN_PATH,
            "number": number,
            "numbers": numbers,
            "key_variable": KEY,
            "key_help": self._key_help,
            "answering": lambda backend: f"{_OPEN}nbsrv({backend}){_CLOSE}",
            "state": lambda backend, server: f"{_OPEN}srv_is_up({backend}/{server}),iif(answers,does not answer){_CLOSE}",
        }
        try:
            text = self._template.render(context)
        except TemplateError as error:
            raise FleetError(f"a page cannot be drawn: {error}", line=getattr(error, "lineno", None)) from error
        return _for_haproxy(text) if live else text


def _for_haproxy(text: str) -> str:
    """A page as HAProxy's log format: a percent sign is written twice, and what it is to fill in once."""
    return _LIVE.sub(lambda found: f"%[{found.group(1)}]", text.replace("%", "%%"))


def without_marks(page: Page) -> Page:
    """The page without the characters that would be taken for HAProxy's, wherever an owner may have written them."""
    return Page(**{name: _shown(value) for name, value in page.__dict__.items()})


def _shown(value: t.Any) -> t.Any:
    if isinstance(value, str):
        return _NOT_SHOWN.sub("", value)
    if isinstance(value, tuple):
        return tuple(_shown(each) for each in value)
    if isinstance(value, Call | Replica):
        return type(value)(**{name: _shown(each) for name, each in value.__dict__.items()})
    return value


def _ever_smaller(page: Page) -> t.Iterator[Page]:
    yield page
    page = replace(page, call=None, examples=())
    yield page
    yield replace(page, owner=_cut(page.owner), description=_cut(page.description), image=_cut(page.image))


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def draw_all(drawer: Pages, pages: Sequence[Page], live: bool) -> dict[str, str]:
    """Name -> text of every page: '' is the list of services, which goes on as '2', '3' ... where it is too long for one page.

    A page of a service that is larger than HAProxy can answer with loses its calls, then the end of what people wrote: what one owner
    writes must not keep the others' pages, and with them the routes, from the gateway.
    """
    clean = [without_marks(page) for page in pages]
    drawn: dict[str, str] = {}
    for page in clean:
        for smaller in _ever_smaller(page):
            drawn[page.service] = drawer.draw(smaller, clean, live)
            if not live or len(drawn[page.service].encode()) <= BUFFER - _MARGIN:
                break

    def length(*shown: Page) -> int:
        return len(drawer.draw(None, shown, live, 10, 10).encode())

    room = BUFFER - _MARGIN - length()
    lists: list[list[Page]] = [[]]
    used = 0
    for page in clean:
        size = length(page, page) - length(page)
        if lists[-1] and used + size > room:
            lists.append([])
            used = 0
        lists[-1].append(page)
        used += size
    for number, part in enumerate(lists, start=1):
        drawn["" if number == 1 else str(number)] = drawer.draw(None, part, live, number, len(lists))
    return drawn
