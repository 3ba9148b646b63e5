# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes as a GitLab child pipeline: jobs a service and host, in an order that keeps what serves serving (docs/gitlab.md)."""

from __future__ import annotations

import itertools
import math
import typing as t
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import gateway
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_order import move_waits, turns_of, waits
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline import Changes, Service, Work

Data = Mapping[str, t.Any]

# The hidden jobs that a template has to have (ci/child.yml), each with what is to be run.
TEMPLATES = (
    ".fleet-deploy",
    ".fleet-remove",
    ".fleet-carry-out",
    ".fleet-layout",
    ".fleet-gateways",
    ".fleet-stop",
    ".fleet-rollback",
    ".fleet-approve",
    ".fleet-nothing",
    ".fleet-frozen",
)
STAGES = ("approve", "free", "deploy", "after")
# GitLab's words for how much an environment matters; any other name is "other".
TIERS = ("production", "staging", "testing", "development")


@dataclass(frozen=True)
class Settings:
    """How a site wants its child pipelines.

    ``parent`` and ``job``: pipeline and job whose artifacts the jobs take; without a parent they take none. ``gated``: environments
    whose changes a person lets through. ``gateway``: how the gateways are set up, and ``own_name`` what one of them is called, for
    addresses. ``addresses``: host -> name in an address.
    ``gateways``: the fleet has some. They are brought up to the plans when replicas have come, before those that moved leave their old
    host.
    """

    parent: str = ""
    job: str = "plan"
    gated: Collection[str] = ("production",)
    gateway: gateway.Settings = field(default_factory=gateway.Settings)
    own_name: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    gateways: bool = False


def child_pipeline(changes: Changes, plans: Mapping[str, Data], template: tuple[str, str], settings: Settings) -> str:
    """The child pipeline as YAML: the hidden jobs of ``template`` (path, text), then the jobs. Same input, same bytes.

    :raises FleetError: the template is not one, or a hidden job is missing.
    """
    located = read_yaml(template[1], template[0])
    for name in TEMPLATES:
        if not isinstance(located.data.get(name), Mapping):
            raise located.error((), f"the hidden job '{name}' is missing", "take the collection's ci/child.yml and change that")
    head = {key: value for key, value in located.data.items() if key != "variables"}
    jobs = _jobs(changes, plans, settings)
    clash = sorted({*head} & {*jobs})
    if clash:
        raise located.error((clash[0],), "a job of this name is generated", "give it another name")
    variables = {**(located.data.get("variables") or {}), **settings.variables}
    stages = list(dict.fromkeys([*(head.pop("stages", None) or STAGES), *STAGES]))
    content = {"stages": stages, **({"variables": variables} if variables else {}), **head, **jobs}
    return "---\n# Written by gpuops.fleet.pipeline for one pipeline.\n" + yaml.safe_dump(
        content, sort_keys=False, width=150, allow_unicode=True
    )


