# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A linear or integer program and its solution by HiGHS: the one place that imports ``highspy``, and with it numpy.

A program is given as arrays, solved on one thread with a fixed seed and limits of work instead of time, so that equal programs have
equal solutions on any machine. Without ``highspy`` (no wheel for a controller) ``available`` is False and whoever asks has another way.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# Why there is no solver, in words; and what makes one.
absent = ""
_make: t.Any = None

try:
    import highspy
    import numpy

    _make = highspy.Highs  # of a package that was half removed the directory is left, and is imported
except Exception as error:  # pragma: no cover # seen by test_solver_absent.py in processes that coverage does not follow
    # A wheel that is there and cannot be used is as good as none: numpy for another processor raises RuntimeError, a missing library
    # OSError. A fleet is planned without both.
    highspy = None  # type: ignore[assignment] # for mypy it is a module; available() says whether it is
    numpy = None  # type: ignore[assignment] # as highspy
    if not (isinstance(error, ModuleNotFoundError) and error.name in ("highspy", "numpy")):
        absent = f"{type(error).__name__}: {error}".splitlines()[0]

# The other modules of this room take numpy from here, for it may be missing.
__all__ = ["INFINITE", "Limits", "Outcome", "Program", "Session", "SolverError", "available", "numpy", "version"]

INFINITE = float("inf")
# Where so many iterations of the simplex method did not end, it goes round in circles as a rule.
STUCK = 20_000


def available() -> bool:
    """Can programs be solved here?"""
    return highspy is not None


def version() -> str | None:
    """``HiGHS 1.15.1``; None without it. A plan names it: another version may break ties in another way."""
    return None if highspy is None else f"HiGHS {_make().version()}"


class SolverError(Exception):
    """HiGHS ended without an answer that can be used; the text says how. A fault of the program that was given, never of a person."""


class NotFound(SolverError):
    """No whole numbers within the limits: with more work there might be some."""


@dataclass(frozen=True)
class Limits:
    """How far an integer program is worked on. ``gap``: relative; ``absolute``: in the unit of the objective, so that less than 1 ends it
    where that is a count; ``nodes`` of branch and bound; ``iterations`` of the simplex method. ``plain``: without the ways to
    guess whole numbers that solve a smaller program each. ``brief``: that, and corners are found by interior points. ``once``: the search
    does not begin anew with what it has learnt, which seldom finds better numbers and takes as long again. ``below``: only what is better
    than this is looked for. ``first``: the first whole numbers will do.
    """

    gap: float = 0.0
    absolute: float = 1e-6
    nodes: int = 2_000
    iterations: int = 5_000_000
    plain: bool = False
    brief: bool = False
    once: bool = False
    below: float = INFINITE
    first: bool = False


@dataclass(frozen=True)
class Outcome:
    """``values`` of the columns, their ``objective``, and the ``bound`` that no solution is below (the program is a minimum).

    ``duals`` of the rows and ``reduced`` costs of the columns for a linear program, else empty. ``proven``: within the gap asked for.
    ``iterations`` of the simplex method that it took: a measure of work that is the same on any machine.
    """

    values: Floats
    objective: float
    bound: float
    duals: Floats
    reduced: Floats
    proven: bool
    iterations: int = 0


