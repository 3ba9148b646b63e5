# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of a host in a libvirt domain: look, wish, prove, define, read back. libvirt is spoken to by its own program, ``virsh``."""

from __future__ import annotations

import os
import re
import tempfile
import typing as t
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import guest_sizing as sizing
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.domain_xml import MDEV, PCI, Domain, Hostdev, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_papers import remembered
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import Device, glance, where
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs

_MDEV = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MDEVS = "bus/mdev/devices"


@dataclass(frozen=True)
class Options:
    """See the options of module ``guest_devices``."""

    domain: str | None = None
    keep: Sequence[str] = ()
    devices: Sequence[str] = ()
    numa: bool = True
    hugepages: str = ""
    mmio: str = "auto"
    connection: str = "qemu:///system"
    virsh: str = "virsh"
    state_dir: str = "/var/lib/gpuops-fleet"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    deadline: float = 60.0
    lease: str | None = None


@dataclass(frozen=True)
class Found:
    """A device of the domain, and the PCI device that it is or is a part of, where there is one."""

    device: Hostdev
    card: Device | None


class Virsh:
    """libvirt's program, one call for each question."""

    def __init__(self, options: Options) -> None:
        self._start = [options.virsh, "--connect", options.connection, "--quiet"]
        self._deadline = options.deadline

    def ask(self, *words: str) -> str:
        """What it prints. FleetError with libvirt's own word."""
        done = run([*self._start, *words], self._deadline, variables={"LC_ALL": "C"})
        if done.status != 0:
            lines = [line.strip() for line in done.complaint.splitlines() if line.strip()]
            told = [line[len("error: ") :] for line in lines if line.startswith("error: ")]
            raise FleetError(f"libvirt: {': '.join(told) or done.words}")
        return done.output

    def domains(self) -> list[str]:
        """Names of all, running or not."""
        return sorted(line.strip() for line in self.ask("list", "--all", "--name").splitlines() if line.strip())

    def definition(self, name: str) -> Domain:
        """As it will start next time; with what libvirt hides otherwise, because all of it is written back."""
        return Domain(self.ask("dumpxml", "--inactive", "--security-info", name))

    def running(self, name: str) -> Domain | None:
        """As it runs; None when it does not."""
        return Domain(self.ask("dumpxml", name)) if self.ask("domstate", name).strip() not in ("shut off", "crashed") else None


