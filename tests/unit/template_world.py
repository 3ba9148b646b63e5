# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every compose template in every place that a plan can give it: rendered by Ansible itself, judged by Compose itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from dataclasses import dataclass
from pathlib import Path

import yaml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
IMAGE = "registry.example.com/it@sha256:" + "0123456789abcdef" * 4
TOKEN = "c0ffee-is-a-secret-value"
DIGEST = "sha256:" + "d" * 64
ONE, TWO = "GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222"
SLICE = "MIG-33333333-3333-3333-3333-333333333333"
SLICE_MIB, GPU_MIB = 40448, 81920

LLM = """
model: {parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192, concurrency: 4,
  name: llama-3.1-8b, path: llama-3.1-8b}
"""
TENSORS = """
triton:
  path: receipts/layout
  max_batch_size: 8
  inputs: [{name: image, type: FP32, dims: [3, -1, -1]}]
  outputs: [{name: boxes, type: INT64, dims: [-1, 4]}, {name: 'say "text"', type: STRING, dims: [1]}]
"""
# What each runtime's manifest has of its own; the port, and where its health is asked for.
BLOCKS = {
    "http": "volumes: [{source: receipts, target: /models}]\n",
    "vllm": LLM,
    "sglang": LLM,
    "llama-cpp": LLM.replace("path: llama-3.1-8b}", "path: llama/llama-3.1-8b-00001-of-00002.gguf, kv_bytes: 1.0625}"),
    "triton": TENSORS,
    "speech": "speech: {model: whisper/faster-whisper-large-v3, compute_type: int8_float16, language: zh}\n",
    "batch": "command: [python3, /job/train.py, '--price=$5']\nvolumes: [{source: /srv/results, target: /results, read_only: false}]\n",
    "notebook": "",
}
PORTS = {"http": 8080, "vllm": 8000, "sglang": 30000, "llama-cpp": 8080, "triton": 8000, "speech": 8000, "notebook": 8888}
HEALTH = {"triton": "/v2/health/ready", "notebook": "/api"}
GPU = {
    "slice": "{isolation: slice, memory: 24 GiB}",
    "exclusive": "{isolation: exclusive, memory: 24 GiB}",
    "exclusive-2": "{isolation: exclusive, count: 2, memory: 24 GiB}",
    "time-slice": "{isolation: shared, memory: 24 GiB}",
    "mps": "{isolation: shared, sharing: mps, memory: 24 GiB, compute: 0.5}",
}
PLACES: dict[str, dict[str, t.Any]] = {
    "slice": {"gpu": ONE, "profile": "3g.40gb", "start": 4},
    "exclusive": {"mode": "whole", "gpu": ONE},
    "exclusive-2": {"mode": "whole", "gpus": [ONE, TWO]},
    "time-slice": {"mode": "shared", "gpu": ONE},
    "mps": {"mode": "shared", "gpu": ONE, "sharing": "mps"},
}
# What makes no sense, and the words in which a manifest is refused.
SENSELESS = {
    ("speech", "exclusive-2"): "gpu.count: the runtime 'speech' computes on one GPU; write 'count: 1', and more replicas",
    ("notebook", "mps"): "gpu.sharing: a notebook cannot share a GPU through MPS: it would run as the daemon's user",
}
DAEMON = {"id": ONE, "uid": 70700, "pipe": f"/run/gpuops-fleet/mps/{ONE}/pipe", "shm": f"/run/gpuops-fleet/mps/{ONE}/shm"}
UUIDS = {"slice": [SLICE], "exclusive-2": [ONE, TWO]}


