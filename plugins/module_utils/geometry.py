# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be cut out of a board with MIG: plain data and exact combinatorics, no NVML, no file, no clock.

A board has compute slices and memory slices (seven and eight on A100; four and twelve on RTX PRO 6000). A profile takes
``slices`` compute slices and ``size`` memory slices in a row, and may begin only at some of them. A set of slices is legal
when every one begins where its profile may, none overlap, no profile is there more often than the board allows, and the
compute slices add up to no more than the board has. That is all that NVML checks (NVIDIA MIG user guide, "Partitioning").
Nothing here knows any board: every number comes from a :class:`Geometry`, which comes from NVML at run time.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# The GB part of a profile's name is rounded from the board's total memory, which differs from driver to driver. Spellings
# of one profile seen in the field are at most 4.3 % apart (23gb/24gb on GB200, 39gb/40gb on A100-80). Different profiles
# begin at 10 % (1g.18gb on H200 has one memory slice, 1g.20gb on A100-80 has two). 8 % lies between the two.
GB_TOLERANCE_PERCENT = 8

_NAME = re.compile(r"(?:(?P<ci>\d+)c\.)?(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<attributes>(?:[+-][a-z][a-z0-9]*(?:\.[a-z0-9]+)*)*)")
_ATTRIBUTE = re.compile(r"[+-][^+-]+")


@dataclass(frozen=True)
class Profile:
    """A GPU instance profile: ``slices`` compute and ``size`` memory slices, ``memory_mib`` MiB, at most ``max`` on a board.

    ``id`` is what NVML takes to create one, ``sm`` the streaming multiprocessors, ``starts`` the memory slices where it may begin.
    """

    name: str
    id: int
    slices: int
    size: int
    memory_mib: int
    sm: int
    max: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """What NVML says can be cut out of one kind of board."""

    compute_slices: int
    memory_slices: int
    profiles: tuple[Profile, ...]

    def to_dict(self) -> dict[str, t.Any]:
        """The entry of ``geometries`` in the host facts: plain lists, numbers and text."""
        profiles = [dict(asdict(profile), starts=list(profile.starts)) for profile in self.profiles]
        return {"compute_slices": self.compute_slices, "memory_slices": self.memory_slices, "profiles": profiles}

    @classmethod
    def from_dict(cls, data: Mapping[str, t.Any]) -> Geometry:
        """Read back what :meth:`to_dict` wrote. FleetError when a key is missing or of another kind."""
        try:
            profiles = tuple(
                Profile(
                    name=str(entry["name"]),
                    id=int(entry["id"]),
                    slices=int(entry["slices"]),
                    size=int(entry["size"]),
                    memory_mib=int(entry["memory_mib"]),
                    sm=int(entry["sm"]),
                    max=int(entry["max"]),
                    starts=tuple(int(start) for start in entry["starts"]),
                )
                for entry in data["profiles"]
            )
            return cls(int(data["compute_slices"]), int(data["memory_slices"]), profiles)
        except KeyError as error:
            raise FleetError(f"MIG geometry lacks {error}") from error
        except (TypeError, ValueError) as error:
            raise FleetError(f"MIG geometry cannot be read: {error}") from error

    def digest(self) -> str:
        """12 hex digits; equal for equal boards, in whatever order their profiles were read."""
        data = self.to_dict()
        data["profiles"].sort(key=lambda entry: (entry["name"], entry["id"]))
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]


