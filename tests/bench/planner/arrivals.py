# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Online arrival until the fleet is full: how much of the GPUs is allocated, beside the policies of the literature.

Requests come in random order until they have asked for 130 % of the GPUs; each is tried once and nothing leaves. Run by ``run.py``, or by
itself with other seeds, mixes, traces and nodes::

    python tests/bench/planner/arrivals.py --mix default --mix my.json --seeds 7,8,9 --nodes-count 200
    python tests/bench/planner/arrivals.py --trace pods.csv --nodes nodes.csv --learn-on default
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
import typing as t
from collections import Counter
from pathlib import Path

if __name__ == "__main__":  # by itself: what run.py would have set
    sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "collections"), str(Path(__file__).resolve().parents[1])]

from ansible_collections.gpuops.fleet.tests.bench.planner import arrival_world as world
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_baselines import baselines
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_checks import complaints
from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_world import Node, Request
from ansible_collections.gpuops.fleet.tests.bench.planner.cold import cold

ASKED = 1.3
HISTORY = 2_000
QUICK = ("default", "cpu-tight", "cpu-tight-equal-hosts")
# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


class Case(t.NamedTuple):
    """One mix to measure: a source of requests and nodes for each seed, and what was known before: of the same kind and of another."""

    name: str
    requests: t.Callable[[str], t.Iterator[Request]]
    nodes: t.Callable[[str], list[Node]]
    known: list[Request]
    other_name: str
    other: list[Request]


class Run(t.NamedTuple):
    """One stream to be placed on one fleet."""

    nodes: list[Node]
    requests: list[Request]


def admit(history: list[tuple[t.Any, ...]], runs: list[tuple[list[tuple[t.Any, ...]], list[tuple[t.Any, ...]]]]) -> dict[str, t.Any]:
    """The product at work in a cold process: learn once, then each run from an empty fleet. Plain data in and out."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import arrivals as product
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import fragmentation, pool

    def fleet(nodes: list[tuple[t.Any, ...]]) -> list[t.Any]:
        return [pool.Node(name, fragmentation.Shape(*shape)) for name, *shape in nodes]

    start = time.process_time()
    lesson = product.learn(fleet(runs[0][0]), [fragmentation.Request(*each) for each in history])
    learning = time.process_time() - start
    answers, decisions, reviews, policies, clock = [], [], [], [], []
    for nodes, requests in runs:
        admission = product.Admission(fleet(nodes), lesson)
        places: list[tuple[str, tuple[int, ...]] | None] = []
        for each in requests:
            request = fragmentation.Request(*each)
            if admission.due:
                start = time.process_time()
                admission.review()
                reviews.append(time.process_time() - start)
            start, began = time.process_time(), time.perf_counter()
            place = admission.place(request)
            decisions.append(time.process_time() - start)
            clock.append(time.perf_counter() - began)
            places.append(None if place is None else (place.node, place.gpus))
        answers.append(places)
        policies.append(admission.lesson.policy)
    seconds = {"learning_s": learning, "decisions_s": decisions, "reviews_s": reviews, "clock_s": clock}
    return {"places": answers, **seconds, "policies": sorted(set(policies))}


def plain(history: list[Request], runs: list[Run]) -> tuple[t.Any, t.Any]:
    """Both as plain data, for ``admit``."""
    return [tuple(each) for each in history], [
        ([tuple(node) for node in run.nodes], [tuple(each) for each in run.requests]) for run in runs
    ]


def shares_of(runs: list[Run], answers: list[t.Any], violations: list[str], what: str) -> list[float]:
    """Per cent of the GPUs allocated in each run; what the judge says goes to ``violations``."""
    found = []
    for number, (run, places) in enumerate(zip(runs, answers, strict=True)):
        violations += [f"{what}, run {number}: {text}" for text in complaints(run.nodes, run.requests, places)[:5]]
        placed = sum(request.size for request, place in zip(run.requests, places, strict=True) if place is not None)
        found.append(100 * placed / world.capacity(run.nodes))
    return found


def interval(values: list[float]) -> list[float] | None:
    """[low, high] that holds the mean with 95 % confidence; None for one value."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return [round(mean - half, 3), round(mean + half, 3)]


