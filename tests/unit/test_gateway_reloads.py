# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway with the real HAProxy: nothing is lost while servers are drained and come back, and while files change."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import typing as t
from http.client import HTTPConnection

import pytest
from gateway_world import (
    CLAIMS,
    Answer,
    Load,
    MakeGateway,
    MakeService,
    Service,
    manifest_text,
    plan_of,
)


def test_a_drain_lets_requests_in_hand_end_and_sends_new_ones_elsewhere(gateway: MakeGateway, service: MakeService) -> None:
    one, two = service("one"), service("two")
    here = gateway()
    here.bring([manifest_text("ocr", replicas=2)], {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, two.port))})
    here.until_answers("/ocr/")
    answers: list[Answer] = []
    slow = [threading.Thread(target=lambda: answers.append(here.ask("/ocr/slow", method="POST", body=b"x"))) for _number in range(4)]
    for thread in slow:
        thread.start()
    time.sleep(0.4)
    assert here.server("ocr", "ocr-1", state="drain", check=True)["changed"]
    began = time.monotonic()
    result = here.server("ocr", "ocr-1", state="drain", wait=20)
    assert (result["changed"], result["sessions"]) == (True, 0)
    assert 0.3 < time.monotonic() - began < 5
    assert {here.ask("/ocr/").body for _number in range(10)} == {b"two"}
    for thread in slow:
        thread.join()
    assert sorted(answer.body for answer in answers) == [b"one", b"one", b"two", b"two"]
    assert not here.server("ocr", "ocr-1", state="drain", wait=20)["changed"]
    ready = here.server("ocr", "ocr-1", state="ready", wait=20)
    assert ready["steps"] == [f"svc_ocr/ocr-1: drain at 127.0.0.1:{one.port} -> ready at 127.0.0.1:{one.port}"]
    assert not here.server("ocr", "ocr-1", state="ready", wait=20)["changed"]
    assert {here.ask("/ocr/").body for _number in range(10)} == {b"one", b"two"}


def test_what_is_still_in_hand_after_a_reload_counts_for_a_drain_and_is_not_lost(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    one.slow = 4.0
    here = gateway()
    plans = {"gpu-01": plan_of(("ocr", 1, one.port))}
    here.bring([manifest_text("ocr")], plans)
    here.until_answers("/ocr/")
    answers: list[Answer] = []
    slow = threading.Thread(target=lambda: answers.append(here.ask("/ocr/slow")))
    slow.start()
    time.sleep(0.4)
    assert "load the new configuration" in here.bring([manifest_text("ocr", route="{timeout: 61}")], plans)["steps"]
    impatient = here.server("ocr", "ocr-1", state="drain", wait=0.5)
    assert (impatient["sessions"], impatient["msg"]) == (1, "svc_ocr/ocr-1: 1 requests are still in hand after 0.5 s")
    assert here.server("ocr", "ocr-1", state="drain", wait=20)["sessions"] == 0
    slow.join()
    assert [answer.status for answer in answers] == [200]


def test_a_connection_that_is_idle_at_a_reload_has_its_next_request_answered(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    plans = {"gpu-01": plan_of(("ocr", 1, one.port))}
    here.bring([manifest_text("ocr")], plans)
    here.until_answers("/ocr/")
    with contextlib.closing(HTTPConnection("127.0.0.1", here.port, timeout=10)) as kept:
        kept.request("GET", "/ocr/", headers={"X-Api-Key": CLAIMS})
        kept.getresponse().read()
        channel = kept.sock
        here.bring([manifest_text("ocr", route="{timeout: 61}")], plans)
        time.sleep(1)
        kept.request("GET", "/ocr/", headers={"X-Api-Key": CLAIMS})
        assert kept.sock is channel
        with contextlib.closing(kept.getresponse()) as answer:
            assert (answer.status, answer.getheader("Connection")) == (200, "close")


@pytest.mark.slow
def test_reloads_under_load_lose_no_request(
    gateway: MakeGateway, service: MakeService, record_property: t.Callable[[str, object], None]
) -> None:
    one, two = service("one"), service("two")
    here = gateway(rate=0)
    plans = {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, two.port))}
    here.bring([manifest_text("ocr", replicas=2)], plans)
    here.until_answers("/ocr/")
    with Load(here, "/ocr/") as load:
        for number in range(8):
            time.sleep(0.5)
            result = here.bring([manifest_text("ocr", replicas=2, route=f"{{timeout: {100 + number}}}")], plans)
            assert result["steps"][-1] == "load the new configuration"
        deadline = time.monotonic() + 30
        while load.right < 2000 and time.monotonic() < deadline:
            time.sleep(0.1)
    record_property("requests", load.right)
    assert (load.wrong, load.right >= 2000) == ([], True)


