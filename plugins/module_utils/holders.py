# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a GPU or a slice: what NVML lists, and who has a device or capability file open.

NVML names processes that have a context. A process that only holds the file (a monitor, a daemon, a shell in a container) is not among
them, yet it keeps a mode from changing and a reset from working, so ``/proc`` is walked as well. Holders are dicts of the facts:
``{pid, process, user, container, slice: {gi, ci} | None, kind: compute | graphics | mps | open_file, path?}``.

A container holds what its device request names for as long as it is not removed, and a virtual machine what was handed to it; both without
a process that this host could see.
"""

from __future__ import annotations

import os
import pwd
import re
import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.engine import HTTP_NOT_FOUND, PROBE_LABEL, Engine, EngineError, parse_container
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Process

OPEN_FILE = "open_file"
MIG_MINORS = "driver/nvidia-caps/mig-minors"  # below /proc
SHORT_ID = 12  # of a container, as `docker ps` prints it and as the containers of the facts have it

_NODE = re.compile(r"/dev/nvidia(\d+)")
_CAPABILITY = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
# Lines of that file: "gpu0/gi1/access 12" and "gpu0/gi1/ci0/access 13", for every pair that may ever exist.
_MIG_MINOR = re.compile(r"gpu(\d+)/gi(\d+)/(?:ci(\d+)/)?access (\d+)")
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"/([^/\s]+\.service)(?:/|$)", re.MULTILINE)
_DELETED = " (deleted)"  # the kernel's mark on a file that has no name any more


@dataclass(frozen=True)
class OpenFile:
    """Process ``pid`` has ``path`` open: GPU number ``minor``, or on it GPU instance ``gi`` and compute instance ``ci``."""

    pid: int
    path: str
    minor: int
    gi: int | None = None
    ci: int | None = None


def mig_minors(proc_root: str) -> dict[int, tuple[int, int, int | None]]:
    """Capability file number -> (GPU minor, gi, ci or None). Empty without the driver. OSError when it cannot be read."""
    path = Path(proc_root) / MIG_MINORS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    found: dict[int, tuple[int, int, int | None]] = {}
    for gpu, gi, ci, number in _MIG_MINOR.findall(text):
        found[int(number)] = (int(gpu), int(gi), int(ci) if ci else None)
    return found


def open_files(proc_root: str) -> list[OpenFile]:
    """Every open device and capability file of a GPU on this host, once for each process, by pid and path.

    The calling process is left out, because an NVML session opens the files of every GPU. Processes that end meanwhile, and those of
    others when the caller is not root, show nothing.
    """
    minors = mig_minors(proc_root)
    found = set()
    for pid in _pids(proc_root):
        for target in _targets(Path(proc_root) / str(pid) / "fd"):
            held = _held(pid, target, minors)
            if held is not None:
                found.add(held)
    return sorted(found, key=lambda held: (held.pid, held.path))


def _pids(proc_root: str) -> list[int]:
    return [int(name) for name in os.listdir(proc_root) if name.isdigit() and int(name) != os.getpid()]


def _targets(directory: Path) -> t.Iterator[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(directory / name)
        except OSError:
            continue


def _held(pid: int, target: str, minors: Mapping[int, tuple[int, int, int | None]]) -> OpenFile | None:
    path = target[: -len(_DELETED)] if target.endswith(_DELETED) else target
    node = _NODE.fullmatch(path)
    if node:
        return OpenFile(pid, path, int(node.group(1)))
    capability = _CAPABILITY.fullmatch(path)
    place = minors.get(int(capability.group(1))) if capability else None
    return OpenFile(pid, path, *place) if place else None


def describe(proc_root: str, pid: int) -> dict[str, t.Any]:
    """``pid``, ``process`` (its name), ``user`` and short ``container`` id of a process; None for what it no longer shows."""
    directory = Path(proc_root) / str(pid)
    status = _text(directory / "status")
    name = re.search(r"^Name:\s*(.+)$", status, re.MULTILINE)
    uid = re.search(r"^Uid:\s*(\d+)", status, re.MULTILINE)
    container = _CONTAINER.search(_text(directory / "cgroup"))
    return {
        "pid": pid,
        "process": name.group(1) if name else None,
        "user": _user(int(uid.group(1))) if uid else None,
        "container": container.group(0)[:SHORT_ID] if container else None,
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def merge(proc_root: str, processes: Iterable[Process], files: Iterable[OpenFile]) -> list[dict[str, t.Any]]:
    """Holders of one GPU out of its NVML processes and the open files that are its own, by pid, each place once.

    A file that follows from something said already is left out: the GPU's own node for a process that is in a slice or that NVML lists
    (everybody in a slice has it open), and the file of a GPU instance for a process that is in a compute instance of it.
    """
    listed = list(processes)
    places = {(entry.pid, entry.gi, entry.ci) for entry in listed}
    mine = list(files)
    places_of_files = {(held.pid, held.gi, held.ci) for held in mine}
    everywhere = places | places_of_files
    found = [_holder(proc_root, entry.pid, entry.kind, entry.gi, entry.ci) for entry in listed]
    for held in mine:
        if (held.pid, held.gi, held.ci) in places or _implied(held, everywhere):
            continue
        found.append({**_holder(proc_root, held.pid, OPEN_FILE, held.gi, held.ci), "path": held.path})
    return sorted(found, key=_order)


def _implied(held: OpenFile, places: set[tuple[int, int | None, int | None]]) -> bool:
    """Whether a place further inside than this file's is known for the same process."""
    for pid, gi, ci in places:
        if pid == held.pid and ((held.gi is None and gi is not None) or (held.ci is None and held.gi == gi and ci is not None)):
            return True
    return False


