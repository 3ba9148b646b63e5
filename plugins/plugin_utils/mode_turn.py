# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The turn of each host whose GPUs get another mode: who leaves them, what is done, who comes back. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.deploying import who_stays
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode import PLANNED, REASON, Target, left_drained
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.upgrade import carried_on, lost, moves, places_of

Data = Mapping[str, t.Any]
Plan = Callable[[Mapping[str, tuple[str, str]], Mapping[str, Data]], Planned]

_DRAIN = {"by": "this run", "reason": REASON, "since": "", "until": None}
_WHAT = "playbook mode"


def turns(
    plan: Plan,
    texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Data],
    targets: Mapping[str, Sequence[Target]],
    steps: Mapping[str, Sequence[str]],
    outage: bool,
) -> list[dict[str, t.Any]]:
    """What happens at the turn of each host, one after the other, every plan made from the one before.

    ``plan``: texts of the last plans and hosts -> the decision. ``texts``: host -> (path, text). ``targets``: host -> its GPUs that are
    named. ``steps``: host -> what the modules would do, in words. Each turn: ``host``, ``due`` (whether anything is to be done),
    ``emptied`` (GPUs, by UUID, that are drained for it), ``moves``, ``back``, ``stops`` (replicas without a place meanwhile), ``out``
    (replicas without one in the end) and ``lines`` of all of it.

    :raises FleetError: a replica can go nowhere and may not be stopped, or a version waits for a deploy; nothing is to be touched then.
    """
    last: dict[str, Data] = {name: read_plan(*text).data for name, text in texts.items()}
    known, now, result = dict(texts), dict(hosts), []
    for host, mine in targets.items():
        begun = left_drained(now[host]["facts"], [one.uuid for one in mine]) is not None
        before = places_of({name: {"plan": each} for name, each in last.items()})
        carried = last.get(host)
        # Nobody is asked to leave a GPU on which nobody is. While it is switched, this run holds its host.
        there = {gpu for line in (carried or {}).get("services") or () for gpu in line.get("gpus") or [line.get("gpu")]}
        emptied = [str(one.uuid) for one in mine if one.was in PLANNED and one.uuid in there] if steps.get(host) else []
        if emptied:
            decided = plan(known, {**now, host: _drained(now[host], emptied, {**_DRAIN, "force": outage})})
            last = carried_on(last, decided, _WHAT)
            _refuse_stuck(host, emptied, last.get(host) or {}, decided, outage)
            known = _texts(known, decided)
            _refuse_loss(before, last, decided, outage)
        without = places_of({name: {"plan": each} for name, each in last.items()})
        now[host] = _drained({**now[host], "facts": facts_after(now[host]["facts"], mine)}, [str(one.uuid) for one in mine], None)
        again = plan(known, now)
        last = carried_on(last, again, _WHAT)
        known = _texts(known, again)
        _refuse_loss(before, last, again, outage)
        after = places_of({name: {"plan": each} for name, each in last.items()})
        left, back = moves(before, without), moves(without, after)
        stops = sorted(name for name in before if name not in without)
        out = sorted(name for name in before if name not in after)
        due = bool(steps.get(host)) or begun or bool(left or back) or not _is_carried(hosts[host]["facts"], carried, last.get(host))
        result.append(
            {
                "host": host,
                "due": due,
                "emptied": emptied,
                "moves": left,
                "back": back,
                "stops": stops,
                "out": out,
                "lines": _lines(host, mine, emptied, steps.get(host) or (), left, back, out) if due else [],
            }
        )
    return result


def _texts(known: Mapping[str, tuple[str, str]], decided: Planned) -> dict[str, tuple[str, str]]:
    return {**known, **{name: (f"{name}.yml", each.text) for name, each in decided.plans.items()}}


def _is_carried(facts: Data, before: Data | None, after: Data | None) -> bool:
    """Is the plan of the host, as it will be, the one that it has carried out? A host that has nothing to do carries none."""
    if after is None or not (after["layout"] or after["services"] or before):
        return True
    carried = facts.get("plan") or {}
    return carried.get("state") == "done" and carried.get("digest") == after["digest"]


def _drained(host: Data, gpus: Iterable[str], drain: Data | None) -> dict[str, t.Any]:
    wanted = set(gpus)
    facts = host["facts"]
    return {**host, "facts": {**facts, "gpus": [{**gpu, "drain": drain} if gpu.get("uuid") in wanted else gpu for gpu in facts["gpus"]]}}


def _refuse_stuck(host: str, gpus: Sequence[str], plan: Data, decided: Planned, outage: bool) -> None:
    if stuck := who_stays(plan, decided.unplaced, gpus):
        hint = "take it away by hand first" if outage else "make room, or let it stop: -e mode_outage=true"
        raise FleetError("; ".join(f"{name} cannot leave {host}: {reason}" for name, reason in stuck.items()), hint=hint)


def _refuse_loss(before: Mapping[str, str], last: Mapping[str, Data], decided: Planned, outage: bool) -> None:
    """A place can also be lost because the GPU's new mode does not have such places."""
    gone = [] if outage else lost(before, places_of({name: {"plan": each} for name, each in last.items()}), decided.unplaced)
    if gone:
        raise FleetError("; ".join(gone), hint="make room, or let it stop: -e mode_outage=true")


def facts_after(facts: Data, targets: Iterable[Target]) -> dict[str, t.Any]:
    """The facts of a host as they will be, as far as anybody knows: what a GPU that comes back from a guest can take, shows itself then."""
    gpus = {str(gpu.get("pci")): dict(gpu) for gpu in facts.get("gpus") or ()}
    away = {str(entry.get("pci")): entry for entry in facts.get("passthrough") or ()}
    for one in targets:
        gpu = gpus.get(one.pci)
        if one.wanted == "passthrough":
            gpus.pop(one.pci, None)
            away.setdefault(one.pci, {"pci": one.pci, "uuid": one.uuid, "identity": {"vendor": "0x10de"}})
        elif gpu is not None:
            gpu["vgpu"] = {"vfs": 1, "vgpus": list(one.layout["vgpus"])} if one.wanted == "vgpu" else None
            if gpu.get("mig") is not None and bool(gpu["mig"].get("pending")) is not one.cut:
                gpu["mig"] = {**gpu["mig"], "current": one.cut, "pending": one.cut, "instances": []}
    return {**facts, "gpus": [gpus[pci] for pci in sorted(gpus)], "passthrough": [away[pci] for pci in sorted(away)]}


def _lines(
    host: str,
    targets: Sequence[Target],
    emptied: Sequence[str],
    steps: Sequence[str],
    left: Sequence[str],
    back: Sequence[str],
    out: Sequence[str],
) -> list[str]:
    gone = [line for line in left if not line.endswith(" to none")]
    stopped = [line.partition(" from ")[0] for line in left if line.endswith(" to none")]
    names = ", ".join(f"{one.pci} from {one.was} to {one.mode}" for one in targets)
    comes = [one.pci for one in targets if one.was == "passthrough" and one.wanted in PLANNED]
    return [
        f"{host}: {names}",
        *([f"{host}: drain {', '.join(emptied)}" + (f"; {', '.join(gone)}" if gone else "")] if emptied else []),
        *(f"{host}: {name} is stopped" + ("" if name in out else " for the time") for name in stopped),
        *(f"{host}: {step}" for step in steps),
        f"{host}: see that it is so, deploy" + (f"; {', '.join(back)}" if back else ""),
        *(f"{host}: {name} has no place any more" for name in out),
        *(f"{host}: what fits on {pci} is known when its driver has it again" for pci in comes),
    ]
