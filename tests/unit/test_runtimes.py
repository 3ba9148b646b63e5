# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serving runtimes: arguments that fit the slice, what a container may do, the first request, and the facts behind all of it."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import typing as t
import wave
from email.parser import BytesParser
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.filter.compose import is_job, runtime_data
from ansible_collections.gpuops.fleet.plugins.filter.compose import warm_up as warm_up_filter
from ansible_collections.gpuops.fleet.plugins.plugin_utils import runtimes, speech, triton
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from template_world import Case

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "name": "chat",
    "path": "llama",
    "parameters": 8.03e9,
    "bytes_per_parameter": 2,
    "context": 8192,
    "concurrency": 4,
    "layers": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "kv_bytes": 2,
}
SLICE = {"gpu": "GPU-1", "profile": "3g.40gb", "start": 0}
SHARED = {"gpu": "GPU-1", "mode": "shared"}
PAIR = {"mode": "whole", "gpus": ["GPU-1", "GPU-2"]}
NAMES = ["http", "vllm", "sglang", "llama-cpp", "triton", "speech", "batch", "notebook"]


def llm(need: int = 20000, port: int | None = None, **model: t.Any) -> dict[str, t.Any]:
    ports = [{"name": "http", "container": port, "host": None}] if port else []
    return {"runtime": "vllm", "model": {**MODEL, **model}, "need_mib": need, "ports": ports, "health": None}


def value(arguments: t.Sequence[str], name: str) -> list[str]:
    """What follows an argument, each time that it is there."""
    return [arguments[at + 1] for at, word in enumerate(arguments) if word == name]


def manifest(runtime: str, kind: str = "slice", **more: t.Any) -> dict[str, t.Any]:
    return {**read_manifest("m.yml", Case(runtime, kind, "cdi").text()).data(), **more}


# ---- vLLM


def test_a_model_is_mounted_read_only_where_the_server_is_told_to_look() -> None:
    (mount,) = runtimes.model_volumes(MODEL)
    assert mount == {"source": "llama", "target": "/models/llama", "read_only": True}
    assert runtimes.vllm_arguments(llm(), SLICE)[:2] == ["--model", mount["target"]]
    assert runtimes.model_volumes(None) == []


def test_a_gguf_file_comes_with_the_other_parts_in_its_directory_and_nothing_else_of_the_store() -> None:
    assert [mount["source"] for mount in runtimes.model_volumes({"path": "a/b/m-00001-of-00002.gguf"})] == ["a/b"]
    assert [mount["target"] for mount in runtimes.model_volumes({"path": "m.gguf"})] == ["/models/m.gguf"]


def test_vllm_is_told_the_cache_in_bytes_and_nothing_about_fractions_on_a_slice() -> None:
    assert runtimes.vllm_arguments(llm(), SLICE, 40448) == [
        "--model",
        "/models/llama",
        "--served-model-name",
        "chat",
        "--max-model-len",
        "8192",
        "--max-num-seqs",
        "4",
        "--kv-cache-memory-bytes",
        "4294967296",
    ]


@pytest.mark.parametrize(
    ("need", "device", "fraction"),
    [(4607, 46068, ["0.11"]), (23034, 46068, ["0.50"]), (46000, 46068, ["0.95"]), (4607, 0, [])],
)
def test_a_sharer_takes_the_fraction_that_was_planned_rounded_up(need: int, device: int, fraction: list[str]) -> None:
    assert value(runtimes.vllm_arguments(llm(need), SHARED, device), "--gpu-memory-utilization") == fraction


