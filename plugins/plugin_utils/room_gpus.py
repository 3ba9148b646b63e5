# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of hosts explained, and boards of which no host is needed: whose memory and SMs are where, and why. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import gpu_names
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import outside
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import Explained, Share, explain_layout, gib, lines, parse_layout
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import mode_of

Data = Mapping[str, t.Any]


def explain_hosts(
    hosts: Mapping[str, Data], catalogue: Catalogue, gpu: str | None = None, layout: str | None = None
) -> tuple[list[str], list[dict[str, t.Any]]]:
    """(a text for people, the same as data) of every GPU, or of the one that ``gpu`` names by UUID, PCI address or index.

    ``hosts``: name -> {facts, plan}. ``layout``: what the GPU would give if it were cut so, in place of what it has. FleetError when no
    GPU, or more than one, is meant, or the layout cannot be.
    """
    found = [
        (name, one, hosts[name])
        for name in sorted(hosts)
        for one in (hosts[name].get("facts") or {}).get("gpus") or ()
        if gpu is None or gpu.strip().lower() in gpu_names(one)
    ]
    if gpu is not None and len(found) != 1:
        names = ", ".join(name for name, _one, _host in found)
        wrong = (
            f"'{gpu}' means a GPU of each of {names}" if found else f"there is no GPU '{gpu}' on {', '.join(sorted(hosts)) or 'any host'}"
        )
        raise FleetError(wrong, field="gpu", hint="name its UUID, or narrow the hosts with --limit")
    text: list[str] = []
    data: list[dict[str, t.Any]] = []
    for name, one, host in found:
        part, explained = _gpu(name, one, host, catalogue, layout)
        text += [*([""] if text else []), *part]
        data.append({"host": name, "gpu": one.get("uuid"), **(_as_data(explained) if explained else {"sentence": part[-1]})})
    return text or ["no GPU on any of these hosts"], data


def explain_board(board: str, layout: str, catalogue: Catalogue) -> tuple[list[str], list[dict[str, t.Any]]]:
    """The same for a kind of board and a layout, from what public sources say of it; no host is needed. FleetError as above."""
    name, geometry = _board(board, catalogue)
    explained = explain_layout(geometry, parse_layout(geometry, layout))
    return [f"{name}, from public sources", *lines(explained)], [{"board": name, **_as_data(explained)}]


def _board(asked: str, catalogue: Catalogue) -> tuple[str, Geometry]:
    """(its name, its geometry) of a board by its catalogue id, its product, or the kind that several boards share (``a100-80gb``)."""

    def plain(name: str) -> str:
        return name.strip().lower().replace("_", "-").replace(" ", "-")

    wanted = plain(asked)
    kinds: dict[str, list[str]] = {}
    for board in catalogue.boards.values():
        geometry = catalogue.of_board(board.id)
        if geometry is None:
            if wanted in (plain(board.id), plain(board.product)):
                raise FleetError(f"{board.product} has no MIG, or its geometry is not known", field="board", hint="name another board")
            continue
        if wanted in (plain(board.id), plain(board.product)):
            return board.id, geometry
        kinds.setdefault(plain(board.geometry or ""), []).append(board.id)
    if wanted in kinds:
        geometry = catalogue.of_board(kinds[wanted][0])
        if geometry is not None:
            return wanted, geometry
    known = ", ".join(sorted(kinds))
    raise FleetError(
        f"there is no board '{asked}' in the catalogue", field="board", hint=f"it knows {known}, and boards by their product names"
    )


def _gpu(name: str, gpu: Data, host: Data, catalogue: Catalogue, layout: str | None) -> tuple[list[str], Explained | None]:
    facts, mig = host["facts"], gpu.get("mig")
    title = f"{name} GPU {gpu.get('index')} ({gpu.get('pci')}, {gpu.get('uuid')}, {gpu.get('name')}), MIG {mode_of(gpu)}"
    drained = gpu.get("drain") or facts["host"].get("drain")
    head = [title, *([words(drained)] if drained else [])]
    if gpu.get("state", "ok") != "ok":
        return [*head, f"this GPU is {gpu['state']}: {gpu.get('error') or 'no reason given'}"], None
    geometry = _geometry(gpu, facts, catalogue)
    memory = gib(gpu.get("memory_mib") or 0)
    if layout is not None:
        if geometry is None:
            raise FleetError(f"GPU {gpu.get('pci')} of {name} has no MIG, or no geometry is known", field="layout", hint="leave it out")
        explained = explain_layout(geometry, parse_layout(geometry, layout))
        return [*head, f"if it were cut as {layout}:", *lines(explained)], explained
    users = _users(gpu, facts, host.get("plan"))
    if mig and mig.get("current") and geometry is not None:
        slices = [Slice(int(one["start"]), str(one["profile"])) for one in mig.get("instances") or ()]
        explained = explain_layout(geometry, slices)
        return [*head, *lines(explained, {one: who for one, who in users.items() if one is not None})], explained
    who = f"; {users[None]} has it" if users.get(None) else ""
    most = max((profile.sm for profile in geometry.profiles), default=0) if geometry else 0
    sm = f" and all {most} SMs" if most else ""
    why = "MIG is off" if mig else "this board has no MIG"
    return [*head, f"{why}: whoever has this GPU has all {memory}{sm}, and nothing is out of reach{who}"], None


def _geometry(gpu: Data, facts: Data, catalogue: Catalogue) -> Geometry | None:
    if gpu.get("mig") is None:
        return None
    known = facts["geometries"].get(gpu["mig"].get("geometry"))
    return Geometry.from_dict(known) if known is not None else catalogue.fallback(gpu.get("device_id"), gpu.get("name"))


def _users(gpu: Data, facts: Data, plan: Data | None) -> dict[Slice | None, str]:
    """Who is on each slice (None: on the GPU as a whole), by the plan and else by what was seen there."""
    found: dict[Slice | None, list[str]] = {}
    for line in (plan or {}).get("services") or ():
        if gpu.get("uuid") in (line.get("gpus") or [line.get("gpu")]):
            place = Slice(int(line["start"]), str(line["profile"])) if line.get("profile") else None
            found.setdefault(place, []).append(name_of(line))
    strangers = outside(facts, gpu, plan)
    mig = gpu.get("mig") or {}
    places: dict[str, Slice | None] = {str(gpu.get("uuid")): None}
    for one in mig.get("instances") or ():
        places.update({str(part.get("uuid")): Slice(int(one["start"]), str(one["profile"])) for part in one.get("ci") or ()})
    for device, names in strangers.items():
        if device in places:
            found.setdefault(places[device], []).extend(f"{each}, in no plan" for each in names)
    return {place: ", ".join(sorted(names)) for place, names in found.items()}


def _as_data(explained: Explained) -> dict[str, t.Any]:
    def share(part: Share) -> dict[str, int]:
        return {"memory_slices": part.slices, "memory_mib": part.mib, "sm": part.sm}

    return {
        "layout": explained.layout,
        "total": share(explained.total),
        "used": share(explained.used),
        "free": share(explained.free),
        "out_of_reach": share(explained.lost),
        "better": list(explained.better),
        "why": explained.why,
        "sentence": explained.sentence,
    }
