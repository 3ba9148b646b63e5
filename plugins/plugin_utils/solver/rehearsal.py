# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which policy suits a fleet as it now is: each fills copies of it with sampled streams of what is known.

What is known is halved: a policy is taught one half, and the stream is drawn from the other. Where little is known the halves differ as the
requests to come will differ from those that came, so a policy that leans on what it was taught has to earn it there as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import WHOLE, Demand, Request, merged
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.pool import UNFORESEEN, Pool
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.ranking import FUTURES, POLICIES, Chooser, Policy

NODES_REPLAYED = 64
"""At most so many nodes stand for the fleet in a replay,"""
REQUESTS_REPLAYED = 240
"""and so many that about so many requests fill them, but"""
FEWEST_NODES = 4
ROUNDS = (4, 12)
"""Streams that all policies are tried on, and that the best of them are tried on besides."""
FINALISTS = 3
LEAST_AHEAD = 0.001
"""Of the GPUs, by which another policy has to beat the present one,"""
ERRORS_AHEAD = 2.0
"""and by how many standard errors of the difference."""
KINDS_REPLAYED = 512


def rehearsed(
    pool: Pool, counts: Mapping[Request, float], horizon: float, unforeseen: float = UNFORESEEN, present: str = FUTURES.name
) -> tuple[str, dict[str, float]]:
    """The policy that fills most, the ``present`` one if none is clearly better; and the shares of the GPUs filled, by policy.

    ``horizon``: GPU that is still to be asked for, as a multiple of the GPUs there are; ``unforeseen``: as in ``Pool.demand``.
    """
    both = halves(merged(counts, KINDS_REPLAYED))
    if not all(any(request.size for request in half) for half in both):
        return present, {}
    part = part_of(pool, counts, horizon)
    taught = [part.demand(half, unforeseen) for half in both]
    # Each half is taught and drawn from in turn.
    streams = [(_stream(both[seed % 2], horizon * WHOLE * part.gpus, seed), taught[1 - seed % 2]) for seed in range(sum(ROUNDS))]
    first, rest = streams[: ROUNDS[0]], streams[ROUNDS[0] :]
    filled = {policy.name: [_filled(policy, part.copy(), demand, stream) for stream, demand in first] for policy in POLICIES}
    size = WHOLE * max(1, part.gpus)
    shares = {name: sum(values) / len(values) / size for name, values in filled.items()}
    others = sorted((name for name in filled if name != present), key=lambda name: -shares[name])[:FINALISTS]
    others = [name for name in others if shares[name] > shares[present]]
    if not others:
        return present, shares
    for policy in POLICIES:
        if policy.name in (present, *others):
            filled[policy.name] += [_filled(policy, part.copy(), demand, stream) for stream, demand in rest]
            shares[policy.name] = sum(filled[policy.name]) / len(streams) / size
    better = [name for name in others if _ahead(filled[name], filled[present], LEAST_AHEAD * size)]
    return max(better, key=lambda name: shares[name], default=present), shares


def halves(counts: Mapping[Request, float]) -> tuple[dict[Request, float], dict[Request, float]]:
    """Every other one of the requests, in their order: what came often is in both."""
    found: tuple[dict[Request, float], dict[Request, float]] = ({}, {})
    turn = 0
    for request in sorted(counts):
        count = int(counts[request])
        for half, more in ((turn % 2, (count + 1) // 2), (1 - turn % 2, count // 2)):
            if more:
                found[half][request] = float(more)
        turn += count
    return found


def part_of(pool: Pool, counts: Mapping[Request, float], horizon: float) -> Pool:
    """Some nodes for all of them, so few that a replay ends soon."""
    mean = sum(request.size * count for request, count in counts.items()) / sum(counts.values())
    requests = max(1.0, horizon * WHOLE * pool.gpus / mean)
    most = int(len(pool.nodes) * REQUESTS_REPLAYED / requests)
    return pool.sample(min(NODES_REPLAYED, max(FEWEST_NODES, most)))


def _ahead(one: Sequence[int], other: Sequence[int], least: float) -> bool:
    """Is the mean of the differences well above its standard error, and above ``least``?"""
    pairs = [left - right for left, right in zip(one, other, strict=True)]
    mean = sum(pairs) / len(pairs)
    spread = math.sqrt(sum((pair - mean) ** 2 for pair in pairs) / max(1, len(pairs) - 1) / len(pairs))
    return mean > max(least, ERRORS_AHEAD * spread)


def _stream(kinds: Mapping[Request, float], size: float, seed: int) -> list[Request]:
    """Requests drawn from what is known until they ask for ``size`` thousandths of a GPU."""
    rng = random.Random(seed)
    requests = sorted(kinds)
    weights = [kinds[request] for request in requests]
    drawn: list[Request] = []
    while size > 0:
        # Drawn in lots: choices() adds up the weights each time. A lot without any GPU is a mix of almost none: it ends all the same.
        lot = rng.choices(requests, weights, k=16)
        drawn += lot
        size -= max(1, sum(request.size for request in lot))
    return drawn


def _filled(policy: Policy, pool: Pool, demand: Demand, stream: Sequence[Request]) -> int:
    """Thousandths of a GPU that the policy places."""
    chooser = Chooser(policy, pool, demand)
    return sum(request.size for request in stream if chooser.place(request) is not None)
