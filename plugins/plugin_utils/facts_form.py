# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of host facts (docs/facts.md), of which a plan reads a part: that part is checked before anything is decided by it.

Facts come from a host, and through files that people keep and edit. What nobody reads here may be anything, and what is missing is not
known, as in facts of an older release.
"""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import MOST_MIB, ConfigDict, Field, Strict, Wrong, check, model_validator
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import FleetErrors, Located, raise_all

_HINT = "gather the facts anew: give what gpuops.fleet.gpu_info returns as 'facts'"

Mib = t.Annotated[int, Field(ge=0, le=MOST_MIB)]
# Boards have 8 or 12 memory slices and some 20 profiles; with thousands, whoever looks for the best cut never ends.
MOST_SLICES, MOST_PROFILES = 64, 64
Count = t.Annotated[int, Field(ge=0, le=10**6)]


class _Part(Strict):
    """Numbers are numbers here too; but a field that is not known may come from a newer release."""

    model_config = ConfigDict(extra="ignore")


class _Drain(_Part):
    by: str
    reason: str | None
    until: str | None
    force: bool


class _Disk(_Part):
    total_mib: Mib | None = None


class _System(_Part):
    id: str | None = None
    version: str | None = None


class _Compiler(_Part):
    installed: str | None = None
    kernel: str | None = None
    matching: bool | None = None


class _Machine(_Part):
    os: _System | None = None
    kernel: str | None = None
    gcc: _Compiler | None = None
    boot_id: str | None = None
    cpus: t.Annotated[float, Field(ge=0)] | None = None
    memory_mib: Mib | None = None
    shm_mib: Mib | None = None
    disk: _Disk | None = None
    ports_listening: list[int] | None = None
    drain: _Drain | None = None


class _Compute(_Part):
    profile: str | None = None
    uuid: str | None = None


class _Instance(_Part):
    gi: int | None = None
    profile: str
    start: Count
    ci: list[_Compute] | None = None
    temporary: bool | None = None


class _Mig(_Part):
    current: bool | None = None
    pending: bool | None = None
    geometry: str | None = None
    instances: list[_Instance] | None = None


class _Slice(_Part):
    gi: int | None = None


class _Holder(_Part):
    kind: str | None = None
    process: str | None = None
    pid: int | None = None
    container: str | None = None
    slice: _Slice | None = None


class _Vgpu(_Part):
    type: str | None = None


class _Vgpus(_Part):
    vgpus: list[_Vgpu] | None = None


class _Gpu(_Part):
    uuid: str | None = None
    pci: str | None = None
    index: int | None = None
    name: str | None = None
    device_id: str | None = None
    compute_capability: str | None = None
    virtualization: str | None = None
    state: str | None = None
    memory_mib: Mib | None = None
    mig: _Mig | None = None
    nvlink: list[str] | None = None
    vgpu: _Vgpus | None = None
    drain: _Drain | None = None
    holders: list[_Holder] | None = None


class _Profile(_Part):
    name: str
    id: int
    slices: Count
    size: Count
    memory_mib: Mib
    sm: Count
    max: Count
    starts: list[Count] = Field(max_length=MOST_SLICES)


class _Geometry(_Part):
    compute_slices: Count
    memory_slices: Count
    profiles: list[_Profile] = Field(max_length=MOST_PROFILES)


class _Identity(_Part):
    vendor: str | None = None


class _GivenAway(_Part):
    uuid: str | None = None
    pci: str | None = None
    guest: str | None = None
    identity: _Identity | None = None


class _Container(_Part):
    id: str | None = None
    name: str | None = None
    project: str | None = None
    image: str | None = None
    devices: list[str] | None = None


class _Driver(_Part):
    present: bool | None = None
    version: str | None = None
    cuda: str | None = None
    flavour: str | None = None


class _Docker(_Part):
    present: bool | None = None
    version: str | None = None
    cdi: bool | None = None
    runtimes: list[str] | None = None


class _Engine(_Part):
    docker: _Docker | None = None
    cdi_specs: list[str] | None = None


class _Lease(_Part):
    name: str
    ends: str
    ended: str | None


class _Carried(_Part):
    serial: Count
    digest: str


class _Facts(_Part):
    host: _Machine
    driver: _Driver | None = None
    engine: _Engine | None = None
    leases: list[_Lease] | None = None
    plan: _Carried | None = None
    gpus: list[_Gpu]
    geometries: dict[str, _Geometry]
    passthrough: list[_GivenAway] | None = None
    containers: list[_Container] | None = None

    @model_validator(mode="after")
    def _each_gpu_once(self) -> _Facts:
        for field, name in (("uuid", "UUID"), ("pci", "PCI address")):
            seen: dict[str, int] = {}
            for index, gpu in enumerate(self.gpus):
                value = getattr(gpu, field)
                if value is not None and seen.setdefault(value, index) != index:
                    raise Wrong(f"'{value}' is the {name} of gpus[{seen[value]}] already", _HINT, "gpus", index, field)
        return self

    @model_validator(mode="after")
    def _slices_are_on_the_board(self) -> _Facts:
        for index, gpu in enumerate(self.gpus):
            if gpu.mig is None or gpu.mig.geometry is None:
                continue
            geometry = self.geometries.get(gpu.mig.geometry)
            if geometry is None:
                raise Wrong(f"'{gpu.mig.geometry}' is none of the geometries", _HINT, "gpus", index, "mig", "geometry")
            for number, instance in enumerate(gpu.mig.instances or ()):
                if instance.start >= geometry.memory_slices:
                    wrong = f"the board has {geometry.memory_slices} memory slices, from 0"
                    raise Wrong(wrong, _HINT, "gpus", index, "mig", "instances", number, "start")
        return self


class _Given(_Part):
    facts: _Facts


def check_form(host: str, facts: t.Mapping[str, t.Any]) -> None:
    """:raises FleetError: what is read here is of another kind than it should be; each field on its own line."""
    try:
        check(_Given, Located({"facts": facts}, f"host {host}"))
    except FleetError as error:
        raise_all(_damaged(one) for one in (error.errors if isinstance(error, FleetErrors) else (error,)))


def _damaged(error: FleetError) -> FleetError:
    """What would be right is never written by hand: it is read from the host again."""
    limit = f" ({error.hint})" if error.message.endswith("is not right") else ""
    return FleetError(f"{error.message}{limit}", file=error.file, field=error.field, hint=_HINT)


def one_machine_twice(hosts: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[FleetError]:
    """An error for each host that has a GPU of another one: it would be given away twice. ``hosts``: name -> facts.

    Where one of the two does not tell since when it has been up, its facts may be made up: that is a note (:func:`gpus_named_twice`).
    """
    for name, other, known in _shared(hosts):
        if known and hosts[name]["host"]["boot_id"] == hosts[other]["host"]["boot_id"]:
            wrong = f"its GPUs are those of {other}, and both have been up since the same start: one machine under two names"
            yield FleetError(wrong, file=f"host {name}", field="facts.gpus", hint="keep one of them in the inventory")
        elif known:
            hint = "gather the facts of both anew, or call one of them down (fleet_down_hosts)"
            yield FleetError(f"it has a GPU of {other}, by the same UUID", file=f"host {name}", field="facts.gpus", hint=hint)


def gpus_named_twice(hosts: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[str]:
    """A note for each host that has a GPU of another one by its UUID, where nobody knows whether they are one machine."""
    for name, other, known in _shared(hosts):
        if not known:
            yield f"{name}: it has a GPU of {other}, by the same UUID; gather the facts of both anew"


def _shared(hosts: t.Mapping[str, t.Mapping[str, t.Any]]) -> t.Iterator[tuple[str, str, bool]]:
    """A host, another one that has one of its GPUs, and whether both tell since when they have been up."""
    owners: dict[str, str] = {}
    for name, facts in hosts.items():
        uuids = [gpu["uuid"] for gpu in facts["gpus"] if gpu.get("uuid")]
        other = next((owners[uuid] for uuid in uuids if owners.setdefault(uuid, name) != name), None)
        if other is not None:
            yield name, other, None not in (facts["host"].get("boot_id"), hosts[other]["host"].get("boot_id"))
