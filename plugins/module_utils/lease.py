# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One writer per host: a lease with holder, purpose and expiry, kept in a file on the host.

A play takes the lease, hands its token to every step and gives it back at the end. If the play dies, the lease runs out by
itself and the next writer takes it over. Two processes that want it in the same moment are told apart by flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
import typing as t
from dataclasses import asdict, dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

_FILE = "lease.json"


class LeaseError(FleetError):
    """This host may not be changed by whoever asks: another holds it, or the own lease is lost."""


@dataclass(frozen=True)
class Lease:
    """Who may change this host, what for, and until when (``expires``: seconds since 1970, UTC). Whoever knows the token is the holder.

    ``seconds``: how long it lasts from when it was taken or last used.
    """

    holder: str
    purpose: str
    expires: int
    token: str
    seconds: int

    def words(self, now: float) -> str:
        """For a message to whoever waits; never with the token."""
        return f"{self.holder} ({self.purpose}), for {max(0, round(self.expires - now))} s more"


@contextlib.contextmanager
def exclusive(state_dir: Path, name: str) -> t.Iterator[None]:
    """Hold a file lock for as long as the block runs. FleetError at once when another process holds it: nobody waits blindly."""
    path = state_dir / f"{name}.lock"
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as error:
        raise FleetError(f"cannot lock {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FleetError(f"another process holds {path} at this moment", hint="run again when it has ended") from error
        yield
    finally:
        os.close(descriptor)


def current(state_dir: Path) -> Lease | None:
    """The lease as recorded, run out or not; None when nobody has one. FleetError when the file is damaged."""
    path = state_dir / _FILE
    data = read_json(path)
    if data is None:
        return None
    try:
        return Lease(str(data["holder"]), str(data["purpose"]), int(data["expires"]), str(data["token"]), int(data["seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FleetError("this file is not a lease", file=str(path), hint="remove it when no play is at work on this host") from error


def acquire(
    state_dir: Path, holder: str, purpose: str, seconds: int, token: str | None = None, now: float | None = None
) -> tuple[Lease, str | None]:
    """Take the lease for ``seconds``, or make it last longer when ``token`` is its own.

    Returns the lease and, when one that had run out was taken over, a sentence that names it. FleetError when somebody else
    holds it, or when ``token`` was given and the lease is no longer that one's.
    """
    moment = time.time() if now is None else now
    if seconds < 1:
        raise FleetError(f"a lease of {seconds} s is none", field="seconds", hint="give at least 1")
    with exclusive(state_dir, "lease"):
        found = current(state_dir)
        if token is not None and (found is None or found.token != token):
            raise LeaseError(_lost(found, moment))
        if token is None and found is not None and found.expires > moment:
            raise LeaseError(f"this host is held by {found.words(moment)}", hint="run again when it is released")
        lease = Lease(holder, purpose, int(moment) + seconds, token or secrets.token_hex(16), seconds)
        write_json(state_dir / _FILE, asdict(lease))
    over = f"took over the lease of {found.holder} ({found.purpose}), which had run out" if found is not None and token is None else None
    return lease, over


def release(state_dir: Path, token: str | None, force: bool = False) -> bool:
    """Give the lease back; True when there was one. FleetError when it is another's, unless ``force``."""
    if not (state_dir / _FILE).exists():
        return False
    moment = time.time()
    with exclusive(state_dir, "lease"):
        found = current(state_dir)
        if found is not None and found.token != token and not force:
            raise LeaseError(f"this host is held by {found.words(moment)}", hint="give its token, or force: true when that play is dead")
        (state_dir / _FILE).unlink()
    return True


def check(state_dir: Path, token: str | None, now: float | None = None) -> None:
    """Before each changing step: FleetError when another holds this host, or when the token's own lease was lost or ran out.

    A lease that is used lasts on: half-way through, it is renewed. So it may be short, and a play that died holds a host briefly.
    """
    moment = time.time() if now is None else now
    found = current(state_dir)
    if token is not None and (found is None or found.token != token or found.expires <= moment):
        raise LeaseError(_lost(found if found is None or found.token != token else None, moment))
    if token is None and found is not None and found.expires > moment:
        raise LeaseError(f"this host is held by {found.words(moment)}", hint="run again when it is released")
    if token is not None and found is not None and 2 * (found.expires - moment) < found.seconds:
        acquire(state_dir, found.holder, found.purpose, found.seconds, token, moment)


def _lost(found: Lease | None, moment: float) -> str:
    if found is None or found.expires <= moment:
        return "the lease on this host ran out or was released; nothing more is changed"
    return f"the lease on this host was lost to {found.words(moment)}; nothing more is changed"
