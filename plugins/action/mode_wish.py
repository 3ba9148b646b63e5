# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: which GPUs shall have which mode, held against the inventory, which is written where that is allowed; on the controller."""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode import find, left_drained, named, projects, work
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode_inventory import rewritten, wished

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "dict", "required": True},
    "gpu": {"type": "raw", "required": True},
    "mode": {"type": "str"},
    "with": {"type": "dict", "default": {}},
    "inventory": {"type": "path", "required": True},
    "write_inventory": {"type": "bool", "default": False},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Decide, and write the inventory where it may be written and says something else.

    :raises FleetError: a GPU is not there, or cannot have the mode, or the inventory says otherwise; nothing is written then.
    """
    hosts = arguments["hosts"]
    found: dict[str, list[Mapping[str, t.Any]]] = {}
    for host, entry in find(hosts, named(arguments["gpu"])):
        found.setdefault(host, []).append(entry)
    result: dict[str, t.Any] = {}
    files: dict[str, str] = {}
    for host in sorted(found):
        known = hosts[host]
        more = arguments["with"]
        write = arguments["write_inventory"]
        targets, layouts = wished(host, known["facts"], known["policy"], found[host], arguments.get("mode") or None, more, write)
        if layouts is not None:
            path = _file_of(arguments["inventory"], host)
            before = known["policy"].get("fleet_gpu_layouts") or []
            files[path] = rewritten(path, door.read_text_or_none(path) or "---\n", before, layouts)
        gpus = [one.uuid for one in targets]
        result[host] = {
            "targets": [one.data() for one in targets],
            "work": work(targets),
            "companions": any(one.layout.get("companions") for one in targets),
            "projects": projects(known.get("plan"), gpus),
            "left_by": left_drained(known["facts"], gpus),
            "layouts": layouts if layouts is not None else known["policy"].get("fleet_gpu_layouts") or [],
        }
    return {"wishes": result, "files": sorted(files), **door.put(files, check_mode, diff)}


def _file_of(inventory: str, host: str) -> str:
    """The file with the host's variables: that which has the list already, else the first of the usual names."""
    folder = os.path.join(inventory, "host_vars")
    plain = [os.path.join(folder, f"{host}{end}") for end in (".yml", ".yaml", "")]
    here = [path for path in plain if os.path.isfile(path)]
    inside = door.yaml_files(plain[2]) if os.path.isdir(plain[2]) else []
    texts = {path: door.read_text(path) for path in [*here, *inside]}
    return next((path for path, text in texts.items() if "fleet_gpu_layouts" in text), next(iter(texts), plain[0]))


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
