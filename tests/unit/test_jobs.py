# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of jobs that are done."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import jobs
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from template_world import DIGEST, Case


@pytest.mark.parametrize("access", ["cdi", "nvidia"])
def test_the_label_is_found_in_the_file_that_the_template_writes(access: str) -> None:
    assert jobs.wanted(Case("batch", "slice", access).golden) == DIGEST
    assert jobs.wanted(Case("http", "slice", access).golden) == ""


def test_a_file_that_is_not_there_or_no_text_is_that_of_no_job(tmp_path: Path) -> None:
    assert jobs.wanted(tmp_path / "compose.yml") == ""
    (tmp_path / "compose.yml").write_bytes(b"\xff\xfe")
    assert jobs.wanted(tmp_path / "compose.yml") == ""


def test_what_is_noted_holds_for_that_version_alone_until_it_is_forgotten(tmp_path: Path) -> None:
    jobs.note(tmp_path, "sha256:1")
    assert [jobs.is_done(tmp_path, value) for value in ("sha256:1", "sha256:2", "")] == [True, False, False]
    jobs.forget(tmp_path)
    jobs.forget(tmp_path)
    assert not jobs.is_done(tmp_path, "sha256:1")


def test_a_spoilt_paper_lets_the_job_run_again(tmp_path: Path) -> None:
    (tmp_path / jobs.FILE).write_text("{", encoding="utf-8")
    assert not jobs.is_done(tmp_path, "sha256:1")
    jobs.note(tmp_path, "sha256:1")
    assert jobs.is_done(tmp_path, "sha256:1")


def test_nothing_is_written_for_a_replica_that_was_removed(tmp_path: Path) -> None:
    jobs.note(tmp_path / "gone", "sha256:1")
    assert list(tmp_path.iterdir()) == []


def test_a_paper_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / jobs.FILE).mkdir()
    with pytest.raises(FleetError, match=r"cannot remove .*job\.json"):
        jobs.forget(tmp_path)
