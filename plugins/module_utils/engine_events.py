# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What happens to containers, as the Docker engine tells it: those events that it still remembers, and a stream of those to come.

Source: Docker Engine API reference, ``/events``: one JSON object a line, without end unless ``until`` is given. The engine remembers the
last 256 events of its own life. ``docker stop`` shows as ``kill``, ``die``, ``stop``; a container that ends by itself as ``die`` alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import typing as t
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import quote

from ansible_collections.gpuops.fleet.plugins.module_utils.engine import DEADLINE_S, HTTP_OK, SHORT_ID, EngineError

START, DIE, KILL, STOP, OOM, DESTROY, HEALTH = "start", "die", "kill", "stop", "oom", "destroy", "health_status"
ACTIONS = (START, DIE, KILL, STOP, OOM, DESTROY, HEALTH)
_NANO = 1e9


@dataclass(frozen=True)
class Event:
    """Something happened to a container. ``at``: UTC seconds; ``detail``: what ``health_status`` says; ``about``: labels and more."""

    action: str
    container: str
    at: float
    about: Mapping[str, str]
    detail: str = ""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.about.get("name") or self.container)

    def number(self, key: str) -> int | None:
        """A number among the attributes (``exitCode``, ``signal``); None when it is not told."""
        text = str(self.about.get(key, ""))
        return int(text) if text.isdigit() else None


def parse_event(line: bytes) -> Event | None:
    """The event in a line; None for a line that is none."""
    try:
        data = json.loads(line)
        actor = data["Actor"]
        action, _colon, detail = str(data["Action"]).partition(":")
        at = data["timeNano"] / _NANO if data.get("timeNano") else float(data["time"])
        return Event(action.strip(), str(actor["ID"])[:SHORT_ID], at, actor.get("Attributes") or {}, detail.strip())
    except (ValueError, KeyError, TypeError):
        return None


def parse_time(text: str | None) -> float | None:
    """UTC seconds of a time as the engine writes it (``2026-11-21T12:00:00.123456789Z``); None for its zero, which means never."""
    if not text or text.startswith("0001-"):
        return None
    whole, _point, rest = text.rstrip("Z").partition(".")
    try:
        moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment.timestamp() + float(f"0.{rest}" if rest.isdigit() else 0)


@t.final
class EventStream:
    """Events from ``since`` on (UTC seconds; None: from now on), of the engine behind ``socket_path``. EngineError when it does not answer.

    With ``until`` it ends there. Iterating blocks until the next event and ends when the engine hangs up or :meth:`close` is called,
    which another thread may do.
    """

    def __init__(self, socket_path: str, since: float | None = None, until: float | None = None, deadline: float = DEADLINE_S) -> None:
        from http.client import HTTPConnection, HTTPException

        self._path = socket_path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(deadline)
        self._connection = HTTPConnection("localhost")
        self._connection.sock = self._socket
        try:
            self._socket.connect(socket_path)
            self._connection.request("GET", _question(since, until))
            self._answer = self._connection.getresponse()
        except (OSError, HTTPException) as error:
            self._connection.close()
            words = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EngineError(f"Docker engine at {socket_path}: {words}") from error
        if self._answer.status != HTTP_OK:
            status = self._answer.status
            self._connection.close()
            raise EngineError(f"Docker engine at {socket_path}: GET /events answered {status}", status)
        if until is None:
            self._socket.settimeout(None)

    def __iter__(self) -> Iterator[Event]:
        from http.client import HTTPException

        try:
            while line := self._answer.readline():
                event = parse_event(line)
                if event is not None:
                    yield event
        except (OSError, HTTPException, ValueError):  # it hung up in the middle of a line
            return
        finally:
            self._answer.close()
            self._connection.close()

    def close(self) -> None:
        """End it, also while another thread waits for the next event; that thread then tidies up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _question(since: float | None, until: float | None) -> str:
    wanted = {"type": ["container"], "event": list(ACTIONS)}
    parts = [f"filters={quote(json.dumps(wanted))}"]
    parts += [f"{name}={at:.9f}" for name, at in (("since", since), ("until", until)) if at is not None]
    return "/events?" + "&".join(parts)
