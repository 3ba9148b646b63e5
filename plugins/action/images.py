# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: says which images of the manifests are not recorded yet, and records what was learnt of them, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.action.plan import TEMPLATES
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, images
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET, read_plan

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "manifests": {"type": "path", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "plans": {"type": "path"},
    "again": {"type": "bool", "default": False},
    "engines": {"type": "dict", "default": {}},
    "registry": {"type": "dict", "default": {}},
    "drop": {"type": "bool", "default": False},
    "record": {"type": "bool", "default": True},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Compare, and record. :raises FleetError: a paper is damaged; nothing is written then."""
    path = arguments["path"]
    before = door.read_text_or_none(path)
    record = images.read_record(path, before)
    manifests = read_manifests(door.read_texts(arguments["manifests"]), door.known_runtimes([*arguments["templates"], TEMPLATES]))
    wanted = images.images_of(manifests)
    asked = images.unknown(wanted, record, arguments["again"])
    learnt = images.learn(wanted, asked, arguments["engines"], arguments["registry"])
    after = images.merged(record, learnt, wanted, arguments["drop"]) if arguments["record"] else record
    changed = after != record
    text = images.to_text(after) if changed else before or ""
    result: dict[str, t.Any] = {
        "changed": changed,
        "wanted": [name for digest in learnt.untold for name in wanted.names[digest]],
        "hosts": images.by_host(wanted, learnt.untold, _places(arguments["plans"])),
        "lines": images.lines(wanted, learnt),
        "missing": list(learnt.missing.values()),
        "recorded": len(after),
        "images": len(wanted.names),
    }
    if diff:
        result["diff"] = door.diffs({path: text}, {path: before or ""})
    if changed and not check_mode:
        door.write_text(path, text)
    return result


def _places(directory: str | None) -> dict[str, set[str]]:
    """host -> services that its plan has."""
    if directory is None:
        return {}
    plans = {name: read_plan(*paper) for name, paper in door.last_plans(directory, FLEET).items()}
    return {name: {place.service for place in plan.placements} for name, plan in plans.items()}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
