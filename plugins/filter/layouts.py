# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters between hosts and the files of mig-parted and vgpu-device-manager."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.late import Late

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import layouts, vgpu_files
else:
    layouts = Late("layouts")
    vgpu_files = Late("vgpu_files")


def mig_parted(facts: t.Mapping[str, t.Any], label: str = "current") -> str:
    """The layout of a host as a mig-parted v1 file with one label, from its facts."""
    driver = facts.get("driver") or {}
    if not driver.get("present", False):
        raise AnsibleFilterError(f"no layout can be read: {driver.get('error') or 'no NVIDIA driver is loaded'}")
    return layouts.export(facts["gpus"], label)


def vgpu_configs(gpus: t.Sequence[t.Mapping[str, t.Any]], label: str = "current") -> str:
    """The vGPUs of a host as a vgpu-device-manager v1 file with one label, from what module vgpu_info returns."""
    return vgpu_files.export(gpus, label)


def layout_differences(result: t.Mapping[str, t.Any]) -> list[str]:
    """What module mig or vgpu would do in check mode, and what waits, as differences from the layout: one line each."""
    return [*result.get("steps", []), *(f"{each['gpu']}: {each['reason']}" for each in result.get("pending", []))]


class FilterModule:
    """What ansible-core looks for in this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """The filters by name."""
        return {"layout_differences": layout_differences, "mig_parted": mig_parted, "vgpu_configs": vgpu_configs}
