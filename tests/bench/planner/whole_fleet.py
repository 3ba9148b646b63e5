# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole fleets: 100,000 GPUs of six models, 2,000 service classes, 20 quotas, three priorities; and small ones down to a single GPU.

Each plan is made by a cold process and checked by code that shares nothing with the solver. Beside it a greedy baseline: the same classes
by priority, largest first, each on the first hosts that have room.

    python tests/bench/planner/whole_fleet.py --gpus 100000 --classes 2000 --seed 4
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import typing as t
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "collections"), str(Path(__file__).resolve().parents[1])]

from planner.cold import cold
from planner.fleet_checks import opened, served, violations, waits
from planner.fleet_world import LOAD, UNEVEN, doubled, world

FULL, QUICK = (100_000, 2_000), (5_000, 300)
SMALL = ((1, 2), (2, 3), (10, 12), (200, 200))
# Demand beyond this is not asked of the checker of waiting replicas, which looks at every pair of class and host.
WAITING_CHECKED = 1_000
# In one case each host has up to this part of its CPU and RAM more or less.
UNLIKE = 0.1
# In another one this part of the services with whole GPUs wants two, four or eight a replica.
SEVERAL = 0.4
# So many percent less than twice as much of the first priority that differs may be served by twice the fleet.
TWICE = 0.1


