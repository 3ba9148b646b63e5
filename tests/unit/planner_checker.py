# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent judge of plans: it reads a problem and a solution as plain data and shares no code with the planner.

Every rule is written out once more, in the plainest way, so that a mistake would have to be made twice to pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import typing as t

from ansible_collections.gpuops.fleet.tests.unit.planner_board_checker import (
    Spot,
    all_linked,
    decided,
    impossible,
    linked,
    not_plain,
    same_profile,
    wanted_board,
)
from ansible_collections.gpuops.fleet.tests.unit.planner_quota_checker import Ledger

WANTED_MODE = {"slice": "mig", "exclusive": "whole", "shared": "shared"}


def complaints(problem: t.Any, solution: t.Any) -> list[str]:
    """Everything that is wrong with a solution, one line each; [] for a right one."""
    judge = _Judge(problem, solution)
    judge.check_replicas()
    judge.check_devices()
    judge.check_layouts()
    judge.check_hosts()
    judge.check_unplaced()
    judge.check_rules()
    judge.check_quotas()
    judge.check_displaced()
    judge.check_kept_room()
    return judge.wrong


class _Judge:
    def __init__(self, problem: t.Any, solution: t.Any) -> None:
        self.problem = problem
        self.solution = solution
        self.wrong: list[str] = []
        self.hosts = {host.name: host for host in problem.hosts if not host.down}
        self.down = {host.name for host in problem.hosts if host.down}
        self.gpus = {(host.name, gpu.uuid): gpu for host in self.hosts.values() for gpu in host.gpus}
        self.needs = {need.service: need for need in problem.needs}
        self.before: dict[tuple[str, int], list[t.Any]] = {}
        for place in problem.previous:
            self.before.setdefault((place.service, place.replica), []).append(place)
        # Whoever finds no way off a drained GPU is there like everybody else.
        self.here = [place for place in (*solution.placements, *solution.waiting) if place.host in self.hosts]

    def say(self, place: t.Any, text: str) -> None:
        self.wrong.append(f"{place.service}-{place.replica}: {text}")

    def kept(self, place: t.Any) -> bool:
        old = self.before.get((place.service, place.replica), [])
        return any((each.host, each.mode, each.gpus, each.slice) == (place.host, place.mode, place.gpus, place.slice) for each in old)

    # Each replica is placed once or named as unplaced once; nothing else is.

    def check_replicas(self) -> None:
        named = [(each.service, each.replica) for each in (*self.solution.placements, *self.solution.unplaced)]
        wanted = [(need.service, number) for need in self.problem.needs for number in range(1, need.replicas + 1)]
        if sorted(named) != sorted(wanted):
            self.wrong.append(f"replicas {sorted(named)} are not those wanted {sorted(wanted)}")
        for place in self.solution.placements:
            if place.host not in self.hosts and not self.kept(place):
                self.say(place, "was put on a host that is not here")
            if place.host in self.down and not self.needs[place.service].adopted:
                self.say(place, "was left on a host that is down")
        without = {(each.service, each.replica) for each in self.solution.unplaced}
        for place in self.solution.waiting:
            drains = [self.gpus[(place.host, uuid)].drain for uuid in place.gpus if (place.host, uuid) in self.gpus]
            drained = any(drains) and not any(drain.force for drain in drains if drain)
            down = place.host in self.down and place in self.problem.previous
            if not (down or (drained and self.kept(place))) or (place.service, place.replica) not in without:
                self.say(place, "waits for no host that is down, and is on no drained GPU")
        for place in self.solution.placements:
            if any(self._drained(place.host, uuid) for uuid in place.gpus) and not self.needs[place.service].adopted:
                self.say(place, "was left or put on a drained GPU")

    def _drained(self, host: str, uuid: str) -> bool:
        gpu = self.gpus.get((host, uuid))
        return gpu is not None and gpu.drain is not None

    # What each replica gets is what it asked for, and nobody else has it.

    def check_devices(self) -> None:
        for place in self.here:
            need = self.needs[place.service]
            if need.adopted:
                if not self.kept(place):
                    self.say(place, "is adopted and was moved")
                continue
            if place.mode != WANTED_MODE[need.isolation] or len(place.gpus) != need.count or len(set(place.gpus)) != len(place.gpus):
                self.say(place, "has another kind or number of devices than asked for")
            if need.environment != self.hosts[place.host].environment:
                self.say(place, "is in another environment")
            if need.data_class and need.data_class not in self.hosts[place.host].data_classes:
                self.say(place, f"has data of class {need.data_class}, which may not be there")
            for uuid in place.gpus:
                self._check_gpu(place, need, self.gpus[(place.host, uuid)])
            self._check_links(place, need)
        for one, other in itertools.combinations(self.here, 2):
            if one.host == other.host and set(one.gpus) & set(other.gpus):
                same_slice = one.mode == other.mode == "mig" and one.slice == other.slice
                if same_slice or one.mode != other.mode or one.mode == "whole":
                    self.say(one, f"shares what it should not with {other.service}-{other.replica}")

    def _check_gpu(self, place: t.Any, need: t.Any, gpu: t.Any) -> None:
        host = self.hosts[place.host]
        if gpu.blocked:
            self.say(place, "is on a GPU that cannot be used")
        if gpu.cordoned and not self.kept(place):
            self.say(place, "was put on a cordoned GPU")
        if not gpu.pin and place.mode not in host.modes:
            self.say(place, "is in a mode that the host does not allow")
        if gpu.pin and (gpu.pin.mode != place.mode or (place.slice and decided(gpu) and place.slice not in gpu.pin.slices)):
            self.say(place, "is against the pinned layout")
        if (host.name, gpu.board) in need.bars and (need.service in self.problem.changed or not self.kept(place)):
            self.say(place, f"is on board {gpu.board} of {host.name}, which the compatibility gate refuses")
        if not wanted_board(gpu.board, need):
            self.say(place, f"is on board {gpu.board}")
        if place.mode == "mig":
            profile = {each.name: each for each in gpu.geometry.profiles}[place.slice.profile]
            most = max(each.sm for each in gpu.geometry.profiles)
            if profile.memory_mib < need.memory_mib or profile.sm < (need.compute or 0) * most:
                self.say(place, f"needs more than {profile.name}")
            if need.profile and not same_profile(profile.name, need.profile):
                self.say(place, f"asked for {need.profile} and has {profile.name}")
        elif gpu.memory_mib < need.memory_mib:
            self.say(place, "needs more memory than the GPU has")

    def _check_links(self, place: t.Any, need: t.Any) -> None:
        """Who asks for NVLink has it between all of its GPUs; who was there before stays as long as nobody knows that it has not."""
        gpus = [self.gpus[(place.host, uuid)] for uuid in place.gpus]
        if need.nvlink != "required" or need.count == 1:
            return
        for one, other in itertools.combinations(gpus, 2):
            if not linked(one, other) and (not self.kept(place) or None not in (one.links, other.links)):
                self.say(place, f"is on {one.uuid} and {other.uuid}, which NVLink does not join")

    # The layouts are possible, hold every slice that is given away or held, and touch nothing else.

    def check_layouts(self) -> None:
        touched = {(place.host, uuid) for place in self.here for uuid in place.gpus} | {
            key for key, gpu in self.gpus.items() if gpu.pin and not gpu.blocked
        }
        if touched != set(self.solution.layouts):
            self.wrong.append(f"layouts are given for {sorted(self.solution.layouts)} and needed for {sorted(touched)}")
        for key, layout in self.solution.layouts.items():
            gpu = self.gpus[key]
            owned = [place for place in self.here if place.host == key[0] and gpu.uuid in place.gpus]
            if any(place.mode != layout.mode for place in owned):
                self.wrong.append(f"{key}: the layout has mode {layout.mode}")
            if layout.mode != "mig":
                if layout.slices:
                    self.wrong.append(f"{key}: slices without MIG")
                continue
            if why := impossible(gpu.geometry, layout.slices):
                self.wrong.append(f"{key}: {why}")
            needed = {place.slice for place in owned}
            if not decided(gpu):
                needed |= {each.slice for each in gpu.instances if each.outsiders}
                if any(one not in needed and one not in {each.slice for each in gpu.instances} for one in layout.slices):
                    self.wrong.append(f"{key}: a slice is made that nobody needs")
                for each in gpu.instances:
                    if each.slice not in layout.slices and not impossible(gpu.geometry, (*layout.slices, each.slice)):
                        self.wrong.append(f"{key}: {each.slice} is dropped without need")
            if needed - set(layout.slices) or (decided(gpu) and set(gpu.pin.slices) != set(layout.slices)):
                self.wrong.append(f"{key}: slices are missing from the layout")

    # No host gives more than it has, and no port twice.

    def check_hosts(self) -> None:
        for name, host in self.hosts.items():
            there = [place for place in self.here if place.host == name]
            rigid = [place for place in there if not self.needs[place.service].adopted]
            for kind in ("cpus", "memory", "shm", "disk"):
                have = getattr(host.capacity, kind)
                used = sum(getattr(self.needs[place.service].resources, kind) for place in there)
                if rigid and have is not None and used > have + 1e-6:
                    self.wrong.append(f"{name}: {used} {kind} are given away of {have}")
            ports = [port for place in rigid for _name, port in place.ports]
            if len(ports) != len(set(ports)):
                self.wrong.append(f"{name}: a port is given twice: {sorted(ports)}")
            for place in rigid:
                self._check_ports(place, host)
            self._check_shared(name, host, there)

    def _check_ports(self, place: t.Any, host: t.Any) -> None:
        asked = dict(self.needs[place.service].ports)
        if [name for name, _port in place.ports] != sorted(asked):
            self.say(place, "has other ports than asked for")
        for name, port in place.ports:
            if asked[name] is not None and asked[name] != port:
                self.say(place, f"asked for port {asked[name]} and has {port}")
            if asked[name] is None and port not in host.ports:
                self.say(place, f"has port {port}, which is not in the range")
            if port in host.listening:
                self.say(place, f"has port {port}, where somebody listens")

    def _check_shared(self, name: str, host: t.Any, there: list[t.Any]) -> None:
        for gpu in host.gpus:
            sharing = [self.needs[place.service] for place in there if place.mode == "shared" and gpu.uuid in place.gpus]
            if not sharing or any(need.adopted for need in sharing):
                continue
            ways = {place.sharing for place in there if place.mode == "shared" and gpu.uuid in place.gpus} | {
                need.sharing for need in sharing
            }
            layout = self.solution.layouts.get((name, gpu.uuid))
            if len(ways) > 1 or (layout is not None and {layout.sharing} != ways) or (gpu.pin and {gpu.pin.sharing} != ways):
                self.wrong.append(f"{name} {gpu.uuid}: shared in several ways: {sorted(ways)}")
            if not gpu.pin and not ways <= set(host.sharing):
                self.wrong.append(f"{name} {gpu.uuid}: shared in a way that policy does not allow")
            if ways == {"mps"} and len(sharing) > gpu.mps_clients:
                self.wrong.append(f"{name} {gpu.uuid}: more clients than MPS serves")
            full = sum(need.memory_mib for need in sharing) > gpu.memory_mib - host.shared_reserve_mib
            if full or len(sharing) > host.shared_max or sum(need.compute or 0 for need in sharing) > host.shared_compute + 1e-6:
                self.wrong.append(f"{name} {gpu.uuid}: shared by more than it can hold")

    # Who has no place could not have had one.

    def check_unplaced(self) -> None:
        for each in self.solution.unplaced:
            need = self.needs[each.service]
            if not each.reason or not each.help:
                self.say(each, "no reason is given")
            own = [place for place in self.here if (place.service, place.replica) == (each.service, each.replica)]
            if need.adopted or need.ports or need.rules.all_or_nothing or self._quota(need.team):
                continue
            if any(each.keep_room for each in self.problem.needs):
                continue  # whose room for a rollout it would take is a question of its own
            # Whom others have to have beside them does not go to another host.
            bound = {place.host for place in own if self._is_needed(place)}
            if any(self._has_room(host, need, own) for name, host in self.hosts.items() if not bound or name in bound):
                self.say(each, "could have been placed")
            if self.problem.preemption and not own:
                weaker = [place for place in self.here if self._weaker(place, need)]
                if any(self._has_room(host, need, weaker) for host in self.hosts.values()):
                    self.say(each, "waits for a lower priority")

    def _weaker(self, place: t.Any, need: t.Any) -> bool:
        """May the place be taken for a need? Together with those that are there only because of it; a group goes as a whole."""
        other = self.needs[place.service]
        group = [each for each in self.here if each.service == place.service] if other.rules.all_or_nothing else [place]
        hosts = {each.host for each in group}
        beside = [self.needs[each.service] for each in self.here if each.host in hosts and place.service in self._bound(each.service)]
        follow = [each for each in beside if each.service != place.service]
        return (
            not other.adopted
            and other.priority < need.priority
            and all(each.priority < need.priority and not each.adopted for each in follow)
        )

    def _is_needed(self, place: t.Any) -> bool:
        """Is somebody on its host who would be without those that it goes together with?"""
        there = [other for other in self.here if other.host == place.host and other is not place]
        bound = [other for other in there if place.service in self._bound(other.service)]
        return any(not any(beside.service in self._bound(other.service) for beside in there) for other in bound)

    def _bound(self, service: str) -> t.Any:
        return self.needs[service].rules.together

    # Who may not be beside whom is not, and who must be is.

    def check_rules(self) -> None:
        for name in self.hosts:
            there = [place for place in self.here if place.host == name]
            for place in there:
                need = self.needs[place.service]
                if not need.adopted and (why := self._against(need, [other for other in there if other is not place], place)):
                    self.say(place, why)
        for need in self.problem.needs:
            if need.rules.all_or_nothing and not need.adopted:
                mine = [place for place in (*self.solution.placements, *self.solution.waiting) if place.service == need.service]
                elsewhere = [place for place in mine if place.host not in self.hosts]
                if len(mine) not in (len(elsewhere), need.replicas):
                    self.wrong.append(f"{need.service}: {len(mine)} of {need.replicas} replicas, which is neither all nor none")

    def _against(self, need: t.Any, others: list[t.Any], place: t.Any = None) -> str:
        rules = need.rules
        same = [other for other in others if other.service == need.service]
        if rules.max_per_host is not None and len(same) + 1 > rules.max_per_host:
            return "too many of it on the host"
        gpus = place.gpus if place is not None else ()
        if rules.max_per_gpu is not None and any(sum(uuid in other.gpus for other in same) + 1 > rules.max_per_gpu for uuid in gpus):
            return "too many of it on a GPU"
        for other in others:
            if other.service in rules.apart or need.service in self.needs[other.service].rules.apart:
                return f"is not apart from {other.service}"
        if rules.together and not any(other.service in rules.together for other in others):
            return "is not together with those that it needs"
        return ""

    # No team has more than it may have.

    def _quota(self, team: str) -> t.Any:
        return next((quota for quota in self.problem.quotas if quota.team == team), None)

    def check_quotas(self) -> None:
        if all(place.host in self.hosts for place in self.solution.placements):  # of others only their hosts know what they have
            self.wrong += Ledger(self.problem, self.here, self.gpus).complaints()

    # Who had to leave a right place was asked to.

    def check_displaced(self) -> None:
        for each in self.solution.displaced:
            need = self.needs[each.service]
            here = [place for place in self.here if (place.service, place.replica) == (each.service, each.replica)]
            by = self.needs[each.by.rpartition("-")[0]]
            if need.adopted or any(self.kept(place) for place in here):
                self.say(each, "was not displaced at all, or must not be")
            if (each.way == "preempted" and (need.priority >= by.priority or not self.problem.preemption)) or need.priority > by.priority:
                self.say(each, f"gave way to {each.by}, which has no right to it")
            if each.way == "moved" and (not here or not self.problem.moves):
                self.say(each, "moved and should not have")
            if each.way == "moved" and need.move_cost > self.problem.moves:
                self.say(each, "moved, which costs more than may be")

    # Who is new takes no room that is kept for rollouts, and has its own.

    def check_kept_room(self) -> None:
        for name in self.hosts:
            there = [place for place in self.here if place.host == name]
            new = [place for place in there if not self.kept(place)]
            highest = max((self.needs[place.service].priority for place in new), default=0) if self.problem.preemption else 0
            mine = {place.service for place in new if self._keeps(place.service) and self.needs[place.service].priority >= highest}
            if not self._all_fit(name, sorted(mine), there):
                self.wrong.append(f"{name}: there is no room for rollouts of {sorted(mine)} beside what is there")
            # Nobody left, so what is new came to what there was: one service that had room has it still.
            keepers = sorted({place.service for place in there if self._keeps(place.service)} - mine)
            stayed = [place for place in there if place not in new]
            left = [
                place for place in self.problem.previous if place.host == name and not any(self.kept_at(place, each) for each in stayed)
            ]
            had = len(keepers) == 1 and not mine and not left and self.needs[keepers[0]].priority >= highest
            if had and self._all_fit(name, keepers, stayed, False) and not self._all_fit(name, keepers, there):
                self.wrong.append(f"{name}: the room for a rollout of {keepers[0]} was given away")

    def kept_at(self, old: t.Any, new: t.Any) -> bool:
        return (old.service, old.replica, old.mode, old.gpus, old.slice) == (new.service, new.replica, new.mode, new.gpus, new.slice)

    def _keeps(self, service: str) -> bool:
        return bool(self.needs[service].keep_room and not self.needs[service].adopted)

    def _all_fit(self, name: str, services: list[str], there: list[t.Any], planned: bool = True) -> bool:
        """Is there a place for one more of each, all at once, whatever has to be tried? ``planned``: beside the slices of the layouts."""
        if not services:
            return True
        host, need = self.hosts[name], self.needs[services[0]]
        for kind in ("cpus", "memory", "shm", "disk"):
            have = getattr(host.capacity, kind)
            used = sum(getattr(self.needs[place.service].resources, kind) for place in there)
            if have is not None and used + getattr(need.resources, kind) > have + 1e-6:
                return False
        ports = {port for place in there for _name, port in place.ports} | set(host.listening)
        ports |= {port for each in self.problem.needs for _name, port in each.ports if port is not None}
        spare = [port for port in host.ports if port not in ports]
        if len(spare) < len(need.ports):
            return False
        chosen = tuple((f"p{number}", spare[number]) for number in range(len(need.ports)))
        return any(
            self._all_fit(name, services[1:], [*there, _More(need.service, name, WANTED_MODE[need.isolation], gpus, one, chosen)], planned)
            for gpus, one in self._spots_for_one_more(host, need, there, planned)
        )

    def _spots_for_one_more(self, host: t.Any, need: t.Any, there: list[t.Any], planned: bool) -> t.Iterator[tuple[tuple[str, ...], t.Any]]:
        own = [place for place in there if place.service == need.service and not isinstance(place, _More)]
        least = need.memory_mib
        for place in own:
            gpu = self.gpus[(host.name, place.gpus[0])]
            if place.mode == "whole":
                least = max(least, gpu.memory_mib)
            elif place.mode == "mig":
                least = max(least, *(each.memory_mib for each in gpu.geometry.profiles if each.name == place.slice.profile))
        wanted = dataclasses.replace(need, memory_mib=least, rules=type(need.rules)())
        mode = WANTED_MODE[need.isolation]
        able = []
        for gpu in host.gpus:
            used = [place for place in there if gpu.uuid in place.gpus]
            if not used and not gpu.pin and (gpu.mig != (mode == "mig") or (mode == "shared" and need.sharing == "mps")):
                continue
            homes = {uuid for place in own for uuid in place.gpus}
            sizes = {self.gpus[(host.name, uuid)].memory_mib for uuid in homes}
            if mode == "shared" and ((need.sharing == "mps" and gpu.uuid not in homes) or sizes - {gpu.memory_mib}):
                continue
            # Who computes on a GPU without being in a plan keeps it from what is not decided yet.
            known = dataclasses.replace(gpu, outsiders=()) if used else gpu
            if mode == "mig":
                yield from (((gpu.uuid,), one) for one in self._slices_for_one_more(host, known, wanted, used, planned))
            elif self._gpu_has_room(host, known, wanted, [], [place for place in there if place.host == host.name]):
                able.append(gpu)
        if mode != "mig":
            for several in itertools.combinations(able, need.count):
                if len({gpu.board for gpu in several}) == 1:
                    yield tuple(gpu.uuid for gpu in several), None

    def _slices_for_one_more(self, host: t.Any, gpu: t.Any, need: t.Any, used: list[t.Any], planned: bool) -> t.Iterator[t.Any]:
        if gpu.geometry is None or not self._gpu_has_room(host, gpu, need, [], used):
            return
        layout = self.solution.layouts.get((host.name, gpu.uuid)) if planned else None
        owned = [place.slice for place in used]
        held = [each.slice for each in gpu.instances if each.outsiders]
        stay = [*layout.slices] if layout else held if used and not planned else [each.slice for each in gpu.instances]
        every = {*stay, *owned}
        free = [one for one in every if one not in owned and one not in held and not not_plain(gpu, one)]
        most = max(each.sm for each in gpu.geometry.profiles)
        for profile in gpu.geometry.profiles:
            if profile.memory_mib < need.memory_mib or profile.sm < (need.compute or 0) * most:
                continue
            if (need.profile and not same_profile(profile.name, need.profile)) or (not need.profile and "+" in profile.name):
                continue
            for start in profile.starts:
                new = Spot(start, profile.name)
                if any((one.start, one.profile) == new for one in free):
                    yield from (one for one in free if (one.start, one.profile) == new)
                    continue
                there = any((one.start, one.profile) == new for one in every)
                if not decided(gpu) and not there and not impossible(gpu.geometry, (*every, new)):
                    yield new

    def _has_room(self, host: t.Any, need: t.Any, own: list[t.Any]) -> bool:
        if host.environment != need.environment:
            return False
        if need.data_class != "" and host.data_classes.count(need.data_class) == 0:
            return False
        for kind in ("cpus", "memory", "shm", "disk"):
            have = getattr(host.capacity, kind)
            used = sum(
                getattr(self.needs[place.service].resources, kind) for place in self.here if place.host == host.name and place not in own
            )
            if have is not None and used + getattr(need.resources, kind) > have + 1e-6:
                return False
        if self._against(need, [place for place in self.here if place.host == host.name and place not in own]):
            return False
        free = [gpu for gpu in host.gpus if self._gpu_has_room(host, gpu, need, own)]
        if need.nvlink == "required" and need.count > 1:
            sets = itertools.combinations(free, need.count)
            return any(len({gpu.board for gpu in each}) == 1 and all_linked(each) for each in sets)
        boards = [gpu.board for gpu in free]
        return any(boards.count(board) >= need.count for board in boards)

    def _gpu_has_room(self, host: t.Any, gpu: t.Any, need: t.Any, own: list[t.Any], others: list[t.Any] | None = None) -> bool:
        mode = WANTED_MODE[need.isolation]
        here = self.here if others is None else others
        there = [place for place in here if place.host == host.name and gpu.uuid in place.gpus and place not in own]
        if gpu.blocked or gpu.cordoned or gpu.drain or gpu.outsiders or any(place.mode != mode for place in there):
            return False
        if (host.name, gpu.board) in need.bars:
            return False
        if not wanted_board(gpu.board, need):
            return False
        if (gpu.pin and gpu.pin.mode != mode) or (not gpu.pin and mode not in host.modes):
            return False
        if mode != "mig" and any(each.outsiders for each in gpu.instances):
            return False
        most = need.rules.max_per_gpu
        if most is not None and sum(place.service == need.service for place in there) >= most:
            return False
        if mode == "whole":
            return not there and gpu.memory_mib >= need.memory_mib
        if mode == "shared":
            sharing = [self.needs[place.service] for place in there]
            way = need.sharing
            if any(other.sharing != way for other in sharing) or (gpu.pin.sharing != way if gpu.pin else way not in host.sharing):
                return False
            if way == "mps" and len(there) >= gpu.mps_clients:
                return False
            memory = sum(other.memory_mib for other in sharing) + need.memory_mib
            compute = sum(other.compute or 0 for other in sharing) + (need.compute or 0)
            full = memory > gpu.memory_mib - host.shared_reserve_mib or compute > host.shared_compute
            return len(there) < host.shared_max and not full
        return gpu.geometry is not None and self._slice_has_room(gpu, need, [place.slice for place in there])

    def _slice_has_room(self, gpu: t.Any, need: t.Any, owned: list[t.Any]) -> bool:
        most = max(each.sm for each in gpu.geometry.profiles)
        held = [each.slice for each in gpu.instances if each.outsiders and each.slice not in owned]
        for profile in gpu.geometry.profiles:
            if profile.memory_mib < need.memory_mib or profile.sm < (need.compute or 0) * most:
                continue
            if (need.profile and not same_profile(profile.name, need.profile)) or (
                not need.profile and ("+" in profile.name or "-" in profile.name)
            ):
                continue
            for start in profile.starts:
                new = type(gpu.instances[0].slice)(start, profile.name) if gpu.instances else Spot(start, profile.name)
                if decided(gpu):
                    free = [(one.start, one.profile) for one in gpu.pin.slices if one not in owned and one not in held]
                    if (new.start, new.profile) in free:
                        return True
                elif not_plain(gpu, new):
                    continue
                elif not impossible(gpu.geometry, (*owned, *held, new)):
                    return True
        return False


class _More(t.NamedTuple):
    """What a rollout would have beside the others."""

    service: str
    host: str
    mode: str
    gpus: tuple[str, ...]
    slice: t.Any
    ports: tuple[tuple[str, int], ...]
