# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host facts, as docs/facts.md describes them: everything about one host at one moment, in one call, without changing anything.

Nothing here fails because something is ill or missing: a driver that is not there, a GPU that is lost and an engine that does not answer
are facts. What could not be read is None, and ``errors`` has one line about it.
"""

from __future__ import annotations

import os
import shutil
import typing as t
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import (
    drains,
    host,
    mig_state,
    parents,
    passthrough_facts,
    plan_record,
    service_leases,
    vgpu_facts,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine, VersionProbe, absent, resolve_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import OpenFile, merge, open_files
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import (
    GPU_IS_LOST,
    Found,
    GpuInstance,
    Handle,
    Mode,
    NvmlError,
    Process,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_links import read_links
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION

SCHEMA = 1
COLLECTION = VERSION
HOLDERS = "holders"
CONTAINERS = "containers"

_Facts = dict[str, t.Any]
_T = t.TypeVar("_T")

_UNREAD: _Facts = dict.fromkeys(
    (
        "uuid",
        "pci",
        "index",
        "minor",
        "name",
        "device_id",
        "architecture",
        "compute_capability",
        "virtualization",
        "parent",
        "parent_host",
        "state",
        "error",
        "memory_mib",
        "memory_used_mib",
        "mig",
        "nvlink",
        "temperature_c",
        "power_w",
        "power_limit_w",
        "persistence",
        "compute_mode",
        "ecc",
        "vgpu",
        "drain",
    )
)


@dataclass(frozen=True)
class Options:
    """Where to look, and what to look for beyond the usual (``gather``: holders, containers)."""

    gather: frozenset[str] = frozenset()
    state_dir: str = "/var/lib/gpuops-fleet"
    services_dir: str = "/srv/gpuops/services"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    os_release: str = "/etc/os-release"
    shm_path: str = "/dev/shm"
    docker_socket: str = "/var/run/docker.sock"
    cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    nvidia_ctk: str = "nvidia-ctk"
    parent: t.Mapping[str, t.Any] | None = None


def collect(options: Options) -> _Facts:
    """The facts of this host (docs/facts.md). Raises nothing that a host's state can cause; FleetError for a wrong ``parent``."""
    notes = host.Notes()
    compose = VersionProbe("docker", "compose", "version", "--short")
    toolkit = VersionProbe(options.nvidia_ctk, "--version")
    compiler = VersionProbe("gcc", "-dumpfullversion")
    docker, live_restore, containers = _read_engine(options, notes)
    machine = host.read_host(options.proc_root, options.sys_root, options.os_release, options.shm_path, options.services_dir, notes)
    _look_at_compiler(machine["gcc"], notes.attempt("host.gcc", compiler.version))
    gpus = _GpuReader(options, notes)
    gpus.read(containers)
    for address, vgpu in (notes.attempt("vgpu", lambda: vgpu_facts.read(options.state_dir, options.sys_root)) or {}).items():
        for gpu in gpus.gpus:
            if gpu["pci"] == address:
                gpu["vgpu"] = vgpu
    parent = parents.read_parent(options.parent)
    parents.link(gpus.gpus, parent)
    machine["drain"], idle = _read_drains(options, gpus.gpus, notes)
    facts: _Facts = {
        "schema": SCHEMA,
        "collection": COLLECTION,
        "host": machine,
        "driver": gpus.driver,
        "iommu": notes.attempt("iommu", lambda: host.read_iommu(options.sys_root)),
        "engine": {
            "docker": docker,
            "live_restore": live_restore,
            "compose": notes.attempt("engine.compose", compose.version),
            "container_toolkit": notes.attempt("engine.container_toolkit", toolkit.version),
            "cdi_specs": notes.attempt("engine.cdi_specs", lambda: host.cdi_specs(options.cdi_dirs)),
        },
        "geometries": gpus.geometries,
        "gpus": gpus.gpus,
        "parent": parent,
        "passthrough": notes.attempt(
            "passthrough", lambda: passthrough_facts.read(options.state_dir, options.sys_root, options.proc_root, notes)
        ),
        "drains_idle": idle,
        "leases": notes.attempt("leases", lambda: _read_leases(options)),
        "plan": notes.attempt("plan", lambda: plan_record.summary(plan_record.read(Path(options.state_dir)))),
    }
    if CONTAINERS in options.gather:
        facts["containers"] = containers
    facts["errors"] = notes.lines
    return facts


