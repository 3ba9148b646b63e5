# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gateway with the real HAProxy: who is let in, where a request goes, and what a gateway is told."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

import pytest
from gateway_world import (
    CLAIMS,
    FRAUD,
    OTHER,
    MakeGateway,
    MakeService,
    free_port,
    manifest_text,
    plan_of,
)


def test_requests_go_by_host_name_and_by_path_to_their_service(gateway: MakeGateway, service: MakeService) -> None:
    ocr, stt, both, near = (service(name) for name in ("ocr", "stt", "both", "near"))
    here = gateway(domain="models.example.com")
    texts = [
        manifest_text("ocr"),
        manifest_text("stt", route="{path: /v1/stt}"),
        manifest_text("both", route="{host: big.example.com, path: /both}"),
        manifest_text("near", route="{path: /v1/sttx}"),
    ]
    places = [("ocr", 1, ocr.port), ("stt", 1, stt.port), ("both", 1, both.port), ("near", 1, near.port)]
    here.bring(texts, {"gpu-01": plan_of(*places)})
    here.until_answers("/x", "ocr.models.example.com")

    def asked(path: str, host: str = "any") -> tuple[int, str, str]:
        answer = here.ask(path, host=host)
        name = answer.body.decode() if answer.status == 200 else answer.error
        seen = next((one.seen[-1].path for one in (ocr, stt, both, near) if one.name == name), "")
        return answer.status, name, seen

    assert asked("/any/path?q=1", "OCR.Models.Example.com:8080") == (200, "ocr", "/any/path?q=1")
    assert asked("/v1/stt/audio?x=%2F") == (200, "stt", "/audio?x=%2F")
    assert asked("/v1/stt") == (200, "stt", "/")
    assert asked("/v1/sttx/a") == (200, "near", "/a")
    assert asked("/v1/stt2")[:2] == (404, "no_such_service")
    assert asked("/both/a", "big.example.com") == (200, "both", "/a")
    assert asked("/else", "big.example.com")[:2] == (404, "no_such_service")
    assert asked("/", "unknown.example.com")[:2] == (404, "no_such_service")
    assert stt.seen[-1].header("X-Forwarded-Prefix") == ["/v1/stt"]


def test_only_keys_of_allowed_teams_are_let_in_and_no_service_sees_a_key(gateway: MakeGateway, service: MakeService) -> None:
    ocr, free = service("ocr"), service("free")
    here = gateway()
    texts = [manifest_text("ocr"), manifest_text("both", route="{teams: [fraud]}"), manifest_text("free", route="{keys: false}")]
    here.bring(texts, {"gpu-01": plan_of(("ocr", 1, ocr.port), ("both", 1, ocr.port), ("free", 1, free.port))})
    here.until_answers("/ocr/")
    assert (here.ask("/ocr/", None).status, here.ask("/ocr/", None).error) == (401, "no_key")
    assert here.ask("/ocr/", None).headers["www-authenticate"] == "Bearer"
    assert (here.ask("/ocr/", OTHER).status, here.ask("/ocr/", OTHER).error) == (403, "key_not_allowed")
    assert here.ask("/ocr/", FRAUD).status == 403
    assert here.ask("/both/", FRAUD).status == 200
    assert here.ask("/ocr/", None, X_Api_Key=CLAIMS).status == 200
    assert here.ask("/ocr/", None, Authorization=f"Basic {CLAIMS}").status == 401
    tricks = {"X_Gpuops_Team": "fraud", "X-Gpuops-Admin": "1", "X-Forwarded-For": "6.6.6.6", "X-Request-Id": "mine"}
    ocr.seen.clear()
    assert here.ask("/ocr/a", None, **{"x-api-key": CLAIMS}, **{name: value for name, value in tricks.items() if "-" in name}).status == 200
    (seen,) = ocr.seen
    assert seen.header("X-Gpuops-Team") == ["claims"]
    assert seen.header("X-Gpuops-Admin") == seen.header("X-Api-Key") == seen.header("Authorization") == []
    assert seen.header("X-Forwarded-For") == ["127.0.0.1"]
    assert seen.header("X-Request-Id") != ["mine"]
    # A service without keys of the fleet gets its own, and never one of the fleet's.
    assert here.ask("/free/", "token-of-a-notebook").status == 200
    assert free.seen[-1].header("Authorization") == ["Bearer token-of-a-notebook"]
    assert here.ask("/free/", CLAIMS).status == 200
    assert free.seen[-1].header("Authorization") == []
    # Neither files nor log nor metrics have a key in them.
    with contextlib.closing(socket.create_connection(("127.0.0.1", here.metrics_port), 5)) as channel:
        channel.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        told = b"".join(iter(lambda: channel.recv(65536), b"")).decode()
    assert 'haproxy_backend_http_responses_total{proxy="svc_ocr",code="2xx"}' in told
    kept = "".join(path.read_text() for path in here.where.rglob("*") if path.is_file())
    assert '"service":"ocr","team":"claims","server":"ocr-1"' in kept
    for key in (CLAIMS, FRAUD, OTHER):
        assert key not in kept + told


