# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a wish and a GPU to exactly the steps, or to exactly the reason. No GPU is needed: all of it is plain data."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import mig
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, Slice, legal
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import Gpu, Holder, Plan, Standing, plan_gpu
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import Wanted, Wish, parse_layout
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Mode
from hypothesis import given, settings
from hypothesis import strategies as st

A100 = Geometry(
    7,
    8,
    (
        Profile("1g.10gb", 19, 1, 1, 9856, 14, 7, tuple(range(7))),
        Profile("1g.20gb", 15, 1, 2, 19968, 14, 4, (0, 2, 4, 6)),
        Profile("2g.20gb", 14, 2, 2, 19968, 28, 3, (0, 2, 4)),
        Profile("3g.40gb", 9, 3, 4, 40192, 42, 2, (0, 4)),
        Profile("4g.40gb", 5, 4, 4, 40192, 56, 1, (0,)),
        Profile("7g.80gb", 0, 7, 8, 80384, 98, 1, (0,)),
    ),
)
ON, OFF = Mode(True, True), Mode(False, False)
GOING_ON, GOING_OFF = Mode(False, True), Mode(True, False)
FULL = (0,)


def gpu(
    *slices: str | Standing,
    mode: Mode | None = ON,
    resetless: bool = True,
    holders: tuple[str, ...] = (),
    openers: tuple[str, ...] = (),
    geometry: Geometry | None = A100,
) -> Gpu:
    """GPU-a; slices as '1g.10gb@0' are idle and usable."""
    standing = []
    for one in slices:
        if isinstance(one, Standing):
            standing.append(one)
        else:
            profile, _ignored, start = one.partition("@")
            standing.append(Standing(Slice(int(start), profile), FULL))
    around = (people(*holders), people(*openers))
    return Gpu("GPU-a", "0000:07:00.0", "NVIDIA A100-SXM4-80GB", mode, resetless, geometry, tuple(standing), *around)


def held(text: str, *holders: str, compute: tuple[int, ...] = FULL) -> Standing:
    profile, _ignored, start = text.partition("@")
    return Standing(Slice(int(start), profile), compute, people(*holders))


def people(*texts: str) -> tuple[Holder, ...]:
    """'process 7 (x)' is one whom people call process 7."""
    return tuple(Holder(text, text.partition(" (")[0]) for text in texts)


def wish(*slices: str, mig_on: bool = True) -> Wish:
    """'1g.10gb' anywhere, '1g.10gb@4' there."""
    wanted = []
    for one in slices:
        profile, at, start = one.partition("@")
        wanted.append(Wanted(profile, int(start) if at else None))
    return Wish("GPU-a", mig_on, tuple(wanted))


def steps(plan: Plan) -> list[str]:
    assert (plan.gpu.uuid, plan.wish.gpu) == ("GPU-a", "GPU-a")
    assert all(text.startswith("GPU-a: ") for text in plan.texts())
    return [text.removeprefix("GPU-a: ") for text in plan.texts()]


def after(plan: Plan) -> list[str]:
    return [str(one) for one in plan.after]


def refused(found: Gpu, wanted: Wish, reset: bool = False) -> str:
    with pytest.raises(FleetError) as error:
        plan_gpu(found, wanted, reset)
    return str(error.value)


# Slices


def test_what_is_as_wished_gets_no_step() -> None:
    plan = plan_gpu(gpu("3g.40gb@0", "1g.10gb@4", "1g.10gb@6"), wish("1g.10gb", "3g.40gb", "1g.10gb"), False)
    assert (plan.steps, plan.mode, plan.pending, plan.later) == ((), ON, None, ())
    assert after(plan) == ["3g.40gb@0", "1g.10gb@4", "1g.10gb@6"]


def test_one_slice_less_is_one_destroy_and_nothing_else() -> None:
    plan = plan_gpu(gpu("1g.10gb@0", "1g.10gb@1", "1g.10gb@2"), wish("1g.10gb", "1g.10gb"), False)
    assert steps(plan) == ["destroy 1g.10gb at memory slice 2"]
    assert plan.steps == (mig.Step("GPU-a", "destroy", "GPU-a: destroy 1g.10gb at memory slice 2", where=Slice(2, "1g.10gb")),)
    assert after(plan) == ["1g.10gb@0", "1g.10gb@1"]