def _look_at_compiler(gcc: _Facts | None, installed: str | None) -> None:
    """Beside the compiler of the kernel the one that is installed; ``matching``: is one of the kernel's major version there as well."""
    if gcc is None:
        return
    gcc["installed"] = installed
    if gcc["kernel"] is not None:
        major = gcc["kernel"].partition(".")[0]
        gcc["matching"] = (installed or "").partition(".")[0] == major or shutil.which(f"gcc-{major}") is not None


def _read_drains(options: Options, gpus: list[_Facts], notes: host.Notes) -> tuple[_Facts | None, list[_Facts] | None]:
    """(the drain of the whole host, drains that drain nothing here); None for the latter when what is drained could not be read."""
    kept = notes.attempt("drains", lambda: drains.load(Path(options.state_dir)))
    return (None, None) if kept is None else drains.describe(gpus, kept, datetime.now(timezone.utc))


def _read_leases(options: Options) -> list[_Facts]:
    return [service_leases.as_fact(name, record) for name, record in sorted(service_leases.read(Path(options.state_dir))["leases"].items())]


def _read_engine(options: Options, notes: host.Notes) -> tuple[_Facts, bool | None, list[_Facts] | None]:
    """The engine, its live-restore, and its containers if they are wanted; no socket means no engine, so no containers."""
    if not os.path.exists(options.docker_socket):
        return absent(f"no socket {options.docker_socket}"), None, []
    with Engine(options.docker_socket) as engine:
        try:
            docker, live_restore = engine.info()
        except FleetError as error:
            return absent(str(error)), None, None
        wanted = CONTAINERS in options.gather
        return docker, live_restore, notes.attempt("containers", engine.containers) if wanted else []


class _Lost(Exception):
    """The GPU went away while it was read."""


