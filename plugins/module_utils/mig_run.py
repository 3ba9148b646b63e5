# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries a MIG layout out on this host: observe the named GPUs, plan (``mig``), record, act, verify, and go back if a step fails.

The journal is written before the first step. It stays open for a GPU that is neither as wished nor as before, be it that the process died
or that an error lasts; the next run with the same wish, or :func:`restore`, brings such a GPU to its wish.
"""

from __future__ import annotations

import shutil
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import mig_state
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal, Unfinished
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import (
    Gpu,
    Plan,
    cut_after,
    diff_text,
    fits,
    plan_all,
    plan_gpu,
    wish_reached,
    wish_to_return,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_act import Hands
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_look import Look, Options, Scene
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_reset import Services, start_text, stop_text
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_wish import Wish, line_of, wish_of_line
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND, Mode, NvmlError

__all__ = ["Options", "Result", "apply", "base_lines", "restore"]

KNOWN_AFTER_APPLY = "(known after apply)"
# A way back is tried this often: what failed once may work when the rest is done.
_ATTEMPTS = 2
_RUN_AGAIN = "when the cause is gone, the next run with this layout, or the host's agent, completes the change"


@dataclass
class Result:
    """What was done, or with ``check`` would be done. ``pending``: ``[{gpu, reason}]``, GPUs whose wished mode is not in force.

    ``drain``: ``[{service, name, container, pids, slices}]``, who has to be stopped first; nothing was changed then.
    """

    changed: bool
    steps: list[str]
    before: str
    after: str
    pending: list[dict[str, str]] = field(default_factory=list)
    layout: list[dict[str, t.Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    drain: list[dict[str, t.Any]] = field(default_factory=list)


def apply(layout: Sequence[Mapping[str, t.Any]], selectors: Sequence[Mapping[str, t.Any]], options: Options) -> Result:
    """Bring the GPUs that ``layout`` and ``selectors`` name to their wished state; no other GPU is touched.

    ``layout`` as in ``mig_wish.parse_layout``, ``selectors`` as in ``selectors.resolve_selectors``. FleetError when the wish is refused
    (then nothing was changed) or when a step failed (then the message says which, and what was put back).
    """
    if not options.check:
        leases.check(options.state_dir, options.token)
    if not layout and not selectors:
        return Result(False, [], "", "")  # a host without GPUs has no NVML to ask
    with Nvml() as nvml:
        run = _Run(nvml, options)
        wishes = run.look.wishes(layout, selectors)
        plans = run.first_glance(wishes)
        true = not any(plan.texts() for plan in plans)
        if true and (options.check or not run.has_papers_to_write(plans)):
            result = run.predicted(plans)
        elif options.check:
            result = run.predicted(run.plan(wishes))
        else:
            with leases.exclusive(options.state_dir, "mig"):
                # what was seen before the lock may have changed under another writer
                run.read_journal()
                plans = run.glance(wishes)
                result = run.carry_out(run.plan(wishes)) if any(plan.texts() for plan in plans) else run.leave(plans)
    result.notes += run.notes()
    return result


def restore(options: Options) -> Result:
    """Bring the host back to what it remembers, and complete what was begun and not ended: after a boot, or when a cause is gone.

    The wish is ``layout.json``, overlaid with the wish of an open journal. Each GPU is brought as far as it goes, whatever becomes of the
    others; one that is not there is a note. No container engine is asked: during a boot none runs yet, and to ask would start it.
    FleetError names what is missing in the end.
    """
    if options.check:
        return _restore(options)
    leases.check(options.state_dir, options.token)
    with leases.exclusive(options.state_dir, "mig"):
        return _restore(options)


def _restore(options: Options) -> Result:
    notes: list[str] = []
    try:
        lines = mig_state.LAYOUT.read(options.state_dir)
    except FleetError as error:
        lines = {}
        notes.append(f"the remembered layout is of no use ({error})")
        if not options.check:
            notes.append(mig_state.LAYOUT.put_aside(options.state_dir))
    unfinished = Journal(options.state_dir / mig_state.JOURNAL).unfinished(repair=not options.check)
    lines.update(unfinished.wish)
    if unfinished.words is not None:
        notes.append(unfinished.words)
    if not lines and not unfinished.stopped:
        return Result(False, [], "", "", notes=notes)
    with Nvml() as nvml:
        run = _Run(nvml, options)
        wishes = run.still_there(lines, notes)
        result = run.predicted(run.glance(wishes)) if options.check else run.bring_back(wishes)
    result.notes += notes
    return result


def base_lines(uuids: Iterable[str]) -> dict[str, dict[str, t.Any]]:
    """How these GPUs are now, as lines of a plan's ``base`` by UUID (``plan_record.state_of``); those that are not there are left out.

    FleetError for a GPU that is there and does not answer.
    """
    lines: dict[str, dict[str, t.Any]] = {}
    wanted = list(uuids)
    if wanted:
        with Nvml() as nvml:
            look = Look(nvml, Options(Path()))
            for uuid in wanted:
                try:
                    nvml.find(uuid)
                except NvmlError as error:
                    if error.name in (NOT_FOUND, INVALID_ARGUMENT):
                        continue
                    raise FleetError(f"GPU {uuid} does not answer: {error.name} ({error.word})") from error
                gpu = look.observe(uuid)
                mig = gpu.mode is not None and gpu.mode.current
                lines[uuid] = {
                    "gpu": uuid,
                    "mig": mig,
                    "instances": [str(where) for where in sorted(one.where for one in gpu.slices)],
                }
    return lines


class _Run:
    """One session with NVML."""

    def __init__(self, nvml: Nvml, options: Options) -> None:
        self.nvml = nvml
        self.options = options
        self.journal = Journal(options.state_dir / mig_state.JOURNAL)
        self.look = Look(nvml, options)
        self.hands = Hands(self.look)
        self.services = Services(options.systemctl, options.driver_services, self.journal)
        self.unfinished = Unfinished()
        self._said: list[str] = []
        self.read_journal(repair=False)

    def read_journal(self, repair: bool = True) -> None:
        """What an earlier run left; by the time of the lock that may be another."""
        self.unfinished = self.journal.unfinished(repair)
        self._said = [self.unfinished.words] if self.unfinished.words else []

    def notes(self) -> list[str]:
        """What else is worth knowing."""
        return [*self.look.notes, *self._said]

    # What would be done

    def glance(self, wishes: Sequence[Wish]) -> list[Plan]:
        """Plans without a look at who uses what: enough to tell a wish that is impossible and one that is true."""
        return plan_all([(self.look.observe(wish.gpu), wish) for wish in wishes], self.options.reset, judge=False)

    def first_glance(self, wishes: Sequence[Wish]) -> list[Plan]:
        """As :meth:`glance`, while another run may be at work: an instance that goes away under one's eyes is no illness of the GPU.

        LockedError names that run.
        """
        try:
            return self.glance(wishes)
        except FleetError as error:
            if not isinstance(error.__cause__, NvmlError):
                raise
        if self.options.check:
            return self.glance(wishes)
        with leases.exclusive(self.options.state_dir, "mig"):
            return self.glance(wishes)

    def has_papers_to_write(self, plans: Sequence[Plan]) -> bool:
        """Whether a run that changes no GPU has to close an earlier one, or to remember something."""
        if self.unfinished.words is not None:
            return True
        return self.options.remember and not mig_state.LAYOUT.has(
            self.options.state_dir, self._lines(plans, {plan.gpu.uuid: plan.gpu for plan in plans})
        )

    def plan(self, wishes: Sequence[Wish]) -> list[Plan]:
        """Plans for all GPUs, or one FleetError before anything is changed."""
        scene = self.look.scene(self.services.running())
        pairs = [(self.look.observe(wish.gpu, scene), wish) for wish in wishes]
        plans = plan_all(pairs, self.options.reset, self.options.drain)
        self._refuse_without_program(plans)
        return plans

    def _refuse_without_program(self, plans: Sequence[Plan]) -> None:
        """A reset comes last when MIG goes off: that its program is missing must not show only when the slices are gone."""
        waiting = [plan.gpu.uuid for plan in plans if any(step.action == "reset" for step in plan.steps)]
        if waiting and shutil.which(self.options.nvidia_smi) is None:
            message = f"GPU {waiting[0]} needs a reset, and there is no program {self.options.nvidia_smi} on this host; nothing was changed"
            raise FleetError(message, field="nvidia_smi", hint="give its path, or write reset: false and reset the GPU or reboot the host")

    def _texts(self, plans: Sequence[Plan]) -> tuple[list[str], list[str]]:
        """All steps in words, and the services that are stopped for them; those that a run before left stopped are started, too."""
        texts = [text for plan in plans for text in plan.texts()]
        units = self.services.running() if any(plan.whole for plan in plans) else []
        again = dict.fromkeys([*self.unfinished.stopped, *units])
        return [*map(stop_text, units), *texts, *map(start_text, again)], units

    def predicted(self, plans: Sequence[Plan]) -> Result:
        """The result without a change: from what was observed, and what the steps lead to."""
        if any(plan.drain for plan in plans):
            return self._to_drain(plans)
        steps, _units = self._texts(plans)
        pending = [{"gpu": plan.gpu.uuid, "reason": plan.pending} for plan in plans if plan.pending is not None]
        return Result(bool(steps), steps, _diff(plan.gpu for plan in plans), _after(plans), pending, [_predicted(plan) for plan in plans])

    def _to_drain(self, plans: Sequence[Plan]) -> Result:
        """Nothing is done in this run; who has to be stopped before the next one."""
        entries: dict[str | None, dict[str, t.Any]] = {}
        for plan in plans:
            for one in plan.drain:
                who = one.holder
                new: dict[str, t.Any] = {"service": who.service, "name": who.name, "container": who.container, "pids": [], "slices": []}
                entry = entries.setdefault(who.container, new)
                entry["pids"] = sorted({*entry["pids"], *who.pids})
                entry["slices"] += [_place(one.gpu, where) for where in one.places]
        found = _diff(plan.gpu for plan in plans)
        drain = sorted(entries.values(), key=lambda entry: (entry["name"], entry["container"]))
        return Result(False, [], found, found, layout=[_layout(plan.gpu) for plan in plans], drain=drain)

    # What is done

    def leave(self, plans: Sequence[Plan]) -> Result:
        """Every wish is true (or waits for a reset that nobody allowed): only the papers are brought up to date."""
        result = self.predicted(plans)
        if self.unfinished.wish or self.unfinished.stopped:
            done: list[str] = []
            troubles = self.services.start(done, self.unfinished.stopped)
            self.journal.finish("the next wish was found to be true", self._elsewhere(plans), self.services.stopped)
            _raise(troubles)
            result.changed, result.steps = bool(done), done
        self._remember(plans, {plan.gpu.uuid: plan.gpu for plan in plans})
        return result

    def _elsewhere(self, plans: Iterable[Plan]) -> list[str]:
        """GPUs that an earlier run left half done and that are not meant now."""
        named = {plan.gpu.uuid for plan in plans}
        return [gpu for gpu in self.unfinished.wish if gpu not in named]

    def carry_out(self, plans: Sequence[Plan]) -> Result:
        """All steps of all plans, in order. On failure the recorded layout is put back and FleetError says so."""
        if any(plan.drain for plan in plans):
            return self._to_drain(plans)
        texts, units = self._texts(plans)
        changing = [plan for plan in plans if plan.texts()]
        self.journal.begin(_befores(changing), {plan.gpu.uuid: line_of(wish_reached(plan)) for plan in changing}, texts)
        done: list[str] = []
        pending: list[dict[str, str]] = []
        touched: list[str] = []
        ending = _Ending("done")
        try:
            ending = self._attempt(plans, units, done, pending, touched)
        finally:
            troubles = self.services.start(done, self.unfinished.stopped)
        self.journal.finish(ending.outcome, [*self._elsewhere(plans), *ending.left], self.services.stopped)
        if ending.error is not None:
            raise type(ending.error)("; ".join([ending.words, *troubles]), hint=ending.error.hint)
        self._remember(plans, {gpu.uuid: gpu for gpu in ending.seen})
        _raise(troubles)
        return Result(
            bool(done), done, _diff(plan.gpu for plan in plans), _diff(ending.seen), pending, [_layout(gpu) for gpu in ending.seen]
        )

    def _attempt(
        self, plans: Sequence[Plan], units: Sequence[str], done: list[str], pending: list[dict[str, str]], touched: list[str]
    ) -> _Ending:
        try:
            self.services.stop(units, done)
            for plan in plans:
                if plan.texts():
                    touched.append(plan.gpu.uuid)
                reason = self.hands.carry_out(plan, done)
                if reason is not None:
                    pending.append({"gpu": plan.gpu.uuid, "reason": reason})
            return _Ending("done", seen=self._verify(plans, pending))
        except leases.LeaseError as error:
            return _Ending(f"stopped: {error}", touched, error.message, error)
        except FleetError as error:
            # Of the GPUs named now, those that an earlier run broke go back with the others.
            broken = [plan.gpu.uuid for plan in plans if plan.gpu.uuid in self.unfinished.before and plan.gpu.uuid not in touched]
            left, words = self._put_back({plan.gpu.uuid: plan.gpu for plan in plans}, [*broken, *touched])
            text = "; ".join([str(error), *words])
            return _Ending(f"failed: {text}", left, text, FleetError(text, hint=_RUN_AGAIN if left else None))

    def _verify(self, plans: Sequence[Plan], pending: Sequence[Mapping[str, str]]) -> list[Gpu]:
        """Look again: only what NVML shows is done."""
        waiting = {entry["gpu"] for entry in pending}
        seen = []
        for plan in plans:
            gpu = self._see(plan.gpu.uuid)
            seen.append(gpu)
            if gpu.uuid in waiting or not plan.texts():
                continue
            left = plan_gpu(gpu, plan.wish, self.options.reset, judge=False).texts()
            if left:
                raise FleetError(f"NVML took every step, and this is still to be done: {'; '.join(left)}")
        return seen

    def _see(self, uuid: str) -> Gpu:
        """Observe, and once more if that fails: to undo what was done because one look at it failed would be wrong."""
        try:
            return self.look.observe(uuid)
        except FleetError:
            return self.look.observe(uuid)

    # Going back, and coming back

    def _put_back(self, gpus: Mapping[str, Gpu], touched: Sequence[str]) -> tuple[list[str], list[str]]:
        """Bring GPUs back to what was recorded, each as far as it goes. How it went in words, and all of them unless all are back:
        a change is undone as a whole, or it is unfinished."""
        words = []
        for uuid in reversed(touched):
            problems, _pending = self._bring(self._old_layout(gpus[uuid]), [], Scene())
            if problems:
                words.append(f"GPU {uuid} could not be put back: {'; '.join(problems)}")
        return (list(touched), words) if words else ([], ["the layout from before was put back"])

    def _old_layout(self, gpu: Gpu) -> Wish:
        """As it was before; of a GPU that an earlier change left half done, as it was before that one."""
        try:
            return wish_of_line(gpu.uuid, self.unfinished.before[gpu.uuid])
        except (KeyError, FleetError):
            return wish_to_return(gpu)

    def _bring(self, wish: Wish, done: list[str], scene: Scene) -> tuple[list[str], str | None]:
        """Bring a GPU to a wish as far as it goes. What is missing or too much in the end and why, and why its mode is pending."""
        reasons: list[str] = []
        reason: str | None = None
        for _attempt in range(_ATTEMPTS):
            try:
                plan = plan_gpu(self.look.observe(wish.gpu, scene), wish, self.options.reset, judge=False)
            except FleetError as error:
                reasons = [str(error)]
                continue
            if not plan.texts():
                return [], reason or plan.pending
            reasons, reason = self.hands.try_each(plan, done)
        return ([] if reason is not None and not reasons else self._differences(wish, reasons)), reason

    def _differences(self, wish: Wish, reasons: Sequence[str]) -> list[str]:
        """What keeps a GPU from being as wished; nothing when it is."""
        try:
            gpu = self._see(wish.gpu)
            plan = plan_gpu(gpu, wish, self.options.reset, judge=False)
        except FleetError as error:
            return list(dict.fromkeys([*reasons, str(error)]))
        if not plan.texts():
            return []
        standing = {one.where: one for one in gpu.slices}
        wanted = {Slice(one.start, one.profile): one for one in wish.slices or () if one.start is not None}
        missing = [str(where) for where, one in sorted(wanted.items()) if where not in standing or not fits(standing[where], one)]
        extra = [str(where) for where in sorted(standing) if where not in wanted]
        words = [f"it lacks {', '.join(missing)}"] if missing else []
        words += [f"it still has {', '.join(extra)}"] if extra else []
        return [*words, *dict.fromkeys(reasons)] or [f"still to be done: {'; '.join(plan.texts())}"]

    def still_there(self, lines: Mapping[str, t.Any], notes: list[str]) -> list[Wish]:
        """Wishes for the GPUs of these lines that answer; a note for each that does not."""
        wishes = []
        for uuid, line in sorted(lines.items()):
            try:
                self.nvml.find(uuid)
                wishes.append(wish_of_line(uuid, line))
            except NvmlError as error:
                if error.name not in (GPU_IS_LOST, NOT_FOUND, INVALID_ARGUMENT):
                    raise
                word = "is lost" if error.name == GPU_IS_LOST else "is not there"
                notes.append(f"GPU {uuid} {word} ({error.word}); its layout is kept for when it is back")
            except FleetError as error:
                notes.append(str(error))
        return wishes

    def bring_back(self, wishes: Sequence[Wish]) -> Result:
        """Each GPU as far as it goes. FleetError names what is missing in the end, when every GPU had its turn."""
        scene = self.look.scene(self.services.running(), engine=False)
        before: list[Gpu] = []
        plans: list[Plan] = []
        problems: list[str] = []
        for wish in wishes:
            try:
                gpu = self.look.observe(wish.gpu, scene)
                before.append(gpu)
                plans.append(plan_gpu(gpu, wish, self.options.reset, judge=False))
            except FleetError as error:
                problems.append(str(error))
        done: list[str] = []
        pending: list[dict[str, str]] = []
        left = self._elsewhere(plans)
        changing = [plan for plan in plans if plan.texts()]
        if not changing and not self.unfinished.wish and not self.unfinished.stopped:
            _raise(problems)
            return self.predicted(plans)
        texts, units = self._texts(plans)
        self.journal.begin(_befores(changing), {plan.gpu.uuid: line_of(plan.wish) for plan in changing}, texts)
        try:
            self.services.stop(units, done)
            for plan in plans:
                wrong, reason = self._bring(plan.wish, done, scene)
                if wrong:
                    left.append(plan.gpu.uuid)
                    problems.append(f"GPU {plan.gpu.uuid} could not be brought back: {'; '.join(wrong)}")
                elif reason is not None:
                    pending.append({"gpu": plan.gpu.uuid, "reason": reason})
        finally:
            troubles = self.services.start(done, self.unfinished.stopped, block=False)
        self.journal.finish("; ".join(problems) or "done", left, self.services.stopped)
        back = [plan for plan in plans if plan.gpu.uuid not in left]
        seen = [self._see(plan.gpu.uuid) for plan in back]
        self._remember(back, {gpu.uuid: gpu for gpu in seen})
        _raise([*problems, *troubles])
        return Result(bool(done), done, _diff(before), _diff(seen), pending, [_layout(gpu) for gpu in seen])

    def _remember(self, plans: Sequence[Plan], seen: Mapping[str, Gpu]) -> None:
        """Keep for the next boot what is now, or will be when a mode that waits is in force."""
        if self.options.remember:
            note = mig_state.LAYOUT.keep(self.options.state_dir, self._lines(plans, seen))
            self._said += [note] if note else []

    def _lines(self, plans: Sequence[Plan], seen: Mapping[str, Gpu]) -> dict[str, t.Any]:
        lines = {}
        for plan in plans:
            gpu = seen[plan.gpu.uuid]
            if gpu.mode is not None:
                in_force = gpu.mode.current == plan.wish.mig
                wish = wish_to_return(gpu) if in_force else wish_reached(plan)
                lines[gpu.uuid] = line_of(replace(wish, temporary=plan.wish.temporary))
        return lines


@dataclass
class _Ending:
    """How the steps went: the journal's word, GPUs that are neither as wished nor as before, the error if there was one, and the GPUs."""

    outcome: str
    left: Sequence[str] = ()
    words: str = ""
    error: FleetError | None = None
    seen: Sequence[Gpu] = ()


