# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs, and other devices that were given away, as virtual machines have them: a fact of the host, though no driver of it shows them."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import passthrough_papers, pci
from ansible_collections.gpuops.fleet.plugins.module_utils.device_users import users
from ansible_collections.gpuops.fleet.plugins.module_utils.host import Notes
from ansible_collections.gpuops.fleet.plugins.module_utils.sysfs import Sysfs


def read(state_dir: str, sys_root: str, proc_root: str, notes: Notes) -> list[dict[str, t.Any]]:
    """Every device of a VFIO driver that is a GPU of NVIDIA's or was given away by this collection, by address.

    ``users`` is None where ``/proc`` cannot be read. A record that is damaged is a line in ``notes``; the devices are there all the same.
    """
    record = notes.attempt("passthrough", lambda: passthrough_papers.remembered(Path(state_dir))) or {}
    sysfs = Sysfs(sys_root)
    found = []
    for address in pci.addresses(sysfs):
        if not pci.is_vfio(sysfs.link(pci.DEVICES, address, "driver")):
            continue
        device = pci.glance(sysfs, address, proc_root)
        entry = record.get(address, {})
        mine = bool(entry) and pci.differs(entry["identity"], device) is None
        if not mine and not device.gpu:
            continue
        identity = {**device.identity, **({"uuid": entry["identity"].get("uuid")} if mine else {})}
        found.append(
            {
                "pci": address,
                "parent": device.physical or address,
                "uuid": identity["uuid"],
                "identity": identity,
                "driver": device.driver,
                "group": None if device.group is None else int(device.group),
                "numa_node": device.numa,
                "bars_mib": [size >> 20 for size in device.bars],
                "resets": list(device.resets),
                "recorded": mine,
                "persist": bool(mine and entry.get("persist", True)),
                "since": entry.get("since") if mine else None,
                "users": users(sysfs, proc_root, device) if os.access(proc_root, os.R_OK) else None,
            }
        )
    return found
