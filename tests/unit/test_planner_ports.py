# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports from text to text: a host hears its services listen, and a port goes with the replica that a plan takes away."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import plan_record
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from decide_world import facts, gpu_facts, manifest_text

ONE_PORT, MANY = "18500-18500", "18000-18999"


def plan(
    services: t.Mapping[str, t.Mapping[str, str]], ports: str, last: Planned | None = None, heard: t.Collection[int] | None = None
) -> Planned:
    """Of one host with one GPU that is given whole. ``heard``: ports on which somebody listens; left out, those of the last plan."""
    there = [number for line in _lines(last) for number in line["ports"].values()] if heard is None else heard
    known = facts([gpu_facts(0, "h1", mig=None)], drains_idle=[])
    known["host"]["ports_listening"] = sorted({22, *there})
    policy = {"fleet_environment": "production", "fleet_gpu_modes": ["whole"], "fleet_ports": ports, "fleet_preemption": "lower"}
    texts = {name: (f"plans/{name}.yml", each.text) for name, each in last.plans.items()} if last else {}
    manifests = [(f"m/{name}.yml", manifest_text(name, **more)) for name, more in services.items()]
    hosts = {"h1": {"facts": known, "policy": policy}}
    return plan_fleet(manifests, texts, hosts, door.catalogue(), ["http"], last_fleet=("plans/fleet.yml", last.fleet) if last else None)


def _lines(planned: Planned | None) -> list[t.Any]:
    return planned.plans["h1"].data["services"] if planned else []


def names(planned: Planned) -> list[str]:
    return [plan_record.name_of(line) for line in _lines(planned)]


def service(priority: int, port: int | None = None) -> dict[str, str]:
    number = "" if port is None else f", host: {port}"
    gpu = "{memory: 30 GiB, isolation: exclusive}"
    return {"priority": str(priority), "gpu": gpu, "ports": f"[{{name: http, container: 80{number}}}]"}


@pytest.mark.parametrize(("ports", "number"), [(ONE_PORT, None), (MANY, 18080)])
def test_a_higher_priority_has_the_place_and_the_port_of_a_lower_one(ports: str, number: int | None) -> None:
    low = {"low": service(10, number)}
    first = plan(low, ports)
    second = plan({**low, "high": service(90, number)}, ports, first)
    assert (names(first), names(second)) == (["low-1"], ["high-1"])


@pytest.mark.parametrize(("ports", "number"), [(ONE_PORT, None), (MANY, 18080)])
def test_a_newcomer_has_the_port_of_who_is_not_wanted_any_more(ports: str, number: int | None) -> None:
    first = plan({"old": service(50, number)}, ports)
    second = plan({"new": service(50, number)}, ports, first)
    assert (names(second), second.unplaced) == (["new-1"], [])
    again = plan({"new": service(50, number)}, ports, second)
    assert (again.plans["h1"].text, again.fleet) == (second.plans["h1"].text, second.fleet)


def test_a_port_that_a_stranger_has_is_nobodys() -> None:
    (waits,) = plan({"ocr": service(50)}, ONE_PORT, heard=[18500]).unplaced
    assert "no port is left (fleet_ports)" in waits["reason"]


def test_what_is_told_of_who_waits_stays_when_the_others_have_started() -> None:
    both = {"low": service(10), "high": service(90)}
    first = plan(both, MANY, heard=[])
    assert plan(both, MANY, first).fleet == first.fleet


def test_nothing_is_told_anew_while_who_leaves_still_listens() -> None:
    """The plan that takes it away is written, and not carried out yet: the port that it has is nobody's by the plan, and still heard."""
    gone, waits = service(10), {**service(50), "gpu": "{memory: 90 GiB, isolation: exclusive}"}
    first = plan({"gone": gone, "waits": waits}, MANY)
    heard = [22, *(number for line in _lines(first) for number in line["ports"].values())]
    second = plan({"waits": waits}, MANY, first, heard)
    assert (names(first), names(second), len(second.unplaced)) == (["gone-1"], [], 1)
    assert plan({"waits": waits}, MANY, second, heard).fleet == second.fleet
