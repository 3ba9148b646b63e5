# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas while a plan is made: what each team has taken by now, and whether it may have more.

A team may have what its own limits say. One that borrows may also have what teams of its workspace that lend have not used, limit by
limit. All teams of a workspace together have at most what the workspace has. A team without a quota has no limit.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Counted, Limit, Quota, Workspace

# What is counted, and on boards with which word in their id.
Key = tuple[Counted, str]
# What one replica takes: (board, what, amount). Of a host that nobody sees, the board is ''.
Charge = tuple[tuple[str, Counted, int], ...]


def key_of_limit(limit: Limit) -> Key:
    """What a limit counts."""
    return limit.counted, limit.board.lower()


def counted(charge: Charge, key: Key) -> int:
    """How much of what ``key`` counts is in a charge."""
    return sum(much for board, kind, much in charge if kind == key[0] and key[1] in board)


class Debit(t.NamedTuple):
    """A limit that is in the way. ``lent``: the team has not used it up, and others borrow from it what it asks for."""

    words: str
    team: str
    key: Key
    short: int
    lent: bool = False
    workspace: str | None = None


class Books:
    """Who has what. Nothing here knows of hosts: places are charged under the replica's name."""

    def __init__(self, quotas: Iterable[Quota], workspaces: Iterable[Workspace]) -> None:
        self._quotas = {quota.team: quota for quota in quotas}
        self._limits = {team: _by_key(quota.limits) for team, quota in self._quotas.items()}
        self._spaces = {space.name: _by_key(space.limits) for space in workspaces}
        self._members: dict[str, list[str]] = {}
        for team, quota in sorted(self._quotas.items()):
            if quota.workspace is not None:
                self._members.setdefault(quota.workspace, []).append(team)
        self._used: dict[str, dict[Key, int]] = {team: dict.fromkeys(self._keys_of(team), 0) for team in self._quotas}
        self._charged: dict[str, tuple[str, Charge]] = {}
        self._names: dict[str, dict[str, Charge]] = {team: {} for team in self._quotas}
        self._changed: dict[str, list[str]] = {team: [] for team in self._quotas}
        # What was answered to each team, until something changes that counts for it: in its workspace, or where it has none, for itself.
        # Changes are only counted there, because in a workspace of hundreds of teams most are never asked between two of them.
        self._answers: dict[str, tuple[int, dict[object, t.Any]]] = {team: (0, {}) for team in self._quotas}
        self._shared = {team: (quota.workspace is None, quota.workspace or team) for team, quota in self._quotas.items()}
        self._changes = dict.fromkeys(self._shared.values(), 0)
        # Of each limit of a workspace what its teams have used, what of it is beyond their own limits, and what those that lend have left.
        self._sums: dict[tuple[str, Key], list[int]] = {}
        for space, teams in self._members.items():
            for key in sorted({key for team in teams for key in self._used[team]}):
                self._sums[(space, key)] = list(map(sum, zip(*(self._parts(team, key) for team in teams), strict=True)))
        # More than one GPU of the fleet can count, on a board with every word in it.
        self.most: Charge = ()

    def _keys_of(self, team: str) -> set[Key]:
        """Every limit that the team's use may count against: its own, its workspace's, and those of whom it shares that with."""
        space = self._quotas[team].workspace
        keys = set(self._limits[team])
        if space is not None:
            keys.update(self._spaces.get(space, {}), *(self._limits[other] for other in self._members[space]))
        return keys

    def limited(self, team: str) -> bool:
        """Is there any limit for this team?"""
        return bool(self._used.get(team))

    def workspace(self, team: str) -> str | None:
        """Of which workspace the team is."""
        return self._quotas[team].workspace if team in self._quotas else None

    def together(self, team: str, other: str) -> bool:
        """Does what one team gives back count for the other?"""
        space = self.workspace(team)
        return team == other or (space is not None and space == self.workspace(other))

    def used(self, team: str, key: Key) -> int:
        """How much of what ``key`` counts the team has."""
        return self._used.get(team, {}).get(key, 0)

    def ceilings(self) -> list[tuple[frozenset[str], Key, int]]:
        """(teams, what is counted, how much more they may have together): limits that hold whatever anybody borrows."""
        own = [
            (frozenset((team,)), key, most - self._used[team][key])
            for team, limits in sorted(self._limits.items())
            for key, most in sorted(limits.items())
            if not self._quotas[team].borrow
        ]
        shared = [
            (frozenset(self._members[space]), key, most - sum(self._used[team][key] for team in self._members[space]))
            for space, limits in sorted(self._spaces.items())
            for key, most in sorted(limits.items())
            if space in self._members
        ]
        return own + shared

    def loans(self) -> list[tuple[Key, list[tuple[str, int, bool, bool]]]]:
        """(What is counted, (team, what it has left of its own, may it borrow, does it lend)), for all of a workspace with such a limit.

        Together they may have beyond their own what others leave of theirs. Where more than that is owed already, nothing is said.
        """
        found = []
        for space, teams in sorted(self._members.items()):
            for key in sorted({key for team in teams for key in self._limits[team]}):
                several = [team for team in teams if key in self._limits[team]]
                _used, beyond, left = self._sums[(space, key)]
                if beyond <= left and any(self._quotas[team].borrow for team in several):
                    room = {team: self._limits[team][key] - self._used[team][key] for team in several}
                    found.append((key, [(team, room[team], self._quotas[team].borrow, self._quotas[team].lend) for team in several]))
        return found

    def borrows(self, team: str, key: Key) -> bool:
        """Has the team more than its own limit says?"""
        return self.used(team, key) > self._limits.get(team, {}).get(key, self.used(team, key))

    def book(self, name: str, team: str, charge: Charge) -> None:
        """A replica takes this."""
        if team in self._used:
            self._charged[name] = (team, charge)
            self._names[team][name] = charge
            self._changed[team].append(name)
            self._add(team, charge, 1)

    def book_as(self, other: Books, names: Iterable[str]) -> bool:
        """These replicas take what they have taken in other books; nothing and False, where those do not know of all teams."""
        if not self._used.keys() <= other._used.keys():
            return False
        every: dict[str, list[tuple[str, Counted, int]]] = {team: [] for team in self._used}
        for name in names:
            team, charge = taken = other._charged.get(name, ("", ()))
            if team in every:
                self._charged[name] = taken
                self._names[team][name] = charge
                self._changed[team].append(name)
                every[team] += charge
        for team, charges in every.items():
            self._add(team, tuple(charges), 1)
        return True

    def strike(self, name: str) -> tuple[str, Charge] | None:
        """A replica gives back what it took; what that was."""
        found = self._charged.pop(name, None)
        if found is not None:
            del self._names[found[0]][name]
            self._changed[found[0]].append(name)
            self._add(*found, -1)
        return found

    def charged(self, team: str) -> Mapping[str, Charge]:
        """What each replica of a team has taken, by name."""
        return self._names.get(team, {})

    def changed(self, team: str) -> Sequence[str]:
        """For whoever remembers what a team has: one after the other the replicas that took something, or gave it back."""
        return self._changed.get(team, ())

    def teams(self, space: str | None) -> Sequence[str]:
        """The teams of a workspace."""
        return () if space is None else self._members.get(space, ())

    def known(self, team: str) -> dict[object, t.Any]:
        """What was answered to a team, by question, until something changes that counts for it. Of a team with limits (:meth:`limited`)."""
        changes = self._changes[self._shared[team]]
        as_of, answers = self._answers[team]
        if as_of != changes:
            answers = {}
            self._answers[team] = changes, answers
        return answers

    def _add(self, team: str, charge: Charge, sign: int) -> None:
        space = self._quotas[team].workspace
        for key, amount in self._amounts(team, charge).items():
            before = self._parts(team, key)
            self._used[team][key] += sign * amount
            if space is not None:
                now = self._parts(team, key)
                self._sums[(space, key)] = [
                    every - old + new for every, old, new in zip(self._sums[(space, key)], before, now, strict=True)
                ]
        self._changes[self._shared[team]] += 1

    def _amounts(self, team: str, charge: Charge) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for key in self._used[team]:
            amount = counted(charge, key)
            if amount:
                found[key] = amount
        return found

    def refusal(self, team: str, charge: Charge, own: bool = False) -> Debit | None:
        """Why the team cannot have this much more; None when it can. ``own``: without borrowing."""
        if not self._used.get(team):
            return None
        answers, asked = self.known(team), (charge, own)
        if asked not in answers:
            found = (self._refused(team, key, amount, own) for key, amount in sorted(self._amounts(team, charge).items()))
            answers[asked] = next((debit for debit in found if debit is not None), None)
        answer: Debit | None = answers[asked]
        return answer

    def tight(self, team: str, count: int = 1) -> bool:
        """May a quota refuse a replica of ``count`` GPUs, whatever it gets? Asked first, because mostly it may not."""
        if not self._used.get(team):
            return False
        known = self.known(team)
        if count not in known:
            known[count] = self.refusal(team, tuple((boards, kind, count * much) for boards, kind, much in self.most)) is not None
        tight: bool = known[count]
        return tight

    def _refused(self, team: str, key: Key, amount: int, own: bool) -> Debit | None:
        quota, used = self._quotas[team], self._used[team][key]
        limit = self._limits[team].get(key)
        over = 0 if limit is None else used + amount - limit
        if limit is not None and over > 0 and (own or not quota.borrow or quota.workspace is None):
            return Debit(f"team {team} has used {_about(key, used)} of its {limit_words(key, limit)} (fleet_quotas)", team, key, over)
        if quota.workspace is None:
            return None
        debit = self._over_workspace(quota.workspace, team, key, amount)
        if (
            debit is not None
            and limit is not None
            and over <= 0
            and any(self.borrows(other, key) for other in self._members[quota.workspace])
        ):
            # What it asks for is its own: others have it beyond theirs.
            return debit._replace(lent=True)
        if debit is not None or key not in self._limits[team]:
            return debit
        missing = self._owed(quota.workspace, team, key, amount)
        if missing <= 0:
            return None
        if over > 0:
            words = f"team {team} has used {_about(key, used)} of its {limit_words(key, limit or 0)}, and nobody lends more (fleet_quotas)"
            return Debit(words, team, key, missing)
        # Only a new loan, or less to lend, can be refused: what is owed already is no reason against somebody who does neither.
        if not quota.lend or missing <= self._owed(quota.workspace, team, key, 0):
            return None
        who = ", ".join(other for other in self._members[quota.workspace] if other != team and self.borrows(other, key))
        words = f"what team {team} has left of its {limit_words(key, limit or 0)} is lent to {who} (fleet_quotas)"
        return Debit(words, team, key, missing, lent=True)

    def _over_workspace(self, space: str, team: str, key: Key, amount: int) -> Debit | None:
        most = self._spaces.get(space, {}).get(key)
        if most is None or (used := self._sums[(space, key)][0]) + amount <= most:
            return None
        words = f"workspace {space} has used {_about(key, used)} of its {limit_words(key, most)} (fleet_quotas)"
        return Debit(words, team, key, used + amount - most, workspace=space)

    def _parts(self, team: str, key: Key, more: int = 0) -> tuple[int, int, int]:
        """What a team has used once it has that much more, what of it is beyond its own limit, and what it has left to lend."""
        limit, used = self._limits[team].get(key), self._used[team][key] + more
        if limit is None:
            return used, 0, 0
        return used, max(0, used - limit), max(0, limit - used) if self._quotas[team].lend else 0

    def _owed(self, space: str, team: str, key: Key, more: int) -> int:
        """What the teams of a workspace have beyond their own limits and nobody lends, once ``team`` has ``more``; below 0: to spare."""
        _used, beyond, left = self._sums[(space, key)]
        _before, old_beyond, old_left = self._parts(team, key)
        _now, new_beyond, new_left = self._parts(team, key, more)
        return (beyond - old_beyond + new_beyond) - (left - old_left + new_left)


