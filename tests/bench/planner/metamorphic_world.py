# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random fleets with every rule that there is but kept room, for ``metamorphic.py``, and what may be changed about them."""

from __future__ import annotations

import itertools
import random
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import valid_layouts
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    MPS,
    TIME_SLICE,
    Bar,
    Drain,
    Gpu,
    Host,
    Instance,
    Limit,
    Need,
    Pin,
    Problem,
    Quota,
    Resources,
    Rules,
    Workspace,
)
from ansible_collections.gpuops.fleet.tests.unit.decide_world import A30, A100, gpu, host, l40s, wired

NO = Bar("CUDA 13.0.2 needs driver 580.65.06 or newer, here is 550.54.15; rule cuda-driver", "upgrade to R580: 580.65.06 or newer")
LAYOUTS = {id(A100): [each for each in valid_layouts(A100) if not any("+" in one.profile for one in each)], id(A30): valid_layouts(A30)}
PRIORITIES = (90, 50, 10)
LIMITS = (Limit("memory", 60_000), Limit("slices", 9), Limit("gpus", 2), Limit("memory", 50_000, "a100"))
# Services for each host: in most fleets somebody is left over.
SERVICES = (1, 5)


def _gpu(chance: random.Random, number: int, name: str, kind: str) -> Gpu:
    more: dict[str, t.Any] = {"cordoned": chance.random() < 0.04, "blocked": "lost" if chance.random() < 0.04 else None}
    if kind == "l40s":
        pin = Pin("shared", sharing=chance.choice([TIME_SLICE, MPS])) if chance.random() < 0.1 else None
        return l40s(number, name, pin=pin, mps_clients=chance.choice([2, 48]), **more)
    geometry = A100 if kind == "a100" else A30
    if kind == "a30":
        more.update(geometry=A30, board="a30", memory_mib=24576)
    layout = chance.choice(LAYOUTS[id(geometry)]) if chance.random() < 0.3 else ()
    if chance.random() < 0.1:
        more["pin"] = Pin("mig", cuts=True) if chance.random() < 0.5 else Pin("mig", tuple(chance.choice(LAYOUTS[id(geometry)])))
    held = chance.random() < 0.05
    instances = tuple(Instance(one, outsiders=("stranger",) if held and not turn else ()) for turn, one in enumerate(layout))
    return gpu(number, name, instances=instances, **{"mig": bool(layout) or chance.random() < 0.4, **more})


def _wired(chance: random.Random, several: list[Gpu]) -> list[Gpu]:
    way, numbers = chance.choice(["unknown", "unknown", "all", "pairs", "any"]), range(len(several))
    pairs = list(itertools.combinations(numbers, 2))
    if way == "unknown":
        return several
    if way == "pairs":
        pairs = [(one, other) for one, other in pairs if one % 2 == 0 and other == one + 1]
    return wired(several, *[pair for pair in pairs if way != "any" or chance.random() < 0.5])


def _host(chance: random.Random, number: int) -> Host:
    name = f"h{number:02d}"
    kinds = [chance.choice(["a100", "a100", "a30", "l40s"])] * 4 if chance.random() < 0.7 else ["a100", "l40s", "a30", "a100"]
    gpus = [_gpu(chance, number, name, kinds[number]) for number in range(chance.choice([1, 2, 2, 3, 4]))]
    amounts = [None if chance.random() < 0.4 else chance.randint(6, 48) for _what in range(3)]
    return host(
        *_wired(chance, gpus),
        name=name,
        environment=chance.choice(["production"] * 5 + ["staging"]),
        modes=chance.choice([("mig", "shared", "whole"), ("mig", "whole"), ("mig",), ("shared", "whole"), ("mig", "shared")]),
        sharing=chance.choice([(TIME_SLICE,), (TIME_SLICE,), (MPS,), (MPS, TIME_SLICE)]),
        shared_max=chance.randint(2, 4),
        capacity=Resources(amounts[0], amounts[1], None, amounts[2]),
        ports=tuple(range(18000, 18000 + chance.randint(3, 12))),
        listening=frozenset(chance.sample(range(18000, 18004), chance.randint(0, 1))),
        data_classes=chance.choice([("internal", "personal"), ("internal", "personal"), ("internal",), ()]),
    )


