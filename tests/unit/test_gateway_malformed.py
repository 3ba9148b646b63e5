# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ten thousand malformed requests: each gets an error or a right answer, the gateway stays up, and nothing gets past the keys."""

from __future__ import annotations

import contextlib
import re
import socket
import time
import typing as t
from pathlib import Path

import pytest
from conftest import RunModule
from gateway_world import CLAIMS, FRAUD, OTHER, Gateway, Service, manifest_text, plan_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

REQUESTS = 10_000
_AT_ONCE = 10
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])")

_methods = st.sampled_from(
    [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"TRACE", b"CONNECT", b"get", b"G\x00T", b"", b"GET\t", b"PRI"]
) | st.binary(min_size=1, max_size=12)
_places = st.sampled_from(
    [
        b"/ocr/", b"/ocr", b"/ocr/a?b=c", b"//ocr/",
        b"/ocr/../ocr/", b"/ocr/%2e%2e/", b"/ocr/..%2f", b"/./ocr/", b"/ocr\\..\\x", b"*", b"/", b"",
        b"http://gw/ocr/", b"http://evil/ocr/", b"gw:80",
        b"/_fleet/", b"/_fleet/ocr/../../ocr/", b"/_fleet", b"/%6fcr/", b"/ocr%00/", b"/ocr/#x",
        b"/" + b"a" * 9000, b"/ocr/" + b"%" * 400, b"/ocr/\xff\xfe", b"/OCR/", b"/ocr;x/", b"/ocr/ HTTP/1.1\r\nX-A: b",
    ]
)  # fmt: skip
_targets = _places | st.binary(max_size=40).map(lambda more: b"/ocr/" + more) | st.binary(max_size=40)
_versions = st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"", b"HTTP/1.1 x", b"RTSP/1.0"])
_known = st.sampled_from(
    [
        b"Host: gw", b"Host: gw\r\nHost: evil", b"Host:", b"Host: gw/ocr", b"Host: [::1", b"Content-Length: 4", b"Content-Length: -1",
        b"Content-Length: 4\r\nContent-Length: 5", b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4", b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\x0bchunked", b"Connection: close, X-Gpuops-Team, Authorization",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA",
        b"Upgrade: websocket\r\nConnection: Upgrade", b"X-Gpuops-Team: claims", b"X_Gpuops_Team: claims", b"X-Gpuops-Team : claims",
        b"X-Api-Key:", b"X-Api-Key: ,", b"Authorization: Bearer", b"Authorization: Bearer ", b"Authorization: Basic Og==",
        b"X-Api-Key: " + OTHER.encode(), b"Authorization: Bearer " + FRAUD.encode(), b"Authorization: Bearer " + b"k" * 20000,
        b"X-Long: " + b"x" * 40000, b" folded: x", b"no colon", b": no name", b"X-\x00: y", b"X-A: \x00", b"Expect: 100-continue",
        b"Range: bytes=0-",
    ]
)  # fmt: skip
_headers = _known | st.binary(max_size=30)
_KEYS = (b"X-Api-Key: " + CLAIMS.encode(), b"Authorization: Bearer " + CLAIMS.encode())
_NO_KEYS = (b"X-Api-Key: " + FRAUD.encode(), b"Authorization: Bearer " + OTHER.encode(), b"X-A: b")
_bodies = st.sampled_from(
    [b"", b"abcd", b"0\r\n\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"1;\x00\r\na\r\n0\r\n\r\n"]
) | st.binary(max_size=40)
# Another request hides behind the first; without a key of its own it must never get through.
_hidden = st.sampled_from(
    [
        b"",
        b"GET /ocr/hidden HTTP/1.1\r\nHost: gw\r\nX-Gpuops-Team: claims\r\n\r\n",
        b"0\r\n\r\nGET /ocr/hidden HTTP/1.1\r\nHost: gw\r\n\r\n",
    ]
)
_ends = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])


