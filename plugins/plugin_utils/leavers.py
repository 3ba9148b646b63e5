# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replicas that are asked to go: what has to be written for that, whom it takes along, and when it costs nobody anything."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit, Option, and_words, option_of

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene


class Going:
    """A service of which some replicas are to go: those of the highest numbers go first, so that as many are left as are below these."""

    def __init__(self, service: str, asked: Iterable[str], names: tuple[str, ...]) -> None:
        self.service = service
        self.names = self.gone = names
        self.left = 0
        if len(names) > 1:
            self.left = min(_number(name) for name in asked if name in names) - 1
            self.gone = tuple(name for name in names if _number(name) > self.left)

    @property
    def words(self) -> str:
        """Who goes, as people read it."""
        return f"{and_words(self.gone)} ('replicas: {self.left}')" if self.left else self.service


def toll(names: Sequence[str], highest: int) -> float:
    """How much it is that these lose their places, 0 to 1: first how many they are, then how high the highest of them is."""
    return (len(names) - 1 + highest / 101) / 20


def going_of(scene: Scene, names: Collection[str]) -> list[Going]:
    """The services of these replicas, by name."""
    services = sorted({scene.places[name].service for name in names})
    return [Going(service, names, scene.names_of[service]) for service in services]


def stops(going: Iterable[Going]) -> tuple[Edit, ...]:
    """What makes them go."""
    return tuple(Edit("service", each.service, "replicas", each.left) for each in going)


def when_leases_end(scene: Scene, owners: Sequence[str], what: str, kept: str) -> Option:
    """These replicas, each of which has a lease, go when that ends, or now, if it is over. Who ends first is asked first.

    ``what``: for what one waits (`` for gpu-01 GPU-5c1f07aa``), or ''; ``kept``: what is so as long as they are there, without 'it'.
    """
    ends = [scene.leases[name] for name in owners]
    going = going_of(scene, owners)
    lasting = [name for name in owners if scene.leases[name]] or owners
    one = len(lasting) == 1
    whose, do = f"the lease{'' if one else 's'} of {and_words(lasting)}", _then(going)
    gone = tuple([name for each in going for name in each.gone])
    too = [name for name in gone if name not in owners]
    also = f", which stops {and_words(too)} too" if too else ""
    if max(ends):
        text = f"wait{what} until {whose} end{'s' if one else ''} on {max(ends)}, and {do} then{also}"
    else:
        text = f"{whose} {'is' if one else 'are'} over, and {kept} {'it' if one else 'them'}: {do}{also}"
    last = sorted(set(scene.leases.values()))
    return option_of("lease", text, *stops(going), more=last.index(max(ends)) / len(last) / 2 + len(too) / 20, lost=gone)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _then(going: Sequence[Going]) -> str:
    """What has to be written for these to go."""
    none = [each.service for each in going if not each.left]
    words = [f"remove the manifest{'s' if len(none) > 1 else ''} of {' and '.join(none)}"] if none else []
    return " and ".join([*words, *(f"write 'replicas: {each.left}' for {each.service}" for each in going if each.left)])
