# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the whole-fleet solver by themselves: the best shared GPU, what is dealt and filled in, and a program that stays open."""

from __future__ import annotations

import itertools
import random
import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_expansion, fleet_rounding
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_balance import Limits, balance
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board, Shape, smallest_profiles
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_cuts import most_of_teams
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import Dealer
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_filling import Filling
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetModel, read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import _whole_patterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_seats import Codes, Seats
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Program, Session, SolverError
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A100
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(1, 9))


def shared_board(room: tuple[int, int], sizes: list[tuple[int, int, int]], clients: int = 48) -> Board:
    board = Board(FleetModel("x", 1000), ("shared",), clients, 0)
    board.shapes = [Shape("shared", "", memory, compute, memory, 0.1) for memory, compute, _price in sizes]
    board.room, board.at_once = room, [99] * len(sizes)
    return board


@settings(max_examples=25, deadline=None)
@given(
    room=st.tuples(st.integers(1, 9), st.integers(1, 6)),
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    most=st.integers(1, 4),
    many=st.integers(1, 70),
)
def test_the_best_shared_gpu_is_the_best_at_all_prices(
    room: tuple[int, int], sizes: list[tuple[int, int, int]], most: int, many: int
) -> None:
    """Each of many prices that are asked for at once has its own answer; what costs nothing is in none."""
    board = shared_board(room, sizes)
    first = np.asarray([float(price) for _memory, _compute, price in sizes])
    prices = np.asarray([np.roll(first, number) * (number % 3) for number in range(many)])
    fitting = [
        counts
        for counts in itertools.product(range(most + 1), repeat=len(sizes))
        if all(sum(size[part] * count for size, count in zip(sizes, counts, strict=True)) <= room[part] for part in (0, 1))
    ]
    worth, patterns = board.best_shared(prices, [most] * len(sizes))
    for row, told, pattern in zip(prices, worth, patterns, strict=True):
        best = max(float(np.asarray(counts) @ row) for counts in fitting)
        assert told == best
        assert pattern @ row == best
        assert tuple(pattern.tolist()) in fitting
        assert not pattern[row == 0].any()


def test_varied_patterns_are_full_gpus_and_many() -> None:
    board = shared_board((12, 10), [(1, 2, 1), (2, 1, 1), (3, 3, 1), (5, 1, 1), (1, 5, 1)])
    found = board.varied(40)
    assert len(found) == len({tuple(each) for each in found.tolist()}) > 8
    sizes = np.asarray([shape[2:4] for shape in board.shapes])
    left = np.asarray(board.room) - found @ sizes
    assert (left >= 0).all()
    assert not (left[:, None, :] >= sizes).all(axis=2).any()
    assert board.varied(40).tolist() == found.tolist()


def test_where_clients_are_limited_the_bound_is_that_of_the_dearest_and_the_cheapest_are_dropped() -> None:
    (worth,), (pattern,) = shared_board((10, 10), [(1, 1, 2), (2, 1, 5)], clients=3).best_shared(np.asarray([[2.0, 5.0]]), None)
    assert worth == 15
    assert pattern.sum() == 3


def test_the_smallest_profile_serves_and_a_double_memory_one_stands_for_two_slices() -> None:
    def names(memory: int, compute: float, profile: str | None = None) -> list[str]:
        one = FleetClass("x", "t", 1, 1, "slice", memory, compute, profile=profile)
        return [each.name for each in smallest_profiles(A100, one)]

    assert names(4_000, 0) == ["1g.10gb"]
    assert names(15_000, 0) == ["1g.20gb"]
    assert names(15_000, 2 / 7) == ["2g.20gb"]
    assert names(4_000, 0, "3g.40gb") == ["3g.40gb"]
    assert names(90_000, 0) == []


@pytest.mark.parametrize("board", ["a100-sxm4-80gb", "h100-sxm5-80gb", "a30"])
def test_a_profile_has_enough_compute_for_the_whole_fleet_where_it_has_for_the_planner(board: str) -> None:
    """By SMs, of which a slice may have fewer than its part of the compute slices: 16 of 132 of an H100."""
    geometry = door.catalogue().of_board(board)
    assert geometry is not None
    cutter = Cutter(geometry)
    for percent in range(1, 101):
        one = FleetClass("x", "t", 1, 1, "slice", 0, percent / 100)
        enough = cutter.smallest(cutter.acceptable(0, percent / 100, None))
        assert [each.name for each in smallest_profiles(cutter.geometry, one)] == list(enough)


