# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be in the way of a service, what takes it away and what that costs: the words and the data of explanations."""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Deed, Gpu, Host, Need, Problem, bars_after

#: What can be in the way, in the order in which it is looked at; the last word that every host has is the binding one.
CAUSES: t.Final = (
    "environment",
    "data class",
    "host down",
    "no GPU",
    "adopted",
    "model",
    "compatibility",
    "profile",
    "memory",
    "count",
    "nvlink",
    "policy mode",
    "pinned layout",
    "lost",
    "drain",
    "cordon",
    "outsider",
    "in use",
    "priority",
    "lease",
    "host cpus",
    "host memory",
    "host shm",
    "host disk",
    "port",
    "spread",
    "apart",
    "together",
    "kept room",
    "quota",
    "group",
)
#: What each kind of change costs whoever makes it: a line of the owner's own manifest first, other people's places and new hardware last.
COSTS: t.Final[Mapping[str, int]] = {
    "port": 100,
    "ports": 150,
    "moves": 200,
    "lease": 250,
    "release": 300,
    "uncordon": 300,
    "shared_max": 300,
    "shared_compute": 320,
    "borrow": 340,
    "quota": 350,
    "spread": 400,
    "apart": 400,
    "together": 400,
    "keep_room": 400,
    "mode": 400,
    "sharing": 400,
    "models": 450,
    "gate": 500,
    "pin": 500,
    "resources": 500,
    "nvlink": 600,
    "profile": 600,
    "memory": 600,
    "compute": 600,
    "isolation": 650,
    "environment": 700,
    "count": 700,
    "replicas": 700,
    "outsider": 750,
    "preemption": 750,
    "others_room": 760,
    "capacity": 800,
    "repair": 850,
    "priority": 900,
    "stop": 950,
    # That data may be on one more host is for whoever answers for the data to say: nearly the last thing. That it be of a lesser class is
    # no change at all.
    "data_class": 1500,
    "hosts": 2000,
}
#: Causes that are between the service and the kinds of GPU that there are: they bind only where no GPU of the right kind is in question.
OF_THE_NEED: t.Final = frozenset({"model", "compatibility", "profile", "memory", "count", "nvlink"})
#: Kinds that may need any host of the fleet, and not only the one where the place is: others use a raised quota elsewhere.
WIDE: t.Final = frozenset({"borrow", "moves", "preemption", "priority", "quota", "replicas"})
#: Causes that others may take away by going somewhere else.
OF_OTHERS: t.Final = frozenset(
    {"in use", "priority", "lease", "apart", "together", "host cpus", "host memory", "host shm", "host disk", "kept room", "policy mode"}
)
#: Causes that may be in the way of many GPUs at once.
OF_GPUS: t.Final = frozenset({"drain", "cordon", "lost", "outsider", "pinned layout", "policy mode", "compatibility"})


#: In place of a service's name while a finding holds for all that ask for the same.
SELF: t.Final = ""

#: Above every priority.
ABOVE_ALL: t.Final = 101


#: In a text, in place of those who lose their places by it, until a plan has said who they are.
LOSERS: t.Final = "{losers}"

#: In a text, in place of how many moves it takes and of whom, until a plan has said so.
MOVES: t.Final = "{moves}"

#: Who asks for a certain amount is not told to do with less than such a part of it.
LEAST_PART: t.Final = 0.1


class Edit(t.NamedTuple):
    """One value that becomes another. ``part``: service, host, gpu or fleet; ``name``: whose (a GPU's UUID, '' for the fleet);
    ``field``: as the problem's types have it (``rules.apart``), or ``hosts`` of the fleet, whose ``value`` are hosts that come, or ``bars``
    of a service or host, whose ``value`` is what is done about what the compatibility gate says there, or ``drain`` of a whole host (that
    of a GPU leaves what it has of its host), or ``down``, which makes it what it was."""

    part: str
    name: str
    field: str
    value: t.Any


class Option(t.NamedTuple):
    """One way to take one thing out of the way.

    ``lost``: replicas that give their place away for it, by name; ``host``: where the place would be, '' for anywhere; ``mild``: the same
    without those of its parts by which somebody loses a place, where there are others. ``parts``: what it is made of, one for each thing
    that is in the way (a word of :data:`CAUSES`). ``ways``: where one thing is done in several places, each of these.
    ``more``: larger ones of the same, the least first, for where this is not enough.
    """

    kind: str
    cost: float
    text: str
    edits: tuple[Edit, ...]
    lost: tuple[str, ...] = ()
    host: str = ""
    mild: Option | None = None
    parts: Parts = ()
    ways: tuple[Option, ...] = ()
    more: tuple[Option, ...] = ()


#: (What is in the way, what takes it away).
Parts = tuple[tuple[str, Option], ...]


