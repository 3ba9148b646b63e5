# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operating system says about itself: read from the roots that are given, nothing is changed.

Each function reads one thing and raises OSError or ValueError when it cannot; :class:`Notes` turns that into None and a line in
``errors``, because a fact that is missing must not hide the others.
"""

from __future__ import annotations

import os
import re
import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# PCI Local Bus Specification 3.0, 6.1 and 6.7: where the list of capabilities begins, and the one that vendors fill.
_STATUS, _HAS_CAPABILITIES, _FIRST_CAPABILITY, _OF_VENDOR = 0x06, 0x10, 0x34, 0x09
_CONFIG_BYTES, _ALIGNED = 256, 0xFC
# What NVIDIA puts there for a vGPU, as its own gpu-feature-discovery reads it (github.com/NVIDIA/k8s-device-plugin, internal/vgpu):
# id, next, length, "VF", then records of id, length and data. Record 0 has ten bytes each of the host driver's version and branch.
_VGPU_MARK, _VGPU_RECORDS, _DRIVER_RECORD, _DRIVER_BYTES = b"VF", 5, 0, 10
_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_MIB = 2**20

_T = t.TypeVar("_T")


class Notes:
    """Runs a reader; when it fails, keeps one line about it and gives the other value."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def attempt(self, what: str, read: t.Callable[[], _T]) -> _T | None:
        """What ``read`` gives, or None and a line ``what: reason``."""
        try:
            return read()
        except (OSError, ValueError, FleetError) as error:
            self.lines.append(f"{what}: {reason(error)}")
            return None


def reason(error: Exception) -> str:
    """An error in one line, with the path if it has one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def read_host(proc_root: str, sys_root: str, os_release: str, shm_path: str, services_dir: str, notes: Notes) -> dict[str, t.Any]:
    """The part ``host`` of the facts."""
    proc = Path(proc_root)
    kernel = proc / "sys" / "kernel"
    return {
        "hostname": notes.attempt("host.hostname", lambda: _line(kernel / "hostname")),
        "os": notes.attempt("host.os", lambda: parse_os_release(_text(Path(os_release)))),
        "kernel": notes.attempt("host.kernel", lambda: _line(kernel / "osrelease")),
        "gcc": notes.attempt("host.gcc", lambda: {"installed": None, "kernel": kernel_gcc(proc), "matching": None}),
        "boot_id": notes.attempt("host.boot_id", lambda: _line(kernel / "random" / "boot_id")),
        "service_manager": notes.attempt("host.service_manager", lambda: service_manager(proc)),
        "cpus": notes.attempt("host.cpus", lambda: count_cpus(_line(Path(sys_root) / "devices" / "system" / "cpu" / "online"))),
        "memory_mib": notes.attempt("host.memory_mib", lambda: parse_memory(_text(proc / "meminfo"))),
        "shm_mib": notes.attempt("host.shm_mib", lambda: _space(Path(shm_path))[0]),
        "disk": notes.attempt("host.disk", lambda: read_disk(services_dir)),
        "ports_listening": notes.attempt("host.ports_listening", lambda: listening_ports(proc)),
    }


def service_manager(proc: Path) -> str | None:
    """The name of process 1: ``systemd`` where units can be installed, another in a container. None when ``proc`` shows no process 1."""
    try:
        return _line(proc / "1" / "comm")
    except FileNotFoundError:
        return None


def kernel_gcc(proc: Path) -> str | None:
    """Version of the GCC that built the running kernel. None: another compiler did, or ``proc`` does not say."""
    try:
        text = _line(proc / "version")
    except FileNotFoundError:
        return None
    # Debian, Ubuntu: (x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04) 12.3.0, ...). Red Hat: (gcc (GCC) 11.4.1 ...).
    # Kernels up to 5.7: (gcc version 8.3.0 ...).
    found = re.search(r"\b(?:gcc version|gcc(?:-[0-9.]+)? \([^()]*\)) ([0-9]+(?:\.[0-9]+)+)", text)
    return found.group(1) if found else None


def parse_os_release(text: str) -> dict[str, str | None]:
    """``id`` and ``version`` of an os-release file (freedesktop.org, os-release(5)); a rolling release has no version."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith("#"):
            values[key] = value.strip("\"'")
    if "ID" not in values:
        raise ValueError("no ID in the os-release file")
    return {"id": values["ID"], "version": values.get("VERSION_ID")}


