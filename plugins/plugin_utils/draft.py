# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan while it is made: who has which place, who must find another, and a way back from what was only tried."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.debtors import Debtors, Level
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import room_question, taken_from
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import (
    Offer,
    every,
    is_offered,
    is_room,
    kind_of,
    offer_of,
    offers,
    question_of,
    ranked,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MODE_OF,
    TIME_SLICE,
    Displaced,
    Displacement,
    Hint,
    Need,
    Placement,
    Problem,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Key as Limited
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState, take
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import same_place

Key = tuple[str, int]


@dataclass(frozen=True)
class Mark:
    """Where :meth:`Draft.back` goes back to."""

    changes: int
    learnt: int
    version: int
    lifted: int
    displaced: Mapping[Key, tuple[str, Displacement]]
    freed: bool


class Draft:
    """Decisions so far. ``placed``: who has a place; ``leaving``: who holds a place on a drained GPU until there is another; ``drained``:
    who did so at the beginning.

    ``kept``: the places that were right at the beginning; ``begun``: how often hosts had changed by then. ``displaced``: who left one of
    these places, for whom and why.
    """

    def __init__(self, problem: Problem, fleet: Fleet, before: Mapping[Key, Placement]) -> None:
        self.problem = problem
        self.fleet = fleet
        self.before = before
        self.needs = {need.service: need for need in problem.needs}
        self.placed: dict[Key, Placement] = {}
        self.leaving: dict[Key, Placement] = {}
        self.drained: frozenset[Key] = frozenset()
        self.kept: dict[Key, Placement] = {}
        self.begun = 0
        self._debtors = Debtors(fleet.books, self.needs)
        # By host, whoever is wanted still by the ports that it had there: it may serve on when others start.
        self.published: dict[str, dict[int, str]] = {}
        for (service, replica), place in before.items():
            if service in self.needs and replica <= self.needs[service].replicas:
                self.published.setdefault(place.host, {}).update({port: place.name for _name, port in place.ports})
        self.displaced: dict[Key, tuple[str, Displacement]] = {}
        self.freed = False
        # Where places were given back, and by which team; and for which kinds of needs there was no place, after how many of these.
        self._lifted: list[tuple[HostState, str]] = []
        self._fruitless: dict[object, int] = {}
        self._vain: set[object] = set()
        self._witness: dict[object, HostState] = {}
        # As many as there were changes; back where it was with them.
        self._version, self._versions = 0, itertools.count(1)
        # By whether something is tried, of each kind of needs whether it was hopeless, and as of when.
        self._hopes: dict[bool, dict[object, tuple[int, bool]]] = {False: {}, True: {}}
        # Of a service its need without the team, and what that asks of GPUs.
        self._anybody: dict[str, tuple[Need, tuple[str, object]]] = {}
        self._kinds: dict[str, object] = {}
        # How to undo what was only tried: what was changed, and what was found out about needs.
        self._log: list[Callable[[], object]] = []
        self._learnt: list[Callable[[], object]] = []
        self._open = 0

    # Trying

    def mark(self) -> Mark:
        """Begin to try something; ends with :meth:`back` or :meth:`keep`."""
        self._open += 1
        return Mark(len(self._log), len(self._learnt), self._version, len(self._lifted), dict(self.displaced), self.freed)

    def back(self, mark: Mark) -> None:
        """Undo everything since."""
        for log, before in ((self._log, mark.changes), (self._learnt, mark.learnt)):
            while len(log) > before:
                log.pop()()
        self._version = mark.version
        del self._lifted[mark.lifted :]
        self.displaced, self.freed = dict(mark.displaced), mark.freed
        self._open -= 1

    def keep(self) -> None:
        """What was tried stands."""
        self._open -= 1
        if not self._open:
            self._log.clear()
            self._learnt.clear()

    def _remember(self, host: HostState, states: Iterable[GpuState]) -> None:
        if self._open:
            self._log.append(partial(host.load, host.save()))
            self._log.extend(partial(state.load, state.save()) for state in states)

    # Changing

    def put(self, need: Need, place: Placement, states: tuple[GpuState, ...], kept: bool = False) -> bool:
        """Give a replica a place; False when somebody has it, or it cannot be. ``kept``: it has it already, whatever room that leaves."""
        host = self.fleet.hosts[place.host]
        if not can_take(place, states):
            return False
        if self.fleet.keepers and not kept and taken_from(self.fleet, host, need, place, states):
            return False
        self._remember(host, states)
        if not take(need, place, states):
            return False
        self._version = next(self._versions)
        host.seat(need, place)
        key = (place.service, place.replica)
        self.placed[key] = place
        if self._open:
            self._log.append(partial(self.placed.pop, key, None))
            self._log.append(partial(self.fleet.books.strike, place.name))
        if place.service in self.fleet.rulebook.anchors:
            self._gave_back(host, "")
        return True

    def _gave_back(self, host: HostState, team: str) -> None:
        self._lifted.append((host, team))
        if self._open and self._vain:
            self._learnt.append(partial(setattr, self, "_vain", self._vain))
        self._vain = set()

    def lift(self, key: Key) -> Placement:
        """Take a replica's place away, also one that it holds on a drained GPU."""
        held = self.leaving if key in self.leaving else self.placed
        place = held.pop(key)
        host, need = self.fleet.hosts[place.host], self.needs[place.service]
        self._remember(host, host.usable(place.gpus))
        host.unseat(need, place)
        if key in self.kept:
            self._claim(host, place)
        self._version = next(self._versions)
        self._gave_back(host, need.team)
        self.freed = True
        if self._open:
            charge = host.charge(need, place)
            self._log.append(partial(self.fleet.books.book, place.name, need.team, charge))
            self._log.append(partial(held.__setitem__, key, place))
        return place

    def _claim(self, host: HostState, place: Placement) -> None:
        """Who comes back to its host had better have its ports again: others take them last."""
        for _name, port in place.ports:
            if port not in self.fleet.asked and port not in host.claimed:
                host.claimed[port] = place.name
                if self._open:
                    self._log.append(partial(host.claimed.pop, port))

    def place(self, need: Need, replica: int, hosts: Set[str] | None = None) -> Placement | None:
        """The best place for one more replica, taken; None when there is none. ``hosts``: only on these."""
        if hosts is None and self._known_hopeless(need):
            return None
        refused = hosts is not None
        before = self.before.get((need.service, replica))
        asked = None if hosts is None else [self.fleet.hosts[name] for name in sorted(hosts)]
        found = ranked(self.fleet, need) if asked is None else sorted(offers(self.fleet, need, asked), key=lambda each: each.rank)
        for offer in found:
            ports = self.ports(offer.host, need, replica, before)
            if isinstance(ports, str):
                refused = True
                continue
            if not self.fleet.keepers:
                place = self._taken(offer, need, replica, ports)
            else:
                place = self._beside_kept_room(offer, need, replica, ports)
                # Whose room that was is a question of this very service.
                refused = True
            if place is not None:
                return place
        if not refused:
            self._set_fruitless(self.kind(need), len(self._lifted))
        return None

    def place_on(self, need: Need, replica: int, found: Iterable[Offer]) -> Placement | None:
        """The first of these places that it can have, taken; None when it can have none."""
        before = self.before.get((need.service, replica))
        for offer in found:
            ports = self.ports(offer.host, need, replica, before)
            place = None if isinstance(ports, str) else self._taken(offer, need, replica, ports)
            if place is not None:
                return place
        return None

    def _taken(self, offer: Offer, need: Need, replica: int, ports: Mapping[str, int]) -> Placement | None:
        place = Placement(
            need.service,
            replica,
            offer.host.host.name,
            MODE_OF[need.isolation],
            tuple(state.gpu.uuid for state in offer.gpus),
            None if offer.cut is None else offer.cut.slice,
            tuple(sorted(ports.items())),
            need.sharing if need.isolation == "shared" else TIME_SLICE,
        )
        return place if self.put(need, place, offer.gpus) else None

    def _beside_kept_room(self, best: Offer, need: Need, replica: int, ports: Mapping[str, int]) -> Placement | None:
        """As :meth:`_taken`, of the best of a host or of the others that it has: room kept for rollouts may be in the way of some."""
        host = best.host
        asked = ("no room", *room_question(self.fleet, host, need), tuple(ports.values()))
        if asked in host.answers:
            return None
        others = (each for each in sorted(every(host, need), key=lambda each: each.rank) if each.rank != best.rank)
        for offer in itertools.chain((best,), others):
            place = self._taken(offer, need, replica, ports)
            if place is not None:
                return place
        host.answers[asked] = True
        return None

    def place_at(self, need: Need, replica: int, where: Hint) -> Placement | None:
        """That place, taken, as long as every rule allows it now; None when one does not."""
        host = self.fleet.hosts[where.host]
        states, mode = host.usable(where.gpus), MODE_OF[need.isolation]
        if not host.host.admits(need) or host.free.shortage(need.resources) or host.rule_refusal(need) is not None:
            return None
        for state in states:
            if (
                state.refusal(mode, need.sharing) is not None
                or not state.serves(need)
                or state.crowded(need)
                or state.debit(need) is not None
            ):
                return None
        if len(states) != need.count or not _is_enough(need, where, states) or (must_join(need) and joined(states) is not True):
            return None
        ports = self.ports(host, need, replica, self.before.get((need.service, replica)))
        if isinstance(ports, str):
            return None
        sharing = need.sharing if need.isolation == "shared" else TIME_SLICE
        place = Placement(need.service, replica, where.host, mode, where.gpus, where.slice, tuple(sorted(ports.items())), sharing)
        return place if self.put(need, place, states) else None

    def ports(self, host: HostState, need: Need, replica: int, before: Placement | None) -> dict[str, int] | str:
        """The replica's ports on a host: as they were there, if they can be; or why it cannot have any."""
        old = dict(before.ports) if before is not None and before.host == host.host.name else {}
        name, published = replica_name(need.service, replica), self.published.get(host.host.name, {})
        found = host.choose_ports(need, name, old, self.fleet.asked, published)
        if isinstance(found, str) and host.claimed:
            claimed, host.claimed = host.claimed, {}
            found = host.choose_ports(need, name, old, self.fleet.asked, published)
            host.claimed = claimed
        return found

    @property
    def now(self) -> tuple[int, bool]:
        """Equal as long as nothing has changed; what is only tried is apart."""
        return self._version, self._open > 0

    @property
    def given_back(self) -> int:
        """How often anything was given back that somebody may have waited for."""
        return len(self._lifted)

    @property
    def tried(self) -> bool:
        """Has anything changed that may be undone?"""
        return bool(self._log)

    def hopeless(self, need: Need) -> bool:
        """Is there no place for one more replica, as things are?"""
        kind = self.kind(need)
        if self._fruitless.get(kind) == len(self._lifted):
            return True
        hopes = self._hopes[self._open > 0]
        known = hopes.get(kind)
        if known is None or known[0] != self._version:
            known = hopes[kind] = self._version, self._is_hopeless(need, kind)
        return known[1]

    def bound_by_quota(self, need: Need) -> bool:
        """Might there be a place for one more replica if no quota said no, as things are?"""
        if not self.fleet.books.tight(need.team, need.count):
            return False
        if need.service not in self._anybody:
            anybody = replace(need, service="", team="")
            self._anybody[need.service] = anybody, ("anybody", question_of(self.fleet, anybody))
        anybody, asked = self._anybody[need.service]
        hopes = self._hopes[self._open > 0]
        known = hopes.get(asked)
        if known is None or known[0] != self._version:
            known = hopes[asked] = self._version, next(ranked(self.fleet, anybody), None) is not None
        return known[1]

    def _is_hopeless(self, need: Need, kind: object) -> bool:
        if self._known_hopeless(need) or not is_room(self.fleet, need):
            return True
        witness = self._witness.get(kind)
        if witness is not None and offer_of(witness, need, question_of(self.fleet, need)) is not None:
            return False
        found = next(ranked(self.fleet, need), None)
        if found is None:
            self._set_fruitless(kind, len(self._lifted))
            return True
        self._witness[kind] = found.host
        return False

    def _known_hopeless(self, need: Need) -> bool:
        """Was there no place, and is there none where places were given back since?

        A team that gave one back may have more elsewhere: that is not looked for while something is only tried.
        """
        kind = self.kind(need)
        since = self._fruitless.get(kind)
        if since is None:
            return False
        if since < len(self._lifted):
            back = self._lifted[since:]
            books = self.fleet.books
            if not self._open and books.tight(need.team, need.count) and any(books.together(team, need.team) for _host, team in back):
                return False
            if is_offered(self.fleet, need, {host.host.name: host for host, _team in back}.values()):
                return False
            self._set_fruitless(kind, len(self._lifted))
        return True

    def _set_fruitless(self, kind: object, lifted: int | None) -> None:
        """There was no place for this kind of needs after so many were given back; None: nobody knows."""
        if self._open:
            self._learnt.append(partial(_put, self._fruitless, kind, self._fruitless.get(kind)))
        _put(self._fruitless, kind, lifted)

    def forget(self, need: Need) -> None:
        """A quota has more room now: look everywhere again."""
        self._set_fruitless(self.kind(need), None)

    def is_fruitless(self, what: object) -> bool:
        """Was it in vain, and is nothing free since?"""
        return what in self._vain

    def in_vain(self, what: object) -> None:
        """Remember that something was tried in vain, until a place is given back."""
        if self._open and what not in self._vain:
            self._learnt.append(partial(self._vain.discard, what))
        self._vain.add(what)

    def kind(self, need: Need) -> object:
        """Equal for needs of which none has a place when one has none."""
        if need.service not in self._kinds:
            self._kinds[need.service] = (
                need.service if self.fleet.rulebook.alone(need) or need.keep_room else "",
                self.fleet.kind(kind_of(need)),
            )
        return self._kinds[need.service]

    # Asking

    def need_of(self, key: Key) -> Need:
        """The need of a replica."""
        return self.needs[key[0]]

    def place_of(self, key: Key) -> Placement:
        """The place that a replica has, or holds on a drained GPU."""
        return self.placed.get(key) or self.leaving[key]

    def everybody(self) -> list[tuple[Key, Placement]]:
        """Who has a place or holds one, in order."""
        return sorted((*self.placed.items(), *self.leaving.items()))

    def of_services(self, services: Iterable[str]) -> list[tuple[Key, Placement]]:
        """As :meth:`everybody`, of these services."""
        keys = ((service, number) for service in services for number in range(1, self.needs[service].replicas + 1))
        found = ((key, self.placed.get(key) or self.leaving.get(key)) for key in keys)
        return [(key, place) for key, place in found if place is not None]

    def movable(self, name: str, needed: bool = False, leaving: bool = False) -> Key | None:
        """The replica of this name, if it is one whose place may be taken away: nobody knows where else an adopted one could be,
        and one on a drained GPU looks for a place itself. ``needed``: also one that others have to have beside them; ``leaving``: also
        one on a drained GPU, which has no other place."""
        key = key_of(name)
        place = self.placed.get(key) or (self.leaving.get(key) if leaving else None)
        if place is None or self.needs[key[0]].adopted or place.host not in self.fleet.hosts:
            return None
        return key if needed or not needed_there(self.fleet, self.needs, place) else None

    def debtors(self, team: str, limit: Limited, priority: int) -> list[tuple[int, Level]]:
        """Those of a team below a priority who have anything of what a limit counts and whose place may be taken away, also where others
        have to have them beside them, the lowest priority first."""
        return self._debtors.below(team, limit, priority, partial(self.movable, needed=True, leaving=True))

    def takes_along(self, service: str) -> int:
        """The highest priority of those who would go if one replica of the service went, for it is ``all_or_nothing`` and they go together
        with others of it; -1 if nobody would."""
        if not self.needs[service].rules.all_or_nothing or service not in self.fleet.rulebook.anchors:
            return -1
        gone: dict[str, set[str]] = defaultdict(set)
        groups, highest, more = [service], -1, True
        while more:
            more = False
            for name, host in self.fleet.hosts.items():
                gone[name].update(each for each in groups if host.replicas.get(each))
                for each in self.fleet.rulebook.followers if gone[name] else ():
                    need = self.needs[each]
                    if each in gone[name] or need.adopted or not host.replicas.get(each):
                        continue
                    if not any(host.replicas.get(other) and other not in gone[name] for other in need.rules.together):
                        gone[name].add(each)
                        highest, more = max(highest, need.priority), True
                        groups += [each] if need.rules.all_or_nothing else []
        return highest

    def result(self) -> tuple[Displaced, ...]:
        """Who left a place that was right, in order. Whoever moved and has no place after all went with the others of its group."""
        left = [(key, by, way) for key, (by, way) in sorted(self.displaced.items()) if key in self.kept and not self._stays(key)]
        return tuple(Displaced(*key, by, way) for key, by, way in left if way != "moved" or key in self.placed)

    def _stays(self, key: Key) -> bool:
        """Has it the place that it had at the beginning?"""
        return key in self.placed and same_place(self.placed[key], self.kept[key])


def _put(store: dict[object, int], key: object, value: int | None) -> None:
    """``value`` for that key; None: no entry."""
    if value is None:
        store.pop(key, None)
    else:
        store[key] = value


def _is_enough(need: Need, where: Hint, states: tuple[GpuState, ...]) -> bool:
    """Is there as much as the need asks for, on GPUs that are open for it?"""
    first = states[0]
    if where.slice is not None:
        there = where.slice in first.reusable if where.slice in first.spare else not first.gpu.fixed
        return there and where.slice.profile in first.profiles(need)
    if need.isolation == "shared":
        return first.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None
    return all(state.gpu.memory_mib >= need.memory_mib for state in states)


def needed_there(fleet: Fleet, needs: Mapping[str, Need], place: Placement) -> list[str]:
    """The services on the host that would be without the one that they go together with, if this replica went."""
    if place.service not in fleet.rulebook.anchors or place.host not in fleet.hosts:
        return []
    there = fleet.hosts[place.host].replicas
    if there.get(place.service, 0) > 1:
        return []
    beside = {name: needs[name].rules.together for name, count in sorted(there.items()) if count > 0 and name in needs}
    return [
        service
        for service, names in beside.items()
        if place.service in names and not any(there.get(name, 0) > 0 for name in names if name != place.service)
    ]


@lru_cache(maxsize=65_536)
def key_of(name: str) -> Key:
    """The inverse of a placement's name."""
    service, _dash, number = name.rpartition("-")
    return service, int(number)


def can_take(place: Placement, states: tuple[GpuState, ...]) -> bool:
    """Are the GPUs there, and open for the mode?"""
    return bool(states) and all(state.open_for(place.mode) for state in states)
