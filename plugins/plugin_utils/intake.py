# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts, policy, manifests and last plans of a fleet as one problem for the planner."""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, find_profile, parse_slice, why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import mps_client_limit
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name, surge_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import only_watches, replica_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.facts_form import check_form
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, PlacementRules
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import amount
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Layout, Policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    RELEASE,
    RELEASE_HOST,
    TIME_SLICE,
    Bars,
    Drain,
    Gpu,
    Host,
    Instance,
    Need,
    Pin,
    Placement,
    Resources,
    Rules,
    as_one,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import gib

FACTS_SCHEMA = 1
# Holders of these kinds compute. A file that is merely open (a monitor, the persistence daemon) keeps no service away.
COMPUTING = frozenset({"compute", "graphics", "mps"})
_NVIDIA = "0x10de"
_RESERVE = "write what the system itself needs, or see why so little was found (a disk that is not mounted?)"

Facts = Mapping[str, t.Any]


def check_facts(host: str, facts: object) -> Facts:
    """:raises FleetError: these are no host facts, of another version than this code reads, or damaged."""
    if not isinstance(facts, Mapping) or "schema" not in facts:
        raise FleetError(
            "these are not host facts", file=f"host {host}", field="facts", hint="give what gpuops.fleet.gpu_info returns as 'facts'"
        )
    if facts["schema"] != FACTS_SCHEMA:
        wrong = f"host facts of schema {facts['schema']} were given, and this collection reads schema {FACTS_SCHEMA}"
        raise FleetError(wrong, file=f"host {host}", field="facts.schema", hint="use the same version of gpuops.fleet everywhere")
    for part, kind in (("host", Mapping), ("gpus", Sequence), ("geometries", Mapping)):
        if not isinstance(facts.get(part), kind):
            raise FleetError(
                f"'{part}' is missing", file=f"host {host}", field="facts", hint="give what gpuops.fleet.gpu_info returns as 'facts'"
            )
    check_form(host, facts)
    return facts


def need_of(manifest: Manifest, bars: Mapping[str, Bars] | None = None) -> Need:
    """What the planner has to know of a service. ``bars``: service -> where the compatibility gate says no."""
    model = manifest.model
    return Need(
        service=manifest.service,
        environment=model.environment,
        isolation=model.gpu.isolation,
        memory_mib=manifest.need_mib(),
        replicas=model.replicas,
        priority=model.priority,
        count=model.gpu.count,
        profile=model.gpu.profile,
        compute=model.gpu.compute,
        sharing=model.gpu.sharing or TIME_SLICE,
        models=tuple(sorted(model.gpu.models)),
        not_models=tuple(sorted(model.gpu.not_models)),
        resources=Resources(model.host.cpus, model.host.memory, model.host.shm, model.host.disk),
        ports=tuple(sorted((port.name, port.host) for port in model.ports)),
        adopted=model.lifecycle == "adopted",
        bars=(bars or {}).get(manifest.service, {}),
        team=model.team,
        rules=_rules(model.placement),
        nvlink=model.gpu.nvlink or "preferred",
        data_class=model.data_class,
        keep_room=model.rollout.keep_room,
        move_cost=model.placement.move_cost,
    )


def _rules(said: PlacementRules) -> Rules:
    return Rules(
        said.spread, said.max_per_host, said.max_per_gpu, tuple(sorted(said.apart)), tuple(sorted(said.together)), said.all_or_nothing
    )


