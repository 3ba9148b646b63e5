# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which GPUs of a host NVLink joins, as facts: real pynvml over simulated boards."""

from __future__ import annotations

import typing as t

import pynvml
import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.facts import collect
from ansible_collections.gpuops.fleet.plugins.module_utils.nvml import Nvml
from simulator_world import enable_mig, gpu, nvml_open, refusal
from test_facts import count, fail, small_host

if t.TYPE_CHECKING:
    from pathlib import Path

    from ansible_collections.gpuops.fleet.plugins.module_utils.facts import Options
    from conftest import MakeHost

H100, NVL, L40S, A100 = "h100-80gb", "h100-94gb", "l40s-48gb", "a100-80gb"
NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A host below the test's directory."""
    return small_host(tmp_path / "host")


def links(options: Options) -> list[list[int] | None]:
    """Of each GPU the indices of those that it is joined with."""
    facts = collect(options)
    index = {one["pci"]: one["index"] for one in facts["gpus"]}
    return [None if one["nvlink"] is None else [index[peer] for peer in one["nvlink"]] for one in facts["gpus"]]


def test_eight_boards_behind_switches_are_all_joined_with_each_other(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:8")
    assert links(options) == [[other for other in range(8) if other != one] for one in range(8)]
    assert count(host)["nvmlDeviceGetP2PStatus"] == 28  # each pair once


def test_bridges_join_cards_in_pairs_and_boards_without_nvlink_are_joined_with_nobody(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(f"{NVL}:3", f"{L40S}:2")
    assert links(options) == [[1], [0], [], [], []]


def test_a_pair_whose_bridge_was_taken_off_is_apart(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{NVL}:4")
    host.simctl("set", "nvlink", "0", "--gpu", "0")
    host.simctl("set", "nvlink", "0", "--gpu", "1")
    assert links(options) == [[], [], [3], [2]]


def test_the_only_gpu_of_a_host_is_joined_with_nobody(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(H100)
    assert links(options) == [[]]
    assert count(host)["nvmlDeviceGetP2PStatus"] == 0


def test_of_a_gpu_in_mig_mode_nobody_knows_and_the_others_say_what_they_see(fleet_host: MakeHost, options: Options) -> None:
    fleet_host(f"{H100}:3")
    with Nvml() as nvml:
        nvml.set_mig_mode(nvml.find(1), True)
    facts = collect(options)
    assert facts["errors"] == []
    assert links(options) == [[2], None, [0]]


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "FUNCTION_NOT_FOUND"])
def test_a_driver_that_does_not_tell_is_no_error(fleet_host: MakeHost, options: Options, error: str) -> None:
    host = fleet_host(f"{H100}:3")
    fail(host, "nvmlDeviceGetP2PStatus", error)
    facts = collect(options)
    assert [one["nvlink"] for one in facts["gpus"]] == [None, None, None]
    assert facts["errors"] == []


def test_a_call_that_fails_is_told_once_and_harms_nothing_else(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:3")
    fail(host, "nvmlDeviceGetP2PStatus", "UNKNOWN")
    facts = collect(options)
    assert [(one["nvlink"], one["state"], one["memory_mib"]) for one in facts["gpus"]] == [(None, "ok", 81559)] * 3
    assert facts["errors"] == ["nvlink: nvmlDeviceGetP2PStatus: NVML_ERROR_UNKNOWN (Unknown Error)"]


def test_an_older_pynvml_without_the_call_does_not_tell(fleet_host: MakeHost, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet_host(f"{H100}:2")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetP2PStatus")
    assert links(options) == [None, None]


@pytest.mark.parametrize(
    ("status", "answer"), [(0, True), (1, False), (2, False), (3, False), (4, False), (5, False), (6, None), (7, None)]
)
def test_only_a_status_of_ok_is_a_yes_and_an_unknown_one_no_answer(
    fleet_host: MakeHost, monkeypatch: pytest.MonkeyPatch, status: int, answer: bool | None
) -> None:
    fleet_host(f"{H100}:2")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetP2PStatus", lambda *_args: status)
    with Nvml() as nvml:
        assert nvml.nvlink(nvml.find(0), nvml.find(1)) is answer


def test_a_lost_gpu_is_left_out(fleet_host: MakeHost, options: Options) -> None:
    host = fleet_host(f"{H100}:3")
    host.simctl("lose", "--gpu", "0")
    found = {one["index"]: one["nvlink"] for one in collect(options)["gpus"]}
    assert found[0] is None
    assert [len(found[index] or []) for index in (1, 2)] == [1, 1]


def test_the_simulated_status_is_that_of_the_real_call(fleet_host: MakeHost) -> None:
    fleet_host(f"{H100}:2", L40S)
    with nvml_open():
        ask = pynvml.nvmlDeviceGetP2PStatus
        assert ask(gpu(0), gpu(1), NVLINK) == ask(gpu(1), gpu(0), NVLINK) == pynvml.NVML_P2P_STATUS_OK
        assert ask(gpu(0), gpu(2), NVLINK) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        assert ask(gpu(0), gpu(1), pynvml.NVML_P2P_CAPS_INDEX_WRITE) == pynvml.NVML_P2P_STATUS_UNKNOWN
        assert refusal(ask, gpu(0), gpu(1), pynvml.NVML_P2P_CAPS_INDEX_UNKNOWN) == "INVALID_ARGUMENT"
        enable_mig(0)
        assert ask(gpu(0), gpu(1), NVLINK) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
