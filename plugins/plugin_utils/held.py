# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much replicas hold of their hosts and of shared GPUs: as a manifest has it, as a plan's line keeps it, as a container has it.

What runs holds what it was started with until it is stopped, whatever its manifest says by now. A plan's line keeps that (docs/plan.md).
"""

from __future__ import annotations

import typing as t
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.plan_record import managed, name_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import need_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Need, Resources

Data = Mapping[str, t.Any]
Key = tuple[str, int]
#: What a manifest asks of a host when it says nothing of it; a plan's line does not repeat that.
USUAL: t.Final = Resources(1.0, 2048, 64, 0)
#: Keys of a plan's line that say how much the replica holds.
AMOUNTS: t.Final = ("memory", "compute", "host")


@dataclass(frozen=True)
class Held:
    """``resources``: of the host. ``memory_mib`` and ``compute``: of each GPU that it shares with others, 0 where it shares none;
    ``memory_mib`` is None where nobody knows it."""

    resources: Resources = field(default_factory=Resources)
    memory_mib: int | None = 0
    compute: float = 0.0

    def fits_in(self, other: Held) -> bool:
        """Does it need nothing that the other has not? What nobody knows is in nobody's way."""
        known = self.memory_mib is None or other.memory_mib is None or self.memory_mib <= other.memory_mib
        return known and other.resources.holds(self.resources) and self.compute <= other.compute

    def beyond(self, other: Held) -> Held:
        """By how much it is more than the other; what nobody knows is no more."""
        mine, its = asdict(self.resources), asdict(other.resources)
        more = Resources(**{kind: max(0, (value or 0) - (its[kind] or 0)) for kind, value in mine.items()})
        memory = 0 if self.memory_mib is None else max(0, self.memory_mib - (other.memory_mib or 0))
        return Held(more, memory, max(0.0, self.compute - other.compute))


@dataclass(frozen=True)
class Last:
    """What runs now of a replica: digest of the manifest that it was started with, published ports, and what it holds."""

    manifest: str
    ports: frozenset[int]
    held: Held


def words_of(kind: str) -> str:
    """One of :class:`Resources` for people."""
    return {"cpus": "CPU", "shm": "shared memory"}.get(kind, kind)


def held_by(need: Need) -> Held:
    """What each replica of a service will hold."""
    shared = need.isolation == "shared"
    return Held(need.resources, need.memory_mib if shared else 0, (need.compute or 0.0) if shared else 0.0)


def amounts_of(need: Need) -> dict[str, t.Any]:
    """The same as a plan's line keeps it; of an adopted service nothing, for it is never started anew."""
    if need.adopted:
        return {}
    usual, wished = asdict(USUAL), asdict(need.resources)
    unusual = {kind: _plain(value) for kind, value in wished.items() if value != usual[kind]}
    found: dict[str, t.Any] = {}
    if need.isolation == "shared":
        found["memory"] = need.memory_mib
        found.update({"compute": _plain(need.compute)} if need.compute else {})
    return {**found, "host": unusual} if unusual else found


def _plain(value: float) -> float:
    """4 and not 4.0, as people write it."""
    return int(value) if value == int(value) else value


def held_of_line(line: Data, facts: Data | None = None) -> Held:
    """What a replica holds by its line of a plan. Where that says nothing of the host, it is what the container's limits say, if ``facts``
    tell of them: lines of releases that kept no amounts say nothing although it was unusual."""
    shared = line.get("mode") == "shared"
    resources = Resources(**{**asdict(USUAL), **line["host"]}) if "host" in line else _limits(name_of(line), facts or {})
    return Held(resources, line.get("memory") if shared else 0, line.get("compute", 0.0) if shared else 0.0)


def _limits(name: str, facts: Data) -> Resources:
    boxes = [box for box in facts.get("containers") or () if box.get("project") == name]

    def limit(key: str, usual: float) -> float:
        values = [box.get(key) for box in boxes]
        return usual if not values or None in values else sum(value or 0 for value in values)

    cpus, memory, shm = (limit(key, getattr(USUAL, kind)) for key, kind in (("cpus", "cpus"), ("memory_mib", "memory"), ("shm_mib", "shm")))
    return Resources(cpus, int(memory), int(shm), USUAL.disk)


def published(facts: Data) -> dict[str, set[int]]:
    """Project -> the ports that it has on the host, of those that run."""
    found: dict[str, set[int]] = {}
    for box in (box for box in facts.get("containers") or () if box.get("state", "running") == "running"):
        ports = found.setdefault(str(box.get("project")), set())
        ports.update(port["host"] for port in box.get("ports") or () if port.get("host"))
    return found


def last_of(lines: Iterable[Data], needs: Mapping[str, Need], digests: Mapping[str, str], facts: Data | None) -> dict[str, Last]:
    """What runs of replicas by the lines of a host's last plan: name -> that. Without those that are adopted.

    ``digests``: of each service's manifest; where a line has the same, its replica holds what the manifest says, whatever the line keeps.
    """
    found = {}
    for line in lines:
        service = str(line["service"])
        if managed(line):
            same = service in needs and line["manifest"] == digests.get(service)
            held = held_by(needs[service]) if same else held_of_line(line, facts)
            found[name_of(line)] = Last(str(line["manifest"]), frozenset(line["ports"].values()), held)
    return found


def last_of_versions(versions: Mapping[str, Data], facts: Data) -> dict[str, Last]:
    """What runs of replicas by the versions that their host keeps (docs/rollout.md): name -> that.

    A version whose manifest nobody knows, or that this release does not read, holds what its container's limits say.
    """
    found, ports = {}, published(facts)
    for name, kept in versions.items():
        serving = next((one for one in kept.get("versions") or () if one.get("number") == kept.get("serving")), None)
        if serving is not None:
            found[name] = Last(str(serving.get("digest")), frozenset(ports.get(name, ())), _held_of_version(name, serving, facts))
    return found


def _held_of_version(name: str, version: Data, facts: Data) -> Held:
    text = (version.get("manifest") or {}).get("text")
    try:
        manifests = read_manifests([(str(version["manifest"]["file"]), text)]) if text else []
    except FleetError:
        manifests = []
    return held_by(need_of(manifests[0])) if manifests else Held(_limits(name, facts), None)
