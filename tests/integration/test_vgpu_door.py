# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vGPUs by real ansible-playbook processes: a file of vgpu-device-manager is read on the controller, carried out, exported and asserted."""

from __future__ import annotations

import os
import sys
import typing as t

import pytest
import yaml
from fleet_site import REPOSITORY
from own_play import run_task

if t.TYPE_CHECKING:
    from pathlib import Path

    from fleet_site import MakeSite, Site

HOST, GPU = "host-a", "0000:3b:00.0"
FILE = """\
version: v1
vgpu-configs:
  tens:
    - {devices: [0], vgpu-devices: {A100D-10C: 2}}
  nine:
    - {devices: all, vgpu-devices: {A100D-10C: 9}}
"""


@pytest.fixture
def site(make_site: MakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A host whose kernel is a tree of files with one card that has vGPUs."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests" / "unit"))
    from kernel.tree import Tree

    kernel = REPOSITORY / "tests" / "unit" / "kernel"
    tree = Tree(tmp_path / "host", loaded=("pcieport", "nvidia"))
    vgpu = {"framework": "vendor", "types": {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}, "room": 80}
    tree.gpu(GPU, vfs=12, vf_device="20b5", stride=(4, 1), vgpu=vgpu)
    for name, value in tree.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{kernel / 'vgpu_bin'}{os.pathsep}{os.environ['PATH']}")
    site = make_site(host_a="a100-80gb:1")
    site.variables(HOST, fleet_sys_root=str(tree.sys), fleet_proc_root=str(tree.proc), fleet_state_dir=str(tmp_path / "state"))
    return site


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")
def test_a_file_is_carried_out_exported_and_asserted(site: Site, tmp_path: Path) -> None:
    (tmp_path / "vgpu.yaml").write_text(FILE, encoding="utf-8")
    paths = {"sys_root": "{{ fleet_sys_root }}", "proc_root": "{{ fleet_proc_root }}", "state_dir": "{{ fleet_state_dir }}"}
    task = {"gpuops.fleet.vgpu": {**paths, "config": "vgpu.yaml", "label": "{{ label }}", "sriov_manage": "sriov-manage"}}
    too_many = run_task(site, tmp_path, task, "-e", "label=nine")
    assert too_many.message.startswith(
        f"{tmp_path / 'vgpu.yaml'}:6: vgpu-devices: {GPU}: 9 A100D-10C are wished, and one GPU has 8 at most (NVIDIA's"
    )
    made = run_task(site, tmp_path, task, "-e", "label=tens")
    assert (made.status, len(made.result["steps"]), made.result["changed"]) == (0, 3, True), made.output
    site.done("export", "-e", "label=before")
    file = site.work / "exports" / f"{HOST}.vgpu.yaml"
    assert yaml.safe_load(file.read_text(encoding="utf-8"))["vgpu-configs"] == {
        "before": [{"devices": "all", "vgpu-devices": {"A100D-10C": 2}}]
    }
    assert site.done("assert", "-e", f"assert_vgpu_config={file}", "-e", "label=before").changed() == []
    file.write_text(FILE.replace("A100D-10C: 2", "A100D-10C: 1"), encoding="utf-8")
    differs = site.play("assert", "-e", f"assert_vgpu_config={file}", "-e", "label=tens")
    assert differs.message() == f"{HOST} differs from tens: {GPU}: remove A100D-10C on 0000:3b:00.5"
