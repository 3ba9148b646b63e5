# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work shared out to two processes: the same answers, whatever becomes of the second one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver import sharing_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.sharing_out import shared_out

HERE = os.getpid()


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def test_both_processes_work() -> None:
    """A piece takes long enough for the other one to come."""

    def who(piece: int) -> tuple[int, int]:
        time.sleep(0.05)
        return piece, os.getpid()

    found = shared_out(who, range(8))
    assert [piece for piece, _pid in found.values()] == list(found) == list(range(8))
    assert {pid == HERE for _piece, pid in found.values()} == {True, False}
    assert multiprocessing.active_children() == []


def gone(piece: int) -> int:
    if os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return piece


def wrong(piece: int) -> int:
    if os.getpid() != HERE:
        raise ValueError("not here")
    time.sleep(0.02)
    return piece


@pytest.mark.parametrize("work", [gone, wrong])
def test_what_the_other_process_did_not_answer_is_done_here(work: Callable[[int], int], capfd: pytest.CaptureFixture[str]) -> None:
    assert shared_out(work, range(6)) == {piece: piece for piece in range(6)}
    assert capfd.readouterr() == ("", "")


def stuck(piece: int) -> int:
    if os.getpid() != HERE:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(3600)
    time.sleep(0.02)
    return piece


def test_nobody_waits_without_end_for_a_process_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_out, "PATIENCE", 0.1)
    assert shared_out(stuck, range(6)) == {piece: piece for piece in range(6)}
    assert multiprocessing.active_children() == []


def test_the_other_process_has_no_handler_of_signals() -> None:
    """One that raises would lead it out of its work, into what the first process was about to do."""

    def handled(_piece: int) -> bool:
        time.sleep(0.05)
        return callable(signal.getsignal(signal.SIGTERM))

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    assert set(shared_out(handled, range(4)).values()) == {True, False}


def test_more_pieces_than_a_pipe_holds_are_done_here() -> None:
    assert shared_out(lambda _piece: os.getpid(), range(50_000)) == dict.fromkeys(range(50_000), HERE)


def test_nothing_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for _time in range(3):
        shared_out(lambda piece: piece, range(3))
        shared_out(lambda piece: piece, range(50_000))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_error_is_the_same_wherever_it_happens() -> None:
    def never(piece: int) -> int:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        shared_out(never, range(4))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("why", ["one processor", "no fork", "a process of a pool"])
def test_one_process_does_it_alone(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError("no more processes")

    if why == "one processor":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    elif why == "no fork":
        monkeypatch.setattr(os, "fork", refused)
    else:
        monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    assert shared_out(lambda _piece: os.getpid(), range(5)) == dict.fromkeys(range(5), HERE)
