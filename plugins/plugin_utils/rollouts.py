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
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site, Surge, Surges

Data = Mapping[str, t.Any]


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
    service of which replicas serve on by an earlier version) and ``services``: for each ``service`` that is served ``replicas`` (without
    those), ``rolled`` (those that run and would get other files), ``left`` (its surge is there still), ``surge`` (:meth:`Surge.data`, empty
    without room), ``reason`` and ``line``.
    """
    surges = Surges(site)
    left = surges.leftovers()
    services = []
    held: dict[str, str] = {}
    rests = {} if resting is None else resting
    rolling = {name for name in map(name_of, site.plan.data["services"]) if name in changed and site.running(name) is not False}
    for service in _in_turn(site, rolling):
        if service in rests or only not in (None, service):
            continue
        replicas = [name_of(line) for line in site.plan.data["services"] if line["service"] == service]
        rolled = [name for name in replicas if name in rolling]
        if rolled and (failed := _failed_last(site, service, versions or {})):
            held[service] = f"{', '.join(rolled)}: {failed}"
            replicas, rolled = [name for name in replicas if name not in rolled], []
        place = surges.place(service) if rolled or service in left else ""
        services.append(
            {
                "service": service,
                "replicas": replicas,
                "rolled": rolled,
                "left": service in left,
                "surge": place.data(service) if isinstance(place, Surge) else {},
                "reason": place if isinstance(place, str) else "",
                "line": _line(site.name, rolled, place) if rolled else "",
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
        "held": held,
        "lines": [
            *(str(each["line"]) for each in services if each["line"]),
            *(f"{name} on {site.name} is {_stop_words(rests[name])}, and is left so" for name in site.services() if name in rests),
        ],
        "services": services,
    }


def _in_turn(site: Site, rolling: Collection[str]) -> list[str]:
    """The services in the plan's order, those first of which a version changes: where one shrinks, others may come into what it gives up.
    One that gets a port which another gives up comes after that one."""
    lines = [line for line in site.plan.data["services"] if managed(line)]
    changing = {str(line["service"]) for line in lines if name_of(line) in rolling}
    asked: dict[str, set[int]] = {}
    for line in lines:
        asked.setdefault(str(line["service"]), set()).update(line["ports"].values())
    projects = {name_of(line): str(line["service"]) for line in lines}
    publish: dict[int, set[str]] = {}
    for box in site.facts.get("containers") or ():
        if (service := projects.get(str(box.get("project")))) is not None:
            for port in box.get("ports") or ():
                publish.setdefault(port.get("host"), set()).add(service)
    order, waiting = list[str](), sorted(site.services(), key=lambda service: service not in changing)
    while waiting:
        held = {one for one in waiting if any(publish.get(port, set()).intersection(waiting) - {one} for port in asked[one])}
        # Those who wait for each other in a circle go on in the plan's order.
        order.append(next((one for one in waiting if one not in held), waiting[0]))
        waiting.remove(order[-1])
    return order


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


def _line(host: str, rolled: Collection[str], place: Surge | str) -> str:
    names = ", ".join(rolled)
    if isinstance(place, Surge):
        return f"{names}: new version; beside the old one on {host} {place.where}"
    return f"{names}: new version; stop first on {host}: {place}"


def changed_in_place(plan: HostPlan, last: HostPlan) -> list[str]:
    """Replicas that the plan leaves where the last one had them, with another manifest."""
    before = {name_of(line): line for line in last.data["services"] if managed(line)}
    return [
        name_of(line)
        for line in plan.data["services"]
        if managed(line)
        and (old := before.get(name_of(line))) is not None
        and device_of(old) == device_of(line)
        and old["manifest"] != line["manifest"]
    ]


def who_leaves(plan: HostPlan, last: HostPlan) -> list[str]:
    """Replicas that the last plan had here and that this one has elsewhere or not at all: they are stopped before anything is rolled."""
    stay = {name_of(line): device_of(line) for line in plan.data["services"]}
    return [name_of(line) for line in last.data["services"] if managed(line) and stay.get(name_of(line)) != device_of(line)]
