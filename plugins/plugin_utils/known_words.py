# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words of manifests and quotas that must name something that there is: a slip of the pen takes a service's places away."""

from __future__ import annotations

import typing as t
from collections.abc import Collection, Iterator, Sequence

from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.placement_rules import near
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Host, Quota

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.catalogue import Catalogue
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest


def unknown_words(
    manifests: Sequence[Manifest], quotas: Sequence[Quota], hosts: Sequence[Host], catalogue: Catalogue
) -> Iterator[FleetError]:
    """A line for each word that no board of catalogue or hosts has in its name, and for each profile that none of them has.

    The names of environments and classes of data are the site's own, and may be for hosts that are still to come: one is only taken for
    a slip of the pen if no host has it, and a host has one that reads much like it.

    Only to be asked where all hosts of the site are here: one that is left out may have a board that nobody else knows.
    """
    gpus = [gpu for host in hosts for gpu in host.gpus]
    boards = sorted({*catalogue.boards, *(gpu.board for gpu in gpus)})
    seen = {profile.name for gpu in gpus if gpu.geometry is not None for profile in gpu.geometry.profiles}
    profiles = sorted(seen | catalogue.profiles)
    names = (
        ("environment", "fleet_environment", sorted({host.environment for host in hosts})),
        ("data_class", "fleet_data_classes", sorted({each for host in hosts for each in host.data_classes})),
    )
    for manifest in manifests:
        asked = manifest.model.gpu
        for field, setting, known in names:
            word = getattr(manifest.model, field)
            meant = near(word, known, "") if word is not None and word not in known else ""
            if meant:
                yield manifest.located.error((field,), f"no host has '{word}' ({setting})", meant)
        for field, words in (("models", asked.models), ("not_models", asked.not_models)):
            for index, word in enumerate(words):
                if not _names_any(word, boards):
                    yield manifest.located.error(("gpu", field, index), f"no board has '{word}' in its name", _board_hint(word, boards))
        if asked.profile is not None and asked.profile not in profiles:
            hint = near(asked.profile, profiles, "write the name of a MIG profile as NVML has it, such as 1g.10gb")
            yield manifest.located.error(("gpu", "profile"), f"no board has a MIG profile '{asked.profile}'", hint)
    for quota in quotas:
        for word in sorted({limit.board for limit in quota.limits if limit.board}):
            if not _names_any(word, boards):
                field = f"fleet_quotas.teams.{quota.team}.models.{word}"
                yield FleetError(f"no board has '{word}' in its name", field=field, hint=_board_hint(word, boards))


def _names_any(word: str, boards: Collection[str]) -> bool:
    return any(word.lower() in board for board in boards)


def _board_hint(word: str, boards: Sequence[str]) -> str:
    parts = sorted({part for board in boards for part in (board, board.partition("-")[0])})
    return near(word.lower(), parts, "write a catalogue id or a part of it, such as a100")
