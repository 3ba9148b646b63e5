# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: three GPU hosts that are all this machine, planned, partitioned, served and reported by the real playbooks.

The hosts' GPUs are made once, below ``--work`` (build/demo); after that the demo does what an engineer does: plan, apply, report.
A second run finds everything as it should be and changes nothing. Exit status 0 only when every playbook succeeded.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import time
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = REPOSITORY / "inventories" / "demo" / "hosts.yml"
PLAYBOOKS = ("plan", "apply", "report")
HOSTS = {
    "gpu-prod-01": "a100-80gb:2",
    "gpu-stage-01": "h100-80gb:2",
    "gpu-train-01": "l40s-48gb:4",
}
RECAP = re.compile(r"^(?P<host>\S+) +: ok=(?P<ok>\d+) +changed=(?P<changed>\d+) +unreachable=(?P<unreachable>\d+) +failed=(?P<failed>\d+)")
FATAL = re.compile(r"^(?:fatal|failed): \[(?P<host>[^\]]+)\].*?(?:FAILED!|UNREACHABLE!)? => (?P<result>\{.*\})$")

# What a kernel shows of a host. Only what the collection reads, so that no number of the demo is that of the machine below.
KERNEL_FILES = {
    "proc/sys/kernel/hostname": "{host}\n",
    "proc/sys/kernel/osrelease": "6.12.48+deb13-amd64\n",
    "proc/sys/kernel/random/boot_id": "{boot_id}\n",
    "proc/meminfo": "MemTotal:       536870912 kB\nMemFree:        402653184 kB\n",
    "proc/net/tcp": "  sl  local_address rem_address   st\n   0: 00000000:0016 00000000:0000 0A\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\n",
    "sys/devices/system/cpu/online": "0-63\n",
    "sys/kernel/iommu_groups/0/type": "DMA\n",
    "sys/class/iommu/dmar0/name": "dmar0\n",
}


class DemoError(Exception):
    """What went wrong, in a line or a few; the demo ends with it."""


@dataclass
class Run:
    """One playbook's run: its exit status, what each host said at the end, and what failed."""

    playbook: str
    status: int
    seconds: float
    recap: dict[str, dict[str, int]] = field(default_factory=dict)
    recap_lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    output: str = ""

    def changed(self) -> int:
        """Tasks that changed something, on all hosts together."""
        return sum(counts["changed"] for counts in self.recap.values())


def make_host(work: Path, name: str, board: str, simulator: Path, python: str = sys.executable) -> Path:
    """The tree of one host below ``work``, made where it is missing; its GPUs are created once. Returns its directory."""
    home = work / name
    gpus = home / "gpus"
    for part in ("bin", "models", "cdi", "tmp"):
        (home / part).mkdir(parents=True, exist_ok=True)
    for path, text in KERNEL_FILES.items():
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(text.format(host=name, boot_id=f"00000000-0000-4000-8000-{len(name):012x}"), encoding="utf-8")
    wrapper = home / "bin" / "python"
    wrapper.write_text(
        "#!/bin/sh\n"
        "# The Python of one host of the demo: it finds this host's GPUs, and no others.\n"
        "# A module runs there out of a zip file, of which a coverage measurement can tell nothing.\n"
        "unset COVERAGE_PROCESS_CONFIG COVERAGE_PROCESS_START\n"
        f"export NVML_SIM_STATE='{gpus}' LD_LIBRARY_PATH='{simulator}' PATH='{simulator / 'bin'}':\"$PATH\"\n"
        f"exec '{python}' \"$@\"\n",
        encoding="utf-8",
    )
    wrapper.chmod(0o755)
    if not gpus.exists():
        simctl(simulator, gpus, "create", "--board", board)
    return home


