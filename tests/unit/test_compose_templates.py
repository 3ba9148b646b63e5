# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every compose template in every place that a plan can give it: the text, the two judges, and what it means.

``GPUOPS_GOLDEN=write`` writes the texts anew; look at the difference before it is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.filter.compose import compose_problems, runtime_data
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from debian import program
from template_world import DAEMON, DIGEST, GOLDEN, GPU, ROOT, SENSELESS, TOKEN, Case, compose_config, render, sensible

CASES = sensible()
IDS = [str(case) for case in CASES]
SITE = "{% import 'parts.j2' as parts with context %}\nname: it-1\nservices:\n  model:\n{{ parts.identity() -}}\n{{ parts.device() -}}\n"
SITE += "{{ parts.limits() -}}\n{{ parts.network() -}}\n{{ parts.environment() -}}\n{{ parts.volumes() -}}\n{{ parts.command() -}}\n"
SITE += "{{ parts.health() -}}\n{{ parts.hardening() -}}\n"


def template(runtime: str) -> str:
    return str(ROOT / "compose-templates" / f"{runtime}.yml.j2")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that is rendered for this file, by one play."""
    home = tmp_path_factory.mktemp("templates")
    site = home / "site.yml.j2"
    site.write_text(SITE, encoding="utf-8")
    wanted = {str(case): (template(case.runtime), case.variables()) for case in CASES}
    http, notebook, triton = (Case(runtime, "slice", "cdi").variables() for runtime in ("http", "notebook", "triton"))
    wanted["site"] = (str(site), {**http, "model_service_manifest": {**http["model_service_manifest"], "runtime": "site"}})
    wanted["no secret"] = (template("notebook"), {**notebook, "model_service_secrets": {}})
    wanted["writable"] = (template("triton"), {**triton, "model_service_read_only": False})
    wanted["soon"] = (template("http"), {**http, "model_service_start_interval": 5})
    return render(home / "play", wanted)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Docker's own Compose: the plugin out of Debian 13's package, which needs no engine to judge a file."""
    found = program("docker-compose", "docker-compose", "trixie main", tmp_path_factory)
    said = subprocess.run([found, "version"], capture_output=True, text=True, check=False, timeout=30)
    if "Docker Compose version" not in said.stdout:
        pytest.skip(f"{found} is no Compose of today: {(said.stdout or said.stderr).strip()[:80]}")
    return found


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_text_is_the_one_that_somebody_has_looked_at(case: Case, texts: dict[str, str]) -> None:
    if os.environ.get("GPUOPS_GOLDEN") == "write":
        case.golden.write_text(texts[str(case)], encoding="utf-8")
    assert texts[str(case)] == case.golden.read_text(encoding="utf-8")


def test_no_text_is_kept_that_nobody_renders() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {case.golden.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_specifications_schema_accepts_it(case: Case) -> None:
    assert compose_problems(case.golden.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_compose_itself_accepts_it_and_means_what_was_meant(case: Case, plugin: str, tmp_path: Path) -> None:
    text = case.golden.read_text(encoding="utf-8")
    made = compose_config(plugin, text, case.gpus, tmp_path)
    (model,) = made["services"].values()
    check_device(case, model)
    check_hardening(case, model)
    assert TOKEN not in text
    command = [word.replace("$$", "$") for word in model.get("command") or []]
    MEANINGS[case.runtime](case, model, command)
    check_share(case, model)
    assert set(made.get("volumes", {})) == ({"home"} if case.runtime == "notebook" else set())


def check_device(case: Case, model: dict[str, t.Any]) -> None:
    """The pinned devices are asked for, and nothing else names one."""
    driver = {"cdi": "cdi", "nvidia": "nvidia"}[case.access]
    (request,) = model["deploy"]["resources"]["reservations"]["devices"]
    assert request == {"driver": driver, "device_ids": case.gpus, "capabilities": ["gpu"]}
    assert not {"devices", "gpus", "privileged", "runtime", "network_mode", "pid", "ipc"} & set(model)
    environment = model.get("environment") or {}
    assert not {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} & set(environment)
    assert ("NVIDIA_DRIVER_CAPABILITIES" in environment) == (case.access == "nvidia")


def check_hardening(case: Case, model: dict[str, t.Any]) -> None:
    """What no owner can weaken."""
    known = runtime_data()["runtimes"][case.runtime]
    assert (model["cap_drop"], model.get("cap_add"), model["security_opt"]) == (["ALL"], None, ["no-new-privileges:true"])
    assert model["mem_limit"] == model["memswap_limit"] == str(16 * 2**30)
    assert model["pids_limit"] == known["pids"] > 0
    assert (model["init"], model["restart"]) == (known["init"], "no")
    assert model["logging"] == {"driver": "json-file", "options": {"max-file": "5", "max-size": "10m"}}
    assert bool(model.get("read_only")) == known["read_only"]
    assert [place.partition(":")[0] for place in model.get("tmpfs") or []] == known["tmpfs"]
    assert not any("docker.sock" in str(volume["source"]) for volume in model.get("volumes") or [])
    assert all(port["published"] == "18000" for port in model.get("ports") or [])


def check_share(case: Case, model: dict[str, t.Any]) -> None:
    """A client of MPS has the daemon's user, pipes and limits; nobody else has."""
    limits = {name: value for name, value in (model.get("environment") or {}).items() if name.startswith("CUDA_MPS_")}
    targets = {volume["target"] for volume in model.get("volumes") or []}
    if case.kind != "mps":
        assert (limits, "/dev/shm" in targets) == ({}, False)
        return
    assert model["user"] == "70700:70700"
    assert {DAEMON["pipe"], "/dev/shm"} <= targets
    assert limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=24576M"
    assert limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


def after(command: t.Sequence[str], name: str) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command) if word == name]


