# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wishes for compute instances that are smaller than their GPU instance, inline and from mig-parted's files."""

from __future__ import annotations

import typing as t
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import Options, collect
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import Wanted, Wish, line_of, parse_layout, split_profile, wish_of_line
from ansible_collections.gpuops.fleet.plugins.plugin_utils.layouts import export, selectors
from mig_world import H100, World

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule


@pytest.fixture
def world(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> Callable[..., World]:
    return lambda *boards: World(fleet_host(*boards), run_module, tmp_path)


def inside(fleet: World) -> dict[str, list[str]]:
    """What each slice is cut into."""
    return {f"{one['profile']}@{one['start']}": sorted(ci["profile"] for ci in one["ci"]) for one in fleet.show()[0]["mig"]["instances"]}


def wanted(*instances: dict[str, t.Any]) -> list[Wanted]:
    (wish,) = parse_layout([{"gpu": "0", "instances": list(instances)}])
    return list(wish.slices or ())


# The wish as it is written


@pytest.mark.parametrize(
    ("name", "profile", "part"),
    [
        ("1c.3g.20gb", "3g.20gb", 1),
        ("2c.7g.80gb", "7g.80gb", 2),
        ("1C.3G.20GB", "3G.20GB", 1),
        ("1c.2g.24gb+me.all", "2g.24gb+me.all", 1),
        ("3c.3g.20gb", "3g.20gb", None),
        ("3g.20gb", "3g.20gb", None),
        ("rubbish", "rubbish", None),
    ],
)
def test_a_name_says_the_slice_and_the_part_of_it(name: str, profile: str, part: int | None) -> None:
    assert split_profile(name) == (profile, part)


def test_compute_instances_share_a_slice_as_far_as_it_holds_them() -> None:
    assert wanted({"profile": "1c.3g.40gb", "count": 2}) == [Wanted("3g.40gb", parts=(1, 1))]
    assert wanted({"profile": "1c.3g.40gb", "count": 4}) == [Wanted("3g.40gb", parts=(1, 1, 1)), Wanted("3g.40gb", parts=(1,))]
    assert wanted({"profile": "1c.3g.40gb"}, {"profile": "3g.40gb"}, {"profile": "2c.3g.40gb"}) == [
        Wanted("3g.40gb"),
        Wanted("3g.40gb", parts=(2, 1)),
    ]
    assert wanted({"profile": "1c.3g.40gb", "start": 4, "count": 2}, {"profile": "1c.3g.40gb"}) == [
        Wanted("3g.40gb", 4, parts=(1, 1)),
        Wanted("3g.40gb", parts=(1,)),
    ]
    assert wanted({"profile": "1c.3g.40gb", "count": 0}) == []
    assert wanted({"profile": "1g.10gb", "compute": "exact"}) == [Wanted("1g.10gb", exact=True)]


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (
            {"profile": "4c.3g.40gb"},
            ".instances[0].profile: '4c.3g.40gb' names a compute instance larger than its GPU instance; write 1c to 3c",
        ),
        (
            {"profile": "5c.7g.80gb"},
            ".instances[0].profile: '5c.7g.80gb': there is no compute instance of 5 compute slices; write one of 1c, 2c, 3c, 4c, 6c, 7c",
        ),
        (
            {"profile": "1c.3g.40gb", "start": 4, "count": 4},
            ".instances: the compute instances of 3g.40gb at memory slice 4 need more than its 3 compute slices; "
            "leave out start, or wish fewer",
        ),
        (
            {"profile": "1c.3g.40gb", "start": 4, "compute": "keep"},
            ".instances[0].compute: a slice cannot keep what it has and have 1c.3g.40gb; leave out one of them",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(instance: dict[str, t.Any], message: str) -> None:
    with pytest.raises(FleetError) as caught:
        wanted(instance)
    assert str(caught.value) == f"layout[0]{message}"


def test_what_is_remembered_of_a_wish_reads_back() -> None:
    wish = Wish("GPU-a", True, (Wanted("3g.40gb", 4, parts=(2, 1)), Wanted("1g.10gb", 0, compute=(0,)), Wanted("2g.20gb")))
    assert wish_of_line("GPU-a", line_of(wish)) == wish
    assert line_of(Wish("GPU-a", False, None)) == {"mig": False, "slices": []}


# On GPUs


def test_a_slice_is_made_and_cut_in_one_run(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    wish = {"gpu": gpu, "instances": [{"profile": "1c.3g.39gb", "count": 2}, {"profile": "1g.10gb", "start": 0}]}
    steps = fleet.done(wish)
    assert steps[1:] == [
        f"{gpu}: create 1g.10gb at memory slice 0",
        f"{gpu}: create 3g.40gb at memory slice 4 with compute instances 1c, 1c",
    ]
    assert inside(fleet) == {"1g.10gb@0": ["1g.10gb"], "3g.40gb@4": ["1c.3g.40gb", "1c.3g.40gb"]}
    assert fleet.mig(wish)["diff"]["after"].endswith(f"{gpu} 3g.40gb@4 (compute instances 1c, 1c)\n")


def test_only_the_compute_instance_that_is_too_much_or_missing_is_touched(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids

    def cut(*profiles: str) -> list[str]:
        return [step.partition(": ")[2] for step in fleet.done({"gpu": gpu, "instances": [{"profile": one} for one in profiles]})]

    cut("1c.3g.40gb", "1c.3g.40gb")
    assert cut("1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb") == ["create compute instance 1c of 3g.40gb at memory slice 4"]
    first = fleet.show()[0]["mig"]["instances"][0]["ci"][0]["uuid"]
    assert cut("1c.3g.40gb", "1c.3g.40gb") == ["destroy compute instance 1c of 3g.40gb at memory slice 4"]
    assert fleet.show()[0]["mig"]["instances"][0]["ci"][0]["uuid"] == first
    assert cut("2c.3g.40gb") == [
        "destroy compute instances 1c, 1c of 3g.40gb at memory slice 4",
        "create compute instance 2c of 3g.40gb at memory slice 4",
    ]
    assert cut("3g.40gb") == [], "a plain profile takes a slice as it is cut"
    assert fleet.done({"gpu": gpu, "instances": [{"profile": "3g.40gb", "compute": "exact"}]}) == [
        f"{gpu}: destroy the compute instances of 3g.40gb at memory slice 4",
        f"{gpu}: create the compute instance of 3g.40gb at memory slice 4",
    ]


def test_slices_of_one_profile_keep_what_they_are_cut_into(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig({"gpu": gpu, "instances": [{"profile": "3g.40gb", "start": 0}, {"profile": "1c.3g.40gb", "start": 4}]})
    assert fleet.done({"gpu": gpu, "instances": [{"profile": "1c.3g.40gb"}, {"profile": "3g.40gb"}]}) == []
    assert fleet.done({"gpu": gpu, "instances": [{"profile": "1c.3g.40gb"}]}) == [f"{gpu}: destroy 3g.40gb at memory slice 0"]


def test_a_slice_in_use_is_not_cut_anew(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "3g.40gb@4"))
    fleet.hold(0, "--gi", "2", "--ci", "0", pid=4194304)
    words = fleet.refused({"gpu": gpu, "instances": [{"profile": "1c.3g.40gb"}]})
    assert words.startswith(f"GPU {gpu} is in use: process 4194304 (unknown program) on 3g.40gb@4; nothing was changed")


def test_a_size_that_the_driver_does_not_make_brings_the_old_layout_back(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.mig((gpu, "1g.10gb@0"))
    result = fleet.mig({"gpu": gpu, "instances": [{"profile": "6c.7g.80gb"}]})
    assert "the driver makes no 6c.7g.80gb; it makes 1c.7g.80gb, " in result["msg"]
    assert result["msg"].endswith("; the layout from before was put back")
    assert fleet.slices(0) == ["1g.10gb@0"]


def test_the_smallest_part_of_a_slice_of_double_memory_is_the_slice(world: Callable[..., World]) -> None:
    fleet = world(H100)
    (gpu,) = fleet.uuids
    fleet.done({"gpu": gpu, "instances": [{"profile": "1c.1g.20gb"}]})
    assert fleet.done((gpu, "1g.20gb")) == []


def test_a_file_of_mig_parted_is_applied_and_exported_again(world: Callable[..., World]) -> None:
    fleet = world(f"{H100}:2")
    text = """\
version: v1
mig-configs:
  off: [{devices: all, mig-enabled: false}]
  cut:
    - devices: all
      mig-enabled: true
      mig-devices: {1c.3g.40gb: 2, 3g.40gb: 1}
"""
    assert fleet.done(selectors=selectors(text, "layouts.yml", "cut"))[1:3] == [
        f"{fleet.uuids[0]}: create 3g.40gb at memory slice 0",
        f"{fleet.uuids[0]}: create 3g.40gb at memory slice 4 with compute instances 1c, 1c",
    ] or inside(fleet) == {"3g.40gb@0": ["1c.3g.40gb", "1c.3g.40gb"], "3g.40gb@4": ["3g.40gb"]}
    options = Options(state_dir=str(fleet.state_dir), docker_socket=str(fleet.where / "none"))
    written = export(collect(options)["gpus"])
    assert '"1c.3g.40gb": 2\n        "3g.40gb": 1\n' in written
    assert fleet.done(selectors=selectors(written, "layouts.yml", "current")) == []
    assert fleet.done(selectors=selectors(text.replace("1c.3g.40gb: 2, 3g.40gb: 1", "3g.40gb: 2"), "layouts.yml", "cut"))[0].endswith(
        "destroy the compute instances of 3g.40gb at memory slice 0"
    )
    assert fleet.done(selectors=selectors(text, "layouts.yml", "off"))[-1] == f"{fleet.uuids[1]}: switch MIG off"
