# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of online placements: it places the same requests once more, in plain Python, and shares no code with plugins/."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.tests.bench.planner.arrival_world import Node, Request


def complaints(nodes: list[Node], requests: list[Request], places: t.Sequence[tuple[str, t.Sequence[int]] | None]) -> list[str]:
    """Everything that is wrong with the places (node's name and GPUs, None for refused) of requests, in their order; [] for right ones."""
    if len(places) != len(requests):
        return [f"{len(places)} answers for {len(requests)} requests"]
    left = {node.name: {"cpu": node.cpu, "memory": node.memory, "free": [1000] * node.gpus, "model": node.model} for node in nodes}
    wrong: list[str] = []
    for number, (request, place) in enumerate(zip(requests, places, strict=True)):
        if place is None:
            able = _anywhere(left, request)
            if able is not None:
                wrong.append(f"request {number} was refused, and {able} has room for it")
            continue
        name, gpus = place
        wrong += [f"request {number}: {text}" for text in _taken(left.get(name), name, tuple(gpus), request)]
    return wrong


def _taken(node: dict[str, t.Any] | None, name: str, gpus: tuple[int, ...], request: Request) -> list[str]:
    """What is wrong with one place; its room is taken."""
    if node is None:
        return [f"there is no node {name}"]
    wrong = []
    if request.models and node["model"] not in request.models:
        wrong.append(f"{name} is a {node['model']}, not of {request.models}")
    if len(set(gpus)) != request.gpus or len(gpus) != request.gpus:
        wrong.append(f"{len(set(gpus))} GPUs for {request.gpus}")
    if any(not 0 <= gpu < len(node["free"]) for gpu in gpus):
        return [*wrong, f"{name} has no GPU of the numbers {gpus}"]
    node["cpu"] -= request.cpu
    node["memory"] -= request.memory
    for gpu in gpus:
        node["free"][gpu] -= request.milli
        if node["free"][gpu] < 0:
            wrong.append(f"GPU {gpu} of {name} is taken beyond what it is")
    wrong += [f"{name} has too little {what}" for what in ("cpu", "memory") if node[what] < 0]
    return wrong


def _anywhere(left: dict[str, dict[str, t.Any]], request: Request) -> str | None:
    """The first node with room."""
    for name, node in left.items():
        if node["cpu"] < request.cpu or node["memory"] < request.memory or (request.models and node["model"] not in request.models):
            continue
        if request.gpus == 0 or sum(free >= request.milli for free in node["free"]) >= request.gpus:
            return name
    return None
