# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A libvirt domain's definition: devices and what goes with them merged into it, and nothing else changed. Pure.

What is ours carries a mark: host devices an alias that begins with ``ua-gpuops-``, the rest a line in the domain's ``metadata``. So it is
known in the definition itself, wherever that is copied to, what to take away again.

Sources: libvirt's formatdomain (hostdev, alias, numatune, memoryBacking, sysinfo ``fwcfg``, maxphysaddr, metadata) and its schema.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

PCI, MDEV = "pci", "mdev"
NAMESPACE = "urn:gpuops:fleet:domain:1"
MMIO_ENTRY = "opt/ovmf/X-PciMmio64Mb"

_ALIAS = "ua-gpuops-"
_SET = f"{{{NAMESPACE}}}guest"
_KIB = {"b": 1 / 1024, "bytes": 1 / 1024, "KB": 1000 / 1024, "KiB": 1, "k": 1, "MB": 1000**2 / 1024, "MiB": 1024, "M": 1024}
_KIB.update({"GB": 1000**3 / 1024, "GiB": 1024**2, "G": 1024**2, "TB": 1000**4 / 1024, "TiB": 1024**3, "T": 1024**3})
_ADDRESS = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


@dataclass(frozen=True)
class Hostdev:
    """A device of the host in a domain. ``source``: PCI address or the UUID of a mediated device, in lower case."""

    kind: str
    source: str
    managed: bool

    @property
    def alias(self) -> str:
        """Its name in the domain: only letters, digits, ``-`` and ``_`` are allowed there."""
        return f"{_ALIAS}{self.kind}-{re.sub('[^0-9a-f]', '-', self.source)}"

    def __str__(self) -> str:
        return f"{self.kind} {self.source}" + (f", managed={'yes' if self.managed else 'no'}" if self.kind == PCI else "")


@dataclass(frozen=True)
class Wish:
    """What a domain shall have. ``node`` and ``cpus``: where its memory and its processors are (``cpus`` as ``0-15,32``).

    ``page_kib``: size of the huge pages that back it. ``mmio_mib``: window for 64-bit BARs that its firmware keeps free; ``physical``: it
    sees as many bits of an address as the host's processor. None, or False, of each: nothing is said of it, and what we said goes.
    """

    devices: tuple[Hostdev, ...] = ()
    node: int | None = None
    cpus: str | None = None
    page_kib: int | None = None
    mmio_mib: int | None = None
    physical: bool = False