@pytest.mark.parametrize(
    ("quota", "held", "most"),
    [
        pytest.param(10 * 10 - 1, None, {0: 9}, id="the high ones alone leave room for nine and a part"),
        pytest.param(10 * 10 + 40 * 3 - 1, 10, {0: 2}, id="with all of the high ones, two and a part of the low"),
        pytest.param(10 * 10 + 40 * 3 - 1, 9, {0: 3}, id="one fewer of the high ones is elsewhere, perhaps"),
        pytest.param(10 * 10 + 40 * 9, 10, {}, id="room for all"),
    ],
)
def test_what_a_quota_has_room_for_is_counted_in_whole_replicas(quota: int, held: int | None, most: dict[int, int]) -> None:
    hosts = [{"name": "a", "model": "a100-80", "gpus": 62, "cpus": 999, "ram_mib": 1 << 20}]
    classes = [
        {
            "key": key,
            "team": "t",
            "priority": priority,
            "replicas": replicas,
            "isolation": "slice",
            "memory_mib": gib << 10,
            "compute": compute,
        }
        for key, priority, replicas, gib, compute in (("high", 2, 10, 9, 0.0), ("low", 1, 9, 39, 0.4))
    ]
    asked = {"models": models(), "hosts": hosts, "classes": classes, "quotas": [{"team": "t", "memory_mib": quota << 10}]}
    options = options_of(read_problem(asked))
    assert most_of_teams(options, 2 if held is None else 1, {} if held is None else {2: held}) == most


@settings(max_examples=25, deadline=None)
@given(costs=st.lists(st.integers(-9, 9), min_size=2, max_size=6), room=st.integers(1, 20))
def test_an_open_program_ends_where_a_fresh_one_does(costs: list[int], room: int) -> None:
    """Columns come one by one, each solved from where the last one ended."""
    begun = Program()
    begun.add_rows(2, upper=[room, 7.0])
    session = Session(begun)
    whole = Program()
    rows = whole.add_rows(2, upper=[room, 7.0])
    for number, cost in enumerate(costs):
        value = np.asarray([1.0 + number % 3, 2.0])
        session.add_columns(np.asarray([float(cost)]), np.asarray([5.0]), (np.asarray([0, 1]), np.zeros(2, dtype=int), value))
        whole.add_entries(rows, whole.add_columns(1, cost, upper=5.0), value)
        assert abs(session.solve().objective - whole.solve().objective) < 1e-6


@pytest.mark.parametrize(("interior", "long"), [(True, 99), (False, 99), (False, 0)])
def test_an_open_program_has_the_same_best_by_interior_points(interior: bool, long: int) -> None:
    """Also where the simplex method had too long a way, in a copy of it too."""
    begun = Program()
    begun.add_rows(2, upper=[8.0, 9.0])
    session = Session(begun)
    session.long = long
    for cost in (-1.0, -3.0):
        session.add_columns(np.asarray([cost]), np.asarray([5.0]), (np.asarray([0, 1]), np.zeros(2, dtype=int), np.asarray([1.0, -cost])))
    assert session.solve(interior=interior).objective == pytest.approx(-9.0)
    session.set_row(1, -np.inf, 3.0)
    assert session.copy().solve().objective == pytest.approx(-3.0)
    assert session.solve().objective == pytest.approx(-3.0)


@settings(max_examples=25, deadline=None)
@given(
    costs=st.lists(st.integers(-9, 9), min_size=2, max_size=6, unique=True),
    room=st.integers(1, 20),
    seed=st.integers(0, 99),
    known=st.integers(1, 6),
)
def test_an_open_program_that_begins_where_another_ended_ends_at_its_own_best(costs: list[int], room: int, seed: int, known: int) -> None:
    """The other one has some of the columns, in another order, and not the last row. What is undone leaves the best as it was."""

    def column(session: Session, number: int) -> None:
        value = np.asarray([1.0 + number % 3, 2.0])
        session.add_columns(np.asarray([float(costs[number])]), np.asarray([5.0]), (np.asarray([0, 1]), np.zeros(2, dtype=int), value))

    program = Program()
    program.add_rows(2, upper=[room, 7.0])
    order = random.Random(seed).sample(range(len(costs)), min(known, len(costs)))
    other, one, fresh = Session(program), Session(program), Session(program)
    for number in order:
        column(other, number)
    other.solve()
    for session in (one, fresh):
        for number in range(len(costs)):
            column(session, number)
        session.add_row(2.5, np.arange(len(costs)), np.ones(len(costs)))
    where = np.asarray([order.index(number) if number in order else -1 for number in range(len(costs))])
    one.begin(other, where)
    assert one.solve().objective == pytest.approx(fresh.solve().objective, abs=1e-6)
    one.begin(other, where)()
    assert one.solve().objective == pytest.approx(fresh.solve().objective, abs=1e-6)


