# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Callback plugin of the bench: how long each task took on its host, as JSON lines in the file that BENCH_TIMES names."""

from __future__ import annotations

import json
import os
import pathlib
import time
import typing as t

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: bench_times
type: aggregate
short_description: Writes how long each task took
description:
  - For the bench of this repository only. One JSON object a line, with the keys task and seconds.
options: {}
"""


class CallbackModule(CallbackBase):
    """Writes one line for each task that ended well; a task that failed ends the play, and the bench with it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "bench_times"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.started: dict[tuple[str, str], float] = {}
        self.path = pathlib.Path(os.environ["BENCH_TIMES"])

    def v2_runner_on_start(self, host: t.Any, task: t.Any) -> None:
        """A worker for the task is about to start."""
        self.started[host.get_name(), task._uuid] = time.perf_counter()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        """The task's result is back on the controller."""
        seconds = time.perf_counter() - self.started[result.host.get_name(), result.task._uuid]
        with self.path.open("a", encoding="utf-8") as stream:
            changed = bool(result.result.get("changed"))
            stream.write(json.dumps({"task": result.task.name, "seconds": seconds, "changed": changed}) + "\n")
