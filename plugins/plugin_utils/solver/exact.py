# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The best plan for a small fleet: an integer program over single GPUs with the rules of hosts, services and teams, solved to the end.

``together.py`` counts equal GPUs of equal hosts together, which is quick for a company and blind for what one host lacks. Where there are
few enough GPUs and services, each GPU has columns of its own here, and what comes out is the best that there is by the planner's own
objective (docs/planner.md): so one more GPU never makes it worse, and twice the fleet serves at least twice as many.
"""

from __future__ import annotations

import itertools
import math
import typing as t
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import apart, joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need, Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Charge, share_charge, whole_charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.alike import Waiting, kinds_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.exact_places import GpuColumns, Spot, places
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import Key, Kind
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, Program, SolverError, available
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.quota_rows import limit_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.together import Together, acceptable, additions
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

# A program with more columns is left to together.py.
MOST_COLUMNS = 20_000
# So are more replicas times GPUs: a program of these would have more columns.
MOST_PAIRS = 100_000
# One with more columns finds how many can be served, and leaves as many as it can where they are; nothing else is made better about a plan
# then. It is not branched, and ends with the first priority of which it does not find the most at once: a second look costs seconds and
# hardly ever brings a replica.
MANY_COLUMNS = 3_000
# Where there are more ways to choose a replica's GPUs, of GPUs that are alike only such as follow each other are chosen.
MOST_COMBINATIONS = 100
# A host with more ways than these is left to together.py, too.
MOST_SETS = 1_000
# Counts are whole numbers: what is less than one away from the bound is the best.
_WORK = Limits(absolute=0.99, nodes=100, iterations=60_000, plain=True)
# Once so many iterations of the simplex method were made for a plan, the aims that are left are taken together.
MOST_WORK = 15_000
_ABOUT = Limits(gap=0.25, nodes=1, iterations=60_000, brief=True)
_BLUR = 1e-6
# What one more replica that is served is worth in replicas that are where they were, at least.
_ONE = 1_000.0
_AMOUNTS = ("cpus", "memory", "shm", "disk")
# Of whatever is counted, column -> how much of it one replica there is.
_Takes = list[tuple[int, float]]
# Column -> its value, of those that are known.
_Values = dict[int, float]


def plan_exactly(
    fleet: Fleet,
    waiting: Waiting,
    before: Mapping[Key, Placement],
    there: Mapping[Key, Placement],
    proven: bool,
    all_of_it: bool,
    must: Collection[Key] = (),
) -> Together | None:
    """The best plan for those who wait; nobody who has a place moves for them.

    ``before``: where they were, for a port that was theirs may be theirs again. ``there``: where other means have found a place for them;
    ``proven``: and no more of them can be served. ``all_of_it``: also where no more can be, for fewer replicas beside each other, fewer
    GPUs and fewer changes of mode. ``must``: those who have to be served in any case.
    None where the solver is not there, room is kept for rollouts (which no column can say), the fleet is too large for this, or HiGHS has
    no answer within its limits.
    """
    gpus = sum(len(host.gpus) for host in fleet.hosts.values())
    if not available() or not waiting or fleet.keepers or len(waiting) * gpus > MOST_PAIRS:
        return None
    try:
        # Of a program with many columns only whether more can be served is worth its time.
        model = _Exact(fleet, waiting, before, frozenset(must), MANY_COLUMNS if proven else MOST_COLUMNS)
        return None if model.too_large else model.solved(there, proven, all_of_it)
    except (SolverError, FleetError):  # the second: a board on which something stands that its geometry does not know
        return None


def _sets(states: Sequence[GpuState], count: int) -> list[tuple[GpuState, ...]]:
    """The sets of GPUs that a replica could have; where those are very many, of GPUs that are alike only such as follow each other.

    Whatever several replicas have of GPUs that are alike, they may as well have one after the other.
    """
    if math.comb(len(states), count) <= MOST_COMBINATIONS:
        return list(itertools.combinations(states, count))
    uuids = {state.gpu.uuid for state in states}
    joined_to = [uuids.intersection(state.gpu.links or ()) for state in states]
    even = not any(joined_to) or all(len(others) == len(states) - 1 for others in joined_to)
    alike: dict[object, list[GpuState]] = defaultdict(list)
    for state in states:
        bare = replace(state.gpu, uuid="" if even else state.gpu.uuid, pci="", links=None)
        alike[bare, state.mode, state.fixed].append(state)
    return list(itertools.islice(_in_a_row(list(alike.values()), count), MOST_SETS + 1))


def _in_a_row(groups: Sequence[Sequence[GpuState]], count: int) -> Iterator[tuple[GpuState, ...]]:
    """So many of all groups together, of each some that follow each other."""
    if not groups:
        yield from [()] if count == 0 else []
        return
    first, *rest = groups
    for taken in range(min(count, len(first)) + 1):
        for start in range(len(first) - taken + 1 if taken else 1):
            yield from ((*first[start : start + taken], *others) for others in _in_a_row(rest, count - taken))


class _Exact:
    """The program: kinds of replicas on single GPUs."""

    def __init__(self, fleet: Fleet, waiting: Waiting, before: Mapping[Key, Placement], must: frozenset[Key], most: int) -> None:
        """``most``: with more columns it is too large, and is left unfinished."""
        self.program = Program()
        self._fleet = fleet
        self._must = must
        # By host, the ports that somebody who waits had there.
        self._had: dict[str, set[int]] = defaultdict(set)
        for need, replica in waiting:
            if (place := before.get((need.service, replica))) is not None:
                self._had[place.host].update(port for _name, port in place.ports)
        self.kinds = kinds_of(waiting, fleet, must, partial(_counts_alone, fleet))
        self._members = sum(len(kind.members) for kind in self.kinds)
        # All who are where they were are never worth as much as one who is served.
        self._one = max(_ONE, 2.0 * self._members)
        self.spots: list[Spot] = []
        self.boards: dict[str, GpuColumns] = {}
        # What the later aims count: (column, how much).
        self._pairs: tuple[_Takes, _Takes] = ([], [])
        self._loose: _Takes = []
        self._opened: _Takes = []
        self._changed: _Takes = []
        self.too_large = False
        self._work = 0
        for host in fleet.hosts.values():
            self._host(host)
            if self.program.columns > most or self.too_large:
                self.too_large = True
                return
        self._of_kind: dict[int, list[Spot]] = defaultdict(list)
        for spot in self.spots:
            self._of_kind[id(spot.kind)].append(spot)
        self._rows_of_kinds()
        limit_teams(self.program, self._fleet.books, self._charged())
        self.too_large = self.program.columns > most

    # GPUs

    def _host(self, host: HostState) -> None:
        able = [kind for kind in self.kinds if _may_have(host, kind.need)]
        if host.host.down or not able:
            return
        first = len(self.spots)
        for state in host.gpus:
            self._gpu(host, state, able)
        for kind in able:
            if kind.need.isolation == "exclusive":
                self._wholes(host, kind)
        spots = self.spots[first:]
        self._rows_of_host(host, spots)
        self._rows_of_rules(host, spots)
        self._crowds(host, spots)

    def _gpu(self, host: HostState, state: GpuState, able: Sequence[Kind]) -> None:
        board = self.boards[state.gpu.uuid] = GpuColumns(state, self.program.add_row(upper=1))
        fit = [kind for kind in able if state.serves(kind.need) and not state.crowded(kind.need)]
        slices = [kind for kind in fit if kind.need.isolation == "slice"] if state.refusal("mig") is None else []
        self._cuts(board, sorted({name for kind in slices for name in acceptable(state, kind.need)}))
        for kind in slices:
            for name in acceptable(state, kind.need):
                if name in board.rows:
                    self.program.add_entry(board.rows[name], self._spot(kind, host, (state,), name), 1)
        for kind in fit:
            need = kind.need
            if need.isolation == "shared" and state.refusal("shared", need.sharing) is None:
                self._share(board, host, kind)

    def _use(self, board: GpuColumns, mode: t.Literal["mig", "shared"]) -> int:
        """A column: the GPU is used so."""
        column = self.program.add_column(1, whole=True)
        self.program.add_entry(board.once, column, 1)
        self._cost_of(board.state, column, mode)
        return column

    def _cost_of(self, state: GpuState, column: int, mode: t.Literal["mig", "shared", "whole"]) -> None:
        if not state.in_use:
            self._opened.append((column, 1))
        if state.mode is None and state.changes_mode(mode):
            self._changed.append((column, 1))

    def _cuts(self, board: GpuColumns, names: Sequence[str]) -> None:
        state = board.state
        if state.cutter is None or not names:
            return
        stock, free = (state.spare, state.reusable) if state.gpu.fixed else (None, None)
        for counts in additions(state.cutter, state.fixed, tuple(names), stock, free):
            column = self._use(board, "mig")
            board.cuts.append((column, counts))
            for name, count in counts:
                if name not in board.rows:
                    board.rows[name] = self.program.add_row(upper=0)
                self.program.add_entry(board.rows[name], column, -count)

    def _share(self, board: GpuColumns, host: HostState, kind: Kind) -> None:
        """A share of the GPU: as much memory and compute as is left of it, for as many sharers as may be."""
        state, need, program = board.state, kind.need, self.program
        if state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is not None:
            return
        if need.sharing not in board.shares:
            board.shares[need.sharing] = self._use(board, "shared")
            most = state.host.most_sharers(state.gpu, need.sharing)
            for what, much in (("memory", state.memory_free), ("compute", state.compute_free), ("clients", most - len(state.tenants))):
                row = board.rows[f"{need.sharing} {what}"] = program.add_row(upper=0)
                program.add_entry(row, board.shares[need.sharing], -much)
        column = self._spot(kind, host, (state,), None)
        for what, much in (("memory", need.memory_mib), ("compute", need.compute or 0), ("clients", 1)):
            program.add_entry(board.rows[f"{need.sharing} {what}"], column, much)

    def _wholes(self, host: HostState, kind: Kind) -> None:
        """Each set of GPUs of one board that a replica could have."""
        need = kind.need
        boards: dict[str, list[GpuState]] = defaultdict(list)
        for state in host.gpus:
            if state.refusal("whole") is None and state.serves(need) and state.gpu.memory_mib >= need.memory_mib:
                boards[state.gpu.board].append(state)
        wired = any(state.gpu.links for state in host.gpus)
        for states in boards.values():
            sets = _sets(states, need.count)
            self.too_large |= len(sets) > MOST_SETS
            for each in sets:
                if must_join(need) and joined(each) is not True:
                    continue
                column = self._spot(kind, host, each, None)
                for state in each:
                    self.program.add_entry(self.boards[state.gpu.uuid].once, column, 1)
                    self._cost_of(state, column, "whole")
                if wired and need.count > 1 and apart([state.gpu for state in each]):
                    self._loose.append((column, 1))

    def _spot(self, kind: Kind, host: HostState, states: tuple[GpuState, ...], profile: str | None) -> int:
        column = self.program.add_column(1 if kind.need.isolation == "exclusive" else len(kind.members), whole=True)
        self.spots.append(Spot(column, kind, host, states, profile))
        return column

    # Hosts

    def _rows_of_host(self, host: HostState, spots: Sequence[Spot]) -> None:
        """CPU, memory and disk; ports by number, and how many others there are."""
        for what in _AMOUNTS:
            free = getattr(host.free, what)
            if free is not None:
                self.program.at_most(max(0, free), ((spot.column, getattr(spot.kind.need.resources, what) or 0) for spot in spots))
        asked: dict[int, _Takes] = defaultdict(list)
        any_: _Takes = []
        for spot in spots:
            for _name, port in spot.kind.need.ports:
                if port is None:
                    any_.append((spot.column, 1))
                else:
                    asked[port].append((spot.column, 1))
        for port, takes in sorted(asked.items()):
            self.program.at_most(float(host.port_refusal(port, "") is None), takes)
        had, asked_for = self._had[host.host.name], self._fleet.asked
        free = [
            port for port in host.host.ports
            if port not in host.ports and (port in had or (port not in asked_for and port not in host.host.listening))
        ]  # fmt: skip
        self.program.at_most(len(free), any_)

    def _rows_of_rules(self, host: HostState, spots: Sequence[Spot]) -> None:
        """How many of a service a host or a GPU may have, who is never beside whom, and who only beside others."""
        there: dict[str, _Takes] = defaultdict(list)
        needs = {spot.kind.need.service: spot.kind.need for spot in spots}
        on_gpu: dict[tuple[str, str], _Takes] = defaultdict(list)
        for spot in spots:
            there[spot.kind.need.service].append((spot.column, 1))
            for state in spot.states:
                on_gpu[spot.kind.need.service, state.gpu.uuid].append((spot.column, 1))
        for service, need in sorted(needs.items()):
            if need.rules.max_per_host is not None:
                self.program.at_most(need.rules.max_per_host - host.replicas.get(service, 0), there[service])
            if need.rules.together and not any(host.replicas.get(other, 0) > 0 for other in need.rules.together):
                beside = [column for other in need.rules.together for column, _one in there.get(other, ())]
                self.program.at_most(0, [*there[service], *((column, -need.replicas) for column in beside)])
            for other in self._fleet.rulebook.apart(need):
                if service < other and other in there:
                    self._not_both((there[service], need.replicas), (there[other], needs[other].replicas))
        for (service, uuid), takes in sorted(on_gpu.items()):
            most = needs[service].rules.max_per_gpu
            if most is not None:
                self.program.at_most(most - host.by_uuid[uuid].replicas.get(service, 0), takes)

    def _not_both(self, one: tuple[_Takes, int], other: tuple[_Takes, int]) -> None:
        """Either some of the one or some of the other; ``one``: its columns, and their most."""
        which = self.program.add_column(1, whole=True)
        self.program.at_most(0, [*one[0], (which, -one[1])])
        self.program.at_most(other[1], [*other[0], (which, other[1])])

    def _crowds(self, host: HostState, spots: Sequence[Spot]) -> None:
        """Pairs of replicas that are together although their service wishes them apart: the second makes one, the third two more."""
        crowds: dict[tuple[int, str, str], tuple[int, list[int]]] = {}
        for spot in spots:
            need = spot.kind.need
            if need.replicas == 1:  # one of a kind of several services, none of which has a second
                continue
            if need.rules.spread == "host":
                crowds.setdefault((0, need.service, ""), (host.replicas.get(need.service, 0), []))[1].append(spot.column)
            if need.rules.spread in ("host", "gpu"):
                for state in spot.states:
                    here = state.replicas.get(need.service, 0)
                    crowds.setdefault((1, need.service, state.gpu.uuid), (here, []))[1].append(spot.column)
        most = {spot.kind.need.service: len(spot.kind.members) for spot in spots}
        for (which, service, _where), (here, columns) in crowds.items():
            if here + most[service] < 2:
                continue
            row = self.program.add_row(upper=0)
            self.program.add_entries(row, columns, 1.0)
            for already in range(here, here + most[service]):
                step = self.program.add_column(1)
                self.program.add_entry(row, step, -1)
                if already:
                    self._pairs[which].append((step, already))

    # The fleet

    def _rows_of_kinds(self) -> None:
        """Nobody has two places, whoever must have one has it, and all of a service have one or none of them has."""
        for kind in self.kinds:
            columns = [spot.column for spot in self._of_kind[id(kind)]]
            least = sum((need.service, replica) in self._must for need, replica in kind.members)
            row = self.program.add_row(lower=least, upper=len(kind.members))
            self.program.add_entries(row, columns, 1.0)
            if kind.need.rules.all_or_nothing:
                row = self.program.add_row(lower=0, upper=0)
                self.program.add_entries(row, columns, 1.0)
                self.program.add_entry(row, self.program.add_column(1, whole=True), -len(kind.members))

    def _charged(self) -> dict[str, list[tuple[int, Charge]]]:
        found: dict[str, list[tuple[int, Charge]]] = defaultdict(list)
        for spot in self.spots:
            need, state = spot.kind.need, spot.states[0]
            if not self._fleet.books.limited(need.team):
                continue
            if spot.profile is not None:
                charge = state.slice_charge(spot.profile)
            elif need.isolation == "exclusive":
                charge = whole_charge((each.gpu.board, each.gpu.counted_mib) for each in spot.states)
            else:
                charge = share_charge(state.gpu.board, need.memory_mib)
            found[need.team].append((spot.column, charge))
        return found

    # Solving

    def solved(self, there: Mapping[Key, Placement], proven: bool, all_of_it: bool) -> Together:
        """Priority by priority as many as can be; then what else makes a plan a better one, aim by aim."""
        known = self._known(there)
        reached = Counter(need.priority for kind in self.kinds for need, replica in kind.members if (need.service, replica) in there)
        most: dict[int, int] = {}
        better, found, small = False, known, self.program.columns <= MANY_COLUMNS
        for priority in sorted({kind.need.priority for kind in self.kinds}, reverse=True):
            columns = [(spot.column, -1.0) for spot in self.spots if spot.kind.need.priority == priority]
            everybody = sum(len(kind.members) for kind in self.kinds if kind.need.priority == priority)
            most[priority] = served = reached[priority] if columns else 0
            if columns and not proven and (better or served < everybody):
                best = self._best(columns, found) if small else self._most(columns, found, known)
                found = _solution(best)
                served = round(-_sum(dict(columns), found))
                most[priority] = int(_BLUR - best.bound / (1 if small else self._one))
                better |= served > reached[priority]
                if served < most[priority] and not small:
                    break
            self.program.at_most(-served, columns)
        if not (better or (all_of_it and small)):
            return Together({}, most, None, better=False, small=False)
        found = self._aims(found) if small else found
        return Together(places(self.boards, self.spots, found), most, None, better=True, small=False)

    def _most(self, columns: _Takes, found: _Values, known: Iterable[int]) -> Outcome:
        """As many as can be. ``known``: where others have been placed well; who is there too is worth a little."""
        there = {spot.column for spot in self.spots}.intersection(known)
        aim = [*((column, much * self._one) for column, much in columns), *((column, -1.0) for column in sorted(there))]
        return self._best(aim, found, replace(_WORK, absolute=0.99 * self._one - self._members, nodes=1))

    def _aims(self, found: _Values) -> _Values:
        """What else makes a plan a better one, as docs/planner.md has it, one aim after the other."""
        aims = [aim for aim in (*self._pairs, self._loose, self._opened, self._changed) if aim]
        while aims and self._work <= MOST_WORK:
            costs = _added(aims.pop(0))
            if len(found) < self.program.columns or _sum(costs, found) > _BLUR:
                found = _solution(self._best(costs.items(), found))
            self.program.at_most(round(_sum(costs, found)), costs.items())
        if aims or len(found) < self.program.columns:
            # All at once, and about: whole plans are compared afterwards, and the better one stands.
            weighed = [(column, much * (len(aims) - turn)) for turn, aim in enumerate(aims) for column, much in aim]
            found = _solution(self._best(weighed, found, _ABOUT))
        return found

    def _best(self, aim: Iterable[tuple[int, float]], start: _Values, limits: Limits = _WORK) -> Outcome:
        self.program.set_cost(_added(aim))
        found = self.program.solve(limits, start=start)
        self._work += found.iterations
        return found

    def _known(self, there: Mapping[Key, Placement]) -> _Values:
        """The places that are there as values of columns; one on a larger slice than it has to have counts as one on the least."""
        able: dict[tuple[int, tuple[str, ...]], list[Spot]] = defaultdict(list)
        for spot in self.spots:
            able[id(spot.kind), tuple(sorted(state.gpu.uuid for state in spot.states))].append(spot)
        known: Counter[int] = Counter()
        slices: dict[str, Counter[str]] = defaultdict(Counter)
        for kind in self.kinds:
            for place in (there.get((need.service, replica)) for need, replica in kind.members):
                spots = able.get((id(kind), tuple(sorted(place.gpus)))) if place is not None else None
                if not place or not spots:
                    continue
                wanted = None if place.slice is None else place.slice.profile
                there_now = next((each for each in spots if each.profile == wanted), spots[0])
                known[there_now.column] += 1
                if there_now.profile is not None:
                    slices[place.gpus[0]][there_now.profile] += 1
                elif place.mode == "shared":
                    known[self.boards[place.gpus[0]].shares[place.sharing]] = 1
        for uuid, several in slices.items():
            cut = next((column for column, counts in self.boards[uuid].cuts if several <= Counter(dict(counts))), None)
            if cut is not None:
                known[cut] = 1
        return dict(known)


def _solution(found: Outcome) -> _Values:
    return dict(enumerate(found.values.tolist()))


def _sum(costs: Mapping[int, float], found: _Values) -> float:
    return sum(found[column] * much for column, much in costs.items())


def _added(takes: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Costs of one column added up."""
    found: dict[int, float] = defaultdict(float)
    for column, much in takes:
        found[column] += much
    return found


def _may_have(host: HostState, need: Need) -> bool:
    """May the host have a replica, whoever else comes?"""
    if not host.host.admits(need) or not host.free.holds(need.resources):
        return False
    return host.rule_refusal(need, together=False) is None


def _counts_alone(fleet: Fleet, need: Need) -> bool:
    """Does a rule or a wish tell replicas of this service from others that ask for the same?"""
    return need.replicas > 1 or need.rules.all_or_nothing or fleet.rulebook.alone(need) or need.service in fleet.rulebook.anchors