@pytest.mark.parametrize(
    ("placement", "size"),
    [(PAIR, ["2"]), ({"mode": "whole", "gpus": ["a"]}, []), ({"mode": "whole", "gpu": "a"}, []), (SLICE, []), ({**SHARED, **PAIR}, ["2"])],
)
def test_tensor_parallelism_goes_over_several_whole_gpus_only(placement: dict[str, t.Any], size: list[str]) -> None:
    assert value(runtimes.vllm_arguments(llm(), placement), "--tensor-parallel-size") == size
    assert value(runtimes.sglang_arguments(llm(), placement), "--tp-size") == size
    shared = {**placement, "mode": "shared"}
    assert value(runtimes.vllm_arguments(llm(), shared), "--tensor-parallel-size") == []


def test_each_of_two_gpus_gets_its_half_of_the_cache() -> None:
    assert value(runtimes.vllm_arguments(llm(), PAIR), "--kv-cache-memory-bytes") == [str(4294967296 // 2)]


def test_a_port_is_told_to_the_server_when_it_is_not_its_own() -> None:
    assert value(runtimes.vllm_arguments(llm(port=8000), SLICE), "--port") == []
    assert value(runtimes.vllm_arguments(llm(port=9000), SLICE), "--port") == ["9000"]


def test_the_port_is_that_of_the_health_check_else_the_first() -> None:
    ports = [{"name": "metrics", "container": 1}, {"name": "http", "container": 2}]
    assert runtimes.port_of({"ports": ports, "health": {"port": "http"}}, 3) == 2
    assert runtimes.port_of({"ports": ports, "health": None}, 3) == 1
    assert runtimes.port_of({"ports": [], "health": None}, 3) == 3


# ---- SGLang


@pytest.mark.parametrize(
    ("placement", "device", "fraction"),
    [
        # 15,316.0 MiB of weights and 4,096 MiB of cache are 19,413 MiB; 512 MiB are gone before SGLang looks.
        (SLICE, 40448, ["0.487"]),
        (SLICE, 20949, ["0.950"]),
        ({"mode": "whole", "gpu": "a"}, 81920, ["0.239"]),
        (PAIR, 81920, ["0.120"]),
        # On a shared GPU at least what was planned is free, whatever the GPU has.
        (SHARED, 81920, ["0.825"]),
        (SHARED, 0, ["0.825"]),
        (SLICE, 0, []),
    ],
)
def test_sglangs_share_is_that_of_weights_and_cache_in_what_it_finds_free(
    placement: dict[str, t.Any], device: int, fraction: list[str]
) -> None:
    command = runtimes.sglang_arguments(llm(24064), placement, device)
    assert value(command, "--mem-fraction-static") == fraction
    assert value(command, "--max-total-tokens") == ["32768"]


# ---- llama.cpp


def test_llama_gets_every_layer_on_the_gpu_and_a_context_for_each_request() -> None:
    arguments = runtimes.llama_arguments(llm(path="a/m.gguf"), SLICE, 40448)
    assert (value(arguments, "-ngl"), value(arguments, "-c"), value(arguments, "--parallel")) == (["999"], ["32768"], ["4"])
    assert value(arguments, "--model") == ["/models/a/m.gguf"]
    assert {"--offline", "--metrics"} <= set(arguments)
    assert "--cache-type-k" not in arguments


@pytest.mark.parametrize(("size", "kind"), [(4, "f32"), (1.0625, "q8_0"), (0.5625, "q4_0")])
def test_a_smaller_cache_has_its_type_on_both_sides_and_flash_attention_which_it_needs(size: float, kind: str) -> None:
    arguments = runtimes.llama_arguments(llm(kv_bytes=size), SLICE)
    assert (value(arguments, "--cache-type-k"), value(arguments, "--cache-type-v")) == ([kind], [kind])
    assert value(arguments, "--flash-attn") == ["on"]


# ---- Triton


def test_the_configuration_says_what_the_manifest_says() -> None:
    assert triton.config_lines(manifest("triton")) == [
        'name: "it"',
        'backend: "onnxruntime"',
        "max_batch_size: 8",
        'input { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }',
        'output { name: "boxes" data_type: TYPE_INT64 dims: [ -1, 4 ] }',
        'output { name: "say \\"text\\"" data_type: TYPE_STRING dims: [ 1 ] }',
        "dynamic_batching { }",
    ]
    block = {**manifest("triton")["triton"], "max_batch_size": 0, "model": "other"}
    lines = triton.config_lines({"service": "it", "triton": block})
    assert (lines[0], "dynamic_batching { }" in lines) == ('name: "other"', False)


def run_script(command: t.Sequence[str], home: Path, program: str, replaced: t.Mapping[str, str]) -> None:
    """The start of a container, in directories of this test; ``program`` is what it ends in."""
    (home / "bin").mkdir()
    (home / "bin" / program).write_text('#!/bin/sh\necho "$@" > "$HOME/started"\n', encoding="utf-8")
    (home / "bin" / program).chmod(0o755)
    words = list(command)
    for old, new in replaced.items():
        words = [word.replace(old, new) for word in words]
    environment = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(home)}
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=20)