def test_missing_slices_are_created_beside_those_that_are_there() -> None:
    plan = plan_gpu(gpu("1g.10gb@3"), wish("1g.10gb", "3g.40gb", "1g.10gb"), False)
    assert steps(plan) == ["create 1g.10gb at memory slice 2", "create 3g.40gb at memory slice 4"]
    assert plan.steps[1] == mig.Step("GPU-a", "create", "GPU-a: create 3g.40gb at memory slice 4", where=Slice(4, "3g.40gb"))
    assert after(plan) == ["1g.10gb@2", "1g.10gb@3", "3g.40gb@4"]


def test_destroys_come_before_creates_and_each_by_start() -> None:
    plan = plan_gpu(gpu("1g.10gb@6", "1g.10gb@0", "1g.10gb@4"), wish("3g.40gb@4", "2g.20gb@0"), False)
    assert steps(plan) == [
        "destroy 1g.10gb at memory slice 0",
        "destroy 1g.10gb at memory slice 4",
        "destroy 1g.10gb at memory slice 6",
        "create 2g.20gb at memory slice 0",
        "create 3g.40gb at memory slice 4",
    ]


def test_no_instances_wished_means_none() -> None:
    assert steps(plan_gpu(gpu("1g.10gb@0"), wish(), False)) == ["destroy 1g.10gb at memory slice 0"]


def test_instances_left_out_stay_as_they_are_usable_or_not() -> None:
    found = gpu("1g.10gb@0", held("1g.10gb@1", compute=()))
    plan = plan_gpu(found, Wish("GPU-a", True, None), False)
    assert (plan.steps, after(plan)) == ((), ["1g.10gb@0", "1g.10gb@1"])


def test_a_start_that_is_given_is_kept_to() -> None:
    plan = plan_gpu(gpu("1g.10gb@0"), wish("1g.10gb@5"), False)
    assert steps(plan) == ["destroy 1g.10gb at memory slice 0", "create 1g.10gb at memory slice 5"]


def test_any_spelling_of_a_profile_is_the_boards_own() -> None:
    plan = plan_gpu(gpu("3g.40gb@4"), wish("3g.39gb", "4g.41gb"), False)
    assert steps(plan) == ["create 4g.40gb at memory slice 0"]
    assert steps(plan_gpu(gpu("3g.40gb@0"), wish("3g.39gb@0"), False)) == []


def test_a_gpu_instance_that_nobody_can_use_gets_its_compute_instance() -> None:
    plan = plan_gpu(gpu(held("1g.10gb@2", compute=()), "1g.10gb@4"), wish("1g.10gb", "1g.10gb"), False)
    assert steps(plan) == ["create the compute instance of 1g.10gb at memory slice 2"]
    assert plan.steps[0] == mig.Step(
        "GPU-a", "compute", "GPU-a: create the compute instance of 1g.10gb at memory slice 2", where=Slice(2, "1g.10gb")
    )


def test_a_slice_cut_further_is_left_alone() -> None:
    assert steps(plan_gpu(gpu(held("3g.40gb@0", compute=(0, 0))), wish("3g.40gb"), False)) == []


def test_the_usable_one_of_two_is_kept() -> None:
    found = gpu(held("1g.10gb@0", compute=()), "1g.10gb@1")
    assert steps(plan_gpu(found, wish("1g.10gb"), False)) == ["destroy 1g.10gb at memory slice 0"]


def test_the_busy_one_is_kept_and_idle_ones_go() -> None:
    found = gpu("1g.10gb@0", "1g.10gb@1", held("1g.10gb@2", "process 7 (x)"))
    assert steps(plan_gpu(found, wish("1g.10gb"), False)) == ["destroy 1g.10gb at memory slice 0", "destroy 1g.10gb at memory slice 1"]