def host_of(
    name: str, facts: Facts, policy: Policy, catalogue: Catalogue, previous: Iterable[Placement], serial: int | None = None
) -> Host:
    """One host as the planner sees it.

    ``serial``: of the last plan that was written for the host; None counts who left its plans and still runs as one that no plan knows.

    :raises FleetError: the policy names a GPU that the host does not have, or a layout that its board cannot have.
    """
    here = [placement for placement in previous if placement.host == name]
    leaving = _leaving(facts, serial)
    # As they come from a host; facts that were merged or written by hand may have another order.
    entries = [*sorted(facts["gpus"], key=lambda entry: (entry.get("pci") or "~", entry.get("uuid") or "")), *given_away(facts)]
    pins = _named(name, entries, policy.fleet_gpu_layouts, "fleet_gpu_layouts", lambda layout: layout.gpu)
    cordoned = _named(name, entries, policy.fleet_cordoned_gpus, "fleet_cordoned_gpus", lambda gpu: gpu)
    if facts.get("drains_idle", ()) is None:
        wrong = "what is drained on this host could not be read"
        raise FleetError(wrong, file=f"host {name}", field="facts.drains_idle", hint="playbook check says why")
    uuids = {entry.get("pci"): entry.get("uuid") for entry in facts["gpus"]}
    gpus = []
    for index, entry in enumerate(entries):
        gpu = _gpu(entry, facts, catalogue, here, leaving)
        drains = _drains(entry, facts)
        if index in pins:
            number, layout = pins[index]
            try:
                gpu = _pinned(gpu, layout, f"host {name}", f"fleet_gpu_layouts[{number}]")
            except FleetError:
                if gpu.blocked is None or _misfit(layout) is not None:
                    raise
                # One that is lost may not say what it can have; pinned it is all the same.
                gpu = replace(gpu, pin=Pin("mig", cuts=True))
            drains += _kept_back(layout)
        gpus.append(replace(gpu, cordoned=index in cordoned, drain=as_one(drains), links=_links(entry, uuids)))
    _see_reserve(name, policy, gpus)
    sensed = facts["host"]
    return Host(
        name=name,
        environment=policy.fleet_environment,
        gpus=tuple(gpus),
        modes=tuple(sorted(set(policy.fleet_gpu_modes))),
        sharing=tuple(sorted(set(policy.fleet_sharing))),
        shared_max=policy.fleet_shared_max,
        shared_reserve_mib=policy.fleet_shared_reserve,
        shared_compute=policy.fleet_shared_compute,
        capacity=_capacity(name, sensed, policy, bool(here)),
        ports=policy.fleet_ports,
        # What listens where a plan has put a replica is that replica, and goes with it.
        listening=frozenset(sensed.get("ports_listening") or ()) - {port for each in here for _name, port in each.ports},
        data_classes=tuple(sorted(set(policy.fleet_data_classes))),
    )


def _see_reserve(name: str, policy: Policy, gpus: Iterable[Gpu]) -> None:
    """:raises FleetError: what is written as the reserve of shared GPUs leaves nothing of any that may be shared; where the memory of one
    is not known, it may."""
    sizes = [gpu.memory_mib for gpu in gpus if (gpu.pin.mode == "shared" if gpu.pin else "shared" in policy.fleet_gpu_modes)]
    if "fleet_shared_reserve" in policy.model_fields_set and sizes and 0 < min(sizes) <= max(sizes) <= policy.fleet_shared_reserve:
        wrong = f"{gib(policy.fleet_shared_reserve)} leaves nothing to share: the largest GPU here has {gib(max(sizes))}"
        raise FleetError(wrong, file=f"host {name}", field="fleet_shared_reserve", hint="write what CUDA contexts take: less than that")


def _links(entry: Facts, uuids: Mapping[t.Any, t.Any]) -> tuple[str, ...] | None:
    peers = entry.get("nvlink")  # facts of a release that did not ask have none
    return None if peers is None else tuple(sorted(str(uuids[pci]) for pci in peers if uuids.get(pci)))


def _drains(entry: Facts, facts: Facts) -> list[Drain]:
    """That of the GPU and that of its whole host. Whether one is over, the host has judged."""
    return [
        Drain(words(each), each["force"], RELEASE_HOST if of_host else RELEASE, of_host=of_host)
        for each, of_host in ((entry.get("drain"), False), (facts["host"].get("drain"), True))
        if each
    ]