def beside(ours: list[float], theirs: dict[str, list[float]]) -> dict[str, t.Any]:
    """Our share beside the best of theirs (by the mean), the differences taken seed by seed."""
    best = max(sorted(theirs), key=lambda name: statistics.fmean(theirs[name]))
    ahead = [mine - other for mine, other in zip(ours, theirs[best], strict=True)]
    return {
        "share": round(statistics.fmean(ours), 3),
        "best_baseline": best,
        "ahead": round(statistics.fmean(ahead), 3),
        "ahead_95": interval(ahead),
        "least_ahead": round(min(ahead), 3),
    }


def peers_of(case: Case, runs: list[Run], seeds: list[str], violations: list[str]) -> dict[str, list[float]]:
    """Shares of every baseline; FGD knows the true mix."""
    found: dict[str, list[float]] = {}
    for run, seed in zip(runs, seeds, strict=True):
        for name, make in baselines(run.nodes, case.known, seed).items():
            policy = make()
            answers = [policy.place(request) for request in run.requests]
            places = [None if place is None else (policy.nodes[place[0]].name, place[1]) for place in answers]
            found.setdefault(name, []).extend(shares_of([run], [places], violations, f"{case.name}, {name}"))
    return found


def most_possible(run: Run) -> float:
    """Per cent of the GPUs that nobody can exceed, not even who knows the stream and may refuse: all nodes of a shape as one.

    A linear program over kinds and shapes. That single nodes and GPUs have borders is no part of it: it is above what can be reached.
    """
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import Program

    room: dict[tuple[t.Any, ...], int] = Counter(tuple(node[1:]) for node in run.nodes)
    asked = Counter(request for request in run.requests if request.size)
    program = Program()
    kinds = {kind: program.add_rows(1, upper=count)[0] for kind, count in asked.items()}
    for (cpu, memory, gpus, model), count in room.items():
        rows = program.add_rows(3, upper=[count * cpu / 1000, count * memory / 1024, count * gpus])
        for kind, row in kinds.items():
            if kind.cpu <= cpu and kind.memory <= memory and kind.gpus <= gpus and (not kind.models or model in kind.models):
                column = program.add_columns(1, cost=-kind.size / 1000)
                program.add_entries([row, *rows], column, [1, kind.cpu / 1000, kind.memory / 1024, kind.size / 1000])
    return -100_000 * program.solve().objective / world.capacity(run.nodes)


def ordered(nodes: list[Node], order: str) -> list[Node]:
    """The same hardware under names in the order of the hardware, or the reverse of it; listed in that order."""
    inventory = sorted(nodes, key=lambda node: node[1:], reverse=order == "reversed")
    width = len(str(len(nodes)))
    return [node._replace(name=f"node-{number:0{width}}") for number, node in enumerate(inventory)]


def measure_case(case: Case, seeds: list[str], orders: int, violations: list[str]) -> dict[str, t.Any]:
    """All figures of one mix. ``orders``: of how many seeds the nodes are put into other orders."""
    runs = []
    for seed in seeds:
        nodes = case.nodes(seed)
        runs.append(Run(nodes, world.stream(case.requests(seed), ASKED * world.capacity(nodes))))
    sorted_by = {order: [run._replace(nodes=ordered(run.nodes, order)) for run in runs[:orders]] for order in ("by hardware", "reversed")}
    every = [*runs, *itertools.chain.from_iterable(sorted_by.values())]
    known = cold("planner.arrivals", "admit", *plain(case.known, every), hash_seed=1)
    other = cold("planner.arrivals", "admit", *plain(case.other, runs), hash_seed=2)
    shares = shares_of(every, known.answer["places"], violations, case.name)
    peers = peers_of(case, runs, seeds, violations)
    ours, rest = shares[: len(runs)], shares[len(runs) :]
    orders_lost: dict[str, t.Any] = {}
    for number, (order, turned) in enumerate(sorted_by.items()):
        lost = [was - now for was, now in zip(ours, rest[number * orders : (number + 1) * orders], strict=False)]
        names = {
            name: baselines(run.nodes, case.known, seed)[name]()
            for run, seed in zip(turned[:1], seeds, strict=False)
            for name in ("fgd", "first-fit")
        }
        theirs = {}
        for name, policy in names.items():
            placed = sum(request.size for request in turned[0].requests if policy.place(request) is not None)
            theirs[name] = round(peers[name][0] - 100 * placed / world.capacity(turned[0].nodes), 3)
        orders_lost[order] = {"lost": round(max(lost), 3), "lost_by_baselines": theirs}
    return {
        "gpus": world.capacity(runs[0].nodes) // 1000,
        "nodes": len(runs[0].nodes),
        "requests": len(runs[0].requests),
        "seeds": seeds,
        "bound": round(statistics.fmean(most_possible(run) for run in runs), 3),
        "known": {**beside(ours, peers), "policies": known.answer["policies"], **_times(known)},
        "learnt_on_other": {
            "mix": case.other_name,
            **beside(shares_of(runs, other.answer["places"], violations, f"{case.name} learnt on {case.other_name}"), peers),
            "policies": other.answer["policies"],
            **_times(other),
        },
        "baselines": {name: round(statistics.fmean(values), 3) for name, values in peers.items()},
        "orders": orders_lost,
    }


