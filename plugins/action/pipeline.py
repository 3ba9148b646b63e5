# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: writes what a pipeline needs from the plans of before and now, on the controller."""

from __future__ import annotations

import json
import os
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import explain_plans
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gateway import read_settings
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline import (
    Changes,
    Service,
    compare,
    now_pending,
    pending_text,
    read_pending,
    service_of,
    still_pending,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline_jobs import Settings, child_pipeline, name_of, variables_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.pipeline_page import TEMPLATE, lines, markdown, page_data, render
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET, Turns, read_plan, read_turns

# The collection's own hidden jobs, three directories above this file.
JOBS = Path(__file__).resolve().parents[2] / "ci" / "child.yml"
TEMPLATES = JOBS.parents[1] / "compose-templates"
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "before": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "manifests": {"type": "path", "required": True},
    "manifests_before": {"type": "path"},
    "hosts": {"type": "dict", "default": {}},
    "pending": {"type": "path"},
    "child": {"type": "path"},
    "jobs": {"type": "path"},
    "parent": {"type": "str", "default": ""},
    "gated": {"type": "list", "elements": "str", "default": ["production"]},
    "gateway": {"type": "dict", "default": {}},
    "gateway_name": {"type": "str", "default": ""},
    "addresses": {"type": "dict", "default": {}},
    "variables": {"type": "dict", "default": {}},
    "gateways": {"type": "bool", "default": False},
    "everything": {"type": "bool", "default": False},
    "widget": {"type": "path"},
    "page": {"type": "path"},
    "markdown": {"type": "path"},
    "templates": {"type": "list", "elements": "path", "default": []},
    "title": {"type": "str", "default": "Plan preview"},
    "generated": {"type": "str", "default": ""},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Read, compare, and unless in check mode write. :raises FleetError: something is wrong; nothing is written then."""
    hosts: Mapping[str, Mapping[str, t.Any]] = arguments["hosts"]
    last, new = _plans(arguments["before"]), _plans(arguments["plans"])
    if last and not os.path.isdir(arguments["plans"]):
        wrong = f"there is no such directory, and {arguments['before']} has plans: all of their services would be removed"
        raise FleetError(wrong, file=arguments["plans"], hint="make the plan first, or name the directory that it was written to")
    services, old = _services(arguments["manifests"]), _services(arguments["manifests_before"])
    down = sorted(name for name, host in hosts.items() if host.get("down") or host.get("unread"))
    pending = {}
    if arguments["pending"] is not None:
        text = door.read_text_or_none(arguments["pending"])
        facts = {name: None if name in down else host.get("facts") for name, host in hosts.items()}
        pending = still_pending(read_pending(arguments["pending"], text), last, facts, {**old, **services})
    fleet = _fleet_file(arguments["plans"])
    unplaced = _unplaced(*fleet)
    without = {(each["service"], each["replica"]) for each in unplaced}
    changes = compare(last, new, old, services, pending, down, arguments["everything"], without)
    files: dict[str, str] = {}
    if arguments["child"] is not None:
        path = arguments["jobs"] or JOBS
        settings = Settings(
            parent=arguments["parent"],
            gated=arguments["gated"],
            gateway=read_settings(arguments["gateway"]),
            own_name=arguments["gateway_name"],
            addresses=arguments["addresses"],
            variables=variables_of(arguments["variables"]),
            gateways=arguments["gateways"],
        )
        files[arguments["child"]] = child_pipeline(changes, new, (os.fspath(path), door.read_text(path)), settings)
    if arguments["pending"] is not None:
        files[arguments["pending"]] = pending_text(now_pending(pending, changes))
    if arguments["widget"] is not None:
        files[arguments["widget"]] = json.dumps(changes.widget(), sort_keys=True) + "\n"
    if arguments["page"] is not None or arguments["markdown"] is not None:
        notes = [f"{host} is down: what is to be done there waits" for host in down]
        # Steps stay in the file until somebody else moves.
        turns = _turns(*fleet)
        turns = Turns() if turns == _turns(*_fleet_file(arguments["before"])) else turns
        data = page_data(changes, unplaced, notes, arguments["child"] is not None, _reasons(arguments), turns)
    if arguments["markdown"] is not None:
        files[arguments["markdown"]] = markdown(data, title=arguments["title"])
    if arguments["page"] is not None:
        files[arguments["page"]] = render(
            door.read_text(door.DATA / TEMPLATE), data, title=arguments["title"], generated=arguments["generated"]
        )
    return _written(files, changes, unplaced, check_mode, diff)


def _written(
    files: Mapping[str, str], changes: Changes, unplaced: list[dict[str, t.Any]], check_mode: bool, diff: bool
) -> dict[str, t.Any]:
    return {
        "summary": changes.widget(),
        "table": lines(changes, unplaced),
        "unplaced": unplaced,
        "work": [
            {"job": name_of(work), "service": work.service, "host": work.host, "kind": work.kind, "why": work.why} for work in changes.work
        ],
        **door.put(files, check_mode, diff),
    }


def _reasons(arguments: Mapping[str, t.Any]) -> dict[str, str]:
    """Why each new place is where it is; nothing where the papers that are needed for that are not at hand: a page is no gate."""
    try:
        return explain_plans(
            door.read_texts(arguments["manifests"]),
            door.last_plans(arguments["before"], FLEET),
            door.last_plans(arguments["plans"], FLEET),
            arguments["hosts"],
            door.catalogue(),
            door.known_runtimes([*arguments["templates"], TEMPLATES]),
        )
    except FleetError:
        return {}


def _plans(directory: str) -> dict[str, Mapping[str, t.Any]]:
    return {name: read_plan(path, text).data for name, (path, text) in door.last_plans(directory, FLEET).items()}


def _services(directory: str | None) -> dict[str, Service]:
    if directory is None or not os.path.isdir(directory):
        return {}
    return {manifest.service: service_of(manifest) for manifest in read_manifests(door.read_texts(directory))}


def _fleet_file(directory: str) -> tuple[str, str | None]:
    """(path, text) of what belongs to no host."""
    path = os.path.join(directory, f"{FLEET}.yml")
    return path, door.read_written(path)


def _unplaced(path: str, text: str | None) -> list[dict[str, t.Any]]:
    return [] if text is None else list(read_yaml(text, path).data.get("unplaced") or [])


def _turns(path: str, text: str | None) -> Turns:
    return Turns() if text is None else read_turns(path, text)


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
