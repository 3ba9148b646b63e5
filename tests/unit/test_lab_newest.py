# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from lab import newest
from lab.errors import LabError
from lab.guest import Guest

PLAY = """
PLAY [Bring services] *****
TASK [gpuops.fleet.mig : Partition the GPUs] ******
changed: [gpu-prod-01]
TASK [gpuops.fleet.model_service : Write the compose file] ******
[ERROR]: Task failed: there is no directory
fatal: [gpu-prod-01]: FAILED! => {"changed": false, "msg": "there is no directory"}
ok: [gpu-stage-01]
TASK [gpuops.fleet.model_service : Start it] ******
ok: [gpu-stage-01]
"""


def test_the_task_that_failed_is_named_although_another_host_went_on() -> None:
    assert newest.failing_task(PLAY) == "task 'gpuops.fleet.model_service : Write the compose file'"


def test_a_play_that_never_began_a_task_says_so() -> None:
    assert newest.failing_task("[ERROR]: the playbook could not be found\n") == "before its first task"


def test_each_deprecation_is_told_once() -> None:
    text = "[DEPRECATION WARNING]: old thing. Use new.\nok: [a]\n[DEPRECATION WARNING]: old thing. Use new.\n[WARNING]: not this\n"
    assert list(newest.deprecated(text)) == ["deprecated: old thing. Use new."]


def test_a_failed_run_is_one_line_with_playbook_task_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "first.log"

    def ssh(_guest: Guest, command: str, what: str, *, log: Path | None = None, **_options: object) -> str:
        if log is None:
            assert command.endswith("/log/apply.log")
            return PLAY
        log.write_text(
            "3/4  ansible-playbook\n       Start it\ndemo: playbook apply failed (its log: x)\ngpu-prod-01: there is no directory\n"
        )
        raise LabError(f"{what}: ssh ended with 1")

    monkeypatch.setattr(Guest, "ssh", ssh)
    with pytest.raises(LabError) as caught:
        newest.demo(Guest("controller", tmp_path, tmp_path), "first", log)
    said = str(caught.value)
    assert said.startswith(
        "controller: the demo's first run failed in apply, task 'gpuops.fleet.model_service : Write the compose file': "
        "gpu-prod-01: there is no directory (log: "
    )
    assert "\n" not in said
    assert (tmp_path / "first.ansible.log").read_text(encoding="utf-8") == PLAY


def test_what_git_ignores_is_not_brought_into_a_guest() -> None:
    names = newest.checkout()
    assert "tests/demo/run.py" in names
    assert not [name for name in names if name.startswith(("build/", "collections/", ".venv"))]
