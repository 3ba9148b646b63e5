# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices a wish for virtual machines means, how they are, and who uses them."""

from __future__ import annotations

import re
import shutil
import time
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import host, mig_look, pci, plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.device_users import users
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import NvmlError
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough import Ground, Seen, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_papers import RULES
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import Device
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import DEADLINE, Sysfs

_PROGRAM_SECONDS = 60.0
_STATES = ("vfio", "host")
# udev looks into a device that has just appeared, and is gone again after a moment.
_UDEV = re.compile(r"^process \d+ \((\(udev-worker\)|systemd-udevd?)")
_UDEV_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Options:
    """What a run may do and where things are. ``token``: of the lease that the caller holds. ``modprobe``, ``systemctl``: name or path.

    ``companions``: the other devices of a group come along. ``persist``: also after a boot. ``deadline`` in seconds, for each write.
    ``drained``: replicas that the caller stops before; in check mode, where they still run, they count as stopped. ``cleared``: in check
    mode MIG instances, virtual functions and vGPUs count as gone. ``driver_services``:
    units that hold NVIDIA's driver, stopped while it gives a GPU away. ``engine``: False during a boot, when none runs.
    """

    state_dir: Path
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    udev_rules: Path = RULES
    docker_socket: str = "/var/run/docker.sock"
    vfio_driver: str = "vfio-pci"
    companions: bool = False
    persist: bool = True
    deadline: float = DEADLINE
    modprobe: str = "modprobe"
    systemctl: str = "systemctl"
    driver_services: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    cleared: bool = False
    token: str | None = None
    check: bool = False
    engine: bool = True


