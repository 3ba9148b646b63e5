# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML calls that change a GPU's settings, and those that tell what it may be set to: a part of :class:`nvml.Nvml`."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import COMPUTE_MODES, FUNCTION_NOT_FOUND, NOT_SUPPORTED, Handle

#: Kinds of clocks that can be locked: nvmlClockType_t, and the calls that lock and unlock.
CLOCKS = {
    "graphics": (0, "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"),
    "memory": (2, "nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceResetMemoryLockedClocks"),
}


@dataclass(frozen=True)
class PowerLimits:
    """What a board's power limit may be and what it is by itself, in W."""

    least: int
    most: int
    default: int


class SettingsCalls:
    """Setters and their getters. Every method raises NvmlError when NVML refuses; None: this board or driver has no such thing."""

    # These are Nvml's own.

    def _call(self, name: str, *args: t.Any, **kwargs: t.Any) -> t.Any:
        raise NotImplementedError

    def _number(self, call: str, *args: t.Any) -> int | None:
        raise NotImplementedError

    def _maybe(self, *refusals: str, call: t.Callable[[], t.Any]) -> t.Any:
        raise NotImplementedError

    def power_limits(self, handle: Handle) -> PowerLimits | None:
        """Least, most and usual power limit in W (NVML counts mW); None where the board's limit cannot be set."""
        default = self._number("nvmlDeviceGetPowerManagementDefaultLimit", handle)
        if default is None:
            return None
        least, most = self._call("nvmlDeviceGetPowerManagementLimitConstraints", handle)
        return PowerLimits(-(-int(least) // 1000), int(most) // 1000, default // 1000)

    def set_power_limit(self, handle: Handle, watts: int) -> None:
        """Set the power limit in W. INVALID_ARGUMENT out of range."""
        self._call("nvmlDeviceSetPowerManagementLimit", handle, watts * 1000)

    def set_persistence(self, handle: Handle, enabled: bool) -> None:
        """Keep the driver loaded for this GPU when nobody uses it, or not."""
        self._call("nvmlDeviceSetPersistenceMode", handle, int(enabled))

    def default_ecc(self, handle: Handle) -> bool | None:
        """The ECC mode that the board comes with."""
        found = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetDefaultEccMode", handle))
        return None if found is None else bool(found[0] if isinstance(found, list) else found)

    def set_ecc(self, handle: Handle, enabled: bool) -> None:
        """Ask for an ECC mode. It is in force after the next reset or reboot, and stays."""
        self._call("nvmlDeviceSetEccMode", handle, int(enabled))

    def set_compute_mode(self, handle: Handle, mode: str) -> None:
        """``default``, ``prohibited`` or ``exclusive_process``. A reboot sets it back to ``default``."""
        (number,) = (number for number, name in COMPUTE_MODES.items() if name == mode)
        self._call("nvmlDeviceSetComputeMode", handle, number)

    def clock_mhz(self, handle: Handle, kind: str) -> int | None:
        """What a clock runs at now. NVML has no call that tells whether it is locked."""
        return self._number("nvmlDeviceGetClockInfo", handle, CLOCKS[kind][0])

    def max_clock_mhz(self, handle: Handle, kind: str) -> int | None:
        """The highest that a clock can run at."""
        return self._number("nvmlDeviceGetMaxClockInfo", handle, CLOCKS[kind][0])

    def lock_clock(self, handle: Handle, kind: str, low: int, high: int) -> None:
        """Hold a clock between two frequencies in MHz, while the driver is loaded. Graphics: from Volta, memory: from Ampere on."""
        self._call(CLOCKS[kind][1], handle, low, high)

    def unlock_clock(self, handle: Handle, kind: str) -> None:
        """Let a clock follow the load again."""
        self._call(CLOCKS[kind][2], handle)
