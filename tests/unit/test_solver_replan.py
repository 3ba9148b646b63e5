# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Re-planning of MIG GPUs: nothing gets lost, nothing moves that need not, and no other plan is better."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns, patterns_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Limits, Outcome, Program, SolverError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.replan import CLOSED, LOST, OPEN, Gpus, Replan, replan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.transitions import Additions, parts
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100
from hypothesis import given, settings
from hypothesis import strategies as st

SMALL = patterns_of(A30)
LARGE = patterns_of(A100, ())


@dataclass(frozen=True)
class Case:
    gpus: Gpus
    new: dict[str, int]
    cap: int | None


@st.composite
def cases(draw: st.DrawFn, patterns: Patterns, most: int, *, roles: bool = True, services: int = 6) -> Case:
    count = draw(st.integers(1, most))
    states = draw(st.lists(st.sampled_from(patterns.states.tolist()), min_size=count, max_size=count))
    pinned = draw(st.lists(st.integers(0, 2 ** len(patterns.slots) - 1), min_size=count, max_size=count)) if roles else 0
    kinds = draw(st.lists(st.sampled_from((OPEN, OPEN, OPEN, CLOSED, LOST)), min_size=count, max_size=count)) if roles else OPEN
    new = {profile.name: draw(st.integers(0, services)) for profile in patterns.profiles}
    return Case(Gpus.of(patterns, states, pinned, kinds), new, draw(st.sampled_from((None, 0, 1, 3))))


def slots(patterns: Patterns, state: int) -> Counter[Slice]:
    return Counter(patterns.slices_of(state))


def total(patterns: Patterns, states: np.ndarray) -> Counter[str]:
    return Counter(one.profile for state in states.tolist() for one in patterns.slices_of(state))


def check(case: Case, plan: Replan) -> None:
    """Everything that must hold of any plan."""
    gpus, patterns = case.gpus, case.gpus.patterns
    assert np.isin(plan.after, patterns.states).all()
    assert (plan.kept & ~gpus.states == 0).all()
    assert (plan.kept & ~plan.after == 0).all()
    assert (plan.after[gpus.roles == LOST] == 0).all()
    assert (plan.after[gpus.roles == CLOSED] == gpus.states[gpus.roles == CLOSED]).all()
    pinned = gpus.pinned[gpus.roles == OPEN]
    assert (plan.kept[gpus.roles == OPEN] & pinned == pinned).all()
    # The rows of the shifts say the same as the states, slice by slice.
    before = Counter((gpu, one) for gpu, state in enumerate(gpus.states.tolist()) for one in patterns.slices_of(state))
    after = before.copy()
    moved = 0
    for profile, gpu, start, old_gpu, old_start in np.stack(list(vars(plan.shifts).values()), axis=1).tolist():
        name = patterns.profiles[profile].name
        if old_gpu >= 0:
            assert (gpu, start) != (old_gpu, old_start)
            after[old_gpu, Slice(old_start, name)] -= 1
            moved += gpus.roles[old_gpu] != LOST
        after[gpu, Slice(start, name)] += 1
    homeless = Counter({name: count for name, count in plan.unserved.items() if count})
    for (gpu, one), count in sorted(before.items()):
        # What finds no place any more stood on a lost GPU.
        if gpus.roles[gpu] == LOST and after[gpu, one]:
            after[gpu, one] -= count
            homeless[one.profile] -= count
    assert +after == Counter((gpu, one) for gpu, state in enumerate(plan.after.tolist()) for one in patterns.slices_of(state))
    assert total(patterns, plan.after) == total(patterns, gpus.states) + Counter(case.new) - Counter(plan.unserved)
    assert min(homeless.values(), default=0) >= 0
    assert moved == plan.moves
    assert plan.forced == sum(total(patterns, gpus.states[gpus.roles == LOST]).values())
    assert case.cap is None or plan.moves <= case.cap
    assert plan.gpus == (plan.after != 0).sum()


@settings(max_examples=25, deadline=None)
@given(cases(LARGE, 12), st.sampled_from(("gpus", "moves")))
def test_any_fleet_gets_a_legal_plan_that_loses_nothing(case: Case, goal: str) -> None:
    plan = replan(case.gpus, case.new, case.cap, goal)  # type: ignore[arg-type] # one of the two
    check(case, plan)
    assert sum(plan.unserved.values()) >= plan.unserved_bound - 1e-6
    assert plan.gpus >= plan.gpus_bound - 1e-6


