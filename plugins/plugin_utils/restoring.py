# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Places of one plan in another one: whoever must have a place and lost it gets it back, and others make room."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Hint, Need, Placement

# Of a team, those who give back what its quota lacks for one replica, at most.
MOST = 20


def restore(draft: Draft, places: Mapping[Key, Placement]) -> None:
    """A place for each of these replicas, the highest priority first: any that is free, else the one that it has in another plan.

    Whoever is in the way there leaves, first those who have no place in the other plan. Who has one is asked in turn, and so comes back at
    the latest to its place there, beside the others at theirs. Who has none looks for another one afterwards. Nobody leaves who was there
    before. A place that cannot be had for a rule that other places decide stays lost.
    """
    back = draft.kept.keys() - draft.displaced.keys()
    waiting = [_turn(draft, key) for key in places if key not in draft.placed]
    heapq.heapify(waiting)
    while waiting:
        _priority, key = heapq.heappop(waiting)
        if draft.place(draft.need_of(key), key[1]) is None:
            back.add(key)
            for other in _made_room(draft, key, places, back):
                if other in places:
                    heapq.heappush(waiting, _turn(draft, other))


def _turn(draft: Draft, key: Key) -> tuple[int, Key]:
    return -draft.need_of(key).priority, key


def _made_room(draft: Draft, key: Key, places: Mapping[Key, Placement], back: Collection[Key]) -> list[Key]:
    """Who had to leave for a replica to have its place back; nobody where it cannot have it."""
    need, place, gone = draft.need_of(key), places[key], list[Key]()
    leaving = _who_may_leave(draft, need, place, places, back)
    mark = draft.mark()
    while draft.place_at(need, key[1], Hint(place.host, place.gpus, place.slice)) is None:
        other = next(leaving, None)
        if other is None:
            draft.back(mark)
            return []
        draft.lift(other)
        gone.append(other)
    draft.keep()
    return gone


def _who_may_leave(draft: Draft, need: Need, place: Placement, places: Mapping[Key, Placement], back: Collection[Key]) -> Iterator[Key]:
    """Those on the GPUs of a place, then others of its host, then of its team; of each, those without a place in the other plan first, then
    the lowest priorities."""

    def rank(key: Key) -> tuple[bool, int, Key]:
        return key in places, draft.need_of(key).priority, key

    host = draft.fleet.hosts[place.host]
    on_gpus = {name for state in host.usable(place.gpus) for name in state.names()}
    for names in (on_gpus, host.names() - on_gpus):
        yield from sorted((key for name in names if (key := draft.movable(name)) is not None and key not in back), key=rank)
    if draft.fleet.books.limited(need.team):
        mine = ((key, place.name) for key, place in draft.placed.items() if key not in back and draft.need_of(key).team == need.team)
        team = (key for key, name in mine if draft.movable(name) is not None)
        yield from sorted(team, key=rank)[:MOST]
