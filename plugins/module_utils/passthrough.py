# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices for virtual machines: what was seen and what is wished → the smallest list of steps, or the reason why there is none. Pure."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import Device, is_vfio

_PARTS = ("vGPU ", "virtual function ", "mdev ")  # how users that are parts of the device begin
_UNTOUCHED = "nothing was changed"
_MOST_NAMES = 6  # of what is in the way, in one line


@dataclass(frozen=True)
class Wish:
    """One device shall be with ``vfio-pci`` (``vfio``) or with its host driver. ``because``: the device whose group it shares."""

    address: str
    vfio: bool
    because: str | None = None


@dataclass(frozen=True)
class Seen:
    """A device and who is on it, in words. ``slices``: MIG instances; ``services``: replicas that the host's plan has there.

    ``persistence``: NVIDIA's driver keeps it open for nobody. ``mig``: its MIG mode is on.
    """

    device: Device
    busy: Sequence[str] = ()
    slices: Sequence[str] = ()
    services: Sequence[str] = ()
    persistence: bool = False
    mig: bool = False


@dataclass(frozen=True)
class Ground:
    """What of the host matters: whether its IOMMU works, which drivers are registered, and whether the wished one is or can be loaded."""

    iommu: bool
    drivers: frozenset[str]
    vfio_driver: str = "vfio-pci"
    loadable: bool = True
    switches: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """One thing to do. ``value``: the driver or module that it is about."""

    address: str
    action: str
    value: str
    text: str


@dataclass(frozen=True)
class Plan:
    """The steps of one device, in order. ``entry``: what is known of its life with the host, from the record or an unfinished run."""

    wish: Wish
    seen: Seen
    entry: Mapping[str, t.Any]
    steps: Sequence[Step] = field(default_factory=tuple)

    @property
    def address(self) -> str:
        """Of the device."""
        return self.wish.address


# Refusals


def refuse_unfit(devices: Mapping[str, Device], wishes: Sequence[Wish], ground: Ground, mates: Mapping[str, Device]) -> None:
    """FleetError for the first wish that cannot be carried out, whoever uses the device. ``mates``: the other devices of the groups."""
    wished = {wish.address: wish.vfio for wish in wishes}
    for wish in wishes:
        if wish.vfio:
            _refuse_unfit(devices[wish.address], ground)
    for wish in wishes:
        if wish.vfio:
            _refuse_group(devices[wish.address], wished, mates)


def without_parts(seen: Seen) -> Seen:
    """The device as it is once its MIG instances and vGPUs are gone."""
    return replace(seen, slices=[], mig=False, busy=[words for words in seen.busy if not words.startswith(_PARTS)])


def refuse_busy(seens: Mapping[str, Seen], wishes: Sequence[Wish]) -> None:
    """FleetError for the first device that has to move and is in use."""
    for wish in wishes:
        if wish.vfio is not seens[wish.address].device.with_vfio:
            _refuse_busy(seens[wish.address], wish)


def _refuse_unfit(device: Device, ground: Ground) -> None:
    """What no virtual machine can be given, whoever uses it."""
    address = device.address
    if device.bridge:
        raise FleetError(f"{address} is a bridge, which no virtual machine can be given; {_UNTOUCHED}", hint="name the devices behind it")
    if device.vendor_vf:
        raise FleetError(
            f"{address} is a virtual function of NVIDIA's own framework, and vfio-pci cannot have it; {_UNTOUCHED}",
            hint="it stays with its driver: give it a vGPU type by module vgpu, and the guest a hostdev with managed='no'",
        )
    if device.vfs:
        raise FleetError(
            f"{address} has {len(device.vfs)} virtual functions ({_few(device.vfs)}), which go when its driver does; {_UNTOUCHED}",
            hint="turn them off first: sriov_numvfs 0, for NVIDIA's driver sriov-manage -d",
        )
    if not ground.iommu:
        raise FleetError(
            f"the IOMMU of this host does not work, so {address} cannot be given to a virtual machine; {_UNTOUCHED}",
            hint="turn on VT-d or AMD-Vi in the firmware and the kernel (role passthrough_host): /sys/class/iommu has an entry then",
        )
    if device.group is None:
        raise FleetError(f"{address} is in no IOMMU group, so no virtual machine can be given it; {_UNTOUCHED}")
    if not device.with_vfio and not ground.loadable:
        raise FleetError(
            f"this host's kernel has no module {ground.vfio_driver}; {_UNTOUCHED}",
            hint="it comes with the distribution's full kernel package (Debian's cloud kernel is without)",
        )


def _refuse_busy(seen: Seen, wish: Wish) -> None:
    device = seen.device
    name = f"{device.address}{_uuid(device)}"
    if wish.because is not None:
        name += f", which shares the IOMMU group of {wish.because},"
    if seen.slices:
        hint = "take them away first: module mig with mig: false for this GPU"
        raise FleetError(f"{name} has MIG instances ({_few(seen.slices)}); {_UNTOUCHED}", hint=hint)
    if seen.services:
        hint = "move them by a plan without this GPU first (drain it, plan, apply)"
        raise FleetError(f"{name} is where the plan has {_few(seen.services)}; {_UNTOUCHED}", hint=hint)
    if seen.busy:
        hint = "shut the virtual machine down first" if device.with_vfio else "stop them first"
        raise FleetError(f"{name} is in use: {_few(seen.busy)}; {_UNTOUCHED}", hint=hint)


