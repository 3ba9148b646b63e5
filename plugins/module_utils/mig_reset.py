# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a change of the MIG mode takes beside NVML: ``nvidia-smi -r``, for which there is no public call, and ``systemctl`` for the
services that hold the driver.

Who keeps a GPU from being reset: every client of it, nvidia-persistenced and DCGM among them (NVIDIA/gpu-operator issue 118: the reset
works once nvidia-persistenced is gone), and the kernel module nvidia_drm when somebody uses it (NVIDIA/mig-parted issue 181).
"""

from __future__ import annotations

import re
import shutil
import typing as t
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import Journal

# nvidia-smi -r takes a few seconds on one board. What hangs longer will not come back by waiting.
RESET_SECONDS: float = 120
# A unit has ended or been killed by then (systemd's DefaultTimeoutStopSec is 90 s).
UNIT_SECONDS = 120.0
NOT_SUPPORTED_STATUS = 3  # nvidia-smi's exit status for what a board, or a virtual machine's board, cannot do

_RUNNING = ("active", "activating", "reloading")


@dataclass(frozen=True)
class Reset:
    """How ``nvidia-smi -r`` ended: its words, and whether it says that this board cannot be reset here at all."""

    command: str
    words: str
    ok: bool
    unsupported: bool


def reset_gpu(nvidia_smi: str, pci: str) -> Reset:
    """Reset exactly the GPU at this address. Our own NVML session would count as a user of it: close it before."""
    command = [nvidia_smi, "-r", "-i", pci]
    text = " ".join(command)
    try:
        ended = run(command, RESET_SECONDS)
    except FleetError as error:
        return Reset(text, error.message, False, False)
    words = " ".join((ended.complaint.strip() or ended.output).split())
    unsupported = ended.status == NOT_SUPPORTED_STATUS or (
        ended.status != 0 and re.search("not supported", words, re.IGNORECASE) is not None
    )
    return Reset(text, words or "no word", ended.status == 0, unsupported)


def drm_user(proc_root: Path, sys_root: Path) -> str | None:
    """The kernel module nvidia_drm in words, when it drives a console or a display server, so that no GPU of the host can be reset.

    ``/proc/modules`` has its use count; it holds the GPUs only where it was loaded with ``modeset``.
    """
    try:
        modules = (proc_root / "modules").read_text(encoding="utf-8")
        modeset = (sys_root / "module" / "nvidia_drm" / "parameters" / "modeset").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    found = re.search(r"^nvidia_drm \d+ (\d+) (\S+) ", modules, re.MULTILINE)
    if found is None or modeset != "Y" or found.group(1) == "0":
        return None
    return f"kernel module nvidia_drm (in use {found.group(1)} times; a console or display server)"


@t.final
class Services:
    """The systemd units that hold the driver: which of them run, stopped for as long as it takes, and started again."""

    def __init__(self, systemctl: str, units: Sequence[str], journal: Journal) -> None:
        self._systemctl = shutil.which(systemctl)
        self._units = tuple(dict.fromkeys(units)) if self._systemctl else ()
        self._journal = journal
        self.stopped: list[str] = []
        self._running: list[str] | None = None

    def running(self) -> list[str]:
        """Those that run, in the order given. None on a host without systemd."""
        if self._running is None:
            self._running = [unit for unit in self._units if self._call("is-active", unit).output.strip() in _RUNNING]
        return list(self._running)

    def stop(self, units: Sequence[str], done: list[str]) -> None:
        """Stop these units. FleetError names one that does not stop; each that was asked to is in ``stopped``."""
        if units:
            self._journal.stop(units)
        for unit in units:
            self.stopped.append(unit)
            ended = self._call("stop", unit)
            if ended.status != 0:
                raise FleetError(f"{unit} could not be stopped: {ended.words}")
            done.append(stop_text(unit))

    def start(self, done: list[str], units: Sequence[str] = (), block: bool = True) -> list[str]:
        """Start again what was stopped, here or (``units``) by a run that died. What could not be started, each with the reason.

        ``block`` False: only ask for it, as during a boot, where a unit may wait for the very one in which this runs.
        """
        troubles = []
        for unit in dict.fromkeys([*units, *self.stopped]):
            options = [] if block else ["--no-block"]
            try:
                ended = self._call("start", *options, unit)
                words = None if ended.status == 0 else ended.words
            except FleetError as error:
                words = error.message
            if words is None:
                done.append(start_text(unit))
            else:
                troubles.append(f"{unit} could not be started again: {words}")
        self.stopped = [trouble.partition(" ")[0] for trouble in troubles]
        return troubles

    def _call(self, verb: str, *arguments: str) -> t.Any:
        if self._systemctl is None:
            raise FleetError("there is no systemctl on this host")
        return run([self._systemctl, verb, *arguments], UNIT_SECONDS)


def stop_text(unit: str) -> str:
    """The step in words."""
    return f"stop {unit}, which holds the driver"


def start_text(unit: str) -> str:
    """The step in words."""
    return f"start {unit} again"
