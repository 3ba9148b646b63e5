# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must not matter to a plan, on random fleets with every rule that there is: the order of the input, what hosts are called, in which
process it is made; and what may only help: one more GPU, one more host, twice the fleet for twice the demand. Each property is held against
the plan that is made one by one, without the solver, in the same run.

By hand, with other fleets: ``python tests/bench/planner/metamorphic.py --worlds 400 --first 1000 --hosts 4``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import typing as t
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "bench")]

from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement, Problem, Solution, planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import program
from ansible_collections.gpuops.fleet.tests.unit import planner_checker
from planner.cold import cold
from planner.metamorphic_world import PRIORITIES, after_drains, doubled, mixed, renamed, twins, with_one_more_gpu, with_one_more_host, world

HASH_SEEDS = (0, 1, 2, 3, 4)
# (name, fleets, at most so many hosts each, of these so many in processes of their own). What may only help is promised for small ones.
SIZES = (("small", 400, 4, 4), ("middle", 40, 12, 2))
QUICK = (("small", 60, 4, 2),)
ONLY_HELP = ("gpu served", "gpu worth", "host served", "host worth", "doubled")
Worth = tuple[int, ...]


def worth(problem: Problem, solution: Solution) -> Worth:
    """The objective of docs/planner.md, counted once more, for a fleet on which nothing ran: more is better."""
    needs = {each.service: each for each in problem.needs}
    served = Counter(needs[place.service].priority for place in solution.placements)
    hosts = Counter((place.service, place.host) for place in solution.placements if needs[place.service].rules.spread == "host")
    spread = [place for place in solution.placements if needs[place.service].rules.spread in ("host", "gpu")]
    boards = Counter((place.service, uuid) for place in spread for uuid in place.gpus)
    links = {one.uuid: one.links for each in problem.hosts if any(one.links for one in each.gpus) for one in each.gpus}
    loose = sum(
        any(b not in (links[a] or ()) and a not in (links[b] or ()) for a, b in itertools.combinations(place.gpus, 2))
        for place in solution.placements
        if all(uuid in links for uuid in place.gpus)
    )
    # What is pinned, the platform decided.
    mig = {(each.name, one.uuid): one.mig for each in problem.hosts for one in each.gpus if one.pin is None}
    return (
        *(served[priority] for priority in PRIORITIES),
        -sum(count * (count - 1) // 2 for count in hosts.values()),
        -sum(count * (count - 1) // 2 for count in boards.values()),
        -loose,
        -len({(place.host, uuid) for place in solution.placements for uuid in place.gpus}),
        -sum(mig[where] != (layout.mode == "mig") for where, layout in solution.layouts.items() if where in mig),
    )


def _told(solution: Solution, names: Mapping[str, str]) -> list[Placement]:
    return sorted((replace(each, host=names[each.host]) for each in solution.placements), key=lambda each: each.rank)


def judged(seed: int, most_hosts: int) -> dict[str, t.Any]:
    """What one fleet shows, by property: only those that do not hold; and whether somebody has no place."""
    problem, chance = world(seed, most_hosts), random.Random(seed + 1)
    solution = make_plan(problem)
    base = worth(problem, solution)
    found: dict[str, t.Any] = {"unplaced": bool(solution.unplaced), "broken": planner_checker.complaints(problem, solution)[:3]}
    found["order"] = make_plan(mixed(problem, chance)) != solution
    names = [each.name for each in problem.hosts]
    for way, new in (
        ("reversed", names[::-1]),
        ("any", chance.sample(names, len(names))),
        ("strange", [f"{name[::-1]}x" for name in names]),
    ):
        to = dict(zip(names, new, strict=True))
        again = make_plan(renamed(problem, to))
        found[f"names {way}"] = not twins(problem) and _told(solution, to) != _told(again, {name: name for name in new})
    serving = planned(problem, solution)
    found["planned again"] = make_plan(serving).placements != solution.placements
    drained = after_drains(serving, random.Random(seed + 2))
    then = make_plan(drained)
    found["drained"] = planner_checker.complaints(drained, then)[:3]
    settled = make_plan(replace(drained, previous=(*then.placements, *then.waiting)))
    found["drained, planned again"] = (settled.placements, settled.waiting) != (then.placements, then.waiting)
    wider = with_one_more_gpu(serving, chance)
    if wider is not None:
        found["gpu later"] = _served(wider, make_plan(wider)) < base[: len(PRIORITIES)]
    for what, larger in (("gpu", with_one_more_gpu(problem, chance)), ("host", with_one_more_host(problem, chance))):
        if larger is not None:
            after = worth(larger, make_plan(larger))
            found[f"{what} served"] = after[: len(PRIORITIES)] < base[: len(PRIORITIES)]
            found[f"{what} worth"] = after < base
    twice = doubled(problem)
    found["doubled"] = _served(twice, make_plan(twice)) < tuple(2 * count for count in base[: len(PRIORITIES)])
    return {kind: what for kind, what in found.items() if what}


def _served(problem: Problem, solution: Solution) -> Worth:
    return worth(problem, solution)[: len(PRIORITIES)]


def _judged(seed: int, most_hosts: int, alone: bool) -> tuple[int, dict[str, t.Any]]:
    if alone:
        vars(program)["highspy"] = None  # as on a controller that has no wheel for it; this process plans for nobody else
    return seed, judged(seed, most_hosts)


def judge(first: int, worlds: int, most_hosts: int, alone: bool = False) -> tuple[dict[str, int], list[str]]:
    """(How many fleets showed which trouble, each as a line) over ``worlds`` fleets from seed ``first``. ``alone``: without the solver."""
    count: Counter[str] = Counter()
    lines: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        each = partial(_judged, most_hosts=most_hosts, alone=alone)
        for seed, found in pool.map(each, range(first, first + worlds), chunksize=4):
            count.update(dict.fromkeys(found, 1))
            lines += [f"{kind}: seed {seed}, at most {most_hosts} hosts" for kind in found if kind != "unplaced"]
    return dict(sorted(count.items())), lines


def measure(quick: bool) -> dict[str, t.Any]:
    """Of each size how often a property does not hold, with the solver and without it."""
    found: dict[str, t.Any] = {"sizes": {}, "violations": []}
    for name, worlds, most_hosts, cold_ones in QUICK if quick else SIZES:
        ours, lines = judge(1, worlds, most_hosts)
        theirs, _lines = judge(1, worlds, most_hosts, alone=True)
        found["sizes"][name] = {"fleets": worlds, "most_hosts": most_hosts, "does_not_hold": ours, "one_by_one": theirs}
        found["violations"] += [line for line in lines if name == "small" or not line.startswith(ONLY_HELP)]
        for seed in range(1, cold_ones + 1):
            answers = [cold(make_plan.__module__, "make_plan", world(seed, most_hosts), hash_seed=each).answer for each in HASH_SEEDS]
            found["violations"] += [f"another process, another plan: seed {seed}"] if any(one != answers[0] for one in answers) else []
    return found


def main() -> int:
    """0 when every property holds on every fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200, help="how many fleets")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first")
    parser.add_argument("--hosts", type=int, default=4, help="at most so many hosts each")
    parser.add_argument("--one-by-one", action="store_true", help="without the solver")
    options = parser.parse_args()
    count, lines = judge(options.first, options.worlds, options.hosts, options.one_by_one)
    print(json.dumps(count, indent=1), *lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
