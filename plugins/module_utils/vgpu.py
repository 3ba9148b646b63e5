# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the vGPUs that a GPU shall have and the GPU as it is to the smallest list of steps, or to the reason why there is none. Pure.

A vGPU that is wished stays, whatever its name; those in use are kept first. What has to go and is in use is a refusal, and so is what
cannot stand (``vgpu_room``): everything that can be refused is refused here, before anything is changed.
"""

from __future__ import annotations

import typing as t
import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_room import Case, Ground, Limit, why_not
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import MOST_VGPUS, Params, Scheduler, Wanted, Wish, params_text

KNOWN_AFTER_APPLY = "(known after apply)"
MDEV, VENDOR = "mdev", "vendor"
UNNAMED = "type number "  # a type of which only the number is known
# The collection's own name space of version 5 UUIDs (RFC 9562), made once at random.
_NAMESPACE = uuids.UUID("7b1d6c7e-0f0b-4a57-9a53-5e2f1c0d9b64")


@dataclass(frozen=True)
class Offer:
    """A type as a place offers it: ``id`` is its directory or number there, ``available`` how many more it takes."""

    id: str
    available: int


@dataclass(frozen=True)
class Place:
    """Where vGPUs are made: a virtual function, which takes one, or a device that takes many. ``offers``: by short name."""

    name: str
    many: bool
    offers: Mapping[str, Offer] = field(default_factory=dict)


@dataclass(frozen=True)
class Vgpu:
    """A vGPU that is there. ``uuid``: of a mediated device. ``users``: who has it, in words."""

    place: str
    type: str
    uuid: str | None = None
    params: Params = ()
    users: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """For messages: the type, and where it is."""
        return f"{self.type} on {self.place}"


@dataclass(frozen=True)
class Gpu:
    """A GPU as it is.

    ``framework``: ``mdev``, ``vendor``, or None while no place for vGPUs is there. ``total_vfs``: how many virtual functions it can have, 0
    for one without SR-IOV; ``vfs``: how many are on. ``places``: while they are off, those that there will be. ``passed``: functions that
    another driver has. ``types``: what is known of types by short name. ``backing``, ``grounds``, ``mig``: as in ``vgpu_room.Case``.
    ``users``: who has the GPU itself open. ``machine``: the host's identity, in the names of new vGPUs. ``mixed``, ``scheduler``: None when
    the driver does not say. ``complete``: ``types`` are all that the GPU has. ``aliases``: other names of types, in lower case.
    """

    name: str
    uuid: str | None = None
    framework: str | None = None
    total_vfs: int = 0
    vfs: int = 0
    places: tuple[Place, ...] = ()
    vgpus: tuple[Vgpu, ...] = ()
    passed: tuple[str, ...] = ()
    types: Mapping[str, Limit] = field(default_factory=dict)
    complete: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    mixed: bool | None = None
    scheduler: Scheduler | None = None
    mig: bool | None = None
    grounds: tuple[Ground, ...] | None = None
    backing: Mapping[str, int] | None = None
    users: tuple[str, ...] = ()
    machine: str = ""


@dataclass(frozen=True)
class Step:
    """One act. ``action``: remove, vfs, mixed, scheduler, create or params; ``on`` of vfs and mixed."""

    action: str
    text: str
    place: str = ""
    type: str = ""
    uuid: str | None = None
    params: Params | None = None
    on: bool = True
    scheduler: Scheduler | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be done on one GPU, and what there is afterwards. ``wish``: with every vGPU's place and name, for the papers."""

    gpu: Gpu
    wish: Wish
    steps: tuple[Step, ...]
    after: Gpu

    def texts(self) -> list[str]:
        """The steps in words."""
        return [f"{self.gpu.name}: {step.text}" for step in self.steps]


def stable_uuid(machine: str, gpu: str, kind: str, number: int) -> str:
    """The name of the n-th vGPU of a type on a GPU of this host: the same after every run and every boot."""
    return str(uuids.uuid5(_NAMESPACE, f"{machine}/{gpu}/{kind}/{number}"))


