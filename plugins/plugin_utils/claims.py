# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses which GPU or slice of a host that was set up by hand: facts in, seats out. Pure.

A *claim* is what one container, or one program outside containers, names or has open. A *seat* is what is made of it in the words
of a plan: one slice, one or more whole GPUs, or a share of a GPU.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ansible_collections.gpuops.fleet.plugins.module_utils.bookkeeping import REPLICA, SERVICE, TEAM
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice

Facts = Mapping[str, t.Any]

#: Containers that look at GPUs and serve no model, by image. Nothing is kept for them.
WATCHERS = (
    "*/dcgm-exporter*",
    "*/dcgm:*",
    "*/gpu-feature-discovery*",
    "*/k8s-device-plugin*",
    "*nvidia_gpu_exporter*",
    "*/cadvisor*",
    "*/node-exporter*",
    "portainer/agent*",
)
#: Programs of which an open device file, or a picture on a screen, is no use of a GPU that a plan would have to know.
#: The kernel cuts names at 15 characters.
WATCHER_PROGRAMS = (
    "nvidia-persiste",
    "nvidia-powerd",
    "nv-hostengine",
    "nv-fabricmanage",
    "dcgm-exporter",
    "dcgmi",
    "nvidia-smi",
    "nvtop",
    "nvitop",
    "Xorg",
)

_NO_NAME = re.compile(r"[^a-z0-9]+")
_NAME_LENGTH = 63


@dataclass(frozen=True, order=True)
class Place:
    """A slice, or with ``slice`` None a whole GPU; ``order`` is the GPU's PCI address."""

    host: str
    order: str
    gpu: str
    slice: Slice | None = None

    def __str__(self) -> str:
        return f"{self.slice} of GPU {self.order}" if self.slice else f"GPU {self.order}"


@dataclass(frozen=True)
class Owner:
    """A container or a program: what a manifest can say about it.

    ``what`` is for people; ``service`` the name that its manifest would have; ``ports``: (container, host) of TCP ports;
    amounts in cores and MiB, None where nothing limits it; ``replica_of``: (service, replica) of a container that the
    collection itself started.
    """

    host: str
    what: str
    service: str
    team: str | None = None
    image: str | None = None
    ports: tuple[tuple[int, int], ...] = ()
    cpus: float | None = None
    memory_mib: int | None = None
    shm_mib: int | None = None
    replica_of: tuple[str, int] | None = None


@dataclass
class Claim:
    """``places`` in order; ``seen`` are those of them on which a process of the owner was seen."""

    owner: Owner
    places: list[Place]
    seen: set[Place] = field(default_factory=set)


@dataclass(frozen=True)
class Seat:
    """One replica. ``memory_mib`` is what it has on each GPU or slice. ``mode`` as in a plan."""

    owner: Owner
    mode: t.Literal["mig", "whole", "shared"]
    places: tuple[Place, ...]
    memory_mib: int


@dataclass(frozen=True)
class LeftOut:
    """Something that was found and for which nothing is kept, and why."""

    host: str
    what: str
    reason: str


def service_name(*parts: str | None) -> str:
    """A name for a manifest (2 to 63 of a-z, 0-9 and '-') out of what people called a thing. The same parts give the same name."""
    text = "-".join(part for part in (_NO_NAME.sub("-", (part or "").lower()).strip("-") for part in parts) if part)
    if not text[:1].isalpha() or len(text) < 2:
        text = f"service-{text}".strip("-")
    return text[:_NAME_LENGTH].rstrip("-")


class Host:
    """The places of one host."""

    def __init__(self, name: str, facts: Facts) -> None:
        self.name = name
        self.facts = facts
        self.gpus = {gpu["uuid"]: gpu for gpu in facts["gpus"] if _unknown(gpu) is None}
        self.whole: dict[str, Place] = {}
        self.slices: dict[str, dict[int, Place]] = {}
        self.by_uuid: dict[str, list[Place]] = {}
        for uuid, gpu in self.gpus.items():
            self._read(uuid, gpu)

    def _read(self, uuid: str, gpu: Facts) -> None:
        mig = gpu["mig"]
        if not (mig and mig["current"]):
            self.whole[uuid] = Place(self.name, gpu["pci"], uuid)
            self.by_uuid[uuid] = [self.whole[uuid]]
            return
        self.slices[uuid] = {}
        for instance in mig["instances"]:
            place = Place(self.name, gpu["pci"], uuid, Slice(instance["start"], instance["profile"]))
            self.slices[uuid][instance["gi"]] = place
            self.by_uuid.update({compute["uuid"]: [place] for compute in instance["ci"]})
        # Who is given the GPU itself sees every slice that can be used.
        self.by_uuid[uuid] = sorted({self.slices[uuid][instance["gi"]] for instance in mig["instances"] if instance["ci"]})

    @property
    def usable(self) -> set[Place]:
        """Every whole GPU and every slice that a container can be given."""
        return {place for places in self.by_uuid.values() for place in places}

    def memory_mib(self, place: Place) -> int:
        """Memory of a slice, or of the whole GPU."""
        gpu = self.gpus[place.gpu]
        if place.slice is None:
            return int(gpu["memory_mib"])
        profiles = self.facts["geometries"][gpu["mig"]["geometry"]]["profiles"]
        return next(int(profile["memory_mib"]) for profile in profiles if profile["name"] == place.slice.profile)


