# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the new version of a service can prove itself beside the old one: the place of one more replica on one host. Pure.

The planner itself is asked, about this host alone: everything that the host's plan places is where the plan has it, and one need more
looks for a place. A place counts only when everything else came out exactly as the plan has it and no slice of the plan's layout has to go.
"""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import SURGE, devices_of, managed, surge_name, wish_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import Held, Last, held_by, words_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import HostPlan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MODE_OF,
    MPS,
    TIME_SLICE,
    Bars,
    Drain,
    Gpu,
    Host,
    Need,
    Pin,
    Placement,
    Problem,
    Resources,
    Solution,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtime_rules import ALONE

Data = Mapping[str, t.Any]

# No service can have this in its name, so what is added for the planner meets no other service.
_EXTRA = "+surge"
STALE = "the plan is not made from what this host is now; run playbook plan again"


@dataclass(frozen=True)
class Surge:
    """One more replica of a service on its host. ``layout``: option ``layout`` of module ``mig`` while it is there; ``partitions``: that is
    not the plan's; ``restore``: entries for the GPUs in it that the plan does not name, as they are to be afterwards.
    """

    placement: Placement
    layout: Sequence[Data]
    partitions: bool
    restore: Sequence[Data] = ()

    @property
    def where(self) -> str:
        """For people: ``1g.10gb@4``, or ``GPU-5c1f07aa whole``."""
        place = self.placement
        return str(place.slice) if place.slice else f"{','.join(uuid[:12] for uuid in place.gpus)} {place.mode}"

    def data(self, service: str) -> dict[str, t.Any]:
        """What the play and role ``model_service`` are given; ``placement`` has the form of a plan's line."""
        place = self.placement
        line: dict[str, t.Any] = {"service": service, "replica": 0}
        if place.slice is not None:
            line.update(gpu=place.gpus[0], profile=place.slice.profile, start=place.slice.start)
        elif place.mode == "shared":
            line.update(gpu=place.gpus[0], mode="shared", **({} if place.sharing == TIME_SLICE else {"sharing": place.sharing}))
        else:
            line.update(gpus=list(place.gpus), mode="whole")
        line["ports"] = dict(place.ports)
        return {
            **line,
            "mode": place.mode,
            "project": surge_name(service),
            "placement": line,
            "devices": devices_of(line),
            "layout": [dict(entry) for entry in self.layout],
            "restore": [dict(entry) for entry in self.restore],
            "partitions": self.partitions,
        }


@dataclass(frozen=True)
class Site:
    """One host at one moment: its plan, what was sensed, what policy allows, and all manifests.

    ``stopped``: replicas that are stopped before anything else happens, so that what they hold now is in nobody's way.
    ``bars``: service -> where the compatibility gate says no. ``last``: of replicas by name what runs now, as far as it is known.
    """

    name: str
    plan: HostPlan
    facts: Data
    policy: Policy
    manifests: Sequence[Manifest]
    catalogue: Catalogue
    stopped: frozenset[str] = field(default_factory=frozenset)
    bars: Mapping[str, Bars] = field(default_factory=dict)
    last: Mapping[str, Last] = field(default_factory=dict)

    def manifest(self, service: str) -> Manifest | None:
        """The manifest of a service."""
        return next((each for each in self.manifests if each.service == service), None)

    def services(self) -> list[str]:
        """The services that the collection itself runs here, in the plan's order."""
        return list(dict.fromkeys(str(line["service"]) for line in self.plan.data["services"] if managed(line)))

    def running(self, name: str) -> bool | None:
        """Does a container of this project run? None where the facts do not tell of containers."""
        boxes = self.facts.get("containers")
        if boxes is None:
            docker = (self.facts.get("engine") or {}).get("docker") or {}
            return False if docker.get("present") is False else None
        return any(box.get("project") == name and box.get("state") == "running" for box in boxes)


