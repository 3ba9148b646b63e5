# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in pieces that know nothing of each other, shared out to two processes.

Python's threads take turns, so a second processor is of use to it, and to numpy's small steps, in a second process only. That is a fork of
this one: it has all the data at once, and only what it found is sent back. It may die or hang at any point (a lock that a thread of this
process held at the fork is never given back there): nothing here waits for it without end, and it never gets further than its own work.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import time
import typing as t
from collections.abc import Callable, Hashable, Iterator, Sequence

T = t.TypeVar("T")
Asked = t.TypeVar("Asked")

TICKET = struct.Struct("=I")
FEW = 16  # questions that are answered here, before a second process were at work
# Seconds that the other process has at least for what it took, which may be the largest piece; as long as all took here, if that is more.
PATIENCE = 20.0
FAREWELL = 10.0  # seconds that it has once it answered, for what is done at the end of a process: a measured one writes its figures


def shared_out(work: Callable[[int], T], pieces: Sequence[int]) -> dict[int, T]:
    """Piece -> what ``work`` says of it. The largest pieces should come first.

    Where there is no second processor, or no second process may be had, all of it is done here. So is what the other process took and did
    not answer: the answer is the same in any case, and so are errors.
    """
    found: dict[int, T] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as ending:
        other = _other(work, pieces, ending) if len(pieces) > 1 else None
        for piece in _taken(other.tickets) if other else pieces:
            found[piece] = work(piece)
        if other:
            found.update(other.said(max(PATIENCE, time.monotonic() - began)))
    return {piece: found[piece] if piece in found else work(piece) for piece in pieces}


def answered(ask: Callable[[Asked], T], asked: Sequence[Asked], alike: Callable[[Asked], Hashable]) -> list[T]:
    """What ``ask`` says of each, in order. Those that are ``alike`` are asked about by one process, one after the other: what it finds out
    for one it knows of the next."""
    if len(asked) < FEW:
        return list(map(ask, asked))
    groups: dict[Hashable, list[int]] = {}
    for number, each in enumerate(asked):
        groups.setdefault(alike(each), []).append(number)
    pieces = sorted(groups.values(), key=len, reverse=True)
    found = shared_out(lambda piece: [ask(asked[number]) for number in pieces[piece]], range(len(pieces)))
    said = {number: answer for piece in found for number, answer in zip(pieces[piece], found[piece], strict=True)}
    return [said[number] for number in range(len(asked))]


class _Other(t.NamedTuple):
    """The other process. ``tickets``: a pipe with the pieces that neither process took yet; ``answers`` come once, when it is empty."""

    tickets: int
    answers: t.BinaryIO

    def said(self, seconds: float) -> dict[int, t.Any]:
        """What it found, by piece; nothing, if it does not answer within ``seconds``."""
        if not self._waited(seconds):
            return {}
        try:
            # It writes what is complete: once there is a part, the rest comes, or the end does.
            found: dict[int, t.Any] = pickle.load(self.answers)
        except (EOFError, OSError, pickle.UnpicklingError):
            return {}
        self._waited(FAREWELL)
        return found

    def _waited(self, seconds: float) -> bool:
        """Is there an answer, or the end of the process, within that time?"""
        waiting = select.poll()
        waiting.register(self.answers, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))


def _other(work: Callable[[int], T], pieces: Sequence[int], ending: contextlib.ExitStack) -> _Other | None:
    """A second process at work, until ``ending``; None where there is none to be had."""
    # Only on Linux is it known which processors this one may use, and that forks are sound.
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        tickets = _tickets(pieces)
        ending.callback(os.close, tickets)
        read, write = os.pipe()
        answers = ending.enter_context(os.fdopen(read, "rb"))
        # Not by multiprocessing, which refuses children to processes of a pool, as Ansible's workers are.
        process = _fork(write)
    except OSError:
        return None
    if process == 0:
        try:
            answers.close()  # without a reader, writing fails and does not wait
            _help(work, tickets, write)
        finally:
            os._exit(0)
    ending.callback(_ended, process)
    return _Other(tickets, answers)


def _fork(write: int) -> int:
    """As :func:`os.fork`; without an end of its own in the first process, the pipe of answers ends with the other one."""
    process = -1
    try:
        process = os.fork()
    finally:
        if process:
            os.close(write)
    return process


def _tickets(pieces: Sequence[int]) -> int:
    """A pipe to read one ticket for each piece from. Who reads a ticket has the piece: no lock that a process could die with."""
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        tickets = b"".join(map(TICKET.pack, pieces))
        if os.write(write, tickets) < len(tickets):
            raise OSError("more pieces than a pipe holds")
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    return read


def _taken(tickets: int) -> Iterator[int]:
    while ticket := os.read(tickets, TICKET.size):
        yield TICKET.unpack(ticket)[0]


def _help(work: Callable[[int], T], tickets: int, write: int) -> None:
    """The other process. Whatever ends it, the first one does the rest, and says what is wrong if anything is."""
    with contextlib.suppress(BaseException):
        # A handler of the first process that raises would lead this one out of here, into what its caller was about to do.
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        found = pickle.dumps({piece: work(piece) for piece in _taken(tickets)}, pickle.HIGHEST_PROTOCOL)
        with open(write, "wb") as answers:
            answers.write(found)


def _ended(process: int) -> None:
    # Somebody who wants to know nothing of children has them reaped by the kernel.
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
