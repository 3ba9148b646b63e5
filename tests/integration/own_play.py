# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A playbook of a test's own against a site, as a user would write one: real ansible-playbook, results as data."""

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from dataclasses import dataclass
from pathlib import Path

import yaml
from fleet_site import REPOSITORY, Site, demo


@dataclass(frozen=True)
class Answer:
    """How the play ended, all that it printed, and the result of its task on the host that came last, if there is one."""

    status: int
    output: str
    result: dict[str, t.Any]

    @property
    def message(self) -> str:
        """Why it failed; it must have, in one line."""
        assert self.status != 0, self.output
        text = str(self.result["msg"])
        assert "\n" not in text
        assert "Traceback" not in self.output
        return text


def run_task(site: Site, folder: Path, task: dict[str, t.Any], *options: str, **play: t.Any) -> Answer:
    """Run one task on all hosts of ``site`` from a playbook in ``folder``. ``play``: more keywords of the play."""
    folder.mkdir(parents=True, exist_ok=True)
    book = folder / "book.yml"
    book.write_text(
        yaml.safe_dump([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [{"name": "The task", **task}], **play}]), encoding="utf-8"
    )
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-v", "-i", str(site.inventory / "hosts.yml"), str(book), *options]
    env = demo.environment(site.work, REPOSITORY / "collections")
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return Answer(done.returncode, done.stdout + done.stderr, _last_result(done.stdout))


def _last_result(printed: str) -> dict[str, t.Any]:
    """With -v the default callback prints every result as JSON behind an arrow, that of module debug alone over several lines."""
    found: dict[str, t.Any] = {}
    for line in printed.splitlines():
        _head, arrow, data = line.partition(" => ")
        if arrow and data.startswith("{") and data.endswith("}"):
            found = json.loads(data)
    return found
