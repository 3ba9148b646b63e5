# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the planner is asked and what it answers: plain frozen data, nothing of files, YAML or Ansible.

Memory is in MiB, compute in shares of one GPU (0 to 1). A GPU is named by UUID, a slice by (start, profile) on its GPU.
"""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import MPS_CLIENTS
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name

Mode = t.Literal["mig", "whole", "shared"]
# How several services share one GPU: by turns, or at the same time through MPS.
Sharing = t.Literal["time-slice", "mps"]
TIME_SLICE: Sharing = "time-slice"
MPS: Sharing = "mps"
# What joined GPUs are to a replica of several.
Nvlink = t.Literal["preferred", "required"]
# The mode that a GPU must have for a service to get what its manifest calls isolation.
MODE_OF: dict[str, Mode] = {"slice": "mig", "exclusive": "whole", "shared": "shared"}
# How often the compute of a shared GPU may be given away at most (fleet_shared_compute).
MOST_SHARED_COMPUTE: t.Final = 10
# How many may share a GPU at most (fleet_shared_max).
MOST_SHARERS: t.Final = 64
# What ends a drain of a GPU, and one of its whole host.
RELEASE: t.Final = "run playbook release"
RELEASE_HOST: t.Final = f"{RELEASE} for the whole host"


@dataclass(frozen=True)
class Resources:
    """CPU cores, and MiB of memory, shared memory and disk. ``None`` in a capacity: not known, so not limited."""

    cpus: float | None = 0
    memory: int | None = 0
    shm: int | None = 0
    disk: int | None = 0

    def less(self, other: Resources) -> Resources:
        """What is left; what is not known stays not known. May be negative: an adopted service runs, whatever fits."""
        return Resources(
            None if self.cpus is None else round(self.cpus - (other.cpus or 0), 6),
            None if self.memory is None else self.memory - (other.memory or 0),
            None if self.shm is None else self.shm - (other.shm or 0),
            None if self.disk is None else self.disk - (other.disk or 0),
        )

    def more(self, other: Resources) -> Resources:
        """The reverse of :meth:`less`."""
        return self.less(Resources(-(other.cpus or 0), -(other.memory or 0), -(other.shm or 0), -(other.disk or 0)))

    def holds(self, need: Resources) -> bool:
        """Is there no shortage? It is asked for often, so each is written out."""
        return (
            (self.cpus is None or (need.cpus or 0) <= self.cpus)
            and (self.memory is None or (need.memory or 0) <= self.memory)
            and (self.shm is None or (need.shm or 0) <= self.shm)
            and (self.disk is None or (need.disk or 0) <= self.disk)
        )

    def shortage(self, need: Resources) -> dict[str, tuple[float, float]]:
        """Where ``need`` is more than is here: name -> (needed, free)."""
        if self.holds(need):
            return {}
        pairs = (
            ("cpus", need.cpus, self.cpus),
            ("memory", need.memory, self.memory),
            ("shm", need.shm, self.shm),
            ("disk", need.disk, self.disk),
        )
        return {name: (want or 0, have) for name, want, have in pairs if have is not None and (want or 0) > have}


@dataclass(frozen=True)
class Instance:
    """A GPU instance that is on the board now. ``plain``: one compute instance fills it, or none is there yet.

    ``temporary``: made for a rollout whose surge holds it still; it goes with that, so that no layout has it.
    """

    slice: Slice
    plain: bool = True
    outsiders: tuple[str, ...] = ()
    temporary: bool = False


@dataclass(frozen=True)
class Pin:
    """What the platform decided about a GPU (``fleet_gpu_layouts``): the planner assigns into it and changes nothing.

    ``cuts``: only the mode is decided; the planner cuts the GPU as services need it.
    """

    mode: Mode
    slices: tuple[Slice, ...] = ()
    sharing: Sharing = TIME_SLICE
    cuts: bool = False


@dataclass(frozen=True)
class Drain:
    """Somebody wants a GPU empty. ``words``: who, why and until when. ``force``: also of what finds no place elsewhere.

    ``remedy``: what ends it; ``cause``: what it is, of :data:`repair_kinds.CAUSES`. ``of_host``: that of its whole host. ``parts``: where
    there are several, each of them.
    """

    words: str
    force: bool = False
    remedy: str = RELEASE
    cause: str = "drain"
    of_host: bool = False
    parts: tuple[Drain, ...] = ()

    def of(self, host: bool) -> Drain | None:
        """What of it is of the whole host, or of the GPU alone."""
        return as_one([each for each in self.parts or (self,) if each.of_host == host])


def as_one(drains: Sequence[Drain]) -> Drain | None:
    """Who ends one of them has not ended the others: all are told, and what ends all. With force if any has it."""
    if len(drains) < 2:
        return drains[0] if drains else None
    told, remedies = (list(dict.fromkeys(texts)) for texts in ([each.words for each in drains], [each.remedy for each in drains]))
    if {RELEASE, RELEASE_HOST} <= set(remedies):
        remedies = [f"{RELEASE} for it and for its whole host", *(each for each in remedies if each not in (RELEASE, RELEASE_HOST))]
    force = any(each.force for each in drains)
    of_host = all(each.of_host for each in drains)
    return Drain(" and ".join(told), force, " and ".join(remedies), drains[0].cause, of_host, tuple(drains))


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``geometry`` is None without MIG; ``mig`` the mode it has, or will have after the reset that it waits for.

    ``blocked``: why it is never used (lost, say); ``away``: because virtual machines have it, or parts of it. ``outsiders``: who
    computes on the whole GPU without being in a plan.
    ``mps_clients``: how many an MPS daemon on it serves at once.
    ``links``: the GPUs of its host that NVLink joins it with, by UUID; None where nobody knows.
    ``sold_mib``: of one that nobody has seen, what it may turn out to have at most.
    ``cordoned`` keeps new services away; ``drain`` does so too, and what is on the GPU leaves it if there is another place.
    """

    uuid: str
    pci: str
    board: str
    memory_mib: int
    geometry: Geometry | None = None
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    blocked: str | None = None
    away: bool = False
    cordoned: bool = False
    drain: Drain | None = None
    pin: Pin | None = None
    outsiders: tuple[str, ...] = ()
    mps_clients: int = MPS_CLIENTS
    links: tuple[str, ...] | None = None
    sold_mib: int = 0

    @property
    def counted_mib(self) -> int:
        """What a quota counts of the whole GPU."""
        return max(self.memory_mib, self.sold_mib)

    @property
    def short(self) -> str:
        """For people: ``GPU-5c1f07aa``."""
        return self.uuid[:12]

    @property
    def fixed(self) -> bool:
        """Has the platform decided its slices, so that the planner only gives them away?"""
        return self.pin is not None and not self.pin.cuts

    def drained_words(self, host: str) -> str:
        """Of one that is drained: which it is, why, and what ends it; of a whole host, that."""
        drain = t.cast("Drain", self.drain)
        return f"{host if drain.of_host else f'{host} {self.short}'} is {drain.words}: {drain.remedy}"

    @property
    def closed(self) -> str | None:
        """Why nothing new is put here although the GPU is well; None when something may be."""
        if self.drain is not None:
            return self.drain.words
        return "cordoned" if self.cordoned else None


