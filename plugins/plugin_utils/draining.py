# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains as people read them: what is drained and what was, who is on a GPU now, and what to do next. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import day, words
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.parents import guest_rows
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

Data = Mapping[str, t.Any]
# (profile, start), both None for the GPU as a whole.
_Place = tuple[str | None, int | None]


def status_lines(hosts: Mapping[str, Data]) -> list[str]:
    """One line for each drain of each host. ``hosts``: name -> {facts}."""
    return [line for name in sorted(hosts) for line in drain_lines(name, hosts[name].get("facts") or {})]


def drain_lines(name: str, facts: Data) -> list[str]:
    """One line for each drain of a host: those in force, then those that are over or whose GPU is gone."""
    lines = []
    whole = (facts.get("host") or {}).get("drain")
    if whole:
        lines.append(f"{name}: the whole host is {_since(whole)}")
    for gpu in facts.get("gpus") or ():
        if gpu.get("drain"):
            lines.append(f"{name} GPU {gpu.get('pci') or gpu.get('uuid')}: {_since(gpu['drain'])}")
    away = {entry["uuid"]: entry for entry in facts.get("passthrough") or () if entry.get("uuid")}
    for drain in facts.get("drains_idle") or ():
        if drain["gpu"] in away and drain["why"] != "ended":
            entry = away[drain["gpu"]]
            lines.append(f"{name} GPU {entry['pci']}, which {entry.get('guest') or 'a virtual machine'} has: {_since(drain)}")
            continue
        what = drain["gpu"] or "the whole host"
        end = f"ended {day(str(drain['until']))}" if drain["why"] == "ended" else "is for a GPU that is not there any more"
        lines.append(f"{name} {what}: the drain by {drain['by']} ({drain['reason']}) {end}; playbook release forgets it")
    return lines


def _since(drain: Data) -> str:
    return f"{words(drain)}, since {day(str(drain['since']))}" + (", by force" if drain["force"] else "")


def who_is_on(facts: Data, plan: Data | None, gpu: str | None) -> list[str]:
    """A table of who is on a GPU (UUID; None: on any GPU of the host): services by the plan, containers and processes as seen, guests."""
    rows: list[list[t.Any]] = [["GPU", "SLICE", "SERVICE", "CONTAINER", "PIDS"]]
    for entry in facts.get("gpus") or ():
        if gpu is None or entry.get("uuid") == gpu:
            rows.extend([entry.get("pci") or entry.get("uuid"), *cells] for cells in _rows(entry, facts, plan))
    rows.extend([card, what, guest, None, None] for card, what, guest in guest_rows(facts, gpu))
    return table(rows) if len(rows) > 1 else ["nobody is on it"]


def _rows(gpu: Data, facts: Data, plan: Data | None) -> Iterable[list[t.Any]]:
    instances = (gpu.get("mig") or {}).get("instances") or ()
    by_gi: dict[t.Any, _Place] = {one.get("gi"): (one["profile"], one["start"]) for one in instances}
    by_device: dict[str, _Place] = {str(gpu.get("uuid")): (None, None)}
    for one in instances:
        by_device.update({str(part.get("uuid")): (one["profile"], one["start"]) for part in one.get("ci") or ()})
    services: dict[_Place, set[str]] = {}
    containers: dict[_Place, set[str]] = {}
    pids: dict[_Place, set[int]] = {}
    for line in (plan or {}).get("services") or ():
        if gpu.get("uuid") in (line.get("gpus") or [line.get("gpu")]):
            services.setdefault((line.get("profile"), line.get("start")), set()).add(name_of(line))
    for box in facts.get("containers") or ():
        for device in box.get("devices") or ():
            if device in by_device:
                containers.setdefault(by_device[device], set()).add(str(box.get("name")))
    for holder in gpu.get("holders") or ():
        place = by_gi.get((holder.get("slice") or {}).get("gi"), (None, None))
        pids.setdefault(place, set()).add(int(holder["pid"]))
    places = {*services, *containers, *pids}
    for place in sorted(places, key=lambda each: (each[1] is None, each[1] or 0, each[0] or "")):
        yield [
            f"{place[0]}@{place[1]}" if place[0] else "whole",
            *(", ".join(map(str, sorted(found.get(place, ())))) or None for found in (services, containers, pids)),
        ]


def next_steps(host: str, drained: bool) -> list[str]:
    """What comes after a drain, or after a release."""
    if drained:
        why = "next: give what is on it another place, look at the plan, and carry it out (on every host that the plan changes)"
    else:
        why = "next: let the plan use it again, and carry it out"
    return [why, "  ansible-playbook ... gpuops.fleet.plan --diff", "  ansible-playbook ... gpuops.fleet.apply", *_undo(host, drained)]


def _undo(host: str, drained: bool) -> list[str]:
    return [f"and when it is over: ansible-playbook ... gpuops.fleet.release --limit {host}"] if drained else []
