# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person should know of a plan, and nobody has to mend: lines about hosts, drains, and places that the gate would not give."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Iterator, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import HostPlan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Need, Placement, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import at


def carried_notes(states: Iterable[Host], hosts: Mapping[str, Mapping[str, t.Any]], previous: Mapping[str, HostPlan]) -> Iterator[str]:
    """A line for each host that carries a plan which is not among the last ones. ``hosts``: name -> {facts}."""
    for name in (host.name for host in states if not host.down):
        carried, last = hosts[name]["facts"].get("plan"), previous.get(name)
        if not carried or (last is not None and last.serial >= carried["serial"]):
            continue
        have = "no plan is here: nobody knows what it put there" if last is None else f"the one here is older, of serial {last.serial}"
        yield f"{name} carries plan serial {carried['serial']}, and {have}; take its file from Git, or run playbook adopt"


def host_notes(states: Iterable[Host], previous: Mapping[str, HostPlan], before: Collection[Placement], solution: Solution) -> list[str]:
    """Of hosts: who is not part of the run, who is down, drained, lost or given away, and of which nobody knows how large they are."""
    notes = []
    here = {host.name for host in states}
    wanted = {each.name for each in solution.placements} | {replica_name(each.service, each.replica) for each in solution.unplaced}
    for name in sorted(set(previous) - here):
        count = len(previous[name].data["services"])
        if count:
            counted = f"the {count} replicas of its last plan count as running there"
            notes.append(f"{name} is not part of this run: {counted}; remove its plan if the host is gone")
    for host in states:
        if host.down:
            stay = [place.name for place in solution.by_host.get(host.name, ())]
            how = "stays in its plan and is lost" if len(stay) == 1 else "stay in its plan and are lost"
            lost = f"{', '.join(sorted(stay))} {how} until it is back" if stay else "nothing stays in its plan"
            notes.append(f"{host.name} is down: {lost}")
            continue
        notes.extend(_drain_notes(host, solution))
        for gpu in host.gpus:
            if gpu.blocked is None or gpu.away:
                continue
            if gone := sorted(each.name for each in before if gpu.uuid in each.gpus and each.name in wanted):
                notes.append(f"{host.name} {gpu.short} is {gpu.blocked}: {', '.join(gone)} cannot stay there")
        away = [f"{gpu.pci or gpu.short} {gpu.blocked}" for gpu in host.gpus if gpu.away and gpu.blocked is not None]
        if away:
            notes.append(f"{host.name}: left to virtual machines: {', '.join(away)}")
        unknown = [kind for kind in ("cpus", "memory", "shm", "disk") if getattr(host.capacity, kind) is None]
        if unknown:
            notes.append(f"{host.name}: {', '.join(unknown)} could not be read and is not limited; set fleet_capacity")
    return notes


def _drain_notes(host: Host, solution: Solution) -> Iterator[str]:
    """A line for all GPUs that are drained for one reason: who is on them still."""
    drained: dict[str, list[Gpu]] = {}
    for gpu in host.gpus:
        if gpu.drain is not None and (gpu.blocked is None or gpu.drain.cause == "drain"):
            drained.setdefault(gpu.drain.words, []).append(gpu)
    for words, gpus in drained.items():
        uuids = {gpu.uuid for gpu in gpus}
        stay = sorted(place.name for place in solution.by_host.get(host.name, ()) if uuids.intersection(place.gpus))
        who = f"{', '.join(stay)} stay{'s' if len(stay) == 1 else ''}" if stay else "nothing stays"
        which, are, it = (f"{gpus[0].short}", "is", "it") if len(gpus) == 1 else (f"{len(gpus)} GPUs", "are", "them")
        yield f"{host.name} {which} {are} {words}: {who} on {it}"


def gate_notes(states: Iterable[Host], needs: Iterable[Need], solution: Solution) -> Iterator[str]:
    """A line for each replica that serves on although the gate would not place it there today."""
    boards = {(host.name, gpu.uuid): gpu.board for host in states for gpu in host.gpus}
    by_service = {need.service: need for need in needs}
    for place in solution.placements:
        bars = by_service[place.service].bars
        found = next((no for uuid in place.gpus if (no := bars.get((place.host, boards.get((place.host, uuid), ""))))), None)
        if found is not None:
            yield f"{place.name} stays on {at(place)}, where the compatibility gate would not place it: {found.reason}"