def given_away(facts: Facts) -> list[dict[str, t.Any]]:
    """GPUs that a VFIO driver has, in the form of ``gpus``: their host cannot use them. Other devices that were given away are none."""
    found = []
    for entry in facts.get("passthrough") or ():
        identity = entry.get("identity") or {}
        if str(entry.get("uuid") or "").startswith("GPU-") or identity.get("vendor") == _NVIDIA:
            found.append({"uuid": entry.get("uuid"), "pci": entry.get("pci"), "held": entry})
    return found


def vgpu_words(entry: Facts) -> str | None:
    """What a GPU gives to virtual machines in parts; None when it gives none. ``entry``: of ``gpus``."""
    vgpu = entry.get("vgpu")
    if not vgpu:
        return None
    counts = Counter(str(one.get("type")) for one in vgpu.get("vgpus") or ())
    if not counts:
        return "made ready for vGPUs"
    return f"giving vGPUs ({', '.join(f'{count} {name}' for name, count in sorted(counts.items()))})"


def held_words(entry: Facts) -> str:
    """Who has a GPU that was given away. ``entry``: of ``passthrough``."""
    guest = entry.get("guest")
    return f"held by vfio for {f'guest {guest}' if guest else 'virtual machines'}"


def _kept_back(layout: Layout) -> list[Drain]:
    """A GPU that the platform wants for virtual machines gets nothing new, and what is on it leaves it."""
    if layout.mode not in ("passthrough", "vgpu"):
        return []
    words = f"kept for virtual machines (fleet_gpu_layouts: {layout.mode})"
    return [Drain(words, remedy="give it another mode there, and run playbook mode", cause="pinned layout")]


def down_host(name: str, facts: Facts | None, policy: Policy, catalogue: Catalogue) -> Host:
    """A host that nobody reaches. What it has does not matter: it gets nothing, and no decision touches its GPUs. What its last facts say
    is for who asks what it would be worth to bring it back; where they are wrong, that keeps no plan from being made."""
    try:
        last = None if facts is None else _quiet(host_of(name, facts, policy, catalogue, ()))
    except FleetError:
        last = None
    return Host(name, policy.fleet_environment, (), down=True, data_classes=tuple(sorted(set(policy.fleet_data_classes))), last=last)


def _quiet(host: Host) -> Host:
    """Nobody computes or listens on a host that is down, whoever did, and whatever plans say of him by now."""
    gpus = (replace(gpu, outsiders=(), instances=tuple(replace(one, outsiders=()) for one in gpu.instances)) for gpu in host.gpus)
    return replace(host, listening=frozenset(), gpus=tuple(gpus))


def without_moved(hosts: Iterable[Host]) -> list[Host]:
    """The hosts, and nothing known of one that is down whose boards are in another one by now."""
    known = list(hosts)
    here = {gpu.uuid for host in known for gpu in host.gpus}
    return [
        host if host.last is None or here.isdisjoint(gpu.uuid for gpu in host.last.gpus) else replace(host, last=None) for host in known
    ]


