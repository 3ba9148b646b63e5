# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a service from one GPU, whatever its host says: the board, its mode, whoever is on it, and what the service asks for."""

from __future__ import annotations

import math
import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.draft import key_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_amounts import more_compute, more_sharers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.leavers import going_of, stops, toll, when_leases_end
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cutter, named_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, MOST_SHARED_COMPUTE, MOST_SHARERS, Need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import (
    ABOVE_ALL,
    LEAST_PART,
    LOSERS,
    Blocker,
    Edit,
    Option,
    and_words,
    eased,
    option_of,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene


class Lasting(t.NamedTuple):
    """What is in the way whoever is on a GPU: policy; and if it is too small, that. All else is asked of the ``need`` that would fit."""

    need: Need
    policy: tuple[Blocker, ...]
    size: Blocker | None


#: By kind of GPU of one host; None where nothing could be done about its size.
Sizes = dict[object, Lasting | None]


class Look:
    """One GPU, seen by one need."""

    def __init__(self, scene: Scene, need: Need, state: GpuState) -> None:
        self.scene, self.need, self.state = scene, need, state
        self.gpu, self.host = state.gpu, state.host
        self.mode = MODE_OF[need.isolation]
        self.where = f"{self.host.name} {self.gpu.short}"

    def blockers(self, sizes: Sizes) -> tuple[Blocker, ...] | None:
        """All that is in the way; None when nothing could make this GPU right. ``sizes``: of the same need and the GPUs of one host."""
        if self._is_unseen():
            return tuple(self._closed())
        # What is pinned has words of its own.
        kind = (self.gpu.board, self.gpu.memory_mib, id(self.state.cutter), self.gpu.uuid if self.gpu.pin is not None else "")
        if kind not in sizes:
            sizes[kind] = self._lasting()
        lasting = sizes[kind]
        if lasting is None:
            return None
        self.need, self.mode = lasting.need, MODE_OF[lasting.need.isolation]
        found = [*lasting.policy, *self._closed(), *([] if lasting.size is None else [lasting.size])]
        per_gpu = self.need.rules.max_per_gpu
        if per_gpu is not None and self.state.replicas.get(self.need.service, 0) >= per_gpu:
            found.append(Blocker("spread", tuple(self.scene.spread_wider(self.need, "max_per_gpu", per_gpu))))
        used = self._used()
        if used is not None:
            if not used.options:
                return None
            found.append(used)
        return tuple(found)

    def _is_shut(self) -> bool:
        """Is there nothing that would have the compatibility gate open here?"""
        barred = self.state.barred(self.need)
        return barred is not None and not all(deed.here for deed in barred.missing)

    def _lasting(self) -> Lasting | None:
        size = self._size()
        if self._is_shut():
            return None
        if size is not None:
            if not size.options:
                return None
            self.need = eased(self.need, size.best.edits)
            self.mode = MODE_OF[self.need.isolation]
        return Lasting(self.need, (*self._board(), *self._policy()), size)

    def _is_unseen(self) -> bool:
        """Does nobody see what it has, because a guest has it or it is lost?"""
        return self.gpu.blocked is not None and (not self.gpu.memory_mib or (self.mode == "mig" and self.gpu.geometry is None))

    def _board(self) -> Iterator[Blocker]:
        need, board = self.need, self.gpu.board
        if not need.wants(board):
            edits = []
            if need.models and not any(part.lower() in board for part in need.models):
                edits.append(Edit("service", need.service, "models", tuple(sorted((*need.models, board)))))
            against = tuple(part for part in need.not_models if part.lower() not in board)
            if against != need.not_models:
                edits.append(Edit("service", need.service, "not_models", against))
            yield Blocker("model", (option_of("models", f"let it run on {board} too: change 'models' or 'not_models'", *edits),))
        barred = self.state.barred(need)
        if barred is not None:
            for deed in barred.missing:
                whose = ("host", self.host.name) if deed.of_host else ("service", need.service)
                text = f"{self.host.name}: {deed.words}" if barred.deeds or not barred.remedy else deed.words
                yield Blocker("compatibility", (option_of("gate", text, Edit(*whose, "bars", deed)),))

    def _policy(self) -> Iterator[Blocker]:
        gpu, host = self.gpu, self.host
        if gpu.pin is not None and (gpu.pin.mode != self.mode or (self.mode == "shared" and gpu.pin.sharing != self.need.sharing)):
            options = [self._unpin()]
            if self.mode == gpu.pin.mode == "shared" and gpu.pin.sharing is not None:
                options.append(self._shared_by(gpu.pin.sharing))
            yield Blocker("pinned layout", tuple(options))
            return
        if gpu.pin is not None:
            return
        if self.mode not in host.modes:
            edit = Edit("host", host.name, "modes", tuple(sorted((*host.modes, self.mode))))
            yield Blocker("policy mode", (option_of("mode", f"allow '{self.mode}' in fleet_gpu_modes of {host.name}", edit),))
        if self.mode == "shared" and self.need.sharing not in host.sharing:
            edit = Edit("host", host.name, "sharing", tuple(sorted((*host.sharing, self.need.sharing))))
            allow = option_of("sharing", f"allow '{self.need.sharing}' in fleet_sharing of {host.name}", edit)
            yield Blocker("policy mode", (allow, *(self._shared_by(sharing) for sharing in host.sharing[:1])))

    def _shared_by(self, sharing: str) -> Option:
        text = f"write 'sharing: {sharing}', as GPUs of {self.host.name} are shared"
        return option_of("isolation", text, Edit("service", self.need.service, "sharing", sharing))

    def _unpin(self) -> Option:
        edits = [Edit("gpu", self.gpu.uuid, "pin", None)]
        if self.mode not in self.host.modes:
            edits.append(Edit("host", self.host.name, "modes", tuple(sorted((*self.host.modes, self.mode)))))
        text = f"take {self.where} out of fleet_gpu_layouts" + (f" and allow '{self.mode}' in fleet_gpu_modes" if len(edits) > 1 else "")
        return option_of("pin", text, *edits)

    def _closed(self) -> Iterator[Blocker]:
        gpu = self.gpu
        if gpu.blocked is not None:
            text = f"bring {self.where} back, which is {gpu.blocked}"
            yield Blocker("lost", (option_of("repair", text, Edit("gpu", gpu.uuid, "blocked", None)),))
        if gpu.drain is not None and (own := gpu.drain.of(False)) is not None:
            yield self._release(
                f"{self.where} is {own.words}: {own.remedy}", own.cause, Edit("gpu", gpu.uuid, "drain", None), self.state.names()
            )
        if gpu.drain is not None and (whole := gpu.drain.of(True)) is not None:
            there = sorted(self.scene.fleet.hosts[self.host.name].names())
            edit = Edit("host", self.host.name, "drain", None)
            yield self._release(f"{self.host.name} is {whole.words}: {whole.remedy}", whole.cause, edit, there)
        if gpu.cordoned:
            text = f"{self.where} is cordoned: take it out of fleet_cordoned_gpus"
            yield Blocker("cordon", (option_of("uncordon", text, Edit("gpu", gpu.uuid, "cordoned", False)),))
        if busy := self.state.busy(self.mode):
            quiet = gpu.instances if self.mode == "mig" else tuple(replace(one, outsiders=()) for one in gpu.instances)
            edits = (Edit("gpu", gpu.uuid, "outsiders", ()), Edit("gpu", gpu.uuid, "instances", quiet))
            yield Blocker("outsider", (option_of("outsider", f"stop {busy[0]} on {self.where}, or run playbook adopt", *edits),))

    def _release(self, text: str, cause: str, edit: Edit, names: Iterable[str]) -> Blocker:
        """``names``: who is there still, because there is nowhere else, and would give way to a higher priority that may come again."""
        lower = [name for name in names if self.scene.priority(name) < self.need.priority] if self.scene.problem.preemption else []
        return Blocker(cause, (option_of("release", f"{text}{LOSERS if lower else ''}", edit, lost=lower),))

    def misfit(self) -> str | None:
        """The word for a need that this board could not serve, even empty."""
        size = self._size()
        return size.cause if size is not None else "compatibility" if self._is_shut() else None

    def _size(self) -> Blocker | None:
        """A need that this board could not serve, even empty."""
        need, gpu = self.need, self.gpu
        if self._is_unseen():
            return None
        if need.isolation == "slice":
            names = self._acceptable(need)
            return None if names else Blocker("profile", tuple(self._other_slices()))
        most = gpu.memory_mib - (self.host.shared_reserve_mib if self.mode == "shared" else 0)
        if need.memory_mib <= most:
            return None
        text = f"the GPUs of {self.host.name} have {format_size(most)} to give: ask for no more"
        return Blocker("memory", (self._less_memory(text, most),) if most > 0 else ())

    def _less_memory(self, text: str, mib: int) -> Option:
        edit = Edit("service", self.need.service, "memory_mib", mib)
        return option_of("memory", text, edit, more=1 - mib / self.need.memory_mib)

    def _acceptable(self, need: Need) -> tuple[str, ...]:
        cutter = self.state.cutter
        return () if cutter is None else cutter.acceptable(need.memory_mib, need.compute, need.profile)

    def _other_slices(self) -> Iterator[Option]:
        """Ways to ask for what this board has, when it has no profile that serves."""
        need, cutter = self.need, self.state.cutter
        service = need.service
        if cutter is not None and cutter.largest_mib:
            if need.profile is not None and self._acceptable(replace(need, profile=None)):
                # Who says only a profile has not said how much memory it needs: another one has to be said.
                other = None if need.memory_mib else _nearest(cutter, need.profile)
                instead = "leave 'profile' out" if other is None else f"ask for {other}"
                text = f"{instead}: {self.gpu.board} has no {need.profile} that serves"
                yield option_of("profile", text, Edit("service", service, "profile", other))
            largest = cutter.largest_mib
            if need.memory_mib > largest and self._acceptable(replace(need, memory_mib=largest)):
                text = f"the largest slice of {self.gpu.board} has {format_size(largest)}: ask for no more"
                yield self._less_memory(text, largest)
            if need.compute and self._acceptable(replace(need, compute=None)):
                most = max(
                    cutter.profiles[name].sm / cutter.sm for name in cutter.acceptable(need.memory_mib, None, need.profile) if cutter.sm
                )
                text = f"ask for {most:.2g} of the compute in place of {need.compute:g}"
                yield option_of("compute", text, Edit("service", service, "compute", int(most * 100) / 100), more=1 - most / need.compute)
            if need.profile is not None and need.memory_mib > largest and self._acceptable(replace(need, profile=None, memory_mib=largest)):
                text = f"leave 'profile' out and ask for no more than {format_size(largest)}, the largest slice there"
                edits = (Edit("service", service, "profile", None), Edit("service", service, "memory_mib", largest))
                yield option_of("profile", text, *edits, more=1)
        yield from self._not_sliced()

    def _not_sliced(self) -> Iterator[Option]:
        """The same need with a GPU of its own, or where its host has none of these with a part of a shared one."""
        need, host = self.need, self.host
        if "whole" in host.modes or (self.state.cutter is None and "shared" not in host.modes):
            if need.memory_mib <= self.gpu.memory_mib:
                yield self._isolated("exclusive", "whole", ("profile", "compute"), {})
        elif "shared" in host.modes and 0 < need.memory_mib <= self.gpu.memory_mib - host.shared_reserve_mib:
            other = {"sharing": host.sharing[0]} if host.sharing and need.sharing not in host.sharing else {}
            yield self._isolated("shared", "shared", ("profile",), other)

    def _isolated(self, isolation: str, mode: str, fields: Iterable[str], besides: Mapping[str, str]) -> Option:
        """``fields``: what it may not say then; ``besides``: what it has to say too."""
        without = [name for name in fields if getattr(self.need, name) is not None]
        said = {"isolation": isolation, **besides}
        words = and_words([f"'{name}: {value}'" for name, value in said.items()])
        edits = {**said, **dict.fromkeys(without)}
        if not self.need.memory_mib:
            # Only the profile has said how much it needs.
            edits["memory_mib"] = self.gpu.memory_mib
            words += f" and how much 'memory' it needs, up to {format_size(self.gpu.memory_mib)}"
        text = f"write {words}{_without(without)}: {self.host.name} has {mode} GPUs"
        return option_of("isolation", text, *(Edit("service", self.need.service, name, value) for name, value in edits.items()))

    def _used(self) -> Blocker | None:
        """What others have of the GPU already."""
        state, need = self.state, self.need
        if state.gpu.pin is not None and state.gpu.pin.mode != self.mode:
            return self._by(self._everybody()) if state.tenants or state.owners else None
        if state.gpu.fixed and self.mode == "mig":
            if state.best_cut(self._acceptable(need)) is not None:
                return None
            owners = self._pinned_owners()
            options = [*(self._takers(owners) if owners else ()), self._unpin(), *self._smaller()]
            return Blocker(self._word(owners) if owners else "pinned layout", tuple(options))
        if state.mode is not None and state.mode != self.mode:
            return self._by(self._everybody())
        if self.mode == "mig":
            names = self._acceptable(need)
            if state.best_cut(names) is not None:
                return None
            gone = self.scene.way_in(state, names)
            owners = () if gone is None else tuple(sorted({state.owners[one] for one in gone}))
            blocker = self._by(owners)
            if blocker is None:
                return None
            low = self.scene.way_in(state, names, need.priority) if self._outranked(owners) else None
            lower = tuple(sorted({state.owners[one] for one in low or ()}))
            return blocker._replace(options=(*blocker.options, *self._takers(lower), *self._smaller()))
        if self.mode == "whole":
            return self._by(self._everybody()) if state.tenants else None
        return self._shared()

    def _outranked(self, owners: Iterable[str]) -> bool:
        """Is somebody among them who would give way to nobody of this priority?"""
        return any(self.scene.priority(name) >= self.need.priority for name in owners)

    def _everybody(self) -> tuple[str, ...]:
        strangers = len(self.state.fixed) != len(self.state.owners)
        return () if strangers else tuple(sorted({*self.state.tenants, *self.state.owners.values()}))

    def _pinned_owners(self) -> tuple[str, ...]:
        """Who has a pinned slice that would do; the one that is easiest to ask."""
        names = self._acceptable(self.need)
        owners = [name for one, name in self.state.owners.items() if one.profile in names]
        return tuple(sorted(owners, key=self._ease)[:1])

    def _ease(self, name: str) -> tuple[t.Any, ...]:
        """Whom it is easier to ask to go comes first: whose lease ends first, then the lowest priority.

        Of a service the last replica, which 'replicas' takes away alone.
        """
        service, replica = key_of(name)
        return self.scene.hard_to_ask(name), self.scene.leases.get(name, ""), self.scene.priority(name), service, -replica

    def _smaller(self) -> Iterator[Option]:
        """The largest slice for which there is room here, when it is smaller than what is asked for."""
        need, state = self.need, self.state
        if state.cutter is None:
            return
        # Without what only one slice of a GPU has ('+me'), the same size is the nearest.
        plain = (need.profile or "").partition("+")[0]
        for profile in sorted(state.cutter.profiles.values(), key=lambda each: (each.name != plain, -each.memory_mib, each.name)):
            slower = bool(need.compute) and profile.sm < (need.compute or 0) * state.cutter.sm
            fits = profile.memory_mib < need.memory_mib or need.profile is not None
            if not (fits or slower) or "+" in profile.name or state.best_cut((profile.name,)) is None:
                continue
            edits = [Edit("service", need.service, "memory_mib", min(profile.memory_mib, need.memory_mib))]
            if need.profile is not None:
                edits.append(Edit("service", need.service, "profile", profile.name))
            size = format_size(profile.memory_mib)
            part = int(100 * profile.sm / max(state.cutter.sm, 1)) / 100
            if slower:
                edits.append(Edit("service", need.service, "compute", part))
                size += f" and {part:g} of the compute"
            if not fits:
                text = f"ask for {part:g} of the compute in place of {need.compute:g}: {self.where} has room for it"
                yield option_of("compute", text, edits[-1], more=1 - part / (need.compute or 1))
                return
            text = f"ask for {profile.name} ({size}){'' if need.profile else ' or less'}: {self.where} has room for it"
            share = profile.memory_mib / max(need.memory_mib, profile.memory_mib, 1)
            yield option_of("profile" if need.profile else "memory", text, *edits, more=1 - share)
            return

    def _shared(self) -> Blocker | None:
        state, need, host = self.state, self.need, self.host
        if state.sharing is not None and state.sharing != need.sharing and state.tenants:
            blocker = self._by(tuple(sorted(state.tenants)))
            if blocker is None or state.shared_refusal(need.memory_mib, need.compute or 0, state.sharing) is not None:
                return blocker
            return blocker._replace(options=(*blocker.options, self._shared_by(state.sharing)))
        if state.shared_refusal(need.memory_mib, need.compute or 0, need.sharing) is None:
            return None
        going = self._fewest_sharers()
        asked = self._by(going)
        options = [] if asked is None else list(asked.options)
        if asked is not None and self._outranked(going):
            options += self._takers(self._fewest_sharers(need.priority))
        cause = self._word(going)
        full, fits_memory = len(state.tenants) >= host.shared_max, need.memory_mib <= state.memory_free
        fits = fits_memory and (need.compute or 0) <= state.compute_free
        left = math.floor(round(100 * state.compute_free, 6)) / 100  # in hundredths, for that is how people write it
        if full:
            # One more of them is of no use where there is not enough for it.
            options += [more_sharers(host, len(state.tenants) + 1)] if fits and len(state.tenants) < MOST_SHARERS else []
            cause = "policy mode" if fits else cause
        elif LEAST_PART * need.memory_mib <= state.memory_free < need.memory_mib:
            text = f"ask for {format_size(state.memory_free)} or less: {self.where} has no more left to share"
            options.append(self._less_memory(text, state.memory_free))
        elif need.compute and state.compute_free < need.compute and left >= max(0.01, LEAST_PART * need.compute):
            text = f"ask for {left:g} of the compute: {self.where} has no more left to share"
            options.append(option_of("compute", text, Edit("service", need.service, "compute", left), more=1 - left / need.compute))
        if need.compute and state.compute_free < need.compute and fits_memory and not full:
            more = more_compute(host, host.shared_compute + need.compute - state.compute_free)
            options += [more] if more.edits[0].value <= MOST_SHARED_COMPUTE else []
        return Blocker(cause, tuple(options))

    def _fewest_sharers(self, below: int = ABOVE_ALL) -> tuple[str, ...]:
        """The fewest who would leave room on a shared GPU, of as many those who are easiest to ask; all of them if that is not enough.
        ``below``: only of those whose priority is below this one."""
        state, need = self.state, self.need
        turn = sorted((name for name in state.tenants if self.scene.priority(name) < below), key=self._ease)
        lacks = need.memory_mib - state.memory_free, round((need.compute or 0) - state.compute_free, 6)

        def gives(names: Iterable[str]) -> bool:
            owners = [owner for name in names if (owner := self.scene.owner(name)) is not None]
            return sum(each.memory_mib for each in owners) >= lacks[0] and sum(each.compute or 0 for each in owners) >= lacks[1]

        ways = [*((name,) for name in turn), *(tuple(turn[:many]) for many in range(2, len(turn)))]
        going = list(next(filter(gives, ways), turn))
        for name in list(going):
            rest = [other for other in going if other != name]
            going = rest if rest and gives(rest) else going
        return tuple(sorted(going))

    def _word(self, owners: Sequence[str]) -> str:
        if owners and all(name in self.scene.leases for name in owners):
            return "lease"
        return "priority" if owners and all(self.scene.priority(name) > self.need.priority for name in owners) else "in use"

    def _by(self, owners: tuple[str, ...]) -> Blocker | None:
        """None where nobody is there but replicas of its own that look for another place: what it holds, it may keep."""
        others = tuple(name for name in owners if name not in self.scene.leaving or self.scene.places[name].service != self.need.service)
        return None if owners and not others else Blocker(self._word(others), self._takers(others))

    def _takers(self, owners: tuple[str, ...]) -> tuple[Option, ...]:
        """Ways to get what these replicas have: the same for needs of one priority, whatever their size."""
        known, asked = self.scene.takers, (self.where, owners, self.need.service, self.need.priority)
        if asked not in known:
            known[asked] = tuple(self._ways_to_take(owners))
        return known[asked]

    def _ways_to_take(self, owners: tuple[str, ...]) -> Iterator[Option]:
        found = [self.scene.owner(name) for name in owners]
        needs = {owner.service: owner for owner in found if owner is not None and not owner.adopted and owner.service != self.need.service}
        if not owners or len([owner for owner in found if owner is not None and owner.service in needs]) < len(owners):
            return
        going = going_of(self.scene, owners)
        every = tuple([name for each in going for name in each.names])
        gone = tuple([name for each in going for name in each.gone])
        highest = max(owner.priority for owner in needs.values())
        much = toll(every, highest)
        if all(name in self.scene.leases for name in owners):
            yield when_leases_end(self.scene, owners, f" for {self.where}", f"{self.where} is still kept for")
        allow = () if self.scene.problem.preemption else (Edit("fleet", "", "preemption", True),)
        if allow and highest < self.need.priority:
            text = f"allow fleet_preemption{LOSERS}"
            yield option_of("preemption", text, *allow, more=much, lost=every)
        elif highest >= self.need.priority and highest < 100:
            if self.scene.problem.moves and highest > self.need.priority:
                # As high as theirs it is high enough for them to move.
                text = f"raise its priority to {highest}, and what is there may move for it"
                yield option_of("priority", text, Edit("service", self.need.service, "priority", highest), more=height(highest))
            yield above(self.need, highest, allow, every)
        text = f"{self.where} has room for it without {' and '.join(each.words for each in going)}: stop or move what is there"
        yield option_of("stop", text, *stops(going), more=toll(gone, highest), lost=gone)


def _nearest(cutter: Cutter, name: str) -> str:
    """The smallest profile of a board that has as many slices and GB as another's name says; the largest where none has, or it says
    nothing."""
    plain = sorted((each for each in cutter.profiles.values() if "+" not in each.name), key=lambda each: (each.memory_mib, each.name))
    slices, memory = named_size(name)
    enough = (each.name for each in plain if slices and each.slices >= slices and named_size(each.name)[1] >= memory)
    return next(enough, plain[-1].name)


def height(priority: int, names: Sequence[str] = ()) -> float:
    """How much it is to have such a priority, 0 to 1: first how high it is, then how many give way."""
    return (priority + min(len(names), 99) / 100) / ABOVE_ALL


def above(need: Need, highest: int, allow: Sequence[Edit], names: Sequence[str] = ()) -> Option:
    """A priority above the ``highest`` of those who give way (``names``). ``allow``: what lets them, where that is not so yet."""
    text = f"raise its priority to {highest + 1}{' and allow fleet_preemption' if allow else ''}{LOSERS}"
    edit = Edit("service", need.service, "priority", highest + 1)
    return option_of("priority", text, edit, *allow, more=height(highest + 1, names), lost=names)


def _without(names: Sequence[str]) -> str:
    return f", without {' and '.join(repr(name) for name in names)}" if names else ""
