# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA mig-parted v1 layout files: read them strictly, turn a label into plain data for a host, write an observed layout.

The format (``version: v1``, ``mig-configs: {label: [{device-filter?, devices, mig-enabled, mig-devices}]}``) is that of
NVIDIA mig-parted, api/spec/v1. One extension: ``devices`` may also name GPUs by UUID or PCI address.
Pure: text in, data or text out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import MOST_INSTANCES, split_profile
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import describe
from ansible_collections.gpuops.fleet.plugins.plugin_utils.label_files import LabelReader, chosen, kind_of, quoted
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Path, read_yaml

KEY = "mig-configs"
ENTRY_FIELDS = ("device-filter", "devices", "mig-enabled", "mig-devices")
# As NVML's names are spelled: compute slices, memory in GB, attributes (+me, +gfx, +me.all, -me); before it those of a compute instance.
PROFILE = re.compile(r"([1-9]\d*c\.)?[1-9]\d*g\.[1-9]\d*gb([+-][a-z][a-z.]*)*")


@dataclass(frozen=True)
class Entry:
    """One entry of a label. ``devices`` is None for all GPUs; ``instances`` maps a profile to its count, in the order written."""

    devices: tuple[int | str, ...] | None
    device_filter: tuple[str, ...]
    mig: bool
    instances: tuple[tuple[str, int], ...]
    source: str

    def selector(self) -> dict[str, Any]:
        """As plain data for the module on the host (``module_utils.selectors``)."""
        return {
            "devices": "all" if self.devices is None else list(self.devices),
            "device_filter": list(self.device_filter),
            "mig": self.mig,
            "instances": [{"profile": profile, "count": count} for profile, count in self.instances],
            "source": self.source,
        }


@dataclass(frozen=True)
class LayoutFile:
    """A whole mig-parted file: every label with its entries, all of them checked."""

    file: str
    labels: Mapping[str, tuple[Entry, ...]]

    def select(self, label: str) -> tuple[Entry, ...]:
        """The entries of ``label``; a label that is not there raises ``FleetError`` and names the labels that are."""
        return tuple(chosen(self.labels, label, self.file, KEY))


def parse(text: str, file: str) -> LayoutFile:
    """Read a mig-parted v1 file; ``file`` is its name in messages.

    Raises ``FleetError`` with file, line and field for anything that the format does not allow.
    """
    reader = _Reader(read_yaml(text, file), KEY, "- {devices: all, mig-enabled: false}", _EXAMPLE)
    return LayoutFile(file, {label: tuple(reader.entry(*entry) for entry in entries) for label, entries in reader.labels().items()})


def selectors(text: str, file: str, label: str) -> list[dict[str, Any]]:
    """What a host needs of the layout ``label`` in this file, as plain data. Raises ``FleetError``."""
    return [entry.selector() for entry in parse(text, file).select(label)]


class _Reader(LabelReader):
    def entry(self, path: Path, value: Any) -> Entry:
        data = self.mapping(path, value, ENTRY_FIELDS, required=("devices", "mig-enabled"))
        enabled = data["mig-enabled"]
        if not isinstance(enabled, bool):
            raise self.located.error(
                (*path, "mig-enabled"), f"expected true or false, found {describe(enabled)}", "write true or false without quotes"
            )
        return Entry(
            devices=self.devices((*path, "devices"), data["devices"]),
            device_filter=self.device_filter((*path, "device-filter"), data.get("device-filter", [])),
            mig=enabled,
            instances=self.instances(path, data, enabled),
            source=self.source(path),
        )

    def instances(self, path: Path, data: Mapping[str, Any], enabled: bool) -> tuple[tuple[str, int], ...]:
        where = (*path, "mig-devices")
        if enabled and "mig-devices" not in data:
            raise self.located.error(
                path, "field 'mig-devices' is missing", "with mig-enabled: true write mig-devices: {1g.10gb: 7}, or {} for none"
            )
        value = data.get("mig-devices", {})
        if not isinstance(value, Mapping):
            raise self.located.error(
                where, f"expected profiles with their counts, found {kind_of(value)}", "write mig-devices: {1g.10gb: 7}"
            )
        if value and not enabled:
            raise self.located.error(where, "slices on GPUs whose MIG mode is off", "write mig-enabled: true, or leave mig-devices out")
        for profile, count in value.items():
            self.check_instance((*where, profile), profile, count)
        return tuple((profile, count) for profile, count in value.items() if count)

    def check_instance(self, path: Path, profile: str, count: Any) -> None:
        if not PROFILE.fullmatch(profile):
            hint = "write its name as nvidia-smi mig -lgip or -lcip shows it, such as 1g.10gb, 1g.10gb+me or 1c.3g.40gb"
            raise self.located.error(path, f"'{profile}' is no MIG profile", hint)
        try:
            split_profile(profile)
        except FleetError as error:
            raise self.located.error(path, error.message, error.hint) from error
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise self.located.error(path, f"expected a count, found {describe(count)}", f"write a whole number of slices: {profile}: 1")
        if count > MOST_INSTANCES:
            raise self.located.error(path, f"no GPU has {count} instances", f"write at most {MOST_INSTANCES}")


_EXAMPLE = {
    "version": "version: v1",
    "mig-configs": "mig-configs: {LABEL: [...]}",
    "devices": "devices: all, or a list such as [0, 1]",
    "mig-enabled": "mig-enabled: true or false",
}


def export(gpus: Sequence[Mapping[str, Any]], label: str = "current") -> str:
    """The layout that was observed, as a mig-parted v1 file with one ``label``.

    ``gpus`` as in the facts (docs/facts.md). GPUs of equal layout share an entry; ``devices: all`` is written when the whole
    host is alike and every GPU has MIG. GPUs that cannot be asked (``state`` other than ok) and boards without MIG are left
    out when others are there, because mig-parted would never find such an entry fulfilled. The format has no placement: which slice
    lies where is the plan's to say.
    """
    groups: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = {}
    for gpu in gpus:
        if gpu.get("mig") and gpu.get("state", "ok") == "ok":
            groups.setdefault(_layout_of(gpu["mig"]), []).append(gpu["index"])
    lines = ["version: v1", "mig-configs:", f"  {quoted(label)}:"]
    alike = len(groups) == 1 and sum(map(len, groups.values())) == len(gpus)
    for (enabled, instances), indices in groups.items():
        lines.append(f"    - devices: {'all' if alike else '[' + ', '.join(map(str, sorted(indices))) + ']'}")
        lines.append(f"      mig-enabled: {'true' if enabled else 'false'}")
        if enabled:
            lines.append("      mig-devices:" if instances else "      mig-devices: {}")
            lines += [f'        "{profile}": {count}' for profile, count in instances]
    if not groups:
        lines += ["    - devices: all", "      mig-enabled: false"]
    return "\n".join(lines) + "\n"


def _layout_of(mig: Mapping[str, Any]) -> tuple[bool, tuple[tuple[str, int], ...]]:
    counts: dict[str, int] = {}
    for instance in mig["instances"] or []:
        # A slice that is cut further is what it is cut into. One that nobody can use yet is written as if it were whole.
        for profile in [inside["profile"] for inside in instance.get("ci") or ()] or [instance["profile"]]:
            counts[profile] = counts.get(profile, 0) + 1
    return bool(mig["current"]), tuple(sorted(counts.items()))
