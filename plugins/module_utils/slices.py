# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From (GPU, profile, start) to the UUID that a container is given, at this moment; and the ``.env`` file that carries it.

A MIG UUID may change whenever its slice is made again, so it is looked up on the host as late as possible and stored nowhere else.
``devices.json`` beside the ``.env`` keeps what it was looked up from, so that the host agent writes it anew after a boot:
``{format: 1, project, style: cdi | uuid, entries: [{name, gpu: UUID, profile?, start?}]}``.
"""

from __future__ import annotations

import json
import re
import typing as t
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import find_profile
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Handle, as_named

KNOWN_AFTER_APPLY = "(known after apply)"
CDI_KIND = "nvidia.com/gpu"
DEVICES_FILE = "devices.json"
STYLES = ("uuid", "cdi")
# The options of a module that says what devices a replica has (doc fragment gpuops.fleet.host.devices).
DEVICE_OPTIONS: dict[str, t.Any] = {
    "entries": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "gpu": {"type": "str", "required": True},
            "profile": {"type": "str"},
            "start": {"type": "int"},
        },
    },
    "style": {"type": "str", "choices": list(STYLES), "default": "uuid"},
}
HEADER = "# Written by gpuops.fleet.slice_env. The devices are looked up again at every run: do not edit, do not copy.\n"

_FORMAT = 1
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_T = t.TypeVar("_T")


@dataclass(frozen=True)
class Device:
    """A variable and what it names: a slice, or the whole GPU when there is no ``profile``."""

    name: str
    gpu: str
    profile: str | None = None
    start: int | None = None

    @property
    def where(self) -> str:
        """For people: ``slice 1g.10gb@4 of GPU-...``."""
        return self.gpu if self.profile is None else f"slice {self.profile}@{self.start} of {self.gpu}"


def parse_entries(entries: Sequence[Mapping[str, t.Any]]) -> list[Device]:
    """Option ``entries`` of module ``slice_env``. FleetError names the field."""
    devices: list[Device] = []
    for number, entry in enumerate(entries):
        field = f"entries[{number}]"
        name, profile, start = str(entry["name"]), entry.get("profile"), entry.get("start")
        if not _VARIABLE.fullmatch(name):
            raise FleetError(f"'{name}' cannot be the name of a variable", field=f"{field}.name", hint="write one like GPU_0")
        if any(device.name == name for device in devices):
            raise FleetError(f"{name} is there twice", field=f"{field}.name", hint="give each device its own name")
        if isinstance(start, bool):  # Ansible takes true for 1
            raise FleetError(f"expected a whole number, found {str(start).lower()}", field=f"{field}.start", hint="write start: 1")
        if (profile is None) != (start is None):
            raise FleetError("a slice needs both profile and start", field=field, hint="leave out both for the whole GPU")
        devices.append(Device(name, str(entry["gpu"]), profile, start))
    return devices


def identified(nvml: Nvml, devices: Sequence[Device]) -> list[Device]:
    """The same devices, each GPU by its UUID, which is all that may be kept. FleetError when one is not there or is lost."""
    return [replace(device, gpu=_found(nvml, device, nvml.uuid)) for device in devices]


def resolve(nvml: Nvml, device: Device, check: bool = False) -> str | None:
    """The UUID to give a container now: of the slice's MIG device, or of the GPU. None when that slice does not exist (yet).

    FleetError when the GPU is not there or is lost, when the board can have no such slice, or when a whole GPU is wished and MIG is on,
    for then no container can use it. Not so with ``check``: what would switch MIG off was only predicted.
    """
    return _found(nvml, device, lambda handle: _resolve(nvml, handle, device, check))


def _resolve(nvml: Nvml, handle: Handle, device: Device, check: bool) -> str | None:
    mode = nvml.mig_mode(handle)
    mig = mode is not None and mode.current
    if device.profile is not None:
        if mode is None:
            hint = "leave out profile and start for the whole GPU"
            raise FleetError(f"{device.gpu} has no MIG, so it has no slices", field=device.name, hint=hint)
        return _slice(nvml, handle, device, mig)
    if mig and not check:
        raise FleetError(f"{device.gpu} has MIG on: no container can have it whole", field=device.name, hint="name one of its slices")
    return nvml.uuid(handle)


def _found(nvml: Nvml, device: Device, use: t.Callable[[Handle], _T]) -> _T:
    """What ``use`` makes of the device's GPU. FleetError when that GPU is not there or is lost."""
    with as_named(device.gpu, device.name):
        return use(nvml.find(device.gpu))


