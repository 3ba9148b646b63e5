# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole of a planning run: texts, facts and policy in, plan texts and a table for people out. Nothing is read or written here."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.asked import asked_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes import propose
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import Judge, drivers_below
from ansible_collections.gpuops.fleet.plugins.plugin_utils.consolidating import consolidated
from ansible_collections.gpuops.fleet.plugins.plugin_utils.facts_form import gpus_named_twice, one_machine_twice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.held import Last, amounts_of, last_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts, down_host, host_of, need_of, without_moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.known_words import idle_words, unknown_words
from ansible_collections.gpuops.fleet.plugins.plugin_utils.leasing import lease_ends
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import raise_all
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.model_sizes import as_models_need
from ansible_collections.gpuops.fleet.plugins.plugin_utils.moving import Move, moved
from ansible_collections.gpuops.fleet.plugins.plugin_utils.placement_rules import mistakes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plan_notes import carried_notes, gate_notes, host_notes
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.plans import (
    FLEET,
    HostPlan,
    as_told,
    fleet_text,
    keep_host_plan,
    make_host_plan,
    read_plan,
    read_proof,
    read_settings,
    read_turns,
    settings_lines,
    turns_of,
    unplaced_lines,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy, SitePolicy, read_policy, site_policy
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Bars, Host, Placement, Problem, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proofs import proof_data, proof_lines
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal, told
from ansible_collections.gpuops.fleet.plugins.plugin_utils.rollouts import YIELDS, changed_in_place, host_rollouts, who_leaves
from ansible_collections.gpuops.fleet.plugins.plugin_utils.surge import Site
from ansible_collections.gpuops.fleet.plugins.plugin_utils.token_room import token_lines
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import at, order, same_place, with_outages
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import numbers, runs, table, unread_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import unplaced_lines as replicas_and_reasons
from ansible_collections.gpuops.fleet.plugins.plugin_utils.what_if import Answer, WhatIf, boards_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.why_here import Reason, leaving_words, room_notes, why_here

Texts = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Planned:
    """What a run decided. ``plans``: of each host of the run, without those that are down and never had one; ``fleet``: the text
    of ``fleet.yml``; ``table``: lines for people; ``proposal``: where the services of hosts that could not be read would go;
    ``rollouts``: how new versions come to replicas that stay where they are, and whose route, rollout or lease changes;
    ``steps``: in which order replicas leave places for others, and who does not serve meanwhile.
    ``explained``: what is in the way of each of ``unplaced``, and the changes that would give it a place. ``why``: why each of those that
    were asked about is where it is. ``bounds``: what language models can hold where they are, and what is proven of the plan.
    ``emptied``: which GPUs become empty by whose moves, where that was asked for.
    """

    plans: Mapping[str, HostPlan]
    fleet: str
    unplaced: list[dict[str, t.Any]]
    services: dict[str, dict[str, t.Any]]
    table: list[str]
    notes: list[str]
    proposal: list[str]
    rollouts: list[str]
    explained: list[Proposal] = field(default_factory=list)
    why: list[Reason] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)


