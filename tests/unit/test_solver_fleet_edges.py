# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole fleets at the edges of what may be asked: sizes without a common measure, nothing needed, more than there may be."""

from __future__ import annotations

import math
import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import FleetClass, FleetHost, FleetModel, FleetProblem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet
from ansible_collections.gpuops.fleet.tests.unit.test_solver_fleet_parts import seated

GIB = 1024


def host(name: str = "h", **given: t.Any) -> FleetHost:
    return FleetHost(**{"model": "m", "gpus": 1, "cpus": 64, "ram_mib": 512 * GIB, "modes": ("whole", "shared"), **given, "name": name})


def asked(key: str = "a", **given: t.Any) -> FleetClass:
    usual = {"team": "t", "priority": 50, "replicas": 1, "isolation": "exclusive", "memory_mib": 1000}
    return FleetClass(**{**usual, **given, "key": key})


def problem(hosts: list[FleetHost], *classes: FleetClass, memory_mib: int = 81559) -> FleetProblem:
    return FleetProblem((FleetModel("m", memory_mib),), tuple(hosts), classes)


def test_hosts_of_many_kinds_of_which_nobody_needs_cpu() -> None:
    hosts = [host(f"h{number:02}", gpus=4, ram_mib=(64 + 8 * number) * GIB) for number in range(30)]
    answer = plan_whole_fleet(problem(hosts, asked(replicas=300, ram_mib=8 * GIB)))
    assert answer.served == {50: 120} == answer.bound


def test_sharers_that_take_less_than_a_unit_of_a_gpu() -> None:
    """Rounded down for a bound they take nothing of it."""
    small, odd = (asked(key, isolation="shared", replicas=5, memory_mib=mib) for key, mib in (("small", 100), ("odd", 10007)))
    assert plan_whole_fleet(problem([host()], small, odd)).served == {50: 10}


@pytest.mark.parametrize("sharers", [3, 6, 7, 9])
def test_a_gpu_has_room_for_as_many_parts_as_its_compute_is_cut_into(sharers: int) -> None:
    answer = plan_whole_fleet(problem([host()], asked(isolation="shared", replicas=40, compute=1 / sharers)))
    assert answer.served == {50: sharers} == answer.bound


@pytest.mark.parametrize("cores", [1 / 3, 0.3333333, 1e-7])
def test_a_need_without_a_measure_takes_no_more_than_it_is(cores: float) -> None:
    answer = plan_whole_fleet(problem([host(gpus=3, cpus=1)], asked(replicas=3, cpus=cores)))
    assert answer.served == {50: 3} == answer.bound


def test_as_many_clients_as_a_host_allows_are_within_the_bound() -> None:
    answer = plan_whole_fleet(problem([host(clients=100)], asked(isolation="shared", replicas=100, memory_mib=500)))
    assert answer.served == {50: 100} == answer.bound


def test_who_has_made_way_is_not_seated_twice() -> None:
    """To close a GPU, somebody alone on one makes way for another, and is no longer the one who was seen there."""
    one = {"replicas": 1, "memory_mib": 3 * GIB}
    classes = [{**one, "key": "a", "replicas": 2, "max_per_host": 1}, {**one, "key": "b", "max_per_host": 1}, {**one, "key": "x"}]
    filling, seats = seated(classes, [("a", 0, 0), ("x", 0, 0), ("a", 1, 0), ("b", 1, 1)], gpus=3)
    filling.fill()
    assert np.bincount(seats.klass[seats.present()]).tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (problem([host(gpus=70)], asked()), "host h: 70 GPUs are more than 62"),
        (problem([host(clients=600)], asked()), "host h: 600 clients of a GPU are more than 512"),
        (problem([host(cpus=math.inf)], asked()), "host h: cpus is inf; it must be a number from 0 on"),
        (problem([host()], asked(models=("x",))), "class a: there is no model x"),
        (problem([host()], asked(), memory_mib=-1), "model m: memory_mib is -1; it must be a number from 0 on"),
    ],
)
def test_what_cannot_be_is_refused(given: FleetProblem, line: str) -> None:
    with pytest.raises(FleetError) as error:
        plan_whole_fleet(given)
    assert str(error.value) == line


def test_few_clients_of_one_gpu_are_planned_though_no_bound_of_its_gpus_is_known() -> None:
    """Where clients are few, patterns are not sought to the end, and the program does not know the one that the plan has."""
    all_compute = asked("a", isolation="shared", priority=7, replicas=3, memory_mib=1, compute=1.0)
    some = asked("b", isolation="shared", priority=2, replicas=3, memory_mib=3 * GIB, compute=1 / 7)
    none = asked("c", isolation="shared", priority=2, replicas=3, memory_mib=9 * GIB, max_per_host=2)
    answer = plan_whole_fleet(problem([host(clients=4)], all_compute, some, none, memory_mib=80 * GIB))
    assert answer.served == {7: 1, 2: 2}
    assert (answer.opened, answer.opened_bound) == (1, 0)


@pytest.mark.parametrize(("replicas", "hosts", "clients", "opened"), [(4, 1, 2, 6), (4, 2, 8, 2), (60, 2, 48, 4)])
def test_where_the_number_of_clients_fills_a_gpu_the_bound_knows(replicas: int, hosts: int, clients: int, opened: int) -> None:
    """Memory and compute would do for many more: the bound of the GPUs was far below nothing."""
    several = [asked(f"c{number}", isolation="shared", replicas=replicas, memory_mib=1000 + number) for number in range(3)]
    shared = [host(f"h{number}", gpus=8, clients=clients, modes=("shared",)) for number in range(hosts)]
    answer = plan_whole_fleet(problem(shared, *several))
    assert answer.served == answer.bound == {50: 3 * replicas}
    assert (answer.opened, answer.opened_bound) == (opened, opened)
