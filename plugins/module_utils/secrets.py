# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of services, kept so that a host can start them after a reboot with no controller near.

At rest each secret is one file ``<state_dir>/secrets/<replica>/<name>.json``, 0600 in directories 0700. Its value is sealed by
``systemd-creds`` with a key of this host or its TPM2 where that works, which is found out by trying; else the file's permissions are all
that guards it, and ``sealed`` says so. For the service it lies in plain text below ``/run``, in memory: ``<secrets_dir>/<replica>/<name>``.
``secrets_dir`` and what is in it are 0700, so no other user of the host gets that far, while the file itself may be readable by all:
bind-mounted, it is seen by the container's user, whoever that is.

A value is handed over by stdin and stdout only, never as an argument or in the environment.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets as random
import shutil
import subprocess
import typing as t
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_text

FORMAT = 1
SYSTEMD, FILE = "systemd-creds", "file"
DEFAULT_DIR = "/run/gpuops-fleet/secrets"
KNOWN_AFTER_APPLY = "(known after apply)"

_DEADLINE_S = 60.0  # a TPM is slow
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MODE = re.compile(r"0?[0-7]{3}")
# The limit of systemd-creds (CREDENTIAL_SIZE_MAX in src/shared/creds-util.h) for what is sealed; text of that size in base64 must fit.
_MOST_BYTES = 512 * 1024

_Json = Mapping[str, t.Any]


@dataclass(frozen=True)
class Access:
    """Who may read the file below ``/run``: permission bits as text (``0444``), owner and group by number (None: root, who writes it)."""

    mode: str = "0444"
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True)
class _Stored:
    """A secret at rest: how its ``data`` is sealed, and an ``id`` that is another one for each value that was ever stored."""

    id: str
    sealed: str
    data: bytes
    access: Access


@dataclass(frozen=True)
class Change:
    """What :meth:`Secrets.apply` did or would do. ``lines_before`` and ``lines_after``: one for each secret, never with a value.

    ``others``: names of what is kept although it was not wanted.
    """

    changed: bool
    lines_before: list[str]
    lines_after: list[str]
    sealed: dict[str, str]
    revision: str
    others: tuple[str, ...] = ()


def materialise(config: _Json, replica: str) -> list[str]:
    """Put the secrets of a replica where its containers find them; their names. FleetError when one cannot be read or written.

    ``config``: ``state_dir`` and ``secrets_dir`` count. What lies there and is right is left alone.
    """
    return Secrets.of(config, replica).materialise()


def remove(config: _Json, replica: str) -> bool:
    """Forget every secret of a replica, at rest and below ``/run``; True when there was any."""
    return Secrets.of(config, replica).remove()


