# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whoever asks for one plan after the other needs no more memory than for one of them."""

from __future__ import annotations

import gc
import typing as t
import weakref
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import sweeps
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, need


class Knot:
    """It knows itself, so only a sweep finds that nobody else does."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _settled() -> t.Iterator[None]:
    gc.collect()
    yield
    gc.enable()


def test_knots_are_swept_when_enough_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    heap = sweeps._Heap()
    monkeypatch.setattr(sweeps, "_heap", heap)
    monkeypatch.setattr(sweeps, "FEW_OBJECTS", 10_000)
    known: list[weakref.ref[Knot]] = []

    @sweeps.without_sweeps
    def tie(others: int) -> list[list[int]]:
        assert not gc.isenabled()
        known.append(weakref.ref(Knot()))
        return [[number] for number in range(others)]

    tie(1_000)
    assert known[0]() is not None, "nothing is swept while little has come"
    stays = [tie(6_000), tie(6_000)]
    assert [each() for each in known] == [None, None, None]
    assert heap.fresh == 0
    assert len(stays[1]) == 6_000
    assert gc.isenabled()


def test_sweeps_stay_as_they_were_found() -> None:
    @sweeps.without_sweeps
    def breaks() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        breaks()
    assert gc.isenabled()
    gc.disable()
    with pytest.raises(ValueError, match="broken"):
        breaks()
    assert not gc.isenabled()


def test_what_others_keep_apart_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        sweeps.without_sweeps(list)()
        assert gc.get_freeze_count() >= before - 100, "a few may have gone by themselves"
    finally:
        gc.unfreeze()


def test_a_fleet_goes_without_a_sweep() -> None:
    problem = Problem((host(gpu(0, "a", mig=True), name="gpu-01"), host(gpu(0, "b", mig=True), name="gpu-02")), (need("ocr", replicas=3),))
    places = make_plan(problem).placements
    gc.disable()
    fleet = Fleet(replace(problem, previous=places))
    for name in ("gpu-01", "gpu-02"):
        fleet.hosts[name].forget()
    known = weakref.ref(fleet.hosts["gpu-01"])
    del fleet
    assert known() is None
