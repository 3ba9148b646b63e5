# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout that a host remembers, because GPU instances survive no reboot and the MIG mode not on every board.

``layout.json``: ``{format: 1, gpus: {UUID: {mig, slices: [{profile, start, compute, temporary?}]}}}``, lines as of ``mig_wish.line_of``.
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.gpu_lines import GpuLines
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal

JOURNAL = "mig-journal.json"
LAYOUT = GpuLines("layout.json", "the remembered layout", "apply the layout again: that writes the file anew")


def temporary(state_dir: Path) -> set[tuple[str, int, str]]:
    """(GPU, start, profile) of slices that were made for a while: those remembered, and those of a change that never came to its end.

    Whether they exist, NVML says. FleetError as of :meth:`GpuLines.read`.
    """
    lines = [*LAYOUT.read(state_dir).items(), *Journal(state_dir / JOURNAL).unfinished(repair=False).wish.items()]
    try:
        return {(gpu, int(one["start"]), str(one["profile"])) for gpu, line in lines for one in line["slices"] if one.get("temporary")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FleetError(f"what is remembered of slices cannot be read: {type(error).__name__} {error}") from error
