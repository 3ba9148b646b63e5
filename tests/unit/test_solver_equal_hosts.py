# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a program's counts to single replicas where CPU and memory of hosts are needed to the last core."""

from __future__ import annotations

import typing as t
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils import planner
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Hint, Need, Problem, Resources, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.restoring import restore
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import equal_hosts, fleet_dealing, together
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError
from ansible_collections.gpuops.fleet.tests.bench.planner import planned_fleet
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_checks import violations
from ansible_collections.gpuops.fleet.tests.bench.planner.fleet_world import world
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, gpu, host, l40s, need, problem, wired

GIB = 1024


def everybody(given: Problem) -> list[tuple[Need, int]]:
    return [(need, replica) for need in given.needs for replica in range(1, need.replicas + 1)]


def asked(given: Problem) -> together.Together:
    found = together.plan_together(begin(given).fleet, everybody(given), {})
    assert found is not None
    return found


def fleet(seed: int, gpus: int = 300, services: int = 60) -> Problem:
    """Six boards, sixteen kinds of hosts; on some of them CPU or RAM is scarce."""
    return planned_fleet.as_problem({**world(gpus, services, seed), "quotas": []})


def test_replicas_of_one_kind_on_two_kinds_of_hosts_have_a_hint_each() -> None:
    a30 = [gpu(number, "h2", geometry=A30, board="a30", memory_mib=24576) for number in range(1)]
    given = problem([host(gpu(0)), host(*a30, name="h2")], [need("ocr", memory_mib=5 * GIB, replicas=11)])
    assert Counter(hint.host for hint in asked(given).hints.values()) == {"h1": 7, "h2": 4}


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_plan_serves_nearly_as_many_as_the_solver_for_whole_fleets(seed: int) -> None:
    """Where one host was filled after the other, up to a third of the last priority that had been counted found no place."""
    figures = planned_fleet.case(300, 60, seed)
    assert figures["violations"] == []
    mine, others = ([each["served"][level] for level in "321"] for each in (figures, figures["whole_fleet"]))
    assert mine[:2] == pytest.approx(others[:2], abs=1)
    assert mine[2] >= 0.98 * others[2]


def test_every_hint_can_be_had_at_once() -> None:
    given = fleet(2)
    draft, hints = begin(given), asked(given).hints
    refused = [key for key in sorted(hints) if draft.place_at(draft.need_of(key), key[1], hints[key]) is None]
    assert refused == []
    assert len(hints) > 900


