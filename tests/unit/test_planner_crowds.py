# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where many more wait than there is room for, a plan takes its time and no more: what is looked for once is not looked for again, and
nobody is asked to go for nothing. Counted, not timed."""

from __future__ import annotations

import os
import random
import typing as t
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import giving_way, kept_room, offers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_blockers import room_blockers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.leaving_gpus import of_one_gpu
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MPS, TIME_SLICE, Bar, Need, Problem, Resources, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem
from ansible_collections.gpuops.fleet.tests.unit.test_planner_properties import begins_alike
from ansible_collections.gpuops.fleet.tests.unit.test_planner_rules import crowded
from hypothesis import given, settings
from hypothesis import strategies as st

SHARED: dict[str, t.Any] = {"modes": ("shared",), "shared_max": 8}


@pytest.fixture(autouse=True)
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a second process does is not counted here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})


class Counted:
    """Calls of a function of a module, which goes on doing what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, where: t.Any, name: str) -> None:
        self.calls: list[tuple[t.Any, ...]] = []
        real: Callable[..., t.Any] = getattr(where, name)

        def counted(*args: t.Any, **more: t.Any) -> t.Any:
            self.calls.append(args)
            return real(*args, **more)

        monkeypatch.setattr(where, name, counted)


def alike(count: int, **more: t.Any) -> list[t.Any]:
    """So many hosts of two A100 that differ in nothing but their names."""
    return [
        host(gpu(0, f"h{number:02d}", mig=True), gpu(1, f"h{number:02d}", mig=True), name=f"h{number:02d}", **more)
        for number in range(count)
    ]


# Hosts that look alike


def test_of_hosts_that_look_alike_the_first_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Counted(monkeypatch, offers, "_best")
    found = make_plan(problem(alike(40), [need(f"s{number}", memory_mib=30_000) for number in range(6)]))
    assert not found.unplaced
    # The first host, and each time one that was touched, or the next.
    assert len(asked.calls) <= 2 * 6


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_the_best_of_hosts_that_look_alike_is_the_best_of_all(seed: int) -> None:
    chance = random.Random(seed)
    hosts = [
        *alike(chance.randrange(1, 5)),
        *(host(l40s(0, f"l{number}"), name=f"l{number}", modes=("whole", "shared")) for number in range(3)),
    ]
    hosts += [host(gpu(0, "odd", mig=True), gpu(1, "odd", mig=True), name="odd", listening=frozenset({22}))]
    wanted = [
        need(
            f"s{number}",
            chance.choice(["slice", "exclusive", "shared"]),
            chance.choice([4_000, 9_000, 30_000]),
            priority=chance.choice([30, 50]),
        )
        for number in range(14)
    ]
    barred = {("h00", "a100-sxm4-80gb"): Bar("no", "yes")}
    wanted = [replace(each, bars=barred) if chance.random() < 0.2 else each for each in wanted]
    draft = Draft(Problem(tuple(hosts), tuple(wanted)), Fleet(Problem(tuple(hosts), tuple(wanted))), {})
    for each in chance.sample(wanted, len(wanted)):
        if chance.random() < 0.3 and draft.placed:
            # Also what was only tried.
            mark = draft.mark()
            draft.lift(chance.choice(sorted(draft.placed)))
            _same(draft, each)
            draft.back(mark)
        _same(draft, each)
        draft.place(each, 1)


def _same(draft: Draft, each: Need) -> None:
    first = next(offers.ranked(draft.fleet, each), None)
    assert first == min(offers.offers(draft.fleet, each), key=lambda offer: offer.rank, default=None)


def test_a_host_that_a_plan_speaks_of_is_like_no_other() -> None:
    fleet = Fleet(problem(alike(3), [need("s")], [place("s", "0:1g.10gb@0", on="h01")]))
    assert [[fleet.by_turn[turn].host.name for turn in each] for each in fleet.twins] == [["h00", "h02"], ["h01"]]


# Who shares a GPU


def shared(tenants: Sequence[tuple[str, int]], **more: t.Any) -> tuple[Fleet, dict[str, Need]]:
    """One L40S with these tenants, each with so many MiB."""
    needs = {f"{name}-1": need(name, "shared", memory) for name, memory in tenants}
    world = problem([host(l40s(), **{**SHARED, **more})], needs.values(), [place(name, "0", mode="shared") for name, _memory in tenants])
    fleet = Fleet(planned(world, make_plan(world)))
    for each in make_plan(world).placements:
        state = fleet.hosts["h1"].by_uuid[each.gpus[0]]
        assert state.take_share(each.name, each.service, needs[each.name].memory_mib, 0, TIME_SLICE)
    return fleet, needs


