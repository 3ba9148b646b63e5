# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a replica has no place, and the nearest thing that would help: in words, from the fleet as the plan leaves it."""

from __future__ import annotations

import difflib
import typing as t
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.kept_room import in_the_way, words
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import best_joined, must_join
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import amount, format_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.nearest_moves import nearest_move, would_serve
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planning_fleet import Fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Host, Mode, Need, Placement, Sharing
from ansible_collections.gpuops.fleet.plugins.plugin_utils.refusals import GPUS, Case, Reason, acceptable, counted, gpu_refusal, what
from ansible_collections.gpuops.fleet.plugins.plugin_utils.state import GpuState, HostState
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import few_names, several

_There = t.TypeVar("_There")

# More reasons than these are counted and not told: a reason is one line.
MAX_GROUPS = 5


# What was said in one fleet of each kind of need: many services ask for the same, and none of them has a place to give back.
_SAID: WeakKeyDictionary[Fleet, dict[Need, tuple[str, str]]] = WeakKeyDictionary()
# By environment and class of data: the hosts of the environment, and those that may have it.
_HOSTS: WeakKeyDictionary[Fleet, dict[tuple[str, str], tuple[Sequence[HostState], Sequence[HostState]]]] = WeakKeyDictionary()
# By what is asked of a host besides its GPUs: what it lacks.
_LACKING: WeakKeyDictionary[Fleet, dict[object, list[Reason | None]]] = WeakKeyDictionary()
# By whose hosts they are, and how they are to be used: the GPUs that policy keeps from that; and one GPU of each kind.
_CLOSED: WeakKeyDictionary[Fleet, dict[tuple[str, str, Mode, Sharing], list[tuple[GpuState, str]]]] = WeakKeyDictionary()
_KINDS: WeakKeyDictionary[Fleet, dict[tuple[str, str], list[GpuState]]] = WeakKeyDictionary()


def explain(fleet: Fleet, need: Need, replica: int, before: Placement | None, *, lasting: bool = True) -> tuple[str, str]:
    """(reason, the nearest thing that would help), one line each. The fleet is as the plan leaves it, and changes no more.

    ``lasting``: it is so for all others, too. It is not where a replica has been taken from a place that it holds.
    """
    if before is not None or need.adopted:
        return _explained(fleet, need, replica, before, lasting)
    said = _SAID.setdefault(fleet, {})
    # A service of several replicas may have places that are its own; one that room is kept for, or that a rule names, is like no other.
    own = need.replicas > 1 or need.keep_room or fleet.rulebook.alone(need)
    alike = replace(need, service=need.service if own else "", priority=0)
    if alike not in said:
        said[alike] = _explained(fleet, need, replica, before, lasting)
    return said[alike]


def _explained(fleet: Fleet, need: Need, replica: int, before: Placement | None, lasting: bool) -> tuple[str, str]:
    if need.adopted:
        return _adopted(before)
    hosts, able = _hosts_for(fleet, need)
    if not hosts:
        there = sorted({host.host.environment for host in fleet.hosts.values()})
        help_ = f"write one of {', '.join(there)}, or set fleet_environment on a host" if there else "this run has no host at all"
        return f"no host has the environment '{need.environment}'", help_
    if not any(host.host.may_have(need) for host in hosts):
        return _no_host_for_the_data(hosts, need)
    case = Case(fleet, able, need, replica_name(need.service, replica), lasting)
    return _reason(case, hosts), next(text for helper in _HELPERS for text in helper(case))


def _hosts_for(fleet: Fleet, need: Need) -> tuple[Sequence[HostState], Sequence[HostState]]:
    """The hosts of its environment, and those of them that are up and may have its data."""
    known, asked = _HOSTS.setdefault(fleet, {}), (need.environment, need.data_class)
    if asked not in known:
        hosts = [host for host in fleet.hosts.values() if host.host.environment == need.environment]
        known[asked] = hosts, [host for host in hosts if not host.host.down and host.host.may_have(need)]
    return known[asked]


def _no_host_for_the_data(hosts: Sequence[HostState], need: Need) -> tuple[str, str]:
    """Nobody says that the class of its data may be anywhere; or it is a slip of the pen."""
    known = sorted({each for host in hosts for each in host.host.data_classes})
    close = difflib.get_close_matches(need.data_class, known, n=1, cutoff=0.6)
    # In the reason: what is tried instead of this help would have the slip written into the inventory.
    slip = f", did you mean '{close[0]}'?" if close else ""
    wrong = f"no host of environment '{need.environment}' may have data of class '{need.data_class}' (fleet_data_classes){slip}"
    return wrong, f"add '{need.data_class}' to fleet_data_classes of a host that may have such data"


