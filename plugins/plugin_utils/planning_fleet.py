# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts of a problem, and what is known of all of them together while a plan is made."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.diary import Diary
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import cutter_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.placement_rules import Rulebook
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need, Placement, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Books, Charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState


def _amount(charge: Charge) -> tuple[t.Any, ...]:
    return (sum(many for _board, counted, many in charge if counted == "memory"), charge)


def _board(state: GpuState) -> tuple[t.Any, ...]:
    """Equal for GPUs on which a place counts the same."""
    return (state.gpu.board, state.gpu.memory_mib, state.gpu.counted_mib, state.cutter)


class Fleet:
    """All hosts of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.books = Books(problem.quotas, problem.workspaces)
        self.rulebook = Rulebook(problem.needs)
        self.preemption = problem.preemption
        # Services for whose rollouts room is kept beside them.
        self.keepers = {need.service: need for need in problem.needs if need.keep_room and not need.adopted}
        # Of those what one more replica beside a rollout asks for, by service and MiB (kept_room.py).
        self.extras: dict[tuple[str, int], Need] = {}
        self._kinds: dict[tuple[t.Any, ...], int] = {}
        self._charges: dict[tuple[object, ...], list[Charge]] = {}
        self.questions: dict[str, tuple[Need, int]] = {}
        # What hosts offer, best first, by question; and whether any has room, by number.
        self.rankings: dict[t.Any, t.Any] = {}
        self.rooms: dict[int, t.Any] = {}
        every = [gpu for each in problem.hosts for gpu in each.gpus]
        # Mostly nobody wants any of them empty, and then nobody has to be asked about it.
        self.drained = any(gpu.drain is not None and gpu.blocked is None for gpu in every)
        largest = max((gpu.counted_mib for gpu in every), default=0)
        boards = " ".join(sorted({gpu.board for gpu in every}))  # every word of a quota that any board has is in this one
        slices = max((gpu.geometry.memory_slices for gpu in every if gpu.geometry is not None), default=0)
        self.books.most = ((boards, "memory", largest), (boards, "slices", slices), (boards, "gpus", 1))
        self.diary = Diary()
        self.hosts: dict[str, HostState] = {}
        for turn, each in enumerate(sorted(problem.hosts, key=lambda host: host.order)):
            states = [GpuState(gpu, each, cutter_of(gpu.geometry), self.books) for gpu in (() if each.down else each.gpus)]
            self.hosts[each.name] = HostState(each, states, self.books, self.rulebook, self.diary, turn)
        self.by_turn = list(self.hosts.values())
        self._named = {placement.host for placement in problem.previous}
        # A GPU of each board: what counts against a quota is the same on all of them.
        every_state = (state for host in self.hosts.values() for state in host.gpus)
        self._boards = list({_board(state): state for state in every_state}.values())
        self.adopted = frozenset(
            replica_name(need.service, number) for need in problem.needs if need.adopted for number in range(1, need.replicas + 1)
        )
        self.asked = frozenset(port for need in problem.needs for _name, port in need.ports if port is not None)

    def claim(self, places: Iterable[Placement]) -> None:
        """The ports of these are nobody else's, while it is decided who stays."""
        for place in sorted(places, key=lambda each: each.rank):
            host = self.hosts.get(place.host)
            if host is not None and host.usable(place.gpus):
                for _name, port in place.ports:
                    host.claimed.setdefault(port, place.name)

    @cached_property
    def twin_of(self) -> dict[int, list[int]]:
        """By the turn of a host that looks like others, all of these."""
        return {turn: alike for alike in self.twins if len(alike) > 1 for turn in alike}

    @cached_property
    def twins(self) -> list[list[int]]:
        """The hosts by their turns, those together that answer alike as long as nothing has changed on either."""
        found: dict[t.Any, list[int]] = {}
        for turn, state in enumerate(self.by_turn):
            # What no plan says anything of yet: a replica that was there may have ports there that others may not.
            found.setdefault(turn if state.host.name in self._named else state.looks(), []).append(turn)
        return list(found.values())

    def charges(self, need: Need) -> list[Charge]:
        """What a place on any of its boards could count against the quota of its team, the least first."""
        asked = (need.environment, need.data_class, need.models, need.not_models)
        size = (need.isolation, need.profile, need.memory_mib, need.compute, need.count)
        if (asked, size) not in self._charges:
            hosts = [host for host in self.hosts.values() if host.host.admits(need)]
            boards = {_board(state): state for host in hosts for state in host.gpus}
            self._charges[asked, size] = sorted({charge for state in boards.values() for charge in state.charges(need)}, key=_amount)
        return self._charges[asked, size]

    def stamp(self, need: Need) -> tuple[object, ...]:
        """Equal while the quota of its team lets a need have the same of each board; () while it lets it have everything."""
        if not self.books.tight(need.team, need.count):
            return ()
        known = self.books.known(need.team)
        asked = ("stamp", need.isolation, need.memory_mib, need.compute, need.profile, need.count)
        if asked not in known:
            known[asked] = tuple(state.profiles(need) if need.isolation == "slice" else state.debit(need) is None for state in self._boards)
        stamp: tuple[object, ...] = known[asked]
        return stamp

    def kind(self, what: tuple[t.Any, ...]) -> int:
        """A number for each kind of need, for it is asked for often."""
        return self._kinds.setdefault(what, len(self._kinds))
