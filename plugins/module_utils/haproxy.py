# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAProxy as it runs: what its sockets tell, and servers made ready, drained or taken out without a reload.

Source: HAProxy's management guide 2.6 to 3.0, sections 9.3 ("Unix Socket commands") and 9.4 ("Master CLI").
"""

from __future__ import annotations

import contextlib
import csv
import re
import socket
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import journal
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.lease import LockedError, exclusive

# Longest time for one answer, in seconds.
_ANSWER_SECONDS = 10.0
# Most that an answer may have: `show stat` of thousands of servers has less.
_MOST = 64 * 1024 * 1024
_PAUSE = 0.1
# The master starts itself anew at its start and at a reload; nobody listens at its socket meanwhile.
_MASTER_SECONDS = 5.0
# A reload may take reload_timeout, which is a minute where nobody sets it.
_ALONE_SECONDS = 120.0
_LOCK = "gateway"
# Bits of srv_admin_state (management guide, "show servers state"): forced maintenance, forced drain.
_MAINT, _DRAIN = 0x01, 0x08
_RUNNING, _PASSED = 2, 3
# Words of HAProxy that stand before the reason of a failing check.
_TELLING = ("L4CON", "L4TOUT", "L6RSP", "L6TOUT", "L7RSP", "L7STS", "L7TOUT", "SOCKERR")


@dataclass(frozen=True)
class Server:
    """One server of a backend, as HAProxy has it at this moment. ``admin``: ready, drain or maint."""

    name: str
    address: str
    port: int
    admin: str
    running: bool
    passed: bool


class Runtime:
    """A HAProxy that runs, by its admin socket and, where given, its master's."""

    def __init__(self, path: str, master: str | None = None) -> None:
        self.path = path
        self.master = master

    def ask(self, command: str) -> str:
        """The answer of the worker that serves. FleetError when nobody answers."""
        return ask(self.path, command)

    def info(self, key: str) -> str | None:
        """One value of ``show info``; None when it has none of that name."""
        for line in self.ask("show info").splitlines():
            name, found, value = line.partition(":")
            if found and name.strip() == key:
                return value.strip()
        return None

    def servers(self, backend: str) -> dict[str, Server] | None:
        """The servers of a backend by name; None when HAProxy has no such backend."""
        answer = self.ask(f"show servers state {backend}")
        rows = _state_rows(answer)
        if not rows and "an't find backend" in answer:
            return None
        return {row["srv_name"]: _server(row) for row in rows}

    def sessions(self, backend: str, server: str) -> int:
        """Requests that a server has in hand or in its queue, those of workers that a reload has left behind included."""
        own = _sessions(self.ask("show stat"), backend, server)
        return own + sum(_sessions(self._ask_master(f"@!{pid} show stat"), backend, server) for pid in self.old_workers())

    def left_behind(self, backend: str, server: str, addresses: t.Collection[str]) -> int:
        """Requests that workers before a reload have in hand at a server that was at one of these addresses then."""
        left = 0
        for pid in self.old_workers():
            rows = _state_rows(self._ask_master(f"@!{pid} show servers state {backend}"))
            if any(row["srv_name"] == server and row["srv_addr"] in addresses for row in rows):
                left += _sessions(self._ask_master(f"@!{pid} show stat"), backend, server)
        return left

    def old_workers(self) -> list[str]:
        """Process ids of workers that only end what they have in hand."""
        if self.master is None or not Path(self.master).exists():
            return []
        pids: list[str] = []
        old = False
        for line in self._ask_master("show proc").splitlines():
            if line.startswith("#"):
                old = line.startswith("# old workers")
            elif old and line.split()[:1]:
                pids.append(line.split()[0])
        return pids

    def _ask_master(self, command: str) -> str:
        deadline = time.monotonic() + _MASTER_SECONDS
        while True:
            try:
                return ask(str(self.master), command)
            except FleetError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE)

    def why_down(self, backend: str, server: str) -> str:
        """What the last health check found, in HAProxy's words."""
        for row in _stat_rows(self.ask("show stat")):
            if row["pxname"] == backend and row["svname"] == server:
                word = row.get("check_status", "").lstrip("* ")
                code = row.get("check_code", "")
                text = row.get("last_chk", "") or row.get("check_desc", "")
                return " ".join(part for part in (word, code if word in _TELLING else "", text) if part) or "no check has ended yet"
        return "it is not there any more"

    def save(self, path: str) -> None:
        """Write the state of all servers where HAProxy reads it at its next start or reload."""
        journal.write_text(Path(path), state_text(self.ask("show servers state")), 0o600)


