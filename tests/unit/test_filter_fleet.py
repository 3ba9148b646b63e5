# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a host: facts of this run before published ones, policy, and its plan; and what is said when nothing is known."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.filter.fleet import FilterModule, down_hosts, fleet_hosts, host_policies, unread_reason

SENSED = {"schema": 1, "gpus": []}
PUBLISHED = {"schema": 1, "gpus": ["published"]}


@pytest.fixture
def facts_dir(tmp_path: Path) -> Path:
    (tmp_path / "a.json").write_text(json.dumps(PUBLISHED), encoding="utf-8")
    return tmp_path


def hostvars(**facts: t.Any) -> dict[str, dict[str, t.Any]]:
    return {"a": {"ansible_facts": facts, "fleet_environment": "production", "fleet_plans": "/x", "other": 1}}


def test_policies_need_no_facts() -> None:
    known = {"a": {"fleet_moves": 2, "ansible_host": "10.0.0.1"}, "b": {"fleet_moves": 3}, "c": {}}
    assert host_policies(["a", "c"], known) == {"a": {"policy": {"fleet_moves": 2}}, "c": {"policy": {}}}


def test_facts_of_this_run_come_before_published_ones(facts_dir: Path) -> None:
    assert fleet_hosts(["a"], hostvars(gpuops_fleet=SENSED), str(facts_dir)) == {
        "a": {"facts": SENSED, "policy": {"fleet_environment": "production", "fleet_plans": "/x"}, "plan": None}
    }


@pytest.mark.parametrize("variables", [{}, {"ansible_facts": None}, {"ansible_facts": {}}])
def test_a_host_that_was_not_read_is_known_by_its_published_facts(facts_dir: Path, variables: dict[str, t.Any]) -> None:
    assert fleet_hosts(["a"], {"a": variables}, str(facts_dir))["a"] == {"facts": PUBLISHED, "policy": {}, "plan": None}


def test_a_host_of_which_nothing_is_known_stops_the_play(tmp_path: Path) -> None:
    with pytest.raises(
        AnsibleFilterError, match=rf"^{tmp_path}/a.json: nothing is known of host 'a'.*; run playbook plan without --limit$"
    ):
        fleet_hosts(["a"], {"a": {}}, str(tmp_path))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    with pytest.raises(AnsibleFilterError, match=rf"^{tmp_path}/a.json: not JSON: .*; remove it and run playbook plan$"):
        fleet_hosts(["a"], {"a": {}}, str(tmp_path))


def test_the_plan_is_read_only_where_plans_are_asked_for(facts_dir: Path, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    plans.mkdir()
    variables = {**hostvars(gpuops_fleet=SENSED), "b": {"ansible_facts": {"gpuops_fleet": SENSED}}}
    (plans / "a.yml").write_text("plan: 1\nserial: 3\n", encoding="utf-8")
    hosts = fleet_hosts(["a", "b"], variables, str(facts_dir), str(plans))
    assert {name: host["plan"] for name, host in hosts.items()} == {"a": {"plan": 1, "serial": 3}, "b": None}
    assert fleet_hosts(["a"], variables, str(facts_dir))["a"]["plan"] is None


def test_a_plan_that_is_no_yaml_is_named_with_its_line(facts_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("plan: 1\nserial: [\n", encoding="utf-8")
    with pytest.raises(AnsibleFilterError, match=rf"^{tmp_path}/a.yml:\d+: "):
        fleet_hosts(["a"], hostvars(gpuops_fleet=SENSED), str(facts_dir), str(tmp_path))


def test_the_filters_have_their_names() -> None:
    assert FilterModule().filters() == {
        "down_hosts": down_hosts,
        "fleet_hosts": fleet_hosts,
        "host_policies": host_policies,
        "unread_reason": unread_reason,
    }


def test_hosts_that_are_down_are_down_for_the_whole_site(facts_dir: Path) -> None:
    known = {"a": {"fleet_down_hosts": ["b"]}, "b": {}}
    with pytest.raises(
        AnsibleFilterError, match=r"^host b: fleet_down_hosts: it is not as on a, and it is one for the whole site; write it"
    ):
        fleet_hosts(["a", "b"], known, str(facts_dir))
    assert fleet_hosts(["a"], {"a": {"fleet_down_hosts": "b, c"}, "b": {}}, str(facts_dir))["a"]["facts"] == PUBLISHED
