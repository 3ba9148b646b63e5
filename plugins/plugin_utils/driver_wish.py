# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver a host shall have: branch and kernel modules, from the boards that are in it. Pure.

What a host is without a driver (module ``driver_info``), what the platform wishes, and the facts of ``data/compat.yml`` come in;
a choice with its reasons comes out, or one line that says why there is none and what would be right.
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatGpu
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_facts import Architecture, CompatFacts, version
from ansible_collections.gpuops.fleet.plugins.plugin_utils.driver_names import Boards, DriverPackages, Flavour, Packages, Policy, System

Data = Mapping[str, t.Any]

# From this branch on NVIDIA's own installers take the open modules where both would do (data/compat.yml: openkm).
OPEN_BY_DEFAULT = 560


@dataclass(frozen=True)
class Tables:
    """The facts that a choice stands on."""

    compat: CompatFacts
    packages: DriverPackages
    boards: Boards


@dataclass(frozen=True)
class Choice:
    """What was chosen. ``gpus``: what it was chosen for; ``row``: its packages, None for a runfile; ``here``: the driver that is there."""

    host: str
    system: System
    gpus: tuple[CompatGpu, ...]
    branch: int
    flavour: Flavour
    why_branch: str
    why_flavour: str
    row: Packages | None
    here: str | None
    warnings: tuple[str, ...] = field(default=())


def choose(tables: Tables, host: str, sensed: Data, policy: Policy, month: str | None = None) -> Choice:
    """The driver for a host. ``month`` (``2026-11``): in which it shall get fixes.

    :raises FleetError: nothing would do; one line, with what would be right.
    """
    system = _system(tables, host, sensed)
    gpus, warnings = _gpus(tables, host, sensed, policy)
    kinds = [(gpu, known.value) for gpu in gpus if (known := tables.compat.architecture(gpu.capability, gpu.board)) is not None]
    warnings += [
        f"{host}: {gpu.board} is not known here: whether the driver drives it was not judged" for gpu in gpus if _unknown(gpu, kinds)
    ]
    _refuse_mix(host, kinds)
    here = sensed["installed"].get("driver")
    offered = tables.packages.offers(system, policy.source)
    branch, why = _branch(tables, host, system, kinds, offered, policy, here, month)
    row = _row(host, system, offered, policy, branch)
    flavour, because = _flavour(host, kinds, policy, branch, row, sensed["installed"].get("flavour"))
    if not tables.compat.supported(branch, month) and tables.compat.branch(branch) is not None:
        warnings.append(f"{host}: R{branch} gets no fixes any more; {_better(tables, kinds, month)}")
    if policy.source not in system.proven:
        warnings.append(f"{host}: {system.name} with source '{policy.source}' is unproven: the role has never run there for real")
    return Choice(host, system, gpus, branch, flavour, why, because, row, here, tuple(warnings))


def _system(tables: Tables, host: str, sensed: Data) -> System:
    name, number = sensed["os"]["id"], sensed["os"]["version"]
    system = tables.packages.system(name, number)
    if system is None:
        known = ", ".join(each.name for each in tables.packages.systems)
        hint = f"it knows {known}; install the driver by hand and set nvidia_driver_source to '' for this host"
        raise FleetError(f"{host}: role nvidia_driver does not know {name} {number}", hint=hint)
    return system


def _gpus(tables: Tables, host: str, sensed: Data, policy: Policy) -> tuple[tuple[CompatGpu, ...], list[str]]:
    """What is on the PCI bus, else what is said to come."""
    there = tuple(tables.boards.gpu(board["device"]) for board in sensed["boards"])
    if there:
        return there, []
    named = []
    for board in policy.boards:
        gpu = tables.boards.named(board)
        if gpu is None:
            raise FleetError(
                f"'{board}' is not in the catalogue",
                field="nvidia_driver_boards",
                hint="write an id of the catalogue, such as l40s or a100-sxm4-80gb",
            )
        named.append(gpu)
    if not named:
        hint = "put one in, or name those that will come: nvidia_driver_boards: [l40s]"
        raise FleetError(f"{host}: no NVIDIA GPU on the PCI bus", hint=hint)
    return tuple(named), [f"{host}: no NVIDIA GPU on the PCI bus; the driver is chosen for {', '.join(policy.boards)}"]


