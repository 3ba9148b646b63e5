# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of a planning run: texts, facts and policy in, plan texts and a table for people out. Nothing is read or written here."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts, host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import (
    FLEET,
    HostPlan,
    fleet_text,
    make_host_plan,
    read_plan,
    unplaced_lines,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy, read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Placement, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

Texts = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Planned:
    """What a run decided. ``plans``: of each host of the run; ``fleet``: the text of ``fleet.yml``; ``table``: lines for people."""

    plans: Mapping[str, HostPlan]
    fleet: str
    unplaced: list[dict[str, t.Any]]
    services: dict[str, dict[str, t.Any]]
    table: list[str]
    notes: list[str]


def plan_fleet(
    manifest_texts: Texts,
    plan_texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    runtimes: Collection[str] = (),
    found: Iterable[Placement] | None = None,
) -> Planned:
    """Decide for a fleet.

    ``manifest_texts``: (path, text). ``plan_texts``: host -> (path, text) of the last plans, also of hosts that are not in ``hosts``.
    ``hosts``: name -> {facts, policy}. ``runtimes``: the compose templates that exist. ``found``: of an adoption, the places
    that no last plan knows and that count as if one did; GPUs in MIG mode are then listed even where nobody is on them.

    :raises FleetError: anything wrong in any of them, each problem on its own line.
    """
    manifests, previous, policies = _read_all(manifest_texts, plan_texts, hosts, runtimes)
    before = [*(placement for name in sorted(previous) for placement in previous[name].placements), *(found or ())]
    states = _hosts(hosts, policies, catalogue, before)
    digests = {manifest.service: manifest.digest() for manifest in manifests}
    lines = [line for plan in previous.values() for line in plan.data["services"]]
    changed = frozenset(line["service"] for line in lines if line["manifest"] != digests.get(line["service"]))
    solution = make_plan(Problem(tuple(states), tuple(need_of(manifest) for manifest in manifests), tuple(before), changed))
    adopted = [manifest.service for manifest in manifests if manifest.model.lifecycle == "adopted"]
    plans = {
        host.name: make_host_plan(host, solution, hosts[host.name]["facts"], digests, adopted, previous.get(host.name), found is not None)
        for host in states
    }
    unplaced = unplaced_lines(solution.unplaced)
    return Planned(
        plans=plans,
        fleet=fleet_text(unplaced),
        unplaced=unplaced,
        services={manifest.service: manifest.data() for manifest in manifests},
        table=_table(states, solution, before, manifests),
        notes=_notes(states, previous),
    )


def _read_all(
    manifest_texts: Texts, plan_texts: Mapping[str, tuple[str, str]], hosts: Mapping[str, Mapping[str, t.Any]], runtimes: Collection[str]
) -> tuple[list[Manifest], dict[str, HostPlan], dict[str, Policy]]:
    """Everything checked; all problems of all papers at once, so that a person mends them in one go."""
    errors: list[FleetError] = []
    manifests: list[Manifest] = []
    previous: dict[str, HostPlan] = {}
    policies: dict[str, Policy] = {}
    try:
        manifests = read_manifests(manifest_texts, runtimes)
    except FleetError as error:
        errors.append(error)
    for name, (path, text) in sorted(plan_texts.items()):
        try:
            previous[name] = read_plan(path, text)
            _is_of(name, path, previous[name])
        except FleetError as error:
            errors.append(error)
    for name in sorted(hosts):
        try:
            _host_name(name)
            check_facts(name, hosts[name].get("facts"))
            policies[name] = read_policy(name, hosts[name].get("policy") or {})
        except FleetError as error:
            errors.append(error)
    raise_all(errors)
    return manifests, previous, policies


def _is_of(name: str, path: str, plan: HostPlan) -> None:
    if plan.data["host"] != name:
        wrong = f"this file has the plan of host '{plan.data['host']}'"
        raise FleetError(wrong, file=path, field="host", hint=f"name the file {plan.data['host']}.yml, or remove it")


