# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cutting a board: which profiles serve, what stands beside what, and what a cut costs."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, legal, parse_slice, valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cut, Cutter, Slices
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100

CUTTER = Cutter(A100)


def slices(text: str) -> Slices:
    return tuple(sorted(map(parse_slice, text.split())))


@pytest.mark.parametrize(
    ("memory", "compute", "name", "expected"),
    [
        (0, None, None, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        (9857, None, None, "1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        (40192, None, None, "3g.40gb 4g.40gb 7g.80gb"),
        (40192, 0.5, None, "4g.40gb 7g.80gb"),
        (0, 42 / 98, None, "3g.40gb 4g.40gb 7g.80gb"),
        (80384, None, None, "7g.80gb"),
        (80385, None, None, ""),
        (0, None, "1g.10gb+me", "1g.10gb+me"),
        (9857, None, "1g.10gb", ""),
        (0, 0.2, "1g.10gb", ""),
        (0, None, "2g.10gb", ""),
        (0, None, "nonsense", ""),
    ],
)
def test_profiles_serve_by_memory_compute_and_name(memory: int, compute: float | None, name: str | None, expected: str) -> None:
    assert CUTTER.acceptable(memory, compute, name) == tuple(expected.split())
    assert CUTTER.acceptable(memory, compute, name) == tuple(expected.split())


def test_a_share_that_a_profile_has_to_the_last_sm_is_enough_whatever_floating_point_makes_of_it() -> None:
    profiles = (Profile("1g.10gb", 19, 1, 1, 9856, 7, 7, tuple(range(7))), Profile("7g.80gb", 0, 7, 8, 80384, 100, 1, (0,)))
    assert Cutter(Geometry(7, 8, profiles)).acceptable(0, 0.07, None) == ("1g.10gb", "7g.80gb")


def test_a_geometry_without_profiles_serves_nobody() -> None:
    empty = Cutter(Geometry(7, 8, ()))
    assert empty.acceptable(0, 0.5, None) == ()
    assert (empty.sm, empty.largest_mib) == (0, 0)


def test_of_profiles_that_serve_only_the_smallest_are_kept() -> None:
    names = CUTTER.acceptable(0, None, None)
    assert CUTTER.smallest(names) == ("1g.10gb",)
    assert CUTTER.smallest(CUTTER.acceptable(9857, None, None)) == ("1g.20gb",)
    # Of those with engines there is but one.
    assert CUTTER.smallest(("1g.10gb+me", "4g.40gb", "7g.80gb")) == ("1g.10gb+me", "4g.40gb")
    assert CUTTER.smallest(("2g.20gb", "3g.40gb", "4g.40gb")) == ("2g.20gb",)
    assert CUTTER.smallest(()) == ()


@pytest.mark.parametrize("geometry", [A100, A30])
def test_where_a_profile_fits_one_of_the_smallest_fits_too(geometry: Geometry) -> None:
    cutter = Cutter(geometry)
    names = [profile.name for profile in geometry.profiles]
    layouts = valid_layouts(geometry)
    for count in (1, 2, 3, len(names)):
        for chosen in itertools.combinations(names, count):
            kept = cutter.smallest(chosen)
            for layout, name in itertools.product(layouts[:: max(1, len(layouts) // 40)], chosen):
                for start in cutter.profiles[name].starts:
                    if cutter.fits(layout, Slice(start, name)):
                        assert any(cutter.fits(layout, Slice(start, each)) for each in kept), (layout, name, start, kept)


@pytest.mark.parametrize("geometry", [A100, A30])
def test_what_fits_beside_legal_slices_is_what_geometry_calls_legal(geometry: Geometry) -> None:
    cutter = Cutter(geometry)
    layouts = valid_layouts(geometry)
    candidates = [Slice(start, profile.name) for profile in geometry.profiles for start in range(geometry.memory_slices)]
    for layout, new in itertools.product(layouts[:: max(1, len(layouts) // 60)], candidates):
        assert cutter.fits(layout, new) == legal(geometry, (*layout, new)), (layout, new)


def test_an_unknown_profile_does_not_fit() -> None:
    assert not CUTTER.fits((), Slice(0, "9g.90gb"))


def test_spare_slices_stay_unless_they_are_in_the_way() -> None:
    spare = slices("1g.10gb@0 1g.10gb@5 1g.10gb@6")
    assert CUTTER.add((), spare, parse_slice("3g.40gb@4")) == (slices("3g.40gb@4"), slices("1g.10gb@0"))
    assert CUTTER.add((), spare, parse_slice("1g.10gb@5")) == (slices("1g.10gb@5"), slices("1g.10gb@0 1g.10gb@6"))
    assert CUTTER.add(slices("3g.40gb@4"), slices("1g.10gb@0"), parse_slice("1g.10gb@5")) is None


def test_spare_slices_go_when_compute_slices_run_out() -> None:
    spare = slices("1g.10gb@4 1g.10gb@5 1g.10gb@6")
    taken, left = CUTTER.add(slices("1g.20gb@0"), spare, parse_slice("2g.20gb@2")) or ((), ())
    assert (taken, left) == (slices("1g.20gb@0 2g.20gb@2"), spare)
    assert CUTTER.add((), slices("1g.10gb@4 1g.10gb@5 1g.20gb@6"), parse_slice("4g.40gb@0")) == (
        slices("4g.40gb@0"),
        slices("1g.10gb@4 1g.10gb@5 1g.20gb@6"),
    )


def test_the_weight_is_the_memory_slices_of_all_that_can_still_be_made() -> None:
    # 7 x 1 + 4 x 2 + 3 x 2 + 2 x 4 + 4 + 8; the variant with media engines stands in the places of the plain one
    assert CUTTER.weight(()) == 41
    assert CUTTER.weight(slices("7g.80gb@0")) == 0
    assert CUTTER.weight(slices("3g.40gb@4")) == 4 + 4 + 4 + 4 + 4
    assert Cutter(A30).weight(()) == 12


def cut(text: str = "", spare: str = "", *names: str, reusable: str | None = None, pinned: bool = False) -> Cut | None:
    given = slices(spare)
    return CUTTER.best(slices(text), given, given if reusable is None else slices(reusable), names, pinned)


def test_the_best_cut_of_an_empty_board() -> None:
    assert cut("", "", "1g.10gb") == Cut(Slice(6, "1g.10gb"), 9856, 1, reuse=False, dropped=0, loss=15, spare=())


def test_no_cut_without_names_or_room() -> None:
    assert cut("", "") is None
    assert cut("7g.80gb@0", "", "1g.10gb") is None


def test_of_profiles_with_equal_memory_the_one_with_less_compute_is_cut() -> None:
    found = cut("", "", "2g.20gb", "1g.20gb")
    assert found is not None
    assert found.slice == Slice(6, "1g.20gb")


def test_reuse_comes_before_a_cut_that_harms_less() -> None:
    assert cut("", "1g.10gb@0", "1g.10gb") == Cut(Slice(0, "1g.10gb"), 9856, 1, reuse=True, dropped=0, loss=21, spare=())


def test_of_reusable_slices_the_one_that_harms_least_is_given() -> None:
    found = cut("", "1g.10gb@0 1g.10gb@6 1g.10gb@4", "1g.10gb")
    assert found is not None
    assert (found.slice.start, found.spare) == (6, slices("1g.10gb@0 1g.10gb@4"))


def test_a_slice_that_is_there_and_not_to_be_given_is_not_made_again() -> None:
    found = cut("", "1g.10gb@6", "1g.10gb", reusable="")
    assert found == Cut(Slice(4, "1g.10gb"), 9856, 1, reuse=False, dropped=0, loss=17, spare=slices("1g.10gb@6"))


def test_a_cut_that_drops_less_comes_before_one_that_harms_less() -> None:
    found = cut("1g.10gb@3", "1g.10gb@4 1g.10gb@5 1g.10gb@6", "1g.20gb")
    assert found is not None
    assert (found.slice.start, found.dropped) == (0, 0)
    found = cut("1g.10gb@1 1g.10gb@3", "1g.10gb@4 1g.10gb@5 1g.10gb@6", "1g.20gb")
    assert found is not None
    assert (found.slice.start, found.dropped, found.spare) == (6, 1, slices("1g.10gb@4 1g.10gb@5"))


def test_a_pinned_board_gives_only_what_is_there() -> None:
    assert cut("", "3g.40gb@4", "1g.10gb", pinned=True) is None
    found = cut("", "3g.40gb@4", "1g.10gb", "3g.40gb", pinned=True)
    assert found is not None
    assert found.slice == Slice(4, "3g.40gb")


def test_a_cut_is_the_same_when_it_is_asked_for_again() -> None:
    assert cut("3g.40gb@0", "1g.10gb@4", "1g.20gb") is cut("3g.40gb@0", "1g.10gb@4", "1g.20gb")
    assert cut("3g.40gb@0", "1g.10gb@4", "1g.20gb", pinned=True) is None
