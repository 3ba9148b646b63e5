# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets and streams of requests for the benchmark of online arrival: made from a mix and a seed, or read from files.

A node is (name, CPU in thousandths, memory in MiB, GPUs, model); a request is (CPU in thousandths, memory in MiB, GPUs, thousandths of
each GPU, models that it accepts: empty for any). The files are CSV with the columns of the published traces of pods and nodes.
"""

from __future__ import annotations

import csv
import json
import math
import random
import typing as t
from pathlib import Path


class Node(t.NamedTuple):
    """One node of a fleet."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


class Request(t.NamedTuple):
    """One request. ``gpus`` is 0 for one of CPU alone; ``milli`` is below 1000 for a part of one GPU."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Thousandths of a GPU, all of its GPUs together."""
        return self.gpus * self.milli


class Mix(t.NamedTuple):
    """What is asked for, and of which shapes the fleet is; each with its weight."""

    name: str
    requests: list[dict[str, t.Any]]
    fleet: list[dict[str, t.Any]]


GIB = 1024
# Shapes of hosts in about the proportions of the published fleet: many of eight GPUs, many of two small ones with much CPU for each.
HOSTS = [
    {"weight": 30, "cpu_milli": 96_000, "memory_mib": 384 * GIB, "gpus": 8, "model": "A100"},
    {"weight": 18, "cpu_milli": 128_000, "memory_mib": 768 * GIB, "gpus": 8, "model": "A100"},
    {"weight": 3, "cpu_milli": 128_000, "memory_mib": 1024 * GIB, "gpus": 8, "model": "H100"},
    {"weight": 33, "cpu_milli": 96_000, "memory_mib": 512 * GIB, "gpus": 2, "model": "T4"},
    {"weight": 10, "cpu_milli": 64_000, "memory_mib": 256 * GIB, "gpus": 2, "model": "L4"},
    {"weight": 6, "cpu_milli": 96_000, "memory_mib": 384 * GIB, "gpus": 4, "model": "V100"},
]
EQUAL = [{"weight": 1, "cpu_milli": 96_000, "memory_mib": 768 * GIB, "gpus": 8, "model": "A100"}]


def _asks(weight: float, gpus: int, milli: int, cpus: list[float], ratios: tuple[int, ...] = (2, 4, 8), spec: str = "") -> dict[str, t.Any]:
    """Requests of one size of GPU with several sizes of CPU (in cores) and of memory (GiB a core)."""
    return {
        "weight": weight,
        "num_gpu": gpus,
        "gpu_milli": milli,
        "cpu_milli": [int(1000 * each) for each in cpus],
        "gib": list(ratios),
        "gpu_spec": spec,
    }


def _fractions(weight: float, cpus: list[float], spec: str = "", ratios: tuple[int, ...] = (2, 4, 8)) -> list[dict[str, t.Any]]:
    shares = {100: 0.12, 200: 0.18, 250: 0.1, 300: 0.12, 400: 0.1, 500: 0.22, 600: 0.06, 750: 0.06, 900: 0.04}
    return [_asks(weight * share, 1, milli, cpus, ratios, spec) for milli, share in shares.items()]


# Named mixes. ``default`` has the published proportions of counts: 13 % CPU only, 38 % a part of a GPU, 48 % one GPU, 1 % more.
MIXES = {
    "default": Mix(
        "default",
        [
            _asks(13.3, 0, 0, [2, 4, 8, 16, 32]),
            *_fractions(37.8, [1, 2, 4, 6, 8, 12]),
            _asks(48.0, 1, 1000, [4, 6, 8, 10, 12, 16]),
            _asks(0.2, 2, 1000, [16, 24, 32]),
            _asks(0.2, 4, 1000, [32, 48]),
            _asks(0.5, 8, 1000, [64, 80, 96]),
        ],
        HOSTS,
    ),
    # The default's CPU with hardly any memory: FGD's measure then leaves nothing out.
    "memory-loose": Mix(
        "memory-loose",
        [
            _asks(13.3, 0, 0, [2, 4, 8, 16, 32], (1, 2)),
            *_fractions(37.8, [2, 4, 6, 8, 12], ratios=(1, 2)),
            _asks(48.0, 1, 1000, [6, 8, 12, 16, 20], (1, 2)),
            _asks(0.2, 2, 1000, [16, 24, 32], (1, 2)),
            _asks(0.2, 4, 1000, [32, 48], (1, 2)),
            _asks(0.5, 8, 1000, [64, 80, 96], (1, 2)),
        ],
        HOSTS,
    ),
    "share-heavy": Mix(
        "share-heavy",
        [_asks(10, 0, 0, [2, 4, 8]), *_fractions(75, [2, 4, 6, 8]), _asks(14, 1, 1000, [6, 10, 14]), _asks(1, 4, 1000, [40])],
        HOSTS,
    ),
    "multi-gpu": Mix(
        "multi-gpu",
        [
            _asks(10, 0, 0, [4, 8, 16]),
            *_fractions(25, [2, 4, 6, 8]),
            _asks(45, 1, 1000, [6, 10, 14, 18]),
            _asks(10, 2, 1000, [12, 24, 36]),
            _asks(6, 4, 1000, [32, 48, 64]),
            _asks(4, 8, 1000, [64, 88, 112]),
        ],
        HOSTS,
    ),
    "cpu-tight": Mix(
        "cpu-tight",
        [
            _asks(15, 0, 0, [4, 8, 16]),
            *_fractions(35, [4, 6, 8, 10, 12]),
            _asks(45, 1, 1000, [8, 12, 16, 20, 24]),
            _asks(5, 2, 1000, [24, 40]),
        ],
        HOSTS,
    ),
    "cpu-tight-equal-hosts": Mix(
        "cpu-tight-equal-hosts",
        [_asks(10, 0, 0, [2, 4, 8]), *_fractions(40, [2, 4, 6, 8]), _asks(45, 1, 1000, [4, 8, 12, 16, 20]), _asks(5, 2, 1000, [16, 32])],
        EQUAL,
    ),
    "model-bound": Mix(
        "model-bound",
        [
            _asks(12, 0, 0, [2, 4, 8, 16]),
            *_fractions(20, [2, 4, 8]),
            *_fractions(15, [2, 4, 8], "T4|L4"),
            _asks(25, 1, 1000, [4, 8, 12]),
            _asks(18, 1, 1000, [6, 10, 14], spec="A100|H100"),
            _asks(4, 1, 1000, [8, 16], spec="V100"),
            _asks(3, 2, 1000, [16, 24]),
            _asks(2, 8, 1000, [64, 96], spec="A100|H100"),
        ],
        HOSTS,
    ),
}


