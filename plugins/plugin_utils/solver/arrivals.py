# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that come one at a time, each placed at once and for good, so that the fleet ends up as full as it can.

``learn`` reads what was asked for in the past and rehearses every policy on it; the one that fills most is taken. ``Admission`` places,
and compares what comes with what was expected: if they differ, it forgets the past and learns from what came. Each time what is known has
doubled it rehearses again, from the fleet as it now is. Nothing that fits anywhere is refused. Same input, same places: no clock, no
randomness but fixed seeds, all limits are counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.fragmentation import WHOLE, Request
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.pool import UNFORESEEN, Node, Place, Pool
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.ranking import FUTURES, POLICIES, Chooser
from ansible_collections.gpuops.fleet.plugins.plugin_utils.solver.rehearsal import rehearsed

HORIZON = 1.3
"""Replays ask for so much in all, as a multiple of the GPUs there are."""
LEAST_LEFT = 0.3
"""And for at least so much more than has come already."""
FIRST_REVIEW = 16
"""Requests before the first look back; then whenever what was learnt here has doubled."""
DOUBT = 0.4
"""Unforeseen requests that are expected besides while nothing has come yet, as a part of those that were learnt."""
ENOUGH_TO_BET = 128
"""Requests that have to be known for a surprise to be one."""
NEWCOMERS = 0.05
"""The part of all requests that may be of sizes never expected without that being another mix."""
LEAST_EXPECTED = 5.0
"""Of a class of requests, for the comparison of two mixes; rarer classes count as one."""
FAR_OFF = 5.0
"""Standard deviations by which a mix has to differ from the expected one, at a look back, before that is given up."""
ODDS = math.log(1_000)
"""Between looks back: how much better than the expected mix one that follows what comes has to foretell it, as odds."""

Class = tuple[object, ...]
"""Requests that are alike for the comparison of mixes."""


@dataclass(frozen=True)
class Lesson:
    """What is expected: how often each request came, and the policy that suits it; ``shares``: of GPU filled in the replays, by policy."""

    counts: Mapping[Request, float] = field(default_factory=dict)
    policy: str = FUTURES.name
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> float:
        """On how many it rests."""
        return sum(self.counts.values())


def learn(nodes: Sequence[Node], history: Iterable[Request]) -> Lesson:
    """What a history of requests lets expect on these nodes, which need not be empty later on."""
    counts = {request: float(count) for request, count in sorted(Counter(history).items())}
    return Lesson(counts, *rehearsed(Pool(nodes), counts, HORIZON)) if counts else Lesson()


class _Bet:
    """A running bet against the chances of some classes: wins by odds of a thousand come once in a thousand streams of them, however long.

    The bet follows what came so far. ``()`` is the class of all that has no chance of its own.
    """

    def __init__(self, chances: Mapping[Class, float]) -> None:
        self._chances = chances
        self._came: Counter[Class] = Counter()
        self._won = 0.0

    @property
    def won(self) -> bool:
        """Beyond doubt?"""
        return self._won > ODDS

    def see(self, sort: Class) -> None:
        """The class of the next request."""
        known = sort if sort in self._chances else ()
        chance = self._chances[known]
        self._won += math.log((self._came[known] + 2 * chance) / (self._came.total() + 2) / chance)
        self._came[known] += 1


class _Surprise:
    """Two bets against the expected mix, about classes so coarse that each is decided within a few requests; a review compares finer ones.

    One is about how many GPUs of which model. Mixes that differ in nothing else may still ask for other parts of a GPU, too many kinds of
    them for any to come often: so the other is about how many requests are of a size that was never expected.
    """

    def __init__(self, expected: Mapping[Request, float]) -> None:
        self._total = sum(expected.values())
        coarse, self._sizes = _classes(expected, _coarse), _classes(expected, _size)
        # All that was never seen before is one class, which has half a request's chance, like half a request more in each class.
        odds = {(): 0.5, **{sort: count + 0.5 for sort, count in coarse.items()}}
        every = sum(odds.values())
        self._of_gpus = _Bet({sort: count / every for sort, count in odds.items()})
        # Sizes that came once tell how many more there are that have not come yet (Good and Turing).
        new = (sum(count <= 1 for count in self._sizes.values()) + 0.5) / (self._total + 1)
        new = min(1 - NEWCOMERS, max(NEWCOMERS, new))
        self._of_sizes = _Bet({(True,): 1 - new, (): new})

    @property
    def certain(self) -> bool:
        """Has a bet been won? Never when too little is known to bet against."""
        return (self._of_gpus.won or self._of_sizes.won) and self._total >= ENOUGH_TO_BET

    def see(self, request: Request) -> None:
        """The next request."""
        self._of_gpus.see(_coarse(request))
        self._of_sizes.see((_size(request) in self._sizes,))


