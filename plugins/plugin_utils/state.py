# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts and GPUs while a plan is made: what each has given away so far, and why it refuses a need."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.diary import Diary
from ansible_collections.gpuops.fleet.plugins.plugin_utils.packing import Cut, Cutter, Slices
from ansible_collections.gpuops.fleet.plugins.plugin_utils.placement_rules import Rulebook
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MPS,
    TIME_SLICE,
    Bar,
    Gpu,
    GpuLayout,
    Host,
    Mode,
    Need,
    Placement,
    Sharing,
    port_set,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.quotas import Books, Charge, Debit, share_charge, slice_charge, whole_charge
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import several

T = t.TypeVar("T")


class GpuState:
    """One GPU: its mode once decided, and who is on it.

    ``fixed`` slices stay whatever comes (given away, or held by somebody unknown); ``spare`` ones are there, and nobody needs them.
    """

    def __init__(self, gpu: Gpu, host: Host, cutter: Cutter | None, books: Books | None = None) -> None:
        self.gpu = gpu
        self.host = host
        self.books = books or Books((), ())
        self.cutter = cutter
        self.mode: Mode | None = gpu.pin.mode if gpu.pin else None
        self.sharing: Sharing | None = gpu.pin.sharing if gpu.pin and gpu.pin.mode == "shared" else None
        self.owners: dict[Slice, str] = {}
        self.tenants: list[str] = []
        self.memory_free = gpu.memory_mib - host.shared_reserve_mib
        self.compute_free = host.shared_compute
        self.replicas: dict[str, int] = {}
        # UUIDs of the GPUs of the host that NVLink joins it with.
        self.peers: frozenset[str] = frozenset()
        self.fixed, self.spare, self.reusable = self._slices()
        self._found = (self.spare, self.reusable)
        self._cuts: dict[tuple[str, ...], Cut | None] = {}

    def _slices(self) -> tuple[Slices, Slices, Slices]:
        """What is on the board, or what the platform says will be: (cannot go, may go, may be given away)."""
        held = tuple(sorted(each.slice for each in self.gpu.instances if each.outsiders))
        if self.gpu.pin is not None and self.gpu.fixed:
            return (), self.gpu.pin.slices, tuple(one for one in self.gpu.pin.slices if one not in held)
        free = [each for each in self.gpu.instances if not each.outsiders]
        return held, tuple(sorted(each.slice for each in free)), tuple(sorted(each.slice for each in free if each.plain))

    def barred(self, need: Need) -> Bar | None:
        """The compatibility gate's no to a service on this kind of GPU of this host."""
        return need.bars.get((self.host.name, self.gpu.board))

    def serves(self, need: Need) -> bool:
        """May a new place of this service be on this GPU, as far as its owner and the compatibility gate say?"""
        return need.wants(self.gpu.board) and self.barred(need) is None

    def refusal(self, mode: Mode, sharing: Sharing = TIME_SLICE, told: bool = True) -> str | None:
        """Why nothing new can be put here in this mode, shared in this way; None when something may. ``told``: with who has it."""
        gpu = self.gpu
        if gpu.blocked is not None:
            return gpu.blocked
        if gpu.closed is not None:
            return gpu.closed
        if mode == "mig" and self.cutter is None:
            return "without MIG"
        if gpu.pin is None and mode not in self.host.modes:
            return f"may not be {mode} (fleet_gpu_modes)"
        if self.mode is not None and self.mode != mode:
            return f"{'pinned as' if gpu.pin else 'already'} {self.mode}{self._whose(told)}"
        if mode == "whole" and self.tenants:
            return f"already whole{self._whose(told)}"
        if mode == "shared" and not self._shares(sharing):
            if self.sharing is None:
                return f"may not be shared by {sharing} (fleet_sharing)"
            return f"{'pinned as' if gpu.pin else 'already'} shared by {self.sharing}{self._whose(told)}"
        if busy := self.busy(mode):
            return f"busy with {busy[0] if told else 'somebody'}, which is in no plan"
        return None

    def busy(self, mode: Mode) -> list[str]:
        """Who computes where a place of this mode would be and is in no plan, while nobody is there who is in one."""
        if self.tenants or self.owners:
            return []
        return [*self.gpu.outsiders, *(name for each in self.gpu.instances if mode != "mig" for name in each.outsiders)]

    def _shares(self, sharing: Sharing) -> bool:
        """May it be shared in this way? All sharers of one GPU share it in the same."""
        return self.sharing == sharing if self.sharing is not None else sharing in self.host.sharing

    def _whose(self, told: bool) -> str:
        names = sorted({*self.tenants, *self.owners.values()})
        if not names or not told:
            return ""
        return f" for {names[0]}" if len(names) == 1 else f" for {names[0]} and {len(names) - 1} more"

    @property
    def in_use(self) -> bool:
        """Has anybody got any of it?"""
        return bool(self.owners or self.tenants)

    @property
    def empty(self) -> bool:
        """Could it be given away, and has nobody got any of it?"""
        return self.gpu.blocked is None and not self.in_use

    def changes_mode(self, mode: Mode) -> bool:
        """Would the GPU have to change between MIG and no MIG?"""
        return self.gpu.mig != (mode == "mig")

    def best_cut(self, names: tuple[str, ...]) -> Cut | None:
        """The best slice here for a need that the profiles ``names`` would serve."""
        if self.cutter is None:
            return None
        if names not in self._cuts:
            self._cuts[names] = self.cutter.best(self.fixed, self.spare, self.reusable, names, self.gpu.fixed)
        return self._cuts[names]

    def full(self, mode: Mode) -> bool:
        """Is there no slice that could be given away, whatever its profile? Only what is cut can be full in this sense."""
        if mode != "mig" or self.cutter is None:
            return False
        return self.cutter.best(self.fixed, self.spare, self.reusable, tuple(self.cutter.profiles), self.gpu.fixed) is None

    def open_for(self, mode: Mode) -> bool:
        """Can the GPU still become ``mode``, whatever policy says about new services?"""
        if self.mode is None:
            return mode == "mig" or not self.fixed
        return self.mode == mode and not (mode == "whole" and self.tenants)

    def take_slice(self, owner: str, service: str, new: Slice) -> bool:
        """Give a slice to a replica; False when it cannot be."""
        if self.cutter is None or not self.open_for("mig") or (self.gpu.fixed and new not in self.spare):
            return False
        added = self.cutter.add(self.fixed, self.spare, new)
        if added is None:
            return False
        self.fixed, self.spare = added
        self.reusable = tuple(one for one in self.reusable if one in self.spare)
        self.mode = "mig"
        self.owners[new] = owner
        self._count(service)
        return True

    def take_whole(self, owner: str, service: str) -> None:
        """Give the GPU as a whole to a replica; ``open_for`` is asked before, of all GPUs of the replica."""
        self.mode = "whole"
        self.tenants.append(owner)
        self._count(service)

    def take_share(self, owner: str, service: str, memory_mib: int, compute: float, sharing: Sharing = TIME_SLICE) -> bool:
        """Give a share to a replica; False when the GPU is something else. Whether it is full is asked before (``shared_refusal``)."""
        if not self.open_for("shared") or self.sharing not in (None, sharing):
            return False
        self.mode = "shared"
        self.sharing = sharing
        self.tenants.append(owner)
        self.memory_free -= memory_mib
        self.compute_free = round(self.compute_free - compute, 6)
        self._count(service)
        return True

    def leave(self, owner: str, service: str, memory_mib: int, compute: float) -> None:
        """Take back what a replica was given; a slice that is on the board stays there, and nobody needs it any more."""
        for one in [one for one, name in self.owners.items() if name == owner]:
            del self.owners[one]
            self.fixed = tuple(each for each in self.fixed if each != one)
            self._come_back()
        if owner in self.tenants:
            self.tenants.remove(owner)
            if self.mode == "shared":  # who had the whole GPU took no share of it
                self.memory_free += memory_mib
                self.compute_free = round(self.compute_free + compute, 6)
        if not self.in_use:
            self.mode = self.gpu.pin.mode if self.gpu.pin else None
            self.sharing = self.gpu.pin.sharing if self.gpu.pin and self.gpu.pin.mode == "shared" else None
        self._count(service, -1)

    def _come_back(self) -> None:
        """Of the slices that were found, those that can stay beside what is given away."""
        kept, spare = self.fixed, []
        for one in self._found[0]:
            if one not in self.fixed and self.cutter is not None and self.cutter.fits(kept, one):
                kept = (*kept, one)
                spare.append(one)
        self.spare = tuple(spare)
        self.reusable = tuple(one for one in self._found[1] if one in spare)

    def save(self) -> tuple[t.Any, ...]:
        """Everything that may change, for :meth:`load`."""
        given = (dict(self.owners), list(self.tenants), dict(self.replicas), self._cuts)
        return (self.mode, self.sharing, self.memory_free, self.compute_free, self.fixed, self.spare, self.reusable, *given)

    def load(self, saved: tuple[t.Any, ...]) -> None:
        """Back to how it was; ``saved`` is used up."""
        self.mode, self.sharing, self.memory_free, self.compute_free, self.fixed, self.spare, self.reusable = saved[:7]
        self.owners, self.tenants, self.replicas, self._cuts = saved[7:]

    def names(self) -> list[str]:
        """The replicas that are on it, by name."""
        return sorted({*self.tenants, *self.owners.values()})

    def charges(self, need: Need) -> Iterator[Charge]:
        """What a place on a GPU of this board would count."""
        if not need.wants(self.gpu.board):
            return
        if need.isolation == "exclusive":
            if self.gpu.memory_mib >= need.memory_mib:
                yield whole_charge([(self.gpu.board, self.gpu.counted_mib)] * need.count)
        elif need.isolation == "shared":
            yield share_charge(self.gpu.board, need.memory_mib)
        elif self.cutter is not None:
            for name in self.cutter.acceptable(need.memory_mib, need.compute, need.profile):
                yield self.slice_charge(name)

    def profiles(self, need: Need) -> tuple[str, ...]:
        """Names of the profiles that serve a need and that its team may still have."""
        if self.cutter is None:
            return ()
        names = self.cutter.acceptable(need.memory_mib, need.compute, need.profile)
        if not names or not self.books.tight(need.team):
            return names
        known, asked = self.books.known(need.team), ("profiles", self.gpu.board, id(self.cutter), names)
        if asked not in known:
            known[asked] = tuple(name for name in names if self.books.refusal(need.team, self.slice_charge(name)) is None)
        allowed: tuple[str, ...] = known[asked]
        return allowed

    def slice_charge(self, profile: str) -> Charge:
        """What a slice of this profile counts against a quota."""
        if self.cutter is None or profile not in self.cutter.profiles:
            return ()
        found = self.cutter.profiles[profile]
        return slice_charge(self.gpu.board, found.memory_mib, found.size)

    def debit(self, need: Need) -> Debit | None:
        """The limit of a quota that keeps one more replica away, whatever it gets here; None when none does."""
        if not self.books.tight(need.team, need.count):
            return None
        if need.isolation == "shared":
            return self.books.refusal(need.team, share_charge(self.gpu.board, need.memory_mib))
        if need.isolation == "exclusive":
            return self.books.refusal(need.team, whole_charge([(self.gpu.board, self.gpu.counted_mib)] * need.count))
        names = () if self.cutter is None else self.cutter.acceptable(need.memory_mib, need.compute, need.profile)
        if not names or self.profiles(need):
            return None
        return self.books.refusal(need.team, self.slice_charge(names[0]))

    def crowded(self, need: Need) -> bool:
        """Has it as many replicas of the service as one GPU may have?"""
        most = need.rules.max_per_gpu
        return most is not None and self.replicas.get(need.service, 0) >= most

    def shared_refusal(self, memory_mib: int, compute: float, sharing: Sharing = TIME_SLICE) -> str | None:
        """Why one more sharer does not fit."""
        if sharing == MPS and len(self.tenants) >= self.gpu.mps_clients:
            return f"full with {len(self.tenants)} clients, all that MPS serves"
        if len(self.tenants) >= self.host.shared_max:
            return f"full with {several(len(self.tenants), 'sharer')} (fleet_shared_max)"
        if memory_mib > self.memory_free:
            return "without that much memory left to share"
        if compute > self.compute_free:
            return "without that much compute left to share"
        return None

    def _count(self, service: str, by: int = 1) -> None:
        self.replicas[service] = self.replicas.get(service, 0) + by
        self._cuts = {}

    def layout(self) -> GpuLayout | None:
        """What the GPU is to be; None when no decision touches it."""
        if self.mode is None or self.gpu.blocked is not None or (self.gpu.pin is None and not self.in_use):
            return None
        return GpuLayout(self.mode, tuple(sorted((*self.fixed, *self.spare))) if self.mode == "mig" else (), self.sharing or TIME_SLICE)


