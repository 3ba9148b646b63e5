# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slices that come and go one at a time: always a legal place, few moves that can be done in their order, within the budget."""

from __future__ import annotations

import random
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, legal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, patterns_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.repair import BUDGET, MOST_MOVES, Admission, Move
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.replan import Gpus, replan
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100
from hypothesis import given, settings
from hypothesis import strategies as st

LARGE, SMALL = patterns_of(A100, ()), patterns_of(A30)
SHARES = {"1g.10gb": 6.0, "1g.20gb": 2.0, "2g.20gb": 4.0, "3g.40gb": 3.0, "4g.40gb": 1.0}


class Mirror:
    """What stands where, told by the answers alone."""

    def __init__(self, fleet: Admission) -> None:
        self.fleet, patterns = fleet, fleet.patterns
        self.on = [set(patterns.slices_of(state)) for state in fleet.states]
        self.pinned = {(gpu, one) for gpu, state in enumerate(fleet.pinned) for one in patterns.slices_of(state)}

    def place(self, name: str) -> int | None:
        """How many moves a place took; None when there is none."""
        found = self.fleet.place(name)
        if found is None:
            return None
        self._move(found.moves)
        self._put(found.gpu, Slice(found.start, name))
        self._move(found.later)
        self._compare()
        return len(found.moves) + len(found.later)

    def remove(self, gpu: int, one: Slice) -> None:
        self.fleet.remove(gpu, one.profile, one.start)
        self.on[gpu].remove(one)
        self.pinned.discard((gpu, one))
        self._compare()

    def _move(self, moves: tuple[Move, ...]) -> None:
        for move in moves:
            old, new = Slice(move.old_start, move.profile), Slice(move.start, move.profile)
            assert (move.old_gpu, old) not in self.pinned
            # The new one stands before the old one goes.
            self._put(move.gpu, new)
            self.on[move.old_gpu].remove(old)

    def _put(self, gpu: int, one: Slice) -> None:
        assert one not in self.on[gpu]
        self.on[gpu].add(one)
        assert legal(self.fleet.patterns.geometry, sorted(self.on[gpu]))

    def _compare(self) -> None:
        assert [self.fleet.patterns.state_of(here) for here in self.on] == self.fleet.states


class InTurn(Mirror):
    """Slices have the numbers with which they came, and go by them."""

    def __init__(self, fleet: Admission) -> None:
        super().__init__(fleet)
        self.places: dict[int, tuple[int, Slice]] = {}

    def come(self, number: int, name: str) -> int | None:
        moves = self.place(name)
        if moves is not None:
            known = set(self.places.values())
            here = ((gpu, one) for gpu, slices in enumerate(self.on) for one in slices)
            self.places[number] = next(place for place in here if place not in known)
        return moves

    def leave(self, number: int) -> None:
        if number in self.places:
            self.remove(*self.places.pop(number))

    def _move(self, moves: tuple[Move, ...]) -> None:
        for move in moves:
            old = (move.old_gpu, Slice(move.old_start, move.profile))
            number = next((number for number, place in self.places.items() if place == old), None)
            super()._move((move,))
            if number is not None:
                self.places[number] = (move.gpu, Slice(move.start, move.profile))


def churn(fleet: Admission, names: t.Sequence[str], weights: t.Sequence[float], seed: int, steps: int, full: float) -> list[int | None]:
    """Slices come; before each, as many go by chance as it takes that a share of the compute slices is free."""
    draw, mirror, moves = random.Random(seed), Mirror(fleet), []
    patterns, room = fleet.patterns, (1 - full) * len(fleet.states) * fleet.patterns.geometry.compute_slices
    for _step in range(steps):
        standing = [(gpu, one) for gpu, here in enumerate(mirror.on) for one in sorted(here)]
        free = len(mirror.on) * patterns.geometry.compute_slices
        free -= sum(int(patterns.compute[patterns.number[one.profile]]) for _gpu, one in standing)
        while free < room:
            gpu, one = standing.pop(draw.randrange(len(standing)))
            mirror.remove(gpu, one)
            free += int(patterns.compute[patterns.number[one.profile]])
        moves.append(mirror.place(draw.choices(names, weights)[0]))
    return moves


