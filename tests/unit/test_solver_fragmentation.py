# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What free room is worth: the array code beside the definitions, written out in loops."""

from __future__ import annotations

import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import Demand, Futures, Request, Rows, Shape, merged
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=25, derandomize=True, database=None, deadline=None)
SHAPES = (Shape(32_000, 65_536, 4, "A100"), Shape(64_000, 65_536, 2, "T4"))
SORTS = [(0, 0), (1, 250), (1, 400), (1, 1000), (2, 1000), (4, 1000)]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    gpus, milli = draw(st.sampled_from(SORTS))
    models = draw(st.sampled_from([(), (), ("T4",), ("A100", "H100")]))
    return Request(draw(st.integers(1, 24)) * 1000, draw(st.integers(1, 48)) * 1024, gpus, milli, models)


@st.composite
def states(draw: st.DrawFn) -> tuple[int, int, int, list[int]]:
    number = draw(st.integers(0, 1))
    shape = SHAPES[number]
    free = [draw(st.sampled_from([0, 100, 300, 500, 750, 1000, 1000])) for _gpu in range(shape.gpus)]
    return number, draw(st.integers(0, shape.cpu)), draw(st.integers(0, shape.memory)), free + [0] * (4 - shape.gpus)


def rows(many: list[tuple[int, int, int, list[int]]]) -> Rows:
    return Rows(*(np.array(column) for column in zip(*many, strict=True)))


def demand(counts: dict[Request, float]) -> Demand:
    return Demand(counts, SHAPES, [40, 10])


def could(request: Request, state: tuple[int, int, int, list[int]]) -> bool:
    number, cpu, memory, free = state
    right = not request.models or SHAPES[number].model in request.models
    enough = SHAPES[number].cpu >= request.cpu and cpu >= request.cpu and memory >= request.memory
    return right and enough and sum(each >= request.milli for each in free if each) >= request.gpus


COUNTS = st.dictionaries(requests(), st.integers(1, 9).map(float), min_size=1, max_size=8)
STATES = st.lists(states(), min_size=1, max_size=6)


@QUICK
@given(COUNTS, STATES)
def test_usable_is_the_free_gpu_on_which_the_next_request_could_stand(counts: dict[Request, float], many: t.Any) -> None:
    total = sum(counts.values())
    expected = [
        sum(
            count / total * sum(each for each in state[3] if each >= kind.milli)
            for kind, count in counts.items()
            if kind.gpus and could(kind, state)
        )
        for state in many
    ]
    assert demand(counts).usable(rows(many)) == pytest.approx(expected)


@QUICK
@given(COUNTS, STATES)
def test_fillable_is_what_one_kind_fills_when_it_comes_until_it_no_longer_fits(counts: dict[Request, float], many: t.Any) -> None:
    total = sum(counts.values())

    def filled(kind: Request, state: t.Any) -> int:
        number, cpu, memory, free = state[0], state[1], state[2], list(state[3])
        done = 0
        while could(kind, (number, cpu, memory, free)):
            for gpu in sorted(range(4), key=lambda one: free[one], reverse=True)[: kind.gpus]:
                free[gpu] -= kind.milli
            cpu, memory, done = cpu - kind.cpu, memory - kind.memory, done + kind.size
        return done

    expected = [sum(count / total * filled(kind, state) for kind, count in counts.items() if kind.gpus) for state in many]
    assert demand(counts).fillable(rows(many)) == pytest.approx(expected)


@QUICK
@given(requests().filter(lambda kind: kind.gpus and not kind.models), STATES)
def test_futures_of_one_kind_alone_are_what_that_kind_fills(kind: Request, many: t.Any) -> None:
    only = demand({kind: 3.0})
    assert Futures(only, sequences=3, length=20).fill(rows(many)) == pytest.approx(only.fillable(rows(many)))


@QUICK
@given(COUNTS, STATES, st.randoms(use_true_random=False))
def test_futures_fill_no_more_than_is_free_and_do_not_care_how_gpus_are_numbered(counts: t.Any, many: t.Any, rng: t.Any) -> None:
    futures = Futures(demand(counts))
    found = futures.fill(rows(many))
    assert all(0 <= worth <= sum(state[3]) for worth, state in zip(found, many, strict=True))
    turned = [(*state[:3], rng.sample(state[3], 4)) for state in many]
    assert futures.fill(rows(turned)) == pytest.approx(found)


