# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would be if: more or fewer hosts, more services or replicas, and how many more GPUs of a kind it takes. Nothing is written.

Each answer is a plan that was made, and the number of GPUs is the smallest for which one was: one less was tried, and leaves more without
a place.
"""

from __future__ import annotations

import json
import typing as t
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import (
    AfterValidator,
    Field,
    Name,
    Size,
    Strict,
    Wrong,
    check,
    model_validator,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import new_gpus, width
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import Located
from ansible_collections.gpuops.fleet.plugins.plugin_utils.more_hosts import free_stem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Need, Problem, Resources, Solution
from ansible_collections.gpuops.fleet.plugins.plugin_utils.turns import same_place
from ansible_collections.gpuops.fleet.plugins.plugin_utils.views import few_names, numbers, several, table, without_place

#: At most so many GPUs are asked for; who needs more reads that it is not a matter of GPUs, or asks in parts.
MOST: t.Final = 1024
_WHERE: t.Final = "fleet_what_if"
# After so many doublings that helped nobody, more GPUs are not what is missing.
_IDLE: t.Final = 3
# With so many hosts fewer it is tried besides.
_HOSTS_FEWER: t.Final = 3
# Of so many services it is told why more GPUs do not help.
_TOLD: t.Final = 5


def _some_board(value: str) -> str:
    if not value.strip():
        raise Wrong("it names no board", "write a board's id or a part that only one has, such as a100")
    return value


class _Kind(Strict):
    """Hosts that are not there."""

    board: t.Annotated[str, AfterValidator(_some_board)]
    gpus: int = Field(default=8, ge=1, le=64, description="GPUs of one host")
    environment: str | None = None
    data_classes: list[Name] | None = None
    cpus: float | None = Field(default=None, ge=0)
    memory: Size | None = None


class _Hosts(_Kind):
    hosts: int = Field(default=1, ge=1, le=MOST)


class _WhatIf(Strict):
    add: list[_Hosts] = Field(default_factory=list)
    remove: list[str] = Field(default_factory=list)
    services: list[dict[str, t.Any]] = Field(default_factory=list)
    replicas: dict[str, int] = Field(default_factory=dict)
    how_many: _Kind | None = None

    @model_validator(mode="after")
    def _each_host_once(self) -> _WhatIf:
        for index, host in enumerate(self.remove):
            if host in self.remove[:index]:
                raise Wrong(f"'{host}' is removed already by remove[{self.remove.index(host)}]", "name each host once", "remove", index)
        return self


@dataclass(frozen=True)
class Answer:
    """``lines`` for people; ``data`` for JSON."""

    lines: list[str]
    data: dict[str, t.Any]


class WhatIf:
    """The question.

    :raises FleetError: it is not of the form that docs/plan.md tells.
    """

    def __init__(self, asked: Located) -> None:
        self.model = check(_WhatIf, asked)

    def manifests(self) -> list[tuple[str, str]]:
        """Texts of the services that come, as manifest files have them."""
        return [(f"{_WHERE}: services[{index}]", json.dumps(each)) for index, each in enumerate(self.model.services)]

    def answer(self, problem: Problem, catalogue: Catalogue) -> Answer:
        """``problem``: of the fleet with the services that come.

        :raises FleetError: a board, host or service that nobody knows.
        """
        changed = self._changed(problem, catalogue)
        now = make_plan(changed)
        lines = [self._asked(), f"then {_missing_words(changed, now)}"]
        data: dict[str, t.Any] = {"asked": self._asked(), "unplaced": _unplaced(now), "moved": _moved(problem, now)}
        data["lost"] = _lost(problem, now)
        for what, names in (("lose their place", data["lost"]), ("moved", data["moved"])):
            lines += [f"{what}: {', '.join(names)}"] if names else []
        if self.model.how_many is not None:
            found = self._how_many(problem, changed, now, catalogue)
            lines.extend(found.lines)
            data["how_many"] = found.data
        rows = _places(problem, now)
        if rows and data.get("how_many", {}).get("gpus"):
            lines.append("without them:")
        lines.extend(rows)
        data["places"] = [
            {"service": place.service, "replica": place.replica, "host": place.host, "gpus": list(place.gpus), "slice": _slice(place.slice)}
            for place in now.placements
        ]
        return Answer(lines, data)

    def _asked(self) -> str:
        model = self.model
        parts = [f"{each.hosts} more host{'s' if each.hosts > 1 else ''} with {each.gpus} {each.board}" for each in model.add]
        parts += [f"without {', '.join(sorted(model.remove))}"] if model.remove else []
        parts += [f"{each.get('service')} beside what there is" for each in model.services]
        parts += [f"{name} with {several(count, 'replica')}" for name, count in sorted(model.replicas.items())]
        return f"what if: {'; '.join(parts) or 'nothing changes'}"

    def _changed(self, problem: Problem, catalogue: Catalogue) -> Problem:
        """The fleet as it would be."""
        model = self.model
        names, services = {host.name for host in problem.hosts}, {need.service for need in problem.needs}
        for field, unknown, known in (
            ("remove", sorted(set(model.remove) - names), sorted(names)),
            ("replicas", sorted(set(model.replicas) - services), sorted(services)),
        ):
            if unknown:
                raise FleetError(f"nobody knows {few_names(unknown)}", file=_WHERE, field=field, hint=_meant(unknown, known))
        if wrong := [name for name, count in sorted(model.replicas.items()) if not 0 <= count <= 10_000]:
            raise FleetError(f"a number of replicas is out of bounds: {', '.join(wrong)}", file=_WHERE, field="replicas", hint="0 to 10000")
        more: list[Host] = []
        for index, each in enumerate(model.add):
            stem = free_stem(problem.host_names, f"more-{index + 1}")
            more.extend(_more(problem, catalogue, each, each.hosts * each.gpus, stem))
        grown = _joined(problem, more, problem)
        hosts = tuple(host for host in grown.hosts if host.name not in model.remove)
        previous = tuple(place for place in problem.previous if place.host not in model.remove)
        needs = tuple(replace(need, replicas=model.replicas.get(need.service, need.replicas)) for need in grown.needs)
        return replace(problem, hosts=hosts, needs=needs, previous=previous)

    def _how_many(self, known: Problem, problem: Problem, now: Solution, catalogue: Catalogue) -> Answer:
        """The fewest more GPUs with which as many replicas have a place as with any number of them. ``known``: the fleet as it is, of which
        ``problem`` may lack all hosts that these could be like."""
        kind = t.cast("_Kind", self.model.how_many)
        tried, stem = {0: now}, free_stem(problem.host_names)

        def without(gpus: int) -> int:
            if gpus not in tried:
                tried[gpus] = make_plan(_joined(problem, _more(known, catalogue, kind, gpus, stem), known))
            return len(tried[gpus].unplaced)

        high, idle, largest = kind.gpus, 0, _largest_at_once(problem, now, kind.gpus)
        while without(high) and high < MOST and idle < _IDLE:
            # Fewer than a group asks for at once say nothing of what more would do.
            few = high < largest
            idle = 0 if few or without(high) < min(without(count) for count in tried if count < high) else idle + 1
            high = min(2 * high, MOST)
        # More may serve fewer: a plan for very many GPUs is not the best that there is.
        least = min(map(without, (*tried, high)))
        high = min(count for count in tried if without(count) == least)
        low = max((count for count in tried if count < high), default=0)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if without(middle) > least else (low, middle)
        # A host with few GPUs may be worse than none, so that less is enough than halves have found: whole hosts.
        whole = range((high - 1) // kind.gpus * kind.gpus, 0, -kind.gpus)
        high = min((count for count in whole[:_HOSTS_FEWER] if without(count) == least), default=high)
        board, rest = _board(known, catalogue, kind.board).board, _unplaced(tried[high])
        data = {
            "board": board,
            "gpus": high,
            "hosts": -(-high // kind.gpus),
            "gpus_a_host": kind.gpus,
            "unplaced": rest,
            "tried": {str(count): len(tried[count].unplaced) for count in sorted(tried)},
        }
        missing = _missing_words(problem, tried[high])
        if high == MOST and rest:
            lines = [f"more than {MOST} {board} are needed, and more were not tried: with {MOST}, {kind.gpus} in a host, {missing}"]
        elif not high:
            lines = [f"{f'more {board} would help nobody' if rest else f'no {board} more is needed'}: {missing}"]
            most = max(tried)
            lines += [f"with {most} more, {words} no place: {reason}" for words, reason in _reasons(tried[most])]
        else:
            are, fewer = ("is", "without it") if high == 1 else ("are", f"with {high - 1} more")
            lines = [
                f"{high} more {board} {are} needed, {kind.gpus} in a host: {missing}",
                f"{fewer}, {several(without(high - 1), 'replica')} would have no place",
            ]
        return Answer(lines, data)


def _meant(unknown: Sequence[str], known: Sequence[str]) -> str:
    """A hint: the name that may have been meant, if any is near, else those that there are."""
    guesses = [(name, near(name, known, "")) for name in unknown]
    name, guess = next((each for each in guesses if each[1]), ("", ""))
    if guess:
        return guess if len(unknown) == 1 else f"'{name}': {guess}"
    return f"known: {few_names(known)}" if known else "there are none"


def _largest_at_once(problem: Problem, now: Solution, gpus: int) -> int:
    """The most GPUs that anybody without a place could need together, on hosts of so many ``gpus``: one replica, or all of a group, of
    which each may need a host of its own."""
    without = {each.service for each in now.unplaced}
    needs = (need for need in problem.needs if need.service in without)
    return max((max(need.count, gpus) * need.replicas if need.rules.all_or_nothing else need.count for need in needs), default=0)


def _missing_words(problem: Problem, solution: Solution) -> str:
    wanted = sum(need.replicas for need in problem.needs)
    if not wanted:
        return "there is nobody to place"
    if not solution.unplaced:
        return f"all {wanted} replicas have a place" if wanted > 1 else "each replica has a place"
    return f"{len(solution.unplaced)} of {several(wanted, 'replica')} {'has' if len(solution.unplaced) == 1 else 'have'} no place"


def _unplaced(solution: Solution) -> list[dict[str, t.Any]]:
    return [{"service": each.service, "replica": each.replica, "reason": each.reason} for each in solution.unplaced]


def _moved(problem: Problem, solution: Solution) -> list[str]:
    before = {(place.service, place.replica): place for place in problem.previous}
    found = []
    for place in solution.placements:
        old = before.get((place.service, place.replica))
        if old is not None and not same_place(old, place):
            found.append(place.name)
    return found


def _lost(problem: Problem, then: Solution) -> list[str]:
    """Names of replicas that the last plans have, and that have no place then."""
    there = {place.name for place in problem.previous} - {place.name for place in then.waiting}
    return [name for each in then.unplaced if (name := replica_name(each.service, each.replica)) in there]


def _places(problem: Problem, solution: Solution) -> list[str]:
    """A line for each replica that is not where it was, and one for all of a service that have no place for one reason."""
    before = {(place.service, place.replica): place for place in problem.previous}
    rows: list[Sequence[t.Any]] = [("SERVICE", "REPLICA", "HOST", "PLACE")]
    for place in solution.placements:
        old = before.get((place.service, place.replica))
        if old is None or not same_place(old, place):
            rows.append((place.service, place.replica, place.host, place.slice or f"{several(len(place.gpus), 'GPU')} {place.mode}"))
    without = without_place(_unplaced(solution))
    rows.extend((service, numbers(replicas), None, f"no place: {reason}") for service, replicas, reason in without)
    return table(rows) if len(rows) > 1 else []


def _reasons(solution: Solution) -> list[tuple[str, str]]:
    """Of the first services without a place: who in words, and why."""
    found = without_place(_unplaced(solution))[:_TOLD]
    return [(f"{service} {numbers(replicas)} {'has' if len(replicas) == 1 else 'have'}", reason) for service, replicas, reason in found]


def _slice(one: object) -> str | None:
    return None if one is None else str(one)


def _more(problem: Problem, catalogue: Catalogue, kind: _Kind, gpus: int, name: str) -> list[Host]:
    """Hosts with so many GPUs in all, the last one with what is left; like those of their environment, but for what is said of them."""
    gpu = _board(problem, catalogue, kind.board)
    known = sorted({host.environment for host in problem.hosts})
    environment = kind.environment or (known[0] if len(known) == 1 else "")
    if environment not in known and kind.environment is None:
        raise FleetError("the environment is not said", file=_WHERE, field="environment", hint=f"write one of {', '.join(known)}")
    if environment not in known and all(need.environment != environment for need in problem.needs):
        wrong, hint = f"no host and no service has the environment '{environment}'", f"write one of {', '.join(known)}"
        raise FleetError(wrong, file=_WHERE, field="environment", hint=hint)
    like = _like(problem, environment, gpu.board)
    # What may not be on one of its neighbours may not be on a host of which nothing is said.
    there = [set(host.data_classes) for host in problem.hosts if host.environment == environment]
    alike = set.intersection(*there) if there else set()
    more: dict[str, t.Any] = {}
    if like is not None:
        names = ("modes", "sharing", "shared_max", "shared_reserve_mib", "shared_compute", "ports")
        more = {field: getattr(like, field) for field in names}
    capacity = Resources(kind.cpus, kind.memory, None, None)

    def gpus_of(number: int) -> tuple[Gpu, ...]:
        uuids = [f"GPU-{name}-{number:04}-{index}" for index in range(min(kind.gpus, gpus - number * kind.gpus))]
        return new_gpus(gpu, uuids, None if gpu.links is None else width(gpu))

    return [
        Host(
            name=f"{name}-{number:04}",
            environment=environment,
            gpus=gpus_of(number),
            capacity=capacity,
            data_classes=tuple(sorted(alike if kind.data_classes is None else set(kind.data_classes))),
            **more,
        )
        for number in range(-(-gpus // kind.gpus))
    ]


def _like(problem: Problem, environment: str, board: str) -> Host | None:
    """Whose policy a host that comes has: the first of its environment with such a board, else the first one, that is not down."""
    there = sorted((host for host in problem.hosts if host.environment == environment and not host.down), key=lambda host: host.name)
    return next((host for host in there if any(gpu.board == board for gpu in host.gpus)), there[0] if there else None)


def _joined(problem: Problem, hosts: Sequence[Host], known: Problem) -> Problem:
    """The problem with hosts that come. The compatibility gate says of each what it says of the one that it is like, of those ``known``."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for host in hosts:
        kinds.setdefault((host.environment, host.gpus[0].board), []).append(host.name)
    like = {(environment, board): _like(known, environment, board) for environment, board in kinds}

    def barred(need: Need) -> Need:
        more = {
            (name, kind[1]): why
            for kind, one in like.items()
            if one is not None and (why := need.bars.get((one.name, kind[1]))) is not None
            for name in kinds[kind]
        }
        return replace(need, bars={**need.bars, **more}) if more else need

    return replace(problem, hosts=(*problem.hosts, *hosts), needs=tuple(map(barred, problem.needs)))


