# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: writes the manifest of an earlier version back, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rolling_back import back_to

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "service": {"type": "str", "required": True},
    "to": {"type": "str"},
    "kept": {"type": "dict", "required": True},
    "manifests": {"type": "path", "required": True},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Choose the version, and unless in check mode write its manifest. :raises FleetError: there is none; nothing is written then."""
    directory = arguments["manifests"]
    back = back_to(arguments["service"], arguments["to"] or None, arguments["kept"], door.read_texts(directory), directory)
    files = {back.file: back.text}
    return {"file": back.file, "digest": back.digest, "line": back.line, **door.put(files, check_mode, diff)}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
