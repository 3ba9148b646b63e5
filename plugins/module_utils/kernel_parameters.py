# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters of the kernel: which of the wished ones nobody gives yet, and which contradict what somebody else gives. Pure.

A wish is a *unit*: one parameter, or several of which the order counts (``hugepagesz=1G hugepages=16``).

Sources: Documentation/admin-guide/kernel-parameters.txt of the kernel (``amd_iommu`` knows no ``on``: an AMD IOMMU works unless it is
switched off; ``intel_iommu`` and ``iommu`` take lists); lib/cmdline.c for double quotes.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Iterable, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

INTEL, AMD = "GenuineIntel", "AuthenticAMD"

# Nothing that a shell, sed or GRUB's own language would read as anything but itself.
_TOKEN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:=+@/%-]*")
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
# Their values are lists, of which each item counts for itself; two parameters of that name are one list.
_LISTS = ("intel_iommu", "amd_iommu", "iommu", "vfio-pci.ids", "modprobe.blacklist", "module_blacklist")
# May be there several times, with what comes after each.
_REPEATED = ("hugepagesz", "hugepages", "console", "earlycon", "memmap", "pci")
_OPPOSITES = (
    ("intel_iommu", "on", "off"),
    ("amd_iommu", "force_enable", "off"),
    ("iommu", "pt", "nopt"),
    ("iommu", "pt", "off"),
    ("iommu", "force", "off"),
)

Unit = tuple[str, ...]


def tokens(line: str) -> list[str]:
    """The parameters of a command line; what is between double quotes is no gap."""
    return _WORD.findall(line)


def units(parameters: Iterable[str], field: str = "parameters") -> list[Unit]:
    """Wishes as units, each once. FleetError for one that is empty, or that a boot loader would read as something else."""
    found: list[Unit] = []
    for number, text in enumerate(parameters):
        unit = tuple(text.split())
        bad = next((one for one in unit if not _TOKEN.fullmatch(one)), None)
        if bad is not None or not unit:
            wrong = f"'{text}' is no parameter of the kernel"
            raise FleetError(wrong, field=f"{field}[{number}]", hint="write NAME or NAME=VALUE, of letters, digits and _.,:=+@/%-")
        for other in found:
            clash = _clash(unit, list(other))
            if clash is not None:
                raise FleetError(f"{' '.join(other)} and {' '.join(unit)} contradict each other", field=f"{field}[{number}]")
        if unit not in found:
            found.append(unit)
    return found


def is_given(unit: Unit, given: Sequence[str]) -> bool:
    """Whether a command line has it: all of it and in its order, or of a list at least its items."""
    if len(unit) > 1:
        return is_written(unit, given)
    name, equals, value = unit[0].partition("=")
    if name in _LISTS and equals:
        return set(value.split(",")) <= _items(name, given)
    return unit[0] in given


def without(given: Sequence[str], taken: Iterable[Unit]) -> list[str]:
    """A command line less these units, each as it is written; a unit that is not there changes nothing."""
    left = list(given)
    for unit in taken:
        start = _find(unit, left)
        while start is not None:
            del left[start : start + len(unit)]
            start = _find(unit, left)
    return left


def is_written(unit: Unit, given: Sequence[str]) -> bool:
    """Whether a command line has it word for word."""
    return _find(unit, given) is not None


def _find(unit: Unit, given: Sequence[str]) -> int | None:
    return next((start for start in range(len(given)) if tuple(given[start : start + len(unit)]) == unit), None)


def follows(line: Sequence[str], wish: Sequence[Unit], gone: Iterable[Unit]) -> bool:
    """Whether a command line has the wish, and beside it nothing of what is gone."""
    rest = without(line, wish)
    return all(is_given(unit, line) for unit in wish) and not any(is_written(unit, rest) for unit in gone)


def missing(wished: Iterable[Unit], given: Sequence[str], where: str) -> list[Unit]:
    """What of the wish ``given`` lacks. FleetError where it says the opposite, naming ``where`` that is."""
    lacking = []
    for unit in wished:
        clash = _clash(unit, given)
        if clash is not None:
            wrong = f"{clash} is given there, and {' '.join(unit)} is wished"
            raise FleetError(wrong, file=where, hint=f"take {clash} out there by hand: what others wrote is never changed")
        if not is_given(unit, given):
            lacking.append(unit)
    return lacking


def _items(name: str, given: Iterable[str]) -> set[str]:
    values = (each.partition("=")[2] for each in given if each.partition("=")[0] == name)
    return {item for value in values for item in value.strip('"').split(",") if item}


def _clash(unit: Unit, given: Sequence[str]) -> str | None:
    """The parameter in ``given`` that says the opposite of this one."""
    if len(unit) > 1:
        return None
    name, _equals, value = unit[0].partition("=")
    same = [each for each in given if each.partition("=")[0] == name]
    if name in _LISTS:
        wished = set(value.split(","))
        against = {b if a in wished else a for one, a, b in _OPPOSITES if one == name and {a, b} & wished}
        return next((each for each in same if against & set(each.partition("=")[2].strip('"').split(","))), None)
    if name in _REPEATED:
        return None
    return next((each for each in same if each != unit[0]), None)


def for_iommu(vendor: str | None, configs: Iterable[str], identity: bool) -> tuple[list[Unit], list[Unit]]:
    """What the IOMMU of a processor needs: (to be given, not to be contradicted).

    ``configs``: the build configuration of each installed kernel, as text. A kernel that says nothing of the default counts as one that
    leaves Intel's IOMMU off. ``identity``: devices of the host itself are not translated.
    """
    pass_through: list[Unit] = [("iommu=pt",)] if identity else []
    if vendor == AMD:
        return pass_through, [("amd_iommu=force_enable",), ("iommu=force",)]
    if vendor != INTEL:
        return pass_through, []
    texts = list(configs)
    default_on = bool(texts) and all(re.search(r"^CONFIG_INTEL_IOMMU_DEFAULT_ON(?:_INTGPU_OFF)?=y$", each, re.MULTILINE) for each in texts)
    need: list[Unit] = [] if default_on else [("intel_iommu=on",)]
    return [*need, *pass_through], [("intel_iommu=on",), ("iommu=force",)]


def refuse_opposites(never: Iterable[Unit], given: Sequence[str], where: str) -> None:
    """FleetError when something switches off what has to work, although nothing needs to be given for it."""
    for unit in never:
        clash = _clash(unit, given)
        if clash is not None:
            raise FleetError(f"{clash} is given there: the IOMMU stays off", file=where, hint="take it out there by hand")


def words(found: Iterable[t.Sequence[str]]) -> str:
    """Units as one line."""
    return " ".join(" ".join(unit) for unit in found)