def test_headers_with_underscores_tell_a_service_nothing_either(gateway: MakeGateway, service: MakeService) -> None:
    ocr = service("ocr")
    here = gateway()
    here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, ocr.port))})
    here.until_answers("/ocr/")
    ocr.seen.clear()
    with contextlib.closing(socket.create_connection(("127.0.0.1", here.port), 5)) as channel:
        lines = [
            "GET /ocr/ HTTP/1.1",
            "Host: gw",
            f"X-Api-Key: {CLAIMS}",
            "X_Gpuops_Team: root",
            "x-gpuops-team: root",
            f"X_Api_Key: {CLAIMS}",
        ]
        channel.sendall("\r\n".join([*lines, "Upgrade: h2c", "HTTP2-Settings: AAMAAABk", "Connection: close, Upgrade", "", ""]).encode())
        assert channel.recv(65536).startswith(b"HTTP/1.1 200")
    (seen,) = ocr.seen
    assert [value for name, value in seen.headers if "gpuops" in name.lower()] == ["claims"]
    assert CLAIMS not in str(seen.headers)
    assert seen.header("Upgrade") == seen.header("HTTP2-Settings") == []


def test_a_team_that_asks_too_often_waits_and_others_do_not(gateway: MakeGateway, service: MakeService) -> None:
    ocr = service("ocr")
    here = gateway(team_rates={"claims": 9})
    texts = [manifest_text("ocr", route="{rate: 5, teams: [fraud]}"), manifest_text("other", route="{rate: 100}")]
    here.bring(texts, {"gpu-01": plan_of(("ocr", 1, ocr.port), ("other", 1, ocr.port))})
    assert [here.ask("/ocr/").status for _number in range(7)] == [200] * 5 + [429] * 2
    refused = here.ask("/ocr/")
    assert (refused.error, refused.headers["retry-after"]) == ("rate_limit", "60")
    assert here.ask("/ocr/", FRAUD).status == 200
    # What was refused does not count: 5 of the 9 that the team has over all services were used.
    assert [here.ask("/other/").status for _number in range(6)] == [200] * 4 + [429] * 2


def test_a_service_without_a_healthy_replica_and_one_that_is_too_slow_are_told_as_such(gateway: MakeGateway, service: MakeService) -> None:
    slow = service("slow")
    slow.slow = 3.0
    here = gateway()
    texts = [manifest_text("gone"), manifest_text("slow", route="{timeout: 1}")]
    here.bring(texts, {"gpu-01": plan_of(("gone", 1, free_port()), ("slow", 1, slow.port))})
    assert (here.ask("/slow/slow").status, here.ask("/slow/slow").error) == (504, "timeout")
    assert (here.ask("/gone/").status, here.ask("/gone/").error) == (503, "no_replica")


def test_an_unhealthy_replica_gets_no_requests_and_comes_back(gateway: MakeGateway, service: MakeService) -> None:
    one, two = service("one"), service("two")
    here = gateway()
    here.bring([manifest_text("ocr", replicas=2)], {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, two.port))})

    def answering() -> set[bytes]:
        return {here.ask("/ocr/").body for _number in range(6)}

    def until(wanted: set[bytes]) -> None:
        deadline = time.monotonic() + 12
        while (found := answering()) != wanted:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    until({b"one", b"two"})
    one.well = False
    until({b"two"})
    one.well = True
    until({b"one", b"two"})


