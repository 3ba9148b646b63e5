# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets for the report's tests and pictures: plain facts, plans and services, as docs/facts.md and docs/plan.md describe them.

python tests/tools/report_fleet.py build/screenshots     # writes small.html and large.html
"""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.plugin_utils.report import Inputs, Policy, build
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_html import TEMPLATE, render
from ansible_collections.gpuops.fleet.plugins.plugin_utils.report_plan import Service

Data = dict[str, t.Any]


def _profile(name: str, number: int, slices: int, size: int, memory: int, sm: int, most: int, starts: list[int]) -> Data:
    return {"name": name, "id": number, "slices": slices, "size": size, "memory_mib": memory, "sm": sm, "max": most, "starts": starts}


def seven(names: t.Sequence[str], memory: t.Sequence[int], sm: t.Sequence[int]) -> Data:
    """Geometry of a board with seven compute and eight memory slices; rows 1g, 1g twice the memory, 2g, 3g, 4g, 7g.

    Numbers of A100-SXM4-80GB and H100 80GB: NVIDIA MIG user guide and nvidia-smi mig -lgip of real boards.
    """
    shape = [
        (19, 1, 1, 7, [*range(7)]),
        (15, 1, 2, 4, [0, 2, 4, 6]),
        (14, 2, 2, 3, [0, 2, 4]),
        (9, 3, 4, 2, [0, 4]),
        (5, 4, 4, 1, [0]),
        (0, 7, 8, 1, [0]),
    ]
    profiles = [
        _profile(name, number, slices, size, mib, sms, most, starts)
        for (number, slices, size, most, starts), name, mib, sms in zip(shape, names, memory, sm, strict=True)
    ]
    return {"compute_slices": 7, "memory_slices": 8, "profiles": profiles}


NAMES = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
A100 = seven(NAMES, (9856, 19968, 19968, 40192, 40192, 80384), (14, 14, 28, 42, 56, 98))
H100 = seven(NAMES, (9984, 20096, 20096, 40448, 40448, 81152), (16, 26, 32, 60, 64, 132))
GEOMETRIES = {"a100": A100, "h100": H100}


def gpu(number: int, board: str = "a100", slices: t.Sequence[str] | None = None, **more: t.Any) -> Data:
    """Facts of one GPU; ``slices`` as 1g.10gb@0, None: MIG is off."""
    name, memory, limit = {
        "a100": ("NVIDIA A100-SXM4-80GB", 81920, 400),
        "h100": ("NVIDIA H100 80GB HBM3", 81559, 700),
        "l40s": ("NVIDIA L40S", 46068, 350),
    }[board]
    instances = []
    for order, text in enumerate(slices or ()):
        profile, start = text.split("@")
        part = {"id": 0, "profile": profile, "uuid": f"MIG-{number:04}-{start}"}
        instances.append({"gi": 7 + order, "profile": profile, "start": int(start), "ci": [part]})
    on = slices is not None
    mig = (
        {"current": on, "pending": on, "resetless": board == "h100", "geometry": board, "instances": instances}
        if board in GEOMETRIES
        else None
    )
    facts = {
        "uuid": f"GPU-{number:08x}-5c1f-4b2e-9d10-{number:012x}",
        "pci": f"0000:{7 + number % 16 * 8:02x}:00.0",
        "index": number % 16,
        "name": name,
        "state": "ok",
        "error": None,
        "memory_mib": memory,
        "memory_used_mib": 512,
        "mig": mig,
        "temperature_c": 39,
        "power_w": 83,
        "power_limit_w": limit,
        "persistence": True,
        "compute_mode": "default",
        "ecc": {"current": True, "pending": True},
    }
    return {**facts, **more}


def host(*gpus: Data, serial: int | None = None, **more: t.Any) -> Data:
    """Facts of one host that has carried out the plan of this serial."""
    facts: Data = {
        "schema": 1,
        "host": {"hostname": "host", "os": {"id": "debian", "version": "13"}},
        "driver": {"present": True, "version": "580.105.08", "cuda": "13.0", "flavour": "open", "error": None},
        "geometries": GEOMETRIES,
        "gpus": list(gpus),
        "plan": {"serial": serial, "digest": "sha256:0", "state": "done"} if serial is not None else None,
        "errors": [],
    }
    return {**facts, **more}


def plan(serial: int, layout: t.Sequence[Data], services: t.Sequence[Data]) -> Data:
    """A plan document."""
    return {"plan": 1, "serial": serial, "layout": list(layout), "services": list(services)}


def cut(one: Data, *slices: str) -> list[Data]:
    """Layout rows of a GPU with MIG."""
    rows: list[Data] = [{"gpu": one["uuid"], "pci": one["pci"], "model": "board", "mode": "mig"}]
    return rows + [{"gpu": one["uuid"], "profile": text.split("@")[0], "start": int(text.split("@")[1])} for text in slices]


def mode(one: Data, word: str) -> Data:
    """Layout row of a GPU that is whole or shared."""
    return {"gpu": one["uuid"], "pci": one["pci"], "model": "board", "mode": word}


def on_slice(service: str, replica: int, one: Data, text: str, **ports: int) -> Data:
    """Plan row of a replica on a slice."""
    profile, start = text.split("@")
    return {"service": service, "replica": replica, "gpu": one["uuid"], "profile": profile, "start": int(start), "ports": ports}


def on_gpu(service: str, replica: int, gpus: t.Sequence[Data], word: str = "whole", **ports: int) -> Data:
    """Plan row of a replica on whole GPUs, or on a share of one."""
    uuids = [one["uuid"] for one in gpus]
    where = {"gpu": uuids[0]} if len(uuids) == 1 else {"gpus": uuids}
    return {"service": service, "replica": replica, **where, "mode": word, "ports": ports}


SERVICES = (
    Service("receipt-ocr", "claims", "production", 4, 8192),
    Service("certificate-ocr", "claims", "production", 3, 9216),
    Service("face-match", "identity", "production", 1, 16384),
    Service("medical-imaging", "health", "production", 1, 38000),
    Service("speech-to-text", "identity", "staging", 1, 18432),
    Service("embeddings", "assistant", "staging", 2, None, "1g.10gb"),
    Service("llm-chat", "assistant", "staging", 1, 70000),
    Service("notebook-anna", "health", "training", 1, 16384),
    Service("notebook-boris", "research", "training", 1, 12288),
    Service("fine-tuning", "research", "training", 1, 40960),
    Service("video-search", "research", "production", 2, 60000),
)


def small() -> Inputs:
    """Three hosts, ten GPUs: MIG with stranded memory, mixed MIG, whole, shared, free, cordoned and lost GPUs."""
    ones = [f"1g.10gb@{start}" for start in range(7)]
    mixed = ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]
    a0, a1 = gpu(0, "a100", ones), gpu(1, "a100", mixed)
    h0, h1 = gpu(16, "h100"), gpu(17, "h100", ["2g.20gb@0", "1g.10gb@2", "1g.10gb@3"])
    lost = {"state": "lost", "error": "GPU is lost", "ecc": None, "persistence": None}
    l0, l1, l2, l3 = gpu(32, "l40s"), gpu(33, "l40s"), gpu(34, "l40s", **lost), gpu(35, "l40s")
    h2 = gpu(18, "h100", mig={**gpu(18, "h100")["mig"], "pending": True})
    production = plan(
        4,
        [*cut(a0, *ones), *cut(a1, *mixed)],
        [
            *(on_slice("receipt-ocr", n + 1, a0, ones[n], http=18000 + n) for n in range(4)),
            *(on_slice("certificate-ocr", n + 1, a0, ones[4 + n], http=18004 + n) for n in range(3)),
            on_slice("medical-imaging", 1, a1, "3g.40gb@0", http=18010),
            on_slice("face-match", 1, a1, "2g.20gb@4", http=18011, metrics=18012),
        ],
    )
    staging = plan(
        2,
        [mode(h0, "whole"), *cut(h1, "2g.20gb@0", "1g.10gb@2", "1g.10gb@3")],
        [
            on_gpu("llm-chat", 1, [h0], http=18000),
            on_slice("speech-to-text", 1, h1, "2g.20gb@0", http=18001),
            on_slice("embeddings", 1, h1, "1g.10gb@2", http=18002),
            on_slice("embeddings", 2, h1, "1g.10gb@3", http=18003),
        ],
    )
    training = plan(
        7,
        [mode(l0, "shared"), mode(l1, "whole")],
        [
            on_gpu("notebook-anna", 1, [l0], "shared", http=18000),
            on_gpu("notebook-boris", 1, [l0], "shared", http=18001),
            on_gpu("fine-tuning", 1, [l1]),
        ],
    )
    reason = "needs 58.6 GiB in one piece; the largest in production is 9.6 GiB on gpu-prod-01. Nearest help: a free A100 with MIG off."
    return Inputs(
        facts={
            "gpu-prod-01": host(a0, a1, serial=4),
            "gpu-staging-01": host(h0, h1, h2, serial=2),
            "gpu-train-01": host(l0, l1, l2, l3, serial=7),
        },
        plans={"gpu-prod-01": production, "gpu-staging-01": staging, "gpu-train-01": training},
        unplaced=[{"service": "video-search", "replica": n, "reason": reason} for n in (1, 2)],
        services=SERVICES,
        policies={
            "gpu-prod-01": Policy("production"),
            "gpu-staging-01": Policy("staging"),
            "gpu-train-01": Policy("training", ("3",)),
        },
    )


def large(hosts: int = 20) -> Inputs:
    """Many hosts of eight GPUs each, with eleven teams."""
    words = "claims identity health assistant research fraud marketing underwriting platform call-centre data-science"
    teams = words.split()
    layouts = (
        [f"1g.10gb@{n}" for n in range(7)],
        ["3g.40gb@0", "3g.40gb@4"],
        ["4g.40gb@0", "2g.20gb@4", "1g.10gb@6"],
        ["2g.20gb@0", "2g.20gb@2", "1g.10gb@4"],
    )
    facts, plans, services = {}, {}, {}
    for number in range(hosts):
        name = f"gpu-{'prod' if number % 3 else 'train'}-{number + 1:02}"
        gpus, layout, rows = [], [], []
        for index in range(8):
            kind = (number * 5 + index * 3) % 7
            board = "h100" if number % 2 else "a100"
            team = teams[(number * 3 + index) % len(teams)]
            if kind < 4:
                one = gpu(number * 16 + index, board, layouts[kind])
                layout += cut(one, *layouts[kind])
                for order, text in enumerate(layouts[kind]):
                    owner = teams[(number * 3 + index + order // 2) % len(teams)]
                    service = f"{owner}-model-{(number + order) % 5}"
                    if (number + index + order) % 9:
                        services[service] = Service(service, owner, "production", 1, 6144)
                        rows.append(on_slice(service, number * 100 + index * 10 + order, one, text, http=18000 + index * 10 + order))
            else:
                one = gpu(number * 16 + index, board)
                if kind < 6:
                    service = f"{team}-llm-{kind}"
                    services[service] = Service(service, team, "production", 1, 65536)
                    layout.append(mode(one, "whole"))
                    rows.append(on_gpu(service, number * 100 + index, [one], http=18000 + index * 10))
            gpus.append(one)
        facts[name], plans[name] = host(*gpus, serial=number), plan(number, layout, rows)
    policies = {name: Policy("production" if "prod" in name else "training") for name in facts}
    return Inputs(facts, plans, (), tuple(services.values()), policies)


def main() -> None:
    """Write the two pages into the directory that is named."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    template = (Path(__file__).parents[2] / "plugins/plugin_utils/data" / TEMPLATE).read_text(encoding="utf-8")
    for name, inputs in (("small", small()), ("large", large())):
        (directory / f"{name}.html").write_text(render(template, build(inputs)), encoding="utf-8")


if __name__ == "__main__":
    main()
