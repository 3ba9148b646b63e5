# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving, giving way, groups, and the order of the steps: small fleets that a person can follow."""

from __future__ import annotations

import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import why_not
from ansible_collections.gpuops.fleet.plugins.plugin_utils import giving_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.objective import objective
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Drain,
    Hint,
    Host,
    Limit,
    Need,
    Placement,
    Problem,
    Quota,
    Resources,
    Rules,
    Solution,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import Order, order
from ansible_collections.gpuops.fleet.tests.bench.planner import small_fleet
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A100, gpu, host, l40s, need, place, problem, where
from ansible_collections.gpuops.fleet.tests.unit.test_planner_rules import crowded
from hypothesis import HealthCheck, given, settings

QUICK = settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def solved(given_: Problem) -> tuple[dict[str, str], list[tuple[str, str, str]], Solution]:
    """(replica -> where, who left for whom and why, the solution), right in the eyes of the checker."""
    solution = make_plan(given_)
    assert planner_checker.complaints(given_, solution) == []
    left = [(f"{each.service}-{each.replica}", each.by, each.way) for each in solution.displaced]
    return {each.name: where(each) for each in solution.placements}, left, solution


def scattered(**more: t.Any) -> Problem:
    """Two boards with a small slice in each half: no half is free, and a large one comes."""
    small = [need("aa"), need("bb"), need("cc"), need("dd")]
    before = [place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@4"), place("cc", "1:1g.10gb@0"), place("dd", "1:1g.10gb@4")]
    given_ = problem([host(gpu(0, mig=True), gpu(1, mig=True))], [*small, need("large", memory_mib=30000, priority=50)], before)
    return replace(given_, **more)


def test_without_moves_nobody_makes_room() -> None:
    places, left, _solution = solved(scattered())
    assert "large-1" not in places
    assert left == []


def test_one_small_service_moves_so_that_a_large_one_has_room() -> None:
    places, left, _solution = solved(scattered(moves=3))
    assert "3g.40gb" in places["large-1"]
    assert [(by, way) for _name, by, way in left] == [("large-1", "moved")]


def test_who_needs_nobody_to_make_room_comes_before_a_larger_one_that_does() -> None:
    given_ = scattered(moves=3)
    more = [need(f"new-{number}") for number in range(10)]
    places, left, solution = solved(replace(given_, needs=(*given_.needs, *(replace(each, priority=50) for each in more))))
    assert {each.service for each in solution.unplaced} == {"large"}
    assert len(places) == 14
    assert left == []


def test_what_is_opened_for_a_large_one_serves_others_too() -> None:
    """In the order in which nobody makes room before the others are served, the two slices would be in the way of the four sharers."""
    before = [place(f"there-{slot}", f"0:1g.10gb@{slot}") for slot in range(5)] + [
        place(f"alone-{slot}", f"1:1g.10gb@{slot}") for slot in (0, 1)
    ]
    sharers = [need("big", "shared", 10240), *(need(f"small-{number}", "shared", 3072) for number in range(3))]
    needs = [*(need(each.service) for each in before), *sharers, need("new-0"), need("new-1")]
    hosts = [host(gpu(0, mig=True), gpu(1, mig=True), modes=("mig", "shared"), shared_max=8)]
    places, left, _solution = solved(replace(problem(hosts, needs, before), moves=3))
    assert {name for name in places if name.startswith(("big", "small"))} == {"big-1", "small-0-1", "small-1-1", "small-2-1"}
    assert [(name, way) for name, _by, way in left] == [("alone-0-1", "moved"), ("alone-1-1", "moved")]


def test_two_move_where_two_have_another_place_however_many_single_ones_have_none() -> None:
    crowd = [gpu(number, mig=True) for number in range(30)]
    before = [place(f"big-{number}-{start}", f"{number}:3g.40gb@{start}") for number in range(30) for start in (0, 4)]
    two = [place("two", "30:2g.20gb@4"), place("one", "30:1g.10gb@6"), place("held", "30:3g.40gb@0")]
    room = [place("there", "31:2g.20gb@2"), place("other", "31:3g.40gb@4"), place("more", "32:2g.20gb@0"), place("last", "32:1g.10gb@2")]
    room += [place("half", "32:3g.40gb@4")]
    sizes = {"1g.10gb": 8192, "2g.20gb": 16384, "3g.40gb": 30000}
    needs = [need(each.service, memory_mib=sizes[each.slice.profile], priority=50) for each in (*before, *two, *room) if each.slice]
    hosts = [host(*crowd, gpu(30, mig=True), gpu(31, mig=True), gpu(32, mig=True))]
    large = need("large", memory_mib=30000, priority=50)
    places, left, _solution = solved(replace(problem(hosts, [*needs, large], [*before, *two, *room]), moves=2))
    assert places["large-1"] == "h1/30:3g.40gb@4"
    assert {name: places[name] for name, _by, _way in left} == {"two-1": "h1/31:1g.20gb@0", "one-1": "h1/32:1g.10gb@3"}


@pytest.mark.parametrize(
    "more",
    [
        {"needs": tuple(replace(each, adopted=each.service != "large") for each in scattered().needs)},
        {"needs": tuple(replace(each, priority=60 if each.service != "large" else 50) for each in scattered().needs)},
    ],
    ids=["adopted", "of higher priority"],
)
def test_who_must_not_move_does_not(more: dict[str, t.Any]) -> None:
    places, left, _solution = solved(scattered(moves=3, **more))
    assert "large-1" not in places
    assert left == []


def test_whose_manifest_has_just_changed_moves_now_and_not_in_the_next_run() -> None:
    given_ = scattered(moves=3, changed=frozenset(["aa", "bb", "cc", "dd"]))
    places, left, solution = solved(given_)
    assert "3g.40gb" in places["large-1"]
    assert [way for _name, _by, way in left] == ["moved"]
    assert solved(planned(given_, solution))[:2] == (places, [])


def test_nobody_moves_for_a_replica_that_leaves_a_drained_gpu() -> None:
    drained = gpu(2, mig=True, drain=Drain("drained by lin"))
    before = [*scattered().previous, place("large", "2:3g.40gb@4")]
    given_ = replace(scattered(moves=3), hosts=(host(gpu(0, mig=True), gpu(1, mig=True), drained),), previous=tuple(before))
    _places, left, solution = solved(given_)
    assert left == []
    assert [where(each) for each in solution.waiting] == ["h1/2:3g.40gb@4"]


def chain(moves: int) -> Problem:
    """The large one needs all of an A100; who is on it fits only where another is, and that one has room elsewhere."""
    hosts = [
        host(gpu(0, mig=True), name="h1", capacity=Resources(8)),
        host(gpu(0, "h2", mig=True), name="h2", capacity=Resources(8)),
        host(gpu(0, "h3", mig=True), name="h3", capacity=Resources(1)),
    ]
    needs = [
        need("middle", memory_mib=30000, resources=Resources(4)),
        need("wide", memory_mib=30000, resources=Resources(4)),
        need("narrow", memory_mib=30000, resources=Resources(1)),
        need("large", memory_mib=60000, resources=Resources(4)),
    ]
    before = [place("middle", "0:3g.40gb@4"), place("wide", "0:3g.40gb@0", on="h2"), place("narrow", "0:3g.40gb@4", on="h2")]
    return replace(problem(hosts, needs, before), moves=moves)


def test_a_chain_of_moves_is_found() -> None:
    places, left, _solution = solved(chain(2))
    assert places["large-1"] == "h1/0:7g.80gb@0"
    assert sorted(name for name, _by, _way in left) == ["middle-1", "narrow-1"]
    assert "large-1" not in solved(chain(1))[0]


def test_a_host_where_nobody_has_another_place_yet_is_in_the_chain_and_all_are_where_it_takes_too_many_looks_to_say() -> None:
    """Asked of whoever makes room himself: the solver would find the chain, too."""
    given_, half = chain(2), {"memory_mib": 30000, "resources": Resources(4)}
    needs = [each for each in given_.needs if each.service != "large"] + [need("still", **half), need("large", **half)]
    draft = begin(replace(given_, needs=tuple(needs), previous=(*given_.previous, place("still", "0:3g.40gb@0"))))
    room = giving_way.Room(draft)
    cause = giving_way._Cause(draft.needs["large"], [room._loose(draft.needs["large"])], {})
    assert cause.reach == [{"h2"}]
    assert room._reach(cause, 1) == {"h1", "h2"}
    assert room.moved(draft.needs["large"], 1) is not None
    room._all_looks = 0
    assert room._reach(giving_way._Cause(cause.need, cause.reach, {}), 1) is None


def test_a_higher_priority_takes_the_place_of_the_fewest_and_lowest() -> None:
    needs = [
        need("low", memory_mib=30000, priority=10),
        need("mid", memory_mib=30000, priority=40),
        need("high", memory_mib=30000, priority=90),
    ]
    before = [place("low", "0:3g.40gb@0"), place("mid", "0:3g.40gb@4")]
    given_ = replace(problem([host(gpu(mig=True))], needs, before), preemption=True)
    places, left, solution = solved(given_)
    assert places == {"high-1": "h1/0:3g.40gb@0", "mid-1": "h1/0:3g.40gb@4"}
    assert left == [("low-1", "high-1", "preempted")]
    assert "it gave way to high-1" in solution.unplaced[0].reason
    assert "high-1" not in solved(replace(given_, preemption=False))[0]


def test_who_had_a_whole_gpu_leaves_no_more_to_share_than_it_has() -> None:
    """The GPU is too small, and stays too small when somebody has gone from it."""
    small = [l40s(number, memory_mib=24576) for number in range(2)]
    needs = [need("low", "exclusive", 15000, priority=50), need("top", "shared", 30000, priority=90)]
    given_ = problem([host(*small, modes=("shared", "whole"))], needs, [place("low", "0", mode="whole")])
    solution = make_plan(replace(given_, preemption=True))
    assert [each.service for each in solution.unplaced] == ["top"]


def test_nobody_gives_way_to_the_same_priority() -> None:
    needs = [need("first", memory_mib=60000), need("second", memory_mib=60000)]
    given_ = replace(problem([host(gpu(mig=True))], needs, [place("second", "0:7g.80gb@0")]), preemption=True)
    assert solved(given_)[0] == {"second-1": "h1/0:7g.80gb@0"}


def test_a_group_has_all_of_its_replicas_or_none_and_makes_nobody_leave_in_vain() -> None:
    group = need("train", "exclusive", 40000, replicas=3, priority=90, rules=Rules(all_or_nothing=True))
    before = [place("ocr", "0:1g.10gb@6")]
    given_ = replace(problem([host(gpu(0, mig=True), gpu(1))], [group, need()], before), preemption=True)
    places, left, _solution = solved(given_)
    assert (places, left) == ({"ocr-1": "h1/0:1g.10gb@6"}, [])
    given_ = replace(given_, hosts=(host(gpu(0, mig=True), gpu(1), gpu(2)),))
    assert sorted(solved(given_)[0]) == ["train-1", "train-2", "train-3"]


def test_a_group_that_lost_a_replica_is_placed_anew_or_goes() -> None:
    group = need("train", "exclusive", 40000, replicas=2, rules=Rules(all_or_nothing=True, max_per_host=1))
    before = [place("train", "0", mode="whole"), place("train", "0", replica=2, on="h2", mode="whole")]
    lost = host(gpu(0, "h2", blocked="lost"), name="h2")
    assert solved(problem([host(gpu(0)), lost], [group], before))[0] == {}
    third = host(gpu(0, "h3"), name="h3")
    assert solved(problem([host(gpu(0)), lost, third], [group], before))[0] == {"train-1": "h1/0", "train-2": "h3/0"}


def test_who_moved_and_then_went_with_its_group_is_not_told_to_have_moved() -> None:
    group = need("train", "exclusive", 40000, replicas=3, rules=Rules(all_or_nothing=True))
    large = need("large", "exclusive", 40000, count=2, models=("a100",), priority=90)
    before = [place("train", "0", mode="whole"), place("train", "1", replica=2, mode="whole")]
    given_ = problem([host(gpu(0), l40s(1), gpu(2), l40s(3))], [group, large], before)
    places, left, _solution = solved(replace(given_, moves=1))
    assert (places, left) == ({"large-1": "h1/0,2"}, [])


def test_spread_and_pack_are_wishes() -> None:
    hosts = [host(gpu(0, name, mig=True), gpu(1, name, mig=True), name=name) for name in ("h1", "h2")]

    def used(spread: str) -> set[str]:
        given_ = problem(hosts, [need(replicas=2, rules=Rules(spread=t.cast("t.Any", spread)))])
        return {text.partition(":")[0] for text in solved(given_)[0].values()}

    assert {text[:2] for text in used("host")} == {"h1", "h2"}
    assert len(used("gpu")) == 2
    assert len(used("pack")) == 1


def test_who_goes_together_follows_and_who_stays_apart_parts() -> None:
    hosts = [host(gpu(0, name, mig=True), name=name) for name in ("h1", "h2")]
    needs = [need("model"), need("cache", priority=90, rules=Rules(together=("model",))), need("batch", rules=Rules(apart=("model",)))]
    places, _left, _solution = solved(problem(hosts, needs))
    assert places["cache-1"][:2] == places["model-1"][:2] != places["batch-1"][:2]
    before = [place("model", "0:1g.10gb@0"), place("cache", "0:1g.10gb@1"), place("batch", "0:1g.10gb@2", on="h2")]
    gone = host(gpu(0, "h1", mig=True, blocked="lost"), name="h1")
    places, _left, _solution = solved(problem([gone, hosts[1]], needs, before))
    assert places == {"batch-1": "h2/0:1g.10gb@2"}


# Steps


def played(given_: Problem, made: Order) -> None:
    """Carry the steps out one by one: at no moment is there an overlap, or more of a host than it has."""
    hosts = {each.name: each for each in given_.hosts}
    needs = {each.service: each for each in given_.needs}
    running: dict[tuple[str, int], list[Placement]] = {(each.service, each.replica): [each] for each in given_.previous}

    def check() -> None:
        every = [each for places in running.values() for each in places]
        for one in hosts.values():
            here = [each for each in every if each.host == one.name]
            cpus = sum(needs[each.service].resources.cpus or 0 for each in here if each.service in needs)
            assert one.capacity.cpus is None or cpus <= one.capacity.cpus
            for each in one.gpus:
                slices = [other.slice for other in here if each.uuid in other.gpus and other.slice]
                whole = [other for other in here if each.uuid in other.gpus and other.mode == "whole"]
                assert why_not(A100, slices) is None
                assert len(whole) <= 1
                assert not (whole and slices)

    for step in made.steps:
        key = (step.service, step.replica)
        if step.verb != "stop":
            assert step.new is not None
            if step.verb == "move" and running[key][0].host == step.new.host:
                running[key].clear()  # It stops before it starts anew.
            running.setdefault(key, []).append(step.new)
            check()
        if step.verb == "stop" or len(running[key]) > 1:
            running[key].pop(0)
        check()


def test_who_needs_a_place_waits_until_it_is_free() -> None:
    given_ = scattered(moves=3)
    made = order(given_, make_plan(given_))
    assert [step.verb for step in made.steps] == ["move", "start"]
    assert made.steps[1].service == "large"
    assert made.outages == ()
    played(given_, made)


def test_who_moves_within_its_host_does_not_serve_meanwhile_and_who_goes_to_another_does() -> None:
    before = (place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@1"))
    hosts = [host(gpu(mig=True)), host(gpu(0, "h2", mig=True), name="h2")]
    given_ = problem(hosts, [need("aa"), need("bb")], before)
    away = replace(before[1], host="h2", gpus=(hosts[1].gpus[0].uuid,))
    made = order(given_, Solution((replace(before[0], slice=place("aa", "0:1g.10gb@4").slice), away)))
    assert [(step.verb, step.service) for step in made.steps] == [("move", "aa"), ("move", "bb")]
    assert made.outages == ()
    assert [(each.service, each.replica) for each in made.pauses] == [("aa", 1)]


def test_those_who_wait_for_each_other_are_told_who_is_stopped() -> None:
    before = (place("aa", "0", mode="whole"), place("bb", "1", mode="whole"))
    given_ = problem([host(gpu(0), gpu(1))], [need("aa", "exclusive", priority=90), need("bb", "exclusive")], before)
    swapped = Solution((replace(before[0], gpus=before[1].gpus), replace(before[1], gpus=before[0].gpus)))
    made = order(given_, swapped)
    assert [(step.verb, step.service) for step in made.steps] == [("stop", "bb"), ("move", "aa"), ("start", "bb")]
    assert [each.service for each in made.outages] == ["bb"]
    played(given_, made)


A_QUARTER = Resources(cpus=3)


@pytest.mark.parametrize(
    ("hosts", "needs", "before", "quotas"),
    [
        (  # One more of 'bb' would be above its team's quota.
            [host(gpu(0, mig=True)), host(gpu(0, "h2", mig=True), name="h2", modes=("mig",))],
            [need("bb", team="claims"), need("zz", "exclusive", team="fraud")],
            [place("bb", "0:1g.10gb@0")],
            (Quota("claims", (Limit("memory", 9856),)),),
        ),
        (  # The host has no CPUs for one more of 'bb'.
            [host(gpu(0, mig=True), gpu(1, mig=True), capacity=Resources(cpus=8))],
            [need("bb", memory_mib=30000, replicas=2, resources=A_QUARTER), need("zz", memory_mib=60000, resources=Resources(cpus=1))],
            [place("bb", "0:3g.40gb@0"), place("bb", "1:3g.40gb@0", replica=2)],
            (),
        ),
        (  # A rule keeps a second one of 'bb' off the host.
            [host(gpu(0, mig=True), gpu(1, mig=True))],
            [
                need("aa", memory_mib=30000, priority=90),
                need("bb", memory_mib=30000, rules=Rules(max_per_host=1)),
                need("zz", memory_mib=60000),
            ],
            [place("aa", "0:3g.40gb@0"), place("bb", "1:3g.40gb@0")],
            (),
        ),
        (  # 'bb' has more of the only GPU than it needs by now.
            [host(gpu(0, mig=True))],
            [need("bb"), need("zz")],
            [place("bb", "0:7g.80gb@0")],
            (),
        ),
    ],
    ids=["quota", "CPU", "rule", "slice"],
)
def test_whoever_is_in_its_own_way_alone_moves(
    hosts: list[Host], needs: list[Need], before: list[Placement], quotas: tuple[Quota, ...]
) -> None:
    asked = replace(problem(hosts, needs, before), moves=1, quotas=quotas)
    made = make_plan(asked)
    assert planner_checker.complaints(asked, made) == []
    assert made.unplaced == ()
    assert [(each.service, each.by, each.way) for each in made.displaced] == [("bb", "zz-1", "moved")]


def test_a_higher_priority_takes_a_gpu_that_a_lower_one_shares_with_an_equal_one_that_can_move() -> None:
    hosts = [host(gpu(0, mig=True)), host(gpu(0, "h2", mig=True), name="h2", modes=("mig",))]
    needs = [need("low", priority=50), need("same", memory_mib=39000, priority=90), need("zz", "exclusive", priority=90)]
    before = [place("low", "0:1g.10gb@6"), place("same", "0:4g.40gb@0")]
    asked = replace(problem(hosts, needs, before), moves=1, preemption=True)
    made = make_plan(asked)
    assert planner_checker.complaints(asked, made) == []
    assert {each.service: each.host for each in made.placements} == {"low": "h2", "same": "h2", "zz": "h1"}
    assert [(each.service, each.way) for each in made.displaced] == [("low", "preempted"), ("same", "moved")]


def test_of_those_who_have_cpus_to_give_no_more_move_than_it_takes() -> None:
    hosts = [host(l40s(0), gpu(1, mig=True), capacity=Resources(cpus=5), modes=("mig", "shared"))]
    hosts.append(host(l40s(0, "h2"), name="h2", modes=("shared",)))
    sizes = {"aa": 1, "bb": 1, "cc": 3}
    needs = [need(name, "shared", 4000, resources=Resources(cpus=size)) for name, size in sizes.items()]
    before = [place(name, "0", mode="shared") for name in sizes]
    asked = replace(problem(hosts, [*needs, need("zz", resources=Resources(cpus=3))], before), moves=1)
    made = make_plan(asked)
    assert planner_checker.complaints(asked, made) == []
    assert [(each.service, each.by) for each in made.displaced] == [("cc", "zz-1")]


@pytest.mark.parametrize("moves", [1, 3])
def test_of_several_gpus_those_are_taken_from_which_others_can_move(moves: int) -> None:
    # Only 'yy' has another place, and it is not the first of the GPUs.
    hosts = [host(gpu(0, mig=True), gpu(1, mig=True), gpu(2)), host(gpu(0, "h2", mig=True), name="h2", modes=("mig",))]
    needs = [need("xx", memory_mib=60000), need("yy"), need("ff", adopted=True), need("zz", "exclusive", count=2)]
    before = [place("xx", "0:7g.80gb@0"), place("yy", "1:1g.10gb@0"), place("ff", "0:1g.10gb@0", on="h2")]
    asked = replace(problem(hosts, needs, before), moves=moves)
    made = make_plan(asked)
    assert planner_checker.complaints(asked, made) == []
    assert made.unplaced == ()
    assert [each.service for each in made.displaced] == ["yy"]


def test_nobody_is_stopped_who_waits_for_a_circle_and_is_not_of_it() -> None:
    # 'xx' and 'yy' change places; 'cc', of the lowest priority, waits for them, and somebody new waits for 'cc'.
    hosts = [host(gpu(0, name, mig=True), name=name) for name in ("h1", "h2", "h3")]
    before = (place("xx", "0:4g.40gb@0", on="h1"), place("yy", "0:2g.20gb@0", on="h2"), place("cc", "0:4g.40gb@0", on="h3"))
    after = (place("xx", "0:4g.40gb@0", on="h2"), place("yy", "0:2g.20gb@0", on="h1"), place("cc", "0:1g.10gb@2", on="h1"))
    sizes = {"xx": 70, "yy": 70, "cc": 30, "nn": 50}
    given_ = problem(hosts, [need(name, priority=priority) for name, priority in sizes.items()], before)
    made = order(given_, Solution((*after, place("nn", "0:4g.40gb@0", on="h3"))))
    assert [each.service for each in made.outages] == ["yy"]
    assert [(step.verb, step.service) for step in made.steps] == [
        ("stop", "yy"),
        ("move", "xx"),
        ("start", "yy"),
        ("move", "cc"),
        ("start", "nn"),
    ]


def test_who_stops_before_it_serves_elsewhere_since_hosts_wait_for_each_other_is_told() -> None:
    """Room is there for both; but a host has its turn once, so one of them has left when the other host has its own."""
    before = (place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@0", on="h2"), place("cc", "0:1g.10gb@1", on="h2"))
    hosts = [host(gpu(mig=True)), host(gpu(0, "h2", mig=True), name="h2"), host(gpu(0, "h3", mig=True), name="h3")]
    given_ = problem(hosts, [need("aa", priority=60), need("bb", priority=40), need("cc")], before)

    def moved(number: int, to: int) -> Placement:
        return replace(
            before[number], host=hosts[to].name, gpus=(hosts[to].gpus[0].uuid,), slice=place("x", f"0:1g.10gb@{number + 3}").slice
        )

    circle = order(given_, Solution((moved(0, 1), moved(1, 0), moved(2, 2))))
    assert [(step.verb, step.service) for step in circle.steps] == [("move", "aa"), ("move", "cc"), ("move", "bb")]
    assert circle.outages == ()
    # The lower priority stops. cc serves on h3 by then, which waits for nobody.
    assert [(each.service, each.reason.split(", ")[1]) for each in circle.pauses] == [("bb", "for hosts wait for each other")]
    chain = order(given_, Solution((moved(0, 1), moved(1, 2), moved(2, 2))))
    assert chain.pauses == ()


def test_who_moves_within_a_host_needs_no_room_for_both_its_places() -> None:
    before = (place("aa", "0:1g.10gb@0"),)
    given_ = problem([host(gpu(mig=True), capacity=Resources(4))], [need("aa", resources=Resources(3))], before)
    made = order(given_, Solution((replace(before[0], slice=place("aa", "0:1g.10gb@4").slice),)))
    assert [step.verb for step in made.steps] == ["move"]
    assert made.outages == ()
    assert [(each.service, each.replica) for each in made.pauses] == [("aa", 1)]
    played(given_, made)


def test_who_moves_to_a_gpu_that_the_site_shares_more_often_serves_all_the_time() -> None:
    before = (place("aa", "0", mode="shared"), place("bb", "0", on="h2", mode="shared"))
    hosts = [host(l40s()), host(l40s(0, "h2"), name="h2", shared_compute=1.5)]
    sharers = [need("aa", "shared", 4000, compute=0.5), need("bb", "shared", 4000, compute=0.9)]
    given_ = problem(hosts, sharers, before)
    made = order(given_, Solution((replace(before[0], host="h2", gpus=before[1].gpus), before[1])))
    assert ([step.verb for step in made.steps], made.outages) == (["move"], ())


def test_of_those_who_start_only_as_many_start_at_once_as_have_room_together() -> None:
    before = (place("leaves", "0", mode="whole"),)
    hosts = [host(gpu(0), gpu(1), gpu(2), capacity=Resources(10)), host(gpu(0, "h2"), name="h2")]
    comes = need("comes", "exclusive", replicas=2, resources=Resources(3))
    given_ = problem(hosts, [need("leaves", "exclusive", resources=Resources(6)), comes], before)
    away = replace(before[0], host="h2", gpus=(hosts[1].gpus[0].uuid,))
    made = order(given_, Solution((away, place("comes", "1", mode="whole"), place("comes", "2", mode="whole", replica=2))))
    assert [(step.verb, step.service, step.replica) for step in made.steps] == [("move", "leaves", 1), ("start", "comes", 2)]
    assert made.outages == ()


def test_a_start_that_would_cost_an_outage_takes_its_turn() -> None:
    # There is room for 'comes' at once; but then 'goes' could not come before 'leaves' has gone, which waits for the place of 'goes'.
    before = (place("goes", "0", on="h2", mode="whole"), place("leaves", "0", mode="whole"))
    hosts = [host(gpu(0), gpu(1), gpu(2), capacity=Resources(10)), host(gpu(0, "h2"), name="h2")]
    sizes = {"comes": 5, "goes": 5, "leaves": 5}
    given_ = problem(hosts, [need(name, "exclusive", resources=Resources(size)) for name, size in sizes.items()], before)
    ends = (place("comes", "2", mode="whole"), place("goes", "1", mode="whole"), place("leaves", "0", on="h2", mode="whole"))
    made = order(given_, Solution(ends))
    assert [(step.verb, step.service) for step in made.steps] == [("move", "goes"), ("move", "leaves"), ("start", "comes")]
    assert made.outages == ()
    played(given_, made)


def test_a_port_that_who_stays_gives_up_is_free_for_who_comes() -> None:
    before = (place("stays", "0", mode="whole", http=18000), place("comes", "0", on="h2", mode="whole", http=18000))
    hosts = [host(gpu(0), gpu(1)), host(gpu(0, "h2"), name="h2")]
    given_ = problem(hosts, [need("stays", "exclusive"), need("comes", "exclusive")], before)
    ends = (place("stays", "0", mode="whole", http=18005), place("comes", "1", mode="whole", http=18000))
    made = order(given_, Solution(ends))
    assert ([(step.verb, step.service) for step in made.steps], made.outages) == ([("restart", "stays"), ("move", "comes")], ())
    assert made.steps[0].line == "restart stays-1 on h1 GPU-h1-0 whole with http:18005"


def test_within_a_host_a_port_is_not_taken_before_the_other_has_left_it() -> None:
    before = (place("within", "0", mode="whole", http=18001), place("away", "2", mode="whole", http=18000))
    hosts = [host(gpu(0), gpu(1), gpu(2)), host(gpu(0, "h2"), name="h2")]
    given_ = problem(hosts, [need("within", "exclusive", priority=90), need("away", "exclusive")], before)
    ends = (place("within", "1", mode="whole", http=18000), place("away", "0", on="h2", mode="whole", http=18000))
    made = order(given_, Solution(ends))
    assert [(step.verb, step.service) for step in made.steps] == [("move", "away"), ("move", "within")]


def test_a_plan_that_moves_nobody_has_no_steps() -> None:
    given_ = scattered()
    assert order(given_, make_plan(given_)) == Order()
    assert order(problem([host(gpu())], [need()]), make_plan(problem([host(gpu())], [need()]))) == Order()


@QUICK
@given(crowded(quota=False))
def test_the_steps_lead_to_the_plan(given_: Problem) -> None:
    solution = make_plan(given_)
    made = order(given_, solution)
    there = {(each.service, each.replica): each for each in given_.previous}
    for step in made.steps:
        key = (step.service, step.replica)
        assert (key in there) == (step.verb != "start")
        there.pop(key, None)
        if step.new is not None:
            there[key] = step.new
    if made.steps:
        ends = {(each.service, each.replica): (each.host, each.gpus, each.slice) for each in solution.placements}
        assert {key: (each.host, each.gpus, each.slice) for key, each in there.items()}.items() <= ends.items()


# The objective


@QUICK
@given(crowded(quota=False, tight=False))
def test_more_room_takes_nothing_away(given_: Problem) -> None:
    """With one more host, a plan that goes on from this one is worth no less: everybody stays, and those without a place may get one."""
    first = make_plan(given_)
    before = replace(given_, previous=(*first.placements, *first.waiting), changed=frozenset())
    same = objective(before, make_plan(before))
    extra = host(gpu(0, "extra", mig=True), name="extra", modes=("mig", "shared", "whole"), sharing=("mps", "time-slice"))
    more = replace(before, hosts=(*before.hosts, extra))
    solution = make_plan(more)
    count = len({need.priority for need in given_.needs})
    assert objective(more, solution)[:count] >= same[:count]
    assert planner_checker.complaints(more, solution) == []


@QUICK
@given(crowded())
def test_names_of_hosts_that_keep_their_order_change_nothing_but_names(given_: Problem) -> None:
    names = {each.name: f"rack-{each.name}" for each in given_.hosts}
    hosts = tuple(replace(each, name=names[each.name]) for each in given_.hosts)
    previous = tuple(replace(each, host=names.get(each.host, each.host)) for each in given_.previous)
    other = make_plan(replace(given_, hosts=hosts, previous=previous))
    assert [replace(each, host=names[each.host]) for each in make_plan(given_).placements] == list(other.placements)


def test_a_plan_that_used_up_its_tries_stands_when_planned_again() -> None:
    """So many wait that moves are not looked for to the end: what a plan made anew would find with fresh tries, this one finds as well."""
    full = small_fleet.world(1300, 200, 1)
    first = make_plan(full)
    again = make_plan(replace(full, previous=(*first.placements, *first.waiting)))
    assert (again.placements, again.displaced) == (first.placements, ())


def test_a_place_that_somebody_else_proposes_is_taken_only_where_there_is_as_much_as_is_asked_for() -> None:
    needs = [need("large", "exclusive", 47_000), need("pair", "exclusive", count=2), need("one", "exclusive")]
    draft = begin(problem([host(l40s(0), l40s(1))], needs))
    both = ("GPU-h1-0", "GPU-h1-1")
    refused = [("large", both[:1]), ("pair", both[:1]), ("one", both)]
    assert [draft.place_at(draft.needs[service], 1, Hint("h1", gpus)) for service, gpus in refused] == [None, None, None]
    assert draft.place_at(draft.needs["pair"], 1, Hint("h1", both)) is not None
