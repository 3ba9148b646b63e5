# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which vGPUs GPUs shall have: read from the option that people wrote or from a line that the host remembers, and written as such. Pure."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Slice, parse_slice

#: More than any GPU has virtual functions or vGPUs.
MOST_VGPUS = 256
POLICIES = ("best-effort", "equal-share", "fixed-share")
# NVIDIA's user guide of vGPU software: a slice lasts 1 to 30 ms, a round goes 63 to 960 times a second.
SLICE_MS = (1, 30)
FREQUENCY_HZ = (63, 960)
PLACEMENT = "vgpu-placement-id"
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]+")
_VALUE = re.compile(r"[^\s,=]+")

Params = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Wanted:
    """One vGPU. ``params`` None: whatever it has. ``instance``: a GPU instance that has to be there for it.

    ``place`` and ``uuid``: where it is or was, and how it was called, when that is to be so again.
    """

    type: str
    params: Params | None = None
    placement: int | None = None
    instance: Slice | None = None
    place: str | None = None
    uuid: str | None = None

    @property
    def speaks(self) -> bool:
        """Whether it says anything of parameters."""
        return self.params is not None or self.placement is not None

    def stored(self, here: Params) -> Params:
        """The parameters that it shall have, of one that has ``here``."""
        if not self.speaks:
            return here
        kept = here if self.params is None else tuple(sorted(self.params))
        if self.placement is None:
            return kept
        others = [pair for pair in kept if pair[0] != PLACEMENT]
        return tuple(sorted([*others, (PLACEMENT, str(self.placement))]))


@dataclass(frozen=True)
class Scheduler:
    """How a GPU shares its time among its vGPUs. ``slice_ms`` and ``frequency_hz`` None: the driver's own."""

    policy: str
    slice_ms: int | None = None
    frequency_hz: int | None = None

    def __str__(self) -> str:
        more = [f"{self.slice_ms} ms"] if self.slice_ms is not None else []
        more += [f"{self.frequency_hz} Hz"] if self.frequency_hz is not None else []
        return " ".join([self.policy, *more])


@dataclass(frozen=True)
class Wish:
    """What one GPU shall have. ``vgpus`` None: those that it has. ``vfs``: ``auto`` (on where vGPUs need them), ``off`` or ``on``.

    ``instances``: GPU instances that module mig makes before, of which check mode takes for granted that they are there; None: as they are.
    """

    gpu: str
    vgpus: tuple[Wanted, ...] | None
    mixed: bool = False
    scheduler: Scheduler | None = None
    vfs: str = "auto"
    instances: tuple[Slice, ...] | None = None
    source: str | None = None


def parse_gpus(entries: Sequence[Mapping[str, t.Any]]) -> list[Wish]:
    """Option ``gpus`` of module ``vgpu``. FleetError names the field."""
    return [_parse_gpu(entry, f"gpus[{number}]") for number, entry in enumerate(entries)]


def _parse_gpu(entry: Mapping[str, t.Any], field: str) -> Wish:
    names = [str(entry.get(key)).strip() for key in ("gpu", "parent") if entry.get(key)]
    if len(names) != 1:
        hint = "give gpu: a UUID or PCI address, or parent: a name in /sys/class/mdev_bus"
        raise FleetError("no GPU is named" if not names else "a GPU and a parent are named", field=f"{field}.gpu", hint=hint)
    listed = entry.get("vgpus")
    each = [_parse_vgpu(item, f"{field}.vgpus[{number}]") for number, item in enumerate(listed or ())]
    wanted = None if listed is None else [one for several in each for one in several]
    if wanted and len(wanted) > MOST_VGPUS:
        raise FleetError(f"{len(wanted)} vGPUs are more than any GPU has", field=f"{field}.vgpus", hint=f"wish at most {MOST_VGPUS}")
    vfs = entry.get("vfs") or "auto"
    if vfs == "off" and wanted:
        raise FleetError("virtual functions off, and vGPUs on them", field=f"{field}.vfs", hint="write vfs: auto, or vgpus: []")
    if vfs == "off" and wanted is None:
        raise FleetError("virtual functions off, and nothing is said of the vGPUs on them", field=f"{field}.vgpus", hint="write vgpus: []")
    instances = entry.get("instances")
    return Wish(
        names[0],
        None if wanted is None else tuple(wanted),
        bool(entry.get("mixed")),
        _parse_scheduler(entry.get("scheduler"), f"{field}.scheduler"),
        vfs,
        None if instances is None else tuple(_slice(text, f"{field}.instances") for text in instances),
        entry.get("source"),
    )


def _slice(text: t.Any, field: str) -> Slice:
    try:
        return parse_slice(str(text))
    except (FleetError, ValueError) as error:
        raise FleetError(f"'{text}' names no GPU instance", field=field, hint="write profile and start, as in 1g.10gb@0") from error


