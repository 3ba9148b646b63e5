# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much GPU memory a language model needs: the formula of docs/manifest.md."""

from __future__ import annotations

import math
import typing as t

# CUDA context, activations and the allocator's slack. A starting value of this project, not a measured one: serving engines
# differ by up to a GiB, and the owner's own `gpu.memory` wins when it is larger.
OVERHEAD_MIB = 1536
_MIB = 1024 * 1024

Data = t.Mapping[str, t.Any]


def kv_cache_bytes(model: Data, gpus: int = 1) -> int:
    """Bytes of the KV cache on each of ``gpus`` GPUs for all requests held at once, of a manifest's ``model`` block.

    2 x layers x kv_heads x head_dim x kv_bytes x context x concurrency. Each GPU has its part of the heads, and at least one.
    """
    per_token = 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * model["kv_bytes"]
    wanted: float = per_token * model["context"] * model["concurrency"] / min(gpus, model["kv_heads"])
    return math.ceil(wanted)


def static_mib(model: Data, gpus: int = 1) -> int:
    """Memory on each of ``gpus`` GPUs that stays taken, in whole MiB: weights and KV cache."""
    weights: float = model["parameters"] * model["bytes_per_parameter"] / gpus
    return math.ceil((weights + kv_cache_bytes(model, gpus)) / _MIB)


def model_mib(model: Data, gpus: int = 1) -> int:
    """Memory needed on each of ``gpus`` GPUs in whole MiB, rounded up: weights, KV cache (keys and values) and a fixed overhead."""
    return static_mib(model, gpus) + OVERHEAD_MIB
