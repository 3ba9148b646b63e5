# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What replicas without a place are told: the cause, and the changes that would give them one."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem, Solution, Unplaced
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import LOSERS, Edit, Option, and_words, edited


@dataclass(frozen=True)
class Change:
    """One thing that a person could do. ``cost``: the less the better (:data:`COSTS`); ``lost``: replicas that give their place for it."""

    kind: str
    cost: float
    sentence: str
    edits: tuple[Edit, ...]
    lost: tuple[str, ...] = ()

    @property
    def name(self) -> tuple[t.Any, ...]:
        """What tells it from others."""
        return (self.sentence, *self.edits)

    def apply(self, problem: Problem) -> Problem:
        """The problem with the change made."""
        return edited(problem, self.edits)

    def said(self, losers: Sequence[str], pushed: Sequence[str]) -> Change:
        """With the names of those who lose their places, where who that is had to be found out; ``pushed``: who has another place then."""
        if LOSERS not in self.sentence:
            return self
        names = [*losers, *(f"{name} (which has another place)" for name in pushed)]
        said = self.sentence.replace(LOSERS, f": {and_words(names)} would give way" if names else "")
        return replace(self, sentence=said, lost=tuple(losers))


@dataclass(frozen=True)
class Proposal:
    """Why a replica has no place, in a word of :data:`repair_kinds.CAUSES`, and the cheapest changes, each of which would give it one.

    ``afterwards``: a far cheaper one that does so only once this plan is carried out.
    """

    service: str
    replica: int
    cause: str
    changes: tuple[Change, ...] = ()
    afterwards: Change | None = None

    @property
    def sentence(self) -> str:
        """All of them; empty when none was found."""
        then = [] if self.afterwards is None else [f"{self.afterwards.sentence}, once this plan is carried out"]
        return ", or ".join([*(change.sentence for change in self.changes), *then])

    def data(self) -> dict[str, t.Any]:
        """For JSON."""
        changes = [_told(change) for change in self.changes]
        then = {} if self.afterwards is None else {"afterwards": _told(self.afterwards)}
        return {"service": self.service, "replica": self.replica, "cause": self.cause, "changes": changes, **then}


def _told(change: Change) -> dict[str, t.Any]:
    return {"kind": change.kind, "change": change.sentence, "gives_way": list(change.lost)}


def told(solution: Solution, proposals: Iterable[Proposal]) -> Solution:
    """The solution with the changes that were found as what would help."""
    found = {(each.service, each.replica): each.sentence for each in proposals if each.changes}
    unplaced = tuple(
        Unplaced(each.service, each.replica, each.reason, found.get((each.service, each.replica), each.help)) for each in solution.unplaced
    )
    return replace(solution, unplaced=unplaced)


def change_of(option: Option) -> Change:
    """The option as a change that can be told."""
    return Change(option.kind, option.cost, option.text, option.edits, option.lost)
