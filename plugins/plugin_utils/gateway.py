# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans and manifests to routes: which address means which service, who may call it, where its replicas listen. Pure."""

from __future__ import annotations

import hashlib
import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import NAME, AfterValidator, Field, Name, Strict, Wrong, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest

Data = Mapping[str, t.Any]

#: Path below which the gateway itself answers: the pages of the services.
OWN_PATH: t.Final = "/_fleet"
#: The shortest key that may be given as text; a shorter one can be guessed.
SHORTEST_KEY: t.Final = 16
_HASH = re.compile(r"^sha256:[0-9a-f]{64}$")
_KEY = re.compile(r"^[\x21-\x7e]+$")
_HOST = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
_ADDRESS = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$|^[0-9a-fA-F:]*:[0-9a-fA-F:.]*$")
_LISTEN = re.compile(r"^[A-Za-z0-9.:\[\]*-]*$")
# One word of HAProxy's configuration: no blank, quote, comment, escape or variable.
_WORD = re.compile(r"^[^\s\"'#\\${}]*$")


def _listen(value: str) -> str:
    if not _LISTEN.fullmatch(value):
        raise Wrong(f"'{value}' is not an address", "write an IP address, or nothing for all")
    return value


def _host_name(value: str) -> str:
    if value and not _HOST.fullmatch(value):
        raise Wrong(f"'{value}' is not a host name", "use a-z, 0-9, '.' and '-'")
    return value


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise Wrong(
            f"'{value}' has a blank, a quote or another character that HAProxy's configuration does not take", "use plain characters"
        )
    return value


def _line(value: str) -> str:
    if any(ord(character) < 32 for character in value) or "#" in value:
        raise Wrong("it is not one line of HAProxy's configuration", "write one line without '#'")
    return value


HostName = t.Annotated[str, AfterValidator(_host_name)]
Listen = t.Annotated[str, AfterValidator(_listen)]
Word = t.Annotated[str, AfterValidator(_word)]
OneLine = t.Annotated[str, AfterValidator(_line)]
PortNumber = t.Annotated[int, Field(ge=1, le=65535)]


