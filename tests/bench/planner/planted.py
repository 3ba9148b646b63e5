# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets in which one service has no place for one planted reason, each with the same fleet without it, where the service has one.

What is planted is known from how the case was made, and never from what the product says of it. ``crowded``: the other hosts are full of
adopted services, which nothing moves, so that the one host with room is not the only thing that an explanation has to look at.
"""

from __future__ import annotations

import random
import typing as t
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MPS,
    Bar,
    Drain,
    Host,
    Instance,
    Limit,
    Need,
    Pin,
    Placement,
    Problem,
    Quota,
    Resources,
    Rules,
    Workspace,
)
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place

TARGET = "target"
# What can be bought, also where the fleet has no GPU to show.
BOARDS = (gpu(0),)
ROOM = Resources(64, 262144, 65536, 1048576)


@dataclass
class World:
    """A fleet that is being made: ``home`` is the host with room, the first of ``hosts``."""

    rng: random.Random
    crowded: bool
    hosts: list[Host] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    previous: list[Placement] = field(default_factory=list)
    leases: dict[str, str] = field(default_factory=dict)
    more: dict[str, t.Any] = field(default_factory=dict)
    target: Need = field(default_factory=lambda: need(TARGET, memory_mib=15000, team="claims"))

    def problem(self) -> Problem:
        """As the planner gets it."""
        return Problem(tuple(self.hosts), (*self.needs, self.target), tuple(self.previous), frozenset(), **self.more)

    def home(self, **values: t.Any) -> None:
        """Change the host with room."""
        self.hosts[0] = replace(self.hosts[0], **values)

    def gpus(self, **values: t.Any) -> None:
        """Change every GPU of the host with room."""
        self.home(gpus=tuple(replace(each, **values) for each in self.hosts[0].gpus))

    def on_home(self, service: str, where: str, mode: str = "mig", **values: t.Any) -> None:
        """A service that runs on the host with room."""
        isolation = {"mig": "slice", "whole": "exclusive", "shared": "shared"}[mode]
        self.needs.append(need(service, isolation, **{"memory_mib": 9000, **values}))
        self.previous.append(place(service, where, mode=mode))


@dataclass(frozen=True)
class Case:
    """``problem`` with the planted reason, ``control`` without; ``cause``: the word for it."""

    name: str
    cause: str
    problem: Problem
    control: Problem
    leases: dict[str, str]


def world(seed: int, crowded: bool, hosts: int) -> World:
    """Two idle A100 on the host with room; on the others everything is taken."""
    made = World(random.Random(seed), crowded)
    made.hosts.append(host(gpu(0), gpu(1), capacity=ROOM))
    for number in range(2, (hosts if crowded else 1) + 1):
        name = f"h{number}"
        made.hosts.append(host(gpu(0, name), gpu(1, name), name=name, capacity=ROOM))
        for index in range(2):
            service = f"old-{number}-{index}"
            made.needs.append(need(service, "exclusive", adopted=True, priority=made.rng.choice((20, 50, 80))))
            made.previous.append(place(service, str(index), on=name, mode="whole"))
    return made


Plant = Callable[[World], None]
PLANTS: dict[str, tuple[str, Plant, Plant]] = {}


def plant(cause: str, before: Plant | None = None) -> Callable[[Plant], Plant]:
    """Register a reason. ``before``: what the world is made to be with and without it."""

    def register(function: Plant) -> Plant:
        PLANTS[function.__name__] = (cause, before or (lambda _world: None), function)
        return function

    return register


# The service asks for what is not there.


@plant("model")
def board_that_is_not_there(made: World) -> None:
    """Only another model is wanted."""
    made.target = replace(made.target, models=(made.rng.choice(("h100", "h200", "b200")),))


@plant("model")
def board_that_is_not_wanted(made: World) -> None:
    """The model that is there is refused."""
    made.target = replace(made.target, not_models=(made.rng.choice(("a100", "sxm4")),))


@plant("profile")
def profile_of_another_board(made: World) -> None:
    """A profile that no board here has."""
    made.target = replace(made.target, profile=made.rng.choice(("2g.24gb", "1g.12gb", "3g.71gb")))


@plant("profile")
def larger_than_any_slice(made: World) -> None:
    """More memory than the largest slice."""
    made.target = replace(made.target, memory_mib=made.rng.choice((80385, 90000, 141000)))


@plant("profile")
def slice_on_boards_without_mig(made: World) -> None:
    """No board here has MIG."""
    made.home(gpus=(l40s(0), l40s(1)))


@plant("profile")
def slice_where_one_mode_is_allowed_and_no_board_has_mig(made: World) -> None:
    """No board here has MIG, and of other ways to have a GPU one is allowed, or none."""
    made.home(gpus=(l40s(0), l40s(1)), modes=(made.rng.choice(("whole", "shared", "mig")),))


@plant("profile")
def profile_and_more_than_any_slice(made: World) -> None:
    """A profile, and more memory than even the largest slice has."""
    made.target = replace(made.target, profile=made.rng.choice(("1g.10gb", "3g.40gb")), memory_mib=made.rng.choice((80385, 90000)))


def _exclusive(made: World) -> None:
    made.target = replace(made.target, isolation="exclusive")


@plant("memory", _exclusive)
def larger_than_any_gpu(made: World) -> None:
    """More memory than a whole GPU has."""
    made.target = replace(made.target, memory_mib=made.rng.choice((81921, 100000, 180000)))


def _shared(made: World) -> None:
    made.home(gpus=(l40s(0), l40s(1)), modes=("shared",))
    made.target = replace(made.target, isolation="shared", memory_mib=12000)


@plant("memory", _shared)
def larger_than_a_gpu_gives_to_sharers(made: World) -> None:
    """The reserve of shared GPUs is what is missing."""
    made.target = replace(made.target, memory_mib=made.rng.choice((45500, 60000)))


@plant("count", _exclusive)
def more_gpus_than_a_host_has(made: World) -> None:
    """Four GPUs of one host, where hosts have two."""
    made.target = replace(made.target, count=made.rng.choice((3, 4, 8)))


@plant("environment")
def environment_of_no_host(made: World) -> None:
    """No host has the environment."""
    made.target = replace(made.target, environment=made.rng.choice(("training", "staging")))


@plant("environment")
def environment_of_no_host_and_no_mig(made: World) -> None:
    """No host has the environment, and no board of those with room has MIG."""
    made.home(gpus=(l40s(0), l40s(1)))
    environment_of_no_host(made)


def _classes_elsewhere(made: World) -> None:
    """The hosts that are full may have such data, and the one with room may not, unless the case gives it that."""
    made.hosts = [replace(each, data_classes=("personal",)) for each in made.hosts]
    made.target = replace(made.target, data_class="personal")


@plant("data class", _classes_elsewhere)
def data_that_may_not_be_there(made: World) -> None:
    """The host with room may have data of other classes only."""
    made.home(data_classes=("internal", "public"))


# The host lacks something.


def _resources(made: World) -> None:
    made.target = replace(made.target, resources=Resources(4, 8192, 1024, 10240))


# One thing of a host that the service asks for more of than any host has.
_ASKED: dict[str, t.Sequence[t.Any]] = {
    "memory": (300000, 524288),
    "cpus": (65, 96.5),
    "shm": (70000, 131072),
    "disk": (1048577, 4194304),
}


def _lacks(kind: str) -> Plant:
    def lacks(made: World) -> None:
        values: dict[str, t.Any] = {kind: made.rng.choice(_ASKED[kind])}
        made.target = replace(made.target, resources=Resources(**values))

    return lacks


PLANTS.update({f"host_{kind}": (f"host {kind}", _resources, _lacks(kind)) for kind in _ASKED})


@plant("host memory", _resources)
def host_memory_that_others_have(made: World) -> None:
    """A neighbour has nearly all of it."""
    made.on_home("neighbour", "1:1g.10gb@0", resources=Resources(1, 258000))


def _asks_port(made: World) -> None:
    made.target = replace(made.target, ports=(("http", 17000),))


@plant("port", _asks_port)
def port_of_a_neighbour(made: World) -> None:
    """A neighbour has the port that is asked for."""
    made.on_home("neighbour", "1:1g.10gb@0", ports=(("http", 17000),))
    made.previous[-1] = replace(made.previous[-1], ports=(("http", 17000),))


@plant("port", _asks_port)
def port_in_use(made: World) -> None:
    """Somebody listens on the port that is asked for."""
    made.home(listening=frozenset({17000}))


@plant("port", lambda made: setattr(made, "target", replace(made.target, ports=(("http", None), ("metrics", None)))))
def no_port_left(made: World) -> None:
    """The range has one port, and two are needed."""
    made.home(ports=(18000,))


# Rules beside others.


@plant("spread", lambda made: setattr(made, "target", replace(made.target, replicas=3)))
def one_too_many_for_a_host(made: World) -> None:
    """At most two on a host, and one host has room."""
    made.target = replace(made.target, rules=Rules(max_per_host=2))


@plant("spread", lambda made: setattr(made, "target", replace(made.target, replicas=3)))
def one_too_many_for_a_gpu(made: World) -> None:
    """At most one on a GPU, and two GPUs have room."""
    made.target = replace(made.target, rules=Rules(max_per_gpu=1))


def _neighbour(made: World) -> None:
    made.on_home("neighbour", "1:1g.10gb@0")


@plant("apart", _neighbour)
def apart_from_a_neighbour(made: World) -> None:
    """The service stays away from the neighbour."""
    made.target = replace(made.target, rules=Rules(apart=("neighbour",)))


@plant("apart", _neighbour)
def apart_as_the_neighbour_says(made: World) -> None:
    """The neighbour stays away from the service."""
    made.needs[-1] = replace(made.needs[-1], rules=Rules(apart=(TARGET,)))


@plant("kept room", lambda made: made.on_home("calm", "0", "whole", adopted=True))
def room_for_its_own_rollout(made: World) -> None:
    """It wants room for a second one beside it, and a GPU has room for one."""
    made.target = replace(made.target, isolation="exclusive", keep_room=True)


@plant("kept room", _exclusive)
def room_for_the_rollout_of_another(made: World) -> None:
    """The second GPU is kept for the service on the first."""
    made.on_home("calm", "0", "whole", keep_room=True)


@plant("together", lambda made: made.needs.append(need("store", environment="staging")))
def together_with_nobody(made: World) -> None:
    """Only where another service is, which has no place itself."""
    made.target = replace(made.target, rules=Rules(together=("store",)))


def _store_beside_it(made: World) -> None:
    made.needs.append(need("store", priority=50))
    made.target = replace(made.target, rules=Rules(together=("store",)))


@plant("policy mode", _store_beside_it)
def together_with_somebody_who_waits_for_the_same(made: World) -> None:
    """It goes together with another service, and neither may have a slice."""
    made.home(modes=("whole",))


# Teams.


def _team(made: World) -> None:
    made.on_home("neighbour", "1:3g.40gb@0", memory_mib=40000, team="claims")


def _quota(*limits: Limit, **more: t.Any) -> Plant:
    return lambda made: made.more.update(quotas=(Quota("claims", limits, **more), Quota("fraud", (Limit("memory", 10),))))


@plant("quota", _team)
def quota_of_memory(made: World) -> None:
    """The team's memory is used up."""
    _quota(Limit("memory", made.rng.choice((40192, 45000, 60000))))(made)


