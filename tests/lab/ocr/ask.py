# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Posts a receipt to a running OCR service and says what of it the answer lacks.

``python tests/lab/ocr/ask.py http://127.0.0.1:8080 --seed 7`` prints the answer as JSON; exit status 1 with one line when something lacks.
"""

from __future__ import annotations

import argparse
import json
import sys
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the folder that holds the package lab

from lab.errors import LabError
from lab.ocr.receipt import missing, render


def ask(address: str, png: bytes, seconds: float = 300, headers: t.Mapping[str, str] | None = None) -> dict[str, t.Any]:
    """What the service at ``address``, of either version, answers to an image. LabError with its reason when it refuses, or is mute."""
    request = urllib.request.Request(f"{address}/ocr", data=png, headers={"Content-Type": "image/png", **(headers or {})}, method="POST")
    try:
        # A proxy that the environment names is not meant for the lab.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        raise LabError(f"{address} answers {error.code}: {_reason(error.read())}") from error
    except (OSError, ValueError) as error:
        raise LabError(f"{address} does not answer: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("lines"), list):
        found["text"] = "\n".join(map(str, found["lines"]))  # as version 2 has it
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise LabError(f"{address} answers with no text: {found!r:.200}")
    return found


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(body.decode(errors="replace").split())[:200]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="such as http://127.0.0.1:8080")
    parser.add_argument("--seed", type=int, default=1, help="which receipt; amounts differ from seed to seed")
    chosen = parser.parse_args()
    try:
        receipt = render(chosen.seed)
        answer = ask(chosen.address.rstrip("/"), receipt.png)
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        if lost := missing(answer["text"], receipt):
            raise LabError(f"the answer lacks {', '.join(lost)}")
    except LabError as error:
        print(f"ask: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
