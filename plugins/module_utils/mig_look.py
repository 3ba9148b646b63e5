# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs a layout means on this host, how they are, and who uses them or their slices."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.engine import resolve_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import (
    OPEN_FILE,
    OpenFile,
    containers,
    machine_users,
    merge,
    open_files,
    unit_of,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import Gpu, Holder, Standing, refuse_twins
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_reset import drm_user
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import Wish, parse_layout
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    GpuInstance,
    Handle,
    Mode,
    NvmlError,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import Board, resolve_selectors

# It has every device file open and lets go of a GPU for a mode that changes at once; a reset it hinders (NVIDIA/gpu-operator issue 118).
_PERSISTENCE = "nvidia-persistenced"
_GUESTS = ("passthrough", "vgpu")
_SERVICE_LABEL = "gpuops.service"

_Data = Mapping[str, t.Any]


@dataclass(frozen=True)
class Options:
    """What a run may do and where things are. ``token``: of the lease that the caller holds. ``nvidia_smi``, ``systemctl``: name or path.

    ``docker_socket``: empty, or a path where nothing is: this host has no engine. ``drain``: containers of this collection that are in the
    way are handed back, not refused. ``drained``: replicas that the caller stops before; in check mode, where they still run, they count
    as stopped. ``driver_services``: units that are stopped for a change of mode or a reset. ``remember``: keep the layout for the next
    boot.
    """

    state_dir: Path
    proc_root: Path = Path("/proc")
    nvidia_smi: str = "nvidia-smi"
    reset: bool = False
    token: str | None = None
    check: bool = False
    sys_root: Path = Path("/sys")
    docker_socket: str = "/var/run/docker.sock"
    drain: bool = False
    drained: tuple[str, ...] = ()
    driver_services: tuple[str, ...] = ()
    systemctl: str = "systemctl"
    remember: bool = True


@dataclass(frozen=True)
class Scene:
    """Who is on the host as a whole: open device files, containers, services that hold the driver and run, and the user of nvidia_drm.

    An empty scene knows only what NVML says.
    """

    files: Sequence[OpenFile] = ()
    containers: Sequence[_Data] = ()
    services: Sequence[str] = ()
    drm: str | None = None
    looked: bool = False