def test_an_open_program_goes_on_where_it_was_before_it_was_lent_another_place() -> None:
    """Twenty columns are raised as far as they go; the other program, to which they are dear, leaves them at nothing."""
    program = Program()
    program.add_rows(20, upper=3.0)
    one, other = Session(program), Session(program)
    for session, cost in ((one, -1.0), (other, 1.0)):
        rows = np.arange(20)
        session.add_columns(np.full(20, cost), np.full(20, 5.0), (rows, rows, np.ones(20)))
        session.solve()
    back = one.begin(other, np.arange(20))
    with pytest.raises(SolverError):
        one.solve(iterations=1)
    back()
    assert one.solve(iterations=1).objective == pytest.approx(-60.0)


def test_gpus_are_cut_so_that_who_must_be_spread_finds_hosts() -> None:
    """One GPU has room for all seven, of which a host may have one."""
    patterns = np.asarray([[7, 0], [1, 1]])
    assert _whole_patterns(patterns, np.asarray([7, 0]), [], 9).boards.sum() == 1
    spread = _whole_patterns(patterns, np.asarray([7, 0]), [(7, np.minimum(patterns[:, 0], 1))], 9)
    assert spread.boards.sum() == 7


def test_many_gpus_are_cut_near_the_linear_program_as_well_as_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are no whole numbers so near."""
    chance = random.Random(1)
    for _case in range(10):
        patterns = np.asarray([[chance.randint(0, 4) for _shape in range(4)] for _pattern in range(12)])
        wanted = np.asarray([chance.randint(500, 3_000) for _shape in range(4)])
        spread = [(int(wanted[0]), np.minimum(patterns[:, 0], 1))]
        found = []
        for many, near in ((1_000, 3), (1_000, -1), (10**6, 3)):
            monkeypatch.setattr(fleet_rounding, "MANY_GPUS", many)
            monkeypatch.setattr(fleet_rounding, "NEAR", near)
            found.append(_whole_patterns(patterns, wanted, spread, 20_000))
        near_by, not_there, anywhere = (int(each.boards.sum()) for each in found)
        assert near_by <= not_there == anywhere
        assert all((each.boards @ each.patterns >= wanted).all() for each in found)


def two_hosts(gpus: int) -> list[dict[str, t.Any]]:
    return [
        {"name": name, "model": "t4-16", "gpus": gpus, "cpus": 8, "ram_mib": 1 << 20, "modes": ("shared", "whole"), "clients": 4}
        for name in "ab"
    ]


def seated(
    classes: list[dict[str, t.Any]], places: list[tuple[str, int, int]], gpus: int = 2, quota: int | None = None
) -> tuple[Filling, Seats]:
    """Two hosts with shared GPUs, and the replicas at these ``places``: (class, host, GPU)."""
    base = {"team": "t", "priority": 1, "isolation": "shared", "cpus": 1.0}
    asked = {"models": models(), "hosts": two_hosts(gpus), "classes": [{**base, **one} for one in classes]}
    options = options_of(read_problem({**asked, "quotas": [{"team": "t", "memory_mib": quota}]}))
    seats = Seats(options, 0, None, Codes(options.boards[0]))
    keys = [one.key for one in options.classes]
    for key, host, gpu in places:
        klass = keys.index(key)
        shape = int(options.shape[options.klass == klass][0])
        seats.add(*(np.asarray([each]) for each in (klass, shape, host, 1 << gpu)))
    return Filling(options, [seats]), seats


def test_replicas_left_over_open_no_more_gpus_than_they_need() -> None:
    filling, seats = seated([{"key": "many", "replicas": 5, "memory_mib": 3 * 1024}], [])
    filling.fill()
    assert len(seats.present()) == 5
    assert int((~seats.room.empty).sum()) == 2


@pytest.mark.parametrize("planned", [True, False])
def test_who_lost_a_planned_place_comes_before_others_of_its_team(planned: bool) -> None:
    """The quota has room for one more; by size alone the small one would have it."""
    classes: list[dict[str, t.Any]] = [
        {"key": "large", "replicas": 2, "memory_mib": 5 * 1024},
        {"key": "small", "replicas": 1, "memory_mib": 3 * 1024},
    ]
    filling, seats = seated(classes, [("large", 0, 0)], quota=10 * 1024)
    filling.fill(np.asarray([2, 0]) if planned else None)
    assert np.bincount(seats.klass[seats.present()], minlength=2).tolist() == ([2, 0] if planned else [1, 1])


def test_places_are_evened_out_between_hosts() -> None:
    """Of a class with at most two on a host, the second GPU with two places is of no use: it changes places with one of the other host."""
    classes = [
        {"key": key, "team": "t", "priority": 1, "isolation": "shared", "replicas": 4, "memory_mib": 5 * 1024, "max_per_host": limit}
        for key, limit in (("some", 2), ("other", 1))
    ]
    dealer = Dealer(options_of(read_problem({"models": models(), "hosts": two_hosts(3), "classes": classes})), 0)
    # Both classes have the one shape there is: two and one of a host are three places.
    dealer.slots[:, :, 0] = [[2, 2, 1], [0, 0, 1]]
    dealer.total = dealer.slots.sum(axis=1)
    dealer._even_out(np.asarray([0, 1]), np.asarray([0, 0]), np.asarray([4, 2]), np.ones((2, 3), dtype=bool))
    assert dealer.slots.sum(axis=(1, 2)).tolist() == [3, 3]
    assert dealer.total.tolist() == dealer.slots.sum(axis=1).tolist()
    # The last GPU of a host belongs to a replica with several GPUs: it stays as it is.
    dealer.slots[:, :, 0] = [[0, 2, 2], [0, 0, 0]]
    dealer.total = dealer.slots.sum(axis=1)
    dealer._even_out(np.asarray([0]), np.asarray([0]), np.asarray([4]), np.arange(3)[None, :] < np.asarray([[1], [1]]))
    assert dealer.slots[:, :, 0].tolist() == [[0, 2, 2], [0, 0, 0]]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), hosts=st.integers(2, 9), gpus=st.integers(1, 5), shapes=st.integers(1, 4))
def test_gpus_change_hosts_until_each_has_its_part(seed: int, hosts: int, gpus: int, shapes: int) -> None:
    """Nothing is lost, what is not usable stays, no more is over a limit, and hosts are no farther from the mean than they were."""
    rng = np.random.default_rng(seed)
    slots, need = rng.integers(0, 4, (hosts, gpus, shapes)), rng.uniform(0, 1, (shapes, 2))
    usable = rng.random((hosts, gpus)) < 0.8
    limits = Limits(rng.integers(0, shapes, 2), rng.integers(1, 4, 2))
    before, load = slots.copy(), slots @ need
    mean = load.sum(axis=(0, 1)) / hosts
    left = mean - load.sum(axis=1)
    was = (left**2).sum()
    over = np.maximum(0, slots.sum(axis=1)[:, limits.kinds] - limits.most).sum(axis=0)
    balance(slots, load, left, usable, limits)
    assert sorted(map(tuple, slots.reshape(-1, shapes).tolist())) == sorted(map(tuple, before.reshape(-1, shapes).tolist()))
    assert (slots[~usable] == before[~usable]).all()
    assert np.allclose(load, slots @ need)
    assert np.allclose(left, mean - load.sum(axis=1))
    assert (left**2).sum() <= was + 1e-9
    assert (np.maximum(0, slots.sum(axis=1)[:, limits.kinds] - limits.most).sum(axis=0) <= over).all()


def test_two_heavy_gpus_of_one_host_are_parted() -> None:
    slots = np.asarray([[[2], [2]], [[0], [0]]])
    load = slots @ np.asarray([[1.0, 1.0]])
    left = np.asarray([[-2.0, -2.0], [2.0, 2.0]])
    balance(slots, load, left, np.ones((2, 2), dtype=bool), Limits(np.asarray([0]), np.asarray([4])))
    assert slots.sum(axis=(1, 2)).tolist() == [2, 2]
    assert not left.any()


def test_gpus_change_hosts_with_their_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host a has both GPUs of the heavy class, of which a host may have two: one of each goes to the other host."""
    monkeypatch.setattr(fleet_expansion, "LITTLE", 0.0)
    classes = [
        {
            "key": key,
            "team": "t",
            "priority": 1,
            "isolation": "shared",
            "replicas": 4,
            "memory_mib": size * 1024,
            "ram_mib": ram * 1024,
            **limit,
        }
        for key, size, ram, limit in (("heavy", 5, 300, {"max_per_host": 2}), ("light", 6, 2, {}))
    ]
    hosts = [{**each, "ram_mib": 700 * 1024} for each in two_hosts(2)]
    options = options_of(read_problem({"models": models(), "hosts": hosts, "classes": classes}))
    dealer = Dealer(options, 0)
    heavy, light = (int(options.shape[np.flatnonzero(options.klass == one)[0]]) for one in (0, 1))
    dealer.slots[0, :, heavy] = 2
    dealer.slots[1, :, light] = 1
    dealer.left = dealer.left - [[4.0, 1200.0], [2.0, 4.0]]
    need, of = np.asarray([[1.0, 300.0], [1.0, 2.0]]), np.asarray([0, 0, 0, 0, 1, 1])
    at, kinds = dealer._settled(
        np.asarray([0, 0, 0, 0, 1, 1]), of, np.asarray([heavy, light]), need, np.asarray([2, 99]), np.ones((2, 2), dtype=bool)
    )
    assert sorted(zip(at.tolist(), kinds.tolist(), strict=True)) == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0), (1, 1)]
    assert dealer.slots[:, :, heavy].sum(axis=1).tolist() == [2, 2]
    assert dealer.left[:, 1].tolist() == [dealer.group.ram - 602.0] * 2


