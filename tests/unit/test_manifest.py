# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests: what is read, with which defaults, and what is said about what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing as t
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.checked import Wrong, describe, parse_size
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import json_schema, read_manifest, read_manifests
from ansible_collections.gpuops.fleet.plugins.plugin_utils.memory import format_size
from ansible_collections.gpuops.fleet.tests.unit.decide_world import DIGEST, manifest_text

ROOT = Path(__file__).resolve().parents[2]
MODEL = "{parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192, concurrency: 4}"

TRITON = "{path: receipts/layout, inputs: [{name: image, type: FP32, dims: [3]}], outputs: [{name: boxes, type: INT64, dims: [4]}]}"

NO_TEXT = "it has half a character, which no text has; write the character itself"


def data(**more: str) -> dict[str, t.Any]:
    return read_manifest("m.yml", manifest_text(**more)).data()


def problem(text: str, *others: tuple[str, str], runtimes: t.Collection[str] = ()) -> str:
    with pytest.raises(FleetError) as caught:
        read_manifests([("m/a.yml", text), *others], runtimes)
    return str(caught.value)


def test_a_short_manifest_gets_all_defaults() -> None:
    assert data(ports="") == {
        "schema": 1,
        "service": "receipt-ocr",
        "team": "claims",
        "environment": "production",
        "data_class": "",
        "description": "",
        "owner": "",
        "runtime": "http",
        "image": f"registry.example.com/receipt-ocr@sha256:{DIGEST}",
        "replicas": 1,
        "priority": 50,
        "gpu": {
            "isolation": "slice",
            "count": 1,
            "memory": 8192,
            "profile": None,
            "compute": None,
            "sharing": None,
            "nvlink": None,
            "models": [],
            "not_models": [],
        },
        "host": {"cpus": 1.0, "memory": 2048, "shm": 64, "disk": 0},
        "placement": {
            "spread": "host",
            "max_per_host": None,
            "max_per_gpu": None,
            "apart": [],
            "together": [],
            "all_or_nothing": False,
            "move_cost": 1,
        },
        "ports": [],
        "health": None,
        "env": {},
        "volumes": [],
        "command": [],
        "model": None,
        "weights": [],
        "secrets": [],
        "triton": None,
        "speech": None,
        "route": None,
        "rollout": {"way": "auto", "keep_room": False, "timeout": 600, "settle": 10, "drain": 30, "keep": 5, "warm_up": None},
        "lease": None,
        "needs": None,
        "lifecycle": "managed",
        "need_mib": 8192,
    }


def test_sizes_become_mib() -> None:
    found = data(gpu="{memory: 1.5 GiB}", host="{cpus: 2.5, memory: 512MiB, shm: 0 MiB, disk: 2 GiB}")
    assert found["gpu"]["memory"] == 1536
    assert found["host"] == {"cpus": 2.5, "memory": 512, "shm": 0, "disk": 2048}


def test_ports_health_and_volumes_get_their_defaults() -> None:
    found = data(ports="[{name: http, container: 8080}]", health="{port: http}", volumes="[{source: a/b, target: /m}]")
    assert found["ports"] == [{"name": "http", "container": 8080, "host": None}]
    assert found["health"] == {"port": "http", "path": "/health", "start_period": 60, "interval": 30, "timeout": 10, "retries": 3}
    assert found["volumes"] == [{"source": "a/b", "target": "/m", "read_only": True}]


def test_a_served_name_is_no_path_where_the_model_has_one() -> None:
    found = data(gpu="", model=MODEL[:-1] + ", name: /v1/llama, path: llama}", runtime="vllm")["model"]
    assert (found["name"], found["path"]) == ("/v1/llama", "llama")


def test_a_model_says_how_much_memory_and_is_served_under_its_service() -> None:
    found = data(gpu="", model=MODEL, runtime="vllm")
    assert found["need_mib"] == 20949
    assert (found["model"]["name"], found["model"]["path"], found["model"]["kv_bytes"]) == ("receipt-ocr", "receipt-ocr", 2.0)
    named = data(gpu="", model=MODEL[:-1] + ", name: llama}")["model"]
    assert (named["name"], named["path"]) == ("llama", "llama")
    both = data(gpu="", model=MODEL[:-1] + ", name: llama, path: x/y}")["model"]
    assert (both["name"], both["path"]) == ("llama", "x/y")


