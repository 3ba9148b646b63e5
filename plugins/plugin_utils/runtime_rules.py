# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a manifest must say, or must not, because of its runtime: one clear line each. Pure; a site's own runtimes have no rules."""

from __future__ import annotations

import typing as t

from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Wrong
from ansible_collections.gpuops.fleet.plugins.plugin_utils.runtimes import KV_TYPES

if t.TYPE_CHECKING:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import ManifestModel

# Runtimes that spread one model over several GPUs, so that each holds a part of it.
SPREADING = frozenset({"vllm", "sglang", "llama-cpp"})
# Runtimes of which two at once would not be two versions of one service: they work on the same files.
ALONE = frozenset({"batch", "notebook"})
# Runtimes whose templates are the collection's: a site's own may read whatever it likes.
_OURS = SPREADING | ALONE | {"http", "triton", "speech"}
_TENSOR_PARALLEL = ("vllm", "sglang")
# A token in the environment, or arguments that would take the place of the one in the secret's file.
_NOTEBOOK_ENV = ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE", "NOTEBOOK_ARGS")


def check_runtime(manifest: ManifestModel) -> None:
    """Raises Wrong for the first thing that the manifest's runtime cannot do, or misses."""
    _check_block(manifest)
    if manifest.rollout.keep_room and (manifest.rollout.way == "stop-first" or manifest.runtime in ALONE):
        why = (
            "its rollouts stop first"
            if manifest.rollout.way == "stop-first"
            else f"two of runtime '{manifest.runtime}' never run side by side"
        )
        raise Wrong(f"room would be kept that nobody uses: {why}", "leave it out", "rollout", "keep_room")
    if manifest.runtime in _TENSOR_PARALLEL:
        _check_heads(manifest)
    elif manifest.runtime == "llama-cpp":
        _check_llama(manifest)
    elif manifest.runtime == "speech" and manifest.gpu.count > 1:
        raise Wrong("the runtime 'speech' computes on one GPU", "write 'count: 1', and more replicas", "gpu", "count")
    elif manifest.runtime == "batch":
        _check_batch(manifest)
    elif manifest.runtime == "notebook":
        _check_notebook(manifest)


def _check_block(manifest: ManifestModel) -> None:
    block = "model" if manifest.runtime in SPREADING else manifest.runtime if manifest.runtime in ("triton", "speech") else None
    if block is not None and getattr(manifest, block) is None:
        raise Wrong(f"the runtime '{manifest.runtime}' serves a model, and none is given", f"add a '{block}' block", "runtime")
    for other in ("triton", "speech"):
        if manifest.runtime in _OURS and other != block and getattr(manifest, other) is not None:
            raise Wrong(f"the runtime '{manifest.runtime}' does not read it", f"leave it out, or write 'runtime: {other}'", other)


def share_heads(heads: int, gpus: int) -> bool:
    """Can so many GPUs share the KV heads of a model: each as many as any other, or copies of one?"""
    return not heads % gpus or not gpus % heads


def _check_heads(manifest: ManifestModel) -> None:
    """Tensor parallelism gives each GPU as many KV heads as any other, or copies of one (vllm/model_executor/layers/linear.py)."""
    model, count = manifest.model, manifest.gpu.count
    # A compressed cache has no heads: each GPU has all of it.
    heads = count if model is None or model.kv_heads is None else model.kv_heads
    if not share_heads(heads, count):
        hint = f"write one of: {', '.join(str(number) for number in range(1, 17) if share_heads(heads, number))}"
        raise Wrong(f"{count} GPUs cannot share {heads} KV heads evenly", hint, "gpu", "count")


def _check_llama(manifest: ManifestModel) -> None:
    model = manifest.model
    if model is None:
        return
    path = model.path or model.name or manifest.service
    if not path.endswith(".gguf"):
        raise Wrong(
            f"'{path}' is no GGUF file", "name the .gguf file below the host's model store, the first of its parts", "model", "path"
        )
    if model.kv_bytes not in KV_TYPES:
        known = ", ".join(f"{size:g} ({kind})" for size, kind in KV_TYPES.items())
        raise Wrong(f"llama.cpp holds no KV element in {model.kv_bytes:g} bytes", f"write one of: {known}", "model", "kv_bytes")


def _check_batch(manifest: ManifestModel) -> None:
    if manifest.replicas > 1:
        raise Wrong("a batch job runs once", "write 'replicas: 1', or one manifest for each part of the work", "replicas")
    for field in ("health", "route"):
        if getattr(manifest, field) is not None:
            raise Wrong(f"a batch job serves nobody, and '{field}' asks for an answer", "leave it out", field)


def _check_notebook(manifest: ManifestModel) -> None:
    if manifest.gpu.sharing == "mps":
        hint = "write 'sharing: time-slice', or 'isolation: slice'"
        raise Wrong("a notebook cannot share a GPU through MPS: it would run as the daemon's user", hint, "gpu", "sharing")
    if manifest.command:
        raise Wrong("the command of a notebook is the collection's: it sets the token", "leave it out", "command")
    for name in _NOTEBOOK_ENV:
        if name in manifest.env:
            raise Wrong(f"'{name}' would take the place of the token in the secret's file", "leave it out", "env", name)
    if not manifest.ports:
        raise Wrong("nobody could reach a notebook without a port", "add 'ports: [{name: http, container: 8888}]'", "runtime")