def read_mix(path: Path) -> Mix:
    """A mix from a JSON file: ``{"requests": [...], "fleet": [...]}`` with the keys of the built-in ones; the fleet may be left out."""
    told = json.loads(path.read_text(encoding="utf-8"))
    return Mix(path.stem, told["requests"], told.get("fleet", HOSTS))


def _spec(text: str) -> tuple[str, ...]:
    return tuple(sorted({part.strip() for part in text.split("|") if part.strip()}))


def draw(mix: Mix, seed: str) -> t.Iterator[Request]:
    """Requests of a mix without end, the same ones for the same seed.

    :raises ValueError: none of them would ever ask for a GPU.
    """
    if not any(each["weight"] > 0 and each["num_gpu"] > 0 for each in mix.requests):
        raise ValueError(f"mix {mix.name} asks for no GPU")
    rng = random.Random(f"requests {mix.name} {seed}")
    weights = [each["weight"] for each in mix.requests]
    while True:
        asks = rng.choices(mix.requests, weights)[0]
        cpu = rng.choice(asks["cpu_milli"]) if isinstance(asks["cpu_milli"], list) else asks["cpu_milli"]
        memory = int(cpu / 1000 * rng.choice(asks["gib"]) * GIB) if "gib" in asks else asks["memory_mib"]
        gpus, milli = asks["num_gpu"], asks["gpu_milli"]
        yield Request(cpu, memory, gpus, milli if gpus else 0, _spec(asks.get("gpu_spec", "")))


def stream(source: t.Iterator[Request], size: float) -> list[Request]:
    """The first requests of a source that together ask for at least ``size`` thousandths of a GPU."""
    taken: list[Request] = []
    total = 0
    for request in source:
        taken.append(request)
        total += request.size
        if total >= size:
            break
    return taken


def again(requests: list[Request], seed: str) -> t.Iterator[Request]:
    """A list of requests in random order, again and again: a trace may be shorter or longer than the fleet is large.

    :raises ValueError: none of them asks for a GPU.
    """
    if not any(request.size for request in requests):
        raise ValueError("the trace asks for no GPU")
    rng = random.Random(f"trace {seed}")
    while True:
        order = list(requests)
        rng.shuffle(order)
        yield from order


def make_nodes(fleet: list[dict[str, t.Any]], count: int, seed: str) -> list[Node]:
    """About ``count`` nodes in the proportions of a fleet, at least one of each shape, under names that tell nothing of the hardware."""
    total = sum(shape["weight"] for shape in fleet)
    shapes = [shape for shape in fleet for _each in range(max(1, round(count * shape["weight"] / total)))]
    random.Random(f"nodes {seed}").shuffle(shapes)
    width = len(str(len(shapes)))
    return [
        Node(f"node-{number:0{width}}", shape["cpu_milli"], shape["memory_mib"], shape["gpus"], shape["model"])
        for number, shape in enumerate(shapes)
    ]


def capacity(nodes: list[Node]) -> int:
    """Thousandths of a GPU in a fleet."""
    return 1000 * sum(node.gpus for node in nodes)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def _whole(row: dict[str, str], *names: str) -> int:
    for name in names:
        if row.get(name, "").strip():
            return math.ceil(float(row[name]))
    return 0


def read_trace(path: Path) -> list[Request]:
    """Requests of a list of pods: columns cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec; others are passed over.

    :raises ValueError: a row that asks for less than nothing or for parts of several GPUs; it says which.
    """
    found = []
    for number, row in enumerate(_rows(path), 2):
        gpus, milli = _whole(row, "num_gpu"), _whole(row, "gpu_milli")
        milli = (milli or 1000) if gpus else 0
        request = Request(_whole(row, "cpu_milli"), _whole(row, "memory_mib"), gpus, milli, _spec(row.get("gpu_spec") or ""))
        if min(request[:4]) < 0 or milli > 1000 or (gpus > 1 and milli != 1000):
            raise ValueError(f"{path.name}:{number}: not a request that can be read: {row}")
        found.append(request)
    return found


def read_nodes(path: Path) -> list[Node]:
    """Nodes of a list: columns sn, cpu_milli, memory_mib, gpu, model. Those without a GPU are left out, as in the published protocol."""
    rows = [
        (row["sn"], _whole(row, "cpu_milli"), _whole(row, "memory_mib"), _whole(row, "gpu"), row.get("model") or "") for row in _rows(path)
    ]
    return [Node(*row) for row in rows if row[3]]
