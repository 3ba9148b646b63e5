# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a language model can hold where it was placed: tokens of its cache, and how many requests of its context that is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size, tokens_that_fit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtime_rules import SPREADING


def token_lines(
    placements: Iterable[Placement], manifests: Iterable[Manifest], memory_mib: Callable[[Placement], int | None]
) -> Iterator[str]:
    """A line for each service with a ``model`` block and each size of place that its replicas have.

    ``memory_mib``: of each GPU or slice of a place, of a shared GPU what was reserved; None where nobody knows.
    """
    models = {manifest.service: manifest for manifest in manifests if manifest.model.model is not None}
    seen: set[tuple[str, int, int]] = set()
    for place in placements:
        manifest, memory = models.get(place.service), memory_mib(place)
        gpus = len(place.gpus) if manifest is not None and manifest.model.runtime in SPREADING else 1
        if manifest is None or memory is None or (place.service, memory, gpus) in seen:
            continue
        seen.add((place.service, memory, gpus))
        model = manifest.data()["model"]
        tokens = tokens_that_fit(model, memory, gpus)
        where = f"{format_size(memory)} on each of {gpus} GPUs" if gpus > 1 else format_size(memory)
        fits, asked = tokens // model["context"], model["concurrency"]
        requests = f"{fits} requests of {model['context']} at once; {asked} asked for"
        yield f"{place.service}: {where} hold {tokens} tokens of its cache, {requests}"