def _holder(proc_root: str, pid: int, kind: str, gi: int | None, ci: int | None) -> dict[str, t.Any]:
    place = None if gi is None else {"gi": gi, "ci": ci}
    return {**describe(proc_root, pid), "slice": place, "kind": kind}


def _order(holder: Mapping[str, t.Any]) -> tuple[int, int, int, str]:
    place = holder["slice"] or {"gi": -1, "ci": -1}
    return holder["pid"], place["gi"], -1 if place["ci"] is None else place["ci"], holder["kind"]


def unit_of(proc_root: str, pid: int) -> str | None:
    """The systemd unit that a process belongs to, by its control group; None for one that belongs to no service."""
    found = _UNIT.search(_text(Path(proc_root) / str(pid) / "cgroup"))
    return found.group(1) if found else None


def containers(socket: str) -> list[dict[str, t.Any]]:
    """Every container that is not removed, as in the facts; ``devices`` are those that it asked for.

    A privileged container may open every device and asked for none: what it has open is seen as open files. EngineError when the engine
    does not answer; none when there is no socket, for then there is no engine.
    """
    if not socket or not os.path.exists(socket):
        return []
    found = []
    with Engine(socket) as engine:
        for entry in engine.get("/containers/json?all=1"):
            if PROBE_LABEL in (entry.get("Labels") or {}):
                continue
            try:
                detail = engine.get(f"/containers/{entry['Id']}/json")
            except EngineError as error:
                if error.status == HTTP_NOT_FOUND:  # it went away meanwhile
                    continue
                raise
            found.append(parse_container({**detail, "HostConfig": {**(detail.get("HostConfig") or {}), "Privileged": False}}))
    return sorted(found, key=lambda container: str(container["name"]))


def machine_users(sys_root: str, pci: str) -> list[str]:
    """What of this GPU was handed to virtual machines, in words: virtual functions (with vfio-pci or a vGPU type), mdev devices."""
    device = Path(sys_root) / "bus" / "pci" / "devices" / pci
    functions = sorted(link.resolve() for link in device.glob("virtfn*"))
    found = []
    for function in functions:
        kind = _text(function / "nvidia" / "current_vgpu_type").strip()
        if (function / "driver").resolve().name == "vfio-pci":
            found.append(f"virtual function {function.name} (bound to vfio-pci)")
        elif kind not in ("", "0"):
            found.append(f"virtual function {function.name} (vGPU type {kind})")
    for link in sorted((Path(sys_root) / "bus" / "mdev" / "devices").glob("*")):
        if {device.resolve(), *functions} & set(link.resolve().parents):
            found.append(f"mdev {link.name}")
    return found
