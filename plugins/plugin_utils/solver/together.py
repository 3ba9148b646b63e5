# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Places for all who wait at once: one integer program over the GPUs of a fleet, and the proof of how many can be served at most.

The planner places replicas one by one, which is quick and nearly always as good. Where somebody is left over, this says whether anybody
could have been served in addition, and if so, who goes where. Whatever it proposes the planner takes step by step through its own rules, so
that a rule which the program does not know (a wish to be spread, a group that stands or falls together) is never broken by it.
"""

from __future__ import annotations

import math
import typing as t
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import most_sets, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter, Slices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MPS, TIME_SLICE, Hint, Need, Sharing
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Charge, share_charge, whole_charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.alike import Waiting, classes_of, kinds_of, size_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.equal_hosts import places_of, served
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import (
    Counts,
    Group,
    HostClass,
    Key,
    Kind,
    Shape,
    shape_of,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of, undominated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import (
    Limits,
    Outcome,
    Program,
    Session,
    SolverError,
    available,
    numpy,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.quota_rows import limit_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Floats

Answer = t.TypeVar("Answer")

# More mixes of sharers of one GPU than these are not looked at one by one.
MOST_MIXES = 1_500
# A program with more columns than this takes longer than a merge request waits; the plan then says that nothing was proven.
MOST_COLUMNS = 40_000
# Where more than this part of whom the program counted finds no place on single hosts, hosts are told apart by what they can give.
LOST = 0.01
# And of one that is small enough to be solved once more.
SMALL = 2_000
_BLUR = 1e-6
# What one more replica is worth in those of the next lower priority, where whole numbers are looked for.
_STEP = 30.0
_WORK = Limits(absolute=0.99, nodes=20, iterations=200_000)
# As much for a program that is not small, which is not begun anew once much of it is decided: that takes as long again, and finds no more.
_LARGE = replace(_WORK, once=True)


@dataclass(frozen=True)
class Together:
    """``hints``: a place for each replica that the program serves. ``most``: priority -> how many of those who wait can be served at most,
    given that as many of higher ones are. ``gpus``: the fewest that have to be opened for that, None where it was not asked.
    ``better``: there are hints, which may well serve more, or as many on fewer GPUs. ``small``: another look would not take long.
    """

    hints: Mapping[Key, Hint]
    most: Mapping[int, int]
    gpus: int | None
    better: bool
    small: bool


def plan_together(
    fleet: Fleet,
    waiting: Waiting,
    reached: Mapping[int, int] | None,
    opened: int | None = None,
    must: Collection[Key] = (),
    ceiling: Mapping[int, int] | None = None,
    others: Callable[[], tuple[Mapping[int, int], int | None]] | None = None,
) -> Together | None:
    """The program for those who wait, on a fleet on which nobody of them has a place yet.

    ``reached``: priority -> how many of them have been served already by other means; only more than that is of interest. ``opened``: how
    many GPUs that took, where fewer are of interest too. ``must``: those who have to be served in any case. ``ceiling``: priority -> no
    more of it are to be served, because more were tried in vain; ``most`` is no bound then. ``others``: instead of ``reached`` and
    ``opened``, asked for them only if all can be served.
    None where the solver is not there, the fleet is too large for it, or HiGHS has no answer within its limits.
    """

    def asked(*, sizes: bool, patient: bool = True) -> tuple[Together, _Model] | None:
        def solved(model: _Model) -> tuple[Together, _Model]:
            return model.solved(reached, opened, ceiling or {}, others, patient=patient), model

        return _asked(fleet, waiting, must, solved, sizes=sizes)

    answer = asked(sizes=False, patient=False)
    if answer is not None and answer[1].mixed and (answer[1].scarce or answer[1].lost > LOST * len(answer[0].hints)):
        # What hosts can give differs too much to be counted together. Where both serve as many, what this proves is closer.
        closer = asked(sizes=True)
        if closer is None and answer[1].scarce:
            closer = asked(sizes=False)
        answer = max(closer or answer, answer, key=lambda each: served(each[1].hinted))
    return None if answer is None else answer[0]


def most_served(fleet: Fleet, waiting: Waiting) -> Mapping[int, int] | None:
    """``most`` as :class:`Together` has it, of those who wait on a fleet as it is, and nothing else; None as above."""
    return _asked(fleet, waiting, (), lambda model: model.bounds(Session(model.program, _WORK), {}, {})[0])


def _asked(
    fleet: Fleet, waiting: Waiting, must: Collection[Key], question: Callable[[_Model], Answer], *, sizes: bool = False
) -> Answer | None:
    """What a program says, if there can be one and it has an answer. ``sizes``: as for :func:`classes_of`."""
    if not available() or not waiting:
        return None
    try:
        model = _Model(fleet, waiting, frozenset(must), sizes=sizes)
        return question(model) if model.program.columns <= MOST_COLUMNS else None
    except (SolverError, FleetError):  # the second: a board on which something stands that its geometry does not know
        return None


class _Level(t.NamedTuple):
    """Those of one priority: their columns, the row that counts who is served, and how many they are."""

    columns: list[int]
    row: int
    everybody: int


class _Model:
    """The program: kinds of replicas on groups of equal GPUs."""

    def __init__(self, fleet: Fleet, waiting: Waiting, must: frozenset[Key], *, sizes: bool) -> None:
        self.program = Program()
        # The priorities of those who have a hint, and how many were counted that have none.
        self.hinted, self.lost = Counter[int](), 0
        # The rows of what hosts can give that differ in it; is there a linear program that would serve more if there were more of that?
        self._differing: list[int] = []
        self.scarce = False
        self._books = fleet.books
        self._must, self._sizes = must, sizes
        self.kinds = kinds_of(waiting, fleet, must)
        # By team, each column and what it counts against a quota: (board, what, amount).
        self._charged: dict[str, list[tuple[int, Charge]]] = defaultdict(list)
        self.opened: list[int] = []
        asked = {(kind.need.environment, kind.need.data_class): kind.need for kind in self.kinds}
        up = [host for host in fleet.hosts.values() if not host.host.down]
        hosts = [host for host in up if any(host.host.admits(need) for need in asked.values())]
        self.classes = classes_of(hosts, self.kinds, sizes=sizes)
        # The classes with hosts on which nobody is yet, and which can give more than others: are there any?
        self._mixed = {id(each) for each in self.classes if len({size_of(host) for host in each.hosts} - {None}) > 1}
        self.mixed = bool(self._mixed)
        self.groups = [group for each in self.classes for group in each.groups]
        # What :meth:`_room` found.
        self._rooms: dict[tuple[t.Any, ...], int] = {}
        # (class, board) -> MiB -> the row of its whole GPUs that have at least so much.
        self._whole: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        for each in self.classes:
            for group in each.groups:
                self._rows_of_gpus(each, group)
            # On a fleet that serves, most GPUs have nothing to offer.
            able = [group for group in each.groups if group.rows]
            for kind in self.kinds:
                for group in able:
                    self._kind_on(kind, group, each)
            self._rows_of_hosts(each)
        self.loans = limit_teams(self.program, fleet.books, self._charged)
        self.levels = self._rows_of_levels()

    def _rows_of_gpus(self, hosts: HostClass, group: Group) -> None:
        """Each GPU is cut in one way, or whole, or shared; ``rows``: what its columns offer."""
        program, state = self.program, group.states[0]
        if program.columns > MOST_COLUMNS:
            return
        once = program.add_row(upper=len(group.states))
        if state.refusal("mig") is None and state.cutter is not None:
            self._cuts(group, once)
        if state.refusal("whole") is None:
            column = self._use(group, once, "whole")
            for size, row in self._rows_of_sizes(hosts, state.gpu.board).items():
                if size <= state.gpu.memory_mib:
                    program.add_entry(row, column, -1.0)
        for sharing in _SHARINGS:
            if state.refusal("shared", sharing) is None:
                most = state.host.most_sharers(state.gpu, sharing)
                mixes = shares(state.memory_free, state.compute_free, most - len(state.tenants), self._shapes(state, sharing))
                if mixes is not None:
                    self._mixes(group, once, sharing, mixes)
                    continue
                column = self._use(group, once, sharing)
                offered = {"memory": state.memory_free, "compute": state.compute_free, "clients": most - len(state.tenants)}
                for what, each in offered.items():
                    group.rows[f"{sharing} {what}"] = self._offer(column, each)

    def _shapes(self, state: GpuState, sharing: Sharing) -> tuple[Shape, ...]:
        """What those who wait would take of a GPU that is shared so."""
        found = {
            shape_of(kind.need)
            for kind in self.kinds
            if kind.need.isolation == "shared" and kind.need.sharing == sharing and state.serves(kind.need)
        }
        return tuple(sorted(found, reverse=True))

    def _mixes(self, group: Group, once: int, sharing: Sharing, mixes: Iterable[Counts[Shape]]) -> None:
        """One column for each mix of shares that fills a GPU."""
        for counts in mixes:
            column = self.program.add_column(len(group.states), whole=True)
            self.program.add_entry(once, column, 1)
            self._open(group.states[0], column)
            group.mixes.append((column, sharing, counts))
            for (memory, compute), count in counts:
                row = f"{sharing} {memory} {compute}"
                if row not in group.rows:
                    group.rows[row] = self.program.add_row(upper=0)
                self.program.add_entry(group.rows[row], column, -count)

    def _use(self, group: Group, once: int, way: str) -> int:
        column = self.program.add_column(len(group.states), whole=True)
        self.program.add_entry(once, column, 1)
        self._open(group.states[0], column)
        group.uses[way] = column
        return column

    def _offer(self, column: int, each: float) -> int:
        """A row: what is taken of it (positive) is at most ``each`` for every GPU of the column."""
        row = self.program.add_row(upper=0)
        self.program.add_entry(row, column, -each)
        return row

    def _open(self, state: GpuState, column: int) -> None:
        if state.mode is None:
            self.opened.append(column)

    def _rows_of_sizes(self, hosts: HostClass, board: str) -> Mapping[int, int]:
        """A replica on several GPUs may have them of any groups of a host, as long as they are of one board. Some of these may report less
        memory than others (ECC), and each has to have what it needs."""
        rows = self._whole[id(hosts), board]
        if not rows:
            for group in hosts.groups:
                state = group.states[0]
                if state.gpu.board == board and state.gpu.memory_mib not in rows and state.refusal("whole") is None:
                    rows[state.gpu.memory_mib] = group.rows["whole"] = self.program.add_row(upper=0)
        return rows

    def _cuts(self, group: Group, once: int) -> None:
        state = group.states[0]
        names = self._profiles(state)
        if state.cutter is None or not names:
            return
        stock = state.spare if state.gpu.fixed else None
        ways = additions(state.cutter, state.fixed, names, stock, state.reusable if state.gpu.fixed else None)
        # No row, and so no column of anybody, for what the GPU cannot have any more: on a fleet that serves that is most of it.
        rows = {name: self.program.add_row(upper=0) for name in names if any(name == one for counts in ways for one, _count in counts)}
        group.rows.update(rows)
        for counts in ways:
            column = self.program.add_column(len(group.states), whole=True)
            self.program.add_entry(once, column, 1)
            self._open(state, column)
            group.cuts.append((column, counts))
            for name, count in counts:
                self.program.add_entry(rows[name], column, -count)

    def _profiles(self, state: GpuState) -> tuple[str, ...]:
        """Profiles that somebody who waits may have on this board."""
        found: set[str] = set()
        for kind in self.kinds:
            if kind.need.isolation == "slice" and state.serves(kind.need):
                found.update(acceptable(state, kind.need))
        return tuple(sorted(found))

    def _kind_on(self, kind: Kind, group: Group, hosts: HostClass) -> None:
        need, state = kind.need, group.states[0]
        if self.program.columns > MOST_COLUMNS or not state.host.admits(need) or not state.serves(need):
            return
        if all(host.free.shortage(need.resources) for host in hosts.hosts):
            return
        if need.isolation == "slice":
            for name in acceptable(state, need):
                if name in group.rows:
                    self._column(kind, group, name, {group.rows[name]: 1}, state.slice_charge(name))
        elif need.isolation == "exclusive":
            if "whole" in group.rows:
                self._whole_gpus(kind, group, hosts)
        elif (row := f"{need.sharing} {need.memory_mib} {need.compute or 0}") in group.rows:
            self._column(kind, group, None, {group.rows[row]: 1}, share_charge(state.gpu.board, need.memory_mib))
        elif f"{need.sharing} memory" in group.rows and need.memory_mib <= state.memory_free and (need.compute or 0) <= state.compute_free:
            taken = {"memory": need.memory_mib, "compute": need.compute or 0, "clients": 1}
            takes = {group.rows[f"{need.sharing} {what}"]: much for what, much in taken.items()}
            self._column(kind, group, None, takes, share_charge(state.gpu.board, need.memory_mib))

    def _whole_gpus(self, kind: Kind, group: Group, hosts: HostClass) -> None:
        """One column for all whole GPUs of a board, at the first group of the smallest that serve."""
        need, gpu = kind.need, group.states[0].gpu
        rows = self._whole[id(hosts), gpu.board]
        smallest = min((size for size in rows if size >= need.memory_mib), default=None)
        if smallest is None or group.rows["whole"] != rows[smallest]:
            return
        room = self._room(need, gpu.board, hosts)
        if room:
            takes = {row: need.count for size, row in rows.items() if size <= smallest}
            self._column(kind, group, None, takes, whole_charge([(gpu.board, gpu.counted_mib)] * need.count), room)

    def _room(self, need: Need, board: str, hosts: HostClass) -> int:
        """How many replicas the hosts have room for at most on whole GPUs of this board, all of one replica on one host."""
        asked = (id(hosts), board, need.memory_mib, need.count, must_join(need))
        if asked not in self._rooms:
            able = (
                [
                    state
                    for state in host.gpus
                    if state.gpu.board == board and state.gpu.memory_mib >= need.memory_mib and state.refusal("whole") is None
                ]
                for host in hosts.hosts
            )
            self._rooms[asked] = sum(most_sets(states, need.count) if must_join(need) else len(states) // need.count for states in able)
        return self._rooms[asked]

    def _column(
        self, kind: Kind, group: Group, profile: str | None, takes: Mapping[int, float], charge: Charge, most: int | None = None
    ) -> None:
        column = self.program.add_column(len(kind.members) if most is None else min(most, len(kind.members)), whole=True)
        kind.columns.append((column, group, profile))
        if self._books.limited(kind.need.team):
            self._charged[kind.need.team].append((column, charge))
        for row, much in takes.items():
            if much:
                self.program.add_entry(row, column, much)

    def _rows_of_hosts(self, hosts: HostClass) -> None:
        """CPU, memory, disk and ports of hosts, and how many replicas of one service a host may have."""
        groups = set(map(id, hosts.groups))
        entries = [(column, kind.need) for kind in self.kinds for column, group, _profile in kind.columns if id(group) in groups]
        for what in ("cpus", "memory", "shm", "disk"):
            free = [getattr(host.free, what) for host in hosts.hosts]
            takes = [(column, getattr(need.resources, what) or 0) for column, need in entries]
            if None not in free and any(much for _column, much in takes):
                row = self.program.at_most(sum(max(0, each) for each in free), takes)
                self._differing += [row] if row is not None and id(hosts) in self._mixed else []
        ports: dict[int, list[tuple[int, float]]] = defaultdict(list)
        limited: dict[str, list[tuple[int, float]]] = defaultdict(list)
        room: dict[str, int] = {}
        for column, need in entries:
            for _port, number in need.ports:
                if number is not None:
                    ports[number].append((column, 1))
            limit = need.rules.max_per_host
            if limit is not None:
                if need.service not in room:
                    room[need.service] = sum(max(0, limit - host.replicas.get(need.service, 0)) for host in hosts.hosts)
                limited[need.service].append((column, 1))
        for number, takes in sorted(ports.items()):
            self.program.at_most(sum(host.port_refusal(number, "") is None for host in hosts.hosts), takes)
        for service, takes in sorted(limited.items()):
            self.program.at_most(room[service], takes)

    def _rows_of_levels(self) -> dict[int, _Level]:
        """Nobody has two places; and for each priority, the highest first, a row that counts who is served."""
        levels: dict[int, _Level] = {}
        for priority in sorted({kind.need.priority for kind in self.kinds}, reverse=True):
            kinds = [kind for kind in self.kinds if kind.need.priority == priority]
            for kind in kinds:
                least = sum((need.service, replica) in self._must for need, replica in kind.members)
                row = self.program.add_row(lower=least, upper=len(kind.members))
                self.program.add_entries(row, [column for column, _group, _profile in kind.columns], 1.0)
            columns = [column for kind in kinds for column, _group, _profile in kind.columns]
            row = self.program.add_row()
            self.program.add_entries(row, columns, 1.0)
            levels[priority] = _Level(columns, row, sum(len(kind.members) for kind in kinds))
        return levels

    def solved(
        self,
        reached: Mapping[int, int] | None,
        opened: int | None,
        ceiling: Mapping[int, int],
        others: Callable[[], tuple[Mapping[int, int], int | None]] | None,
        *,
        patient: bool = True,
    ) -> Together:
        """Bounds from linear programs, one for each priority; then, where they leave hope, whole numbers out of what those use.

        ``patient``: also where hosts that can give different amounts are :attr:`scarce`, so that many of these would find no place.
        """
        session = Session(self.program, _WORK)
        known = reached or {}
        most, used = self.bounds(session, known, ceiling)
        if self.scarce and not patient:
            return Together({}, most, None, False, False)
        gpus: int | None = None
        if reached is None and others is not None and all(most[priority] >= level.everybody for priority, level in self.levels.items()):
            known, opened = others()
        hope = any(most[priority] > known.get(priority, 0) for priority in most)
        if opened is not None and not hope:
            session.set_costs(self._cost(dict.fromkeys(self.opened, 1.0)))
            found = session.solve()
            gpus, hope = math.ceil(found.objective - _BLUR), found.objective < opened - 1 + _BLUR
            used = found.values > _BLUR
        used[[*self.loans, *(column for group in self.groups for column in group.columns())]] = True
        hints = self._hints(self._chosen(used, gpus is not None)) if hope else {}
        return Together(hints, most, gpus, bool(hints), self.program.columns <= SMALL)

    def bounds(self, session: Session, reached: Mapping[int, int], ceiling: Mapping[int, int]) -> tuple[dict[int, int], t.Any]:
        """(``most`` as :class:`Together` has it; which columns the linear programs that say so use)."""
        most: dict[int, int] = {}
        used = numpy.zeros(self.program.columns, dtype=bool)
        for priority, level in self.levels.items():
            most[priority] = reached.get(priority, 0)
            everybody = min(level.everybody, ceiling.get(priority, level.everybody))
            if everybody < level.everybody:
                session.set_row(level.row, 0.0, everybody)
                self.program.at_most(everybody, [(column, 1.0) for column in level.columns])
            if most[priority] < everybody:
                session.set_costs(self._cost(dict.fromkeys(level.columns, -1.0)))
                found = session.solve()
                most[priority] = _whole(-found.objective)
                used |= found.values > _BLUR
                self.scarce = self.scarce or bool((numpy.abs(found.duals[self._differing]) > _BLUR).any())
            session.set_row(level.row, most[priority], everybody)
        return most, used

    def _cost(self, cost: Mapping[int, float]) -> Floats:
        costs = numpy.zeros(self.program.columns)
        costs[list(cost)] = list(cost.values())
        return costs

    def _chosen(self, used: t.Any, few: bool) -> Outcome | None:
        """A good whole solution with the columns that the linear programs ``used``; ``few``: everybody on as few GPUs as can be.

        All priorities at once, each replica worth many of the next; whoever comes first in the end, the planner's own turns say.
        """
        if few:
            for level in self.levels.values():
                self.program.at_most(-level.everybody, [(column, -1.0) for column in level.columns])
        worth = {column: -(_STEP**turn) for turn, level in enumerate(reversed(self.levels.values())) for column in level.columns}
        self.program.set_cost(dict.fromkeys(self.opened, 1.0) if few else worth)
        try:
            return self.program.solve(_WORK if self.program.columns <= SMALL else _LARGE, within=(numpy.flatnonzero(~used), 0.0, 0.0))
        except SolverError:
            return None

    def _hints(self, found: Outcome | None) -> dict[Key, Hint]:
        """The program's counts as places of single replicas."""
        if found is None:
            return {}
        values = [round(value) for value in found.values.tolist()]
        hints = places_of(self.classes, self.kinds, values, evenly=self._sizes)
        priorities = {need.service: need.priority for kind in self.kinds for need, _replica in kind.members}
        self.hinted = Counter(priorities[service] for service, _replica in hints)
        self.lost = sum(values[column] for level in self.levels.values() for column in level.columns) - len(hints)
        return hints


