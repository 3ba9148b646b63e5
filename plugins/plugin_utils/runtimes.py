# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container of each serving runtime is made of: arguments for the slice that it gets, mounts, and what it needs to be safe.

Pure: plain data in, plain data out. Facts come from ``data/runtimes.yml``, which the caller brings as ``data``; manifests are as
``Manifest.data()`` has them, placements are lines of a plan.
"""

from __future__ import annotations

import json
import math
import shlex
import typing as t
from collections.abc import Collection, Sequence

from ansible_collections.gpuops.fleet.plugins.plugin_utils import speech, triton
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import kv_cache_bytes, static_mib

# What of the overhead is there before SGLang first looks how much memory is free: the CUDA context. A choice of this project.
CONTEXT_MIB = 512
# llama.cpp's types of KV elements by their size: blocks of 32 elements with a scale of 2 bytes (ggml/src/ggml-common.h).
KV_TYPES = {4.0: "f32", 2.0: "f16", 1.0625: "q8_0", 0.5625: "q4_0"}
# Where a container writes what is made as it starts; in its memory.
SCRATCH = "/run/gpuops"
# A token that can be guessed is none.
TOKEN_LENGTH = 16

Data = t.Mapping[str, t.Any]


def entry(data: Data, name: str) -> dict[str, t.Any]:
    """What is known of a runtime. A site's own template stands for an image of which nothing is known, as ``http`` does."""
    known = data["runtimes"]
    found: dict[str, t.Any] = known.get(name) or known["http"]
    return found


def gpu_count(placement: Data) -> int:
    """Over how many GPUs a replica may be spread: whole ones only, since one process sees one MIG device."""
    return len(placement.get("gpus") or [0]) if placement.get("mode") == "whole" else 1


def device_memory_mib(facts: Data, device: Data) -> int:
    """Memory in MiB of what a replica gets (one of its devices): of its slice, else of the GPU; 0 when facts do not tell."""
    gpu = next((gpu for gpu in facts["gpus"] if device["gpu"] in (gpu["uuid"], gpu["pci"])), None)
    if gpu is None:
        return 0
    if not device.get("profile"):
        return int(gpu["memory_mib"] or 0)
    geometry = (facts.get("geometries") or {}).get((gpu.get("mig") or {}).get("geometry")) or {}
    sizes = [profile["memory_mib"] for profile in geometry.get("profiles") or [] if profile["name"] == device["profile"]]
    return int(sizes[0]) if sizes else 0


def port_of(manifest: Data, default: int) -> int:
    """The port in the container that the server listens on: that of the health check, else the first; ``default`` where none is named."""
    ports = {port["name"]: port["container"] for port in manifest["ports"]}
    wanted = (manifest["health"] or {}).get("port")
    return int(ports.get(wanted) or next(iter(ports.values()), default))


# ---- arguments


def vllm_arguments(manifest: Data, placement: Data, device_memory_mib: int = 0) -> list[str]:
    """The arguments of ``vllm serve`` for one replica. ``device_memory_mib``: of the device that it gets; 0 when it is not known.

    ``--kv-cache-memory-bytes`` states the cache of each GPU instead of a fraction of whatever the process sees. On a shared GPU vLLM's
    start-up check still wants total x fraction to be free, so there the fraction is the share that was planned.
    Tensor parallelism goes over whole GPUs only. Sources: vllm/config/cache.py, vllm issues 41848, 6551, 17047.
    """
    model, gpus = manifest["model"], gpu_count(placement)
    arguments = ["--model", f"/models/{model['path']}", "--served-model-name", str(model["name"])]
    arguments += ["--max-model-len", str(model["context"]), "--max-num-seqs", str(model["concurrency"])]
    arguments += ["--kv-cache-memory-bytes", str(kv_cache_bytes(model, gpus))]
    if placement.get("mode") == "shared" and device_memory_mib:
        share = min(0.95, math.ceil(manifest["need_mib"] * 100 / device_memory_mib) / 100)
        arguments += ["--gpu-memory-utilization", f"{share:.2f}"]
    if gpus > 1:
        arguments += ["--tensor-parallel-size", str(gpus)]
    port = port_of(manifest, 8000) if "ports" in manifest else 8000
    return [*arguments, "--port", str(port)] if port != 8000 else arguments