def simctl(simulator: Path, state: Path, *arguments: str) -> str:
    """What ``simctl`` answers about the GPUs in ``state``. Raises DemoError with its own words when it fails."""
    env = {**os.environ, "NVML_SIM_STATE": str(state), "LD_LIBRARY_PATH": str(simulator)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    done = subprocess.run([str(simulator / "bin" / "simctl"), *arguments], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"simctl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def environment(work: Path, collections: Path) -> dict[str, str]:
    """The environment of ansible-playbook: its own home below ``work``, no configuration of the user's, hosts in parallel."""
    configuration = work / "ansible.cfg"
    configuration.write_text("# Empty on purpose: the demo depends on no configuration but its own environment.\n", encoding="utf-8")
    own = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    return {
        **own,
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_CONFIG": str(configuration),
        "ANSIBLE_FORKS": "8",
        "ANSIBLE_HOME": str(work / "ansible"),
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_PIPELINING": "true",
        "FLEET_DEMO": str(work),
        "LC_ALL": "C.UTF-8",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }


def read_line(run: Run, line: str) -> str | None:
    """Take what one line of ansible-playbook's output says into ``run``; returns the name of a task that begins with it."""
    if found := re.match(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.*?)\] \**$", line):
        return found["name"]
    if found := RECAP.match(line):
        run.recap[found["host"]] = {key: int(found[key]) for key in ("ok", "changed", "unreachable", "failed")}
        run.recap_lines.append(line.rstrip())
    elif found := FATAL.match(line):
        try:
            message = json.loads(found["result"]).get("msg", found["result"])
        except ValueError:
            message = found["result"]
        run.problems.append(f"{found['host']}: {message}")
    elif line.startswith("ERROR"):
        run.problems.append(line)
    return None


def ignore(_task: str) -> None:
    """For whoever wants no progress."""


def play(
    playbook: str, work: Path, collections: Path, *options: str, inventory: Path = INVENTORY, progress: t.Callable[[str], None] = ignore
) -> Run:
    """Run one of the collection's playbooks as a process of its own; each task is told to ``progress`` as it begins."""
    log = work / "log" / f"{playbook}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    run = Run(playbook, 1, 0.0)
    started = time.monotonic()
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), f"gpuops.fleet.{playbook}", *options]
    lines: list[str] = []
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            command,
            env=environment(work, collections),
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            lines.append(line)
            task = read_line(run, line.rstrip("\n"))
            if task:
                progress(task)
    run.status, run.seconds, run.output = process.returncode, time.monotonic() - started, "".join(lines)
    return run


def summary(work: Path) -> list[list[str]]:
    """The fleet as its published facts and plans say: one row a host."""
    rows = [["host", "GPUs", "slices", "replicas", "services", "plan"]]
    for name in HOSTS:
        facts = json.loads((work / "facts" / f"{name}.json").read_text(encoding="utf-8"))
        path = work / "plans" / f"{name}.yml"
        plan: dict[str, t.Any] = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {"services": [], "serial": "-"}
        boards = sorted({gpu["name"] for gpu in facts["gpus"]})
        slices = sum(len((gpu["mig"] or {}).get("instances", [])) for gpu in facts["gpus"])
        services = sorted({entry["service"] for entry in plan["services"]})
        gpus = f"{len(facts['gpus'])} x {', '.join(boards)}"
        rows.append([name, gpus, str(slices), str(len(plan["services"])), ", ".join(services), str(plan["serial"])])
    return rows


def aligned(rows: list[list[str]]) -> str:
    """Rows as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


@contextlib.contextmanager
def alone(work: Path) -> t.Iterator[None]:
    """Let no second demo into ``work``; then what a killed one held is nobody's, and its leases are taken away."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(f"another demo is at work in {work}; wait for it, or give another directory with --work") from None
        for name in HOSTS:
            (work / name / "state" / "lease.json").unlink(missing_ok=True)
        yield


def demo(work: Path, collections: Path, say: t.Callable[[str], None]) -> None:
    """Make the hosts, run the playbooks, say what came of it. Raises DemoError with the failing task's own words."""
    simulator = REPOSITORY / "build" / "simulator"
    if not (simulator / "libnvidia-ml.so.1").exists():
        raise DemoError(f"{simulator} is not built; run: make simulator")
    if not (collections / "ansible_collections" / "gpuops" / "fleet").exists():
        raise DemoError(f"the collection gpuops.fleet is not installed in {collections}; run: make setup")
    say("1/4  hosts: " + ", ".join(f"{name} ({board.replace(':', ' x ')})" for name, board in HOSTS.items()))
    for name, board in HOSTS.items():
        make_host(work, name, board, simulator)
    runs: list[Run] = []
    for number, playbook in enumerate(PLAYBOOKS, start=2):
        say(f"{number}/4  ansible-playbook gpuops.fleet.{playbook}")
        last = ""

        def show(task: str) -> None:
            nonlocal last
            if task != last:
                say(f"       {task}")
            last = task

        run = play(playbook, work, collections, progress=show)
        for line in run.recap_lines:
            say(f"     {line}")
        if run.status != 0:
            words = "\n".join(dict.fromkeys(run.problems)) or f"exit status {run.status}"
            raise DemoError(f"playbook {playbook} failed (its log: {work / 'log' / playbook}.log)\n{words}")
        runs.append(run)
    say("")
    say(aligned(summary(work)))
    say("")
    changed = sum(run.changed() for run in runs)
    say(f"changed: {changed} tasks" if changed else "changed: nothing, every host is as planned")
    say("seconds: " + ", ".join(f"{run.playbook} {run.seconds:.0f}" for run in runs))
    say(f"report:  {work / 'reports' / 'report.html'}")


def main(arguments: t.Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run the whole job on three GPU hosts that are all this machine.")
    parser.add_argument("--collections", type=Path, default=REPOSITORY / "collections", help="where the collection is installed")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build" / "demo", help="where the hosts, plans and the report live")
    options = parser.parse_args(arguments)
    try:
        work = options.work.resolve()
        with alone(work):
            demo(work, options.collections.absolute(), lambda line: print(line, flush=True))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
