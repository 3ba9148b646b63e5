# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU or a layout explained: memory and SMs that are used, free and out of reach, why, and the layout that reaches them. Pure.

Memory is in MiB. SMs are those that the board's profiles report; a whole GPU has what its largest profile has.
"""

from __future__ import annotations

import re
import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    name_parts,
    nearest_layouts,
    parse_slice,
    place_near,
    valid_layouts,
    why_not,
    why_not_place,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several, table

Data = Mapping[str, t.Any]

# Between the parts of a layout. A + that belongs to a profile (1g.10gb+me) has no space around it.
_BETWEEN = re.compile(r"\s*,\s*|\s+\+\s+|\s*;\s*")
_PART = re.compile(r"(?:(?P<count>[1-9]\d?)\s*[x\u00d7]\s*)?(?P<what>\S+)")


@dataclass(frozen=True)
class Share:
    """A part of a GPU: memory slices, their MiB, and SMs."""

    slices: int
    mib: int
    sm: int


@dataclass(frozen=True)
class Explained:
    """One layout on one kind of board. ``lost``: what no further slice can reach while the present ones stay.

    What is neither is the price of cutting: a whole GPU has more than its slices together, and another cut would not bring that back.
    ``free`` is the most that further slices can have; ``room``: the largest such slices, as people write them. ``better``: layouts that
    reach what is lost, nearest first. ``why``: what keeps it out of reach, '' when nothing is. ``sentence`` says it all in one line.
    """

    layout: str
    total: Share
    used: Share
    free: Share
    lost: Share
    slices: tuple[tuple[Slice, Profile], ...]
    room: str
    better: tuple[str, ...]
    why: str
    sentence: str


def gib(mib: int) -> str:
    """MiB as people read them: ``9.6 GiB``, ``1,024 GiB``; less than 1 GiB stays in MiB, nothing is ``0 GiB``."""
    if 0 < mib < 1024:
        return f"{mib} MiB"
    value = f"{mib / 1024:,.1f}"
    return f"{value.removesuffix('.0')} GiB"


def spelt(text: str) -> str:
    """``6x1g.10gb + 1g.20gb`` as the sentences have it: ``6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb``."""
    parts = [part.partition("x") if re.match(r"\d+x", part) else ("1", "x", part) for part in text.split(" + ") if part]
    return " + ".join(f"{count} \u00d7 {name}" for count, _x, name in parts)


def parse_layout(geometry: Geometry, text: str) -> tuple[Slice, ...]:
    """``7x1g.10gb``, ``6x1g.10gb + 1g.20gb`` or ``3g.40gb@0, 1g.10gb@4`` as slices of this board; starts that are left out are chosen.

    FleetError when it is not of that form, or cannot stand on the board; then the nearest layouts that can are named.
    """
    fixed: list[Slice] = []
    wanted: list[str] = []
    for part in (part for part in _BETWEEN.split(text.strip()) if part):
        found = _PART.fullmatch(part.strip())
        if found is None:
            hint = "write profiles with their counts, such as 6x1g.10gb + 1g.20gb, or slices, such as 3g.40gb@0"
            raise FleetError(f"'{part}' is no part of a layout", field="layout", hint=hint)
        count, what = int(found["count"] or 1), found["what"]
        if "@" in what:
            one = parse_slice(what)
            fixed += [Slice(one.start, find_profile(geometry, one.profile).name)] * count
        else:
            wanted += [find_profile(geometry, what).name] * count
    new = place_near(geometry, fixed, wanted, {})
    if new is None:
        names = [*(one.profile for one in fixed), *wanted]
        near = " or ".join(layout.text for layout in nearest_layouts(geometry, names))
        reason = why_not(geometry, fixed) or why_not_place(geometry, fixed, wanted)
        raise FleetError(f"'{text}' cannot stand on this board: {reason}", field="layout", hint=f"the nearest that can: {near}")
    return tuple(sorted([*fixed, *new]))


def explain_layout(geometry: Geometry, slices: Sequence[Slice]) -> Explained:
    """What a GPU of this board gives with these slices. FleetError when they cannot stand together."""
    return _explained(geometry, tuple(sorted(slices)))


@lru_cache(maxsize=1024)
def _explained(geometry: Geometry, slices: tuple[Slice, ...]) -> Explained:
    room = free_and_stranded(geometry, slices)
    present = tuple((one, find_profile(geometry, one.profile)) for one in slices)
    used = Share(room.held, room.held_mib, sum(profile.sm for _one, profile in present))
    total = Share(geometry.memory_slices, room.best_mib, max((profile.sm for profile in geometry.profiles), default=0))
    choices = _supersets(geometry, tuple(one for one, _profile in present))
    free = Share(room.free, room.free_mib, max((_sm(geometry, choice) for choice in choices), default=used.sm) - used.sm)
    compute = max((_compute(geometry, choice) for choice in choices), default=0)
    # Cutting has a price (seven slices have fewer SMs than the whole, on most boards), and that no cut brings back: it is not lost.
    lost = Share(room.stranded, room.stranded_mib, total.sm - used.sm - free.sm if compute < geometry.compute_slices else 0)
    better: tuple[str, ...] = ()
    if lost.mib:
        better = tuple(spelt(layout.text) for layout in better_layouts(geometry, slices))
    elif lost.sm:
        better = tuple(_with_more_compute(geometry, present, compute))
    names = [profile.name for _one, profile in present]
    layout = spelt(layout_text(geometry, names))
    further = _largest(geometry, choices, tuple(one for one, _profile in present)) if free.mib else ""
    why = _why(geometry, present, lost, choices) if lost.mib or (lost.sm and better) else ""
    return Explained(
        layout,
        total,
        used,
        free,
        lost,
        present,
        further,
        better,
        why,
        _sentence(layout, total, used, free, lost, better, further),
    )


def _plain(geometry: Geometry, used: Sequence[Profile]) -> Geometry:
    """The board without the variants of its profiles (+me, -me) that are not there already: they stand in the same places."""
    usable = tuple(each for each in geometry.profiles if each in used or not name_parts(each.name)[2])
    return Geometry(geometry.compute_slices, geometry.memory_slices, usable)


def _supersets(geometry: Geometry, slices: tuple[Slice, ...]) -> list[tuple[Slice, ...]]:
    """Every layout that has these slices where they are."""
    fixed = {Slice(one.start, find_profile(geometry, one.profile).name) for one in slices}
    profiles = [find_profile(geometry, one.profile) for one in slices]
    return [layout for layout in valid_layouts(_plain(geometry, profiles)) if fixed <= set(layout)]


def _sm(geometry: Geometry, slices: Sequence[Slice]) -> int:
    return sum(find_profile(geometry, one.profile).sm for one in slices)


def _compute(geometry: Geometry, slices: Sequence[Slice]) -> int:
    return sum(find_profile(geometry, one.profile).slices for one in slices)


def _mib(geometry: Geometry, slices: Sequence[Slice]) -> int:
    return sum(find_profile(geometry, one.profile).memory_mib for one in slices)


def _largest(geometry: Geometry, choices: Sequence[tuple[Slice, ...]], present: tuple[Slice, ...]) -> str:
    """The further slices with the most memory, and of those the fewest with the most SMs: ``1 \u00d7 3g.40gb``."""
    best = min(choices, key=lambda choice: (-_mib(geometry, choice), len(choice), -_sm(geometry, choice), choice))
    rest = Counter(best) - Counter(Slice(one.start, find_profile(geometry, one.profile).name) for one in present)
    return spelt(layout_text(geometry, [one.profile for one in sorted(rest.elements())]))


def _with_more_compute(geometry: Geometry, present: Sequence[tuple[Slice, Profile]], reach: int) -> list[str]:
    """Layouts with more compute slices than are within reach now, those with the most of the present profiles first."""
    wanted = Counter(profile.name for _one, profile in present)
    found: dict[str, tuple[int, int, int, str]] = {}
    for layout in valid_layouts(_plain(geometry, [profile for _one, profile in present])):
        if _compute(geometry, layout) > reach:
            names = [one.profile for one in layout]
            kept = sum((Counter(names) & wanted).values())
            text = layout_text(geometry, names)
            found[text] = (-kept, len(names) - kept, -_mib(geometry, layout), text)
    return [spelt(text) for text in sorted(found, key=lambda text: found[text])[:3]]


def _why(geometry: Geometry, present: Sequence[tuple[Slice, Profile]], lost: Share, choices: Sequence[tuple[Slice, ...]]) -> str:
    """The rule of the board that keeps something out of reach."""
    used = sum(profile.slices for _one, profile in present)
    compute = geometry.compute_slices - used
    taken = {cell for one, profile in present for cell in range(one.start, one.start + profile.size)}
    bare = [cell for cell in range(geometry.memory_slices) if cell not in taken]
    if not lost.mib:
        most = max(_compute(geometry, choice) for choice in choices) - used
        left = f"{compute} of {geometry.compute_slices} compute slices {'is' if compute == 1 else 'are'} in no slice"
        return f"{left}, and the memory that is left has room for {most} more" if most else f"{left}, and no memory is left"
    if compute == 0:
        return f"all {geometry.compute_slices} compute slices are in slices, and memory alone makes none"
    fits = [
        profile
        for profile in _plain(geometry, ()).profiles
        for start in profile.starts
        if not taken.intersection(range(start, start + profile.size)) and start + profile.size <= geometry.memory_slices
    ]
    where = f"memory {'slice' if len(bare) == 1 else 'slices'} {', '.join(map(str, bare))}"
    if not fits:
        return f"no profile can start and fit in {where}"
    need = min(profile.slices for profile in fits)
    if need > compute:
        return f"what fits in {where} needs {need} compute slices, and {compute} are left"
    left = f"{several(compute, 'compute slice')} {'is' if compute == 1 else 'are'} left"
    return f"no further slices cover all of {where}: each may start only at certain places, and {left}"


def _sentence(layout: str, total: Share, used: Share, free: Share, lost: Share, better: Sequence[str], further: str) -> str:
    head = f"{layout} uses {used.slices} of {total.slices} memory slices"
    if not used.slices:
        return f"no slices: all {total.slices} memory slices are free, enough for {further}"
    if lost.mib:
        rest = f"{gib(free.mib)} free for {further}, " if free.mib else ""
        return f"{head}: {rest}{gib(lost.mib)} out of reach" + (f"; {better[0]} reaches it" if better else "")
    rest = f"{gib(free.mib)} free for {further}" if free.mib else ""
    if lost.sm and better:
        words = ", ".join(filter(None, (rest, f"{lost.sm} SMs out of reach")))
        return f"{head} and {used.sm} of {total.sm} SMs: {words}; {better[0]} reaches them"
    return f"{head}: {rest or 'nothing is free or out of reach'}"


def lines(explained: Explained, holders: Mapping[Slice, str] | None = None) -> list[str]:
    """A table for people, the sentence below it. ``holders``: who is on a slice."""
    rows: list[list[t.Any]] = [["", "MEMORY", "MEMORY SLICES", "SMS", *(["SERVICE"] if holders is not None else [])]]
    for one, profile in explained.slices:
        who = [(holders or {}).get(one, "free")] if holders is not None else []
        rows.append([str(one), gib(profile.memory_mib), profile.size, profile.sm, *who])
    parts = (("used", explained.used), ("free, at most", explained.free), ("out of reach", explained.lost))
    blank = [""] if holders is not None else []
    for name, share in parts:
        rows.append([name, gib(share.mib), f"{share.slices} of {explained.total.slices}", f"{share.sm} of {explained.total.sm}", *blank])
    price = Share(
        0,
        explained.total.mib - sum(share.mib for _name, share in parts),
        explained.total.sm - sum(share.sm for _name, share in parts),
    )
    if price.mib or price.sm:
        rows.append(["price of cutting", gib(price.mib), "-", f"{price.sm} of {explained.total.sm}", *blank])
    text = [*table(rows), explained.sentence]
    if explained.why:
        text.append(f"why: {explained.why}")
    if len(explained.better) > 1:
        text.append(f"or: {'; '.join(explained.better[1:])}")
    return text
