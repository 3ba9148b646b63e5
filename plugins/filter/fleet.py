# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that gathers what is known of every host: facts just read or published earlier, policy from the inventory, the plan."""

from __future__ import annotations

import json
import os
import re
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.parents import FIELD as PARENT
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, parents, views, written
else:
    door = Late("door")
    parents = Late("parents")
    views = Late("views")
    written = Late("written")

# What ansible-core says of a module that broke before it could say why; the last line of its standard error has the reason.
_SAYS_NOTHING = re.compile("MODULE FAILURE|stdout/stderr|deserialization failed")


def published_facts(host: str, directory: str) -> t.Any:
    """The facts of a host as published on the controller. Raises FleetError when there are none, or when the file is damaged."""
    path = os.path.join(directory, f"{host}.json")
    text = door.read_text_or_none(path)
    if text is None:
        wrong = f"nothing is known of host '{host}': it was not read in this run, and no facts are published"
        raise FleetError(wrong, file=path, hint="run playbook plan without --limit")
    try:
        return json.loads(text)
    except ValueError as error:
        raise FleetError(f"not JSON: {error}", file=path, hint="remove it and run playbook plan") from error


def down_hosts(value: t.Any) -> list[str]:
    """``fleet_down_hosts`` as sorted names: it is a list, and on a command line, where lists are hard to write, names with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise AnsibleFilterError("fleet_down_hosts: expected a list of host names; write [gpu-prod-02], or [] when all are up")
    return sorted({str(name).strip() for name in names} - {""})


def unread_reason(result: t.Mapping[str, t.Any] | None) -> str | None:
    """Why a host could not be read, in one line, from the result of the task that tried; None when it could, or nobody tried."""
    if not result or not (result.get("unreachable") or result.get("failed")):
        return None
    text = str(result.get("msg") or "")
    last = [line for line in str(result.get("module_stderr") or "").splitlines() if line.strip()][-1:]
    if last and (not text or _SAYS_NOTHING.search(text)):
        text = last[0]
    return " ".join(text.split()).removeprefix("Task failed: ") or "no reason given"


def fleet_hosts(
    names: t.Iterable[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]], facts_dir: str, plans_dir: str | None = None
) -> dict[str, dict[str, t.Any]]:
    """{host: {facts, policy, plan}} of the named hosts; ``plan`` is None without ``plans_dir`` or without a plan.

    A host that ``fleet_down_hosts`` names has ``down: True`` besides, one that could not be read in this run ``unread`` with the
    reason, and ``reached: True`` if it answered. Their facts are those published last, and None where there are none.
    """
    result: dict[str, dict[str, t.Any]] = {}
    down = {name: down_hosts(hostvars[name].get("fleet_down_hosts") or []) for name in names}
    try:
        if (wrong := written.one_for_all("fleet_down_hosts", down)) is not None:
            raise wrong
        for name in down:
            variables = hostvars[name]
            sensed = (variables.get("ansible_facts") or {}).get("gpuops_fleet")
            plan = None
            if plans_dir is not None and os.path.exists(path := os.path.join(plans_dir, f"{name}.yml")):
                plan = door.read_yaml_file(path).data
            absent: dict[str, t.Any] = {}
            if name in down[name]:
                absent["down"] = True
            elif reason := unread_reason(variables.get("__fleet_read")):
                absent["unread"] = reason
                if not variables["__fleet_read"].get("unreachable"):
                    absent["reached"] = True
            if absent:
                known = os.path.lexists(os.path.join(facts_dir, f"{name}.json"))
                facts = published_facts(name, facts_dir) if known else None
            else:
                facts = sensed if sensed is not None else published_facts(name, facts_dir)
            result[name] = {"facts": facts, "policy": views.policy_of(variables), "plan": plan, **absent}
        _link(result, hostvars, facts_dir)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from None  # ansible-core would print the cause a second time
    return result


def host_policies(names: t.Iterable[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    """{host: {policy}} of the named hosts: as :func:`fleet_hosts`, before anything is known of them."""
    return {name: {"policy": views.policy_of(hostvars[name])} for name in names}


def _link(hosts: dict[str, dict[str, t.Any]], hostvars: t.Mapping[str, t.Mapping[str, t.Any]], facts_dir: str) -> None:
    """Guests and their physical hosts see each other; a physical host that is not among the named ones is looked at as well."""
    links = {name: link for name, host in hosts.items() if (link := parents.parent_of(name, door.plain(host["policy"]))) is not None}
    if any(parents.gives_away(host["facts"]) for host in hosts.values()):  # then its guests matter, whoever was asked for
        for name in set(hostvars) - set(hosts):
            link = parents.parent_of(name, {PARENT: door.plain(hostvars[name].get(PARENT))})
            if link is not None and link["host"] in hosts:
                links[name] = link
    if not links:
        return
    facts = {name: host["facts"] for name, host in hosts.items()}
    for link in links.values():
        name = link["host"]
        if name not in facts:
            sensed = (hostvars[name].get("ansible_facts") or {}).get("gpuops_fleet") if name in hostvars else None
            known = sensed is None and os.path.lexists(os.path.join(facts_dir, f"{name}.json"))
            facts[name] = published_facts(name, facts_dir) if known else sensed
    seen = parents.see_through(facts, links)
    for name, host in hosts.items():
        host["facts"] = seen[name]


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "down_hosts": down_hosts,
            "fleet_hosts": fleet_hosts,
            "host_policies": host_policies,
            "unread_reason": unread_reason,
        }
