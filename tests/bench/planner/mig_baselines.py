# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways that others place MIG slices, for the benches: first-fit, best-fit, HAMi's placement, least fragmentation, one fixed layout.

Each chooses a GPU and a start at the arrival of a request and moves nothing. They use the judge's tables, and nothing of plugins/.
"""

from __future__ import annotations

import heapq
import typing as t

from planner.mig_checks import Board, wrong

if t.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Slices = tuple[tuple[str, int], ...]
# (rank, start, state after it)
Option = tuple[tuple[float, ...], int, int]


class Table:
    """States of one GPU of a board, made when they are first met, and what a policy does in each."""

    def __init__(self, board: Board, policy: str, weights: Mapping[str, float] | None = None) -> None:
        self.board = board
        self.rank: t.Callable[[Slices, Slices, str, int], tuple[float, ...]] = getattr(self, f"_{policy}")
        self.first_gpu = policy == "first_fit"
        # Requests that nobody makes cannot be blocked.
        self.names = sorted(name for name in board.kinds if weights is None or weights.get(name))
        self.states: list[Slices] = [()]
        self._number: dict[Slices, int] = {(): 0}
        self._options: dict[tuple[int, str], Option | None] = {}
        self._fragments: dict[Slices, float] = {}

    def number(self, slices: Slices) -> int:
        """The number of a state."""
        slices = tuple(sorted(slices))
        if slices not in self._number:
            self._number[slices] = len(self.states)
            self.states.append(slices)
        return self._number[slices]

    def option(self, state: int, name: str) -> Option | None:
        """The best way to put a slice on a GPU in this state; None when it does not fit."""
        key = (state, name)
        if key not in self._options:
            slices = self.states[state]
            ways = []
            for start in self.board.kinds[name].starts:
                after = tuple(sorted((*slices, (name, start))))
                if not wrong(self.board, after):
                    ways.append((self.rank(slices, after, name, start), start, after))
            self._options[key] = None
            if ways:
                rank, start, after = min(ways)
                self._options[key] = (rank, start, self.number(after))
        return self._options[key]

    def free(self, slices: Slices) -> int:
        """Free memory slices."""
        return self.board.memory - sum(self.board.kinds[name].memory for name, _start in slices)

    def _first_fit(self, _before: Slices, _after: Slices, _name: str, start: int) -> tuple[float, ...]:
        return (start,)

    def _best_fit(self, before: Slices, _after: Slices, _name: str, start: int) -> tuple[float, ...]:
        return (self.free(before), start)

    def _hami(self, before: Slices, _after: Slices, name: str, start: int) -> tuple[float, ...]:
        """The fullest GPU, and there a fixed preference: the start that is in the way of the fewest other placements of an empty board."""
        own = self.board.kinds[name].memory
        blocked = sum(
            kind.memory
            for kind in self.board.kinds.values()
            for other in kind.starts
            if other < start + own and start < other + kind.memory
        )
        return (self.free(before), blocked, -start)

    def _frag_greedy(self, before: Slices, after: Slices, _name: str, start: int) -> tuple[float, ...]:
        """Least growth of fragmentation; of equal ones the fullest GPU."""
        return (self._fragment(after) - self._fragment(before), self.free(before), start)

    def _fragment(self, slices: Slices) -> float:
        """Free memory slices that a profile cannot use although there are enough of them, over all profiles."""
        if slices not in self._fragments:
            free, total = self.free(slices), 0
            for name in self.names:
                kind = self.board.kinds[name]
                open_starts = [start for start in kind.starts if not wrong(self.board, (*slices, (name, start)))]
                reach: set[int] = set()
                for start in open_starts:
                    reach |= set(range(start, start + kind.memory))
                total += free - len(reach)
            self._fragments[slices] = total
        return self._fragments[slices]


class Online:
    """GPUs under one policy. ``gpus``: how many there are; None: another empty one is always there, taken when no other fits."""

    def __init__(self, table: Table, gpus: int | None) -> None:
        self.table = table
        self.state: list[int] = [0] * (gpus or 0)
        self.endless = gpus is None
        self._heaps: dict[int, list[int]] = {0: list(range(gpus or 0))}
        self._sizes: dict[int, int] = {0: gpus} if gpus else {}

    def place(self, name: str) -> tuple[int, int] | None:
        """(GPU, start), now taken; None when there is no room."""
        best: tuple[t.Any, ...] | None = None
        for state in self._sizes:
            option = self.table.option(state, name)
            if option is not None:
                gpu = self._first(state)
                key = (gpu, option[0]) if self.table.first_gpu else (option[0], gpu)
                if best is None or key < best[0]:
                    best = (key, gpu, option)
        if best is not None:
            _key, gpu, (_rank, start, after) = best
        elif self.endless:
            option = self.table.option(0, name)
            if option is None:
                return None
            gpu, (_rank, start, after) = len(self.state), option
            self.state.append(-1)
        else:
            return None
        self._change(gpu, after)
        return gpu, start

    def remove(self, gpu: int, name: str, start: int) -> None:
        """Give a slice back."""
        left = tuple(one for one in self.table.states[self.state[gpu]] if one != (name, start))
        self._change(gpu, self.table.number(left))

    def _first(self, state: int) -> int:
        heap = self._heaps[state]
        while self.state[heap[0]] != state:
            heapq.heappop(heap)
        return heap[0]

    def _change(self, gpu: int, after: int) -> None:
        before = self.state[gpu]
        if before >= 0:
            self._sizes[before] -= 1
            if not self._sizes[before]:
                del self._sizes[before]
                self._heaps[before] = []
        self.state[gpu] = after
        heapq.heappush(self._heaps.setdefault(after, []), gpu)
        self._sizes[after] = self._sizes.get(after, 0) + 1
        if self.endless and not any(self.table.option(after, name) for name in self.table.names):
            # Nothing more fits: it is not looked at again.
            self._sizes[after] = 0
            del self._sizes[after]
            self._heaps[after] = []


def static(board: Board, names: Sequence[str], policy: str) -> tuple[list[int], list[int]]:
    """(GPU, start) of each request, one after the other."""
    weights = dict.fromkeys(names, 1.0)
    fleet = Online(Table(board, policy, weights), None)
    places = [fleet.place(name) for name in names]
    if any(place is None for place in places):
        raise ValueError("a request that fits no empty GPU")
    return [place[0] for place in places if place], [place[1] for place in places if place]


# The layout that mig-parted calls all-balanced.
BALANCED = {
    "a100-80": ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"),
    "h100": ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"),
    "a30": ("1g.6gb", "1g.6gb", "2g.12gb"),
    "rtx-pro-6000": ("1g.24gb", "1g.24gb", "2g.48gb"),
}


def balanced(key: str, board: Board, demand: Mapping[str, int]) -> int:
    """GPUs when each has the all-balanced layout: a request takes the smallest slice that is enough, and a whole GPU when none is."""
    layout = sorted(BALANCED[key], key=lambda name: (board.kinds[name].compute, board.kinds[name].memory))
    whole = 0
    steps = [0] * len(layout)
    for name, count in demand.items():
        need = board.kinds[name]
        fits = [
            one for one, each in enumerate(layout) if board.kinds[each].compute >= need.compute and board.kinds[each].memory >= need.memory
        ]
        if fits:
            steps[fits[0]] += count
        else:
            whole += count
    # A slice serves what needs it or less: from the largest down, what is asked for so far must not exceed the slices so far.
    gpus = total = 0
    for one in reversed(range(len(layout))):
        total += steps[one]
        gpus = max(gpus, -(-total // (len(layout) - one)))
    return gpus + whole
