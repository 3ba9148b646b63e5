# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One writer per host: a lease with holder, purpose and expiry, kept in a file on the host.

A play takes the lease, hands its token to every step and gives it back at the end. If the play dies, the lease runs out by
itself and the next writer takes it over. Two processes that want it in the same moment are told apart by flock(2).

A lease that was taken before the host's last boot holds it no longer: who had it lost the host at that boot, and the host agent has to
heal the host without waiting for the lease of a dead play to run out. A play that boots the host itself takes a new lease afterwards.

Each step that is checked here is checked for one thing more: that the host's agent is of the same release as the code that asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sys
import time
import typing as t
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION

_FILE = "lease.json"
AGENT_FILE = "agent.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_SECONDS = 0.5
_SIGNING_SECONDS = 0.2


class LeaseError(FleetError):
    """This host may not be changed by whoever asks: another holds it, or the own lease is lost."""


class LockedError(FleetError):
    """Another process is at the same file in this very moment."""


@dataclass(frozen=True)
class Lease:
    """Who may change this host, what for, and until when (``expires``: seconds since 1970, UTC). Whoever knows the token is the holder.

    ``seconds``: how long it lasts from when it was taken or last used. ``boot``: the host's boot in which it was; empty when unknown.
    ``since``: when it was taken; 0 when unknown.
    """

    holder: str
    purpose: str
    expires: int
    token: str
    seconds: int
    boot: str = ""
    since: int = field(default=0, compare=False)

    def holds(self, now: float) -> bool:
        """Whether it keeps others away: its time is not over and the host was not booted since."""
        here = boot_id()
        return self.expires > now and (not self.boot or not here or self.boot == here)

    def words(self, now: float) -> str:
        """For a message to whoever waits; never with the token."""
        return f"{self.holder} ({self.purpose}), for {max(0, round(self.expires - now))} s more"

    def times(self) -> str:
        """For whoever waits: ``alice (deploy receipt-ocr), since 12:00:03Z, until 12:30:03Z at the latest``; never with the token."""
        since = f", since {_clock(self.since)}" if self.since else ""
        return f"{self.holder} ({self.purpose}){since}, until {_clock(self.expires)} unless it goes on working"


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def boot_id() -> str:
    """What the kernel calls this boot; empty where it does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@contextlib.contextmanager
def exclusive(state_dir: Path, name: str) -> t.Iterator[None]:
    """Hold a file lock for as long as the block runs. LockedError at once, with the holder, when another has it: nobody waits blindly.

    The lock's file says who has it; only while it is locked does that count.
    """
    path = state_dir / f"{name}.lock"
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as error:
        raise FleetError(f"cannot lock {path}: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        try:
            yield
        finally:
            _sign(descriptor, "")
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Lock the file and write into it who has it. LockedError names another holder.

    Between a holder's locking and its signing nobody can be named: that moment is waited for.
    """
    deadline = time.monotonic() + _SIGNING_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _lock_holder(descriptor)
            if holder or time.monotonic() >= deadline:
                message = f"another process holds {path} at this moment{holder}"
                raise LockedError(message, hint="run again when it has ended") from error
            time.sleep(_SIGNING_SECONDS / 20)
            continue
        program = " ".join([Path(sys.argv[0]).name or "python", *(verb for verb in sys.argv[1:2] if verb.isalpha())])
        _sign(descriptor, f"process {os.getpid()} ({program}), since {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
        return


def _sign(descriptor: int, words: str) -> None:
    with contextlib.suppress(OSError):  # a disk that is full must not keep anybody from working; the lock itself holds
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, words.encode(errors="replace"), 0)


def _lock_holder(descriptor: int) -> str:
    """``: process 4242 (mig.py), since 2026-11-21T12:00:00Z``; empty when the holder has not signed yet, and for one that is dead."""
    try:
        words = os.pread(descriptor, 200, 0).decode(errors="replace")
        pid = int(words.split()[1])
    except (OSError, ValueError, IndexError):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # it lives, and is another user's
    return f": {' '.join(words.split())}"


def current(state_dir: Path) -> Lease | None:
    """The lease as recorded, run out or not; None when nobody has one. FleetError when the file is damaged."""
    path = state_dir / _FILE
    data = read_json(path)
    if data is None:
        return None
    try:
        boot = str(data.get("boot", ""))
        since = int(data.get("since", 0))
        return Lease(str(data["holder"]), str(data["purpose"]), int(data["expires"]), str(data["token"]), int(data["seconds"]), boot, since)
    except (KeyError, TypeError, ValueError) as error:
        raise FleetError("this file is not a lease", file=str(path), hint="remove it when no play is at work on this host") from error