def plan_fleet(
    manifest_texts: Texts,
    plan_texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    runtimes: Collection[str] = (),
    found: Iterable[Placement] | None = None,
    move: Move | None = None,
    last_fleet: tuple[str, str] | None = None,
    judge: Judge | None = None,
    explain: Collection[str] | None = None,
    others_stay: bool = False,
    consolidate: int = 0,
) -> Planned:
    """Decide for a fleet.

    ``manifest_texts``: (path, text). ``plan_texts``: host -> (path, text) of the last plans, also of hosts that are not in ``hosts``.
    ``hosts``: name -> {facts, policy}, and where nobody reaches it ``down: true`` (a person says so) or ``unread: why`` (found out just
    now); both are planned as gone, and their facts may be None. ``runtimes``: the compose templates that exist. ``found``: of an
    adoption, the places that no last plan knows and that count as if one did; GPUs in MIG mode are then listed even where nobody
    is on them. ``move``: a replica that a person wants on another host. ``last_fleet``: (path, text) of ``fleet.yml``, None for none.
    ``judge``: the compatibility gate, which keeps new places from GPUs that an image does not run on.
    ``others_stay``: whatever policy says, nobody moves or gives way for another; for plays that name beforehand who is stopped.
    ``explain``: names of services or replicas of which ``why`` is told; None for all that are not where they were.
    ``consolidate``: how many replicas may move so that GPUs become empty; nobody does while a host cannot be read.

    :raises FleetError: anything wrong in any of them, each problem on its own line.
    """
    manifests, previous, policies = _read_all(manifest_texts, plan_texts, hosts, runtimes)
    bars = _bars(judge, catalogue, hosts, manifests)
    problem = _problem(manifests, previous, policies, hosts, catalogue, found or (), bars)
    if previous.keys() <= hosts.keys():
        raise_all(unknown_words(manifests, problem, catalogue))
    problem = replace(problem, moves=0, preemption=False) if others_stay else problem
    states, before, changed = problem.hosts, problem.previous, problem.changed
    digests = {manifest.service: manifest.digest() for manifest in manifests}
    lines = [line for plan in previous.values() for line in plan.data["services"]]
    solution, emptied, closer = _decided(problem, move, 0 if any(host.get("unread") for host in hosts.values()) else consolidate)
    without_place = {each.service for each in solution.unplaced}
    waiting = [manifest for manifest in manifests if manifest.service in without_place]
    leases, boards = lease_ends(hosts), boards_of(catalogue)
    judged = _with_boards_to_buy(problem, judge, catalogue, hosts, waiting)
    explained = propose(judged, solution, leases, boards, models=as_models_need(waiting))
    # What was asked so that these have no place, as it is once the plan is written.
    asked = asked_of(problem, solution, leases, boards) if solution.unplaced else None
    solution = told(solution, explained)
    adopted = [manifest.service for manifest in manifests if manifest.model.lifecycle == "adopted"]
    amounts = {need.service: amounts_of(need) for need in problem.needs}
    plans: dict[str, HostPlan] = {}
    for host in states:
        facts, last = hosts[host.name].get("facts"), previous.get(host.name)
        if not host.down:
            plans[host.name] = make_host_plan(host, solution, facts or {}, digests, adopted, last, found is not None, amounts)
        elif last is not None:
            plans[host.name] = keep_host_plan(host, solution, facts, digests, adopted, last, amounts)
    settings = {manifest.service: manifest.settings() for manifest in manifests}
    known = None if last_fleet is None else read_settings(*last_fleet)
    needs = {need.service: need for need in problem.needs}
    runs = {name: last_of(plan.data["services"], needs, digests, hosts.get(name, {}).get("facts")) for name, plan in previous.items()}
    held = {
        (place.service, place.replica): runs[name][place.name].held
        for name, plan in previous.items()
        for place in plan.placements
        if place.name in runs[name]
    }
    rollouts, yields = _rollouts(plans, previous, hosts, policies, manifests, catalogue, bars, runs)
    made = turns_of(with_outages(order(problem, solution, held), yields, YIELDS))
    # A plan that moves nobody says what the last one that did has said: that may be still to be carried out.
    turns = made if made.steps or last_fleet is None else read_turns(*last_fleet)
    same = last_fleet is not None and all(plan is previous.get(name) for name, plan in plans.items())
    if same and last_fleet is not None:
        solution = replace(solution, unplaced=as_told(*last_fleet, solution.unplaced, asked))
    unplaced = unplaced_lines(solution.unplaced)
    # What stands was proven when it was made; asked again with everybody where they are, less would be.
    proof: Mapping[str, t.Any] | None = proof_data(solution)
    if same and last_fleet is not None:
        proof = read_proof(*last_fleet, unplaced, asked, proof)
    fleet, bare = fleet_text(unplaced, settings, turns, proof, asked), fleet_text(unplaced, None, turns)
    # One that was written before there were settings says nothing of them, and is not written again for that alone.
    if same and known is None and last_fleet is not None and last_fleet[1] == bare:
        fleet = bare
    return Planned(
        plans=plans,
        fleet=fleet,
        unplaced=unplaced,
        services={manifest.service: manifest.data() for manifest in manifests},
        table=_table(problem, solution, before, manifests),
        notes=[
            *carried_notes(states, hosts, previous),
            *host_notes(states, previous, before, solution),
            *gate_notes(states, problem.needs, solution),
            *idle_words(manifests, problem, catalogue),
            *gpus_named_twice(_of_those_up(states, hosts)),
            *room_notes(problem, solution),
        ],
        proposal=_proposal(states, before, solution, hosts),
        rollouts=[
            *rollouts,
            *(settings_lines(known, settings, {line["service"] for line in lines}, changed) if known is not None else ()),
        ],
        explained=explained,
        why=why_here(problem, solution, explain, staying=explain is not None, closer=closer),
        emptied=emptied,
        bounds=[*_token_lines(states, solution, manifests), *proof_lines(solution)],
        steps=[
            *(f"{number}. {step}" for number, step in enumerate(made.steps, 1)),
            *(f"{name_of(each)} does not serve for a while: {each['reason']}" for each in made.outages),
        ],
    )


