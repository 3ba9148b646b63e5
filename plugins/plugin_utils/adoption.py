# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs on hosts that were set up by hand, as manifests (``lifecycle: adopted``) and as places that a plan keeps. Pure.

Nobody's place is taken twice: what the last plans have placed already is left as it is, so that adopting again adds only what is new.
"""

from __future__ import annotations

import json
import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import WATCHERS, Facts, LeftOut, Place, Seat, read_seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Mode, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

UNASSIGNED = "unassigned"
# In a manifest's file, above what a machine reads.
HEADING = "# Found running. Its place is kept; nothing of it is started or stopped until its owner writes 'lifecycle: managed'.\n"

_ISOLATION = {mode: isolation for isolation, mode in MODE_OF.items()}
_NAME_LENGTH = 63
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ,()/_.-]*[A-Za-z0-9)]")
# What YAML parsers of any age take for something other than text.
_NO_TEXT = frozenset(("true", "false", "yes", "no", "on", "off", "null"))


@dataclass(frozen=True)
class Service:
    """One manifest to be: seats that are alike, one a replica. ``ports`` are those of the container."""

    name: str
    team: str
    environment: str
    image: str | None
    mode: Mode
    count: int
    ports: tuple[int, ...]
    seats: tuple[Seat, ...] = ()

    @property
    def isolation(self) -> str:
        """As a manifest calls it."""
        return _ISOLATION[self.mode]

    @property
    def rank(self) -> tuple[t.Any, ...]:
        """The order in which names are given."""
        return (self.name, self.team, self.environment, self.image or "", self.mode, self.count, self.ports)


@dataclass
class Adoption:
    """``manifests``: (service, text), only of new ones. ``placements``: every place to keep that no last plan has.

    ``kept``: (place, replica, who) for people: new and known ones. ``left_out``: what nothing is kept for.
    """

    manifests: dict[str, str] = field(default_factory=dict)
    placements: list[Placement] = field(default_factory=list)
    kept: list[tuple[Place, str, str]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def adopt(
    seats: Iterable[Seat],
    environments: Mapping[str, str],
    existing: Sequence[Manifest],
    previous: Iterable[Placement],
    *,
    team: str = UNASSIGNED,
    taken: Iterable[str] = (),
) -> Adoption:
    """Manifests and placements for ``seats``; equal input in any order gives equal output.

    ``environments``: host -> environment. ``previous``: what the last plans say. ``team``: of whoever carries no label of a team.
    ``taken``: names that a new manifest must not have, beside those of ``existing``.
    """
    work = _Adopter({manifest.service: manifest for manifest in existing}, list(previous), set(taken))
    new = [seat for seat in sorted(seats, key=_rank) if not work.is_known(seat)]
    for service in _services(new, environments, team):
        work.add(service)
    return work.result


def _rank(seat: Seat) -> tuple[t.Any, ...]:
    return (seat.owner.host, seat.owner.what, [str(place) for place in seat.places], seat.mode)


def _services(seats: Iterable[Seat], environments: Mapping[str, str], team: str) -> list[Service]:
    """Seats of the same name, team, environment, image, kind and ports are replicas of one service, on whatever host."""
    groups: dict[Service, list[Seat]] = {}
    for seat in seats:
        owner = seat.owner
        ports = tuple(container for container, _host in owner.ports)
        kind = Service(owner.service, owner.team or team, environments[owner.host], owner.image, seat.mode, len(seat.places), ports)
        groups.setdefault(kind, []).append(seat)
    return [replace(kind, seats=tuple(groups[kind])) for kind in sorted(groups, key=lambda kind: kind.rank)]


class _Adopter:
    """Finds out what is known already, and names what is not."""

    def __init__(self, manifests: Mapping[str, Manifest], previous: Iterable[Placement], taken: set[str]) -> None:
        self.manifests = manifests
        self.placed = [placement for placement in previous if placement.service in manifests]
        self.replicas = {(placement.service, placement.replica) for placement in self.placed}
        self.unmatched = list(self.placed)
        self.names = {*manifests, *taken}
        self.result = Adoption()

    # What is known

    def is_known(self, seat: Seat) -> bool:
        """Is this seat one that needs no new manifest: in a last plan, started by the collection itself, or impossible to add?"""
        there = [placement for placement in self.placed if any(_covers(placement, place) for place in seat.places)]
        if not there:
            return self._restore(seat)
        mine = next((placement for placement in there if placement in self.unmatched and self._is_that_of(placement, seat)), None)
        if mine is None:
            names = ", ".join(sorted({placement.name for placement in there}))
            reason = f"{_and(seat.places)} is by its last plan the place of {names}"
            self.result.left_out.append(LeftOut(seat.owner.host, seat.owner.what, reason))
            return True
        self.unmatched.remove(mine)
        self._keep(seat, mine)
        return True

    def _is_that_of(self, placement: Placement, seat: Seat) -> bool:
        """A slice has one user; on a whole or shared GPU the image, or without one the name, tells users apart."""
        if not all(_covers(placement, place) for place in seat.places):
            return False
        if placement.slice is not None or seat.owner.replica_of == (placement.service, placement.replica):
            return True
        image = self.manifests[placement.service].model.image
        return image == seat.owner.image if image else placement.service.startswith(seat.owner.service)

    def _restore(self, seat: Seat) -> bool:
        """A replica that the collection started and whose plan is lost gets its place back."""
        service, replica = seat.owner.replica_of or ("", 0)
        manifest = self.manifests.get(service)
        if manifest is None or (service, replica) in self.replicas or not 1 <= replica <= manifest.model.replicas:
            return False
        if manifest.model.gpu.isolation != _ISOLATION[seat.mode] or manifest.model.gpu.count != len(seat.places):
            return False
        self._place(seat, manifest.service, replica, _ports(seat, manifest))
        return True

    # What is new

    def add(self, service: Service) -> None:
        """Take the service into the result: under its own name, or with a number when that is another's."""
        name, number = service.name, 1
        while name in self.names:
            manifest = self.manifests.get(name)
            if manifest is not None and self._describes(manifest, service):
                break
            number += 1
            suffix = f"-{number}"
            name = service.name[: _NAME_LENGTH - len(suffix)].rstrip("-") + suffix
        if name not in self.names:
            self.result.manifests[name] = manifest_text(name, service)
            self.names.add(name)
        manifest = self.manifests.get(name) or read_manifest(name, self.result.manifests[name])
        told: set[str] = set()
        for replica, seat in enumerate(service.seats, 1):
            # Somebody on several slices counts as several replicas, and has each port once.
            ports = () if f"{seat.owner.host} {seat.owner.what}" in told else _ports(seat, manifest)
            told.add(f"{seat.owner.host} {seat.owner.what}")
            self._place(seat, name, replica, ports)

    def _describes(self, manifest: Manifest, service: Service) -> bool:
        """A manifest from an earlier run whose plan is lost: it is as it would be written now, but for what its owner may have added."""
        model = manifest.model
        if model.lifecycle != "adopted" or any(name == manifest.service for name, _replica in self.replicas):
            return False
        found = (service.environment, service.image, service.isolation, service.count, len(service.seats))
        return found == (model.environment, model.image, model.gpu.isolation, model.gpu.count, model.replicas)

    def _place(self, seat: Seat, service: str, replica: int, ports: tuple[tuple[str, int], ...]) -> None:
        gpus = tuple(place.gpu for place in seat.places)
        placement = Placement(service, replica, seat.owner.host, seat.mode, gpus, seat.places[0].slice, ports)
        self.replicas.add((service, replica))
        self.result.placements.append(placement)
        self._keep(seat, placement)

    def _keep(self, seat: Seat, placement: Placement) -> None:
        self.result.kept += [(place, placement.name, seat.owner.what) for place in seat.places]


