# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are whole or not there, and a journal that remembers what began and never ended."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal, Unfinished, read_json, read_text, write_json, write_text


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_gets_its_text_and_exactly_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "new" / "deep" / "file"
    write_text(path, "größe\n", mode)
    assert path.read_text(encoding="utf-8") == "größe\n"
    assert path.stat().st_mode & 0o777 == mode
    assert path.parent.stat().st_mode & 0o007 == 0
    assert os.listdir(path.parent) == ["file"]


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "file", "x", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_reader_never_sees_a_part_of_a_file(tmp_path: Path) -> None:
    path, texts = tmp_path / "file", {"a" * 200_000, "b" * 200_000}
    write_text(path, "a" * 200_000, 0o600)
    ended = threading.Event()

    def write() -> None:
        for letter in "ba" * 10:
            write_text(path, letter * 200_000, 0o600)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not ended.is_set():
        seen.add(path.read_text())
    writer.join()
    assert seen <= texts


def test_a_half_written_file_of_a_crash_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "file.gpuops-new").write_text("half of an old te")
    write_text(tmp_path / "file", "new", 0o600)
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_leaves_nothing_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(FleetError) as error:
        write_text(tmp_path / "file", "x", 0o600)
    assert str(error.value) == f"cannot write {tmp_path / 'file'}: Is a directory"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(FleetError, match=r"^cannot write .*/plain/file: (Not a directory|File exists)$"):
        write_text(tmp_path / "plain" / "file", "x", 0o600)


def test_data_come_back_and_are_not_for_everybody(tmp_path: Path) -> None:
    write_json(tmp_path / "data.json", {"b": [1, None], "a": "ü"})
    assert read_json(tmp_path / "data.json") == {"b": [1, None], "a": "ü"}
    assert (tmp_path / "data.json").stat().st_mode & 0o777 == 0o640
    first = (tmp_path / "data.json").read_bytes()
    write_json(tmp_path / "data.json", {"a": "ü", "b": [1, None]})
    assert (tmp_path / "data.json").read_bytes() == first
    assert first.endswith(b"}\n")


def test_a_file_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none") is None
    assert read_text(tmp_path / "none") is None


@pytest.mark.parametrize(("text", "what"), [("{", "is not JSON"), ("[1]", "holds no mapping"), ("", "is not JSON")])
def test_a_foreign_file_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(FleetError) as error:
        read_json(path)
    assert str(error.value) == f"{path}: this file {what}; it was not written by this collection; look at it and remove it"


def test_what_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FleetError) as error:
        read_json(tmp_path / "data.json")
    assert str(error.value) == f"cannot read {tmp_path / 'data.json'}: it is not text"
    with pytest.raises(FleetError) as error:
        read_json(tmp_path)
    assert str(error.value) == f"cannot read {tmp_path}: Is a directory"


BEFORE, WISH = {"GPU-a": {"mig": True}}, {"GPU-a": {"mig": False}}
WORDS = "an earlier change did not come to its end; it had 2 steps: create one; create two"


def test_a_journal_remembers_what_began_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "j.json"
    journal = Journal(path)
    assert journal.unfinished() == Unfinished()
    journal.begin(BEFORE, WISH, ["create one", "create two"])
    assert Journal(path).unfinished() == Unfinished(WORDS, BEFORE, WISH)
    content = {"before": BEFORE, "wish": WISH, "steps": ["create one", "create two"], "outcome": None, "stopped": []}
    assert read_json(path) == {"state": "open", **content}
    journal.finish("done")
    assert journal.unfinished() == Unfinished()
    assert read_json(path) == {"state": "closed", **content, "outcome": "done"}


def test_a_later_change_keeps_what_an_earlier_one_left(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.json")
    journal.begin({"GPU-a": 1, "GPU-b": 1}, {"GPU-a": 2, "GPU-b": 2}, [])
    journal.begin({"GPU-b": 3, "GPU-c": 3}, {"GPU-b": 4, "GPU-c": 4}, [])
    found = journal.unfinished()
    assert found.before == {"GPU-a": 1, "GPU-b": 1, "GPU-c": 3}, "the layout from before is that from before the first of them"
    assert found.wish == {"GPU-a": 2, "GPU-b": 4, "GPU-c": 4}, "the wish is the last one"
    journal.finish("failed", left=["GPU-b"])
    assert journal.unfinished() == Unfinished(found.words, {"GPU-b": 1}, {"GPU-b": 4})


def test_services_that_were_stopped_stay_written_down_until_they_run_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.json")
    journal.begin(BEFORE, WISH, [])
    journal.stop(["b.service", "a.service"])
    assert journal.unfinished().stopped == ("a.service", "b.service")
    journal.begin(BEFORE, WISH, [])
    assert journal.unfinished().stopped == ("a.service", "b.service")
    journal.finish("done", stopped=["b.service"])
    assert journal.unfinished().stopped == ("b.service",)
    journal.finish("done")
    assert journal.unfinished() == Unfinished()


@pytest.mark.parametrize("text", ["{", '{"state": "op', "[]", ""])
def test_a_journal_that_is_torn_is_put_aside_and_stops_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.json"
    path.write_text(text)
    looked = Journal(path).unfinished(repair=False)
    assert looked.words is not None
    assert looked.words.startswith(f"the journal of earlier changes is of no use ({path}: this file ")
    assert path.read_text() == text
    found = Journal(path).unfinished()
    assert found == Unfinished(f"{looked.words}; it lies at {path}.unreadable now")
    assert (tmp_path / "j.json.unreadable").read_text() == text
    assert Journal(path).unfinished() == Unfinished()


def test_a_journal_of_another_shape_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "j.json").write_text('{"state": "open", "before": [], "wish": 3, "steps": null, "stopped": "x"}')
    assert Journal(tmp_path / "j.json").unfinished() == Unfinished("an earlier change did not come to its end; it had 0 steps: ")


def test_a_journal_is_closed_even_when_it_was_taken_away_or_damaged(tmp_path: Path) -> None:
    Journal(tmp_path / "j.json").finish("done")
    assert read_json(tmp_path / "j.json") == {"state": "closed", "outcome": "done", "stopped": []}
    (tmp_path / "j.json").write_text("{")
    Journal(tmp_path / "j.json").finish("again")
    assert read_json(tmp_path / "j.json") == {"state": "closed", "outcome": "again", "stopped": []}
