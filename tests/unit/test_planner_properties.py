# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner on many small fleets: every plan is judged by an independent checker, and what must not matter does not."""

from __future__ import annotations

import random
import typing as t
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import Settled, begin, begin_again
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MPS,
    TIME_SLICE,
    Bar,
    Drain,
    Gpu,
    Host,
    Instance,
    Need,
    Pin,
    Placement,
    Problem,
    Resources,
    Solution,
    planned,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState
from ansible_collections.gpuops.fleet.tests.bench.planner.metamorphic_world import twins
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100, gpu, host, l40s, wired
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

# Reproducible in CI, and without a data base of examples in the checkout.
QUICK = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NO = Bar("CUDA 13.0.2 needs driver 580.65.06 or newer, here is 550.54.15; rule cuda-driver", "upgrade to R580: 580.65.06 or newer")
PLAIN_A100 = [layout for layout in valid_layouts(A100) if not any("+" in one.profile for one in layout)]


def _instance(one: Slice, fate: int) -> Instance:
    return Instance(one, plain=fate != 1, outsiders=("stranger",) if fate == 2 else ())


@st.composite
def gpus(draw: st.DrawFn, name: str, number: int) -> Gpu:
    kind = draw(st.sampled_from(["a100", "a100", "a30", "l40s"]))
    more: dict[str, t.Any] = {
        "cordoned": draw(st.integers(0, 9)) == 0,
        "drain": Drain("drained by lin (fan)", draw(st.booleans())) if draw(st.integers(0, 7)) == 0 else None,
        "blocked": "lost" if draw(st.integers(0, 9)) == 0 else None,
        "outsiders": ("stranger",) if draw(st.integers(0, 14)) == 0 else (),
    }
    if kind == "l40s":
        if draw(st.integers(0, 9)) == 0:
            more["pin"] = Pin("shared", sharing=draw(st.sampled_from([TIME_SLICE, MPS])))
        more["mps_clients"] = draw(st.sampled_from([1, 48]))
        return l40s(number, name, **more)
    geometry = A100 if kind == "a100" else A30
    if kind == "a30":
        more.update(geometry=A30, board="a30", memory_mib=24576)
    layouts: t.Any = PLAIN_A100 if kind == "a100" else valid_layouts(geometry)
    layout = draw(st.one_of(st.just(()), st.sampled_from(layouts)))
    pinned = draw(st.integers(0, 9))
    if pinned < 2:
        more["pin"] = Pin("mig", cuts=True) if pinned else Pin("mig", draw(st.sampled_from(layouts)))
    more["instances"] = tuple(_instance(one, draw(st.integers(0, 7))) for one in layout)
    return gpu(number, name, **{**more, "mig": bool(layout) or draw(st.booleans())})


def wires(draw: st.DrawFn, several: list[Gpu]) -> list[Gpu]:
    """With NVLink between some of them: nobody knows of any, between all, in pairs, or anyhow; and of some nobody knows after all."""
    way = draw(st.sampled_from(["unknown", "all", "pairs", "any"]))
    if way == "unknown":
        return several
    numbers = range(len(several))
    pairs = [(one, other) for one in numbers for other in numbers if one < other]
    if way == "pairs":
        pairs = [(one, other) for one, other in pairs if one % 2 == 0 and other == one + 1]
    elif way == "any":
        pairs = [pair for pair in pairs if draw(st.booleans())]
    joined = wired(several, *pairs)
    return [replace(one, links=None) if draw(st.integers(0, 5)) == 0 else one for one in joined]


