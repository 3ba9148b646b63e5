# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Random pairs (layout as it is, wished layout) on one board: what the product does with each is judged by ``mig_oracle``.

``python mig_pairs.py DIRECTORY BOARD PAIRS SEED`` (see ``proof_host.prove`` for what it needs). For each pair: check mode, the run, the
same wish again, from the mutation log. The host has two more GPUs with instances and processes of their own, which nothing may touch.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
import typing as t
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pynvml
from mig_oracle import BUSY, IMPOSSIBLE, POSSIBLE, Oracle, Verdict, Where, read_kinds
from proof_host import ProofHost, instances, load_simulator

# Before pynvml is loaded by what follows (E402): it takes whatever libnvidia-ml.so.1 is there by then.
load_simulator()
from ansible_collections.gpuops.fleet.plugins.module_utils import mig_run  # noqa: E402
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError  # noqa: E402

OURS = 1  # index of the GPU under test
FIRST_PID = 900_000
DESTROY, CREATE = "nvmlGpuInstanceDestroy", "nvmlDeviceCreateGpuInstance"


@dataclass(frozen=True)
class Pair:
    """``computes``: which standing slices have a compute instance, ``busy``: which are in use; ``wish``: (profile, start or None)."""

    standing: tuple[Where, ...]
    computes: frozenset[Where]
    busy: tuple[Where, ...]
    wish: tuple[tuple[str, int | None], ...]

    def __str__(self) -> str:
        stand = ", ".join(f"{name}@{start}{'' if (name, start) in self.computes else ' bare'}" for name, start in self.standing)
        busy = ", ".join(f"{name}@{start}" for name, start in self.busy)
        wish = ", ".join(name if start is None else f"{name}@{start}" for name, start in self.wish)
        return f"[{stand}] busy [{busy}] wish [{wish}]"


def random_pair(rng: random.Random, oracle: Oracle) -> Pair:
    """Any legal layout with any part in use, and a wish: another layout, the same with a change, or anything at all."""
    standing = tuple(sorted(rng.choice(oracle.sets), key=lambda where: where[1]))
    computes = frozenset(where for where in standing if rng.random() < 0.85)
    used = rng.choice((0.0, 0.0, 0.3, 0.6))
    busy = tuple(where for where in standing if where in computes and rng.random() < used)
    kind = rng.randrange(5)
    if kind == 0:
        wished = list(rng.choice(oracle.sets))
    elif kind == 1:  # what stands, less some and more some
        wished = [where for where in standing if rng.random() < 0.75]
        wished += [(rng.choice(list(oracle.kinds)), 0) for _each in range(rng.randrange(3))]
    elif kind == 2:  # around what is in use
        around = [one for one in oracle.sets if set(busy) <= one]
        wished = list(rng.choice(around))
    elif kind == 3:  # most of what stands is in a larger one, or the other way round
        near = rng.sample(oracle.sets, min(40, len(oracle.sets)))
        wished = list(max(near, key=lambda one: len(one & set(standing))))
    else:
        names = rng.choices(list(oracle.kinds), k=rng.randrange(8))
        wished = [(name, rng.choice(oracle.kinds[name].starts)) for name in names]
    pins = rng.choice((0.0, 0.0, 0.4, 1.0))
    stray = 0.02  # a start where the profile may not begin
    wish = []
    for name, start in wished:
        keep_start = kind != 1 or (name, start) in standing
        place = start if keep_start and rng.random() < pins else None
        wish.append((name, start + 1 if place is not None and rng.random() < stray else place))
    rng.shuffle(wish)
    return Pair(standing, computes, busy, tuple(wish))


