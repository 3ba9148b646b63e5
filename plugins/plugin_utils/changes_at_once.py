# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Do changes that were tried once a plan is carried out hold as well where they are made at once, as in the merge request of the plan?"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Set

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Change
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import edited
from ansible_collections.gpuops.fleet.plugins.plugin_utils.trials import Key, Trials, serving, waiting_in

#: Work for the smallest plan that looks at all who wait together.
ONE_PLAN: t.Final = 1_600

# Who has a place where a change is made at once, and the names of those who have none any more.
_Early = tuple[set[Key], set[str]] | None


class AtOnce(Trials):
    """Trials of changes that are made in place of this plan. ``later``: changes that hold only once it is carried out, for whom there is
    no other."""

    def __init__(self, problem: Problem, solution: Solution, leases: Mapping[str, str], budget: int) -> None:
        """Half of the budget is for plans of all who wait; nothing of it where these are many."""
        super().__init__(problem, solution, leases, budget)
        self.later: dict[Key, Change] = {}
        self._given = problem
        self._left_at_once = 0 if self.many else budget // 2
        # By change.
        self._known_early: dict[tuple[t.Any, ...], _Early] = {}

    @property
    def may_look_closer(self) -> bool:
        """May less than what holds be looked for? Half of the work for that is left for who is still to be told anything."""
        return self._given.previous == self.now.previous or self._left_at_once > self.budget // 4

    def holds(self, change: Change, wanted: Set[Key]) -> bool:
        """Does a change that serves these once this plan is carried out serve them as well where it is made at once, and nobody but who is
        named has no place then? If not, it is kept for them, should there be no other.

        Where less runs already, others may be served in their place. True where there is too much to do to find out.
        """
        return self._is_early(change, self._early(change), wanted)

    def holding(self, change: Change, keys: Iterable[Key]) -> list[Key]:
        """Those of the keys for whom a change :meth:`holds`, each by itself, in order."""
        early = self._early(change)
        return [key for key in sorted(keys) if self._is_early(change, early, {key})]

    def _early(self, change: Change) -> _Early:
        """Who is served where a change is made at once, and who loses a place by it; None where there is too much to do to find out."""
        name = change.name
        if name not in self._known_early:
            problem = edited(self._given, change.edits)
            # All who wait are looked at together, down to the GPU: the more there are, the longer for each.
            work = ONE_PLAN + (waiting_in(problem) * sum(len(host.gpus) for host in problem.hosts)) ** 2 // 100
            able = self._given.previous != self.now.previous and work <= self._left_at_once
            self._left_at_once -= work if able else 0
            made = make_plan(problem, words=False) if able else None
            then = {(place.service, place.replica) for place in made.placements} if made else set()
            lost = {replica_name(*key) for key in self.serving - serving(problem, made)} if made else set()
            self._known_early[name] = (then, lost) if able else None
        return self._known_early[name]

    def _is_early(self, change: Change, early: _Early, wanted: Set[Key]) -> bool:
        """As :meth:`holds`."""
        if early is None or (wanted <= early[0] and early[1] <= set(change.lost)):
            return True
        for key in wanted:
            self.later.setdefault(key, change)
        return False
