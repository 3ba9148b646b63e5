# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The planner that playbooks call, on the whole-fleet solver's worlds: hosts of which many lack CPU or RAM for all that their GPUs hold.

Without quotas, which the two count differently (a plan in MiB as the board reports them, the bulk solver in whole GiB). Beside it that
solver and the greedy baseline. Each plan is made by a cold process and checked by the checker of whole fleets.

    python tests/bench/planner/planned_fleet.py --gpus 5000 --classes 300 --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import typing as t
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "collections"), str(Path(__file__).resolve().parents[1])]

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Need, Placement, Problem, Resources, Rules
from planner.cold import cold
from planner.fleet_checks import opened, served, violations
from planner.fleet_world import LOAD, world

FULL, QUICK = ((1_000, 100, 1), (1_000, 100, 2), (5_000, 300, 1), (20_000, 2_000, 1)), ((1_000, 100, 1),)
# So many percent of all that the bulk solver serves a plan may serve less.
BEHIND = 2.0


def as_problem(given: dict[str, t.Any]) -> Problem:
    """A world of :mod:`planner.fleet_world`, but for its quotas, as the planner is asked it."""
    models = {one["name"]: (one["memory_mib"], one["geometry"] and Geometry.from_dict(one["geometry"])) for one in given["models"]}
    hosts, needs = [], []
    for one in given["hosts"]:
        memory, geometry = models[one["model"]]
        gpus = [
            Gpu(_uuid(one["name"], number), f"0000:{number + 1:02x}:00.0", one["model"], memory, geometry, mps_clients=one["clients"] or 1)
            for number in range(one["gpus"])
        ]
        policy = {"modes": one["modes"], "sharing": ("mps",), "shared_max": one["clients"], "shared_reserve_mib": 0}
        hosts.append(Host(one["name"], "production", tuple(gpus), capacity=Resources(one["cpus"], one["ram_mib"], None, None), **policy))
    for one in given["classes"]:
        needs.append(
            Need(
                one["key"],
                "production",
                one["isolation"],
                one["memory_mib"],
                one["replicas"],
                one["priority"],
                compute=one["compute"] if one["isolation"] != "exclusive" else None,
                sharing="mps",
                models=one["models"],
                not_models=one["not_models"],
                resources=Resources(one["cpus"], one["ram_mib"], 0, 0),
                rules=Rules(spread="pack", max_per_host=one["max_per_host"]),
            )
        )
    return Problem(tuple(hosts), tuple(needs))


def _uuid(host: str, number: int) -> str:
    return f"GPU-{host}-{number}"


def rows_of(given: dict[str, t.Any], places: t.Iterable[Placement]) -> list[tuple[t.Any, ...]]:
    """As the checker of whole fleets has them."""
    number = {_uuid(host["name"], each): each for host in given["hosts"] for each in range(host["gpus"])}
    return [
        (place.service, place.replica - 1, place.host, number[uuid], place.mode,
         place.slice.profile if place.slice else "", place.slice.start if place.slice else -1)
        for place in places
        for uuid in place.gpus
    ]  # fmt: skip


def solve(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """What the cold process does: plain data in, rows of the checker out, with what is proven."""
    found = make_plan(as_problem(given))
    rows, proof = rows_of(given, found.placements), found.proof
    return {"rows": rows, "more": proof.more if proof else None, "unproven": proof.unproven if proof else "there is no solver"}


def case(gpus: int, classes: int, seed: int, load: float = LOAD) -> dict[str, t.Any]:
    """Figures of one world."""
    given = {**world(gpus, classes, seed, load), "quotas": []}
    plan, bulk = cold("planner.planned_fleet", "solve", given), cold("planner.whole_fleet", "solve", given)
    greedy = cold("planner.whole_fleet", "greedy", given)
    rows = plan.answer["rows"]
    wrong = violations(given, rows)
    mine, others = served(given, rows), bulk.answer["served"]
    behind = 100 * (1 - sum(mine.values()) / sum(others.values()))
    if behind > BEHIND:
        wrong.append(f"serves {behind:.1f} % less than plan_whole_fleet")
    return {
        "gpus": sum(host["gpus"] for host in given["hosts"]),
        "services": len(given["classes"]),
        "asked": sum(one["replicas"] for one in given["classes"]),
        "seed": seed,
        **plan.figures,
        "served": {str(level): number for level, number in sorted(mine.items(), reverse=True)},
        "opened": opened(rows),
        "proven": plan.answer["unproven"] or plan.answer["more"],
        "whole_fleet": {
            **bulk.figures,
            "served": {str(level): number for level, number in others.items()},
            "opened": bulk.answer["opened"],
        },
        "greedy": {**greedy.figures, "served": {str(level): number for level, number in served(given, greedy.answer["rows"]).items()}},
        "percent_less_than_whole_fleet": round(behind, 3),
        "violations": wrong,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=5_000)
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=float, default=LOAD)
    asked = parser.parse_args()
    print(json.dumps(case(asked.gpus, asked.classes, asked.seed, asked.load), indent=2))
