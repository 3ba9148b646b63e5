# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of vGPU types, as NVIDIA's hosts list them and as people write them."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_types import advice, meant, order, parse, short

NAMES = [
    # as listed, short, board, slices, GB, series, profile
    ("NVIDIA A100D-10C", "A100D-10C", "A100D", None, 10, "C", None),
    ("GRID T4-16Q", "T4-16Q", "T4", None, 16, "Q", None),
    ("NVIDIA H200X-141C", "H200X-141C", "H200X", None, 141, "C", None),
    ("NVIDIA A100D-1-10C", "A100D-1-10C", "A100D", 1, 10, "C", "1g.10gb"),
    ("NVIDIA A100D-1-10CME", "A100D-1-10CME", "A100D", 1, 10, "C", "1g.10gb+me"),
    ("NVIDIA DC-4-96QNOME", "DC-4-96QNOME", "DC", 4, 96, "Q", "4g.96gb-me"),
    ("DC-1-24CMEALL", "DC-1-24CMEALL", "DC", 1, 24, "C", "1g.24gb+me.all"),
    ("DC-1-2QGFX", "DC-1-2QGFX", "DC", 1, 2, "Q", "1g.2gb+gfx"),
    ("NVIDIA RTX6000-Ada-48Q", "RTX6000-Ada-48Q", "RTX6000-Ada", None, 48, "Q", None),
    ("GRID P40-1B4", "P40-1B4", "P40", None, 1, "B4", None),
]


@pytest.mark.parametrize(("listed", "name", "board", "slices", "gb", "series", "profile"), NAMES, ids=[one[1] for one in NAMES])
def test_a_name_says_what_the_type_is(
    listed: str, name: str, board: str, slices: int | None, gb: int, series: str, profile: str | None
) -> None:
    kind = parse(listed)
    assert kind is not None
    assert (str(kind), short(listed)) == (name, name)
    assert (kind.board, kind.slices, kind.gb, kind.series, kind.profile) == (board, slices, gb, series, profile)


@pytest.mark.parametrize("name", ["", "Single port serial", "mtty-2", "i915-GVTg_V5_4", "A100D-10", "A100D-10CME", "A100D-0-10C", "10C"])
def test_other_names_are_no_types(name: str) -> None:
    assert parse(name) is None
    assert short(name) == name


def test_a_name_is_found_however_it_is_written() -> None:
    known = ["A100D-10C", "DC-1-24Q", "mtty-1"]
    assert [meant(name, known) for name in ("NVIDIA A100D-10C", "a100d-10c", "mtty-1")] == ["A100D-10C", "A100D-10C", "mtty-1"]
    assert meant("A100D-1-10C", known) is None


def test_that_graphics_are_wished_is_said_of_the_gpu_instance_and_not_in_the_hosts_list() -> None:
    assert meant("DC-1-24QGFX", ["DC-1-24C", "DC-1-24Q"]) == "DC-1-24Q"


def test_advice_names_what_was_meant_and_what_there_is() -> None:
    assert advice("A100D-11C", ["A100D-20C", "A100D-10C"]).startswith("did you mean A100D-10C? it has A100D-10C, A100D-20C")
    assert advice("A100D-11C", []) == "it lists no type at all now"


def test_types_are_listed_by_kind_and_size() -> None:
    names = ["other", "A-2-20C", "A-40C", "A-1-10C", "A-4C"]
    assert sorted(names, key=order) == ["A-4C", "A-40C", "A-1-10C", "A-2-20C", "other"]
