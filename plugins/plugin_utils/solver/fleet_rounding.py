# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the whole fleet's linear program to whole numbers: replicas by option, and GPUs by pattern that have room for them.

A vertex of the program has few fractional numbers: only they, and the room that is left beside the others, are decided by integer programs.
"""

from __future__ import annotations

import contextlib
import typing as t
from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import AT_ONCE_TO_SPARE, MOST_AT_ONCE, Options
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import CALM, Relaxed
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rows import Rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_spread import beside, full_hosts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_teams import Fractional, Haste, Short, by_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import (
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
# How far from its fractional value a number may be rounded.
REACH = 40
# GiB that each host keeps on the average: a group that is full to the last GiB can hardly be dealt to its hosts.
SPARE_RAM = 0.4
# On a large fleet that is short of RAM this is less, where more than this part of the last priority would be left out for it, or any that
# are held.
LITTLE_RAM, DEAR = 0.1, 1e-3
# How often the rest of a group's shared GPUs is solved anew; patterns are sought as long as they may save this part of a GPU.
DIVES, SAVED = 6, 0.3
# The parts of the last priority that are not worth the work of finding them: before its stage is left, and in whole numbers.
SPARE, LOOSE = 8e-5, 7e-5
NODES = 1
# Fewer replicas of the last priority are put into whole numbers all at once, as many and more one team after the other: that takes less
# time then, and mostly finds more of them.
FEW = 500
# So many replicas of the last priority are put into whole numbers by the simplex method and without a second search: it finds one or two
# fewer of 10,000, in a third of the time.
MANY = 5_000
# A fleet is large where so many replicas of the last priority are not worth the work.
SOME = 2.0
# The part of all GPUs that is not worth the work of saving it.
NEARLY_FEWEST = 1e-4
# On a large fleet, so many times as many are too many.
TOO_FAR = 4
# A replica is worth a little more GPUs than the last one takes: it comes before them where the two are even.
EAGER = 1.1
# The GPUs that a replica of the last priority is worth at least: on any fleet, on one that is not large, and where there are few of them;
# what a GPU costs besides in a group of which the linear program opens fewer.
LEAST_PRICE, HIGH_PRICE, PRICELESS, ELSEWHERE = 2.0, 20.0, 1000.0, 0.3
PATTERNS = Limits(gap=0.0, nodes=200)
# Patterns of so many GPUs are sought so near to the linear program's numbers first; of fewer, the ones that are spread widely by chance
# matter more than the time.
MANY_GPUS, NEAR = 1_000, 3
# A class on shared GPUs gets places on so many times the hosts that it needs; fewer where that takes too many GPUs.
SPARES = (AT_ONCE_TO_SPARE, 1.4, 1.0)
# More GPUs than the linear program opens by more than this are too many.
TOO_MANY = 2


def rounded(options: Options, relaxed: Relaxed) -> Ints:
    """Whole replicas by option, within every row of the linear program: as many of the first priority as possible, then of the next.

    On a large fleet, what the last priority is short of may not be worth the GPUs that it takes.
    """
    if not options.levels:
        return _Rounding(options, relaxed).best
    last, held = options.levels[-1], {level: relaxed.held[level] for level in options.levels[:-1]}
    rounding = _Rounding(options, relaxed, SPARE_RAM)
    wanted = rounding.hoped(last)
    found = [rounding] if _serve_near(rounding, last, held) else []
    enough = bool(found) and wanted - rounding.served(last) <= DEAR * wanted
    if _is_large(wanted) and not enough and _short_of_ram(options, relaxed):
        other = _Rounding(options, relaxed, LITTLE_RAM)
        found += [other] if _serve_near(other, last, held) else []
    if not found:
        _serve_in_turn(rounding)
    # The first of equals.
    return max(found, key=lambda each: [each.served(level) for level in options.levels], default=rounding).best


def _short_of_ram(options: Options, relaxed: Relaxed) -> bool:
    """Does the linear program leave a group less RAM than each of its hosts should keep?"""
    used = numpy.bincount(options.group, weights=relaxed.amount * options.taken[:, 1], minlength=len(options.groups))
    return any(group.size * (group.ram - SPARE_RAM) < each for group, each in zip(options.groups, used.tolist(), strict=True))


def _serve_near(rounding: _Rounding, last: int, held: dict[int, int]) -> bool:
    """As many of the ``last`` priority as can be near the linear program's numbers, and as many of the others as are ``held``. Were such
    numbers found?"""
    wanted = rounding.hoped(last)
    try:
        if wanted < FEW:
            return rounding.serve(last, held) or rounding.serve_by_teams(last, held, PRICELESS)
        least = LEAST_PRICE if _is_large(wanted) else HIGH_PRICE
        return rounding.serve_by_teams(last, held, max(least, EAGER * rounding.relaxed.price)) or rounding.serve(last, held)
    except Short:
        return False


def _serve_in_turn(rounding: _Rounding) -> None:
    """As many as can be of one priority after the other."""
    held: dict[int, int] = {}
    for level in rounding.options.levels:
        if rounding.served(level) < int(rounding.hoped(level) + NEARLY):
            rounding.serve(level, held)
        held[level] = rounding.served(level)


def reachable(options: Options, relaxed: Relaxed, level: int, held: dict[int, int]) -> int:
    """How many replicas of a priority whole numbers near the solution of its stage serve, while those before keep what they have."""
    aim = int(relaxed.amount[options.priority[options.klass] == level].sum() + NEARLY)
    if level == options.levels[-1] and (spare := int(SPARE * aim)):
        return aim - spare
    rounding = _Rounding(options, relaxed)
    if rounding.served(level) < aim:
        rounding.serve(level, held)
    return rounding.served(level)


def _is_large(wanted: float) -> bool:
    """Of so many replicas of the last priority, are some not worth the work?"""
    return LOOSE * wanted >= SOME


def _in_tight_teams(options: Options, relaxed: Relaxed) -> Bools:
    """Options that the solution uses, of teams that use all of a quota."""
    team = options.team[options.klass]
    mine = team >= 0
    tight = numpy.zeros(len(options.quotas) + 1, dtype=bool)
    for cost, most in ((options.memory, options.quota_memory), (options.worth, options.quota_worth)):
        used = numpy.bincount(team[mine], weights=(relaxed.amount * cost)[mine], minlength=len(options.quotas))
        tight[:-1] |= used > most - 1.0
    return tight[team] & (relaxed.amount > NEARLY)


class _Rounding:
    """Whole numbers in place of the fractional ones: ``best`` by option, what is found so far. It is within every row at all times.

    What may change are the options of classes with a fractional number, and of teams that use all of a quota: their parts of it must be put
    together anew. ``spare_ram``: with so much RAM (GiB) left of each host, and no more GPUs than the last stage left open, but for one in
    each group that a fractional number may need; None: with all that there is.
    """

    def __init__(self, options: Options, relaxed: Relaxed, spare_ram: float | None = None) -> None:
        self.options, self.relaxed, self.spare_ram = options, relaxed, spare_ram
        self.best = numpy.floor(relaxed.amount + NEARLY).astype(numpy.int64)
        fractional = options.klass[relaxed.amount - self.best > NEARLY]
        self.chosen = numpy.flatnonzero(numpy.isin(options.klass, fractional) | _in_tight_teams(options, relaxed))
        self.priority = options.priority[options.klass]

    def served(self, level: int) -> int:
        """How many replicas of a priority have their place in whole numbers."""
        return self._of(self.best, level)

    def hoped(self, level: int) -> float:
        """How many replicas of a priority the linear program's solution serves, fractional ones."""
        return float(self.relaxed.amount[self.priority == level].sum())

    def serve(self, level: int, held: dict[int, int]) -> bool:
        """As many of a priority as can be, while as many of those before as ``held`` says are served. Were such numbers found?"""
        near = self._near(level, held)
        wanted, least = self.hoped(level), self.served(level)
        last = level == self.options.levels[-1]
        loose, many = max(1.1, LOOSE * wanted) if last else 1e-6, last and wanted >= MANY
        quick, brief = Limits(absolute=loose, nodes=NODES, plain=True, once=True), Limits(absolute=loose, nodes=NODES, brief=True)
        found: list[Ints] = []
        # The quick way sometimes finds fewer than all numbers rounded down.
        with contextlib.suppress(SolverError):  # there are none, whichever way they are sought
            for limits in (quick, brief) if many else (brief,):
                if not found or self._of(found[-1], level) < least:
                    found += self._found(near, limits)
        self.best = max(found, key=lambda each: self._of(each, level), default=self.best)
        return bool(found)

    def _found(self, near: _Near, limits: Limits) -> list[Ints]:
        """Whole numbers by option; none where none is found within the limits.

        :raises SolverError: there are none.
        """
        try:
            outcome = near.program.solve(limits)
        except NotFound:
            return []
        found = self.best.copy()
        found[self.chosen] = numpy.round(outcome.values[near.columns]).astype(numpy.int64)
        return [found]

    def _of(self, amount: Ints, level: int) -> int:
        """The replicas of a priority."""
        return int(amount[self.priority == level].sum())

    def serve_by_teams(self, level: int, held: dict[int, int], price: float) -> bool:
        """As :meth:`serve` with the last priority, but a replica is worth no more GPUs than ``price``, and team by team.

        :raises Short: as :func:`by_teams` does.
        """
        options, relaxed, chosen = self.options, self.relaxed, self.chosen
        near = self._near(level, held, price)
        program, rows = near.program, near.rows
        # Each cut speaks of one team, too.
        private = numpy.concatenate(
            (rows.of_one_team(), numpy.repeat((False, True), (len(relaxed.spread) + len(relaxed.beside), len(relaxed.cuts))))
        )
        groups = numpy.arange(len(options.groups))
        shared = numpy.concatenate((rows.cpus + groups, rows.ram + groups, rows.gpus + groups))
        fractional = Fractional(
            program, near.columns, options.team[options.klass[chosen]], private, numpy.asarray([rows.level[one] for one in held]), shared
        )
        enough = NEARLY_FEWEST * sum(boards.sum() for boards in relaxed.boards)
        haste = None
        if _is_large(self.hoped(level)):
            # The best numbers take twice as long as the first. Where one replica is worth more than what is enough, these are too dear.
            first = TOO_FAR * enough if price <= enough else 0.0
            haste = Haste(TOO_FAR * enough, first)
        found = by_teams(fractional, Limits(absolute=enough, nodes=NODES, plain=True, once=True), haste)
        if found is not None:
            self.best[chosen] = found.astype(numpy.int64)
        return found is not None

    def _near(self, level: int, held: dict[int, int], price: float = 0.0) -> _Near:
        """The program for whole numbers near the solution. ``price``: a replica is worth so many GPUs; if 0, no number of them."""
        options, relaxed, chosen = self.options, self.relaxed, self.chosen
        rows = Rows(options)
        lower = numpy.maximum(0.0, numpy.floor(relaxed.amount[chosen]) - REACH)
        upper = numpy.minimum(options.most[chosen], numpy.ceil(relaxed.amount[chosen]) + REACH)
        program = Program()
        columns = program.add_columns(len(chosen), -(price or 1.0) * (self.priority[chosen] == level), lower, upper, whole=True)
        rest = self.best.astype(float)
        rest[chosen] = 0.0
        fixed = numpy.flatnonzero(rest)
        row, column, value = rows.entries(fixed)
        used = numpy.bincount(row, weights=value * rest[fixed][column], minlength=rows.count)
        most, least = rows.upper.copy(), numpy.full(rows.count, -numpy.inf)
        for above, number in held.items():
            least[rows.level[above]] = number
        if price:
            for (priority, team), (fewest, greatest) in relaxed.counts.items():
                least[rows.team_level[priority] + team], most[rows.team_level[priority] + team] = fewest, greatest
        if self.spare_ram is not None:
            ram = slice(rows.ram, rows.ram + len(options.groups))
            most[ram] -= self.spare_ram * numpy.asarray([group.size for group in options.groups])
            gpus = slice(rows.gpus, rows.gpus + len(options.groups))
            most[gpus] = numpy.minimum(most[gpus], [numpy.ceil(boards.sum() - NEARLY) + 1 for boards in relaxed.boards])
        program.add_rows(rows.count, least - used, most - used)
        row, column, value = rows.entries(chosen)
        program.add_entries(row, columns[column], value)
        boards = []
        for group, patterns in enumerate(relaxed.patterns):
            more = program.add_columns(len(patterns), float(price > 0))
            which, shape = numpy.nonzero(patterns)
            program.add_entries(rows.supply[group] + shape, more[which], -patterns[which, shape])
            program.add_entries(rows.gpus + group, more)
            boards.append(more)
        if price:
            # The linear program's GPUs of each group are where its replicas find their places best.
            own = rows.gpus + numpy.arange(len(options.groups))
            program.add_entries(own, program.add_columns(len(own), ELSEWHERE, upper=rows.upper[own] - most[own]), -1.0)
            column_of = numpy.full(len(rest), -1, dtype=numpy.int64)
            column_of[chosen] = columns
            for option in relaxed.spread:
                group = int(options.group[option])
                places = numpy.minimum(relaxed.patterns[group][:, options.shape[option]], options.per_host[options.klass[option]])
                row = program.add_rows(1, upper=NEARLY - rest[option])
                program.add_entries(row, boards[group], -places)
                if column_of[option] >= 0:
                    program.add_entries(row, column_of[option])
            full = full_hosts(options)
            for option in relaxed.beside:
                limit, those, worth = beside(options, option, full)
                mine = column_of[those] >= 0
                row = program.add_rows(1, upper=limit + NEARLY - worth @ rest[those])
                program.add_entries(row, column_of[those[mine]], worth[mine])
            for one in relaxed.cuts:
                mine = column_of[one.options] >= 0
                row = program.add_rows(1, upper=one.most + NEARLY - one.worth @ rest[one.options])
                program.add_entries(row, column_of[one.options[mine]], one.worth[mine])
        return _Near(program, columns, rows)