@dataclass(frozen=True)
class Host:
    """One host: what policy allows on it, what it can still give (the reserve is already taken off), and its GPUs.

    ``listening``: ports in use by what no plan has put there.
    ``down``: nobody reaches it. It gets nothing, whatever its GPUs; adopted services stay on it, the others go where there is a place.
    ``last``: of one that is down, what it was when its facts were published, where that is known.
    ``data_classes``: of the classes of data that services name, those that may be here.
    """

    name: str
    environment: str
    gpus: tuple[Gpu, ...]
    modes: tuple[str, ...] = ("mig", "whole")
    sharing: tuple[str, ...] = (TIME_SLICE,)
    shared_max: int = 4
    shared_reserve_mib: int = 1024
    shared_compute: float = 1.0
    capacity: Resources = Resources(None, None, None, None)
    ports: tuple[int, ...] = tuple(range(18000, 19000))
    listening: frozenset[int] = frozenset()
    down: bool = False
    data_classes: tuple[str, ...] = ()
    last: Host | None = None

    @cached_property
    def order(self) -> str:
        """Which host comes first where nothing else tells two apart: the one with more GPUs, then by :attr:`model`, then by name.

        So a name decides only between hosts of the same hardware under the same policy. Nothing counts that a plan changes, or a day does.
        As text, which is compared quickly: hosts are sorted for each plan that is tried.
        """
        return f"{9999 - len(self.gpus):04d} {self.model} {self.name}"

    @cached_property
    def model(self) -> str:
        """Its hardware and the policy for it: what stays as it is."""
        gpus = sorted(self.gpus, key=lambda gpu: (gpu.pci, gpu.uuid))
        numbers = {gpu.uuid: number for number, gpu in enumerate(gpus)}
        boards = tuple((gpu.pci, gpu.board, gpu.memory_mib, gpu.mps_clients) for gpu in gpus)
        links = tuple(tuple(sorted(numbers[uuid] for uuid in gpu.links or () if uuid in numbers)) for gpu in gpus)
        capacity = tuple(-1 if amount is None else amount for amount in (self.capacity.cpus, self.capacity.memory, self.capacity.shm))
        shared = (self.shared_max, self.shared_reserve_mib, self.shared_compute)
        allowed = (tuple(sorted(self.modes)), tuple(sorted(self.sharing)), shared, tuple(sorted(self.data_classes)))
        ports = (len(self.ports), *self.ports[:1], *self.ports[-1:])
        return str((boards, capacity, links, self.environment, allowed, ports))

    def admits(self, need: Need) -> bool:
        """May the service be here, whatever room there is: is the environment its own, and may the class of its data be here?"""
        return self.environment == need.environment and self.may_have(need)

    def most_sharers(self, gpu: Gpu, sharing: Sharing) -> int:
        """How many one of its GPUs serves at once when it is shared so."""
        return min(self.shared_max, gpu.mps_clients) if sharing == MPS else self.shared_max

    def may_have(self, need: Need) -> bool:
        """May the class of data that the service handles be here? A service that names none goes anywhere."""
        return not need.data_class or need.data_class in self.data_classes


