# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and layouts explained: what is used, free and out of reach, why, and which layout reaches it."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.action.explain import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, parse_slice, valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import explain_layout, gib, lines, parse_layout, spelt
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100, facts, gpu_facts

# Numbers as NVML reports them on RTX PRO 6000 (plugins/plugin_utils/data/geometry.yml); the memory axis has twelve units.
RTX = Geometry(
    4,
    12,
    (
        Profile("1g.24gb", 14, 1, 3, 24192, 46, 4, (0, 3, 6, 9)),
        Profile("2g.48gb", 5, 2, 6, 48384, 94, 2, (0, 6)),
        Profile("4g.96gb", 0, 4, 12, 96768, 188, 1, (0,)),
    ),
)


def sentence(geometry: Geometry, layout: str) -> str:
    return explain_layout(geometry, parse_layout(geometry, layout)).sentence


@pytest.mark.parametrize(
    ("geometry", "layout", "text"),
    [
        (
            A100,
            "7x1g.10gb",
            "7 \u00d7 1g.10gb uses 7 of 8 memory slices: 11.1 GiB out of reach; 6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb reaches it",
        ),
        (A100, "6x1g.10gb + 1g.20gb", "6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb uses 8 of 8 memory slices: nothing is free or out of reach"),
        (
            A100,
            "2x3g.40gb",
            "2 \u00d7 3g.40gb uses 8 of 8 memory slices and 84 of 98 SMs: 14 SMs out of reach; "
            "1 \u00d7 3g.40gb + 1 \u00d7 4g.40gb reaches them",
        ),
        (A100, "4g.40gb", "1 \u00d7 4g.40gb uses 4 of 8 memory slices: 39.2 GiB free for 1 \u00d7 3g.40gb"),
        (
            A100,
            "1g.10gb@6",
            "1 \u00d7 1g.10gb uses 1 of 8 memory slices: 58.8 GiB free for 1 \u00d7 2g.20gb + 1 \u00d7 4g.40gb, 10.1 GiB out of reach; "
            "2 \u00d7 1g.10gb + 1 \u00d7 1g.20gb + 1 \u00d7 3g.40gb reaches it",
        ),
        (A100, "", "no slices: all 8 memory slices are free, enough for 1 \u00d7 7g.80gb"),
        (A30, "1g.6gb@3", "1 \u00d7 1g.6gb uses 1 of 4 memory slices: 17.5 GiB free for 1 \u00d7 1g.6gb + 1 \u00d7 2g.12gb"),
        (RTX, "1g.24gb@3", "1 \u00d7 1g.24gb uses 3 of 12 memory slices: 70.9 GiB free for 1 \u00d7 1g.24gb + 1 \u00d7 2g.48gb"),
    ],
)
def test_a_layout_in_one_sentence(geometry: Geometry, layout: str, text: str) -> None:
    assert sentence(geometry, layout) == text


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("7x1g.10gb", "all 7 compute slices are in slices, and memory alone makes none"),
        ("2x3g.40gb", "1 of 7 compute slices is in no slice, and no memory is left"),
        ("3g.40gb@0, 1g.10gb@4", "3 of 7 compute slices are in no slice, and the memory that is left has room for 2 more"),
        (
            "3g.40gb@0, 1g.10gb@6",
            "no further slices cover all of memory slices 4, 5, 7: each may start only at certain places, and 3 compute slices are left",
        ),
        ("7g.80gb", ""),
    ],
)
def test_why_something_is_out_of_reach(layout: str, why: str) -> None:
    assert explain_layout(A100, parse_layout(A100, layout)).why == why


@pytest.mark.parametrize("geometry", [A100, A30, RTX])
def test_used_free_and_out_of_reach_add_up_on_every_layout_of_a_board(geometry: Geometry) -> None:
    for layout in valid_layouts(geometry):
        found = explain_layout(geometry, layout)
        assert found.used.slices + found.free.slices + found.lost.slices == found.total.slices, layout
        assert found.used.sm + found.free.sm + found.lost.sm <= found.total.sm, layout
        assert min(found.lost.sm, found.free.sm, found.lost.mib) >= 0
        assert bool(found.why) == bool(found.better), layout
        if found.lost.mib:
            assert found.used.mib + found.free.mib + found.lost.mib == found.total.mib


