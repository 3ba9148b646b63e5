# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the whole-fleet solver is asked and what it answers: many hosts, service classes with many equal replicas, quotas of teams.

It plans a fleet on which nothing runs yet. Memory is in MiB, compute in shares of one GPU (0 to 1). Names are only names: they decide
nothing but which of several equal hosts or classes comes first.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF

# More replicas of one class than this are a typing error.
MOST_REPLICAS = 1_000_000
# GPUs of a host are the bits of a number.
MOST_GPUS = 62
# Replicas of a class on a host are counted in 16 bits; 64 clients are the most that a policy allows.
MOST_CLIENTS = 512


@dataclass(frozen=True)
class FleetModel:
    """One kind of GPU. ``geometry`` is None without MIG."""

    name: str
    memory_mib: int
    geometry: Geometry | None = None


@dataclass(frozen=True)
class FleetHost:
    """One host with ``gpus`` equal GPUs, all of them free; ``cpus`` and ``ram_mib`` are what it may give to replicas.

    ``modes``: of ``mig``, ``whole`` and ``shared``. A shared GPU serves at most ``clients`` replicas and keeps ``reserve_mib`` for itself.
    """

    name: str
    model: str
    gpus: int
    cpus: float
    ram_mib: int
    modes: tuple[str, ...] = ("mig", "whole")
    clients: int = 48
    reserve_mib: int = 0


@dataclass(frozen=True)
class FleetClass:
    """Equal replicas of one service. ``isolation``: ``exclusive`` (``count`` whole GPUs of one host), ``slice`` (MIG) or ``shared`` (MPS).

    A replica needs ``memory_mib`` and ``compute`` of the GPU, ``cpus`` and ``ram_mib`` of the host. ``models``: the only ones allowed, all
    if empty; ``not_models``: never these. ``profile``: this MIG profile and no other. ``max_per_host``: replicas on one host.
    """

    key: str
    team: str
    priority: int
    replicas: int
    isolation: str
    memory_mib: int
    compute: float = 0.0
    count: int = 1
    profile: str | None = None
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    cpus: float = 0.0
    ram_mib: int = 0
    max_per_host: int | None = None


@dataclass(frozen=True)
class FleetQuota:
    """The most that a team may hold: GPU memory, and whole GPUs' worth. None: no limit.

    All memory of whole GPUs and slices counts, of shared GPUs what was asked for.
    Memory counts in whole GiB for each GPU or slice, begun ones in full: a 1g.10gb is 10 GiB, whatever the board and its driver make of it.
    A slice is worth the greater of its shares in compute and memory slices; so is a place on a shared GPU in compute and memory.
    """

    team: str
    memory_mib: int | None = None
    gpus: float | None = None


@dataclass(frozen=True)
class FleetProblem:
    """Everything that the solver is asked."""

    models: tuple[FleetModel, ...]
    hosts: tuple[FleetHost, ...]
    classes: tuple[FleetClass, ...]
    quotas: tuple[FleetQuota, ...] = ()


# class, replica (from 0), host, GPU of the host (from 0), mode, profile ("" if not mig), memory slice where it starts (-1 if not mig).
# A replica with several GPUs has one row for each.
Row = tuple[str, int, str, int, str, str, int]


@dataclass(frozen=True)
class FleetAnswer:
    """``rows``: where every served replica is, in order of class, replica and GPU. ``served`` and ``bound`` by priority, greatest first.

    ``bound``: no plan that serves as many of the priorities above as this one serves more replicas of a priority. ``opened``: GPUs in use;
    no plan that serves as many of each priority opens fewer than ``opened_bound``.
    ``solver``: its name and version.
    """

    rows: list[Row]
    served: dict[int, int]
    bound: dict[int, float]
    opened: int
    opened_bound: float
    solver: str | None = None

    @property
    def gaps(self) -> dict[str, float]:
        """How far below its bound each objective may be, as a share: by priority as text, and ``opened``."""
        found = {str(level): 1 - count / self.bound[level] if self.bound[level] > 0 else 0.0 for level, count in self.served.items()}
        found["opened"] = 1 - self.opened_bound / self.opened if self.opened else 0.0
        return {name: max(0.0, gap) for name, gap in found.items()}


Part = t.TypeVar("Part")


def read_problem(data: Mapping[str, t.Any]) -> FleetProblem:
    """A problem from plain data: ``models``, ``hosts``, ``classes`` and ``quotas``, each a list of dicts with the fields of its type.

    :raises FleetError: a field is missing or unknown, or the problem is not sound (see :func:`check`).
    """
    lists = {name: _entries(data, name) for name in ("models", "hosts", "classes", "quotas")}
    models = []
    for entry in lists["models"]:
        try:
            models.append({**entry, "geometry": Geometry.from_dict(entry["geometry"])} if entry.get("geometry") is not None else entry)
        except FleetError as error:
            raise FleetError(f"model {entry.get('name')}: {error.message}", hint=error.hint) from error
    problem = FleetProblem(
        _each(FleetModel, models),
        _each(FleetHost, lists["hosts"]),
        _each(FleetClass, lists["classes"]),
        _each(FleetQuota, lists["quotas"]),
    )
    check(problem)
    return problem