@dataclass
class Look:
    """Eyes of one session with NVML. ``notes``: what was seen on the way and is worth telling."""

    nvml: Nvml
    options: Options
    notes: list[str] = field(default_factory=list)
    _like: dict[str, Handle] = field(default_factory=dict)  # board name: a GPU whose geometry was read in this session

    # Which GPUs

    def wishes(self, layout: Sequence[_Data], selectors: Sequence[_Data]) -> list[Wish]:
        """Every wish with the UUID of its GPU. FleetError for a GPU that is not there, is lost, or is named twice."""
        chosen = self._chosen(selectors) if selectors else []
        named = [(wish, self.uuid(wish.gpu)) for wish in parse_layout([*layout, *chosen])]
        refuse_twins((wish.gpu, uuid) for wish, uuid in named)
        return [replace(wish, gpu=uuid) for wish, uuid in named]

    def _chosen(self, selectors: Sequence[_Data]) -> list[dict[str, t.Any]]:
        """What the selectors wish. FleetError as of ``resolve_selectors``, but a named GPU that is lost is said to be lost."""
        try:
            return resolve_selectors(self._boards(selectors), selectors)
        except FleetError:
            for selector in selectors:
                for name in selector["devices"] if selector["devices"] != "all" else ():
                    try:
                        self.uuid(str(name))
                    except FleetError as error:
                        if isinstance(error.__cause__, NvmlError) and error.__cause__.name == GPU_IS_LOST:
                            raise FleetError(error.message, file=selector.get("source"), field="devices", hint=error.hint) from error
            raise

    def _boards(self, selectors: Sequence[_Data]) -> list[Board]:
        """All GPUs that answer, for selectors: those that are lost can be wished nothing, and are not in the way of others."""
        boards = []
        for found in self.nvml.devices():
            if found.error is not None and any(selector["devices"] == "all" for selector in selectors):
                self.notes.append(f"GPU {found.index} does not answer ({found.error.word}); devices: all passes over it")
            if found.error is None:
                pci = self.nvml.pci(found.handle)
                ids = (int(pci.device_id, 16), int(pci.subsystem_id, 16))
                has_mig = self.nvml.mig_mode(found.handle) is not None
                boards.append(Board(found.index, self.nvml.uuid(found.handle), pci.address, *ids, has_mig))
        return boards

    def uuid(self, name: str) -> str:
        """UUID of the GPU that is meant. FleetError when there is none, when it is lost, or when a slice is meant."""
        try:
            uuid = self.nvml.uuid(self.nvml.find(name))
        except NvmlError as error:
            if error.name == GPU_IS_LOST:
                hint = "look for its XID in the kernel's log"
                raise FleetError(f"GPU {name} is lost ({error.word}); nothing was changed", hint=hint) from error
            if error.name not in (NOT_FOUND, INVALID_ARGUMENT):
                raise
            uuid = self._spelt(name)
        if not uuid.startswith("GPU-"):
            raise FleetError(f"{name} is a slice; nothing was changed", hint="name the GPU that it is a part of")
        return uuid

    def _spelt(self, name: str) -> str:
        """A UUID in other letters than NVML's own. FleetError names the GPUs that there are."""
        known: list[str] = []
        for found in self.nvml.devices():
            if found.error is not None:
                known.append(f"{found.index} ({found.error.word})")
                continue
            uuid = self.nvml.uuid(found.handle)
            if uuid.lower() == name.lower():
                return uuid
            known.append(f"{found.index} ({self.nvml.pci(found.handle).address}, {uuid})")
        hint = f"GPUs of this host: {', '.join(known) or 'none'}"
        raise FleetError(f"there is no GPU {name} on this host; nothing was changed", hint=hint)

    # Who is on the host

    def scene(self, services: Sequence[str], engine: bool = True) -> Scene:
        """Everybody beyond NVML's processes. FleetError when somebody could not be seen: an unknown holder counts as one.

        ``services``: units that are stopped before they could be in the way. ``engine`` False: the container engine is not asked.
        """
        proc_root = self.options.proc_root
        try:
            files = open_files(str(proc_root))
        except OSError as error:
            message = f"cannot see who has a GPU open, for {error.filename} cannot be read ({error.strerror}); nothing was changed"
            raise FleetError(message, field="proc_root") from error
        try:
            found = containers(self.options.docker_socket) if engine else []
        except FleetError as error:
            hint = "start the engine; where it is down for good and no container is left, write docker_socket: ''"
            message = f"cannot see which containers hold a slice ({error.message}); nothing was changed"
            raise FleetError(message, field="docker_socket", hint=hint) from error
        return Scene(files, found, services, drm_user(proc_root, self.options.sys_root), looked=True)

    def users(self, name: str, scene: Scene) -> tuple[str, list[str], list[str]]:
        """UUID of a GPU, whoever is on it or in a slice of it, in words, and the slices that it has; whatever kind of board it is.

        The persistence daemon is left out: it lets go when persistence mode is turned off. FleetError when the GPU does not answer.
        """
        try:
            handle = self.nvml.find(name)
            uuid, mode = self.nvml.uuid(handle), self.nvml.mig_mode(handle)
            instances = self.nvml.gpu_instances(handle) if mode is not None and mode.current else []
            found = _Users(self, handle, uuid, self.nvml.pci(handle).address, scene)
            found.find(instances)
        except NvmlError as error:
            raise FleetError(f"GPU {name} does not answer: {error.name} ({error.word}) from {error.call}") from error
        inside = [holder for one in instances for holder in found.inside(one.id)]
        everybody = [*found.holders, *found.openers, *inside]
        slices = [f"{one.profile}@{one.start}" for one in instances]
        return uuid, list(dict.fromkeys(holder.text for holder in everybody)), slices

    # How a GPU is

    def observe(self, uuid: str, scene: Scene | None = None) -> Gpu:
        """The GPU as it is at this moment, with whoever uses it. FleetError names a GPU that does not answer."""
        try:
            return self._observe(self.nvml.find(uuid), uuid, scene or Scene())
        except NvmlError as error:
            raise FleetError(f"GPU {uuid} does not answer: {error.name} ({error.word}) from {error.call}") from error

    def _observe(self, handle: Handle, uuid: str, scene: Scene) -> Gpu:
        mode = self.nvml.mig_mode(handle)
        pci, name = self.nvml.pci(handle).address, self.nvml.name(handle)
        if mode is None:
            return Gpu(uuid, pci, name, mode)
        geometry = self._geometry(handle, name)
        instances = self.nvml.gpu_instances(handle) if mode.current else []
        resetless = self.nvml.resetless(handle)
        users = _Users(self, handle, uuid, pci, scene)
        users.find(instances)
        return Gpu(
            uuid,
            pci,
            name,
            mode,
            resetless=resetless,
            geometry=geometry,
            slices=tuple(_standing(one, users.inside(one.id)) for one in instances),
            holders=tuple(dict.fromkeys(users.holders)),
            openers=tuple(dict.fromkeys(users.openers)),
            resisters=tuple(dict.fromkeys(users.resisters)),
            resettable=self._resettable(handle, pci, mode, resetless),
        )

    def _geometry(self, handle: Handle, name: str) -> Geometry | None:
        """What the board can be cut into; boards of one name share the many calls that it takes to read it, if they agree."""
        if name in self._like:
            self.nvml.share_profiles(handle, self._like[name])
        geometry = self.nvml.geometry(handle)
        if geometry is not None:
            self._like.setdefault(name, handle)
        return geometry

    def forget(self) -> None:
        """Handles that were kept are void: the session was opened anew."""
        self._like.clear()

    def _resettable(self, handle: Handle, pci: str, mode: Mode, resetless: bool) -> bool:
        """False for a GPU in a virtual machine whose kernel offers no reset of it; elsewhere nvidia-smi is asked when it comes to it."""
        if resetless and mode.current == mode.pending:
            return True
        device = self.options.sys_root / "bus" / "pci" / "devices" / pci
        return self.nvml.virtualization(handle) not in _GUESTS or not device.is_dir() or (device / "reset").exists()