class Slice(t.NamedTuple):
    """A GPU instance by what identifies it on its GPU: memory slice where it starts, and profile. Text form ``1g.10gb@4``."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True)
class Room:
    """Memory slices and MiB of one GPU: ``held`` by its slices, ``free`` for more, ``stranded`` out of reach.

    ``free`` is the most memory slices that further slices can cover while the present ones stay where they are, and
    ``free_mib`` the memory of such slices. ``stranded`` are the other uncovered memory slices: no profile can begin there, or
    there are no compute slices left. ``best_mib`` is what the board gives in its best layout, and
    ``stranded_mib = best_mib - held_mib - free_mib`` when slices are stranded (7 x 1g.10gb on A100-80: 80,384 - 68,992 = 11,392 MiB),
    0 when none are: what is then missing is the price of cutting, not memory that another layout would bring back.
    """

    held: int
    free: int
    stranded: int
    held_mib: int
    free_mib: int
    stranded_mib: int
    best_mib: int


@dataclass(frozen=True)
class Layout:
    """A named set of legal slices. ``text`` as people write it: ``6x1g.10gb + 1g.20gb``; ``memory_mib`` is their sum."""

    text: str
    slices: tuple[Slice, ...]
    memory_mib: int


def parse_slice(text: str) -> Slice:
    """``1g.10gb@4`` -> Slice(4, '1g.10gb'). FleetError when the text is not of that form."""
    profile, at, start = text.strip().partition("@")
    if not at or not profile or not (start.isascii() and start.isdigit()):
        raise FleetError(f"'{text}' is not a slice", hint="write PROFILE@START, as in 1g.10gb@4")
    return Slice(int(start), profile)


def name_parts(name: str) -> tuple[int, int, frozenset[str]]:
    """(compute slices, GB, attributes) of a GPU instance profile's name; ``1g.10gb+me`` -> (1, 10, {'+me'}). FleetError if it is none."""
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        raise FleetError(f"'{name}' is not a MIG profile name", hint="write one like 1g.10gb or 1g.10gb+me")
    if match["ci"] is not None:
        whole = name.strip().lower().partition(".")[2]
        raise FleetError(
            f"'{name}' names a compute instance that is smaller than its GPU instance; only whole GPU instances can be asked for",
            hint=f"write {whole}",
        )
    return int(match["slices"]), int(match["gb"]), frozenset(_ATTRIBUTE.findall(match["attributes"]))


def gb_apart(one: str, other: str) -> int | None:
    """By how many GB two names of one profile differ; None where they name two profiles.

    Compute slices and attributes (+me, +gfx, -me, +me.all) must be the same, the GB at most ``GB_TOLERANCE_PERCENT`` of the larger apart.
    """
    (slices, gb, attributes), (others, other_gb, other_attributes) = name_parts(one), name_parts(other)
    near = 100 * abs(gb - other_gb) <= GB_TOLERANCE_PERCENT * max(gb, other_gb)
    return abs(gb - other_gb) if (slices, attributes) == (others, other_attributes) and near else None


def find_profile(geometry: Geometry, wanted_name: str) -> Profile:
    """The board's profile that a name means, however a driver rounded its GB: ``3g.39gb`` finds ``3g.40gb``.

    The nearest by :func:`gb_apart`. FleetError when none or more than one is meant; it names what the board has.
    """
    spelt = [profile for profile in geometry.profiles if profile.name == wanted_name.strip().lower()]
    if len(spelt) == 1:
        return spelt[0]
    found = [(gb_apart(profile.name, wanted_name), profile.name, profile) for profile in geometry.profiles]
    near = sorted(((apart, name, profile) for apart, name, profile in found if apart is not None), key=lambda each: each[:2])
    if not near:
        raise FleetError(f"this board has no MIG profile {wanted_name}", hint=f"it has {_names(geometry)}")
    meant = [profile for apart, _name, profile in near if apart == near[0][0]]
    if len(meant) > 1:
        raise FleetError(
            f"MIG profile {wanted_name} could mean {_either([profile.name for profile in meant])}",
            hint="write the name as the board has it",
        )
    return meant[0]


def _names(geometry: Geometry) -> str:
    ordered = sorted(geometry.profiles, key=_by_size)
    return ", ".join(profile.name for profile in ordered) or "none"


def _by_size(profile: Profile) -> tuple[int, int, str]:
    return (profile.slices, profile.size, profile.name)