def _host_name(name: str) -> None:
    if name == FLEET or "/" in name or name.startswith("."):
        hint = f"'{FLEET}.yml' and what is no file name cannot be a host's plan; rename the host"
        raise FleetError(f"a host cannot be named '{name}'", file=f"host {name}", hint=hint)


def _hosts(
    hosts: Mapping[str, Mapping[str, t.Any]], policies: Mapping[str, Policy], catalogue: Catalogue, before: Iterable[Placement]
) -> list[Host]:
    states: list[Host] = []
    errors: list[FleetError] = []
    placements = list(before)
    for name in sorted(hosts):
        try:
            states.append(host_of(name, hosts[name]["facts"], policies[name], catalogue, placements))
        except FleetError as error:
            errors.append(error)
    raise_all(errors)
    return states


def _notes(states: Iterable[Host], previous: Mapping[str, HostPlan]) -> list[str]:
    """What a person should know and nobody has to mend."""
    notes = []
    here = {host.name for host in states}
    for name in sorted(set(previous) - here):
        count = len(previous[name].data["services"])
        if count:
            counted = f"the {count} replicas of its last plan count as running there"
            notes.append(f"{name} is not part of this run: {counted}; remove its plan if the host is gone")
    for host in states:
        unknown = [kind for kind in ("cpus", "memory", "shm", "disk") if getattr(host.capacity, kind) is None]
        if unknown:
            notes.append(f"{host.name}: {', '.join(unknown)} could not be read and is not limited; set fleet_capacity")
    return notes


def _table(states: Iterable[Host], solution: Solution, before: Iterable[Placement], manifests: Iterable[Manifest]) -> list[str]:
    """One line a replica: where it is, what it has, and what changes."""
    gpus = {gpu.uuid: gpu for host in states for gpu in host.gpus}
    last = {(each.service, each.replica): each for each in before}
    needs = {manifest.service: manifest.need_mib() for manifest in manifests}
    rows: list[tuple[str, ...]] = [("SERVICE", "REPLICA", "HOST", "GPU", "SLICE", "MEMORY", "PORT", "CHANGE")]
    entries: list[tuple[str, int, tuple[str, ...]]] = []
    for place in solution.placements:
        old = last.pop((place.service, place.replica), None)
        entries.append((place.service, place.replica, (*_where(place), _memory(place, gpus, needs), _ports(place), _change(place, old))))
    for each in solution.unplaced:
        old = last.pop((each.service, each.replica), None)
        entries.append(
            (each.service, each.replica, ("-", "-", "-", "-", "-", "no place" if old is None else f"no place any more, was on {_at(old)}"))
        )
    for old in last.values():
        entries.append((old.service, old.replica, (*_where(old), "-", _ports(old), "removed")))
    rows.extend((service, str(replica), *cells) for service, replica, cells in sorted(entries))
    return table(rows)


def _where(place: Placement) -> tuple[str, str, str]:
    return place.host, ",".join(uuid[:12] for uuid in place.gpus), str(place.slice) if place.slice else place.mode


def _memory(place: Placement, gpus: Mapping[str, t.Any], needs: Mapping[str, int]) -> str:
    """What the replica has for itself; of a shared GPU, what was reserved."""
    if place.mode == "shared":
        return format_size(needs[place.service])
    known = [gpus[uuid] for uuid in place.gpus if uuid in gpus]
    if place.slice is not None:
        sizes = [profile.memory_mib for gpu in known for profile in gpu.geometry.profiles if profile.name == place.slice.profile]
    else:
        sizes = [gpu.memory_mib for gpu in known]
    return format_size(sum(sizes)) if sizes else "-"


def _ports(place: Placement) -> str:
    return " ".join(f"{name}:{port}" for name, port in place.ports) or "-"


def _at(place: Placement) -> str:
    return f"{place.host} {','.join(uuid[:12] for uuid in place.gpus)} {place.slice or place.mode}"


def _change(place: Placement, old: Placement | None) -> str:
    if old is None:
        return "new"
    if (old.host, old.mode, old.gpus, old.slice) != (place.host, place.mode, place.gpus, place.slice):
        return f"moved from {_at(old)}"
    return "kept" if old.ports == place.ports else "kept, other ports"
