# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute instance profiles of a GPU instance profile: as the board file says, else by rule."""

from __future__ import annotations

import dataclasses
import typing as t

from nvmlsim.located import Section

if t.TYPE_CHECKING:
    from nvmlsim.boardfile import Profile

# NVML_COMPUTE_INSTANCE_PROFILE_* by slices; 7 is 1_SLICE_REV1, what the double-memory instances use.
QUERIES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
REV1 = 7
QUERY_COUNT = 9
SPARE = (5, 6, 4, 3, 2, 1, 8)
DOUBLE_MEMORY_QUERY = 9


@dataclasses.dataclass
class ComputeProfile:
    """One compute instance profile; ``starts`` in compute slices inside its GPU instance."""

    query: int
    slices: int
    max: int
    sm: int
    starts: list[int]


def fill(profiles: list[Profile], tables: Section | None) -> None:
    """Gives every GPU instance profile its compute instance profiles.

    ``tables`` is the file's ``compute_instances``: ``by_profile`` (name) goes before ``by_slices`` (number).
    """
    by_profile = tables.section("by_profile") if tables and tables.has("by_profile") else None
    by_slices = tables.section("by_slices") if tables and tables.has("by_slices") else None
    one = min((profile.sm for profile in profiles if profile.slices == 1), default=0)
    for profile in profiles:
        rows: list[Section] | None = None
        if by_profile and by_profile.has(profile.name):
            rows = by_profile.sections(profile.name)
        elif profile.query == DOUBLE_MEMORY_QUERY and profile.slices == 1:
            profile.compute = [ComputeProfile(REV1, 1, 1, profile.sm, [0])]
            continue
        elif by_slices and by_slices.has(str(profile.slices)):
            rows = by_slices.sections(str(profile.slices))
        profile.compute = _from_rows(profile, rows, one) if rows else _by_rule(profile, one)
    for section in (tables, by_profile):
        if section is not None:
            section.finish()
    if by_slices is not None:
        by_slices.finish(*(str(number) for number in range(1, 33)))


def _sm(profile: Profile, slices: int, one: int) -> int:
    """All SMs for a compute instance that fills its GPU instance, else those of so many single slices."""
    if slices == profile.slices:
        return profile.sm
    single = min(one or profile.sm, profile.sm // profile.slices) or 1
    return single * slices


def _starts(profile: Profile, slices: int, most: int) -> list[int]:
    """Aligned as GPU instances are: to the next power of two."""
    step = 1 << (slices - 1).bit_length()
    return list(range(0, profile.slices - slices + 1, step))[:most]


def _from_rows(profile: Profile, rows: list[Section], one: int) -> list[ComputeProfile]:
    result: list[ComputeProfile] = []
    for row in rows:
        query = row.number("profile", 0, QUERY_COUNT - 1)
        slices = row.number("slices", 1, profile.slices)
        most = row.number("max", 1, 32)
        sm = row.maybe("sm", 1, profile.sm) or _sm(profile, slices, one)
        starts = row.numbers("starts", 0, profile.slices - slices) if row.has("starts") else _starts(profile, slices, most)
        if any(other.query == query for other in result):
            raise row.error("profile", f"{query} is given twice", "give each compute instance profile once")
        row.finish("sm", "starts")
        result.append(ComputeProfile(query, slices, most, sm, starts))
    return result


def _by_rule(profile: Profile, one: int) -> list[ComputeProfile]:
    """Powers of two below the whole, and the whole: the shape of the tables that were seen."""
    sizes = [size for size in (1, 2, 4, 8, 16) if size < profile.slices] + [profile.slices]
    used: set[int] = set()
    result: list[ComputeProfile] = []
    for size in sizes:
        query = QUERIES.get(size)
        if query is None or query in used:
            reserved = {QUERIES[other] for other in sizes if other in QUERIES}
            query = next((spare for spare in SPARE if spare not in used | reserved), None)
        if query is None:
            continue
        used.add(query)
        starts = _starts(profile, size, 32)
        result.append(ComputeProfile(query, size, len(starts), _sm(profile, size, one), starts))
    return result
