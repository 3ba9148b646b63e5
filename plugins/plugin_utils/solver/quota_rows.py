# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of teams and workspaces, with what teams borrow and lend, as rows of a program over places."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Books, Charge, counted
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Program


def limit_teams(program: Program, books: Books, charged: Mapping[str, Sequence[tuple[int, Charge]]]) -> list[int]:
    """Keep a program within the quotas. ``charged``: by team, each column of a place of it and what that counts. Columns for what teams
    borrow and lend, which are no places."""

    def takes(team: str, key: t.Any) -> Iterator[tuple[int, float]]:
        return ((column, counted(charge, key)) for column, charge in charged.get(team, ()))

    for teams, key, room in books.ceilings():
        program.at_most(max(0, room), [each for team in sorted(teams) for each in takes(team, key)])
    added: list[int] = []
    for key, members in books.loans():
        # What teams have beyond their own limits is at most what others leave of theirs.
        balance: list[tuple[int, float]] = []
        for team, room, borrows, lends in members:
            own = list(takes(team, key))
            for able, sign in ((borrows, -1), (lends, 1)):
                if able:
                    column = program.add_column()
                    own.append((column, sign))
                    balance.append((column, -sign))
                    added.append(column)
            program.at_most(room if borrows else max(0, room), own)
        program.at_most(0, balance)
    return added