def best_by_trying(case: Case, goal: str) -> tuple[int, ...]:
    """(unserved, GPUs, moves) or (unserved, moves, GPUs) of the best plan, from all states that every GPU could end in."""
    patterns, gpus = case.gpus.patterns, case.gpus
    rows: list[list[tuple[int, int, tuple[int, ...]]]] = []
    for state, pinned in zip(gpus.states.tolist(), gpus.pinned.tolist(), strict=True):
        ways = set()
        for row, after in enumerate(patterns.states.tolist()):
            if pinned & ~after == 0:
                ways.add((int(after != 0), (state & ~after).bit_count(), tuple(patterns.counts[row].tolist())))
        rows.append(sorted(ways))
    need = patterns.counts[[patterns.index[state] for state in gpus.states.tolist()]].sum(axis=0)
    wanted = need + np.asarray([case.new[profile.name] for profile in patterns.profiles])
    best: tuple[int, ...] = (10**9,)
    for way in itertools.product(*rows):
        moves = sum(one[1] for one in way)
        have = np.sum([one[2] for one in way], axis=0)
        if (case.cap is not None and moves > case.cap) or (have < need).any():
            continue
        unserved, count = int(np.maximum(0, wanted - have).sum()), sum(one[0] for one in way)
        best = min(best, (unserved, count, moves) if goal == "gpus" else (unserved, moves, count))
    return best


@settings(max_examples=15, deadline=None)
@given(cases(SMALL, 3, roles=False, services=2), st.sampled_from(("gpus", "moves")))
def test_no_search_through_all_plans_finds_a_better_one(case: Case, goal: str) -> None:
    plan = replan(case.gpus, case.new, case.cap, goal)  # type: ignore[arg-type] # one of the two
    pair = (plan.gpus, plan.moves) if goal == "gpus" else (plan.moves, plan.gpus)
    assert (sum(plan.unserved.values()), *pair) == best_by_trying(case, goal)


@settings(max_examples=15, deadline=None)
@given(cases(LARGE, 12, roles=False))
def test_a_plan_that_is_planned_again_moves_nothing(case: Case) -> None:
    first = replan(case.gpus, case.new, None, "gpus")
    again = replan(Gpus.of(LARGE, first.after), {}, None, "gpus")
    assert (again.after == first.after).all()
    assert (again.moves, len(again.shifts.gpu)) == (0, 0)


@settings(max_examples=15, deadline=None)
@given(cases(LARGE, 12), st.randoms(use_true_random=False))
def test_the_order_of_the_gpus_changes_no_count(case: Case, random: object) -> None:
    order = np.arange(len(case.gpus.states))
    random.shuffle(order)  # type: ignore[attr-defined] # a random.Random
    turned = Gpus(LARGE, case.gpus.states[order], case.gpus.pinned[order], case.gpus.roles[order])
    one, other = replan(case.gpus, case.new, case.cap), replan(turned, dict(reversed(case.new.items())), case.cap)
    assert (one.gpus, one.moves, one.unserved) == (other.gpus, other.moves, other.unserved)
    assert sorted(one.after.tolist()) == sorted(other.after.tolist())


@settings(max_examples=15, deadline=None)
@given(cases(LARGE, 12))
def test_one_more_gpu_never_serves_less(case: Case) -> None:
    more = Gpus(LARGE, *(np.append(each, 0) for each in (case.gpus.states, case.gpus.pinned, case.gpus.roles)))
    one, other = (sum(replan(gpus, case.new, case.cap).unserved.values()) for gpus in (case.gpus, more))
    assert other <= one


def test_of_a_lost_gpu_only_its_own_slices_move() -> None:
    full = LARGE.state_of([Slice(0, "4g.40gb"), Slice(4, "2g.20gb"), Slice(6, "1g.10gb")])
    half = LARGE.state_of([Slice(0, "4g.40gb")])
    gpus = Gpus.of(LARGE, [full] * 5 + [half, 0], roles=[LOST] + [OPEN] * 6)
    plan = replan(gpus, {}, goal="moves")
    assert (plan.moves, plan.forced, plan.unserved) == (0, 3, {})
    assert plan.after[1:5].tolist() == [full] * 4


