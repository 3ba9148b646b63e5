# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole replicas in place of fractional ones, one team after the other.

What whole numbers are hard about is inside of teams: a quota in two units, classes of many sizes, counts that are held. What teams share
(places, CPU, RAM, GPUs) is there a thousandfold, and a linear program says well what it is worth. So each team is put into whole numbers
alone while all others may still be fractional. The cost of the rest is convex in what the team takes, and each solution of the linear
program is a line below it (Benders' decomposition: Benders 1962, doi:10.1007/BF01386316): a few such lines, and the small program of the
team knows what is best for all. Teams for which that fails, and the most flexible, which have to make up for the others, come last,
together.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import (
    INFINITE,
    Limits,
    NotFound,
    Outcome,
    Program,
    Session,
    SolverError,
    numpy,
)

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

NEARLY = 1e-6
# How often a team is asked again at most, and the GPUs that are not worth it: so many, or on a large fleet this part of those that are not
# worth the work for those who come last.
TRIES, WORTH, PART = 6, 0.3, 0.1
# A team that costs so many GPUs more than its fractional numbers waits until the others are done.
DEAR = 8.0
# So many teams, the ones with most columns, wait for the others in any case.
FLEXIBLE = 2
# So many times the GPUs that are not worth the work are too many for those who come last, where nothing else is said.
FAR = 2
# So many of the teams that cost most come last then, too.
DEAREST = 2
# No second try where the first took so many iterations: it would take as many again, for a few GPUs at most. Where it took so few, the
# second one looks harder for the same teams, as long as those may have better numbers.
MUCH, LITTLE = 10_000, 500
# Those who come last are sought so near to the linear program's numbers, where there are none a little farther away, and without what it
# does not use and that would cost so many GPUs: a third of the program, and as good numbers as a rule. Where nothing is found for any
# teams, anywhere.
CLOSE, FARTHER, IDLE = 4, 20, 0.02
# How far from the linear program's numbers a team's are sought, one after the other, in replicas of a column; and what each replica away
# from them costs, so that of many equal answers the nearest is taken.
REACHES, AWAY = (2, 40), 0.01
TEAM = Limits(absolute=0.1, nodes=50, once=True)
# What a replica of a held priority, and a core, a GiB or a GPU of what teams share cost when they are missing: so every try has an answer.
LACK_REPLICA, LACK_SHARED = 1e4, 100.0
# So many replicas that are missing are more than the solver's noise.
LACKING = 1e-4


@dataclass(frozen=True, eq=False)
class Fractional:
    """What is to be made whole: ``program`` with its whole ``columns``, each of a ``team`` (the same number for all without a quota).

    ``private``: by row, is it of a single team? ``held``: the rows that say how many replicas of a priority there must be at least;
    ``shared``: those of what all teams share and cannot be bought.
    """

    program: Program
    columns: Ints
    team: Ints
    private: Bools
    held: Ints
    shared: Ints


class Short(Exception):
    """Not even fractional numbers serve as many of the held priorities: no whole ones do, wherever they are sought."""


class Haste(t.NamedTuple):
    """What those who come last may cost beyond their fractional numbers: more than ``far``, and there is a second try; up to ``first``, and
    the first whole numbers that are found will do (0: the best ones that the limits allow)."""

    far: float
    first: float = 0.0


class _Line(t.NamedTuple):
    """A line below the cost of all: ``cost`` where a team takes ``amount``, by column, and the ``slope`` there."""

    cost: float
    slope: Floats
    amount: Floats


def by_teams(fractional: Fractional, limits: Limits, haste: Haste | None = None) -> Floats | None:
    """Whole numbers for all columns, within every row of the program. None where they are not found.

    :param limits: of the program for all teams that come last. :raises Short: there are none.
    """
    try:
        return _Teams(fractional).solve(limits, haste or Haste(FAR * limits.absolute))
    except SolverError:
        # Not even fractional numbers are within every row.
        return None


class _Teams:
    """The linear program, in which teams are put into whole numbers one after the other."""

    def __init__(self, fractional: Fractional) -> None:
        self.fractional, program = fractional, fractional.program
        self.lower, self.upper = program.bounds()
        self.rows = program.row_bounds()
        self.entries = program.entries()
        self.cost = program.cost()
        self.session = Session(program)
        for rows, cost, value in ((fractional.held, LACK_REPLICA, 1.0), (fractional.shared, LACK_SHARED, -1.0)):
            many = numpy.arange(len(rows))
            self.session.add_columns(
                numpy.full(len(rows), cost), numpy.full(len(rows), INFINITE), (rows, many, numpy.full(len(rows), value))
            )
        self.now = self.session.solve(interior=True)
        self.found = numpy.zeros(len(fractional.columns))

    def solve(self, limits: Limits, haste: Haste) -> Floats | None:
        """As :func:`by_teams`."""
        self._see_held()
        team = self.fractional.team
        teams, size = numpy.unique(team, return_counts=True)
        flexible = teams[numpy.argsort(-size, kind="stable")].tolist()
        value = self.now.values[self.fractional.columns]
        many = numpy.bincount(numpy.searchsorted(teams, team), weights=numpy.abs(value - numpy.round(value)) > NEARLY)
        last, cost_of = set(flexible[:FLEXIBLE]), dict[int, float]()
        # The most fractional first: others can make up for them then.
        for one in teams[numpy.argsort(-many, kind="stable")].tolist():
            if one in last:
                continue
            cost = self._settle(team == one, max(WORTH, PART * limits.absolute))
            if cost is None:
                last.add(one)
            else:
                cost_of[one] = cost
        enough = self.now.objective + haste.far
        hurried = self._hurried(limits, haste, last)
        found, reach, dear = (hurried, CLOSE, None) if hurried else self._first(limits, last, flexible, enough)
        again = None
        # Where it took much work, or all teams are asked already, there is no second try; where it is dear in spite of one, it is not for
        # lack of teams.
        if found is not None and found.objective > enough and found.iterations <= MUCH and len(last) < len(teams):
            # At a high price, the teams that cost most already may find something better together.
            dearest = set(sorted(cost_of, key=lambda one: -cost_of[one])[:DEAREST])
            if not found.proven and found.iterations <= LITTLE:
                again = self._near(replace(limits, plain=False), last, reach)[0]
            elif not dearest <= last:
                again = self._near(limits, last | dearest, CLOSE)[0]
        anywhere = None if found is not None else self._together(limits)[0]
        answers = [each for each in (found, again, dear, anywhere) if each is not None]
        best = min(answers, key=lambda each: each.objective) if answers else None
        return None if best is None else numpy.round(best.values[self.fractional.columns])

    def _see_held(self) -> None:
        """See to it that fractional numbers serve what is held, at whatever price. :raises Short: they do not."""
        first = self.fractional.program.columns
        lack = numpy.arange(first, first + len(self.fractional.held))
        if self.now.values[lack].max(initial=0.0) < LACKING:
            return
        none, many = numpy.zeros(len(lack)), numpy.full(len(lack), INFINITE)
        self.session.set_columns(lack, none, none)
        try:
            self.session.solve()
        except SolverError:
            raise Short from None
        self.session.set_columns(lack, none, many)

    def _first(self, limits: Limits, last: set[int], flexible: list[int], enough: float) -> tuple[Outcome | None, int, Outcome | None]:
        """(The first whole numbers that are found for those who come last; how far away; those far away that cost more than ``enough``).

        Where there are none for the teams in ``last``, more of the ``flexible`` ones join them.
        """
        count, dear = FLEXIBLE, None
        while True:
            reach = CLOSE
            answer, unknown = self._near(limits, last, reach)
            if answer is None and dear is None:
                lacking, reach = not unknown, FARTHER
                answer, unknown = self._near(limits, last, reach)
                if answer is not None and lacking and answer.objective > enough:
                    # These teams can hardly make up for the others.
                    dear, answer = answer, None
            if answer is not None or unknown or last.issuperset(flexible):
                return answer, reach, dear
            # They cannot make up for the others: one team more, then two, then four.
            count = 2 * count - FLEXIBLE + 1
            last.update(flexible[:count])

    def _settle(self, mine: Bools, worth: float) -> float | None:
        """Put a team's columns (which of all) into whole numbers: what that costs. None where it is too much or cannot be done.

        ``worth``: the GPUs that are not worth another try.
        """
        columns = self.fractional.columns[mine]
        small = _Team(self, columns)
        base = self.now
        start = base.values[columns]
        lines = [_Line(base.objective, small.slope(base.duals), start)]
        best: tuple[Floats, Outcome] | None = None
        for _try in range(TRIES):
            answer = small.solve(lines, start, base.objective)
            if answer is None:
                break
            after = self._fixed(columns, answer[1])
            if after is None:
                break
            lines.append(_Line(after.objective, after.reduced[columns], answer[1]))
            if best is None or after.objective < best[1].objective:
                best = answer[1], after
            # No other numbers cost less than the small program said of these.
            if best[1].objective <= max(answer[0], base.objective) + worth:
                break
        if best is None or best[1].objective > base.objective + DEAR:
            self.session.set_columns(columns, self.lower[columns], self.upper[columns])
            self.now = self._solved() or base
            return None
        self.found[mine] = best[0]
        # The session goes on from the best of the tries, which need not be the last.
        self.now = best[1] if lines[-1].amount is best[0] else self._fixed(columns, best[0]) or best[1]
        return best[1].objective - base.objective

    def _fixed(self, columns: Ints, amount: Floats) -> Outcome | None:
        self.session.set_columns(columns, amount, amount)
        return self._solved()

    def _solved(self) -> Outcome | None:
        """The best solution now. None where HiGHS does not find it, neither from the last one nor anew."""
        for interior in (False, True):
            try:
                return self.session.solve(interior=interior)
            except SolverError:
                continue
        return None

    def _together(self, limits: Limits, within: tuple[Ints, Floats, Floats] | None = None) -> tuple[Outcome | None, bool]:
        """(Whole numbers for all teams in one program, ``within`` these bounds, None where none were found; might there be some yet?)"""
        try:
            return self.fractional.program.solve(limits, within=within), False
        except SolverError as error:
            return None, isinstance(error, NotFound)

    def _hurried(self, limits: Limits, haste: Haste, last: set[int]) -> Outcome | None:
        """The first whole numbers for the teams in ``last`` that cost little enough; None where there are none, or there is no haste."""
        if not haste.first:
            return None
        most = self.now.objective + haste.first
        answer = self._near(replace(limits, below=most, first=True), last, CLOSE)[0]
        return None if answer is None or answer.objective > most else answer

    def _near(self, limits: Limits, last: set[int], reach: int) -> tuple[Outcome | None, bool]:
        """As :meth:`_together`, for the teams in ``last``, no farther than ``reach`` from the linear program's numbers."""
        return self._together(limits, self._close(~numpy.isin(self.fractional.team, list(last)), reach))

    def _close(self, whole: Bools, reach: int) -> tuple[Ints, Floats, Floats]:
        """(columns, their least, their most): ``whole`` ones as they are, the others no farther than ``reach`` from the linear program's,
        and what is idle at 0."""
        columns = self.fractional.columns
        value, reduced = (part[: self.fractional.program.columns] for part in (self.now.values, self.now.reduced))
        least = numpy.where(whole, self.found, numpy.maximum(self.lower[columns], numpy.floor(value[columns] + NEARLY) - reach))
        most = numpy.where(whole, self.found, numpy.minimum(self.upper[columns], numpy.ceil(value[columns] - NEARLY) + reach))
        idle = (value < NEARLY) & (reduced > IDLE) & (self.lower <= 0.0) & (self.upper == INFINITE)
        idle[columns] = False
        none = numpy.zeros(int(idle.sum()))
        return numpy.append(columns, numpy.flatnonzero(idle)), numpy.append(least, none), numpy.append(most, none)


class _Team:
    """The columns and rows of one team alone."""

    def __init__(self, teams: _Teams, columns: Ints) -> None:
        fractional = teams.fractional
        self.lower, self.upper, self.cost = teams.lower[columns], teams.upper[columns], teams.cost[columns]
        start, index, value = teams.entries
        many = start[columns + 1] - start[columns]
        which = numpy.repeat(start[columns], many) + numpy.arange(int(many.sum())) - numpy.repeat(numpy.cumsum(many) - many, many)
        self.row, self.column, self.value = index[which], numpy.repeat(numpy.arange(len(columns)), many), value[which]
        private = fractional.private[self.row]
        rows, place = numpy.unique(self.row[private], return_inverse=True)
        least, most = teams.rows
        self.own = least[rows], most[rows], place, self.column[private], self.value[private]
        self.shared = ~private
        self.held = [self.column[self.row == row] for row in fractional.held.tolist() if (self.row == row).any()]

    def slope(self, duals: Floats) -> Floats:
        """What one more of each column costs the rest, at these prices of the rows."""
        row, column, value = self.row[self.shared], self.column[self.shared], self.value[self.shared]
        return self.cost - numpy.bincount(column, weights=duals[row] * value, minlength=len(self.cost))

    def solve(self, lines: list[_Line], start: Floats, base: float) -> tuple[float, Floats] | None:
        """(a bound of the cost of all, whole amounts of the team) that is best as far as these lines tell. None where there are none.

        First near the fractional ones and with as many replicas of each held priority, then farther, then with fewer or more.
        """
        for reach, exact in ((REACHES[0], True), (REACHES[1], True), (REACHES[1], False)):
            program = Program()
            lower = numpy.maximum(self.lower, numpy.floor(start + NEARLY) - reach)
            upper = numpy.minimum(self.upper, numpy.ceil(start - NEARLY) + reach)
            columns = program.add_columns(len(start), 0.0, lower, upper, whole=True)
            rest = program.add_column(cost=1.0, lower=-INFINITE)
            away = program.add_rows(len(start), start, start)
            program.add_entries(away, columns)
            for sign in (-1.0, 1.0):
                program.add_entries(away, program.add_columns(len(start), AWAY), sign)
            least, most, place, column, value = self.own
            program.add_entries(program.add_rows(len(least), least, most)[place], columns[column], value)
            for counted in self.held if exact else ():
                number = start[counted].sum()
                row = program.add_rows(1, numpy.floor(number + 1e-3), numpy.ceil(number - 1e-3))
                program.add_entries(row, columns[counted])
            for one in lines:
                row = program.add_rows(1, one.cost - base - float(one.slope @ one.amount))
                program.add_entries(row, rest)
                bent = numpy.flatnonzero(one.slope)
                program.add_entries(row, columns[bent], -one.slope[bent])
            try:
                found = program.solve(TEAM)
            except SolverError:
                continue
            return base + float(found.values[rest]), numpy.round(found.values[columns])
        return None
