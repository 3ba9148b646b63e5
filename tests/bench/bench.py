# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long ``gpu_info`` and a ``mig`` that has nothing to do take for one host, beside ``ansible.builtin.ping`` there.

The same local connection, the same interpreter and the same ansible-playbook process for all three; they take turns, so that
whatever else the machine does hits all alike. Medians and ratios go to build/bench/times.json and build/bench/times.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATOR = ROOT / "build" / "simulator"
OUT = ROOT / "build" / "bench"
BOARD = "a100-80gb"
SLICES_EACH = 7


class Host(t.NamedTuple):
    """A host of the bench: its own simulated GPUs, seen through an interpreter wrapper, and its inventory."""

    gpus: int
    directory: pathlib.Path
    layout: list[dict[str, t.Any]]


def make_host(gpus: int) -> Host:
    """Create the simulated GPUs of one host, and the wrapper that shows them to its Python."""
    directory = OUT / f"host-{gpus}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    wrapper = directory / "python"
    lines = [
        "#!/bin/sh",
        f"export LD_LIBRARY_PATH='{SIMULATOR}' NVML_SIM_STATE='{directory / 'gpus'}' PATH='{SIMULATOR / 'bin'}':\"$PATH\"",
        f"exec '{sys.executable}' \"$@\"",
    ]
    wrapper.write_text("\n".join(lines) + "\n", encoding="utf-8")
    wrapper.chmod(0o755)
    env = os.environ | {"LD_LIBRARY_PATH": str(SIMULATOR), "NVML_SIM_STATE": str(directory / "gpus")}
    subprocess.run(
        [str(SIMULATOR / "bin" / "simctl"), "create", "--board", f"{BOARD}:{gpus}"], check=True, env=env, stdout=subprocess.DEVNULL
    )
    layout = [{"gpu": str(index), "mig": True, "instances": [{"profile": "1g.10gb", "count": SLICES_EACH}]} for index in range(gpus)]
    return Host(gpus, directory, layout)


def run_tasks(host: Host, tasks: list[dict[str, t.Any]]) -> list[dict[str, t.Any]]:
    """Run the tasks on the host in one play; returns ``{task, seconds, changed}`` of each."""
    times = host.directory / "times.jsonl"
    times.unlink(missing_ok=True)
    play = {"name": "Bench", "hosts": "all", "gather_facts": False, "tasks": tasks}
    (host.directory / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
    settings = {"ansible_connection": "local", "ansible_python_interpreter": str(host.directory / "python")}
    (host.directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {f"gpus{host.gpus}": settings}}}), encoding="utf-8")
    env = os.environ | {
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests" / "bench" / "callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "bench_times",
        "BENCH_TIMES": str(times),
    }
    command = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.yml", "play.yml"]
    done = subprocess.run(command, cwd=host.directory, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{host.directory.name}: ansible-playbook: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-1000:]}")
    return [json.loads(line) for line in times.read_text(encoding="utf-8").splitlines()]


def measure(host: Host, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round: ``{ping: [...], gpu_info: [...], mig: [...]}``; the first round warms up and does not count."""
    paths = {"state_dir": str(host.directory / "state")}
    mig = {"gpuops.fleet.mig": {"layout": host.layout, **paths}}
    kinds: dict[str, dict[str, t.Any]] = {"ping": {"ansible.builtin.ping": {}}, "gpu_info": {"gpuops.fleet.gpu_info": paths}, "mig": mig}
    if not run_tasks(host, [{"name": "partition", **mig}])[0]["changed"]:
        raise SystemExit(f"{host.directory.name}: nothing was partitioned")
    tasks = [{"name": kind, **task} for _round in range(rounds + 1) for kind, task in kinds.items()]
    results = run_tasks(host, tasks)
    # A task that changed something was no no-op, and its time would be another thing's.
    if any(result["changed"] for result in results):
        raise SystemExit(f"{host.directory.name}: a task of the bench changed something: {results}")
    return {kind: [result["seconds"] for result in results if result["task"] == kind][1:] for kind in kinds}


def summary(gpus: int, seconds: dict[str, list[float]]) -> dict[str, t.Any]:
    """Medians in milliseconds, quartile distance, and each kind's median over ping's."""
    ping = statistics.median(seconds["ping"])
    row: dict[str, t.Any] = {"gpus": gpus, "rounds": len(seconds["ping"])}
    for kind, values in seconds.items():
        low, middle, high = statistics.quantiles(values, n=4)
        row[kind] = {"median_ms": round(1000 * middle, 1), "quartiles_ms": [round(1000 * low, 1), round(1000 * high, 1)]}
        row[kind]["ratio_to_ping"] = round(middle / ping, 2)
    return row


def table(rows: list[dict[str, t.Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| GPUs | slices | ping | gpu_info | ratio | mig, nothing to do | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [str(row["gpus"]), str(row["gpus"] * SLICES_EACH), f"{row['ping']['median_ms']:.0f} ms"]
        for kind in ("gpu_info", "mig"):
            cells += [f"{row[kind]['median_ms']:.0f} ms", f"{row[kind]['ratio_to_ping']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds for each host")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 16])
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    for gpus in args.gpus:
        print(f"a host with {gpus} {BOARD}, {args.rounds} rounds", flush=True)
        host = make_host(gpus)
        rows.append(summary(gpus, measure(host, args.rounds)))
    result = {"board": BOARD, "connection": "local", "python": platform.python_version(), "processors": os.cpu_count(), "rows": rows}
    (OUT / "times.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (OUT / "times.md").write_text(table(rows) + "\n", encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
