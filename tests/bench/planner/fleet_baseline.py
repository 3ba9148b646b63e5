# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the whole-fleet plan is measured against: first fit. By priority, then largest first, each replica on the first GPU with room."""

from __future__ import annotations

import typing as t
from collections import Counter

GIB = 1024
MODE = {"exclusive": "whole", "slice": "mig", "shared": "shared"}
Row = tuple[str, int, str, int, str, str, int]


class _Gpu:
    """One GPU: its mode, and what is taken of it."""

    def __init__(self) -> None:
        self.mode = ""
        self.mask = self.slices = self.memory = self.clients = 0
        self.compute = 0.0
        self.count: Counter[str] = Counter()

    def put(self, one: dict[str, t.Any], host: dict[str, t.Any], model: dict[str, t.Any], profile: t.Any) -> int | None:
        """Where a replica starts (-1 without MIG) once it is here; None when there is no room."""
        mode = MODE[one["isolation"]]
        if self.mode not in ("", mode) or (mode == "whole" and self.mode):
            return None
        start = -1
        if mode == "shared":
            full = self.memory + one["memory_mib"] > model["memory_mib"] or self.compute + one["compute"] > 1 + 1e-9
            if full or self.clients >= host["clients"]:
                return None
            self.memory, self.compute, self.clients = self.memory + one["memory_mib"], self.compute + one["compute"], self.clients + 1
        if mode == "mig":
            if self.slices + profile["slices"] > model["geometry"]["compute_slices"] or self.count[profile["name"]] >= profile["max"]:
                return None
            own = (1 << profile["size"]) - 1
            start = min((each for each in profile["starts"] if not self.mask >> each & own), default=-1)
            if start < 0:
                return None
            self.mask |= own << start
            self.slices += profile["slices"]
            self.count[profile["name"]] += 1
        self.mode = mode
        return start


def _profile(one: dict[str, t.Any], model: dict[str, t.Any]) -> t.Any:
    geometry = model["geometry"] or {"profiles": ()}
    enough = [
        each for each in geometry["profiles"] if each["memory_mib"] >= one["memory_mib"] and each["slices"] / 7 >= one["compute"] - 1e-6
    ]
    return min(enough, key=lambda each: (each["size"], each["slices"]), default=None)


def first_fit(problem: dict[str, t.Any]) -> list[Row]:
    """The rows of the plan: class, replica, host, GPU, mode, profile, start. Classes with one GPU a replica and quotas of memory only."""
    models = {model["name"]: model for model in problem["models"]}
    hosts = [(host, [_Gpu() for _gpu in range(host["gpus"])], [host["cpus"], host["ram_mib"]]) for host in problem["hosts"]]
    left = {quota["team"]: quota["memory_mib"] // GIB for quota in problem["quotas"] if quota.get("memory_mib") is not None}
    rows: list[Row] = []
    for one in sorted(problem["classes"], key=lambda each: (-each["priority"], -each["memory_mib"], each["key"])):
        placed = 0
        for host, gpus, room in hosts:
            model = models[host["model"]]
            allowed = model["name"] not in one["not_models"] and (not one["models"] or model["name"] in one["models"])
            profile = _profile(one, model) if one["isolation"] == "slice" else {"name": "", "memory_mib": model["memory_mib"]}
            if not allowed or MODE[one["isolation"]] not in host["modes"] or profile is None or one["memory_mib"] > model["memory_mib"]:
                continue
            cost = -(-(one["memory_mib"] if one["isolation"] == "shared" else profile["memory_mib"]) // GIB)
            here = 0
            for number, gpu in enumerate(gpus):
                while placed < one["replicas"] and (one["max_per_host"] is None or here < one["max_per_host"]):
                    if room[0] < one["cpus"] or room[1] < one["ram_mib"] or left.get(one["team"], cost) < cost:
                        break
                    start = gpu.put(one, host, model, profile)
                    if start is None:
                        break
                    rows.append((one["key"], placed, host["name"], number, MODE[one["isolation"]], profile["name"], start))
                    placed, here = placed + 1, here + 1
                    room[0], room[1] = room[0] - one["cpus"], room[1] - one["ram_mib"]
                    if one["team"] in left:
                        left[one["team"]] -= cost
            if placed == one["replicas"]:
                break
    return rows
