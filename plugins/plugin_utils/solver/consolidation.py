# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fewer MIG GPUs by a few moves: what the program of ``replan.py`` says of the slices of a fleet, one kind of GPU after the other.

The program knows slices and nothing of hosts, teams and rules: whoever uses its answer tries each place, asks again without those for
whom it was wrong, and may use its bounds as they are. GPUs that are closed, or whose layout the platform has decided, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, find_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Hint
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError, available
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.replan import BLUR, Gpus, replan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

# GPUs whose slices may change places as far as hardware goes.
GpuKind = tuple[str, str, Geometry]


@dataclass(frozen=True)
class Fewer:
    """``moves``: name of a replica -> its new place. ``gpus`` of this kind hold slices now, ``after`` would then.

    With as many moves as were allowed, no plan that leaves each slice as large as it is, on one of these GPUs, has fewer than ``least``.
    """

    moves: Mapping[str, Hint]
    gpus: int
    after: int
    least: int


def kinds(fleet: Fleet) -> list[GpuKind]:
    """Kinds of GPUs that hold slices: environment, board, geometry; by name."""
    found = {(host.host.environment, state.gpu.board, state.cutter.geometry) for host, state in _cut(fleet) if state.cutter is not None}
    return sorted(found, key=lambda kind: (kind[0], kind[1], kind[2].digest()))


def fewer(fleet: Fleet, kind: GpuKind, moves: int, costs: Mapping[str, int]) -> Fewer | None:
    """The fewest GPUs of a kind for the slices that are on them, with moves that count as ``moves`` at most, and of such plans one whose
    moves count the least.

    ``costs``: name of a replica -> as how many moves it counts that it moves; who is not in it does not move, nor does what no replica has.
    None without a solver, where it has no answer within its limits, and where something stands on a GPU that its geometry does not know.
    """
    there = [(host, state) for host, state in _cut(fleet) if (host.host.environment, state.gpu.board) == kind[:2]]
    there = [each for each in there if each[1].cutter is not None and each[1].cutter.geometry == kind[2]]
    loose = [name for _host, state in there for name in state.owners.values() if costs.get(name, moves + 1) <= moves]
    if not available() or not loose:
        return None
    # What counts as nothing is not moved for nothing: all such moves together count less than one that counts.
    unit = 1 + sum(not costs[name] for name in loose)
    weights = {name: costs[name] * unit or 1 for name in loose}
    try:
        patterns = patterns_of(kind[2], {one.profile for _host, state in there for one in state.fixed})
        states = [patterns.state_of(state.fixed) for _host, state in there]
        pinned = [patterns.state_of(one for one in state.fixed if state.owners.get(one) not in weights) for _host, state in there]
        weighed = [[0] * len(patterns.slots) for _each in there]
        for row, (_host, state) in zip(weighed, there, strict=True):
            for one, name in state.owners.items():
                row[patterns.state_of([one]).bit_length() - 1] = weights.get(name, 0)
        answer = replan(Gpus.of(patterns, states, pinned, costs=weighed), {}, (moves + 1) * unit - 1)
    except (SolverError, FleetError):
        return None
    hints: dict[str, Hint] = {}
    shifts = answer.shifts
    columns = (each.tolist() for each in (shifts.profile, shifts.gpu, shifts.start, shifts.old_gpu, shifts.old_start))
    for column, gpu, start, old_gpu, old_start in zip(*columns, strict=True):
        profile = patterns.profiles[column].name
        (host, state), old = there[gpu], there[old_gpu][1]
        owner = next(name for one, name in old.owners.items() if _same(kind[2], one, Slice(old_start, profile)))
        hints[owner] = Hint(host.host.name, (state.gpu.uuid,), Slice(start, profile))
    return Fewer(hints, len(there), answer.gpus, math.ceil(answer.gpus_bound - BLUR))


def _same(geometry: Geometry, one: Slice, other: Slice) -> bool:
    """A profile may have more than one name."""
    return one.start == other.start and find_profile(geometry, one.profile).name == other.profile


def _cut(fleet: Fleet) -> list[tuple[HostState, GpuState]]:
    """GPUs that hold a slice which somebody has, and that may be cut anew."""
    return [(host, state) for host in fleet.hosts.values() for state in host.gpus if state.owners and _is_open(state)]


def _is_open(state: GpuState) -> bool:
    return state.mode == "mig" and not state.gpu.fixed and state.refusal("mig") is None
