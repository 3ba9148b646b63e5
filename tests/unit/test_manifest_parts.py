# Copyright (c) 2026, gpuops.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of a manifest that contradict each other, and sizes that an engine would take for no limit."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.fleet.tests.unit.decide_world import manifest_text
from ansible_collections.gpuops.fleet.tests.unit.test_manifest import problem

WRONG = {
    "no memory at all": (
        {"host": "{memory: 0 MiB}"},
        "m/a.yml:9: host.memory: it is nothing; write more than 0 MiB",
    ),
    "next to no CPU": (
        {"host": "{cpus: 0.001}"},
        "m/a.yml:9: host.cpus: 0.001 is not right; it must be at least 0.01",
    ),
    "more shared memory than memory": (
        {"host": "{memory: 2 GiB, shm: 64 GiB}"},
        "m/a.yml:9: host.shm: 64 GiB are more than the 2 GiB of 'memory', of which they are a part; ask for more memory, or less",
    ),
    "a volume over everything": (
        {"volumes": "[{source: /a, target: /m/..}]"},
        "m/a.yml:9: volumes[0].target: nothing can be mounted over the whole container; name a directory in it",
    ),
    "one place in two ways": (
        {"volumes": "[{source: /a, target: /m}, {source: /b, target: //m/}]"},
        "m/a.yml:9: volumes[1].target: '//m/' is already that of volumes[0]; give each volume its own",
    ),
    "one file with two checksums": (
        {"weights": f"[{{path: a.bin, sha256: {'a' * 64}}}, {{path: a.bin, sha256: {'b' * 64}}}]"},
        "m/a.yml:9: weights[1].sha256: 'a.bin' has another checksum in weights[0]; keep the right one",
    ),
    "no health check written": (
        {"health": "null"},
        "m/a.yml:9: health: nothing is written there; write what it shall be, or leave 'health' out",
    ),
    "no limit written": (
        {"placement": "{max_per_host: }"},
        "m/a.yml:9: placement.max_per_host: nothing is written there; write what it shall be, or leave 'max_per_host' out",
    ),
    "idle for nobody knows how long": (
        {"lease": "{days: 3, idle_below: 0.1}"},
        "m/a.yml:9: lease.idle_below: nothing says for how long it has to be idle; add 'idle_minutes: 60', or leave it out",
    ),
    "a block of another runtime": (
        {
            "runtime": "speech",
            "speech": "{model: whisper}",
            "triton": "{path: a, inputs: [{name: i, type: FP32, dims: [1]}], outputs: [{name: o, type: FP32, dims: [1]}]}",
        },
        "m/a.yml:10: triton: the runtime 'speech' does not read it; leave it out, or write 'runtime: triton'",
    ),
    "parameters in billions": (
        {"model": "{parameters: 8, bytes_per_parameter: 2, layers: 32, kv_heads: 8, head_dim: 128, context: 8192}"},
        "m/a.yml:9: model.parameters: 8 are too few to be true; write the count itself, such as 8e9",
    ),
    "everybody, and a team": (
        {"route": "{keys: false, teams: [fraud]}"},
        "m/a.yml:9: route.teams: without 'keys' everybody is let in, and nobody is asked for a team; leave 'keys: false' out, or the teams",
    ),
    "one file by two paths": (
        {"weights": f"[{{path: m/a.bin, sha256: {'a' * 64}}}, {{path: ./m/a.bin, sha256: {'b' * 64}}}]"},
        "m/a.yml:9: weights[1].sha256: './m/a.bin' has another checksum in weights[0]; keep the right one",
    ),
    "milliseconds taken for seconds": (
        {"rollout": "{timeout: 600000}"},
        "m/a.yml:9: rollout.timeout: 600000 is not right; it must be at most 86400",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_is_said_in_one_line_with_file_line_and_field(case: str) -> None:
    fields, expected = WRONG[case]
    assert problem(manifest_text(**fields)) == expected
