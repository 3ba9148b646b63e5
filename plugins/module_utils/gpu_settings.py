# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of GPUs: persistence, ECC, compute mode, time slice, power limit, locked clocks. Wished, written, read back, replayed.

What was wished is kept on the host (``gpu-settings.json``): ``{format: 1, gpus: {UUID: {setting: value}}, locks: {boot, gpus}}``.
After a boot :func:`replay` writes again what the reboot took away. ``locks`` is there because NVML has no call that reads a clock lock
back: it says which locks were set during which boot of the host.
"""

from __future__ import annotations

import shutil
import time
import typing as t
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.gpuops.fleet.plugins.module_utils import commands
from ansible_collections.gpuops.fleet.plugins.module_utils import lease as leases
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.journal import read_json, read_text, write_json
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml_data import Handle, NvmlError, as_named

FILE = "gpu-settings.json"
MPS_FILE = "mps.json"
FORMAT = 1
RESET = "reset"
UNKNOWN = "(not known)"
TIME_SLICES = ("default", "short", "medium", "long")
COMPUTE_MODES = ("default", "exclusive_process", "prohibited")
#: In the order in which they are written: a driver that stays loaded first, what others depend on before them.
SETTINGS = ("persistence", "ecc", "compute_mode", "time_slice", "power_limit_w", "graphics_clock_mhz", "memory_clock_mhz")
_CLOCKS = {"graphics_clock_mhz": "graphics", "memory_clock_mhz": "memory"}
# nvml.h: graphics clocks are locked from Volta on, memory clocks from Ampere on.
_OLD = ("kepler", "maxwell", "pascal")
_WITHOUT_LOCK = {"graphics_clock_mhz": _OLD, "memory_clock_mhz": (*_OLD, "volta", "turing")}
# Lost when the driver lets go of a GPU that nobody uses.
_NEEDS_PERSISTENCE = ("power_limit_w", *_CLOCKS)
# Clocks move in steps (15 MHz on the boards whose list is public): a lock may come out one step above what was asked.
_CLOCK_STEP_MHZ = 15
_SETTLE_SECONDS = 2.0
_SMI_SECONDS = 60

Values = dict[str, t.Any]


@dataclass(frozen=True)
class Options:
    """Where things are. ``only``: settings that this run looks at. ``purge``: restore what was set here and is wished no more."""

    state_dir: Path
    nvidia_smi: str = "nvidia-smi"
    proc_root: Path = Path("/proc")
    only: tuple[str, ...] = SETTINGS
    purge: bool = False
    token: str | None = None
    check: bool = False


@dataclass
class Result:
    """What was done, or with ``check`` would be. ``pending``: ``[{gpu, setting, reason}]``; ``before`` and ``after``: UUID -> values."""

    steps: list[str] = field(default_factory=list)
    before: dict[str, Values] = field(default_factory=dict)
    after: dict[str, Values] = field(default_factory=dict)
    pending: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def apply(entries: Sequence[Mapping[str, t.Any]], options: Options) -> Result:
    """Bring GPUs to ``entries`` (option ``gpus`` of module gpu_settings). FleetError for a wish that is refused and a write that failed."""
    wished = [_parse(entry, f"gpus[{number}]") for number, entry in enumerate(entries)]
    if not wished and not remembered(options.state_dir)["gpus"]:
        return Result()
    with Nvml() as nvml:
        return _Run(nvml, options).apply(wished)


def replay(state_dir: Path, nvidia_smi: str = "nvidia-smi", proc_root: Path = Path("/proc")) -> list[str]:
    """Write again what is remembered, after a boot: what was done and what could not be, one line each; [] when all was there.

    Raises nothing: one ill GPU must not keep the others, nor the rest of the boot, from what they need.
    """
    try:
        if not remembered(state_dir)["gpus"]:
            return []
        with Nvml() as nvml:
            return _Run(nvml, Options(state_dir, nvidia_smi, proc_root)).replay()
    except FleetError as error:
        return [f"settings of GPUs: {error}"]


def remembered(state_dir: Path) -> dict[str, t.Any]:
    """What this host keeps: ``{format, gpus, locks}``. FleetError when the file is damaged."""
    data = read_json(state_dir / FILE) or {"format": FORMAT, "gpus": {}}
    if data.get("format") != FORMAT or not isinstance(data.get("gpus"), dict):
        raise FleetError("these are not settings of GPUs", file=str(state_dir / FILE), hint="look at it and remove it")
    return {**data, "locks": data.get("locks") or {"boot": "", "gpus": {}}}


@dataclass(frozen=True)
class _Wish:
    gpu: str
    where: str
    absent: bool
    values: Values


def _parse(entry: Mapping[str, t.Any], where: str) -> _Wish:
    values = {name: entry[name] for name in SETTINGS if entry.get(name) is not None}
    absent = entry.get("state") == "absent"
    if absent and values:
        hint = "leave them out: what was set here before is restored"
        raise FleetError(f"state is absent, and {', '.join(values)} is given", field=where, hint=hint)
    for name in _CLOCKS:
        if name in values:
            values[name] = _clock(values[name], f"{where}.{name}")
    return _Wish(str(entry["gpu"]), where, absent, values)


def _clock(value: object, where: str) -> t.Any:
    if value == RESET:
        return RESET
    hint = "write [LEAST, MOST] in MHz, such as [1200, 1500], or reset"
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("[]").split(",")]
    if not isinstance(value, (list, tuple)) or len(value) != 2 or any(isinstance(one, bool) or not str(one).isdigit() for one in value):
        raise FleetError(f"'{value}' is no range of a clock", field=where, hint=hint)
    low, high = (int(str(one)) for one in value)
    if not 0 < low <= high:
        raise FleetError(f"{low} to {high} MHz is no range of a clock", field=where, hint=hint)
    return [low, high]


@dataclass(frozen=True)
class _Gpu:
    uuid: str
    handle: Handle = field(repr=False, compare=False)
    mig: bool = False


@dataclass(frozen=True)
class _Step:
    gpu: _Gpu
    name: str
    before: t.Any
    after: t.Any

    def __str__(self) -> str:
        return f"{self.gpu.uuid}: set {self.name} from {_words(self.before)} to {_words(self.after)}"


def _words(value: t.Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value[0]}-{value[1]}" if isinstance(value, list) else str(value)


def lines_of(settings: Mapping[str, Values]) -> str:
    """For people: ``GPU-... power_limit_w 300``, one a line."""
    return "".join(f"{uuid} {name} {_words(value)}\n" for uuid, values in settings.items() for name, value in values.items())


class _Run:
    """One session with NVML and this host's memory."""

    def __init__(self, nvml: Nvml, options: Options) -> None:
        self.nvml, self.options = nvml, options
        self.memory = remembered(options.state_dir)
        self.boot = (read_text(options.proc_root / "sys" / "kernel" / "random" / "boot_id") or "").strip()
        locks = self.memory["locks"]
        self.locks: dict[str, Values] = {uuid: dict(each) for uuid, each in locks["gpus"].items()} if locks["boot"] == self.boot else {}
        self.result = Result()

    # From entries to one wish for each GPU

    def apply(self, wishes: Sequence[_Wish]) -> Result:
        gpus, values, absent = self._resolve(wishes)
        record = {uuid: dict(each) for uuid, each in self.memory["gpus"].items()}
        restored = self._restored(gpus, values, absent, record)
        for uuid, each in values.items():
            record.setdefault(uuid, {}).update({name: each[name] for name in each if name in self.options.only})
        steps = self._steps(gpus, {uuid: {**restored.get(uuid, {}), **each} for uuid, each in values.items()}, restored)
        self.result.steps = [str(step) for step in steps]
        self._promise(gpus, values, steps)
        if not self.options.check:
            self._carry_out(steps)
            self._remember({uuid: each for uuid, each in record.items() if each})
        return self.result

    def _resolve(self, wishes: Sequence[_Wish]) -> tuple[dict[str, _Gpu], dict[str, Values], set[str]]:
        """GPUs by UUID, the wish for each, and those that shall be forgotten. An entry for all gives way to one that names a GPU."""
        found, lost = self._host()
        values: dict[str, Values] = {}
        sources: dict[tuple[str, str], str] = {}
        absent: set[str] = set()
        for wish in sorted(wishes, key=lambda wish: wish.gpu != "all"):
            everyone = wish.gpu == "all"
            self.result.notes += lost if everyone else []
            for gpu in found.values() if everyone else [self._named(wish, found)]:
                if wish.absent:
                    absent.add(gpu.uuid)
                for name, value in wish.values.items():
                    if name not in self.options.only or (everyone and self._refusal(gpu, name, value, wish.values) is not None):
                        continue
                    other = sources.get((gpu.uuid, name))
                    if other is not None and values[gpu.uuid][name] != value:
                        raise FleetError(f"GPU {gpu.uuid} is given another {name} in {other}", field=wish.where, hint="name it once")
                    if not everyone:
                        sources[gpu.uuid, name] = wish.where
                    values.setdefault(gpu.uuid, {})[name] = value
        clash = absent & {uuid for uuid, name in sources}
        if clash:
            raise FleetError(f"GPU {sorted(clash)[0]} is present in one entry and absent in another", field="gpus", hint="name it once")
        for uuid, each in values.items():
            for name, value in each.items():
                refusal = self._refusal(found[uuid], name, value, each)
                if refusal is not None:
                    where = sources.get((uuid, name), "gpus")
                    raise FleetError(f"GPU {uuid}: {refusal[0]}; nothing was changed", field=f"{where}.{name}", hint=refusal[1])
        return found, {uuid: each for uuid, each in values.items() if uuid not in absent}, absent

    def _host(self) -> tuple[dict[str, _Gpu], list[str]]:
        gpus: dict[str, _Gpu] = {}
        lost: list[str] = []
        for found in self.nvml.devices():
            try:
                if found.error is not None:
                    raise found.error
                mode = self.nvml.mig_mode(found.handle)
                uuid = self.nvml.uuid(found.handle)
                gpus[uuid] = _Gpu(uuid, found.handle, mode is not None and mode.current)
            except NvmlError as error:
                lost.append(f"GPU {found.index}: {error}")
        return gpus, lost

    def _named(self, wish: _Wish, found: Mapping[str, _Gpu]) -> _Gpu:
        with as_named(wish.gpu, wish.where):
            return found[self.nvml.uuid(self.nvml.find(wish.gpu))]

    def _refusal(self, gpu: _Gpu, name: str, value: t.Any, wish: Values) -> tuple[str, str] | None:
        """Why this GPU cannot have the value, and what would be right; None when it can."""
        refusal = None
        if name == "compute_mode":
            refusal = self._compute_mode_refusal(gpu, value)
        elif name == "time_slice":
            refusal = self._time_slice_refusal(gpu, wish)
        elif name == "power_limit_w":
            limits = self.nvml.power_limits(gpu.handle)
            if limits is not None and not limits.least <= value <= limits.most:
                hint = f"the board takes {limits.least} to {limits.most} W, and has {limits.default} W when nothing is set"
                refusal = (f"a power limit of {value} W is out of range", hint)
        elif name in _CLOCKS and self.nvml.architecture(gpu.handle) in _WITHOUT_LOCK[name]:
            refusal = (f"this board has no {name}", "leave it out")
        elif name in _CLOCKS:
            most = self.nvml.max_clock_mhz(gpu.handle, _CLOCKS[name])
            if most is not None and value != RESET and value[1] > most:
                refusal = (f"{value[1]} MHz is more than its {_CLOCKS[name]} clock can do", f"it runs at {most} MHz at most")
        if refusal is None and self._read(gpu, name) is None:
            refusal = (f"this board has no {name}", "leave it out")
        return refusal

    def _compute_mode_refusal(self, gpu: _Gpu, value: str) -> tuple[str, str] | None:
        if gpu.mig and value == "exclusive_process":
            return "a GPU with MIG on has no exclusive mode", "leave compute_mode out, or switch MIG off"
        daemons = (read_json(self.options.state_dir / MPS_FILE) or {}).get("daemons") or {}
        if any(each.get("gpu") == gpu.uuid for each in daemons.values()):
            return "it is shared through MPS, and its compute mode is the daemon's", "leave compute_mode out, or remove the daemon"
        return None

    def _time_slice_refusal(self, gpu: _Gpu, wish: Values) -> tuple[str, str] | None:
        if gpu.mig:
            return "a GPU with MIG on has no time slice", "leave time_slice out, or switch MIG off"
        mode = wish.get("compute_mode") or self.nvml.compute_mode(gpu.handle)
        if mode != "default":
            return f"time slices need compute mode default, and it is {mode}", "add compute_mode: default"
        if shutil.which(self.options.nvidia_smi) is None:
            return f"there is no program {self.options.nvidia_smi}, and NVML has no call for the time slice", "give its path as nvidia_smi"
        return None

    # What leaves

    def _restored(
        self, gpus: Mapping[str, _Gpu], values: Mapping[str, Values], absent: set[str], record: dict[str, Values]
    ) -> dict[str, Values]:
        """The driver's defaults for what was set here and is wished no more; taken out of ``record``."""
        restored: dict[str, Values] = {}
        for uuid in sorted(record):
            gone = [name for name in SETTINGS if name in record[uuid] and name in self.options.only and name not in values.get(uuid, {})]
            if uuid not in absent and not self.options.purge:
                continue
            if uuid not in gpus:
                self.result.notes.append(f"GPU {uuid} is not here or lost; what was set on it stays remembered")
                continue
            for name in gone:
                del record[uuid][name]
                default = self._default(gpus[uuid], name)
                if default is not None:
                    restored.setdefault(uuid, {})[name] = default
        return restored

    def _default(self, gpu: _Gpu, name: str) -> t.Any:
        if name == "power_limit_w":
            limits = self.nvml.power_limits(gpu.handle)
            return None if limits is None else limits.default
        if name == "ecc":
            return self.nvml.default_ecc(gpu.handle)
        if name == "time_slice" and gpu.mig:
            return None  # it went when MIG came
        return {"persistence": False, "compute_mode": "default", "time_slice": "default"}.get(name, RESET)

    # Steps

    def _steps(self, gpus: Mapping[str, _Gpu], values: Mapping[str, Values], restored: Mapping[str, Values]) -> list[_Step]:
        steps = []
        for uuid, gpu in gpus.items():
            wish = values.get(uuid) or restored.get(uuid) or {}
            for name in SETTINGS:
                if name in wish:
                    before = self._read(gpu, name)
                    if before != wish[name]:
                        steps.append(_Step(gpu, name, before, wish[name]))
        return steps

    def _promise(self, gpus: Mapping[str, _Gpu], values: Mapping[str, Values], steps: Sequence[_Step]) -> None:
        """``before``, ``after`` and ``pending``: what the run leads to, known before it begins."""
        done = {(step.gpu.uuid, step.name): step.after for step in steps}
        for uuid, gpu in gpus.items():
            names = [name for name in SETTINGS if name in values.get(uuid, {}) or (uuid, name) in done]
            if not names:
                continue
            before = {name: self._read(gpu, name) for name in names}
            self.result.before[uuid] = before
            after = {name: done.get((uuid, name), before[name]) for name in names}
            self.result.after[uuid] = after
            mode = self.nvml.ecc(gpu.handle) if "ecc" in after else None
            if mode is not None and mode.current != after["ecc"]:
                reason = f"ECC is {'on' if mode.current else 'off'} until the GPU is reset or the host reboots"
                self.result.pending.append({"gpu": uuid, "setting": "ecc", "reason": reason})
            fleeting = [name for name in _NEEDS_PERSISTENCE if name in values.get(uuid, {}) and after[name] != RESET]
            if fleeting and not after.get("persistence", self.nvml.persistence(gpu.handle)):
                words = f"GPU {uuid}: without persistence, {', '.join(fleeting)} is lost as soon as nobody uses the GPU"
                self.result.notes.append(words)

    def _carry_out(self, steps: Sequence[_Step]) -> None:
        done: list[_Step] = []
        if any(step.name in _CLOCKS for step in steps):
            # Whoever dies between a lock and its record must not leave the record of another lock.
            for step in steps:
                self.locks.get(step.gpu.uuid, {}).pop(step.name, None)
            self._remember(self.memory["gpus"])
        for step in steps:
            try:
                leases.check(self.options.state_dir, self.options.token)
                done.append(step)
                self._write_and_read(step.gpu, step.name, step.after)
            except FleetError as error:
                raise FleetError(f"{step}: {error}; {self._go_back(done)}") from error

    def _go_back(self, done: Sequence[_Step]) -> str:
        """Put back what was changed, the last first; in words."""
        failed = []
        for step in reversed(done):
            try:
                self._write_and_read(step.gpu, step.name, RESET if step.before == UNKNOWN else step.before)
            except FleetError as error:
                failed.append(f"{step.name} of {step.gpu.uuid} could not be put back ({error})")
        return "; ".join(failed) if failed else "what was changed before was put back"

    def _write_and_read(self, gpu: _Gpu, name: str, value: t.Any) -> None:
        """FleetError when NVML refuses, or takes the value and does not have it afterwards."""
        _WRITERS[name](self, gpu, value)
        got = self._settled(gpu, name, value)
        if got != value:
            raise FleetError(f"{name} did not take: {_words(value)} was written, and {_words(got)} is in force")

    def _settled(self, gpu: _Gpu, name: str, value: t.Any) -> t.Any:
        """What is in force now. A clock needs a moment to come down to its lock."""
        if name not in _CLOCKS:
            return self._read(gpu, name)
        deadline = time.monotonic() + _SETTLE_SECONDS
        while value != RESET:
            now = self.nvml.clock_mhz(gpu.handle, _CLOCKS[name])
            if now is None or now <= value[1] + _CLOCK_STEP_MHZ:
                break
            if time.monotonic() > deadline:
                return f"{now} MHz"
            time.sleep(0.05)
        self.locks.setdefault(gpu.uuid, {})[name] = value
        return value

    # One setting

    def _read(self, gpu: _Gpu, name: str) -> t.Any:
        """The value that is in force, for ECC the one that will be; None when the board has no such setting."""
        if name in _CLOCKS:
            return self._read_lock(gpu, name)
        if name == "ecc":
            mode = self.nvml.ecc(gpu.handle)
            return None if mode is None else mode.pending
        if name == "time_slice":
            return self._read_time_slice(gpu)
        readers: dict[str, Callable[[Handle], t.Any]] = {
            "persistence": self.nvml.persistence,
            "compute_mode": self.nvml.compute_mode,
            "power_limit_w": self.nvml.power_limit_w,
        }
        return readers[name](gpu.handle)

    def _read_lock(self, gpu: _Gpu, name: str) -> t.Any:
        """A lock that was set during this boot holds, unless the clock is above it: then the driver was loaded anew."""
        now = self.nvml.clock_mhz(gpu.handle, _CLOCKS[name])
        if now is None:
            return None
        lock = self.locks.get(gpu.uuid, {}).get(name, UNKNOWN)
        return UNKNOWN if isinstance(lock, list) and now > lock[1] + _CLOCK_STEP_MHZ else lock

    def _read_time_slice(self, gpu: _Gpu) -> str:
        if gpu.mig:
            return "default"
        words = self._smi(gpu, "-l")
        for line in words.lower().splitlines():
            cells = line.strip("| ").split()
            if "timeslice" in cells and cells[-1] in TIME_SLICES:
                return cells[-1]
        raise FleetError(f"{self.options.nvidia_smi} compute-policy -l names no time slice of GPU {gpu.uuid}")

    def _smi(self, gpu: _Gpu, *arguments: str) -> str:
        """What ``nvidia-smi compute-policy`` prints. FleetError with its words when it fails or does not end."""
        done = commands.run([self.options.nvidia_smi, "compute-policy", "-i", gpu.uuid, *arguments], _SMI_SECONDS)
        if done.status != 0:
            raise FleetError(f"{self.options.nvidia_smi}: {done.words}")
        return done.output

    def write_clock(self, gpu: _Gpu, name: str, value: t.Any) -> None:
        """A lock, or none; forgotten until it was seen to hold."""
        self.locks.get(gpu.uuid, {}).pop(name, None)
        if value == RESET:
            self.nvml.unlock_clock(gpu.handle, _CLOCKS[name])
        else:
            self.nvml.lock_clock(gpu.handle, _CLOCKS[name], value[0], value[1])

    def write_time_slice(self, gpu: _Gpu, value: str) -> None:
        """By number, as the program wants it."""
        self._smi(gpu, f"--set-timeslice={TIME_SLICES.index(value)}")

    # Memory

    def _remember(self, record: Mapping[str, Values]) -> None:
        locks = {uuid: {name: lock for name, lock in each.items() if name in record.get(uuid, {})} for uuid, each in self.locks.items()}
        locks = {uuid: each for uuid, each in locks.items() if each}
        # Without a lock no boot is named, or every boot would leave another file behind.
        data = {"format": FORMAT, "gpus": dict(record), "locks": {"boot": self.boot if locks else "", "gpus": locks}}
        if self.memory != data:
            write_json(self.options.state_dir / FILE, data)
            self.memory = data

    def replay(self) -> list[str]:
        """See :func:`replay`."""
        lines: list[str] = []
        gpus, lost = self._host()
        lines += lost
        for uuid, wish in sorted(self.memory["gpus"].items()):
            if uuid not in gpus:
                lines.append(f"GPU {uuid}: not here or lost; its settings wait")
                continue
            for name in (name for name in SETTINGS if name in wish):
                lines += self._replay_one(gpus[uuid], name, wish[name])
        try:
            self._remember(self.memory["gpus"])
        except FleetError as error:
            lines.append(str(error))
        return lines

    def _replay_one(self, gpu: _Gpu, name: str, value: t.Any) -> list[str]:
        try:
            if name == "time_slice" and gpu.mig:
                return []
            before = self._read(gpu, name)
            if before != value:
                self._write_and_read(gpu, name, value)
                return [str(_Step(gpu, name, before, value))]
        except FleetError as error:
            return [f"{gpu.uuid}: {name} could not be set to {_words(value)}: {error}"]
        return []


_WRITERS: dict[str, Callable[[_Run, _Gpu, t.Any], None]] = {
    "persistence": lambda run, gpu, value: run.nvml.set_persistence(gpu.handle, value),
    "ecc": lambda run, gpu, value: run.nvml.set_ecc(gpu.handle, value),
    "compute_mode": lambda run, gpu, value: run.nvml.set_compute_mode(gpu.handle, value),
    "time_slice": _Run.write_time_slice,
    "power_limit_w": lambda run, gpu, value: run.nvml.set_power_limit(gpu.handle, value),
    "graphics_clock_mhz": lambda run, gpu, value: run.write_clock(gpu, "graphics_clock_mhz", value),
    "memory_clock_mhz": lambda run, gpu, value: run.write_clock(gpu, "memory_clock_mhz", value),
}