def _decided(problem: Problem, move: Move | None, consolidate: int) -> tuple[Solution, list[str], Collection[tuple[str, int]]]:
    """The plan; what people read of a consolidation, and who moves for it."""
    if consolidate < 0:
        raise FleetError(f"{consolidate} replicas cannot move", field="consolidate", hint="write how many may at most, or 0")
    if move is not None and consolidate:
        raise FleetError("one replica is to move, and GPUs are to become empty", field="consolidate", hint="ask for one after the other")
    if move is not None:
        return moved(problem, move), [], ()
    made = consolidated(problem, consolidate)
    return made.solution, made.lines, made.moved


def check_papers(
    manifest_texts: Texts, plan_texts: Mapping[str, tuple[str, str]], policies: Mapping[str, Mapping[str, t.Any]], runtimes: Collection[str]
) -> None:
    """See what can be wrong before any host is read: in manifests, plan files and policy, and in what they say of each other.

    ``policies``: host -> its ``fleet_...`` variables; the others as in :func:`plan_fleet`.

    :raises FleetError: anything wrong in any of them, each problem on its own line.
    """
    hosts = {name: {"policy": policy, "down": True} for name, policy in policies.items()}
    manifests, _previous, read = _read_all(manifest_texts, plan_texts, hosts, runtimes)
    _site(manifests, read)


def ask_fleet(
    what_if: WhatIf,
    manifest_texts: Texts,
    plan_texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    runtimes: Collection[str] = (),
    judge: Judge | None = None,
) -> Answer:
    """What would be if: :func:`plan_fleet` for a fleet that is not there, of which nothing is kept.

    :raises FleetError: as there, and for what is wrong in the question.
    """
    manifests, previous, policies = _read_all([*manifest_texts, *what_if.manifests()], plan_texts, hosts, runtimes)
    bars = _bars(judge, catalogue, hosts, manifests)
    problem = _problem(manifests, previous, policies, hosts, catalogue, (), bars)
    answer = what_if.answer(_with_boards_to_buy(problem, judge, catalogue, hosts, manifests), catalogue)
    unread = unread_of(hosts)
    answer.lines[1:1] = [f"{name} counts as gone, for it cannot be read: {why}" for name, why in unread.items()]
    return replace(answer, data={**answer.data, "unread": unread}) if unread else answer


def explain_plans(
    manifest_texts: Texts,
    before_texts: Mapping[str, tuple[str, str]],
    plan_texts: Mapping[str, tuple[str, str]],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    runtimes: Collection[str] = (),
) -> dict[str, str]:
    """Why each replica is where these plans have it, of those that the plans of before have elsewhere or not at all: name -> words;
    where it could not stay, that first.

    Planning again from a plan changes nothing, so the plans need not say it themselves.

    :raises FleetError: as :func:`plan_fleet`.
    """
    manifests, plans, policies = _read_all(manifest_texts, plan_texts, hosts, runtimes)
    problem = _problem(manifests, plans, policies, hosts, catalogue, (), {})
    before = tuple(placement for name in sorted(before_texts) for placement in read_plan(*before_texts[name]).placements)
    solution = make_plan(problem)
    found = why_here(replace(problem, previous=before), solution, staying=False)
    same = {place.name for place in set(solution.placements).intersection(problem.previous)}
    leaving = leaving_words(problem)
    left = {place.name: f"{why}; " for place in before if (why := leaving(place))}
    return {reason.name: left.get(reason.name, "") + reason.words for reason in found if reason.name in same}


