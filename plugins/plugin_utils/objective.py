# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan is worth (docs/planner.md): numbers that are compared from left to right, more is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import apart
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import same_place


def objective(problem: Problem, solution: Solution) -> tuple[int, ...]:
    """(replicas placed of each priority that there is, the highest first; then with a minus: what those cost that moved although their
    place was right, pairs of replicas on one host and on one GPU whose service wishes to be spread, replicas on several GPUs that NVLink
    does not join, of hosts where it joins any, GPUs that somebody is on, GPUs that change between MIG and no MIG although nobody pinned
    them).

    A replica that waits on a drained GPU or on a host that is down is not placed.
    """
    priorities = {need.service: need.priority for need in problem.needs}
    served = Counter(priorities[place.service] for place in solution.placements)
    there = {(place.service, place.replica): place for place in solution.placements}
    before = {(place.service, place.replica): place for place in problem.previous}
    left = [(each.service, each.replica) for each in solution.displaced]
    costs = {need.service: need.move_cost for need in problem.needs}
    moved = sum(costs[key[0]] for key in left if key in there and key in before and not same_place(before[key], there[key]))
    wishes = {need.service: need.rules.spread for need in problem.needs}
    hosts = Counter((place.service, place.host) for place in solution.placements)
    boards = Counter((place.service, uuid) for place in solution.placements for uuid in place.gpus)
    crowded = (_pairs(hosts, wishes, ("host",)), _pairs(boards, wishes, ("host", "gpu")))
    used = {(place.host, uuid) for place in (*solution.placements, *solution.waiting) for uuid in place.gpus}
    gpus = {(host.name, gpu.uuid): gpu for host in problem.hosts for gpu in host.gpus}
    own = {key: layout for key, layout in solution.layouts.items() if key in gpus and gpus[key].pin is None}
    changed = sum(gpus[key].mig != (layout.mode == "mig") for key, layout in own.items())
    return (
        *(served[priority] for priority in sorted(set(priorities.values()), reverse=True)),
        -moved,
        *crowded,
        _apart(problem, solution),
        -len(used),
        -changed,
    )


def _pairs(together: Mapping[tuple[str, str], int], wishes: Mapping[str, str], those: Collection[str]) -> int:
    """Minus the pairs that are together although the wish of their service is one of ``those``."""
    return -sum(count * (count - 1) // 2 for (service, _place), count in together.items() if wishes[service] in those)


def _apart(problem: Problem, solution: Solution) -> int:
    gpus = {(host.name, gpu.uuid): gpu for host in problem.hosts if any(gpu.links for gpu in host.gpus) for gpu in host.gpus}

    def several(place: Placement) -> bool:
        return len(place.gpus) > 1 and all((place.host, uuid) in gpus for uuid in place.gpus)

    return -sum(several(place) and apart([gpus[(place.host, uuid)] for uuid in place.gpus]) for place in solution.placements)
