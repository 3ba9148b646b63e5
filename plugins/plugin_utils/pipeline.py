# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a planning run changes, per replica, service and host: from last plans, new ones and the manifests of both (docs/gitlab.md)."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Field, Strict, check
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import SETTINGS, Manifest

Data = Mapping[str, t.Any]
Key = tuple[str, int]

# What happens to a replica; the first three are what GitLab's report widget counts.
CREATE, UPDATE, DELETE, KEEP = "create", "update", "delete", "keep"


@dataclass(frozen=True)
class Service:
    """What a pipeline says and decides of a service, from its manifest. ``lease_hours``: 0 without a lease."""

    name: str
    team: str
    environment: str
    file: str = ""
    route: Data | None = None
    ports: tuple[str, ...] = ()
    lease_hours: float = 0.0
    settings: Data = field(default_factory=dict)
    adopted: bool = False
    priority: int = 0


def service_of(manifest: Manifest) -> Service:
    """A service out of its manifest."""
    data, model = manifest.data(), manifest.model
    return Service(
        name=manifest.service,
        team=str(model.team),
        environment=str(model.environment),
        file=manifest.file,
        route=data["route"],
        ports=tuple(port["name"] for port in data["ports"]),
        lease_hours=0.0 if model.lease is None else model.lease.days * 24,
        settings={key: data[key] for key in SETTINGS},
        adopted=model.lifecycle == "adopted",
        priority=model.priority,
    )


@dataclass(frozen=True)
class Replica:
    """What becomes of one replica. ``before`` and ``after``: (host, line of its plan), None where there is none."""

    service: str
    number: int
    action: str
    before: tuple[str, Data] | None
    after: tuple[str, Data] | None
    why: str

    @property
    def name(self) -> str:
        """``receipt-ocr-1``."""
        return f"{self.service}-{self.number}"


@dataclass(frozen=True)
class Work:
    """What is to be done with one service on one host.

    ``kind``: ``deploy`` (it shall be there, as the plan says) or ``remove`` (nothing of it stays there).
    """

    service: str
    host: str
    kind: str
    why: str


@dataclass(frozen=True)
class Changes:
    """Everything that a pipeline is made of. ``layouts``: hosts whose slices change while nothing of a service does, with a reason.
    ``waiting``: what is to be done on hosts that are down.
    """

    replicas: tuple[Replica, ...]
    work: tuple[Work, ...]
    layouts: Mapping[str, str]
    services: Mapping[str, Service]
    gpus: tuple[tuple[str, str, str, str], ...]
    waiting: tuple[Work, ...] = ()

    def count(self, action: str) -> int:
        """How many replicas have this action."""
        return sum(replica.action == action for replica in self.replicas)

    def widget(self) -> dict[str, int]:
        """What GitLab's report of a merge request shows (``artifacts:reports:terraform``)."""
        return {action: self.count(action) for action in (CREATE, UPDATE, DELETE)}


class _Waits(Strict):
    team: str
    environment: str


class _Pending(Strict):
    pending: t.Literal[1]
    hosts: dict[str, dict[str, _Waits]] = Field(default_factory=dict)


Pending = dict[str, dict[str, dict[str, str]]]


def read_pending(path: str, text: str | None) -> Pending:
    """Host -> service -> {team, environment} of work that was given to a pipeline and that nobody has seen done. ``text`` None: nothing.

    :raises FleetError: not of this form.
    """
    if text is None:
        return {}
    model = check(_Pending, read_yaml(text, path))
    return {host: {name: waits.model_dump() for name, waits in services.items()} for host, services in model.hosts.items()}