@plant("quota", _team)
def quota_of_slices(made: World) -> None:
    """The team's memory slices are used up."""
    _quota(Limit("slices", made.rng.choice((4, 5))))(made)


@plant("quota", _team)
def quota_of_who_does_not_borrow(made: World) -> None:
    """The team's memory is used up; another team lends."""
    claims = Quota("claims", (Limit("memory", made.rng.choice((40192, 45000))),), "ins")
    fraud = Quota("fraud", (Limit("memory", 90000),), "ins", lend=True)
    made.more.update(quotas=(claims, fraud), workspaces=(Workspace("ins", (Limit("memory", 200000),)),))


def _loans(made: World) -> None:
    for start in (0, 4):
        made.on_home(f"loan-{start}", f"1:3g.40gb@{start}", memory_mib=40000, team="fraud", priority=90)


@plant("quota", _loans)
def quota_that_is_lent_to_a_higher_priority(made: World) -> None:
    """Nothing of the team's memory is used, and it is lent."""
    claims = Quota("claims", (Limit("memory", 20000),), "ins", lend=True)
    fraud = Quota("fraud", (Limit("memory", made.rng.choice((61000, 65000))),), "ins", borrow=True)
    made.more.update(quotas=(claims, fraud), workspaces=(Workspace("ins", (Limit("memory", 200000),)),))


