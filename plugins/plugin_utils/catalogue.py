# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of GPU boards from public sources: names for people, and MIG geometry where the driver tells none."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile

Data = Mapping[str, t.Any]


@dataclass(frozen=True)
class Board:
    """One kind of board. ``id`` is its name here (``a100-sxm4-80gb``), ``product`` the vendor's; ``sm`` 0 where it is not known.

    ``joined``: how many of them NVLink joins with each other where it joins most; 1 where it joins none, or that is not known.
    ``without_mig``: its sources say that it has none; False also where nobody knows.
    ``capability``: its compute capability (``8.0``). ``memory_gb`` is the marketing size: plans use what NVML reports.
    ``confidence``: high, medium or low, of all its numbers together.
    """

    id: str
    product: str
    memory_gb: int
    sm: int
    geometry: str | None
    confidence: str
    joined: int = 1
    without_mig: bool = False
    capability: str | None = field(default=None, compare=False)


class Catalogue:
    """All boards of data/boards.yml and all usable geometries of data/geometry.yml (plain data, as they are written there)."""

    def __init__(self, boards: Data, geometries: Data) -> None:
        self.boards: dict[str, Board] = {}
        self._by_device: dict[str, Board] = {}
        self._by_name: dict[str, Board] = {}
        for entry in boards["boards"]:
            mig = entry["mig"].get("geometry")
            board = Board(
                entry["id"],
                entry["product"],
                entry["memory_gb"],
                entry["sm"] or 0,
                mig,
                entry["confidence"],
                _joined(entry),
                entry["mig"].get("supported") is False,
                entry.get("compute_capability"),
            )
            self.boards[board.id] = board
            self._by_device.update(dict.fromkeys((each.lower() for each in entry["pci_device_ids"]), board))
            self._by_name.update(dict.fromkeys((each.lower() for each in entry["nvml_names"]), board))
        self._geometries = _geometries(geometries["geometries"])
        # Names of MIG profiles, of geometries too of which not all numbers are known.
        self.profiles: frozenset[str] = frozenset(row["name"] for entry in geometries["geometries"] for row in entry["profiles"])

    def find(self, device_id: str | None, name: str | None) -> Board | None:
        """A board by its PCI device id (``0x20B210DE``), else by its NVML name; None for one that is not in the catalogue."""
        return self._by_device.get((device_id or "").lower()) or self._by_name.get((name or "").lower())

    def board_id(self, device_id: str | None, name: str | None) -> str:
        """What plans and manifests call the board: its catalogue id, else its NVML name in the same form."""
        board = self.find(device_id, name)
        return board.id if board else slug(name or "unknown")

    def devices(self) -> dict[str, str]:
        """Board -> one of its PCI device ids (``20b2``), for the boards that have one here."""
        return {board.id: device[2:6] for device, board in self._by_device.items()}

    def fallback(self, device_id: str | None, name: str | None) -> Geometry | None:
        """Geometry from public sources, for a driver that tells none while MIG is off; None where any number of it is not known."""
        board = self.find(device_id, name)
        return None if board is None else self.of_board(board.id)

    def of_board(self, board_id: str) -> Geometry | None:
        """The same by the board's id; None for one that is not here."""
        board = self.boards.get(board_id)
        return None if board is None or board.geometry is None else self._geometries.get(board.geometry)


def _joined(entry: Data) -> int:
    """An HGX board joins eight; of cards that are bridged the catalogue says how many, and two where it says no number."""
    kind = entry.get("nvlink_kind") or ""
    cards = [int(number) for number in re.findall(r"\b([24])\b", kind.partition(";")[0])]
    return 8 if kind.startswith("sxm") else max(cards, default=2) if kind.startswith("bridge") else 1


def slug(name: str) -> str:
    """``NVIDIA H300 NVL`` -> ``h300-nvl``: lower case, the maker's name left out."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-") or "unknown"


def _geometries(entries: Iterable[Data]) -> dict[str, Geometry]:
    result: dict[str, Geometry] = {}
    for entry in entries:
        numbers = [entry["compute_slices"], entry["memory_slices"], *(value for row in entry["profiles"] for value in row.values())]
        if entry["profiles"] and None not in numbers:
            rows = [Profile(**{**row, "starts": tuple(row["starts"])}) for row in entry["profiles"]]
            result[entry["key"]] = Geometry(entry["compute_slices"], entry["memory_slices"], tuple(rows))
    return result
