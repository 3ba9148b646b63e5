# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: says where the memory and the SMs of a GPU or of a layout are, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room_gpus import explain_board, explain_hosts

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "dict", "default": {}},
    "gpu": {"type": "str"},
    "board": {"type": "str"},
    "layout": {"type": "str"},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Explain. :raises FleetError: no such GPU, board or layout."""
    catalogue = door.catalogue()
    if arguments["board"] is None:
        text, data = explain_hosts(arguments["hosts"], catalogue, arguments["gpu"], arguments["layout"])
    elif arguments["layout"] is None or arguments["gpu"] is not None:
        wrong = "a board is explained with a layout, and without a GPU"
        raise FleetError(wrong, field="board", hint="give a board and a layout such as 7x1g.10gb, or a GPU of a host")
    else:
        text, data = explain_board(arguments["board"], arguments["layout"], catalogue)
    return {"changed": False, "table": text, "gpus": data}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
