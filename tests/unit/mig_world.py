# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated host and module ``mig`` on it, for the tests of both."""

from __future__ import annotations

import json
import os
import typing as t
from pathlib import Path

if t.TYPE_CHECKING:
    from conftest import FleetHost, RunModule

H100, A100, L40S = "h100-80gb", "a100-80gb", "l40s-48gb"
WAITS = "it waits for a reset of the GPU"
KNOWN_AFTER_APPLY = "(known after apply)"


class World:
    """One simulated host and the module on it."""

    def __init__(self, host: FleetHost, run_module: RunModule, where: Path) -> None:
        self.host, self._run, self.where = host, run_module, where
        self.state_dir = where / "state"
        self.uuids = [gpu["uuid"] for gpu in self.show()]
        self.pcis = [gpu["pci"] for gpu in self.show()]

    def show(self) -> list[dict[str, t.Any]]:
        """The GPUs as the simulator shows them."""
        return list(self.host.simctl("show", "--json")["gpus"])

    def slices(self, number: int) -> list[str]:
        """One GPU's slices, as ``1g.10gb@4``."""
        return sorted(f"{one['profile']}@{one['start']}" for one in self.show()[number]["mig"]["instances"])

    def mutations(self) -> list[tuple[str, str]]:
        """(call, GPU) of every change so far that came through NVML."""
        return [(one["call"], one["args"].get("gpu", "")) for one in self.host.calls(mutations=True) if one["call"].startswith("nvml")]

    def mig(self, *layout: t.Any, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
        """Run the module once; its result."""
        args = {"layout": [entry(one) for one in layout], "state_dir": str(self.state_dir), **more}
        return self._run("mig", args, check=check, diff=True)

    def done(self, *layout: t.Any, **more: t.Any) -> list[str]:
        """Run it for real, prove that check mode said the same before and a second run finds nothing to do; the steps."""
        predicted = self.mig(*layout, check=True, **more)
        before = self.mutations()
        assert not predicted["failed"], predicted
        result = self.mig(*layout, **more)
        assert not result["failed"], result
        for key in ("changed", "steps", "diff", "pending", "reset_required", "reboot_required"):
            assert predicted[key] == result[key], key
        assert without_uuids(predicted) == without_uuids(result)
        assert result["changed"] is bool(result["steps"])
        assert (len(self.mutations()) > len(before)) is result["changed"]
        after = self.mutations()
        again = self.mig(*layout, **more)
        assert (again["failed"], again["changed"], again["steps"], again["pending"]) == (False, False, [], result["pending"])
        assert again["diff"]["before"] == again["diff"]["after"] == result["diff"]["after"]
        assert self.mutations() == after
        return list(result["steps"])

    def refused(self, *layout: t.Any, **more: t.Any) -> str:
        """The message, the same in check mode; nothing is changed."""
        before, state = self.mutations(), self.show()
        predicted, result = self.mig(*layout, check=True, **more), self.mig(*layout, **more)
        assert predicted["failed"]
        assert result["failed"]
        assert predicted["msg"] == result["msg"]
        assert "\n" not in result["msg"]
        assert (self.mutations(), self.show()) == (before, state)
        return str(result["msg"])

    def hold(self, gpu: int, *where: str, pid: int = 4242) -> None:
        """A process begins to use a GPU or one of its slices."""
        self.host.simctl("hold", "--gpu", str(gpu), "--pid", str(pid), *where)

    def journal(self) -> dict[str, t.Any]:
        """The module's journal on the host."""
        return dict(json.loads((self.state_dir / "mig-journal.json").read_text()))


def entry(one: t.Any) -> dict[str, t.Any]:
    """(gpu, '1g.10gb', '1g.10gb@4', ...) or (gpu, None) for no MIG, or a dict as it is."""
    if isinstance(one, dict):
        return one
    gpu, *slices = one
    if slices == [None]:
        return {"gpu": gpu, "mig": False}
    instances = []
    for text in slices:
        profile, at, start = text.partition("@")
        instances.append({"profile": profile, "start": int(start)} if at else {"profile": profile})
    return {"gpu": gpu, "instances": instances}


def without_uuids(result: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """The layout of a result, each slice as (profile, start)."""
    return [dict(gpu, instances=[(one["profile"], one["start"]) for one in gpu["instances"]]) for gpu in result["layout"]]


def smi(fleet: World) -> str:
    """Path of the stand-in for nvidia-smi."""
    return next(
        str(Path(folder) / "nvidia-smi") for folder in fleet.host.env["PATH"].split(os.pathsep) if (Path(folder) / "nvidia-smi").exists()
    )


def process(proc: Path, pid: int, name: str, *targets: str, cgroup: str = "0::/user.slice") -> None:
    """A process of a host whose proc file system is ``proc``, with files open."""
    directory = proc / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "status").write_text(f"Name:\t{name}\nUid:\t0\t0\t0\t0\n")
    (directory / "cgroup").write_text(f"{cgroup}\n")
    for number, target in enumerate(targets, start=3):
        (directory / "fd" / str(number)).symlink_to(target)


def program(path: Path, text: str) -> str:
    """A stand-in for a program of the host, written for ``sh``; its path."""
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)