@lru_cache(64)
def port_set(ports: tuple[int, ...]) -> frozenset[int]:
    """Most hosts have the same thousand ports, which would be most of what a host takes."""
    return frozenset(ports)


class Deed(t.NamedTuple):
    """One thing that somebody can do about what the compatibility gate says, in a line. ``of_host``: to the host, so that it is done for
    every service; else to the image of one service. ``driver``: the least one that it asks for; a newer one does as well. ``here``: False
    where all that is left is to place the service on another host."""

    words: str
    of_host: bool = True
    driver: tuple[int, ...] = ()
    here: bool = True

    def does(self, other: Deed) -> bool:
        """Is the other one done by this?"""
        newer = bool(other.driver) and self.of_host and other.of_host and self.driver >= other.driver
        return newer or (self.words, self.of_host) == (other.words, other.of_host)


class Bar(t.NamedTuple):
    """Why the compatibility gate keeps a service from a kind of GPU of a host, and what would open it; either is one line. ``deeds``: the
    latter in parts, all of which it takes."""

    reason: str
    remedy: str
    deeds: tuple[Deed, ...] = ()

    @property
    def missing(self) -> tuple[Deed, ...]:
        """What it takes; where nothing is known that would do, that something else is found for this one service."""
        return self.deeds or (Deed(self.remedy or self.reason, bool(self.remedy)),)


# (host, board) -> the bar; what is not in it is open.
Bars = Mapping[tuple[str, str], Bar]


def bars_after(bars: Bars, deed: Deed, host: str | None = None) -> Bars:
    """What the gate says once something is done; ``host``: to this one."""
    found: dict[tuple[str, str], Bar] = {}
    for place, shut in bars.items():
        left = shut.missing if host not in (None, place[0]) else tuple(each for each in shut.missing if not deed.does(each))
        if left:
            found[place] = shut if len(left) == len(shut.missing) else shut._replace(deeds=left)
    return found


# Away from replicas of the same service, on other hosts first (host) or only on other GPUs (gpu); or as near to them as may be (pack).
Spread = t.Literal["host", "gpu", "pack"]


@dataclass(frozen=True)
class Rules:
    """Where the replicas of a service may be beside others. ``spread`` is a wish, all else a must.

    ``apart``: services that are never on one host with this one, whichever of the two says so. ``together``: a replica is only on a host
    that has one of these. ``all_or_nothing``: all replicas get a place, or none does.
    """

    spread: Spread = "host"
    max_per_host: int | None = None
    max_per_gpu: int | None = None
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    all_or_nothing: bool = False


