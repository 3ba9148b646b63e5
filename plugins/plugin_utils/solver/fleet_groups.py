# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a fleet as groups that are alike: equal ones, or such as differ in CPU and RAM where there would be too many groups."""

from __future__ import annotations

import math
import typing as t
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetHost
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

GIB = 1024
# Groups that a program may have. Where there would be more, hosts are in several only if they are so far apart on the mean (squares, in
# parts of the mean): what is heavy finds the hosts with much. The program is smaller then, and loses nothing.
MOST_GROUPS, APART = 24, 0.06
# The same of the parts of a group for which that did not do.
MOST_PARTS, UNLIKE = 4, 0.02
# CPU and RAM are counted in millionths where their common measures are sought.
PARTS = 1_000_000
# What floating point makes of a number of these, and of a share.
NOISE, NEARLY = 1e-3, 1e-6


class HostKind(t.NamedTuple):
    """What makes hosts equal."""

    model: str
    gpus: int
    cpus: float
    ram_mib: int
    modes: tuple[str, ...]
    clients: int
    reserve_mib: int


@dataclass(frozen=True, eq=False)
class Group:
    """Hosts that are alike: ``board`` is the number of their kind of GPU; each has ``gpus`` of them and may give ``cpus`` and ``ram``
    (GiB), on the mean where they differ in these."""

    board: int
    gpus: int
    cpus: float
    ram: float
    hosts: tuple[FleetHost, ...]

    @cached_property
    def rooms(self) -> Floats:
        """What each host may give, shape (hosts, 2): CPU and RAM (GiB). Nobody writes to it."""
        return numpy.asarray([(host.cpus, host.ram_mib / GIB) for host in self.hosts], dtype=float).reshape(-1, 2)

    @property
    def size(self) -> int:
        """Number of hosts."""
        return len(self.hosts)

    @property
    def mixed(self) -> bool:
        """Do its hosts differ?"""
        return bool((self.rooms != self.rooms[:1]).any())

    def parts(self) -> list[Group]:
        """Its hosts by groups that differ less, or not at all."""
        return [group_of(self.board, hosts) for hosts in _bunches(_kinds(self.hosts), MOST_PARTS, UNLIKE)]


def group_of(board: int, hosts: Sequence[FleetHost]) -> Group:
    """A group of these; ``board``: the number of their kind of GPU."""
    cpus, ram = numpy.mean([(host.cpus, host.ram_mib / GIB) for host in hosts], axis=0).tolist()
    return Group(board, hosts[0].gpus, cpus, ram, tuple(hosts))


def alike(hosts: Sequence[FleetHost], *, mixed: bool) -> list[list[FleetHost]]:
    """Those with GPUs, equal ones together, in canonical order. ``mixed``: where that are more groups than a program may have, those
    together that are near to each other in CPU and RAM."""
    kinds = _kinds(sorted((host for host in hosts if host.gpus), key=lambda host: host.name))
    if mixed and len(kinds) > MOST_GROUPS:
        return _bunches(kinds, MOST_GROUPS, APART)
    return [kinds[kind] for kind in sorted(kinds)]


def usable(hosts: Sequence[FleetHost], classes: Sequence[FleetClass]) -> list[FleetHost]:
    """The hosts with no more CPU and RAM than replicas can have of them: of half cores and whole GiB there are only so many.

    Without it a program would count on what is left over of each host, and hosts would differ that are equal. All of it, where a need is no
    multiple of a millionth: it has no measure.
    """
    core, mib = _measure([one.cpus for one in classes]), _measure([one.ram_mib for one in classes])
    return [replace(host, cpus=_multiple(host.cpus, core), ram_mib=int(_multiple(host.ram_mib, mib))) for host in hosts]


def _measure(needs: Collection[float]) -> int | None:
    """What all of these are multiples of (in PARTS); None where there is nothing."""
    if any(abs(round(need * PARTS) - need * PARTS) > NOISE * max(1.0, need) for need in needs):
        return None
    return math.gcd(*(round(need * PARTS) for need in needs))


def _multiple(room: float, measure: int | None) -> float:
    """The greatest multiple of this measure (in PARTS) that is no more than the room; 0 where nobody asks for any of it."""
    if measure is None:
        return room
    if not measure:
        return 0.0
    return math.floor(room * PARTS + 0.5) // measure * measure / PARTS


def _kinds(hosts: Sequence[FleetHost]) -> dict[HostKind, list[FleetHost]]:
    found: dict[HostKind, list[FleetHost]] = {}
    for host in hosts:
        kind = HostKind(host.model, host.gpus, host.cpus, host.ram_mib, tuple(sorted(host.modes)), host.clients, host.reserve_mib)
        found.setdefault(kind, []).append(host)
    return found


def _bunches(kinds: Mapping[HostKind, Sequence[FleetHost]], most: int, unlike: float) -> list[list[FleetHost]]:
    """The hosts in at most so many bunches, or as few as can be; in order. Those of one differ in CPU and RAM alone. Of those that are more
    than ``unlike`` apart, the one with most GPUs that far apart is cut in two while there may be more."""
    apart: dict[HostKind, list[HostKind]] = {}
    for kind in sorted(kinds):
        apart.setdefault(kind._replace(cpus=0.0, ram_mib=0), []).append(kind)
    found = [_cut(kinds, bunch) for bunch in apart.values()]
    while len(found) < most:
        widest = max((each for each in found if each.apart > unlike), key=lambda each: each.apart * each.gpus, default=None)
        if widest is None:
            break
        found.remove(widest)
        found += [_cut(kinds, part) for part in (widest.low, widest.high)]
    return [[host for kind in bunch for host in kinds[kind]] for bunch in sorted(each.kinds for each in found)]


class _Bunch(t.NamedTuple):
    """Kinds of hosts, their GPUs, how far they are ``apart`` (mean of squares, in parts of the mean), and two parts that are less so."""

    kinds: list[HostKind]
    gpus: float
    apart: float
    low: list[HostKind]
    high: list[HostKind]


def _cut(kinds: Mapping[HostKind, Sequence[FleetHost]], bunch: list[HostKind]) -> _Bunch:
    rooms = numpy.asarray([(kind.cpus, kind.ram_mib) for kind in bunch], dtype=float)
    gpus = numpy.asarray([len(kinds[kind]) * kind.gpus for kind in bunch], dtype=float)
    mean = gpus @ rooms / gpus.sum()
    # Of what nobody needs hosts have nothing, and are not apart.
    apart = numpy.where(mean > 0, gpus @ (rooms / numpy.maximum(mean, NEARLY) - 1) ** 2 / gpus.sum(), 0.0)
    which = int(apart.argmax())
    low = (rooms[:, which] < mean[which]).tolist()
    parts = ([kind for kind, mine in zip(bunch, low, strict=True) if mine is part] for part in (True, False))
    return _Bunch(bunch, float(gpus.sum()), float(apart.sum()), *parts)
