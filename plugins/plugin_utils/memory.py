# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much GPU memory a language model needs: the formula of docs/manifest.md."""

from __future__ import annotations

import math

# CUDA context, activations and the allocator's slack. A starting value of this project, not a measured one: serving engines
# differ by up to a GiB, and the owner's own `gpu.memory` wins when it is larger.
OVERHEAD_MIB = 1536
_MIB = 1024 * 1024


def model_mib(
    *,
    parameters: float,
    bytes_per_parameter: float,
    layers: int,
    kv_heads: int,
    head_dim: int,
    kv_bytes: float,
    context: int,
    concurrency: int,
) -> int:
    """Memory in whole MiB, rounded up: weights, KV cache (keys and values, hence 2) and a fixed overhead."""
    weights = parameters * bytes_per_parameter
    cache = 2 * layers * kv_heads * head_dim * kv_bytes * context * concurrency
    return math.ceil((weights + cache) / _MIB) + OVERHEAD_MIB
