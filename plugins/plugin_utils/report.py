# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The numbers of the report: facts, plans, services and policy in, one frozen :class:`Report` out.

Pure and deterministic: no file, no clock, no randomness; the order in which hosts, plans and services are given does not matter.
All memory is in MiB. ``held + planned + unused + free + stranded + aside + overhead`` of a fleet is all of its memory.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import words
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of, replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import gpu_names
from ansible_collections.gpuops.fleet.plugins.plugin_utils.parents import chain_lines
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import (
    ASIDE,
    HELD,
    KINDS,
    OVERHEAD,
    PLANNED,
    STRANDED,
    Block,
    GpuView,
    Site,
    Wish,
    view,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service, outside
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import wishes as read_wishes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_teams import team_slots, team_tags
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import is_true_as_found

Data = Mapping[str, t.Any]


@dataclass(frozen=True)
class Policy:
    """What the report needs of a host's policy. ``cordoned``: GPUs by index, UUID or PCI address, as text."""

    environment: str | None = None
    cordoned: tuple[str, ...] = ()
    shared_reserve_mib: int = 1024


@dataclass(frozen=True)
class Inputs:
    """All that a report is made from. ``facts`` (None: not reached) and ``plans`` by host; ``unplaced`` as in plans/fleet.yml; ``down``:
    hosts that are said to be down, whose facts are of before."""

    facts: Mapping[str, Data | None]
    plans: Mapping[str, Data] = field(default_factory=dict)
    unplaced: Sequence[Data] = ()
    services: Sequence[Service] = ()
    policies: Mapping[str, Policy] = field(default_factory=dict)
    live: bool = False
    down: Collection[str] = frozenset()


@dataclass(frozen=True)
class Alert:
    """Something that a person should look at. ``grave``: it keeps a service or a GPU from working."""

    grave: bool
    where: str
    text: str


@dataclass(frozen=True)
class ReplicaRow:
    """One placed replica. ``given_mib`` is for each of its GPUs. ``place``: is the place there (ready), or why not."""

    service: str
    replica: int
    team: str | None
    environment: str | None
    host: str
    gpus: tuple[str, ...]
    part: str
    asked_mib: int | None
    asked_profile: str | None
    given_mib: int | None
    ports: tuple[str, ...]
    place: str
    adopted: bool

    @property
    def name(self) -> str:
        """Service and replica, as its directory and compose project are called."""
        return replica_name(self.service, self.replica)


@dataclass(frozen=True)
class UnplacedRow:
    """One replica that found no place. ``count`` replicas of one service that share a reason are one row."""

    service: str
    replicas: tuple[int, ...]
    team: str | None
    environment: str | None
    reason: str


@dataclass(frozen=True)
class TeamRow:
    """What one team holds. ``tag`` is short and unique; ``colour`` and ``pattern`` are 0 to SLOTS - 1.

    ``mib`` is held, ``planned_mib`` waits for its slices; the counts are of both.
    """

    name: str
    tag: str
    colour: int
    pattern: int
    services: int
    replicas: int
    mib: int
    planned_mib: int
    slices: int
    gpus: int
    shares: int


@dataclass(frozen=True)
class HostView:
    """One host. ``plan``: serial of its plan; ``carried``: serial and state of the plan that the host says it carries.

    ``asks``: there is a plan for the host to carry. An adoption's plan that asks nothing of its host is never carried.
    """

    name: str
    environment: str | None
    sensed: bool
    down: bool
    driver: str | None
    cuda: str | None
    flavour: str | None
    os: str | None
    plan: int | None
    carried: str | None
    asks: bool
    gpus: tuple[GpuView, ...]
    notes: tuple[str, ...]

    @property
    def memory_mib(self) -> int:
        """Memory of its GPUs as the driver reports it."""
        return sum(gpu.memory_mib for gpu in self.gpus)

    @property
    def held_mib(self) -> int:
        """MiB that services hold."""
        return sum(gpu.mib(HELD) for gpu in self.gpus)


@dataclass(frozen=True)
class StrandedRow:
    """GPUs of one kind with one layout that strands memory, and the layouts that reach it."""

    board: str
    layout: str
    gpus: int
    slices: int
    mib: int
    better: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything that the page says."""

    hosts: tuple[HostView, ...]
    teams: tuple[TeamRow, ...]
    replicas: tuple[ReplicaRow, ...]
    unplaced: tuple[UnplacedRow, ...]
    stranded: tuple[StrandedRow, ...]
    alerts: tuple[Alert, ...]
    waiting: tuple[str, ...]
    services: int
    live: bool

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """All GPUs, by host and index."""
        return tuple(gpu for host in self.hosts for gpu in host.gpus)

    @property
    def memory_mib(self) -> int:
        """Memory of all GPUs as their drivers report it."""
        return sum(gpu.memory_mib for gpu in self.gpus)

    def mib(self, *kinds: str) -> int:
        """MiB of the fleet in parts of these kinds; OVERHEAD is one more kind: what no part gives."""
        extra = sum(gpu.overhead_mib for gpu in self.gpus) if OVERHEAD in kinds else 0
        return extra + sum(gpu.mib(*kinds) for gpu in self.gpus)

    def modes(self) -> dict[str, int]:
        """GPUs by mode, those that there are."""
        counts = {mode: sum(gpu.mode == mode for gpu in self.gpus) for mode in ("mig", "whole", "shared", "unassigned", "out")}
        return {mode: count for mode, count in counts.items() if count}

    @property
    def placed(self) -> tuple[ReplicaRow, ...]:
        """Replicas whose place is not one that they keep only because there is none elsewhere."""
        nowhere = {(row.service, replica) for row in self.unplaced for replica in row.replicas}
        return tuple(row for row in self.replicas if (row.service, row.replica) not in nowhere)

    @property
    def unplaced_services(self) -> tuple[str, ...]:
        """Services of which at least one replica found no place."""
        return tuple(sorted({row.service for row in self.unplaced}))

    @property
    def placed_services(self) -> tuple[str, ...]:
        """Services of which all replicas in the plans have a place."""
        return tuple(sorted({row.service for row in self.replicas} - set(self.unplaced_services)))

    def summary(self) -> dict[str, t.Any]:
        """The headline figures as plain data: counts, and memory in MiB."""
        return {
            "hosts": len(self.hosts),
            "gpus": len(self.gpus),
            "modes": self.modes(),
            "memory_mib": {"total": self.memory_mib, **{kind: self.mib(kind) for kind in (*KINDS, OVERHEAD)}},
            "services": {"known": self.services, "placed": len(self.placed_services), "unplaced": list(self.unplaced_services)},
            "replicas": {"placed": len(self.placed), "unplaced": sum(len(row.replicas) for row in self.unplaced)},
            "stranded": [{"board": row.board, "layout": row.layout, "mib": row.mib, "better": list(row.better)} for row in self.stranded],
            "alerts": [f"{alert.where}: {alert.text}" for alert in self.alerts],
        }


def build(inputs: Inputs) -> Report:
    """Count and draw everything. :raises FleetError: two replicas of the plans hold one slice or GPU, or a plan lacks a key."""
    services = {service.name: service for service in inputs.services}
    hosts = tuple(_host(name, inputs, services) for name in sorted({*inputs.facts, *inputs.plans}))
    rows = tuple(
        sorted((row for host in hosts for row in _rows(host, inputs, services)), key=lambda row: (row.service, row.replica, row.host))
    )
    unplaced = tuple(_unplaced(inputs.unplaced, services))
    decided = {(row.service, row.replica) for row in rows} | {(row.service, each) for row in unplaced for each in row.replicas}
    return Report(
        hosts=hosts,
        teams=_teams(hosts, rows, services),
        replicas=rows,
        unplaced=unplaced,
        stranded=_stranded(hosts),
        alerts=_grouped(alert for host in hosts for alert in _alerts(host, rows)),
        waiting=tuple(_waiting(services, Counter(service for service, _replica in decided))),
        services=len({service for service, _replica in decided} | set(services)),
        live=inputs.live,
    )


def _waiting(services: Mapping[str, Service], decided: Mapping[str, int]) -> Iterable[str]:
    """Services of whose replicas the plans say nothing yet, or not of all."""
    for name, service in sorted(services.items()):
        planned = decided.get(name, 0)
        if planned < service.replicas:
            yield f"{name} ({planned} of {service.replicas} replicas planned)" if planned else name


def _host(name: str, inputs: Inputs, services: Mapping[str, Service]) -> HostView:
    facts, plan, policy = inputs.facts.get(name), inputs.plans.get(name), inputs.policies.get(name, Policy())
    known: Data = facts or {}
    down = name in inputs.down
    wishes = read_wishes(name, plan, services)
    geometries = {key: Geometry.from_dict(value) for key, value in (known.get("geometries") or {}).items()}
    gpus = []
    for gpu in sorted(known.get("gpus") or (), key=lambda one: (one.get("index") is None, one.get("index") or 0, str(one.get("pci")))):
        cordoned = any(wanted.strip().lower() in gpu_names(gpu) for wanted in policy.cordoned)
        drain = gpu.get("drain") or (known.get("host") or {}).get("drain")
        site = Site(cordoned, words(drain) if drain else "", policy.shared_reserve_mib, inputs.live, outside(known, gpu, plan), down)
        geometry = geometries.get(str((gpu.get("mig") or {}).get("geometry")))
        gpus.append(view(name, gpu, geometry, wishes.pop(str(gpu.get("uuid")), Wish()), site))
    driver, system, carried = known.get("driver") or {}, (known.get("host") or {}).get("os") or {}, known.get("plan") or {}
    return HostView(
        name=name,
        environment=policy.environment,
        sensed=facts is not None,
        down=down,
        driver=driver.get("version"),
        cuda=driver.get("cuda"),
        flavour=driver.get("flavour"),
        os=" ".join(str(system[key]) for key in ("id", "version") if system.get(key)) or None,
        plan=plan.get("serial") if plan else None,
        carried=f"{carried.get('serial')} {carried.get('state') or ''}".strip() if carried else None,
        asks=plan is not None and (bool(carried) or not is_true_as_found(plan, known)),
        gpus=tuple(gpus),
        notes=tuple(_down_notes(facts, plan) if down else _host_notes(facts, wishes)),
    )


def _down_notes(facts: Data | None, plan: Data | None) -> Iterable[str]:
    here = ", ".join(sorted(name_of(row) for row in (plan or {}).get("services") or ()))
    known = "what is said of it is from the facts of before" if facts is not None else "there are no facts of it"
    yield f"This host is down (fleet_down_hosts): {known}.{f' On it: {here}.' if here else ''}"


def _host_notes(facts: Data | None, missing: Mapping[str, Wish]) -> Iterable[str]:
    if facts is None:
        yield "There are no facts of this host: it was not reached, and its GPUs are not in the figures."
        return
    driver = facts.get("driver") or {}
    if not driver.get("present", True) and not facts.get("passthrough"):
        yield f"No driver: {driver.get('error') or 'the NVIDIA driver or its library is not there'}."
    elif not facts.get("gpus") and not facts.get("passthrough"):
        yield "This host has no GPU."
    yield from chain_lines(facts)
    for uuid in sorted(missing):
        yield f"{uuid} is in the plan and not on the host."
    for error in facts.get("errors") or ():
        yield f"{str(error).rstrip('.')}."


def _rows(host: HostView, inputs: Inputs, services: Mapping[str, Service]) -> Iterable[ReplicaRow]:
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for row in (inputs.plans.get(host.name) or {}).get("services") or ():
        service = services.get(str(row["service"]))
        uuids = [str(uuid) for uuid in row.get("gpus") or [row["gpu"]]]
        part = f"{row['profile']}@{row['start']}" if row.get("profile") else {"shared": "share"}.get(str(row.get("mode")), "whole GPU")
        blocks = [_block(by_uuid.get(uuid), str(row["service"]), int(row["replica"])) for uuid in uuids]
        there = [block for block in blocks if block is not None]
        yield ReplicaRow(
            service=str(row["service"]),
            replica=int(row["replica"]),
            team=service.team if service else None,
            environment=service.environment if service else host.environment,
            host=host.name,
            gpus=tuple(str(by_uuid[uuid].index) if uuid in by_uuid else uuid for uuid in uuids),
            part=part,
            asked_mib=(service.asked_mib if service else None) or None,
            asked_profile=service.profile if service else None,
            given_mib=min(block.mib for block in there) if len(there) == len(uuids) else None,
            ports=tuple(f"{name} {port}" for name, port in sorted((row.get("ports") or {}).items())),
            place=_place(host, [by_uuid.get(uuid) for uuid in uuids], blocks),
            adopted=bool(service and service.adopted),
        )


def _block(gpu: GpuView | None, service: str, replica: int) -> Block | None:
    blocks = gpu.blocks if gpu else ()
    return next((block for block in blocks if block.tenant and (block.tenant.service, block.tenant.replica) == (service, replica)), None)


def _place(host: HostView, gpus: Sequence[GpuView | None], blocks: Sequence[Block | None]) -> str:
    """Whether what a replica is to run on is there. It says nothing about whether it runs."""
    if host.down:
        return "host down"
    if not host.sensed:
        return "host not reached"
    for gpu, block in zip(gpus, blocks, strict=True):
        if gpu is None:
            return "GPU not found"
        if gpu.mode == "out":
            return f"GPU {gpu.blocks[0].label}"
        if block is None or block.kind == PLANNED:
            return "not there yet"
    return "ready"


def _unplaced(entries: Sequence[Data], services: Mapping[str, Service]) -> Iterable[UnplacedRow]:
    grouped: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        key = (str(entry.get("service")), str(entry.get("reason") or "no reason given"))
        grouped.setdefault(key, []).append(int(entry.get("replica") or 1))
    for (name, reason), replicas in sorted(grouped.items()):
        service = services.get(name)
        yield UnplacedRow(
            name, tuple(sorted(replicas)), service.team if service else None, service.environment if service else None, reason
        )


def _teams(hosts: Sequence[HostView], rows: Sequence[ReplicaRow], services: Mapping[str, Service]) -> tuple[TeamRow, ...]:
    """All teams that own a service, by name."""
    blocks = [(gpu, block) for host in hosts for gpu in host.gpus for block in gpu.blocks if block.tenant]
    names = sorted({service.team for service in services.values()})
    tags, slots = team_tags(names), team_slots(names)
    result = []
    for name in names:
        own = [(gpu, block) for gpu, block in blocks if block.tenant and block.tenant.team == name and block.kind in (HELD, PLANNED)]
        result.append(
            TeamRow(
                name=name,
                tag=tags[name],
                colour=slots[name][0],
                pattern=slots[name][1],
                services=sum(service.team == name for service in services.values()),
                replicas=sum(row.team == name for row in rows),
                mib=sum(block.mib for _gpu, block in own if block.kind == HELD),
                planned_mib=sum(block.mib for _gpu, block in own if block.kind == PLANNED),
                slices=sum(gpu.mode == "mig" for gpu, _block in own),
                gpus=sum(gpu.mode == "whole" for gpu, _block in own),
                shares=sum(gpu.mode == "shared" for gpu, _block in own),
            )
        )
    return tuple(result)


def _stranded(hosts: Sequence[HostView]) -> tuple[StrandedRow, ...]:
    """Stranded memory by board and layout, the most first."""
    found: dict[tuple[str, str, tuple[str, ...]], list[GpuView]] = {}
    for host in hosts:
        for gpu in host.gpus:
            if gpu.stranded_slices:
                found.setdefault((gpu.name, gpu.layout, gpu.better), []).append(gpu)
    rows = [
        StrandedRow(board, layout, len(gpus), sum(gpu.stranded_slices for gpu in gpus), sum(gpu.mib(STRANDED) for gpu in gpus), better)
        for (board, layout, better), gpus in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.mib, row.board, row.layout)))


def _grouped(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """One alert for each text, with every place where it holds; the grave ones first."""
    places: dict[tuple[bool, str], list[str]] = {}
    for alert in alerts:
        places.setdefault((alert.grave, alert.text), []).append(alert.where)
    found = [Alert(grave, "; ".join(dict.fromkeys(where)), text) for (grave, text), where in places.items()]
    return tuple(sorted(found, key=lambda alert: not alert.grave))


def _alerts(host: HostView, rows: Sequence[ReplicaRow]) -> Iterable[Alert]:
    for note in host.notes:
        yield Alert(True, host.name, note)
    for gpu in host.gpus:
        where = f"{host.name}, GPU {gpu.index}"
        here = [row.name for row in rows if row.host == host.name and str(gpu.index) in row.gpus]
        for note in gpu.notes:
            lost = gpu.mode == "out"
            yield Alert(lost, where, f"{note} On it: {', '.join(here)}." if lost and here else note)
        for block in gpu.blocks:
            if block.kind == ASIDE and block.why.startswith("used outside"):
                yield Alert(False, where, f"{block.label}: {block.why}.")
        if gpu.drained:
            rest = f" On it still: {', '.join(here)}." if here else ""
            yield Alert(False, where, f"{gpu.drained[0].upper()}{gpu.drained[1:]}: nothing new is placed here.{rest}")
        if gpu.cordoned:
            yield Alert(False, where, "Cordoned: nothing new is placed here.")
    if host.sensed and not host.down and host.asks and host.carried != f"{host.plan} done":
        carried = f"carries plan {host.carried}" if host.carried else "carries no plan"
        yield Alert(False, host.name, f"Plan {host.plan} is not carried out: the host {carried}.")
