# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated host that can be put back to how it was in a millisecond, for proofs that try thousands of cases.

The proofs run as programs of their own (:func:`prove`): no coverage tracer, and a library that counts file events may be preloaded.
Each prints one JSON object on its last line.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import subprocess
import sys
import typing as t
from pathlib import Path

import pynvml

REPOSITORY = Path(__file__).resolve().parents[2]
SIMULATOR = REPOSITORY / "build" / "simulator"
DEATHS = SIMULATOR / "libdeaths.so"
DOOR = "NVML_SIM_STATE"
NEW_UUIDS = 1


def prove(program: str, *args: object, where: Path, seconds: int = 1800) -> dict[str, t.Any]:
    """Run ``tests/unit/<program>`` in a process of its own; what it printed last. RuntimeError with its words when it broke."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE") and key != DOOR}
    env.update(
        PYTHONPATH=os.pathsep.join([str(REPOSITORY / "collections"), str(SIMULATOR / "lib"), str(Path(__file__).parent)]),
        LD_PRELOAD=str(DEATHS),
        LD_LIBRARY_PATH=str(SIMULATOR),
    )
    command = [sys.executable, str(Path(__file__).with_name(program)), str(where), *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def load_simulator() -> None:
    """Let pynvml find the simulator under its usual name."""
    ctypes.CDLL(str(SIMULATOR / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    if str(SIMULATOR / "lib") not in sys.path:
        sys.path.append(str(SIMULATOR / "lib"))


Saved = tuple[bytes, dict[str, bytes]]
# One GPU instance as a test lays it: profile, start, how many compute instances (all of them the full one: 0 or 1).
Laid = tuple[str, int, int]


class ProofHost:
    """Simulated GPUs, the product's state directory beside them, and an empty ``/proc``."""

    def __init__(self, where: Path, *boards: str) -> None:
        self.where, self.gpus_dir, self.state_dir, self.proc = where, where / "gpus", where / "state", where / "proc"
        self.proc.mkdir(parents=True, exist_ok=True)
        os.environ[DOOR] = str(self.gpus_dir)
        wanted = [part for board in boards for part in ("--board", board)]
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module("nvmlsim.simctl").main(["--state", str(self.gpus_dir), "create", "--force", "--seed", "proof", *wanted])
        self._door = importlib.import_module("nvmlsim.library").State(str(self.gpus_dir))
        self.control("set-host", "mig-uuid", NEW_UUIDS)  # a slice that was made again shows by its UUID
        self.uuids = [str(gpu["uuid"]) for gpu in self.gpus()]
        self._ids: dict[tuple[str, str], tuple[int, int]] = {}

    def control(self, *words: object) -> str:
        """One verb of the simulator's side door; not while NVML is open."""
        return str(self._door.call(*words))

    def gpus(self) -> list[dict[str, t.Any]]:
        """The GPUs as ``simctl show --json`` prints them."""
        return list(self._door.dump()["gpus"])

    def mutations(self) -> list[dict[str, t.Any]]:
        """What ``simctl log --mutations --json`` prints: every change since the last :meth:`load`, in order."""
        self._door.dump()  # as simctl does: appends the record of a process that died between its change and its log line
        lines = (self.gpus_dir / "calls.log").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.endswith("}") and '"mutation": null' not in line]
        return sorted(records, key=lambda record: int(record["seq"]))

    def calls(self) -> list[dict[str, t.Any]]:
        """Every NVML call since the last :meth:`load`, in order."""
        self._door.dump()
        lines = (self.gpus_dir / "calls.log").read_text(encoding="utf-8").splitlines()
        return sorted((json.loads(line) for line in lines if line.endswith("}")), key=lambda record: int(record["seq"]))

    def save(self) -> Saved:
        """The host as it is: GPUs and the files of the state directory."""
        files = {path.name: path.read_bytes() for path in self.state_dir.iterdir()} if self.state_dir.is_dir() else {}
        return (self.gpus_dir / "state.bin").read_bytes(), files

    def load(self, saved: Saved) -> None:
        """Put the host back, faults and kills included, with an empty log."""
        with open(self.gpus_dir / "state.bin", "r+b") as stream:
            stream.write(saved[0])
        os.truncate(self.gpus_dir / "calls.log", 0)
        if self.state_dir.is_dir():
            for path in self.state_dir.iterdir():
                if path.name not in saved[1]:
                    path.unlink()
        if saved[1]:
            self.state_dir.mkdir(exist_ok=True)
        elif self.state_dir.is_dir():
            self.state_dir.rmdir()
        for name, data in saved[1].items():
            (self.state_dir / name).write_bytes(data)

    def key(self) -> str:
        """Equal for hosts that no run can tell apart: GPUs, injected faults, the files' names and texts (of a lock that it is there)."""
        dump = self._door.dump()
        texts = {
            path.name: "" if path.suffix == ".lock" else path.read_bytes().decode(errors="replace") for path in self.state_dir.glob("*")
        }
        return json.dumps([dump["gpus"], dump["faults"], dump["kill"], texts], sort_keys=True)

    def lay(self, gpu: int, layout: t.Iterable[Laid]) -> None:
        """Make these GPU instances on an empty GPU, through NVML itself; MIG is switched on."""
        self.control("set-gpu", gpu, "mig", 1)
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            for profile, start, computes in layout:
                ident, size = self._profile(handle, profile)
                place = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
                instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, ident, ctypes.byref(place))
                if computes:
                    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _full(instance))
        finally:
            pynvml.nvmlShutdown()

    def _profile(self, handle: t.Any, name: str) -> tuple[int, int]:
        """(profile id, memory slices) of a profile's name."""
        board = str(pynvml.nvmlDeviceGetName(handle))
        if (board, name) not in self._ids:
            for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
                with contextlib.suppress(pynvml.NVMLError):
                    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=2)
                    spelt = str(info.name).removeprefix("MIG ")
                    self._ids[board, spelt] = (int(info.id), places_of(handle, int(info.id))[0][1])
        return self._ids[board, name]

    def hold(self, gpu: int, where: tuple[str, int], pid: int) -> None:
        """A process begins to use the slice (profile, start)."""
        for one in self.gpus()[gpu]["mig"]["instances"]:
            if (one["profile"], one["start"]) == where:
                self.control("hold", gpu, 0, one["gi"], 0, pid, 512, "python3")


def places_of(handle: t.Any, profile_id: int) -> list[tuple[int, int]]:
    """(start, size) of every possible placement of a profile."""
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, found, ctypes.byref(count))
    return [(int(one.start), int(one.size)) for one in found]


def _full(instance: t.Any) -> int:
    """Id of the compute instance profile with the most multiprocessors; what it takes may be asked for in one way only on 1_SLICE_REV2."""
    best = (-1, -1)
    for enum in range(9):
        with contextlib.suppress(pynvml.NVMLError):
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, 0, version=2)
            best = max(best, (int(info.multiprocessorCount), int(info.id)))
    return best[1]


def instances(gpu: dict[str, t.Any]) -> dict[tuple[str, int], tuple[int, tuple[str, ...]]]:
    """(profile, start) -> (GPU instance id, UUIDs of its compute instances) of one GPU of :meth:`ProofHost.gpus`."""
    found = (gpu["mig"] or {}).get("instances", [])
    return {(one["profile"], one["start"]): (one["gi"], tuple(part["uuid"] for part in one["ci"])) for one in found}
