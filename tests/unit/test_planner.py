# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner: who gets which place, who keeps it, and in which order."""

from __future__ import annotations

import time
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    GpuLayout,
    Host,
    Instance,
    Need,
    Pin,
    Placement,
    Problem,
    Resources,
)
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s, need, place, problem, where


def plan(given: Problem) -> dict[str, str]:
    """Replica -> where it is; the plan is right in the eyes of the checker."""
    solution = make_plan(given)
    assert planner_checker.complaints(given, solution) == []
    return {placement.name: where(placement) for placement in solution.placements}


def layouts(given: Problem) -> dict[str, str]:
    """'host/number' -> 'mode: slices'."""
    found = make_plan(given).layouts
    return {
        f"{name}/{uuid.rpartition('-')[2]}": " ".join([f"{layout.mode}:", *map(str, layout.slices)])
        for (name, uuid), layout in found.items()
    }


def ports(given: Problem) -> dict[str, dict[str, int]]:
    return {placement.name: dict(placement.ports) for placement in make_plan(given).placements}


# Slices


@pytest.mark.parametrize(
    ("memory", "more", "slice_"),
    [
        (1, {}, "1g.10gb@6"),
        (9856, {}, "1g.10gb@6"),
        (9857, {}, "1g.20gb@6"),
        (19968, {}, "1g.20gb@6"),
        (19968, {"compute": 0.2}, "2g.20gb@4"),
        (19969, {}, "3g.40gb@4"),
        (8192, {"compute": 0.5}, "4g.40gb@0"),
        (8192, {"compute": 1.0}, "7g.80gb@0"),
        (40193, {}, "7g.80gb@0"),
        (0, {"profile": "2g.20gb"}, "2g.20gb@4"),
        (0, {"profile": "3g.39gb"}, "3g.40gb@4"),
        (0, {"profile": "1g.10gb+me"}, "1g.10gb+me@6"),
    ],
)
def test_the_smallest_profile_that_serves_is_taken_where_it_harms_least(memory: int, more: dict[str, t.Any], slice_: str) -> None:
    assert plan(problem([host(gpu())], [need(memory_mib=memory, **more)])) == {"ocr-1": f"h1/0:{slice_}"}


def test_seven_small_slices_fill_a_board_and_an_eighth_has_no_place() -> None:
    given = problem([host(gpu())], [need(replicas=8)])
    starts = [placement.slice.start for placement in make_plan(given).placements if placement.slice]
    # 6 first: it is the only one whose neighbour is stranded anyway. Then the half that is broken already.
    assert starts == [6, 4, 5, 0, 1, 2, 3]
    assert [each.replica for each in make_plan(given).unplaced] == [8]


def test_small_slices_leave_the_half_of_a_board_for_a_large_one() -> None:
    given = problem([host(gpu())], [need("small", replicas=3, priority=90), need("large", memory_mib=30000)])
    assert plan(given)["large-1"] == "h1/0:3g.40gb@0"


def test_a_slice_that_nobody_needs_is_reused_before_one_is_made() -> None:
    given = problem([host(gpu(0), gpu(1, slices="1g.10gb@2 3g.40gb@4"))], [need()])
    assert plan(given) == {"ocr-1": "h1/1:1g.10gb@2"}
    assert layouts(given) == {"h1/1": "mig: 1g.10gb@2 3g.40gb@4"}


def test_a_larger_slice_that_nobody_needs_is_kept_for_those_who_need_it() -> None:
    given = problem([host(gpu(slices="3g.40gb@4"))], [need()])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@0"}
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 3g.40gb@4"}


def test_a_slice_that_nobody_needs_goes_only_when_its_place_is_needed() -> None:
    given = problem([host(gpu(slices="1g.10gb@0 1g.10gb@5"))], [need(memory_mib=30000)])
    assert plan(given) == {"ocr-1": "h1/0:3g.40gb@4"}
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 3g.40gb@4"}


def test_no_slice_goes_while_another_gpu_has_room_without_that() -> None:
    full = gpu(0, slices="1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6")
    given = problem([host(full, gpu(1))], [need("kept"), need("zz", memory_mib=30000)], [place("kept", "0:1g.10gb@3")])
    assert plan(given) == {"kept-1": "h1/0:1g.10gb@3", "zz-1": "h1/1:3g.40gb@4"}


def test_the_cut_that_drops_fewer_slices_is_taken() -> None:
    given = problem([host(gpu(slices="1g.10gb@0 1g.10gb@1 1g.10gb@5"))], [need(memory_mib=30000)])
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 1g.10gb@1 3g.40gb@4"}


def test_a_gpu_in_mig_mode_is_cut_before_another_is_changed() -> None:
    given = problem([host(gpu(0), gpu(1, mig=True))], [need()])
    assert plan(given) == {"ocr-1": "h1/1:1g.10gb@6"}


def test_a_gpu_that_serves_already_is_cut_before_an_empty_one() -> None:
    given = problem([host(gpu(0, mig=True), gpu(1, mig=True))], [need("aa"), need("bb")], [place("bb", "1:1g.10gb@6")])
    assert plan(given) == {"aa-1": "h1/1:1g.10gb@4", "bb-1": "h1/1:1g.10gb@6"}


