# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running container sees of GPUs, asked from inside: ``nvidia-smi -L`` where there is that program, else its device nodes.

A node that is there may still be closed: only the program proves that a GPU can be opened.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import words
from ansible_collections.gpuops.fleet.plugins.module_utils.engine import HTTP_OK, Engine

UUID = re.compile(r"\bUUID: ((?:GPU|MIG)-[0-9a-fA-F-]+(?:/\d+/\d+)?)")
_NODE = re.compile(r"nvidia(?:\d+|-cap\d+)")
_CREATED = 201
_LOST = (126, 127)  # what a shell says of a program that cannot be run or is not there; the engine says the same of an exec


def listing(engine: Engine, identifier: str) -> tuple[int, str] | None:
    """Exit status and words of ``nvidia-smi -L`` inside; None where the container has no such program. EngineError without an answer."""
    wish = {"AttachStdout": True, "AttachStderr": True, "Cmd": ["nvidia-smi", "-L"]}
    status, made = engine.call("POST", f"/containers/{identifier}/exec", wish)
    if status != _CREATED:
        return None
    started, stream = engine.raw("POST", f"/exec/{made['Id']}/start", {"Detach": False, "Tty": False})
    code = int(engine.get(f"/exec/{made['Id']}/json").get("ExitCode") or 0)
    if started != HTTP_OK or code in _LOST:
        return None
    return code, words.demultiplexed(stream)


def seen(engine: Engine, detail: Mapping[str, t.Any], proc_root: Path) -> tuple[frozenset[str], str]:
    """What a container sees, by UUID or by node, and the words of a program that sees nothing (empty: there is nothing to complain of)."""
    found = listing(engine, str(detail["Id"]))
    if found is not None:
        code, text = found
        return (frozenset(UUID.findall(text)), "") if code == 0 else (frozenset(), words.last_words(text) or f"exit status {code}")
    dev = proc_root / str((detail.get("State") or {}).get("Pid") or 0) / "root" / "dev"
    try:
        return frozenset(
            path.name for folder in (dev, dev / "nvidia-caps") if folder.is_dir() for path in folder.iterdir() if _node(path)
        ), ""
    except OSError as error:
        return frozenset(), f"{dev}: {error.strerror}"


def _node(path: Path) -> bool:
    return _NODE.fullmatch(path.name) is not None
