# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One module of the collection on one guest, as an engineer calls it by ``ansible -m``, and its answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from lab import process
from lab.errors import LabError
from lab.places import LOGS
from lab.site import Site

CALL_SECONDS = 600.0
# What ansible-core writes of a result: HOST | STATUS => {...}, and a line break before the brace that ends it.
RESULT = re.compile(r"^(\S+) \| (CHANGED|SUCCESS|FAILED!|UNREACHABLE!) => (\{.*?^\})", re.MULTILINE | re.DOTALL)


class Answer(t.NamedTuple):
    """What a module said: its result, whether it failed, and how long all of it took."""

    result: dict[str, t.Any]
    failed: bool
    seconds: float

    @property
    def message(self) -> str:
        """With which it failed."""
        return str(self.result.get("msg", ""))

    @property
    def steps(self) -> list[str]:
        """What it did."""
        return list(self.result.get("steps", []))

    @property
    def changed(self) -> bool:
        """As it said itself."""
        return bool(self.result.get("changed"))


def parse(said: str) -> tuple[str, dict[str, t.Any]]:
    """Status and result of a call for one host. LabError when there is none: then Ansible itself failed."""
    found = RESULT.search(said)
    if not found:
        raise LabError(f"ansible gave no result: {' '.join(said.split())[-400:] or 'it said nothing'}")
    result: dict[str, t.Any] = json.loads(found[3])
    return found[2], result


def call(site: Site, name: str, options: t.Mapping[str, t.Any], *, check: bool = False) -> Answer:
    """Calls ``gpuops.fleet.NAME`` on the site's guest; kept in a log. LabError when the guest cannot be reached."""
    program = Path(sys.executable).parent / "ansible"
    argv = [str(program), "-i", str(site.inventory), "all", "-m", f"gpuops.fleet.{name}", "-a", json.dumps(dict(options))]
    settings = {"CALLBACK_RESULT_FORMAT": "json", "PIPELINING": "true", "NOCOLOR": "true", "FORCE_COLOR": "false"}
    environment = {**os.environ, **{f"ANSIBLE_{key}": value for key, value in settings.items()}}
    began = time.monotonic()
    try:
        done = process.attend(
            [*argv, *(["--check"] if check else [])],
            seconds=CALL_SECONDS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{name} did not end within {CALL_SECONDS:.0f} s") from error
    seconds = time.monotonic() - began
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{site.scenario}-modules.log").open("a", encoding="utf-8") as log:
        log.write(f"$ {name}{' --check' if check else ''} {json.dumps(dict(options))}\n{done.stdout}\nafter {seconds:.0f} s\n\n")
    status, result = parse(done.stdout)
    if status == "UNREACHABLE!":
        raise LabError(f"{name}: the guest cannot be reached: {result.get('msg')}")
    return Answer(result, status == "FAILED!", seconds)