@pytest.mark.parametrize(
    ("memory", "more", "expected"),
    [
        # 46,068 MiB less 1,024 for the host less 40,000 leave 5,044.
        (5_000, {}, [()]),
        (14_000, {}, [("big-1",), ("big-1", "mid-1", "small-1")]),
        (26_000, {}, [("big-1", "mid-1", "small-1")]),
        (45_500, {}, []),
        (4_000, {"shared_max": 3}, [("big-1",), ("mid-1",), ("small-1",), ("big-1", "mid-1", "small-1")]),
    ],
)
def test_a_sharer_goes_only_where_that_is_enough(memory: int, more: dict[str, t.Any], expected: list[tuple[str, ...]]) -> None:
    fleet, needs = shared([("big", 20_000), ("mid", 8_000), ("small", 8_000), ("tiny", 4_000)][: 3 if more else 4], **more)
    new = need("new", "shared", memory)
    found = of_one_gpu(fleet.hosts["h1"], new, lambda name: name != "tiny-1", needs.__getitem__)
    assert [tuple(names) for _where, names in found] == expected


def test_nobody_is_tried_where_no_gpu_could_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, all of a host were sent away and taken back, host by host, for one that none of them may have."""
    hosts = [host(l40s(0, f"h{number}"), name=f"h{number}", **SHARED) for number in range(5)]
    small = [need(f"s{number}", "shared", 9_000, priority=30) for number in range(20)]
    lifted = Counted(monkeypatch, Draft, "lift")
    found = make_plan(replace(problem(hosts, [*small, need("mps", "shared", 9_000, priority=90, sharing=MPS)]), preemption=True))
    assert [each.service for each in found.unplaced] == ["mps"]
    assert not lifted.calls


@given(world=crowded())
@settings(max_examples=60, deadline=None)
def test_whoever_is_settled_is_not_asked_about_and_the_books_are_the_same(world: Problem) -> None:
    begins_alike(world)


# Ways are looked for once


def test_ways_are_found_once_however_many_moves_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each half of a GPU has three small ones, of whom each has another place, and no three have: with one more move each time it is in
    vain."""
    asked: Counter[tuple[giving_way.Room, tuple[int, bool], str]] = Counter()
    ways = giving_way.Room._of_host

    def counted(room: giving_way.Room, where: HostState, who: Need, *more: t.Any) -> t.Any:
        if who.service == "more":
            asked[room, room._draft.now, where.host.name] += 1
        return ways(room, where, who, *more)

    monkeypatch.setattr(giving_way.Room, "_of_host", counted)
    before = [place(f"s{number}-{start}", f"0:1g.10gb@{start}", on=f"h{number:02d}") for number in range(2) for start in (0, 1, 2, 4, 5, 6)]
    hosts = [host(gpu(0, name, mig=True), name=name) for name in ("h00", "h01")]
    needs = [need(each.service, priority=50) for each in before]
    found = make_plan(replace(problem(hosts, [*needs, need("more", memory_mib=30_000, priority=50)], before), moves=8))
    assert [each.service for each in found.unplaced] == ["more"]
    # A room for each of the two orders that are tried.
    assert len({room for room, _now, _where in asked}) == 2
    assert {(where, tried) for _room, (_version, tried), where in asked} >= {("h00", False), ("h01", False)}
    assert set(asked.values()) == {1}


