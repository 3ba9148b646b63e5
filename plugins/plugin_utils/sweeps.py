# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python's sweeps for reference cycles, kept away from what makes many objects and few cycles."""

from __future__ import annotations

import gc
import typing as t
from collections.abc import Callable
from functools import wraps

P = t.ParamSpec("P")
R = t.TypeVar("R")

# So many objects (some 200 MiB) are not worth a sweep.
FEW_OBJECTS = 2_000_000


class _Heap:
    """``limit``: the objects that may be there before all of them are swept."""

    limit = FEW_OBJECTS

    def settle(self) -> None:
        """What is there by now counts as old: else all of it would be looked through as soon as the sweeps are on again.

        Python itself seldom sweeps what is old; who asks for one plan after the other has it swept whenever twice as much is there as
        after the last time.
        """
        if gc.get_freeze_count():
            return  # Somebody else keeps objects apart, which thawing would bring back.
        gc.freeze()
        there = gc.get_freeze_count()
        gc.unfreeze()
        if there > self.limit:
            gc.collect()
            self.limit = max(FEW_OBJECTS, 2 * len(gc.get_objects()))


_heap = _Heap()


def without_sweeps(decide: Callable[P, R]) -> Callable[P, R]:
    """The same function, without sweeps while it works: a plan makes few cycles, and looking for them takes a tenth of the time."""

    @wraps(decide)
    def deciding(*args: P.args, **kwargs: P.kwargs) -> R:
        swept = gc.isenabled()
        gc.disable()
        try:
            return decide(*args, **kwargs)
        finally:
            if swept:
                _heap.settle()
                gc.enable()

    return deciding