class Surges:
    """The surges of a host: those that are there still, and the places that there are for more."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._here = tuple(site.plan.placements)
        #: What the planner has to know of each service.
        self.needs = {manifest.service: need_of(manifest, site.bars) for manifest in site.manifests}
        # Replicas that run by another manifest than that of now, and GPUs on which these leave no room for one more.
        self._old: Collection[str] = ()
        self._full: set[str] = set()
        self._left: dict[str, Placement] = {}
        self._facts = _without(site.facts, site.stopped)
        for service, found in _leftovers(site, self.needs):
            self._try_to_keep(service, found)

    def leftovers(self) -> list[str]:
        """Services whose surge of an earlier play stays until its rollout ends."""
        return sorted(self._left)

    def layout(self) -> list[dict[str, t.Any]]:
        """The plan's layout, with the slices of the surges that are there still."""
        return self._wishes(self._left.values())[0]

    def restore(self) -> list[dict[str, t.Any]]:
        """GPUs that the plan does not name and on which such surges are, or have left a slice, as they are to be afterwards."""
        restored = self._wishes(self._left.values())[1]
        return restored + self._forgotten({*self._planned(), *(wish["gpu"] for wish in restored)})

    def host(self) -> Host:
        """The host as the planner sees it."""
        return self._plain_host()

    def place(self, service: str, old: Collection[str] = ()) -> Surge | str:
        """The place of one more replica of a service, or why there is none. ``old``: replicas that still hold what they had."""
        self._old, self._full = old, set()
        manifest = self._site.manifest(service)
        if manifest is None:
            return "no manifest describes it"
        if manifest.model.rollout.way == "stop-first":
            return "its manifest asks for it"
        if manifest.model.runtime in ALONE:
            return f"two at once would work on the same files (runtime {manifest.model.runtime})"
        if service in self._left:
            return self._surge(self._left[service])
        need = self._at_least_as_large(self.needs[service])
        reason = ""
        for host in self._hosts(need):
            found = self._ask_beside(host, need)
            if isinstance(found, Surge) and need.isolation == "shared" and not self._as_shared(service, found.placement):
                found = "the GPU with room is not like the one that it has, or has an MPS daemon of its own"
            if not isinstance(found, str):
                return found
            reason = reason or found
        return reason

    def _at_least_as_large(self, need: Need) -> Need:
        """The need of a replica that has the memory of what the service has here: its flags are made for that."""
        sizes = [need.memory_mib]
        for gpu in self._host(need).gpus:
            for place in (each for each in self._here if each.service == need.service and gpu.uuid in each.gpus and each.mode != "shared"):
                profiles = gpu.geometry.profiles if place.slice is not None and gpu.geometry is not None else ()
                sizes += [one.memory_mib for one in profiles if place.slice is not None and one.name == place.slice.profile]
                sizes += [gpu.memory_mib] if place.slice is None else []
        return replace(need, memory_mib=max(sizes))

    def _as_shared(self, service: str, place: Placement) -> bool:
        """A sharer is told its part of one GPU's memory, and the pipe of one MPS daemon: is this GPU the same, or at least alike?"""
        memory = {gpu.uuid: gpu.memory_mib for gpu in self._host(self.needs[service]).gpus}
        homes = {uuid for each in self._here if each.service == service for uuid in each.gpus}
        if place.sharing == MPS:
            return set(place.gpus) <= homes
        return all(memory.get(uuid) == memory.get(home) for uuid in place.gpus for home in homes)

    def _try_to_keep(self, service: str, found: Placement) -> None:
        """Take a surge for one that stays, when the plan leaves it its place."""
        self._left[service] = found
        before = self._facts
        self._facts = _as_replica(self._facts, surge_name(service), found.name)
        host = self._host(self.needs[service])
        kept = [each for each in self._solve(host, []).placements if each.service == found.service]
        if [(each.gpus, each.slice) for each in kept] == [(found.gpus, found.slice)]:
            self._left[service] = kept[0]
            if self._rest(self._solve(host, [])) == self._wanted() and self._wishes(self._left.values())[2] is None:
                return
        del self._left[service]
        self._facts = before

    def _ask_beside(self, host: Host, need: Need) -> Surge | str:
        """One that has room while those of before hold more than they will."""
        more = self._more()
        left = host.capacity
        for place in (*self._here, *self._left.values()):
            left = left.less(self.needs[place.service.removesuffix(_EXTRA)].resources if self._known(place) else Resources())
        for amounts in more.values():
            left = left.less(amounts.resources)
        if more and (short := left.shortage(need.resources)):
            return f"too little {' and '.join(words_of(kind) for kind in short)} while the old versions run"
        found = self._ask(self._without_full(host), need)
        while isinstance(found, Surge) and need.isolation == "shared" and not self._has_room(host, need, found.placement, more):
            self._full.update(found.placement.gpus)
            found = self._ask(self._without_full(host), need)
        return "no GPU with room while the old versions run" if self._full and isinstance(found, str) and found != STALE else found

    def _known(self, place: Placement) -> bool:
        return place.service.removesuffix(_EXTRA) in self.needs

    def _more(self) -> dict[str, Held]:
        """Of replicas that still hold what they had, by how much that is more than they will hold."""
        found = {}
        for place in self._here:
            last = self._site.last.get(place.name)
            if last is not None and place.name in self._old and place.service in self.needs:
                found[place.name] = last.held.beyond(held_by(self.needs[place.service]))
        return {name: each for name, each in found.items() if each != Held()}

    def _without_full(self, host: Host) -> Host:
        """A GPU without room keeps whom it has, and gets nobody."""
        return replace(host, gpus=tuple(replace(gpu, cordoned=True) if gpu.uuid in self._full else gpu for gpu in host.gpus))

    def _has_room(self, host: Host, need: Need, place: Placement, more: Mapping[str, Held]) -> bool:
        for gpu in (gpu for gpu in host.gpus if gpu.uuid in place.gpus):
            beside = [each for each in (*self._here, *self._left.values()) if gpu.uuid in each.gpus]
            needs = [need, *(self.needs[each.service.removesuffix(_EXTRA)] for each in beside if self._known(each))]
            extras = [more[each.name] for each in beside if each.name in more]
            memory = sum(each.memory_mib for each in needs) + sum(each.memory_mib or 0 for each in extras)
            compute = sum(each.compute or 0 for each in needs) + sum(each.compute for each in extras)
            if memory > gpu.memory_mib - host.shared_reserve_mib or compute > host.shared_compute + 1e-6:
                return False
        return True

    def _ask(self, host: Host, need: Need) -> Surge | str:
        """One question to the planner."""
        extra = _extra(need)
        solution = self._solve(host, [extra])
        place = next((each for each in solution.placements if each.service == extra.service), None)
        if self._rest(solution) != self._wanted():
            return STALE
        if place is None:
            (missing,) = [each for each in solution.unplaced if each.service == extra.service]
            return missing.reason.removeprefix(f"{host.name}: ")
        return self._surge(place)

    def _solve(self, host: Host, extras: Iterable[Need]) -> Solution:
        """The plan's own services, the surges that are there, and the extras, on this host alone."""
        here = {(each.service, each.replica) for each in self._here}
        # A replica of another host, or without a place anywhere, looks for none here: a host that is not part of the question keeps it.
        elsewhere = [
            Placement(need.service, number, "", MODE_OF[need.isolation], ())
            for need in self.needs.values()
            for number in range(1, need.replicas + 1)
            if (need.service, number) not in here
        ]
        left = [_extra(self.needs[service]) for service in self._left]
        more = [*left, *extras]
        previous = (*self._here, *elsewhere, *self._left.values())
        # Whose surge it is may have the room that is kept for it; that of others it may not.
        served = {each.service.removesuffix(_EXTRA) for each in more}
        needs = [replace(need, keep_room=False) if need.service in served else need for need in self.needs.values()]
        return make_plan(Problem((host,), (*needs, *more), previous))

    def _wanted(self) -> set[Placement]:
        return {*self._here, *self._left.values()}

    def _rest(self, solution: Solution) -> set[Placement]:
        """What is on this host besides the one replica that was asked for."""
        known = {each.service for each in self._wanted()}
        return {place for place in solution.by_host.get(self._site.name, ()) if place.service in known}

    def _hosts(self, need: Need) -> t.Iterator[Host]:
        """The host as it is; then only slices that are there can be given away; then all of those stay, and none of them is given."""
        host = self._host(need)
        yield host
        if need.isolation == "slice":
            owned = {(uuid, each.slice) for each in self._wanted() for uuid in each.gpus}
            yield replace(host, gpus=tuple(self._only_reuse(gpu) for gpu in host.gpus))
            yield replace(host, gpus=tuple(_spares_stay(gpu, owned) for gpu in host.gpus))

    def _host(self, need: Need) -> Host:
        host = host_of(self._site.name, self._facts, self._site.policy, self._site.catalogue, [*self._wanted()])
        return replace(host, gpus=tuple(self._as_found(gpu, need) for gpu in host.gpus))

    def _as_found(self, gpu: Gpu, need: Need) -> Gpu:
        """A GPU that no decision touches is not brought into another MIG mode for a surge, which may need a reset, nor given a daemon."""
        if gpu.drain is not None or gpu.uuid in self._planned() or any(gpu.uuid in each.gpus for each in self._wanted()):
            return gpu
        if gpu.mig != (need.isolation == "slice"):
            return replace(gpu, drain=Drain("in MIG mode" if gpu.mig else "not in MIG mode"))
        if need.isolation == "shared" and need.sharing == MPS:
            return replace(gpu, drain=Drain("without an MPS daemon"))
        return gpu

    def _only_reuse(self, gpu: Gpu) -> Gpu:
        """As if the platform had pinned the slices that are there."""
        slices = self._planned().get(gpu.uuid, tuple(each.slice for each in gpu.instances) if gpu.mig else None)
        if gpu.pin is not None or slices is None or not all(each.plain for each in gpu.instances):
            return gpu
        return replace(gpu, pin=Pin("mig", slices))

    def _planned(self) -> dict[str, tuple[Slice, ...] | None]:
        """Slices of each GPU that the plan names; None of one without MIG."""
        found: dict[str, tuple[Slice, ...] | None] = {}
        for wish in wish_of(self._site.plan.data):
            slices = tuple(sorted(Slice(int(one["start"]), str(one["profile"])) for one in wish["instances"]))
            found[wish["gpu"]] = slices if wish["mig"] else None
        return found

    def _surge(self, place: Placement) -> Surge | str:
        others = [each for each in self._left.values() if each != place]
        layout, restore, problem = self._wishes([*others, place])
        if problem is not None:
            return problem
        return Surge(place, layout, layout != wish_of(self._site.plan.data), restore)

    def _wishes(self, places: Iterable[Placement]) -> tuple[list[dict[str, t.Any]], list[dict[str, t.Any]], str | None]:
        """(The layout with these places, what GPUs beside the plan had before, why it cannot be)."""
        wishes = {wish["gpu"]: wish for wish in wish_of(self._site.plan.data)}
        by_uuid = {gpu.get("uuid"): gpu for gpu in self._facts["gpus"]}
        wanted = list(places)
        # What the policy says is of no matter to a plan that needs no more room.
        geometries = {gpu.uuid: gpu.geometry for gpu in self._plain_host().gpus} if wanted else {}
        restore: dict[str, dict[str, t.Any]] = {}
        for place in wanted:
            if place.slice is None:
                continue
            uuid, new = place.gpus[0], {"profile": place.slice.profile, "start": place.slice.start, "temporary": True}
            there = _found_slices(by_uuid.get(uuid) or {})
            if uuid not in wishes:
                if place.slice in {_slice(one) for one in there} and place not in self._left.values():
                    continue  # a slice that is there for nobody, on a GPU that stays as it is
                before = [one for one in there if _slice(one) != place.slice]
                restore[uuid] = {"gpu": uuid, "mig": True, "instances": before}
                wishes[uuid] = {"gpu": uuid, "mig": True, "instances": list(before)}
            instances = wishes[uuid]["instances"]
            if place.slice not in {_slice(one) for one in instances}:
                wishes[uuid]["instances"] = sorted([*instances, new], key=lambda one: (one["start"], one["profile"]))
            geometry = geometries.get(uuid)
            problem = "its GPU is not there" if geometry is None else why_not(geometry, [_slice(one) for one in wishes[uuid]["instances"]])
            if problem is not None:
                return [], [], f"its slice would take the place of another: {problem}"
        return list(wishes.values()), list(restore.values()), None

    def _forgotten(self, named: Collection[str]) -> list[dict[str, t.Any]]:
        """GPUs beside those named that have a slice which a rollout left and nobody holds, as they are to be."""
        suspects = [gpu for gpu in self._facts["gpus"] if gpu["uuid"] not in named and _temporary(gpu)]
        # As in _wishes: what the policy says is of no matter where there is nothing to give back.
        kept = {gpu.uuid: {one.slice for one in gpu.instances} for gpu in self._plain_host().gpus} if suspects else {}
        return [
            {"gpu": gpu["uuid"], "mig": True, "instances": _found_slices(gpu)}
            for gpu in suspects
            if any(_slice(one) not in kept[gpu["uuid"]] for one in _temporary(gpu))
        ]

    def _plain_host(self) -> Host:
        return host_of(self._site.name, self._facts, self._site.policy, self._site.catalogue, [*self._wanted()])


