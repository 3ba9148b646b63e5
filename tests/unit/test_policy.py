# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policy: the inventory variables of a host, checked."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.policy import Policy, parse_ports, read_policy

VGPU = {"gpu": 2, "mode": "vgpu", "slices": ["3g.40gb@0"], "vgpus": [{"type": "A100D-3-40C"}], "scheduler": {"policy": "best-effort"}}


def policy(**more: t.Any) -> Policy:
    return read_policy("h1", {"fleet_environment": "production", **more})


def problem(**more: t.Any) -> str:
    with pytest.raises(FleetError) as caught:
        policy(**more)
    return str(caught.value)


def test_the_environment_alone_is_a_policy() -> None:
    found = policy()
    assert (found.fleet_environment, found.fleet_pool, found.fleet_gpu_modes) == ("production", "default", ["mig", "whole"])
    assert (found.fleet_shared_max, found.fleet_shared_reserve) == (4, 1024)
    assert (found.fleet_gpu_layouts, found.fleet_cordoned_gpus) == ([], [])
    assert found.fleet_capacity.model_dump() == {"cpus": None, "memory": None, "shm": None, "disk": None}
    assert found.fleet_reserve.model_dump() == {"cpus": 1, "memory": 4096, "shm": 0, "disk": 10240}
    assert found.fleet_ports == tuple(range(18000, 19000))


def test_everything_can_be_said() -> None:
    found = policy(
        fleet_pool="gold",
        fleet_gpu_modes=["shared"],
        fleet_shared_max=2,
        fleet_shared_reserve="2 GiB",
        fleet_shared_compute=1.5,
        fleet_gpu_layouts=[{"gpu": 0, "mode": "mig", "slices": ["1g.10gb@4"]}, {"gpu": "0000:07:00.0", "mode": "whole"}, VGPU],
        fleet_cordoned_gpus=[1, "GPU-x"],
        fleet_capacity={"cpus": 8, "memory": "64 GiB"},
        fleet_reserve={"cpus": 0},
        fleet_ports="20000-20001, 80",
    )
    assert found.fleet_gpu_layouts[0].model_dump(exclude_none=True) == {"gpu": 0, "mode": "mig", "slices": ["1g.10gb@4"]}
    assert found.fleet_gpu_layouts[1].model_dump(exclude_none=True) == {"gpu": "0000:07:00.0", "mode": "whole"}
    assert found.fleet_gpu_layouts[2].model_dump(exclude_none=True) == {
        "gpu": 2,
        "mode": "vgpu",
        "slices": ["3g.40gb@0"],
        "vgpus": [{"type": "A100D-3-40C", "count": 1}],
        "scheduler": {"policy": "best-effort"},
    }
    assert (found.fleet_shared_reserve, found.fleet_capacity.memory, found.fleet_reserve.cpus) == (2048, 65536, 0)
    assert found.fleet_shared_compute == 1.5
    assert found.fleet_ports == (80, 20000, 20001)
    assert found.fleet_cordoned_gpus == [1, "GPU-x"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"fleet_gpu_mode": ["mig"]}, "host h1: fleet_gpu_mode: unknown variable 'fleet_gpu_mode'; did you mean 'fleet_gpu_modes'?"),
        (
            {"fleet_cordonned_gpus": []},
            "host h1: fleet_cordonned_gpus: unknown variable 'fleet_cordonned_gpus'; did you mean 'fleet_cordoned_gpus'?",
        ),
        ({"fleet_plan": "x"}, "host h1: fleet_plan: unknown variable 'fleet_plan'; did you mean 'fleet_plans'?"),
        ({"fleet_gpu_modes": ["mgi"]}, "host h1: fleet_gpu_modes[0]: unknown value 'mgi'; write 'mig', 'whole' or 'shared'"),
        (
            {"fleet_shared_reserve": 1024},
            "host h1: fleet_shared_reserve: 1024 has no unit; write '1024 MiB' or '1024 GiB'",
        ),
        ({"fleet_gpu_modes": []}, "host h1: fleet_gpu_modes: the list is empty; write at least 1, such as [mig, whole]"),
        ({"fleet_shared_max": 0}, "host h1: fleet_shared_max: 0 is not right; it must be at least 1"),
        (
            {"fleet_quotas": {"teams": {"claims": {"gpus": None}}}},
            "host h1: fleet_quotas.teams.claims.gpus: nothing is written there; write what it shall be, or leave 'gpus' out",
        ),
        (
            {"fleet_quotas": {"teams": {"Claims ": {"gpus": 2}}}},
            "host h1: fleet_quotas.teams.Claims : 'Claims ' is not a name; use 2 to 63 of a-z, 0-9 and '-'; start with a letter, "
            "end with a letter or digit",
        ),
        (
            {
                "fleet_quotas": {
                    "workspaces": {"health": {"gpus": 4}},
                    "teams": {"claims": {"workspace": "health", "models": {"h100": {"gpus": 6}}}},
                }
            },
            "host h1: fleet_quotas.teams.claims: these are 6 whole GPUs on h100, and its workspace has 4; lower these, or raise that of "
            "the workspace",
        ),
        (
            {"fleet_gpu_modes": ["shared"], "fleet_sharing": []},
            "host h1: fleet_sharing: fleet_gpu_modes has 'shared', and no way of sharing is allowed; write [time-slice], [mps] or both",
        ),
        (
            {"fleet_quotas": {"teams": {"claims": {"gpus": 4, "models": {"": {"gpus": 2}}}}}},
            "host h1: fleet_quotas.teams.claims.models.: the name of a board is missing; write a word of its catalogue id (a100)",
        ),
        (
            {"fleet_quotas": {"teams": {"claims": {"gpus": 4, "models": {"h100": {"gpus": 20}}}}}},
            "host h1: fleet_quotas.teams.claims.models.h100.gpus: these are 20 whole GPUs on h100, and of all together it may have 4;"
            " lower these, or raise 'gpus'",
        ),
        (
            {"fleet_quotas": {"teams": {"claims": {"memory": "8 GiB", "models": {"h100": {"memory": "80 GiB"}}}}}},
            "host h1: fleet_quotas.teams.claims.models.h100.memory: these are 80 GiB of GPU memory on h100, and of all together it may"
            " have 8 GiB; lower these, or raise 'memory'",
        ),
        (
            {"fleet_capacity": {"cpu": 4}},
            "host h1: fleet_capacity.cpu: unknown field 'cpu'; did you mean 'cpus'?",
        ),
        (
            {"fleet_gpu_layouts": [{"gpu": 0, "mode": "mig", "slices": ["1g.10gb"]}]},
            "host h1: fleet_gpu_layouts[0].slices[0]: '1g.10gb' is not a slice; write PROFILE@START, as in 1g.10gb@4",
        ),
        (
            {"fleet_environment": "Prod"},
            "host h1: fleet_environment: 'Prod' is not a name; use 2 to 63 of a-z, 0-9 and '-'; start with a letter, "
            "end with a letter or digit",
        ),
        (
            {"fleet_gpu_layouts": [{"gpu": 0, "mode": "mig", "slices": ["1g.10gb@" + 5000 * "9"]}]},
            "host h1: fleet_gpu_layouts[0].slices[0]: '1g.10gb@99999999999999999999999999999999999999999999999...' is not a slice; "
            "write PROFILE@START, as in 1g.10gb@4",
        ),
        *(
            (
                {"fleet_cordoned_gpus": [0, value]},
                f"host h1: fleet_cordoned_gpus[1]: expected an index, a UUID or a PCI address, found {found}; "
                "write such as 0, GPU-5c1f... or '0000:07:00.0'",
            )
            for value, found in (
                (True, "true"),
                (None, "nothing"),
                (1.0, "1.0"),
                ([], "a list"),
                (9**5000, "a number of more than 60 digits"),
            )
        ),
        (
            {"fleet_gpu_layouts": [{"gpu": False, "mode": "whole"}]},
            "host h1: fleet_gpu_layouts[0].gpu: expected an index, a UUID or a PCI address, found false; "
            "write such as 0, GPU-5c1f... or '0000:07:00.0'",
        ),
        (
            {"fleet_shared_max": 10**5000},
            "host h1: fleet_shared_max: a number of more than 60 digits is not right; it must be at most 64",
        ),
        (
            {"fleet_ports": "1-"},
            "host h1: fleet_ports: '1-' is not a range of ports; write a range such as '18000-18999', several with commas",
        ),
        (
            {"fleet_ports": 18000},
            "host h1: fleet_ports: 18000 is not a range of ports; write a range such as '18000-18999', several with commas",
        ),
        ({"fleet_ports": "20-10"}, "host h1: fleet_ports: '20-10' is not a range of ports; ports go from 1 to 65535, the lower one first"),
    ],
)
def test_what_is_wrong_names_the_host_and_the_variable(variables: dict[str, t.Any], expected: str) -> None:
    assert problem(**variables) == expected


