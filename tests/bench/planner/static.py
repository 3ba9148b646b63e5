# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Static MIG packing: how many GPUs above the linear bound, from ten services to a million, and how long a cold process takes.

Beside it the placements of others on the same requests. By hand, other mixes and seeds:
``python tests/bench/planner/static.py --board h100 --mix small --services 5000 --seed 7 --weights 1g.10gb=3,7g.80gb=1``
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import typing as t
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "bench")]

import numpy as np  # noqa: E402 # the path comes first
from planner.cold import Cold, cold  # noqa: E402 # the same
from planner.mig_baselines import balanced, static  # noqa: E402 # the same
from planner.mig_checks import BOARDS, CATALOGUE, MIXES, check_bound, check_places, mix_of  # noqa: E402 # the same

MILLION = 1_000_000
POLICIES = ("first_fit", "best_fit", "hami")
# The others place one request after the other: larger cases of theirs take minutes, so that they are run for one mix only.
LARGEST_BASELINE = 10_000
SECONDS = 10.0


def work(geometry: dict[str, t.Any], names: list[str]) -> dict[str, t.Any]:
    """In the cold process: plain data in, plain data out."""
    from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import pack

    packed = pack(Geometry.from_dict(geometry), Counter(names))
    gpus, starts = packed.places(names)
    return {
        "gpus": gpus.tolist(), "starts": starts.tolist(), "count": packed.gpus, "bound": packed.bound, "prices": dict(packed.prices),
        "patterns": len(packed.patterns.maximal), "free": packed.free,
    }  # fmt: skip


def geometries() -> dict[str, dict[str, t.Any]]:
    """Geometry of each board as the catalogue has it."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import door

    entries = {entry["key"]: entry for entry in door.read_data("geometry.yml").data["geometries"]}
    return {key: entries[name] for key, name in CATALOGUE.items()}


def requests(shares: dict[str, float], count: int, seed: int) -> list[str]:
    """``count`` names, drawn at random."""
    names = sorted(shares)
    drawn = np.random.default_rng(seed).choice(len(names), size=count, p=[shares[name] for name in names])
    return [names[one] for one in drawn.tolist()]


def weights(text: str) -> dict[str, float]:
    """Shares from ``1g.10gb=3,7g.80gb=1``."""
    given = {name: float(share) for name, share in (entry.split("=") for entry in text.split(","))}
    total = sum(given.values())
    return {name: share / total for name, share in sorted(given.items())}


def case(key: str, geometry: dict[str, t.Any], names: list[str], *, baselines: bool, alone: bool) -> dict[str, t.Any]:
    """One case. ``alone``: in a cold process."""
    board, demand = BOARDS[key], Counter(names)
    run: Cold | None = cold("planner.static", "work", geometry, names) if alone else None
    answer = run.answer if run else work(geometry, names)
    wrong = check_places(board, names, answer["gpus"], answer["starts"], answer["count"])
    wrong += check_bound(board, demand, answer["bound"], answer["prices"])
    above = answer["count"] - math.ceil(answer["bound"] - 1e-6)
    if above > 1:
        wrong.append(f"{above} GPUs above the bound")
    figures: dict[str, t.Any] = {
        "gpus": answer["count"],
        "bound": round(answer["bound"], 3),
        "above": above,
        "patterns": answer["patterns"],
    }
    if run:
        figures.update(run.figures)
        if run.seconds > SECONDS:
            wrong.append(f"{run.seconds:.1f} s")
    figures["all_balanced"] = balanced(key, board, demand)
    if baselines:
        for policy in POLICIES:
            gpus, starts = static(board, names, policy)
            wrong += [f"{policy}: {each}" for each in check_places(board, names, gpus, starts)]
            figures[policy] = max(gpus) + 1
        gpus, starts = static(board, sorted(names, key=lambda name: (-board.kinds[name].memory, -board.kinds[name].compute, name)), "hami")
        figures["hami_largest_first"] = max(gpus) + 1
    figures["violations"] = wrong
    return figures


def measure(quick: bool, boards: t.Sequence[str] = tuple(BOARDS), mixes: t.Sequence[str] = tuple(MIXES), seed: int = 1) -> dict[str, t.Any]:
    """All boards, mixes and sizes, the others beside them; ``quick``: up to 1,000 services, and one million once a board."""
    cases: list[dict[str, t.Any]] = []
    geometry = geometries()
    for key in boards:
        for mix in mixes:
            shares = mix_of(BOARDS[key], mix, variants=key == "rtx-pro-6000")
            sizes = [10, 100, 1_000] if quick else [10, 100, 1_000, 10_000, 100_000]
            if not quick or mix == mixes[0]:
                sizes.append(MILLION)
            for size in sizes:
                names = requests(shares, size, seed)
                figures = case(
                    key, geometry[key], names, baselines=size <= LARGEST_BASELINE or (not quick and mix == mixes[0]), alone=size == MILLION
                )
                cases.append({"board": key, "mix": mix, "services": size, **figures})
    return summary(cases)


def summary(cases: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """The figures of all cases in one."""
    millions = [one for one in cases if one["services"] == MILLION]
    beside = [one for one in cases if "first_fit" in one]
    ratio = {
        name: round(100 * (sum(one[name] for one in group) / sum(one["gpus"] for one in group) - 1), 2)
        for name, group in (
            ("all_balanced", cases), *((policy, beside) for policy in (*POLICIES, "hami_largest_first")),
        )
        if group
    }  # fmt: skip
    return {
        "most_above_bound": max(one["above"] for one in cases),
        "million_seconds": max((one["seconds"] for one in millions), default=None),
        "million_peak_mib": max((one["peak_mib"] for one in millions), default=None),
        "others_percent_more_gpus": ratio,
        "cases": [{name: value for name, value in one.items() if name != "violations"} for one in cases],
        "violations": [f"{one['board']}, {one['mix']}, {one['services']}: {each}" for one in cases for each in one["violations"]],
    }


def main() -> int:
    """By hand: one board, one mix, one size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--board", choices=sorted(BOARDS), default="a100-80")
    parser.add_argument("--mix", choices=sorted(MIXES), default="uniform")
    parser.add_argument("--weights", help="instead of a mix: PROFILE=SHARE,...")
    parser.add_argument("--services", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shares = mix_of(BOARDS[options.board], options.mix, variants=options.board == "rtx-pro-6000")
    if options.weights:
        shares = weights(options.weights)
    names = requests(shares, options.services, options.seed)
    figures = case(options.board, geometries()[options.board], names, baselines=len(names) <= 10 * LARGEST_BASELINE, alone=True)
    print(json.dumps(figures, indent=1))
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
