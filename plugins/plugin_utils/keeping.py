# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a plan begins: whether the place that a replica had is right still, and keeping it."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Mapping, Set
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Drain, Need, Placement, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import what
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState, unseen_charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several


class Settled(t.NamedTuple):
    """Who has a place in a plan of the same fleet, or of one with less of it and of quotas: nobody asks whether these places are right.

    ``fleet``: as that plan leaves it, with everybody on it.
    """

    keys: Set[Key]
    fleet: Fleet


def begin(problem: Problem, settled: Settled | None = None) -> Draft:
    """Who has a place that is still right has it; who must leave holds it; nobody else has one."""
    fleet = Fleet(problem)
    draft = Draft(problem, fleet, by_replica(problem.previous, fleet))
    keep_all(draft, settled)
    draft.leaving = {key: place for key, place in draft.placed.items() if must_leave(fleet, draft.needs[place.service], place)}
    draft.drained = frozenset(draft.leaving)
    for key in draft.leaving:
        del draft.placed[key]
    draft.kept = dict(draft.placed)
    draft.begun = len(fleet.diary.changed)
    return draft


def begin_again(draft: Draft) -> Draft:
    """The beginning of a draft in which nobody leaves a drained GPU, whatever has happened since: nobody asks again who may stay."""
    again = Draft(draft.problem, Fleet(draft.problem), draft.before)
    changed = {draft.fleet.by_turn[turn].host.name for turn in draft.fleet.diary.changed[draft.begun :]}
    _take_again(again, draft.kept, draft.fleet, changed)
    for place in draft.kept.values():
        host = again.fleet.hosts.get(place.host)
        if host is None or host.host.down:
            _run_on(again, draft.needs[place.service], place)
    again.kept, again.begun = dict(again.placed), len(again.fleet.diary.changed)
    return again


def by_replica(previous: Collection[Placement], fleet: Fleet) -> Mapping[Key, Placement]:
    """One last place for each replica. Where two plans name one replica, a host that is here and up counts, then the first in order."""
    found = {(placement.service, placement.replica): placement for placement in previous}
    if len(found) == len(previous):
        return found
    turns = {name: (host.host.down, host.turn) for name, host in fleet.hosts.items()}
    result: dict[Key, Placement] = {}
    for placement in sorted(previous, key=lambda each: (each.host not in turns, turns.get(each.host, ()), each.rank)):
        result.setdefault((placement.service, placement.replica), placement)
    return result


def keep_all(draft: Draft, settled: Settled | None = None) -> None:
    """Who stays: adopted services first, for nothing moves them; then those that ask for what they had, so that nobody who grows
    pushes them out; then by priority, those that count least against a quota first, so that as many stay as can where it was lowered; then
    by name. What a team has borrowed comes after what is everybody's own."""
    changed, needs = draft.problem.changed, draft.needs
    asked = [(service, replica) for service, replica in draft.before if service in needs and replica <= needs[service].replicas]
    if settled is not None:
        _take_again(draft, {key: draft.before[key] for key in asked if key in settled.keys}, settled.fleet)
    rest = {key for key in asked if key not in draft.placed}
    draft.fleet.claim(place for place in draft.problem.previous if (place.service, place.replica) in rest)
    wanted = [(needs[service], replica) for service, replica in rest]

    def turn(each: tuple[Need, int]) -> tuple[object, ...]:
        need, replica = each
        return not need.adopted, need.service in changed, -need.priority, _counted(draft, need, replica), need.service, replica

    wanted.sort(key=turn)
    borrowed = []
    for need, replica in wanted:
        if not keep(draft, need, draft.before[(need.service, replica)], own=True) and draft.fleet.books.limited(need.team):
            borrowed.append((need, replica))
    for need, replica in borrowed:
        place = draft.before[(need.service, replica)]
        if not keep(draft, need, place):
            _keep_before_lower(draft, need, place)
    for host in draft.fleet.hosts.values():
        host.claimed.clear()
    part(draft)


