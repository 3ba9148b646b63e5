# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would give many replicas a place at once, where nothing that one of them asks for would: quotas of teams, more hosts, or both.

Who comes before others takes what is added for these, so amounts are found for all who wait, and each is told that.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import Settled
from ansible_collections.gpuops.fleet.plugins.plugin_utils.more_hosts import Example, words_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need, Placement, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Change, change_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quota_changes import SPACES, Grown, raise_words
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import COSTS, SELF, Edit, edited, listed
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import shared_out

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import Search

#: Work for it, for quotas of teams, as :data:`changes.BUDGET`.
TEAM_BUDGET: t.Final = 160_000
#: At most so many GPUs of a kind are tried.
MOST: t.Final = 1024
#: How often quotas are raised until all have a place.
TRIES: t.Final = 3
Key = tuple[str, int]


@dataclass(frozen=True)
class _Kind:
    """Those who wait for hosts of one kind. ``need``: of one of them."""

    need: Need
    board: Example
    waiting: frozenset[Key]


# Hosts that are not there, by name.
_Hosts = Mapping[str, tuple[_Kind, Host]]
_Places = Mapping[Key, Placement]


def by_quotas(search: Search, waiting: Collection[Key]) -> Iterator[tuple[Key, Change]]:
    """Of many that only a quota keeps out, what their team's would have to be for all of them together."""
    teams = _by_team(search, waiting)
    search.left = min(TEAM_BUDGET, 4 * search.budget)
    search.share = search.left // 2
    spaces = {quota.team: quota.workspace for quota in search.now.quotas}
    alone = _without_a_place(search, waiting)
    for team in sorted(teams, key=lambda name: (-len(teams[name]), name)):
        # Plans for this team do without whom another's quota keeps out, as long as the two share no workspace.
        space = spaces.get(team)
        search.aside = frozenset(one for one, other in alone.items() if other != team and (space is None or spaces.get(other) != space))
        last = min((search.scene.needs[service] for service, _number in teams[team]), key=lambda need: (need.priority, need.service))
        option = search.raised(last, False)
        if option is None or not search.affords(edited(replace(search.reduced(last, None), moves=0), option.edits)):
            continue
        places = search.after(edited(search.now, option.edits))
        if search.placed <= places:
            change = change_of(option)
            yield from ((key, change) for key in search.holding(change, teams[team] & places))
    search.aside = frozenset()


def _by_team(search: Search, keys: Iterable[Key]) -> dict[str, set[Key]]:
    teams: dict[str, set[Key]] = {}
    for key in keys:
        teams.setdefault(search.scene.needs[key[0]].team, set()).add(key)
    return teams


def _without_a_place(search: Search, waiting: Collection[Key]) -> dict[str, str]:
    """Services of which nobody has a place and all are among these, with their teams."""
    found = Counter(service for service, _number in waiting)
    whole = (service for service, count in found.items() if service not in search.at and count == search.missing[service])
    return {service: search.scene.needs[service].team for service in whole}


