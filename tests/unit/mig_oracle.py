# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An exhaustive judge of MIG changes. It shares no code with the product, which it must not import.

It asks NVML (plain pynvml) what a board can be cut into, writes down every legal set of GPU instances, and finds for a wish the least
number of GPU instances that must be destroyed and created while those in use stay where they are.
"""

from __future__ import annotations

import contextlib
import typing as t
from collections import Counter
from dataclasses import dataclass

import pynvml
from proof_host import places_of

POSSIBLE, IMPOSSIBLE, BUSY = "possible", "impossible", "busy in the way"

Where = tuple[str, int]
Set = frozenset[Where]


@dataclass(frozen=True)
class Kind:
    """A profile: compute slices, memory slices, most on a board, starts."""

    name: str
    slices: int
    size: int
    most: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """``cost``: fewest GPU instances destroyed and created; ``room``: :meth:`Oracle.room` after the best such change."""

    word: str
    cost: int = 0
    room: int = 0


def read_kinds(handle: t.Any) -> list[Kind]:
    """Every profile that NVML offers on a GPU."""
    kinds = []
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(pynvml.NVMLError):
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=2)
            places = places_of(handle, int(info.id))
            name = str(info.name).removeprefix("MIG ")
            starts = tuple(sorted(start for start, _size in places))
            kinds.append(Kind(name, int(info.sliceCount), places[0][1], int(info.instanceCount), starts))
    return kinds


class Oracle:
    """Knows every legal set of one board. ``compute_slices`` is the sum that no set may exceed."""

    def __init__(self, kinds: t.Sequence[Kind], compute_slices: int) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.compute_slices = compute_slices
        self.sets: list[Set] = []
        self._grow((), 0, 0)
        self._by_counts: dict[tuple[str, ...], list[Set]] = {}
        for one in self.sets:
            self._by_counts.setdefault(tuple(sorted(name for name, _start in one)), []).append(one)
        self._rooms: dict[Set, int] = {}

    def _grow(self, chosen: tuple[Where, ...], taken: int, slices: int) -> None:
        """Every legal set once: instances are added by ascending start."""
        self.sets.append(frozenset(chosen))
        last = chosen[-1][1] if chosen else -1
        for kind in self.kinds.values():
            for start in kind.starts:
                if start > last and self._fits(kind, start, chosen, taken, slices):
                    self._grow((*chosen, (kind.name, start)), taken | self._cells(kind, start), slices + kind.slices)

    def _fits(self, kind: Kind, start: int, chosen: t.Iterable[Where], taken: int, slices: int) -> bool:
        many = sum(name == kind.name for name, _start in chosen)
        return slices + kind.slices <= self.compute_slices and many < kind.most and not taken & self._cells(kind, start)

    @staticmethod
    def _cells(kind: Kind, start: int) -> int:
        return sum(1 << cell for cell in range(start, start + kind.size))

    def judge(self, standing: t.Mapping[Where, bool], wish: t.Sequence[tuple[str, int | None]], bare: t.Collection[Where] = ()) -> Verdict:
        """``standing``: (profile, start) -> whether somebody uses it. ``wish``: (profile, start or None for anywhere).

        ``bare``: standing ones that have no compute instance; of changes that cost the same, those that keep fewest of them come first.
        """
        pinned = Counter((name, start) for name, start in wish if start is not None)
        named = self._by_counts.get(tuple(sorted(name for name, _start in wish)), [])
        legal = [one for one in named if all(count == 1 and where in one for where, count in pinned.items())]
        if not legal:
            return Verdict(IMPOSSIBLE)
        busy = {where for where, used in standing.items() if used}
        sparing = [one for one in legal if busy <= one]
        if not sparing:
            return Verdict(BUSY)
        cost = min(len(one ^ set(standing)) for one in sparing)
        cheapest = [one for one in sparing if len(one ^ set(standing)) == cost]
        fewest = min(len(one & set(bare)) for one in cheapest)
        return Verdict(POSSIBLE, cost, max(self.room(one) for one in cheapest if len(one & set(bare)) == fewest))

    def room(self, one: Set) -> int:
        """Memory slices of the largest instance that could be added while these stay."""
        if one not in self._rooms:
            taken = slices = best = 0
            for name, start in one:
                taken |= self._cells(self.kinds[name], start)
                slices += self.kinds[name].slices
            for kind in self.kinds.values():
                for start in kind.starts:
                    if kind.size > best and self._fits(kind, start, one, taken, slices):
                        best = kind.size
            self._rooms[one] = best
        return self._rooms[one]