def test_one_busy_slice_outweighs_any_number_of_idle_ones() -> None:
    # a 3g.40gb fits at 0 or at 4: three idle slices are at 0, one in use at 4
    found = gpu("1g.10gb@0", "1g.10gb@1", "1g.10gb@2", held("1g.10gb@4", "process 7 (x)"))
    plan = plan_gpu(found, wish("3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb"), False)
    assert steps(plan) == [
        "destroy 1g.10gb at memory slice 0",
        "destroy 1g.10gb at memory slice 1",
        "destroy 1g.10gb at memory slice 2",
        "create 3g.40gb at memory slice 0",
        "create 1g.10gb at memory slice 5",
        "create 1g.10gb at memory slice 6",
    ]


def test_a_slice_that_keeps_what_it_has_is_left_useless_and_a_new_one_is_made_whole() -> None:
    (wanted,) = parse_layout([{"gpu": "GPU-a", "instances": [{"profile": "1g.10gb", "start": 2, "compute": "keep"}]}])
    assert plan_gpu(gpu(held("1g.10gb@2", compute=())), wanted, False).steps == ()
    assert plan_gpu(gpu(held("1g.10gb@2", compute=(0, 0))), wanted, False).steps == ()
    made = plan_gpu(gpu(), wanted, False)
    assert steps(made) == ["create 1g.10gb at memory slice 2"]
    assert made.steps[0].compute is None


# What is refused


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            wish("3g.40gb", "3g.40gb", "2g.20gb"),
            "cannot hold 2g.20gb + 2x3g.40gb: together they need 8 compute slices and the board has 7; "
            "nearest: 2x3g.40gb, or 2g.20gb + 3g.40gb, or 1g.20gb + 2g.20gb + 3g.40gb",
        ),
        (
            wish(*["1g.10gb"] * 8),
            "cannot hold 8x1g.10gb: 8x1g.10gb is more than the 7 that the board allows; "
            "nearest: 7x1g.10gb, or 6x1g.10gb, or 6x1g.10gb + 1g.20gb",
        ),
        (
            wish("2g.20gb@6", "4g.40gb"),
            "cannot hold 2g.20gb + 4g.40gb: 2g.20gb cannot start at memory slice 6, only at 0, 2 or 4; "
            "nearest: 2g.20gb + 4g.40gb, or 1g.20gb + 2g.20gb + 4g.40gb, or 1g.10gb + 2g.20gb + 4g.40gb",
        ),
        (
            wish("3g.40gb@0", "1g.10gb@2"),
            "cannot hold 1g.10gb + 3g.40gb: 3g.40gb@0 and 1g.10gb@2 overlap on memory slice 2; "
            "nearest: 1g.10gb + 3g.40gb, or 1g.10gb + 1g.20gb + 3g.40gb, or 1g.10gb + 2g.20gb + 3g.40gb",
        ),
    ],
)
def test_an_impossible_layout_is_refused_with_the_nearest_ones(wanted: Wish, message: str) -> None:
    assert refused(gpu("1g.10gb@0"), wanted) == f"GPU GPU-a (NVIDIA A100-SXM4-80GB) {message}"


@pytest.mark.parametrize("wanted", [wish("5g.50gb"), wish("5g.50gb@0")])
def test_an_unknown_profile_is_refused_with_those_that_the_board_has(wanted: Wish) -> None:
    assert refused(gpu(), wanted) == (
        "GPU GPU-a (NVIDIA A100-SXM4-80GB): this board has no MIG profile 5g.50gb; "
        "it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"
    )


def test_a_busy_slice_that_would_go_is_refused_with_its_users() -> None:
    found = gpu("1g.10gb@0", held("1g.10gb@4", "process 42 (python3)", "process 43 (tritonserver)"))
    assert refused(found, wish("7g.80gb")) == (
        "GPU GPU-a is in use: process 42 (python3), process 43 (tritonserver) on 1g.10gb@4; "
        "7g.80gb can only start at memory slice 0, which 1g.10gb of process 42 holds; nothing was changed "
        "(first step would be: destroy 1g.10gb at memory slice 0); stop what uses it, or keep the slice in the layout; "
        "nearest layouts that leave it there: 1g.10gb, or 1g.10gb + 3g.40gb, or 1g.10gb + 4g.40gb"
    )


