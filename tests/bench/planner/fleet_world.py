# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Large fleets and what is asked of them, as plain data from a seed: six models, host kinds that differ in CPU and RAM, teams with quotas.

Demand is 115 % of what the GPUs hold. CPU and RAM per replica follow its GPU memory with a wide spread, so that they bind on the lean
host kinds and not on the rich ones. Almost half of the teams asks for more than its quota, some of them for twice as much.
"""

from __future__ import annotations

import math
import random
import typing as t

GIB = 1024
SEVENTHS = {
    "a100-40": (
        ("1g.5gb", 4864, 1, 1),
        ("1g.10gb", 9856, 1, 2),
        ("2g.10gb", 9856, 2, 2),
        ("3g.20gb", 19968, 3, 4),
        ("4g.20gb", 19968, 4, 4),
    ),
    "a100-80": (
        ("1g.10gb", 9728, 1, 1),
        ("1g.20gb", 19968, 1, 2),
        ("2g.20gb", 19968, 2, 2),
        ("3g.40gb", 40448, 3, 4),
        ("4g.40gb", 40448, 4, 4),
    ),
    "h100-80": (
        ("1g.10gb", 9984, 1, 1),
        ("1g.20gb", 20224, 1, 2),
        ("2g.20gb", 20224, 2, 2),
        ("3g.40gb", 40448, 3, 4),
        ("4g.40gb", 40448, 4, 4),
    ),
    "h200-141": (
        ("1g.18gb", 16384, 1, 1),
        ("1g.35gb", 33792, 1, 2),
        ("2g.35gb", 33792, 2, 2),
        ("3g.71gb", 71680, 3, 4),
        ("4g.71gb", 71680, 4, 4),
    ),
}
FULL = {"a100-40": ("7g.40gb", 40192), "a100-80": ("7g.80gb", 81152), "h100-80": ("7g.80gb", 81152), "h200-141": ("7g.141gb", 143872)}
STARTS = {(1, 1): [0, 1, 2, 3, 4, 5, 6], (1, 2): [0, 2, 4, 6], (2, 2): [0, 2, 4], (3, 4): [0, 4], (4, 4): [0], (7, 8): [0]}
MOST = {(1, 1): 7, (1, 2): 4, (2, 2): 3, (3, 4): 2, (4, 4): 1, (7, 8): 1}
# model: (GiB, share of the fleet's GPUs, MPS clients, host kinds as (GPUs, cores, RAM in GiB, share of the model's GPUs))
MODELS: dict[str, tuple[int, float, int, tuple[tuple[int, int, int, float], ...]]] = {
    "a100-40": (40, 0.15, 0, ((8, 124, 1000, 0.4), (8, 92, 488, 0.3), (4, 60, 488, 0.3))),
    "a100-80": (80, 0.20, 0, ((8, 124, 1000, 0.5), (8, 92, 1000, 0.3), (4, 60, 488, 0.2))),
    "h100-80": (80, 0.25, 0, ((8, 108, 1000, 0.5), (8, 188, 2024, 0.5))),
    "h200-141": (141, 0.10, 0, ((8, 188, 2024, 0.6), (8, 124, 1512, 0.4))),
    "l40s-48": (45, 0.18, 48, ((4, 60, 488, 0.4), (8, 124, 744, 0.4), (8, 92, 488, 0.2))),
    "t4-16": (15, 0.12, 16, ((4, 44, 248, 0.5), (4, 28, 184, 0.3), (8, 92, 376, 0.2))),
}
TEAMS = 20
# What is asked for, in parts of what the fleet holds; how much more some services ask for than others (sigma of a log-normal).
LOAD, UNEVEN = 1.15, 0.9


def geometry(model: str) -> dict[str, t.Any]:
    """MIG geometry of a model as the host facts write it."""
    full, memory = FULL[model]
    profiles = [
        {
            "name": name,
            "id": number,
            "slices": slices,
            "size": size,
            "memory_mib": mib,
            "sm": 14 * slices,
            "max": MOST[slices, size],
            "starts": STARTS[slices, size],
        }
        for number, (name, mib, slices, size) in enumerate((*SEVENTHS[model], (full, memory, 7, 8)))
    ]
    return {"compute_slices": 7, "memory_slices": 8, "profiles": profiles}


def models() -> list[dict[str, t.Any]]:
    """The six models."""
    return [
        {
            "name": name,
            "memory_mib": gib * GIB,
            "geometry": geometry(name) if name in SEVENTHS else None,
        }
        for name, (gib, *_others) in MODELS.items()
    ]


def hosts(gpus: int) -> list[dict[str, t.Any]]:
    """Hosts with ``gpus`` GPUs in all, or a few more; small fleets have fewer kinds."""
    found: list[dict[str, t.Any]] = []
    wanted = [(share * part * gpus, name, kind) for name, (_g, share, _c, kinds) in MODELS.items() for *kind, part in kinds]
    open_gpus = float(gpus)
    for ideal, name, (per_host, cores, ram) in sorted(wanted, key=lambda each: -each[0]):
        number = (
            math.ceil(ideal / per_host - 1e-9)
            if gpus >= 1000
            else min(max(1, round(ideal / per_host)), int(open_gpus // min(per_host, open_gpus or 1)))
        )
        for index in range(number):
            if open_gpus < 1 and gpus < 1000:
                return found
            here = per_host if gpus >= 1000 else int(min(per_host, open_gpus))
            open_gpus -= here
            found.append(
                {
                    "name": f"{name}-{cores}-{index:05}",
                    "model": name,
                    "gpus": here,
                    "cpus": cores * here / per_host,
                    "ram_mib": ram * GIB * here // per_host,
                    "modes": ("mig", "whole") if name in SEVENTHS else ("shared", "whole"),
                    "clients": MODELS[name][2],
                }
            )
    return found


def _service(rng: random.Random, number: int) -> dict[str, t.Any]:
    """One class without its number of replicas."""
    isolation = rng.choices(("slice", "shared", "exclusive"), (0.56, 0.30, 0.14))[0]
    rule: dict[str, tuple[str, ...]] = {"models": (), "not_models": ()}
    draw = rng.random()
    if isolation == "exclusive":
        memory, compute = rng.choice((12, 14, 24, 36, 40, 60, 72, 76, 100, 130)) * GIB, 1.0
    elif isolation == "slice":
        memory = rng.choices((4, 8, 9, 14, 16, 18, 30, 32, 38, 60), (10, 14, 14, 10, 14, 10, 8, 8, 8, 4))[0] * GIB
        compute = rng.choices((0.0, 1 / 7, 2 / 7, 3 / 7, 4 / 7), (30, 30, 20, 12, 8))[0]
    else:
        memory = rng.choices((1, 2, 3, 4, 5, 6, 7, 9, 11, 14, 20, 28), (8, 12, 12, 14, 10, 12, 8, 8, 6, 5, 3, 2))[0] * GIB
        compute = rng.choices((0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5), (16, 24, 18, 16, 12, 8, 6))[0]
    family = {"shared": ("l40s-48", "t4-16"), "slice": tuple(SEVENTHS), "exclusive": tuple(MODELS)}[isolation]
    big = memory / (40 * GIB)
    if draw < 0.2:
        rule["models"] = tuple(sorted(rng.sample(family, rng.randint(1, min(3, len(family))))))
    elif draw < 0.35:
        rule["not_models"] = (rng.choice(family),)
    cpus = max(0.5, round(2 * (0.5 + (10 if isolation == "exclusive" else 9) * min(big, 1.2)) * rng.uniform(0.4, 1.7)) / 2)
    ram = max(1, round((2 + 60 * min(big, 1.5)) * rng.uniform(0.4, 1.8)))
    return {
        "key": f"service-{number:04}",
        "team": f"team-{min(int(rng.expovariate(0.14)), TEAMS - 1):02}",
        "priority": rng.choices((3, 2, 1), (0.25, 0.35, 0.40))[0],
        "isolation": isolation,
        "memory_mib": memory,
        "compute": compute,
        **rule,
        "cpus": cpus,
        "ram_mib": ram * GIB,
        "max_per_host": rng.choices((None, 1, 2, 4, 8), (50, 8, 14, 14, 14))[0],
    }


def _size(one: dict[str, t.Any], capacity: dict[str, int]) -> float:
    """GPUs that a replica takes on the smallest of the fleet's models that may serve it; 0 when none may."""
    found = []
    for name, (gib, *_others) in MODELS.items():
        if (
            name not in capacity
            or name in one["not_models"]
            or (one["models"] and name not in one["models"])
            or one["memory_mib"] > gib * GIB
        ):
            continue
        if one["isolation"] == "exclusive":
            found.append(1.0)
        elif one["isolation"] == "slice" and name in SEVENTHS:
            fitting = [
                max(size / 8, slices / 7)
                for _n, mib, slices, size in SEVENTHS[name]
                if mib >= one["memory_mib"] and slices / 7 >= one["compute"] - 1e-9
            ]
            found += [min(fitting, default=1.0)]
        elif one["isolation"] == "shared" and name not in SEVENTHS:
            found.append(max(one["memory_mib"] / gib / GIB, one["compute"]))
    return min(found, default=0.0)