def test_triton_starts_on_a_repository_of_the_given_versions_and_the_manifests_configuration(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "it" / "1").mkdir(parents=True)
    (store / "it" / "1" / "model.onnx").write_text("weights", encoding="utf-8")
    (store / "it" / "config.pbtxt").write_text("of somebody else", encoding="utf-8")
    command = runtimes.command(runtime_data(), manifest("triton"), SLICE)
    # What is mounted comes last: /run/gpuops/models has the other word in it.
    run_script(command, tmp_path, "tritonserver", {"/run/gpuops": f"{tmp_path}/run", " /models": f" {store}"})
    made = tmp_path / "run" / "models" / "it"
    assert (made / "1" / "model.onnx").read_text(encoding="utf-8") == "weights"
    assert (made / "config.pbtxt").read_text(encoding="utf-8").splitlines() == triton.config_lines(manifest("triton"))
    assert (store / "it" / "config.pbtxt").read_text(encoding="utf-8") == "of somebody else"
    started = (tmp_path / "started").read_text(encoding="utf-8")
    assert f"--model-repository={tmp_path}/run/models --http-port=8000 --disable-auto-complete-config" in started


# ---- speech


def test_a_plain_directory_is_mounted_as_the_hub_would_have_kept_it_and_asked_for_by_that_name() -> None:
    assert speech.target_of({"model": "a/whisper-v3/"}) == f"{speech.CACHE}/models--local--whisper-v3/snapshots/local"
    assert speech.name_of({"model": "a/whisper-v3"}) == "local/whisper-v3"
    kept = {"model": "hub/models--Systran--faster-whisper-large-v3"}
    assert speech.target_of(kept) == f"{speech.CACHE}/models--Systran--faster-whisper-large-v3"
    assert speech.name_of(kept) == "Systran/faster-whisper-large-v3"


def test_the_warm_up_for_speech_is_a_form_with_a_sound_file_that_others_can_read() -> None:
    request = runtimes.warm_up(runtime_data(), manifest("speech"))
    assert (request["method"], request["path"], request["status"]) == ("POST", "/v1/audio/transcriptions", 200)
    raw = f"Content-Type: {request['content_type']}\r\n\r\n{request['body']}".encode("ascii")
    parts = {part.get_param("name", header="content-disposition"): part for part in BytesParser().parsebytes(raw).get_payload()}
    assert parts["model"].get_payload() == "local/faster-whisper-large-v3"
    assert parts["language"].get_payload() == "zh"
    with wave.open(io.BytesIO(speech.silence().encode("ascii"))) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getnframes(), sound.getsampwidth()) == (1, 12800, 1280, 2)


def test_speech_stays_off_the_network_and_keeps_its_model() -> None:
    values = runtimes.environment(runtime_data(), manifest("speech"))
    assert (values["HF_HUB_OFFLINE"], values["WHISPER__TTL"], values["WHISPER__COMPUTE_TYPE"]) == ("1", "-1", "int8_float16")
    assert "UVICORN_PORT" not in values
    moved = manifest("speech", ports=[{"name": "http", "container": 9000}])
    assert runtimes.environment(runtime_data(), moved)["UVICORN_PORT"] == "9000"


