# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's GPUs to the vGPUs that are wished: look, plan (``vgpu``), record, act, verify, and go back if a step fails.

The journal is written before the first step and stays open for a GPU that is neither as wished nor as before. The next run with the same
wish, or :func:`replay`, brings such a GPU to its wish.
"""

from __future__ import annotations

import shutil
import time
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal, Unfinished
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import named_entries
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Stuck
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu import (
    Gpu,
    Plan,
    as_data,
    diff_text,
    plan_all,
    plan_gpu,
    refuse_twins,
    wish_to_return,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_act import Hands
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_look import DEVICES, Look, Options
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_state import VGPUS
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import Wish, line_of, parse_gpus, wish_of_line

__all__ = ["Options", "Result", "apply", "info", "replay"]

JOURNAL = "vgpu-journal.json"
# A way back is tried this often: what failed once may work when the rest is done, and functions show what they offer when they are on.
_ATTEMPTS = 3
_POLL_SECONDS = 1.0
_RUN_AGAIN = "when the cause is gone, the next run with this wish, or the host's agent, completes the change"


@dataclass
class Result:
    """What was done, or with ``check`` would be done. ``gpus``: as of ``vgpu.as_data``."""

    changed: bool
    steps: list[str]
    before: str
    after: str
    gpus: list[dict[str, t.Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def apply(entries: Sequence[Mapping[str, t.Any]], selectors: Sequence[Mapping[str, t.Any]], options: Options) -> Result:
    """Bring the GPUs that are named to their wished vGPUs; no other GPU is touched.

    ``entries`` as in ``vgpu_wish.parse_gpus``, ``selectors`` as in ``selectors.named_entries``. FleetError when the wish is refused (then
    nothing was changed) or when a step failed (then the message says which, and what was put back).
    """
    if not options.check:
        leases.check(options.state_dir, options.token)
    parse_gpus(entries)
    if not entries and not selectors:
        return Result(False, [], "", "")
    run = _Run(options)
    wishes = run.wishes(entries, selectors)
    if options.check:
        result = run.predicted(run.plan(wishes))
    else:
        with leases.exclusive(options.state_dir, "vgpu"):
            run.read_journal()
            result = run.carry_out(run.plan(wishes))
    result.notes += run.notes
    return result


def info(names: Sequence[str], options: Options) -> list[dict[str, t.Any]]:
    """GPUs with their vGPUs, and what each can have, as plain data; of all GPUs and parents that offer vGPUs when none is named."""
    look = Look(options)
    users = look.users()
    chosen = [look.find(name) for name in names] or [*look.gpus(), *look.others(), *look.parents()]
    seen = [look.observe(name, users, scheduler=True) for name in dict.fromkeys(chosen)]
    index = {name: number for number, name in enumerate(look.gpus())}
    return [
        {**as_data(gpu), "index": index.get(gpu.name), "total_vfs": gpu.total_vfs, "types": _offered(gpu)}
        for gpu in seen
        if names or gpu.places or gpu.vgpus
    ]


def _offered(gpu: Gpu) -> list[dict[str, t.Any]]:
    taken = {one.place for one in gpu.vgpus}
    found: dict[str, int] = dict.fromkeys(gpu.types, 0)
    for place in gpu.places:
        for name, offer in place.offers.items():
            free = place.many or place.name not in taken
            found[name] = found.get(name, 0) + (offer.available if free else 0)
    return [{"type": name, "available": found[name], "most": gpu.types[name].most if name in gpu.types else None} for name in sorted(found)]


def replay(options: Options, wait: float = 0.0) -> Result:
    """Bring the host's vGPUs back after a boot, and complete what was begun and not ended. ``wait``: seconds for the drivers.

    Each GPU is brought as far as it goes, whatever becomes of the others. One that has other vGPUs than those remembered is left alone.
    FleetError names what is missing in the end.
    """
    leases.check(options.state_dir, options.token)
    with leases.exclusive(options.state_dir, "vgpu"):
        run = _Run(options)
        run.read_journal()
        result = run.bring_back(wait)
    result.notes += run.notes
    return result


class _Run:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.look = Look(options)
        self.hands = Hands(self.look)
        self.journal = Journal(options.state_dir / JOURNAL)
        self.unfinished = Unfinished()
        self.notes: list[str] = []
        self.read_journal(repair=False)

    def read_journal(self, repair: bool = True) -> None:
        """What an earlier run left."""
        self.unfinished = self.journal.unfinished(repair)
        self.notes = [self.unfinished.words] if self.unfinished.words else []

    def wishes(self, entries: Sequence[Mapping[str, t.Any]], selectors: Sequence[Mapping[str, t.Any]]) -> list[Wish]:
        """One wish for each GPU that is named, by the GPU's address. FleetError when two mean the same."""
        if selectors:
            entries = [{**entry, "gpu": board.pci} for board, entry in named_entries(self.look.boards(), selectors)]
        wishes = parse_gpus(entries)
        found = [(wish, self.look.find(wish.gpu)) for wish in wishes]
        refuse_twins((wish.gpu, name) for wish, name in found)
        # What module mig makes is there by the time of a run; only check mode takes it for granted.
        return [replace(wish, gpu=name, instances=wish.instances if self.options.check else None) for wish, name in found]

    def plan(self, wishes: Sequence[Wish]) -> list[Plan]:
        """Plans for all GPUs, or one FleetError before anything is changed."""
        users = self.look.users()
        pairs = []
        for wish in wishes:
            gpu = self._with_frequency(self.look.observe(wish.gpu, users, wish.scheduler is not None))
            if self.options.check and self.options.cleared:
                gpu = replace(gpu, users=(), mig=None if gpu.mig is None else False, grounds=None)
            if wish.instances is not None:
                assumed = self.look.assume(gpu, wish.instances)
                pairs.append((assumed, wish if assumed is not gpu else replace(wish, instances=None)))
            else:
                pairs.append((gpu, wish))
        if not self.options.check:
            self.look.keep_names([gpu for gpu, _wish in pairs])
        plans = plan_all(pairs, self.options.limits or {})
        self._refuse_without_program(plans)
        return plans

    def _with_frequency(self, gpu: Gpu) -> Gpu:
        """nvidia-smi does not tell how often a round goes; what was set in this boot is in the papers."""
        if gpu.scheduler is None:
            return gpu
        try:
            line = VGPUS.read(self.options.state_dir).get(gpu.name) or {}
        except FleetError:
            return gpu
        kept = line.get("scheduler")
        if not kept or line.get("boot") != leases.boot_id() or kept[0] != gpu.scheduler.policy:
            return gpu
        return replace(gpu, scheduler=replace(gpu.scheduler, frequency_hz=kept[2]))

    def _refuse_without_program(self, plans: Sequence[Plan]) -> None:
        """That a program is missing must not show only when vGPUs are gone."""
        for action, program, option in (
            ("vfs", self.options.sriov_manage, "sriov_manage"),
            ("mixed", self.options.nvidia_smi, "nvidia_smi"),
            ("scheduler", self.options.nvidia_smi, "nvidia_smi"),
        ):
            asking = [plan.gpu.name for plan in plans if any(step.action == action for step in plan.steps)]
            if asking and shutil.which(program) is None:
                words = f"{asking[0]} needs the program {program}, which is not on this host; nothing was changed"
                raise FleetError(words, field=option, hint="install NVIDIA's vGPU host driver, or give the program's path")

    def predicted(self, plans: Sequence[Plan]) -> Result:
        """The result without a change."""
        steps = [text for plan in plans for text in plan.texts()]
        before, after = diff_text(plan.gpu for plan in plans), diff_text(plan.after for plan in plans)
        return Result(bool(steps), steps, before, after, [as_data(plan.after) for plan in plans])

    # What is done

    def carry_out(self, plans: Sequence[Plan]) -> Result:
        """All steps of all plans, in order. On failure what was recorded is put back and FleetError says so."""
        changing = [plan for plan in plans if plan.steps]
        if not changing:
            if self.unfinished.words is not None:
                self.journal.finish("the next wish was found to be true", self._elsewhere(plans))
            self._remember(plans, {plan.gpu.name: plan.gpu for plan in plans})
            return self.predicted(plans)
        texts = [text for plan in plans for text in plan.texts()]
        before = {plan.gpu.name: line_of(wish_to_return(plan.gpu)) for plan in changing}
        self.journal.begin(before, {plan.gpu.name: line_of(plan.wish) for plan in changing}, texts)
        done: list[str] = []
        touched: list[str] = []
        elsewhere = self._elsewhere(plans)
        try:
            for plan in changing:
                touched.append(plan.gpu.name)
                self.hands.carry_out(plan, partial(self._again, plan), done)
            seen = self._verify(plans)
        except leases.LeaseError as error:
            self.journal.finish(f"stopped: {error}", [*elsewhere, *touched])
            raise
        except FleetError as error:
            left, words = self._put_back({plan.gpu.name: plan.gpu for plan in plans}, touched, isinstance(error.__cause__, Stuck))
            text = "; ".join([str(error), *words])
            self.journal.finish(f"failed: {text}", [*elsewhere, *left])
            raise FleetError(text, hint=_RUN_AGAIN if left else None) from error
        self.journal.finish("done", elsewhere)
        self._remember(plans, {gpu.name: gpu for gpu in seen})
        return Result(bool(done), done, diff_text(plan.gpu for plan in plans), diff_text(seen), [as_data(gpu) for gpu in seen])

    def _again(self, plan: Plan) -> Plan:
        """The same plan, once the functions are on and show what they offer."""
        gpu = self._with_frequency(self.look.observe(plan.gpu.name, scheduler=plan.wish.scheduler is not None))
        self.look.keep_names([gpu])
        return plan_gpu(gpu, plan.wish, self.options.limits or {})

    def _elsewhere(self, plans: Sequence[Plan]) -> list[str]:
        """GPUs that an earlier run left half done and that are not meant now."""
        named = {plan.gpu.name for plan in plans}
        return [name for name in self.unfinished.wish if name not in named]

    def _verify(self, plans: Sequence[Plan]) -> list[Gpu]:
        """Look again: only what the kernel shows is done."""
        users = self.look.users()
        seen = []
        for plan in plans:
            gpu = self.look.observe(plan.gpu.name, users, plan.wish.scheduler is not None)
            if gpu.scheduler is not None and plan.wish.scheduler is not None:
                gpu = replace(gpu, scheduler=replace(gpu.scheduler, frequency_hz=plan.wish.scheduler.frequency_hz))
            left = plan_gpu(gpu, plan.wish, {}, judge=False).texts() if plan.steps else []
            if left:
                raise FleetError(f"the kernel took every step, and this is still to be done: {'; '.join(left)}")
            seen.append(replace(gpu, scheduler=plan.after.scheduler) if gpu.scheduler is not None else gpu)
        return seen

    def _put_back(self, gpus: Mapping[str, Gpu], touched: Sequence[str], stuck: bool) -> tuple[list[str], list[str]]:
        """Bring GPUs back to what was recorded, each as far as it goes: those that are not, and how it went in words."""
        words = []
        for name in reversed(touched):
            problems = self._bring(name, self._old(gpus[name]), [])
            if problems:
                words.append(f"{name} could not be put back: {'; '.join(problems)}")
        if words:
            return list(touched), words
        return list(touched) if stuck else [], ["what was there before was put back"]

    def _old(self, gpu: Gpu) -> Wish:
        """As it was before; of a GPU that an earlier run left half done, as it was before that one."""
        try:
            return wish_of_line(gpu.name, self.unfinished.before[gpu.name])
        except (KeyError, FleetError):
            return wish_to_return(gpu)

    def _bring(self, name: str, wish: Wish, done: list[str]) -> list[str]:
        """Bring a GPU to a wish as far as it goes: what is wrong in the end, nothing when all is well."""
        problems: list[str] = []
        for _attempt in range(_ATTEMPTS):
            try:
                plan = plan_gpu(self._with_frequency(self.look.observe(name, scheduler=wish.scheduler is not None)), wish, {}, judge=False)
            except leases.LeaseError:
                raise
            except FleetError as error:
                problems = [str(error)]
                continue
            if not plan.steps:
                return []
            problems = self.hands.try_each(plan, done)
        try:
            left = plan_gpu(self._with_frequency(self.look.observe(name, scheduler=wish.scheduler is not None)), wish, {}, judge=False)
        except FleetError as error:
            return list(dict.fromkeys([*problems, str(error)]))
        return list(dict.fromkeys(problems)) or left.texts() if left.steps else []

    # After a boot

    def bring_back(self, wait: float) -> Result:
        """Everything that is remembered or was begun."""
        try:
            lines = VGPUS.read(self.options.state_dir)
            problems = []
        except FleetError as error:
            lines, problems = {}, [f"what was remembered of the vGPUs is of no use ({error})"]
        begun = dict(self.unfinished.wish)
        wished = {name: line for name, line in lines.items() if name not in begun and isinstance(line, Mapping) and line.get("vgpus")}
        self._wait({**wished, **begun}, wait)
        done: list[str] = []
        before: list[Gpu] = []
        after: list[Gpu] = []
        left: list[str] = []
        for name in sorted({*wished, *begun}):
            try:
                self._refuse_stranger(name, lines.get(name) or {})
                wish = wish_of_line(name, begun.get(name) or wished[name])
                gpu = self.look.observe(name)
                if name not in begun:
                    self._refuse_others(gpu, wish)
                before.append(gpu)
                wrong = self._bring(name, wish, done)
                after.append(self.look.observe(name))
            except leases.LeaseError:
                raise
            except FleetError as error:
                wrong = [str(error)]
            if wrong:
                left.append(name)
                problems.append(f"{name} could not be brought back: {'; '.join(wrong)}")
        if begun or self.unfinished.words:
            self.journal.finish("; ".join(problems) or "done", [name for name in left if name in begun])
        if problems:
            raise FleetError("; ".join(problems))
        self._remember_boot(after)
        return Result(bool(done), done, diff_text(before), diff_text(after), [as_data(gpu) for gpu in after])

    def _wait(self, lines: Mapping[str, t.Any], seconds: float) -> None:
        """Until every GPU has its driver and every parent is there: a boot may still be loading them."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(self._ready(name) for name in lines):
            time.sleep(_POLL_SECONDS)

    def _ready(self, name: str) -> bool:
        if self.look.sysfs.has(*DEVICES, name):
            return self.look.sysfs.link(*DEVICES, name, "driver") is not None
        return name in self.look.parents()

    def _refuse_stranger(self, name: str, line: Mapping[str, t.Any]) -> None:
        """The address may have another card after a change of hardware; that one gets nothing."""
        # What is no GPU of NVIDIA's is known by its functions only, which no boot leaves.
        if not self.look.sysfs.has(*DEVICES, name):
            self.look.find(name)
        kept, now = line.get("identity") or {}, self._identity(name)
        wrong = [key for key, value in kept.items() if value is not None and now.get(key) not in (None, value)]
        if wrong:
            was, found = (", ".join(f"{key} {each[key]}" for key in wrong) for each in (kept, now))
            raise FleetError(f"another card is at this address now: {was} was, {found} is", hint="run module vgpu for the new card")

    def _refuse_others(self, gpu: Gpu, wish: Wish) -> None:
        plan = plan_gpu(gpu, wish, {}, judge=False)
        gone = [step.text for step in plan.steps if step.action == "remove"]
        if gone:
            raise FleetError(f"it has other vGPUs than those remembered ({'; '.join(gone)} would be needed), so it is left alone")

    # Papers

    def _identity(self, name: str) -> dict[str, str | None]:
        sysfs = self.look.sysfs
        return {
            "uuid": self.look.uuids().get(name),
            "vendor": sysfs.text(*DEVICES, name, "vendor"),
            "device": sysfs.text(*DEVICES, name, "device"),
        }

    def _remember(self, plans: Sequence[Plan], seen: Mapping[str, Gpu]) -> None:
        """Keep for the next boot what is there now."""
        try:
            known = VGPUS.read(self.options.state_dir)
        except FleetError:
            known = {}
        lines = {}
        for plan in plans:
            gpu, wish = seen[plan.gpu.name], plan.wish
            back = wish_to_return(gpu)
            vgpus = tuple(replace(one, params=one.params or None) for one in back.vgpus or ())
            here = replace(back, vgpus=vgpus, scheduler=None)
            line = line_of(replace(here, mixed=wish.mixed and bool(gpu.vgpus), scheduler=wish.scheduler, vfs=wish.vfs))
            old = known.get(gpu.name) or {}
            if wish.scheduler is None and gpu.vgpus:
                line["scheduler"] = old.get("scheduler")
            boot = leases.boot_id() if line["scheduler"] and line["scheduler"] != old.get("scheduler") else old.get("boot")
            lines[gpu.name] = {**line, "identity": self._identity(gpu.name), "boot": boot}
        note = VGPUS.keep(self.options.state_dir, lines)
        self.notes += [note] if note else []

    def _remember_boot(self, gpus: Sequence[Gpu]) -> None:
        """The schedulers that were set again belong to this boot."""
        known = VGPUS.read(self.options.state_dir)
        lines = {gpu.name: {**known[gpu.name], "boot": leases.boot_id()} for gpu in gpus if (known.get(gpu.name) or {}).get("scheduler")}
        if lines:
            VGPUS.keep(self.options.state_dir, lines)
