# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What :mod:`nvml` gives back and raises: dataclasses, errors, names of numbers. No call is made here."""

from __future__ import annotations

import contextlib
import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# nvmlReturn_t in nvml.h, by name.
SUCCESS = "NVML_SUCCESS"
NOT_SUPPORTED = "NVML_ERROR_NOT_SUPPORTED"
INVALID_ARGUMENT = "NVML_ERROR_INVALID_ARGUMENT"
NOT_FOUND = "NVML_ERROR_NOT_FOUND"
INSUFFICIENT_SIZE = "NVML_ERROR_INSUFFICIENT_SIZE"
FUNCTION_NOT_FOUND = "NVML_ERROR_FUNCTION_NOT_FOUND"
VERSION_MISMATCH = "NVML_ERROR_ARGUMENT_VERSION_MISMATCH"
GPU_IS_LOST = "NVML_ERROR_GPU_IS_LOST"

# nvmlDeviceArchitecture_t in nvml.h, API version 13. An unknown newer number is reported as None.
ARCHITECTURES: dict[int, str] = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
HOPPER = 9
# nvmlComputeMode_t; 1 was removed from CUDA long ago and is never reported.
COMPUTE_MODES: dict[int, str] = {0: "default", 2: "prohibited", 3: "exclusive_process"}
# Clients of one MPS daemon on a whole GPU: from Volta on, and before (manual of nvidia-cuda-mps-control 535).
MPS_CLIENTS, MPS_CLIENTS_BEFORE_VOLTA = 48, 16
VOLTA_CAPABILITY = 7
# nvmlGpuVirtualizationMode_t, as this operating system sees the GPU.
VIRTUALIZATION_MODES: dict[int, str] = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
# NVML_GPU_INSTANCE_PROFILE_* whose name carries a suffix. The others (also 1_SLICE_REV2 = 9) have a plain name.
SUFFIXES: dict[int, str] = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
REV2_GI = 9  # NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: one compute slice with twice the memory
REV2_CI = 7  # NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: the compute instance that fills such a GPU instance
NO_INSTANCE = 0xFFFFFFFF  # gpuInstanceId and computeInstanceId of a process that is in no slice

# A handle is an opaque pointer of ctypes; its type is private to pynvml.
Handle = t.Any

_PROFILE_NAME = re.compile(r"\d+g\.\d+gb\S*", re.IGNORECASE)
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_SHORT_UUID = re.compile(r"gpu-[0-9a-f]{8}(?=-|$)")


class NvmlError(FleetError):
    """NVML refused or failed. ``name`` as ``NVML_ERROR_IN_USE``, ``code`` its number, ``call`` the function, ``word`` NVML's own words."""

    def __init__(self, call: str, code: int, name: str, word: str, message: str = "") -> None:
        self.call = call
        self.code = code
        self.name = name
        self.word = word
        super().__init__(message or f"{call}: {name} ({word})")


@contextlib.contextmanager
def as_named(gpu: str, field: str | None = None) -> t.Iterator[None]:
    """While something is done with a GPU that a person named: FleetError, in a line for that person, when it is lost or not there."""
    try:
        yield
    except NvmlError as error:
        if error.name == GPU_IS_LOST:
            raise FleetError(f"GPU {gpu} is lost", field=field, hint="look for its XID in the kernel's log") from error
        if error.name in (NOT_FOUND, INVALID_ARGUMENT):
            raise FleetError(f"there is no GPU {gpu} on this host", field=field) from error
        raise


class PynvmlMissing(NvmlError):
    """The Python package nvidia-ml-py is not installed for the interpreter in use."""

    def __init__(self, interpreter: str, reason: str) -> None:
        message = f"Python package nvidia-ml-py (module pynvml) cannot be imported by {interpreter}: {reason}"
        super().__init__("import pynvml", -1, "PYNVML_MISSING", reason, message)


class NvmlLibraryMissing(NvmlError):
    """There is no libnvidia-ml.so.1 on this host: no driver is installed."""


class NvmlDriverMissing(NvmlError):
    """The library is there, but the kernel driver is not loaded or there is no device."""


@dataclass(frozen=True)
class Versions:
    """Versions as text; ``cuda`` is the newest that the driver supports, for example ``13.0``."""

    driver: str
    nvml: str
    cuda: str | None


@dataclass(frozen=True)
class Found:
    """One GPU of the enumeration: its NVML ``index`` and either a ``handle`` or the ``error`` that came in its place."""

    index: int
    handle: Handle = field(repr=False, compare=False, default=None)
    error: NvmlError | None = None


@dataclass(frozen=True)
class PciInfo:
    """``address`` in sysfs form (``0000:07:00.0``), device and subsystem ids as ``0x20B210DE`` (device, then vendor)."""

    address: str
    device_id: str
    subsystem_id: str


