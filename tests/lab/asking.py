# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks every replica that a site's plans name what its owner would ask, and holds engine, host and plan against each other.

An oracle of its own: it reads the plan files, the engine and the simulated driver's own account, and imports nothing of the collection.
"""

from __future__ import annotations

import json
import re
import time
import typing as t
from dataclasses import dataclass

import yaml

from lab.errors import LabError
from lab.guest import Guest
from lab.ocr import receipt as receipts
from lab.ocr.ask import ask
from lab.site import Site

# The receipts that tesseract of Debian 13 was seen to read in full; which one is asked differs from time to time.
SEEDS = 60
# What every GPU container gets, whichever slice is its own.
COMMON_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
# One connection tells all of a guest: the driver's account, the engine's, and the nodes that each container has.
LOOK = r"""
simctl show --json; echo ====
docker ps --all --quiet | xargs --no-run-if-empty docker inspect; echo ====
for c in $(docker ps --format '{{.Names}}'); do
  echo "$c $(docker exec "$c" python3 -c 'import glob; print(*glob.glob("/dev/nvidia*[!s]") + glob.glob("/dev/nvidia-caps/*"))')"
done
"""


@dataclass(frozen=True)
class Replica:
    """A replica as its plan has it."""

    host: str
    service: str
    number: int
    gpu: str
    profile: str
    start: int
    port: int

    @property
    def container(self) -> str:
        """The container's name."""
        return f"{self.service}-{self.number}"

    def __str__(self) -> str:
        return f"{self.container} on {self.host} ({self.profile}@{self.start})"


@dataclass(frozen=True)
class Slice:
    """A MIG device as the driver has it, with the numbers of its two capability nodes."""

    uuid: str
    gpu_minor: int
    instance: int
    compute: int

    @property
    def nodes(self) -> set[str]:
        """Its device nodes. Numbers by the driver's own table: 135 for a GPU, 9 for an instance, the first is 3."""
        access = 3 + 135 * self.gpu_minor + 9 * self.instance
        return {
            f"/dev/nvidia{self.gpu_minor}",
            f"/dev/nvidia-caps/nvidia-cap{access}",
            f"/dev/nvidia-caps/nvidia-cap{access + 1 + self.compute}",
        }


@dataclass(frozen=True)
class Look:
    """What a guest looks like: slices by (GPU, profile, start), containers by name, and the device nodes in each."""

    slices: dict[tuple[str, str, int], Slice]
    containers: dict[str, dict[str, t.Any]]
    nodes: dict[str, set[str]]


def look(guest: Guest) -> Look:
    """Reads one guest. LabError when it does not answer."""
    driver, engine, nodes = guest.ssh(LOOK, "looking at engine and driver").split("====\n")
    slices = {}
    for gpu in json.loads(driver)["gpus"]:
        for instance in (gpu["mig"] or {}).get("instances", []):
            for compute in instance["ci"][:1]:
                found = Slice(compute["uuid"], gpu["minor"], instance["gi"], compute["id"])
                slices[gpu["uuid"], instance["profile"], instance["start"]] = found
    containers = {entry["Name"].lstrip("/"): entry for entry in json.loads(engine or "[]")}
    seen = {line.split()[0]: set(line.split()[1:]) for line in nodes.splitlines() if line.strip()}
    return Look(slices, containers, seen)


def replicas(site: Site) -> list[Replica]:
    """Every replica that the site's plans name, with a slice and a port."""
    found = []
    for path in sorted((site.home / "plans").glob("*.yml")):
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in plan.get("services") or []:
            if "profile" in entry and entry.get("ports"):
                port = next(iter(entry["ports"].values()))
                found.append(
                    Replica(plan["host"], entry["service"], entry["replica"], entry["gpu"], entry["profile"], entry["start"], port)
                )
    return found


def problems(site: Site, read: bool = True) -> t.Iterator[str]:
    """One line for everything that is not as the plans say; nothing when all is well. ``read``: every replica has to read a receipt."""
    wanted = replicas(site)
    if not wanted:
        yield "the plans name no replica: nothing was asked"
    looks: dict[str, Look] = {}
    for replica in wanted:
        guest = site.guest(replica.host)
        if replica.host not in looks:
            looks[replica.host] = look(guest)
        for problem in (*_pinned(replica, looks[replica.host]), *(_reads(replica, guest, looks[replica.host]) if read else ())):
            yield f"{replica}: {problem}"


def _pinned(replica: Replica, seen: Look) -> t.Iterator[str]:
    """Engine against driver: the right slice was asked for, and its nodes are in the container, and no others."""
    place = seen.slices.get((replica.gpu, replica.profile, replica.start))
    container = seen.containers.get(replica.container)
    if place is None:
        yield "the driver has no such slice"
        return
    if container is None or not container["State"]["Running"]:
        yield "there is no running container"
        return
    asked = [name for request in container["HostConfig"]["DeviceRequests"] or [] for name in request["DeviceIDs"] or []]
    if asked != [f"nvidia.com/gpu={place.uuid}"]:
        yield f"the engine was asked for {asked}, and its slice is {place.uuid}"
    got = {
        node for node in seen.nodes.get(replica.container, set()) if not re.fullmatch(r"/dev/nvidia-caps/nvidia-cap[12]", node)
    } - COMMON_NODES
    if got != place.nodes:
        yield f"it has the device nodes {sorted(got)}, and its slice's are {sorted(place.nodes)}"


def _reads(replica: Replica, guest: Guest, seen: Look) -> t.Iterator[str]:
    """A receipt goes in, its text comes out, from a service that sees exactly the planned slice."""
    receipt = receipts.render(time.time_ns() % SEEDS)
    try:
        answer = ask(f"http://127.0.0.1:{guest.ports[replica.port]}", receipt.png)
    except LabError as error:
        yield str(error)
        return
    if lost := receipts.missing(answer["text"], receipt):
        yield f"the text lacks {', '.join(lost)}"
    place = seen.slices.get((replica.gpu, replica.profile, replica.start))
    visible = answer["device"].get("uuid")
    if place is None or visible != place.uuid:
        yield f"the service sees {visible}, and its slice is {place.uuid if place else 'not there'}"