class HostState:
    """One host: resources and ports that are left, and its GPUs by PCI address."""

    def __init__(
        self,
        host: Host,
        gpus: Iterable[GpuState],
        books: Books | None = None,
        rulebook: Rulebook | None = None,
        diary: Diary | None = None,
        turn: int = 0,
    ) -> None:
        self.host = host
        # Which host it is of all of the fleet, in the order that decides where nothing else does.
        self.turn = turn
        self.diary = diary or Diary()
        self.books = books or Books((), ())
        self.rulebook = rulebook or Rulebook(())
        # What it can do for a kind of need, until something changes here; and as long as nothing has.
        self.answers: dict[t.Any, t.Any] = {}
        self._untouched = self.answers
        self.gpus = sorted(gpus, key=lambda state: (state.gpu.pci, state.gpu.uuid))
        self.by_uuid = {state.gpu.uuid: state for state in self.gpus}
        self.boards = frozenset(state.gpu.board for state in self.gpus)
        self._link()
        self.free = host.capacity
        self._port_set = port_set(host.ports)
        self.ports: dict[int, str] = {}
        # What replicas that are still wanted hold by their last plan: while it is decided who stays, nobody else gets these.
        self.claimed: dict[int, str] = {}
        self.replicas: dict[str, int] = {}

    def _link(self) -> None:
        peers: dict[str, set[str]] = {}
        for state in self.gpus:
            for uuid in state.gpu.links or ():
                if uuid in self.by_uuid:
                    peers.setdefault(state.gpu.uuid, set()).add(uuid)
                    peers.setdefault(uuid, set()).add(state.gpu.uuid)
        for one, others in peers.items():
            self.by_uuid[one].peers = frozenset(others)

    def open_gpus(self, mode: Mode, sharing: Sharing) -> Sequence[GpuState]:
        """The GPUs on which something new of this mode could be, as far as can be told of all that might ask for it."""
        return self.once(
            ("open", mode, sharing),
            lambda: [state for state in self.gpus if state.refusal(mode, sharing, told=False) is None and not state.full(mode)],
        )

    def once(self, asked: object, found: Callable[[], T]) -> T:
        """What is found, and found again only after something has changed here."""
        if asked not in self.answers:
            self.answers[asked] = found()
        known: T = self.answers[asked]
        return known

    @property
    def touched(self) -> bool:
        """Has anything changed here since the fleet was made?"""
        return self.answers is not self._untouched

    def parts(self, state: GpuState) -> int:
        """How many empty GPUs it is joined with, if it is empty itself: they would be without it."""
        if not state.peers or not state.empty:
            return 0
        return sum(self.by_uuid[uuid].empty for uuid in state.peers)

    def looks(self) -> tuple[t.Any, ...]:
        """All of the host but its name and those of its GPUs, as it was found."""
        each = [
            (id(state.cutter), gpu.mig, gpu.instances, gpu.blocked, gpu.cordoned, gpu.drain, gpu.pin, gpu.outsiders)
            for state in self.gpus
            for gpu in (state.gpu,)
        ]
        return (self.host.model, self.host.capacity.disk, self.host.listening, self.host.ports, self.host.down, *each)

    def rule_refusal(self, need: Need, together: bool = True) -> str | None:
        """Why one more replica would be against a rule about who is beside whom; None when it is not."""
        return self.rulebook.refusal(need, self.replicas, together)

    def save(self) -> tuple[t.Any, ...]:
        """Everything that may change besides its GPUs, for :meth:`load`."""
        return (self.free, dict(self.ports), dict(self.replicas), self.answers)

    def load(self, saved: tuple[t.Any, ...]) -> None:
        """Back to how it was; ``saved`` is used up."""
        now = self.replicas
        self.free, self.ports, self.replicas, self.answers = saved
        self.diary.changed.append(self.turn)
        if now != self.replicas:
            for service in {**now, **self.replicas}:
                self.diary.note(self.turn, self.replicas, service)

    def names(self) -> set[str]:
        """The replicas that are on its GPUs, by name."""
        return {name for state in self.gpus for name in state.names()}

    def seat_as(self, other: HostState) -> None:
        """Whoever is on the same host in another fleet is on this one, on which nobody is yet. Quotas know nothing of it."""
        self.free, self.ports, self.replicas = other.free, dict(other.ports), dict(other.replicas)
        for state, like in zip(self.gpus, other.gpus, strict=True):
            state.load(like.save())
        for service in self.replicas:
            self.diary.note(self.turn, self.replicas, service)
        self.forget()

    def forget(self) -> None:
        """Something has changed here: what was said before holds no more."""
        self.answers = {}
        self.diary.changed.append(self.turn)

    def charge(self, need: Need, placement: Placement) -> Charge:
        """What a place counts against a quota. Of GPUs that nobody sees: what was asked for."""
        states = [self.by_uuid[uuid] for uuid in placement.gpus if uuid in self.by_uuid]
        if placement.mode == "shared":
            return share_charge(states[0].gpu.board if states else "", need.memory_mib)
        if placement.slice is not None and states and (charge := states[0].slice_charge(placement.slice.profile)):
            return charge
        return unseen_charge(need) if not states else whole_charge((state.gpu.board, state.gpu.counted_mib) for state in states)

    def usable(self, uuids: Iterable[str]) -> tuple[GpuState, ...]:
        """The GPUs of these names, if all are here and well; else none."""
        found: list[GpuState] = []
        for uuid in uuids:
            state = self.by_uuid.get(uuid)
            if state is None or state.gpu.blocked is not None:
                return ()
            found.append(state)
        return tuple(found)

    def port_refusal(self, port: int, replica: str) -> str | None:
        """Why ``replica`` cannot have this port of the host."""
        holder = self.ports.get(port) or self.claimed.get(port)
        if holder is not None and holder != replica:
            return f"port {port} is that of {holder}"
        if port in self.host.listening:
            return f"port {port} is in use on the host"
        return None

    def choose_ports(
        self,
        need: Need,
        replica: str,
        before: Mapping[str, int],
        asked: frozenset[int],
        published: Mapping[int, str] = MappingProxyType({}),
    ) -> dict[str, int] | str:
        """A port for each that the service has, or why there is none.

        ``before``: the ports of its last plan, if that was on this host. ``asked``: ports that some service asks for by number.
        ``published``: replicas that may serve on when this one starts, by the ports that the last plans gave them here: one of these only
        if no other is left.
        """
        chosen: dict[str, int] = {}
        own = before.values()
        by_number = {port for _name, port in need.ports if port is not None}
        for name, wanted in need.ports:
            port = wanted
            if port is None:
                old = before.get(name)
                taken = by_number.union(chosen.values())
                stays = old in self._port_set and old not in taken and old is not None and self.port_refusal(old, replica) is None
                port = old if stays else self._free_port(replica, taken.union(own), asked, published)
            if port is None:
                return "no port is left (fleet_ports)"
            refusal = self.port_refusal(port, replica)
            if refusal is not None:
                return refusal
            chosen[name] = port
        return chosen

    def _free_port(self, replica: str, taken: Set[int], asked: frozenset[int], published: Mapping[int, str]) -> int | None:
        held, second = self.ports, None
        for port in self.host.ports:
            if port in held and held[port] != replica:  # most of them, on a full host
                continue
            if port not in taken and port not in asked and self.port_refusal(port, replica) is None:
                if published.get(port, replica) == replica:
                    return port
                second = port if second is None else second
        return second

    def seat(self, need: Need, placement: Placement) -> None:
        """Book what a replica takes besides its GPUs."""
        self.free = self.free.less(need.resources)
        self.ports.update({port: placement.name for _name, port in placement.ports})
        self.replicas[need.service] = self.replicas.get(need.service, 0) + 1
        self.books.book(placement.name, need.team, self.charge(need, placement))
        self.diary.note(self.turn, self.replicas, need.service)
        self.forget()

    def unseat(self, need: Need, placement: Placement) -> None:
        """The reverse of :meth:`seat`, of the GPUs too."""
        self.free = self.free.more(need.resources)
        for port in [port for port, name in self.ports.items() if name == placement.name]:
            del self.ports[port]
        self.replicas[need.service] -= 1
        self.books.strike(placement.name)
        self.diary.note(self.turn, self.replicas, need.service)
        self.forget()
        for state in self.usable(placement.gpus):
            state.leave(placement.name, need.service, need.memory_mib, need.compute or 0)


def take(need: Need, place: Placement, states: tuple[GpuState, ...]) -> bool:
    """Give the GPUs of a place away, without anything of the host; False when they cannot be."""
    if place.slice is not None:
        return states[0].take_slice(place.name, need.service, place.slice)
    if place.mode == "shared":
        return states[0].take_share(place.name, need.service, need.memory_mib, need.compute or 0, place.sharing)
    if not all(state.open_for("whole") for state in states):
        return False
    for state in states:
        state.take_whole(place.name, need.service)
    return True


def unseen_charge(need: Need) -> Charge:
    """What a replica counts whose GPUs nobody sees: of a host that is not part of the run, or down."""
    if need.isolation == "exclusive":
        return whole_charge([("", need.memory_mib)] * need.count)
    return slice_charge("", need.memory_mib, 1) if need.isolation == "slice" else share_charge("", need.memory_mib)
