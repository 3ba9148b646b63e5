# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan says of the tokens and requests that fit where a language model was placed."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.plugins.plugin_utils.problem import Placement
from ansible_collections.gpuops.fleet.plugins.plugin_utils.token_room import token_lines

CHAT = """\
schema: 1
service: chat
team: claims
environment: production
image: registry.example.com/chat@sha256:{digest}
runtime: vllm
gpu: {{isolation: exclusive, count: {count}}}
ports: [{{name: http, container: 8000}}]
model: {{parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, {cache}, context: 8192, concurrency: 4, name: chat}}
"""


def chat(count: int = 1, cache: str = "kv_heads: 8, head_dim: 128") -> str:
    return CHAT.format(digest="a" * 64, count=count, cache=cache)


def test_each_size_of_place_is_told_once() -> None:
    manifest = read_manifest("chat.yml", chat())
    places = [Placement("chat", number, "h1", "whole", (f"GPU-{number}",)) for number in (1, 2, 3)]
    sizes = {1: 40960, 2: 40960, 3: None}
    assert list(token_lines(places, [manifest], lambda place: sizes[place.replica])) == [
        "chat: 40 GiB hold 192863 tokens of its cache, 23 requests of 8192 at once; 4 asked for"
    ]


def test_a_model_on_several_gpus_has_a_part_of_its_weights_and_cache_on_each() -> None:
    place = Placement("chat", 1, "h1", "whole", ("GPU-1", "GPU-2"))
    (line,) = token_lines([place], [read_manifest("chat.yml", chat(2))], lambda _place: 16384)
    assert line == "chat: 16 GiB on each of 2 GPUs hold 115039 tokens of its cache, 14 requests of 8192 at once; 4 asked for"


@pytest.mark.parametrize("cache", ["kv_heads: 8", "layers: 32", "kv_heads: 8, head_dim: 128, kv_rank: 512", "kv_rank: 512"])
def test_a_cache_that_is_half_told_is_refused_with_its_line(cache: str) -> None:
    text = chat(cache=cache).replace("layers: 32, layers", "layers")
    with pytest.raises(FleetError) as caught:
        read_manifest("chat.yml", text)
    hint = "write kv_heads and head_dim, or kv_rank and rope_dim where it is compressed"
    assert str(caught.value) == f"chat.yml:9: model: it does not say what its KV cache holds; {hint}"
