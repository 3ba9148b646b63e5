# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases of services as data: beginning, extension, notice, end, idleness, and what a clock may not do."""

from __future__ import annotations

import contextlib
import json
import typing as t
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import service_leases as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Clock, Load, Terms

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def granted(days: float = 7, found: t.Any = None, now: datetime = NOON, **more: t.Any) -> leases.Record:
    return leases.grant(found, "nb", 1, "claims", Terms(days, **more), now)


def seen(record: leases.Record, share: float | None, now: datetime, blind: str = "") -> list[str]:
    return leases.watch_idleness(record, Load(share, blind), now) + leases.give_notice(record, now)


def test_a_lease_begins_once_and_a_later_grant_does_not_restart_it() -> None:
    first = granted()
    assert (first["began"], first["ends"], first["notice_at"]) == ("2026-11-21T12:00:00Z", "2026-11-28T12:00:00Z", "2026-11-27T12:00:00Z")
    assert granted(found=first, now=NOON + 3 * DAY) == first
    longer = granted(14, first, NOON + 3 * DAY)
    assert (longer["began"], longer["ends"]) == (first["began"], "2026-12-05T12:00:00Z")
    shorter = granted(2, first, NOON + 3 * DAY)
    assert leases.due(shorter, NOON + 3 * DAY) == leases.OVER


def test_more_days_in_the_manifest_bring_a_lease_back_that_was_over_and_not_one_that_was_idle() -> None:
    over = leases.end(granted(1), leases.OVER, NOON + DAY)
    assert granted(1, over, NOON + 2 * DAY)["ended"] == "2026-11-22T12:00:00Z"
    assert granted(9, over, NOON + 2 * DAY)["ended"] is None
    idle = leases.end(granted(1), leases.IDLE, NOON + HOUR)
    assert granted(9, idle, NOON + 2 * DAY)["why"] == leases.IDLE


def test_an_extension_counts_to_the_full_hour_so_that_asking_twice_is_asking_once() -> None:
    now = NOON + 7 * MINUTE
    assert leases.until_of(3, None, 30, now) == leases.until_of(3, None, 30, now + 50 * MINUTE) == NOON + 3 * DAY + HOUR
    once = leases.extend(granted(1), leases.until_of(3, None, 30, now), "lin", now)
    assert once["extended"] == [{"by": "lin", "until": "2026-11-24T13:00:00Z", "at": "2026-11-21T12:07:00Z"}]
    assert leases.extend(once, leases.until_of(3, None, 30, now + MINUTE), "lin", now + MINUTE) == once
    assert granted(1, once, now + DAY)["ends"] == "2026-11-24T13:00:00Z"


def test_an_extension_never_makes_a_lease_shorter() -> None:
    assert leases.extend(granted(7), NOON + DAY, "lin", NOON) == granted(7)


def test_an_extension_after_the_end_asks_for_a_start_and_takes_the_notice_back() -> None:
    record = granted(2)
    assert leases.give_notice(record, NOON + 30 * HOUR) == [
        "nb-1: notice: its lease ends 2026-11-23T12:00:00Z; playbook extend makes it last longer"
    ]
    assert leases.give_notice(record, NOON + 31 * HOUR) == []
    over = leases.end(record, leases.OVER, NOON + 2 * DAY)
    back = leases.extend(over, NOON + 9 * DAY, "lin", NOON + 3 * DAY)
    assert (back["ended"], back["why"], back["restart"], back["noticed"]) == (None, None, True, None)
    assert back["notice_at"] == "2026-11-29T12:00:00Z"


@pytest.mark.parametrize(
    ("days", "until", "words"),
    [
        (31, None, "days: 31 days are too many; at most 30 days from now (fleet_lease_max_days); "),
        (0, None, "days: expected days above 0, found 0; write days=7"),
        (float("nan"), None, "days: expected days above 0, found nan; write days=7"),
        (None, "2027-12-01", "until: 2027-12-01T23:59:59Z is too far away; at most 30 days from now"),
        (None, "2026-11-20", "until: 2026-11-20 is over: this host's clock says 2026-11-21T12:00:00Z; "),
        (None, "soon", "until: 'soon' is no date; "),
    ],
)
def test_an_extension_of_no_use_is_refused_in_one_line(days: float | None, until: str | None, words: str) -> None:
    with pytest.raises(FleetError) as error:
        leases.until_of(days, until, 30, NOON)
    assert str(error.value).startswith(words)


