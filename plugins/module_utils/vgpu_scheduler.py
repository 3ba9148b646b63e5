# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler of time-sliced vGPUs that NVIDIA's driver starts with, by a file of ours in ``modprobe.d``.

A policy that ``nvidia-smi vgpu set-scheduler-state`` sets ends with the driver. The one for good is the registry key ``RmPVMRL``: for all
GPUs in ``NVreg_RegistryDwords``, for one in ``NVreg_RegistryDwordsPerDevice``. It counts from the next time that the driver is loaded.

Values (NVIDIA AI Enterprise user guide, vGPU scheduling): 0x00 best effort, 0x01 equal share, 0x11 fixed share; 0x00TT0001 and 0x00TT0011
with a slice of TT ms, 01 to 1E; 0xAAFFF001 equal share with FFF rounds a second, 3F to 3C0, and AA, 01 to 3C, as averaging factor (33 by
default). The guide's own examples contradict each other where the round robin is not strict, so no such value is written here; nor is one
for fixed share with rounds, which no source has. ``/proc/driver/nvidia/params`` shows both keys as the loaded driver was given them.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.commands import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_text, write_text

KEY = "RmPVMRL"
ALL, EACH = "NVreg_RegistryDwords", "NVreg_RegistryDwordsPerDevice"
HEAD = "# Written by gpuops.fleet, role vgpu_host: changes here are lost.\n"
SLICE_MS, ROUNDS_HZ, AVERAGING = (1, 30), (63, 960), (1, 60)
AVERAGING_DEFAULT = 33
DMESG_SECONDS = 30.0
_DIRECTORIES = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BASE = {"best-effort": 0x00, "equal-share": 0x01, "fixed-share": 0x11}


@dataclass(frozen=True)
class Options:
    """See the options of module ``vgpu_scheduler``. ``directories``: what modprobe reads."""

    schedulers: Sequence[Mapping[str, t.Any]]
    path: Path
    proc_root: Path = Path("/proc")
    state_dir: Path = Path("/var/lib/gpuops-fleet")
    dmesg: str = "dmesg"
    lease: str | None = None
    directories: Sequence[str] = _DIRECTORIES


def value(wish: Mapping[str, t.Any], field: str = "schedulers") -> str:
    """The value of ``RmPVMRL`` for a policy: ``0x00020001``. FleetError for what has none."""
    policy = str(wish["policy"])
    slice_ms, rounds, averaging = (wish.get(name) for name in ("slice_ms", "frequency_hz", "averaging"))
    if slice_ms is not None and rounds is not None:
        raise FleetError("slice_ms and frequency_hz exclude each other", field=field, hint="give one of them")
    if policy == "best-effort" and (slice_ms, rounds, averaging) != (None, None, None):
        raise FleetError("best-effort has neither slices nor rounds", field=field, hint="leave them out, or take equal-share")
    if averaging is not None and rounds is None:
        raise FleetError("averaging belongs to frequency_hz", field=field, hint="give that, too")
    if rounds is not None and policy != "equal-share":
        raise FleetError(f"no value is known for {policy} with frequency_hz", field=field, hint="give slice_ms, or take equal-share")
    for name, number, (least, most) in (
        ("slice_ms", slice_ms, SLICE_MS),
        ("frequency_hz", rounds, ROUNDS_HZ),
        ("averaging", averaging, AVERAGING),
    ):
        if number is not None and not least <= int(number) <= most:
            raise FleetError(f"{name} is {number}", field=field, hint=f"it is from {least} to {most}")
    if rounds is not None:
        return f"0x{int(averaging or AVERAGING_DEFAULT):02x}{int(rounds):03x}001"
    base = _BASE[policy]
    return f"0x{base:02x}" if slice_ms is None else f"0x00{int(slice_ms):02x}00{base:02x}"