def apply(options: Options, check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError before anything is changed; libvirt takes a definition as a whole or not at all."""
    virsh = Virsh(options)
    names = virsh.domains()
    if options.domain is None:
        return _clear(options, virsh, [name for name in names if name not in options.keep], check)
    if options.domain not in names:
        raise FleetError(f"there is no domain {options.domain}", field="domain", hint=f"this host has {', '.join(names) or 'none'}")
    sysfs, domain = Sysfs(options.sys_root, options.deadline), virsh.definition(options.domain)
    found, warnings = _resolve(options, sysfs)
    devices = [each.device for each in found]
    _refuse_shared(virsh, names, options.domain, devices)
    wish = _wish(options, sysfs, domain, found, warnings)
    changed, before, after = _merge(options, virsh, domain, wish, check)
    return {
        "changed": changed,
        "devices": [{"kind": each.kind, "source": each.source, "managed": each.managed} for each in devices],
        "node": wish.node,
        "mmio_mib": wish.mmio_mib,
        "pending": _pending(virsh, [domain]),
        "warnings": warnings,
        "diff": {"before": _lines(before), "after": _lines(after), "before_header": options.domain, "after_header": options.domain},
    }


def _clear(options: Options, virsh: Virsh, names: Sequence[str], check: bool) -> dict[str, t.Any]:
    """Take from these domains what this module gave them."""
    changed, before, after, cleared = [], [], [], []
    for name in names:
        domain = virsh.definition(name)
        one, was, now = _merge(options, virsh, domain, Wish(), check)
        if one:
            changed.append(name)
            cleared.append(domain)
            before += [f"{name}: {line}" for line in was]
            after += [f"{name}: {line}" for line in now]
    return {
        "changed": bool(changed),
        "devices": [],
        "node": None,
        "mmio_mib": None,
        "pending": _pending(virsh, cleared),
        "warnings": [],
        "diff": {"before": _lines(before), "after": _lines(after), "before_header": "other domains", "after_header": "other domains"},
    }


def _merge(options: Options, virsh: Virsh, domain: Domain, wish: Wish, check: bool) -> tuple[bool, list[str], list[str]]:
    """(whether that changes it, its summary before, after); ``domain`` is then as it shall be."""
    before, plain = domain.summary(), domain.text()
    domain.merge(wish)
    after, wanted = domain.summary(), domain.text()
    if plain != wanted and not check:
        leases.check(Path(options.state_dir), options.lease)
        _define(virsh, wanted)
        now = virsh.definition(domain.name)
        kept, there = now.text(), now.summary()
        now.merge(wish)
        if now.text() != kept:
            missing = sorted(set(after) - set(there))
            what = "; ".join(missing) or "its metadata"
            wrong = f"libvirt took the definition, and this is not in it: {what}"
            raise FleetError(wrong, file=f"domain {domain.name}", hint="is this libvirt too old?")
    return plain != wanted, before, after


def _pending(virsh: Virsh, domains: Sequence[Domain]) -> str | None:
    """Which of them run as they were."""
    waiting = []
    for domain in domains:
        live = virsh.running(domain.name)
        if live is not None and sorted(live.summary()) != sorted(domain.summary()):
            waiting.append(f"domain {domain.name} runs as it was; this is in force once it was shut down and started again")
    return "; ".join(waiting) or None


def _lines(found: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(found))


def _define(virsh: Virsh, text: str) -> None:
    """libvirt's own schema judges it first. The file may hold a password, so only root can read it, and it does not stay."""
    descriptor, path = tempfile.mkstemp(prefix="gpuops-", suffix=".xml")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        virsh.ask("define", "--validate", path)
    finally:
        os.unlink(path)


def _resolve(options: Options, sysfs: Sysfs) -> tuple[list[Found], list[str]]:
    """What the names mean, and what a person should know."""
    known = {address: entry["identity"] for address, entry in remembered(Path(options.state_dir)).items()}
    found: list[Found] = []
    warnings: list[str] = []
    for number, name in enumerate(options.devices):
        field = f"devices[{number}]"
        if _MDEV.fullmatch(name.strip()):
            uuid = name.strip().lower()
            if not sysfs.has(_MDEVS, uuid):
                warnings.append(f"{field}: there is no mediated device {uuid} now; {options.domain} starts only when there is")
            one = Found(Hostdev(MDEV, uuid, False), _parent(sysfs, uuid, options.proc_root))
        else:
            try:
                card = glance(sysfs, where(sysfs, name, known, options.proc_root), options.proc_root)
            except FleetError as error:
                raise FleetError(error.message, field=field, hint=error.hint) from error
            if card.bridge:
                raise FleetError(f"{card.address} is a bridge: it stays with the host", field=field)
            # The vendor's VFs stay with the vendor's driver: libvirt must not take them from it.
            one = Found(Hostdev(PCI, card.address, not card.vendor_vf), card)
        if any(one.device == other.device for other in found):
            raise FleetError(f"{name} is the same device as an earlier one", field=field, hint="name each device once")
        found.append(one)
    return found, warnings


def _parent(sysfs: Sysfs, uuid: str, proc_root: str) -> Device | None:
    """The device that a mediated device is a part of; None where there is no such part, or its parent is not on PCI."""
    try:
        path = sysfs.path(_MDEVS, uuid).resolve(strict=True)
    except OSError:
        return None
    return glance(sysfs, path.parent.name, proc_root) if sysfs.has("bus/pci/devices", path.parent.name) else None


def _refuse_shared(virsh: Virsh, names: Sequence[str], mine: str, devices: Sequence[Hostdev]) -> None:
    """A device belongs to one domain, running or not: or the second one that is started fails."""
    wanted = {(each.kind, each.source) for each in devices}
    for name in names if wanted else ():
        if name != mine:
            for each, _ours in virsh.definition(name).devices():
                if (each.kind, each.source) in wanted:
                    raise FleetError(
                        f"{each.kind} {each.source} belongs to domain {name} already", field="devices", hint="take it out there first"
                    )


def _wish(options: Options, sysfs: Sysfs, domain: Domain, found: Sequence[Found], warnings: list[str]) -> Wish:
    cards = [each.card for each in found if each.card is not None]
    node = sizing.node_of(cards) if options.numa and cards else None
    cpus = None if node is None else sizing.cpus_of(sysfs, node)
    if node is None and options.numa and len({card.numa for card in cards}) > 1:
        warnings.append("its devices are at several NUMA nodes, so it is bound to none")
    if cpus is None:
        node = None
    elif domain.cpus > sizing.number_of(cpus):
        warnings.append(f"it has {domain.cpus} processors, and node {node} has {sizing.number_of(cpus)}")
    try:
        pages = sizing.page_kib(options.hugepages, domain.memory_kib, [] if node is None else [node], sysfs)
    except FleetError as error:
        raise FleetError(error.message, file=f"domain {options.domain}", field=error.field, hint=error.hint) from error
    # A mediated device has BARs of its own, and they are small; its card's are not in the guest.
    bars = [each.card.bars for each in found if each.card is not None and each.device.kind == PCI]
    window = sizing.window_mib(bars) if options.mmio == "auto" else sizing.parse_window(options.mmio)
    if window is not None and not domain.uefi:
        if options.mmio != "auto":
            raise FleetError("its firmware is not UEFI, and cannot be told a window", file=f"domain {options.domain}", field="mmio")
        warnings.append("its firmware is not UEFI: whether it finds room for BARs of that size is for itself to say")
        window = None
    if sizing.too_wide(window) and not domain.host_cpu:
        wrong = f"a window of {window} MiB needs more bits of physical addresses than its processor model has"
        raise FleetError(wrong, file=f"domain {options.domain}", field="mmio", hint="give it <cpu mode='host-passthrough'>")
    if cards and not domain.q35:
        warnings.append("its machine is not q35: devices are on plain PCI, without PCI Express")
    return Wish(tuple(each.device for each in found), node, cpus, pages, window, sizing.too_wide(window))