def test_a_slice_held_by_a_stranger_is_neither_given_away_nor_dropped() -> None:
    held = (Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)), Instance(parse_slice("1g.10gb@4")))
    given = problem([host(gpu(instances=held, mig=True))], [need(), need("big", profile="4g.40gb", priority=10)])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@4"}
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 1g.10gb@4"}


def test_a_slice_that_is_there_is_given_up_where_that_serves_one_more() -> None:
    held = (Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)), Instance(parse_slice("1g.10gb@4")))
    given = problem([host(gpu(instances=held, mig=True))], [need(), need("big", memory_mib=30000, priority=10)])
    assert plan(given) == {"big-1": "h1/0:3g.40gb@4", "ocr-1": "h1/0:1g.10gb@1"}
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 1g.10gb@1 3g.40gb@4"}


def test_a_slice_cut_into_smaller_compute_instances_is_not_given_away() -> None:
    odd = (Instance(parse_slice("1g.10gb@0"), plain=False),)
    assert plan(problem([host(gpu(instances=odd, mig=True))], [need()])) == {"ocr-1": "h1/0:1g.10gb@6"}


def test_media_engines_are_left_to_who_asks_for_them() -> None:
    given = problem([host(gpu(slices="1g.10gb+me@0"))], [need()])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@6"}


def test_a_profile_is_there_only_as_often_as_the_board_allows() -> None:
    given = problem([host(gpu())], [need(profile="1g.10gb+me", replicas=2)])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb+me@6"}


def test_a_board_with_smaller_slices_is_taken_when_they_serve() -> None:
    small = gpu(1, geometry=A30, board="a30", memory_mib=24576)
    assert plan(problem([host(gpu(0), small)], [need(memory_mib=5000)])) == {"ocr-1": "h1/1:1g.6gb@0"}


# Replicas and order


def test_replicas_are_spread_over_hosts_and_then_over_gpus() -> None:
    fleet = [host(gpu(0, "h1"), gpu(1, "h1")), host(gpu(0, "h2"), name="h2")]
    assert plan(problem(fleet, [need(replicas=4)])) == {
        "ocr-1": "h1/0:1g.10gb@6",
        "ocr-2": "h2/0:1g.10gb@6",
        "ocr-3": "h1/1:1g.10gb@6",
        "ocr-4": "h2/0:1g.10gb@4",
    }


def test_higher_priority_is_placed_first() -> None:
    given = problem([host(gpu())], [need("aa", memory_mib=60000, priority=10), need("zz", priority=20)])
    assert plan(given) == {"zz-1": "h1/0:1g.10gb@6"}


def test_of_one_priority_the_larger_is_placed_first() -> None:
    given = problem([host(gpu())], [need("aa"), need("zz", memory_mib=60000)])
    assert plan(given) == {"zz-1": "h1/0:7g.80gb@0"}


def test_a_profile_counts_by_its_gigabytes() -> None:
    given = problem([host(gpu())], [need("aa", memory_mib=9000), need("zz", memory_mib=0, profile="7g.80gb")])
    assert plan(given) == {"zz-1": "h1/0:7g.80gb@0"}


def test_whole_gpus_are_given_before_slices_of_the_same_priority() -> None:
    given = problem([host(gpu())], [need("aa", memory_mib=70000), need("zz", "exclusive", 1000)])
    assert plan(given) == {"zz-1": "h1/0"}


def test_more_gpus_are_placed_before_fewer() -> None:
    given = problem([host(gpu(0), gpu(1), gpu(2))], [need("aa", "exclusive", 70000), need("zz", "exclusive", 1000, count=2)])
    assert plan(given) == {"aa-1": "h1/2", "zz-1": "h1/0,1"}


def test_of_plans_that_serve_as_many_the_one_on_fewer_gpus_stands() -> None:
    given = problem([host(gpu(0), gpu(1))], [need("aa", "exclusive", 70000), need("zz", "exclusive", 1000, count=2)])
    assert plan(given) == {"aa-1": "h1/0"}


def test_more_compute_is_placed_before_less() -> None:
    given = problem([host(gpu())], [need("aa", replicas=2, memory_mib=30000), need("zz", memory_mib=30000, compute=0.5)])
    assert plan(given) == {"aa-1": "h1/0:3g.40gb@4", "zz-1": "h1/0:4g.40gb@0"}


def test_names_decide_between_equals() -> None:
    given = problem([host(gpu())], [need("bb", memory_mib=60000), need("aa", memory_mib=60000)])
    assert plan(given) == {"aa-1": "h1/0:7g.80gb@0"}


# Whole and shared GPUs


def test_whole_gpus_come_from_boards_without_mig_first() -> None:
    given = problem([host(gpu(0, memory_mib=46068), l40s(1))], [need(isolation="exclusive")])
    assert plan(given) == {"ocr-1": "h1/1"}