class Blocker(t.NamedTuple):
    """One thing that is in the way."""

    cause: str
    options: tuple[Option, ...]

    @property
    def best(self) -> Option:
        """The cheapest way."""
        return min(self.options, key=lambda option: (option.cost, option.text))


class Spot(t.NamedTuple):
    """A host, and all that keeps the service from it; nothing where only the whole fleet's rules do."""

    host: str
    blockers: tuple[Blocker, ...]

    @property
    def rank(self) -> tuple[float, int, str]:
        """What it costs to take the place; what one thing takes away on several GPUs counts once."""
        best = [blocker.best for blocker in self.blockers]
        again = len({option.kind for option in best}) < len(best)
        cost = combined(self.host, self.cheapest).cost if again else sum(option.cost for option in best)
        return (cost, len(best), self.host)

    @property
    def cheapest(self) -> Parts:
        """The cheapest way for each blocker."""
        return tuple((blocker.cause, blocker.best) for blocker in self.blockers)

    @property
    def remoteness(self) -> tuple[t.Any, ...]:
        """How far it is from being right. Where somebody would first have to say that its data may be there too, something else being in
        the way besides, is the last place that anybody thinks of."""
        causes = {blocker.cause for blocker in self.blockers}
        elsewhere = 0 if "data class" not in causes else 1 if len(causes) == 1 else 3
        return (max(elsewhere, 2 * asks_otherwise(self.blockers)), self.rank)

    @property
    def cause(self) -> str:
        """As :func:`cause_of`."""
        return cause_of(self.cheapest)


def cause_of(parts: Iterable[tuple[str, Option]]) -> str:
    """What of the service itself its GPUs have not, if there is anything; else the thing that costs most."""
    known = [(option.cost, CAUSES.index(cause), cause) for cause, option in parts]
    return max([each for each in known if each[-1] in OF_THE_NEED] or known)[-1]


def option_of(kind: str, text: str, *edits: Edit, more: float = 0, lost: Iterable[str] = ()) -> Option:
    """``more``: how much of the thing, 0 to 1; between two of one kind the smaller is cheaper."""
    return Option(kind, COSTS[kind] + round(49 * min(max(more, 0), 1), 2), text, edits, tuple(lost))


def with_value(thing: t.Any, field: str, value: t.Any) -> t.Any:
    """The frozen dataclass with another value of a field, or of a field of a field (``rules.apart``)."""
    if field == "bars":
        return replace(thing, bars=bars_after(thing.bars, value))
    first, _dot, rest = field.partition(".")
    return replace(thing, **{first: with_value(getattr(thing, first), rest, value) if rest else value})


def eased(need: Need, edits: Iterable[Edit]) -> Need:
    """The need as these edits make it."""
    for edit in edits:
        need = with_value(need, edit.field, edit.value) if (edit.part, edit.name) == ("service", need.service) else need
    return need


def asks_otherwise(blockers: Iterable[Blocker]) -> bool:
    """Would the service have to ask for something else?"""
    return any(blocker.cause in OF_THE_NEED for blocker in blockers)


