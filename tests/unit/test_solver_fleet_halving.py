# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where CPU is scarce and GPUs are not, GPUs are put in halves, so that every host gets as many of them."""

from __future__ import annotations

import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_dealing, whole_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_halving import halved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetAnswer, FleetProblem, read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import WholePatterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import violations
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models

GIB = 1024
HOSTS = 60
# Cores of a replica; four replicas fill a GPU, and two such GPUs are too much for a host.
CORES = (4.0, 5.0, 6.0)


def fleet(gpus: int = 4, cpus: float = 30.0, hosts: int = HOSTS) -> dict[str, t.Any]:
    """As many replicas as the hosts have CPU for, to the last core."""
    each = int(hosts * cpus / sum(CORES))
    one = {"team": "lin", "priority": 1, "isolation": "slice", "memory_mib": 18 * GIB, "compute": 1 / 7, "ram_mib": GIB, "replicas": each}
    one |= {"models": (), "not_models": (), "max_per_host": None}
    return {
        "models": [model for model in models() if model["name"] == "a100-80"],
        "hosts": [
            {"name": f"h{number:03}", "model": "a100-80", "gpus": gpus, "cpus": cpus, "ram_mib": 500 * GIB, "modes": ("mig",)}
            for number in range(hosts)
        ],
        "quotas": [],
        "classes": [{**one, "key": f"with-{cores}", "cpus": cores} for cores in CORES],
    }


def problem(**given: t.Any) -> FleetProblem:
    return read_problem(fleet(**given))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned anew a few hosts at a time, which would find the rest here."""
    monkeypatch.setattr(whole_fleet, "MANY_HOSTS", 0)


def checked(data: dict[str, t.Any]) -> FleetAnswer:
    answer = plan_whole_fleet(read_problem(data))
    assert violations(data, answer.rows) == []
    return answer


def test_scarce_cpu_is_used_to_the_last_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With full GPUs most hosts have two and too much, and a few have one and cannot use what they have."""
    found = checked(fleet())
    assert found.served == {1: 3 * int(HOSTS * 30 / sum(CORES))}
    monkeypatch.setattr(fleet_dealing, "halved", lambda *_given: None)
    assert checked(fleet()).served[1] < found.served[1]


def one_group(boards: list[int], **given: t.Any) -> tuple[Options, WholePatterns, np.ndarray[t.Any, t.Any]]:
    """Two patterns, four and three places of a GPU, and the replicas that fill them."""
    options = options_of(problem(**given))
    shapes = len(options.boards[0].shapes)
    place = int(options.shape[0])
    patterns = np.zeros((2, shapes), dtype=np.int64)
    patterns[:, place] = (4, 3)
    amount = np.zeros(len(options.klass), dtype=np.int64)
    amount[options.shape == place] = int(patterns[:, place] @ boards) // len(CORES)
    return options, WholePatterns(patterns, np.asarray(boards)), amount


def test_the_fullest_are_halved_until_every_host_has_as_many() -> None:
    options, cut, amount = one_group([70, 20])
    found = halved(options, amount, 0, cut)
    assert found is not None
    assert found.boards.sum() == 120
    assert (found.boards @ found.patterns).tolist() == (cut.boards @ cut.patterns).tolist()
    many = dict(zip(found.patterns.sum(axis=1).tolist(), found.boards.tolist(), strict=True))
    assert many == {4: 40, 3: 20, 2: 60}


@pytest.mark.parametrize(
    ("boards", "given", "why"),
    [
        ([60, 60], {}, "every host has as many already"),
        ([61, 20], {}, "it takes more GPUs than half as many as there are hosts"),
        ([50, 60], {"gpus": 1}, "there are no more GPUs"),
    ],
)
def test_nothing_is_halved_where(boards: list[int], given: dict[str, t.Any], why: str) -> None:
    options, cut, amount = one_group(boards, **given)
    assert halved(options, amount, 0, cut) is None, why


def test_single_places_cannot_be_halved() -> None:
    options, cut, amount = one_group([1, 89])
    single = WholePatterns(np.minimum(cut.patterns, 1), cut.boards)
    assert halved(options, amount, 0, single) is None
