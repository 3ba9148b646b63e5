# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose places count against a limit of a team and may be taken away, by priority.

Where a quota is tight it is asked for each replica that has no place, of very many who have one; so a list of them is kept, and changed
only for those whose places have changed since.
"""

from __future__ import annotations

import bisect
import typing as t
from collections.abc import Callable, Iterator, Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Books, counted
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Key as Limited

Key = tuple[str, int]


class Debt(t.NamedTuple):
    """``much``: how much of what a limit counts a replica has. The order is that in which such as are enough are taken."""

    much: int
    move_cost: int
    key: Key


class Level:
    """All of a team of one priority. ``much``: what they have together."""

    def __init__(self) -> None:
        self.much = 0
        self.debts: list[Debt] = []

    def enough(self, short: int) -> Iterator[Debt]:
        """Those of whom one is enough, who has least first."""
        return (self.debts[turn] for turn in range(bisect.bisect_left(self.debts, (short,)), len(self.debts)))

    def too_little(self, short: int) -> Iterator[Debt]:
        """The others, who has most first."""
        end = bisect.bisect_left(self.debts, (short,))
        while end:
            start = bisect.bisect_left(self.debts, (self.debts[end - 1].much,))
            yield from self.debts[start:end]
            end = start

    def change(self, debt: Debt, sign: t.Literal[1, -1]) -> None:
        """One more, or one fewer."""
        self.much += sign * debt.much
        turn = bisect.bisect_left(self.debts, debt)
        self.debts[turn : turn + (sign < 0)] = [debt] if sign > 0 else []


class _Known:
    """Of one team and limit. ``read``: of how many changes it knows."""

    def __init__(self) -> None:
        self.read = 0
        self.levels: dict[int, Level] = {}
        self.by_name: dict[str, tuple[Level, Debt]] = {}


class Debtors:
    """Of one plan while it is made."""

    def __init__(self, books: Books, needs: Mapping[str, Need]) -> None:
        self._books, self._needs = books, needs
        self._known: dict[tuple[str, Limited], _Known] = {}

    def below(self, team: str, limit: Limited, priority: int, movable: Callable[[str], Key | None]) -> list[tuple[int, Level]]:
        """Those below a priority who have anything of what a limit counts, the lowest first. They are right until a place changes.

        ``movable``: the replica of a name, if it is one whose place may be taken away, which changes only with its place.
        """
        known = self._known.get((team, limit))
        changed = self._books.changed(team)
        if known is None:
            known = self._known[team, limit] = _Known()
            news: t.Iterable[str] = list(self._books.charged(team))
        else:
            news = dict.fromkeys(changed[known.read :])
        known.read = len(changed)
        charged = self._books.charged(team)
        for name in news:
            much = counted(charged.get(name, ()), limit)
            self._renew(known, name, much, movable(name) if much else None)
        return [(each, level) for each, level in sorted(known.levels.items()) if each < priority and level.debts]

    def _renew(self, known: _Known, name: str, much: int, key: Key | None) -> None:
        level, debt = known.by_name.pop(name, (None, None))
        if level is not None and debt is not None:
            level.change(debt, -1)
        if key is not None:
            need = self._needs[key[0]]
            level, debt = known.levels.setdefault(need.priority, Level()), Debt(much, need.move_cost, key)
            level.change(debt, 1)
            known.by_name[name] = level, debt
