# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a replica is where the plan puts it: what it has, who else could have given it that, and what decided. One line each."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.elsewhere import Elsewhere, kind_elsewhere
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import not_right
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import keepers, kept
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import Offer
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need, Placement, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import gpu_refusal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import same_place
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several

_STAY: t.Final = "GPUs that NVLink joins stay free together"
# What the parts of an offer's rank compare (offers.py), from left to right; the rest of a rank is names.
_DECIDES: t.Final[Mapping[str, tuple[str, ...]]] = {
    "slice": (
        "{near} on a host",
        "{near} on a GPU",
        "the smallest slice that serves",
        "the smallest slice that serves",
        "no slice has to go",
        "the least change to a GPU",
        "the most stays possible on the GPU",
        _STAY,
    ),
    "exclusive": (
        "{near} on a host",
        "GPUs that NVLink joins",
        "the smallest GPUs that serve",
        "the least change of mode",
        "GPUs without MIG are taken first",
        "the host with the fewest GPUs free",
        _STAY,
    ),
    "shared": (
        "{near} on a host",
        "{near} on a GPU",
        "a GPU that is shared already",
        "the least change of mode",
        "GPUs without MIG are taken first",
        "the fullest GPU that serves",
        _STAY,
    ),
}
_WAYS: t.Final[Mapping[str, str]] = {
    "moved": "moved there so that {by} has room",
    "preempted": "gave way to {by}, which has a higher priority",
    "reclaimed": "gave back to {by} what its team had borrowed",
}


@dataclass(frozen=True)
class Reason:
    """``change``: new, kept or moved; ``hosts`` and ``gpus``: how many could have taken it, its own among them; ``where``: its place and,
    where that is not all of it, the change, in words; ``words``: why."""

    service: str
    replica: int
    change: str
    hosts: int
    gpus: int
    where: str
    words: str

    @property
    def text(self) -> str:
        """All of it: ``1g.10gb@6 on gpu-prod-01 GPU-5c1f07aa, new: 5 GPUs of 2 hosts have room for it``."""
        return f"{self.where}{self.words}"

    @property
    def name(self) -> str:
        """``receipt-ocr-1``."""
        return replica_name(self.service, self.replica)

    def data(self) -> dict[str, t.Any]:
        """For JSON."""
        return {
            "service": self.service,
            "replica": self.replica,
            "change": self.change,
            "hosts": self.hosts,
            "gpus": self.gpus,
            "why": self.text,
        }


def _strangers(problem: Problem, names: Collection[str]) -> Iterator[FleetError]:
    """A line for each name that no service and no replica has."""
    replicas = (replica_name(need.service, number) for need in problem.needs if names for number in range(1, need.replicas + 1))
    known = {need.service for need in problem.needs}.union(replicas, (place.name for place in problem.previous))
    for name in names:
        if name not in known:
            hint = near(name, sorted(known), "write a service, or SERVICE-NUMBER")
            yield FleetError(f"there is no service or replica '{name}'", field="explain", hint=hint)


def leaving_words(problem: Problem) -> Callable[[Placement], str]:
    """Why nobody, or the replica that was there, stays in a place; '' where it may."""
    hosts = {host.name: host for host in problem.hosts}
    needs = {need.service: need for need in problem.needs}
    left: dict[str, str] = {}
    for gpu in (gpu for host in problem.hosts for gpu in host.gpus):
        if gpu.blocked is not None:
            left[gpu.uuid] = f"its GPU is {gpu.blocked}"
        elif gpu.drain is not None:
            left[gpu.uuid] = "it is drained" if gpu.drain.cause == "drain" else f"it is {gpu.drain.words}"
    bare = cache(lambda name: Fleet(Problem((hosts[name],), ())).hosts[name])

    def words(place: Placement) -> str:
        host, need = hosts.get(place.host), needs.get(place.service)
        if host is not None and host.down:
            return f"{place.host} is down"
        closed = next((left[uuid] for uuid in place.gpus if uuid in left), "")
        if closed or host is None or need is None:
            return closed
        states = bare(place.host).usable(place.gpus)
        return not_right(need, place, bare(place.host), states) if states else ""

    return words