@pytest.mark.parametrize(("limit", "opened"), [(4, 2), (1, 3)])
def test_another_replica_makes_way_for_one_that_may_not_join_its_own_class(limit: int, opened: int) -> None:
    """Host a has a place left but has its replica of "spread"; host b is full of "plain": one may go to a where its limit allows."""
    classes: list[dict[str, t.Any]] = [
        {"key": "plain", "replicas": 4, "memory_mib": 5 * 1024, "max_per_host": limit + 2},
        {"key": "spread", "replicas": 2, "memory_mib": 5 * 1024, "max_per_host": 1},
    ]
    places = [("spread", 0, 0), ("plain", 0, 0), *[("plain", 1, 0)] * 3]
    if limit == 1:
        classes[0]["max_per_host"] = 1
    filling, seats = seated(classes, places)
    filling.fill()
    assert len(seats.present()) == 6
    assert int((~seats.room.empty).sum()) == opened
    assert (seats.room.left >= 0).all()
    assert seats.held(1).tolist() == [1, 1]


@pytest.mark.parametrize(("small", "served"), [(2.0, 4), (5.0, 3)])
def test_one_replica_goes_to_another_host_so_that_one_who_waits_has_the_cpus(small: float, served: int) -> None:
    """Each host has 3 of its 8 CPUs left and 4 are asked for; a replica of 2 goes to the other host, one of 5 has no room there."""
    classes: list[dict[str, t.Any]] = [
        {"key": "large", "replicas": 1, "memory_mib": 1024, "cpus": 5.0},
        {"key": "other", "replicas": 1, "memory_mib": 1024, "cpus": 5.0 - small},
        {"key": "small", "replicas": 1, "memory_mib": 1024, "cpus": small},
        {"key": "wide", "replicas": 1, "memory_mib": 1024, "cpus": 4.0},
    ]
    filling, seats = seated(classes, [("small", 0, 0), ("other", 0, 0), ("large", 1, 0)], gpus=1)
    filling.fill()
    assert len(seats.present()) == served
    assert (seats.room.left >= 0).all()
    assert int((~seats.room.empty).sum()) == 2
    assert filling.waiting.sum() == 4 - served