def _board(problem: Problem, catalogue: Catalogue, asked: str) -> Gpu:
    """A GPU of this kind: as the fleet has it, else as the catalogue says. ``asked``: a board's id, or a part that only one has.

    :raises FleetError: no board has that in its id, or several have.
    """
    wanted = asked.strip().lower().replace(" ", "-")
    own = {gpu.board: gpu for host in problem.hosts for gpu in host.gpus if gpu.memory_mib}
    sold = {gpu.board: gpu for gpu in boards_of(catalogue)}
    for known in (own, sold):
        found = [known[wanted]] if wanted in known else [gpu for board, gpu in sorted(known.items()) if wanted in board]
        if len(found) == 1:
            gpu = found[0]
            # Others may be joined as its maker joins them, whatever is known of those that are there.
            there = [each for host in problem.hosts for each in host.gpus if each.board == gpu.board]
            alike = [*there, *([sold[gpu.board]] if gpu.board in sold else [])]
            joined = max((each.links for each in alike if each.links), key=len, default=gpu.links)
            return replace(gpu, links=joined)
        if len(found) > 1:
            names = ", ".join(gpu.board for gpu in found)
            raise FleetError(f"'{asked}' may be one of several boards", file=_WHERE, field="board", hint=f"write one of {names}")
    names = ", ".join(sorted(own))
    raise FleetError(
        f"there is no board '{asked}'", file=_WHERE, field="board", hint=f"the fleet has {names or 'none'}; others by their id"
    )


def boards_of(catalogue: Catalogue) -> list[Gpu]:
    """Every board of the catalogue as an idle GPU. Its memory is what it has at least: that of its largest slice, else 959 MiB for each GB
    that it is sold with, for boards whose error correction is in their own memory report no more (46068 MiB of 48 GB on an L40S)."""
    found = []
    for board in catalogue.boards.values():
        geometry = catalogue.of_board(board.id)
        largest = max((profile.memory_mib for profile in geometry.profiles), default=0) if geometry else 0
        peers = tuple(f"peer {number}" for number in range(1, board.joined))
        found.append(Gpu("", "", board.id, max(largest, 959 * board.memory_gb), geometry, links=peers, sold_mib=1024 * board.memory_gb))
    return sorted(found, key=lambda gpu: (gpu.memory_mib, gpu.board))
