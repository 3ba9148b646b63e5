# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's command line of a host: look, what is missing, act, and what waits for a reboot."""

from __future__ import annotations

import gzip
import re
import typing as t
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.boot_loader import Place, find, units_in
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.host import read_iommu
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text
from ansible_collections.gpuops.fleet.plugins.module_utils.kernel_parameters import (
    AMD,
    INTEL,
    for_iommu,
    is_given,
    is_written,
    missing,
    refuse_opposites,
    tokens,
    units,
    words,
)

_SIZES = ("2M", "1G")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
# ACPI's table that describes the IOMMU, and what its switch in the firmware is called.
_TABLES = {INTEL: ("DMAR", "VT-d"), AMD: ("IVRS", "AMD-Vi (IOMMU)")}


@dataclass(frozen=True)
class Options:
    """See the options of module ``kernel_parameters``."""

    name: str
    parameters: Sequence[str] = ()
    hugepages: t.Mapping[str, t.Any] | None = None
    iommu: bool = False
    identity: bool = False
    loader: str = "auto"
    root: str = "/"
    state_dir: str = "/var/lib/gpuops-fleet"
    proc_root: str = "/proc"
    sys_root: str = "/sys"
    deadline: float = 300.0
    lease: str | None = None


def apply(options: Options, check: bool) -> dict[str, t.Any]:
    """The module's result. FleetError: nothing was changed, or what failed is as it was before."""
    if not _NAME.fullmatch(options.name):
        raise FleetError(f"'{options.name}' is no name", field="name", hint="use a-z, 0-9 and '-'; start with a letter")
    vendor, configs = _vendor(Path(options.proc_root)), _configs(options)
    need, never = for_iommu(vendor, configs, options.identity) if options.iommu else ([], [])
    wish = units([*(" ".join(unit) for unit in need), *_pages(options.hugepages or {}), *options.parameters])
    loader = find(
        Place(Path(options.root), options.name, Path(options.state_dir), Path(options.sys_root), options.deadline), options.loader
    )
    others = loader.others()
    where = "the settings of the boot loader"
    refuse_opposites(never, others, where)
    lacking = missing(wish, others, where)
    before, after = loader.ours(), loader.text(lacking)
    gone = [unit for unit in units_in(before) if unit not in lacking and not is_written(unit, others)]
    changed = before != after or not loader.settled(lacking, gone)
    if changed and not check:
        leases.check(Path(options.state_dir), options.lease)
        loader.apply(lacking, gone)
    running = tokens(read_text(Path(options.proc_root) / "cmdline") or "")
    waiting = [unit for unit in wish if not is_given(unit, running)]
    leaving = [unit for unit in gone if is_written(unit, running)]
    pending = f"the running kernel was not given {words(waiting)}" if waiting else None
    return {
        "changed": changed,
        "loader": loader.kind,
        "path": loader.path,
        "parameters": [" ".join(unit) for unit in lacking],
        "given": [" ".join(unit) for unit in wish if unit not in lacking],
        "removed": [" ".join(unit) for unit in gone],
        "pending": pending,
        "leftover": f"the running kernel still has {words(leaving)}" if leaving else None,
        "iommu": _iommu(options, vendor, pending),
        "diff": {"before": before or "", "after": after or "", "before_header": loader.path, "after_header": loader.path},
    }


def _pages(wished: t.Mapping[str, t.Any]) -> list[str]:
    """Huge pages as parameters, the smaller ones first. FleetError for what is no size or no number of them."""
    for size, count in wished.items():
        if size not in _SIZES or not str(count).isdigit() or int(count) < 1:
            raise FleetError(f"{count} pages of '{size}' cannot be", field="hugepages", hint="write {'1G': 64}, or {'2M': 8192}")
    return [f"hugepagesz={size} hugepages={wished[size]}" for size in _SIZES if size in wished]


def _vendor(proc: Path) -> str | None:
    """Who made the processor, as it says itself; None where it does not (ARM)."""
    found = re.search(r"^vendor_id\s*:\s*(\S+)", read_text(proc / "cpuinfo") or "", re.MULTILINE)
    return found.group(1) if found else None


def _configs(options: Options) -> list[str]:
    """How the installed kernels were built; the one that runs, where no file says it."""
    found = [text for path in sorted((Path(options.root) / "boot").glob("config-*")) if (text := read_text(path))]
    if found:
        return found
    try:
        return [gzip.decompress((Path(options.proc_root) / "config.gz").read_bytes()).decode(errors="replace")]
    except (OSError, EOFError):
        return []


def _iommu(options: Options, vendor: str | None, pending: str | None) -> dict[str, t.Any]:
    """Whether it works, and if it does not and nothing waits, why. By its function: a parameter proves nothing."""
    active = bool(read_iommu(options.sys_root)["active"])
    problem = None
    if not active and pending is None:
        table, switch = _TABLES.get(vendor or "", (None, "its IOMMU"))
        there = table is not None and (Path(options.sys_root) / "firmware/acpi/tables" / table).exists()
        if table is not None and not there:
            problem = f"the IOMMU does not work: the firmware has no {table} table; switch on {switch} there"
        else:
            problem = "the IOMMU does not work, and nothing waits for a reboot; look at `dmesg | grep -i iommu`"
    return {"vendor": vendor, "active": active, "problem": problem}
