# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Static packing: the fewest GPUs, proven, with a legal place for each service and useful room at the end."""

from __future__ import annotations

import itertools
import typing as t
from collections import Counter

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, legal, valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import Packed, pack
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Program, SolverError
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100
from hypothesis import given, settings
from hypothesis import strategies as st

BOARDS = st.sampled_from((A30, A100))


@st.composite
def demands(draw: st.DrawFn, most: int) -> tuple[Geometry, dict[str, int]]:
    geometry = draw(BOARDS)
    return geometry, {profile.name: draw(st.integers(0, most)) for profile in geometry.profiles}


def laid(packed: Packed, names: list[str]) -> dict[int, list[Slice]]:
    """GPU -> its slices."""
    gpus: dict[int, list[Slice]] = {}
    for name, gpu, start in zip(names, *packed.places(names), strict=True):
        gpus.setdefault(int(gpu), []).append(Slice(int(start), name))
    return gpus


def least_by_trying(geometry: Geometry, demand: dict[str, int]) -> int:
    """Fewest GPUs, by working through all that can be left to place."""
    names = sorted(demand)
    cuts = {tuple(sum(one.profile == name for one in layout) for name in names) for layout in valid_layouts(geometry)}
    left, count = {tuple(demand[name] for name in names)}, 0
    while not any(not any(rest) for rest in left):
        left = {tuple(max(0, a - b) for a, b in zip(rest, cut, strict=True)) for rest in left for cut in cuts}
        count += 1
    return count


@settings(max_examples=25, deadline=None)
@given(demands(most=400))
def test_every_service_has_a_legal_place_of_its_own_and_the_count_is_proven(case: tuple[Geometry, dict[str, int]]) -> None:
    geometry, demand = case
    packed = pack(geometry, demand)
    names = [name for name in sorted(demand) for _again in range(demand[name])]
    gpus = laid(packed, names)
    assert all(legal(geometry, slices) for slices in gpus.values())
    assert sorted(gpus) == list(range(packed.gpus))
    assert packed.gpus == packed.least
    # The prices prove the bound without any solver.
    worth = max(sum(packed.prices[one.profile] for one in layout) for layout in valid_layouts(geometry))
    assert worth <= 1 + 1e-9
    assert min(packed.prices.values()) >= 0
    assert sum(packed.prices[name] * count for name, count in demand.items()) == pytest.approx(packed.bound)


@settings(max_examples=15, deadline=None)
@given(st.fixed_dictionaries({profile.name: st.integers(0, 3) for profile in A30.profiles}))
def test_no_search_finds_fewer(demand: dict[str, int]) -> None:
    assert pack(A30, demand).gpus == least_by_trying(A30, demand)


@settings(max_examples=10, deadline=None)
@given(st.fixed_dictionaries({profile.name: st.integers(0, 3) for profile in A30.profiles}))
def test_of_all_plans_with_the_fewest_gpus_the_most_useful_room_is_left(demand: dict[str, int]) -> None:
    packed = pack(A30, demand)
    multisets, states = packed.patterns.multisets
    useful = packed.patterns.useful[states]
    # Every way to reach a partial demand with k GPUs -> the most useful room.
    names = [profile.name for profile in packed.patterns.profiles]
    reached = {(0,) * len(names): 0}
    for _gpu in range(packed.gpus):
        further: dict[tuple[int, ...], int] = {}
        for (so_far, room_), (cut, more) in itertools.product(reached.items(), zip(multisets.tolist(), useful.tolist(), strict=True)):
            total = tuple(a + b for a, b in zip(so_far, cut, strict=True))
            if all(a <= demand.get(name, 0) for a, name in zip(total, names, strict=True)):
                further[total] = max(further.get(total, 0), room_ + more)
        reached = further
    assert packed.free == reached[tuple(demand.get(name, 0) for name in names)]


def test_a_lone_slice_leaves_the_largest_room() -> None:
    packed = pack(A100, {"1g.10gb": 1})
    assert packed.runs == (((Slice(6, "1g.10gb"),), 1),)


def test_nothing_asked_for_takes_nothing() -> None:
    for demand in ({}, {"1g.10gb": 0}):
        packed = pack(A100, demand)
        assert (packed.gpus, packed.bound, packed.runs) == (0, 0.0, ())
        assert [len(part) for part in packed.places([])] == [0, 0]


def test_the_order_of_the_demand_changes_nothing_and_a_service_gets_the_same_place_by_name_and_by_column() -> None:
    demand = {"1g.10gb": 11, "2g.20gb": 7, "3g.40gb": 5, "7g.80gb": 2}
    first, second = pack(A100, demand), pack(A100, dict(reversed(demand.items())))
    assert first.runs == second.runs
    names = [name for name in demand for _again in range(demand[name])][::-1]
    columns = np.asarray([first.patterns.number[name] for name in names])
    for one, other in zip(first.places(names), second.places(columns), strict=True):
        assert one.tolist() == other.tolist()


def test_other_spellings_of_a_profile_are_the_same_profile() -> None:
    packed = pack(A100, {"3g.39gb": 1, "3g.40gb": 1})
    assert packed.gpus == 1
    assert sorted(packed.places(["3g.39gb", "3g.40gb"])[1].tolist()) == [0, 4]


def test_wishes_that_cannot_be() -> None:
    with pytest.raises(FleetError, match=r"no MIG profile 5g\.50gb"):
        pack(A100, {"5g.50gb": 1})
    with pytest.raises(FleetError, match=r"-1 slices of 1g\.10gb"):
        pack(A100, {"1g.10gb": -1})
    with pytest.raises(FleetError, match=r"2 services want 1g\.10gb and 1 were packed"):
        pack(A100, {"1g.10gb": 1}).places(["1g.10gb", "1g.10gb"])


@settings(max_examples=10, deadline=None)
@given(demands(most=60))
def test_a_search_that_ends_early_still_gives_a_legal_plan(case: tuple[Geometry, dict[str, int]]) -> None:
    geometry, demand = case
    given_up = SolverError("out of nodes")
    solve = Program.solve

    def only_relaxed(self: Program, limits: Limits | None = None, *, relaxed: bool = False) -> t.Any:
        if not relaxed:
            raise given_up
        return solve(self, limits, relaxed=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "solve", only_relaxed)
        packed = pack(geometry, demand)
    names = [name for name in sorted(demand) for _again in range(demand[name])]
    gpus = laid(packed, names)
    assert all(legal(geometry, slices) for slices in gpus.values())
    assert Counter(one.profile for slices in gpus.values() for one in slices) == Counter(names)
    assert packed.gpus <= packed.least + len(geometry.profiles)
