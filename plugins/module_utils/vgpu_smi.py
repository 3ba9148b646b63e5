# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two programs that switch what vGPUs need: ``sriov-manage`` for virtual functions, ``nvidia-smi vgpu`` for mode and scheduler.

Only ``sriov-manage`` makes functions of NVIDIA's GPUs: the driver refuses a write to ``sriov_numvfs``. While an NVML client runs, it ends
with "Cannot obtain unbindLock", which passes. Options and words of nvidia-smi are those of its release 550 (Debian's package and its help).
"""

from __future__ import annotations

import re
import shutil
import time
import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_wish import POLICIES, Scheduler

SRIOV_SECONDS = 180.0  # 32 functions of an A40 take about half a minute
SMI_SECONDS = 60.0
ATTEMPTS = 5
PAUSE_SECONDS = 1.0
EXISTS = 19  # nvidia-smi's exit status for a mode that cannot change because a vGPU is there

_LOCK = re.compile(r"unbindLock", re.IGNORECASE)
_FIELD = r"{}\s*:\s*(.+?)\s*$"


def _field(text: str, name: str) -> str | None:
    found = re.search(_FIELD.format(re.escape(name)), text, re.MULTILINE)
    return found.group(1) if found else None


@t.final
class Smi:
    """Asks and tells NVIDIA's programs about one host's GPUs, each by its PCI address."""

    def __init__(self, nvidia_smi: str, sriov_manage: str) -> None:
        self._smi, self._sriov = nvidia_smi, sriov_manage

    @property
    def there(self) -> bool:
        """Whether the host has nvidia-smi."""
        return shutil.which(self._smi) is not None

    @property
    def sriov_there(self) -> bool:
        """Whether the host has sriov-manage."""
        return shutil.which(self._sriov) is not None

    def mixed(self, address: str) -> bool | None:
        """Whether mixed-size mode is on; None where there is none, or nobody says."""
        word = self._asked("vGPU Heterogeneous Mode", "-q", "-i", address)
        return None if word is None or word not in ("Enabled", "Disabled") else word == "Enabled"

    def scheduler(self, address: str) -> Scheduler | None:
        """The policy and its slice; None where nobody says. How often a round goes is not told."""
        text = self._output("vgpu", "-ss", "-i", address)
        policy = (_field(text, "Scheduler Policy") or "").lower().replace(" ", "-")
        if policy not in POLICIES:
            return None
        nanoseconds = _field(text, "Time Slice(ns)") or ""
        whole = nanoseconds.isdigit() and int(nanoseconds) > 0 and int(nanoseconds) % 1_000_000 == 0
        fixed = policy != POLICIES[0] and not (_field(text, "ARR Mode") or "").lower().startswith("enable")
        return Scheduler(policy, int(nanoseconds) // 1_000_000 if whole and fixed else None)

    def set_mixed(self, address: str, on: bool) -> None:
        """Switch mixed-size mode. FleetError with nvidia-smi's word."""
        self._told("vgpu", "-i", address, "-shm", str(int(on)))

    def set_scheduler(self, address: str, scheduler: Scheduler) -> None:
        """Set the policy. FleetError with nvidia-smi's word."""
        words = ["vgpu", "set-scheduler-state", "-i", address, "--policy", str(POLICIES.index(scheduler.policy) + 1)]
        if scheduler.slice_ms is not None:
            words += ["--arr-mode", "0", "--time-slice", str(scheduler.slice_ms * 1_000_000)]
        elif scheduler.frequency_hz is not None:
            words += ["--arr-mode", "1", "--arr-sched-frequency", str(scheduler.frequency_hz)]
        self._told(*words)

    def functions(self, address: str, on: bool) -> None:
        """Virtual functions on or off. A lock that another NVML client holds is waited for, a few seconds. FleetError with its word."""
        command = [self._sriov, "-e" if on else "-d", address]
        for attempt in range(1, ATTEMPTS + 1):
            done = commands.run(command, SRIOV_SECONDS)
            text = f"{done.output}\n{done.complaint}"
            if done.status == 0 and not _LOCK.search(text):
                return
            if not _LOCK.search(text):
                raise FleetError(f"`{' '.join(command)}` failed: {done.words}")
            if attempt < ATTEMPTS:
                time.sleep(PAUSE_SECONDS)
        hint = "end what uses the GPU, a monitor or nvidia-smi among them, and run again"
        raise FleetError(f"`{' '.join(command)}` did not get the GPU's unbindLock in {ATTEMPTS} attempts: {done.words}", hint=hint)

    def _asked(self, field: str, *words: str) -> str | None:
        return _field(self._output(*words), field)

    def _output(self, *words: str) -> str:
        """What nvidia-smi writes; nothing where it is missing or fails, for then nobody says."""
        if not self.there:
            return ""
        try:
            done = commands.run([self._smi, *words], SMI_SECONDS)
        except FleetError:
            return ""
        return done.output if done.status == 0 else ""

    def _told(self, *words: str) -> None:
        if not self.there:
            raise FleetError(f"there is no program {self._smi} on this host", field="nvidia_smi", hint="give its path")
        done = commands.run([self._smi, *words], SMI_SECONDS)
        if done.status:
            why = "; a vGPU is there" if done.status == EXISTS else ""
            raise FleetError(f"`{self._smi} {' '.join(words)}` failed: {done.words}{why}")
