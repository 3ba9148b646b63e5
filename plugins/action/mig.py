# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door of module ``mig``: a layout file is read on the controller, the host receives plain data."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, layouts


class ActionModule(door.LabelDoor):
    """Checks what only the controller can check, reads the file, and hands everything else to the module as it is."""

    module = "gpuops.fleet.mig"
    inline = "layout"
    example = "layouts.yml"

    def entries(self, text: str, file: str, label: str) -> list[dict[str, t.Any]]:
        """What the file says under a label."""
        return layouts.selectors(text, file, label)
