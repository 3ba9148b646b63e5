# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small worlds for the tests of the deciding side: geometries, hosts, needs, host facts and manifests."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry, Profile, parse_slice
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Gpu, Host, Instance, Need, Placement, Problem, Resources

DIGEST = "a" * 64

# Numbers as NVML reports them on A100-SXM4-80GB and A30 (plugins/plugin_utils/data/geometry.yml).
A100 = Geometry(
    7,
    8,
    (
        Profile("1g.10gb", 19, 1, 1, 9856, 14, 7, (0, 1, 2, 3, 4, 5, 6)),
        Profile("1g.10gb+me", 20, 1, 1, 9856, 14, 1, (0, 1, 2, 3, 4, 5, 6)),
        Profile("1g.20gb", 15, 1, 2, 19968, 14, 4, (0, 2, 4, 6)),
        Profile("2g.20gb", 14, 2, 2, 19968, 28, 3, (0, 2, 4)),
        Profile("3g.40gb", 9, 3, 4, 40192, 42, 2, (0, 4)),
        Profile("4g.40gb", 5, 4, 4, 40192, 56, 1, (0,)),
        Profile("7g.80gb", 0, 7, 8, 80384, 98, 1, (0,)),
    ),
)
A30 = Geometry(
    4,
    4,
    (
        Profile("1g.6gb", 14, 1, 1, 5952, 14, 4, (0, 1, 2, 3)),
        Profile("2g.12gb", 5, 2, 2, 11968, 28, 2, (0, 2)),
        Profile("4g.24gb", 0, 4, 4, 24000, 56, 1, (0,)),
    ),
)


def gpu(number: int = 0, host: str = "h1", *, slices: str = "", **more: t.Any) -> Gpu:
    """An A100 with the slices named in ``slices`` ('1g.10gb@0 3g.40gb@4'); in MIG mode as soon as there are any."""
    values: dict[str, t.Any] = {
        "uuid": f"GPU-{host}-{number}",
        "pci": f"0000:{number + 1:02x}:00.0",
        "board": "a100-sxm4-80gb",
        "memory_mib": 81920,
        "geometry": A100,
        "instances": tuple(Instance(parse_slice(text)) for text in slices.split()),
        "mig": bool(slices),
    }
    return Gpu(**{**values, **more})


def l40s(number: int = 0, host: str = "h1", **more: t.Any) -> Gpu:
    """A board without MIG."""
    return gpu(number, host, **{"board": "l40s", "memory_mib": 46068, "geometry": None, **more})


def wired(gpus: t.Sequence[Gpu], *sets: t.Sequence[int]) -> list[Gpu]:
    """The GPUs, of which NVLink joins those of each set of numbers with each other and nobody else."""
    peers: dict[str, set[str]] = {one.uuid: set() for one in gpus}
    for several in sets:
        for one in several:
            peers[gpus[one].uuid] |= {gpus[other].uuid for other in several if other != one}
    return [replace(one, links=tuple(sorted(peers[one.uuid]))) for one in gpus]


def host(*gpus: Gpu, name: str = "h1", **more: t.Any) -> Host:
    """A production host without limits but its GPUs."""
    return Host(**{"name": name, "environment": "production", "gpus": gpus, **more})


def mixed_hosts(count: int, gpus: int, cpus: float) -> list[Host]:
    """Hosts h0, h1 and so on of every mode, with little CPU; of the GPUs the first and each third after it is an L40S, the others A100."""
    return [
        host(
            *(gpu(number, f"h{each}") if number % 3 else l40s(number, f"h{each}") for number in range(gpus)),
            name=f"h{each}",
            modes=("mig", "whole", "shared"),
            capacity=Resources(cpus, 256 * 1024, None, None),
        )
        for each in range(count)
    ]


def need(service: str = "ocr", isolation: str = "slice", memory_mib: int = 8192, **more: t.Any) -> Need:
    """A production service."""
    return Need(**{"service": service, "environment": "production", "isolation": isolation, "memory_mib": memory_mib, **more})


def problem(hosts: t.Iterable[Host], needs: t.Iterable[Need], previous: t.Iterable[Placement] = ()) -> Problem:
    """All parts as tuples."""
    return Problem(tuple(hosts), tuple(needs), tuple(previous))


def place(service: str, where: str, *, replica: int = 1, on: str = "h1", mode: str = "mig", **ports: int) -> Placement:
    """A last place: ``where`` is '0:1g.10gb@4' (GPU number, slice), or '0' or '0,1' for GPUs as a whole or shared."""
    numbers, _ignored, text = where.partition(":")
    gpus = tuple(f"GPU-{on}-{number}" for number in numbers.split(","))
    return Placement(
        service,
        replica,
        on,
        t.cast("t.Any", mode),
        gpus,
        parse_slice(text) if text else None,
        tuple(sorted(ports.items())),
    )


def where(placement: Placement) -> str:
    """The inverse of :func:`place` with the host in front: 'h1/0:1g.10gb@4'."""
    numbers = ",".join(uuid.rpartition("-")[2] for uuid in placement.gpus)
    return f"{placement.host}/{numbers}" + (f":{placement.slice}" if placement.slice else "")


def facts(gpus: t.Sequence[t.Mapping[str, t.Any]] = (), **more: t.Any) -> dict[str, t.Any]:
    """Host facts as docs/facts.md has them."""
    return {
        "schema": 1,
        "collection": "0.1.0",
        "host": {
            "hostname": "h1",
            "cpus": 64,
            "memory_mib": 515072,
            "shm_mib": 257536,
            "disk": {"path": "/srv/gpuops", "total_mib": 1831420, "free_mib": 1203377},
            "ports_listening": [22, 9100],
        },
        "geometries": {A100.digest(): A100.to_dict()},
        "gpus": list(gpus),
        "plan": None,
        "errors": [],
        **more,
    }


def gpu_facts(number: int = 0, host: str = "h1", *, slices: str = "", **more: t.Any) -> dict[str, t.Any]:
    """One A100 in the facts; its GPU instance ids count from 7, and each has the compute instance that fills it."""
    found = [parse_slice(text) for text in slices.split()]
    instances = [
        {
            "gi": 7 + one.start,
            "profile": one.profile,
            "start": one.start,
            "ci": [{"id": 0, "profile": one.profile, "uuid": f"MIG-{host}-{number}-{one.start}"}],
        }
        for one in found
    ]
    mig = {"current": bool(found), "pending": bool(found), "resetless": False, "geometry": A100.digest(), "instances": instances}
    return {
        "uuid": f"GPU-{host}-{number}",
        "pci": f"0000:{number + 1:02x}:00.0",
        "index": number,
        "name": "NVIDIA A100-SXM4-80GB",
        "device_id": "0x20B210DE",
        "state": "ok",
        "error": None,
        "memory_mib": 81920,
        "memory_used_mib": 512,
        "mig": mig,
        **more,
    }


def manifest_text(service: str = "receipt-ocr", **more: str) -> str:
    """A manifest; ``more`` replaces or adds top-level lines (name -> YAML text of the value, '' leaves the field out)."""
    fields = {
        "schema": "1",
        "service": service,
        "team": "claims",
        "environment": "production",
        "runtime": "http",
        "image": f"registry.example.com/{service}@sha256:{DIGEST}",
        "gpu": "{memory: 8 GiB}",
        "ports": "[{name: http, container: 8080}]",
        **more,
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)