def test_the_smallest_board_that_serves_is_given_as_a_whole() -> None:
    given = problem([host(gpu(0), l40s(1))], [need(isolation="exclusive")])
    assert plan(given) == {"ocr-1": "h1/1"}
    assert plan(problem([host(gpu(0), l40s(1))], [need(isolation="exclusive", memory_mib=46069)])) == {"ocr-1": "h1/0"}
    assert plan(problem([host(gpu(0), l40s(1))], [need(isolation="exclusive", memory_mib=46068)])) == {"ocr-1": "h1/1"}


def test_a_gpu_whose_mode_need_not_change_is_given_as_a_whole() -> None:
    assert plan(problem([host(gpu(0, mig=True), gpu(1))], [need(isolation="exclusive")])) == {"ocr-1": "h1/1"}
    assert layouts(problem([host(gpu(0, slices="1g.10gb@0"))], [need(isolation="exclusive")])) == {"h1/0": "whole:"}


def test_the_gpus_of_one_replica_are_of_one_board_and_one_host() -> None:
    fleet = [host(gpu(0), l40s(1)), host(l40s(0, "h2"), l40s(1, "h2"), name="h2")]
    assert plan(problem(fleet, [need(isolation="exclusive", count=2)])) == {"ocr-1": "h2/0,1"}


def test_the_host_that_is_left_with_the_fewest_free_gpus_is_taken() -> None:
    fleet = [host(l40s(0), l40s(1), l40s(2)), host(l40s(0, "h2"), l40s(1, "h2"), name="h2")]
    assert plan(problem(fleet, [need(isolation="exclusive", count=2)])) == {"ocr-1": "h2/0,1"}


def test_whole_gpus_are_spread_over_hosts() -> None:
    fleet = [host(l40s(0), l40s(1)), host(l40s(0, "h2"), l40s(1, "h2"), l40s(2, "h2"), name="h2")]
    assert plan(problem(fleet, [need(isolation="exclusive", replicas=2)])) == {"ocr-1": "h1/0", "ocr-2": "h2/0"}


def test_sharers_share_as_much_as_the_host_allows() -> None:
    given = problem([host(l40s(0), l40s(1), modes=("shared",), shared_max=2)], [need(name, "shared", 8000) for name in ("aa", "bb", "cc")])
    assert plan(given) == {"aa-1": "h1/0", "bb-1": "h1/0", "cc-1": "h1/1"}
    assert layouts(given) == {"h1/0": "shared:", "h1/1": "shared:"}


def test_sharers_never_get_more_memory_than_there_is_less_the_reserve() -> None:
    def fits(memory: int) -> bool:
        world = host(l40s(0), modes=("shared",), shared_reserve_mib=68)
        return len(plan(problem([world], [need("aa", "shared", 30000), need("bb", "shared", memory)]))) == 2

    assert fits(16000)
    assert not fits(16001)


def test_sharers_never_get_more_compute_than_may_be_promised() -> None:
    def fits(compute: float, promised: float = 1.0) -> bool:
        world = host(l40s(0), modes=("shared",), shared_compute=promised)
        wanted = [need("aa", "shared", 9000, compute=0.7), need("bb", "shared", 8000, compute=compute)]
        return len(plan(problem([world], wanted))) == 2

    assert fits(0.3)
    assert not fits(0.31)
    assert fits(0.8, 1.5)
    assert not fits(0.81, 1.5)


def test_the_fullest_shared_gpu_is_filled_first() -> None:
    before = [place("aa", "0", mode="shared"), place("bb", "1", mode="shared")]
    wanted = [need("aa", "shared", 1000), need("bb", "shared", 9000), need("cc", "shared", 1000)]
    assert plan(problem([host(l40s(0), l40s(1), modes=("shared",))], wanted, before))["cc-1"] == "h1/1"


def test_replicas_do_not_share_a_gpu_as_long_as_there_is_another() -> None:
    given = problem([host(l40s(0), l40s(1), modes=("shared",))], [need(isolation="shared", replicas=3)])
    assert plan(given) == {"ocr-1": "h1/0", "ocr-2": "h1/1", "ocr-3": "h1/0"}


def test_a_board_without_mig_is_shared_before_one_that_can_be_cut() -> None:
    world = host(gpu(0, memory_mib=46068), l40s(1), modes=("mig", "shared"))
    assert plan(problem([world], [need(isolation="shared")])) == {"ocr-1": "h1/1"}


def test_one_gpu_has_one_mode() -> None:
    world = host(gpu(), modes=("mig", "whole", "shared"))
    assert plan(problem([world], [need("aa", priority=90), need("bb", "shared"), need("cc", "exclusive")])) == {"aa-1": "h1/0:1g.10gb@6"}


def test_reuse_comes_before_a_cut_that_harms_less_on_a_gpu_that_serves() -> None:
    serving = [place("aa", "0:1g.10gb@6")]
    given = problem([host(gpu(0, mig=True), gpu(1, slices="1g.10gb@0"))], [need("aa"), need("zz")], serving)
    assert plan(given)["zz-1"] == "h1/1:1g.10gb@0"


