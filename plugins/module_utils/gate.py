# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate that a version of a service passes before anybody's request reaches it.

In this order: its container runs, on exactly its own devices; it is healthy; a real request is answered; the GPU is visible inside; a
warm-up request is answered; and it stays so for a while without a restart. Whoever fails is told of in one line, with the last words of
its log. Nothing is changed: the engine is asked, and a program of the image, ``nvidia-smi -L``, is run in the container.

Shapes: Docker Engine API reference, ``/containers/{id}/json`` (State, State.Health), ``/containers/{id}/logs``, ``/containers/{id}/exec``.
The engine calls a container unhealthy only after its start period and all its retries, so that word is final.
"""

from __future__ import annotations

import re
import time
import typing as t
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import gpus_inside, words
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import HTTP_OK, Engine, wanted_devices
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import MIG_MINORS, mig_minors
from ansible_collections.gpuops.fleet.plugins.module_utils.services import listed

STEPS = ("running", "healthy", "probe", "gpu", "warm_up", "settle")
POLL_S = 0.5
LOG_LINES = 50
_CHUNK = 64 * 1024  # bytes
_ASK_S = 10.0  # for one answer to the probe
_ENDED = ("exited", "dead", "restarting", "removing")
_NODE = re.compile(r"nvidia(\d+)")
_CAPABILITY = re.compile(r"nvidia-cap(\d+)")
_CAPABILITIES = "/dev/nvidia-caps"
_NO_SLICE = (1, 2)  # capabilities to change and to watch slices, of no slice
_ANSWERS = range(200, 400)
_UNAVAILABLE = 503  # a server that still loads its model says so

_Json = Mapping[str, t.Any]


@dataclass(frozen=True)
class Request:
    """A request over HTTP and what it has to be answered with. ``status``: the one that is right; None for any from 200 to 399.

    ``timeout``: seconds that the answer may take.
    """

    url: str
    method: str = "GET"
    body: str = ""
    content_type: str = "application/json"
    status: int | None = None
    timeout: float = _ASK_S


@dataclass(frozen=True)
class Own:
    """The devices of a replica: UUIDs that its container is given; all it may see, its slices' GPUs among them; numbers of nodes.

    ``slices``: UUID of every slice of its GPUs, own or not, by (GPU minor, GPU instance, compute instance).
    """

    given: frozenset[str]
    seen: frozenset[str]
    minors: frozenset[int]
    slices: Mapping[tuple[int, int, int], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """What has to pass. ``timeout``: seconds until it has failed, ``settle``: seconds that it has to stay well after that.

    ``hidden``: texts that no message may show. ``may_end``: a job, for which ending with status 0 is success.
    """

    project: str
    own: Own
    timeout: float = 600.0
    settle: float = 10.0
    probe: Request | None = None
    warm_up: Request | None = None
    hidden: tuple[str, ...] = ()
    may_end: bool = False
    proc_root: Path = Path("/proc")


@dataclass
class _Look:
    """The project's containers at one moment."""

    details: list[_Json]
    done: bool = False

    def starts(self) -> dict[str, t.Any]:
        """Which start of which container this is."""
        return {str(one["Id"]): (one["State"].get("StartedAt"), one.get("RestartCount", 0)) for one in self.details}


