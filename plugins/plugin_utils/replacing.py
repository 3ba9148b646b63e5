# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A board was exchanged: which new GPU stands in the slot of which old one, and the plans and lines that name the old UUID. Pure."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, why_not
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import HostPlan, read_plan, with_other_gpus
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

Data = Mapping[str, t.Any]


@dataclass(frozen=True)
class Exchange:
    """One board in the place of another of its kind."""

    host: str
    pci: str
    old: str
    new: str
    model: str


@dataclass(frozen=True)
class Mention:
    """A line of a person's file that names an old UUID, and how it would read."""

    path: str
    line: int
    before: str
    after: str


@dataclass
class Proposal:
    """What was found. ``plans``: those that change, by host. ``refusals``: GPUs that are gone and that no new one clearly replaces.

    A host with a refusal keeps its plan as it is. ``notes``: what else a person has to know or do.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    plans: dict[str, HostPlan] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def table(self, mentions: Sequence[Mention] = ()) -> list[str]:
        """For people: every exchange, every refusal, every line that names an old GPU."""
        lines: list[str] = []
        if self.exchanges:
            rows: list[list[t.Any]] = [["HOST", "SLOT", "BOARD", "OLD", "NEW", "PLAN"]]
            for one in self.exchanges:
                plan = self.plans.get(one.host)
                rows.append([one.host, one.pci, one.model, one.old, one.new, f"{plan.data['serial']}" if plan else "names it nowhere"])
            lines += table(rows)
        lines += [f"not replaced: {line}" for line in self.refusals]
        lines += [f"{each.path}:{each.line}: {each.before.strip()} -> {each.after.strip()}" for each in mentions]
        lines += self.notes
        return lines or ["every GPU that the plans and the facts published last name is there"]


@dataclass(frozen=True)
class _Board:
    """What is known of a GPU. None: not known of one that is gone, where only a plan names it."""

    uuid: str
    pci: str
    model: str
    name: str | None = None
    memory_mib: int | None = None
    geometry: str | None = None


def propose(
    hosts: Mapping[str, Data], plan_texts: Mapping[str, tuple[str, str]], published: Mapping[str, Data], catalogue: Catalogue
) -> Proposal:
    """Compare hosts with what was known of them.

    ``hosts``: name -> {facts} as read now. ``plan_texts``: host -> (path, text) of the plan files. ``published``: the facts published last,
    of hosts that have any. FleetError when a paper is damaged.
    """
    found = Proposal()
    for name in sorted(hosts):
        facts = check_facts(name, hosts[name].get("facts"))
        plan = read_plan(*plan_texts[name]) if name in plan_texts else None
        _host(found, name, facts, plan, published.get(name) or {}, catalogue)
    return found


def _host(found: Proposal, name: str, facts: Data, plan: HostPlan | None, before: Data, catalogue: Catalogue) -> None:
    now = {str(gpu["uuid"]): gpu for gpu in facts["gpus"] if gpu.get("uuid")}
    planned = _planned(plan)
    old = {str(gpu["uuid"]): _board(gpu, catalogue) for gpu in before.get("gpus") or () if gpu.get("uuid")}
    for uuid, board in planned.items():
        old.setdefault(uuid, board)
    exchanges: list[Exchange] = []
    refusals: list[str] = []
    for uuid in sorted(set(old) - set(now), key=lambda each: (old[each].pci, each)):
        new, reason = _successor(old[uuid], facts["gpus"], old, planned, catalogue)
        if new is not None and uuid in planned and plan is not None:
            reason = _does_not_fit(uuid, new, plan, facts)
        if reason is not None or new is None:
            refusals.append(f"{name} {uuid} ({old[uuid].pci or 'slot not known'}, {old[uuid].model}) is gone: {reason}")
        else:
            exchanges.append(Exchange(name, new.pci, uuid, new.uuid, new.model))
    found.refusals += refusals
    if refusals and exchanges:
        found.notes.append(f"{name}: nothing is changed for it while another of its GPUs is missing")
    if refusals:
        return
    found.exchanges += exchanges
    changes = {one.old: one.new for one in exchanges}
    if plan is not None and set(changes) & set(planned):
        found.plans[name] = with_other_gpus(plan, changes, facts)
        found.notes += _adopted(name, plan, changes)
    for drain in facts.get("drains_idle") or ():
        if drain.get("gpu") in changes:
            found.notes.append(
                f"{name}: {drain['gpu']} is still on record as drained by {drain['by']}: playbook release with drain_gpu={drain['gpu']}"
            )


def _adopted(name: str, plan: HostPlan, changes: Mapping[str, str]) -> list[str]:
    """Nobody but who started them can give these their new device."""
    lines = [line for line in plan.data["services"] if line.get("lifecycle") == "adopted"]
    there = [line for line in lines if set(changes) & set(line.get("gpus") or [line["gpu"]])]
    return [f"{name}: {line['service']}-{line['replica']} is adopted: start it by hand on the new board" for line in there]


def _planned(plan: HostPlan | None) -> dict[str, _Board]:
    """Every GPU that a plan names, with what it says of it."""
    if plan is None:
        return {}
    boards = {
        line["gpu"]: _Board(line["gpu"], str(line.get("pci") or ""), str(line.get("model") or "unknown"))
        for line in plan.data["layout"]
        if "mode" in line
    }
    for line in (*plan.data["base"]["gpus"], *plan.data["services"]):
        for uuid in line.get("gpus") or [line["gpu"]]:
            boards.setdefault(uuid, _Board(uuid, "", "unknown"))
    return boards


def _board(gpu: Data, catalogue: Catalogue) -> _Board:
    model = catalogue.board_id(gpu.get("device_id"), gpu.get("name"))
    geometry = (gpu.get("mig") or {}).get("geometry")
    return _Board(str(gpu["uuid"]), str(gpu.get("pci") or ""), model, gpu.get("name"), gpu.get("memory_mib"), geometry)


def _successor(
    old: _Board, gpus: Sequence[Data], known: Mapping[str, _Board], planned: Mapping[str, _Board], catalogue: Catalogue
) -> tuple[_Board | None, str | None]:
    """(the new GPU in its slot, None), or (None, why there is none). The new one may be in the published facts already, in that slot."""
    here = [gpu for gpu in gpus if gpu.get("uuid")]
    entry = next((gpu for gpu in here if old.pci and gpu.get("pci") == old.pci), None)
    if entry is None:
        new_ones = [gpu for gpu in here if gpu["uuid"] not in planned]
        elsewhere = [str(gpu["pci"]) for gpu in new_ones if _board(gpu, catalogue).model == old.model and gpu["uuid"] not in known]
        lost = sum(not gpu.get("uuid") for gpu in gpus)
        if elsewhere:
            return (
                None,
                f"its slot is empty, and a new board of its kind is in another slot, {' and '.join(elsewhere)}; plan again decides anew",
            )
        return None, "its slot is empty" + (f", and {lost} lost GPU of this host cannot be named" if lost else "")
    new = _board(entry, catalogue)
    before = planned.get(new.uuid) or known.get(new.uuid)
    if before is not None and (new.uuid in planned or before.pci != new.pci):
        return None, f"in its slot is {new.uuid}, which is no new board: it was in slot {before.pci or 'unknown'}; plan again decides anew"
    if entry.get("state", "ok") != "ok":
        return None, f"the new board in its slot, {new.uuid}, is {entry['state']}"
    same_kind = new.model == old.model and (old.name is None or old.name == new.name)
    if not same_kind:
        return None, f"in its slot is another model, {new.name or new.model}; plan again decides anew"
    if old.memory_mib is not None and old.memory_mib != new.memory_mib:
        return None, f"the new board has {new.memory_mib} MiB and the old one had {old.memory_mib}; plan again decides anew"
    if old.geometry is not None and new.geometry is not None and old.geometry != new.geometry:
        return None, f"the new board {new.uuid} is cut in another way (another firmware or display mode); plan again decides anew"
    return new, None


def _does_not_fit(old: str, new: _Board, plan: HostPlan, facts: Data) -> str | None:
    """Why the new board cannot have the layout that the plan gives the old one; None when it can, or its geometry is not told."""
    data = facts["geometries"].get(new.geometry)
    slices = [Slice(line["start"], line["profile"]) for line in plan.data["layout"] if line["gpu"] == old and "profile" in line]
    if data is None or not slices:
        return None
    reason = why_not(Geometry.from_dict(data), slices)
    return None if reason is None else f"the new board cannot have its layout: {reason}"


def mentions(exchanges: Iterable[Exchange], texts: Iterable[tuple[str, str]]) -> tuple[list[Mention], dict[str, str]]:
    """(lines that name an old UUID, the whole text of each such file with the new one). Nothing else of a file is touched."""
    new = {one.old.lower(): one.new for one in exchanges}
    if not new:
        return [], {}
    pattern = re.compile(rf"(?<![0-9A-Za-z-])(?:{'|'.join(map(re.escape, new))})(?![0-9A-Za-z-])", re.IGNORECASE)
    found: list[Mention] = []
    files: dict[str, str] = {}
    for path, text in texts:
        lines = text.split("\n")
        for number, line in enumerate(lines):
            after = pattern.sub(lambda match: new[match[0].lower()], line)
            if after != line:
                found.append(Mention(path, number + 1, line, after))
                lines[number] = after
                files[path] = ""
        if path in files:
            files[path] = "\n".join(lines)
    return found, files


def published_facts(host: str, data: t.Any) -> Data:
    """Facts that were published, looked at only as far as they are needed here. FleetError when they are no facts."""
    if not isinstance(data, Mapping) or not isinstance(data.get("gpus"), Sequence):
        raise FleetError("these are not host facts", file=f"host {host}", hint="remove the file and run playbook plan")
    return data