@dataclass
class Program:
    """Minimise ``cost`` over columns with bounds, some of them whole numbers, under rows with bounds.

    Columns and rows are numbered from 0 in the order in which they are added; entries (row, column, value) of one place add up.
    """

    _cost: list[Floats | list[float]] = field(default_factory=list)
    _lower: list[Floats | list[float]] = field(default_factory=list)
    _upper: list[Floats | list[float]] = field(default_factory=list)
    _whole: list[Floats | list[float]] = field(default_factory=list)
    _row_lower: list[Floats | list[float]] = field(default_factory=list)
    _row_upper: list[Floats | list[float]] = field(default_factory=list)
    _entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    _single: list[tuple[int, int, float]] = field(default_factory=list)
    columns: int = 0
    rows: int = 0

    def add_columns(self, count: int, cost: t.Any = 0.0, lower: t.Any = 0.0, upper: t.Any = INFINITE, whole: t.Any = False) -> Ints:
        """``count`` more columns; each argument is one number for all or one for each. Returns their numbers."""
        for store, given in ((self._cost, cost), (self._lower, lower), (self._upper, upper), (self._whole, whole)):
            store.append(numpy.broadcast_to(numpy.asarray(given, dtype=float), (count,)))
        self.columns += count
        return numpy.arange(self.columns - count, self.columns)

    def add_rows(self, count: int, lower: t.Any = -INFINITE, upper: t.Any = INFINITE) -> Ints:
        """``count`` more rows with bounds, as above. Returns their numbers."""
        for store, given in ((self._row_lower, lower), (self._row_upper, upper)):
            store.append(numpy.broadcast_to(numpy.asarray(given, dtype=float), (count,)))
        self.rows += count
        return numpy.arange(self.rows - count, self.rows)

    def add_column(self, upper: float = INFINITE, cost: float = 0.0, lower: float = 0.0, whole: bool = False) -> int:
        """One more column; its number. Quicker than :meth:`add_columns` for who comes with one at a time."""
        for store, given in ((self._cost, cost), (self._lower, lower), (self._upper, upper), (self._whole, float(whole))):
            store.append([given])
        self.columns += 1
        return self.columns - 1

    def add_row(self, lower: float = -INFINITE, upper: float = INFINITE) -> int:
        """One more row; its number."""
        self._row_lower.append([lower])
        self._row_upper.append([upper])
        self.rows += 1
        return self.rows - 1

    def add_entry(self, row: int, column: int, value: float) -> None:
        """One more entry."""
        self._single.append((row, column, value))

    def at_most(self, upper: float, takes: Iterable[tuple[int, float]]) -> int | None:
        """One more row, its number: what columns take, each (its number, how much), is at most ``upper``. None where nothing is taken."""
        entries = [(column, much) for column, much in takes if much]
        if not entries:
            return None
        row = self.add_row(upper=upper)
        self._single += [(row, column, much) for column, much in entries]
        return row

    def add_entries(self, rows: t.Any, columns: t.Any, values: t.Any = 1.0) -> None:
        """``values`` where ``rows`` and ``columns`` meet; the three are broadcast against each other."""
        parts = numpy.broadcast_arrays(numpy.asarray(rows, dtype=numpy.int64), numpy.asarray(columns, dtype=numpy.int64), values)
        row, column, value = (part.ravel() for part in parts)
        self._entries.append((row, column, value.astype(float)))

    def set_cost(self, cost: Mapping[int, float]) -> None:
        """Another aim for the same columns and rows: these costs, and 0 for every column that is not named."""
        whole = numpy.zeros(self.columns)
        whole[list(cost)] = list(cost.values())
        self._cost = [whole]

    def cost(self) -> Floats:
        """By column."""
        return _joined(self._cost)

    def bounds(self) -> tuple[Floats, Floats]:
        """(the least, the most) by column."""
        return _joined(self._lower), _joined(self._upper)

    def row_bounds(self) -> tuple[Floats, Floats]:
        """(the least, the most) by row."""
        return _joined(self._row_lower), _joined(self._row_upper)

    def solve(
        self,
        limits: Limits | None = None,
        *,
        relaxed: bool = False,
        within: tuple[Ints, t.Any, t.Any] | None = None,
        start: Mapping[int, float] | None = None,
    ) -> Outcome:
        """The best solution within ``limits``; ``relaxed``: as a linear program, whole numbers or not. ``within``: (columns, their least,
        their most) in place of their own bounds; the bound found is then one of that smaller program. ``start``: values of some columns;
        where they are part of a solution, the answer is no worse than that.

        :raises SolverError: there is none. :raises NotFound: none was found within the limits.
        """
        if highspy is None:
            raise SolverError("highspy is not installed")
        limits = limits or Limits()
        solver = _make()
        whole = _joined(self._whole) > 0
        mixed = bool(whole.any()) and not relaxed
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "parallel": "off",
            "random_seed": 0,
            "mip_rel_gap": limits.gap,
            "mip_abs_gap": limits.absolute,
            "mip_max_nodes": limits.nodes,
            "mip_allow_restart": not limits.once,
            "simplex_iteration_limit": limits.iterations,
            "objective_bound": limits.below,
        }
        if limits.first:
            options["mip_max_improving_sols"] = 1
        if limits.plain or limits.brief:
            options |= {"mip_heuristic_run_rins": False, "mip_heuristic_run_root_reduced_cost": False}
        if limits.brief:
            options |= {"mip_lp_solver": "ipm"}
        for name, value in options.items():
            if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise SolverError(f"HiGHS does not know the option {name}")
        if solver.passModel(self._model(whole if mixed else None, within)) == highspy.HighsStatus.kError:
            raise SolverError("HiGHS refused the program")
        if start:
            columns, values = numpy.fromiter(start.keys(), dtype=numpy.int32), numpy.fromiter(start.values(), dtype=float)
            solver.setSolution(len(start), columns, values)
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        ended = status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty)
        cut_short = status in (highspy.HighsModelStatus.kSolutionLimit, highspy.HighsModelStatus.kIterationLimit)
        if not ended and not (mixed and cut_short and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible):
            failed = NotFound if cut_short else SolverError
            raise failed(f"HiGHS ended with '{solver.modelStatusToString(status)}'")
        found = solver.getSolution()
        objective = float(info.objective_function_value)
        return Outcome(
            values=numpy.asarray(found.col_value, dtype=float),
            objective=objective,
            bound=float(info.mip_dual_bound) if mixed else objective,
            duals=numpy.asarray([] if mixed else found.row_dual, dtype=float),
            reduced=numpy.asarray([] if mixed else found.col_dual, dtype=float),
            proven=ended,
            iterations=int(info.simplex_iteration_count),
        )

    def _model(self, whole: t.Any, within: tuple[Ints, t.Any, t.Any] | None = None) -> t.Any:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.columns, self.rows
        lower, upper = self.bounds()
        if within is not None:
            columns, least, most = within
            lower[columns], upper[columns] = least, most
        model.col_cost_, model.col_lower_, model.col_upper_ = self.cost(), lower, upper
        model.row_lower_, model.row_upper_ = self.row_bounds()
        if whole is not None:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[one] for one in whole.astype(int).tolist()]
        start, index, value = self.entries()
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = start, index, value
        return model

    def entries(self) -> tuple[Ints, Ints, Floats]:
        """(start, row, value): the entries of column c are from start[c] to start[c + 1]; those of one place added up."""
        if self._single:
            single = numpy.asarray(self._single, dtype=float)
            self._entries.append((single[:, 0].astype(numpy.int64), single[:, 1].astype(numpy.int64), single[:, 2]))
            self._single = []
        if not self._entries:
            return numpy.zeros(self.columns + 1, dtype=numpy.int64), numpy.zeros(0, dtype=numpy.int64), numpy.zeros(0)
        row, column, value = (numpy.concatenate(parts) for parts in zip(*self._entries, strict=True))
        place, which = numpy.unique(column * max(1, self.rows) + row, return_inverse=True)
        total = numpy.bincount(which, weights=value, minlength=len(place))
        start = numpy.searchsorted(place // max(1, self.rows), numpy.arange(self.columns + 1))
        return start.astype(numpy.int64), (place % max(1, self.rows)).astype(numpy.int64), total.astype(float)


class Session:
    """A linear program that stays open: columns and rows are added, costs and bounds changed, and each solution begins where the last one
    ended.

    ``program`` is what it begins with, whole numbers left out of account. ``long``: a solution that takes more iterations of the simplex
    method begins anew, by interior points; it may end at another of equally good ones then.
    """

    long = STUCK

    def __init__(self, program: Program, limits: Limits | None = None) -> None:
        """Open it. :raises SolverError: as :meth:`Program.solve` does."""
        if highspy is None:
            raise SolverError("highspy is not installed")
        self._limits = limits or Limits()
        self._open()
        self._heard(self._solver.passModel(program._model(None)))
        self.columns, self.rows = program.columns, program.rows

    def copy(self, limits: Limits | None = None) -> Session:
        """The same program, open a second time, where the last solution ended: what is done to one is not seen by the other."""
        other = object.__new__(Session)
        other._limits, other.long = limits or self._limits, self.long
        other._open()
        other._heard(other._solver.passModel(self._solver.getLp()))
        other._heard(other._solver.setBasis(self._solver.getBasis()))
        other.columns, other.rows = self.columns, self.rows
        return other

    def begin(self, other: Session, columns: Ints) -> Callable[[], None]:
        """Begin the next solution where another session ended, which has the first of these rows. ``columns``: by column, which of the
        other's it is; -1: none. Returns what undoes it: the next solution begins where this session was then, no column or row since."""
        before = self._solver.getBasis()
        basis, there = other._solver.getBasis(), highspy.HighsBasisStatus
        found = [*basis.col_status, there.kLower]
        basis.col_status = [found[column] for column in columns.tolist()]
        basis.row_status = [*basis.row_status, *[there.kBasic] * (self.rows - other.rows)]
        self._heard(self._solver.setBasis(basis))
        return lambda: self._heard(self._solver.setBasis(before))

    def _open(self) -> None:
        self._solver = _make()
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "parallel": "off",
            "random_seed": 0,
            "simplex_iteration_limit": self._limits.iterations,
            # primal simplex where the last solution is still feasible
            "simplex_strategy": 0,
            # Perturbed bounds are put right at the end of each run; where runs follow each other closely, this takes most of the time.
            "primal_simplex_bound_perturbation_multiplier": 0.0,
        }
        for name, value in options.items():
            if self._solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise SolverError(f"HiGHS does not know the option {name}")

    def add_columns(self, cost: Floats, upper: Floats, entries: tuple[Ints, Ints, Floats]) -> Ints:
        """More columns from 0 to ``upper``; ``entries``: (row, column from 0 among the new ones, value), no place twice. Their numbers."""
        row, column, value = entries
        order = numpy.lexsort((row, column))
        start = numpy.searchsorted(column[order], numpy.arange(len(cost)))
        lower = numpy.zeros(len(cost))
        self._heard(self._solver.addCols(len(cost), cost, lower, upper, len(value), start, row[order], value[order]))
        self.columns += len(cost)
        return numpy.arange(self.columns - len(cost), self.columns)

    def set_costs(self, cost: Floats) -> None:
        """The costs of all columns."""
        self._heard(self._solver.changeColsCost(self.columns, numpy.arange(self.columns, dtype=numpy.int32), cost))

    def set_columns(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        """The bounds of these columns."""
        self._heard(self._solver.changeColsBounds(len(columns), columns.astype(numpy.int32), lower, upper))

    def set_row(self, row: int, lower: float, upper: float) -> None:
        """The bounds of a row."""
        self._heard(self._solver.changeRowBounds(row, lower, upper))

    def add_row(self, upper: float, columns: Ints, values: Floats) -> int:
        """One more row, no lower bound, with these values at these columns. Its number."""
        self._heard(self._solver.addRow(-INFINITE, upper, len(columns), columns.astype(numpy.int32), values))
        self.rows += 1
        return self.rows - 1

    def solve(self, *, interior: bool = False, iterations: int | None = None) -> Outcome:
        """The best solution now. ``interior``: by interior points, and from there to a corner, which is quicker after many changes.

        ``iterations``: of the simplex method, fewer than the limits allow.
        :raises SolverError: there is none, or it was not found within the limits.
        """
        optimal, too_long = highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kIterationLimit
        most = iterations or self._limits.iterations
        long = min(most, self.long)
        status = self._run(most, interior=True) if interior else self._run(long)
        if not interior and status == too_long and long < most:
            interior, status = True, self._run(most, interior=True)
        if interior and status != optimal:
            status = self._run(most)
        return self._outcome(status)

    def improve(self, iterations: int) -> Outcome:
        """As good a solution as so many iterations of the simplex method lead to. For who begins where there is one.

        :raises SolverError: there is none, or it was not found.
        """
        return self._outcome(self._run(iterations), cut_short=True)

    def begin_at_most(self, columns: Ints) -> None:
        """Begin the next solution with these columns at the most that they may have, others as the last one ended."""
        basis = self._solver.getBasis()
        found = list(basis.col_status)
        for column in columns.tolist():
            found[column] = highspy.HighsBasisStatus.kUpper
        basis.col_status = found
        self._heard(self._solver.setBasis(basis))

    def _outcome(self, status: t.Any, *, cut_short: bool = False) -> Outcome:
        """What the last run found, which ended with this status. ``cut_short``: a solution will do, if not the best.

        :raises SolverError: it found none.
        """
        there, info = highspy.HighsModelStatus, self._solver.getInfo()
        proven = status in (there.kOptimal, there.kModelEmpty)
        enough = cut_short and status == there.kIterationLimit
        if not proven and not (enough and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible):
            raise SolverError(f"HiGHS ended with '{self._solver.modelStatusToString(status)}'")
        found = self._solver.getSolution()
        objective = float(info.objective_function_value)
        arrays = (numpy.asarray(part, dtype=float) for part in (found.col_value, found.row_dual, found.col_dual))
        values, duals, reduced = arrays
        bound = objective if proven else -INFINITE
        return Outcome(values, objective, bound, duals, reduced, proven=proven)

    def _run(self, most: int, *, interior: bool = False) -> t.Any:
        """HiGHS's word for how it ended; ``most``: iterations of the simplex method."""
        self._heard(self._solver.setOptionValue("simplex_iteration_limit", most))
        self._heard(self._solver.setOptionValue("solver", "ipm" if interior else "choose"))
        self._solver.run()
        return self._solver.getModelStatus()

    def _heard(self, status: t.Any) -> None:
        if status == highspy.HighsStatus.kError:
            raise SolverError("HiGHS refused a change of the program")


def _joined(parts: list[Floats | list[float]]) -> Floats:
    return numpy.concatenate(parts).astype(float) if parts else numpy.zeros(0)
