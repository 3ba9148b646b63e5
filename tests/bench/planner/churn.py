# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Churn on MIG GPUs: slices come (Poisson) and go (exponential lifetimes or others); who is turned away, and how often others have to move.

The figure is the share of requested compute slices that is admitted. It is held against a repack bound: the same requests on GPUs whose
slices may all be put anew at every arrival. A request is turned away there only when prices prove that no layout of the GPUs could hold it,
so that the bound is rather too high than too low. Beside it the placements of others, which move nothing.
By hand: ``python tests/bench/planner/churn.py --mix inference --load 1.0 --lifetimes fixed --board a100-80 --gpus 200 --seed 3``
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
import time
import typing as t
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "bench")]

import numpy as np  # noqa: E402 # the path comes first
from planner.mig_baselines import Online, Table  # noqa: E402 # the same
from planner.mig_checks import BOARDS, MIXES, Board, layouts, mix_of, wrong  # noqa: E402 # the same
from planner.static import geometries, weights  # noqa: E402 # the same

BOARD = "a100-80"
# Means of 1. With fixed ones services leave in the order in which they came; of the lognormal ones a tenth takes over half of the time.
LIFETIMES: dict[str, Callable[[random.Random], float]] = {
    "exponential": lambda draw: draw.expovariate(1.0),
    "fixed": lambda _draw: 1.0,
    "uniform": lambda draw: draw.uniform(0.0, 2.0),
    "lognormal": lambda draw: draw.lognormvariate(-1.125, 1.5),
}
FIVE = ("uniform", "small", "big", "bimodal", "inference")
POLICIES = ("first_fit", "best_fit", "frag_greedy")
LOADS = (0.9, 1.0)
MEASURED = ("exponential", "fixed")
GPUS, ARRIVALS = 100, 6_000
# The fleet begins empty; what happens before it has filled counts for nothing.
WARM_UP = 0.1
POINTS, MOVES = 1.5, 0.15

Place = Callable[[int, str], bool]
Leave = Callable[[int], None]


class Arrival(t.NamedTuple):
    """A request: when, for how long, for what."""

    when: float
    lasts: float
    name: str


class Setting(t.NamedTuple):
    """What comes, for how long, and to how many GPUs; ``load``: mean of compute slices asked for at one time, of those that there are."""

    mix: str
    load: float
    seed: int
    lifetimes: str = "exponential"
    board: str = BOARD
    gpus: int = GPUS


def arrivals(setting: Setting, shares: dict[str, float], count: int) -> list[Arrival]:
    """So many requests; lifetimes are 1 on average."""
    board, lasts = BOARDS[setting.board], LIFETIMES[setting.lifetimes]
    draw, names, weights = random.Random(setting.seed), list(shares), list(shares.values())
    mean = sum(shares[name] * board.kinds[name].compute for name in names)
    rate, now, found = setting.load * setting.gpus * board.compute / mean, 0.0, []
    for _one in range(count):
        now += draw.expovariate(rate)
        found.append(Arrival(now, lasts(draw), draw.choices(names, weights)[0]))
    return found


def acceptance(board: Board, requests: list[Arrival], place: Place, leave: Leave) -> float:
    """Percent of the requested compute slices that are admitted after the warm-up."""
    ends: list[tuple[float, int]] = []
    asked = admitted = 0
    for number, request in enumerate(requests):
        while ends and ends[0][0] <= request.when:
            leave(heapq.heappop(ends)[1])
        fits = place(number, request.name)
        if fits:
            heapq.heappush(ends, (request.when + request.lasts, number))
        if number >= WARM_UP * len(requests):
            weight = board.kinds[request.name].compute
            asked, admitted = asked + weight, admitted + weight * fits
    return 100 * admitted / asked


def baseline(board: Board, requests: list[Arrival], shares: dict[str, float], policy: str, gpus: int) -> float:
    """Acceptance of one of the others."""
    fleet, places = Online(Table(board, policy, shares), gpus), dict[int, tuple[int, int]]()

    def place(number: int, name: str) -> bool:
        found = fleet.place(name)
        if found:
            places[number] = found
        return found is not None

    def leave(number: int) -> None:
        gpu, start = places.pop(number)
        fleet.remove(gpu, requests[number].name, start)

    return acceptance(board, requests, place, leave)


