# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The smallest change of vGPUs, and what is refused: pure functions on GPUs as they could be."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu import (
    Gpu,
    Offer,
    Place,
    Plan,
    Vgpu,
    plan_all,
    plan_gpu,
    refuse_twins,
    stable_uuid,
    wish_to_return,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_room import Case, Ground, Limit, why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import Scheduler, Wish, line_of, parse_gpus, wish_of_line

NAME = "0000:3b:00.0"
LIMITS = {
    "A100D-4C": Limit(20, 16),
    "A100D-8C": Limit(10, 8),
    "A100D-10C": Limit(8, 8),
    "A100D-20C": Limit(4, 4),
    "A100D-40C": Limit(2, 2),
    "A100D-1-10C": Limit(7),
    "A100D-3-40C": Limit(2),
}


def function(number: int) -> str:
    return f"0000:3b:{(number + 4) >> 3:02x}.{(number + 4) & 7}"


def gpu(*vgpus: Vgpu, offers: t.Iterable[str] = ("A100D-10C", "A100D-20C"), **more: t.Any) -> Gpu:
    """A GPU of the vendor's framework with 12 functions on."""
    free = {name: Offer(str(number), 1) for number, name in enumerate(offers)}
    places = tuple(Place(function(number), False, free) for number in range(12))
    settings: dict[str, t.Any] = {"framework": "vendor", "total_vfs": 12, "vfs": 12, "places": places, "vgpus": vgpus, "mixed": False}
    return Gpu(NAME, **{**settings, **more})


def mine(number: int, kind: str = "A100D-10C", **more: t.Any) -> Vgpu:
    return Vgpu(function(number), kind, **more)


def wish(*vgpus: t.Any, **more: t.Any) -> Wish:
    return parse_gpus([{"gpu": NAME, "vgpus": [one if isinstance(one, dict) else {"type": one} for one in vgpus], **more}])[0]


def plan(here: Gpu, wanted: Wish) -> Plan:
    return plan_gpu(here, wanted, LIMITS)


def steps(here: Gpu, wanted: Wish) -> list[str]:
    return [step.text for step in plan(here, wanted).steps]


def refusal(here: Gpu, wanted: Wish) -> str:
    with pytest.raises(FleetError) as caught:
        plan(here, wanted)
    return str(caught.value)


# What stays


def test_what_is_as_wished_stays_wherever_it_is() -> None:
    here = gpu(mine(7), mine(3))
    assert steps(here, wish("A100D-10C", "A100D-10C")) == []
    assert steps(here, wish({"type": "A100D-10C", "count": 3})) == [f"create A100D-10C on {function(0)}"]


def test_of_several_the_one_in_use_stays_and_then_the_first() -> None:
    here = gpu(mine(0), mine(1), mine(2, users=("virtual machine ocr",)))
    assert steps(here, wish("A100D-10C", "A100D-10C")) == [f"remove A100D-10C on {function(1)}"]


def test_the_one_with_the_wished_parameters_stays() -> None:
    here = gpu(mine(0), mine(1, params=(("enable_uvm", "1"),)))
    assert steps(here, wish({"type": "A100D-10C", "params": {"enable_uvm": True}})) == [f"remove A100D-10C on {function(0)}"]


def test_vgpus_that_are_not_spoken_of_stay() -> None:
    here = gpu(mine(0), scheduler=Scheduler("best-effort"))
    wanted = parse_gpus([{"gpu": NAME, "scheduler": {"policy": "best-effort"}}])[0]
    assert steps(here, wanted) == []


def test_another_size_takes_the_place_of_the_ones_that_go() -> None:
    here = gpu(mine(0), mine(1))
    assert steps(here, wish("A100D-20C", "A100D-20C")) == [
        f"remove A100D-10C on {function(1)}",
        f"remove A100D-10C on {function(0)}",
        f"create A100D-20C on {function(0)}",
        f"create A100D-20C on {function(1)}",
    ]