def _problem(
    manifests: Sequence[Manifest],
    previous: Mapping[str, HostPlan],
    policies: Mapping[str, Policy],
    hosts: Mapping[str, Mapping[str, t.Any]],
    catalogue: Catalogue,
    found: Iterable[Placement],
    bars: Mapping[str, Bars],
) -> Problem:
    """All that a plan is made from. :raises FleetError: what papers say of each other is wrong, each on its own line."""
    site = _site(manifests, policies)
    before = [*(placement for name in sorted(previous) for placement in previous[name].placements), *found]
    states = _hosts(hosts, policies, catalogue, before, {name: plan.serial for name, plan in previous.items()})
    digests = {manifest.service: manifest.digest() for manifest in manifests}
    lines = [line for plan in previous.values() for line in plan.data["services"]]
    changed = frozenset(line["service"] for line in lines if line["manifest"] != digests.get(line["service"]))
    needs = tuple(need_of(manifest, bars) for manifest in manifests)
    return Problem(tuple(states), needs, tuple(before), changed, **site._asdict())


def _rollouts(
    plans: Mapping[str, HostPlan],
    previous: Mapping[str, HostPlan],
    hosts: Mapping[str, Mapping[str, t.Any]],
    policies: Mapping[str, Policy],
    manifests: Sequence[Manifest],
    catalogue: Catalogue,
    bars: Mapping[str, Bars],
    runs: Mapping[str, Mapping[str, Last]],
) -> tuple[list[str], list[tuple[str, int]]]:
    """A line for each service on each host whose replicas stay and get another version or other ports; who is stopped before it is its
    turn. ``runs``: of each host what runs there by its last plan."""
    lines: list[str] = []
    yields: list[tuple[str, int]] = []
    for name, plan in sorted(plans.items()):
        last, facts = previous.get(name), hosts[name].get("facts")
        changed = [] if last is None else changed_in_place(plan, last)
        if last is not None and changed and facts is not None and not _is_down(hosts[name]):
            site = Site(name, plan, facts, policies[name], manifests, catalogue, frozenset(who_leaves(plan, last)), bars, runs[name])
            told = host_rollouts(site, changed)
            lines.extend(told["lines"])
            yields.extend((str(line["service"]), int(line["replica"])) for line in plan.data["services"] if name_of(line) in told["yields"])
    return lines, yields


def _bars(
    judge: Judge | None, catalogue: Catalogue, hosts: Mapping[str, Mapping[str, t.Any]], manifests: Sequence[Manifest]
) -> Mapping[str, Bars]:
    if judge is None:
        return {}
    read = {name: host["facts"] for name, host in hosts.items() if host.get("facts") is not None}
    return judge.bars(catalogue, read, [manifest.data() for manifest in manifests], drivers_below(hosts))


def _with_boards_to_buy(
    problem: Problem,
    judge: Judge | None,
    catalogue: Catalogue,
    hosts: Mapping[str, Mapping[str, t.Any]],
    waiting: Sequence[Manifest],
) -> Problem:
    """The problem, with what the gate would say of each board of the catalogue on a host like the first one of each environment, for the
    services without a place: it is no use to buy what it refuses."""
    if judge is None or not waiting:
        return problem
    gpus = [{"name": board.id, "compute_capability": board.capability} for board in catalogue.boards.values()]
    first: dict[str, str] = {}
    for host in problem.hosts:
        if not host.down and hosts[host.name].get("facts") is not None:
            first.setdefault(host.environment, host.name)
    like = {name: {**hosts[name]["facts"], "gpus": gpus} for name in first.values()}
    more = judge.bars(catalogue, like, [manifest.data() for manifest in waiting], drivers_below(hosts))
    return replace(problem, needs=tuple(replace(need, bars={**more.get(need.service, {}), **need.bars}) for need in problem.needs))


def _is_down(host: Mapping[str, t.Any]) -> bool:
    return bool(host.get("down") or host.get("unread"))


