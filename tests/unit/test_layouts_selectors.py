# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a host a layout file's entries mean."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import Board, is_named, parse_identity, resolve_selectors

A100 = 0x20B210DE
A = Board(0, "GPU-aaaa", "0000:07:00.0", A100, 0x146310DE, True)
B = Board(1, "GPU-bbbb", "0000:0b:00.0", A100, 0x147F10DE, True)
T4 = Board(2, "GPU-cccc", "0000:41:00.0", 0x1EB810DE, 0x12A210DE, False)
HOST = [A, B, T4]


def selector(
    devices: t.Any, mig: bool = True, filters: t.Sequence[str] = (), source: str | None = None, slices: t.Mapping[str, int] | None = None
) -> dict[str, t.Any]:
    instances = [{"profile": profile, "count": count} for profile, count in (slices or {}).items()]
    return {"devices": devices, "device_filter": list(filters), "mig": mig, "instances": instances, "source": source}


def resolved(*selectors: t.Mapping[str, t.Any], boards: t.Sequence[Board] | None = None) -> dict[str, bool]:
    return {wish["gpu"]: wish["mig"] for wish in resolve_selectors(HOST if boards is None else boards, selectors)}


def refusal(*selectors: t.Mapping[str, t.Any], boards: t.Sequence[Board] | None = None) -> str:
    with pytest.raises(FleetError) as caught:
        resolve_selectors(HOST if boards is None else boards, selectors)
    return str(caught.value)


def test_the_wish_is_what_module_mig_takes_as_layout_in_the_order_of_the_host() -> None:
    wishes = resolve_selectors(HOST, [selector([1], mig=False), selector([0], source="layouts.yml:4", slices={"1g.10gb": 7})])
    assert wishes == [
        {"gpu": "GPU-aaaa", "mig": True, "instances": [{"profile": "1g.10gb", "count": 7, "compute": "exact"}], "source": "layouts.yml:4"},
        {"gpu": "GPU-bbbb", "mig": False, "instances": []},
    ]


@pytest.mark.parametrize("mig", [True, False])
def test_all_passes_over_boards_without_mig(mig: bool) -> None:
    assert resolved(selector("all", mig)) == {"GPU-aaaa": mig, "GPU-bbbb": mig}


def test_gpus_that_nothing_names_are_left_out() -> None:
    assert resolved(selector([1])) == {"GPU-bbbb": True}
    assert resolved() == {}


@pytest.mark.parametrize("name", [1, "1", " 1 ", "GPU-bbbb", "gpu-BBBB", "0000:0B:00.0", "00000000:0b:00.0", "0b:00.0"])
def test_a_gpu_is_named_by_index_uuid_or_pci_address(name: int | str) -> None:
    assert resolved(selector([name])) == {"GPU-bbbb": True}
    assert [is_named(board, name) for board in HOST] == [False, True, False]


def test_a_named_board_without_mig_may_have_mig_off_and_nothing_else() -> None:
    assert resolved(selector([2], mig=False)) == {}
    assert refusal(selector([0, 2], source="layouts.yml:9")) == (
        "layouts.yml:9: devices: GPU 2 (GPU-cccc) has no MIG; leave it out of devices, or write devices: all, which passes over such boards"
    )


def test_an_unknown_gpu_is_an_error_that_names_the_known_ones() -> None:
    assert refusal(selector([0, 7], source="layouts.yml:4"), boards=[A, T4]) == (
        "layouts.yml:4: devices: there is no GPU 7; GPUs of this host: 0 (0000:07:00.0, GPU-aaaa), 2 (0000:41:00.0, GPU-cccc)"
    )
    assert refusal(selector([0]), boards=[]) == "devices: there is no GPU 0; GPUs of this host: none"


def test_a_filter_narrows_all_and_lists_alike() -> None:
    assert resolved(selector("all", filters=["0x20B210DE"]), boards=[A, T4]) == {"GPU-aaaa": True}
    assert resolved(selector([0, 2], filters=["0x20b210de"])) == {"GPU-aaaa": True}
    assert resolved(selector("all", filters=["0x1EB810DE", "0X20B210DE"])) == {"GPU-aaaa": True, "GPU-bbbb": True}


def test_a_filter_with_a_subsystem_takes_only_that_board() -> None:
    assert resolved(selector("all", filters=["0x20B210DE:0x147F10DE"])) == {"GPU-bbbb": True}
    assert resolved(selector("all", filters=["0x1EB810DE:0x147F10DE"])) == {}


def test_an_entry_for_boards_that_the_host_does_not_have_says_nothing_about_its_gpus() -> None:
    assert resolved(selector([0, 7], filters=["0x233010DE"])) == {}


def test_an_unknown_gpu_in_an_entry_for_the_hosts_own_boards_is_an_error() -> None:
    assert "there is no GPU 7" in refusal(selector([0, 7], filters=["0x20B210DE"]))


def test_a_bad_filter_that_comes_without_the_controllers_check_is_refused() -> None:
    assert refusal(selector("all", filters=["a100"], source="x:1")).startswith("x:1: device-filter: 'a100' is no PCI identity; write ")


def test_one_gpu_named_twice_for_the_same_layout_is_one_wish() -> None:
    twice = resolve_selectors(
        HOST, [selector([0, "GPU-aaaa"], slices={"1g.10gb": 2, "2g.20gb": 0}), selector("all", slices={"1g.10gb": 2})]
    )
    assert [wish["gpu"] for wish in twice] == ["GPU-aaaa", "GPU-bbbb"]
    assert twice[0]["instances"] == [
        {"profile": "1g.10gb", "count": 2, "compute": "exact"},
        {"profile": "2g.20gb", "count": 0, "compute": "exact"},
    ]


@pytest.mark.parametrize(
    "other",
    [
        selector("all", mig=False, source="f:2"),
        selector("all", source="f:2"),
        selector("all", source="f:2", slices={"1g.10gb": 1}),
        selector("all", source="f:2", slices={"2g.20gb": 2}),
    ],
)
def test_two_layouts_for_one_gpu_are_refused_where_mig_parted_would_never_be_content(other: dict[str, t.Any]) -> None:
    first = selector([1], source="f:1", slices={"1g.10gb": 2})
    assert refusal(first, other) == "f:2: devices: GPU 1 (GPU-bbbb) is given another layout at f:1; name each GPU in one entry"
    assert "another layout at an entry before" in refusal({**first, "source": None}, other)


def test_the_order_in_which_slices_are_written_makes_no_other_layout() -> None:
    assert len(resolved(selector([0], slices={"1g.10gb": 2, "3g.40gb": 1}), selector([0], slices={"3g.40gb": 1, "1g.10gb": 2}))) == 1


def test_identities_have_one_or_two_parts_of_eight_digits() -> None:
    assert parse_identity("0x20B210DE") == (A100, None)
    assert parse_identity("0x20b210de:0X147f10de") == (A100, 0x147F10DE)
    for text in (
        "",
        "20B210DE",
        "0x20B210D",
        "0x20B210DE1",
        "0x20B210DE:",
        "0x20B210DE:0x1:0x2",
        " 0x20B210DE",
        "0x+0B210DE",
        "0x20B210DE\n",
    ):
        with pytest.raises(ValueError, match="^" + re.escape(text) + "$"):
            parse_identity(text)