@st.composite
def _nearly_right(draw: st.DrawFn, keys: t.Sequence[bytes]) -> bytes:
    """A request with at most one thing wrong: what is wild in all its parts never gets as far as the keys."""
    method, target, version, header = b"GET", b"/ocr/", b"HTTP/1.1", b"Accept: */*"
    wrong = draw(st.sampled_from(["nothing", "method", "target", "version", "header"]))
    if wrong == "method":
        method = draw(_methods)
    elif wrong == "target":
        target = draw(_targets)
    elif wrong == "version":
        version = draw(_versions)
    elif wrong == "header":
        header = draw(_headers)
    lines = [b" ".join([method, target, version]), b"Host: gw", header, *draw(st.sampled_from([[key] for key in keys])), b"", b""]
    return b"\r\n".join(lines) + draw(_hidden)


@st.composite
def _wild(draw: st.DrawFn, keys: t.Sequence[bytes]) -> bytes:
    end = draw(_ends)
    lines = [draw(_methods) + b" " + draw(_targets) + b" " + draw(_versions)]
    lines += draw(st.lists(_headers, max_size=5))
    lines.append(draw(st.sampled_from(keys)))
    if draw(st.booleans()):
        lines.append(b"Host: gw")
    whole = end.join([*lines, b"", b""]) + draw(_bodies) + draw(_hidden)
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.integers(0, 7)) == 0 else whole


def raw_requests(keys: t.Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """What is sent, with one of these header lines in it. One in three has at most one thing wrong; some are mere bytes."""
    return _nearly_right(keys) | _wild(keys) | _wild(keys) | st.binary(max_size=200)


def send(port: int, raw: bytes) -> bytes:
    """All that comes back."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 20)) as channel:
        told = b""
        with contextlib.suppress(OSError):  # it may close before it has read all of it
            channel.sendall(raw)
            channel.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := channel.recv(65536):
                told += data
        return told


@pytest.mark.slow
def test_malformed_requests_get_errors_and_never_past_the_keys(
    haproxy_program: str, run_module: RunModule, tmp_path: Path, record_property: t.Callable[[str, object], None]
) -> None:
    service = Service("ocr")
    here = Gateway(tmp_path, run_module, haproxy_program, more={"rate": 0})
    sent, statuses = 0, dict[str, int]()
    try:
        here.bring([manifest_text("ocr")], {"gpu-01": plan_of(("ocr", 1, service.port))})
        here.until_answers("/ocr/")
        worker = here.runtime.info("Pid")

        def send_many(count: int, keys: t.Sequence[bytes]) -> list[tuple[str, list[str]]]:
            """Send so many; what reached the service. What the gateway passed on before its caller went away can arrive late."""
            service.reached.clear()

            @settings(
                max_examples=count // _AT_ONCE,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            )
            @given(st.lists(raw_requests(keys), min_size=_AT_ONCE, max_size=_AT_ONCE))
            def ask(requests: list[bytes]) -> None:
                nonlocal sent
                for raw in requests:
                    told = send(here.port, raw)
                    sent += 1
                    found = _STATUS.match(told)
                    assert not told or found, (raw, told[:200])
                    name = found.group(1).decode() if found else "closed"
                    statuses[name] = statuses.get(name, 0) + 1

            ask()
            assert here.ask("/ocr/last").status == 200
            time.sleep(1)
            return [one for one in list(service.reached) if b"last" not in one[0]]

        # Two rounds, since nobody can tell afterwards which of two requests it was that came late.
        assert send_many(REQUESTS * 7 // 10, _NO_KEYS) == []
        reached = send_many(REQUESTS * 3 // 10, _KEYS)
        assert reached
        assert [one for one in reached if one[1] != ["claims"] or b"hidden" in one[0]] == []
        assert here.runtime.info("Pid") == worker, "the worker died and another one came"
        assert here.ask("/ocr/").status == 200
        assert here.ask("/ocr/", None).status == 401
    finally:
        here.close()
        service.close()
    record_property("requests", sent)
    assert sent >= REQUESTS
    assert {"200", "400", "401", "403", "404"} <= set(statuses), statuses
    kept = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert CLAIMS not in re.sub(r'"path":"[^"]*"', "", kept)
