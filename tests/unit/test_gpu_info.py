# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module gpu_info: what it takes, what it answers, and that its documentation says exactly that."""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuops.fleet.plugins.doc_fragments import host as host_fragment
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import Options
from ansible_collections.gpuops.fleet.plugins.modules import gpu_info

if t.TYPE_CHECKING:
    from conftest import MakeHost, RunModule

A100 = "a100-80gb"
H100 = "h100-80gb"


def paths(tmp_path: Path) -> dict[str, t.Any]:
    return {"state_dir": str(tmp_path), "docker_socket": str(tmp_path / "docker.sock"), "cdi_dirs": [str(tmp_path / "cdi")]}


def test_the_facts_are_returned_and_nothing_is_changed(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    host = fleet_host(f"{A100}:2")
    result = run_module("gpu_info", paths(tmp_path))
    assert (result["failed"], result["changed"]) == (False, False)
    assert [gpu["uuid"] for gpu in result["facts"]["gpus"]] == [gpu["uuid"] for gpu in host.simctl("show", "--json")["gpus"]]
    assert "ansible_facts" not in result
    assert "containers" not in result["facts"]
    assert host.calls(mutations=True) == []


def test_check_mode_answers_the_same(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host(H100)
    ran, checked = (run_module("gpu_info", paths(tmp_path), check=check, diff=True) for check in (False, True))
    for result in (ran, checked):
        del result["facts"]["host"]  # free space of the disk may differ from moment to moment
    assert ran == checked


def test_as_facts_returns_them_as_facts_of_the_host_too(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host(H100)
    result = run_module("gpu_info", {**paths(tmp_path), "as_facts": True})
    assert result["ansible_facts"] == {"gpuops_fleet": result["facts"]}


def test_lists_that_grow_come_when_they_are_asked_for(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host(H100)
    result = run_module("gpu_info", {**paths(tmp_path), "gather": ["holders", "containers"]})
    assert result["facts"]["gpus"][0]["holders"] == []
    assert result["facts"]["containers"] == []


def test_every_path_is_taken_from_its_option(fleet_host: MakeHost, run_module: RunModule, tmp_path: Path) -> None:
    fleet_host(H100)
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    names = ("proc_root", "sys_root", "os_release", "shm_path", "services_dir", "state_dir", "docker_socket")
    args: dict[str, t.Any] = {name: str(tmp_path / name) for name in names}
    (tmp_path / "docker_socket").touch()
    (tmp_path / "state_dir").mkdir()
    (tmp_path / "state_dir" / "plan.json").write_text("{", encoding="utf-8")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "x.yaml").touch()
    facts = run_module("gpu_info", {**args, "cdi_dirs": [str(tmp_path / "cdi")]})["facts"]
    told = " ".join([*facts["errors"], facts["engine"]["docker"]["error"]])
    assert all(str(tmp_path / name) in told for name in names if name != "services_dir")
    assert facts["host"]["disk"]["path"] == str(tmp_path)
    assert facts["engine"]["cdi_specs"] == [str(tmp_path / "cdi" / "x.yaml")]


@pytest.mark.parametrize(
    ("args", "word"), [({"gather": ["everything"]}, "everything"), ({"as_facts": "perhaps"}, "as_facts"), ({"gathr": []}, "gathr")]
)
def test_an_argument_that_it_does_not_take_is_refused(run_module: RunModule, args: dict[str, t.Any], word: str) -> None:
    result = run_module("gpu_info", args)
    assert result["failed"] is True
    assert word in result["msg"]


def documented_options() -> dict[str, t.Any]:
    options: dict[str, t.Any] = dict(yaml.safe_load(gpu_info.DOCUMENTATION)["options"])
    for part in ("DOCUMENTATION", "PROC", "SYS", "ENGINE", "CDI", "SERVICES"):
        options.update(yaml.safe_load(getattr(host_fragment.ModuleDocFragment, part))["options"])
    return options


def test_the_documented_defaults_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, t.Any] = {}

    class Stop(Exception):
        """Ends main() once the spec is known."""

    def record(argument_spec: dict[str, t.Any], **_: t.Any) -> None:
        taken.update(argument_spec)
        raise Stop

    monkeypatch.setattr(gpu_info, "AnsibleModule", record)
    with pytest.raises(Stop):
        gpu_info.main()
    documented = documented_options()
    assert {name: option.get("default") for name, option in documented.items()} == {
        name: option.get("default") for name, option in taken.items()
    }
    code = {field.name: field.default for field in dataclasses.fields(Options)}
    code["cdi_dirs"] = list(t.cast("tuple[str, ...]", code["cdi_dirs"]))
    code["gather"] = []
    assert {name: option.get("default") for name, option in documented.items() if name != "as_facts"} == code


def keys(value: t.Any, documented: dict[str, t.Any] | None, path: str) -> t.Iterator[tuple[str, bool]]:
    """(path, whether it is documented) of every key in an answer; below a key with no `contains`, its sample documents the rest."""
    if documented is None:
        return
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, dict):
            for key, below in entry.items():
                yield f"{path}.{key}", key in documented
                yield from keys(below, documented.get(key, {}).get("contains"), f"{path}.{key}")


def test_every_key_of_an_answer_is_documented_and_every_documented_key_is_there(
    fleet_host: MakeHost, run_module: RunModule, tmp_path: Path
) -> None:
    host = fleet_host(H100)
    host.simctl("hold", "--gpu", "0", "--pid", "4000000")
    result = run_module("gpu_info", {**paths(tmp_path), "as_facts": True, "gather": ["holders"]})
    answer = {"facts": result["facts"], "ansible_facts": {}}
    found = list(keys(answer, yaml.safe_load(gpu_info.RETURN), ""))
    assert [path for path, known in found if not known] == []
    gpu = yaml.safe_load(gpu_info.RETURN)["facts"]["contains"]["gpus"]["contains"]
    assert set(gpu) == set(result["facts"]["gpus"][0])
    assert set(gpu["mig"]["contains"]) == set(result["facts"]["gpus"][0]["mig"])
    assert set(gpu["holders"]["contains"]) - {"path"} == set(result["facts"]["gpus"][0]["holders"][0])


def test_every_documented_value_has_a_description_a_type_and_a_sample() -> None:
    def check(entries: dict[str, t.Any], path: str) -> t.Iterator[str]:
        for name, entry in entries.items():
            where = f"{path}.{name}"
            if not entry.get("description") or not entry.get("type") or not entry.get("returned"):
                yield where
            if "contains" in entry:
                yield from check(entry["contains"], where)
            elif "sample" not in entry and name != "gpuops_fleet":
                yield where

    assert list(check(yaml.safe_load(gpu_info.RETURN), "")) == []
