# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries the steps of a plan of vGPUs out, each proved by another look at what it wrote."""

from __future__ import annotations

import time
import typing as t
from collections.abc import Callable

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu import Gpu, Plan, Step
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_look import DEVICES, MDEVS, NONE, PARENTS, TYPES, Look
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import params_of, params_text

# The driver answers at once; its service may list what it can make a moment later.
LIST_SECONDS = 5.0
_POLL_SECONDS = 0.2


@t.final
class Hands:
    """Acts on one host's GPUs. Every write asks for the lease first."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._sysfs = look.sysfs

    def carry_out(self, plan: Plan, again: Callable[[], Plan], done: list[str]) -> None:
        """Every step in order; ``done`` grows by each. FleetError says which failed, with the kernel's or the program's word.

        ``again``: plans anew. What functions offer shows only when they are on, and so does what is made on them.
        """
        steps = list(plan.steps)
        while steps:
            step = steps.pop(0)
            self.act(plan.gpu, step, done)
            if step.action == "vfs" and step.on:
                self._wait_for_types(plan.gpu.name)
                made = [one for one in again().steps if one.action in ("create", "params")]
                steps = [*(one for one in steps if one.action in ("mixed", "scheduler")), *made]

    def try_each(self, plan: Plan, done: list[str]) -> list[str]:
        """As far as it goes, or until functions are on and there is more to plan: what failed, a line each."""
        problems = []
        for step in plan.steps:
            try:
                self.act(plan.gpu, step, done)
            except leases.LeaseError:
                raise
            except FleetError as error:
                problems.append(str(error))
                continue
            if step.action == "vfs" and step.on:
                self._wait_for_types(plan.gpu.name)
                break
        return problems

    def act(self, gpu: Gpu, step: Step, done: list[str]) -> None:
        """One step."""
        leases.check(self._look.options.state_dir, self._look.options.token)
        try:
            _ACTS[step.action](self, gpu, step)
        except FleetError as error:
            raise FleetError(f"{gpu.name}: {step.text}: {error}") from error
        done.append(f"{gpu.name}: {step.text}")

    # Functions, mode, scheduler

    def _switch(self, gpu: Gpu, step: Step) -> None:
        self._look.smi.functions(gpu.name, step.on)
        count = self._sysfs.number(*DEVICES, gpu.name, "sriov_numvfs") or 0
        if bool(count) != step.on:
            raise FleetError(f"sriov-manage ended well, and the kernel shows {count} virtual functions")

    def _wait_for_types(self, name: str) -> None:
        until = time.monotonic() + LIST_SECONDS
        while self._look.observe(name).framework is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def _mix(self, gpu: Gpu, step: Step) -> None:
        self._look.smi.set_mixed(gpu.name, step.on)
        if self._look.smi.mixed(gpu.name) is not step.on:
            raise FleetError("nvidia-smi ended well, and `nvidia-smi -q` shows another vGPU Heterogeneous Mode")

    def _schedule(self, gpu: Gpu, step: Step) -> None:
        if step.scheduler is None:
            raise FleetError("no policy is named")
        self._look.smi.set_scheduler(gpu.name, step.scheduler)
        seen = self._look.smi.scheduler(gpu.name)
        if seen is None or seen.policy != step.scheduler.policy:
            raise FleetError(f"nvidia-smi ended well, and `nvidia-smi vgpu -ss` shows {seen or 'no policy'}")
        if step.scheduler.slice_ms is not None and seen.slice_ms not in (None, step.scheduler.slice_ms):
            raise FleetError(f"nvidia-smi ended well, and `nvidia-smi vgpu -ss` shows a slice of {seen.slice_ms} ms")

    # vGPUs

    def _remove(self, _gpu: Gpu, step: Step) -> None:
        if step.uuid is not None:
            self._sysfs.write(*MDEVS, step.uuid, "remove", text="1", until=self._holder(step))
            if self._sysfs.has(*MDEVS, step.uuid):
                raise FleetError(f"mediated device {step.uuid} is still there")
            return
        self._sysfs.write(*DEVICES, step.place, "nvidia", "current_vgpu_type", text="0", until=self._holder(step))
        if self._look.current(step.place) not in NONE:
            raise FleetError(f"the kernel took it, and {step.place} still has type {self._look.current(step.place)}")

    def _create(self, gpu: Gpu, step: Step) -> None:
        if step.uuid is not None:
            ident = self._directory(step)
            self._sysfs.write(*PARENTS, step.place, TYPES, ident, "create", text=step.uuid)
            if self._sysfs.link(*MDEVS, step.uuid, "mdev_type") != ident:
                raise FleetError(f"the kernel took it, and there is no mediated device {step.uuid} of that type")
            return
        ident = self._number(gpu, step)
        self._sysfs.write(*DEVICES, step.place, "nvidia", "current_vgpu_type", text=ident)
        if self._look.current(step.place) != ident:
            raise FleetError(f"the kernel took it, and {step.place} has type {self._look.current(step.place) or 'none'}")

    def _directory(self, step: Step) -> str:
        for ident in self._sysfs.names(*PARENTS, step.place, TYPES):
            title = self._sysfs.text(*PARENTS, step.place, TYPES, ident, "name") or ident
            if step.type in (vgpu_types.short(title), ident):
                return ident
        raise FleetError(f"{step.place} has no type {step.type}")

    def _number(self, gpu: Gpu, step: Step) -> str:
        """The type's number on this function now: numbers differ from driver to driver, and the list from one moment to the next."""
        listed = self._look.creatable(step.place)
        for ident, title in listed.items():
            if vgpu_types.short(title) == step.type:
                self._look.keep_names([self._look.observe(gpu.name)])
                return ident
        offered = ", ".join(sorted({vgpu_types.short(title) for title in listed.values()}, key=vgpu_types.order)) or "nothing"
        raise FleetError(f"{step.place} does not offer it now; it offers {offered}")

    def _set(self, _gpu: Gpu, step: Step) -> None:
        where = (*MDEVS, step.uuid) if step.uuid is not None else (*DEVICES, step.place)
        wanted = step.params or ()
        self._sysfs.write(*where, "nvidia", "vgpu_params", text=params_text(wanted), until=self._holder(step))
        stored = params_of(self._sysfs.text(*where, "nvidia", "vgpu_params"))
        if stored != wanted:
            raise FleetError(f"the kernel took it, and the driver shows {params_text(stored).strip() or 'none'}")

    def _holder(self, step: Step) -> Callable[[], str]:
        """Who has to let go first; asked only when a write waits."""
        where = [*MDEVS, step.uuid] if step.uuid is not None else [*DEVICES, step.place]

        def words() -> str:
            who = self._look.users().of_vgpu(where, step.uuid or step.place)
            return f"{', '.join(who) or 'whoever has it open'} lets go of it"

        return words


_ACTS: dict[str, Callable[[Hands, Gpu, Step], None]] = {
    "vfs": Hands._switch,
    "mixed": Hands._mix,
    "scheduler": Hands._schedule,
    "remove": Hands._remove,
    "create": Hands._create,
    "params": Hands._set,
}
