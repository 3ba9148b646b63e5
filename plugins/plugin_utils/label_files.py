# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the files of NVIDIA's mig-parted and vgpu-device-manager have in common: labels, and under each label entries that name GPUs.

``version: v1``, one key with ``{label: [{device-filter?, devices, ...}]}``. One extension: ``devices`` may also name GPUs by UUID or PCI
address. Pure: text in, data out; every complaint carries the line of what it complains about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import parse_identity
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import describe
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located, Path

GPU_UUID = re.compile(r"GPU-[0-9A-Fa-f-]+")
PCI_ADDRESS = re.compile(r"([0-9A-Fa-f]{4}([0-9A-Fa-f]{4})?:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_FILTER_HINT = "write '0x<device><vendor>' or '0x<device><vendor>:0x<subdevice><subvendor>' in quotes, such as '0x20B210DE'"


class LabelReader:
    """Walks one document. ``examples``: for each field that may be missing, what to write."""

    def __init__(self, located: Located, key: str, entry: str, examples: Mapping[str, str]) -> None:
        self.located = located
        self._key, self._entry, self._examples = key, entry, examples

    def labels(self) -> dict[str, list[tuple[Path, Any]]]:
        """Every label with its entries, each with where it stands. FleetError for another version and for none."""
        data = self.mapping((), self.located.data, ("version", self._key), required=("version", self._key))
        if data["version"] != "v1":
            raise self.located.error(("version",), f"{describe(data['version'])} is no known version", "write version: v1")
        configs = data[self._key]
        if not isinstance(configs, Mapping) or not configs:
            wrong = f"expected labels with their layouts, found {kind_of(configs)}"
            raise self.located.error((self._key,), wrong, "write at least one label")
        return {str(label): self._entries((self._key, label), entries) for label, entries in configs.items()}

    def _entries(self, path: Path, value: Any) -> list[tuple[Path, Any]]:
        if not isinstance(value, list) or not value:
            hint = f"write at least one entry: {self._entry}"
            raise self.located.error(path, f"expected a list of entries, found {kind_of(value)}", hint)
        return [((*path, number), item) for number, item in enumerate(value)]

    def mapping(self, path: Path, value: Any, fields: Sequence[str], required: Sequence[str]) -> Mapping[str, Any]:
        """A mapping of these fields only."""
        if not isinstance(value, Mapping):
            raise self.located.error(path, f"expected fields, found {kind_of(value)}", f"fields: {', '.join(fields)}")
        for key in value:
            if key not in fields:
                near = get_close_matches(str(key), fields, n=1)
                meant = f"did you mean '{near[0]}'? " if near else ""
                raise self.located.error((*path, key), "unknown field", f"{meant}fields here: {', '.join(fields)}")
        for key in required:
            if key not in value:
                raise self.located.error(path, f"field '{key}' is missing", f"write {self._examples[key]}")
        return value

    def devices(self, path: Path, value: Any) -> tuple[int | str, ...] | None:
        """GPUs by index, UUID or PCI address; None for all."""
        hint = "write all, or a list of GPUs by index, UUID or PCI address: [0, 1]"
        if value == "all":
            return None
        if not isinstance(value, list) or not value:
            raise self.located.error(path, f"expected all or a list of GPUs, found {describe(value)}", hint)
        for number, item in enumerate(value):
            by_index = isinstance(item, int) and not isinstance(item, bool) and item >= 0
            if not by_index and not (isinstance(item, str) and (GPU_UUID.fullmatch(item) or PCI_ADDRESS.fullmatch(item))):
                raise self.located.error((*path, number), f"{describe(item)} names no GPU", hint)
        return tuple(value)

    def device_filter(self, path: Path, value: Any) -> tuple[str, ...]:
        """PCI identities that narrow an entry."""
        listed = [value] if isinstance(value, str) and value else value or []
        if not isinstance(listed, list):
            raise self.located.error(path, f"expected a text or a list of texts, found {describe(value)}", _FILTER_HINT)
        for number, item in enumerate(listed):
            try:
                parse_identity(item)
            except (ValueError, TypeError):
                where = (*path, number) if isinstance(value, list) else path
                raise self.located.error(where, f"{describe(item)} is no PCI identity", _FILTER_HINT) from None
        return tuple(listed)

    def source(self, path: Path) -> str:
        """``FILE:LINE`` of an entry."""
        return f"{self.located.file}:{self.located.line(path)}"


def chosen(labels: Mapping[str, Any], label: str, file: str, key: str) -> Any:
    """What is under ``label``; one that is not there raises ``FleetError`` and names the labels that are."""
    if label in labels:
        return labels[label]
    near = get_close_matches(label, labels, n=1)
    meant = f"did you mean '{near[0]}'? " if near else ""
    hint = f"{meant}labels of this file: {', '.join(labels)}"
    raise FleetError(f"there is no layout '{label}'", file=file, field=key, hint=hint)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, Mapping | list) and not value:
        return "an empty " + ("mapping" if isinstance(value, Mapping) else "list")
    return describe(value)


def quoted(text: str) -> str:
    """A YAML scalar that stays this text in every parser: plain where that is safe, else in double quotes."""
    if re.fullmatch(r"[a-z][a-z0-9]*([.-][a-z0-9]+)+|current", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
