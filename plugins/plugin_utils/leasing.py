# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of services as people read them, and which replicas of a service have one. Pure."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import day
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name

Data = Mapping[str, t.Any]


def lease_lines(hosts: Mapping[str, Data]) -> list[str]:
    """One line for each lease of each host. ``hosts``: name -> {facts}."""
    return [
        f"{name} {lease['name']}: {_words(lease)}"
        for name in sorted(hosts)
        for lease in (hosts[name].get("facts") or {}).get("leases") or ()
    ]


def lease_ends(hosts: Mapping[str, Data]) -> dict[str, str]:
    """Replica -> when its lease ends, as people read it (``2026-12-01``); empty where it is over. ``hosts``: name -> {facts}."""
    every = (lease for name in sorted(hosts) for lease in (hosts[name].get("facts") or {}).get("leases") or ())
    return {str(lease["name"]): "" if lease["ended"] else day(str(lease["ends"])) for lease in every}


def _words(lease: Data) -> str:
    if lease["ended"]:
        return f"its lease is over since {lease['ended']} ({lease['why']}); playbook extend starts it again"
    return f"its lease ends {lease['ends']}" + (", notice is given" if lease["noticed"] else "")


def lease_problem(hosts: Mapping[str, Data], service: str, replica: t.Any = None) -> str:
    """Why the lease of a service, or of one replica, cannot be extended: no host has it, or one that does cannot be read. Else empty.

    ``hosts``: name -> {facts, and unread with the reason or down when it was not read in this run}.
    """
    what = service if replica is None else replica_name(service, replica)
    absent = {name: _absent(host) for name, host in sorted(hosts.items()) if _absent(host)}
    having = [name for name, host in sorted(hosts.items()) if leased_replicas(host.get("facts"), service, replica)]
    for name in having:
        if name in absent:
            return f"{name}, which has a lease of {what}, {absent[name]}"
    if having:
        return ""
    return (
        f"no host has a lease of {what}"
        if not absent
        else f"no host that could be read has a lease of {what}; not read: {', '.join(absent)}"
    )


def _absent(host: Data) -> str:
    return "is in fleet_down_hosts" if host.get("down") else f"cannot be read: {host['unread']}" if host.get("unread") else ""


def leased_replicas(facts: Data | None, service: str, replica: t.Any = None) -> list[int]:
    """Numbers of the service's replicas that have a lease on a host; of one replica when it is named. FleetError when that is no number."""
    wanted = None
    if replica is not None and str(replica).strip():
        if not re.fullmatch(r"[1-9][0-9]*", str(replica).strip()):
            raise FleetError(f"expected the number of a replica, found '{replica}'", field="replica", hint="write replica=1")
        wanted = int(str(replica))
    found = [re.fullmatch(rf"{re.escape(service)}-([0-9]+)", str(lease["name"])) for lease in (facts or {}).get("leases") or ()]
    numbers = sorted(int(match[1]) for match in found if match)
    return [number for number in numbers if wanted is None or number == wanted]