def test_a_whole_gpu_has_the_sms_of_its_largest_profile() -> None:
    found = explain_layout(A100, parse_layout(A100, "3g.40gb@0, 1g.20gb@4"))
    assert (found.total.sm, found.used.sm, found.free.sm, found.lost.sm) == (98, 56, 14, 28)


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("3g.39gb@4, 1g.10gb", ["1g.10gb@0", "3g.40gb@4"]),
        ("2 \u00d7 1g.10gb + 1g.10gb+me@6", ["1g.10gb@0", "1g.10gb@1", "1g.10gb+me@6"]),
        ("2x2g.20gb; 3g.40gb", ["3g.40gb@0", "2g.20gb@4", "2g.20gb@6"]),
    ],
)
def test_a_layout_is_read_as_people_write_it(text: str, slices: list[str]) -> None:
    wanted = sorted(map(parse_slice, slices))
    found = parse_layout(A100, text)
    assert sorted(one.profile for one in found) == sorted(one.profile for one in wanted)
    assert {one for one in wanted if f"@{one.start}" in text} <= set(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8x1g.10gb", "8x1g.10gb is more than the 7 that the board allows; the nearest that can: 7x1g.10gb or "),
        ("4g.40gb@4", "4g.40gb cannot start at memory slice 4, only at 0; the nearest that can: 4g.40gb or "),
        ("5 apples", "'5 apples' is no part of a layout; write profiles with their counts"),
        ("9g.90gb", "this board has no MIG profile 9g.90gb; it has 1g.10gb,"),
        ("1g.10gb@x", "'1g.10gb@x' is not a slice"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_what_can(text: str, message: str) -> None:
    with pytest.raises(FleetError) as caught:
        parse_layout(A100, text)
    assert message in str(caught.value)


def test_what_cutting_costs_is_not_out_of_reach() -> None:
    found = explain_layout(RTX, parse_layout(RTX, "4x1g.24gb"))
    assert (found.used.sm, found.total.sm, found.lost.sm, found.better) == (184, 188, 0, ())
    assert lines(found)[-2].split() == ["price", "of", "cutting", "0", "GiB", "-", "4", "of", "188"]


def test_spelling() -> None:
    assert (spelt("6x1g.10gb + 1g.20gb"), spelt("12x1g.6gb"), spelt("")) == ("6 \u00d7 1g.10gb + 1 \u00d7 1g.20gb", "12 \u00d7 1g.6gb", "")
    assert gib(11392) == "11.1 GiB"


# The door: GPUs of hosts, and boards


def told(**arguments: t.Any) -> list[str]:
    table: list[str] = run({"hosts": {}, "gpu": None, "board": None, "layout": None, **arguments})["table"]
    return table


def hosts() -> dict[str, dict[str, t.Any]]:
    cut = {**gpu_facts(0, slices="1g.10gb@0 1g.10gb@1 3g.40gb@4"), "drain": {"by": "lin", "reason": "fan", "until": None}}
    box = {"id": "c1", "name": "bench", "devices": ["MIG-h1-0-1"], "state": "running", "project": None, "image": "bench:1"}
    lost = {"index": 3, "pci": "0000:04:00.0", "uuid": "GPU-h1-3", "state": "lost", "error": "GPU is lost", "mig": None}
    whole = {**gpu_facts(2), "mig": None, "name": "NVIDIA L40S", "memory_mib": 46068}
    plan = {
        "services": [
            {"service": "ocr", "replica": 1, "gpu": "GPU-h1-0", "profile": "1g.10gb", "start": 0},
            {"service": "llm", "replica": 1, "gpus": ["GPU-h1-1"], "mode": "whole"},
        ]
    }
    return {"h1": {"facts": facts([cut, gpu_facts(1), whole, lost], containers=[box]), "plan": plan}}


def test_every_gpu_of_a_host_is_explained_with_who_is_on_it() -> None:
    text = "\n".join(told(hosts=hosts()))
    parts = [part.splitlines() for part in text.split("\n\n")]
    assert [part[0].split(" (")[0] for part in parts] == ["h1 GPU 0", "h1 GPU 1", "h1 GPU 2", "h1 GPU 3"]
    assert parts[0][1] == "drained by lin (fan)"
    rows = [line.split("  ") for line in parts[0][3:6]]
    assert [(row[0], row[-1].strip()) for row in rows] == [
        ("1g.10gb@0", "ocr-1"),
        ("1g.10gb@1", "container bench, in no plan"),
        ("3g.40gb@4", "free"),
    ]
    assert parts[1][-1] == "MIG is off: whoever has this GPU has all 80 GiB and all 98 SMs, and nothing is out of reach; llm-1 has it"
    assert parts[2][-1] == "this board has no MIG: whoever has this GPU has all 45 GiB, and nothing is out of reach"
    assert parts[3][-1] == "this GPU is lost: GPU is lost"


def test_one_gpu_by_any_of_its_names_and_a_layout_that_it_does_not_have() -> None:
    for name in ("1", "gpu-h1-1", "02:00.0"):
        lines = told(hosts=hosts(), gpu=name, layout="7x1g.10gb")
        assert (lines[1], lines[-3][:11]) == ("if it were cut as 7x1g.10gb:", "7 \u00d7 1g.10gb")


def test_a_board_needs_no_host_and_is_found_by_all_of_its_names() -> None:
    for name in ("a100-80gb", "A100_80GB", "a100-sxm4-80gb", "NVIDIA A100 SXM4 80GB"):
        assert any(line.startswith("7 \u00d7 1g.10gb uses 7 of 8 memory slices: 11.1 GiB") for line in told(board=name, layout="7x1g.10gb"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"board": "a100-80gb"}, "board: a board is explained with a layout, and without a GPU"),
        ({"board": "a100-80gb", "layout": "7g.80gb", "gpu": "0"}, "board: a board is explained with a layout, and without a GPU"),
        ({"board": "a1000", "layout": "7g.80gb"}, "board: there is no board 'a1000' in the catalogue; it knows a100-40gb, a100-80gb"),
        ({"board": "l40s", "layout": "7g.80gb"}, "board: NVIDIA L40S has no MIG, or its geometry is not known"),
        ({"hosts": hosts(), "gpu": "9"}, "gpu: there is no GPU '9' on h1"),
        ({"hosts": {**hosts(), "h2": hosts()["h1"]}, "gpu": "0"}, "gpu: '0' means a GPU of each of h1, h2"),
        ({"hosts": hosts(), "gpu": "2", "layout": "7g.80gb"}, "layout: GPU 0000:03:00.0 of h1 has no MIG, or no geometry is known"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(arguments: dict[str, t.Any], message: str) -> None:
    with pytest.raises(FleetError) as caught:
        told(**arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