def _read_all(
    manifest_texts: Texts, plan_texts: Mapping[str, tuple[str, str]], hosts: Mapping[str, Mapping[str, t.Any]], runtimes: Collection[str]
) -> tuple[list[Manifest], dict[str, HostPlan], dict[str, Policy]]:
    """Everything checked; all problems of all papers at once, so that a person mends them in one go."""
    errors: list[FleetError] = []
    manifests: list[Manifest] = []
    previous: dict[str, HostPlan] = {}
    policies: dict[str, Policy] = {}
    try:
        manifests = read_manifests(manifest_texts, runtimes)
    except FleetError as error:
        errors.append(error)
    for name, (path, text) in sorted(plan_texts.items()):
        try:
            previous[name] = read_plan(path, text)
            _is_of(name, path, previous[name])
        except FleetError as error:
            errors.append(error)
    for name in sorted(hosts):
        try:
            _host_name(name)
            if hosts[name].get("facts") is not None or not _is_down(hosts[name]):
                check_facts(name, hosts[name].get("facts"))
            policies[name] = read_policy(name, hosts[name].get("policy") or {})
        except FleetError as error:
            errors.append(error)
    raise_all(errors)
    return manifests, previous, policies


def _site(manifests: Sequence[Manifest], policies: Mapping[str, Policy]) -> SitePolicy:
    """What is one for the whole site. :raises FleetError: what papers say of each other is wrong, each on its own line."""
    site = site_policy(policies)
    raise_all(mistakes(manifests, [quota.team for quota in site.quotas]))
    return site


def _is_of(name: str, path: str, plan: HostPlan) -> None:
    if plan.data["host"] != name:
        wrong = f"this file has the plan of host '{plan.data['host']}'"
        raise FleetError(wrong, file=path, field="host", hint=f"name the file {plan.data['host']}.yml, or remove it")


def _host_name(name: str) -> None:
    if name == FLEET or "/" in name or name.startswith("."):
        hint = f"'{FLEET}.yml' and what is no file name cannot be a host's plan; rename the host"
        raise FleetError(f"a host cannot be named '{name}'", file=f"host {name}", hint=hint)


def _hosts(
    hosts: Mapping[str, Mapping[str, t.Any]],
    policies: Mapping[str, Policy],
    catalogue: Catalogue,
    before: Iterable[Placement],
    serials: Mapping[str, int],
) -> list[Host]:
    states: list[Host] = []
    errors: list[FleetError] = []
    there: dict[str, list[Placement]] = {}
    for place in before:
        there.setdefault(place.host, []).append(place)
    for name in sorted(hosts):
        try:
            facts: t.Any = hosts[name].get("facts")
            policy = policies[name]
            if _is_down(hosts[name]):
                states.append(down_host(name, facts, policy, catalogue))
            else:
                states.append(host_of(name, facts, policy, catalogue, there.get(name, ()), serials.get(name)))
        except FleetError as error:
            errors.append(error)
    raise_all([*errors, *one_machine_twice(_of_those_up(states, hosts))])
    return without_moved(states)


def _of_those_up(states: Iterable[Host], hosts: Mapping[str, Mapping[str, t.Any]]) -> dict[str, Mapping[str, t.Any]]:
    """Facts by host; one that is down may have given its boards away."""
    return {host.name: hosts[host.name]["facts"] for host in states if not host.down}


def _proposal(
    states: Iterable[Host], before: Iterable[Placement], solution: Solution, hosts: Mapping[str, Mapping[str, t.Any]]
) -> list[str]:
    """For people who have to decide whether a host is gone: what would become of each replica that the plans have on it."""
    unread = unread_of(hosts)
    lines = [f"{name} cannot be read: {why}" for name, why in unread.items()]
    if not unread or all(host.down for host in states):
        return lines
    places = {(each.service, each.replica): each for each in solution.placements}
    there = {(each.service, each.replica): each for each in sorted(before, key=lambda each: each.rank) if each.host in unread}
    stuck = [each for each in unplaced_lines(solution.unplaced) if there.pop((each["service"], each["replica"]), None)]
    for key, old in there.items():
        new = places.get(key)
        if new is not None and new.host == old.host:
            lines.append(f"{old.name} is adopted and stays on {at(old)}: lost until that host is back")
        elif new is not None:
            lines.append(f"{old.name} would go from {old.host} to {at(new)}")
        else:
            lines.append(f"{old.name} is wanted no more, and would leave {at(old)}")
    lines.extend(f"no place for {line}" for line in replicas_and_reasons(stuck))
    return lines if len(lines) > len(unread) else [*lines, f"no plan has a service on {' or '.join(unread)}"]


