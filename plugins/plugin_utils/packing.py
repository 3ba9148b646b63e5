# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cutting one kind of board with MIG: which slice to take for a need so that the most stays possible.

Everything is exact combinatorics on one board's geometry, and remembered: a fleet has few kinds of boards in few states.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, find_profile, name_parts

Slices = tuple[Slice, ...]


@dataclass(frozen=True)
class Cut:
    """One way to serve a need on one GPU. ``spare`` are the unneeded slices that stay; ``dropped`` how many must go.

    ``loss``: memory slices, summed over all slices that could have been made before and cannot be any more.
    """

    slice: Slice
    memory_mib: int
    slices: int
    reuse: bool
    dropped: int
    loss: int
    spare: Slices

    @property
    def rank(self) -> tuple[int, int, bool, int, int, int]:
        """Lower is better: the smallest profile, then one that is there already, then the least harm."""
        return (self.memory_mib, self.slices, not self.reuse, self.dropped, self.loss, self.slice.start)


class Way(t.NamedTuple):
    """A place for a slice, and the slices that would have to go for it, of ``memory_mib`` together."""

    start: int
    profile: str
    gone: Slices
    memory_mib: int


@lru_cache(maxsize=256)
def named_size(name: str) -> tuple[int, int]:
    """(Compute slices, GB) of which a profile's name speaks, which is all that is known where no board has it; 0 and 0 for other words."""
    try:
        return name_parts(name)[:2]
    except FleetError:
        return (0, 0)


def smallest(profiles: Iterable[Profile]) -> list[Profile]:
    """Those of the profiles that no other one replaces: taking less of the board, wherever this one may begin, and as often.

    One with engines of its own replaces none: there are fewer of them than there is room for.
    """
    found: list[Profile] = []
    for each in sorted(profiles, key=lambda one: (one.slices, one.size, one.name)):
        if not any(_replaces(other, each) for other in found):
            found.append(each)
    return found


def _replaces(one: Profile, other: Profile) -> bool:
    less = one.slices <= other.slices and one.size <= other.size
    return less and one.max >= other.max and set(one.starts) >= set(other.starts) and not name_parts(one.name)[2]


