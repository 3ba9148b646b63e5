# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What layout files and adopted plans ask of module mig beyond slices: to keep what is there, and to be named when they are wrong."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import parse_slice
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import Gpu, Standing, plan_all
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import parse_layout
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Mode
from decide_world import A100


def board(*standing: Standing) -> Gpu:
    return Gpu("GPU-1", "0000:07:00.0", "A100", Mode(True, True), geometry=A100, slices=standing)


def steps(gpu: Gpu, *instances: dict[str, t.Any], **more: t.Any) -> list[str]:
    wishes = parse_layout([{"gpu": "GPU-1", "instances": list(instances), **more}])
    return [text.partition(": ")[2] for plan in plan_all([(gpu, wishes[0])], reset=False) for text in plan.texts()]


EMPTY = Standing(parse_slice("1g.10gb@2"))
SPLIT = Standing(parse_slice("3g.40gb@4"), (0, 1))
HERE = {"profile": "1g.10gb", "start": 2}


def test_a_slice_that_has_no_compute_instance_is_given_one() -> None:
    for wish in (HERE, {**HERE, "compute": "full"}):
        assert steps(board(EMPTY), wish) == ["create the compute instance of 1g.10gb at memory slice 2"]


def test_a_slice_that_is_to_be_kept_is_left_without_one() -> None:
    assert steps(board(EMPTY, SPLIT), {**HERE, "compute": "keep"}, {"profile": "3g.40gb", "start": 4, "compute": "keep"}) == []


def test_a_slice_to_be_kept_that_is_gone_is_made_whole() -> None:
    assert steps(board(), {**HERE, "compute": "keep"}) == ["create 1g.10gb at memory slice 2"]


def test_what_is_kept_has_a_place() -> None:
    with pytest.raises(FleetError) as caught:
        parse_layout([{"gpu": "0", "instances": [{"profile": "1g.10gb", "compute": "keep"}]}])
    assert str(caught.value) == (
        "layout[0].instances[0].compute: what a slice keeps cannot be said without its start; write start, or compute: full"
    )


def test_an_impossible_layout_is_named_by_the_line_of_its_file() -> None:
    with pytest.raises(FleetError) as caught:
        steps(board(), {"profile": "4g.40gb", "count": 2}, source="layouts.yml:12")
    assert str(caught.value).startswith("layouts.yml:12: mig-devices: GPU GPU-1 (A100) cannot hold 2x4g.40gb: ")
    with pytest.raises(FleetError) as caught:
        steps(board(), {"profile": "4g.40gb", "count": 2})
    assert str(caught.value).startswith("GPU GPU-1 (A100) cannot hold 2x4g.40gb: ")
