# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shared GPU that is worth most where many sizes are asked for, and the units that it is divided into."""

from __future__ import annotations

import random
import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import knapsack
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_boards import Board
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetModel
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.knapsack import MANY, Item, Knapsack
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = st.tuples(st.integers(0, 7), st.integers(0, 5), st.integers(0, 4), st.integers(0, 40))


def best(room: tuple[int, int], items: list[Item], prices: list[float]) -> float:
    """The most that items are worth together, one after the other and copy by copy."""
    worth = {room: 0.0}
    for item, price in zip(items, prices, strict=True):
        for _copy in range(item.most if price > 0 else 0):
            for (memory, compute), value in list(worth.items()):
                left = memory - item.memory, compute - item.compute
                if min(left) >= 0:
                    worth[left] = max(worth.get(left, 0.0), value + price)
    return max(worth.values())


@settings(max_examples=60, deadline=None)
@given(room=st.tuples(st.integers(0, 12), st.integers(0, 9)), sizes=st.lists(SIZES, min_size=1, max_size=14), core=st.integers(1, 5))
def test_what_is_ruled_out_was_not_among_the_best(room: tuple[int, int], sizes: list[tuple[int, int, int, int]], core: int) -> None:
    items, prices = [Item(*size[:3]) for size in sizes], [float(size[3]) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knapsack, "MANY", 1)
        patch.setattr(knapsack, "CORE", core)
        (worth,), (counts,) = Knapsack(room, items).fullest(np.asarray([prices]))
    assert worth == pytest.approx(best(room, items, prices))
    assert counts @ prices == pytest.approx(worth)
    assert all(0 <= count <= item.most for count, item in zip(counts, items, strict=True))
    assert all(sum(count * item[part] for count, item in zip(counts, items, strict=True)) <= room[part] for part in (0, 1))


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
def test_of_hundreds_of_sizes_a_few_are_looked_at(noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all are worth what they take, so that none is ruled out; whoever has another price beside has its own answer."""
    chance = random.Random(1)
    room, seen = (40, 20), list[int]()
    items = [Item(chance.randint(2, 20), chance.randint(1, 10), chance.randint(1, 4)) for _item in range(MANY + 50)]
    prices = [item.memory / 80 + item.compute / 40 + noise * chance.random() / 10 for item in items]
    table = knapsack._fullest
    monkeypatch.setattr(knapsack, "_fullest", lambda room, items, prices: seen.append(len(items)) or table(room, items, prices))
    worth, counts = Knapsack(room, items).fullest(np.asarray([prices, [0.0] * len(items), prices]))
    assert worth == pytest.approx([best(room, items, prices), 0.0, best(room, items, prices)])
    assert counts[0].tolist() == counts[2].tolist()
    assert not counts[1].any()
    if noise:
        assert max(size for size in seen if size < len(items)) < MANY


def asked(memory_mib: int, compute: float = 0.05, **given: t.Any) -> FleetClass:
    return FleetClass("a", "t", 1, 1, **{"isolation": "shared", "memory_mib": memory_mib, "compute": compute, **given})


def divided(classes: list[FleetClass], memory_mib: int = 80 * 1024, modes: tuple[str, ...] = ("shared",)) -> Board:
    board = Board(FleetModel("m", memory_mib), modes, 16, 0)
    board.divide(classes)
    return board


@pytest.mark.parametrize(
    ("classes", "room"),
    [
        pytest.param([asked(512), asked(1024)], (160, 20), id="half GiB"),
        pytest.param([asked(256 * size) for size in (3, 7, 80)], (320, 20), id="many units of memory, few of compute"),
        pytest.param([asked(20_480, part) for part in (0.01, 0.004, 0.25)], (4, 500), id="few units of memory, many of compute"),
        pytest.param([asked(1024), asked(1001, models=("other",)), asked(1003, not_models=("m",))], (80, 20), id="who may not be here"),
        pytest.param([asked(1024), asked(1001, isolation="slice"), asked(900_001)], (80, 20), id="who shares nothing, or is too large"),
        pytest.param([asked(1024), asked(1024, 1.01)], (80, 20), id="more than a GPU"),
        pytest.param([], (1, 1), id="nobody"),
    ],
)
def test_a_gpu_is_divided_by_the_common_measure_of_those_who_may_share_it(classes: list[FleetClass], room: tuple[int, int]) -> None:
    board = divided(classes)
    assert (board.room, board.exact) == (room, True)


def test_a_gpu_that_nobody_may_share_needs_no_measure() -> None:
    assert divided([asked(1001), asked(1003)], modes=("mig", "whole")).exact


@pytest.mark.parametrize(
    ("classes", "most"),
    [
        pytest.param([asked(1001), asked(1003)], (192, 20), id="memory"),
        pytest.param([asked(20_480, part) for part in (0.37913, 0.1)], (4, 120), id="compute"),
        pytest.param([asked(1001, 0.37913), asked(1003, 0.1)], (192, 120), id="both"),
    ],
)
def test_sizes_without_a_large_common_measure_are_rounded_up(classes: list[FleetClass], most: tuple[int, int]) -> None:
    board = divided(classes)
    assert not board.exact
    assert all(9 * limit <= 10 * units <= 10 * limit for units, limit in zip(board.room, most, strict=True))
    for one in classes:
        (number,) = board.shapes_for(one)
        assert board.shapes[number].memory * board.unit[0] >= one.memory_mib
