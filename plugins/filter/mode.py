# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for playbook mode: whether GPUs are what they shall be, and why they stay drained where they are not."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import mode
else:
    mode = Late("mode")


def mode_problems(facts: t.Mapping[str, t.Any], targets: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """What GPUs lack of their modes, one line each. ``targets``: of a host, as ``mode_wish`` returns them."""
    return mode.problems(facts, [mode.target(one) for one in targets])


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"mode_problems": mode_problems, "mode_reason": mode.drain_reason}
