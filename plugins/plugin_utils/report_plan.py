# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report reads out of a host's plan and facts: which GPU is meant for whom, and who is on it without being in the plan. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import only_watches
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_gpu import Tenant, Wish

Data = Mapping[str, t.Any]

#: Holders of these kinds compute; a mere open file (a monitor, a persistence daemon) does not keep a GPU from others.
_COMPUTING = ("compute", "graphics", "mps")


@dataclass(frozen=True)
class Service:
    """What the report needs of a manifest. ``asked_mib`` is the memory needed on each GPU, None where only a profile is asked for."""

    name: str
    team: str
    environment: str
    replicas: int = 1
    asked_mib: int | None = None
    profile: str | None = None
    adopted: bool = False


def wishes(host: str, plan: Data | None, services: Mapping[str, Service]) -> dict[str, Wish]:
    """What a host's plan says, by GPU UUID."""
    try:
        return _read(host, plan or {}, services)
    except KeyError as error:
        raise FleetError(f"an entry lacks {error}", field=f"plan of {host}", hint="make the plan again with the plan playbook") from error


def _read(host: str, plan: Data, services: Mapping[str, Service]) -> dict[str, Wish]:
    modes: dict[str, str] = {}
    slices: dict[str, list[Slice]] = {}
    for row in plan.get("layout") or ():
        if "mode" in row:
            modes[str(row["gpu"])] = str(row["mode"])
        else:
            slices.setdefault(str(row["gpu"]), []).append(Slice(int(row["start"]), str(row["profile"])))
    tenants: dict[tuple[str, Slice | None], list[Tenant]] = {}
    for row in plan.get("services") or ():
        service = services.get(str(row["service"]))
        tenant = Tenant(str(row["service"]), int(row["replica"]), service.team if service else None, service.asked_mib if service else None)
        place = Slice(int(row["start"]), str(row["profile"])) if row.get("profile") else None
        for gpu in row.get("gpus") or [row["gpu"]]:
            modes.setdefault(str(gpu), "mig" if place else str(row.get("mode") or "whole"))
            tenants.setdefault((str(gpu), place), []).append(tenant)
    for (gpu, place), several in tenants.items():
        several.sort(key=lambda one: (one.service, one.replica))
        if len(several) > 1 and (place is not None or modes[gpu] != "shared"):
            where = f"slice {place} of {gpu}" if place else gpu
            raise FleetError(
                f"{' and '.join(map(str, several))} both hold {where}", field=f"plan of {host}", hint="give each its own place"
            )
    return {gpu: _wish(gpu, modes[gpu], slices.get(gpu, []), tenants) for gpu in sorted({*modes})}


def _wish(gpu: str, mode: str, slices: Sequence[Slice], tenants: Mapping[tuple[str, Slice | None], Sequence[Tenant]]) -> Wish:
    places = {place: held[0] for (owner, place), held in tenants.items() if owner == gpu and place is not None}
    whole = tenants.get((gpu, None), ())
    if mode == "shared":
        return Wish(mode, sharers=tuple(whole))
    return Wish(mode, tuple(sorted({*slices, *places})), places, whole[0] if whole else None)


def outside(facts: Data, gpu: Data, plan: Data | None) -> dict[str, tuple[str, ...]]:
    """Who uses this GPU or a slice of it, by device UUID, as far as facts were asked for holders and containers.

    Containers of the plan's own replicas are left out, and those that only watch: an exporter names every GPU and keeps none.
    """
    own = {replica_name(row.get("service"), row.get("replica")) for row in (plan or {}).get("services") or ()}
    mig = gpu.get("mig") or {}
    devices = {
        (entry.get("gi"), part.get("id")): str(part.get("uuid")) for entry in mig.get("instances") or () for part in entry.get("ci") or ()
    }
    users: dict[str, set[str]] = {}
    # A process tells the id of its container, and people know containers by their names.
    boxes = {container.get("id"): container for container in facts.get("containers") or ()}
    for holder in gpu.get("holders") or ():
        box = boxes.get(holder.get("container") or "")
        if holder.get("kind") in _COMPUTING and holder.get("container") not in own and (box is None or box.get("project") not in own):
            part = holder.get("slice")
            device = devices.get((part.get("gi"), part.get("ci")), "") if part else str(gpu.get("uuid"))
            named = f"container {box.get('name')}" if box else holder.get("container") or holder.get("process") or "an unknown process"
            users.setdefault(device, set()).add(str(named))
    for container in facts.get("containers") or ():
        if container.get("project") not in own and container.get("state") != "removed" and not only_watches(container):
            for device in container.get("devices") or ():
                users.setdefault(str(device), set()).add(f"container {container.get('name')}")
    return {device: tuple(sorted(names)) for device, names in users.items()}
