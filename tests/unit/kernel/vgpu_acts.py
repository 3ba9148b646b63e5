# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What writes do to virtual GPUs: mediated devices, and the vendor's directory ``nvidia`` of a virtual function.

A parent of mediated devices (:func:`mdev_parent`) has ``{"types": {id: {name, cost}}, "room": n}`` as ``mdev`` in what is hidden of it: an
instance costs so much of the room that all types of one parent share. A physical function has the same as ``vgpu``, with ``framework``
(``vendor``, or ``mdev`` for functions that are parents themselves), ``mixed`` (types of other sizes beside each other) and ``gb`` of each
type, which is read from its name otherwise.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import typing as t
from collections.abc import Callable
from pathlib import Path

from kernel.refusal import BUSY, DENIED, EXISTS, INVALID, NO_DEVICE, NO_SPACE, Refusal

GROUPS = 500  # of mediated devices


def _hidden(root: Path) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", json.loads((root / "kernel.json").read_text()))


def _open(root: Path, group: str) -> bool:
    """Whether a process has this group's file open."""
    return any(os.readlink(one) == f"/dev/vfio/{group}" for one in (root / "proc").glob("[0-9]*/fd/*") if one.is_symlink())


# Mediated devices


def mdev_parent(root: Path, name: str, place: Path, types: dict[str, dict[str, t.Any]], room: int, api: str = "vfio-pci") -> None:
    """Lay out a parent below ``place`` (a directory of sysfs), with its entry in class/mdev_bus."""
    hidden = _hidden(root)
    hidden.setdefault("mdev", {})[name] = {"types": types, "room": room}
    (root / "kernel.json").write_text(json.dumps(hidden))
    for ident, kind in types.items():
        directory = place / "mdev_supported_types" / ident
        (directory / "devices").mkdir(parents=True)
        for file, text in (("name", kind["name"]), ("device_api", api), ("description", kind.get("description", "")), ("create", "")):
            (directory / file).write_text(f"{text}\n" if text else "")
    link = root / "sys/class/mdev_bus" / name
    link.symlink_to(os.path.relpath(place.resolve(), link.parent.resolve()))
    count_mdevs(root, name)


def mtty(root: Path) -> None:
    """The kernel's sample driver: serial ports, of which there are 24."""
    place = root / "sys/devices/virtual/mtty/mtty"
    place.mkdir(parents=True)
    types = {"mtty-1": {"name": "Single port serial", "cost": 1}, "mtty-2": {"name": "Dual port serial", "cost": 2}}
    mdev_parent(root, "mtty", place, types, 24)


def count_mdevs(root: Path, name: str) -> None:
    """Renew ``available_instances`` of every type of a parent."""
    place = (root / "sys/class/mdev_bus" / name).resolve()
    if (place / "physfn").exists():
        renew(root, (place / "physfn").resolve())
        return
    mine = _hidden(root)["mdev"][name]
    used = 0
    for ident, kind in mine["types"].items():
        used += kind["cost"] * len(list((place / "mdev_supported_types" / ident / "devices").iterdir()))
    for ident, kind in mine["types"].items():
        (place / "mdev_supported_types" / ident / "available_instances").write_text(f"{(mine['room'] - used) // kind['cost']}\n")


def create(root: Path, file: Path, text: str) -> None:
    """A type's ``create``."""
    kind = file.resolve().parent
    parent = kind.parent.parent
    name = parent.name
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        raise Refusal(INVALID)
    if (root / "sys/bus/mdev/devices" / text).exists():
        raise Refusal(EXISTS)
    if int((kind / "available_instances").read_text()) < 1:
        raise Refusal(NO_SPACE)
    place = parent / text
    place.mkdir()
    (place / "remove").write_text("")
    taken = {os.path.basename(os.readlink(one / "iommu_group")) for one in (root / "sys/bus/mdev/devices").iterdir()}
    group = next(str(number) for number in range(GROUPS, 2 * GROUPS) if str(number) not in taken)
    (root / "sys/kernel/iommu_groups" / group).mkdir(exist_ok=True)
    links = {
        place / "mdev_type": kind,
        kind / "devices" / text: place,
        root / "sys/bus/mdev/devices" / text: place,
        place / "iommu_group": root / "sys/kernel/iommu_groups" / group,
    }
    for link, target in links.items():
        link.symlink_to(os.path.relpath(target, link.parent.resolve()))
    if (parent / "physfn").exists():
        (place / "nvidia").mkdir()
        (place / "nvidia/vgpu_params").write_text("\n")
    count_mdevs(root, name)


def remove(root: Path, file: Path, text: str) -> None:
    """A mediated device's ``remove``; one that a process has open waits."""
    place = file.resolve().parent
    if text != "1":
        raise Refusal(INVALID)
    while _open(root, os.path.basename(os.readlink(place / "iommu_group"))):
        time.sleep(0.01)
    parent = place.parent
    kind = (place / "mdev_type").resolve()
    (kind / "devices" / place.name).unlink()
    (root / "sys/bus/mdev/devices" / place.name).unlink()
    shutil.rmtree(place)
    count_mdevs(root, parent.name)


# NVIDIA's virtual functions, in both frameworks


