# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Version 2 of the OCR service, deliberately another one, and what it can be told to do wrong.

It answers ``{"version", "lines", ...}`` where version 1 answers ``{"text", ...}``: a client of one does not take the other's answers.
``OCR_FAULT``: ``never-healthy`` (``/health`` answers 503, everything else is served) or ``crash`` (the process ends with status 3,
``OCR_FAULT_SECONDS`` after it was healthy for the first time). It lies beside version 1 in the image and uses it.
"""

from __future__ import annotations

import os
import sys
import threading
import typing as t

if t.TYPE_CHECKING:
    from lab.ocr import service
else:  # run as a program, in the image and anywhere else, it has version 1 beside it
    import service

CRASH_STATUS = 3


class Handler(service.Handler):
    """One connection."""

    version = 2
    fault = os.environ.get("OCR_FAULT", "")
    fault_seconds = float(os.environ.get("OCR_FAULT_SECONDS", "10"))
    begun = threading.Lock()

    def _answer(self) -> service.Data:
        healthy = self.path.split("?")[0] == "/health"
        if healthy and self.fault == "never-healthy":
            raise service.Refusal(503, "version 2 was built so that it never gets healthy")
        answer = super()._answer()
        if healthy and self.fault == "crash" and self.begun.acquire(blocking=False):
            timer = threading.Timer(self.fault_seconds, crash)
            timer.daemon = True  # who is told to stop before does not wait for it
            timer.start()
        if "text" in answer:
            answer["lines"] = answer.pop("text").splitlines()
        return {**answer, "version": self.version}


def crash() -> None:
    """Ends the process in the middle of whatever it does, with last words."""
    print("ocr: version 2 was built so that it crashes after it was healthy", file=sys.stderr, flush=True)
    os._exit(CRASH_STATUS)


if __name__ == "__main__":
    sys.exit(service.main(os.environ, Handler))
