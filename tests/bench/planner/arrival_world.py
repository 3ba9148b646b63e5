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


# More CPU, memory or GPUs than anybody asks for, or has: what is beyond is a slip of the pen.
MOST = 10**9

# Few shapes that come again and again, CPU of odd sizes, and nodes with little of it: unlike the mixes above.
PUBLISHED = Path(__file__).parent / "published.json"


def read_mix(path: Path) -> Mix:
    """A mix from a JSON file: ``{"requests": [...], "fleet": [...]}`` with the keys of the built-in ones; the fleet may be left out.

    :raises ValueError: in one line, what can't be read.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8-sig"))
        mix = Mix(path.stem, list(told["requests"]), list(told.get("fleet", HOSTS)))
        checked = [Request(*each) for asks in mix.requests for each in _every(asks)]
        hosts = [(host["weight"], host["cpu_milli"], host["memory_mib"], host["gpus"]) for host in mix.fleet]
        names = [host["model"] for host in mix.fleet]
        _see_numbers([asks["weight"] for asks in mix.requests] + [host[0] for host in hosts], int | float)
        _see_numbers([each for row in (*checked, *hosts) for each in (row[:4] if isinstance(row, Request) else row[1:])], int)
        if not all(asks["cpu_milli"] != [] and asks.get("gib") != [] for asks in mix.requests):
            raise TypeError("an empty list of sizes")
    except KeyError as error:
        raise ValueError(f"{path.name}: {error} is missing") from None
    except (TypeError, AttributeError, OverflowError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name}: not a mix that can be read: {error}") from None
    if not any(
        request.size and weight > 0 for asks in mix.requests for weight, request in ((asks["weight"], Request(*next(_every(asks)))),)
    ):
        raise ValueError(f"{path.name}: it asks for no GPU")
    for request in checked:
        if (
            min(request[:4]) < 0
            or request.milli > 1000
            or (request.gpus and not request.milli)
            or (request.gpus > 1 > request.milli / 1000)
        ):
            raise ValueError(f"{path.name}: not a request that can be made: {request}")
    if not hosts or not all(min(host) > 0 for host in hosts) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path.name}: every host of the fleet needs a weight, CPU, memory, GPUs above 0 and a model")
    return mix


def _see_numbers(numbers: list[t.Any], kind: t.Any) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, kind) or not 0 <= number <= MOST:
            raise TypeError(f"{number!r:.60} is no {'whole number' if kind is int else 'weight'} up to {MOST}")


def _every(asks: dict[str, t.Any]) -> t.Iterator[tuple[int, int, int, int]]:
    """Every size that requests of one kind can have."""
    _spec(asks.get("gpu_spec", ""))
    for cpu in asks["cpu_milli"] if isinstance(asks["cpu_milli"], list) else [asks["cpu_milli"]]:
        for memory in [int(cpu / 1000 * each * GIB) for each in asks["gib"]] if "gib" in asks else [asks["memory_mib"]]:
            yield cpu, memory, asks["num_gpu"], asks["gpu_milli"] if asks["num_gpu"] else 0


def _spec(text: str) -> tuple[str, ...]:
    """Models; empty for any, which some programs write into a CSV as ``nan``."""
    return tuple(sorted({part.strip() for part in text.split("|")} - {"", "nan"}))


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


def _rows(path: Path, needed: tuple[str, ...]) -> t.Iterator[tuple[str, dict[str, str]]]:
    """("file:line", row) of each; spaces around names and values are no part of them.

    :raises ValueError: columns are missing, or there are no rows.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, restval="")
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in needed if name not in reader.fieldnames]
            if missing:
                raise ValueError(f"{path.name}: no column {', '.join(missing)}")
            empty = True
            for row in reader:
                empty = False
                yield f"{path.name}:{reader.line_num}", {name: value.strip() for name, value in row.items() if isinstance(value, str)}
            if empty:
                raise ValueError(f"{path.name}: nothing but a header")
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not a CSV file that can be read: {error}") from None


def _whole(where: str, row: dict[str, str], name: str) -> int:
    try:
        value = float(row[name] or 0)
        found = math.ceil(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{where}: {name} is {row[name]!r}, not a number") from None
    if found > MOST or (name in ("num_gpu", "gpu") and found != value):
        raise ValueError(f"{where}: {name} is {row[name]!r:.60}, which nobody asks for or has")
    return found


def read_trace(path: Path) -> list[Request]:
    """Requests of a list of pods: columns cpu_milli, memory_mib, num_gpu, gpu_milli and, if there, gpu_spec; others are passed over.

    :raises ValueError: in one line, what can't be read, and where: a column that is missing, no number, less than nothing, parts of
        several GPUs, or no GPU at all.
    """
    found = []
    for where, row in _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        cpu, memory, gpus, milli = (_whole(where, row, name) for name in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
        milli = (milli or 1000) if gpus else 0
        request = Request(cpu, memory, gpus, milli, _spec(row.get("gpu_spec", "")))
        if min(request[:4]) < 0 or milli > 1000 or (gpus > 1 and milli != 1000):
            raise ValueError(f"{where}: not a request that can be read: {row}")
        found.append(request)
    if not any(request.size for request in found):
        raise ValueError(f"{path.name}: no request asks for a GPU")
    return found


def read_nodes(path: Path) -> list[Node]:
    """Nodes of a list: columns sn, cpu_milli, memory_mib, gpu, model. Those without a GPU are left out, as in the published protocol.

    :raises ValueError: in one line, what can't be read, and where; two nodes of one name; none with a GPU.
    """
    found: dict[str, Node] = {}
    for where, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        cpu, memory, gpus = (_whole(where, row, name) for name in ("cpu_milli", "memory_mib", "gpu"))
        if not row["sn"] or row["sn"] in found or min(cpu, memory) <= 0 or gpus < 0:
            raise ValueError(f"{where}: not a node that can be read, or one that was there before: {row}")
        found[row["sn"]] = Node(row["sn"], cpu, memory, gpus, row["model"])
    nodes = [node for node in found.values() if node.gpus]
    if not nodes:
        raise ValueError(f"{path.name}: no node has a GPU")
    return nodes