def test_a_gpu_that_serves_is_cut_before_an_idle_one_where_that_harms_less() -> None:
    held = tuple(Instance(parse_slice(text), outsiders=("someone",)) for text in ("1g.10gb@0", "1g.10gb@2", "1g.10gb@4"))
    given = problem([host(gpu(0, mig=True), gpu(1, mig=True, instances=held))], [need("aa"), need("zz")], [place("aa", "0:1g.10gb@1")])
    assert plan(given)["zz-1"] == "h1/0:1g.10gb@0"


def test_shares_are_spread_over_hosts() -> None:
    fleet = [host(l40s(0), l40s(1), modes=("shared",)), host(l40s(0, "h2"), name="h2", modes=("shared",))]
    assert plan(problem(fleet, [need(isolation="shared", replicas=3)])) == {"ocr-1": "h1/0", "ocr-2": "h2/0", "ocr-3": "h1/1"}


def test_a_gpu_whose_mode_need_not_change_is_shared() -> None:
    world = host(gpu(0, mig=True), gpu(1), gpu(2), modes=("mig", "shared"))
    given = problem([world], [need(isolation="shared")], [])
    assert plan(given) == {"ocr-1": "h1/1"}


def test_boards_that_are_not_wanted_are_passed_over() -> None:
    world = host(gpu(0), l40s(1), gpu(2), modes=("mig", "whole", "shared"))
    for isolation in ("exclusive", "shared"):
        assert plan(problem([world], [need(isolation=isolation, models=("l40s",))])) == {"ocr-1": "h1/1"}
    assert plan(problem([world], [need(models=("a100",), not_models=("l40s",))])) == {"ocr-1": "h1/0:1g.10gb@6"}
    full = [place("aa", "0", mode="shared")]
    fleet = [host(l40s(0), l40s(1), modes=("shared",), shared_max=1)]
    assert plan(problem(fleet, [need("aa", "shared"), need("bb", "shared")], full)) == {"aa-1": "h1/0", "bb-1": "h1/1"}


def test_of_two_hosts_the_one_whose_gpus_need_not_change_gives_them() -> None:
    fleet = [host(gpu(0, mig=True), gpu(1)), host(gpu(0, "h2"), gpu(1, "h2"), gpu(2, "h2"), name="h2")]
    assert plan(problem(fleet, [need(isolation="exclusive", count=2)])) == {"ocr-1": "h2/0,1"}


def test_of_two_boards_on_one_host_the_smaller_is_given() -> None:
    world = host(gpu(0), gpu(1), l40s(2), l40s(3))
    assert plan(problem([world], [need(isolation="exclusive", count=2)])) == {"ocr-1": "h1/2,3"}


def test_whole_use_leaves_the_boards_that_can_be_cut() -> None:
    world = host(gpu(0, board="same", memory_mib=46068), l40s(1, board="same"))
    assert plan(problem([world], [need(isolation="exclusive")])) == {"ocr-1": "h1/1"}


def test_a_service_without_a_compute_need_fits_beside_one_that_takes_all() -> None:
    world = host(l40s(0), modes=("shared",))
    wanted = [need("aa", "shared", 9000, compute=1.0), need("bb", "shared", 8000)]
    expected = {"aa-1": "h1/0", "bb-1": "h1/0"}
    assert plan(problem([world], wanted)) == expected
    assert plan(problem([world], wanted, [place("bb", "0", mode="shared"), place("aa", "0", mode="shared")])) == expected


# What policy, hosts and people allow


@pytest.mark.parametrize(
    "world",
    [
        host(gpu(), environment="staging"),
        host(gpu(), modes=("whole",)),
        host(gpu(cordoned=True)),
        host(gpu(blocked="lost")),
        host(gpu(outsiders=("someone",))),
        host(gpu(pin=Pin("whole"))),
        host(gpu(pin=Pin("mig", (Slice(4, "3g.40gb"),)), instances=(Instance(Slice(4, "3g.40gb"), outsiders=("someone",)),), mig=True)),
        host(l40s()),
        host(gpu(board="h100-pcie-80gb")),
        host(gpu(board="a100-pcie-40gb")),
        host(),
    ],
    ids=["environment", "mode", "cordoned", "lost", "busy", "pinned whole", "pinned and busy", "no MIG", "model", "not_models", "no GPU"],
)
def test_nothing_is_put_where_it_may_not_be(world: Host) -> None:
    assert plan(problem([world], [need(models=("a100",), not_models=("40GB",))])) == {}


@pytest.mark.parametrize(("mode", "isolation"), [("whole", "exclusive"), ("shared", "shared")])
def test_a_pin_gives_nobody_a_gpu_on_which_somebody_computes_who_is_in_no_plan(mode: t.Any, isolation: str) -> None:
    asked = problem([host(gpu(pin=Pin(mode), outsiders=("someone",)))], [need(isolation=isolation)])
    solution = make_plan(asked)
    assert solution.placements == ()
    assert "busy with someone" in solution.unplaced[0].reason
    assert plan(replace(asked, hosts=(host(gpu(pin=Pin(mode))),))) == {"ocr-1": "h1/0"}


def test_a_model_is_found_by_a_part_of_its_name_in_any_case() -> None:
    assert plan(problem([host(gpu(0), l40s(1), modes=("whole",))], [need(isolation="exclusive", models=("SXM4",))])) == {"ocr-1": "h1/0"}