def _slice(nvml: Nvml, handle: Handle, device: Device, mig: bool) -> str | None:
    geometry = nvml.geometry(handle)
    wanted = device.profile
    if geometry is not None:
        profile = find_profile(geometry, t.cast(str, device.profile))
        wanted = profile.name
        if device.start not in profile.starts:
            starts = ", ".join(map(str, profile.starts))
            message = f"{wanted} cannot start at memory slice {device.start} of {device.gpu}"
            raise FleetError(message, field=device.name, hint=f"it starts at one of {starts}")
    if not mig:
        return None
    for instance in nvml.gpu_instances(handle):
        if (instance.start, instance.profile) == (device.start, wanted) and instance.compute_instances:
            return instance.compute_instances[0].uuid
    return None


def resolve_all(nvml: Nvml, devices: Sequence[Device], check: bool) -> dict[str, str]:
    """UUID by variable. A slice that is not there is ``(known after apply)`` with ``check``, and a FleetError without."""
    found: dict[str, str] = {}
    for device in devices:
        uuid = resolve(nvml, device, check)
        if uuid is None and not check:
            raise FleetError(f"there is no {device.where}", field=device.name, hint="bring the GPU to its layout first (gpuops.fleet.mig)")
        found[device.name] = uuid or KNOWN_AFTER_APPLY
    return found


def env_values(uuids: Mapping[str, str], style: str) -> dict[str, str]:
    """What each variable says. ``style``: ``uuid``, or ``cdi`` for names as ``nvidia.com/gpu=<UUID>``."""
    prefix = f"{CDI_KIND}=" if style == "cdi" else ""
    return {name: uuid if uuid == KNOWN_AFTER_APPLY else prefix + uuid for name, uuid in uuids.items()}


def env_text(uuids: Mapping[str, str], style: str) -> str:
    """The file's text, variables in the order given; ``style`` as for ``env_values``."""
    return HEADER + "".join(f"{name}={value}\n" for name, value in env_values(uuids, style).items())


def read_env(path: Path) -> str:
    """The file as it is; empty when there is none. FleetError when it cannot be read."""
    return read_text(path) or ""


def entries_of(devices: Sequence[Device]) -> list[dict[str, t.Any]]:
    """Devices as option ``entries`` has them."""
    entries = []
    for device in devices:
        place = {} if device.profile is None else {"profile": device.profile, "start": device.start}
        entries.append({"name": device.name, "gpu": device.gpu, **place})
    return entries


def devices_text(project: str, style: str, devices: Sequence[Device]) -> str:
    """The text of a ``devices.json``; every GPU by its UUID (:func:`identified`)."""
    return json.dumps({"format": _FORMAT, "project": project, "style": style, "entries": entries_of(devices)}, indent=1) + "\n"


def read_devices(path: Path) -> tuple[str, str, list[Device]] | None:
    """Project, style and devices of a ``devices.json``; None when there is none. FleetError when it is damaged."""
    data = read_json(path)
    return None if data is None else _read_devices(data, str(path))


def parse_devices(text: str) -> list[Device]:
    """The devices that a text of :func:`devices_text` names. FleetError when it is damaged."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FleetError("this text does not say which devices a service has") from error
    return _read_devices(data, None)[2]


def _read_devices(data: Mapping[str, t.Any], file: str | None) -> tuple[str, str, list[Device]]:
    hint = "apply the host's plan again: that writes it anew"
    if data.get("format") != _FORMAT or data.get("style") not in STYLES or not isinstance(data.get("project"), str):
        raise FleetError(f"this file does not say which devices a service has, in format {_FORMAT}", file=file, hint=hint)
    try:
        return data["project"], data["style"], parse_entries(data["entries"])
    except (KeyError, TypeError) as error:
        raise FleetError("its entries are damaged", file=file, field="entries", hint=hint) from error
    except FleetError as error:
        raise FleetError(error.message, file=file, field=error.field, hint=hint) from error
