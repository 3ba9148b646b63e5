# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door: says whether a host that was upgraded is as it was and may have its services, on the controller."""

from __future__ import annotations

import json
import typing as t
from collections.abc import Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_gate import judge_host
from ansible_collections.gpuops.fleet.plugins.plugin_utils.upgrade import gate, newly_barred

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "host": {"type": "str", "required": True},
    "before": {"type": "dict", "required": True},
    "facts": {"type": "dict", "required": True},
    "published": {"type": "raw"},
    "services": {"type": "dict", "default": {}},
    "images_file": {"type": "path"},
    "today": {"type": "str"},
}


def run(arguments: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Judge. :raises FleetError: the host does not pass; everything that keeps it from that, in one line."""
    host, before, after = arguments["host"], arguments["before"], arguments["facts"]
    catalogue, judge = door.catalogue(), door.judge({}, arguments.get("images_file"))
    known = [before, *_published(arguments.get("published"))]
    verdict = judge_host(judge.facts, catalogue, host, after, arguments["today"])
    services = arguments["services"]
    then, now = (judge.bars(catalogue, {host: facts}, list(services.values())) for facts in (before, after))
    problems = gate(host, known, after, [*verdict["no"], *newly_barred(host, services, then, now)])
    if problems:
        raise FleetError(" | ".join(problems))
    return {"changed": False, "findings": verdict["warn"]}


def _published(given: t.Any) -> list[dict[str, t.Any]]:
    """The facts that were published last, from their text, if there are any that can be read. Ansible makes data of it before 2.19."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return []
    return [found] if isinstance(found, dict) else []


class ActionModule(door.Door):
    """Nothing is sent to a host."""

    _VALID_ARGS = frozenset(ARGUMENTS)
    arguments = ARGUMENTS

    def work(self, arguments: Mapping[str, t.Any], check_mode: bool, diff: bool) -> dict[str, t.Any]:  # noqa: ARG002 # it is the same in both
        """See :func:`run`."""
        return run(arguments)
