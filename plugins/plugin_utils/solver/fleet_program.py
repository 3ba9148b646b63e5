# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole fleet as a linear program over groups of hosts that are alike, solved priority by priority: how many of each class go where.

Columns: replicas of a class at an option, and GPUs of a group with a pattern. Rows: the replicas asked for; of each shape in a group no
more than its patterns supply; GPUs, CPU and RAM of a group; quotas. Each priority in turn is served as far as it goes and then held there;
at the end as few GPUs as possible are opened. Supply is counted by shape and not by class, which keeps the program small.

Shared GPUs have too many patterns to list: those that pay at the present prices are added until none does. What is still to be gained
then is part of the bound, so that the bounds hold for every plan.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import shared_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_bounds import Bounds, Counts, Part
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_cuts import TeamCut, most_of_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_headroom import with_headroom
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_likeness import likeness
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rows import Rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_spread import Spread
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.knapsack import MANY
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Outcome, Program, Session, SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Patterns of shared GPUs are sought until the bound could fall by less than this share, or so often.
PRICED_TO, MOST_ROUNDS, LAST_ROUNDS = 3e-5, 80, 3
# The last rounds may turn all prices round: all rounds come once more where the bound could still fall by more than this share.
UNSETTLED = 1e-3
# Patterns of shared GPUs to begin with: at most; for each shape; and their columns of all groups of a board.
MOST_VARIED, VARIED_FOR_EACH, MOST_COLUMNS = 300, 4, 3_000
# As many at most to begin with in a likeness of the fleet, where a few will do: whole numbers are never sought there.
VARIED_THERE = 20
# A stage with so many new columns begins with interior points: the simplex method takes three times as long to its first solution.
MANY_NEW = 5_500
# From where a stage ahead of its time ended to what is held by now it takes a few dozen steps; where it takes more, it takes thousands.
FEW_STEPS = 500
# So many steps take longer than interior points and the way from there to a corner.
LONG = 5_000
# How many replicas of the last priority one of the first is worth where all are solved at once.
MOST_APART = 1e4
# The part of the last priority for which few GPUs are sought ahead: near what is held of it in the end.
NEARLY_ALL = 0.9999
# How often rows for classes that must be spread are added in a stage.
MOST_SPREADS = 4
# The share of the program's value that it owes to fractional numbers from which on they are not to be rounded, but kept out.
BROKEN = 2e-6
# The part of the rounds before in the mean of their prices.
CALM = 0.7
# What the shapes of the best pattern are worth where a second one is sought, in parts of their price.
SECOND = 0.7
# So many times a further pattern is sought in that way, and where a board has as many shapes as MANY: one at a time would take hundreds of
# rounds.
FURTHER, FURTHER_OF_MANY = 1, 3


@dataclass(frozen=True, eq=False)
class Level:
    """One stage: no plan serves more than ``bound`` replicas of its priority if it serves the ``held`` ones of the priorities before.

    ``branches``: all plans are in one of these; (its bound, by priority how much it moves for each replica that an earlier stage serves
    less).
    """

    bound: float
    held: dict[int, int]
    branches: tuple[tuple[float, dict[int, float]], ...]

    def given(self, served: dict[int, int]) -> float:
        """The bound of a plan whose earlier stages serve this much: more there leaves less here.

        The best value of a branch is concave in what is held, so that its slope at one point bounds it everywhere.
        """
        less = {level: self.held[level] - served[level] for level in self.held}
        return max(bound + sum(prices[level] * less[level] for level in less) for bound, prices in self.branches)


@dataclass(frozen=True, eq=False)
class Relaxed:
    """``amount``: replicas by option. ``patterns``: by group, shape (patterns, shapes); ``boards``: by group, GPUs of each pattern.

    ``levels`` by priority, and how many replicas of each are ``held``. It is within ``counts``, the least and the most replicas of
    (priority, team), and within ``cuts``. ``spread`` and ``beside``: as in :class:`Spread`.
    ``price``: the GPUs that one replica more of the last priority would open; 0 before that stage.
    """

    amount: Floats
    patterns: list[Ints]
    boards: list[Floats]
    levels: dict[int, Level]
    held: dict[int, int]
    counts: Counts
    cuts: list[TeamCut]
    spread: list[int]
    beside: list[int]
    price: float = 0.0


