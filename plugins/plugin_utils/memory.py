# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much GPU memory a language model needs: the formula of docs/manifest.md; and sizes as manifests write them."""

from __future__ import annotations

import math
import typing as t

# CUDA context, activations and the allocator's slack. A starting value of this project, not a measured one: serving engines
# differ by up to a GiB, and the owner's own `gpu.memory` wins when it is larger.
OVERHEAD_MIB = 1536
_MIB = 1024 * 1024

Data = t.Mapping[str, t.Any]


def token_bytes(model: Data, gpus: int = 1) -> float:
    """Bytes of the KV cache that one token takes on each of ``gpus`` GPUs, of a manifest's ``model`` block.

    Heads of their own or shared by groups of queries: 2 x layers x kv_heads x head_dim x kv_bytes; each GPU has its part of the heads, and
    at least one. A compressed cache (MLA): layers x (kv_rank + rope_dim) x kv_bytes, and every GPU has all of it.
    """
    if model.get("kv_rank"):
        return float(model["layers"] * (model["kv_rank"] + model["rope_dim"]) * model["kv_bytes"])
    whole = 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * model["kv_bytes"]
    return float(whole / min(gpus, model["kv_heads"]))


def kv_cache_bytes(model: Data, gpus: int = 1) -> int:
    """Bytes of the KV cache on each of ``gpus`` GPUs for all requests held at once, each of the whole context."""
    wanted: float = token_bytes(model, gpus) * model["context"] * model["concurrency"]
    return math.ceil(wanted)


def tokens_that_fit(model: Data, memory_mib: int, gpus: int = 1) -> int:
    """How many tokens the cache could hold on a device with so much memory, weights and overhead taken off; 0 where these do not fit."""
    weights: float = model["parameters"] * model["bytes_per_parameter"] / gpus
    room = (memory_mib - OVERHEAD_MIB) * _MIB - weights
    return max(0, math.floor(room / token_bytes(model, gpus)))


def static_mib(model: Data, gpus: int = 1) -> int:
    """Memory on each of ``gpus`` GPUs that stays taken, in whole MiB: weights and KV cache."""
    weights: float = model["parameters"] * model["bytes_per_parameter"] / gpus
    return math.ceil((weights + kv_cache_bytes(model, gpus)) / _MIB)


def model_mib(model: Data, gpus: int = 1) -> int:
    """Memory needed on each of ``gpus`` GPUs in whole MiB, rounded up: weights, KV cache (keys and values) and a fixed overhead."""
    return static_mib(model, gpus) + OVERHEAD_MIB


def format_size(mib: int) -> str:
    """The inverse of :func:`checked.parse_size`, in the larger unit where that is exact."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 and mib else f"{mib} MiB"


def amount(kind: str, value: float) -> str:
    """``3 cpus``, ``20 GiB memory``."""
    return f"{value:.10g} cpu{'' if value == 1 else 's'}" if kind == "cpus" else f"{format_size(int(value))} {kind}"