def sglang_arguments(manifest: Data, placement: Data, memory_mib: int = 0) -> list[str]:
    """The command of SGLang for one replica.

    ``--mem-fraction-static`` is the share of what is free as the server starts that weights and KV cache may take together. On a device
    of its own that is the device without the CUDA context; on a shared GPU at least what the plan reserved is free. ``--max-total-tokens``
    keeps the cache from taking more where more is free. Sources: model_executor/pool_configurator.py (profile_available_bytes).
    """
    model, gpus = manifest["model"], gpu_count(placement)
    command = ["python3", "-m", "sglang.launch_server", "--model-path", f"/models/{model['path']}"]
    command += ["--served-model-name", str(model["name"]), "--host", "0.0.0.0", "--port", str(port_of(manifest, 30000))]
    command += ["--context-length", str(model["context"]), "--max-running-requests", str(model["concurrency"])]
    command += ["--max-total-tokens", str(model["context"] * model["concurrency"])]
    room = manifest["need_mib"] if placement.get("mode") == "shared" else memory_mib
    if room > CONTEXT_MIB:
        share = min(0.95, math.ceil(static_mib(model, gpus) * 1000 / (room - CONTEXT_MIB)) / 1000)
        command += ["--mem-fraction-static", f"{share:.3f}"]
    if gpus > 1:
        command += ["--tp-size", str(gpus)]
    return [*command, "--enable-metrics"]


def llama_arguments(manifest: Data, _placement: Data, _memory_mib: int = 0) -> list[str]:
    """The arguments of llama.cpp's server: every layer on the GPU, and a context for each request that is held at once.

    ``-c`` is the context of all slots together. Nothing is a fraction, so neither placement nor memory matters: the planner has made room.
    Source: tools/server/README.md.
    """
    model = manifest["model"]
    arguments = ["--model", f"/models/{model['path']}", "--alias", str(model["name"]), "--offline"]
    arguments += ["--host", "0.0.0.0", "--port", str(port_of(manifest, 8080)), "-ngl", "999"]
    arguments += ["-c", str(model["context"] * model["concurrency"]), "--parallel", str(model["concurrency"]), "--metrics"]
    kind = KV_TYPES.get(float(model["kv_bytes"]), "f16")
    return arguments if kind == "f16" else [*arguments, "--cache-type-k", kind, "--cache-type-v", kind, "--flash-attn", "on"]


def notebook_settings(port: int, home: str, secret: str) -> list[str]:
    """The lines of Jupyter's configuration. The token is read from its file, so that it is in no argument and no environment."""
    return [
        "import pathlib",
        f"file = pathlib.Path({json.dumps('/run/secrets/' + secret)})",
        "token = file.read_text().strip() if file.is_file() else ''",
        # Jupyter passes over other exceptions here, and would make up a token and print it.
        f"if len(token) < {TOKEN_LENGTH}:",
        f"    raise SystemExit('the secret {secret} has less than {TOKEN_LENGTH} characters: nobody is let in')",
        "c = get_config()",
        "c.IdentityProvider.token = token",
        f"c.ServerApp.root_dir = {json.dumps(home)}",
        'c.ServerApp.ip = "0.0.0.0"',
        f"c.ServerApp.port = {port}",
        "c.ServerApp.port_retries = 0",
        "c.ServerApp.open_browser = False",
    ]


def _notebook(data: Data, manifest: Data) -> list[str]:
    known = entry(data, "notebook")
    path = f"{SCRATCH}/jupyter_server_config.py"
    script = f"printf '%s\\n' \"$@\" > {path} && exec start-notebook.py --config={path}"
    return ["/bin/sh", "-c", script, "notebook", *notebook_settings(port_of(manifest, known["port"]), known["home"], known["secret"])]