def plan_all(pairs: Sequence[tuple[Gpu, Wish]], limits: Mapping[str, Limit], judge: bool = True) -> list[Plan]:
    """Plans for all GPUs, by name. One FleetError with every refusal: nothing is begun when one GPU's wish is refused."""
    plans, refused = [], []
    for gpu, wish in sorted(pairs, key=lambda pair: pair[0].name):
        try:
            plans.append(plan_gpu(gpu, wish, limits, judge))
        except FleetError as error:
            refused.append(FleetError(error.message, file=wish.source, field="vgpu-devices", hint=error.hint) if wish.source else error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise FleetError("; ".join(str(error) for error in refused))
    return plans


def plan_gpu(gpu: Gpu, wish: Wish, limits: Mapping[str, Limit], judge: bool = True) -> Plan:
    """The smallest list of steps. FleetError when there is none; ``judge`` False: whether it can stand is not asked, only tried."""
    return _Planner(gpu, wish, limits, judge).plan()


class _Planner:
    def __init__(self, gpu: Gpu, wish: Wish, limits: Mapping[str, Limit], judge: bool) -> None:
        self.gpu, self.wish, self.judge = gpu, wish, judge
        self.limits = {**limits, **{name: _joined(limits.get(name), limit) for name, limit in gpu.types.items()}}
        self.wanted = [replace(one, type=self._type(one.type)) for one in self._asked()]
        self.vfs_on = (bool(self.wanted) or wish.vfs == "on") and gpu.total_vfs > 0 and gpu.vfs == 0 and gpu.framework is None
        self.vfs_off = wish.vfs == "off" and gpu.vfs > 0

    def _asked(self) -> tuple[Wanted, ...]:
        if self.wish.vgpus is not None:
            return self.wish.vgpus
        return tuple(Wanted(one.type, one.params, place=one.place, uuid=one.uuid) for one in self.gpu.vgpus)

    def _error(self, words: str, hint: str | None = None) -> FleetError:
        return FleetError(f"{self.gpu.name}: {words}", hint=hint)

    # What is meant

    def _type(self, name: str) -> str:
        """The short name that the host has for a type. FleetError when the GPU has no such type."""
        known = {*self.gpu.types, *(one.type for one in self.gpu.vgpus)}
        found = self.gpu.aliases.get(name.strip().lower()) or vgpu_types.meant(name, sorted(known))
        if found is not None:
            return found
        if self.judge and self.gpu.complete:
            raise self._error(f"there is no vGPU type {name}", hint=vgpu_types.advice(name, known))
        kind = vgpu_types.parse(name)
        if kind is None and self.judge:
            raise self._error(f"'{name}' is no vGPU type", hint="write one like A100D-10C or A100D-1-10C")
        return name if kind is None else kind.listed

    def plan(self) -> Plan:
        self._refuse_contradictions()
        mixed = self._mixed()
        scheduler = self._scheduler()
        pairs, extra, missing = self._matched()
        if mixed is not None or scheduler is not None:  # neither changes while a vGPU is there
            extra = [*extra, *(one for one, _wanted in pairs)]
            again = [
                replace(wanted, place=one.place, uuid=one.uuid, params=wanted.stored(one.params) if wanted.speaks else one.params or None)
                for one, wanted in pairs
            ]
            pairs, missing = [], [*again, *missing]
        changed = [(one, wanted.stored(one.params)) for one, wanted in pairs if wanted.stored(one.params) != one.params]
        self._refuse_busy(extra, [one for one, _params in changed], mixed is not None or scheduler is not None)
        kept = [one for one, _wanted in pairs]
        made = self._placed(kept, missing)
        if self.judge:
            self._refuse_impossible(kept, [one.type for one, _wanted in made], extra, mixed)
        steps = [_removal(one) for one in sorted(extra, key=self._order, reverse=True)]
        if self.vfs_on or self.vfs_off:
            word, flag = ("on", "-e") if self.vfs_on else ("off", "-d")
            steps.append(Step("vfs", f"virtual functions {word} (sriov-manage {flag})", on=self.vfs_on))
        if mixed is not None:
            steps.append(Step("mixed", f"mixed-size mode {'on' if mixed else 'off'} (nvidia-smi vgpu -shm {int(mixed)})", on=mixed))
        if scheduler is not None:
            steps.append(Step("scheduler", f"scheduler {scheduler}", scheduler=scheduler))
        for one, _wanted in made:
            steps.append(Step("create", f"create {one.title}", one.place, one.type, one.uuid))
            if one.params:
                steps.append(_setting(one, one.params))
        steps += [_setting(one, params) for one, params in changed]
        there = [(replace(one, params=wanted.stored(one.params)), wanted) for one, wanted in pairs]
        return self._result(steps, [*there, *made], mixed, scheduler)

    def _result(self, steps: Sequence[Step], vgpus: Sequence[tuple[Vgpu, Wanted]], mixed: bool | None, scheduler: Scheduler | None) -> Plan:
        gpu = self.gpu
        ordered = sorted(vgpus, key=lambda pair: self._order(pair[0]))
        vfs = gpu.total_vfs if self.vfs_on else 0 if self.vfs_off else gpu.vfs
        after = replace(
            gpu,
            vgpus=tuple(one for one, _wanted in ordered),
            vfs=vfs,
            mixed=mixed if mixed is not None else False if (self.vfs_on or self.vfs_off) and gpu.mixed is not None else gpu.mixed,
            scheduler=scheduler or gpu.scheduler,
        )
        # Of parameters that nobody wished, nothing is demanded: a driver may show some of its own.
        lines = [Wanted(one.type, one.params if wanted.speaks else None, place=one.place, uuid=one.uuid) for one, wanted in ordered]
        return Plan(gpu, replace(self.wish, vgpus=tuple(lines)), tuple(steps), after)

    # What contradicts itself or the GPU

    def _refuse_contradictions(self) -> None:
        gpu, wanted = self.gpu, self.wanted
        if not wanted:
            return
        strange = [one for one in gpu.vgpus if one.type.startswith(UNNAMED)]
        if strange and self.judge:
            words = ", ".join(f"{one.title}" for one in strange)
            hint = "install nvidia-ml-py on the host, which names it, or remove that vGPU"
            raise self._error(f"what {words} is, neither the driver's lists nor NVML say, so nothing is compared with it", hint=hint)
        if not gpu.places and not self.vfs_on:
            if gpu.vfs:
                hint = "is the vGPU host driver loaded, and does nvidia-vgpu-mgr run?"
                words = f"its {gpu.vfs} virtual functions offer no vGPUs: none is in mdev_bus or has a directory nvidia"
                raise self._error(words, hint=hint)
            raise self._error("it offers no vGPUs and has no virtual functions to switch on", hint="see whether this card has vGPUs at all")
        backed = any(kind.slices is not None for one in wanted for kind in [vgpu_types.parse(one.type)] if kind)
        if backed and self.wish.mixed:
            raise self._error("mixed-size mode is for time-sliced vGPUs only", hint="write mixed: false")
        if backed and self.wish.scheduler is not None:
            raise self._error("a scheduler policy is for time-sliced vGPUs only", hint="leave scheduler out")
        if self.wish.mixed and self.wish.scheduler is not None and self.wish.scheduler.policy == "fixed-share":
            raise self._error("fixed-share and mixed-size mode exclude each other", hint="choose another policy")
        placed = [one.placement for one in wanted if one.placement is not None]
        twice = next((one for one in placed if placed.count(one) > 1), None)
        if twice is not None and not backed:
            raise self._error(f"placement {twice} is wished twice", hint="give each vGPU its own")
        if self.wish.instances is None and gpu.grounds is not None:
            self._refuse_missing_instances(wanted, gpu.grounds)

    def _refuse_missing_instances(self, wanted: Iterable[Wanted], grounds: Sequence[Ground]) -> None:
        there = {ground.where for ground in grounds}
        missing = sorted({str(one.instance) for one in wanted if one.instance is not None and one.instance not in there})
        if missing and self.judge:
            have = ", ".join(map(str, sorted(there))) or "none"
            raise self._error(f"there is no GPU instance {', '.join(missing)}", hint=f"it has {have}; module mig makes them")

    def _mixed(self) -> bool | None:
        """The mode to switch to; None when it stays."""
        wished, now = self.wish.mixed, self.gpu.mixed
        if self.vfs_off or (not self.wanted and not self.wish.mixed):
            return None
        if self.vfs_on:
            return True if wished else None  # it is off after sriov-manage, in both directions
        if wished and now is None and self.judge:
            raise self._error("mixed-size mode is wished, and the driver does not say that it has one", hint="write mixed: false")
        return None if now is None or now == wished else wished

    def _scheduler(self) -> Scheduler | None:
        """The policy to set; None when it is as wished or nothing is wished."""
        wished, now = self.wish.scheduler, self.gpu.scheduler
        if wished is None or self.vfs_off:
            return None
        if self.vfs_on or now is None or now.policy != wished.policy:
            return wished
        same = wished.slice_ms in (None, now.slice_ms) and wished.frequency_hz in (None, now.frequency_hz)
        return None if same else wished

    # Who stays, who goes, who is made

    def _order(self, one: Vgpu) -> tuple[t.Any, ...]:
        """By place, as the functions are numbered, then by the number of its stable name."""
        numbers = {place.name: number for number, place in enumerate(self.gpu.places)}
        return numbers.get(one.place, len(numbers)), vgpu_types.order(one.type), self._number(one), one.uuid or ""

    def _number(self, one: Vgpu) -> int:
        if one.uuid is None:
            return 0
        names = {stable_uuid(self.gpu.machine, self.gpu.name, one.type, number): number for number in range(MOST_VGPUS)}
        return names.get(one.uuid, MOST_VGPUS)

    def _matched(self) -> tuple[list[tuple[Vgpu, Wanted]], list[Vgpu], list[Wanted]]:
        """Which vGPU fulfils which wish; those that nobody wishes; wishes that none fulfils."""
        here = sorted(self.gpu.vgpus, key=lambda one: (not one.users, self._number(one), self._order(one)))
        left = list(self.wanted)
        pairs: list[tuple[Vgpu, Wanted]] = []
        for fits in (_is_named, _has_parameters, _has_type):
            for one in list(here):
                wanted = next((each for each in left if fits(one, each)), None)
                if wanted is not None:
                    pairs.append((one, wanted))
                    left.remove(wanted)
                    here.remove(one)
        return sorted(pairs, key=lambda pair: self._order(pair[0])), here, left

    def _placed(self, kept: Sequence[Vgpu], missing: Sequence[Wanted]) -> list[tuple[Vgpu, Wanted]]:
        """Where the new ones are made and how they are called, the larger ones first."""
        held = {one.place for one in kept}
        free = [place.name for place in self.gpu.places if place.many or place.name not in held]
        many = {place.name for place in self.gpu.places if place.many}
        names = {one.uuid for one in kept}
        reserved = {one.place for one in missing if one.place in free}
        made = []
        for wanted in sorted(missing, key=lambda one: (one.place not in free, *_largest(one.type))):
            spot = wanted.place if wanted.place in free else next((name for name in free if name in many or name not in reserved), None)
            if spot is None:
                if self.judge:
                    there = len(self.gpu.places)
                    raise self._error(f"there is no free virtual function for {wanted.type}: it has {there}, all taken")
                break
            if spot not in many:
                free.remove(spot)
            name = None
            if self.gpu.framework == MDEV:
                name = wanted.uuid if wanted.uuid and wanted.uuid not in names else self._name(wanted.type, names)
                names.add(name)
            made.append((Vgpu(spot, wanted.type, name, wanted.stored(())), wanted))
        return sorted(made, key=lambda pair: (_largest(pair[0].type), self._order(pair[0])))

    def _name(self, kind: str, taken: t.Container[str | None]) -> str:
        names = (stable_uuid(self.gpu.machine, self.gpu.name, kind, number) for number in range(2 * MOST_VGPUS))
        return next(name for name in names if name not in taken)

    # What cannot be

    def _refuse_busy(self, extra: Sequence[Vgpu], changed: Sequence[Vgpu], whole: bool) -> None:
        why = "the mode or policy that is wished cannot be set while it is there" if whole else "it would have to go"
        words = [f"{one.title} is in use by {', '.join(one.users)}, and {why}" for one in sorted(extra, key=self._order) if one.users]
        words += [
            f"{one.title} is in use by {', '.join(one.users)}, and its parameters cannot be written then"
            for one in sorted(changed, key=self._order)
            if one.users
        ]
        if self.vfs_on or self.vfs_off:
            if self.vfs_off:
                words += [f"virtual function {name}, and the functions would have to go" for name in self.gpu.passed]
            if self.gpu.users:
                words.append(f"it is in use by {', '.join(self.gpu.users)}, and sriov-manage needs it idle")
        if words:
            raise self._error("; ".join(words), hint="shut that virtual machine down or end that program first, or wish what is in use")

    def _refuse_impossible(self, kept: Sequence[Vgpu], new: Sequence[str], extra: Sequence[Vgpu], mixed: bool | None) -> None:
        gpu = self.gpu
        held = {one.place for one in kept}
        asked = gpu.framework is not None and mixed is None and not self.vfs_on and self.wish.instances is None
        taken = {one.place for one in gpu.vgpus}
        available: dict[str, int] = {}
        for place in gpu.places if asked else ():
            for name, offer in place.offers.items():
                if place.many or place.name not in taken:
                    available[name] = available.get(name, 0) + offer.available
        case = Case(
            [one.type for one in kept],
            new,
            [one.type for one in extra],
            available if asked else None,
            None if any(place.many for place in gpu.places) else sum(place.name not in held for place in gpu.places),
            self.limits,
            self.wish.mixed,
            gpu.mig,
            gpu.grounds,
            gpu.backing,
        )
        reason = why_not(case)
        if reason is not None:
            raise self._error(reason, hint="wish fewer or smaller ones; module vgpu_info shows what there is room for")


def _joined(listed: Limit | None, told: Limit) -> Limit:
    """What the host tells, with what NVIDIA's lists add."""
    if listed is None:
        return told
    most, source = (listed.most, listed.source) if told.most is None else (told.most, told.source)
    return Limit(most, listed.mixed if told.mixed is None else told.mixed, source)


def _is_named(one: Vgpu, wanted: Wanted) -> bool:
    if wanted.type != one.type:
        return False
    return wanted.uuid == one.uuid if wanted.uuid is not None else wanted.place == one.place


def _has_parameters(one: Vgpu, wanted: Wanted) -> bool:
    return wanted.type == one.type and wanted.stored(one.params) == one.params


def _has_type(one: Vgpu, wanted: Wanted) -> bool:
    return wanted.type == one.type


def _largest(name: str) -> tuple[t.Any, ...]:
    kind = vgpu_types.parse(name)
    return (0, name) if kind is None else (-kind.gb, name)


def _removal(one: Vgpu) -> Step:
    return Step("remove", f"remove {one.title}", one.place, one.type, one.uuid)


def _setting(one: Vgpu, params: Params) -> Step:
    what = params_text(params) if params else "none"
    return Step("params", f"parameters of {one.title}: {what}", one.place, one.type, one.uuid, params)


def wish_to_return(gpu: Gpu) -> Wish:
    """The wish that puts this GPU back as it is now: the same types at the same places under the same names."""
    vgpus = tuple(Wanted(one.type, one.params, place=one.place, uuid=one.uuid) for one in gpu.vgpus)
    scheduler = gpu.scheduler if vgpus else None
    vfs = "auto" if not gpu.total_vfs else "on" if gpu.vfs else "off"
    return Wish(gpu.name, vgpus, bool(gpu.mixed), scheduler, vfs)


def refuse_twins(named: Iterable[tuple[str, str]]) -> None:
    """(as written, GPU) of every wish. FleetError when two of them are one GPU."""
    seen: dict[str, str] = {}
    for written, name in named:
        if name in seen:
            both = written if seen[name] == written else f"{seen[name]} and {written}"
            raise FleetError(f"{both}: {name} is named twice", field="gpus", hint="name each GPU in one entry")
        seen[name] = written


def diff_text(gpus: Iterable[Gpu]) -> str:
    """Functions, modes and vGPUs of each GPU as text, one a line."""
    lines = []
    for gpu in gpus:
        if gpu.total_vfs:
            lines.append(f"{gpu.name} virtual functions {'on' if gpu.vfs else 'off'}")
        if gpu.mixed:
            lines.append(f"{gpu.name} mixed-size mode on")
        if gpu.scheduler is not None:
            lines.append(f"{gpu.name} scheduler {gpu.scheduler}")
        for one in gpu.vgpus:
            more = f" ({params_text(one.params)})" if one.params else ""
            lines.append(f"{gpu.name} {one.title}{more}")
    return "".join(f"{line}\n" for line in lines)


def as_data(gpu: Gpu) -> dict[str, t.Any]:
    """A GPU in a result."""
    unknown = gpu.framework is None
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "framework": (KNOWN_AFTER_APPLY if gpu.vgpus else None) if unknown else gpu.framework,
        "vfs": gpu.vfs,
        "mixed": gpu.mixed,
        "scheduler": None if gpu.scheduler is None else str(gpu.scheduler),
        "vgpus": [
            {
                "type": one.type,
                "place": one.place,
                "uuid": KNOWN_AFTER_APPLY if unknown else one.uuid,
                "params": dict(one.params),
                "users": list(one.users),
            }
            for one in gpu.vgpus
        ],
    }