def ask(path: str, command: str, quiet: bool = False) -> str:
    """The answer to one command. ``quiet``: whoever reloads may end the connection without one. FleetError when nobody answers."""
    if "\n" in command or ";" in command:
        raise FleetError("a command for HAProxy is one line without ';'")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(_ANSWER_SECONDS)
            channel.connect(path)
            channel.sendall(command.encode() + b"\n")
            channel.shutdown(socket.SHUT_WR)
            return _read(channel, time.monotonic() + _ANSWER_SECONDS)
    except OSError as error:
        if quiet and not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return ""
        reason = "it did not answer in time" if isinstance(error, socket.timeout) else error.strerror or str(error)
        raise FleetError(f"HAProxy cannot be asked by {path}: {reason}", hint="start the gateway, or name its socket") from error


def _read(channel: socket.socket, deadline: float) -> str:
    parts: list[bytes] = []
    size = 0
    while True:
        data = channel.recv(65536)
        if not data:
            return b"".join(parts).decode(errors="replace")
        parts.append(data)
        size += len(data)
        if size > _MOST or time.monotonic() > deadline:
            raise socket.timeout


def _state_rows(answer: str) -> list[dict[str, str]]:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    heads = [line for line in lines if line.startswith("# be_id")]
    if not heads:
        return []
    names = heads[0].lstrip("# ").split()
    rows = [line.split() for line in lines if line[0].isdigit() and len(line.split()) > 1]
    return [dict(zip(names, row)) for row in rows]


def state_text(answer: str, keep: t.Callable[[t.Mapping[str, str]], bool] | None = None) -> str:
    """The answer to ``show servers state`` as HAProxy reads it, without the rows that are not to be kept."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    rows = {" ".join(row.values()): row for row in _state_rows(answer)}
    kept = [line for line in lines if " ".join(line.split()) not in rows or keep is None or keep(rows[" ".join(line.split())])]
    return "\n".join(kept) + "\n"


def _server(row: t.Mapping[str, str]) -> Server:
    flags = int(row["srv_admin_state"])
    admin = "maint" if flags & _MAINT else "drain" if flags & _DRAIN else "ready"
    running = int(row["srv_op_state"]) == _RUNNING
    return Server(row["srv_name"], row["srv_addr"], int(row["srv_port"]), admin, running, int(row["srv_check_result"]) == _PASSED)


def _stat_rows(answer: str) -> list[dict[str, str]]:
    lines = [line for line in answer.splitlines() if line.strip()]
    return list(csv.DictReader([lines[0].lstrip("# "), *lines[1:]])) if lines and lines[0].startswith("#") else []


def _sessions(answer: str, backend: str, server: str) -> int:
    for row in _stat_rows(answer):
        if row["pxname"] == backend and row["svname"] == server:
            return int(row["scur"] or 0) + int(row["qcur"] or 0)
    return 0


@dataclass(frozen=True)
class Wish:
    """What one server shall be. ``wait``: seconds; 0 for not at all. ``address`` and ``port``: where whoever wishes it has the replica."""

    service: str
    server: str
    state: str
    wait: float = 0.0
    address: str | None = None
    port: int | None = None

    @property
    def backend(self) -> str:
        """The backend of the service."""
        return f"svc_{self.service}"

    @property
    def path(self) -> str:
        """As HAProxy names it."""
        return f"{self.backend}/{self.server}"

    @property
    def stands_by(self) -> bool:
        """Is it no replica's own, but one that is lent an address for a rollout?"""
        return self.server.startswith(f"{self.service}-surge-")


