# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The crash matrix of one board: every layout change is cut short at every point, and the next run must repair it.

``python mig_crash.py DIRECTORY BOARD CHANGES SEED some|all`` (see ``proof_host.prove`` for what it needs). ``some``: every death of a first
run, and of the errors one in turn for each mutation. ``all``: every error, and deaths on the way back, in the repair and at boot as well.

Each death and each error really happens. What follows is a function of the host's state, so that two deaths which leave the very same
state (after one file event, before the next) are followed by one recovery; how many were the same is counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
import typing as t
from collections import Counter
from pathlib import Path

import pynvml
from crash_changes import Change, Changes
from mig_oracle import Oracle, Where, read_kinds
from proof_host import DEATHS, SIMULATOR, ProofHost, Saved, instances, load_simulator

# Before pynvml is loaded by what follows (E402): it takes whatever libnvidia-ml.so.1 is there by then.
load_simulator()
from ansible_collections.gpuops.fleet.plugins.module_utils import mig_run  # noqa: E402
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError  # noqa: E402

BEFORE, AFTER, TORN, FULL = range(4)
MANNERS = ("before", "after", "in the middle of")
PR_SET_CHILD_SUBREAPER = 36

# What a call may plausibly answer on a board that runs. IN_USE: a leaked handle, DCGM, a client that came meanwhile.
# INSUFFICIENT_RESOURCES: somebody else's instance, or a placement that the driver refuses. NOT_SUPPORTED and INVALID_ARGUMENT: a
# hypervisor or another driver branch. NOT_FOUND: somebody else removed it. NO_PERMISSION: a capability was dropped. TIMEOUT, UNKNOWN,
# GPU_IS_LOST: the hardware, at any time. RESET_REQUIRED: an earlier fault.
_ALWAYS = ("UNKNOWN", "TIMEOUT", "GPU_IS_LOST", "NO_PERMISSION")
ERRORS = {
    "nvmlDeviceSetMigMode": (*_ALWAYS, "IN_USE", "NOT_SUPPORTED", "RESET_REQUIRED"),
    "nvmlDeviceCreateGpuInstanceWithPlacement": (*_ALWAYS, "INSUFFICIENT_RESOURCES", "IN_USE", "NOT_SUPPORTED", "INVALID_ARGUMENT"),
    "nvmlGpuInstanceCreateComputeInstance": (*_ALWAYS, "INSUFFICIENT_RESOURCES", "IN_USE", "NOT_SUPPORTED", "INVALID_ARGUMENT"),
    "nvmlGpuInstanceDestroy": (*_ALWAYS, "IN_USE", "NOT_FOUND"),
    "nvmlComputeInstanceDestroy": (*_ALWAYS, "IN_USE", "NOT_FOUND"),
    "nvidia-smi.reset": ("UNKNOWN", "IN_USE", "NOT_SUPPORTED", "GPU_IS_LOST"),
}
LEFT_OUT = "for each NVML change all errors but one in turn; deaths on the way back, in the repair and at boot"
READS = ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo")

# GPU -> (MIG on, (profile, start) -> compute instances)
Target = dict[int, tuple[bool, dict[Where, int]]]


def target(gpus: t.Sequence[dict[str, t.Any]]) -> Target:
    """What a host is, without names that change: modes, slices, how many compute instances."""
    return {
        number: (gpu["mig"]["current"], {where: len(computes) for where, (_gi, computes) in instances(gpu).items()})
        for number, gpu in enumerate(gpus)
    }


