# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a virtual machine of the simulator: nvidia-ctk, the installed files, the reboot with the machine."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys

import pynvml
import pytest
import yaml
from simulator_system import (
    ALWAYS,
    Hosts,
    caps,
    common,
    ctk,
    host_with_slices,
    needs_container,
    needs_nodes,
    nodes,
    paths,
    run,
    specification,
)
from simulator_world import create, enable_mig, gpu, nvml_open

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Names as the CDI specification's grammar has them: letters, digits, `_`, `-`, `.`, `:`, alphanumeric at both ends.
CDI_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


@pytest.fixture
def dev(tmp_path: pathlib.Path) -> pathlib.Path:
    place = tmp_path / "dev"
    place.mkdir()
    return place


# ---- nvidia-ctk ----


def test_specification_names_whole_gpus_and_slices_by_index_and_uuid(fleet_host: Hosts) -> None:
    host, slices = host_with_slices(fleet_host)
    with nvml_open():
        first = pynvml.nvmlDeviceGetUUID(gpu(0))
    spec = specification(host)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "nvidia.com/gpu")
    assert [device["name"] for device in spec["devices"]] == ["0", first, "1:1", slices[0], "1:2", slices[1], "all"]
    assert paths(spec, "0") == paths(spec, first) == ["/dev/nvidia0"]
    # GPU 1, GPU instance 8 (3 + 135 + 72 = 210) and 2 (3 + 135 + 18 = 156).
    caps_of = {"1:1": (210, 211), "1:2": (156, 157)}
    for name, uuid in zip(("1:1", "1:2"), slices, strict=True):
        expected = [*(f"/dev/nvidia-caps/nvidia-cap{number}" for number in caps_of[name]), "/dev/nvidia1"]
        assert paths(spec, name) == paths(spec, uuid) == expected
    assert paths(spec, "all") == sorted({path for name in ("0", "1:1", "1:2") for path in paths(spec, name)})
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert common(spec) == ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"]
    library = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
    assert mounts == {library: mounts[library], "/var/lib/nvmlsim": str(host.state.resolve())}
    assert pathlib.Path(mounts[library]).samefile(REPOSITORY / "build" / "simulator" / "libnvidia-ml.so.1")
    assert all(mount["options"][0] == "ro" for mount in spec["containerEdits"]["mounts"])


@pytest.mark.parametrize("strategies", [[], ["index"], ["uuid"], ["type-index"], ["index", "uuid", "type-index"], ["index,uuid"]])
def test_specification_is_valid_for_every_naming(fleet_host: Hosts, strategies: list[str]) -> None:
    host, _slices = host_with_slices(fleet_host, "a30:1", "h100-80gb:1")
    spec = specification(host, *(f"--device-name-strategy={name}" for name in strategies))
    names = [device["name"] for device in spec["devices"]]
    assert len(names) == len(set(names))
    assert all(CDI_NAME.fullmatch(name) for name in names)
    assert all(device["containerEdits"]["deviceNodes"] for device in spec["devices"])
    assert ("gpu0" in names, "mig1:2" in names) == (("type-index" in strategies),) * 2
    assert spec.keys() == {"cdiVersion", "kind", "devices", "containerEdits"}


@needs_nodes
def test_every_path_of_the_specification_is_a_node_that_the_library_made(fleet_host: Hosts, dev: pathlib.Path) -> None:
    """Two places compute the capability numbers: the library that makes the nodes and the program that names them."""
    host, _slices = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    spec = specification(host)
    named = {str(pathlib.Path(path).relative_to(dev)) for path in [*common(spec), *paths(spec, "all")]}
    # Not handed out: the two that let their holder manage or watch, and a GPU instance that has no compute instance.
    assert nodes(dev).keys() - named == {*caps(1, 2), *caps(3 + 135 + 9 * 7)}
    assert named <= nodes(dev).keys()


def test_output_is_written_whole_with_its_directory_and_format(fleet_host: Hosts, tmp_path: pathlib.Path) -> None:
    host = fleet_host("t4-16gb:2")
    wanted = specification(host)
    for asked, written, options in (
        ("cdi/nvidia.yaml", "cdi/nvidia.yaml", []),
        ("cdi/nvidia.json", "cdi/nvidia.json", []),
        ("cdi/short.yml", "cdi/short.yaml", []),
        ("cdi/bare", "cdi/bare.yaml", []),
        ("cdi/other", "cdi/other.json", ["--format", "JSON"]),
    ):
        code, out, err = ctk(host, "cdi", "generate", f"--output={tmp_path / asked}", *options)
        assert (code, out) == (0, "")
        assert err.count("level=info") == err.count("\n") - err.count("level=warning")
        text = (tmp_path / written).read_text()
        assert (json.loads if written.endswith("json") else yaml.safe_load)(text) == wanted
        assert stat.S_IMODE((tmp_path / written).stat().st_mode) == 0o644
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == [
        "bare.yaml",
        "nvidia.json",
        "nvidia.yaml",
        "other.json",
        "short.yaml",
    ]