@st.composite
def hosts(draw: st.DrawFn, name: str) -> Host:
    amount = st.one_of(st.none(), st.integers(4, 64))
    return host(
        *wires(draw, [draw(gpus(name, number)) for number in range(draw(st.integers(0, 4)))]),
        name=name,
        environment=draw(st.sampled_from(["production", "production", "staging"])),
        modes=tuple(draw(st.sets(st.sampled_from(["mig", "whole", "shared"]), min_size=1))),
        sharing=draw(st.sampled_from([(TIME_SLICE,), (TIME_SLICE,), (MPS,), (MPS, TIME_SLICE)])),
        shared_max=draw(st.integers(1, 3)),
        capacity=Resources(draw(amount), draw(amount), None, draw(amount)),
        ports=tuple(range(18000, 18000 + draw(st.integers(1, 6)))),
        listening=frozenset(draw(st.sets(st.integers(18000, 18003), max_size=2))),
        data_classes=draw(st.sampled_from([("personal",), ("internal", "personal"), ("internal",), ()])),
    )


@st.composite
def needs(draw: st.DrawFn, service: str) -> Need:
    isolation = draw(st.sampled_from(["slice", "slice", "slice", "exclusive", "shared"]))
    ports = draw(st.sampled_from([(), (), (("http", None),), (("http", 18001),), (("http", None), ("metrics", None))]))
    return Need(
        service=service,
        environment=draw(st.sampled_from(["production", "production", "staging"])),
        isolation=isolation,
        memory_mib=draw(st.sampled_from([0, 4000, 9000, 15000, 30000, 60000])),
        replicas=draw(st.integers(1, 3)),
        priority=draw(st.sampled_from([10, 50, 90])),
        count=draw(st.integers(1, 3)) if isolation == "exclusive" else 1,
        nvlink=draw(st.sampled_from(["preferred", "required"])),
        profile=draw(st.sampled_from([None, None, None, "1g.10gb", "3g.40gb", "1g.10gb+me"])) if isolation == "slice" else None,
        compute=draw(st.sampled_from([None, None, 0.3, 0.6])) if isolation != "exclusive" else None,
        sharing=draw(st.sampled_from([TIME_SLICE, MPS])) if isolation == "shared" else TIME_SLICE,
        models=draw(st.sampled_from([(), (), ("a100",), ("l40s", "a30")])),
        not_models=draw(st.sampled_from([(), (), ("a30",)])),
        resources=Resources(draw(st.integers(0, 6)), draw(st.integers(0, 6)), 0, draw(st.integers(0, 6))),
        ports=ports,
        data_class=draw(st.sampled_from(["", "", "", "internal", "personal"])),
        keep_room=draw(st.sampled_from([False, False, False, True])),
        bars=draw(st.sampled_from([{}, {}, {("h0", "a100-sxm4-80gb"): NO}, {("h0", "l40s"): NO, ("h1", "a30"): NO}])),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A fleet; half of the time with last plans that were made for other needs, as after a week of changes."""
    fleet = tuple(draw(hosts(f"h{number}")) for number in range(draw(st.integers(1, 3))))
    wanted = tuple(draw(needs(f"service-{number}")) for number in range(draw(st.integers(0, 6))))
    previous: tuple[Placement, ...] = ()
    if draw(st.booleans()):
        older = tuple(draw(needs(f"service-{number}")) for number in range(draw(st.integers(0, 6))))
        # Nobody drained anything when they were made, so somebody is on what is drained now.
        fleet, drained = tuple(replace(each, gpus=tuple(replace(one, drain=None) for one in each.gpus)) for each in fleet), fleet
        previous = make_plan(Problem(fleet, older)).placements
        # Two plans that grew apart, as after a merge: they may name one replica, one slice or one port twice.
        if draw(st.integers(0, 3)) == 0:
            previous += make_plan(Problem(fleet[::-1], tuple(replace(need, priority=100 - need.priority) for need in older))).placements
        fleet = drained
        adopted = draw(st.sets(st.sampled_from([need.service for need in wanted]))) if wanted else set()
        wanted = tuple(replace(need, adopted=need.service in adopted) for need in wanted)
        if draw(st.booleans()):
            fleet = (replace(fleet[0], gpus=()), *fleet[1:])
        elif draw(st.booleans()):
            fleet = fleet[1:]
        elif draw(st.booleans()):
            fleet = (replace(fleet[0], down=True), *fleet[1:])
    changed = draw(st.sets(st.sampled_from([need.service for need in wanted]))) if wanted else set()
    return Problem(fleet, wanted, previous, frozenset(changed))


def shuffled(problem: Problem, seed: int) -> Problem:
    """The same problem with all of its parts in another order."""
    random_ = random.Random(seed)

    def mix(parts: t.Iterable[t.Any]) -> tuple[t.Any, ...]:
        several = list(parts)
        return tuple(random_.sample(several, len(several)))

    fleet = mix(
        replace(each, modes=mix(each.modes), gpus=mix(replace(one, instances=mix(one.instances)) for one in each.gpus))
        for each in problem.hosts
    )
    return Problem(fleet, mix(problem.needs), mix(problem.previous), problem.changed)


def applied(problem: Problem, solution: Solution) -> tuple[Host, ...]:
    """The hosts as they are after the plan was carried out."""

    def after(name: str, one: Gpu) -> Gpu:
        layout = solution.layouts.get((name, one.uuid))
        if layout is None:
            return one
        known = {each.slice: each for each in one.instances}
        return replace(one, mig=layout.mode == "mig", instances=tuple(known.get(each, Instance(each)) for each in layout.slices))

    return tuple(replace(each, gpus=tuple(after(each.name, one) for one in each.gpus)) for each in problem.hosts)


@QUICK
@given(problems())
def test_an_independent_checker_finds_nothing_wrong(problem: Problem) -> None:
    assert planner_checker.complaints(problem, make_plan(problem)) == []


@QUICK
@given(problems(), st.integers(0, 1000))
def test_the_order_of_the_input_does_not_matter(problem: Problem, seed: int) -> None:
    assert make_plan(shuffled(problem, seed)) == make_plan(problem)


@QUICK
@given(problems())
def test_planning_again_from_its_own_plan_moves_nothing(problem: Problem) -> None:
    first = make_plan(problem)
    again = make_plan(replace(problem, previous=(*first.placements, *first.waiting)))
    assert (again.placements, again.layouts, again.waiting) == (first.placements, first.layouts, first.waiting)


@QUICK
@given(problems())
def test_planning_again_after_the_plan_was_carried_out_moves_nothing(problem: Problem) -> None:
    first = make_plan(problem)
    again = make_plan(Problem(applied(problem, first), problem.needs, (*first.placements, *first.waiting)))
    assert (again.placements, again.layouts) == (first.placements, first.layouts)


@QUICK
@given(problems())
def test_who_has_a_place_by_a_plan_has_it_where_there_is_more_whether_that_is_asked_or_not(problem: Problem) -> None:
    begins_alike(problem)


def begins_alike(problem: Problem) -> None:
    """Of a fleet with one host more, a plan begins with the same whether it is told who is settled or asks about everybody."""
    solution = make_plan(problem)
    more = planned(replace(problem, hosts=(*problem.hosts, host(gpu(0, "more"), name="more"))), solution)
    keys = {(place.service, place.replica) for place in solution.placements}
    are_alike(more, begin(more), begin(more, Settled(keys, Scene(more, solution, {}).fleet)))


@QUICK
@given(problems())
def test_what_a_plan_began_with_is_there_again_whatever_was_decided_since(problem: Problem) -> None:
    first = make_plan(replace(problem, needs=problem.needs[::2]))
    more = planned(problem, first)
    draft = begin(more)
    assume(not draft.drained)
    here = [key for key, place in draft.kept.items() if place.host in draft.fleet.hosts and not draft.fleet.hosts[place.host].host.down]
    for key in here[::3]:
        draft.lift(key)
    for need in more.needs:
        for replica in range(1, need.replicas + 1):
            if (need.service, replica) not in draft.placed and not need.adopted:
                draft.place(need, replica)
    for key in (*here[1::3], *(draft.placed.keys() - draft.kept.keys())):
        draft.lift(key)
    are_alike(more, begin(more), begin_again(draft))


def are_alike(problem: Problem, asked: Draft, told: Draft) -> None:
    """Two plans that begin with the same."""
    assert (told.placed, told.leaving, told.kept) == (asked.placed, asked.leaving, asked.kept)
    for one, other in zip(told.fleet.hosts.values(), asked.fleet.hosts.values(), strict=True):
        assert one.save()[:3] == other.save()[:3]
        assert [_given(state) for state in one.gpus] == [_given(state) for state in other.gpus]
        for need in problem.needs:
            assert (one.turn in told.fleet.diary.having(need.service)) == (other.turn in asked.fleet.diary.having(need.service))
    one, other = told.fleet.books, asked.fleet.books
    assert (one.ceilings(), one.loans()) == (other.ceilings(), other.loans())
    assert all(one.charged(quota.team) == other.charged(quota.team) for quota in problem.quotas)


def _given(state: GpuState) -> tuple[t.Any, ...]:
    """All that is given away of a GPU; in which order that was is nobody's."""
    mode, sharing, memory, compute, fixed, spare, reusable, owners, tenants, replicas = state.save()[:10]
    return mode, sharing, memory, compute, sorted(fixed), sorted(spare), sorted(reusable), owners, sorted(tenants), replicas


@QUICK
@given(problems(), st.randoms(use_true_random=False))
def test_other_names_of_hosts_change_nothing_but_names(problem: Problem, chance: random.Random) -> None:
    assume(not twins(problem))
    known = sorted({each.name for each in problem.hosts} | {place.host for place in problem.previous})
    names = dict(zip(known, chance.sample([*known, "zebra", "aardvark"], len(known)), strict=True))
    needs = tuple(
        replace(need, bars={(names.get(name, f"{name}-gone"), board): no for (name, board), no in need.bars.items()})
        for need in problem.needs
    )
    hosts = tuple(replace(each, name=names[each.name]) for each in problem.hosts)
    previous = tuple(replace(place, host=names[place.host]) for place in problem.previous)
    first, second = make_plan(problem), make_plan(replace(problem, hosts=hosts, needs=needs, previous=previous))
    assert [replace(place, host=names[place.host]) for place in first.placements] == list(second.placements)
    assert {(names[name], uuid): layout for (name, uuid), layout in first.layouts.items()} == second.layouts
    assert first.proof == second.proof


def test_only_of_hosts_that_are_alike_the_first_by_name_is_taken() -> None:
    def taken(one: Host, other: Host) -> str:
        return make_plan(Problem((one, other), (Need("ocr", "production", "slice", 9000),))).placements[0].host

    small, large = host(gpu(0, "x")), host(gpu(0, "y"), gpu(1, "y"))
    assert [taken(replace(small, name=name), replace(small, name="b")) for name in "ac"] == ["a", "b"]
    assert [taken(replace(small, name=name), replace(large, name="b")) for name in "ac"] == ["b", "b"]


def _broken(solution: Solution, **changes: t.Any) -> Solution:
    return replace(solution, placements=(replace(solution.placements[0], **changes), *solution.placements[1:]))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"slice": Slice(5, "3g.40gb")}, "cannot start"),
        ({"slice": Slice(0, "1g.10gb")}, "needs more than"),
        ({"mode": "whole", "slice": None}, "kind or number"),
        ({"ports": (("http", 18001),)}, "given twice"),
        ({"ports": (("http", 17000),)}, "not in the range"),
        ({"replica": 7}, "are not those wanted"),
        ({"host": "nowhere"}, "not here"),
    ],
)
def test_the_checker_itself_sees_what_is_wrong(changes: dict[str, t.Any], complaint: str) -> None:
    problem = Problem(
        (host(gpu(0), gpu(1)),),
        tuple(Need(name, "production", "slice", 30000, ports=(("http", None),)) for name in ("aa", "bb")),
    )
    solution = make_plan(problem)
    assert planner_checker.complaints(problem, solution) == []
    if changes.get("slice"):
        layouts = {key: replace(layout, slices=(changes["slice"],)) for key, layout in solution.layouts.items()}
        solution = replace(solution, layouts=layouts)
    assert any(complaint in line for line in planner_checker.complaints(problem, _broken(solution, **changes)))
