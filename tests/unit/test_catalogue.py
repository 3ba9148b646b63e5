# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue: boards are found, every fact has its source, and the fallback geometries are possible."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, why_not
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Board, Catalogue, slug
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100

BOARDS: dict[str, t.Any] = door.read_data("boards.yml").data
GEOMETRIES: dict[str, t.Any] = door.read_data("geometry.yml").data


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(BOARDS, GEOMETRIES)


def test_a_board_is_found_by_device_id_before_its_name(catalogue: Catalogue) -> None:
    expected = Board("a100-sxm4-80gb", "NVIDIA A100 SXM4 80GB", 80, 108, "a100_80gb", "high", 8)
    assert catalogue.find("0x20b210de", "Tesla T4") == expected
    assert catalogue.find(None, "nvidia a100-sxm4-80gb") == expected
    assert catalogue.find("0x00000000", "NVIDIA A100-SXM4-80GB") == expected
    assert catalogue.find("0x00000000", "NVIDIA X1") is None
    assert catalogue.find(None, None) is None


def test_a_board_of_no_catalogue_gets_its_name_in_the_same_form(catalogue: Catalogue) -> None:
    assert catalogue.board_id("0x26B910DE", None) == "l40s"
    assert catalogue.board_id("0x00000000", "NVIDIA H300 NVL (96 GB)") == "h300-nvl-96-gb"
    assert catalogue.board_id(None, None) == "unknown"
    assert [slug(each) for each in ("Tesla T9", "nvidia", "???")] == ["tesla-t9", "nvidia", "unknown"]


@pytest.mark.parametrize(("device", "geometry"), [("0x20B710DE", 4), ("0x20B210DE", 7), ("0x233010DE", 7), ("0x2BB510DE", 4)])
def test_the_fallback_geometry_of_a_known_board(catalogue: Catalogue, device: str, geometry: int) -> None:
    found = catalogue.fallback(device, None)
    assert found is not None
    assert found.compute_slices == geometry


def test_the_fallback_of_a100_is_what_boards_say_themselves(catalogue: Catalogue) -> None:
    assert catalogue.fallback("0x20B210DE", None) == A100
    smaller = catalogue.fallback("0x20B710DE", None)
    assert smaller is not None
    assert {profile for profile in smaller.profiles if "+" not in profile.name} == set(A30.profiles)


@pytest.mark.parametrize("device", ["0x233510DE", "0x290110DE", "0x26B910DE", "0x00000000"])
def test_no_geometry_is_invented_for_a_board_that_nobody_captured(catalogue: Catalogue, device: str) -> None:
    assert catalogue.fallback(device, None) is None


def test_every_geometry_that_is_used_is_possible(catalogue: Catalogue) -> None:
    used = {board.id: catalogue.fallback(None, name) for board in catalogue.boards.values() for name in _names(board.id)}
    assert {name for name, geometry in used.items() if geometry} >= {
        "a30",
        "a100-sxm4-40gb",
        "a100-sxm4-80gb",
        "h100-sxm5-80gb",
        "h100-nvl-94gb",
    }
    assert {name: problems(geometry) for name, geometry in used.items() if geometry and problems(geometry)} == {}


def _names(board: str) -> list[str]:
    return next(list(entry["nvml_names"]) for entry in BOARDS["boards"] if entry["id"] == board)


def problems(geometry: Geometry) -> list[str]:
    """What cannot be true of a geometry: a profile that cannot stand alone on the empty board, two of one id."""
    alone = [(why_not(geometry, [Slice(start, one.name)]), one, start) for one in geometry.profiles for start in one.starts]
    found = [f"{one.name}@{start}" for reason, one, start in alone if reason or start + one.size > geometry.memory_slices]
    ids = [one.id for one in geometry.profiles]
    return found + [f"id {number}" for number in sorted(set(ids)) if ids.count(number) > 1]


def test_an_impossible_geometry_would_be_seen() -> None:
    outside = Profile("2g.20gb", 5, 2, 2, 1, 1, 1, (7,))
    too_big = Profile("9g.90gb", 5, 9, 2, 1, 1, 1, (0,))
    fine = Profile("1g.10gb", 1, 1, 1, 1, 1, 7, (0,))
    assert problems(Geometry(7, 8, (outside, too_big, fine))) == ["2g.20gb@7", "9g.90gb@0", "id 5"]


def test_every_board_has_sources_that_are_listed_and_a_confidence() -> None:
    for entry in BOARDS["boards"]:
        assert entry["sources"], entry["id"]
        assert set(entry["sources"]) <= set(BOARDS["sources"]), entry["id"]
        assert entry["confidence"] in ("high", "medium", "low"), entry["id"]
    for entry in GEOMETRIES["geometries"]:
        assert entry["sources"], entry["key"]
        assert entry["confidence"], entry["key"]


def test_boards_and_geometries_agree() -> None:
    keys = {entry["key"]: entry for entry in GEOMETRIES["geometries"]}
    for entry in BOARDS["boards"]:
        if entry["mig"]["supported"]:
            assert entry["mig"]["geometry"] in keys, entry["id"]
            if entry["pci_device_ids"]:
                assert set(entry["pci_device_ids"]) <= set(keys[entry["mig"]["geometry"]]["pci_device_ids"]), entry["id"]
    identities = [device for entry in BOARDS["boards"] for device in entry["pci_device_ids"]]
    assert len(identities) == len(set(identities))
