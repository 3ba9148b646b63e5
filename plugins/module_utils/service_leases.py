# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of services: for how long a notebook or a preview may hold its GPU, when that ended and why, and who made it last longer.

Kept on the host in ``service-leases.json``: ``{format: 1, seen: {at, uptime, boot}, leases: {NAME: {service, replica, team, began, days,
ends, notice_hours, notice_at, noticed, notice_file, ended, why, restart, extended: [{by, until, at}], idle}}}``; ``idle`` is null or
``{minutes, below, since, seen, share, noticed, ends, blind}``. Times are UTC as ``2026-11-21T12:00:00Z``, judged by the host's own clock.

What is here works on that data; time comes in as an argument. ``lease_end`` and ``lease_round`` look at containers and stop them.
"""

from __future__ import annotations

import contextlib
import math
import time
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as host_lease
from ansible_collections.gpuops.fleet.plugins.module_utils.drains import parse_until, stamp
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of, replica_name

FORMAT = 1
#: Why a lease ended, as the file and the ledger have it. One that a person ended has ``ended by NAME``.
OVER, IDLE, BY = "lease over", "idle", "ended by "
#: Notice of an idle end: this long before at most. A person who is called to a notebook is there sooner than one who plans a week.
IDLE_NOTICE = timedelta(minutes=30)
#: With a longer pause than this between two looks nobody knows what the GPU did meanwhile: idleness begins anew.
UNSEEN = timedelta(minutes=16)
_FILE = "service-leases.json"
_LOCK = "service-leases"
_LOCK_SECONDS = 5.0
_TEXTS = ("service", "team", "began", "ends", "notice_at")

Record = dict[str, t.Any]
Book = dict[str, t.Any]
_Line = Mapping[str, t.Any]


@dataclass(frozen=True)
class Terms:
    """What a manifest's block ``lease`` says: days from the first start, hours of notice, and when it counts as idle (None: never)."""

    days: float
    notice_hours: float = 24.0
    idle_minutes: int | None = None
    idle_below: float = 0.05


