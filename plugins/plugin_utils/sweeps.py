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

# So many objects (some 200 MiB) may have come to stay before a sweep is worth its time.
FEW_OBJECTS = 2_000_000


class _Heap:
    """``fresh``: the objects that came since the last sweep, those that have gone by themselves in the end among them."""

    fresh = 0

    def settle(self) -> None:
        """What is there by now counts as old: else all of it would be looked through as soon as the sweeps are on again.

        Python itself seldom sweeps what is old. Who asks for one plan after the other has it swept when enough has come.
        """
        self.fresh += gc.get_count()[0]
        if gc.get_freeze_count():
            return  # Somebody else keeps objects apart, which thawing would bring back.
        if self.fresh > FEW_OBJECTS:
            gc.collect()
            self.fresh = 0
        gc.freeze()
        gc.unfreeze()


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