# What a quota counts: MiB of GPU memory, memory slices of MIG boards, whole GPUs.
Counted = t.Literal["memory", "slices", "gpus"]


@dataclass(frozen=True)
class Limit:
    """At most ``most`` of what is counted; with ``board`` only on boards whose catalogue id has that word in it."""

    counted: Counted
    most: int
    board: str = ""


@dataclass(frozen=True)
class Quota:
    """What a team may have. ``borrow``: also what teams of its workspace that ``lend`` have not used."""

    team: str
    limits: tuple[Limit, ...] = ()
    workspace: str | None = None
    borrow: bool = False
    lend: bool = False


@dataclass(frozen=True)
class Workspace:
    """What the teams of one workspace may have together."""

    name: str
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Need:
    """One service. ``ports``: (name, host port asked for or None). ``memory_mib`` is needed on each GPU or slice.

    ``sharing`` counts with isolation ``shared`` only. ``bars``: where the compatibility gate says no.
    ``team``: whose quota it counts against; a team without a quota has no limit. ``data_class``: of the data that it handles; '' for none.
    ``keep_room``: on each host with a replica of it, room stays free for one more, which a rollout has beside it.
    ``move_cost``: as how many moves one of it counts, where others move to make room.
    ``nvlink``: of several GPUs, whether NVLink has to join each with each other, or had better.
    """

    service: str
    environment: str
    isolation: str
    memory_mib: int = 0
    replicas: int = 1
    priority: int = 50
    count: int = 1
    profile: str | None = None
    compute: float | None = None
    sharing: Sharing = TIME_SLICE
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    resources: Resources = Resources()
    ports: tuple[tuple[str, int | None], ...] = ()
    adopted: bool = False
    bars: Bars = field(default_factory=dict, hash=False)
    team: str = ""
    rules: Rules = Rules()
    nvlink: Nvlink = "preferred"
    data_class: str = ""
    keep_room: bool = False
    move_cost: int = 1

    def wants(self, board: str) -> bool:
        """May this service run on a board of this catalogue id?"""
        return _wants(self.models, self.not_models, board)


@lru_cache(maxsize=4096)
def _wants(models: tuple[str, ...], not_models: tuple[str, ...], board: str) -> bool:
    """As :meth:`Need.wants`, which is asked of each GPU of a fleet for each service."""
    if any(part.lower() in board for part in not_models):
        return False
    return not models or any(part.lower() in board for part in models)


@dataclass(frozen=True)
class Placement:
    """Where one replica runs. ``slice`` only in mode mig; ``ports``: (name, port on the host); ``sharing``: of a shared GPU."""

    service: str
    replica: int
    host: str
    mode: Mode
    gpus: tuple[str, ...]
    slice: Slice | None = None
    ports: tuple[tuple[str, int], ...] = ()
    sharing: Sharing = TIME_SLICE

    @property
    def name(self) -> str:
        """As :func:`replica_name` has it."""
        return replica_name(self.service, self.replica)

    @property
    def rank(self) -> tuple[t.Any, ...]:
        """All of it in an order that does not depend on where it was read."""
        return (self.service, self.replica, self.host, self.gpus, str(self.slice), self.mode, self.ports, self.sharing)


class Hint(t.NamedTuple):
    """Where a replica would go: on one GPU (a slice of it, or a share), or on several whole ones."""

    host: str
    gpus: tuple[str, ...]
    slice: Slice | None = None


#: Services times hosts up to which more is tried: both orders, and whoever may give way or give back in turn.
SMALL: t.Final = 6_000


@dataclass(frozen=True)
class Problem:
    """Everything that a plan is made from. ``previous``: what the last plans say, also of services that are gone.

    ``changed``: services whose manifest is not the one that their last plan was made from; their need may have grown.
    ``moves``: how many others may move to make room for one replica, each counted by its ``move_cost``. ``preemption``: a higher priority
    may take the place of a lower one.
    """

    hosts: tuple[Host, ...]
    needs: tuple[Need, ...]
    previous: tuple[Placement, ...] = ()
    changed: frozenset[str] = frozenset()
    quotas: tuple[Quota, ...] = ()
    workspaces: tuple[Workspace, ...] = ()
    moves: int = 0
    preemption: bool = False

    @property
    def host_names(self) -> set[str]:
        """All hosts that it names: those of this run, and others that somebody has a place on."""
        return {host.name for host in self.hosts}.union(place.host for place in self.previous)

    @property
    def is_small(self) -> bool:
        """May more be tried than is done on a large fleet?"""
        return len(self.needs) * len(self.hosts) <= SMALL


