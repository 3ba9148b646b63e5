# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a free place on a MIG GPU is worth under a mix of requests.

The mix has prices: the dual of packing it on the fewest GPUs says what share of a GPU a slice of each profile is worth. With them a state
of a GPU is judged by two things. Room that is *unusable*: worth that is free, less what a request of the mix could take of it, expected
over the mix (the idea of fragmentation gradient descent, USENIX ATC'23). Room that is *lost*: what nothing can fill while the present
slices stay.
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
# A mix as whole numbers: prices need no more digits than a few hundred requests have.
PARTS = 10_000


class Harm:
    """The harm of every state of a board, and the best slot for each profile in it, under the mix of requests that was last told."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        counts = patterns.counts
        # How many more slices of each profile fit beside a state, if nothing else comes.
        self.fits: Ints = numpy.where(patterns.within[:, :, None], counts[None, :, :], -1).max(axis=1) - counts
        # Free memory slices.
        self.free: Ints = patterns.geometry.memory_slices - counts @ patterns.sizes
        row, slot, after = patterns.steps
        self._row, self._slot, self._after = row, slot, after
        self._profile = numpy.asarray([profile for profile, _start in patterns.slots], dtype=numpy.int64)[slot]
        self.of_state: list[float] = []
        self.best: list[list[tuple[float, int] | None]] = []

    def renew(self, shares: Floats) -> None:
        """For the mix ``shares`` (one for each profile, together 1).

        ``of_state``: the harm of each state. ``best``: for each profile and state the least harm that the slice adds, and the slot where
        it does; None where it does not fit.
        """
        patterns = self.patterns
        prices = prices_of(patterns, numpy.rint(shares * PARTS).astype(numpy.int64))
        worth = patterns.counts @ prices
        lost = 1 - numpy.where(patterns.within, worth[None, :], -1).max(axis=1)
        weights = shares * prices**POWER
        unusable = ((1 - worth)[:, None] - self.fits * prices[None, :]) @ (weights / weights.sum())
        harm = unusable + LOST * lost
        added = harm[self._after] - harm[self._row]
        self.of_state = harm.tolist()
        self.best = [[None] * len(patterns.states) for _profile in patterns.profiles]
        order = numpy.lexsort((self._slot, added, self._row, self._profile))
        columns = (column[order].tolist() for column in (self._profile, self._row, self._slot, added))
        for profile, row, slot, more in zip(*columns, strict=True):
            if self.best[profile][row] is None:
                self.best[profile][row] = (more, slot)
