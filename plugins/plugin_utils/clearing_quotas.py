# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking places away until the quota of a team has room for one more replica: what it has lent goes back, and lower priorities give way."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.debtors import Level
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Displacement, Need, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Charge, Debit

# How many may be the first to leave for one replica, on a small fleet.
MOST_FIRST = 8


def clearings(draft: Draft, need: Need) -> Iterator[tuple[Displacement, dict[Key, Placement]]]:
    """The ways in which the team's quota has room for one more, and who has left a place for it: first as it is, if it may have any board;
    then what each board counts, the least first, and whoever may leave first.

    Each stands while it is looked at, and is undone before the next: whoever is content calls ``draft.keep()`` and asks for no other. On a
    large fleet only the first is looked at for which anybody leaves.
    """
    books = draft.fleet.books
    charges = charges_of(draft, need) if books.limited(need.team) else []
    over = [(charge, debit) for charge in charges if (debit := books.refusal(need.team, charge)) is not None]
    if len(over) < len(charges) or not charges:
        mark = draft.mark()
        yield "preempted", {}
        draft.back(mark)
    for charge, debit in over:
        for owed in _owed(debit):
            for first in _first_debtors(draft, need, owed):
                mark = draft.mark()
                lifted = {first: draft.lift(first)}
                way = _cleared(draft, need, charge, lifted, owed.lent)
                if way is not None:
                    draft.forget(need)
                    yield way, lifted
                draft.back(mark)
                if way is not None and not draft.problem.is_small:
                    return


def _cleared(draft: Draft, need: Need, charge: Charge, lifted: dict[Key, Placement], lent: bool) -> Displacement | None:
    """Take away as many more as it takes; None when that cannot be. ``lent``: was what is gone already lent?"""
    while (debit := draft.fleet.books.refusal(need.team, charge)) is not None:
        found = next(((owed, key) for owed in _owed(debit) for _priority, key in _debtors(draft, need, owed)), None)
        if found is None:
            return None
        lent = lent or found[0].lent
        lifted[found[1]] = draft.lift(found[1])
    return "reclaimed" if lent else "preempted"


def _owed(debit: Debit) -> tuple[Debit, ...]:
    """What has to go back; where nobody who borrowed may go, and preemption is allowed, anybody of the workspace who is lower may."""
    return (debit, debit._replace(lent=False)) if debit.lent and debit.workspace else (debit,)


def _first_debtors(draft: Draft, need: Need, debit: Debit) -> list[Key]:
    """Who may leave first: one of each host and priority, on a large fleet the best alone."""
    found: dict[tuple[int, str], Key] = {}
    most = MOST_FIRST if draft.problem.is_small else 1
    for priority, key in _debtors(draft, need, debit):
        found.setdefault((priority, draft.place_of(key).host), key)
        if len(found) == most:
            break
    return list(found.values())


def charges_of(draft: Draft, need: Need) -> list[Charge]:
    """What a place could count against the quota of its team, the least first; nothing where that does not matter."""
    return draft.fleet.charges(need) if draft.fleet.books.tight(need.team, need.count) else []


def _debtors(draft: Draft, need: Need, debit: Debit) -> Iterator[tuple[int, Key]]:
    """Whose place counts against a limit and may be taken away, and their priorities: the lowest first, of those the one that is enough,
    and that has what is asked for."""
    books = draft.fleet.books
    if not debit.lent and not draft.problem.preemption:
        return
    teams = books.teams(books.workspace(need.team)) if debit.lent or debit.workspace else (need.team,)
    if debit.lent:
        teams = [team for team in teams if team != need.team and books.borrows(team, debit.key)]
    # Of equal priority only what was borrowed goes back.
    below = need.priority + (1 if debit.lent else 0)
    levels: dict[int, list[Level]] = defaultdict(list)
    for team in teams:
        for priority, level in draft.debtors(team, debit.key, below):
            levels[priority].append(level)
    for priority, several in sorted(levels.items()):
        enough = heapq.merge(*(level.enough(debit.short) for level in several))
        too_little = heapq.merge(*(level.too_little(debit.short) for level in several), key=lambda each: (-each.much, each))
        for debts in (enough, too_little):
            keys: Iterator[Key] = (debt.key for debt in debts if _may_go(draft, need, debt.key, below))
            if draft.problem.is_small:
                keys = iter(sorted(keys, key=partial(_is_other, draft, need)))
            yield from ((priority, key) for key in keys)


def _may_go(draft: Draft, need: Need, key: Key, below: int) -> bool:
    """May its place be taken away for this need, and for nobody who is as high?"""
    service = key[0]
    if service == need.service or service in need.rules.together or draft.movable(replica_name(*key), leaving=True) is None:
        return False
    return draft.takes_along(service) < below


def _is_other(draft: Draft, need: Need, key: Key) -> bool:
    """Are its GPUs of a board that the need cannot use?"""
    place = draft.place_of(key)
    return not all(state.serves(need) for state in draft.fleet.hosts[place.host].usable(place.gpus))
