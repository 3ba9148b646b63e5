# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: decides where every service runs and writes the plan files, on the controller."""

from __future__ import annotations

import json
import os
import re
import typing as t
from collections.abc import Iterable, Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, ask_fleet, check_papers, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import unplaced_lines, unread_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import WhatIf
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import reason_lines

# The collection's own compose templates, three directories above this file.
TEMPLATES = Path(__file__).resolve().parents[2] / "compose-templates"
# What says that somebody wants reasons, and of nobody by name.
_NOBODY = frozenset({"true", "yes", "on", "1", "all", "false", "no", "off", "0"})
# What a result has when nothing was decided.
_NOTHING: dict[str, t.Any] = {
    "changed": False,
    "plans": {},
    "services": {},
    "unread": {},
    "refusal": "",
    **{name: [] for name in ("unplaced", "rollouts", "steps", "bounds", "emptied", "explained", "why", "proposal")},
}
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "manifests": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "hosts": {"type": "dict", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "images_file": {"type": "path"},
    "fail_unplaced": {"type": "bool", "default": False},
    "explain": {"type": "list", "elements": "str", "default": []},
    "what_if": {"type": "raw"},
    "others_stay": {"type": "bool", "default": False},
    "consolidate": {"type": "int", "default": 0},
    "check_only": {"type": "bool", "default": False},
    "move": {
        "type": "dict",
        "options": {
            "service": {"type": "str", "required": True},
            "replica": {"type": "int", "required": True},
            "to": {"type": "str", "required": True},
        },
    },
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Read, decide, and unless in check mode write what changed. While a host cannot be read, nothing is written: whether it is gone
    is for a person to say.

    :raises FleetError: something is wrong; nothing is written then.
    """
    plans = arguments["plans"]
    for name in ("plans", "manifests"):
        # An empty path would be the directory that the command was typed in, with no last plans in it.
        if not str(arguments[name]).strip():
            raise FleetError("it is empty", field=f"fleet_{name}", hint="name the directory, or leave the variable out")
    if isinstance(arguments.get("what_if"), str) and not arguments["what_if"].strip():
        # A question that a pipeline left empty would be answered by writing plans.
        raise FleetError("it is empty", field="fleet_what_if", hint="ask a question, name a file with one, or leave the variable out")
    if arguments.get("check_only"):
        return _checked(arguments)
    if arguments.get("what_if"):
        return _answered(arguments)
    names = _names(arguments.get("explain") or ())
    fleet = os.path.join(plans, f"{FLEET}.yml")
    last_fleet = door.read_written(fleet)
    manifests, last_plans = door.read_texts(arguments["manifests"]), door.last_plans(plans, FLEET)
    planned = plan_fleet(
        manifests,
        last_plans,
        arguments["hosts"],
        door.catalogue(),
        door.known_runtimes([*arguments["templates"], TEMPLATES]),
        move=Move(**arguments["move"]) if arguments.get("move") else None,
        last_fleet=None if last_fleet is None else (fleet, last_fleet),
        judge=door.judge({}, arguments.get("images_file")),
        explain=names,
        others_stay=arguments.get("others_stay", False),
        consolidate=arguments.get("consolidate") or 0,
    )
    files = {os.path.join(plans, f"{name}.yml"): plan.text for name, plan in planned.plans.items()}
    files[fleet] = planned.fleet
    result = _result(planned, arguments["hosts"])
    if result["unread"]:
        return result
    if last_plans and not manifests:
        nothing = f"{arguments['manifests']}: there is no manifest, so whatever runs is to be removed; is it the right directory?"
        result["warnings"] = [nothing, *result["warnings"]]
    result.update(door.put(files, check_mode, diff))
    if arguments["fail_unplaced"] and planned.unplaced:
        result.update(failed=True, msg="\n".join(unplaced_lines(planned.unplaced)))
    return result


def _names(asked: Iterable[str]) -> list[str] | None:
    """Services and replicas to be explained; None where none is named: then those that are not where they were are."""
    names = [part for name in asked for part in re.split(r"[,\s]+", str(name)) if part and part.lower() not in _NOBODY]
    return names or None


def _checked(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Nothing but the result of a module that changes nothing, if nothing is wrong."""
    check_papers(
        door.read_texts(arguments["manifests"]),
        door.last_plans(arguments["plans"], FLEET),
        {name: (host or {}).get("policy") or {} for name, host in arguments["hosts"].items()},
        door.known_runtimes([*arguments["templates"], TEMPLATES]),
    )
    return {**_NOTHING, "table": []}


def _answered(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The answer to a question; nothing is written."""
    asked = arguments["what_if"]
    if isinstance(asked, str):
        data = read_yaml(asked, "fleet_what_if") if asked.lstrip().startswith("{") else door.read_yaml_file(asked)
    else:
        data = Located(asked, "fleet_what_if")
    answer = ask_fleet(
        WhatIf(data),
        door.read_texts(arguments["manifests"]),
        door.last_plans(arguments["plans"], FLEET),
        arguments["hosts"],
        door.catalogue(),
        door.known_runtimes([*arguments["templates"], TEMPLATES]),
        judge=door.judge({}, arguments.get("images_file")),
    )
    return {**_NOTHING, "table": answer.lines, "what_if": answer.data}


def _result(planned: Planned, hosts: Mapping[str, t.Any]) -> dict[str, t.Any]:
    unread = unread_of(hosts)
    return {
        "changed": False,
        "table": planned.table,
        "plans": {name: dict(plan.data) for name, plan in planned.plans.items()},
        "unplaced": planned.unplaced,
        "rollouts": planned.rollouts,
        "explained": [each.data() for each in planned.explained],
        "why": reason_lines(planned.why),
        "steps": planned.steps,
        "bounds": planned.bounds,
        "emptied": planned.emptied,
        "services": planned.services,
        "warnings": [] if unread else planned.notes,
        "unread": unread,
        "proposal": planned.proposal,
        "refusal": _refusal(unread, hosts) if unread else "",
    }


def _refusal(unread: Mapping[str, str], hosts: Mapping[str, t.Any]) -> str:
    names = ", ".join(unread)
    down = sorted(name for name, host in hosts.items() if host.get("down") or host.get("unread"))
    if len(down) == len(hosts):
        return f"{names} cannot be read, and no other host is left: nothing was written"
    setting = json.dumps({"fleet_down_hosts": down})
    return f"{names} cannot be read: nothing was written. To plan as if it were gone: -e '{setting}'"


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
