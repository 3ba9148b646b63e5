# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service whose data has a class is only on hosts that may have such data, whatever else there is room for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import edited, propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import down_host, host_of, need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import told
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import WhatIf
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu, gpu_facts, host, manifest_text, need, place, problem, where

HOME = host(gpu(0, "home"), name="home", data_classes=("internal", "personal"))
CLOUD = host(gpu(0, "cloud"), name="cloud", data_classes=("public",))
NOTHING = host(gpu(0, "nothing"), name="nothing")


def plan(asked: Problem) -> dict[str, str]:
    solution = make_plan(asked)
    assert planner_checker.complaints(asked, solution) == []
    return {each.name: where(each) for each in solution.placements}


def test_data_goes_only_to_hosts_that_list_its_class_and_what_has_none_goes_anywhere() -> None:
    wanted = [need("ocr", "exclusive", data_class="personal", replicas=2), need("batch", "exclusive", replicas=2, priority=10)]
    assert plan(problem([CLOUD, HOME, NOTHING], wanted)) == {"ocr-1": "home/0", "batch-1": "cloud/0", "batch-2": "nothing/0"}


def test_what_runs_leaves_a_host_that_may_not_have_its_data_any_more() -> None:
    wanted = [need("ocr", data_class="personal"), need("batch")]
    before = [place("ocr", "0:1g.10gb@6", on="cloud"), place("batch", "0:1g.10gb@5", on="cloud")]
    found = plan(problem([CLOUD, HOME], wanted, before))
    assert found["ocr-1"].startswith("home/")
    assert found["batch-1"] == "cloud/0:1g.10gb@5"
    assert "ocr-1" not in plan(problem([CLOUD], wanted, before))


def test_adopted_services_stay_where_they_were_found() -> None:
    before = [place("ocr", "0:1g.10gb@6", on="cloud")]
    assert plan(problem([CLOUD, HOME], [need("ocr", data_class="personal", adopted=True)], before)) == {"ocr-1": "cloud/0:1g.10gb@6"}


def test_others_move_and_give_way_only_where_it_may_be_and_to_where_they_may_be() -> None:
    before = [place("batch", "0", on="home", mode="whole")]
    wanted = [need("batch", "exclusive", priority=10), need("ocr", "exclusive", data_class="personal")]
    asked = problem([HOME, CLOUD], wanted, before)
    assert plan(asked) == {"batch-1": "home/0"}
    assert plan(replace(asked, moves=1)) == {"batch-1": "cloud/0", "ocr-1": "home/0"}
    held = replace(asked, needs=(replace(wanted[0], data_class="internal"), wanted[1]))
    assert plan(replace(held, moves=3)) == {"batch-1": "home/0"}
    assert plan(replace(held, moves=3, preemption=True)) == {"ocr-1": "home/0"}


def test_what_one_of_them_is_refused_the_others_still_get() -> None:
    wanted = [need("ocr", "exclusive", data_class="personal", replicas=2), need("batch", "exclusive", replicas=2, priority=10)]
    found = make_plan(problem([CLOUD, HOME, NOTHING], wanted), trial=True).placements
    assert [each.name for each in found] == ["batch-1", "batch-2", "ocr-1"]


@pytest.mark.parametrize("others", [0, 1])
def test_the_bound_counts_nobody_on_hosts_where_his_data_may_not_be(others: int) -> None:
    cloud = replace(CLOUD, gpus=tuple(gpu(number, "cloud") for number in range(3 if others else 1)))
    plain = [need("aa", "exclusive", replicas=others)] if others else []
    solution = make_plan(problem([cloud, HOME], [*plain, need("ocr", "exclusive", data_class="personal", replicas=2)]))
    assert len(solution.unplaced) == 1
    assert solution.proof is not None
    assert solution.proof.solver is not None
    assert solution.proof.more == ()


def test_the_program_for_all_who_wait_knows_it() -> None:
    hosts = [replace(HOME, gpus=(gpu(0, "home"),)), replace(CLOUD, gpus=tuple(gpu(number, "cloud") for number in range(3)))]
    wanted = [
        need(f"s{number}", memory_mib=size, data_class="personal" if number % 2 else "")
        for number, size in enumerate((60000, 30000, 38000, 15000, 9000, 30000, 9000, 15000, 60000, 60000))
    ]
    solution = make_plan(problem(hosts, wanted))
    assert planner_checker.complaints(problem(hosts, wanted), solution) == []
    # At home there is room for 38000 and 15000 of 30000, 15000, 30000 and 15000: the bound does not count the cloud for them.
    assert solution.proof is not None
    assert sum(many for _priority, many in solution.proof.more) == 0


def test_no_host_for_it_is_said_in_one_line() -> None:
    (missing,) = make_plan(problem([HOME, CLOUD], [need(data_class="health")])).unplaced
    assert missing.reason == "no host of environment 'production' may have data of class 'health' (fleet_data_classes)"
    assert missing.help == "add 'health' to fleet_data_classes of a host that may have such data"


def test_a_slip_of_the_pen_is_asked_about_beside_what_would_help_too() -> None:
    asked = problem([HOME, CLOUD], [need(data_class="persnal")])
    solution = make_plan(asked)
    (slip,) = told(solution, propose(asked, solution)).unplaced
    assert slip.help == "add 'persnal' to fleet_data_classes of cloud, if such data may be there"
    assert slip.reason.endswith("of class 'persnal' (fleet_data_classes), did you mean 'personal'?")


