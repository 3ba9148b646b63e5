# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's load: every answer is counted, and whatever is not one is a failure. Over real connections to a real server."""

from __future__ import annotations

import json
import threading
import time
import typing as t
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.load import Account, Answer, Load


class Server(ThreadingHTTPServer):
    """Answers with a version; ``wrong`` is what it does instead of that, taken one by one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version, self.device = 1, "MIG-one"
        self.wrong: list[str] = []
        self.connections: set[tuple[str, int]] = set()
        self.keys: set[str | None] = set()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.connections.add(self.client_address)
        self.server.keys.add(self.headers.get("X-Api-Key"))
        wrong = self.server.wrong.pop() if self.server.wrong else ""
        if wrong == "hangs up":
            self.close_connection = True
            return
        if wrong == "hangs":
            time.sleep(2)
        body = b"<html>" if wrong == "no version" else json.dumps({"version": self.server.version, "device": self.server.device}).encode()
        self.send_response(503 if wrong == "503" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: t.Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> t.Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join(10)
    made.server_close()


def load(server: Server, **how: t.Any) -> Load:
    return Load("127.0.0.1", server.server_port, "/version", {"X-Api-Key": "ours"}, **{"threads": 4, "pace": 0.01, "seconds": 1.0, **how})


def test_every_request_is_counted_on_kept_and_on_new_connections(server: Server) -> None:
    with load(server) as asked:
        assert asked.wait_for(lambda account: len(account.answers) >= 200, 20)
    told = asked.account.summary()
    assert told["requests"] == len(asked.account.answers) >= 200
    assert (told["failed"], told["versions"], told["slices"]) == (0, {"1": told["requests"]}, 1)
    assert 0 < told["on_kept_connections"] < told["requests"]
    # Two threads kept theirs; each other request made its own.
    assert len(server.connections) == 2 + told["requests"] - told["on_kept_connections"]
    assert server.keys == {"ours"}


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        ("503", 503, "answered 503: "),
        ("hangs up", 0, "RemoteDisconnected: "),
        ("hangs", 0, "TimeoutError: timed out"),
        ("no version", 200, "answered 200 without a version: "),
    ],
)
def test_what_is_no_answer_is_a_failure_and_is_not_tried_again(server: Server, wrong: str, status: int, words: str) -> None:
    server.wrong = [wrong]
    with load(server) as asked:
        assert asked.wait_for(lambda account: account.failed and len(account.answers) >= 20, 20)
    (failed,) = asked.account.failed
    assert (failed.status, failed.version) == (status, None)
    assert failed.problem.startswith(words)
    assert asked.account.versions.total() == len(asked.account.answers) - 1, "the others went on"


def test_nobody_there_is_a_failure_each_time() -> None:
    with Load("127.0.0.1", 1, "/version", {}, threads=1, pace=0.01) as asked:
        assert asked.wait_for(lambda account: len(account.answers) >= 3, 20)
    count = len(asked.account.answers)
    assert len(asked.account.failed) == count
    assert str(asked.account).startswith(f"{count} requests in 0 s, {count} failed (none answered;")


def test_the_change_of_a_version_is_seen_where_it_happens(server: Server) -> None:
    with load(server) as asked:
        asked.wait_for(lambda account: len(account.answers) >= 20, 20)
        changed = time.time()
        server.version, server.device = 2, "MIG-two"
        assert asked.wait_for(lambda account: account.first(2), 20)
    first, last = asked.account.first(2), asked.account.last(1)
    assert first is not None
    assert last is not None
    assert changed <= first < changed + 5
    assert last <= changed + 1
    assert asked.account.devices == {"MIG-one", "MIG-two"}
    assert asked.account.first(3) is None


def test_waiting_for_what_never_comes_ends(server: Server) -> None:
    with load(server) as asked:
        assert not asked.wait_for(lambda account: account.first(2), 0.3)


def test_latencies_are_those_of_all_requests() -> None:
    account = Account([Answer(0.0, seconds / 100, True, 200, 1, None, "") for seconds in range(100)])
    assert account.summary()["latency_s"] == {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p100": 0.99}
    assert Account().summary()["latency_s"]["p99"] == 0.0