# ---- the first request


def test_a_language_model_writes_one_token_under_its_served_name() -> None:
    for runtime in ("vllm", "llama-cpp"):
        request = warm_up_filter(manifest(runtime))
        assert (request["method"], request["path"]) == ("POST", "/v1/completions")
        assert json.loads(request["body"]) == {"model": "llama-3.1-8b", "prompt": "Hello", "max_tokens": 1}
    assert warm_up_filter(manifest("sglang"))["path"] == "/health_generate"


def test_triton_is_asked_for_the_one_model() -> None:
    assert warm_up_filter(manifest("triton"))["path"] == "/v2/models/it/ready"


@pytest.mark.parametrize("runtime", ["http", "batch", "notebook"])
def test_nobody_knows_a_first_request_for_the_others(runtime: str) -> None:
    assert warm_up_filter(manifest(runtime)) == {}


def test_the_owners_own_request_rules_and_an_own_command_or_no_port_leaves_none() -> None:
    own = {"method": "GET", "path": "/own", "body": "", "content_type": "a/b", "status": 204, "timeout": 5}
    assert warm_up_filter(manifest("vllm", rollout={"warm_up": own})) == own
    assert warm_up_filter(manifest("vllm", command=["vllm", "serve", "bge"])) == {}
    assert warm_up_filter(manifest("vllm", health=None)) == {}


# ---- the whole container


def test_a_sites_own_runtime_is_taken_for_an_image_of_which_nothing_is_known() -> None:
    own = runtimes.container(runtime_data(), {**manifest("http"), "runtime": "pose"}, SLICE)
    assert own == runtimes.container(runtime_data(), manifest("http"), SLICE)
    assert (own["read_only"], own["tmpfs"], own["command"], own["refused"]) == (False, [], [], [])


def test_shared_memory_is_what_the_runtime_needs_at_least_and_never_more_than_the_memory() -> None:
    host = {"cpus": 1.0, "memory": 16384, "shm": 64, "disk": 0}
    sizes = [
        runtimes.container(runtime_data(), manifest("triton", host={**host, **more}), SLICE)["shm_mib"]
        for more in ({}, {"shm": 8192}, {"memory": 512})
    ]
    assert sizes == [2048, 8192, 512]


def test_a_notebook_without_its_secret_or_with_another_home_is_refused_in_one_line_each() -> None:
    crossed = manifest("notebook", volumes=[{"source": "x", "target": "/home/jovyan/", "read_only": False}])
    assert runtimes.container(runtime_data(), crossed, SLICE)["refused"] == [
        "the runtime 'notebook' lets nobody in without the secret 'jupyter-token'; add it to fleet_secrets of this service",
        "the manifest mounts something at /home/jovyan, where the runtime 'notebook' has its own",
    ]
    assert runtimes.container(runtime_data(), manifest("notebook"), SLICE, secrets=["jupyter-token"])["refused"] == []


def test_a_service_is_not_made_without_the_secrets_that_its_manifest_names() -> None:
    named = manifest("http", secrets=["hub_token", "license"])
    assert runtimes.container(runtime_data(), named, SLICE, secrets=["license", "more"])["refused"] == [
        "the manifest names the secret 'hub_token', and fleet_secrets has none of that name for this service"
    ]
    assert runtimes.container(runtime_data(), named, SLICE, secrets=["license", "hub_token"])["refused"] == []


def test_what_a_plan_still_asks_for_although_it_cannot_be_is_refused() -> None:
    (line,) = runtimes.container(runtime_data(), manifest("speech"), PAIR)["refused"]
    assert line == "the runtime 'speech' computes on one GPU, and the plan gives it 2"
    (line,) = runtimes.container(runtime_data(), manifest("notebook"), {**SHARED, "sharing": "mps"}, 0, ["jupyter-token"])["refused"]
    assert line == "the runtime 'notebook' cannot share a GPU through MPS: its clients run as the daemon's user"


