# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: finds boards that were exchanged and writes the plans that name the old ones anew, on the controller."""

from __future__ import annotations

import json
import os
import typing as t
from collections.abc import Mapping
from dataclasses import asdict

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import FLEET
from ansible_collections.gpuops.fleet.plugins.plugin_utils.replacing import mentions, propose, published_facts

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "dict", "required": True},
    "plans": {"type": "path", "required": True},
    "facts": {"type": "path", "required": True},
    "inventory": {"type": "path"},
    "write_inventory": {"type": "bool", "default": False},
}


def run(arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
    """Compare, and unless in check mode write the plans. :raises FleetError: a paper is damaged; nothing is written then."""
    plans, facts = arguments["plans"], arguments["facts"]
    proposal = propose(
        arguments["hosts"],
        door.last_plans(plans, FLEET),
        {name: known for name in arguments["hosts"] if (known := _published(name, facts)) is not None},
        door.catalogue(),
    )
    texts = door.texts_below(arguments["inventory"], [plans, facts]) if arguments["inventory"] is not None and proposal.exchanges else []
    lines, rewritten = mentions(proposal.exchanges, texts)
    files = {os.path.join(plans, f"{name}.yml"): plan.text for name, plan in proposal.plans.items()}
    before = {path: door.read_written(path) for path in [*files, *rewritten]}
    writes = arguments["write_inventory"]
    result: dict[str, t.Any] = {
        "changed": bool(files or (rewritten and writes)),
        "table": proposal.table(lines),
        "exchanges": [asdict(one) for one in proposal.exchanges],
        "refusals": proposal.refusals,
        "mentions": [asdict(one) for one in lines],
    }
    if diff:
        result["diff"] = door.diffs({**files, **(rewritten if writes else {})}, before)
    if not check_mode:
        door.write_all(files)
        if writes:
            door.rewrite_all(rewritten)
    return result


def _published(host: str, directory: str) -> Mapping[str, t.Any] | None:
    path = os.path.join(directory, f"{host}.json")
    text = door.read_text_or_none(path)
    if text is None:
        return None
    try:
        return published_facts(host, json.loads(text))
    except ValueError as error:
        raise FleetError(f"not JSON: {error}", file=path, hint="remove it and run playbook plan") from error


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:
        """See :func:`run`."""
        return run(arguments, check_mode, diff)
