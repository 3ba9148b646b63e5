# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs with different wishes, started together on one host, many times over.

``python mig_twice.py DIRECTORY BOARD TIMES SEED`` (see ``proof_host.prove`` for what it needs); every fourth time one of the two is killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import typing as t
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pynvml
from mig_oracle import Oracle, read_kinds
from proof_host import ProofHost, Saved, instances, load_simulator

# Before pynvml is loaded by what follows (E402): it takes whatever libnvidia-ml.so.1 is there by then.
load_simulator()
from ansible_collections.gpuops.fleet.plugins.module_utils import mig_run  # noqa: E402
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError  # noqa: E402

Layout = list[dict[str, t.Any]]
# What there is on each GPU: (profile, start), each usable or not.
Seen = list[dict[tuple[str, int], bool]]


@dataclass
class Ended:
    """How a run ended: 0 and "", 3 and its message, 4 and a traceback, or a negative signal."""

    pid: int
    code: int
    words: str


class Twice:
    """One host; :meth:`tried` starts two runs on it."""

    def __init__(self, where: Path, board: str, seed: str) -> None:
        shutil.rmtree(where, ignore_errors=True)
        self.host = ProofHost(where, f"{board}:2")
        for gpu in range(2):
            self.host.control("set-gpu", gpu, "mig", 1)
        pynvml.nvmlInit()
        kinds = read_kinds(pynvml.nvmlDeviceGetHandleByIndex(0))
        pynvml.nvmlShutdown()
        self.oracle = Oracle(kinds, max(kind.slices for kind in kinds))
        self.empty = self.host.save()
        self.options = mig_run.Options(self.host.state_dir, proc_root=self.host.proc)
        self.rng = random.Random(f"{board} {seed}")
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def _layout(self) -> Layout:
        """Wishes for one or both GPUs, with every start given: then what a run leaves does not hang on what it found."""
        chosen = self.rng.choice(((0,), (0,), (0, 1)))
        layout = []
        for gpu in chosen:
            wished = sorted(self.rng.choice(self.oracle.sets), key=lambda where: where[1])
            layout.append({"gpu": self.host.uuids[gpu], "instances": [{"profile": name, "start": start} for name, start in wished]})
        return layout

    def tried(self, number: int) -> None:
        """Lay something out, let two runs go at once, judge."""
        self.host.load(self.empty)
        mig_run.apply(self._layout(), [], self.options)
        start, wishes = self.host.save(), (self._layout(), self._layout())
        outcomes = self._in_turn(start, wishes)
        self.host.load(start)
        killed = number % 4 == 3
        ended = self._together(wishes, killed)
        seen = self._seen()
        well = tuple(one.code == 0 for one in ended)
        self.counts[{0: "neither", 1: "one", 2: "both"}[sum(well)] + (" (one was killed)" if killed else "")] += 1
        for one, other in (ended, ended[::-1]):
            if one.code == 4:
                self.wrong.append(f"{number}: {one.words}")
            if one.code == 3 and str(other.pid) not in one.words:
                self.wrong.append(f"{number}: the other, {other.pid}, is not named: {one.words}")
        if killed:
            self._repaired(number, wishes[0])
        elif not any(well):
            self.wrong.append(f"{number}: nobody came through: {ended}")
        elif seen not in outcomes[well]:
            self.wrong.append(f"{number}: {well} of {wishes} ended well, and there is {seen}, not one of {outcomes[well]}")

    def _in_turn(self, start: Saved, wishes: tuple[Layout, Layout]) -> dict[tuple[bool, ...], list[Seen]]:
        """What there may be, by who ended well: as if they ran one after the other."""
        found: dict[tuple[bool, ...], list[Seen]] = {}
        for well, orders in {(True, False): [(0,)], (False, True): [(1,)], (True, True): [(0, 1), (1, 0)]}.items():
            found[well] = []
            for order in orders:
                self.host.load(start)
                for one in order:
                    mig_run.apply(wishes[one], [], self.options)
                found[well].append(self._seen())
        return found

    def _seen(self) -> Seen:
        return [{where: bool(computes) for where, (_gi, computes) in instances(gpu).items()} for gpu in self.host.gpus()]

    def _together(self, wishes: tuple[Layout, Layout], killed: bool) -> tuple[Ended, Ended]:
        """Both runs wait for one pipe to close; the second is late by up to 4 ms."""
        gate, hold = os.pipe()
        late = self.rng.uniform(0, 0.004) * self.rng.randrange(2)
        runs = [self._start(wish, gate, hold, delay) for wish, delay in zip(wishes, (0.0, late), strict=True)]
        os.close(gate)
        os.close(hold)
        if killed:
            time.sleep(self.rng.uniform(0.0005, 0.006))
            os.kill(runs[self.rng.randrange(2)][0], signal.SIGKILL)
        ended = []
        for pid, words in runs:
            with os.fdopen(words) as stream:
                text = stream.read()
            ended.append(Ended(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text))
        return ended[0], ended[1]

    def _start(self, wish: Layout, gate: int, hold: int, delay: float) -> tuple[int, int]:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        code, words = 0, ""
        try:
            os.close(hold)
            os.read(gate, 1)
            time.sleep(delay)
            mig_run.apply(wish, [], self.options)
        except FleetError as error:
            code, words = 3, str(error)
        except BaseException:
            code, words = 4, traceback.format_exc()
        os.write(writing, words.encode())
        os._exit(code)

    def _repaired(self, number: int, wish: Layout) -> None:
        """After a death beside another run: the next run ends well."""
        try:
            mig_run.apply(wish, [], self.options)
        except FleetError as error:
            self.wrong.append(f"{number}: the next run fails: {error}")
        seen = self._seen()
        for entry in wish:
            gpu = self.host.uuids.index(entry["gpu"])
            if seen[gpu] != {(one["profile"], one["start"]): True for one in entry["instances"]}:
                self.wrong.append(f"{number}: after the next run there is {seen[gpu]} for {entry}")


def main() -> None:
    """Try it so many times; JSON."""
    where, board, times, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    twice = Twice(where, board, seed)
    began = time.monotonic()
    for number in range(times):
        twice.tried(number)
    shown = {"board": board, "times": times, "counts": twice.counts, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps({**shown, "wrong": twice.wrong[:20], "wrong_count": len(twice.wrong)}))


if __name__ == "__main__":
    main()
