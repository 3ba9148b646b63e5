# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Model files of a service in the model store of a host: there, and with the checksums that the manifest states, before anything stops.

What is missing is copied from another directory of the host (an archive that is mounted there) where the site names one, under another
name first, so that the store never has a part of a file. A file that is there with another checksum is never overwritten: a version that
runs may have it open, and reads of it what it needs when it needs it.

Hashing hundreds of GiB takes minutes, so what was hashed is remembered, with the size, the time of the last change and the inode of the
file that was hashed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import typing as t
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, sync_directory, write_json

FILE = "model-files.json"
FORMAT = 1
BLOCK = 2**22  # bytes read at once
_PART = ".gpuops-part"
_SHORT = 12  # characters of a checksum that tell two files apart for a person


@dataclass(frozen=True)
class Wish:
    """A file below the store and its SHA-256 in hexadecimal."""

    path: str
    sha256: str


@dataclass
class Staged:
    """What was done, or would be: ``copied`` files, by their path below the store."""

    copied: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)


class ModelFiles:
    """The model store of a host. ``source``: where missing files come from, None for nowhere.

    ``alive`` is called at every block that is read, which may go on for longer than a lease: to renew it, or to raise when it is lost.
    """

    def __init__(
        self, store: Path, state_dir: Path, source: Path | None = None, check: bool = False, alive: Callable[[], None] = lambda: None
    ) -> None:
        self._store, self._source, self._check, self._alive = store, source, check, alive
        self._memory = state_dir / FILE
        known = read_json(self._memory) or {"format": FORMAT, "files": {}}
        if known.get("format") != FORMAT or not isinstance(known.get("files"), Mapping):
            raise FleetError("this is no list of checksums", file=str(self._memory), hint="remove it; the files are hashed again then")
        self._known: dict[str, t.Any] = dict(known["files"])

    def stage(self, paths: Iterable[str], wishes: Sequence[Wish]) -> Staged:
        """See that every path is there and every file has its checksum; copy what is missing.

        FleetError with every reason at once when something is missing or differs; what was copied by then stays, for it is right.
        """
        staged, problems = Staged(), []
        before = dict(self._known)
        try:
            for wish in wishes:
                problem = self._stage(wish, staged)
                if problem:
                    problems.append(problem)
            coming = {parent for wish in wishes for parent in (wish.path, *map(str, Path(wish.path).parents))}
            for path in paths:
                if not (self._store / path).exists() and path not in coming:
                    problems.append(f"the model store {self._store} has no {path}")
        finally:
            if self._known != before and not self._check:
                write_json(self._memory, {"format": FORMAT, "files": {name: self._known[name] for name in sorted(self._known)}})
        if problems:
            raise FleetError("; ".join(problems), hint="nothing was stopped")
        return staged

    def _stage(self, wish: Wish, staged: Staged) -> str | None:
        """None when the file is there as wished (or would be), else why not."""
        target = self._store / wish.path
        try:
            if target.exists():
                return self._compared(target, wish, f"{wish.path} in the model store {self._store}")
            if self._source is None:
                return f"the model store {self._store} has no {wish.path}"
            origin = self._source / wish.path
            if not origin.is_file():
                return f"neither the model store {self._store} nor {self._source} has a file {wish.path}"
            problem = self._compared(origin, wish, f"{wish.path} in {self._source}") if self._check else self._copy(origin, target, wish)
        except OSError as error:
            return f"{wish.path}: {error.strerror or error}"
        if problem is None:
            staged.copied.append(wish.path)
            staged.steps.append(f"copy {wish.path} from {self._source} to {self._store}")
        return problem

    def _compared(self, path: Path, wish: Wish, name: str) -> str | None:
        if not path.is_file():
            return f"{name} is no file"
        found = self._sha256(path)
        if found == wish.sha256:
            return None
        return f"{name} has checksum {found[:_SHORT]}..., and {wish.sha256[:_SHORT]}... is wished: give a new version another path"

    def _sha256(self, path: Path) -> str:
        marks = _marks(path)
        known = self._known.get(str(path))
        if isinstance(known, Mapping) and known.get("marks") == marks:
            return str(known.get("sha256"))
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(BLOCK):
                self._alive()
                digest.update(block)
        if _marks(path) == marks:  # else somebody writes to it at this moment
            self._known[str(path)] = {"marks": marks, "sha256": digest.hexdigest()}
        return digest.hexdigest()

    def _copy(self, origin: Path, target: Path, wish: Wish) -> str | None:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = target.with_name(target.name + _PART)
        size, free = origin.stat().st_size, shutil.disk_usage(target.parent).free
        if size > free:
            return f"{wish.path} has {size >> 20} MiB, and {self._store} has {free >> 20} MiB left"
        try:
            digest = hashlib.sha256()
            with origin.open("rb") as reading, part.open("wb") as writing:
                while block := reading.read(BLOCK):
                    self._alive()
                    digest.update(block)
                    writing.write(block)
                writing.flush()
                os.fchmod(writing.fileno(), 0o644)
                os.fsync(writing.fileno())
            if digest.hexdigest() != wish.sha256:
                found = digest.hexdigest()[:_SHORT]
                return f"{wish.path} in {self._source} has checksum {found}..., and {wish.sha256[:_SHORT]}... is wished"
            os.replace(part, target)
            sync_directory(target.parent)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
        self._known[str(target)] = {"marks": _marks(target), "sha256": wish.sha256}
        return None


def _marks(path: Path) -> list[int]:
    """What changes when a file does: its size in bytes, the time of its last change in ns, and which inode it is."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ino]
