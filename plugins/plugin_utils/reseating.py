# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Better places for those whom the solver placed: back where they were, and away from other replicas of their service.

Its program counts who is served, and knows nothing of old places or of a wish to be spread. Everybody who has a place has one afterwards.
"""

from __future__ import annotations

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import Draft, Key, key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import stay
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import nearness, ranked
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement

# How often those who are together are asked, for one may take what another leaves. A third time finds little, on fleets of any size.
ROUNDS = 2
# How many hosts are asked in vain each time, services times hosts: on a full fleet of some thousand hosts that takes a while.
VAIN = 300_000


def reseat(draft: Draft) -> bool:
    """Has anybody a better place now? First fewer have left one that was right, then fewer replicas of a service are together."""
    gone = [key for key, place in draft.kept.items() if draft.placed.get(key) != place]
    better = [_returned(draft, key, draft.kept[key]) for key in sorted(gone, key=lambda key: _turn(draft, key))]
    for _round in range(ROUNDS):
        better.append(_parted(draft))
        if not better[-1]:
            break
    return any(better)


def _turn(draft: Draft, key: Key) -> tuple[int, Key]:
    return -draft.need_of(key).priority, key


def _may_go(draft: Draft, key: Key) -> bool:
    """Has it a new place, which it may leave?"""
    place = draft.placed[key]
    return draft.kept.get(key) != place and draft.movable(place.name) is not None


def _returned(draft: Draft, key: Key, place: Placement) -> bool:
    """Is it back where it was? Whoever came to these GPUs goes elsewhere, if all of them can."""
    host = draft.fleet.hosts.get(place.host)
    if host is None or (not _may_go(draft, key) if key in draft.placed else draft.need_of(key).rules.all_or_nothing):
        return False
    mark = draft.mark()
    if key in draft.placed:
        draft.lift(key)
    back = stay(draft, key, place)
    if not back:
        there = {key_of(name) for state in host.usable(place.gpus) for name in state.names()}
        came = sorted((each for each in there if each in draft.placed and _may_go(draft, each)), key=lambda each: _turn(draft, each))
        for each in came:
            draft.lift(each)
        back = bool(came) and stay(draft, key, place) and all(draft.place(draft.need_of(each), each[1]) for each in came)
    draft.keep() if back else draft.back(mark)
    return back


def _parted(draft: Draft) -> bool:
    """Does anybody who has a new place have another by now, with fewer of its service?"""
    # Of a service, how many were beside one that could not go.
    stuck: dict[str, tuple[int, int]] = {}
    moved = False
    for key in sorted(draft.placed, key=lambda key: _turn(draft, key)):
        if len(stuck) * len(draft.fleet.hosts) > VAIN:
            break
        if draft.need_of(key).rules.spread == "pack" or draft.placed[key].host not in draft.fleet.hosts:
            continue
        near = _near(draft, key)
        if near > stuck.get(key[0], (0, 0)) and _may_go(draft, key):
            if _away(draft, key, near):
                moved = True
            else:
                stuck[key[0]] = near
    return moved


def _near(draft: Draft, key: Key) -> tuple[int, int]:
    """How many of its service are beside it, on its host and on its GPU, as far as that is against the wish to be spread."""
    need, place = draft.need_of(key), draft.placed[key]
    host = draft.fleet.hosts[place.host]
    there, beside = nearness(host, need, host.by_uuid[place.gpus[0]])
    return max(0, there - 1), beside - 1


def _away(draft: Draft, key: Key, near: tuple[int, int]) -> bool:
    """Is there a place with fewer of its service? Then it has that."""
    need, mark = draft.need_of(key), draft.mark()
    draft.lift(key)
    best = next(ranked(draft.fleet, need), None)
    if best is not None and nearness(best.host, need, best.gpus[0]) < near and draft.place(need, key[1]) and _near(draft, key) < near:
        draft.keep()
        return True
    draft.back(mark)
    return False