def test_futures_see_that_kinds_share_the_cpu_of_a_node() -> None:
    # Either kind alone would fill all four GPUs of a node with 16 cores; one after the other, the big ones leave no core for the rest.
    mixed = demand({Request(4_000, 1024, 1, 1000): 1.0, Request(12_000, 1024, 1, 500): 1.0, Request(15_000, 1024, 0, 0): 1.0})
    full, tight = rows([(0, 32_000, 65_536, [1000] * 4)]), rows([(0, 16_000, 65_536, [1000] * 4)])
    futures = Futures(mixed)
    assert futures.fill(tight)[0] < futures.fill(full)[0] < 4000


def test_many_states_at_once_are_worth_what_each_is_worth_alone() -> None:
    mixed = demand({Request(4_000, 1024, 1, 1000): 2.0, Request(2_000, 2048, 1, 400): 3.0, Request(8_000, 1024, 2, 1000): 1.0})
    many = [(number % 2, 1000 * (number % 30), 65_536, [1000, 500, 0, 0]) for number in range(600)]
    futures = Futures(mixed, sequences=4, length=6)
    every = futures.fill(rows(many))
    assert [every[number] for number in (0, 255, 256, 599)] == [futures.fill(rows([many[number]]))[0] for number in (0, 255, 256, 599)]


def test_hardware_that_some_requests_need_sees_more_of_them() -> None:
    anywhere, bound = Request(1000, 1024, 1, 500), Request(1000, 1024, 1, 500, ("T4",))
    rates = demand({anywhere: 1.0, bound: 1.0}).rate
    # 10 of 50 GPUs are T4: a GPU there sees five times as much of what needs it; the A100 see none.
    assert rates.tolist() == [[0.5, 0.5], [0.0, 2.5]]


def test_nothing_expected_is_worth_nothing() -> None:
    nothing = demand({})
    state = rows([(0, 32_000, 65_536, [1000] * 4)])
    assert [nothing.usable(state)[0], nothing.fillable(state)[0], Futures(nothing).fill(state)[0]] == [0, 0, 0]


@QUICK
@given(st.dictionaries(requests(), st.integers(1, 9).map(float), min_size=1, max_size=40), st.integers(1, 20))
def test_merging_keeps_within_the_limit_and_never_asks_for_less(counts: dict[Request, float], limit: int) -> None:
    found = merged(counts, limit)
    assert len(found) <= limit
    assert sum(found.values()) <= sum(counts.values())
    if len(counts) <= limit:
        assert found == counts
    for kind in found:
        same = [one for one in counts if (one.gpus, one.milli, one.models) == (kind.gpus, kind.milli, kind.models)]
        assert any(one.cpu <= kind.cpu and one.memory <= kind.memory for one in same)


@pytest.mark.parametrize(
    "wrong", [(-1, 0, 1, 1000), (0, -1, 1, 1000), (0, 0, -1, 0), (0, 0, 2, 500), (0, 0, 1, 1001), (0, 0, 1, 0), (0, 0, 0, 10)]
)
def test_a_request_that_makes_no_sense_is_refused_with_its_numbers(wrong: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"{wrong[2]} GPUs of {wrong[3]} thousandths"):
        Request(*wrong)


def test_a_node_that_few_requests_can_use_is_worth_less_where_no_more_than_is_offered_is_counted_on() -> None:
    # One request in ten fits the T4, which has a fifth of the GPUs: less than it could hold.
    expected = demand({Request(1_000, 1_024, 1, 1000, ("T4",)): 1.0, Request(1_000, 1_024, 1, 1000, ("A100",)): 9.0})
    idle = rows([(0, 32_000, 65_536, [1000] * 4), (1, 64_000, 65_536, [1000, 1000, 0, 0])])
    large, small = Futures(expected).fill(idle)
    large_offered, small_offered = Futures(expected, offered=1.0).fill(idle)
    assert (large, small) == (4000, 2000)
    assert large_offered == pytest.approx(4000, rel=0.02)
    assert small_offered == pytest.approx(1000, rel=0.02)


@QUICK
@given(COUNTS, STATES)
def test_the_best_futures_are_worth_no_less_than_all_of_them_and_no_more_than_is_free(counts: t.Any, many: t.Any) -> None:
    expected = demand(counts)
    every, half, best = (Futures(expected, counted=part).fill(rows(many)) for part in (1.0, 0.5, 0.01))
    assert all(a <= b + 1e-9 <= c + 2e-9 for a, b, c in zip(every, half, best, strict=True))
    assert all(worth <= sum(state[3]) for worth, state in zip(best, many, strict=True))