def _extra(need: Need) -> Need:
    """One more replica as a service of its own: after all others, on any port."""
    ports = tuple((name, None) for name, _port in need.ports)
    return replace(need, service=f"{need.service}{_EXTRA}", replicas=1, priority=-1, ports=ports, adopted=False, keep_room=False)


def _slice(one: Data) -> Slice:
    return Slice(int(one["start"]), str(one["profile"]))


def _instances(gpu: Data) -> t.Sequence[Data]:
    return (gpu.get("mig") or {}).get("instances") or ()


def _temporary(gpu: Data) -> list[Data]:
    """Slices of a GPU in the facts that were made for a rollout."""
    return [one for one in _instances(gpu) if one.get("temporary")]


def _found_slices(gpu: Data) -> list[dict[str, t.Any]]:
    """The slices of a GPU in the facts as entries of a layout, without those of rollouts; one without a compute instance stays without."""
    found = [
        {"profile": str(one["profile"]), "start": int(one["start"]), **({} if one.get("ci") else {"compute": "keep"})}
        for one in _instances(gpu)
        if not one.get("temporary")
    ]
    return sorted(found, key=lambda one: (one["start"], one["profile"]))


def _spares_stay(gpu: Gpu, owned: Collection[tuple[str, Slice | None]]) -> Gpu:
    """As if somebody held every slice that is given to nobody."""
    stay = tuple(each if (gpu.uuid, each.slice) in owned else replace(each, outsiders=("the layout",)) for each in gpu.instances)
    return replace(gpu, instances=stay)


