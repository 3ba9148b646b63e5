# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: what an upgrade host by host would do, and whether every service stays served, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.action.plan import TEMPLATES
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET
from ansible_collections.gpuops.fleet.plugins.plugin_utils.upgrade import turns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import unread_of

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "manifests": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "hosts": {"type": "dict", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "images_file": {"type": "path"},
    "order": {"type": "list", "elements": "str", "required": True},
    "work": {"type": "dict", "default": {}},
    "outage": {"type": "bool", "default": False},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Decide, and write nothing.

    :raises FleetError: a host cannot be read, or a replica cannot leave one of them; nothing is to be touched then.
    """
    hosts = arguments["hosts"]
    if unread := unread_of(hosts):
        hint = "leave those to fleet_down_hosts that are gone"
        raise FleetError("; ".join(f"{name} cannot be read: {reason}" for name, reason in unread.items()), hint=hint)
    manifests = door.read_texts(arguments["manifests"])
    catalogue, judge = door.catalogue(), door.judge({}, arguments.get("images_file"))
    runtimes = door.known_runtimes([*arguments["templates"], TEMPLATES])

    def plan(texts: Mapping[str, tuple[str, str]], known: Mapping[str, Mapping[str, t.Any]]) -> Planned:
        return plan_fleet(manifests, texts, known, catalogue, runtimes, judge=judge, others_stay=True)

    found = turns(plan, door.last_plans(arguments["plans"], FLEET), hosts, arguments["order"], arguments["outage"], arguments["work"])
    return {"changed": False, "turns": found}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
