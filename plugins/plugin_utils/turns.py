# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which order replicas change their places, so that no moment needs more room than there is.

A replica that moves starts in its new place first and leaves the old one then. That needs both at once, so whoever goes to a place that
somebody holds waits until that one has gone. Where all wait for each other, one is stopped first: an outage, and it is said.
"""

from __future__ import annotations

import typing as t
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import Held, held_by
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_order import waves
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Need, Placement, Problem, Solution

Key = tuple[str, int]
# Of more who change their places only one order is looked at.
FEW = 200
# Of so few it is sought whom to stop first, in so many tries.
FEWER, TRIES = 40, 60
Verb = t.Literal["start", "stop", "move", "restart"]


@dataclass(frozen=True)
class Step:
    """One change. ``move``: started in its new place, then stopped in the old one. ``restart``: stays, and holds or publishes something
    else from then on."""

    verb: Verb
    service: str
    replica: int
    old: Placement | None = None
    new: Placement | None = None

    @property
    def line(self) -> str:
        """For people, and for ``fleet.yml``."""
        places = [f"from {at(self.old)}"] if self.old is not None and self.verb in ("move", "stop") else []
        places += [f"{'to' if self.verb == 'move' else 'on'} {at(self.new)}"] if self.new is not None and self.verb != "stop" else []
        ports = self.new.ports if self.verb == "restart" and self.old and self.new and self.old.ports != self.new.ports else ()
        places += [f"with {' '.join(f'{name}:{port}' for name, port in ports)}"] if ports else []
        return " ".join([self.verb, replica_name(self.service, self.replica), *places])


@dataclass(frozen=True)
class Outage:
    """A replica that does not serve for a while, and why."""

    service: str
    replica: int
    reason: str


@dataclass(frozen=True)
class Order:
    """``steps`` in their order; only of plans in which somebody waits for another who leaves a place, a port or room.

    ``outages``: who is stopped first for want of room. ``pauses``: who moves within a host, which stops what leaves its place there before
    it starts anything anew, and who leaves a host that has its turn before the new one, for hosts wait for each other in a circle.
    """

    steps: tuple[Step, ...] = ()
    outages: tuple[Outage, ...] = ()
    pauses: tuple[Outage, ...] = ()


def at(place: Placement) -> str:
    """A place in words: ``gpu-prod-01 GPU-5c1f07aa 1g.10gb@4``."""
    return f"{place.host} {','.join(uuid[:12] for uuid in place.gpus)} {place.slice or place.mode}"


def order(problem: Problem, solution: Solution, held: Mapping[Key, Held] | None = None) -> Order:
    """The steps from the last plans to this one. Replicas on hosts that are down, or not part of the run, are in nobody's way.

    ``held``: what replicas hold where the last plans have them, of those for which it may be something else than their manifests say now.
    """
    needs = {need.service: need for need in problem.needs}
    old = {(each.service, each.replica): each for each in sorted(problem.previous, key=lambda each: each.rank)}
    new = {(each.service, each.replica): each for each in (*solution.placements, *solution.waiting)}
    here = {host.name for host in problem.hosts if not host.down}
    moves = {key for key, place in old.items() if place.host in here and key in new and not same_place(place, new[key])}
    stops = {key for key, place in old.items() if place.host in here and key not in new}
    starts = {key for key, place in new.items() if key not in old or (old[key].host not in here and place.host in here)}
    kept = {key for key, place in old.items() if place.host in here and key in new and key not in moves}
    going = {place.host for key in moves | stops for place in (old[key], new.get(key, old[key]))}
    renewed = _renewed({key: (old[key], new[key]) for key in kept}, needs, held or {}, going.union(new[key].host for key in starts))
    if not moves and not stops and not renewed:
        return Order()
    turn = sorted(moves | renewed | starts, key=lambda key: (-needs[key[0]].priority if key[0] in needs else 0, key))
    early, others = [key for key in turn if key in starts], [key for key in turn if key not in starts]
    run = partial(_run, problem, needs, old, new, held or {}, turn, sorted(stops))
    found: _Making | None = None
    # Whoever starts or goes first may be in the way of others later: where that costs an outage, other turns may not.
    for first, pending in ((early, turn), ((), [*others, *early]), ((), [*reversed(others), *early])):
        made = _fewest(partial(run, first, pending)) if len(pending) <= FEWER else run(first, pending)
        if found is None or made.cost < found.cost:
            found = made
        if not found.outages or len(pending) > FEW:
            break
    if found is None:
        return Order()
    told = found.order()
    stopped = {(each.service, each.replica) for each in told.outages}
    why = "it stops before it serves in its new place, for hosts wait for each other"
    circled = (Outage(*key, why) for key in leave_early({key: old[key] for key in moves}, new, needs) if key not in stopped)
    return replace(told, pauses=(*told.pauses, *circled))


def _renewed(
    kept: Mapping[Key, tuple[Placement, Placement]], needs: Mapping[str, Need], held: Mapping[Key, Held], busy: Collection[str]
) -> set[Key]:
    """Whoever stays and is started anew: it gives up ports or room that somebody may wait for, or takes some. ``busy``: hosts to which or
    from which others go; where nobody does, and all need less than before, nobody waits."""
    ports = {key for key, (old, new) in kept.items() if old.ports != new.ports}
    wishes = {key: held_by(needs[key[0]]) for key in kept if key in held and key[0] in needs and not needs[key[0]].adopted}
    other = {key for key, wish in wishes.items() if held[key] != wish}
    grow = {kept[key][1].host for key in other if not wishes[key].fits_in(held[key])}
    return ports | {key for key in other if kept[key][1].host in grow.union(busy)}


def with_outages(made: Order, keys: Iterable[Key], reason: str) -> Order:
    """The order, and these do not serve for a while either, where nobody has said so yet."""
    known = {(each.service, each.replica) for each in (*made.outages, *made.pauses)}
    return replace(made, pauses=(*made.pauses, *(Outage(*key, reason) for key in keys if key not in known)))


def leave_early(old: Mapping[Key, Placement], new: Mapping[Key, Placement], needs: Mapping[str, Need]) -> list[Key]:
    """Whoever has to leave its host before it serves on the new one: hosts have their turns one after the other, and each has one."""
    away = sorted((place.name, key) for key, place in old.items() if key in new and new[key].host != place.host)
    gone: dict[str, list[str]] = {}
    come: dict[str, list[str]] = {}
    for name, key in away:
        gone.setdefault(old[key].host, []).append(name)
        come.setdefault(new[key].host, []).append(name)
    turn = waves(gone, come, {key[0]: needs[key[0]].priority for _name, key in away if key[0] in needs})
    return [key for _name, key in away if turn[new[key].host] >= turn[old[key].host]]


def _run(
    problem: Problem,
    needs: Mapping[str, Need],
    old: Mapping[Key, Placement],
    new: Mapping[Key, Placement],
    held: Mapping[Key, Held],
    turn: Sequence[Key],
    stops: Sequence[Key],
    early: Iterable[Key],
    pending: Sequence[Key],
    choices: Sequence[int] = (),
) -> _Making:
    making = _Making(Moment(problem, needs, old, held), old, new, turn, choices)
    making.run(pending, stops, early)
    return making


def _fewest(run: Callable[[Sequence[int]], _Making]) -> _Making:
    """The run in which fewest are stopped first, and those of the lowest priority. The first run stops the lowest each time; then another
    one is stopped at one of those moments, then at two of them, and so on."""
    best = run(())
    tried, waiting = 1, deque[tuple[tuple[int, ...], _Making]]([((), best)])
    while waiting:
        choices, made = waiting.popleft()
        for moment in range(len(choices), len(made.offered)):
            for other in range(1, made.offered[moment]):
                # Who is stopped that late saves nothing.
                if moment + 1 >= len(best.outages) or tried == TRIES:
                    return best
                other_choices = (*choices, *(0,) * (moment - len(choices)), other)
                found = run(other_choices)
                tried += 1
                waiting.append((other_choices, found))
                best = min(best, found, key=lambda one: one.cost)
    return best


def same_place(one: Placement, other: Placement) -> bool:
    """The same GPUs in the same way; ports may differ. Who shares by MPS from now on, or no longer, is stopped as who moves is."""
    return (one.host, one.mode, one.gpus, one.slice, one.sharing) == (other.host, other.mode, other.gpus, other.slice, other.sharing)


class _Making:
    """One order. ``choices``: who is stopped when all wait, of those that are offered then, the first time, the second time, ...; 0 is the
    lowest priority, and what is not said is 0. ``offered``: how many there were each time."""

    def __init__(
        self, site: Moment, old: Mapping[Key, Placement], new: Mapping[Key, Placement], turn: Sequence[Key], choices: Sequence[int]
    ) -> None:
        self._site, self._old, self._new, self._choices = site, old, new, choices
        # The greater, the lower its priority.
        self._rank = {key: rank for rank, key in enumerate(turn)}
        self._steps: list[Step] = []
        self.outages: list[Outage] = []
        self.offered: list[int] = []
        self._waited = False

    @property
    def cost(self) -> tuple[int, list[int]]:
        """The fewer are stopped first, and the lower their priorities, the better."""
        return len(self.outages), sorted((-self._rank[each.service, each.replica] for each in self.outages), reverse=True)

    def stop(self, key: Key) -> None:
        """Whoever has no place any more goes first: that gives room and takes none."""
        self._site.remove(key)
        self._steps.append(Step("stop", *key, old=self._old[key]))

    def run(self, turn: Iterable[Key], stops: Iterable[Key], early: Iterable[Key]) -> None:
        """``early``: those that have room beside each other before anybody goes start then, and need no step. Then always the first that
        can; where none can, one is stopped first."""
        pending = list(turn)
        for key in early:
            if self._site.fits(key, self._new[key]):
                pending.remove(key)
                self._site.add(key, self._new[key])
        for key in stops:
            self.stop(key)
        while pending:
            able = next((each for each in pending if self._site.fits(each, self._new[each])), None)
            if able is None and self._stop_first(pending):
                continue
            self._waited = self._waited or able != pending[0]
            # Nobody is in the way any more, and what is left runs already: an adopted service on a full host.
            chosen = pending[0] if able is None else able
            pending.remove(chosen)
            self._go(chosen)

    def order(self) -> Order:
        """What came of it."""
        # Those that only go, or are started anew in whatever order, need none.
        if all(step.verb in ("stop", "restart") for step in self._steps) and not self._waited and not self.outages:
            return Order()
        stopped = {(each.service, each.replica) for each in self.outages}
        pauses = (
            Outage(step.service, step.replica, f"it moves within {step.new.host}, where it stops before it starts anew")
            for step in self._steps
            if step.verb == "move" and step.old is not None and step.new is not None and step.old.host == step.new.host
        )
        return Order(tuple(self._steps), tuple(self.outages), tuple(each for each in pauses if (each.service, each.replica) not in stopped))

    def _go(self, key: Key) -> None:
        stopped = key not in self._site.running
        old, new = self._old.get(key), self._new[key]
        self._site.remove(key)
        self._site.add(key, new)
        verb: Verb = "start" if stopped or old is None else "restart" if same_place(old, new) else "move"
        self._steps.append(Step(verb, *key, old=old, new=new))

    def _stop_first(self, pending: list[Key]) -> bool:
        """Stop one of those that hold a place which somebody waits for. Was there anybody?"""
        running = sorted((key for key in pending if key in self._site.running), key=self._rank.__getitem__, reverse=True)
        if not running:
            return False
        able = (key for key in running if self._is_waited_for(key, pending))
        offered = list(able) if len(pending) <= FEWER else list(islice(able, 1))
        offered = offered or running
        chosen = self._choices[len(self.offered)] if len(self.offered) < len(self._choices) else 0
        self.offered.append(len(offered))
        key = offered[chosen]
        stays = key in self._site.running and same_place(self._site.running[key], self._new[key])
        what = "a port or room that it gives up" if stays else "its place"
        self.outages.append(Outage(*key, f"it is stopped first: others wait for {what}, and it for theirs"))
        self.stop(key)
        return True

    def _is_waited_for(self, key: Key, pending: list[Key]) -> bool:
        return any(self._site.fits(other, self._new[other], without=key) for other in pending if other != key)


class Moment:
    """Who runs where at one moment, and whether there is room for one more."""

    def __init__(self, problem: Problem, needs: Mapping[str, Need], old: Mapping[Key, Placement], held: Mapping[Key, Held]) -> None:
        # What those hold who were started by another manifest than that of now.
        self._held = dict(held)
        self._needs, self._wished = needs, dict[str, Held]()
        self._hosts = {host.name: host for host in problem.hosts if not host.down}
        self._gpus = {(host.name, gpu.uuid): gpu for host in self._hosts.values() for gpu in host.gpus}
        self.running: dict[Key, Placement] = {}
        self._on: dict[str, set[Key]] = {name: set() for name in self._hosts}
        for key, place in old.items():
            if place.host in self._hosts:
                self._put(key, place)

    def _put(self, key: Key, place: Placement) -> None:
        self.running[key] = place
        self._on.setdefault(place.host, set()).add(key)

    def copy(self) -> Moment:
        """Another one, to try things on."""
        other = copy(self)
        other.running, other._held = dict(self.running), dict(self._held)
        other._on = {name: set(keys) for name, keys in self._on.items()}
        return other

    def add(self, key: Key, place: Placement) -> None:
        """It runs there now, as its manifest wishes."""
        self._held.pop(key, None)
        self._put(key, place)

    def remove(self, key: Key) -> None:
        """It runs no more."""
        place = self.running.pop(key, None)
        if place is not None:
            self._on[place.host].discard(key)

    def fits(self, key: Key, place: Placement, without: Key | None = None) -> bool:
        """Could it start there now, with everybody where they are?"""
        host = self._hosts.get(place.host)
        if host is None:
            return True
        # Whoever stays on its host stops before it starts anew: its old place is in nobody's way but others'.
        there = {other: self.running[other] for other in self._on[place.host] if other not in (key, without)}
        if {port for each in there.values() for _name, port in each.ports} & {port for _name, port in place.ports}:
            return False
        # Who runs there and needs no more than it has, has room.
        if key in self.running and same_place(self.running[key], place) and self._wish(key).fits_in(self._amounts(key)):
            return True
        free = host.capacity
        for other in there:
            free = free.less(self._amounts(other).resources)
        if not free.holds(self._wish(key).resources):
            return False
        return all(self._gpu_fits(host, uuid, key, place, there) for uuid in place.gpus)

    def _wish(self, key: Key) -> Held:
        """What it will hold."""
        if key[0] not in self._wished:
            self._wished[key[0]] = held_by(self._needs[key[0]]) if key[0] in self._needs else Held()
        return self._wished[key[0]]

    def _amounts(self, key: Key) -> Held:
        """What it holds."""
        return self._held.get(key) or self._wish(key)

    def _gpu_fits(self, host: Host, uuid: str, key: Key, place: Placement, there: Mapping[Key, Placement]) -> bool:
        gpu = self._gpus.get((host.name, uuid))
        beside = {other: each for other, each in there.items() if uuid in each.gpus}
        if gpu is None or not beside:
            return True
        if place.mode == "whole" or any((each.mode, each.sharing) != (place.mode, place.sharing) for each in beside.values()):
            return False
        if place.mode == "shared":
            return self._shares(host, gpu, place, key, beside)
        slices = [each.slice for each in (*beside.values(), place) if each.slice is not None]
        return gpu.geometry is not None and why_not(gpu.geometry, slices) is None

    def _shares(self, host: Host, gpu: Gpu, place: Placement, key: Key, beside: Iterable[Key]) -> bool:
        every = [self._wish(key), *(self._amounts(other) for other in beside)]
        stays = key in self.running and same_place(self.running[key], place)
        if not stays and any(each.memory_mib is None for each in every):
            return False  # who comes waits until it is known what is left
        memory, compute = sum(each.memory_mib or 0 for each in every), sum(each.compute for each in every)
        most = host.most_sharers(gpu, place.sharing)
        return len(every) <= most and memory <= gpu.memory_mib - host.shared_reserve_mib and compute <= host.shared_compute + 1e-6