def home(need: Need) -> str:
    """Where a host would have to be for the service, in words: ``environment 'production'``."""
    data = f" that may have data of class '{need.data_class}'" if need.data_class else ""
    return f"environment '{need.environment}'{data}"


def _adopted(before: Placement | None) -> tuple[str, str]:
    if before is None:
        return "it was found running, and no plan says where", "run playbook adopt again, or write 'lifecycle: managed'"
    where = f"{', '.join(uuid[:12] for uuid in before.gpus)} of {before.host}"
    return f"it was found running on {where}, which cannot be used any more", "stop it there and write 'lifecycle: managed'"


def _reason(case: Case, hosts: Sequence[HostState]) -> str:
    """What is in the way on every host: hosts with the same reason together, the most frequent reason first.

    Where those are too many to tell, reasons that differ in numbers and names are told as one, with the sum of the GPUs.
    """
    lacking = _lacking(case, hosts)
    # Without names first, which is the same on many hosts: with names they differ in more, never in less.
    reasons = [_host_reason(case, host, lacks, told=False) for host, lacks in zip(hosts, lacking, strict=True)]
    if len(set(reasons)) <= MAX_GROUPS:
        reasons = [_host_reason(case, host, lacks) for host, lacks in zip(hosts, lacking, strict=True)]
    if len(set(reasons)) <= MAX_GROUPS:
        told = _together(hosts, [reason.text for reason in reasons])
    else:
        told = _of_kinds(case, hosts, lacking, reasons)
    ordered = sorted(told.items(), key=lambda one: (-len(one[1]), one[1][0].host.name))
    texts = [f"{few_names([host.host.name for host in there])}: {reason}" for reason, there in ordered[:MAX_GROUPS]]
    rest = sum(len(there) for _reason, there in ordered[MAX_GROUPS:])
    more = "1 more host for another reason" if rest == 1 else f"{rest} more hosts for other reasons"
    return "; ".join([*texts, *([f"and {more}"] if rest else [])])


def _together(hosts: Sequence[_There], texts: Sequence[str]) -> dict[str, list[_There]]:
    groups: dict[str, list[_There]] = {}
    for host, text in zip(hosts, texts, strict=True):
        groups.setdefault(text, []).append(host)
    return groups


def _of_kinds(
    case: Case, hosts: Sequence[HostState], lacking: Sequence[Reason | None], reasons: Sequence[Reason]
) -> dict[str, list[HostState]]:
    """Hosts whose reasons are of one kind together, each kind in words."""
    told: dict[str, list[HostState]] = {}
    many = Counter(reason.kind or reason.text for reason in set(reasons))
    alike = _together(list(zip(hosts, lacking, strict=True)), [reason.kind or reason.text for reason in reasons])
    for kind, there in alike.items():
        mine = [host for host, _lacks in there]
        texts = {_host_reason(case, host, lacks).text for host, lacks in there} if many[kind] == 1 else set()
        told[texts.pop() if len(texts) == 1 else _total(case, mine) if kind == GPUS else kind] = mine
    return told


def _total(case: Case, hosts: Iterable[HostState]) -> str:
    """What all GPUs of these hosts say, without names."""
    counts = Counter[str | None]()
    for said, many in case.voices(hosts):
        for refusal, count in said:
            counts[refusal] += many * count
    few = [f"{several(counts[None], 'GPU')} free, on no host the {case.need.count} needed"] if None in counts else []
    return ", ".join([*few, counted(counts)])


def _lacking(case: Case, hosts: Sequence[HostState]) -> Sequence[Reason | None]:
    """Of each host what is in the way before its GPUs are asked; found once for all that need the same CPU, RAM and disk."""
    need = case.need
    known = _LACKING.setdefault(case.fleet, {}) if case.lasting else {}
    asked = (need.environment, need.data_class, need.resources, need.models, need.not_models)
    if asked not in known:
        shortages: dict[tuple[tuple[str, tuple[float, float]], ...], Reason] = {}
        known[asked] = [_lacks(need, host, shortages) for host in hosts]
    return known[asked]


def _lacks(need: Need, host: HostState, shortages: dict[tuple[tuple[str, tuple[float, float]], ...], Reason]) -> Reason | None:
    """``shortages``: in words, by what is needed and left."""
    if host.host.down:
        return Reason("down")
    if not host.host.may_have(need):
        return Reason(f"may not have data of class '{need.data_class}' (fleet_data_classes)")
    short = tuple(host.free.shortage(need.resources).items())
    # What a host without a GPU for it has too little of besides would only mislead.
    if not short or not any(map(need.wants, host.boards)):
        return None
    if short not in shortages:
        amounts = [(amount(kind, want), amount(kind, max(have, 0))) for kind, (want, have) in short]
        exact = ", ".join(f"needs {want} and has {have} left" for want, have in amounts)
        shortages[short] = Reason(exact, ", ".join(f"needs {want} and has less left" for want, _have in amounts))
    return shortages[short]


