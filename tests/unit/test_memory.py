# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory estimate of language models."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import kv_cache_bytes, model_mib, static_mib, token_bytes, tokens_that_fit

LLAMA: dict[str, t.Any] = {
    "parameters": 8.03e9,
    "bytes_per_parameter": 2,
    "layers": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "kv_bytes": 2,
    "context": 8192,
    "concurrency": 4,
}


def test_weights_cache_and_overhead_add_up() -> None:
    # 8.03e9 x 2 bytes = 15,316.0 MiB; 2 x 32 x 8 x 128 x 2 bytes x 8192 tokens = 1 GiB a request; 1.5 GiB of overhead
    assert model_mib(LLAMA) == 15317 + 4 * 1024 + 1536


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "kv_bytes", "context", "concurrency"])
def test_the_cache_grows_with_each_of_its_factors(field: str) -> None:
    assert model_mib({**LLAMA, field: 2 * LLAMA[field]}) == 15317 + 8 * 1024 + 1536


@pytest.mark.parametrize("field", ["parameters", "bytes_per_parameter"])
def test_the_weights_grow_with_parameters_and_their_bytes(field: str) -> None:
    assert model_mib({**LLAMA, field: LLAMA[field] / 2}) == 7659 + 4 * 1024 + 1536


def test_a_part_of_a_mib_counts_as_a_whole() -> None:
    tiny = {**LLAMA, "parameters": 1, "bytes_per_parameter": 1, "context": 1, "layers": 1, "kv_heads": 1, "head_dim": 1}
    assert model_mib(tiny) == 1537


def test_several_gpus_share_weights_and_cache_and_each_has_its_own_overhead() -> None:
    # 15,316.0 / 2 MiB of weights and 2 GiB of cache on each of two
    assert model_mib(LLAMA, 2) == 7659 + 2048 + 1536
    assert static_mib(LLAMA, 2) == model_mib(LLAMA, 2) - 1536


def test_a_gpu_beyond_the_last_head_holds_a_copy_of_one() -> None:
    one_head = {**LLAMA, "kv_heads": 1}
    assert kv_cache_bytes(one_head, 4) == kv_cache_bytes(one_head)
    assert kv_cache_bytes(LLAMA, 16) == kv_cache_bytes(LLAMA, 8) == kv_cache_bytes(LLAMA) / 8


def test_the_kv_cache_is_that_of_the_published_table() -> None:
    # Llama-3.1-8B: 128 KiB a token, 4 GiB for 32k tokens.
    assert kv_cache_bytes(LLAMA) == 8192 * 4 * 128 * 1024
    tiny = {"layers": 1, "kv_heads": 1, "head_dim": 1, "context": 3, "concurrency": 1}
    assert [kv_cache_bytes({**tiny, "kv_bytes": size}) for size in (0.5, 0.25)] == [3, 2]


def test_a_compressed_cache_counts_its_rank_and_is_on_every_gpu_whole() -> None:
    # DeepSeek-V3: 61 layers, kv_lora_rank 512, qk_rope_head_dim 64, so 61 x 576 x 2 bytes = 68.6 KiB a token, 0.54 GiB at 8k
    deepseek = {**LLAMA, "kv_heads": None, "head_dim": None, "layers": 61, "kv_rank": 512, "rope_dim": 64, "concurrency": 1}
    assert token_bytes(deepseek) == token_bytes(deepseek, 8) == 61 * 576 * 2
    assert kv_cache_bytes(deepseek) / 2**30 == pytest.approx(0.54, abs=0.01)


def test_what_fits_is_the_inverse_of_what_is_needed() -> None:
    # 2g.20gb of an A100 (19,968 MiB) without weights and 1.5 GiB: 3,115.9 MiB at 128 KiB a token
    assert tokens_that_fit(LLAMA, 19968) == 24927
    assert tokens_that_fit(LLAMA, model_mib(LLAMA)) == pytest.approx(4 * 8192, abs=8)
    assert tokens_that_fit(LLAMA, 9856) == 0
