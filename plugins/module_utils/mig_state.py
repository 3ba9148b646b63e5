# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout that a host remembers, because GPU instances survive no reboot and the MIG mode not on every board.

``layout.json``: ``{format: 1, gpus: {UUID: {mig, slices: [{profile, start, compute, temporary?}]}}}``, lines as of ``mig_wish.line_of``.
"""

from __future__ import annotations

import os
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal, read_json, write_json

FORMAT = 1
JOURNAL = "mig-journal.json"
_FILE = "layout.json"


def remembered(state_dir: Path) -> dict[str, t.Any]:
    """The line of every GPU that the host remembers, by UUID. FleetError when the file is damaged or of another release."""
    path = state_dir / _FILE
    data = read_json(path)
    if data is None:
        return {}
    if data.get("format") != FORMAT or not isinstance(data.get("gpus"), dict):
        hint = "apply the layout again: that writes the file anew"
        raise FleetError(f"it has format {data.get('format')} and this release knows format {FORMAT}", file=str(path), hint=hint)
    return dict(data["gpus"])


def temporary(state_dir: Path) -> set[tuple[str, int, str]]:
    """(GPU, start, profile) of slices that were made for a while: those remembered, and those of a change that never came to its end.

    Whether they exist, NVML says. FleetError as of :func:`remembered`.
    """
    lines = [*remembered(state_dir).items(), *Journal(state_dir / JOURNAL).unfinished(repair=False).wish.items()]
    try:
        return {(gpu, int(one["start"]), str(one["profile"])) for gpu, line in lines for one in line["slices"] if one.get("temporary")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FleetError(f"what is remembered of slices cannot be read: {type(error).__name__} {error}") from error


def put_aside(state_dir: Path) -> str:
    """Take a file that is of no use out of the way; where it lies then, in words."""
    path = state_dir / _FILE
    aside = path.with_name(path.name + ".unreadable")
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"it cannot be put aside: {error.strerror}"
    return f"it lies at {aside} now"


def has(state_dir: Path, lines: Mapping[str, t.Any]) -> bool:
    """Whether exactly these lines are remembered of these GPUs."""
    try:
        known = remembered(state_dir)
    except FleetError:
        return False
    return all(known.get(gpu) == line for gpu, line in lines.items())


def remember(state_dir: Path, lines: Mapping[str, t.Any]) -> str | None:
    """Keep these GPUs' lines; those of other GPUs stay. Nothing is written when nothing is new. A note when the old file was of no use.

    Only for whoever holds the lock of MIG changes on this host.
    """
    if has(state_dir, lines):
        return None
    note = None
    try:
        known = remembered(state_dir)
    except FleetError as error:
        known, note = {}, f"the remembered layout is of no use ({error}); {put_aside(state_dir)}"
    write_json(state_dir / _FILE, {"format": FORMAT, "gpus": {**known, **lines}})
    return note