def _unknown(gpu: CompatGpu, kinds: Iterable[tuple[CompatGpu, Architecture]]) -> bool:
    return all(gpu is not each for each, _kind in kinds)


_Kinds = list[tuple[CompatGpu, Architecture]]


def _refuse_mix(host: str, kinds: _Kinds) -> None:
    """Two boards that no driver drives together: their kernel modules exclude each other, or their branches do."""
    opened = next((pair for pair in kinds if pair[1].modules == "open"), None)
    closed = next((pair for pair in kinds if pair[1].modules == "proprietary"), None)
    hint = "put them into different hosts"
    if opened and closed:
        message = f"no driver drives {closed[0].board} and {opened[0].board} together: {closed[1].name} needs proprietary kernel modules, "
        raise FleetError(f"{host}: {message}{opened[1].name} open ones", hint=hint)
    first, last = _first(kinds), _last(kinds)
    if first and last and first[1] > last[1]:
        message = f"{host}: no driver drives {last[0]} and {first[0]} together: "
        raise FleetError(f"{message}R{last[1]} is the last branch for the one, R{first[1]} the first for the other", hint=hint)


def _first(kinds: _Kinds) -> tuple[str, int] | None:
    """The board that asks for the newest branch, and that branch."""
    return max(
        ((gpu.board, kind.first_branch) for gpu, kind in kinds if kind.first_branch is not None), key=lambda pair: pair[1], default=None
    )


def _last(kinds: _Kinds) -> tuple[str, int] | None:
    """The board that newer branches drop first, and its last one."""
    return min(
        ((gpu.board, kind.last_branch) for gpu, kind in kinds if kind.last_branch is not None), key=lambda pair: pair[1], default=None
    )


def _drives(kinds: _Kinds, branch: int) -> bool:
    first, last = _first(kinds), _last(kinds)
    return not (first and branch < first[1]) and not (last and branch > last[1])


def _branch(
    tables: Tables,
    host: str,
    system: System,
    kinds: _Kinds,
    offered: list[Packages],
    policy: Policy,
    here: str | None,
    month: str | None,
) -> tuple[int, str]:
    """The branch and why: asked for; else the one that is there; else the best that the source has for these boards."""
    asked = version(policy.version)[:1] or ((policy.branch,) if policy.branch else ())
    if policy.version and policy.branch and asked != (policy.branch,):
        hint = f"leave nvidia_driver_branch out, or write {asked[0]}"
        raise FleetError(f"{policy.version} is not of branch {policy.branch}", field="nvidia_driver_version", hint=hint)
    if asked:
        _refuse_branch(tables, host, kinds, asked[0], month)
        return asked[0], "asked for"
    now = version(here)[:1]
    if now and _drives(kinds, now[0]) and (policy.source == "runfile" or _of_branch(offered, now[0])):
        return now[0], "the branch that is there"
    if policy.source == "runfile":
        raise FleetError(f"{host}: a runfile is of one version", field="nvidia_driver_version", hint="write it, such as '580.95.05'")
    able = [branch for branch in _branches(tables, offered, month) if _drives(kinds, branch)]
    if not able:
        has = ", ".join(f"R{row.since}" for row in offered) or "none"
        what = ", ".join(sorted({gpu.board for gpu, _kind in kinds}))
        hint = (
            f"{_better(tables, kinds, month)}; set nvidia_driver_source: repository"
            if policy.source == "distribution"
            else "ask for another source"
        )
        raise FleetError(f"{host}: {system.name} has no driver for {what} in source '{policy.source}' (it has {has})", hint=hint)
    return able[0], f"the best that '{policy.source}' has for these boards"