def read_seats(
    name: str,
    facts: Facts,
    *,
    shared_reserve_mib: int = 1024,
    watchers: Sequence[str] = WATCHERS,
    programs: Sequence[str] = WATCHER_PROGRAMS,
) -> tuple[list[Seat], list[LeftOut]]:
    """Everybody on the GPUs of host ``name``, and what was left out. ``facts`` with holders and containers (docs/facts.md).

    ``shared_reserve_mib`` of a GPU that several use is kept free; the rest counts in equal parts for each.
    """
    host = Host(name, facts)
    out: list[LeftOut] = []
    containers = _container_claims(host, watchers, out)
    by_id = {container: claim for container, claim in containers if container}
    programs_on = _process_claims(host, by_id, programs, out)
    claims = [claim for claim in (*(claim for _container, claim in containers), *programs_on) if claim.places]
    _yield_to_others(host, claims, out)
    claims.sort(key=lambda claim: (len(claim.places), claim.owner.what))
    return _seats(host, claims, shared_reserve_mib, out), sorted(out, key=lambda left: (left.what, left.reason))


def _unknown(gpu: Facts) -> str | None:
    """Why nothing can be kept on this GPU, which is then left alone; None when something can."""
    mig = gpu["mig"]
    if gpu["state"] != "ok" or gpu["uuid"] is None:
        return "which does not answer"
    if mig and mig["current"] != mig["pending"]:
        # Whatever a plan said of it, carrying it out would end or withdraw the change that waits.
        return "whose MIG mode waits for a reset"
    if mig and mig["current"] and not mig["geometry"]:
        return "of which the driver does not say how it can be cut"
    return None


def _names(gpu: Facts) -> set[str]:
    instances = (gpu["mig"] or {}).get("instances") or []
    return {gpu["uuid"], *(compute["uuid"] for instance in instances for compute in instance["ci"])}


# Containers


def _container_claims(host: Host, watchers: Sequence[str], out: list[LeftOut]) -> list[tuple[str, Claim]]:
    """(container id, claim) of every container that names a GPU."""
    claims: list[tuple[str, Claim]] = []
    for container in sorted(host.facts.get("containers") or [], key=lambda each: (each["name"], each["id"])):
        what = f"container {container['name']}"
        if only_watches(container, watchers):
            out.append(LeftOut(host.name, what, f"it only watches (image {container['image']})"))
            claims.append((container["id"], Claim(_container_owner(host, container, what), [])))
            continue
        places: set[Place] = set()
        for device in container["devices"]:
            found = host.by_uuid.get(device, [])
            if not found:
                out.append(LeftOut(host.name, what, f"it names {device}, {_why_no_place(host, device)}"))
            places.update(found)
        claims.append((container["id"], Claim(_container_owner(host, container, what), sorted(places))))
    return claims


def only_watches(container: Facts, watchers: Sequence[str] = WATCHERS) -> bool:
    """Does this container look at GPUs and use none? Told by its image."""
    return any(fnmatchcase(str(container.get("image")), pattern) for pattern in watchers)


def _why_no_place(host: Host, device: str) -> str:
    if device in host.by_uuid:
        return "whose MIG is on and which has no slice that can be used"
    return next((reason for gpu in host.facts["gpus"] if device in _names(gpu) and (reason := _unknown(gpu))), "which is not on this host")


def _container_owner(host: Host, container: Facts, what: str) -> Owner:
    labels = container.get("labels") or {}
    project, service = container.get("project"), container.get("service")
    replica = replica_of(labels)
    if replica is not None:
        name = service_name(replica[0])
    elif project and service:
        name = service_name(service) if service == project else service_name(project, service)
    else:
        name = service_name(container["name"])
    ports: dict[int, int] = {}
    for port in container.get("ports") or []:
        if port["protocol"] == "tcp" and port["host"] is not None:
            ports.setdefault(port["container"], port["host"])
    team = labels.get(TEAM)
    return Owner(
        host.name,
        what,
        name,
        service_name(team) if team else None,
        container["image"],
        tuple(sorted(ports.items())),
        container.get("cpus"),
        container.get("memory_mib"),
        container.get("shm_mib"),
        replica,
    )


