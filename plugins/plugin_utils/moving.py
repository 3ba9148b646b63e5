# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving one replica to a host that a person names: it goes there alone, or not at all. Pure.

The planner finds the place on that host, with everything else where it is. Later plans keep the replica there because the place is right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Need, Placement, Problem, Solution

# No service can have this in its name.
_EXTRA = "+move"


@dataclass(frozen=True)
class Move:
    """Whom, and where to."""

    service: str
    replica: int
    to: str

    @property
    def name(self) -> str:
        """``receipt-ocr-1``"""
        return replica_name(self.service, self.replica)


def moved(problem: Problem, move: Move) -> Solution:
    """The plan with the replica on that host; as it would be anyway when it is there already.

    :raises FleetError: there is no such replica or host, the replica has no place now, or it does not fit there; nothing else ever moves.
    """
    need = next((each for each in problem.needs if each.service == move.service), None)
    if need is None or not 1 <= move.replica <= need.replicas:
        have = "no such service" if need is None else f"it has {need.replicas}"
        raise FleetError(f"there is no replica {move.replica} of {move.service}: {have}", field="move.replica", hint="see playbook status")
    if need.adopted:
        raise FleetError(f"{move.service} is adopted, and nothing moves it", field="move.service", hint="write 'lifecycle: managed'")
    target = next((host for host in problem.hosts if host.name == move.to), None)
    if target is None or target.down:
        known = ", ".join(sorted(host.name for host in problem.hosts if not host.down))
        wrong = f"{move.to} is down" if target is not None else f"{move.to} is no host of this fleet"
        raise FleetError(wrong, field="move.to", hint=f"write one of {known}")
    base = make_plan(problem)
    places = {(each.service, each.replica): each for each in (*base.placements, *base.waiting)}
    old = places.get((move.service, move.replica))
    if old is None:
        raise FleetError(f"{move.name} has no place, so it cannot move", field="move.replica", hint="playbook plan says why")
    if old.host == move.to:
        return base
    new = _place(problem, base, need, move)
    previous = tuple(new if each is old else each for each in places.values())
    solution = make_plan(replace(problem, previous=previous, changed=frozenset()))
    rest = {each for each in (*solution.placements, *solution.waiting) if each != new}
    if new not in solution.placements or rest != {each for each in places.values() if each is not old}:
        raise _does_not_fit(move, "others would have to move")
    return solution


def _place(problem: Problem, base: Solution, need: Need, move: Move) -> Placement:
    """A place on the target for one more of this need, with everything where the plan has it."""
    # Room for a rollout is kept once for all replicas of a service on one host.
    there = any(each.host == move.to and each.service == move.service for each in (*base.placements, *base.waiting))
    extra = replace(need, service=f"{need.service}{_EXTRA}", replicas=1, priority=-1, keep_room=need.keep_room and not there)
    here = [each for each in (*base.placements, *base.waiting) if each.host == move.to]
    known = {(each.service, each.replica) for each in here}
    # Whoever is not on the target looks for no place there: a host that is not part of the question keeps it.
    elsewhere = [
        Placement(each.service, number, "", MODE_OF[each.isolation], ())
        for each in problem.needs
        for number in range(1, each.replicas + 1)
        if (each.service, number) not in known
    ]
    target = tuple(host for host in problem.hosts if host.name == move.to)
    solution = make_plan(Problem(target, (*problem.needs, extra), (*here, *elsewhere)))
    found = next((each for each in solution.placements if each.service == extra.service), None)
    if found is None:
        (missing,) = [each for each in solution.unplaced if each.service == extra.service]
        raise _does_not_fit(move, f"{missing.reason}; what would help: {missing.help}".replace(_EXTRA, ""))
    return replace(found, service=move.service, replica=move.replica)


def _does_not_fit(move: Move, reason: str) -> FleetError:
    return FleetError(f"{move.name} cannot move to {move.to}: {reason}", field="move.to", hint="nothing was changed")
