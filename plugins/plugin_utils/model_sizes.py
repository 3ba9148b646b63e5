# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services whose memory is that of their ``model`` block: what has to be written there for them to need less, what fewer GPUs mean, and how
many share a model that is too large for one."""

from __future__ import annotations

import typing as t
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size, model_mib, tokens_that_fit
from ansible_collections.gpuops.fleet.plugins.plugin_utils.repair_kinds import Edit, Option, combined, option_of
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtime_rules import SPREADING, share_heads

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import Manifest


# GPUs of a replica, at most.
MOST = 16


@dataclass(frozen=True)
class ModelSize:
    """``model``: the block's data; ``count``: of GPUs; ``said_mib``: by ``gpu.memory``; ``whole``: has it GPUs of its own?"""

    model: Mapping[str, t.Any]
    runtime: str
    count: int = 1
    said_mib: int = 0
    whole: bool = False

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

    def enough(self, most: int) -> int | None:
        """The fewest GPUs, more than it asks for, on each of which it needs no more than ``most`` MiB; None where there are none."""
        if not (self.whole and self.spreads):
            return None
        able = (count for count in range(self.count + 1, MOST + 1) if self.at_most(count) == count)
        return next((count for count in able if self.mib(count) <= most), None)

    @property
    def spreads(self) -> bool:
        """Is the model divided among the GPUs?"""
        return self.runtime in SPREADING

    def _parts(self, count: int) -> int:
        return count if self.spreads else 1


def as_models_need(manifests: Iterable[Manifest]) -> dict[str, Callable[[Option], Iterator[Option]]]:
    """Service -> what makes an option one for its owner, of those that serve a model: in the words of its ``model`` block, with the memory
    that fewer GPUs need, and beside less memory more GPUs."""
    found: dict[str, Callable[[Option], Iterator[Option]]] = {}
    for each in manifests:
        if (model := each.model.model) is not None:
            gpu = each.model.gpu
            size = ModelSize(model.model_dump(), each.model.runtime, gpu.count, gpu.memory or 0, gpu.isolation == "exclusive")
            found[each.service] = partial(_for_owner, service=each.service, size=size)
    return found


def _for_owner(option: Option, service: str, size: ModelSize) -> Iterator[Option]:
    values = {edit.field: edit.value for edit in option.edits if edit[:2] == ("service", service)}
    count = size.enough(values["memory_mib"]) if values.keys() == {"memory_mib"} and len(option.edits) == 1 else None
    if count is not None:
        each = format_size(size.mib(count))
        text = f"ask for {count} GPUs in place of {size.count} ('count'), which its 'model' is divided among: {each} on each"
        edits = (Edit("service", service, "count", count), Edit("service", service, "memory_mib", size.mib(count)))
        # Before another model, or fewer tokens.
        yield option_of("count", text, *edits)._replace(cost=option.cost - 1)
    yield _sized(option, service, size, size.at_most(values.get("count", size.count)), "memory_mib" in values)


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