def _host_reason(case: Case, host: HostState, lacks: Reason | None, told: bool = True) -> Reason:
    """``told``: with the names of those who have its GPUs."""
    if lacks is not None:
        return lacks
    need = case.need
    if case.alone and (rule := host.rule_refusal(need)) is not None:
        return Reason(rule)
    if not host.gpus:
        return Reason("no GPU")
    open_, few = case.said(host, told)
    if open_ < need.count:
        return few
    if (unjoined := link_refusal(host, need)) is not None:
        return Reason(unjoined)
    ports = host.choose_ports(need, case.name, {}, case.fleet.asked)
    if isinstance(ports, str):
        return Reason(ports)
    lost = in_the_way(case.fleet, host, need)
    if not lost and need.rules.all_or_nothing and need.replicas > 1 and _most_of_a_board(host, need) >= need.count:
        return Reason(f"has room for some, and not for all {need.replicas} replicas (all_or_nothing)")
    return Reason(words(need, lost) if lost else f"no {need.count} free GPUs of one board")


def _most_of_a_board(host: HostState, need: Need) -> int:
    """How many GPUs of one board could take it."""
    open_ = Counter(state.gpu.board for state in host.gpus if gpu_refusal(state, need) is None)
    return max(open_.values(), default=0)


def link_refusal(host: HostState, need: Need) -> str | None:
    """Why NVLink keeps a replica of several GPUs from a host that has enough of one board free; None where it does not."""
    free: dict[str, list[GpuState]] = {}
    for state in host.gpus if must_join(need) else ():
        if gpu_refusal(state, need) is None:
            free.setdefault(state.gpu.board, []).append(state)
    enough = [states for states in free.values() if len(states) >= need.count]
    if not enough or any(best_joined(states, need.count, lambda _state: ()) for states in enough):
        return None
    count = max(map(len, enough))
    unknown = [state for states in enough for state in states if state.gpu.links is None]
    if unknown:
        sliced = any(state.gpu.mig for state in unknown)
        how = "a GPU in MIG mode cannot: give it mode whole in fleet_gpu_layouts" if sliced else "read its facts anew, and plan again"
        return f"{several(count, 'GPU')} free, and its facts do not tell which of them NVLink joins ({how})"
    return f"{several(count, 'GPU')} free, of which NVLink does not join {need.count} with each other (nvlink: required)"


# Helpers: each yields the best thing of its kind that would help, or nothing. The first that has an answer gives it.


def _help_host(case: Case) -> Iterator[str]:
    """A host whose GPUs would do, and which lacks something else."""
    for host in case.hosts:
        if case.open(host) < case.need.count or link_refusal(host, case.need):
            continue
        short = host.free.shortage(case.need.resources)
        if short:
            lacks = " and ".join(amount(kind, want - max(have, 0)) for kind, (want, have) in short.items())
            yield f"{host.host.name} has room on its GPUs and lacks {lacks}: ask for less, or free some there"
        elif isinstance(host.choose_ports(case.need, case.name, {}, case.fleet.asked), str):
            asked = any(port is not None for _name, port in case.need.ports)
            cure = "leave the host port out, and a free one is chosen" if asked else "widen fleet_ports"
            yield f"{host.host.name} has room on its GPUs: {cure}"
        elif lost := in_the_way(case.fleet, host, case.need):
            yield f"{host.host.name} has room on its GPUs: leave 'keep_room' of {' and '.join(lost)} out"


def _help_moves(case: Case) -> Iterator[str]:
    """Who would have to move."""
    nearest = nearest_move(case)
    if nearest is not None:
        yield nearest


def _help_policy(case: Case) -> Iterator[str]:
    """A GPU that only policy keeps away."""
    return (text for state, text in _closed_by_policy(case) if state.serves(case.need))


def _closed_by_policy(case: Case) -> list[tuple[GpuState, str]]:
    """(GPU, what would open it) of all that policy keeps from what is used in this way, whoever asks."""
    need, mode = case.need, MODE_OF[case.need.isolation]
    known = _CLOSED.setdefault(case.fleet, {}) if case.lasting else {}
    asked = (need.environment, need.data_class, mode, need.sharing)
    if asked not in known:
        found = ((state, _opening(host.host, state, mode, need.sharing)) for host in case.hosts for state in host.gpus)
        known[asked] = [(state, text) for state, text in found if text is not None]
    return known[asked]