def test_times_of_other_zones_are_kept_in_utc() -> None:
    assert leases.stamp(leases.until_of(None, "2026-11-25T18:00:00+08:00", 30, NOON)) == "2026-11-25T10:00:00Z"


# ---- idleness


def test_an_idle_gpu_gets_its_notice_and_then_ends_the_lease() -> None:
    record = granted(idle_minutes=60)
    for minutes in range(0, 30, 5):
        assert seen(record, 0.01, NOON + minutes * MINUTE) == []
    assert seen(record, 0.01, NOON + 30 * MINUTE) == [
        "nb-1: notice: its GPU is idle since 2026-11-21T12:00:00Z; it ends 2026-11-21T13:00:00Z unless its GPU is used"
    ]
    for minutes in range(35, 60, 5):
        assert seen(record, 0.0, NOON + minutes * MINUTE) == []
        assert leases.due(record, NOON + minutes * MINUTE) is None
    assert leases.due(record, NOON + 60 * MINUTE) == leases.IDLE


def test_a_gpu_that_is_used_again_takes_the_notice_back() -> None:
    record = granted(idle_minutes=10)
    seen(record, 0.0, NOON)
    seen(record, 0.0, NOON + 5 * MINUTE)
    assert record["idle"]["ends"] == "2026-11-21T12:10:00Z"
    assert seen(record, 0.2, NOON + 9 * MINUTE) == ["nb-1: its GPU is used again: the lease ends 2026-11-28T12:00:00Z"]
    assert leases.due(record, NOON + 15 * MINUTE) is None


def test_a_missing_number_ends_nobody_and_is_said_once() -> None:
    record = granted(idle_minutes=10)
    seen(record, 0.0, NOON)
    assert seen(record, None, NOON + 5 * MINUTE, "no dcgmi") == [
        "nb-1: idleness cannot be seen on its GPU (no dcgmi): the idle rule is not applied"
    ]
    for minutes in range(10, 600, 5):
        assert seen(record, None, NOON + minutes * MINUTE, "no dcgmi") == []
        assert leases.due(record, NOON + minutes * MINUTE) is None
    seen(record, 0.0, NOON + 600 * MINUTE)
    assert record["idle"]["since"] == "2026-11-21T22:00:00Z"


def test_what_nobody_saw_for_long_is_not_idle() -> None:
    record = granted(idle_minutes=10)
    seen(record, 0.0, NOON)
    seen(record, 0.0, NOON + 5 * HOUR)
    assert record["idle"]["since"] == "2026-11-21T17:00:00Z"
    seen(record, 0.0, NOON + 4 * HOUR)  # the clock went back
    assert record["idle"]["since"] == "2026-11-21T16:00:00Z"


def test_an_idle_end_that_was_not_announced_in_time_is_put_off_until_it_was() -> None:
    record = granted(idle_minutes=60)
    seen(record, 0.0, NOON)
    record["idle"]["seen"] = leases.stamp(NOON + 2 * HOUR - 5 * MINUTE)
    seen(record, 0.0, NOON + 2 * HOUR)
    assert record["idle"]["ends"] == "2026-11-21T14:30:00Z"


def test_a_notice_of_no_hours_is_none_and_the_idle_end_comes_at_its_time() -> None:
    record = granted(1, notice_hours=0, idle_minutes=5)
    seen(record, 0.0, NOON)
    assert seen(record, 0.0, NOON + 5 * MINUTE) == []
    assert leases.due(record, NOON + 5 * MINUTE) == leases.IDLE
    plain = granted(1, notice_hours=0)
    assert leases.give_notice(plain, NOON + 2 * DAY) == []


# ---- clocks


