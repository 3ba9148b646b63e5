# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of manifests about where replicas may be beside others (docs/manifest.md): checked for the whole fleet, and asked host by host."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest


class Rulebook:
    """The rules of all needs together: ``apart`` holds both ways, whichever service says it."""

    def __init__(self, needs: Iterable[Need]) -> None:
        every = list(needs)
        apart: dict[str, set[str]] = {}
        self.anchors: frozenset[str] = frozenset(other for need in every for other in need.rules.together)
        self._level: dict[str, int] = {}
        for need in every:
            for other in need.rules.apart:
                apart.setdefault(need.service, set()).add(other)
                apart.setdefault(other, set()).add(need.service)
        self._apart = {service: tuple(sorted(others)) for service, others in apart.items()}
        self._together = {need.service: need.rules.together for need in every if need.rules.together}
        # Services that go together with others, in order.
        self.followers = sorted(self._together)
        self._turn = self._turns(every)

    def _turns(self, needs: Sequence[Need]) -> dict[str, tuple[int, int]]:
        """(Priority that counts for its turn, after how many others it comes): whoever others need beside them comes before them."""
        priority = {need.service: need.priority for need in needs}
        level = dict.fromkeys(priority, 0)
        for _round in needs if self._together else ():
            before = (dict(priority), dict(level))
            for service, others in self._together.items():
                for other in (each for each in others if each in priority):
                    priority[other] = max(priority[other], priority[service])
                    level[service] = min(max(level[service], level[other] + 1), len(needs))
            if before == (priority, level):
                break
        return {service: (priority[service], level[service]) for service in priority}

    def turn(self, need: Need) -> tuple[int, int]:
        """As :meth:`_turns` says; a need that no manifest has comes by its own priority."""
        return self._turn.get(need.service, (need.priority, 0))

    def apart(self, need: Need) -> tuple[str, ...]:
        """Services that are never on a host with this one."""
        return self._apart.get(need.service, need.rules.apart)

    def alone(self, need: Need) -> bool:
        """Is whether it has a place a question of this very service, and not of any that asks for the same?"""
        rules = need.rules
        hard = rules.max_per_host is not None or rules.max_per_gpu is not None or bool(rules.together)
        return hard or bool(self.apart(need))

    def refusal(self, need: Need, there: Mapping[str, int], together: bool = True) -> str | None:
        """Why one more replica is not right on a host that has ``there`` (service -> replicas). ``together``: is that asked too?"""
        rules = need.rules
        if rules.max_per_host is not None and there.get(need.service, 0) >= rules.max_per_host:
            return f"has {there.get(need.service, 0)} of it already (max_per_host)"
        other = next((name for name in self.apart(need) if there.get(name, 0) > 0), None)
        if other is not None:
            return f"{other} is there, which stays apart from it"
        if together and rules.together and not any(there.get(name, 0) > 0 for name in rules.together):
            return f"{' or '.join(rules.together)} is not there, which it goes together with"
        return None


def mistakes(manifests: Sequence[Manifest], teams: Iterable[str]) -> list[FleetError]:
    """What is wrong between manifests, or between them and the quotas: a service or a team that nobody knows, a circle.

    ``teams``: those of ``fleet_quotas``; nothing is said about teams when there are none.
    """
    by_name = {manifest.service: manifest for manifest in manifests}
    known_teams = sorted(teams)
    errors: list[FleetError] = [*_one_address(manifests)]
    for manifest in manifests:
        rules, route = manifest.model.placement, manifest.model.route
        named = [
            (("team",), manifest.model.team),
            *((("route", "teams", at), team) for at, team in enumerate(route.teams if route else ())),
        ]
        for place, team in named if known_teams else ():
            if team not in known_teams:
                hint = near(team, known_teams, f"add it to fleet_quotas, which has {', '.join(known_teams[:5])}")
                errors.append(manifest.located.error(place, f"no quota names the team '{team}'", hint))
        for field, others in (("apart", rules.apart), ("together", rules.together)):
            for index, other in enumerate(others):
                where = ("placement", field, index)
                if other not in by_name:
                    hint = near(other, sorted(by_name), "take it out, or add its manifest")
                    errors.append(manifest.located.error(where, f"there is no service '{other}'", hint))
                elif field == "together" and manifest.service in by_name[other].model.placement.apart:
                    wrong = f"'{other}' stays apart from this service, as its own manifest says"
                    errors.append(manifest.located.error(where, wrong, "take it out of one of the two"))
                elif field == "together" and by_name[other].model.environment != manifest.model.environment:
                    wrong = f"'{other}' is in the environment '{by_name[other].model.environment}', and this service never is"
                    errors.append(manifest.located.error(where, wrong, "give both the same environment, or take it out"))
        if (circle := _circle(manifest.service, by_name)) is not None:
            wrong = f"{' -> '.join(circle)}: each waits for the next"
            errors.append(manifest.located.error(("placement", "together"), wrong, "write it in one of them only"))
    return errors


def _one_address(manifests: Iterable[Manifest]) -> Iterator[FleetError]:
    """Services of one environment whose manifests write the same address. What the gateways' own domain makes of it, they see themselves
    (``gateway.py``)."""
    seen: dict[tuple[str | None, ...], str] = {}
    for manifest in manifests:
        route = manifest.model.route
        if route is not None and (route.host or route.path):
            first = seen.setdefault((manifest.model.environment, route.host, route.path), manifest.service)
            if first != manifest.service:
                wrong = f"service '{first}' has the same address {route.host or ''}{route.path or ''}"
                yield manifest.located.error(("route",), wrong, "give each service its own host or path")


def _circle(service: str, by_name: Mapping[str, Manifest]) -> list[str] | None:
    """The way from a service back to itself by ``together``; told by the first of its services only."""
    ways = [[service]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for other in by_name[way[-1]].model.placement.together if way[-1] in by_name else ():
            if other == service:
                return [*way, service] if service == min(way) else None
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return None
