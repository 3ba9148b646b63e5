# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in pieces that know nothing of each other, shared out to two processes.

Python's threads take turns, so a second processor is of use to numpy's small steps in a second process only. It is a fork of this one: it
has all the data at once, and only what it found is sent back. It may die or hang at any point (a lock that a thread of this process held
at the fork is never given back there): nothing here waits for it without end, and it never gets further than its own work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import struct
import time
import typing as t
from collections.abc import Callable, Iterator, Sequence

if t.TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkContext, ForkProcess

T = t.TypeVar("T")

TICKET = struct.Struct("=I")
PATIENCE = 2.0  # seconds at least that the other process has for what it took; as long as all took here, where that is more
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


class _Other(t.NamedTuple):
    """The other process. ``tickets``: a pipe with the pieces that neither process took yet; ``answers`` come once, when it is empty."""

    process: ForkProcess
    tickets: int
    answers: Connection

    def said(self, seconds: float) -> dict[int, t.Any]:
        """What it found, by piece; nothing, if it does not answer within ``seconds``."""
        with contextlib.suppress(EOFError, OSError):
            if self.answers.poll(seconds):
                found: dict[int, t.Any] = self.answers.recv()
                self.process.join(FAREWELL)
                return found
        return {}


def _other(work: Callable[[int], T], pieces: Sequence[int], ending: contextlib.ExitStack) -> _Other | None:
    """A second process at work, until ``ending``; None where there is none to be had."""
    # A process of a pool may have no children; and only on Linux is it known which processors this one may use, and that forks are sound.
    if multiprocessing.current_process().daemon or not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    context: ForkContext = multiprocessing.get_context("fork")
    try:
        tickets = _tickets(pieces)
        ending.callback(os.close, tickets)
        answers, send = context.Pipe(duplex=False)
        ending.callback(answers.close)
        # Without an end of its own here, the pipe of answers ends with the other process.
        with send:
            process = context.Process(target=_help, args=(work, tickets, send), daemon=True)
            process.start()
    except OSError:
        return None
    ending.callback(_ended, process)
    return _Other(process, tickets, answers)


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


def _help(work: Callable[[int], T], tickets: int, send: Connection) -> None:
    """The other process. Whatever ends it, the first one does the rest, and says what is wrong if anything is."""
    with contextlib.suppress(BaseException):
        # A handler of the first process that raises would lead this one out of here, into what its caller was about to do.
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        send.send({piece: work(piece) for piece in _taken(tickets)})


def _ended(process: ForkProcess) -> None:
    process.kill()
    process.join()
    process.close()
