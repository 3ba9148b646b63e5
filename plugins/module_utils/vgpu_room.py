# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether vGPUs can stand on a GPU, as far as that can be proved before anything is changed. Pure.

What is refused here is impossible; what is not refused may still fail, because no driver says all that it knows. Figures come from the
host first (a type's ``max_instance``, what is offered now, GPU instances), and from NVIDIA's lists for what the host does not tell.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
    from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_types import VgpuType


@dataclass(frozen=True)
class Limit:
    """How many vGPUs of a type a GPU has at most: alone, and in mixed-size mode. ``source``: who says so."""

    most: int | None
    mixed: int | None = None
    source: str = "the driver"


@dataclass(frozen=True)
class Ground:
    """A GPU instance: where it is, and NVML's number of its profile."""

    where: Slice
    profile_id: int


@dataclass(frozen=True)
class Case:
    """What shall stand in the end, and what is known.

    ``kept``, ``new`` and ``gone``: types by short name, one for each vGPU. ``available``: how many more of a type the host offers now; None
    when it cannot be asked. ``free``: places for the new ones, None for any number. ``limits``: by type. ``backing``: NVML's number of the
    GPU instance profile of a type. ``grounds``: GPU instances; None when MIG is off or nobody knows. ``mig``: None when nobody knows.
    """

    kept: Sequence[str]
    new: Sequence[str]
    gone: Sequence[str]
    available: Mapping[str, int] | None
    free: int | None
    limits: Mapping[str, Limit]
    mixed: bool = False
    mig: bool | None = None
    grounds: Sequence[Ground] | None = None
    backing: Mapping[str, int] | None = None


def why_not(case: Case) -> str | None:
    """Why this is impossible; None when nothing says so."""
    if not case.new:
        return None
    kinds = {name: kind for name in {*case.kept, *case.new} for kind in [vgpu_types.parse(name)] if kind is not None}
    if len(kinds) < len({*case.kept, *case.new}):
        return _of_any_parent(case)
    backed = {kind.slices is not None for kind in kinds.values()}
    if len(backed) > 1:
        return "time-sliced and MIG-backed vGPUs exclude each other on one GPU"
    if case.free is not None and len(case.new) > case.free:
        return f"{len(case.new)} more vGPUs need as many virtual functions, and {case.free} are free"
    return (_backed(case, kinds) if backed == {True} else _sliced(case, kinds)) or _offered(case)


def _of_any_parent(case: Case) -> str | None:
    """A parent of mediated devices of which nothing is known but how many more of each type it takes, each without the others.

    Whether its types share what it has, nobody says. So only what is too much of one type is impossible for sure.
    """
    if case.available is None:
        return None
    net = Counter(case.new)
    net.subtract(Counter(case.gone))
    if any(number < 0 for number in net.values()):
        return None  # what a type that goes leaves for another nobody says, either
    for name, number in sorted(net.items()):
        offered = case.available.get(name, 0)
        if number > offered:
            return f"{number} more {name} {_are(number)} wished, and there is room for {offered}"
    return None


def _sliced(case: Case, kinds: Mapping[str, VgpuType]) -> str | None:
    if case.mig:
        return "MIG is on, so that only MIG-backed types can be made"
    total = Counter([*case.kept, *case.new])
    if case.mixed:
        return _mixed(case, total)
    sizes = sorted({kind.gb for kind in kinds.values()})
    if len(sizes) > 1:
        return f"vGPUs of {' and '.join(f'{size} GB' for size in sizes)} need mixed-size mode"
    mosts = [(limit.most, limit.source) for name in total for limit in [case.limits.get(name)] if limit and limit.most is not None]
    if mosts and sum(total.values()) > min(mosts)[0]:
        most, source = min(mosts)
        return f"{_counts(total)} are wished, and one GPU has {most} at most ({source})"
    return None


def _mixed(case: Case, total: Mapping[str, int]) -> str | None:
    """In mixed-size mode each type takes the same part of the GPU, whoever is beside it."""
    parts = Fraction()
    for name, number in sorted(total.items()):
        limit = case.limits.get(name)
        most = None if limit is None else limit.mixed if limit.mixed is not None else limit.most
        if not most:
            continue
        if number > most:
            return f"{number} {name} {_are(number)} wished, and in mixed-size mode one GPU has {most} at most"
        parts += Fraction(number, most)
    if parts > 1:
        return f"{_counts(total)} take {float(parts):.2f} of a GPU in mixed-size mode"
    return None


def _backed(case: Case, kinds: Mapping[str, VgpuType]) -> str | None:
    total = Counter([*case.kept, *case.new])
    if case.mixed:
        return "mixed-size mode is for time-sliced vGPUs only"
    if case.mig is False:
        profiles = ", ".join(sorted({str(kind.profile) for kind in kinds.values()}))
        return f"MIG is off; module mig has to make GPU instances first ({profiles})"
    if case.grounds is None or case.backing is None:
        return None
    need: Counter[int] = Counter()
    for name, number in total.items():
        if name not in case.backing:
            continue
        ident = case.backing[name]
        each = _each(kinds[name], [ground for ground in case.grounds if ground.profile_id == ident])
        need[ident] += -(-number // each)
    for ident, number in sorted(need.items()):
        there = [ground for ground in case.grounds if ground.profile_id == ident]
        if number > len(there):
            types = {name: count for name, count in total.items() if case.backing.get(name) == ident}
            profile = there[0].where.profile if there else str(kinds[min(types)].profile)
            found = f"there {_are(len(there))} {len(there)}" if there else "there is none"
            return f"{_counts(types)} need {number} GPU instances {profile}, and {found}"
    return None


def _each(kind: VgpuType, grounds: Sequence[Ground]) -> int:
    """How many vGPUs of a type share one GPU instance: as many as its memory holds, with the driver's rounding."""
    sizes = [int(ground.where.profile.partition(".")[2].partition("gb")[0] or 0) for ground in grounds]
    return max(1, (max(sizes) + 1) // kind.gb) if sizes and kind.gb else 1


def _offered(case: Case) -> str | None:
    """Nothing goes first, so what the host does not offer now it will not offer then."""
    if case.available is None or case.gone:
        return None
    for name, number in sorted(Counter(case.new).items()):
        offered = case.available.get(name, 0)
        if number > offered:
            return f"{number} more {name} {_are(number)} wished, and the driver has room for {offered}"
    return None


def _counts(total: Mapping[str, int]) -> str:
    return " and ".join(f"{number} {name}" for name, number in sorted(total.items(), key=lambda pair: vgpu_types.order(pair[0])))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
