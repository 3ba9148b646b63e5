# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words of manifests and quotas that must name something that there is: a slip of the pen takes a service's places away."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import gb_apart
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import amount
from ansible_collections.gpuops.fleet.plugins.plugin_utils.near import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Need, Problem
from ansible_collections.gpuops.fleet.plugins.plugin_utils.room import gib

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest

# Parts of names that are shorter are all alike.
_LONG: t.Final = 4


def unknown_words(manifests: Sequence[Manifest], problem: Problem, catalogue: Catalogue) -> Iterator[FleetError]:
    """A line for each environment and class of data that is a slip of the pen (:func:`_meant`), and for boards, profiles and amounts that
    there are not and that would take the places of a service.

    All of them may be of hosts that are still to come, or whose GPUs are gone: boards, profiles and amounts are refused only of a service
    that has places and whose manifest has changed. A slice of boards that never have MIG is refused of whoever has no such place.
    Nothing is refused while a host is down; to be asked only where all hosts of the site are here.
    """
    hosts = problem.hosts
    if any(host.down for host in hosts):
        return
    placed = {place.service for place in problem.previous}
    serving = placed & problem.changed
    boards = _boards(problem, catalogue)
    seen = {profile.name for host in hosts for gpu in host.gpus if gpu.geometry is not None for profile in gpu.geometry.profiles}
    profiles = sorted(seen | catalogue.profiles)
    without_mig = _without_mig(problem, catalogue)
    needs = {need.service: need for need in problem.needs}
    names = (
        ("environment", "fleet_environment", sorted({host.environment for host in hosts})),
        ("data_class", "fleet_data_classes", sorted({each for host in hosts for each in host.data_classes})),
    )
    for manifest in manifests:
        for field, setting, known in names:
            word = getattr(manifest.model, field)
            if word is not None and word not in known and (meant := _meant(word, known)):
                yield manifest.located.error((field,), f"no host has '{word}' ({setting})", f"did you mean '{meant}'?")
        if manifest.service not in placed or manifest.service in problem.changed:
            yield from _not_sliced(manifest, needs[manifest.service], boards, without_mig)
        if manifest.service not in serving:
            continue
        yield from _no_board(manifest, boards)
        need = needs[manifest.service]
        yield from _too_much(manifest, need, hosts, catalogue)
        asked = manifest.model.gpu
        if not any(replace(need, models=()).wants(board) for board in boards):
            yield manifest.located.error(
                ("gpu", "not_models"), "it takes away every board", "write catalogue ids, or parts of them that few have"
            )
        profile = asked.profile
        if profile is not None and profile not in profiles and all(gb_apart(profile, name) is None for name in profiles):
            hint = near(profile, profiles, "write the name of a MIG profile as NVML has it, such as 1g.10gb")
            yield manifest.located.error(("gpu", "profile"), f"no board has a MIG profile '{profile}'", hint)


def _too_much(manifest: Manifest, need: Need, hosts: Sequence[Host], catalogue: Catalogue) -> Iterator[FleetError]:
    """A line for each amount of which no host, and no board that is known, has so much, even empty."""
    if need.adopted:
        return
    hint = "write what one replica needs"
    most = max((*(gpu.memory_mib for host in hosts for gpu in host.gpus), *(board.memory_gb * 1024 for board in catalogue.boards.values())))
    if need.memory_mib > most:
        where = ("model",) if manifest.model.gpu.memory is None else ("gpu", "memory")
        wrong = f"no GPU has {gib(need.memory_mib)}; the largest has {gib(most)}"
        yield manifest.located.error(where, wrong, hint)
    gpus = max(len(host.gpus) for host in hosts)
    if need.count > gpus:
        yield manifest.located.error(("gpu", "count"), f"no host has {need.count} GPUs; the largest has {gpus}", hint)
    for field in ("cpus", "memory", "shm", "disk"):
        asked, have = getattr(need.resources, field), [getattr(host.capacity, field) for host in hosts]
        if None not in have and asked > max(have):
            wrong = f"no host has {amount(field, asked)}; the largest gives {amount(field, max(have))}"
            yield manifest.located.error(("host", field), wrong, hint)