def test_a_place_that_the_owner_mounts_is_not_covered_by_memory() -> None:
    mounted = manifest("triton", volumes=[{"source": "/srv/tmp", "target": "/tmp", "read_only": False}])
    assert runtimes.container(runtime_data(), mounted, SLICE)["tmpfs"] == ["/run/gpuops:exec,mode=1777"]


def test_the_homes_of_two_replicas_are_two() -> None:
    homes = [runtimes.container(runtime_data(), manifest("notebook"), SLICE, name=name)["home"]["volume"] for name in ("it-1", "it-2")]
    assert homes == ["gpuops-home-it-1", "gpuops-home-it-2"]


def test_jupyters_settings_are_python_and_a_short_or_missing_token_ends_it(tmp_path: Path) -> None:
    lines = runtimes.notebook_settings(8888, "/home/jovyan", "jupyter-token")
    text = "\n".join(lines).replace("/run/secrets", str(tmp_path))

    class Settings:
        def __getattr__(self, name: str) -> t.Any:
            found = type(self)()
            object.__setattr__(self, name, found)
            return found

    def load() -> t.Any:
        settings = Settings()
        exec(text, {"get_config": lambda: settings})  # as Jupyter does
        return settings

    for token in (None, "", "short\n"):
        if token is not None:
            (tmp_path / "jupyter-token").write_text(token, encoding="utf-8")
        with pytest.raises(SystemExit, match="less than 16 characters: nobody is let in"):
            load()
    (tmp_path / "jupyter-token").write_text("a-token-of-some-length\n", encoding="utf-8")
    assert load().IdentityProvider.token == "a-token-of-some-length"
    assert (load().ServerApp.port, load().ServerApp.ip) == (8888, "0.0.0.0")


# ---- memory of a device


FACTS = {
    "gpus": [
        {"uuid": "GPU-1", "pci": "0000:07:00.0", "memory_mib": 81920, "mig": {"geometry": "g1"}},
        {"uuid": "GPU-2", "pci": "0000:0b:00.0", "memory_mib": 46068, "mig": None},
        {"uuid": "GPU-3", "pci": "0000:0c:00.0", "memory_mib": 40960, "mig": {"geometry": None}},
    ],
    "geometries": {"g1": {"profiles": [{"name": "1g.10gb", "memory_mib": 9856}, {"name": "3g.40gb", "memory_mib": 40448}]}},
}


@pytest.mark.parametrize(
    ("device", "mib"),
    [
        ({"gpu": "GPU-1", "profile": "3g.40gb", "start": 4}, 40448),
        ({"gpu": "0000:07:00.0", "profile": "1g.10gb", "start": 0}, 9856),
        ({"gpu": "GPU-1"}, 81920),
        ({"gpu": "GPU-2"}, 46068),
        ({"gpu": "GPU-3", "profile": "1g.5gb", "start": 0}, 0),
        ({"gpu": "GPU-1", "profile": "9g.90gb", "start": 0}, 0),
        ({"gpu": "GPU-9"}, 0),
    ],
)
def test_a_replica_has_the_memory_of_its_slice_else_of_its_gpu(device: dict[str, t.Any], mib: int) -> None:
    assert runtimes.device_memory_mib(FACTS, device) == mib


# ---- the facts


FIELDS = {
    "title": str,
    "image": str,
    "tag": str,
    "capability": str,
    "cuda": str,
    "driver": str,
    "port": int,
    "health": str,
    "metrics": str,
    "shm_mib": int,
    "memlock": bool,
    "memory": list,
    "cache": list,
    "environment": dict,
    "read_only": bool,
    "tmpfs": list,
    "user": str,
    "pids": int,
    "init": bool,
    "gpus": str,
    "mps": bool,
    "beside": bool,
    "job": bool,
    "warm_up": dict,
    "unverified": list,
    "sources": list,
}
OPTIONAL = {"metrics_port", "home", "secret"}


