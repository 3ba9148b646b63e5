# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container said, as part of one line for people: no control characters, not too long, and no secret of its service."""

from __future__ import annotations

import base64
import json
import re
import typing as t
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

MASK = "***"
MOST = 300  # characters of a quotation

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_HEADER = 8  # bytes before each part of the engine's stream: which pipe, three zeros, length in big endian (Engine API, attach)
_PIPES = (0, 1, 2)


def demultiplexed(stream: bytes) -> str:
    """The text in a stream of the engine: in parts with headers, or bare when the container has a terminal."""
    parts, rest = [], stream
    while rest:
        length = int.from_bytes(rest[4:_HEADER], "big")
        if len(rest) < _HEADER or rest[0] not in _PIPES or rest[1:4] != b"\0\0\0":
            return stream.decode(errors="replace")
        parts.append(rest[_HEADER : _HEADER + length])
        rest = rest[_HEADER + length :]
    return b"".join(parts).decode(errors="replace")


def clean(text: str) -> str:
    """The same on one line: colours and other control characters are gone, white space is single."""
    return " ".join("".join(" " if not character.isprintable() else character for character in _ESCAPE.sub("", text)).split())


def last_words(text: str, hidden: Iterable[str] = ()) -> str:
    """The last line that says something, cleaned and cut to ``MOST`` characters from its end; empty when nothing was said.

    Whatever of ``hidden`` is in it, in any of the forms in which programs print texts, reads ``***``.
    """
    masked = masks(text, hidden)
    lines = [line for line in map(clean, masked.splitlines()) if line]
    if not lines:
        return ""
    return lines[-1] if len(lines[-1]) <= MOST else "..." + lines[-1][-MOST:]


def without_names(text: str, *names: str) -> str:
    """One line without ``NAME: `` before it, for a message that begins with the name of the replica anyway."""
    line = clean(text)
    for name in names:
        while line.startswith(f"{name}: "):
            line = line[len(name) + 2 :]
    return line


def masks(text: str, hidden: Iterable[str]) -> str:
    """The text with every form of what is hidden replaced, the longest first."""
    forms = {form for value in hidden for form in _forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(value: str) -> Iterator[str]:
    """A secret as programs print it: as it is, line by line, in JSON, in Python, in an address, in base64."""
    for part in {value, value.strip(), *value.splitlines()}:
        bare = part.strip()
        if bare:
            yield from (part, bare, clean(bare) or bare, json.dumps(bare)[1:-1], repr(bare)[1:-1], quote(bare, safe=""))
            yield base64.b64encode(bare.encode()).decode().rstrip("=")


def secrets_in(folder: Path) -> list[str]:
    """The texts of the files in a folder; a file that cannot be read or is no text is left out, and so is a folder that is not there."""
    found = []
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    for path in paths:
        try:
            found.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def joined(names: t.Iterable[str]) -> str:
    """``a, b``, in a stable order."""
    return ", ".join(sorted(names))
