# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: says which services may run on which GPUs of which hosts, on the controller."""

from __future__ import annotations

import json
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.action.plan import TEMPLATES
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import judge_services
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "manifests": {"type": "path", "required": True},
    "hosts": {"type": "dict", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "images": {"type": "dict", "default": {}},
    "images_file": {"type": "path"},
    "today": {"type": "str"},
    "dest": {"type": "path"},
    "table_dest": {"type": "path"},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool = False, diff: bool = False) -> dict[str, t.Any]:
    """Judge, and unless in check mode write what was judged. :raises FleetError: a manifest is wrong, or the date is none."""
    judge = door.judge(arguments["images"], arguments.get("images_file"))
    catalogue = door.catalogue()
    manifests = read_manifests(door.read_texts(arguments["manifests"]), door.known_runtimes([*arguments["templates"], TEMPLATES]))
    images = judge.images(manifest.data() for manifest in manifests)
    judged = judge_services(judge.facts, catalogue, arguments["hosts"], images, arguments["today"])
    result = {"changed": False, "table": judged.table(), "verdicts": judged.data()}
    files = {}
    if arguments.get("dest"):
        paper = {"schema": 1, "today": arguments["today"], "verdicts": result["verdicts"], "unread": dict(sorted(judged.unread.items()))}
        files[arguments["dest"]] = json.dumps(paper, indent=1, sort_keys=True) + "\n"
    if arguments.get("table_dest"):
        files[arguments["table_dest"]] = "".join(f"{line}\n" for line in judged.table())
    if files:
        result.update(door.put(files, check_mode, diff))
    return result


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