@dataclass(frozen=True, eq=False)
class Fewest:
    """How few GPUs a plan can open that serves as many of each priority as ``served`` says. All such plans are in one of ``branches``:
    (GPUs, how many more for each replica more of the last priority); so are those that serve fewer of it, but no fewer than ``least``.
    """

    served: dict[int, int]
    least: int
    branches: tuple[tuple[float, float], ...]

    def knows(self, served: dict[int, int]) -> bool:
        """Is :meth:`given` true for a plan that serves this much?"""
        last = min(served, default=0)
        return all(number >= (self.least if level == last else self.served[level]) for level, number in served.items())

    def given(self, served: dict[int, int]) -> int:
        """The bound of a plan. The fewest GPUs are convex in what is served, so that their slope at one point bounds them everywhere."""
        last = min(served, default=0)
        more = served[last] - self.served[last] if served else 0
        return int(numpy.ceil(min(gpus + price * more for gpus, price in self.branches) - 1e-6))


@dataclass(frozen=True, eq=False)
class _Ahead:
    """A stage that is solved before it is known what is held then, in ``session``, which begins with the ``known`` first columns of the
    program. ``columns``: by option, its column there; ``cost`` of all columns that the program has by now, as it is solved there."""

    session: Session
    known: int
    columns: Ints
    cost: Callable[[], Floats]
    solved: Future[Outcome]


def fleet_program(options: Options) -> FleetProgram:
    """The linear program of a fleet; of a large one with the patterns of shared GPUs that a likeness of it asks for."""
    alike = likeness(options) if _is_large(options) else None
    if alike is None:
        return FleetProgram(options)
    small, boards = alike
    # One after the other, these two keep the first interior points waiting for half a second.
    found = shared_out(lambda piece: _sought(small, boards) if piece else first_patterns(options), (1, 0))
    return FleetProgram(options, {board: numpy.concatenate((each, found[1].get(board, each[:0]))) for board, each in found[0].items()})


def once_more(program: FleetProgram, options: Options) -> FleetProgram:
    """The linear program of the same fleet, anew, to begin with all patterns that are known by now. ``options``: of the same classes, where
    sizes may be rounded down that were rounded up."""
    patterns = {}
    for number, (before, now) in enumerate(zip(program.options.boards, options.boards, strict=True)):
        known = program.patterns_of(number)
        patterns[number] = known
        if now is not before:
            patterns[number] = numpy.zeros((len(known), len(now.shapes)), dtype=numpy.int64)
            for one in options.classes:
                # What is too large when it is rounded up has no place there.
                for old, new in zip(before.shapes_for(one), now.shapes_for(one), strict=False):
                    patterns[number][:, new] = known[:, old]
    return FleetProgram(options, patterns)