def _by_key(limits: Iterable[Limit]) -> dict[Key, int]:
    return {key_of_limit(limit): limit.most for limit in limits}


def amount_words(key: Key, amount: int) -> str:
    """``20 GiB``, or a bare number of what is counted."""
    return format_size(amount) if key[0] == "memory" else str(amount)


def _about(key: Key, amount: int) -> str:
    """As :func:`amount_words`, to read beside a limit: what is used is rarely whole GiB."""
    return f"{amount * 10 // 1024 / 10:g} GiB" if key[0] == "memory" and amount >= 1024 else amount_words(key, amount)


def limit_words(key: Key, amount: int) -> str:
    """``20 GiB of GPU memory``, ``7 slices on h100``."""
    s = "" if amount == 1 else "s"
    what = {"memory": "of GPU memory", "slices": f"memory slice{s}", "gpus": f"whole GPU{s}"}[key[0]]
    return f"{amount_words(key, amount)} {what}{f' on {key[1]}' if key[1] else ''}"


def slice_charge(board: str, memory_mib: int, size: int) -> Charge:
    """Of a MIG slice: its memory, and its memory slices."""
    return ((board, "memory", memory_mib), (board, "slices", size))


def share_charge(board: str, memory_mib: int) -> Charge:
    """Of a share of a GPU: the memory that was asked for."""
    return ((board, "memory", memory_mib),)


def whole_charge(gpus: Iterable[tuple[str, int]]) -> Charge:
    """Of whole GPUs, each (board, MiB): all of their memory, and each as one."""
    total: dict[str, list[int]] = {}
    for board, memory_mib in gpus:
        total.setdefault(board, []).append(memory_mib)
    each: list[tuple[str, Counted, int]] = []
    for board, sizes in sorted(total.items()):
        each += [(board, "memory", sum(sizes)), (board, "gpus", len(sizes))]
    return tuple(each)