def solve(problem: dict[str, t.Any]) -> dict[str, t.Any]:
    """What the cold process does: plain data in, plain data out."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_problem import read_problem
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.whole_fleet import plan_whole_fleet

    answer = plan_whole_fleet(read_problem(problem))
    return {
        "rows": answer.rows,
        "served": answer.served,
        "bound": answer.bound,
        "opened": answer.opened,
        "opened_bound": answer.opened_bound,
        "gaps": answer.gaps,
        "solver": answer.solver,
    }


def greedy(problem: dict[str, t.Any]) -> dict[str, t.Any]:
    """The baseline: priority, then size; first host with room. MIG slices by first fit of profile and start; no quota is ever broken."""
    from planner.fleet_baseline import first_fit

    return {"rows": first_fit(problem)}


def case(gpus: int, classes: int, seed: int, *, baseline: bool = False, **kind: t.Any) -> dict[str, t.Any]:
    """Figures of one problem; ``kind``: of its :func:`world`."""
    problem = world(gpus, classes, seed, **kind)
    run = cold("planner.whole_fleet", "solve", problem)
    answer = run.answer
    rows = answer["rows"]
    wrong = violations(problem, rows)
    told, counted = answer["served"], served(problem, rows)
    if told != counted or answer["opened"] != opened(rows):
        wrong.append(f"told {told} and {answer['opened']} GPUs, counted {counted} and {opened(rows)}")
    wrong += [
        f"priority {level}: {number} served is above the bound {answer['bound'][level]}"
        for level, number in told.items()
        if number > answer["bound"][level]
    ]
    if gpus <= WAITING_CHECKED:
        wrong += waits(problem, rows)[:5]
    figures = {
        "gpus": sum(host["gpus"] for host in problem["hosts"]),
        "hosts": len(problem["hosts"]),
        "classes": len(problem["classes"]),
        "asked": sum(one["replicas"] for one in problem["classes"]),
        "seed": seed,
        **kind,
        **run.figures,
        "served": {str(level): number for level, number in told.items()},
        "bound": {str(level): round(number, 2) for level, number in answer["bound"].items()},
        "opened": answer["opened"],
        "opened_bound": answer["opened_bound"],
        "gap_percent": {name: round(100 * gap, 4) for name, gap in answer["gaps"].items()},
        "digest": hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16],
        "violations": wrong,
    }
    if baseline:
        other = cold("planner.whole_fleet", "greedy", problem)
        beside = other.answer["rows"]
        figures["greedy"] = {
            **other.figures,
            "served": {str(level): number for level, number in served(problem, beside).items()},
            "opened": opened(beside),
            "violations": violations(problem, beside),
        }
    return figures


def _vector(figures: dict[str, t.Any]) -> tuple[float, ...]:
    """The objective: replicas by priority, greatest first, then GPUs that stay closed."""
    return (*(figures["served"][level] for level in sorted(figures["served"], reverse=True)), -figures["opened"])


def metamorphic(gpus: int, classes: int, seed: int, **kind: t.Any) -> dict[str, t.Any]:
    """Order and names of the input, the doubled fleet, five runs; ``kind``: of the :func:`world`."""
    problem = world(gpus, classes, seed, **kind)
    plain = cold("planner.whole_fleet", "solve", problem).answer
    wrong = []
    shuffled = {
        **problem,
        **{name: random.Random(seed).sample(problem[name], len(problem[name])) for name in ("hosts", "classes", "models", "quotas")},
    }
    if cold("planner.whole_fleet", "solve", shuffled, hash_seed=1).answer["rows"] != plain["rows"]:
        wrong.append("another order of the input changes the plan")
    names = {host["name"]: f"n{number:06}" for number, host in enumerate(sorted(problem["hosts"], key=lambda host: host["name"]))}
    renamed = {**problem, "hosts": [{**host, "name": names[host["name"]]} for host in problem["hosts"]]}
    back = cold("planner.whole_fleet", "solve", renamed).answer["rows"]
    if back != [(*row[:2], names[row[2]], *row[3:]) for row in plain["rows"]]:
        wrong.append("other names of the hosts change more than names")
    wrong += [
        f"run {run} differs"
        for run in range(3)
        if cold("planner.whole_fleet", "solve", problem, hash_seed=run + 2).answer["rows"] != plain["rows"]
    ]
    double = cold("planner.whole_fleet", "solve", doubled(problem)).answer
    more = {level: _more(double["served"][level], number) for level, number in sorted(plain["served"].items(), reverse=True)}
    # The first priority of which not exactly twice as many are served decides, as it does in the objective.
    first = next((each for each in more.values() if each), 0.0)
    wrong += [f"twice the fleet serves {-first} % less of the first priority that differs"] if first < -TWICE else []
    return {
        "doubled_percent": _more(sum(double["served"].values()), sum(plain["served"].values())),
        "doubled_by_priority": more,
        "violations": wrong,
    }


def _more(twice: int, once: int) -> float:
    """By how many percent something is more than twice as much."""
    return round(100 * (twice / max(1, 2 * once) - 1), 4)


def measure(quick: bool) -> dict[str, t.Any]:
    """All cases. ``quick``: two of 5,000 GPUs, and the small ones."""
    (gpus, classes), seeds = (QUICK, (1,)) if quick else (FULL, (1, 2, 3, 4, 5))
    cases = [case(gpus, classes, seed, baseline=seed == 1) for seed in seeds]
    cases += [case(gpus, classes, 1, unlike=UNLIKE), case(gpus, classes, 1, several=SEVERAL)]
    small = [case(*size, seed) for size in SMALL for seed in ((1,) if quick else (1, 2, 3))]
    found: dict[str, t.Any] = {"cases": cases, "small": small, "metamorphic": metamorphic(*((300, 60) if quick else QUICK), 1)}
    found["violations"] = [line for each in (*cases, *small, found["metamorphic"]) for line in each["violations"]]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=FULL[0])
    parser.add_argument("--classes", type=int, default=FULL[1])
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--load", type=float, default=LOAD, help="what is asked for, in parts of what the fleet holds")
    parser.add_argument("--harsh", action="store_true", help="quotas that do not hold all of the first priority")
    parser.add_argument("--unlike", type=float, default=0.0, help="each host has up to this part of its CPU and RAM more or less")
    parser.add_argument("--uneven", type=float, default=UNEVEN, help="how much more some services ask for than others")
    parser.add_argument("--step", type=int, default=0, help="who shares GPUs has any multiple of so many MiB")
    parser.add_argument("--several", type=float, default=0.0, help="part of the services with whole GPUs that want 2, 4 or 8 a replica")
    parser.add_argument("--lean", type=float, default=1.0, help="hosts have this part of their CPU and RAM")
    parser.add_argument("--baseline", action="store_true", help="beside it, first fit")
    parser.add_argument("--metamorphic", action="store_true", help="what must not matter, or only help, in place of figures")
    given = parser.parse_args()
    asked = {name: getattr(given, name) for name in ("load", "harsh", "unlike", "uneven", "step", "several", "lean")}
    for number in given.seed or [1]:
        if given.metamorphic:
            print(json.dumps(metamorphic(given.gpus, given.classes, number, **asked)), flush=True)
        else:
            print(json.dumps(case(given.gpus, given.classes, number, baseline=given.baseline, **asked)), flush=True)
