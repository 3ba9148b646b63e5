# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cheapest change that would give a replica its place, proved by planning again with it. No change is told that was not tried.

A change counts when the replica has a place in the new plan, and everybody who had one still has one, but for whom the change names: where
the change is made once this plan is carried out, and where it is made at once, as in the merge request that asks for the plan.
What is tried is bounded by an amount of work and not by a clock, so the same input gives the same words.
"""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import replica_name
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes_for_all import by_hosts, by_quotas
from ansible_collections.gpuops.fleet.plugins.plugin_utils.changes_proved import MOST_MOVES, Proved, Trial
from ansible_collections.gpuops.fleet.plugins.plugin_utils.explain import refused_by_quota
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_amounts import AMOUNTS, enough, without_limit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.host_blockers import bring_back
from ansible_collections.gpuops.fleet.plugins.plugin_utils.more_hosts import Asked, Kinds, free_stem, gpus_of, host_with, words_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import (
    Gpu,
    Host,
    Need,
    Problem,
    Solution,
    carried_out,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Change, Proposal
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import (
    COSTS,
    LOSERS,
    MOVES,
    OF_GPUS,
    OF_OTHERS,
    OF_THE_NEED,
    SELF,
    WIDE,
    Edit,
    Option,
    Spot,
    asks_otherwise,
    cause_of,
    choices_of,
    combined,
    eased,
    edited,
    named,
    without,
)
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repairs import Scene
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sharing_out import answered
from ansible_collections.gpuops.fleet.plugins.plugin_utils.sweeps import without_sweeps
from ansible_collections.gpuops.fleet.plugins.plugin_utils.trials import Key

#: How many changes are tried for one service before a host is added.
TRIES: t.Final = 8
#: For so many replicas of a service each is told what a quota or a host lacks for it and those before; further ones, what all lack.
ONE_MORE: t.Final = 3
#: Work for all services together, in units of about ten microseconds of a controller's core.
BUDGET: t.Final = 40_000
#: What holds only once the plan is carried out is told beside what holds at once where it costs so many times less.
CHEAPER: t.Final = 2
#: Of so many places in which one thing is done it is tried without each.
FEW_WAYS: t.Final = 4
#: At most so many GPUs are added to find out how many it takes.
MOST_GPUS: t.Final = 64
#: Of so many raises of a quota, each is tried in turn.
IN_TURN: t.Final = 6


@without_sweeps
def propose(
    problem: Problem,
    solution: Solution,
    leases: Mapping[str, str] | None = None,
    boards: Sequence[Gpu] = (),
    budget: int = BUDGET,
    models: Mapping[str, Callable[[Option], Iterator[Option]]] | None = None,
) -> list[Proposal]:
    """For each replica without a place the cause and the changes, in the order of ``solution.unplaced``.

    ``leases``: replica -> when its lease ends, as people read it, empty if over.
    ``boards``: GPUs that can be bought beside those that the fleet has.
    ``models``: service -> what makes of an option those for the owner of its model (``model_sizes.py``).
    """
    if not solution.unplaced:
        return []
    search = Search(problem, solution, leases or {}, boards, budget, models or {})
    missing: dict[str, list[int]] = {}
    for each in solution.unplaced:
        missing.setdefault(each.service, []).append(each.replica)
    needs = {need.service: need for need in problem.needs}
    found: dict[Key, Proposal] = {}
    asked = [(needs[service], missing[service]) for service in sorted(missing, key=lambda name: (-needs[name].priority, name))]
    search.look_ahead(asked)
    for need, replicas in asked:
        for proposal in search.of_service(need, replicas):
            found[(proposal.service, proposal.replica)] = proposal
    for key, change in by_quotas(search, [key for key, each in found.items() if not each.changes and each.cause == "quota"]):
        found[key] = replace(found[key], changes=(change,))
    for key, change in by_hosts(search, [key for key, each in found.items() if not each.changes]):
        found[key] = replace(found[key], changes=(change,))
    for key, change in search.later.items():
        if not found[key].changes:
            found[key] = replace(found[key], changes=(change,))
        elif change.cost * CHEAPER <= found[key].changes[0].cost:
            found[key] = replace(found[key], afterwards=change)
    return [found[(each.service, each.replica)] for each in solution.unplaced]


# The binding cause of a need; (cause, what would take it away), the cheapest first; a host with room where only the site's rules bind.
_Options = tuple[str, list[tuple[str, Option]], str]


class _First(t.NamedTuple):
    """The first changes of a service that were found: whom they serve, what was in the way, and of what kind of option the first is."""

    changes: tuple[Change, ...] = ()
    served: Set[int] = frozenset()
    cause: str = ""
    kind: str = ""


def _cheapest_first(options: Iterable[tuple[str, Option]]) -> list[tuple[str, Option]]:
    return sorted(options, key=lambda each: (each[1].cost, each[1].text))


def _once(options: Iterable[tuple[str, Option]]) -> Iterator[tuple[str, Option]]:
    """The cheapest first, without what is the same for the whole fleet, wherever it was found."""
    known: set[tuple[Edit, ...]] = set()
    for cause, option in _cheapest_first(options):
        if option.kind not in WIDE or option.edits not in known:
            known.add(option.edits)
            yield cause, option


@dataclass
class _Known:
    """What the search for one service says of the next that asks for the same: what is in the way, what could be tried, which GPUs would
    do if there were more; and once it was searched, the kind of change and how many more hosts it took."""

    cause: str
    options: list[tuple[str, Option]]
    room: str
    board: tuple[Host | None, Gpu] | None
    found: bool = False
    kind: str = ""
    hosts: int = 1


class Search(Proved):
    """The search of one solution's changes."""

    def __init__(
        self,
        problem: Problem,
        solution: Solution,
        leases: Mapping[str, str],
        boards: Sequence[Gpu],
        budget: int,
        models: Mapping[str, Callable[[Option], Iterator[Option]]],
    ) -> None:
        super().__init__(problem, solution, leases, budget)
        self.leases = leases
        self.kinds = Kinds(self.now, boards)
        self.stem = free_stem(self.now.host_names)
        self.down = [host for host in self.now.hosts if host.down]
        self.models = models
        self.known: dict[Need, _Known] = {}
        self.ahead: dict[Need, tuple[_Options, int]] = {}
        # By edits: who has a place in the whole fleet after them.
        self.whole: dict[tuple[Edit, ...], set[Key] | None] = {}
        # Of the service that is looked at: replicas that only wait for the others of their group.
        self.words: dict[int, str] = {}

    def of_service(self, need: Need, replicas: Sequence[int]) -> Iterator[Proposal]:
        """One proposal for each replica of a service, the first ones with the cheapest change that serves them."""
        rest = sorted(replicas)
        self.words = {}
        if need.adopted:
            yield from (Proposal(need.service, number, "adopted") for number in rest)
            return
        alike = self._alike(need)
        if alike not in self.known:
            seen, looked = self.ahead.get(alike) or self._looked(alike, rest)
            self.scene.looked += looked
            self.known[alike] = _Known(*seen, self.kinds.of(alike))
        known = self.known[alike]
        cause = known.cause
        options = [(word, named(option, need.service)) for word, option in known.options]
        if need.service in self.models:
            options = [(word, one) for word, option in options for one in self.models[need.service](option)]
        by_quota = (known.room or self.now.preemption) and self.books.limits(need) and not self.many
        others = [*options, *(("quota", back) for back in (() if self.many else self.books.coming_back(need, by_quota)))]
        options = _cheapest_first([*others, *(self._quota(need, 1) if by_quota else ())])
        tried = [each for each in options if each[1].kind == known.kind] if known.found else options
        first = self._first(need, tried, rest[:1])
        known.found, known.kind = True, first.kind
        if not first.changes and not self.many and self.books.limits(need):
            first = self._first(need, list(self._with_quota(need, options)), rest[:1])
        while first.changes:
            cause = cause if first.cause in OF_THE_NEED and cause not in OF_THE_NEED else first.cause
            also = self.also(need, first.changes[0], [number for number in rest if number not in first.served])
            instead, more = self._instead(need, first, known)
            for number in rest:
                told_ = first.changes if number in first.served else first.changes[:1] if number in also else ()
                told_ += (instead,) if instead and number in more else ()
                if told_:
                    yield Proposal(need.service, number, self.words.get(number, cause), told_)
            rest = [number for number in rest if number not in first.served | also]
            # What is done in one place may serve no more than one: the others are asked about what is done in several.
            many = len(replicas) - len(rest) + 1
            if rest and by_quota:
                lacking = many if many <= ONE_MORE else self.missing[need.service]
                options = _cheapest_first([*others, *self._quota(need, lacking)])
            first = self._first(need, options, rest[:1]) if rest and not self.many else _First()
        if rest:
            added, more = self._hosts(need, rest, known) if not self.many else (None, set())
            for number in rest:
                yield Proposal(need.service, number, self.words.get(number, cause), (added,) if added and number in more else ())

    def _instead(self, need: Need, first: _First, known: _Known) -> tuple[Change | None, set[int]]:
        """More hosts for whom nothing else helps than that one comes back which may be gone for good."""
        alone = len(first.changes) == 1 and any(edit.field == "down" for edit in first.changes[0].edits)
        return self._hosts(need, sorted(first.served), known) if alone and not self.many else (None, set())

    def look_ahead(self, asked: Iterable[tuple[Need, Sequence[int]]]) -> None:
        """What could be tried for each kind of needs, as far as that does not hang on what was tried for others: by two processes."""
        kinds: dict[Need, Sequence[int]] = {}
        environments = {host.environment for host in self.now.hosts}
        for need, replicas in asked:
            if not need.adopted and not need.rules.all_or_nothing and need.environment in environments:
                kinds.setdefault(self._alike(need), replicas)
        found = answered(lambda each: self._looked(*each), list(kinds.items()), lambda each: self.scene.bare(each[0]))
        self.ahead = dict(zip(kinds, found, strict=True))

    def _alike(self, need: Need) -> Need:
        """The same for all that ask for the same and have no place yet."""
        own = need.service in self.at or need.rules.all_or_nothing or need.keep_room or self.scene.fleet.rulebook.alone(need)
        return need if own else replace(need, service=SELF)

    def _looked(self, need: Need, replicas: Sequence[int]) -> tuple[_Options, int]:
        """As :meth:`_options`, and at how many GPUs it looked for that: work that is not counted yet."""
        before, self.scene.looked = self.scene.looked, 0
        found = self._options(need, sorted(replicas))
        looked, self.scene.looked = self.scene.looked, before
        return found, looked

    def _options(self, need: Need, replicas: Sequence[int]) -> _Options:
        """What stands in the way of a need, and what could be tried."""
        hosts = [host for host in self.now.hosts if host.environment == need.environment]
        if not hosts:
            names = sorted({host.environment for host in self.now.hosts if not host.down})
            found = [("environment", option) for name in names for option in self._environment(need, name, replicas[0])]
            return "environment", _cheapest_first(found), ""
        back = [("host down", option) for option in bring_back(hosts, need, self._to_bring_back(need))]
        if all(host.down for host in hosts):
            return "host down", back, ""
        scene, number = self._scene_of(need, replicas[0])
        spots = scene.spots(need, replica_name(need.service, number))
        found = [(spot.cause, combined(spot.host, choice)) for spot in spots[:4] for choice in choices_of(spot)]
        cause = self._binding(need, spots)
        causes = [cause, *(blocker.cause for spot in spots for blocker in spot.blockers)]
        # Where a GPU is closed, or a port taken, others may be on one that is open.
        beside = cause if not self.many and (cause in OF_GPUS or cause == "port") else None
        held = next((word for word in causes if word in OF_OTHERS), beside)
        if held is not None and self.now.moves < MOST_MOVES:
            found.append((held, Option("moves", COSTS["moves"], MOVES, (Edit("fleet", "", "moves", MOST_MOVES),))))
        found += back
        if cause == "host down":
            found = [each for each in found if each[0] not in OF_THE_NEED]
        room = spots[0].host if spots and not spots[0].blockers else ""
        if cause in OF_GPUS and (every := scene.everywhere(need, cause)) is not None:
            found.append((cause, every))
        if need.replicas > 1 and need.rules.all_or_nothing:
            text = f"let some replicas of {need.service} run without the others ('all_or_nothing')"
            alone = Edit("service", need.service, "rules.all_or_nothing", False)
            found.append(("group", Option("replicas", COSTS["replicas"], text, (alone,))))
        return cause, list(_once(found)), room

    def _binding(self, need: Need, spots: Sequence[Spot]) -> str:
        """The cause at the place that is nearest to being right: one on a GPU of the right kind, of a host that may have its data, if there
        is any."""
        if not spots:
            hosts = [host for host in self.now.hosts if host.environment == need.environment]
            if any(host.down for host in hosts):
                return "host down"
            return self.scene.misfit(need) or "in use" if any(host.gpus for host in hosts) else "no GPU"
        if all(asks_otherwise(spot.blockers) for spot in spots) and self._to_bring_back(need):
            return "host down"
        nearest = min(spots, key=lambda spot: spot.remoteness)
        return nearest.cause if nearest.blockers else self._site_cause(need)

    def _to_bring_back(self, need: Need) -> list[str]:
        """The hosts that are down and have replicas of it."""
        return sorted({place.host for place in self.solution.waiting if place.service == need.service and self._is_down(place.host)})

    def _scene_of(self, need: Need, number: int) -> tuple[Scene, int]:
        """The fleet as the replica finds it; for a group that has no place as a whole, as the first finds it that is one too many."""
        if not need.rules.all_or_nothing or need.replicas == 1:
            return self.scene, number
        single = Edit("service", need.service, "rules.all_or_nothing", False)
        problem = edited(self.reduced(need, None), [single])
        solution = self.plan(problem)
        missing = [] if solution is None else [each.replica for each in solution.unplaced if each.service == need.service]
        if solution is None or not missing:
            return self.scene, number
        self.words = {each: "group" for each in range(1, need.replicas + 1) if each not in missing}
        return Scene(carried_out(problem, solution), solution, self.leases), missing[0]

    def _environment(self, need: Need, name: str, number: int) -> Iterator[Option]:
        """Another environment; and that with whatever else is in the way there."""
        text = f"write environment '{name}', or set fleet_environment on a host"
        other = Option("environment", COSTS["environment"], text, (Edit("service", need.service, "environment", name),))
        yield other
        spots = self.scene.spots(replace(need, environment=name), replica_name(need.service, number))
        for choice in choices_of(spots[0]) if spots else ():
            yield combined(spots[0].host, (("environment", other._replace(text=f"write environment '{name}'")), *choice))

    def _site_cause(self, need: Need) -> str:
        """What is in the way where every host by itself would do."""
        if self.books.limits(need):
            return "quota"
        return "group" if need.rules.all_or_nothing else "port"

    def _quota(self, need: Need, many: int) -> Iterator[tuple[str, Option]]:
        """A loan, or the quota that so many replicas lack; where preemption is allowed, the service may take somebody's place with it."""
        lower = (place.name for place in self.now.previous if self.scene.needs[place.service].priority < need.priority)
        lost = tuple(sorted(lower)) if self.now.preemption else ()
        for option in (self.books.borrowing(need), self._raise(need, many)):
            if option is not None and self.now.preemption:
                each, *more = (one._replace(text=f"{one.text}{LOSERS}", lost=lost, more=()) for one in (option, *option.more))
                option = each._replace(more=tuple(more))
            if option is not None:
                yield "quota", option

    def _raise(self, need: Need, many: int) -> Option | None:
        """The quota that so many replicas lack; and more of it, up to what all lack who may come before them."""
        before = self._before(need) - self.aside - {need.service}
        others = [self.scene.needs[service] for service in sorted(before) for _each in range(self.missing[service])]
        several = self.missing[need.service] if need.rules.all_or_nothing else many
        steps = self.books.steps(need, several, others, self.raised(need, True))
        return steps[0]._replace(more=tuple(steps[1:])) if steps else None

    def _with_quota(self, need: Need, options: Sequence[tuple[str, Option]]) -> Iterator[tuple[str, Option]]:
        """The cheapest options, each with the quota that it takes besides."""
        for cause, option in options[: TRIES // 2]:
            raised = self.raised(need, True, option.edits)
            if raised is not None:
                yield cause, combined("", (("quota", raised), *(option.parts or ((cause, option),))))

    def raised(self, need: Need, moves: bool, edits: Sequence[Edit] = ()) -> Option | None:
        """The team's quota, and its workspace's, as they have to be for the service, and whoever comes before it, to have a place.

        ``moves``: others may move for them. ``edits``: what else is changed.
        """
        freed = self.books.without({need.team})
        asked = replace(need, rules=eased(need, edits).rules)
        problem = edited(replace(self.reduced(asked, None), quotas=freed), edits)
        solution = self.plan(problem if moves else replace(problem, moves=0))
        new = [] if solution is None else [place for place in solution.placements if (place.service, place.replica) not in self.placed]
        return self.books.raised(need, new) if any(place.service == need.service for place in new) else None

    def _first(self, need: Need, options: Sequence[tuple[str, Option]], targets: Sequence[int]) -> _First:
        """The cheapest option that serves the targets, and one of another kind that serves as many."""
        found: list[Change] = []
        served: set[int] = set()
        word, kind = "", ""
        # Of many, the last half of the work is for what the services' owners can do themselves.
        able = not self.many or (self.left > (self.budget + self.share) // 2 and self.proving > 0)
        for cause, option in options[:TRIES]:
            if not able and not self.is_own(need, option):
                continue
            if found and (
                option.kind == found[0].kind or option.cost > 2 * found[0].cost + 100 or set(found[0].edits) <= set(option.edits)
            ):
                continue
            if found and option.kind == "stop" and any(self.scene.priority(name) > need.priority for name in option.lost):
                continue  # nobody stops a higher priority where there is another way
            change, now, losers = self.proved(need, option, targets)
            for larger in self._enough(need, option, targets) if change is None else ():
                change, now, losers = self.proved(need, larger, targets)
                if change is not None:
                    option = larger
                    break
            if change is None and option.more:
                option, (change, now, losers) = self._more(need, option.more, targets)
            if change is None or not served <= now:
                continue
            if option.mild is not None and (self.now.moves or not losers):
                # Nobody has to give way after all, or others may move instead: the rest of it may do.
                least, also, _nobody = self.proved(need, option.mild, targets)
                change, now, option = (least, also, option.mild) if least is not None and served <= also else (change, now, option)
            change, now = self._fewest(need, option, change, now, targets)
            change, now, cause = self._least(need, option, change, now, targets, cause)
            if found and change.kind == found[0].kind:
                continue
            found.append(change)
            if len(found) == 2:
                break
            word, served, kind = cause, now, option.kind
        return _First(tuple(found), served, word, kind)

    def _fewest(self, need: Need, option: Option, change: Change, served: set[int], targets: Sequence[int]) -> tuple[Change, set[int]]:
        """The change and whom it serves, where one thing is done in several places, in as few of them as serve the targets: by halves, then
        of few without each."""
        ways, low = option.ways, 0
        if self.many:
            return change, served
        while len(ways) - low > 1:
            middle = (low + len(ways)) // 2
            fewer, also, _losers = self.proved(need, self.scene.in_several(ways[:middle]), targets)
            if fewer is None:
                low = middle
            else:
                change, served, ways = fewer, also, ways[:middle]
        for way in ways[:-1] if len(ways) <= FEW_WAYS else ():
            rest = tuple(each for each in ways if each != way)
            fewer, also, _losers = self.proved(need, self.scene.in_several(rest), targets)
            if fewer is not None:
                change, served, ways = fewer, also, rest
        return change, served

    def _more(self, need: Need, larger: Sequence[Option], targets: Sequence[int]) -> tuple[Option, Trial]:
        """The least of the larger options that serves the targets, and what came of it.

        A few are tried in turn, for more room may serve others instead; many by halves, if the largest one does.
        """
        low, high = 0, len(larger) - 1
        found = self.proved(need, larger[high], targets)
        while low < high and found[0] is not None and self.may_look_closer:
            middle = low if high - low <= IN_TURN else (low + high) // 2
            trial = self.proved(need, larger[middle], targets)
            if trial[0] is None:
                low = middle + 1
            else:
                found, high = trial, middle
        return larger[high], found

    def _enough(self, need: Need, option: Option, targets: Sequence[int]) -> Iterator[Option]:
        """An option that gives a host more, with as much as those take who come before the target; then as all who may come before it."""
        if self.many or len(option.edits) != 1 or option.kind not in AMOUNTS:
            return
        edit, known = option.edits[0], self.missing[need.service]
        host = self.scene.fleet.hosts[edit.name]
        last = targets[0] if targets[0] <= need.replicas - known + ONE_MORE else need.replicas
        asked = (without_limit(host, edit, self.scene.fleet.asked), Edit("service", need.service, "replicas", last))
        problem = edited(self.reduced(need, {edit.name}), asked)
        later = {name for name in self.missing if (-self.scene.needs[name].priority, name) > (-need.priority, need.service)}
        sooner = tuple(self.trimmed.get(each.service) if each.service in later else each for each in problem.needs)
        tried = {edit}
        for needs in (tuple(each for each in sooner if each is not None), problem.needs):
            solution = self.plan(replace(problem, needs=needs), {edit.name})
            if solution is None:
                return
            larger = enough(host, edit, solution, self.now.previous, self.scene.needs)
            if larger.edits[0] not in tried:
                tried.add(larger.edits[0])
                yield larger._replace(host=edit.name, parts=tuple((cause, larger) for cause, _part in option.parts))

    def _least(
        self, need: Need, option: Option, change: Change, served: set[int], targets: Sequence[int], cause: str
    ) -> tuple[Change, set[int], str]:
        """The change, whom it serves and the cause, without those of its parts that it can do without: each is left out once.

        What is in the way of one place may not be of the others that there are then, or may go with something else that is in the way.
        """
        for _cause, part in sorted(option.parts, key=lambda each: (-each[1].cost, each[1].text)):
            if len(option.parts) == 1:
                break
            rest = without(option, part)
            least, also, _losers = self.proved(need, rest, targets)
            if least is None and (part.lost or not self.many):
                # Who need not stop there may have another place elsewhere, and so may the replica itself.
                least, also, _losers = self.proved(need, rest._replace(host=""), targets)
            if least is not None and served <= also and set(least.lost) <= set(change.lost):
                option, change, served, cause = rest, least, also, cause_of(rest.parts)
        return change, served, cause

    def _hosts(self, need: Need, replicas: Sequence[int], known: _Known) -> tuple[Change | None, set[int]]:
        """The fewest more hosts with a GPU (or as many as one replica needs) that serve the replicas: by doubling, then by halves.

        Where no kind of GPU would serve what is asked for, for what it could ask instead.
        """
        best: tuple[Change | None, set[int]] = (None, set())
        asked = self.kinds.otherwise(need) if known.board is None else Asked(need, known.board)
        if asked is None:
            return best
        if asked.board[0] is not None and refused_by_quota(self.scene.fleet, asked.need):
            return best  # On hosts like those that there are it would count as much.
        more = partial(self.more_hosts, asked.need, asked.board)
        low, count = known.hosts - 1, known.hosts
        while best[0] is None and count * need.count <= MOST_GPUS and self.left > 0:
            best = self.tried(need, asked.told(more(count)), replicas)
            low, count = (low, count) if best[0] is not None else (count, 2 * count)
        while best[0] is not None and count - low > 1:
            middle = (low + count) // 2
            found = self.tried(need, asked.told(more(middle)), replicas)
            best, low, count = (found, low, middle) if found[0] is not None else (best, middle, count)
        known.hosts = count
        if best[0] is None:
            return best
        # Others may take these hosts, too: whom they serve is seen in the whole fleet.
        now = self._placed_with(best[0].edits)
        served = {number for number in replicas if now is not None and self.placed <= now and (need.service, number) in now}
        early = {number for _service, number in self.holding(best[0], ((need.service, number) for number in served))}
        return (best[0], early) if early else (None, set())

    def _placed_with(self, edits: tuple[Edit, ...]) -> set[Key] | None:
        """Who has a place in the whole fleet after these edits; None when there is no work left to find out."""
        if edits not in self.whole:
            problem = edited(self.now, edits)
            self.whole[edits] = self.after(problem) if self.affords(problem, self.left) else None
        return self.whole[edits]

    def more_hosts(self, need: Need, board: tuple[Host | None, Gpu], count: int, first: int = 1) -> Option:
        """So many more hosts with a GPU of this kind, or as many as one replica needs. ``first``: the number in the name of the first."""
        like, gpu = board
        hosts = tuple(host_with(need, like, gpu, f"{self.stem}-{number:04}", gpus_of(need, gpu)) for number in range(first, first + count))
        back = self._untried(need)
        bring = f"bring {' and '.join(back)} back, or " if back else ""
        return Option("hosts", COSTS["hosts"] + count, f"{bring}add {words_of(need, gpu, count)}", (Edit("fleet", "", "hosts", hosts),))

    def _untried(self, need: Need) -> list[str]:
        """The hosts that are down and may take it: those that had it, else of which nothing is known. What others are worth was tried."""
        ran = self._to_bring_back(need)
        known = {host.name for host in self.down if host.last is not None and not self.many}
        return [name for name in ran or sorted(host.name for host in self.down if host.admits(need)) if name not in known]

    def _is_down(self, name: str) -> bool:
        return any(host.name == name for host in self.down)