def held_by_two(places: dict[str, tuple[int, int, float, float]], waits: dict[str, t.Any], gpus: int) -> tuple[Filling, Seats]:
    """Two hosts of 8 CPUs with replicas, (host, GPU, CPUs, GiB) by class, and one that ``waits``."""
    classes: list[dict[str, t.Any]] = [
        {"key": key, "replicas": 1, "cpus": cpus, "memory_mib": int(memory * 1024)} for key, (_host, _gpu, cpus, memory) in places.items()
    ]
    return seated([*classes, {"replicas": 1, **waits}], [(key, host, gpu) for key, (host, gpu, _cpus, _gib) in places.items()], gpus)


@pytest.mark.parametrize(
    ("places", "gpus"),
    [
        pytest.param({"heavy": (0, 0, 3.0, 1), "x": (0, 0, 2.5, 3), "light": (1, 0, 2.5, 1), "y": (1, 0, 5.0, 4)}, 1, id="one for one"),
        pytest.param(
            {
                "much": (0, 0, 3.5, 1),
                "few": (0, 0, 1.0, 2),
                "x": (0, 0, 1.0, 3),
                "less": (1, 0, 2.0, 1),
                "more": (1, 0, 2.0, 2),
                "y": (1, 0, 3.5, 4),
            },
            1,
            id="two for two",
        ),
        pytest.param(
            {
                "heavy": (0, 0, 3.0, 14),
                "x": (0, 1, 2.5, 1),
                "light": (1, 0, 2.5, 13.5),
                "y": (1, 1, 2.5, 14.5),
                "z": (1, 2, 2.5, 14.25),
            },
            3,
            id="all of a GPU",
        ),
    ],
)
def test_cpus_left_on_two_hosts_are_gathered_on_the_one_with_a_place(places: dict[str, t.Any], gpus: int) -> None:
    """Host a has 2.5 CPUs left and host b half a one; 3 are asked for."""
    filling, seats = held_by_two(places, {"key": "zz", "cpus": 3.0, "memory_mib": 2048}, gpus)
    before = int((~seats.room.empty).sum())
    assert seats.room.left[:, 0].tolist() == [2.5, 0.5]
    filling.fill()
    assert not filling.waiting.any()
    assert seats.room.left[:, 0].tolist() == [0.0, 0.0]
    assert int((~seats.room.empty).sum()) == before
    assert seats.held(len(places)).tolist() == [1, 0]