@settings(max_examples=8, deadline=None)
@given(st.sampled_from((LARGE, SMALL)), st.integers(0, 10**6), st.floats(0.7, 1.0))
def test_whatever_comes_and_goes_stands_legally_and_the_budget_holds(patterns: Patterns, seed: int, full: float) -> None:
    draw = random.Random(seed)
    names = [profile.name for profile in patterns.profiles]
    weights = [draw.random() ** 2 for _name in names]
    states = draw.choices(patterns.states.tolist(), k=12)
    pinned = [state & draw.getrandbits(len(patterns.slots)) for state in states]
    moves = churn(Admission(patterns, states, pinned), names, weights, seed, 150, full)
    admitted = [one for one in moves if one is not None]
    assert max(admitted, default=0) <= MOST_MOVES
    for count in range(1, len(admitted) + 1):
        assert sum(admitted[:count]) <= BUDGET * count + 1e-6


def test_repairs_admit_more_than_no_moves() -> None:
    def admitted(budget: float) -> int:
        fleet = Admission(LARGE, [0] * 20, shares=SHARES, budget=budget)
        return sum(one is not None for one in churn(fleet, list(SHARES), list(SHARES.values()), 7, 500, 0.93))

    without, few = admitted(0.0), admitted(BUDGET)
    assert few > 1.02 * without


def test_lost_room_is_brought_back_when_places_are_short() -> None:
    later = []

    class Watched(Admission):
        def _tidied(self, most: int) -> tuple[Move, ...]:
            later.append(super()._tidied(most))
            return later[-1]

    churn(Watched(LARGE, [0] * 20, shares=SHARES, budget=1.0), list(SHARES), list(SHARES.values()), 7, 400, 0.93)
    assert any(later)
    assert not all(later)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(LARGE.states.tolist()), min_size=1, max_size=6), st.sampled_from([each.name for each in LARGE.profiles]))
def test_a_place_is_found_if_one_is_open_or_one_move_to_another_gpu_opens_one(states: list[int], name: str) -> None:
    best = replan(Gpus.of(LARGE, states), {name: 1}, cap=MOST_MOVES, goal="moves")
    found = Mirror(Admission(LARGE, states, budget=float(MOST_MOVES))).place(name)
    if best.unserved:
        assert found is None
    elif found is not None:
        assert found >= best.moves
        assert found == best.moves or best.moves > 1 or not found
    else:
        # A slice that would have to stand on its own GPU twice for a moment, or a chain that goes round in a circle.
        moved = [(old, new) for old, new in zip(best.shifts.old_gpu.tolist(), best.shifts.gpu.tolist(), strict=True) if old >= 0]
        assert best.moves > 1 or [old for old, _new in moved] == [new for _old, new in moved]


def test_small_slices_leave_free_where_a_large_one_loses_nothing() -> None:
    # A 3g at 0 takes four memory slices and three compute slices: beside what fits at 4 one compute slice is lost. A 3g at 4 loses nothing.
    fleet = Admission(LARGE, [0] * 4, shares={"1g.10gb": 4, "2g.20gb": 2, "3g.40gb": 1})
    places = [fleet.place(name) for name in ["1g.10gb", "2g.20gb", "1g.10gb"] * 4]
    assert all(one is not None and one.start < 4 for one in places)


