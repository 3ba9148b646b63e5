# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program counts together because it knows no difference: kinds of replicas, classes of hosts, groups of GPUs."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.equal_hosts import capacity
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.handing_out import Group, HostClass, Key, Kind
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState

Waiting = Sequence[tuple[Need, int]]


def kinds_of(waiting: Waiting, fleet: Fleet, must: frozenset[Key], alone: Callable[[Need], bool] | None = None) -> list[Kind]:
    """Equal needs together. Where a rule or a port by number names services, each service is a kind of its own; and where ``alone``."""
    found: dict[t.Any, Kind] = {}
    order = sorted((-need.priority, (need.service, replica) not in must, need.service, replica) for need, replica in waiting)
    needs = {need.service: need for need, _replica in waiting}
    for _priority, _later, service, replica in order:
        need = needs[service]
        rules, asked = need.rules, any(port is not None for _name, port in need.ports)
        limited = rules.max_per_host is not None or rules.max_per_gpu is not None
        own = need.service if asked or limited or (alone is not None and alone(need)) else ""
        bars = tuple(sorted((place, no.reason) for place, no in need.bars.items()))
        key = (
            need.environment, need.data_class, need.isolation, need.memory_mib, need.priority, need.count, need.profile, need.compute,
            need.sharing, need.models, need.not_models, need.nvlink, need.resources, len(need.ports), bars, own,
            need.team if fleet.books.limited(need.team) else "",
        )  # fmt: skip
        found.setdefault(key, Kind(need, [])).members.append((need, replica))
    return list(found.values())


def classes_of(hosts: Sequence[HostState], kinds: Sequence[Kind], *, sizes: bool = False) -> list[HostClass]:
    """Hosts with equal kinds of GPUs together, however many of each. ``sizes``: those on which nobody is yet only with others that have as
    many and can give as much."""
    barred = sorted({place for kind in kinds for place in kind.need.bars})
    asked = {kind.need.data_class for kind in kinds}
    found: dict[t.Any, list[HostState]] = {}
    for host in hosts:
        one = host.host
        classes = tuple(sorted(asked.intersection(one.data_classes)))
        modes, sharing = tuple(sorted(one.modes)), tuple(sorted(one.sharing))
        policy = (one.environment, classes, modes, sharing, one.shared_max, one.shared_reserve_mib, one.shared_compute)
        # The gate speaks of hosts by name.
        gate = one.name if any(name == one.name for name, _board in barred) else ""
        content = tuple(sorted({_likeness(state) for state in host.gpus}, key=repr))
        found.setdefault((policy, gate, content, size_of(host) if sizes else None), []).append(host)
    return [HostClass(each, _groups(each)) for each in found.values()]


def size_of(host: HostState) -> tuple[int, ...] | None:
    """What a host on which nobody is yet can give, but for little; None of any other."""
    return None if host.replicas else (*capacity(host), len(host.gpus))


def _likeness(state: GpuState) -> tuple[t.Any, ...]:
    gpu = state.gpu
    return (
        gpu.board, gpu.memory_mib, gpu.geometry, gpu.mig, gpu.blocked, gpu.closed, gpu.pin, gpu.outsiders, gpu.instances, gpu.mps_clients,
        state.mode, state.sharing, state.fixed, state.spare, state.memory_free, state.compute_free, len(state.tenants),
    )  # fmt: skip


def _groups(hosts: Sequence[HostState]) -> list[Group]:
    found: dict[t.Any, Group] = {}
    for host in hosts:
        for state in host.gpus:
            found.setdefault(_likeness(state), Group([])).states.append(state)
    return list(found.values())