def _either(words: Sequence[t.Any]) -> str:
    """'0, 2 or 4'"""
    texts = [str(word) for word in words]
    return " or ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def why_not(geometry: Geometry, slices: Sequence[Slice]) -> str | None:
    """The first rule that a set of slices breaks, in words; None when the set is legal."""
    taken: dict[int, Slice] = {}
    found: list[Profile] = []
    for one in sorted(slices):
        try:
            profile = find_profile(geometry, one.profile)
        except FleetError as error:
            return str(error)
        if one.start not in profile.starts:
            return f"{profile.name} cannot start at memory slice {one.start}, only at {_either(sorted(profile.starts))}"
        for place_ in range(one.start, one.start + profile.size):
            if place_ in taken:
                return f"{taken[place_]} and {one} overlap on memory slice {place_}"
            taken[place_] = one
        found.append(profile)
    return _too_many(geometry, found)


def _too_many(geometry: Geometry, profiles: Sequence[Profile]) -> str | None:
    """The rules that do not depend on where a slice starts: how often a profile may be there, and the sums of compute and memory slices."""
    counts = Counter(profiles)
    for profile in sorted(counts, key=_by_size):
        if counts[profile] > profile.max:
            return f"{counts[profile]}x{profile.name} is more than the {profile.max} that the board allows"
    need = sum(profile.slices for profile in profiles)
    if need > geometry.compute_slices:
        return f"together they need {need} compute slices and the board has {geometry.compute_slices}"
    need = sum(profile.size for profile in profiles)
    if need > geometry.memory_slices:
        return f"together they need {need} memory slices and the board has {geometry.memory_slices}"
    return None


def legal(geometry: Geometry, slices: Sequence[Slice]) -> bool:
    """True when the set can stand on the board as it is."""
    return why_not(geometry, slices) is None


def place(geometry: Geometry, fixed: Sequence[Slice], wanted: Sequence[str]) -> list[Slice] | None:
    """Starts for ``wanted`` beside ``fixed``: the new slices only, in the order of ``wanted``; None when it is impossible.

    Exact: if any choice of starts is legal, one is found; always the same one (larger profiles first, each as low as it goes).
    FleetError for a name that the board does not have.
    """
    return place_near(geometry, fixed, wanted, {})


def place_near(geometry: Geometry, fixed: Sequence[Slice], wanted: Sequence[str], present: Mapping[Slice, int]) -> list[Slice] | None:
    """As :func:`place`, but of all legal choices one with the greatest sum of weights of ``present`` slices that it uses again."""
    return _place(geometry, fixed, wanted, present, lambda _taken: ())


def place_best(geometry: Geometry, fixed: Sequence[Slice], wanted: Sequence[str], present: Mapping[Slice, int]) -> list[Slice] | None:
    """As :func:`place_near`, but of all that are equal in weight the one that leaves the most useful free space, then the lowest starts.

    Useful is what another slice could begin in tomorrow, the large ones first: of the largest profile that the board's count and its
    compute slices still allow, as many as possible side by side, then of the next smaller one, and so on. A single 1g.10gb on an empty
    A100 so goes to memory slice 6: 4g.40gb, three 2g.20gb or three 1g.20gb could still stand beside it.
    """
    held = [find_profile(geometry, name) for name in (*(one.profile for one in fixed), *wanted)]
    return _place(geometry, fixed, wanted, present, _usefulness(geometry, held))


_Leaf = t.Callable[[int], tuple[int, ...]]


