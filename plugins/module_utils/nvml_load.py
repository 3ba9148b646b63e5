# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML calls that tell how busy a GPU or a slice is: a part of :class:`nvml.Nvml`.

A board with MIG on has no utilisation rates, neither as a whole nor for a slice (NVML answers NOT_SUPPORTED). GPM (GPU performance
monitoring, Hopper and newer) counts for both, between two samples that the caller takes at least 0.1 s apart (nvml.h, nvmlGpmMetricsGet).
"""

from __future__ import annotations

import math
import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Handle

# NVML_GPM_METRIC_GRAPHICS_UTIL: share of the time in which anything computed, 0.0 to 100.0.
_GRAPHICS_UTIL = 1
_VERSION = 1


class LoadCalls:
    """Getters. Every method raises NvmlError when NVML refuses; None: this board or driver has no such thing."""

    # These are Nvml's own.

    _lib: t.Any

    def _call(self, name: str, *args: t.Any, **kwargs: t.Any) -> t.Any:
        raise NotImplementedError

    def _maybe(self, *refusals: str, call: t.Callable[[], t.Any]) -> t.Any:
        raise NotImplementedError

    def utilization(self, handle: Handle) -> float | None:
        """Share of the last sample period (1/6 to 1 s) in which anything computed, 0 to 1; None with MIG on."""
        found = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetUtilizationRates", handle))
        return None if found is None else int(found.gpu) / 100

    def has_gpm(self, handle: Handle) -> bool:
        """Whether the board counts for GPM."""
        found = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlGpmQueryDeviceSupport", handle))
        return found is not None and bool(found.isSupportedDevice)

    def gpm_sample(self, handle: Handle, instance: int | None = None) -> t.Any:
        """The counters of now, of the GPU or of one GPU instance (by id). Give it to :meth:`gpm_free` in the end."""
        sample = self._call("nvmlGpmSampleAlloc")
        try:
            if instance is None:
                self._call("nvmlGpmSampleGet", handle, sample)
            else:
                self._call("nvmlGpmMigSampleGet", handle, instance, sample)
        except BaseException:
            self.gpm_free(sample)
            raise
        return sample

    def gpm_busy(self, first: t.Any, second: t.Any) -> float | None:
        """Share of the time between two samples in which anything computed, 0 to 1; None when the board did not count that."""
        asked = self._lib.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics, asked.sample1, asked.sample2 = _VERSION, 1, first, second
        asked.metrics[0].metricId = _GRAPHICS_UTIL
        self._call("nvmlGpmMetricsGet", asked)
        metric = asked.metrics[0]
        if metric.nvmlReturn != 0 or not math.isfinite(metric.value) or metric.value < 0:
            return None
        return float(metric.value) / 100

    def gpm_free(self, sample: t.Any) -> None:
        """Nobody asks for this sample any more."""
        self._call("nvmlGpmSampleFree", sample)
