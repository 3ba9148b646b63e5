# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host as text for people."""

from __future__ import annotations

import json
import typing as t


def summary(dump: dict[str, t.Any]) -> str:
    """One line for each GPU."""
    driver = dump["driver"]
    lines = [f"driver {driver['version']}" if driver["present"] else "no driver loaded"]
    for gpu in dump["gpus"]:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} ({gpu['uuid']}) at {gpu['pci']}")
    if not dump["gpus"]:
        lines.append("no GPU")
    return "\n".join(lines)


def _holder(holder: dict[str, t.Any]) -> str:
    place = "the GPU itself" if "gi" not in holder else f"GI {holder['gi']}"
    place += f" CI {holder['ci']}" if "ci" in holder else ""
    if holder["kind"] == "leak":
        return f"leaked handle on {place}"
    return f"{holder['kind']} process {holder['pid']} ({holder['name']}, {holder['memory_mib']} MiB) on {place}"


def _gpu(gpu: dict[str, t.Any]) -> list[str]:
    lines = [f"GPU {gpu['index']}: {gpu['name']} ({gpu['uuid']}) at {gpu['pci']}, minor {gpu['minor']}, {gpu['state']}"]
    ecc = "none" if gpu["ecc"] is None else ("on" if gpu["ecc"]["current"] else "off")
    lines.append(
        f"  {gpu['memory_mib']} MiB, {gpu['temperature']} C, {gpu['power_w']:g} of {gpu['power_limit_w']:g} W, "
        f"compute mode {gpu['compute_mode']}, persistence {'on' if gpu['persistence'] else 'off'}, ECC {ecc}"
    )
    mig = gpu["mig"]
    if mig is None:
        lines.append("  MIG: the board has none")
    else:
        words = ["off", "on"]
        pending = "" if mig["current"] == mig["pending"] else f", pending {words[mig['pending']]}"
        lines.append(f"  MIG: {words[mig['current']]}{pending}; a mode change {'is immediate' if mig['resetless'] else 'needs a reset'}")
        for one in mig["instances"]:
            lines.append(f"    GI {one['gi']}: {one['profile']}@{one['start']}{'' if one['ci'] else ' (no compute instance)'}")
            lines += [f"      CI {part['id']}: {part['profile']} {part['uuid']} (MIG device {part['index']})" for part in one["ci"]]
    lines += [f"  held: {_holder(holder)}" for holder in gpu["holders"]]
    lines += [f"  vGPU: {name}" for name in gpu["vgpus"]]
    return lines


def text(dump: dict[str, t.Any]) -> str:
    """The whole host, with what its board files say of their own evidence."""
    driver = dump["driver"]
    lines = [f"driver {driver['version']}, CUDA {driver['cuda']}" if driver["present"] else "no driver loaded"]
    lines.append(f"permission {dump['permission']}, MIG UUIDs {dump['mig_uuid']}, placement order {dump['placement_order']}")
    nodes = dump["device_nodes"]
    if nodes:
        lines.append(f"device nodes in {nodes['directory']}" + (f", not up to date: {nodes['error']}" if nodes["error"] else ""))
    for fault in dump["faults"]:
        times = "always" if fault["times"] == 0 else f"{fault['times']} times"
        lines.append(f"fault: {fault['call']} fails with {fault['error']} from call {fault['nth']} on, {times}; {fault['seen']} seen")
    if dump["kill"]:
        lines.append(f"kill: {'before' if dump['kill']['before'] else 'after'} {dump['kill']['mutation']} more changes")
    for gpu in dump["gpus"]:
        lines += _gpu(gpu)
    if not dump["gpus"]:
        lines.append("no GPU")
    for key, board in dump["boards"].items():
        lines.append(f"board {key} (from {board.get('file', 'an unknown file')})")
        lines += [f"  evidence: {name}: {entry['how']} ({entry['source']})" for name, entry in board.get("evidence", {}).items()]
        lines += [f"  estimated: {item}" for item in board.get("estimated", [])]
    return "\n".join(lines)


def log_line(record: dict[str, t.Any]) -> str:
    """One call."""
    change = "" if record["mutation"] is None else f" [change {record['mutation']}]"
    out = f" -> {json.dumps(record['out'])}" if record["out"] else ""
    return f"{record['seq']} pid {record['pid']} {record['call']}({json.dumps(record['args'])}) = {record['result']}{out}{change}"
