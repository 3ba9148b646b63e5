# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules, quotas, moves and preemption together, on many small fleets: an independent checker judges, and what must not matter does not."""

from __future__ import annotations

import random
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MPS,
    TIME_SLICE,
    Gpu,
    Limit,
    Need,
    Problem,
    Quota,
    Resources,
    Rules,
    Workspace,
)
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, problem, wired
from ansible_collections.gpuops.fleet.tests.unit.test_planner_properties import problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

QUICK = settings(
    max_examples=120,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TEAMS = ("claims", "pricing", "fraud")


@st.composite
def rules(draw: st.DrawFn, need: Need, services: list[str]) -> Rules:
    """Rules that a check of manifests would let pass: nobody goes together with itself, or in a circle."""
    later = [name for name in services if name > need.service]
    other = st.sampled_from([name for name in services if name != need.service] or ["nobody"])
    together = (draw(st.sampled_from(later)),) if later and draw(st.integers(0, 4)) == 0 else ()
    apart = (draw(other),) if draw(st.integers(0, 4)) == 0 else ()
    return Rules(
        spread=draw(st.sampled_from(["host", "host", "gpu", "pack"])),
        max_per_host=draw(st.sampled_from([None, None, None, 1, 2])),
        max_per_gpu=draw(st.sampled_from([None, None, None, 1, 2])),
        apart=tuple(name for name in apart if name not in together),
        together=together,
        all_or_nothing=draw(st.integers(0, 5)) == 0,
    )


@st.composite
def limits(draw: st.DrawFn, factor: int = 1) -> tuple[Limit, ...]:
    found = []
    if draw(st.booleans()):
        found.append(Limit("memory", factor * draw(st.sampled_from([0, 20000, 50000, 160000]))))
    if draw(st.integers(0, 2)) == 0:
        found.append(Limit("slices", factor * draw(st.integers(0, 8)), draw(st.sampled_from(["", "a100"]))))
    if draw(st.integers(0, 2)) == 0:
        found.append(Limit("gpus", factor * draw(st.integers(0, 2))))
    return tuple(found)


@st.composite
def quotas(draw: st.DrawFn) -> tuple[Quota, ...]:
    return tuple(
        Quota(team, draw(limits()), draw(st.sampled_from(["insurance", "insurance", None])), draw(st.booleans()), draw(st.booleans()))
        for team in TEAMS[: draw(st.integers(0, 3))]
    )


@st.composite
def rich(draw: st.DrawFn, *, quota: bool = True, moves: int = 2, tight: bool = True) -> Problem:
    """A small fleet and all that can be asked of it, with last plans that know nothing of it half of the time."""
    given_ = draw(problems())
    services = [need.service for need in given_.needs]
    needs = tuple(
        replace(need, team=draw(st.sampled_from(TEAMS)), rules=draw(rules(need, services)) if tight else Rules()) for need in given_.needs
    )
    first = replace(
        given_,
        needs=needs,
        quotas=draw(quotas()) if quota else (),
        workspaces=(Workspace("insurance", draw(limits(2))),),
        moves=draw(st.integers(0, moves)),
        preemption=draw(st.booleans()),
    )
    if draw(st.booleans()):
        return first
    fewer = tuple(replace(need, replicas=max(1, need.replicas - 1)) for need in needs if draw(st.booleans()))
    solution = make_plan(replace(first, needs=fewer))
    return replace(first, previous=(*solution.placements, *solution.waiting))


@st.composite
def crowded(draw: st.DrawFn, *, quota: bool = True, tight: bool = True) -> Problem:
    """One environment that asks for more than it has, so that others have to move or give way; planned before for other needs."""

    def gpus(name: str) -> list[Gpu]:
        kinds = draw(st.lists(st.sampled_from(["a100", "a100", "l40s"]), min_size=1, max_size=3))
        several = [
            l40s(number, name) if kind == "l40s" else gpu(number, name, mig=draw(st.booleans())) for number, kind in enumerate(kinds)
        ]
        return draw(st.sampled_from([several, wired(several, range(len(several))), wired(several, (0, len(several) - 1))]))

    fleet = [
        host(
            *gpus(f"h{number}"),
            name=f"h{number}",
            modes=("mig", "shared", "whole"),
            sharing=(MPS, TIME_SLICE),
            capacity=Resources(draw(st.sampled_from([None, 6, 12])), None, None, None),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    services = [f"service-{number}" for number in range(draw(st.integers(2, 7)))]
    wanted = []
    for service in services:
        isolation = draw(st.sampled_from(["slice", "slice", "slice", "shared", "exclusive"]))
        one = need(
            service,
            isolation,
            draw(st.sampled_from([4000, 9000, 15000, 30000])),
            replicas=draw(st.integers(1, 4)),
            priority=draw(st.sampled_from([10, 50, 90])),
            compute=draw(st.sampled_from([None, None, 0.3])) if isolation != "exclusive" else None,
            sharing=draw(st.sampled_from([TIME_SLICE, MPS])) if isolation == "shared" else TIME_SLICE,
            count=draw(st.integers(1, 2)) if isolation == "exclusive" else 1,
            nvlink=draw(st.sampled_from(["preferred", "required"])),
            models=draw(st.sampled_from([(), (), (), ("a100",), ("l40s",)])) if isolation != "slice" else (),
            resources=Resources(draw(st.integers(0, 2)), 0, 0, 0),
            ports=draw(st.sampled_from([(), (), (("http", None),), (("http", 18001),)])),
            team=draw(st.sampled_from(TEAMS)),
            move_cost=draw(st.sampled_from([1, 1, 1, 2, 3, 5])),
        )
        wanted.append(replace(one, rules=draw(rules(one, services))) if tight else one)
    given_ = replace(
        problem(fleet, wanted),
        quotas=draw(quotas()) if quota else (),
        workspaces=(Workspace("insurance", draw(limits(2))),),
        moves=draw(st.integers(0, 3)),
        preemption=draw(st.booleans()),
    )
    # Some came before others, whatever their priority.
    for count in draw(st.permutations([1, 3])):
        before = make_plan(replace(given_, needs=given_.needs[:count]))
        gone = draw(st.sets(st.sampled_from(services), max_size=1))
        places = tuple(each for each in (*before.placements, *before.waiting) if each.service not in gone)
        given_ = replace(given_, previous=places)
    adopted = draw(st.sets(st.sampled_from(services), max_size=1)) if draw(st.integers(0, 3)) == 0 else set()
    changed = frozenset(draw(st.sets(st.sampled_from(services), max_size=1)))
    needs = tuple(replace(each, adopted=each.service in adopted) for each in given_.needs)
    return replace(given_, needs=needs, changed=changed)


def shuffled(problem: Problem, seed: int) -> Problem:
    chance = random.Random(seed)
    parts = {name: getattr(problem, name) for name in ("hosts", "needs", "previous", "quotas")}
    return replace(problem, **{name: tuple(chance.sample(values, len(values))) for name, values in parts.items()})


@QUICK
@given(st.one_of(crowded(), rich()))
def test_an_independent_checker_finds_nothing_wrong_with_rules_quotas_moves_and_preemption(given_: Problem) -> None:
    assert planner_checker.complaints(given_, make_plan(given_)) == []


@QUICK
@given(st.one_of(crowded(), rich()))
def test_planning_again_changes_nothing(given_: Problem) -> None:
    first = make_plan(given_)
    again = make_plan(replace(given_, previous=(*first.placements, *first.waiting)))
    assert (again.placements, again.layouts, again.waiting, again.displaced) == (first.placements, first.layouts, first.waiting, ())


@QUICK
@given(crowded(), st.integers(0, 1000))
def test_the_order_of_all_parts_does_not_matter(given_: Problem, seed: int) -> None:
    assert make_plan(shuffled(given_, seed)) == make_plan(given_)
