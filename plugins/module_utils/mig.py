# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a wished MIG layout and a GPU as it is to the smallest list of steps, or to the reason why there is none. Pure.

What already is as wished stays. Where a wish leaves the start open, the start is chosen so that no slice in use goes if that can be,
then so that the fewest GPU instances are destroyed and created, then so that the most useful free space is left
(``geometry.place_best``). Everything that can be refused is refused here, before anything is changed; ``mig_run`` carries steps out.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import (
    Geometry,
    Slice,
    find_profile,
    layout_text,
    name_parts,
    nearest_layouts,
    obstacles,
    overlap,
    place_best,
    starts_text,
    why_not_place,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import Wanted, Wish
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Mode

# Which instances to keep when not all can stay: one in use outweighs any number of idle ones, and what they are cut into counts last.
_KEEP, _KEEP_AS_WISHED, _KEEP_USABLE, _KEEP_BUSY = 1000, 2, 1, 1_000_000

RESET_REQUIRED = "it waits for a reset of the GPU"
GUEST_REBOOT = "it waits until the guest reboots, for this virtual machine cannot reset the GPU"


@dataclass(frozen=True)
class Holder:
    """Who uses a GPU or a slice. ``text`` says it in full; ``who`` in a word: the service, project, container or process.

    ``service``: its label, for a container of this collection; ``name`` is then the compose project, which is the replica's name.
    """

    text: str
    who: str = ""
    service: str | None = None
    name: str | None = None
    container: str | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Standing:
    """A GPU instance that exists: where, which compute instance profiles (NVML ids) it holds, and who uses it.

    ``parts``: compute slices of each of its compute instances. ``uuid`` is that of its first MIG device; None when it has none.
    """

    where: Slice
    compute: tuple[int, ...] = ()
    holders: tuple[Holder, ...] = ()
    uuid: str | None = None
    parts: tuple[int, ...] = ()

    @property
    def cut(self) -> tuple[int, ...] | None:
        """Compute slices of each of its compute instances, largest first; None for the usual case of one that fills it."""
        whole = len(self.compute) == 1 and (not self.parts or self.parts[0] >= name_parts(self.where.profile)[0])
        return None if whole else tuple(sorted(self.parts, reverse=True))


@dataclass(frozen=True)
class Gpu:
    """A GPU as observed. ``mode`` None: it has no MIG. ``geometry`` None: the driver does not show it while MIG is off (R535 and older).

    ``holders`` use the GPU itself, or a part of it that could not be told: NVML then refuses any change. ``openers`` only have its
    device file open, as monitors do, or are containers that name it: that keeps a mode from changing and a reset from working, and slices
    apart from it are free. ``resisters`` keep only a reset from working. ``resettable``: False in a virtual machine that cannot.
    """

    uuid: str
    pci: str
    name: str
    mode: Mode | None
    resetless: bool = False
    geometry: Geometry | None = None
    slices: tuple[Standing, ...] = ()
    holders: tuple[Holder, ...] = ()
    openers: tuple[Holder, ...] = ()
    resisters: tuple[Holder, ...] = ()
    resettable: bool = True


@dataclass(frozen=True)
class Step:
    """One thing to do on one GPU.

    ``action``: ``mode`` (to ``mig``), ``reset``, ``destroy``, ``create``, ``compute`` (make compute instances of a GPU instance) or
    ``strip`` (remove them). ``compute``: profile ids to make. ``parts``: compute slices of each that is made or removed. Neither: the one
    that fills it, or all.
    """

    gpu: str
    action: str
    text: str
    where: Slice | None = None
    mig: bool = False
    compute: tuple[int, ...] | None = None
    parts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Obstacle:
    """A holder of this collection that is in the way of a plan, and the slices (or None: the GPU itself) on which it is."""

    gpu: str
    holder: Holder
    places: tuple[Slice | None, ...]


@dataclass(frozen=True)
class Plan:
    """All steps for one GPU and what it then is.

    ``target``: the wished slices, each with its start. ``after``: those that exist after the steps. ``pending``: why the wished mode will
    not be in force yet, None when it will be. ``later``: what the wish still needs and what can be planned only when the driver
    shows the board's geometry, in words. ``drain``: who has to be stopped before the steps can be taken.
    """

    gpu: Gpu
    wish: Wish
    steps: tuple[Step, ...]
    mode: Mode | None
    after: tuple[Slice, ...] = ()
    pending: str | None = None
    later: tuple[str, ...] = ()
    target: tuple[Wanted, ...] = ()
    drain: tuple[Obstacle, ...] = ()

    def texts(self) -> list[str]:
        """The steps as sentences."""
        return [step.text for step in self.steps] + list(self.later)

    @property
    def whole(self) -> bool:
        """Whether a step needs the GPU as a whole, so that services which hold the driver have to let go of it."""
        return any(step.action in ("mode", "reset") for step in _changing(self.gpu, self.steps))


def plan_gpu(gpu: Gpu, wish: Wish, reset: bool, drain: bool = False, judge: bool = True) -> Plan:
    """The steps for one GPU. ``reset``: a GPU whose mode waits may be reset. FleetError when the wish cannot or must not be carried out.

    ``drain``: containers of this collection that are in the way are named in the plan, not refused. ``judge`` False: who is in the way
    is not asked.
    """
    if gpu.mode is None:
        if wish.mig:
            raise FleetError(f"GPU {gpu.uuid} ({gpu.name}) has no MIG", hint="leave it out of the layout, or write mig: false")
        return Plan(gpu, wish, (), None)
    plan = _plan_on(gpu, gpu.mode, wish, reset) if wish.mig else _plan_off(gpu, gpu.mode, wish, reset)
    return _judged(plan, drain) if judge else plan


def _plan_on(gpu: Gpu, mode: Mode, wish: Wish, reset: bool) -> Plan:
    if mode.current:
        switch = [] if mode.pending else [_step(gpu, "mode", "withdraw the switch-off of MIG that waits for a reset", mig=True)]
        slices = _plan_slices(gpu, wish, gpu.slices)
        return Plan(gpu, wish, (*switch, *slices.steps), Mode(True, True), slices.after, None, slices.later, slices.target)
    switch = [] if mode.pending else [_step(gpu, "mode", "switch MIG on", mig=True)]
    slices = _plan_slices(gpu, wish, ())  # also when it must wait: an impossible wish is refused now, not after the reset
    waits = mode.pending or not gpu.resetless
    if waits and (not reset or not gpu.resettable):
        return Plan(gpu, wish, tuple(switch), Mode(False, True), (), _why_pending(gpu), target=slices.target)
    resets = [_reset(gpu)] if waits else []
    return Plan(gpu, wish, (*switch, *resets, *slices.steps), Mode(True, True), slices.after, None, slices.later, slices.target)


def _plan_off(gpu: Gpu, mode: Mode, wish: Wish, reset: bool) -> Plan:
    if not mode.current:
        switch = [_step(gpu, "mode", "withdraw the switch-on of MIG that waits for a reset")] if mode.pending else []
        return Plan(gpu, wish, tuple(switch), Mode(False, False))
    steps = [_destroy(gpu, one) for one in gpu.slices]
    if mode.pending:
        steps.append(_step(gpu, "mode", "switch MIG off"))
    waits = not mode.pending or not gpu.resetless
    if waits and (not reset or not gpu.resettable):
        return Plan(gpu, wish, tuple(steps), Mode(True, False), (), _why_pending(gpu))
    if waits:
        steps.append(_reset(gpu))
    return Plan(gpu, wish, tuple(steps), Mode(False, False))


def _why_pending(gpu: Gpu) -> str:
    return RESET_REQUIRED if gpu.resettable else GUEST_REBOOT


@dataclass(frozen=True)
class _Slices:
    steps: tuple[Step, ...] = ()
    after: tuple[Slice, ...] = ()
    target: tuple[Wanted, ...] = ()
    later: tuple[str, ...] = ()


def _plan_slices(gpu: Gpu, wish: Wish, present: Sequence[Standing]) -> _Slices:
    """Destroy what must go, create what is missing, then see to the compute instances of what stays: in this order, each by start."""
    standing = {one.where: one for one in present}
    if wish.slices is None:
        target = {one.where: Wanted(one.where.profile, one.where.start, one.compute) for one in present}
    elif gpu.geometry is None:
        return _Slices(target=wish.slices, later=tuple(_later(gpu, one) for one in wish.slices))
    else:
        target = _choose(gpu, gpu.geometry, wish.slices, present)
    steps = [_destroy(gpu, standing[where]) for where in sorted(set(standing) - set(target))]
    for where in sorted(set(target) - set(standing)):
        steps.append(_create(gpu, where, target[where]))
    for where in sorted(set(target) & set(standing)):
        steps += _compute(gpu, standing[where], target[where])
    ordered = tuple(sorted(target))
    return _Slices(tuple(steps), ordered, tuple(target[where] for where in ordered))


def fits(one: Standing, wanted: Wanted) -> bool:
    """Whether the compute instances of a slice that stands are as wished."""
    if wanted.keep:
        return True
    if wanted.compute is not None:
        return sorted(one.compute) == sorted(wanted.compute)
    if wanted.parts is not None:
        return one.cut == wanted.parts
    return one.cut is None if wanted.exact else bool(one.compute)


def _compute(gpu: Gpu, one: Standing, wanted: Wanted) -> list[Step]:
    if fits(one, wanted):
        return []
    extra: tuple[int, ...] | None = None  # all
    missing = wanted.parts
    if wanted.parts is not None and one.cut is not None:  # what is already as wished stays, here too
        extra = _less(one.cut, wanted.parts)
        missing = _less(wanted.parts, one.cut)
    steps = []
    if one.compute and extra != ():
        what = "the compute instances" if extra is None else _parts_text(extra)
        steps.append(_step(gpu, "strip", f"destroy {what} of {_at(one.where)}", where=one.where, parts=extra))
    if missing != () and wanted.compute != ():
        what = "the compute instance" if missing is None else _parts_text(missing)
        text = f"create {what} of {_at(one.where)}"
        steps.append(_step(gpu, "compute", text, where=one.where, compute=wanted.compute, parts=missing))
    return steps


def _less(these: Iterable[int], those: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted((Counter(these) - Counter(those)).elements(), reverse=True))


def _parts_text(parts: Sequence[int]) -> str:
    return f"compute instance{'s' if len(parts) > 1 else ''} {', '.join(f'{part}c' for part in parts)}"


def _choose(gpu: Gpu, geometry: Geometry, wanted: Sequence[Wanted], present: Sequence[Standing]) -> dict[Slice, Wanted]:
    """Where every wished slice goes. FleetError with the reason, and the layouts that come nearest, when they cannot all stand."""
    standing = {one.where: one for one in present}
    try:
        named = [replace(one, profile=find_profile(geometry, one.profile).name) for one in wanted]
    except FleetError as error:
        raise FleetError(f"GPU {gpu.uuid} ({gpu.name}): {error.message}", hint=error.hint) from error
    fixed = [one for one in named if one.start is not None]
    free = [one for one in named if one.start is None]
    pinned = [Slice(t.cast(int, one.start), one.profile) for one in fixed]
    fixed = [_kept(one, standing.get(where)) for where, one in zip(pinned, fixed)]
    weights = {one.where: _weight(one, free) for one in present}
    placed = place_best(geometry, pinned, [one.profile for one in free], weights)
    if placed is None:
        names = [one.profile for one in named]
        nearest = ", or ".join(layout.text for layout in nearest_layouts(geometry, names))
        reason = why_not_place(geometry, pinned, [one.profile for one in free])
        raise FleetError(f"GPU {gpu.uuid} ({gpu.name}) cannot hold {layout_text(geometry, names)}: {reason}", hint=f"nearest: {nearest}")
    return {**_assign(free, placed, standing), **dict(zip(pinned, fixed))}


def _kept(wanted: Wanted, one: Standing | None) -> Wanted:
    """What a slice that keeps what it has is to have; a new one is made whole."""
    return replace(wanted, keep=False, compute=None if one is None else one.compute) if wanted.keep else wanted


def _weight(one: Standing, free: Iterable[Wanted]) -> int:
    """How much this instance is worth keeping."""
    as_wished = any(wanted.profile == one.where.profile and fits(one, wanted) for wanted in free)
    return _KEEP + (_KEEP_AS_WISHED if as_wished else _KEEP_USABLE if one.compute else 0) + _KEEP_BUSY * bool(one.holders)


def _assign(free: Sequence[Wanted], places: Sequence[Slice], standing: Mapping[Slice, Standing]) -> dict[Slice, Wanted]:
    """Which wished slice is which place of its profile: those that are cut as wished first, so that their compute instances stay."""
    found: dict[Slice, Wanted] = {}
    waiting = sorted(free, key=lambda one: (one.compute is None and one.parts is None, not one.exact))  # the particular ones choose first
    for wanted in list(waiting):
        like = [where for where in places if where not in found and where.profile == wanted.profile and where in standing]
        like = [where for where in sorted(like, key=lambda where: not standing[where].holders) if fits(standing[where], wanted)]
        if like:
            found[like[0]] = replace(wanted, start=like[0].start)
            waiting.remove(wanted)
    for wanted in waiting:
        where = min(where for where in places if where not in found and where.profile == wanted.profile)
        found[where] = replace(wanted, start=where.start)
    return found


# Who is in the way


def _changing(gpu: Gpu, steps: Iterable[Step]) -> list[Step]:
    """Steps that need what somebody may use. To withdraw a mode that waits changes nothing that is in use."""
    return [step for step in steps if not (step.action == "mode" and gpu.mode is not None and step.mig == gpu.mode.current)]


def in_the_way(gpu: Gpu, steps: Sequence[Step]) -> list[tuple[Slice | None, tuple[Holder, ...]]]:
    """Who uses what the steps need: by slice, and at the end (None) those on the GPU itself."""
    changing = _changing(gpu, steps)
    actions = {step.action for step in changing}
    whole = bool(actions & {"mode", "reset"})
    gone = {step.where for step in changing if step.action in ("destroy", "strip")}
    found: list[tuple[Slice | None, tuple[Holder, ...]]] = []
    for one in gpu.slices:
        if one.holders and (whole or one.where in gone):
            found.append((one.where, one.holders))
    around = [
        *(gpu.holders if changing else ()),
        *(gpu.openers if whole else ()),
        *(gpu.resisters if "reset" in actions else ()),
    ]
    if around:
        found.append((None, tuple(dict.fromkeys(around))))
    return found


def _judged(plan: Plan, drain: bool) -> Plan:
    """The plan, with those that have to be stopped first if that is allowed. FleetError names everybody who is in the way."""
    found = in_the_way(plan.gpu, plan.steps)
    if not found:
        return plan
    if not drain or any(holder.service is None for _where, holders in found for holder in holders):
        raise _refusal(plan, found)
    places: dict[Holder, list[Slice | None]] = {}
    for where, holders in found:
        for holder in holders:
            places.setdefault(holder, []).append(where)
    return replace(plan, drain=tuple(Obstacle(plan.gpu.uuid, holder, tuple(where)) for holder, where in places.items()))


def _refusal(plan: Plan, found: Sequence[tuple[Slice | None, Sequence[Holder]]]) -> FleetError:
    gpu = plan.gpu
    problems = [f"{', '.join(one.text for one in holders)} on {where or 'the GPU itself'}" for where, holders in found]
    busy = {one.where: one.holders[0].who or one.holders[0].text for one in gpu.slices if one.holders}
    gone = {where for where, _holders in found if where is not None}
    reasons = [] if plan.whole or gpu.geometry is None else _why_they_go(plan, gpu.geometry, busy, gone)
    text = _changing(gpu, plan.steps)[0].text.partition(": ")[2]
    hint = "stop what uses it, or keep the slice in the layout"
    if reasons and plan.target and gpu.geometry is not None:
        staying = [one.where for one in gpu.slices if one.holders]
        nearest = nearest_layouts(gpu.geometry, [one.profile for one in plan.target], fixed=staying)
        hint += f"; nearest layouts that leave it there: {', or '.join(layout.text for layout in nearest)}"
    why = "".join(f"; {reason}" for reason in reasons)
    return FleetError(f"GPU {gpu.uuid} is in use: {'; '.join(problems)}{why}; nothing was changed (first step would be: {text})", hint=hint)


def _why_they_go(plan: Plan, geometry: Geometry, busy: Mapping[Slice, str], gone: Collection[Slice]) -> list[str]:
    """For each new slice that needs the place of one in use: what it needs and who has it. ``gone``: those of them that would go."""
    standing = {one.where for one in plan.gpu.slices}
    reasons = []
    written = {Slice(one.start, find_profile(geometry, one.profile).name) for one in plan.wish.slices or () if one.start is not None}
    for wanted in plan.target:
        new = Slice(t.cast(int, wanted.start), wanted.profile)
        blocking = [one for one in sorted(gone) if overlap(geometry, one, new)]
        if new in standing or not blocking:
            continue
        everywhere = obstacles(geometry, new.profile, list(busy))
        if everywhere is not None:
            needs, blocking = starts_text(geometry, new.profile), everywhere
        elif new in written:
            last = new.start + find_profile(geometry, new.profile).size - 1
            places = f"memory slice {new.start}" if last == new.start else f"memory slices {new.start} to {last}"
            needs = f"{new.profile} is wished at {places}"
        else:
            continue
        owners = " and ".join(f"{one.profile} of {busy[one]}" for one in blocking)
        reasons.append(f"{needs}, which {owners} {'hold' if len(blocking) > 1 else 'holds'}")
    return list(dict.fromkeys(reasons)) or _too_few(plan, gone)


def _too_few(plan: Plan, gone: Iterable[Slice]) -> list[str]:
    """Which profiles in use the layout has none or fewer of."""
    wished = Counter(one.profile for one in plan.target)
    in_use = Counter(one.where.profile for one in plan.gpu.slices if one.holders)
    return [
        f"the layout has {f'only {wished[profile]}' if wished[profile] else 'no'} {profile}"
        for profile in sorted({one.profile for one in gone})
        if wished[profile] < in_use[profile]
    ]


# Steps and their words


def _at(where: Slice) -> str:
    return f"{where.profile} at memory slice {where.start}"


def _later(gpu: Gpu, one: Wanted) -> str:
    where = "a memory slice that is known after apply" if one.start is None else f"memory slice {one.start}"
    return f"{gpu.uuid}: create {one.profile} at {where}"


def _step(gpu: Gpu, action: str, text: str, **more: t.Any) -> Step:
    return Step(gpu.uuid, action, f"{gpu.uuid}: {text}", **more)


def _create(gpu: Gpu, where: Slice, wanted: Wanted) -> Step:
    inside = "" if wanted.parts is None else f" with {_parts_text(wanted.parts)}"
    return _step(gpu, "create", f"create {_at(where)}{inside}", where=where, compute=wanted.compute, parts=wanted.parts)


def _destroy(gpu: Gpu, one: Standing) -> Step:
    return _step(gpu, "destroy", f"destroy {_at(one.where)}", where=one.where)


def _reset(gpu: Gpu) -> Step:
    return _step(gpu, "reset", f"reset the GPU at {gpu.pci} (nvidia-smi -r)")


# Several GPUs


def plan_all(gpus: Sequence[tuple[Gpu, Wish]], reset: bool, drain: bool = False, judge: bool = True) -> list[Plan]:
    """Plans for all GPUs, by PCI address. One FleetError with every refusal: nothing is begun when one GPU's wish is refused."""
    plans: list[Plan] = []
    refused: list[FleetError] = []
    for gpu, wish in sorted(gpus, key=lambda pair: pair[0].pci):
        try:
            plans.append(plan_gpu(gpu, wish, reset, drain, judge))
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


def wish_reached(plan: Plan) -> Wish:
    """What the plan leads to, or will when a mode that waits is in force: each slice with its start."""
    return Wish(plan.gpu.uuid, plan.wish.mig, plan.target, temporary=plan.wish.temporary)


def cut_after(plan: Plan, wanted: Wanted) -> tuple[int, ...] | None:
    """As :attr:`Standing.cut`, of a wished slice after the plan's steps."""
    here = [one for one in plan.gpu.slices if one.where == Slice(t.cast(int, wanted.start), wanted.profile)]
    if here and fits(here[0], wanted):
        return here[0].cut
    return wanted.parts if wanted.compute != () else ()


def diff_text(lines: Iterable[tuple[str, Mode | None, Iterable[tuple[Slice, tuple[int, ...] | None]]]]) -> str:
    """(UUID, mode, [(slice, its ``cut``)]) of each GPU as text, one line for the mode and one for each slice."""
    text = []
    for uuid, mode, slices in lines:
        if mode is None:
            text.append(f"{uuid} has no MIG")
            continue
        waits = "" if mode.current == mode.pending else f" ({_word(mode.pending)} after a reset)"
        text.append(f"{uuid} MIG {_word(mode.current)}{waits}")
        for where, cut in sorted(slices, key=lambda pair: pair[0]):
            inside = "" if cut is None else " (no compute instance)" if not cut else f" ({_parts_text(cut)})"
            text.append(f"{uuid} {where}{inside}")
    return "".join(f"{line}\n" for line in text)


def _word(mig: bool) -> str:
    return "on" if mig else "off"
