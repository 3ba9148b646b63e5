# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulator as a system's driver: its device nodes, and what a container sees that has only some of them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import textwrap
import typing as t

import pynvml
import pytest
from simulator_system import ALWAYS, Hosts, caps, common, host_with_slices, needs_container, needs_nodes, nodes, paths, run, specification
from simulator_world import compute, create, enable_mig, gpu, nvml_open, refusal


@pytest.fixture
def dev(tmp_path: pathlib.Path) -> pathlib.Path:
    place = tmp_path / "dev"
    place.mkdir()
    return place


# ---- device nodes ----


@needs_nodes
def test_nodes_have_the_numbers_and_modes_of_the_driver(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host = fleet_host("h100-80gb:2")
    host.simctl("set", "device-nodes", str(dev))
    assert nodes(dev) == ALWAYS | {"nvidia0": (195, 0), "nvidia1": (195, 1)}
    modes = {name: stat.S_IMODE((dev / name).stat().st_mode) for name in ("nvidiactl", "nvidia1", *caps(1, 2))}
    assert list(modes.values()) == [0o666, 0o666, 0o400, 0o444]


@needs_nodes
def test_capabilities_have_the_numbers_of_the_drivers_table(fleet_host: Hosts, dev: pathlib.Path) -> None:
    """mig-minors of a real host: gpu0/gi1/access 12, gpu1/gi0/access 138, gpu3/gi3/ci3/access 439, gpu6/gi11/ci7/access 920."""
    host = fleet_host("h100-80gb:7")
    host.simctl("set", "device-nodes", str(dev))
    before = nodes(dev)
    with nvml_open():
        create(enable_mig(0), 9, 0, 4)
        assert nodes(dev).keys() - before.keys() == caps(12).keys()
        compute(create(enable_mig(1), 0), 4)
        assert nodes(dev).keys() - before.keys() == caps(12, 138, 139).keys()
    shown = host.simctl("show", "--json")["gpus"]
    assert [(gpu["mig"]["instances"][0]["gi"], gpu["mig"]["instances"][0]["cap"]) for gpu in shown[:2]] == [(1, 12), (0, 138)]
    with nvml_open():
        # 3 + 135 * 6 + 9 * 11 = 912 is the access to GPU instance 11, which lies at place 4.
        compute(create(enable_mig(6), 19, 4, 1))
    assert caps(912, 913).items() <= nodes(dev).items()


def test_the_table_of_capabilities_says_what_a_real_hosts_does(fleet_host: Hosts) -> None:
    lines = fleet_host("h100-80gb").simctl("minors").splitlines()
    assert lines[:4] == ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]
    seen = {"gpu0/gi1/access 12", "gpu1/gi0/access 138", "gpu3/gi3/ci3/access 439", "gpu6/gi11/ci7/access 920"}
    assert seen <= set(lines)
    assert len(lines) == len({line.split()[-1] for line in lines}) == 2 + 32 * 15 * 9