class Eyes:
    """Looks at a host's devices; nothing is changed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sysfs = Sysfs(str(options.sys_root), options.deadline)
        self.proc = str(options.proc_root)

    # Which devices

    def wishes(self, devices: Sequence[Mapping[str, t.Any]], known: Mapping[str, Mapping[str, t.Any]]) -> list[Wish]:
        """One wish for each device, those of the groups of others included where they are to come along.

        ``devices``: ``[{device, state}]``; ``known``: entries of the record. FleetError for a device that is not there or is named twice.
        """
        identities = {address: entry["identity"] for address, entry in known.items()}
        found: dict[str, Wish] = {}
        for entry in devices:
            name, state = str(entry["device"]), str(entry["state"])
            if state not in _STATES:
                raise FleetError(f"expected vfio or host, found {state}", field=f"devices[{name}].state")
            address = pci.where(self.sysfs, name, identities, self.proc)
            if address in found:
                raise FleetError(f"{address} is named twice; nothing was changed", field="devices", hint="name each device once")
            self._refuse_another(name, address, identities)
            found[address] = Wish(address, state == "vfio")
        if self.options.companions:
            for wish in list(found.values()):
                for mate in pci.glance(self.sysfs, wish.address, self.proc).mates:
                    if self._comes_along(mate, wish, known):
                        found.setdefault(mate, Wish(mate, wish.vfio, wish.address))
        return list(found.values())

    def _refuse_another(self, name: str, address: str, identities: Mapping[str, t.Any]) -> None:
        """Who says a UUID means that card, and not another that has its slot now."""
        if name.strip().lower().startswith("gpu-") and address in identities:
            other = pci.differs(identities[address], pci.glance(self.sysfs, address, self.proc))
            if other is not None:
                raise FleetError(f"GPU {name} was at {address}, and another card is there now: {other}; nothing was changed")

    def _comes_along(self, mate: str, wish: Wish, known: Mapping[str, t.Any]) -> bool:
        """Going back, only those come along that were given away with the others."""
        device = pci.glance(self.sysfs, mate, self.proc)
        return not device.bridge and not (device.board and device.driver is None) and (wish.vfio or mate in known)

    # How they are

    def device(self, address: str) -> Device:
        """The device as it is at this moment."""
        return pci.look(self.sysfs, address, self.proc)

    def mates(self, wishes: Sequence[Wish]) -> dict[str, Device]:
        """The other devices of the groups of these."""
        groups = [pci.glance(self.sysfs, wish.address, self.proc) for wish in wishes]
        return {mate: pci.glance(self.sysfs, mate, self.proc) for device in groups for mate in device.mates}

    def ground(self) -> Ground:
        """What of the host matters."""
        drivers = frozenset(self.sysfs.names(pci.DRIVERS))
        driver = self.options.vfio_driver
        return Ground(
            iommu=bool(host.read_iommu(str(self.options.sys_root))["active"]),
            drivers=drivers,
            vfio_driver=driver,
            loadable=driver in drivers or self._loadable(driver),
            switches=[one.address for one in self.all() if one.switch],
        )

    def all(self) -> list[Device]:
        """Every device of the host, without overrides and serial numbers."""
        return [pci.glance(self.sysfs, address, self.proc, config=False) for address in pci.addresses(self.sysfs)]

    def _loadable(self, module: str) -> bool:
        """Whether the kernel has this module; a dry run loads nothing."""
        if shutil.which(self.options.modprobe) is None:
            return False
        return run([self.options.modprobe, "--dry-run", "--quiet", module], _PROGRAM_SECONDS).status == 0

    # Who uses them

    def seen(self, wishes: Sequence[Wish], devices: Mapping[str, Device], running: Sequence[str] = ()) -> dict[str, Seen]:
        """Every wished device with whoever is on it. ``devices``: as :meth:`device` has them.

        ``running``: services that are stopped before they could be in the way. FleetError when somebody could not be seen: an unknown
        holder counts as one.
        """
        found = {}
        for wish in wishes:
            device = devices[wish.address]
            # A device that is as wished is left alone, whoever is on it.
            found[wish.address] = Seen(device) if device.with_vfio is wish.vfio else Seen(device, self.users(device))
        going = {wish.address for wish in wishes if wish.vfio}
        gpus = [one.device for one in found.values() if one.device.address in going and with_nvidia(one.device)]
        if gpus:
            found.update(self._gpus(gpus, found, running))
        return found

    def users(self, device: Device) -> list[str]:
        """Who uses a device, as far as files say; of NVIDIA's GPUs NVML knows more."""
        if with_nvidia(device):
            device = replace(device, minor=None)  # whoever has that node open is found with NVML's help
        deadline = time.monotonic() + _UDEV_SECONDS
        while True:
            found = users(self.sysfs, self.proc, device)
            if not found or not all(_UDEV.search(words) for words in found) or time.monotonic() >= deadline:
                return found
            time.sleep(_POLL_SECONDS)

    def _gpus(self, gpus: Sequence[Device], found: Mapping[str, Seen], running: Sequence[str]) -> dict[str, Seen]:
        """GPUs that NVIDIA's driver has. The session is closed before anything is done: it holds them itself."""
        options = self.options
        look_options = mig_look.Options(
            options.state_dir,
            options.proc_root,
            check=options.check,
            sys_root=options.sys_root,
            docker_socket=options.docker_socket,
            drained=options.drained,
        )
        planned = self._planned() if options.engine else {}
        try:
            return self._asked(gpus, found, running, look_options, planned)
        except NvmlError as error:
            named = ", ".join(device.address for device in gpus)
            raise FleetError(f"cannot see who uses {named} ({error}); nothing was changed") from error

    def _asked(
        self,
        gpus: Sequence[Device],
        found: Mapping[str, Seen],
        running: Sequence[str],
        look_options: mig_look.Options,
        planned: Mapping[str, Sequence[str]],
    ) -> dict[str, Seen]:
        more = {}
        with Nvml() as nvml:
            look = mig_look.Look(nvml, look_options)
            scene = replace(look.scene(running, engine=self.options.engine), drm=None)
            for device in gpus:
                uuid, busy, slices = look.users(device.address, scene)
                handle = nvml.find(device.address)
                mode = nvml.mig_mode(handle)
                more[device.address] = Seen(
                    device,
                    [*busy, *(one for one in found[device.address].busy if one not in busy)],
                    slices,
                    planned.get(uuid, ()),
                    bool(nvml.persistence(handle)),
                    mode is not None and mode.current,
                )
        return more

    def _planned(self) -> dict[str, list[str]]:
        """Replicas of the plan that this host carries, by the UUID of their GPU."""
        record = plan_record.read(self.options.state_dir)
        found: dict[str, list[str]] = {}
        for line in [*record["services"], *record["standing"]] if record is not None else ():
            name = plan_record.name_of(line)
            if self.options.check and name in self.options.drained:
                continue
            for uuid in plan_record.device_of(line)[0]:
                if f"service {name}" not in found.setdefault(uuid, []):
                    found[uuid].append(f"service {name}")
        return found


def with_nvidia(device: Device) -> bool:
    """Whether NVML can be asked about this device; its processes are those that no file of sysfs shows."""
    return device.gpu and device.driver == "nvidia"