@dataclass
class Outcome:
    """What was done, or in check mode what would be. ``known``: False when the gateway has no route to it; then nothing is done."""

    known: bool = True
    steps: list[str] = field(default_factory=list)
    sessions: int = 0
    before: str = ""
    after: str = ""
    message: str = ""


_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")
_ADDRESS = re.compile(r"^[0-9.]+$|^[0-9a-fA-F:.]+$")


def change(runtime: Runtime, wish: Wish, state_file: str | None, check: bool = False) -> Outcome:
    """Make a server what it shall be, and wait.

    ``ready`` waits until HAProxy's own checks pass before the first request goes there; if they do not in ``wait`` seconds, the server
    is put back and a FleetError says what the check found. ``drain`` waits until no request is in hand; what is left after ``wait``
    seconds is told, and is no failure.

    A replica's own server is where the gateway's files say. It goes to another address before these do only if nobody serves at the one
    that it has; and who leaves an address takes nothing from whoever has moved to another one.
    """
    for name in (wish.service, wish.server):
        if not _NAME.fullmatch(name):
            raise FleetError(f"'{name}' is not the name of a service or server")
    servers = runtime.servers(wish.backend)
    found = None if servers is None else servers.get(wish.server)
    if found is None:
        return _unknown(runtime, wish, servers is not None, check)
    address = _place(wish, found)
    if address is None:
        return _elsewhere(runtime, wish, found, check)
    before, after = _words(found.admin, found.address, found.port), _words(wish.state, *address)
    moved = address != (found.address, found.port)
    outcome = Outcome(before=f"{wish.path}: {before}\n", after=f"{wish.path}: {after}\n")
    if moved or found.admin != wish.state:
        outcome.steps = [f"{wish.path}: {before} -> {after}"]
    if check:
        return outcome
    if outcome.steps:
        _bring(runtime, wish, found, address if moved else None, state_file)
    elif wish.state == "ready" and wish.wait:
        _until_running(runtime, wish, fresh=False)
    if wish.state != "ready":
        outcome.sessions = _until_idle(wish, lambda: runtime.sessions(wish.backend, wish.server))
        if outcome.sessions and wish.wait:
            outcome.message = _in_hand(wish, outcome.sessions)
    return outcome


def _in_hand(wish: Wish, sessions: int) -> str:
    return f"{wish.path}: {sessions} requests are still in hand after {wish.wait:g} s"


def _words(admin: str, address: str, port: int) -> str:
    return f"{admin} at {address}:{port}"


def _place(wish: Wish, found: Server) -> tuple[str, int] | None:
    """Where the server shall be; None when it is another host's, and stays so."""
    if wish.address is None:
        return found.address, found.port
    known = _resolved(wish)
    if wish.state != "ready" and not wish.stands_by:
        return (found.address, found.port) if found.address in known else None
    if wish.port is None or not 1 <= wish.port <= 65535:
        raise FleetError("an address without a port", field="port", hint="name the port of the replica")
    if found.address in known:
        return found.address, wish.port
    serves = found.admin == "ready" and found.running
    return None if serves and not wish.stands_by else (known[0], wish.port)