@t.final
@dataclass
class Gate:
    """One passage. ``alive`` is called at every look: to renew a lease, or to raise when it is lost."""

    wish: Wish
    socket: str
    alive: Callable[[], None] = lambda: None
    deadline: float = 30.0  # for one answer of the engine
    _seconds: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(STEPS))
    _begun: float = 0.0
    _deadline: float = 0.0

    def passage(self) -> dict[str, float | None]:
        """Wait until all is well; seconds by step, None for a step that there is not. FleetError, one line, when it is not."""
        self._begun = time.monotonic()
        self._deadline = self._begun + self.wish.timeout
        with Engine(self.socket, self.deadline) as engine:
            look = self._timed("running", lambda: self._until(engine, self._runs, "it does not run"))
            if look.done:
                return self._seconds
            look = self._timed("healthy", lambda: self._until(engine, self._healthy, "it is not healthy"))
            if self.wish.probe is not None:
                request = self.wish.probe
                self._timed("probe", lambda: self._answered(engine, request, "the probe"))
            self._timed("gpu", lambda: self._sees(engine, look))
            if self.wish.warm_up is not None:
                warm_up = self.wish.warm_up
                self._timed("warm_up", lambda: self._answered(engine, warm_up, "the warm-up request"))
            if self.wish.settle > 0:
                self._timed("settle", lambda: self._settles(engine, look))
        return self._seconds

    def _timed(self, step: str, work: Callable[[], t.Any]) -> t.Any:
        begun = time.monotonic()
        result = work()
        self._seconds[step] = round(time.monotonic() - begun, 3)
        return result

    def _error(self, complaint: str) -> FleetError:
        return FleetError(f"{self.wish.project}: {words.masks(complaint, self.wish.hidden)}")

    # --- looking

    def _look(self, engine: Engine) -> _Look:
        self.alive()
        entries = listed(engine, self.wish.project)
        details = [detail for detail in (engine.detail(entry["Id"]) for entry in entries) if detail is not None]
        return _Look(sorted(details, key=lambda one: str(one.get("Name"))))

    def _until(self, engine: Engine, test: Callable[[Engine, _Look], bool], complaint: str) -> _Look:
        """Look until ``test`` is content with every container; it raises when it never will be."""
        while True:
            look = self._look(engine)
            if test(engine, look):
                return look
            if time.monotonic() >= self._deadline:
                raise self._error(f"{complaint} after {self.wish.timeout:g} s{self._said(engine, look)}")
            time.sleep(POLL_S)

    def _runs(self, engine: Engine, look: _Look) -> bool:
        with_device = 0
        for one in look.details:
            devices = wanted_devices(one.get("Config") or {}, one.get("HostConfig") or {})
            with_device += bool(devices)
            self._refuse_others(devices)
        states = [self._state(engine, one) for one in look.details]
        look.done = self.wish.may_end and bool(states) and all(state == "ended" for state in states)
        return look.done or (with_device > 0 and all(state == "running" for state in states))

    def _healthy(self, engine: Engine, look: _Look) -> bool:
        if not self._runs(engine, look):
            return False
        return all(_health(one) in ("", "healthy") for one in look.details)

    def _state(self, engine: Engine, one: _Json) -> str:
        """``running``, ``starting``, or ``ended`` for a job that did well. FleetError for one that ended or is ill."""
        state = one.get("State") or {}
        word, status = str(state.get("Status") or ""), int(state.get("ExitCode") or 0)
        if word in _ENDED:
            if status == 0 and self.wish.may_end:
                return "ended"
            if status == 0 and word == "exited" and not wanted_devices(one.get("Config") or {}, one.get("HostConfig") or {}):
                return "running"  # a helper of a site's own template that has done its work
            raise self._error(f"container {_ended(state, status, self._age())}; {self._words(engine, one)}")
        if _health(one) == "unhealthy":
            raise self._error(f"container is unhealthy after {self._age():g} s; {self._check_words(engine, one)}")
        return "running" if word == "running" else "starting"

    def _age(self) -> float:
        return round(time.monotonic() - self._begun)

    def _refuse_others(self, devices: list[str]) -> None:
        given = set(devices)
        if given and given != self.wish.own.given:
            others = words.joined(given - self.wish.own.given) or "no device of its own"
            lacks = words.joined(self.wish.own.given - given)
            has = f"has {others}" + (f" and lacks {lacks}" if lacks else "")
            raise self._error(f"container {has}: its own is {words.joined(self.wish.own.given)}")

    # --- what it said

    def _words(self, engine: Engine, one: _Json) -> str:
        status, stream = engine.raw("GET", f"/containers/{one['Id']}/logs?stdout=1&stderr=1&tail={LOG_LINES}")
        found = words.last_words(words.demultiplexed(stream), self.wish.hidden) if status == HTTP_OK else ""
        return f"its last words: {found}" if found else "it left no words"

    def _check_words(self, engine: Engine, one: _Json) -> str:
        log = (((one.get("State") or {}).get("Health") or {}).get("Log")) or []
        found = words.last_words(str(log[-1].get("Output") or ""), self.wish.hidden) if log else ""
        return f"its last check said: {found}" if found else self._words(engine, one)

    def _said(self, engine: Engine, look: _Look) -> str:
        """The words of a container that is not well, after a semicolon; empty where there is none."""
        ill = next((one for one in look.details if one["State"].get("Status") != "running" or _health(one) not in ("", "healthy")), None)
        if ill is None:
            return "" if look.details else "; the engine has no container of it"
        return f"; {self._check_words(engine, ill)}"

    # --- requests

    def _answered(self, engine: Engine, request: Request, what: str) -> None:
        """Ask until it is answered as it should be. FleetError when the time is over, the container ends, or the answer is a wrong one."""
        while True:
            status, reason = _ask(request, self._deadline)
            right = status in _ANSWERS if request.status is None else status == request.status
            if right:
                return
            look = self._look(engine)
            if not self._runs(engine, look):
                raise self._error(f"container ended while {what} was made{self._said(engine, look)}")
            final = request.status is not None and status not in (None, _UNAVAILABLE)
            if final or time.monotonic() >= self._deadline:
                found = f"answered {status}" if status is not None else reason
                wanted = f"{request.status}" if request.status is not None else "200 to 399"
                said = self._words(engine, look.details[0])
                raise self._error(f"{what} ({request.method} {request.url}) was not answered with {wanted}: {found}; {said}")
            time.sleep(POLL_S)

    # --- the GPU inside

    def _sees(self, engine: Engine, look: _Look) -> None:
        for one in look.details:
            if wanted_devices(one.get("Config") or {}, one.get("HostConfig") or {}):
                listing = self._listing(engine, one)
                if listing is None:
                    self._sees_nodes(one)
                else:
                    self._sees_listed(set(gpus_inside.UUID.findall(listing)), listing)

    def _listing(self, engine: Engine, one: _Json) -> str | None:
        """What ``nvidia-smi -L`` says inside; None where the image has no such program. FleetError when it fails."""
        found = gpus_inside.listing(engine, str(one["Id"]))
        if found is None:
            return None
        code, text = found
        if code:
            raise self._error(f"the GPU is not usable inside the container: nvidia-smi says: {words.last_words(text, self.wish.hidden)}")
        return text

    def _sees_listed(self, found: set[str], listing: str) -> None:
        own = self.wish.own
        if others := found - own.seen:
            raise self._error(f"container sees {words.joined(others)}, which is not its own: its own is {words.joined(own.given)}")
        if missing := own.given - found:
            said = words.last_words(listing, self.wish.hidden) or "nothing"
            raise self._error(f"the GPU is not visible inside the container: nvidia-smi lists no {words.joined(missing)}; it says: {said}")

    def _sees_nodes(self, one: _Json) -> None:
        """The device nodes in the container's own file system, which the kernel shows to root by its process."""
        process = int((one.get("State") or {}).get("Pid") or 0)
        folder = self.wish.proc_root / str(process) / "root" / "dev"
        minors, capabilities = self._numbers(folder, _NODE), self._numbers(folder / "nvidia-caps", _CAPABILITY, may_lack=True)
        if others := minors - self.wish.own.minors:
            nodes = words.joined(f"/dev/nvidia{number}" for number in others)
            raise self._error(f"container has {nodes}, which is not its own: its own is {words.joined(self.wish.own.given)}")
        if missing := self.wish.own.minors - minors:
            nodes = words.joined(f"/dev/nvidia{number}" for number in missing)
            raise self._error(f"the GPU is not visible inside the container: it has no {nodes}")
        self._sees_slices(capabilities.difference(_NO_SLICE))

    def _numbers(self, folder: Path, name: re.Pattern[str], may_lack: bool = False) -> set[int]:
        try:
            return {int(match.group(1)) for match in map(name.fullmatch, (path.name for path in folder.iterdir())) if match}
        except OSError as error:
            if may_lack and isinstance(error, FileNotFoundError):
                return set()
            raise self._error(f"cannot see whether the GPU is visible inside the container: {folder}: {error.strerror}") from error

    def _sees_slices(self, found: set[int]) -> None:
        """The nodes of slices: every slice of a GPU has its GPU's own node as well, so that alone would tell no slice from another."""
        own, known = self.wish.own, self.wish.own.slices
        table = self.wish.proc_root / MIG_MINORS
        try:
            minors = mig_minors(str(self.wish.proc_root))
        except OSError as error:
            raise self._error(f"cannot see which slice the container has: {table}: {error.strerror}") from error
        names: dict[int, set[str]] = {}  # UUIDs of the slices that a node belongs to
        for number, (gpu, instance, compute) in minors.items():
            names[number] = {uuid for (at, gi, ci), uuid in known.items() if (at, gi) == (gpu, instance) and compute in (None, ci)}
        wanted = {number for number, uuids in names.items() if uuids & own.given}
        if not wanted and own.given & set(known.values()):
            raise self._error(f"cannot see which slice the container has: {table} names no node of {words.joined(own.given)}")
        its_own = words.joined(own.given) + (f" ({_capabilities(wanted)})" if wanted else "")
        if others := found - wanted:
            whose = words.joined({uuid for number in others for uuid in names.get(number, ())} - own.given) or "another slice"
            raise self._error(f"container has {whose} ({_capabilities(others)}), which is not its own: its own is {its_own}")
        if missing := wanted - found:
            raise self._error(f"the slice is not visible inside the container: it has no {_capabilities(missing)}; its own is {its_own}")

    # --- staying well

    def _settles(self, engine: Engine, first: _Look) -> None:
        until, starts = time.monotonic() + self.wish.settle, first.starts()
        while True:
            look = self._look(engine)
            if self._runs(engine, look) and look.done:
                return
            if look.starts() != starts:
                raise self._error(f"container was started again within {self.wish.settle:g} s{self._said_all(engine, look)}")
            if not self._healthy(engine, look):
                raise self._error(f"it did not stay healthy for {self.wish.settle:g} s{self._said(engine, look)}")
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(POLL_S, left))

    def _said_all(self, engine: Engine, look: _Look) -> str:
        return f"; {self._words(engine, look.details[0])}" if look.details else "; the engine has no container of it"


