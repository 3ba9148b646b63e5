# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that gathers what is known of every host: facts just read or published earlier, policy from the inventory, the plan."""

from __future__ import annotations

import json
import os
import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, views


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


def fleet_hosts(
    names: t.Iterable[str], hostvars: t.Mapping[str, t.Mapping[str, t.Any]], facts_dir: str, plans_dir: str | None = None
) -> dict[str, dict[str, t.Any]]:
    """{host: {facts, policy, plan}} of the named hosts; ``plan`` is None without ``plans_dir`` or without a plan."""
    result: dict[str, dict[str, t.Any]] = {}
    try:
        for name in names:
            variables = hostvars[name]
            sensed = (variables.get("ansible_facts") or {}).get("gpuops_fleet")
            plan = None
            if plans_dir is not None and os.path.exists(path := os.path.join(plans_dir, f"{name}.yml")):
                plan = door.read_yaml_file(path).data
            facts = sensed if sensed is not None else published_facts(name, facts_dir)
            result[name] = {"facts": facts, "policy": views.policy_of(variables), "plan": plan}
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from None  # ansible-core would print the cause a second time
    return result


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"fleet_hosts": fleet_hosts}