@pytest.mark.parametrize(
    ("verbs", "args", "words"),
    [
        ([["set", "driver", "absent"]], [], "failed to initialize NVML: Driver Not Loaded"),
        ([["lose", "--gpu", "1"]], [], "error getting device handle for index '1': GPU is lost"),
        ([["set", "mig", "on"]], [], "invalid device, empty device edits"),
        ([], ["--device-name-strategy=colour"], "invalid device name strategy: colour"),
        ([], ["--format=xml"], "invalid choice: 'xml'"),
        ([], ["--mode=wsl"], "invalid choice: 'wsl'"),
        ([], ["--output=/proc/nothing/nvidia.yaml"], "cannot write /proc/nothing/nvidia.yaml"),
        ([], ["--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_failure_is_one_line_and_exit_1(fleet_host: Hosts, verbs: list[list[str]], args: list[str], words: str) -> None:
    host = fleet_host("h100-80gb:2")
    for verb in verbs:
        host.simctl(*verb)
    code, out, err = ctk(host, "--quiet", "cdi", "generate", *args)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "level=error" in err
    assert words in err


def test_failure_leaves_the_old_file(fleet_host: Hosts, tmp_path: pathlib.Path) -> None:
    host = fleet_host("h100-80gb")
    file = tmp_path / "nvidia.yaml"
    assert ctk(host, "cdi", "generate", f"--output={file}")[0] == 0
    before = file.read_text()
    host.simctl("set", "driver", "absent")
    assert ctk(host, "cdi", "generate", f"--output={file}")[0] == 1
    assert file.read_text() == before


def test_options_that_tell_the_real_program_where_things_are_change_nothing(fleet_host: Hosts) -> None:
    host = fleet_host("t4-16gb")
    ignored = ["--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", "--driver-root", "/", "--library-search-path=/a", "--mode=nvml"]
    assert specification(host, *ignored) == specification(host)
    assert specification(host, "--vendor=example.org", "--class=card")["kind"] == "example.org/card"


def test_list_prints_full_names_and_tells_of_a_file_that_is_none(fleet_host: Hosts, tmp_path: pathlib.Path) -> None:
    host = fleet_host("t4-16gb")
    assert ctk(host, "cdi", "generate", f"--output={tmp_path / 'nvidia.yaml'}")[0] == 0
    (tmp_path / "broken.yaml").write_text("devices: {")
    (tmp_path / "other.json").write_text('{"kind": "example.org/disk", "devices": [{"name": "a"}]}')
    uuid = host.simctl("show", "--json")["gpus"][0]["uuid"]
    code, out, err = ctk(host, "cdi", "list", f"--spec-dir={tmp_path}", "--spec-dir=/nowhere")
    assert (code, out.splitlines()) == (
        0,
        ["example.org/disk=a", "nvidia.com/gpu=0", f"nvidia.com/gpu={uuid}", "nvidia.com/gpu=all"],
    )
    assert "broken.yaml: no YAML" in err
    assert "Found 4 CDI devices" in err
    assert ctk(host, "cdi", "list", "--spec-dir=/nowhere")[:2] == (0, "")


def test_version_has_the_form_of_the_real_program(fleet_host: Hosts) -> None:
    code, out, err = ctk(fleet_host(), "--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"NVIDIA Container Toolkit CLI version \d+\.\d+\.\d+\ncommit: \w+\n", out)


# ---- the machine's boots ----


def test_machines_boot_reboots_the_gpus_once(fleet_host: Hosts) -> None:
    host, slices = host_with_slices(fleet_host)

    def instances() -> int:
        return len(host.simctl("show", "--json")["gpus"][1]["mig"]["instances"])

    made = instances()
    assert made == len(slices) + 1
    host.simctl("reboot", "--with-machine")  # the boot in which the host was made
    assert instances() == made
    host.simctl("reboot", "--with-machine", "--boot-id", "0b-1")
    assert (instances(), host.simctl("show", "--json")["boots"]) == (0, 1)
    with nvml_open():
        create(enable_mig(1), 19)
    host.simctl("reboot", "--with-machine", "--boot-id", "0b-1")
    assert (instances(), host.simctl("show", "--json")["boots"]) == (1, 1)
    host.simctl("reboot", "--with-machine")
    assert (instances(), host.simctl("show", "--json")["boots"]) == (0, 2)


def test_boot_id_is_checked(fleet_host: Hosts) -> None:
    host = fleet_host()
    assert run(host, "simctl", "reboot", "--boot-id", "abc")[::2] == (2, "simctl: --boot-id goes with --with-machine; add it\n")
    assert run(host, "simctl", "reboot", "--with-machine", "--boot-id", "A B")[0] == 2


@needs_nodes
def test_machines_boot_makes_the_nodes_again_in_a_new_dev(fleet_host: Hosts, dev: pathlib.Path) -> None:
    """A machine comes up with an empty /dev that is another one than before."""
    host, _slices = host_with_slices(fleet_host)
    host.simctl("set", "device-nodes", str(dev))
    dev.rename(dev.parent / "dev-of-the-last-boot")
    dev.mkdir()
    host.simctl("reboot", "--with-machine", "--boot-id", "2")
    assert nodes(dev) == ALWAYS | {"nvidia0": (195, 0), "nvidia1": (195, 1)}
    with nvml_open():
        create(enable_mig(1), 9, 0, 4)
    assert caps(3 + 135 + 9 * 1).items() <= nodes(dev).items()


# ---- installed ----


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, simulator: pathlib.Path) -> pathlib.Path:
    """A system's root with the simulator in it. What `make simulator` built is only copied, the tools are written for this Python."""
    root, out = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("out")
    shutil.copytree(simulator, out, dirs_exist_ok=True)
    made = subprocess.run(
        [
            "make",
            "-s",
            "-C",
            str(REPOSITORY / "tests" / "simulator"),
            "install",
            f"DESTDIR={root}",
            f"OUT={out}",
            f"PYTHON={sys.executable}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return root


def test_installed_files_lie_where_a_system_has_them(installed: pathlib.Path) -> None:
    modes = {
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": 0o644,
        "usr/bin/simctl": 0o755,
        "usr/bin/nvidia-smi": 0o755,
        "usr/bin/nvidia-ctk": 0o755,
        "usr/lib/nvmlsim/nvmlsim/simctl.py": 0o644,
        "usr/lib/nvmlsim/boards/a100-80gb.yml": 0o644,
        "usr/lib/systemd/system/nvmlsim-boot.service": 0o644,
        "var/lib/nvmlsim": 0o755,
    }
    assert {name: stat.S_IMODE((installed / name).stat().st_mode) for name in modes} == modes
    text = (installed / "usr/bin/simctl").read_text()
    assert text.startswith(f"#!{sys.executable}\n")
    assert str(REPOSITORY) not in text.replace(sys.executable, "")


def test_installed_unit_is_enabled_and_early(installed: pathlib.Path) -> None:
    units = installed / "usr/lib/systemd/system"
    link = units / "sysinit.target.wants/nvmlsim-boot.service"
    assert link.resolve() == units / "nvmlsim-boot.service"
    lines = (units / "nvmlsim-boot.service").read_text().splitlines()
    for line in ("Type=oneshot", "DefaultDependencies=no", "WantedBy=sysinit.target", "ConditionPathExists=/var/lib/nvmlsim/state.bin"):
        assert line in lines
    assert {"sysinit.target", "docker.service"} <= set(next(line for line in lines if line.startswith("Before=")).partition("=")[2].split())
    command = next(line for line in lines if line.startswith("ExecStart=")).partition("=")[2].split()
    assert (installed / command[0].lstrip("/")).exists()


@needs_container
@pytest.mark.skipif(not pathlib.Path("/proc/driver").is_dir(), reason="this machine's kernel shows no /proc/driver")
def test_installed_unit_lays_the_table_of_capabilities_where_the_driver_has_it(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    unit = installed / "usr/lib/systemd/system/nvmlsim-boot.service"
    *_commands, command = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    env = {**os.environ, "NVML_SIM_STATE": str(tmp_path / "host"), "PATH": f"{installed}/usr/bin:{os.environ['PATH']}"}
    env.pop("LD_LIBRARY_PATH", None)
    subprocess.run(["simctl", "create", "--board", "t4"], env=env, check=True, capture_output=True)
    words = shlex.split(command.partition("=")[2])
    twice = f"{shlex.join(words)} && {shlex.join(words)} && grep gpu1/gi0/access /proc/driver/nvidia-caps/mig-minors"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", twice], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gpu1/gi0/access 138\n", "")


def test_installed_tools_work_with_their_own_library(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    env = {**os.environ, "NVML_SIM_STATE": str(tmp_path / "host")}
    env.pop("LD_LIBRARY_PATH", None)

    def tool(*command: str) -> str:
        done = subprocess.run([str(installed / "usr/bin" / command[0]), *command[1:]], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tool("simctl", "create", "--board", "t4")
    assert tool("nvidia-smi", "-L").startswith("GPU 0: Tesla T4 (UUID: GPU-")
    mounts = yaml.safe_load(tool("nvidia-ctk", "cdi", "generate"))["containerEdits"]["mounts"]
    assert mounts[0]["hostPath"] == str(installed / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")


def test_install_without_a_directory_is_refused(simulator: pathlib.Path) -> None:
    done = subprocess.run(
        ["make", "-s", "-n", "-C", str(REPOSITORY / "tests" / "simulator"), "install", f"OUT={simulator}", "DESTDIR="],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "install needs DESTDIR=<directory>" in done.stdout


def test_library_runs_with_the_c_library_of_debian_12(simulator: pathlib.Path) -> None:
    """Debian 12 has glibc 2.36, Debian 13 a newer one."""
    versions = re.findall(rb"GLIBC_2\.(\d+)", (simulator / "libnvidia-ml.so.1").read_bytes())
    assert versions
    assert max(map(int, versions)) <= 36
