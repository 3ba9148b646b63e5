# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A GPU's mode as one thing: which it has, what has to be done for another one, and whether it has it then. Pure.

Five modes: ``whole``, ``mig`` and ``shared`` for services of the host, ``vgpu`` and ``passthrough`` for virtual machines. To the hardware
``shared`` is ``whole``: what makes it shared (MPS, say) comes with the plan.
"""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.fleet.plugins.module_utils.drains import words
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import parse_slice
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import given_away, gpu_names

Data = Mapping[str, t.Any]

MODES = ("whole", "mig", "shared", "vgpu", "passthrough")
PLANNED = ("whole", "mig")  # what a GPU of the host's own services is to the hardware
# How a drain begins that this playbook made. No person's would: theirs is never taken over, and never released.
REASON = "playbook mode"
_LONGEST = 200


@dataclass(frozen=True)
class Target:
    """One GPU. ``was``: what it is to the hardware now; ``layout``: its entry of ``fleet_gpu_layouts`` as it shall be."""

    host: str
    pci: str
    uuid: str | None
    was: str
    layout: Data
    mig: bool = False

    @property
    def mode(self) -> str:
        """As a person names it."""
        return str(self.layout["mode"])

    @property
    def wanted(self) -> str:
        """The same to the hardware."""
        return "whole" if self.mode == "shared" else self.mode

    @property
    def slices(self) -> list[str]:
        """GPU instances that vGPUs need."""
        return list(self.layout.get("slices") or ()) if self.mode == "vgpu" else []

    @property
    def cut(self) -> bool:
        """Whether MIG mode has to be on."""
        return self.wanted == "mig" or bool(self.slices)

    def data(self) -> dict[str, t.Any]:
        """As the playbook carries it."""
        parts = ("host", "pci", "uuid", "was", "mig")
        return {**{part: getattr(self, part) for part in parts}, "layout": dict(self.layout)}


def target(data: Data) -> Target:
    """The reverse of :meth:`Target.data`."""
    return Target(str(data["host"]), str(data["pci"]), data["uuid"], str(data["was"]), data["layout"], bool(data["mig"]))


def named(value: t.Any) -> list[str]:
    """The GPUs that ``-e gpu=`` names: a list, or text with commas. FleetError when it names none."""
    parts = value.split(",") if isinstance(value, str) else value
    names = [str(part).strip() for part in parts or () if str(part).strip()] if isinstance(parts, list | tuple) else []
    if not names:
        raise FleetError("no GPU is named", field="gpu", hint="-e gpu=GPU-5c1f8f7e-... or -e gpu=0000:3b:00.0, several with commas")
    return names


def find(hosts: Mapping[str, Data], names: Iterable[str]) -> list[tuple[str, Data]]:
    """(host, GPU in the form of ``gpus`` of the facts) for each name, a UUID or a PCI address. ``hosts``: name -> {facts}.

    :raises FleetError: one is nowhere, on several hosts, named twice, or has no address, so that nothing could be done to it.
    """
    found: list[tuple[str, Data]] = []
    for name in names:
        wanted = name.lower()
        here = [
            (host, entry)
            for host in sorted(hosts)
            for entry in [*((hosts[host].get("facts") or {}).get("gpus") or ()), *given_away(hosts[host].get("facts") or {})]
            if wanted in gpu_names(entry) - {str(entry.get("index", ""))}
        ]
        if not here:
            wrong = f"there is no GPU '{name}' on {', '.join(sorted(hosts)) or 'any host'}"
            raise FleetError(wrong, field="gpu", hint="name its UUID or its PCI address")
        if len(here) > 1:
            on = ", ".join(host for host, _entry in here)
            raise FleetError(f"'{name}' is a GPU of each of {on}", field="gpu", hint="name its UUID, or one host: --limit")
        if here[0] in found:
            raise FleetError(f"GPU '{name}' is named twice", field="gpu", hint="name each GPU once")
        found.append(here[0])
    return found


def mode_of(entry: Data) -> str:
    """What a GPU is to the hardware now; in MIG mode it is as well while that waits for a reset."""
    if entry.get("held"):
        return "passthrough"
    if entry.get("vgpu"):
        return "vgpu"
    return "mig" if _mig(entry) else "whole"


def _mig(entry: Data) -> bool:
    mig = entry.get("mig") or {}
    return bool(mig.get("current") or mig.get("pending"))


def refusal(host: str, entry: Data, layout: Data, facts: Data) -> str | None:
    """Why a GPU cannot have this mode, as far as facts tell; None when they do not. What else there is, the modules say in check mode."""
    where, mode = f"{host}: GPU {entry.get('pci')}", layout["mode"]
    if entry.get("held") is None and entry.get("state") != "ok":
        return f"{where} is {entry.get('state')}: {entry.get('error') or 'no reason given'}"
    wants_mig = mode == "mig" or (mode == "vgpu" and layout.get("slices"))
    if wants_mig and entry.get("held") is None and entry.get("mig") is None:
        return f"{where} ({entry.get('name')}) has no MIG"
    if mode == "passthrough" and not (facts.get("iommu") or {}).get("active"):
        return f"{where}: the IOMMU of this host does not work; role passthrough_host tells the kernel, the firmware has to allow it"
    if mode == "passthrough" and entry.get("virtualization") in ("passthrough", "vgpu"):
        return f"{where} is itself a virtual machine's: its own host gives it away, not this one"
    drain = (facts.get("host") or {}).get("drain") or entry.get("drain")
    if drain and not str(drain["reason"]).startswith(REASON):
        return f"{where} is {words(drain)}; release it first: ansible-playbook gpuops.fleet.release --limit {host}"
    users = list((entry.get("held") or {}).get("users") or ()) if mode != "passthrough" else []
    if users:
        return f"{where} is in use by {', '.join(users)}: shut that down first"
    return None


def work(targets: Sequence[Target]) -> dict[str, list[dict[str, t.Any]]]:
    """What modules are told, in this order, so that each GPU leaves its mode and enters the other with the least changes.

    ``vgpus_off`` (module ``vgpu``), ``back`` (``passthrough``), ``mig``, ``away`` (``passthrough``), ``vgpus`` (``vgpu``). A GPU that is
    not concerned is not named. ``mig_known``: those of ``mig`` that NVML can be asked about before the others are done.
    """
    mig = [(one, line) for one in targets for line in [_mig_line(one)] if line is not None]
    return {
        "vgpus_off": [{"gpu": one.pci, "vgpus": [], "vfs": "off"} for one in targets if one.was == "vgpu" != one.wanted],
        "back": [{"device": one.pci, "state": "host"} for one in targets if one.was == "passthrough" != one.wanted],
        "mig": [line for _one, line in mig],
        "mig_known": [line for one, line in mig if one.was in PLANNED],
        "away": [{"device": one.pci, "state": "vfio"} for one in targets if one.wanted == "passthrough"],
        "vgpus": [_vgpu_line(one) for one in targets if one.wanted == "vgpu"],
    }


def _mig_line(one: Target) -> dict[str, t.Any] | None:
    """Its line for module ``mig``; None when its MIG mode is as it has to be. What the last guest left of it nobody knows."""
    if one.wanted == "passthrough" == one.was:
        return None
    if one.slices:
        parsed = [parse_slice(text) for text in one.slices]
        return {"gpu": one.pci, "instances": [{"profile": each.profile, "start": each.start, "compute": "keep"} for each in parsed]}
    if one.was != "passthrough" and one.mig is one.cut:
        return None
    return {"gpu": one.pci, "mig": one.cut}


def _vgpu_line(one: Target) -> dict[str, t.Any]:
    parts = ("mixed", "scheduler")
    line = {"gpu": one.pci, "vgpus": [_bare(each) for each in one.layout["vgpus"]]}
    line.update({part: _bare(one.layout[part]) for part in parts if one.layout.get(part) is not None})
    return {**line, **({"instances": one.slices} if one.slices else {})}


def _bare(value: t.Any) -> t.Any:
    return {key: each for key, each in value.items() if each is not None} if isinstance(value, Mapping) else value


def projects(plan: Data | None, gpus: Iterable[str | None]) -> list[str]:
    """The projects that a plan has on these GPUs, with the surges that there may be."""
    wanted = set(gpus)
    lines = [
        line
        for line in (plan or {}).get("services") or ()
        if managed(line) and not wanted.isdisjoint(line.get("gpus") or [line.get("gpu")])
    ]
    return sorted({name_of(line) for line in lines} | {f"{line['service']}-surge" for line in lines})


def left_drained(facts: Data, gpus: Iterable[str | None]) -> str | None:
    """Who drained one of these GPUs by a run of this playbook that did not come to its end; None when nobody did."""
    wanted = set(gpus)
    drains = [(gpu.get("uuid"), gpu.get("drain")) for gpu in facts.get("gpus") or ()]
    drains += [(drain.get("gpu"), drain) for drain in facts.get("drains_idle") or ()]
    return next((str(drain["by"]) for uuid, drain in drains if drain and uuid in wanted and str(drain["reason"]).startswith(REASON)), None)


def drain_reason(problem: str) -> str:
    """Why GPUs stay drained, for whoever reads the drain."""
    text = " ".join(problem.split())
    return f"{REASON}: {text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}"


def problems(facts: Data, targets: Iterable[Target]) -> list[str]:
    """What GPUs lack of their modes, one line each; ``facts`` are read after everything was done."""
    lines = []
    entries = {str(entry.get("pci")): entry for entry in [*(facts.get("gpus") or ()), *given_away(facts)]}
    for one in targets:
        entry = entries.get(one.pci)
        if entry is None:
            lines.append(f"{one.host}: GPU {one.pci} is not there any more: neither its driver nor vfio has it")
        elif wrong := _wrong(entry, one):
            lines.append(f"{one.host}: GPU {one.pci} {wrong}")
    return lines


def _wrong(entry: Data, one: Target) -> str | None:
    now, mig = mode_of(entry), entry.get("mig") or {}
    if one.uuid and entry.get("uuid") and entry["uuid"] != one.uuid:
        return f"is another one now, {entry['uuid']}"
    if mig.get("current") != mig.get("pending"):
        return f"waits for a reset until its MIG mode is {'on' if mig.get('pending') else 'off'}"
    if now != one.wanted:
        return f"is in mode {now} and not {one.wanted}"
    if now == "vgpu":
        have = Counter(str(each["type"]) for each in entry["vgpu"]["vgpus"])
        want = Counter({_short(str(each["type"])): 0 for each in one.layout["vgpus"]})
        for each in one.layout["vgpus"]:
            want[_short(str(each["type"]))] += int(each.get("count") or 1)
        if have != want:
            return f"gives {_counted(have)} and not {_counted(want)}"
    return None


def _short(name: str) -> str:
    """A type without its maker: ``NVIDIA A100D-10C`` is ``A100D-10C``."""
    return name.split()[-1]


def _counted(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items())) or "no vGPU"