class Domain:
    """A definition that is read, changed and written. FleetError from all that would change what somebody else wrote there."""

    def __init__(self, text: str) -> None:
        try:
            for _event, (prefix, address) in ET.iterparse(io.StringIO(text), ["start-ns"]):
                # Or a namespace that nobody registered would come out with another prefix.
                if prefix and not re.fullmatch(r"ns\d+", prefix):
                    ET.register_namespace(prefix, address)
            self._root = ET.fromstring(text)
        except ET.ParseError as error:
            raise FleetError(f"libvirt's definition of the domain is no XML: {error}") from error
        if self._root.tag != "domain":
            raise FleetError(f"this is the definition of a {self._root.tag}, not of a domain")
        ET.register_namespace("gpuops", NAMESPACE)

    @property
    def name(self) -> str:
        """How people call it."""
        return self._root.findtext("name") or "?"

    @property
    def memory_kib(self) -> int:
        """What it may have at most."""
        found = self._root.find("memory")
        return 0 if found is None else int(int(found.text or 0) * _KIB.get(found.get("unit", "KiB"), 1))

    @property
    def cpus(self) -> int:
        """Its virtual processors."""
        return int(self._root.findtext("vcpu") or 1)

    @property
    def uefi(self) -> bool:
        """Whether its firmware is UEFI (OVMF), which sizes the window for 64-bit BARs as it is told."""
        loader = self._root.find("os/loader")
        found = self._root.find("os")
        return (found is not None and found.get("firmware") == "efi") or (loader is not None and loader.get("type") == "pflash")

    @property
    def q35(self) -> bool:
        """Whether its devices are on PCI Express."""
        kind = self._root.find("os/type")
        return kind is not None and "q35" in (kind.get("machine") or "")

    @property
    def host_cpu(self) -> bool:
        """Whether its processors are the host's own, as they are."""
        cpu = self._root.find("cpu")
        return cpu is not None and cpu.get("mode") == "host-passthrough"

    def devices(self) -> list[tuple[Hostdev, bool]]:
        """Each device of the host that it has, and whether it is ours."""
        found = ((_hostdev(one), _is_ours(one)) for one in self._root.iterfind("devices/hostdev"))
        return [(device, ours) for device, ours in found if device is not None]

    def text(self) -> str:
        """The definition."""
        return ET.tostring(self._root, encoding="unicode") + "\n"

    def summary(self) -> list[str]:
        """What a host device and its neighbourhood are, a line each; nothing else of the definition, which may hold a password."""
        lines = [str(device) for device, _ours in self.devices()]
        cpu = self._root.find("vcpu")
        if cpu is not None and cpu.get("cpuset"):
            lines.append(f"processors on {cpu.get('cpuset')}")
        for memory in self._root.iterfind("numatune/memory"):
            lines.append(f"memory on node {memory.get('nodeset')}, {memory.get('mode', 'strict')}")
        for page in self._root.iterfind("memoryBacking/hugepages/page"):
            lines.append(f"pages of {page.get('size')} {page.get('unit', 'KiB')}")
        for entry in self._root.iterfind("sysinfo[@type='fwcfg']/entry"):
            if entry.get("name") == MMIO_ENTRY:
                lines.append(f"window of {entry.text} MiB for 64-bit BARs")
        if self._root.find("cpu/maxphysaddr") is not None:
            lines.append("physical addresses as wide as the host's")
        return lines

    # --- changes

    def merge(self, wish: Wish) -> None:
        """Make it as wished. FleetError where somebody else has set something of it otherwise."""
        ours = self._ours()
        self._merge_devices(wish.devices)
        self._numa(wish, ours)
        self._pages(wish.page_kib, ours)
        self._window(wish.mmio_mib, ours)
        self._physical(wish.physical, ours)
        self._remember(ours)

    def _merge_devices(self, wished: Iterable[Hostdev]) -> None:
        devices = self._root.find("devices")
        if devices is None:
            devices = ET.SubElement(self._root, "devices")
        wanted = {(each.kind, each.source): each for each in wished}
        for element in list(devices.iterfind("hostdev")):
            device = _hostdev(element)
            asked = wanted.pop((device.kind, device.source), None) if device is not None else None
            if asked is None:
                if _is_ours(element):
                    devices.remove(element)
                continue
            if asked.kind == PCI:
                element.set("managed", "yes" if asked.managed else "no")
            if not _is_ours(element):
                alias = element.find("alias")
                (ET.SubElement(element, "alias") if alias is None else alias).set("name", asked.alias)
        for each in wanted.values():
            devices.append(_element(each))

    def _numa(self, wish: Wish, ours: set[str]) -> None:
        """Processors and memory are one setting: half of it would be worse than none."""
        cpu, tune = self._root.find("vcpu"), self._root.find("numatune")
        found = ((cpu.get("cpuset") if cpu is not None else None), _nodes(tune))
        wanted = (wish.cpus, None if wish.node is None else f"strict {wish.node}")
        if found == wanted or (wanted == (None, None) and "numa" not in ours):
            return
        if "numa" not in ours and found != (None, None):
            raise self._others(f"processors {found[0] or 'anywhere'} and memory {found[1] or 'anywhere'}", "guest_numa: false")
        if cpu is None:
            raise FleetError("the domain has no processors", file=f"domain {self.name}")
        if tune is not None:
            self._root.remove(tune)
        if wanted == (None, None):
            cpu.attrib.pop("cpuset", None)
            ours.discard("numa")
            return
        cpu.set("placement", "static")
        cpu.set("cpuset", str(wish.cpus))
        tune = self._after(
            "numatune", ("memory", "currentMemory", "memoryBacking", "blkiotune", "memtune", "vcpu", "vcpus", "iothreads", "cputune")
        )
        ET.SubElement(tune, "memory", {"mode": "strict", "nodeset": str(wish.node)})
        ours.add("numa")

    def _pages(self, kib: int | None, ours: set[str]) -> None:
        backing = self._root.find("memoryBacking")
        pages = None if backing is None else backing.find("hugepages")
        sizes = [] if pages is None else [int(int(page.get("size", "0")) * _KIB.get(page.get("unit", "KiB"), 1)) for page in pages]
        if (kib is not None and sizes == [kib]) or (kib is None and "hugepages" not in ours):
            return
        if pages is not None and "hugepages" not in ours:
            raise self._others(f"huge pages of {', '.join(map(str, sizes)) or 'the usual number of'} KiB", "the size that it says, or none")
        if backing is not None and pages is not None:
            backing.remove(pages)
            if len(backing) == 0:
                self._root.remove(backing)
        ours.discard("hugepages")
        if kib is not None:
            backing = self._root.find("memoryBacking")
            if backing is None:
                backing = self._after("memoryBacking", ("memory", "maxMemory", "currentMemory"))
            ET.SubElement(ET.SubElement(backing, "hugepages"), "page", {"size": str(kib), "unit": "KiB"})
            ours.add("hugepages")

    def _window(self, mib: int | None, ours: set[str]) -> None:
        info = self._root.find("sysinfo[@type='fwcfg']")
        entry = next((each for each in info if each.get("name") == MMIO_ENTRY), None) if info is not None else None
        if (entry is not None and entry.text == str(mib)) or (mib is None and "mmio" not in ours):
            return
        if entry is not None and "mmio" not in ours:
            raise self._others(f"a window of {entry.text} MiB for 64-bit BARs", "that number, or 'off'")
        if entry is not None and info is not None:
            info.remove(entry)
            if len(info) == 0:
                self._root.remove(info)
        ours.discard("mmio")
        if mib is not None:
            info = self._root.find("sysinfo[@type='fwcfg']")
            if info is None:
                before = next((number for number, each in enumerate(self._root) if each.tag == "os"), len(self._root))
                info = ET.Element("sysinfo", {"type": "fwcfg"})
                self._root.insert(before, info)
            ET.SubElement(info, "entry", {"name": MMIO_ENTRY}).text = str(mib)
            ours.add("mmio")

    def _physical(self, wanted: bool, ours: set[str]) -> None:
        cpu = self._root.find("cpu")
        found = None if cpu is None else cpu.find("maxphysaddr")
        if cpu is None or (found is None) != wanted or (not wanted and "physical" not in ours):
            return
        if wanted:
            # libvirt's schema wants it after model and vendor, and before topology.
            at = sum(1 for each in cpu if each.tag in ("model", "vendor"))
            cpu.insert(at, ET.Element("maxphysaddr", {"mode": "passthrough"}))
            ours.add("physical")
        elif found is not None:
            cpu.remove(found)
            ours.discard("physical")

    # --- what is ours

    def _ours(self) -> set[str]:
        found = self._root.find(f"metadata/{_SET}")
        return set() if found is None else set(found.get("set", "").split())

    def _remember(self, ours: set[str]) -> None:
        metadata = self._root.find("metadata")
        found = None if metadata is None else metadata.find(_SET)
        if not ours:
            if metadata is not None and found is not None:
                metadata.remove(found)
                if len(metadata) == 0:
                    self._root.remove(metadata)
            return
        if metadata is None:
            metadata = self._after("metadata", ("name", "uuid", "genid", "title", "description"))
        if found is None:
            found = ET.SubElement(metadata, _SET)
        found.set("set", " ".join(sorted(ours)))

    def _after(self, tag: str, before: tuple[str, ...]) -> ET.Element:
        """A new element after the last one of these, where libvirt itself would write it."""
        at = max((number for number, each in enumerate(self._root) if each.tag in before), default=-1)
        element = ET.Element(tag)
        self._root.insert(at + 1, element)
        return element

    def _others(self, what: str, right: str) -> FleetError:
        wrong = f"somebody else has given it {what}"
        return FleetError(wrong, file=f"domain {self.name}", hint=f"take that out of the domain by hand, or wish for {right}")


