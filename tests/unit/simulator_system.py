# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests share that take the simulator for a system's driver: device nodes and the CDI specification."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import typing as t

import pynvml
import pytest
import yaml
from simulator_world import compute, create, enable_mig, gpu, nvml_open, uuid_of

Hosts = t.Callable[..., t.Any]
ALWAYS = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
ALWAYS |= {"nvidia-caps/nvidia-cap1": (511, 1), "nvidia-caps/nvidia-cap2": (511, 2)}


def _why_no_nodes() -> str | None:
    """Why this process cannot make device nodes; None when it can."""
    if os.geteuid() != 0:
        return "device nodes need root"
    probe = pathlib.Path(f"/tmp/gpuops-probe-{os.getpid()}")
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(511, 1))
    except OSError as error:
        return f"mknod is refused here: {error.strerror}"
    probe.unlink()
    return None


def _why_no_container() -> str | None:
    """Why this process cannot make a mount namespace; None when it can."""
    if _why_no_nodes():
        return _why_no_nodes()
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or "unshare --mount is refused here" if done.returncode else None


needs_nodes = pytest.mark.skipif(bool(_why_no_nodes()), reason=str(_why_no_nodes()))
needs_container = pytest.mark.skipif(bool(_why_no_container()), reason=str(_why_no_container()))


def nodes(place: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Every device node below a directory, with its numbers."""
    found = {}
    for path in place.rglob("*"):
        info = path.lstat()
        if stat.S_ISCHR(info.st_mode):
            found[str(path.relative_to(place))] = (os.major(info.st_rdev), os.minor(info.st_rdev))
    return found


def caps(*numbers: int) -> dict[str, tuple[int, int]]:
    """Nodes of capabilities, as `nodes` gives them."""
    return {f"nvidia-caps/nvidia-cap{number}": (511, number) for number in numbers}


def ctk(host: t.Any, *args: str) -> tuple[int, str, str]:
    """Exit code, output and log of nvidia-ctk."""
    return run(host, "nvidia-ctk", *args)


def specification(host: t.Any, *args: str) -> dict[str, t.Any]:
    """The specification that nvidia-ctk writes."""
    code, out, err = ctk(host, "cdi", "generate", *args)
    assert code == 0, err
    return t.cast("dict[str, t.Any]", yaml.safe_load(out))


def paths(spec: dict[str, t.Any], name: str) -> list[str]:
    """Nodes that a device brings into a container, those of every container not counted."""
    found = [device for device in spec["devices"] if device["name"] == name]
    assert len(found) == 1, f"{name} is there {len(found)} times"
    return [node["path"] for node in found[0]["containerEdits"]["deviceNodes"]]


def host_with_slices(fleet_host: Hosts, *boards: str) -> tuple[t.Any, list[str]]:
    """Two GPUs, MIG on the second one with a gap: MIG devices 1 and 2 in GPU instances 8 and 2; 7 has none."""
    host = fleet_host(*(boards or ("h100-80gb:2",)))
    with nvml_open():
        gone = compute(create(enable_mig(1), 19, 0, 1))
        uuids = [uuid_of(compute(create(gpu(1), 19, 1, 1))), uuid_of(compute(create(gpu(1), 9, 4, 4), 2))]
        pynvml.nvmlComputeInstanceDestroy(gone)
    return host, uuids


def run(host: t.Any, *command: str) -> tuple[int, str, str]:
    """Exit code, output and complaint of a command on a host."""
    done = subprocess.run(command, env=host.env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def common(spec: dict[str, t.Any]) -> list[str]:
    """Nodes that every container gets."""
    return [node["path"] for node in spec["containerEdits"]["deviceNodes"]]
