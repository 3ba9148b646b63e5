# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happened to the hosts of a fleet while a plan is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Diary:
    """For whoever remembers what hosts said: one after the other those on which anything changed.

    Hosts are named by their turn: they know their diary, and two that know each other would stay in memory until a sweep.
    """

    def __init__(self) -> None:
        self.changed: list[int] = []
        self._having: dict[str, set[int]] = {}

    def having(self, service: str) -> Collection[int]:
        """The hosts that have replicas of a service."""
        return self._having.get(service, ())

    def note(self, turn: int, replicas: Mapping[str, int], service: str) -> None:
        """A host has got a replica of a service, or let one go. ``replicas``: how many it has now, by service."""
        if replicas.get(service):
            self._having.setdefault(service, set()).add(turn)
        elif service in self._having:
            self._having[service].discard(turn)
