# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are not there and would serve a service that has no place: with as many GPUs as one replica needs, and no other limit."""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ansible_collections.gpuops.fleet.plugins.plugin_utils.explain import home
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import must_join, new_gpus, width
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, MPS, Gpu, Host, Need, Problem, Resources
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit, Option, eased


def _serves(need: Need, gpu: Gpu) -> bool:
    """Would GPUs of this kind do?"""
    return _alone(replace(need, keep_room=False), gpu)


def gpus_of(need: Need, gpu: Gpu) -> int:
    """How many GPUs such a host has to have: as many as a replica needs, twice as many where room for a rollout is on others."""
    return 2 * need.count if need.keep_room and not _alone(need, gpu) else need.count


def _alone(need: Need, gpu: Gpu) -> bool:
    """Would one replica have a place on such a host? Many services ask for the same of GPUs, and nothing else counts there."""
    asked = {name: getattr(need, name) for name in ("count", "profile", "compute", "sharing", "nvlink", "keep_room")}
    alone = Need("one", "", need.isolation, need.memory_mib, **asked)
    return need.wants(gpu.board) and _has_room(alone, Gpu("", "", gpu.board, gpu.memory_mib, gpu.geometry, mps_clients=gpu.mps_clients))


@lru_cache(maxsize=1024)
def _has_room(alone: Need, gpu: Gpu) -> bool:
    host = host_with(alone, None, gpu, "more-0001", alone.count)
    return bool(make_plan(Problem((host,), (alone,)), trial=True).placements)


# What a host of the same environment has from its policy.
_ALIKE: t.Final = ("shared_max", "shared_reserve_mib", "shared_compute", "ports")


def host_with(need: Need, like: Host | None, gpu: Gpu, name: str, count: int) -> Host:
    """A host with empty GPUs of this kind."""
    # Room is kept where no mode has to change first.
    mig = need.keep_room and need.isolation == "slice"
    made = new_gpus(gpu, [f"GPU-{name}-{number}" for number in range(count)], need.count if must_join(need) else None)
    gpus = tuple(replace(each, mig=mig) for each in made)
    more: dict[str, t.Any] = {} if like is None else {field: getattr(like, field) for field in _ALIKE}
    more["data_classes"] = (need.data_class,) if need.data_class else ()
    modes = tuple(sorted({MODE_OF[need.isolation], *(() if like is None else like.modes)}))
    free = Resources(None, None, None, None)
    return Host(name, need.environment, gpus, modes=modes, sharing=(need.sharing,), capacity=free, **more)


def free_stem(names: Iterable[str], stem: str = "more") -> str:
    """How names of hosts that are not there begin, before ``-0001`` and so on, where these are names of others."""
    taken = {name.rpartition("-")[0] for name in names}
    return next(each for each in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))) if each not in taken)


def words_of(need: Need, gpu: Gpu, count: int) -> str:
    """So many of these hosts, for people: ``a host of environment 'production' with a free GPU (a30)``."""
    each = gpus_of(need, gpu)
    gpus = f"{each} free GPUs" if each > 1 else "a free GPU"
    gpus += " that NVLink joins" if must_join(need) else ""
    # What a new host may have only if somebody says so.
    if need.isolation == "shared":
        gpus += f" that may be shared{' by MPS' if need.sharing == MPS else ''}"
    elif need.keep_room and need.isolation == "slice":
        gpus += " in MIG mode"
    return f"{f'a host of {home(need)} with' if count == 1 else f'{count} hosts of {home(need)}, each with'} {gpus} ({gpu.board})"


Example = tuple[Host | None, Gpu]
"""A kind of GPU by one of it, and a host that has it; None where it can only be bought."""


class Asked(t.NamedTuple):
    """What more hosts are for: the need, the kind of GPU, and in words and as edits what the service asks otherwise than now."""

    need: Need
    board: Example
    words: str = ""
    edits: tuple[Edit, ...] = ()

    def told(self, hosts: Option) -> Option:
        """``hosts`` as an option for the service, with what it has to ask otherwise."""
        return hosts._replace(text=f"{self.words}; and {hosts.text}", edits=(*self.edits, *hosts.edits)) if self.words else hosts