def _rules(chance: random.Random, names: list[str], number: int) -> Rules:
    others = names[:number]
    return Rules(
        spread=chance.choice(["host", "host", "gpu", "pack"]),
        max_per_host=chance.choice([None, None, None, 1, 2]),
        max_per_gpu=chance.choice([None, None, None, 1]),
        apart=(chance.choice(others),) if others and chance.random() < 0.12 else (),
        together=(chance.choice(others),) if others and chance.random() < 0.08 else (),
        all_or_nothing=chance.random() < 0.1,
    )


def _need(chance: random.Random, names: list[str], number: int, hosts: int) -> Need:
    isolation = chance.choice(["slice", "slice", "slice", "exclusive", "shared"])
    rules = _rules(chance, names, number)
    return Need(
        service=names[number],
        environment=chance.choice(["production"] * 6 + ["staging"]),
        isolation=isolation,
        memory_mib=chance.choice([0, 4000, 9000, 9000, 15000, 20000, 30000]),
        replicas=chance.choice([1, 1, 2, 3]),
        priority=chance.choice(PRIORITIES),
        count=chance.choice([1, 1, 2, 3]) if isolation == "exclusive" else 1,
        nvlink=chance.choice(["preferred", "preferred", "required"]),
        profile=chance.choice([None, None, None, None, "1g.10gb", "3g.40gb"]) if isolation == "slice" else None,
        compute=chance.choice([None, None, 0.3, 0.6]) if isolation != "exclusive" else None,
        sharing=chance.choice([TIME_SLICE, MPS]) if isolation == "shared" else TIME_SLICE,
        models=chance.choice([(), (), (), ("a100",), ("l40s", "a30")]),
        not_models=chance.choice([(), (), (), ("a30",)]),
        resources=Resources(chance.randint(0, 6), chance.randint(0, 6), 0, chance.randint(0, 6)),
        ports=chance.choice([(), (), (("http", None),), (("http", 18001),), (("http", None), ("metrics", None))]),
        data_class=chance.choice(["", "", "", "internal", "personal"]),
        bars={(f"h{chance.randrange(hosts):02d}", chance.choice(["a100-sxm4-80gb", "l40s", "a30"])): NO} if chance.random() < 0.1 else {},
        team=chance.choice(["", "claims", "health", "motor"]),
        rules=rules,
    )


def _quotas(chance: random.Random) -> tuple[tuple[Quota, ...], tuple[Workspace, ...]]:
    if chance.random() < 0.5:
        return (), ()
    quotas = tuple(
        Quota(
            team,
            (chance.choice(LIMITS),),
            "life" if team != "motor" else None,
            team != "motor" and chance.random() < 0.5,
            chance.random() < 0.5,
        )
        for team in ("claims", "health", "motor")
    )
    return quotas, (Workspace("life", (Limit("memory", 130_000),)),) if chance.random() < 0.5 else (Workspace("life"),)


def world(seed: int, most_hosts: int) -> Problem:
    """A fleet of at most so many hosts on which nothing runs yet, and services for it."""
    chance = random.Random(seed)
    fleet = tuple(_host(chance, number) for number in range(chance.randint(1, most_hosts)))
    names = [f"service-{number:03d}" for number in range(sum(chance.randint(*SERVICES) for _host in fleet))]
    chance.shuffle(names)
    needs = tuple(_need(chance, names, number, len(fleet)) for number in range(len(names)))
    quotas, spaces = _quotas(chance)
    return Problem(fleet, needs, (), frozenset(), quotas, spaces, chance.choice([0, 3]), chance.random() < 0.5)


def mixed(problem: Problem, chance: random.Random) -> Problem:
    """The same in another order."""

    def mix(parts: Iterable[t.Any]) -> tuple[t.Any, ...]:
        several = list(parts)
        return tuple(chance.sample(several, len(several)))

    hosts = mix(
        replace(each, modes=mix(each.modes), gpus=mix(replace(one, instances=mix(one.instances)) for one in each.gpus))
        for each in problem.hosts
    )
    return replace(problem, hosts=hosts, needs=mix(problem.needs), previous=mix(problem.previous), quotas=mix(problem.quotas))


def renamed(problem: Problem, names: Mapping[str, str]) -> Problem:
    """The same with other names of its hosts, everywhere."""
    needs = (replace(each, bars={(names[name], board): verdict for (name, board), verdict in each.bars.items()}) for each in problem.needs)
    return replace(
        problem,
        hosts=tuple(replace(each, name=names[each.name]) for each in problem.hosts),
        needs=tuple(needs),
        previous=tuple(replace(each, host=names[each.host]) for each in problem.previous),
    )