def _times(run: t.Any) -> dict[str, t.Any]:
    """CPU of decisions, reviews and learning as the process sees it (and decisions on the clock); of all of it from outside."""
    decisions = sorted(run.answer["decisions_s"])
    reviews = run.answer["reviews_s"]
    return {
        "decision_cpu_ms": {
            "mean": round(1000 * statistics.fmean(decisions), 3),
            "p99": round(1000 * decisions[int(0.99 * len(decisions))], 3),
            "worst": round(1000 * decisions[-1], 3),
            "mean_with_reviews": round(1000 * (sum(decisions) + sum(reviews)) / len(decisions), 3),
        },
        "decision_clock_ms": {
            "mean": round(1000 * statistics.fmean(run.answer["clock_s"]), 3),
            "worst": round(1000 * max(run.answer["clock_s"]), 3),
        },
        "slowest_review_s": round(max(reviews, default=0.0), 3),
        "learning_s": round(run.answer["learning_s"], 3),
        "process": run.figures,
    }


def large(mix: world.Mix, seed: str, count: int, violations: list[str]) -> dict[str, t.Any]:
    """One run on many nodes: the time of a decision."""
    nodes = world.make_nodes(mix.fleet, count, seed)
    run = Run(nodes, world.stream(world.draw(mix, seed), ASKED * world.capacity(nodes)))
    history = list(itertools.islice(world.draw(mix, "history"), HISTORY))
    done = cold("planner.arrivals", "admit", *plain(history, [run]))
    peers = {}
    for name in ("first-fit", "fgd", "fgd-interleaved"):
        policy = baselines(nodes, history, seed)[name]()
        start = time.process_time()
        placed = sum(request.size for request in run.requests if policy.place(request) is not None)
        spent = time.process_time() - start
        peers[name] = {
            "share": round(100 * placed / world.capacity(nodes), 3),
            "decision_cpu_ms": round(1000 * spent / len(run.requests), 3),
        }
    share = shares_of([run], done.answer["places"], violations, f"{mix.name} on {count} nodes")[0]
    return {
        "mix": mix.name,
        "nodes": len(nodes),
        "requests": len(run.requests),
        "share": round(share, 3),
        **_times(done),
        "baselines": peers,
    }


def built_in(mix: world.Mix, other: world.Mix, count: int) -> Case:
    """A case of a named mix, or one of a file."""
    return Case(
        mix.name,
        lambda seed: world.draw(mix, seed),
        lambda seed: world.make_nodes(mix.fleet, count, seed),
        list(itertools.islice(world.draw(mix, "history"), HISTORY)),
        other.name,
        list(itertools.islice(world.draw(other, "history"), HISTORY)),
    )


