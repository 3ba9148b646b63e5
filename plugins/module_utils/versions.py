# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The versions of a replica that its host keeps, so that an earlier one can serve again.

``<state_dir>/versions/<replica>/<number>/`` has ``compose.yml`` and ``devices.json`` as the version ran, and ``version.json``:
``{format: 1, number, digest, image, by, since, outcome, reason, manifest: {file, text}}``. ``outcome``: ``serving``, ``replaced`` by a
newer one, ``failed`` its gate, ``rolled-back`` in favour of an earlier one. Numbers grow by one and are never used twice. ``version.json``
is written last: a directory without it is of a process that died, and counts for nobody. Two that serve are of one that died between the
two lines: the newer one does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import typing as t
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, write_text
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import DEVICES_FILE, Device, parse_devices, read_devices

FORMAT = 1
SERVING, REPLACED, FAILED, ROLLED_BACK = "serving", "replaced", "failed", "rolled-back"
COMPOSE_FILE, VERSION_FILE = "compose.yml", "version.json"
BEFORE = "(before versions were kept)"  # who started what was found running

_MODE = 0o640
_NUMBER = re.compile(r"\d{6}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_IMAGE = re.compile(r"^\s+image:\s*['\"]?([^'\"\s]+)", re.MULTILINE)


@dataclass(frozen=True)
class Files:
    """A version as it is on disk: texts, empty where there is none."""

    compose: str
    devices: str = ""

    @property
    def digest(self) -> str:
        """For one whose manifest nobody knows."""
        return "sha256:" + hashlib.sha256(self.compose.encode()).hexdigest()

    @property
    def image(self) -> str:
        """The first image that the compose file names; empty for none."""
        found = _IMAGE.search(self.compose)
        return found.group(1) if found else ""


@dataclass(frozen=True)
class Version:
    """What is known of one version. ``digest``: of its manifest. ``since``: ``2026-11-21T12:00:00Z``."""

    number: int
    digest: str
    image: str
    by: str
    since: str
    outcome: str
    reason: str = ""
    manifest_file: str | None = None
    manifest_text: str | None = None

    def data(self) -> dict[str, t.Any]:
        """As ``version.json`` has it."""
        manifest = {"file": self.manifest_file, "text": self.manifest_text}
        own = {"number": self.number, "digest": self.digest, "image": self.image, "by": self.by, "since": self.since}
        return {"format": FORMAT, **own, "outcome": self.outcome, "reason": self.reason, "manifest": manifest}

    def line(self) -> str:
        """For a diff: ``version 3: serving, sha256:77ab... of registry.example.com/ocr@sha256:..., by alice``."""
        why = f" ({self.reason})" if self.reason else ""
        return f"version {self.number}: {self.outcome}{why}, {self.digest} of {self.image}, by {self.by} since {self.since}"


@dataclass(frozen=True)
class Change:
    """What was done, or would be: versions before and after, and the one that it is about (None: there is none)."""

    before: tuple[Version, ...]
    after: tuple[Version, ...]
    version: Version | None
    changed: bool

    def diff(self) -> dict[str, str]:
        """A line for each version."""
        return {"before": _lines(self.before), "after": _lines(self.after)}


def _lines(versions: Iterable[Version]) -> str:
    return "".join(f"{version.line()}\n" for version in versions)


def files_in(directory: Path) -> Files | None:
    """What a project's directory has; None without a compose file."""
    compose = read_text(directory / COMPOSE_FILE)
    return None if compose is None else Files(compose, read_text(directory / DEVICES_FILE) or "")


def devices_again(files: Files, wished: Sequence[Device], others: Callable[[], Mapping[str, Sequence[Device]]]) -> list[Device]:
    """On what a version with these files serves again, of a replica that is meant to have ``wished`` now.

    That is where it is meant to be, if that has as many devices as the version knows. Else it is where the version was, unless one of
    ``others`` (devices by replica, asked for only then) has something of that now: FleetError.
    """
    had = parse_devices(files.devices) if files.devices else list(wished)
    names, now = {device.name for device in had}, {device.name for device in wished}
    if names <= now:
        return [device for device in wished if device.name in names]
    meant = {device.gpu for device in wished}
    for name, theirs in others().items():
        for device in had:
            if device.gpu not in meant and any(_overlap(device, one) for one in theirs):
                raise FleetError(f"it needs {len(had)} devices, its place has {len(wished)} now, and {device.where} is {name}'s")
    return had


def _overlap(one: Device, other: Device) -> bool:
    whole = one.profile is None or other.profile is None
    return one.gpu == other.gpu and (whole or (one.profile, one.start) == (other.profile, other.start))


def devices_of_others(services_dir: Path, name: str) -> dict[str, list[Device]]:
    """The devices of the other replicas on this host, by what is written in their directories. FleetError when a file is damaged."""
    folders = [path for path in sorted(services_dir.iterdir()) if path.name != name] if services_dir.is_dir() else []
    found = {path.name: read_devices(path / DEVICES_FILE) for path in folders}
    return {other: known[2] for other, known in found.items() if known is not None}


def replicas_in(state_dir: Path) -> list[str]:
    """Names of the replicas of which versions are kept."""
    root = state_dir / "versions"
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


@t.final
class Versions:
    """The versions of one replica on this host. With ``check`` nothing is written."""

    def __init__(self, state_dir: Path, name: str, check: bool = False) -> None:
        if not _NAME.fullmatch(name):
            raise FleetError(f"'{name}' cannot be the name of a replica", field="name", hint="write one like receipt-ocr-1")
        self._root = state_dir / "versions" / name
        self._check = check

    def all(self) -> list[Version]:
        """Every version, by number. FleetError when a file is damaged."""
        return [version for version in map(self._read, self._folders()) if version is not None]

    def serving(self) -> Version | None:
        """The one that serves, or did when it was last seen."""
        return next((version for version in reversed(self.all()) if version.outcome == SERVING), None)

    def files(self, version: Version) -> Files:
        """The files of a version. FleetError when they are gone."""
        found = files_in(self._folder(version.number))
        if found is None:
            raise FleetError(f"version {version.number} has no {COMPOSE_FILE} any more", file=str(self._folder(version.number)))
        return found

    def _folders(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if _NUMBER.fullmatch(path.name))

    def _folder(self, number: int) -> Path:
        return self._root / f"{number:06d}"

    def _read(self, folder: Path) -> Version | None:
        path = folder / VERSION_FILE
        data = read_json(path)
        if data is None:
            return None
        hint = "remove its directory: that version cannot serve again then"
        try:
            if data["format"] != FORMAT:
                raise FleetError(f"it has format {data['format']} and this release knows format {FORMAT}", file=str(path), hint=hint)
            texts = {key: str(data[key]) for key in ("digest", "image", "by", "since", "outcome", "reason")}
            manifest = {"manifest_file": data["manifest"]["file"], "manifest_text": data["manifest"]["text"]}
            return Version(number=int(data["number"]), **texts, **manifest)
        except (KeyError, TypeError, ValueError) as error:
            raise FleetError("this file describes no version", file=str(path), hint=hint) from error

    # --- changes

    def keep(self, found: Files | None, since: str) -> Change:
        """See that what serves now can serve again: where no version does yet, what is in the project's directory becomes one."""
        before = tuple(self.all())
        serving = next((version for version in reversed(before) if version.outcome == SERVING), None)
        if serving is not None or found is None:
            return Change(before, before, serving, False)
        new = Version(self._next(), found.digest, found.image, BEFORE, since, SERVING)
        self._write(new, found)
        return Change(before, (*before, new), new, True)

    def serve(self, wanted: Version, found: Files, keep: int) -> Change:
        """The version in the project's directory serves. ``wanted``: what is known of it, its number and outcome apart.

        The same manifest as before is the same version, whose files and text are kept as they are now. ``keep``: how many versions that
        served are kept, and as many that failed.
        """
        before = tuple(self.all())
        old = [version for version in before if version.outcome == SERVING]
        serving = old[-1] if old else None
        if serving is not None and serving.digest == wanted.digest:
            new = serving
            if wanted.manifest_text is not None:  # what it is not made of may have changed since: its route, its number of replicas
                new = replace(serving, manifest_file=wanted.manifest_file, manifest_text=wanted.manifest_text)
            fresh = self.files(serving) != found or new != serving
        else:
            new, fresh = replace(wanted, number=self._next(), outcome=SERVING, reason=""), True
        if fresh:
            self._write(new, found)
        earlier = [version for version in before if version.number != new.number and version.outcome != FAILED]
        known_before = any(version.digest == wanted.digest for version in earlier)
        word = ROLLED_BACK if known_before else REPLACED
        left = [replace(version, outcome=word) for version in old if version.number != new.number]
        for version in left:
            self._note(version)
        now = {version.number: version for version in (*before, *left, new)}
        gone = self._surplus(list(now.values()), keep)
        self._remove(gone)
        after = tuple(version for number, version in sorted(now.items()) if number not in gone)
        return Change(before, after, new, fresh or bool(left) or bool(gone))

    def fail(self, wanted: Version, found: Files | None, keep: int) -> Change:
        """A version did not pass. A second failure of the same one takes the place of the first."""
        before = tuple(self.all())
        again = before[-1] if before and (before[-1].outcome, before[-1].digest) == (FAILED, wanted.digest) else None
        new = replace(wanted, number=again.number if again else self._next(), outcome=FAILED)
        self._write(new, found or Files(""))
        now = {version.number: version for version in (*before, new)}
        gone = self._surplus(list(now.values()), keep)
        self._remove(gone)
        return Change(before, tuple(version for number, version in sorted(now.items()) if number not in gone), new, True)

    def restore(self, directory: Path) -> tuple[Version, Files, bool]:
        """Put the compose file of the version that serves back into the project's directory; whether it was another one.

        Which slice it gets is not restored; :func:`devices_again` tells.
        """
        serving = self.serving()
        if serving is None:
            raise FleetError("there is no version that served before", hint="correct the manifest and deploy again")
        kept, path = self.files(serving), directory / COMPOSE_FILE
        changed = read_text(path) != kept.compose
        if changed and not self._check:
            write_text(path, kept.compose, _MODE)
        return serving, kept, changed

    def forget(self) -> bool:
        """Remove every version; whether there was any."""
        there = self._root.exists()
        if there and not self._check:
            _remove_tree(self._root)
        return there

    def _next(self) -> int:
        """A number that no directory has, whole or not."""
        folders = self._folders()
        return int(folders[-1].name) + 1 if folders else 1

    def _write(self, version: Version, files: Files) -> None:
        if self._check:
            return
        folder = self._folder(version.number)
        write_text(folder / COMPOSE_FILE, files.compose, _MODE)
        write_text(folder / DEVICES_FILE, files.devices, _MODE)
        self._note(version)

    def _note(self, version: Version) -> None:
        if not self._check:
            text = json.dumps(version.data(), indent=1, ensure_ascii=False) + "\n"
            write_text(self._folder(version.number) / VERSION_FILE, text, _MODE)

    def _surplus(self, versions: Sequence[Version], keep: int) -> set[int]:
        """Numbers of what is too much: the oldest of those that served and of those that failed, each counted apart.

        Never the one that serves, nor the newest that it replaced: what is gone back to outlives tries that fail, and ``keep: 1``.
        """
        served = sorted((one for one in versions if one.outcome != FAILED), key=lambda one: one.number)
        failed = sorted((one for one in versions if one.outcome == FAILED), key=lambda one: one.number)
        serving = [one for one in served if one.outcome == SERVING]
        aims = [one for one in served if one.outcome == REPLACED and one.digest not in {each.digest for each in serving}]
        safe = {one.number for one in (*serving, *aims[-1:])}
        return {one.number for one in (*served[:-keep], *failed[:-keep])} - safe

    def _remove(self, numbers: Iterable[int]) -> None:
        """``version.json`` first: half a directory is no version."""
        for number in sorted(numbers):
            if not self._check:
                with contextlib.suppress(FileNotFoundError):
                    (self._folder(number) / VERSION_FILE).unlink()
                _remove_tree(self._folder(number))


def _remove_tree(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise FleetError(f"cannot remove {folder}: {error.strerror}") from error