class _Near(t.NamedTuple):
    """``program`` with the ``rows`` of the whole fleet's, then those that spread options, then one for each cut; ``columns``: those of the
    options that may change."""

    program: Program
    columns: Ints
    rows: Rows


class Patterned(t.Protocol):
    """What is known of a fleet's patterns."""

    @property
    def patterns(self) -> list[Ints]:
        """By group, shape (patterns, shapes)."""

    @property
    def boards(self) -> list[Floats]:
        """By group, GPUs of each pattern; fractional numbers of them, too."""


class WholePatterns(t.NamedTuple):
    """GPUs of one group: ``boards``, how many get each of ``patterns``, shape (patterns, shapes)."""

    patterns: Ints
    boards: Ints


def cuts(options: Options, relaxed: Patterned, amount: Ints, group: int) -> Iterator[tuple[WholePatterns, bool]]:
    """(patterns with a place for all of these replicas of a group, on as few GPUs as possible and never more than it has; are they hardly
    more than the linear program has?)

    Seldom one or two places are missing. Where equal sharers are spread so widely that it takes more GPUs, the further answers have fewer,
    for which it is harder to find each replica a host. Another one that takes hardly more may be easier to deal by chance.
    """
    wanted = _wanted(options, amount, group)
    enough, fewest = numpy.ceil(relaxed.boards[group].sum() - NEARLY) + TOO_MANY, numpy.inf
    for spare in SPARES if options.boards[options.groups[group].board].shared else SPARES[:1]:
        found = _cut(options, relaxed, amount, group, spare)
        # A missing place may take a GPU of its own.
        needed = found.boards.sum() + numpy.maximum(0, wanted - found.boards @ found.patterns).sum()
        if needed < fewest or needed <= enough:
            fewest = min(fewest, needed)
            yield found, bool(needed <= enough)