def replica_of(labels: Mapping[str, str]) -> tuple[str, int] | None:
    """(Service, replica) of a container of this collection, 0 for a surge; None for another."""
    service, replica = labels.get(SERVICE), str(labels.get(REPLICA, ""))
    return (service, int(replica)) if service and replica.isdigit() else None


# Programs


def _process_claims(host: Host, containers: Mapping[str, Claim], programs: Sequence[str], out: list[LeftOut]) -> list[Claim]:
    """Claims of programs outside the containers that are known; what a known container's processes hold is added to its claim."""
    by_process: dict[int, tuple[Owner, set[Place]]] = {}
    for uuid in host.gpus:
        for holder in host.gpus[uuid].get("holders") or []:
            place = _place_of(host, uuid, holder)
            known = containers.get(holder["container"] or "")
            if known is not None:
                _see(known, place)
                continue
            program = str(holder["process"] or "unknown")
            if program in programs and holder["kind"] in ("open_file", "graphics"):
                continue
            who = f"program {program}" + (f" of {holder['user']}" if holder["user"] else "")
            if place is None:
                reason = f"it holds GPU {host.gpus[uuid]['pci']} itself, whose MIG is on, and no slice of it"
                out.append(LeftOut(host.name, who, reason))
                continue
            owner = Owner(host.name, who, service_name("process", program))
            by_process.setdefault(holder["pid"], (owner, set()))[1].add(place)
    return _merged(by_process.values())


def _place_of(host: Host, uuid: str, holder: Facts) -> Place | None:
    if uuid in host.whole:
        return host.whole[uuid]
    return host.slices[uuid].get(holder["slice"]["gi"]) if holder["slice"] else None


def _see(claim: Claim, place: Place | None) -> None:
    """A container that watches has no claim, and its processes make none."""
    if place is None or not claim.places:
        return
    claim.seen.add(place)
    if place not in claim.places:
        claim.places = sorted([*claim.places, place])


def _merged(processes: Iterable[tuple[Owner, set[Place]]]) -> list[Claim]:
    """One claim for each program of a user on the same places: a program and its children are one."""
    claims: dict[tuple[str, tuple[Place, ...]], Claim] = {}
    for owner, places in processes:
        key = (owner.what, tuple(sorted(places)))
        claims.setdefault(key, Claim(owner, sorted(places), set(places)))
    # A child that holds a part of what its parent holds is no second user.
    wide = {what: [set(places) for other, places in claims if other == what] for what, _places in claims}
    return [claims[what, places] for what, places in claims if not any(set(places) < other for other in wide[what])]


# Seats


def _yield_to_others(host: Host, claims: Sequence[Claim], out: list[LeftOut]) -> None:
    """Who names every GPU of a host (``--gpus all``, privileged) gives way where others name a certain one, unless it is seen there."""
    everything = host.usable
    broad = [claim for claim in claims if len(everything) > 1 and everything <= set(claim.places)]
    others = {place for claim in claims if claim not in broad for place in claim.places}
    for claim in broad:
        claim.places = [place for place in claim.places if place not in others or place in claim.seen]
        if not claim.places:
            out.append(
                LeftOut(host.name, claim.owner.what, "it names every GPU, others are on each of them, and no process of it was seen")
            )


def _seats(host: Host, claims: Sequence[Claim], reserve_mib: int, out: list[LeftOut]) -> list[Seat]:
    users: dict[Place, list[Claim]] = {}
    for claim in claims:
        for place in claim.places:
            users.setdefault(place, []).append(claim)
    seats: list[Seat] = []
    for claim in claims:
        seats += _slice_seats(host, claim, users, out)
        gpus = tuple(place for place in claim.places if place.slice is None)
        if gpus and all(users[place] == [claim] for place in gpus):
            seats.append(Seat(claim.owner, "whole", gpus, min(map(host.memory_mib, gpus))))
            continue
        for place in gpus:
            share = max(1, (host.memory_mib(place) - reserve_mib) // len(users[place]))
            seats.append(Seat(claim.owner, "shared", (place,), share))
    return seats


def _slice_seats(host: Host, claim: Claim, users: Mapping[Place, Sequence[Claim]], out: list[LeftOut]) -> list[Seat]:
    seats = []
    for place in claim.places:
        if place.slice is None:
            continue
        first = users[place][0]
        if first is claim:
            seats.append(Seat(claim.owner, "mig", (place,), host.memory_mib(place)))
        else:
            out.append(LeftOut(host.name, claim.owner.what, f"it shares {place} with {first.owner.what}, which keeps the slice for both"))
    return seats