class Pairs:
    """One host, one oracle; :meth:`tried` judges one pair."""

    def __init__(self, where: Path, board: str) -> None:
        shutil.rmtree(where, ignore_errors=True)
        self.host = ProofHost(where, f"{board}:2", "a100-80gb")
        for gpu in range(3):
            self.host.control("set-gpu", gpu, "mig", 1)
        pynvml.nvmlInit()
        self.oracle = Oracle(read_kinds(pynvml.nvmlDeviceGetHandleByIndex(OURS)), self._compute_slices())
        pynvml.nvmlShutdown()
        last = sorted(self.oracle.sets[-1])
        self.host.lay(0, [(name, start, 1) for name, start in last])
        self.host.lay(2, [("1g.10gb", 3, 1), ("3g.40gb", 4, 1)])
        self.host.hold(2, ("3g.40gb", 4), FIRST_PID)
        self.empty = self.host.save()
        self.options = mig_run.Options(self.host.state_dir, proc_root=self.host.proc)
        self.wrong: list[str] = []
        self.words: Counter[str] = Counter()
        self.changes = 0

    @staticmethod
    def _compute_slices() -> int:
        """The profile that takes the whole of each of these boards says how many there are."""
        return max(kind.slices for kind in read_kinds(pynvml.nvmlDeviceGetHandleByIndex(OURS)))

    def tried(self, pair: Pair) -> None:
        """Lay the pair out, let the product work, judge."""
        self.host.load(self.empty)
        self.host.lay(OURS, [(name, start, int((name, start) in pair.computes)) for name, start in pair.standing])
        for number, where in enumerate(pair.busy):
            self.host.hold(OURS, where, FIRST_PID + 1 + number)
        bare = set(pair.standing) - pair.computes
        verdict = self.oracle.judge({where: where in pair.busy for where in pair.standing}, pair.wish, bare)
        self.words[verdict.word] += 1
        self.host.load(self.host.save())  # an empty log
        for words in self._judged(pair, verdict):
            self.wrong.append(f"{pair}: {words}")

    def _apply(self, pair: Pair, check: bool) -> mig_run.Result | str:
        instances = [{"profile": name} if start is None else {"profile": name, "start": start} for name, start in pair.wish]
        layout = [{"gpu": self.host.uuids[OURS], "mig": True, "instances": instances}]
        try:
            return mig_run.apply(layout, [], replace(self.options, check=check))
        except FleetError as error:
            return str(error)

    def _judged(self, pair: Pair, verdict: Verdict) -> t.Iterator[str]:
        before = self.host.gpus()
        predicted = self._apply(pair, check=True)
        if self.host.mutations():
            yield f"check mode changed something: {self._log()}"
        ended = self._apply(pair, check=False)
        after = self.host.gpus()
        yield from self._left_alone(pair, before, after)
        if verdict.word == POSSIBLE:
            if isinstance(predicted, str) or isinstance(ended, str):
                yield f"it is possible with {verdict.cost} changes; check mode: {predicted}; run: {ended}"
            else:
                yield from self._done(pair, verdict, predicted, ended, after)
        elif predicted != ended or not isinstance(ended, str):
            yield f"{verdict.word}; check mode: {predicted}; run: {ended}"
        else:
            yield from self._refused(verdict, ended, before, after)

    def _refused(self, verdict: Verdict, ended: str, before: list[t.Any], after: list[t.Any]) -> t.Iterator[str]:
        if self.host.mutations() or before != after:
            yield f"{verdict.word}, and yet {self._log()}"
        if verdict.word == BUSY and str(FIRST_PID)[:4] not in ended:
            yield f"no process is named: {ended}"
        if verdict.word == IMPOSSIBLE and "cannot hold" not in ended:
            yield f"it is impossible, and the message does not say so: {ended}"
        if "\n" in ended or len(ended) > 1500:
            yield f"the message is too long: {ended}"

    def _done(self, pair: Pair, verdict: Verdict, predicted: mig_run.Result, ended: mig_run.Result, after: list[t.Any]) -> t.Iterator[str]:
        counted = [one["call"] for one in self.host.mutations() if one["call"].startswith((DESTROY, CREATE))]
        self.changes += len(counted)
        if len(counted) != verdict.cost:
            yield f"{len(counted)} instances destroyed or created, the minimum is {verdict.cost}: {self._log()}"
        if (predicted.changed, predicted.steps, predicted.before, predicted.after) != (
            ended.changed,
            ended.steps,
            ended.before,
            ended.after,
        ):
            yield f"check mode said {predicted.steps} -> {predicted.after!r}, the run {ended.steps} -> {ended.after!r}"
        if places(predicted) != places(ended) or predicted.pending != ended.pending:
            yield f"check mode said {places(predicted)}, the run {places(ended)}"
        if ended.changed != bool(self.host.mutations()):
            yield f"changed: {ended.changed}, and the log has {self._log()}"
        now = instances(after[OURS])
        if places(ended) != [sorted(now, key=lambda where: where[1])]:
            yield f"the result says {places(ended)}, there are {sorted(now)}"
        if sorted(name for name, _start in now) != sorted(name for name, _start in pair.wish):
            yield f"wished {pair.wish}, there are {sorted(now)}"
        if any(start is not None and (name, start) not in now for name, start in pair.wish):
            yield f"a start was not obeyed: {sorted(now)}"
        if not all(computes for _gi, computes in now.values()):
            yield f"a slice without compute instance: {now}"
        if self.oracle.room(frozenset(now)) < verdict.room:
            yield f"{sorted(now)} leaves room for {self.oracle.room(frozenset(now))} memory slices in a row, {verdict.room} are possible"
        again = self._apply(pair, check=False)
        if isinstance(again, str) or again.changed or again.steps or self.host.gpus() != after:
            yield f"the same wish again: {again if isinstance(again, str) else again.steps}"

    def _left_alone(self, pair: Pair, before: list[t.Any], after: list[t.Any]) -> t.Iterator[str]:
        """Other GPUs and whatever is in use: the same in every word, and no changing call names them."""
        strangers = [one for one in self.host.mutations() if one["args"].get("gpu") != self.host.uuids[OURS]]
        if strangers or (before[0], before[2]) != (after[0], after[2]):
            yield f"another GPU was touched: {strangers}"
        was, now = instances(before[OURS]), instances(after[OURS])
        for where in pair.busy:
            called = [one for one in self.host.mutations() if one["args"].get("gi") == was[where][0]]
            if now.get(where) != was[where] or called:
                yield f"{where} is in use and was touched: {called}"

    def _log(self) -> list[str]:
        return [f"{one['call']} {one['args']}" for one in self.host.mutations()]


def places(result: mig_run.Result) -> list[list[Where]]:
    """The layout of a result as (profile, start), by GPU."""
    return [[(one["profile"], one["start"]) for one in gpu["instances"]] for gpu in result.layout]


def main() -> None:
    """Try them all; JSON."""
    where, board, count, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    pairs = Pairs(where, board)
    rng = random.Random(f"{board} {seed}")
    began = time.monotonic()
    for _each in range(count):
        pairs.tried(random_pair(rng, pairs.oracle))
    seconds = time.monotonic() - began
    shown = {"board": board, "pairs": count, "seconds": round(seconds, 2), "words": pairs.words, "changes": pairs.changes}
    print(json.dumps({**shown, "wrong": pairs.wrong[:20], "wrong_count": len(pairs.wrong)}))


if __name__ == "__main__":
    main()
