# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a boot: every device that virtual machines had is theirs again, if it is the piece of hardware that was recorded.

The udev rule has done most of it by then. What is left: a driver that was faster, virtual functions that nobody has made yet, a run that
died in the middle, and a card that changed its slot or was changed: that one keeps its host driver, and is named.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils import passthrough_papers, pci
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal
from ansible_collections.gpuops.fleet.plugins.module_utils.lease import LeaseError
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_look import Eyes, Options
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_run import JOURNAL, apply
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import DEVICES

KEPT = (passthrough_papers.FILE, JOURNAL)


@dataclass
class Restored:
    """What was done, and what is not as it was recorded, a line each."""

    done: list[str]
    problems: list[str]


def restore(options: Options) -> Restored:
    """Bring every device to what the host remembers of it. One that fails keeps no other from being tried; no engine is asked."""
    options = replace(options, engine=False, companions=False, persist=True)
    result = Restored([], [])
    try:
        record = passthrough_papers.remembered(options.state_dir)
    except FleetError as error:
        return Restored([], [str(error)])
    wishes = {address: True for address, entry in record.items() if entry.get("persist", True)}
    for address, line in Journal(options.state_dir / JOURNAL).unfinished().wish.items():
        if isinstance(line, Mapping) and line.get("persist", True):
            wishes[address] = bool(line.get("vfio"))
    boot = _Boot(options, record, result)
    boot.make_functions([address for address, vfio in wishes.items() if vfio])
    groups: dict[str, list[tuple[str, bool]]] = {}
    for address, vfio in sorted(wishes.items()):
        if boot.is_there(address):
            groups.setdefault(boot.group(address), []).append((address, vfio))
    for members in groups.values():
        boot.bring(members)
    return result


@dataclass
class _Boot:
    options: Options
    record: Mapping[str, Mapping[str, t.Any]]
    result: Restored

    def __post_init__(self) -> None:
        self.eyes = Eyes(self.options)
        self.sysfs = self.eyes.sysfs

    def group(self, address: str) -> str:
        """What has to be brought together."""
        return self.sysfs.link(DEVICES, address, "iommu_group") or address

    def is_there(self, address: str) -> bool:
        """Whether the device is where it was, and is the one that it was."""
        identity = self.record[address]["identity"] if address in self.record else None
        if not self.sysfs.has(DEVICES, address):
            moved = self._moved(identity) if identity is not None else None
            where = f"it seems to be at {moved} now; name it there by module passthrough" if moved else "no card like it is anywhere else"
            self.result.problems.append(f"{address}{_uuid(identity)} is not there; {where}")
            return False
        if identity is None:
            return True
        other = pci.differs(identity, pci.glance(self.sysfs, address, self.eyes.proc))
        if other is None:
            return True
        self._give_back(address, other)
        return False

    def _moved(self, identity: Mapping[str, t.Any]) -> str | None:
        """Where a card with the same serial number is; without one, cards of a kind cannot be told apart."""
        if not identity.get("serial"):
            return None
        alike = [one.address for one in self.eyes.all() if pci.differs(identity, one) is None]
        found = [one for one in alike if pci.glance(self.sysfs, one, self.eyes.proc).serial == identity["serial"]]
        return found[0] if len(found) == 1 and found[0] not in self.record else None

    def _give_back(self, address: str, other: str) -> None:
        """Another card of the same kind: the rule knows only its kind."""
        words = f"{address} is another card than recorded ({other}): it stays with its host driver"
        try:
            self.result.done += apply([{"device": address, "state": "host"}], self.options, papers=False).steps
        except LeaseError:
            raise
        except FleetError as error:
            words = f"{address} is another card than recorded ({other}), and could not be left to its host driver: {error}"
        self.result.problems.append(f"{words}; name it by module passthrough, or release {address}")

    def bring(self, members: Sequence[tuple[str, bool]]) -> None:
        """The devices of one group."""
        wish = [{"device": address, "state": "vfio" if vfio else "host"} for address, vfio in members]
        driver = self.record.get(members[0][0], {}).get("vfio_driver")
        options = replace(self.options, vfio_driver=driver) if driver else self.options
        try:
            self.result.done += apply(wish, options).steps
        except LeaseError:
            raise
        except FleetError as error:
            self.result.problems.append(str(error))

    def make_functions(self, addresses: Sequence[str]) -> None:
        """Virtual functions that were given away and do not exist yet: as many as there were, each untaken until it is looked at."""
        parents = {}
        for address in addresses:
            parent = (self.record.get(address) or {}).get("parent")
            if parent and not self.sysfs.has(DEVICES, address):
                parents[str(parent["address"])] = int(parent["vfs"])
        for parent, count in sorted(parents.items()):
            try:
                self._make(parent, count)
            except FleetError as error:
                self.result.problems.append(f"{count} virtual functions of {parent} could not be made: {error}")

    def _make(self, parent: str, count: int) -> None:
        """With autoprobe off meanwhile, or the driver of virtual functions has the first one before its override is set."""
        where = f"{DEVICES}/{parent}"
        if self.sysfs.number(where, "sriov_numvfs") != 0:
            return  # somebody made others, or it has none: what is missing is named below
        probes = self.sysfs.text(where, "sriov_drivers_autoprobe")
        self.sysfs.write(where, "sriov_drivers_autoprobe", text="0")
        try:
            self.sysfs.write(where, "sriov_numvfs", text=str(count))
        finally:
            self.sysfs.write(where, "sriov_drivers_autoprobe", text=probes or "1")
        self.result.done.append(f"{parent}: make {count} virtual functions")
        for function in pci.glance(self.sysfs, parent, self.eyes.proc).vfs:
            if function not in self.record:
                self.sysfs.write("bus/pci/drivers_probe", text=function)


def _uuid(identity: Mapping[str, t.Any] | None) -> str:
    uuid = (identity or {}).get("uuid")
    return f" ({uuid})" if uuid else ""