@pytest.mark.parametrize(("gpus", "services", "seed"), [(600, 100, 2), (800, 120, 1)])
def test_whoever_has_a_place_one_by_one_has_one_beside_those_whom_the_program_adds(
    gpus: int, services: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program counts whoever must have a place, and on single hosts some of them lose theirs: they get it back."""
    asked_back: list[int] = []
    monkeypatch.setattr(planner, "restore", lambda draft, places: (asked_back.append(len(places)), restore(draft, places)))
    given = {**world(gpus, services, seed), "quotas": []}
    fresh = planned_fleet.as_problem(given)
    later = replace(fresh, previous=make_plan(replace(fresh, needs=fresh.needs[::2])).placements)
    alone = {place.name for place in make_plan(later, trial=True).placements}
    found = make_plan(later)
    assert asked_back
    assert alone < {place.name for place in found.placements}
    assert len(found.placements) > 1.01 * len(alone)
    assert set(later.previous) <= set(found.placements)
    assert violations(given, planned_fleet.rows_of(given, found.placements)) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_where_somebody_gave_way_the_program_finds_places_for_those_too(seed: int) -> None:
    """Half of the services come to a fleet that has the other half, and a higher priority may take the place of a lower one."""
    given = {**world(700, 100, seed), "quotas": []}
    fresh = replace(planned_fleet.as_problem(given), moves=3, preemption=True)
    later = replace(fresh, previous=make_plan(replace(fresh, needs=fresh.needs[::2]), words=False).placements)
    alone, found = make_plan(later, trial=True), make_plan(later, words=False)
    assert {place.name for place in alone.placements} < {place.name for place in found.placements}
    assert len(found.placements) > 1.01 * len(alone.placements)
    assert violations(given, planned_fleet.rows_of(given, found.placements)) == []
    there, gave_way = set(found.placements), {(each.service, each.replica) for each in found.displaced}
    assert all(place in there or (place.service, place.replica) in gave_way for place in later.previous)
    assert make_plan(planned(later, found), words=False).placements == found.placements


def test_who_gave_way_and_comes_back_to_its_host_has_its_ports_again() -> None:
    ports = (("http", None),)
    services = [need(name, "exclusive", GIB, ports=ports, priority=number) for number, name in enumerate("ab")]
    hosts = [host(l40s(0), l40s(1), modes=("whole",))]
    given = problem(hosts, services, make_plan(problem(hosts, services[:1])).placements)
    draft = begin(given)
    port = draft.placed[("a", 1)].ports
    draft.displaced[("a", 1)] = "b-1", "preempted"
    start = planner._without(draft, [("a", 1)])
    first, second = (start.place_at(each, 1, Hint("h1", (f"GPU-h1-{number}",))) for number, each in ((1, services[1]), (0, services[0])))
    assert first is not None
    assert second is not None
    assert second.ports == port != first.ports


def test_whoever_must_have_a_place_gets_it_back_from_those_who_were_added() -> None:
    """Two slices fit. By the hints b has both of them: a has to have one, and its own place is that of b-1."""
    given = problem([host(gpu(0, mig=True), modes=("mig",))], [need("a", memory_mib=39 * GIB), need("b", memory_mib=39 * GIB, replicas=2)])
    draft = begin(given)
    draft.place_at(draft.needs["a"], 1, Hint("h1", ("GPU-h1-0",), Slice(0, "3g.40gb")))
    hints = {("b", 1): Hint("h1", ("GPU-h1-0",), Slice(0, "3g.40gb")), ("b", 2): Hint("h1", ("GPU-h1-0",), Slice(4, "3g.40gb"))}
    assert sorted(planner._hinted(draft, hints, ())[0].placed) == [("b", 1), ("b", 2)]
    found, missing = planner._hinted(draft, hints, {("a", 1)})
    assert sorted(found.placed) == [("a", 1), ("b", 2)]
    assert [(each.service, replica) for each, replica in missing] == [("b", 1)]


def test_whoever_must_leave_for_one_who_comes_back_comes_back_too() -> None:
    """a and b must have places and have each other's; c, who was added, has the third, and leaves where there is no other way."""
    services = [need(name, "exclusive", memory_mib=GIB) for name in "abc"]
    given = problem([host(l40s(0), l40s(1), modes=("whole",))], services)
    draft, other = begin(given), begin(given)
    first, second = (Hint("h1", (f"GPU-h1-{number}",)) for number in range(2))
    places = {("a", 1): draft.place_at(services[0], 1, first), ("b", 1): draft.place_at(services[1], 1, second)}
    other.place_at(services[1], 1, first)
    other.place_at(services[2], 1, second)
    restore(other, {key: place for key, place in places.items() if place is not None})
    assert sorted(other.placed) == [("a", 1), ("b", 1)]


def test_hosts_of_one_class_that_can_give_very_different_amounts_are_told_apart_where_that_is_why_somebody_finds_no_place() -> None:
    """Each replica takes six cores; the small hosts have none for it, and all of them together have."""
    small = [host(l40s(0, name), name=name, modes=("whole",), capacity=Resources(4, None, None, None)) for name in ("h1", "h2", "h3")]
    large = [host(l40s(0, name), name=name, modes=("whole",), capacity=Resources(64, None, None, None)) for name in ("h4", "h5")]
    given = problem([*small, *large], [need("ocr", "exclusive", GIB, replicas=5, resources=Resources(6, 0, 0, 0))])
    found = asked(given)
    assert {hint.host for hint in found.hints.values()} == {"h4", "h5"}
    assert found.most == {50: 2}


@pytest.mark.parametrize("what", ["joined", "named port", "both ways to share", "slices that are there"])
def test_what_a_deal_of_equal_hosts_does_not_know_is_handed_out_one_by_one(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports by number it knows: one on each host."""
    gpus = {name: [l40s(number, name) for number in range(2)] for name in ("h1", "h2")}
    needs = [need("ocr", "exclusive", GIB, replicas=2, count=2), need("speech", "exclusive", GIB)]
    more: dict[str, t.Any] = {"modes": ("whole", "shared", "mig"), "sharing": ("mps", "time-slice")}
    if what == "joined":
        gpus = {name: wired(each, (0, 1)) for name, each in gpus.items()}
    if what == "named port":
        needs = [need("ocr", "exclusive", GIB, replicas=4, ports=(("http", 8000),))]
    if what == "both ways to share":
        needs = [need(way, "shared", GIB, replicas=4, compute=0.5, sharing=way) for way in ("mps", "time-slice")]
    if what == "slices that are there":
        gpus = {name: [gpu(number, name, slices="1g.10gb@0") for number in range(2)] for name in gpus}
        needs = [need("ocr", replicas=30)]
    dealt: list[int] = []
    plain = equal_hosts._dealt
    monkeypatch.setattr(equal_hosts, "_dealt", lambda equal: dealt.extend(equal) or plain(equal))
    given = problem([host(*each, name=name, **more) for name, each in gpus.items()], needs)
    hints = places(given)
    assert bool(dealt) is (what == "named port")
    assert len(hints) == {"joined": 2, "named port": 2, "both ways to share": 8, "slices that are there": 28}[what]


def test_where_highs_has_no_answer_equal_hosts_are_handed_out_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_problem: object) -> t.NoReturn:
        raise SolverError("no answer")

    monkeypatch.setattr(fleet_dealing, "places", none)
    hosts = [host(l40s(0, name), l40s(1, name), name=name, modes=("whole",)) for name in ("h1", "h2")]
    assert len(places(problem(hosts, [need("ocr", "exclusive", GIB, replicas=4)]))) == 4


def places(given: Problem) -> t.Mapping[t.Any, Hint]:
    """The hints of all who wait, when equal hosts are dealt wherever they can be."""
    model = together._Model(begin(given).fleet, everybody(given), frozenset(), sizes=True)
    return model.solved({}, None, {}, None).hints


def test_hosts_are_equal_whatever_they_are_called_and_but_for_little() -> None:
    capacities = [Resources(64, 257_000, None, None), Resources(64, 257_300, None, None), Resources(64, 515_000, None, None)]
    hosts = [host(l40s(0, name), name=name, capacity=each) for name, each in zip(("h1", "h2", "h3"), capacities, strict=True)]
    found = [equal_hosts.capacity(each) for each in Fleet(problem(hosts, ())).hosts.values()]
    assert found[0] == found[1] != found[2]
    assert equal_hosts.capacity(Fleet(problem([host(l40s(0))], ())).hosts["h1"]) == (-1, -1)
