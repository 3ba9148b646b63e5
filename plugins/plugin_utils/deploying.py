# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a deploy or apply concerns, whose turn it is, why nothing is carried out, and what took how long. Pure.

Plays ask these in the conditions of many tasks, so nothing of the planner is imported here.
"""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_order import waves
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import unplaced_lines

Data = Mapping[str, t.Any]

# What the gate asks of a version before it watches whether it stays well.
_PROVING = ("running", "healthy", "probe", "gpu", "warm_up")


def check_scope(service: str | None, concerned: Mapping[str, Data]) -> None:
    """Would carrying the plans out change another service than the one that was named?

    ``concerned``: of each host what its ``plan_record`` says: ``stop``, ``rolled`` and ``new``. FleetError names the others.
    """
    if service is None:
        return
    others: dict[str, set[str]] = {}
    for host, record in concerned.items():
        for name in {*(record.get("stop") or ()), *(record.get("rolled") or ()), *(record.get("new") or ())}:
            other = str(name).rpartition("-")[0]
            if other != service:
                others.setdefault(other, set()).add(host)
    if others:
        named = ", ".join(f"{name} on {' and '.join(sorted(others[name]))}" for name in sorted(others))
        wrong = f"the plan would change more than {service}: {named}"
        raise FleetError(wrong, hint="deploy that first, or leave out -e service")


def deploy_problem(
    planned: Data,
    records: Mapping[str, Data],
    last: Mapping[str, Data],
    service: str | None,
    fail_unplaced: bool,
    manifests: str = "",
    emptied: str = "",
    emptied_gpus: Collection[str] = (),
    fail_lost: bool = False,
) -> str:
    """Why nothing is to be carried out, in one line each; empty when all is well.

    ``planned``: what module ``plan`` answered. ``records``: what ``plan_record`` answered on each host of this run. ``last``: host ->
    {plan} as the files have it. ``service``: the one that is deployed. ``fail_unplaced``: whether a replica without a place is a reason.
    ``emptied``: a host that the plan has to leave without replicas, or only its ``emptied_gpus`` (UUIDs).
    ``fail_lost``: whether it is a reason that a replica has a place in ``last`` and none any more.
    """
    if "table" not in planned:
        return str(planned.get("msg") or "the plan could not be made")
    if planned["unread"]:
        return str(planned["refusal"])
    if service is not None and service not in planned["services"]:
        return f"no manifest in {manifests} describes service '{service}'"
    unplaced = [each for each in planned["unplaced"] if service in (None, each["service"])]
    if emptied and (stuck := who_stays(planned["plans"].get(emptied) or {}, planned["unplaced"], emptied_gpus)):
        where = f"{', '.join(sorted(emptied_gpus))} of {emptied}" if emptied_gpus else emptied
        return "; ".join(f"{name} cannot leave {where}: {reason}" for name, reason in stuck.items())
    had = {name_of(line) for host in last.values() for line in (host.get("plan") or {}).get("services") or ()} if fail_lost else set()
    kept = {name_of(line) for plan in planned["plans"].values() for line in plan["services"]}
    if gone := [each for each in unplaced if name_of(each) in had - kept]:
        return "\n".join(unplaced_lines(gone))
    if unplaced and fail_unplaced:
        return "\n".join(unplaced_lines(unplaced))
    refused = [f"{host}: {record.get('msg')}" for host, record in sorted(records.items()) if "needed" not in record and record.get("msg")]
    if refused:
        return "\n".join(refused)
    strangers = [
        host
        for host, plan in sorted(planned["plans"].items())
        if host not in records
        and host in last
        and plan["digest"] != (last[host].get("plan") or {}).get("digest")
        and (plan["services"] or last[host].get("plan"))
    ]
    if strangers:
        return f"the plan would change {', '.join(strangers)} too, and this run leaves them out; leave out --limit"
    try:
        check_scope(service, records)
    except FleetError as error:
        return str(error)
    return ""


def who_stays(plan: Data, unplaced: Iterable[Data], gpus: Collection[str] = ()) -> dict[str, str]:
    """Replicas that a plan leaves on its host, or on these GPUs of it, and why the planner could not place them elsewhere."""
    reasons = {name_of(each): str(each["reason"]) for each in unplaced}
    return {
        name_of(line): reasons.get(name_of(line), "the plan leaves it there" if managed(line) else "it is adopted, and nothing moves it")
        for line in plan.get("services") or ()
        if not gpus or not {*gpus}.isdisjoint(line.get("gpus") or [line.get("gpu")])
    }


def deploy_turn(record: Data, plan: Data | None, service: str | None, idle: bool = True) -> int:
    """As :func:`order_of`, but a host on which nothing is to do by its plan is seen to all the same, when the service is there; not
    without ``idle``."""
    if plan is None:
        return 0
    there = idle and (service is None or any(line["service"] == service for line in plan["services"]))
    return order_of(record) or (2 if there else 0)


def order_of(record: Data) -> int:
    """When a host has its turn: 1 when it gains replicas, 2 when it changes some, 3 when it only loses some, 0 when nothing is to do."""
    moved = set(record.get("stop") or ()) - set(record.get("gone") or ())
    if record.get("new") or moved:
        return 1
    if record.get("gone"):
        return 3
    return 2 if record.get("needed") else 0


def deploy_later(hosts: Iterable[str], hostvars: Mapping[str, Data], wave: int | None = None) -> list[str]:
    """Hosts that gain replicas and wait for others all the same: their own go there, and have to serve there first. In their order.

    ``hostvars``: what the play noted of a host: its turn as ``deploy_order``, as ``deploy_record`` what ``plan_record`` answered, and as
    ``deploy_planned`` what module ``plan`` did. ``wave``: only those that wait for hosts of the wave before.
    """
    return [host for number, host in _waiting(hosts, hostvars) if wave in (None, number)]


def deploy_waves(hosts: Iterable[str], hostvars: Mapping[str, Data]) -> list[int]:
    """The waves of :func:`deploy_later` in which any host has its turn."""
    return sorted({number for number, _host in _waiting(hosts, hostvars)})


def _waiting(hosts: Iterable[str], hostvars: Mapping[str, Data]) -> list[tuple[int, str]]:
    """(Wave, host) of the hosts of :func:`deploy_later`, in their order."""
    records = {host: hostvars[host].get("deploy_record") or {} for host in hosts}
    planned: Data = next((made for host in records if (made := hostvars[host].get("deploy_planned"))), {})
    found = waves(
        {host: record.get("gone") or () for host, record in records.items()},
        {host: record.get("new") or () for host, record in records.items()},
        {service: manifest["priority"] for service, manifest in (planned.get("services") or {}).items()},
    )
    return sorted((number, host) for host, number in found.items() if number and _turn(hostvars[host]) == 1)


def _turn(noted: Data) -> int:
    return int(noted.get("deploy_order") or 0)


def apply_turns(hosts: Iterable[str], hostvars: Mapping[str, Data]) -> dict[str, dict[str, t.Any]]:
    """Of each host that has a plan to carry out: its ``wave``, 0 where it waits for nobody, and for which replicas it ``waits``.

    ``hostvars``: what the play noted of a host: as ``apply_work`` what ``host_plan`` answered, and as ``apply_record`` what ``plan_record``
    did, where the host could be asked. ``waits``: replica that leaves -> the host on which it has to serve first, by that one's plan: it
    may refuse that, or not be reached.
    """
    noted = {host: hostvars[host] for host in hosts}
    works = {host: each["apply_work"] for host, each in noted.items() if (each.get("apply_work") or {}).get("exists")}
    gone = {host: (noted[host].get("apply_record") or {}).get("gone") or () for host in works}
    placed = {host: [service["name"] for service in work["services"]] for host, work in works.items()}
    # Whoever is in no plan that could be read may be in one that could not.
    unread = [host for host, each in noted.items() if (each.get("apply_work") or {}).get("failed")]
    known = {name for names in placed.values() for name in names}
    placed |= {host: [name for names in gone.values() for name in names if name not in known] for host in unread[:1]}
    there = {name: host for host, names in placed.items() for name in names}
    services = (service for work in works.values() for service in work["services"])
    priorities = {service["placement"]["service"]: int(service["manifest"]["priority"]) for service in services}
    found = waves(gone, placed, priorities)
    return {
        host: {"wave": wave, "waits": {name: there[name] for name in gone.get(host, ()) if name in there and found[there[name]] < wave}}
        for host, wave in found.items()
    }


def deploy_failures(hosts: Iterable[str], hostvars: Mapping[str, Data], but: str | None = None) -> list[str]:
    """A line for each host of a deploy that could not be held, or whose turn did not come to a good end.

    ``hostvars``: what the play noted of a host: ``deploy_at_it`` in its turn, ``deploy_carried`` when that is over, however it went, and
    ``deploy_problem``; ``deploy_verb`` is the playbook, where it is another one. Whoever is neither through nor failed was lost in its
    turn, the host ``but`` apart, which has its own now.
    """
    lines = []
    for host in hosts:
        noted = hostvars[host]
        if noted.get("deploy_problem"):
            lines.append(str(noted["deploy_problem"]))
        elif host != but and noted.get("deploy_at_it") and not noted.get("deploy_carried"):
            verb = noted.get("deploy_verb") or "deploy"
            lines.append(f"{host}: it could not be reached any more in its turn; the next {verb} finishes what was begun there")
    return lines


def deploy_reroutes(hosts: Iterable[str], hostvars: Mapping[str, Data]) -> bool:
    """Whether the gateways have their turn in a deploy: something came or is about to leave, and nothing failed."""
    names = list(hosts)
    if deploy_failures(names, hostvars):
        return False
    return any(hostvars[host].get("deploy_carried") or _turn(hostvars[host]) == 3 for host in names)


def deploy_held(hosts: Iterable[str], hostvars: Mapping[str, Data], this: str, now: str, seconds: int) -> list[str]:
    """The hosts of a deploy whose leases it has to renew while it works on ``this`` one, because nobody else does.

    None before half of their ``seconds`` are over since the first of them was held (``deploy_began`` in ``hostvars``, UTC as ``now``).
    """
    held = {host: hostvars[host]["deploy_began"] for host in hosts if (hostvars[host].get("apply_lease") or {}).get("token")}
    if not held or 2 * _seconds(min(held.values()), now) < seconds:
        return []
    return [host for host in held if host != this]


def rollout_times(rollouts: Mapping[str, Iterable[Data]], began: str) -> list[str]:
    """What took how long: a line for each rollout of a replica.

    ``rollouts``: host -> rows of its ledger, as ``ledger_info`` returns them. ``began``: when the play began (UTC, as they have it).
    """
    lines = []
    for host, rows in sorted(rollouts.items()):
        for row in rows:
            steps = [(str(one["step"]), float(one["seconds"])) for one in row["steps"]]
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps if seconds >= 0.05)
            number = "surge" if row["replica"] is None else row["replica"]
            total = _seconds(row["began"], row["ended"])
            line = (
                f"{row['service']}-{number} on {host}: {row['way']}, {row['outcome']} after {total:.0f} s ({parts or 'no step was done'})"
            )
            answered = _until_first_answer(steps)
            if answered is not None and row["outcome"] == "serving":
                line += f"; first answer {_seconds(began, row['began']) + answered:.0f} s after the play began"
            lines.append(line)
    return lines


def _until_first_answer(steps: Iterable[tuple[str, float]]) -> float | None:
    """Seconds from the begin of a rollout until the new version had answered for the first time."""
    passed, answered = 0.0, None
    for name, seconds in steps:
        if answered is not None and name not in _PROVING:
            break
        passed += seconds
        if answered is not None or name in ("surge", "start"):
            answered = passed
    return answered


def _seconds(first: str, last: str) -> float:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return (datetime.strptime(last, form) - datetime.strptime(first, form)).total_seconds()
