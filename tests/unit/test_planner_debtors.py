# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may be asked to leave for a quota: the list that is kept says what looking at everybody says, and costs no look at everybody."""

from __future__ import annotations

import itertools
import random
import sys
import types
import typing as t
from collections.abc import Callable
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import clearing_quotas
from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key, key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Need, Problem, Quota, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Debit, counted
from ansible_collections.gpuops.fleet.tests.unit.decide_world import host, l40s, need
from ansible_collections.gpuops.fleet.tests.unit.test_planner_rules import crowded
from hypothesis import given, settings
from hypothesis import strategies as st


def by_looking_at_all(draft: Draft, asked: Need, debit: Debit) -> list[tuple[int, Key]]:
    """Who may leave, in order, of all that anybody has."""
    books, small = draft.fleet.books, draft.problem.is_small
    if not debit.lent and not draft.problem.preemption:
        return []
    teams = list(books.teams(books.workspace(asked.team))) if debit.lent or debit.workspace else [asked.team]
    if debit.lent:
        teams = [team for team in teams if team != asked.team and books.borrows(team, debit.key)]
    below = asked.priority + (1 if debit.lent else 0)
    found = []
    for name, charge in (each for team in teams for each in books.charged(team).items()):
        key, much = key_of(name), counted(charge, debit.key)
        other = draft.needs[key[0]]
        may = other.priority < below and other.service != asked.service and other.service not in asked.rules.together
        if much and may and draft.movable(name, leaving=True) is not None and draft.takes_along(other.service) < below:
            enough = much >= debit.short
            elsewhere = small and clearing_quotas._is_other(draft, asked, key)
            found.append((other.priority, not enough, elsewhere, much if enough else -much, other.move_cost, key))
    return [(each[0], each[-1]) for each in sorted(found)]


@pytest.mark.parametrize("small", [True, False])
@given(world=crowded(), chance=st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_debtors_are_those_that_a_look_at_everybody_finds_whatever_came_and_went(
    small: bool, world: Problem, chance: random.Random
) -> None:
    world = replace(world, preemption=True, needs=tuple(replace(each, move_cost=chance.randrange(3)) for each in world.needs))
    draft = begin(planned(world, make_plan(world)))

    def check() -> None:
        for asked in chance.sample(world.needs, min(3, len(world.needs))):
            space = draft.fleet.books.workspace(asked.team)
            for limit, short in itertools.product((("memory", ""), ("gpus", ""), ("slices", "a100")), (1, 4, 15_000)):
                for lent, within in dict.fromkeys(((False, None), (space is not None, space))):
                    debit = Debit("", asked.team, t.cast("t.Any", limit), short, lent, within)
                    assert list(clearing_quotas._debtors(draft, asked, debit)) == by_looking_at_all(draft, asked, debit)

    def tries(depth: int) -> None:
        for _step in range(chance.randrange(1, 4)):
            if chance.random() < 0.5 and draft.placed:
                draft.lift(chance.choice(sorted(draft.placed)))
            else:
                each = chance.choice(world.needs)
                waits = [number for number in range(1, each.replicas + 1) if (each.service, number) not in {*draft.placed, *draft.leaving}]
                if waits:
                    draft.place(each, waits[0])
            if depth and chance.random() < 0.3:
                mark = draft.mark()
                tries(depth - 1)
                draft.back(mark)
            check()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Problem, "is_small", small)
        check()
        tries(2)


def calls(run: Callable[[], object]) -> int:
    """How many Python functions are called: as good as the time that it takes, and the same on any machine."""
    found = itertools.count()

    def seen(_frame: types.FrameType, event: str, _what: object) -> None:
        if event == "call":
            next(found)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return next(found)


def full(replicas: int) -> Problem:
    """A team that has just what its quota gives it."""
    hosts = tuple(
        host(*(l40s(turn, f"h{number:03}") for turn in range(2)), name=f"h{number:03}") for number in range(max(101, replicas // 2))
    )
    needs = tuple(need(f"s{number:03}", "exclusive", replicas=4, team="t") for number in range(replicas // 4))
    first = Problem(hosts, needs, quotas=(Quota("t", (Limit("gpus", replicas),)),))
    return planned(first, make_plan(first, trial=True))


def halved(replicas: int) -> int:
    world = replace(full(replicas), quotas=(Quota("t", (Limit("gpus", replicas // 2),)),))
    return calls(lambda: begin(world))


def pushed(replicas: int) -> int:
    world = full(replicas)
    new = (need(f"z{number:03}", "exclusive", replicas=4, team="t", priority=90) for number in range(replicas // 8))
    world = replace(world, preemption=True, needs=(*world.needs, *new))
    return calls(lambda: make_plan(world, trial=True))


def spread(replicas: int) -> int:
    """Of one service, each on a host of its own."""
    hosts = [host(l40s(0, f"h{number:03}"), name=f"h{number:03}") for number in range(replicas)]
    world = Problem(tuple(hosts), (need("s", "exclusive", replicas=replicas),))
    return calls(lambda: make_plan(world, trial=True))


def test_twice_as_many_of_one_service_take_about_twice_as_long() -> None:
    """Those that have one already come after all that have none; each was asked anew each time."""
    assert spread(400) < 2.6 * spread(200)


@pytest.mark.parametrize("run", [halved, pushed])
def test_twice_as_many_take_about_twice_as_long_where_a_quota_says_who_goes(run: Callable[[int], int]) -> None:
    assert run(800) < 2.6 * run(400)