@dataclass(frozen=True)
class GpuLayout:
    """What a GPU that a decision touches is to be: its mode and, in mode mig, all of its slices by start; if shared, how."""

    mode: Mode
    slices: tuple[Slice, ...] = ()
    sharing: Sharing = TIME_SLICE


@dataclass(frozen=True)
class Unplaced:
    """A replica without a place, why, and the nearest thing that would help."""

    service: str
    replica: int
    reason: str
    help: str


# Why a replica left a place that was right: to another one, so that ``by`` has room (moved); for a higher priority (preempted);
# or because the place counted against what another team lent, and that team asks for it (reclaimed).
Displacement = t.Literal["moved", "preempted", "reclaimed"]


@dataclass(frozen=True)
class Displaced:
    """A replica that left its place for another replica (``by``, its name). It may have a place elsewhere, or be unplaced."""

    service: str
    replica: int
    by: str
    way: Displacement


@dataclass(frozen=True)
class Proof:
    """How good a plan is at most away from the best, as far as that was proven; nobody stopped or moved for it.

    ``more``: (priority, how many more of those who were left over could be served at most), of the highest where any could; nothing where
    none could.
    ``gpus``: fewest GPUs on which all who are served could be, None where that was not asked. ``solver``: what proved it, with its version;
    None where nothing had to be, or could be: ``unproven`` says why, '' where nothing had to be.
    """

    more: tuple[tuple[int, int], ...] = ()
    gpus: int | None = None
    solver: str | None = None
    unproven: str = ""


@dataclass(frozen=True)
class Solution:
    """``placements`` and ``unplaced`` by service and replica; ``layouts`` by (host, GPU UUID).

    ``waiting``: where those of ``unplaced`` are that were on a host that is down or on a drained GPU. They stay in its plan: they run again
    when the host is back, or serve there until there is another place. ``displaced``: who left a place that was right, and for whom.
    ``proof``: what is proven of it; None where there is no solver, and of trials.
    """

    placements: tuple[Placement, ...]
    unplaced: tuple[Unplaced, ...] = ()
    layouts: Mapping[tuple[str, str], GpuLayout] = field(default_factory=dict)
    waiting: tuple[Placement, ...] = ()
    displaced: tuple[Displaced, ...] = ()
    proof: Proof | None = None

    @cached_property
    def by_host(self) -> Mapping[str, tuple[Placement, ...]]:
        """Who is in the plan of each host, by service and replica: whoever has a place there, and whoever waits there for another."""
        found: dict[str, list[Placement]] = {}
        for place in sorted((*self.placements, *self.waiting), key=lambda place: (place.service, place.replica)):
            found.setdefault(place.host, []).append(place)
        return {host: tuple(places) for host, places in found.items()}


def planned(problem: Problem, solution: Solution) -> Problem:
    """The problem as it is once this solution's plans are written: everybody is where they say."""
    return replace(problem, previous=(*solution.placements, *solution.waiting), changed=frozenset())


def carried_out(problem: Problem, solution: Solution) -> Problem:
    """As :func:`planned`, once the plans are carried out, too: every GPU has the layout that it is to have."""

    def laid_out(host: Host, gpu: Gpu) -> Gpu:
        layout = solution.layouts.get((host.name, gpu.uuid))
        if layout is None:
            return gpu
        # Nobody takes away what somebody computes on.
        there = {one.slice: one for one in gpu.instances if one.outsiders or one.slice in layout.slices}
        slices = sorted({*there, *layout.slices}, key=lambda one: (one.start, one.profile))
        return replace(gpu, mig=layout.mode == "mig", instances=tuple(there.get(one) or Instance(one) for one in slices))

    hosts = tuple(replace(host, gpus=tuple(laid_out(host, gpu) for gpu in host.gpus)) for host in problem.hosts)
    return replace(planned(problem, solution), hosts=hosts)
