# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services whose memory is that of their ``model`` block: what has to be written there for them to need less, and what fewer GPUs mean."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import model_mib, tokens_that_fit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit, Option, combined
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtime_rules import SPREADING, share_heads

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest


@dataclass(frozen=True)
class ModelSize:
    """``model``: the block's data; ``count``: of GPUs; ``said_mib``: by ``gpu.memory``."""

    model: Mapping[str, t.Any]
    runtime: str
    count: int = 1
    said_mib: int = 0

    def mib(self, count: int) -> int:
        """What it needs on each of so many GPUs."""
        return max(self.said_mib, model_mib(self.model, self._parts(count)))

    def words(self, most: int, count: int) -> str:
        """What has to be written for it to come to no more than ``most`` MiB on each of so many GPUs; '' where it comes to less."""
        if model_mib(self.model, self._parts(count)) <= most:
            return ""
        tokens = tokens_that_fit(self.model, most, self._parts(count))
        if tokens:
            return f"of its 'model', 'context' times 'concurrency' of at most {tokens} tokens"
        return "the weights of its 'model' alone have more: a smaller one, or fewer 'bytes_per_parameter'"

    def at_most(self, count: int) -> int:
        """The most GPUs, of so many, that a manifest may ask for: runtimes give each as many KV heads as any other, or copies of one."""
        heads = self.model.get("kv_heads") if self.spreads and self.runtime != "llama-cpp" else None
        return next(number for number in range(count, 0, -1) if not heads or share_heads(heads, number))

    @property
    def spreads(self) -> bool:
        """Is the model divided among the GPUs?"""
        return self.runtime in SPREADING

    def _parts(self, count: int) -> int:
        return count if self.spreads else 1


def as_models_need(manifests: Iterable[Manifest]) -> dict[str, Callable[[Option], Option]]:
    """Service -> what makes an option one for its owner, of those that serve a model: in the words of its ``model`` block, and with the
    memory that fewer GPUs need."""
    found: dict[str, Callable[[Option], Option]] = {}
    for each in manifests:
        if (model := each.model.model) is not None:
            size = ModelSize(model.model_dump(), each.model.runtime, each.model.gpu.count, each.model.gpu.memory or 0)
            found[each.service] = partial(_for_owner, service=each.service, size=size)
    return found


def _for_owner(option: Option, service: str, size: ModelSize) -> Option:
    values = {edit.field: edit.value for edit in option.edits if edit[:2] == ("service", service)}
    return _sized(option, service, size, size.at_most(values.get("count", size.count)), "memory_mib" in values)


def _sized(option: Option, service: str, size: ModelSize, count: int, said: bool) -> Option:
    """``count``: of GPUs that it has then; ``said``: does the option say how much memory on each?"""
    if option.parts:
        parts = tuple((cause, _sized(part, service, size, count, said)) for cause, part in option.parts)
        return combined(option.host, parts)._replace(lost=option.lost)
    for edit in option.edits:
        if edit[:3] == ("service", service, "memory_mib") and (words := size.words(edit.value, count)):
            return option._replace(text=f"{option.text} ({words})")
        if edit[:3] == ("service", service, "count"):
            edits = [each._replace(value=count) if each == edit else each for each in option.edits]
            edits += [] if said else [Edit("service", service, "memory_mib", size.mib(count))]
            text = option.text
            if count < edit.value:
                text = text.replace(f"ask for {edit.value} GPUs", f"ask for {count} GPU{'s' if count > 1 else ''}")
                text += f", and {size.model['kv_heads']} KV heads have to share them evenly"
            return option._replace(text=text, edits=tuple(edits))
    return option
