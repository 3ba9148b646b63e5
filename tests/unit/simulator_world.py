# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the simulator's tests share: NVML through the real pynvml, with errors as values."""

from __future__ import annotations

import contextlib
import ctypes
import typing as t

import pynvml

ROOM = 64


@contextlib.contextmanager
def nvml_open() -> t.Iterator[None]:
    """NVML, initialised for the host that the environment names."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def refusal(function: t.Callable[..., t.Any], *args: t.Any, **more: t.Any) -> str | None:
    """The name of the NVML error that a call ends with, such as ``IN_USE``; None when it succeeds."""
    try:
        function(*args, **more)
    except pynvml.NVMLError as error:
        names = [name for name in dir(pynvml) if name.startswith("NVML_ERROR_") and getattr(pynvml, name) == error.args[0]]
        return names[0].removeprefix("NVML_ERROR_")
    return None


def gpu(index: int = 0) -> t.Any:
    """Handle of a GPU by index."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def enable_mig(index: int = 0) -> t.Any:
    """Turns MIG on where that needs no reset; the GPU's handle."""
    handle = gpu(index)
    assert pynvml.nvmlDeviceSetMigMode(handle, 1) == pynvml.NVML_SUCCESS
    return handle


def create(handle: t.Any, profile_id: int, start: int | None = None, size: int = 0) -> t.Any:
    """A GPU instance, at a start or where the board likes."""
    if start is None:
        return pynvml.nvmlDeviceCreateGpuInstance(handle, profile_id)
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, ctypes.byref(placement))


def where(instance: t.Any) -> tuple[int, int, int]:
    """(id, start, size) of a GPU instance."""
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return info.id, info.placement.start, info.placement.size


def compute(instance: t.Any, profile: int = 0) -> t.Any:
    """A compute instance."""
    return pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)


def slice_of(instance: t.Any) -> t.Any:
    """MIG device handle of a compute instance."""
    return pynvml.nvmlComputeInstanceGetInfo_v2(instance).device


def uuid_of(instance: t.Any) -> str:
    """MIG UUID of a compute instance."""
    return str(pynvml.nvmlDeviceGetUUID(slice_of(instance)))


def instances(handle: t.Any, profile_id: int) -> list[t.Any]:
    """GPU instances of one profile."""
    found = (pynvml.c_nvmlGpuInstance_t * ROOM)()
    count = ctypes.c_uint(ROOM)
    pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, found, ctypes.byref(count))
    return list(found[: count.value])


def compute_instances(instance: t.Any, profile: int) -> list[t.Any]:
    """Compute instances of one profile in a GPU instance."""
    found = (pynvml.c_nvmlComputeInstance_t * ROOM)()
    count = ctypes.c_uint(ROOM)
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile, found, ctypes.byref(count))
    return list(found[: count.value])


def placements(handle: t.Any, profile_id: int) -> list[tuple[int, int]]:
    """(start, size) of every possible placement of a GPU instance profile."""
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, found, ctypes.byref(count))
    return [(one.start, one.size) for one in found]


def compute_placements(instance: t.Any, profile: int) -> list[tuple[int, int]]:
    """(start, size) of every possible placement of a compute instance profile."""
    count = ctypes.c_uint()
    found = (pynvml.c_nvmlComputeInstancePlacement_t * ROOM)()
    pynvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, profile, found, ctypes.byref(count))
    return [(one.start, one.size) for one in found[: count.value]]


def profiles(handle: t.Any) -> dict[str, t.Any]:
    """What the board offers, by the name NVML gives it."""
    found = {}
    for query in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        if refusal(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, query) is None:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, query)
            found[str(info.name).removeprefix("MIG ")] = info
    return found