def _raise(problems: Sequence[str]) -> None:
    if problems:
        raise FleetError("; ".join(problems))


def _befores(plans: Iterable[Plan]) -> dict[str, t.Any]:
    """What to go back to, for the journal."""
    lines = {}
    for plan in plans:
        mode = t.cast(Mode, plan.gpu.mode)
        lines[plan.gpu.uuid] = {**line_of(wish_to_return(plan.gpu)), "pending": mode.pending}
    return lines


def _place(gpu: str, where: Slice | None) -> dict[str, t.Any]:
    return {"gpu": gpu} if where is None else {"gpu": gpu, "profile": where.profile, "start": where.start}


def _diff(gpus: Iterable[Gpu]) -> str:
    return diff_text((gpu.uuid, gpu.mode, [(one.where, one.cut) for one in gpu.slices]) for gpu in gpus)


def _after(plans: Sequence[Plan]) -> str:
    def slices(plan: Plan) -> list[tuple[Slice, tuple[int, ...] | None]]:
        wanted = {Slice(one.start, one.profile): one for one in plan.target if one.start is not None}
        return [(where, cut_after(plan, wanted[where])) for where in plan.after]

    return diff_text((plan.gpu.uuid, plan.mode, slices(plan)) for plan in plans)


def _layout(gpu: Gpu) -> dict[str, t.Any]:
    """A GPU in the result: its mode and slices as they are, with the MIG UUIDs, which may have changed."""
    instances = [{"profile": one.where.profile, "start": one.where.start, "uuid": one.uuid} for one in gpu.slices]
    return _entry(gpu, gpu.mode, instances)


def _predicted(plan: Plan) -> dict[str, t.Any]:
    gone = {step.where for step in plan.steps if step.action in ("destroy", "strip")}
    known = {one.where: one.uuid for one in plan.gpu.slices if one.where not in gone}
    instances = [{"profile": where.profile, "start": where.start, "uuid": known.get(where) or KNOWN_AFTER_APPLY} for where in plan.after]
    return _entry(plan.gpu, plan.mode, instances)


def _entry(gpu: Gpu, mode: Mode | None, instances: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    modes = {"mig": None, "pending": None} if mode is None else {"mig": mode.current, "pending": mode.pending}
    return {"gpu": gpu.uuid, "pci": gpu.pci, **modes, "instances": instances}