class Settings(Strict):
    """How the gateways work; the same names as in the options of module ``gateway_routes``."""

    domain: HostName = ""
    name: HostName = ""
    rate: int = Field(default=600, ge=0, description="requests a minute that a team may send to one service; 0: no limit")
    team_rates: dict[Name, t.Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    certificate: Word = ""
    address: Listen = ""
    http_port: PortNumber = 80
    https_port: PortNumber = 443
    metrics: Listen = "127.0.0.1:8405"
    directory: Word = "/etc/haproxy/gpuops-fleet"
    socket: Word = "/run/gpuops-fleet-gateway/admin.sock"
    state_file: Word = "/var/lib/gpuops-fleet-gateway/servers"
    user: Word = "haproxy"
    group: Word = "haproxy"
    chroot: Word = ""
    maxconn: int = Field(default=10000, ge=10)
    log: OneLine = "stdout format raw local0"
    hard_stop_after: int = Field(default=3600, ge=1)
    key_help: str = ""


_NUMBERS = ("rate", "http_port", "https_port", "maxconn", "hard_stop_after")
_DIGITS = re.compile(r"[0-9]{1,9}")


def read_settings(values: Data) -> Settings:
    """Settings of the gateways, checked. :raises FleetError: every problem on its own line."""
    # Before ansible-core 2.19 a template gives text, also for a number.
    numbers = {name: int(text) for name in _NUMBERS if isinstance(text := values.get(name), str) and _DIGITS.fullmatch(text)}
    return check(Settings, Located({**values, **numbers}, "gateway settings"))


def hash_keys(keys: t.Any) -> dict[str, str]:
    """``{team: [key or 'sha256:<hex>', ...]}`` as ``{SHA-256 in hex: team}``. No message ever has a key in it.

    :raises FleetError: not of that form, a key that can be guessed, or one key of two teams.
    """
    where = "fleet_gateway_keys"
    if not isinstance(keys, Mapping):
        raise FleetError("expected teams with their keys", field=where, hint="write {claims: [sha256:<64 hex digits>]}")
    hashes: dict[str, str] = {}
    errors: list[FleetError] = []
    for team in sorted(keys):
        values = keys[team]
        if not NAME.fullmatch(str(team)):
            errors.append(
                FleetError("the name of a team is 2 to 63 of a-z, 0-9 and '-'", field=where, hint="name the team as manifests do")
            )
            continue
        if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
            errors.append(FleetError("expected a list of keys", field=f"{where}.{team}", hint="write [sha256:<64 hex digits>]"))
            continue
        for index, value in enumerate(values):
            field = f"{where}.{team}[{index}]"
            digest = _key_hash(str(value), field, errors)
            if digest and hashes.setdefault(digest, team) != team:
                errors.append(FleetError(f"team {hashes[digest]} has the same key", field=field, hint="give each team its own"))
    raise_all(errors)
    return hashes


def _key_hash(value: str, field: str, errors: list[FleetError]) -> str | None:
    if value.startswith("sha256:"):
        if _HASH.fullmatch(value):
            return value.removeprefix("sha256:")
        errors.append(FleetError("not a SHA-256", field=field, hint="write sha256: and 64 digits of 0-9 and a-f"))
    elif not _KEY.fullmatch(value):
        errors.append(FleetError("a key has characters that no header carries", field=field, hint="use letters, digits and '-_.'"))
    elif len(value) < SHORTEST_KEY:
        wrong = f"a key of {len(value)} characters can be guessed"
        errors.append(FleetError(wrong, field=field, hint=f"write at least {SHORTEST_KEY}, as 'openssl rand -hex 24' prints them"))
    else:
        return hashlib.sha256(value.encode("ascii")).hexdigest()
    return None


def without_keys(routes: Iterable[Route], keys: Data, hashes: Mapping[str, str]) -> list[str]:
    """Services that ask for a key which nobody has, one line each. ``keys``: as given, ``hashes``: as :func:`hash_keys` makes them of it.

    :raises FleetError: no keys were given at all, and a service asks for one: whoever forgot to give them would shut everybody out.
    """
    asking = [route for route in routes if route.keys]
    if asking and not keys:
        wrong = f"no team has a key, and {asking[0].service} asks for one: nobody could call it"
        hint = "give the file that has them (-e @FILE), or name teams without a key as {claims: []}"
        raise FleetError(wrong, field="fleet_gateway_keys", hint=hint)
    known = frozenset(hashes.values())
    return [
        f"{route.service}: nobody can call it, for none of these teams has a key: {', '.join(route.teams)}"
        for route in asking
        if not known.intersection(route.teams)
    ]


@dataclass(frozen=True)
class Server:
    """Where one replica listens, as the gateway sees it."""

    name: str
    host: str
    address: str
    port: int

    @property
    def place(self) -> str:
        """``address:port``, an IPv6 address in brackets."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True)
class Route:
    """How one service is reached. ``surges``: names of servers that stand by for rollouts. ``check``: path, or None for a plain connect."""

    service: str
    team: str
    host: str | None
    path: str | None
    keys: bool
    teams: tuple[str, ...]
    rate: int
    timeout: int
    check: str | None
    check_timeout: int
    servers: tuple[Server, ...]
    surges: tuple[str, ...]

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return f"svc_{self.service}"


def make_routes(
    manifests: Iterable[Manifest], plans: Mapping[str, Data], addresses: Mapping[str, str], settings: Settings
) -> tuple[list[Route], list[str]]:
    """Routes of all services that have one, by service, and what is worth a word.

    ``plans``: host -> plan. ``addresses``: host -> how the gateway reaches it.

    :raises FleetError: two services under one address, one below that of another team's, a path that is the gateway's own, a host
        without a usable address.
    """
    places: dict[str, list[tuple[str, Data]]] = {}
    for host in sorted(plans):
        for line in plans[host]["services"]:
            places.setdefault(line["service"], []).append((host, line))
    routes: list[Route] = []
    notes: list[str] = []
    manifests = list(manifests)
    errors: list[FleetError] = [*strangers(manifests, settings)]
    for manifest in manifests:
        wish = manifest.model.route
        if wish is None:
            continue
        at, path = _address(manifest, settings)
        if path is not None and (path == OWN_PATH or path.startswith(f"{OWN_PATH}/")):
            errors.append(manifest.located.error(("route", "path"), f"'{OWN_PATH}' is the gateway's own", "choose another path"))
            continue
        try:
            routes.append(_route(manifest, at, path, places.get(manifest.service, []), addresses, settings, notes))
        except FleetError as error:
            errors.append(error)
    raise_all(errors)
    return routes, notes


def _address(manifest: Manifest, settings: Settings) -> tuple[str | None, str | None]:
    """(host, path) of a service, at least one: ``<service>.<domain>``, or ``/<service>`` without domain, if the manifest has none."""
    wish = manifest.model.route
    return place_of(manifest.service, *((None, None) if wish is None else (wish.host, wish.path)), settings)


def place_of(service: str, host: str | None, path: str | None, settings: Settings) -> tuple[str | None, str | None]:
    """(host, path) of the route of a service, at least one, from what its manifest has of them."""
    if host is None and path is None:
        return (f"{service}.{settings.domain}", None) if settings.domain else (None, f"/{service}")
    return host, path


def strangers(manifests: Sequence[Manifest], settings: Settings) -> t.Iterator[FleetError]:
    """Addresses that two services have, and those that take a part of what is sent to a service of another team.

    The longest address wins, so whoever had one below another's would get its requests. ``<service>.<domain>`` is the service's whether
    it uses it or not; a name of the gateways themselves is a path's without a host.
    """
    routed = [(manifest, _key(*_address(manifest, settings), settings)) for manifest in manifests if manifest.model.route is not None]
    taken: dict[tuple[str, str], Manifest] = {}
    for manifest, key in routed:
        owner = taken.setdefault(key, manifest)
        if owner is not manifest:
            wrong = f"service '{owner.service}' has the same address {_shown(manifest, settings)}"
            yield manifest.located.error(("route",), wrong, "give each service its own host or path")
    named = {(f"{manifest.service}.{settings.domain}", ""): manifest for manifest in manifests if settings.domain}
    for manifest, key in routed:
        if taken[key] is not manifest:
            continue  # that was said above
        above = [owner for each in _upwards(key) for owner in (taken.get(each), named.get(each)) if owner is not None]
        foreign = [owner for owner in above if owner.model.team != manifest.model.team]
        if foreign:
            whose = f"'{foreign[0].service}', a service of team '{foreign[0].model.team}'"
            wrong = f"{_shown(manifest, settings)} is part of the address of {whose}"
            yield manifest.located.error(("route",), wrong, "choose another host or path")


def _key(host: str | None, path: str | None, settings: Settings) -> tuple[str, str]:
    """An address as the gateways compare it: '' for the host where any leads there."""
    return "" if host in (None, settings.name, settings.domain) else str(host), path or ""


def _upwards(key: tuple[str, str]) -> t.Iterator[tuple[str, str]]:
    """An address and all those that it is below."""
    host, path = key
    while path:
        yield host, path
        path = path.rpartition("/")[0]
    yield host, ""


def _shown(manifest: Manifest, settings: Settings) -> str:
    host, path = _address(manifest, settings)
    return f"{host or ''}{path or ''}"


def _route(
    manifest: Manifest,
    host: str | None,
    path: str | None,
    places: Sequence[tuple[str, Data]],
    addresses: Mapping[str, str],
    settings: Settings,
    notes: list[str],
) -> Route:
    model, wish = manifest.model, manifest.model.route
    if wish is None:  # only those that have one are asked for
        raise FleetError("the service has no route", file=manifest.file, field="route")
    servers: list[Server] = []
    for where, line in places:
        if wish.port not in line["ports"]:
            notes.append(f"{name_of(line)} on {where} has no port '{wish.port}' in the plan: plan and apply again")
            continue
        servers.append(Server(name_of(line), where, _reached(where, addresses), int(line["ports"][wish.port])))
    checked = model.health.path if model.health is not None and model.health.port == wish.port else None
    return Route(
        service=manifest.service,
        team=str(model.team),
        host=host,
        path=path,
        keys=wish.keys,
        teams=tuple(sorted({str(model.team), *map(str, wish.teams)})),
        rate=settings.rate if wish.rate is None else wish.rate,
        timeout=wish.timeout,
        check=checked,
        check_timeout=model.health.timeout if model.health is not None else 10,
        servers=tuple(sorted(servers, key=lambda server: server.name)),
        surges=tuple(f"{manifest.service}-surge-{where}" for where in sorted({where for where, _line in places})),
    )


def _reached(host: str, addresses: Mapping[str, str]) -> str:
    address = addresses.get(host)
    if not address or not _ADDRESS.fullmatch(address):
        hint = "set fleet_address to the address or name that the gateways reach it by"
        raise FleetError(f"'{address or ''}' is no address that a gateway can use", file=f"host {host}", field="fleet_address", hint=hint)
    return address


def base_url(route: Route, settings: Settings, own_name: str) -> str:
    """Address of a service as callers write it, without a slash at its end. ``own_name``: a gateway, for services with a path only."""
    return url_of(route.host, route.path, settings, own_name)


def url_of(host: str | None, path: str | None, settings: Settings, own_name: str) -> str:
    """The same for what :func:`place_of` found."""
    scheme, port, usual = ("https", settings.https_port, 443) if settings.certificate else ("http", settings.http_port, 80)
    name = host or settings.name or settings.domain or own_name
    shown = f"[{name}]" if ":" in name else name
    return f"{scheme}://{shown}{'' if port == usual else f':{port}'}{path or ''}"