def _keep_before_lower(draft: Draft, need: Need, place: Placement) -> None:
    """Let a replica stay for which its team may borrow nothing, in place of lower priorities of the team, which have its own part."""
    host, books = draft.fleet.hosts.get(place.host), draft.fleet.books
    debit = None if host is None else books.refusal(need.team, host.charge(need, place))
    if debit is None:
        return
    lower = draft.debtors(need.team, debit.key, need.priority)
    if sum(level.much for _priority, level in lower) < debit.short:
        return
    mark = draft.mark()
    gone: list[Key] = []
    for key in [key for _priority, level in lower for key in sorted(debt.key for debt in level.debts)]:
        draft.lift(key)
        gone.append(key)
        if keep(draft, need, place):
            # Whoever had not to go after all stays, the highest first.
            for each in reversed(gone):
                keep(draft, draft.needs[each[0]], draft.before[each])
            draft.keep()
            return
    draft.back(mark)


def _take_again(draft: Draft, places: Mapping[Key, Placement], fleet: Fleet, changed: Collection[str] = ()) -> None:
    """These have these places, if their hosts and GPUs are here. ``fleet``: with them and others on it, who have been only on these hosts
    ``changed`` meanwhile."""
    on_host: dict[str, dict[str, Key]] = {}
    for key, place in places.items():
        on_host.setdefault(place.host, {})[place.name] = key
    hosts = {name: host for name, host in draft.fleet.hosts.items() if name in on_host and not host.host.down}
    # Hosts on which nobody else is are as they are there: that takes a fifth of the time.
    there = {name: host for name, host in fleet.hosts.items() if name in hosts and name not in changed}
    alike = [name for name, host in there.items() if _is_same(hosts[name], host, on_host[name].keys())]
    if not draft.fleet.books.book_as(fleet.books, (replica for name in alike for replica in on_host[name])):
        alike = []
    for name in alike:
        hosts.pop(name).seat_as(fleet.hosts[name])
        draft.placed.update((key, places[key]) for key in on_host[name].values())
    for name, host in hosts.items():
        for key in on_host[name].values():
            place = places[key]
            if states := host.usable(place.gpus):
                draft.put(draft.need_of(key), place, states, kept=True)


def _is_same(host: HostState, other: HostState, names: Set[str]) -> bool:
    """Is it that host, with just these replicas on it?"""
    return host.host is other.host and other.names() == names


def _counted(draft: Draft, need: Need, replica: int) -> int:
    """MiB that a replica's place counts against the quota of its team; 0 where there is none."""
    if not draft.fleet.books.limited(need.team):
        return 0
    place = draft.before[need.service, replica]
    host = draft.fleet.hosts.get(place.host)
    charge = unseen_charge(need) if host is None else host.charge(need, place)
    return sum(amount for _board, what, amount in charge if what == "memory")


def part(draft: Draft) -> list[Key]:
    """Whoever goes together with a service that has left its host leaves it too: those."""
    gone: list[Key] = []
    followers = draft.fleet.rulebook.followers
    going = bool(followers)
    while going:
        going = False
        for key, place in draft.of_services(followers):
            need, host = draft.needs[key[0]], draft.fleet.hosts.get(place.host)
            bound = need.rules.together if host is not None and not need.adopted else ()
            if host is not None and bound and not any(host.replicas.get(name, 0) > 0 for name in bound):
                draft.lift(key)
                gone.append(key)
                going = True
    return gone


def keep(draft: Draft, need: Need, place: Placement, own: bool = False, kept: bool = True) -> bool:
    """Let a replica stay, with the ports that the service has by now; False when its place is not right any more.

    What serves is not put away because the compatibility gate says no by now: only a version that is new is held against it.
    Nor is it put away because there is no room for its rollout, or for that of another.
    ``own``: only what the team may have without borrowing. ``kept``: nobody asked it to go.
    """
    host = draft.fleet.hosts.get(place.host)
    if host is None or (host.host.down and need.adopted):
        _run_on(draft, need, place)
        return True
    states = host.usable(place.gpus)
    if host.host.down or not states:
        return False
    ports: Mapping[str, int] | str = dict(place.ports)
    if not need.adopted:
        if not still_right(need, place, host, states, need.service in draft.problem.changed) or any(
            drain.force for drain in drains(draft.fleet, place)
        ):
            return False
        if draft.fleet.books.refusal(need.team, host.charge(need, place), own) is not None:
            return False
        published = draft.published.get(place.host, {})
        ports = host.choose_ports(need, place.name, dict(place.ports), draft.fleet.asked, published)
    if isinstance(ports, str):
        return False
    now = tuple(sorted(ports.items()))
    return draft.put(need, place if place.ports == now else replace(place, ports=now), states, kept)


