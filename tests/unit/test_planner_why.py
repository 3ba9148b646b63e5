# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a replica is where the plan puts it: what it has, who else could have given it that, what decided."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import FleetErrors
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Displaced, Problem, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import leaving_words, reason_lines, why_here
from ansible_collections.gpuops.fleet.tests.bench.planner import planted
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem


def lines(asked: Problem, *only: str) -> list[str]:
    return reason_lines(why_here(asked, make_plan(asked), only or None))


@pytest.mark.parametrize(
    ("asked", "on", "why"),
    [
        ({}, "0:1g.10gb@0", ""),
        ({"environment": "staging"}, "0:1g.10gb@0", "h1 is for production"),
        ({"data_class": "medical"}, "0:1g.10gb@0", "h1 may not have data of class 'medical'"),
        ({"isolation": "exclusive"}, "0:1g.10gb@0", "it asks for 'isolation: exclusive' by now"),
        ({"memory_mib": 20480}, "0:1g.10gb@0", "1g.10gb does not serve 20 GiB"),
        ({"models": ("h100-sxm5-80gb",)}, "0:1g.10gb@0", "it may not be on a100-sxm4-80gb by now"),
        ({"isolation": "exclusive", "memory_mib": 50176}, "1", "its GPU has less than 49 GiB"),
        ({"isolation": "exclusive", "count": 2}, "1", "it asks for 2 GPUs by now"),
    ],
)
def test_who_may_not_stay_is_told_why(asked: dict[str, t.Any], on: str, why: str) -> None:
    last = place("ocr", on, mode="mig" if "@" in on else "whole")
    fleet = problem([host(gpu(0, mig=True), l40s(1), data_classes=("claims",))], [need(**asked)], [last])
    assert leaving_words(fleet)(last) == why
    assert (why == "") == (last in make_plan(fleet).placements)


def test_the_only_place_is_called_so() -> None:
    assert lines(problem([host(gpu())], [need(memory_mib=60000)])) == [
        "ocr-1: 7g.80gb@0 on h1 GPU-h1-0, new: the only GPU with room for it"
    ]


def test_what_decided_is_the_first_thing_in_which_the_next_host_is_worse() -> None:
    fleet = [host(gpu(0, slices="1g.10gb@6")), host(gpu(0, "h2"), name="h2")]
    assert lines(problem(fleet, [need(profile="1g.10gb")])) == [
        "ocr-1: 1g.10gb@6 on h1 GPU-h1-0, new: 2 GPUs of 2 hosts have room for it; chosen for the least change to a GPU"
    ]
    spread = why_here(problem(fleet, [need(replicas=2)]), make_plan(problem(fleet, [need(replicas=2)])))
    assert [each.text.partition("; ")[2] for each in spread] == ["chosen for the fewest replicas of it on a host"] * 2


def test_a_host_whose_port_somebody_else_has_is_not_counted() -> None:
    listens = {"h1": frozenset({9090}), "h2": frozenset[int]()}
    fleet = [host(l40s(0, name), name=name, modes=("shared",), listening=ports) for name, ports in listens.items()]
    both = [need(name, "shared", 8000, ports=(("http", 8080),)) for name in ("aa", "bb")]
    assert [line.partition("new: ")[2] for line in lines(problem(fleet, both))] == ["the only GPU with room for it"] * 2
    before = (place("aa", "0", mode="shared", on="h2", http=9090),)
    (told,) = lines(problem(fleet, [need("aa", "shared", 8000, ports=(("http", 9090),))], before))
    assert told.endswith("kept: its place is still right; the only GPU with room for it")


def test_a_gpu_that_takes_nothing_new_is_not_counted_among_those_with_room() -> None:
    before = (place("aa", "0:1g.10gb@0"),)
    hosts = [host(gpu(0, mig=True, cordoned=True)), host(gpu(0, "h2", mig=True), name="h2")]
    assert lines(problem(hosts, [need("aa")], before))[0].endswith("kept: its place is still right; one other GPU has room for it")


def test_hosts_that_are_alike_are_told_apart_by_name() -> None:
    fleet = [host(gpu(0, name), name=name) for name in ("h2", "h1", "h3")]
    assert lines(problem(fleet, [need()])) == [
        "ocr-1: 1g.10gb@6 on h1 GPU-h1-0, new: 3 GPUs of 3 hosts have room for it; all alike, so the first by name"
    ]