def test_room_in_pieces_is_brought_together_by_one_move() -> None:
    # Either GPU has room for four memory slices, but in no GPU do they lie where a 4g may begin.
    gpus = Gpus.of(LARGE, [LARGE.state_of([Slice(0, "3g.40gb")])] * 2)
    assert replan(gpus, {"4g.40gb": 1}, cap=0).unserved == {"4g.40gb": 1}
    plan = replan(gpus, {"4g.40gb": 1}, cap=1)
    assert (plan.moves, plan.unserved, plan.gpus) == (1, {}, 2)
    pinned = Gpus.of(LARGE, gpus.states, gpus.states)
    assert replan(pinned, {"4g.40gb": 1}).unserved == {"4g.40gb": 1}


def test_when_nothing_changes_nothing_moves_though_fewer_gpus_would_do() -> None:
    gpus = Gpus.of(LARGE, [LARGE.state_of([Slice(6, "1g.10gb")])] * 7)
    assert replan(gpus, {}, goal="moves").after.tolist() == gpus.states.tolist()
    assert replan(gpus, {}).gpus == 1


def test_wishes_that_cannot_be() -> None:
    gpus = Gpus.of(SMALL, [0])
    with pytest.raises(FleetError, match=r"no MIG profile 5g\.50gb"):
        replan(gpus, {"5g.50gb": 1})
    with pytest.raises(FleetError, match=r"-1 slices of 1g\.6gb"):
        replan(gpus, {"1g.6gb": -1})
    with pytest.raises(FleetError, match=r"GPU 1 is in no legal state"):
        Gpus.of(SMALL, [0, 2 ** len(SMALL.slots) - 1])


def test_the_answer_says_when_no_plan_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Program.solve

    def only_relaxed(self: Program, limits: Limits | None = None, *, relaxed: bool = False) -> Outcome:
        if not relaxed:
            raise SolverError("out of nodes")
        return solve(self, limits, relaxed=True)

    monkeypatch.setattr(Program, "solve", only_relaxed)
    with pytest.raises(SolverError, match=r"out of nodes"):
        replan(Gpus.of(SMALL, [0]), {"1g.6gb": 1})


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(LARGE.states.tolist()))
def test_what_may_join_a_state_is_all_that_the_board_allows(state: int) -> None:
    additions = Additions(LARGE)
    choices = additions.choices[additions.kind(state)]
    here = LARGE.counts[LARGE.index[state]]
    above = LARGE.counts[(LARGE.states & state) == state] - here
    assert all((choices >= row).all(axis=1).any() for row in above if row.any())
    for more in choices:
        after = additions.joined(state, more)
        assert after & state == state
        assert (LARGE.counts[LARGE.index[after]] - here == more).all()


@given(st.integers(0, 255), st.integers(0, 255))
def test_parts_are_all_parts_that_have_what_is_fixed(state: int, fixed: int) -> None:
    fixed &= state
    assert sorted(parts(state, fixed)) == [part for part in range(256) if part & ~state == 0 and fixed & ~part == 0]
    assert parts(state, fixed)[0] == state


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from((None, 40)))
def test_a_fleet_in_all_states_at_once_is_within_one_of_its_bounds(seed: int, cap: int | None) -> None:
    # Hundreds of GPUs in hundreds of states: what the solver alone does not end in minutes.
    states = np.random.default_rng(seed).choice(LARGE.states, 3_000)
    plan = replan(Gpus.of(LARGE, states), {profile.name: 9 for profile in LARGE.profiles}, cap)
    assert plan.unserved == {}
    assert plan.gpus <= np.ceil(plan.gpus_bound - 1e-6) + 1
    assert plan.moves <= plan.cost_bound + 1


def test_as_how_many_moves_a_plan_counts_is_said_beside_how_many_there_are() -> None:
    """The bound is one of what moves count, which is more than there are where each counts 7."""
    states = [LARGE.state_of([Slice(0, "1g.10gb")])] * 2
    plan = replan(Gpus.of(LARGE, states, costs=[[7] * len(LARGE.slots)] * 2), {}, cap=10)
    assert (plan.gpus, plan.moves, plan.cost, plan.cost_bound) == (1, 1, 7, 7)
    plan = replan(Gpus.of(LARGE, states), {}, cap=10)
    assert (plan.moves, plan.cost, plan.cost_bound) == (1, 1, 1)