@t.final
class Secrets:
    """The secrets of one replica on this host."""

    def __init__(self, state_dir: Path, secrets_dir: Path, replica: str) -> None:
        _check_name(replica, "replica")
        self._root, self._plain_root = state_dir / "secrets", secrets_dir
        self._kept, self._plain = self._root / replica, secrets_dir / replica
        self._replica = replica

    @staticmethod
    def of(config: _Json, replica: str) -> Secrets:
        """With the usual places for what ``config`` does not say."""
        state_dir = Path(config.get("state_dir") or "/var/lib/gpuops-fleet")
        return Secrets(state_dir, Path(config.get("secrets_dir") or DEFAULT_DIR), replica)

    def names(self) -> list[str]:
        """Names of what is stored."""
        return sorted(path.name[: -len(".json")] for path in self._kept.glob("*.json"))

    def apply(self, wanted: Mapping[str, t.Any], access: Access, check: bool, purge: bool = True) -> Change:
        """Keep exactly these secrets, and have them ready below ``/run``. ``check``: only say what would be done.

        Without ``purge`` the others stay as they are; the revision is of these alone, as it is when the others are gone.

        Values are compared by unsealing them here; one that cannot be unsealed any more is stored anew.
        """
        _check_access(access)
        values = {name: _check_value(name, value) for name, value in wanted.items()}
        found = {name: self._read(name) for name in self.names()}
        fresh = {name for name, value in values.items() if not self._holds(name, found.get(name), value)}
        other = {name for name in values if name not in fresh and t.cast(_Stored, found[name]).access != access}
        gone = set(found) - set(values) if purge else set()
        others = tuple(sorted(set(found) - set(values) - gone))
        changed = bool(fresh or other or gone) or not self._is_ready(values, access, bool(others))
        before = [_line(name, stored) for name, stored in found.items()]
        if not check and changed:
            for name in sorted(gone):
                self._unlink(name)
            for name in sorted(fresh):
                self._store(name, values[name], access)
            for name in sorted(other):
                self._write(name, t.cast(_Stored, found[name]), access)
            self._put_ready(values, access, others=bool(others))
            if not values and not others:
                self.remove()
        now = {name: found.get(name) if check else self._read(name) for name in sorted(values)}
        after = [_line(name, now[name], fresh=name in fresh, access=access) for name in now]
        after += [_line(name, found[name]) for name in others]
        sealed = {name: KNOWN_AFTER_APPLY if stored is None or (check and name in fresh) else stored.sealed for name, stored in now.items()}
        return Change(changed, before, after, sealed, KNOWN_AFTER_APPLY if check and (fresh or gone) else self._revision(values), others)

    def materialise(self) -> list[str]:
        """Put everything that is stored below ``/run``, and take away what is not; the names."""
        ready: dict[str, bytes] = {}
        access: dict[str, Access] = {}
        for name in self.names():
            stored = t.cast(_Stored, self._read(name))
            ready[name], access[name] = self._unseal(name, stored), stored.access
        if ready or self._plain.exists():
            for name, value in ready.items():
                self._put_ready({name: value}, access[name], others=True)
            self._put_ready(ready, Access(), write=False)
        return sorted(ready)

    def remove(self) -> bool:
        """Forget them all; True when there was any."""
        there = self._kept.exists() or self._plain.exists()
        for folder in (self._plain, self._kept):
            try:
                shutil.rmtree(folder)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise FleetError(f"cannot remove {folder}: {error.strerror}") from error
        return there

    def _path(self, name: str) -> Path:
        return self._kept / f"{name}.json"

    def _read(self, name: str) -> _Stored | None:
        path = self._path(name)
        data = read_json(path)
        if data is None:
            return None
        try:
            if data["format"] != FORMAT or data["sealed"] not in (SYSTEMD, FILE):
                raise ValueError
            access = Access(str(data["mode"]), data["uid"], data["gid"])
            return _Stored(str(data["id"]), data["sealed"], base64.b64decode(data["data"], validate=True), access)
        except (KeyError, TypeError, ValueError):
            # without the cause: a traceback of it could show what the file holds
            raise FleetError("this file is no secret of ours", file=str(path), hint="remove it and apply again") from None

    def _write(self, name: str, stored: _Stored, access: Access) -> None:
        data = {"format": FORMAT, "id": stored.id, "sealed": stored.sealed, "mode": access.mode, "uid": access.uid, "gid": access.gid}
        text = json.dumps({**data, "data": base64.b64encode(stored.data).decode()}, indent=1) + "\n"
        self._root.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        for folder in (self._root, self._kept):
            _make_private(folder)
        write_text(self._path(name), text, 0o600)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(name).unlink()

    def _store(self, name: str, value: bytes, access: Access) -> None:
        blob = self._seal(name, value)
        sealed, data = (FILE, value) if blob is None else (SYSTEMD, blob)
        self._write(name, _Stored(random.token_hex(8), sealed, data, access), access)

    def _holds(self, name: str, stored: _Stored | None, value: bytes) -> bool:
        if stored is None:
            return False
        try:
            return self._unseal(name, stored) == value
        except FleetError:
            return False  # the key is another one now; it is stored anew

    def _credential(self, name: str) -> str:
        """The name that is sealed in, so that one secret's file cannot be put in another's place."""
        return f"gpuops.{self._replica}.{name}"

    def _seal(self, name: str, value: bytes) -> bytes | None:
        """The value under a key of this host; None when systemd-creds is missing or cannot do it here and now.

        Without PCRs: a new firmware would lock every secret away at the next boot, when no controller is near.
        """
        how = [f"--name={self._credential(name)}", "--with-key=auto", "--tpm2-pcrs="]
        blob = _systemd_creds(["encrypt", *how, "-", "-"], value)
        if not blob or _systemd_creds(["decrypt", f"--name={self._credential(name)}", "-", "-"], blob) != value:
            return None
        return blob

    def _unseal(self, name: str, stored: _Stored) -> bytes:
        if stored.sealed == FILE:
            return stored.data
        value = _systemd_creds(["decrypt", f"--name={self._credential(name)}", "-", "-"], stored.data)
        if value is None:
            wrong = f"secret {name} of {self._replica} cannot be unsealed on this host any more"
            raise FleetError(wrong, hint="its key or TPM changed: apply again, so that it is stored anew")
        return value

    def _is_ready(self, values: Mapping[str, bytes], access: Access, others: bool) -> bool:
        """Whether exactly these files lie below ``/run``, with these rights; with ``others``, whether these are among them."""
        try:
            there = {path.name for path in self._plain.iterdir()}
            if there != set(values) and not (others and there > set(values)):
                return False
            return all(_is_plain(self._plain / name, value, access) for name, value in values.items())
        except FileNotFoundError:
            return not values
        except OSError as error:
            raise FleetError(f"cannot read {self._plain}: {error.strerror}") from error

    def _put_ready(self, values: Mapping[str, bytes], access: Access, others: bool = False, write: bool = True) -> None:
        """Write what differs; without ``others``, take away whatever else lies there."""
        try:
            if values:
                for folder in (self._plain_root, self._plain):
                    _make_private(folder)
            for name, value in values.items() if write else ():
                if not _is_plain(self._plain / name, value, access):
                    _write_plain(self._plain / name, value, access)
            for path in () if others or not self._plain.exists() else list(self._plain.iterdir()):
                if path.name not in values:
                    path.unlink()
        except OSError as error:
            raise FleetError(f"cannot write {error.filename or self._plain}: {error.strerror}") from error

    def _revision(self, names: t.Collection[str]) -> str:
        """Short text that is another one whenever a value was stored or left; it tells nothing about the values. Empty for none."""
        stored = [(name, t.cast(_Stored, self._read(name)).id) for name in self.names() if name in names]
        return hashlib.sha256(json.dumps(stored).encode()).hexdigest()[:16] if stored else ""