def by_hosts(search: Search, waiting: Collection[Key]) -> Iterator[tuple[Key, Change]]:
    """How many more hosts it takes for those whom no quota keeps out; then hosts and quotas for the others.

    A plan with a host for each of them, without quotas, says which hosts it takes: whoever waits takes what serves, whatever it was meant
    for. Only what holds in a plan with just these is told, to those who have a place in it.
    """
    rest = set(waiting)
    teams = {search.scene.needs[service].team for service in search.missing} if search.now.quotas else set()
    known: _Hosts = {}
    places: _Places = {}
    kinds = _kinds(search, waiting)
    # Nobody has to move or to give way where there is a host for each.
    still = replace(search.now, quotas=search.books.without(teams), moves=0, preemption=False)
    # What only a quota keeps from a GPU that is there needs no host.
    there = _places(search, still) if teams and kinds and search.budget else {}
    for times in (1, 4) if search.budget else ():
        known = _known_hosts(search, kinds, times)
        places = _packed(search, still, known, there)
        if all(kind.waiting <= places.keys() for kind in kinds):
            break
    all_ = _taken(known, places)
    raised, grown = _grown(search, teams, places, all_)
    pieces: list[Callable[[], t.Any]] = [partial(_on_few, search, all_)]
    if raised and search.many:
        # With quotas that are raised: that does not hang on what is found without, and a second process looks at it meanwhile.
        pieces.append(partial(_places, search, edited(_with(search, all_), raised)))
    looked = shared_out(lambda piece: pieces[piece](), range(len(pieces)))
    few, now = looked[0]
    if few:
        found = dict(_told(search, rest, now, few, [], {}))
        yield from found.items()
        rest -= found.keys()
    ahead: _Places | None = looked.get(1)
    for _try in range(TRIES if rest and (all_ or teams) else 0):
        if ahead is None:
            raised, grown = _grown(search, teams, places, all_)
            all_ = all_ if raised else _one_more_each(known, all_, rest)
            if not (raised or all_):
                return
            ahead = _places(search, edited(_with(search, all_), raised), search.many)
        now, ahead = ahead, None
        found = dict(_told(search, rest, now, all_, raised, grown))
        yield from found.items()
        rest -= found.keys()
        missing = (places.keys() - now.keys()) | (rest & now.keys())
        if not missing or not rest:
            return
        # Some got more than in the plan before, and others nothing: quotas and hosts have to hold both.
        places = {**places, **now}
        all_ = _one_more_each(known, all_, missing)


def _on_few(search: Search, hosts: _Hosts) -> tuple[_Hosts, _Places]:
    """(Those of the hosts that are taken where quotas are as they are, who has which place with just these); none, where somebody loses
    one."""
    now = _places(search, replace(_with(search, hosts), moves=0, preemption=False)) if hosts else {}
    few = _taken(hosts, now)
    return (few, _places(search, _with(search, few), search.many)) if few and search.placed <= now.keys() else ({}, {})


def _grown(search: Search, teams: Collection[str], places: _Places, hosts: _Hosts) -> tuple[list[Edit], Grown]:
    """The quotas that it takes for these places, some on hosts that are not there: as edits, and how much more they are."""
    new = [each for key, each in places.items() if key not in search.placed]
    return search.books.grown(teams, new, tuple(host for _kind, host in hosts.values()))


def _one_more_each(known: _Hosts, taken: _Hosts, missing: Iterable[Key]) -> _Hosts:
    """With one more host for each of these."""
    more = dict(taken)
    for key in sorted(missing):
        name = next((name for name, (kind, _host) in known.items() if key in kind.waiting and name not in more), None)
        more.update({} if name is None else {name: known[name]})
    return dict(sorted(more.items()))


def _told(
    search: Search, rest: Collection[Key], now: Mapping[Key, Placement], known: _Hosts, raised: list[Edit], grown: Grown
) -> Iterator[tuple[Key, Change]]:
    """The change for each of ``rest`` who has a place now, if nobody lost one."""
    served = now.keys() & set(rest) if search.placed <= now.keys() else set()
    for environment in sorted({search.scene.needs[service].environment for service, _number in served}):
        mine = {key for key in served if search.scene.needs[key[0]].environment == environment}
        # Hosts of other environments serve others, unless a quota of their team goes round.
        part: _Hosts = {name: each for name, each in known.items() if each[0].need.environment == environment}
        if len(part) < len(known):
            then = search.after(edited(_with(search, part), raised)) if part else set()
            part = part if mine | search.placed <= then else known
        added, edits = ([f"add {_words(part)}"], (*raised, _more(part))) if part else ([], (*raised,))
        kind = "hosts" if part else "quota"
        for team, keys in sorted(_by_team(search, mine).items()):
            change = Change(kind, COSTS[kind] + len(part), "; and ".join([*_raise_words(grown, team), *added]), edits)
            yield from ((key, change) for key in search.holding(change, keys))