def acquire(
    state_dir: Path, holder: str, purpose: str, seconds: int, token: str | None = None, now: float | None = None
) -> tuple[Lease, str | None]:
    """Take the lease for ``seconds``, or make it last longer when ``token`` is its own.

    Returns the lease and, when one that was over was taken over, a sentence that names it. FleetError when somebody else
    holds it, or when ``token`` was given and the lease is no longer that one's.
    """
    moment = time.time() if now is None else now
    if seconds < 1:
        raise FleetError(f"a lease of {seconds} s is none", field="seconds", hint="give at least 1")
    with exclusive(state_dir, "lease"):
        found = current(state_dir)
        if token is not None and (found is None or found.token != token):
            raise LeaseError(_lost(found, moment))
        if token is None and found is not None and found.holds(moment):
            raise LeaseError(f"this host is held by {found.words(moment)}", hint="run again when it is released")
        since = found.since if found is not None and token is not None else int(moment)
        lease = Lease(holder, purpose, int(moment) + seconds, token or secrets.token_hex(16), seconds, boot_id(), since)
        write_json(state_dir / _FILE, asdict(lease))
    if found is None or token is not None:
        return lease, None
    why = "which had run out" if found.expires <= moment else "which was from before the host's last boot"
    return lease, f"took over the lease of {found.holder} ({found.purpose}), {why}"


def holder_now(state_dir: Path) -> Lease | None:
    """Who holds the host at this moment; None when nobody does."""
    found = current(state_dir)
    return found if found is not None and found.holds(time.time()) else None


def await_lease(state_dir: Path, holder: str, purpose: str, seconds: int, wait: float) -> tuple[Lease, str | None]:
    """As :func:`acquire`, but whoever holds the host is waited for ``wait`` seconds; then LeaseError names them."""
    deadline = time.monotonic() + wait
    while True:
        try:
            return acquire(state_dir, holder, purpose, seconds)
        except (LeaseError, LockedError) as error:
            if time.monotonic() >= deadline:
                raise LeaseError(f"{error.message}; waited {wait:g} s for it", hint=error.hint) from error
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def held(state_dir: Path, holder: str, purpose: str, seconds: int, wait: float) -> t.Iterator[str]:
    """Hold the host while the block runs; yields the token. Whoever holds it is waited for ``wait`` seconds, then LeaseError names them."""
    lease, _over = await_lease(state_dir, holder, purpose, seconds, wait)
    try:
        yield lease.token
    finally:
        with contextlib.suppress(FleetError):  # lost meanwhile: then it is not ours to give back
            release(state_dir, lease.token)


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


def check(state_dir: Path, token: str | None, now: float | None = None, any_agent: bool = False) -> None:
    """Before each changing step: FleetError when another holds this host, or when the token's own lease was lost or ran out.

    A lease that is used lasts on: half-way through, it is renewed. So it may be short, and a play that died holds a host briefly.
    FleetError also when the host's agent is of another release, unless ``any_agent``: they would not agree on what the papers here mean.
    """
    moment = time.time() if now is None else now
    if not any_agent:
        refuse_other_agent(state_dir)
    found = current(state_dir)
    if token is not None and (found is None or found.token != token or found.expires <= moment):
        raise LeaseError(_lost(found if found is None or found.token != token else None, moment))
    if token is None and found is not None and found.holds(moment):
        raise LeaseError(f"this host is held by {found.words(moment)}", hint="run again when it is released")
    if token is not None and found is not None and 2 * (found.expires - moment) < found.seconds:
        acquire(state_dir, found.holder, found.purpose, found.seconds, token, moment)


def refuse_other_agent(state_dir: Path) -> None:
    """FleetError when the host's agent is of another release than this code."""
    installed = read_json(state_dir / AGENT_FILE)
    if installed is not None and installed.get("version") != VERSION:
        wrong = f"this host's agent is gpuops.fleet {installed.get('version')} and this module is {VERSION}; nothing more is changed"
        raise FleetError(wrong, hint="run playbook apply or agent: each installs its own release's agent first")


def _lost(found: Lease | None, moment: float) -> str:
    if found is None or found.expires <= moment:
        return "the lease on this host ran out or was released; nothing more is changed"
    return f"the lease on this host was lost to {found.words(moment)}; nothing more is changed"