class Matrix:
    """One board. :meth:`run` cuts one change short everywhere."""

    def __init__(self, where: Path, board: str, complete: bool) -> None:
        shutil.rmtree(where, ignore_errors=True)
        self.complete = complete
        self.host = ProofHost(where, f"{board}:3")
        self.host.control("set-gpu", 0, "mig", 1)
        pynvml.nvmlInit()
        kinds = read_kinds(pynvml.nvmlDeviceGetHandleByIndex(0))
        pynvml.nvmlShutdown()
        self.host.control("set-gpu", 0, "mig", 0)
        self.oracle = Oracle(kinds, max(kind.slices for kind in kinds))
        self.untouched_host = self.host.save()
        self.options = mig_run.Options(
            self.host.state_dir, proc_root=self.host.proc, nvidia_smi=str(SIMULATOR / "nvidia-smi-reset"), reset=True
        )
        self._deaths = ctypes.CDLL(str(DEATHS))
        self._deaths.deathsWatch.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
        self._deaths.deathsSeen.restype = ctypes.c_char_p
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.points: Counter[str] = Counter()
        self.recoveries: Counter[str] = Counter()
        self.known: set[str] = set()
        self.wrong: list[str] = []
        self.turn = 0

    # One change

    def run(self, change: Change) -> None:
        """Everything that may happen to this change."""
        self._begin(change)
        for number in range(1, len(self.mutations) + 1):
            for before in (1, 0):
                self._kill_mutation(number, before)
        for number, event in enumerate(self.events, start=1):
            for manner in (BEFORE, AFTER, TORN) if event.startswith("write ") else (BEFORE, AFTER):
                self._kill_file(number, event, manner)
            if event.split()[0] in ("open", "write", "fsync", "rename", "mkdir"):
                self._full_disk(number, event)
        for number, record in enumerate(self.mutations, start=1):
            self._errors(number, record)

    def _begin(self, change: Change) -> None:
        """Lay the change out, carry it out once undisturbed and note what it does."""
        self.change, self.layout = change, change.layout(self.host.uuids)
        self.known.clear()
        self.host.load(self.untouched_host)
        change.lay_out(self.host)
        kept = [{"gpu": self.host.uuids[gpu], "mig": gpu in change.before} for gpu in range(3)]
        self._apply(kept)  # what a host remembers: it found the layout as it was wished
        self.start = self.host.save()
        self.host.load(self.start)
        was = self.host.gpus()
        self.old = target(was)
        self._watch(0, BEFORE)
        self._apply(self.layout)
        self.events = self._unwatch()
        self.mutations = self.host.mutations()
        self.calls = self.host.calls()
        now = self.host.gpus()
        self.new = target(now)
        self._check_order()
        self.kept = {
            (gpu, where): entry
            for gpu in range(3)
            for where, entry in instances(was[gpu]).items()
            if instances(now[gpu]).get(where) == entry
        }
        if not self.mutations:
            self._say("the change changes nothing")
        for words in self._is_true(now):
            self._say(f"undisturbed: {words}")

    def _check_order(self) -> None:
        """A power cut keeps what was forced to disk: a file before it gets its name, and the directory right after."""
        for number, event in enumerate(self.events):
            if event.startswith("rename "):
                around = [one.split()[0] for one in self.events[max(0, number - 1) : number + 2]]
                if around != ["fsync", "rename", "fsync"]:
                    self._say(f"{event}: not fsync, rename, fsync of the directory, but {around}")

    def _apply(self, layout: list[dict[str, t.Any]]) -> mig_run.Result:
        return mig_run.apply(layout, [], self.options)

    def _tried(self) -> str | None:
        """Run the wish; None, or the message that it ended with."""
        try:
            self._apply(self.layout)
        except FleetError as error:
            return str(error)
        return None

    def _watch(self, number: int, manner: int) -> None:
        self._deaths.deathsWatch(str(self.host.state_dir).encode(), number, manner)

    def _unwatch(self) -> list[str]:
        seen = self._deaths.deathsSeen().decode().splitlines()
        self._deaths.deathsWatch(b"", 0, BEFORE)
        return list(seen)

    def _say(self, words: str) -> None:
        self.wrong.append(f"{self.change}: {words}")

    # Deaths

    def _die(self, number: int = 0, manner: int = BEFORE, restore: bool = False) -> str | None:
        """Run the wish, or what runs at boot, in a child that is to die; None when it did, else what it did instead."""
        child = os.fork()
        if child == 0:
            code = 0
            try:
                if number:
                    self._watch(number, manner)
                _result = mig_run.restore(self.options) if restore else self._apply(self.layout)
            except FleetError:
                code = 3
            except BaseException:
                traceback.print_exc()
                code = 4
            os._exit(code)
        _pid, status = os.waitpid(child, 0)
        while True:  # a reset that was begun goes on without its parent
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return None if killed else f"nobody died: {os.waitstatus_to_exitcode(status)}"

    def _kill_mutation(self, number: int, before: int) -> None:
        record = self.mutations[number - 1]
        self.host.load(self.start)
        if record["call"].startswith("nvidia-smi"):
            return self._reset_dies(number, before)
        self.host.control("kill", number, before)
        point = f"killed {'before' if before else 'after'} change {number}, {record['call']}"
        return self._dead("deaths at an NVML change", point, self._die())

    def _reset_dies(self, number: int, before: int) -> None:
        """The program that resets is killed, not the run: to the run this is an error."""
        self.host.control("kill", number, before)
        self.points["resets that were killed"] += 1
        point = f"nvidia-smi killed {'before' if before else 'after'} its reset"
        message = self._tried()
        self._ended(point, message)

    def _kill_file(self, number: int, event: str, manner: int) -> None:
        self.host.load(self.start)
        self._dead("deaths at a file or a child", f"killed {MANNERS[manner]} '{event}' (event {number})", self._die(number, manner))

    def _dead(self, kind: str, point: str, other: str | None) -> None:
        """The next run repairs, whichever it is: the same wish, or the one at boot."""
        self.points[kind] += 1
        if other is not None:
            return self._say(f"{point}: {other}")
        self.host.control("kill", 0, 0)
        self.host.mutations()
        dead = self.host.save()
        if self.complete and self._is_new("death in the repair"):
            self._dead_again(point, dead)
            self.host.load(dead)
        self._repaired(point)
        self._booted(point, dead)
        return None

    def _is_new(self, recovery: str) -> bool:
        """Whether this recovery was not yet seen from the very state that the host is in."""
        key = f"{recovery} {self.host.key()}"
        self.recoveries[recovery if key not in self.known else f"{recovery}, seen from the same state"] += 1
        new = key not in self.known
        self.known.add(key)
        return new

    def _dead_again(self, point: str, dead: Saved) -> None:
        """The repair is killed at each of its own changes."""
        self.host.load(dead)
        self._tried()
        for number in range(1, len(self.host.mutations()) + 1):
            self.host.load(dead)
            self.host.control("kill", number, 0)
            self.points["deaths in the repair"] += 1
            again = f"{point}; the repair killed after its change {number}"
            if (other := self._die()) is not None:
                self._say(f"{again}: {other}")
            self.host.control("kill", 0, 0)
            self._repaired(again)

    def _repaired(self, point: str) -> None:
        """The same wish again: it is true, the journal is closed, what was to stay was never touched."""
        for words in self._kept(self.host.gpus()):
            self._say(f"{point}: {words}")
        if not self._is_new("the same wish again"):
            return None
        message = self._tried()
        if message is not None:
            return self._say(f"{point}: the next run fails: {message}")
        gpus = self.host.gpus()
        for words in (*self._is_true(gpus), *self._kept(gpus), *self._journal("closed")):
            self._say(f"{point}: after the next run {words}")
        count = len(self.host.mutations())
        message = self._tried()
        if message is not None or len(self.host.mutations()) != count:
            self._say(f"{point}: the run after the next: {message or 'changes something'}")
        return None

    def _booted(self, point: str, dead: Saved) -> None:
        """The host boots instead, and restores by itself: the wish or the old layout, whole."""
        self.host.load(dead)
        self.host.control("reboot")
        if not self._is_new("boot"):
            return
        up = self.host.save()
        self._restored(point)
        for number in range(1, len(self.host.mutations()) + 1 if self.complete else 1):
            self.host.load(up)
            self.host.control("kill", number, 0)
            self.points["deaths at boot"] += 1
            again = f"{point}; what runs at boot killed after its change {number}"
            if (other := self._die(restore=True)) is not None:
                self._say(f"{again}: {other}")
            self.host.control("kill", 0, 0)
            self._restored(again)

    def _restored(self, point: str) -> None:
        """What runs at boot, and what it leaves."""
        try:
            mig_run.restore(self.options)
        except FleetError as error:
            return self._say(f"{point}: restoring after a boot fails: {error}")
        now = target(self.host.gpus())
        if now not in (self.old, self.new):
            self._say(f"{point}: after a boot there is {now}, neither the old {self.old} nor the new {self.new}")
        for words in self._journal("closed"):
            self._say(f"{point}: after a boot {words}")
        return None

    def _full_disk(self, number: int, event: str) -> None:
        """The disk is full at one event."""
        self.host.load(self.start)
        self._watch(number, FULL)
        try:
            message = self._tried()
        finally:
            self._unwatch()
        self.points["full disks"] += 1
        self._ended(f"no space left at '{event}' (event {number})", message, file_error=True)

    # Errors

    def _errors(self, number: int, record: dict[str, t.Any]) -> None:
        errors = ERRORS[record["call"]]
        self.turn += 1
        for index, error in enumerate(errors):
            if not self.complete and index != self.turn % len(errors):
                continue
            self._once(number, record, error, late=0)
            self._for_good(number, record, error, all_changes=False)
        if self.complete or self.turn % 2:
            self._once(number, record, "TIMEOUT", late=1)
        if self.complete or not self.turn % 2:
            for error in ("UNKNOWN", "GPU_IS_LOST") if self.complete else ("GPU_IS_LOST",):
                self._for_good(number, record, error, all_changes=True)
        if self.complete:
            self._die_going_back(number, record)

    def _nth(self, call: str, seq: int) -> int:
        """The next call of this name from record ``seq`` on is so many-eth of its name."""
        return sum(one["call"] == call and one["seq"] < seq for one in self.calls) + 1

    def _fault(self, record: dict[str, t.Any], error: str, times: int, late: int = 0) -> None:
        self.host.control("fault", record["call"], self._nth(record["call"], record["seq"]), times, error, late)

    def _once(self, number: int, record: dict[str, t.Any], error: str, late: int) -> None:
        self.host.load(self.start)
        self._fault(record, error, 1, late)
        self.points["errors once"] += 1
        point = f"{record['call']} (change {number}) answers {error} once{', its work done' if late else ''}"
        # nvidia-smi has words for it, not names
        self._ended(point, self._tried(), "" if record["call"].startswith("nvidia-smi") else error)

    def _ended(self, point: str, message: str | None, error: str = "", file_error: bool = False) -> None:
        """After one error: the wish or the old layout, whole; the journal closed; and the next run ends well."""
        gpus = self.host.gpus()
        now = target(gpus)
        true = not list(self._is_true(gpus))
        for words in self._kept(gpus):
            self._say(f"{point}: {words}; the run: {message}")
        if message is None and not true:
            self._say(f"{point}: the run ends well, and there is {now}")
        if message is not None and not true and now != self.old:
            self._say(f"{point}: neither the wish nor the old layout: {now}; the run: {message}")
        if message is not None and error and error not in message:
            self._say(f"{point}: the error is not named: {message}")
        if not file_error:
            for words in self._journal("closed"):
                self._say(f"{point}: {words}; the run: {message}")
        self._repaired(point)

    def _for_good(self, number: int, record: dict[str, t.Any], error: str, all_changes: bool) -> None:
        self.host.load(self.start)
        self._fault(record, error, 0)
        if all_changes:
            others = [call for call in ERRORS if call != record["call"]] + (list(READS) if error == "GPU_IS_LOST" else [])
            for call in others:
                self.host.control("fault", call, self._nth(call, record["seq"]), 0, error)
        self.points["errors for good"] += 1
        point = f"{'every call' if all_changes else record['call']} (from change {number} on) answers {error} for good"
        first = self._lasting(point, None)
        if first is not None:
            self._lasting(f"{point}, second run", first)
        self.host.control("clear-faults", "")
        self._repaired(f"{point}, now over")

    def _lasting(self, point: str, first: dict[str, t.Any] | None) -> dict[str, t.Any] | None:
        """One run while the error lasts: what stays is intact; unless the old layout is whole, the journal stays open and what is missing
        is named. The journal's ``before``, when it must be open."""
        message = self._tried()
        gpus = self.host.gpus()
        now = target(gpus)
        for words in self._kept(gpus):
            self._say(f"{point}: {words}; the run: {message}")
        if message is None:
            for words in self._is_true(gpus):
                self._say(f"{point}: the run ends well, and {words}")
            return None
        if now == self.old:
            return None
        entry = self._entry()
        for words in self._journal("open"):
            self._say(f"{point}: {words}; the run: {message}")
        before = dict(entry.get("before") or {})
        lost = [uuid for uuid, line in (first or {}).items() if before.get(uuid) != line]
        if lost:
            self._say(f"{point}: the journal forgot the layout from before of {lost}; the run: {message}")
        for missing in self._missing(now, message):
            self._say(f"{point}: {missing} is missing and not named: {message}")
        return before

    def _missing(self, now: Target, message: str) -> list[str]:
        """Slices of the layout from before that are not there, or not usable, and that the message does not name."""
        left: list[str] = []
        if re.search(r"GPU \S+ (is lost|does not answer)", message):
            return left  # what it has left cannot be said
        for gpu, (_mode, slices) in self.old.items():
            if now[gpu] == self.new[gpu]:
                continue  # one of several, and it has got what it was to get
            for (profile, start), computes in slices.items():
                named = re.search(rf"{re.escape(profile)}(@| at memory slice ){start}\b", message)
                if now[gpu][1].get((profile, start), -1) < computes and not named:
                    left.append(f"{profile}@{start} of GPU {gpu}")
        return left

    def _die_going_back(self, number: int, record: dict[str, t.Any]) -> None:
        """An error, and a death at each change that is made on the way back."""
        self.host.load(self.start)
        self._fault(record, "UNKNOWN", 1)
        self._tried()
        for later in range(number, len(self.host.mutations()) + 1):
            for before in (1, 0):
                self.host.load(self.start)
                self._fault(record, "UNKNOWN", 1)
                self.host.control("kill", later, before)
                self.points["deaths on the way back"] += 1
                point = f"{record['call']} (change {number}) fails, killed {'before' if before else 'after'} change {later} on the way back"
                if (other := self._die()) is not None:
                    self._say(f"{point}: {other}")
                self.host.control("kill", 0, 0)
                self.host.mutations()
                dead = self.host.save()
                self._repaired(point)
                self._booted(point, dead)

    # Judging

    def _is_true(self, gpus: list[dict[str, t.Any]]) -> t.Iterator[str]:
        """What of the wish is not true."""
        for gpu, wish in self.change.wish.items():
            mode, slices = target(gpus)[gpu]
            if mode != (wish is not None) or gpus[gpu]["mig"]["pending"] != mode:
                yield f"MIG of GPU {gpu} is {gpus[gpu]['mig']['current']}, pending {gpus[gpu]['mig']['pending']}"
            names = sorted(name for name, _start in slices)
            if names != sorted(name for name, _start in wish or ()):
                yield f"GPU {gpu} has {sorted(slices)} for {wish}"
            if any(start is not None and (name, start) not in slices for name, start in wish or ()):
                yield f"GPU {gpu} has {sorted(slices)} for {wish}"
            if not all(slices.values()):
                yield f"GPU {gpu} has slices that nobody can use: {slices}"

    def _kept(self, gpus: list[dict[str, t.Any]]) -> t.Iterator[str]:
        """What should have been left alone and was not: by id and UUID, and in the log."""
        for (gpu, where), entry in self.kept.items():
            if instances(gpus[gpu]).get(where) != entry:
                yield f"{where} of GPU {gpu} was to stay as {entry} and is {instances(gpus[gpu]).get(where)}"
        stays = {(self.host.uuids[gpu], entry[0]) for (gpu, _where), entry in self.kept.items()}
        named = {self.host.uuids[gpu] for gpu in self.change.wish}
        for one in self.host.mutations():
            uuid = one["args"].get("gpu")
            if (uuid, one["args"].get("gi")) in stays or (uuid is not None and uuid not in named):
                yield f"a changing call on what was to stay: {one['call']} {one['args']}"

    def _entry(self) -> dict[str, t.Any]:
        path = self.host.state_dir / "mig-journal.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    def _journal(self, state: str) -> list[str]:
        found = self._entry().get("state", "closed")
        return [] if found == state else [f"the journal is {found} and not {state}"]


def main() -> None:
    """Cut every change short; JSON."""
    where, board, count, seed, mode = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
    matrix = Matrix(where, board, mode == "all")
    began = time.monotonic()
    for change in Changes(matrix.oracle, f"{board} {seed}").number(count):
        matrix.run(change)
    shown = {
        "board": board,
        "changes": count,
        "points": matrix.points,
        "recoveries": matrix.recoveries,
        "seconds": round(time.monotonic() - began, 1),
    }
    left_out = "" if matrix.complete else LEFT_OUT
    print(json.dumps({**shown, "left_out": left_out, "wrong": matrix.wrong[:40], "wrong_count": len(matrix.wrong)}))


if __name__ == "__main__":
    main()