def _triton(data: Data, manifest: Data) -> list[str]:
    model = triton.name_of(manifest)
    folder, given = f"{SCRATCH}/models/{model}", f"/models/{model}"
    port = port_of(manifest, entry(data, "triton")["port"])
    # The model store is read-only and the configuration is the manifest's, so the repository is put together in memory.
    steps = [
        f"mkdir -p {shlex.quote(folder)}",
        f"ln -s {shlex.quote(given)}/* {shlex.quote(folder)}/",
        f"rm -f {shlex.quote(folder)}/config.pbtxt",
        f"printf '%s\\n' \"$@\" > {shlex.quote(folder)}/config.pbtxt",
        f"exec tritonserver --model-repository={SCRATCH}/models --http-port={port} --disable-auto-complete-config --exit-on-error=true",
    ]
    return ["/bin/sh", "-c", " && ".join(steps), "triton", *triton.config_lines(manifest)]


_ARGUMENTS: dict[str, t.Callable[[Data, Data, int], list[str]]] = {
    "vllm": vllm_arguments,
    "sglang": sglang_arguments,
    "llama-cpp": llama_arguments,
}
_OWN: dict[str, t.Callable[[Data, Data], list[str]]] = {"triton": _triton, "notebook": _notebook}


def command(data: Data, manifest: Data, placement: Data, memory_mib: int = 0) -> list[str]:
    """The command of one replica; [] where the image's own does. A ``command`` of the manifest rules over it."""
    name = manifest["runtime"]
    if name in _ARGUMENTS:
        return _ARGUMENTS[name](manifest, placement, memory_mib)
    return _OWN[name](data, manifest) if name in _OWN else []


# ---- mounts and variables


def model_volumes(model: Data | None) -> list[dict[str, t.Any]]:
    """The mount that a language model needs: its files from the model store, where the arguments name them.

    A GGUF file may be one of several parts, so its directory is mounted where it has one.
    """
    if not model:
        return []
    folder, _slash, file = str(model["path"]).rpartition("/")
    path = folder if folder and file.endswith(".gguf") else model["path"]
    return [_read_only(path, f"/models/{path}")]


def _read_only(source: str, target: str) -> dict[str, t.Any]:
    return {"source": source, "target": target, "read_only": True}


def volumes(manifest: Data) -> list[dict[str, t.Any]]:
    """The mounts that a runtime needs beside those of the manifest."""
    if manifest["runtime"] in _ARGUMENTS:
        return model_volumes(manifest["model"])
    if manifest["runtime"] == "triton":
        return [_read_only(manifest["triton"]["path"], f"/models/{triton.name_of(manifest)}")]
    if manifest["runtime"] == "speech":
        return [_read_only(manifest["speech"]["model"], speech.target_of(manifest["speech"]))]
    return []


def store_paths(manifest: Data) -> list[str]:
    """What a service reads of the host's model store, by path: it has to be there before anything stops for it."""
    mounts = [*manifest["volumes"], *volumes(manifest)]
    return sorted({mount["source"] for mount in mounts if mount["read_only"] and not mount["source"].startswith("/")})


def environment(data: Data, manifest: Data) -> dict[str, str]:
    """The variables of a runtime, over which ``env`` of the manifest rules: it stays off the network, and loads what is mounted."""
    known = entry(data, manifest["runtime"])
    values = dict(known["environment"])
    if manifest["runtime"] == "speech":
        values["WHISPER__COMPUTE_TYPE"] = manifest["speech"]["compute_type"]
        port = port_of(manifest, known["port"])
        if port != known["port"]:
            values["UVICORN_PORT"] = str(port)
    return values


# ---- the whole


