# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making room for a replica that has no place: others move to another right place, or give way to a higher priority.

A *way* is one GPU (or several of one host for a replica that needs several) and the replicas that would have to leave it. The ways of a
host are found once for each kind of need and remembered until something changes there. Everything is tried, and undone when it does not
work; how much is tried has a limit, so that a plan takes its time and no more.
"""

from __future__ import annotations

import typing as t
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set

from ansible_collections.gpuops.fleet.plugins.plugin_utils.clearing_quotas import charges_of, clearings
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key, key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import stay
from ansible_collections.gpuops.fleet.plugins.plugin_utils.leaving_gpus import May, Where, could_be, of_one_gpu, of_whole_gpus
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import every, is_room, question_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Displacement, Need, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

# How often moves are tried for one replica, and in one plan; and how many ways are looked at, to see which are worth a try: who finds a
# place by moves has mostly found it after 10 looks, and never after more than 284 in a thousand plans of 20 to 200 GPUs.
TRIES, ALL_TRIES = 24, 200
LOOKS, ALL_LOOKS = 400, 4_000
# How often a closer look is taken, for one replica and in one plan: a way is gone for a moment, to see who finds another place then.
CLOSE_LOOKS, ALL_CLOSE_LOOKS = 24, 400
# How often a host is asked for its ways in one plan. It takes a twentieth of a look, but there are very many to ask where a thousand wait
# who have no place: some thousand do where everybody but a hundred has one.
ALL_ASKED = 20_000
# The part of the hosts on which somebody has another place from which on it is not asked on which others that may become so.
MANY_LOOSE = 0.5


T = t.TypeVar("T")


class Way(t.NamedTuple):
    """Who would have to leave a host for one more replica; the least comes first. ``cost``: as how many moves they count."""

    rank: tuple[t.Any, ...]
    host: str
    keys: tuple[Key, ...]
    cost: int


# Hosts by name; None: all.
_Hosts = frozenset[str] | None


class _Cause(t.NamedTuple):
    """For which need others move, and what was found out about who could follow.

    ``reach``: on which hosts there is anybody who has another place, or who could have one if one other moved, or two and so on.
    """

    need: Need
    reach: list[_Hosts]
    known: dict[object, bool]


# A replica: its need, and its number.
_Who = tuple[Need, int]


class Room:
    """Makes room for one replica after the other in one draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._mine: dict[str, list[HostState]] = {}
        # By whether something is tried: as of when, and what was found out since.
        self._known: dict[bool, tuple[int, dict[object, t.Any]]] = {}
        self._tries = self._looks = self._close_looks = 0
        self._all_tries, self._all_looks, self._all_close_looks = ALL_TRIES, ALL_LOOKS, ALL_CLOSE_LOOKS
        self._all_asked = ALL_ASKED

    def _once(self, asked: object, found: Callable[[], T]) -> T:
        """What is found, and found again only after anything has changed."""
        version, trying = self._draft.now
        if trying not in self._known or self._known[trying][0] != version:
            self._known[trying] = version, {}
        known = self._known[trying][1]
        if asked not in known:
            known[asked] = found()
        answer: T = known[asked]
        return answer

    @property
    def spent(self) -> bool:
        """Has so much been tried that moves are not looked for any more?"""
        return min(self._all_tries, self._all_looks, self._all_asked) <= 0

    def moved(self, need: Need, replica: int) -> Placement | None:
        """A place for one more replica for which others move, at the least cost; each of them has another right place then."""
        draft = self._draft
        stuck = ("moves", draft.kind(need), need.priority)
        if not draft.problem.moves or self.spent or draft.is_fruitless(stuck):
            return None
        charges = charges_of(draft, need)
        if draft.hopeless(need) and charges and all(draft.fleet.books.refusal(need.team, charge) is not None for charge in charges):
            return None
        self._tries, self._looks = min(TRIES, self._all_tries), min(LOOKS, self._all_looks)
        self._close_looks = min(CLOSE_LOOKS, self._all_close_looks)
        cause = _Cause(need, self._first_reach(need), {})
        for budget in range(1, draft.problem.moves + 1 if cause.reach[0] else 1):
            if budget > len(cause.reach):
                cause.reach.append(self._reach(cause, budget - 1))
            gone: dict[Key, Placement] = {}
            place = self._by_moves(need, replica, cause, budget, gone)
            if place is not None:
                self._note(gone, place, "moved")
                return place
        draft.in_vain(stuck)
        return None

    def taken(self, need: Need, replica: int) -> tuple[Placement, list[Key]] | None:
        """A place for one more replica that lower priorities give up, or teams that have borrowed; and who is without one now."""
        draft = self._draft
        stuck = ("taken", draft.kind(need), need.priority)
        if draft.is_fruitless(stuck) or not (draft.problem.preemption or draft.fleet.books.limited(need.team)):
            return None
        for way, gone in clearings(draft, need):
            place = (draft.place(need, replica) or self.moved(need, replica)) if gone else None
            if place is None and draft.problem.preemption:
                place = self._by_force(need, replica, gone)
            if place is None:
                continue
            for key in sorted(gone, key=self._turn):
                if stay(draft, key, gone[key]):
                    del gone[key]
            draft.keep()
            self._note(gone, place, way)
            return place, sorted(gone)
        if not self.spent:
            draft.in_vain(stuck)
        return None

    def _turn(self, key: Key) -> tuple[t.Any, ...]:
        priority, level = self._draft.fleet.rulebook.turn(self._draft.need_of(key))
        return (-priority, level, key)

    def _note(self, gone: Iterable[Key], place: Placement, way: Displacement) -> None:
        for key in gone:
            self._draft.displaced[key] = (place.name, way)

    # Moves

    def _by_moves(self, need: Need, replica: int, cause: _Cause, budget: int, gone: dict[Key, Placement]) -> Placement | None:
        """``gone``: who has moved for it already, and from where; filled when it works."""
        draft = self._draft
        for way in self._promising((need, replica), cause, budget, gone.keys()):
            self._tries -= 1
            self._all_tries -= 1
            if self._tries < 0:
                return None
            mark = draft.mark()
            trial = {**gone, **{key: draft.lift(key) for key in way.keys}}
            place = draft.place(need, replica, {way.host})
            if place is not None and self._resettle(way.keys, cause, budget - way.cost, trial):
                gone.update(trial)
                draft.keep()
                return place
            draft.back(mark)
        return None

    def _promising(self, who: _Who, cause: _Cause, budget: int, gone: Set[Key]) -> Iterator[Way]:
        """The ways that may work within a budget: first those that need all of it, for the others were mostly tried with less; of these
        first such as make nobody else move in turn."""
        able: dict[int, list[Way]] = defaultdict(list)
        # Once others have left their places there are more ways than were seen before.
        hosts = None if gone and budget > 1 else cause.reach[budget - 1]
        for way in self._ways(who[0], cause.need.priority, False, hosts):
            if way.cost > budget:
                break
            if way.keys and gone.isdisjoint(way.keys):
                able[budget - way.cost].append(way)
        yield from (way for way in able[0] if self._stuck(way, cause, 0, who) == 0)
        if self._looks < 0:
            return
        easy: list[Way] = []
        for way in able[1]:
            stuck = self._stuck(way, cause, 1, who)
            if stuck:
                yield way
            elif stuck == 0:
                easy.append(way)
        for left in sorted(able.keys() - {0, 1}, reverse=True):
            yield from (way for way in able[left] if self._stuck(way, cause, left, who) is not None)
        yield from easy

    def _stuck(self, way: Way, cause: _Cause, left: int, who: _Who | None = None) -> int | None:
        """How many of a way have no place elsewhere as things are; None where ``left`` moves of others are not enough for them, and
        where nothing more is looked at. ``who``: for whom the way is; None: whoever may be in its own way alone counts as if it were."""
        self._looks -= 1
        self._all_looks -= 1
        if self._looks < 0:
            return None
        draft = self._draft
        stuck = [key for key in way.keys if draft.hopeless(draft.need_of(key))]
        if any(map(self._in_its_own_way, stuck)):
            found = {key for key in stuck if self._in_its_own_way(key)} if who is None else self._resettled(way, who)
            stuck = [key for key in stuck if key not in found]
        if len(stuck) > min(left, 1) or not all(self._may_follow(draft.need_of(key), cause, left) for key in stuck):
            return None
        return len(stuck)

    def _in_its_own_way(self, key: Key) -> bool:
        """May a replica that has no second place have another one: when its own counts no more against its quota, or on its host?"""
        host = self._draft.fleet.hosts[self._draft.placed[key].host]
        return self._fills(host, key) or self._draft.bound_by_quota(self._draft.need_of(key))

    def _fills(self, host: HostState, key: Key) -> bool:
        """Does a replica have something of its host that another place there would need, and that is not there beside it?"""
        return host.once(("fills", key), lambda: self._is_full(host, self._draft.need_of(key), self._draft.placed[key]))

    def _is_full(self, host: HostState, need: Need, place: Placement) -> bool:
        if need.count > 1 or host.by_uuid[place.gpus[0]].crowded(need):
            return True
        if not host.free.holds(need.resources) or host.rule_refusal(need) is not None:
            return next(every(host, need, host.gpus), None) is not None
        cutter = host.by_uuid[place.gpus[0]].cutter
        if place.slice is None or cutter is None:
            return False
        return place.slice.profile not in cutter.acceptable(need.memory_mib, need.compute, need.profile)[:1]

    def _resettled(self, way: Way, who: _Who) -> set[Key]:
        """Those of a way who find another place by themselves once the replica for whom it is has its own."""
        if not self._close_looks:
            return set()
        self._close_looks -= 1
        self._all_close_looks -= 1
        draft = self._draft
        mark = draft.mark()
        for key in way.keys:
            draft.lift(key)
        found = set()
        if draft.place(*who, {way.host}) is not None:
            found = {key for key in self._largest_first(way.keys) if self._elsewhere(key) is not None}
        draft.back(mark)
        return found

    def _elsewhere(self, key: Key) -> Placement | None:
        """Another place for one that has left its own."""
        need = self._draft.need_of(key)
        if self._draft.fleet.books.limited(need.team):
            self._draft.forget(need)  # It counts no more against the quota that refused a second one.
        return self._draft.place(need, key[1])

    def _largest_first(self, keys: Iterable[Key]) -> list[Key]:
        return sorted(keys, key=lambda each: (-_size(self._draft.need_of(each)), each))

    def _may_follow(self, need: Need, cause: _Cause, left: int) -> bool:
        """Are there others whose moving, ``left`` at most, could make room for one that has no place elsewhere? As things were before
        anybody moved, and for all that ask the same of GPUs: to look is quick, and to try is not."""
        asked = ("follow", question_of(self._draft.fleet, need), cause.need.priority, left)
        if asked not in cause.known:
            cause.known[asked] = False  # nobody makes room for itself
            cause.known[asked] = not self._draft.is_fruitless(asked) and any(
                way.keys and way.cost <= left and self._stuck(way, cause, left - way.cost) is not None
                for way in self._ways(need, cause.need.priority, False, cause.reach[left - 1])
                if self._looks > 0
            )
            if not cause.known[asked] and self._looks > 0:
                self._draft.in_vain(asked)
        return cause.known[asked]

    def _there(self, host: HostState) -> list[str]:
        """Everybody who is on one of its GPUs."""
        return host.once("there", lambda: sorted(host.names()))

    def _loose(self, need: Need) -> frozenset[str]:
        """The hosts of its environment on which there is anybody who has another place."""
        hosts = self._hosts_in(need.environment)
        return self._once(("loose", need.environment), lambda: frozenset(host.host.name for host in hosts if self._is_loose(host)))

    def _hosts_in(self, environment: str) -> list[HostState]:
        if environment not in self._mine:
            self._mine[environment] = [host for host in self._draft.fleet.hosts.values() if host.host.environment == environment]
        return self._mine[environment]

    def _is_loose(self, host: HostState) -> bool:
        """Is there anybody on it who has another place?"""
        draft = self._draft
        kinds, filled = self._movable(host)
        able = (need for need in kinds if is_room(draft.fleet, need))
        return filled or any(not draft.hopeless(need) or draft.bound_by_quota(need) for need in able)

    def _movable(self, host: HostState) -> tuple[Collection[Need], bool]:
        """One of each kind of those on a host who may move, and whether any of them has what another place there would need."""

        def found() -> tuple[Collection[Need], bool]:
            keys = [key for key in map(self._draft.movable, self._there(host)) if key is not None]
            kinds = {self._draft.kind(need): need for need in map(self._draft.need_of, keys)}
            return kinds.values(), any(self._fills(host, key) for key in keys)

        return host.once("kinds", found)

    def _first_reach(self, need: Need) -> list[_Hosts]:
        """Of a cause: one list for all of a priority."""
        return self._once(("reach", need.environment, need.priority), lambda: [self._loose(need)])

    def _reach(self, cause: _Cause, left: int) -> _Hosts:
        """Hosts on which there is anybody who has another place, or could have one if ``left`` others moved: on no other there is a way for
        one more move than that. All hosts, where it would take too many looks to say, or is mostly so; and where others have left their
        places on trial: that is looked at once, and the ways are known from before."""
        before, environment = cause.reach[left - 1], cause.need.environment
        if before is None or self._draft.tried or len(self._loose(cause.need)) > MANY_LOOSE * len(self._hosts_in(environment)):
            return None
        looks, self._looks = self._looks, min(LOOKS, self._all_looks)
        asked = self._once(("asked", environment), lambda: self._asked_in(environment))
        more = (hosts for need, hosts in asked if not before.issuperset(hosts) and self._may_follow(need, cause, left))
        found = before.union(*more)
        known, self._looks = self._looks > 0, looks
        return found if known else None

    def _asked_in(self, environment: str) -> list[tuple[Need, set[str]]]:
        """One of each kind of needs, as far as GPUs go, of those who may move in an environment, and on which hosts they are."""
        found: dict[object, tuple[Need, set[str]]] = {}
        for host in self._hosts_in(environment):
            for need in self._movable(host)[0]:
                found.setdefault(question_of(self._draft.fleet, need), (need, set()))[1].add(host.host.name)
        return list(found.values())

    def _resettle(self, keys: Sequence[Key], cause: _Cause, left: int, gone: dict[Key, Placement]) -> bool:
        """Another place for each, the largest first; for them others may move in turn."""
        for key in self._largest_first(keys):
            need, before = self._draft.need_of(key), set(gone)
            place = self._elsewhere(key)
            if place is None and left:
                place = self._by_moves(need, key[1], cause, left, gone)
                left -= sum(self._draft.need_of(each).move_cost for each in gone if each not in before)
            if place is None:
                return False
        return True

    # Force

    def _by_force(self, need: Need, replica: int, gone: dict[Key, Placement]) -> Placement | None:
        """The place of lower priorities: of the fewest and lowest that are on one GPU, else of all on one host; else such as equal
        priorities share, who have another place."""
        return self._by_force_of(need, replica, gone) or self._by_force_and_moves(need, replica, gone)

    def _by_force_and_moves(self, need: Need, replica: int, gone: dict[Key, Placement]) -> Placement | None:
        """Lower priorities give way, and equal ones beside them move, as many as may."""
        draft = self._draft
        # On a large fleet it takes longer than all else.
        if not draft.problem.moves or not draft.problem.is_small:
            return None
        loose = self._loose(need)
        for way in self._ways(need, need.priority, True, loose, equals=True):
            equals = [key for key in way.keys if draft.need_of(key).priority == need.priority]
            if not 0 < len(equals) < len(way.keys) or sum(draft.need_of(key).move_cost for key in equals) > draft.problem.moves:
                continue
            # One on a drained GPU looks for a place itself.
            if not all(key in draft.placed and (not draft.hopeless(draft.need_of(key)) or self._in_its_own_way(key)) for key in equals):
                continue
            mark = draft.mark()
            trial = {key: draft.lift(key) for key in way.keys if key in draft.placed or key in draft.leaving}
            place = draft.place(need, replica, {way.host})
            if place is not None and all(self._elsewhere(key) is not None for key in self._largest_first(equals)):
                self._note(equals, place, "moved")
                gone.update({key: trial[key] for key in trial if key not in equals})
                draft.keep()
                return place
            draft.back(mark)
        return None

    def _by_force_of(self, need: Need, replica: int, gone: dict[Key, Placement]) -> Placement | None:
        draft = self._draft
        for way in self._ways(need, need.priority, True):
            mark = draft.mark()
            trial = {key: draft.lift(key) for key in way.keys if key in draft.placed or key in draft.leaving}
            place = draft.place(need, replica, {way.host})
            if place is not None:
                gone.update(trial)
                draft.keep()
                return place
            draft.back(mark)
        return None

    def _ways(self, need: Need, priority: int, force: bool, only: _Hosts = None, *, equals: bool = False) -> list[Way]:
        """All ways, the least first. ``only``: of these hosts. ``equals``: by force, and also those of the same priority."""
        # Who looks with one more move each time asks for it as often.
        asked = ("ways", need.service, priority, force, equals, only)
        return self._once(asked, lambda: self._ways_of_all(need, priority, force, only, equals))

    def _ways_of_all(self, need: Need, priority: int, force: bool, only: _Hosts, equals: bool) -> list[Way]:
        draft = self._draft
        stamp, kind = draft.fleet.stamp(need), draft.kind(need)
        found: list[Way] = []
        for name, host in draft.fleet.hosts.items():
            if not host.host.admits(need) or host.host.down or (only is not None and name not in only):
                continue
            if force and self._lowest(host) >= priority:
                continue
            asked = (kind, priority, force, equals, need.service if host.replicas.get(need.service) else "", stamp)
            if asked not in host.answers:
                self._all_asked -= not force
                host.answers[asked] = sorted(self._of_host(host, need, priority + equals, force))
            found.extend(host.answers[asked])
        return sorted(found)

    def _lowest(self, host: HostState) -> int:
        """The lowest priority of those on a host who can be asked to go."""

        def found() -> int:
            keys = (self._draft.movable(name, needed=True, leaving=True) for name in self._there(host))
            return min((self._draft.need_of(key).priority for key in keys if key is not None), default=101)

        return host.once("lowest", found)

    def _of_host(self, host: HostState, need: Need, priority: int, force: bool) -> Iterator[Way]:
        draft, there = self._draft, self._there(host)
        if not there:
            return
        known: dict[str, bool] = {}

        def may(name: str) -> bool:
            if name not in known:
                key = draft.movable(name, needed=force, leaving=force)
                if key is None or key[0] == need.service or key[0] in need.rules.together:
                    known[name] = False
                else:
                    theirs = draft.needs[key[0]].priority
                    known[name] = max(theirs, draft.takes_along(key[0])) < priority if force else theirs <= priority
            return known[name]

        rules = self._in_the_way(host, need, there)
        if rules is None or not all(map(may, rules)):
            return
        sets = self._sets(host, need, priority, force, may)
        if not rules and host.free.holds(need.resources) and not draft.fleet.rulebook.anchors:
            yield from (way for _where, _names, way in sets)
            sets = ()
        for where, names, _alone in sets:
            every = self._with_resources(host, need, {*names, *rules}, there, may)
            if every is None:
                continue
            followed = self._with_followers(host, every, there) if draft.fleet.rulebook.anchors else every
            # Whoever goes together with others is pushed out with them; nobody moves from under it.
            if (force or followed == every) and all(map(may, followed)):
                yield self._way(host, followed, where, force)
        # Those who leave may free a quota, too.
        able = sum(could_be(state, need, paid=False) for state in host.gpus) if force else 0
        if able >= need.count and (all_ := self._all(host, there, may)):
            yield self._way(host, all_, ("~", 99), force)

    def _sets(self, host: HostState, need: Need, priority: int, force: bool, may: May) -> Sequence[tuple[Where, Sequence[str], Way]]:
        """Who would have to leave which GPUs, and that as a way: the same for all that ask the same and have no replica on the host."""
        own = need.service in host.replicas or need.rules.together
        asked = None if own else ("sets", question_of(self._draft.fleet, need), priority, force)
        if asked is None or asked not in host.answers:
            most = sum(len(state.names()) for state in host.gpus) if force else self._draft.problem.moves
            whole = need.isolation == "exclusive"
            found = of_whole_gpus(host, need, may, len if force else self._cost) if whole else of_one_gpu(host, need, may, self._named)
            sets = [(where, names, self._way(host, names, where, force)) for where, names in found if len(names) <= most]
            if asked is None:
                return sets
            host.answers[asked] = sets
        known: list[tuple[Where, Sequence[str], Way]] = host.answers[asked]
        return known

    def _all(self, host: HostState, there: Sequence[str], may: May) -> list[str]:
        """Everybody who may be told to go and on whom nobody else depends."""
        names = [name for name in there if may(name)]
        while stay_on := [name for name in self._with_followers(host, names, there) if not may(name)]:
            # What they depend on, and what that depends on, stays too.
            held, more = set[str](), {key_of(name)[0] for name in stay_on}
            while more:
                more = {
                    other for service in more if service in self._draft.needs for other in self._draft.needs[service].rules.together
                } - held
                held |= more
            rest = [name for name in names if key_of(name)[0] not in held]
            if len(rest) == len(names):
                return []
            names = rest
        return names

    def _with_followers(self, host: HostState, names: Sequence[str], there: Sequence[str]) -> list[str]:
        """With those that go together with a service of which nothing would be left here."""
        every = set(names)
        while True:
            gone = Counter(key_of(name)[0] for name in every)
            left = {service for service, count in host.replicas.items() if count > gone[service]}
            more = {name for name in there if name not in every and not self._is_beside(key_of(name)[0], left, host)}
            if not more:
                return sorted(every)
            every |= more

    def _is_beside(self, service: str, left: Set[str], host: HostState) -> bool:
        """Is one of the services that it goes together with among those left, as far as it was before?"""
        bound = self._draft.needs[service].rules.together if service in self._draft.needs else ()
        return not bound or not left.isdisjoint(bound) or not any(host.replicas.get(name, 0) > 0 for name in bound)

    def _way(self, host: HostState, names: Iterable[str], where: Where, force: bool) -> Way:
        """Who moves is chosen by what that costs; who gives way by how many and how low they are, and by the cost among equals."""
        keys = tuple(map(key_of, sorted(names)))
        needs = list(map(self._draft.need_of, keys))
        most = max((need.priority for need in needs), default=0)
        cost = sum(need.move_cost for need in needs)
        least = (len(keys), most, cost) if force else (cost, len(keys), most)
        return Way((where[0] == "~", *least, sum(map(_size, needs)), host.turn, *where), host.host.name, keys, cost)

    def _named(self, name: str) -> Need:
        """The need of a replica of this name."""
        return self._draft.need_of(key_of(name))

    def _cost(self, names: Collection[str]) -> int:
        """As how many moves these count."""
        return sum(self._named(name).move_cost for name in names)

    def _in_the_way(self, host: HostState, need: Need, there: Sequence[str]) -> list[str] | None:
        """Who is on the host against a rule, or has a port that is asked for; None when it is nobody's leaving that would help."""
        others = self._draft.fleet.rulebook.apart(need)
        names = [name for name in there if key_of(name)[0] in others] if others else []
        if self._draft.fleet.rulebook.alone(need):
            counts = {service: 0 if service in others else count for service, count in host.replicas.items()}
            if self._draft.fleet.rulebook.refusal(need, counts) is not None:
                return None
        for _name, port in need.ports:
            if port is not None and (holder := host.ports.get(port)) is not None:
                names.append(holder)
        return names

    def _with_resources(self, host: HostState, need: Need, names: set[str], there: Sequence[str], may: May) -> list[str] | None:
        """With whoever else has to leave so that the host has the CPU, memory and disk; None when that is not enough."""
        if host.free.holds(need.resources):
            return sorted(names)
        free = host.free
        for name in names:
            free = free.more(self._named(name).resources)
        chosen = set(names)
        others = () if free.holds(need.resources) else [name for name in there if name not in chosen and may(name)]
        for name in sorted(others, key=self._ease):
            short = free.shortage(need.resources)
            theirs = self._named(name).resources
            if short and any((getattr(theirs, kind) or 0) > 0 for kind in short):
                free = free.more(theirs)
                chosen.add(name)
        for name in sorted(chosen - names, key=self._ease):
            # Those who came first may not be needed beside a larger one.
            without = free.less(self._named(name).resources)
            if without.holds(need.resources):
                free = without
                chosen.discard(name)
        return sorted(chosen) if free.holds(need.resources) else None

    def _ease(self, name: str) -> tuple[int, int, str]:
        """Whom it is easier to ask to go comes first."""
        need = self._named(name)
        return (need.priority, need.move_cost, name)


def _size(need: Need) -> int:
    return need.count * max(need.memory_mib, 1)
