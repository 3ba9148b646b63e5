# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the compatibility gate takes to decide and to draw its table: for the example inventory's services, and for a fleet.

Beside it, in the same process and in turn, the plain way: the same rules asked for each (host, GPU, image) alone, on a part of the fleet
that is small enough, and reckoned up. Seconds, and how many times faster, go to build/bench/gate.json. It says so when a table takes longer
than was promised: 2 s for the example inventory, all that is read for it included, 20 s for 5,000 hosts x 200 services.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gpuops.fleet.plugins.action import compat  # noqa: E402 # the path comes first
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat import judge  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_case import CompatImage, host_of, image_of  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.compat_table import judge_services  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import read_yaml  # noqa: E402 # the same
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifests  # noqa: E402 # the same

TODAY = "2026-11-21"
EXAMPLE = ROOT / "inventories" / "example"
# Seconds that a table may take.
SMALL, LARGE = 2.0, 20.0
BOARDS = (
    ("NVIDIA A100-SXM4-80GB", "8.0"), ("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA L40S", "8.9"), ("Tesla V100-SXM2-32GB", "7.0"),
    ("NVIDIA H200", "9.0"), ("Tesla T4", "7.5"), ("NVIDIA B200", "10.0"), ("NVIDIA A30", "8.0"),
)  # fmt: skip
SYSTEMS = (("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04"), ("rhel", "9.4"))
CUDAS = [f"{major}.{minor}.{patch}" for major, last in ((11, 8), (12, 9), (13, 0)) for minor in range(last + 1) for patch in (0, 1, 2)]


def hosts(count: int, seed: int) -> dict[str, dict[str, t.Any]]:
    """Facts of hosts with eight GPUs; nearly every one has a kernel, driver and engine that no other has together."""
    chance = random.Random(seed)
    branches = (470, 535, 550, 570, 575, 580) * 4
    drivers = [f"{branch}.{chance.randint(54, 250)}.{chance.randint(1, 20):02}" for branch in branches]
    found = {}
    for number in range(count):
        name, capability = chance.choice(BOARDS)
        system, release = chance.choice(SYSTEMS)
        found[f"gpu-{number:04}"] = {
            "driver": {"present": True, "version": chance.choice(drivers), "cuda": None, "flavour": chance.choice(["open", "proprietary"])},
            "host": {"os": {"id": system, "version": release}, "kernel": f"6.{chance.randint(1, 12)}.{chance.randint(0, 99)}"},
            "engine": {
                "docker": {"present": True, "version": chance.choice(["26.1.5", "28.3.0"]), "cdi": True, "runtimes": ["runc"]},
                "cdi_specs": ["/etc/cdi/nvidia.yaml"],
            },
            "gpus": [{"device_id": None, "name": name, "compute_capability": capability, "virtualization": "none"}] * 8,
        }
    return found


def images(count: int, seed: int, facts: t.Any) -> list[CompatImage]:
    """Images of as many services, of all CUDA releases."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        cuda = chance.choice(CUDAS)
        required = f"NVIDIA_REQUIRE_CUDA=cuda>={cuda.rpartition('.')[0]} brand=tesla,driver>=470,driver<471"
        mig, runtime = chance.random() < 0.5, chance.choice(["http", "vllm", "triton"])
        found.append(image_of(facts, f"service-{number:03}", [f"CUDA_VERSION={cuda}", required], mig=mig, runtime=runtime))
    return found


def seconds(work: t.Callable[[], object]) -> float:
    """Of this process alone, so that what else the machine does counts little."""
    before = time.process_time()
    work()
    return time.process_time() - before


def measure(
    facts: t.Any, catalogue: Catalogue, fleet: dict[str, dict[str, t.Any]], wanted: list[CompatImage], part: int
) -> dict[str, t.Any]:
    """Seconds of the table, and of the plain way on ``part`` of the hosts, reckoned up to all."""
    sensed = {name: {"facts": each} for name, each in fleet.items()}
    table = seconds(lambda: judge_services(facts, catalogue, sensed, wanted, TODAY).table())
    some = [host_of(name, each, catalogue) for name, each in list(fleet.items())[:part]]
    alone = seconds(lambda: [judge(facts, host, gpu, image, TODAY) for host in some for gpu in set(host.gpus) for image in wanted])
    plain = alone * len(fleet) / len(some)
    told = {"table_s": round(table, 3), "each_alone_s": round(plain, 3), "ratio": round(plain / table, 1)}
    return {"hosts": len(fleet), "services": len(wanted), **told}


def example_hosts() -> list[str]:
    """Names of the GPU hosts of the example inventory."""

    def names(group: dict[str, t.Any] | None) -> list[str]:
        known = group or {}
        return [*(known.get("hosts") or {}), *(name for child in (known.get("children") or {}).values() for name in names(child))]

    groups = read_yaml(door.read_text(EXAMPLE / "hosts.yml"), "hosts.yml").data["all"]["children"]
    found = []
    for pattern in names(groups["gpu_hosts"]):
        several = re.search(r"\[(\d+):(\d+)\]", pattern)
        numbers = range(int(several[1]), int(several[2]) + 1) if several else ()
        found += [pattern.replace(several[0], str(number).zfill(len(several[1]))) for number in numbers] if several else [pattern]
    return sorted(set(found))


def whole_example(name: str) -> dict[str, t.Any]:
    """Seconds of module compat on the example inventory: manifests, boards and facts are read, all is judged, the table is drawn."""
    hosts_of_it = example_hosts()
    sensed = {host: {"facts": each} for host, each in zip(hosts_of_it, hosts(len(hosts_of_it), 1).values(), strict=True)}
    asked = {"manifests": str(EXAMPLE / "manifests"), "hosts": sensed, "templates": [], "images": {}, "today": TODAY}
    told: list[dict[str, t.Any]] = []
    spent = seconds(lambda: told.append(compat.run(asked)))
    services = {each["service"] for each in told[0]["verdicts"]}
    return {"name": name, "hosts": len(sensed), "services": len(services), "table_s": round(spent, 3), "limit_s": SMALL}


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=5000)
    parser.add_argument("--services", type=int, default=200)
    args = parser.parse_args()
    catalogue = Catalogue(door.read_data("boards.yml").data, door.read_data("geometry.yml").data)
    gate = door.judge({})
    manifests = read_manifests(door.read_texts(EXAMPLE / "manifests"))
    example = gate.images(manifest.data() for manifest in manifests)
    whole = whole_example("the example inventory, with all that is read")
    rows = [
        {**measure(gate.facts, catalogue, hosts(40, 1), example, 40), "limit_s": SMALL},
        {
            **measure(gate.facts, catalogue, hosts(args.hosts, 2), images(args.services, 3, gate.facts), min(50, args.hosts)),
            "limit_s": LARGE,
        },
    ]
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    (out / "gate.json").write_text(json.dumps({"rows": rows, "example": whole}, indent=2) + "\n", encoding="utf-8")
    print("gate: {name}: {hosts} hosts x {services} services: {table_s} s".format(**whole))
    for row in rows:
        print("gate: {hosts} hosts x {services} services: {table_s} s; each alone {each_alone_s} s, {ratio} times as long".format(**row))
    for row in (whole, *rows):
        if row["table_s"] > row["limit_s"]:
            print("gate: slower than was promised: {hosts} hosts x {services} services: {table_s} s, not {limit_s} s".format(**row))


if __name__ == "__main__":
    main()
