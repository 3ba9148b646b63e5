# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does a change serve whom it is for, here and in the whole fleet, and who loses or leaves a place by it?"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes_at_once import AtOnce
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Change, change_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import LOSERS, MOVES, WIDE, Option, eased, edited
from ansible_collections.gpuops.fleet.plugins.plugin_utils.trials import Key, serving, waiting_in
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import same_place

#: The most that ``fleet_moves`` may be.
MOST_MOVES: t.Final = 8
# The change, if it serves whom it is for; everybody of the service whom it serves; who loses a place by it.
Trial = tuple[Change | None, set[int], list[str]]


class Proved(AtOnce):
    """Trials of one change: where it is made, then in the whole fleet."""

    def __init__(self, problem: Problem, solution: Solution, leases: Mapping[str, str], budget: int) -> None:
        super().__init__(problem, solution, leases, budget)
        # For seeing what changes do in the whole fleet, and not only where they are made.
        self.proving = budget // 4 if self.many else budget
        self.movers: list[str] = []
        # By change, environment and priority: who has a place after it, who serves no more, and who had to leave another place.
        self.held: dict[tuple[t.Any, ...], tuple[set[Key], list[str], list[str]]] = {}

    def proved(self, need: Need, option: Option, targets: Sequence[int]) -> Trial:
        """As :meth:`tried`, if it holds in the whole fleet; and who loses a place by it there."""
        meant = option.lost
        if LOSERS in option.text and not self.many:
            # Preemption is for all of its replicas, and takes the lowest wherever they are: who gives way is found out by the plan.
            highest = max([need.priority, *(edit.value for edit in option.edits if edit[:3] == ("service", need.service, "priority"))])
            lower = (replica_name(*key) for key in self.placed if self.scene.needs[key[0]].priority < highest)
            option = option._replace(lost=tuple(sorted({*option.lost, *lower})))
        change, now = self.tried(need, option, targets)
        lost: tuple[list[str], list[str]] | None = ([], [])
        if change is not None and not self.is_own(need, option):
            lost = self._losers(need, change, targets)
            # Of the others whom it serves here those count who are served in any case.
            now = self._served_anyway(need, change, now) if lost is not None else now
        # More than were meant give way to others who wait.
        if change is None or lost is None or (need.replicas == 1 and not set(lost[0]) <= {*meant} and len(lost[0]) > len(meant)):
            return None, set(), []
        return change.said(*lost), now, lost[0]

    def _losers(self, need: Need, change: Change, served: Iterable[int]) -> tuple[list[str], list[str]] | None:
        """Who loses a place by the change in the whole fleet, where others who wait may take what it frees; and who has to leave one for a
        higher priority and has another.

        None where it does not serve them there, takes a place of somebody whom it may not, or no work is left to find out.
        """
        asked = self._asked(need, change)
        if asked not in self.held:
            # Where preemption is allowed, those who come after this one may take places, too.
            problem = edited(self.now, change.edits)
            if self.many and not problem.preemption:
                problem = edited(self.reduced(need, None), change.edits)
            self.proving -= 3 * waiting_in(problem) * len(problem.hosts) + 5 * len(problem.previous)
            if self.proving < 0:
                return None
            solution = make_plan(problem, trial=self.many, words=False)
            now = {(place.service, place.replica) for place in solution.placements}
            forced = {(each.service, each.replica) for each in solution.displaced if each.way == "preempted"}
            gone = _names(self.serving - serving(problem, solution))
            self.held[asked] = now, gone, _names(forced & now & self.placed)
        now, lost, pushed = self.held[asked]
        wanted = {(need.service, number) for number in served}
        if not (set(lost) <= set(change.lost) and wanted <= now):
            return None
        return (lost, pushed) if self.holds(change.said(lost, pushed), wanted) else None

    def _served_anyway(self, need: Need, change: Change, served: Iterable[int]) -> set[int]:
        """Those of the service whom a change that :meth:`_losers` looked at serves in the whole fleet, and where it is made at once."""
        there, lost, pushed = self.held[self._asked(need, change)]
        keys = ((need.service, number) for number in served)
        return {number for _service, number in self.holding(change.said(lost, pushed), (key for key in keys if key in there))}

    @staticmethod
    def _asked(need: Need, change: Change) -> tuple[t.Any, ...]:
        return (*change.name, need.environment, need.priority)

    def also(self, need: Need, change: Change, rest: Sequence[int]) -> set[int]:
        """Whom a change of the service's own manifest serves on other hosts than the one that it was tried on."""
        if not rest or self.many or any(edit[:2] != ("service", need.service) for edit in change.edits):
            return set()
        served = self._served(need, Option(change.kind, change.cost, change.sentence, change.edits), rest[:1]) or set()
        return served if served and self._losers(need, replace(change, lost=()), served) is not None else set()

    def tried(self, need: Need, option: Option, targets: Sequence[int]) -> tuple[Change | None, set[int]]:
        """The option as a change if it serves all targets, and everybody of the service whom it serves."""
        served = self._served(need, option, targets)
        if served is None:
            return None, set()
        if MOVES in option.text:
            fewest = self._with_fewest_moves(need, option, targets)
            if fewest is None:
                return None, set()
            option, served = fewest
        return change_of(option), served

    def _with_fewest_moves(self, need: Need, option: Option, targets: Sequence[int]) -> tuple[Option, set[int]] | None:
        """The option with the least ``fleet_moves`` that does, whom it serves, and who would move; None where nobody has to."""
        most = sum(self.scene.needs[name.rpartition("-")[0]].move_cost for name in self.movers)
        for count in range(self.now.moves + 1, min(most, MOST_MOVES) + 1):
            edits = tuple(edit._replace(value=count) if edit[:3] == ("fleet", "", "moves") else edit for edit in option.edits)
            served = self._served(need, option._replace(edits=edits), targets)
            if served is not None and self.movers:
                names = f"{', '.join(self.movers[:3])}{' and others' if len(self.movers) > 3 else ''}"
                text = option.text.replace(MOVES, f"allow fleet_moves: {count}, and {names} would move")
                return option._replace(text=text, edits=edits), served
        return None

    def _served(self, need: Need, option: Option, targets: Sequence[int]) -> set[int] | None:
        """Whom of the service the option serves beside those that have a place; None when a target is not among them, or others lose."""
        if self.is_own(need, option):
            return self.room_for(need, eased(need, option.edits), option.host, targets)
        seen = self._where(need, option)
        problem = edited(self.reduced(need, seen), option.edits)
        if self.many and option.kind != "moves":
            problem = replace(problem, moves=0)
        edited_services = frozenset(edit.name for edit in option.edits if edit.part == "service")
        solution = self.plan(replace(problem, changed=edited_services), seen)
        if solution is None:
            return None
        places = {(place.service, place.replica): place for place in solution.placements}
        known = {(place.service, place.replica): place for place in problem.previous}
        stay = serving(problem, solution)
        gone = [key for key in known if key in self.serving and key not in stay and replica_name(*key) not in option.lost]
        now = {number for service, number in places if service == need.service and (service, number) not in self.placed}
        self.movers = sorted(place.name for key, place in places.items() if key in known and not same_place(place, known[key]))
        return None if gone or not set(targets) <= now else now

    def is_own(self, need: Need, option: Option) -> bool:
        """Of many: is it a change of its own manifest only, of a service that has no place yet and brings nobody another one?

        Nobody has more room by it than without it: whoever waits before this one still has no place, and whoever has one keeps it.
        """
        own = all(edit[:2] == ("service", need.service) for edit in option.edits)
        alone = need.service not in self.at and not (need.rules.together or need.rules.all_or_nothing or need.keep_room)
        return self.many and own and alone and not option.lost and option.kind not in WIDE

    def _where(self, need: Need, option: Option) -> set[str] | None:
        """The hosts that a plan has to see to judge an option; None for all of them."""
        if option.kind in WIDE or need.rules.together or need.rules.all_or_nothing:
            return None
        if option.kind == "hosts":
            return set()
        return {option.host} if option.host else None


def _names(keys: Iterable[Key]) -> list[str]:
    return [replica_name(*key) for key in sorted(keys)]