def first_patterns(options: Options, varied: int = MOST_VARIED) -> dict[int, Ints]:
    """By number of a board, patterns to begin with; ``varied`` ones of shared GPUs, at most."""
    found = {}
    for number, board in enumerate(options.boards):
        mine = sum(group.board == number for group in options.groups)
        many = min(varied, VARIED_FOR_EACH * board.shared, MOST_COLUMNS // mine)
        found[number] = numpy.concatenate((board.first_patterns, board.varied(many)))
    return found


def _sought(small: Options, boards: list[int]) -> dict[int, Ints]:
    """By number of a board in the fleet, the patterns that its likeness asks for."""
    try:
        return dict(zip(boards, FleetProgram(small, first_patterns(small, VARIED_THERE)).sought(), strict=True))
    except SolverError:
        # It only helps: the large program finds all patterns that it needs.
        return {}


def _is_large(options: Options) -> bool:
    """Does the stage of the last priority bring many columns?"""
    levels = options.levels
    return bool(levels) and int((options.priority[options.klass] == levels[-1]).sum()) >= MANY_NEW


class FleetProgram:
    """The linear program of one fleet, while it is being solved."""

    def __init__(self, options: Options, patterns: Mapping[int, Ints] | None = None) -> None:
        """``patterns``: to begin with, by number of a board."""
        self.options = options
        self.rows = Rows(options)
        program = Program()
        program.add_rows(self.rows.count, lower=-numpy.inf, upper=self.rows.upper)
        self.session = Session(program)
        self.column_of = numpy.full(len(options.klass), -1, dtype=numpy.int64)
        # (column, group, pattern) of each pattern's columns; known patterns of each board
        self.pattern_columns: list[tuple[int, int, Ints]] = []
        self.known: list[set[bytes]] = [set() for _board in options.boards]
        self.is_pattern = numpy.zeros(0, dtype=bool)
        self.bounds, self.parts = Bounds(self), list[Part]()
        self.spread = Spread()
        # Is the program kept within the best part of the bounds? The counts that it is kept within.
        self.inside = False
        # Does a plan come from it?
        self.plans = True
        self.kept: dict[tuple[int, int], tuple[float, float]] = {}
        for number, each in (patterns or first_patterns(options)).items():
            self._add_patterns(number, numpy.unique(each, axis=0))

    def solve(self, reachable: Callable[[Relaxed, int, dict[int, int]], int]) -> Relaxed:
        """All stages, one after the other.

        ``reachable``: how many replicas of a priority can be served in whole numbers, from the solution of its stage and what is held of
        those before. The next stages hold so many: to hold the last fractional part of one would cost them far more than it is worth.
        """
        options = self.options
        levels: dict[int, Level] = {}
        held: dict[int, int] = {}
        with ThreadPoolExecutor(1) as beside:
            # HiGHS works without Python's lock: what comes last is solved while what comes before it is.
            ahead = self._ahead(beside)
            for level in options.levels:
                last = level == options.levels[-1]
                interior = self._begin(level, held) and not (last and self._take_up(ahead))
                cost = partial(self._served_cost, {level: 1.0})
                outcome, slack = self._holding(held, cost, interior=interior)
                self.parts = [Part(outcome.objective - slack, outcome.duals)]
                levels[level] = self._level(held)
                if last:
                    ahead = self._fewest_ahead({**held, level: int(NEARLY_ALL * levels[level].bound)}, beside)
                else:
                    reached = reachable(self._relaxed(outcome, levels, held), level, held)
                if last or levels[level].bound > reached:  # Else all that the program promises is served.
                    self.parts = self.bounds.parts(outcome, slack, cost(), list(held), [])
                    levels[level] = self._level(held)
                if last:
                    outcome = self._inside(outcome.objective - slack, cost) or outcome
                    reached = reachable(self._relaxed(outcome, levels, held), level, held)
                # Whole numbers do not know of the rows for classes that must be spread.
                held[level] = min(reached, int(levels[level].bound))
                self._hold(self.session, {level: held[level]})
            self._take_up(ahead)
        # Few GPUs for all that is held, then headroom: no bound needs any.
        outcome = self._holding(held, self._opening_cost)[0]
        price = max(0.0, float(outcome.duals[self.rows.level[options.levels[-1]]])) if options.levels else 0.0
        eased = with_headroom(self.session, self.rows, self._opening_cost()) if self.plans else None
        return self._relaxed(eased or outcome, levels, held, price)

    def sought(self) -> list[Ints]:
        """By board, the patterns that all stages together ask for; quickly, without bounds or whole numbers."""
        held: dict[int, int] = {}
        for level in self.options.levels:
            self._begin(level, held)
            outcome = self._priced(partial(self._served_cost, {level: 1.0}))[0]
            held[level] = int(NEARLY_ALL * -outcome.objective)
            self._hold(self.session, {level: held[level]})
        self._priced(self._opening_cost)
        found = []
        for number, board in enumerate(self.options.boards):
            patterns = self.patterns_of(number)
            # With more of a shape at once a pattern may hardly ever be dealt: where the bound needs one of these, it is found later.
            found.append(patterns[(patterns <= board.at_once).all(axis=1)])
        return found

    def patterns_of(self, board: int) -> Ints:
        """The patterns of a board that the program has, shape (patterns, shapes)."""
        mine = [pattern for _column, group, pattern in self.pattern_columns if self.options.groups[group].board == board]
        return numpy.unique(mine, axis=0) if mine else numpy.zeros((0, len(self.options.boards[board].shapes)), dtype=numpy.int64)

    def _begin(self, level: int, held: dict[int, int]) -> bool:
        """Add what a stage adds to the program. Are interior points the quickest way to its first solution?"""
        mine = self._of_level(level)
        self._add_options(mine)
        for team, number in most_of_teams(self.options, level, held).items():
            self.session.set_row(self.rows.team_level[level] + team, -numpy.inf, number)
            self.bounds.most[level, team] = number
        return len(mine) >= MANY_NEW

    def _ahead(self, beside: ThreadPoolExecutor) -> _Ahead | None:
        """Begin to solve all stages at once, in a copy of the program: the last one will end near that. None where it takes next to no
        time, or is the only one."""
        levels = self.options.levels
        if len(levels) < 2 or not _is_large(self.options):
            return None
        # A replica is worth many of the next priority, as far as numbers of a program may be apart.
        worth = {level: MOST_APART ** (1 - number / (len(levels) - 1)) for number, level in enumerate(levels)}
        session, known, columns = self.session.copy(), self.session.columns, numpy.full(len(self.options.klass), -1)
        for level in levels:
            mine = self._of_level(level)
            columns[mine] = self._columns(session, mine, -worth[level])
        return _Ahead(session, known, columns, partial(self._served_cost, worth), beside.submit(session.solve, interior=True))

    def _fewest_ahead(self, held: dict[int, int], beside: ThreadPoolExecutor) -> _Ahead | None:
        """As :meth:`_ahead`, the stage after the last: few GPUs, while as many as hoped for are ``held``."""
        if self.session.columns < MANY_NEW:
            return None
        session = self.session.copy()
        self._hold(session, held)
        session.set_costs(self._opening_cost())
        return _Ahead(session, session.columns, self.column_of.copy(), self._opening_cost, beside.submit(session.solve))

    def _take_up(self, ahead: _Ahead | None) -> bool:
        """Begin the next solution near where the one ahead ended. False where there is none, or it is far from there after all."""
        if ahead is None or ahead.solved.exception() is not None:
            return False
        # Patterns that were found since have no column there.
        columns = numpy.arange(self.session.columns)
        columns[ahead.known :] = -1
        there = self.column_of >= 0
        columns[self.column_of[there]] = ahead.columns[there]
        back = self.session.begin(ahead.session, columns)
        # What is held by now takes few steps from there with the same costs, and the stage's own costs take few steps then. Both at once
        # would take thousands: what is fractional would be neither rows nor prices alone.
        self.session.set_costs(ahead.cost())
        try:
            self.session.solve(iterations=FEW_STEPS)
        except SolverError:
            back()
            return False
        return True

    def _hold(self, session: Session, held: Mapping[int, int]) -> None:
        """No fewer of each priority than this, in this copy of the program."""
        for level, number in held.items():
            session.set_row(self.rows.level[level], number - 1e-6, numpy.inf)

    def _of_level(self, level: int) -> Ints:
        """The options of a priority."""
        return numpy.flatnonzero(self.options.priority[self.options.klass] == level)

    def _inside(self, value: float, cost: Callable[[], Floats]) -> Outcome | None:
        """The best solution within what the bounds know of whole numbers, their cuts and the counts of the best part: there are no whole
        numbers near the program's own, where its ``value`` owes much to fractional ones.

        None where it does not, or where no solution is found.
        """
        counts, self.inside = self.parts[0].counts, True
        if not counts and self.parts[0].value - value < BROKEN * abs(value):
            return None
        for one in self.bounds.cuts:
            self.session.add_row(one.most, self.column_of[one.options], one.worth)
        self._limit(counts)
        try:
            return self._priced(cost)[0]
        except SolverError:
            self._leave()
            return None

    def _holding(self, held: dict[int, int], cost: Callable[[], Floats], *, interior: bool = False) -> tuple[Outcome, float]:
        """As :meth:`_priced`. New rows for classes that must be spread may leave room for fewer than are ``held``: then these are held."""
        for _turn in range(MOST_SPREADS):
            try:
                return self._priced(cost, interior=interior)
            except SolverError:
                for level in held:
                    self.session.set_row(self.rows.level[level], -numpy.inf, numpy.inf)
                for level in held:
                    served = self._priced(partial(self._served_cost, {level: 1.0}))[0]
                    held[level] = min(held[level], int(1e-6 - served.objective))
                    self._hold(self.session, {level: held[level]})
        return self._priced(cost, interior=interior)

    def _leave(self) -> None:
        """Keep no longer within the best part of the bounds."""
        self._limit(self.parts[0].counts, free=True)
        self.inside = False

    def _limit(self, counts: Counts, *, free: bool = False) -> None:
        """Keep within these counts; ``free``: no longer."""
        for (level, team), (least, greatest) in counts.items():
            most = self.bounds.most.get((level, team), numpy.inf)
            limits = (-numpy.inf, most) if free else (least, min(greatest, most))
            self.session.set_row(self.rows.team_level[level] + team, *limits)
            self.kept[level, team] = limits

    def only_bounds(self) -> None:
        """No plan comes from the program any more: of equally good solutions any one will do."""
        self.session.long, self.plans = LONG, False

    def fewest_gpus(self, served: dict[int, int]) -> Fewest:
        """No plan that serves as many of each priority opens fewer GPUs. Only after :meth:`solve`, and with no less served than held there
        but for the last priority."""
        if not served:
            return Fewest({}, 0, ((0.0, 0.0),))
        self._hold(self.session, served)
        last = served[min(served)]
        self.only_bounds()
        # Branches of the last priority's stage that cannot serve so much hold no such plan.
        able = [part for part in self.parts if last <= 1e-6 - part.value]
        unable = [part for part in self.parts if last > 1e-6 - part.value]
        if able == self.parts[:1] and self.inside:
            able = []  # The program keeps within that one since the last stage.
        else:
            self._leave()
        outcome, slack = self._priced(self._opening_cost)
        parts = self.bounds.parts(outcome, slack, self._opening_cost(), sorted(served, reverse=True)[:-1], able)
        row = self.rows.level[min(served)]
        least = max((int(numpy.floor(1e-6 - part.value)) + 1 for part in unable), default=0)
        return Fewest(dict(served), least, tuple((part.value, max(0.0, float(part.duals[row]))) for part in parts))

    def _level(self, held: dict[int, int]) -> Level:
        """What the parts of a stage say."""
        branches = [(float(numpy.floor(1e-6 - part.value)), self._prices(part.duals, held)) for part in self.parts]
        return Level(max(bound for bound, _prices in branches), dict(held), tuple(branches))

    def _prices(self, duals: Floats, held: dict[int, int]) -> dict[int, float]:
        return {level: max(0.0, float(duals[self.rows.level[level]])) for level in held}

    def _served_cost(self, worth: Mapping[int, float]) -> Floats:
        """Of all columns, where a replica of each of these priorities is worth so much."""
        cost = numpy.zeros(self.session.columns)
        for level, each in worth.items():
            cost[self.column_of[self._of_level(level)]] = -each
        return cost

    def _opening_cost(self) -> Floats:
        """Of all columns, where each GPU that is open costs 1."""
        return self.is_pattern.astype(float)

    def _priced(self, cost: Callable[[], Floats], *, interior: bool = False) -> tuple[Outcome, float]:
        """(the solution, how much better one with patterns not known yet could be). ``interior``: the first one by interior points."""
        opening = 0.0
        calm = numpy.zeros(0)
        rounds = [True] * MOST_ROUNDS + [False] * LAST_ROUNDS
        spreads, again = MOST_SPREADS, True
        while True:
            self.session.set_costs(cost())
            outcome, interior = self.session.solve(interior=interior), False
            now = outcome.duals[: self.rows.count]
            calm = CALM * calm + (1 - CALM) * now if len(calm) else now
            opening = float(cost()[self.pattern_columns[0][0]]) if self.pattern_columns else 0.0
            enough = PRICED_TO * max(1.0, abs(outcome.objective))
            fresh: dict[int, list[Ints]] = {}
            while rounds:
                spread = rounds.pop(0)
                slack, fresh = self.missing(outcome, opening, calm, spread=spread)
                if fresh and slack > enough:
                    break
                # Nothing to be gained with few of a shape at once: the last rounds look at all patterns.
                rounds = [False] * LAST_ROUNDS if spread else []
                fresh = {}
            if not fresh and spreads and self.spread.add_rows(self, outcome):
                spreads, rounds = spreads - 1, [True] * LAST_ROUNDS + [False] * LAST_ROUNDS
                continue
            if not fresh:
                slack = self.missing(outcome, opening, calm, spread=False)[0]
                if not again or slack <= UNSETTLED * max(1.0, abs(outcome.objective)):
                    return outcome, slack
                again, rounds = False, [True] * MOST_ROUNDS + [False] * LAST_ROUNDS
                continue
            for board, patterns in fresh.items():
                self._add_patterns(board, numpy.asarray(patterns))

    def missing(self, outcome: Outcome, opening: float, calm: Floats, *, spread: bool) -> tuple[float, dict[int, list[Ints]]]:
        """(What unknown patterns could bring at most, those that would pay by board).

        ``calm``: the mean of the prices of all rounds; the best pattern at these is one that later rounds would ask for. So is the best one
        where what the best pattern has is worth less.
        """
        slack = 0.0
        fresh: dict[int, dict[bytes, Ints]] = {}
        for number, board in enumerate(self.options.boards):
            if not board.shared:
                continue
            mine = [place for place, group in enumerate(self.options.groups) if group.board == number]
            supply = numpy.asarray([self.rows.supply[place] for place in mine])[:, None] + numpy.arange(len(board.shapes))
            prices = numpy.maximum(0.0, -numpy.concatenate((outcome.duals[supply], calm[supply])))
            at_once = board.at_once if spread else None
            worth, patterns = board.best_shared(prices, at_once)
            further, last, lower = [patterns[len(mine) :]], patterns[: len(mine)], prices[: len(mine)]
            for _time in range(FURTHER_OF_MANY if board.shared >= MANY else FURTHER):
                lower = numpy.where(last > 0, SECOND, 1.0) * lower
                last = board.best_shared(lower, at_once)[1]
                further.append(last)
            for row, place in enumerate(mine):
                group = self.options.groups[place]
                gain = float(worth[row]) - opening - max(0.0, -float(outcome.duals[self.rows.gpus + place]))
                if gain > 1e-9:
                    slack += gain * group.size * group.gpus
                    for each in (patterns[row], *(other[row] for other in further)):
                        if each.tobytes() not in self.known[number]:
                            fresh.setdefault(number, {})[each.tobytes()] = each
        return slack, {board: list(found.values()) for board, found in fresh.items()}

    def _add_patterns(self, board: int, patterns: Ints) -> None:
        """Columns for these patterns in all groups of a board."""
        for pattern in patterns:
            self.known[board].add(pattern.tobytes())
        for number, group in enumerate(self.options.groups):
            if group.board != board or not len(patterns):
                continue
            upper = numpy.full(len(patterns), numpy.inf)
            columns = self.session.add_columns(numpy.zeros(len(patterns)), upper, self.rows.of_patterns(number, patterns))
            self.pattern_columns += [(column, number, pattern) for column, pattern in zip(columns.tolist(), patterns, strict=True)]
            self.is_pattern = numpy.concatenate((self.is_pattern, numpy.ones(len(columns), dtype=bool)))

    def _add_options(self, mine: Ints) -> None:
        """Columns for these options."""
        if not len(mine):
            return
        self.column_of[mine] = self._columns(self.session, mine, 0.0)
        self.is_pattern = numpy.concatenate((self.is_pattern, numpy.zeros(len(mine), dtype=bool)))

    def _columns(self, session: Session, mine: Ints, cost: float) -> Ints:
        """Columns for these options in a copy of the program; their numbers."""
        return session.add_columns(numpy.full(len(mine), cost), self.options.most[mine].astype(float), self.rows.entries(mine))

    def amount(self, outcome: Outcome) -> Floats:
        """Replicas by option in a solution."""
        return numpy.where(self.column_of >= 0, numpy.maximum(0.0, outcome.values[self.column_of]), 0.0)

    def _relaxed(self, outcome: Outcome, levels: dict[int, Level], held: dict[int, int], price: float = 0.0) -> Relaxed:
        patterns: list[list[Ints]] = [[] for _group in self.options.groups]
        boards: list[list[float]] = [[] for _group in self.options.groups]
        for column, group, pattern in self.pattern_columns:
            patterns[group].append(pattern)
            boards[group].append(max(0.0, float(outcome.values[column])))
        return Relaxed(
            amount=self.amount(outcome),
            patterns=[
                numpy.asarray(each, dtype=numpy.int64).reshape(len(each), len(self.options.boards[group.board].shapes))
                for each, group in zip(patterns, self.options.groups, strict=True)
            ],
            boards=[numpy.asarray(each, dtype=float) for each in boards],
            levels=dict(levels),
            held=dict(held),
            counts={**{team: (-numpy.inf, most) for team, most in self.bounds.most.items()}, **self.kept},
            cuts=list(self.bounds.cuts),
            spread=list(self.spread.spread),
            beside=list(self.spread.beside),
            price=price,
        )
