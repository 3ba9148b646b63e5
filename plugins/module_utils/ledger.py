# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: who held which slice or GPU from when to when, in SQLite, append-only.

A hold's begin and its end are two rows, in tables ``begun`` and ``ended``; the view ``holds`` joins them, so that "who held what" is one
query. Each rollout of a replica that came to an end is a row in ``rollouts``. Rows are only ever inserted: triggers refuse the rest.
Times are UTC seconds since 1970. An end is never before its begin, also when the clock was set back meanwhile: usage may be lost by that,
but none is invented.

Format 1 had no ``rollouts``; whoever opens it for writing adds that table, in one transaction, and touches no row.
"""

from __future__ import annotations

import json
import os
import sqlite3
import typing as t
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from urllib.parse import quote

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

FORMAT = 2
# Why a hold ended.
STOPPED = "stopped"  # somebody asked the engine to stop or kill the container
EXITED, FAILED, OUT_OF_MEMORY = "exited", "failed", "out of memory"  # it ended by itself: status 0, another status, by the kernel
# ``lease over``, ``idle`` and ``ended by NAME`` are the words of service_leases: the host agent stopped it because its lease had ended.
HOST_DOWN = "host went down"
UNKNOWN = "unknown"  # nobody watched; it is gone

_BUSY_S = 10.0


def _kept_as_written(table: str, *keys: str) -> tuple[str, ...]:
    """Triggers that keep the rows of a table as they were written. INSERT OR REPLACE takes a row away without waking those for DELETE."""
    known = " OR ".join(f"{key} = NEW.{key}" for key in keys)
    say = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    return (
        *(f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} {say}" for verb in ("UPDATE", "DELETE")),
        f"CREATE TRIGGER {table}_replace BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {known}) {say}",
    )


_FIRST = (
    """CREATE TABLE begun (
        id INTEGER PRIMARY KEY, at REAL NOT NULL, boot TEXT NOT NULL,
        gpu TEXT NOT NULL, pci TEXT, profile TEXT, start INTEGER,
        service TEXT, replica INTEGER, team TEXT, environment TEXT, container TEXT NOT NULL, name TEXT NOT NULL,
        CHECK ((profile IS NULL) = (start IS NULL)))""",
    "CREATE TABLE ended (hold INTEGER PRIMARY KEY REFERENCES begun (id), at REAL NOT NULL, why TEXT NOT NULL, exit_code INTEGER)",
    """CREATE VIEW holds AS SELECT begun.id, begun.gpu, begun.pci, begun.profile, begun.start, begun.service, begun.replica, begun.team,
        begun.environment, begun.container, begun.name, begun.boot, begun.at AS began, ended.at AS ended, ended.why, ended.exit_code
        FROM begun LEFT JOIN ended ON ended.hold = begun.id""",
    "CREATE INDEX begun_at ON begun (at)",
    "CREATE INDEX begun_container ON begun (container)",
    *_kept_as_written("begun", "id"),
    *_kept_as_written("ended", "hold"),
)
# ``token``: which rollout, so that one which is written twice, because somebody died in between, is there once.
_SECOND = (
    """CREATE TABLE rollouts (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL UNIQUE, service TEXT NOT NULL, replica INTEGER,
        from_digest TEXT, to_digest TEXT NOT NULL, image TEXT NOT NULL, "by" TEXT NOT NULL,
        began REAL NOT NULL, ended REAL NOT NULL, way TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL, steps TEXT NOT NULL)""",
    "CREATE INDEX rollouts_began ON rollouts (began)",
    *_kept_as_written("rollouts", "id", "token"),
)
_ROLLOUTS_SINCE = 2
_ROLLOUT = (
    *("token", "service", "replica", "from_digest", "to_digest", "image", '"by"'),
    *("began", "ended", "way", "outcome", "reason", "steps"),
)
_COLUMNS = "gpu, pci, profile, start, service, replica, team, environment, container, name"


@dataclass(frozen=True)
class Place:
    """What is held: a slice, or the whole GPU when there is no ``profile``. ``gpu``: its UUID, or the name that a container gave it
    when no GPU of that name was found.
    """

    gpu: str
    pci: str | None = None
    profile: str | None = None
    start: int | None = None

    def __str__(self) -> str:
        return self.gpu if self.profile is None else f"slice {self.profile}@{self.start} of {self.gpu}"


@dataclass(frozen=True)
class Holder:
    """Who holds it. A container that the collection did not start has only its short id and its name."""

    service: str | None
    replica: int | None
    team: str | None
    environment: str | None
    container: str
    name: str


@dataclass(frozen=True)
class Rollout:
    """A version of a replica that took the place of another, or did not. ``steps``: ``[{step, seconds}]`` in order.

    ``way``: ``side-by-side``, ``stop-first``. ``outcome``: ``serving``, ``restored`` (the version before serves again), ``kept`` (it never
    ceased to), ``failed`` (neither serves), ``interrupted`` (whoever rolled it out did not come to an end).
    """

    token: str
    service: str
    replica: int | None
    from_digest: str | None
    to_digest: str
    image: str
    by: str
    began: float
    ended: float
    way: str
    outcome: str
    reason: str
    steps: tuple[dict[str, t.Any], ...]


@dataclass(frozen=True)
class Hold:
    """A begin that has no end yet. ``began``: UTC seconds, ``boot``: boot id of the kernel under which it began."""

    id: int
    place: Place
    holder: Holder
    began: float
    boot: str


def path_in(state_dir: Path) -> Path:
    """Where a host keeps its ledger."""
    return state_dir / "ledger.sqlite"


def pulse_in(state_dir: Path) -> Path:
    """The file that whoever keeps the ledger touches every minute."""
    return state_dir / "watch.alive"


def last_alive(state_dir: Path) -> float | None:
    """When the keeper of this host's ledger last gave a sign of life, UTC seconds; None when there never was one."""
    try:
        return pulse_in(state_dir).stat().st_mtime
    except OSError:
        return None


