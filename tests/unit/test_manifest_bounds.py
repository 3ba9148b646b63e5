# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests: numbers beyond all that there is, and needs that contradict each other."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.gpuops.fleet.plugins.plugin_utils.manifest import read_manifest
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text

MODEL = "{parameters: 8.03e9, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192, concurrency: 4}"

WRONG: dict[str, tuple[dict[str, str], str]] = {
    "a number of parameters times a billion": (
        {"model": MODEL.replace("8.03e9", "8.03e18")},
        "m/a.yml:9: model.parameters: 8.03e+18 is not right; it must be at most 1e+15",
    ),
    "bytes for tokens": (
        {"model": MODEL.replace("8192", "1000000000000000000")},
        "m/a.yml:9: model.context: 1000000000000000000 is not right; it must be at most 10000000000",
    ),
    "a model as large as nothing is": (
        {"model": "{parameters: 1e15, bytes_per_parameter: 16, layers: 99999, kv_heads: 99999, head_dim: 999999, context: 9999999999}"},
        "m/a.yml:9: model: weights and cache are too large to be true; together they may take at most 1073741824 GiB: look at each of the "
        "numbers",
    ),
    "numbers that no computer multiplies": (
        {"model": "{parameters: 1e300, bytes_per_parameter: 1e10, layers: 1, kv_heads: 8, head_dim: 128, context: 8192}"},
        "m/a.yml:9: model.bytes_per_parameter: 10000000000.0 is not right; it must be at most 16\n"
        "m/a.yml:9: model.parameters: 1e+300 is not right; it must be at most 1e+15",
    ),
    "more CPUs than there are": (
        {"host": "{cpus: 1e300, memory: 1 GiB}"},
        "m/a.yml:9: host.cpus: 1e+300 is not right; it must be at most 4096",
    ),
    "more memory than there is": (
        {"host": "{memory: 1000000 GiB, shm: 65537 GiB, disk: 1048577 GiB}"},
        "m/a.yml:9: host.disk: 1048577 GiB is more than any host has; write at most '1048576 GiB'\n"
        "m/a.yml:9: host.memory: 1000000 GiB is more than any host has; write at most '65536 GiB'\n"
        "m/a.yml:9: host.shm: 65537 GiB is more than any host has; write at most '65536 GiB'",
    ),
    "no board named": (
        {"gpu": "{memory: 8 GiB, models: []}"},
        "m/a.yml:7: gpu.models: it names no board; name those that it may run on, or leave 'models' out",
    ),
    "a board without a name": (
        {"gpu": "{memory: 8 GiB, models: ['']}"},
        "m/a.yml:7: gpu.models[0]: the text is empty; write what it shall be, or leave it out",
    ),
    "no board left": (
        {"gpu": "{memory: 8 GiB, models: [a100], not_models: [h100, a100]}"},
        "m/a.yml:7: gpu.not_models[1]: 'a100' takes away what 'models' allows, and no board is left; "
        "take it out of one of 'models' and 'not_models'",
    ),
    "no board left of parts of names": (
        {"gpu": "{memory: 8 GiB, models: [a100-sxm4, L40S], not_models: [l4, A100]}"},
        "m/a.yml:7: gpu.not_models[1]: 'A100' takes away what 'models' allows, and no board is left; "
        "take it out of one of 'models' and 'not_models'",
    ),
    "more than the slice has": (
        {"gpu": "{profile: 1g.10gb, memory: 60 GiB}"},
        "m/a.yml:7: gpu.memory: 60 GiB is more than a slice 1g.10gb has; "
        "ask for less, or for a larger profile, or leave one of the two out",
    ),
    "a lease of which nothing is said": (
        {"lease": "null"},
        "m/a.yml:9: lease: it says nothing, so that no place would ever end; write '{days: 14}', or leave 'lease' out",
    ),
    "a notice before any lease begins": (
        {"lease": "{days: 1, notice_hours: 9000}"},
        "m/a.yml:9: lease.notice_hours: 9000 is not right; it must be at most 8784",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_can_never_be_had_is_said_in_one_line_with_file_line_and_field(case: str) -> None:
    fields, expected = WRONG[case]
    with pytest.raises(FleetError) as caught:
        read_manifest("m/a.yml", manifest_text(**fields))
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu": "{memory: 8 GiB, models: [a100], not_models: [a100-pcie]}"},
        {"gpu": "{memory: 8 GiB, models: [a100, h100], not_models: [a100]}"},
        {"gpu": "{memory: 8 GiB, not_models: [a100]}"},
        # Names round, and another driver's name of the same slice is up to 8 % away.
        {"gpu": "{profile: 1g.10gb, memory: 11.5 GiB}"},
        {"gpu": "{profile: 7g.79gb, memory: 81152 MiB}"},
        {"model": MODEL.replace("8.03e9", "174e12").replace("8192", "100000000")},
        # Who extends it has the notice before the new end.
        {"lease": "{days: 0.5}"},
        {"lease": "{days: 1, notice_hours: 48}"},
    ],
)
def test_what_may_be_right_is_not_refused(fields: dict[str, str]) -> None:
    assert read_manifest("m/a.yml", manifest_text(**fields)).need_mib() > 0