def _wanted(options: Options, amount: Ints, group: int) -> Ints:
    """By shape of a group's board, the places that its replicas need."""
    mine = numpy.flatnonzero(options.group == group)
    wanted = numpy.zeros(len(options.boards[options.groups[group].board].shapes), dtype=numpy.int64)
    numpy.add.at(wanted, options.shape[mine], amount[mine] * options.count[options.klass[mine]])
    return wanted


def _cut(options: Options, relaxed: Patterned, amount: Ints, group: int, spare: float) -> WholePatterns:
    """One answer of :func:`cuts`."""
    patterns, boards = relaxed.patterns[group], relaxed.boards[group]
    mine = numpy.flatnonzero(options.group == group)
    wanted = _wanted(options, amount, group)
    if not wanted.any():
        return WholePatterns(patterns[:0], boards[:0].astype(numpy.int64))
    board = options.boards[options.groups[group].board]
    at_once = _at_once(options, amount, mine, wanted, spare)
    prices = numpy.asarray([shape.worth for shape in board.shapes])
    most = options.groups[group].size * options.groups[group].gpus
    if board.shared:
        return _dive(board, patterns, wanted, at_once, most)
    used = boards > NEARLY
    patterns, boards = patterns[used], boards[used]
    whole = numpy.floor(boards + NEARLY).astype(numpy.int64)
    rest = _remainder(board, wanted - whole @ patterns, at_once, prices)
    patterns, whole = numpy.concatenate((patterns, rest)), numpy.concatenate((whole, numpy.ones(len(rest), dtype=numpy.int64)))
    if whole.sum() <= min(most, numpy.ceil(boards.sum() - NEARLY)):
        return WholePatterns(patterns, whole)
    patterns = numpy.unique(numpy.concatenate((patterns, board.first_patterns)), axis=0)
    limited = mine[(amount[mine] > 0) & (options.per_host[options.klass[mine]] < patterns[:, options.shape[mine]].max(axis=0))]
    spread = [(int(amount[one]), numpy.minimum(patterns[:, options.shape[one]], options.per_host[options.klass[one]])) for one in limited]
    return _whole_patterns(patterns, wanted, spread, most)


