# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Acts, of which the longer stories consist: told one by one, with what was not as it should be and how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator


def told(name: str, problems: Iterable[str]) -> Iterator[str]:
    """The problems of one act, printed as they are found."""
    began, found = time.monotonic(), 0
    for problem in problems:
        found += 1
        print(f"  {name}: {problem}", flush=True)
        yield problem
    print(f"act {name}: {found} problems, {time.monotonic() - began:.0f} s", flush=True)
