# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: what happens to services while GPUs get another mode, on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.action.plan import TEMPLATES
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import Planned, plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode import target
from ansible_collections.gpuops.fleet.plugins.plugin_utils.mode_turn import turns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import unread_of

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "manifests": {"type": "path", "required": True},
    "plans": {"type": "path", "required": True},
    "hosts": {"type": "dict", "required": True},
    "templates": {"type": "list", "elements": "path", "default": []},
    "images_file": {"type": "path"},
    "wishes": {"type": "dict", "required": True},
    "steps": {"type": "dict", "default": {}},
    "outage": {"type": "bool", "default": False},
    "reached": {"type": "list", "elements": "str"},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Decide, and write nothing.

    :raises FleetError: a host cannot be read, or a replica cannot leave a GPU; nothing is to be touched then.
    """
    wishes = arguments["wishes"]
    hosts = {name: _with_layouts(host, wishes.get(name)) for name, host in arguments["hosts"].items()}
    if unread := unread_of(hosts):
        hint = "leave those to fleet_down_hosts that are gone"
        raise FleetError("; ".join(f"{name} cannot be read: {reason}" for name, reason in unread.items()), hint=hint)
    manifests = door.read_texts(arguments["manifests"])
    catalogue, judge = door.catalogue(), door.judge({}, arguments.get("images_file"))
    runtimes = door.known_runtimes([*arguments["templates"], TEMPLATES])
    targets = {host: [target(one) for one in wish["targets"]] for host, wish in sorted(wishes.items())}

    def plan(texts: Mapping[str, tuple[str, str]], known: Mapping[str, Mapping[str, t.Any]]) -> Planned:
        return plan_fleet(manifests, texts, known, catalogue, runtimes, judge=judge, others_stay=True)

    last = door.last_plans(arguments["plans"], FLEET)
    found = turns(plan, last, hosts, targets, arguments["steps"], arguments["outage"])
    if arguments.get("reached") is not None:
        _refuse_hidden(found, set(arguments["reached"]))
    return {"changed": False, "turns": found}


def _with_layouts(host: Mapping[str, t.Any], wish: Mapping[str, t.Any] | None) -> Mapping[str, t.Any]:
    """The host as its inventory will have it."""
    return host if wish is None else {**host, "policy": {**host["policy"], "fleet_gpu_layouts": wish["layouts"]}}


def _refuse_hidden(found: list[dict[str, t.Any]], reached: set[str]) -> None:
    """Hosts of a move that --limit leaves out."""
    places = {part for one in found for line in [*one["moves"], *one["back"]] for part in line.split()[2::2]}
    hidden = sorted(places - reached - {"none"})
    if hidden:
        raise FleetError(f"replicas would move from or to {', '.join(hidden)}, and --limit leaves that out", hint="leave out --limit")


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