def _capacity(name: str, sensed: Facts, policy: Policy, serves: bool) -> Resources:
    """What was sensed or written, less the reserve. Disk counts as a whole: what is free moves with every file, and services with it.

    :raises FleetError: a reserve was written that is more than there is, or where anybody ``serves`` a capacity that the reserve is more
        than; nothing that serves there would fit any more.
    """
    given, reserve = policy.fleet_capacity, policy.fleet_reserve
    disk = (sensed.get("disk") or {}).get("total_mib")
    have = Resources(
        sensed.get("cpus") if given.cpus is None else given.cpus,
        sensed.get("memory_mib") if given.memory is None else given.memory,
        sensed.get("shm_mib") if given.shm is None else given.shm,
        disk if given.disk is None else given.disk,
    )
    kept = Resources(reserve.cpus, reserve.memory, reserve.shm, reserve.disk)
    for what, (asked, there) in have.shortage(kept).items():
        if serves and getattr(given, what) is not None and what not in reserve.model_fields_set:
            wrong = f"of {amount(what, there)} the reserve of {amount(what, asked)} leaves nothing"
            hint = f"write all that the host has, or a smaller fleet_reserve.{what}"
            raise FleetError(wrong, file=f"host {name}", field=f"fleet_capacity.{what}", hint=hint)
        if what in reserve.model_fields_set:
            said, left = (f"{amount:g}" if what == "cpus" else gib(int(amount)) for amount in (asked, there))
            wrong = f"{said} is more than the host has, {left}"
            raise FleetError(wrong, file=f"host {name}", field=f"fleet_reserve.{what}", hint=_RESERVE)
    return have.less(kept)


def _named(
    host: str, gpus: Sequence[Facts], entries: Sequence[t.Any], field: str, name_of: t.Callable[[t.Any], int | str]
) -> dict[int, tuple[int, t.Any]]:
    """Position of a GPU in ``gpus`` -> (number of the entry that names it, the entry).

    One that fell off the bus may not say its name any more: an address or UUID that nobody else has is its.
    """
    result: dict[int, tuple[int, t.Any]] = {}
    nameless = [index for index, gpu in enumerate(gpus) if not gpu.get("uuid") and not gpu.get("pci")]
    for number, entry in enumerate(entries):
        wanted = str(name_of(entry)).strip().lower()
        found = [index for index, gpu in enumerate(gpus) if wanted in gpu_names(gpu)]
        if not found and not wanted.isdigit():
            found = [index for index in nameless if index not in result][:1]
        where = f"{field}[{number}]"
        if not found:
            have = ", ".join(_both_names(gpu) for gpu in gpus) or "none"
            raise FleetError(f"there is no GPU '{name_of(entry)}'", file=f"host {host}", field=where, hint=f"this host has {have}")
        if len(found) > 1:
            wrong = f"'{name_of(entry)}' is the beginning of the UUID of {len(found)} GPUs"
            both = " or ".join(str(gpus[index].get("pci") or gpus[index].get("index")) for index in found)
            raise FleetError(wrong, file=f"host {host}", field=where, hint=f"write the address: {both}")
        if found[0] in result:
            wrong = f"GPU '{name_of(entry)}' is named already by {field}[{result[found[0]][0]}]"
            raise FleetError(wrong, file=f"host {host}", field=where, hint="name each GPU once")
        result[found[0]] = (number, entry)
    return result


def _both_names(gpu: Facts) -> str:
    """The address to write, and the UUID's beginning as tables show it."""
    address, uuid = str(gpu.get("pci") or gpu.get("index")), gpu.get("uuid")
    return f"{address} ({str(uuid)[:12]})" if uuid else address


def gpu_names(gpu: Facts) -> set[str]:
    """UUID, whole and as tables show it, PCI address with and without its domain's leading zeros, and index, in lower case."""
    pci, uuid = str(gpu.get("pci") or "").lower(), str(gpu.get("uuid") or "").lower()
    return {uuid, uuid[:12], pci, pci.partition(":")[2], f"0000{pci}" if pci else "", str(gpu.get("index", ""))} - {""}


def _leaving(facts: Facts, serial: int | None) -> set[str]:
    """Compose projects of replicas that a plan has put here: none of them is in the way of the next plan, for whoever is not in that one
    is stopped when the host begins it. Only of a host whose plans we have: what it carries must not be newer than ``serial``.
    """
    carried = facts.get("plan")
    if not carried or serial is None or carried["serial"] > serial:
        return set()
    found = set()
    for container in facts.get("containers") or ():
        project, who = str(container.get("project")), replica_of(container.get("labels") or {})
        if who is not None and project in (replica_name(*who), surge_name(who[0])):
            found.add(project)
    return found