def _refuse_group(device: Device, wished: Mapping[str, bool], mates: Mapping[str, Device]) -> None:
    """A group works only when every endpoint of it is with VFIO or with nobody (bridges do not count)."""
    others = [mates[one] for one in device.mates if one in mates and not mates[one].bridge]
    held = [one for one in others if wished.get(one.address) is not True and one.driver is not None and not one.with_vfio]
    if held:
        named = _few([f"{one.address} ({one.driver})" for one in held])
        raise FleetError(
            f"{device.address} shares IOMMU group {device.group} with {named}, so no virtual machine could be given it; {_UNTOUCHED}",
            hint="companions: true takes them along",
        )
    back = [one.address for one in others if wished.get(one.address) is False]
    if back:
        raise FleetError(f"{device.address} and {back[0]} share IOMMU group {device.group} and are wished apart; {_UNTOUCHED}")


def notes(plans: Sequence[Plan], ground: Ground, mates: Mapping[str, Device]) -> list[str]:
    """What is worth knowing, although it stands in no one's way."""
    found = []
    moving = [plan for plan in plans if plan.steps]
    gone = {plan.address for plan in plans if not plan.wish.vfio}
    for plan in moving:
        device = plan.seen.device
        if plan.wish.vfio and plan.seen.mig:
            found.append(f"{device.address}: its MIG mode is on, and on Ampere goes along to the virtual machine")
        left = [one for one in device.mates if one not in gone and one in mates and mates[one].with_vfio]
        if not plan.wish.vfio and left:
            found.append(f"{device.address}: {_few(left)} of its IOMMU group stay with VFIO, and no virtual machine can be given them now")
        if plan.wish.vfio and not device.resets:
            found.append(f"{device.address}: the kernel knows no way to reset it, so a virtual machine gets it as the last one left it")
    switched = [plan.address for plan in moving if plan.seen.device.gpu]
    if switched and ground.switches:
        found.append(
            f"this host has NVSwitches ({_few(ground.switches)}): which GPUs a virtual machine may have together, and who runs the fabric"
            " manager, is decided by its partitions; this is not checked"
        )
    return found


# Steps


def plan(seen: Seen, wish: Wish, entry: Mapping[str, t.Any], ground: Ground, owed: bool = False) -> Plan:
    """The steps for one device from wherever it is, an earlier run that died in the middle included.

    ``owed``: such a run turned persistence mode off.
    """
    steps = list(_to_vfio(seen, ground) if wish.vfio else _to_host(seen, entry, owed))
    return Plan(wish, seen, entry, steps)


def _to_vfio(seen: Seen, ground: Ground) -> t.Iterator[Step]:
    device = seen.device
    if device.with_vfio:
        if not device.override:  # a run that died took it away, or somebody bound the device by its ids
            yield Step(device.address, "override", str(device.driver), f"{device.address}: set driver_override to {device.driver}")
        return
    if seen.persistence:
        yield Step(device.address, "persistence", "off", f"{device.address}: turn persistence mode off")
    if device.override != ground.vfio_driver:
        yield Step(device.address, "override", ground.vfio_driver, f"{device.address}: set driver_override to {ground.vfio_driver}")
    if device.driver is not None:
        yield unbind_step(device)
    yield Step(device.address, "probe", ground.vfio_driver, f"{device.address}: probe, so that {ground.vfio_driver} takes it")


def _to_host(seen: Seen, entry: Mapping[str, t.Any], owed: bool) -> t.Iterator[Step]:
    device, driver = seen.device, entry.get("host_driver")
    if is_vfio(device.override):
        yield Step(device.address, "override", "", f"{device.address}: clear driver_override")
    if device.with_vfio:
        yield unbind_step(device)
    moves = device.with_vfio or (device.driver is None and (driver is not None or is_vfio(device.override)))
    if moves:
        who = f"so that {driver} takes it" if driver else "so that a driver takes it, if it has one"
        yield Step(device.address, "probe", driver or "", f"{device.address}: probe, {who}")
    if entry.get("persistence") if moves else owed:
        yield Step(device.address, "persistence", "on", f"{device.address}: turn persistence mode on")


def unbind_step(device: Device) -> Step:
    """Take it from the driver that has it."""
    return Step(device.address, "unbind", device.driver or "", f"{device.address}: unbind from {device.driver}")


def load_step(module: str) -> Step:
    """A module that a step of a device needs."""
    return Step("", "load", module, f"load module {module}")


def loads(plans: Sequence[Plan], ground: Ground) -> list[Step]:
    """Modules that are needed and not there, each once."""
    wanted: dict[str, None] = {}
    for one in plans:
        probes = any(step.action == "probe" for step in one.steps)
        if probes and one.wish.vfio and ground.vfio_driver not in ground.drivers:
            wanted[ground.vfio_driver] = None
        driver, module = one.entry.get("host_driver"), one.entry.get("host_module")
        if probes and not one.wish.vfio and module and driver not in ground.drivers:
            wanted[str(module)] = None
    return [load_step(module) for module in wanted]


# Words


def line(address: str, uuid: str | None, driver: str | None, entry: Mapping[str, t.Any] | None) -> str:
    """One device for a diff: its driver, and whether a boot gives it away again. ``entry``: of the record, None when it is not there."""
    boots = "" if entry is None else ", kept over a boot" if entry.get("persist", True) else ", until the next boot"
    return f"{address}{f' ({uuid})' if uuid else ''}: {driver or 'no driver'}{boots}"


def _uuid(device: Device) -> str:
    return f" ({device.uuid})" if device.uuid else ""


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