def _known_hosts(search: Search, kinds: Iterable[_Kind], times: int) -> _Hosts:
    """So many hosts for each who waits, of the kind that would serve it, and a few: whoever waits for another kind may take some."""
    known: dict[str, tuple[_Kind, Host]] = {}
    for kind in kinds:
        count = min(times * len(kind.waiting) + TRIES, MOST // kind.need.count)
        (edit,) = search.more_hosts(kind.need, kind.board, count, len(known) + 1).edits
        known.update({host.name: (kind, host) for host in edit.value})
    return known


def _taken(known: _Hosts, places: Mapping[Key, Placement]) -> _Hosts:
    """Those of the hosts that somebody is on."""
    names = {place.host for place in places.values()}
    return {name: each for name, each in known.items() if name in names}


def _words(known: _Hosts) -> str:
    kinds = [kind for kind, _host in known.values()]
    words = [words_of(kind.need, kind.board[1], kinds.count(kind)) for kind in dict.fromkeys(kinds)]
    return listed(words)


def _more(known: _Hosts) -> Edit:
    return Edit("fleet", "", "hosts", tuple(host for _kind, host in known.values()))


def _with(search: Search, known: _Hosts) -> Problem:
    return edited(search.now, [_more(known)])


def _packed(search: Search, problem: Problem, known: _Hosts, there: _Places) -> _Places:
    """Places with these hosts, where those who wait do not wish to be spread over them: as few as it takes are looked for. ``there``: who
    has which place without any of the hosts."""
    needs = {
        need.service: replace(need, rules=replace(need.rules, spread="pack")) for need in problem.needs if need.service in search.missing
    }
    problem = replace(problem, needs=tuple(needs.get(need.service, need) for need in problem.needs))
    if there:
        waiting = tuple(place for place in problem.previous if (place.service, place.replica) not in there)
        problem = replace(problem, previous=(*waiting, *there.values()))
    return _places(search, edited(problem, [_more(known)]), settled=not there)


def _places(search: Search, problem: Problem, trial: bool = True, settled: bool = True) -> dict[Key, Placement]:
    """Who has which place once there are more hosts or quotas: whoever the plan gave one has it then, too. ``settled``: and nobody else."""
    solution = make_plan(problem, trial=trial, settled=Settled(search.placed, search.scene.fleet) if settled else None)
    return {(place.service, place.replica): place for place in solution.placements}


def _kinds(search: Search, waiting: Iterable[Key]) -> list[_Kind]:
    """By the kind of hosts that would serve them, the most wanted first. Those that need somebody beside them are left out."""
    found: dict[tuple[str, str, int, str], set[Key]] = {}
    boards: dict[tuple[str, str, int, str], tuple[Need, Example]] = {}
    for service, number in sorted(waiting):
        need = search.scene.needs[service]
        known = search.known.get(need) or search.known.get(replace(need, service=SELF))
        board = None if known is None else known.board
        if board is not None and not need.rules.together:
            kind = (need.environment, need.data_class, need.count, board[1].board)
            found.setdefault(kind, set()).add((service, number))
            boards.setdefault(kind, (need, board))
    return [_Kind(*boards[kind], frozenset(found[kind])) for kind in sorted(found, key=lambda each: (-len(found[each]), each))]


def _raise_words(grown: Grown, team: str) -> list[str]:
    """The own team's quota and those of workspaces with the amounts, of other teams how many there are."""
    others = sum(name not in (team, SPACES) for name in grown)
    more = "other " if team in grown else ""
    waiting = (
        [f"the quota of 1 {more}team that waits" if others == 1 else f"the quotas of {others} {more}teams that wait"] if others else []
    )
    return [raise_words(grown.get(team, ()), grown.get(SPACES, ()), waiting)] if grown else []
