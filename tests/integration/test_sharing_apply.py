# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One host whose GPUs are shared in different ways, by real ansible-playbook processes: brought, kept, and given back."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.filter.compose import compose_problems

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))
from mps_world import World

if t.TYPE_CHECKING:
    from fleet_site import MakeSite, Site

HOST = "host-a"
SIMULATOR = Path(__file__).resolve().parents[2] / "build" / "simulator"


class SharedSite:
    """The site, and the programs that stand in for systemd and NVIDIA's daemon on its host."""

    def __init__(self, site: Site) -> None:
        self.site = site
        state = site.work / HOST / "gpus"
        host = SimpleNamespace(
            state=state, env={"LD_LIBRARY_PATH": str(SIMULATOR)}, simctl=lambda *words: json.loads(site.simctl(HOST, *words))
        )
        self.world = World(t.cast("t.Any", host), t.cast("t.Any", None))

    def variables(self, **more: t.Any) -> None:
        """The host may share its GPUs in both ways; ``more`` of its variables."""
        places = {
            "gpu_mps_systemctl": self.world.systemctl,
            "gpu_mps_control": self.world.control,
            "gpu_mps_setpriv": self.world.setpriv,
            "gpu_mps_agent": self.world.agent,
            "gpu_mps_unit_dir": str(self.world.units),
            "gpu_mps_run_dir": str(self.world.run_dir),
            "gpu_mps_log_dir": str(self.world.where / "log"),
        }
        self.site.variables(HOST, fleet_gpu_modes=["shared"], fleet_sharing=["time-slice", "mps"], **places, **more)

    def share(self, service: str, sharing: str, **more: t.Any) -> None:
        """The manifest of a service that asks for a share."""
        self.site.manifest(service, gpu={"isolation": "shared", "memory": "8 GiB", "sharing": sharing, **more})

    def model(self, name: str) -> dict[str, t.Any]:
        """What Compose is told of a replica; the file is valid."""
        text = (self.site.work / HOST / "services" / name / "compose.yml").read_text(encoding="utf-8")
        assert compose_problems(text) == []
        return dict(yaml.safe_load(text)["services"]["model"])

    def files(self) -> dict[str, bytes]:
        """What a run could have written, without the lock whose content says who took it last."""
        return {name: content for name, content in self.site.files().items() if not name.endswith(".lock")}

    def gpus(self) -> dict[str, dict[str, t.Any]]:
        """The GPUs by UUID."""
        return {gpu["uuid"]: gpu for gpu in self.world.show()}


@pytest.fixture
def shared(make_site: MakeSite) -> t.Iterator[SharedSite]:
    made = SharedSite(make_site(host_a="l40s-48gb:3"))
    yield made
    made.world.close()


def test_gpus_of_one_host_are_shared_in_different_ways_kept_so_and_given_back(shared: SharedSite) -> None:
    site = shared.site
    shared.variables(fleet_gpu_settings=[{"gpu": "all", "persistence": True, "power_limit_w": 300}])
    shared.share("speech", "mps", compute=0.5)
    shared.share("faces", "mps")
    shared.share("notes", "time-slice")
    site.done("plan")
    promised = site.done("apply", "--check")
    applied = site.done("apply")
    # In check mode the facts that are published at the end are promised under a name of their own.
    assert {"Bring or remove the MPS daemons", "Set what else GPUs have"} <= {task for task, _host in promised.changed()}
    names = sorted("Write what changed" if task == "Promise other facts" else task for task, _host in promised.changed())
    assert names == sorted(task for task, _host in applied.changed())

    lines = {line["service"]: line for line in site.plan(HOST)["services"]}
    assert lines["speech"]["gpu"] == lines["faces"]["gpu"] != lines["notes"]["gpu"]
    assert [lines[name].get("sharing") for name in ("speech", "faces", "notes")] == ["mps", "mps", None]
    uuid = lines["speech"]["gpu"]
    gpus = shared.gpus()
    assert {name: gpu["compute_mode"] for name, gpu in gpus.items()} == {
        name: "exclusive_process" if name == uuid else "default" for name in gpus
    }
    assert {(gpu["persistence"], gpu["power_limit_w"]) for gpu in gpus.values()} == {(True, 300)}

    speech, notes = shared.model("speech-1"), shared.model("notes-1")
    assert speech["user"] == shared.model("faces-1")["user"] == "70700:70700"
    pipe, shm = (str(shared.world.run_dir / uuid / part) for part in ("pipe", "shm"))
    assert speech["environment"] == {
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    assert [(one["source"], one["target"], one["read_only"]) for one in speech["volumes"]] == [
        (pipe, pipe, False),
        (shm, "/dev/shm", False),
    ]
    assert "shm_size" not in speech
    assert ("user" in notes, "volumes" in notes, notes["shm_size"]) == (False, False, "64m")
    assert not any(name.startswith("CUDA_MPS") for name in notes["environment"])

    mutations, files, acts = site.mutations(), shared.files(), shared.world.acts()
    again = site.done("apply")
    assert (again.changed(), site.mutations(), shared.files(), shared.world.acts()) == ([], mutations, files, acts)

    # The way back: nobody asks for MPS any more, and the settings are taken out of the inventory.
    shared.variables()
    for service in ("speech", "faces"):
        shared.share(service, "time-slice")
    site.done("plan")
    site.done("apply")
    assert {gpu["compute_mode"] for gpu in shared.gpus().values()} == {"default"}
    assert {(gpu["persistence"], gpu["power_limit_w"]) for gpu in shared.gpus().values()} == {(False, 350)}
    assert (list(shared.world.units.iterdir()), list(shared.world.run_dir.iterdir())) == ([], [])
    assert "user" not in shared.model("speech-1")


def test_ecc_that_waits_for_a_reboot_is_no_success_and_stops_nothing_else(shared: SharedSite) -> None:
    site = shared.site
    shared.variables(fleet_gpu_settings=[{"gpu": 0, "ecc": False}])
    shared.share("notes", "time-slice")
    site.done("plan")
    played = site.play("apply")
    message = played.message()
    assert "ECC is on until the GPU is reset or the host reboots. Everything else is done" in message
    assert shared.model("notes-1")["image"].startswith("registry.example.com/notes")
