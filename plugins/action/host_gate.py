# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: says whether a host passes the part of the gate that no image has a say in, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_gate import judge_host

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "host": {"type": "str", "required": True},
    "facts": {"type": "dict", "required": True},
    "today": {"type": "str"},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Judge. :raises FleetError: the host does not pass; everything that keeps it from that, in one line."""
    catalogue = door.catalogue()
    facts = door.compat_facts()
    found = judge_host(facts, catalogue, arguments["host"], arguments["facts"], arguments["today"])
    if found["no"]:
        raise FleetError(" | ".join(found["no"]))
    return {"changed": False, "findings": found["warn"]}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