def _gpu(entry: Facts, facts: Facts, catalogue: Catalogue, here: Sequence[Placement], leaving: Collection[str]) -> Gpu:
    mig = entry.get("mig") or {}
    geometry = _geometry(entry, facts, catalogue)
    uuid = str(entry.get("uuid") or f"(GPU {entry.get('index', entry.get('pci'))})")
    on_gpu, on_slice = _outsiders(entry, facts, uuid, here, leaving)
    planned = {placement.slice for placement in here if uuid in placement.gpus}
    surges = {surge_name(placement.service) for placement in here}
    found = (_instance(each, on_slice, planned, surges) for each in mig.get("instances") or ())
    instances = tuple(sorted((each for each in found if each is not None), key=lambda instance: instance.slice))
    return Gpu(
        uuid=uuid,
        pci=str(entry.get("pci") or ""),
        board=catalogue.board_id(entry.get("device_id"), entry.get("name")),
        memory_mib=entry.get("memory_mib") or 0,
        geometry=geometry,
        # A mode that waits for a reset is the mode that the GPU will have.
        mig=bool(mig.get("pending", mig.get("current"))),
        instances=instances,
        blocked=_blocked(entry, geometry, instances),
        away=bool(entry.get("held") or entry.get("vgpu")),
        outsiders=on_gpu,
        mps_clients=mps_client_limit(entry.get("compute_capability")),
    )


def _geometry(entry: Facts, facts: Facts, catalogue: Catalogue) -> Geometry | None:
    """NVML's own; where the driver tells none, the one of public sources; None for a board without MIG."""
    if entry.get("mig") is None:
        return None
    data = facts["geometries"].get(entry["mig"].get("geometry"))
    return Geometry.from_dict(data) if data is not None else catalogue.fallback(entry.get("device_id"), entry.get("name"))


def _blocked(entry: Facts, geometry: Geometry | None, instances: Sequence[Instance]) -> str | None:
    if entry.get("held"):
        return held_words(entry["held"])
    if entry.get("vgpu"):
        return vgpu_words(entry)
    if entry.get("state") != "ok":
        state = str(entry.get("state") or "in an unknown state")
        return "in the state error" if state == "error" else state
    if not entry.get("uuid") or not entry.get("pci") or not entry.get("memory_mib"):
        return "without UUID, PCI address or memory in the facts"
    names = {profile.name for profile in geometry.profiles} if geometry else set()
    unknown = [str(each.slice) for each in instances if each.slice.profile not in names]
    return f"with a slice that its geometry does not have ({unknown[0]})" if unknown else None


def _instance(
    entry: Facts, outsiders: Mapping[t.Any, tuple[str, ...]], planned: Collection[Slice | None], surges: Collection[str]
) -> Instance | None:
    """A slice as the planner sees it; None for one that a rollout left, which goes at the next occasion."""
    parts = entry.get("ci") or []
    plain = len(parts) == 0 or (len(parts) == 1 and parts[0].get("profile") == entry["profile"])
    one, who = Slice(int(entry["start"]), str(entry["profile"])), outsiders.get(entry.get("gi"), ())
    temporary = bool(entry.get("temporary")) and one not in planned and set(who) <= set(surges)
    return None if temporary and not who else Instance(one, plain, who, temporary)


