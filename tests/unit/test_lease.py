# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One writer at a time: who gets a host, who is told about whom, and what happens when a play dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import lease
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.lease import Lease, LeaseError
from ansible_collections.gpuops.fleet.plugins.module_utils.version import VERSION

RunModule = t.Callable[..., dict[str, t.Any]]


def refused(call: t.Callable[[], object]) -> str:
    with pytest.raises(LeaseError) as error:
        call()
    return str(error.value)


def test_a_free_host_is_taken_and_the_token_is_the_holders_own(tmp_path: Path) -> None:
    mine, over = lease.acquire(tmp_path, "alice@desk", "apply plan 3", 60, now=1000.9)
    assert (mine.holder, mine.purpose, mine.expires, over) == ("alice@desk", "apply plan 3", 1060, None)
    assert len(mine.token) == 32
    assert lease.current(tmp_path) == mine
    assert (tmp_path / "lease.json").stat().st_mode & 0o777 == 0o640


def test_whoever_waits_is_told_who_holds_the_host_and_never_the_token(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice@desk", "apply plan 3", 60, now=1000)
    words = refused(lambda: lease.acquire(tmp_path, "bob", "drain", 60, now=1018))
    assert words == "this host is held by alice@desk (apply plan 3), for 42 s more; run again when it is released"
    assert refused(lambda: lease.acquire(tmp_path, "alice@desk", "apply plan 3", 60, now=1059)) == words.replace("42", "1")
    assert lease.current(tmp_path) == mine


def test_a_lease_that_ran_out_is_taken_over_and_named(tmp_path: Path) -> None:
    old, _ignored = lease.acquire(tmp_path, "alice", "apply", 60, now=1000)
    mine, over = lease.acquire(tmp_path, "bob", "drain", 30, now=1060)
    assert over == "took over the lease of alice (apply), which had run out"
    assert (mine.holder, mine.expires) == ("bob", 1090)
    assert mine.token != old.token


def test_the_holder_renews_with_the_token(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 60, now=1000)
    again, over = lease.acquire(tmp_path, "alice", "apply", 60, mine.token, now=1050)
    assert (again, over) == (Lease("alice", "apply", 1110, mine.token, 60, lease.boot_id()), None)
    # even after its time, as long as nobody else came
    assert lease.acquire(tmp_path, "alice", "apply", 60, mine.token, now=2000)[0].expires == 2060


def test_a_token_of_a_lost_lease_renews_nothing(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 60, now=1000)
    lease.acquire(tmp_path, "bob", "drain", 60, now=1060)
    assert refused(lambda: lease.acquire(tmp_path, "alice", "apply", 60, mine.token, now=1061)) == (
        "the lease on this host was lost to bob (drain), for 59 s more; nothing more is changed"
    )
    (tmp_path / "lease.json").unlink()
    assert refused(lambda: lease.acquire(tmp_path, "alice", "apply", 60, mine.token, now=1061)) == (
        "the lease on this host ran out or was released; nothing more is changed"
    )


def test_a_lease_of_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FleetError) as error:
        lease.acquire(tmp_path, "alice", "apply", 0)
    assert str(error.value) == "seconds: a lease of 0 s is none; give at least 1"
    lease.acquire(tmp_path, "alice", "apply", 1)


def test_a_lease_that_is_used_is_renewed_half_way_through(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 60, now=1000)
    lease.check(tmp_path, mine.token, now=1030)
    assert lease.current(tmp_path) == mine
    lease.check(tmp_path, mine.token, now=1031)
    assert lease.current(tmp_path) == Lease("alice", "apply", 1091, mine.token, 60, lease.boot_id())


def test_each_step_is_checked(tmp_path: Path) -> None:
    lease.check(tmp_path, None, now=1000)
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 60, now=1000)
    lease.check(tmp_path, mine.token, now=1030)
    assert refused(lambda: lease.check(tmp_path, mine.token, now=1060)) == (
        "the lease on this host ran out or was released; nothing more is changed"
    )
    assert refused(lambda: lease.check(tmp_path, None, now=1059)) == (
        "this host is held by alice (apply), for 1 s more; run again when it is released"
    )
    lease.check(tmp_path, None, now=1060)
    lease.acquire(tmp_path, "bob", "drain", 60, now=1060)
    assert refused(lambda: lease.check(tmp_path, mine.token, now=1070)) == (
        "the lease on this host was lost to bob (drain), for 50 s more; nothing more is changed"
    )
    assert refused(lambda: lease.check(tmp_path, mine.token, now=1120)) == (
        "the lease on this host ran out or was released; nothing more is changed"
    )
    (tmp_path / "lease.json").unlink()
    assert "ran out or was released" in refused(lambda: lease.check(tmp_path, mine.token))


