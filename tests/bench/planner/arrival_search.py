# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Made-up fleets and mixes for online arrival, by number: where is the product behind the best baseline, having learnt another mix?

Every number is a world of its own: some shapes of hosts, some kinds of requests (few or many, with much CPU or little, for parts of a
GPU or for several), a fleet of a few to a hundred nodes, and another mix for what was learnt. The same number makes the same world::

    python tests/bench/planner/arrival_search.py --worlds 0-39 --seeds 1,2,3
    python tests/bench/planner/arrival_search.py --worlds 200-221 --seeds 1 --large
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import typing as t
from pathlib import Path

if __name__ == "__main__":  # by itself: what run.py would have set
    sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "collections"), str(Path(__file__).resolve().parents[1])]

from ansible_collections.gpuops.fleet.tests.bench.planner import arrival_world as world
from ansible_collections.gpuops.fleet.tests.bench.planner import arrivals as bench

MODELS = ("A100", "H100", "L4", "T4", "V100")
PARTS = (50, 100, 125, 200, 250, 300, 333, 400, 450, 500, 600, 700, 750, 800, 900)


class Sizes(t.NamedTuple):
    """Of made-up fleets: the most GPUs, about how many requests are expected at most (fleets of small ones are smaller), nodes."""

    gpus: int
    requests: int
    nodes: tuple[int, int]


SMALL, LARGE = Sizes(240, 600, (10, 100)), Sizes(500, 1_300, (100, 400))
"""Small fleets are where single requests count most."""


class World(t.NamedTuple):
    """``size`` nodes under ``mix``, after a lesson of ``other``."""

    mix: world.Mix
    other: world.Mix
    size: int


def made_up(number: int, sizes: Sizes = SMALL) -> World:
    """The world of that number."""
    rng = random.Random(f"world {number}")
    fleet = [_host(rng) for _each in range(rng.choice([1, 1, 2, 3, 5]))]
    mix = world.Mix(f"made-up {number}", _kinds(rng, fleet), fleet)
    learnt = world.Mix(f"learnt {number}", _kinds(rng, fleet), fleet)
    other = rng.choice([learnt, learnt, *world.MIXES.values()])
    weight = sum(host["weight"] for host in fleet)
    gpus = sum(host["weight"] * host["gpus"] for host in fleet) / weight
    asked = sum(each["weight"] * each["num_gpu"] * each["gpu_milli"] for each in mix.requests)
    asked /= sum(each["weight"] for each in mix.requests)
    most = min(sizes.gpus, sizes.requests / bench.ASKED * asked / 1000)
    return World(mix, other, max(8, min(rng.randint(*sizes.nodes), int(most / gpus))))


def _host(rng: random.Random) -> dict[str, t.Any]:
    gpus = rng.choice([1, 2, 4, 4, 8, 8, 8])
    cpus = gpus * rng.choice([6, 8, 12, 16, 24, 32])
    return {
        "weight": rng.randint(1, 10),
        "cpu_milli": 1000 * cpus,
        "memory_mib": world.GIB * cpus * rng.choice([3, 4, 6, 8]),
        "gpus": gpus,
        "model": rng.choice(MODELS),
    }


def _kinds(rng: random.Random, fleet: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Kinds of requests, each of which some host could take; at least one asks for a GPU."""
    count = rng.choice([rng.randint(2, 5), rng.randint(6, 12), rng.randint(13, 40)])
    tight, lean = rng.uniform(0.4, 1.2), rng.choice([1, 2, 4])
    bound = rng.choice([0.0, 0.0, 0.3])
    sorts = rng.choices(["cpu", "part", "one", "several"], [rng.random() * part for part in (0.5, 1, 1, 1)], k=count)
    if set(sorts) == {"cpu"}:
        sorts[0] = "one"
    return [_kind(rng, rng.choice(fleet), sort, tight, lean, bound) for sort in sorts]


def _kind(rng: random.Random, host: dict[str, t.Any], sort: str, tight: float, lean: int, bound: float) -> dict[str, t.Any]:
    gpus = {"cpu": 0, "several": rng.choice([2, 2, 4, 4, 8, 3])}.get(sort, 1)
    gpus = min(gpus, host["gpus"])
    milli = rng.choice(PARTS) if sort == "part" else 1000
    share = (gpus * milli / 1000 if gpus else rng.choice([0.1, 0.3, 1.0])) / host["gpus"]
    most = host["cpu_milli"]
    likely = share * most * tight
    cpus = [min(most, max(500, 500 * round(likely * rng.lognormvariate(0, 0.5) / 500))) for _each in range(rng.choice([1, 3, 5]))]
    ratio = host["memory_mib"] / world.GIB / (most / 1000)
    return {
        "weight": rng.choice([0.2, 1, 3, 10]),
        "num_gpu": gpus,
        "gpu_milli": milli,
        "cpu_milli": cpus,
        "gib": [ratio * part / lean for part in (0.5, 0.9, 1.0)],
        "gpu_spec": host["model"] if gpus and rng.random() < bound else "",
    }


def runs_of(one: World, seeds: list[str]) -> list[bench.Run]:
    """A fleet and a stream for each seed."""
    runs = []
    for seed in seeds:
        nodes = world.make_nodes(one.mix.fleet, one.size, seed)
        runs.append(bench.Run(nodes, world.stream(world.draw(one.mix, seed), bench.ASKED * world.capacity(nodes))))
    return runs


def compare(number: int, seeds: list[str], sizes: Sizes, violations: list[str]) -> dict[str, t.Any]:
    """The product beside the best baseline of one world, with the true mix known and with another one learnt."""
    one = made_up(number, sizes)
    runs = runs_of(one, seeds)
    known, other = (list(itertools.islice(world.draw(mix, "history"), bench.HISTORY)) for mix in (one.mix, one.other))
    case = bench.Case(one.mix.name, lambda seed: world.draw(one.mix, seed), lambda _seed: runs[0].nodes, known, one.other.name, other)
    peers = bench.peers_of(case, runs, seeds, violations)
    found: dict[str, t.Any] = {"world": number, "nodes": one.size, "gpus": world.capacity(runs[0].nodes) // 1000}
    for name, history in (("known", known), ("learnt_on_other", other)):
        done = bench.admit(*bench.plain(history, runs))
        shares = bench.shares_of(runs, done["places"], violations, f"{one.mix.name}, {name}")
        found[name] = {**bench.beside(shares, peers), "policies": done["policies"], "worst_ms": round(1000 * max(done["decisions_s"]), 1)}
    return found


def main() -> int:
    """0 when the judge finds nothing wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="0-19", help="numbers, first and last")
    parser.add_argument("--seeds", default="1,2,3", help="words, with commas")
    parser.add_argument("--large", action="store_true", help="fleets of up to 400 nodes and 500 GPUs")
    options = parser.parse_args()
    first, _dash, last = options.worlds.partition("-")
    violations: list[str] = []
    found = []
    for number in range(int(first), int(last or first) + 1):
        found.append(compare(number, options.seeds.split(","), LARGE if options.large else SMALL, violations))
        print(json.dumps(found[-1]), flush=True)
    for name in ("known", "learnt_on_other"):
        ahead = [one[name]["ahead"] for one in found]
        behind = sum(value < -0.1 for value in ahead)
        print(
            f"{name}: ahead by {statistics.fmean(ahead):.3f} on the mean of {len(ahead)}, at worst {min(ahead):.3f}, {behind} behind by 0.1"
        )
    print("\n".join(violations), end="")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