def _outsiders(
    entry: Facts, facts: Facts, uuid: str, here: Sequence[Placement], leaving: Collection[str]
) -> tuple[tuple[str, ...], dict[t.Any, tuple[str, ...]]]:
    """Who computes here without being in a plan: (on the whole GPU, on each GPU instance by its id). ``leaving``: as of :func:`_leaving`.

    Where a plan has put a service, whoever computes there is that service: a process does not say its name. A container that only
    watches (an exporter names every GPU) keeps nobody away.
    """
    ours = {placement.name for placement in here}.union(leaving)
    planned = [placement for placement in here if uuid in placement.gpus]
    mig = entry.get("mig") or {}
    slices = {each.get("gi"): Slice(int(each["start"]), str(each["profile"])) for each in mig.get("instances") or ()}
    quiet = {gi for gi, one in slices.items() if any(placement.slice == one for placement in planned)}
    found: dict[t.Any, set[str]] = {}
    boxes = [each for each in facts.get("containers") or () if not only_watches(each)]
    containers = {each.get("id"): str(each.get("project") or each.get("name")) for each in boxes}
    for holder in entry.get("holders") or ():
        if holder.get("kind") in COMPUTING:
            name = containers.get(holder.get("container")) or f"{holder.get('process')} (pid {holder.get('pid')})"
            found.setdefault((holder.get("slice") or {}).get("gi"), set()).add(name)
    devices = {part.get("uuid"): each.get("gi") for each in mig.get("instances") or () for part in each.get("ci") or ()}
    for container in boxes:
        for device in container.get("devices") or ():
            if device == uuid or device in devices:
                found.setdefault(devices.get(device), set()).add(containers[container.get("id")])
    whole = set() if any(placement.slice is None for placement in planned) else found.pop(None, set()) - ours
    return tuple(sorted(whole)), {gi: tuple(sorted(names - ours)) for gi, names in found.items() if gi is not None and gi not in quiet}


def _misfit(layout: Layout) -> tuple[str, str, str] | None:
    """A field that its mode does not have, or lacks: (what is wrong, the field, what would be right)."""
    for name, of_mode in (("vgpus", "vgpu"), ("mixed", "vgpu"), ("scheduler", "vgpu"), ("companions", "passthrough")):
        if getattr(layout, name) is not None and layout.mode != of_mode:
            return f"{name} is given for mode '{layout.mode}'", name, f"write 'mode: {of_mode}', or leave it out"
    if layout.sharing is not None and layout.mode != "shared":
        return f"a way of sharing is given for mode '{layout.mode}'", "sharing", "write 'mode: shared', or no sharing"
    if layout.slices and layout.mode not in ("mig", "vgpu"):
        return f"slices are given for mode '{layout.mode}'", "slices", "write 'mode: mig', or no slices"
    if layout.mode == "vgpu" and not layout.vgpus:
        return "no vGPU is wished", "vgpus", "write such as 'vgpus: [{type: A100D-10C, count: 4}]'"
    return None


def _pinned(gpu: Gpu, layout: Layout, file: str, field: str) -> Gpu:
    """:raises FleetError: the board cannot have this layout."""

    def wrong(message: str, part: str, hint: str) -> FleetError:
        return FleetError(message, file=file, field=f"{field}.{part}", hint=hint)

    if (refused := _misfit(layout)) is not None:
        raise wrong(*refused)
    if layout.mode == "passthrough" or layout.mode == "vgpu":
        return gpu  # whether the board can have these slices, the host says
    if layout.mode != "mig":
        return replace(gpu, pin=Pin(layout.mode, sharing=layout.sharing or TIME_SLICE))
    if gpu.geometry is None:
        raise wrong(f"GPU {gpu.pci or gpu.uuid} ({gpu.board}) has no MIG", "mode", "write 'mode: whole' or 'mode: shared'")
    if layout.slices is None:
        return replace(gpu, pin=Pin("mig", cuts=True))
    slices = []
    for text in layout.slices:
        asked = parse_slice(text)
        try:
            slices.append(Slice(asked.start, find_profile(gpu.geometry, asked.profile).name))
        except FleetError as error:
            raise wrong(error.message, "slices", error.hint or "name a profile of this board") from error
    reason = why_not(gpu.geometry, slices)
    if reason is not None:
        raise wrong(f"an impossible layout: {reason}", "slices", "change the profiles or their starts")
    return replace(gpu, pin=Pin("mig", tuple(sorted(slices))))
