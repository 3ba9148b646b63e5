# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words of manifests and quotas that must name something that there is: a slip of the pen takes a service's places away."""

from __future__ import annotations

import difflib
import typing as t
from collections.abc import Collection, Iterator, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Quota

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest


def unknown_words(
    manifests: Sequence[Manifest], quotas: Sequence[Quota], hosts: Sequence[Host], catalogue: Catalogue, serving: Collection[str]
) -> Iterator[FleetError]:
    """A line for each word that is a slip of the pen, or, of boards and profiles, that would take the places of a service that has some.

    All of them may be of hosts that are still to come, so what nothing has is refused only if something has one that reads much like it, or
    its service is in ``serving``. An environment or a class of data may have been taken from the last host that had it, and that is meant.
    To be asked only where all hosts of the site are here.
    """
    gpus = [gpu for host in hosts for gpu in host.gpus]
    boards = sorted({*catalogue.boards, *(gpu.board for gpu in gpus)})
    profiles = sorted({profile.name for gpu in gpus if gpu.geometry is not None for profile in gpu.geometry.profiles} | catalogue.profiles)
    names = (
        ("environment", "fleet_environment", sorted({host.environment for host in hosts})),
        ("data_class", "fleet_data_classes", sorted({each for host in hosts for each in host.data_classes})),
    )
    for manifest in manifests:
        asked, serves = manifest.model.gpu, manifest.service in serving
        for field, setting, known in names:
            word = getattr(manifest.model, field)
            if word is not None and word not in known and (meant := _name_like(word, known)):
                yield manifest.located.error((field,), f"no host has '{word}' ({setting})", _hint(meant, ""))
        lost = serves and asked.models and not any(_names_any(word, boards) for word in asked.models)
        for field, words, gone in (("models", asked.models, lost), ("not_models", asked.not_models, False)):
            for index, word in enumerate(words):
                if not _names_any(word, boards) and ((meant := _board_like(word, boards)) or gone):
                    hint = _hint(meant, "write a catalogue id or a part of it, such as a100")
                    yield manifest.located.error(("gpu", field, index), f"no board has '{word}' in its name", hint)
        word = asked.profile
        if word is not None and word not in profiles and ((meant := _like(word, profiles)) or serves):
            hint = _hint(meant, "write the name of a MIG profile as NVML has it, such as 1g.10gb")
            yield manifest.located.error(("gpu", "profile"), f"no board has a MIG profile '{word}'", hint)
    for quota in quotas:
        for word in sorted({limit.board for limit in quota.limits if limit.board}):
            if not _names_any(word, boards) and (meant := _board_like(word, boards)):
                field = f"fleet_quotas.teams.{quota.team}.models.{word}"
                yield FleetError(f"no board has '{word}' in its name", field=field, hint=_hint(meant, ""))


def _like(word: str, known: Collection[str]) -> str | None:
    """One that was meant: a letter or two are other ones."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.85)), None)


def _name_like(word: str, known: Collection[str]) -> str | None:
    """Among names that people count on with, ``dc-3`` was not meant to be ``dc-2``."""
    return _like(word, [name for name in known if _digits(name) == _digits(word)])


def _digits(name: str) -> list[str]:
    return [each for each in name if each.isdigit()]


def _board_like(word: str, boards: Collection[str]) -> str | None:
    return _like(word.lower(), {part for board in boards for part in (board, board.partition("-")[0])})


def _names_any(word: str, boards: Collection[str]) -> bool:
    return any(word.lower() in board for board in boards)


def _hint(meant: str | None, otherwise: str) -> str:
    return f"did you mean '{meant}'?" if meant else otherwise
