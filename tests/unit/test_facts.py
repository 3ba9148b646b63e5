# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host: real pynvml over simulated boards, real files in the shape of /proc and /sys, a real socket for the engine."""

from __future__ import annotations

import json
import os
import threading
import typing as t
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.module_utils import facts, plan_record
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import Options, collect
from ansible_collections.gpuops.fleet.plugins.module_utils.geometry import Geometry
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from ansible_collections.gpuops.fleet.plugins.plugin_utils.intake import check_facts
from test_engine import INFO, Server, detail, request, serve
from test_host import write

if t.TYPE_CHECKING:
    from conftest import FleetHost, MakeHost

A100 = "a100-80gb"
H100 = "h100-80gb"
L40S = "l40s-48gb"
Facts = dict[str, t.Any]


def small_host(root: Path) -> Options:
    """A small but complete host below ``root``, without an engine."""
    for path, text in {
        "proc/sys/kernel/hostname": "gpu-1\n",
        "proc/sys/kernel/osrelease": "6.12.107\n",
        "proc/sys/kernel/random/boot_id": "4f1c\n",
        "proc/meminfo": "MemTotal:       1048576 kB\n",
        "proc/net/tcp": "head\n",
        "sys/devices/system/cpu/online": "0-7\n",
        "os-release": "ID=debian\nVERSION_ID=13\n",
    }.items():
        write(root / path, text)
    return Options(
        state_dir=str(root / "state"),
        services_dir=str(root / "services"),
        proc_root=str(root / "proc"),
        sys_root=str(root / "sys"),
        os_release=str(root / "os-release"),
        shm_path=str(root),
        docker_socket=str(root / "docker.sock"),
        cdi_dirs=(str(root / "cdi"),),
    )


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A host below the test's directory."""
    return small_host(tmp_path / "host")


def slices(*starts: int, gpu: int | str = 0, compute: bool = True) -> None:
    """Turn MIG on and make 1-slice instances there."""
    with Nvml() as nvml:
        handle = nvml.find(gpu)
        nvml.set_mig_mode(handle, True)
        profile = nvml.profiles(handle)[0]
        for start in starts:
            made = nvml.create_gpu_instance(handle, profile.id, start, profile.size)
            if compute:
                nvml.create_compute_instance(made)


def fail(host: FleetHost, call: str, error: str) -> None:
    host.simctl("fail", "--call", call, "--error", error, "--always")


def count(host: FleetHost) -> Counter[str]:
    return Counter(entry["call"] for entry in host.calls())


# The host as a whole


