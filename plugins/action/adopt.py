# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: writes what runs on hosts as manifests and plans, on the controller."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.adoption import UNASSIGNED, adopt_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.claims import WATCHERS
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "dict", "required": True},
    "manifests": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "layouts": {"type": "path"},
    "team": {"type": "str", "default": UNASSIGNED},
    "ignore_images": {"type": "list", "elements": "str", "default": list(WATCHERS)},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Read, sort out, and unless in check mode write what is new. :raises FleetError: something is wrong; nothing is written then."""
    manifests, plans = arguments["manifests"], arguments["plans"]
    texts = door.read_texts(manifests) if os.path.lexists(manifests) else []
    adopted = adopt_fleet(
        texts,
        door.last_plans(plans, FLEET),
        arguments["hosts"],
        door.catalogue(),
        team=arguments["team"],
        taken=[os.path.splitext(os.path.basename(path))[0] for path, _text in texts],
        watchers=arguments["ignore_images"],
    )
    exported = {name: layouts.export(host["facts"]["gpus"]) for name, host in arguments["hosts"].items()}
    files = {os.path.join(manifests, f"{name}.yml"): text for name, text in adopted.manifests.items()}
    files.update({os.path.join(plans, f"{name}.yml"): text for name, text in adopted.plans.items()})
    if adopted.fleet is not None:
        files[os.path.join(plans, f"{FLEET}.yml")] = adopted.fleet
    if arguments["layouts"] is not None:
        files.update({os.path.join(arguments["layouts"], f"{name}.yml"): text for name, text in exported.items()})
    if not check_mode:
        # Playbook plan wants it to be there, also where nobody was found.
        door.make_directory(manifests)
    return {
        "table": adopted.table,
        "services": sorted(adopted.manifests),
        "left_out": [{"host": left.host, "what": left.what, "reason": left.reason} for left in adopted.left_out],
        "layouts": exported,
        **door.put(files, check_mode, diff),
    }


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