def _nodes(tune: ET.Element | None) -> str | None:
    memory = None if tune is None else tune.find("memory")
    return None if memory is None else f"{memory.get('mode', 'strict')} {memory.get('nodeset')}"


def _is_ours(element: ET.Element) -> bool:
    alias = element.find("alias")
    return alias is not None and (alias.get("name") or "").startswith(_ALIAS)


def _hostdev(element: ET.Element) -> Hostdev | None:
    """None for what is neither a PCI nor a mediated device (USB, SCSI)."""
    address, kind = element.find("source/address"), element.get("type")
    if address is None or kind not in (PCI, MDEV):
        return None
    if kind == MDEV:
        return Hostdev(MDEV, (address.get("uuid") or "").lower(), False)
    domain, bus, slot, function = (int(address.get(part) or "0", 0) for part in ("domain", "bus", "slot", "function"))
    return Hostdev(PCI, f"{domain:04x}:{bus:02x}:{slot:02x}.{function}", element.get("managed") == "yes")


def _element(device: Hostdev) -> ET.Element:
    kind = {"mode": "subsystem", "type": device.kind}
    if device.kind == MDEV:
        element = ET.Element("hostdev", {**kind, "managed": "no", "model": "vfio-pci"})
        address = {"uuid": device.source}
    else:
        element = ET.Element("hostdev", {**kind, "managed": "yes" if device.managed else "no"})
        found = _ADDRESS.fullmatch(device.source)
        if found is None:
            raise FleetError(f"'{device.source}' is no PCI address")
        address = dict(zip(("domain", "bus", "slot", "function"), (f"0x{part}" for part in found.groups())))
    ET.SubElement(ET.SubElement(element, "source"), "address", address)
    ET.SubElement(element, "alias", {"name": device.alias})
    return element
