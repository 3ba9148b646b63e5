# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vGPUs a host has and could have, read from sysfs, and from NVML and nvidia-smi as far as these are there. Changes nothing.

Which framework a GPU has is seen at run time and never looked up: it has mediated devices when it, or a virtual function of it, is in
``class/mdev_bus``, and the vendor's own when its functions have a directory ``nvidia``.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import host, vgpu_types
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, find_profile
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import pci_address
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import Board
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import DEADLINE, Sysfs
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu import MDEV, UNNAMED, VENDOR, Gpu, Offer, Place, Vgpu
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_room import Ground, Limit
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_smi import Smi
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_users import Users
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import params_of

DEVICES = ("bus", "pci", "devices")
MDEVS = ("bus", "mdev", "devices")
PARENTS = ("class", "mdev_bus")
TYPES = "mdev_supported_types"
NAMES = "vgpu-types.json"
NONE = ("", "0", None)  # of current_vgpu_type
_NVIDIA, _DISPLAY = 0x10DE, 0x03
_MOST = re.compile(r"\bmax_instance=(\d+)")
_CREATABLE = re.compile(r"^\s*(\d+)\s*:\s*(\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """Where things are; ``token`` of the lease. ``limits``: what NVIDIA's lists say of the types that are wished, by short name.

    ``cleared``: in check mode GPUs count as idle and not in MIG mode.
    """

    state_dir: Path
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    machine_id: Path = Path("/etc/machine-id")
    libvirt_dir: Path = Path("/etc/libvirt/qemu")
    sriov_manage: str = "/usr/lib/nvidia/sriov-manage"
    nvidia_smi: str = "nvidia-smi"
    deadline: float = DEADLINE
    limits: t.Mapping[str, Limit] | None = None
    token: str | None = None
    check: bool = False
    cleared: bool = False


@dataclass(frozen=True)
class Told:
    """What NVML says of a GPU: names and limits of types, MIG, GPU instances; nothing where there is no NVML."""

    names: Mapping[str, str]
    types: Mapping[str, Limit]
    backing: Mapping[str, int]
    mig: bool | None = None
    grounds: tuple[Ground, ...] | None = None
    geometry: Geometry | None = None


_SILENT = Told({}, {}, {})


class Look:
    """One look after another at one host."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sysfs = Sysfs(str(options.sys_root), options.deadline)
        self.smi = Smi(options.nvidia_smi, options.sriov_manage)
        self._told: dict[str, Told] = {}
        self._kept: dict[str, str] | None = None

    # Which GPUs

    def gpus(self) -> list[str]:
        """PCI addresses of the host's NVIDIA GPUs, without virtual functions, in order."""
        return [name for name in self.sysfs.names(*DEVICES) if self._is_gpu(name)]

    def _is_gpu(self, name: str) -> bool:
        if self.sysfs.number(*DEVICES, name, "vendor") != _NVIDIA or self.sysfs.link(*DEVICES, name, "physfn") is not None:
            return False
        return (self.sysfs.number(*DEVICES, name, "class") or 0) >> 16 == _DISPLAY

    def others(self) -> list[str]:
        """Other PCI devices whose virtual functions are vGPUs in the vendor's framework."""
        known = set(self.gpus())
        return [name for name in self.sysfs.names(*DEVICES) if name not in known and any(map(self._is_own, self.functions(name)))]

    def _is_own(self, function: str) -> bool:
        return self.sysfs.has(*DEVICES, function, "nvidia", "current_vgpu_type")

    def parents(self) -> list[str]:
        """Other parents of mediated devices: the kernel's samples, graphics of other vendors."""
        known = set(self.gpus())
        return [name for name in self.sysfs.names(*PARENTS) if name not in known and self._physical(name) not in known]

    def _physical(self, name: str) -> str:
        return host.physical_card(str(self.options.sys_root), name)

    def boards(self) -> list[Board]:
        """The GPUs as a file of vgpu-device-manager names them: by index in the order of PCI addresses, or by identity."""
        uuids = self.uuids()

        def identity(name: str, first: str, second: str) -> int:
            device, vendor = (self.sysfs.number(*DEVICES, name, file) or 0 for file in (first, second))
            return device << 16 | vendor

        return [
            Board(
                number,
                uuids.get(name) or "",
                name,
                identity(name, "device", "vendor"),
                identity(name, "subsystem_device", "subsystem_vendor"),
                True,
            )
            for number, name in enumerate(self.gpus())
        ]

    def uuids(self) -> dict[str, str]:
        """UUID of every GPU that the driver holds, by PCI address."""
        try:
            found = host.kernel_gpus(str(self.options.proc_root))
        except (OSError, ValueError):
            return {}
        return {address: uuid for address, uuid in found.items() if uuid}

    def find(self, name: str) -> str:
        """The GPU, or parent of mediated devices, that a person names. FleetError names those that are there."""
        gpus, uuids = [*self.gpus(), *self.others()], self.uuids()
        address = pci_address(name)
        by_uuid = {uuid.lower(): each for each, uuid in uuids.items()}
        found = address if address in gpus else by_uuid.get(name.lower())
        if found is None and name in self.sysfs.names(*PARENTS) and self._physical(name) not in gpus:
            found = name
        if found is None and address is not None and self._physical(address) in gpus:
            physical = self._physical(address)
            raise FleetError(f"{address} is a virtual function", field="gpus", hint=f"name its GPU, {physical}")
        if found is None:
            there = [f"{each} ({uuids[each]})" if each in uuids else each for each in gpus]
            hint = f"here are {', '.join([*there, *self.parents()]) or 'none'}"
            raise FleetError(f"there is no GPU and no parent of mediated devices {name}", field="gpus", hint=hint)
        return found

    # One GPU

    def users(self) -> Users:
        """Who has what, now."""
        return Users(self.sysfs, self.options.proc_root, self.options.libvirt_dir)

    def observe(self, name: str, users: Users | None = None, scheduler: bool = False) -> Gpu:
        """A GPU, or a parent of mediated devices, as it is. ``scheduler``: whether to ask for the policy."""
        users = users or self.users()
        if name in self.sysfs.names(*PARENTS) and name not in self.gpus():
            return self._parent(name, users)
        told = self._ask(name)
        total = self.sysfs.number(*DEVICES, name, "sriov_totalvfs") or 0
        vfs = (self.sysfs.number(*DEVICES, name, "sriov_numvfs") or 0) if total else 0
        functions = self.functions(name)
        bases = set(self.sysfs.names(*PARENTS))
        mediated = [each for each in (name, *functions) if each in bases]
        own = [each for each in functions if self._is_own(each)]
        gpu = Gpu(
            name,
            self.uuids().get(name),
            MDEV if mediated else VENDOR if own else None,
            total,
            vfs,
            types=told.types,
            complete=bool(told.types),
            mig=told.mig,
            grounds=told.grounds,
            backing=told.backing or None,
            passed=tuple(words for each in functions for words in [self._passed(each, users)] if words),
            users=users.of_gpu(name) if total else (),
            machine=self.machine(),
        )
        if mediated:
            gpu = self._mediated(gpu, [(each, each == name) for each in mediated], users, told)
        elif own:
            gpu = self._vendor(gpu, own, users, told)
        elif total and not vfs:
            gpu = replace(gpu, places=tuple(Place(each, many=False) for each in self._to_come(name, total)))
        if gpu.places:
            gpu = replace(gpu, mixed=self.smi.mixed(name), scheduler=self.smi.scheduler(name) if scheduler else None)
        return gpu

    def functions(self, name: str) -> list[str]:
        """Its virtual functions by number: as names, virtfn10 comes before virtfn2."""
        links = [each for each in self.sysfs.names(*DEVICES, name) if each.startswith("virtfn")]
        links.sort(key=lambda each: int(each[len("virtfn") :]))
        return [function for each in links for function in [self.sysfs.link(*DEVICES, name, each)] if function]

    def _passed(self, function: str, users: Users) -> str | None:
        """A function that is not a vGPU's and is in other hands."""
        if self.sysfs.link(*DEVICES, function, "driver") != "vfio-pci":
            return None
        who = users.of_vgpu([*DEVICES, function], function)
        return f"{function} is bound to vfio-pci" + (f" and in use by {', '.join(who)}" if who else "")

    def _to_come(self, name: str, total: int) -> list[str]:
        """Addresses of the functions that there will be (PCI Express SR-IOV: routing ids at an offset and with a stride)."""
        offset = self.sysfs.number(*DEVICES, name, "sriov_offset")
        stride = self.sysfs.number(*DEVICES, name, "sriov_stride")
        if offset is None or stride is None:
            return [f"virtual function {number} of {name}" for number in range(total)]
        domain, bus, rest = name.split(":")
        device, function = rest.split(".")
        base = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        numbers = [base + offset + number * stride for number in range(total)]
        return [f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}" for number in numbers]

    # Mediated devices

    def _parent(self, name: str, users: Users) -> Gpu:
        gpu = Gpu(name, None, MDEV, machine=self.machine(), complete=True)
        return self._mediated(gpu, [(name, True)], users, _SILENT)

    def _mediated(self, gpu: Gpu, parents: Sequence[tuple[str, bool]], users: Users, told: Told) -> Gpu:
        places, types, aliases = [], dict(told.types), dict(gpu.aliases)
        shorts: dict[str, dict[str, str]] = {}
        for name, many in parents:
            offers: dict[str, Offer] = {}
            for ident in self.sysfs.names(*PARENTS, name, TYPES):
                where = (*PARENTS, name, TYPES, ident)
                title = self.sysfs.text(*where, "name") or ident
                short = vgpu_types.short(title) if vgpu_types.parse(title) else ident
                if short != title:
                    aliases[title.lower()] = short
                offers[short] = Offer(ident, self.sysfs.number(*where, "available_instances") or 0)
                shorts.setdefault(name, {})[ident] = short
                most = _MOST.search(self.sysfs.text(*where, "description") or "")
                types[short] = Limit(int(most.group(1)) if most else types.get(short, Limit(None)).most)
            places.append(Place(name, many, offers))
        vgpus = self._mdevs(shorts, users)
        return replace(gpu, places=tuple(places), vgpus=tuple(vgpus), types=types, aliases=aliases, complete=True)

    def _mdevs(self, parents: Mapping[str, Mapping[str, str]], users: Users) -> list[Vgpu]:
        """Mediated devices of these parents, whose types are known by directory."""
        found = []
        for parent, kind, uuid in self.mdevs(parents):
            params = params_of(self.sysfs.text(*MDEVS, uuid, "nvidia", "vgpu_params"))
            found.append(Vgpu(parent, kind, uuid.lower(), params, users.of_vgpu([*MDEVS, uuid], uuid)))
        return found

    def mdevs(self, parents: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
        """(parent, type, UUID) of each mediated device of these parents. ``parents``: to the names of their types, by directory."""
        places = {self.sysfs.path(*PARENTS, name).resolve(): name for name in parents}
        found = []
        for uuid in self.sysfs.names(*MDEVS):
            parent = places.get(self.sysfs.path(*MDEVS, uuid).resolve().parent)
            if parent is not None:
                ident = self.sysfs.link(*MDEVS, uuid, "mdev_type") or ""
                found.append((parent, parents[parent].get(ident, ident), uuid))
        return found

    # The vendor's framework

    def _vendor(self, gpu: Gpu, functions: Sequence[str], users: Users, told: Told) -> Gpu:
        listed = {name: self.creatable(name) for name in functions}
        names = {**self.kept_names(), **told.names, **{ident: title for each in listed.values() for ident, title in each.items()}}
        places, vgpus, types = [], [], dict(told.types)
        for name, offers in listed.items():
            places.append(Place(name, False, {vgpu_types.short(title): Offer(ident, 1) for ident, title in offers.items()}))
            for title in offers.values():
                types.setdefault(vgpu_types.short(title), Limit(None))
            ident = self.current(name)
            if ident not in NONE:
                short = vgpu_types.short(names[ident]) if ident in names else f"{UNNAMED}{ident}"
                params = params_of(self.sysfs.text(*DEVICES, name, "nvidia", "vgpu_params"))
                vgpus.append(Vgpu(name, short, None, params, users.of_vgpu([*DEVICES, name], name)))
        return replace(gpu, places=tuple(places), vgpus=tuple(vgpus), types=types)

    def creatable(self, function: str) -> dict[str, str]:
        """What a function lists now: number -> name."""
        return dict(_CREATABLE.findall(self.sysfs.text(*DEVICES, function, "nvidia", "creatable_vgpu_types") or ""))

    def current(self, function: str) -> str:
        """The number of the type that a function has; ``0`` or nothing for none."""
        return self.sysfs.text(*DEVICES, function, "nvidia", "current_vgpu_type") or ""

    # Names of numbers, which the lists do not show any more when a GPU is full

    def kept_names(self) -> dict[str, str]:
        """What this host noted of the numbers of types, by this driver and in this boot."""
        if self._kept is None:
            try:
                data = read_json(self.options.state_dir / NAMES) or {}
            except FleetError:
                data = {}
            names = data.get("names") if data.get("driver") == self._driver() else None
            self._kept = {str(ident): str(name) for ident, name in names.items()} if isinstance(names, dict) else {}
        return dict(self._kept)

    def keep_names(self, gpus: Sequence[Gpu]) -> None:
        """Note the numbers of types that these GPUs show now, before they hide them."""
        known = self.kept_names()
        seen = {offer.id: name for gpu in gpus if gpu.framework == VENDOR for place in gpu.places for name, offer in place.offers.items()}
        if not seen.items() <= known.items():
            self._kept = {**known, **seen}
            write_json(self.options.state_dir / NAMES, {"format": 1, "driver": self._driver(), "names": self._kept})

    def _driver(self) -> str:
        version = self.sysfs.text("module", "nvidia", "version") or ""
        return f"{leases.boot_id()} {version}".strip()

    def machine(self) -> str:
        """The host's identity, from machine-id(5); its name where it has none."""
        try:
            return self.options.machine_id.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return "no machine id"

    # NVML

    def forget(self) -> None:
        """MIG or the driver may have changed."""
        self._told.clear()

    def _ask(self, name: str) -> Told:
        if name not in self._told:
            self._told[name] = _asked(name)
        return self._told[name]

    def assume(self, gpu: Gpu, instances: Sequence[Slice]) -> Gpu:
        """The GPU as it is once module mig made these GPU instances."""
        geometry = self._ask(gpu.name).geometry
        if gpu.grounds is not None and sorted(ground.where for ground in gpu.grounds) == sorted(instances):
            return gpu
        if geometry is None:
            return replace(gpu, mig=True, grounds=None)
        grounds = []
        for one in instances:
            profile = find_profile(geometry, one.profile)
            grounds.append(Ground(Slice(one.start, profile.name), profile.id))
        return replace(gpu, mig=True, grounds=tuple(grounds))


def _asked(name: str) -> Told:
    """One session, closed at once: sriov-manage needs a GPU that no client of NVML has open."""
    try:
        with Nvml() as nvml:
            handle = nvml.find(name)
            mode = nvml.mig_mode(handle)
            on = mode is not None and mode.current
            kinds = nvml.supported_vgpus(handle)
            grounds = tuple(Ground(Slice(one.start, one.profile), one.profile_id) for one in nvml.gpu_instances(handle)) if on else None
            geometry = nvml.geometry(handle) if mode is not None else None
    except FleetError:
        return _SILENT
    return Told(
        {str(kind.id): kind.name for kind in kinds},
        {vgpu_types.short(kind.name): Limit(kind.most) for kind in kinds},
        {vgpu_types.short(kind.name): kind.profile_id for kind in kinds if kind.profile_id is not None},
        False if mode is None else on,
        grounds,
        geometry,
    )
