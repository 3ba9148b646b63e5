# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a merge request waits for: manifests, facts and the last plans are read, everything is decided, told and written as files.

Two fleets, one four times as large as the other: whatever grows faster than the fleet does is seen in ``growth``, seconds for each replica
on the large one against the small one. First nothing runs, then nothing has changed, then one manifest is new.
"""

from __future__ import annotations

import random
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text
from planner.cold import cold

GPUS = 8
NEW = "newcomer"


def hosts(count: int) -> dict[str, t.Any]:
    """Three of four with A100s that are cut, the others with L40S that are shared."""
    found: dict[str, t.Any] = {}
    for number in range(count):
        name, cut = f"gpu-{number:05d}", number % 4 < 3
        board: dict[str, t.Any] = {} if cut else {"name": "NVIDIA L40S", "device_id": "0x26B910DE", "memory_mib": 46068, "mig": None}
        gpus = [gpu_facts(index, name, **board, holders=[]) for index in range(GPUS)]
        sensed = facts(gpus, leases=[], drains_idle=[])
        sensed["host"] = {**sensed["host"], "hostname": name}
        policy = {"fleet_environment": "production", "fleet_gpu_modes": ["mig"] if cut else ["shared", "whole"]}
        found[name] = {"facts": sensed, "policy": policy}
    return found


def manifests(count: int, seed: int) -> dict[str, str]:
    """Services of one to thirty replicas, which fill some two thirds of the fleet."""
    chance = random.Random(seed)
    found: dict[str, str] = {}
    for number in range(count):
        shared = chance.random() < 0.25
        memory = chance.choice([3, 6, 10] if shared else [4, 5, 9, 9, 18, 30])
        gpu = f"{{isolation: {'shared' if shared else 'slice'}, memory: {memory} GiB}}"
        more = {"replicas": str(chance.choice([1, 1, 1, 10, 20])), "priority": str(chance.choice([30, 50, 50, 80]))}
        found[f"service-{number:04d}"] = manifest_text(f"service-{number:04d}", gpu=gpu, **more)
    return found


def planned(folder: str, fleet: dict[str, t.Any]) -> dict[str, int]:
    """What the cold process does: all that the module ``plan`` does."""
    from ansible_collections.gpuops.fleet.plugins.action.plan import run

    where = {"manifests": f"{folder}/manifests", "plans": f"{folder}/plans"}
    answer = run({**where, "hosts": fleet, "templates": [], "fail_unplaced": False}, False, False)
    return {"placed": sum(len(plan["services"]) for plan in answer["plans"].values()), "unplaced": len(answer["unplaced"])}


def measure(quick: bool) -> dict[str, t.Any]:
    """Seconds and memory of each step on both fleets."""
    found: dict[str, t.Any] = {"cases": [], "growth": {}, "violations": []}
    sizes = (60, 240) if quick else (250, 1000)
    each: dict[tuple[str, int], float] = {}
    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for step, figures in _steps(Path(folder), count, found["violations"]):
                found["cases"].append({"case": f"{step}, {count * GPUS} GPUs", **figures})
                each[step, count] = figures["cpu_seconds"] / max(1, figures["placed"])
    small, large = sizes
    found["growth"] = {step: round(each[step, large] / each[step, small], 2) for step, count in each if count == small}
    return found


def _steps(folder: Path, count: int, violations: list[str]) -> t.Iterator[tuple[str, dict[str, t.Any]]]:
    fleet, texts = hosts(count), manifests(count, 1)
    (folder / "manifests").mkdir()
    for service, text in texts.items():
        (folder / "manifests" / f"{service}.yml").write_text(text, encoding="utf-8")
    for step in ("first", "nothing changed", "one manifest is new"):
        if step == "one manifest is new":
            (folder / "manifests" / f"{NEW}.yml").write_text(manifest_text(NEW, replicas="2"), encoding="utf-8")
        before = _files(folder)
        run = cold("planner.texts", "planned", str(folder), fleet)
        changed = {path for path, text in _files(folder).items() if before.get(path) != text}
        # Two replicas, and what is said of all of the fleet.
        most = {"first": count + 1, "nothing changed": 0, "one manifest is new": 3}[step]
        if len(changed) > most:
            violations.append(f"{step}, {count} hosts: {len(changed)} plan files changed, and {most} had to")
        yield step, {**run.answer, "files": len(changed), **run.figures}


def _files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in (folder / "plans").glob("*.yml")}
