# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a group of hosts that differ in CPU and RAM to parts of it whose hosts differ less.

The program of the whole fleet adds up what the hosts of a group may give, so that it stays small however many kinds of hosts there are.
Mostly what is heavy finds the hosts with much and what is light those with little. Where it does not, what the program gives to the
group is planned as a fleet of its own, without quotas.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_groups import Group
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_options import Options, with_groups
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_program import FleetProgram
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fleet_rounding import NEARLY, Patterned, reachable, rounded
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import SolverError, numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Parted(t.NamedTuple):
    """One group as a fleet: its parts are the groups of ``options``, ``kinds`` the numbers of its classes in the fleet that it is of. By
    part its ``hosts``, by their numbers in the group, ``patterns`` and the GPUs of each (``boards``). ``amount``: replicas by option."""

    options: Options
    kinds: Ints
    hosts: list[Ints]
    patterns: list[Ints]
    boards: list[Floats]
    amount: Ints


def parted(options: Options, relaxed: Patterned, amount: Ints, number: int) -> Parted | None:
    """A group by its parts, and who goes to which of them; None where it has one part only, or there is no plan for them.

    :param amount: replicas by option of the whole fleet.
    """
    parts = options.groups[number].parts()
    if len(parts) < 2:
        return None
    number_of = {host.name: place for place, host in enumerate(options.groups[number].hosts)}
    hosts = [numpy.asarray([number_of[host.name] for host in part.hosts], dtype=numpy.int64) for part in parts]
    small, kinds = _alone(options, parts, amount, number)
    used = relaxed.patterns[number][relaxed.boards[number] > NEARLY]
    known = numpy.unique(numpy.concatenate((used, small.boards[0].first_patterns)), axis=0)
    try:
        own = FleetProgram(small, {0: known}).solve(partial(reachable, small))
        return Parted(small, kinds, hosts, own.patterns, own.boards, rounded(small, own))
    except SolverError:
        return None


def _alone(options: Options, parts: list[Group], amount: Ints, number: int) -> tuple[Options, Ints]:
    """(The parts of a group as a fleet that is asked for what the group has, the numbers of its classes)."""
    mine = numpy.flatnonzero((options.group == number) & (amount > 0))
    kinds, of = numpy.unique(options.klass[mine], return_inverse=True)
    asked = numpy.bincount(of, weights=amount[mine], minlength=len(kinds)).astype(numpy.int64)
    classes = tuple(replace(options.classes[one], replicas=many) for one, many in zip(kinds.tolist(), asked.tolist(), strict=True))
    alone = replace(options, boards=(options.boards[parts[0].board],), classes=classes, quotas=())
    return with_groups(alone, [replace(part, board=0) for part in parts]), kinds
