# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an owner reads about a service that has no place."""

from __future__ import annotations

import random
import typing as t
from collections import Counter
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.keeping import begin
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bar, Host, Instance, Need, Pin, Placement, Resources, Rules
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import Case, gpu_refusal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState
from ansible_collections.gpuops.fleet.tests.bench.planner import small_fleet
from ansible_collections.gpuops.fleet.tests.unit.decide_world import gpu, host, l40s, need, place, problem


def answer(hosts: list[Host], needs: list[Need], previous: tuple[Placement, ...] = ()) -> tuple[str, str]:
    """(reason, help) of the last replica that has no place."""
    last = make_plan(problem(hosts, needs, previous)).unplaced[-1]
    return last.reason, last.help


WITHOUT_LIMIT: dict[str, t.Any] = {"cpus": None, "memory": None, "shm": None, "disk": None}

CASES: dict[str, tuple[list[Host], list[Need], str, str]] = {
    "environment": (
        [host(gpu()), host(name="h2", environment="staging")],
        [need(environment="training")],
        "no host has the environment 'training'",
        "write one of production, staging, or set fleet_environment on a host",
    ),
    "no host": ([], [need()], "no host has the environment 'production'", "this run has no host at all"),
    "no GPU": (
        [host()],
        [need()],
        "h1: no GPU",
        "add a host of environment 'production' with a free GPU for 8 GiB, or ask for fewer replicas",
    ),
    "one slice in the way": (
        [host(gpu())],
        [need("large", memory_mib=30000), need("small", profile="1g.10gb"), need("zz", memory_mib=40000, priority=1)],
        "h1: 1 GPU without room for 40000 MiB",
        "h1 GPU-h1-0 has room for 3g.40gb at 0 only if small-1 (1g.10gb@0) moves",
    ),
    "the GPU where least has to move": (
        [host(gpu(0), gpu(1))],
        [need("aa", memory_mib=60000), need("bb", memory_mib=15000), need("cc", memory_mib=9000), need("zz", memory_mib=60000, priority=1)],
        "h1: 2 GPUs without room for 60000 MiB",
        "h1 GPU-h1-0 has room for 7g.80gb at 0 only if aa-1 (7g.80gb@0) moves",
    ),
    "several in the way": (
        [host(gpu())],
        [need("bb", memory_mib=15000), need("cc", memory_mib=9000), need("zz", memory_mib=60000, priority=1)],
        "h1: 1 GPU without room for 60000 MiB",
        "h1 GPU-h1-0 has room for 7g.80gb at 0 only if cc-1 (1g.10gb@4) and bb-1 (1g.20gb@6) move",
    ),
    "a whole GPU in the way": (
        [host(gpu())],
        [need("aa", "exclusive"), need("zz", priority=1)],
        "h1: 1 GPU already whole for aa-1",
        "h1 GPU-h1-0 has room for it only if aa-1 moves",
    ),
    "slices in the way of a whole GPU": (
        [host(gpu())],
        [need("aa"), need("bb"), need("zz", "exclusive", priority=1)],
        "h1: 1 GPU already mig for aa-1 and 1 more",
        "h1 has 1 GPU (a100-sxm4-80gb) for it only if aa-1, bb-1 move",
    ),
    "one of two GPUs in the way": (
        [host(gpu(0), gpu(1))],
        [need("aa"), need("zz", "exclusive", count=2, priority=1)],
        "h1: 1 GPU free of the 2 needed, 1 GPU already mig for aa-1",
        "h1 has 2 GPUs (a100-sxm4-80gb) for it only if aa-1 moves",
    ),
    "the same service cannot make room for itself": (
        [host(gpu())],
        [need(memory_mib=60000, replicas=2)],
        "h1: 1 GPU without room for 60000 MiB",
        "add a host of environment 'production' with a free GPU for 60000 MiB, or ask for fewer replicas",
    ),
    "host resources": (
        [host(gpu(), capacity=Resources(8, 10000, None, 2048))],
        [need(resources=Resources(12, 20000, 0, 3072))],
        "h1: needs 12 cpus and has 8 cpus left, needs 20000 MiB memory and has 10000 MiB memory left, "
        "needs 3 GiB disk and has 2 GiB disk left",
        "h1 has room on its GPUs and lacks 4 cpus and 10000 MiB memory and 1 GiB disk: ask for less, or free some there",
    ),
    "overdrawn host": (
        [host(gpu(), capacity=Resources(**{**WITHOUT_LIMIT, "cpus": -3}))],
        [need(resources=Resources(1.5))],
        "h1: needs 1.5 cpus and has 0 cpus left",
        "h1 has room on its GPUs and lacks 1.5 cpus: ask for less, or free some there",
    ),
    "host resources and no room either": (
        [host(l40s(), capacity=Resources(**{**WITHOUT_LIMIT, "cpus": 1}))],
        [need(resources=Resources(2))],
        "h1: needs 2 cpus and has 1 cpu left",
        "no GPU here has MIG: write 'isolation: exclusive' or 'isolation: shared'",
    ),
    "port held": (
        [host(gpu())],
        [need("aa", ports=(("http", 17000),)), need("zz", ports=(("http", 17000),))],
        "h1: port 17000 is that of aa-1",
        "h1 has room on its GPUs: leave the host port out, and a free one is chosen",
    ),
    "port in use": (
        [host(gpu(), listening=frozenset({17000}))],
        [need(ports=(("http", 17000),))],
        "h1: port 17000 is in use on the host",
        "h1 has room on its GPUs: leave the host port out, and a free one is chosen",
    ),
    "no port": (
        [host(gpu(), ports=())],
        [need(ports=(("http", None),))],
        "h1: no port is left (fleet_ports)",
        "h1 has room on its GPUs: widen fleet_ports",
    ),
    "no MIG": (
        [host(l40s(0), l40s(1))],
        [need()],
        "h1: 2 GPUs without MIG",
        "no GPU here has MIG: write 'isolation: exclusive' or 'isolation: shared'",
    ),
    "mode": (
        [host(gpu(), modes=("whole",))],
        [need()],
        "h1: 1 GPU may not be mig (fleet_gpu_modes)",
        "allow 'mig' in fleet_gpu_modes of h1",
    ),
    "mode shared": (
        [host(l40s())],
        [need(isolation="shared")],
        "h1: 1 GPU may not be shared (fleet_gpu_modes)",
        "allow 'shared' in fleet_gpu_modes of h1",
    ),
    "cordoned": (
        [host(gpu(cordoned=True))],
        [need()],
        "h1: 1 GPU cordoned",
        "h1 GPU-h1-0 is cordoned: take it out of fleet_cordoned_gpus",
    ),
    "lost, and too large anyway": (
        [host(gpu(0, blocked="lost"), gpu(1))],
        [need(memory_mib=90000)],
        "h1: 1 GPU lost, 1 GPU without a profile for 90000 MiB",
        "the largest slice here has 80384 MiB: ask for less, or for 'isolation: exclusive'",
    ),
    "a profile that is not there": (
        [host(gpu())],
        [need(profile="9g.90gb", memory_mib=0, compute=0.5)],
        "h1: 1 GPU without profile 9g.90gb and 0.5 of the compute",
        "the largest slice here has 80384 MiB: ask for less, or for 'isolation: exclusive'",
    ),
    "too large as a whole": (
        [host(l40s(0), gpu(1, blocked="error"))],
        [need(isolation="exclusive", memory_mib=90000)],
        "h1: 1 GPU error, 1 GPU with less than 90000 MiB",
        "the largest GPU here has 80 GiB: ask for less on each of more GPUs ('count')",
    ),
    "model": (
        [host(gpu(0), l40s(1))],
        [need(models=("h100",))],
        "h1: 1 GPU of a board that is not wanted (a100-sxm4-80gb), 1 GPU of a board that is not wanted (l40s)",
        "the boards here are a100-sxm4-80gb, l40s: change 'models' or 'not_models'",
    ),
    "boards of two kinds": (
        [host(gpu(0), l40s(1))],
        [need(isolation="exclusive", count=2)],
        "h1: no 2 free GPUs of one board",
        "add a host of environment 'production' with 2 free GPUs for 8 GiB, or ask for fewer replicas",
    ),
    "pinned": (
        [host(gpu(pin=Pin("mig", (Slice(0, "1g.10gb"),))))],
        [need(memory_mib=9857)],
        "h1: 1 GPU without a free pinned slice for 9857 MiB",
        "add a host of environment 'production' with a free GPU for 9857 MiB, or ask for fewer replicas",
    ),
    "pinned as something else": (
        [host(gpu(pin=Pin("whole")))],
        [need()],
        "h1: 1 GPU pinned as whole",
        "add a host of environment 'production' with a free GPU for 8 GiB, or ask for fewer replicas",
    ),
    "busy": (
        [host(gpu(outsiders=("python (pid 3)", "z")))],
        [need()],
        "h1: 1 GPU busy with python (pid 3), which is in no plan",
        "stop python (pid 3) on h1 GPU-h1-0, or run playbook adopt",
    ),
    "a stranger's slice in the way of a whole GPU": (
        [host(gpu(instances=(Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)),), mig=True))],
        [need(isolation="exclusive")],
        "h1: 1 GPU busy with someone, which is in no plan",
        "add a host of environment 'production' with a free GPU for 8 GiB, or ask for fewer replicas",
    ),
    "sharers": (
        [host(l40s(), modes=("shared",), shared_max=1)],
        [need("aa", "shared"), need("bb", "shared")],
        "h1: 1 GPU full with 1 sharer (fleet_shared_max)",
        "raise fleet_shared_max of h1",
    ),
    "shared memory of a GPU": (
        [host(l40s(), modes=("shared",))],
        [need("aa", "shared", 40000), need("bb", "shared", 20000)],
        "h1: 1 GPU without that much memory left to share",
        "add a host of environment 'production' with a free GPU for 20000 MiB, or ask for fewer replicas",
    ),
    "shared compute of a GPU": (
        [host(l40s(), modes=("shared",))],
        [need("aa", "shared", 2000, compute=0.75), need("bb", "shared", 1000, compute=0.5)],
        "h1: 1 GPU without that much compute left to share",
        "add a host of environment 'production' with a free GPU for 1000 MiB and 0.5 of the compute, or ask for fewer replicas",
    ),
    "adopted without a plan": (
        [host(gpu())],
        [need(adopted=True)],
        "it was found running, and no plan says where",
        "run playbook adopt again, or write 'lifecycle: managed'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_and_what_would_help(case: str) -> None:
    hosts, needs, reason, help_ = CASES[case]
    assert answer(hosts, needs) == (reason, help_)


def test_an_adopted_service_whose_gpu_is_gone_names_the_gpu() -> None:
    assert answer([host(gpu(blocked="lost"))], [need(adopted=True)], (place("ocr", "0:1g.10gb@1"),)) == (
        "it was found running on GPU-h1-0 of h1, which cannot be used any more",
        "stop it there and write 'lifecycle: managed'",
    )


def test_nobody_is_asked_to_move_an_adopted_service() -> None:
    before = (place("aa", "0:1g.10gb@0"), place("bb", "1", mode="whole"))
    world = [host(gpu(0), gpu(1), modes=("mig", "whole"))]
    adopted = [need("aa", adopted=True), need("bb", "exclusive", adopted=True)]
    more = "add a host of environment 'production' with a free GPU for 60000 MiB, or ask for fewer replicas"
    assert answer(world, [*adopted, need("zz", memory_mib=60000)], before)[1] == more
    assert answer(world, [*adopted, need("zz", "exclusive", 60000)], before)[1] == more


def test_a_slice_of_a_stranger_is_no_reason_to_move_the_others() -> None:
    held = (Instance(parse_slice("1g.10gb@0"), outsiders=("someone",)),)
    world = [host(gpu(instances=held, mig=True))]
    reason, help_ = answer(world, [need("aa"), need("zz", memory_mib=60000, priority=1)])
    assert (reason, help_.split(" with ")[0]) == ("h1: 1 GPU without room for 60000 MiB", "add a host of environment 'production'")
    assert answer(world, [need("aa"), need("zz", "exclusive", priority=1)])[1].startswith("add a host")


def test_hosts_with_one_reason_are_named_together_and_many_are_counted() -> None:
    many = [host(l40s(0, f"h{n}"), name=f"h{n}") for n in range(1, 6)]
    odd = [host(name="h9"), host(gpu(0, "h8"), name="h8", capacity=Resources(0))]
    assert answer([*many, *odd], [need(resources=Resources(1))])[0] == (
        "h1, h2, h3 and 2 more: 1 GPU without MIG; h8: needs 1 cpu and has 0 cpus left; h9: no GPU"
    )


def test_many_reasons_that_differ_in_numbers_are_told_as_one() -> None:
    many = [host(gpu(0, f"h{n}"), name=f"h{n}", capacity=Resources(n)) for n in range(8)]
    assert answer(many, [need(resources=Resources(9))])[0] == "h0, h1, h2 and 5 more: needs 9 cpus and has less left"


def test_many_reasons_that_differ_in_names_are_told_with_the_sum_of_the_gpus() -> None:
    full = [need(f"full-{n}", "exclusive", 60000, priority=60) for n in range(7)]
    other = host(l40s(0, "h9"), gpu(1, "h9", blocked="lost"), name="h9")
    many = [host(gpu(0, f"h{n}"), gpu(1, f"h{n}", cordoned=True), name=f"h{n}") for n in range(7)]
    reason = answer([*many, other], [*full, need("zz", memory_mib=60000)])[0]
    assert reason == "h0, h1, h2 and 5 more: 7 GPUs already whole, 7 GPUs cordoned, 1 GPU lost, 1 GPU without MIG"
    assert "already whole for full-0-1" in answer(many[:5], [*full[:5], need("zz", memory_mib=60000)])[0]


def test_of_many_different_reasons_five_are_named() -> None:
    apart = [need(f"other-{n}", "exclusive", 60000, priority=60, rules=Rules(apart=("zz",))) for n in range(7)]
    many = [host(gpu(0, f"h{n}"), name=f"h{n}") for n in range(7)]
    reason = answer(many, [*apart, need("zz")])[0]
    assert reason.endswith("stays apart from it; and 2 more hosts for other reasons")
    assert answer(many[:6], [*apart[:6], need("zz")])[0].endswith("; and 1 more host for another reason")


def test_of_all_or_nothing_a_host_has_room_for_one_and_not_for_all() -> None:
    together = need(replicas=9, rules=Rules(all_or_nothing=True))
    assert answer([host(gpu(mig=True))], [together])[0] == "h1: has room for some, and not for all 9 replicas (all_or_nothing)"


def test_gpus_are_counted_by_reason_the_most_frequent_first() -> None:
    world = host(gpu(0, cordoned=True), gpu(1, blocked="lost"), gpu(2, blocked="lost"))
    assert answer([world], [need()])[0] == "h1: 2 GPUs lost, 1 GPU cordoned"


def test_the_help_names_the_host_where_the_fewest_move() -> None:
    fleet = [host(gpu(0)), host(gpu(0, "h2"), name="h2")]
    before = (place("aa", "0:1g.10gb@0"), place("bb", "0:1g.10gb@4"), place("cc", "0:2g.20gb@2", on="h2"))
    wanted = [need("aa"), need("bb"), need("cc"), need("zz", memory_mib=60000)]
    assert answer(fleet, wanted, before)[1] == "h2 GPU-h2-0 has room for 7g.80gb at 0 only if cc-1 (2g.20gb@2) moves"
    exclusive = [*wanted[:3], need("zz", "exclusive", 60000)]
    assert answer(fleet, exclusive, before)[1] == "h2 has 1 GPU (a100-sxm4-80gb) for it only if cc-1 moves"


def test_a_group_has_no_room_for_one_where_its_gpus_are_of_two_boards() -> None:
    pairs = need("pairs", "exclusive", count=2, replicas=2, rules=Rules(all_or_nothing=True))
    assert answer([host(gpu(0), l40s(1))], [pairs])[0] == "h1: no 2 free GPUs of one board"


def test_a_host_whose_boards_are_not_wanted_is_not_said_to_lack_cpus() -> None:
    small = host(gpu(), capacity=Resources(**{**WITHOUT_LIMIT, "cpus": 2}))
    wide = need(models=("h100",), resources=Resources(cpus=4))
    assert answer([small], [wide])[0] == "h1: 1 GPU of a board that is not wanted (a100-sxm4-80gb)"
    assert answer([small], [replace(wide, models=())])[0] == "h1: needs 4 cpus and has 2 cpus left"


def acceptable(state: GpuState, each: Need) -> tuple[str, ...]:
    return state.cutter.acceptable(each.memory_mib, each.compute, each.profile) if state.cutter and each.isolation == "slice" else ()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_heard_once_for_all_is_what_each_gpu_says_to_each(seed: int) -> None:
    """Of many teams with quotas that are nearly used up, some of which leave them a part of the profiles."""
    chance = random.Random(seed)
    world = small_fleet.world(90, 16, seed)
    limits = {quota.team: replace(quota.limits[0], most=chance.choice([6, 11, 21, 45]) * small_fleet.GIB) for quota in world.quotas}
    rules = [{}, {"max_per_gpu": 1}]
    world = replace(
        world,
        quotas=tuple(replace(quota, limits=(limits[quota.team],)) for quota in world.quotas),
        needs=tuple(replace(each, rules=replace(each.rules, **chance.choice(rules))) for each in world.needs),
    )
    solution = make_plan(world)
    fleet = begin(replace(world, previous=solution.placements)).fleet
    hosts = list(fleet.hosts.values())
    narrowed = over = 0
    for each in world.needs:
        case = Case(fleet, hosts, each, f"{each.service}-1", lasting=True)
        for host_ in hosts:
            said = Counter(gpu_refusal(state, each) for state in host_.gpus)
            assert dict(case.voice(host_, told=True)) == said
            assert case.open(host_) == said[None]
            over += any("its team may not have" in (text or "") for text in said)
            narrowed += any(0 < len(state.profiles(each)) < len(acceptable(state, each)) for state in host_.gpus)
    assert over
    assert narrowed


def full_hosts(number: int) -> tuple[list[Host], list[Need], tuple[Placement, ...]]:
    """Hosts of one GPU each that are alike, each full with a replica of its own service."""
    hosts = [host(gpu(0, f"h{each}"), name=f"h{each}") for each in range(1, number + 1)]
    before = tuple(place(f"s{each}", "0:7g.80gb@0", on=f"h{each}") for each in range(1, number + 1))
    return hosts, [need(f"s{each}", memory_mib=60000) for each in range(1, number + 1)], before


def test_of_gpus_that_are_alike_the_first_that_the_gate_lets_it_have_and_whose_owner_may_move_is_named() -> None:
    hosts, needs, before = full_hosts(3)
    board = hosts[0].gpus[0].board
    # The first is refused by the gate, the second has the same service.
    needs[1] = replace(needs[1], replicas=2, bars={("h1", board): Bar("no", "yes")})
    assert answer(hosts, needs, before)[1] == "h3 GPU-h3-0 has room for 7g.80gb at 0 only if s3-1 (7g.80gb@0) moves"


def test_who_asks_for_the_same_later_is_told_of_hosts_that_are_right_for_it() -> None:
    hosts, needs, before = full_hosts(3)
    hosts = [replace(each, capacity=Resources(cpus, None, None, None)) for each, cpus in zip(hosts, (2, 4, 8), strict=True)]
    wanted = [need(f"z{cpus}", memory_mib=60000, resources=Resources(cpus, 0, 0, 0)) for cpus in (1, 3, 5)]
    told = {each.service: each.help for each in make_plan(problem(hosts, [*needs, *wanted], before)).unplaced}
    assert {name: text.split()[0] for name, text in told.items()} == {"z1": "h1", "z3": "h2", "z5": "h3"}
