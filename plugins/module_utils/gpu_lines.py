# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of its GPUs, a line each, in a file of its state directory: ``{format: 1, gpus: {UUID or PCI address: line}}``."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import put_aside, read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class GpuLines:
    """The file ``name``. ``what`` it is, and how it is written anew (``hint``), for messages."""

    name: str
    what: str
    hint: str

    def read(self, state_dir: Path) -> dict[str, t.Any]:
        """The line of every GPU that the host remembers. FleetError when the file is damaged or of another release."""
        path = state_dir / self.name
        data = read_json(path)
        if data is None:
            return {}
        if data.get("format") != FORMAT or not isinstance(data.get("gpus"), dict):
            wrong = f"it has format {data.get('format')} and this release knows format {FORMAT}"
            raise FleetError(wrong, file=str(path), hint=self.hint)
        return dict(data["gpus"])

    def put_aside(self, state_dir: Path) -> str:
        """Take a file that is of no use out of the way; where it lies then, in words."""
        return put_aside(state_dir / self.name)

    def has(self, state_dir: Path, lines: Mapping[str, t.Any]) -> bool:
        """Whether exactly these lines are remembered of these GPUs."""
        try:
            known = self.read(state_dir)
        except FleetError:
            return False
        return all(known.get(gpu) == line for gpu, line in lines.items())

    def keep(self, state_dir: Path, lines: Mapping[str, t.Any]) -> str | None:
        """Keep these GPUs' lines; those of other GPUs stay. Nothing is written when nothing is new. A note when the old file was of no use.

        Only for whoever holds the lock of such changes on this host.
        """
        if self.has(state_dir, lines):
            return None
        note = None
        try:
            known = self.read(state_dir)
        except FleetError as error:
            known, note = {}, f"{self.what} is of no use ({error}); {self.put_aside(state_dir)}"
        write_json(state_dir / self.name, {"format": FORMAT, "gpus": {**known, **lines}})
        return note