def _team_of_whole_gpus(made: World) -> None:
    _team(made)
    _exclusive(made)


@plant("quota", _team_of_whole_gpus)
def quota_of_gpus(made: World) -> None:
    """The team may have no whole GPU."""
    _quota(Limit("gpus", 0))(made)


@plant("quota", _team)
def quota_on_a_board(made: World) -> None:
    """The team's memory on this model is used up."""
    _quota(Limit("memory", 50000, "a100"))(made)


@plant("quota", _team)
def quota_of_the_workspace(made: World) -> None:
    """The team has room, its workspace has none."""
    _quota(Limit("memory", 80000), workspace="bank")(made)
    made.more.update(workspaces=(Workspace("bank", (Limit("memory", 50000),)),))


# Somebody keeps the GPUs.


def _both(made: World, service: str, **values: t.Any) -> None:
    for index in range(2):
        made.on_home(f"{service}-{'ab'[index]}", str(index), "whole", **values)


@plant("priority")
def higher_priorities_have_it_all(made: World) -> None:
    """Whole GPUs of a higher priority."""
    _both(made, "urgent", priority=made.rng.choice((60, 90)))


@plant("priority")
def slices_of_higher_priorities(made: World) -> None:
    """Every slice that would do is that of a higher priority."""
    made.target = replace(made.target, memory_mib=35000)
    for index in range(2):
        for start in (0, 4):
            made.on_home(f"urgent-{index}{start}", f"{index}:3g.40gb@{start}", memory_mib=40000, priority=made.rng.choice((60, 90)))


