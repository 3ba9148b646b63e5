# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries the steps of a plan out through NVML, one by one, with the lease checked before each."""

from __future__ import annotations

import typing as t
from collections import Counter

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, find_profile
from ansible_collections.gpuops.fleet.plugins.module_utils.mig import GUEST_REBOOT, RESET_REQUIRED, Plan, Step, in_the_way, plan_gpu
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_look import Look
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_reset import reset_gpu
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import REV2_CI, SUCCESS, ComputeInstanceProfile, GpuInstance, NvmlError

_GUESTS = ("passthrough", "vgpu")


@t.final
class Hands:
    """Hands of one session with NVML."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.nvml = look.nvml
        self.options = look.options
        self._instances: dict[str, dict[Slice, GpuInstance]] = {}  # of each GPU, read once for all its steps

    def carry_out(self, plan: Plan, done: list[str]) -> str | None:
        """One GPU's steps; why its mode is pending, None when it is in force. FleetError names the step that failed."""
        reason: str | None = None
        self._instances.clear()
        for step in plan.steps:
            leases.check(self.options.state_dir, self.options.token)
            try:
                reason = self._take(step, plan, reason)
            except FleetError as error:
                raise FleetError(f"step {len(done) + 1} failed: {step.text}: {_words(error)}") from error
            if step.action == "reset" and reason is not None:
                break  # it cannot be reset here, and nothing else can be done before the guest reboots
            done.append(step.text)
            if reason is not None and not any(later.action == "reset" for later in plan.steps):
                break
        return self._go_on(plan, reason, done)

    def try_each(self, plan: Plan, done: list[str]) -> tuple[list[str], str | None]:
        """One GPU's steps, each whatever became of the others, and none that needs what is in use.

        What failed and why, and why a mode is pending.
        """
        failed: list[str] = []
        reason: str | None = None
        self._instances.clear()
        for step in plan.steps:
            leases.check(self.options.state_dir, self.options.token)
            trouble: str | None = None
            users = [holder.text for _where, holders in in_the_way(plan.gpu, [step]) for holder in holders]
            if users:
                trouble = f"it is in use by {', '.join(users)}"
            else:
                try:
                    reason = self._take(step, plan, reason)
                except FleetError as error:
                    trouble = _words(error)
                    self._instances.clear()
            if trouble is not None:
                failed.append(f"{step.text.partition(': ')[2]}: {trouble}")
                if step.action in ("mode", "reset"):
                    break  # no slice can be made in the wrong mode
                continue
            if step.action == "reset" and reason is not None:
                break
            done.append(step.text)
            if reason is not None and not any(later.action == "reset" for later in plan.steps):
                break
        return failed, reason

    def _go_on(self, plan: Plan, reason: str | None, done: list[str]) -> str | None:
        """What could not be planned before: a mode that came into force without the reset that such boards may need, or a
        driver that shows the board's geometry only now."""
        if reason is None and (plan.pending is not None or plan.later):
            again = plan_gpu(self.look.observe(plan.gpu.uuid), plan.wish, self.options.reset)
            return self.carry_out(again, done) if again.steps else again.pending
        return reason

    def _take(self, step: Step, plan: Plan, reason: str | None) -> str | None:
        """One step; why the GPU's mode is pending after it."""
        if step.action == "mode":
            return self._set_mode(step, plan)
        if step.action == "reset":
            return self._reset(plan)
        self._act(step)
        return reason

    def _set_mode(self, step: Step, plan: Plan) -> str | None:
        """Why the mode is not in force after the call; NVML returns success in any case and says so only by the activation status."""
        status = self.nvml.set_mig_mode(self.nvml.find(step.gpu), step.mig)
        mode = self.nvml.mig_mode(self.nvml.find(step.gpu))
        if mode is not None and mode.current == step.mig:
            return None
        if mode is None or mode.pending != step.mig:
            raise FleetError(f"the driver answers {status} and the mode is not even pending")
        if not plan.gpu.resettable:
            return GUEST_REBOOT
        if status in (SUCCESS, "NVML_ERROR_RESET_REQUIRED"):
            return RESET_REQUIRED if not plan.gpu.resetless else f"{RESET_REQUIRED}, though this kind of board should need none"
        return f"{RESET_REQUIRED}, and something uses it ({status})"

    def _reset(self, plan: Plan) -> str | None:
        """Reset exactly this GPU; why its mode still waits when this virtual machine cannot. Our own session is closed meanwhile."""
        guest = self.nvml.virtualization(self.nvml.find(plan.gpu.uuid)) in _GUESTS
        self.nvml.__exit__()
        ended = reset_gpu(self.options.nvidia_smi, plan.gpu.pci)
        self.look.forget()
        self.nvml.__enter__()
        mode = self.nvml.mig_mode(self.nvml.find(plan.gpu.uuid))
        if ended.ok and mode is not None and mode.current == plan.wish.mig:
            return None
        if ended.unsupported and guest:
            return f"{GUEST_REBOOT} ({ended.words})"
        raise FleetError(f"{ended.command} did not bring the mode into force: {ended.words}")

    # Slices

    def _act(self, step: Step) -> None:
        where = t.cast(Slice, step.where)
        if step.action == "create":
            self._create_compute(self._create(step, where), step)
            return
        if step.gpu not in self._instances:
            instances = self.nvml.gpu_instances(self.nvml.find(step.gpu))
            self._instances[step.gpu] = {Slice(one.start, one.profile): one for one in instances}
        instance = self._instances[step.gpu].get(where)
        if instance is None:
            raise FleetError("it is not there any more; something else changes this GPU")
        if step.action == "compute":
            self._create_compute(instance, step)
            return
        wanted = None if step.parts is None else Counter(step.parts)
        for compute in reversed(instance.compute_instances):
            if wanted is None or wanted[compute.slices] > 0:
                self.nvml.destroy_compute_instance(compute)
                if wanted is not None:
                    wanted[compute.slices] -= 1
        if step.action == "destroy":
            self.nvml.destroy_gpu_instance(instance)

    def _create(self, step: Step, where: Slice) -> GpuInstance:
        handle = self.nvml.find(step.gpu)
        geometry = self.nvml.geometry(handle)
        if geometry is None:
            raise FleetError("the driver shows no MIG profile of this board")
        profile = find_profile(geometry, where.profile)
        return self.nvml.create_gpu_instance(handle, profile.id, where.start, profile.size)

    def _create_compute(self, instance: GpuInstance, step: Step) -> None:
        for profile in self._compute_profiles(instance, step):
            self.nvml.create_compute_instance(instance, profile)

    def _compute_profiles(self, instance: GpuInstance, step: Step) -> list[ComputeInstanceProfile | None]:
        """What to make in this GPU instance, in this order; None is the one that fills it."""
        if step.compute is None and step.parts is None:
            return [None]
        known = self.nvml.compute_profiles(instance)
        if step.compute is not None:
            return [_by_id(known, ident) for ident in step.compute]
        return [_by_size(known, size, instance.profile) for size in step.parts or ()]


def _by_id(known: t.Iterable[ComputeInstanceProfile], ident: int) -> ComputeInstanceProfile:
    for profile in known:
        if profile.id == ident:
            return profile
    raise FleetError(f"the driver knows no compute instance profile {ident} here")


def _by_size(known: t.Iterable[ComputeInstanceProfile], size: int, of: str) -> ComputeInstanceProfile:
    """The ordinary compute instance of so many compute slices: there is a second one of one slice, for profiles of double memory."""
    found = [profile for profile in known if profile.slices == size]
    if not found:
        sizes = ", ".join(f"{each}c.{of}" for each in sorted({profile.slices for profile in known}))
        raise FleetError(f"the driver makes no {size}c.{of}", hint=f"it makes {sizes}")
    return min(found, key=lambda profile: (profile.enum == REV2_CI, profile.enum))


def _words(error: FleetError) -> str:
    return f"{error.name} ({error.word}) from {error.call}" if isinstance(error, NvmlError) else str(error)
