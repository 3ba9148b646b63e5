# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watcher of a host: it follows the engine's events, writes the ledger, and restarts services that died by themselves.

Compose files say ``restart: "no"``, because at a boot Docker would start a container before anybody knows whether its MIG UUID still means
its own slice. So what ``unless-stopped`` was for is done here: see ``restarts.py`` for who is restarted when.

It sleeps in a blocking read. It holds no GPU open, and outlives its engine.
"""

from __future__ import annotations

import functools
import queue
import signal
import threading
import time
import typing as t
from collections.abc import Callable, Iterable, Mapping

from ansible_collections.gpuops.fleet.plugins.module_utils import engine_events as events
from ansible_collections.gpuops.fleet.plugins.module_utils import jobs, service_leases
from ansible_collections.gpuops.fleet.plugins.module_utils import ledger as books
from ansible_collections.gpuops.fleet.plugins.module_utils.agent_config import parse_known
from ansible_collections.gpuops.fleet.plugins.module_utils.bookkeeping import (
    REPLICA,
    SERVICE,
    Bookkeeper,
    Pulse,
    is_running,
    labels_of,
    short_id,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import say
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import PROBE_LABEL, Engine
from ansible_collections.gpuops.fleet.plugins.module_utils.engine_events import Event, EventStream
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Ledger
from ansible_collections.gpuops.fleet.plugins.module_utils.restarts import Restarts, replica_of

BEAT_S = 60.0
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
# An engine that is stopped stops its containers first, and tells of each as if somebody had asked for it.
SHUTDOWN_S = 30.0
# Whoever was asked to end and lives on that much longer did not mind.
ASKED_S = 900.0
# Signals that ask for something else than the end: HUP, USR1, USR2, CHLD, CONT, STOP, TSTP, URG, WINCH (signal(7)).
_HARMLESS = frozenset((1, 10, 12, 17, 18, 19, 20, 23, 28))

_Json = Mapping[str, t.Any]


def run(settings: _Json) -> int:
    """Watch until SIGTERM or SIGINT; the exit status. ``settings``: of the host agent, as plain data."""
    watch = Watch(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: watch.end())
    watch.work()
    return 0


@t.final
class Watch:
    """One watcher. :meth:`work` blocks until :meth:`end` is called, from a signal handler or another thread."""

    def __init__(self, settings: _Json, say: Callable[[str], None] = say) -> None:
        self._config = config = parse_known(settings)
        self._socket = str(config.docker_socket)
        self._say = say
        self._ending = self._hung_up = False
        # What is to be done in this thread. A signal may come while something is put in: SimpleQueue allows that.
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stream: EventStream | None = None
        self._streams = 0
        self._pulse = Pulse(config.state_dir, str(config.proc_root))
        self._restarts = Restarts(settings, say, self._inbox.put)
        self._books: Bookkeeper | None = None
        # When all was last known to be as noted (UTC seconds), when the stream broke off, and whether something could not be noted since.
        self._seen = self._pulse.last or time.time()
        self._lost_at: float | None = None
        self._stale = False
        # Containers that somebody asked the engine to end, and when (UTC seconds); that lack memory; that ended because of the asking.
        self._asked: dict[str, float] = {}
        self._starved: set[str] = set()
        self._stopped: dict[str, float] = {}

    def end(self) -> None:
        """Stop as soon as the step at hand is done."""
        self._ending = True
        self._inbox.put(lambda: None)

    def work(self) -> None:
        """Watch. What goes wrong with one event, the engine or the ledger is a line in the journal, and the watch goes on."""
        retry, connect_at, beat_at = FIRST_RETRY_S, 0.0, 0.0
        while not self._ending:
            now = time.monotonic()
            if self._stream is None and now >= connect_at:
                if self._attempt(self._connect):
                    retry, beat_at = FIRST_RETRY_S, 0.0
                else:
                    connect_at, retry = now + retry, min(2 * retry, LAST_RETRY_S)
            if now >= beat_at:
                self._beat()
                beat_at = now + BEAT_S
            if self._stream is not None:
                self._restarts.do_due()
            wake = min(beat_at, self._restarts.next_due() if self._stream is not None else connect_at)
            try:
                step = self._inbox.get(timeout=max(0.0, wake - time.monotonic()))
            except queue.Empty:
                continue
            self._attempt(step)
            if self._hung_up:
                self._hung_up, connect_at = False, time.monotonic() + FIRST_RETRY_S
        self._leave()

    def _leave(self) -> None:
        if self._stream is not None:
            self._beat()
            self._stream.close()
        if self._books is not None:
            self._books.ledger.close()

    def _attempt(self, step: Callable[..., object], *arguments: t.Any) -> bool:
        """True when the step was done; a line and False when it failed."""
        try:
            step(*arguments)
        except FleetError as error:
            self._say(str(error))
            self._stale = True
            return False
        return True

    def _beat(self) -> None:
        """A sign of life, every minute; and another look at everything when something could not be noted."""
        if self._stale and self._stream is not None:
            self._stale = False
            self._attempt(self._look)
        if self._books is not None and self._stream is not None and not self._stale:
            self._attempt(self._pulse.beat)
            self._seen = time.time()

    def _connect(self) -> None:
        """Follow the engine's events; first hear what it remembers from before, and look at what is there."""
        path, now = self._socket, time.time()
        missed = list(EventStream(path, self._seen, now)) if self._seen < now else []
        stream = EventStream(path, now)
        try:
            self._stale = False
            for event in missed:
                self._attempt(self._handle, event)
            self._look()
        except BaseException:
            stream.close()
            raise
        self._streams += 1
        self._stream = stream
        threading.Thread(target=self._read, args=(stream, self._streams), daemon=True).start()
        self._say(f"following the engine at {path}")
        self._lost_at = None

    def _read(self, stream: EventStream, number: int) -> None:
        for event in stream:
            self._inbox.put(functools.partial(self._handle, event))
        self._inbox.put(functools.partial(self._lost, number))

    def _lost(self, number: int) -> None:
        """The stream with that number ended."""
        if number != self._streams:
            return
        self._stream, self._hung_up = None, True
        self._lost_at = self._seen = time.time()
        self._say("the engine hung up; waiting for it to come back")

    def _keeper(self) -> Bookkeeper:
        """The ledger, opened when it is first needed: a disk may be full, or another version at work, for a while only."""
        if self._books is None:
            ledger = Ledger(books.path_in(self._config.state_dir))
            lease_end = functools.partial(service_leases.why_ended, self._config.state_dir)
            self._books = Bookkeeper(ledger, self._pulse.boot, self._pulse.floor, lease_end)
        return self._books

    def _look(self) -> None:
        """Look at every container: bring the ledger in line, and plan the restart of what died while nobody watched."""
        with Engine(self._socket) as engine:
            details = engine.details()
        booted, now = self._pulse.booted(), time.time()
        self._attempt(lambda: self._keeper().reconcile(details, self._seen, booted, now))
        for detail in details:
            if is_running(detail):
                self._restarts.runs(detail)
            elif jobs.value_of(detail):
                self._attempt(self._look_at_job, detail, details)
            elif self._went_with_the_engine(short_id(detail), details) or self._died_by_itself(detail):
                state = detail.get("State") or {}
                self._restarts.plan_for(detail, f"ended while nobody watched (exit {state.get('ExitCode')})")

    def _look_at_job(self, detail: _Json, details: Iterable[_Json]) -> None:
        """A job that does not run: note that it is done, or start again what the engine took with it as it went down."""
        state = detail.get("State") or {}
        code, replica = int(state.get("ExitCode") or 0), replica_of(labels_of(detail))
        if jobs.did_well(str(state.get("Status")), code):
            self._note_job(replica, jobs.value_of(detail))
        elif self._went_with_the_engine(short_id(detail), details):
            self._restarts.plan_for(detail, f"interrupted while nobody watched (exit {code})")

    def _note_job(self, replica: str | None, value: str) -> None:
        if replica is not None:
            jobs.note(self._config.services_dir / replica, value)

    def _died_by_itself(self, detail: _Json) -> bool:
        """Whether a container that does not run ended by itself in this boot, by the ledger. What was never noted was never watched."""
        try:
            why = self._keeper().ledger.last_end(short_id(detail), self._pulse.boot)
        except FleetError:
            return False  # said already
        return why in (books.EXITED, books.FAILED, books.OUT_OF_MEMORY, books.UNKNOWN)

    def _went_with_the_engine(self, container: str, details: Iterable[_Json]) -> bool:
        """Whether a stop was the engine's own, as it went down: just before it hung up, and no service outlived it."""
        at = self._stopped.get(container)
        if at is None or self._lost_at is None or at < self._lost_at - SHUTDOWN_S:
            return False
        return not any(is_running(detail) and self._restarts.ran_before(detail, self._lost_at) for detail in details)

    def _handle(self, event: Event) -> None:
        """One event: a line, the ledger, and who is restarted."""
        if PROBE_LABEL in event.about:
            return
        if event.action == events.KILL:
            self._kill(event)
        elif event.action == events.OOM:
            self._starved.add(event.container)
            self._say(f"{event.name}: the kernel is out of the memory that it may have")
        elif event.action == events.DIE:
            self._die(event)
        elif event.action == events.START:
            self._start(event)
        elif event.action == events.DESTROY:
            self._forget(event.container)
            self._restarts.cancel(event.container)
            self._attempt(lambda: self._keeper().ended(event.container, event.at, books.UNKNOWN))
        elif event.action == events.HEALTH:
            self._restarts.health(event)

    def _kill(self, event: Event) -> None:
        """Somebody asks the engine to end it, or to pass on a signal that means something else."""
        if event.number("signal") in _HARMLESS and not self._ends_by(event):
            return
        self._asked[event.container] = event.at

    def _ends_by(self, event: Event) -> bool:
        """Whether a signal that is harmless to others is the one by which this container is stopped (Apache: WINCH)."""
        with Engine(self._socket) as engine:
            detail = engine.detail(event.container)
        name = str(((detail or {}).get("Config") or {}).get("StopSignal") or "SIGTERM")
        number = event.number("signal")
        return name == str(number) or number == getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)

    def _die(self, event: Event) -> None:
        code, starved = event.number("exitCode"), event.container in self._starved
        asked = 0 <= event.at - self._asked.get(event.container, 0.0) < ASKED_S
        leased = service_leases.why_ended(self._config.state_dir, event.about.get(SERVICE), event.about.get(REPLICA)) if asked else None
        if asked:
            why = leased or books.STOPPED
        elif starved and code:
            why = books.OUT_OF_MEMORY
        else:
            why = books.FAILED if code else books.EXITED
        if asked:
            self._stopped[event.container] = event.at
            self._restarts.cancel(event.container)
        if code == 0:
            self._attempt(self._note_job, replica_of(event.about), event.about.get(jobs.LABEL, ""))
        planned = not asked and self._restarts.died(event, f"{why} by itself (exit {code})")
        if self._keeper().ended(event.container, event.at, why, code) and not planned:
            how = "as its lease says" if leased else "as somebody asked for" if asked else "by itself"
            self._say(f"{event.name}: {why} {how} (exit {code})")

    def _start(self, event: Event) -> None:
        self._forget(event.container)
        self._restarts.cancel(event.container)
        with Engine(self._socket) as engine:
            detail = engine.detail(event.container)
        if detail is None:
            return
        self._restarts.runs(detail, event.at)
        places = self._keeper().started(detail, event.at)
        if places:
            self._say(f"{event.name}: started on {', '.join(map(str, places))}")

    def _forget(self, container: str) -> None:
        self._asked.pop(container, None)
        self._starved.discard(container)
        self._stopped.pop(container, None)
