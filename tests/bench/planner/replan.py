# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Re-planning of MIG GPUs: after churn and 2 % new services under caps on moves, one GPU lost, nothing changed.

Each case is a cold process that gets a list of services with their places and answers with another one; the judge compares the two.
Beside it what placing the new services alone takes, and what rerunning a first-fit (largest first) from nothing would move.
By hand: ``python tests/bench/planner/replan.py --gpus 20000 --mix small --load 0.8 --cap 0.01 --seed 3``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import typing as t
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "bench")]

from planner.cold import Cold, cold  # noqa: E402 # the path comes first
from planner.mig_baselines import Online, Table, static  # noqa: E402 # the same
from planner.mig_checks import BOARDS, MIXES, check_places, mix_of  # noqa: E402 # the same
from planner.static import geometries  # noqa: E402 # the same

SECONDS = 10.0
CASES = (("small", 0.80), ("inference", 0.80), ("uniform", 0.75))
CAPS = (0.0, 0.01, 0.05, None)
NEW = 0.02
BOARD = "a100-80"


@dataclass
class Services:
    """Services and their places: three lists of one length."""

    names: list[str]
    gpus: list[int]
    starts: list[int]


def churned(mix: str, load: float, gpus: int, seed: int) -> Services:
    """A fleet that was filled by first-fit up to a share of its compute slices, and in which then as many services ended and began anew."""
    board, draw = BOARDS[BOARD], random.Random(seed)
    shares = mix_of(board, mix)
    fleet = Online(Table(board, "first_fit", shares), gpus)
    names, weights = list(shares), list(shares.values())
    room, used = load * gpus * board.compute, 0
    services: list[tuple[str, int, int]] = []

    def fill() -> None:
        nonlocal used
        while used < room:
            name = draw.choices(names, weights)[0]
            place = fleet.place(name)
            if place is None:
                return
            services.append((name, *place))
            used += board.kinds[name].compute

    fill()
    for _again in range(len(services)):
        one = draw.randrange(len(services))
        services[one], services[-1] = services[-1], services[one]
        name, gpu, start = services.pop()
        fleet.remove(gpu, name, start)
        used -= board.kinds[name].compute
        fill()
    services.sort(key=lambda one: one[1:])
    return Services(*(list(each) for each in zip(*services, strict=True)))


def work(
    geometry: dict[str, t.Any], given: dict[str, t.Any], gpus: int, new: dict[str, int], cap: int | None, goal: t.Literal["gpus", "moves"],
    lost: list[int],
) -> dict[str, t.Any]:  # fmt: skip
    """In the cold process: plain data in, plain data out."""
    import numpy as np
    from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import columns_of
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import patterns_of
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.replan import LOST, Gpus, replan

    services = Services(**given)
    patterns = patterns_of(Geometry.from_dict(geometry), {*services.names, *new})
    states, roles = (
        patterns.states_of(gpus, columns_of(patterns, services.names), services.gpus, services.starts),
        np.zeros(gpus, dtype=np.int64),
    )
    roles[lost] = LOST
    answer = replan(Gpus.of(patterns, states, roles=roles), new, cap=cap, goal=goal)
    shifts = answer.shifts
    places = {(gpu, start): one for one, (gpu, start) in enumerate(zip(services.gpus, services.starts, strict=True))}
    after = Services(list(services.names), list(services.gpus), list(services.starts))
    added: list[tuple[str, int, int]] = []
    columns = (shifts.profile.tolist(), shifts.gpu.tolist(), shifts.start.tolist(), shifts.old_gpu.tolist(), shifts.old_start.tolist())
    for profile, gpu, start, old_gpu, old_start in zip(*columns, strict=True):
        if old_gpu < 0:
            added.append((patterns.profiles[profile].name, gpu, start))
        else:
            one = places[old_gpu, old_start]
            after.gpus[one], after.starts[one] = gpu, start
    return {
        "services": vars(after), "added": added, "gpus": answer.gpus, "gpus_bound": answer.gpus_bound, "moves": answer.moves,
        "moves_bound": answer.cost_bound, "forced": answer.forced, "unserved": dict(answer.unserved),
    }  # fmt: skip


def judged(before: Services, gpus: int, new: t.Mapping[str, int], cap: int | None, lost: list[int], answer: dict[str, t.Any]) -> list[str]:
    """What the judge finds wrong with an answer."""
    board, after, added = BOARDS[BOARD], Services(**answer["services"]), answer["added"]
    names = [*after.names, *(one[0] for one in added)]
    on, starts = [*after.gpus, *(one[1] for one in added)], [*after.starts, *(one[2] for one in added)]
    wrong = check_places(board, names, on, starts, gpus)
    if after.names != before.names:
        wrong.append("a service is another one now")
    if Counter(one[0] for one in added) + Counter(answer["unserved"]) != Counter(new):
        wrong.append("not all new services are told of")
    if set(lost) & set(on):
        wrong.append("a service is on a lost GPU")
    rows = zip(before.gpus, before.starts, after.gpus, after.starts, strict=True)
    moved = [old_gpu for old_gpu, old_start, gpu, start in rows if (old_gpu, old_start) != (gpu, start)]
    free_moves = sum(gpu not in set(lost) for gpu in moved)
    if (free_moves, len(moved) - free_moves) != (answer["moves"], answer["forced"]):
        wrong.append(f"{free_moves} moves and not {answer['moves']}")
    if cap is not None and free_moves > cap:
        wrong.append(f"{free_moves} moves are more than the cap of {cap}")
    if len(set(on)) != answer["gpus"]:
        wrong.append(f"{len(set(on))} GPUs in use and not {answer['gpus']}")
    return wrong


