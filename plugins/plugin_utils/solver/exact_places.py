# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the exact program's values to single replicas: who goes where, and on which slice, no larger than it has to be."""

from __future__ import annotations

import typing as t
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Hint
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import Counts, Key, Kind, stand
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.together import acceptable
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState


class Spot(t.NamedTuple):
    """One column: replicas of a kind on these GPUs of a host; on a slice of this profile, if it is one."""

    column: int
    kind: Kind
    host: HostState
    states: tuple[GpuState, ...]
    profile: str | None


@dataclass
class GpuColumns:
    """What may become of one GPU: ``cuts`` and ``shares`` are columns, ``rows`` what the profiles that a cut offers are counted in."""

    state: GpuState
    once: int
    cuts: list[tuple[int, Counts[str]]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)


def places(boards: Mapping[str, GpuColumns], spots: Sequence[Spot], values: Mapping[int, float]) -> dict[Key, Hint]:
    """The counts as places of single replicas. ``values``: of the program's columns, by their numbers."""
    given: Counter[int] = Counter()
    hints: dict[Key, Hint] = {}
    sliced: dict[str, list[tuple[Spot, Key]]] = defaultdict(list)
    for spot in spots:
        for _turn in range(round(values[spot.column])):
            need, replica = spot.kind.members[given[id(spot.kind)]]
            given[id(spot.kind)] += 1
            uuids = tuple(state.gpu.uuid for state in spot.states)
            if spot.profile is None:
                hints[(need.service, replica)] = Hint(spot.host.host.name, uuids)
            else:
                sliced[uuids[0]].append((spot, (need.service, replica)))
    for uuid, there in sliced.items():
        for (spot, key), one in zip(there, _slices(boards[uuid], [spot for spot, _key in there]), strict=False):
            hints[key] = Hint(spot.host.host.name, (uuid,), one)
    return hints


def _slices(board: GpuColumns, spots: Sequence[Spot]) -> Iterator[Slice]:
    """A slice for each of those on a GPU, in this order: no larger than it has to be, as long as all of them fit."""
    state, names = board.state, [spot.profile or "" for spot in spots]
    cutter = state.cutter
    if cutter is None:
        return

    def fit(several: Sequence[str]) -> bool:
        wanted = Counter(several)
        return any(all(dict(counts).get(name, 0) >= count for name, count in wanted.items()) for _column, counts in board.cuts)

    def size(name: str) -> tuple[int, int, str]:
        return (cutter.profiles[name].memory_mib, cutter.profiles[name].slices, name)

    for turn in sorted(range(len(names)), key=lambda each: size(names[each]), reverse=True):
        for smaller in sorted(acceptable(state, spots[turn].kind.need), key=size):
            if size(smaller) >= size(names[turn]):
                break
            if fit([*names[:turn], smaller, *names[turn + 1 :]]):
                names[turn] = smaller
                break
    pool = list(state.reusable if state.gpu.fixed else stand(cutter, state.fixed, state.spare, tuple(sorted(Counter(names).items()))) or ())
    for name in names:
        one = next((each for each in pool if each.profile == name), None)
        if one is None:
            return
        pool.remove(one)
        yield one
