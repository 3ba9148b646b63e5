# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout changes that the crash matrix interrupts: seeded, so that a number names the same change in every run."""

from __future__ import annotations

import random
import typing as t
from dataclasses import dataclass, field

from mig_oracle import POSSIBLE, Oracle, Where
from proof_host import ProofHost

# The first two GPUs may be changed; the last is never named.
NEIGHBOUR = 2
FIRST_PID = 900_000

Wish = list[tuple[str, int | None]]


@dataclass
class Change:
    """``before``: GPU -> (profile, start) -> compute instances; a GPU that is missing has MIG off. ``wish``: None is MIG off."""

    name: str
    before: dict[int, dict[Where, int]]
    wish: dict[int, Wish | None]
    busy: list[tuple[int, Where]] = field(default_factory=list)

    def __str__(self) -> str:
        now = "; ".join(f"{gpu}: {_words(slices)}" for gpu, slices in self.before.items() if gpu != NEIGHBOUR)
        wish = "; ".join(f"{gpu}: {'off' if one is None else _words(one)}" for gpu, one in self.wish.items())
        busy = _words(where for gpu, where in self.busy if gpu != NEIGHBOUR)
        return f"change {self.name} ({now}{f'; busy {busy}' if busy else ''} -> {wish})"

    def layout(self, uuids: t.Sequence[str]) -> list[dict[str, t.Any]]:
        """Option ``layout`` of the product."""
        entries = []
        for gpu, wish in self.wish.items():
            if wish is None:
                entries.append({"gpu": uuids[gpu], "mig": False})
                continue
            wanted = [{"profile": name} if start is None else {"profile": name, "start": start} for name, start in wish]
            entries.append({"gpu": uuids[gpu], "mig": True, "instances": wanted})
        return entries

    def lay_out(self, host: ProofHost) -> None:
        """Bring an untouched host to where this change begins."""
        for gpu, slices in self.before.items():
            host.lay(gpu, [(name, start, computes) for (name, start), computes in slices.items()])
        for number, (gpu, where) in enumerate(self.busy):
            host.hold(gpu, where, FIRST_PID + number)


def _words(slices: t.Iterable[tuple[str, int | None]]) -> str:
    return " ".join(name if start is None else f"{name}@{start}" for name, start in slices) or "empty"


class Changes:
    """Makes changes of one board, in ten kinds that take turns."""

    def __init__(self, oracle: Oracle, seed: str) -> None:
        self.oracle = oracle
        self.rng = random.Random(seed)
        by_size = sorted(oracle.sets, key=lambda one: (oracle.room(one), -len(one), sorted(one)))
        self.full = [one for one in by_size if oracle.room(one) == 0]

    def number(self, count: int) -> t.Iterator[Change]:
        """So many changes."""
        kinds = [
            self.drop_one,
            self.rearrange,
            self.around_busy,
            self.two_gpus,
            self.switch_on,
            self.bare_ones,
            self.switch_off,
            self.exact,
            self.on_and_rearrange,
            self.everything,
        ]
        for index in range(count):
            change = kinds[index % len(kinds)]()
            change.name = f"{index + 1} {change.name}"
            change.before[NEIGHBOUR] = self._laid(self.full[0])
            change.busy.append((NEIGHBOUR, min(self.full[0])))
            yield change

    @staticmethod
    def _laid(one: t.Iterable[Where]) -> dict[Where, int]:
        return dict.fromkeys(sorted(one, key=lambda where: where[1]), 1)

    @staticmethod
    def _free(one: t.Iterable[Where]) -> Wish:
        return [(name, None) for name, _start in sorted(one)]

    def _pick(self, least: int) -> frozenset[Where]:
        return self.rng.choice([one for one in self.oracle.sets if len(one) >= least])

    def _other(self, one: frozenset[Where], cost: int) -> frozenset[Where]:
        """A layout that ``cost`` or a few more instances lie between."""
        near = [other for other in self.oracle.sets if cost <= self._cost(one, other) <= cost + 2]
        return self.rng.choice(near)

    def _cost(self, one: frozenset[Where], other: frozenset[Where]) -> int:
        verdict = self.oracle.judge(dict.fromkeys(one, False), self._free(other))
        return verdict.cost if verdict.word == POSSIBLE else 0

    def drop_one(self) -> Change:
        """One slice less on a full GPU."""
        one = self.rng.choice([full for full in self.full if len(full) > 2])
        gone = self.rng.choice(sorted(one))
        return Change("one slice dropped", {0: self._laid(one)}, {0: [where for where in sorted(one) if where != gone]})

    def rearrange(self) -> Change:
        """Some go, some come, starts are open."""
        one = self._pick(2)
        return Change("rearranged", {0: self._laid(one)}, {0: self._free(self._other(one, 3))})

    def around_busy(self) -> Change:
        """What is in use stays, the rest changes."""
        while True:
            one = self._pick(2)
            busy = self.rng.choice(sorted(one))
            around = [other for other in self.oracle.sets if busy in other and len(other ^ one) in (3, 4)]
            if around:
                wish = self._free(self.rng.choice(around))
                if self.oracle.judge({where: where == busy for where in one}, wish).word == POSSIBLE:
                    return Change("around a busy slice", {0: self._laid(one)}, {0: wish}, [(0, busy)])

    def two_gpus(self) -> Change:
        """Two GPUs in one wish."""
        one, two = self._pick(1), self._pick(1)
        before = {0: self._laid(one), 1: self._laid(two)}
        return Change("two GPUs", before, {0: self._free(self._other(one, 2)), 1: self._free(self._other(two, 2))})

    def switch_on(self) -> Change:
        """From MIG off to some slices; another GPU keeps its own."""
        return Change("MIG switched on", {1: self._laid(self._pick(2))}, {0: self._free(self._pick(2))})

    def bare_ones(self) -> Change:
        """GPU instances without compute instance become usable, others go."""
        one = self._pick(3)
        bare = self.rng.sample(sorted(one), 2)
        before = {where: int(where not in bare) for where in self._laid(one)}
        gone = self.rng.choice(sorted(one))
        return Change("bare instances", {0: before}, {0: [where for where in sorted(one) if where != gone]})

    def switch_off(self) -> Change:
        """MIG off, with instances in the way."""
        return Change("MIG switched off", {0: self._laid(self._pick(2)), 1: self._laid(self._pick(1))}, {0: None})

    def exact(self) -> Change:
        """Every start is given."""
        one = self._pick(2)
        other = self.rng.choice([other for other in self.oracle.sets if 2 <= len(one ^ other) <= 5])
        return Change("exact starts", {0: self._laid(one)}, {0: sorted(other)})

    def on_and_rearrange(self) -> Change:
        """One GPU is switched on, another is rearranged around a busy slice."""
        change = self.around_busy()
        return Change(
            "on and rearranged", {1: change.before[0]}, {0: self._free(self._pick(1)), 1: change.wish[0]}, [(1, change.busy[0][1])]
        )

    def everything(self) -> Change:
        """The whole GPU: the many go, one large comes, or the other way round."""
        small = max(self.oracle.sets, key=lambda one: (len(one), sorted(one)))
        large = next(one for one in self.full if len(one) == 1)
        one, other = (small, large) if self.rng.random() < 0.5 else (large, small)
        return Change("all replaced", {0: self._laid(one)}, {0: self._free(other)})
