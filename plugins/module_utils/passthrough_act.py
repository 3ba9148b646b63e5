# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that give a device to virtual machines and take it back, one by one, each looked at afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable

from ansible_collections.gpuops.fleet.plugins.module_utils import pci
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.device_users import users
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough import Plan, Step, unbind_step
from ansible_collections.gpuops.fleet.plugins.module_utils.passthrough_look import Eyes
from ansible_collections.gpuops.fleet.plugins.module_utils.pci import DEVICES, DRIVERS, Device, is_vfio

_LOAD_SECONDS = 120.0
# The persistence daemon closes a GPU's node soon after it was told to, a stopped service is gone already; nobody else was there.
_LEAVE_SECONDS = 5.0
# Some drivers probe in the background after their module was loaded (PROBE_PREFER_ASYNCHRONOUS: nvme).
_PROBE_SECONDS = 5.0
_POLL_SECONDS = 0.1


class Hands:
    """Carries steps out. FleetError says what the kernel refused, Stuck what it does not answer."""

    def __init__(self, eyes: Eyes) -> None:
        self.eyes = eyes
        self.sysfs = eyes.sysfs
        self._loaded = False

    def take(self, step: Step) -> None:
        """One step."""
        acts: dict[str, Callable[[Step], None]] = {
            "load": self._load,
            "persistence": self._persistence,
            "override": self._override,
            "unbind": self._unbind,
            "probe": self._probe,
        }
        acts[step.action](step)

    def _load(self, step: Step) -> None:
        ended = run([self.eyes.options.modprobe, step.value], _LOAD_SECONDS)
        if ended.status != 0:
            raise FleetError(f"module {step.value} cannot be loaded: {ended.words}")
        self._loaded = True

    def _persistence(self, step: Step) -> None:
        with Nvml() as nvml:
            nvml.set_persistence(nvml.find(step.address), step.value == "on")

    def _override(self, step: Step) -> None:
        self._write(step.address, f"{DEVICES}/{step.address}/driver_override", step.value)

    def _unbind(self, step: Step) -> None:
        self._wait_until_free(step.address)
        self._write(step.address, f"{DRIVERS}/{step.value}/unbind", step.address)
        left = self.sysfs.link(DEVICES, step.address, "driver")
        if left is not None:
            raise FleetError(f"{step.address}: the kernel took the unbind, and {left} has it still")

    def _wait_until_free(self, address: str) -> None:
        """Who was not there before is a user like any other: an unbind would wait for them in the kernel, for ever if need be."""
        device = pci.glance(self.sysfs, address, self.eyes.proc)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while True:
            who = users(self.sysfs, self.eyes.proc, device)
            if not who:
                return
            if time.monotonic() >= deadline:
                raise FleetError(f"{address} is still in use: {', '.join(who)}")
            time.sleep(_POLL_SECONDS)

    def _probe(self, step: Step) -> None:
        """The kernel answers a probe with success whatever comes of it: only the link tells."""
        self._write(step.address, "bus/pci/drivers_probe", step.address)
        deadline = time.monotonic() + (_PROBE_SECONDS if self._loaded else 0)
        while True:
            driver = self.sysfs.link(DEVICES, step.address, "driver")
            if driver == step.value or not step.value:
                break
            if time.monotonic() >= deadline:
                raise FleetError(
                    f"{step.address}: the kernel answered the probe with success, and {driver or 'no driver'} has it, not {step.value}",
                    hint="the kernel's log says why: an error -22 there is an IOMMU that does not work",
                )
            time.sleep(_POLL_SECONDS)
        if not step.value and is_vfio(driver):
            raise FleetError(f"{step.address}: {driver} took it again; something else on this host gives it away")

    def _write(self, address: str, path: str, text: str) -> None:
        self.sysfs.write(path, text=text, until=lambda: self._until(address))

    def _until(self, address: str) -> str:
        """What a write waits for, when nobody was seen before it."""
        who = users(self.sysfs, self.eyes.proc, pci.glance(self.sysfs, address, self.eyes.proc))
        return f"{address} is free ({', '.join(who) or 'nobody is seen who uses it'}); it cannot be ended"

    # The way back

    def undo(self, plan: Plan) -> list[str]:
        """Put a device back to what it was before its plan began; the steps that it took. FleetError when it cannot be."""
        done: list[str] = []
        before, now = plan.seen.device, self.eyes.device(plan.address)
        if before.with_vfio:
            self._give_away(plan, before, now, done)
        else:
            self._give_back(plan, before, now, done)
        return done

    def _give_back(self, plan: Plan, before: Device, now: Device, done: list[str]) -> None:
        driver = plan.entry.get("host_driver")
        kept = "" if is_vfio(before.override) else before.override
        if now.override != kept:
            self._step(Step(plan.address, "override", kept, f"{plan.address}: clear driver_override"), done)
        if now.with_vfio:
            self._step(unbind_step(now), done)
        if driver is not None and now.driver != driver:
            self._step(Step(plan.address, "probe", driver, f"{plan.address}: probe, so that {driver} takes it"), done)
        if plan.entry.get("persistence"):
            self._step(Step(plan.address, "persistence", "on", f"{plan.address}: turn persistence mode on"), done)

    def _give_away(self, plan: Plan, before: Device, now: Device, done: list[str]) -> None:
        driver = str(before.driver)
        if now.driver == driver and now.override == before.override:
            return
        self._step(Step(plan.address, "override", driver, f"{plan.address}: set driver_override to {driver}"), done)
        if now.driver not in (None, driver):
            self._step(unbind_step(now), done)
        if now.driver != driver:
            self._step(Step(plan.address, "probe", driver, f"{plan.address}: probe, so that {driver} takes it"), done)
        if before.override != driver:
            self._step(Step(plan.address, "override", before.override, f"{plan.address}: clear driver_override"), done)

    def _step(self, step: Step, done: list[str]) -> None:
        self.take(step)
        done.append(step.text)
