# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of `nvidia-smi --query-gpu` that people use most."""

from __future__ import annotations

import ctypes
import dataclasses
import typing as t

if t.TYPE_CHECKING:
    from nvmlsim.nvidia_smi import Nvml

NOT_AVAILABLE = "[N/A]"
MEMORY_V2 = 0x02000028
MIB = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class Query:
    """A field: how it is read (None: not supported by the board) and the unit behind the number."""

    name: str
    read: t.Callable[[Nvml, ctypes.c_void_p], str | None]
    unit: str = ""

    def header(self) -> str:
        """The column title."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


class _Memory(ctypes.Structure):
    _fields_: t.ClassVar = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def _memory(part: str) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        memory = _Memory(MEMORY_V2)
        if nvml.call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(memory)):
            return None
        return str(getattr(memory, part) // MIB)

    return read


def _string(function: str) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    return lambda nvml, device: nvml.string(function, device)


def _number(function: str, *args: int, scale: int = 1) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        value = nvml.number(function, device, *args)
        if value is None:
            return None
        return str(value) if scale == 1 else f"{value / scale:.2f}"

    return read


def _words(function: str, words: tuple[str, ...]) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        value = nvml.number(function, device)
        return None if value is None else words[value]

    return read


def _pair(function: str, which: int, words: tuple[str, ...] | None, scale: int = 1) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        values = (ctypes.c_uint(), ctypes.c_uint())
        if nvml.call(function, device, ctypes.byref(values[0]), ctypes.byref(values[1])):
            return None
        value = values[which].value
        return words[value] if words else f"{value / scale:.2f}"

    return read


def _utilization(which: int) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        values = (ctypes.c_uint * 2)()
        return None if nvml.call("nvmlDeviceGetUtilizationRates", device, values) else str(values[which])

    return read


class _Pci(ctypes.Structure):
    _fields_: t.ClassVar = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


def _pci(part: str) -> t.Callable[[Nvml, ctypes.c_void_p], str | None]:
    def read(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
        pci = _Pci()
        if nvml.call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(pci)):
            return None
        value = getattr(pci, part)
        return value.decode() if isinstance(value, bytes) else f"0x{value:08X}"

    return read


def _compute_capability(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor)):
        return None
    return f"{major.value}.{minor.value}"


def _pstate(nvml: Nvml, device: ctypes.c_void_p) -> str | None:
    value = nvml.number("nvmlDeviceGetPerformanceState", device)
    return None if value is None else f"P{value}"


_ONOFF = ("Disabled", "Enabled")
_FIELDS = [
    Query("index", _number("nvmlDeviceGetIndex")),
    Query("count", lambda nvml, _device: str(nvml.number("nvmlDeviceGetCount_v2"))),
    Query("driver_version", lambda nvml, _device: nvml.string("nvmlSystemGetDriverVersion")),
    Query("name", _string("nvmlDeviceGetName")),
    Query("uuid", _string("nvmlDeviceGetUUID")),
    Query("serial", _string("nvmlDeviceGetSerial")),
    Query("pci.bus_id", _pci("bus_id")),
    Query("pci.device_id", _pci("device_id")),
    Query("pci.sub_device_id", _pci("subsystem_id")),
    Query("compute_cap", _compute_capability),
    Query("pstate", _pstate),
    Query("memory.total", _memory("total"), "MiB"),
    Query("memory.used", _memory("used"), "MiB"),
    Query("memory.free", _memory("free"), "MiB"),
    Query("memory.reserved", _memory("reserved"), "MiB"),
    Query("temperature.gpu", _number("nvmlDeviceGetTemperature", 0)),
    Query("power.draw", _number("nvmlDeviceGetPowerUsage", scale=1000), "W"),
    Query("power.limit", _number("nvmlDeviceGetPowerManagementLimit", scale=1000), "W"),
    Query("enforced.power.limit", _number("nvmlDeviceGetEnforcedPowerLimit", scale=1000), "W"),
    Query("power.default_limit", _number("nvmlDeviceGetPowerManagementDefaultLimit", scale=1000), "W"),
    Query("power.min_limit", _pair("nvmlDeviceGetPowerManagementLimitConstraints", 0, None, 1000), "W"),
    Query("power.max_limit", _pair("nvmlDeviceGetPowerManagementLimitConstraints", 1, None, 1000), "W"),
    Query("utilization.gpu", _utilization(0), "%"),
    Query("utilization.memory", _utilization(1), "%"),
    Query("persistence_mode", _words("nvmlDeviceGetPersistenceMode", _ONOFF)),
    Query("compute_mode", _words("nvmlDeviceGetComputeMode", ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"))),
    Query("ecc.mode.current", _pair("nvmlDeviceGetEccMode", 0, _ONOFF)),
    Query("ecc.mode.pending", _pair("nvmlDeviceGetEccMode", 1, _ONOFF)),
    Query("mig.mode.current", _pair("nvmlDeviceGetMigMode", 0, _ONOFF)),
    Query("mig.mode.pending", _pair("nvmlDeviceGetMigMode", 1, _ONOFF)),
    Query("clocks.sm", _number("nvmlDeviceGetClockInfo", 1), "MHz"),
    Query("clocks.mem", _number("nvmlDeviceGetClockInfo", 2), "MHz"),
    Query("clocks.max.sm", _number("nvmlDeviceGetMaxClockInfo", 1), "MHz"),
    Query("clocks.max.mem", _number("nvmlDeviceGetMaxClockInfo", 2), "MHz"),
]
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial"}
_BY_NAME = {field.name: field for field in _FIELDS}


def parse_fields(text: str) -> list[Query]:
    """Comma-separated names. Raises KeyError with the name that is not known."""
    names = [name.strip() for name in text.split(",")]
    return [dataclasses.replace(_BY_NAME[_ALIASES.get(name, name)], name=name) for name in _known(names)]


def _known(names: list[str]) -> list[str]:
    for name in names:
        if _ALIASES.get(name, name) not in _BY_NAME:
            raise KeyError(name)
    return names


def values(nvml: Nvml, device: ctypes.c_void_p, fields: list[Query], *, units: bool) -> list[str]:
    """The texts of one row; what the board does not support is ``[N/A]``."""
    result = []
    for field in fields:
        value = field.read(nvml, device)
        if value is None:
            result.append(NOT_AVAILABLE)
        else:
            result.append(f"{value} {field.unit}" if units and field.unit else value)
    return result
