# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services that run to their end once: which are done, so that nobody starts them again.

A job is a container with the label ``gpuops.job``, whose value tells one version of its manifest from another. One that ended with status 0
is done, whoever asked for its end; any other status is a failure or an interruption. ``job.json`` beside its compose file says so after its
container is gone: ``{format: 1, done: <the label's value>}``. The watch writes it as the container ends, and whoever looks later.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

LABEL = "gpuops.job"
FILE = "job.json"
FORMAT = 1
# As compose templates write it; the value is a digest.
_WANTED = re.compile(rf'^\s+{re.escape(LABEL)}: "([^"$\\]+)"$', re.MULTILINE)
_ENDED = ("exited", "dead")

_Json = Mapping[str, t.Any]


def value_of(detail: _Json) -> str:
    """The label of a container as the engine describes it; empty for a service."""
    return str(((detail.get("Config") or {}).get("Labels") or {}).get(LABEL) or "")


def did_well(state: str, exit_code: int) -> bool:
    """Whether a container in this state is that of a job which is done."""
    return state in _ENDED and exit_code == 0


def is_done(directory: Path, value: str) -> bool:
    """Whether the job of that label has come to its end. A file that cannot be read says nothing: the job then runs again."""
    try:
        data = read_json(directory / FILE)
    except FleetError:
        return False
    return bool(value) and data is not None and data.get("format") == FORMAT and data.get("done") == value


def note(directory: Path, value: str) -> None:
    """Remember that it has. FleetError when it cannot be written. Nothing where the replica has no directory: then nobody starts it."""
    if value and directory.is_dir() and not is_done(directory, value):
        write_json(directory / FILE, {"format": FORMAT, "done": value})


def forget(directory: Path) -> None:
    """Another version of the job is to run. FleetError when its paper cannot be removed."""
    try:
        (directory / FILE).unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FleetError(f"cannot remove {directory / FILE}: {error.strerror}") from error


def wanted(compose: Path) -> str:
    """The label in a replica's compose file; empty for a service, and where the file cannot be read."""
    try:
        found = _WANTED.search(compose.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    return found.group(1) if found else ""