def moment(text: str) -> datetime:
    """The time that a stamp means."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


# ---- the file


def path_in(state_dir: Path) -> Path:
    """Where a host keeps its leases."""
    return state_dir / _FILE


def read(state_dir: Path) -> Book:
    """The file's content; an empty book when there is none. FleetError when it is damaged: then nobody's lease is known."""
    path = path_in(state_dir)
    data = read_json(path)
    if data is None:
        return {"format": FORMAT, "seen": None, "leases": {}}
    records = data.get("leases")
    if data.get("format") != FORMAT or not isinstance(records, dict) or not all(_is_record(one) for one in records.values()):
        hint = "nothing is stopped because of it; look at it, remove it, and apply again: each lease then begins anew"
        raise FleetError("this file has no leases that this version can read", file=str(path), hint=hint)
    return {"format": FORMAT, "seen": data.get("seen"), "leases": records}


def _is_record(one: t.Any) -> bool:
    if not isinstance(one, dict) or not all(isinstance(one.get(key), str) for key in _TEXTS):
        return False
    idle, extended = one.get("idle"), one.get("extended")
    if not isinstance(extended, list) or not all(isinstance(line, dict) and isinstance(line.get("until"), str) for line in extended):
        return False
    if idle is not None and not (isinstance(idle, dict) and all(_is_number(idle.get(key)) for key in ("minutes", "below"))):
        return False
    texts = [one[key] for key in ("began", "ends", "notice_at")] + [one.get("ended"), one.get("noticed"), *(x["until"] for x in extended)]
    texts += [] if idle is None else [idle.get(key) for key in ("since", "seen", "noticed", "ends")]
    return all(_is_number(one.get(key)) for key in ("days", "notice_hours", "replica")) and all(_is_time(text) for text in texts)


def _is_number(value: t.Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_time(value: t.Any) -> bool:
    if value is None:
        return True
    try:
        moment(value)
    except (TypeError, ValueError):
        return False
    return True


@contextlib.contextmanager
def changed(state_dir: Path) -> t.Iterator[Book]:
    """The book, for change: written when the block ends well and something differs. Another who is at it is waited for, some seconds."""
    deadline = time.monotonic() + _LOCK_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(host_lease.exclusive(state_dir, _LOCK))
                break
            except host_lease.LockedError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
        book, before = read(state_dir), read(state_dir)
        yield book
        if book != before:
            write_json(path_in(state_dir), book)


# ---- granted, extended, ended


def grant(found: _Line | None, service: str, replica: int, team: str, terms: Terms, now: datetime) -> Record:
    """The lease as it shall be when apply starts a replica whose manifest has these terms.

    It begins when it is granted first. Later grants change its terms and never restart its time: ``days`` counts from the beginning.
    One that was over and is not any more by the new ``days`` lives again.
    """
    old = dict(found or {})
    record: Record = {
        "service": service,
        "replica": replica,
        "team": team,
        "began": old.get("began") or stamp(now),
        "days": terms.days,
        "notice_hours": terms.notice_hours,
        "noticed": old.get("noticed"),
        "notice_file": old.get("notice_file"),
        "ended": old.get("ended"),
        "why": old.get("why"),
        "restart": bool(old.get("restart")),
        "extended": list(old.get("extended") or []),
        "idle": _idle_terms(old.get("idle"), terms),
    }
    _set_end(record)
    if record["why"] == OVER and moment(record["ends"]) > now and record["ends"] != old.get("ends"):
        record.update(ended=None, why=None)
    return record


def _idle_terms(old: _Line | None, terms: Terms) -> Record | None:
    if terms.idle_minutes is None:
        return None
    fresh = dict.fromkeys(("since", "seen", "share", "noticed", "ends", "blind"))
    return {**fresh, **(old or {}), "minutes": terms.idle_minutes, "below": terms.idle_below}


def _set_end(record: Record) -> None:
    """``ends`` and ``notice_at`` of what the record says; a notice that came too early is taken back."""
    until = [moment(line["until"]) for line in record["extended"]]
    end = max([moment(record["began"]) + timedelta(days=record["days"]), *until])
    record["ends"], record["notice_at"] = stamp(end), stamp(end - timedelta(hours=record["notice_hours"]))
    if record["noticed"] is not None and record["notice_at"] > record["noticed"]:
        record["noticed"] = None


def until_of(days: float | None, until: str | None, max_days: float, now: datetime) -> datetime:
    """The end that an extension asks for. ``days`` count from now and end at a full hour, so that asking twice is asking once.

    FleetError when it is no time, or farther away than the site allows.
    """
    hint = f"at most {max_days:g} days from now (fleet_lease_max_days); extend again when they are over, or change 'days' in the manifest"
    if until is not None:
        text = parse_until(until, now)
        if text is None:
            raise FleetError("expected a time, found none", field="until", hint="write a date such as 2026-12-01, or days")
        if moment(text) > now + timedelta(days=max_days) + timedelta(hours=24):  # a date means its end
            raise FleetError(f"{text} is too far away", field="until", hint=hint)
        return moment(text)
    if days is None or not math.isfinite(days) or days <= 0:
        raise FleetError(f"expected days above 0, found {'none' if days is None else format(days, 'g')}", field="days", hint="write days=7")
    if days > max_days:
        raise FleetError(f"{days:g} days are too many", field="days", hint=hint)
    end = now + timedelta(days=days)
    full = end.replace(minute=0, second=0, microsecond=0)
    return full if full == end else full + timedelta(hours=1)


def extend(found: _Line, until: datetime, by: str, now: datetime) -> Record:
    """The lease when somebody made it last until then. It never gets shorter. One that had ended lives again and is to be started."""
    record: Record = {**found, "extended": list(found["extended"])}
    if stamp(until) > record["ends"]:
        record["extended"].append({"by": by, "until": stamp(until), "at": stamp(now)})
        _set_end(record)
    if record["ended"] is not None:
        if moment(record["ends"]) <= now:
            raise FleetError(f"until {stamp(until)} is over already", field="until")
        record.update(ended=None, why=None, restart=True)
    if record["idle"] is not None:
        record["idle"] = {**record["idle"], "since": None, "noticed": None, "ends": None}
    return record


def end(found: _Line, why: str, now: datetime) -> Record:
    """The lease when it has ended; one that had ended before stays as it is."""
    return dict(found) if found["ended"] is not None else {**found, "ended": stamp(now), "why": why, "restart": False}


# ---- time


@dataclass(frozen=True)
class Clock:
    """What time it is: UTC, seconds since the kernel started (None: not known), and which boot."""

    now: datetime
    uptime: float | None = None
    boot: str = ""

    @classmethod
    def read(cls, proc_root: Path) -> Clock:
        """By the host's own clocks."""
        try:
            uptime: float | None = float((proc_root / "uptime").read_text(encoding="ascii").split()[0])
            boot = (proc_root / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError, IndexError):
            uptime, boot = None, ""
        return cls(datetime.now(timezone.utc), uptime, boot)

    def plain(self) -> dict[str, t.Any]:
        """As the file keeps it."""
        return {"at": stamp(self.now), "uptime": self.uptime, "boot": self.boot}

    def doubt(self, seen: t.Any) -> str | None:
        """Why no lease is to be ended by this clock in this round: it jumped since the last look. None when all is well.

        Whoever sets a clock may set it twice. What is over by it is over at the next look as well, some minutes later.
        """
        if not isinstance(seen, Mapping) or not isinstance(seen.get("at"), str) or not _is_time(seen["at"]):
            return None
        gone = (self.now - moment(seen["at"])).total_seconds()
        if gone < -_JUMP_S:
            return f"this host's clock went back by {-gone:.0f} s"
        uptime = seen.get("uptime")
        if self.boot and self.boot == seen.get("boot") and self.uptime is not None and _is_number(uptime):
            ahead = gone - (self.uptime - float(t.cast("float", uptime)))
            if ahead > _JUMP_S:
                return f"this host's clock jumped ahead by {ahead:.0f} s"
        return None