def test_of_memory_and_model_the_larger_counts() -> None:
    assert data(gpu="{memory: 30 GiB}", model=MODEL)["need_mib"] == 30720
    assert data(gpu="{memory: 3 GiB}", model=MODEL)["need_mib"] == 20949


def test_a_profile_alone_is_a_need() -> None:
    assert data(gpu="{profile: 3g.40gb}")["need_mib"] == 0


def test_the_example_of_the_documentation_is_right() -> None:
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    first, model = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[:2]
    example = first.replace("<64 hex digits>", DIGEST)
    assert read_manifests([("a.yml", example)])[0].service == "receipt-ocr"
    assert read_manifests([("a.yml", example + model)])[0].need_mib() == 20949
    jsonschema.validate(json.loads(json.dumps(_yaml(example + model))), json_schema())


def _yaml(text: str) -> t.Any:
    return read_manifest("a.yml", text).located.data


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "unknown field": (
        {"gpu": "{memroy: 8 GiB, memory: 1 GiB}"},
        "m/a.yml:7: gpu.memroy: unknown field 'memroy'; did you mean 'memory'?",
    ),
    "unknown field far from any": (
        {"health": "{port: http, zzz: 1}"},
        "m/a.yml:9: health.zzz: unknown field 'zzz'; known here: port, path, start_period, interval, timeout, retries",
    ),
    "unknown field in a list": (
        {"ports": "[{name: http, contaner: 1, container: 2}]"},
        "m/a.yml:8: ports[0].contaner: unknown field 'contaner'; did you mean 'container'?",
    ),
    "unknown field at the top": ({"replica": "2"}, "m/a.yml:9: replica: unknown field 'replica'; did you mean 'replicas'?"),
    "missing": ({"team": ""}, "m/a.yml:1: the field 'team' is missing; add 'team: ...'"),
    "missing below": ({"ports": "[{name: http}]"}, "m/a.yml:8: ports[0]: the field 'container' is missing; add 'container: ...'"),
    "text for a number": (
        {"replicas": "two"},
        "m/a.yml:9: replicas: expected a whole number, found 'two'; write a number such as 2",
    ),
    "part of a number": ({"replicas": "1.5"}, "m/a.yml:9: replicas: expected a whole number, found 1.5; write a number such as 2"),
    "true for a number": ({"replicas": "true"}, "m/a.yml:9: replicas: expected a whole number, found true; write a number such as 2"),
    "nothing for a number": ({"replicas": "~"}, "m/a.yml:9: replicas: expected a whole number, found nothing; write a number such as 2"),
    "text for a part": ({"host": "{cpus: many}"}, "m/a.yml:9: host.cpus: expected a number, found 'many'; write a number such as 0.5"),
    "number for text": ({"env": "{PORT: 8080}"}, 'm/a.yml:9: env.PORT: expected text, found 8080; write it in quotes: "8080"'),
    "true for text": ({"env": "{DEBUG: true}"}, 'm/a.yml:9: env.DEBUG: expected text, found true; write it in quotes: "true"'),
    "list for text": ({"owner": "[a]"}, "m/a.yml:9: owner: expected text, found a list; write text"),
    "yes for a truth value": (
        {"volumes": "[{source: a, target: /a, read_only: yes}]"},
        "m/a.yml:9: volumes[0].read_only: expected true or false, found 'yes'; write true or false",
    ),
    "text for a list": ({"command": "run"}, "m/a.yml:9: command: expected a list, found 'run'; write [a, b], or one '- ' a line"),
    "text for a mapping": (
        {"host": "big"},
        "m/a.yml:9: host: expected a mapping, found 'big'; write one 'field: value' a line below it",
    ),
    "text for a dictionary": (
        {"env": "A=1"},
        "m/a.yml:9: env: expected a mapping, found 'A=1'; write one 'field: value' a line below it",
    ),
    "too many": ({"priority": "101"}, "m/a.yml:9: priority: 101 is not right; it must be at most 100"),
    "too few": ({"replicas": "0"}, "m/a.yml:9: replicas: 0 is not right; it must be at least 1"),
    "nothing of it": ({"gpu": "{memory: 1 GiB, compute: 0}"}, "m/a.yml:7: gpu.compute: 0 is not right; it must be more than 0"),
    "an empty word": (
        {"volumes": "[{source: '', target: /a}]"},
        "m/a.yml:9: volumes[0].source: the text is empty; write what it shall be, or leave it out",
    ),
    "unknown choice": (
        {"gpu": "{memory: 1 GiB, isolation: slcie}"},
        "m/a.yml:7: gpu.isolation: unknown value 'slcie'; write 'exclusive', 'slice' or 'shared'",
    ),
    "other schema": ({"schema": "2"}, "m/a.yml:1: schema: unknown value 2; write 1"),
    "form": (
        {"health": "{port: http, path: health}"},
        r"m/a.yml:9: health.path: 'health' does not have the right form; it must match ^/[!-~]*$",
    ),
    "no unit": ({"gpu": "{memory: 8}"}, "m/a.yml:7: gpu.memory: 8 has no unit; write '8 MiB' or '8 GiB'"),
    "other unit": (
        {"gpu": "{memory: 8 GB}"},
        "m/a.yml:7: gpu.memory: '8 GB' is not a size; write a number with MiB or GiB, such as '512 MiB' or '1.5 GiB'",
    ),
    "part of a MiB": (
        {"gpu": "{memory: 1.7 MiB}"},
        "m/a.yml:7: gpu.memory: '1.7 MiB' is not a whole number of MiB; write '2 MiB'",
    ),
    "no memory": ({"gpu": "{memory: 0 MiB}"}, "m/a.yml:7: gpu.memory: it is nothing; write more than 0 MiB"),
    "nothing says how much": (
        {"gpu": "{}"},
        "m/a.yml:7: gpu: nothing says how much GPU memory is needed; add 'memory: 8 GiB', or a 'profile', or a 'model' block",
    ),
    "no gpu block": (
        {"gpu": ""},
        "m/a.yml:1: gpu: nothing says how much GPU memory is needed; add 'memory: 8 GiB', or a 'profile', or a 'model' block",
    ),
    "name": (
        {"team": "Claims"},
        "m/a.yml:3: team: 'Claims' is not a name; use 2 to 63 of a-z, 0-9 and '-'; start with a letter, end with a letter or digit",
    ),
    "tag": (
        {"image": "x/y:1"},
        "m/a.yml:6: image: 'x/y:1' can mean another image tomorrow; pin it by digest: NAME@sha256:<64 hex digits>, "
        "as 'docker buildx imagetools inspect NAME' prints it",
    ),
    "no image": ({"image": ""}, "m/a.yml:1: the field 'image' is missing; add 'image: NAME@sha256:<64 hex digits>'"),
    "two slices": (
        {"gpu": "{memory: 1 GiB, count: 2}"},
        "m/a.yml:7: gpu.count: 2 GPUs cannot be had with isolation 'slice'; write 'isolation: exclusive', or 'count: 1'",
    ),
    "profile of a whole": (
        {"gpu": "{profile: 3g.40gb, isolation: exclusive}"},
        "m/a.yml:7: gpu.profile: a MIG profile cannot be had with isolation 'exclusive'; write 'isolation: slice', or no profile",
    ),
    "no profile name": (
        {"gpu": "{profile: huge}"},
        "m/a.yml:7: gpu.profile: 'huge' is not a MIG profile name; write one like 1g.10gb or 1g.10gb+me",
    ),
    "a compute instance": (
        {"gpu": "{profile: 1c.3g.40gb}"},
        "m/a.yml:7: gpu.profile: '1c.3g.40gb' names a compute instance that is smaller than its GPU instance; "
        "only whole GPU instances can be asked for; write 3g.40gb",
    ),
    "compute of a whole": (
        {"gpu": "{memory: 1 GiB, compute: 0.5, isolation: exclusive}"},
        "m/a.yml:7: gpu.compute: a whole GPU has all of its compute; leave 'compute' out, or choose 'slice' or 'shared'",
    ),
    "port name twice": (
        {"ports": "[{name: http, container: 1}, {name: http, container: 2}]"},
        "m/a.yml:8: ports[1].name: 'http' is already that of ports[0]; give each port its own",
    ),
    "port twice": (
        {"ports": "[{name: aa, container: 1, host: 80}, {name: bb, container: 2}, {name: cc, container: 3, host: 80}]"},
        "m/a.yml:8: ports[2].host: '80' is already that of ports[0]; give each port its own",
    ),
    "health of no port": (
        {"health": "{port: htp}"},
        "m/a.yml:9: health.port: there is no port named 'htp'; write one of: http",
    ),
    "health without ports": (
        {"ports": "[]", "health": "{port: http}"},
        "m/a.yml:9: health.port: there is no port named 'http'; add a port",
    ),
    "target twice": (
        {"volumes": "[{source: a, target: /m}, {source: b, target: /n}, {source: c, target: /m/}]"},
        "m/a.yml:9: volumes[2].target: '/m/' is already that of volumes[0]; give each volume its own",
    ),
    "a way out": (
        {"volumes": "[{source: a/../../etc, target: /a}]"},
        "m/a.yml:9: volumes[0].source: 'a/../../etc' leads out by '..'; name the directory itself",
    ),
    "a model out of the store": (
        {"runtime": "vllm", "model": MODEL[:-1] + ", path: ../../../run/gpuops-fleet/secrets}"},
        "m/a.yml:9: model.path: '../../../run/gpuops-fleet/secrets' is not below the model store; write the path from there, without '..'",
    ),
    "a served name that would be such a path": (
        {"runtime": "vllm", "model": MODEL[:-1] + ", name: /}"},
        "m/a.yml:9: model.name: '/' is not below the model store; add a 'path' to it, for the served name is not one",
    ),
    "the host's root for Triton": (
        {"runtime": "triton", "triton": TRITON.replace("receipts/layout", "/")},
        "m/a.yml:9: triton.path: '/' is not below the model store; write the path from there, without '..'",
    ),
    "a Triton model that climbs": (
        {"runtime": "triton", "triton": TRITON[:-1] + ", model: ../x}"},
        "m/a.yml:9: triton.model: '../x' cannot be a directory's name; write a name without '/'",
    ),
    "the engine's socket for speech": (
        {"runtime": "speech", "speech": "{model: /var/run/docker.sock}"},
        "m/a.yml:9: speech.model: '/var/run/docker.sock' is not below the model store; write the path from there, without '..'",
    ),
    "weights out of the store": (
        {"weights": f"[{{path: a/../../b, sha256: {DIGEST}}}]"},
        "m/a.yml:9: weights[0].path: 'a/../../b' is not below the model store; write the path from there, without '..'",
    ),
    "a name of a variable": (
        {"env": "{9x: a}"},
        "m/a.yml:9: env.9x: '9x' is not the name of an environment variable; use letters, digits and '_', no digit first",
    ),
    "the device": (
        {"env": "{CUDA_VISIBLE_DEVICES: '0'}"},
        "m/a.yml:9: env.CUDA_VISIBLE_DEVICES: 'CUDA_VISIBLE_DEVICES' would fight with the device that the planner chooses; leave it out",
    ),
    "vllm without model": (
        {"runtime": "vllm"},
        "m/a.yml:5: runtime: the runtime 'vllm' serves a model, and none is given; add a 'model' block",
    ),
    "triton without its block": (
        {"runtime": "triton"},
        "m/a.yml:5: runtime: the runtime 'triton' serves a model, and none is given; add a 'triton' block",
    ),
    "speech without its block": (
        {"runtime": "speech"},
        "m/a.yml:5: runtime: the runtime 'speech' serves a model, and none is given; add a 'speech' block",
    ),
    "sglang without model": (
        {"runtime": "sglang"},
        "m/a.yml:5: runtime: the runtime 'sglang' serves a model, and none is given; add a 'model' block",
    ),
    "llama-cpp without model": (
        {"runtime": "llama-cpp"},
        "m/a.yml:5: runtime: the runtime 'llama-cpp' serves a model, and none is given; add a 'model' block",
    ),
    "llama-cpp without a file": (
        {"runtime": "llama-cpp", "model": MODEL},
        "m/a.yml:9: model.path: 'receipt-ocr' is no GGUF file; name the .gguf file below the host's model store, the first of its parts",
    ),
    "llama-cpp with an unknown size": (
        {"runtime": "llama-cpp", "model": MODEL[:-1] + ", path: a.gguf, kv_bytes: 1}"},
        "m/a.yml:9: model.kv_bytes: llama.cpp holds no KV element in 1 bytes; write one of: 4 (f32), 2 (f16), 1.0625 (q8_0), 0.5625 (q4_0)",
    ),
    "heads that cannot be shared": (
        {"runtime": "vllm", "model": MODEL, "gpu": "{isolation: exclusive, count: 3}"},
        "m/a.yml:7: gpu.count: 3 GPUs cannot share 8 KV heads evenly; write one of: 1, 2, 4, 8, 16",
    ),
    "speech on two": (
        {"runtime": "speech", "speech": "{model: whisper}", "gpu": "{isolation: exclusive, count: 2, memory: 8 GiB}"},
        "m/a.yml:7: gpu.count: the runtime 'speech' computes on one GPU; write 'count: 1', and more replicas",
    ),
    "a job twice": (
        {"runtime": "batch", "replicas": "2"},
        "m/a.yml:9: replicas: a batch job runs once; write 'replicas: 1', or one manifest for each part of the work",
    ),
    "a job with a health check": (
        {"runtime": "batch", "health": "{port: http}"},
        "m/a.yml:9: health: a batch job serves nobody, and 'health' asks for an answer; leave it out",
    ),
    "a notebook through MPS": (
        {"runtime": "notebook", "gpu": "{isolation: shared, sharing: mps, memory: 8 GiB}"},
        "m/a.yml:7: gpu.sharing: a notebook cannot share a GPU through MPS: it would run as the daemon's user; "
        "write 'sharing: time-slice', or 'isolation: slice'",
    ),
    "a notebook with a command": (
        {"runtime": "notebook", "command": "[start-notebook.py, --IdentityProvider.token=]"},
        "m/a.yml:9: command: the command of a notebook is the collection's: it sets the token; leave it out",
    ),
    "a notebook with a token": (
        {"runtime": "notebook", "env": "{JUPYTER_TOKEN: abc}"},
        "m/a.yml:9: env.JUPYTER_TOKEN: 'JUPYTER_TOKEN' would take the place of the token in the secret's file; leave it out",
    ),
    "a notebook without a port": (
        {"runtime": "notebook", "ports": ""},
        "m/a.yml:5: runtime: nobody could reach a notebook without a port; add 'ports: [{name: http, container: 8888}]'",
    ),
    "a health path that ends the line": (
        {"health": '{port: http, path: "/h\\0"}'},
        r"m/a.yml:9: health.path: '/h\x00' does not have the right form; it must match ^/[!-~]*$",
    ),
    "a warm-up that paints the terminal": (
        {"health": "{port: http}", "rollout": '{warm_up: {path: "/\\e[31m"}}'},
        r"m/a.yml:10: rollout.warm_up.path: '/\x1b[31m' does not have the right form; it must match ^/[!-~]*$",
    ),
    "a target with a control character": (
        {"volumes": '[{source: a, target: "/a\\0"}]'},
        r"m/a.yml:9: volumes[0].target: '/a\x00' does not have the right form; it must match ^/[^\s\x00-\x1f\x7f-\x9f]*$",
    ),
    "half a character": ({"team": '"cl\\ud800aims"'}, f"m/a.yml:3: team: {NO_TEXT}"),
    "a size below nothing": ({"gpu": "{memory: -1}"}, "m/a.yml:7: gpu.memory: -1 has no unit; write '8 GiB'"),
    "too long a path": (
        {"route": f"{{path: /{'a' * 255}}}"},
        f"m/a.yml:9: route.path: '/{'a' * 54}...' is not right; it may have at most 255 letters",
    ),
    "too many teams": (
        {"route": f"{{teams: [{', '.join(f't{number}' for number in range(101))}]}}"},
        "m/a.yml:9: route.teams: 101 are too many; it may have at most 100",
    ),
    "a secret out of its directory": (
        {"secrets": "[../shadow]"},
        "m/a.yml:9: secrets[0]: '../shadow' does not have the right form; it must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
    ),
    "a name with a line break": (
        {"service": '"receipt-ocr\\n"'},
        "m/a.yml:2: service: 'receipt-ocr ' is not a name; "
        "use 2 to 63 of a-z, 0-9 and '-'; start with a letter, end with a letter or digit",
    ),
    "a team with a line break": (
        {"route": '{teams: ["fraud\\n"]}'},
        "m/a.yml:9: route.teams[0]: 'fraud ' is not a name; "
        "use 2 to 63 of a-z, 0-9 and '-'; start with a letter, end with a letter or digit",
    ),
    "a variable with a line break": (
        {"env": '{"A\\n": x}'},
        r"m/a.yml:9: env.A\n: 'A ' is not the name of an environment variable; use letters, digits and '_', no digit first",
    ),
    "a size with a line break": (
        {"gpu": '{memory: "8 GiB\\n"}'},
        "m/a.yml:7: gpu.memory: '8 GiB ' is not a size; write a number with MiB or GiB, such as '512 MiB' or '1.5 GiB'",
    ),
    "an image with a line break": (
        {"image": f'"r/x@sha256:{DIGEST}\\n"'},
        "m/a.yml:6: image: it has a line break or a control character; write it in one line",
    ),
    "two lines": (
        {"volumes": '[{source: "a\\nb", target: /a}]'},
        "m/a.yml:9: volumes[0].source: it has a line break or a control character; write it in one line",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line_with_file_line_and_field(case: str) -> None:
    fields, expected = WRONG[case]
    assert problem(manifest_text(**fields)) == expected


def test_all_problems_of_all_files_are_said_each_on_its_line() -> None:
    bad = manifest_text(replicas="two", priority="200")
    assert problem(bad, ("m/b.yml", "- a\n"), ("m/c.yml", manifest_text("speech"))) == "\n".join(
        [
            "m/a.yml:9: replicas: expected a whole number, found 'two'; write a number such as 2",
            "m/a.yml:10: priority: 200 is not right; it must be at most 100",
            "m/b.yml:1: expected a mapping, found a list; write one 'field: value' a line",
        ]
    )


def test_two_services_of_one_name_are_refused_and_both_files_named() -> None:
    other = "\n" + manifest_text(team="motor")
    assert problem(manifest_text(), ("m/b.yml", other)) == (
        "m/b.yml:3: service: 'receipt-ocr' is already described in m/a.yml:2; give one of them another name, or remove one of the files"
    )


def test_a_runtime_needs_a_template() -> None:
    text = manifest_text(runtime="pose")
    assert problem(text, runtimes=["vllm", "http"]) == (
        "m/a.yml:5: runtime: there is no compose template for the runtime 'pose'; write one of: http, vllm"
    )
    assert [each.service for each in read_manifests([("m", text)], ["pose"])] == ["receipt-ocr"]
    assert [each.service for each in read_manifests([("m", text)])] == ["receipt-ocr"]
    assert read_manifests([("m", manifest_text(runtime="pose", lifecycle="adopted"))], ["http"])[0].model.runtime == "pose"


def test_manifests_come_back_by_name_whatever_their_files() -> None:
    found = read_manifests([("b", manifest_text("zz")), ("a", manifest_text("bb")), ("c", manifest_text("aa"))])
    assert [(each.service, each.file) for each in found] == [("aa", "c"), ("bb", "a"), ("zz", "b")]


def test_an_adopted_service_need_not_be_fit_to_be_rendered() -> None:
    found = read_manifest("m", manifest_text(lifecycle="adopted", image="", env="{CUDA_VISIBLE_DEVICES: '0'}", runtime="vllm"))
    assert (found.data()["image"], found.data()["lifecycle"]) == (None, "adopted")
    assert read_manifest("m", manifest_text(lifecycle="adopted", image="x:latest")).data()["image"] == "x:latest"


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("a1", True),
        ("a-b", True),
        ("a" * 63, True),
        ("a", False),
        ("a" * 64, False),
        ("1a", False),
        ("a-", False),
        ("a_b", False),
        ("aB", False),
    ],
)
def test_names_are_those_of_dns_labels(name: str, right: bool) -> None:
    if right:
        assert data(service=name)["service"] == name
    else:
        assert "is not a name" in problem(manifest_text(service=name))


