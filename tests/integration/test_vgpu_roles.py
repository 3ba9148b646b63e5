# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles vgpu_host and vgpu_guest by real ansible-playbook processes: in check mode, then twice, and undone when the variables go.

The host's kernel is a tree of files, and NVIDIA's programs and systemctl are executables in PATH. NVIDIA's drivers are not installed here.
"""

from __future__ import annotations

import os
import re
import sys
import typing as t

import pytest
from fleet_site import REPOSITORY
from own_play import run_task

if t.TYPE_CHECKING:
    from pathlib import Path

    from fleet_site import MakeSite, Site
    from own_play import Answer

HOST, GPU = "host-a", "0000:3b:00.0"
SECRET = "eyJhbGciOiJSUzI1NiJ9abc.eyJqdGkiOiI1NmQ0NDI4Yi0.c2lnbmF0dXJlIG9mIGl0"
# Units are files of a directory: NAME.enabled, NAME.active.
SYSTEMCTL = """\
#!/bin/sh
cd {units}
echo "$*" >> log
for word; do
    case "$word" in *.service) unit=$word ;; esac
done
case "$*" in
    *is-enabled*) test -e "$unit.enabled" ;;
    show*) echo LoadState=loaded; echo "ActiveState=$(test -e "$unit.active" && echo active || echo inactive)" ;;
    enable*) touch "$unit.enabled" ;;
    start* | restart*) touch "$unit.active" ;;
esac
"""
SMI = """\
#!/bin/sh
cat <<END
GPU 00000000:02:01.0
    Product Name                          : NVIDIA H100-80C
    vGPU Software Licensed Product
        Product Name                      : NVIDIA Virtual Compute Server
        License Status                    : $(cat {state})
