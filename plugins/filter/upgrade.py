# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for playbook upgrade: whom it means, what is to be done, what somebody else has a hand in, and what became of it."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import upgrade
else:
    upgrade = Late("upgrade")


def upgrade_order(pattern: t.Any, groups: t.Mapping[str, t.Sequence[str]]) -> list[str]:
    """The hosts that ``upgrade_hosts`` names; on a command line it is text with commas."""
    try:
        return upgrade.in_order(pattern, groups)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from None  # ansible-core would print the cause a second time


def upgrade_order_problem(pattern: t.Any, groups: t.Mapping[str, t.Sequence[str]]) -> str:
    """Why it names none; empty when it does."""
    try:
        upgrade.in_order(pattern, groups)
    except FleetError as error:
        return str(error)
    return ""


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "upgrade_begun": upgrade.begun_before,
            "upgrade_drain_refusal": upgrade.drain_refusal,
            "upgrade_lost": upgrade.lost,
            "upgrade_moves": upgrade.moves,
            "upgrade_order": upgrade_order,
            "upgrade_order_problem": upgrade_order_problem,
            "upgrade_places": upgrade.places_of,
            "upgrade_projects": upgrade.projects_of,
            "upgrade_reason": upgrade.drain_reason,
            "upgrade_strangers": upgrade.strangers,
            "upgrade_summary": upgrade.summary,
            "upgrade_work": upgrade.work_lines,
        }