def test_the_digest_changes_with_what_a_replica_is_made_from() -> None:
    def digest(**more: str) -> str:
        return read_manifest("any.yml", manifest_text(**more)).digest()

    first = digest()
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", first)
    assert first == digest(replicas="3", priority="9", description="other words")
    assert first == digest(host="{cpus: 1}", gpu="{memory: 8192 MiB}")
    changed = [{"env": "{A: b}"}, {"team": "motor"}, {"gpu": "{memory: 9 GiB}"}, {"command": "[a]"}, {"owner": "me"}]
    assert len({first, *(digest(**more) for more in changed)}) == 6


def test_the_schema_for_editors_knows_the_same_fields_and_sizes() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "gpuops.fleet service manifest"
    right = {"schema": 1, "service": "ab", "team": "cd", "environment": "ef", "gpu": {"memory": "1.5 GiB"}}
    jsonschema.validate(right, schema)
    wrongs: list[dict[str, t.Any]] = [
        {"gpu": {"memory": 8}},
        {"gpu": {"memory": "8 GB"}},
        {"gpus": {}},
        {"replicas": "2"},
        {"service": "A"},
        {"schema": 2},
    ]
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**right, **wrong}, schema)


def test_the_schema_is_printed_by_the_module_itself() -> None:
    command = [sys.executable, "-m", "ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest"]
    done = subprocess.run(command, cwd=ROOT / "collections", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json_schema()


def test_without_pydantic_everything_imports_and_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from ansible_collections.gpuops.fleet.plugins.plugin_utils import fleet, manifest, plans, policy\n"
        "from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError\n"
        "try:\n    manifest.read_manifests([])\nexcept FleetError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "collections", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the controller needs the Python package pydantic, version 2: ")
    assert done.stdout.endswith("; install it into the Python that runs ansible-playbook: pip install 'pydantic>=2'\n")