def test_pinned_layouts_are_assigned_into_and_never_changed() -> None:
    pin = Pin("mig", (Slice(0, "1g.10gb"), Slice(4, "3g.40gb")))
    given = problem([host(gpu(pin=pin), modes=("whole",))], [need(replicas=3)])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@0", "ocr-2": "h1/0:3g.40gb@4"}
    assert layouts(given) == {"h1/0": "mig: 1g.10gb@0 3g.40gb@4"}


def test_a_pinned_gpu_is_laid_out_even_when_nobody_needs_it() -> None:
    given = problem([host(gpu(0, pin=Pin("mig", (Slice(4, "3g.40gb"),))), gpu(1, pin=Pin("whole")), gpu(2))], [])
    assert layouts(given) == {"h1/0": "mig: 3g.40gb@4", "h1/1": "whole:"}


def test_a_lost_gpu_is_in_no_layout_though_pinned() -> None:
    assert layouts(problem([host(gpu(pin=Pin("whole"), blocked="lost"))], [])) == {}


def test_a_gpu_that_no_decision_touches_is_in_no_layout() -> None:
    assert layouts(problem([host(gpu(0, slices="1g.10gb@0"), gpu(1))], [])) == {}


def test_a_gpu_busy_in_whole_use_is_not_cut() -> None:
    given = problem([host(gpu(0, outsiders=("python (pid 7)",)), gpu(1))], [need(replicas=2)])
    assert plan(given) == {"ocr-1": "h1/1:1g.10gb@6", "ocr-2": "h1/1:1g.10gb@4"}


def test_slices_held_by_strangers_keep_a_gpu_from_whole_use() -> None:
    held = (Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)),)
    world = host(gpu(0, instances=held, mig=True), modes=("whole", "shared"))
    assert plan(problem([world], [need("aa", "exclusive"), need("bb", "shared")])) == {}


@pytest.mark.parametrize("kind", ["cpus", "memory", "shm", "disk"])
def test_a_host_gives_no_more_than_it_has(kind: str) -> None:
    world = host(gpu(), capacity=replace(Resources(None, None, None, None), **{kind: 10}))
    exact = problem([world], [need(replicas=3, resources=Resources(**{kind: 5}))])
    assert sorted(plan(exact)) == ["ocr-1", "ocr-2"]
    assert plan(problem([world], [need(resources=Resources(**{kind: 11}))])) == {}


def test_parts_of_cpus_add_up_exactly() -> None:
    given = problem([host(gpu(), capacity=Resources(0.3, None, None, None))], [need(replicas=3, resources=Resources(0.1))])
    assert len(plan(given)) == 3


# Ports


def test_the_lowest_free_port_is_chosen() -> None:
    world = host(gpu(), ports=(18000, 18001, 18002, 18003), listening=frozenset({18001}))
    assert ports(problem([world], [need(replicas=2, ports=(("http", None), ("metrics", None)))])) == {
        "ocr-1": {"http": 18000, "metrics": 18002}
    }


def test_a_port_asked_for_by_number_is_had_and_left_alone_by_others() -> None:
    wanted = [need("aa", ports=(("http", None),)), need("zz", ports=(("http", 18000),))]
    assert ports(problem([host(gpu())], wanted)) == {"aa-1": {"http": 18001}, "zz-1": {"http": 18000}}


def test_replicas_that_ask_for_one_port_go_to_different_hosts() -> None:
    fleet = [host(gpu(0), gpu(1)), host(gpu(0, "h2"), name="h2")]
    given = problem(fleet, [need(replicas=3, ports=(("http", 17000),))])
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@6", "ocr-2": "h2/0:1g.10gb@6"}


def test_a_port_where_somebody_else_listens_is_not_had() -> None:
    given = problem([host(gpu(), listening=frozenset({17000}))], [need(ports=(("http", 17000),))])
    assert plan(given) == {}


def test_a_kept_service_keeps_its_port() -> None:
    world = host(gpu(slices="1g.10gb@6"))
    given = problem([world], [need(ports=(("http", None),))], [place("ocr", "0:1g.10gb@6", http=18005)])
    assert ports(given) == {"ocr-1": {"http": 18005}}


def test_a_kept_service_gets_ports_for_new_names_and_keeps_the_others() -> None:
    before = [place("ocr", "0:1g.10gb@6", http=18000, old=18001), place("zz", "0:1g.10gb@4", http=18002)]
    wanted = [need(ports=(("admin", None), ("http", None))), need("zz", ports=(("http", None),))]
    assert ports(problem([host(gpu())], wanted, before)) == {"ocr-1": {"admin": 18003, "http": 18000}, "zz-1": {"http": 18002}}


def test_a_kept_service_moves_from_a_port_that_is_not_in_the_range_any_more() -> None:
    given = problem([host(gpu(), ports=(19000,))], [need(ports=(("http", None),))], [place("ocr", "0:1g.10gb@6", http=18000)])
    assert ports(given) == {"ocr-1": {"http": 19000}}
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@6"}


