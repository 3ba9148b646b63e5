# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Constant load on one address: threads that ask all the time, and an account of every answer.

Half of the threads keep their connection, the others make a new one for each request, as clients differ. Nothing is tried again: whatever
is not a 200 with the version in it has failed, and so has a kept connection that the other side ended under a request.
It runs on this machine: an emulated guest would take its own processors away from what is measured.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import typing as t
from collections import Counter
from dataclasses import dataclass, field

# A guest that boots containers meanwhile answers late; what takes longer than this is a failure all the same.
ANSWER_SECONDS = 60.0


class Answer(t.NamedTuple):
    """One request. ``began``: seconds of ``time.time()``; ``seconds`` that it took; ``problem``: "" when it was answered well."""

    began: float
    seconds: float
    kept: bool
    status: int
    version: int | None
    device: str | None
    problem: str


@dataclass
class Account:
    """Every request of a load, in the order of its end."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def failed(self) -> list[Answer]:
        """Those that were not answered well."""
        return [answer for answer in self.answers if answer.problem]

    @property
    def versions(self) -> Counter[int]:
        """How many good answers came from each version."""
        return Counter(answer.version for answer in self.answers if not answer.problem and answer.version is not None)

    @property
    def devices(self) -> set[str]:
        """The slices that answered."""
        return {answer.device for answer in self.answers if not answer.problem and answer.device}

    def first(self, version: int, since: float = 0.0) -> float | None:
        """When the first answer of a version had come, in seconds of ``time.time()``; None when there was none."""
        return min(
            (
                answer.began + answer.seconds
                for answer in self.answers
                if answer.version == version and not answer.problem and answer.began + answer.seconds >= since
            ),
            default=None,
        )

    def last(self, version: int) -> float | None:
        """When the last request was sent that a version answered."""
        return max((answer.began for answer in self.answers if answer.version == version and not answer.problem), default=None)

    def latency(self, share: float) -> float:
        """Seconds within which this share of the requests was answered."""
        spent = sorted(answer.seconds for answer in self.answers)
        return spent[min(len(spent) - 1, int(share * len(spent)))] if spent else 0.0

    def summary(self) -> dict[str, t.Any]:
        """Numbers for people and for JSON."""
        return {
            "requests": len(self.answers),
            "failed": len(self.failed),
            "on_kept_connections": sum(answer.kept for answer in self.answers),
            "versions": {str(version): count for version, count in sorted(self.versions.items())},
            "slices": len(self.devices),
            "seconds": round(self._span(), 1),
            "latency_s": {f"p{round(share * 100)}": round(self.latency(share), 3) for share in (0.5, 0.95, 0.99, 1.0)},
        }

    def _span(self) -> float:
        if not self.answers:
            return 0.0
        return max(answer.began + answer.seconds for answer in self.answers) - min(answer.began for answer in self.answers)

    def __str__(self) -> str:
        told = self.summary()
        slowest = told["latency_s"]
        by = ", ".join(f"{count} by version {version}" for version, count in told["versions"].items()) or "none answered"
        return (
            f"{told['requests']} requests in {told['seconds']:.0f} s, {told['failed']} failed ({by}; from {told['slices']} slices; "
            f"half within {slowest['p50']:.3f} s, 99 % within {slowest['p99']:.3f} s, all within {slowest['p100']:.3f} s)"
        )


class Load:
    """Asks ``GET path`` of ``host:port`` by ``threads``, each every ``pace`` seconds; started and stopped as a context."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        headers: t.Mapping[str, str],
        *,
        threads: int = 4,
        pace: float = 0.8,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.account = Account()
        self._where = host, port, path, dict(headers)
        self._pace, self._seconds = pace, seconds
        self._over = threading.Event()
        shares = [(number % 2 == 0, number / threads) for number in range(threads)]
        self._threads = [threading.Thread(target=self._ask, args=share, daemon=True) for share in shares]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, true: t.Callable[[Account], t.Any], seconds: float) -> bool:
        """Waits until something holds of the account; whether it does."""
        deadline = time.monotonic() + seconds
        while not true(Account(list(self.account.answers))):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _ask(self, kept: bool, share: float) -> None:
        """One thread. The shares keep them from asking all at the same moment."""
        host, port, _path, _headers = self._where
        connection = http.client.HTTPConnection(host, port, timeout=self._seconds)
        self._over.wait(share * self._pace)
        while not self._over.is_set():
            began, started = time.time(), time.monotonic()
            status, version, device, problem = self._one(connection)
            self.account.answers.append(Answer(began, time.monotonic() - started, kept, status, version, device, problem))
            if problem or not kept:
                connection.close()  # the next request makes a new one
            self._over.wait(max(0.0, self._pace - (time.monotonic() - started)))
        with contextlib.suppress(OSError):
            connection.close()

    def _one(self, connection: http.client.HTTPConnection) -> tuple[int, int | None, str | None, str]:
        _host, _port, path, headers = self._where
        status = 0
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
            if status != 200:
                return status, None, None, f"answered {status}: {' '.join(body.decode(errors='replace').split())[:200]}"
            said = json.loads(body)
            return status, int(said["version"]), said.get("device"), ""
        except (OSError, http.client.HTTPException) as error:
            return status, None, None, f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, TypeError) as error:
            return status, None, None, f"answered 200 without a version: {error!r}"