@given(world=crowded())
@settings(max_examples=40, deadline=None)
def test_ways_are_asked_for_within_a_limit_and_a_plan_made_again_changes_nothing(world: Problem) -> None:
    world = replace(world, moves=3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(giving_way, "ALL_ASKED", 3)
        first = make_plan(world)
        assert planner_checker.complaints(world, first) == []
        assert make_plan(planned(world, first)).placements == first.placements


@given(world=crowded())
@settings(max_examples=60, deadline=None)
def test_hosts_that_are_left_out_have_no_way_that_works(world: Problem) -> None:
    """Those where nobody has another place, or could have one: a plan that asks all of them is the same."""
    world = replace(world, moves=3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(giving_way.Room, "_reach", lambda *_args: None)
        everywhere = make_plan(world)
        patched.undo()
        patched.setattr(giving_way, "MANY_LOOSE", 1.0)
        assert make_plan(world) == everywhere
    assert make_plan(world) == everywhere


# Where there is room


@given(world=crowded(), chance=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_without_room_nobody_has_an_offer_whatever_came_and_went(world: Problem, chance: random.Random) -> None:
    draft = begin(planned(world, make_plan(world)))
    fleet = draft.fleet

    def check() -> None:
        for each in world.needs:
            asked = [(state.host.name, offers.offer_of(state, each, offers.question_of(fleet, each))) for state in fleet.hosts.values()]
            found = {offer.host.host.name: offer.rank for offer in offers.offers(fleet, each)}
            assert found == {name: offer.rank for name, offer in asked if offer is not None}
            assert offers.is_offered(fleet, each, fleet.hosts.values()) == bool(found)
            assert offers.is_room(fleet, each) or not found
            able = [state for state in fleet.hosts.values() if any(True for _offer in offers.every(state, each))]
            assert offers.is_room(fleet, each) or not able

    check()
    for key in chance.sample(sorted(draft.placed), min(3, len(draft.placed))):
        place = draft.lift(key)
        check()
        draft.put(draft.need_of(key), place, fleet.hosts[place.host].usable(place.gpus))
        check()


@given(world=crowded(), chance=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_gpus_in_use_with_a_part_left_are_known_whatever_came_and_went(world: Problem, chance: random.Random) -> None:
    draft = begin(planned(world, make_plan(world)))
    fleet = draft.fleet
    parts = offers.PartsInUse(fleet)

    def check() -> None:
        for each in chance.sample(world.needs, min(3, len(world.needs))):
            found = sorted(state.gpu.uuid for gpus in parts.of(each) for state in gpus)
            able = [
                state.gpu.uuid
                for there in fleet.hosts.values()
                for state in there.gpus
                if each.isolation != "exclusive" and state.in_use and any(True for _offer in offers.offers_of(there, each, [state]))
            ]
            # What quotas and hosts say is asked later: nobody is missing who could serve.
            assert set(able) <= set(found)
            assert found == sorted(by_looking(each))

    def by_looking(each: Need) -> list[str]:
        """A fresh index has looked at every GPU."""
        return [state.gpu.uuid for gpus in offers.PartsInUse(fleet).of(each) for state in gpus]

    for _step in range(6):
        check()
        mark = draft.mark()
        if draft.placed and chance.random() < 0.6:
            draft.lift(chance.choice(sorted(draft.placed)))
        else:
            each = chance.choice(world.needs)
            waits = [number for number in range(1, each.replicas + 1) if (each.service, number) not in {*draft.placed, *draft.leaving}]
            for number in waits[:1]:
                draft.place(each, number)
        check()
        if chance.random() < 0.5:
            draft.back(mark)
        else:
            draft.keep()


# What was only tried


@given(world=crowded(), chance=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_was_learnt_while_something_was_only_tried_is_forgotten(world: Problem, chance: random.Random) -> None:
    draft = begin(planned(world, make_plan(world)))

    def known() -> tuple[t.Any, ...]:
        return dict(draft._fruitless), set(draft._vain), dict(draft.placed), draft.fleet.books.ceilings()

    def tries(depth: int) -> None:
        """Anything that may be tried; what is tried within it may stand."""
        before, mark = known(), draft.mark()
        for _step in range(chance.randrange(1, 6)):
            each = chance.choice(world.needs)
            what = chance.randrange(6)
            if what == 0 and draft.placed:
                draft.lift(chance.choice(sorted(draft.placed)))
            elif what == 1 and (each.service, 1) not in draft.placed:
                draft.place(each, 1)
            elif what == 2:
                draft.in_vain(each.service)
            elif what == 3:
                draft.forget(each)
            elif what == 4 and depth:
                tries(depth - 1)
            else:
                draft.hopeless(each)
        if depth < 2 and chance.random() < 0.3:
            draft.keep()
        else:
            draft.back(mark)
            assert known() == before

    for each in world.needs:
        draft.hopeless(each)
    tries(2)


# Kept room


def test_whose_room_a_place_would_take_is_found_once_for_equal_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = need("keeper", "shared", 20_000, keep_room=True, priority=90)
    hosts = [host(l40s(0, f"h{number}"), name=f"h{number}", **SHARED) for number in range(2)]
    asked = Counted(monkeypatch, kept_room, "_taken_from")
    found = make_plan(problem(hosts, [replace(keeper, replicas=2), *(need(f"s{number:02d}", "shared", 6_000) for number in range(30))]))
    assert len(found.unplaced) == 30
    # Each host once for the keeper and once for all thirty, in each of the orders that are tried.
    assert len(asked.calls) <= 12


# Ports


def test_ports_to_add_are_the_next_free_ones() -> None:
    fleet = Fleet(problem([host(l40s(), ports=(18_000,), listening=frozenset({18_001}))], []))
    fleet.hosts["h1"].ports[18_000] = "other-1"
    asked = need("s", "shared", 4_000, ports=(("http", None), ("grpc", None)), resources=Resources())
    (blocker,) = room_blockers(fleet.hosts["h1"], asked, "s-1", frozenset({18_002}))
    assert blocker.best.edits[0].value == (18_000, 18_003, 18_004)
