# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner that playbooks call, in the worlds of the solvers for bulk: static MIG packing, churn (a plan for each request), one GPU of
1,000 lost, and whole fleets. It knows hosts, teams and rules besides, of which the first three have none.

By hand: ``python tests/bench/planner/run.py plans``
"""

from __future__ import annotations

import random
import time
import typing as t
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need, Placement
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, need, problem
from planner.churn import BOARD, FIVE, GPUS, LOADS, Arrival, Repack, Setting, acceptance, arrivals, baseline, plain, repacked
from planner.mig_checks import BOARDS, MIXES, Board, check_places, mix_of, wrong
from planner.planned_fleet import FULL, QUICK
from planner.planned_fleet import case as planned_fleet
from planner.static import geometries, requests, work

ON_A_HOST = 4
MOVES = 3
LOST = 1_000


def hosts(count: int, geometry: dict[str, t.Any]) -> list[Host]:
    """At least so many GPUs of one kind, four in a host."""
    known = Geometry.from_dict(geometry)
    names = [f"gpu-{number:04d}" for number in range(-(-count // ON_A_HOST))]
    return [
        host(*(gpu(number, name, mig=True, geometry=known) for number in range(ON_A_HOST)), name=name, modes=("mig",)) for name in names
    ]


def service(number: int, name: str) -> Need:
    """One replica on one slice of that name."""
    return need(f"service-{number:06d}", memory_mib=0, profile=name)


def judged(board: Board, on: Sequence[Host], places: Iterable[Placement]) -> list[str]:
    """What is wrong with the places."""
    numbers = {(each.name, one.uuid): number for number, (each, one) in enumerate((each, one) for each in on for one in each.gpus)}
    taken = [(place.slice, numbers[place.host, place.gpus[0]]) for place in places]
    slices = [(one, number) for one, number in taken if one is not None]
    names, starts, gpus = ([one.profile for one, _on in slices], [one.start for one, _on in slices], [number for _one, number in slices])
    return ["a replica has no slice"] * (len(slices) < len(taken)) + check_places(board, names, gpus, starts, len(numbers))


def static(key: str, geometry: dict[str, t.Any], mix: str, size: int) -> dict[str, t.Any]:
    """A fresh fleet with a tenth more GPUs than it takes."""
    board = BOARDS[key]
    names = requests(mix_of(board, mix), size, 1)
    best = work(geometry, names)
    on = hosts(best["count"] + max(ON_A_HOST, best["count"] // 10), geometry)
    before = time.process_time()
    found = make_plan(problem(on, [service(number, name) for number, name in enumerate(names)]))
    spent = time.process_time() - before
    used = len({(place.host, place.gpus) for place in found.placements})
    broken = judged(board, on, found.placements)
    if len(found.placements) < size:
        broken.append(f"{size - len(found.placements)} have no place")
    return {"board": key, "mix": mix, "services": size, "gpus": used, "above_best": used - best["count"], "cpu_seconds": round(spent, 2),
            "violations": broken}  # fmt: skip


class Plans:
    """One plan for each request, made from the last one; a request is turned away when it has no place in it."""

    def __init__(self, board: Board, geometry: dict[str, t.Any], requested: Sequence[Arrival]) -> None:
        self.board, self.requested = board, requested
        self.given = replace(problem(hosts(GPUS, geometry), ()), moves=MOVES)
        self.admitted = self.moves = self.most_moves = 0
        self.slowest = 0.0
        self.violations: list[str] = []

    def place(self, number: int, name: str) -> bool:
        """One arrival."""
        asked = replace(self.given, needs=(*self.given.needs, service(number, name)))
        before = time.process_time()
        found = make_plan(asked)
        self.slowest = max(self.slowest, time.process_time() - before)
        if found.unplaced:
            return False
        was = {place.name: place for place in self.given.previous}
        moved = [place for place in found.placements if place.name in was and place != was[place.name]]
        self.admitted, self.moves, self.most_moves = self.admitted + 1, self.moves + len(moved), max(self.most_moves, len(moved))
        self._judge(found.placements, moved, number)
        self.given = replace(asked, previous=found.placements)
        return True

    def _judge(self, places: Sequence[Placement], moved: Sequence[Placement], number: int) -> None:
        """GPUs on which something is new."""
        new = {place.gpus for place in moved} | {place.gpus for place in places if place.service == service(number, "").service}
        for uuids in new:
            here = [(place.slice.profile, place.slice.start) for place in places if place.gpus == uuids and place.slice is not None]
            broken = wrong(self.board, here)
            if broken:
                self.violations.append(f"{uuids[0]}: {broken}")

    def leave(self, number: int) -> None:
        """One departure."""
        name = service(number, "").service
        needs = tuple(each for each in self.given.needs if each.service != name)
        self.given = replace(self.given, needs=needs, previous=tuple(each for each in self.given.previous if each.service != name))


def churn(geometry: dict[str, t.Any], bound: Repack, mix: str, load: float, count: int) -> dict[str, t.Any]:
    """One mix and load, beside the repack bound and placements that move nothing."""
    board = BOARDS[BOARD]
    shares = mix_of(board, mix)
    requested = arrivals(Setting(mix, load, 1), shares, count)
    plans = Plans(board, geometry, requested)
    got, best = acceptance(board, requested, plans.place, plans.leave), repacked(board, requested, bound, GPUS)
    others = {policy: round(baseline(board, requested, shares, policy, GPUS), 2) for policy in ("first_fit", "best_fit")}
    broken = plans.violations[:3]
    if plans.most_moves > MOVES:
        broken.append(f"{plans.most_moves} moves for one request")
    if got < max(others.values()):
        broken.append(f"accepts {got:.2f} %, and the best of the others {max(others.values())} %")
    return {"mix": mix, "load": load, "accepted": round(got, 2), "repack_bound": round(best, 2), "below_bound": round(best - got, 2),
            "moves_per_admission": round(plans.moves / max(1, plans.admitted), 4), "slowest_ms": round(1000 * plans.slowest, 1), **others,
            "violations": broken}  # fmt: skip


def lost(geometry: dict[str, t.Any]) -> dict[str, t.Any]:
    """One GPU of 1,000 that are three quarters full is gone: who moves. And a plan from that plan: nobody, not a byte."""
    board = BOARDS[BOARD]
    names = requests(mix_of(board, "uniform"), 1_750, 1)
    on = hosts(LOST, geometry)
    running = make_plan(problem(on, [service(number, name) for number, name in enumerate(names)]))
    uuid = random.Random(1).choice(sorted({place.gpus[0] for place in running.placements}))
    left = [replace(each, gpus=tuple(one for one in each.gpus if one.uuid != uuid)) for each in on]
    asked = problem(left, [service(number, name) for number, name in enumerate(names)], running.placements)
    before = time.process_time()
    after = make_plan(asked)
    spent = time.process_time() - before
    was = {place.name: place for place in running.placements}
    there = [place for place in running.placements if place.gpus == (uuid,)]
    moved = [place.name for place in after.placements if place != was[place.name]]
    again = make_plan(replace(asked, previous=after.placements))
    broken = judged(board, left, after.placements)
    if len(after.placements) < len(names) or sorted(moved) != sorted(place.name for place in there):
        broken.append(f"{len(moved)} moved, and {len(there)} were on the GPU")
    if again.placements != after.placements:
        broken.append("planned again from its own plan it differs")
    return {"on_the_gpu": len(there), "moved": len(moved), "services": len(names), "cpu_seconds": round(spent, 2), "violations": broken}


def measure(quick: bool) -> dict[str, t.Any]:
    """All boards and mixes, five mixes under two loads; ``quick``: small."""
    known = geometries()
    sizes = (100,) if quick else (100, 1_000)
    packed = [static(key, known[key], mix, size) for key in BOARDS for mix in MIXES for size in sizes]
    bound = Repack(BOARDS[BOARD], known[BOARD], plain(BOARDS[BOARD]))
    mixes, loads, count = (("inference",), (1.0,), 1_500) if quick else (FIVE, LOADS, 3_000)
    churned = [churn(known[BOARD], bound, mix, load, count) for mix in mixes for load in loads]
    gone = lost(known[BOARD])
    fleets = [planned_fleet(*each) for each in (QUICK if quick else FULL)]
    named = [(f"{one['board']}, {one['mix']}, {one['services']}", one) for one in packed]
    named += [(f"{one['mix']}, load {one['load']}", one) for one in churned]
    named += [(f"{one['gpus']} GPUs, seed {one['seed']}", one) for one in fleets]
    violations = [f"{name}: {each}" for name, one in (*named, ("a GPU lost", gone)) for each in one.pop("violations")]
    return {
        "most_gpus_above_best": max(one["above_best"] for one in packed),
        "most_points_below_bound": max(one["below_bound"] for one in churned),
        "most_moves_per_admission": max(one["moves_per_admission"] for one in churned),
        "most_percent_less_than_whole_fleet": max(one["percent_less_than_whole_fleet"] for one in fleets),
        "static": packed,
        "churn": churned,
        "a_gpu_lost": gone,
        "fleets": fleets,
        "violations": violations,
    }