_SHARINGS: tuple[Sharing, ...] = (TIME_SLICE, MPS)


def acceptable(state: GpuState, need: Need) -> tuple[str, ...]:
    """Profiles that serve a need; where the GPU may be cut anew, without those in whose place a smaller one could stand as well."""
    if state.cutter is None:
        return ()
    names = state.cutter.acceptable(need.memory_mib, need.compute, need.profile)
    return names if state.gpu.fixed else state.cutter.smallest(names)


def _whole(value: float) -> int:
    """A bound on a count, which is a whole number."""
    return int(value + _BLUR)


def shares(memory_mib: int, compute: float, most: int, shapes: tuple[Shape, ...]) -> tuple[Counts[Shape], ...] | None:
    """Every mix of at most ``most`` shares that a GPU with so much left can carry and to which no other can be added.

    None where there are more than ``MOST_MIXES``: the program then counts memory, compute and sharers apart, and its bound may be too high.
    """
    found: list[Counts[Shape]] = []
    trail: list[tuple[int, int, float, int, Counts[Shape]]] = [(0, memory_mib, compute, most, ())]
    while trail:
        number, memory, left, clients, counts = trail.pop()
        if len(trail) > MOST_MIXES or len(found) > MOST_MIXES:
            return None
        if number == len(shapes):
            if counts and not any(_fits(shape, memory, left, clients) for shape in shapes):
                found.append(counts)
            continue
        for count in range(clients + 1):
            size, part = shapes[number][0] * count, shapes[number][1] * count
            if size > memory or part > left + 1e-9:
                break
            more: Counts[Shape] = (*counts, (shapes[number], count)) if count else counts
            trail.append((number + 1, memory - size, left - part, clients - count, more))
    return tuple(found)