class Admission:
    """Requests placed on nodes as they come. ``lesson`` may be of other data, or none: what comes corrects it."""

    def __init__(self, nodes: Sequence[Node], lesson: Lesson | None = None) -> None:
        """:raises ValueError: two nodes of one name. :raises SolverError: there is no numpy here."""
        twice = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
        if twice:
            raise ValueError(f"more than one node is called {', '.join(sorted(twice))}")
        self.lesson = lesson or Lesson()
        self._pool = Pool(nodes)
        self._number = {node.name: number for number, node in enumerate(self._pool.nodes)}
        self._recent: Counter[Request] = Counter()
        self._asked, self._since, self._next = 0, 0, FIRST_REVIEW
        self._here = 0.0
        self._surprise = _Surprise(self.lesson.counts)
        self._rehearsed = self.lesson.requests if self.lesson.shares else 0.0
        self._chooser = self._new_chooser()

    @property
    def due(self) -> bool:
        """Is it time for ``review``? It takes a second or so, and is best called between two requests; without it nothing is learnt."""
        return self._since >= self._next or self._surprise.certain

    def place(self, request: Request) -> Place | None:
        """A place for it, taken; None when no node has room."""
        self._since += 1
        self._surprise.see(request)
        self._asked += request.size
        self._recent[request] += 1
        found = self._chooser.place(request)
        return None if found is None else Place(self._pool.nodes[found[0]].name, found[1])

    def release(self, request: Request, place: Place) -> None:
        """A placed request has left."""
        self._pool.give_back(request, self._number[place.node], place.gpus)

    def review(self) -> Lesson:
        """Look back at what came since the last time, and go on with what is now expected."""
        recent = {request: float(count) for request, count in sorted(self._recent.items())}
        self._recent.clear()
        counts = dict(self.lesson.counts)
        policy, shares = self.lesson.policy, self.lesson.shares
        if self._surprise.certain or differ(counts, recent):
            counts, policy, shares, self._rehearsed, self._here = {}, FUTURES.name, {}, 0.0, 0.0
        for request, count in recent.items():
            counts[request] = counts.get(request, 0.0) + count
        self._here += self._since
        known = sum(counts.values())
        if known >= max(FIRST_REVIEW, 2 * self._rehearsed):
            come = self._asked / (WHOLE * max(1, self._pool.gpus))
            policy, shares = rehearsed(self._pool, counts, max(LEAST_LEFT, HORIZON - come), self._unforeseen(), policy)
            self._rehearsed = known
        self.lesson = Lesson(counts, policy, shares)
        self._since, self._next = 0, max(FIRST_REVIEW // 2, int(self._here))
        self._surprise = _Surprise(counts)
        self._chooser = self._new_chooser()
        return self.lesson

    def _new_chooser(self) -> Chooser:
        policy = {policy.name: policy for policy in POLICIES}[self.lesson.policy]
        return Chooser(policy, self._pool, self._pool.demand(self.lesson.counts, self._unforeseen()))

    def _unforeseen(self) -> float:
        """Requests that are expected besides: a lesson is trusted as far as what came here has borne it out."""
        return UNFORESEEN + DOUBT * (FIRST_REVIEW / (FIRST_REVIEW + self._here)) ** 2


def differ(expected: Mapping[Request, float], came: Mapping[Request, float]) -> bool:
    """Is what came another mix than the expected one? By G-tests over classes, coarse and fine; nothing expected differs from anything."""
    return _far_off(expected, came, _coarse) or _far_off(expected, came, _fine)


def _far_off(expected: Mapping[Request, float], came: Mapping[Request, float], sort: Callable[[Request], Class]) -> bool:
    before, after = _classes(expected, sort), _classes(came, sort)
    total_before, total_after = sum(before.values()), sum(after.values())
    if not total_before or not total_after:
        return bool(total_after)
    cells: list[tuple[float, float]] = []
    rest = (0.0, 0.0)
    for each in sorted({*before, *after}):
        pair = (before.get(each, 0.0), after.get(each, 0.0))
        if sum(pair) * min(total_before, total_after) / (total_before + total_after) >= LEAST_EXPECTED:
            cells.append(pair)
        else:
            rest = (rest[0] + pair[0], rest[1] + pair[1])
    cells.append(rest)
    cells = [pair for pair in cells if sum(pair)]
    both = total_before + total_after
    score = sum(
        2 * count * math.log(count * both / (sum(pair) * total))
        for pair in cells
        for count, total in zip(pair, (total_before, total_after), strict=True)
        if count
    )
    freedom = max(1, len(cells) - 1)
    return score > freedom + FAR_OFF * math.sqrt(2 * freedom)


def _classes(counts: Mapping[Request, float], sort: Callable[[Request], Class]) -> dict[Class, float]:
    found: dict[Class, float] = {}
    for request, count in counts.items():
        found[sort(request)] = found.get(sort(request), 0.0) + count
    return found


def _coarse(request: Request) -> Class:
    """How many GPUs, whole or not, of which model."""
    return (request.gpus, int(request.milli < WHOLE), request.models)


def _size(request: Request) -> Class:
    """What of GPUs: how many, how much of each, of which model."""
    return (request.gpus, request.milli, request.models)


def _fine(request: Request) -> Class:
    """Besides, how much of a GPU, and CPU by powers of two; memory follows CPU in most mixes and is left out."""
    return (request.gpus, request.milli, request.models, request.cpu.bit_length())
