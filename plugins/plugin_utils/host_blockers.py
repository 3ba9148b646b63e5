# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a service from a host whatever its GPUs say: CPU, memory, disk, ports, data that may not be there, and that it is down."""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Collection, Iterable, Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_amounts import beyond, more_ports, more_room
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import amount
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import LEAST_PART, Blocker, Edit, Option, option_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

#: So many hosts that are down are tried for one service.
FEW: t.Final = 3


def room_blockers(host: HostState, need: Need, name: str, asked: frozenset[int]) -> Iterator[Blocker]:
    """CPU, memory, disk and ports. ``name``: of the replica; ``asked``: ports that somebody asks for by number."""
    for kind, (want, have) in host.free.shortage(need.resources).items():
        yield Blocker(f"host {kind}", tuple(_resource_options(host, need, kind, want, have)))
    ports = host.choose_ports(need, name, {}, asked)
    if isinstance(ports, str):
        yield Blocker("port", tuple(_port_options(host, need, ports, asked)))


def _resource_options(host: HostState, need: Need, kind: str, want: float, have: float) -> Iterator[Option]:
    floor = 0.1 if kind == "cpus" else 1
    # Those of the service that are here would ask for less too.
    here = host.replicas.get(need.service, 0)
    each = (have + here * want) / (here + 1)
    if each >= max(floor, LEAST_PART * want):
        left = int(each * 100) / 100 if kind == "cpus" else int(each)
        text = f"ask for {amount(kind, left)} in place of {amount(kind, want)}: {host.host.name} has no more left"
        yield option_of("resources", text, Edit("service", need.service, f"resources.{kind}", left), more=1 - left / want)
    yield more_room(host.host, kind, want - have, (want - have) / max(want, 1))


def _port_options(host: HostState, need: Need, refusal: str, asked: frozenset[int]) -> Iterator[Option]:
    free = tuple((port, None) for port, _number in need.ports)
    if free != need.ports:
        # One of its own may have it, or would: the others of a group without a place are told of nobody who has none either.
        own = next((port for port, number in need.ports if number is not None and _is_of(need, host.ports.get(number))), None)
        why = f"{refusal} of {host.host.name}" if own is None else f"only one replica on a host can have that of '{own}'"
        text = f"leave the host port out ({why}), and a free one is chosen"
        yield option_of("port", text, Edit("service", need.service, "ports", free))
    busy = {*host.ports, *host.host.listening, *asked}
    idle = set(host.host.ports) - busy
    missing = max(sum(number is None for _port, number in need.ports) - len(idle), 1)
    fresh = list(itertools.islice(beyond(host, asked), missing))
    if len(fresh) == missing and (free == need.ports or not idle):
        yield more_ports(host.host, fresh)


def _is_of(need: Need, name: str | None) -> bool:
    return name is not None and name.rpartition("-")[0] == need.service


def data_blockers(host: HostState, need: Need) -> Iterator[Blocker]:
    """What the data is, its owner knows, and no manifest is told to say less: a host may be allowed to have it, or it may not."""
    if not host.host.may_have(need):
        text = f"add '{need.data_class}' to fleet_data_classes of {host.host.name}, if such data may be there"
        edit = Edit("host", host.host.name, "data_classes", tuple(sorted((*host.host.data_classes, need.data_class))))
        yield Blocker("data class", (option_of("data_class", text, edit),))


def bring_back(hosts: Iterable[Host], need: Need, ran: Collection[str]) -> list[Option]:
    """The first hosts that are down, have a board that it may be on as far as is known, and may have its data: those that have replicas of
    it (``ran``) before others. Whether that helps is found out as of every other change."""
    able = (
        host for host in hosts if host.last is not None and host.may_have(need) and any(need.wants(gpu.board) for gpu in host.last.gpus)
    )
    first = sorted(able, key=lambda host: (host.name not in ran, host.name))[:FEW]
    return [
        option_of("repair", f"bring {host.name} back", Edit("host", host.name, "down", False), more=number / FEW)._replace(host=host.name)
        for number, host in enumerate(first)
    ]