def _fits(shape: Shape, memory_mib: int, compute: float, clients: int) -> bool:
    return clients > 0 and shape[0] <= memory_mib and shape[1] <= compute + 1e-9


@lru_cache(maxsize=4096)
def additions(
    cutter: Cutter, fixed: Slices, names: tuple[str, ...], stock: Slices | None = None, free: Slices | None = None
) -> tuple[Counts[str], ...]:
    """What can be added to a board on which ``fixed`` stays: (profile, how many) of ``names``, without what another answer exceeds.

    ``stock``: on a GPU whose slices the platform decided, those that are there; of them only ``free`` are given away.
    """
    if stock is not None:
        counted = Counter(one.profile for one in free or () if one.profile in names)
        return (tuple(sorted(counted.items())),) if counted else ()
    board = patterns_of(cutter.geometry, {*names, *(one.profile for one in fixed)})
    inside = board.beside(board.state_of(fixed))
    wanted = [board.number[name] for name in names]
    rows = inside[inside.sum(axis=1) == inside[:, wanted].sum(axis=1)][:, wanted]
    rows = numpy.unique(rows, axis=0)
    kept = rows[undominated(rows)]
    return tuple(tuple((name, count) for name, count in zip(names, row, strict=True) if count) for row in kept.tolist() if any(row))
