# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a service from each host and GPU, as words of a fixed list, and for each what would take it away, as data.

Nothing here is promised: whether a change helps is found out by planning with it (``changes.py``).
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_blockers import data_blockers, room_blockers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.likely_hosts import LikelyHosts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MODE_OF,
    Need,
    Placement,
    Problem,
    Resources,
    Rules,
    Solution,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import (
    LOSERS,
    SELF,
    Blocker,
    Edit,
    Option,
    Spot,
    and_words,
    asks_otherwise,
    eased,
    merged,
    option_of,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import Fleet, GpuState, HostState, take


class Scene:
    """The fleet as a solution leaves it, for questions about who has no place. ``leases``: replica -> when its lease ends."""

    def __init__(self, problem: Problem, solution: Solution, leases: Mapping[str, str]) -> None:
        self.problem = problem
        self.leases = leases
        self.needs = {need.service: need for need in problem.needs}
        self.fleet = Fleet(problem)
        for host in self.fleet.hosts.values():
            host.claimed.clear()
        self.places = {place.name: place for place in (*solution.placements, *solution.waiting)}
        self.leaving = {place.name for place in solution.waiting}
        for name in sorted(self.places):
            self.occupy(self.places[name])
        self.names_of: dict[str, tuple[str, ...]] = {}
        for name, place in sorted(self.places.items()):
            self.names_of[place.service] = (*self.names_of.get(place.service, ()), name)
        # How many GPUs were looked at so far: that is work too.
        self.looked = 0
        self._likely = LikelyHosts(self.fleet, self.needs)
        self._ways: dict[t.Any, tuple[Slice, ...] | None] = {}
        self._room_blockers: dict[t.Any, tuple[Blocker, ...]] = {}
        self._host_blockers: dict[t.Any, list[tuple[Blocker, ...]]] = {}
        self._gpu_blockers: dict[t.Any, tuple[tuple[Blocker, ...] | None, ...]] = {}

    def occupy(self, place: Placement) -> None:
        """Book a place, as the plan has it."""
        host, need = self.fleet.hosts.get(place.host), self.needs.get(place.service)
        if host is None or need is None:
            return
        states = host.usable(place.gpus)
        if states and take(need, place, states):
            host.seat(need, place)

    def hard_to_ask(self, name: str) -> int:
        """0 for who goes by itself when its lease ends, much for who never goes."""
        owner = self.owner(name)
        return 100 if owner is None or owner.adopted else 0 if name in self.leases else 1

    def owner(self, name: str) -> Need | None:
        """The need of a replica that has a place."""
        return self.needs.get(self.places[name].service) if name in self.places else None

    def spots(self, need: Need, name: str) -> list[Spot]:
        """The hosts of the environment that something could make right, the cheapest first; of very many, those with most free."""
        found = []
        bare = self._bare(need)
        for host in self._likely.of(need):
            for gpus in self._on_gpus(host, bare):
                found.append(Spot(host.host.name, (*gpus, *self._on_host(host, need, name))))
        return sorted(found, key=lambda spot: spot.rank)

    def everywhere(self, need: Need, cause: str) -> Option | None:
        """One thing that is in the way on many GPUs and nothing else, taken away on all of them: one alone may go to somebody who comes
        before; None where there are not several."""
        found = [
            blockers[0].best
            for host in self._likely.of(need)
            if host.host.may_have(need)
            for blockers in self._all_gpus(host, self._bare(need))
            if blockers is not None and len(blockers) == 1 and blockers[0].cause == cause
        ]
        ways = [option for option in found if option.kind == found[0].kind]
        if len({option.edits for option in ways}) < 2 or any(option.lost for option in ways):
            return None
        edits = tuple(dict.fromkeys(edit for option in ways for edit in option.edits))
        text = f"{ways[0].text}; and the same for {len(ways) - 1} more GPU{'s' if len(ways) > 2 else ''}"
        return option_of(ways[0].kind, text, *edits, more=1)

    def _bare(self, need: Need) -> Need:
        """All of a need that a GPU asks about: the same for many services that have no place yet."""
        service = need.service if need.service in self.names_of else SELF
        rules = Rules(max_per_gpu=need.rules.max_per_gpu)
        return replace(need, service=service, replicas=1, resources=Resources(), ports=(), team="", rules=rules, data_class="")

    def _on_gpus(self, host: HostState, bare: Need) -> Sequence[tuple[Blocker, ...]]:
        """As :meth:`_of_gpus`, remembered."""
        key = (host.host.name, bare)
        if key not in self._host_blockers:
            self._host_blockers[key] = self._of_gpus(host, bare)
        return self._host_blockers[key]

    def _of_gpus(self, host: HostState, need: Need) -> list[tuple[Blocker, ...]]:
        """The blockers of the cheapest GPUs of the host that could be made right, together; nothing where there are not enough of them.

        Where it is cheaper to ask for less than to get GPUs that would do as things are asked for, those of the latter, too.
        """
        boards: dict[str, list[tuple[int, str, tuple[Blocker, ...]]]] = {}
        for state, blockers in zip(host.gpus, self._all_gpus(host, need), strict=True):
            if blockers is not None:
                cost = sum(blocker.best.cost for blocker in blockers)
                boards.setdefault(state.gpu.board, []).append((cost, state.gpu.pci, blockers))
        # By whether something else has to be asked for.
        best: dict[bool, tuple[int, str, tuple[Blocker, ...]]] = {}
        for board, found in sorted(boards.items()):
            cheapest = sorted(found, key=lambda each: each[:2])[: need.count]
            there = len(cheapest)
            if there < need.count:
                # Fewer have to be asked for anyway: so few that nothing else is in the way, if there are any.
                cheapest = [each for each in cheapest if not each[2]] or cheapest
            together = merged(blocker for _cost, _pci, blockers in cheapest for blocker in blockers)
            free = sum(not blockers for _cost, _pci, blockers in cheapest)
            if 0 < free < there == need.count and not must_join(need):
                less = f"ask for {free} GPU{'s' if free > 1 else ''} in place of {need.count} ('count')"
                text = f"{less}: {host.host.name} has no more that are free"
                fewer = option_of("count", text, Edit("service", need.service, "count", free), more=1 - free / need.count)
                rank = (fewer.cost, board, (Blocker("count", (fewer,)),))
                best[True] = min((*([best[True]] if True in best else []), rank), key=lambda each: each[:2])
            if there < need.count:
                ends = f"has no more of one board{' that are free' if len(cheapest) < there else ''}"
                alone = ", without 'nvlink'" if len(cheapest) == 1 and must_join(need) else ""
                less = f"ask for {len(cheapest)} GPU{'s' if len(cheapest) > 1 else ''} in place of {need.count} ('count'{alone}): "
                edit = Edit("service", need.service, "count", len(cheapest))
                option = option_of("count", f"{less}{host.host.name} {ends}", edit, more=1 - len(cheapest) / need.count)
                together = (*together, Blocker("count", (option,)))
            for whole in self._joined(host, need, board, together, cheapest) if must_join(need) else (together,):
                rank = (sum(blocker.best.cost for blocker in whole), board, whole)
                other = asks_otherwise(whole)
                if other not in best or rank[:2] < best[other][:2]:
                    best[other] = rank
        cheapest_of = [best[other] for other in sorted(best, key=lambda each: best[each][:2])]
        return [whole for _cost, _board, whole in cheapest_of[: 1 if cheapest_of and cheapest_of[0] is best.get(False) else 2]]

    def _joined(
        self, host: HostState, need: Need, board: str, together: tuple[Blocker, ...], cheapest: Sequence[tuple[int, str, t.Any]]
    ) -> Iterator[tuple[Blocker, ...]]:
        """The same for a replica whose GPUs NVLink has to join: those of the cheapest joined set, and those without that rule."""
        ways = {
            state.gpu.uuid: (state, blockers)
            for state, blockers in zip(host.gpus, self._all_gpus(host, need), strict=True)
            if blockers is not None and state.gpu.board == board
        }
        able = [state for state, _blockers in ways.values()]
        found = best_joined(able, need.count, lambda state: (sum(each.best.cost for each in ways[state.gpu.uuid][1]),))
        if found is not None:
            yield merged(blocker for state in found for blocker in ways[state.gpu.uuid][1])
        addresses = {pci for _cost, pci, _blockers in cheapest}
        if joined([state for state in able if state.gpu.pci in addresses]) is True:
            if found is None:  # all that there are, fewer than it asks for, are joined
                yield together
        else:
            text = f"leave 'nvlink: required' out: {host.host.name} has the GPUs for it"
            options = [option_of("nvlink", text, Edit("service", need.service, "nvlink", "preferred"))]
            fewer = (count for count in range(need.count - 1, 1, -1) if best_joined(able, count, lambda _state: ()))
            if (most := next(fewer, None)) is not None:
                text = f"ask for {most} GPUs in place of {need.count} ('count'): NVLink joins no more with each other on {host.host.name}"
                options.append(option_of("count", text, Edit("service", need.service, "count", most), more=1 - most / need.count))
            yield (*together, Blocker("nvlink", tuple(options)))

    def _all_gpus(self, host: HostState, bare: Need) -> tuple[tuple[Blocker, ...] | None, ...]:
        """What is in the way on each GPU."""
        key = (host.host.name, bare)
        if key not in self._gpu_blockers:
            self._gpu_blockers[key] = tuple(_Look(self, bare, state).blockers() for state in host.gpus)
            self.looked += len(host.gpus)
        return self._gpu_blockers[key]

    def _on_host(self, host: HostState, need: Need, name: str) -> Iterator[Blocker]:
        key = (host.host.name, need.resources, need.ports, SELF if need.service not in self.names_of else name, need.service)
        if key not in self._room_blockers:
            self._room_blockers[key] = tuple(room_blockers(host, need, name, self.fleet.asked))
        yield from self._room_blockers[key]
        yield from data_blockers(host, need)
        yield from self._rule_blockers(host, need)
        yield from self._kept_blockers(host, need)

    def _rule_blockers(self, host: HostState, need: Need) -> Iterator[Blocker]:
        rules, service = need.rules, need.service
        there = sorted(other for other, count in host.replicas.items() if count and other != service)
        if rules.max_per_host is not None and host.replicas.get(service, 0) >= rules.max_per_host:
            yield Blocker("spread", tuple(self._spread_wider(host.replicas[service], need)))
        against = [other for other in there if other in rules.apart or service in self._rules_of(other).apart]
        if against:
            edits = [Edit("service", service, "rules.apart", tuple(other for other in rules.apart if other not in against))]
            for other in against:
                said = self._rules_of(other).apart
                edits += [Edit("service", other, "rules.apart", tuple(each for each in said if each != service))] if service in said else []
            theirs = [other for other in against if service in self._rules_of(other).apart]
            where = f", which {' and '.join(theirs)} say{'s' if len(theirs) == 1 else ''} too" if theirs else ""
            where = f", which only {' and '.join(theirs)} say{'s' if len(theirs) == 1 else ''}" if theirs and not rules.apart else where
            text = f"let it be on one host with {' and '.join(against)} ('apart'{where})"
            yield Blocker("apart", (option_of("apart", text, *edits, more=len(against) / 10),))
        if rules.together and not any(other in rules.together for other in there):
            text = f"let it be on a host without {' or '.join(rules.together)} ('together')"
            yield Blocker("together", (option_of("together", text, Edit("service", service, "rules.together", ())),))

    def _spread_wider(self, here: int, need: Need) -> Iterator[Option]:
        """One more on a host, or so many that all of its replicas have a host."""
        hosts = sum(host.environment == need.environment and host.may_have(need) and not host.down for host in self.problem.hosts)
        for more in sorted({here + 1, max(here + 1, -(-need.replicas // max(1, hosts)))}):
            text = f"raise its 'max_per_host' to {more}"
            yield option_of("spread", text, Edit("service", need.service, "rules.max_per_host", more), more=more / max(more, need.replicas))

    def misfit(self, need: Need) -> str | None:
        """What of a need no board of its hosts could serve, even empty, where that is so of all of them."""
        bare = self._bare(need)
        words = [_Look(self, bare, state).misfit() for host in self._likely.of(need) for state in host.gpus]
        return words[0] if words and None not in words else None

    def _kept_blockers(self, host: HostState, need: Need) -> Iterator[Blocker]:
        """Room that is kept for rollouts, and is all that is in the way."""
        lost = in_the_way(self.fleet, host, need)
        if lost:
            edits = [Edit("service", service, "keep_room", False) for service in lost]
            text = f"leave 'keep_room' of {' and '.join(lost)} out, whose rollouts may then have to stop first on {host.host.name}"
            yield Blocker("kept room", (option_of("keep_room" if lost == (need.service,) else "others_room", text, *edits),))

    def _rules_of(self, service: str) -> Rules:
        return self.needs[service].rules if service in self.needs else Rules()

    def way_in(self, state: GpuState, names: tuple[str, ...]) -> tuple[Slice, ...] | None:
        """The fewest slices that have to go so that one of the profiles has room on a GPU in mode mig; None when nothing makes room."""
        cutter = state.cutter
        if cutter is None:
            return None
        key = (id(cutter), state.fixed, tuple(sorted(state.owners.items())), names)
        if key not in self._ways:
            found = []
            for start, profile, gone, memory in cutter.ways(state.fixed, names):
                if all(one in state.owners for one in gone):
                    asked = sum(self.hard_to_ask(state.owners[one]) for one in gone)
                    ends = max(self.leases.get(state.owners[one], "") for one in gone) if gone else ""
                    found.append((asked, ends, len(gone), memory, start, profile, gone))
            self._ways[key] = min(found)[-1] if found else None
        return self._ways[key]


class _Look:
    """One GPU, seen by one need."""

    def __init__(self, scene: Scene, need: Need, state: GpuState) -> None:
        self.scene, self.need, self.state = scene, need, state
        self.gpu, self.host = state.gpu, state.host
        self.mode = MODE_OF[need.isolation]
        self.where = f"{self.host.name} {self.gpu.short}"

    def blockers(self) -> tuple[Blocker, ...] | None:
        """All that is in the way; None when nothing could make this GPU right."""
        size = self._size()
        if size is not None:
            if not size.options:
                return None
            # All else is asked of what it would be then.
            self.need = eased(self.need, size.best.edits)
            self.mode = MODE_OF[self.need.isolation]
        found: list[Blocker] = [*self._board(), *self._policy(), *self._closed(), *([] if size is None else [size])]
        per_gpu = self.need.rules.max_per_gpu
        if per_gpu is not None and self.state.replicas.get(self.need.service, 0) >= per_gpu:
            text = f"raise its 'max_per_gpu' to {per_gpu + 1}"
            found.append(
                Blocker("spread", (option_of("spread", text, Edit("service", self.need.service, "rules.max_per_gpu", per_gpu + 1)),))
            )
        used = self._used()
        if used is not None:
            if not used.options:
                return None
            found.append(used)
        return tuple(found)

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
            rest = {key: no for key, no in need.bars.items() if key != (self.host.name, board)}
            text = barred.remedy or f"{self.host.name}: {barred.reason}"
            yield Blocker("compatibility", (option_of("gate", text, Edit("service", need.service, "bars", rest)),))

    def _policy(self) -> Iterator[Blocker]:
        gpu, host = self.gpu, self.host
        if gpu.pin is not None and (gpu.pin.mode != self.mode or (self.mode == "shared" and gpu.pin.sharing != self.need.sharing)):
            yield Blocker("pinned layout", (self._unpin(),))
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
        if gpu.drain is not None:
            text = f"{self.where} is {gpu.drain.words}: {gpu.drain.remedy}"
            yield Blocker(gpu.drain.cause, (option_of("release", text, Edit("gpu", gpu.uuid, "drain", None)),))
        if gpu.cordoned:
            text = f"{self.where} is cordoned: take it out of fleet_cordoned_gpus"
            yield Blocker("cordon", (option_of("uncordon", text, Edit("gpu", gpu.uuid, "cordoned", False)),))
        others = [name for one in gpu.instances for name in one.outsiders] if self.mode != "mig" else []
        busy = [*gpu.outsiders, *others]
        if busy and not self.state.tenants and not self.state.owners:
            quiet = tuple(replace(one, outsiders=()) for one in gpu.instances) if others else gpu.instances
            edits = (Edit("gpu", gpu.uuid, "outsiders", ()), Edit("gpu", gpu.uuid, "instances", quiet))
            yield Blocker("outsider", (option_of("outsider", f"stop {busy[0]} on {self.where}, or run playbook adopt", *edits),))

    def misfit(self) -> str | None:
        """The word for a need that this board could not serve, even empty."""
        size = self._size()
        return None if size is None else size.cause

    def _size(self) -> Blocker | None:
        """A need that this board could not serve, even empty."""
        need, gpu = self.need, self.gpu
        if need.isolation == "slice":
            names = self._acceptable(need)
            return None if names else Blocker("profile", tuple(self._other_slices()))
        most = gpu.memory_mib - (self.host.shared_reserve_mib if self.mode == "shared" else 0)
        if need.memory_mib <= most:
            return None
        text = f"the GPUs of {self.host.name} have {format_size(most)} to give: ask for no more"
        less = option_of("memory", text, Edit("service", need.service, "memory_mib", most), more=1 - most / need.memory_mib)
        return Blocker("memory", (less,) if most > 0 else ())

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
                plain = [each for each in cutter.profiles.values() if "+" not in each.name]
                other = None if need.memory_mib else max(plain, key=lambda each: (each.memory_mib, each.name)).name
                instead = "leave 'profile' out" if other is None else f"ask for {other}, the largest there"
                text = f"{instead}: {self.gpu.board} has no {need.profile} that serves"
                yield option_of("profile", text, Edit("service", service, "profile", other))
            largest = cutter.largest_mib
            if need.memory_mib > largest and self._acceptable(replace(need, memory_mib=largest)):
                text = f"the largest slice here has {format_size(largest)}: ask for no more"
                yield option_of("memory", text, Edit("service", service, "memory_mib", largest), more=1 - largest / need.memory_mib)
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
        without = [name for name in ("profile", "compute") if getattr(need, name) is not None]
        if "whole" in host.modes or (self.state.cutter is None and "shared" not in host.modes):
            if need.memory_mib <= self.gpu.memory_mib:
                text = f"write 'isolation: exclusive'{_without(without)}: {host.name} has whole GPUs"
                edits = [Edit("service", need.service, name, None) for name in without]
                yield option_of("isolation", text, Edit("service", need.service, "isolation", "exclusive"), *edits)
        elif "shared" in host.modes and 0 < need.memory_mib <= self.gpu.memory_mib - host.shared_reserve_mib:
            edits = [Edit("service", need.service, "isolation", "shared")]
            edits += [Edit("service", need.service, "profile", None)] if need.profile is not None else []
            sharing = need.sharing if need.sharing in host.sharing or not host.sharing else host.sharing[0]
            how = f" and 'sharing: {sharing}'" if sharing != need.sharing else ""
            edits += [Edit("service", need.service, "sharing", sharing)] if how else []
            text = f"write 'isolation: shared'{how}{_without(without[:1] if need.profile is not None else [])}: {host.name} has shared GPUs"
            yield option_of("isolation", text, *edits)

    def _used(self) -> Blocker | None:
        """What others have of the GPU already."""
        state, need = self.state, self.need
        if state.gpu.pin is not None and state.gpu.pin.mode != self.mode:
            return self._by(self._everybody()) if state.tenants or state.owners else None
        if state.gpu.fixed and self.mode == "mig":
            if state.best_cut(self._acceptable(need)) is not None:
                return None
            owners = self._pinned_owners()
            options = [*self._takers(owners), self._unpin()] if owners else [self._unpin()]
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
            return None if blocker is None else blocker._replace(options=(*blocker.options, *self._smaller()))
        if self.mode == "whole":
            return self._by(self._everybody()) if state.tenants else None
        return self._shared()

    def _everybody(self) -> tuple[str, ...]:
        strangers = len(self.state.fixed) != len(self.state.owners)
        return () if strangers else tuple(sorted({*self.state.tenants, *self.state.owners.values()}))

    def _pinned_owners(self) -> tuple[str, ...]:
        """Who has a pinned slice that would do; the one that is easiest to ask."""
        names = self._acceptable(self.need)
        found = sorted(
            (self.scene.hard_to_ask(name), self._priority(name), name) for one, name in self.state.owners.items() if one.profile in names
        )
        return (found[0][-1],) if found else ()

    def _priority(self, name: str) -> int:
        owner = self.scene.owner(name)
        return 0 if owner is None else owner.priority

    def _smaller(self) -> Iterator[Option]:
        """The largest slice for which there is room here, when it is smaller than what is asked for."""
        need, state = self.need, self.state
        if state.cutter is None:
            return
        for profile in sorted(state.cutter.profiles.values(), key=lambda each: (-each.memory_mib, each.name)):
            fits = profile.memory_mib < need.memory_mib or need.profile is not None
            if not fits or "+" in profile.name or state.best_cut((profile.name,)) is None:
                continue
            edits = [Edit("service", need.service, "memory_mib", min(profile.memory_mib, need.memory_mib))]
            if need.profile is not None:
                edits.append(Edit("service", need.service, "profile", profile.name))
            size = format_size(profile.memory_mib)
            if need.compute and profile.sm < need.compute * state.cutter.sm:
                part = int(100 * profile.sm / state.cutter.sm) / 100
                edits.append(Edit("service", need.service, "compute", part))
                size += f" and {part:g} of the compute"
            text = f"ask for {profile.name} ({size}) or less: {self.where} has room for it"
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
        cause = self._word(going)
        if len(state.tenants) >= host.shared_max:
            more = len(state.tenants) + 1
            options.append(
                option_of("shared_max", f"raise fleet_shared_max of {host.name} to {more}", Edit("host", host.name, "shared_max", more))
            )
            cause = "policy mode"
        elif 0 < state.memory_free < need.memory_mib:
            text = f"ask for {format_size(state.memory_free)} or less: {self.where} has no more left to share"
            options.append(
                option_of(
                    "memory",
                    text,
                    Edit("service", need.service, "memory_mib", state.memory_free),
                    more=1 - state.memory_free / need.memory_mib,
                )
            )
        elif need.compute and 0 < state.compute_free < need.compute:
            text = f"ask for {state.compute_free:g} of the compute: {self.where} has no more left to share"
            options.append(
                option_of(
                    "compute",
                    text,
                    Edit("service", need.service, "compute", state.compute_free),
                    more=1 - state.compute_free / need.compute,
                )
            )
        return Blocker(cause, tuple(options))

    def _fewest_sharers(self) -> tuple[str, ...]:
        """The fewest who would leave room on a shared GPU, of as many those who are easiest to ask; all of them if that is not enough."""
        state, need = self.state, self.need
        turn = sorted(state.tenants, key=lambda name: (self.scene.hard_to_ask(name), self._priority(name), name))
        lacks = need.memory_mib - state.memory_free, round((need.compute or 0) - state.compute_free, 6)

        def gives(names: Iterable[str]) -> bool:
            owners = [owner for name in names if (owner := self.scene.owner(name)) is not None]
            return sum(each.memory_mib for each in owners) >= lacks[0] and sum(each.compute or 0 for each in owners) >= lacks[1]

        ways = [*((name,) for name in turn), *(tuple(turn[:many]) for many in range(2, len(turn)))]
        return tuple(sorted(next(filter(gives, ways), turn)))

    def _word(self, owners: Sequence[str]) -> str:
        if owners and all(name in self.scene.leases for name in owners):
            return "lease"
        return "priority" if owners and all(self._priority(name) > self.need.priority for name in owners) else "in use"

    def _by(self, owners: tuple[str, ...]) -> Blocker | None:
        """None where nobody is there but replicas of its own that look for another place: what it holds, it may keep."""
        others = tuple(name for name in owners if name not in self.scene.leaving or self.scene.places[name].service != self.need.service)
        return None if owners and not others else Blocker(self._word(others), tuple(self._takers(others)))

    def _takers(self, owners: tuple[str, ...]) -> Iterator[Option]:
        """Ways to get what these replicas have."""
        found = [self.scene.owner(name) for name in owners]
        needs = {owner.service: owner for owner in found if owner is not None and not owner.adopted and owner.service != self.need.service}
        if not owners or len([owner for owner in found if owner is not None and owner.service in needs]) < len(owners):
            return
        services = sorted(needs)
        gone = tuple(name for service in services for name in self.scene.names_of[service])
        stop = tuple(Edit("service", service, "replicas", 0) for service in services)
        size = min(len(gone) / 20, 1)
        ends = [self.scene.leases[name] for name in owners if name in self.scene.leases]
        if len(ends) == len(owners):
            one = len(owners) == 1
            text = (
                f"wait for {self.where} until the lease{'' if one else 's'} of {and_words(owners)} end{'s' if one else ''} on {max(ends)}"
            )
            text += f", and remove the manifest{'' if len(services) == 1 else 's'} of {' and '.join(services)} then"
            # Who ends first is asked first.
            last = sorted(set(self.scene.leases.values()))
            yield option_of("lease", text, *stop, more=last.index(max(ends)) / len(last), lost=gone)
        highest = max(owner.priority for owner in needs.values())
        allow = () if self.scene.problem.preemption else (Edit("fleet", "", "preemption", True),)
        if allow and highest < self.need.priority:
            text = f"allow fleet_preemption{LOSERS}"
            yield option_of("preemption", text, *allow, more=size, lost=gone)
        elif highest >= self.need.priority and highest < 100:
            text = f"raise its priority to {highest + 1}{' and allow fleet_preemption' if allow else ''}{LOSERS}"
            yield option_of("priority", text, Edit("service", self.need.service, "priority", highest + 1), *allow, more=size, lost=gone)
        yield option_of(
            "stop",
            f"{self.where} has room for it without {' and '.join(services)}: stop or move what is there",
            *stop,
            more=size,
            lost=gone,
        )


def _without(names: Sequence[str]) -> str:
    return f", without {' and '.join(repr(name) for name in names)}" if names else ""