def _leftovers(site: Site, needs: Mapping[str, Need]) -> t.Iterator[tuple[str, Placement]]:
    """(service, place) of the surges whose containers an earlier play left on this host, in the order of their names."""
    boxes = sorted(site.facts.get("containers") or (), key=lambda box: (str(box.get("project")), str(box.get("name"))))
    seen: set[str] = set()
    for box in boxes:
        service = str(box.get("project") or "").removesuffix(SURGE)
        if box.get("project") != surge_name(service) or service in seen or service not in needs or service not in site.services():
            continue
        where = _where(site.facts, [str(uuid) for uuid in box.get("devices") or ()])
        manifest = site.manifest(service)
        if where is None or manifest is None or (needs[service].isolation == "slice" and where[1] is None):
            continue
        seen.add(service)
        by_container = {port.get("container"): port.get("host") for port in box.get("ports") or ()}
        ports = tuple(sorted((one.name, by_container[one.container]) for one in manifest.model.ports if by_container.get(one.container)))
        need = needs[service]
        sharing = need.sharing if need.isolation == "shared" else TIME_SLICE
        yield service, Placement(f"{service}{_EXTRA}", 1, site.name, MODE_OF[need.isolation], where[0], where[1], ports, sharing)


def _where(facts: Data, devices: Sequence[str]) -> tuple[tuple[str, ...], Slice | None] | None:
    """(GPUs, slice) that a container names; None where it names what is not there, or more than one slice."""
    gpus = [str(gpu["uuid"]) for gpu in facts["gpus"] if gpu.get("uuid") in devices]
    if devices and len(gpus) == len(devices):
        return tuple(gpus), None
    parts = {
        part.get("uuid"): (str(gpu["uuid"]), _slice(one))
        for gpu in facts["gpus"]
        for one in _instances(gpu)
        for part in one.get("ci") or ()
    }
    if len(devices) != 1 or devices[0] not in parts:
        return None
    uuid, slice_ = parts[devices[0]]
    return (uuid,), slice_


def _without(facts: Data, projects: Collection[str]) -> Data:
    """The facts as they are when these projects are stopped."""
    gone = {box.get("id") for box in facts.get("containers") or () if box.get("project") in projects}
    if not gone:
        return facts
    gpus = [
        {**gpu, "holders": [holder for holder in gpu["holders"] if holder.get("container") not in gone]} if gpu.get("holders") else gpu
        for gpu in facts["gpus"]
    ]
    return {**facts, "gpus": gpus, "containers": [box for box in facts["containers"] if box.get("id") not in gone]}


def _as_replica(facts: Data, project: str, name: str) -> Data:
    """The facts with a surge's containers under the name that its placement has, so that they are not taken for somebody else's."""
    boxes = [{**box, "project": name} if box.get("project") == project else box for box in facts.get("containers") or ()]
    return {**facts, "containers": boxes}