def idle_words(manifests: Sequence[Manifest], problem: Problem, catalogue: Catalogue) -> Iterator[str]:
    """A line for each word that was written for a board and is in no board's name: it keeps nobody from one, or nobody can have one; and
    for each quota that limits or gives nobody anything."""
    boards = _boards(problem, catalogue)
    for manifest in manifests:
        yield from map(str, _no_board(manifest, boards))
        for index, word in enumerate(manifest.model.gpu.not_models):
            if not _names_any(word, boards):
                hint = near(word.lower(), _parts(boards), "nothing is kept from it")
                yield str(manifest.located.error(("gpu", "not_models", index), f"no board has '{word}' in its name", hint))
    for quota in problem.quotas:
        for word in sorted({limit.board for limit in quota.limits if limit.board and not _names_any(limit.board, boards)}):
            hint = near(word.lower(), _parts(boards), "nothing is limited by it")
            yield f"fleet_quotas.teams.{quota.team}.models.{word}: no board has '{word}' in its name; {hint}"
        if quota.borrow and not any(other.lend and other.workspace == quota.workspace for other in problem.quotas if other != quota):
            yield f"fleet_quotas.teams.{quota.team}.borrow: no other team of workspace '{quota.workspace}' lends; nothing is borrowed by it"
    for workspace in problem.workspaces:
        if workspace.limits and all(quota.workspace != workspace.name for quota in problem.quotas):
            yield f"fleet_quotas.workspaces.{workspace.name}: no team has it as its workspace; nothing is limited by it"


def _no_board(manifest: Manifest, boards: Collection[str]) -> Iterator[FleetError]:
    """A line for each of its models, where no board has any of them in its name."""
    models = manifest.model.gpu.models
    for index, word in enumerate(models if not any(_names_any(each, boards) for each in models) else ()):
        hint = near(word.lower(), _parts(boards), "write a catalogue id or a part of it, such as a100")
        yield manifest.located.error(("gpu", "models", index), f"no board has '{word}' in its name", hint)


def _without_mig(problem: Problem, catalogue: Catalogue) -> set[str]:
    """Boards of which the catalogue knows that they have no MIG, and no host shows that they do."""
    capable = {gpu.board for host in problem.hosts for gpu in host.gpus if gpu.geometry is not None}
    return {name for name, board in catalogue.boards.items() if board.without_mig} - capable


def _not_sliced(manifest: Manifest, need: Need, boards: Iterable[str], without_mig: Collection[str]) -> Iterator[FleetError]:
    """A line where a slice is asked for and ``models`` allows nothing but boards that have no MIG.

    Boards that it does not know may have it, and so may those that are still to come, where a word names none of today.
    """
    asked = manifest.model.gpu
    if asked.isolation != "slice" or manifest.model.lifecycle == "adopted" or not asked.models:
        return
    allowed = [board for board in boards if need.wants(board)]
    words = [word for word in asked.models if not any(_names_any(other, [word.lower()]) for other in asked.not_models)]
    if all(board in without_mig for board in allowed) and all(_names_any(word, allowed) for word in words):
        wrong = f"a slice cannot be had: {', '.join(allowed)} {'has' if len(allowed) == 1 else 'have'} no MIG"
        hint = "write 'isolation: exclusive' or 'isolation: shared', or name a board with MIG"
        yield manifest.located.error(("gpu", "models"), wrong, hint)


def _boards(problem: Problem, catalogue: Catalogue) -> list[str]:
    return sorted({*catalogue.boards, *(gpu.board for host in problem.hosts for gpu in host.gpus)})


def _parts(boards: Iterable[str]) -> list[str]:
    return sorted({part for board in boards for part in (board, board.partition("-")[0])})


def _meant(word: str, known: Iterable[str]) -> str | None:
    """The name that one letter too many, too few, another one or two in the wrong order made this word of.

    Names are made of each other on purpose: ``dc-3`` and ``dc-2``, ``staging-a`` and ``staging``, ``zone1b`` and ``zone1``, ``team-a-prod``
    and ``team-b-prod``. Those are no slips.
    """
    return next((name for name in sorted(known) if _is_slip(word, name)), None)


def _is_slip(word: str, name: str) -> bool:
    short, long = sorted((word, name), key=len)
    if long.startswith(short) and short[-1:].isdigit():
        return False
    parts, others = word.split("-"), name.split("-")
    differ = [(one, other) for one, other in zip(parts, others, strict=False) if one != other]
    if len(parts) != len(others) or len(differ) != 1:
        return False
    one, other = differ[0]
    digits = [[each for each in part if each.isdigit()] for part in (one, other)]
    return digits[0] == digits[1] and min(len(one), len(other)) >= _LONG and _is_a_letter_off(one, other)


def _is_a_letter_off(one: str, other: str) -> bool:
    first = next((at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
    swapped = one[first : first + 2] == other[first : first + 2][::-1] and one[first + 2 :] == other[first + 2 :]
    return one[first:] == other[first + 1 :] or one[first + 1 :] == other[first:] or one[first + 1 :] == other[first + 1 :] or swapped


def _names_any(word: str, boards: Collection[str]) -> bool:
    return any(word.lower() in board for board in boards)