def test_only_the_holder_gives_it_back(tmp_path: Path) -> None:
    assert lease.release(tmp_path / "none", None) is False
    assert not (tmp_path / "none").exists()
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 600)
    for words in (refused(lambda: lease.release(tmp_path, None)), refused(lambda: lease.release(tmp_path, "f" * 32))):
        assert words.startswith("this host is held by alice (apply), for ")
        assert words.endswith(" s more; give its token, or force: true when that play is dead")
    assert lease.release(tmp_path, mine.token) is True
    assert lease.current(tmp_path) is None
    lease.acquire(tmp_path, "alice", "apply", 600)
    assert lease.release(tmp_path, None, force=True) is True
    assert lease.current(tmp_path) is None


@pytest.mark.parametrize("content", ['{"holder": "x"}', '{"holder": "x", "purpose": "y", "expires": "soon", "token": "z"}'])
def test_a_damaged_lease_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "lease.json").write_text(content)
    with pytest.raises(FleetError) as error:
        lease.check(tmp_path, None)
    assert str(error.value) == f"{tmp_path / 'lease.json'}: this file is not a lease; remove it when no play is at work on this host"


def test_two_processes_do_not_hold_one_lock(tmp_path: Path) -> None:
    code = (
        "import fcntl, os, sys\n"
        "handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = tmp_path / "mig.lock"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FleetError) as error, lease.exclusive(tmp_path, "mig"):
            pytest.fail("two hold the lock")
        assert str(error.value) == f"another process holds {path} at this moment; run again when it has ended"
        other.communicate("")
    with lease.exclusive(tmp_path, "mig"):
        pass


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(FleetError, match=r"^cannot lock .*plain/mig\.lock: "), lease.exclusive(tmp_path / "plain", "mig"):
        pytest.fail("it was locked all the same")


def test_of_many_that_want_it_at_once_one_gets_it(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ansible_collections.gpuops.fleet.plugins.module_utils import lease\n"
        "from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError\n"
        "try:\n"
        "    print(lease.acquire(Path(sys.argv[1]), 'p', 'race', 600)[0].token)\n"
        "except FleetError:\n"
        "    pass\n"
    )
    path = [entry for entry in sys.path if entry.endswith("collections")]
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": path[0]})
        for _ignored in range(4)
    ]
    tokens = [process.communicate()[0].split() for process in running]
    won = [token for found in tokens for token in found]
    held = lease.current(tmp_path)
    assert held is not None
    assert won == [held.token]


def test_the_module_takes_renews_and_gives_back_and_never_reports_a_change(tmp_path: Path, run_module: RunModule) -> None:
    where = {"state_dir": str(tmp_path / "state")}
    taken = run_module("host_lease", {**where, "holder": "alice", "purpose": "apply plan 3", "seconds": 60})
    assert (taken["failed"], taken["changed"], taken["taken_over"]) == (False, False, None)
    assert len(taken["token"]) == 32
    other = run_module("host_lease", {**where, "holder": "bob"})
    assert other["failed"]
    assert other["msg"].startswith("this host is held by alice (apply plan 3), for ")
    again = run_module("host_lease", {**where, "holder": "alice", "seconds": 600, "token": taken["token"]})
    assert again["token"] == taken["token"]
    assert again["expires"] >= taken["expires"] + 500
    back = run_module("host_lease", {**where, "state": "released", "token": taken["token"]})
    assert (back["failed"], back["changed"], back["token"], back["expires"]) == (False, False, "", None)
    assert run_module("host_lease", {**where, "state": "released"})["failed"] is False


def test_the_module_names_whom_it_took_over(tmp_path: Path, run_module: RunModule) -> None:
    (tmp_path / "lease.json").write_text(json.dumps({"holder": "dead play", "purpose": "apply", "expires": 5, "token": "t", "seconds": 60}))
    taken = run_module("host_lease", {"state_dir": str(tmp_path), "holder": "bob"})
    assert taken["taken_over"] == "took over the lease of dead play (apply), which had run out"
    assert taken["taken_over"] in str(taken["warnings"])


def test_the_module_takes_a_dead_plays_lease_away_by_force(tmp_path: Path, run_module: RunModule) -> None:
    run_module("host_lease", {"state_dir": str(tmp_path), "holder": "alice"})
    assert run_module("host_lease", {"state_dir": str(tmp_path), "state": "released"})["failed"]
    assert not run_module("host_lease", {"state_dir": str(tmp_path), "state": "released", "force": True})["failed"]
    assert lease.current(tmp_path) is None


