# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated world under stress: many processes, deaths at every change, faults, the call log, and a client that nobody here wrote."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import typing as t

import pynvml
import pytest
from simulator_world import compute, create, enable_mig, gpu, nvml_open, refusal, uuid_of

Hosts = t.Callable[..., t.Any]
SECONDS = float(os.environ.get("SIM_STRESS_SECONDS", "5"))
WORKERS = 8
SIZES = {19: 1, 20: 1, 15: 2, 14: 2, 9: 4, 5: 4, 0: 8}
SLICES = {19: 1, 20: 1, 15: 1, 14: 2, 9: 3, 5: 4, 0: 7}


# ---- eight processes at once ----

WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_simulator_world import work
print(work(int(sys.argv[2]), float(sys.argv[3])))
"""


def attempt(choose: random.Random, handle: t.Any) -> int:
    """One random act; 1 when it changed something."""
    profile = choose.choice([19, 19, 19, 15, 14, 9, 5, 20, 0])
    act = choose.random()
    if act < 0.35:
        start = choose.randrange(8) if choose.random() < 0.5 else None
        return int(refusal(create, handle, profile, start, SIZES[profile]) is None)
    try:
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle, choose.randrange(14))
        if act < 0.6:
            return int(refusal(compute, instance, choose.choice([0, 0, 1, 2, 7])) is None)
        part = refusal(pynvml.nvmlGpuInstanceGetComputeInstanceById, instance, choose.randrange(3))
        if part is None:
            found = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
            return int(refusal(pynvml.nvmlComputeInstanceDestroy, found) is None)
        return int(refusal(pynvml.nvmlGpuInstanceDestroy, instance) is None)
    except pynvml.NVMLError:
        return 0  # another process was faster


def work(seed: int, seconds: float) -> int:
    """Acts at random until the time is over; how many acts changed something."""
    choose = random.Random(seed)
    changes = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with nvml_open():
            for _ignored in range(40):
                changes += attempt(choose, gpu(choose.randrange(2)))
                time.sleep(0.0005)  # two cores serve eight workers and whoever else tests
    return changes


class Replay:
    """What must be true of a host, followed through nothing but the log."""

    def __init__(self) -> None:
        self.instances: dict[tuple[str, int], tuple[str, int, int]] = {}
        self.parts: dict[tuple[str, int, int], tuple[str, int, int]] = {}

    def take(self, record: dict[str, t.Any]) -> None:
        call, args, out = record["call"], record["args"], record["out"]
        here = args["gpu"]
        if call.startswith("nvmlDeviceCreateGpuInstance"):
            new = (out["profile"], out["start"], out["size"])
            for (uuid, number), (_profile, start, size) in self.instances.items():
                assert uuid != here or number != out["gi"], "an id was given twice"
                assert uuid != here or start + size <= new[1] or new[1] + new[2] <= start, "two instances overlap"
            self.instances[here, out["gi"]] = new
            slices = sum(int(profile.split("g.")[0]) for (uuid, _gi), (profile, _s, _z) in self.instances.items() if uuid == here)
            assert slices <= 7, "more compute slices than the board has"
        elif call == "nvmlGpuInstanceDestroy":
            assert not [key for key in self.parts if key[:2] == (here, args["gi"])], "destroyed under a compute instance"
            assert self.instances.pop((here, args["gi"])) == (out["profile"], out["start"], out["size"])
        elif call == "nvmlGpuInstanceCreateComputeInstance":
            assert (here, args["gi"]) in self.instances
            for (uuid, number, part), (mig_uuid, start, size) in self.parts.items():
                assert mig_uuid != out["uuid"], "two slices bear one UUID"
                if (uuid, number) == (here, args["gi"]):
                    assert part != out["ci"]
                    assert start + size <= out["start"] or out["start"] + out["size"] <= start
            self.parts[here, args["gi"], out["ci"]] = (out["uuid"], out["start"], out["size"])
        elif call == "nvmlComputeInstanceDestroy":
            assert self.parts.pop((here, args["gi"], args["ci"]))[0] == out["uuid"]
        else:
            pytest.fail(f"unexpected change: {record}")


def test_eight_processes_at_random_lose_overlap_and_leak_nothing(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb:2")
    host.simctl("set", "mig", "on")
    command = [sys.executable, "-c", WORKER, str(pathlib.Path(__file__).parent)]
    workers = [
        subprocess.Popen([*command, str(number), str(SECONDS)], env=host.env, stdout=subprocess.PIPE, text=True)
        for number in range(WORKERS)
    ]
    claimed = 0
    for worker in workers:
        out, _err = worker.communicate(timeout=SECONDS + 60)
        assert worker.returncode == 0
        claimed += int(out)
    log = host.calls()
    assert [record["seq"] for record in log] == list(range(log[0]["seq"], log[0]["seq"] + len(log))), "a call is missing in the log"
    changes = [record for record in log if record["mutation"] is not None]
    assert [record["mutation"] for record in changes] == list(range(1, claimed + 1)), "a change was lost or not logged"
    assert claimed > 20 * SECONDS, "too little happened to prove anything"
    assert len({record["pid"] for record in changes}) == WORKERS
    assert {record["call"] for record in changes} >= {
        "nvmlDeviceCreateGpuInstance",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceDestroy",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceDestroy",
    }
    world = Replay()
    for record in changes:
        world.take(record)
    left = host.simctl("show", "--json")
    seen = {
        (one["uuid"], item["gi"]): (item["profile"], item["start"], item["size"])
        for one in left["gpus"]
        for item in one["mig"]["instances"]
    }
    assert seen == world.instances
    parts = {
        (one["uuid"], item["gi"], part["id"]): part["uuid"]
        for one in left["gpus"]
        for item in one["mig"]["instances"]
        for part in item["ci"]
    }
    assert parts == {key: value[0] for key, value in world.parts.items()}


def test_forked_child_and_its_parent_do_not_share_a_lock(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        handle = enable_mig()
        child = os.fork()
        if child == 0:
            for _ignored in range(150):
                refusal(create, handle, 19)
                for number in range(7, 14):
                    if refusal(pynvml.nvmlDeviceGetGpuInstanceById, handle, number) is None:
                        refusal(pynvml.nvmlGpuInstanceDestroy, pynvml.nvmlDeviceGetGpuInstanceById(handle, number))
            os._exit(0)
        for _ignored in range(300):
            refusal(create, handle, 19)
        assert os.waitpid(child, 0)[1] == 0
    records = host.calls(mutations=True)
    assert [record["mutation"] for record in records] == list(range(1, len(records) + 1))
    world = Replay()
    for record in records[1:]:
        world.take(record)


# ---- death at every change ----


def scenario() -> None:
    handle = gpu()
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    first = create(handle, 9, 0, 4)
    part = compute(first, 2)
    create(handle, 19, 4, 1)
    pynvml.nvmlComputeInstanceDestroy(part)
    pynvml.nvmlGpuInstanceDestroy(first)


STEPS = [
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
]
# Profiles that exist, and MIG devices, after so many steps.
WORLDS = [([], 0), ([], 0), (["3g.40gb"], 0), (["3g.40gb"], 1), (["3g.40gb", "1g.10gb"], 1), (["3g.40gb", "1g.10gb"], 0), (["1g.10gb"], 0)]


def run_and_die() -> int:
    """Runs the scenario in a child; the signal that ended it, 0 when nothing did."""
    child = os.fork()
    if child == 0:
        try:
            with nvml_open():
                scenario()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("before", [False, True], ids=["right-after", "right-before"])
def test_death_at_any_change_leaves_the_old_or_the_new_state_and_its_record(fleet_host: Hosts, before: bool) -> None:
    host = fleet_host("h100-80gb")
    fresh = host.state.parent / "fresh"
    shutil.copytree(host.state, fresh)
    for number in range(1, len(STEPS) + 1):
        shutil.rmtree(host.state)
        shutil.copytree(fresh, host.state)
        host.simctl("kill", "--mutation", str(number), *(["--before"] if before else []))
        assert run_and_die() == -signal.SIGKILL
        done = number - 1 if before else number
        assert [record["call"] for record in host.calls(mutations=True)] == STEPS[:done]
        mig = host.simctl("show", "--json")["gpus"][0]["mig"]
        assert mig["current"] == (done > 0)
        profiles = [one["profile"] for one in mig["instances"]]
        assert (profiles, sum(len(one["ci"]) for one in mig["instances"])) == WORLDS[done]
        with nvml_open():  # nobody is left waiting for the dead one's lock, and the next change follows on
            create(enable_mig(), 20)
        assert [record["mutation"] for record in host.calls(mutations=True)] == list(range(1, max(done, 1) + 2))


def test_record_cut_off_by_a_death_is_written_again_whole(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("kill", "--mutation", "2")
    run_and_die()
    log = host.state / "calls.log"
    text = log.read_text(encoding="utf-8")
    assert '"mutation": 1}' in text
    assert '"mutation": 2}' not in text
    log.write_text(text + '{"seq": 99, "pid": 1, "call": "nvmlDev', encoding="utf-8")
    assert [record["mutation"] for record in host.calls(mutations=True)] == [1, 2]
    assert "nvmlDev\n" not in log.read_text(encoding="utf-8")


def test_simctls_own_changes_neither_count_as_mutations_nor_die(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("kill", "--mutation", "1")
    host.simctl("set", "mig", "on")
    host.simctl("hold", "--gpu", "0", "--pid", "9")
    assert host.calls(mutations=True) == []
    assert [record["call"] for record in host.calls()] == ["simctl.kill", "simctl.set-gpu", "simctl.hold"]
    host.simctl("kill", "--clear")
    host.simctl("release", "--pid", "9")
    assert run_and_die() == 0


# ---- faults ----


def test_fault_hits_the_nth_call_and_so_many_after_it(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("fail", "--call", "nvmlDeviceGetPowerUsage", "--nth", "2", "--error", "TIMEOUT", "--times", "2")
    with nvml_open():
        assert [refusal(pynvml.nvmlDeviceGetPowerUsage, gpu()) for _ignored in range(5)] == [None, "TIMEOUT", "TIMEOUT", None, None]


def test_fault_always_lasts_until_it_is_cleared(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstance", "--error", "NVML_ERROR_INSUFFICIENT_RESOURCES", "--always")
    host.simctl("fail", "--call", "nvmlDeviceGetCount", "--error", "UNKNOWN", "--always")
    with nvml_open():
        handle = enable_mig()
        assert [refusal(create, handle, 19) for _ignored in range(3)] == ["INSUFFICIENT_RESOURCES"] * 3
        assert refusal(pynvml.nvmlDeviceGetCount) == "UNKNOWN"  # pynvml calls nvmlDeviceGetCount_v2
    assert host.simctl("show", "--json")["gpus"][0]["mig"]["instances"] == []
    host.simctl("fail", "--clear", "--call", "nvmlDeviceCreateGpuInstance")
    with nvml_open():
        create(gpu(), 19)
        assert refusal(pynvml.nvmlDeviceGetCount) == "UNKNOWN"
    host.simctl("fail", "--clear")
    with nvml_open():
        assert pynvml.nvmlDeviceGetCount() == 1


def test_a_late_fault_does_the_work_and_says_that_it_failed(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstance", "--error", "TIMEOUT", "--after")
    with nvml_open():
        handle = enable_mig()
        assert [refusal(create, handle, 19) for _ignored in range(2)] == ["TIMEOUT", None]
    assert len(host.simctl("show", "--json")["gpus"][0]["mig"]["instances"]) == 2
    made = [one for one in host.calls(mutations=True) if one["call"] == "nvmlDeviceCreateGpuInstance"]
    assert [(one["result"], one["mutation"]) for one in made] == [("TIMEOUT", 2), ("SUCCESS", 3)]


def test_init_can_fail_and_be_tried_again(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("fail", "--call", "nvmlInit", "--error", "NO_PERMISSION")
    assert refusal(pynvml.nvmlInit) == "NO_PERMISSION"
    with nvml_open():
        assert pynvml.nvmlDeviceGetCount() == 1


# ---- log ----


def test_log_holds_every_call_with_arguments_and_result_in_order(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        uuid = pynvml.nvmlDeviceGetUUID(gpu())
        refusal(create, gpu(), 19)
        pynvml.nvmlDeviceSetMigMode(gpu(), 1)
        mig_uuid = uuid_of(compute(create(gpu(), 19, 2, 1)))
    log = host.calls()
    assert [record["seq"] for record in log] == list(range(1, len(log) + 1))
    assert {record["pid"] for record in log} == {os.getpid()}
    assert log[0]["call"] == "nvmlInitWithFlags"
    assert log[-1]["call"] == "nvmlShutdown"
    failed = next(record for record in log if record["call"] == "nvmlDeviceCreateGpuInstance")
    assert (failed["args"], failed["result"], failed["mutation"]) == ({"gpu": uuid, "id": 19}, "NOT_SUPPORTED", None)
    changes = host.calls(mutations=True)
    assert [(record["call"], record["mutation"]) for record in changes] == [(name, number) for number, name in enumerate(STEPS[:3], 1)]
    assert changes[0]["out"] == {"activation": "SUCCESS", "current": 1, "pending": 1}
    assert changes[1]["args"] == {"gpu": uuid, "id": 19, "start": 2, "size": 1}
    assert changes[1]["out"] == {"gi": 9, "profile": "1g.10gb", "start": 2, "size": 1}
    assert changes[2]["out"]["uuid"] == mig_uuid
    assert "[change 2]" in host.simctl("log", "--mutations")


def test_log_is_switched_off_and_emptied_only_by_simctl(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "log", "off")
    with nvml_open():
        enable_mig()
    assert "SetMigMode" not in str(host.calls())
    host.simctl("set", "log", "on")
    with nvml_open():
        create(gpu(), 19)
    assert [record["mutation"] for record in host.calls(mutations=True)] == [2]
    host.simctl("log", "--clear")
    assert host.calls() == []


def test_writing_what_is_there_already_is_no_change(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb")
    with nvml_open():
        for _ignored in range(2):
            pynvml.nvmlDeviceSetMigMode(gpu(), 1)
            pynvml.nvmlDeviceSetPersistenceMode(gpu(), 1)
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300000)
    assert len(host.calls(mutations=True)) == 3


def test_reads_are_cheap(fleet_host: Hosts) -> None:
    fleet_host("h100-80gb:8")
    with nvml_open():
        handle = gpu(7)
        started = time.process_time()
        for _ignored in range(3000):
            pynvml.nvmlDeviceGetPowerUsage(handle)
        assert time.process_time() - started < 1.0


# ---- every client ----


def test_every_function_that_pynvml_calls_exists(simulator: pathlib.Path, fleet_host: Hosts) -> None:
    library = ctypes.CDLL(str(simulator / "libnvidia-ml.so.1"))
    text = pathlib.Path(str(pynvml.__file__)).read_text(encoding="utf-8")
    called = set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", text))
    assert len(called) > 380
    assert [name for name in sorted(called) if not hasattr(library, name)] == []
    fleet_host("h100-80gb")
    with nvml_open():
        assert refusal(pynvml.nvmlDeviceGetGspFirmwareVersion, gpu()) == "NOT_SUPPORTED"
        assert refusal(pynvml.nvmlDeviceGetNvLinkState, gpu(), 0) == "NOT_SUPPORTED"


def test_table_of_unsupported_functions_is_what_its_generator_writes() -> None:
    folder = pathlib.Path(__file__).resolve().parents[1] / "simulator"
    spec = importlib.util.spec_from_file_location("gen_unsupported", folder / "gen_unsupported.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (folder / "src" / "nvml_unsupported.c").read_text(encoding="utf-8") == module.content()


def test_error_texts_are_those_that_pynvml_knows(simulator: pathlib.Path) -> None:
    library = ctypes.CDLL(str(simulator / "libnvidia-ml.so.1"))
    library.nvmlErrorString.restype = ctypes.c_char_p
    codes = {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    texts = {code: library.nvmlErrorString(code).decode() for code in codes}
    assert len(set(texts.values())) == len(codes)
    assert texts[pynvml.NVML_ERROR_DRIVER_NOT_LOADED] == "Driver Not Loaded"
    assert texts[pynvml.NVML_ERROR_IN_USE] == "In use by another client"
    assert library.nvmlErrorString(4711).decode() == "Unknown Error"


def test_nvitop_lists_boards_mig_devices_and_processes(fleet_host: Hosts) -> None:
    host = fleet_host("h100-80gb", "l40s-48gb", "a100-40gb")
    with nvml_open():
        compute(create(enable_mig(), 9, 0, 4), 2)
        compute(create(gpu(), 19, 4, 1))
    host.simctl("hold", "--gpu", "0", "--gi", "1", "--ci", "0", "--pid", str(os.getpid()), "--memory", "1000")
    nvitop = pathlib.Path(sys.executable).parent / "nvitop"
    done = subprocess.run([str(nvitop), "-1", "--ascii"], env=host.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("H100 80GB HBM3", "L40S", "A100-SXM4-40GB", "3g.40gb @ GI/CI: 1/0", "1g.10gb @ GI/CI:11/0", "1000MiB / 39.50GiB"):
        assert words in done.stdout
    assert re.search(rf"0:0 +{os.getpid()} +C", done.stdout)