def test_the_smaller_gpu_is_why_a_whole_one_is_taken() -> None:
    fleet = [host(gpu(0)), host(l40s(0, "h2"), name="h2")]
    assert lines(problem(fleet, [need(isolation="exclusive")]))[0].endswith("; chosen for the smallest GPUs that serve")


def test_who_stays_is_kept_and_who_moves_is_moved_and_both_can_be_left_out() -> None:
    before = (place("aa", "0:1g.10gb@3"), place("bb", "1:1g.10gb@0"))
    asked = problem([host(gpu(0, slices="1g.10gb@3"), gpu(1, blocked="lost"))], [need("aa"), need("bb")], before)
    told = why_here(asked, make_plan(asked))
    assert [(each.name, each.change) for each in told] == [("aa-1", "kept"), ("bb-1", "moved")]
    assert told[0].text.startswith("1g.10gb@3 on h1 GPU-h1-0, kept: its place is still right; ")
    assert [each.name for each in why_here(asked, make_plan(asked), staying=False)] == ["bb-1"]
    assert [each.name for each in why_here(asked, make_plan(asked), ["aa"])] == ["aa-1"]
    assert [each.name for each in why_here(asked, make_plan(asked), ["bb-1"])] == ["bb-1"]
    with pytest.raises(FleetErrors, match="'zz'") as caught:
        why_here(asked, make_plan(asked), ["bb-1", "bb-2", "zz"])
    assert len(caught.value.errors) == 2


def test_who_made_room_for_somebody_says_for_whom() -> None:
    before = (place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@4"), place("cc", "1", mode="whole"))
    needs = [need("aa"), need("bb"), need("cc", "exclusive", adopted=True), need("zz", memory_mib=30000)]
    asked = problem([host(gpu(0, slices="1g.10gb@0 1g.10gb@4"), gpu(1))], needs, before)
    solution = make_plan(Problem(asked.hosts, asked.needs, asked.previous, moves=1))
    assert [type(each) for each in solution.displaced] == [Displaced]
    (moved,) = [each for each in why_here(asked, solution) if each.change == "moved"]
    assert ", moved there so that zz-1 has room; " in moved.text


def test_adopted_services_and_hosts_that_are_not_seen_are_kept() -> None:
    before = (place("aa", "0:1g.10gb@3"), place("bb", "0:1g.10gb@0", on="gone"))
    asked = problem([host(gpu(0, slices="1g.10gb@3"))], [need("aa", adopted=True), need("bb")], before)
    assert lines(asked) == ["aa-1: kept: it is adopted, and nothing moves it", "bb-1: kept: gone is not seen in this run"]


def test_every_replica_of_a_fleet_of_chance_has_one_line_and_asking_changes_nothing() -> None:
    made = planted.chance(11)
    asked = made.problem()
    solution = make_plan(asked)
    told = why_here(asked, solution)
    assert [each.name for each in told] == [each.name for each in solution.placements]
    assert all("\n" not in each.text and each.gpus >= each.hosts >= 1 for each in told)
    again = planned(asked, solution)
    assert {each.change for each in why_here(again, make_plan(again))} == {"kept"}
    assert make_plan(asked) == solution


def test_where_another_host_would_do_as_well_it_is_named_and_where_it_would_do_better_too() -> None:
    """As the plan for all, or the turn before, may have it."""
    fleet = [host(gpu(0, name), name=name) for name in ("h1", "h2")]
    asked = problem(fleet, [need(profile="1g.10gb")])
    there = make_plan(problem(fleet[1:], asked.needs))
    (told,) = why_here(asked, there)
    assert told.text.endswith("; h1 would do as well")
    cut = problem([host(gpu(0, slices="1g.10gb@6")), fleet[1]], asked.needs)
    (told,) = why_here(cut, there)
    assert told.text.endswith(
        "; by itself it would go to h1 now (the least change to a GPU): the plan for all, or an earlier turn, has it here"
    )


def test_of_hosts_that_do_as_well_the_one_with_more_gpus_is_no_first_by_name() -> None:
    fleet = [host(gpu(0)), host(gpu(0, "h2"), gpu(1, "h2"), name="h2")]
    assert lines(problem(fleet, [need()]))[0].endswith("; all do as well, so the one with more GPUs, then by boards, CPUs and policy")
