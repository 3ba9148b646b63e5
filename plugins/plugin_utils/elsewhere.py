# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts could do for a replica that has a place, if it had none.

Of very many replicas only the host that one of them leaves is another then, and what its team may have. So every host is asked once for all
services of a kind, and once for each service where that has replicas.
"""

from __future__ import annotations

import heapq
import typing as t
from collections.abc import Iterable, Mapping, Set
from functools import partial
from operator import attrgetter

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import Offer, Question, offer_of, question_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import gpu_refusal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState


class Able(t.NamedTuple):
    """A host that could take one more replica: its offer, and how many of its GPUs could."""

    offer: Offer
    gpus: int


class Others(t.NamedTuple):
    """Of all hosts but one: how many could take one more replica, how many of their GPUs, and the best that any of them offers."""

    hosts: int
    gpus: int
    best: Offer | None


def kind_elsewhere(fleet: Fleet, need: Need) -> int:
    """Equal for services to which hosts that have no replica of theirs say the same, as long as quotas let them have the same."""
    own = need.service if fleet.rulebook.alone(need) or need.service in fleet.keepers else ""
    priority = need.priority if fleet.keepers else 0
    asked = (question_of(fleet, need)[0], need.environment, need.data_class, need.resources, need.ports)
    return fleet.kind(("elsewhere", own, priority, asked))


class Elsewhere:
    """What hosts could do, in a fleet that changes no more but for the replica that is taken away, and comes back before the next."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kind = -1
        self._hosts: dict[Question, _Hosts] = {}
        self._services: dict[tuple[str, Question], _Service] = {}

    def of(self, need: Need, left: HostState, ports: Mapping[str, int]) -> tuple[Able | None, Others]:
        """What the host that a replica just ``left`` could do for it, None for nothing, and what all others could. ``ports``: that it had.

        What was said for another kind of services is forgotten: those of a kind are best asked about one after the other.
        """
        kind, question = kind_elsewhere(self._fleet, need), question_of(self._fleet, need)
        if kind != self._kind:
            self._kind, self._hosts, self._services = kind, {}, {}
        if question not in self._hosts:
            self._hosts[question] = _Hosts(self._fleet, question)
        asked = (need.service, question)
        if asked not in self._services:
            self._services[asked] = _Service(self._fleet, need, self._hosts[question], left)
        return _ask(self._fleet, need, question, left, ports), self._services[asked].without(left)


class _Hosts:
    """What hosts could do for one more replica of any service of a kind; each is asked for one that has no replica there."""

    def __init__(self, fleet: Fleet, question: Question) -> None:
        self.question = question
        self.able: dict[int, Able] = {}
        self.gpus = 0
        self.best_first: list[Offer] = []
        self._fleet = fleet
        self._unasked = set(range(len(fleet.by_turn)))

    def ask(self, need: Need, but: Set[int]) -> None:
        """All but these, by their turns."""
        late = self._unasked - but
        self._unasked &= but
        for turn in sorted(late):
            able = _ask(self._fleet, need, self.question, self._fleet.by_turn[turn], {})
            if able is not None:
                self.able[turn] = able
                self.gpus += able.gpus
                self.best_first.append(able.offer)
        if late:
            self.best_first.sort(key=attrgetter("rank"))


class _Service:
    """What hosts could do for one more replica of a service while its team has one fewer."""

    def __init__(self, fleet: Fleet, need: Need, hosts: _Hosts, left: HostState) -> None:
        self._fleet, self._need, self._question = fleet, need, hosts.question
        # Where it is, or was just now, it is asked for itself.
        self._unasked = {*fleet.diary.having(need.service), left.turn}
        hosts.ask(need, self._unasked)
        there = [hosts.able[turn] for turn in self._unasked if turn in hosts.able]
        self._hosts, self._gpus = len(hosts.able) - len(there), hosts.gpus - sum(able.gpus for able in there)
        best = next((offer for offer in hosts.best_first if offer.host.turn not in self._unasked), None)
        self._best = [] if best is None else [best]
        self._own: dict[int, Able] = {}

    def without(self, host: HostState) -> Others:
        """All but this one, which is one of those that had it."""
        late = self._unasked - {host.turn}
        self._unasked -= late
        for turn in sorted(late):
            able = _ask(self._fleet, self._need, self._question, self._fleet.by_turn[turn], {})
            if able is not None:
                self._own[turn] = able
                self._hosts, self._gpus = self._hosts + 1, self._gpus + able.gpus
                # Two, for one of them may be the one that is left out.
                self._best = heapq.nsmallest(2, (*self._best, able.offer), key=attrgetter("rank"))
        best = next((offer for offer in self._best if offer.host is not host), None)
        own = self._own.get(host.turn)
        return Others(self._hosts, self._gpus, best) if own is None else Others(self._hosts - 1, self._gpus - own.gpus, best)


def _ask(fleet: Fleet, need: Need, question: Question, host: HostState, ports: Mapping[str, int]) -> Able | None:
    """None where it has no room, its ports are taken, or somebody's rollout would have no room. ``ports``: that the replica had there."""
    offer = offer_of(host, need, question)
    if offer is None or isinstance(host.choose_ports(need, replica_name(need.service, 0), ports, fleet.asked), str):
        return None
    if in_the_way(fleet, host, need):
        return None
    if host.replicas.get(need.service):
        return Able(offer, _open(host.gpus, need))
    return Able(offer, host.once(("open for", question), partial(_open, host.gpus, need)))


def _open(gpus: Iterable[GpuState], need: Need) -> int:
    return sum(gpu_refusal(state, need) is None for state in gpus)
