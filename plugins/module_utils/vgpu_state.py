# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vGPUs that a host remembers, because neither they nor virtual functions survive a boot.

``vgpus.json``: ``{format: 1, gpus: {PCI address: {vfs, mixed, scheduler, vgpus: [...], identity, boot}}}``, lines as of
``vgpu_wish.line_of``. ``identity``: UUID, vendor and device of the card, for an address may have another one after a change of hardware.
``boot``: in which the scheduler was set.
"""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

FORMAT = 1
FILE = "vgpus.json"


def remembered(state_dir: Path) -> dict[str, t.Any]:
    """The line of every GPU that the host remembers, by address. FleetError when the file is damaged or of another release."""
    path = state_dir / FILE
    data = read_json(path)
    if data is None:
        return {}
    if data.get("format") != FORMAT or not isinstance(data.get("gpus"), dict):
        hint = "run module vgpu again: that writes the file anew"
        raise FleetError(f"it has format {data.get('format')} and this release knows format {FORMAT}", file=str(path), hint=hint)
    return dict(data["gpus"])


def remember(state_dir: Path, lines: Mapping[str, t.Any]) -> str | None:
    """Keep these GPUs' lines; those of other GPUs stay. Nothing is written when nothing is new. A note when the old file was of no use."""
    note = None
    try:
        known = remembered(state_dir)
    except FleetError as error:
        known, note = {}, f"what was remembered of the vGPUs is of no use ({error}){_put_aside(state_dir)}"
    if note is None and all(known.get(gpu) == line for gpu, line in lines.items()):
        return None
    write_json(state_dir / FILE, {"format": FORMAT, "gpus": {**known, **lines}})
    return note


def _put_aside(state_dir: Path) -> str:
    path = state_dir / FILE
    aside = path.with_name(path.name + ".unreadable")
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"; it cannot be put aside: {error.strerror}"
    return f"; it lies at {aside} now"