@dataclass
class _Users:
    """Who uses one GPU: by the id of the GPU instance, or the GPU itself."""

    look: Look
    handle: Handle
    uuid: str
    pci: str
    scene: Scene
    holders: list[Holder] = field(default_factory=list)
    openers: list[Holder] = field(default_factory=list)
    resisters: list[Holder] = field(default_factory=list)
    _by_instance: dict[int, list[Holder]] = field(default_factory=dict)
    _everywhere: list[Holder] = field(default_factory=list)

    def inside(self, instance: int) -> tuple[Holder, ...]:
        """Who uses this GPU instance."""
        return tuple(dict.fromkeys([*self._by_instance.get(instance, ()), *self._everywhere]))

    def find(self, instances: Sequence[GpuInstance]) -> None:
        """Fill everything in."""
        nvml, options, scene = self.look.nvml, self.look.options, self.scene
        known = {one.id for one in instances}
        minor = nvml.minor(self.handle) if scene.files else None
        users = merge(str(options.proc_root), nvml.processes(self.handle), [one for one in scene.files if one.minor == minor])
        named = self._named(users)
        for user in users:
            holder = named.get(user["container"]) or _process(user)
            if self._counts_as_gone(user["container"]):
                continue
            place: int = -1 if user["slice"] is None else user["slice"]["gi"]
            if place in known:
                self._by_instance.setdefault(place, []).append(holder)
            elif user["kind"] != OPEN_FILE:
                self.holders.append(holder)
            elif unit_of(str(options.proc_root), user["pid"]) not in scene.services:
                (self.resisters if user["process"] == _PERSISTENCE else self.openers).append(holder)
        self._find_claims(instances, named)
        self._find_machines(known)
        if scene.drm is not None:
            self.resisters.append(Holder(scene.drm, "nvidia_drm"))

    def _named(self, users: Iterable[_Data]) -> dict[str, Holder]:
        """Every container of the host by its short id, with those of its processes that are on this GPU."""
        pids: dict[str, set[int]] = {}
        for user in users:
            if user["container"] is not None:
                pids.setdefault(user["container"], set()).add(user["pid"])
        return {one["id"]: _container(one, sorted(pids.get(one["id"], ()))) for one in self.scene.containers}

    def _counts_as_gone(self, container: str | None) -> bool:
        """In check mode, what the caller would have stopped before is still there."""
        projects = {one["id"]: one["project"] for one in self.scene.containers}
        return self.look.options.check and projects.get(container or "") in self.look.options.drained

    def _find_claims(self, instances: Sequence[GpuInstance], named: Mapping[str, Holder]) -> None:
        """What containers, running or not, were given by name."""
        asking = [one for one in self.scene.containers if one["devices"] and not self._counts_as_gone(one["id"])]
        if not asking:
            return
        nvml = self.look.nvml
        index = nvml.index(self.handle)
        inside = [{"ci": [{"uuid": compute.uuid} for compute in one.compute_instances]} for one in instances]
        facts = {"uuid": self.uuid, "index": index, "minor": nvml.minor(self.handle), "mig": {"instances": inside}}
        places = {compute.uuid: one.id for one in instances for compute in one.compute_instances}
        devices: dict[int, str] = {}

        def mig_device(gpu: int, number: int) -> str | None:
            if gpu == index and not devices:
                devices.update(nvml.mig_devices(self.handle))
            return devices.get(number) if gpu == index else None

        for one in asking:
            for uuid in resolve_devices(one["devices"], [facts], mig_device):
                if uuid in places:
                    self._by_instance.setdefault(places[uuid], []).append(named[one["id"]])
                elif uuid == self.uuid:
                    self.openers.append(named[one["id"]])
                    self._everywhere.append(named[one["id"]])

    def _find_machines(self, known: set[int]) -> None:
        if not self.scene.looked:
            return
        for number, instance in self.look.nvml.vgpus(self.handle):
            holder = Holder(f"vGPU {number} of a virtual machine", "a virtual machine")
            if instance in known:
                self._by_instance.setdefault(instance, []).append(holder)
            else:
                self.holders.append(holder)
        for words in machine_users(str(self.look.options.sys_root), self.pci):
            self.holders.append(Holder(words, "a virtual machine"))