def world(
    gpus: int,
    classes: int,
    seed: int,
    load: float = LOAD,
    *,
    harsh: bool = False,
    unlike: float = 0.0,
    uneven: float = UNEVEN,
    step: int = 0,
    several: float = 0.0,
    lean: float = 1.0,
) -> dict[str, t.Any]:
    """A whole problem: ``models``, ``hosts``, ``classes`` and ``quotas``, lists of plain dicts. ``load``: demand over capacity.

    ``harsh``: the tightest quotas do not even hold what their team asks for with the highest priority. ``unlike``: each host has up to this
    part of its CPU and RAM more or less, in whole cores and MiB, so that no two are equal. ``uneven``: as :data:`UNEVEN`. ``step``: who
    shares GPUs has any multiple of so many MiB and not one of twelve sizes. ``several``: the part of the services with whole GPUs of which
    a replica has two, four or eight. ``lean``: hosts have this part of their cores, and of their RAM.
    """
    rng = random.Random(seed)
    machines = _different(hosts(gpus), seed, unlike) if unlike else hosts(gpus)
    if lean != 1.0:
        machines = [{**host, "cpus": round(host["cpus"] * lean), "ram_mib": int(host["ram_mib"] * lean)} for host in machines]
    capacity: dict[str, int] = {}
    for host in machines:
        capacity[host["model"]] = capacity.get(host["model"], 0) + host["gpus"]
    drawn = [(_service(rng, number), rng.lognormvariate(0.0, uneven)) for number in range(classes)]
    if step:
        _stepped([one for one, _weight in drawn], seed, step)
    if several:
        _enlarged([one for one, _weight in drawn], seed, several)
    services = [(one, weight, _size(one, capacity) * one.get("count", 1)) for one, weight in drawn]
    asked = []
    shared = sum(part for name, part in capacity.items() if name not in SEVENTHS)
    # Each part of the fleet gets its part of the demand: shared work can only run on shared GPUs.
    for kind, room in (("shared", shared * 0.85), ("other", sum(capacity.values()) - shared * 0.85)):
        mine = [(one, weight, size) for one, weight, size in services if (one["isolation"] == "shared") == (kind == "shared") and size]
        total = sum(weight for _one, weight, _size_of in mine) or 1.0
        for one, weight, size in mine:
            asked.append({**one, "replicas": max(1, round(load * room * weight / total / size))})
    quotas = []
    for team in sorted({one["team"] for one in asked}):
        memory = sum(one["replicas"] * one["memory_mib"] * one.get("count", 1) for one in asked if one["team"] == team)
        tight = rng.choices(((0.15, 0.35) if harsh else (0.35, 0.6), (0.6, 1.0), (1.1, 2.0)), (15, 30, 55))[0]
        quotas.append({"team": team, "memory_mib": int(memory * rng.uniform(*tight)) + 16 * GIB})
    return {"models": models(), "hosts": machines, "classes": asked, "quotas": quotas}


