# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout that is under way, and its row in the ledger when it has come to an end.

``<state_dir>/rollouts/<replica>.json`` has what began, and when each step was done: ``{format: 1, token, ..., marks: [[step, at], ...]}``.
It is for the books alone: what a rollout still has to do is found on the host. One that nobody brought to its end is written as
``interrupted`` when the next begins.
"""

from __future__ import annotations

import contextlib
import secrets
import typing as t
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.ledger import Ledger, Rollout, path_in

FORMAT = 1
SERVING, KEPT, RESTORED, FAILED, INTERRUPTED = "serving", "kept", "restored", "failed", "interrupted"
OUTCOMES = (SERVING, KEPT, RESTORED, FAILED)
WAYS = ("side-by-side", "stop-first")


@dataclass(frozen=True)
class Begun:
    """A rollout that began. ``began`` and the times of ``marks``: UTC seconds."""

    service: str
    replica: int | None
    from_digest: str | None
    to_digest: str
    image: str
    by: str
    way: str
    began: float
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    marks: tuple[tuple[str, float], ...] = ()

    def ended(self, at: float, outcome: str, reason: str = "") -> Rollout:
        """Its row. What was done after the last mark is a step without a name."""
        steps, before = [], self.began
        for name, moment in self.marks:
            steps.append({"step": name, "seconds": round(max(0.0, moment - before), 3)})
            before = max(before, moment)
        own = {key: value for key, value in asdict(self).items() if key != "marks"}
        return Rollout(**own, ended=at, outcome=outcome, reason=reason, steps=tuple(steps))


@t.final
class Record:
    """The rollout of one replica. ``check``: nothing is written."""

    def __init__(self, state_dir: Path, name: str, check: bool = False) -> None:
        self._path = state_dir / "rollouts" / f"{name}.json"
        self._ledger = path_in(state_dir)
        self._check = check

    def current(self) -> Begun | None:
        """The one under way; None when there is none. One whose paper is damaged counts as none: it must stop nobody."""
        try:
            data = read_json(self._path)
            if data is None or data.pop("format") != FORMAT:
                return None
            marks = tuple((str(name), float(at)) for name, at in data.pop("marks"))
            return Begun(**data, marks=marks)
        except (FleetError, KeyError, TypeError, ValueError):
            return None

    def begin(self, new: Begun) -> Begun | None:
        """It begins. Returns one that was under way, which is written as interrupted."""
        old = self.current()
        if old is not None:
            last = old.marks[-1][1] if old.marks else old.began
            self._write_row(old.ended(last, INTERRUPTED, "whoever rolled it out did not come to an end"))
        self._keep(new)
        return old

    def step(self, name: str, at: float, parts: Mapping[str, float | None] | None = None) -> None:
        """A step is done. ``parts``: seconds of what it consisted of last, which are noted as steps of their own after it."""
        current = self.current()
        if current is None:
            return
        marks, moment = [*current.marks], at
        known = [(part, seconds) for part, seconds in (parts or {}).items() if seconds is not None]
        moment -= sum(seconds for _part, seconds in known)
        for part, seconds in [(name, 0.0), *known]:
            moment += seconds
            marks.append((part, moment))
        self._keep(Begun(**{**_plain(current), "marks": tuple(marks)}))

    def end(self, at: float, outcome: str, reason: str) -> Rollout | None:
        """It came to an end: its row, which is in the ledger then. None when none was under way."""
        current = self.current()
        if current is None:
            return None
        row = current.ended(at, outcome, reason)
        self._write_row(row)
        if not self._check:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        return row

    def _keep(self, begun: Begun) -> None:
        if not self._check:
            write_json(self._path, {"format": FORMAT, **_plain(begun)})

    def _write_row(self, row: Rollout) -> None:
        if not self._check:
            with Ledger(self._ledger) as ledger:
                ledger.rolled_out(row)


def _plain(begun: Begun) -> dict[str, t.Any]:
    return asdict(begun)