def test_a_request_that_a_dead_replica_never_got_goes_to_another(gateway: MakeGateway, service: MakeService) -> None:
    one, two = service("one"), service("two")
    here = gateway()
    here.bring([manifest_text("ocr", replicas=2)], {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, two.port))})
    here.until_answers("/ocr/")
    one.close()
    assert [here.ask("/ocr/", method="POST", body=b"x").body for _number in range(10)] == [b"two"] * 10


def test_a_service_or_a_replica_that_the_gateway_does_not_know_is_no_error_but_a_lent_address_is(
    gateway: MakeGateway, service: MakeService
) -> None:
    one = service("one")
    here = gateway()
    here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, one.port))})
    for name, server in (("other", "other-1"), ("ocr", "ocr-7")):
        for host in ({}, {"address": "127.0.0.1"}, {"address": "no-such-host.invalid"}):
            result = here.server(name, server, state="drain", wait=5, **host)
            assert (result["failed"], result["changed"], result["known"]) == (False, False, False)
    result = here.server("ocr", "ocr-surge-gpu-02", address="127.0.0.1", port=one.port)
    assert result["msg"] == (
        "the gateway has no server 'ocr-surge-gpu-02' for ocr; run playbook gateway; it gives each host with a replica one that stands by"
    )
    here.stop()
    result = here.server("ocr", "ocr-1", state="drain")
    assert result["failed"]
    assert result["msg"].endswith("start the gateway, or name its socket")


def test_a_gateway_that_was_never_brought_has_nothing_to_be_told(gateway: MakeGateway) -> None:
    result = gateway().server("ocr", "ocr-1", state="drain", wait=5)
    assert (result["failed"], result["changed"], result["known"]) == (False, False, False)
    assert result["msg"].startswith("there is no gateway on this host yet")


def test_check_mode_promises_what_a_run_does_and_a_second_run_changes_nothing(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    plans = {"gpu-01": plan_of(("ocr", 1, one.port))}
    for text in (manifest_text("ocr"), manifest_text("ocr", route="{timeout: 9}")):
        promised = here.bring([text], plans, check=True)
        done = here.bring([text], plans)
        assert promised["changed"]
        assert promised["steps"] == done["steps"]
        assert promised["diff"] == done["diff"]
        again = here.bring([text], plans)
        assert (again["changed"], again["steps"]) == (False, [])
    # Somebody was killed between writing and loading.
    config, files = here.texts([manifest_text("ocr", route="{timeout: 8}")], plans)
    for path, text in {here.where / "gw.cfg": config, **{here.where / "etc" / name: text for name, text in files.items()}}.items():
        path.write_text(text)
    assert here.install(config, files)["steps"] == ["load the new configuration"]


def test_events_come_piece_by_piece_and_websockets_go_through(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, one.port))})
    here.until_answers("/ocr/")
    head = f"Host: gw\r\nX-Api-Key: {CLAIMS}\r\n"
    with contextlib.closing(socket.create_connection(("127.0.0.1", here.port), 10)) as channel:
        channel.sendall(f"GET /ocr/events HTTP/1.1\r\n{head}\r\n".encode())
        told, first, last = b"", 0.0, 0.0
        while not told.endswith(b"0\r\n\r\n"):
            told += channel.recv(65536)
            first = first or (time.monotonic() if b"data: 0" in told else 0.0)
            last = time.monotonic()
        assert last - first > 0.5
    with contextlib.closing(socket.create_connection(("127.0.0.1", here.port), 10)) as channel:
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        channel.sendall(f"GET /ocr/ws HTTP/1.1\r\n{head}Connection: Upgrade\r\nUpgrade: websocket\r\n{key}\r\n".encode())
        told = channel.recv(65536)
        assert told.startswith(b"HTTP/1.1 101")
        channel.sendall(b"hello\n")
        while b"hello" not in told:
            told += channel.recv(65536)
        assert b"echo hello" in told


