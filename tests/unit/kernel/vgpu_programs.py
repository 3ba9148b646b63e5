# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's two programs of a vGPU host, on the kernel that is a tree of files: what ``vgpu_bin`` runs.

``sriov-manage`` needs a GPU that nobody has open; while a file ``unbind_lock`` in the root has a number above 0, an attempt takes one off
it and fails for the lock. Mode and scheduler are refused while a vGPU is there, and are lost with the functions. Words and exit statuses
are those of nvidia-smi 550. Both count as writes (``KERNEL_FAIL``, ``KERNEL_KILL``).
"""

from __future__ import annotations

import os
import signal
import sys
import typing as t
from pathlib import Path

from kernel import acts, tree, vgpu_acts

POLICIES = {"1": "Best Effort", "2": "Equal Share", "3": "Fixed Share"}
IN_USE = 19


def _change(root: Path, address: str, **values: t.Any) -> None:
    hidden = tree.hidden_of(root)
    hidden["devices"][address]["vgpu"].update(values)
    tree.keep_hidden(root, hidden)


def _faulty(root: Path, line: str) -> str | None:
    """Count this change; the word with which it is to fail, and death before it where that is asked for."""
    number = acts.count(root, line)
    word = acts.fault(root, number)
    if word is None and os.environ.get("KERNEL_KILL") == f"before {number}":
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(0)
    return word


def _after(root: Path) -> None:
    if os.environ.get("KERNEL_KILL") == f"after {len((root / 'writes').read_text().splitlines())}":
        os.kill(os.getppid(), signal.SIGKILL)


def sriov_manage(root: Path, words: list[str]) -> int:
    """``-e ADDRESS`` and ``-d ADDRESS``."""
    flag, address = words
    lock = root / "unbind_lock"
    tries = int(lock.read_text()) if lock.exists() else 0
    if tries or acts.holders(root, address):
        lock.write_text(str(max(0, tries - 1)))
        print(f"Cannot obtain unbindLock for {address}")
        return 1
    word = _faulty(root, f"sriov-manage {flag} {address}")
    if word is not None:
        print(f"sriov-manage: {address}: {word}", file=sys.stderr)
        return 1
    device = (root / "sys/bus/pci/devices" / address).resolve()
    wanted = int((device / "sriov_totalvfs").read_text()) if flag == "-e" else 0
    if wanted != int((device / "sriov_numvfs").read_text()):
        acts.make_vfs(root, device, wanted)
    if tree.hidden_of(root)["devices"][address].get("vgpu"):
        _change(root, address, mixed=False, scheduler=None)
        vgpu_acts.renew(root, device)
    _after(root)
    return 0


def nvidia_smi(root: Path, words: list[str]) -> int:
    """``-q -i A``, ``vgpu -ss -i A``, ``vgpu -i A -shm N``, ``vgpu set-scheduler-state -i A --policy N ...``."""
    address = words[words.index("-i") + 1]
    mine = tree.hidden_of(root)["devices"][address].get("vgpu") or {}
    if words[0] == "-q":
        print("    GPU Virtualization Mode\n        Virtualization Mode               : Host VGPU")
        print(f"        vGPU Heterogeneous Mode           : {'Enabled' if mine.get('mixed') else 'Disabled'}")
        return 0
    if "-ss" in words:
        state = mine.get("scheduler") or {}
        print(f"    Scheduler Policy                  : {POLICIES[state.get('policy', '1')]}")
        print(f"    ARR Mode                          : {'ENABLED' if state.get('arr') == '1' else 'DISABLED'}")
        print(f"    Time Slice(ns)                    : {state.get('slice', 2000000)}")
        return 0
    device = (root / "sys/bus/pci/devices" / address).resolve()
    there = any(vgpu_acts._made(link.resolve()) for link in device.glob("virtfn*"))
    word = _faulty(root, f"nvidia-smi {' '.join(words)}")
    if word is not None or there:
        print(f"Unable to change GPU {address}: {word or 'In use by another client'}")
        return 255 if word is not None else IN_USE
    if "-shm" in words:
        _change(root, address, mixed=words[words.index("-shm") + 1] == "1")
        vgpu_acts.renew(root, device)
    else:
        given = dict(zip(words[2::2], words[3::2], strict=True))
        state = {"policy": given["--policy"], "arr": given.get("--arr-mode"), "slice": given.get("--time-slice", "2000000")}
        _change(root, address, scheduler=state)
    _after(root)
    return 0