def new_vf(root: Path, physical: Path, place: Path) -> None:
    """A virtual function that was just made, where the physical one has vGPUs."""
    mine = _hidden(root)["devices"][physical.name].get("vgpu")
    if not mine:
        return
    if mine.get("framework") == "mdev":
        for ident, kind in mine["types"].items():
            directory = place / "mdev_supported_types" / f"nvidia-{ident}"
            (directory / "devices").mkdir(parents=True)
            described = f"num_heads=1, frl_config=60, framebuffer={_size(kind) * 1024}M, max_instance={mine['room'] // kind['cost']}"
            for file, text in (("name", kind["name"]), ("device_api", "vfio-pci"), ("description", described), ("create", "")):
                (directory / file).write_text(f"{text}\n" if text else "")
        link = root / "sys/class/mdev_bus" / place.name
        link.symlink_to(os.path.relpath(place.resolve(), link.parent.resolve()))
    else:
        directory = place / "nvidia"
        directory.mkdir()
        for file, text in (("current_vgpu_type", "0"), ("vgpu_params", ""), ("gpu_instance_id", "0"), ("placement_id", "0")):
            (directory / file).write_text(f"{text}\n")
        (directory / "creatable_vgpu_types").write_text("")
    renew(root, physical)


def gone_vf(root: Path, place: Path) -> None:
    """A virtual function that is about to go, and what was made on it."""
    for link in (root / "sys/bus/mdev/devices").iterdir():
        if link.resolve().parent == place.resolve():
            link.unlink()
    (root / "sys/class/mdev_bus" / place.name).unlink(missing_ok=True)


def reboot(root: Path) -> None:
    """No mediated device survives."""
    for link in list((root / "sys/bus/mdev/devices").iterdir()):
        place = link.resolve()
        (place / "mdev_type").resolve().joinpath("devices", place.name).unlink()
        shutil.rmtree(place)
        link.unlink()
        count_mdevs(root, place.parent.name)


def _size(kind: dict[str, t.Any]) -> int:
    found = re.search(r"(\d+)[ABCQ]\w*$", kind["name"])
    return int(kind["gb"] if "gb" in kind else found.group(1) if found else 0)


def _made(one: Path) -> str | None:
    """The number of the type that a function has."""
    if (one / "nvidia/current_vgpu_type").exists():
        text = (one / "nvidia/current_vgpu_type").read_text().strip()
        return None if text == "0" else text
    links = list(one.glob("mdev_supported_types/*/devices/*"))
    return links[0].parent.parent.name.removeprefix("nvidia-") if links else None


def renew(root: Path, physical: Path) -> None:
    """Renew what every virtual function offers: what still has room, and no other size than is there already."""
    mine = _hidden(root)["devices"][physical.name]["vgpu"]
    functions = [link.resolve() for link in physical.glob("virtfn*")]
    kinds = {one: _made(one) for one in functions}
    made = [kind for kind in kinds.values() if kind is not None]
    left = mine["room"] - sum(mine["types"][kind]["cost"] for kind in made)
    fits = [
        ident
        for ident, entry in mine["types"].items()
        if entry["cost"] <= left and (mine.get("mixed") or not made or _size(entry) == _size(mine["types"][made[0]]))
    ]
    for one in functions:
        here = [] if kinds[one] is not None else fits
        if (one / "nvidia/creatable_vgpu_types").exists():
            lines = [f"{ident} : {mine['types'][ident]['name']}" for ident in here]
            (one / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n" * bool(lines) + "".join(f"{line}\n" for line in lines))
        for directory in one.glob("mdev_supported_types/*"):
            number = int(directory.name.removeprefix("nvidia-") in here)
            (directory / "available_instances").write_text(f"{number}\n")


def _in_use(root: Path, function: Path) -> bool:
    group = function / "iommu_group"
    return function.name in _hidden(root).get("in_use", ()) or (group.exists() and _open(root, os.path.basename(os.readlink(group))))


def set_type(root: Path, file: Path, text: str) -> None:
    """A virtual function's ``current_vgpu_type``: an id makes, 0 takes away."""
    function = file.resolve().parent.parent
    physical = (function / "physfn").resolve()
    here = file.read_text().strip()
    if _in_use(root, function):
        raise Refusal(BUSY)
    if text != "0":
        if here != "0":
            raise Refusal(BUSY)
        creatable = [line.split(" : ")[0].strip() for line in (function / "nvidia/creatable_vgpu_types").read_text().splitlines()]
        if text not in creatable:
            raise Refusal(DENIED if text in _hidden(root)["devices"][physical.name]["vgpu"]["types"] else NO_DEVICE)
    else:
        (function / "nvidia/vgpu_params").write_text("\n")
    file.write_text(f"{text}\n")
    renew(root, physical)


def set_params(root: Path, file: Path, text: str) -> None:
    """``vgpu_params``: a single space clears."""
    if _in_use(root, file.resolve().parent.parent):
        raise Refusal(BUSY)
    file.write_text(f"{text.strip()}\n")


ACTS: list[tuple[str, Callable[[Path, Path, str], None]]] = [
    (r".*/mdev_supported_types/[^/]+/create", create),
    (r"bus/mdev/devices/[^/]+/remove", remove),
    (r"bus/pci/devices/[^/]+/nvidia/current_vgpu_type", set_type),
    (r"bus/(pci|mdev)/devices/[^/]+/nvidia/(vgpu_params|gpu_instance_id|placement_id)", set_params),
]
