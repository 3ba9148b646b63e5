# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML calls that tell what vGPUs a host's GPU can have: a part of :class:`nvml.Nvml`."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import (
    FUNCTION_NOT_FOUND,
    NO_INSTANCE,
    NOT_SUPPORTED,
    Handle,
    NvmlError,
)


@dataclass(frozen=True)
class SupportedVgpu:
    """A type by NVML's number, which is the one of the vendor's sysfs files: its name, how many a GPU has at most (None: not told), and
    the number of the GPU instance profile that backs it (None: it is time-sliced)."""

    id: int
    name: str
    most: int | None
    profile_id: int | None


class VgpuCalls:
    """What a driver for vGPU hosts answers; others answer nothing."""

    # These are Nvml's own.

    def _call(self, name: str, *args: t.Any, **kwargs: t.Any) -> t.Any:
        raise NotImplementedError

    def _maybe(self, *refusals: str, call: t.Callable[[], t.Any]) -> t.Any:
        raise NotImplementedError

    def supported_vgpus(self, handle: Handle) -> list[SupportedVgpu]:
        """Every type that this GPU knows, in whatever mode it is. Empty without a driver for vGPU hosts."""
        numbers = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetSupportedVgpus", handle)) or ()
        return [self._vgpu_type(handle, int(number)) for number in numbers]

    def _vgpu_type(self, handle: Handle, number: int) -> SupportedVgpu:
        name = self._call("nvmlVgpuTypeGetName", number)
        most = self._told("nvmlVgpuTypeGetMaxInstances", handle, number)
        profile = self._told("nvmlVgpuTypeGetGpuInstanceProfileId", number)
        return SupportedVgpu(
            number, name if isinstance(name, str) else name.decode(), most or None, None if profile == NO_INSTANCE else profile
        )

    def _told(self, call: str, *args: t.Any) -> int | None:
        """A number that a driver may not tell in the GPU's present mode."""
        try:
            return int(self._call(call, *args))
        except NvmlError:
            return None
