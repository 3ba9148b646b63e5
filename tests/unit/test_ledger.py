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
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Holder, Ledger, Place, Rollout

if t.TYPE_CHECKING:
    from conftest import RunModule

SLICE = Place("GPU-1", "0000:07:00.0", "1g.10gb", 4)
WHOLE = Place("GPU-2", "0000:0b:00.0")
OCR = Holder("ocr", 1, "claims", "prod", "aaaaaaaaaaaa", "ocr-1")
ROLLOUT = Rollout(
    *("t1", "ocr", 1, None, "sha256:2", "ocr@sha256:2", "alice", 100.0, 160.0, "stop-first", "restored", "it is not healthy"),
    steps=({"step": "drain", "seconds": 30.0},),
)
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
        "UPDATE rollouts SET outcome = 'serving'",
        "DELETE FROM rollouts",
        "INSERT OR REPLACE INTO rollouts SELECT * FROM rollouts",
        "REPLACE INTO rollouts SELECT 7, token, service, replica, from_digest, to_digest, image, 'eve', began, ended, way, outcome, reason,"
        " steps FROM rollouts",
    ],
)
def test_rows_are_only_added(ledger: Ledger, statement: str) -> None:
    ledger.begin(SLICE, OCR, 100, "boot")
    end(ledger, 200, books.FAILED)
    ledger.rolled_out(ROLLOUT)
    before = spans(ledger), ledger.rollouts(0, 10**10)
    with sqlite3.connect(ledger.path) as other, pytest.raises(sqlite3.Error):
        other.execute(statement)
    other.close()
    assert (spans(ledger), ledger.rollouts(0, 10**10)) == before


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
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Holder, Ledger, Place, Rollout
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
        base.execute("PRAGMA user_version = 3")
    base.close()
    before = path.read_bytes()
    with pytest.raises(FleetError, match=r"this ledger has format 3, and this version knows format 2; a newer version wrote it"):
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


# What the release before this one wrote, statement by statement.
FORMAT_1 = """
CREATE TABLE begun (
        id INTEGER PRIMARY KEY, at REAL NOT NULL, boot TEXT NOT NULL,
        gpu TEXT NOT NULL, pci TEXT, profile TEXT, start INTEGER,
        service TEXT, replica INTEGER, team TEXT, environment TEXT, container TEXT NOT NULL, name TEXT NOT NULL,
        CHECK ((profile IS NULL) = (start IS NULL)));
CREATE TABLE ended (hold INTEGER PRIMARY KEY REFERENCES begun (id), at REAL NOT NULL, why TEXT NOT NULL, exit_code INTEGER);
CREATE VIEW holds AS SELECT begun.id, begun.gpu, begun.pci, begun.profile, begun.start, begun.service, begun.replica, begun.team,
        begun.environment, begun.container, begun.name, begun.boot, begun.at AS began, ended.at AS ended, ended.why, ended.exit_code
        FROM begun LEFT JOIN ended ON ended.hold = begun.id;
CREATE INDEX begun_at ON begun (at);
CREATE INDEX begun_container ON begun (container);
CREATE TRIGGER begun_update BEFORE UPDATE ON begun BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER begun_delete BEFORE DELETE ON begun BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ended_update BEFORE UPDATE ON ended BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ended_delete BEFORE DELETE ON ended BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER begun_replace BEFORE INSERT ON begun WHEN EXISTS (SELECT 1 FROM begun WHERE id = NEW.id)
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ended_replace BEFORE INSERT ON ended WHEN EXISTS (SELECT 1 FROM ended WHERE hold = NEW.hold)
        BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
INSERT INTO begun (at, boot, gpu, pci, profile, start, service, replica, team, environment, container, name)
  VALUES (100, 'boot', 'GPU-1', '0000:07:00.0', '1g.10gb', 4, 'ocr', 1, 'claims', 'prod', 'aaaaaaaaaaaa', 'ocr-1');
INSERT INTO ended (hold, at, why, exit_code) VALUES (1, 200, 'failed', 3);
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger of format 1."""
    path = books.path_in(tmp_path)
    with sqlite3.connect(path) as base:
        base.executescript(FORMAT_1)
    base.close()
    return path


def test_a_ledger_of_format_1_keeps_its_rows_and_takes_rollouts(old: Path) -> None:
    with Ledger(old, read_only=True) as reader:
        assert (len(reader.holds(0, 1000)), reader.rollouts(0, 1000)) == (1, [])
        before = spans(reader)
    with Ledger(old) as ledger:
        assert spans(ledger) == before
        assert ledger.rolled_out(ROLLOUT)
        ledger.begin(WHOLE, OCR, 300, "boot")
    with Ledger(old) as again:
        assert len(again.rollouts(0, 1000)) == 1
    with sqlite3.connect(old) as base, pytest.raises(sqlite3.Error, match="append-only"):
        base.execute("DELETE FROM begun")
    base.close()


def test_whoever_dies_while_the_format_changes_leaves_the_old_one(old: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from ansible_collections.gpuops.fleet.plugins.module_utils import ledger
ledger._SECOND = (*ledger._SECOND[:2], "SELECT die()")
connect = ledger.sqlite3.connect
def dying(*arguments, **more):
    base = connect(*arguments, **more)
    base.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return base
ledger.sqlite3.connect = dying
ledger.Ledger(Path({str(old)!r}))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=env, check=False).returncode == -9
    with Ledger(old, read_only=True) as reader:
        assert (len(reader.holds(0, 1000)), reader.rollouts(0, 1000)) == (1, [])
    with Ledger(old) as ledger:
        assert ledger.rolled_out(ROLLOUT)


def test_a_rollout_is_written_once(ledger: Ledger) -> None:
    assert [ledger.rolled_out(ROLLOUT), ledger.rolled_out(ROLLOUT)] == [True, False]
    (found,) = ledger.rollouts(0, 1000)
    assert found == {
        "service": "ocr",
        "replica": 1,
        "from_digest": None,
        "to_digest": "sha256:2",
        "image": "ocr@sha256:2",
        "by": "alice",
        "began": 100.0,
        "ended": 160.0,
        "way": "stop-first",
        "outcome": "restored",
        "reason": "it is not healthy",
        "steps": [{"step": "drain", "seconds": 30.0}],
    }
    assert [len(ledger.rollouts(*interval)) for interval in ((0, 100), (0, 101), (160, 161), (161, 999))] == [0, 1, 1, 0]


def test_the_module_tells_of_rollouts(run_module: RunModule, tmp_path: Path) -> None:
    with Ledger(books.path_in(tmp_path)) as ledger:
        ledger.rolled_out(ROLLOUT)
    (found,) = run_module("ledger_info", {"state_dir": str(tmp_path)})["rollouts"]
    assert (found["began"], found["ended"], found["outcome"]) == ("1970-01-01T00:01:40Z", "1970-01-01T00:02:40Z", "restored")


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