def test_sizes_are_written_in_the_larger_unit_where_that_is_exact() -> None:
    assert [format_size(mib) for mib in (0, 512, 1024, 1536, 2048)] == ["0 MiB", "512 MiB", "1 GiB", "1536 MiB", "2 GiB"]
    assert all(parse_size(format_size(mib)) == mib for mib in (0, 1, 1023, 1024, 9856))


@pytest.mark.parametrize("value", [8, 8.5, True, None, "8", "8 gib", "GiB", "-1 GiB", "1e3 MiB", " 8 GiB", ["8 GiB"]])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(Wrong):
        parse_size(value)


@pytest.mark.parametrize("value", [f"{2**30 + 1} GiB", f"{2**40 + 1} MiB", "9" * 400 + " GiB"])
def test_a_size_that_cannot_be_true_is_refused(value: str) -> None:
    assert parse_size(f"{2**30} GiB") == 2**40
    with pytest.raises(Wrong, match="too large to be true") as caught:
        parse_size(value)
    assert caught.value.hint == "write at most '1073741824 GiB'"


def test_values_are_described_in_one_line() -> None:
    values: list[object] = [None, True, {}, [], (), 3, "x"]
    assert [describe(each) for each in values] == ["nothing", "true", "a mapping", "a list", "a list", "3", "'x'"]
    assert describe("x" * 70) == "'" + "x" * 55 + "...'"
    assert describe("x" * 58) == "'" + "x" * 58 + "'"
