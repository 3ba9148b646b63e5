# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an owner is told whose service needs what its model comes to: followed word for word in the manifest, it has its place."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils import door
from ansible_collections.gpuops.fleet.plugins.plugin_utils.fleet import plan_fleet
from ansible_collections.gpuops.fleet.plugins.plugin_utils.proposals import Proposal
from ansible_collections.gpuops.fleet.tests.unit.decide_world import facts, gpu_facts, manifest_text

HEADS = 8


def explained(gpus: int, gpu: str, parameters: str, context: int = 8192) -> list[Proposal]:
    model = f"{{parameters: {parameters}, bytes_per_parameter: 2, layers: 32, kv_heads: {HEADS}, head_dim: 128, context: {context}}}"
    texts = [("chat.yml", manifest_text("chat", runtime="vllm", gpu=gpu, model=model))]
    site = {"h1": {"facts": facts([gpu_facts(number) for number in range(gpus)]), "policy": {"fleet_environment": "production"}}}
    return plan_fleet(texts, {}, site, door.catalogue()).explained


def test_a_context_that_is_too_long_is_told_how_long_it_may_be() -> None:
    (found,) = explained(1, "{isolation: slice}", "30e9", context=300_000)
    told = re.fullmatch(
        r"the largest slice of a100-sxm4-80gb has 80384 MiB: ask for no more "
        r"\(of its 'model', 'context' times 'concurrency' of at most (\d+) tokens\)",
        found.changes[0].sentence,
    )
    assert told is not None
    tokens = int(told[1])
    assert not explained(1, "{isolation: slice}", "30e9", context=tokens)
    assert explained(1, "{isolation: slice}", "30e9", context=tokens + 1)


def test_weights_that_are_too_large_are_told_of() -> None:
    (found,) = explained(1, "{isolation: slice}", "45e9")
    assert found.changes[0].sentence == (
        "the largest slice of a100-sxm4-80gb has 80384 MiB: ask for no more "
        "(the weights of its 'model' alone have more: a smaller one, or fewer 'bytes_per_parameter')"
    )


def test_who_says_itself_how_much_it_needs_is_told_nothing_of_its_model() -> None:
    (found,) = explained(1, "{memory: 85000 MiB}", "8e9")
    assert found.changes[0].sentence == "the largest slice of a100-sxm4-80gb has 80384 MiB: ask for no more"


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        pytest.param("40e9", "ask for 2 GPUs in place of 4 ('count'): h1 has no more of one board", id="enough for the model"),
        pytest.param("90e9", "add a host of environment 'production' with 4 free GPUs (a100-sxm4-80gb)", id="too few for the model"),
    ],
)
def test_fewer_gpus_are_told_only_where_the_model_has_room_on_each(parameters: str, told: str) -> None:
    (found,) = explained(2, "{isolation: exclusive, count: 4}", parameters)
    assert found.changes[0].sentence == told
    assert bool(explained(2, "{isolation: exclusive, count: 2}", parameters)) == (parameters == "90e9")


def test_no_number_of_gpus_is_told_that_cannot_share_the_models_heads() -> None:
    (found,) = explained(3, "{isolation: exclusive, count: 4}", "40e9")
    assert found.changes[0].sentence == (
        f"ask for 2 GPUs in place of 4 ('count'): h1 has no more of one board, and {HEADS} KV heads have to share them evenly"
    )
    assert not explained(3, "{isolation: exclusive, count: 2}", "40e9")


def test_a_model_that_is_too_large_for_one_gpu_is_told_of_several() -> None:
    """70 billion parameters of two bytes are on no board alone; three GPUs could not share eight heads evenly."""
    (found,) = explained(4, "{isolation: exclusive}", "70e9")
    told = re.fullmatch(
        r"ask for 2 GPUs in place of 1 \('count'\), which its 'model' is divided among: (\d+) MiB on each", found.changes[0].sentence
    )
    assert told is not None
    assert not explained(4, "{isolation: exclusive, count: 2}", "70e9")
    (wider,) = explained(4, "{isolation: exclusive}", "90e9")
    assert wider.changes[0].sentence.startswith("ask for 4 GPUs in place of 1 ('count')")
    assert not explained(4, "{isolation: exclusive, count: 4}", "90e9")


def test_slices_are_told_of_no_number_of_gpus() -> None:
    (found,) = explained(4, "{isolation: slice}", "70e9")
    assert "'count'" not in found.sentence
