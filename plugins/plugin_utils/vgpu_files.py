# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA vgpu-device-manager v1 files: read them strictly, turn a label into plain data for a host, write the vGPUs that were observed.

The format (``version: v1``, ``vgpu-configs: {label: [{device-filter?, devices, vgpu-devices}]}``) is that of NVIDIA vgpu-device-manager,
api/spec/v1. Pure: text in, data or text out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import MOST_VGPUS
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import describe
from ansible_collections.gpuops.fleet.plugins.plugin_utils.label_files import LabelReader, chosen, kind_of, quoted
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Path, read_yaml

KEY = "vgpu-configs"
ENTRY_FIELDS = ("device-filter", "devices", "vgpu-devices")
_EXAMPLES = {
    "version": "version: v1",
    KEY: "vgpu-configs: {LABEL: [...]}",
    "devices": "devices: all, or a list such as [0, 1]",
    "vgpu-devices": "vgpu-devices: {A100D-10C: 8}, or {} for none",
}


def parse(text: str, file: str) -> dict[str, list[dict[str, Any]]]:
    """Every label with its entries as plain data: ``{devices: 'all' | [...], device_filter, types: [{type, count}], source}``.

    ``file`` is its name in messages. Raises ``FleetError`` with file, line and field for anything that the format does not allow.
    """
    reader = _Reader(read_yaml(text, file), KEY, "- {devices: all, vgpu-devices: {A100D-10C: 8}}", _EXAMPLES)
    return {label: [reader.entry(*entry) for entry in entries] for label, entries in reader.labels().items()}


def selectors(text: str, file: str, label: str) -> list[dict[str, Any]]:
    """What a host needs of ``label`` in this file (``module_utils.selectors.named_entries``). Raises ``FleetError``."""
    return list(chosen(parse(text, file), label, file, KEY))


class _Reader(LabelReader):
    def entry(self, path: Path, value: Any) -> dict[str, Any]:
        data = self.mapping(path, value, ENTRY_FIELDS, required=("devices", "vgpu-devices"))
        devices = self.devices((*path, "devices"), data["devices"])
        return {
            "devices": "all" if devices is None else list(devices),
            "device_filter": list(self.device_filter((*path, "device-filter"), data.get("device-filter", []))),
            "types": self.types((*path, "vgpu-devices"), data["vgpu-devices"]),
            "source": self.source(path),
        }

    def types(self, path: Path, value: Any) -> list[dict[str, Any]]:
        if not isinstance(value, Mapping):
            hint = f"write {_EXAMPLES['vgpu-devices']}"
            raise self.located.error(path, f"expected types with their counts, found {kind_of(value)}", hint)
        kinds: dict[bool, str] = {}
        for name, count in value.items():
            kind = vgpu_types.parse(name) if isinstance(name, str) else None
            if kind is None or str(kind) != name:
                hint = "write its short name, such as A100D-10C, or A100D-1-10C for one that is backed by a GPU instance"
                raise self.located.error((*path, name), f"'{name}' is no vGPU type", hint)
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_VGPUS:
                hint = f"write a whole number of vGPUs, at most {MOST_VGPUS}: {name}: 1"
                raise self.located.error((*path, name), f"expected a count, found {describe(count)}", hint)
            if count:
                kinds.setdefault(kind.slices is None, name)
        if len(kinds) > 1:
            words = f"{kinds[True]} is time-sliced and {kinds[False]} is backed by a GPU instance, which exclude each other on one GPU"
            raise self.located.error(path, words, "write one kind only")
        return [{"type": name, "count": count} for name, count in value.items() if count]


def export(gpus: Sequence[Mapping[str, Any]], label: str = "current") -> str:
    """The vGPUs that were observed (``gpus`` of module ``vgpu_info``) as a vgpu-device-manager v1 file with one ``label``.

    GPUs with equal vGPUs share an entry, ``devices: all`` is written when all are alike. Parents of mediated devices that are no GPU of
    NVIDIA are left out, because that program knows none. The format has no places, parameters, modes and schedulers.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for gpu in gpus:
        if gpu.get("index") is not None:
            groups.setdefault(_counted(gpu["vgpus"]), []).append(int(gpu["index"]))
    lines = ["version: v1", f"{KEY}:", f"  {quoted(label)}:"]
    indices = sorted(index for each in groups.values() for index in each)
    alike = len(groups) == 1 and indices == list(range(len(indices)))
    for types, group in groups.items():
        lines.append(f"    - devices: {'all' if alike else '[' + ', '.join(map(str, sorted(group))) + ']'}")
        lines.append("      vgpu-devices:" if types else "      vgpu-devices: {}")
        lines += [f'        "{name}": {count}' for name, count in types]
    if not groups:
        lines += ["    - devices: all", "      vgpu-devices: {}"]
    return "\n".join(lines) + "\n"


def _counted(vgpus: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for one in vgpus:
        counts[one["type"]] = counts.get(one["type"], 0) + 1
    return tuple(sorted(counts.items(), key=lambda pair: vgpu_types.order(pair[0])))
