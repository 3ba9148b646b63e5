# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How teams are told apart on the page: by colour, by pattern and by a short tag, so that none of them is needed alone. Pure."""

from __future__ import annotations

import hashlib
import typing as t
from collections.abc import Iterable

#: Colours and patterns that the page knows; a team has one of each.
SLOTS: t.Final = 8


def team_slots(names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Team -> (colour, pattern), each 0 to SLOTS - 1; no two of the first SLOTS * SLOTS teams have both alike.

    A team's name alone chooses its first wish, so it keeps its colour when other teams come and go; only where two teams wish the
    same one does the later name move on to the next that is free. Colours are used up before a second pattern is begun.
    """
    result: dict[str, tuple[int, int]] = {}
    for turn, name in enumerate(sorted(set(names))):
        wish = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % SLOTS
        round_ = turn // SLOTS
        taken = {colour for colour, pattern in result.values() if (pattern - colour) % SLOTS == round_ % SLOTS}
        colour = next(((wish + step) % SLOTS for step in range(SLOTS) if (wish + step) % SLOTS not in taken), wish)
        result[name] = (colour, (colour + round_) % SLOTS)
    return result


def team_tags(names: Iterable[str]) -> dict[str, str]:
    """Team -> a tag of two characters, in capitals, unique: its first letter and the first other one that no earlier team has."""
    result: dict[str, str] = {}
    for name in sorted(set(names)):
        letters = [letter for letter in name.upper() if letter.isalnum()] or ["?"]
        choices = [f"{letters[0]}{other}" for other in (*letters[1:], *"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")]
        result[name] = next((tag for tag in choices if tag not in result.values()), f"{letters[0]}{len(result)}")
    return result