END
"""


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """One host."""
    return make_site(host_a="a100-80gb:1")


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def changed(answer: Answer) -> int:
    assert answer.status == 0, answer.output
    found = re.search(rf"^{HOST} .*changed=([0-9]+)", answer.output, re.MULTILINE)
    assert found, answer.output
    return int(found.group(1))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="sysfs is Linux's")
def test_a_host_gets_its_vgpus_once_and_loses_them_with_the_variable(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests" / "unit"))
    from kernel.tree import Tree

    tree = Tree(tmp_path / "host", loaded=("pcieport", "nvidia"))
    vgpu = {"framework": "vendor", "types": {"700": {"name": "NVIDIA A100D-10C", "cost": 10}}, "room": 80}
    tree.gpu(GPU, vfs=12, vf_device="20b5", stride=(4, 1), vgpu=vgpu)
    for name, value in tree.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{REPOSITORY / 'tests/unit/kernel/vgpu_bin'}{os.pathsep}{os.environ['PATH']}")
    params = tree.proc / "driver" / "nvidia" / "params"
    params.parent.mkdir(parents=True, exist_ok=True)
    params.write_text('RegistryDwords: ""\nRegistryDwordsPerDevice: ""\n')
    where = {"sys_root": tree.sys, "proc_root": tree.proc, "state_dir": tmp_path / "state", "modprobe_file": tmp_path / "vgpu.conf"}
    plain = {
        "vgpu_host_agent": False,
        "vgpu_host_sriov_manage": "sriov-manage",
        **{f"vgpu_host_{key}": str(each) for key, each in where.items()},
    }
    wish = {**plain, "vgpu_host_gpus": [{"gpu": GPU, "vgpus": [{"type": "A100D-10C", "count": 2}]}]}
    equal = {"vgpu_host_schedulers": [{"policy": "equal-share"}]}

    def role(variables: dict[str, t.Any], *options: str) -> Answer:
        task = {"ansible.builtin.include_role": {"name": "gpuops.fleet.vgpu_host"}, "vars": variables}
        return run_task(site, tmp_path / "play", task, *options)

    pending = role({**wish, **equal})
    waits = 'host-a: pending until a reboot: the driver that is loaded was not given NVreg_RegistryDwords="RmPVMRL=0x01". Boot it'
    assert pending.message.startswith(waits)
    assert "RmPVMRL=0x01" in (tmp_path / "vgpu.conf").read_text()
    assert not (tmp_path / "state" / "vgpus.json").exists(), "no vGPU before the scheduler that they shall have"
    params.write_text('RegistryDwords: "RmPVMRL=0x01"\nRegistryDwordsPerDevice: ""\n')
    assert changed(role({**wish, **equal}, "--check", "--diff")) == 1
    assert changed(role({**wish, **equal})) == 1
    writes = tree.writes()
    assert changed(role({**wish, **equal})) == 0
    assert tree.writes() == writes
    functions = sorted((tree.sys / "bus/pci/devices").glob("*/nvidia/current_vgpu_type"))
    assert [path.read_text().strip() for path in functions].count("700") == 2
    undone = role(plain)
    assert changed(undone) == 2
    assert "pending until a reboot: the driver lets go of" in undone.output
    assert not (tmp_path / "vgpu.conf").exists()
    assert not list((tree.sys / "bus/pci/devices").glob("*/nvidia")), "virtual functions are off"
    assert changed(role(plain)) == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_a_guest_gets_its_licence_once_and_the_token_is_seen_nowhere(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units, state, conf = tmp_path / "units", tmp_path / "licence", tmp_path / "nvidia" / "gridd.conf"
    units.mkdir()
    (units / "nvidia-gridd.service.active").touch()  # NVIDIA's installer has started it
    program(tmp_path / "bin" / "systemctl", SYSTEMCTL.format(units=units))
    program(tmp_path / "bin" / "nvidia-smi", SMI.format(state=state))
    program(tmp_path / "bin" / "journalctl", "#!/bin/sh\necho 'Failed to acquire license: server licence.example.com not reachable'\n")
    program(tmp_path / "nvidia-gridd", "")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    state.write_text("Licensed (Expiry: 2026-11-23 8:25:0 GMT)")
    where = {"conf": conf, "token_dir": tmp_path / "tokens", "gridd": tmp_path / "nvidia-gridd", "state_dir": tmp_path / "state"}
    programs = {"vgpu_guest_nvidia_smi": str(tmp_path / "bin" / "nvidia-smi")}
    plain = {"vgpu_guest_licence_wait": 0, **programs, **{f"vgpu_guest_{name}": str(each) for name, each in where.items()}}
    wish = {**plain, "vgpu_guest_options": {"feature": "vgpu"}, "vgpu_guest_token": SECRET}

    def role(variables: dict[str, t.Any], *options: str) -> Answer:
        task = {"ansible.builtin.include_role": {"name": "gpuops.fleet.vgpu_guest"}, "vars": variables}
        answer = run_task(site, tmp_path / "play", task, *options)
        assert SECRET not in answer.output
        return answer

    assert changed(role(wish, "--check", "--diff")) == 2
    assert not conf.exists()
    assert changed(role(wish, "--diff")) == 2
    told = (units / "log").read_text().splitlines()
    assert [line for line in told if "start" in line] == ["restart nvidia-gridd.service"]
    token = next((tmp_path / "tokens").iterdir())
    assert (token.read_text(), token.stat().st_mode & 0o777) == (SECRET, 0o600)
    assert changed(role(wish, "--diff")) == 0
    state.write_text("Unlicensed (Restricted)")
    line = "no licence for 0000:02:01.0 (NVIDIA H100-80C): Unlicensed (Restricted); nvidia-gridd: Failed to acquire license: server"
    assert role(wish).message.startswith(line)
    reported = role({**wish, "vgpu_guest_require_licence": False})
    assert changed(reported) == 0
    assert f"host-a: {line}" in reported.output
    assert [line for line in (units / "log").read_text().splitlines() if "start" in line] == ["restart nvidia-gridd.service"]
    assert changed(role({**plain, "vgpu_guest_require_licence": False})) == 2
    assert not conf.exists()
    assert not list((tmp_path / "tokens").iterdir())