@pytest.mark.parametrize(("budget", "moves"), [(0.0, 0), (21.0, 0), (200.0, 2)])
def test_moves_that_are_left_over_save_room_where_a_place_is_open(budget: float, moves: int) -> None:
    states = [LARGE.state_of([Slice(4, "1g.10gb"), Slice(5, "1g.10gb")])]
    fleet = Admission(LARGE, states, shares={"1g.10gb": 4, "3g.40gb": 1}, budget=budget)
    calm = Admission(LARGE, states, shares={"1g.10gb": 4, "3g.40gb": 1}, budget=budget).place("3g.40gb")
    assert calm is not None
    assert (calm.start, calm.moves) == (0, ())
    # Places are short.
    assert fleet.place("7g.80gb") is None
    found = fleet.place("3g.40gb")
    assert found is not None
    assert (found.start, len(found.moves)) == (4 if moves else 0, moves)
    assert all(move.start < 4 for move in found.moves)


def test_slices_that_leave_in_the_order_in_which_they_came_waste_little() -> None:
    # About one 3g comes for each GPU: where it stands at 0, a compute slice is lost. Each stays for so long that 96 % of the GPUs
    # are asked for. With places that lost more room, 23 were turned away.
    fleet = InTurn(Admission(LARGE, [0] * 40))
    draw, names, stay = random.Random(5), ("1g.10gb", "2g.20gb", "3g.40gb"), round(0.96 * 280 / 1.85)
    refused = 0
    for step in range(1_500):
        fleet.leave(step - stay)
        refused += fleet.come(step, draw.choices(names, (40, 35, 25))[0]) is None
    assert refused <= 16


def test_a_slice_goes_where_it_is_least_in_the_way() -> None:
    states = [0, LARGE.state_of([Slice(0, "4g.40gb"), Slice(4, "2g.20gb")])]
    found = Admission(LARGE, states, shares={"1g.10gb": 1, "7g.80gb": 1}).place("1g.10gb")
    assert found is not None
    assert (found.gpu, found.start, found.moves) == (1, 6, ())


def test_one_slice_makes_way_for_a_large_one_unless_it_is_pinned() -> None:
    states = [LARGE.state_of([Slice(2, "1g.10gb")]), LARGE.state_of([Slice(0, "4g.40gb"), Slice(4, "1g.20gb")])]
    found = Admission(LARGE, states, budget=1.0).place("7g.80gb")
    assert found is not None
    assert found.moves == (Move("1g.10gb", 0, 2, 1, 6),)
    assert Admission(LARGE, states, pinned=states, budget=1.0).place("7g.80gb") is None
    assert Admission(LARGE, states, budget=0.99).place("7g.80gb") is None


def test_a_chain_moves_its_last_slice_first() -> None:
    # For 7g the 2g must leave GPU 0, and for the 2g the 1g must leave its place on GPU 1: it may not go to GPU 0.
    states = [LARGE.state_of([Slice(0, "2g.20gb")]), LARGE.state_of([Slice(0, "4g.40gb"), Slice(5, "1g.10gb")])]
    found = Admission(LARGE, states, budget=2.0).place("7g.80gb")
    assert found is not None
    assert found.moves == (Move("1g.10gb", 1, 5, 1, 6), Move("2g.20gb", 0, 0, 1, 4))


def test_what_cannot_be() -> None:
    fleet = Admission(LARGE, [0])
    with pytest.raises(FleetError, match=r"no slice 1g\.10gb\+me is expected here"):
        Admission(LARGE, [0]).place("1g.10gb+me")
    with pytest.raises(FleetError, match=r"no MIG profile 5g\.50gb"):
        fleet.place("5g.50gb")
    for name, start in (("1g.10gb", 0), ("2g.20gb", 1)):
        with pytest.raises(FleetError, match=rf"no {name}@{start} on GPU 0"):
            fleet.remove(0, name, start)
    with pytest.raises(FleetError, match=r"GPU 1 is in no legal state"):
        Admission(LARGE, [0, 3])
    with pytest.raises(FleetError, match=r"no request has a weight"):
        Admission(LARGE, [0], shares={"1g.10gb": 0.0})