@plant("lease")
def notebooks_until_their_lease_ends(made: World) -> None:
    """Whole GPUs of notebooks with a lease."""
    _both(made, "notebook", priority=50)
    made.leases.update({"notebook-a-1": "2026-12-01", "notebook-b-1": "2026-12-24"})


@plant("lease")
def some_replicas_with_a_lease(made: World) -> None:
    """Whole GPUs of two replicas of one service; one of them has a lease."""
    made.target = replace(made.target, isolation="exclusive")
    made.needs.append(need("notebook", "exclusive", memory_mib=9000, replicas=2))
    made.previous += [place("notebook", str(number), mode="whole", replica=number + 1) for number in range(2)]
    made.leases[f"notebook-{made.rng.choice((1, 2))}"] = "2026-12-01"


@plant("lease")
def a_leased_slice(made: World) -> None:
    """A slice with a lease is all that is in the way; the rest is adopted."""
    made.target = replace(made.target, memory_mib=35000)
    made.on_home("adopted", "0", "whole", adopted=True)
    made.on_home("other", "1:3g.40gb@0", memory_mib=40000, adopted=True)
    made.on_home("notebook-lin", "1:3g.40gb@4", memory_mib=40000)
    made.leases.update({"notebook-lin-1": "2026-12-01"})


@plant("in use")
def others_of_the_same_priority(made: World) -> None:
    """Whole GPUs of the same priority."""
    _both(made, "others", priority=50)


@plant("in use")
def adopted_services_everywhere(made: World) -> None:
    """Nothing that could ever be asked to go."""
    _both(made, "found", adopted=True)


