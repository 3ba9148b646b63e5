# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What writes do to virtual GPUs: mediated devices, and the vendor's directory ``nvidia`` of a virtual function.

A parent of mediated devices has ``{"types": {id: {name, cost}}, "room": n}`` as ``mdev`` in what is hidden of it: an instance costs so much
of the room that all types of one parent share. A physical function has the same as ``vgpu``, with ``{id: {name, cost}}``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import typing as t
from collections.abc import Callable
from pathlib import Path

from kernel.refusal import BUSY, DENIED, EXISTS, INVALID, NO_DEVICE, NO_SPACE, Refusal


def _hidden(root: Path) -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", json.loads((root / "kernel.json").read_text()))


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


def count_mdevs(root: Path, name: str) -> None:
    """Renew ``available_instances`` of every type of a parent."""
    mine = _hidden(root)["mdev"][name]
    place = (root / "sys/class/mdev_bus" / name).resolve()
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
    for link, target in ((place / "mdev_type", kind), (kind / "devices" / text, place), (root / "sys/bus/mdev/devices" / text, place)):
        link.symlink_to(os.path.relpath(target, link.parent.resolve()))
    count_mdevs(root, name)


def remove(root: Path, file: Path, text: str) -> None:
    """A mediated device's ``remove``; one that a process has open waits."""
    place = file.resolve().parent
    if text != "1":
        raise Refusal(INVALID)
    parent = place.parent
    kind = (place / "mdev_type").resolve()
    (kind / "devices" / place.name).unlink()
    (root / "sys/bus/mdev/devices" / place.name).unlink()
    shutil.rmtree(place)
    count_mdevs(root, parent.name)


# The vendor's framework


def new_vf(root: Path, physical: Path, place: Path) -> None:
    """A virtual function that was just made, where the physical one has the vendor's framework."""
    mine = _hidden(root)["devices"][physical.name]
    if mine.get("vgpu"):
        directory = place / "nvidia"
        directory.mkdir()
        for file, text in (("current_vgpu_type", "0"), ("vgpu_params", ""), ("gpu_instance_id", "0"), ("placement_id", "0")):
            (directory / file).write_text(f"{text}\n")
        (directory / "creatable_vgpu_types").write_text("")
        renew(root, physical)


def renew(root: Path, physical: Path) -> None:
    """Renew ``creatable_vgpu_types`` of every virtual function: what still has room, and no other type than is there already."""
    mine = _hidden(root)["devices"][physical.name]["vgpu"]
    functions = [link.resolve() for link in physical.glob("virtfn*") if (link / "nvidia").exists()]
    kinds = [(one / "nvidia/current_vgpu_type").read_text().strip() for one in functions]
    made = [kind for kind in kinds if kind != "0"]
    left = mine["room"] - sum(mine["types"][kind]["cost"] for kind in made)
    for one, kind in zip(functions, kinds, strict=True):
        fits = [
            ident for ident, entry in mine["types"].items() if entry["cost"] <= left and (mine.get("mixed") or not made or ident == made[0])
        ]
        lines = [f"{ident} : {mine['types'][ident]['name']}" for ident in fits] if kind == "0" else []
        (one / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n" * bool(lines) + "".join(f"{line}\n" for line in lines))


def set_type(root: Path, file: Path, text: str) -> None:
    """A virtual function's ``current_vgpu_type``: an id makes, 0 takes away."""
    function = file.resolve().parent.parent
    physical = (function / "physfn").resolve()
    here = file.read_text().strip()
    if str(function.name) in _hidden(root).get("in_use", ()):
        raise Refusal(BUSY)
    if text != "0":
        if here != "0":
            raise Refusal(BUSY)
        creatable = [line.split(" : ")[0].strip() for line in (function / "nvidia/creatable_vgpu_types").read_text().splitlines()]
        if text not in creatable:
            raise Refusal(DENIED if text in _hidden(root)["devices"][physical.name]["vgpu"]["types"] else NO_DEVICE)
    file.write_text(f"{text}\n")
    renew(root, physical)


def set_params(root: Path, file: Path, text: str) -> None:
    """``vgpu_params``: a single space clears."""
    if file.resolve().parent.parent.name in _hidden(root).get("in_use", ()):
        raise Refusal(BUSY)
    file.write_text(f"{text.strip()}\n")


ACTS: list[tuple[str, Callable[[Path, Path, str], None]]] = [
    (r".*/mdev_supported_types/[^/]+/create", create),
    (r"bus/mdev/devices/[^/]+/remove", remove),
    (r"bus/pci/devices/[^/]+/nvidia/current_vgpu_type", set_type),
    (r"bus/pci/devices/[^/]+/nvidia/(vgpu_params|gpu_instance_id|placement_id)", set_params),
]