def _process(user: _Data) -> Holder:
    where = "" if user["container"] is None else f" in container {user['container']}"
    who = f"process {user['pid']}"
    return Holder(f"{who} ({user['process'] or 'unknown program'}){where}", who, pids=(user["pid"],))


def _container(one: _Data, pids: Sequence[int]) -> Holder:
    """A container as a holder; only one of a replica of this collection can be stopped by its name."""
    name, project, service = one["name"] or one["id"], one["project"], one["labels"].get(_SERVICE_LABEL)
    state = [] if one["state"] == "running" else [str(one["state"])]
    running = [f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"] if pids else []
    details = ", ".join([f"container {name}", *state, *running])
    if service is not None:
        text = f"service {service} ({details})"
    elif project is not None:
        text = f"compose project {project} ({details})"
    else:
        more = ", ".join([*state, *running])
        text = f"container {name} ({more})" if more else f"container {name}"
    ours = service if project is not None else None
    return Holder(text, service or project or f"container {name}", ours, project or name, name, tuple(pids))


def _standing(instance: GpuInstance, holders: tuple[Holder, ...]) -> Standing:
    computes = instance.compute_instances
    return Standing(
        Slice(instance.start, instance.profile),
        tuple(compute.profile_id for compute in computes),
        holders,
        computes[0].uuid if computes else None,
        tuple(compute.slices for compute in computes),
    )