@dataclass
class _GpuReader:
    """Reads all GPUs in one NVML session, the geometry once for each kind of board."""

    options: Options
    notes: host.Notes
    driver: _Facts = field(default_factory=dict)
    geometries: _Facts = field(default_factory=dict)
    gpus: list[_Facts] = field(default_factory=list)
    _boards: dict[tuple[str, ...], Handle] = field(default_factory=dict)
    _files: list[OpenFile] | None = None
    _temporary: set[tuple[str, int, str]] | None = None

    def read(self, containers: list[_Facts] | None) -> None:
        """Fill ``driver``, ``geometries`` and ``gpus``, and turn the device names of ``containers`` into UUIDs."""
        flavour = self.notes.attempt("driver.flavour", lambda: host.driver_flavour(self.options.proc_root))
        self.driver = {"present": False, "version": None, "nvml": None, "cuda": None, "flavour": flavour, "vgpu_host": None, "error": None}
        try:
            with Nvml() as nvml:
                versions = nvml.versions()
                self.driver.update(present=True, version=versions.driver, nvml=versions.nvml, cuda=versions.cuda)
                self._read_gpus(nvml)
                for container in containers or ():
                    container["devices"] = resolve_devices(container["devices"], self.gpus, self._mig_finder(nvml))
        except NvmlError as error:
            self.driver["error"] = str(error)

    def _read_gpus(self, nvml: Nvml) -> None:
        if HOLDERS in self.options.gather:
            self._files = self.notes.attempt("holders", lambda: open_files(self.options.proc_root))
        every = [(self._read_gpu(nvml, found), found) for found in nvml.devices()]
        refusal = read_links(nvml, [(gpu, found.handle) for gpu, found in every if found.error is None])
        if refusal is not None:
            self.notes.lines.append(f"nvlink: {refusal}")
        self.gpus = [gpu for gpu, _found in every]
        self._name_the_lost()
        self.gpus.sort(key=lambda gpu: (gpu["pci"] is None, gpu["pci"] or "", gpu["index"]))

    def _read_gpu(self, nvml: Nvml, found: Found) -> _Facts:
        """One GPU; what was read before it was lost is kept."""
        gpu = {**_UNREAD, "index": found.index, "state": "ok"}
        if HOLDERS in self.options.gather:
            gpu["holders"] = None
        if found.error is not None:
            self._ill(gpu, found.error)
            return gpu
        try:
            self._read_identity(nvml, found.handle, gpu)
            self._read_state(nvml, found.handle, gpu)
            instances = self._read_mig(nvml, found.handle, gpu)
            if HOLDERS in self.options.gather:
                gpu["holders"] = self._read_holders(nvml, found.handle, gpu, instances)
        except _Lost:
            pass
        return gpu

    def _ill(self, gpu: _Facts, error: NvmlError) -> None:
        gpu["state"] = "lost" if error.name == GPU_IS_LOST else "error"
        gpu["error"] = str(error)
        self.notes.lines.append(f"{_label(gpu)}: {error}")

    def _ask(self, gpu: _Facts, what: str, read: Callable[[Handle], _T], handle: Handle, *, essential: bool = False) -> _T | None:
        """One reading. Without an essential one nothing can be decided about this GPU, so its state is then ``error``."""
        try:
            return read(handle)
        except NvmlError as error:
            if error.name == GPU_IS_LOST:
                self._ill(gpu, error)
                raise _Lost from error
            if essential and gpu["state"] == "ok":
                self._ill(gpu, error)
            else:
                self.notes.lines.append(f"{_label(gpu)}: {what}: {error}")
            return None

    def _read_identity(self, nvml: Nvml, handle: Handle, gpu: _Facts) -> None:
        gpu["uuid"] = self._ask(gpu, "uuid", nvml.uuid, handle, essential=True)
        pci = self._ask(gpu, "pci", nvml.pci, handle, essential=True)
        if pci is not None:
            parent = host.physical_card(self.options.sys_root, pci.address)
            gpu.update(pci=pci.address, device_id=pci.device_id, parent=parent)
        readings: tuple[tuple[str, Callable[[Handle], t.Any]], ...] = (
            ("minor", nvml.minor),
            ("name", nvml.name),
            ("architecture", nvml.architecture),
            ("compute_capability", nvml.compute_capability),
            ("virtualization", nvml.virtualization),
        )
        for what, read in readings:
            gpu[what] = self._ask(gpu, what, read, handle)
        # All vGPUs of a guest are of one host.
        if gpu["virtualization"] == "vgpu" and gpu["pci"] and self.driver["vgpu_host"] is None:
            address = gpu["pci"]
            self.driver["vgpu_host"] = self.notes.attempt("driver.vgpu_host", lambda: host.vgpu_host_driver(self.options.sys_root, address))

    def _read_state(self, nvml: Nvml, handle: Handle, gpu: _Facts) -> None:
        memory = self._ask(gpu, "memory", nvml.memory, handle, essential=True)
        if memory is not None:
            gpu.update(memory_mib=memory.total_mib, memory_used_mib=memory.used_mib)
        readings: tuple[tuple[str, Callable[[Handle], t.Any]], ...] = (
            ("temperature_c", nvml.temperature_c),
            ("power_w", nvml.power_w),
            ("power_limit_w", nvml.power_limit_w),
            ("persistence", nvml.persistence),
            ("compute_mode", nvml.compute_mode),
        )
        for what, read in readings:
            gpu[what] = self._ask(gpu, what, read, handle)
        ecc = self._ask(gpu, "ecc", nvml.ecc, handle)
        gpu["ecc"] = None if ecc is None else {"current": ecc.current, "pending": ecc.pending}

    def _read_mig(self, nvml: Nvml, handle: Handle, gpu: _Facts) -> list[GpuInstance]:
        """Mode, geometry and instances. The instances are those of a GPU whose MIG mode is on; others can have none."""
        mode: Mode | None = self._ask(gpu, "mig", nvml.mig_mode, handle, essential=True)
        if mode is None:
            return []
        mig = gpu["mig"] = {"current": mode.current, "pending": mode.pending, "resetless": None, "geometry": None, "instances": None}
        mig["resetless"] = self._ask(gpu, "mig.resetless", nvml.resetless, handle)
        mig["geometry"] = self._ask(gpu, "mig.geometry", lambda _handle: self._read_geometry(nvml, handle, gpu), handle)
        instances = self._ask(gpu, "mig.instances", nvml.gpu_instances, handle, essential=True) if mode.current else []
        if instances is None:
            return []
        if self._temporary is None:
            state_dir = Path(self.options.state_dir)
            self._temporary = self.notes.attempt("mig.instances", lambda: mig_state.temporary(state_dir)) or set()
        mig["instances"] = [
            {**_instance(instance), **({"temporary": True} if (gpu["uuid"], instance.start, instance.profile) in self._temporary else {})}
            for instance in instances
        ]
        return instances

    def _read_geometry(self, nvml: Nvml, handle: Handle, gpu: _Facts) -> str | None:
        """Digest of the GPU's geometry, which is then in ``geometries``. Boards of one kind share one reading, if they agree."""
        kind = (str(gpu["device_id"]), str(gpu["name"]), str(gpu["memory_mib"]))
        if kind not in self._boards or not nvml.share_profiles(handle, like=self._boards[kind]):
            self._boards[kind] = handle
        geometry = nvml.geometry(handle)
        if geometry is None:
            self.notes.lines.append(
                f"{_label(gpu)}: mig.geometry: the driver names no profile (up to R535 it does so only while MIG is on)"
            )
            return None
        digest = geometry.digest()
        if digest not in self.geometries:
            self.geometries[digest] = geometry.to_dict()
        return digest

    def _read_holders(self, nvml: Nvml, handle: Handle, gpu: _Facts, instances: Iterable[GpuInstance]) -> list[_Facts] | None:
        """Who holds the GPU or its slices; None when any part of the answer is missing, because the rest would look complete."""
        processes: list[Process] | None = self._ask(gpu, "holders", nvml.processes, handle)
        if processes is None or self._files is None or gpu["minor"] is None:
            return None
        seen = set(processes)
        for instance in instances:
            for compute in instance.compute_instances:
                inside = self._ask(gpu, "holders", nvml.processes, compute.device)
                if inside is None:
                    return None
                seen |= {Process(entry.pid, entry.kind, instance.id, compute.id, entry.memory_mib) for entry in inside}
        mine = [held for held in self._files if held.minor == gpu["minor"]]
        return merge(self.options.proc_root, seen, mine)

    def _name_the_lost(self) -> None:
        """Find PCI address and UUID of lost GPUs among those that the kernel driver holds.

        NVML gives no handle for them, hence no name, but orders GPUs by PCI address, as the kernel's list is. So when as many are without
        a name here as are missing there, each is who remains.
        """
        nameless = [gpu for gpu in self.gpus if gpu["pci"] is None]
        if not nameless:
            return
        listed = self.notes.attempt("gpus", lambda: host.kernel_gpus(self.options.proc_root)) or {}
        named = {gpu["pci"] for gpu in self.gpus}
        remaining = [address for address in listed if address not in named]
        if len(remaining) == len(nameless):
            for gpu, address in zip(nameless, remaining):
                gpu.update(uuid=listed[address], pci=address, parent=host.physical_card(self.options.sys_root, address))

    def _mig_finder(self, nvml: Nvml) -> Callable[[int, int], str | None]:
        def find(index: int, mig_index: int) -> str | None:
            try:
                return nvml.mig_devices(nvml.find(index)).get(mig_index)
            except NvmlError as error:
                self.notes.lines.append(f"gpu {index}: MIG device {index}:{mig_index}: {error}")
                return None

        return find


def _label(gpu: _Facts) -> str:
    return f"gpu {gpu['pci'] or gpu['uuid'] or gpu['index']}"


def _instance(instance: GpuInstance) -> _Facts:
    computes = [{"id": compute.id, "profile": compute.profile, "uuid": compute.uuid} for compute in instance.compute_instances]
    return {"gi": instance.id, "profile": instance.profile, "start": instance.start, "ci": computes}
