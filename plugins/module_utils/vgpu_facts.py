# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPUs give to virtual machines in parts, as facts: read from files alone, so that a host without vGPUs is asked nothing."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import vgpu_types
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu import UNNAMED
from ansible_collections.gpuops.fleet.plugins.module_utils.vgpu_look import DEVICES, NONE, PARENTS, TYPES, Look, Options


def read(state_dir: str, sys_root: str) -> dict[str, dict[str, t.Any]]:
    """Of each GPU (by PCI address) that has vGPUs, or virtual functions for them: ``{vfs, vgpus: [{type, place, uuid}]}``."""
    look = Look(Options(Path(state_dir), Path(sys_root)))
    found = {}
    for name in look.gpus():
        functions = look.functions(name)
        vgpus = [*_mediated(look, [name, *functions]), *_vendor(look, functions)]
        if functions or vgpus:
            found[name] = {"vfs": len(functions), "vgpus": vgpus}
    return found


def _mediated(look: Look, names: list[str]) -> list[dict[str, t.Any]]:
    bases = set(look.sysfs.names(*PARENTS))
    parents = {}
    for name in names:
        if name in bases:
            idents = look.sysfs.names(*PARENTS, name, TYPES)
            titles = {ident: look.sysfs.text(*PARENTS, name, TYPES, ident, "name") or ident for ident in idents}
            parents[name] = {ident: vgpu_types.short(title) if vgpu_types.parse(title) else ident for ident, title in titles.items()}
    return [{"type": kind, "place": place, "uuid": uuid} for place, kind, uuid in look.mdevs(parents)]


def _vendor(look: Look, functions: list[str]) -> list[dict[str, t.Any]]:
    taken = {name: ident for name in functions for ident in [look.current(name)] if ident not in NONE}
    if not taken:
        return []
    names = dict(look.kept_names())
    for name in functions:
        names.update(look.creatable(name))
    kinds = {name: vgpu_types.short(names[ident]) if ident in names else f"{UNNAMED}{ident}" for name, ident in taken.items()}
    return [{"type": kinds[name], "place": name, "uuid": None} for name in taken if look.sysfs.link(*DEVICES, name, "physfn")]
