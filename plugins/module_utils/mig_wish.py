# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPUs shall be: read from a layout that people wrote, or from a line that the host remembers, and written as such a line. Pure.

A profile such as ``1c.3g.20gb`` wishes a compute instance of one compute slice inside a GPU instance 3g.20gb. As in mig-parted, such
instances share GPU instances of one profile as far as these hold them.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

# More than any board has memory slices; a larger count would only make the search for places long.
MOST_INSTANCES = 64
# NVML can ask for no others on any board (nvml.h, NVML_COMPUTE_INSTANCE_PROFILE_*_SLICE). Which of them a GPU instance offers is known
# only when it exists.
COMPUTE_SIZES = (1, 2, 3, 4, 6, 7, 8)

_COMPUTE = re.compile(r"(?P<slices>[1-9][0-9]*)c\.(?P<profile>(?P<of>[1-9][0-9]*)g\..+)", re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """One wished slice: a GPU instance and what it is cut into. ``start`` None: anywhere.

    ``compute``: exactly these compute instance profiles, by NVML's ids. ``parts``: exactly compute instances of so many compute slices,
    largest first. ``exact``: exactly one that fills it. ``keep``: if the slice stands, what it has, even nothing. None of these: whatever
    it has, and one that fills it if it has none.
    """

    profile: str
    start: int | None = None
    compute: tuple[int, ...] | None = None
    keep: bool = False
    parts: tuple[int, ...] | None = None
    exact: bool = False


@dataclass(frozen=True)
class Wish:
    """What one GPU shall be: MIG on or off, and all the slices it shall have (None: those that it has).

    ``source``: file and line of the entry that says so, for messages. ``temporary``: starts of those that go again soon.
    """

    gpu: str
    mig: bool
    slices: tuple[Wanted, ...] | None
    source: str | None = None
    temporary: frozenset[int] = frozenset()


def split_profile(name: str) -> tuple[str, int | None]:
    """GPU instance profile, and the compute slices of the compute instance inside it (None: it is filled).

    ``1c.3g.20gb`` -> ('3g.20gb', 1); ``3g.20gb`` and ``3c.3g.20gb`` -> ('3g.20gb', None). FleetError for one larger than its GPU instance,
    and for a size that NVML knows on no board.
    """
    found = _COMPUTE.fullmatch(name.strip())
    if found is None:
        return name, None
    slices, of = int(found["slices"]), int(found["of"])
    if slices > of:
        raise FleetError(f"'{name}' names a compute instance larger than its GPU instance", hint=f"write 1c to {of}c")
    if slices != of and slices not in COMPUTE_SIZES:
        sizes = ", ".join(f"{size}c" for size in COMPUTE_SIZES if size <= of)
        raise FleetError(f"'{name}': there is no compute instance of {slices} compute slices", hint=f"write one of {sizes}")
    return found["profile"], None if slices == of else slices


def parse_layout(layout: Sequence[Mapping[str, t.Any]]) -> list[Wish]:
    """Option ``layout`` of module ``mig``: ``[{gpu, mig, instances: [{profile, start?, count?, compute?, temporary?}]}]``.

    FleetError names fields.
    """
    return [_parse_wish(entry, f"layout[{number}]") for number, entry in enumerate(layout)]


def _parse_wish(entry: Mapping[str, t.Any], field: str) -> Wish:
    gpu = str(entry.get("gpu") if entry.get("gpu") is not None else "").strip()
    if not gpu:
        raise FleetError("no GPU is named", field=f"{field}.gpu", hint="give a UUID, a PCI address or an index")
    mig = bool(entry.get("mig", True))
    instances = entry.get("instances")
    if not mig and instances:
        hint = "write mig: true, or no instances"
        raise FleetError(f"GPU {gpu} cannot have MIG off and instances", field=f"{field}.instances", hint=hint)
    if instances is None:
        return Wish(gpu, mig, None if mig else (), entry.get("source"))
    whole: list[Wanted] = []
    inside: dict[tuple[str, int | None], list[int]] = {}
    for number, item in enumerate(instances):
        wanted, count, part = _parse_instance(item, f"{field}.instances[{number}]")
        if part is None:
            whole += [wanted] * count
        else:
            inside.setdefault((wanted.profile, wanted.start), []).extend([part] * count)
    for (profile, start), parts in inside.items():
        whole += _pack(profile, start, parts, f"{field}.instances")
    temporary = frozenset(int(item["start"]) for item in instances if item.get("temporary"))
    return Wish(gpu, mig, tuple(whole), entry.get("source"), temporary)


def _parse_instance(item: Mapping[str, t.Any], field: str) -> tuple[Wanted, int, int | None]:
    """The wished slice, how many of them, and the compute slices of the part of it that is meant (None: all of it)."""
    written = str(item.get("profile") or "")
    if not written:
        raise FleetError("no MIG profile is named", field=f"{field}.profile", hint="write one like 1g.10gb")
    try:
        profile, part = split_profile(written)
    except FleetError as error:
        raise FleetError(error.message, field=f"{field}.profile", hint=error.hint) from error
    start, count, compute = item.get("start"), item.get("count"), item.get("compute") or "full"
    for name, value in (("start", start), ("count", count)):
        if isinstance(value, bool):  # Ansible takes true for 1
            raise FleetError(f"expected a whole number, found {str(value).lower()}", field=f"{field}.{name}", hint=f"write {name}: 1")
    count = 1 if count is None else int(count)
    if count < 0:
        raise FleetError(f"a count of {count} is impossible", field=f"{field}.count", hint="write 0 or more")
    if count > MOST_INSTANCES:
        message = f"a count of {count} is impossible: no GPU has so many instances"
        raise FleetError(message, field=f"{field}.count", hint=f"write at most {MOST_INSTANCES}")
    if start is not None and count != 1 and part is None:
        message = f"{count} instances cannot start at memory slice {start}"
        raise FleetError(message, field=f"{field}.count", hint="leave out start or count")
    if item.get("temporary") and start is None:
        message = "what goes again has to be said by its start"
        raise FleetError(message, field=f"{field}.temporary", hint="write start, or leave out temporary")
    if compute == "keep" and start is None:
        hint = "write start, or compute: full"
        raise FleetError("what a slice keeps cannot be said without its start", field=f"{field}.compute", hint=hint)
    if compute == "keep" and part is not None:
        raise FleetError(f"a slice cannot keep what it has and have {written}", field=f"{field}.compute", hint="leave out one of them")
    place = None if start is None else int(start)
    return Wanted(profile, place, keep=compute == "keep", exact=compute == "exact"), count, part


def _pack(profile: str, start: int | None, parts: Iterable[int], field: str) -> list[Wanted]:
    """The fewest GPU instances that hold compute instances of these sizes: largest first, each into the first that has room."""
    room = int(profile.partition("g")[0])
    packed: list[list[int]] = []
    for part in sorted(parts, reverse=True):
        for one in packed:
            if sum(one) + part <= room:
                one.append(part)
                break
        else:
            packed.append([part])
    if start is not None and len(packed) > 1:
        message = f"the compute instances of {profile} at memory slice {start} need more than its {room} compute slices"
        raise FleetError(message, field=field, hint="leave out start, or wish fewer")
    return [Wanted(profile, start, parts=tuple(one)) for one in packed]


def line_of(wish: Wish) -> dict[str, t.Any]:
    """A wish as the host remembers it: ``{mig, slices: [{profile, start, compute, parts?, temporary?}]}``.

    ``compute`` None: one that fills it.
    """
    return {"mig": wish.mig, "slices": [_slice_line(one, one.start in wish.temporary) for one in wish.slices or ()]}


def _slice_line(one: Wanted, temporary: bool) -> dict[str, t.Any]:
    line: dict[str, t.Any] = {"profile": one.profile, "start": one.start, "compute": None if one.compute is None else list(one.compute)}
    if one.parts is not None:
        line["parts"] = list(one.parts)
    return {**line, "temporary": True} if temporary else line


def wish_of_line(gpu: str, line: t.Any) -> Wish:
    """Read back what :func:`line_of` wrote. FleetError when it is of another form."""
    try:
        temporary = frozenset(int(one["start"]) for one in line["slices"] if one.get("temporary"))
        return Wish(gpu, bool(line["mig"]), tuple(_remembered(one) for one in line["slices"]), temporary=temporary)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FleetError(f"what is remembered of GPU {gpu} cannot be read: {type(error).__name__} {error}") from error


def _remembered(one: Mapping[str, t.Any]) -> Wanted:
    return Wanted(
        str(one["profile"]),
        None if one["start"] is None else int(one["start"]),
        None if one["compute"] is None else tuple(int(ident) for ident in one["compute"]),
        parts=None if one.get("parts") is None else tuple(int(part) for part in one["parts"]),
    )