def test_a_plan_ends_where_a_second_one_has_nothing_to_do() -> None:
    wanted = wish({"type": "A100D-20C", "params": {"enable_uvm": 1}}, "A100D-40C", mixed=True)
    first = plan(gpu(mine(0), mixed=False), wanted)
    assert [step.action for step in first.steps] == ["remove", "mixed", "create", "create", "params"]
    again = plan_gpu(first.after, wanted, {}, judge=False)
    assert again.steps == ()
    back = plan_gpu(first.after, wish_to_return(first.gpu), {}, judge=False)
    assert back.after.vgpus == first.gpu.vgpus
    assert back.after.mixed is False


def test_mediated_devices_have_the_same_names_every_time() -> None:
    here = gpu(framework="mdev", machine="m")
    names = [one.uuid for one in plan(here, wish({"type": "A100D-10C", "count": 2})).after.vgpus]
    assert names == [stable_uuid("m", NAME, "A100D-10C", number) for number in range(2)]
    assert stable_uuid("other", NAME, "A100D-10C", 0) != names[0]
    left = gpu(mine(1, uuid=names[1]), framework="mdev", machine="m")
    assert [one.uuid for one in plan(left, wish({"type": "A100D-10C", "count": 2})).after.vgpus] == names


def test_a_remembered_vgpu_comes_back_to_its_place_under_its_name() -> None:
    kept = line_of(plan(gpu(framework="mdev", machine="m"), wish("A100D-10C", "A100D-20C", mixed=True)).wish)
    again = plan_gpu(gpu(framework="mdev", machine="new", mixed=True), wish_of_line(NAME, kept), {}, judge=False)
    assert [one.uuid for one in again.after.vgpus] == [one["uuid"] for one in kept["vgpus"]]
    assert [one.place for one in again.after.vgpus] == [one["place"] for one in kept["vgpus"]]


def test_a_line_of_another_form_is_refused() -> None:
    with pytest.raises(FleetError, match="KeyError 'scheduler'"):
        wish_of_line(NAME, {"vgpus": []})


# What is refused


def test_one_in_use_that_would_have_to_go_is_a_refusal() -> None:
    words = refusal(gpu(mine(0, users=("virtual machine ocr (defined, not running)",))), wish())
    assert words.startswith(
        f"{NAME}: A100D-10C on {function(0)} is in use by virtual machine ocr (defined, not running), and it would have to go; "
    )


def test_more_than_a_gpu_holds_is_impossible_even_where_functions_are_free() -> None:
    assert "9 A100D-10C are wished, and one GPU has 8 at most" in refusal(gpu(), wish({"type": "A100D-10C", "count": 9}))
    here = gpu(mine(0, "A100D-20C"), offers=("A100D-20C",))
    assert "5 A100D-20C are wished, and one GPU has 4 at most" in refusal(here, wish({"type": "A100D-20C", "count": 5}))


def test_a_size_that_the_driver_does_not_offer_beside_the_others_is_impossible() -> None:
    here = gpu(mine(0), offers=())
    assert "1 more A100D-10C is wished, and the driver has room for 0" in refusal(here, wish("A100D-10C", "A100D-10C"))


@pytest.mark.parametrize(
    ("types", "part"),
    [
        (["A100D-40C", "A100D-20C", "A100D-20C"], None),
        (["A100D-40C", "A100D-20C", "A100D-10C", "A100D-10C"], None),
        (["A100D-40C", "A100D-40C", "A100D-4C"], "take 1.06 of a GPU in mixed-size mode"),
        (["A100D-8C"] * 9, "9 A100D-8C are wished, and in mixed-size mode one GPU has 8 at most"),
        (["A100D-8C"] * 8, None),
    ],
)
def test_in_mixed_size_mode_each_takes_its_part(types: list[str], part: str | None) -> None:
    here = gpu(offers=sorted(LIMITS), mixed=True)
    if part is None:
        assert len(steps(here, wish(*types, mixed=True))) == len(types)
    else:
        assert part in refusal(here, wish(*types, mixed=True))


def cut(*where: str, ident: int = 19) -> tuple[Ground, ...]:
    return tuple(Ground(Slice(int(text.split("@")[1]), text.split("@")[0]), ident) for text in where)