def _entries(data: Mapping[str, t.Any], name: str) -> list[Mapping[str, t.Any]]:
    found = data.get(name, ()) if name == "quotas" else data.get(name)
    if not isinstance(found, list | tuple) or not all(isinstance(entry, Mapping) for entry in found):
        raise FleetError(f"{name} is not a list of mappings", field=name, hint="write one mapping for each, with the fields of its type")
    return list(found)


def _each(kind: type[Part], entries: Iterable[Mapping[str, t.Any]]) -> tuple[Part, ...]:
    # Loaded here: plans use the types of this file, and read no such problem.
    from pydantic import TypeAdapter, ValidationError

    known, adapter = {entry.name for entry in fields(t.cast(t.Any, kind))}, TypeAdapter(kind)
    found = []
    for entry in entries:
        whose = f"{kind.__name__} {entry.get('name') or entry.get('key') or entry.get('team')}"
        if unknown := sorted(map(str, entry.keys() - known)):
            raise FleetError(f"{whose}: there is no field {unknown[0]}", hint=f"it has {', '.join(sorted(known))}")
        try:
            found.append(adapter.validate_python(dict(entry)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            field = str(first["loc"][0]) if first["loc"] else "entry"
            given = f", found {first['input']!r}" if field in entry else ""
            raise FleetError(f"{whose}: {field}: {first['msg'][:1].lower()}{first['msg'][1:]}{given}") from error
    return tuple(found)


def check(problem: FleetProblem) -> None:
    """Is the problem sound?

    :raises FleetError: two of one name, an unknown model, isolation or mode, a negative or endless number, more GPUs than a host may have,
        or more replicas than anyone means; a class that asks for what no model has, or for and against one model.
    """
    _unique("model", [model.name for model in problem.models])
    _unique("host", [host.name for host in problem.hosts])
    _unique("class", [one.key for one in problem.classes])
    _unique("quota of team", [quota.team for quota in problem.quotas])
    models = {model.name for model in problem.models}
    for model in problem.models:
        _positive(f"model {model.name}", memory_mib=model.memory_mib)
    for host in problem.hosts:
        _check_host(host, models)
    profiles = {profile.name for model in problem.models if model.geometry for profile in model.geometry.profiles}
    for one in problem.classes:
        if both := sorted({*one.models} & {*one.not_models}):
            raise FleetError(f"class {one.key}: model {both[0]} is in models and in not_models", hint="leave it out of one of them")
        if one.profile is not None and one.profile not in profiles:
            raise FleetError(f"class {one.key}: no model has the profile {one.profile}")
        if one.compute > 1:
            raise FleetError(f"class {one.key}: compute is {one.compute}; it is a part of each GPU, so at most 1")
        unknown = sorted({*one.models, *one.not_models} - models)
        if unknown:
            raise FleetError(f"class {one.key}: there is no model {unknown[0]}")
        if one.isolation not in MODE_OF:
            raise FleetError(f"class {one.key}: isolation {one.isolation} is none of {', '.join(MODE_OF)}")
        _positive(
            f"class {one.key}", replicas=one.replicas, memory_mib=one.memory_mib, compute=one.compute, cpus=one.cpus, ram_mib=one.ram_mib
        )
        _positive(f"class {one.key}", max_per_host=one.max_per_host or 0)
        if one.replicas > MOST_REPLICAS:
            raise FleetError(f"class {one.key}: {one.replicas:,} replicas are more than {MOST_REPLICAS:,}")
        if one.count < 1 or (one.count > 1 and one.isolation != "exclusive"):
            raise FleetError(f"class {one.key}: {one.count} GPUs a replica; only an exclusive one may have more than one")
    for quota in problem.quotas:
        _positive(f"quota of team {quota.team}", memory_mib=quota.memory_mib or 0, gpus=quota.gpus or 0)


def _check_host(host: FleetHost, models: Collection[str]) -> None:
    if host.model not in models:
        raise FleetError(f"host {host.name}: there is no model {host.model}")
    if set(host.modes) - set(MODE_OF.values()):
        raise FleetError(f"host {host.name}: its modes {', '.join(host.modes)} are not all of mig, whole and shared")
    for many, what, most in ((host.gpus, "GPUs", MOST_GPUS), (host.clients, "clients of a GPU", MOST_CLIENTS)):
        if many > most:
            raise FleetError(f"host {host.name}: {many} {what} are more than {most}")
    _positive(f"host {host.name}", gpus=host.gpus, cpus=host.cpus, ram_mib=host.ram_mib, clients=host.clients, reserve_mib=host.reserve_mib)


def _unique(what: str, names: list[str]) -> None:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise FleetError(f"{what} {name} is there twice")
        known.add(name)


def _positive(whose: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            raise FleetError(f"{whose}: {name} is {number}; it must be a number from 0 on")
