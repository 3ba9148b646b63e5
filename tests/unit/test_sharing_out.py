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

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import sharing_out
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import answered, shared_out

HERE = os.getpid()


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two processors, whatever this machine has; the processes that were made by this one."""
    made: list[int] = []
    fork = os.fork

    def noted() -> int:
        if process := fork():
            made.append(process)
        return process

    monkeypatch.setattr(os, "fork", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    return made


def assert_all_gone(forked: list[int]) -> None:
    """Were there any, is each of them gone, and is that known? Other children of this process are other tests' business."""
    assert forked
    for process in forked:
        with pytest.raises(ChildProcessError):
            os.waitpid(process, os.WNOHANG)


def test_both_processes_work(forked: list[int]) -> None:
    """A piece takes long enough for the other one to come."""

    def who(piece: int) -> tuple[int, int]:
        time.sleep(0.05)
        return piece, os.getpid()

    found = shared_out(who, range(8))
    assert [piece for piece, _pid in found.values()] == list(found) == list(range(8))
    assert {pid == HERE for _piece, pid in found.values()} == {True, False}
    assert_all_gone(forked)


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


def test_nobody_waits_without_end_for_a_process_that_hangs(forked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_out, "PATIENCE", 0.1)
    assert shared_out(stuck, range(6)) == {piece: piece for piece in range(6)}
    assert_all_gone(forked)


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


def test_an_error_is_the_same_wherever_it_happens(forked: list[int]) -> None:
    def never(piece: int) -> int:
        raise KeyError(piece)

    with pytest.raises(KeyError):
        shared_out(never, range(4))
    assert_all_gone(forked)


@pytest.mark.parametrize("why", ["one processor", "no fork"])
def test_one_process_does_it_alone(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError("no more processes")

    if why == "one processor":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    else:
        monkeypatch.setattr(os, "fork", refused)
    assert shared_out(lambda _piece: os.getpid(), range(5)) == dict.fromkeys(range(5), HERE)


def test_a_process_of_a_pool_has_help_too() -> None:
    """As Ansible's workers are, to which multiprocessing refuses children."""

    def who(_piece: int) -> int:
        time.sleep(0.05)
        return os.getpid()

    def in_the_pool() -> None:
        os._exit(len(set(shared_out(who, range(8)).values())))

    worker = multiprocessing.get_context("fork").Process(target=in_the_pool, daemon=True)
    worker.start()
    worker.join()
    assert worker.exitcode == 2


def test_an_answer_that_cannot_be_sent_is_found_here() -> None:
    def unsendable(piece: int) -> Callable[[], int]:
        time.sleep(0.02)
        return lambda: piece

    assert [each() for each in shared_out(unsendable, range(6)).values()] == list(range(6))


def test_a_large_answer_comes_whole() -> None:
    def large(piece: int) -> bytes:
        time.sleep(0.02)
        return bytes([piece]) * 1_000_000

    assert shared_out(large, range(6)) == {piece: bytes([piece]) * 1_000_000 for piece in range(6)}


def test_those_that_are_alike_are_asked_by_one_process_in_order() -> None:
    seen: list[int] = []

    def ask(number: int) -> tuple[int, int, tuple[int, ...]]:
        time.sleep(0.005)
        seen.append(number)
        return number, os.getpid(), tuple(each for each in seen if each % 5 == number % 5)

    found = answered(ask, range(40), lambda number: number % 5)
    assert [number for number, _pid, _alike in found] == list(range(40))
    assert {pid == HERE for _number, pid, _alike in found} == {True, False}
    assert all(alike == tuple(range(number % 5, number + 1, 5)) for number, _pid, alike in found)


def test_few_questions_are_answered_here() -> None:
    assert answered(lambda number: (number, os.getpid()), [3, 1, 2], lambda _number: 0) == [(3, HERE), (1, HERE), (2, HERE)]
