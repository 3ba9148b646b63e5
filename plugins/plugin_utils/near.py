# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which known word somebody may have meant. Apart from ``checked``, so that the planner's rooms load without pydantic and YAML."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def near(word: str, known: Sequence[str], otherwise: str) -> str:
    """A hint: the word that may have been meant, or else ``otherwise``."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else otherwise
