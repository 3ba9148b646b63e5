# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON files that survive a crash, and the journal of a change that was begun.

A file is written beside its place, forced to disk and then renamed onto it, so that a reader (and a host that lost power)
finds the old content or the new one, never a part of it. POSIX rename(2) and fsync(2) of the directory give that promise.
"""

from __future__ import annotations

import contextlib
import json
import os
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

_TEMPORARY = ".gpuops-new"


def write_text(path: Path, text: str, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Put ``text`` into ``path`` all at once, with these permission bits; a missing directory is made (0750). FleetError when it fails.

    ``owner``: user and group by number that the file shall have; this process's when left out.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            if owner is not None:
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)  # umask took bits from open()
            stream.write(text)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise FleetError(f"cannot write {path}: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """The rename itself is on disk only after this."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_aside(path: Path) -> str:
    """Take a file that is of no use out of the way; where it lies then, in words."""
    aside = path.with_name(path.name + ".unreadable")
    try:
        os.replace(path, aside)
    except OSError as error:
        return f"it cannot be put aside: {error.strerror}"
    return f"it lies at {aside} now"


def write_json(path: Path, data: t.Any) -> None:
    """As :func:`write_text`, for data; readable by root and its group only (0640)."""
    write_text(path, json.dumps(data, indent=1, sort_keys=True) + "\n", 0o640)


def read_text(path: Path) -> str | None:
    """The file's text; None when there is no such file. FleetError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}") from error


def read_json(path: Path) -> dict[str, t.Any] | None:
    """The mapping that a file holds; None when there is no such file. FleetError when it is anything else."""
    text = read_text(path)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FleetError(
            "this file is not JSON", file=str(path), hint="it was not written by this collection; look at it and remove it"
        ) from error
    if not isinstance(data, dict):
        raise FleetError(
            "this file holds no mapping", file=str(path), hint="it was not written by this collection; look at it and remove it"
        )
    return data


@dataclass(frozen=True)
class Unfinished:
    """What an earlier change left: layouts to go back to and wished ones, by GPU, and services that it had stopped.

    ``words``: a sentence about it, None when there is nothing to say.
    """

    words: str | None = None
    before: t.Mapping[str, t.Any] = field(default_factory=dict)
    wish: t.Mapping[str, t.Any] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()


class Journal:
    """What a change set out to do, on disk before its first step.

    ``{state: open | closed, before: {GPU: ...}, wish: {GPU: ...}, steps, outcome, stopped}``. It stays open for a GPU that is neither as
    wished nor as before; GPUs that a later change does not name keep their lines until one does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def unfinished(self, repair: bool = True) -> Unfinished:
        """What a change that began and never ended left, because its process or the host died or an error lasted.

        A file that is torn or foreign must stop nobody: it is put aside, beside its place, unless ``repair`` is False.
        """
        try:
            entry = read_json(self.path)
        except FleetError as error:
            return Unfinished(f"the journal of earlier changes is of no use ({error})" + (f"; {put_aside(self.path)}" if repair else ""))
        if entry is None or entry.get("state") != "open":
            return Unfinished()
        maps = [value if isinstance(value, dict) else {} for value in (entry.get("before"), entry.get("wish"))]
        steps, stopped = (value if isinstance(value, list) else [] for value in (entry.get("steps"), entry.get("stopped")))
        words = f"an earlier change did not come to its end; it had {len(steps)} steps: {'; '.join(map(str, steps))}"
        return Unfinished(words, maps[0], maps[1], tuple(map(str, stopped)))

    def begin(self, before: t.Mapping[str, t.Any], wish: t.Mapping[str, t.Any], steps: t.Sequence[str]) -> None:
        """Record the state to go back to, the wish and what is about to be done. What was unfinished of other GPUs stays recorded."""
        old = self.unfinished()
        # Of a GPU that an earlier change left half done, the layout before that one is the old one.
        entry = {
            "before": {**before, **old.before},
            "wish": {**old.wish, **wish},
            "steps": list(steps),
            "outcome": None,
            "stopped": list(old.stopped),
        }
        write_json(self.path, {"state": "open", **entry})

    def stop(self, units: t.Iterable[str]) -> None:
        """Record services that are about to be stopped, so that a crash does not leave them so."""
        entry = self._entry()
        write_json(self.path, {**entry, "state": "open", "stopped": sorted({*entry.get("stopped", ()), *units})})

    def finish(self, outcome: str, left: t.Collection[str] = (), stopped: t.Sequence[str] = ()) -> None:
        """The change came to an end: ``done``, or in words what went wrong and what was put back.

        ``left``: GPUs that are neither as wished nor as before. ``stopped``: services that could not be started again.
        """
        entry = self._entry()
        if left:
            for key in ("before", "wish"):
                entry[key] = {gpu: line for gpu, line in (entry.get(key) or {}).items() if gpu in left}
        state = "open" if left or stopped else "closed"
        write_json(self.path, {**entry, "state": state, "outcome": outcome, "stopped": list(stopped)})

    def _entry(self) -> dict[str, t.Any]:
        try:
            return read_json(self.path) or {}
        except FleetError:
            return {}  # somebody damaged it; that the change ended is worth more than what it was