def _parse_vgpu(item: Mapping[str, t.Any], field: str) -> list[Wanted]:
    name = str(item.get("type") or "").strip()
    if not name:
        raise FleetError("no vGPU type is named", field=f"{field}.type", hint="write one like A100D-10C")
    count = item.get("count")
    count = 1 if count is None else count
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_VGPUS:
        raise FleetError(f"a count of {count} is impossible", field=f"{field}.count", hint=f"write a number from 0 to {MOST_VGPUS}")
    placement = item.get("placement")
    if placement is not None and (isinstance(placement, bool) or placement < 0):
        raise FleetError(f"'{placement}' is no placement id", field=f"{field}.placement", hint="write one that nvidia-smi vgpu -c -v lists")
    instance = item.get("gpu_instance")
    for key, value in (("placement", placement), ("gpu_instance", instance)):
        if value is not None and count > 1:
            raise FleetError(f"{count} vGPUs cannot have one {key}", field=f"{field}.{key}", hint="write one entry for each")
    params = item.get("params")
    one = Wanted(
        name,
        None if params is None else _parse_params(params, f"{field}.params"),
        placement,
        None if instance is None else _slice(instance, f"{field}.gpu_instance"),
    )
    return [one] * count


def _parse_params(params: Mapping[str, t.Any], field: str) -> Params:
    found = {}
    for name, value in params.items():
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if name == PLACEMENT:
            raise FleetError("the placement has an option of its own", field=f"{field}.{name}", hint=f"write placement: {text}")
        if not _PARAMETER.fullmatch(str(name)) or not _VALUE.fullmatch(text):
            hint = "write a name and a value without spaces, commas and equals signs, as in frame_rate_limiter: 0"
            raise FleetError(f"'{name}={text}' cannot be written", field=field, hint=hint)
        found[str(name)] = text
    return tuple(sorted(found.items()))


def _parse_scheduler(value: Mapping[str, t.Any] | None, field: str) -> Scheduler | None:
    if value is None:
        return None
    policy, slice_ms, frequency = value.get("policy"), value.get("slice_ms"), value.get("frequency_hz")
    if policy not in POLICIES:
        raise FleetError(f"'{policy}' is no policy", field=f"{field}.policy", hint=f"write {', '.join(POLICIES)}")
    for name, number, (least, most) in (("slice_ms", slice_ms, SLICE_MS), ("frequency_hz", frequency, FREQUENCY_HZ)):
        if number is None:
            continue
        if policy == "best-effort":
            raise FleetError("best-effort has no slices to set", field=f"{field}.{name}", hint="leave it out, or choose another policy")
        if isinstance(number, bool) or not least <= number <= most:
            raise FleetError(f"{number} is impossible", field=f"{field}.{name}", hint=f"write {least} to {most}")
    if slice_ms is not None and frequency is not None:
        hint = "a round that adapts itself takes frequency_hz, one that does not takes slice_ms"
        raise FleetError("slice_ms and frequency_hz exclude each other", field=field, hint=hint)
    return Scheduler(policy, slice_ms, frequency)


# Parameters as the driver stores them


def params_of(text: str | None) -> Params:
    """``a=1, b=2`` as sorted pairs."""
    pairs = [part.strip().partition("=") for part in (text or "").split(",") if part.strip()]
    return tuple(sorted((name.strip(), value.strip()) for name, _equals, value in pairs))


def params_text(params: Params) -> str:
    """What is written into ``vgpu_params``; a single space clears them (NVIDIA's user guide)."""
    return ",".join(f"{name}={value}" for name, value in params) or " "


# What the host remembers


def line_of(wish: Wish) -> dict[str, t.Any]:
    """A wish as plain data: ``{vfs, mixed, scheduler, vgpus: [{type, params, placement, place, uuid}]}``."""
    scheduler = wish.scheduler
    return {
        "vfs": wish.vfs,
        "mixed": wish.mixed,
        "scheduler": None if scheduler is None else [scheduler.policy, scheduler.slice_ms, scheduler.frequency_hz],
        "vgpus": [
            {
                "type": one.type,
                "params": None if one.params is None else [list(pair) for pair in one.params],
                "placement": one.placement,
                "place": one.place,
                "uuid": one.uuid,
            }
            for one in wish.vgpus or ()
        ],
    }


def wish_of_line(gpu: str, line: t.Any) -> Wish:
    """Read back what :func:`line_of` wrote. FleetError when it is of another form."""
    try:
        scheduler = line["scheduler"]
        vgpus = [
            Wanted(
                str(one["type"]),
                None if one["params"] is None else tuple((str(name), str(value)) for name, value in one["params"]),
                None if one["placement"] is None else int(one["placement"]),
                place=None if one["place"] is None else str(one["place"]),
                uuid=None if one["uuid"] is None else str(one["uuid"]),
            )
            for one in line["vgpus"]
        ]
        return Wish(gpu, tuple(vgpus), bool(line["mixed"]), None if scheduler is None else Scheduler(*scheduler), str(line["vfs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FleetError(f"what is remembered of {gpu} cannot be read: {type(error).__name__} {error}") from error


def anywhere(wish: Wish) -> Wish:
    """The same without places and names."""
    return replace(wish, vgpus=None if wish.vgpus is None else tuple(replace(one, place=None, uuid=None) for one in wish.vgpus))