def wished(schedulers: Sequence[Mapping[str, t.Any]]) -> dict[str, str]:
    """Value of each parameter of the kernel module that is needed; empty when nothing is wished. FleetError for a wish that cannot be."""
    found: dict[str, str] = {}
    each: dict[str, str] = {}
    for number, wish in enumerate(schedulers):
        field = f"schedulers[{number}]"
        text = value(wish, field)
        if wish.get("gpu") is None:
            if ALL in found:
                raise FleetError("two entries are for all GPUs", field=field, hint="name the GPU of one of them")
            found[ALL] = f"{KEY}={text}"
            continue
        address = str(wish["gpu"]).strip().lower()
        address = f"0000:{address}" if address.count(":") == 1 else address
        if not _ADDRESS.fullmatch(address):
            hint = "write its PCI address, such as 0000:3b:00.0: the driver knows it by nothing else when it is loaded"
            raise FleetError(f"'{wish['gpu']}' is no address of a GPU", field=field, hint=hint)
        if address in each:
            raise FleetError(f"two entries are for {address}", field=field, hint="keep one of them")
        each[address] = text
    if each:
        found[EACH] = ";".join(f"pci={address};{KEY}={each[address]}" for address in sorted(each))
    return found


def text_of(parameters: Mapping[str, str]) -> str:
    """The file; '' when there is nothing to say."""
    lines = [f'options nvidia {name}="{parameters[name]}"\n' for name in (ALL, EACH) if name in parameters]
    return HEAD + "".join(lines) if lines else ""


def apply(options: Options, check: bool) -> dict[str, t.Any]:
    """The module's result. ``pending``: why the wish waits for a reboot; ``leftover``: what nobody wishes and is in force until one.

    :raises FleetError: nothing was changed.
    """
    parameters = wished(options.schedulers)
    _refuse_others(options, parameters)
    before, after = read_text(options.path) or "", text_of(parameters)
    if before and not before.startswith(HEAD):
        raise FleetError("somebody else wrote this file", file=str(options.path), hint="move it away, or set another path")
    changed = before != after
    if changed and not check:
        leases.check(options.state_dir, options.lease)
        if after:
            write_text(options.path, after, 0o644)
        else:
            options.path.unlink(missing_ok=True)
    loaded = in_force(options.proc_root)
    waiting = [] if loaded is None else [f'{name}="{text}"' for name, text in parameters.items() if loaded.get(name) != text]
    left = [] if loaded is None else [f'{name}="{text}"' for name, text in loaded.items() if KEY in text and name not in parameters]
    return {
        "changed": changed,
        "path": str(options.path),
        "parameters": parameters,
        "pending": f"the driver that is loaded was not given {' and '.join(waiting)}" if waiting else None,
        "leftover": " and ".join(left) if left else None,
        "kernel": _told(options.dmesg) if parameters and not waiting and loaded is not None else [],
        "diff": {"before": before, "after": after, "before_header": str(options.path), "after_header": str(options.path)},
    }


def in_force(proc_root: Path) -> dict[str, str] | None:
    """What the loaded driver was given: both parameters, '' for none. None: no driver is loaded, so that nothing waits."""
    text = read_text(proc_root / "driver/nvidia/params")
    if text is None:
        return None
    found = {}
    for name in (ALL, EACH):
        line = re.search(rf'^{name[len("NVreg_") :]}: "(.*)"$', text, re.MULTILINE)
        found[name] = line.group(1) if line else ""
    return found


def _refuse_others(options: Options, parameters: Mapping[str, str]) -> None:
    """The kernel takes one of two texts for a parameter, and which one is nobody's plan."""
    for directory in options.directories:
        for path in sorted(Path(directory).glob("*.conf")) if Path(directory).is_dir() else []:
            if path == options.path:
                continue
            for number, line in enumerate((read_text(path) or "").splitlines(), 1):
                words = line.split("#")[0].split()
                names = {word.partition("=")[0] for word in words[2:]}
                both = sorted(names & set(parameters))
                if words[:1] == ["options"] and words[1:2] == ["nvidia"] and both:
                    hint = "take that line away, or leave vgpu_host_schedulers empty and set the policy there"
                    raise FleetError(f"{both[0]} is given here", file=str(path), line=number, hint=hint)


def _told(dmesg: str) -> list[str]:
    """What the kernel says of schedulers; nothing where it says nothing, or may not be asked."""
    try:
        done = run([dmesg], DMESG_SECONDS)
    except FleetError:
        return []
    lines = [line.strip() for line in done.output.splitlines() if "NVRM" in line and "scheduler" in line.lower()]
    return [re.sub(r"^\[[ 0-9.]+\] ", "", line) for line in lines]
