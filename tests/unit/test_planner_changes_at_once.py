# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes made at once, in the merge request that asks for the plan: all who wait are looked at together there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import changes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Problem, Quota, Workspace, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Change
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, need, problem


def served(change: Change, before: Problem) -> set[str]:
    """Who has a place once the change is made."""
    return {place.name for place in make_plan(change.apply(before)).placements}


def test_a_change_holds_in_the_merge_request_that_asks_for_the_plan_too() -> None:
    """Two slices more would be enough for b, but serve two more of a, which are more replicas."""
    needs = [need("a", memory_mib=4096, replicas=3, team="team"), need("b", memory_mib=15360, team="team")]
    quotas = (Quota("team", (Limit("slices", 1),)),)
    asked = replace(problem([host(gpu(0, mig=True), gpu(1, mig=True), modes=("mig",))], needs), quotas=quotas)
    solution = make_plan(asked)
    assert [place.name for place in solution.placements] == ["a-1"]
    for each in propose(asked, solution):
        for change in each.changes:
            for before in (asked, planned(asked, solution)):
                assert f"{each.service}-{each.replica}" in served(change, before), change


def borrowers() -> Problem:
    """A workspace with room for one of two services of a team; the third is of a team that may have no slice."""
    needs = [
        need("a", memory_mib=61440, team="none"),
        *(need(name, memory_mib=1024 * gib, team="some") for name, gib in (("b", 30), ("c", 15))),
    ]
    quotas = (Quota("none", (Limit("slices", 0),), "space"), Quota("some", (), "space"))
    asked = problem([host(gpu(0, mig=True), gpu(1, mig=True), modes=("mig",))], needs)
    return replace(asked, quotas=quotas, workspaces=(Workspace("space", (Limit("memory", 40960),)),))


def test_where_more_quota_for_one_serves_another_of_the_workspace_all_get_more() -> None:
    asked = borrowers()
    (first, *_others) = propose(asked, make_plan(asked))
    assert first.sentence == "raise the quota of none by 8 memory slices and that of workspace space by 99584 MiB (fleet_quotas)"
    assert served(first.changes[0], asked) == {"a-1", "b-1", "c-1"}


def test_a_change_that_holds_only_once_the_plan_is_carried_out_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "by_hosts", lambda _search, _waiting: ())
    asked = borrowers()
    solution = make_plan(asked)
    (first, *_others) = propose(asked, solution)
    assert first.sentence == "raise the quota of none by 8 memory slices and that of workspace space by 79616 MiB (fleet_quotas)"
    assert "a-1" in served(first.changes[0], planned(asked, solution))
    assert "a-1" not in served(first.changes[0], asked)