_JUMP_S = 300.0


# ---- what a look finds


@dataclass(frozen=True)
class Load:
    """How busy a replica's GPU is. ``share`` of the time, 0 to 1; None when it cannot be seen, and ``blind`` says why."""

    share: float | None
    blind: str = ""


def watch_idleness(record: Record, load: Load | None, now: datetime) -> list[str]:
    """Note in the record what was seen of its GPU; lines for the journal. ``load``: None when the replica does not run.

    A missing number never counts as idle: then its time of idleness begins anew when there are numbers again.
    """
    idle = record["idle"]
    if idle is None:
        return []
    name = name_of(record)
    lines = []
    gap = idle["seen"] is None or not timedelta(0) <= now - moment(idle["seen"]) <= UNSEEN
    if load is None or load.share is None:
        if load is not None and load.blind != idle["blind"]:
            lines.append(f"{name}: idleness cannot be seen on its GPU ({load.blind}): the idle rule is not applied")
        idle.update(since=None, share=None, seen=stamp(now), blind=idle["blind"] if load is None else load.blind)
    else:
        busy = load.share >= idle["below"]
        since = None if busy else stamp(now) if gap or idle["since"] is None else idle["since"]
        idle.update(since=since, share=round(load.share, 4), seen=stamp(now), blind=None)
    if idle["noticed"] is not None and idle["since"] is None:
        lines.append(f"{name}: its GPU is used again: the lease ends {record['ends']}")
        idle.update(noticed=None, ends=None)
    return lines


def idle_notice(record: _Line) -> timedelta:
    """How long before an idle end its notice is given: the hours of notice, at most half an hour and half of the idle time."""
    return min(timedelta(hours=record["notice_hours"]), IDLE_NOTICE, timedelta(minutes=record["idle"]["minutes"]) / 2)


def give_notice(record: Record, now: datetime) -> list[str]:
    """Note in the record which notices are due now; lines for the journal."""
    name, lines = name_of(record), []
    if record["ended"] is None and record["noticed"] is None and record["notice_hours"] > 0 and moment(record["notice_at"]) <= now:
        record["noticed"] = stamp(now)
        lines.append(f"{name}: notice: its lease ends {record['ends']}; playbook extend makes it last longer")
    idle = record["idle"]
    if record["ended"] is None and idle is not None and idle["since"] is not None and idle["noticed"] is None:
        limit, before = timedelta(minutes=idle["minutes"]), idle_notice(record)
        if now - moment(idle["since"]) >= limit - before:
            idle.update(noticed=stamp(now), ends=stamp(max(moment(idle["since"]) + limit, now + before)))
            if before:
                lines.append(f"{name}: notice: its GPU is idle since {idle['since']}; it ends {idle['ends']} unless its GPU is used")
    return lines


