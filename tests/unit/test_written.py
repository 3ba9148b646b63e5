# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of variables say where these were written, as ansible-core knows it."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils import written
from ansible_collections.gpuops.fleet.plugins.plugin_utils.located import FleetErrors
from ansible_collections.gpuops.fleet.plugins.plugin_utils.written import origin_of, with_origin

VARIABLES = """\
fleet_moves: 9
fleet_quotas:
  teams:
    claims.de:
      memory: 8
    claims:
      memory: 8 GiB
fleet_gpu_layouts:
  - {gpu: 0, mode: whole}
  - gpu: 1
    mode: mig
    slices: [3g.40gb@0, 3g.40gb@1]
"""

knows = pytest.mark.skipif(written.Origin is None, reason="this ansible-core does not know where a variable was written")


@pytest.fixture
def policy(tmp_path: Path) -> tuple[str, t.Any]:
    """(file, variables) as ansible-core reads them."""
    path = tmp_path / "gpu_hosts.yml"
    path.write_text(VARIABLES, encoding="utf-8")
    return str(path), DataLoader().load_from_file(str(path))


@knows
@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("fleet_moves", 1),
        ("fleet_quotas.teams.claims.memory", 7),
        ("fleet_quotas.teams.claims.de.memory", 5),
        ("fleet_quotas.teams.claims.slices", 6),
        ("fleet_gpu_layouts", 8),
        ("fleet_gpu_layouts[1].slices", 12),
        ("fleet_gpu_layouts[1].slices[1]", 12),
        ("fleet_gpu_layouts[7].slices", 8),
        ("fleet_gpu_layouts[1].sharing", 10),
    ],
)
def test_a_field_is_found_or_what_is_around_it(policy: tuple[str, t.Any], field: str, line: int) -> None:
    file, data = policy
    assert origin_of(data, field) == f"{file}:{line}"


@knows
def test_each_error_of_a_variable_says_its_place(policy: tuple[str, t.Any]) -> None:
    file, data = policy
    hosts = {"gpu-01": {"policy": data}, "gpu-02": {"policy": data}}
    errors = [
        FleetError("9 is too many", file="host gpu-01", field="fleet_moves", hint="write 3"),
        FleetError("8 has no unit", file="hosts gpu-01, gpu-02 and 7 more", field="fleet_quotas.teams.claims.de.memory"),
        FleetError("no team", file="manifests/ocr.yml", line=3, field="team"),
        FleetError("it is lost", file="host gpu-01", field="facts.gpus"),
        FleetError("unknown", file="host gpu-99", field="fleet_moves"),
    ]
    assert str(with_origin(FleetErrors(errors), hosts)).splitlines() == [
        f"host gpu-01: fleet_moves: 9 is too many; write 3 ({file}:1)",
        f"hosts gpu-01, gpu-02 and 7 more: fleet_quotas.teams.claims.de.memory: 8 has no unit ({file}:5)",
        "manifests/ocr.yml:3: team: no team",
        "host gpu-01: facts.gpus: it is lost",
        "host gpu-99: fleet_moves: unknown",
    ]


@pytest.mark.parametrize("hosts", [None, {}, {"h": None}, {"h": {}}, {"h": {"policy": None}}, {"h": {"policy": {"fleet_moves": 9}}}, [1]])
def test_what_is_not_known_is_not_said(hosts: t.Any) -> None:
    error = FleetError("9 is too many", file="host h", field="fleet_moves", hint="write 3")
    assert str(with_origin(error, hosts)) == str(error)


def test_an_older_ansible_core_knows_nothing(policy: tuple[str, t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "Origin", None)
    assert origin_of(policy[1], "fleet_moves") is None


@knows
def test_of_two_files_the_one_with_the_value_is_named(policy: tuple[str, t.Any], tmp_path: Path) -> None:
    """A merged mapping has the name from the first file and the value from the last."""
    _file, group = policy
    path = tmp_path / "gpu-prod-02.yml"
    path.write_text("fleet_environment: x\n\nfleet_moves: 99\n", encoding="utf-8")
    host = DataLoader().load_from_file(str(path))
    (name,) = (key for key in group if key == "fleet_moves")
    assert origin_of({name: host["fleet_moves"]}, "fleet_moves") == f"{path}:3"
    assert origin_of({name: None}, "fleet_moves") is None