def _table(problem: Problem, solution: Solution, before: Iterable[Placement], manifests: Iterable[Manifest]) -> list[str]:
    """One line a replica: where it is, what it has, and what changes."""
    gpus = {gpu.uuid: gpu for host in problem.hosts for gpu in host.gpus}
    last = {(each.service, each.replica): each for each in before}
    needs = {manifest.service: manifest.need_mib() for manifest in manifests}
    down = {host.name for host in problem.hosts if host.down}
    leaving = leaving_words(problem)
    waiting = {each.name for each in solution.waiting}
    rows: list[tuple[str, ...]] = [("SERVICE", "REPLICA", "HOST", "GPU", "SLICE", "MEMORY", "PORT", "CHANGE")]
    # Service, its first replica, the replicas as people read them, the rest of the line.
    entries: list[tuple[str, int, str, tuple[str, ...]]] = []
    for place in solution.placements:
        old = last.pop((place.service, place.replica), None)
        cells = (*_where(place), _memory(place, gpus, needs), _ports(place), _change(place, old, down, leaving))
        entries.append((place.service, place.replica, str(place.replica), cells))
    nowhere: dict[str, list[int]] = {}
    for each in solution.unplaced:
        old = last.pop((each.service, each.replica), None)
        if old is None:
            nowhere.setdefault(each.service, []).append(each.replica)
            continue
        why = f"while {old.host} is down" if old.host in down else "elsewhere"
        text = f"no place {why}, stays on {at(old)}" if old.name in waiting else f"no place any more, was on {at(old)}"
        entries.append((each.service, each.replica, str(each.replica), ("-", "-", "-", "-", "-", text)))
    for service, waiting_ones in nowhere.items():
        for run in runs(waiting_ones):  # of a thousand by a slip of the pen, one line
            entries.append((service, run[0], numbers(run), ("-", "-", "-", "-", "-", "no place")))
    for old in last.values():
        entries.append((old.service, old.replica, str(old.replica), (*_where(old), "-", _ports(old), "removed")))
    rows.extend((service, replicas, *cells) for service, _first, replicas, cells in sorted(entries))
    return table(rows)


def _where(place: Placement) -> tuple[str, str, str]:
    return place.host, ",".join(uuid[:12] for uuid in place.gpus), str(place.slice) if place.slice else place.mode


def _memory(place: Placement, gpus: Mapping[str, t.Any], needs: Mapping[str, int]) -> str:
    """What the replica has for itself; of a shared GPU, what was reserved."""
    sizes = _sizes(place, gpus, needs)
    return format_size(sum(sizes)) if sizes else "-"


def _sizes(place: Placement, gpus: Mapping[str, t.Any], needs: Mapping[str, int]) -> list[int]:
    """MiB that it has on each of its GPUs that are known."""
    if place.mode == "shared":
        return [needs[place.service]]
    known = [gpus[uuid] for uuid in place.gpus if uuid in gpus]
    if place.slice is not None:
        return [profile.memory_mib for gpu in known for profile in gpu.geometry.profiles if profile.name == place.slice.profile]
    return [gpu.memory_mib for gpu in known]


def _token_lines(states: Iterable[Host], solution: Solution, manifests: Sequence[Manifest]) -> Iterator[str]:
    gpus = {gpu.uuid: gpu for host in states for gpu in host.gpus}
    needs = {manifest.service: manifest.need_mib() for manifest in manifests}
    return token_lines(solution.placements, manifests, lambda place: min(_sizes(place, gpus, needs), default=None))


def _ports(place: Placement) -> str:
    return " ".join(f"{name}:{port}" for name, port in place.ports) or "-"


def _change(place: Placement, old: Placement | None, down: Collection[str], leaving: Callable[[Placement], str]) -> str:
    if place.host in down:
        return f"lost while {place.host} is down"
    if old is None:
        return "new"
    if not same_place(old, place):
        why = leaving(old)
        return f"moved from {at(old)}{f': {why}' if why else ''}"
    return "kept" if old.ports == place.ports else "kept, other ports"