def _dive(board: Board, known: Ints, wanted: Ints, at_once: Ints, most: int) -> WholePatterns:
    """Whole patterns by solving the linear program again and again for what its whole numbers have not covered yet."""
    found: list[tuple[Ints, Ints]] = []
    missing = wanted.copy()
    for _turn in range(DIVES):
        patterns, boards, prices = _tailored(board, known, missing, numpy.minimum(at_once, missing))
        whole = numpy.floor(boards + NEARLY).astype(numpy.int64)
        left = numpy.maximum(0, missing - whole @ patterns)
        # Of the fractional ones, the fullest parts first, as long as they waste nothing.
        for one in numpy.argsort(whole - boards, kind="stable")[: max(1, len(boards) // 3)].tolist():
            if boards[one] - whole[one] > 0.5 and (patterns[one] <= left).all():
                whole[one] += 1
                left = left - patterns[one]
        found.append((patterns[whole > 0], whole[whole > 0]))
        if not whole.any() or not left.any():
            missing = left
            break
        missing = left
    rest = _remainder(board, missing, at_once, prices)
    found.append((rest, numpy.ones(len(rest), dtype=numpy.int64)))
    patterns, whole = (numpy.concatenate(parts) for parts in zip(*found, strict=True))
    # More than there are: those that hold least go without.
    over = int(whole.sum()) - most
    for one in numpy.argsort(patterns @ numpy.asarray([shape.worth for shape in board.shapes]), kind="stable").tolist():
        gone = max(0, min(over, int(whole[one])))
        whole[one] -= gone
        over -= gone
    return WholePatterns(patterns, whole)


def _whole_patterns(patterns: Ints, wanted: Ints, spread: list[tuple[int, Ints]], most: int) -> WholePatterns:
    """How many GPUs get each pattern, by an integer program; where there are too few GPUs, large places are kept first.

    :param spread: for each class of which a host may have few, its replicas and how many of them a GPU of each pattern can have.
    """
    program = Program()
    columns = program.add_columns(len(patterns), 1.0, whole=True)
    # A missing place costs as much as the GPU of its own that it would need, and a little more for the large ones.
    short = program.add_columns(len(wanted), 1.0 + 1.0 / numpy.maximum(1, patterns.max(axis=0)), upper=wanted)
    supply = program.add_rows(len(wanted), wanted)
    which, shape = numpy.nonzero(patterns)
    program.add_entries(supply[shape], columns[which], patterns[which, shape])
    program.add_entries(supply, short)
    for many, places in spread:
        row = program.add_rows(1, many)
        program.add_entries(row, columns, places)
        program.add_entries(row, program.add_columns(1, 1.0))
    program.add_entries(program.add_rows(1, upper=most), columns)
    found = _whole_near(program, columns) if most >= MANY_GPUS else None
    return WholePatterns(patterns, numpy.round((found or program.solve(PATTERNS)).values[columns]).astype(numpy.int64))


def _whole_near(program: Program, columns: Ints) -> Outcome | None:
    """Whole numbers of these columns near the linear program's: few to choose from take a fraction of the time, and hold the best as a
    rule. None where they do not."""
    relaxed = program.solve(relaxed=True)
    value = relaxed.values[columns]
    try:
        found = program.solve(PATTERNS, within=(columns, numpy.maximum(0.0, numpy.floor(value) - NEAR), numpy.ceil(value) + NEAR))
    except SolverError:
        return None
    return found if found.objective < relaxed.objective + 1.0 else None


def _at_once(options: Options, amount: Ints, mine: Ints, wanted: Ints, spare: float) -> Ints:
    """By shape, as :attr:`Board.at_once`, for the replicas that really go to a group; ``spare``: one of :data:`SPARES`."""
    found = numpy.full(len(wanted), MOST_AT_ONCE)
    here = mine[amount[mine] > 0]
    most = options.per_host[options.klass[here]] * wanted[options.shape[here]] / amount[here] / spare
    numpy.minimum.at(found, options.shape[here], numpy.clip(most + NEARLY, 1, MOST_AT_ONCE).astype(numpy.int64))
    return found


def _tailored(board: Board, known: Ints, wanted: Ints, at_once: Ints) -> tuple[Ints, Floats, Floats]:
    """(patterns, GPUs of each, prices of the shapes) for one group alone, no GPU with more of a shape than ``at_once``."""
    first = numpy.concatenate((board.first_patterns, known))
    shared = numpy.asarray([shape.mode == "shared" for shape in board.shapes])
    first[:, shared] = numpy.minimum(first[:, shared], at_once[shared])
    first = numpy.unique(first[(first[:, wanted > 0] > 0).any(axis=1)], axis=0)
    program = Program()
    program.add_rows(len(wanted), wanted)
    session = Session(program)
    patterns: list[Ints] = []
    seen: set[bytes] = set()
    fresh, calm = list(first), numpy.zeros(0)
    while fresh:
        columns = numpy.asarray(fresh)
        which, shape = numpy.nonzero(columns)
        entries = (shape, which, columns[which, shape].astype(float))
        session.add_columns(numpy.ones(len(fresh)), numpy.full(len(fresh), numpy.inf), entries)
        patterns += fresh
        seen |= {each.tobytes() for each in fresh}
        outcome = session.solve()
        now = numpy.maximum(0.0, outcome.duals)
        calm = CALM * calm + (1 - CALM) * now if len(calm) else now
        (worth, _other), found = board.best_shared(numpy.stack((now, calm)), at_once.tolist())
        # No patterns that are not known would save as much as that.
        saved = outcome.objective * (1.0 - 1.0 / max(1.0, worth))
        best = {each.tobytes(): each for each in found} if saved > SAVED else {}
        fresh = sorted((best[each] for each in best.keys() - seen), key=lambda each: each.tolist())
    used = outcome.values > NEARLY
    return numpy.asarray(patterns)[used], outcome.values[used], now


def _remainder(board: Board, missing: Ints, at_once: Ints, prices: Floats) -> Ints:
    """Patterns, one GPU each, for the few places that whole numbers of the others leave out."""
    missing = numpy.maximum(0, missing)
    found: list[Ints] = []
    mig = board.first_patterns
    mig = mig[(mig[:, [shape.mode == "shared" for shape in board.shapes]] == 0).all(axis=1)]
    while missing.any():
        wanted = numpy.where(missing > 0, prices + NEARLY, 0.0)
        (worth,), (best,) = board.best_shared(wanted[None, :], numpy.minimum(missing, at_once).tolist())
        offered = numpy.minimum(mig, missing) @ (prices + NEARLY) if len(mig) else numpy.zeros(0)
        if len(mig) and offered.max() > worth:
            best = numpy.minimum(mig[int(offered.argmax())], missing)
        if not best.any():
            break
        found.append(best)
        missing = missing - best
    return numpy.asarray(found, dtype=numpy.int64).reshape(len(found), len(board.shapes))