def _stepped(services: list[dict[str, t.Any]], seed: int, step: int) -> None:
    """Give those that share GPUs 0.6 to 1.2 times as much memory, in multiples of ``step`` MiB."""
    chance = random.Random(seed)
    for one in services:
        if one["isolation"] == "shared":
            one["memory_mib"] = step * max(1, round(one["memory_mib"] * chance.uniform(0.6, 1.2) / step))


def _enlarged(services: list[dict[str, t.Any]], seed: int, several: float) -> None:
    """Give replicas of this part of those with whole GPUs several of them, each with the CPU and RAM that one has."""
    chance = random.Random(seed)
    for one in services:
        if one["isolation"] == "exclusive" and chance.random() < several:
            count = chance.choice((2, 2, 4, 8))
            one.update(count=count, cpus=one["cpus"] * count, ram_mib=one["ram_mib"] * count)


def _different(machines: list[dict[str, t.Any]], seed: int, unlike: float) -> list[dict[str, t.Any]]:
    chance = random.Random(seed)
    parts = [(chance.uniform(1 - unlike, 1 + unlike), chance.uniform(1 - unlike, 1 + unlike)) for _host in machines]
    return [
        {**host, "cpus": round(host["cpus"] * cpus), "ram_mib": int(host["ram_mib"] * ram)}
        for host, (cpus, ram) in zip(machines, parts, strict=True)
    ]


def doubled(problem: dict[str, t.Any]) -> dict[str, t.Any]:
    """Each host twice, and twice as much of all that is asked for and allowed."""
    return {
        **problem,
        "hosts": [{**host, "name": f"{host['name']}{half}"} for host in problem["hosts"] for half in "ab"],
        "classes": [{**one, "replicas": 2 * one["replicas"]} for one in problem["classes"]],
        "quotas": [{**quota, "memory_mib": 2 * quota["memory_mib"]} for quota in problem["quotas"]],
    }