def test_the_facts_of_a_host_have_their_documented_shape(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(A100)
    shown = host.simctl("show", "--json")
    gpu = shown["gpus"][0]
    result = collect(options)
    assert list(result) == [
        "schema",
        "collection",
        "host",
        "driver",
        "iommu",
        "engine",
        "geometries",
        "gpus",
        "parent",
        "passthrough",
        "drains_idle",
        "leases",
        "plan",
        "errors",
    ]
    assert result["schema"] == 1
    assert result["errors"] == []
    assert result["host"]["hostname"] == "gpu-1"
    assert result["driver"] == {
        "present": True,
        "version": shown["driver"]["version"],
        "nvml": shown["driver"]["nvml"],
        "cuda": f"{shown['driver']['cuda'] // 1000}.{shown['driver']['cuda'] % 1000 // 10}",
        "flavour": None,
        "vgpu_host": None,
        "error": None,
    }
    assert result["iommu"] == {"groups": 0, "active": False}
    assert result["plan"] is None
    assert len(result["geometries"]) == 1
    digest = next(iter(result["geometries"]))
    assert result["gpus"] == [
        {
            "uuid": gpu["uuid"],
            "pci": gpu["pci"],
            "index": 0,
            "minor": 0,
            "name": "NVIDIA A100-SXM4-80GB",
            "device_id": "0x20B210DE",
            "architecture": "ampere",
            "compute_capability": "8.0",
            "virtualization": "none",
            "parent": gpu["pci"],
            "parent_host": None,
            "state": "ok",
            "error": None,
            "memory_mib": 81920,
            "memory_used_mib": result["gpus"][0]["memory_used_mib"],
            "mig": {"current": False, "pending": False, "resetless": False, "geometry": digest, "instances": []},
            "nvlink": [],
            "temperature_c": gpu["temperature"],
            "power_w": round(gpu["power_w"]),
            "power_limit_w": 400,
            "persistence": gpu["persistence"],
            "compute_mode": "default",
            "ecc": {"current": True, "pending": True},
            "vgpu": None,
            "drain": None,
        }
    ]
    assert 0 <= result["gpus"][0]["memory_used_mib"] < 81920


def test_the_version_in_the_facts_is_that_of_the_collection() -> None:
    galaxy = yaml.safe_load((Path(__file__).parents[2] / "galaxy.yml").read_text(encoding="utf-8"))
    assert galaxy["version"] == facts.COLLECTION


def test_reading_changes_nothing(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:2")
    slices(0, 3)
    before = host.simctl("show", "--json")
    made = len(host.calls(mutations=True))
    collect(replace(options, gather=frozenset({"holders", "containers"})))
    assert len(host.calls(mutations=True)) == made
    assert host.simctl("show", "--json") == before


def test_eight_gpus_with_seven_slices_each_stay_below_16_kib(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:8")
    for gpu in range(8):
        slices(*range(7), gpu=gpu)
    for port in range(50):
        with (Path(options.proc_root) / "net/tcp").open("a") as table:
            table.write(f"   {port}: 00000000:{0x4650 + port:04X} 00000000:0000 0A\n")
    write(Path(options.cdi_dirs[0]) / "nvidia.yaml", "")
    result = collect(options)
    assert [len(gpu["mig"]["instances"]) for gpu in result["gpus"]] == [7] * 8
    assert len(result["host"]["ports_listening"]) == 50
    assert all(instance["ci"][0]["uuid"].startswith("MIG-") for gpu in result["gpus"] for instance in gpu["mig"]["instances"])
    assert len(json.dumps(result).encode()) <= 16 * 1024
    assert host.simctl("show", "--json")["gpus"][7]["mig"]["current"] is True


def test_a_host_without_gpus_is_an_answer(fleet_host: MakeHost, options: Options) -> None:
    fleet_host()
    result = collect(options)
    assert (result["driver"]["present"], result["gpus"], result["geometries"], result["errors"]) == (True, [], {}, [])


def test_a_missing_driver_is_an_answer(fleet_host: MakeHost, options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fleet_host(L40S)
    monkeypatch.setenv("NVML_SIM_STATE", str(tmp_path / "nothing"))
    result = collect(replace(options, gather=frozenset({"holders"})))
    assert result["driver"] == {
        "present": False,
        "version": None,
        "nvml": None,
        "cuda": None,
        "flavour": None,
        "vgpu_host": None,
        "error": "nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED (Driver Not Loaded)",
    }
    assert result["gpus"] == []
    assert result["host"]["cpus"] == 8


def test_a_loaded_module_tells_its_flavour_even_when_nvml_does_not_answer(
    fleet_host: MakeHost, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_host(L40S)
    write(Path(options.proc_root) / "driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08\n")
    assert collect(options)["driver"]["flavour"] == "open"
    monkeypatch.setenv("NVML_SIM_STATE", "/nonexistent")
    driver = collect(options)["driver"]
    assert (driver["present"], driver["flavour"]) == (False, "open")


def test_the_plan_that_the_host_carries_is_told_without_its_services(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    record = {"serial": 3, "digest": "sha256:aa", "state": "started", "services": [], "standing": []}
    Path(options.state_dir).mkdir()
    plan_record.write(Path(options.state_dir), record)
    assert collect(options)["plan"] == {"serial": 3, "digest": "sha256:aa", "state": "started"}


def test_a_damaged_plan_record_is_said(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    write(Path(options.state_dir) / "plan.json", "{")
    result = collect(options)
    assert result["plan"] is None
    assert len(result["errors"]) == 1
    assert result["errors"][0].startswith("plan: ")


@pytest.mark.parametrize(
    ("script", "version"),
    [
        ("printf 'NVIDIA Container Toolkit CLI version 1.17.8\\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\\n'", "1.17.8"),
        ("echo 'NVIDIA Container Toolkit CLI version 1.18.0-rc.1'", "1.18.0-rc.1"),
        ("exit 1", None),
    ],
)
def test_the_container_toolkit_is_told_as_its_program_prints_it(
    fleet_host: MakeHost, options: Options, tmp_path: Path, script: str, version: str | None
) -> None:
    fleet_host(L40S)
    assert collect(replace(options, nvidia_ctk=str(tmp_path / "no-such-program")))["engine"]["container_toolkit"] is None
    program = tmp_path / "toolkit"
    write(program, f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    result = collect(replace(options, nvidia_ctk=str(program)))
    assert (result["engine"]["container_toolkit"], result["errors"]) == (version, [])


@pytest.mark.parametrize("answer", [True, False])
def test_live_restore_is_told_as_the_engine_has_it_in_force(fleet_host: MakeHost, options: Options, docker: Server, answer: bool) -> None:
    fleet_host(L40S)
    docker.routes["/info"] = (200, {**INFO, "LiveRestoreEnabled": answer})
    assert collect(options)["engine"]["live_restore"] is answer


def test_cdi_specifications_and_compose_are_facts_of_the_engine(
    fleet_host: MakeHost, options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fleet_host(L40S)
    write(Path(options.cdi_dirs[0]) / "nvidia.yaml", "")
    write(tmp_path / "bin/docker", "#!/bin/sh\necho 2.38.1\n")
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    engine = collect(options)["engine"]
    assert (engine["compose"], engine["cdi_specs"]) == ("2.38.1", [f"{options.cdi_dirs[0]}/nvidia.yaml"])


# GPUs


def test_gpus_come_by_pci_address_with_the_geometry_once_for_each_board(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{A100}:2", f"{H100}:2", L40S)
    result = collect(options)
    addresses = [gpu["pci"] for gpu in result["gpus"]]
    assert addresses == sorted(addresses)
    assert sorted(gpu["pci"] for gpu in host.simctl("show", "--json")["gpus"]) == addresses
    keys = [gpu["mig"] and gpu["mig"]["geometry"] for gpu in sorted(result["gpus"], key=lambda gpu: gpu["index"])]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert keys[4] is None
    assert set(result["geometries"]) == {keys[0], keys[2]}
    for digest, data in result["geometries"].items():
        assert Geometry.from_dict(data).digest() == digest


def test_boards_of_one_kind_are_read_once(fleet_host: MakeHost, options: Options) -> None:
    one = fleet_host(H100)
    collect(options)
    single = count(one)
    eight = fleet_host(f"{H100}:8")
    collect(options)
    asked = count(eight)
    placements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
    profiles = "nvmlDeviceGetGpuInstanceProfileInfoV"
    pairs = "nvmlDeviceGetP2PStatus"
    assert asked[placements] == single[placements] > 0
    assert asked[profiles] == single[profiles] + 7
    assert asked["nvmlInitWithFlags"] == 1
    assert asked[pairs] == 28
    assert max(asked[name] for name in asked if name not in (placements, profiles, pairs)) == 8


def test_boards_of_one_kind_that_disagree_are_read_apart(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:2")
    # The question to the second board comes right after the eighteen about the first; it gets no answer.
    host.simctl("fail", "--call", "nvmlDeviceGetGpuInstanceProfileInfoV", "--nth", "19", "--error", "NOT_SUPPORTED")
    result = collect(options)
    first, second = (gpu["mig"]["geometry"] for gpu in result["gpus"])
    assert first is not None
    assert first == second
    assert count(host)["nvmlDeviceGetGpuInstanceProfileInfoV"] == 18 + 1 + 18


def test_slices_are_told_by_start_with_their_mig_uuid(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100)
    slices(4, 2)
    slices(0, compute=False)
    shown = host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]
    mig = collect(options)["gpus"][0]["mig"]
    assert (mig["current"], mig["pending"], mig["resetless"]) == (True, True, True)
    assert mig["instances"] == [
        {
            "gi": instance["gi"],
            "profile": "1g.10gb",
            "start": instance["start"],
            "ci": [{"id": ci["id"], "profile": "1g.10gb", "uuid": ci["uuid"]} for ci in instance["ci"]],
        }
        for instance in shown
    ]
    assert [(instance["start"], len(instance["ci"])) for instance in mig["instances"]] == [(0, 0), (2, 1), (4, 1)]


def test_a_mode_that_waits_is_told_as_pending(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(A100)
    with Nvml() as nvml:
        assert nvml.set_mig_mode(nvml.find(0), True) != "NVML_SUCCESS"
    mig = collect(options)["gpus"][0]["mig"]
    assert (mig["current"], mig["pending"], mig["instances"]) == (False, True, [])


def test_a_driver_that_tells_no_geometry_while_mig_is_off_is_said(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100)
    fail(host, "nvmlDeviceGetGpuInstanceProfileInfoV", "NOT_SUPPORTED")
    result = collect(options)
    gpu = result["gpus"][0]
    assert (gpu["state"], gpu["mig"]["geometry"], result["geometries"]) == ("ok", None, {})
    assert result["errors"] == [f"gpu {gpu['pci']}: mig.geometry: the driver names no profile (up to R535 it does so only while MIG is on)"]


def test_a_lost_gpu_is_an_answer_and_hides_no_other(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{L40S}:3")
    host.simctl("lose", "--gpu", "1")
    result = collect(options)
    assert [(gpu["index"], gpu["state"]) for gpu in result["gpus"]] == [(0, "ok"), (2, "ok"), (1, "lost")]
    lost = result["gpus"][2]
    assert "NVML_ERROR_GPU_IS_LOST" in lost["error"]
    assert result["errors"] == [f"gpu 1: {lost['error']}"]
    assert lost == {**dict.fromkeys(result["gpus"][0]), "index": 1, "state": "lost", "error": lost["error"]}


def kernel_list(options: Options, gpus: list[Facts]) -> None:
    for gpu in gpus:
        write(Path(options.proc_root) / "driver/nvidia/gpus" / gpu["pci"] / "information", f"Model: x\nGPU UUID: \t {gpu['uuid']}\n")


def test_facts_of_a_host_are_none_that_a_plan_calls_damaged(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100, L40S)
    slices(0, 3)
    host.simctl("lose", "--gpu", "1")
    read = collect(replace(options, gather=frozenset({"holders", "containers"})))
    assert [gpu["state"] for gpu in read["gpus"]].count("lost") == 1
    assert check_facts("h1", json.loads(json.dumps(read)))["gpus"][0]["mig"]["instances"]


def test_a_lost_gpu_is_named_by_what_the_kernel_driver_still_holds(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{L40S}:3")
    shown = host.simctl("show", "--json")["gpus"]
    kernel_list(options, shown)
    host.simctl("lose", "--gpu", "1")
    result = collect(options)
    assert [(gpu["uuid"], gpu["pci"], gpu["parent"]) for gpu in result["gpus"]] == [(gpu["uuid"], gpu["pci"], gpu["pci"]) for gpu in shown]
    assert [gpu["state"] for gpu in result["gpus"]] == ["ok", "lost", "ok"]


def test_a_lost_gpu_is_not_named_by_a_guess(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{L40S}:2")
    shown = host.simctl("show", "--json")["gpus"]
    kernel_list(options, [*shown, {"pci": "0000:fe:00.0", "uuid": "GPU-00"}])
    host.simctl("lose", "--gpu", "1")
    lost = collect(options)["gpus"][1]
    assert (lost["uuid"], lost["pci"], lost["state"]) == (None, None, "lost")


def test_a_gpu_that_is_lost_while_it_is_read_keeps_what_was_read(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(A100)
    fail(host, "nvmlDeviceGetPowerUsage", "GPU_IS_LOST")
    result = collect(options)
    gpu = result["gpus"][0]
    assert gpu["state"] == "lost"
    assert gpu["error"].startswith("nvmlDeviceGetPowerUsage: NVML_ERROR_GPU_IS_LOST")
    assert (gpu["memory_mib"], gpu["power_w"], gpu["mig"]) == (81920, None, None)
    assert result["errors"] == [f"gpu {gpu['pci']}: {gpu['error']}"]


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetPciInfo_v3", "pci"),
        ("nvmlDeviceGetMemoryInfo_v2", "memory_mib"),
        ("nvmlDeviceGetMigMode", "mig"),
    ],
)
def test_a_gpu_about_which_nothing_can_be_decided_is_in_error(fleet_host: MakeHost, options: Options, call: str, key: str) -> None:
    fail(fleet_host(A100), call, "UNKNOWN")
    result = collect(options)
    gpu = result["gpus"][0]
    assert (gpu["state"], gpu[key]) == ("error", None)
    assert "NVML_ERROR_UNKNOWN" in gpu["error"]
    assert [line.rpartition(": ")[0].partition(": ")[2] for line in result["errors"]] == [gpu["error"].partition(": ")[0]]
    assert gpu["name"] == "NVIDIA A100-SXM4-80GB"


def test_instances_that_cannot_be_read_are_not_told_as_none_there(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100)
    slices(0)
    fail(host, "nvmlDeviceGetGpuInstances", "UNKNOWN")
    gpu = collect(options)["gpus"][0]
    assert (gpu["state"], gpu["mig"]["instances"], gpu["mig"]["current"]) == ("error", None, True)


def test_a_reading_that_fails_costs_one_fact(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(A100)
    fail(host, "nvmlDeviceGetTemperature", "UNKNOWN")
    fail(host, "nvmlDeviceGetEccMode", "NOT_SUPPORTED")
    result = collect(options)
    gpu = result["gpus"][0]
    assert (gpu["state"], gpu["error"], gpu["temperature_c"], gpu["ecc"], gpu["power_limit_w"]) == ("ok", None, None, None, 400)
    assert len(result["errors"]) == 1
    assert result["errors"][0].startswith(f"gpu {gpu['pci']}: temperature_c: nvmlDeviceGetTemperature: NVML_ERROR_UNKNOWN")


def test_a_handle_that_fails_for_another_reason_is_in_error(fleet_host: MakeHost, options: Options) -> None:
    fail(fleet_host(A100), "nvmlDeviceGetHandleByIndex_v2", "NO_PERMISSION")
    gpu = collect(options)["gpus"][0]
    assert (gpu["state"], gpu["index"], gpu["uuid"]) == ("error", 0, None)


def test_a_virtual_function_names_its_card(fleet_host: MakeHost, options: Options) -> None:
    shown = fleet_host(L40S).simctl("show", "--json")["gpus"][0]
    device = Path(options.sys_root) / "bus/pci/devices" / shown["pci"]
    device.mkdir(parents=True)
    (device / "physfn").symlink_to("../0000:01:00.0")
    assert collect(options)["gpus"][0]["parent"] == "0000:01:00.0"


# Engine and containers


@pytest.fixture
def docker(options: Options) -> t.Iterator[Server]:
    with Server(options.docker_socket) as running:
        running.routes["/info"] = (200, INFO)
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


WANTED = frozenset({"containers"})


def test_without_a_socket_there_is_no_engine_and_no_container(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    result = collect(replace(options, gather=WANTED))
    assert result["engine"]["docker"] == {
        "present": False,
        "version": None,
        "cdi": False,
        "runtimes": [],
        "error": f"no socket {options.docker_socket}",
    }
    assert (result["containers"], result["errors"]) == ([], [])


def test_a_socket_that_nobody_answers_leaves_containers_unknown(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(L40S)
    Path(options.docker_socket).touch()
    result = collect(replace(options, gather=WANTED))
    assert (result["engine"]["docker"]["present"], result["engine"]["live_restore"]) == (False, None)
    assert "Connection refused" in result["engine"]["docker"]["error"]
    assert result["containers"] is None


def test_an_engine_is_told_without_asking_for_its_containers(fleet_host: MakeHost, options: Options, docker: Server) -> None:
    fleet_host(L40S)
    result = collect(options)
    assert result["engine"]["docker"]["version"] == "28.3.0"
    assert "containers" not in result
    assert docker.asked == ["/info"]


def test_devices_of_containers_are_uuids_whatever_the_containers_call_them(fleet_host: MakeHost, options: Options, docker: Server) -> None:
    host = fleet_host(L40S, H100)
    slices(0, 1, gpu=1)
    shown = host.simctl("show", "--json")["gpus"]
    whole, uuids = shown[0]["uuid"], [instance["ci"][0] for instance in shown[1]["mig"]["instances"]]
    second = next(ci["uuid"] for ci in uuids if ci["index"] == 1)
    serve(
        docker,
        detail(1, "by-index", DeviceRequests=[request("0")]),
        detail(2, "by-mig-index", DeviceRequests=[request("nvidia.com/gpu=1:1", driver="cdi")]),
        detail(3, "gone", DeviceRequests=[request("1:6", "MIG-gone")]),
        detail(4, "all", DeviceRequests=[request(count=-1)]),
        detail(5, "no-such-gpu", DeviceRequests=[request("7:0")]),
    )
    result = collect(replace(options, gather=WANTED))
    assert {container["name"]: container["devices"] for container in result["containers"]} == {
        "by-index": [whole],
        "by-mig-index": [second],
        "gone": ["1:6", "MIG-gone"],
        "all": [whole, *(ci["uuid"] for ci in uuids)],
        "no-such-gpu": ["7:0"],
    }
    assert len(result["errors"]) == 1
    assert result["errors"][0].startswith("gpu 7: MIG device 7:0: nvmlDeviceGetHandleByIndex: ")


def test_containers_that_cannot_be_listed_are_unknown_and_the_reason_is_told(
    fleet_host: MakeHost, options: Options, docker: Server
) -> None:
    fleet_host(L40S)
    docker.routes["/containers/json?all=1"] = (500, {"message": "database is locked"})
    result = collect(replace(options, gather=WANTED))
    assert result["containers"] is None
    assert result["engine"]["docker"]["present"] is True
    assert result["errors"] == [
        f"containers: Docker engine at {options.docker_socket}: GET /containers/json?all=1 answered 500: database is locked"
    ]


def test_containers_keep_their_words_on_a_host_whose_driver_is_gone(
    fleet_host: MakeHost, options: Options, docker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet_host(L40S)
    monkeypatch.setenv("NVML_SIM_STATE", os.devnull)
    serve(docker, detail(1, "a", DeviceRequests=[request("0", "GPU-1")]))
    assert collect(replace(options, gather=WANTED))["containers"][0]["devices"] == ["0", "GPU-1"]