def test_the_reason_speaks_of_places_only_where_they_decide() -> None:
    found = gpu(held("1g.20gb@0", "process 1 (a)"), held("1g.10gb@2", "process 2 (b)"), "1g.10gb@4")
    words = refused(found, wish("1g.10gb@5", "2g.20gb", "1g.10gb@1"))
    assert "; 1g.10gb is wished at memory slice 1, which 1g.20gb of process 1 holds; nothing was changed" in words
    words = refused(found, wish("1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "2g.20gb"))
    assert "; the layout has no 1g.20gb; nothing was changed" in words
    words = refused(gpu(held("1g.10gb@0", "a"), held("1g.10gb@1", "b")), wish("1g.10gb"))
    assert "; the layout has only 1 1g.10gb; nothing was changed" in words
    words = refused(gpu(held("1g.10gb@0", "a"), held("1g.10gb@4", "b")), wish("3g.40gb", "1g.10gb", "1g.10gb"))
    assert "; 3g.40gb can only start at memory slice 0 or 4, which " in words


def test_a_busy_slice_that_stays_is_in_nobodys_way() -> None:
    found = gpu("1g.10gb@0", held("1g.10gb@4", "process 42 (python3)"))
    assert steps(plan_gpu(found, wish("1g.10gb@4"), False)) == ["destroy 1g.10gb at memory slice 0"]


def test_a_user_of_the_gpu_itself_keeps_slices_from_changing() -> None:
    found = gpu("1g.10gb@0", holders=("process 9 (cuda-app)",))
    assert "GPU GPU-a is in use: process 9 (cuda-app) on the GPU itself; nothing was changed" in refused(found, wish())
    assert "process 9 (cuda-app) on the GPU itself" in refused(found, wish("1g.10gb@0", "1g.10gb@1"))
    assert plan_gpu(found, wish("1g.10gb"), False).steps == ()


def test_a_monitor_keeps_the_mode_from_changing_and_not_the_slices() -> None:
    found = gpu("1g.10gb@0", openers=("process 5 (dcgm-exporter)",))
    assert steps(plan_gpu(found, wish(), False)) == ["destroy 1g.10gb at memory slice 0"]
    assert "process 5 (dcgm-exporter) on the GPU itself" in refused(found, wish(mig_on=False))
    assert "process 5 (dcgm-exporter) on the GPU itself" in refused(gpu(mode=OFF, openers=("process 5 (dcgm-exporter)",)), wish())


def test_all_users_are_named_at_once() -> None:
    found = gpu(
        held("1g.10gb@0", "process 1 (a)"), held("1g.10gb@1", "process 2 (b)"), holders=("process 3 (c)",), openers=("process 4 (d)",)
    )
    assert refused(found, wish(mig_on=False)).startswith(
        "GPU GPU-a is in use: process 1 (a) on 1g.10gb@0; process 2 (b) on 1g.10gb@1; process 3 (c), process 4 (d) on the GPU itself;"
    )


# MIG mode


def test_switching_on_comes_first_where_no_reset_is_needed() -> None:
    plan = plan_gpu(gpu(mode=OFF), wish("1g.10gb"), False)
    assert steps(plan) == ["switch MIG on", "create 1g.10gb at memory slice 6"]
    assert plan.steps[0] == mig.Step("GPU-a", "mode", "GPU-a: switch MIG on", mig=True)
    assert (plan.mode, plan.pending, after(plan)) == (ON, None, ["1g.10gb@6"])


def test_where_a_reset_is_needed_nothing_follows_the_mode() -> None:
    plan = plan_gpu(gpu(mode=OFF, resetless=False), wish("1g.10gb"), False)
    assert (steps(plan), plan.mode, plan.pending, plan.after) == (["switch MIG on"], GOING_ON, "it waits for a reset of the GPU", ())


def test_with_reset_allowed_the_run_goes_on() -> None:
    plan = plan_gpu(gpu(mode=OFF, resetless=False), wish("1g.10gb"), True)
    assert steps(plan) == ["switch MIG on", "reset the GPU at 0000:07:00.0 (nvidia-smi -r)", "create 1g.10gb at memory slice 6"]
    assert [step.action for step in plan.steps] == ["mode", "reset", "create"]
    assert (plan.mode, plan.pending) == (ON, None)


def test_no_reset_where_none_is_needed() -> None:
    assert "reset" not in [step.action for step in plan_gpu(gpu(mode=OFF), wish("1g.10gb"), True).steps]
    assert "reset" not in [step.action for step in plan_gpu(gpu(), wish(mig_on=False), True).steps]


@pytest.mark.parametrize("resetless", [True, False])
def test_a_switch_on_that_waits_is_not_asked_for_again(resetless: bool) -> None:
    plan = plan_gpu(gpu(mode=GOING_ON, resetless=resetless), wish("1g.10gb"), False)
    assert (plan.steps, plan.mode, plan.pending) == ((), GOING_ON, mig.RESET_REQUIRED)
    plan = plan_gpu(gpu(mode=GOING_ON, resetless=resetless), wish("1g.10gb"), True)
    assert steps(plan) == ["reset the GPU at 0000:07:00.0 (nvidia-smi -r)", "create 1g.10gb at memory slice 6"]


def test_a_switch_off_that_waits_is_withdrawn_when_mig_is_wished() -> None:
    plan = plan_gpu(gpu("1g.10gb@0", mode=GOING_OFF, resetless=False), wish("1g.10gb", "1g.10gb"), False)
    assert steps(plan) == ["withdraw the switch-off of MIG that waits for a reset", "create 1g.10gb at memory slice 1"]
    assert plan.steps[0].mig is True
    assert (plan.mode, plan.pending) == (ON, None)


def test_a_switch_on_that_waits_is_withdrawn_when_none_is_wished() -> None:
    plan = plan_gpu(gpu(mode=GOING_ON, resetless=False), wish(mig_on=False), False)
    assert steps(plan) == ["withdraw the switch-on of MIG that waits for a reset"]
    assert plan.steps[0].mig is False
    assert (plan.mode, plan.pending) == (OFF, None)


def test_withdrawing_disturbs_nobody() -> None:
    busy = gpu(held("1g.10gb@0", "process 1 (a)"), mode=GOING_OFF, resetless=False, holders=("process 2 (b)",), openers=("process 3 (c)",))
    assert steps(plan_gpu(busy, wish("1g.10gb"), False)) == ["withdraw the switch-off of MIG that waits for a reset"]
    waiting = gpu(mode=GOING_ON, resetless=False, holders=("process 2 (b)",))
    assert steps(plan_gpu(waiting, wish(mig_on=False), False)) == ["withdraw the switch-on of MIG that waits for a reset"]


def test_switching_off_destroys_first() -> None:
    plan = plan_gpu(gpu("1g.10gb@0", "1g.10gb@3"), wish(mig_on=False), False)
    assert steps(plan) == ["destroy 1g.10gb at memory slice 0", "destroy 1g.10gb at memory slice 3", "switch MIG off"]
    assert (plan.mode, plan.pending, plan.after) == (OFF, None, ())
    assert plan.steps[-1].mig is False


def test_switching_off_waits_where_a_reset_is_needed() -> None:
    plan = plan_gpu(gpu("1g.10gb@0", resetless=False), wish(mig_on=False), False)
    assert steps(plan) == ["destroy 1g.10gb at memory slice 0", "switch MIG off"]
    assert (plan.mode, plan.pending) == (GOING_OFF, mig.RESET_REQUIRED)
    plan = plan_gpu(gpu(resetless=False), wish(mig_on=False), True)
    assert steps(plan) == ["switch MIG off", "reset the GPU at 0000:07:00.0 (nvidia-smi -r)"]
    assert (plan.mode, plan.pending) == (OFF, None)


@pytest.mark.parametrize("resetless", [True, False])
def test_a_switch_off_that_waits_is_not_asked_for_again(resetless: bool) -> None:
    plan = plan_gpu(gpu(mode=GOING_OFF, resetless=resetless), wish(mig_on=False), False)
    assert (plan.steps, plan.mode, plan.pending) == ((), GOING_OFF, mig.RESET_REQUIRED)
    plan = plan_gpu(gpu(mode=GOING_OFF, resetless=resetless), wish(mig_on=False), True)
    assert steps(plan) == ["reset the GPU at 0000:07:00.0 (nvidia-smi -r)"]


def test_a_busy_gpu_is_not_reset() -> None:
    found = gpu(mode=GOING_ON, resetless=False, openers=("process 5 (x)",))
    assert "process 5 (x) on the GPU itself; nothing was changed (first step would be: reset the GPU" in refused(
        found, wish("1g.10gb"), reset=True
    )


def test_off_is_off() -> None:
    plan = plan_gpu(gpu(mode=OFF), wish(mig_on=False), True)
    assert (plan.steps, plan.mode, plan.pending) == ((), OFF, None)


def test_an_impossible_layout_is_refused_before_the_mode_is_touched() -> None:
    assert "cannot hold 8x1g.10gb" in refused(gpu(mode=OFF, resetless=False), wish(*["1g.10gb"] * 8))


def test_a_board_without_mig_is_refused_only_when_mig_is_wished() -> None:
    assert refused(gpu(mode=None, geometry=None), wish("1g.10gb")) == (
        "GPU GPU-a (NVIDIA A100-SXM4-80GB) has no MIG; leave it out of the layout, or write mig: false"
    )
    plan = plan_gpu(gpu(mode=None, geometry=None), wish(mig_on=False), True)
    assert (plan.steps, plan.mode, plan.after) == ((), None, ())


def test_a_driver_that_hides_the_geometry_until_mig_is_on_leaves_places_open() -> None:
    plan = plan_gpu(gpu(mode=OFF, geometry=None), wish("1g.10gb", "3g.40gb@4"), False)
    assert steps(plan) == [
        "switch MIG on",
        "create 1g.10gb at a memory slice that is known after apply",
        "create 3g.40gb at memory slice 4",
    ]
    assert len(plan.steps) == 1
    assert (plan.mode, plan.after) == (ON, ())


# Going back


def test_the_wish_to_return_names_every_slice_with_its_compute_instances() -> None:
    found = gpu("3g.40gb@4", held("1g.10gb@0", compute=()), held("2g.20gb@2", compute=(0, 0)))
    back = mig.wish_to_return(found)
    assert back == Wish("GPU-a", True, (Wanted("3g.40gb", 4, FULL), Wanted("1g.10gb", 0, ()), Wanted("2g.20gb", 2, (0, 0))))
    assert plan_gpu(found, back, False).steps == ()
    assert mig.wish_to_return(gpu(mode=GOING_ON)) == Wish("GPU-a", False, ())
    assert mig.wish_to_return(gpu(mode=None)) == Wish("GPU-a", False, ())


def test_returning_makes_exactly_the_compute_instances_that_were_there() -> None:
    back = mig.wish_to_return(gpu(held("1g.10gb@0", compute=()), held("2g.20gb@2", compute=(0, 0)), "1g.10gb@4"))
    plan = plan_gpu(gpu("1g.10gb@0", held("2g.20gb@2", compute=(1,))), back, False)
    assert steps(plan) == [
        "create 1g.10gb at memory slice 4",
        "destroy the compute instances of 1g.10gb at memory slice 0",
        "destroy the compute instances of 2g.20gb at memory slice 2",
        "create the compute instance of 2g.20gb at memory slice 2",
    ]
    assert [(step.action, step.compute) for step in plan.steps] == [("create", FULL), ("strip", None), ("strip", None), ("compute", (0, 0))]


def test_what_somebody_uses_is_not_stripped() -> None:
    back = Wish("GPU-a", True, (Wanted("1g.10gb", 0, ()),))
    assert "process 1 (a) on 1g.10gb@0" in refused(gpu(held("1g.10gb@0", "process 1 (a)")), back)


# Several GPUs


def other(found: Gpu, uuid: str, pci: str) -> Gpu:
    return Gpu(uuid, pci, found.name, found.mode, found.resetless, found.geometry, found.slices, found.holders, found.openers)


def test_gpus_come_by_pci_address_whatever_the_order_of_the_wish() -> None:
    first, second = other(gpu(), "GPU-z", "0000:07:00.0"), other(gpu(), "GPU-a", "0000:47:00.0")
    wished = [(second, wish("1g.10gb")), (first, wish("7g.80gb"))]
    plans = mig.plan_all(wished, False)
    assert [text for plan in plans for text in plan.texts()] == [
        "GPU-z: create 7g.80gb at memory slice 0",
        "GPU-a: create 1g.10gb at memory slice 6",
    ]
    assert mig.plan_all(wished[::-1], False) == plans


def test_every_refusal_is_said_at_once() -> None:
    first, second = other(gpu(), "GPU-1", "0000:07:00.0"), other(gpu(mode=None), "GPU-2", "0000:47:00.0")
    with pytest.raises(FleetError) as error:
        mig.plan_all([(second, wish()), (first, wish("9g.90gb")), (gpu(), wish("1g.10gb"))], False)
    assert str(error.value) == (
        "GPU GPU-1 (NVIDIA A100-SXM4-80GB): this board has no MIG profile 9g.90gb; "
        "it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb; "
        "GPU GPU-2 (NVIDIA A100-SXM4-80GB) has no MIG; leave it out of the layout, or write mig: false"
    )
    with pytest.raises(FleetError) as error:
        mig.plan_all([(first, wish("9g.90gb"))], False)
    assert error.value.hint == "it has 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([("0", "GPU-a"), ("GPU-a", "GPU-a")], "layout: 0 and GPU-a: GPU GPU-a is named twice; name each GPU in one entry"),
        ([("0", "GPU-a"), ("1", "GPU-b"), ("0", "GPU-a")], "layout: 0: GPU GPU-a is named twice; name each GPU in one entry"),
    ],
)
def test_a_gpu_named_twice_is_refused(named: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(FleetError) as error:
        mig.refuse_twins(named)
    assert str(error.value) == message
    mig.refuse_twins([*named[:1], ("1", "GPU-b")])


# The wish as it is written


def test_a_layout_is_read() -> None:
    assert parse_layout(
        [
            {
                "gpu": " GPU-a ",
                "mig": True,
                "instances": [{"profile": "1g.10gb", "count": 2}, {"profile": "3g.40gb", "start": 0, "count": 1}],
            },
            {"gpu": 0, "instances": []},
            {"gpu": "1"},
            {"gpu": "2", "mig": False},
            {"gpu": "3", "mig": False, "instances": []},
            {"gpu": "4", "instances": [{"profile": "1g.10gb", "start": "4", "count": None}, {"profile": "2g.20gb", "count": 0}]},
        ]
    ) == [
        Wish("GPU-a", True, (Wanted("1g.10gb"), Wanted("1g.10gb"), Wanted("3g.40gb", 0))),
        Wish("0", True, ()),
        Wish("1", True, None),
        Wish("2", False, ()),
        Wish("3", False, ()),
        Wish("4", True, (Wanted("1g.10gb", 4),)),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "layout[1].gpu: no GPU is named; give a UUID, a PCI address or an index"),
        ({"gpu": None}, "layout[1].gpu: no GPU is named; give a UUID, a PCI address or an index"),
        ({"gpu": " "}, "layout[1].gpu: no GPU is named; give a UUID, a PCI address or an index"),
        (
            {"gpu": "7", "mig": False, "instances": [{"profile": "1g.10gb"}]},
            "layout[1].instances: GPU 7 cannot have MIG off and instances; write mig: true, or no instances",
        ),
        ({"gpu": "7", "instances": [{}]}, "layout[1].instances[0].profile: no MIG profile is named; write one like 1g.10gb"),
        (
            {"gpu": "7", "instances": [{"profile": "a"}, {"profile": "1g.10gb", "count": -1}]},
            "layout[1].instances[1].count: a count of -1 is impossible; write 0 or more",
        ),
        (
            {"gpu": "7", "instances": [{"profile": "1g.10gb", "count": 65}]},
            "layout[1].instances[0].count: a count of 65 is impossible: no GPU has so many instances; write at most 64",
        ),
        (
            {"gpu": "7", "instances": [{"profile": "1g.10gb", "start": 0, "count": 2}]},
            "layout[1].instances[0].count: 2 instances cannot start at memory slice 0; leave out start or count",
        ),
        (
            {"gpu": "7", "instances": [{"profile": "1g.10gb", "compute": "keep"}]},
            "layout[1].instances[0].compute: what a slice keeps cannot be said without its start; write start, or compute: full",
        ),
    ],
)
def test_a_bad_layout_is_refused_by_field(entry: dict[str, t.Any], message: str) -> None:
    with pytest.raises(FleetError) as error:
        parse_layout([{"gpu": "0"}, entry])
    assert str(error.value) == message