def _branches(tables: Tables, offered: list[Packages], month: str | None) -> list[int]:
    """What a source has: branches with fixes first, as ``upgrades`` orders them, then the newest."""
    fixed = [branch for branch in tables.compat.upgrades(month) if _of_branch(offered, branch)]
    exact = sorted((row.since for row in offered if row.until == row.since), reverse=True)
    return [*fixed, *(branch for branch in exact if branch not in fixed)]


def _of_branch(offered: Iterable[Packages], branch: int) -> Packages | None:
    return next((row for row in offered if row.since <= branch and (row.until is None or branch <= row.until)), None)


def _refuse_branch(tables: Tables, host: str, kinds: _Kinds, branch: int, month: str | None) -> None:
    first, last = _first(kinds), _last(kinds)
    if last and branch > last[1]:
        hint = f"set nvidia_driver_branch: {last[1]}, or take the GPU out"
        raise FleetError(f"{host}: R{branch} does not drive {last[0]} any more: R{last[1]} is its last branch", hint=hint)
    if first and branch < first[1]:
        message = f"{host}: R{branch} does not drive {first[0]} yet: R{first[1]} is its first branch"
        raise FleetError(message, hint=_better(tables, kinds, month))


def _better(tables: Tables, kinds: _Kinds, month: str | None) -> str:
    """The branch to go to, in words."""
    able = [branch for branch in tables.compat.upgrades(month) if _drives(kinds, branch)]
    if able:
        return f"R{able[0]} drives all of this host and gets fixes"
    last = _last(kinds)
    return f"R{last[1]} is the last branch for {last[0]}" if last else "no branch with fixes is known"


def _row(host: str, system: System, offered: list[Packages], policy: Policy, branch: int) -> Packages | None:
    if policy.source == "runfile":
        return None
    row = _of_branch(offered, branch)
    if row is None:
        ranges = (f"R{each.since}" if each.until == each.since else f"R{each.since} to R{each.until or 'today'}" for each in offered)
        has = ", ".join(ranges) or "no driver"
        other = "set nvidia_driver_source: repository" if policy.source == "distribution" else "ask for one of those"
        raise FleetError(f"{host}: {system.name} has {has} in source '{policy.source}', not R{branch}", hint=f"{other}, or another branch")
    return row


def _flavour(host: str, kinds: _Kinds, policy: Policy, branch: int, row: Packages | None, here: str | None) -> tuple[Flavour, str]:
    """Which kernel modules, and why: what a board needs; else what is asked for; else what is there; else NVIDIA's own choice."""
    for want in ("proprietary", "open"):
        board = next((gpu.board for gpu, kind in kinds if kind.modules == want), None)
        if board is None:
            continue
        if policy.flavour not in ("auto", want):
            hint = f"set nvidia_driver_flavour: auto, or {want}"
            raise FleetError(f"{host}: {board} needs {want} kernel modules, {policy.flavour} ones are asked for", hint=hint)
        return _there(host, row, branch, want), f"{board} needs them"
    if policy.flavour != "auto":
        return _there(host, row, branch, policy.flavour), "asked for"
    if here in ("open", "proprietary"):
        return _there(host, row, branch, t.cast("Flavour", here)), "those that are there"
    if branch >= OPEN_BY_DEFAULT:
        return _there(host, row, branch, "open"), f"NVIDIA's own choice from R{OPEN_BY_DEFAULT} on"
    return _there(host, row, branch, "proprietary"), f"NVIDIA's own choice before R{OPEN_BY_DEFAULT}"


def _there(host: str, row: Packages | None, branch: int, flavour: Flavour) -> Flavour:
    if row is not None and not row.modules(flavour):
        hint = "ask for another branch, or set nvidia_driver_source: repository"
        raise FleetError(f"{host}: R{branch} has no {flavour} kernel modules in source '{row.source}'", hint=hint)
    return flavour