class Cutter:
    """All that can be asked about one geometry."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.profiles = {profile.name: profile for profile in geometry.profiles}
        self.sm = max((profile.sm for profile in geometry.profiles), default=0)
        self.largest_mib = max((profile.memory_mib for profile in geometry.profiles), default=0)
        # What stays possible is judged by the plain profiles: their variants stand in the same places.
        self._slots = [(profile, start) for profile in geometry.profiles if not name_parts(profile.name)[2] for start in profile.starts]
        self._weights: dict[Slices, int] = {}
        self._acceptable: dict[tuple[int, float | None, str | None], tuple[str, ...]] = {}
        self._smallest: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._cuts: dict[tuple[Slices, Slices, Slices, tuple[str, ...], bool], Cut | None] = {}
        self._ways: dict[tuple[Slices, tuple[str, ...]], list[Way]] = {}

    def acceptable(self, memory_mib: int, compute: float | None, name: str | None) -> tuple[str, ...]:
        """Names of the profiles that serve a need. Without a name, only plain ones: engines of others are left to who asks for them."""
        key = (memory_mib, compute, name)
        if key not in self._acceptable:
            share = (compute or 0) * self.sm - 1e-6  # 0.07 of 100 is a little more than 7 in floating point
            enough = [each for each in self._candidates(name) if each.memory_mib >= memory_mib and each.sm >= share]
            self._acceptable[key] = tuple(profile.name for profile in enough)
        return self._acceptable[key]

    def smallest(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Of profiles those that no other of them replaces on a board that may be cut."""
        if names not in self._smallest:
            self._smallest[names] = tuple(each.name for each in smallest(self.profiles[name] for name in names))
        return self._smallest[names]

    def _candidates(self, name: str | None) -> list[Profile]:
        if name is None:
            return [profile for profile in self.geometry.profiles if not name_parts(profile.name)[2]]
        try:
            return [find_profile(self.geometry, name)]
        except FleetError:
            return []

    def fits(self, fixed: Slices, new: Slice) -> bool:
        """Can ``new`` stand beside ``fixed``, which is legal?"""
        profile = self.profiles.get(new.profile)
        if profile is None or new.start not in profile.starts:
            return False
        end = new.start + profile.size
        compute, same = profile.slices, 1
        for one in fixed:
            other = self.profiles[one.profile]
            if one.start < end and new.start < one.start + other.size:
                return False
            compute += other.slices
            same += one.profile == new.profile
        return compute <= self.geometry.compute_slices and same <= profile.max

    def add(self, fixed: Slices, spare: Slices, new: Slice) -> tuple[Slices, Slices] | None:
        """(fixed with ``new``, the spare slices that can stay), or None when ``new`` cannot stand beside ``fixed``."""
        if not self.fits(fixed, new):
            return None
        taken = tuple(sorted((*fixed, new)))
        kept = taken
        left: list[Slice] = []
        for one in spare:
            if one != new and self.fits(kept, one):
                kept = (*kept, one)
                left.append(one)
        return taken, tuple(left)

    def ways(self, fixed: Slices, names: tuple[str, ...]) -> list[Way]:
        """Each place of these profiles where nothing is in the way but some of ``fixed``."""
        if (fixed, names) not in self._ways:
            self._ways[(fixed, names)] = self._found_ways(fixed, names)
        return self._ways[(fixed, names)]

    def _found_ways(self, fixed: Slices, names: tuple[str, ...]) -> list[Way]:
        found = []
        for name in names:
            size = self.profiles[name].size
            for start in self.profiles[name].starts:
                gone = tuple(one for one in fixed if one.start < start + size and start < one.start + self.profiles[one.profile].size)
                if gone and self.fits(tuple(one for one in fixed if one not in gone), Slice(start, name)):
                    found.append(Way(start, name, gone, sum(self.profiles[one.profile].memory_mib for one in gone)))
        return found

    def weight(self, fixed: Slices) -> int:
        """Memory slices of every slice that could still be made beside ``fixed``, summed."""
        if fixed not in self._weights:
            self._weights[fixed] = sum(profile.size for profile, start in self._slots if self.fits(fixed, Slice(start, profile.name)))
        return self._weights[fixed]

    def best(self, fixed: Slices, spare: Slices, reusable: Slices, names: tuple[str, ...], pinned: bool) -> Cut | None:
        """The best cut for a need that ``names`` would serve, or None.

        ``reusable`` are those of ``spare`` that may be given away. ``pinned``: nothing is made and nothing is dropped.
        """
        key = (fixed, spare, reusable, names, pinned)
        if key not in self._cuts:
            cuts = [cut for name in names for start in self.profiles[name].starts for cut in self._cut(key, self.profiles[name], start)]
            self._cuts[key] = min(cuts, key=lambda cut: (*cut.rank, cut.slice.profile), default=None)
        return self._cuts[key]

    def _cut(self, key: tuple[Slices, Slices, Slices, tuple[str, ...], bool], profile: Profile, start: int) -> list[Cut]:
        fixed, spare, reusable, _names, pinned = key
        new = Slice(start, profile.name)
        reuse = new in reusable
        if not reuse and (pinned or new in spare):
            return []
        added = self.add(fixed, spare, new)
        if added is None:
            return []
        taken, left = added
        loss = self.weight(fixed) - self.weight(taken)
        return [Cut(new, profile.memory_mib, profile.slices, reuse, len(spare) - len(left) - (new in spare), loss, left)]


@lru_cache(maxsize=256)
def cutter_of(geometry: Geometry | None) -> Cutter | None:
    """The one for this geometry, if a board has one: what it has found out serves every plan that this process makes."""
    return None if geometry is None else Cutter(geometry)
