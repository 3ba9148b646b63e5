# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is the cause that a plan names the one that was planted, and does the change that it tells give the service its place?

The change is made here, by its data and with no code of the product; the fleet is planned again, and an independent checker judges.
"""

from __future__ import annotations

import dataclasses
import time
import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.tests.bench.planner import planted
from ansible_collections.gpuops.fleet.tests.unit.planner_checker import complaints


def applied(problem: t.Any, edits: t.Iterable[t.Any]) -> t.Any:
    """The problem with every edit made, as plain data of frozen parts; the last edit of a value counts."""
    gpus = {host.name: list(host.gpus) for host in problem.hosts}
    originals = {host.name: host for host in problem.hosts}
    needs = list(problem.needs)
    fleet: dict[str, t.Any] = {}
    more: list[t.Any] = []
    for part, name, field, value in edits:
        if field == "bars":
            theirs = [each for each in needs if part == "host" or each.service == name]
            needs = [_opened(each, value, name if part == "host" else "") if each in theirs else each for each in needs]
        elif part == "service":
            needs = [_set(need, field, value) if need.service == name else need for need in needs]
        elif part == "host":
            originals[name] = _set(originals[name], field, value)
        elif part == "gpu":
            for host, several in gpus.items():
                gpus[host] = [_set(gpu, field, value) if gpu.uuid == name else gpu for gpu in several]
        elif field == "hosts":
            more.extend(value)
        else:
            fleet[field] = value
    rebuilt = [dataclasses.replace(host, gpus=tuple(gpus[name])) for name, host in originals.items()]
    return dataclasses.replace(problem, hosts=(*rebuilt, *more), needs=tuple(needs), **fleet)


def _opened(need: t.Any, deed: t.Any, host: str) -> t.Any:
    """A copy that the gate refuses no more where what is done was all that it asked for; on one host, or on all without one."""
    left = {place: shut for place, shut in need.bars.items() if host not in ("", place[0]) or set(shut.missing) != {deed}}
    return dataclasses.replace(need, bars=left)


def _set(thing: t.Any, path: str, value: t.Any) -> t.Any:
    """A copy with one value set, at ``field`` or ``field.part``."""
    field, *part = path.split(".")
    if part:
        value = dataclasses.replace(getattr(thing, field), **{part[0]: value})
    return dataclasses.replace(thing, **{field: value})


def judged(case: planted.Case) -> dict[str, t.Any]:
    """What became of one case; ``wrong``: lines for what is a violation."""
    solution = make_plan(case.problem)
    missing = sorted(each.replica for each in solution.unplaced if each.service == planted.TARGET)
    control = [each for each in make_plan(case.control).unplaced if each.service == planted.TARGET]
    if not missing or control:
        return {"name": case.name, "planted": False, "wrong": []}
    proposals = {(each.service, each.replica): each for each in propose(case.problem, solution, case.leases, planted.BOARDS)}
    told = proposals[(planted.TARGET, missing[0])]
    again = dataclasses.replace(case.problem, previous=(*solution.placements, *solution.waiting), changed=frozenset())
    wrong = [f"{case.name}: {line}" for line in complaints(case.problem, solution)]
    fresh = 0
    for change in told.changes:
        lines = _effect(applied(again, change.edits), solution, missing[0], change)
        wrong += [f"{case.name}: {change.sentence}: {line}" for line in lines]
        after = make_plan(applied(case.problem, change.edits))
        fresh += any((each.service, each.replica) == (planted.TARGET, missing[0]) for each in after.placements)
    return {
        "name": case.name,
        "planted": True,
        "cause": case.cause,
        "named": told.cause,
        "changes": [(change.kind, change.sentence) for change in told.changes],
        "fresh": fresh,
        "reason": next(each.reason for each in solution.unplaced if (each.service, each.replica) == (planted.TARGET, missing[0])),
        "wrong": wrong,
    }


def _effect(problem: t.Any, before: t.Any, replica: int, change: t.Any) -> list[str]:
    """What is wrong with the plan after the change: the replica has no place, somebody has lost one, or a rule is broken."""
    after = make_plan(problem)
    places = {(each.service, each.replica) for each in after.placements}
    lines = [] if (planted.TARGET, replica) in places else ["the replica has no place"]
    had = {(each.service, each.replica) for each in before.placements}
    lines += [f"{service}-{number} lost its place" for service, number in sorted(had - places) if f"{service}-{number}" not in change.lost]
    return lines + complaints(problem, after)


def explained(problem: t.Any) -> tuple[t.Any, list[t.Any]]:
    """A plan and its explanations, as every planning run makes them."""
    solution = make_plan(problem)
    return solution, propose(problem, solution)


def companies(quick: bool) -> tuple[list[dict[str, t.Any]], list[str]]:
    """1,000 services on 200 GPUs, planned and explained in a cold process; some of the changes that are told are tried in the whole fleet.

    Whoever has no place and is told of no change counts as a violation.
    """
    # Only here: tests that judge a case know nothing of the path that the benchmark sets.
    from ansible_collections.gpuops.fleet.tests.bench.planner import small_fleet
    from ansible_collections.gpuops.fleet.tests.bench.planner.cold import cold

    figures, wrong = [], []
    for services, seed in ((1000, 1),) if quick else ((700, 1), (1000, 1), (1000, 2), (1300, 1)):
        problem = small_fleet.world(services, 200, seed)
        run = cold("planner.explanations", "explained", problem)
        solution, proposals = run.answer
        again = dataclasses.replace(problem, previous=(*solution.placements, *solution.waiting), changed=frozenset())
        told = [each for each in proposals if each.changes]
        different = {each.changes[0].sentence: each for each in told}
        tried = list(different.values())[:: max(1, len(different) // (2 if quick else 8))]
        places = {(each.service, each.replica) for each in solution.placements}
        held = 0
        for each in tried:
            after = make_plan(applied(again, each.changes[0].edits))
            now = {(place.service, place.replica) for place in after.placements}
            lost = sorted(f"{service}-{number}" for service, number in places - now)
            good = (each.service, each.replica) in now and set(lost) <= set(each.changes[0].lost)
            held += good
            wrong += (
                [] if good else [f"{services} services, seed {seed}: {each.service}-{each.replica}: {each.changes[0].sentence}: {lost}"]
            )
        silent = [f"{each.service}-{each.replica}" for each in proposals if not each.changes]
        wrong += [f"{services} services, seed {seed}: {len(silent)} are told of no change, {silent[0]} first"] if silent else []
        counts = {"placed": len(solution.placements), "unplaced": len(solution.unplaced), "with_a_change": len(told)}
        figures.append({"services": services, "seed": seed, **counts, "tried": len(tried), "held": held, **run.figures})
    return figures, wrong


def measure(quick: bool) -> dict[str, t.Any]:
    """Counts of what was planted, named and mended; ``violations``: changes that were told and do not do what they say."""
    before = time.process_time()
    results = [judged(case) for case in planted.cases(quick)]
    valid = [each for each in results if each["planted"]]
    named = [each for each in valid if each["named"] == each["cause"]]
    mended = [each for each in valid if each["changes"] and not each["wrong"]]
    fleets, wrong = companies(quick)
    return {
        "fleets": fleets,
        "fleets_target_seconds": 2,
        "cases": len(valid),
        "not_planted": [each["name"] for each in results if not each["planted"]],
        "cause_right": round(len(named) / max(len(valid), 1), 4),
        "change_told_and_places": round(len(mended) / max(len(valid), 1), 4),
        "changes_told": sum(len(each["changes"]) for each in valid),
        "changes_that_also_place_in_a_plan_from_before": sum(each["fresh"] for each in valid),
        "causes": sorted({each["cause"] for each in valid}),
        "wrong_causes": [(each["name"], each["cause"], each["named"]) for each in valid if each not in named],
        "without_a_change": [each["name"] for each in valid if not each["changes"]],
        "cpu_seconds": round(time.process_time() - before, 2),
        "violations": [*(line for each in results for line in each["wrong"]), *wrong],
    }
