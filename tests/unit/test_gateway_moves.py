# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replicas that change their place, with the real HAProxy: who leaves takes nothing from who has come, and nobody waits for a dead host."""

from __future__ import annotations

import threading
import time
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils import haproxy
from conftest import RunModule
from gateway_world import Answer, Gateway, MakeService, free_port, manifest_text, plan_of

# Two hosts on this machine.
A, B = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def here(haproxy_program: str, run_module: RunModule, tmp_path: Path) -> t.Iterator[Gateway]:
    made = Gateway(tmp_path, run_module, haproxy_program, addresses={"gpu-b": B})
    yield made
    made.close()


def on_a(port: int) -> dict[str, t.Any]:
    return {"gpu-a": plan_of(("ocr", 1, port))}


def on_b(port: int) -> dict[str, t.Any]:
    return {"gpu-b": plan_of(("ocr", 1, port))}


def at(here: Gateway) -> haproxy.Server:
    return (here.runtime.servers("svc_ocr") or {})["ocr-1"]


def test_the_host_that_a_replica_left_takes_nothing_from_its_new_place(here: Gateway, service: MakeService) -> None:
    old, new = service("old", A), service("new", B)
    here.bring([manifest_text("ocr")], on_a(old.port))
    here.until_answers("/ocr/")
    # The new host's turn while the old one serves: its requests stay there until the routes are brought.
    came = here.server("ocr", "ocr-1", wait=20, address=B, port=new.port)
    assert (came["changed"], here.ask("/ocr/").body) == (False, b"old"), came
    old.slow = 1.5
    answers: list[Answer] = []
    late = threading.Thread(target=lambda: answers.append(here.ask("/ocr/slow")))
    late.start()
    time.sleep(0.4)
    here.bring([manifest_text("ocr")], on_b(new.port))
    here.until_answers("/ocr/")
    assert here.ask("/ocr/").body == b"new"
    # The old host's turn: what it has in hand ends, and the replica at its new place is not drained.
    for check in (True, False):
        left = here.server("ocr", "ocr-1", check=check, state="drain", wait=20, address=A)
        assert (left["changed"], left["sessions"], left["known"]) == (False, 0, True), left
    old.close()
    late.join(20)
    assert [(one.status, one.body) for one in answers] == [(200, b"old")]
    assert (at(here).admin, at(here).address) == ("ready", B)
    assert here.ask("/ocr/").body == b"new"


def test_a_replica_of_a_dead_host_gets_requests_at_its_new_place_at_once(here: Gateway, service: MakeService) -> None:
    new = service("new", B)
    here.bring([manifest_text("ocr")], on_a(free_port()))
    deadline = time.monotonic() + 20
    while at(here).running:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert here.ask("/ocr/").status == 503
    came = here.server("ocr", "ocr-1", wait=20, address=B, port=new.port)
    assert (came["failed"], came["changed"]) == (False, True), came
    assert here.ask("/ocr/").body == b"new"
    assert not here.server("ocr", "ocr-1", wait=20, address=B, port=new.port)["changed"]
    # The routes of its new place are no interruption.
    here.bring([manifest_text("ocr")], on_b(new.port))
    assert here.ask("/ocr/").body == b"new"


def test_a_new_version_at_another_port_of_its_host_is_found_and_a_bad_one_gives_the_old_port_back(
    here: Gateway, service: MakeService
) -> None:
    old, new, ill = service("old"), service("new"), service("ill")
    ill.well = False
    here.bring([manifest_text("ocr")], on_a(old.port))
    here.until_answers("/ocr/")
    here.server("ocr", "ocr-1", state="drain", wait=5, address=A)
    bad = here.server("ocr", "ocr-1", wait=3, address=A, port=ill.port)
    assert bad["failed"]
    assert (at(here).admin, at(here).port) == ("drain", old.port)
    # The version before says nothing of a port.
    assert here.server("ocr", "ocr-1", wait=20)["changed"]
    assert here.ask("/ocr/").body == b"old"
    here.server("ocr", "ocr-1", state="drain", wait=5, address=A)
    old.close()
    assert here.server("ocr", "ocr-1", wait=20, address=A, port=new.port)["changed"]
    assert here.ask("/ocr/").body == b"new"
    here.bring([manifest_text("ocr")], on_a(new.port))
    assert (at(here).admin, at(here).port) == ("ready", new.port)
    assert here.ask("/ocr/").body == b"new"


def test_an_address_is_known_by_its_name_too_and_a_replica_that_the_gateway_does_not_know_is_no_error(
    here: Gateway, service: MakeService
) -> None:
    one = service("one")
    here.bring([manifest_text("ocr")], on_a(one.port))
    here.until_answers("/ocr/")
    told = here.server("ocr", "ocr-1", state="drain", wait=5, address="localhost")
    assert told.get("changed"), told
    assert here.server("ocr", "ocr-1", wait=20, address="localhost", port=one.port)["changed"]
    assert at(here).address == A
    for more in ({"state": "drain"}, {"port": one.port}):
        result = here.server("ocr", "ocr-2", address=A, **more)
        assert (result["failed"], result["known"]) == (False, False), result


def test_a_gateway_that_was_off_while_a_replica_moved_sends_nobody_to_who_has_its_port_now(here: Gateway, service: MakeService) -> None:
    other, own = service("other"), service("own")
    here.bring([manifest_text("ocr")], on_a(other.port))
    here.until_answers("/ocr/")
    here.server("ocr", "ocr-1", state="drain")
    here.server("ocr", "ocr-1", state="ready")
    here.stop()
    here.bring([manifest_text("ocr")], on_a(own.port))  # starts it when the files are there
    here.until_answers("/ocr/")
    assert here.ask("/ocr/").body == b"own"


def test_requests_in_hand_of_a_service_whose_route_is_gone_are_waited_for(here: Gateway, service: MakeService) -> None:
    old = service("old")
    old.slow = 2.0
    here.bring([manifest_text("ocr"), manifest_text("stays")], on_a(old.port))
    here.until_answers("/ocr/")
    answers: list[Answer] = []
    late = threading.Thread(target=lambda: answers.append(here.ask("/ocr/slow")))
    late.start()
    time.sleep(0.4)
    here.bring([manifest_text("stays")], on_a(old.port))
    left = here.server("ocr", "ocr-1", state="drain", wait=20, address=A)
    assert (left["known"], left["sessions"]) == (False, 0), left
    late.join(0.5)
    assert [(one.status, one.body) for one in answers] == [(200, b"old")]


def test_a_change_waits_while_new_files_are_loaded(here: Gateway, service: MakeService) -> None:
    one = service("one")
    here.bring([manifest_text("ocr")], on_a(one.port))
    here.until_answers("/ocr/")
    results: list[dict[str, t.Any]] = []
    with haproxy.alone(here.where / "servers"):
        late = threading.Thread(target=lambda: results.append(here.server("ocr", "ocr-1", state="drain")))
        late.start()
        time.sleep(0.7)
        assert at(here).admin == "ready"
    late.join(20)
    assert (results[0]["changed"], at(here).admin) == (True, "drain")
