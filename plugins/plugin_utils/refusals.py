# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPUs say to a replica that looks for a place, and what the GPUs of a host say together.

Many replicas ask for the same, and many GPUs are alike: what was said once is kept as long as the fleet does not change.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import question_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Mode, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Debit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several


class Reason(t.NamedTuple):
    """What is in the way on a host, and what that has in common with the reasons of others: '' for nothing."""

    text: str
    kind: str = ""


# The kind of all reasons that are those of a host's GPUs.
GPUS = "GPUs"


def counted(refusals: Mapping[str | None, int]) -> str:
    """What GPUs say, the most frequent first."""
    ordered = sorted((-count, text) for text, count in refusals.items() if text is not None)
    return ", ".join(f"{several(-count, 'GPU')} {text}" for count, text in ordered)


def what(need: Need) -> str:
    """The need on one GPU, in words."""
    parts = [f"profile {need.profile}"] if need.profile else []
    parts += [format_size(need.memory_mib)] if need.memory_mib else []
    parts += [f"{need.compute:g} of the compute"] if need.compute else []
    return " and ".join(parts) or "it"


def gpu_refusal(state: GpuState, need: Need) -> str | None:
    """Why this GPU cannot take one more replica; None when it can."""
    return _refusal(state, need, state.refusal(MODE_OF[need.isolation], need.sharing))


def _refusal(state: GpuState, need: Need, shut: str | None) -> str | None:
    """``shut``: why nothing new of the need's mode can be put there, whoever asks."""
    first = _first_refusal(state, need, shut)
    if first is not None:
        return first
    debit = state.debit(need)
    return _over_quota(debit) if debit is not None else _last_refusal(state, need, state.profiles(need))


def _first_refusal(state: GpuState, need: Need, shut: str | None) -> str | None:
    """What a GPU says before anybody looks at quotas."""
    if not need.wants(state.gpu.board):
        return f"of a board that is not wanted ({state.gpu.board})"
    barred = state.barred(need)
    if barred is not None:
        return f"that the compatibility gate refuses ({barred.reason})"
    if shut is not None:
        return shut
    if state.crowded(need):
        return f"with {state.replicas.get(need.service, 0)} of it already (max_per_gpu)"
    return None


def _over_quota(debit: Debit) -> str:
    return f"that its team may not have: {debit.words}"


def _last_refusal(state: GpuState, need: Need, names: tuple[str, ...]) -> str | None:
    """What a GPU says to a team that may have a place of its kind; of slices, one of these profiles."""
    if need.isolation == "shared":
        return state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing)
    if need.isolation == "exclusive":
        return f"with less than {format_size(need.memory_mib)}" if state.gpu.memory_mib < need.memory_mib else None
    if not names:
        return f"without {'' if need.profile else 'a profile for '}{what(need)}"
    if state.best_cut(names) is not None:
        return None
    return f"without a free pinned slice for {what(need)}" if state.gpu.fixed else f"without room for {what(need)}"


def _gpu_kind(state: GpuState, mode: Mode, shut: str | None) -> tuple[object, ...]:
    """Equal for GPUs that say the same to all that want one in this mode; ``shut`` as :func:`_refusal`. Of those that are cut it counts
    what could still be made, and not what is there: most are full."""
    room: tuple[object, ...] = ()
    if shut is None and mode == "mig" and state.cutter is not None:
        cutter, slices, pinned = state.cutter, (state.fixed, state.spare, state.reusable), state.gpu.fixed
        room = (pinned, *(name for name in cutter.profiles if cutter.best(*slices, (name,), pinned) is not None))
    elif shut is None and mode == "shared":
        room = (state.memory_free, state.compute_free, len(state.tenants), state.gpu.mps_clients, state.host.shared_max)
    return (state.gpu.board, state.gpu.memory_mib, id(state.cutter), shut, *room)


def acceptable(state: GpuState, need: Need) -> tuple[str, ...]:
    """The profiles that serve it on this GPU; none where it is not cut."""
    return () if state.cutter is None else state.cutter.acceptable(need.memory_mib, need.compute, need.profile)


# A kind of GPUs of whom a quota thinks the same: board, memory, and how it is cut.
_Board = tuple[str, int, int]
# What GPUs of a host say, None where they could take it, and how many of them.
_Voice = frozenset[tuple[str | None, int]]
# The same before a quota is asked; with the kind of those of whom it has to be.
_Answers = frozenset[tuple[tuple[str | None, _Board | None], int]]


@dataclass
class _Hearing:
    """What GPUs say to all that ask the same of one, whatever their team.

    ``answers``: by kind of host, or by host and whether with the names of those who have its GPUs; equal ones one object. ``boards``: one
    GPU of each kind. ``said``: what a voice is to somebody who needs so many GPUs.
    """

    answers: dict[tuple[int, bool] | int, _Answers] = field(default_factory=dict)
    equal: dict[_Answers, _Answers] = field(default_factory=dict)
    boards: dict[_Board, GpuState] = field(default_factory=dict)
    said: dict[_Voice, tuple[int, Reason]] = field(default_factory=dict)


