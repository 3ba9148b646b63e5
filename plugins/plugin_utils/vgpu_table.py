# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which vGPU types are known, and how many of each one GPU has at most: ``data/vgpu_types.yml``, checked.

A type that is not in it may exist all the same: what a host lists rules, and what is not known blocks nothing.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable

from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Strict, check

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located

_SOURCE = "NVIDIA's list of vGPU types"


class _Counts(Strict):
    conf: t.Literal["A", "B", "C", "U"]
    sources: list[str]
    boards: dict[str, dict[str, int]]


class _Cards(Strict):
    conf: t.Literal["A", "B", "C", "U"]
    sources: list[str]
    boards: dict[str, str]


class _File(Strict):
    format: int
    sources: dict[str, str]
    types: _Counts
    mixed: _Counts
    cards: _Cards


class VgpuTable:
    """The data, with the questions that it answers."""

    def __init__(self, located: Located) -> None:
        """:raises FleetError: a field that is not known or missing, a name that is no type, a source that is not listed."""
        self._file = check(_File, located)
        for block in ("types", "mixed", "cards"):
            for key in getattr(self._file, block).sources:
                if key not in self._file.sources:
                    raise located.error((block, "sources"), f"'{key}' is not among the sources", "add it to 'sources', with its address")
        for block in ("types", "mixed"):
            for board, types in getattr(self._file, block).boards.items():
                for name in types:
                    if vgpu_types.parse(f"{board}-{name}") is None:
                        wrong = f"'{board}-{name}' is no vGPU type"
                        raise located.error((block, "boards", board, name), wrong, "write it as in 10C or 1-10C")

    def names(self) -> list[str]:
        """Every type that is known, by its short name."""
        return [f"{board}-{name}" for board, types in self._file.types.boards.items() for name in types]

    def card(self, name: str) -> str | None:
        """The card that a type is of, in words."""
        kind = vgpu_types.parse(name)
        return None if kind is None else self._file.cards.boards.get(kind.board)

    def limits(self, names: Iterable[str]) -> dict[str, dict[str, t.Any]]:
        """Of these types ``{short name as a host has it: {most, mixed, source}}``; those that are not known are left out."""
        found = {}
        for name in names:
            kind = vgpu_types.parse(name)
            if kind is None:
                continue
            rest = str(kind).removeprefix(f"{kind.board}-")
            most, mixed = (self._get(block, kind.board, rest) for block in ("types", "mixed"))
            if most is not None or mixed is not None:
                found[kind.listed] = {"most": most, "mixed": mixed, "source": _SOURCE}
        return found

    def _get(self, block: str, board: str, name: str) -> int | None:
        counts = getattr(self._file, block)
        return None if counts.conf == "U" else counts.boards.get(board, {}).get(name)