def test_a_clock_that_jumped_ends_nothing_in_that_round() -> None:
    before = Clock(NOON, 1000.0, "boot").plain()
    assert Clock(NOON + 5 * MINUTE, 1300.0, "boot").doubt(before) is None
    assert Clock(NOON + DAY, 1300.0, "boot").doubt(before) == "this host's clock jumped ahead by 86100 s"
    assert Clock(NOON - HOUR, 1300.0, "boot").doubt(before) == "this host's clock went back by 3600 s"
    assert Clock(NOON + DAY, 30.0, "the next boot").doubt(before) is None
    for damaged in (None, [], {"at": 3}, {"at": "noon"}, {"at": leases.stamp(NOON), "uptime": "x", "boot": "boot"}):
        assert Clock(NOON, 1.0, "boot").doubt(damaged) is None


def test_the_hosts_own_clocks_are_read(tmp_path: Path) -> None:
    (tmp_path / "uptime").write_text("4711.07 9000.00\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("0a1b\n")
    found = Clock.read(tmp_path)
    assert (found.uptime, found.boot, found.now.tzinfo) == (4711.07, "0a1b", UTC)
    assert Clock.read(tmp_path / "none").uptime is None


# ---- the file


def test_the_file_is_written_only_when_something_changed(tmp_path: Path) -> None:
    assert leases.read(tmp_path)["leases"] == {}
    with leases.changed(tmp_path):
        pass
    assert not leases.path_in(tmp_path).exists()
    with leases.changed(tmp_path) as book:
        book["leases"]["nb-1"] = granted()
    kept = json.loads(leases.path_in(tmp_path).read_text())
    assert (kept["format"], kept["leases"]["nb-1"]["team"]) == (1, "claims")
    with contextlib.suppress(FleetError), leases.changed(tmp_path) as book:
        book["leases"].clear()
        raise FleetError("no")
    assert leases.read(tmp_path)["leases"] == {"nb-1": granted()}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _data: "{",
        lambda _data: "[]",
        lambda data: json.dumps({**data, "format": 2}),
        lambda data: json.dumps({**data, "leases": []}),
        lambda data: json.dumps({**data, "leases": {"nb-1": {}}}),
        lambda data: json.dumps({**data, "leases": {"nb-1": {**data["leases"]["nb-1"], "ends": "tomorrow"}}}),
        lambda data: json.dumps({**data, "leases": {"nb-1": {**data["leases"]["nb-1"], "ended": True}}}),
        lambda data: json.dumps({**data, "leases": {"nb-1": {**data["leases"]["nb-1"], "extended": [{"until": 3}]}}}),
        lambda data: json.dumps({**data, "leases": {"nb-1": {**data["leases"]["nb-1"], "idle": {"minutes": "x"}}}}),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, spoil: t.Callable[[t.Any], str]) -> None:
    with leases.changed(tmp_path) as book:
        book["leases"]["nb-1"] = granted(idle_minutes=10)
    path = leases.path_in(tmp_path)
    path.write_text(spoil(json.loads(path.read_text())))
    with pytest.raises(FleetError) as error:
        leases.read(tmp_path)
    assert str(error.value).startswith(f"{path}: this file ")
    assert "\n" not in str(error.value)
    assert leases.why_ended(tmp_path, "nb", 1) is None


def test_people_are_told_in_few_words() -> None:
    record = granted(1, idle_minutes=10)
    assert leases.words(record) == "its lease ends 2026-11-22T12:00:00Z"
    seen(record, 0.0, NOON)
    seen(record, 0.0, NOON + 5 * MINUTE)
    assert leases.words(record) == "its lease ends 2026-11-21T12:10:00Z unless its GPU is used; else 2026-11-22T12:00:00Z"
    assert leases.as_fact("nb-1", record) == {
        "name": "nb-1",
        "ends": "2026-11-21T12:10:00Z",
        "ended": None,
        "why": None,
        "noticed": True,
    }
    assert "gpuops.fleet.extend -e service=nb -e replica=1" in leases.notice_text(record)
    over = leases.end(record, leases.IDLE, NOON + HOUR)
    assert leases.words(over) == "its lease is over since 2026-11-21T13:00:00Z (idle): extend it, or remove the manifest"
    assert leases.end(over, leases.OVER, NOON + DAY) == over
