# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How busy the devices of services are, over some seconds: by NVML where the board counts, by DCGM for slices of a board where it does not.

* Hopper and newer: GPM, for a whole GPU and for a slice.
* A whole GPU: NVML's utilisation rates, asked every second.
* A slice of an older board: only DCGM knows (field 1001, ``dcgmi dmon``), where it is installed and its host engine runs
  (https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html, "Profiling metrics", "Multi-Instance GPU").

What cannot be seen is said so, and never taken for idle.
"""

from __future__ import annotations

import re
import shutil
import time
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Handle, NvmlError
from ansible_collections.gpuops.fleet.plugins.module_utils.service_leases import Load
from ansible_collections.gpuops.fleet.plugins.module_utils.slices import Device

# A session with NVML keeps a GPU from changing its mode, so it is short.
SECONDS = 3
_FIELD = "1001"  # DCGM_FI_PROF_GR_ENGINE_ACTIVE
_SLACK_S = 20.0
# ``GPU 0 | GPU GPU-5fd1... (EntityID: 0)`` and below it ``-> I 0/1 | GPU Instance (EntityID: 0)``: NVML's ids of GPU and instance.
_GPU = re.compile(r"GPU (?P<uuid>GPU-[0-9a-f-]+) \(EntityID: \d+\)")
_INSTANCE = re.compile(r"-> I \d+/(?P<instance>\d+)\s*\|.*\(EntityID: (?P<entity>\d+)\)")
# ``GPU-I 0     0.123``
_ROW = re.compile(r"^GPU-I (?P<entity>\d+)\s+(?P<share>\S+)\s*$", re.MULTILINE)

# GPU, and the profile and start of its slice ('' and -1 for the whole GPU).
_Key = tuple[str, str, int]


@dataclass
class _Place:
    """One device while it is looked at."""

    handle: Handle = None
    uuid: str = ""
    instance: int | None = None
    gpm: t.Any = None
    shares: list[float] = field(default_factory=list)
    blind: str = ""


def measure(
    devices: Mapping[str, Sequence[Device]], seconds: int = SECONDS, dcgmi: str = "dcgmi", sleep: Callable[[float], None] = time.sleep
) -> dict[str, Load]:
    """How busy each replica's devices are; of several the busiest counts. It takes ``seconds``, or no time when there is nothing to see."""
    found: dict[_Key, _Place] = {}
    try:
        with Nvml() as nvml:
            for key in sorted({_key(device) for several in devices.values() for device in several}):
                found[key] = _find(nvml, *key)
            _sample(nvml, list(found.values()), seconds, sleep)
    except NvmlError as error:
        return {name: Load(None, f"the driver does not answer ({error})") for name in devices}
    _ask_dcgm([place for place in found.values() if place.instance is not None and not place.shares and not place.blind], seconds, dcgmi)
    return {name: _load([found[_key(device)] for device in several]) for name, several in devices.items()}


def _key(device: Device) -> _Key:
    return device.gpu, device.profile or "", -1 if device.start is None else device.start


def _load(places: Sequence[_Place]) -> Load:
    blind = [place.blind for place in places if place.blind]
    if blind or not places:
        return Load(None, blind[0] if blind else "it has no GPU")
    return Load(max(sum(place.shares) / len(place.shares) for place in places))


def _find(nvml: Nvml, gpu: str, profile: str, start: int) -> _Place:
    place = _Place()
    try:
        place.handle = nvml.find(gpu)
        place.uuid = nvml.uuid(place.handle)
        mode = nvml.mig_mode(place.handle)
        if profile:
            instances = nvml.gpu_instances(place.handle) if mode is not None and mode.current else []
            place.instance = next((one.id for one in instances if one.start == start), None)
            if place.instance is None:
                place.blind = f"there is no slice {profile}@{start} of {gpu}"
        if not place.blind and nvml.has_gpm(place.handle):
            place.gpm = nvml.gpm_sample(place.handle, place.instance)
    except NvmlError as error:
        place.blind = str(error)
    return place


def _sample(nvml: Nvml, places: Sequence[_Place], seconds: int, sleep: Callable[[float], None]) -> None:
    """Fill ``shares`` of what NVML can see."""
    by_rate = [place for place in places if not place.blind and place.gpm is None and place.instance is None]
    counted = [place for place in places if place.gpm is not None]
    for _second in range(seconds if by_rate or counted else 0):
        sleep(1)
        for place in by_rate:
            _note(place, partial(nvml.utilization, place.handle))
    for place in counted:
        _note(place, partial(_counted, nvml, place))


def _note(place: _Place, read: Callable[[], float | None]) -> None:
    try:
        share = read()
    except NvmlError as error:
        place.blind = str(error)
        return
    if share is None:
        place.blind = "NVML does not tell how busy it is"
    else:
        place.shares.append(share)


def _counted(nvml: Nvml, place: _Place) -> float | None:
    try:
        second = nvml.gpm_sample(place.handle, place.instance)
        try:
            return nvml.gpm_busy(place.gpm, second)
        finally:
            nvml.gpm_free(second)
    finally:
        nvml.gpm_free(place.gpm)


# ---- slices of boards that count nothing for NVML


def _ask_dcgm(places: Sequence[_Place], seconds: int, dcgmi: str) -> None:
    if not places:
        return
    program = shutil.which(dcgmi)
    if program is None:
        words = f"NVML does not tell how busy a slice of this board is, and there is no {dcgmi}"
    else:
        words = _by_dcgm(places, seconds, program)
    for place in places:
        if not place.shares and not place.blind:
            place.blind = words


def _by_dcgm(places: Sequence[_Place], seconds: int, program: str) -> str:
    """Fill ``shares`` by DCGM; why they stay empty where they do."""
    try:
        told = commands.run([program, "discovery", "--compute-hierarchy"], _SLACK_S)
        if told.status:
            return f"{program} discovery: {told.words}"
        entities = instances_of(told.output)
        known = {entities[place.uuid, place.instance]: place for place in places if (place.uuid, place.instance) in entities}
        if not known:
            return f"{program} does not know the slice"
        ids = ",".join(f"i:{entity}" for entity in sorted(known))
        told = commands.run([program, "dmon", "-e", _FIELD, "-i", ids, "-d", "1000", "-c", str(seconds + 1)], seconds + _SLACK_S)
    except FleetError as error:
        return str(error)
    for entity, share in shares_of(told.output):
        if entity in known:
            known[entity].shares.append(share)
    return f"{program} dmon: {told.words}" if told.status else f"{program} tells nothing of the slice"


def instances_of(text: str) -> dict[tuple[str, int | None], int]:
    """DCGM's entity id by (GPU UUID, NVML's id of the GPU instance), of what ``dcgmi discovery --compute-hierarchy`` prints."""
    found: dict[tuple[str, int | None], int] = {}
    gpu = ""
    for line in text.splitlines():
        if head := _GPU.search(line):
            gpu = head["uuid"]
        elif row := _INSTANCE.search(line):
            found[gpu, int(row["instance"])] = int(row["entity"])
    return found


def shares_of(text: str) -> list[tuple[int, float]]:
    """(entity id, share of the time, 0 to 1) of each row of ``dcgmi dmon`` with a number; the first sample after a start is ``N/A``."""
    found = []
    for row in _ROW.finditer(text):
        try:
            share = float(row["share"])
        except ValueError:
            continue
        if 0 <= share <= 1.5:  # SM_ACTIVE and its like were seen a little above 1 (DCGM issue 152)
            found.append((int(row["entity"]), share))
    return found
