# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks that the lab watches, times and kills. ansible-playbook is a stand-in whose words are those of the real one."""

from __future__ import annotations

import sys
import time
import typing as t
from pathlib import Path

import pytest
from lab_world import processes, program, until

from lab import plays, stories_rollout
from lab.errors import LabError
from lab.plays import Play
from lab.run import verify

# Its worker leads a session of its own, as those of ansible-core 2.19 do.
WORDS = """
echo "$LAB_UNIT_TEST $*" > "$LAB_UNIT_TEST/called"
echo 'PLAY [Deploy] ***'
echo
echo 'TASK [gpuops.fleet.model_service : Bring the surge] ****'
echo 'changed: [gpu-1]'
sleep 0.3
echo 'TASK [Release the host] ****'
case "$PLAY_MODE" in
  fails) echo '[ERROR]: Task failed: receipt-ocr-1 never got healthy'; exit 2 ;;
  stays) setsid sleep 600 & sleep 600 ;;
esac
"""


class Place(t.NamedTuple):
    """What a play needs of a site."""

    scenario: str
    inventory: Path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    program(tmp_path / "bin", "ansible-playbook", WORDS)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(plays, "LOGS", tmp_path / "logs")
    monkeypatch.setenv("LAB_UNIT_TEST", str(tmp_path))
    monkeypatch.delenv("PLAY_MODE", raising=False)
    return Place("rollout", tmp_path / "hosts.yml")


def begun(place: Place, *words: str) -> Play:
    return Play(t.cast("t.Any", place), "deploy", *words)


def test_a_play_is_called_as_an_engineer_calls_it_and_its_steps_are_timed(tmp_path: Path, place: Place) -> None:
    play = begun(place, "-e", "service=receipt-ocr")

    assert play.end(20) == 0

    assert (tmp_path / "called").read_text(encoding="utf-8").split()[1:] == [
        "-i", str(place.inventory), "gpuops.fleet.deploy", "-e", "service=receipt-ocr"
    ]  # fmt: skip
    first, second = play.tasks()
    assert (first.name, second.name) == ("gpuops.fleet.model_service : Bring the surge", "Release the host")
    assert 0.2 < first.seconds < 5
    assert "$ deploy -e service=receipt-ocr\nPLAY [Deploy]" in (tmp_path / "logs/rollout-plays.log").read_text(encoding="utf-8")


def test_a_play_that_fails_says_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY_MODE", "fails")
    play = begun(place)

    assert play.end(20) == 2
    assert play.reasons() == ["[ERROR]: Task failed: receipt-ocr-1 never got healthy"]
    with pytest.raises(LabError, match=r"^deploy failed: \[ERROR\]: Task failed: receipt-ocr-1"):
        plays.must_play(t.cast("t.Any", place), "deploy")


def test_a_killed_play_leaves_no_worker(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY_MODE", "stays")
    play = begun(place)
    assert play.wait_for(r"^TASK \[Release the host", 20)
    until(lambda: sum("sleep 600" in line for line in processes("LAB_UNIT_TEST", tmp_path).values()) >= 2)

    play.kill()

    assert play.ended
    until(lambda: processes("LAB_UNIT_TEST", tmp_path) == {})
    assert play.task() == "Release the host"


def test_waiting_for_a_step_ends_with_the_play(place: Place) -> None:
    play = begun(place)

    assert not play.wait_for(r"^TASK \[Never", 20)
    assert play.end(20) == 0


def test_a_play_that_does_not_end_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY_MODE", "stays")
    play, started = begun(place), time.monotonic()

    with pytest.raises(LabError, match=r"^deploy did not end within 1 s; its last task: Release the host$"):
        play.end(1)
    assert time.monotonic() - started < 15


def test_each_act_of_a_rollout_is_told_by_one_story(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(stories_rollout, "tell_acts", lambda _site, names: told.extend(names) or ())
    for story in (stories_rollout.rollout, stories_rollout.rollout_broken, stories_rollout.rollout_killed):
        assert list(story(t.cast("t.Any", None))) == []

    assert sorted(told) == sorted([*stories_rollout.ACTS, *stories_rollout.END, *stories_rollout.END])


def test_an_act_that_there_is_not_is_told_before_a_guest_is_asked() -> None:
    with pytest.raises(LabError, match=r"there is no act kiled-drained; there are: begin, .*killed-drained"):
        verify("rollout", ["good", "kiled-drained"])
