# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a service's lease on its host, and the notice in its home.

The end is noted, then Compose stops the containers; nothing is removed. It is noted first, so that the watch knows why the container ends
and starts it no more, and so that a run which dies in between is completed by the next: what runs although its lease is over is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import typing as t
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ansible_collections.gpuops.fleet.plugins.module_utils import commands, service_leases
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as host_lease
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import Config
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import Engine
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Clock, Record

NOTICE_FILE = "LEASE-ENDS.txt"
_PROJECT, _ONE_OFF = "com.docker.compose.project", "com.docker.compose.oneoff"
_LIVE = ("running", "restarting", "paused")
_HOMES = ("/home", "/root")
_MODE = 0o644

Say = Callable[[str], None]


def containers(socket: Path, name: str) -> list[dict[str, t.Any]]:
    """What the engine says of a replica's containers, without those that a person runs beside it. None there when there is no engine."""
    if not socket.exists():
        return []
    filters = quote(json.dumps({"label": [f"{_PROJECT}={name}"]}))
    with Engine(str(socket)) as engine:
        listed = [
            one for one in engine.get(f"/containers/json?all=1&filters={filters}") if (one.get("Labels") or {}).get(_ONE_OFF) != "True"
        ]
        return [detail for one in listed if (detail := engine.detail(one["Id"])) is not None]


def lives(details: Sequence[Mapping[str, t.Any]]) -> bool:
    """Whether one of the containers may have its GPU open."""
    return any(str((detail.get("State") or {}).get("Status")) in _LIVE for detail in details)


# ---- the end


def end(config: Config, token: str, names: Mapping[str, str], clock: Clock, say: Say) -> list[str]:
    """End these leases: why, by replica. Whoever calls holds the host. What could not be stopped, a line each."""
    host_lease.check(config.state_dir, token)
    with service_leases.changed(config.state_dir) as book:
        for name, why in names.items():
            if name in book["leases"] and book["leases"][name]["ended"] is None:
                book["leases"][name] = service_leases.end(book["leases"][name], why, clock.now)
                say(f"{name}: {service_leases.ended_words(book['leases'][name])}")
    return [problem for name in names for problem in stop(config, token, name, say)]


def stop(config: Config, token: str, name: str, say: Say) -> list[str]:
    """Have Compose stop a replica that lives; what failed, a line. It goes by the containers' labels, so it needs no compose file."""
    try:
        if not lives(containers(config.docker_socket, name)):
            return []
        host_lease.check(config.state_dir, token)
        argv = [config.docker, "--host", f"unix://{config.docker_socket}", "compose", "--project-name", name, "stop"]
        done = commands.run(argv, config.command_wait)
    except host_lease.LeaseError:
        raise
    except FleetError as error:
        return [f"{name}: its lease is over, and it could not be stopped: {error}"]
    if done.status:
        return [f"{name}: its lease is over, and Docker Compose could not stop it: {done.words}"]
    say(f"{name}: stopped; its files are kept")
    return []


def to_end(book: Mapping[str, t.Any], clock: Clock) -> dict[str, str]:
    """Replicas whose lease is to end now, and why. None by a clock that jumped."""
    if clock.doubt(book["seen"]) is not None:
        return {}
    found = ((name, service_leases.due(record, clock.now)) for name, record in sorted(book["leases"].items()))
    return {name: why for name, why in found if why is not None}


def end_what_is_over(config: Config, token: str, clock: Clock, say: Say) -> list[str]:
    """Before services are started: end leases that ran out, also while the host was off. What went wrong, a line each; never an error.

    A damaged file ends nobody's lease. It is named, and the services are started.
    """
    try:
        book = service_leases.read(config.state_dir)
        over = to_end(book, clock) if book["leases"] else {}
        return end(config, token, over, clock, say) if over else []
    except host_lease.LeaseError:
        raise
    except FleetError as error:
        return [f"leases of services: {error}"]


# ---- the notice in its home


def home_of(details: Sequence[Mapping[str, t.Any]]) -> Path | None:
    """Where the home of a service lies on the host: what is mounted at ``/home/...`` in its container and can be written there."""
    found = []
    for detail in details:
        for mount in detail.get("Mounts") or []:
            inside, source = str(mount.get("Destination") or ""), str(mount.get("Source") or "")
            if mount.get("RW") and source.startswith("/") and any(inside == top or inside.startswith(f"{top}/") for top in _HOMES):
                found.append((len(inside), inside, source))
    return Path(min(found)[2]) if found else None


def write_notice(home: Path, text: str) -> None:
    """Put the notice into a home. OSError when that cannot be.

    The home belongs to whoever works there: a link of theirs is replaced, never followed.
    """
    with _directory(home) as directory:
        new = f".{NOTICE_FILE}.{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE, dir_fd=directory)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                os.fchmod(descriptor, _MODE)
                stream.write(text)
            os.rename(new, NOTICE_FILE, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=directory)
            raise


def remove_notice(home: Path) -> None:
    """Take it away again; one that is gone, or whose home is, is no error."""
    try:
        with _directory(home) as directory:
            os.unlink(NOTICE_FILE, dir_fd=directory)
    except FileNotFoundError:
        pass


@contextlib.contextmanager
def _directory(path: Path) -> t.Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def tidy_notice(config: Config, name: str, record: Record) -> list[str]:
    """Bring the notice in the home in line with the record (which is changed): there while one stands, else gone. What failed, a line."""
    noticed = record["noticed"] is not None or (record["idle"] or {}).get("noticed") is not None
    if not noticed and record["notice_file"] is None:
        return []
    try:
        if noticed:
            home = home_of(containers(config.docker_socket, name))
            if home is not None:
                record["notice_file"] = str(home)
                write_notice(home, service_leases.notice_text(record))
        else:
            remove_notice(Path(record["notice_file"]))
            record["notice_file"] = None
    except FleetError as error:
        return [f"{name}: the notice could not be put into its home: {error}"]
    except OSError as error:
        return [f"{name}: the notice could not be put into {record['notice_file']}: {error.strerror}"]
    return []
