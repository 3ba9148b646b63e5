# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that are not there and would serve a service that has no place: with as many GPUs as one replica needs, and no other limit."""

from __future__ import annotations

import itertools
import typing as t
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.plugin_utils.explain import home
from ansible_collections.gpuops.fleet.plugins.plugin_utils.links import must_join, new_gpus, width
from ansible_collections.gpuops.fleet.plugins.plugin_utils.planner import make_plan
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import MODE_OF, Gpu, Host, Need, Problem, Resources
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit


def serves(need: Need, gpu: Gpu) -> bool:
    """Would GPUs of this kind do?"""
    return _alone(replace(need, keep_room=False), gpu)


def gpus_of(need: Need, gpu: Gpu) -> int:
    """How many GPUs such a host has to have: as many as a replica needs, twice as many where room for a rollout is on others."""
    return 2 * need.count if need.keep_room and not _alone(need, gpu) else need.count


def _alone(need: Need, gpu: Gpu) -> bool:
    host = host_with(need, None, gpu, "more-0001", need.count)
    alone = replace(need, replicas=1, bars={}, rules=type(need.rules)(), ports=())
    return bool(make_plan(Problem((host,), (alone,)), trial=True).placements)


def host_with(need: Need, like: Host | None, gpu: Gpu, name: str, count: int) -> Host:
    """A host with empty GPUs of this kind."""
    # Room is kept where no mode has to change first.
    mig = need.keep_room and need.isolation == "slice"
    made = new_gpus(gpu, [f"GPU-{name}-{number}" for number in range(count)], need.count if must_join(need) else None)
    gpus = tuple(replace(each, mig=mig) for each in made)
    more: dict[str, t.Any] = {} if like is None else {"shared_reserve_mib": like.shared_reserve_mib, "ports": like.ports}
    more["data_classes"] = (need.data_class,) if need.data_class else ()
    modes = tuple(sorted({MODE_OF[need.isolation], *(() if like is None else like.modes)}))
    free = Resources(None, None, None, None)
    return Host(name, need.environment, gpus, modes=modes, sharing=(need.sharing,), capacity=free, **more)


def words_of(need: Need, gpu: Gpu, count: int) -> str:
    """So many of these hosts, for people: ``a host of environment 'production' with a free GPU (a30)``."""
    each = gpus_of(need, gpu)
    gpus = f"{each} free GPUs" if each > 1 else "a free GPU"
    gpus += " that NVLink joins" if must_join(need) else ""
    return f"{f'a host of {home(need)} with' if count == 1 else f'{count} hosts of {home(need)}, each with'} {gpus} ({gpu.board})"


def kinds_of(several: Sequence[tuple[Host | None, Gpu]], joined: int) -> list[tuple[Host | None, Gpu]]:
    """The first GPU of each kind that NVLink joins with so many others, the smallest kind first."""
    kinds: dict[tuple[int, str], tuple[Host | None, Gpu]] = {}
    for host, gpu in several:
        if not joined or width(gpu) >= joined:
            kinds.setdefault((gpu.memory_mib, gpu.board), (host, gpu))
    return [kinds[kind] for kind in sorted(kinds)]


def eases(need: Need) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """What a service that no kind of GPU would serve could ask less of, in words and as edits: one thing, then two of them."""
    own: list[tuple[str, tuple[Edit, ...]]] = []
    if need.profile is not None:
        own.append(("leave 'profile' out", (Edit("service", need.service, "profile", None),)))
    if need.models or need.not_models:
        edits = (Edit("service", need.service, field, ()) for field in ("models", "not_models"))
        own.append(("leave 'models' and 'not_models' out", tuple(edits)))
    if must_join(need):
        own.append(("leave 'nvlink: required' out", (Edit("service", need.service, "nvlink", "preferred"),)))
    for several in itertools.chain(itertools.combinations(own, 1), itertools.combinations(own, 2)):
        yield "; and ".join(words for words, _edits in several), tuple(edit for _words, edits in several for edit in edits)