def still_pending(pending: Pending, last: Mapping[str, Data], facts: Mapping[str, Data | None], services: Mapping[str, Service]) -> Pending:
    """What is left of ``pending`` after a look at the hosts.

    A host that has carried its last plan (``last``: host -> plan) to its end has nothing left. One that carries none, or one that was not
    made here, may lack anything: all that its last plan has counts as given and not done. ``facts``: as just read, None where unread.
    """
    left: Pending = {}
    for host, plan in sorted(last.items()):
        waits = dict(pending.get(host) or {})
        record = (facts.get(host) or {}).get("plan")
        known = facts.get(host) is not None
        if known and record and record.get("digest") == plan["digest"] and record.get("state") == "done":
            continue
        if known and (not record or record["serial"] > plan["serial"] or _another(record, plan)):
            waits.update({line["service"]: _waits(services.get(line["service"])) for line in plan["services"] if managed(line)})
        if waits:
            left[host] = waits
    return left


def _another(record: Data, plan: Data) -> bool:
    return bool(record["serial"] == plan["serial"] and record["digest"] != plan["digest"])


def _waits(service: Service | None) -> dict[str, str]:
    return {"team": "", "environment": ""} if service is None else {"team": service.team, "environment": service.environment}


def now_pending(pending: Pending, changes: Changes) -> Pending:
    """``pending`` with the work that a pipeline is given now, and with what waits for a host; nothing for what happens to GPUs alone."""
    result: Pending = {host: dict(services) for host, services in pending.items()}
    for work in (*changes.work, *changes.waiting):
        result.setdefault(work.host, {})[work.service] = _waits(changes.services.get(work.service))
    return result


def pending_text(pending: Pending) -> str:
    """The text of ``pending.yml``: one service a line, sorted. Names are plain, so that no quotes are needed but for what is empty."""
    if not any(pending.values()):
        return "pending: 1\nhosts: {}\n"
    lines = ["pending: 1", "hosts:"]
    for host in sorted(host for host in pending if pending[host]):
        lines.append(f"  {host}:")
        for name, waits in sorted(pending[host].items()):
            lines.append(f"    {name}: {{team: {waits['team'] or chr(34) * 2}, environment: {waits['environment'] or chr(34) * 2}}}")
    return "\n".join([*lines, ""])


def compare(
    last: Mapping[str, Data],
    new: Mapping[str, Data],
    old_services: Mapping[str, Service],
    services: Mapping[str, Service],
    pending: Pending | None = None,
    down: Collection[str] = (),
    everything: bool = False,
    unplaced: Collection[Key] = (),
) -> Changes:
    """What changes from the plans ``last`` to the plans ``new`` (host -> plan as data), and what was given before and is not done.

    ``old_services`` and ``services``: of the manifests that belong to each. ``down``: hosts to which nobody goes; what is to be done there
    waits. ``everything``: every service counts as changed where it is. ``unplaced``: who has no place in the new plans, and should.
    """
    before, after = _lines(last), _lines(new)
    touched = {name: _other_settings(old_services[name], service) for name, service in services.items() if name in old_services}
    replicas = tuple(
        _replica(key, before.get(key), after.get(key), _why_gone(key, unplaced), touched.get(key[0], ""))
        for key in sorted({*before, *after})
    )
    known = {**old_services, **services}
    for waits in (pending or {}).values():
        for name, words in waits.items():
            known.setdefault(name, Service(name, words["team"], words["environment"]))
    found = _work(replicas, pending or {}, everything)
    work = tuple(each for each in found if each.host not in down)
    busy = {each.host for each in work}
    layouts = {
        host: "its slices change, and no service on it does"
        for host, plan in sorted(new.items())
        if host not in busy and host not in down and plan["layout"] != (last.get(host) or {"layout": []})["layout"]
    }
    return Changes(replicas, work, layouts, known, _gpus(last, new), tuple(each for each in found if each.host in down))


def _other_settings(old: Service, new: Service) -> str:
    return ", ".join(part for part in SETTINGS if old.settings.get(part) != new.settings.get(part))


def _lines(plans: Mapping[str, Data]) -> dict[Key, tuple[str, Data]]:
    return {
        (line["service"], line["replica"]): (host, line)
        for host, plan in sorted(plans.items())
        for line in plan["services"]
        if managed(line)
    }


