# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What teams use by now, how far a quota has to be raised for a change to help, and what is left of one for a plan of some hosts."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.leavers import when_leases_end
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Limit, Need, Placement, Problem, Quota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Charge, counted, key_of_limit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import COSTS, LOSERS, Edit, Option
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState, unseen_charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several

# Team -> in words, which of its limits are higher by how much; those of workspaces stand under a name that no team has.
Grown = Mapping[str, tuple[str, ...]]
SPACES: t.Final = ""
# A team, and what counts against its quota.
_Count = tuple[str, Charge]
_GIB: t.Final = 1024
#: So many raises of a quota are made of what each of those who wait would count, in all ways; with more, one more for each of them.
MOST_STEPS: t.Final = 48
#: Of so many leases that end first each is waited for alone, before several are.
FEW_LEASES: t.Final = 4


class TeamBooks:
    """The quotas and the use of a problem in which everybody is where the plan has them. ``scene``: the fleet as that plan leaves it."""

    def __init__(self, problem: Problem, scene: Scene) -> None:
        self._problem = problem
        self._scene = scene
        self._quotas = {quota.team: quota for quota in problem.quotas}
        # (What is counted, on which boards) -> team -> host -> how much is used there.
        self._uses: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
        self._charges: dict[Placement, Charge] = {}
        # (Team, priority) -> at which priority what the team has lent comes back, and who could have to go then.
        self._back: dict[tuple[str, int], tuple[int, tuple[str, ...]]] = {}
        self._more: Mapping[str, HostState] = {}

    def limits(self, need: Need) -> bool:
        """Whether the service's team has a quota."""
        return any(quota.team == need.team for quota in self._problem.quotas)

    def purse(self, need: Need) -> str:
        """Equal for services that are paid for by the same quota, of a team or of a workspace; '' where no quota counts them."""
        quota = self._quotas.get(need.team)
        return "" if quota is None else f"workspace {quota.workspace}" if quota.workspace else f"team {quota.team}"

    def without(self, teams: Collection[str]) -> tuple[Quota, ...]:
        """All quotas, with no limit for these teams."""
        return tuple(replace(each, limits=(), workspace=None) if each.team in teams else each for each in self._problem.quotas)

    def raised(self, need: Need, new: Sequence[Placement]) -> Option | None:
        """The team's quota, and its workspace's, as they have to be for these new places; None when they are enough.

        Where others have borrowed what it asks for, their own quotas too: what they have is no loan then.
        """
        books = self._scene.fleet.books
        asked = (self._charge(place) for place in new if place.service == need.service)
        lent = any(debit is not None and debit.lent for debit in (books.refusal(need.team, charge) for charge in asked))
        teams = [need.team, *(self.borrowers(need) if lent else ())]
        return _option(*self._raised(teams, self._counts(new), whole=False, loans=not lent), teams)

    def steps(self, need: Need, many: int, before: Iterable[Need], most: Option | None) -> list[Option]:
        """The team's quota, and its workspace's, further by what so many more replicas count, and by what some of those count who may come
        before them: the least raise first.

        ``before``: one for each replica that may come before. ``most``: a raise that is enough, the last one then.
        """
        sums = {((need.team, charge),) * many for charge in self._scene.fleet.charges(need) if charge}
        for other in before if sums else ():
            counts = [(other.team, charge) for charge in self._scene.fleet.charges(other) if charge]
            wider = sums.union(tuple(sorted((*found, count))) for found in sums for count in counts)
            sums = wider if len(wider) <= MOST_STEPS else sums | {tuple(sorted((*max(sums, key=_rank), count))) for count in counts}
        raises = (self._raised([need.team], found, whole=False, loans=True) for found in sorted(sums, key=_rank))
        options = [option for edits, grown in raises if (option := _option(edits, grown, [need.team])) is not None]
        if most is not None:
            options = [*(option for option in options if _size(option) < _size(most)), most]
        return sorted({option.edits: option for option in options}.values(), key=_size)

    def borrowers(self, need: Need) -> list[str]:
        """Teams of the workspace of the service's team that have more than their own limits say."""
        books = self._scene.fleet.books
        keys = {team: [key_of_limit(limit) for limit in quota.limits] for team, quota in self._quotas.items()}
        return [team for team in books.teams(books.workspace(need.team)) if any(books.borrows(team, key) for key in keys[team])]

    def borrowing(self, need: Need) -> Option | None:
        """What other teams of its workspace lend, for a team that does not borrow; None where nobody lends."""
        quota = self._quotas.get(need.team)
        if quota is None or quota.borrow or quota.workspace is None:
            return None
        if not any(other.lend for team, other in self._quotas.items() if team != need.team and other.workspace == quota.workspace):
            return None
        quotas = tuple(replace(each, borrow=each.borrow or each.team == need.team) for each in self._problem.quotas)
        text = f"let {need.team} borrow what other teams of workspace {quota.workspace} lend ('borrow: true' in fleet_quotas)"
        return Option("borrow", COSTS["borrow"], text, (Edit("fleet", "", "quotas", quotas),))

    def coming_back(self, need: Need, room: bool) -> Iterator[Option]:
        """What others use of its team's quota comes back: what they have borrowed and, where a place has ``room``, what leases hold."""
        found = (self._taking_back(need), self._ending(need) if room else None)
        yield from (option for option in found if option is not None)

    def _taking_back(self, need: Need) -> Option | None:
        """The priority at which what its team has lent comes back to it: the lowest above its own of those whose teams have borrowed."""
        if (need.team, need.priority) not in self._back:
            self._back[(need.team, need.priority)] = self._lowest_above(need)
        priority, lost = self._back[(need.team, need.priority)]
        if not lost:
            return None
        text = f"raise its priority to {priority}, and what {need.team} has lent comes back{LOSERS}"
        return Option("priority", COSTS["priority"], text, (Edit("service", need.service, "priority", priority),), lost)

    def _lowest_above(self, need: Need) -> tuple[int, tuple[str, ...]]:
        """(The priority, who has no higher one); nobody where that helps nothing."""
        quota = self._quotas.get(need.team)
        teams = {*self.borrowers(need)} - {need.team} if quota is not None and quota.lend else set()
        there = {place.name: self._scene.needs[place.service].priority for place in self._problem.previous if self._team(place) in teams}
        priority = min((each for each in there.values() if each > need.priority), default=need.priority)
        return priority, tuple(sorted(name for name, each in there.items() if need.priority < priority >= each))

    def _ending(self, need: Need) -> Option | None:
        """A replica of its team, or of one that has borrowed from it, goes when its lease ends; then another one, or the first several."""
        leases, teams = self._scene.leases, {need.team, *self.borrowers(need)}
        there = (place for place in self._problem.previous if place.name in leases and place.service != need.service)
        found = [place.name for place in there if self._team(place) in teams and not self._scene.needs[place.service].adopted]
        found.sort(key=lambda name: (leases[name], self._scene.priority(name), name))
        several = [*((name,) for name in found[:FEW_LEASES]), *(found[:many] for many in range(2, min(len(found), MOST_STEPS) + 1))]
        options = [when_leases_end(self._scene, names, "", "quotas still count") for names in several]
        more = tuple({option.edits: option for option in options[1:]}.values())
        return options[0]._replace(more=more) if options else None

    def grown(self, teams: Collection[str], new: Sequence[Placement], hosts: tuple[Host, ...] = ()) -> tuple[list[Edit], Grown]:
        """The quotas of these teams, and of their workspaces, as they have to be for these new places.

        ``hosts``: that come. Memory is raised by whole GiB then: so many come to them that nobody asks for a MiB.
        """
        self._more = Fleet(Problem(hosts, ())).hosts if hosts else {}
        return self._raised(teams, self._counts(new), bool(hosts), loans=False)

    def _counts(self, new: Iterable[Placement]) -> list[_Count]:
        return [(self._team(place), self._charge(place)) for place in new]

    def _raised(self, teams: Collection[str], new: Sequence[_Count], whole: bool, loans: bool) -> tuple[list[Edit], Grown]:
        """``whole``: memory by whole GiB; ``loans``: a team that borrows has what others lend beside its own, as before."""
        edits: list[Edit] = []
        words: dict[str, tuple[str, ...]] = {}
        quotas = []
        for quota in self._problem.quotas:
            limits = (
                tuple(self._grown(limit, {quota.team}, new, whole, self._lent(quota, limit, new) if loans else 0) for limit in quota.limits)
                if quota.team in teams
                else quota.limits
            )
            quotas.append(replace(quota, limits=limits))
            if raises := _raises(f"the quota of {quota.team}", limits, quota.limits):
                words[quota.team] = raises
        spaces = {quota.workspace for quota in self._problem.quotas if quota.team in teams}
        wider = []
        for space in self._problem.workspaces:
            limits = space.limits
            if space.name in spaces:
                teams_of = self._teams_of(space.name)
                # What its teams may have each must not be more than it has.
                own = [limit for quota in quotas if quota.workspace == space.name for limit in quota.limits]
                grown = (self._grown(limit, teams_of, new, whole) for limit in limits)
                limits = tuple(replace(each, most=max(each.most, _most_of(own, each))) for each in grown)
            wider.append(replace(space, limits=limits))
            if raises := _raises(f"workspace {space.name}", limits, space.limits):
                words[SPACES] = (*words.get(SPACES, ()), *raises)
        if words:
            edits.append(Edit("fleet", "", "quotas", tuple(sorted(quotas, key=lambda each: each.team))))
        if SPACES in words:
            edits.append(Edit("fleet", "", "workspaces", tuple(sorted(wider, key=lambda each: each.name))))
        return edits, words

    def shifted(self, problem: Problem, seen: Collection[str] | None) -> Problem:
        """The quotas less what their teams have on hosts that a plan of the hosts ``seen`` (None: all) does not see.

        Whoever the plan knows of on a host that it does not see, it counts as the service asks for: that stays.
        """
        if seen is None or not problem.quotas:
            return problem
        unseen = [place for place in problem.previous if place.host not in seen]
        asked = [(self._team(place), unseen_charge(self._scene.needs[place.service])) for place in unseen]

        def less(limit: Limit, teams: set[str]) -> Limit:
            used = sum(much for uses in self._uses_of(limit, teams) for host, much in uses.items() if host not in seen)
            return replace(
                limit, most=limit.most - used + sum(counted(charge, key_of_limit(limit)) for team, charge in asked if team in teams)
            )

        quotas = tuple(replace(each, limits=tuple(less(limit, {each.team}) for limit in each.limits)) for each in problem.quotas)
        spaces = tuple(
            replace(each, limits=tuple(less(limit, self._teams_of(each.name)) for limit in each.limits)) for each in problem.workspaces
        )
        return replace(problem, quotas=quotas, workspaces=spaces)

    def _teams_of(self, space: str) -> set[str]:
        return {each.team for each in self._problem.quotas if each.workspace == space}

    def _grown(self, limit: Limit, teams: set[str], new: Sequence[_Count], whole: bool, lent: int = 0) -> Limit:
        """The limit as it has to be for these counts to come to what the teams have.

        ``whole``: of memory, in whole GiB more; ``lent``: what others lend them beside it.
        """
        used = self._used(limit, teams, new) - lent
        if whole and limit.counted == "memory":
            used += (limit.most - used) % _GIB
        return replace(limit, most=max(limit.most, used))

    def _lent(self, quota: Quota, limit: Limit, new: Sequence[_Count]) -> int:
        """How much a team may have beyond its limit once these counts come to what its workspace has: what the others lend and have not
        used, less what they have borrowed of it themselves."""
        if not quota.borrow or quota.workspace is None:
            return 0
        others = [other for other in self._quotas.values() if other.workspace == quota.workspace and other.team != quota.team]
        limits = ((other, each) for other in others for each in other.limits if key_of_limit(each) == key_of_limit(limit))
        left = ((other.lend, each.most - self._used(each, {other.team}, new)) for other, each in limits)
        return max(0, sum(much for lends, much in left if lends or much < 0))

    def _used(self, limit: Limit, teams: set[str], new: Iterable[_Count]) -> int:
        """What the teams have of what a limit counts, with these counts."""
        there = sum(sum(uses.values()) for uses in self._uses_of(limit, teams))
        return there + sum(counted(charge, key_of_limit(limit)) for team, charge in new if team in teams)

    def _uses_of(self, limit: Limit, teams: Iterable[str]) -> Iterator[Mapping[str, int]]:
        """By host, what each of the teams has there now of what a limit counts."""
        key = key_of_limit(limit)
        if key not in self._uses:
            found: dict[str, dict[str, int]] = {}
            for place in self._problem.previous:
                there = found.setdefault(self._team(place), {})
                there[place.host] = there.get(place.host, 0) + counted(self._charge(place), key)
            self._uses[key] = found
        return (self._uses[key][team] for team in teams if team in self._uses[key])

    def _team(self, place: Placement) -> str:
        need = self._scene.needs.get(place.service)
        return "" if need is None else need.team

    def _charge(self, place: Placement) -> Charge:
        """What a place counts against quotas, as the planner counts it."""
        need = self._scene.needs.get(place.service)
        if place.host in self._more and need is not None:
            return self._more[place.host].charge(need, place)
        if place not in self._charges:
            host = self._scene.fleet.hosts.get(place.host)
            self._charges[place] = () if need is None else unseen_charge(need) if host is None else host.charge(need, place)
        return self._charges[place]