def count_cpus(text: str) -> int:
    """CPUs in a kernel list such as ``0-31,64``."""
    total = 0
    for part in text.split(","):
        first, _separator, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def parse_memory(text: str) -> int:
    """MemTotal of ``/proc/meminfo`` in MiB (the kernel's kB are KiB)."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", text, re.MULTILINE)
    if match is None:
        raise ValueError("no MemTotal in meminfo")
    return int(match.group(1)) // 1024


def read_disk(directory: str) -> dict[str, t.Any]:
    """Space on the file system of ``directory``, or of its nearest parent that exists; ``path`` is the one that was measured.

    ``free_mib`` is what an ordinary user may still write.
    """
    path = Path(directory)
    while not path.exists() and path != path.parent:
        path = path.parent
    total, free = _space(path)
    return {"path": str(path), "total_mib": total, "free_mib": free}


def listening_ports(proc: Path) -> list[int]:
    """TCP ports on which something listens, IPv4 and IPv6, sorted. A kernel without IPv6 has no ``tcp6``."""
    ports: set[int] = set()
    tables = [_text(proc / "net" / "tcp")]
    six = proc / "net" / "tcp6"
    if six.exists():
        tables.append(_text(six))
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            if fields[3:4] == [_LISTEN]:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def read_iommu(sys_root: str) -> dict[str, t.Any]:
    """Number of IOMMU groups. ``active``: there are groups and an IOMMU behind them, so that a device can be passed to a VM.

    Groups alone prove nothing: VFIO's no-IOMMU mode makes them too, without an entry in ``class/iommu``.
    """
    groups = _names(Path(sys_root) / "kernel" / "iommu_groups")
    units = _names(Path(sys_root) / "class" / "iommu")
    return {"groups": len(groups), "active": bool(groups) and bool(units)}


def driver_flavour(proc_root: str) -> str | None:
    """``open`` or ``proprietary`` by what the loaded module says of itself; None when none is loaded."""
    path = Path(proc_root) / "driver" / "nvidia" / "version"
    try:
        text = _text(path)
    except FileNotFoundError:
        return None
    return "open" if "Open Kernel Module" in text else "proprietary"


def kernel_gpus(proc_root: str) -> dict[str, str | None]:
    """PCI address and UUID of every GPU that the loaded kernel driver holds, also of one that NVML has lost."""
    found: dict[str, str | None] = {}
    for address in _names(Path(proc_root) / "driver" / "nvidia" / "gpus"):
        text = _text(Path(proc_root) / "driver" / "nvidia" / "gpus" / address / "information")
        match = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", text, re.MULTILINE)
        found[address.lower()] = match.group(1) if match else None
    return found


def physical_card(sys_root: str, address: str) -> str:
    """PCI address of the card that ``address`` is a virtual function of, or ``address`` itself."""
    link = Path(sys_root) / "bus" / "pci" / "devices" / address / "physfn"
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return address


def vgpu_host_driver(sys_root: str, address: str) -> str | None:
    """Version of the driver on the host below a vGPU, which the host writes into its PCI configuration. None: it is no vGPU, or says none.

    NVML of a guest has no call for it. ValueError when only root may read so much of the configuration.
    """
    config = (Path(sys_root) / "bus" / "pci" / "devices" / address / "config").read_bytes()
    if len(config) < _CONFIG_BYTES:
        raise ValueError(f"{address}: only {len(config)} bytes of its PCI configuration can be read, the driver of the host is behind them")
    return parse_vgpu_host_driver(config[:_CONFIG_BYTES])


def parse_vgpu_host_driver(config: bytes) -> str | None:
    """The same from 256 bytes of PCI configuration, whatever they are."""
    place = config[_FIRST_CAPABILITY] & _ALIGNED if config[_STATUS] & _HAS_CAPABILITIES else 0
    seen: set[int] = set()
    while place and place + 2 < len(config) and place not in seen:
        seen.add(place)
        kind, following, length = config[place], config[place + 1], config[place + 2]
        capability = config[place : place + length]
        if kind == _OF_VENDOR and capability[3:_VGPU_RECORDS] == _VGPU_MARK:
            return _driver_record(capability)
        place = following & _ALIGNED
    return None


def _driver_record(capability: bytes) -> str | None:
    place = _VGPU_RECORDS
    while place + 2 <= len(capability):
        kind, length = capability[place], capability[place + 1]
        text = capability[place + 2 : place + 2 + _DRIVER_BYTES]
        if kind == _DRIVER_RECORD:
            found = re.fullmatch(rb"([0-9]+(?:\.[0-9]+)+)\0*", text)
            return found.group(1).decode("ascii") if found and length >= 2 + _DRIVER_BYTES else None
        if length < 2:  # it would never end
            return None
        place += length
    return None


def cdi_specs(directories: t.Sequence[str]) -> list[str]:
    """CDI specifications in these directories, in the order in which they are read; a missing directory has none."""
    return [f"{directory}/{name}" for directory in directories for name in _names(Path(directory)) if name.endswith((".yaml", ".json"))]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _line(path: Path) -> str:
    return _text(path).strip()


def _names(path: Path) -> list[str]:
    """Sorted names in a directory; none when it is not there."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _space(path: Path) -> tuple[int, int]:
    """Total and available MiB of a file system."""
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize // _MIB, status.f_bavail * status.f_frsize // _MIB
