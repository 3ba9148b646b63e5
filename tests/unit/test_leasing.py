# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of services as people read them, and whether one can be extended, by the facts of the hosts."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import leasing, views


def one(name: str, **more: t.Any) -> dict[str, t.Any]:
    return {"name": name, "ends": "2026-12-01T12:00:00Z", "ended": None, "why": None, "noticed": False, **more}


OVER = {"ended": "2026-12-01T12:03:00Z", "why": "idle"}
HOSTS: dict[str, dict[str, t.Any]] = {
    "b": {"facts": {"leases": [one("nb-2"), one("nb-12"), one("nb-x-1", noticed=True)]}},
    "a": {"facts": {"leases": [one("nb-1", **OVER)]}},
    "c": {"facts": {"leases": None}},
    "d": {"facts": None},
    "e": {"facts": {}},  # published by a release that knew no leases
}


def test_each_lease_is_a_line() -> None:
    assert leasing.lease_lines(HOSTS) == [
        "a nb-1: its lease is over since 2026-12-01T12:03:00Z (idle); playbook extend starts it again",
        "b nb-2: its lease ends 2026-12-01T12:00:00Z",
        "b nb-12: its lease ends 2026-12-01T12:00:00Z",
        "b nb-x-1: its lease ends 2026-12-01T12:00:00Z, notice is given",
    ]


def test_replicas_are_found_by_service_and_number_and_not_by_a_part_of_a_name() -> None:
    facts = HOSTS["b"]["facts"]
    assert leasing.leased_replicas(facts, "nb") == [2, 12]
    assert leasing.leased_replicas(facts, "nb", "2") == leasing.leased_replicas(facts, "nb", 2) == [2]
    assert leasing.leased_replicas(facts, "n.*") == leasing.leased_replicas(None, "nb") == []
    with pytest.raises(FleetError, match="replica: expected the number of a replica, found 'x'; write replica=1"):
        leasing.leased_replicas(facts, "nb", "x")


def test_an_extension_is_refused_when_a_host_that_has_the_lease_cannot_be_read() -> None:
    assert leasing.lease_problem(HOSTS, "nb") == leasing.lease_problem(HOSTS, "nb", "1") == ""
    assert leasing.lease_problem(HOSTS, "nb", 3) == "no host has a lease of nb-3"
    unread = {**HOSTS, "b": {**HOSTS["b"], "unread": "no route to host"}}
    assert leasing.lease_problem(unread, "nb") == "b, which has a lease of nb, cannot be read: no route to host"
    assert leasing.lease_problem(unread, "nb", 1) == ""
    assert leasing.lease_problem(unread, "chat") == "no host that could be read has a lease of chat; not read: b"
    down = {**HOSTS, "a": {**HOSTS["a"], "down": True}}
    assert leasing.lease_problem(down, "nb", 1) == "a, which has a lease of nb-1, is in fleet_down_hosts"


def test_the_status_table_calls_an_ended_one_by_its_reason_and_not_ill() -> None:
    place = {"gpu": "GPU-1", "profile": "1g.10gb", "start": 4}
    mig = {"current": True, "instances": [{"profile": "1g.10gb", "start": 4, "gi": 1, "ci": []}]}
    facts = {
        "gpus": [{"uuid": "GPU-1", "pci": "p", "name": "n", "state": "ok", "mig": mig}],
        "engine": {"docker": {"present": True}},
        "containers": [{"project": "nb-1", "name": "nb-1", "state": "exited"}],
        "plan": None,
    }
    plan = {"serial": 1, "services": [{"service": "nb", "replica": 1, **place}]}
    rows = views.status_table({"a": {"facts": {**facts, "leases": [one("nb-1", **OVER)]}, "plan": plan}})
    assert rows[1].endswith("lease over")
    rows = views.status_table({"a": {"facts": {**facts, "leases": [one("nb-1")]}, "plan": plan}})
    assert rows[1].endswith("exited")
