# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether any service may run on a host: what no image has a say in."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.action.host_gate import run
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError

A100 = {"device_id": "0x20B210DE", "name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "virtualization": "none"}
V100 = {"device_id": "0x1DB510DE", "name": "Tesla V100-SXM2-32GB", "compute_capability": "7.0", "virtualization": "none"}


def facts(*gpus: dict[str, str], version: str | None = "580.95.05", **changed: t.Any) -> dict[str, t.Any]:
    docker = {"present": True, "version": "28.3.0", "cdi": True, "runtimes": ["runc"], "error": None}
    return {
        "host": {"os": {"id": "debian", "version": "13"}, "kernel": "6.12.107+deb13-amd64"},
        "driver": {"present": version is not None, "version": version, "cuda": "13.0", "flavour": "proprietary"},
        "engine": {"docker": docker, "cdi_specs": ["/var/run/cdi/nvidia.yaml"]},
        "gpus": list(gpus),
        **changed,
    }


def judge(found: dict[str, t.Any]) -> list[str]:
    return list(run({"host": "gpu-07", "facts": found, "today": "2026-11-21"})["findings"])


def refused(found: dict[str, t.Any]) -> str:
    with pytest.raises(FleetError) as caught:
        judge(found)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_host_that_is_as_it_should_be_passes_without_a_word() -> None:
    assert judge(facts(A100)) == []


def test_an_old_branch_warns_with_its_remedy() -> None:
    (line,) = judge(facts(A100, version="550.163.01"))
    assert line.startswith("gpu-07: a100-sxm4-80gb: R550 gets no fixes any more")
    assert "upgrade to R580" in line


def test_what_keeps_every_service_away_is_one_line() -> None:
    engine = {"docker": {"present": False, "version": None, "cdi": None, "runtimes": None}, "cdi_specs": []}
    line = refused(facts(A100, V100, version="595.71.05", engine=engine))
    assert "gpu-07: v100-sxm2-32gb: " in line
    assert "(gpu-branch)" in line
    assert line.count("the container engine does not answer (engine)") == 2, "once for each kind of GPU"


def test_a_host_without_a_driver_or_a_gpu_fails_too() -> None:
    assert "no driver answers (driver)" in refused(facts(version=None))
    assert "finds no GPU" in refused(facts())
