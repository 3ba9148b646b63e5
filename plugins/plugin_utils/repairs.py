# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a service from each host and GPU, as words of a fixed list, and for each what would take it away, as data.

Nothing here is promised: whether a change helps is found out by planning with it (``changes.py``).
"""

from __future__ import annotations

import typing as t
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.gpu_blockers import Look, Sizes, above, height
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_blockers import data_blockers, room_blockers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.likely_hosts import LikelyHosts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MODE_OF,
    Need,
    Pin,
    Placement,
    Problem,
    Resources,
    Rules,
    Solution,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import (
    ABOVE_ALL,
    LOSERS,
    SELF,
    Blocker,
    Edit,
    Option,
    Spot,
    and_words,
    asks_otherwise,
    merged,
    option_of,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState, take

# Of so many further hosts or GPUs for which the same is to be done, each is named.
FEW_NAMED: t.Final = 3


def _is_same(one: Option, other: Option) -> bool:
    """Is it the same thing in two places? What opens a host to the compatibility gate may differ."""
    return one.kind == other.kind and (one.kind != "gate" or [edit.value for edit in one.edits] == [edit.value for edit in other.edits])


class Scene:
    """The fleet as a solution leaves it, for questions about who has no place.

    ``leases``: replica -> when its lease ends, empty if it is over.
    """

    def __init__(self, problem: Problem, solution: Solution, leases: Mapping[str, str]) -> None:
        self.problem = problem
        self.leases = leases
        self.needs = {need.service: need for need in problem.needs}
        self.fleet = Fleet(problem)
        self.places = {place.name: place for place in (*solution.placements, *solution.waiting)}
        self.leaving = {place.name for place in solution.waiting}
        for name in sorted(self.places):
            self.occupy(self.places[name])
        self.names_of: dict[str, tuple[str, ...]] = {}
        for name, place in sorted(self.places.items()):
            self.names_of[place.service] = (*self.names_of.get(place.service, ()), name)
        # How many GPUs were looked at so far: that is work too.
        self.looked = 0
        # What :class:`Look` found out about replicas on a GPU, by who asks.
        self.takers: dict[t.Any, tuple[Option, ...]] = {}
        self._likely = LikelyHosts(self.fleet, self.needs)
        self._ways: dict[t.Any, tuple[Slice, ...] | None] = {}
        # What is in the way, by what is asked for and by host: a need takes long to find among others, and is looked for once.
        self._room_blockers: dict[t.Any, dict[str, tuple[Blocker, ...]]] = defaultdict(dict)
        self._host_blockers: dict[Need, dict[str, list[tuple[Blocker, ...]]]] = defaultdict(dict)
        self._gpu_blockers: dict[Need, dict[str, tuple[tuple[Blocker, ...] | None, ...]]] = defaultdict(dict)

    def occupy(self, place: Placement) -> None:
        """Book a place, as the plan has it."""
        host, need = self.fleet.hosts.get(place.host), self.needs.get(place.service)
        if host is None or need is None:
            return
        states = host.usable(place.gpus)
        if states and take(need, place, states):
            host.seat(need, place)

    def hard_to_ask(self, name: str) -> int:
        """0 for who goes by itself when its lease ends, or has gone, much for who never goes."""
        owner = self.owner(name)
        return 100 if owner is None or owner.adopted else 0 if name in self.leases else 1

    def owner(self, name: str) -> Need | None:
        """The need of a replica that has a place."""
        place = self.places.get(name)
        return None if place is None else self.needs.get(place.service)

    def priority(self, name: str) -> int:
        """That of a replica that has a place."""
        owner = self.owner(name)
        return 0 if owner is None else owner.priority

    def spots(self, need: Need, name: str) -> list[Spot]:
        """The hosts of the environment that something could make right, the cheapest first; of very many, those with most free."""
        found = []
        bare = self.bare(need)
        own = name if need.service in self.names_of else SELF
        of_gpus, room = self._host_blockers[bare], self._room_blockers[need.resources, need.ports, own, need.service]
        for host in self._likely.of(need):
            there = host.host.name
            if there not in of_gpus:
                of_gpus[there] = self._of_gpus(host, bare)
            if of_gpus[there] and there not in room:
                room[there] = tuple(room_blockers(host, need, name, self.fleet.asked))
            for gpus in of_gpus[there]:
                found.append(Spot(there, (*gpus, *room[there], *self._on_host(host, need))))
        return sorted(found, key=lambda spot: spot.rank)

    def everywhere(self, need: Need, cause: str) -> Option | None:
        """One thing that is in the way on many GPUs and nothing else, taken away on all of them: one alone may go to somebody who comes
        before; None where there are not several."""
        bare = self.bare(need)
        found = [
            blockers[0].best
            for host in self._likely.of(need)
            if host.host.may_have(need)
            for blockers in self._all_gpus(host, bare)
            if blockers is not None and len(blockers) == 1 and blockers[0].cause == cause
        ]
        # A setting of a host is one thing, on however many of its GPUs.
        ways = list({option.edits: option for option in found if _is_same(option, found[0])}.values())
        if len(ways) < 2 or any(option.lost for option in ways):
            return None
        return self.in_several(tuple(ways))

    def in_several(self, ways: tuple[Option, ...]) -> Option:
        """The same thing done in several places, as one option."""
        edits = tuple(dict.fromkeys(edit for option in ways for edit in option.edits))
        rest = [option.edits[0] for option in ways[1:]]
        of_hosts = all(edit.part == "host" for edit in rest)
        if len(rest) > FEW_NAMED:
            others = f"{len(rest)} more {'hosts' if of_hosts else 'GPUs'}"
        else:
            others = and_words([edit.name if edit.part == "host" else self._names[edit.name] for edit in rest])
        text = f"{ways[0].text}; and the same for {others}" if rest else ways[0].text
        return option_of(ways[0].kind, text, *edits, more=1)._replace(ways=ways)

    @cached_property
    def _names(self) -> dict[str, str]:
        """GPUs as people know them, by UUID."""
        return {gpu.uuid: f"{host.name} {gpu.short}" for host in self.problem.hosts for gpu in host.gpus}

    def bare(self, need: Need) -> Need:
        """All of a need that a GPU asks about: the same for many services that have no place yet."""
        service = need.service if need.service in self.names_of else SELF
        rules = Rules(max_per_gpu=need.rules.max_per_gpu)
        replicas = 1 if rules.max_per_gpu is None else need.replicas
        return replace(need, service=service, replicas=replicas, resources=Resources(), ports=(), team="", rules=rules, data_class="")

    def _of_gpus(self, host: HostState, need: Need) -> list[tuple[Blocker, ...]]:
        """The blockers of the cheapest GPUs of the host that could be made right, together; nothing where there are not enough of them.

        Where it is cheaper to ask for less than to get GPUs that would do as things are asked for, those of the latter, too.
        """
        boards: dict[str, list[tuple[tuple[float, int], str, tuple[Blocker, ...]]]] = {}
        for state, blockers in zip(host.gpus, self._all_gpus(host, need), strict=True):
            if blockers is not None:
                # Of those that cost as much first where the fewest would have to stop for it.
                lost = sum(len(option.lost) for blocker in blockers if blocker.best.lost for option in blocker.options)
                cost = sum(blocker.best.cost for blocker in blockers), lost
                boards.setdefault(state.gpu.board, []).append((cost, state.gpu.pci, blockers))
        # By whether something else has to be asked for.
        best: dict[bool, tuple[float, str, tuple[Blocker, ...]]] = {}
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
                self._note(best, (fewer.cost, board, (Blocker("count", (fewer,)),)))
            if there < need.count:
                ends = f"has no more of one board{' that are free' if len(cheapest) < there else ''}"
                alone = ", without 'nvlink'" if len(cheapest) == 1 and must_join(need) else ""
                less = f"ask for {len(cheapest)} GPU{'s' if len(cheapest) > 1 else ''} in place of {need.count} ('count'{alone}): "
                edit = Edit("service", need.service, "count", len(cheapest))
                option = option_of("count", f"{less}{host.host.name} {ends}", edit, more=1 - len(cheapest) / need.count)
                together = (*together, Blocker("count", (option,)))
            for whole in self._joined(host, need, board, together, cheapest) if must_join(need) else (together,):
                self._note(best, (sum(blocker.best.cost for blocker in whole), board, whole))
        cheapest_of = [best[other] for other in sorted(best, key=lambda each: best[each][:2])]
        return [whole for _cost, _board, whole in cheapest_of[: 1 if cheapest_of and cheapest_of[0] is best.get(False) else 2]]

    @staticmethod
    def _note(best: dict[bool, tuple[float, str, tuple[Blocker, ...]]], rank: tuple[float, str, tuple[Blocker, ...]]) -> None:
        """Keep what is cheaper than the best so far, by whether something else has to be asked for."""
        other = asks_otherwise(rank[-1])
        if other not in best or rank[:2] < best[other][:2]:
            best[other] = rank

    def _joined(
        self, host: HostState, need: Need, board: str, together: tuple[Blocker, ...], cheapest: Sequence[tuple[t.Any, str, t.Any]]
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
        known = self._gpu_blockers[bare]
        if host.host.name not in known:
            sizes: Sizes = {}
            known[host.host.name] = tuple(Look(self, bare, state).blockers(sizes) for state in host.gpus)
            self.looked += len(host.gpus)
        return known[host.host.name]

    def _on_host(self, host: HostState, need: Need) -> Iterator[Blocker]:
        """What is in the way whatever its GPUs and its room are."""
        yield from data_blockers(host, need)
        yield from self._rule_blockers(host, need)
        yield from self._kept_blockers(host, need)

    def _rule_blockers(self, host: HostState, need: Need) -> Iterator[Blocker]:
        rules, service = need.rules, need.service
        if rules.max_per_host is not None and host.replicas.get(service, 0) >= rules.max_per_host:
            yield Blocker("spread", tuple(self.spread_wider(need, "max_per_host", host.replicas[service])))
        against = sorted(other for other in self.fleet.rulebook.apart(need) if host.replicas.get(other) and other != service)
        if against:
            edits = [Edit("service", service, "rules.apart", tuple(other for other in rules.apart if other not in against))]
            for other in against:
                said = self._rules_of(other).apart
                edits += [Edit("service", other, "rules.apart", tuple(each for each in said if each != service))] if service in said else []
            theirs = [other for other in against if service in self._rules_of(other).apart]
            where = f", which {' and '.join(theirs)} say{'s' if len(theirs) == 1 else ''} too" if theirs else ""
            only = theirs and not any(other in rules.apart for other in against)
            where = f", which only {' and '.join(theirs)} say{'s' if len(theirs) == 1 else ''}" if only else where
            text = f"let it be on one host with {' and '.join(against)} ('apart'{where})"
            yield Blocker("apart", (option_of("apart", text, *edits, more=len(against) / 10),))
        if rules.together and not any(host.replicas.get(other) for other in rules.together):
            text = f"let it be on a host without {' or '.join(rules.together)} ('together')"
            yield Blocker("together", (option_of("together", text, Edit("service", service, "rules.together", ())),))

    def spread_wider(self, need: Need, rule: str, here: int) -> Iterator[Option]:
        """One more on a host or GPU than are ``here``, or so many that all of its replicas have one."""
        hosts = [host for host in self.problem.hosts if host.admits(need) and not host.down]
        there = sum(need.wants(gpu.board) for host in hosts for gpu in host.gpus) if rule == "max_per_gpu" else len(hosts)
        for more in sorted({here + 1, max(here + 1, -(-need.replicas // max(1, there)))}):
            edit = Edit("service", need.service, f"rules.{rule}", more)
            yield option_of("spread", f"raise its '{rule}' to {more}", edit, more=(more - here - 1) / max(more, need.replicas))

    def misfit(self, need: Need) -> str | None:
        """What of a need no board of its hosts could serve, even empty, where that is so of all of them."""
        bare = self.bare(need)
        words = [Look(self, bare, state).misfit() for host in self._likely.of(need) for state in host.gpus]
        return words[0] if words and None not in words else None

    def _kept_blockers(self, host: HostState, need: Need) -> Iterator[Blocker]:
        """Room that is kept for rollouts, and is all that is in the way."""
        lost = in_the_way(self.fleet, host, need)
        if lost:
            edits = [Edit("service", service, "keep_room", False) for service in lost]
            text = f"leave 'keep_room' of {' and '.join(lost)} out, whose rollouts may then have to stop first on {host.host.name}"
            own = lost == (need.service,)
            out = option_of("keep_room" if own else "others_room", text, *edits)
            yield Blocker("kept room", (out, *(self._modes_for_room(host, need) if own else self._above(need, lost))))

    def _above(self, need: Need, services: Iterable[str]) -> Iterator[Option]:
        """With preemption the room that lower priorities keep is there for a higher one."""
        highest = max(self.needs[service].priority for service in services)
        allow = () if self.problem.preemption else (Edit("fleet", "", "preemption", True),)
        if allow and highest < need.priority:
            yield option_of("preemption", f"allow fleet_preemption{LOSERS}", *allow, more=height(highest))
        elif need.priority <= highest < 100:
            yield above(need, highest, allow)

    def _modes_for_room(self, host: HostState, need: Need) -> Iterator[Option]:
        """A GPU that nobody is on, given the mode that a rollout needs: it changes none itself."""
        mode = MODE_OF[need.isolation]
        able = [state for state in host.gpus if state.mode is None and state.gpu.pin is None and state.changes_mode(mode)]
        if mode == "shared" or not able:
            return
        gpu = max(able, key=lambda state: state.gpu.pci).gpu
        pin = Pin("mig", cuts=True) if mode == "mig" else Pin("whole")
        text = f"give {host.host.name} {gpu.short} 'mode: {mode}' in fleet_gpu_layouts, for a rollout changes the mode of no GPU"
        yield option_of("pin", text, Edit("gpu", gpu.uuid, "pin", pin))

    def _rules_of(self, service: str) -> Rules:
        return self.needs[service].rules if service in self.needs else Rules()

    def way_in(self, state: GpuState, names: tuple[str, ...], below: int = ABOVE_ALL) -> tuple[Slice, ...] | None:
        """The fewest slices that have to go so that one of the profiles has room on a GPU in mode mig; None when nothing makes room.

        ``below``: only of those whose priority is below this one.
        """
        cutter = state.cutter
        if cutter is None:
            return None
        key = (id(cutter), state.fixed, tuple(sorted(state.owners.items())), names, below)
        if key not in self._ways:
            found = []
            # Of each slice that somebody has: how hard it is to ask, when the lease ends, the priority.
            had = {one: (self.hard_to_ask(name), self.leases.get(name, ""), self.priority(name)) for one, name in state.owners.items()}
            for start, profile, gone, memory in cutter.ways(state.fixed, names):
                if all(one in had for one in gone):
                    asked = sum(had[one][0] for one in gone)
                    ends = max((had[one][1] for one in gone), default="")
                    highest = max((had[one][2] for one in gone), default=0)
                    if highest < below:
                        found.append((asked, ends, len(gone), highest, memory, start, profile, gone))
            self._ways[key] = min(found)[-1] if found else None
        return self._ways[key]