def _capabilities(numbers: Iterable[int]) -> str:
    return ", ".join(f"{_CAPABILITIES}/nvidia-cap{number}" for number in sorted(numbers))


def _health(one: _Json) -> str:
    """``starting``, ``healthy``, ``unhealthy``; empty for a container without a check."""
    word = str((((one.get("State") or {}).get("Health")) or {}).get("Status") or "")
    return "" if word == "none" else word


def _ended(state: _Json, status: int, age: float) -> str:
    why = " (the kernel ended it for lack of memory)" if state.get("OOMKilled") else ""
    return f"ended with status {status}{why} after {age:g} s"


def _ask(request: Request, deadline: float) -> tuple[int | None, str]:
    """Status of the answer, or None and why there is none. No proxy of the environment is asked, and no redirection is followed.

    What is answered is read to its end, within the request's time: one that streams for ever has answered.
    """
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    class Stays(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_arguments: t.Any, **_more: t.Any) -> None:
            return None

    data = request.body.encode() if request.body or request.method == "POST" else None
    headers = {"Content-Type": request.content_type} if data is not None else {}
    seconds = max(0.1, min(request.timeout, deadline - time.monotonic()))
    until = time.monotonic() + seconds
    try:
        made = urllib.request.Request(request.url, data=data, headers=headers, method=request.method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), Stays()).open(made, timeout=seconds) as answer:
            while answer.read1(_CHUNK) and time.monotonic() < until:
                pass
            return int(answer.status), ""
    except urllib.error.HTTPError as error:
        error.close()
        return int(error.code), ""
    except urllib.error.URLError as error:
        reason = error.reason
        return None, str(getattr(reason, "strerror", None) or reason)
    except (OSError, HTTPException, ValueError) as error:
        return None, str(getattr(error, "strerror", None) or error or type(error).__name__)
