# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns of a board: all of its legal sets of slices and nothing else, whatever the board is."""

from __future__ import annotations

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, maximal_layouts, valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of, undominated
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    """Boards that nobody makes: any sizes, any starts."""
    compute, memory = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    profiles = []
    for number in range(draw(st.integers(1, 4))):
        slices, size = draw(st.integers(1, compute)), draw(st.integers(1, memory))
        starts = draw(st.sets(st.integers(0, memory - size), min_size=1))
        name = f"{slices}g.{(number + 1) * 100}gb{draw(st.sampled_from(('', '+me')))}"
        profiles.append(Profile(name, number, slices, size, size * 1000, slices, draw(st.integers(1, 3)), tuple(sorted(starts))))
    return Geometry(compute, memory, tuple(profiles))


@settings(max_examples=25, deadline=None)
@given(geometries())
def test_the_states_are_all_legal_sets_of_slices(geometry: Geometry) -> None:
    patterns = patterns_of(geometry)
    sets = [patterns.slices_of(state) for state in patterns.states.tolist()]
    assert sorted(sets) == sorted(valid_layouts(geometry))
    assert patterns.states[0] == 0
    for row, (state, slices) in enumerate(zip(patterns.states.tolist(), sets, strict=True)):
        assert patterns.state_of(slices) == state
        assert [sum(one.profile == each.name for one in slices) for each in patterns.profiles] == patterns.counts[row].tolist()


@settings(max_examples=25, deadline=None)
@given(geometries())
def test_every_pattern_is_within_one_of_those_that_none_dominates(geometry: Geometry) -> None:
    patterns = patterns_of(geometry)
    multisets, states = patterns.multisets
    assert {tuple(row) for row in patterns.counts.tolist()} == {tuple(row) for row in multisets.tolist()}
    assert len(multisets) == len({tuple(row) for row in multisets.tolist()})
    assert (patterns.counts[states] == multisets).all()
    largest = multisets[patterns.maximal]
    assert all((largest >= row).all(axis=1).any() for row in multisets)
    assert all((largest >= row).all(axis=1).sum() == 1 for row in largest)


@settings(max_examples=25, deadline=None)
@given(geometries())
def test_useful_is_what_could_still_be_made_and_the_best_way_to_stand_leaves_the_most(geometry: Geometry) -> None:
    patterns = patterns_of(geometry)
    squares = {profile.name: profile.size**2 + profile.slices**2 for profile in geometry.profiles}
    layouts = [set(layout) for layout in valid_layouts(geometry)]
    for row, state in enumerate(patterns.states.tolist()):
        here = set(patterns.slices_of(state))
        best = max(sum(squares[one.profile] for one in layout - here) for layout in layouts if here <= layout)
        assert patterns.useful[row] == best
    for counts, state in zip(*patterns.multisets, strict=True):
        equal = (patterns.counts == counts).all(axis=1)
        assert patterns.useful[state] == patterns.useful[equal].max()


@pytest.mark.parametrize(
    ("geometry", "names", "states", "maximal_sets", "maximal_patterns"),
    [(A100, [], 723, 78, 28), (A100, ["1g.10gb+me"], 2319, 239, 44), (A30, [], 26, 5, 4)],
    ids=["plain A100", "A100 with its media engine", "A30"],
)
def test_the_counts_of_real_boards(geometry: Geometry, names: list[str], states: int, maximal_sets: int, maximal_patterns: int) -> None:
    patterns = patterns_of(geometry, names)
    assert (len(patterns.states), len(patterns.maximal)) == (states, maximal_patterns)
    plain = Geometry(geometry.compute_slices, geometry.memory_slices, patterns.profiles)
    assert len(maximal_layouts(plain)) == maximal_sets


def test_one_board_is_worked_out_once_in_whatever_order_it_is_named() -> None:
    turned = Geometry(A100.compute_slices, A100.memory_slices, A100.profiles[::-1])
    assert patterns_of(A100, ["2g.20gb", "1g.10gb+me"]) is patterns_of(A100, ["1g.10gb+me", "1g.10gb+me"])
    assert [each.name for each in patterns_of(turned).profiles] == [each.name for each in patterns_of(A100).profiles]
    assert (patterns_of(turned).states == patterns_of(A100).states).all()


def test_what_cannot_stand_has_no_state() -> None:
    patterns = patterns_of(A100)
    for slices in ([Slice(1, "2g.20gb")], [Slice(0, "3g.40gb"), Slice(0, "1g.10gb")], [Slice(0, "1g.10gb"), Slice(0, "1g.10gb")]):
        with pytest.raises(FleetError, match=r"cannot stand"):
            patterns.state_of(slices)
    with pytest.raises(FleetError, match=r"no MIG profile"):
        patterns_of(A100, ["5g.50gb"])


def test_a_board_with_more_places_than_a_state_has_bits_is_refused() -> None:
    profile = Profile("1g.1gb", 0, 1, 1, 1000, 1, 99, tuple(range(99)))
    with pytest.raises(FleetError, match=r"99 places"):
        patterns_of(Geometry(99, 99, (profile,)))


@settings(max_examples=25, deadline=None)
@given(st.sets(st.tuples(*[st.integers(0, 3)] * 3), min_size=1))
def test_undominated_rows(rows: set[tuple[int, ...]]) -> None:
    table = np.asarray(sorted(rows), dtype=np.int64)
    expected = [row for row in sorted(rows) if not any(other != row and all(np.greater_equal(other, row)) for other in rows)]
    assert [tuple(row) for row in table[undominated(table)].tolist()] == expected
