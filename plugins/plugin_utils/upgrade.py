# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A group of hosts is upgraded host by host: in which order, what is to be done, who moves where, what has to be there afterwards. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.deploying import who_stays
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import table

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bars

Data = Mapping[str, t.Any]

# How a drain begins that this playbook made. No person's would: theirs is never taken over, and never released.
REASON = "playbook upgrade"
_DRAIN = {"by": "this run", "reason": REASON, "since": "", "until": None}
_GROUP = "gpu_hosts"
_LONGEST = 200


def in_order(pattern: str, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts that ``upgrade_hosts`` names (hosts and groups, with commas), in its order; those of a group by name. Empty: all.

    :raises FleetError: it names something else than GPU hosts.
    """
    fleet = set(groups.get(_GROUP) or ())
    found: list[str] = []
    for name in [part.strip() for part in pattern.split(",") if part.strip()] or [_GROUP]:
        hosts = sorted(groups[name]) if name in groups else [name]
        strangers = [host for host in hosts if host not in fleet]
        if strangers:
            wrong = f"upgrade_hosts: '{strangers[0]}' is no host of group {_GROUP}"
            wrong = wrong if name not in groups else f"upgrade_hosts: '{strangers[0]}' of group {name} is no host of group {_GROUP}"
            raise FleetError(wrong, hint=f"name hosts or groups of {', '.join(sorted(fleet))}, with commas")
        found += [host for host in hosts if host not in found]
    return found


def work_lines(driver: Data, loaded: Data, engine: Data, toolkit: Data) -> list[str]:
    """What the roles would do on a host that its services would feel; empty when driver, engine and toolkit are as wished.

    ``driver``: what ``driver_plan`` answered; ``loaded``: what ``driver_loaded`` would do; ``engine`` and ``toolkit``: ``packages``
    (whether any would come), ``reload`` and ``restart`` (settings that wait for one). Each is empty where its role does not run.
    """
    lines = [f"driver: {step}" for step in driver.get("steps") or ()]
    if not lines and loaded.get("driver") and loaded.get("before") != loaded["driver"]:
        lines.append(f"driver: load {loaded['driver']} in place of {loaded.get('before') or 'none'}")
    for name, found in (("engine", engine), ("container toolkit", toolkit)):
        if found.get("packages"):
            lines.append(f"{name}: install packages")
        lines += [f"{name}: settings by a {how}: {', '.join(found[how])}" for how in ("restart", "reload") if found.get(how)]
    return lines


def strangers(facts: Data, ours: Iterable[str]) -> dict[str, t.Any]:
    """The facts of a host without what leaves it before the roles run: containers of the projects ``ours``, and MPS daemons."""
    leave = set(ours)
    boxes = [box for box in facts.get("containers") or () if str(box.get("project") or box.get("name")) not in leave]
    gpus = [
        gpu if gpu.get("holders") is None else {**gpu, "holders": [one for one in gpu["holders"] if one.get("kind") != "mps"]}
        for gpu in facts.get("gpus") or ()
    ]
    return {**facts, "containers": boxes, "gpus": gpus}


def projects_of(plan: Data | None) -> list[str]:
    """The projects that a plan has on its host, with the surges that there may be."""
    lines = [line for line in (plan or {}).get("services") or () if managed(line)]
    return sorted({name_of(line) for line in lines} | {f"{line['service']}-surge" for line in lines})


def begun_before(facts: Data) -> bool:
    """Whether the host is drained by a run of this playbook that did not come to its end there."""
    drain = (facts.get("host") or {}).get("drain")
    return drain is not None and str(drain["reason"]).startswith(REASON)


def drain_refusal(facts: Data, host: str) -> str:
    """Why the host cannot be drained for an upgrade; empty when it can. Somebody may have a hand in the machine."""
    drain = (facts.get("host") or {}).get("drain")
    if not drain or begun_before(facts):
        return ""
    return f"{words(drain)}; release it first: ansible-playbook gpuops.fleet.release --limit {host}"


def drain_reason(problem: str) -> str:
    """Why a host stays drained, for whoever reads the drain."""
    text = " ".join(problem.split())
    return f"{REASON}: {text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}"


def places_of(hosts: Mapping[str, Data]) -> dict[str, str]:
    """Replica -> host, by the plans. ``hosts``: name -> {plan}."""
    return {
        name_of(line): host for host in sorted(hosts) for line in (hosts[host].get("plan") or {}).get("services") or () if managed(line)
    }


def moves(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """``ocr-1 from gpu-01 to gpu-02``, for each replica that is on another host now, on none, or back on one."""
    return [
        f"{name} from {before.get(name, 'none')} to {after.get(name, 'none')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def lost(before: Mapping[str, str], after: Mapping[str, str], unplaced: Iterable[Data]) -> list[str]:
    """A line for each replica that had a place before the upgrade of a host and has none after it."""
    reasons = {name_of(each): each["reason"] for each in unplaced}
    return [f"{name} has no place any more: {reasons[name]}" for name in sorted(before) if name not in after and name in reasons]


Plan = Callable[[Mapping[str, tuple[str, str]], Mapping[str, Data]], "Planned"]


def turns(
    plan: Plan,
    texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Data],
    order: Iterable[str],
    outage: bool,
    work: Mapping[str, Sequence[str]],
) -> list[dict[str, t.Any]]:
    """What happens to replicas at the turn of each host, one after the other, every plan made from the one before.

    ``plan``: texts of the last plans and hosts -> the decision. ``texts``: host -> (path, text). ``work``: host -> lines of its roles.
    Each turn: ``host``, ``moves``, ``back`` (what moves when the host is there again), ``stops`` (replicas that are stopped for the time),
    and ``lines`` of all of it.

    :raises FleetError: a replica can go nowhere and may not be stopped, or a version waits for a deploy; nothing is to be touched then.
    """
    last: dict[str, Data] = {name: read_plan(*text).data for name, text in texts.items()}
    known, now = dict(texts), dict(hosts)
    result = []
    for host in order:
        before = places_of({name: {"plan": each} for name, each in last.items()})
        decided = plan(known, {**now, host: _with_drain(now[host], {**_DRAIN, "force": outage})})
        last = carried_on(last, decided)
        _refuse_stuck(host, last.get(host) or {}, decided, outage)
        without = places_of({name: {"plan": each} for name, each in last.items()})
        now[host] = _with_drain(now[host], None)
        known = {**known, **{name: (f"{name}.yml", each.text) for name, each in decided.plans.items()}}
        again = plan(known, now)
        last = carried_on(last, again)
        known = {**known, **{name: (f"{name}.yml", each.text) for name, each in again.plans.items()}}
        left = moves(before, without)
        back = moves(without, places_of({name: {"plan": each} for name, each in last.items()}))
        stops = sorted(name for name, where in before.items() if where == host and name not in without)
        result.append(
            {"host": host, "moves": left, "back": back, "stops": stops, "lines": _lines(host, work.get(host) or (), left, back, stops)}
        )
    return result


def carried_on(last: Mapping[str, Data], decided: Planned, what: str = "an upgrade") -> dict[str, Data]:
    """The plans by now. ``what`` moves replicas; it brings nobody's new version. FleetError where one waits."""
    plans = {**last, **{name: each.data for name, each in decided.plans.items()}}
    versions = {name_of(line): line["manifest"] for each in last.values() for line in each["services"]}
    new = {
        name_of(line)
        for each in plans.values()
        for line in each["services"]
        if versions.get(name_of(line), line["manifest"]) != line["manifest"]
    }
    if new:
        wrong = f"{', '.join(sorted(new))}: the manifest asks for another version than the plan, and {what} brings none"
        raise FleetError(wrong, hint="run playbook deploy first")
    return plans


def _refuse_stuck(host: str, plan: Data, decided: Planned, outage: bool) -> None:
    if stuck := who_stays(plan, decided.unplaced):
        hint = "take it away by hand first" if outage else "make room, or let it stop for the time: -e upgrade_outage=true"
        raise FleetError("; ".join(f"{name} cannot leave {host}: {reason}" for name, reason in stuck.items()), hint=hint)


def _with_drain(host: Data, drain: Data | None) -> dict[str, t.Any]:
    return {**host, "facts": {**host["facts"], "host": {**host["facts"]["host"], "drain": drain}}}


def _lines(host: str, work: Sequence[str], left: Sequence[str], back: Sequence[str], stops: Sequence[str]) -> list[str]:
    gone = [line for line in left if not line.endswith(" to none")]
    return [
        f"{host}: drain it" + (f"; {', '.join(gone)}" if gone else "; no replica of it has to move"),
        *(f"{host}: {name} is stopped for the time" for name in stops),
        *(f"{host}: {line}" for line in work or ["nothing to install: a former run left it drained"]),
        f"{host}: gate, release" + (f"; {', '.join(back)}" if back else ""),
    ]


def gate(host: str, before: Iterable[Data], after: Data, refusals: Iterable[str]) -> list[str]:
    """What keeps an upgraded host from its services, one line each.

    ``before``: facts of the host from before, also those published last, for a run that was killed may have seen less. ``refusals``: what
    the compatibility gate says of the host, and of the services that were on it.
    """
    problems = []
    driver = after.get("driver") or {}
    if not driver.get("present"):
        problems.append(f"{host}: no driver answers: {driver.get('error') or 'it is not loaded'}")
    known = list(before)
    was_there = any(((each.get("engine") or {}).get("docker") or {}).get("present") for each in known)
    if was_there and not ((after.get("engine") or {}).get("docker") or {}).get("present"):
        problems.append(f"{host}: the engine does not answer any more; look at `systemctl status docker`")
    now = {gpu.get("uuid"): gpu for gpu in after.get("gpus") or ()}
    then = {gpu["uuid"]: gpu for each in known for gpu in each.get("gpus") or () if gpu.get("uuid")}
    if driver.get("present"):
        for uuid, gpu in then.items():
            found = now.get(uuid)
            if found is None:
                problems.append(f"{host}: GPU {gpu.get('pci') or uuid} ({uuid}) did not come back: {len(now)} of {len(then)} are there")
            elif found.get("state", "ok") != "ok" and gpu.get("state", "ok") == "ok":
                problems.append(f"{host}: GPU {gpu.get('pci') or uuid} is {found['state']}: {found.get('error') or 'no reason given'}")
    return [*problems, *refusals]


def newly_barred(host: str, services: Iterable[str], before: Mapping[str, Bars], after: Mapping[str, Bars]) -> list[str]:
    """A line for each of the services that may not be placed on a board of the host any more, though it could be before."""
    return [
        f"{host}: {service} may not run on {board} any more: {found.reason}"
        for service in sorted(set(services))
        for (where, board), found in sorted((after.get(service) or {}).items(), key=lambda each: each[0])
        if where == host and (host, board) not in (before.get(service) or {})
    ]


def summary(done: Mapping[str, Data], passed: Iterable[str]) -> list[str]:
    """A table of the hosts that were upgraded, in order; below it those that were passed over."""
    rows: list[list[t.Any]] = [["HOST", "FROM", "TO", "SECONDS", "MOVED"]]
    rows += [
        [host, one["from"], one["to"], one["seconds"], ", ".join([*one["moved"], *one["back"]]) or "nothing"] for host, one in done.items()
    ]
    lines = table(rows) if done else []
    return [*lines, *(f"{host}: driver, engine and container toolkit are as wished: passed over" for host in passed)]