def _covers(placement: Placement, place: Place) -> bool:
    return placement.host == place.host and place.gpu in placement.gpus and placement.slice == place.slice


def _and(places: Iterable[Place]) -> str:
    return " and ".join(str(place) for place in places)


def _ports(seat: Seat, manifest: Manifest) -> tuple[tuple[str, int], ...]:
    """(name, port on the host) of those ports that the manifest names and that are published."""
    published = dict(seat.owner.ports)
    return tuple(sorted((port.name, published[port.container]) for port in manifest.model.ports if port.container in published))


# Everything at once


@dataclass(frozen=True)
class Adopted:
    """``manifests`` and ``plans``: text by service and by host. ``fleet``: of ``fleet.yml``, None while other manifests wait for a plan.

    ``kept`` and ``left_out`` as in ``Adoption``; ``table``: both for people.
    """

    manifests: dict[str, str]
    plans: dict[str, str]
    fleet: str | None
    kept: list[tuple[Place, str, str]]
    left_out: list[LeftOut]

    @property
    def table(self) -> list[str]:
        """One line for each place that is kept, then one for each user for whom nothing is kept."""
        rows: list[tuple[str, ...]] = [("HOST", "PLACE", "SERVICE", "FOUND AS")]
        rows += [(place.host, str(place), replica, what) for place, replica, what in self.kept]
        return [*table(rows), *(f"{left.host}: {left.what} is left out: {left.reason}" for left in self.left_out)]