def test_a_service_that_moves_on_its_host_takes_its_port_along() -> None:
    world = host(gpu(0, cordoned=False, blocked="lost"), gpu(1))
    given = problem([world], [need(ports=(("http", None),))], [place("ocr", "0:1g.10gb@6", http=18007)])
    assert (plan(given), ports(given)) == ({"ocr-1": "h1/1:1g.10gb@6"}, {"ocr-1": {"http": 18007}})


def test_the_number_that_a_service_now_asks_for_replaces_the_one_it_had() -> None:
    before = [place("ocr", "0:1g.10gb@6", http=18000, metrics=18001)]
    wanted = [need(ports=(("http", None), ("metrics", 18000)))]
    assert ports(problem([host(gpu())], wanted, before)) == {"ocr-1": {"http": 18002, "metrics": 18000}}


def test_a_port_held_by_a_kept_service_is_not_given_to_a_more_important_new_one() -> None:
    before = [place("aa", "0:1g.10gb@6", http=18000)]
    wanted = [need("aa", ports=(("http", None),), priority=10), need("zz", ports=(("http", 18000),), priority=90)]
    assert ports(problem([host(gpu())], wanted, before)) == {"aa-1": {"http": 18000}}


def test_of_two_services_that_had_one_port_the_second_gets_another() -> None:
    before = [place("aa", "0:1g.10gb@6", http=18000), place("zz", "0:1g.10gb@4", http=18000)]
    wanted = [need("aa", ports=(("http", None),)), need("zz", ports=(("http", None),))]
    given = problem([host(gpu())], wanted, before)
    assert ports(given) == {"aa-1": {"http": 18000}, "zz-1": {"http": 18001}}
    assert ports(problem([host(gpu())], wanted, before[::-1])) == ports(given)


def test_a_replica_that_two_lines_name_stays_at_the_first_whatever_their_order() -> None:
    before = [place("ocr", "0:1g.10gb@6"), place("ocr", "0:1g.10gb@3"), place("ocr", "0:1g.10gb@4")]
    for lines in (before, before[::-1]):
        assert plan(problem([host(gpu())], [need()], lines)) == {"ocr-1": "h1/0:1g.10gb@3"}


def test_a_service_that_comes_back_to_its_host_does_not_take_the_port_of_another() -> None:
    world = host(gpu(0, blocked="lost"), gpu(1))
    before = [place("aa", "0:1g.10gb@6", http=18000), place("zz", "1:1g.10gb@4", http=18000)]
    wanted = [need("aa", ports=(("http", None),)), need("zz", ports=(("http", None),))]
    assert ports(problem([world], wanted, before)) == {"aa-1": {"http": 18001}, "zz-1": {"http": 18000}}


@pytest.mark.parametrize(("there", "port"), [(range(18000, 18010), 18001), (range(18000, 18001), 18000)], ids=["others left", "no other"])
def test_the_port_of_a_service_that_leaves_the_host_is_given_only_if_no_other_is_left(there: range, port: int) -> None:
    """It serves there until it serves elsewhere, and whoever gets its port would have to wait for that."""
    fleet = [host(gpu(0), environment="staging", ports=tuple(there)), host(gpu(0, "h2"), name="h2")]
    wanted = [need("aa", ports=(("http", None),)), need("zz", ports=(("http", None),), environment="staging")]
    assert ports(problem(fleet, wanted, [place("aa", "0:1g.10gb@6", http=18000)])) == {"aa-1": {"http": 18000}, "zz-1": {"http": port}}
    # Whoever is wanted no more stops first.
    assert ports(problem(fleet, wanted[1:], [place("aa", "0:1g.10gb@6", http=18000)])) == {"zz-1": {"http": 18000}}


def test_whoever_loses_its_port_to_one_that_asks_for_it_by_number_does_not_get_that_one_s_old_port() -> None:
    before = [place("aa", "0:1g.10gb@6", http=18000), place("zz", "0:1g.10gb@4", http=18001)]
    wanted = [need("aa", ports=(("http", 18001),)), need("zz", ports=(("http", None),))]
    asked = replace(problem([host(gpu())], wanted, before), changed=frozenset({"aa"}), moves=2)
    assert ports(asked) == {"aa-1": {"http": 18001}, "zz-1": {"http": 18002}}


# Who stays


def test_what_is_placed_stays_though_a_better_place_is_free() -> None:
    before = [place("ocr", "1:2g.20gb@2")]
    assert plan(problem([host(gpu(0, mig=True), gpu(1))], [need()], before)) == {"ocr-1": "h1/1:2g.20gb@2"}


def test_new_services_never_push_out_those_that_are_placed() -> None:
    before = [place("aa", "0:7g.80gb@0")]
    given = problem([host(gpu())], [need("aa", memory_mib=60000, priority=1), need("zz", memory_mib=60000, priority=100)], before)
    assert plan(given) == {"aa-1": "h1/0:7g.80gb@0"}


def test_a_service_without_manifest_and_a_replica_too_many_free_their_places() -> None:
    before = [place("gone", "0:3g.40gb@4"), place("ocr", "0:3g.40gb@0"), place("ocr", "0:1g.10gb@6", replica=2)]
    given = problem([host(gpu())], [need(memory_mib=30000), need("new", memory_mib=30000)], before)
    assert plan(given) == {"ocr-1": "h1/0:3g.40gb@0", "new-1": "h1/0:3g.40gb@4"}