def same_again(case: Case, violations: list[str]) -> None:
    """Another hash seed and another order of the same nodes give the same places."""
    nodes = case.nodes("again")
    requests = world.stream(case.requests("again"), ASKED * world.capacity(nodes))
    first = cold("planner.arrivals", "admit", *plain(case.other, [Run(nodes, requests)]), hash_seed=3)
    second = cold("planner.arrivals", "admit", *plain(case.other[::-1], [Run(nodes[::-1], requests)]), hash_seed=4)
    if first.answer["places"] != second.answer["places"]:
        violations.append(f"{case.name}: places depend on the hash seed or on the order of the input")


def measure(quick: bool) -> dict[str, t.Any]:
    """Figures for every built-in mix and that of a published trace; each is also placed with what was learnt on another one."""
    violations: list[str] = []
    names = list(world.MIXES)
    seeds = ["1", "2"] if quick else [str(number) for number in range(1, 6)]
    count = 24 if quick else 120
    pairs = [(name, names[(place + 3) % len(names)]) for place, name in enumerate(names)]
    cases = [built_in(world.MIXES[name], world.MIXES[other], count) for name, other in pairs if not quick or name in QUICK]
    if not quick:
        cases.append(built_in(world.read_mix(world.PUBLISHED), world.MIXES["default"], count))
    mixes = {case.name: measure_case(case, seeds, 1, violations) for case in cases}
    same_again(built_in(world.MIXES["default"], world.MIXES["cpu-tight"], 24), violations)
    return {
        "mixes": mixes,
        "ahead": round(statistics.fmean(one["known"]["ahead"] for one in mixes.values()), 3),
        "least_ahead_known": round(min(one["known"]["ahead"] for one in mixes.values()), 3),
        "least_ahead_learnt_on_other": round(min(one["learnt_on_other"]["ahead"] for one in mixes.values()), 3),
        "most_lost_by_order": max(order["lost"] for one in mixes.values() for order in one["orders"].values()),
        "large": large(world.MIXES["default"], "1", 60 if quick else 1200, violations),
        "violations": violations,
    }


def _mix(text: str) -> world.Mix:
    return world.MIXES[text] if text in world.MIXES else world.read_mix(Path(text))


def _cases(options: argparse.Namespace) -> list[Case]:
    other = _mix(options.learn_on)
    nodes = world.read_nodes(options.nodes) if options.nodes else None

    def with_nodes(case: Case) -> Case:
        return case if nodes is None else case._replace(nodes=lambda _seed: nodes)

    cases = [with_nodes(built_in(_mix(name), other, options.nodes_count)) for name in options.mix]
    if options.trace:
        trace = world.read_trace(options.trace)
        fleet = world.Mix(options.trace.stem, [], world.HOSTS)
        history = list(itertools.islice(world.draw(other, "history"), HISTORY))
        cases.append(
            with_nodes(
                Case(
                    options.trace.stem,
                    lambda seed: world.again(trace, seed),
                    lambda seed: world.make_nodes(fleet.fleet, options.nodes_count, seed),
                    trace,
                    other.name,
                    history,
                )
            )
        )
    return cases


def main(words: list[str] | None = None) -> int:
    """0 when the judge finds nothing wrong."""
    parser = argparse.ArgumentParser(prog="arrivals.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", action="append", default=[], help=f"{', '.join(world.MIXES)}, or a JSON file; may be given several times")
    parser.add_argument("--trace", type=Path, help="CSV: cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec")
    parser.add_argument("--nodes", type=Path, help="CSV: sn, cpu_milli, memory_mib, gpu, model; made up if left out")
    parser.add_argument("--nodes-count", type=int, default=120, help="of those made up")
    parser.add_argument("--seeds", default="1,2,3", help="words, with commas")
    parser.add_argument("--learn-on", default="share-heavy", help="the other mix that is learnt in the second column")
    options = parser.parse_args(words)
    seeds = [seed for seed in options.seeds.split(",") if seed]
    if not options.mix and not options.trace:
        parser.error("give --mix or --trace")
    if not seeds or options.nodes_count < 1:
        parser.error("give at least one seed and one node")
    try:
        cases = _cases(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    violations: list[str] = []
    found = {case.name: measure_case(case, seeds, 1, violations) for case in cases}
    print(json.dumps({"mixes": found, "violations": violations}, indent=1))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
