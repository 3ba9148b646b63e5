# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Door of module ``vgpu``: a file of vgpu-device-manager is read on the controller, and what is known of types goes along."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door, vgpu_files


class ActionModule(door.LabelDoor):
    """Checks what only the controller can check, reads the file, and hands everything else to the module as it is."""

    module = "gpuops.fleet.vgpu"
    inline = "gpus"
    example = "vgpu.yaml"

    def entries(self, text: str, file: str, label: str) -> list[dict[str, t.Any]]:
        """What the file says under a label."""
        return vgpu_files.selectors(text, file, label)

    def completed(self, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        """With what is known of the types that are wished."""
        if "limits" in arguments:
            raise FleetError("what is known of types is the collection's", field="limits", hint="leave it out")
        wished = [*(arguments.get("gpus") or ()), *({"vgpus": one["types"]} for one in arguments.get("selectors") or ())]
        lists = [entry.get("vgpus") for entry in wished if isinstance(entry, dict)]
        names = [str(one["type"]) for each in lists if isinstance(each, list) for one in each if isinstance(one, dict) and "type" in one]
        return {**arguments, "limits": door.vgpu_table().limits(names)}
