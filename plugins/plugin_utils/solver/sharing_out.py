# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in pieces that know nothing of each other, shared out to two processes.

Python's threads take turns, so a second processor is of use to numpy's small steps in a second process only. It is a fork of this one: it
has all the data at once, and only what it found is sent back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import typing as t
from collections.abc import Callable, Sequence

if t.TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkContext, ForkProcess

    Turn = t.Any  # multiprocessing's Value of an integer: its type has no public name.

T = t.TypeVar("T")


def shared_out(work: Callable[[int], T], pieces: Sequence[int]) -> dict[int, T]:
    """Piece -> what ``work`` says of it. The largest pieces should come first.

    Where there is no second processor, or no second process may be had, all of it is done here. So is what the other process took and did
    not answer: the answer is the same in any case, and so are errors.
    """
    found: dict[int, T] = {}
    with contextlib.ExitStack() as ending:
        other = _other(work, pieces, ending) if len(pieces) > 1 else None
        while (place := _taken(other.turn) if other else len(found)) < len(pieces):
            found[pieces[place]] = work(pieces[place])
        if other:
            with contextlib.suppress(EOFError, OSError):
                found.update(other.answers.recv())
    return {piece: found[piece] if piece in found else work(piece) for piece in pieces}


class _Other(t.NamedTuple):
    """The other process: ``turn``, how many pieces were taken by either; ``answers`` come once, when none is left."""

    turn: Turn
    answers: Connection


def _other(work: Callable[[int], T], pieces: Sequence[int], ending: contextlib.ExitStack) -> _Other | None:
    """A second process at work, until ``ending``; None where there is none to be had."""
    # A process of a pool may have no children; and only on Linux is it known which processors this one may use, and that forks are sound.
    if multiprocessing.current_process().daemon or not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None
    context: ForkContext = multiprocessing.get_context("fork")
    try:
        turn = context.Value("i", 0)
        answers, send = context.Pipe(duplex=False)
        process = context.Process(target=_help, args=(work, pieces, turn, send), daemon=True)
        process.start()
    except OSError:
        return None
    # Without an end of its own here, the pipe ends with the other process.
    send.close()
    ending.callback(_ended, process, answers)
    return _Other(turn, answers)


def _taken(turn: Turn) -> int:
    """The next piece is mine."""
    with turn.get_lock():
        place = int(turn.value)
        turn.value = place + 1
    return place


def _help(work: Callable[[int], T], pieces: Sequence[int], turn: Turn, send: Connection) -> None:
    """The other process. Whatever ends it, the first one does the rest, and says what is wrong if anything is."""
    with contextlib.suppress(BaseException):
        found = {}
        while (place := _taken(turn)) < len(pieces):
            found[pieces[place]] = work(pieces[place])
        send.send(found)


def _ended(process: ForkProcess, answers: Connection) -> None:
    answers.close()
    process.terminate()
    process.join()
    process.close()