def _jobs(changes: Changes, plans: Mapping[str, Data], settings: Settings) -> dict[str, t.Any]:
    if not changes.work and not changes.layouts:
        return {"nothing to deploy": {"extends": ".fleet-nothing", "stage": "deploy"}}
    jobs: dict[str, t.Any] = {"frozen": {"extends": ".fleet-frozen", "stage": "approve"}}
    gates = {name: f"approve {name}" for name in sorted({work.service for work in changes.work}) if _gated(changes, name, settings)}
    for name, gate in gates.items():
        why = sorted({f"{work.host}: {work.why}" for work in changes.work if work.service == name})
        jobs[gate] = {"extends": ".fleet-approve", "stage": "approve", "variables": {"FLEET_SERVICE": name, "FLEET_WHY": "; ".join(why)}}
    steps = steps_of(changes.work)
    before = needs_of(steps, changes)
    first = {step.host: step.job for step in steps}
    # Requests go to the new place of a replica before it leaves the old one.
    leaving = {step.host for step in steps if settings.gateways and step.leaves and before[step.host]}
    for step in steps:
        needs = [gates[name] for name in sorted({work.service for work in step.works} & {*gates})]
        needs += [first[host] for host in sorted(before[step.host])] + (["gateways"] if step.host in leaving else [])
        if len(step.works) > 1:
            jobs[step.job] = _together(step, plans, needs, settings)
            needs = [step.job]
        for work in step.works:
            stage = "after" if len(step.works) > 1 or (step.leaves and before[step.host]) else "free" if step.leaves else "deploy"
            jobs[name_of(work)] = _job(work, stage, changes.services.get(work.service), plans, needs, settings)
    for host in changes.layouts:
        words = {"FLEET_HOST": host, "FLEET_PLAN": _serial(plans, host)}
        jobs[f"partition {host}"] = {
            "extends": ".fleet-layout",
            "stage": "deploy",
            "variables": words,
            "resource_group": f"fleet/{host}",
            "needs": _needs([], settings),
        }
    if settings.gateways and steps:
        come = [step.job for step in steps if step.host not in leaving]
        jobs["gateways"] = {
            "extends": ".fleet-gateways",
            "stage": "after",
            "resource_group": "fleet/gateways",
            "needs": _needs(come, settings),
        }
    deployed = [work for work in changes.work if work.kind == "deploy"]
    for work in deployed:
        jobs[f"stop {work.service} on {work.host}"] = _stop(work, changes.services.get(work.service), settings)
    for name in sorted({work.service for work in deployed}):
        jobs[f"rollback {name}"] = {
            "extends": ".fleet-rollback",
            "stage": "after",
            "variables": {"FLEET_SERVICE": name},
            "resource_group": f"fleet/rollback/{name}",
            "needs": _needs([], settings),
        }
    return jobs


def name_of(work: Work) -> str:
    """``deploy receipt-ocr on gpu-prod-01``."""
    return f"{work.kind} {work.service} {'from' if work.kind == 'remove' else 'on'} {work.host}"


def _gated(changes: Changes, name: str, settings: Settings) -> bool:
    """An environment that nobody knows any more (a removed service of before) may have been one that needs a yes."""
    service = changes.services.get(name)
    return service is None or not service.environment or service.environment in settings.gated


@dataclass(frozen=True)
class Step:
    """All that is to be done on one host. Its plan is one thing, and carried out as one: it says who is stopped for whose slice."""

    host: str
    works: tuple[Work, ...]

    @property
    def job(self) -> str:
        """The job that does it: the one of its only service, or one of its own, which those of the services then confirm."""
        return name_of(self.works[0]) if len(self.works) == 1 else f"carry out {self.host}"

    @property
    def leaves(self) -> bool:
        """Does it only free room?"""
        return all(work.kind == "remove" for work in self.works)


def steps_of(work: Collection[Work]) -> list[Step]:
    """One step a host: those that only free room first, then by name."""
    hosts = sorted({each.host for each in work})
    steps = [Step(host, tuple(sorted((each for each in work if each.host == host), key=lambda each: each.service))) for host in hosts]
    return sorted(steps, key=lambda step: (not step.leaves, step.host))


def needs_of(steps: Collection[Step], changes: Changes) -> dict[str, set[str]]:
    """Host -> the hosts that come before it.

    1. A host that a replica leaves for another one waits until it is there; so does one that a service leaves altogether.
    2. A service goes from host to host, one at a time: a version that fails stops at the first.

    What would close a circle (services change places between hosts) is left out, as the plan's outages say it: the lowest priority stops.
    On one host the play itself stops who leaves a slice before anybody comes to it.
    """
    hosts = sorted(step.host for step in steps)
    coming: dict[str, list[str]] = {}
    for step in sorted(steps, key=lambda step: step.host):
        for work in step.works:
            if work.kind == "deploy":
                coming.setdefault(work.service, []).append(step.host)
    moves = [(each.name, each.before[0], each.after[0]) for each in changes.replicas if each.before and each.after]
    priorities = {name: service.priority for name, service in changes.services.items()}
    wanted = [pair for pair in move_waits(moves, priorities) if {*pair} <= {*hosts}]
    for step in sorted(steps, key=lambda step: step.host):
        wanted += [(step.host, host) for work in step.works if work.kind == "remove" for host in coming.get(work.service, ())]
    turns = turns_of(waits(hosts, wanted))
    for several in coming.values():
        in_turn = sorted(several, key=lambda host: (turns[host], host))
        wanted += [(later, earlier) for earlier, later in itertools.pairwise(in_turn)]
    return waits(hosts, wanted)


