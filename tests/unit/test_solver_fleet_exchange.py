# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replicas change hosts until no host has too much; what is too much even then is taken off."""

from __future__ import annotations

import random

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_exchange
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_exchange import exchange, take_off
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_expansion import Dealt
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import read_problem
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models


def test_hosts_exchange_until_neither_has_too_much() -> None:
    hosts = [{"name": name, "model": "a100-80", "gpus": 1, "cpus": 10, "ram_mib": 1 << 20} for name in "ab"]
    classes = [
        {"key": key, "team": "t", "priority": 1, "replicas": 2, "isolation": "slice", "memory_mib": 1000, "cpus": cpus}
        for key, cpus in (("heavy", 7.0), ("light", 3.0))
    ]
    options = options_of(read_problem({"models": models(), "hosts": hosts, "classes": classes}))
    slots = np.full((2, 1, 1), 2)
    dealt = Dealt(
        np.asarray([0, 0, 1, 1]), np.zeros(4, dtype=int), np.asarray([0, 0, 1, 1]), slots, np.asarray([[-4.0, 9.0], [4.0, 9.0]]), slots, []
    )
    exchange(options, dealt)
    assert dealt.left[:, 0].tolist() == [0.0, 0.0]
    assert sorted(zip(dealt.klass.tolist(), dealt.host.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_two_exchanges_together_where_one_makes_something_worse() -> None:
    # a lacks 1 GiB and has all its CPU used; b has 1 GiB left. The only classes with 1 GiB between them are 2 cores apart, both ways.
    sizes = {"b-big": (7.0, 30), "b-small": (5.0, 29), "c-big": (5.0, 42), "c-small": (7.0, 42)}
    hosts = [{"name": name, "model": "a100-80", "gpus": 2, "cpus": 12, "ram_mib": 72 << 10} for name in "ab"]
    classes = [
        {
            "key": key,
            "team": "t",
            "priority": 1,
            "replicas": 1,
            "isolation": "slice",
            "memory_mib": memory,
            "cpus": cpus,
            "ram_mib": ram << 10,
        }
        for (key, (cpus, ram)), memory in zip(sizes.items(), (1000, 1000, 15000, 15000), strict=True)
    ]
    options = options_of(read_problem({"models": models(), "hosts": hosts, "classes": classes}))
    shape = np.asarray([0, 0, 1, 1])
    slots = np.ones((2, 1, 2), dtype=int)
    dealt = Dealt(np.arange(4), shape, np.asarray([0, 1, 0, 1]), slots, np.asarray([[0.0, -1.0], [0.0, 1.0]]), np.zeros(2), [])
    exchange(options, dealt)
    assert dealt.left.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert dealt.host.tolist() == [1, 0, 1, 0]


def test_what_is_too_much_even_then_is_taken_off_the_lowest_priority() -> None:
    hosts = [{"name": "a", "model": "a100-80", "gpus": 1, "cpus": 10, "ram_mib": 1 << 20}]
    classes = [
        {"key": key, "team": "t", "priority": priority, "replicas": 1, "isolation": "slice", "memory_mib": 1000, "cpus": 6.0}
        for key, priority in (("first", 2), ("second", 1))
    ]
    options = options_of(read_problem({"models": models(), "hosts": hosts, "classes": classes}))
    dealt = Dealt(
        np.asarray([0, 1]),
        np.zeros(2, dtype=int),
        np.zeros(2, dtype=int),
        np.full((1, 1, 1), 2),
        np.asarray([[-2.0, 9.0]]),
        np.zeros(1),
        [],
    )
    take_off(options, dealt)
    assert dealt.klass.tolist() == [0]
    assert dealt.left[0, 0] == 4.0


def needed(options: Options, klass: np.ndarray, host: np.ndarray, hosts: int) -> np.ndarray:
    """CPU and RAM that replicas need by host, shape (hosts, 2)."""
    return np.stack([np.bincount(host, weights=options.needs[klass, which], minlength=hosts) for which in range(2)], axis=1)


def crowded(seed: int) -> tuple[Options, Dealt]:
    """Hosts of equal size with replicas of two shapes and many classes, dealt by chance; about half of the hosts have too much."""
    chance = random.Random(seed)
    size, places = chance.randint(2, 9), (6, 3)
    classes = [
        {
            "key": f"c{number:02}",
            "team": "t",
            "priority": 1,
            "replicas": size * sum(places),
            "isolation": "slice",
            "memory_mib": (1000, 15000)[number % 2],
            "cpus": chance.randint(1, 12) / 2,
            "ram_mib": chance.randint(1, 20) << 10,
            "max_per_host": chance.choice((None, 1, 1, 2)),
        }
        for number in range(chance.randint(6, 14))
    ]
    hosts = [{"name": f"h{number}", "model": "a100-80", "gpus": 2, "cpus": 200, "ram_mib": 2000 << 10} for number in range(size)]
    options = options_of(read_problem({"models": models(), "hosts": hosts, "classes": classes}))
    shape_of = {int(klass): int(shape) for klass, shape in zip(options.klass, options.shape, strict=True)}
    klass: list[int] = []
    for _host in range(size):
        here: list[int] = []
        for shape, many in enumerate(places):
            while sum(shape_of[each] == shape for each in here) < many:
                one = chance.choice([each for each, mine in shape_of.items() if mine == shape])
                if here.count(one) < options.per_host[one] or chance.random() < 0.01:
                    here.append(one)
        klass += here
    kinds, host = np.asarray(klass), np.repeat(np.arange(size), sum(places))
    needs = needed(options, kinds, host, size)
    # As much as all of them need, and next to nothing besides.
    left = np.ceil(needs.mean(axis=0) * 2) / 2 + chance.choice((0.0, 0.5)) - needs
    slots = np.tile(np.asarray(places), (size, 1, 1))
    return options, Dealt(kinds, np.asarray([shape_of[one] for one in klass]), host, slots, left, np.zeros(size, dtype=int), [])


@pytest.mark.parametrize(("few", "rounds"), [(False, 30), (False, 0), (True, 0)])
@pytest.mark.parametrize("seed", range(30))
def test_exchanges_keep_shapes_limits_and_sums(seed: int, few: bool, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``few``: of the exchanges with a partner some are looked at together, others in each cycle. ``rounds``: of single exchanges."""
    monkeypatch.setattr(fleet_exchange, "ROUNDS", rounds)
    if few:
        monkeypatch.setattr(fleet_exchange, "MANY", 3)
    options, dealt = crowded(seed)

    def counted(of: np.ndarray, many: int) -> np.ndarray:
        return np.asarray([np.bincount(of[dealt.host == host], minlength=many) for host in range(len(dealt.left))])

    def lacked() -> float:
        return float((np.minimum(dealt.left, 0.0) / np.maximum(before.max(axis=0), 1.0)).sum())

    before, shapes, over = dealt.left.copy(), counted(dealt.shape, 2), counted(dealt.klass, len(options.classes)) - options.per_host
    much = lacked()
    room = before + needed(options, dealt.klass, dealt.host, len(before))
    assert exchange(options, dealt) == 0
    used = needed(options, dealt.klass, dealt.host, len(before))
    assert np.allclose(dealt.left, room - used)
    assert (counted(dealt.shape, 2) == shapes).all()
    assert (counted(dealt.klass, len(options.classes)) - options.per_host <= np.maximum(over, 0)).all()
    assert lacked() >= much - 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_it_is_given_up_where_too_many_hosts_lack_something_after_the_first_cycle(seed: int) -> None:
    options, dealt = crowded(seed)
    over = exchange(options, dealt, 0)
    assert over == int((dealt.left < -1e-6).any(axis=1).sum())
    assert exchange(options, dealt, len(dealt.left)) == 0


def test_most_of_what_hosts_lack_others_have() -> None:
    def hosts(dealt: Dealt) -> int:
        return int((dealt.left < -1e-6).any(axis=1).sum())

    before = after = 0
    for seed in range(30):
        options, dealt = crowded(seed)
        before += hosts(dealt)
        exchange(options, dealt)
        after += hosts(dealt)
    assert (before > 60, after < 0.7 * before) == (True, True)
