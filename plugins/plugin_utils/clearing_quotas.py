# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking places away until the quota of a team has room for one more replica: what it has lent goes back, and lower priorities give way."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key, key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Displacement, Need, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Charge, Debit, counted


def clear_quota(draft: Draft, need: Need, gone: dict[Key, Placement]) -> Displacement | None:
    """Take places away until the team's quota has room for one more; None when that cannot be. ``gone`` is filled."""
    if not draft.fleet.books.limited(need.team):
        return "preempted"
    if not draft.fleet.books.tight(need.team, need.count):
        return "preempted"
    charges = charges_of(draft, need)
    if any(draft.fleet.books.refusal(need.team, charge) is None for charge in charges):
        return "preempted"
    for charge in charges:
        mark, lifted = draft.mark(), dict[Key, Placement]()
        way: Displacement = "preempted"
        while (debit := draft.fleet.books.refusal(need.team, charge)) is not None:
            key = _debtor(draft, need, debit)
            if key is None and debit.lent and debit.workspace:
                # Nobody who borrowed may be asked; where preemption is allowed, anybody of the workspace who is lower may.
                debit = debit._replace(lent=False)
                key = _debtor(draft, need, debit)
            if key is None:
                break
            way = "reclaimed" if debit.lent else way
            lifted[key] = draft.lift(key)
        if debit is None:
            draft.keep()
            draft.forget(need)
            gone.update(lifted)
            return way
        draft.back(mark)
    return None


def charges_of(draft: Draft, need: Need) -> list[Charge]:
    """What a place could count against the quota of its team, the least first; nothing where that does not matter."""
    return draft.fleet.charges(need) if draft.fleet.books.tight(need.team, need.count) else []


def _debtor(draft: Draft, need: Need, debit: Debit) -> Key | None:
    """Whose place counts against a limit and may be taken away: the lowest priority, and of those the one that is enough."""
    books = draft.fleet.books
    if not debit.lent and not draft.problem.preemption:
        return None
    teams = books.teams(books.workspace(need.team)) if debit.lent or debit.workspace else (need.team,)
    if debit.lent:
        teams = [team for team in teams if team != need.team and books.borrows(team, debit.key)]
    # Of equal priority only what was borrowed goes back.
    below = need.priority + (1 if debit.lent else 0)
    found = []
    for priority, name, charge in itertools.chain.from_iterable(_charged_below(draft, team, below) for team in teams):
        service, much = key_of(name)[0], counted(charge, debit.key)
        if (
            much
            and service != need.service
            and service not in need.rules.together
            and (key := draft.movable(name, leaving=True)) is not None
        ):
            size = much if much >= debit.short else -much
            found.append((priority, much < debit.short, size, draft.needs[service].move_cost, key))
    return min(found)[-1] if found else None


def _charged_below(draft: Draft, team: str, priority: int) -> Iterator[tuple[int, str, Charge]]:
    """(Priority, name, charge) of all that a team has below a priority, the lowest first."""
    charged = draft.fleet.books.charged(team)
    if not charged:
        return
    known = draft.fleet.books.known_alone(team)
    if "by priority" not in known:
        those = ((draft.needs[key_of(name)[0]].priority, name, charge) for name, charge in charged.items())
        known["by priority"] = sorted(those, key=operator.itemgetter(0))
    yield from itertools.takewhile(lambda each: each[0] < priority, known["by priority"])
