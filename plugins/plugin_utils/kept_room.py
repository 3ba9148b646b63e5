# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Room kept for rollouts (``rollout.keep_room``): beside all who are on a host, one more replica of each such service that is there has a
place on it, all of them at once.

Nobody has that place: where it is, is looked for anew whenever somebody comes, so the room may be wherever the host has it. It has to be
such that ``surge.py`` can use it: as large as what the service has there, and on no GPU that would have to change its mode first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import Offer, every, question_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Slices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, MPS, Need, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState, take

# No service can have this in its name.
_EXTRA = "+room"


@dataclass(frozen=True)
class Kept:
    """``services``: those for which there is room. ``spares``: of each GPU the slices that nobody needs and that may stay beside it."""

    services: frozenset[str] = frozenset()
    spares: Mapping[str, Slices] | None = None


def keepers(fleet: Fleet, host: HostState) -> list[Need]:
    """Services with a replica on the host that want room kept there, whoever comes first before the others."""

    def found() -> list[Need]:
        there = [need for service, need in fleet.keepers.items() if host.replicas.get(service, 0) > 0]
        return sorted(there, key=lambda need: (-need.priority, need.isolation != "exclusive", -need.count, -need.memory_mib, need.service))

    return host.once("keepers", found)


def room_question(fleet: Fleet, host: HostState, need: Need) -> tuple[object, ...]:
    """Equal for needs to which kept room on a host leaves the same; who has replicas there, or keeps room, is like no other."""
    own = need.service if need.service in fleet.keepers or host.replicas.get(need.service) else ""
    return (question_of(fleet, need), _least(fleet, need), need.resources, own)


def _least(fleet: Fleet, need: Need) -> int:
    """The lowest priority whose room a need has to leave: with preemption it could take the places themselves."""
    return need.priority if fleet.preemption else -1


def kept(fleet: Fleet, host: HostState, least: int = -1) -> Kept:
    """For whom there is room beside everything that is on the host. ``least``: only services of this priority or a higher one."""
    there = [need for need in keepers(fleet, host) if need.priority >= least]
    return host.once(("room", len(there)), partial(_kept, fleet, host, there))  # the highest come first


def _kept(fleet: Fleet, host: HostState, there: Sequence[Need]) -> Kept:
    if not there:
        return Kept()
    found = set()
    own: dict[str, Slices] = {}
    with _tried(host):
        for need in there:
            more = _one_more(fleet, host, need)
            able = [state for state in host.gpus if _usable(host, need, state)]
            for offer in sorted(every(host, more, able), key=lambda each: each.rank):
                if _sit(fleet, host, more, offer):
                    found.add(need.service)
                    if offer.cut is not None:
                        uuid = offer.gpus[0].gpu.uuid
                        own[uuid] = (*own.get(uuid, ()), offer.cut.slice)
                    break
        spares = {state.gpu.uuid: (*state.spare, *own.get(state.gpu.uuid, ())) for state in host.gpus}
    return Kept(frozenset(found), spares)


def taken_from(fleet: Fleet, host: HostState, need: Need, place: Placement, states: tuple[GpuState, ...]) -> tuple[str, ...]:
    """Services that would have no room kept any more if this place were given away; its own too, if there were none for it.

    With preemption a replica may take the room of lower priorities: it could take the places themselves.
    """
    if need.service not in fleet.keepers and not keepers(fleet, host):
        return ()
    least = _least(fleet, need)
    own = need.service if need.service in fleet.keepers else ""
    size = (need.memory_mib, need.compute, need.resources, own)
    asked = ("taken from", least, *size, place.mode, place.sharing, place.gpus, place.slice, tuple(port for _name, port in place.ports))
    return host.once(asked, partial(_taken_from, fleet, host, need, place, states, least))


def _taken_from(fleet: Fleet, host: HostState, need: Need, place: Placement, states: tuple[GpuState, ...], least: int) -> tuple[str, ...]:
    before = kept(fleet, host, least).services
    with _tried(host):
        if not take(need, place, states):
            return ()
        _book(host, need, place)
        now = kept(fleet, host, least).services
    own = {need.service} if need.service in fleet.keepers else set()
    return tuple(sorted((before | own) - now))


def rooms(fleet: Fleet, need: Need) -> dict[str, frozenset[str]]:
    """The services that have room kept on each host, as far as the need has to leave it to them."""
    least = _least(fleet, need)
    turns = sorted({turn for service in fleet.keepers for turn in fleet.diary.having(service)})
    hosts = [fleet.by_turn[turn] for turn in turns]
    return {host.host.name: kept(fleet, host, least).services for host in hosts}


