# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe for an image that runs elsewhere (docs/host-preparation.md): what the roles do on a host without a GPU, and what not."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest
import yaml
from jinja2.nativetypes import NativeEnvironment
from test_driver_plan import DEBIAN_13, INSTALLED, bare, decide

ROOT = Path(__file__).resolve().parents[2]
ROLES = ROOT / "roles"
# What playbook prepare gives the roles besides; a token, as it holds the host.
RUN = {"ansible_check_mode": False, "nvidia_driver_leased": {}, "inventory_hostname": "gpu-07"}


def recipe() -> dict[str, t.Any]:
    text = (ROOT / "docs" / "host-preparation.md").read_text(encoding="utf-8").partition("### An image that runs elsewhere")[2]
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    found: dict[str, t.Any] = yaml.safe_load(block.group(1))
    return found


def read(path: str) -> t.Any:
    return yaml.safe_load((ROLES / path).read_text(encoding="utf-8"))


def variables(plan: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    """What the roles' conditions are asked with: defaults, the recipe, and the plan that was made."""
    return {
        **read("nvidia_driver/defaults/main.yml"),
        **read("gpu_host/defaults/main.yml"),
        **recipe(),
        "nvidia_driver_plan": plan,
        **RUN,
        **more,
    }


def runs(tasks: list[dict[str, t.Any]], known: dict[str, t.Any]) -> list[str]:
    """Names of the tasks whose condition holds."""
    environment = NativeEnvironment()
    environment.filters["bool"] = bool

    def ask(expression: str, given: dict[str, t.Any]) -> t.Any:
        return environment.from_string("{{ " + expression + " }}").render(**given)

    found = []
    for task in tasks:
        own = {
            name: ask(text.strip("{} "), known) if "{{" in str(text) else text
            for name, text in task.get("vars", {}).items()
            if "plan" in name
        }
        if all(ask(str(each), {**known, **own}) for each in [task.get("when", True)]):
            found.append(task["name"])
    return found


def plan_of(**more: t.Any) -> dict[str, t.Any]:
    asked = {name.removeprefix("nvidia_driver_"): value for name, value in recipe().items() if name.startswith("nvidia_driver_")}
    load = asked.pop("load")
    assert load is False
    candidates = {"candidates": dict(DEBIAN_13)}
    return decide(bare(**{**candidates, **more}), **asked)


def test_the_recipe_names_variables_of_the_roles_with_values_that_they_take() -> None:
    for name, value in recipe().items():
        role = "gpu_host" if name.startswith("gpu_host_") else "nvidia_driver"
        spec = read(f"{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"][name]
        assert {"bool": bool, "list": list, "str": str}[spec["type"]] is type(value), name
        assert value in spec.get("choices", [value]), name
        assert value != read(f"{role}/defaults/main.yml")[name], name


def test_the_driver_is_chosen_for_the_boards_that_will_come_and_its_daemon_is_left_out() -> None:
    found = plan_of()
    assert (found["boards"], found["branch"], found["daemon"], found["fabric"]) == (["l40s"], 550, False, False)
    assert "nvidia-persistenced" not in found["install"]
    assert {"nvidia-smi", "libcuda1", "dkms"} <= set(found["install"])
    assert any("no NVIDIA GPU on the PCI bus; the driver is chosen for l40s" in each for each in found["warnings"])


def test_a_second_run_on_the_image_installs_nothing() -> None:
    first = plan_of()
    there = {name: text for name, text in INSTALLED.items() if name != "nvidia-persistenced"}
    if first["flavour"] == "open":
        there["nvidia-open-kernel-dkms"] = there.pop("nvidia-kernel-dkms")
    headers = {"linux-headers-amd64": "6.12.107-1", "linux-headers-6.12.107+deb13-amd64": "6.12.107-1"}
    second = plan_of(
        installed={"driver": "550.163.01", "flavour": first["flavour"], "runfile": False, "packages": {**there, **headers}},
        kernel__headers={"6.12.107+deb13-amd64": True},
    )
    assert (second["install"], second["remove"]) == ({}, [])


def test_gpu_host_brings_all_that_needs_no_gpu_and_asks_no_gate() -> None:
    tasks = read("gpu_host/tasks/main.yml")
    every = [
        *("Bring the driver", "Run the persistence daemon", "Run the fabric manager", "Bring the engine"),
        *("Bring the container toolkit", "Read the host", "Bring the host agent", "See that services may run on it"),
    ]
    assert runs(tasks, {**variables({"daemon": True, "fabric": True, "install": {}}), "gpu_host_gate": True}) == every
    left_out = ("Run the persistence daemon", "Run the fabric manager", "See that services may run on it")
    assert runs(tasks, variables(plan_of())) == [name for name in every if name not in left_out]


@pytest.mark.parametrize(
    ("load", "names"), [(False, ["Have the kernel modules built"]), (True, ["Have the kernel modules built", "Load the driver"])]
)
def test_kernel_modules_are_built_and_not_loaded(load: bool, names: list[str]) -> None:
    assert runs(read("nvidia_driver/tasks/load.yml"), variables(plan_of(), nvidia_driver_load=load)) == names


def test_where_the_image_runs_the_boards_that_are_there_rule_over_those_that_were_named() -> None:
    found = decide(bare("20b2", candidates=dict(DEBIAN_13)), boards=["l40s"])
    assert found["boards"] == ["a100-sxm4-80gb"]
    assert found["daemon"]