class Repack:
    """Could so many slices of each profile stand on the GPUs, if all were put anew?

    Answered by prices at which no layout is worth more than 1 GPU: what is worth more than the GPUs cannot stand.
    """

    def __init__(self, board: Board, geometry: dict[str, t.Any], names: list[str], seed: int = 0) -> None:
        from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
        from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import pack

        self.names, draw = names, np.random.default_rng(seed)
        cuts = np.asarray([[layout.count(name) for name in names] for layout in layouts(board)])
        known: set[tuple[float, ...]] = set()
        for _direction in range(400):
            demand = dict(zip(names, draw.multinomial(600, draw.dirichlet(np.full(len(names), 0.8))).tolist(), strict=True))
            prices = pack(Geometry.from_dict(geometry), demand).prices
            known.add(tuple(round(prices[name], 9) for name in names))
        table = np.asarray(sorted(known))
        # Prices that some layout exceeds prove nothing, whoever made them.
        self.prices = table[(cuts @ table.T).max(axis=0) <= 1 + 1e-6]

    def gpus(self, demand: np.ndarray) -> float:
        """No fewer GPUs than this can hold it."""
        return float((self.prices @ demand).max())


def repacked(board: Board, requests: list[Arrival], bound: Repack, gpus: int) -> float:
    """Acceptance if everything could be put anew at every arrival."""
    now, column = np.zeros(len(bound.names)), {name: one for one, name in enumerate(bound.names)}

    def place(_number: int, name: str) -> bool:
        now[column[name]] += 1
        fits = bound.gpus(now) <= gpus + 1e-6
        now[column[name]] -= not fits
        return fits

    def leave(number: int) -> None:
        now[column[requests[number].name]] -= 1

    return acceptance(board, requests, place, leave)


class Ours:
    """The product's admission, followed by the judge: every slice is told of, stands legally, and moves only as said."""

    def __init__(self, board: Board, geometry: dict[str, t.Any], requests: list[Arrival], gpus: int) -> None:
        from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
        from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of
        from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.repair import Admission

        self.board, self.requests = board, requests
        self.fleet = Admission(patterns_of(Geometry.from_dict(geometry), ()), [0] * gpus)
        self.on: list[dict[int, tuple[str, int]]] = [{} for _gpu in range(gpus)]
        self.where: dict[int, int] = {}
        self.admitted = self.moves = self.most_moves = 0
        self.violations: list[str] = []
        self.slowest = 0.0

    def place(self, number: int, name: str) -> bool:
        """One arrival."""
        before = time.process_time()
        found = self.fleet.place(name)
        self.slowest = max(self.slowest, time.process_time() - before)
        if found is None:
            return False
        self._move(found.moves)
        self._put(number, name, found.gpu, found.start)
        self._move(found.later)
        moves = len(found.moves) + len(found.later)
        self.admitted, self.moves, self.most_moves = self.admitted + 1, self.moves + moves, max(self.most_moves, moves)
        return True

    def _move(self, moves: t.Iterable[t.Any]) -> None:
        for move in moves:
            here = [one for one, slice_ in self.on[move.old_gpu].items() if slice_ == (move.profile, move.old_start)]
            if len(here) != 1:
                self.violations.append(f"there is no {move.profile} at {move.old_start} to move")
                continue
            del self.on[move.old_gpu][here[0]]
            self._put(here[0], move.profile, move.gpu, move.start)

    def _put(self, number: int, name: str, gpu: int, start: int) -> None:
        self.on[gpu][number], self.where[number] = (name, start), gpu
        broken = wrong(self.board, self.on[gpu].values())
        if broken:
            self.violations.append(f"GPU {gpu}: {broken}")

    def leave(self, number: int) -> None:
        """One departure."""
        gpu = self.where.pop(number)
        name, start = self.on[gpu].pop(number)
        self.fleet.remove(gpu, name, start)


