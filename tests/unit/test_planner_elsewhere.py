# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other hosts could do for a replica that has a place: the same whether each is asked for each replica, or once for all of a kind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import elsewhere
from ansible_collections.gpuops.fleet.plugins.plugin_utils.elsewhere import Elsewhere, kind_elsewhere
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way
from ansible_collections.gpuops.fleet.plugins.plugin_utils.offers import Offer, offers
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Limit, Need, Placement, Problem, Quota, Workspace
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import gpu_refusal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import why_here
from ansible_collections.gpuops.fleet.tests.bench.planner import planted
from ansible_collections.gpuops.fleet.tests.unit.decide_world import host, l40s, need, place, problem

# Hosts, their GPUs, and the rank and the host of the best offer.
Said = tuple[int, int, object]


def world(seed: int) -> Problem:
    """A fleet of chance, in turn with tight quotas, ports by number, kept room, and rules."""
    chance, given = random.Random(seed), planted.chance(seed).problem()
    needs = given.needs
    if seed % 2:
        needs = tuple(replace(each, ports=(("http", chance.choice([None, 8080, 8081])),)) for each in needs)
    if seed % 3 == 1:
        needs = tuple(replace(each, keep_room=chance.random() < 0.4) for each in needs)
    if seed % 3 == 2:
        rules = ({"max_per_gpu": 1}, {"max_per_host": 1}, {"spread": "pack"}, {})
        needs = tuple(replace(each, rules=replace(each.rules, **chance.choice(rules))) for each in needs)
        # Who is never beside whom; alone, so that it is like no other service.
        apart = {chance.choice(needs).service: chance.choice(needs).service for _pair in range(4)}
        needs = tuple(
            replace(each, rules=replace(each.rules, apart=(apart[each.service],)))
            if apart.get(each.service, each.service) != each.service
            else each
            for each in needs
        )
    quotas = tuple(Quota(team, (Limit("memory", 1024 * chance.choice([60, 120, 250])),), "all", True, True) for team in ("claims", "fraud"))
    return replace(given, needs=needs, quotas=quotas if seed % 4 > 1 else (), workspaces=(Workspace("all"),))


def of(found: Offer | None) -> object:
    return None if found is None else (found.rank, found.host.host.name)


def one_by_one(scene: Scene, asked: Need, place: Placement, left: HostState) -> tuple[Said, Said]:
    """Of its own host, and of the others."""

    def may(there: HostState) -> bool:
        own = dict(place.ports) if there is left else {}
        ports = there.choose_ports(asked, place.name, own, scene.fleet.asked)
        return not isinstance(ports, str) and not in_the_way(scene.fleet, there, asked)

    able = [offer for offer in offers(scene.fleet, asked) if may(offer.host)]

    def said(some: list[Offer]) -> Said:
        gpus = sum(gpu_refusal(state, asked) is None for offer in some for state in offer.host.gpus)
        return len(some), gpus, of(min(some, key=lambda offer: offer.rank, default=None))

    return said([offer for offer in able if offer.host is left]), said([offer for offer in able if offer.host is not left])


@pytest.mark.parametrize("seed", range(12))
def test_what_hosts_say_once_for_a_kind_is_what_each_says_of_each_replica(seed: int) -> None:
    given = world(seed)
    solution = make_plan(given)
    quick, slow = (Scene(given, solution, {}) for _copy in range(2))
    places = sorted(solution.placements, key=lambda each: kind_elsewhere(quick.fleet, quick.needs[each.service]))
    assert places
    answers = Elsewhere(quick.fleet)
    for each in places:
        asked = quick.needs[each.service]
        for scene in (quick, slow):
            scene.fleet.hosts[each.host].unseat(asked, each)
        own, others = answers.of(asked, quick.fleet.hosts[each.host], dict(each.ports))
        here = (0, 0, None) if own is None else (1, own.gpus, of(own.offer))
        there = (others.hosts, others.gpus, of(others.best))
        assert (here, there) == one_by_one(slow, asked, each, slow.fleet.hosts[each.host])
        for scene in (quick, slow):
            scene.occupy(each)


def others_of(given: Problem, service: str) -> int:
    """How many hosts besides its own could have the first replica of a service, asked right after another one that asks for as much."""
    scene = Scene(given, make_plan(given), {})
    answers, found = Elsewhere(scene.fleet), {}
    for each in sorted((one for one in make_plan(given).placements if one.host == "h1"), key=lambda one: one.service == service):
        asked = scene.needs[each.service]
        scene.fleet.hosts[each.host].unseat(asked, each)
        found[each.service] = answers.of(asked, scene.fleet.hosts[each.host], dict(each.ports))[1].hosts
        scene.occupy(each)
    return found[service]


def test_who_wants_room_kept_is_like_no_other_and_so_is_each_priority_beside_it() -> None:
    """Both ask for as much; beside who is there is room for one more of them, and not for a rollout of it too."""

    def fleet(*needs: Need, **more: bool) -> Problem:
        hosts = [host(l40s(0, name), name=name, modes=("shared",)) for name in ("h1", "h2")]
        there = [place("plain", "0", mode="shared"), place("keeper", "0", mode="shared"), place("full", "0", on="h2", mode="shared")]
        return replace(problem(hosts, needs, there), **more)

    full = need("full", "shared", 20_000)
    plain, keeper = need("plain", "shared", 14_000), need("keeper", "shared", 14_000, keep_room=True)
    assert others_of(fleet(plain, keeper, full), "plain") == 1
    assert others_of(fleet(plain, keeper, full), "keeper") == 0
    high, low = replace(plain, priority=90), replace(keeper, keep_room=False, priority=10)
    kept = fleet(high, low, replace(full, keep_room=True), preemption=True)
    assert (others_of(kept, "plain"), others_of(kept, "keeper")) == (1, 0)


def test_hosts_are_asked_once_for_all_services_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was asked for each replica: 40 hosts for 60 of them 2,400 times."""
    asked: list[HostState] = []
    ask = elsewhere._ask
    monkeypatch.setattr(elsewhere, "_ask", lambda *given: (asked.append(given[3]), ask(*given))[1])
    hosts = [host(*(l40s(number, f"h{turn:02}") for number in range(2)), name=f"h{turn:02}") for turn in range(40)]
    given = problem(hosts, [need(f"s{number:02}", "exclusive") for number in range(60)])
    assert len(why_here(given, make_plan(given))) == 60
    # All hosts once, and for each service the one where it is, with and without it.
    assert len(asked) <= 40 + 2 * 60
