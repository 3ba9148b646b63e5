# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the independent judge of plans knows of boards: it shares no code with the planner."""

from __future__ import annotations

import itertools
import re
import typing as t


class Spot(t.NamedTuple):
    """A slice that might be."""

    start: int
    profile: str


def wanted_board(board: str, need: t.Any) -> bool:
    """Is the board among those that the service wants?"""
    if [part for part in need.not_models if board.find(part.lower()) >= 0]:
        return False
    return not need.models or [part for part in need.models if board.find(part.lower()) >= 0] != []


def same_profile(name: str, asked: str) -> bool:
    """One driver's 3g.39gb is another's 3g.40gb; everything else of a name must be the same."""
    one, other = (re.fullmatch(r"(\d+g)\.(\d+)gb(.*)", each) for each in (name, asked))
    assert one is not None
    assert other is not None
    return one[1] == other[1] and one[3] == other[3] and abs(int(one[2]) - int(other[2])) <= 1


def impossible(geometry: t.Any, slices: t.Sequence[t.Any]) -> str:
    """Why these slices cannot be on one board together; '' when they can."""
    profiles = {profile.name: profile for profile in geometry.profiles}
    cells: list[int] = []
    for one in slices:
        if one.start not in profiles[one.profile].starts:
            return f"{one.profile} cannot start at {one.start}"
        cells.extend(range(one.start, one.start + profiles[one.profile].size))
    if len(cells) != len(set(cells)):
        return "slices overlap"
    if sum(profiles[one.profile].slices for one in slices) > geometry.compute_slices:
        return "more compute slices than the board has"
    for profile in geometry.profiles:
        if sum(one.profile == profile.name for one in slices) > profile.max:
            return f"too many of {profile.name}"
    return ""


def linked(one: t.Any, other: t.Any) -> bool:
    """Does either of two GPUs name the other?"""
    return other.uuid in (one.links or ()) or one.uuid in (other.links or ())


def all_linked(gpus: t.Sequence[t.Any]) -> bool:
    """Is each joined with each?"""
    return all(linked(one, other) for one, other in itertools.combinations(gpus, 2))


def not_plain(gpu: t.Any, new: t.Any) -> bool:
    """Is this slice there, and nothing that could be given away as it is?"""
    return any((each.slice.start, each.slice.profile) == (new.start, new.profile) and not each.plain for each in gpu.instances)


def decided(gpu: t.Any) -> bool:
    """Has the platform said which slices there are? Where it has said the mode alone, they are cut as on any GPU."""
    return bool(gpu.pin) and not gpu.pin.cuts