def case(setting: Setting, bound: Repack, count: int, shares: dict[str, float] | None = None) -> dict[str, t.Any]:
    """One setting; ``shares``: other ones than those of its mix."""
    board, gpus = BOARDS[setting.board], setting.gpus
    shares = shares or mix_of(board, setting.mix)
    requests = arrivals(setting, shares, count)
    ours = Ours(board, geometries()[setting.board], requests, gpus)
    before = time.process_time()
    got = acceptance(board, requests, ours.place, ours.leave)
    spent = time.process_time() - before
    best = repacked(board, requests, bound, gpus)
    moves = ours.moves / max(1, ours.admitted)
    violations = ours.violations[:3]
    if ours.most_moves > 3:
        violations.append(f"{ours.most_moves} moves for one admission")
    figures = {policy: round(baseline(board, requests, shares, policy, gpus), 2) for policy in POLICIES}
    return {
        **setting._asdict(),
        "accepted": round(got, 2), "repack_bound": round(best, 2), "below_bound": round(best - got, 2),
        "moves_per_admission": round(moves, 4), "slowest_ms": round(1000 * ours.slowest, 1), "mean_ms": round(1000 * spent / count, 3),
        **figures, "violations": violations,
    }  # fmt: skip


def measure(quick: bool, seeds: t.Sequence[int] = (1, 2)) -> dict[str, t.Any]:
    """Five mixes, two loads, exponential and fixed lifetimes, two seeds; ``quick``: one seed and 2,000 arrivals."""
    count = 2_000 if quick else ARRIVALS
    bound = Repack(BOARDS[BOARD], geometries()[BOARD], plain(BOARDS[BOARD]))
    kinds = [(mix, load, lifetimes) for lifetimes in MEASURED for mix in FIVE for load in LOADS]
    settings = [Setting(mix, load, seed, lifetimes) for mix, load, lifetimes in kinds for seed in (seeds[:1] if quick else seeds)]
    cases = [case(setting, bound, count) for setting in settings]
    violations, below = [], dict[str, list[float]]()
    for setting, one in zip(settings, cases, strict=True):
        kind = f"{setting.mix}, {setting.load}" + (f", {setting.lifetimes}" if setting.lifetimes != MEASURED[0] else "")
        violations += [f"{kind}, seed {setting.seed}: {each}" for each in one.pop("violations")]
        if one["moves_per_admission"] > MOVES:
            violations.append(f"{kind}, seed {setting.seed}: {one['moves_per_admission']} moves per admission")
        below.setdefault(kind, []).append(one["below_bound"])
    means = {kind: round(sum(here) / len(here), 2) for kind, here in below.items()}
    violations += [f"{kind}: {mean} points below the repack bound" for kind, mean in means.items() if mean > POINTS]
    return {
        "most_points_below_bound": max(means.values()),
        "most_moves_per_admission": max(one["moves_per_admission"] for one in cases),
        "points_below_bound": means,
        "cases": cases,
        "violations": violations,
    }


def plain(board: Board) -> list[str]:
    """Profiles without a variant."""
    return [name for name in board.kinds if "+" not in name]


def main() -> int:
    """By hand: one mix, one load, one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", choices=sorted(MIXES), default="uniform")
    parser.add_argument("--weights", help="instead of a mix: PROFILE=SHARE,...")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--lifetimes", choices=list(LIFETIMES), default="exponential")
    parser.add_argument("--board", choices=[board for board in BOARDS if board in geometries()], default=BOARD)
    parser.add_argument("--gpus", type=int, default=GPUS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arrivals", type=int, default=ARRIVALS)
    options = parser.parse_args()
    board = BOARDS[options.board]
    bound = Repack(board, geometries()[options.board], plain(board))
    shares = weights(options.weights) if options.weights else None
    mix = "given" if shares else options.mix
    setting = Setting(mix, options.load, options.seed, options.lifetimes, options.board, options.gpus)
    figures = case(setting, bound, options.arrivals, shares)
    print(json.dumps(figures, indent=1))
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
