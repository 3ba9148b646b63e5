# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every NVML call that the collection makes, typed: ``with Nvml() as nvml: ...``.

pynvml (package nvidia-ml-py) loads ``libnvidia-ml.so.1`` and resolves each function when it is first called. It is imported only
when a session opens, because it is the slowest import on a host. What each call answers on real boards is noted where it is used.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import typing as t
from dataclasses import replace
from functools import cache, partial

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import (
    ARCHITECTURES,
    COMPUTE_MODES,
    FUNCTION_NOT_FOUND,
    HOPPER,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NO_INSTANCE,
    NOT_FOUND,
    NOT_SUPPORTED,
    REV2_CI,
    REV2_GI,
    SUCCESS,
    VERSION_MISMATCH,
    VIRTUALIZATION_MODES,
    ComputeInstance,
    ComputeInstanceProfile,
    Found,
    GpuInstance,
    GpuInstanceProfile,
    Handle,
    Memory,
    Mode,
    NvmlDriverMissing,
    NvmlError,
    NvmlLibraryMissing,
    PciInfo,
    Process,
    PynvmlMissing,
    Versions,
    compute_slices,
    computed_profile_name,
    pci_address,
    profile_name,
    short_uuid,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_links import LinkCalls
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_load import LoadCalls
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_settings import SettingsCalls
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_vgpu import VgpuCalls

_MIB = 2**20
# NVML writes as many instances as there are, into a buffer "large enough to accommodate the instances supported by the profile".
# The count that A30 reports is wrong (comment in NVIDIA/mig-parted), so the buffer is never smaller than this.
_LEAST_ROOM = 32
_PROCESS_CALLS = (
    # MPS first: the driver also lists an MPS client among the compute processes.
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
)

_T = t.TypeVar("_T")


@t.final
class Nvml(SettingsCalls, LoadCalls, LinkCalls, VgpuCalls):
    """A session with NVML. Handles and instances that it gives out are valid until it closes.

    Every method raises NvmlError when NVML refuses; methods that say so return None where the board has no such thing.
    """

    def __init__(self) -> None:
        self._lib: t.Any = None
        self._profiles: dict[int, tuple[GpuInstanceProfile, ...]] = {}
        self._ci_profiles: dict[tuple[int, int], tuple[ComputeInstanceProfile, ...]] = {}

    def __enter__(self) -> Nvml:
        """Start NVML. PynvmlMissing, NvmlLibraryMissing and NvmlDriverMissing tell apart what a host may lack."""
        try:
            self._lib = importlib.import_module("pynvml")
        except ImportError as error:
            raise PynvmlMissing(sys.executable, str(error)) from error
        self._call("nvmlInit")
        return self

    def __exit__(self, *_: object) -> None:
        self._profiles.clear()
        self._ci_profiles.clear()
        try:
            self._call("nvmlShutdown")
        except NvmlError:
            pass  # the session is over either way, and the caller's own error, if any, is the one to see

    # The border: one place where pynvml is called and its errors become ours.

    def _call(self, name: str, *args: t.Any, **kwargs: t.Any) -> t.Any:
        function = getattr(self._lib, name, None)
        if function is None:  # this pynvml is older than the call
            raise self._error(name, self._lib.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            return function(*args, **kwargs)
        except self._lib.NVMLError as error:
            raise self._error(name, error.value, str(error)) from error

    def _error(self, call: str, code: int, word: str = "Function Not Found") -> NvmlError:
        name = self._code_name(code)
        kinds = {self._lib.NVML_ERROR_LIBRARY_NOT_FOUND: NvmlLibraryMissing, self._lib.NVML_ERROR_DRIVER_NOT_LOADED: NvmlDriverMissing}
        return kinds.get(code, NvmlError)(call, code, name, word)

    def _code_name(self, code: int) -> str:
        if code == 0:
            return SUCCESS
        return _names(self._lib).get(code, f"NVML_ERROR_{code}")

    def _maybe(self, *refusals: str, call: t.Callable[[], _T]) -> _T | None:
        """The answer, or None when NVML refuses with one of these names."""
        try:
            return call()
        except NvmlError as error:
            if error.name in refusals:
                return None
            raise

    def _struct(self, call: str, *args: t.Any) -> t.Any:
        """A profile struct in version 2, which has a name; in version 1 where the driver is older than that."""
        found = self._maybe(FUNCTION_NOT_FOUND, VERSION_MISMATCH, call=lambda: self._call(call, *args, version=2))
        return found if found is not None else self._call(call, *args, version=1)

    # Host

    def versions(self) -> Versions:
        """Versions of driver, NVML library and newest CUDA (12040 is reported as 12.4)."""
        cuda = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: int(self._call("nvmlSystemGetCudaDriverVersion_v2")))
        return Versions(
            driver=str(self._call("nvmlSystemGetDriverVersion")),
            nvml=str(self._call("nvmlSystemGetNVMLVersion")),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        )

    def devices(self) -> list[Found]:
        """All GPUs in NVML's order, which is by PCI address. A GPU that is lost has an error in place of a handle and hides no other."""
        found = []
        for index in range(int(self._call("nvmlDeviceGetCount"))):
            try:
                found.append(Found(index, self._call("nvmlDeviceGetHandleByIndex", index)))
            except NvmlError as error:
                found.append(Found(index, error=error))
        return found

    def find(self, name: str | int) -> Handle:
        """The GPU with this UUID (whole, or as tables show it), PCI address (any spelling) or NVML index.

        NVML_ERROR_NOT_FOUND or INVALID_ARGUMENT when there is none, or when several UUIDs begin so.
        """
        text = str(name).strip()
        address = pci_address(text)
        if address is not None:
            return self._call("nvmlDeviceGetHandleByPciBusId", address)
        if text.isascii() and text.isdigit() and len(text) < 10:  # a longer number would wrap to another GPU's index
            return self._call("nvmlDeviceGetHandleByIndex", int(text))
        if short_uuid(text) == text.lower():
            handles = (each.handle for each in self.devices() if each.error is None)
            begin = [handle for handle in handles if short_uuid(self.uuid(handle)) == text.lower()]
            if len(begin) == 1:
                return begin[0]
        return self._call("nvmlDeviceGetHandleByUUID", text)

    # One GPU: identity

    def uuid(self, handle: Handle) -> str:
        """UUID of a GPU (``GPU-...``) or of a MIG device (``MIG-...``)."""
        return str(self._call("nvmlDeviceGetUUID", handle))

    def index(self, handle: Handle) -> int:
        """NVML's index of a GPU, for people."""
        return int(self._call("nvmlDeviceGetIndex", handle))

    def name(self, handle: Handle) -> str:
        """Product name, for example ``NVIDIA A100-SXM4-80GB``."""
        return str(self._call("nvmlDeviceGetName", handle))

    def minor(self, handle: Handle) -> int:
        """Number of the device node ``/dev/nvidia<minor>``; it may change after a change of MIG mode."""
        return int(self._call("nvmlDeviceGetMinorNumber", handle))

    def pci(self, handle: Handle) -> PciInfo:
        """PCI address and ids. ``busId`` has a domain of eight digits, sysfs writes four."""
        info = self._call("nvmlDeviceGetPciInfo_v3", handle)
        address = pci_address(str(info.busId)) or f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
        return PciInfo(address, f"0x{info.pciDeviceId:08X}", f"0x{info.pciSubSystemId:08X}")

    def architecture(self, handle: Handle) -> str | None:
        """Architecture in lower case; None for one that is newer than this collection."""
        return ARCHITECTURES.get(int(self._call("nvmlDeviceGetArchitecture", handle)))

    def compute_capability(self, handle: Handle) -> str:
        """CUDA compute capability, for example ``8.0``."""
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", handle)
        return f"{major}.{minor}"

    # One GPU: state. None: this board or driver has no such thing.

    def memory(self, handle: Handle) -> Memory:
        """Total and used memory. Version 2 of the call tells apart what the driver reserves."""

        def read(**version: int) -> Memory:
            info = self._call("nvmlDeviceGetMemoryInfo", handle, **version)
            return Memory(int(info.total) // _MIB, int(info.used) // _MIB)

        modern = getattr(self._lib, "nvmlMemory_v2", None)
        found = None if modern is None else self._maybe(FUNCTION_NOT_FOUND, VERSION_MISMATCH, call=lambda: read(version=modern))
        return found if found is not None else read()

    def temperature_c(self, handle: Handle) -> int | None:
        """Temperature of the die in degrees Celsius. The older call will go in CUDA 14, the newer is absent before R565."""
        value = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: int(self._call("nvmlDeviceGetTemperature", handle, 0)))
        return value if value is not None else self._number("nvmlDeviceGetTemperatureV", handle, 0)

    def power_w(self, handle: Handle) -> int | None:
        """Power draw in W (NVML counts mW)."""
        return _watts(self._number("nvmlDeviceGetPowerUsage", handle))

    def power_limit_w(self, handle: Handle) -> int | None:
        """Power limit set by management in W."""
        return _watts(self._number("nvmlDeviceGetPowerManagementLimit", handle))

    def persistence(self, handle: Handle) -> bool | None:
        """Whether the driver stays loaded for this GPU when nobody uses it."""
        value = self._number("nvmlDeviceGetPersistenceMode", handle)
        return None if value is None else bool(value)

    def compute_mode(self, handle: Handle) -> str | None:
        """``default``, ``prohibited`` or ``exclusive_process``."""
        value = self._number("nvmlDeviceGetComputeMode", handle)
        return None if value is None else COMPUTE_MODES.get(value)

    def virtualization(self, handle: Handle) -> str | None:
        """How this operating system has the GPU: ``none`` (bare metal), ``passthrough``, ``vgpu``, ``host_vgpu`` or ``host_vsga``."""
        value = self._number("nvmlDeviceGetVirtualizationMode", handle)
        return None if value is None else VIRTUALIZATION_MODES.get(value)

    def ecc(self, handle: Handle) -> Mode | None:
        """ECC mode now and after the next reset; None without ECC."""
        return self._mode("nvmlDeviceGetEccMode", handle)

    def mig_mode(self, handle: Handle) -> Mode | None:
        """MIG mode now and after the next reset; None on a board without MIG."""
        return self._mode("nvmlDeviceGetMigMode", handle)

    def resetless(self, handle: Handle) -> bool:
        """Whether a change of MIG mode needs no reset: NVML field 184; on drivers without it, Hopper and newer (as in the DRA driver)."""
        values = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetFieldValues", handle, [184]))
        if values is not None and values[0].nvmlReturn == 0:
            return bool(values[0].value.uiVal)
        return HOPPER <= int(self._call("nvmlDeviceGetArchitecture", handle)) < NO_INSTANCE

    def _number(self, call: str, *args: t.Any) -> int | None:
        return self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: int(self._call(call, *args)))

    def _mode(self, call: str, handle: Handle) -> Mode | None:
        pair = self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call(call, handle))
        return None if pair is None else Mode(bool(pair[0]), bool(pair[1]))

    def processes(self, handle: Handle) -> list[Process]:
        """Compute, graphics and MPS processes of a GPU or a MIG device, once each, by pid.

        On a GPU with MIG a privileged caller sees those of all slices, with the slice's ids.
        """
        found: dict[tuple[int, int | None, int | None], Process] = {}
        for kind, call in _PROCESS_CALLS:
            for entry in self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=partial(self._call, call, handle)) or ():
                gi, ci = (None if value == NO_INSTANCE else int(value) for value in (entry.gpuInstanceId, entry.computeInstanceId))
                memory = None if entry.usedGpuMemory is None else int(entry.usedGpuMemory) // _MIB
                found.setdefault((int(entry.pid), gi, ci), Process(int(entry.pid), kind, gi, ci, memory))
        return sorted(found.values(), key=lambda process: (process.pid, process.gi or 0, process.ci or 0))

    def vgpus(self, handle: Handle) -> list[tuple[int, int | None]]:
        """vGPUs that virtual machines use: number, and the GPU instance that each is backed by (None: the GPU itself, or not told).

        Empty where this system hosts none.
        """
        found = []
        for vgpu in self._maybe(NOT_SUPPORTED, FUNCTION_NOT_FOUND, call=lambda: self._call("nvmlDeviceGetActiveVgpus", handle)) or ():
            instance = self._number("nvmlVgpuInstanceGetGpuInstanceId", vgpu)
            found.append((int(vgpu), None if instance == NO_INSTANCE else instance))
        return found

    # MIG: mode and geometry

    def set_mig_mode(self, handle: Handle, enabled: bool) -> str:
        """Ask for a mode. Returns the activation status by name: ``NVML_SUCCESS`` when it is in force,
        ``NVML_ERROR_IN_USE`` or ``NVML_ERROR_RESET_REQUIRED`` when it waits. NVML itself returns success in all three cases.
        """
        status = int(self._call("nvmlDeviceSetMigMode", handle, int(enabled)))
        self._profiles.pop(_address(handle), None)  # a driver may answer more in the new mode
        return self._code_name(status)

    def profiles(self, handle: Handle) -> tuple[GpuInstanceProfile, ...]:
        """GPU instance profiles, in the order of NVML's enum. Empty: no MIG, or MIG is off and the driver is R535 or older."""
        key = _address(handle)
        if key not in self._profiles:
            count = max(18, int(getattr(self._lib, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)))
            found = tuple(profile for profile in (self._profile(handle, enum) for enum in range(count)) if profile is not None)
            if not found:
                return ()
            self._profiles[key] = found
        return self._profiles[key]

    def share_profiles(self, handle: Handle, like: Handle) -> bool:
        """Take over the profiles that were read from GPU ``like``, a board of the same kind, if ``handle`` agrees; say whether it did.

        Two boards of one product and memory size may still differ (firmware, display mode of a workstation board), so one profile,
        the largest, is asked and compared in all its numbers. That is one call instead of some forty.
        """
        shared = self.profiles(like)
        if not shared:
            return False
        largest = max(shared, key=lambda profile: (profile.slices, profile.size, -profile.enum))
        info = self._profile_info(handle, largest.enum)
        if info is None or _numbers(info) != (largest.id, largest.slices, largest.max, largest.sm, largest.memory_mib):
            return False
        self._profiles[_address(handle)] = shared
        for (gpu, profile_id), found in list(self._ci_profiles.items()):
            if gpu == _address(like):
                self._ci_profiles[_address(handle), profile_id] = found
        return True

    def geometry(self, handle: Handle) -> Geometry | None:
        """What can be cut out of this board: None where :meth:`profiles` is empty."""
        found = self.profiles(handle)
        if not found:
            return None
        memory_slices = max(start + profile.size for profile in found for start in profile.starts)
        return Geometry(
            compute_slices=compute_slices(found, memory_slices),
            memory_slices=memory_slices,
            profiles=tuple(
                Profile(
                    name=profile.name,
                    id=profile.id,
                    slices=profile.slices,
                    size=profile.size,
                    memory_mib=profile.memory_mib,
                    sm=profile.sm,
                    max=profile.max,
                    starts=profile.starts,
                )
                for profile in found
            ),
        )

    def _profile_info(self, handle: Handle, enum: int) -> t.Any:
        return self._maybe(NOT_SUPPORTED, INVALID_ARGUMENT, call=lambda: self._struct("nvmlDeviceGetGpuInstanceProfileInfo", handle, enum))

    def _profile(self, handle: Handle, enum: int) -> GpuInstanceProfile | None:
        info = self._profile_info(handle, enum)
        places = [] if info is None else self.placements(handle, info.id)
        if not places:
            return None
        ident, slices, most, sm, memory_mib = _numbers(info)
        name = profile_name(str(getattr(info, "name", "")))
        if name is None:
            total = int(self._call("nvmlDeviceGetMemoryInfo", handle).total)
            name = computed_profile_name(enum, slices, memory_mib, total)
        starts = tuple(sorted(start for start, _size in places))
        return GpuInstanceProfile(enum, ident, name, slices, places[0][1], memory_mib, sm, most, starts)

    def placements(self, handle: Handle, profile_id: int) -> list[tuple[int, int]]:
        """(start, size) in memory slices of every place where the board allows this profile, taken or not."""
        count = ctypes.c_uint(0)
        call = "nvmlDeviceGetGpuInstancePossiblePlacements"
        self._maybe(INSUFFICIENT_SIZE, NOT_SUPPORTED, call=lambda: self._call(call, handle, profile_id, None, ctypes.byref(count)))
        if count.value == 0:
            return []
        places = (self._lib.c_nvmlGpuInstancePlacement_t * count.value)()
        self._call(call, handle, profile_id, places, ctypes.byref(count))
        return [(int(place.start), int(place.size)) for place in places[: count.value]]

    def remaining_capacity(self, handle: Handle, profile_id: int) -> int:
        """How many more GPU instances of this profile NVML would make beside those that exist."""
        return int(self._call("nvmlDeviceGetGpuInstanceRemainingCapacity", handle, profile_id))

    # MIG: GPU instances

    def gpu_instances(self, handle: Handle) -> list[GpuInstance]:
        """All GPU instances by start, with their compute instances; also those without any, which MIG device handles do not show."""
        found = []
        profiles = self.profiles(handle)
        if not profiles:
            # Instances are listed by profile: without profiles, none listed would not mean that there are none.
            mode = self.mig_mode(handle)
            if mode is not None and mode.current:
                raise NvmlError("nvmlDeviceGetGpuInstances", 3, NOT_SUPPORTED, "MIG is on, but the driver names no profile")
        for profile in profiles:
            room = max(profile.max, _LEAST_ROOM)
            for raw in self._instances("nvmlDeviceGetGpuInstances", self._lib.c_nvmlGpuInstance_t, room, handle, profile.id):
                instance = self._gpu_instance(handle, raw)
                found.append(self.with_compute_instances(instance))
        return sorted(found, key=lambda instance: (instance.start, instance.id))

    def create_gpu_instance(self, handle: Handle, profile_id: int, start: int, size: int) -> GpuInstance:
        """Make a GPU instance at this place. INSUFFICIENT_RESOURCES: taken or none left; IN_USE: a client holds the GPU itself."""
        place = self._lib.c_nvmlGpuInstancePlacement_t(start, size)
        raw = self._call("nvmlDeviceCreateGpuInstanceWithPlacement", handle, profile_id, ctypes.byref(place))
        return self._gpu_instance(handle, raw)

    def destroy_gpu_instance(self, instance: GpuInstance) -> None:
        """Remove a GPU instance. IN_USE while it has a compute instance."""
        self._call("nvmlGpuInstanceDestroy", instance.handle)

    def _gpu_instance(self, handle: Handle, raw: Handle) -> GpuInstance:
        info = self._call("nvmlGpuInstanceGetInfo", raw)
        profile = self._profile_by_id(handle, int(info.profileId))
        return GpuInstance(
            id=int(info.id),
            profile=profile.name,
            profile_id=profile.id,
            start=int(info.placement.start),
            size=int(info.placement.size),
            handle=raw,
            gpu=handle,
        )

    def _profile_by_id(self, handle: Handle, profile_id: int) -> GpuInstanceProfile:
        for profile in self.profiles(handle):
            if profile.id == profile_id:
                return profile
        raise NvmlError("nvmlGpuInstanceGetInfo", 6, NOT_FOUND, f"the driver names no profile with id {profile_id}")

    def _instances(self, call: str, kind: t.Any, room: int, *args: t.Any) -> list[Handle]:
        """Handles that a list call writes into a buffer. Each is copied out: the buffer's elements would share its memory."""
        count = ctypes.c_uint(room)
        buffer = (kind * room)()
        self._call(call, *args, buffer, ctypes.byref(count))
        return [ctypes.cast(buffer[i], kind) for i in range(min(count.value, room))]

    # MIG: compute instances

    def compute_profiles(self, instance: GpuInstance) -> tuple[ComputeInstanceProfile, ...]:
        """Compute instance profiles of this kind of GPU instance, read once for each kind on a board."""
        key = (_address(instance.gpu), instance.profile_id)
        if key not in self._ci_profiles:
            count = max(9, int(getattr(self._lib, "NVML_COMPUTE_INSTANCE_PROFILE_COUNT", 0)))
            call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            found = []
            for enum in range(count):
                info = self._maybe(NOT_SUPPORTED, INVALID_ARGUMENT, call=partial(self._struct, call, instance.handle, enum, 0))
                if info is not None:
                    slices, sm, most = int(info.sliceCount), int(info.multiprocessorCount), int(info.instanceCount)
                    found.append(ComputeInstanceProfile(enum, int(info.id), slices, sm, most))
            if not found:  # not to be kept: an instance that goes away under our eyes answers nothing, its like will
                return ()
            self._ci_profiles[key] = tuple(found)
        return self._ci_profiles[key]

    def full_compute_profile(self, instance: GpuInstance) -> ComputeInstanceProfile:
        """The compute instance profile that fills this GPU instance: most slices, then most SMs; for 1_SLICE_REV2 the one made for it."""
        found = self.compute_profiles(instance)
        if not found:
            word = f"the driver names no compute instance profile for {instance.profile}"
            raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfo", 3, NOT_SUPPORTED, word)
        rev2 = self._profile_by_id(instance.gpu, instance.profile_id).enum == REV2_GI
        return max(found, key=lambda profile: (rev2 and profile.enum == REV2_CI, profile.slices, profile.sm, -profile.enum))

    def with_compute_instances(self, instance: GpuInstance) -> GpuInstance:
        """The same GPU instance with the compute instances that it has now, by id."""
        found = []
        for profile in self.compute_profiles(instance):
            room = max(profile.max, _LEAST_ROOM)
            kind = self._lib.c_nvmlComputeInstance_t
            for raw in self._instances("nvmlGpuInstanceGetComputeInstances", kind, room, instance.handle, profile.id):
                found.append(self._compute_instance(instance, profile, raw))
        return replace(instance, compute_instances=tuple(sorted(found, key=lambda compute: compute.id)))

    def create_compute_instance(self, instance: GpuInstance, profile: ComputeInstanceProfile | None = None) -> ComputeInstance:
        """Make a compute instance, by default the one that fills the GPU instance; with it the MIG device exists."""
        chosen = profile if profile is not None else self.full_compute_profile(instance)
        raw = self._call("nvmlGpuInstanceCreateComputeInstance", instance.handle, chosen.id)
        return self._compute_instance(instance, chosen, raw)

    def destroy_compute_instance(self, compute: ComputeInstance) -> None:
        """Remove a compute instance. IN_USE while a process, or a handle that leaked, is on it."""
        self._call("nvmlComputeInstanceDestroy", compute.handle)

    def _compute_instance(self, instance: GpuInstance, profile: ComputeInstanceProfile, raw: Handle) -> ComputeInstance:
        info = self._call("nvmlComputeInstanceGetInfo_v2", raw)
        whole = profile.slices >= self._profile_by_id(instance.gpu, instance.profile_id).slices
        return ComputeInstance(
            id=int(info.id),
            profile=instance.profile if whole else f"{profile.slices}c.{instance.profile}",
            profile_id=profile.id,
            slices=profile.slices,
            uuid=self.uuid(info.device),
            handle=raw,
            device=info.device,
        )

    def mig_devices(self, handle: Handle) -> dict[int, str]:
        """MIG UUIDs by NVML's MIG index, which has gaps. Slow on a busy host: only for names like ``0:1`` that others wrote."""
        found = {}
        for index in range(int(self._call("nvmlDeviceGetMaxMigDeviceCount", handle))):
            device = self._maybe(NOT_FOUND, call=partial(self._call, "nvmlDeviceGetMigDeviceHandleByIndex", handle, index))
            if device is not None:
                found[index] = self.uuid(device)
        return found


@cache
def _names(lib: t.Any) -> dict[int, str]:
    """Names of error numbers, read once: pynvml has thousands of names, and refusals are ordinary answers."""
    codes = [(name, value) for name, value in vars(lib).items() if name.startswith("NVML_ERROR_")]
    return {value: name for name, value in reversed(codes)}  # the first name of a number counts


def _address(handle: Handle) -> int:
    """The pointer inside a handle: what a GPU is called within one session."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _numbers(info: t.Any) -> tuple[int, int, int, int, int]:
    """id, slices, most instances, SMs and MiB of a GPU instance profile struct of either version."""
    return (
        int(info.id),
        int(info.sliceCount),
        int(info.instanceCount),
        int(info.multiprocessorCount),
        int(info.memorySizeMB),
    )


def _watts(milliwatts: int | None) -> int | None:
    return None if milliwatts is None else (milliwatts + 500) // 1000