def test_hosts_that_may_not_have_it_say_so_beside_the_others() -> None:
    full = [need("batch", "exclusive", adopted=True), need("ocr", "exclusive", data_class="personal")]
    (missing,) = make_plan(problem([CLOUD, HOME], full, [place("batch", "0", on="home", mode="whole")])).unplaced
    assert "cloud: may not have data of class 'personal' (fleet_data_classes)" in missing.reason
    assert "home: 1 GPU already whole for batch-1" in missing.reason
    assert missing.help.startswith("add a host of environment 'production' that may have data of class 'personal' with a free GPU")


def test_what_is_proposed_is_another_host_for_the_data_and_never_another_class_and_it_helps() -> None:
    asked = problem([CLOUD, NOTHING], [need(data_class="personal")])
    solution = make_plan(asked)
    (found,) = propose(asked, solution)
    assert found.cause == "data class"
    assert found.changes[0].sentence == "add 'personal' to fleet_data_classes of cloud, if such data may be there"
    for change in found.changes:
        assert not [edit for edit in change.edits if edit.field == "data_class"]
        after = edited(planned(asked, solution), change.edits)
        assert after.needs == asked.needs
        assert len(make_plan(after).placements) == 1


def test_that_data_may_be_elsewhere_is_proposed_after_what_makes_room_where_it_may_be() -> None:
    before = [place("batch", "0", on="home", mode="whole")]
    asked = problem([CLOUD, HOME], [need("batch", "exclusive", priority=10), need("ocr", "exclusive", data_class="personal")], before)
    (found,) = propose(asked, make_plan(asked))
    assert (found.cause, found.changes[0].kind) == ("in use", "moves")
    assert "data_class" not in {change.kind for change in found.changes}


def test_a_host_that_is_proposed_may_have_the_data() -> None:
    full = [need("old", "exclusive", adopted=True), need("ocr", "exclusive", data_class="personal", priority=100)]
    asked = problem([HOME], full, [place("old", "0", on="home", mode="whole")])
    (found,) = propose(asked, make_plan(asked))
    assert found.changes[0].sentence == (
        "add a host of environment 'production' that may have data of class 'personal' with a free GPU (a100-sxm4-80gb)"
    )


def test_a_question_counts_only_hosts_that_may_have_the_data() -> None:
    asked = problem([HOME, CLOUD], [need(isolation="exclusive", data_class="personal", replicas=3)])

    def many(**more: object) -> object:
        question = Located({"how_many": {"board": "a100", "gpus": 1, **more}}, "fleet_what_if")
        return WhatIf(question).answer(asked, door.catalogue()).data["how_many"]["gpus"]

    assert many() == 0  # nothing is in common to all, so nothing may be on one more
    assert many(data_classes=["personal"]) == 2


def test_a_person_cannot_move_it_to_where_it_may_not_be() -> None:
    asked = problem([HOME, CLOUD], [need("ocr", data_class="personal")])
    with pytest.raises(FleetError, match=r"ocr-1 cannot move to cloud: .*may have data of class 'personal'"):
        moved(asked, Move("ocr", 1, "cloud"))


def test_manifest_and_policy_bring_it_to_the_planner() -> None:
    assert need_of(read_manifest("m/a.yml", manifest_text(data_class="personal"))).data_class == "personal"
    assert need_of(read_manifest("m/a.yml", manifest_text())).data_class == ""
    policy = read_policy("h1", {"fleet_environment": "production", "fleet_data_classes": ["personal", "internal", "personal"]})
    assert host_of("h1", facts([gpu_facts()]), policy, door.catalogue(), ()).data_classes == ("internal", "personal")
    assert down_host("h1", None, policy, door.catalogue()).data_classes == ("internal", "personal")


def test_a_class_that_is_no_name_is_refused_with_its_place() -> None:
    with pytest.raises(FleetError, match=r"m/a.yml:5: data_class: 'Personal' is not a name; use 2 to 63"):
        read_manifest("m/a.yml", manifest_text().replace("runtime:", "data_class: Personal\nruntime:"))
    with pytest.raises(FleetError, match=r"m/a.yml:5: data_class: expected text, found nothing"):
        read_manifest("m/a.yml", manifest_text().replace("runtime:", "data_class:\nruntime:"))
    with pytest.raises(FleetError, match=r"host h1: fleet_data_classes\[0\]: 'P' is not a name"):
        read_policy("h1", {"fleet_environment": "production", "fleet_data_classes": ["P"]})
    with pytest.raises(FleetError, match=r"host h1: fleet_data_classes: "):
        read_policy("h1", {"fleet_environment": "production", "fleet_data_classes": "personal"})
    with pytest.raises(FleetError, match=r"fleet_what_if: how_many.data_classes\[0\]: 'Personal' is not a name"):
        WhatIf(Located({"how_many": {"board": "a100", "data_classes": ["Personal"]}}, "fleet_what_if"))


def test_a_class_touches_no_replica_and_is_not_part_of_a_version() -> None:
    one, other = (read_manifest("m/a.yml", manifest_text(data_class=text)) for text in ("personal", ""))
    assert one.digest() == other.digest()