def _line(name: str, stored: _Stored | None, fresh: bool = False, access: Access | None = None) -> str:
    """``token: sealed by systemd-creds, mode 0444``: for a diff."""
    rights = access or (stored.access if stored is not None else Access())
    numbers = ((" owner", rights.uid), (" group", rights.gid))
    owner = "".join(f",{word} {number}" for word, number in numbers if number is not None)
    kept = (
        ", a new value" if fresh else {SYSTEMD: ", sealed by systemd-creds", FILE: ", in a root-only file"}[stored.sealed] if stored else ""
    )
    return f"{name}: mode {rights.mode}{owner}{kept}"


def _check_name(name: str, field: str) -> None:
    if not _NAME.fullmatch(name):
        raise FleetError(f"'{name}' cannot be a file's name here", field=field, hint="use 1 to 63 of letters, digits, '-', '_' and '.'")


def _check_access(access: Access) -> None:
    if not _MODE.fullmatch(access.mode):
        raise FleetError(f"'{access.mode}' is no mode of a file", field="mode", hint="write it between quotes, as '0444'")
    for field, number in (("uid", access.uid), ("gid", access.gid)):
        if number is not None and number < 0:
            raise FleetError(f"expected a number of a user or group, found {number}", field=field)


def _check_value(name: str, value: t.Any) -> bytes:
    _check_name(name, "secrets")
    if not isinstance(value, str) or not value:
        raise FleetError("a secret is a text that is not empty", field=f"secrets.{name}", hint="write numbers between quotes")
    data = value.encode("utf-8", "surrogateescape")
    if len(data) > _MOST_BYTES:
        raise FleetError(f"it has {len(data)} bytes; {_MOST_BYTES} are the most", field=f"secrets.{name}")
    return data


def _make_private(folder: Path) -> None:
    """A directory that only root can enter."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o777 != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        raise FleetError(f"cannot make {folder}: {error.strerror}") from error


def _is_plain(path: Path, value: bytes, access: Access) -> bool:
    try:
        found = path.lstat()
        owned = access.uid in (None, found.st_uid) and access.gid in (None, found.st_gid)
        return owned and found.st_mode & 0o7777 == int(access.mode, 8) and path.read_bytes() == value
    except FileNotFoundError:
        return False


def _write_plain(path: Path, value: bytes, access: Access) -> None:
    """All at once, so that a running container keeps the file that it has. Nothing to force to disk: it lies in memory."""
    # A name that no secret can have.
    temporary = path.with_name(f"~{path.name}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(value)
        os.fchown(descriptor, -1 if access.uid is None else access.uid, -1 if access.gid is None else access.gid)
        os.fchmod(descriptor, int(access.mode, 8))
    os.replace(temporary, path)


def _systemd_creds(arguments: list[str], data: bytes) -> bytes | None:
    """What ``systemd-creds`` makes of ``data``; None when it is missing, refuses, or does not end."""
    program = shutil.which("systemd-creds")
    if program is None:
        return None
    try:
        done = subprocess.run([program, *arguments], input=data, capture_output=True, check=False, timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