@pytest.mark.parametrize("name", NAMES)
def test_every_fact_has_its_form_and_those_of_others_their_source(name: str) -> None:
    known = runtime_data()["runtimes"][name]
    assert {field: type(known[field]) for field in FIELDS} == FIELDS
    assert set(known) <= set(FIELDS) | OPTIONAL
    assert set(known["unverified"]) <= set(known)
    assert bool(known["sources"]) == bool(known["image"])
    assert known["gpus"] in ("any", "one")
    assert not known["read_only"] or known["tmpfs"]
    assert all(isinstance(text, str) for text in known["environment"].values())


def test_there_is_a_template_for_each_runtime_and_the_other_way_round() -> None:
    assert {path.name.removesuffix(".yml.j2") for path in (ROOT / "compose-templates").iterdir()} == set(runtime_data()["runtimes"])
    assert set(NAMES) == set(runtime_data()["runtimes"])


def test_no_template_holds_a_fact() -> None:
    facts = {known["image"] for known in runtime_data()["runtimes"].values() if known["image"]}
    for path in (ROOT / "compose-templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert not any(fact in text for fact in facts), path.name
        assert not re.search(r"\b(?:8000|8080|8888|30000)\b", text), path.name


def test_no_argument_ever_names_a_device() -> None:
    for name in NAMES:
        own = runtimes.container(runtime_data(), manifest(name), SLICE, 40448, ["jupyter-token"])
        words = shlex.join([*own["command"], *own["environment"], *own["environment"].values()])
        assert not re.search(r"VISIBLE_DEVICES|GPU-|MIG-", words), name


def test_what_must_not_run_twice_at_once_is_told_to_whoever_plans_rollouts() -> None:
    from ansible_collections.gpuops.fleet.plugins.plugin_utils import runtime_rules

    alone = set(NAMES) - set(runtimes.names(runtime_data(), "beside"))
    assert alone == {"batch", "notebook"} == runtime_rules.ALONE
    assert list(runtimes.names(runtime_data(), "job")) == ["batch"]
    assert [name for name in NAMES if is_job({"runtime": name})] == ["batch"]
    assert not is_job({"runtime": "a-template-of-the-site"})
    assert not is_job({})
    # Nothing else knows a job by its name.
    assert "batch" not in (Path(__file__).resolve().parents[2] / "roles/model_service/vars/main.yml").read_text(encoding="utf-8")


def row(name: str) -> str:
    """The line of the paper's table that the facts make."""
    known = runtime_data()["runtimes"][name]
    image = f"`{known['image']}{':' + known['tag'] if known['tag'] else ''}`" if known["image"] else "any"
    parts = [known["capability"] and f"CC {known['capability']}", known["cuda"] and f"CUDA {known['cuda']}", known["driver"]]
    floors = ", ".join(part for part in parts if part) or "the image's"
    metrics = f"`:{known['metrics_port']}{known['metrics']}`" if "metrics_port" in known else f"`{known['metrics']}`"
    served = f"{known['port']}, `{known['health']}`, {metrics if known['metrics'] else 'none'}" if known["port"] else "the manifest's"
    root = f"read-only; {', '.join(f'`{path}`' for path in known['tmpfs'])}" if known["read_only"] else "writable"
    request = f"`{known['warm_up']['method']} {known['warm_up']['path']}`" if known["warm_up"] else "none"
    return f"| `{name}` | {known['title']} | {image} | {floors} | {served} | {root} | {request} |"


def test_the_papers_table_is_that_of_the_facts() -> None:
    text = (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if re.match(r"\| `[a-z-]+` \| .* \| .* \| .* \| .* \| .* \| .* \|$", line)] == [
        row(name) for name in NAMES
    ]
