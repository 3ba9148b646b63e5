# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains: which GPUs of this host, or the whole host, shall get nothing new and lose what they have; who says so, why, until when.

They are kept on the host in ``drains.json``: ``{format: 1, drains: [{gpu, by, reason, since, until, force}]}``; ``gpu`` is a UUID, or null
for the whole host, times are as ``2026-11-21T12:00:00Z``. Whether a drain is over is judged by the host's own clock, when the host is read;
the planner has none.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timezone
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json

FORMAT = 1
HOST = "the whole host"
_FILE = "drains.json"
_KEYS = ("gpu", "by", "reason", "since", "until", "force")
# What "until the 1st of December" means: its last second. So it reads as a date again.
_END_OF_DAY = "T23:59:59Z"

Drain = dict[str, t.Any]
_Line = Mapping[str, t.Any]


def stamp(moment: datetime) -> str:
    """``2026-11-21T12:00:00Z``"""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_until(text: str | None, now: datetime) -> str | None:
    """The end of a drain as it is stored; None for one without end.

    A bare date means its end in UTC, a date-time without an offset is UTC. FleetError when the text is neither, or not in the future.
    """
    if text is None or not text.strip():
        return None
    hint = "write a date such as 2026-12-01 (its end in UTC), or a date-time such as 2026-12-01T18:00:00+01:00"
    written = text.strip()
    try:
        if len(written) == len("2026-12-01"):
            moment = datetime.combine(date.fromisoformat(written), time(23, 59, 59), timezone.utc)
        else:
            # Python 3.9 and 3.10 know no Z
            moment = datetime.fromisoformat(written[:-1] + "+00:00" if written[-1] in "Zz" else written)
    except ValueError:
        raise FleetError(f"'{text}' is no date", field="until", hint=hint) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    if moment <= now:
        raise FleetError(f"{text} is over: this host's clock says {stamp(now)}", field="until", hint=hint)
    return stamp(moment)


def day(text: str) -> str:
    """A stored time as people read it: the end of a day is that day."""
    return text[: -len(_END_OF_DAY)] if text.endswith(_END_OF_DAY) else text


def words(drain: _Line) -> str:
    """``drained by lin (fan) until 2026-12-01``"""
    reason = f" ({drain['reason']})" if drain["reason"] else ""
    end = f" until {day(drain['until'])}" if drain["until"] else ""
    return f"drained by {drain['by']}{reason}{end}"


def is_over(drain: _Line, now: datetime) -> bool:
    """True when its time has come to an end."""
    return drain["until"] is not None and str(drain["until"]) <= stamp(now)


def load(state_dir: Path) -> list[Drain]:
    """Every drain that the host remembers, over or not. FleetError when the file is damaged."""
    path = state_dir / _FILE
    data = read_json(path)
    if data is None:
        return []
    drains = data.get("drains")
    if data.get("format") != FORMAT or not isinstance(drains, list) or not all(_is_drain(one) for one in drains):
        hint = "look at it and remove it; then drain again what shall be drained"
        raise FleetError("this file has no drains that this version can read", file=str(path), hint=hint)
    return [{key: one[key] for key in _KEYS} for one in drains]


def _is_drain(one: t.Any) -> bool:
    return isinstance(one, dict) and set(_KEYS) <= set(one) and all(isinstance(one[key], str) for key in ("by", "reason", "since"))


def read(state_dir: Path, now: datetime) -> list[Drain]:
    """The drains that are in force. FleetError when the file is damaged."""
    return [drain for drain in load(state_dir) if not is_over(drain, now)]


def describe(gpus: Iterable[dict[str, t.Any]], drains: Sequence[_Line], now: datetime) -> tuple[Drain | None, list[Drain]]:
    """Write each GPU's ``drain`` into its facts; (the drain of the whole host, drains that drain nothing here and ``why``).

    ``why``: ``ended`` when its time is over, ``gone`` when no GPU of this host bears its UUID.
    """
    running = {drain["gpu"]: drain for drain in drains if not is_over(drain, now)}
    known = set()
    for gpu in gpus:
        known.add(gpu["uuid"])
        gpu["drain"] = _as_fact(running[gpu["uuid"]]) if gpu["uuid"] in running else None
    idle = [{**drain, "why": "ended"} for drain in drains if is_over(drain, now)]
    idle += [{**drain, "why": "gone"} for uuid, drain in running.items() if uuid is not None and uuid not in known]
    return (_as_fact(running[None]) if None in running else None), idle


def _as_fact(drain: _Line) -> Drain:
    return {key: drain[key] for key in _KEYS if key != "gpu"}


class Wish(t.NamedTuple):
    """What is asked of one target. ``gpu``: UUID, None for the whole host. ``until``: as stored. ``over``: whose drain may be changed."""

    present: bool
    gpu: str | None
    by: str
    reason: str = ""
    until: str | None = None
    force: bool = False
    over: str | None = None


def decide(found: Sequence[_Line], wish: Wish, now: datetime) -> list[Drain]:
    """The drains as they shall be: at most one for each target.

    Whoever drained a GPU may change that and end it. Another person's drain is refused unless the wish names that person: somebody may
    have a hand in the machine. One whose time is over is anybody's. FleetError when refused.
    """
    mine = [drain for drain in found if drain["gpu"] == wish.gpu]
    others = [dict(drain) for drain in found if drain["gpu"] != wish.gpu]
    for drain in mine:
        if drain["by"] not in (wish.by, wish.over) and not is_over(drain, now):
            hint = f"ask {drain['by']}, or name whose drain it is: over={drain['by']} (drain_over in the playbooks)"
            raise FleetError(f"{wish.gpu or HOST} is {words(drain)}", field="over", hint=hint)
    if not wish.present:
        return others
    since = next((drain["since"] for drain in mine if drain["by"] == wish.by and not is_over(drain, now)), stamp(now))
    new = {"gpu": wish.gpu, "by": wish.by, "reason": wish.reason, "since": since, "until": wish.until, "force": wish.force}
    return sorted([*others, new], key=lambda drain: (drain["gpu"] is not None, drain["gpu"] or ""))


def lines(drains: Iterable[_Line], now: datetime) -> str:
    """One line a drain, for a diff."""
    texts = []
    for drain in drains:
        more = "".join([", by force" if drain["force"] else "", ", which is over" if is_over(drain, now) else ""])
        texts.append(f"{drain['gpu'] or HOST}: {words(drain)}{more}\n")
    return "".join(texts)


def change(
    state_dir: Path, wish_for: Callable[[Sequence[_Line]], Wish], token: str | None, now: datetime, check: bool
) -> tuple[list[Drain], list[Drain], Wish]:
    """Carry a wish out; (drains before, after, the wish). With ``check`` nothing is written and no lease is asked for.

    ``wish_for`` is told what is drained, because a GPU that is gone is known by that alone. FleetError when it is refused.
    """
    if check:
        return _decided(load(state_dir), wish_for, now)
    leases.check(state_dir, token)
    with leases.exclusive(state_dir, "drains"):
        before, after, wish = _decided(load(state_dir), wish_for, now)
        if before != after:
            write_json(state_dir / _FILE, {"format": FORMAT, "drains": after})
    return before, after, wish


def _decided(found: list[Drain], wish_for: Callable[[Sequence[_Line]], Wish], now: datetime) -> tuple[list[Drain], list[Drain], Wish]:
    wish = wish_for(found)
    return found, decide(found, wish, now), wish
