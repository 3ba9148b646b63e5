# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One replica goes to the host that a person names, alone or not at all; later plans leave it there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Problem
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, need, place, problem, where

HOSTS = (host(gpu(0, "h1"), name="h1"), host(gpu(0, "h2"), name="h2"))
OCR = need("ocr", replicas=2, ports=(("http", None),))


def planned(*needs: object) -> Problem:
    first = problem(HOSTS, needs or (OCR,))  # type: ignore[arg-type]
    return replace(first, previous=make_plan(first).placements)


def test_a_replica_goes_where_it_is_told_and_stays_there() -> None:
    given = planned()
    old = {each.replica: each for each in given.previous}
    target = old[2].host
    solution = moved(given, Move("ocr", 1, target))
    new = {each.replica: each for each in solution.placements}
    assert (new[1].host, new[2]) == (target, old[2])
    assert new[1].slice != new[2].slice
    assert make_plan(replace(given, previous=solution.placements)).placements == solution.placements
    assert moved(replace(given, previous=solution.placements), Move("ocr", 1, target)).placements == solution.placements


def test_where_it_does_not_fit_nothing_moves_and_the_reason_is_told() -> None:
    given = planned(need("big", memory_mib=60000), need("large", memory_mib=60000))
    homes = {each.service: each.host for each in given.previous}
    with pytest.raises(FleetError, match=r"big-1 cannot move to h\d: h\d: 1 GPU without room for .*nothing was changed"):
        moved(given, Move("big", 1, homes["large"]))


@pytest.mark.parametrize(
    ("move", "words"),
    [
        (Move("ocr", 3, "h1"), "there is no replica 3 of ocr: it has 2"),
        (Move("face", 1, "h1"), "there is no replica 1 of face: no such service"),
        (Move("ocr", 1, "h9"), "h9 is no host of this fleet; write one of h1, h2"),
    ],
)
def test_what_cannot_be_meant_is_refused(move: Move, words: str) -> None:
    with pytest.raises(FleetError) as caught:
        moved(planned(), move)
    assert words in str(caught.value)


def test_an_adopted_service_is_not_moved() -> None:
    given = problem(HOSTS, (need("old", adopted=True),), (place("old", "0:1g.10gb@0"),))
    with pytest.raises(FleetError, match="old is adopted, and nothing moves it"):
        moved(given, Move("old", 1, "h2"))


def test_the_place_is_one_of_the_target_host() -> None:
    given = planned(OCR, need("face", memory_mib=30000))
    for replica, target in ((1, "h1"), (1, "h2"), (2, "h1"), (2, "h2")):
        places = {each.name: where(each) for each in moved(given, Move("ocr", replica, target)).placements}
        assert places[f"ocr-{replica}"].startswith(f"{target}/0:")
        assert len(set(places.values())) == 3