def container(
    data: Data, manifest: Data, placement: Data, memory_mib: int = 0, secrets: Collection[str] = (), name: str = ""
) -> dict[str, t.Any]:
    """What a compose template writes of one replica, beside what the manifest itself says.

    ``memory_mib``: of the device that it gets (0: not known); ``secrets``: names of those that it is given; ``name``: of the replica.
    ``command``, ``environment``, ``volumes`` as above; ``read_only``, ``tmpfs`` (``PATH:OPTIONS``), ``pids``, ``init``, ``memlock``,
    ``shm_mib``, ``user`` ('': the image's), ``job`` ('': none, else what tells this version of it from another), ``home`` (None, or
    ``{volume, target}``), and ``refused``: why it cannot be, one line each.
    """
    known = entry(data, manifest["runtime"])
    taken = {volume["target"].rstrip("/") for volume in manifest["volumes"]}
    home = known.get("home")
    return {
        "command": command(data, manifest, placement, memory_mib),
        "environment": environment(data, manifest),
        "volumes": volumes(manifest),
        "read_only": bool(known["read_only"]),
        # Programs are compiled there and loaded from there; Docker's own default is noexec.
        "tmpfs": [f"{path}:exec,mode=1777" for path in known["tmpfs"] if path not in taken],
        "pids": int(known["pids"]),
        "init": bool(known["init"]),
        "memlock": bool(known["memlock"]),
        "shm_mib": min(manifest["host"]["memory"], max(manifest["host"]["shm"], known["shm_mib"])),
        "user": str(known["user"]) if str(known["user"])[:1].isdigit() else "",
        "job": str(placement.get("manifest") or "job") if known["job"] else "",
        "home": {"volume": f"gpuops-home-{name}", "target": home} if home else None,
        "refused": _refused(known, manifest, placement, secrets, taken),
    }


def _refused(known: Data, manifest: Data, placement: Data, secrets: Collection[str], taken: Collection[str]) -> list[str]:
    """What no manifest can be blamed for alone, or what a plan from before today may still ask for."""
    name, lines = manifest["runtime"], []
    if known["gpus"] == "one" and gpu_count(placement) > 1:
        lines.append(f"the runtime '{name}' computes on one GPU, and the plan gives it {gpu_count(placement)}")
    if not known["mps"] and placement.get("sharing") == "mps":
        lines.append(f"the runtime '{name}' cannot share a GPU through MPS: its clients run as the daemon's user")
    secret = known.get("secret")
    if secret and secret not in secrets:
        lines.append(f"the runtime '{name}' lets nobody in without the secret '{secret}'; add it to fleet_secrets of this service")
    missing = [wanted for wanted in manifest.get("secrets") or () if wanted not in secrets]
    lines += [f"the manifest names the secret '{wanted}', and fleet_secrets has none of that name for this service" for wanted in missing]
    own = {volume["target"] for volume in volumes(manifest)} | ({known["home"]} if known.get("home") else set())
    lines += [f"the manifest mounts something at {target}, where the runtime '{name}' has its own" for target in sorted(own & set(taken))]
    return lines


# ---- the first request


def warm_up(data: Data, manifest: Data) -> dict[str, t.Any]:
    """The request that a new version has to answer before it gets others'; {} for none.

    ``{method, path, body, content_type, status, timeout}``, sent to the port of the health check: the manifest's own, else the runtime's.
    None where nobody knows the port, or where the owner's own command serves who knows what.
    """
    own = (manifest.get("rollout") or {}).get("warm_up")
    if own:
        return dict(own)
    known = entry(data, manifest["runtime"])["warm_up"]
    if not known or not manifest["health"] or manifest["command"]:
        return {}
    if manifest["runtime"] == "speech":
        return {**known, **speech.request(manifest["speech"])}
    name = triton.name_of(manifest) if manifest["runtime"] == "triton" else str((manifest["model"] or {}).get("name"))
    return {**known, "path": known["path"].replace("{model}", name), "body": _filled(known["body"], name)}


def _filled(body: str | Data, name: str) -> str:
    if isinstance(body, str):
        return body
    values = {key: value.replace("{model}", name) if isinstance(value, str) else value for key, value in body.items()}
    return json.dumps(values, ensure_ascii=False)


def names(data: Data, field: str) -> Sequence[str]:
    """The runtimes of which a yes-or-no field is true, such as ``beside`` or ``job``."""
    return sorted(name for name, known in data["runtimes"].items() if known[field])
