# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent judge of MIG plans: its own tables of the boards, its own rules. It shares no code with plugins/, on purpose.

Tables: NVIDIA MIG user guide and ``nvidia-smi mig -lgip`` / ``-lgipp``.
So a fault of the catalogue or of the solver is found and not repeated.
"""

from __future__ import annotations

import itertools
import typing as t
from collections import Counter
from dataclasses import dataclass

import numpy as np

if t.TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Kind:
    """A profile: compute slices, memory slices, at most so many on a board, memory slices at which it may begin."""

    compute: int
    memory: int
    most: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Board:
    """What a board has, and its kinds of slices by name."""

    compute: int
    memory: int
    kinds: Mapping[str, Kind]


def _seven(one: str, double: str, two: str, three: str, four: str, seven: str) -> Board:
    return Board(
        7,
        8,
        {
            one: Kind(1, 1, 7, (0, 1, 2, 3, 4, 5, 6)),
            f"{one}+me": Kind(1, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
            double: Kind(1, 2, 4, (0, 2, 4, 6)),
            two: Kind(2, 2, 3, (0, 2, 4)),
            three: Kind(3, 4, 2, (0, 4)),
            four: Kind(4, 4, 1, (0,)),
            seven: Kind(7, 8, 1, (0,)),
        },
    )


_QUARTERS = (0, 3, 6, 9)
BOARDS = {
    "a100-80": _seven("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "h100": _seven("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "a30": Board(
        4,
        4,
        {
            "1g.6gb": Kind(1, 1, 4, (0, 1, 2, 3)),
            "1g.6gb+me": Kind(1, 1, 1, (0, 1, 2, 3)),
            "2g.12gb": Kind(2, 2, 2, (0, 2)),
            "2g.12gb+me": Kind(2, 2, 1, (0, 2)),
            "4g.24gb": Kind(4, 4, 1, (0,)),
        },
    ),
    "rtx-pro-6000": Board(
        4,
        12,
        {
            "1g.24gb": Kind(1, 3, 4, _QUARTERS),
            "1g.24gb+me": Kind(1, 3, 1, _QUARTERS),
            "1g.24gb+gfx": Kind(1, 3, 4, _QUARTERS),
            "1g.24gb+me.all": Kind(1, 3, 1, _QUARTERS),
            "1g.24gb-me": Kind(1, 3, 4, _QUARTERS),
            "2g.48gb": Kind(2, 6, 2, (0, 6)),
            "2g.48gb+gfx": Kind(2, 6, 2, (0, 6)),
            "2g.48gb+me.all": Kind(2, 6, 1, (0, 6)),
            "2g.48gb-me": Kind(2, 6, 2, (0, 6)),
            "4g.96gb": Kind(4, 12, 1, (0,)),
            "4g.96gb+gfx": Kind(4, 12, 1, (0,)),
        },
    ),
}
# Keys of these boards in the catalogue.
CATALOGUE = {"a100-80": "a100_80gb", "h100": "h100_80gb", "a30": "a30_24gb", "rtx-pro-6000": "rtx_pro_6000_bw_96gb"}

# Shares of requests by (compute slices, doubled memory?): six mixes for boards of seven compute slices, and the same in spirit for four.
_SEVEN = ((1, False), (1, True), (2, False), (3, False), (4, False), (7, False))
_FOUR = ((1, False), (2, False), (4, False))
MIXES: dict[str, dict[int, tuple[float, ...]]] = {
    "uniform": {7: (1, 1, 1, 1, 1, 1), 4: (1, 1, 1)},
    "small": {7: (45, 20, 20, 10, 4, 1), 4: (70, 25, 5)},
    "big": {7: (5, 5, 10, 30, 25, 25), 4: (10, 30, 60)},
    "bimodal": {7: (50, 0, 5, 0, 5, 40), 4: (50, 0, 50)},
    "inference": {7: (40, 0, 35, 25, 0, 0), 4: (60, 40, 0)},
    "mid-memory": {7: (10, 40, 20, 30, 0, 0), 4: (20, 70, 10)},
}


def mix_of(board: Board, mix: str, *, variants: bool = False) -> dict[str, float]:
    """Share of each profile in a mix; ``variants``: 3 of 10 requests of a kind are for its variants (+me, +gfx, ...), equally."""
    kinds = _SEVEN if board.compute == 7 else _FOUR
    weights = dict(zip(kinds, MIXES[mix][board.compute], strict=True))
    unit = 1 if board.compute == 7 else board.memory // board.compute
    shares: dict[str, float] = {}
    for kind, weight in weights.items():
        names = [
            name for name, each in board.kinds.items() if (each.compute, each.memory > each.compute * unit and each.compute == 1) == kind
        ]
        plain, others = names[0], names[1:] if variants else []
        shares[plain] = weight * (0.7 if others else 1.0)
        shares.update({name: weight * 0.3 / len(others) for name in others})
    total = sum(shares.values())
    return {name: share / total for name, share in shares.items() if share}


def check_places(board: Board, names: Sequence[str], gpus: Sequence[int], starts: Sequence[int], limit: int | None = None) -> list[str]:
    """What is wrong with a place (GPU, start) for each service; ``limit``: GPUs that there are."""
    kinds = sorted(board.kinds)
    number = {name: one for one, name in enumerate(kinds)}
    unknown = sorted(set(names) - set(number))
    if unknown:
        return [f"there is no profile {unknown[0]}"]
    if not len(names) == len(gpus) == len(starts):
        return [f"{len(names)} services have {len(gpus)} GPUs and {len(starts)} starts"]
    if not len(names):
        return []
    kind = np.fromiter(map(number.__getitem__, names), dtype=np.int64, count=len(names))
    gpu, start = np.asarray(gpus, dtype=np.int64), np.asarray(starts, dtype=np.int64)
    if gpu.min() < 0 or start.min() < 0 or (limit is not None and gpu.max() >= limit):
        return ["a service is on no GPU that there is"]
    return _broken(board, kinds, kind, gpu, start)


def _broken(board: Board, kinds: list[str], kind: np.ndarray, gpu: np.ndarray, start: np.ndarray) -> list[str]:
    found = []
    places = np.zeros((len(kinds), max(board.memory, int(start.max())) + 1), dtype=bool)
    for one, name in enumerate(kinds):
        places[one, list(board.kinds[name].starts)] = True
    if not places[kind, start].all():
        found.append(f"{int((~places[kind, start]).sum())} slices begin where their profile may not")
    total = int(gpu.max()) + 1
    size = np.asarray([board.kinds[name].memory for name in kinds])[kind]
    compute = np.asarray([board.kinds[name].compute for name in kinds])[kind]
    if (start + size).max() > board.memory:
        found.append("a slice ends behind the board's memory")
    taken = np.zeros((total, board.memory + int(size.max()) + int(start.max())), dtype=np.int16)
    for more in range(int(size.max())):
        here = size > more
        np.add.at(taken, (gpu[here], start[here] + more), 1)
    if taken.max() > 1:
        found.append(f"slices overlap on {int((taken.max(axis=1) > 1).sum())} GPUs")
    if np.bincount(gpu, weights=compute).max() > board.compute:
        found.append("a GPU has more compute slices than its board")
    for one, name in enumerate(kinds):
        mine = np.bincount(gpu[kind == one], minlength=1)
        if mine.max() > board.kinds[name].most:
            found.append(f"a GPU has {int(mine.max())}x{name}")
    return found


def check_bound(board: Board, demand: Mapping[str, int], bound: float, prices: Mapping[str, float]) -> list[str]:
    """Is ``bound`` a lower bound of GPUs? By duality: at these prices no legal set is worth more than 1, and the demand that much."""
    found = []
    worth = sum(prices[name] * count for name, count in demand.items() if count)
    if bound > worth + 1e-6 * max(1.0, worth):
        found.append(f"the demand is worth {worth}, less than the bound {bound}")
    if min(prices.values()) < -1e-9:
        found.append("a price is negative")
    most = max(sum(prices.get(name, 0.0) for name in names) for names in layouts(board))
    if most > 1 + 1e-6:
        found.append(f"a layout is worth {most}, more than one GPU")
    return found


_LAYOUTS: dict[int, list[tuple[str, ...]]] = {}


def layouts(board: Board) -> list[tuple[str, ...]]:
    """The names in every legal set of slices, found by trying each slice at each place in turn."""
    if id(board) not in _LAYOUTS:
        _LAYOUTS[id(board)] = list({tuple(sorted(name for name, _start in one)) for one in _sets(board)})
    return _LAYOUTS[id(board)]


def _sets(board: Board) -> list[tuple[tuple[str, int], ...]]:
    """Every legal set of (profile, start)."""
    sets: list[tuple[tuple[str, int], ...]] = [()]
    for name, start in sorted(((name, start) for name, kind in board.kinds.items() for start in kind.starts), key=lambda one: one[::-1]):
        sets += [(*one, (name, start)) for one in sets if not wrong(board, (*one, (name, start)))]
    return sets


def wrong(board: Board, slices: Iterable[tuple[str, int]]) -> str | None:
    """The first rule that a set of (profile, start) on one GPU breaks."""
    slices = list(slices)
    counts = Counter(name for name, _start in slices)
    for name, start in slices:
        if name not in board.kinds or start not in board.kinds[name].starts:
            return f"{name} at {start}"
    ends = sorted((start, start + board.kinds[name].memory) for name, start in slices)
    if any(end > begin for (_start, end), (begin, _end) in itertools.pairwise(ends)):
        return "overlap"
    if sum(board.kinds[name].compute * count for name, count in counts.items()) > board.compute:
        return "compute slices"
    return "too many of one profile" if any(count > board.kinds[name].most for name, count in counts.items()) else None