def merged(blockers: Iterable[Blocker]) -> tuple[Blocker, ...]:
    """What several GPUs have in common is one thing; what each has of its own stays."""
    found: list[Blocker] = []
    for blocker in blockers:
        if blocker not in found:
            found.append(blocker)
    return tuple(found)


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def and_words(names: Sequence[str]) -> str:
    """``a-1, b-2 and c-1``; of more than three the first three, and how many more."""
    return listed([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def edited(problem: Problem, edits: Iterable[Edit]) -> Problem:
    """The problem with these values in place of the old ones."""
    for part, name, field, value in edits:
        if part == "service":
            needs = tuple(with_value(need, field, value) if need.service == name else need for need in problem.needs)
            problem = replace(problem, needs=needs)
        elif (part, field) == ("host", "bars"):
            problem = replace(problem, needs=tuple(_after(need, value, name) for need in problem.needs))
        elif (part, field) == ("host", "drain"):
            problem = replace(problem, hosts=tuple(_released(host) if host.name == name else host for host in problem.hosts))
        elif (part, field) == ("host", "down"):
            problem = replace(problem, hosts=tuple(host.last or host if host.name == name else host for host in problem.hosts))
        elif part == "host":
            hosts = tuple(with_value(host, field, value) if host.name == name else host for host in problem.hosts)
            problem = replace(problem, hosts=hosts)
        elif part == "gpu":
            problem = replace(problem, hosts=tuple(_with_gpu(host, name, field, value) for host in problem.hosts))
        elif field == "hosts":
            problem = replace(problem, hosts=(*problem.hosts, *value))
        else:
            problem = replace(problem, **{field: value})
    return problem


def _after(need: Need, deed: Deed, host: str) -> Need:
    """The need once something is done to a host that the compatibility gate asks for: for all services at once."""
    return need if all(place[0] != host for place in need.bars) else replace(need, bars=bars_after(need.bars, deed, host))


def _with_gpu(host: Host, uuid: str, field: str, value: t.Any) -> Host:
    if all(gpu.uuid != uuid for gpu in host.gpus):
        return host
    return replace(host, gpus=tuple(_set(gpu, field, value) if gpu.uuid == uuid else gpu for gpu in host.gpus))


def _set(gpu: Gpu, field: str, value: t.Any) -> Gpu:
    """The GPU with another value of a field. A drain of its whole host does not end with its own."""
    kept: t.Any = gpu.drain.of(True) if (field, value) == ("drain", None) and gpu.drain is not None else value
    return replace(gpu, **{field: kept})


def _released(host: Host) -> Host:
    """The host once it is drained no more as a whole; what is drained of it for itself still is."""
    return replace(host, gpus=tuple(gpu if gpu.drain is None else replace(gpu, drain=gpu.drain.of(False)) for gpu in host.gpus))


def choices_of(spot: Spot) -> Iterator[Parts]:
    """The cheapest way for each blocker, and every way that does for all of them."""
    if len(spot.blockers) > 1:
        yield spot.cheapest
    for option in spot.blockers[0].options if spot.blockers else ():
        if all(any(option.edits == each.edits for each in other.options) for other in spot.blockers[1:]):
            yield ((spot.blockers[0].cause, option),)


def named(option: Option, service: str) -> Option:
    """An option that was found for all that ask for the same, for one of them."""
    edits = tuple(edit._replace(name=service) if (edit.part, edit.name) == ("service", SELF) else edit for edit in option.edits)
    mild = None if option.mild is None else named(option.mild, service)
    return option._replace(edits=edits, mild=mild, parts=tuple((cause, named(part, service)) for cause, part in option.parts))


def combined(host: str, choice: Parts) -> Option:
    """All that has to be done for one place, as one option, under the name of the dearest. What a later one does again is left out."""
    parts = [part for number, part in enumerate(choice) if not _done_by(part[1], choice[:number], choice[number + 1 :])]
    options = [option for _cause, option in parts]
    dearest = max(options, key=lambda option: (option.cost, option.text))
    edits = _for_all([edit for option in options for edit in option.edits])
    lost = tuple(sorted({name for _cause, option in choice for name in option.lost}))
    text = "; and ".join(dict.fromkeys(option.text for option in options))
    gentle = tuple((cause, option) for cause, option in parts if not option.lost and LOSERS not in option.text)
    # Nobody gives way where others move, on whatever host.
    mild = combined("", gentle) if 0 < len(gentle) < len(options) else None
    return Option(dearest.kind, sum(option.cost for option in options), text, edits, lost, host, mild, tuple(parts))


def _done_by(option: Option, earlier: Parts, later: Parts) -> bool:
    """Do later ones do it again, or others more of it: stop more replicas of a service, or raise a priority further?"""
    before, after = ([edit for _cause, other in parts for edit in other.edits] for parts in (earlier, later))

    def exceeded(edit: Edit) -> bool:
        return edit.field in _MUCH and any(each[:3] == edit[:3] and _much(each) > _much(edit) for each in before)

    # What goes with a priority that an earlier one raises further, the earlier one does as well.
    less = any(map(exceeded, option.edits))

    def again(edit: Edit) -> bool:
        same = [_much(each) for each in after if each[:3] == edit[:3]]
        if edit.field not in _MUCH:
            return bool(same) or (less and edit in before)
        return any(much >= _much(edit) for much in same) or exceeded(edit)

    return all(map(again, option.edits))


# Fields of which one of several edits does for all, and the sign of what is more.
_MUCH: t.Final = {"replicas": -1, "priority": 1}


def _much(edit: Edit) -> t.Any:
    return _MUCH[edit.field] * edit.value if edit.field in _MUCH else edit.value


def _for_all(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Where several stop replicas of one service, as many are left as the one leaves who leaves the fewest; where several raise one
    priority, it becomes what the highest says."""
    most: dict[tuple[str, str, str], Edit] = {}
    known = list(edits)
    for edit in known:
        if edit.field in _MUCH:
            most[edit[:3]] = max(most.get(edit[:3], edit), edit, key=_much)
    return tuple(most.get(edit[:3], edit) for edit in known)


def without(option: Option, part: Option) -> Option:
    """The option without one of its parts. Who gives way for that one may still have to for the others."""
    rest = combined(option.host, tuple(each for each in option.parts if each[1] != part))
    again = LOSERS if LOSERS in part.text and LOSERS not in rest.text else ""
    return rest._replace(text=rest.text + again, lost=option.lost if again else rest.lost)
