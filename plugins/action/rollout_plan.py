# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: how the new versions on one host take the places of the old ones, decided on the controller."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import last_of_versions
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import read_plan, to_text
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import read_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rollouts import host_rollouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "host": {"type": "str", "required": True},
    "plan": {"type": "dict", "required": True},
    "manifests": {"type": "path", "required": True},
    "images_file": {"type": "path"},
    "facts": {"type": "dict", "required": True},
    "policy": {"type": "dict", "required": True},
    "changed": {"type": "list", "elements": "str", "default": []},
    "stopped": {"type": "list", "elements": "str", "default": []},
    "found": {"type": "list", "elements": "str", "default": []},
    "resting": {"type": "dict", "default": {}},
    "only": {"type": "str"},
    "versions": {"type": "dict", "default": {}},
    "retry": {"type": "bool", "default": False},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The result of the module, see its RETURN. :raises FleetError: plan, policy or a manifest is wrong."""
    name = arguments["host"]
    manifests = read_manifests(door.read_texts(arguments["manifests"]))
    facts = check_facts(name, arguments["facts"])
    catalogue = door.catalogue()
    site = Site(
        name=name,
        plan=read_plan(f"plan of {name}", to_text(arguments["plan"])),
        facts=facts,
        policy=read_policy(name, arguments["policy"]),
        manifests=manifests,
        catalogue=catalogue,
        stopped=frozenset(arguments["stopped"]),
        last=last_of_versions(arguments["versions"], facts),
        bars=door.judge({}, arguments.get("images_file")).bars(catalogue, {name: facts}, [manifest.data() for manifest in manifests]),
    )
    told = {key: arguments[key] for key in ("changed", "found", "resting")}
    versions = {} if arguments["retry"] else arguments["versions"]
    result = host_rollouts(site, only=arguments["only"] or None, versions=versions, **told)
    return {"changed": False, **result}


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