def adopt_fleet(
    manifest_texts: Sequence[tuple[str, str]],
    plan_texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    *,
    team: str = UNASSIGNED,
    taken: Iterable[str] = (),
    watchers: Sequence[str] = WATCHERS,
) -> Adopted:
    """Manifests and plans for what runs on ``hosts`` (name -> {facts with holders and containers, policy}).

    The other arguments are as for ``fleet.plan_fleet`` and ``adopt``. The planner itself writes the plans, from places that are all given,
    so that planning again changes nothing. Services that have no place yet get none here.

    Raises FleetError for anything wrong in the input, and where policy leaves no way to keep what runs.
    """
    existing = read_manifests(manifest_texts)
    previous = [placement for path, text in plan_texts.values() for placement in read_plan(path, text).placements]
    environments: dict[str, str] = {}
    seats: list[Seat] = []
    left_out: list[LeftOut] = []
    for name in sorted(hosts):
        facts, policy = _with_users(name, hosts[name].get("facts")), read_policy(name, hosts[name].get("policy") or {})
        environments[name] = policy.fleet_environment
        found, out = read_seats(name, facts, shared_reserve_mib=policy.fleet_shared_reserve, watchers=watchers)
        seats += found
        left_out += out
    adoption = adopt(seats, environments, existing, previous, team=team, taken=taken)
    concerned = {placement.service for placement in (*previous, *adoption.placements)}
    waiting = [manifest for manifest in existing if manifest.service not in concerned]
    texts = [(path, text) for path, text in manifest_texts if path not in {manifest.file for manifest in waiting}]
    texts += [(f"{service}.yml (adopted)", text) for service, text in adoption.manifests.items()]
    planned = plan_fleet(texts, plan_texts, hosts, catalogue, found=adoption.placements, others_stay=True)
    _all_kept(adoption, planned)
    return Adopted(
        adoption.manifests,
        {name: plan.text for name, plan in planned.plans.items()},
        None if waiting else planned.fleet,
        sorted(adoption.kept),
        sorted([*left_out, *adoption.left_out], key=lambda left: (left.host, left.what, left.reason)),
    )


def _with_users(host: str, facts: object) -> Facts:
    """Facts that say who uses what. Without that nothing may be called free."""
    checked = check_facts(host, facts)
    hint = "read them with gather: [containers, holders], as root, with the engine running"
    if checked.get("containers") is None:
        raise FleetError("which containers there are is not known", file=f"host {host}", field="facts.containers", hint=hint)
    for gpu in checked["gpus"]:
        if gpu["state"] == "ok" and gpu.get("holders") is None:
            raise FleetError(f"who uses GPU {gpu['pci']} is not known", file=f"host {host}", field="facts.gpus.holders", hint=hint)
    return checked


def _all_kept(adoption: Adoption, planned: Planned) -> None:
    """FleetError for each place that the planner did not keep: a policy that contradicts what runs must be mended first."""
    kept = {_where(placement) for plan in planned.plans.values() for placement in plan.placements}
    lost = [placement for placement in adoption.placements if _where(placement) not in kept]
    hint = "let the policy allow what runs (fleet_gpu_layouts), or stop it first"
    raise_all(
        FleetError(
            f"{placement.name} runs on {placement.slice or placement.mode} of {', '.join(placement.gpus)}, and no plan can keep it there",
            file=f"host {placement.host}",
            hint=hint,
        )
        for placement in lost
    )


def _where(placement: Placement) -> tuple[t.Any, ...]:
    return (placement.name, placement.host, placement.mode, placement.gpus, placement.slice)


# The text


def manifest_text(name: str, service: Service) -> str:
    """The manifest (docs/manifest.md) of what was found. What nobody can know from outside is left to its defaults."""
    found = ", ".join(dict.fromkeys(f"{seat.owner.what} on {seat.owner.host}" for seat in service.seats))
    memory = f"memory: {format_size(min(seat.memory_mib for seat in service.seats))}"
    count = f"count: {service.count}, " if service.count > 1 else ""
    lines = [
        "schema: 1",
        f"service: {_text(name)}",
        f"team: {_text(service.team)}",
        f"environment: {_text(service.environment)}",
        f"description: {_text('Found running as ' + found)}",
        *([f"image: {_text(service.image)}"] if service.image else []),
        f"replicas: {len(service.seats)}",
        f"gpu: {{isolation: {service.isolation}, {count}{memory}}}",
        *_host_lines(service),
        *_port_lines(service),
        "lifecycle: adopted",
    ]
    return HEADING + "\n".join(lines) + "\n"


def _host_lines(service: Service) -> list[str]:
    """What limits the containers is what they may take; the largest of the replicas counts."""
    owners = [seat.owner for seat in service.seats]
    amounts = []
    cpus = max((owner.cpus or 0 for owner in owners), default=0)
    if cpus:
        amounts.append(f"cpus: {cpus:g}")
    for label in ("memory", "shm"):
        largest = max(getattr(owner, f"{label}_mib") or 0 for owner in owners)
        if largest:
            amounts.append(f"{label}: {format_size(largest)}")
    return [f"host: {{{', '.join(amounts)}}}"] if amounts else []


def _port_lines(service: Service) -> list[str]:
    """A port of the host can be asked for by one replica only; where the others are is in the plan."""
    if not service.ports:
        return []
    published = dict(service.seats[0].owner.ports)
    asked = {port: f", host: {published[port]}" if len(service.seats) == 1 else "" for port in service.ports}
    return ["ports:", *(f"  - {{name: port-{port}, container: {port}{asked[port]}}}" for port in service.ports)]


def _text(value: str) -> str:
    """A YAML scalar that every parser takes for this text."""
    clean = "".join(character if character.isprintable() else "?" for character in value)
    if _PLAIN.fullmatch(clean) and clean.lower() not in _NO_TEXT:
        return clean
    return json.dumps(clean, ensure_ascii=False)
