# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: rows are only added, who held what is one query, and a crash, a clock or another version does no harm."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import ledger as books
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Holder, Ledger, Place

if t.TYPE_CHECKING:
    from conftest import RunModule

SLICE = Place("GPU-1", "0000:07:00.0", "1g.10gb", 4)
WHOLE = Place("GPU-2", "0000:0b:00.0")
OCR = Holder("ocr", 1, "claims", "prod", "aaaaaaaaaaaa", "ocr-1")
NOON = 1763726400.0  # 2025-11-21T12:00:00Z


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(books.path_in(tmp_path)) as made:
        yield made


def spans(ledger: Ledger, since: float = 0, until: float = 10**10) -> list[tuple[t.Any, ...]]:
    return [
        (hold["began"], hold["ended"], hold["why"], hold["since"], hold["until"], hold["seconds"]) for hold in ledger.holds(since, until)
    ]


def end(ledger: Ledger, at: float, why: str = books.STOPPED) -> None:
    (hold,) = ledger.open_holds()
    ledger.end(hold, at, why)


def test_a_hold_says_who_held_what_from_when_to_when_and_why_it_ended(ledger: Ledger) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    (hold,) = ledger.open_holds()
    assert (hold.place, hold.holder, hold.began, hold.boot) == (SLICE, OCR, 100, "boot")
    ledger.end(hold, 160.5, books.FAILED, 3)
    assert ledger.open_holds() == []
    assert ledger.holds(0, 1000) == [
        {
            "gpu": "GPU-1",
            "pci": "0000:07:00.0",
            "profile": "1g.10gb",
            "start": 4,
            "service": "ocr",
            "replica": 1,
            "team": "claims",
            "environment": "prod",
            "container": "aaaaaaaaaaaa",
            "name": "ocr-1",
            "began": 100.0,
            "ended": 160.5,
            "why": "failed",
            "exit_code": 3,
            "since": 100.0,
            "until": 160.5,
            "seconds": 60.5,
        }
    ]


@pytest.mark.parametrize(
    ("since", "until", "seconds"),
    [
        (0, 99, None),
        (0, 100, None),
        (0, 101, 1),
        (150, 170, 20),
        (100, 200, 100),
        (199, 300, 1),
        (200, 300, None),
        (0, 10**9, 100),
    ],
)
def test_an_interval_cuts_a_hold(ledger: Ledger, since: float, until: float, seconds: float | None) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    end(ledger, 200)
    assert [hold["seconds"] for hold in ledger.holds(since, until)] == ([] if seconds is None else [seconds])


def test_a_hold_that_lasts_counts_to_the_end_of_the_interval(ledger: Ledger) -> None:
    ledger.begin(WHOLE, OCR, 100, "boot")
    assert spans(ledger, 50, 130) == [(100, None, None, 100, 130, 30)]


def test_a_hold_of_no_length_is_seen_once(ledger: Ledger) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    end(ledger, 100)
    assert [len(ledger.holds(since, since + 50)) for since in (50, 100, 150)] == [0, 1, 0]


def test_an_end_before_its_begin_is_its_begin(ledger: Ledger) -> None:
    ledger.begin(SLICE, OCR, 5000, "boot")
    end(ledger, 1400)
    assert spans(ledger) == [(5000, 5000, "stopped", 5000, 5000, 0)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE begun SET at = 0",
        "DELETE FROM begun",
        "UPDATE ended SET why = 'stopped'",
        "DELETE FROM ended",
        "INSERT OR REPLACE INTO begun SELECT * FROM begun",
        "INSERT OR REPLACE INTO ended SELECT * FROM ended",
        "REPLACE INTO ended (hold, at, why) VALUES (1, 0, 'x')",
        "DELETE FROM holds",
    ],
)
def test_rows_are_only_added(ledger: Ledger, statement: str) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    end(ledger, 200, books.FAILED)
    before = spans(ledger)
    with sqlite3.connect(ledger.path) as other, pytest.raises(sqlite3.Error):
        other.execute(statement)
    other.close()
    assert spans(ledger) == before


def test_a_hold_ends_once(ledger: Ledger) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    (hold,) = ledger.open_holds()
    ledger.end(hold, 200, books.STOPPED)
    with pytest.raises(FleetError, match=r"ledger.sqlite: the ledger is of no use: the ledger is append-only$"):
        ledger.end(hold, 300, books.FAILED)