def _together(step: Step, plans: Mapping[str, Data], needs: Collection[str], settings: Settings) -> dict[str, t.Any]:
    return {
        "extends": ".fleet-carry-out",
        "stage": "deploy",
        "variables": {
            "FLEET_HOST": step.host,
            "FLEET_PLAN": _serial(plans, step.host),
            "FLEET_WHY": "; ".join(f"{work.service}: {work.why}" for work in step.works),
        },
        "resource_group": f"fleet/{step.host}",
        "needs": _needs(needs, settings),
    }


def _needs(names: Collection[str], settings: Settings) -> list[t.Any]:
    parent = [{"pipeline": settings.parent, "job": settings.job}] if settings.parent else []
    return [*parent, *({"job": name} for name in names)]


def _serial(plans: Mapping[str, Data], host: str) -> str:
    return str(plans[host]["serial"]) if host in plans else "0"


def _job(
    work: Work, stage: str, service: Service | None, plans: Mapping[str, Data], needs: Collection[str], settings: Settings
) -> dict[str, t.Any]:
    job: dict[str, t.Any] = {
        "extends": f".fleet-{work.kind}",
        "stage": stage,
        "variables": {
            "FLEET_SERVICE": work.service,
            "FLEET_HOST": work.host,
            "FLEET_PLAN": _serial(plans, work.host),
            "FLEET_WHY": work.why,
        },
        "resource_group": f"fleet/{work.host}",
        "needs": _needs(needs, settings),
    }
    environment = _environment(work, service)
    if work.kind == "remove":
        return {**job, "environment": {**environment, "action": "stop"}} if environment else job
    address = address_of(service, work.host, plans, settings) if service else ""
    if environment:
        job["environment"] = {
            "name": environment["name"],
            **({"url": address} if address else {}),
            "deployment_tier": service.environment if service and service.environment in TIERS else "other",
            "on_stop": f"stop {work.service} on {work.host}",
            # Told to GitLab so that people see when it ends; the host's own agent is the one that ends it.
            **({"auto_stop_in": f"{math.ceil(service.lease_hours)} hours"} if service and service.lease_hours else {}),
        }
    return job


def _stop(work: Work, service: Service | None, settings: Settings) -> dict[str, t.Any]:
    environment = _environment(work, service)
    return {
        "extends": ".fleet-stop",
        "stage": "after",
        "variables": {"FLEET_SERVICE": work.service, "FLEET_HOST": work.host},
        "resource_group": f"fleet/{work.host}",
        **({"environment": {**environment, "action": "stop"}} if environment else {}),
        "needs": _needs([], settings),
    }


def _environment(work: Work, service: Service | None) -> dict[str, str]:
    if service is None or not service.environment:
        return {}
    return {"name": f"{service.environment}/{work.service}/{work.host}"}


def address_of(service: Service, host: str, plans: Mapping[str, Data], settings: Settings) -> str:
    """Where people find the service: at the gateway where it has a route, else at the first port of its first replica on that host."""
    route = service.route
    if route is not None:
        name, path = gateway.place_of(service.name, route["host"], route["path"], settings.gateway)
        if name or settings.gateway.name or settings.gateway.domain or settings.own_name:
            return gateway.url_of(name, path or "/", settings.gateway, settings.own_name)
    for line in (plans.get(host) or {"services": []})["services"]:
        if line["service"] == service.name:
            for port in service.ports:
                if port in line["ports"]:
                    return f"http://{settings.addresses.get(host) or host}:{line['ports'][port]}/"
    return ""


def variables_of(value: t.Any) -> dict[str, str]:
    """Variables for the head of a child pipeline. :raises FleetError: a name or a value is not one."""
    if not all(isinstance(key, str) and isinstance(entry, str | int) for key, entry in value.items()):
        raise FleetError("not variables of a pipeline", field="variables", hint="write NAME: text, one a line")
    return {key: str(entry) for key, entry in sorted(value.items())}
