# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which order a host's services are served, so that whoever takes a port or room comes after the one that gives it up. Pure.

A service is served as a whole, its replicas in the order of their numbers. Until then what runs of it publishes its old ports and holds
what it was started with. Where all wait for each other, one is stopped before anybody is served: an outage, and it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import held_by, published
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need, Placement, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import Moment

Key = tuple[str, int]


@dataclass(frozen=True)
class Turns:
    """``services`` in their order; ``yields``: replicas that are stopped before, because all wait for each other."""

    services: tuple[str, ...]
    yields: tuple[str, ...]


def serving_turns(
    site: Site, needs: Mapping[str, Need], rolling: Collection[str], standing: Collection[str], host: Callable[[], Host] | None
) -> Turns:
    """``rolling``: replicas that run and are started anew. ``standing``: those that would be and are left as they are. ``host``: says how
    it is; None where nothing changes but ports, so that it need not be looked at.

    Those of which a version changes come first, for where one shrinks others may come into what it gives up.
    """
    plan = {place.name: place for place in site.plan.placements}
    lines = {name_of(line): line for line in site.plan.data["services"]}
    changing = {str(lines[name]["service"]) for name in rolling if name in lines}
    ports = _published(site)
    running = {name: place for name, place in plan.items() if name not in site.stopped and (name in ports or not managed(lines[name]))}
    now = {
        _key(place): replace(place, ports=tuple(("", port) for port in sorted(ports.get(name, {port for _name, port in place.ports}))))
        for name, place in running.items()
    }
    old = {*rolling, *standing}
    held = {_key(place): site.last[name].held for name, place in running.items() if name in site.last and name in old}
    problem = Problem((host() if host is not None else Host(site.name, "", ()),), tuple(needs.values()))
    moment = Moment(problem, needs, now, held)
    by_service: dict[str, list[Placement]] = {}
    for name, line in lines.items():
        if managed(line):
            by_service.setdefault(str(line["service"]), []).extend([] if name in standing else [plan[name]])
    waiting = sorted(by_service, key=lambda service: service not in changing)
    order: list[str] = []
    yields: list[str] = []
    while waiting:
        able = next((service for service in waiting if _after(moment, by_service[service]) is not None), None)
        if able is None and (who := _in_the_way(moment, waiting, by_service, needs, rolling)) is not None:
            for place in by_service[who]:
                if place.name in rolling:
                    moment.remove(_key(place))
                    yields.append(place.name)
            continue
        chosen = able or waiting[0]
        moment = _after(moment, by_service[chosen], force=True) or moment
        waiting.remove(chosen)
        order.append(chosen)
    return Turns(tuple(order), tuple(yields))


def amounts_change(site: Site, needs: Mapping[str, Need], rolling: Collection[str]) -> bool:
    """Does a replica that is started anew hold something else from then on?"""
    services = {name_of(line): str(line["service"]) for line in site.plan.data["services"]}
    return any(
        name in rolling and services.get(name) in needs and each.held != held_by(needs[services[name]]) for name, each in site.last.items()
    )


def _key(place: Placement) -> Key:
    return place.service, place.replica


def _published(site: Site) -> dict[str, set[int]]:
    """Of each project that runs the ports that it has on the host; as the last plan says where nobody tells of containers."""
    told = site.facts.get("containers") is not None
    return published(site.facts) if told else {name: set(last.ports) for name, last in site.last.items()}


def _after(moment: Moment, places: Sequence[Placement], force: bool = False) -> Moment | None:
    """As it is when these were served one after the other; None where one has no room then, unless it is to be (``force``)."""
    after = moment.copy()
    for place in places:
        key = _key(place)
        if not force and not after.fits(key, place):
            return None
        after.remove(key)
        after.add(key, place)
    return after


def _in_the_way(
    moment: Moment,
    waiting: Sequence[str],
    by_service: Mapping[str, Sequence[Placement]],
    needs: Mapping[str, Need],
    rolling: Collection[str],
) -> str | None:
    """The service of the lowest priority, and of these the last one, that has to stop so that another can be served; the lowest where
    it takes several. None where nobody could be served however many stop."""

    def helps(services: Sequence[str]) -> bool:
        without = moment.copy()
        for key in (key for service in services for key in keys[service]):
            without.remove(key)
        return any(_after(without, by_service[other]) is not None for other in waiting)

    keys = {
        service: [_key(place) for place in by_service[service] if place.name in rolling and _key(place) in moment.running]
        for service in waiting
    }
    able = [service for service in waiting if keys[service]]
    lowest = sorted(enumerate(able), key=lambda each: (needs[each[1]].priority if each[1] in needs else 0, -each[0]))
    one = next((service for _turn, service in lowest if helps([service])), None)
    return one or (lowest[0][1] if lowest and helps(able) else None)