_HEARD: WeakKeyDictionary[Fleet, dict[object, _Hearing]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Case:
    """A replica without a place, and the hosts that may have it and are up."""

    fleet: Fleet
    hosts: Sequence[HostState]
    need: Need
    name: str
    # Does it hold no place itself? Then what was said to others holds for it: the fleet changes no more.
    lasting: bool
    # What answers are with its team's quota; None where the quota leaves it some profiles only, and each GPU has to be asked.
    _voices: dict[_Answers, _Voice | None] = field(default_factory=dict)
    # What these voices are to it.
    _said: dict[_Answers, tuple[int, Reason]] = field(default_factory=dict)

    @cached_property
    def _heard(self) -> _Hearing:
        if not self.lasting:
            return _Hearing()
        own = self.need.service if self.need.rules.max_per_gpu is not None else ""
        asked = (question_of(self.fleet, self.need)[0], own)
        return _HEARD.setdefault(self.fleet, {}).setdefault(asked, _Hearing())

    @cached_property
    def alone(self) -> bool:
        """Is there a rule of its own about who is beside whom?"""
        return self.fleet.rulebook.alone(self.need)

    def _shut(self, host: HostState, told: bool) -> list[str | None]:
        """Of each GPU why nothing new of the mode can be put there."""
        mode, sharing = MODE_OF[self.need.isolation], self.need.sharing
        asked = ("shut", mode, sharing, told)
        if asked not in host.answers:
            host.answers[asked] = [state.refusal(mode, sharing, told) for state in host.gpus]
        return t.cast("list[str | None]", host.answers[asked])

    def _kind(self, host: HostState, told: bool) -> int:
        """Equal for hosts whose GPUs say the same to all that want one in this mode, unless it counts who is there already."""
        mode, sharing = MODE_OF[self.need.isolation], self.need.sharing
        asked = ("kind", mode, sharing, told)
        if asked not in host.answers:
            kinds = Counter(_gpu_kind(state, mode, shut) for state, shut in zip(host.gpus, self._shut(host, told), strict=True))
            host.answers[asked] = self.fleet.kind(("GPUs that say", frozenset(kinds.items())))
        return t.cast("int", host.answers[asked])

    def _answers(self, host: HostState, told: bool) -> _Answers:
        heard, by_host = self._heard, self.need.bars or self.need.rules.max_per_gpu is not None
        asked = (host.turn, told) if by_host else self._kind(host, told)
        answers = heard.answers.get(asked)
        if answers is None:
            counts = Counter[tuple[str | None, _Board | None]]()
            for state, shut in zip(host.gpus, self._shut(host, told), strict=True):
                first = _first_refusal(state, self.need, shut)
                if first is not None:
                    counts[first, None] += 1
                else:
                    board = (state.gpu.board, state.gpu.memory_mib, id(state.cutter))
                    heard.boards.setdefault(board, state)
                    counts[_last_refusal(state, self.need, acceptable(state, self.need)), board] += 1
            found = frozenset(counts.items())
            answers = heard.answers[asked] = heard.equal.setdefault(found, found)
        return answers

    def voice(self, host: HostState, told: bool = False) -> _Voice:
        """What the GPUs of a host say (:func:`gpu_refusal`). ``told``: with the names of those who have it."""
        found = self._voice_of(self._answers(host, told))
        if found is not None:
            return found
        refusals = (_refusal(state, self.need, shut) for state, shut in zip(host.gpus, self._shut(host, told), strict=True))
        return frozenset(Counter(refusals).items())

    def voices(self, hosts: Iterable[HostState]) -> Iterator[tuple[_Voice, int]]:
        """What hosts say, without names, and how many of them say it."""
        asked: dict[_Answers, list[HostState]] = {}
        for host in hosts:
            asked.setdefault(self._answers(host, False), []).append(host)
        for answers, alike in asked.items():
            voice = self._voice_of(answers)
            yield from [(voice, len(alike))] if voice is not None else [(self.voice(host), 1) for host in alike]

    def _voice_of(self, answers: _Answers) -> _Voice | None:
        if answers not in self._voices:
            self._voices[answers] = self._with_quota(answers)
        return self._voices[answers]

    def _with_quota(self, answers: _Answers) -> _Voice | None:
        counts = Counter[str | None]()
        for (text, board), count in answers:
            state = None if board is None else self._heard.boards[board]
            debit = None if state is None else state.debit(self.need)
            if state is not None and debit is None and state.profiles(self.need) != acceptable(state, self.need):
                return None
            counts[text if debit is None else _over_quota(debit)] += count
        return frozenset(counts.items())

    def open(self, host: HostState) -> int:
        """How many GPUs of a host could take it."""
        return self.said(host)[0]

    def said(self, host: HostState, told: bool = False) -> tuple[int, Reason]:
        """How many GPUs of a host could take it, and what is in the way where those are too few. ``told``: as :meth:`voice`."""
        answers = self._answers(host, told)
        if answers in self._said:
            return self._said[answers]
        voice, known = self.voice(host, told), self._heard.said
        if voice not in known:
            counts = dict(voice)
            open_, others = counts.get(None, 0), counted(counts)
            few = f"{several(open_, 'GPU')} free of the {self.need.count} needed" if open_ else ""
            known[voice] = open_, Reason(", ".join(filter(None, [few, others])), GPUS if others else "")
        if self._voice_of(answers) is not None:
            self._said[answers] = known[voice]
        return known[voice]

    def movable(self, owner: str) -> bool:
        """Can ``owner`` be asked to move? Nothing moves an adopted service, and another replica of the same would need the same place."""
        return owner not in self.fleet.adopted and owner.rpartition("-")[0] != self.need.service