@pytest.mark.slow
def test_a_rollout_with_a_lent_address_under_load_loses_no_request(gateway: MakeGateway, service: MakeService) -> None:
    old = service("old")
    here = gateway(rate=0)
    plans = {"gpu-01": plan_of(("ocr", 1, old.port))}
    here.bring([manifest_text("ocr")], plans)
    here.until_answers("/ocr/")
    surge = service("surge")
    lent = {"address": "127.0.0.1", "port": surge.port}
    with Load(here, "/ocr/", 3) as load:
        assert here.server("ocr", "ocr-surge-gpu-01", wait=20, check=True, **lent)["changed"]
        assert here.server("ocr", "ocr-surge-gpu-01", wait=20, **lent)["changed"]
        assert not here.server("ocr", "ocr-surge-gpu-01", wait=20, **lent)["changed"]
        assert here.server("ocr", "ocr-1", state="drain", wait=20)["sessions"] == 0
        old.close()
        # The lent address and the drain outlive a reload in the middle of it.
        here.bring([manifest_text("ocr", route="{timeout: 77}")], plans)
        servers = here.runtime.servers("svc_ocr") or {}
        assert (servers["ocr-1"].admin, servers["ocr-surge-gpu-01"].admin, servers["ocr-surge-gpu-01"].port) == (
            "drain",
            "ready",
            surge.port,
        )
        time.sleep(0.5)
        seen = len(surge.seen)
        new = Service("new")
        new_plans = {"gpu-01": plan_of(("ocr", 1, new.port))}
        here.bring([manifest_text("ocr", route="{timeout: 77}")], new_plans)
        assert here.server("ocr", "ocr-1", state="ready", wait=20)["known"]
        assert here.server("ocr", "ocr-surge-gpu-01", state="drain", wait=20)["sessions"] == 0
        assert here.server("ocr", "ocr-surge-gpu-01", state="maint")["changed"]
        surge.close()
        time.sleep(0.5)
    assert load.wrong == []
    assert seen > 10
    assert new.seen
    assert here.ask("/ocr/").body == b"new"
    new.close()


def test_a_server_that_fails_the_gateways_check_gets_no_request(gateway: MakeGateway, service: MakeService) -> None:
    one, ill = service("one"), service("ill")
    ill.well = False
    here = gateway()
    here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, one.port))})
    here.until_answers("/ocr/")
    result = here.server("ocr", "ocr-surge-gpu-01", address="127.0.0.1", port=ill.port, wait=2)
    assert result["failed"]
    assert result["msg"].startswith("svc_ocr/ocr-surge-gpu-01 did not pass the gateway's health check in 2 s: L7STS 503")
    assert "\n" not in result["msg"]
    assert ill.seen == []
    assert (here.runtime.servers("svc_ocr") or {})["ocr-surge-gpu-01"].admin == "maint"


def test_a_drain_survives_a_restart_and_a_replica_that_moved_starts_anew(gateway: MakeGateway, service: MakeService) -> None:
    one, two = service("one"), service("two")
    here = gateway()
    here.bring([manifest_text("ocr", replicas=2)], {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, two.port))})
    here.until_answers("/ocr/")
    here.server("ocr", "ocr-1", state="drain")
    here.server("ocr", "ocr-2", state="drain")
    here.stop()
    here.start()
    servers = here.runtime.servers("svc_ocr") or {}
    assert {name: server.admin for name, server in servers.items() if "surge" not in name} == {"ocr-1": "drain", "ocr-2": "drain"}
    three = service("three")
    here.bring([manifest_text("ocr", replicas=2)], {"gpu-01": plan_of(("ocr", 1, three.port), ("ocr", 2, two.port))})
    servers = here.runtime.servers("svc_ocr") or {}
    assert (servers["ocr-1"].admin, servers["ocr-1"].port) == ("ready", three.port)
    assert (servers["ocr-2"].admin, servers["ocr-2"].port) == ("drain", two.port)
    here.until_answers("/ocr/")
    assert here.ask("/ocr/").body == b"three"


def test_files_that_haproxy_refuses_replace_nothing(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    plans = {"gpu-01": plan_of(("ocr", 1, one.port))}
    here.bring([manifest_text("ocr")], plans)
    before = {path: path.read_text() for path in [here.where / "gw.cfg", *sorted((here.where / "etc").rglob("*.*"))]}
    config, files = here.texts([manifest_text("ocr", route="{timeout: 9}")], plans)
    result = here.install(config.replace("balance leastconn", "balance nonsense"), files)
    assert result["failed"]
    assert "HAProxy refuses the new configuration" in result["msg"]
    assert "\n" not in result["msg"]
    assert before == {path: path.read_text() for path in before}
    assert here.ask("/ocr/").status == 200


def test_files_that_cannot_be_loaded_leave_the_old_ones_in_force(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    plans = {"gpu-01": plan_of(("ocr", 1, one.port))}
    here.bring([manifest_text("ocr")], plans)
    before = (here.where / "gw.cfg").read_text()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config, files = here.texts([manifest_text("ocr", route="{timeout: 9}")], plans)
        config = config.replace("frontend fleet\n", f"frontend fleet\n    bind 127.0.0.1:{taken.getsockname()[1]}\n")
        config = config.replace('description "gpuops.fleet sha256:', 'description "gpuops.fleet sha256:0')
        result = here.install(config, files)
    assert result["failed"]
    assert "did not load the new configuration in 15 s; it serves on with the one before" in result["msg"]
    assert (here.where / "gw.cfg").read_text() == before
    assert here.ask("/ocr/").status == 200