class Kinds:
    """The kinds of GPUs that more hosts could have: those that the fleet has, each with a host like it, and ``more`` that can be bought."""

    def __init__(self, problem: Problem, more: Sequence[Gpu]) -> None:
        self._problem, self._more = problem, more
        self._known: dict[tuple[str, int], list[Example]] = {}

    def of(self, need: Need) -> Example | None:
        """A kind of GPU that would serve when it is empty: the smallest that the fleet has, else of those that can be bought.

        One that the compatibility gate refuses wherever the fleet has it only if no other would serve.
        """
        asked = (need.environment, need.count if must_join(need) else 0)
        if asked not in self._known:
            hosts = sorted(self._problem.hosts, key=_narrowness)
            here = [host for host in hosts if host.environment == need.environment]
            # Of an environment that no host has, the first may be like any.
            own = [(host, gpu) for host in here or hosts for gpu in host.gpus]
            self._known[asked] = [*_kinds(own, asked[1]), *_kinds([(None, gpu) for gpu in self._more], asked[1])]
        refused: Example | None = None
        for host, gpu in self._known[asked]:
            if need.wants(gpu.board) and _serves(need, gpu):
                if not self._is_refused(need, gpu.board):
                    return host, gpu
                refused = refused or (host, gpu)
        return refused

    def otherwise(self, need: Need) -> Asked | None:
        """Where none would serve it: the need with less that it asks, one thing, else two, so that one would."""
        for words, edits in _eases(need):
            wanted = eased(need, edits)
            if (board := self.of(wanted)) is not None:
                return Asked(wanted, board, words, edits)
        return None

    def _is_refused(self, need: Need, board: str) -> bool:
        """Does the compatibility gate refuse a board on every host that has it, or where none has it, on one like those that there are?"""
        if not any(name == board for _host, name in need.bars):
            return False
        own = [host for host in self._problem.hosts if host.environment == need.environment]
        hosts = [host for host in own if any(gpu.board == board for gpu in host.gpus)]
        refused = ((host.name, board) in need.bars for host in hosts or own)
        return all(refused) if hosts else any(refused)


def _kinds(several: Sequence[Example], joined: int) -> list[Example]:
    """The first GPU of each kind that NVLink joins with so many others, the smallest kind first."""
    kinds: dict[tuple[int, str], Example] = {}
    for host, gpu in several:
        if not joined or width(gpu) >= joined:
            kinds.setdefault((gpu.memory_mib, gpu.board), (host, gpu))
    return [kinds[kind] for kind in sorted(kinds)]


def _narrowness(host: Host) -> tuple[t.Any, ...]:
    """The order of hosts that a new one could be like, those first whose policy lets most share: by what it would have of them, never by
    their names or the order of the input."""
    return (-host.shared_max, host.shared_reserve_mib, -host.shared_compute, -len(host.ports), host.ports[:1], host.modes)


def _eases(need: Need) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """What it could ask less of, in words and as edits: one thing, then two of them."""
    own: list[tuple[str, tuple[Edit, ...]]] = []
    if need.profile is not None:
        own.append(("leave 'profile' out", (Edit("service", need.service, "profile", None),)))
    written = [field for field in ("models", "not_models") if getattr(need, field)]
    if written:
        names = " and ".join(f"'{field}'" for field in written)
        own.append((f"leave {names} out", tuple(Edit("service", need.service, field, ()) for field in written)))
    if must_join(need):
        own.append(("leave 'nvlink: required' out", (Edit("service", need.service, "nvlink", "preferred"),)))
    for several in itertools.chain(itertools.combinations(own, 1), itertools.combinations(own, 2)):
        yield "; and ".join(words for words, _edits in several), tuple(edit for _words, edits in several for edit in edits)