@plant("drain")
def drained(made: World) -> None:
    """Somebody wants the GPUs empty."""
    made.gpus(drain=Drain("drained by lin (fan) until 2026-12-01"))


@plant("cordon")
def cordoned(made: World) -> None:
    """The platform keeps new services away."""
    made.gpus(cordoned=True)


@plant("lost")
def lost(made: World) -> None:
    """The GPUs have fallen off the bus."""
    made.gpus(blocked="lost")


@plant("outsider")
def a_stranger_computes(made: World) -> None:
    """Programs that no plan knows."""
    made.gpus(outsiders=(f"python (pid {made.rng.randint(100, 999)})",))


@plant("outsider", _exclusive)
def a_stranger_has_a_slice(made: World) -> None:
    """A slice of each GPU is held by somebody unknown."""
    made.gpus(mig=True, instances=(Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)),))


# Policy.


@plant("compatibility")
def refused_by_the_gate(made: World) -> None:
    """The image does not run with the driver of the hosts."""
    refusal = Bar("needs CUDA 13.0, driver 580 or newer", "upgrade the driver of h1 to 580")
    made.target = replace(made.target, bars={(each.name, "a100-sxm4-80gb"): refusal for each in made.hosts})


@plant("policy mode")
def mode_that_is_not_allowed(made: World) -> None:
    """Policy knows only whole GPUs here."""
    made.home(modes=("whole",))


@plant("policy mode", _shared)
def way_of_sharing_that_is_not_allowed(made: World) -> None:
    """Policy shares only by turns."""
    made.target = replace(made.target, sharing=MPS)


@plant("policy mode", _shared)
def as_many_sharers_as_policy_allows(made: World) -> None:
    """One sharer a GPU, and both are there."""
    made.home(shared_max=1)
    for index in range(2):
        made.on_home(f"sharer-{index}", str(index), "shared", memory_mib=4000)


@plant("pinned layout")
def pinned_as_something_else(made: World) -> None:
    """The platform wants whole GPUs."""
    made.gpus(pin=Pin("whole"))


@plant("pinned layout")
def pinned_slices_that_are_too_small(made: World) -> None:
    """The platform has cut the GPUs too small."""
    made.gpus(pin=Pin("mig", tuple(parse_slice(f"1g.10gb@{start}") for start in range(7))))


@plant("host down")
def the_host_is_down(made: World) -> None:
    """Nobody reaches any host of the environment."""
    made.hosts = [replace(each, gpus=(), down=True) for each in made.hosts[:1]]
    made.needs, made.previous = [], []


@plant("group", lambda made: setattr(made, "target", replace(made.target, isolation="exclusive", replicas=2)))
def one_of_a_group_is_too_many(made: World) -> None:
    """All or nothing, three of them, and two GPUs."""
    made.target = replace(made.target, replicas=3, rules=Rules(all_or_nothing=True))


# Fleets of chance: many services of all kinds on hosts of several boards, and one more service that has room until the reason is planted.


def chance(seed: int) -> World:
    """Eight hosts of A100 and L40S, about half full, with replicas, ports, resources and priorities of chance."""
    rng = random.Random(seed)
    made = World(rng, True)
    for number in range(1, 9):
        name = f"h{number}"
        gpus = [(gpu if number % 2 else l40s)(index, name) for index in range(4)]
        made.hosts.append(host(*gpus, name=name, capacity=ROOM, modes=("mig", "whole") if number % 2 else ("shared", "whole")))
    for number in range(rng.randint(14, 26)):
        isolation = rng.choice(("slice", "slice", "slice", "exclusive", "shared"))
        made.needs.append(
            need(
                f"svc-{number}",
                isolation,
                rng.choice((6000, 9000, 15000, 30000)),
                replicas=rng.choice((1, 1, 2, 3)),
                priority=rng.choice((20, 50, 80)),
                team=rng.choice(("claims", "fraud")),
                resources=Resources(rng.choice((1, 2, 4)), rng.choice((2048, 8192)), 0, 1024),
                ports=(("http", None),) if rng.random() < 0.5 else (),
            )
        )
    made.target = replace(made.target, resources=Resources(2, 4096, 256, 1024), ports=(("http", None),))
    return made