def test_with_a_certificate_http_leads_to_https_and_old_tls_is_refused(gateway: MakeGateway, service: MakeService, tmp_path: Path) -> None:
    one = service("one")
    pem = tmp_path / "gw.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=gw",
        "-keyout",
        str(pem),
        "-out",
        f"{pem}.crt",
    ]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        pytest.skip("no openssl to make a certificate with")
    pem.write_text(pem.read_text() + Path(f"{pem}.crt").read_text())
    import ssl

    secure = free_port()
    here = gateway(certificate=str(pem), https_port=secure)
    here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, one.port))})
    answer = here.ask("/ocr/a?b=1", host=f"gw:{here.port}")
    assert (answer.status, answer.headers["location"]) == (308, f"https://gw:{secure}/ocr/a?b=1")
    assert one.seen == []

    def shake(context: ssl.SSLContext) -> bytes:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", secure), 10) as raw, context.wrap_socket(raw) as channel:
            channel.sendall(f"GET /ocr/ HTTP/1.1\r\nHost: gw\r\nX-Api-Key: {CLAIMS}\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: channel.recv(65536), b""))

    told = shake(ssl.create_default_context())
    assert told.startswith(b"HTTP/1.1 200")
    assert b"strict-transport-security: max-age=31536000" in told
    assert one.seen[-1].header("X-Forwarded-Proto") == ["https"]
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.set_ciphers("AES128-SHA:@SECLEVEL=0")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake(old)


def test_pages_are_served_with_what_answers_now(gateway: MakeGateway, service: MakeService) -> None:
    one = service("one")
    here = gateway()
    texts = [manifest_text("ocr", replicas=2, more="description: 100% <b>bold</b> %[env(HOME)]\n"), manifest_text("gone")]
    here.bring(texts, {"gpu-01": plan_of(("ocr", 1, one.port), ("ocr", 2, free_port()))})
    here.until_answers("/ocr/")
    deadline = time.monotonic() + 15
    while "<strong>1</strong> of 2" not in (page := here.ask("/_fleet/ocr/", None).body.decode()):
        assert time.monotonic() < deadline, page
        time.sleep(0.2)
    assert "100% &lt;b&gt;bold&lt;/b&gt; %[env(HOME)]" in page
    assert "<td>answers</td>" in page
    assert "<td>does not answer</td>" in page
    assert f"http://gw:{here.port}/ocr/health" in page
    assert CLAIMS not in page
    index = here.ask("/_fleet/", None)
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="/_fleet/ocr/">' in index.body.decode()
    assert here.ask("/_fleet/nobody/", None).status == 404
    here.bring(texts[1:], {})
    assert here.ask("/_fleet/ocr/", None).status == 404


def test_the_most_that_one_owner_may_write_is_taken_by_haproxy_and_harms_nobody(gateway: MakeGateway, service: MakeService) -> None:
    ocr = service("ocr")
    here = gateway()
    teams = ", ".join([*(f"a{number:02d}-{'x' * 58}" for number in range(99)), "fraud"])
    long = f"description: '{'<&中' * 20000}'\nowner: '{'%' * 5000}'\n"
    long += f"rollout: {{warm_up: {{method: POST, path: /{'w' * 9000}, body: '{'b' * 9000}'}}}}\n"
    texts = [
        manifest_text("ocr", route=f"{{teams: [{teams}]}}", more=long),
        manifest_text("deep", route=f"{{host: {'a.' * 126}b, path: /{'.a' * 127}}}"),
    ]
    assert not here.bring(texts, {"gpu-01": plan_of(("ocr", 1, ocr.port))})["failed"]
    here.until_answers("/ocr/")
    assert [here.ask("/ocr/", key).status for key in (CLAIMS, FRAUD, OTHER)] == [200, 200, 403]
    page = here.ask("/_fleet/ocr/", None)
    assert page.status == 200
    assert "Key" in page.body.decode()
    assert "Call it" not in page.body.decode()
    assert "Call it" in here.ask("/_fleet/deep/", None).body.decode()


def test_a_fleet_of_many_services_is_taken_by_haproxy_and_listed_whole(gateway: MakeGateway) -> None:
    here = gateway(domain="models.example.com")
    texts = [manifest_text(f"service-{number:03}", replicas=3) for number in range(300)]
    plans = {f"gpu-{host:02}": plan_of(*[(f"service-{number:03}", host, 20000 + number) for number in range(300)]) for host in (1, 2, 3)}
    result = here.bring(texts, plans)
    assert not result["failed"], result
    listed = "".join(here.ask(path, None).body.decode() for path in ("/_fleet/", "/_fleet/2/", "/_fleet/3/"))
    assert all(f'href="/_fleet/service-{number:03}/"' in listed for number in range(300))
