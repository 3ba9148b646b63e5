# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan that is asked for the same again tells the same of those without a place; a plan that is asked for something else does not."""

from __future__ import annotations

import subprocess
import sys
import typing as t
from dataclasses import dataclass

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.asked import word_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import fleet_text, read_proof
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text
from ansible_collections.gpuops.fleet.tests.unit.test_plans_fleet import CATALOGUE, texts

SMALL = "{memory: 9 GiB}"
# Six with room for a seventh beside them fill the GPU; the two that are left over could have it, once the six run.
MANIFESTS = (
    ("m/aa.yml", manifest_text("aa", gpu=SMALL, replicas="6", rollout="{keep_room: true}")),
    ("m/bb.yml", manifest_text("bb", gpu=SMALL, replicas="2")),
)


def hosts(**policy: t.Any) -> dict[str, dict[str, t.Any]]:
    return {"h1": {"facts": facts([gpu_facts(0)]), "policy": {"fleet_environment": "production", **policy}}}


def plan(last: Planned | None = None, manifests: t.Any = MANIFESTS, **policy: t.Any) -> Planned:
    plans = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    fleet = ("plans/fleet.yml", last.fleet) if last else None
    return plan_fleet(manifests, plans, hosts(**policy), CATALOGUE, ["http"], last_fleet=fleet)


def reasons(planned: Planned) -> list[str]:
    return [line["reason"] for line in planned.unplaced]


def test_what_would_help_is_told_in_the_same_words_again() -> None:
    first = plan()
    assert "add a host of environment 'production'" in reasons(first)[0]
    again = plan(first)
    assert texts(again) == texts(first)
    assert again.unplaced == first.unplaced
    assert texts(plan(again)) == texts(first)


def test_what_helps_for_far_less_once_the_plan_is_carried_out_is_told_beside_it() -> None:
    first = plan()
    assert reasons(first)[0].endswith(
        "leave 'keep_room' of aa out, whose rollouts may then have to stop first on h1, once this plan is carried out"
    )
    told = first.explained[0].data()
    assert [each["kind"] for each in told["changes"]] == ["hosts"]
    assert told["afterwards"]["kind"] == "others_room"


@pytest.mark.parametrize("policy", [{"fleet_gpu_modes": ["mig", "whole", "shared"]}, {"fleet_preemption": "lower"}])
def test_another_question_is_answered_anew(policy: dict[str, t.Any]) -> None:
    first = plan()
    other = plan(first, **policy)
    assert other.fleet.splitlines()[-1] != first.fleet.splitlines()[-1]
    assert texts(plan(other, **policy)) == texts(other)


def test_what_was_not_proven_is_not_proven_by_asking_again() -> None:
    """A plan for a drained GPU proves nothing, and one from there that moves nobody would."""
    unplaced = [{"service": "a", "replica": 1, "reason": "x"}]
    bare, proven = (fleet_text(unplaced, {}, None, proof, "12ab") for proof in (None, {"solver": "s", "more": 1, "priority": 5}))
    assert read_proof("f", bare, unplaced, "12ab", {"solver": "s", "more": 0}) is None
    assert read_proof("f", bare, unplaced, "34cd", {"solver": "s", "more": 0}) == {"solver": "s", "more": 0}
    assert read_proof("f", proven, unplaced, "34cd", {"solver": "s", "more": 0}) == {"solver": "s", "more": 1, "priority": 5}


def test_replicas_written_by_hand_are_no_harm() -> None:
    """A list in place of a number is nobody's name."""
    first = plan()
    broken = first.fleet.replace("replica: 1,", "replica: [1],")
    plans = {name: (f"plans/{name}.yml", each.text) for name, each in first.plans.items()}
    again = plan_fleet(MANIFESTS, plans, hosts(), CATALOGUE, ["http"], last_fleet=("plans/fleet.yml", broken))
    assert [line["replica"] for line in again.unplaced] == [line["replica"] for line in first.unplaced]


@dataclass(frozen=True)
class Thing:
    name: str
    parts: t.Any


def test_a_word_hangs_on_what_is_said_and_not_on_the_order_of_sets() -> None:
    word = word_of(Thing("a", {"x": frozenset("pqr"), "y": (1, None)}))
    assert word == word_of(Thing("a", {"y": (1, None), "x": frozenset("rqp")}))
    others = [Thing("b", {}), Thing("a", {"x": frozenset("pq"), "y": (1, None)}), Thing("a", {"x": frozenset("pqr"), "y": [1, None]})]
    assert word not in {word_of(other) for other in others}


def test_every_process_has_the_same_word() -> None:
    code = (
        "from ansible_collections.gpuops.fleet.plugins.plugin_utils.asked import word_of;"
        "print(word_of(frozenset(map(str, range(50))), {str(n): n for n in range(9)}))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_what_has_no_text_is_said() -> None:
    with pytest.raises(TypeError, match="nothing is known of function"):
        word_of(lambda: None)