@dataclass(frozen=True)
class Memory:
    """Framebuffer of a GPU in MiB; ``used_mib`` leaves out what the driver reserves, where NVML tells the two apart."""

    total_mib: int
    used_mib: int


@dataclass(frozen=True)
class Mode:
    """A switch that may wait for a reset or a reboot: what is in force, and what will be."""

    current: bool
    pending: bool


@dataclass(frozen=True)
class GpuInstanceProfile:
    """A GPU instance profile of one GPU. ``enum`` asks for it, ``id`` creates it. ``size`` and ``starts`` are memory slices."""

    enum: int
    id: int
    name: str
    slices: int
    size: int
    memory_mib: int
    sm: int
    max: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class ComputeInstanceProfile:
    """A compute instance profile of one kind of GPU instance."""

    enum: int
    id: int
    slices: int
    sm: int
    max: int


@dataclass(frozen=True)
class ComputeInstance:
    """A compute instance, which is what a MIG device is. ``profile`` is that of the GPU instance, with ``1c.`` before it if smaller."""

    id: int
    profile: str
    profile_id: int
    slices: int
    uuid: str
    handle: Handle = field(repr=False, compare=False, default=None)
    device: Handle = field(repr=False, compare=False, default=None)


@dataclass(frozen=True)
class GpuInstance:
    """A GPU instance with its place (memory slices) and compute instances; none of those means that nobody can use it yet."""

    id: int
    profile: str
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...] = ()
    handle: Handle = field(repr=False, compare=False, default=None)
    gpu: Handle = field(repr=False, compare=False, default=None)


@dataclass(frozen=True)
class Process:
    """A process on a GPU; ``gi`` and ``ci`` are None outside slices, ``memory_mib`` is None where the driver does not say."""

    pid: int
    kind: str
    gi: int | None
    ci: int | None
    memory_mib: int | None


def pci_address(text: str) -> str | None:
    """Any spelling of a PCI address (``00000000:07:00.0``, ``07:00.0``) in sysfs form, ``0000:07:00.0``; None if it is none."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return None
    domain = int(match.group(1) or "0", 16)
    return f"{domain:04x}:{match.group(2)}:{match.group(3)}.{match.group(4)}"


def short_uuid(uuid: str) -> str | None:
    """What tables show of a GPU's UUID, in lower case: ``gpu-5c1f07aa``. None if it is none."""
    match = _SHORT_UUID.match(uuid.lower())
    return match.group() if match else None


def mps_client_limit(compute_capability: str | None, share: float = 1.0) -> int:
    """Clients of an MPS daemon at once; a slice with a ``share`` of the GPU has proportionally fewer, at least one."""
    major = (compute_capability or "").partition(".")[0]
    most = MPS_CLIENTS_BEFORE_VOLTA if major.isdigit() and int(major) < VOLTA_CAPABILITY else MPS_CLIENTS
    return max(1, int(most * share))


def profile_name(reported: str) -> str | None:
    """The profile's name in what the driver reports (``MIG 1g.10gb+me`` gives ``1g.10gb+me``); None if there is none in it."""
    match = _PROFILE_NAME.search(reported)
    return match.group(0).lower() if match else None


def compute_slices(profiles: tuple[GpuInstanceProfile, ...], memory_slices: int) -> int:
    """NVML does not tell a board's compute slices. They are those of the profile that takes the whole board; a board that has none
    has at least those of the most equal instances that it holds side by side.
    """
    whole = any(profile.size == memory_slices for profile in profiles)
    return max(profile.slices * (1 if whole else min(profile.max, _side_by_side(profile))) for profile in profiles)


def _side_by_side(profile: GpuInstanceProfile) -> int:
    """How many of them its starts leave room for. The count that NVML gives is not enough: it is wrong for A30."""
    count, end = 0, 0
    for start in profile.starts:
        if start >= end:
            count, end = count + 1, start + profile.size
    return count


def computed_profile_name(enum: int, slices: int, memory_mib: int, total_bytes: int) -> str:
    """The name that NVIDIA's tools print, for drivers that report none.

    ``GB = round(ceil(8 * profile / total) / 8 * ceil(total GiB))``, halves up. Source: NVIDIA/go-nvlib,
    pkg/nvlib/device/mig_profile.go; reproduces H100 80GB, H100 NVL and RTX PRO 6000.
    """
    eighths = -(-8 * memory_mib * 2**20 // total_bytes)
    total_gib = -(-total_bytes // 2**30)
    gigabytes = (2 * eighths * total_gib + 8) // 16
    return f"{slices}g.{gigabytes}gb{SUFFIXES.get(enum, '')}"