def backed(*where: str, **more: t.Any) -> Gpu:
    settings: dict[str, t.Any] = {"mig": True, "grounds": cut(*where), "backing": {"A100D-1-10C": 19, "A100D-3-40C": 9}}
    return gpu(offers=("A100D-1-10C",), **{**settings, **more})


def test_mig_backed_vgpus_need_a_gpu_instance_each() -> None:
    here = backed("1g.10gb@0", "1g.10gb@1")
    assert len(steps(here, wish("A100D-1-10C", "A100D-1-10C"))) == 2
    assert "3 A100D-1-10C need 3 GPU instances 1g.10gb, and there are 2" in refusal(here, wish(*["A100D-1-10C"] * 3))
    assert "1 A100D-3-40C need 1 GPU instances 3g.40gb, and there is none" in refusal(here, wish("A100D-3-40C"))


def test_several_vgpus_share_a_gpu_instance_that_is_larger_than_they_are() -> None:
    case = Case([], ["DC-1-12Q"] * 4, [], None, 8, {}, mig=True, grounds=cut("1g.24gb@0", "1g.24gb@3"), backing={"DC-1-12Q": 19})
    assert why_not(case) is None
    assert why_not(replace(case, new=["DC-1-12Q"] * 5)) == "5 DC-1-12Q need 3 GPU instances 1g.24gb, and there are 2"