@needs_nodes
def test_nodes_follow_instances_losses_and_the_driver(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host = fleet_host("h100-80gb:2")
    host.simctl("set", "device-nodes", str(dev))
    full = nodes(dev)
    with nvml_open():
        instance = create(enable_mig(0), 19, 0, 1)
        part = compute(instance)
        assert nodes(dev) == full | caps(66, 67)
        pynvml.nvmlComputeInstanceDestroy(part)
        assert nodes(dev) == full | caps(66)
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert nodes(dev) == full
        compute(create(gpu(0), 19, 0, 1))
    host.simctl("lose", "--gpu", "0")
    assert nodes(dev) == {name: number for name, number in full.items() if name != "nvidia0"}
    with nvml_open():
        assert (pynvml.nvmlDeviceGetCount(), refusal(gpu, 0)) == (2, "GPU_IS_LOST")
    host.simctl("lose", "--gpu", "0", "--recover")
    assert nodes(dev) == full | caps(66, 67)
    host.simctl("set", "minor", "5", "--gpu", "1")
    assert nodes(dev) == {name: number for name, number in full.items() if name != "nvidia1"} | caps(66, 67) | {"nvidia5": (195, 5)}
    host.simctl("set", "minor", "1", "--gpu", "1")
    host.simctl("reboot")
    assert nodes(dev) == full
    host.simctl("set", "driver", "absent")
    assert list(dev.iterdir()) == []
    host.simctl("set", "driver", "present")
    assert nodes(dev) == full
    host.simctl("set", "device-nodes", "off")
    assert list(dev.iterdir()) == []


@needs_nodes
def test_nodes_of_others_stay_and_a_new_place_empties_the_old_one(fleet_host: Hosts, dev: pathlib.Path, tmp_path: pathlib.Path) -> None:
    host = fleet_host("t4-16gb")
    other = tmp_path / "other"
    other.mkdir()
    foreign = {"null": (1, 3), "nvidia-modeset": (195, 254), "nvidia0x": (1, 3)}
    for name, numbers in foreign.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
    (dev / "nvidia7").write_text("a file, and not ours")
    host.simctl("set", "device-nodes", str(dev))
    assert nodes(dev) == foreign | ALWAYS | {"nvidia0": (195, 0)}
    host.simctl("set", "device-nodes", str(other))
    assert nodes(other) == ALWAYS | {"nvidia0": (195, 0)}
    assert nodes(dev) == foreign
    assert (dev / "nvidia7").read_text() == "a file, and not ours"
    host.simctl("create", "--force", "--board", "l40s:2", "--device-nodes", str(dev))
    assert nodes(other) == {}
    assert {"nvidia0", "nvidia1"} <= nodes(dev).keys()


@needs_nodes
def test_a_writer_that_dies_leaves_its_nodes_to_the_next_call(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host = fleet_host("h100-80gb")
    host.simctl("set", "device-nodes", str(dev))
    host.simctl("set", "mig", "on")
    full = nodes(dev)
    host.simctl("kill", "--mutation", "1")
    script = "import pynvml as p; p.nvmlInit(); p.nvmlDeviceCreateGpuInstance(p.nvmlDeviceGetHandleByIndex(0), 19)"
    died = subprocess.run([sys.executable, "-c", script], env=host.env, check=False)
    assert died.returncode == -9
    assert nodes(dev) == full
    with nvml_open():
        made = nodes(dev).keys() - full.keys()
    assert len(made) == 1


@pytest.mark.parametrize("value", ["relative", "/nowhere/dev", "x" * 300, "/" + "x" * 300, ""])
def test_a_place_that_is_none_is_refused(fleet_host: Hosts, value: str) -> None:
    host = fleet_host("t4-16gb")
    before = host.simctl("show", "--json")
    code, _out, err = run(host, "simctl", "set", "device-nodes", value)
    assert (code, err.count("\n")) == (2, 1)
    assert "give on, off, or the absolute path of a directory" in err
    assert host.simctl("show", "--json") == before


@needs_nodes
def test_nodes_that_may_not_be_made_are_an_error_and_change_nothing(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host = fleet_host("t4-16gb:2")
    without = ["setpriv", "--bounding-set=-mknod"]
    if run(host, *without, "true")[0]:
        pytest.skip("setpriv cannot take the right to make nodes away here")
    code, _out, err = run(host, *without, "simctl", "set", "device-nodes", str(dev))
    assert (code, err) == (2, f"simctl: cannot make device nodes in {dev}: Operation not permitted\n")
    assert list(dev.iterdir()) == []
    assert host.simctl("show", "--json")["device_nodes"] is None
    # Later on, what one process may not do is shown, and done by the next one that may.
    host.simctl("set", "device-nodes", str(dev))
    assert run(host, *without, "simctl", "set", "minor", "9", "--gpu", "1")[0] == 0
    assert f"device nodes in {dev}, not up to date: Operation not permitted" in run(host, *without, "simctl", "show")[1]
    assert "nvidia9" not in nodes(dev)
    assert f"device nodes in {dev}\n" in host.simctl("show")
    assert "nvidia9" in nodes(dev)


def test_a_host_beyond_the_drivers_table_gets_no_nodes(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host = fleet_host("t4-16gb")
    host.simctl("set", "minor", "32")
    code, _out, err = run(host, "simctl", "set", "device-nodes", str(dev))
    assert code == 2
    assert "ends at 32 GPUs (by minor), 15 GPU instances and 8 compute instances" in err
    assert list(dev.iterdir()) == []


# ---- inside a container ----

PROBE = """
import json, sys
import pynvml as p

def refused(function, *args):
    try:
        function(*args)
    except p.NVMLError as error:
        return type(error).__name__.removeprefix("NVMLError_")
    return "SUCCESS"

seen = {"init": refused(p.nvmlInit)}
if seen["init"] == "SUCCESS":
    seen["gpus"] = [p.nvmlDeviceGetUUID(p.nvmlDeviceGetHandleByIndex(n)) for n in range(p.nvmlDeviceGetCount())]
    seen["beyond"] = refused(p.nvmlDeviceGetHandleByIndex, len(seen["gpus"]))
    seen["asked"] = {uuid: refused(p.nvmlDeviceGetHandleByUUID, uuid) for uuid in sys.argv[1:]}
    seen["slices"], seen["indices"] = [], []
    for n in range(len(seen["gpus"])):
        handle = p.nvmlDeviceGetHandleByIndex(n)
        for slot in range(p.nvmlDeviceGetMaxMigDeviceCount(handle)):
            if refused(p.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot) == "SUCCESS":
                part = p.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                seen["slices"].append(p.nvmlDeviceGetUUID(part))
                seen["indices"].append([slot, p.nvmlDeviceGetIndex(part)])
    if seen["gpus"]:
        seen["write"] = refused(p.nvmlDeviceSetPersistenceMode, p.nvmlDeviceGetHandleByIndex(0), 1)
print(json.dumps(seen))
"""


def contained(host: t.Any, dev: pathlib.Path, present: list[str], *uuids: str, state_mode: str = "ro") -> dict[str, t.Any]:
    """What a process sees whose mounts are those of a container: only some of the host's nodes, the state at its usual place."""
    view = dev.parent / "view"
    shutil.rmtree(view, ignore_errors=True)
    for path in present:
        place = view / pathlib.Path(path).relative_to(dev)
        place.parent.mkdir(parents=True, exist_ok=True)
        numbers = pathlib.Path(path).stat()
        os.mknod(place, numbers.st_mode, numbers.st_rdev)
    view.mkdir(exist_ok=True)
    script = f"""
        set -e
        mount -t tmpfs none /var/lib
        mkdir /var/lib/nvmlsim
        mount --bind '{host.state}' /var/lib/nvmlsim
        mount -o remount,bind,{state_mode} /var/lib/nvmlsim
        mount --bind '{view}' '{dev}'
        exec '{sys.executable}' - {" ".join(uuids)}
    """
    env = {name: value for name, value in host.env.items() if name != "NVML_SIM_STATE" and not name.startswith("COVERAGE")}
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=env, input=PROBE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return t.cast("dict[str, t.Any]", json.loads(done.stdout))


@needs_container
def test_a_container_sees_its_slice_and_no_other(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host, (small, large) = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    with nvml_open():
        first, second = (pynvml.nvmlDeviceGetUUID(gpu(index)) for index in (0, 1))
    for mine, other in ((small, large), (large, small)):
        seen = contained(host, dev, common(spec) + paths(spec, mine), mine, other, first, second)
        assert seen["gpus"] == [second]
        assert seen["slices"] == [mine]
        assert seen["indices"] == [[0, 0]]
        assert seen["asked"] == {mine: "SUCCESS", other: "NotFound", first: "NotFound", second: "SUCCESS"}
        assert seen["beyond"] == "InvalidArgument"
        assert seen["write"] == "NoPermission"


@needs_container
def test_a_container_sees_the_gpu_that_it_was_given(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host, slices = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    with nvml_open():
        first = pynvml.nvmlDeviceGetUUID(gpu(0))
    seen = contained(host, dev, common(spec) + paths(spec, "0"), *slices)
    assert (seen["gpus"], seen["slices"], set(seen["asked"].values())) == ([first], [], {"NotFound"})
    everything = contained(host, dev, common(spec) + paths(spec, "all"), *slices)
    assert (everything["slices"], len(everything["gpus"])) == (slices, 2)


@needs_container
def test_half_of_a_slices_nodes_is_no_slice_and_no_control_node_is_no_driver(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host, (small, _large) = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    access, part, parent = paths(spec, small)
    for present in ([access, parent], [part, parent]):
        assert contained(host, dev, common(spec) + present, small)["asked"] == {small: "NotFound"}
    assert contained(host, dev, [*common(spec), access, part], small)["gpus"] == []
    assert contained(host, dev, [access, part, parent], small) == {"init": "DriverNotLoaded"}


@needs_container
def test_a_container_neither_makes_nodes_nor_logs(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host, (small, _large) = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    before, calls = nodes(dev), host.calls()
    present = common(spec) + paths(spec, small)
    contained(host, dev, present, small)
    assert (nodes(dev), host.calls()) == (before, calls)
    # Also with a state that it may write: a change in there makes nodes on the host, with the next call there.
    assert contained(host, dev, present, small, state_mode="rw")["write"] == "SUCCESS"
    assert nodes(dev.parent / "view").keys() == {str(pathlib.Path(path).relative_to(dev)) for path in present}
    assert host.simctl("show", "--json")["gpus"][1]["persistence"]


@needs_container
def test_a_slice_that_vanishes_vanishes_in_the_container(fleet_host: Hosts, dev: pathlib.Path) -> None:
    host, (small, large) = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    present = common(spec) + paths(spec, small)
    with nvml_open():
        handle = pynvml.nvmlDeviceGetHandleByUUID(small)
        instance = pynvml.nvmlDeviceGetGpuInstanceById(gpu(1), pynvml.nvmlDeviceGetGpuInstanceId(handle))
        pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
        assert refusal(pynvml.nvmlDeviceGetHandleByUUID, large) is None
    kept = [path for path in present if pathlib.Path(path).exists()]
    assert len(kept) == len(present) - 1
    assert contained(host, dev, kept, small)["asked"] == {small: "NotFound"}
