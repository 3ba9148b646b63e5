# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs of a group change hosts, with all that is on them, until each host has its fair part of what CPU and RAM are needed.

Hosts with too much and hosts with too little are put into pairs, each pair exchanges the two GPUs that bring both nearest to the mean, and
the next round makes other pairs. What is then left to do takes few exchanges of single replicas.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.program import numpy

if t.TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

# What hosts are sorted by, in turn: CPU, RAM, both, one at the cost of the other; how far pairs move on after each turn.
AXES, STEP = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, -1.0)), 7
# Rounds; so many together should bring hosts nearer to the mean by this part; exchanges that are tried for a pair in a round.
ROUNDS, TOGETHER, WORTH_WHILE, TRIES = 120, 12, 0.02, 3
TINY = 1e-9


class Limits(t.NamedTuple):
    """``kinds`` of which a host should have no more than ``most``, each."""

    kinds: Ints
    most: Ints


def balance(slots: Ints, load: Floats, left: Floats, usable: Bools, limits: Limits) -> None:
    """Bring ``left`` of all hosts near the mean, 0. With no exchange two hosts have more together that is over a limit.

    :param slots: how many of each kind there are, shape (hosts, GPUs, kinds); changed in place, and so are the next two. :param load: what
        each GPU needs, shape (hosts, GPUs, 2). :param left: what each host has left, less the mean, shape (hosts, 2). :param usable: shape
        (hosts, GPUs), which may be exchanged.
    """
    pairs = _Pairs(slots[:, :, limits.kinds], load, left, usable, limits.most)
    apart = numpy.inf
    for number in range(ROUNDS):
        if number % TOGETHER == 0:
            before, apart = apart, float((pairs.left**2).sum())
            if apart > (1 - WORTH_WHILE) * before:
                break
        pairs.round(number)
    slots[:] = slots.reshape(-1, slots.shape[2])[pairs.which]


class _Pairs:
    """The hosts of a group while their GPUs are exchanged. ``own``: of each GPU, how many of the kinds of which hosts should have no more
    than ``most``; ``which``: the number of the GPU that is in each place now, for all else that there is of it."""

    def __init__(self, own: Ints, load: Floats, left: Floats, usable: Bools, most: Ints) -> None:
        self.own, self.load, self.left, self.usable, self.most = own, load, left, usable, most
        self.total = own.sum(axis=1)
        self.which = numpy.arange(usable.size).reshape(usable.shape)

    def round(self, number: int) -> None:
        """One exchange for each pair, where one helps."""
        order = numpy.argsort(self.left @ numpy.asarray(AXES[number % len(AXES)]), kind="stable")
        half = len(order) // 2
        poor, rich = order[:half], numpy.roll(order[::-1][:half], number // len(AXES) * STEP)
        gain = self._gains(poor, rich)
        rows = numpy.arange(half)
        for _try in range(TRIES):
            best = gain[rows].argmax(axis=1)
            worth = gain[rows, best] > TINY
            rows, best = rows[worth], best[worth]
            if not len(rows):
                return
            done = self._exchange(poor[rows], rich[rows], *numpy.divmod(best, self.usable.shape[1]))
            gain[rows[~done], best[~done]] = 0.0
            rows = rows[~done]

    def _gains(self, poor: Ints, rich: Ints) -> Floats:
        """Shape (pairs, GPUs of a host squared): what an exchange brings, as half of what the squares of what both have left lose by it."""
        gain: t.Any = 0.0
        for resource in range(2):  # one after the other: numpy is slow along an axis of two
            mine, theirs = self.load[poor, :, resource], self.load[rich, :, resource]
            more = mine[:, :, None] - theirs[:, None, :]
            apart = self.left[rich, resource] - self.left[poor, resource]
            gain = more * (apart[:, None, None] - more) + gain
        if not self.usable.all():
            gain[~(self.usable[poor][:, :, None] & self.usable[rich][:, None, :])] = 0.0
        found: Floats = gain.reshape(len(poor), self.usable.shape[1] ** 2)
        return found

    def _exchange(self, poor: Ints, rich: Ints, mine: Ints, theirs: Ints) -> Bools:
        """Exchange these GPUs of these hosts, no host twice, where no more is over a limit then. Of which was it done?"""
        more = self.own[rich, theirs] - self.own[poor, mine]
        before = self._over(self.total[poor]) + self._over(self.total[rich])
        after = self._over(self.total[poor] + more) + self._over(self.total[rich] - more)
        able: Bools = numpy.all(after <= before, axis=1)
        poor, rich, mine, theirs, more = poor[able], rich[able], mine[able], theirs[able], more[able]
        for each in (self.which, self.own, self.load):
            each[poor, mine], each[rich, theirs] = each[rich, theirs], each[poor, mine]
        change = self.load[rich, theirs] - self.load[poor, mine]
        self.left[poor] += change
        self.left[rich] -= change
        self.total[poor] += more
        self.total[rich] -= more
        return able

    def _over(self, total: Ints) -> Ints:
        over: Ints = numpy.maximum(0, total - self.most)
        return over