def test_what_a_killed_process_wrote_is_there_and_the_next_goes_on(tmp_path: Path) -> None:
    path = books.path_in(tmp_path / "state")
    script = f"""
import os, signal
from pathlib import Path
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Holder, Ledger, Place
ledger = Ledger(Path({str(path)!r}))
ledger.begin(Place("GPU-1", None, "1g.10gb", 4), Holder(None, None, None, None, "a", "x"), 100, "boot")
ledger._do("BEGIN IMMEDIATE")
ledger.begin(Place("GPU-1"), Holder(None, None, None, None, "b", "y"), 200, "boot")
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=env, check=False).returncode == -9
    with Ledger(path) as ledger:
        assert [hold.holder.container for hold in ledger.open_holds()] == ["a"]
        ledger.begin(WHOLE, OCR, 300, "boot")
        assert len(ledger.open_holds()) == 2
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_reader_sees_what_a_writer_writes_at_the_same_time(ledger: Ledger) -> None:
    ledger._do("BEGIN IMMEDIATE")
    ledger.begin(SLICE, OCR, 100, "boot")
    with Ledger(ledger.path, read_only=True) as reader:
        assert reader.holds(0, 1000) == []
        ledger._do("COMMIT")
        assert len(reader.holds(0, 1000)) == 1
        with pytest.raises(FleetError, match="readonly"):
            reader.begin(SLICE, OCR, 100, "boot")


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = books.path_in(tmp_path)
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA user_version = 2")
    base.close()
    before = path.read_bytes()
    with pytest.raises(FleetError, match=r"this ledger has format 2, and this version knows format 1; a newer version wrote it"):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    path = books.path_in(tmp_path)
    path.write_text("this is no database, and it is long enough to be looked at as one" * 20)
    with pytest.raises(FleetError, match=rf"^{path}: the ledger is of no use: file is not a database$"):
        Ledger(path)


def test_why_the_newest_hold_of_a_container_ended_counts_for_this_boot_only(ledger: Ledger) -> None:
    assert ledger.last_end("aaaaaaaaaaaa", "boot") is None
    ledger.begin(SLICE, OCR, 100, "boot")
    assert ledger.last_end("aaaaaaaaaaaa", "boot") is None
    end(ledger, 200, books.FAILED)
    assert ledger.last_end("aaaaaaaaaaaa", "boot") == "failed"
    assert ledger.last_end("aaaaaaaaaaaa", "another") is None
    ledger.begin(SLICE, OCR, 300, "boot")
    assert ledger.last_end("aaaaaaaaaaaa", "boot") is None


def test_the_module_reads_an_interval_in_words_of_people(run_module: RunModule, tmp_path: Path) -> None:
    with Ledger(books.path_in(tmp_path)) as ledger:
        ledger.begin(SLICE, OCR, NOON, "boot")
        end(ledger, NOON + 3600)
        ledger.begin(WHOLE, Holder(None, None, None, None, "bbbbbbbbbbbb", "by-hand"), NOON + 1800, "boot")
    books.pulse_in(tmp_path).touch()
    os.utime(books.pulse_in(tmp_path), (NOON + 60, NOON + 60))
    asked = {"since": "2025-11-21T12:30:00Z", "until": "2025-11-21T13:30:00+00:00", "state_dir": str(tmp_path)}
    result = run_module("ledger_info", asked, check=True)
    assert result["changed"] is False
    assert result["alive"] == "2025-11-21T12:01:00Z"
    first, second = result["holds"]
    assert {key: first[key] for key in ("service", "began", "ended", "why", "since", "until", "seconds")} == {
        "service": "ocr",
        "began": "2025-11-21T12:00:00Z",
        "ended": "2025-11-21T13:00:00Z",
        "why": "stopped",
        "since": "2025-11-21T12:30:00Z",
        "until": "2025-11-21T13:00:00Z",
        "seconds": 1800.0,
    }
    assert (second["service"], second["ended"], second["profile"]) == (None, None, None)
    day = run_module("ledger_info", {**asked, "since": "2025-11-22", "until": "2099-01-01"})
    (lasting,) = day["holds"]
    assert (lasting["name"], lasting["since"], lasting["ended"]) == ("by-hand", "2025-11-22T00:00:00Z", None)
    assert lasting["until"] < "2099"


def test_a_host_without_a_ledger_has_no_holds(run_module: RunModule, tmp_path: Path) -> None:
    result = run_module("ledger_info", {"state_dir": str(tmp_path / "nothing")})
    assert (result["holds"], result["alive"], result["failed"]) == ([], None, False)
    assert not (tmp_path / "nothing").exists()
    books.path_in(tmp_path).touch()
    assert run_module("ledger_info", {"state_dir": str(tmp_path)})["holds"] == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"since": "yesterday"},
            "since: 'yesterday' is no date; write a date such as 2026-11-01, or a date-time such as 2026-11-01T06:00:00Z",
        ),
        ({"since": "2026-11-02", "until": "2026-11-01"}, "until: the interval ends (2026-11-01) before it begins (2026-11-02)"),
    ],
)
def test_an_interval_that_is_none_is_refused(run_module: RunModule, tmp_path: Path, asked: dict[str, str], message: str) -> None:
    assert run_module("ledger_info", {**asked, "state_dir": str(tmp_path)})["msg"] == message