def robbed(fleet: Fleet, need: Need, before: Mapping[str, frozenset[str]]) -> bool:
    """Has a service less room than it had, on a host where it still is? Who leaves may take room with him: a GPU that nobody is on any more
    may have to change its mode first."""
    now = rooms(fleet, need)
    return any(fleet.hosts[name].replicas.get(each, 0) > 0 for name, had in before.items() for each in had - now.get(name, frozenset()))


def in_the_way(fleet: Fleet, host: HostState, need: Need) -> tuple[str, ...]:
    """Services whose kept room is all that keeps a need from the host; nothing when it has another place there, or none at all."""
    if not fleet.keepers or not host.free.holds(need.resources):
        return ()
    ports = host.choose_ports(need, f"{need.service}{_EXTRA}-1", {}, fleet.asked)
    # Where it finds none, what is kept there may be in its way besides.
    taken = () if isinstance(ports, str) else tuple(sorted(ports.items()))
    asked = ("in the way", *room_question(fleet, host, need), taken)
    return host.once(asked, partial(_in_the_way, fleet, host, need, taken))


def _in_the_way(fleet: Fleet, host: HostState, need: Need, ports: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    first: tuple[str, ...] = ()
    for offer in sorted(every(host, need), key=lambda each: each.rank):
        lost = taken_from(fleet, host, need, _place(host, need, offer, ports), offer.gpus)
        if not lost:
            return ()
        first = first or lost
    return first


def words(need: Need, lost: tuple[str, ...]) -> str:
    """Why a host refuses a need for whose sake there would be too little room."""
    if lost == (need.service,):
        return "has no room for its rollout beside it (keep_room)"
    return f"keeps its room for a rollout of {' and '.join(lost)} (keep_room)"


@contextmanager
def _tried(host: HostState) -> Iterator[None]:
    """Whatever is done to the host is undone at the end."""
    saved, states = host.save(), [(state, state.save()) for state in host.gpus]
    try:
        yield
    finally:
        host.load(saved)
        for state, before in states:
            state.load(before)


def _one_more(fleet: Fleet, host: HostState, need: Need) -> Need:
    """What a surge of the service asks for: any ports, and as much memory on each GPU as its replicas have here."""
    sizes = [need.memory_mib]
    for state in host.gpus:
        if state.replicas.get(need.service, 0) > 0 and state.mode == "whole":
            sizes.append(state.gpu.memory_mib)
        for one, owner in state.owners.items():
            if owner.rpartition("-")[0] == need.service and state.cutter is not None and one.profile in state.cutter.profiles:
                sizes.append(state.cutter.profiles[one.profile].memory_mib)
    size = max(sizes)
    if (need.service, size) not in fleet.extras:
        ports = tuple((name, None) for name, _port in need.ports)
        # What a rollout has beside the old version counts against no quota, and the room for it neither.
        more = replace(need, service=f"{need.service}{_EXTRA}", memory_mib=size, replicas=1, ports=ports, team="", keep_room=False)
        fleet.extras[need.service, size] = more
    return fleet.extras[need.service, size]


def _usable(host: HostState, need: Need, state: GpuState) -> bool:
    """Would a rollout use this GPU? It changes no mode for a surge, and a share is to be like the one that the service has."""
    if state.mode is None and (state.changes_mode(MODE_OF[need.isolation]) or (need.isolation == "shared" and need.sharing == MPS)):
        return False
    if need.isolation != "shared":
        return True
    homes = [each for each in host.gpus if each.replicas.get(need.service, 0) > 0]
    return state in homes if need.sharing == MPS else all(each.gpu.memory_mib == state.gpu.memory_mib for each in homes)


def _sit(fleet: Fleet, host: HostState, need: Need, offer: Offer) -> bool:
    """Take what the offer says, until the trial ends; False when it cannot be."""
    if not host.free.holds(need.resources) or (offer.cut is not None and offer.cut.dropped and offer.gpus[0].mode is None):
        return False  # of a GPU that no decision touches, no slice goes
    ports = host.choose_ports(need, f"{need.service}-1", {}, fleet.asked)
    if isinstance(ports, str):
        return False
    place = _place(host, need, offer, tuple(sorted(ports.items())))
    if not take(need, place, offer.gpus):
        return False
    _book(host, need, place)
    return True


def _place(host: HostState, need: Need, offer: Offer, ports: tuple[tuple[str, int], ...]) -> Placement:
    gpus = tuple(state.gpu.uuid for state in offer.gpus)
    found = None if offer.cut is None else offer.cut.slice
    return Placement(need.service, 1, host.host.name, MODE_OF[need.isolation], gpus, found, ports, need.sharing)


def _book(host: HostState, need: Need, place: Placement) -> None:
    host.forget()
    host.free = host.free.less(need.resources)
    host.ports.update({port: place.name for _name, port in place.ports})
    host.replicas[need.service] = host.replicas.get(need.service, 0) + 1