def _option(edits: Sequence[Edit], grown: Grown, teams: Iterable[str]) -> Option | None:
    words = [word for team in teams for word in grown.get(team, ())]
    return Option("quota", COSTS["quota"], raise_words(words, grown.get(SPACES, ())), tuple(edits)) if grown else None


def _rank(counts: tuple[_Count, ...]) -> tuple[int, tuple[_Count, ...]]:
    """How much these counts come to, of whatever is counted; among equals any order that is always the same."""
    return sum(much for _team, charge in counts for _board, _kind, much in charge), counts


def _size(option: Option) -> int:
    """What all limits come to after a raise: more than after a smaller one."""
    return sum(limit.most for edit in option.edits for each in edit.value for limit in each.limits)


def raise_words(teams: Sequence[str], spaces: Sequence[str], others: Sequence[str] = ()) -> str:
    """``raise the quota of claims by 1 GPU and that of workspace ins by 1 GPU (fleet_quotas)``. ``others``: what is raised besides."""
    of_spaces = [f"{'that' if teams or number else 'the quota'} of {each}" for number, each in enumerate(spaces)]
    return f"raise {' and '.join([*teams, *of_spaces, *others])} (fleet_quotas)"


def _raises(whose: str, new: Sequence[Limit], old: Sequence[Limit]) -> tuple[str, ...]:
    return tuple(f"{whose} by {_more(after, before)}" for after, before in zip(new, old, strict=True) if after.most > before.most)


def _most_of(limits: Iterable[Limit], like: Limit) -> int:
    """What the same limits of teams add up to."""
    return sum(limit.most for limit in limits if (limit.counted, limit.board) == (like.counted, like.board))


def _more(new: Limit, old: Limit) -> str:
    by = new.most - old.most
    what = format_size(by) if old.counted == "memory" else several(by, {"slices": "memory slice", "gpus": "GPU"}[old.counted])
    return what + (f" on {old.board}" if old.board else "")
