# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of this host a layout file speaks of: selectors in, one wish for each GPU out.

A mig-parted file names GPUs by index, or all of them, and may narrow an entry to certain boards by PCI identity. Only the
host knows its boards, so the controller sends the entries as plain data (*selectors*) and the host resolves them here.
Pure: no NVML, no file.

Source of the file format and of the device filter's two forms: NVIDIA mig-parted, api/spec/v1 and pkg/types (v0.15).
"""

from __future__ import annotations

import re
import typing as t
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import pci_address

_IDENTITY = re.compile(r"0[xX]([0-9A-Fa-f]{8})(?::0[xX]([0-9A-Fa-f]{8}))?")

#: One entry of a layout file as plain data: ``{devices: 'all' | [index|uuid|pci, ...], device_filter: ['0x...'], mig: bool,
#: instances: [{profile, count}], source: 'FILE:LINE'}``.
Selector = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class Board:
    """What a selector can see of a GPU.

    ``device_id`` and ``subsystem_id`` are PCI identities as 32-bit numbers, device in the upper and vendor in the lower
    half (0x20B210DE); 0 when unknown. ``pci`` is the address as in sysfs (``0000:07:00.0``).
    """

    index: int
    uuid: str
    pci: str
    device_id: int
    subsystem_id: int
    has_mig: bool


def parse_identity(text: str) -> tuple[int, int | None]:
    """Read ``0x<device><vendor>`` or ``0x<device><vendor>:0x<subdevice><subvendor>`` into numbers.

    Raises ``ValueError`` when the text has another form.
    """
    match = _IDENTITY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    device_id, subsystem_id = match.groups()
    return int(device_id, 16), None if subsystem_id is None else int(subsystem_id, 16)


def _matches(board: Board, filters: t.Sequence[str], source: str | None) -> bool:
    if not filters:
        return True
    for text in filters:
        try:
            device_id, subsystem_id = parse_identity(text)
        except ValueError:
            hint = "write '0x<device><vendor>' or '0x<device><vendor>:0x<subdevice><subvendor>', such as '0x20B210DE'"
            raise FleetError(f"'{text}' is no PCI identity", file=source, field="device-filter", hint=hint) from None
        if board.device_id == device_id and subsystem_id in (None, board.subsystem_id):
            return True
    return False


def is_named(board: Board, name: int | str) -> bool:
    """Whether ``name`` (index as number or digits, UUID, or PCI address) means this GPU."""
    text = str(name).strip()
    if text.isdigit():
        return int(text) == board.index
    return text.lower() == board.uuid.lower() or pci_address(text) == board.pci


def _named_boards(boards: t.Sequence[Board], selector: Selector, matching: t.Sequence[Board]) -> list[Board]:
    """The boards of a selector that lists its devices, among ``matching``; a name that no board bears is an error."""
    chosen = []
    for name in selector["devices"]:
        found = [board for board in boards if is_named(board, name)]
        if not found:
            known = ", ".join(f"{board.index} ({board.pci}, {board.uuid})" for board in boards) or "none"
            hint = f"GPUs of this host: {known}"
            raise FleetError(f"there is no GPU {name}", file=selector.get("source"), field="devices", hint=hint)
        chosen += [board for board in found if board in matching and board not in chosen]
    return chosen


def _meant(boards: t.Sequence[Board], selector: Selector) -> list[Board]:
    """The boards that a selector names, whatever they can."""
    matching = [board for board in boards if _matches(board, selector.get("device_filter") or [], selector.get("source"))]
    # An entry for boards that this host does not have is not for this host: its device list says nothing about us.
    if selector.get("device_filter") and not matching:
        return []
    return matching if selector["devices"] == "all" else _named_boards(boards, selector, matching)


def _selected(boards: t.Sequence[Board], selector: Selector) -> list[Board]:
    source = selector.get("source")
    chosen = _meant(boards, selector)
    if selector["devices"] == "all":
        return [board for board in chosen if board.has_mig]
    for board in chosen:
        if selector["mig"] and not board.has_mig:
            hint = "leave it out of devices, or write devices: all, which passes over such boards"
            raise FleetError(f"GPU {board.index} ({board.uuid}) has no MIG", file=source, field="devices", hint=hint)
    return [board for board in chosen if board.has_mig]


def _wish(selector: Selector) -> dict[str, t.Any]:
    # The format can say into what a slice is cut, so that a plain profile means one that is not.
    instances = [{**instance, "compute": "exact"} for instance in selector.get("instances") or []]
    return {"mig": bool(selector["mig"]), "instances": instances}


def _same(left: t.Mapping[str, t.Any], right: t.Mapping[str, t.Any]) -> bool:
    def counted(wish: t.Mapping[str, t.Any]) -> list[tuple[str, int]]:
        return sorted((str(instance["profile"]), int(instance["count"])) for instance in wish["instances"] if instance["count"])

    return left["mig"] == right["mig"] and counted(left) == counted(right)


def resolve_selectors(boards: t.Sequence[Board], selectors: t.Sequence[Selector]) -> list[dict[str, t.Any]]:
    """The layout that the selectors ask of this host: ``[{gpu: UUID, mig: bool, instances: [{profile, count, compute}], source?}, ...]``.

    Ordered as ``boards``. GPUs that no selector names are left out, so nobody will touch them. ``devices: all`` passes over
    boards without MIG. A GPU that two selectors name must be wished the same by both: mig-parted would apply both in order
    and then assert neither, so a contradiction is refused.

    Raises ``FleetError`` for an unknown GPU, a named GPU without MIG that shall have it, a bad filter, or a contradiction.
    """
    wishes: dict[str, tuple[dict[str, t.Any], str | None]] = {}
    for selector in selectors:
        wish, source = _wish(selector), selector.get("source")
        for board in _selected(boards, selector):
            earlier = wishes.get(board.uuid)
            if earlier is None:
                wishes[board.uuid] = (wish, source)
            elif not _same(earlier[0], wish):
                message = f"GPU {board.index} ({board.uuid}) is given another layout at {earlier[1] or 'an entry before'}"
                raise FleetError(message, file=source, field="devices", hint="name each GPU in one entry")
    return [_entry(board, *wishes[board.uuid]) for board in boards if board.uuid in wishes]


def _entry(board: Board, wish: t.Mapping[str, t.Any], source: str | None) -> dict[str, t.Any]:
    return {"gpu": board.uuid, **wish, **({} if source is None else {"source": source})}


def named_entries(boards: t.Sequence[Board], selectors: t.Sequence[Selector]) -> list[tuple[Board, dict[str, t.Any]]]:
    """What a file of vgpu-device-manager asks of this host: each board that it names, and ``{vgpus: [{type, count}], source}`` of it.

    Selectors as above, with ``types: [{type, count}]`` instead of MIG. Ordered as ``boards``; others are left out, so nobody will touch
    them. FleetError for an unknown GPU, a bad filter, or a GPU of which two entries differ: vgpu-device-manager would apply both.
    """
    found: dict[str, Selector] = {}
    for selector in selectors:
        for board in _meant(boards, selector):
            earlier = found.setdefault(board.pci, selector)
            if _types(earlier) != _types(selector):
                message = f"GPU {board.index} ({board.pci}) is given other vGPUs at {earlier.get('source') or 'an entry before'}"
                raise FleetError(message, file=selector.get("source"), field="devices", hint="name each GPU in one entry")
    return [
        (board, {"vgpus": list(found[board.pci].get("types") or ()), "source": found[board.pci].get("source")})
        for board in boards
        if board.pci in found
    ]


def _types(selector: Selector) -> list[tuple[str, int]]:
    return sorted((str(one["type"]), int(one["count"])) for one in selector.get("types") or () if one["count"])