@dataclass(frozen=True, order=True)
class Case:
    """A runtime, what it gets, and how the engine is told."""

    runtime: str
    kind: str
    access: str

    def __str__(self) -> str:
        return f"{self.runtime}-{self.kind}-{self.access}"

    @property
    def golden(self) -> Path:
        """What was rendered when somebody last looked."""
        return GOLDEN / f"{self}.golden"

    @property
    def gpus(self) -> list[str]:
        """What the container names, in the words of the engine."""
        prefix = "nvidia.com/gpu=" if self.access == "cdi" else ""
        return [prefix + uuid for uuid in UUIDS.get(self.kind, [ONE])]

    def text(self) -> str:
        """The manifest."""
        head = f"schema: 1\nservice: it\nteam: claims\nenvironment: production\nruntime: {self.runtime}\nimage: {IMAGE}\n"
        port = PORTS.get(self.runtime)
        served = f"ports: [{{name: http, container: {port}}}]\n" if port else ""
        health = f"health: {{port: http, path: {HEALTH.get(self.runtime, '/health')}}}\n" if port else ""
        return f"{head}gpu: {GPU[self.kind]}\nhost: {{cpus: 4, memory: 16 GiB, shm: 64 MiB}}\n{served}{health}{BLOCKS[self.runtime]}"

    def variables(self) -> dict[str, t.Any]:
        """What the role is told."""
        place = {"service": "it", "replica": 1, "ports": {"http": 18000}, "manifest": DIGEST, **PLACES[self.kind]}
        names = [f"GPU_{number}" for number in range(len(self.gpus))]
        return {
            "model_service_name": "it-1",
            "model_service_manifest": read_manifest("it.yml", self.text()).data(),
            "model_service_placement": place,
            "model_service_devices": [{"name": name, "gpu": ONE} for name in names],
            "model_service_gpu_access": self.access,
            "model_service_device_memory_mib": SLICE_MIB if self.kind == "slice" else GPU_MIB,
            "model_service_secrets": {"jupyter-token": TOKEN} if self.runtime == "notebook" else {},
            "model_service_mps": DAEMON if self.kind == "mps" else {},
        }


def sensible() -> list[Case]:
    """Every case of which the collection makes something."""
    every = [Case(runtime, kind, access) for runtime in BLOCKS for kind in GPU for access in ("cdi", "nvidia")]
    return [case for case in every if (case.runtime, case.kind) not in SENSELESS]


def render(home: Path, cases: t.Mapping[str, tuple[str, dict[str, t.Any]]]) -> dict[str, str]:
    """The text of each case (template, variables), by one play that looks templates up as role model_service does."""
    (home / "templates").mkdir(parents=True)
    for part in (ROOT / "roles" / "model_service" / "templates").iterdir():
        (home / "templates" / part.name).symlink_to(part)
    defaults = yaml.safe_load((ROOT / "roles/model_service/defaults/main.yml").read_text(encoding="utf-8"))
    entries = [{"id": name, "template": template, "with": {**defaults, **given}} for name, (template, given) in cases.items()]
    (home / "cases.json").write_text(json.dumps(entries), encoding="utf-8")
    given_names = sorted({name for entry in entries for name in entry["with"]})
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"texts": {}, "cases": "{{ lookup('ansible.builtin.file', playbook_dir ~ '/cases.json') | from_json }}"},
        "tasks": [
            {
                "name": "Render",
                "ansible.builtin.set_fact": {
                    "texts": "{{ texts | combine({case.id: lookup('ansible.builtin.template', case.template, convert_data=false)}) }}"
                },
                "loop": "{{ cases }}",
                "loop_control": {"loop_var": "case", "label": "{{ case.id }}"},
                "vars": {**{name: f"{{{{ case['with'].{name} }}}}" for name in given_names}, "__model_service_secrets": {"revision": "r1"}},
            },
            {
                "name": "Keep",
                "ansible.builtin.copy": {"content": "{{ texts | to_json }}", "dest": str(home / "texts.json"), "mode": "0600"},
            },
        ],
    }
    (home / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", str(home / "play.yml")]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_HOME": str(home / "ansible"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return dict(json.loads((home / "texts.json").read_text(encoding="utf-8")))


def compose_config(plugin: str, text: str, devices: t.Sequence[str], home: Path) -> dict[str, t.Any]:
    """What Compose itself makes of a file, with its variables resolved."""
    variables = {**os.environ, **{f"GPU_{number}": name for number, name in enumerate(devices)}}
    command = [plugin, "--project-directory", str(home), "--file", "-", "config", "--format", "json"]
    done = subprocess.run(command, input=text, env=variables, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    assert done.stderr == ""
    return dict(json.loads(done.stdout))