@pytest.mark.parametrize(
    ("world", "wanted"),
    [
        (host(gpu(0), environment="staging"), need()),
        (host(gpu(0, blocked="lost")), need()),
        (host(gpu(0), modes=("whole",)), need()),
        (host(gpu(0)), need(memory_mib=9857)),
        (host(gpu(0)), need(compute=0.2)),
        (host(gpu(0)), need(profile="1g.20gb")),
        (host(gpu(0)), need(models=("h100",))),
        (host(gpu(0)), need(not_models=("a100",))),
        (host(gpu(0)), need(isolation="exclusive")),
        (host(gpu(0)), need(ports=(("http", 18001),))),
        (host(gpu(0), capacity=Resources(1)), need(resources=Resources(2))),
        (host(gpu(0, pin=Pin("mig", (Slice(4, "1g.10gb"),)))), need()),
        (host(gpu(0, pin=Pin("whole"))), need()),
        (host(l40s(0)), need()),
        (host(gpu(0, geometry=A30)), need()),
        (host(gpu(0, instances=(Instance(Slice(4, "3g.40gb"), outsiders=("someone",)),))), need()),
        (host(gpu(1)), need()),
    ],
    ids=range(17),
)
def test_a_place_that_is_not_right_any_more_is_left(world: Host, wanted: Need) -> None:
    refuge = host(gpu(0, "h2"), l40s(1, "h2", board="h100", geometry=gpu().geometry), name="h2")
    blocker = host(gpu(0, "h0"), name="h0", listening=frozenset({18001}))
    before = [place("ocr", "0:1g.10gb@6")]
    listening = replace(world, listening=frozenset({18001}))
    given = problem([listening, refuge, blocker], [wanted], before)
    assert not plan(given)["ocr-1"].startswith("h1/0:1g.10gb@6")


def test_a_place_whose_memory_just_suffices_is_kept() -> None:
    assert plan(problem([host(gpu(0), gpu(1, mig=True))], [need(memory_mib=9856)], [place("ocr", "0:1g.10gb@1")])) == {
        "ocr-1": "h1/0:1g.10gb@1"
    }
    kept = problem([host(l40s(0), l40s(1))], [need(isolation="exclusive", memory_mib=46068)], [place("ocr", "1", mode="whole")])
    assert plan(kept) == {"ocr-1": "h1/1"}
    grown = problem([host(l40s(1), gpu(0))], [need(isolation="exclusive", memory_mib=46069)], [place("ocr", "1", mode="whole")])
    assert plan(grown) == {"ocr-1": "h1/0"}


def test_whole_gpus_are_kept_as_long_as_their_number_is_right() -> None:
    world = host(l40s(0), l40s(1), l40s(2))
    before = [place("ocr", "1,2", mode="whole")]
    assert plan(problem([world], [need(isolation="exclusive", count=2)], before)) == {"ocr-1": "h1/1,2"}
    assert plan(problem([world], [need(isolation="exclusive", count=1)], before)) == {"ocr-1": "h1/0"}


def test_two_last_plans_for_one_gpu_do_not_both_hold() -> None:
    before = [place("aa", "0", mode="whole"), place("bb", "0", mode="whole")]
    given = problem([host(l40s(0), l40s(1))], [need("aa", "exclusive"), need("bb", "exclusive", priority=60)], before)
    assert plan(given) == {"aa-1": "h1/1", "bb-1": "h1/0"}
    mixed = [place("aa", "0", mode="whole"), place("bb", "0", mode="shared"), place("cc", "0:1g.10gb@0")]
    world = host(gpu(0), modes=("mig", "whole", "shared"))
    wanted = [need("aa", "exclusive", priority=60), need("bb", "shared"), need("cc")]
    assert plan(problem([world], wanted, mixed)) == {"aa-1": "h1/0"}


def test_sharers_are_kept_as_long_as_they_fit() -> None:
    before = [place("aa", "0", mode="shared"), place("bb", "0", mode="shared")]
    world = host(l40s(0), l40s(1), modes=("shared",))
    assert plan(problem([world], [need("aa", "shared"), need("bb", "shared")], before)) == {"aa-1": "h1/0", "bb-1": "h1/0"}
    assert plan(problem([world], [need("aa", "shared", 30000), need("bb", "shared", 30000)], before)) == {"aa-1": "h1/0", "bb-1": "h1/1"}


def test_a_replica_named_by_two_plans_stays_on_the_host_that_is_here() -> None:
    before = [place("ocr", "0:1g.10gb@1", on="h0"), place("ocr", "0:1g.10gb@2", on="h2")]
    assert plan(problem([host(gpu(0, "h2"), name="h2")], [need()], before)) == {"ocr-1": "h2/0:1g.10gb@2"}
    both = [host(gpu(0, "h0"), name="h0"), host(gpu(0, "h2"), name="h2")]
    assert plan(problem(both, [need()], before)) == {"ocr-1": "h0/0:1g.10gb@1"}


