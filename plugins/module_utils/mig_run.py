# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries a MIG layout out on this host: observe the named GPUs, plan (``mig``), record, act, verify, and go back if a step fails."""

from __future__ import annotations

import shutil
import subprocess
import typing as t
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Slice, find_profile
from ansible_collections.gpuops.fleet.plugins.module_utils.holders import OPEN_FILE, OpenFile, merge, open_files
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import (
    RESET_REQUIRED,
    Gpu,
    Plan,
    Standing,
    Step,
    Wish,
    diff_text,
    parse_layout,
    plan_all,
    refuse_twins,
    wish_to_return,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import (
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    SUCCESS,
    Nvml,
)
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import GpuInstance, Handle, Mode, NvmlError
from ansible_collections.gpuops.fleet.plugins.module_utils.selectors import Board, resolve_selectors

KNOWN_AFTER_APPLY = "(known after apply)"
# nvidia-smi -r takes a few seconds on one board. What hangs longer will not come back by waiting.
RESET_SECONDS = 120
# Keeps every device file open and gives way to mode changes and resets (nvidia-persistenced(1)).
_HARMLESS = ("nvidia-persistenced",)


@dataclass(frozen=True)
class Options:
    """What a run may do and where its files are. ``token``: of the lease that the caller holds. ``nvidia_smi``: name or path."""

    state_dir: Path
    proc_root: Path = Path("/proc")
    nvidia_smi: str = "nvidia-smi"
    reset: bool = False
    token: str | None = None
    check: bool = False


@dataclass
class Result:
    """What was done, or with ``check`` would be done. ``pending``: ``[{gpu, reason}]``, GPUs whose wished mode is not in force."""

    changed: bool
    steps: list[str]
    before: str
    after: str
    pending: list[dict[str, str]] = field(default_factory=list)
    layout: list[dict[str, t.Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def apply(layout: Sequence[Mapping[str, t.Any]], selectors: Sequence[Mapping[str, t.Any]], options: Options) -> Result:
    """Bring the GPUs that ``layout`` and ``selectors`` name to their wished state; no other GPU is touched.

    ``layout`` as in ``mig.parse_layout``, ``selectors`` as in ``selectors.resolve_selectors``. FleetError when the wish is refused
    (then nothing was changed) or when a step failed (then the message says which, and what was put back).
    """
    if not options.check:
        leases.check(options.state_dir, options.token)
    journal = Journal(options.state_dir / "mig-journal.json")
    unfinished = journal.unfinished()
    if not layout and not selectors:
        return Result(False, [], "", "")  # a host without GPUs has no NVML to ask
    with Nvml() as nvml:
        run = _Run(nvml, options)
        wishes = run.wishes(layout, selectors)
        plans = run.plan(wishes, thorough=False)
        if not any(plan.texts() for plan in plans):
            result = run.predicted(plans)
            if unfinished and not options.check:
                journal.close("the next wish was found to be true")
        elif options.check:
            result = run.predicted(run.plan(wishes, thorough=True))
        else:
            with leases.exclusive(options.state_dir, "mig"):
                # what was seen before the lock may have changed under another writer
                result = run.carry_out(run.plan(wishes, thorough=True), journal)
    result.notes += [*run.notes, *([unfinished] if unfinished else [])]
    return result


def base_lines(uuids: Iterable[str]) -> dict[str, dict[str, t.Any]]:
    """How these GPUs are now, as lines of a plan's ``base`` by UUID (``plan_record.state_of``); those that are not there are left out.

    FleetError for a GPU that is there and does not answer.
    """
    lines: dict[str, dict[str, t.Any]] = {}
    wanted = list(uuids)
    if wanted:
        with Nvml() as nvml:
            run = _Run(nvml, Options(Path()))
            for uuid in wanted:
                try:
                    nvml.find(uuid)
                except NvmlError as error:
                    if error.name in (NOT_FOUND, INVALID_ARGUMENT):
                        continue
                    raise FleetError(f"GPU {uuid} does not answer: {error.name} ({error.word})") from error
                gpu = run.observe(uuid)
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
        self.notes: list[str] = []
        self._like: dict[str, Handle] = {}  # board name: a GPU whose geometry was read in this session

    # Which GPUs

    def wishes(self, layout: Sequence[Mapping[str, t.Any]], selectors: Sequence[Mapping[str, t.Any]]) -> list[Wish]:
        """Every wish with the UUID of its GPU. FleetError for a GPU that is not there, is lost, or is named twice."""
        chosen = self._chosen(selectors) if selectors else []
        named = [(wish, self._uuid(wish.gpu)) for wish in parse_layout([*layout, *chosen])]
        refuse_twins((wish.gpu, uuid) for wish, uuid in named)
        return [Wish(uuid, wish.mig, wish.slices, wish.source) for wish, uuid in named]

    def _chosen(self, selectors: Sequence[Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
        """What the selectors wish. FleetError as of ``resolve_selectors``, but a named GPU that is lost is said to be lost."""
        try:
            return resolve_selectors(self._boards(selectors), selectors)
        except FleetError:
            for selector in selectors:
                for name in selector["devices"] if selector["devices"] != "all" else ():
                    try:
                        self._uuid(str(name))
                    except FleetError as error:
                        if isinstance(error.__cause__, NvmlError) and error.__cause__.name == GPU_IS_LOST:
                            raise FleetError(error.message, file=selector.get("source"), field="devices", hint=error.hint) from error
            raise

    def _boards(self, selectors: Sequence[Mapping[str, t.Any]]) -> list[Board]:
        """All GPUs that answer, for selectors: those that are lost can be wished nothing, and are not in the way of others."""
        boards = []
        for found in self.nvml.devices():
            if found.error is not None and any(selector["devices"] == "all" for selector in selectors):
                self.notes.append(f"GPU {found.index} does not answer ({found.error.word}); devices: all passes over it")
            if found.error is None:
                pci = self.nvml.pci(found.handle)
                ids = (int(pci.device_id, 16), int(pci.subsystem_id, 16))
                has_mig = self.nvml.mig_mode(found.handle) is not None
                boards.append(Board(found.index, self.nvml.uuid(found.handle), pci.address, *ids, has_mig))
        return boards

    def _uuid(self, name: str) -> str:
        try:
            uuid = self.nvml.uuid(self.nvml.find(name))
        except NvmlError as error:
            if error.name == GPU_IS_LOST:
                hint = "look for its XID in the kernel's log"
                raise FleetError(f"GPU {name} is lost ({error.word}); nothing was changed", hint=hint) from error
            if error.name not in (NOT_FOUND, INVALID_ARGUMENT):
                raise
            uuid = self._spelt(name)
        if not uuid.startswith("GPU-"):
            raise FleetError(f"{name} is a slice; nothing was changed", hint="name the GPU that it is a part of")
        return uuid

    def _spelt(self, name: str) -> str:
        """A UUID in other letters than NVML's own. FleetError names the GPUs that there are."""
        known: list[str] = []
        for found in self.nvml.devices():
            if found.error is not None:
                known.append(f"{found.index} ({found.error.word})")
                continue
            uuid = self.nvml.uuid(found.handle)
            if uuid.lower() == name.lower():
                return uuid
            known.append(f"{found.index} ({self.nvml.pci(found.handle).address}, {uuid})")
        hint = f"GPUs of this host: {', '.join(known) or 'none'}"
        raise FleetError(f"there is no GPU {name} on this host; nothing was changed", hint=hint)

    # How they are

    def observe(self, uuid: str, files: Sequence[OpenFile] = ()) -> Gpu:
        """The GPU as it is at this moment, with whoever uses it. FleetError names a GPU that does not answer.

        ``files``: open device files of the whole host, when they were read.
        """
        try:
            return self._observe(self.nvml.find(uuid), uuid, files)
        except NvmlError as error:
            raise FleetError(f"GPU {uuid} does not answer: {error.name} ({error.word}) from {error.call}") from error

    def _observe(self, handle: Handle, uuid: str, files: Sequence[OpenFile]) -> Gpu:
        mode = self.nvml.mig_mode(handle)
        pci, name = self.nvml.pci(handle).address, self.nvml.name(handle)
        if mode is None:
            return Gpu(uuid, pci, name, mode)
        geometry = self._geometry(handle, name)
        instances = self.nvml.gpu_instances(handle) if mode.current else []
        minor = self.nvml.minor(handle) if files else None
        users = merge(str(self.options.proc_root), self.nvml.processes(handle), [one for one in files if one.minor == minor])
        slices = tuple(_standing(one, [user for user in users if _place(user) == one.id]) for one in instances)
        outside = [user for user in users if _place(user) not in {one.id for one in instances}]
        return Gpu(
            uuid,
            pci,
            name,
            mode,
            resetless=self.nvml.resetless(handle),
            geometry=geometry,
            slices=slices,
            holders=tuple(_words(user) for user in outside if user["kind"] != OPEN_FILE),
            openers=tuple(_words(user) for user in outside if user["kind"] == OPEN_FILE and user["process"] not in _HARMLESS),
        )

    def _geometry(self, handle: Handle, name: str) -> Geometry | None:
        """What the board can be cut into; boards of one name share the many calls that it takes to read it, if they agree."""
        if name in self._like:
            self.nvml.share_profiles(handle, self._like[name])
        geometry = self.nvml.geometry(handle)
        if geometry is not None:
            self._like.setdefault(name, handle)
        return geometry

    def plan(self, wishes: Sequence[Wish], thorough: bool) -> list[Plan]:
        """Plans for all GPUs, or one FleetError before anything is changed. ``thorough``: look for open device files too."""
        files = self._open_files() if thorough else []
        plans = plan_all([(self.observe(wish.gpu, files), wish) for wish in wishes], self.options.reset)
        self._refuse_without_program(plans)
        return plans

    def _refuse_without_program(self, plans: Sequence[Plan]) -> None:
        """A reset comes last when MIG goes off: that its program is missing must not show only when the slices are gone."""
        waiting = [plan.gpu.uuid for plan in plans if any(step.action == "reset" for step in plan.steps)]
        if waiting and shutil.which(self.options.nvidia_smi) is None:
            message = f"GPU {waiting[0]} needs a reset, and there is no program {self.options.nvidia_smi} on this host; nothing was changed"
            raise FleetError(message, field="nvidia_smi", hint="give its path, or write reset: false and reset the GPU or reboot the host")

    def _open_files(self) -> list[OpenFile]:
        try:
            return open_files(str(self.options.proc_root))
        except OSError as error:
            message = f"cannot see who has a GPU open, for {error.filename} cannot be read ({error.strerror}); nothing was changed"
            raise FleetError(message, field="proc_root") from error

    # What would be done

    def predicted(self, plans: Sequence[Plan]) -> Result:
        """The result without a change: from what was observed, and what the steps lead to."""
        steps = [text for plan in plans for text in plan.texts()]
        pending = [{"gpu": plan.gpu.uuid, "reason": plan.pending} for plan in plans if plan.pending is not None]
        return Result(bool(steps), steps, _diff(plan.gpu for plan in plans), _after(plans), pending, [_predicted(plan) for plan in plans])

    # What is done

    def carry_out(self, plans: Sequence[Plan], journal: Journal) -> Result:
        """All steps of all plans, in order. On failure the recorded layout is put back and FleetError says so."""
        planned = [text for plan in plans for text in plan.texts()]
        before = {plan.gpu.uuid: _recorded(plan.gpu) for plan in plans if plan.texts()}
        journal.open(before, planned)
        done: list[str] = []
        touched: list[Gpu] = []
        pending: list[dict[str, str]] = []
        try:
            for plan in plans:
                if plan.texts():
                    touched.append(plan.gpu)
                reason = self._carry_out(plan, done)
                if reason is not None:
                    pending.append({"gpu": plan.gpu.uuid, "reason": reason})
            self._verify(plans, pending)
        except leases.LeaseError as error:
            journal.close(f"stopped: {error}")
            raise
        except FleetError as error:
            outcome = self._put_back(touched)
            journal.close(f"failed: {error}; {outcome}")
            raise FleetError(f"{error}; {outcome}") from error
        journal.close("done")
        seen = [self.observe(plan.gpu.uuid) for plan in plans]
        return Result(bool(done), done, _diff(plan.gpu for plan in plans), _diff(seen), pending, [_layout(gpu) for gpu in seen])

    def _carry_out(self, plan: Plan, done: list[str]) -> str | None:
        """One GPU's steps; why its mode is pending, None when it is in force."""
        reason: str | None = None
        instances: dict[Slice, GpuInstance] | None = None
        for step in plan.steps:
            leases.check(self.options.state_dir, self.options.token)
            try:
                if step.action == "mode":
                    reason = self._set_mode(step, plan)
                elif step.action == "reset":
                    self._reset(plan)
                    reason = None
                else:
                    if instances is None:
                        instances = self._instances(step.gpu)
                    self._act(step, instances)
            except FleetError as error:
                words = f"{error.name} ({error.word}) from {error.call}" if isinstance(error, NvmlError) else str(error)
                raise FleetError(f"step {len(done) + 1} failed: {step.text}: {words}") from error
            done.append(step.text)
            if reason is not None and not any(later.action == "reset" for later in plan.steps):
                break
        return self._go_on(plan, reason, done)

    def _go_on(self, plan: Plan, reason: str | None, done: list[str]) -> str | None:
        """What could not be planned before: a mode that came into force without the reset that such boards may need, or a
        driver that shows the board's geometry only now."""
        if reason is None and (plan.pending is not None or plan.later):
            again = plan_all([(self.observe(plan.gpu.uuid), plan.wish)], self.options.reset)[0]
            return self._carry_out(again, done) if again.steps else again.pending
        return reason

    def _instances(self, uuid: str) -> dict[Slice, GpuInstance]:
        return {Slice(one.start, one.profile): one for one in self.nvml.gpu_instances(self.nvml.find(uuid))}

    def _set_mode(self, step: Step, plan: Plan) -> str | None:
        """Why the mode is not in force after the call; NVML returns success in any case and says so only by the activation status."""
        status = self.nvml.set_mig_mode(self.nvml.find(step.gpu), step.mig)
        mode = self.nvml.mig_mode(self.nvml.find(step.gpu))
        if mode is not None and mode.current == step.mig:
            return None
        if mode is None or mode.pending != step.mig:
            raise FleetError(f"the driver answers {status} and the mode is not even pending")
        if status in (SUCCESS, "NVML_ERROR_RESET_REQUIRED"):
            return RESET_REQUIRED if not plan.gpu.resetless else f"{RESET_REQUIRED}, though this kind of board should need none"
        return f"{RESET_REQUIRED}, and something uses it ({status})"

    def _reset(self, plan: Plan) -> None:
        """Reset exactly this GPU. Our own session would count as a user of it, so it is closed meanwhile."""
        command = [self.options.nvidia_smi, "-r", "-i", plan.gpu.pci]
        self.nvml.__exit__()
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RESET_SECONDS)
            words, code = " ".join((ended.stderr or ended.stdout).split()), ended.returncode
        except OSError as error:
            words, code = f"{error.strerror}", -1
        except subprocess.TimeoutExpired:
            words, code = f"no end after {RESET_SECONDS} s", -1
        self._like.clear()
        self.nvml.__enter__()
        mode = self.nvml.mig_mode(self.nvml.find(plan.gpu.uuid))
        if code != 0 or mode is None or mode.current != plan.wish.mig:
            raise FleetError(f"{' '.join(command)} did not bring the mode into force: {words or 'no word'}")

    def _act(self, step: Step, instances: dict[Slice, GpuInstance]) -> None:
        where = t.cast(Slice, step.where)
        if step.action == "create":
            instance = self._create(step, where)
            instances[where] = instance
            self._create_compute(instance, step.compute)
            return
        if where not in instances:
            raise FleetError("it is not there any more; something else changes this GPU")
        instance = instances[where]
        if step.action == "compute":
            self._create_compute(instance, step.compute)
            return
        for compute in instance.compute_instances:
            self.nvml.destroy_compute_instance(compute)
        if step.action == "destroy":
            self.nvml.destroy_gpu_instance(instance)
            del instances[where]

    def _create(self, step: Step, where: Slice) -> GpuInstance:
        handle = self.nvml.find(step.gpu)
        geometry = self.nvml.geometry(handle)
        if geometry is None:
            raise FleetError("the driver shows no MIG profile of this board")
        profile = find_profile(geometry, where.profile)
        return self.nvml.create_gpu_instance(handle, profile.id, where.start, profile.size)

    def _create_compute(self, instance: GpuInstance, wanted: tuple[int, ...] | None) -> None:
        if wanted is None:
            self.nvml.create_compute_instance(instance)
            return
        known = {profile.id: profile for profile in self.nvml.compute_profiles(instance)}
        for ident in wanted:
            self.nvml.create_compute_instance(instance, known[ident])

    def _verify(self, plans: Sequence[Plan], pending: Sequence[Mapping[str, str]]) -> None:
        """Look again: only what NVML shows is done."""
        waiting = {entry["gpu"] for entry in pending}
        for plan in plans:
            if plan.gpu.uuid in waiting or not plan.texts():
                continue
            left = plan_all([(self.observe(plan.gpu.uuid), plan.wish)], self.options.reset)[0].texts()
            if left:
                raise FleetError(f"NVML took every step, and this is still to be done: {'; '.join(left)}")

    def _put_back(self, touched: Sequence[Gpu]) -> str:
        """Bring GPUs back to what was recorded; in words how that went. The next GPU is put back even when one cannot be."""
        failed = []
        for gpu in reversed(touched):
            try:
                reason = self._return(gpu)
            except FleetError as error:
                reason = str(error)
            if reason is not None:
                failed.append(f"GPU {gpu.uuid} could not be put back: {reason}")
        return "; ".join(failed) or "the layout from before was put back"

    def _return(self, gpu: Gpu) -> str | None:
        wish = wish_to_return(gpu)
        plan = plan_all([(self.observe(gpu.uuid), wish)], self.options.reset)[0]
        return self._carry_out(plan, [])


def _recorded(gpu: Gpu) -> dict[str, t.Any]:
    mode = t.cast(Mode, gpu.mode)
    slices = [{"slice": str(one.where), "compute": list(one.compute)} for one in gpu.slices]
    return {"mig": mode.current, "pending": mode.pending, "instances": slices}


def _diff(gpus: Iterable[Gpu]) -> str:
    return diff_text((gpu.uuid, gpu.mode, [(one.where, bool(one.compute)) for one in gpu.slices]) for gpu in gpus)


def _after(plans: Sequence[Plan]) -> str:
    def slices(plan: Plan) -> list[tuple[Slice, bool]]:
        made = {step.where for step in plan.steps if step.action in ("create", "compute")}
        usable = made | {one.where for one in plan.gpu.slices if one.compute}
        return [(where, where in usable) for where in plan.after]

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


def _standing(instance: GpuInstance, users: Iterable[Mapping[str, t.Any]]) -> Standing:
    computes = instance.compute_instances
    where = Slice(instance.start, instance.profile)
    ids = tuple(compute.profile_id for compute in computes)
    return Standing(where, ids, tuple(_words(user) for user in users), computes[0].uuid if computes else None)


def _place(holder: Mapping[str, t.Any]) -> int | None:
    return None if holder["slice"] is None else holder["slice"]["gi"]


def _words(holder: Mapping[str, t.Any]) -> str:
    return f"process {holder['pid']} ({holder['process'] or 'unknown program'})"
