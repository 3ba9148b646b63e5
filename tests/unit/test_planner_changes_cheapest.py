# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cheapest change on fleets that are full: the least priority that serves, nobody robbed without a word, no host too many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Drain, Limit, Problem, Quota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem


def found(asked: Problem, service: str = "new") -> Proposal:
    """What is told to the last replica of a service."""
    return [each for each in propose(asked, make_plan(asked)) if each.service == service][-1]


def full(low: int, highs: int, **fleet: int | bool) -> Problem:
    """A host on which somebody of a low priority is, and others with 90; a newcomer of 50."""
    hosts = [host(l40s(0, f"h{number}"), name=f"h{number}", modes=("whole",)) for number in range(highs + 1)]
    needs = [need("low", "exclusive", priority=low), *(need(f"top{number}", "exclusive", priority=90) for number in range(1, highs + 1))]
    before = [place(each.service, "0", on=f"h{number}", mode="whole") for number, each in enumerate(needs)]
    return replace(problem(hosts, [*needs, need("new", "exclusive")], before), **fleet)


@pytest.mark.parametrize("highs", [1, 4, 9])
@pytest.mark.parametrize("low", [50, 80])
def test_the_least_priority_is_told_however_many_have_a_higher_one(low: int, highs: int) -> None:
    words = f"raise its priority to {low + 1}{{}}: low-1 would give way"
    for more, fleet in ((" and allow fleet_preemption", {"moves": 3}), (" and allow fleet_preemption", {}), ("", {"preemption": True})):
        asked = full(low, highs, **fleet)
        (change, *_others) = found(asked).changes
        assert (change.sentence, change.lost) == (words.format(more), ("low-1",))
        assert {each.name for each in make_plan(asked).placements} - {each.name for each in make_plan(change.apply(asked)).placements} == {
            "low-1"
        }


def test_who_has_no_better_place_than_on_a_drained_gpu_is_named_where_its_release_costs_it_that() -> None:
    before = [place("old", "0", mode="whole")]
    hosts = [host(gpu(0, drain=Drain("drained by lin")))]
    asked = replace(problem(hosts, [need("old", "exclusive", priority=30), need("new", "exclusive")], before), preemption=True)
    assert [each.name for each in make_plan(asked).waiting] == ["old-1"]
    (change, *_others) = found(asked).changes
    assert (change.kind, change.lost) == ("release", ("old-1",))
    assert change.sentence.endswith(": run playbook release: old-1 would give way")
    assert [each.name for each in make_plan(change.apply(asked)).placements] == ["new-1"]
    asked = replace(asked, preemption=False)
    (change, *_others) = found(asked).changes
    assert change.lost == ("old-1",)
    assert [each.name for each in make_plan(change.apply(asked)).placements] == ["new-1"]


def test_gpus_that_only_a_quota_closes_need_no_host() -> None:
    hosts = [host(*(l40s(number) for number in range(3)), modes=("whole",))]
    asked = problem(hosts, [need("new", "exclusive", replicas=4, team="team")])
    told = found(replace(asked, quotas=(Quota("team", (Limit("gpus", 0),)),))).sentence
    assert told == "raise the quota of team by 4 GPUs (fleet_quotas); and add a host of environment 'production' with a free GPU (l40s)"


def test_room_that_a_lower_priority_keeps_is_there_for_the_next_higher_one() -> None:
    hosts = [host(l40s(0), l40s(1), modes=("whole",)), host(l40s(0, "h2"), name="h2", modes=("whole",))]
    needs = [need("keeper", "exclusive", priority=60, keep_room=True), need("top", "exclusive", priority=90), need("new", "exclusive")]
    before = [place("keeper", "0", mode="whole"), place("top", "0", on="h2", mode="whole")]
    told = [change.sentence for change in found(problem(hosts, needs, before)).changes]
    assert told[1:] == ["raise its priority to 61 and allow fleet_preemption"]