def test_what_runs_on_a_host_that_is_not_here_runs_on() -> None:
    before = [place("ocr", "0:1g.10gb@1", on="away", http=18000)]
    given = problem([host(gpu())], [need(replicas=2, ports=(("http", None),))], before)
    solution = make_plan(given)
    assert solution.placements[0] == before[0]
    assert plan(given) == {"ocr-1": "away/0:1g.10gb@1", "ocr-2": "h1/0:1g.10gb@6"}


def test_a_cordoned_gpu_gets_nothing_new_and_loses_nothing() -> None:
    before = [place("ocr", "0:1g.10gb@6")]
    given = problem([host(gpu(0, cordoned=True), gpu(1))], [need(), need("new")], before)
    assert plan(given) == {"ocr-1": "h1/0:1g.10gb@6", "new-1": "h1/1:1g.10gb@6"}


# Adopted services


def test_an_adopted_service_keeps_its_place_whatever_it_says() -> None:
    before = [place("found", "0:1g.10gb@3", http=80), place("aa", "0:2g.20gb@2")]
    world = host(gpu(0, cordoned=True), modes=("whole",), environment="staging", capacity=Resources(0), listening=frozenset({80}))
    adopted = need("found", memory_mib=60000, adopted=True, resources=Resources(9), ports=(("http", None),))
    given = problem([world], [adopted, need("aa", priority=100)], before)
    solution = make_plan(given)
    assert [(where(each), each.ports) for each in solution.placements] == [("h1/0:1g.10gb@3", (("http", 80),))]


def test_adopted_services_come_before_those_of_higher_priority() -> None:
    before = [place("aa", "0:2g.20gb@2"), place("zz", "0:1g.10gb@3")]
    given = problem([host(gpu())], [need("aa", priority=100), need("zz", adopted=True, priority=0)], before)
    assert plan(given) == {"aa-1": "h1/0:1g.10gb@2", "zz-1": "h1/0:1g.10gb@3"}


def test_an_adopted_service_without_a_place_is_not_given_one() -> None:
    assert plan(problem([host(gpu())], [need(adopted=True)])) == {}
    assert plan(problem([host(gpu(blocked="lost"))], [need(adopted=True)], [place("ocr", "0:1g.10gb@3")])) == {}


@pytest.mark.parametrize("hosts", [1, 101])
def test_adopted_services_alone_are_told_that_they_have_no_place_however_large_the_fleet(hosts: int) -> None:
    there = [host(l40s(0, f"h{number}"), name=f"h{number}") for number in range(hosts)]
    found = make_plan(problem(there, [need(f"a{number}", "exclusive", adopted=True) for number in range(60)]))
    assert (len(found.placements), len(found.unplaced)) == (0, 60)
    assert all(each.reason for each in found.unplaced)


def test_adopted_sharers_may_be_more_than_policy_allows() -> None:
    before = [place("aa", "0", mode="shared"), place("bb", "0", mode="shared")]
    wanted = [need("aa", "shared", 40000, adopted=True), need("bb", "shared", 40000, adopted=True), need("cc", "shared", 1)]
    given = problem([host(l40s(0), modes=("shared",), shared_max=1)], wanted, before)
    assert plan(given) == {"aa-1": "h1/0", "bb-1": "h1/0"}


# The whole


def test_a_solution_is_in_order_of_services_and_replicas() -> None:
    given = problem([host(gpu(), l40s(1))], [need("bb", replicas=2), need("aa"), need("zz", "exclusive", 90000, replicas=2)])
    solution = make_plan(given)
    assert [each.name for each in solution.placements] == ["aa-1", "bb-1", "bb-2"]
    assert [(each.service, each.replica) for each in solution.unplaced] == [("zz", 1), ("zz", 2)]


def test_a_layout_lists_its_slices_by_start() -> None:
    solution = make_plan(problem([host(gpu())], [need(replicas=2), need("big", memory_mib=30000)]))
    expected = tuple(sorted(each.slice for each in solution.placements if each.slice))
    assert solution.layouts[("h1", "GPU-h1-0")] == GpuLayout("mig", expected)


def test_an_empty_fleet_and_no_needs_make_an_empty_plan() -> None:
    solution = make_plan(problem([], []))
    assert (solution.placements, solution.unplaced, solution.layouts) == ((), (), {})


@pytest.mark.slow
def test_a_hundred_hosts_and_five_hundred_replicas_are_planned_in_seconds() -> None:
    fleet = [host(*[gpu(number, f"h{index}") for number in range(8)], name=f"h{index}") for index in range(100)]
    sizes = [4000, 9000, 15000, 30000, 60000]
    wanted = [
        need(f"service-{n:03}", "exclusive" if n % 7 == 0 else "slice", sizes[n % 5], replicas=5, ports=(("http", None),))
        for n in range(100)
    ]
    started = time.process_time()
    solution = make_plan(problem(fleet, wanted))
    assert time.process_time() - started < 30
    assert len(solution.placements) == 500


def test_a_placement_is_named_like_its_directory() -> None:
    assert Placement("receipt-ocr", 2, "h1", "mig", ("GPU-1",)).name == "receipt-ocr-2"
