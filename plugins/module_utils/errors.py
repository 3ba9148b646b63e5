# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception that people see: a single clear line."""

from __future__ import annotations


class FleetError(Exception):
    """A problem that a person can act on.

    ``str()`` is one line: ``FILE:LINE: FIELD: what was wrong; what would be right``, with the parts that are known. What has no look of
    its own (a line break in a name, a terminal's escape sequence) is written as an escape.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = " ".join(message.split())
        self.file = file
        self.line = line
        self.field = field
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = ""
        if self.file is not None:
            where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [part for part in (where, self.field) if part]
        text = ": ".join([*parts, self.message])
        if self.hint:
            text = f"{text}; {' '.join(self.hint.split())}"
        return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)