@t.final
class Ledger:
    """The ledger in the file ``path``, made when it is missing; ``read_only`` needs it to be there. FleetError when it is of no use."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        try:
            if not read_only:
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o640))
            where = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"
            self._base = sqlite3.connect(where, uri=True, timeout=_BUSY_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error
        try:
            self._open(read_only)
        except BaseException:
            self._base.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more is asked of it."""
        self._base.close()

    def _open(self, read_only: bool) -> None:
        found = int(self._do("PRAGMA user_version")[0][0])
        self._found = FORMAT
        if read_only:
            self._found = found
        self._empty = read_only and found == 0  # whoever made the file died before its first table
        if found > FORMAT:
            wrong = f"this ledger has format {found}, and this version knows format {FORMAT}"
            raise FleetError(
                wrong, file=str(self.path), hint="a newer version wrote it: bring the collection and the host agent up to date"
            )
        if read_only:
            return
        self._do("PRAGMA journal_mode = WAL")
        self._do("PRAGMA synchronous = FULL")  # few rows, and each is worth money
        self._do("PRAGMA foreign_keys = ON")
        if found < FORMAT:
            self._transaction(self._make)

    def _make(self) -> None:
        found = int(self._do("PRAGMA user_version")[0][0])
        if found == FORMAT:
            return  # another process was faster
        for statement in (*(() if found else _FIRST), *_SECOND):
            self._do(statement)
        self._do(f"PRAGMA user_version = {FORMAT}")

    def _transaction(self, work: t.Callable[[], None]) -> None:
        self._do("BEGIN IMMEDIATE")
        try:
            work()
            self._do("COMMIT")
        except BaseException:
            self._base.rollback()
            raise

    def _do(self, statement: str, values: t.Sequence[t.Any] = ()) -> list[tuple[t.Any, ...]]:
        try:
            return self._base.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> FleetError:
        words = getattr(error, "strerror", None) or str(error)
        return FleetError(f"the ledger is of no use: {words}", file=str(self.path))

    def begin(self, place: Place, holder: Holder, at: float, boot: str) -> None:
        """Somebody holds ``place`` from ``at`` on."""
        marks = ", ".join("?" * 12)
        values = (round(at, 3), boot, *astuple(place), *astuple(holder))
        self._do(f"INSERT INTO begun (at, boot, {_COLUMNS}) VALUES ({marks})", values)

    def end(self, hold: Hold, at: float, why: str, exit_code: int | None = None) -> None:
        """The hold ended at ``at``. A second end of the same hold is refused."""
        values = (hold.id, max(round(at, 3), hold.began), why, exit_code)
        self._do("INSERT INTO ended (hold, at, why, exit_code) VALUES (?, ?, ?, ?)", values)

    def rolled_out(self, rollout: Rollout) -> bool:
        """Write a rollout that came to an end; False when it is there already, by its token."""
        if self._do("SELECT 1 FROM rollouts WHERE token = ?", (rollout.token,)):
            return False
        values = {**asdict(rollout), "began": round(rollout.began, 3), "ended": max(round(rollout.ended, 3), round(rollout.began, 3))}
        values["steps"] = json.dumps(list(rollout.steps))
        marks = ", ".join("?" * len(_ROLLOUT))
        self._do(f"INSERT INTO rollouts ({', '.join(_ROLLOUT)}) VALUES ({marks})", [values[name.strip('"')] for name in _ROLLOUT])
        return True

    def rollouts(self, since: float, until: float) -> list[dict[str, t.Any]]:
        """Every rollout that touches the interval, by its begin, with the fields of :class:`Rollout` but its token."""
        if self._found < _ROLLOUTS_SINCE:
            return []
        names = _ROLLOUT[1:]
        rows = self._do(
            f"SELECT {', '.join(names)} FROM rollouts WHERE began < ? AND ended >= ? ORDER BY began, id",
            (until, since),
        )
        found = [dict(zip((name.strip('"') for name in names), row)) for row in rows]
        return [{**rollout, "steps": json.loads(rollout["steps"])} for rollout in found]

    def open_holds(self, container: str | None = None) -> list[Hold]:
        """Holds without an end, of one container or of all, in the order in which they were written."""
        whose, values = ("", ()) if container is None else (" AND container = ?", (container,))
        rows = self._do(f"SELECT id, began, boot, {_COLUMNS} FROM holds WHERE ended IS NULL{whose} ORDER BY id", values)
        return [Hold(row[0], Place(*row[3:7]), Holder(*row[7:]), row[1], row[2]) for row in rows]

    def knows(self, container: str, first: float, last: float) -> bool:
        """Whether a hold of the container, ended or not, began between these two."""
        return bool(self._do("SELECT 1 FROM begun WHERE container = ? AND at BETWEEN ? AND ? LIMIT 1", (container, first, last)))

    def last_end(self, container: str, boot: str) -> str | None:
        """Why the newest hold of a container in this boot ended; None when there is none or it did not end."""
        rows = self._do("SELECT why FROM holds WHERE container = ? AND boot = ? ORDER BY id DESC LIMIT 1", (container, boot))
        return None if not rows or rows[0][0] is None else str(rows[0][0])

    def holds(self, since: float, until: float) -> list[dict[str, t.Any]]:
        """Every hold that touches the interval from ``since`` to ``until``, by begin: who, what, ``began``, ``ended`` (None: not yet),
        ``why`` and ``exit_code``; and the part of it that lies in the interval, ``since``, ``until`` and ``seconds``.
        """
        if self._empty:
            return []
        rows = self._do(
            f"SELECT {_COLUMNS}, began, ended, why, exit_code, max(began, :since), min(coalesce(ended, :until), :until) FROM holds"
            " WHERE began < :until AND (coalesce(ended, :until) > :since OR began >= :since) ORDER BY began, id",
            t.cast(t.Any, {"since": since, "until": until}),
        )
        names = [*_COLUMNS.split(", "), "began", "ended", "why", "exit_code", "since", "until"]
        found = [dict(zip(names, row)) for row in rows]
        return [{**hold, "seconds": round(hold["until"] - hold["since"], 3)} for hold in found]