def place_of(line: Data) -> str:
    """Where a line of a plan puts a replica on its host: ``GPU-5c1f07aa 1g.10gb@4``."""
    gpus = ",".join(uuid[:12] for uuid in line.get("gpus") or [line["gpu"]])
    return f"{gpus} {line['profile']}@{line['start']}" if "profile" in line else f"{gpus} {line['mode']}"


def _why_gone(key: Key, unplaced: Collection[Key]) -> str:
    return "has no place any more" if key in unplaced else "not wanted any more"


def _replica(key: Key, before: tuple[str, Data] | None, after: tuple[str, Data] | None, gone: str, touched: str) -> Replica:
    if before is None or after is None:
        action, why = (CREATE, "new") if before is None else (DELETE, gone)
        return Replica(*key, action, before, after, why)
    reasons = []
    if before[0] != after[0]:
        reasons.append(f"moves to {after[0]}")
    elif place_of(before[1]) != place_of(after[1]) or before[1].get("sharing") != after[1].get("sharing"):
        reasons.append("moves on its host, and stops first")
    if before[1]["manifest"] != after[1]["manifest"]:
        reasons.append("new version")
    if before[1]["ports"] != after[1]["ports"]:
        reasons.append("other ports")
    if touched:
        reasons.append(f"other {touched}{'' if reasons else ': nothing is restarted'}")
    return Replica(*key, UPDATE if reasons else KEEP, before, after, ", ".join(reasons) or "as it is")


def _work(replicas: Iterable[Replica], pending: Pending, everything: bool) -> tuple[Work, ...]:
    stays: set[tuple[str, str]] = set()
    why: dict[tuple[str, str], set[str]] = {}
    for replica in replicas:
        old, new = replica.before, replica.after
        if new is not None:
            stays.add((replica.service, new[0]))
        if replica.action == KEEP:
            if new is not None and everything:
                why.setdefault((replica.service, new[0]), set()).add("everything was asked for")
            continue
        if new is not None:
            key = (replica.service, new[0])
            why.setdefault(key, set()).add(replica.why if old is None or old[0] == new[0] else f"comes from {old[0]}")
        if old is not None and (new is None or old[0] != new[0]):
            why.setdefault((replica.service, old[0]), set()).add(replica.why)
    for host, waits in pending.items():
        for name in waits:
            why.setdefault((name, host), set()).add("given to an earlier pipeline, and not seen done")
    return tuple(Work(*key, "deploy" if key in stays else "remove", "; ".join(sorted(reasons))) for key, reasons in sorted(why.items()))


def _gpus(last: Mapping[str, Data], new: Mapping[str, Data]) -> tuple[tuple[str, str, str, str], ...]:
    """(host, GPU, before, after) of every GPU whose mode or slices change, in the plans' words."""
    rows: list[tuple[str, str, str, str]] = []
    for host in sorted(new):
        before, after = _cut((last.get(host) or {"layout": []})["layout"]), _cut(new[host]["layout"])
        rows.extend((host, gpu, before.get(gpu, ""), words) for gpu, words in after.items() if before.get(gpu) != words)
        rows.extend((host, gpu, words, "") for gpu, words in before.items() if gpu not in after)
    return tuple(sorted(rows))


def _cut(layout: Iterable[Data]) -> dict[str, str]:
    modes: dict[str, str] = {}
    slices: dict[str, list[str]] = {}
    for line in layout:
        if "profile" in line:
            slices.setdefault(line["gpu"], []).append(f"{line['profile']}@{line['start']}")
        else:
            modes[line["gpu"]] = line["mode"] + (f" ({line['sharing']})" if line.get("sharing") else "")
    return {gpu: " ".join([modes.get(gpu, "mig"), *slices.get(gpu, [])]) for gpu in {**modes, **slices}}
