# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is a whole fleet's plan allowed? Written from the rules alone, on plain data; shares no code with plugins/.

A plan's rows are (class, replica, host, GPU, mode, profile, start), one for each GPU of each replica.
"""

from __future__ import annotations

import typing as t
from collections import Counter, defaultdict

GIB = 1024
MODE = {"exclusive": "whole", "slice": "mig", "shared": "shared"}
Problem = dict[str, t.Any]
Rows = list[tuple[t.Any, ...]]


def violations(problem: Problem, rows: Rows, limit: int = 20) -> list[str]:
    """What is wrong with a plan, at most ``limit`` lines; empty when it is allowed."""
    found: list[str] = []
    for check in (_replicas, _gpus, _hosts, _quotas):
        found += check(problem, rows)
    return found[:limit]


def served(problem: Problem, rows: Rows) -> dict[int, int]:
    """Replicas served, by priority."""
    priority = {one["key"]: one["priority"] for one in problem["classes"]}
    count = dict.fromkeys(priority.values(), 0)
    for key, _replica in {(row[0], row[1]) for row in rows}:
        count[priority[key]] += 1
    return count


def opened(rows: Rows) -> int:
    """GPUs in use."""
    return len({(row[2], row[3]) for row in rows})


def _replicas(problem: Problem, rows: Rows) -> list[str]:
    """Every replica once, with all of its GPUs on one host, each of them right for its class."""
    classes = {one["key"]: one for one in problem["classes"]}
    hosts = {host["name"]: host for host in problem["hosts"]}
    models = {model["name"]: model for model in problem["models"]}
    found, where = [], defaultdict(list)
    for key, replica, name, gpu, mode, profile, _start in rows:
        if key not in classes or name not in hosts or not 0 <= gpu < hosts[name]["gpus"]:
            found.append(f"{key} {replica}: there is no such class, host or GPU ({name} {gpu})")
            continue
        where[key, replica].append((name, gpu))
        problem_here = _unfit(classes[key], hosts[name], models[hosts[name]["model"]], mode, profile)
        if problem_here:
            found.append(f"{key} {replica} on {name}: {problem_here}")
    count = Counter(key for key, _replica in where)
    found += [
        f"{key}: {number} of {classes[key]['replicas']} replicas" for key, number in count.items() if number > classes[key]["replicas"]
    ]
    for (key, replica), places in where.items():
        if len(places) != classes[key].get("count", 1) or len(set(places)) != len(places) or len({host for host, _gpu in places}) > 1:
            found.append(f"{key} {replica}: has {places}")
    return found


def _unfit(one: dict[str, t.Any], host: dict[str, t.Any], model: dict[str, t.Any], mode: str, profile: str) -> str | None:
    """Why this class may not have this; None when it may."""
    if mode != MODE[one["isolation"]] or mode not in host["modes"]:
        return f"mode {mode}"
    if model["name"] in one.get("not_models", ()) or (one.get("models") and model["name"] not in one["models"]):
        return f"model {model['name']}"
    if mode == "mig":
        found = [each for each in model["geometry"]["profiles"] if each["name"] == profile]
        if not found or (one.get("profile") and profile != one["profile"]):
            return f"profile {profile}"
        enough = found[0]["memory_mib"] >= one["memory_mib"]
        return (
            None
            if enough and found[0]["slices"] / model["geometry"]["compute_slices"] >= one["compute"] - 1e-6
            else f"{profile} is too small"
        )
    return None if one["memory_mib"] <= model["memory_mib"] else "too little memory"


def _gpus(problem: Problem, rows: Rows) -> list[str]:
    """Each GPU in one mode, with room for what is on it."""
    classes = {one["key"]: one for one in problem["classes"]}
    hosts = {host["name"]: host for host in problem["hosts"]}
    models = {model["name"]: model for model in problem["models"]}
    on: dict[tuple[str, int], list[tuple[t.Any, ...]]] = defaultdict(list)
    for row in rows:
        on[row[2], row[3]].append(row)
    found = []
    for (name, gpu), here in on.items():
        host, modes = hosts[name], {row[4] for row in here}
        model = models[host["model"]]
        fault = None
        if len(modes) > 1 or (modes == {"whole"} and len(here) > 1):
            fault = f"{len(here)} replicas in modes {sorted(modes)}"
        elif modes == {"mig"}:
            fault = _bad_layout(model["geometry"], [(row[5], row[6]) for row in here])
        elif modes == {"shared"}:
            memory = sum(classes[row[0]]["memory_mib"] for row in here)
            compute = sum(classes[row[0]]["compute"] for row in here)
            if memory > model["memory_mib"] - host.get("reserve_mib", 0) or compute > 1 + 1e-6 or len(here) > host["clients"]:
                fault = f"{len(here)} clients with {memory} MiB and {compute} compute"
        if fault:
            found.append(f"{name} GPU {gpu}: {fault}")
    return found


def _bad_layout(geometry: dict[str, t.Any], slices: list[tuple[str, int]]) -> str | None:
    """Why NVML would refuse these slices; None when it would not."""
    profiles = {each["name"]: each for each in geometry["profiles"]}
    taken: set[int] = set()
    for name, start in slices:
        if start not in profiles[name]["starts"]:
            return f"{name} cannot start at {start}"
        own = set(range(start, start + profiles[name]["size"]))
        if own & taken or max(own) >= geometry["memory_slices"]:
            return f"{name}@{start} overlaps"
        taken |= own
    if sum(profiles[name]["slices"] for name, _start in slices) > geometry["compute_slices"]:
        return "too many compute slices"
    over = [name for name, number in Counter(name for name, _start in slices).items() if number > profiles[name]["max"]]
    return f"too many {over[0]}" if over else None


def _hosts(problem: Problem, rows: Rows) -> list[str]:
    """CPU, RAM and the most replicas of a class on each host."""
    classes = {one["key"]: one for one in problem["classes"]}
    cpus: Counter[str] = Counter()
    ram: Counter[str] = Counter()
    count: Counter[tuple[str, str]] = Counter()
    for key, _replica, name in {(row[0], row[1], row[2]) for row in rows}:
        cpus[name] += classes[key]["cpus"]
        ram[name] += classes[key]["ram_mib"]
        count[key, name] += 1
    found = []
    for host in problem["hosts"]:
        name = host["name"]
        if cpus[name] > host["cpus"] + 1e-4 or ram[name] > host["ram_mib"] + 1e-2:
            found.append(f"{name}: {cpus[name]} of {host['cpus']} cores, {ram[name]} of {host['ram_mib']} MiB")
    for (key, name), number in count.items():
        limit = classes[key]["max_per_host"]
        if limit is not None and number > limit:
            found.append(f"{name}: {number} replicas of {key}, {limit} allowed")
    return found


def _quotas(problem: Problem, rows: Rows) -> list[str]:
    """What each team holds: whole GiB of each GPU, slice or shared place, begun ones in full; and whole GPUs' worth."""
    classes = {one["key"]: one for one in problem["classes"]}
    models = {model["name"]: model for model in problem["models"]}
    model_of = {host["name"]: models[host["model"]] for host in problem["hosts"]}
    reserve = {host["name"]: host.get("reserve_mib", 0) for host in problem["hosts"]}
    memory: Counter[str] = Counter()
    worth: Counter[str] = Counter()
    for key, _replica, name, _gpu, mode, profile, _start in rows:
        one, model = classes[key], model_of[name]
        if mode == "mig":
            slice_of = next((each for each in model["geometry"]["profiles"] if each["name"] == profile), None)
            if slice_of is None:
                continue
            mib, part = (
                slice_of["memory_mib"],
                max(slice_of["slices"] / model["geometry"]["compute_slices"], slice_of["size"] / model["geometry"]["memory_slices"]),
            )
        elif mode == "whole":
            mib, part = model["memory_mib"], 1.0
        else:
            mib, part = one["memory_mib"], max(one["memory_mib"] / max(1, model["memory_mib"] - reserve[name]), one["compute"])
        memory[one["team"]] += -(-mib // GIB)
        worth[one["team"]] += part
    found = []
    for quota in problem["quotas"]:
        team = quota["team"]
        if quota.get("memory_mib") is not None and memory[team] * GIB > quota["memory_mib"] + 1e-3:
            found.append(f"{team}: {memory[team]} GiB of {quota['memory_mib'] / GIB}")
        if quota.get("gpus") is not None and worth[team] > quota["gpus"] + 1e-3:
            found.append(f"{team}: {worth[team]} GPUs' worth of {quota['gpus']}")
    return found


def waits(problem: Problem, rows: Rows) -> list[str]:
    """Replicas that wait although they would fit on some host if all of lower priority left it, within what their team's quota leaves then.

    Only memory, compute, CPU, RAM, spread and quota of whole and shared GPUs and of empty ones are looked at; of MIG, whether a GPU with
    nothing but lower ones is there.
    """
    classes = {one["key"]: one for one in problem["classes"]}
    count = Counter(key for key, _replica in {(row[0], row[1]) for row in rows})
    on: dict[str, list[tuple[t.Any, ...]]] = defaultdict(list)
    for row in rows:
        on[row[2]].append(row)
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    model_of = {host["name"]: host["model"] for host in problem["hosts"]}
    models = {model["name"]: model for model in problem["models"]}
    for key, _replica, name, _gpu, mode, profile, _start in rows:
        held[classes[key]["team"]].append((classes[key]["priority"], _gib(classes[key], models, model_of[name], mode, profile)))
    found = []
    for key, one in classes.items():
        if count[key] >= one["replicas"]:
            continue
        for host in problem["hosts"]:
            if _would_fit(problem, classes, models, one, host, on[host["name"]], held[one["team"]]):
                found.append(f"{key} (priority {one['priority']}) waits although {host['name']} could have it")
                break
    return found


def _gib(one: dict[str, t.Any], models: dict[str, t.Any], model: str, mode: str, profile: str) -> int:
    if mode == "shared":
        return int(-(-one["memory_mib"] // GIB))
    if mode == "whole":
        return int(-(-models[model]["memory_mib"] // GIB))
    mib = next((each["memory_mib"] for each in models[model]["geometry"]["profiles"] if each["name"] == profile), 0)
    return int(-(-mib // GIB))


def _would_fit(
    problem: Problem, classes: Problem, models: Problem, one: t.Any, host: t.Any, here: Rows, held: list[tuple[int, int]]
) -> bool:
    stay = [row for row in here if classes[row[0]]["priority"] >= one["priority"]]
    replicas = {(row[0], row[1]) for row in stay}
    model, mode = models[host["model"]], MODE[one["isolation"]]
    cpus = sum(classes[key]["cpus"] for key, _replica in replicas) + one["cpus"]
    ram = sum(classes[key]["ram_mib"] for key, _replica in replicas) + one["ram_mib"]
    if cpus > host["cpus"] + 1e-6 or ram > host["ram_mib"] + 1e-6:
        return False
    if one["max_per_host"] is not None and sum(key == one["key"] for key, _replica in replicas) >= one["max_per_host"]:
        return False
    profiles = [each["name"] for each in model["geometry"]["profiles"]] if mode == "mig" and model["geometry"] else [""]
    profiles = [profile for profile in profiles if _unfit(one, host, model, mode, profile) is None] if mode in host["modes"] else []
    count = one.get("count", 1)
    limit = [quota["memory_mib"] for quota in problem["quotas"] if quota["team"] == one["team"] and quota.get("memory_mib") is not None]
    used = sum(gib for priority, gib in held if priority >= one["priority"])
    for profile in profiles:
        if limit and (used + count * _gib(one, models, host["model"], mode, profile)) * GIB > limit[0] + 1e-3:
            continue
        free = [gpu for gpu in range(host["gpus"]) if not any(row[3] == gpu for row in stay)]
        if len(free) >= count:
            return True
        if mode == "shared" and any(
            _shared_room(classes, one, host, model, [row for row in stay if row[3] == gpu]) for gpu in range(host["gpus"])
        ):
            return True
    return False


def _shared_room(classes: Problem, one: t.Any, host: t.Any, model: t.Any, here: Rows) -> bool:
    if any(row[4] != "shared" for row in here) or len(here) >= host["clients"]:
        return False
    memory = sum(classes[row[0]]["memory_mib"] for row in here) + one["memory_mib"]
    fits: bool = (
        memory <= model["memory_mib"] - host.get("reserve_mib", 0)
        and sum(classes[row[0]]["compute"] for row in here) + one["compute"] <= 1 + 1e-6
    )
    return fits
