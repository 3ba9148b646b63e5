# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts wait for which others when plans are carried out, so that replicas are in their new places before they leave the old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def waits(hosts: Iterable[str], wanted: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Host -> the hosts that come before it. ``wanted``: (later, earlier); what would close a circle is left out, the last of it."""
    found: dict[str, set[str]] = {host: set() for host in hosts}
    for later, earlier in wanted:
        if not _reaches(found, earlier, later):
            found[later].add(earlier)
    return found


def waves(
    old: Mapping[str, Iterable[str]], new: Mapping[str, Iterable[str]], priorities: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Host -> 0 when it waits for nobody, else one more than those that it waits for: hosts to which its replicas go.

    ``old`` and ``new``: host -> names of the replicas that it has before and after. Hosts of both are in the answer. ``priorities``: of
    services; in a circle the host goes first for which the lowest stop.
    """
    goes_to = {name: host for host in sorted(new) for name in new[host]}
    moves = [(name, host, goes_to.get(name, host)) for host in sorted(old) for name in old[host]]
    return turns_of(waits(sorted({*old, *new}), move_waits(moves, priorities or {})))


def move_waits(moves: Iterable[tuple[str, str, str]], priorities: Mapping[str, int]) -> list[tuple[str, str]]:
    """What moves ask of :func:`waits`, the highest priority first: a circle is opened where the lowest stops, by name among equals.

    ``moves``: (name of a replica, host that it leaves, host that it goes to). ``priorities``: of services.
    """
    away = sorted((-priorities.get(name.rpartition("-")[0], 0), left, name, there) for name, left, there in moves if left != there)
    return [(left, there) for _priority, left, _name, there in away]


def turns_of(before: Mapping[str, set[str]]) -> dict[str, int]:
    """Host -> 0 when it waits for nobody, else one more than those that it waits for, from what :func:`waits` says."""
    found: dict[str, int] = {}
    while len(found) < len(before):
        ready = [host for host in before if host not in found and before[host] <= found.keys()]
        found |= {host: max((found[each] + 1 for each in before[host]), default=0) for host in ready}
    return found


def _reaches(before: Mapping[str, set[str]], start: str, goal: str) -> bool:
    """Does ``start`` wait for ``goal``, directly or not?"""
    seen: set[str] = set()
    rest = [start]
    while rest:
        each = rest.pop()
        if each == goal:
            return True
        if each not in seen:
            seen.add(each)
            rest.extend(before[each])
    return False
