# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans that only find something out: of as little of the fleet as will do, and within an amount of work for all of them together."""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import offers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need, Placement, Problem, Solution, carried_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quota_changes import TeamBooks
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

#: From how many without a place on the others are asked together.
MANY: t.Final = 24
Key = tuple[str, int]


def waiting_in(problem: Problem) -> int:
    """One more than the replicas that nothing says of where they are: what a plan costs grows with them."""
    return max(sum(need.replicas for need in problem.needs) - len(problem.previous), 0) + 1


def serving(problem: Problem, solution: Solution) -> set[Key]:
    """Who serves in a plan: whoever has a place, and whoever has no better one than on a drained GPU and stays there."""
    up = {host.name for host in problem.hosts if not host.down}
    stay = (place for place in solution.waiting if place.host in up)
    return {(place.service, place.replica) for place in (*solution.placements, *stay)}


class Trials:
    """What is known of a solution, and trial plans of parts of it.

    ``budget`` and ``left``: the work for all of them, and what may still be spent; ``share``: what one of them may take. ``many``: so many
    have no place that most are only served by what serves all.
    """

    def __init__(self, problem: Problem, solution: Solution, leases: Mapping[str, str], budget: int) -> None:
        self.now = carried_out(problem, solution)
        self.solution = solution
        self.many = len(solution.unplaced) > MANY and len(solution.unplaced) * len(problem.hosts) > 16 * MANY
        self.budget = self.left = budget // 2 if self.many else budget
        # No single plan may take so much that nothing is left for the others.
        self.share = self.budget // 10
        self.scene = Scene(self.now, solution, leases)
        self.books = TeamBooks(self.now, self.scene)
        self.placed = {(place.service, place.replica) for place in solution.placements}
        self.serving = serving(self.now, solution)
        self.missing: dict[str, int] = {}
        for each in solution.unplaced:
            self.missing[each.service] = self.missing.get(each.service, 0) + 1
        # Services that wait and could have no place by what is tried: plans do without them.
        self.aside: frozenset[str] = frozenset()
        self.earlier: dict[tuple[str, int, str], set[str]] = {}
        self.on_host: dict[str, set[str]] = {}
        self.at: dict[str, list[Placement]] = {}
        for place in self.now.previous:
            self.on_host.setdefault(place.host, set()).add(place.service)
            self.at.setdefault(place.service, []).append(place)
        # Of a service that is only there, nobody new is looked for.
        last = {service: max(place.replica for place in places) for service, places in self.at.items()}
        self.trimmed = {
            each.service: each if each.replicas <= last[each.service] else replace(each, replicas=last[each.service])
            for each in self.now.needs
            if each.service in last
        }

    def room_for(self, need: Need, wanted: Need, host: str, targets: Sequence[int]) -> set[int] | None:
        """Whom of a service there is room for, with everybody where the plan has them, if it asked for ``wanted`` instead; None where the
        targets are not among them. ``host``: where the first one would be, '' for anywhere. All of them are told only where each would have
        a host of its own, and no quota counts."""
        fleet, name = self.scene.fleet, replica_name(need.service, targets[0])

        def able(hosts: Iterable[HostState]) -> Iterator[HostState]:
            found = (offer.host for offer in offers(fleet, wanted, hosts) if not in_the_way(fleet, offer.host, wanted))
            return (each for each in found if not isinstance(each.choose_ports(wanted, name, {}, fleet.asked), str))

        hosts, count = list(fleet.hosts.values()), 1 if self.books.limits(need) else self.missing[need.service]
        self.left -= len(hosts) if count > 1 or not host else 1
        if next(able([fleet.hosts[host]] if host else hosts), None) is None:
            return None
        served = set(targets[:1])
        if count > 1 and len(list(itertools.islice(able(hosts), count))) == count:
            served = {each.replica for each in self.solution.unplaced if each.service == need.service}
        return served if served.issuperset(targets) else None

    def reduced(self, need: Need, hosts: set[str] | None) -> Problem:
        """The problem with only who matters: whoever is on these hosts (on all without any named), and who waits and comes before this one.

        Whoever has a place on a host that is left out keeps it, as in every run that does not see a host.
        """
        # Whom it goes together with has to be there first, whatever comes before.
        asking = {need.service, *self._before(need).union(self.missing.keys() & set(need.rules.together)) - self.aside}
        there = self.trimmed
        if hosts is not None:
            here = {service for host in hosts for service in self.on_host.get(host, ())}
            there = {service: self.trimmed[service] for service in sorted(here & self.trimmed.keys())}
        needs = {**there, **{service: self.scene.needs[service] for service in sorted(asking)}}
        if hosts is None:
            return replace(self.now, needs=tuple(needs.values()), previous=self._everywhere)
        seen = tuple(each for each in self.now.hosts if each.name in hosts)
        return replace(self.now, hosts=seen, needs=tuple(needs.values()), previous=self._places_of(needs, seen))

    @cached_property
    def _everywhere(self) -> tuple[Placement, ...]:
        """The last places of all services, where all hosts are looked at: on a large fleet it is much to put together."""
        return self._places_of(self.trimmed, self.now.hosts)

    def _places_of(self, services: Iterable[str], hosts: Iterable[Host]) -> tuple[Placement, ...]:
        """The last places of services that a plan of these hosts has to know.

        Whoever waits for a better place on a host that is left out would seem to have one that is right there, and comes before those who
        are asked about: without it.
        """
        names = {each.name for each in hosts}
        places = (place for each in services for place in self.at.get(each, ()))
        return tuple(place for place in places if place.host in names or (place.service, place.replica) in self.placed)

    def _before(self, need: Need) -> set[str]:
        """Services that lack a place, are not after this one, and could take what it needs: on hosts of its environment, or of a quota."""
        purse = self.books.purse(need)
        key = (need.environment, need.priority, purse)
        if key not in self.earlier:
            known = (self.scene.needs[service] for service in self.missing)
            self.earlier[key] = {
                each.service
                for each in known
                if each.priority >= need.priority and (each.environment == need.environment or (purse and self.books.purse(each) == purse))
            }
        return self.earlier[key]

    def plan(self, problem: Problem, seen: set[str] | None = None) -> Solution | None:
        """A plan, if there is work left for it. ``seen``: as :meth:`TeamBooks.shifted`."""
        return make_plan(self.books.shifted(problem, seen), trial=True) if self.affords(problem) else None

    def affords(self, problem: Problem, most: int | None = None) -> bool:
        """Is there work left for a plan? Then it is spent. ``most``: that one plan may take, :attr:`share` unless it is said."""
        waiting = waiting_in(problem)
        # Whoever finds no place looks for others who could make room, too; and quotas are asked for every single profile.
        search = 3 if problem.moves or problem.preemption else 1
        work = 2 * search * waiting * (len(problem.hosts) + 1) + 10 * len(problem.previous) + sum(len(host.gpus) for host in problem.hosts)
        work *= 2 if problem.quotas else 1
        looked, self.scene.looked = self.scene.looked, 0
        self.left -= 5 * looked
        if work > min(self.share if most is None else most, self.left):
            return False
        self.left -= work
        return True

    def after(self, problem: Problem) -> set[Key]:
        """Who has a place in a plan of the whole fleet: in earnest, unless too many wait for that."""
        needs = tuple(need for need in problem.needs if need.service not in self.aside)
        made = make_plan(replace(problem, needs=needs), trial=self.many, words=False)
        return {(place.service, place.replica) for place in made.placements}
