# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: lists what a site must mirror for its inventory, on the controller."""

from __future__ import annotations

import json
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.action.plan import TEMPLATES
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.bundle import bundle
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "manifests": {"type": "path", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "hosts": {"type": "dict", "required": True},
    "path": {"type": "path", "required": True},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """List, and unless in check mode write what changed. :raises FleetError: a manifest is wrong; nothing is written then."""
    manifests = read_manifests(door.read_texts(arguments["manifests"]), door.known_runtimes([*arguments["templates"], TEMPLATES]))
    found = bundle((manifest.data() for manifest in manifests), arguments["hosts"])
    files = {arguments["path"]: json.dumps(found.data(), indent=1) + "\n"}
    return {"lines": found.lines(), "bundle": found.data(), **door.put(files, check_mode, diff)}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
