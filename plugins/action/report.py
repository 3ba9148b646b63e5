# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: draws the fleet as one HTML file, on the controller."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET, read_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Inputs, Policy, build
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_html import TEMPLATE, render
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "dict", "required": True},
    "manifests": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "path": {"type": "path", "required": True},
    "title": {"type": "str", "default": "GPU fleet"},
    "generated": {"type": "str", "default": ""},
    "live": {"type": "bool", "default": False},
    "template": {"type": "path"},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Read, count, draw, and unless in check mode write. :raises FleetError: something is wrong; nothing is written then."""
    report = build(read_inputs(arguments))
    template = door.read_text(arguments.get("template") or door.DATA / TEMPLATE)
    text = render(template, report, title=arguments["title"], generated=arguments["generated"])
    files = {arguments["path"]: text}
    return {"path": arguments["path"], "summary": report.summary(), **door.put(files, check_mode, diff)}


def read_inputs(arguments: Mapping[str, t.Any]) -> Inputs:
    """Facts and policies out of the arguments, manifests and plans from their directories; what is not planned yet has no plan.

    :raises FleetError: a file cannot be read or is not what it should be, or a host is not described as it should be.
    """
    hosts: Mapping[str, t.Any] = arguments["hosts"]
    for name, value in hosts.items():
        if not isinstance(value, Mapping) or not isinstance(value.get("facts") or {}, Mapping):
            raise FleetError("not the facts and policy of a host", file=f"host {name}", hint="write {facts: ..., policy: ...}")
    plans = {name: plan for name in hosts if (plan := _plan(arguments["plans"], name)) is not None}
    return Inputs(
        facts={name: value.get("facts") or None for name, value in hosts.items()},
        plans=plans,
        unplaced=_unplaced(arguments["plans"]),
        services=[_service(manifest) for manifest in read_manifests(door.read_texts(arguments["manifests"]))],
        policies={name: _policy(name, value["policy"]) for name, value in hosts.items() if value.get("policy")},
        live=arguments["live"],
        down=frozenset(name for name, value in hosts.items() if value.get("down")),
    )


def _plan(directory: str, host: str) -> Mapping[str, t.Any] | None:
    path = os.path.join(directory, f"{host}.yml")
    text = door.read_written(path)
    return None if text is None else read_plan(path, text).data


def _unplaced(directory: str) -> list[Mapping[str, t.Any]]:
    path = os.path.join(directory, f"{FLEET}.yml")
    text = door.read_written(path)
    if text is None:
        return []
    located = read_yaml(text, path)
    entries = located.data.get("unplaced") or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) and "service" in entry for entry in entries):
        raise located.error(("unplaced",), "not a list of services", "make the plan again with the plan playbook")
    return entries


def _service(manifest: Manifest) -> Service:
    model = manifest.model
    return Service(
        name=manifest.service,
        team=str(model.team),
        environment=str(model.environment),
        replicas=model.replicas,
        asked_mib=manifest.need_mib() or None,
        profile=model.gpu.profile,
        adopted=model.lifecycle == "adopted",
    )


def _policy(host: str, variables: Mapping[str, t.Any]) -> Policy:
    policy = read_policy(host, variables)
    return Policy(policy.fleet_environment, tuple(str(gpu) for gpu in policy.fleet_cordoned_gpus), policy.fleet_shared_reserve)


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
