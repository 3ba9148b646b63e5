# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that change places between hosts: the child pipeline stops those whose outage the plan states, and nobody else."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline import Service, compare
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline_jobs import needs_of, steps_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import leave_early
from ansible_collections.gpuops.fleet.tests.unit.decide_world import need, place
from hypothesis import given
from hypothesis import strategies as st

HOSTS = ("h1", "h2", "h3", "h4")
# Of each replica (service, number): the host before, the host after; and the service's priority.
MOVES = st.dictionaries(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 11)), st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS)), max_size=9
)
PRIORITIES = st.fixed_dictionaries(dict.fromkeys("abcdef", st.integers(0, 3)))
Key = tuple[str, int]
Moves = dict[Key, tuple[str, str]]


def plans(where: t.Mapping[Key, str]) -> dict[str, t.Any]:
    found: dict[str, t.Any] = {host: {"serial": 1, "digest": "", "layout": [], "services": []} for host in HOSTS}
    for start, ((service, replica), host) in enumerate(sorted(where.items())):
        line = {"service": service, "replica": replica, "gpu": "GPU-a", "profile": "1g.10gb", "start": start}
        found[host]["services"].append({**line, "ports": {}, "manifest": "sha256:1"})
    return found


def stopped_by_pipeline(moves: Moves, priorities: t.Mapping[str, int]) -> list[Key]:
    """Whoever has to leave while no job that it waits for has brought it to its new host."""
    services = {name: Service(name, "claims", "staging", priority=priorities[name]) for name, _number in moves}
    changes = compare(
        plans({key: old for key, (old, _new) in moves.items()}), plans({key: new for key, (_old, new) in moves.items()}), services, services
    )
    before = needs_of(steps_of(changes.work), changes)

    def waits_for(host: str, other: str) -> bool:
        return other in before[host] or any(waits_for(each, other) for each in before[host])

    return sorted(key for key, (old, new) in moves.items() if old != new and not waits_for(old, new))


def stopped_by_plan(moves: Moves, priorities: t.Mapping[str, int]) -> list[Key]:
    old = {key: place(key[0], "0:1g.10gb@0", replica=key[1], on=left) for key, (left, _there) in moves.items()}
    new = {key: place(key[0], "0:1g.10gb@0", replica=key[1], on=there) for key, (_left, there) in moves.items()}
    return sorted(leave_early(old, new, {name: need(name, priority=priorities[name]) for name, _number in moves}))


@given(MOVES, PRIORITIES)
def test_pipeline_and_plan_stop_the_same_replicas(moves: Moves, priorities: dict[str, int]) -> None:
    assert stopped_by_pipeline(moves, priorities) == stopped_by_plan(moves, priorities)


@pytest.mark.parametrize(("priorities", "stops"), [({"a": 1, "b": 9}, "a"), ({"a": 9, "b": 1}, "b")])
def test_of_two_that_change_places_the_lower_priority_stops(priorities: dict[str, int], stops: str) -> None:
    assert stopped_by_pipeline({("a", 1): ("h1", "h2"), ("b", 1): ("h2", "h1")}, priorities) == [(stops, 1)]