def test_exchanges_in_vain_leave_all_as_it_was() -> None:
    """The first exchange helps; no second one does."""
    places = {"heavy": (0, 0, 3.5, 1), "light": (1, 0, 3.0, 1), "x": (0, 0, 2.5, 3), "y": (1, 0, 3.5, 4)}
    filling, seats = held_by_two(places, {"key": "zz", "cpus": 3.5, "memory_mib": 2048}, 1)
    filling.fill()
    assert filling.waiting.sum() == 1
    assert seats.room.left[:, 0].tolist() == [2.0, 1.5]
    assert [seats.held(klass).tolist() for klass in range(4)] == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_no_exchange_brings_another_of_the_class_that_waits() -> None:
    """One for one would leave the CPUs, and a host with two of a class of which it may have one."""
    classes: list[dict[str, t.Any]] = [
        {"key": "heavy", "replicas": 1, "cpus": 3.0, "memory_mib": 1024},
        {"key": "spread", "replicas": 2, "cpus": 2.5, "memory_mib": 1024, "max_per_host": 1},
        {"key": "x", "replicas": 1, "cpus": 3.0, "memory_mib": 3072},
        {"key": "y", "replicas": 1, "cpus": 5.0, "memory_mib": 4096},
    ]
    filling, seats = seated(classes, [("heavy", 0, 0), ("x", 0, 0), ("spread", 1, 0), ("y", 1, 0)], gpus=1)
    filling.fill()
    assert seats.held(1).tolist() == [0, 1]
    assert filling.waiting.sum() == 1


def test_a_gpu_that_nobody_uses_goes_to_the_host_that_has_the_cpus_for_a_whole_one() -> None:
    """Host a has two CPUs left and a GPU; host b four, and two more when a has taken what is on one of its GPUs."""
    filling, seats = held_by_two(
        {"p": (0, 0, 6.0, 14), "q": (1, 0, 2.0, 13), "r": (1, 1, 2.0, 12)},
        {"key": "zz", "cpus": 4.5, "memory_mib": 1024, "isolation": "exclusive"},
        2,
    )
    filling.fill()
    assert not filling.waiting.any()
    assert seats.held(3).tolist() == [0, 1]
    assert (seats.room.left >= 0).all()