def why_here(
    problem: Problem,
    solution: Solution,
    only: Collection[str] | None = None,
    staying: bool = True,
    closer: Collection[tuple[str, int]] = (),
) -> list[Reason]:
    """A reason for each replica that has a place, by service and replica.

    ``only``: names of services or replicas. ``staying``: also those that stay where they were. What others could do is judged by the fleet
    as the plan leaves it, with this one replica taken out. ``closer``: who moves so that GPUs become empty.

    :raises FleetError: nobody has a name of ``only``.
    """
    raise_all(_strangers(problem, only or ()))
    scene = Scene(problem, solution, {})
    before = {(place.service, place.replica): place for place in problem.previous}
    displaced = {key: "moved there so that a GPU becomes empty" for key in closer if key in before}
    displaced.update({(each.service, each.replica): _WAYS[each.way].format(by=each.by) for each in solution.displaced})
    asked = []
    for number, place in enumerate(solution.placements):
        need = scene.needs.get(place.service)
        if need is None or (only is not None and place.service not in only and place.name not in only):
            continue
        old = before.get((place.service, place.replica))
        stays = old is not None and same_place(old, place)
        if staying or not stays:
            asked.append((kind_elsewhere(scene.fleet, need), number, need, place, "kept" if stays else "new" if old is None else "moved"))
    elsewhere = Elsewhere(scene.fleet)
    # Services of a kind one after the other: then what was said for one need not be remembered longer than the kind lasts.
    found = {
        number: _reason(scene, elsewhere, need, place, change, displaced.get((place.service, place.replica)))
        for _kind, number, need, place, change in sorted(asked, key=itemgetter(0, 1))
    }
    return [found[number] for number in sorted(found)]


def room_notes(problem: Problem, solution: Solution) -> Iterator[str]:
    """A line for each host where a service wants room kept for its rollouts, and there is none: what runs runs on."""
    if not any(need.keep_room for need in problem.needs):
        return
    fleet = Scene(problem, solution, {}).fleet
    for name, host in fleet.hosts.items():
        there = kept(fleet, host).services
        for service in sorted(need.service for need in keepers(fleet, host) if need.service not in there):
            yield f"{name}: there is no room for a rollout of {service} beside it (rollout.keep_room), and nobody goes for it"


def reason_lines(reasons: Collection[Reason]) -> list[str]:
    """``receipt-ocr-1: new, ...`` for people."""
    return [f"{each.name}: {each.text}" for each in reasons]


def _reason(scene: Scene, elsewhere: Elsewhere, need: Need, place: Placement, change: str, displaced: str | None) -> Reason:
    host = scene.fleet.hosts.get(place.host)
    if host is None or host.host.down or need.adopted:
        text = "kept: it is adopted, and nothing moves it" if need.adopted else f"kept: {place.host} is not seen in this run"
        return Reason(place.service, place.replica, change, 0, 0, "", text)
    host.unseat(need, place)
    own, others = elsewhere.of(need, host, dict(place.ports))
    closed = any(gpu_refusal(state, need) is not None for state in host.usable(place.gpus))
    scene.occupy(place)
    hosts, gpus = others.hosts + (own is not None), others.gpus + (own.gpus if own else 0)
    what = f"{place.slice or place.mode} on {place.host} {','.join(uuid[:12] for uuid in place.gpus)}, "
    could = _could(hosts, gpus, "other " if closed else "")
    if displaced is not None:
        words = f"{displaced}; {could}"
    elif change == "kept":
        words = f"kept: its place is still right; {could}"
    else:
        what, words = f"{what}{change}: ", f"{could}{_decided(need, host, own and own.offer, others.best)}"
    return Reason(place.service, place.replica, change, hosts, gpus, what, words)


def _could(hosts: int, gpus: int, other: str) -> str:
    """``other``: a word for GPUs where its own, which is closed to what is new, is none of them."""
    if not hosts:
        return "nothing else has room for it now"
    if gpus == 1:
        return "one other GPU has room for it" if other else "the only GPU with room for it"
    return f"{gpus} {other}GPUs of {several(hosts, 'host')} have room for it"


def _decided(need: Need, host: HostState, own: Offer | None, best: Offer | None) -> str:
    """What its own offer was better in than the ``best`` of other hosts; or that another would suit it better as things are now."""
    if own is None or best is None:
        return ""
    other = best.host.host
    words = list(_words(need))
    index = next(number for number, pair in enumerate(zip(own.rank, best.rank, strict=True)) if pair[0] != pair[1])
    if index < len(words):
        if own.rank < best.rank:
            return f"; chosen for {words[index]}"
        return f"; by itself it would go to {other.name} now ({words[index]}): the plan for all, or an earlier turn, has it here"
    if own.rank > best.rank:
        return f"; {other.name} would do as well"
    # Where nothing else differs hosts have an order (``Host.order``), which ends with their names.
    equal = replace(host.host, name="").order == replace(other, name="").order
    return "; all alike, so the first by name" if equal else "; all do as well, so the one with more GPUs, then by boards, CPUs and policy"


def _words(need: Need) -> Iterator[str]:
    near = "the most replicas of it" if need.rules.spread == "pack" else "the fewest replicas of it"
    return (word.format(near=near) for word in _DECIDES[need.isolation])
