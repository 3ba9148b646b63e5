# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host could have more of: ports, sharers and compute of a GPU, CPU, memory and disk. For one replica, or for all who would take it.

Who comes before a replica takes what was meant for it. So the amount for several is read off a plan in which the host has no limit.
"""

from __future__ import annotations

import itertools
import math
import typing as t
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import amount
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MOST_SHARED_COMPUTE, MOST_SHARERS, Host, Need, Placement, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit, Option, option_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState

#: Kinds of options that are of such an amount.
AMOUNTS: t.Final = frozenset({"ports", "shared_max", "shared_compute", "capacity"})
# Ports that are as good as no limit.
_MANY: t.Final = 128
# Of options of one kind the one for fewer is cheaper: what that counts for each one more, as ``option_of`` has it.
_EACH: t.Final = 0.02


def beyond(host: HostState, asked: Set[int]) -> Iterator[int]:
    """Ports that the host could have besides its own. ``asked``: those that somebody asks for by number."""
    taken = {*host.ports, *host.host.listening, *asked, *host.host.ports}
    first = max((*host.host.ports, 17999)) + 1
    return (port for port in itertools.chain(range(first, 65536), range(18000, 65536)) if port not in taken)


def more_ports(host: Host, fresh: Sequence[int]) -> Option:
    """These ports besides its own."""
    edit = Edit("host", host.name, "ports", (*host.ports, *fresh))
    return option_of("ports", f"widen fleet_ports of {host.name} by {len(fresh)}", edit, more=_EACH * (len(fresh) - 1))


def more_sharers(host: Host, most: int) -> Option:
    """So many may share a GPU."""
    edit = Edit("host", host.name, "shared_max", most)
    return option_of("shared_max", f"raise fleet_shared_max of {host.name} to {most}", edit, more=_EACH * (most - host.shared_max - 1))


def more_compute(host: Host, most: float) -> Option:
    """So much compute may be promised on a shared GPU; in hundredths, for that is how people write it."""
    most = math.ceil(round(100 * most, 6)) / 100
    edit = Edit("host", host.name, "shared_compute", most)
    text = f"raise fleet_shared_compute of {host.name} to {most:g}"
    return option_of("shared_compute", text, edit, more=_EACH * (most - host.shared_compute))


def more_room(host: Host, kind: str, lacking: float, more: float) -> Option:
    """So much more CPU, memory or disk than it has, which may also come of others who leave. ``more``: as ``option_of`` has it."""
    grown = round(getattr(host.capacity, kind) + lacking, 6)
    text = f"free {amount(kind, round(lacking, 6))} on {host.name}, or give it so much more"
    return option_of("capacity", text, Edit("host", host.name, f"capacity.{kind}", grown), more=more)


def without_limit(host: HostState, edit: Edit, asked: Set[int]) -> Edit:
    """The edit, which gives a host more of something, with as much as anybody could take."""
    if edit.field == "ports":
        return edit._replace(value=(*host.host.ports, *itertools.islice(beyond(host, asked), _MANY)))
    return edit._replace(value={"shared_max": MOST_SHARERS, "shared_compute": MOST_SHARED_COMPUTE}.get(edit.field))


def enough(host: HostState, edit: Edit, solution: Solution, before: Sequence[Placement], needs: Mapping[str, Need]) -> Option:
    """As much more as a plan without the limit uses. ``before``: who had a place when it was made; ``needs``: by service."""
    here = [place for place in solution.placements if place.host == host.host.name]
    sharing = [(uuid, place) for place in here if place.mode == "shared" for uuid in place.gpus]
    if edit.field == "ports":
        mine = set(host.host.ports)
        return more_ports(host.host, sorted({port for place in here for _name, port in place.ports if port not in mine}))
    if edit.field == "shared_max":
        sharers = Counter(uuid for uuid, _place in sharing)
        return more_sharers(host.host, max(sharers.values(), default=0))
    if edit.field == "shared_compute":
        promised: dict[str, float] = defaultdict(float)
        for uuid, place in sharing:
            promised[uuid] += needs[place.service].compute or 0
        return more_compute(host.host, max(promised.values(), default=0))
    kind = edit.field.partition(".")[2]
    had = [place for place in before if place.host == host.host.name]
    then, now = (sum(getattr(needs[place.service].resources, kind) or 0 for place in places) for places in (here, had))
    return more_room(host.host, kind, then - now - (getattr(host.free, kind) or 0), 1.0)
