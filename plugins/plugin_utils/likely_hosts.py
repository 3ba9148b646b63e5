# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On which hosts of very many it is worth to look for what is in the way of a replica."""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

#: Of more hosts than these only the likeliest are looked at.
MOST_HOSTS: t.Final = 48


class _Crowd(t.NamedTuple):
    """GPUs of a host by board, the replicas that are ``there``, and those of them that nothing moves."""

    boards: Mapping[str, int]
    there: int
    stays: int


class LikelyHosts:
    """The likeliest hosts of a fleet that changes no more; found once for all that ask for the same of a host."""

    def __init__(self, fleet: Fleet, needs: Mapping[str, Need]) -> None:
        self._fleet, self._needs = fleet, needs
        self._crowds: dict[str, _Crowd] = {}
        self._found: dict[t.Any, Sequence[HostState]] = {}

    def of(self, need: Need) -> Sequence[HostState]:
        """All hosts of the environment that are up; of very many those with fewest replicas for each GPU that it wants, and room beside."""
        asked = (need.environment, need.data_class, need.models, need.not_models, need.count, need.resources)
        if asked not in self._found:
            self._found[asked] = self._likeliest(need)
        return self._found[asked]

    def _likeliest(self, need: Need) -> Sequence[HostState]:
        here = [host for host in self._fleet.hosts.values() if host.host.environment == need.environment and not host.host.down]
        if len(here) <= MOST_HOSTS:
            return here
        wants = {board: need.wants(board) for host in here for board in self._crowd(host).boards}

        def rank(host: HostState) -> tuple[bool, bool, bool, float, int]:
            crowd = self._crowd(host)
            wanted = sum(many for board, many in crowd.boards.items() if wants[board])
            # What nothing moves is not worth a look.
            dead = wanted < need.count or (crowd.there == crowd.stays and crowd.stays >= wanted)
            away = not host.host.may_have(need)
            return (away, dead, bool(host.free.shortage(need.resources)), crowd.there / max(wanted, 1), host.turn)

        return sorted(here, key=rank)[:MOST_HOSTS]

    def _crowd(self, host: HostState) -> _Crowd:
        name = host.host.name
        if name not in self._crowds:
            stays = sum(count for service, count in host.replicas.items() if service in self._needs and self._needs[service].adopted)
            self._crowds[name] = _Crowd(Counter(state.gpu.board for state in host.gpus), sum(host.replicas.values()), stays)
        return self._crowds[name]