def _resolved(wish: Wish) -> list[str]:
    address = str(wish.address)
    if _ADDRESS.fullmatch(address):
        return [address]
    try:
        return [str(one[4][0]) for one in socket.getaddrinfo(address, wish.port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise FleetError(f"the gateway cannot resolve '{address}': {error.strerror}", field="address") from error


def _unknown(runtime: Runtime, wish: Wish, service_known: bool, check: bool) -> Outcome:
    """The gateway's files have no such server. FleetError for one that stands by: its service's rollout needs it."""
    if service_known and wish.address is not None and wish.stands_by:
        wrong = f"the gateway has no server '{wish.server}' for {wish.service}"
        raise FleetError(wrong, hint="run playbook gateway; it gives each host with a replica one that stands by")
    outcome = Outcome(known=False, message=f"the gateway has no {wish.path}: nothing to do")
    if wish.state != "ready" and wish.address is not None and not check:
        _wait_for_left_behind(runtime, wish, outcome)
    return outcome


def _elsewhere(runtime: Runtime, wish: Wish, found: Server, check: bool) -> Outcome:
    """Nothing is changed at a server of another host. Who drains waits for what was sent to its own address before."""
    words = f"{wish.path}: {_words(found.admin, found.address, found.port)}\n"
    outcome = Outcome(before=words, after=words)
    outcome.message = f"{wish.path} is at {found.address}:{found.port}, and not at {wish.address}: left as it is"
    if wish.state != "ready" and not check:
        _wait_for_left_behind(runtime, wish, outcome)
    return outcome


def _wait_for_left_behind(runtime: Runtime, wish: Wish, outcome: Outcome) -> None:
    try:
        own = _resolved(wish)
    except FleetError:
        return  # a name that the gateway does not know has led no request anywhere
    outcome.sessions = _until_idle(wish, lambda: runtime.left_behind(wish.backend, wish.server, own))
    if outcome.sessions and wish.wait:
        outcome.message = _in_hand(wish, outcome.sessions)


def _bring(runtime: Runtime, wish: Wish, found: Server, address: tuple[str, int] | None, state_file: str | None) -> None:
    there = [] if address is None else ["state maint", f"addr {address[0]} port {address[1]}"]
    if wish.state != "ready" or not wish.wait:
        _tell_all(runtime, wish, [*there, f"state {wish.state}"], state_file)
        return
    # It proves itself to HAProxy's own checks while it gets no request.
    _tell_all(runtime, wish, [*there, "state drain", "health down"], state_file)
    try:
        _until_running(runtime, wish, fresh=True)
    except FleetError:
        # The version before may come back where it was.
        back = [] if address is None or wish.stands_by else ["state maint", f"addr {found.address} port {found.port}"]
        _tell_all(runtime, wish, [*back, f"state {'maint' if found.admin == 'maint' else 'drain'}"], state_file)
        raise
    _tell_all(runtime, wish, ["state ready"], state_file)


def _tell_all(runtime: Runtime, wish: Wish, words: t.Sequence[str], state_file: str | None) -> None:
    with alone(state_file):
        for each in words:
            _tell(runtime, wish, each)
        if state_file is not None:
            runtime.save(state_file)


@contextlib.contextmanager
def alone(state_file: str | Path | None) -> t.Iterator[None]:
    """Neither a reload nor another play's change meanwhile: a reload would bring back what it had asked just before.

    Whoever is at it is waited for; FleetError names them when that takes too long.
    """
    if state_file is None:
        yield
        return
    deadline = time.monotonic() + _ALONE_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(exclusive(Path(state_file).parent, _LOCK))
                break
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE)
        yield


def _tell(runtime: Runtime, wish: Wish, what: str) -> None:
    answer = " ".join(runtime.ask(f"set server {wish.path} {what}").split())
    # It answers with nothing, or says what an address was and is now.
    if answer and not what.startswith("addr"):
        raise FleetError(f"HAProxy refused '{what}' for {wish.path}: {answer}")


def _until_running(runtime: Runtime, wish: Wish, fresh: bool) -> None:
    deadline = time.monotonic() + wish.wait
    while True:
        server = (runtime.servers(wish.backend) or {}).get(wish.server)
        if server is not None and server.running and (server.passed or not fresh):
            return
        if time.monotonic() >= deadline:
            why = runtime.why_down(wish.backend, wish.server)
            raise FleetError(f"{wish.path} did not pass the gateway's health check in {wish.wait:g} s: {why}")
        time.sleep(_PAUSE)


def _until_idle(wish: Wish, count: t.Callable[[], int]) -> int:
    """Requests left at the deadline. Nothing twice in a row is nothing: a request may be on its way from one list to another."""
    deadline = time.monotonic() + wish.wait
    seen = 0
    while True:
        left = count()
        seen = 0 if left else seen + 1
        if seen >= 2 or time.monotonic() >= deadline:
            return left
        time.sleep(_PAUSE)
