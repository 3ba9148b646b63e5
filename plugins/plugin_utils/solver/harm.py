# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a free place on a MIG GPU is worth under a mix of requests.

The mix has prices: the dual of packing it on the fewest GPUs says what share of a GPU a slice of each profile is worth. With them a state
of a GPU is judged by two things. Room that is *unusable*: worth that is free, less what a request of the mix could take of it without
losing other room, expected over the mix (the idea of fragmentation gradient descent, USENIX ATC'23). Room that is *lost*: what nothing can
fill while the present slices stay.

Prices jump at mixes where the layouts that pack them best change, and what stands at one time is never quite the mix. So they are means
over mixes near it.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.packed import prices_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Patterns
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.patterns import Ints
    from numpy.typing import NDArray

    Floats = NDArray["numpy.float64"]

# Measured on mixes of small, large and middling slices: losses count more than what is only in the way, and requests count by the square of
# their price, since room for the large ones is the hardest to get back.
LOST = 4.0
POWER = 2.0
# A mix near another has the share of one profile so many standard errors higher or lower. Every third of them is priced anew at a time: all
# of them each time would take as long as the decisions in between.
SPREAD = 3.0
TURNS = 3
# A mix as whole numbers: prices need no more digits than a few hundred requests have.
PARTS = 10_000


class Harm:
    """The harm of every state of a board, and the best slot for each profile in it, under the mix of requests that was last told."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        counts = patterns.counts
        # All pairs of a state and one that has only slices of one profile more, in the order of the state and the profile; how many more.
        here, there = numpy.nonzero(patterns.within)
        extra = counts[there] - counts[here]
        only = (extra > 0).sum(axis=1) == 1
        here, there, extra = here[only], there[only], extra[only]
        profile = extra.argmax(axis=1)
        order = numpy.lexsort((there, profile, here))
        self._here, self._there, self._joins, self._count = here[order], there[order], profile[order], extra.sum(axis=1)[order]
        change = (numpy.diff(self._here) != 0) | (numpy.diff(self._joins) != 0)
        self._first = numpy.flatnonzero(numpy.concatenate(([True], change)))
        # Free memory slices.
        self.free: Ints = patterns.geometry.memory_slices - counts @ patterns.sizes
        row, slot, after = patterns.steps
        self._row, self._slot, self._after = row, slot, after
        self._profile = numpy.asarray([profile for profile, _start in patterns.slots], dtype=numpy.int64)[slot]
        self._near: dict[tuple[int, float], Floats] = {}
        self._renewals = 0
        self.of_state: list[float] = []
        self.least: list[float] = []
        self.best: list[list[tuple[float, int] | None]] = []

    def renew(self, asked: Floats) -> None:
        """For the mix of ``asked``: how many requests there were for each profile; the more, the surer is the mix.

        ``of_state``: the harm of each state. ``best``: for each profile and state the least harm that the slice adds, and the slot where
        it does; None where it does not fit. ``least``: the least of these for each profile.
        """
        patterns = self.patterns
        shares = asked / asked.sum()
        prices = self._prices(shares, float(asked.sum()))
        worth = patterns.counts @ prices
        lost = 1 - numpy.where(patterns.within, worth[None, :], -1).max(axis=1)
        weights = shares * prices**POWER
        unusable = ((1 - worth)[:, None] - self._usable(prices, lost)) @ (weights / weights.sum())
        harm = unusable + LOST * lost
        added = harm[self._after] - harm[self._row]
        self.of_state = harm.tolist()
        self.best = [[None] * len(patterns.states) for _profile in patterns.profiles]
        order = numpy.lexsort((self._slot, added, self._row, self._profile))
        columns = (column[order].tolist() for column in (self._profile, self._row, self._slot, added))
        for profile, row, slot, more in zip(*columns, strict=True):
            if self.best[profile][row] is None:
                self.best[profile][row] = (more, slot)
        self.least = [min((option[0] for option in table if option is not None), default=0.0) for table in self.best]

    def _usable(self, prices: Floats, lost: Floats) -> Floats:
        """Shape (states, profiles): the most that slices of one profile beside a state are worth, less the harm of the room they lose."""
        gain = self._count * prices[self._joins] - LOST * (lost[self._there] - lost[self._here])
        usable = numpy.zeros(self.patterns.counts.shape)
        if len(gain):
            most = numpy.maximum.reduceat(gain, self._first)
            usable[self._here[self._first], self._joins[self._first]] = numpy.maximum(most, 0)
        return usable

    def _prices(self, shares: Floats, requests: float) -> Floats:
        """The mean of the prices of mixes near ``shares``, in which one profile is asked for more or less often."""
        known: dict[bytes, Floats] = {}
        error = SPREAD * numpy.sqrt(shares * (1 - shares) / requests)
        near = [(profile, sign) for profile in range(len(shares)) for sign in (1.0, -1.0)]
        for number, (profile, sign) in enumerate(near):
            if self._renewals and number % TURNS != self._renewals % TURNS:
                continue
            mix = shares.copy()
            mix[profile] = max(0.0, mix[profile] + sign * error[profile])
            need = numpy.rint(mix / mix.sum() * PARTS).astype(numpy.int64)
            if need.tobytes() not in known:
                known[need.tobytes()] = prices_of(self.patterns, need)
            self._near[profile, sign] = known[need.tobytes()]
        self._renewals += 1
        mean: Floats = numpy.mean([self._near[key] for key in near], axis=0)
        return mean
