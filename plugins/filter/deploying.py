# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for playbooks deploy and apply: whether the plan may be carried out, in which order, what became of it, and how long it took."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import deploying
else:
    deploying = Late("deploying")


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {
            "apply_turns": deploying.apply_turns,
            "deploy_failures": deploying.deploy_failures,
            "deploy_held": deploying.deploy_held,
            "deploy_later": deploying.deploy_later,
            "deploy_problem": deploying.deploy_problem,
            "deploy_reroutes": deploying.deploy_reroutes,
            "deploy_turn": deploying.deploy_turn,
            "deploy_waves": deploying.deploy_waves,
            "rollout_times": deploying.rollout_times,
        }
