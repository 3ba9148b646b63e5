# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn facts and plans into what people read."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import draining, views
else:
    draining = Late("draining")
    views = Late("views")


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "drain_lines": draining.status_lines,
            "drain_steps": draining.next_steps,
            "facts_differ": views.facts_differ,
            "host_problems": views.host_problems,
            "host_table": views.host_table,
            "status_table": views.status_table,
            "unplaced_lines": views.unplaced_lines,
            "who_is_on": draining.who_is_on,
        }