def _no_port_here(made: World) -> None:
    made.hosts = [replace(each, listening=frozenset({17000})) for each in made.hosts]
    made.target = replace(made.target, ports=(("http", 17000),))


def _everywhere(**values: t.Any) -> Plant:
    def everywhere(made: World) -> None:
        made.hosts = [replace(each, gpus=tuple(replace(one, **values) for one in each.gpus)) for each in made.hosts]

    return everywhere


def _target(**values: t.Any) -> Plant:
    return lambda made: setattr(made, "target", replace(made.target, **values))


def _bars(made: World) -> None:
    bars = {(each.name, one.board): Bar("needs driver 580", "upgrade the drivers to 580") for each in made.hosts for one in each.gpus}
    made.target = replace(made.target, bars=bars)


def _used_up(made: World) -> None:
    made.needs = [replace(each, team="other" if each.team == "claims" else each.team) for each in made.needs]
    made.more.update(quotas=(Quota("claims", (Limit("memory", made.rng.choice((0, 9000, 19000))),)),))


def _full_of(priority: int) -> Plant:
    """Whole GPUs for everybody else, all of one priority."""

    def full(made: World) -> None:
        made.needs = [
            need(f"big-{each.name}-{index}", "exclusive", 20000, priority=priority)
            for each in made.hosts
            for index in range(len(each.gpus))
        ]
        made.previous = [
            place(f"big-{each.name}-{index}", str(index), on=each.name, mode="whole")
            for each in made.hosts
            for index in range(len(each.gpus))
        ]

    return full


CHANCES: dict[str, tuple[str, Plant]] = {
    "model": ("model", _target(models=("h100", "b200"))),
    "profile": ("profile", _target(profile="2g.24gb")),
    "size": ("profile", _target(memory_mib=85000)),
    "cpus": ("host cpus", _target(resources=Resources(72, 4096, 256, 1024))),
    "memory": ("host memory", _target(resources=Resources(2, 300000, 256, 1024))),
    "disk": ("host disk", _target(resources=Resources(2, 4096, 256, 2000000))),
    "port": ("port", _no_port_here),
    "cordon": ("cordon", _everywhere(cordoned=True)),
    "drain": ("drain", _everywhere(drain=Drain("drained by ann"))),
    "lost": ("lost", _everywhere(blocked="lost")),
    "gate": ("compatibility", _bars),
    "quota": ("quota", _used_up),
    "environment": ("environment", _target(environment="training")),
    "data": ("data class", _target(data_class="personal")),
    "cut-off": ("priority", _full_of(80)),
    "full": ("in use", _full_of(50)),
}


def chances(quick: bool = False) -> Iterator[Case]:
    """Each reason in fleets of chance; those that the planner had no place for before are left to whoever reads the list."""
    for number, (name, (cause, function)) in enumerate(sorted(CHANCES.items())):
        for salt in range(1 if quick else 4):
            made, bare = (chance(100 * number + salt) for _copy in range(2))
            function(made)
            yield Case(f"chance-{name}-{salt}", cause, made.problem(), bare.problem(), made.leases)


def cases(quick: bool = False) -> Iterator[Case]:
    """Every planted reason, alone, in a crowd, and a few in a fleet of 50 hosts."""
    for number, (name, (cause, before, function)) in enumerate(sorted(PLANTS.items())):
        shapes = (
            [(False, 1, 1), (True, 4, 2)] + ([] if quick else [(True, 3, 3)]) + ([(True, 50, 4)] if number % 6 == 0 and not quick else [])
        )
        for crowded, hosts, salt in shapes:
            made, bare = (world(1000 * number + salt, crowded, hosts) for _copy in range(2))
            before(made)
            before(bare)
            function(made)
            yield Case(f"{name}{'-crowded' if crowded else ''}-{hosts}", cause, made.problem(), bare.problem(), made.leases)
    yield from chances(quick)
