# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All parts of the planner's benchmark, one after the other, into build/bench/planner.json.

A part is a program of this folder with a function ``measure(quick)`` that returns its figures (each beside its baseline of the same run)
and, under ``violations``, what an independent checker found wrong: anything there, and the part scores 0.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARTS = ("static", "replan", "churn", "plans", "whole_fleet", "small_fleet", "texts", "arrivals", "explanations", "metamorphic")


def machine() -> dict[str, object]:
    """What the figures were taken on.

    ``python_optimized``: was this Python built with profile-guided optimization, as a distribution's own is without saying so? It is a
    quarter slower otherwise. ``loop_seconds``: of ten million turns of an empty loop, five times, for speed changes under one's hands.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return {
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "python": platform.python_version(),
        "python_optimized": sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "loop_seconds": [_loop() for _time in range(5)],
        "load": os.getloadavg()[0],
    }


def _loop() -> float:
    before = time.monotonic()
    for _turn in range(10_000_000):
        pass
    return round(time.monotonic() - before, 2)


def main() -> int:
    """0 when no part has a violation."""
    more = "With other mixes, seeds, traces or nodes: run.py arrivals --mix ... (arrivals.py --help tells all of it)."
    parser = argparse.ArgumentParser(description=__doc__, epilog=more)
    parser.add_argument("parts", nargs="*", default=[], help=f"of {', '.join(PARTS)}; all if left out")
    parser.add_argument("--quick", action="store_true", help="smaller cases, a minute in all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench" / "planner.json")
    options, rest = parser.parse_known_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "bench")]
    if rest and options.parts == ["arrivals"]:
        return int(importlib.import_module("planner.arrivals").main(rest))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    found: dict[str, object] = {"machine": machine(), "quick": options.quick}
    wrong = 0
    for name in options.parts or PARTS:
        print(f"planner: {name}", flush=True)
        before = time.monotonic()
        figures = importlib.import_module(f"planner.{name}").measure(options.quick)
        wrong += len(figures.get("violations", ()))
        found[name] = {"score": 0 if figures.get("violations") else 1, "took_s": round(time.monotonic() - before, 1), **figures}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"planner: figures in {options.out}, {wrong} violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