def case(geometry: dict[str, t.Any], before: Services, gpus: int, new: dict[str, int], share: float | None) -> dict[str, t.Any]:
    """One cap on moves, as a share of the services."""
    cap = None if share is None else int(share * len(before.names))
    run: Cold = cold("planner.replan", "work", geometry, vars(before), gpus, new, cap, "gpus", [])
    answer = run.answer
    wrong = judged(before, gpus, new, cap, [], answer)
    above = {
        "gpus_above_bound_percent": round(100 * (answer["gpus"] / answer["gpus_bound"] - 1), 4),
        "moves_above_bound_percent": round(100 * (answer["moves"] / answer["moves_bound"] - 1), 4) if answer["moves_bound"] > 0 else 0.0,
    }
    if max(above.values()) > 1:
        wrong.append(f"more than 1 % above the bound: {above}")
    if answer["unserved"]:
        wrong.append(f"not served: {answer['unserved']}")
    if run.seconds > SECONDS:
        wrong.append(f"{run.seconds:.1f} s")
    figures = {name: answer[name] for name in ("gpus", "gpus_bound", "moves", "moves_bound")}
    return {"cap": share, "services": len(before.names), "new": sum(new.values()), **figures, **above, **run.figures, "violations": wrong}


def requests(before: Services, mix: str, seed: int) -> dict[str, int]:
    """2 % new services of the same mix."""
    shares = mix_of(BOARDS[BOARD], mix)
    drawn = random.Random(seed + 1).choices(list(shares), list(shares.values()), k=int(NEW * len(before.names)))
    return dict(sorted(Counter(drawn).items()))


def events(geometry: dict[str, t.Any], seed: int, gpus: int = 1_000) -> dict[str, t.Any]:
    """One GPU of 1,000 lost; nothing changed: each asks for the fewest moves first, for each mix and for five GPUs."""
    wrong, worst, sums = [], 0.0, []
    for mix, load in CASES:
        before = churned(mix, load, gpus, seed)
        used = sorted(set(before.gpus))
        for lost in random.Random(seed).sample(used, 5):
            answer = work(geometry, vars(before), gpus, {}, None, "moves", [lost])
            wrong += [f"GPU lost, {mix}: {each}" for each in judged(before, gpus, {}, None, [lost], answer)]
            were = before.gpus.count(lost)
            worst = max(worst, (answer["moves"] + answer["forced"]) / were)
            if answer["unserved"]:
                wrong.append(f"GPU lost, {mix}: not served: {answer['unserved']}")
        runs = [
            cold("planner.replan", "work", geometry, vars(before), gpus, {}, None, "moves", [], hash_seed=one).answer for one in range(2)
        ]
        sums += [hashlib.sha256(json.dumps([run.pop("services"), run]).encode()).hexdigest() for run in runs]
        still = hashlib.sha256(json.dumps([vars(before), {**runs[0], "added": []}]).encode()).hexdigest()
        if len({*sums[-2:], still}) > 1 or runs[0]["moves"]:
            wrong.append(f"nothing changed, {mix}: {runs[0]['moves']} moves")
    if worst > 1.05:
        wrong.append(f"GPU lost: {worst} moves for each service that was on it")
    return {"lost_moves_per_service": worst, "unchanged_moves": 0 if not wrong else None, "violations": wrong}


def from_nothing(before: Services, new: dict[str, int]) -> dict[str, t.Any]:
    """Largest first into empty GPUs: how many GPUs, and how many slices then stand where none of their profile stood before."""
    board = BOARDS[BOARD]
    names = [*before.names, *(name for name, count in new.items() for _again in range(count))]
    names.sort(key=lambda name: (-board.kinds[name].memory, -board.kinds[name].compute, name))
    gpus, starts = static(board, names, "first_fit")
    stay = len(set(zip(before.names, before.gpus, before.starts, strict=True)) & set(zip(names, gpus, starts, strict=True)))
    return {"first_fit_gpus": max(gpus) + 1, "first_fit_moved_percent": round(100 * (1 - stay / len(before.names)), 1)}


def measure(quick: bool, seed: int = 1) -> dict[str, t.Any]:
    """Three mixes, four caps; ``quick``: 2,000 GPUs instead of 100,000."""
    geometry, gpus = geometries()[BOARD], 2_000 if quick else 100_000
    cases: list[dict[str, t.Any]] = []
    for mix, load in CASES:
        before = churned(mix, load, gpus, seed)
        new = requests(before, mix, seed)
        beside = from_nothing(before, new)
        cases += [{"mix": mix, "load": load, **case(geometry, before, gpus, new, share), **beside} for share in CAPS]
    small = events(geometry, seed)
    wrong = [f"{one['mix']}, cap {one['cap']}: {each}" for one in cases for each in one.pop("violations")]
    return {
        "gpus": gpus,
        "most_gpus_above_bound_percent": max(one["gpus_above_bound_percent"] for one in cases),
        "most_moves_above_bound_percent": max(one["moves_above_bound_percent"] for one in cases),
        "most_seconds": max(one["seconds"] for one in cases),
        "cases": cases,
        "violations": [*wrong, *small.pop("violations")],
        "events": small,
    }


def main() -> int:
    """By hand: one mix, one cap."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", choices=sorted(MIXES), default="small")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--gpus", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cap", type=float, help="share of the services that may move; left out: all")
    options = parser.parse_args()
    before = churned(options.mix, options.load, options.gpus, options.seed)
    new = requests(before, options.mix, options.seed)
    figures = case(geometries()[BOARD], before, options.gpus, new, options.cap)
    figures.update(from_nothing(before, new))
    print(json.dumps(figures, indent=1))
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