def _usefulness(geometry: Geometry, held: Sequence[Profile]) -> _Leaf:
    """What the memory slices that are left free by ``held`` are good for, by the mask of those that are taken; greater is better."""
    counts = Counter(held)
    left = geometry.compute_slices - sum(profile.slices for profile in held)
    shapes: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for profile in geometry.profiles:
        shape = (-profile.size, -profile.slices, tuple(sorted(profile.starts)))
        most = min(profile.max - counts[profile], left // profile.slices)
        shapes[shape] = max(most, shapes.get(shape, 0))
    ordered = [(-size, starts, shapes[size, slices, starts]) for size, slices, starts in sorted(shapes)]

    @cache
    def useful(taken: int) -> tuple[int, ...]:
        return tuple(min(most, _side_by_side(size, starts, taken)) for size, starts, most in ordered)

    return useful


def _side_by_side(size: int, starts: Sequence[int], taken: int) -> int:
    """How many slices of one size fit between what is taken; beginning each as early as it goes is the most."""
    count, end = 0, 0
    for start in starts:
        if start >= end and not _mask(start, size) & taken:
            count, end = count + 1, start + size
    return count


def _place(
    geometry: Geometry, fixed: Sequence[Slice], wanted: Sequence[str], present: Mapping[Slice, int], leaf: _Leaf
) -> list[Slice] | None:
    profiles = [find_profile(geometry, name) for name in wanted]
    held = [find_profile(geometry, one.profile) for one in fixed]
    if not legal(geometry, fixed) or _too_many(geometry, held + profiles) is not None:
        return None
    mask = 0
    for one, profile in zip(fixed, held):
        mask |= _mask(one.start, profile.size)
    # larger first: their few starts decide; equal ones stand together so that their order is never searched twice
    order = sorted(range(len(profiles)), key=lambda i: (-profiles[i].size, -profiles[i].slices, profiles[i].name, i))
    starts = _best_starts([profiles[i] for i in order], mask, present, leaf)
    if starts is None:
        return None
    result = {i: Slice(start, profiles[i].name) for i, start in zip(order, starts)}
    return [result[i] for i in range(len(profiles))]


_Choice = tuple[int, tuple[int, ...], tuple[int, ...]]  # weight, what the free space is good for, starts


def _best_starts(profiles: Sequence[Profile], mask: int, present: Mapping[Slice, int], leaf: _Leaf) -> tuple[int, ...] | None:
    """Starts, one for each profile: of greatest weight, then of the greatest ``leaf`` value of what is taken in the end, then the lowest.

    Exact, and each (profile, taken memory) is solved once.
    """
    known: dict[tuple[int, int, int], _Choice | None] = {}

    def solve(index: int, taken: int, after: int) -> _Choice | None:
        if index == len(profiles):
            return 0, leaf(taken), ()
        key = (index, taken, after)
        if key not in known:
            known[key] = search(index, taken, after)
        return known[key]

    def search(index: int, taken: int, after: int) -> _Choice | None:
        profile = profiles[index]
        twin_next = index + 1 < len(profiles) and profiles[index + 1] == profile
        best: _Choice | None = None
        for start in sorted(profile.starts):
            own = _mask(start, profile.size)
            if start <= after or own & taken:
                continue
            rest = solve(index + 1, taken | own, start if twin_next else -1)
            if rest is not None:
                weight = rest[0] + present.get(Slice(start, profile.name), 0)
                if best is None or (weight, rest[1]) > best[:2]:
                    best = weight, rest[1], (start, *rest[2])
        return best

    found = solve(0, mask, -1)
    return None if found is None else found[2]


def why_not_place(geometry: Geometry, fixed: Sequence[Slice], wanted: Sequence[str]) -> str | None:
    """Why :func:`place` finds nothing, in words; None when it finds something. FleetError for a name that the board does not have."""
    problem = why_not(geometry, fixed)
    if problem is None:
        names = [*(one.profile for one in fixed), *wanted]
        problem = _too_many(geometry, [find_profile(geometry, name) for name in names])
    if problem is None and place(geometry, fixed, wanted) is None:
        for name in sorted(wanted, key=lambda name: _by_size(find_profile(geometry, name)), reverse=True):
            taken = obstacles(geometry, name, fixed)
            if taken is not None:
                return f"{starts_text(geometry, name)}, which {_all(taken)} {'take' if len(taken) > 1 else 'takes'}"
        beside = f" beside {', '.join(str(one) for one in sorted(fixed))}" if fixed else ""
        problem = f"there are no free memory slices in a row for {layout_text(geometry, wanted)}{beside}"
    return problem


def starts_text(geometry: Geometry, name: str) -> str:
    """'4g.40gb can only start at memory slice 0'"""
    profile = find_profile(geometry, name)
    return f"{profile.name} can only start at memory slice {_either(sorted(profile.starts))}"


def obstacles(geometry: Geometry, name: str, slices: Sequence[Slice]) -> list[Slice] | None:
    """Those of ``slices`` that keep this profile from every place where it may start; None when a place is left."""
    profile = find_profile(geometry, name)
    found: set[Slice] = set()
    for start in profile.starts:
        here = {one for one in slices if overlap(geometry, one, Slice(start, profile.name))}
        if not here:
            return None
        found |= here
    return sorted(found)


def overlap(geometry: Geometry, one: Slice, other: Slice) -> bool:
    """Whether two slices share a memory slice."""
    masks = [_mask(each.start, find_profile(geometry, each.profile).size) for each in (one, other)]
    return bool(masks[0] & masks[1])


def _all(words: Sequence[t.Any]) -> str:
    """'0, 2 and 4'"""
    texts = [str(word) for word in words]
    return " and ".join(part for part in (", ".join(texts[:-1]), texts[-1]) if part)


@lru_cache(maxsize=64)
def valid_layouts(geometry: Geometry) -> tuple[tuple[Slice, ...], ...]:
    """Every legal set of slices, the empty one too, each in order of start; in a stable order. Grows fast with the board's size."""
    found: list[tuple[Slice, ...]] = []
    ordered = sorted(geometry.profiles, key=_by_size)

    def extend(position: int, chosen: tuple[Slice, ...], used: tuple[Profile, ...]) -> None:
        if position >= geometry.memory_slices:
            found.append(chosen)
            return
        extend(position + 1, chosen, used)
        for profile in ordered:
            fits = position in profile.starts and position + profile.size <= geometry.memory_slices
            if fits and _too_many(geometry, (*used, profile)) is None:
                extend(position + profile.size, (*chosen, Slice(position, profile.name)), (*used, profile))

    extend(0, (), ())
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def maximal_layouts(geometry: Geometry) -> tuple[tuple[Slice, ...], ...]:
    """The legal sets to which nothing can be added."""

    def room(layout: tuple[Slice, ...]) -> bool:
        return any(legal(geometry, (*layout, Slice(start, profile.name))) for profile in geometry.profiles for start in profile.starts)

    return tuple(layout for layout in valid_layouts(geometry) if layout and not room(layout))


def free_and_stranded(geometry: Geometry, slices: Sequence[Slice]) -> Room:
    """What a GPU with these slices holds, can still take and cannot reach: see :class:`Room`. FleetError when the set is not legal."""
    problem = why_not(geometry, slices)
    if problem is not None:
        raise FleetError(problem)
    profiles = [find_profile(geometry, one.profile) for one in slices]
    held = sum(profile.size for profile in profiles)
    held_mib = sum(profile.memory_mib for profile in profiles)
    free, free_mib = _most(geometry, slices)
    best_mib = _most(geometry, ())[1]
    stranded = geometry.memory_slices - held - free
    return Room(held, free, stranded, held_mib, free_mib, best_mib - held_mib - free_mib if stranded else 0, best_mib)


def _most(geometry: Geometry, fixed: Sequence[Slice]) -> tuple[int, int]:
    """The most (memory slices, MiB) that slices beside ``fixed`` can cover."""
    best = (0, 0)
    for counts in _multisets(geometry, tuple(sorted(fixed))):
        size = sum(profile.size * count for profile, count in counts)
        best = max(best, (size, sum(profile.memory_mib * count for profile, count in counts)))
    return best


_Counts = tuple[tuple[Profile, int], ...]


@lru_cache(maxsize=1024)
def _multisets(geometry: Geometry, fixed: tuple[Slice, ...]) -> frozenset[_Counts]:
    """How many of each profile can stand beside ``fixed``: every possibility once, wherever the slices start."""
    held = [find_profile(geometry, one.profile) for one in fixed]
    taken = 0
    for one, profile in zip(fixed, held):
        taken |= _mask(one.start, profile.size)
    reached: list[set[_Counts]] = [set() for _ignored in range(geometry.memory_slices + 1)]
    reached[0].add(())
    for position in range(geometry.memory_slices):
        reached[position + 1] |= reached[position]
        for profile in geometry.profiles:
            end = position + profile.size
            if position not in profile.starts or end > geometry.memory_slices or taken & _mask(position, profile.size):
                continue
            for counts in reached[position]:
                more = _one_more(counts, profile)
                if _too_many(geometry, [*held, *_each(more)]) is None:
                    reached[end].add(more)
    return frozenset(reached[-1])


def _one_more(counts: _Counts, profile: Profile) -> _Counts:
    known = dict(counts)
    known[profile] = known.get(profile, 0) + 1
    return tuple(sorted(known.items(), key=lambda entry: _by_size(entry[0])))


def _each(counts: _Counts) -> list[Profile]:
    return [profile for profile, count in counts for _ignored in range(count)]


def better_layouts(geometry: Geometry, slices: Sequence[Slice], limit: int = 3) -> list[Layout]:
    """Layouts that reach memory which is stranded now, nearest first: they keep the most of the present profiles, then the most memory.

    Empty when nothing is stranded. 7x1g.10gb on A100-80 gives '6x1g.10gb + 1g.20gb' first. Profiles with attributes are only
    named when they are there already.
    """
    room = free_and_stranded(geometry, slices)
    if not room.stranded:
        return []
    present = [find_profile(geometry, one.profile) for one in slices]
    reach = room.held + room.free
    ranked = [counts for counts in _nearest(geometry, present) if sum(profile.size for profile in _each(counts)) > reach]
    return [_layout(geometry, counts, slices) for counts in ranked[:limit]]


def nearest_layouts(geometry: Geometry, wanted: Sequence[str], limit: int = 3, fixed: Sequence[Slice] = ()) -> list[Layout]:
    """Legal layouts that come nearest to a wish that cannot stand: most of its slices, fewest others, most memory.

    ``fixed``: slices that stay in any case, each where it is.
    """
    profiles = [find_profile(geometry, name) for name in wanted]
    return [_layout(geometry, counts, (), fixed) for counts in _nearest(geometry, profiles, fixed)[:limit]]


def _nearest(geometry: Geometry, wish: Sequence[Profile], fixed: Sequence[Slice] = ()) -> list[_Counts]:
    """Non-empty multisets of plain profiles and those of ``wish``: most in common with it first, then fewest others, most MiB, name."""
    wanted = Counter(wish)
    stay = [find_profile(geometry, one.profile) for one in fixed]
    usable = tuple(profile for profile in geometry.profiles if profile in (*wanted, *stay) or not name_parts(profile.name)[2])
    plain = Geometry(geometry.compute_slices, geometry.memory_slices, usable)

    def rank(counts: _Counts) -> tuple[int, int, int, str]:
        kept = sum(min(count, wanted[profile]) for profile, count in counts)
        other = sum(count for _profile, count in counts) - kept
        return (-kept, other, -sum(profile.memory_mib * count for profile, count in counts), _text(counts))

    found = []
    for counts in _multisets(plain, tuple(sorted(fixed))):
        for profile in stay:
            counts = _one_more(counts, profile)
        if counts:
            found.append(counts)
    return sorted(found, key=rank)


def _text(counts: _Counts) -> str:
    return " + ".join(f"{count}x{profile.name}" if count > 1 else profile.name for profile, count in counts)


def _layout(geometry: Geometry, counts: _Counts, present: Sequence[Slice], fixed: Sequence[Slice] = ()) -> Layout:
    """A multiset as a layout whose slices start where present ones do, as far as that goes; ``fixed`` are among them for certain."""
    names = [profile.name for profile in _each(counts)]
    for one in fixed:
        names.remove(find_profile(geometry, one.profile).name)
    slices = place_near(geometry, fixed, names, dict.fromkeys(present, 1))
    return Layout(_text(counts), tuple(sorted((*fixed, *(slices or ())))), sum(profile.memory_mib for profile in _each(counts)))


def layout_text(geometry: Geometry, names: Sequence[str]) -> str:
    """Profile names as people write a layout: ['1g.20gb', '1g.10gb', '1g.10gb'] -> '2x1g.10gb + 1g.20gb'."""
    counts: _Counts = ()
    for name in names:
        counts = _one_more(counts, find_profile(geometry, name))
    return _text(counts)
