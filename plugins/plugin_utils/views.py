# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts and plans as people read them: what is published, and the tables of check and status. Pure."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import asks_nothing, managed, name_of, state_of

Data = t.Mapping[str, t.Any]
# (GPU UUID, profile, start); the last two are None of a GPU without slices.
Place = tuple[str, str | None, int | None]

# More names than these are counted and not told: what is said is one line.
MAX_NAMES = 3
# What moves from one minute to the next without any decision behind it. A published file that followed these would change at every run.
_MOVING_HOST = ("ports_listening", "memory_available_mib", "load", "uptime_s")
_MOVING_GPU = ("temperature_c", "power_w", "memory_used_mib", "holders", "utilisation")


def policy_of(variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """All ``fleet_...`` among a host's variables: the policy (docs/policy.md) is in them, and so is every slip of the pen."""
    return {name: variables[name] for name in sorted(variables) if name.startswith("fleet_")}


def several(number: int, what: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def few_names(names: t.Sequence[str]) -> str:
    """``a, b, c and 4 more``."""
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"


def unplaced_lines(unplaced: t.Iterable[Data]) -> list[str]:
    """What has no place: ``llm-chat replica 1: reason``. Replicas with one reason are one line: ``ocr replicas 2 to 4, 7: ...``."""
    return [
        f"{service} {'replica' if len(replicas) == 1 else 'replicas'} {numbers(replicas)}: {reason}"
        for service, replicas, reason in without_place(unplaced)
    ]


def without_place(unplaced: t.Iterable[Data]) -> list[tuple[str, list[int], str]]:
    """Service, its replicas and the reason that is one for them."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for each in unplaced:
        grouped.setdefault((each["service"], each["reason"]), []).append(each["replica"])
    return [(service, replicas, reason) for (service, reason), replicas in grouped.items()]


def runs(values: t.Iterable[int]) -> list[list[int]]:
    """Numbers in order, those that follow each other together."""
    found: list[list[int]] = []
    for value in sorted(values):
        if found and found[-1][-1] == value - 1:
            found[-1].append(value)
        else:
            found.append([value])
    return found


def numbers(values: t.Iterable[int]) -> str:
    """Numbers as people write them: ``1, 3 to 5``."""
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs(values))


def stable_facts(facts: Data) -> dict[str, t.Any]:
    """The part of a host's facts (docs/facts.md) that a decision or a person acts on and that stays until somebody changes it.

    Without temperatures, power drawn, memory used, free disk, ports in use, holders and containers. Two readings of an unchanged host
    are equal in this form, so it says whether published facts are out of date.
    """
    # Not copy.deepcopy: it would copy all of Ansible's templating with each of its lazy values.
    result = _without(facts, ("containers",))
    if host := result.get("host"):
        result["host"] = host = _without(host, _MOVING_HOST)
        if isinstance(host.get("disk"), dict):
            host["disk"] = _without(host["disk"], ("free_mib",))
    if gpus := result.get("gpus"):
        result["gpus"] = [_without(gpu, _MOVING_GPU) for gpu in gpus]
    return result


def _without(data: Data, names: t.Collection[str]) -> dict[str, t.Any]:
    return {key: value for key, value in data.items() if key not in names}


def facts_differ(published: str, facts: Data) -> bool:
    """True when published facts (JSON text) are not those of a host any more; a damaged file counts as out of date."""
    try:
        before = json.loads(published)
    except ValueError:
        return True
    return not isinstance(before, dict) or stable_facts(before) != stable_facts(facts)


def table(rows: t.Sequence[t.Sequence[t.Any]]) -> list[str]:
    """Rows of cells as lines of aligned columns, the first row being the heading; None prints as '-'."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def slices_of(gpu: Data) -> list[str]:
    """The slices of one GPU's facts as text (``1g.10gb@4``), by start; [] without MIG."""
    mig = gpu.get("mig") or {}
    return [f"{each['profile']}@{each['start']}" for each in mig.get("instances") or []]


def mode_of(gpu: Data) -> str:
    """MIG mode in a word: '-' (the board has none), 'on', 'off', or 'on (off after a reset)' while another mode waits."""
    mig = gpu.get("mig")
    if not mig:
        return "-"
    now, later = ("on" if mig.get(key) else "off" for key in ("current", "pending"))
    return now if now == later else f"{now} ({later} after a reset)"


def host_table(hosts: t.Mapping[str, Data]) -> list[str]:
    """One line a GPU of every host: what it is, how it is and how it is cut. ``hosts``: name -> {facts}."""
    rows: list[list[t.Any]] = [["HOST", "GPU", "BOARD", "MIB", "MIG", "SLICES", "STATE"]]
    for name in sorted(hosts):
        facts = hosts[name]["facts"] or {}
        down = absent_word(hosts[name])
        gpus = facts.get("gpus") or []
        for gpu in gpus:
            state = gpu.get("state") if not gpu.get("error") else f"{gpu.get('state')}: {gpu['error']}"
            if gpu.get("vgpu"):
                state = f"{state}, {len(gpu['vgpu'].get('vgpus') or ())} vGPUs"
            if gpu.get("parent_host"):
                state = f"{state} (card {gpu.get('parent') or '?'} of {gpu['parent_host']})"
            rows.append(
                [name, gpu.get("pci"), gpu.get("name"), gpu.get("memory_mib"), mode_of(gpu), " ".join(slices_of(gpu)) or "-", down or state]
            )
        away = facts.get("passthrough") or []
        for entry in away:
            rows.append([name, entry.get("pci"), None, None, None, None, down or f"with {entry.get('guest') or 'virtual machines'}"])
        if not gpus and not away:
            reason = (facts.get("driver") or {}).get("error") or "no GPU on this host"
            rows.append([name, None, "-" if down else "no GPU", None, None, None, down or reason])
    return [*table(rows), *_absences(hosts)]


def unread_of(hosts: t.Mapping[str, Data]) -> dict[str, str]:
    """Host -> why it cannot be read, of those that cannot."""
    return {name: str(host["unread"]) for name, host in sorted(hosts.items()) if host.get("unread")}


def absence(host: Data) -> str | None:
    """Why nothing new is known of a host; None when it was read."""
    return "fleet_down_hosts names it, and it was not asked" if host.get("down") else host.get("unread")


def absent_word(host: Data) -> str | None:
    """``down``, or ``not read`` of a host that answered and could not say more; None when it was read."""
    return None if absence(host) is None else "not read" if host.get("reached") else "down"


def _absences(hosts: t.Mapping[str, Data]) -> list[str]:
    return [
        f"{name} is {absent_word(hosts[name])}: {reason}; shown by its plan and "
        + ("the facts published last" if hosts[name]["facts"] else "nothing else, for its facts were never published")
        for name in sorted(hosts)
        if (reason := absence(hosts[name]))
    ]


def host_problems(facts: Data) -> list[str]:
    """What on one host would stop or mislead a plan, one line each, from its facts alone."""
    problems = [str(line) for line in facts.get("errors") or []]
    driver = facts.get("driver") or {}
    # A host that has given all of its cards away needs no driver.
    if not driver.get("present", False) and not facts.get("passthrough"):
        problems.append(f"no NVIDIA driver: {driver.get('error') or 'not loaded'}")
    for gpu in facts.get("gpus") or []:
        if gpu.get("state", "ok") != "ok":
            # What is lost may have no address any more.
            problems.append(f"GPU {gpu.get('pci') or gpu.get('index')} is {gpu['state']}: {gpu.get('error') or 'no reason given'}")
        mig = gpu.get("mig") or {}
        if mig and mig.get("current") != mig.get("pending"):
            problems.append(f"GPU {gpu.get('pci')}: MIG mode waits for a reset (now {mode_of(gpu)})")
        for instance in mig.get("instances") or []:
            if not instance.get("ci"):
                name = f"{instance['profile']}@{instance['start']}"
                problems.append(f"GPU {gpu.get('pci')}: slice {name} has no compute instance: nobody can use it")
    return sorted(set(problems))


def _tenants(plan: Data | None) -> dict[Place, list[str]]:
    """Who is planned on what: (gpu, profile, start) or (gpu, None, None) -> replica names."""
    result: dict[Place, list[str]] = {}
    for entry in (plan or {}).get("services") or []:
        for gpu in entry.get("gpus") or [entry["gpu"]]:
            key = (gpu, entry.get("profile"), entry.get("start"))
            result.setdefault(key, []).append(name_of(entry))
    return result


def _health(names: t.Sequence[str], facts: Data, adopted: t.Collection[str]) -> str | None:
    """State of the containers of these replicas; None when containers were not read, 'no engine' when there is none.

    What was adopted runs under a name of its own, and is only kept in place: nothing is said of its state.
    """
    if all(name in adopted for name in names):
        return ", ".join("adopted" for _name in names)
    docker = (facts.get("engine") or {}).get("docker") or {}
    if not docker.get("present"):
        return "no engine"
    containers = facts.get("containers")
    if containers is None:
        return None
    by_project: dict[str, list[str]] = {}
    for each in containers:
        words = " ".join(str(each[key]) for key in ("state", "health") if each.get(key))
        by_project.setdefault(str(each.get("project") or each.get("name")), []).append(words)
    over = {str(lease["name"]) for lease in facts.get("leases") or () if lease.get("ended")}
    told = {name: "lease over" if name in over else " ".join(by_project.get(name, ["not running"])) for name in names}
    return ", ".join("adopted" if name in adopted else told[name] for name in names)


def status_table(hosts: t.Mapping[str, Data]) -> list[str]:
    """One line a slice or a whole GPU: who is on it, by which plan, how it is. ``hosts``: name -> {facts, plan (or None)}.

    A place of the plan that is not on the board (not made yet, gone with a reboot, on a GPU that is gone) has its line too. Of a host
    that is down, all lines say so, and a line below the table says why.
    """
    rows: list[list[t.Any]] = [["HOST", "GPU", "BOARD", "SLICE", "SERVICE", "PLAN", "HEALTH"]]
    for name in sorted(hosts):
        facts, plan = hosts[name]["facts"] or {}, hosts[name].get("plan")
        first = len(rows)
        carried = facts.get("plan") or {}
        serial = f"{carried['serial']} {carried.get('state', '')}".strip() if carried else None
        if plan and not carried and is_true_as_found(plan, facts):
            serial = f"{plan['serial']} (nothing to do)"
        elif plan and (not carried or carried.get("serial") != plan.get("serial")):
            serial = f"{serial or 'none'} (plan {plan['serial']} waits)"
        tenants = _tenants(plan)
        adopted = {name_of(entry) for entry in (plan or {}).get("services") or [] if not managed(entry)}
        for gpu in facts.get("gpus") or []:
            lines = _gpu_lines(gpu, facts, tenants, adopted)
            rows.extend([name, gpu.get("pci"), gpu.get("name"), place, who, serial, health] for place, who, health in lines)
        if not facts.get("gpus"):
            rows.append([name, None, "no GPU" if facts else None, None, None, serial, (facts.get("driver") or {}).get("error")])
        rows.extend(
            [name, None, uuid, _place_text(profile, start, "whole"), ", ".join(names), serial, "GPU not on this host"]
            for (uuid, profile, start), names in tenants.items()
        )
        if down := absent_word(hosts[name]):
            rows[first:] = [[*row[:4], None if row[4] == "free" else row[4], row[5], down] for row in rows[first:]]
    return [*table(rows), *_absences(hosts)]


def is_true_as_found(plan: Data, facts: Data) -> bool:
    """Is this the plan of an adoption that asks nothing of its host? Then the host carries none, and none waits."""
    observed = {gpu["uuid"]: state_of(gpu) for gpu in facts.get("gpus") or [] if gpu.get("uuid") and gpu.get("state", "ok") == "ok"}
    return "layout" in plan and asks_nothing(plan, observed)


def _gpu_lines(
    gpu: Data, facts: Data, tenants: dict[Place, list[str]], adopted: t.Collection[str]
) -> t.Iterator[tuple[str | None, str | None, str | None]]:
    """(place, who, health) of what is on the board, then of what the plan has there besides; takes the GPU's own out of ``tenants``."""
    ill = f"GPU {gpu['state']}" if gpu.get("state", "ok") != "ok" else None
    own = {key[1:]: tenants.pop(key) for key in sorted(tenants, key=str) if key[0] == str(gpu.get("uuid"))}
    mig = gpu.get("mig") or {}
    places: list[tuple[str | None, int | None]] = [(each["profile"], each["start"]) for each in mig.get("instances") or []]
    if not places and (not own or ((None, None) in own and not mig.get("current"))):
        places = [(None, None)]
    for place in places:
        names = own.pop(place, [])
        health = ill or (_health(names, facts, adopted) if names else None)
        yield _place_text(*place, None if ill else mode_word(gpu)), ", ".join(names) or (None if ill else "free"), health
    for place, names in own.items():
        yield _place_text(*place, "whole"), ", ".join(names), ill or "not there yet"


def _place_text(profile: str | None, start: int | None, otherwise: str | None) -> str | None:
    return f"{profile}@{start}" if profile else otherwise


def mode_word(gpu: Data) -> str:
    """What a GPU without slices is to its tenants: 'whole', or 'uncut' when MIG is on and nothing is made yet."""
    return "uncut" if (gpu.get("mig") or {}).get("current") else "whole"
