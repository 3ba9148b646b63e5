# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done quicker than numpy does it comes out as numpy has it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.arrays import add_at, in_order, ranks, thinned, true_at


@pytest.mark.parametrize("most", [1, 9, 2**40])
def test_rows_are_ordered_by_one_column_after_the_other_whether_one_number_holds_them_or_not(most: int) -> None:
    chance = random.Random(most)
    columns = [np.asarray([chance.randrange(most) for _row in range(200)]) for _column in range(3)]
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    assert [rows[one] for one in in_order(*columns).tolist()] == sorted(rows)
    assert in_order(*(column % 2 for column in columns)).tolist() == np.lexsort([column % 2 for column in columns[::-1]]).tolist()
    assert in_order(*(column[:0] for column in columns)).tolist() == []


@pytest.mark.parametrize("shape", [(7,), (5, 4), (3, 2, 6)])
@pytest.mark.parametrize("kind", [np.int16, np.int64, np.float64])
def test_amounts_are_added_as_often_as_a_place_is_named_also_where_the_array_is_a_part_of_another(
    shape: tuple[int, ...], kind: type
) -> None:
    chance = np.random.default_rng(len(shape))
    places = tuple(chance.integers(0, many, 300) for many in shape)
    for amount in (1, chance.integers(-3, 4, 300)):
        whole, expected = np.zeros((*shape, 2), dtype=kind), np.zeros(shape, dtype=kind)
        np.add.at(expected, places, np.asarray(amount, dtype=kind))
        for store in (whole[..., 0], np.zeros(shape, dtype=kind)):
            add_at(store, places, amount)
            assert (store == expected).all()
        assert not whole[..., 1].any()


def test_true_places_are_those_of_numpy() -> None:
    mask = np.random.default_rng(0).random((4, 5, 6)) < 0.2
    assert all((mine == theirs).all() for mine, theirs in zip(true_at(mask), np.nonzero(mask), strict=True))


def test_equal_entries_are_counted_from_nothing() -> None:
    assert ranks(np.asarray([2, 2, 5, 7, 7, 7])).tolist() == [0, 1, 0, 0, 1, 2]
    assert ranks(np.zeros(0, dtype=int)).tolist() == []


def test_of_very_many_equals_others_stay_with_each_turn_and_of_few_all() -> None:
    """3200 are the rows and columns of a table of 40 by 80; 20 are another one's."""
    both = np.asarray([3] * 3200 + [4] * 20)
    seen: set[int] = set()
    for turn in range(20):
        kept = thinned(both, 160, turn)
        assert (kept >= 3200).sum() == 20
        assert 100 < (kept < 3200).sum() < 220
        assert len(set((kept[kept < 3200] // 80).tolist())) == 40
        assert len(set((kept[kept < 3200] % 80).tolist())) > 60
        seen.update(kept.tolist())
    assert len(seen) == len(both)
    assert thinned(both[:0], 2, 1).tolist() == []
    assert thinned(both[:160], 160, 5).tolist() == list(range(160))