def mounts(model: dict[str, t.Any], target: str) -> list[tuple[str, bool]]:
    return [(volume["source"], bool(volume.get("read_only"))) for volume in model["volumes"] if volume["target"] == target]


def http(_case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """An unknown image keeps its command, and its root file system writable."""
    assert (command, model.get("read_only")) == ([], None)
    assert mounts(model, "/models") == [("/srv/gpuops/models/receipts", True)]
    assert model["healthcheck"]["test"][1].endswith("http://127.0.0.1:8080/health")


def vllm(case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """The cache in bytes of each GPU; a fraction only where others are on the GPU."""
    cache = 4 * 2**30 // (2 if case.kind == "exclusive-2" else 1)
    assert after(command, "--kv-cache-memory-bytes") == [str(cache)]
    assert after(command, "--tensor-parallel-size") == (["2"] if case.kind == "exclusive-2" else [])
    assert after(command, "--gpu-memory-utilization") == (["0.30"] if case.kind in ("time-slice", "mps") else [])
    assert model["environment"]["HF_HUB_OFFLINE"] == "1"
    assert mounts(model, "/models/llama-3.1-8b") == [("/srv/gpuops/models/llama-3.1-8b", True)]


def sglang(case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """The share of the slice, of the GPU, of each of two, or of what was planned on a shared one."""
    shares = {"slice": "0.487", "exclusive": "0.239", "exclusive-2": "0.120", "time-slice": "0.807", "mps": "0.807"}
    assert after(command, "--mem-fraction-static") == [shares[case.kind]]
    assert after(command, "--tp-size") == (["2"] if case.kind == "exclusive-2" else [])
    assert after(command, "--host") == ["0.0.0.0"]
    assert model["ulimits"]["memlock"] == -1
    assert model["environment"]["HF_HUB_OFFLINE"] == "1"


def llama_cpp(_case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """Every layer on the GPU, a context for each request, and the directory that has all parts of the model."""
    assert (after(command, "-ngl"), after(command, "-c"), after(command, "--parallel")) == (["999"], ["32768"], ["4"])
    assert after(command, "--cache-type-k") == ["q8_0"]
    assert mounts(model, "/models/llama") == [("/srv/gpuops/models/llama", True)]
    assert "--offline" in command
    assert model["read_only"] is True


def triton(case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """The configuration is complete when it reaches the shell, the model's files cannot be written, and nor can the root."""
    assert command[:2] == ["/bin/sh", "-c"]
    assert 'input { name: "image" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }' in command
    assert mounts(model, "/models/it") == [("/srv/gpuops/models/receipts/layout", True)]
    assert model["read_only"] is True
    assert case.kind == "mps" or int(model["shm_size"]) == 2 * 2**30


def speech(case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """The model where the server looks for it, with no network to look elsewhere."""
    (target,) = [volume["target"] for volume in model["volumes"] if "whisper" in volume["source"]]
    assert target.endswith("/hub/models--local--faster-whisper-large-v3/snapshots/local")
    assert model["environment"]["HF_HUB_OFFLINE"] == "1"
    assert model["environment"]["WHISPER__COMPUTE_TYPE"] == "int8_float16"
    assert model["read_only"] is True
    assert case.kind == "mps" or model["user"] == "1000"
    assert command == []


def batch(_case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """A job that the watch can tell from a service, with what the owner wrote and no port."""
    assert model["labels"]["gpuops.job"] == DIGEST
    assert command == ["python3", "/job/train.py", "--price=$5"]
    assert not {"ports", "healthcheck"} & set(model)
    assert mounts(model, "/results") == [("/srv/results", False)]


def notebook(_case: Case, model: dict[str, t.Any], command: list[str]) -> None:
    """The token is a file, and so in nothing that the engine shows; the home is nobody's but its user's."""
    assert mounts(model, "/run/secrets/jupyter-token") == [("/run/gpuops-fleet/secrets/it-1/jupyter-token", True)]
    assert 'file = pathlib.Path("/run/secrets/jupyter-token")' in command
    assert not [name for name in model.get("environment") or {} if re.search("TOKEN|PASSWORD", name)]
    assert (model["user"], mounts(model, "/home/jovyan")) == ("1000:100", [("home", False)])
    assert model["labels"]["gpuops.secrets"] == "r1"


Meaning = t.Callable[[Case, dict[str, t.Any], list[str]], None]
MEANINGS: dict[str, Meaning] = {
    "http": http,
    "vllm": vllm,
    "sglang": sglang,
    "llama-cpp": llama_cpp,
    "triton": triton,
    "speech": speech,
    "batch": batch,
    "notebook": notebook,
}


def test_the_home_outlives_the_service_under_the_replicas_name(plugin: str, tmp_path: Path) -> None:
    case = Case("notebook", "slice", "cdi")
    made = compose_config(plugin, case.golden.read_text(encoding="utf-8"), case.gpus, tmp_path)
    assert made["volumes"] == {"home": {"name": "gpuops-home-it-1"}}


@pytest.mark.parametrize(("runtime", "kind"), SENSELESS)
def test_what_makes_no_sense_is_refused_with_a_line(runtime: str, kind: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_manifest("it.yml", Case(runtime, kind, "cdi").text())
    assert SENSELESS[(runtime, kind)] in str(caught.value)


def test_one_model_is_never_spread_over_slices() -> None:
    text = Case("vllm", "slice", "cdi").text().replace(GPU["slice"], "{isolation: slice, count: 2, memory: 24 GiB}")
    with pytest.raises(FleetError, match="2 GPUs cannot be had with isolation 'slice'"):
        read_manifest("it.yml", text)


def test_a_notebook_without_its_secret_renders_a_file_that_is_refused_in_these_words(texts: dict[str, str]) -> None:
    (line,) = compose_problems(texts["no secret"])
    assert line == "the runtime 'notebook' lets nobody in without the secret 'jupyter-token'; add it to fleet_secrets of this service"


def test_a_sites_own_template_gets_all_that_makes_a_container_safe(texts: dict[str, str], plugin: str, tmp_path: Path) -> None:
    assert compose_problems(texts["site"]) == []
    case = Case("http", "slice", "cdi")
    (model,) = compose_config(plugin, texts["site"], case.gpus, tmp_path)["services"].values()
    check_device(case, model)
    check_hardening(case, model)


def test_a_new_version_is_asked_for_its_health_soon_where_the_engine_knows_how(texts: dict[str, str], plugin: str, tmp_path: Path) -> None:
    case = Case("http", "slice", "cdi")
    assert compose_problems(texts["soon"]) == []
    (model,) = compose_config(plugin, texts["soon"], case.gpus, tmp_path)["services"].values()
    assert (model["healthcheck"]["start_interval"], model["healthcheck"]["interval"]) == ("5s", "30s")
    assert "start_interval" not in texts[str(case)]


def test_the_platform_can_leave_root_file_systems_writable_where_a_toolkit_needs_it(texts: dict[str, str]) -> None:
    kept = Case("triton", "slice", "cdi").golden.read_text(encoding="utf-8").splitlines()
    assert [line for line in kept if line not in texts["writable"].splitlines()] == ["    read_only: true"]