def is_over(record: _Line, now: datetime) -> bool:
    """Whether its time has come to an end, noted or not."""
    return moment(record["ends"]) <= now


def due(record: _Line, now: datetime) -> str | None:
    """Why a lease that has not ended is to end now; None when it is not to."""
    if record["ended"] is not None:
        return None
    if is_over(record, now):
        return OVER
    idle = record["idle"]
    return IDLE if idle is not None and idle["since"] is not None and idle["ends"] is not None and moment(idle["ends"]) <= now else None


# ---- for people


def ended_words(record: _Line) -> str:
    """``its lease is over since 2026-12-01T12:00:00Z (idle): extend it, or remove the manifest``"""
    why = "" if record["why"] == OVER else f" ({record['why']})"
    return f"its lease is over since {record['ended']}{why}: extend it, or remove the manifest"


def words(record: _Line) -> str:
    """The state of a lease in a few words."""
    if record["ended"] is not None:
        return ended_words(record)
    idle = record["idle"]
    if idle is not None and idle["ends"] is not None and idle["ends"] < record["ends"]:
        return f"its lease ends {idle['ends']} unless its GPU is used; else {record['ends']}"
    return f"its lease ends {record['ends']}" + (", notice is given" if record["noticed"] else "")


def lines(records: Mapping[str, _Line]) -> str:
    """One line a lease, for a diff."""
    return "".join(f"{name}: {words(record)}{_extensions(record)}\n" for name, record in sorted(records.items()))


def _extensions(record: _Line) -> str:
    last: Sequence[_Line] = record["extended"][-1:]
    return f", extended by {last[0]['by']}" if last else ""


def as_fact(name: str, record: _Line) -> Record:
    """The part of a lease that host facts carry: ``{name, ends, ended, why, noticed}``; ``ends``: an idle end where it is announced."""
    idle = record["idle"] or {}
    noticed = bool(record["noticed"] or idle.get("noticed")) and record["ended"] is None
    soonest = min(record["ends"], idle.get("ends") or record["ends"])
    return {"name": name, "ends": soonest, "ended": record["ended"], "why": record["why"], "noticed": noticed}


def notice_text(record: _Line) -> str:
    """What stands in the home of a service whose end is near."""
    idle = record["idle"] or {}
    name, service = name_of(record), record["service"]
    what = [f"{name} of team {record['team']} ends at {record['ends']} (UTC): its lease is over then."]
    if idle.get("noticed"):
        what.insert(0, f"The GPU of {name} is idle since {idle['since']}. It ends at {idle['ends']} (UTC) unless the GPU is used before.")
    command = f"  ansible-playbook gpuops.fleet.extend -e service={service} -e replica={record['replica']} -e days=7"
    return "\n".join(
        [*what, "Files in this directory are kept. Whoever runs the platform makes it last longer with one command:", command, ""]
    )


def ended_records(state_dir: Path) -> dict[str, Record]:
    """Leases that have ended, by replica. FleetError when the file is damaged."""
    return {name: record for name, record in read(state_dir)["leases"].items() if record["ended"] is not None}


def why_ended(state_dir: Path, service: str | None, replica: str | int | None) -> str | None:
    """Why the lease of a replica ended, for the ledger; None when it has not, has none, or nobody can say."""
    if not service or not replica:
        return None
    try:
        record = ended_records(state_dir).get(replica_name(service, replica))
    except FleetError:
        return None  # whoever ends leases names the file
    return None if record is None else str(record["why"])


Change = Callable[["dict[str, Record]"], "dict[str, Record]"]


def change(state_dir: Path, decide: Change, token: str | None, check: bool) -> tuple[dict[str, Record], dict[str, Record]]:
    """Carry a change of leases out: records before and after. With ``check`` nothing is written and no lease of the host is asked for."""
    if check:
        before = read(state_dir)["leases"]
        return before, decide(dict(before))
    host_lease.check(state_dir, token)
    with changed(state_dir) as book:
        before = dict(book["leases"])
        book["leases"] = after = decide(dict(before))
    return before, after