# The diff


def test_the_diff_has_one_line_for_each_slice() -> None:
    text = mig.diff_text(
        [
            ("GPU-a", ON, [(Slice(4, "1g.10gb"), ()), (Slice(0, "3g.40gb"), None), (Slice(5, "2g.20gb"), (1, 1))]),
            ("GPU-b", GOING_ON, []),
            ("GPU-c", GOING_OFF, [(Slice(0, "1g.10gb"), None)]),
            ("GPU-d", OFF, []),
            ("GPU-e", None, []),
        ]
    )
    assert text.splitlines() == [
        "GPU-a MIG on",
        "GPU-a 3g.40gb@0",
        "GPU-a 1g.10gb@4 (no compute instance)",
        "GPU-a 2g.20gb@5 (compute instances 1c, 1c)",
        "GPU-b MIG off (on after a reset)",
        "GPU-c MIG on (off after a reset)",
        "GPU-c 1g.10gb@0",
        "GPU-d MIG off",
        "GPU-e has no MIG",
    ]
    assert text.endswith("has no MIG\n")
    assert mig.diff_text([]) == ""


# Any layout, any wish


@st.composite
def layouts(draw: st.DrawFn) -> list[Slice]:
    places = [Slice(start, profile.name) for profile in A100.profiles for start in profile.starts]
    chosen: list[Slice] = []
    for one in draw(st.lists(st.sampled_from(places), max_size=8)):
        if legal(A100, [*chosen, one]):
            chosen.append(one)
    return chosen


@settings(max_examples=300, deadline=None)
@given(layouts(), layouts(), st.data())
def test_steps_lead_to_the_wish_and_a_second_plan_is_empty(present: list[Slice], target: list[Slice], data: st.DataObject) -> None:
    wanted = tuple(Wanted(one.profile, data.draw(st.sampled_from([one.start, None]))) for one in target)
    # starts that are left open must leave the wish possible: then it is, because the target itself is one way
    plan = plan_gpu(gpu(*(str(one) for one in present)), Wish("GPU-a", True, wanted), False)
    state = set(present)
    for step in plan.steps:
        assert step.where is not None
        if step.action == "destroy":
            state.remove(step.where)
        else:
            assert step.action == "create"
            state.add(step.where)
        assert legal(A100, sorted(state)), "a step leads through an illegal layout"
    assert sorted(state) == list(plan.after)
    assert sorted(one.profile for one in state) == sorted(one.profile for one in target)
    assert {Slice(one.start, one.profile) for one in wanted if one.start is not None} <= state
    again = plan_gpu(gpu(*(str(one) for one in sorted(state))), Wish("GPU-a", True, wanted), False)
    assert again.steps == ()
