# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How new versions come to a host: service by service, beside the old one where there is room. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import device_of, managed, name_of, surge_name
from ansible_collections.gpuops.fleet.plugins.module_utils.versions import FAILED
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import HostPlan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.serving_turns import amounts_change, serving_turns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site, Surge, Surges

Data = Mapping[str, t.Any]
#: Why a replica is stopped before it is its turn.
YIELDS: t.Final = "others wait for a port or room that it gives up, and it for theirs"


def host_rollouts(
    site: Site,
    changed: Collection[str],
    found: Iterable[str] = (),
    resting: Mapping[str, Data] | None = None,
    only: str | None = None,
    versions: Mapping[str, Data] | None = None,
) -> dict[str, t.Any]:
    """What the play on one host is told.

    ``changed``: replicas that would get other files. ``found``: projects of surges whose directories are on the host. ``resting``: services
    that somebody stopped: ``by``, ``since`` and ``reason``. ``only``: the one service that is served. ``versions``: of each replica the
    ``versions`` that the host keeps and the number of the ``serving`` one; what failed here last is then not rolled again. Returns
    ``layout`` (the plan's, with the slices of surges that are there still), ``restore``, ``gone`` (surges that are in the plan's way, or
    of which only files are left), ``moved`` (replicas that run and get another place here), ``lines`` for people, ``held`` (a line for each
    service of which replicas serve on by an earlier version), ``yields`` (replicas that are stopped before any service is served, because
    others wait for a port or room that they give up, and they for theirs) and, in their turns, ``services``: for each ``service`` that is
    served ``replicas`` (without those of ``held``), ``rolled`` (those that run until then and would get other files), ``left`` (its surge
    is there still), ``surge`` (:meth:`Surge.data`, empty without room), ``reason`` and ``line``.
    """
    surges = Surges(site)
    left = surges.leftovers()
    services = []
    held: dict[str, str] = {}
    rests = {} if resting is None else resting
    rolling = {name_of(line): str(line["service"]) for line in site.plan.data["services"] if name_of(line) in changed}
    rolling = {name: service for name, service in rolling.items() if site.running(name) is not False}
    served = [service for service in site.services() if service not in rests and only in (None, service)]
    failed = {service: why for service in served if service in rolling.values() and (why := _failed_last(site, service, versions or {}))}
    standing = {name for name, service in rolling.items() if service in failed or service not in served}
    needs = surges.needs
    turns = serving_turns(site, needs, rolling.keys() - standing, standing, surges.host if amounts_change(site, needs, rolling) else None)
    old = set(rolling)
    for service in turns.services:
        if service not in served:
            continue
        replicas = [name_of(line) for line in site.plan.data["services"] if line["service"] == service]
        rolled = [name for name in replicas if name in rolling]
        if rolled and service in failed:
            held[service] = f"{', '.join(rolled)}: {failed[service]}"
            replicas, rolled = [name for name in replicas if name not in rolled], []
        yields = [name for name in rolled if name in turns.yields]
        place: Surge | str = "" if not rolled and service not in left else YIELDS if yields else surges.place(service, old)
        old.difference_update(replicas)
        services.append(
            {
                "service": service,
                "replicas": replicas,
                "rolled": [name for name in rolled if name not in yields],
                "left": service in left,
                "surge": place.data(service) if isinstance(place, Surge) else {},
                "reason": place if isinstance(place, str) else "",
                "line": _line(site, rolled, place) if rolled else "",
            }
        )
    kept = {surge_name(service) for service in left}
    stray = {str(box.get("project")) for box in site.facts.get("containers") or ()} & {surge_name(name) for name in site.services()}
    return {
        "layout": surges.layout(),
        "restore": surges.restore(),
        "gone": sorted({*found, *stray} - kept),
        "moved": [
            name_of(line)
            for line in site.plan.data["services"]
            if name_of(line) in site.stopped and line["service"] not in rests and site.running(name_of(line)) is not False
        ],
        "yields": list(turns.yields),
        "held": held,
        "lines": [
            *(str(each["line"]) for each in services if each["line"]),
            *(f"{name} on {site.name} is {_stop_words(rests[name])}, and is left so" for name in site.services() if name in rests),
        ],
        "services": services,
    }


def _failed_last(site: Site, service: str, versions: Mapping[str, Data]) -> str:
    """Why the wished version of a service is not tried again; empty unless it was the last that failed here, and an earlier one serves."""
    for line in site.plan.data["services"]:
        known = versions.get(name_of(line), {})
        last = (known.get("versions") or [{}])[-1]
        wished = line["service"] == service and (last.get("outcome"), last.get("digest")) == (FAILED, line["manifest"])
        if wished and known.get("serving") is not None:
            tried = f"version {last['number']} failed here at {last['since']} ({last['reason']}) and is not tried again"
            return f"{tried}; version {known['serving']} serves on. Change the manifest, or try it again by playbook deploy"
    return ""


def _stop_words(stop: Data) -> str:
    reason = f" ({stop['reason']})" if stop.get("reason") else ""
    return f"stopped by {stop['by']}{reason} since {stop['since']}"


def _line(site: Site, rolled: Collection[str], place: Surge | str) -> str:
    names, what = ", ".join(rolled), "other ports" if _same_version(site, rolled) else "new version"
    if isinstance(place, Surge):
        return f"{names}: {what}; beside the old one on {site.name} {place.where}"
    return f"{names}: {what}; stop first on {site.name}: {place}"


def _same_version(site: Site, rolled: Collection[str]) -> bool:
    """Are they started anew for nothing but other ports?"""
    lines = {name_of(line): line for line in site.plan.data["services"]}
    return all(
        (last := site.last.get(name)) is not None
        and last.manifest == lines[name]["manifest"]
        and last.ports != frozenset(lines[name]["ports"].values())
        for name in rolled
    )


def changed_in_place(plan: HostPlan, last: HostPlan) -> list[str]:
    """Replicas that the plan leaves where the last one had them, with another manifest or other ports."""
    before = {name_of(line): line for line in last.data["services"] if managed(line)}
    return [
        name_of(line)
        for line in plan.data["services"]
        if managed(line)
        and (old := before.get(name_of(line))) is not None
        and device_of(old) == device_of(line)
        and (old["manifest"], old["ports"]) != (line["manifest"], line["ports"])
    ]


def who_leaves(plan: HostPlan, last: HostPlan) -> list[str]:
    """Replicas that the last plan had here and that this one has elsewhere or not at all: they are stopped before anything is rolled."""
    stay = {name_of(line): device_of(line) for line in plan.data["services"]}
    return [name_of(line) for line in last.data["services"] if managed(line) and stay.get(name_of(line)) != device_of(line)]
