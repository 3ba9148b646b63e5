# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan can say of how good it is: the bound that the solver proved, in words."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several

NO_SOLVER = "no gap is proven: this controller has no solver (pip install highspy numpy), and places were found one by one"
BROKEN_SOLVER = "no gap is proven: the solver of this controller cannot be loaded ({}), and places were found one by one"


def proof_data(solution: Solution) -> dict[str, t.Any] | None:
    """What ``fleet.yml`` keeps of it where somebody is without a place: ``solver`` with its version; ``more`` of ``priority`` who could be
    served at most, with nobody stopped or moved for it. None where no solver was asked.
    """
    proof = solution.proof
    if proof is None or proof.solver is None or not solution.unplaced:
        return None
    more = {"more": 0} if not proof.more else {"more": proof.more[0][1], "priority": proof.more[0][0]}
    return {"solver": proof.solver, **more}


def proof_lines(solution: Solution) -> Iterator[str]:
    """At most one line. Nothing where everybody is served by a plan that was there before: nothing could be better about it."""
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import absent, available  # it loads numpy, as in planner.py

    proof = solution.proof
    if not available():
        yield BROKEN_SOLVER.format(absent) if absent else NO_SOLVER
    elif proof is not None and proof.unproven:
        yield f"no gap is proven, and places were found one by one: {proof.unproven}"
    elif proof is not None and proof.solver is not None:
        parts = [f"at most {more} more of priority {priority} could be served" for priority, more in proof.more]
        if solution.unplaced and not parts:
            parts.append("nobody else could be served, unless somebody else stops or moves")
        used = len({uuid for place in solution.placements for uuid in place.gpus})
        if proof.gpus is not None and not solution.unplaced:
            # The solver counts no GPU that is open for others anyway.
            fewest = max(min(used, proof.gpus), min(used, 1))
            parts.append(f"the plan uses {several(used, 'GPU')}; no plan uses fewer than {fewest}, also if nobody wished to be spread")
        if parts:
            yield f"proven by {proof.solver}: {'; '.join(parts)}"
