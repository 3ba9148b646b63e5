# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a wished MIG layout and a GPU as it is to the smallest list of steps, or to the reason why there is none. Pure.

What is already as wished stays. Where a wish leaves the start open, the start is chosen so that the fewest instances go, busy
ones last of all. Everything that can be refused is refused here, before anything is changed; ``mig_run`` carries steps out.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import (
    Geometry,
    Slice,
    find_profile,
    layout_text,
    nearest_layouts,
    place_near,
    why_not_place,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Mode

# Which instance to keep when not all can stay: any number of idle ones goes before one in use, and among equals the one
# that nobody can use (no compute instance) goes first.
_KEEP, _KEEP_USABLE, _KEEP_BUSY = 100, 1, 100_000
# More than any board has memory slices; a larger count would only make the search for places long.
MOST_INSTANCES = 64

RESET_REQUIRED = "it waits for a reset of the GPU"


@dataclass(frozen=True)
class Wanted:
    """One wished slice. ``start`` None: anywhere. ``compute``: ids of its compute instance profiles; None: any, or one that fills it.

    ``keep``: if the slice stands, its compute instances are left as they are, even none.
    """

    profile: str
    start: int | None = None
    compute: tuple[int, ...] | None = None
    keep: bool = False


@dataclass(frozen=True)
class Wish:
    """What one GPU shall be: MIG on or off, and all the slices it shall have (None: those that it has).

    ``source``: file and line of the entry that says so, for messages.
    """

    gpu: str
    mig: bool
    slices: tuple[Wanted, ...] | None
    source: str | None = None


@dataclass(frozen=True)
class Standing:
    """A GPU instance that exists: where, which compute instance profiles (NVML ids) it holds, and who uses it (words for people).

    ``uuid`` is that of its first MIG device; None when it has no compute instance.
    """

    where: Slice
    compute: tuple[int, ...] = ()
    holders: tuple[str, ...] = ()
    uuid: str | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as observed. ``mode`` None: it has no MIG. ``geometry`` None: the driver does not show it while MIG is off (R535 and older).

    ``holders`` use the GPU itself, or a part of it that could not be told: NVML then refuses any change. ``openers`` only have its
    device file open, as monitors do: that keeps a mode from changing and a reset from working, and slices apart from it are free.
    """

    uuid: str
    pci: str
    name: str
    mode: Mode | None
    resetless: bool = False
    geometry: Geometry | None = None
    slices: tuple[Standing, ...] = ()
    holders: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One thing to do on one GPU.

    ``action``: ``mode`` (to ``mig``), ``reset``, ``destroy``, ``create``, ``compute`` (make the compute instances of a GPU instance) or
    ``strip`` (remove them). ``compute``: profile ids to make; None: the full one.
    """

    gpu: str
    action: str
    text: str
    where: Slice | None = None
    mig: bool = False
    compute: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """All steps for one GPU and what it then is.

    ``pending``: why the wished mode will not be in force yet, None when it will be. ``later``: what the wish still needs and
    what can be planned only when the driver shows the board's geometry, in words.
    """

    gpu: Gpu
    wish: Wish
    steps: tuple[Step, ...]
    mode: Mode | None
    after: tuple[Slice, ...] = ()
    pending: str | None = None
    later: tuple[str, ...] = ()

    def texts(self) -> list[str]:
        """The steps as sentences."""
        return [step.text for step in self.steps] + list(self.later)


def parse_layout(layout: Sequence[Mapping[str, t.Any]]) -> list[Wish]:
    """Option ``layout`` of module ``mig``: ``[{gpu, mig, instances: [{profile, start?, count?}]}]``. FleetError names the field."""
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
    wanted = [one for number, item in enumerate(instances) for one in _parse_instance(item, f"{field}.instances[{number}]")]
    return Wish(gpu, mig, tuple(wanted), entry.get("source"))


def _parse_instance(item: Mapping[str, t.Any], field: str) -> list[Wanted]:
    profile = str(item.get("profile") or "")
    if not profile:
        raise FleetError("no MIG profile is named", field=f"{field}.profile", hint="write one like 1g.10gb")
    start, count = item.get("start"), item.get("count")
    for name, value in (("start", start), ("count", count)):
        if isinstance(value, bool):  # Ansible takes true for 1
            raise FleetError(f"expected a whole number, found {str(value).lower()}", field=f"{field}.{name}", hint=f"write {name}: 1")
    count = 1 if count is None else int(count)
    if count < 0:
        raise FleetError(f"a count of {count} is impossible", field=f"{field}.count", hint="write 0 or more")
    if count > MOST_INSTANCES:
        message = f"a count of {count} is impossible: no GPU has so many instances"
        raise FleetError(message, field=f"{field}.count", hint=f"write at most {MOST_INSTANCES}")
    if start is not None and count != 1:
        message = f"{count} instances cannot start at memory slice {start}"
        raise FleetError(message, field=f"{field}.count", hint="leave out start or count")
    keep = item.get("compute") == "keep"
    if keep and start is None:
        raise FleetError(
            "what a slice keeps cannot be said without its start", field=f"{field}.compute", hint="write start, or compute: full"
        )
    return [Wanted(profile, None if start is None else int(start), keep=keep)] * count


def plan_gpu(gpu: Gpu, wish: Wish, reset: bool) -> Plan:
    """The steps for one GPU. ``reset``: a GPU whose mode waits may be reset. FleetError when the wish cannot or must not be carried out."""
    if gpu.mode is None:
        if wish.mig:
            raise FleetError(f"GPU {gpu.uuid} ({gpu.name}) has no MIG", hint="leave it out of the layout, or write mig: false")
        return Plan(gpu, wish, (), None)
    plan = _plan_on(gpu, gpu.mode, wish, reset) if wish.mig else _plan_off(gpu, gpu.mode, wish, reset)
    _refuse_busy(gpu, plan.steps)
    return plan


def _plan_on(gpu: Gpu, mode: Mode, wish: Wish, reset: bool) -> Plan:
    if mode.current:
        switch = [] if mode.pending else [_step(gpu, "mode", "withdraw the switch-off of MIG that waits for a reset", mig=True)]
        slices, later = _plan_slices(gpu, wish, gpu.slices)
        return Plan(gpu, wish, (*switch, *slices.steps), Mode(True, True), slices.after, None, later)
    switch = [] if mode.pending else [_step(gpu, "mode", "switch MIG on", mig=True)]
    slices, later = _plan_slices(gpu, wish, ())  # also when it must wait: an impossible wish is refused now, not after the reset
    waits = mode.pending or not gpu.resetless
    if waits and not reset:
        return Plan(gpu, wish, tuple(switch), Mode(False, True), (), RESET_REQUIRED)
    resets = [_reset(gpu)] if waits else []
    return Plan(gpu, wish, (*switch, *resets, *slices.steps), Mode(True, True), slices.after, None, later)


def _plan_off(gpu: Gpu, mode: Mode, wish: Wish, reset: bool) -> Plan:
    if not mode.current:
        switch = [_step(gpu, "mode", "withdraw the switch-on of MIG that waits for a reset")] if mode.pending else []
        return Plan(gpu, wish, tuple(switch), Mode(False, False))
    steps = [_destroy(gpu, one) for one in gpu.slices]
    if mode.pending:
        steps.append(_step(gpu, "mode", "switch MIG off"))
    waits = not mode.pending or not gpu.resetless
    if waits and not reset:
        return Plan(gpu, wish, tuple(steps), Mode(True, False), (), RESET_REQUIRED)
    if waits:
        steps.append(_reset(gpu))
    return Plan(gpu, wish, tuple(steps), Mode(False, False))


@dataclass(frozen=True)
class _Slices:
    steps: tuple[Step, ...]
    after: tuple[Slice, ...]


def _plan_slices(gpu: Gpu, wish: Wish, present: Sequence[Standing]) -> tuple[_Slices, tuple[str, ...]]:
    """Destroy what must go, create what is missing, give a compute instance to what has none: in this order, each by start."""
    if wish.slices is None:
        wished: dict[Slice, tuple[int, ...] | None] = {one.where: one.compute for one in present}
    elif gpu.geometry is None:
        return _Slices((), ()), tuple(_later(gpu, one) for one in wish.slices)
    else:
        wished = _choose(gpu, gpu.geometry, wish.slices, present)
    standing = {one.where: one for one in present}
    steps = [_destroy(gpu, standing[where]) for where in sorted(set(standing) - set(wished))]
    for where in sorted(set(wished) - set(standing)):
        steps.append(_step(gpu, "create", f"create {_at(where)}", where=where, compute=wished[where]))
    for where in sorted(set(wished) & set(standing)):
        steps += _compute(gpu, standing[where], wished[where])
    return _Slices(tuple(steps), tuple(sorted(wished))), ()


def _compute(gpu: Gpu, one: Standing, wanted: tuple[int, ...] | None) -> list[Step]:
    if sorted(one.compute) == sorted(wanted) if wanted is not None else one.compute:
        return []
    steps = []
    if one.compute:
        steps.append(_step(gpu, "strip", f"destroy the compute instances of {_at(one.where)}", where=one.where))
    if wanted != ():
        steps.append(_step(gpu, "compute", f"create the compute instance of {_at(one.where)}", where=one.where, compute=wanted))
    return steps


def _choose(gpu: Gpu, geometry: Geometry, wanted: Sequence[Wanted], present: Sequence[Standing]) -> dict[Slice, tuple[int, ...] | None]:
    """Where every wished slice goes. FleetError with the reason, and the layouts that come nearest, when they cannot all stand."""
    standing = {one.where: one.compute for one in present}
    try:
        named = [(Slice(one.start, find_profile(geometry, one.profile).name), one) for one in wanted if one.start is not None]
        fixed = {where: standing.get(where) if one.keep else one.compute for where, one in named}
        pinned = [where for where, _one in named]
        free = [find_profile(geometry, one.profile).name for one in wanted if one.start is None]
    except FleetError as error:
        raise FleetError(f"GPU {gpu.uuid} ({gpu.name}): {error.message}", hint=error.hint) from error
    weights = {one.where: _KEEP + _KEEP_USABLE * bool(one.compute) + _KEEP_BUSY * bool(one.holders) for one in present}
    placed = place_near(geometry, pinned, free, weights)
    if placed is None:
        names = [one.profile for one in pinned] + free
        nearest = ", or ".join(layout.text for layout in nearest_layouts(geometry, names))
        reason = why_not_place(geometry, pinned, free)
        raise FleetError(f"GPU {gpu.uuid} ({gpu.name}) cannot hold {layout_text(geometry, names)}: {reason}", hint=f"nearest: {nearest}")
    return {**dict.fromkeys(placed), **fixed}


def _refuse_busy(gpu: Gpu, steps: Iterable[Step]) -> None:
    """FleetError when a step needs what somebody uses. To withdraw a mode that waits changes nothing that is in use."""
    changing = [step for step in steps if not (step.action == "mode" and gpu.mode is not None and step.mig == gpu.mode.current)]
    whole = any(step.action in ("mode", "reset") for step in changing)
    gone = {step.where for step in changing if step.action in ("destroy", "strip")}
    problems = [f"{_and(one.holders)} on {one.where}" for one in gpu.slices if one.holders and (whole or one.where in gone)]
    around = [*(gpu.holders if changing else ()), *(gpu.openers if whole else ())]
    if around:
        problems.append(f"{_and(around)} on the GPU itself")
    if problems:
        text = changing[0].text.partition(": ")[2]
        raise FleetError(
            f"GPU {gpu.uuid} is in use: {'; '.join(problems)}; nothing was changed (first step would be: {text})",
            hint="stop what uses it, or keep the slice in the layout",
        )


def _and(words: Sequence[str]) -> str:
    return ", ".join(words)


def _at(where: Slice) -> str:
    return f"{where.profile} at memory slice {where.start}"


def _later(gpu: Gpu, one: Wanted) -> str:
    where = "a memory slice that is known after apply" if one.start is None else f"memory slice {one.start}"
    return f"{gpu.uuid}: create {one.profile} at {where}"


def _step(gpu: Gpu, action: str, text: str, **more: t.Any) -> Step:
    return Step(gpu.uuid, action, f"{gpu.uuid}: {text}", **more)


def _destroy(gpu: Gpu, one: Standing) -> Step:
    return _step(gpu, "destroy", f"destroy {_at(one.where)}", where=one.where)


def _reset(gpu: Gpu) -> Step:
    return _step(gpu, "reset", f"reset the GPU at {gpu.pci} (nvidia-smi -r)")


def plan_all(gpus: Sequence[tuple[Gpu, Wish]], reset: bool) -> list[Plan]:
    """Plans for all GPUs, by PCI address. One FleetError with every refusal: nothing is begun when one GPU's wish is refused."""
    plans: list[Plan] = []
    refused: list[FleetError] = []
    for gpu, wish in sorted(gpus, key=lambda pair: pair[0].pci):
        try:
            plans.append(plan_gpu(gpu, wish, reset))
        except FleetError as error:
            refused.append(FleetError(error.message, file=wish.source, field="mig-devices", hint=error.hint) if wish.source else error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise FleetError("; ".join(str(error) for error in refused))
    return plans


def refuse_twins(named: Iterable[tuple[str, str]]) -> None:
    """(name as written, UUID) of every wish. FleetError when two of them are one GPU."""
    seen: dict[str, str] = {}
    for name, uuid in named:
        if uuid in seen:
            both = name if seen[uuid] == name else f"{seen[uuid]} and {name}"
            raise FleetError(f"{both}: GPU {uuid} is named twice", field="layout", hint="name each GPU in one entry")
        seen[uuid] = name


def wish_to_return(gpu: Gpu) -> Wish:
    """The wish that puts this GPU back as it is now, compute instances included."""
    current = gpu.mode is not None and gpu.mode.current
    return Wish(gpu.uuid, current, tuple(Wanted(one.where.profile, one.where.start, one.compute) for one in gpu.slices))


def diff_text(lines: Iterable[tuple[str, Mode | None, Iterable[tuple[Slice, bool]]]]) -> str:
    """(UUID, mode, [(slice, has a compute instance)]) of each GPU as text, one line for the mode and one for each slice."""
    text = []
    for uuid, mode, slices in lines:
        if mode is None:
            text.append(f"{uuid} has no MIG")
            continue
        waits = "" if mode.current == mode.pending else f" ({_word(mode.pending)} after a reset)"
        text.append(f"{uuid} MIG {_word(mode.current)}{waits}")
        text += [f"{uuid} {where}{'' if usable else ' (no compute instance)'}" for where, usable in sorted(slices)]
    return "".join(f"{line}\n" for line in text)


def _word(mig: bool) -> str:
    return "on" if mig else "off"
