# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told works where a person follows it to the letter: once the plan is carried out, and with the hosts that are bought."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Limit, Pin, Quota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import edited
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import boards_of
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem, wired
from ansible_collections.gpuops.fleet.tests.unit.test_planner_changes import places, proposals


def test_one_priority_is_told_where_lower_and_higher_ones_are_in_the_way() -> None:
    """NVLink joins the three; what the slice's owner would have to be below is less than what the sharer's is."""
    gpus = [replace(each, pci=f"0000:{3 - number:02x}:00.0") for number, each in enumerate(wired([gpu(0), gpu(1), gpu(2)], [0, 1, 2]))]
    there = (place("s0", "0:1g.10gb@0"), place("s4", "1", mode="shared"))
    low, high = need("s0", priority=10), need("s4", "shared", 18_000, priority=90)
    wide = need("s3", "exclusive", count=3, nvlink="required", priority=10)
    asked = problem([host(*gpus, modes=("mig", "whole", "shared"))], [low, high, wide], there)
    (found,) = proposals(asked)
    assert "raise its priority to 91" in found.sentence
    assert "priority to 11" not in found.sentence
    assert places(asked, found)


def test_a_priority_is_not_told_where_a_gpu_would_have_to_change_for_the_room_of_a_rollout() -> None:
    """Once the slices are cut, room for a whole GPU is on none of them."""
    fleet = [host(gpu(0), gpu(1))]
    cut, big = need("lo", memory_mib=22_000, replicas=2, priority=90), need("big", "exclusive", 18_000, priority=50, keep_room=True)
    asked = replace(problem(fleet, [cut, big]), preemption=True)
    (found,) = proposals(asked)
    assert [change.kind for change in found.changes] == ["hosts"]


@pytest.mark.parametrize(("most", "hosts"), [(1, 8), (64, 1)])
def test_more_hosts_share_their_gpus_as_policy_has_it(most: int, hosts: int) -> None:
    one = host(l40s(), modes=("shared",), shared_max=most)
    # The GPU that is there is full, however many may share it, and stays so.
    needs = [need("large", "shared", 44_500, adopted=True), need("small", "shared", 2000, replicas=8)]
    asked = problem([one], needs, [place("large", "0", mode="shared")])
    number = "a host of environment 'production' with" if hosts == 1 else f"{hosts} hosts of environment 'production', each with"
    (found,) = {sentence for each in proposals(asked) if "host" in (sentence := each.changes[0].sentence)}
    assert found == f"add {number} a free GPU that may be shared (l40s)"


def test_a_board_that_the_gate_would_refuse_on_a_host_of_the_environment_is_not_told() -> None:
    small, large = l40s(), l40s(board="l40", memory_mib=49_140)
    asked = problem([host()], [need("big", "exclusive", 40_000, bars={("h1", "l40s"): Bar("too old", "")})])
    (found,) = proposals(asked, boards=[small, large])
    assert found.changes[0].sentence.endswith("with a free GPU (l40)")


def test_one_thing_that_does_for_all_that_is_in_the_way_is_told() -> None:
    """A GPU is pinned as shared by MPS, and somebody shares it so: to be shared by MPS does for both."""
    one = host(l40s(pin=Pin("shared", sharing="mps")), modes=("mig", "whole"))
    there = (replace(place("bb", "0", mode="shared"), sharing="mps"),)
    asked = problem([one], [need("aa", "shared", 15_000), need("bb", "shared", 15_000, sharing="mps", compute=0.3)], there)
    (found,) = proposals(asked)
    assert found.changes[0].sentence == "write 'sharing: mps', as GPUs of h1 are shared"
    assert places(asked, found)


@pytest.mark.parametrize(("isolation", "mig", "mode"), [("exclusive", True, "whole"), ("slice", False, "mig")])
def test_a_gpu_is_told_to_have_its_mode_already_where_a_rollout_would_have_room_on_it(isolation: str, mig: bool, mode: str) -> None:
    asked = problem([host(gpu(0, mig=mig), gpu(1, mig=mig))], [need("aa", isolation, 45_000, keep_room=True)])
    (found,) = proposals(asked)
    assert [change.kind for change in found.changes] == ["keep_room", "pin"]
    assert found.changes[1].sentence == f"give h1 GPU-h1-1 'mode: {mode}' in fleet_gpu_layouts, for a rollout changes the mode of no GPU"
    assert places(asked, found, 1)


def test_a_quota_is_raised_by_what_boards_that_nobody_has_seen_may_turn_out_to_have() -> None:
    """The largest slice of an H100 is smaller than its memory, which a quota counts."""
    quotas = (Quota("claims", limits=(Limit("memory", 30_000),)),)
    large = need("big", "exclusive", 70_000, team="claims", replicas=3, models=("h100-sxm5-80gb",))
    asked = replace(problem([host(l40s())], [large]), quotas=quotas)
    bought = 0
    for found in proposals(asked, boards=boards_of(door.catalogue())):
        then = edited(asked, found.changes[0].edits)
        come = [replace(one, gpus=tuple(replace(each, memory_mib=81_559, sold_mib=0) for each in one.gpus)) for one in then.hosts[1:]]
        bought += len(come)
        missing = {each.replica for each in make_plan(replace(then, hosts=(then.hosts[0], *come))).unplaced}
        assert not come or found.replica not in missing
    assert bought
