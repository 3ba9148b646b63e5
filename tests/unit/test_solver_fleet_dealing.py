# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of several ways to give a group's GPUs patterns, the one that is tried, and the one that is taken."""

from __future__ import annotations

import typing as t

import numpy as np
import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fleet_dealing
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, options_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import read_problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import WholePatterns
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import models

GIB = 1024
HOSTS, GPUS = 4, 2


def group() -> Options:
    one = {"key": "one", "team": "lin", "priority": 1, "isolation": "slice", "memory_mib": 4 * GIB, "cpus": 1.0, "replicas": 40}
    hosts = [{"name": f"h{number}", "model": "a100-80", "gpus": GPUS, "cpus": 60, "ram_mib": 500 * GIB} for number in range(HOSTS)]
    return options_of(read_problem({"models": models(), "hosts": hosts, "classes": [one]}))


def dealt(monkeypatch: pytest.MonkeyPatch, lacks: list[float], *ways: tuple[int, int]) -> tuple[int, int]:
    """(replicas dealt of 40, ways that were tried), each way so many GPUs with so many places, after whose dealing CPU lacks as ``lacks``
    say."""
    options = group()
    place = int(options.shape[0])
    amount = np.where(options.shape == place, 40, 0)
    tried: list[int] = []

    def cuts(*_given: t.Any) -> t.Iterator[tuple[WholePatterns, bool]]:
        for boards, places in ways:
            tried.append(places)
            pattern = np.zeros((1, len(options.boards[0].shapes)), dtype=np.int64)
            pattern[0, place] = places
            yield WholePatterns(pattern, np.asarray([boards])), False

    left = iter(lacks)
    monkeypatch.setattr(fleet_dealing, "cuts", cuts)
    monkeypatch.setattr(fleet_dealing, "_lack", lambda *_given: next(left))
    # Single replicas matter here.
    monkeypatch.setattr(fleet_dealing, "FINE", 0)
    return fleet_dealing._dealt(options, t.cast("t.Any", None), amount, 0).placed, len(tried)


def test_gpus_with_more_places_are_tried_where_others_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight GPUs of four places leave eight replicas out, however hard the better ones are to deal."""
    assert dealt(monkeypatch, [0.0, 9.0], (8, 4), (8, 5)) == (40, 2)


def test_what_is_harder_to_deal_is_left_where_all_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    placed, tried = dealt(monkeypatch, [0.0, 9.0, 9.0], (8, 5), (7, 6), (6, 7))
    assert (placed, tried) == (40, 2)


def test_the_next_way_is_tried_until_all_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dealt(monkeypatch, [0.0, 9.0, 9.0], (8, 3), (8, 4), (8, 5)) == (40, 3)