@pytest.mark.parametrize(
    ("here", "wanted", "words"),
    [
        (backed("1g.10gb@0"), wish("A100D-1-10C", "A100D-10C"), "time-sliced and MIG-backed vGPUs exclude each other on one GPU"),
        (gpu(mig=False), wish("A100D-1-10C"), "MIG is off; module mig has to make GPU instances first (1g.10gb)"),
        (backed("1g.10gb@0"), wish("A100D-10C"), "MIG is on, so that only MIG-backed types can be made"),
        (backed("1g.10gb@0"), wish("A100D-1-10C", mixed=True), "mixed-size mode is for time-sliced vGPUs only"),
        (backed("1g.10gb@0"), wish("A100D-1-10C", scheduler={"policy": "equal-share"}), "a scheduler policy is for time-sliced vGPUs only"),
        (
            backed("1g.10gb@0"),
            wish({"type": "A100D-1-10C", "gpu_instance": "1g.10gb@3"}),
            "there is no GPU instance 1g.10gb@3; it has 1g.10gb@0; module mig makes them",
        ),
        (gpu(mixed=None), wish("A100D-10C", mixed=True), "the driver does not say that it has one"),
        (gpu(), wish("A100D-10C", mixed=True, scheduler={"policy": "fixed-share"}), "fixed-share and mixed-size mode exclude each other"),
        (gpu(), wish("A100D-10C", "A100D-20C"), "vGPUs of 10 GB and 20 GB need mixed-size mode"),
        (gpu(places=()), wish("A100D-10C"), "its 12 virtual functions offer no vGPUs: none is in mdev_bus or has a directory nvidia"),
        (gpu(), wish("a vGPU"), "'a vGPU' is no vGPU type; write one like A100D-10C"),
        (
            gpu(),
            wish(*({"type": "A100D-10C", "placement": 3} for _each in range(2)), mixed=True),
            "placement 3 is wished twice; give each vGPU its own",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_contradicts_the_gpu_or_itself_is_refused(here: Gpu, wanted: Wish, words: str) -> None:
    assert words in refusal(here, wanted)


def test_a_vgpu_that_nobody_can_name_is_not_touched() -> None:
    words = refusal(gpu(mine(0, "type number 1428")), wish("A100D-10C"))
    assert f"what type number 1428 on {function(0)} is, neither the driver's lists nor NVML say" in words
    assert steps(gpu(mine(0, "type number 1428")), wish()) == [f"remove type number 1428 on {function(0)}"]


def test_parameters_that_the_driver_shows_by_itself_are_no_difference() -> None:
    wanted = plan(gpu(), wish("A100D-10C")).wish
    shown = mine(0, params=(("frame_rate_limiter", "1"),))
    assert plan_gpu(gpu(shown), wanted, {}, judge=False).steps == ()


def test_gpu_instances_that_module_mig_will_make_count_in_check_mode() -> None:
    here = backed(grounds=cut("1g.10gb@0"))
    wanted = wish("A100D-1-10C", instances=["1g.10gb@0"])
    assert steps(here, wanted) == [f"create A100D-1-10C on {function(0)}"]


def test_every_gpus_refusal_is_said() -> None:
    other = replace(gpu(), name="0000:5e:00.0")
    nine = {"type": "A100D-10C", "count": 9}
    with pytest.raises(FleetError) as caught:
        plan_all([(other, wish(nine)), (gpu(), wish(nine))], LIMITS)
    assert str(caught.value).count("8 at most") == 2
    assert str(caught.value).index("0000:3b") < str(caught.value).index("0000:5e")


def test_a_gpu_that_is_named_twice_is_refused() -> None:
    with pytest.raises(FleetError, match="is named twice; name each GPU in one entry"):
        refuse_twins([("3b:00.0", NAME), ("GPU-1", NAME)])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "gpus[0].gpu: no GPU is named; give gpu: a UUID or PCI address, or parent"),
        ({"gpu": NAME, "parent": "mtty"}, "gpus[0].gpu: a GPU and a parent are named"),
        ({"vgpus": [{"type": " "}]}, "gpus[0].vgpus[0].type: no vGPU type is named"),
        ({"vgpus": [{"type": "A-1C", "count": 300}]}, "gpus[0].vgpus[0].count: a count of 300 is impossible"),
        ({"vgpus": [{"type": "A-1C", "count": 2, "placement": 1}]}, "gpus[0].vgpus[0].placement: 2 vGPUs cannot have one placement"),
        ({"vgpus": [{"type": "A-1C", "gpu_instance": "1g"}]}, "gpus[0].vgpus[0].gpu_instance: '1g' names no GPU instance"),
        ({"vgpus": [{"type": "A-1C", "params": {"a": "1,b=2"}}]}, "gpus[0].vgpus[0].params: 'a=1,b=2' cannot be written"),
        ({"vgpus": [{"type": "A-1C", "params": {"vgpu-placement-id": 1}}]}, "the placement has an option of its own; write placement: 1"),
        ({"vgpus": [{"type": "A-1C"}], "vfs": "off"}, "gpus[0].vfs: virtual functions off, and vGPUs on them"),
        ({"vfs": "off"}, "gpus[0].vgpus: virtual functions off, and nothing is said of the vGPUs on them"),
        ({"scheduler": {"policy": "best-effort", "slice_ms": 2}}, "gpus[0].scheduler.slice_ms: best-effort has no slices to set"),
        ({"scheduler": {"policy": "equal-share", "slice_ms": 31}}, "gpus[0].scheduler.slice_ms: 31 is impossible; write 1 to 30"),
        ({"scheduler": {"policy": "equal-share", "slice_ms": 2, "frequency_hz": 480}}, "slice_ms and frequency_hz exclude each other"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_wish_that_cannot_be_meant_is_refused_with_its_field(entry: dict[str, t.Any], words: str) -> None:
    named = entry if not entry or "gpu" in entry else {"gpu": NAME, **entry}
    with pytest.raises(FleetError) as caught:
        parse_gpus([named])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("new", "gone", "available", "reason"),
    [
        (["mtty-1"] * 3, [], {"mtty-1": 3}, None),
        (["mtty-1"] * 4, [], {"mtty-1": 3}, "4 more mtty-1 are wished, and there is room for 3"),
        (["mtty-1"] * 4, ["mtty-1"], {"mtty-1": 3}, None),
        (["mtty-1"] * 9, ["mtty-2"], {"mtty-1": 3, "mtty-2": 1}, None),  # what that leaves, the kernel says
    ],
)
def test_of_any_parent_only_what_it_offers_is_known(new: list[str], gone: list[str], available: dict[str, int], reason: str | None) -> None:
    assert why_not(Case([], new, gone, available, None, {})) == reason
