# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""simctl and the nvidia-smi stand-in: what they print, what they refuse, and with which exit codes."""

from __future__ import annotations

import os
import pathlib
import subprocess
import typing as t

import pynvml
import pytest
from simulator_world import compute, create, enable_mig, gpu, nvml_open, refusal, uuid_of

Hosts = t.Callable[..., t.Any]


def simctl(host: t.Any, *args: str) -> tuple[int, str, str]:
    done = subprocess.run(["simctl", *args], env=host.env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def smi(host: t.Any, *args: str) -> tuple[int, str]:
    """The stand-in finds its library beside itself: no LD_LIBRARY_PATH."""
    env = {name: value for name, value in host.env.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(["nvidia-smi", *args], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


# ---- simctl ----


@pytest.mark.parametrize(
    ("name", "board"),
    [
        ("A100-80GB", "a100-80gb"),
        ("a100_40gb", "a100-40gb"),
        ("a100-sxm4-80gb", "a100-80gb"),
        ("A100", "a100-80gb"),
        ("h100", "h100-80gb"),
        ("NVIDIA H100 NVL", "h100-94gb"),
        ("rtx", "rtx-pro-6000-96gb"),
        ("Tesla T4", "t4-16gb"),
        ("l40", "l40s-48gb"),
    ],
)
def test_board_is_found_by_the_names_that_people_use(fleet_host: Hosts, name: str, board: str) -> None:
    assert fleet_host(name).simctl("show", "--json")["gpus"][0]["board"] == board


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["create", "--force", "--board", "h"], "could be several: h100-80gb, h100-94gb, h200-141gb"),
        (["create", "--force", "--board", "voodoo2"], "'voodoo2' is not known"),
        (["create", "--force", "--board", "t4:0"], "a count from 1 to 32"),
        (["create", "--force", "--board", "t4:20", "--board", "l40s:20"], "more than 32 GPUs"),
        (["create", "--force", "--board", "/nowhere/x.yml"], "/nowhere/x.yml: cannot be read"),
        (["create", "--board", "t4"], "add --force"),
        (["create", "--force", "--driver", "new"], "is no driver version"),
        (["set", "colour", "red"], "no field 'colour'; fields are driver"),
        (["set", "temperature", "hot"], "give a number from 0 to 200"),
        (["set", "temperature", "-5"], "give a number from 0 to 200"),
        (["set", "ecc", "maybe"], "give one of on, off"),
        (["set", "log", "off", "--gpu", "0"], "belongs to the host"),
        (["set", "mig", "on", "--gpu", "1"], "this board has no MIG"),
        (["set", "vgpus", "L40S-99Q", "--gpu", "1"], "no such vGPU type"),
        (["set", "temperature", "50", "--gpu", "7"], "no GPU '7'; there are: 0 GPU-"),
        (["hold", "--gpu", "0", "--gi", "3"], "no GPU instance 3"),
        (["hold", "--gpu", "0", "--ci", "3"], "--ci needs --gi"),
        (["release", "--pid", "1"], "nobody like that"),
        (["fail", "--call", "nvmlMakeCoffee", "--error", "IN_USE"], "is no NVML function"),
        (["fail", "--call", "nvmlDeviceGetName", "--error", "TIRED"], "no such error; give the name of one"),
        (["fail", "--call", "nvmlDeviceGetName", "--error", "SUCCESS"], "no such error"),
        (["fail", "--call", "nvmlDeviceGetName"], "needs --call NAME and --error NAME"),
        (["kill"], "give --mutation N"),
        (["kill", "--mutation", "0"], "whole number from 1 on"),
        (["dance"], "invalid choice: 'dance'"),
        (["--state", "/nowhere", "show"], "no simulated host in /nowhere"),
    ],
)
def test_mistake_gets_one_line_and_exit_2(fleet_host: Hosts, args: list[str], words: str) -> None:
    host = fleet_host("h100-80gb", "l40s-48gb")
    before = host.simctl("show", "--json")
    code, out, err = simctl(host, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert host.simctl("show", "--json") == before


@pytest.mark.skipif(os.path.exists("/var/lib/nvmlsim"), reason="this machine is itself a simulated host")
def test_no_host_named_means_the_one_of_the_machine(fleet_host: Hosts) -> None:
    host = fleet_host()
    host.env.pop("NVML_SIM_STATE")
    code, _out, err = simctl(host, "show")
    assert (code, err) == (2, "simctl: no simulated host in /var/lib/nvmlsim; make one with `simctl create --board NAME`\n")
    assert smi(host, "-L")[0] == 9


def test_uuids_follow_from_the_seed(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb:2")

    def uuids(*args: str) -> list[str]:
        host.simctl("create", "--force", "--board", "a100-80gb:2", *args)
        return [gpu["uuid"] for gpu in host.simctl("show", "--json")["gpus"]]

    assert uuids("--seed", "demo") == uuids("--seed", "demo")
    assert not set(uuids("--seed", "demo")) & set(uuids("--seed", "other"))
    assert uuids() == uuids()
    assert not set(uuids()) & {gpu["uuid"] for gpu in fleet_host("a100-80gb:2").simctl("show", "--json")["gpus"]}


def test_gpu_is_named_by_index_uuid_or_address(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb:2")
    uuid = host.simctl("show", "--json")["gpus"][1]["uuid"]
    for degrees, name in (("41", "1"), ("42", uuid), ("43", "0000:0f:00.0"), ("44", "00000000:0F:00.0"), ("45", "0f:00.0")):
        host.simctl("set", "temperature", degrees, "--gpu", name)
        assert [gpu["temperature"] for gpu in host.simctl("show", "--json")["gpus"]] == [32, int(degrees)]


def test_show_tells_instances_holders_and_what_is_injected(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        uuid = uuid_of(compute(create(enable_mig(), 19, 2, 1)))
        create(gpu(), 9, 4, 4)
    host.simctl("hold", "--gpu", "0", "--gi", "9", "--ci", "0", "--pid", "10", "--name", "vllm")
    host.simctl("fail", "--call", "nvmlDeviceGetName", "--nth", "3", "--error", "timeout")
    host.simctl("kill", "--mutation", "4", "--before")
    text = host.simctl("show")
    for words in (
        "MIG: on; a mode change is immediate",
        "GI 9: 1g.10gb@2",
        f"CI 0: 1g.10gb {uuid} (MIG device 0)",
        "GI 2: 3g.40gb@4 (no compute instance)",
        "held: compute process 10 (vllm, 512 MiB) on GI 9 CI 0",
        "nvmlDeviceGetName fails with TIMEOUT from call 3 on",
        "kill: before 4 more changes",
    ):
        assert words in text
    data = host.simctl("show", "--json")
    assert [(one["gi"], one["profile"], one["start"]) for one in data["gpus"][0]["mig"]["instances"]] == [
        (9, "1g.10gb", 2),
        (2, "3g.40gb", 4),
    ]
    assert data["kill"] == {"mutation": 4, "before": True}


def test_help_names_every_verb_and_field(fleet_host: Hosts) -> None:
    host = fleet_host()
    text = host.simctl("--help")
    verbs = ("create", "show", "hold", "release", "set", "lose", "xid", "reboot", "reset", "log", "fail", "kill")
    assert all(f"    {verb} " in text for verb in verbs)
    assert "permission" in host.simctl("set", "--help")


# ---- nvidia-smi ----


def test_list_has_the_real_form_with_mig_devices(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb", "t4-16gb")
    with nvml_open():
        uuids = [pynvml.nvmlDeviceGetUUID(gpu(index)) for index in (0, 1)]
        first = uuid_of(compute(create(enable_mig(), 9, 0, 4), 2))
        second = uuid_of(compute(create(gpu(), 20, 5, 1)))
    assert smi(host, "-L") == (
        0,
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuids[0]})\n"
        f"  MIG 3g.40gb     Device  0: (UUID: {first})\n"
        f"  MIG 1g.10gb+me  Device  1: (UUID: {second})\n"
        f"GPU 1: Tesla T4 (UUID: {uuids[1]})\n",
    )


def test_query_prints_csv_as_asked(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb", "t4-16gb")
    fields = "--query-gpu=index,gpu_name,memory.total,power.limit,mig.mode.current,compute_cap"
    assert smi(host, fields, "--format=csv") == (
        0,
        "index, gpu_name, memory.total [MiB], power.limit [W], mig.mode.current, compute_cap\n"
        "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 400.00 W, Disabled, 8.0\n"
        "1, Tesla T4, 15360 MiB, 70.00 W, [N/A], 7.5\n",
    )
    uuid = smi(host, "--query-gpu=uuid", "--format=csv,noheader", "-i", "1")[1].strip()
    assert smi(host, fields, "--format=csv,noheader,nounits", "-i", uuid) == (0, "1, Tesla T4, 15360, 70.00, [N/A], 7.5\n")


def test_every_field_of_the_query_has_a_value_on_a_known_board(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    names = [
        "count,driver_version,serial,pci.bus_id,pci.device_id,pci.sub_device_id,pstate,memory.used,memory.free,memory.reserved",
        "temperature.gpu,power.draw,enforced.power.limit,power.default_limit,power.min_limit,power.max_limit,utilization.gpu",
        "utilization.memory,persistence_mode,compute_mode,ecc.mode.current,ecc.mode.pending,mig.mode.pending",
        "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem",
    ]
    code, out = smi(host, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
    values = out.strip().split(", ")
    assert code == 0
    assert len(values) == ",".join(names).count(",") + 1
    assert "[N/A]" not in values
    assert values[:7] == ["1", "580.105.08", values[2], "00000000:07:00.0", "0x233010DE", "0x16C110DE", "P8"]


def test_reset_brings_a_pending_mode_into_effect_on_that_gpu_only(fleet_host: Hosts) -> None:
    host = fleet_host("a100-80gb:2")
    with nvml_open():
        for index in (0, 1):
            pynvml.nvmlDeviceSetMigMode(gpu(index), 1)
    assert smi(host, "-r", "-i", "1") == (0, "GPU 00000000:0F:00.0 was successfully reset.\nAll done.\n")
    with nvml_open():
        assert [pynvml.nvmlDeviceGetMigMode(gpu(index)) for index in (0, 1)] == [[0, 1], [1, 1]]
    record = host.calls(mutations=True)[-1]
    assert (record["call"], record["result"], record["mutation"]) == ("nvidia-smi.reset", "SUCCESS", 3)


@pytest.mark.parametrize(
    ("verbs", "code", "words"),
    [
        (["hold --gpu 0 --pid 3"], 255, "is currently in use by another process"),
        (["set reset off"], 3, "Not Supported"),
        (["set permission denied"], 4, "Insufficient Permissions"),
        (["lose --gpu 0"], 15, "GPU is lost"),
    ],
)
def test_refused_reset_says_why_and_changes_nothing(fleet_host: Hosts, verbs: list[str], code: int, words: str) -> None:
    host = fleet_host("a100-80gb")
    with nvml_open():
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    for verb in verbs:
        host.simctl(*verb.split())
    done, out = smi(host, "-r", "-i", "0")
    assert (done, words in out) == (code, True)
    assert host.simctl("show", "--json")["gpus"][0]["mig"] == {"current": False, "pending": True, "resetless": False, "instances": []}


def test_reset_clears_instances_that_nobody_uses(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        compute(create(enable_mig(), 19))
    assert smi(host, "-r")[0] == 0
    assert host.simctl("show", "--json")["gpus"][0]["mig"]["instances"] == []


def test_time_slice_is_set_and_listed_for_whole_gpus(fleet_host: Hosts) -> None:
    host = fleet_host("l40s-48gb:2")
    assert smi(host, "compute-policy", "-i", "1", "--set-timeslice=2")[0] == 0
    code, out = smi(host, "compute-policy", "-l")
    assert code == 0
    assert [line.split()[1:4] for line in out.splitlines()[4:6]] == [["0", "timeslice", "Default"], ["1", "timeslice", "Medium"]]
    assert smi(host, "compute-policy", "--set-timeslice=4")[0] == 2
    assert smi(host, "compute-policy")[0] == 2
    host.simctl("set", "permission", "denied")
    assert smi(host, "compute-policy", "--set-timeslice=1")[0] == 4


def test_partitioned_gpu_has_no_time_slice(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "mig", "on")
    assert smi(host, "compute-policy", "--set-timeslice=1")[0] == 3


def test_exit_codes_without_driver_gpu_or_sense(fleet_host: Hosts) -> None:
    host = fleet_host("t4-16gb")
    assert smi(host, "-i", "5", "-L")[0] == 6
    assert smi(host, "--frobnicate")[0] == 2
    assert smi(host, "--query-gpu=beauty", "--format=csv") == (2, 'Field "beauty" is not a valid field to query.\n')
    assert smi(host, "--query-gpu=name")[0] == 2
    assert smi(host)[0] == 0
    host.simctl("lose", "--gpu", "0")
    assert smi(host, "-L")[0] == 15
    host.simctl("set", "driver", "absent")
    for args in (["-L"], ["-r"], ["compute-policy", "-l"], []):
        code, out = smi(host, *args)
        assert code == 9
        assert out.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert smi(fleet_host(), "-L") == (6, "No devices were found\n")


def test_tools_run_from_a_copy_anywhere(simulator: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The built directory is carried into virtual machines as it is."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(simulator), str(copy)], check=True)
    env = {**os.environ, "NVML_SIM_STATE": str(tmp_path / "host")}
    env.pop("LD_LIBRARY_PATH", None)
    made = subprocess.run([str(copy / "bin" / "simctl"), "create", "--board", "t4"], env=env, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, "")
    listed = subprocess.run([str(copy / "bin" / "nvidia-smi"), "-L"], env=env, capture_output=True, text=True, check=False)
    assert listed.stdout.startswith("GPU 0: Tesla T4 (UUID: GPU-")


def test_no_permission_setting_lets_only_root_write(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "permission", "root")
    with nvml_open():
        expected = None if os.geteuid() == 0 else "NO_PERMISSION"
        assert refusal(pynvml.nvmlDeviceSetPersistenceMode, gpu(), 1) == expected