def _opening(host: Host, state: GpuState, mode: Mode, sharing: Sharing) -> str | None:
    """What would let a GPU be used in this way, if policy alone is against it."""
    if state.gpu.blocked is not None:
        return None
    if state.gpu.drain is not None:
        return state.gpu.drained_words(host.name)
    if state.gpu.cordoned:
        return f"{host.name} {state.gpu.short} is cordoned: take it out of fleet_cordoned_gpus"
    if mode not in host.modes and state.gpu.pin is None and state.mode is None and (mode != "mig" or state.cutter):
        return f"allow '{mode}' in fleet_gpu_modes of {host.name}"
    if mode == "shared" and mode in host.modes and state.mode is None and sharing not in host.sharing:
        return f"allow '{sharing}' in fleet_sharing of {host.name}"
    if mode == "shared" and state.mode == mode and len(state.tenants) >= host.shared_max:
        return f"raise fleet_shared_max of {host.name}"
    if state.gpu.outsiders and not state.tenants and not state.owners:
        return f"stop {state.gpu.outsiders[0]} on {host.name} {state.gpu.short}, or run playbook adopt"
    return None


def _help_need(case: Case) -> Iterator[str]:
    """A need that no board here could serve, even empty."""
    states = _kinds_of_gpus(case)
    wanted = [state for state in states if case.need.wants(state.gpu.board)]
    if states and not wanted:
        boards = ", ".join(sorted({state.gpu.board for state in states}))
        yield f"the boards here are {boards}: change 'models' or 'not_models'"
    if case.need.isolation == "slice" and wanted and not any(acceptable(state, case.need) for state in wanted):
        largest = max((state.cutter.largest_mib for state in wanted if state.cutter is not None), default=0)
        if largest:
            yield f"the largest slice here has {format_size(largest)}: ask for less, or for 'isolation: exclusive'"
        else:
            yield "no GPU here has MIG: write 'isolation: exclusive' or 'isolation: shared'"
    if case.need.isolation == "exclusive" and wanted and max(state.gpu.memory_mib for state in wanted) < case.need.memory_mib:
        largest = max(state.gpu.memory_mib for state in wanted)
        yield f"the largest GPU here has {format_size(largest)}: ask for less on each of more GPUs ('count')"


def _kinds_of_gpus(case: Case) -> list[GpuState]:
    """One GPU of each kind."""
    known, asked = _KINDS.setdefault(case.fleet, {}), (case.need.environment, case.need.data_class)
    if asked not in known:
        gpus = (state for host in case.hosts for state in host.gpus)
        known[asked] = list({(state.gpu.board, state.gpu.memory_mib, id(state.cutter)): state for state in gpus}.values())
    return known[asked]


def refused_by_quota(fleet: Fleet, need: Need) -> bool:
    """Does the team's quota leave no place for one more replica on any board, whatever else there is?"""
    debits = [fleet.books.refusal(need.team, charge) for charge in fleet.charges(need)]
    return bool(debits) and all(debit is not None and not debit.lent for debit in debits)


def _help_quota(case: Case) -> Iterator[str]:
    """A quota that leaves it no place on any board: nothing else would help."""
    if refused_by_quota(case.fleet, case.need):
        yield f"raise what fleet_quotas gives to {case.need.team}"


def _help_links(case: Case) -> Iterator[str]:
    """A host that only NVLink keeps away."""
    names = [host.host.name for host in case.hosts if link_refusal(host, case.need) is not None]
    if names:
        yield f"leave 'nvlink: required' out: {few_names(names)} {'has' if len(names) == 1 else 'have'} the GPUs for it"


def _help_gate(case: Case) -> Iterator[str]:
    """A GPU that only the compatibility gate keeps away; what opens the most of them comes first."""
    if not case.need.bars:
        return
    cures = Counter[str]()
    for state in (state for host in case.hosts for state in host.gpus):
        barred = state.barred(case.need)
        if barred is not None and case.need.wants(state.gpu.board) and would_serve(state, case.need):
            cures[barred.remedy or f"{state.host.name}: {barred.reason}"] += 1
    yield from (cure for cure, _count in sorted(cures.items(), key=lambda entry: (-entry[1], entry[0])))


def _help_more(case: Case) -> Iterator[str]:
    gpus = f"{case.need.count} free GPUs" if case.need.count > 1 else "a free GPU"
    gpus += " that NVLink joins" if must_join(case.need) else ""
    down = [host.host.name for host in case.fleet.hosts.values() if host.host.down and host.host.admits(case.need)]
    back = f"bring {few_names(down)} back, " if down else ""
    yield f"{back}add a host of {home(case.need)} with {gpus} for {what(case.need)}, or ask for fewer replicas"


_Helper = Callable[[Case], Iterator[str]]
_HELPERS: tuple[_Helper, ...] = (_help_quota, _help_host, _help_moves, _help_need, _help_links, _help_gate, _help_policy, _help_more)
