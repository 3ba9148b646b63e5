# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module mig and a mode that takes a reset: who keeps it from working, the services that hold the driver, machines that cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import typing as t
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.mig_reset import drm_user
from mig_world import A100, H100, World, entry, process, program, smi

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

UNITS = ["nvidia-persistenced.service", "nvidia-dcgm.service", "nvsm.service"]
GUEST = "it waits until the guest reboots, for this virtual machine cannot reset the GPU"
# A directory for units: a file for each that runs. What is asked is written down; `refuse` has the verb and unit that fails.
SYSTEMCTL = """\
here={here}
[ "$1" = start ] && [ "$2" = --no-block ] && shift && set -- start "$@"
unit=$2
[ "$1" = start ] || [ "$1" = stop ] || [ "$1" = is-active ] || exit 9
[ "$1" = is-active ] || echo "$1 $unit" >> $here/asked
if [ "$(cat $here/refuse 2>/dev/null)" = "$1 $unit" ]; then echo "Job for $unit failed." >&2; exit 1; fi
case $1 in
  is-active) if [ -e $here/$unit ]; then echo active; else echo inactive; exit 3; fi ;;
  stop) rm -f $here/$unit ;;
  start) touch $here/$unit ;;
esac
"""


class Host(World):
    """A host with systemd."""

    @property
    def units(self) -> Path:
        """Where its units run."""
        return self.where / "units"

    def with_units(self, *running: str) -> Host:
        """Let these run."""
        self.units.mkdir()
        for unit in running:
            (self.units / unit).touch()
        program(self.where / "systemctl", SYSTEMCTL.format(here=self.units))
        return self

    def running(self) -> list[str]:
        """Units that run."""
        return sorted(path.name for path in self.units.glob("*.service"))

    def asked(self) -> list[str]:
        """What systemctl was asked to do."""
        path = self.units / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def mig(self, *layout: t.Any, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Run the module once."""
        usual = {"driver_services": UNITS, "systemctl": str(self.where / "systemctl"), "nvidia_smi": smi(self), "reset": True}
        return super().mig(*layout, check=check, **{**usual, **more})


@pytest.fixture
def host(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> Callable[..., Host]:
    return lambda *boards: Host(fleet_host(*boards), run_module, tmp_path)


# Services that hold the driver


def test_services_that_run_are_stopped_for_a_reset_and_started_again(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[0], UNITS[1])
    (gpu,) = fleet.uuids
    assert fleet.done((gpu, "1g.10gb@0")) == [
        f"stop {UNITS[0]}, which holds the driver",
        f"stop {UNITS[1]}, which holds the driver",
        f"{gpu}: switch MIG on",
        f"{gpu}: reset the GPU at {fleet.pcis[0]} (nvidia-smi -r)",
        f"{gpu}: create 1g.10gb at memory slice 0",
        f"start {UNITS[0]} again",
        f"start {UNITS[1]} again",
    ]
    assert fleet.running() == sorted(UNITS[:2])
    assert fleet.asked() == [f"{verb} {unit}" for verb in ("stop", "start") for unit in UNITS[:2]]


def test_slices_alone_stop_no_service(host: Callable[..., Host]) -> None:
    fleet = host(H100).with_units()
    (gpu,) = fleet.uuids
    fleet.mig((gpu,))
    (fleet.units / UNITS[1]).touch()
    assert fleet.done((gpu, "1g.10gb@0")) == [f"{gpu}: create 1g.10gb at memory slice 0"]
    assert fleet.asked() == []


def test_a_host_without_systemd_has_no_services(host: Callable[..., Host]) -> None:
    fleet = host(H100)
    assert fleet.done((fleet.uuids[0], "1g.10gb@0"), systemctl="/no/such/systemctl")[0] == f"{fleet.uuids[0]}: switch MIG on"


def test_services_are_started_again_when_the_change_fails(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[1])
    fleet.host.simctl("fail", "--call", "nvmlDeviceCreateGpuInstanceWithPlacement", "--nth", "1", "--error", "UNKNOWN")
    result = fleet.mig((fleet.uuids[0], "1g.10gb@0"))
    assert result["msg"].endswith("; the layout from before was put back")
    assert fleet.running() == [UNITS[1]]
    assert (fleet.journal()["state"], fleet.journal()["stopped"]) == ("closed", [])


def test_a_service_that_does_not_stop_keeps_the_mode_as_it_is(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[0], UNITS[1])
    (fleet.units / "refuse").write_text(f"stop {UNITS[1]}")
    result = fleet.mig((fleet.uuids[0], "1g.10gb@0"))
    assert result["msg"].startswith(f"{UNITS[1]} could not be stopped: Job for {UNITS[1]} failed.; ")
    assert fleet.mutations() == []
    assert fleet.running() == sorted(UNITS[:2])


def test_a_service_that_does_not_start_again_is_named_and_started_by_the_next_run(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[1])
    (gpu,) = fleet.uuids
    (fleet.units / "refuse").write_text(f"start {UNITS[1]}")
    result = fleet.mig((gpu, "1g.10gb@0"))
    assert result["msg"] == f"{UNITS[1]} could not be started again: Job for {UNITS[1]} failed."
    assert fleet.slices(0) == ["1g.10gb@0"], "the change itself is whole"
    assert (fleet.journal()["state"], fleet.journal()["stopped"]) == ("open", [UNITS[1]])
    (fleet.units / "refuse").unlink()
    assert fleet.mig((gpu, "1g.10gb@0"), check=True)["steps"] == [f"start {UNITS[1]} again"]
    again = fleet.mig((gpu, "1g.10gb@0"))
    assert (again["changed"], again["steps"]) == (True, [f"start {UNITS[1]} again"])
    assert fleet.running() == [UNITS[1]]
    assert (fleet.journal()["state"], fleet.journal()["stopped"]) == ("closed", [])


@pytest.mark.parametrize("number", [1, 2])
def test_services_that_a_dead_run_left_stopped_are_started_by_the_next_one(host: Callable[..., Host], number: int) -> None:
    fleet = host(A100).with_units(UNITS[1])
    (gpu,) = fleet.uuids
    fleet.host.simctl("kill", "--mutation", str(number))
    args = {"driver_services": UNITS, "systemctl": str(fleet.where / "systemctl"), "nvidia_smi": smi(fleet), "reset": True}
    wish = {"layout": [entry((gpu, "1g.10gb@0"))], "state_dir": str(fleet.state_dir), **args}
    dead = subprocess.run(
        [sys.executable, "-c", "from ansible_collections.gpuops.fleet.plugins.modules import mig; mig.main()"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": wish}),
        env={**fleet.host.env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    killed_the_reset = number == 2  # then it is nvidia-smi that dies, and the run goes back
    assert (dead.returncode == -9) is not killed_the_reset, dead.stdout + dead.stderr
    fleet.host.simctl("kill", "--clear")
    if not killed_the_reset:
        assert (fleet.running(), fleet.journal()["stopped"]) == ([], [UNITS[1]])
    assert not fleet.mig((gpu, "1g.10gb@0"))["failed"]
    assert fleet.running() == [UNITS[1]]
    assert (fleet.slices(0), fleet.journal()["stopped"]) == (["1g.10gb@0"], [])


# Who keeps a reset from working


def test_a_monitor_that_is_a_service_to_be_stopped_is_not_in_the_way(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[1])
    (gpu,) = fleet.uuids
    proc = fleet.where / "proc"
    process(proc, 77, "nv-hostengine", "/dev/nvidia0", cgroup=f"0::/system.slice/{UNITS[1]}")
    assert fleet.refused((gpu, "1g.10gb@0"), driver_services=[], proc_root=str(proc)).startswith(
        f"GPU {gpu} is in use: process 77 (nv-hostengine) on the GPU itself; nothing was changed"
    )
    assert fleet.done((gpu, "1g.10gb@0"), proc_root=str(proc))[0] == f"stop {UNITS[1]}, which holds the driver"


def test_the_persistence_daemon_keeps_a_reset_from_working_and_no_mode_that_changes_at_once(host: Callable[..., Host]) -> None:
    fleet = host(A100, H100).with_units()
    proc = fleet.where / "proc"
    process(proc, 78, "nvidia-persistenced", "/dev/nvidia0", "/dev/nvidia1", cgroup=f"0::/system.slice/{UNITS[0]}")
    words = fleet.refused((fleet.uuids[0], "1g.10gb@0"), proc_root=str(proc))
    assert words.startswith(f"GPU {fleet.uuids[0]} is in use: process 78 (nvidia-persistenced) on the GPU itself; nothing was changed")
    assert fleet.done((fleet.uuids[1], "1g.10gb@0"), proc_root=str(proc))[0] == f"{fleet.uuids[1]}: switch MIG on"
    (fleet.units / UNITS[0]).touch()
    assert fleet.done((fleet.uuids[0], "1g.10gb@0"), proc_root=str(proc))[0] == f"stop {UNITS[0]}, which holds the driver"


def test_a_console_on_the_gpus_keeps_them_from_being_reset(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units()
    (gpu,) = fleet.uuids
    proc, sysfs = fleet.where / "proc", fleet.where / "sys"
    parameters = sysfs / "module" / "nvidia_drm" / "parameters"
    parameters.mkdir(parents=True)
    proc.mkdir()
    (parameters / "modeset").write_text("Y\n")
    (proc / "modules").write_text("nvidia_drm 77824 4 - Live 0x0\nnvidia_modeset 1306624 5 nvidia_drm, Live 0x0\n")
    roots = {"proc_root": str(proc), "sys_root": str(sysfs)}
    assert fleet.refused((gpu, "1g.10gb@0"), **roots).startswith(
        f"GPU {gpu} is in use: kernel module nvidia_drm (in use 4 times; a console or display server) on the GPU itself; nothing was "
    )
    assert fleet.done((gpu, "1g.10gb@0"), **{**roots, "reset": False}) == [f"{gpu}: switch MIG on"], "only a reset is kept from working"
    (proc / "modules").write_text("nvidia_drm 77824 0 - Live 0x0\n")
    assert fleet.done((gpu, "1g.10gb@0"), **roots)[0] == f"{gpu}: reset the GPU at {fleet.pcis[0]} (nvidia-smi -r)"


@pytest.mark.parametrize(
    ("modules", "modeset", "used"),
    [
        ("nvidia_drm 77824 2 - Live 0x0\n", "Y\n", True),
        ("nvidia_drm 77824 2 - Live 0x0\n", "N\n", False),
        ("nvidia_drm 77824 0 - Live 0x0\n", "Y\n", False),
        ("drm 77824 2 nvidia_drm, Live 0x0\n", "Y\n", False),
        ("", "Y\n", False),
    ],
)
def test_the_display_module_is_in_the_way_only_when_somebody_uses_it(tmp_path: Path, modules: str, modeset: str, used: bool) -> None:
    assert drm_user(tmp_path, tmp_path) is None
    (tmp_path / "module" / "nvidia_drm" / "parameters").mkdir(parents=True)
    (tmp_path / "module" / "nvidia_drm" / "parameters" / "modeset").write_text(modeset)
    (tmp_path / "modules").write_text(modules)
    assert (drm_user(tmp_path, tmp_path) is not None) is used


# Virtual machines that cannot


def test_a_guest_whose_kernel_offers_no_reset_waits_for_its_reboot(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units(UNITS[1])
    (gpu,) = fleet.uuids
    fleet.host.simctl("set", "virtualization", "passthrough")
    sysfs = fleet.where / "sys"
    device = sysfs / "bus" / "pci" / "devices" / fleet.pcis[0]
    device.mkdir(parents=True)
    steps = fleet.done((gpu, "1g.10gb@0"), sys_root=str(sysfs))
    assert steps == [f"stop {UNITS[1]}, which holds the driver", f"{gpu}: switch MIG on", f"start {UNITS[1]} again"]
    again = fleet.mig((gpu, "1g.10gb@0"), sys_root=str(sysfs))
    assert (again["pending"], again["reboot_required"]) == ([{"gpu": gpu, "reason": GUEST}], True)
    (device / "reset").touch()
    assert fleet.done((gpu, "1g.10gb@0"), sys_root=str(sysfs))[1] == f"{gpu}: reset the GPU at {fleet.pcis[0]} (nvidia-smi -r)"


def test_a_guest_that_is_told_so_by_nvidia_smi_waits_and_nothing_is_put_back(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units()
    (gpu,) = fleet.uuids
    fleet.host.simctl("set", "virtualization", "passthrough")
    fleet.host.simctl("set", "reset", "off")
    result = fleet.mig((gpu, "1g.10gb@0"))
    assert not result["failed"], result
    assert result["steps"] == [f"{gpu}: switch MIG on"]
    assert result["pending"][0]["reason"].startswith(f"{GUEST} (Unable to reset GPU ")
    assert fleet.show()[0]["mig"]["pending"] is True
    again = fleet.mig((gpu, "1g.10gb@0"))
    assert (again["failed"], again["changed"], again["pending"]) == (False, False, result["pending"])
    fleet.host.simctl("reboot")
    assert fleet.done((gpu, "1g.10gb@0")) == [f"{gpu}: create 1g.10gb at memory slice 0"]


def test_a_host_of_its_own_that_cannot_reset_goes_back(host: Callable[..., Host]) -> None:
    fleet = host(A100).with_units()
    fleet.host.simctl("set", "reset", "off")
    result = fleet.mig((fleet.uuids[0], "1g.10gb@0"))
    assert result["msg"].endswith("; the layout from before was put back")
    assert fleet.show()[0]["mig"]["pending"] is False