def _run_on(draft: Draft, need: Need, place: Placement) -> None:
    """On a host that is not part of this run (left out by --limit, or gone from the inventory), what runs there runs on."""
    draft.placed[place.service, place.replica] = place
    draft.fleet.books.book(place.name, need.team, unseen_charge(need))


def stay(draft: Draft, key: Key, place: Placement) -> bool:
    """As :func:`keep`, for who was only asked to go, and for all of its rules. On a drained GPU it holds its place, as before."""
    need, host = draft.needs[key[0]], draft.fleet.hosts[place.host]
    if host.rule_refusal(need) is not None or not keep(draft, need, place, kept=False):
        return False
    if key in draft.drained:
        draft.leaving[key] = draft.placed.pop(key)
    return True


def still_right(need: Need, place: Placement, host: HostState, states: tuple[GpuState, ...], changed: bool) -> bool:
    """Would the service get this place today, if it were free?"""
    if not_right(need, place, host, states) or host.free.shortage(need.resources):
        return False
    if host.rule_refusal(need, together=False) is not None or any(state.crowded(need) for state in states):
        return False
    if must_join(need) and joined(states) is False:  # what nobody knows by now moves nobody
        return False
    if changed and any(state.barred(need) for state in states):
        return False
    return place.mode != "shared" or states[0].shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None


def not_right(need: Need, place: Placement, host: HostState, states: tuple[GpuState, ...]) -> str:
    """What papers say against a place by now, whoever else is there; '' where nothing does."""
    if host.host.environment != need.environment:
        return f"{place.host} is for {host.host.environment}"
    if not host.host.may_have(need):
        return f"{place.host} may not have data of class '{need.data_class}'"
    if place.mode != MODE_OF[need.isolation]:
        return f"it asks for 'isolation: {need.isolation}' by now"
    if len(states) != need.count:
        return f"it asks for {several(need.count, 'GPU')} by now"
    if place.mode == "shared" and place.sharing != need.sharing:
        return f"it asks for 'sharing: {need.sharing}' by now"
    return next(filter(None, (_not_right(need, place, state) for state in states)), "")


def _not_right(need: Need, place: Placement, state: GpuState) -> str:
    if not need.wants(state.gpu.board):
        return f"it may not be on {state.gpu.board} by now"
    if state.gpu.pin is None and place.mode not in state.host.modes:
        return f"policy does not allow mode {place.mode} there"
    if place.mode == "shared" and state.gpu.pin is None and place.sharing not in state.host.sharing:
        return f"policy does not allow {place.sharing} there"
    if place.slice is None:
        return (
            f"its GPU has less than {format_size(need.memory_mib)}"
            if place.mode == "whole" and state.gpu.memory_mib < need.memory_mib
            else ""
        )
    allowed = state.cutter is not None and place.slice.profile in state.cutter.acceptable(need.memory_mib, need.compute, need.profile)
    return "" if allowed else f"{place.slice.profile} does not serve {what(need)}"


def drains(fleet: Fleet, place: Placement) -> list[Drain]:
    """The drains of the GPUs of a place on a host of this run."""
    host = fleet.hosts.get(place.host)
    if host is None or not fleet.drained:
        return []
    return [state.gpu.drain for state in host.usable(place.gpus) if state.gpu.drain is not None]


def must_leave(fleet: Fleet, need: Need, place: Placement) -> bool:
    """Is a place that is right in itself on a GPU that somebody wants empty?"""
    return not need.adopted and bool(drains(fleet, place))