def twins(problem: Problem) -> bool:
    """Are there two hosts of the same hardware under the same policy? Which of them is taken, only names can say."""
    seen = []
    for each in problem.hosts:
        numbers = {one.uuid: number for number, one in enumerate(each.gpus)}
        links = [tuple(sorted(numbers[uuid] for uuid in one.links or ())) for one in each.gpus]
        boards = [(one.pci, one.board, one.memory_mib, one.mps_clients) for one in each.gpus]
        seen.append((replace(each, name="", gpus=(), listening=frozenset()), links, boards))
    return any(one == other for one, other in itertools.combinations(seen, 2))


def with_one_more_gpu(problem: Problem, chance: random.Random) -> Problem | None:
    """One GPU more on some host, like one that is there; None where no host has any."""
    number = chance.choice([number for number, each in enumerate(problem.hosts) if each.gpus] or [-1])
    if number < 0:
        return None
    hosts = list(problem.hosts)
    chosen = hosts[number]
    like = chance.choice(chosen.gpus)
    new = replace(like, uuid=f"{like.uuid}-more", pci="0000:f0:00.0", instances=(), blocked=None, cordoned=False, pin=None, links=None)
    hosts[number] = replace(chosen, gpus=(*chosen.gpus, new))
    return replace(problem, hosts=tuple(hosts))


def _second(one: Host, name: str) -> Host:
    gpus = (
        replace(each, uuid=f"{each.uuid}-{name}", links=each.links and tuple(f"{uuid}-{name}" for uuid in each.links)) for each in one.gpus
    )
    return replace(one, name=name, gpus=tuple(gpus))


def _wider(need: Need, names: Mapping[str, str]) -> dict[tuple[str, str], Bar]:
    """The gate's no, also for hosts that are like others: name of the old one -> of the new one."""
    return {**need.bars, **{(names[name], board): verdict for (name, board), verdict in need.bars.items() if name in names}}


def with_one_more_host(problem: Problem, chance: random.Random) -> Problem:
    """One host more, like one that is there."""
    like = chance.choice(problem.hosts)
    needs = tuple(replace(each, bars=_wider(each, {like.name: "more"})) for each in problem.needs)
    return replace(problem, hosts=(*problem.hosts, _second(like, "more")), needs=needs)


def doubled(problem: Problem) -> Problem:
    """Each host twice, each service twice, each quota twice as much; the second services keep to themselves as the first do."""
    names = {each.name: f"{each.name}-b" for each in problem.hosts}
    services = {each.service: f"{each.service}-b" for each in problem.needs}

    def second(need: Need) -> Need:
        apart, together = (tuple(services.get(one, one) for one in those) for those in (need.rules.apart, need.rules.together))
        return replace(need, service=services[need.service], rules=replace(need.rules, apart=apart, together=together))

    def twice(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        return tuple(replace(each, most=2 * each.most) for each in limits)

    return replace(
        problem,
        hosts=(*problem.hosts, *(_second(each, names[each.name]) for each in problem.hosts)),
        needs=tuple(replace(each, bars=_wider(each, names)) for need in problem.needs for each in (need, second(need))),
        quotas=tuple(replace(each, limits=twice(each.limits)) for each in problem.quotas),
        workspaces=tuple(replace(each, limits=twice(each.limits)) for each in problem.workspaces),
    )


def after_drains(serving: Problem, chance: random.Random) -> Problem:
    """A day later: half of the GPUs in use are drained, services want more replicas and have other priorities, and the lower ones may be
    pushed out. ``serving``: with its plan carried out."""
    used = {uuid for place in serving.previous for uuid in place.gpus}

    def later(one: Gpu) -> Gpu:
        return replace(one, drain=Drain("drained by lin (fan)")) if one.uuid in used and chance.random() < 0.5 else one

    return replace(
        serving,
        hosts=tuple(replace(each, gpus=tuple(map(later, each.gpus))) for each in serving.hosts),
        needs=tuple(
            replace(each, priority=chance.choice(PRIORITIES), replicas=each.replicas + chance.choice((0, 0, 1, 2)))
            for each in serving.needs
        ),
        preemption=True,
        moves=chance.choice((0, 0, 3)),
    )