def test_a_host_without_environment_is_refused() -> None:
    with pytest.raises(FleetError, match=r"^host h1: the field 'fleet_environment' is missing; add 'fleet_environment: \.\.\.'$"):
        read_policy("h1", {})


def test_several_problems_are_said_each_on_its_line() -> None:
    assert len(problem(fleet_shared_max="x", fleet_pool=3).splitlines()) == 2


def test_other_variables_of_the_collection_and_of_the_site_pass() -> None:
    assert policy(fleet_plans="x", fleet_state_dir="/x", fleet_nfs_server="y", fleet_lease_seconds=3).fleet_pool == "default"


@pytest.mark.parametrize(("text", "ports"), [("1", (1,)), ("65535", (65535,)), ("5-7", (5, 6, 7)), ("9, 5-6 ,5", (5, 6, 9)), ("7-7", (7,))])
def test_ports_are_read_as_ranges(text: str, ports: tuple[int, ...]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["", "a", "0-5", "65536", "1-65536", "1--2", "1,,2", "-1", "999999"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a range of ports"):
        parse_ports(text)


def test_a_number_below_zero_as_text_is_told_as_such() -> None:
    with pytest.raises(FleetError, match="fleet_moves: '-1' is not right; it must be at least 0"):
        read_policy("h1", {"fleet_environment": "production", "fleet_moves": "-1"})
