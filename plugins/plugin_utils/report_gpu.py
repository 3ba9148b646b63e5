# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One GPU of the report: which part of its memory is held by whom, unused, free, stranded or set aside.

Pure: plain data in, frozen dataclasses out. The parts cover the GPU's memory axis without gap or overlap, and their MiB plus
``overhead_mib`` are the memory that the driver reports, to the MiB.
"""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import (
    Geometry,
    Profile,
    Slice,
    better_layouts,
    find_profile,
    free_and_stranded,
    layout_text,
    legal,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import Explained, explain_layout

Facts = Mapping[str, t.Any]

#: What a part of a GPU's memory can be. The page explains each in plain words.
HELD, PLANNED, UNUSED, FREE, STRANDED, ASIDE = KINDS = ("held", "planned", "unused", "free", "stranded", "aside")
#: A part that no layout of the board gives to anyone; it has 0 MiB. No real board is known to have one beside slices.
OVERHEAD: t.Final = "overhead"


@dataclass(frozen=True)
class Tenant:
    """One replica of a service, as it sits on a GPU or slice. ``team`` is None when no manifest tells it; ``asked_mib`` likewise."""

    service: str
    replica: int
    team: str | None
    asked_mib: int | None = None

    def __str__(self) -> str:
        """As its directory and compose project are called."""
        return replica_name(self.service, self.replica)


@dataclass(frozen=True)
class Block:
    """One part of a GPU: ``start`` and ``size`` on its memory axis (in the GPU's ``units``), and the ``mib`` that it gives to programs.

    ``compute`` counts compute slices and ``sm`` streaming multiprocessors, of MIG slices only. ``why`` explains kind aside and planned.
    """

    kind: str
    start: int
    size: int
    mib: int
    label: str
    compute: int = 0
    sm: int = 0
    tenant: Tenant | None = None
    why: str = ""


@dataclass(frozen=True)
class GpuView:
    """One GPU as the report draws it. ``mode``: mig, whole, shared, unassigned, or out (lost, in error, or of a host that is down).

    ``units`` is the length of the memory axis: memory slices with MIG, MiB without. ``layout`` and ``better`` are layouts as people
    write them: the present one and those that reach the stranded memory. ``health`` and ``notes`` are phrases for people.
    ``drained``: by whom, why and until when, '' when it is not. ``room``: memory and SMs of a cut GPU explained.
    """

    host: str
    uuid: str
    pci: str
    index: int
    name: str
    mode: str
    cordoned: bool
    drained: str
    memory_mib: int
    units: int
    compute_slices: int
    blocks: tuple[Block, ...]
    layout: str = ""
    better: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    room: Explained | None = None

    def mib(self, *kinds: str) -> int:
        """MiB that the parts of these kinds give to programs."""
        return sum(block.mib for block in self.blocks if block.kind in kinds)

    @property
    def overhead_mib(self) -> int:
        """MiB that no part gives: the driver keeps some of each slice, and rounding some more. 0 without MIG."""
        return max(0, self.memory_mib - self.mib(*KINDS))

    @property
    def compute_used(self) -> int:
        """Compute slices that the slices on this GPU take, whoever holds them."""
        return sum(block.compute for block in self.blocks)

    @property
    def stranded_slices(self) -> int:
        """Memory slices out of reach; 0 without MIG."""
        return sum(block.size for block in self.blocks if block.kind == STRANDED)


@dataclass(frozen=True)
class Wish:
    """What the plan of a host says of one GPU; ``mode`` None: nothing. ``places``: who gets which slice.

    ``whole`` is the replica that gets all of it, ``sharers`` are those that share it.
    """

    mode: str | None = None
    slices: tuple[Slice, ...] = ()
    places: Mapping[Slice, Tenant] = field(default_factory=dict)
    whole: Tenant | None = None
    sharers: tuple[Tenant, ...] = ()


@dataclass(frozen=True)
class Site:
    """What else is known of one GPU. ``drained``: by whom, why and until when.

    ``outside``: who uses a device (by UUID) that this collection did not place there; ``down``: its host is said to be down.
    """

    cordoned: bool = False
    drained: str = ""
    reserve_mib: int = 0
    live: bool = False
    outside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    down: bool = False

    @property
    def closed(self) -> tuple[str, str] | None:
        """(a word, a phrase) of why nothing new is placed here; None when something may be."""
        if self.drained:
            return "drained", f"{self.drained}: nothing new is placed here"
        return ("cordoned", "cordoned: nothing new is placed here") if self.cordoned else None


def view(host: str, gpu: Facts, geometry: Geometry | None, wish: Wish, site: Site) -> GpuView:
    """Draw one GPU from its facts, the geometry of its board (None: no MIG, or not known), its plan and the site's policy."""
    mig = gpu.get("mig") or {}
    memory = int(gpu.get("memory_mib") or 0)
    base = GpuView(
        host=host,
        uuid=str(gpu.get("uuid") or ""),
        pci=str(gpu.get("pci") or ""),
        index=int(gpu["index"]) if gpu.get("index") is not None else -1,
        name=str(gpu.get("name") or "unknown board").removeprefix("NVIDIA "),
        mode="out",
        cordoned=site.cordoned,
        drained=site.drained,
        memory_mib=memory,
        units=max(memory, 1),
        compute_slices=0,
        blocks=(),
        health=tuple(_health(gpu, site.live)),
    )
    if site.down:
        return replace(base, blocks=(Block(ASIDE, 0, base.units, memory, "host down", why="host down"),))
    if gpu.get("state", "ok") != "ok":
        word = "lost" if gpu.get("state") == "lost" else "in error"
        why = f"{word} (NVML: {gpu['error']})" if gpu.get("error") else word
        return replace(base, notes=(f"This GPU is {why}.",), blocks=(Block(ASIDE, 0, base.units, memory, word, why=why),))
    notes = (*_pending(gpu, mig), *_drift(bool(mig.get("current")), wish))
    base = replace(base, notes=notes)
    if geometry is not None and (mig.get("current") or wish.mode == "mig"):
        return _cut(base, geometry, _instances(mig, site), wish, site)
    return _uncut(base, wish, site)


def _uncut(base: GpuView, wish: Wish, site: Site) -> GpuView:
    """A GPU without slices: one block for a whole GPU, one for each sharer of a shared one."""
    total, everything = base.memory_mib, base.units
    users = site.outside.get(base.uuid, ())
    if wish.whole is not None:
        blocks = [Block(HELD, 0, everything, total, "whole GPU", tenant=wish.whole)]
    elif wish.mode == "shared":
        return replace(base, mode="shared", **_stacked(base, wish.sharers, site))
    elif users:
        blocks = [Block(ASIDE, 0, everything, total, "whole GPU", why=f"used outside the plan by {', '.join(users)}")]
    else:
        blocks = [_spare(site, 0, everything, total)]
    return replace(base, mode="whole" if wish.mode == "whole" else "unassigned", blocks=tuple(blocks))


def _spare(site: Site, start: int, size: int, mib: int) -> Block:
    if site.closed:
        return Block(ASIDE, start, size, mib, site.closed[0], why=site.closed[1])
    return Block(FREE, start, size, mib, "free")


def _stacked(base: GpuView, sharers: Sequence[Tenant], site: Site) -> dict[str, t.Any]:
    """Sharers one beside the other, each as large as it declares; then the reserve, then what is free."""
    blocks: list[Block] = []
    notes = list(base.notes)
    at = 0
    for tenant in sharers:
        size = min(tenant.asked_mib or 0, base.memory_mib - at)
        if not tenant.asked_mib:
            notes.append(f"{tenant} shares this GPU and declares no memory.")
        elif size < tenant.asked_mib:
            notes.append(
                f"{tenant} declares {tenant.asked_mib:,} MiB and only {size:,} MiB are left: this GPU is promised more than it has."
            )
        blocks.append(Block(HELD, at, size, size, "share", tenant=tenant))
        at += size
    reserve = min(site.reserve_mib, base.memory_mib - at)
    if base.memory_mib - at - reserve > 0:
        blocks.append(_spare(site, at, base.memory_mib - at - reserve, base.memory_mib - at - reserve))
    if reserve:
        blocks.append(Block(ASIDE, base.memory_mib - reserve, reserve, reserve, "reserve", why="kept free on shared GPUs by policy"))
    return {"blocks": tuple(blocks), "notes": tuple(notes)}


@dataclass(frozen=True)
class _Instance:
    """A GPU instance that is there: its slice, whether a compute instance makes it usable, who uses it outside the plan."""

    slice: Slice
    usable: bool
    users: tuple[str, ...]


def _instances(mig: Facts, site: Site) -> list[_Instance]:
    found = []
    for entry in mig.get("instances") or ():
        parts = entry.get("ci") or ()
        users = sorted({user for part in parts for user in site.outside.get(str(part.get("uuid")), ())})
        found.append(_Instance(Slice(int(entry["start"]), str(entry["profile"])), bool(parts), tuple(users)))
    return sorted(found, key=lambda one: one.slice)


def _cut(base: GpuView, geometry: Geometry, present: Sequence[_Instance], wish: Wish, site: Site) -> GpuView:
    """A GPU with MIG: the slices that are there, those of the plan that can still be made beside them, and the gaps."""
    there = {one.slice for one in present}
    coming = [one for one in wish.slices if one not in there]
    slices = sorted(there)
    notes = list(base.notes)
    base = replace(base, mode="mig", units=geometry.memory_slices, compute_slices=geometry.compute_slices)
    try:
        if legal(geometry, [*slices, *coming]):
            slices = sorted([*slices, *coming])
        elif coming:
            notes.append(f"The plan is not carried out yet: {', '.join(map(str, coming))} must replace slices that are there now.")
        gaps = _gaps(geometry, tuple(slices))
        blocks = [_part(geometry, one, there, present, wish, site) for one in slices]
        better = tuple(layout.text for layout in better_layouts(geometry, slices))
        room = explain_layout(geometry, slices)
    except FleetError as error:
        everything = Block(ASIDE, 0, base.units, base.memory_mib, "unknown", why=str(error))
        return replace(base, blocks=(everything,), notes=(*notes, f"Its slices cannot be drawn: {error}."))
    blocks += [_spare(site, gap.start, gap.size, gap.mib) if gap.kind == FREE else gap for gap in gaps]
    leaving = [str(one.slice) for one in present if wish.mode == "mig" and one.slice not in wish.slices]
    if leaving:
        notes.append(f"The plan takes away {', '.join(leaving)}.")
    names = [one.profile for one in slices]
    blocks.sort(key=lambda block: block.start)
    return replace(base, blocks=tuple(blocks), layout=layout_text(geometry, names), better=better, notes=tuple(notes), room=room)


def _part(geometry: Geometry, one: Slice, there: Collection[Slice], present: Sequence[_Instance], wish: Wish, site: Site) -> Block:
    profile = find_profile(geometry, one.profile)
    tenant = wish.places.get(one)
    block = Block(UNUSED, one.start, profile.size, profile.memory_mib, str(one), profile.slices, profile.sm, tenant)
    if one not in there:
        return replace(block, kind=PLANNED, why="planned, not there yet")
    if tenant is not None:
        return replace(block, kind=HELD)
    instance = next(entry for entry in present if entry.slice == one)
    if instance.users:
        return replace(block, kind=ASIDE, why=f"used outside the plan by {', '.join(instance.users)}")
    if site.closed:
        return replace(block, kind=ASIDE, why=site.closed[1])
    return block if instance.usable else replace(block, why="a GPU instance without compute instance: nobody can use it yet")


@lru_cache(maxsize=1024)
def _gaps(geometry: Geometry, slices: tuple[Slice, ...]) -> tuple[Block, ...]:
    """The uncovered part of the memory axis as blocks, free or stranded. FleetError when the slices are not legal."""
    room = free_and_stranded(geometry, slices)
    taken: set[int] = set()
    for one in slices:
        taken.update(range(one.start, one.start + find_profile(geometry, one.profile).size))
    reach = _cover(geometry, slices, frozenset(taken), 0, room.stranded) or frozenset()
    lost = set(range(geometry.memory_slices)) - taken - reach
    free = _shared_out(FREE, _runs(reach, geometry.memory_slices), room.free_mib)
    kind = STRANDED if room.stranded_mib else OVERHEAD
    return (*free, *_shared_out(kind, _runs(lost, geometry.memory_slices), room.stranded_mib))


def _cover(geometry: Geometry, slices: tuple[Slice, ...], taken: frozenset[int], at: int, spare: int) -> frozenset[int] | None:
    """Memory slices from ``at`` on that further slices can cover while at most ``spare`` stay bare; None when that cannot be.

    The first answer is taken: larger profiles first, so that what stays bare lies as far right as it can. ``spare`` is the known
    optimum, so the search leaves a branch as soon as it leaves one memory slice too many.
    """
    while at in taken:
        at += 1
    if at >= geometry.memory_slices:
        return frozenset()
    for profile in sorted(geometry.profiles, key=_largest_first):
        own = frozenset(range(at, at + profile.size))
        more = (*slices, Slice(at, profile.name))
        if at in profile.starts and max(own) < geometry.memory_slices and not own & taken and legal(geometry, more):
            rest = _cover(geometry, more, taken | own, at + profile.size, spare)
            if rest is not None:
                return own | rest
    return _cover(geometry, slices, taken, at + 1, spare - 1) if spare else None


def _largest_first(profile: Profile) -> tuple[int, int, str]:
    return (-profile.size, profile.slices, profile.name)


def _runs(cells: Collection[int], units: int) -> list[tuple[int, int]]:
    """Neighbouring cells as (start, length)."""
    runs: list[tuple[int, int]] = []
    for cell in range(units):
        if cell in cells:
            if runs and sum(runs[-1]) == cell:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((cell, 1))
    return runs


def _shared_out(kind: str, runs: Sequence[tuple[int, int]], mib: int) -> list[Block]:
    """Blocks for gaps, with ``mib`` shared out over them by their length and nothing lost to rounding."""
    cells = sum(size for _start, size in runs)
    blocks, before = [], 0
    for start, size in runs:
        own = mib * (before + size) // cells - mib * before // cells
        blocks.append(Block(kind, start, size, own, kind))
        before += size
    return blocks


def _pending(gpu: Facts, mig: Facts) -> Iterable[str]:
    """Modes that are set and not in force yet: pending is not done, and the report says so."""
    if mig and mig.get("current") != mig.get("pending"):
        how = "it needs no reset, only that nothing uses the GPU" if mig.get("resetless") else "it waits for a GPU reset"
        yield f"MIG mode {_on(mig.get('pending'))} is pending: {how}."
    ecc = gpu.get("ecc") or {}
    if ecc.get("current") != ecc.get("pending"):
        yield f"ECC {_on(ecc.get('pending'))} is pending: it waits for a GPU reset or a reboot."


def _drift(mig_on: bool, wish: Wish) -> Iterable[str]:
    if wish.mode == "mig" and not mig_on:
        yield "The plan is not carried out yet: MIG is not on."
    if wish.mode in ("whole", "shared") and mig_on:
        yield f"The plan is not carried out yet: it wants the GPU {'whole' if wish.mode == 'whole' else 'shared'} and MIG is still on."


def _health(gpu: Facts, live: bool) -> Iterable[str]:
    """Phrases on the GPU's state. Readings that change by themselves only with ``live``: without, same fleet, same bytes."""
    if live:
        if gpu.get("temperature_c") is not None:
            yield f"{gpu['temperature_c']} °C"
        if gpu.get("power_w") is not None:
            yield f"{gpu['power_w']} W"
        if gpu.get("memory_used_mib") is not None:
            yield f"{gpu['memory_used_mib']:,} MiB in use now"
    if gpu.get("power_limit_w") is not None:
        yield f"power limit {gpu['power_limit_w']} W"
    if gpu.get("ecc"):
        yield f"ECC {_on(gpu['ecc'].get('current'))}"
    if gpu.get("persistence") is not None:
        yield f"persistence {_on(gpu['persistence'])}"
    if gpu.get("compute_mode") not in (None, "default"):
        yield f"compute mode {str(gpu['compute_mode']).replace('_', ' ')}"


def _on(value: t.Any) -> str:
    return "on" if value else "off"