def test_in_check_mode_the_module_takes_and_gives_back_nothing(tmp_path: Path, run_module: RunModule) -> None:
    where = {"state_dir": str(tmp_path / "state")}
    result = run_module("host_lease", {**where, "holder": "alice"}, check=True)
    assert (result["changed"], result["token"]) == (False, "")
    assert not (tmp_path / "state").exists()
    taken = run_module("host_lease", {**where, "holder": "alice"})
    run_module("host_lease", {**where, "state": "released", "token": taken["token"]}, check=True)
    assert lease.current(tmp_path / "state") is not None


def test_a_holder_must_say_who_it_is(tmp_path: Path, run_module: RunModule) -> None:
    result = run_module("host_lease", {"state_dir": str(tmp_path)})
    assert result["failed"]
    assert "holder" in result["msg"]


def test_a_lease_from_before_the_last_boot_holds_nobody_off_and_is_named(tmp_path: Path) -> None:
    old, _ignored = lease.acquire(tmp_path, "alice", "apply", 600)
    assert old.boot == lease.boot_id() != ""
    (tmp_path / "lease.json").write_text(json.dumps({**vars(old), "boot": "another"}))
    lease.check(tmp_path, None)
    lease.check(tmp_path, old.token)  # the play itself, when it was it that booted the host
    mine, over = lease.acquire(tmp_path, "host agent", "restore", 60)
    assert over == "took over the lease of alice (apply), which was from before the host's last boot"
    assert "was lost to host agent (restore)" in refused(lambda: lease.check(tmp_path, old.token))
    lease.check(tmp_path, mine.token)


def test_a_lease_that_names_no_boot_holds_as_ever(tmp_path: Path) -> None:
    old, _ignored = lease.acquire(tmp_path, "alice", "apply", 600)
    (tmp_path / "lease.json").write_text(json.dumps({key: value for key, value in vars(old).items() if key != "boot"}))
    assert "is held by alice" in refused(lambda: lease.acquire(tmp_path, "bob", "drain", 60))


def test_a_held_host_is_waited_for_until_it_is_free(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 600)
    timer = threading.Timer(0.7, lambda: lease.release(tmp_path, mine.token))
    timer.start()
    with lease.held(tmp_path, "host agent", "start", 60, 20) as token:
        found = lease.current(tmp_path)
        assert found is not None
        assert (found.token, found.holder) == (token, "host agent")
    timer.join()
    assert lease.current(tmp_path) is None


def test_who_waited_in_vain_is_told_for_whom_and_how_long(tmp_path: Path) -> None:
    lease.acquire(tmp_path, "alice", "apply", 600)
    words = refused(lambda: lease.held(tmp_path, "host agent", "start", 60, 0.5).__enter__())
    assert words.startswith("this host is held by alice (apply), for ")
    assert words.endswith(" s more; waited 0.5 s for it; run again when it is released")


def test_a_step_is_refused_beside_an_agent_of_another_release(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "apply", 600)
    for version, refuses in ((VERSION, False), ("9.9.9", True)):
        (tmp_path / "agent.json").write_text(json.dumps({"format": 1, "version": version, "path": "/opt/x"}))
        lease.check(tmp_path, mine.token, any_agent=True)
        if refuses:
            with pytest.raises(FleetError, match=rf"this host's agent is gpuops.fleet 9\.9\.9 and this module is {VERSION}; nothing more"):
                lease.check(tmp_path, mine.token)
        else:
            lease.check(tmp_path, mine.token)


def test_whoever_waits_is_told_since_when_and_until_when_and_never_the_token(tmp_path: Path) -> None:
    mine, _ignored = lease.acquire(tmp_path, "alice", "deploy receipt-ocr", 60, now=1000)
    again, _ignored = lease.acquire(tmp_path, "alice", "deploy receipt-ocr", 60, mine.token, now=1030)
    assert again.times() == "alice (deploy receipt-ocr), since 1970-01-01T00:16:40Z, until 1970-01-01T00:18:10Z unless it goes on working"


def test_the_module_tells_who_holds_the_host_and_waits_for_it(tmp_path: Path, run_module: RunModule) -> None:
    where = {"state_dir": str(tmp_path)}
    assert run_module("host_lease", {**where, "state": "read"})["held_by"] == ""
    taken = run_module("host_lease", {**where, "holder": "alice", "purpose": "deploy ocr", "seconds": 60})
    told = run_module("host_lease", {**where, "state": "read"})
    assert told["held_by"].startswith("alice (deploy ocr), since ")
    assert taken["token"] not in json.dumps(told)
    short = run_module("host_lease", {**where, "holder": "bob", "wait": 1})
    assert "this host is held by alice (deploy ocr)" in short["msg"]
    assert "waited 1 s for it" in short["msg"]
    giving = threading.Timer(0.6, lease.release, (tmp_path, taken["token"]))
    giving.start()
    assert run_module("host_lease", {**where, "holder": "bob", "wait": 20})["token"]
    giving.join()
